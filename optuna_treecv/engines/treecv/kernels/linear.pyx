"""Reading and testing the models of linear kernels, single models as well as models in lanes.

The layout of their states is described in ``linear.pxd``. Single models are trained in ``pegasos.pyx``, ``sgd.pyx``
and ``svrg.pyx``, and models in lanes in the files with the suffix ``_lanes``.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport entries_of
from optuna_treecv._kernels.undo cimport remember_part
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport dot
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch
from optuna_treecv._kernels.vec8 cimport prefetch_bytes
from optuna_treecv._kernels.vec8 cimport prefetch_row
from optuna_treecv._kernels.vec8 cimport sum8
from optuna_treecv.engines.treecv.kernels.lanes cimport COLUMNS_AHEAD
from optuna_treecv.engines.treecv.kernels.lanes cimport LANE_BYTES
from optuna_treecv.engines.treecv.kernels.lanes cimport LaneRow
from optuna_treecv.engines.treecv.kernels.lanes cimport NONZEROS_AHEAD
from optuna_treecv.engines.treecv.kernels.lanes cimport OUTPUTS_AHEAD
from optuna_treecv.engines.treecv.kernels.lanes cimport dot_lanes
from optuna_treecv.engines.treecv.kernels.lanes cimport has_many_zeros
from optuna_treecv.engines.treecv.kernels.lanes cimport lane_dots
from optuna_treecv.engines.treecv.kernels.lanes cimport lane_two_dots
from optuna_treecv.engines.treecv.kernels.lanes cimport read_row
from optuna_treecv.engines.treecv.kernels.lanes cimport write_outputs
from optuna_treecv.engines.treecv.kernels.losses cimport slopes
from optuna_treecv.engines.treecv.kernels.row_weight cimport masses_bytes
from optuna_treecv.engines.treecv.kernels.tree cimport ByteRange


#: The number of lanes is a multiple of the lanes that fill this many bytes.
VECTOR_BYTES: int = LANE_BYTES

#: The largest number of lanes of a kernel.
MOST: int = MAX_LANES


# --- Single models ---


cdef inline floating weight(const Weights *w, Py_ssize_t j, const floating *type_tag) noexcept nogil:
    """Return w_j = a p_j + b q_j, computed in float64 and then rounded."""
    cdef double weight_j = w.a * <double> (<const floating *> w.p)[j]
    return <floating> (weight_j + w.b * w.q[j] if w.q != NULL else weight_j)


cdef inlined read_one(const Learner *learner, const unsigned char *state, floating *weights) noexcept nogil:
    """Write the weights w = a p + b q of all outputs of a single model, (n_outputs, width)."""
    cdef Weights w
    cdef const floating *p
    cdef Py_ssize_t c, j
    for c in range(learner.n_outputs):
        w = (<const LinearSettings *> learner.settings).weights(learner, state, c)
        p = <const floating *> w.p
        if w.q != NULL:
            for j in range(learner.width):
                weights[j] = <floating> (w.a * <double> p[j] + w.b * w.q[j])
        else:
            for j in range(learner.width):
                weights[j] = <floating> (w.a * <double> p[j])
        weights += learner.width


cdef inlined test_dense(
    const Learner *learner,
    const floating *weights,    # IN, (n_outputs, width)
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, n_outputs)
) noexcept nogil:
    """Compute the outputs X w of a single model for dense rows."""
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t n_outputs = learner.n_outputs
    cdef const floating *x = (<const floating *> learner.dense.values) + start * width
    cdef Py_ssize_t i, c
    for i in range(stop - start):
        for c in range(n_outputs):
            out[i * n_outputs + c] = dot(weights + c * width, x + i * width, width)


cdef inlined test_sparse(
    const Learner *learner,
    const unsigned char *state,
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, n_outputs)
) noexcept nogil:
    """Compute the outputs X w of a single model for sparse rows, without computing weights that no row needs.

    The outputs of a weight vector are NaN if its a or b is, which marks a weight that is not finite.
    """
    cdef const Sparse *rows = &learner.sparse
    cdef const floating *x = <const floating *> rows.values
    cdef Weights w
    cdef floating s[8]
    cdef Py_ssize_t i, c, j
    for c in range(learner.n_outputs):
        w = (<const LinearSettings *> learner.settings).weights(learner, state, c)
        for i in range(stop - start):
            s[1] = s[2] = s[3] = s[4] = s[5] = s[6] = s[7] = 0
            s[0] = <floating> (0 * w.a + (0 * w.b if w.q != NULL else 0))
            for j in range(rows.indptr[start + i], rows.indptr[start + i + 1]):
                s[rows.columns[j] & 7] += weight(&w, rows.columns[j], x) * x[j]
            out[i * learner.n_outputs + c] = <floating> sum8(s)


# --- Models in lanes ---


cdef dispatched slopes_of_row(
    const Learner *learner, const Loss *loss, Py_ssize_t row, const double *p, double *out
) noexcept nogil:
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    if learner.itemsize == 8:
        slopes(loss, learner.y, row, settings.n_lanes, False, settings.classes, p, out, <double *> NULL)
    else:
        slopes(loss, learner.y, row, settings.n_lanes, False, settings.classes, p, out, <float *> NULL)


cdef void lane_slopes(
    const Learner *learner, const Loss *loss, Py_ssize_t row, const double *p, double *out
) noexcept nogil:
    """Write the slope of the loss of a row for each lane's prediction; all kernels call this one compiled copy."""
    slopes_of_row(learner, loss, row, p, out)


