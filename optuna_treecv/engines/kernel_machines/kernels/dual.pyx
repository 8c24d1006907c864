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
from scipy.linalg.cython_blas cimport dtrsv
from scipy.linalg.cython_blas cimport strsv
from scipy.linalg.cython_lapack cimport dpotrf
from scipy.linalg.cython_lapack cimport spotrf


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
    MIN_SINGLE = 200            # with at least this many free variables, factors are computed in float32
    MAX_ROUNDS = 100            # the maximum number of working sets
    MAX_PHASES = 400            # the maximum number of Newton phases of a working set

# The smallest curvature of an SMO step, relative to the largest diagonal element of K.
cdef double MIN_CURVATURE = 1e-12
# A variable within this share of its range from a bound is at this bound.
cdef double SNAP = 1e-13
# The numbers of SMO steps per variable before the first Newton phase, on all variables and on a working set.
cdef double STEPS_ON_ALL = 0.1, STEPS_ON_SET = 0.1
# Variables whose derivatives are this close to a violation are in the working set, too.
cdef double MARGIN = 0.05
# The gap of a working set is reduced to this share of the gap of all variables.
cdef double GAP_OF_SET = 0.03
# What is added to the diagonal of factorised matrices, relative to its largest element.
cdef double JITTER = 1e-11, JITTER_SINGLE = 1e-6
# A share of the tolerance that rounding errors of the gradient may take.
cdef double DRIFT = 0.05


cdef struct Variables:
    # All variables of a problem, or a working set of them.
    Py_ssize_t n
    const double *K             # (n, n)
    const double *diagonal
    const double *lower
    const double *upper
    double *b
    double *g
    double *up                  # g + up is the derivative for an increase of b; infinity at the upper bound
    double *down                # g + down is the derivative for a decrease of b; -infinity at the lower bound


cdef void *grow(void **memory, Py_ssize_t *size, Py_ssize_t n_bytes) noexcept nogil:
    """Return memory of at least this size. Its content is lost."""
    if size[0] < n_bytes:
        free(memory[0])
        memory[0] = realloc(NULL, n_bytes)
        size[0] = n_bytes if memory[0] != NULL else 0
    return memory[0]


