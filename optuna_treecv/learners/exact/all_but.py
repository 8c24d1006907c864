"""The moments of each fold's training rows, from one reading of all rows.

All rows but a chunk are those before it and those after it, so that k folds take 2 k merges.
Nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import isqrt

import numpy as np

from optuna_treecv.learners.exact.chunks import Chunks
from optuna_treecv.learners.exact.chunks import Keep
from optuna_treecv.learners.exact.moments import merge
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import Source
from optuna_treecv.learners.exact.threads import in_order

#: The bytes of moments that are held at once.
MOST_BYTES = 2**28

_MOST_PARTS = 32

#: Of one chunk: the moments of its training rows and, where they are needed, of its test rows.
TrainAndTest = tuple[Moments, Moments | None]


def moments_of_folds(
    source: Source, chunks: Chunks, n_jobs: int, with_test: bool
) -> Iterator[TrainAndTest]:
    """Yield the moments of each chunk's training and test rows, chunk after chunk.

    Where those of all chunks would take too much memory, they are held for groups of about sqrt(k)
    chunks, and each chunk is read twice.
    """
    if chunks.trains is None and chunks.n_chunks == 1:
        chunks = replace(chunks, trains=[int(chunks.bounds[0])])
    if chunks.trains is not None:
        yield from _of_given(source, chunks, n_jobs, with_test)
        return
    bounds, k = chunks.bounds, chunks.n_chunks

    def of_chunk(chunk: int) -> Moments:
        return source.collect(chunks.test_rows(chunk, chunk + 1))

    before = [source.collect(slice(0, int(bounds[0])))] if bounds[0] else []
    if 16 * k * source.n_numbers <= MOST_BYTES:
        yield from _all_but_each(of_chunk, range(k), before, n_jobs)
        return
    size = isqrt(k)
    groups = [range(first, min(first + size, k)) for first in range(0, k, size)]

    def of_group(number: int) -> Moments:
        return source.collect(chunks.test_rows(groups[number].start, groups[number].stop))

    outside = _all_but_each(of_group, range(len(groups)), before, n_jobs)
    for group, (rest, _) in zip(groups, outside, strict=True):
        yield from _all_but_each(of_chunk, group, [rest], n_jobs)


def _all_but_each(
    of_one: Callable[[int], Moments], numbers: range, outside: list[Moments], n_jobs: int
) -> Iterator[TrainAndTest]:
    """Yield the moments of all but each one, and its own; ``outside`` belongs to all of them."""
    each = list(in_order(n_jobs, of_one, numbers))
    after = each[-1:]  # of the last one, the last two, ...
    for one in each[-2:0:-1]:
        after.append(merge(one, after[-1]))
    before = list(outside)
    for number, own in zip(numbers, each, strict=True):
        rest = before + ([] if number == numbers[-1] else [after.pop()])
        yield reduce(merge, rest), own
        before = [merge(before[0], own)] if before else [own]


def _of_given(
    source: Source, chunks: Chunks, n_jobs: int, with_test: bool
) -> Iterator[TrainAndTest]:
    """Yield the moments of given training rows; growing first parts of the rows are read once."""
    trains = chunks.trains
    assert trains is not None
    sizes = [one for one in trains if isinstance(one, int)]
    grow = len(sizes) == len(trains) and bool(np.all(np.diff(sizes) >= 0))

    def added(chunk: int) -> Moments:
        rows = trains[chunk]
        if not isinstance(rows, int):
            return source.collect(rows)
        return source.collect(slice(sizes[chunk - 1] if grow and chunk else 0, rows))

    so_far: list[Moments] = []
    for chunk, own in enumerate(in_order(n_jobs, added, range(chunks.n_chunks))):
        so_far = [merge(so_far[0], own)] if grow and so_far else [own]
        yield so_far[0], source.collect(chunks.test_rows(chunk, chunk + 1)) if with_test else None


class AllBut:
    """The moments of at most 32 parts of the rows, for the few chunks that are left out directly.

    Those of all rows but a chunk are merged from the other parts and from the chunk's own part,
    which is read again without the chunk.

    Parameters
    ----------
    source : Source
    chunks : Chunks
        Without given training rows.
    keep : callable
    n_jobs : int
    """

    def __init__(self, source: Source, chunks: Chunks, keep: Keep, n_jobs: int) -> None:
        assert chunks.trains is None
        self._source, self._chunks = source, chunks
        k, n_rows = chunks.n_chunks, int(chunks.bounds[-1])
        # Reading a part costs about as much as factorising a matrix, and all parts together
        # take an eighth of the memory of X at most.
        n_parts = min(max(1, n_rows // max(1024, 16 * source.n_columns)), _MOST_PARTS, k)
        self._ends = np.linspace(0, k, n_parts + 1).astype(int)
        size = source.n_numbers

        def make(memory: np.ndarray) -> None:
            tested = [chunks.test_rows(*ends) for ends in pairwise(self._ends.tolist())]
            parts = in_order(n_jobs, source.collect, tested)
            for record, one in zip(memory.reshape(n_parts, size), parts, strict=True):
                source.write(one, record)

        memory = keep("parts of all rows", n_parts * size, make).reshape(n_parts, size)
        self._parts = [source.view(record) for record in memory]
        first = slice(0, int(chunks.bounds[0]))
        self._always = [source.collect(first)] if first.stop else []

    def all_rows(self) -> Moments:
        """Return the moments of all rows."""
        return self._merged([*self._always, *self._parts])

    def without(self, chunk: int) -> Moments:
        """Return the moments of all rows but those of a chunk."""
        own = int(np.searchsorted(self._ends, chunk, side="right")) - 1
        rest = [
            self._source.collect(self._chunks.test_rows(first, last))
            for first, last in ((self._ends[own], chunk), (chunk + 1, self._ends[own + 1]))
            if self._chunks.bounds[first] < self._chunks.bounds[last]
        ]
        return self._merged([*self._always, *self._parts[:own], *rest, *self._parts[own + 1 :]])

    def _merged(self, some: list[Moments]) -> Moments:
        return reduce(merge, some, self._source.nothing())
