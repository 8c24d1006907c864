"""The slopes of the losses: their derivatives with respect to the prediction p.

For hinge and logistic loss, the target y is -1 or 1. A loss is passed as a value of an enum, on which only ``slopes``
and ``steps.pxd`` branch.
"""

from cython cimport floating
from libc.stdint cimport int32_t

from optuna_treecv._kernels.exp_log cimport exponential
from optuna_treecv._kernels.vec8 cimport if_below
from optuna_treecv._kernels.vec8 cimport inlined


cdef enum LossName:
    HINGE
    LOGISTIC
    SQUARED
    HUBER
    EPSILON_INSENSITIVE


cdef struct Loss:
    LossName name
    double epsilon              # of the Huber and the epsilon-insensitive loss


cdef inline Loss loss_from_name(object name, double epsilon) except *:
    """Return the loss with the given name, as ``SGDClassifier`` and ``SGDRegressor`` of scikit-learn call it."""
    cdef Loss loss
    loss.name = {
        "hinge": HINGE,
        "log_loss": LOGISTIC,
        "squared_error": SQUARED,
        "huber": HUBER,
        "epsilon_insensitive": EPSILON_INSENSITIVE,
    }[name]
    loss.epsilon = epsilon
    return loss


# If p is NaN, each slope must be NaN too, although comparisons with NaN are false.

cdef inline double hinge(double p, double y, bint alone) noexcept nogil:
    """Return the slope of max(0, 1 - y p).

    For a single model (``alone``), the comparison with the margin is computed without a branch, which the CPU would
    often mispredict. A loop over lanes is compiled to vector instructions, which have no such branch.
    """
    if p != p:
        return p
    if alone:
        return if_below(-y, y * p, 1.0)
    return -y if y * p < 1 else 0


cdef inline double logistic(double p, double y) noexcept nogil:
    """Return the slope of log(1 + exp(-y p))."""
    return p if p != p else -y / (1 + exponential(y * p))


cdef inline double huber(double miss, double epsilon) noexcept nogil:
    """Return the slope of miss^2 / 2 for |miss| <= epsilon, and of epsilon (|miss| - epsilon / 2) for larger ones."""
    if miss > epsilon:
        return epsilon
    return -epsilon if miss < -epsilon else miss


cdef inline double epsilon_insensitive(double miss, double epsilon) noexcept nogil:
    """Return the slope of max(0, |miss| - epsilon)."""
    if miss != miss:
        return miss
    if miss > epsilon:
        return 1
    return -1 if miss < -epsilon else 0


# The target of a row, with which predictions are compared.

cdef inline double class_target(const void *y, Py_ssize_t row, int32_t c) noexcept nogil:
    """Return 1 if the row belongs to class c, else -1."""
    return 2 * ((<const int32_t *> y)[row] == c) - 1


cdef inline double regression_target(const void *y, Py_ssize_t row, const floating *type_tag) noexcept nogil:
    return (<const floating *> y)[row]


cdef inline inlined slopes(
    const Loss *loss,
    const void *y,
    Py_ssize_t row,
    Py_ssize_t n_lanes,
    bint alone,                 # whether this is a single model, not lanes
    const int32_t *classes,     # IN, (n_lanes,), the code of the class that each lane separates from all others
    const double *p,            # IN, (n_lanes,), predictions
    double *out,                # OUT, (n_lanes,)
    const floating *type_tag,
) noexcept nogil:
    """Write the slope of the loss of a row for each lane's prediction."""
    cdef Py_ssize_t lane
    cdef double target
    if loss.name == HINGE:
        for lane in range(n_lanes):
            out[lane] = hinge(p[lane], class_target(y, row, classes[lane]), alone)
    elif loss.name == LOGISTIC:
        for lane in range(n_lanes):
            out[lane] = logistic(p[lane], class_target(y, row, classes[lane]))
    elif loss.name == SQUARED:                              # of (p - y)^2 / 2
        target = regression_target(y, row, type_tag)
        for lane in range(n_lanes):
            out[lane] = p[lane] - target
    elif loss.name == HUBER:
        target = regression_target(y, row, type_tag)
        for lane in range(n_lanes):
            out[lane] = huber(p[lane] - target, loss.epsilon)
    else:
        target = regression_target(y, row, type_tag)
        for lane in range(n_lanes):
            out[lane] = epsilon_insensitive(p[lane] - target, loss.epsilon)


cdef inline double slope(
    const Loss *loss, const void *y, Py_ssize_t row, int32_t c, double p, const floating *type_tag
) noexcept nogil:
    """Return the slope of the loss of a row for a single prediction, which separates class c from all others."""
    cdef double g
    slopes(loss, y, row, 1, True, &c, &p, &g, type_tag)
    return g
