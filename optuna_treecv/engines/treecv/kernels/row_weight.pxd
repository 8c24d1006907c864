"""The weight of a row, which multiplies its loss.

It is the number w that was given for the row, or 1. If classes are balanced, it is also multiplied by the
inverse frequency of its class c among the rows seen so far, smoothed by one:
    w (W + K) / (K (W_c + 1)),
with K classes, W_c the sum of w over the rows of class c seen so far, this one included, and W the sum of
all W_c. So the weight depends on no row that the model has not seen, and states hold these sums.
"""

from cython cimport floating
from libc.stdint cimport int32_t

from optuna_treecv.engines.treecv.kernels.tree cimport Learner
from optuna_treecv.engines.treecv.kernels.tree cimport whole_lines


cdef inline Py_ssize_t masses_bytes(Py_ssize_t n_classes) noexcept nogil:
    """Return the bytes of the masses of all classes and of their sum."""
    return whole_lines(8 * (n_classes + 1))


cdef inline double balanced_weight(
    const Learner *learner, Py_ssize_t row, unsigned char *state, const floating *of_type
) noexcept nogil:
    """Count a row in the masses of a state, and return its weight; ``of_type`` only selects the type."""
    cdef double *masses = <double *> (state + learner.masses_begin)
    cdef double n_classes = <double> learner.n_balanced
    cdef double w = (<const floating *> learner.weights)[row] if learner.weights != NULL else 1
    cdef int32_t c = (<const int32_t *> learner.y)[row]
    masses[c] += w
    masses[learner.n_balanced] += w
    return w * ((masses[learner.n_balanced] + n_classes) / (n_classes * (masses[c] + 1)))


cdef inline bint has_weights(const Learner *learner) noexcept nogil:
    return learner.weights != NULL or learner.n_balanced != 0


cdef inline floating given_weight(
    bint weighted,              # if it is the constant False, all weights are 1 and fold away
    const Learner *learner,
    Py_ssize_t row,
    const floating *of_type,
) noexcept nogil:
    """Return the weight that was given for a row, for kernels without classes."""
    return (<const floating *> learner.weights)[row] if weighted else 1


cdef inline floating weight_of(
    bint weighted,              # as above
    const Learner *learner,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    const floating *of_type,
) noexcept nogil:
    """Return the weight of the next row that a state is trained on, in the type of the rows."""
    if weighted and learner.n_balanced:
        return <floating> balanced_weight(learner, row, state, of_type)
    return given_weight(weighted, learner, row, of_type)
