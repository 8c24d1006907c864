"""The sums of each fold's training rows, from one reading of all rows.

All rows but a chunk are those before it and those after it, so that k folds take 2 k merges.
Nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from math import isqrt
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

import numpy as np

from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.threads import in_order

Sums = TypeVar("Sums")

#: The bytes of sums that are held at once.
MOST_BYTES = 2**28


class FoldSums(NamedTuple, Generic[Sums]):
    """The sums of a chunk's training rows and of its test rows.

    Attributes
    ----------
    chunk : int
    train : sums
    test : sums or None
        None where they were not needed.
    """

    chunk: int
    train: Sums
    test: Sums | None


def training_sums(
    sums_of: Callable[[RowNumbers], Sums],
    merge: Callable[[Sums, Sums], Sums],
    chunks: Chunks,
    n_bytes: int,
    n_jobs: int,
    with_test: bool = False,
) -> Iterator[FoldSums[Sums]]:
    """Yield the sums of each chunk's training rows, chunk after chunk.

    Parameters
    ----------
    sums_of : callable
        (rows) -> their sums.
    merge : callable
        (sums, sums) -> the sums of both together. Neither is changed.
    chunks : Chunks
    n_bytes : int
        The size of one set's sums. Where those of all chunks would take too much memory, they
        are held for groups of about sqrt(k) chunks, and each chunk is read twice.
    n_jobs : int
    with_test : bool
        Whether the sums of the test rows are needed too.
    """
    if chunks.trains is not None:
        yield from _of_given(sums_of, merge, chunks, n_jobs, with_test)
        return
    bounds = chunks.bounds

    def of_chunk(chunk: int) -> Sums:
        return sums_of(chunks.test_rows(chunk, chunk + 1))

    before = [sums_of(slice(0, int(bounds[0])))] if bounds[0] else []
    k = chunks.n_chunks
    if k == 1 and before:
        yield FoldSums(0, before[0], of_chunk(0) if with_test else None)
        return
    if 2 * k * n_bytes <= MOST_BYTES:
        yield from _within(of_chunk, merge, range(k), before, n_jobs, with_test)
        return
    size = isqrt(k)
    groups = [range(first, min(first + size, k)) for first in range(0, k, size)]

    def of_group(number: int) -> Sums:
        return sums_of(chunks.test_rows(groups[number].start, groups[number].stop))

    for group, outside, _ in _within(
        of_group, merge, range(len(groups)), before, n_jobs, with_test=False
    ):
        yield from _within(of_chunk, merge, groups[group], [outside], n_jobs, with_test)


def _within(
    of_one: Callable[[int], Sums],
    merge: Callable[[Sums, Sums], Sums],
    numbers: range,
    outside: list[Sums],
    n_jobs: int,
    with_test: bool,
) -> Iterator[FoldSums[Sums]]:
    """Yield the sums of all but each one; ``outside`` belongs to all of them."""
    each = list(in_order(n_jobs, of_one, numbers))
    after: list[Sums] = each[-1:]  # of the last one, the last two, ...
    for one in each[-2:0:-1]:
        after.append(merge(one, after[-1]))
    before = list(outside)
    for number, own in zip(numbers, each, strict=True):
        rest = before + ([] if number == numbers[-1] else [after.pop()])
        train = rest[0] if len(rest) == 1 else merge(*rest)
        yield FoldSums(number, train, own if with_test else None)
        before = [merge(before[0], own)] if before else [own]


def _of_given(
    sums_of: Callable[[RowNumbers], Sums],
    merge: Callable[[Sums, Sums], Sums],
    chunks: Chunks,
    n_jobs: int,
    with_test: bool,
) -> Iterator[FoldSums[Sums]]:
    """Yield the sums of given training rows; growing first parts of the rows are read once."""
    trains = chunks.trains
    assert trains is not None
    sizes = [one for one in trains if isinstance(one, int)]
    grow = len(sizes) == len(trains) and bool(np.all(np.diff(sizes) >= 0))

    def added(chunk: int) -> Sums:
        rows = trains[chunk]
        if not isinstance(rows, int):
            return sums_of(rows)
        return sums_of(slice(sizes[chunk - 1] if grow and chunk else 0, rows))

    so_far: list[Sums] = []
    for chunk, own in enumerate(in_order(n_jobs, added, range(chunks.n_chunks))):
        so_far = [merge(so_far[0], own)] if grow and so_far else [own]
        test = sums_of(chunks.test_rows(chunk, chunk + 1)) if with_test else None
        yield FoldSums(chunk, so_far[0], test)