cdef class DualSolver:
    """A solver of dual problems, with the memory for it. A solver is used by one thread at a time."""

    cdef double epsilon, min_curvature, largest
    cdef bint allows_single, is_single
    cdef Py_ssize_t n_free, n_blocked
    # Vectors of all variables, and of those in a working set.
    cdef void *vectors
    cdef void *matrix           # K of a working set
    cdef void *factor           # of the free variables
    cdef void *columns          # of the inverse, one for each blocked variable
    cdef Py_ssize_t[5] sizes
    cdef double *diagonal
    cdef double *up
    cdef double *down
    cdef double *start
    cdef double *delta
    cdef double *z
    cdef double *side
    cdef double *of_set         # seven vectors
    cdef float *single
    cdef Py_ssize_t *rows       # of the working set
    cdef Py_ssize_t *indices    # of the free variables
    cdef void *of_blocked       # the factor S, and a vector
    cdef double *S
    cdef double *s
    cdef Py_ssize_t[STRIDE] blocked

    def __dealloc__(self):
        free(self.vectors)
        free(self.matrix)
        free(self.factor)
        free(self.columns)
        free(self.of_blocked)

    def move(
        self, const double [:, ::1] K, const double [::1] changes, double [::1] coefs, double [::1] gradient
    ) -> None:
        """Add changes to the coefficients b, and K times the changes to the gradient, both in place."""
        cdef Variables all
        cdef Py_ssize_t i
        self.set_variables(&all, K, coefs, coefs, coefs, gradient)
        with nogil:
            for i in range(all.n):
                all.b[i] += changes[i]
                self.indices[i] = i
            self.add_changes(&all, all.n, self.indices, &changes[0])

    def solve(
        self, const double [:, ::1] K, const double [::1] targets, const double [::1] lower, const double [::1] upper,
        double epsilon, double [::1] coefs, double [::1] gradient, double tol,
    ) -> tuple[float, float]:
        """Solve a problem in place, starting from coefficients between their bounds.

        Parameters
        ----------
        K : ndarray of shape (n, n)
            A symmetric, positive semi-definite Gram matrix.
        targets, lower, upper : ndarray of shape (n,)
            Variables with equal bounds stay as they are.
        epsilon : float
        coefs : ndarray of shape (n,)
            The coefficients b. Their sum may differ from 0.
        gradient : ndarray of shape (n,)
            K b - targets, for all rows.
        tol : float

        Returns
        -------
        gap : float
            The violation of the optimality conditions. It is at most ``tol`` if the solver has converged.
        intercept : float
            The intercept of the decision function K b + intercept.
        """
        cdef Variables all
        cdef extremes found
        cdef Py_ssize_t i, _round
        cdef double moved = 0, gap = INFINITY, intercept = 0
        self.set_variables(&all, K, lower, upper, coefs, gradient)
        self.epsilon = epsilon
        self.allows_single = True
        with nogil:
            self.largest = 0
            for i in range(all.n):
                self.largest = max(self.largest, self.diagonal[i])
                self.set_offsets(&all, i)
            self.min_curvature = max(MIN_CURVATURE * self.largest, 1e-300)
            moved += self.restore_sum(&all)
            moved += self.run_smo(&all, tol, <Py_ssize_t> (STEPS_ON_ALL * all.n), &found)
            for _round in range(MAX_ROUNDS):
                gap = found.high - found.low
                if gap <= tol:
                    if moved * self.largest * 1e-15 <= DRIFT * tol:
                        break
                    moved = self.recompute_gradient(&all, targets)
                else:
                    moved += self.improve(&all, &found, tol)
                step_and_scan(0.0, all.K, all.K, all.g, all.up, all.down, all.n, &found)
            gap = max(found.high - found.low, 0.0)
            intercept = self.find_intercept(&all, &found)
        return gap, intercept

    cdef int set_variables(
        self, Variables *all, const double [:, ::1] K, const double [::1] lower, const double [::1] upper,
        double [::1] b, double [::1] g,
    ) except -1:
        """Describe all variables of a problem, and reserve the memory for vectors."""
        cdef Py_ssize_t n = K.shape[0], i
        cdef double *memory = <double *> grow(&self.vectors, &self.sizes[0], 8 * 17 * n)
        if memory == NULL:
            raise MemoryError("The vectors of the dual problem do not fit in memory.")
        self.diagonal, self.up, self.down, self.start = memory, memory + n, memory + 2 * n, memory + 3 * n
        self.delta, self.z, self.side = memory + 4 * n, memory + 5 * n, memory + 6 * n
        self.of_set = memory + 7 * n
        self.single = <float *> (memory + 14 * n)
        self.rows, self.indices = <Py_ssize_t *> (memory + 15 * n), <Py_ssize_t *> (memory + 16 * n)
        for i in range(n):
            self.diagonal[i] = K[i, i]
        all.n, all.K, all.diagonal = n, &K[0, 0], self.diagonal
        all.lower, all.upper, all.b, all.g = &lower[0], &upper[0], &b[0], &g[0]
        all.up, all.down = self.up, self.down
        return 0

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
        cdef extremes found
        cdef Py_ssize_t i, j
        for i in range(v.n):
            total += v.b[i]
            size += fabs(v.b[i])
        step_and_scan(0.0, v.K, v.K, v.g, v.up, v.down, v.n, &found)
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
            add_rows(v.K + i * v.n, v.K, v.K, v.K, step, 0, 0, 0, v.g, v.n)
            step_and_scan(0.0, v.K, v.K, v.g, v.up, v.down, v.n, &found)
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
        step_and_scan(0.0, v.K, v.K, v.g, v.up, v.down, n, found)
        while found.high - found.low > tol and n_steps > 0:
            i = found.index
            find_partner(
                found.low, v.diagonal[i], v.K + i * n, v.diagonal, v.g, v.down, n, self.min_curvature, &partner
            )
            j = partner.index
            if j < 0:
                break
            q = max(v.diagonal[i] + v.diagonal[j] - 2 * v.K[i * n + j], self.min_curvature)
            step = (v.g[j] + v.down[j] - found.low) / q
            step = min(step, min(self.room_above(v, i), self.room_below(v, j)))
            self.change(v, i, v.b[i], v.b[i] + step)
            self.change(v, j, v.b[j], v.b[j] - step)
            step_and_scan(step, v.K + i * n, v.K + j * n, v.g, v.up, v.down, n, found)
            moved += 2 * step
            n_steps -= 1
        return moved

    cdef double improve(self, Variables *all, extremes *found, double tol) noexcept nogil:
        """Choose a working set, reduce its gap, and update all gradients; return the size of the changes."""
        cdef Variables part
        cdef Py_ssize_t i, j, k, m = 0, n = all.n
        cdef double gap = found.high - found.low, middle = (found.high + found.low) / 2, moved = 0
        cdef double margin = max(gap, MARGIN), target = max(0.9 * tol, GAP_OF_SET * gap)
        cdef double *vector = self.of_set
        for i in range(n):
            if all.lower[i] < all.upper[i] and (
                self.is_free(all, i)
                or all.g[i] + all.up[i] < middle + margin
                or all.g[i] + all.down[i] > middle - margin
            ):
                self.rows[m] = i
                m += 1
        part = all[0]
        if m > 0.7 * n or grow(&self.matrix, &self.sizes[1], 8 * m * m) == NULL:
            return self.alternate(all, target)
        part.n, part.K, part.diagonal = m, <double *> self.matrix, vector
        part.lower, part.upper, part.b, part.g = vector + m, vector + 2 * m, vector + 3 * m, vector + 4 * m
        part.up, part.down = vector + 5 * m, vector + 6 * m
        for i in range(m):
            k = self.rows[i]
            for j in range(m):
                (<double *> self.matrix)[i * m + j] = all.K[k * n + self.rows[j]]
            vector[i], vector[m + i], vector[2 * m + i] = all.diagonal[k], all.lower[k], all.upper[k]
            part.b[i], part.g[i], part.up[i], part.down[i] = all.b[k], all.g[k], all.up[k], all.down[k]
        self.alternate(&part, target)
        for i in range(m):
            k = self.rows[i]
            self.delta[i] = part.b[i] - all.b[k]
            moved += fabs(self.delta[i])
            all.b[k] = part.b[i]
            self.set_offsets(all, k)
        self.add_changes(all, m, self.rows, self.delta)
        return moved

    cdef double alternate(self, Variables *v, double tol) noexcept nogil:
        """Alternate SMO and Newton phases until the gap is at most ``tol``; return the size of the changes."""
        cdef Py_ssize_t n_steps = <Py_ssize_t> (STEPS_ON_SET * v.n) + 10, _phase
        cdef double moved = 0, n_free
        cdef extremes found
        for _phase in range(MAX_PHASES):
            moved += self.run_smo(v, tol, n_steps, &found)
            if found.high - found.low <= tol:
                break
            if self.run_newton(v, tol, &moved):     # about as many operations as the next factorisation takes
                n_free = self.n_free
                n_steps = <Py_ssize_t> (n_free * n_free * n_free / (200.0 * v.n)) + 2
            else:
                n_steps = <Py_ssize_t> (1.2 * n_steps) + 1
        return moved

    cdef bint run_newton(self, Variables *v, double tol, double *moved) noexcept nogil:
        """Minimise over the free variables; return whether none of them, or few enough, met a bound.

        With the residuals r, the step is d = -z + V l for z = A^-1 r, V = A^-1 B. The columns of B are ones, for the
        constraint sum d = 0, and a unit vector for each blocked variable, for the constraint d_i = 0. The multipliers
        l solve B'V l = B'z, whose Cholesky factor S gets a row for each blocked variable. In A = K_FF + s 11' +
        sigma I, the second term has no effect on d, since sum d = 0. It makes A well-conditioned if K_FF is singular
        only in a direction that the constraint excludes, as with a linear kernel.
        """
        cdef Py_ssize_t i, j, _refinement, n, k
        cdef double t, before, after, total = 0
        cdef double *V
        cdef bint is_complete = False
        self.n_free = n = self.n_blocked = 0
        for i in range(v.n):
            if self.is_free(v, i):
                self.indices[n] = i
                self.side[n] = 0 if self.epsilon == 0 else (1 if v.b[i] > 0 else -1)
                n += 1
        self.n_free = n
        V = <double *> grow(&self.columns, &self.sizes[3], 8 * n * (MAX_BLOCKED + 1))
        self.S = <double *> grow(&self.of_blocked, &self.sizes[4], 8 * STRIDE * (STRIDE + 1))
        if n < 2 or V == NULL or self.S == NULL or not self.factorise(v):
            return False
        self.s = self.S + STRIDE * STRIDE
        for i in range(n):
            V[i] = 1
        self.divide(V)
        for i in range(n):
            total += V[i]
        if not total > 0:
            return False
        self.S[0] = sqrt(total)
        before = self.range_of_residuals(v)
        for _refinement in range(6):
            for i in range(n):
                j = self.indices[i]
                self.start[i] = v.b[j]
                self.z[i] = v.g[j] + self.epsilon * self.side[i]
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
                self.allows_single &= not self.is_single
                break
            before = after
        return is_complete

    cdef bint factorise(self, Variables *v) noexcept nogil:
        """Factorise A in float32 or, if this fails, in float64; return whether it succeeded."""
        cdef Py_ssize_t i, j, k
        cdef int n = self.n_free, info = 0
        cdef double sigma = JITTER * self.largest, shift = self.largest / n
        cdef double *A = <double *> grow(&self.factor, &self.sizes[2], 8 * self.n_free * self.n_free)
        cdef float *A4 = <float *> A
        if A == NULL:
            return False
        if self.allows_single and n >= MIN_SINGLE:
            for i in range(n):
                k = self.indices[i] * v.n
                for j in range(i + 1):
                    A4[i * n + j] = <float> (v.K[k + self.indices[j]] + shift)
                A4[i * n + i] += <float> (JITTER_SINGLE * self.largest)
            spotrf(b"U", &n, A4, &n, &info)
            self.allows_single = self.is_single = info == 0
            if info == 0:
                return True
        self.is_single = False
        while sigma <= self.largest:
            for i in range(n):
                k = self.indices[i] * v.n
                for j in range(i + 1):
                    A[i * n + j] = v.K[k + self.indices[j]] + shift
                A[i * n + i] += sigma
            dpotrf(b"U", &n, A, &n, &info)
            if info == 0:
                return True
            sigma *= 100
        return False

    cdef void divide(self, double *x) noexcept nogil:
        """Replace x by A^-1 x."""
        cdef int n = self.n_free, one = 1
        cdef Py_ssize_t i
        cdef float *A4 = <float *> self.factor
        cdef double *A = <double *> self.factor
        cdef double scale = 0
        if not self.is_single:
            dtrsv(b"U", b"T", b"N", &n, A, &n, x, &one)
            dtrsv(b"U", b"N", b"N", &n, A, &n, x, &one)
            return
        for i in range(n):
            scale = max(scale, fabs(x[i]))
        for i in range(n):
            self.single[i] = <float> (x[i] / scale) if scale > 0 else 0
        strsv(b"U", b"T", b"N", &n, A4, &n, self.single, &one)
        strsv(b"U", b"N", b"N", &n, A4, &n, self.single, &one)
        for i in range(n):
            x[i] = self.single[i] * scale

    cdef void find_direction(self) noexcept nogil:
        """Compute the direction d = -z + V l."""
        cdef Py_ssize_t i, j, row, n = self.n_free
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
        cdef Py_ssize_t i, j
        cdef double t = 1, room
        index[0] = -1
        for i in range(self.n_free):
            j = self.indices[i]
            if self.delta[i] > 0:
                room = (0 if self.side[i] < 0 else v.upper[j]) - v.b[j]
                if t * self.delta[i] > room:
                    t = room / self.delta[i]
                    index[0] = i
            elif self.delta[i] < 0:
                room = v.b[j] - (0 if self.side[i] > 0 else v.lower[j])
                if -t * self.delta[i] > room:
                    t = -room / self.delta[i]
                    index[0] = i
        return t

    cdef bint block(self, Py_ssize_t k) noexcept nogil:
        """Keep a variable at its bound for the rest of the phase; return whether the phase can go on."""
        cdef Py_ssize_t i, j, row = self.n_blocked + 1, n = self.n_free
        cdef double x
        cdef double *V = <double *> self.columns
        cdef double *new = V + row * n
        if row > MAX_BLOCKED or row >= n - 1:
            return False
        for i in range(n):
            new[i] = 0
        new[k] = 1
        self.divide(new)
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
        for i in range(self.n_free):
            self.z[i] = 1
        for row in range(1, self.n_blocked + 1):
            self.z[self.blocked[row]] = 0
        for i in range(self.n_free):
            if self.z[i] == 1:
                r = v.g[self.indices[i]] + self.epsilon * self.side[i]
                low = min(low, r)
                high = max(high, r)
        return high - low

    cdef void add_changes(
        self, Variables *v, Py_ssize_t n_changes, const Py_ssize_t *indices, const double *changes
    ) noexcept nogil:
        """Add K times the changes of some variables to the gradient, four rows at a time."""
        cdef Py_ssize_t i, n = 0
        cdef Py_ssize_t[4] starts
        cdef double[4] factors
        for i in range(n_changes):
            if changes[i] != 0:
                starts[n], factors[n] = indices[i] * v.n, changes[i]
                n += 1
            if n == 4 or (i == n_changes - 1 and n > 0):
                while n < 4:
                    starts[n], factors[n] = starts[0], 0
                    n += 1
                add_rows(
                    v.K + starts[0], v.K + starts[1], v.K + starts[2], v.K + starts[3],
                    factors[0], factors[1], factors[2], factors[3], v.g, v.n,
                )
                n = 0
