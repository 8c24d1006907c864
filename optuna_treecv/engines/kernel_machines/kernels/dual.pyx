"""The dual problems of support vector machines, solved by SMO and by Newton steps on the free variables.

For the Gram matrix K, targets y and coefficients b, the problem is

    minimise  b'Kb / 2 - y'b + epsilon sum_i |b_i|   with  sum_i b_i = 0  and  lower <= b <= upper.

For SVC, y_i is 1 or -1, epsilon is 0, and b_i = y_i alpha_i lies between 0 and y_i C. For SVR, b_i is the
difference of alpha_i and alpha_i* and lies between -C and C. The gradient g = Kb - y has no term of epsilon. A
variable is free if it is between its bounds and, with an epsilon above 0, is not 0 either.

Sequential minimal optimisation (SMO) changes two variables per step, which are chosen by second-order information
(Fan, Chen & Lin 2005, "Working set selection using second order information for training support vector machines",
JMLR 6). It finds the free variables fast, but converges slowly for a large C. A Newton step on the free variables
finds their minimum at once, if none of them meets a bound. Otherwise, it stops there, keeps this variable at its
bound, and goes on with the others.
"""

from libc.math cimport INFINITY
from libc.math cimport fabs
from libc.math cimport sqrt
from libc.stdlib cimport free
from libc.stdlib cimport realloc
from scipy.linalg.cython_blas cimport dsyrk
from scipy.linalg.cython_blas cimport dtrsm
from scipy.linalg.cython_blas cimport dtrsv
from scipy.linalg.cython_blas cimport ssyrk
from scipy.linalg.cython_blas cimport strsm
from scipy.linalg.cython_blas cimport strsv
from scipy.linalg.cython_lapack cimport dpotrf
from scipy.linalg.cython_lapack cimport spotrf

from optuna_treecv.engines.kernel_machines.kernels.gram cimport Gram


cdef extern from "dual_loops.h" nogil:
    ctypedef struct extremes:
        double low
        double high
        Py_ssize_t index
    void step_and_scan(
        double step, const double *a, const double *b, double *g, const double *up, const double *down, Py_ssize_t n,
        extremes *out
    ) noexcept
    void find_partner(
        double low, double diagonal_i, const double *row, const double *diagonal, const double *g, const double *down,
        Py_ssize_t n, double min_curvature, extremes *out
    ) noexcept
    void add_rows(
        const double *a, const double *b, const double *c, const double *d, double p, double q, double r, double s,
        double *g, Py_ssize_t n
    ) noexcept


cdef enum:
    MAX_BLOCKED = 512           # the maximum number of variables that meet a bound in one Newton phase
    STRIDE = 513                # of the factor of the equations for these variables
    BATCH = 16                  # the number of columns of the inverse that are computed together
    MIN_SINGLE = 200            # with at least this many free variables, factors are computed in float32
    MAX_ROUNDS = 100            # the maximum number of working sets
    MAX_PHASES = 400            # the maximum number of Newton phases of a working set
    MAX_STEPS = 200             # the maximum number of SMO steps per variable, after the first 100,000
    SHARE_REMOVED = 50          # a factor serves other free variables, if at most 16 or 1 / 50 of it is not free
    SHARE_ADDED = 8             # and if at most 1 / 8 is added to them

# The smallest curvature of an SMO step, relative to the largest diagonal element of K among the variables that may
# change.
cdef double MIN_CURVATURE = 1e-12
# A variable within this share of its range from a bound is at this bound.
cdef double SNAP = 1e-13
# The number of SMO steps per variable before the first Newton phase of a working set.
cdef double STEPS_ON_SET = 0.3
# Variables whose derivatives are this close to a violation are in the working set, too.
cdef double MARGIN = 0.05
# The maximum share of the variables in a working set.
cdef double MOST_IN_SET = 0.7
# The gap of a working set is reduced to this share of the gap of all variables.
cdef double GAP_OF_SET = 0.03
# What is added to the diagonal of factorised matrices, relative to its largest element.
cdef double JITTER = 1e-11, JITTER_SINGLE = 1e-6
# A share of the tolerance that rounding errors of the gradient may take, and their size relative to those of changes.
cdef double DRIFT = 0.05, ROUNDING = 1e-15


cdef struct Variables:
    # All variables of a problem, or a working set of them.
    Py_ssize_t n
    const double *K             # (n, n)
    bint is_lazy                # whether rows of K must be computed before they are read
    const double *diagonal
    const double *lower
    const double *upper
    double *b
    double *g
    double *up                  # g + up is the derivative for an increase of b; infinity at the upper bound
    double *down                # g + down is the derivative for a decrease of b; -infinity at the lower bound


cdef struct Factor:
    # The Cholesky factor of K + shift 11' + sigma I for some variables, in float64 or float32.
    void *values
    Py_ssize_t n_bytes
    Py_ssize_t n                # the number of variables; 0 if there is no factor
    Py_ssize_t stride           # of the columns
    double shift, sigma
    bint is_single


cdef void *grow(void **memory, Py_ssize_t *size, Py_ssize_t n_bytes) noexcept nogil:
    """Return memory of at least this size. Its content is lost."""
    if size[0] < n_bytes:
        free(memory[0])
        memory[0] = realloc(NULL, n_bytes)
        size[0] = n_bytes if memory[0] != NULL else 0
    return memory[0]


