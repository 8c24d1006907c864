"""The slope of each loss in its prediction p, one line of mathematics each; y is -1 or 1 for
hinge and logistic loss.
"""

from libc.stdint cimport int32_t

from cython cimport floating

from optuna_treecv._kernels.elementary cimport exponential
from optuna_treecv._kernels.vec8 cimport if_below


cdef struct Hinge:
    double epsilon              # not of this loss: C knows no empty struct


cdef struct Logistic:
    double epsilon              # nor of this


cdef struct Squared:
    double epsilon              # nor of this


cdef struct Huber:
    double epsilon              # squared within, linear beyond


cdef struct EpsilonInsensitive:
    double epsilon              # 0 within, linear beyond


ctypedef fused Loss:
    Hinge
    Logistic
    Squared
    Huber
    EpsilonInsensitive


# The same as a setting.
cdef enum LossName:
    HINGE
    LOGISTIC
    SQUARED
    HUBER
    EPSILON_INSENSITIVE


cdef dict LOSSES                # scikit-learn's names for them


cdef inline double slope(const Loss *loss, double p, double y) noexcept nogil:
    cdef double miss = p - y
    if p != p:                              # no comparison may hide it
        return p
    if Loss is Hinge:                       # max(0, 1 - y p)
        return -y if y * p < 1 else 0
    elif Loss is Logistic:                  # log(1 + exp(-y p))
        return -y / (1 + exponential(y * p))
    elif Loss is Squared:                   # (p - y)^2 / 2
        return miss
    elif Loss is Huber:                     # (p - y)^2 / 2, or epsilon (|p - y| - epsilon / 2)
        return miss if -loss.epsilon <= miss <= loss.epsilon else loss.epsilon if miss > 0 else -loss.epsilon
    else:                                   # max(0, |p - y| - epsilon)
        return 0 if -loss.epsilon <= miss <= loss.epsilon else 1 if miss > 0 else -1


cdef inline double auto_step(const Loss *loss, double largest_norm2, double alpha) noexcept nogil:
    """0.1 / L, with L the largest curvature of a row's penalised loss for rows of at most that norm."""
    cdef double smoothness = (0.25 if Loss is Logistic else 1) * largest_norm2 + alpha
    return 0.1 / smoothness if smoothness > 0 else 0


cdef inline double target(
    const Loss *loss, const void *y, Py_ssize_t row, Py_ssize_t c, const floating *of_type
) noexcept nogil:
    """What a prediction is compared with: 1 for class c and -1 for the rest, or a number."""
    if Loss is Hinge or Loss is Logistic:
        return 1 if (<const int32_t *> y)[row] == c else -1
    else:
        return (<const floating *> y)[row]


# The same for one model, whose loop would be compiled with branches on the class and on the margin, and the
# CPU often guess them wrong. Side by side the above are choices without a branch, and faster.

cdef inline double sure_slope(const Loss *loss, double p, double y) noexcept nogil:
    if Loss is Hinge:
        return p if p != p else if_below(-y, y * p, 1.0)
    else:
        return slope(loss, p, y)


cdef inline double sure_target(
    const Loss *loss, const void *y, Py_ssize_t row, Py_ssize_t c, const floating *of_type
) noexcept nogil:
    if Loss is Hinge or Loss is Logistic:
        return if_below(2.0, 0.0, <double> ((<const int32_t *> y)[row] == c)) - 1
    else:
        return target(loss, y, row, c, of_type)