cdef inlined read_lanes(const Learner *learner, const unsigned char *state, floating *weights) noexcept nogil:
    """Write the weights w = a p + b q of all lanes, (width, n_lanes), computed in float64 and then rounded."""
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.n_lanes
    cdef LaneWeights w
    cdef const floating *p
    cdef const double *q
    cdef Py_ssize_t j, lane
    settings.lane_weights(learner, state, &w)
    for j in range(learner.width):
        p = (<const floating *> w.p) + j * n_lanes
        q = w.q + j * n_lanes
        if w.q != NULL:
            for lane in range(n_lanes):
                weights[lane] = <floating> (w.a[lane] * <double> p[lane] + w.b[lane] * q[lane])
        else:
            for lane in range(n_lanes):
                weights[lane] = <floating> (w.a[lane] * <double> p[lane])
        weights += n_lanes


cdef inlined add_up(const Learner *learner, const floating *weights, floating *totals) noexcept nogil:
    """Write the sum of the weights of each lane, which is finite only if all of them are."""
    cdef Py_ssize_t n_lanes = (<const LinearSettings *> learner.settings).n_lanes
    cdef Py_ssize_t j, lane
    for lane in range(n_lanes):
        totals[lane] = 0
    for j in range(learner.width):
        for lane in range(n_lanes):
            totals[lane] += weights[j * n_lanes + lane]


cdef inline bint all_finite(const Learner *learner, const floating *weights) noexcept nogil:
    """Return whether the weights of all lanes are finite; False also if the sum of finite weights overflows."""
    cdef floating totals[MAX_LANES]
    cdef floating check = 0
    cdef Py_ssize_t lane
    add_up(learner, weights, totals)
    for lane in range((<const LinearSettings *> learner.settings).n_lanes):
        check += totals[lane] * 0
    return check == 0


cdef inlined test_dense_in_lanes(
    const Learner *learner, const floating *weights, Py_ssize_t start, Py_ssize_t stop, floating *out
) noexcept nogil:
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    cdef const floating *X = <const floating *> learner.dense.values
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t n_lanes = settings.n_lanes
    cdef floating outputs[2 * MAX_LANES]
    cdef LaneRow row
    cdef bint skips_zeros = learner.skips_zeros and stop - start > 1 and all_finite(learner, weights)
    cdef Py_ssize_t i, model, is_second
    for i in range(start, stop):
        if learner.dense.ahead and i + learner.dense.ahead < stop:
            fetch_row(&learner.dense, i + learner.dense.ahead, False, X)
        is_second = 0 if skips_zeros else (i - start) % 2
        if skips_zeros:
            read_row(learner, i, &row, X)
            dot_lanes(learner, &row, &row, weights, outputs, X)
        elif not is_second and i + 1 < stop:              # two rows at a time, to load the weights only once
            lane_two_dots(X + i * width, weights, width, n_lanes, outputs)
        elif not is_second:
            lane_dots(X + i * width, weights, width, n_lanes, outputs)
        write_outputs(settings, settings.out_rows, outputs + is_second * n_lanes, out)
        if learner.n_outputs == 1:
            for model in range(i % 8, settings.n_used, 8):  # a cache line holds the outputs for 8 rows or more
                prefetch(out + model * settings.out_rows + OUTPUTS_AHEAD)
        out += learner.n_outputs


