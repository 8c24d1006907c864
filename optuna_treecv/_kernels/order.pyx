"""Uniformly random orders of a range of rows, and a stable sort by small integer keys.

An order depends only on the seed, the range of rows and the number of rows that the model has been trained on before.
The shuffle is the inside-out variant of Fisher-Yates, which writes the permutation while it is drawn. An order for
several epochs contains, between the rows of the range, replays of other training rows.
"""

from libc.stdint cimport uint8_t
from libc.stdint cimport uint16_t


cdef void fill_random_order(uint64_t seed, Span span, int64_t n_seen, uint32_t *order) noexcept nogil:
    cdef uint64_t counter = chain(chain(chain(seed, span.start), span.stop), n_seen)
    cdef Py_ssize_t i, j
    for i in range(span.stop - span.start):
        j = below(&counter, <uint32_t> (i + 1))
        order[i] = order[j]
        order[j] = <uint32_t> (span.start + i)


cdef enum:
    # Replays are drawn as runs of this many consecutive rows. If the rows are not in the cache, reading a row right
    # after its predecessor is several times as fast as reading it alone.
    RUN_LENGTH = 8
    # With fewer rows than this, all rows are in the cache, and replays are drawn row by row.
    MIN_ROWS_FOR_RUNS = 512


cdef void fill_sample(
    uint64_t *counter,          # INOUT
    Py_ssize_t n_allowed,       # the number of rows that are not held out
    Span held_out,              # the rows that are held out
    Py_ssize_t run_length,      # the number of rows of a run
    Py_ssize_t n_drawn,         # at most the number of rows in all full runs
    uint32_t *order,            # OUT, n_drawn row indices
) noexcept nogil:
    """Draw ``n_drawn`` rows without replacement from the rows that are not held out, in runs of consecutive rows.

    The rows are divided into runs from a random first row on, wrapping around at the last row. The sample starts at a
    random run and proceeds by a random number of runs, ``step``, again wrapping around. Each row is therefore equally
    likely to be drawn. The drawn runs are then shuffled. Shuffling all rows instead would take time for all rows
    even if few are drawn.
    """
    cdef Py_ssize_t n_runs = n_allowed // run_length
    cdef Py_ssize_t n_drawn_runs = (n_drawn + run_length - 1) // run_length
    cdef Py_ssize_t step = n_runs // 4 + below(counter, <uint32_t> (n_runs // 2 + 1))
    cdef Py_ssize_t current = below(counter, <uint32_t> n_runs)
    cdef Py_ssize_t first = below(counter, <uint32_t> n_allowed) if run_length > 1 else 0
    cdef Py_ssize_t i, j, k
    while not is_coprime(step, n_runs):                   # then all runs are visited before one is repeated
        step += 1
    step %= n_runs
    for i in range(n_drawn_runs):
        j = below(counter, <uint32_t> (i + 1))
        order[i] = order[j]
        order[j] = <uint32_t> current
        current += step
        if current >= n_runs:
            current -= n_runs
    for i in range(n_drawn_runs - 1, -1, -1):             # backwards, because each run overwrites later entries
        j = first + run_length * <Py_ssize_t> order[i]
        for k in range(min(run_length, n_drawn - i * run_length)):
            current = j + k if j + k < n_allowed else j + k - n_allowed
            if current >= held_out.start:
                current += held_out.stop - held_out.start
            order[i * run_length + k] = <uint32_t> current


