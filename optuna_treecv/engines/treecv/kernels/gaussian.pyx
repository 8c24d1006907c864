"""A Gaussian density with diagonal or full covariance, fitted by Welford's (1962) running sums.

For a row x of weight w (``row_weight.pxd``), let d = x - mean with the mean before this row, and let the mass W be the
sum of the weights of all rows so far, including this row. The row updates
    mean += (w/W) d,    M += w (1 - w/W) d d^T      (for a diagonal covariance, only the diagonal of M).
A row of weight 0 changes nothing. The covariance matrix is C = M / W + reg_covar I, and the output for a row is
    log p(x) = -(n_features ln 2 pi + ln det C + (x - mean)^T C^-1 (x - mean)) / 2.
Sums are float64, whether rows are float64 or float32.
"""

from libc.math cimport sqrt
from libc.string cimport memset

from optuna_treecv._kernels.exp_log cimport logarithm
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.row_weight cimport given_weight

include "train_dense_by_type.pxi"


cdef struct Settings:
    Py_ssize_t n_features       # the remaining columns are padding
    bint full                   # whether the covariance is full, not diagonal
    double reg_covar


# A state holds this head in a cache line, then the mean, (width,), and M, both float64. M has shape (width,) for a
# diagonal covariance. For a full one it has shape (n_features, width), and only its lower triangle is used.
cdef struct Head:
    int64_t n_seen
    double mass                 # W


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the mean."""
    return <void *> (state + learner.head_bytes)


cdef inlined train_dense_on(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    const floating *type_tag,
    bint weighted,
    floating *out,              # NULL, because this kernel does not test rows during training
) noexcept nogil:
    cdef const Dense *rows = &learner.dense
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *mean = <double *> vectors_of(learner, state)
    cdef double *M = mean + width
    cdef const floating *x
    cdef double weight, share, scatter_weight, d
    cdef Py_ssize_t position, row, i, j
    head.n_seen += span.stop - span.start
    for position in range(span.start, span.stop):
        row = visit(rows, span, position, type_tag)
        weight = <double> given_weight(weighted, learner, row, type_tag)
        if weight == 0:
            continue
        x = (<const floating *> rows.values) + row * width
        head.mass += weight
        share = weight / head.mass
        scatter_weight = weight * (1 - share)
        if settings.full:
            for i in range(settings.n_features):
                d = scatter_weight * (<double> x[i] - mean[i])
                for j in range(i + 1):
                    M[i * width + j] += d * (<double> x[j] - mean[j])
            for j in range(width):
                mean[j] += share * (<double> x[j] - mean[j])
        else:
            for j in range(width):
                d = <double> x[j] - mean[j]
                M[j] += scatter_weight * d * d
                mean[j] += share * d


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    """Write the mean, (n_features,), and the covariance, (n_features,) or (n_features, n_features).

    They are followed by n_features zeros, which ``test`` uses as a workspace for a row.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n = settings.n_features
    cdef const double *mean = <const double *> vectors_of(learner, state)
    cdef const double *M = mean + learner.width
    cdef double mass = (<const Head *> state).mass
    cdef double per_mass = 1 / mass if mass > 0 else 0
    cdef double *out = <double *> model
    cdef Py_ssize_t i, j
    memset(model, 0, n * (2 + (n if settings.full else 1)) * sizeof(double))
    for i in range(n):
        out[i] = mean[i]
    out += n
    if not settings.full:
        for i in range(n):
            out[i] = per_mass * M[i] + settings.reg_covar
        return
    for i in range(n):
        for j in range(i + 1):
            out[i * n + j] = out[j * n + i] = per_mass * M[i * learner.width + j]
        out[i * n + i] += settings.reg_covar


cdef inline void factorise(double *C, Py_ssize_t n) noexcept nogil:
    """Replace the lower triangle of C by its Cholesky factor L with C = L L^T.

    If C is not positive definite, the factor contains NaN.
    """
    cdef Py_ssize_t i, j, k
    cdef double s
    for j in range(n):
        for i in range(j, n):
            s = C[i * n + j]
            for k in range(j):
                s -= C[i * n + k] * C[j * n + k]
            C[i * n + j] = sqrt(s) if i == j else s / C[j * n + j]


cdef inlined test_on(
    const Learner *learner,
    const unsigned char *state,
    double *model,              # OUT, a workspace of the size of a model
    Py_ssize_t start,
    Py_ssize_t stop,
    const floating *x,          # IN, the row at start
    floating *out,              # OUT, (stop - start,)
) noexcept nogil:
    """Write log p(x) for each of the rows."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n = settings.n_features
    cdef const double *mean = model
    cdef double *C = model + n
    cdef double *z = C + (n * n if settings.full else n)
    cdef double total, constant
    cdef Py_ssize_t row, i, j
    read(learner, state, model)
    constant = <double> n * 1.8378770664093453          # ln 2 pi
    if settings.full:
        factorise(C, n)
    for i in range(n):
        constant += 2 * logarithm(C[i * n + i]) if settings.full else logarithm(C[i])
    for row in range(stop - start):
        total = constant
        for i in range(n):
            z[i] = <double> x[i] - mean[i]
            if settings.full:                           # L z = x - mean
                for j in range(i):
                    z[i] -= C[i * n + j] * z[j]
                z[i] /= C[i * n + i]
                total += z[i] * z[i]
            else:
                total += z[i] * z[i] / C[i]
        out[row] = <floating> (-0.5 * total)
        x += learner.width


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    cdef const unsigned char *x = <const unsigned char *> learner.dense.values
    x += start * learner.width * learner.itemsize
    if learner.itemsize == 8:
        test_on(learner, state, <double *> model, start, stop, <const double *> x, <double *> out)
    else:
        test_on(learner, state, <double *> model, start, stop, <const float *> x, <float *> out)


cdef class Gaussian(Kernel):
    """A Gaussian density that is fitted to dense rows; its output for a row is the logarithm of the density."""

    cdef Settings settings

    def __init__(self, X, Py_ssize_t n_features, bint full, double reg_covar):
        cdef Py_ssize_t n_sums = n_features if full else 1
        self.bind(X, None, 1)
        if self.learner.sparse.indptr != NULL:
            raise ValueError("X must be a dense array for a Gaussian density, got sparse rows.")
        if not 0 < n_features <= self.learner.width:
            raise ValueError(f"n_features must be 1 to {self.learner.width}, got {n_features}.")
        self.settings.n_features = n_features
        self.settings.full = full
        self.settings.reg_covar = reg_covar
        self.learner.settings = &self.settings
        self.learner.train = train_dense
        self.learner.read = read
        self.learner.test = test
        self.set_sizes(
            sizeof(Head),
            8 * (1 + n_sums) * self.learner.width,
            8 * n_features * (2 + n_sums),              # mean, covariance and workspace
        )

    @property
    def model_type(self) -> str:
        """The dtype of a model, as a string for NumPy."""
        return "f8"