cdef inlined test_sparse_in_lanes(
    const Learner *learner, const unsigned char *state, Py_ssize_t start, Py_ssize_t stop, floating *out
) noexcept nogil:
    """Compute the outputs of all lanes for sparse rows, without computing weights that no row needs.

    The outputs of a lane are NaN if its a or b is, which marks a weight that is not finite.
    """
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    cdef const Sparse *rows = &learner.sparse
    cdef const floating *x = <const floating *> rows.values
    cdef Py_ssize_t n_lanes = settings.n_lanes
    cdef LaneWeights w
    cdef floating sums[8 * MAX_LANES]
    cdef floating outputs[MAX_LANES]
    cdef const floating *p
    cdef const double *q
    cdef floating *s
    cdef Py_ssize_t i, lane, begin
    cdef int64_t j
    settings.lane_weights(learner, state, &w)
    for i in range(start, stop):
        for lane in range(8 * n_lanes):
            sums[lane] = 0
        for lane in range(n_lanes):
            sums[lane] = <floating> (0 * w.a[lane] + (0 * w.b[lane] if w.q != NULL else 0))
        for j in range(rows.indptr[i], rows.indptr[i + 1]):
            if j + NONZEROS_AHEAD < rows.indptr[stop]:
                begin = rows.columns[j + NONZEROS_AHEAD] * n_lanes
                prefetch_row((<const floating *> w.p) + begin, n_lanes)
                if w.q != NULL:
                    prefetch_row(w.q + begin, n_lanes)
            s = sums + (rows.columns[j] & 7) * n_lanes
            p = (<const floating *> w.p) + rows.columns[j] * n_lanes
            q = w.q + rows.columns[j] * n_lanes
            if w.q != NULL:
                for lane in range(n_lanes):
                    s[lane] += <floating> (w.a[lane] * <double> p[lane] + w.b[lane] * q[lane]) * x[j]
            else:
                for lane in range(n_lanes):
                    s[lane] += <floating> (w.a[lane] * <double> p[lane]) * x[j]
        for lane in range(n_lanes):
            s = sums + lane
            outputs[lane] = ((s[0] + s[4 * n_lanes]) + (s[2 * n_lanes] + s[6 * n_lanes])) + (
                (s[n_lanes] + s[5 * n_lanes]) + (s[3 * n_lanes] + s[7 * n_lanes])
            )
        write_outputs(settings, settings.out_rows, outputs, out)
        out += learner.n_outputs


cdef void remember_columns(
    const Learner *learner,
    unsigned char *state,
    const int32_t *columns,
    Py_ssize_t n_columns,
    ByteRange part,
    Log *log,
) noexcept nogil:
    """Save the given columns of all sums and vectors within the byte range ``part`` of the state."""
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    cdef Py_ssize_t begin = learner.head_bytes
    cdef Py_ssize_t itemsize = <Py_ssize_t> sizeof(double) if settings.n_sums else learner.itemsize
    cdef Py_ssize_t column_bytes, i
    while begin < part.stop:
        column_bytes = settings.n_lanes * itemsize
        if begin >= part.start:
            for i in range(n_columns):
                if i + COLUMNS_AHEAD < n_columns:
                    prefetch_bytes(state + begin + columns[i + COLUMNS_AHEAD] * column_bytes, column_bytes)
                remember_part(log, state + begin + columns[i] * column_bytes, column_bytes)
        begin += learner.width * column_bytes
        itemsize = learner.itemsize


