"""The weight of a row, which multiplies its loss.

It is the given weight w of the row, or 1 if no weights are given. With balanced classes, it is also divided by the
relative frequency of the row's class c among the rows so far, with additive smoothing:
    w (W + K) / (K (W_c + 1)).
Here K is the number of classes. The mass W_c is the sum of w over the rows of class c on which the model has been
trained so far, including this row, and W is the sum of all W_c. A state holds these masses, so that a weight depends
only on rows that the model has been trained on.
"""

from cython cimport floating
from libc.stdint cimport int32_t

from optuna_treecv.engines.treecv.kernels.tree cimport Learner
from optuna_treecv.engines.treecv.kernels.tree cimport whole_lines


cdef inline Py_ssize_t masses_bytes(Py_ssize_t n_classes) noexcept nogil:
    """Return the number of bytes that a state needs for the masses of all classes and for their sum."""
    return whole_lines(8 * (n_classes + 1))


cdef inline double balanced_weight(
    const Learner *learner, Py_ssize_t row, unsigned char *state, const floating *type_tag
) noexcept nogil:
    """Add a row to the masses of a state, and return its balanced weight.

    ``type_tag`` is never read: its type tells the compiler the type of the given weights.
    """
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
    bint weighted,              # whether weights are given; the constant False lets the compiler fold a weight of 1
    const Learner *learner,
    Py_ssize_t row,
    const floating *type_tag,
) noexcept nogil:
    """Return the given weight of a row, for kernels that have no classes to balance."""
    return (<const floating *> learner.weights)[row] if weighted else 1


cdef inline floating weight_of(
    bint weighted,              # whether weights are given or classes are balanced; as above
    const Learner *learner,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    const floating *type_tag,
) noexcept nogil:
    """Return the weight of the row that a state is trained on next, after adding the row to the masses of the
    state."""
    if weighted and learner.n_balanced:
        return <floating> balanced_weight(learner, row, state, type_tag)
    return given_weight(weighted, learner, row, type_tag)