cdef inline bint is_coprime(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    """Return whether 1 is the greatest common divisor of the two numbers."""
    while b != 0:
        a, b = b, a % b
    return a == 1


cdef void fill_with_replays(
    uint64_t seed,
    Span span,
    int64_t n_seen,
    bint random,
    Span held_out,
    Py_ssize_t n_rows,
    Py_ssize_t n_epochs,
    uint32_t *order,
) noexcept nogil:
    """Write the rows of ``span``, each of them followed by n_epochs - 1 replays.

    The replays are drawn from all rows that are not held out, which includes the rows of ``span``.
    """
    cdef uint64_t key = chain(chain(chain(seed, span.start), span.stop), n_seen)
    cdef uint64_t counter = chain(key, n_epochs)
    cdef Py_ssize_t n_new = span.stop - span.start
    cdef Py_ssize_t n_replays = n_new * (n_epochs - 1)
    cdef Py_ssize_t n_allowed = n_rows - (held_out.stop - held_out.start)
    cdef Py_ssize_t run_length = 1 if random or n_allowed < MIN_ROWS_FOR_RUNS else RUN_LENGTH
    cdef Py_ssize_t n_done = 0
    cdef Py_ssize_t n_drawn, i, j, k
    while n_done < n_replays:
        n_drawn = min(n_allowed - n_allowed % run_length, n_replays - n_done)
        fill_sample(&counter, n_allowed, held_out, run_length, n_drawn, order + n_done)
        n_done += n_drawn
    for i in range(n_new - 1, -1, -1):                    # backwards, so that no replay is overwritten
        for k in range(n_epochs - 1, 0, -1):
            order[i * n_epochs + k] = order[i * (n_epochs - 1) + k - 1]
    for i in range(n_new):
        j = below(&key, <uint32_t> (i + 1)) if random else i
        order[i * n_epochs] = order[j * n_epochs]
        order[j * n_epochs] = <uint32_t> (span.start + i)


def random_order(
    uint64_t seed,
    Py_ssize_t start,
    Py_ssize_t stop,
    int64_t n_seen,
    uint32_t [::1] order,       # OUT, stop - start row indices
):
    """Fill ``order`` with start..stop-1 in a random order that depends only on (seed, start, stop, n_seen)."""
    if order.shape[0] != stop - start:
        raise ValueError(f"order must have {stop - start} entries, got {order.shape[0]}.")
    if stop > start:
        with nogil:
            fill_random_order(seed, Span(start, stop, NULL), n_seen, &order[0])


def order_with_replays(
    uint64_t seed,
    Py_ssize_t start,
    Py_ssize_t stop,
    int64_t n_seen,
    bint random,
    Py_ssize_t held_start,
    Py_ssize_t held_stop,
    Py_ssize_t n_rows,
    Py_ssize_t n_epochs,
    uint32_t [::1] order,       # OUT, n_epochs * (stop - start) row indices
):
    """Fill ``order`` with start..stop-1, each of them followed by n_epochs - 1 replays.

    Replays are random rows among all ``n_rows`` rows except held_start..held_stop-1. If ``random`` is true, the rows
    start..stop-1 are in random order too, otherwise in stored order. The result depends only on the arguments.
    """
    if not 0 <= start <= stop <= n_rows or not 0 <= held_start <= held_stop <= n_rows or n_epochs < 1:
        raise ValueError(
            f"{start}:{stop} and {held_start}:{held_stop} must be ranges of the {n_rows} rows, and "
            "n_epochs at least 1."
        )
    if start < held_stop and held_start < stop:
        raise ValueError(f"rows {start}:{stop} must not be among those held out, {held_start}:{held_stop}.")
    if order.shape[0] != n_epochs * (stop - start):
        raise ValueError(f"order must have {n_epochs * (stop - start)} entries, got {order.shape[0]}.")
    if stop > start:
        with nogil:
            fill_with_replays(
                seed,
                Span(start, stop, NULL),
                n_seen,
                random,
                Span(held_start, held_stop, NULL),
                n_rows,
                n_epochs,
                &order[0],
            )


ctypedef fused Key:
    uint8_t
    uint16_t
    uint32_t


def sort_by_key(
    const uint32_t [::1] rows,  # IN, (n_rows,), row indices
    const Key [::1] keys,       # IN, keys[i] is the key of row i
    int64_t [::1] offsets,      # OUT, (n_keys + 1,): out[offsets[k]:offsets[k + 1]] are the rows of key k
    uint32_t [::1] out,         # OUT, (n_rows,)
):
    """Sort row indices by the keys of the rows; rows with equal keys keep their order (counting sort)."""
    cdef Py_ssize_t n_keys = offsets.shape[0] - 1
    cdef Py_ssize_t i = 0
    cdef int64_t *position
    if out.shape[0] != rows.shape[0] or n_keys < 1:
        raise ValueError("out must be as long as rows, and offsets must have one more entry than there are keys.")
    offsets[:] = 0
    with nogil:
        while i < rows.shape[0] and rows[i] < keys.shape[0] and keys[rows[i]] < n_keys:
            offsets[keys[rows[i]] + 1] += 1
            i += 1
    if i < rows.shape[0]:
        raise IndexError(f"row {rows[i]} has no key below {n_keys}.")
    with nogil:
        for i in range(n_keys):
            offsets[i + 1] += offsets[i]
        for i in range(rows.shape[0]):
            position = &offsets[keys[rows[i]]]
            out[position[0]] = rows[i]
            position[0] += 1                              # after the loop, this is the start of the next key
        for i in range(n_keys, 0, -1):
            offsets[i] = offsets[i - 1]
        offsets[0] = 0


def derive_seed(uint64_t seed, uint64_t label) -> int:
    """Derive from ``seed`` a 64-bit seed for another purpose, which ``label`` identifies."""
    return chain(seed, label)