cdef void gather(
    const LinearSettings *theirs,
    const LinearSettings *ours,
    const int64_t *lanes,       # IN, (ours.n_lanes,), the indices of their lanes that are copied
    const void *source,         # IN, (n_rows, theirs.n_lanes)
    void *out,                  # OUT, (n_rows, ours.n_lanes)
    Py_ssize_t n_rows,
    Py_ssize_t itemsize,        # bytes per element
) noexcept nogil:
    """Copy the columns ``lanes`` of an array."""
    cdef const unsigned char *source_row = <const unsigned char *> source
    cdef unsigned char *out_row = <unsigned char *> out
    cdef Py_ssize_t lane
    for _ in range(n_rows):
        for lane in range(ours.n_lanes):
            memcpy(out_row + lane * itemsize, source_row + lanes[lane] * itemsize, itemsize)
        source_row += theirs.n_lanes * itemsize
        out_row += ours.n_lanes * itemsize


# --- Both cases ---


cdef inlined read(const Learner *learner, const unsigned char *state, floating *weights) noexcept nogil:
    if (<const LinearSettings *> learner.settings).in_lanes:
        read_lanes(learner, state, weights)
    else:
        read_one(learner, state, weights)


cdef inlined test(
    const Learner *learner,
    const unsigned char *state,
    floating *model,            # OUT, a workspace of the size of a model
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (n_models, out_rows, n_outputs) from row start on
) noexcept nogil:
    cdef bint in_lanes = (<const LinearSettings *> learner.settings).in_lanes
    if learner.sparse.indptr == NULL:
        read(learner, state, model)
        if in_lanes:
            test_dense_in_lanes(learner, model, start, stop, out)
        else:
            test_dense(learner, model, start, stop, out)
    elif in_lanes:
        test_sparse_in_lanes(learner, state, start, stop, out)
    else:
        test_sparse(learner, state, start, stop, out)


