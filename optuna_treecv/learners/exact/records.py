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
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield the records of consecutive chunks that are tested together, and the first chunk.

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
    each: Iterator[np.ndarray]
    if 8 * size * k <= _MOST_BYTES:

        def fill(memory: np.ndarray) -> None:
            for place, record in zip(memory.reshape(k, size), make(), strict=True):
                place[:] = record

        each = iter(kept(name, size * k, fill).reshape(k, size))
    else:
        each = iter(make())
    held = max(1, _MOST_BYTES // (8 * size))
    first = 0
    while first < k:
        most = np.searchsorted(chunks.bounds, chunks.bounds[first] + most_rows, side="right")
        last = max(first + 1, min(int(most) - 1, first + held, k))
        yield first, list(islice(each, last - first))
        first = last
