"""The base class of linear kernels: a model has one weight vector w per output, and predicts w.x for a row x.

A state represents each weight vector as w = a p + b q with scalars a and b. The vector p has the type of the rows. The
vector q holds float64 sums, for averages of iterates and for mean gradients; some kernels have none. If a weight is no
longer finite, a or b becomes NaN, because later rows need not have a nonzero in the column of this weight.

A lane is one output of one model. A kernel trains either a single model, or many models on the same rows in lanes.
Both ways give the same bits. The number of lanes is rounded up to fill the vector registers of the CPU; the surplus
lanes repeat the settings of the last model.

A state has these sections:
* values that all lanes share, which depend on the kernel, and some float64 scalars per lane, padded to whole cache
  lines; this is the head of the state;
* float64 vectors of sums, in some kernels;
* one or more vectors per lane, in the type of the rows.
The state of a single model stores the scalars of an output next to each other, and vectors as (n_outputs, width). In
lanes, scalars have shape (n_scalars, n_lanes) and vectors (width, n_lanes), so that the weights of all lanes for one
column are next to each other.
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
    MAX_LANES = 128             # the largest number of lanes of a kernel


# The weights of one output, w = a p + b q.
cdef struct Weights:
    const void *p               # (width,), in the type of the rows
    double a
    const double *q             # (width,), or NULL: w = a p
    double b


# The weights of all lanes, w = a p + b q, with p and q of shape (width, n_lanes); q may be NULL.
cdef struct LaneWeights:
    const void *p
    double a[MAX_LANES]
    const double *q
    double b[MAX_LANES]


# Return the weights of output c in the state of a single model.
ctypedef Weights (*find_weights)(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil

# Write the weights of all lanes in a state.
ctypedef void (*find_lane_weights)(const Learner *learner, const unsigned char *state, LaneWeights *w) noexcept nogil


# The first member of the settings of each linear kernel.
cdef struct LinearSettings:
    bint in_lanes
    find_weights weights        # set for a single model
    find_lane_weights lane_weights  # set for models in lanes
    Py_ssize_t n_lanes          # including surplus lanes
    Py_ssize_t n_used           # the number of lanes without surplus lanes, n_models * n_outputs
    Py_ssize_t n_outputs        # per model
    Py_ssize_t out_rows         # rows per model in the array of outputs
    int32_t classes[MAX_LANES]   # the code of the class that a lane separates from all others
    Py_ssize_t common_bytes     # the bytes of a state that all lanes share
    Py_ssize_t n_scalars        # float64 scalars per lane
    Py_ssize_t n_sums           # float64 vectors of sums per lane
    Py_ssize_t n_vectors        # vectors per lane in the type of the rows


cdef inline Py_ssize_t model_of(const LinearSettings *settings, Py_ssize_t lane) noexcept nogil:
    """Return the index of the model that a lane belongs to; for surplus lanes, this is the last model."""
    return min(lane, settings.n_used - 1) // settings.n_outputs


cdef inline double *scalars_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the scalars of the lanes."""
    return <double *> (state + (<const LinearSettings *> learner.settings).common_bytes)


cdef inline double *sums_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the vectors of sums, if the kernel has any."""
    return <double *> (state + learner.head_bytes)


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the vectors in the type of the rows."""
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    return <void *> (sums_of(learner, state) + settings.n_sums * settings.n_lanes * learner.width)


cdef inline Weights weights_of(
    const Learner *learner, const unsigned char *state, Py_ssize_t c, double a, bint has_sums, double b
) noexcept nogil:
    """Return the weights of output c of a single model, with p its first vector and q its first sums, or NULL."""
    cdef Weights w
    w.p = <const char *> vectors_of(learner, state) + c * learner.width * learner.itemsize
    w.q = sums_of(learner, state) + c * learner.width if has_sums else NULL
    w.a, w.b = a, b
    return w


cdef inline floating output_of(
    const Weights *w, const Rows *rows, Py_ssize_t row, floating p_x, const floating *type_tag
) noexcept nogil:
    """Return the output w.x = a p.x + b q.x for a row, given p.x, computed in float64 and then rounded."""
    cdef double output = w.a * <double> p_x
    if w.q != NULL:
        output += w.b * dot_row(rows, row, w.q, type_tag)
    return <floating> output


cdef inline bint extreme(double scale) noexcept nogil:
    """Return whether z = w / scale differs from w so much in magnitude that digits may be lost; False for NaN."""
    return fabs(scale) < 1.0 / 64 or fabs(scale) > 64


cdef void lane_slopes(
    const Learner *learner, const Loss *loss, Py_ssize_t row, const double *p, double *out
) noexcept nogil


cdef class LinearKernel(Kernel):
    cdef int bind_linear(
        self, object X, object y, object n_classes, Py_ssize_t n_models, LinearSettings *settings, bint in_lanes
    ) except -1
    cdef int lay_out(
        self, Py_ssize_t common_bytes, Py_ssize_t n_scalars, Py_ssize_t n_sums, Py_ssize_t n_vectors
    ) except -1
