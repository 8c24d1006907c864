"""Online K-means (MacQueen 1967): each row is assigned to the nearest centre, the mean of the rows assigned to it.

The first rows that differ from all centres become centres themselves, until there are ``n_clusters``. After that, a
row x of weight w (``row_weight.pxd``) moves the nearest centre m_c:
    c = argmin |x - m_c|^2,      m_c += (w / W_c) (x - m_c).
The mass W_c is the sum of the weights of all rows assigned to this centre so far, including this row. A row of weight
0 changes nothing. If all weights are 1, W_c is the number of rows of the centre.
"""

from libc.string cimport memcpy

from optuna_treecv._kernels.vec8 cimport distance2
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.row_weight cimport given_weight

include "train_dense_by_type.pxi"


# A state holds this head in a cache line, then the masses of the centres, (n_clusters,), as float64, and then the
# centres, (n_clusters, width), in the type of the rows.
cdef struct Head:
    int64_t n_seen
    int64_t n_centres


cdef inline Py_ssize_t n_clusters_of(const Learner *learner) noexcept nogil:
    return (<const Py_ssize_t *> learner.settings)[0]


cdef inline double *masses_in(const Learner *learner, const unsigned char *state) noexcept nogil:
    return <double *> (state + learner.head_bytes)


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the first centre."""
    return <void *> (masses_in(learner, state) + n_clusters_of(learner))


cdef inline int64_t n_centres_in(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return the number of centres, clipped to the valid range in case the state is invalid."""
    return min(max((<const Head *> state).n_centres, 0), n_clusters_of(learner))


cdef inline Py_ssize_t nearest(
    const floating *centres,
    Py_ssize_t n_centres,
    Py_ssize_t width,
    const floating *x,
    floating *distance,         # OUT, squared
) noexcept nogil:
    """Return the index of the nearest of ``n_centres`` > 0 centres, or the first index if several are nearest."""
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
    floating *centres,          # INOUT, the centres in ``state``
    bint weighted,
    floating *out,              # NULL, because this kernel does not test rows during training
) noexcept nogil:
    cdef const Dense *rows = &learner.dense
    cdef const floating *x
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *masses = masses_in(learner, state)
    cdef floating *centre
    cdef floating distance, share
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
        share = <floating> (weight / masses[c])
        centre = centres + c * width
        for j in range(width):
            centre[j] += share * (x[j] - centre[j])


cdef inlined test_on(
    const Learner *learner,
    const unsigned char *state,
    const floating *centres,    # IN, the centres in ``state``
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, 2)
) noexcept nogil:
    """Write for each row the squared distance to the nearest centre, and the index of this centre."""
    cdef const floating *x = (<const floating *> learner.dense.values) + start * learner.width
    cdef Py_ssize_t n_centres = max(1, n_centres_in(learner, state))
    cdef Py_ssize_t i
    for i in range(stop - start):
        out[2 * i + 1] = nearest(centres, n_centres, learner.width, x + i * learner.width, out + 2 * i)


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    """Write all ``n_clusters`` centres; those that do not exist yet are copies of the first centre."""
    cdef const unsigned char *centres = <const unsigned char *> vectors_of(learner, state)
    cdef const unsigned char *source
    cdef Py_ssize_t centre_bytes = learner.width * learner.itemsize
    cdef Py_ssize_t n_centres = n_centres_in(learner, state)
    cdef Py_ssize_t c
    for c in range(n_clusters_of(learner)):
        source = centres + (c if c < n_centres else 0) * centre_bytes
        memcpy(<unsigned char *> model + c * centre_bytes, source, centre_bytes)


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    if learner.itemsize == 8:
        test_on(learner, state, <const double *> vectors_of(learner, state), start, stop, <double *> out)
    else:
        test_on(learner, state, <const float *> vectors_of(learner, state), start, stop, <float *> out)


cdef class KMeans(Kernel):
    """Online K-means on prepared dense rows.

    The outputs for a row are the squared distance to the nearest centre, and the index of this centre.
    """

    cdef Py_ssize_t n_clusters

    def __init__(self, X, Py_ssize_t n_clusters):
        cdef Py_ssize_t model_bytes
        self.bind(X, None, 2)
        if self.learner.sparse.indptr != NULL:
            raise ValueError("X must be a dense array for K-means, got sparse rows.")
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
        """Return for each centre the sum of the weights of its rows, as ints if all these sums are whole numbers."""
        self.check_state(state)
        masses = [masses_in(&self.learner, &state[0])[c] for c in range(self.n_clusters)]
        are_whole = all(mass.is_integer() and mass < 1 << 53 for mass in masses)
        return [int(mass) for mass in masses] if are_whole else masses
