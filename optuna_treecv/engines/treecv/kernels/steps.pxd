"""The step of a row: as given, or the automatic one, which follows from the norms of the rows so far.

A step is w -= rate * (weight * slope(w.x, y) x + penalty * w). A given step size has rate = step_size,
weight = the row's own weight (``row_weight.pxd``) and penalty = alpha. The automatic step divides the row by
max(S, |x|^2), with S from the rows so far, and the penalty by S:
    weight = own weight / max(S, |x|^2),    penalty = alpha / S,    rate = 1 / (h + penalty).
* Squared, Huber and epsilon-insensitive loss: S = c R^2 with R^2 = sum |x|^4 / sum |x|^2, and h = 1. Averaged
  least squares converge with steps below 1 / R^2 (Bach & Moulines 2013), and there c = 2. Where no iterates are
  averaged, c = 4. The squared error judges large rows like all
  others, so they keep their weight, and steps are small where rows are heavy.
* Hinge and logistic loss: S = the geometric mean of |x|^2, up to 6 % as its logarithm is coarse, and h = 1/3, a
  little above the largest second derivative 1/4 of the logistic loss. Their slopes are bounded, so large rows
  can be given less weight, and some outliers do not make all other steps small.
These sums and this mean are weighted, so a row of weight 0 adds nothing to S.

By the maximum, the step of a row whose weight is at most 1 moves its prediction at most to its target (squared
loss), as normalised least mean squares does (Nagumo & Noda 1967), whatever came before.

The weight does not depend on alpha, and S on labels only if classes are balanced. The gradients of several rows
can be summed before ``rate`` is known.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.losses cimport HINGE
from optuna_treecv.engines.treecv.kernels.losses cimport LOGISTIC
from optuna_treecv.engines.treecv.kernels.losses cimport Loss


cdef extern from *:
    """
    #define TREECV_UNIT 4503599627370496.0                  /* 2^52 */
    #define TREECV_ONE 4607182418800017408.0                /* the bits of 1.0 */
    """
    const double UNIT "TREECV_UNIT"
    const double ONE "TREECV_ONE"


# Part of a state; 0 if the step size is given.
cdef struct Norms:
    double total                # weighted sum of |x|^4, or of log2 |x|^2
    double count                # weighted sum of |x|^2, or the mass of the rows that are not 0


cdef struct Step:
    double rate
    double weight
    double penalty


cdef inline double coarse_log2(double x) noexcept nogil:
    """Return about log2 x for a positive x: a straight line between powers of two (Mitchell 1962).

    This is the pattern of bits, read as an integer. An exact logarithm and power would take as long as the
    rest of a step on 54 columns.
    """
    cdef int64_t bits
    memcpy(&bits, &x, 8)
    return (<double> bits - ONE) / UNIT


cdef inline double coarse_power_of_two(double y) noexcept nogil:
    """Return the inverse of ``coarse_log2``."""
    cdef int64_t bits = <int64_t> (y * UNIT + ONE)
    cdef double x
    memcpy(&x, &bits, 8)
    return x


cdef inline bint has_bounded_slopes(const Loss *loss) noexcept nogil:
    return loss.name == HINGE or loss.name == LOGISTIC


cdef inline inlined typical_norm2(
    const Loss *loss,
    Norms *norms,               # INOUT
    double norm2,
    double weight,
    bint averages,              # whether iterates are averaged
    double *typical,            # OUT: S
) noexcept nogil:
    """Count a row in ``norms``, and write S.

    It must be inlined: a call from a loop that is compiled for AVX-512 made the lanes of SVRG 1.2 times slower.
    """
    cdef bint bounded = has_bounded_slopes(loss)
    cdef double counted = min(norm2, 1e140)         # so that the sum of squares is finite
    cdef double times = min(weight, 1e20)           # likewise
    cdef double S = 1                               # if all rows so far are 0
    if counted > 0:
        norms.total += times * (coarse_log2(counted) if bounded else counted * counted)
        norms.count += times * (1 if bounded else counted)
    if norms.count > 0:
        S = norms.total / norms.count
        S = coarse_power_of_two(S) if bounded else (2 if averages else 4) * S
    typical[0] = max(S, 1e-30)                      # so that weights are finite in float32


cdef inline double automatic_weight(double S, double norm2, double weight) noexcept nogil:
    """Return the weight of a row in an automatic step. It is the same for all lanes, so it is divided once."""
    return weight / max(S, norm2)


cdef inline Step step_of(
    const Loss *loss,
    double step_size,           # 0: auto
    double S,                   # for the automatic step
    double row_weight,          # likewise: `automatic_weight`
    double alpha,
    double weight,              # of the row
) noexcept nogil:
    """Return the step of a row."""
    cdef Step step
    if step_size == 0:
        step.weight = row_weight
        step.penalty = alpha / S
        step.rate = 1 / ((1.0 / 3 if has_bounded_slopes(loss) else 1) + step.penalty)
    else:
        step.weight = weight
        step.penalty = alpha
        step.rate = step_size
    return step
