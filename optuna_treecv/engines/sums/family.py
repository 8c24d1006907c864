"""Families of estimators whose models follow from moments, and their folds.

The moments of rows are collected (``Source``) and merged; a family solves those of a fold's
training rows for a *record*, a flat array that serves all points, reads their models from it, and
responds to the test rows.
"""

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import Keep
from optuna_treecv.numerics.moments import mapped
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_of_folds
from optuna_treecv.numerics.moments import Source
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.moments import TrainAndTest
from optuna_treecv.numerics.moments import views
from optuna_treecv.numerics.spread import BLOCK
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import n_rows_of
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Family

# The bytes of the records of all folds that are held, and kept.
_MOST_BYTES = 2**27

#: A matrix of d x d numbers for each fold, and more of them while it is factorised: 800 MB.
MOST_COLUMNS = 5000


class MomentFamily(Family):
    """Models that follow from the moments of training rows.

    Attributes
    ----------
    n_outputs : int
        How many numbers a model says of a row.
    source : Source
        The rows that moments are taken of.
    shapes : list of tuple of int
        The shapes of a record's parts.
    size : int
        How many numbers a record has.
    rows_at_once : int
        The test rows that ``respond`` gets at once.
    has_ones : bool
        Whether a column of ones follows their features.
    """

    n_outputs: int
    source: Source
    shapes: list[tuple[int, ...]]
    rows_at_once = BLOCK
    has_ones = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.source.make = self.make
        self.size = sum(map(prod, self.shapes))

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause."""
        if facts.n_features > MOST_COLUMNS:
            return f"X has more than {MOST_COLUMNS} columns"
        if facts.n_features >= facts.n_trained:
            return "X has more columns than a training set has rows"
        return ""

    @abstractmethod
    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Fill the parts of a record from the moments of training rows.

        Raises
        ------
        ValueError
            If a model is not defined on these rows.
        """

    @abstractmethod
    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> Any:
        """Return the models of all points, as ``respond`` takes them.

        Parameters
        ----------
        parts : list of ndarray
            Those of a record.
        chunks : Chunks
        chunk : int
            The one whose training rows the record is of.

        Raises
        ------
        ValueError
            If a model is not defined on these rows.
        """

    @abstractmethod
    def respond(self, models: Any, block: np.ndarray, out: np.ndarray) -> None:
        """Write what models say of a block of rows, which may be overwritten.

        Parameters
        ----------
        models : object
        block : ndarray of shape (n_rows, n_features), with a column of ones if ``has_ones``
        out : ndarray of shape (n_distinct, n_outputs, n_rows)
        """

    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk with models that follow from the moments of its training rows."""
        groups = self.records(chunks, keep, most_rows)
        yield from in_order(self._n_jobs, partial(self._test, chunks), groups)

    def records(
        self, chunks: Chunks, keep: Keep, most_rows: int, with_test: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first of several consecutive chunks and their records, (n_chunks, size).

        These chunks are tested together. They are kept for further points if they are small. With
        ``with_test``, the moments of the test rows follow in each record.
        """
        k, size = chunks.n_chunks, self.size + (self.source.n_numbers if with_test else 0)
        memory = None
        if 8 * size * k <= _MOST_BYTES:

            def fill(array: np.ndarray) -> None:
                for i, record in enumerate(self._solved(chunks, keep, size)):
                    array[i * size : (i + 1) * size] = record

            name = "folds with their test rows" if with_test else "folds"
            memory = keep(name, size * k, fill).reshape(k, size)
        each = iter(self._solved(chunks, keep, size) if memory is None else ())
        most_chunks = max(1, _MOST_BYTES // (8 * size))
        for first, last in chunks.groups(most_rows, most_chunks):
            if memory is None:
                yield first, np.stack(list(islice(each, last - first)))
            else:
                yield first, memory[first:last]

    def _solved(self, chunks: Chunks, keep: Keep, size: int) -> Iterable[np.ndarray]:
        """Return the record of each chunk, one after another."""

        def record_of(moments: TrainAndTest) -> np.ndarray:
            record, (train, test) = np.empty(size), moments
            self.solve(train, views(record, self.shapes))
            if with_test and test is not None:
                self.source.write(test, record[self.size :])
            return record

        with_test = size > self.size
        of_folds = moments_of_folds(self.source, chunks, keep, self._n_jobs, with_test)
        if (maps := self._rows.maps) is not None:
            of_folds = (
                (mapped(train, maps, chunk), None if test is None else mapped(test, maps, chunk))
                for chunk, (train, test) in enumerate(of_folds)
            )
        return in_order(self._n_jobs, record_of, of_folds)

    def _test(self, chunks: Chunks, group: tuple[int, np.ndarray]) -> TestedChunks:
        """Return what the models of a group of chunks say of their test rows."""
        first, records = group
        return self.tested(chunks, first, first + len(records), self._models_of(chunks, *group))

    def _models_of(self, chunks: Chunks, first: int, records: np.ndarray) -> Iterator[Any]:
        """Yield the models of some chunks from their records."""
        for chunk, record in enumerate(records, first):
            yield self.models(views(record, self.shapes), chunks, chunk)

    def models_of(self, chunks: Chunks, keep: Keep) -> list[Any]:
        """Return the models of each chunk."""
        groups = self.records(chunks, keep, int(chunks.bounds[-1]))
        return [one for group in groups for one in self._models_of(chunks, *group)]

    def tested(self, chunks: Chunks, first: int, last: int, models: Iterable[Any]) -> TestedChunks:
        """Return what the models of the chunks first to last - 1 say of their test rows."""
        bounds = chunks.bounds[first : last + 1]
        out = np.empty((self.n_distinct, self.n_outputs, bounds[-1] - bounds[0]))
        d, end = self._rows.n_features, 0
        most = min(self.rows_at_once, int(np.diff(bounds).max()))
        buffer = np.ones((most, d + 1 if self.has_ones else d))
        for chunk, of_chunk in enumerate(models, first):
            for some in blocks(chunks.test_rows(chunk, chunk + 1), self.rows_at_once):
                begin, end = end, end + n_rows_of(some)
                block = buffer[: end - begin]
                copy_rows(self._rows, some, block[:, :d], chunk)
                self.respond(of_chunk, block, out[:, :, begin:end])
        outputs = np.broadcast_to(out, (self.n_points, *out.shape[1:]))
        return slice(first, last), outputs.transpose(0, 2, 1)
