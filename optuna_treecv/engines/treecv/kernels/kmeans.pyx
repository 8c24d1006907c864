"""Online K-means (MacQueen 1967): each row moves the nearest centre to the mean of the rows it has
won.

The first rows that differ from every centre become centres, until there are ``n_clusters``. Then, with w the
weight of the row (``row_weight.pxd``) and W_c the mass of centre c, the sum of the weights of its rows so far, this
row included,
    c = argmin |x - m_c|^2,      m_c += (w / W_c) (x - m_c).
A row of weight 0 changes nothing. Without weights, W_c is the number of rows of the centre.
"""

from libc.string cimport memcpy

from optuna_treecv._kernels.vec8 cimport distance2
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.row_weight cimport given_weight

include "train_dense_by_type.pxi"


# A state begins with this head, in a cache line. Then come the mass of each centre (float64), and
# the centres in the type of the rows.
cdef struct Head:
    int64_t n_seen
    int64_t n_centres


cdef inline Py_ssize_t n_clusters_of(const Learner *learner) noexcept nogil:
    return (<const Py_ssize_t *> learner.settings)[0]


cdef inline double *masses_in(const Learner *learner, const unsigned char *state) noexcept nogil:
    return <double *> (state + learner.head_bytes)


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the centres begin."""
    return <void *> (masses_in(learner, state) + n_clusters_of(learner))


cdef inline int64_t n_centres_in(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return the number of centres, limited to the room for them in case the state is invalid."""
    return min(max((<const Head *> state).n_centres, 0), n_clusters_of(learner))


cdef inline Py_ssize_t nearest(
    const floating *centres,
    Py_ssize_t n_centres,
    Py_ssize_t width,
    const floating *x,
    floating *distance,         # OUT, squared
) noexcept nogil:
    """Return the number of the nearest centre, the first of several; n_centres > 0."""
    cdef Py_ssize_t best = 0
    cdef Py_ssize_t c
    cdef floating other
    distance[0] = distance2(centres, x, width)
    for c in range(1, n_centres):
        other = distance2(centres + c * width, x, width)
        if other < distance[0]:
            distance[0] = other
            best = c
    return best


cdef inlined train_dense_on(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    floating *centres,          # INOUT, where they lie in the state
    bint weighted,
    floating *tested,           # NULL
) noexcept nogil:
    cdef const Dense *rows = &learner.dense
    cdef const floating *x
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *masses = masses_in(learner, state)
    cdef floating *centre
    cdef floating distance, part
    cdef double weight
    cdef Py_ssize_t i, j, c, row
    head.n_seen += span.stop - span.start
    head.n_centres = n_centres_in(learner, state)
    for i in range(span.start, span.stop):
        row = visit(rows, span, i, centres)
        weight = <double> given_weight(weighted, learner, row, centres)
        if weight == 0:
            continue
        x = (<const floating *> rows.values) + row * width
        distance = 1
        c = nearest(centres, head.n_centres, width, x, &distance) if head.n_centres > 0 else 0
        if distance != 0 and head.n_centres < n_clusters_of(learner):
            c = head.n_centres
            head.n_centres += 1
        masses[c] += weight
        part = <floating> (weight / masses[c])
        centre = centres + c * width
        for j in range(width):
            centre[j] += part * (x[j] - centre[j])


cdef inlined test_on(
    const Learner *learner,
    const unsigned char *state,
    const floating *centres,    # IN, where they lie in the state
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, 2)
) noexcept nogil:
    """Write the squared distance to the nearest centre, and the number of this centre."""
    cdef const floating *x = (<const floating *> learner.dense.values) + start * learner.width
    cdef Py_ssize_t n_centres = max(1, n_centres_in(learner, state))
    cdef Py_ssize_t i
    for i in range(stop - start):
        out[2 * i + 1] = nearest(centres, n_centres, learner.width, x + i * learner.width, out + 2 * i)


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    """Write the centres; the first centre stands in for each that does not exist yet."""
    cdef const unsigned char *centres = <const unsigned char *> vectors_of(learner, state)
    cdef Py_ssize_t a_centre = learner.width * learner.itemsize
    cdef Py_ssize_t n_centres = n_centres_in(learner, state)
    cdef Py_ssize_t c
    for c in range(n_clusters_of(learner)):
        memcpy(<unsigned char *> model + c * a_centre, centres + (c if c < n_centres else 0) * a_centre, a_centre)


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    if learner.itemsize == 8:
        test_on(learner, state, <const double *> vectors_of(learner, state), start, stop, <double *> out)
    else:
        test_on(learner, state, <const float *> vectors_of(learner, state), start, stop, <float *> out)


cdef class KMeans(Kernel):
    """Online K-means over prepared dense rows. Outputs are the squared distance to the nearest
    centre, and the number of this centre.
    """

    cdef Py_ssize_t n_clusters

    def __init__(self, X, Py_ssize_t n_clusters):
        cdef Py_ssize_t model_bytes
        self.bind(X, None, 2)
        if self.learner.sparse.begins != NULL:
            raise ValueError("centres are dense: rows must be dense.")
        if not 0 < n_clusters < 1 << 31:
            raise ValueError(f"n_clusters must be 1 to 2**31 - 1, got {n_clusters}.")
        self.n_clusters = n_clusters
        self.learner.settings = &self.n_clusters
        self.learner.train = train_dense
        self.learner.read = read
        self.learner.test = test
        model_bytes = n_clusters * self.learner.width * self.itemsize
        self.set_sizes(sizeof(Head), 8 * n_clusters + model_bytes, model_bytes)

    def counts(self, const unsigned char [::1] state) -> list[int] | list[float]:
        """Return the sum of the weights of the rows that each centre has won: ints if all sums are whole numbers."""
        self.check_state(state)
        masses = [masses_in(&self.learner, &state[0])[c] for c in range(self.n_clusters)]
        are_whole = all(mass.is_integer() and mass < 1 << 53 for mass in masses)
        return [int(mass) for mass in masses] if are_whole else masses
