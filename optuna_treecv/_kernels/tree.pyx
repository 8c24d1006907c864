"""Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015) over compiled learners, without the
interpreter.

A learner's state is one flat block of memory, so saving a model is a copy of that block. The
models of a branch lie one behind the other: the left child works in the block behind its parent's,
the right child takes over its parent's own.
"""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from optuna_treecv._kernels.order cimport fill_random_order


cdef struct Tree:
    Py_ssize_t n_rows
    Py_ssize_t n_folds
    const int64_t *bounds       # where chunks begin, n_folds + 1 row numbers; NULL: chunk i at i * n_rows // n_folds
    uint64_t seed
    uint32_t *order             # room for the longest training phase; NULL: rows are fed as they lie
    void *model                 # room for what a leaf reads from its state
    unsigned char *out
    Py_ssize_t out_step         # bytes of outputs a row


cdef inline Py_ssize_t begin(const Tree *tree, Py_ssize_t chunk) noexcept nogil:
    """The first row of a chunk."""
    if tree.bounds != NULL:
        return tree.bounds[chunk]
    return <Py_ssize_t> (<int64_t> chunk * tree.n_rows // tree.n_folds)


cdef inline void feed(
    const Learner *learner, const Tree *tree, Py_ssize_t start, Py_ssize_t stop, int64_t n_seen, unsigned char *state
) noexcept nogil:
    """One training phase."""
    if tree.order != NULL and stop - start > 1:
        fill_random_order(tree.seed, start, stop, n_seen, tree.order)
        learner.train(learner, 0, stop - start, tree.order, state)
    else:
        learner.train(learner, start, stop, NULL, state)


cdef int64_t walk(
    const Learner *learner, const Tree *tree, Py_ssize_t first, Py_ssize_t last, unsigned char *state
) noexcept nogil:
    """TREECV(s, e, f) of Algorithm 1, with s = first + 1, e = last and ``state`` for f; the row
    updates done.
    """
    cdef Py_ssize_t start = begin(tree, first)
    cdef Py_ssize_t stop = begin(tree, last)
    cdef Py_ssize_t middle, cut
    cdef int64_t n_seen = tree.n_rows - (stop - start)
    cdef int64_t n_updates = stop - start
    cdef unsigned char *child = state + learner.state_bytes
    if last - first == 1:                                       # s = e: test f on its own chunk
        learner.read(learner, state, tree.model)
        learner.test(learner, tree.model, start, stop, tree.out + start * tree.out_step)
        return 0
    middle = (first + last + 1) // 2                            # m = floor((s + e) / 2)
    cut = begin(tree, middle)
    memcpy(child, state, learner.state_bytes)
    feed(learner, tree, cut, stop, n_seen, child)               # chunks m+1..e into a copy of f ...
    n_updates += walk(learner, tree, first, middle, child)      # ... which goes on to test s..m
    feed(learner, tree, start, cut, n_seen, state)              # chunks s..m into f itself ...
    return n_updates + walk(learner, tree, middle, last, state)     # ... which goes on to test m+1..e


cdef class CompiledLearner:
    """A learner over prepared rows; subclasses fill in its functions and sizes.

    Methods take states as writable buffers of ``state_bytes`` bytes and keep none of them. A state
    begins with the number of rows seen (int64).
    """

    cdef int bind(self, object X, object y, Py_ssize_t n_outputs) except -1:
        """Point at the memory of the arrays X (n_rows, width) and y (n_rows,), and keep it alive."""
        cdef const unsigned char [:, ::1] X_bytes = X.view("u1")
        cdef const unsigned char [::1] y_bytes = y.view("u1")
        if X.shape[0] != y.shape[0] or X.shape[0] == 0 or X.shape[1] == 0 or X.shape[1] % 8:
            raise ValueError("X must have a multiple of 8 columns, y as many entries as X has rows.")
        self.learner.X = &X_bytes[0, 0]
        self.learner.y = &y_bytes[0]
        self.learner.width = X.shape[1]
        self.learner.n_outputs = n_outputs
        self.n_outputs = n_outputs
        self.n_rows = X.shape[0]
        self.itemsize = X.itemsize
        self.keep_alive = (X_bytes, y_bytes)
        return 0

    cdef int set_sizes(self, Py_ssize_t state_bytes, Py_ssize_t model_bytes) except -1:
        """Of a state, rounded up to whole cache lines, and of a model."""
        self.state_bytes = (state_bytes + 63) // 64 * 64
        self.learner.state_bytes = self.state_bytes
        self.model_bytes = model_bytes
        return 0

    cdef int check_state(self, const unsigned char [::1] state) except -1:
        if self.state_bytes == 0:
            raise ValueError("the learner was not initialised.")
        if state.shape[0] != self.state_bytes:
            raise ValueError(f"a state has {self.state_bytes} bytes, got {state.shape[0]}.")
        return 0

    def n_seen(self, const unsigned char [::1] state):
        """The number of rows a state has been trained on, which stands at the head of every
        state.
        """
        self.check_state(state)
        return (<const int64_t *> &state[0])[0]

    def update(self, unsigned char [::1] state, Py_ssize_t start, Py_ssize_t stop):
        """Train on the rows start..stop-1 as they lie."""
        self.check_state(state)
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(f"rows {start}..{stop} are outside the {self.n_rows} prepared rows.")
        with nogil:
            self.learner.train(&self.learner, start, stop, NULL, &state[0])

    def update_in_order(self, unsigned char [::1] state, const uint32_t [::1] order):
        """Train on the rows that ``order`` names, in that order."""
        cdef Py_ssize_t i
        self.check_state(state)
        if order.shape[0] == 0:
            return
        for i in range(order.shape[0]):
            if order[i] >= self.n_rows:
                raise IndexError(f"order names row {order[i]}, but there are {self.n_rows} prepared rows.")
        with nogil:
            self.learner.train(&self.learner, 0, order.shape[0], &order[0], &state[0])

    def read_out(self, const unsigned char [::1] state, unsigned char [::1] model):
        """Write the model that ``state`` stands for."""
        self.check_state(state)
        if model.shape[0] != self.model_bytes:
            raise ValueError(f"a model has {self.model_bytes} bytes, got {model.shape[0]}.")
        with nogil:
            self.learner.read(&self.learner, &state[0], &model[0])

    def test(self, const unsigned char [::1] model, Py_ssize_t start, Py_ssize_t stop, unsigned char [:, ::1] out):
        """Write what ``model`` says of the rows start..stop-1 to the same rows of ``out``
        (n_rows, output bytes).
        """
        if not 0 <= start < stop <= self.n_rows:
            raise IndexError(f"rows {start}..{stop} are outside the {self.n_rows} prepared rows.")
        if model.shape[0] != self.model_bytes:
            raise ValueError(f"a model has {self.model_bytes} bytes, got {model.shape[0]}.")
        if out.shape[0] != self.n_rows or out.shape[1] != self.n_outputs * self.itemsize:
            raise ValueError("out must have room for the outputs of all rows.")
        with nogil:
            self.learner.test(&self.learner, &model[0], start, stop, &out[start, 0])

    def walk_subtree(
        self,
        unsigned char [:, ::1] states,               # INOUT, a row for each level; the first holds the node's model
        unsigned char [::1] model,                   # OUT, room for one model
        Py_ssize_t first,
        Py_ssize_t last,
        Py_ssize_t n_folds,
        const int64_t [::1] bounds,         # IN, or None: even chunks
        uint32_t [::1] order,               # OUT, room for the longest training phase; None: fixed order
        uint64_t seed,
        unsigned char [:, ::1] out,                  # OUT, (n_rows, output bytes)
    ):
        """Test chunks first..last-1 by the tree below the node that holds them out; return the
        row updates done.
        """
        cdef Tree tree
        cdef int64_t n_updates
        cdef Py_ssize_t i
        if not 0 <= first < last <= n_folds <= self.n_rows:
            raise ValueError(f"there is no node [{first}, {last}) in a tree of {n_folds} folds.")
        if bounds is not None and (bounds.shape[0] != n_folds + 1 or bounds[n_folds] != self.n_rows):
            raise ValueError("bounds must hold n_folds + 1 row numbers, 0 first and the number of rows last.")
        if out.shape[0] != self.n_rows or out.shape[1] != self.n_outputs * self.itemsize:
            raise ValueError("out must have room for the outputs of all rows.")
        if states.shape[1] != self.state_bytes or model.shape[0] != self.model_bytes:
            raise ValueError("states or model of another size.")
        if (<int64_t> 1 << (states.shape[0] - 1)) < last - first:
            raise ValueError("states must have a row for each level of the subtree.")
        if bounds is not None:
            for i in range(n_folds):
                if bounds[i] >= bounds[i + 1] or bounds[0] != 0:
                    raise ValueError("bounds must rise from 0.")
        tree.n_rows = self.n_rows
        tree.n_folds = n_folds
        tree.bounds = NULL if bounds is None else &bounds[0]
        if order is not None and order.shape[0] < begin(&tree, last) - begin(&tree, first):
            raise ValueError("order must have room for the rows of the node.")
        tree.seed = seed
        tree.order = NULL if order is None else &order[0]
        tree.model = &model[0]
        tree.out = &out[0, 0]
        tree.out_step = out.shape[1]
        with nogil:
            n_updates = walk(&self.learner, &tree, first, last, &states[0, 0])
        return n_updates
