"""The base of linear kernels: a model has one weight vector w per output, and predicts w.x for a row x.

A state holds such a vector as w = a p + b q. Here p is a vector of the same type as the rows, and q
is a float64 vector of sums, for averages and mean gradients. If a weight is no longer finite and
later rows may not show it, a or b is NaN.

A lane is one output of one model. One model is trained alone, or many models on the same rows at once, in lanes: each
gets the same bits as alone. Lanes fill whole vectors of the CPU; surplus lanes repeat the settings of the last model.

A state begins with what all lanes share, which depends on the kernel, and with some float64 numbers per lane, padded
to a cache line. Some kernels then have float64 vectors of sums. At the end are one or more vectors per lane, of the
same type as the rows. One model alone has the numbers of an output together, and vectors (n_outputs, width). Models in
lanes have their numbers and vectors lane-minor, (width, n_lanes), so that the weights of all lanes for one column lie
together.
"""

from cython cimport floating
from libc.math cimport fabs
from libc.stdint cimport int32_t

from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport dot_row
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef enum:
    MOST_LANES = 128


# The weights of one output, w = a p + b q.
cdef struct Weights:
    const void *p               # (width,), the type of the rows
    double a
    const double *q             # (width,), or NULL
    double b


# Those of every lane; p and q are (width, n_lanes).
cdef struct LaneWeights:
    const void *p
    double a[MOST_LANES]
    const double *q
    double b[MOST_LANES]


# Return the weights that a state of one model holds for output c.
ctypedef Weights (*find_weights)(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil
ctypedef void (*find_lane_weights)(const Learner *learner, const unsigned char *state, LaneWeights *of) noexcept nogil


# The first member of the settings of every linear learner.
cdef struct LinearSettings:
    bint in_lanes
    find_weights weights        # of one model
    find_lane_weights lane_weights
    Py_ssize_t n_lanes          # with surplus ones
    Py_ssize_t n_used           # lanes that belong to a model: n_models * n_outputs
    Py_ssize_t n_outputs        # per model
    Py_ssize_t out_rows         # per model in the array of outputs
    int32_t classes[MOST_LANES]  # the class that a lane separates from the rest
    Py_ssize_t common_bytes     # bytes of a state that all lanes share
    Py_ssize_t n_numbers        # per lane
    Py_ssize_t n_sums           # vectors of sums per lane
    Py_ssize_t n_vectors        # per lane


cdef inline Py_ssize_t model_of(const LinearSettings *settings, Py_ssize_t lane) noexcept nogil:
    """Return the model that a lane belongs to; surplus lanes repeat the last one."""
    return min(lane, settings.n_used - 1) // settings.n_outputs


cdef inline double *numbers_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the numbers of the lanes begin."""
    return <double *> (state + (<const LinearSettings *> learner.settings).common_bytes)


cdef inline double *sums_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the sums begin, if there are any."""
    return <double *> (state + learner.head_bytes)


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the vectors begin."""
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    return <void *> (sums_of(learner, state) + settings.n_sums * settings.n_lanes * learner.width)


cdef inline Weights weights_of(
    const Learner *learner, const unsigned char *state, Py_ssize_t c, double a, bint has_sums, double b
) noexcept nogil:
    """Return the weights of output c of one model, from its first vector and, if wanted, its first sums."""
    cdef Weights of
    of.p = <const char *> vectors_of(learner, state) + c * learner.width * learner.itemsize
    of.q = sums_of(learner, state) + c * learner.width if has_sums else NULL
    of.a, of.b = a, b
    return of


cdef inline floating output_of(
    const Weights *of, const Rows *rows, Py_ssize_t row, floating p_x, const floating *of_type
) noexcept nogil:
    """Return w.x = a p.x + b q.x for a row whose product with p is known, rounded once."""
    cdef double output = of.a * <double> p_x
    if of.q != NULL:
        output += of.b * dot_row(rows, row, of.q, of_type)
    return <floating> output


cdef inline bint extreme(double scale) noexcept nogil:
    """Return whether z in w = scale z is so much larger or smaller than w that digits are at risk; False for NaN."""
    return fabs(scale) < 1.0 / 64 or fabs(scale) > 64


cdef void lane_slopes(
    const Learner *learner, const Loss *loss, Py_ssize_t row, const double *p, double *out
) noexcept nogil


cdef class LinearKernel(Kernel):
    cdef int bind_linear(
        self,
        object X,
        object y,
        object n_classes,
        Py_ssize_t n_models,
        LinearSettings *settings,
        bint in_lanes,
    ) except -1
    cdef int lay_out(
        self, Py_ssize_t common_bytes, Py_ssize_t n_numbers, Py_ssize_t n_sums, Py_ssize_t n_vectors
    ) except -1
