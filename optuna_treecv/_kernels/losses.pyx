"""scikit-learn's names of the losses. The slopes are in ``losses.pxd``."""

NAMES = {
    "hinge": HINGE,
    "log_loss": LOGISTIC,
    "squared_error": SQUARED,
    "huber": HUBER,
    "epsilon_insensitive": EPSILON_INSENSITIVE,
}


cdef Loss loss_named(object name, double epsilon) except *:
    cdef Loss loss
    loss.name = NAMES[name]
    loss.epsilon = epsilon
    return loss
