"""What the models of each fold are made from: flat arrays, kept for further points if small."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from itertools import islice

import numpy as np

from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Kept

# The bytes of the records of all folds that are held, and kept.
_MOST_BYTES = 2**27


def records_in_groups(
    chunks: Chunks,
    kept: Kept,
    name: str,
    size: int,
    make: Callable[[], Iterable[np.ndarray]],
    most_rows: int,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first of several consecutive chunks and their records, (n_chunks, size).

    These chunks are tested together.

    Parameters
    ----------
    chunks : Chunks
    kept : Kept
    name : str
        Under which the records are kept.
    size : int
        The numbers of one record.
    make : callable
        () -> the record of each chunk, one after another.
    most_rows : int
        The most test rows of several chunks.
    """
    k = chunks.n_chunks
    memory = None
    if 8 * size * k <= _MOST_BYTES:

        def fill(array: np.ndarray) -> None:
            for place, record in zip(array.reshape(k, size), make(), strict=True):
                place[:] = record

        memory = kept(name, size * k, fill).reshape(k, size)
    each = iter(make()) if memory is None else iter(())
    held = max(1, _MOST_BYTES // (8 * size))
    first = 0
    while first < k:
        most = np.searchsorted(chunks.bounds, chunks.bounds[first] + most_rows, side="right")
        last = max(first + 1, min(int(most) - 1, first + held, k))
        if memory is None:
            yield first, np.stack(list(islice(each, last - first)))
        else:
            yield first, memory[first:last]
        first = last
