"""Lanes: the same rows for many models at once, each of them bit for bit what it would be alone.

A lane is an output of a model. Weights lie lane-minor, (width, n_lanes), so that what a row needs of
all lanes lies together. Lanes fill whole vectors; those too many repeat the last one.
"""

from cython cimport floating
from libc.stdint cimport int32_t

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.tree cimport CompiledLearner
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.tree cimport train_rows
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_part


cdef extern from "lanes.h" nogil:
    const Py_ssize_t LANE_BYTES
    void lane_dots_double(const double *x, const double *w, Py_ssize_t width, Py_ssize_t n_lanes, double *out) noexcept
    void lane_dots_float(const float *x, const float *w, Py_ssize_t width, Py_ssize_t n_lanes, float *out) noexcept
    void lane_add_double(const double *x, const double *c, double *w, Py_ssize_t width, Py_ssize_t n_lanes) noexcept
    void lane_add_float(const float *x, const float *c, float *w, Py_ssize_t width, Py_ssize_t n_lanes) noexcept
    void lane_add_wide_double(
        const double *x,
        const double *c,
        double *q,
        Py_ssize_t width,
        Py_ssize_t n_lanes,
    ) noexcept
    void lane_add_wide_float(const float *x, const double *c, double *q, Py_ssize_t width, Py_ssize_t n_lanes) noexcept
    void lane_dots_sparse_double(
        const double *x,
        const int32_t *columns,
        Py_ssize_t n,
        const double *w,
        Py_ssize_t n_lanes,
        double *room,
        double *out,
    ) noexcept
    void lane_dots_sparse_float(
        const float *x,
        const int32_t *columns,
        Py_ssize_t n,
        const float *w,
        Py_ssize_t n_lanes,
        float *room,
        float *out,
    ) noexcept
    void lane_add_sparse_double(
        const double *x,
        const int32_t *columns,
        Py_ssize_t n,
        const double *c,
        double *w,
        Py_ssize_t n_lanes,
        double *check,
    ) noexcept
    void lane_add_sparse_float(
        const float *x,
        const int32_t *columns,
        Py_ssize_t n,
        const float *c,
        float *w,
        Py_ssize_t n_lanes,
        double *check,
    ) noexcept
    void lane_add_wide_sparse_double(
        const double *x,
        const int32_t *columns,
        Py_ssize_t n,
        const double *c,
        double *q,
        Py_ssize_t n_lanes,
        double *check,
    ) noexcept
    void lane_add_wide_sparse_float(
        const float *x,
        const int32_t *columns,
        Py_ssize_t n,
        const double *c,
        double *q,
        Py_ssize_t n_lanes,
        double *check,
    ) noexcept


cdef inline void dot_lanes(
    const Rows *rows,
    Py_ssize_t row,
    const floating *w,          # IN, (width, n_lanes)
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    floating *room,             # OUT, (8, n_lanes)
    floating *out,              # OUT, (n_lanes,)
) noexcept nogil:
    """x . w of every lane in the one summation order."""
    cdef const floating *x = <const floating *> rows.values
    if Rows is Dense:
        if floating is double:
            lane_dots_double(x + row * width, w, width, n_lanes, out)
        else:
            lane_dots_float(x + row * width, w, width, n_lanes, out)
    else:
        x += rows.begins[row]
        if floating is double:
            lane_dots_sparse_double(
                x, rows.columns + rows.begins[row], rows.begins[row + 1] - rows.begins[row], w, n_lanes, room, out
            )
        else:
            lane_dots_sparse_float(
                x, rows.columns + rows.begins[row], rows.begins[row + 1] - rows.begins[row], w, n_lanes, room, out
            )


cdef inline void add_lanes(
    const Rows *rows,
    Py_ssize_t row,
    const floating *c,          # IN, (n_lanes,), 0 where there is nothing to add
    floating *w,                # INOUT, (width, n_lanes)
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    double *check,              # INOUT, (n_lanes,): NaN if sparse rows have hidden that something is not finite
    Log *log,                   # INOUT, or NULL: nothing is undone
) noexcept nogil:
    """w += c x."""
    cdef const floating *x = <const floating *> rows.values
    cdef Py_ssize_t i
    if Rows is Dense:
        if floating is double:
            lane_add_double(x + row * width, c, w, width, n_lanes)
        else:
            lane_add_float(x + row * width, c, w, width, n_lanes)
    else:
        if log != NULL:
            for i in range(rows.begins[row], rows.begins[row + 1]):
                remember_part(log, <unsigned char *> (w + rows.columns[i] * n_lanes), n_lanes * sizeof(floating))
        x += rows.begins[row]
        if floating is double:
            lane_add_sparse_double(
                x, rows.columns + rows.begins[row], rows.begins[row + 1] - rows.begins[row], c, w, n_lanes, check
            )
        else:
            lane_add_sparse_float(
                x, rows.columns + rows.begins[row], rows.begins[row + 1] - rows.begins[row], c, w, n_lanes, check
            )


cdef inline void add_lanes_wide(
    const Rows *rows,
    Py_ssize_t row,
    const double *c,            # IN, (n_lanes,)
    double *q,                  # INOUT, (width, n_lanes)
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    double *check,              # INOUT, (n_lanes,)
    const floating *of_type,
    Log *log,                   # INOUT, or NULL
) noexcept nogil:
    """The same for sums, which are float64 whatever the type of the rows."""
    cdef const floating *x = <const floating *> rows.values
    cdef Py_ssize_t i
    if Rows is Dense:
        if floating is double:
            lane_add_wide_double(x + row * width, c, q, width, n_lanes)
        else:
            lane_add_wide_float(x + row * width, c, q, width, n_lanes)
    else:
        if log != NULL:
            for i in range(rows.begins[row], rows.begins[row + 1]):
                remember_part(log, <unsigned char *> (q + rows.columns[i] * n_lanes), n_lanes * sizeof(double))
        x += rows.begins[row]
        if floating is double:
            lane_add_wide_sparse_double(
                x, rows.columns + rows.begins[row], rows.begins[row + 1] - rows.begins[row], c, q, n_lanes, check
            )
        else:
            lane_add_wide_sparse_float(
                x, rows.columns + rows.begins[row], rows.begins[row + 1] - rows.begins[row], c, q, n_lanes, check
            )


cdef enum:
    MOST_LANES = 128


# Of every lane the weights w = a p + b q; p and q are (width, n_lanes).
cdef struct LaneWeights:
    const void *p               # the type of the rows; or NULL
    double a[MOST_LANES]
    const double *q             # or NULL
    double b[MOST_LANES]


ctypedef void (*find_lane_weights)(
    const Learner *learner, const unsigned char *state, LaneWeights *of
) noexcept nogil


# What the settings of every learner with lanes begin with.
cdef struct LaneSettings:
    find_lane_weights weights
    Py_ssize_t n_lanes          # whole vectors of them
    Py_ssize_t n_used           # those that are somebody's: n_models * n_outputs
    Py_ssize_t n_outputs        # of each model
    Py_ssize_t n_rows
    int32_t classes[MOST_LANES]  # the class that a lane tells from the rest


cdef class LanesKernel(CompiledLearner):
    cdef int bind_lanes(
        self,
        object X,
        object y,
        object n_classes,
        Py_ssize_t n_models,
        LaneSettings *settings,
        train_rows train,
        find_lane_weights weights,
    ) except -1
