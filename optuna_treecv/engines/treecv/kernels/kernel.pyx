"""The Python interface of the kernels.

Its methods check row ranges, states and buffers, and pass them to the training loops of a kernel or to the TreeCV walk
in ``tree.pyx``.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from optuna_treecv._kernels.rows cimport AHEAD_IN_ORDER
from optuna_treecv._kernels.rows cimport CACHE_BYTES
from optuna_treecv._kernels.rows cimport prefetch_distance
from optuna_treecv._kernels.span cimport Span
from optuna_treecv.engines.treecv.kernels.row_weight cimport masses_bytes
from optuna_treecv.engines.treecv.kernels.tree cimport ByteRange
from optuna_treecv.engines.treecv.kernels.tree cimport Tree
from optuna_treecv.engines.treecv.kernels.tree cimport chunk_start
from optuna_treecv.engines.treecv.kernels.tree cimport count_nodes
from optuna_treecv.engines.treecv.kernels.tree cimport log_bytes_of
from optuna_treecv.engines.treecv.kernels.tree cimport set_log
from optuna_treecv.engines.treecv.kernels.tree cimport train_pair
from optuna_treecv.engines.treecv.kernels.tree cimport walk
from optuna_treecv.engines.treecv.kernels.tree cimport whole_lines


cdef int set_tree(Kernel learner, Tree *tree, plan, node) except -1:
    """Check ``plan`` and ``node``, and fill in the fields of ``tree`` that depend on them."""
    cdef Py_ssize_t first = node.first, last = node.last, n_folds = plan.n_folds
    cdef const int64_t [::1] bounds = plan.bounds
    cdef Py_ssize_t i
    tree.n_rows = learner.n_rows
    tree.n_folds = n_folds
    tree.random = plan.random
    tree.seed = plan.seed
    tree.n_epochs = plan.n_epochs
    if tree.n_epochs < 1:
        raise ValueError(f"n_epochs must be 1 or more, got {tree.n_epochs}.")
    if not 0 <= first < last <= n_folds <= learner.n_rows:
        raise ValueError(
            f"there is no node of the folds {first}:{last} in a tree of {n_folds} folds of {learner.n_rows} rows."
        )
    if bounds is not None and (bounds.shape[0] != n_folds + 1 or bounds[n_folds] != learner.n_rows):
        raise ValueError("bounds must hold n_folds + 1 row indices, of which the last is the number of rows.")
    if bounds is not None:
        for i in range(n_folds):
            if bounds[i] >= bounds[i + 1] or bounds[0] < 0:
                raise ValueError("bounds must be strictly ascending and at least 0.")
    tree.bounds = NULL if bounds is None else &bounds[0]
    return 0


cdef class Kernel:
    """Base class of learners that are bound to prepared rows; subclasses set the functions and sizes in ``learner``.

    Everything that training changes is in a state, a buffer of ``state_bytes`` bytes that the caller owns. It must be
    writable if a method changes it; methods keep no reference to it. A state begins with the number of rows that it
    has been trained on (int64).
    """

    cdef int bind(self, object X, object y, Py_ssize_t n_outputs) except -1:
        """Point the learner to the memory of X and y, and keep this memory alive.

        X is a dense array (n_rows, width) or ``SparseRows``; y is an array (n_rows,) or None.
        """
        cdef const unsigned char [::1] values, y_bytes
        cdef const int32_t [::1] columns
        cdef const int64_t [::1] indptr
        sparse = hasattr(X, "begins")
        self.n_rows = X.shape[0]
        if self.n_rows == 0 or X.shape[1] == 0 or X.shape[1] % 8:
            raise ValueError("X must have at least one row and a multiple of 8 columns.")
        if X.dtype != "float64" and X.dtype != "float32":
            raise TypeError(f"X must be float64 or float32, got {X.dtype}.")
        values = (X.values if sparse else X).reshape(-1).view("u1")
        self.keep_alive = [values]
        if sparse:
            columns, indptr = X.columns, X.begins
            self.learner.sparse.values = &values[0] if values.shape[0] else NULL
            self.learner.sparse.columns = &columns[0] if columns.shape[0] else NULL
            self.learner.sparse.indptr = &indptr[0]
            self.learner.sparse.far = prefetch_distance(values.shape[0] + 4 * columns.shape[0], self.n_rows)
            self.keep_alive += [columns, indptr]
        else:
            self.learner.dense.values = &values[0]
            self.learner.dense.width = X.shape[1]
            self.learner.dense.ahead = AHEAD_IN_ORDER if values.shape[0] > CACHE_BYTES else 0
            self.learner.dense.far = prefetch_distance(values.shape[0], self.n_rows)
        if y is not None:
            y_bytes = y.view("u1")
            if y.shape[0] != self.n_rows:
                raise ValueError("y must have as many entries as X has rows.")
            self.learner.y = &y_bytes[0]
            self.keep_alive.append(y_bytes)
        self.n_models = 1
        self.out_rows = self.n_rows
        self.learner.width = X.shape[1]
        self.learner.n_outputs = n_outputs
        self.learner.itemsize = X.dtype.itemsize
        self.n_outputs = n_outputs
        self.itemsize = X.dtype.itemsize
        return 0

    cdef int bind_targets(self, object X, object y, object n_classes) except -1:
        """Bind the rows X and the targets y, and derive the number of outputs.

        If ``n_classes`` is None, y holds the targets of a regression, for which there is one output. Otherwise, y
        holds the codes of classes. Two classes have one output, which separates class 1 from class 0. More classes
        have one output per class, which separates it from all others (one-vs-rest). Return the class code of the first
        output.
        """
        if n_classes is not None and y.dtype != "int32":
            raise TypeError(f"y must hold int32 class codes, got {y.dtype}.")
        if n_classes is None and y.dtype != X.dtype:
            raise TypeError(f"y must have the dtype of X, {X.dtype}, got {y.dtype}.")
        self.bind(X, y, 1 if n_classes is None or n_classes == 2 else n_classes)
        self.n_classes = 0 if n_classes is None else n_classes
        return 1 if n_classes == 2 else 0

    cdef int set_sizes(self, Py_ssize_t head_bytes, Py_ssize_t rest_bytes, Py_ssize_t model_bytes) except -1:
        """Set the number of bytes of a state and of a model.

        A state consists of a head and the rest, each of which is rounded up to whole cache lines.
        """
        self.learner.head_bytes = whole_lines(head_bytes)
        self.state_bytes = self.learner.state_bytes = self.learner.head_bytes + whole_lines(rest_bytes)
        self.model_bytes = model_bytes
        if self.learner.sparse.indptr != NULL:
            self.log_bytes = log_bytes_of(&self.learner)
        return 0

    def weigh(self, weights, bint balanced=False):
        """Set the weights of the rows, which multiply their losses.

        Call this method at most once, and before the first state is created, because ``balanced`` adds the masses of
        the classes to the head of a state.

        ``weights`` is an array (n_rows,) of the dtype of X, or None if all weights are 1. With ``balanced``, each
        weight is also divided by the relative frequency of the row's class so far (``row_weight.pxd``).
        """
        cdef const unsigned char [::1] bytes_of_weights
        cdef const int32_t *y = <const int32_t *> self.learner.y
        cdef Py_ssize_t i
        if self.state_bytes == 0 or self.is_weighed:
            raise ValueError("weigh must be called once only, after the learner was initialised.")
        if weights is not None:
            if weights.dtype != f"f{self.itemsize}" or weights.shape != (self.n_rows,):
                raise ValueError(
                    f"weights must be float{8 * self.itemsize} of shape ({self.n_rows},), one per row of X, "
                    f"got {weights.dtype} of shape {weights.shape}."
                )
            if not weights.flags.c_contiguous:
                raise ValueError("weights must be C-contiguous.")
            if not ((weights >= 0) & (weights < INFINITY)).all():
                raise ValueError("weights must be finite and at least 0.")
        if balanced:
            if self.n_classes < 2:
                raise ValueError("balanced weights need class codes of two or more classes.")
            for i in range(self.n_rows):
                if not 0 <= y[i] < self.n_classes:
                    raise ValueError(f"y must hold class codes below {self.n_classes}, got {y[i]}.")
        self.is_weighed = True
        if weights is not None:
            bytes_of_weights = weights.view("u1")
            self.learner.weights = &bytes_of_weights[0]
            self.keep_alive.append(bytes_of_weights)
        if balanced:
            self.learner.n_balanced = self.n_classes
            self.learner.masses_begin = self.learner.head_bytes
            self.set_sizes(
                self.learner.head_bytes + masses_bytes(self.n_classes),
                self.state_bytes - self.learner.head_bytes,
                self.model_bytes,
            )

    cdef int check_state(self, const unsigned char [::1] state) except -1:
        if self.state_bytes == 0:
            raise ValueError("the learner was not initialised.")
        if state.shape[0] != self.state_bytes:
            raise ValueError(f"a state must have {self.state_bytes} bytes, got {state.shape[0]}.")
        return 0

    cdef int check_buffers(
        self, const unsigned char [::1] model, const unsigned char [:, ::1] out, Py_ssize_t n_rows
    ) except -1:
        """Check the sizes of two buffers, each of which may be None: for a model, and for the outputs of all models
        for ``n_rows`` rows.
        """
        if model is not None and model.shape[0] != self.model_bytes:
            raise ValueError(f"model must have {self.model_bytes} bytes, got {model.shape[0]}.")
        if out is not None and (
            out.shape[0] != self.n_models * n_rows or out.shape[1] != self.n_outputs * self.itemsize
        ):
            raise ValueError("out must have room for the outputs of all models for all rows.")
        return 0

    def start(self, unsigned char [::1] state):
        """Write the initial state, before training on the first row: zeros, unless a subclass overrides some of them.
        """
        self.check_state(state)
        memset(&state[0], 0, self.state_bytes)

    @property
    def model_type(self) -> str:
        """The dtype of a model, as a string for NumPy."""
        return f"f{self.itemsize}"

    def n_seen(self, const unsigned char [::1] state) -> int:
        """Return the number of rows that a state has been trained on, with which every state begins."""
        self.check_state(state)
        return (<const int64_t *> &state[0])[0]

    cdef Span check_rows(self, Py_ssize_t start, Py_ssize_t stop, const uint32_t [::1] order) except *:
        """Return the rows start..stop-1, or order[start], ..., order[stop-1], as a span; check their range."""
        cdef Py_ssize_t n_rows = self.n_rows if order is None else order.shape[0]
        cdef Py_ssize_t i
        if not 0 <= start <= stop <= n_rows:
            raise IndexError(f"rows {start}:{stop} must be a range of the {n_rows} prepared rows.")
        if order is None or start == stop:
            return Span(start, stop, NULL)
        for i in range(start, stop):
            if order[i] >= self.n_rows:
                raise IndexError(f"order contains row {order[i]}, but there are only {self.n_rows} prepared rows.")
        return Span(start, stop, &order[0])

    @property
    def surveys(self) -> bool:
        """Whether ``survey`` must be called before each training phase."""
        return self.learner.survey != NULL

    def survey(
        self,
        unsigned char [::1] state,                   # INOUT
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t [::1] order or None,          # IN; None: the rows start..stop-1
    ):
        """Update the statistics in a state, such as running means, with all rows of the next training phase.

        These are the rows start..stop-1, or order[start], ..., order[stop-1].
        """
        cdef Span span = self.check_rows(start, stop, order)
        self.check_state(state)
        if self.learner.survey != NULL and stop > start:
            with nogil:
                self.learner.survey(&self.learner, span, &state[0])

    def update(
        self,
        unsigned char [::1] state,                   # INOUT
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t [::1] order=None,             # IN; None: rows in stored order
    ):
        """Train on the rows start..stop-1, or on order[start], ..., order[stop-1]."""
        cdef Span span = self.check_rows(start, stop, order)
        self.check_state(state)
        if stop > start:
            with nogil:
                self.learner.train(&self.learner, span, &state[0], NULL, NULL)

    @property
    def tests_rows(self) -> bool:
        """Whether ``test_then_train`` is available."""
        return self.learner.tests_rows

    def test_then_train(
        self,
        unsigned char [::1] state,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t [::1] order or None,          # IN; None: rows in stored order
        unsigned char [:, ::1] out,                  # OUT, (n_models * (stop - start), output bytes)
    ):
        """Predict each of the rows start..stop-1, or order[start], ..., order[stop-1], and then train on it.

        The outputs for a row are those of ``test`` before training on it, up to rounding errors.
        """
        cdef Span span = self.check_rows(start, stop, order)
        self.check_state(state)
        if start == stop:
            raise IndexError(f"rows {start}:{stop} must include at least one row to test.")
        if not self.learner.tests_rows:
            raise TypeError("this kernel cannot test each row before training on it.")
        self.check_buffers(None, out, stop - start)
        with nogil:
            self.learner.train(&self.learner, span, &state[0], NULL, &out[0, 0])

    @property
    def trains_pairs(self) -> bool:
        """Whether ``update_both`` is available, because it is faster than two calls of ``update``."""
        return self.learner.train_both != NULL

    def update_both(
        self,
        unsigned char [::1] first,                   # INOUT
        Py_ssize_t start,
        Py_ssize_t stop,
        unsigned char [::1] second,                  # INOUT
        Py_ssize_t second_start,
        Py_ssize_t second_stop,
        const uint32_t [::1] order or None,          # IN; None: rows in stored order
    ):
        """Train the state ``first`` on the rows start..stop-1, and ``second`` on second_start..second_stop-1.

        If ``order`` is given, these ranges are positions in it.
        """
        cdef Span span = self.check_rows(start, stop, order)
        cdef Span other_span = self.check_rows(second_start, second_stop, order)
        self.check_state(first)
        self.check_state(second)
        if self.learner.train_both == NULL:
            raise ValueError("this kernel cannot train two states together.")
        with nogil:
            train_pair(&self.learner, span, other_span, &first[0], &second[0])

    def read_out(self, const unsigned char [::1] state, unsigned char [::1] model):
        """Write the model that ``state`` holds, for a linear kernel its weights."""
        self.check_state(state)
        self.check_buffers(model, None, 0)
        with nogil:
            self.learner.read(&self.learner, &state[0], &model[0])

    def test(
        self,
        const unsigned char [::1] state,
        unsigned char [::1] model,                   # OUT, a workspace of the size of a model
        Py_ssize_t start,
        Py_ssize_t stop,
        unsigned char [:, ::1] out,                  # OUT, (n_models * out_rows, output bytes)
    ):
        """Write the outputs of the model in ``state`` for the rows start..stop-1 to the same rows of ``out``."""
        self.check_state(state)
        if not 0 <= start < stop <= self.n_rows:
            raise IndexError(f"rows {start}:{stop} must be a range of the {self.n_rows} prepared rows.")
        self.check_buffers(model, out, self.out_rows)
        with nogil:
            self.learner.test(&self.learner, &state[0], &model[0], start, stop, &out[start, 0])

    def walk_subtree(
        self,
        plan,
        node,
        unsigned char [:, ::1] states not None,      # INOUT, one row per level of the subtree; the first holds the
                                                     # state of the node
        unsigned char [::1] model not None,          # OUT, a workspace of the size of a model
        unsigned char [:, ::1] out not None,         # OUT, (n_models * out_rows, output bytes)
        unsigned char [::1] log=None,                # OUT, a workspace of log_bytes; None if log_bytes is 0
        uint32_t [::1] order=None,                   # OUT, a workspace with n_epochs entries per row of the node;
                                                     # None if there is one epoch in stored order
        double [:, ::1] sums=None,                   # OUT, (n_levels, values of a model): the first row becomes the
                                                     # sum of the models of all folds; None: it is not computed
        unsigned char [:, ::1] kept=None,            # OUT, (n_nodes, state_bytes), the states of the nodes that hold
                                                     # out at least least_folds folds, parents first; None: these
                                                     # states are not stored
        Py_ssize_t least_folds=1,
        double [:, ::1] models=None,                 # OUT, (n_folds, values of a model), the models of all folds;
                                                     # None: they are not stored. With them, `sums` must be None
    ) -> int:
        """Train the models of all folds below a node of the tree, and test each of them on its fold.

        Return the number of updates, which is the number of rows trained on, summed over all models.
        """
        cdef Tree tree
        set_tree(self, &tree, plan, node)
        cdef Py_ssize_t first = node.first, last = node.last
        cdef Py_ssize_t n_rows = chunk_start(&tree, last) - chunk_start(&tree, first)
        cdef bint is_ordered = tree.random or tree.n_epochs > 1
        cdef int64_t n_updates
        cdef ByteRange whole = ByteRange(self.learner.head_bytes, self.state_bytes)
        self.check_buffers(model, out, self.out_rows)
        if states.shape[1] != self.state_bytes:
            raise ValueError(f"a state must have {self.state_bytes} bytes, got {states.shape[1]}.")
        if (0 if log is None else log.shape[0]) != self.log_bytes:
            raise ValueError(f"log must have {self.log_bytes} bytes.")
        if (<int64_t> 1 << (states.shape[0] - 1)) < last - first:
            raise ValueError("states must have a row for each level of the subtree.")
        if is_ordered and (order is None or order.shape[0] < tree.n_epochs * n_rows):
            raise ValueError("order must have room for the rows of the node in all epochs.")
        tree.model = &model[0]
        tree.out = &out[0, 0]
        tree.out_step = out.shape[1]
        tree.order = &order[0] if is_ordered else NULL
        set_log(&self.learner, &tree, NULL if log is None else &log[0], self.log_bytes)
        tree.sum = NULL
        if sums is not None:
            tree.model_size = self.model_bytes // self.itemsize
            if sums.shape[0] < states.shape[0] or sums.shape[1] != tree.model_size:
                raise ValueError("sums must have a row for each level of the subtree, of the size of a model.")
            tree.sum = &sums[0, 0]
        tree.is_sum = sums is not None
        if models is not None:
            tree.model_size = self.model_bytes // self.itemsize
            if tree.is_sum or models.shape[0] != last - first or models.shape[1] != tree.model_size:
                raise ValueError("models must have a row for each fold, of the size of a model.")
            tree.sum = &models[0, 0]
        tree.kept = NULL
        tree.least_folds = least_folds
        tree.n_nodes = 0
        if kept is not None:
            if (
                least_folds < 1
                or kept.shape[1] != self.state_bytes
                or kept.shape[0] != count_nodes(last - first, least_folds)
            ):
                raise ValueError("kept must have room for a state per node.")
            tree.kept = &kept[0, 0]
        with nogil:
            n_updates = walk(&self.learner, &tree, first, last, &states[0, 0], False, whole)
        return n_updates
