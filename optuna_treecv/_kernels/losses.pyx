"""The losses by name."""

cdef dict LOSSES = {
    "hinge": HINGE,
    "log_loss": LOGISTIC,
    "squared_error": SQUARED,
    "huber": HUBER,
    "epsilon_insensitive": EPSILON_INSENSITIVE,
}
