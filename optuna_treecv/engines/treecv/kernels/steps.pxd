"""The size of a gradient step: either given, or automatic, which is computed from the norms of the rows so far.

The step for a row x is w -= rate * (weight * slope(w.x, y) x + penalty * w). With a given step size, rate = step_size,
penalty = alpha, and weight is the row weight omega of ``row_weight.pxd``. The automatic step size is
    weight = omega / max(S, |x|^2),    penalty = alpha / S,    rate = 1 / (h + penalty),
with a typical squared norm S of the rows so far and a bound h on the curvature of the loss:
* For the squared, Huber and epsilon-insensitive loss, S = c R^2 with R^2 = sum |x|^4 / sum |x|^2, and h = 1. Averaged
  least squares converges with steps below 1 / R^2 (Bach & Moulines 2013), and c = 2 if iterates are averaged.
  Otherwise c = 4. The squared error of a row with a large norm counts as much as that of any other row, so such rows
  keep their weight. In return, all steps become smaller if some rows have large norms.
* For the hinge and logistic loss, S is the geometric mean of |x|^2, with an error of up to 6 % because of an
  approximate logarithm. h = 1/3 is a little above 1/4, the largest second derivative of the logistic loss. The slopes
  of these losses are bounded, so rows with large norms can have less weight, and a few outliers do not make all other
  steps small.
These sums and means are weighted, so that a row of weight 0 does not change S.

Because of the maximum, the step for a row of weight at most 1 moves the prediction for this row at most to its target
(squared loss), as in normalised least mean squares (Nagumo & Noda 1967), whatever the norms of earlier rows.

The weight does not depend on alpha, and S depends on labels only if classes are balanced. The gradients of several
rows can be summed before ``rate`` is known.
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


# The sums in a state from which S is computed; zeros if the step size is given.
cdef struct Norms:
    double total                # the weighted sum of |x|^4, or of log2 |x|^2 for hinge and logistic loss
    double count                # the weighted sum of |x|^2, or the weighted number of rows x != 0 for these two losses


cdef struct Step:
    double rate
    double weight
    double penalty


cdef inline double coarse_log2(double x) noexcept nogil:
    """Return an approximation of log2 x for x > 0 that is linear between powers of two (Mitchell 1962).

    It is computed from the bits of x, read as an integer. An exact logarithm and power would take as long as the rest
    of a step with 54 columns.
    """
    cdef int64_t bits
    memcpy(&bits, &x, 8)
    return (<double> bits - ONE) / UNIT


cdef inline double coarse_power_of_two(double y) noexcept nogil:
    """Return the x for which ``coarse_log2`` returns y."""
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
    """Add a row to ``norms``, and write S.

    This function must be inlined. Calling it from a loop that is compiled for AVX-512 made SVRG in lanes take 1.2
    times as long.
    """
    cdef bint bounded = has_bounded_slopes(loss)
    cdef double counted = min(norm2, 1e140)         # keeps the sum of squares finite
    cdef double times = min(weight, 1e20)           # likewise keeps sums finite
    cdef double S = 1                               # if all rows so far are 0
    if counted > 0:
        norms.total += times * (coarse_log2(counted) if bounded else counted * counted)
        norms.count += times * (1 if bounded else counted)
    if norms.count > 0:
        S = norms.total / norms.count
        S = coarse_power_of_two(S) if bounded else (2 if averages else 4) * S
    typical[0] = max(S, 1e-30)                      # keeps weights finite in float32


cdef inline double automatic_weight(double S, double norm2, double weight) noexcept nogil:
    """Return the weight of a row in an automatic step, which is computed only once for all lanes."""
    return weight / max(S, norm2)


cdef inline Step step_of(
    const Loss *loss,
    double step_size,           # 0: automatic
    double S,                   # used by the automatic step size only
    double row_weight,          # from ``automatic_weight``; used by the automatic step size only
    double alpha,
    double weight,              # omega, used by a given step size only
) noexcept nogil:
    """Return the rate, weight and penalty of the step for a row."""
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
