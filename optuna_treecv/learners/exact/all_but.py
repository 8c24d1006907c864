"""The moments of all rows but a chunk, for the few chunks of many that need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.moments import merge
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import no_moments
from optuna_treecv.learners.exact.spread import Spread
from optuna_treecv.learners.exact.threads import in_order

_MOST_PARTS = 32


class AllBut:
    """The moments of at most 32 parts of the rows.

    Those of all rows but a chunk are merged from the other parts and from the chunk's own part,
    which is read again without the chunk. Nothing is subtracted.

    Parameters
    ----------
    moments_of : callable
        (rows) -> their moments.
    chunks : Chunks
        Without given training rows.
    n_features, n_columns : int
        The columns of X, and of the moments.
    with_spread : bool
    kept : Kept
    n_jobs : int
    """

    def __init__(
        self,
        moments_of: Callable[[RowNumbers], Moments],
        chunks: Chunks,
        n_features: int,
        n_columns: int,
        with_spread: bool,
        kept: Kept,
        n_jobs: int,
    ) -> None:
        assert chunks.trains is None
        self._moments_of = moments_of
        self._chunks = chunks
        self._n_features, self._n_columns = n_features, n_columns
        self._with_spread = with_spread
        k, n_rows = chunks.n_chunks, int(chunks.bounds[-1])
        # Reading a part costs about as much as factorising a matrix, and all parts together
        # take an eighth of the memory of X at most.
        n_parts = min(max(1, n_rows // max(1024, 16 * n_columns)), _MOST_PARTS, k)
        self._ends = np.linspace(0, k, n_parts + 1).astype(int)
        size = 1 + n_columns + n_columns**2 + (1 + 4 * n_features if with_spread else 0)

        def make(memory: np.ndarray) -> None:
            parts = in_order(n_jobs, self._of_part, range(n_parts))
            for record, one in zip(memory.reshape(n_parts, size), parts, strict=True):
                _write(one, record)

        memory = kept("parts of all rows", n_parts * size, make).reshape(n_parts, size)
        self._parts = [self._read(record) for record in memory]
        first = slice(0, int(chunks.bounds[0]))
        self._always = [moments_of(first)] if first.stop else []

    def all_rows(self) -> Moments:
        """Return the moments of all rows."""
        return self._merged([*self._always, *self._parts])

    def without(self, chunk: int) -> Moments:
        """Return the moments of all rows but those of a chunk."""
        own = int(np.searchsorted(self._ends, chunk, side="right")) - 1
        rest = [
            self._moments_of(self._chunks.test_rows(first, last))
            for first, last in ((self._ends[own], chunk), (chunk + 1, self._ends[own + 1]))
            if self._chunks.bounds[first] < self._chunks.bounds[last]
        ]
        return self._merged([*self._always, *self._parts[:own], *rest, *self._parts[own + 1 :]])

    def _merged(self, some: list[Moments]) -> Moments:
        nothing = no_moments(self._n_columns, self._n_features if self._with_spread else None)
        return reduce(merge, some, nothing)

    def _of_part(self, number: int) -> Moments:
        first, last = self._ends[number : number + 2]
        return self._moments_of(self._chunks.test_rows(first, last))

    def _read(self, record: np.ndarray) -> Moments:
        d, c = self._n_features, self._n_columns
        mean, scatter, spread = np.split(record[1:], [c, c + c * c])
        return Moments(
            float(record[0]),
            mean,
            scatter.reshape(c, c),
            Spread(int(spread[0]), *spread[1:].reshape(4, d)) if self._with_spread else None,
        )


def _write(moments: Moments, record: np.ndarray) -> None:
    """Write moments into a flat array."""
    numbers: list[Any] = [[moments.weight], moments.mean, moments.scatter.ravel()]
    if moments.spread is not None:
        n_rows, *columns = moments.spread
        numbers += [[n_rows], *columns]
    np.concatenate(numbers, out=record)
