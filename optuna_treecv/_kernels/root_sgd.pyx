"""ROOT-SGD (Li, Mou, Wainwright & Jordan 2022, Algorithm 1): variance reduction in a single loop,
with a state of constant size and no stages.

For row t, with g_t(w) = slope(w.x, y) x + alpha w:
    v_t = g_t(w_{t-1}) + (1 - 1/t) (v_{t-1} - g_t(w_{t-2})),
    w_t = w_{t-1} - eta v_t,    or w_{t-1} while t <= burn_in,
with w_0 = 0. So v is first the mean gradient at 0, and then follows w. The model is the last iterate.
With the automatic step (``steps.pxd``) or with weights of rows (``row_weight.pxd``), g_t(w) = weight slope(w.x, y) x
+ penalty w.
"""

from libc.stdint cimport int32_t

from optuna_treecv._kernels.linear cimport LinearKernel
from optuna_treecv._kernels.linear cimport LinearSettings
from optuna_treecv._kernels.linear cimport Weights
from optuna_treecv._kernels.losses cimport Loss
from optuna_treecv._kernels.losses cimport loss_named
from optuna_treecv._kernels.losses cimport two_slopes
from optuna_treecv._kernels.row_weight cimport weight_of
from optuna_treecv._kernels.steps cimport Norms
from optuna_treecv._kernels.steps cimport Step
from optuna_treecv._kernels.steps cimport automatic_weight
from optuna_treecv._kernels.steps cimport step_of
from optuna_treecv._kernels.steps cimport typical_norm2
from optuna_treecv._kernels.vec8 cimport dot

include "train_dense_by_type.pxi"


cdef struct Settings:
    LinearSettings linear
    Loss loss
    double alpha
    double step_size            # eta; 0: auto
    int64_t burn_in


# A state holds this head in a cache line, then w_t of all outputs, then w_{t-1}, then v_t.
cdef struct Head:
    int64_t n_seen
    Norms norms                 # of the rows so far; for the automatic step only


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return w_t of the first output."""
    return <void *> (state + learner.head_bytes)


cdef inlined step(
    Py_ssize_t width,
    const floating *x,
    double keep,                # 1 - 1/t
    double eta,
    double alpha,
    double g,                   # the slope at w_{t-1}
    double g_before,            # at w_{t-2}
    floating *w,                # INOUT, (width,): w_{t-1}, then w_t
    floating *w_before,         # INOUT, likewise
    floating *v,                # INOUT, likewise
) noexcept nogil:
    cdef floating by_v = <floating> keep
    cdef floating by_x = <floating> (g - keep * g_before)
    cdef floating by_w = <floating> alpha
    cdef floating by_before = <floating> (keep * alpha)
    cdef floating by_step = <floating> eta
    cdef floating now
    cdef Py_ssize_t j
    for j in range(width):
        v[j] = by_v * v[j] + by_x * x[j] + (by_w * w[j] - by_before * w_before[j])
        now = w[j]
        w_before[j] = now
        w[j] = now - by_step * v[j]


cdef inlined train_dense_on(
    const Learner *learner,
    Span span,
    unsigned char *state,
    floating *w,                # INOUT, where the first one lies in the state
    bint weighted,
    floating *tested,           # OUT, (rows of the span, n_outputs): outputs before each row acts; or NULL
) noexcept nogil:
    cdef const Dense *rows = &learner.dense
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Loss *loss = &settings.loss
    cdef const floating *x
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef floating *w_before = w + learner.n_outputs * width
    cdef floating *v = w_before + learner.n_outputs * width
    cdef Py_ssize_t i, row, c, at
    cdef double S = 0
    cdef double norm2 = 0
    cdef double row_weight = 0
    cdef double weight
    cdef Step by
    cdef double p[2]
    cdef double g[2]
    for i in range(span.start, span.stop):
        row = visit(rows, span, i, w)
        x = (<const floating *> rows.values) + row * width
        head.n_seen += 1
        weight = <double> weight_of(weighted, learner, row, state, w)
        if settings.step_size == 0:
            norm2 = <double> dot(x, x, width)
            typical_norm2(loss, &head.norms, norm2, weight, False, &S)
            row_weight = automatic_weight(S, norm2, weight)
        by = step_of(loss, settings.step_size, S, row_weight, settings.alpha, weight)
        if head.n_seen <= settings.burn_in:
            by.rate = by.penalty = 0                # w is 0: even a huge alpha does not act
        for c in range(learner.n_outputs):
            at = c * width
            p[0] = dot(w + at, x, width)
            if tested != NULL:
                tested[(i - span.start) * learner.n_outputs + c] = <floating> p[0]
            p[1] = dot(w_before + at, x, width)
            two_slopes(loss, learner.y, row, settings.linear.first_class + <int32_t> c, p, g, w)
            step(
                width,
                x,
                1 - 1 / <double> head.n_seen,
                by.rate,
                by.penalty,
                by.weight * g[0],
                by.weight * g[1],
                w + at,
                w_before + at,
                v + at,
            )


cdef Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return w_t."""
    cdef Weights of
    of.p = <const char *> vectors_of(learner, state) + c * learner.width * learner.itemsize
    of.a = 1
    of.q = NULL
    of.b = 0
    return of


cdef class RootSGD(LinearKernel):
    """ROOT-SGD over prepared dense rows; ``loss`` is one of the smooth losses in ``losses.pxd``, and
    ``step_size`` 0 selects the automatic step.
    """

    cdef Settings own

    def __init__(
        self,
        X,
        y,
        n_classes: int | None,
        loss: str,
        double epsilon,
        double alpha,
        double step_size,
        int64_t burn_in,
    ):
        cdef Py_ssize_t n_numbers
        self.bind_linear(X, y, n_classes, &self.own.linear, train_dense, NULL, weights)
        if self.learner.sparse.begins != NULL:
            raise ValueError("ROOT-SGD moves every weight with every row: rows must be dense.")
        self.own.loss = loss_named(loss, epsilon)
        self.own.alpha = alpha
        self.own.step_size = step_size
        self.own.burn_in = burn_in
        n_numbers = self.n_outputs * self.learner.width
        self.set_sizes(sizeof(Head), 3 * n_numbers * self.itemsize, n_numbers * self.itemsize)