cdef dispatched read_linear(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    if learner.itemsize == 8:
        read(learner, state, <double *> model)
    else:
        read(learner, state, <float *> model)


cdef dispatched test_linear(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    if learner.itemsize == 8:
        test(learner, state, <double *> model, start, stop, <double *> out)
    else:
        test(learner, state, <float *> model, start, stop, <float *> out)


cdef class LinearKernel(Kernel):
    """Base class of kernels that train one linear model, or several in lanes, on prepared rows.

    ``X`` is a dense array (n_rows, width) or ``SparseRows``, float64 or float32. ``y`` holds class codes (int32) or
    regression targets of the dtype of X. The array of outputs has shape (n_models, out_rows, n_outputs).
    """

    cdef int bind_linear(
        self, object X, object y, object n_classes, Py_ssize_t n_models, LinearSettings *settings, bint in_lanes
    ) except -1:
        """Bind the rows, the targets and the settings, and derive the number of lanes."""
        cdef int32_t first_class = self.bind_targets(X, y, n_classes)
        cdef Py_ssize_t vector_lanes = LANE_BYTES // self.itemsize if in_lanes else 1
        cdef Py_ssize_t lane
        self.n_models = n_models
        settings.in_lanes = in_lanes
        settings.n_outputs = self.n_outputs
        settings.n_used = n_models * self.n_outputs
        settings.n_lanes = (settings.n_used + vector_lanes - 1) // vector_lanes * vector_lanes
        if in_lanes and not 0 < settings.n_used <= settings.n_lanes <= MAX_LANES:
            raise ValueError(f"there must be 1 to {MAX_LANES} lanes, got {settings.n_used}.")
        if not in_lanes and n_models != 1:
            raise ValueError(f"there must be exactly one model unless models are in lanes, got {n_models}.")
        settings.out_rows = self.out_rows
        for lane in range(MAX_LANES):
            settings.classes[lane] = first_class + lane % self.n_outputs
        self.learner.settings = settings
        self.learner.tests_rows = True
        self.learner.read = read_linear
        self.learner.test = test_linear
        if in_lanes:
            self.learner.skips_zeros = has_many_zeros(&self.learner, self.n_rows, NULL)
            self.learner.remember_columns = remember_columns
        return 0

    cdef int lay_out(
        self, Py_ssize_t common_bytes, Py_ssize_t n_scalars, Py_ssize_t n_sums, Py_ssize_t n_vectors
    ) except -1:
        """Set the layout of a state: the bytes that all lanes share, and the scalars, sums and vectors per lane."""
        cdef LinearSettings *settings = <LinearSettings *> self.learner.settings
        cdef Py_ssize_t n_lanes = settings.n_lanes
        settings.common_bytes = common_bytes
        settings.n_scalars = n_scalars
        settings.n_sums = n_sums
        settings.n_vectors = n_vectors
        if settings.in_lanes:
            self.learner.n_saved = n_sums * entries_of(n_lanes * 8) + n_vectors * entries_of(n_lanes * self.itemsize)
        else:
            self.learner.n_saved = n_lanes * (n_sums + n_vectors)
        return self.set_sizes(
            common_bytes + n_scalars * n_lanes * 8,
            n_lanes * self.learner.width * (8 * n_sums + self.itemsize * n_vectors),
            n_lanes * self.learner.width * self.itemsize,
        )

    def leave_room(self, Py_ssize_t n_rows):
        """Leave ``n_rows`` rows free after the outputs of each model in the array of outputs."""
        if n_rows < 0:
            raise ValueError(f"n_rows must be 0 or more, got {n_rows}.")
        self.out_rows = self.n_rows + n_rows
        (<LinearSettings *> self.learner.settings).out_rows = self.out_rows

    def start(self, unsigned char [::1] state):
        """Write the initial state: zeros, except for the scale of each lane, its first scalar, which is 1."""
        cdef const LinearSettings *settings = <const LinearSettings *> self.learner.settings
        cdef double *scale
        cdef Py_ssize_t lane
        Kernel.start(self, state)
        scale = scalars_of(&self.learner, &state[0])
        for lane in range(settings.n_lanes):
            scale[lane if settings.in_lanes else lane * settings.n_scalars] = 1

    def take(
        self,
        LinearKernel source not None,
        const unsigned char [::1] state,             # IN, a state of ``source``
        const int64_t [::1] models,                  # IN, (self.n_models,), indices of models of ``source``
        unsigned char [::1] out,                     # OUT, a state of this kernel
    ):
        """Copy a subset of the models from a state of another kernel, which must have the same rows and learner."""
        cdef const LinearSettings *theirs = <const LinearSettings *> source.learner.settings
        cdef const LinearSettings *ours = <const LinearSettings *> self.learner.settings
        cdef int64_t lanes[MAX_LANES]
        cdef Py_ssize_t lane, i
        cdef const void *source_part
        cdef void *out_part
        source.check_state(state)
        self.check_state(out)
        if (
            type(self) is not type(source)
            or not theirs.in_lanes
            or not ours.in_lanes
            or self.itemsize != source.itemsize
            or self.learner.width != source.learner.width
            or self.n_outputs != source.n_outputs
            or self.learner.n_balanced != source.learner.n_balanced
            or theirs.n_sums != ours.n_sums
        ):
            raise ValueError("the states of both kernels must have the same layout except for the number of lanes.")
        if models.shape[0] != self.n_models:
            raise ValueError(f"there must be {self.n_models} models, got {models.shape[0]}.")
        for i in range(models.shape[0]):
            if not 0 <= models[i] < source.n_models:
                raise IndexError(f"there is no model {models[i]} among {source.n_models}.")
        for lane in range(ours.n_lanes):
            lanes[lane] = models[model_of(ours, lane)] * self.n_outputs + lane % self.n_outputs
        memcpy(&out[0], &state[0], ours.common_bytes)
        if self.learner.n_balanced:
            memcpy(
                &out[self.learner.masses_begin],
                &state[source.learner.masses_begin],
                masses_bytes(self.learner.n_balanced),
            )
        source_part, out_part = scalars_of(&source.learner, &state[0]), scalars_of(&self.learner, &out[0])
        gather(theirs, ours, lanes, source_part, out_part, ours.n_scalars, 8)
        source_part, out_part = sums_of(&source.learner, &state[0]), sums_of(&self.learner, &out[0])
        gather(theirs, ours, lanes, source_part, out_part, ours.n_sums * self.learner.width, 8)
        source_part, out_part = vectors_of(&source.learner, &state[0]), vectors_of(&self.learner, &out[0])
        gather(theirs, ours, lanes, source_part, out_part, ours.n_vectors * self.learner.width, self.itemsize)
