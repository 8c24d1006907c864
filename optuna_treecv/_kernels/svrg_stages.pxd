"""The stages of streaming SVRG (``svrg.pxd``): how many rows each phase has. This depends only on
the schedule and the rows seen, so all lanes are always in the same phase.
"""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t

from optuna_treecv._kernels.order cimport below
from optuna_treecv._kernels.order cimport chain


cdef struct Schedule:
    int64_t initial_batch_size  # k_0
    double batch_growth         # b
    int64_t inner_steps         # m; 0: m~ is the size of the stage's batch
    int64_t warm_stages         # stages of k_0 rows after the first
    bint factorial
    uint64_t seed


# The first member of a state.
cdef struct Stage:
    int64_t n_seen
    int64_t number
    int64_t in_batch            # 1, or 0 in the inner phase
    int64_t left                # rows until this phase is complete
    double batch_size           # k_s before rounding
    double n_batch              # rows that are in G, or will be at the end of the batch


cdef inline int64_t capped(int64_t steps) noexcept nogil:
    """Return the inner steps, limited to 2^31, the largest range to draw a length from."""
    return min(steps, <int64_t> 1 << 31)


cdef inline int64_t growing(const Schedule *schedule, const Stage *stage) noexcept nogil:
    """Return s of the schedule, which is 0 during the warm-up."""
    return stage.number - schedule.warm_stages if stage.number > schedule.warm_stages else 0


cdef inline double scheduled(const Schedule *schedule, const Stage *stage, double eta) noexcept nogil:
    """Return eta_s."""
    return eta / (<double> (<int64_t> 1 << min(growing(schedule, stage), 60))) if schedule.factorial else eta


cdef inline int64_t draw_length(uint64_t seed, int64_t stage, int64_t most) noexcept nogil:
    """Return m~ of a stage, 1..most."""
    cdef uint64_t counter = chain(seed, stage)
    return 1 + <int64_t> below(&counter, <uint32_t> most)


cdef inline void start_stages(const Schedule *schedule, Stage *stage) noexcept nogil:
    """Start at the beginning of the first batch."""
    stage.n_seen = stage.number = 0
    stage.in_batch = True
    stage.left = schedule.initial_batch_size
    stage.batch_size = stage.n_batch = <double> schedule.initial_batch_size


cdef inline void begin_inner(const Schedule *schedule, Stage *stage) noexcept nogil:
    """Go from a batch to the inner phase."""
    cdef int64_t most = schedule.inner_steps
    if schedule.factorial:
        most = capped(most << min(2 * growing(schedule, stage), 31))
    if most == 0:
        stage.left = <int64_t> stage.n_batch
    else:
        stage.left = draw_length(schedule.seed, stage.number, most)
    stage.in_batch = False


cdef inline void begin_batch(const Schedule *schedule, Stage *stage) noexcept nogil:
    """Go from an inner phase to the next stage's batch."""
    cdef int64_t s
    stage.number += 1
    s = growing(schedule, stage)
    if s > 0:
        stage.batch_size *= 4 * <double> s if schedule.factorial else schedule.batch_growth
    stage.n_batch = <double> <int64_t> min(stage.batch_size + 0.5, <double> (<int64_t> 1 << 60))
    stage.left = <int64_t> stage.n_batch
    stage.in_batch = True


cdef inline int64_t n_acted(const Stage *stage) noexcept nogil:
    """Return the number of rows that have acted: all but those of an unfinished batch."""
    if not stage.in_batch or stage.left == 0:
        return stage.n_seen
    return stage.n_seen - (<int64_t> stage.n_batch - stage.left)