cdef class DualSolver:
    """A solver of dual problems, with the memory for it. A solver is used by one thread at a time."""

    cdef Gram gram
    cdef const double *all_K    # K of all variables
    cdef double epsilon, min_curvature, largest, middle
    cdef bint allows_single
    cdef Py_ssize_t n_all, n_blocked, n_steps_left
    # Vectors of all variables, and of those in a working set.
    cdef void *vectors
    cdef void *matrix           # K of a working set
    cdef Factor *factor         # of the free variables, and of some that were free: own, or kept
    cdef Factor own
    cdef void *columns          # of the inverse, one for each blocked variable
    cdef Py_ssize_t[8] sizes
    cdef const double *diagonal
    cdef double *up
    cdef double *down
    cdef double *start
    cdef double *delta
    cdef double *z
    cdef double *side
    cdef double *of_set         # seven vectors
    cdef float *single
    cdef Py_ssize_t *rows       # of the working set
    cdef Py_ssize_t *indices    # of the variables in the factor
    cdef Py_ssize_t *places     # of each of all variables in the factor, or -1
    cdef void *batch            # columns of the inverse, for the variables in_batch
    cdef void *of_blocked       # the factor S, and a vector
    cdef double *S
    cdef double *s
    cdef Py_ssize_t[STRIDE] blocked
    cdef Py_ssize_t[BATCH] in_batch
    cdef int n_batch
    # A working set whose matrix and factor serve several problems: its variables, and those in the factor.
    cdef object kept_for
    cdef void *kept_matrix
    cdef void *kept_vectors
    cdef Py_ssize_t n_kept, n_kept_free
    cdef Factor kept

    def __dealloc__(self):
        free(self.kept_matrix)
        free(self.kept_vectors)
        free(self.vectors)
        free(self.matrix)
        free(self.own.values)
        free(self.kept.values)
        free(self.columns)
        free(self.batch)
        free(self.of_blocked)

    @property
    def n_bytes(self) -> int:
        """The bytes of memory of this solver."""
        return sum(self.sizes) + self.own.n_bytes + self.kept.n_bytes

    def move(self, K: Gram, const double [::1] changes, double [::1] coefs, double [::1] gradient) -> float:
        """Add changes to the coefficients b, and K times the changes to the gradient, both in place.

        Returns
        -------
        drift : float
            The size of the rounding errors of the gradient that this adds.
        """
        cdef Variables all
        cdef Py_ssize_t i
        cdef double moved = 0, largest = 0
        self.set_variables(&all, K, coefs, coefs, coefs, gradient)
        with nogil:
            for i in range(all.n):
                all.b[i] += changes[i]
                self.indices[i] = i
                moved += fabs(changes[i])
                largest = max(largest, self.diagonal[i])
            self.add_changes(&all, all.n, self.indices, &changes[0])
        self.gram = None
        return moved * largest * ROUNDING

    def solve(
        self, K: Gram, const double [::1] targets, const double [::1] lower, const double [::1] upper,
        double epsilon, double [::1] coefs, double [::1] gradient, double tol, double steps = 1.0, double drift = 0,
        bint uses_kept = False,
    ) -> tuple[float, float, float]:
        """Solve a problem in place, starting from coefficients between their bounds.

        Parameters
        ----------
        K : Gram
            Of shape (n, n).
        targets, lower, upper : ndarray of shape (n,)
            Variables with equal bounds stay as they are.
        epsilon : float
        coefs : ndarray of shape (n,)
            The coefficients b. Their sum may differ from 0.
        gradient : ndarray of shape (n,)
            K b - targets, for all rows.
        tol : float
        steps : float
            The number of SMO steps per variable before the first Newton phase. A start that is close to the solution
            needs fewer.
        drift : float
            The size of the rounding errors of the gradient.
        uses_kept : bool
            Whether the start differs by few coefficients from the solution for which a working set has been kept.

        Returns
        -------
        gap : float
            The violation of the optimality conditions. It is at most ``tol`` if the solver has converged.
        intercept : float
            The intercept of the decision function K b + intercept.
        drift : float
            The size of the rounding errors of the gradient.
        """
        cdef Variables all
        cdef extremes found
        cdef Py_ssize_t _round
        cdef double gap = INFINITY, intercept = 0, error
        self.set_variables(&all, K, lower, upper, coefs, gradient)
        self.epsilon = epsilon
        self.allows_single = True
        with nogil:
            self.begin(&all)
            self.n_steps_left = MAX_STEPS * all.n + 100_000
            error = self.largest * ROUNDING
            drift += error * self.restore_sum(&all)
            uses_kept &= self.n_kept > 0
            if uses_kept:
                drift += error * self.improve_kept(&all, tol)
            drift += error * self.run_smo(&all, tol, <Py_ssize_t> (steps * all.n), &found)
            for _round in range(MAX_ROUNDS):
                gap = found.high - found.low
                if gap <= tol:
                    if drift <= DRIFT * tol:
                        break
                    drift = self.recompute_gradient(&all, targets)
                elif self.n_steps_left == 0:
                    break
                elif uses_kept:
                    drift += error * self.alternate(&all, max(0.9 * tol, GAP_OF_SET * gap), all.n // 20)
                else:
                    drift += error * self.improve(&all, &found, tol)
                step_and_scan(0.0, all.diagonal, all.diagonal, all.g, all.up, all.down, all.n, &found)
            gap = max(found.high - found.low, 0.0)
            intercept = self.find_intercept(&all, &found)
        self.gram = None
        return gap, intercept, drift

    def keeps(self, object coefs) -> bool:
        """Return whether the working set is kept of the solution with this array of coefficients."""
        return self.kept_for is coefs

    def keep(
        self, K: Gram, const double [::1] lower, const double [::1] upper, double epsilon, coefs: np.ndarray,
        double [::1] gradient,
    ) -> None:
        """Keep the working set and the factor of a solution for problems whose solutions differ by few coefficients.

        They are kept until another factor is needed.
        """
        cdef Variables all, part
        cdef extremes found
        cdef Py_ssize_t i, m
        cdef Py_ssize_t *kept
        self.set_variables(&all, K, lower, upper, coefs, gradient)
        self.epsilon = epsilon
        self.allows_single = False
        self.n_kept = 0
        with nogil:
            self.begin(&all)
            step_and_scan(0.0, all.diagonal, all.diagonal, all.g, all.up, all.down, all.n, &found)
            m = self.choose_set(&all, &found)
            part = all
            if m <= MOST_IN_SET * all.n:
                if grow(&self.kept_matrix, &self.sizes[6], 8 * m * m) == NULL:
                    m = 0
                else:
                    self.copy_matrix(&all, m, <double *> self.kept_matrix)
                    self.take_set(&all, m, <double *> self.kept_matrix, &part)
            if m > 0 and grow(&self.kept_vectors, &self.sizes[7], 16 * all.n) != NULL:
                self.factorise(&part, &self.kept)
                self.n_kept, self.n_kept_free = part.n, self.kept.n
                kept = <Py_ssize_t *> self.kept_vectors
                for i in range(part.n):
                    kept[i] = self.index_of_all(&part, i)
                for i in range(self.kept.n):
                    kept[part.n + i] = self.index_of_all(&part, self.indices[i])
        self.gram = None
        self.kept_for = coefs

    cdef int set_variables(
        self, Variables *all, Gram K, const double [::1] lower, const double [::1] upper,
        double [::1] b, double [::1] g,
    ) except -1:
        """Describe all variables of a problem, and reserve the memory for vectors."""
        cdef Py_ssize_t n = K.K.shape[0]
        cdef double *memory = <double *> grow(&self.vectors, &self.sizes[0], 8 * 17 * n)
        if memory == NULL:
            raise MemoryError("The vectors of the dual problem do not fit in memory.")
        self.up, self.down, self.start, self.delta = memory, memory + n, memory + 2 * n, memory + 3 * n
        self.z, self.side, self.of_set = memory + 4 * n, memory + 5 * n, memory + 6 * n
        self.single = <float *> (memory + 13 * n)
        self.rows, self.indices = <Py_ssize_t *> (memory + 14 * n), <Py_ssize_t *> (memory + 15 * n)
        self.places, self.diagonal = <Py_ssize_t *> (memory + 16 * n), &K.of_diagonal[0]
        self.gram, self.n_all = K, n
        self.all_K = &K.K[0, 0]
        all.n, all.K, all.is_lazy, all.diagonal = n, self.all_K, K.X is not None, self.diagonal
        all.lower, all.upper, all.b, all.g = &lower[0], &upper[0], &b[0], &g[0]
        all.up, all.down = self.up, self.down
        return 0

    cdef void begin(self, Variables *all) noexcept nogil:
        """Begin a problem without a factor."""
        cdef Py_ssize_t i
        self.factor = &self.own
        self.factor.n = 0
        self.largest = 0
        for i in range(all.n):
            self.places[i] = -1
            if all.lower[i] < all.upper[i]:         # test rows have no effect
                self.largest = max(self.largest, all.diagonal[i])
            self.set_offsets(all, i)
        self.min_curvature = max(MIN_CURVATURE * self.largest, 1e-300)

    cdef inline void require(self, Variables *v, const Py_ssize_t *rows, Py_ssize_t n_rows) noexcept nogil:
        """Compute rows of K, unless this has been done."""
        if v.is_lazy:
            self.gram.compute_rows(rows, n_rows)

    cdef inline void set_offsets(self, Variables *v, Py_ssize_t i) noexcept nogil:
        """Set the offsets of the two derivatives of a variable."""
        cdef double b = v.b[i]
        v.up[i] = INFINITY if b >= v.upper[i] else (self.epsilon if b >= 0 else -self.epsilon)
        v.down[i] = -INFINITY if b <= v.lower[i] else (self.epsilon if b > 0 else -self.epsilon)

    cdef inline double change(self, Variables *v, Py_ssize_t i, double old, double new) noexcept nogil:
        """Change a variable from ``old`` to ``new``, or to a bound or 0 that is very close; return the change."""
        cdef double width = SNAP * (v.upper[i] - v.lower[i])
        if new >= v.upper[i] - width:
            new = v.upper[i]
        elif new <= v.lower[i] + width:
            new = v.lower[i]
        elif self.epsilon > 0 and fabs(new) <= width:
            new = 0
        v.b[i] = new
        self.set_offsets(v, i)
        return new - old

    cdef inline double room_above(self, Variables *v, Py_ssize_t i) noexcept nogil:
        """Return how much a variable can increase before its derivative jumps."""
        return (0 if self.epsilon > 0 and v.b[i] < 0 else v.upper[i]) - v.b[i]

    cdef inline double room_below(self, Variables *v, Py_ssize_t i) noexcept nogil:
        """Return how much a variable can decrease before its derivative jumps."""
        return v.b[i] - (0 if self.epsilon > 0 and v.b[i] > 0 else v.lower[i])

    cdef double restore_sum(self, Variables *v) noexcept nogil:
        """Make the sum of the variables 0, by those changes that increase the objective least; return their size."""
        cdef double total = 0, size = 0, step, moved = 0
        cdef const double *row
        cdef extremes found
        cdef Py_ssize_t i, j
        for i in range(v.n):
            total += v.b[i]
            size += fabs(v.b[i])
        step_and_scan(0.0, v.diagonal, v.diagonal, v.g, v.up, v.down, v.n, &found)
        while fabs(total) > 1e-13 * size:
            i = found.index
            if total > 0:
                i = -1
                for j in range(v.n):
                    if v.g[j] + v.down[j] == found.high:
                        i = j
                        break
            if i < 0:
                break
            step = min(-total, self.room_above(v, i)) if total < 0 else -min(total, self.room_below(v, i))
            self.change(v, i, v.b[i], v.b[i] + step)
            self.require(v, &i, 1)
            row = v.K + i * v.n
            add_rows(row, row, row, row, step, 0, 0, 0, v.g, v.n)
            step_and_scan(0.0, v.diagonal, v.diagonal, v.g, v.up, v.down, v.n, &found)
            total += step
            moved += fabs(step)
        return moved

    cdef double recompute_gradient(self, Variables *v, const double [::1] targets) noexcept nogil:
        """Compute the gradient anew, without the rounding errors of many changes; return 0."""
        cdef Py_ssize_t i
        for i in range(v.n):
            v.g[i] = -targets[i]
            self.indices[i] = i
        self.add_changes(v, v.n, self.indices, v.b)
        return 0

    cdef double find_intercept(self, Variables *v, extremes *found) noexcept nogil:
        """Return the intercept: from the mean gradient of the free variables, or else from the middle of the gap."""
        cdef double total = 0
        cdef Py_ssize_t i, n_free = 0
        for i in range(v.n):
            if self.is_free(v, i):
                total += v.g[i] + v.up[i]
                n_free += 1
        return -total / n_free if n_free else -(found.low + found.high) / 2

    cdef inline bint is_free(self, Variables *v, Py_ssize_t i) noexcept nogil:
        return v.lower[i] < v.b[i] < v.upper[i] and (v.b[i] != 0 or self.epsilon == 0)

    cdef double run_smo(self, Variables *v, double tol, Py_ssize_t n_steps, extremes *found) noexcept nogil:
        """Take at most ``n_steps`` steps of SMO until the gap is at most ``tol``; return their total length."""
        cdef extremes partner
        cdef Py_ssize_t i, j, n = v.n
        cdef double step, q, moved = 0
        step_and_scan(0.0, v.diagonal, v.diagonal, v.g, v.up, v.down, n, found)
        n_steps = min(n_steps, self.n_steps_left)
        self.n_steps_left -= n_steps
        while found.high - found.low > tol and n_steps > 0:
            i = found.index
            self.require(v, &i, 1)
            find_partner(
                found.low, v.diagonal[i], v.K + i * n, v.diagonal, v.g, v.down, n, self.min_curvature, &partner
            )
            j = partner.index
            if j < 0:
                break
            q = max(v.diagonal[i] + v.diagonal[j] - 2 * v.K[i * n + j], self.min_curvature)
            self.require(v, &j, 1)
            step = (v.g[j] + v.down[j] - found.low) / q
            step = min(step, min(self.room_above(v, i), self.room_below(v, j)))
            self.change(v, i, v.b[i], v.b[i] + step)
            self.change(v, j, v.b[j], v.b[j] - step)
            step_and_scan(step, v.K + i * n, v.K + j * n, v.g, v.up, v.down, n, found)
            moved += 2 * step
            n_steps -= 1
        self.n_steps_left += n_steps
        return moved

    cdef double improve(self, Variables *all, extremes *found, double tol) noexcept nogil:
        """Choose a working set, reduce its gap, and update all gradients; return the size of the changes."""
        cdef double target = max(0.9 * tol, GAP_OF_SET * (found.high - found.low))
        cdef Py_ssize_t m = self.choose_set(all, found)
        if m > MOST_IN_SET * all.n or grow(&self.matrix, &self.sizes[1], 8 * m * m) == NULL:
            return self.alternate(all, target, <Py_ssize_t> (STEPS_ON_SET * all.n) + 10)
        self.copy_matrix(all, m, <double *> self.matrix)
        return self.improve_set(all, m, <double *> self.matrix, target, <Py_ssize_t> (STEPS_ON_SET * m) + 10)

    cdef double improve_kept(self, Variables *all, double tol) noexcept nogil:
        """Reduce the gap of the working set that has been kept, and update all gradients; return the changes' size."""
        cdef Py_ssize_t i
        cdef Py_ssize_t *kept = <Py_ssize_t *> self.kept_vectors
        self.factor = &self.kept
        self.factor.n = self.n_kept_free
        for i in range(self.n_kept):
            self.rows[i] = kept[i]
        for i in range(self.factor.n):
            self.places[kept[self.n_kept + i]] = i
        if self.n_kept == all.n:
            return self.alternate(all, 0.9 * tol, all.n // 10)
        return self.improve_set(all, self.n_kept, <double *> self.kept_matrix, 0.9 * tol, self.n_kept // 10)

    cdef Py_ssize_t choose_set(self, Variables *all, extremes *found) noexcept nogil:
        """Find the free variables and those that may become free; return their number."""
        cdef Py_ssize_t i, m = 0
        cdef double gap = found.high - found.low, middle = (found.high + found.low) / 2, margin = max(gap, MARGIN)
        for i in range(all.n):
            if all.lower[i] < all.upper[i] and (
                self.is_free(all, i)
                or self.places[i] >= 0
                or all.g[i] + all.up[i] < middle + margin
                or all.g[i] + all.down[i] > middle - margin
            ):
                self.rows[m] = i
                m += 1
        return m

    cdef void copy_matrix(self, Variables *all, Py_ssize_t m, double *K) noexcept nogil:
        """Copy the Gram matrix of a working set."""
        cdef Py_ssize_t i, j
        cdef const double *row
        self.require(all, self.rows, m)
        for i in range(m):
            row = all.K + self.rows[i] * all.n
            for j in range(m):
                K[i * m + j] = row[self.rows[j]]

    cdef void take_set(self, Variables *all, Py_ssize_t m, const double *K, Variables *part) noexcept nogil:
        """Copy the vectors of a working set."""
        cdef Py_ssize_t i, k
        cdef double *vector = self.of_set
        part.n, part.K, part.is_lazy, part.diagonal = m, K, False, vector
        part.lower, part.upper, part.b, part.g = vector + m, vector + 2 * m, vector + 3 * m, vector + 4 * m
        part.up, part.down = vector + 5 * m, vector + 6 * m
        for i in range(m):
            k = self.rows[i]
            vector[i], vector[m + i], vector[2 * m + i] = all.diagonal[k], all.lower[k], all.upper[k]
            part.b[i], part.g[i], part.up[i], part.down[i] = all.b[k], all.g[k], all.up[k], all.down[k]

    cdef double improve_set(
        self, Variables *all, Py_ssize_t m, const double *K, double target, Py_ssize_t n_steps
    ) noexcept nogil:
        """Reduce the gap of a working set, and update all gradients; return the size of the changes."""
        cdef Variables part
        cdef Py_ssize_t i, k
        cdef double moved = 0
        self.take_set(all, m, K, &part)
        self.alternate(&part, target, n_steps)
        for i in range(m):
            k = self.rows[i]
            self.delta[i] = part.b[i] - all.b[k]
            moved += fabs(self.delta[i])
            all.b[k] = part.b[i]
            self.set_offsets(all, k)
        self.add_changes(all, m, self.rows, self.delta)
        return moved

    cdef double alternate(self, Variables *v, double tol, Py_ssize_t n_steps) noexcept nogil:
        """Alternate SMO and Newton phases until the gap is at most ``tol``; return the size of the changes."""
        cdef Py_ssize_t phase
        cdef double moved = 0, n_free
        cdef extremes found
        for phase in range(MAX_PHASES):
            if phase == 10 and self.factor == &self.kept:       # it may serve this problem badly
                self.factor.n = 0
            moved += self.run_smo(v, tol, n_steps, &found)
            if found.high - found.low <= tol or self.n_steps_left == 0:
                break
            if self.run_newton(v, tol, &moved):     # about as many operations as the next factorisation takes
                n_free = self.factor.n
                n_steps = <Py_ssize_t> (n_free * n_free * n_free / (200.0 * v.n)) + 2
            else:
                n_steps = <Py_ssize_t> (1.2 * n_steps) + 1
        return moved

    cdef bint run_newton(self, Variables *v, double tol, double *moved) noexcept nogil:
        """Minimise over the free variables; return whether none of them, or few enough, met a bound.

        With the residuals r, the step is d = -z + V l for z = A^-1 r, V = A^-1 B. The columns of B are ones, for the
        constraint sum d = 0, and a unit vector for each blocked variable, for the constraint d_i = 0. Variables in the
        factor that are not free any more are blocked, too. The multipliers l solve B'V l = B'z, whose Cholesky factor
        S gets a row for each blocked variable. In A = K_FF + s 11' + sigma I, the second term has no effect on d,
        since sum d = 0. It makes A well-conditioned if K_FF is singular only in a direction that the constraint
        excludes, as with a linear kernel.
        """
        cdef Py_ssize_t i, j, _refinement, n, k
        cdef double t, before, after
        cdef bint is_complete = False
        if not (self.extend_factor(v) and self.begin_phase(v)):
            if not (self.factorise(v, &self.own) and self.begin_phase(v)):
                return False
        n = self.factor.n
        before = self.range_of_residuals(v)
        for _refinement in range(6):
            for i in range(n):
                j = self.indices[i]
                self.start[i] = v.b[j]
                self.z[i] = v.g[j] + self.epsilon * self.side[i] - self.middle
            for i in range(1, self.n_blocked + 1):  # the multipliers make any value right, but not in float32
                self.z[self.blocked[i]] = 0
            self.divide(self.z)
            is_complete = False
            while True:
                self.find_direction()
                t = self.find_step(v, &k)
                for i in range(n):
                    v.b[self.indices[i]] += t * self.delta[i]
                    self.z[i] += t * self.delta[i]
                if k < 0:
                    is_complete = True
                    break
                j = self.indices[k]
                if self.delta[k] > 0:
                    v.b[j] = 0 if self.side[k] < 0 else v.upper[j]
                else:
                    v.b[j] = 0 if self.side[k] > 0 else v.lower[j]
                if self.place_in_batch(k) < 0:
                    self.choose_batch(v, k)
                if not self.block(k):
                    break
            for i in range(n):
                j = self.indices[i]
                self.delta[i] = self.change(v, j, self.start[i], v.b[j])
                moved[0] += fabs(self.delta[i])
            self.add_changes(v, n, self.indices, self.delta)
            if not is_complete:
                break
            after = self.range_of_residuals(v)
            if after <= 0.5 * tol:
                break
            if after > 0.1 * before:        # float32 has too few digits, or sigma is too large
                self.allows_single &= not self.factor.is_single
                if self.n_blocked > 0:      # or the equations for blocked variables do
                    self.factor.n = 0
                break
            before = after
        return is_complete

    cdef bint factorise(self, Variables *v, Factor *factor) noexcept nogil:
        """Factorise A for the free variables in float32 or, if this fails, in float64; return whether it succeeded."""
        cdef Py_ssize_t i, n = 0
        for i in range(self.n_all):
            self.places[i] = -1
        self.factor = factor
        self.factor.n = 0
        for i in range(v.n):
            if self.is_free(v, i):
                self.indices[n] = i
                n += 1
        self.factor.stride = min(n + n // SHARE_ADDED + 1, self.n_all)
        self.factor.shift = self.largest / n if n else 0
        if n < 2 or grow(&factor.values, &factor.n_bytes, 8 * self.factor.stride * self.factor.stride) == NULL:
            return False
        self.factor.is_single = self.allows_single and n >= MIN_SINGLE
        self.factor.sigma = (JITTER_SINGLE if self.factor.is_single else JITTER) * self.largest
        while self.factor.sigma <= self.largest:
            if self.add_to_factor(v, n):
                return True
            if self.factor.is_single:
                self.allows_single = self.factor.is_single = False
                self.factor.sigma = JITTER * self.largest
            else:
                self.factor.sigma *= 100
        return False

    cdef bint extend_factor(self, Variables *v) noexcept nogil:
        """Add variables that have become free to the factor; return whether it serves the free variables."""
        cdef Py_ssize_t i, place, n_removed = 0, n = self.factor.n
        if n == 0 or (self.factor.is_single and not self.allows_single):
            return False
        for i in range(v.n):
            place = self.places[self.index_of_all(v, i)]
            if place >= 0:
                self.indices[place] = i
                n_removed += not self.is_free(v, i)
            elif self.is_free(v, i):
                self.indices[n] = i
                n += 1
        if n_removed > max(BATCH, self.factor.n // SHARE_REMOVED) or n > self.factor.stride:
            return False
        return self.add_to_factor(v, n)

    cdef inline Py_ssize_t index_of_all(self, Variables *v, Py_ssize_t i) noexcept nogil:
        """Return the index of a variable among all variables."""
        return i if v.K == self.all_K else self.rows[i]

    cdef bint add_to_factor(self, Variables *v, Py_ssize_t n_after) noexcept nogil:
        """Append the rows of A for more variables to the Cholesky factor; return whether A is positive definite."""
        cdef Py_ssize_t i, j, k, begin = self.factor.n * self.factor.stride
        cdef int n = self.factor.n, m = n_after - n, stride = self.factor.stride, info = 0
        cdef double one = 1, minus = -1
        cdef float one4 = 1, minus4 = -1
        cdef double *A = <double *> self.factor.values
        cdef float *A4 = <float *> A
        self.require(v, self.indices + n, m)
        for i in range(n, n_after):
            k = self.indices[i] * v.n
            if self.factor.is_single:
                for j in range(i + 1):
                    A4[i * stride + j] = <float> (v.K[k + self.indices[j]] + self.factor.shift)
                A4[i * stride + i] += <float> self.factor.sigma
            else:
                for j in range(i + 1):
                    A[i * stride + j] = v.K[k + self.indices[j]] + self.factor.shift
                A[i * stride + i] += self.factor.sigma
        if self.factor.is_single:
            if n > 0 and m > 0:
                strsm(b"L", b"U", b"T", b"N", &n, &m, &one4, A4, &stride, A4 + begin, &stride)
                ssyrk(b"U", b"T", &m, &n, &minus4, A4 + begin, &stride, &one4, A4 + begin + n, &stride)
            spotrf(b"U", &m, A4 + begin + n, &stride, &info)
        else:
            if n > 0 and m > 0:
                dtrsm(b"L", b"U", b"T", b"N", &n, &m, &one, A, &stride, A + begin, &stride)
                dsyrk(b"U", b"T", &m, &n, &minus, A + begin, &stride, &one, A + begin + n, &stride)
            dpotrf(b"U", &m, A + begin + n, &stride, &info)
        if info != 0:
            return False
        for i in range(n, n_after):
            self.places[self.index_of_all(v, self.indices[i])] = i
        self.factor.n = n_after
        return True

    cdef bint begin_phase(self, Variables *v) noexcept nogil:
        """Compute the columns for the sum, and for variables that are not free; return whether it succeeded."""
        cdef Py_ssize_t i, j, n = self.factor.n
        cdef double total = 0
        cdef double *V = <double *> grow(&self.columns, &self.sizes[3], 8 * n * (MAX_BLOCKED + 1))
        self.S = <double *> grow(&self.of_blocked, &self.sizes[4], 8 * STRIDE * (STRIDE + 1))
        if V == NULL or self.S == NULL or grow(&self.batch, &self.sizes[5], 8 * n * BATCH) == NULL:
            return False
        self.s = self.S + STRIDE * STRIDE
        self.n_blocked = self.n_batch = 0
        for i in range(n):
            V[i] = 1
        self.divide(V)
        for i in range(n):
            total += V[i]
        if not total > 0:
            return False
        self.S[0] = sqrt(total)
        for i in range(n):
            self.side[i] = 0 if self.epsilon == 0 else (1 if v.b[self.indices[i]] > 0 else -1)
            if not self.is_free(v, self.indices[i]):
                self.in_batch[self.n_batch] = i
                self.n_batch += 1
            if self.n_batch == BATCH or (i == n - 1 and self.n_batch > 0):
                self.compute_batch()
                for j in range(self.n_batch):
                    if not self.block(self.in_batch[j]):
                        return False
                self.n_batch = 0
        return True

    cdef Py_ssize_t place_in_batch(self, Py_ssize_t k) noexcept nogil:
        """Return the place of a variable in the batch, or -1."""
        cdef Py_ssize_t j
        for j in range(self.n_batch):
            if self.in_batch[j] == k:
                return j
        return -1

    cdef void choose_batch(self, Variables *v, Py_ssize_t k) noexcept nogil:
        """Compute the columns for k and for variables that meet a bound next if the direction stays the same."""
        cdef Py_ssize_t i, j
        cdef double[BATCH] shares
        cdef double share
        self.in_batch[0], shares[0], self.n_batch = k, -1, 1
        for i in range(self.factor.n):
            if self.delta[i] == 0 or i == k:
                continue
            share = max(self.room(v, i) / fabs(self.delta[i]), 0)
            if share < (1 if self.n_batch < BATCH else shares[BATCH - 1]):
                self.n_batch = min(self.n_batch + 1, BATCH)
                j = self.n_batch - 1
                while shares[j - 1] > share:
                    self.in_batch[j], shares[j] = self.in_batch[j - 1], shares[j - 1]
                    j -= 1
                self.in_batch[j], shares[j] = i, share
        self.compute_batch()

    cdef void compute_batch(self) noexcept nogil:
        """Compute the columns of A^-1 for the variables in the batch."""
        cdef Py_ssize_t i, j
        cdef int n = self.factor.n, m = self.n_batch, stride = self.factor.stride
        cdef double one = 1
        cdef float one4 = 1
        cdef double *A = <double *> self.factor.values
        cdef double *B = <double *> self.batch
        cdef float *A4 = <float *> A
        cdef float *B4 = <float *> B
        for j in range(m):
            for i in range(n):
                if self.factor.is_single:
                    B4[j * n + i] = i == self.in_batch[j]
                else:
                    B[j * n + i] = i == self.in_batch[j]
        if self.factor.is_single:
            strsm(b"L", b"U", b"T", b"N", &n, &m, &one4, A4, &stride, B4, &n)
            strsm(b"L", b"U", b"N", b"N", &n, &m, &one4, A4, &stride, B4, &n)
        else:
            dtrsm(b"L", b"U", b"T", b"N", &n, &m, &one, A, &stride, B, &n)
            dtrsm(b"L", b"U", b"N", b"N", &n, &m, &one, A, &stride, B, &n)

    cdef void divide(self, double *x) noexcept nogil:
        """Replace x by A^-1 x."""
        cdef int n = self.factor.n, stride = self.factor.stride, one = 1
        cdef Py_ssize_t i
        cdef float *A4 = <float *> self.factor.values
        cdef double *A = <double *> self.factor.values
        cdef double scale = 0
        if not self.factor.is_single:
            dtrsv(b"U", b"T", b"N", &n, A, &stride, x, &one)
            dtrsv(b"U", b"N", b"N", &n, A, &stride, x, &one)
            return
        for i in range(n):
            scale = max(scale, fabs(x[i]))
        for i in range(n):
            self.single[i] = <float> (x[i] / scale) if scale > 0 else 0
        strsv(b"U", b"T", b"N", &n, A4, &stride, self.single, &one)
        strsv(b"U", b"N", b"N", &n, A4, &stride, self.single, &one)
        for i in range(n):
            x[i] = self.single[i] * scale

    cdef void find_direction(self) noexcept nogil:
        """Compute the direction d = -z + V l."""
        cdef Py_ssize_t i, j, row, n = self.factor.n
        cdef double x
        cdef double *V = <double *> self.columns
        for row in range(self.n_blocked + 1):
            x = 0
            if row == 0:
                for i in range(n):
                    x += self.z[i]
            else:
                x = self.z[self.blocked[row]]
            for j in range(row):
                x -= self.S[row * STRIDE + j] * self.s[j]
            self.s[row] = x / self.S[row * STRIDE + row]
        for row in range(self.n_blocked, -1, -1):
            x = self.s[row]
            for j in range(row + 1, self.n_blocked + 1):
                x -= self.S[j * STRIDE + row] * self.s[j]
            self.s[row] = x / self.S[row * STRIDE + row]
        for i in range(n):
            self.delta[i] = -self.z[i]
        for row in range(self.n_blocked + 1):
            for i in range(n):
                self.delta[i] += self.s[row] * V[row * n + i]
        for row in range(1, self.n_blocked + 1):
            self.delta[self.blocked[row]] = 0
        x = 0
        for i in range(n):
            x += self.delta[i]
        x /= n - self.n_blocked                         # a rounding error, above all of float32
        for i in range(n):
            self.delta[i] -= x
        for row in range(1, self.n_blocked + 1):
            self.delta[self.blocked[row]] = 0

    cdef double find_step(self, Variables *v, Py_ssize_t *index) noexcept nogil:
        """Return the share of the direction after which the first variable meets a bound, and its index; or 1, -1."""
        cdef Py_ssize_t i
        cdef double t = 1, room
        index[0] = -1
        for i in range(self.factor.n):
            room = self.room(v, i)
            if t * fabs(self.delta[i]) > room:
                t = room / fabs(self.delta[i])
                index[0] = i
        return t

    cdef inline double room(self, Variables *v, Py_ssize_t i) noexcept nogil:
        """Return how far a variable of the factor is from the bound to which the direction leads."""
        cdef Py_ssize_t j = self.indices[i]
        if self.delta[i] > 0:
            return (0 if self.side[i] < 0 else v.upper[j]) - v.b[j]
        return v.b[j] - (0 if self.side[i] > 0 else v.lower[j])

    cdef bint block(self, Py_ssize_t k) noexcept nogil:
        """Keep a variable of the batch at its bound for the rest of the phase; return whether the phase can go on."""
        cdef Py_ssize_t i, j, row = self.n_blocked + 1, n = self.factor.n
        cdef double x
        cdef double *V = <double *> self.columns
        cdef double *new = V + row * n
        if row > MAX_BLOCKED or row >= n - 1:
            return False
        j = self.place_in_batch(k)
        for i in range(n):
            new[i] = (<float *> self.batch)[j * n + i] if self.factor.is_single else (<double *> self.batch)[j * n + i]
        for i in range(row):
            x = V[i * n + k]
            for j in range(i):
                x -= self.S[i * STRIDE + j] * self.S[row * STRIDE + j]
            self.S[row * STRIDE + i] = x / self.S[i * STRIDE + i]
        x = new[k]
        for j in range(row):
            x -= self.S[row * STRIDE + j] * self.S[row * STRIDE + j]
        if not x > 1e-14 * new[k]:
            return False
        self.S[row * STRIDE + row] = sqrt(x)
        self.blocked[row] = k
        self.n_blocked = row
        return True

    cdef double range_of_residuals(self, Variables *v) noexcept nogil:
        """Return the difference between the largest and the smallest derivative of variables that are not blocked."""
        cdef Py_ssize_t i, row
        cdef double low = INFINITY, high = -INFINITY, r
        for i in range(self.factor.n):
            self.z[i] = 1
        for row in range(1, self.n_blocked + 1):
            self.z[self.blocked[row]] = 0
        for i in range(self.factor.n):
            if self.z[i] == 1:
                r = v.g[self.indices[i]] + self.epsilon * self.side[i]
                low = min(low, r)
                high = max(high, r)
        self.middle = (low + high) / 2
        return high - low

    cdef void add_changes(
        self, Variables *v, Py_ssize_t n_changes, const Py_ssize_t *indices, const double *changes
    ) noexcept nogil:
        """Add K times the changes of some variables to the gradient, four rows at a time."""
        cdef Py_ssize_t i, n = 0
        cdef Py_ssize_t[4] rows
        cdef double[4] factors
        for i in range(n_changes):
            if changes[i] != 0:
                rows[n], factors[n] = indices[i], changes[i]
                n += 1
            if n == 4 or (i == n_changes - 1 and n > 0):
                self.require(v, rows, n)
                while n < 4:
                    rows[n], factors[n] = rows[0], 0
                    n += 1
                add_rows(
                    v.K + rows[0] * v.n, v.K + rows[1] * v.n, v.K + rows[2] * v.n, v.K + rows[3] * v.n,
                    factors[0], factors[1], factors[2], factors[3], v.g, v.n,
                )
                n = 0
