"""Estimators of one class whose models follow from additive statistics, and their folds.

A family is bound to prepared rows and to several estimators that differ in few parameters, such as
``alpha``. Each of these estimators is a *point*. The moments of rows are collected (``Source``)
and merged; a family solves those of a fold's training rows for a *record*, a flat array that
serves all points, reads their models from it, and responds to the test rows.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache
from functools import partial
from itertools import islice
from math import prod
from threading import Lock
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler
from threadpoolctl import ThreadpoolController

from optuna_treecv.numerics.moments import BLOCK
from optuna_treecv.numerics.moments import blocks
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import Keep
from optuna_treecv.numerics.moments import mapped
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_of_folds
from optuna_treecv.numerics.moments import n_rows_of
from optuna_treecv.numerics.moments import Source
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.moments import TrainAndTest
from optuna_treecv.numerics.moments import views
from optuna_treecv.rows.data import PreparedRows

# The bytes of the records of all folds that are held, and kept.
_MOST_BYTES = 2**27

#: A matrix of d x d numbers for each fold, and more of them while it is factorised: 800 MB.
MOST_COLUMNS = 5000


class Facts(NamedTuple):
    """What is known of an evaluation before its rows are prepared.

    Attributes
    ----------
    n_features : int
    is_sparse : bool
    has_weights : bool
        Whether rows have weights in training.
    n_trained : int
        The rows of the smallest training set.
    n_of_class : int
        The rows of the rarest class in any training set; ``n_trained`` without classes.
    n_folds : int
        The models of a repeat; 0 if unknown.
    is_asked : bool
        Whether exact folds were asked for by name, or no other engine can take the rows.
    is_searched : bool
        Whether several values of a parameter of the family are evaluated.
    n_outputs : int
        The number of classes, or of targets.
    has_scaler : bool
        Whether a StandardScaler stands before the estimator.
    """

    n_features: int
    is_sparse: bool
    has_weights: bool
    n_trained: int
    n_of_class: int
    n_folds: int = 0
    is_asked: bool = False
    n_outputs: int = 1
    is_searched: bool = False
    has_scaler: bool = False


class Family(ABC):
    """Several estimators bound to rows.

    Parameters
    ----------
    estimators : sequence of estimators
        Those of scikit-learn. They differ in ``parameters`` alone.
    rows : PreparedRows
        Padded and without a column of ones; X may be sparse. ``targets`` are class codes, or
        numbers of shape (n_rows,) or (n_rows, n_targets).
    scaler : StandardScaler or None
        Stands before the estimators, and is fitted on the training rows of each fold.
    n_jobs : int
        The number of threads. No number depends on it.

    Attributes
    ----------
    parameters : tuple of str
        Those in which the estimators may differ.
    idle : tuple of str
        The parameters of iterative solvers, which do not act on models that have converged.
    is_slow_left_out : bool
        Whether each row that is left out takes a search.
    maps_dense_rows : bool
        Whether steps that do something else in each fold need dense rows.
    n_points : int
    n_distinct : int
        The first points, which are computed; the others have the same models.
    """

    parameters: tuple[str, ...]
    idle: tuple[str, ...] = ()
    is_slow_left_out = False
    maps_dense_rows = False

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        self.n_points = self.n_distinct = len(estimators)
        #: (rows) -> the same bound to other rows, in one thread.
        self.make = partial(type(self), estimators, scaler=scaler, n_jobs=1)
        self.rows = self._rows = rows
        self._scaler, self._n_jobs = scaler, n_jobs
        self._bind(estimators)

    @abstractmethod
    def _bind(self, estimators: Sequence[Any]) -> None:
        """Set what follows from the estimators."""

    @classmethod
    @abstractmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why an estimator is not of the family here, a clause; "" if it is."""

    @classmethod
    def idle_of(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return which parameters do not act here; none if scikit-learn's solver is direct."""
        return cls.idle

    @abstractmethod
    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the response that follows from a model's outputs.

        Parameters
        ----------
        outputs : ndarray of shape (n_rows, n_outputs)
        method : {"predict", "decision_function", "predict_proba"}

        Returns
        -------
        ndarray
            As the estimator's method would; "predict" of classifiers gives class codes.
        """

    def squares(
        self, chunks: Chunks, keep: Keep
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squares of the rows that are scored together, without any outputs.

        Returns
        -------
        errors : ndarray of shape (n_points, n_scored, n_targets)
            sum w (y - prediction)^2, of the rows between two of ``chunks.ends``.
        totals : ndarray of shape (n_scored, n_targets)
            sum w (y - mean)^2, with the mean of the test rows.
        weights : ndarray of shape (n_scored,)
            sum w.
            Or None if that is not possible.
        """
        return None

    @abstractmethod
    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk with models that are trained on its training rows.

        Parameters
        ----------
        chunks : Chunks
        keep : callable
        most_rows : int
            The most test rows that should be yielded together. A chunk is never divided.

        Yields
        ------
        (slice, ndarray of shape (n_points, n_rows, n_outputs))
            Consecutive chunks, from the first to the last one, and what models say of their rows.

        Raises
        ------
        ValueError
            If a model is not defined on its training rows.
        """


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
        each = (
            self.models(views(record, self.shapes), chunks, chunk)
            for chunk, record in enumerate(records, first)
        )
        return self.tested(chunks, first, first + len(records), each)

    def models_of(self, chunks: Chunks, keep: Keep) -> list[Any]:
        """Return the models of each chunk."""
        return [
            self.models(views(record, self.shapes), chunks, chunk)
            for first, records in self.records(chunks, keep, int(chunks.bounds[-1]))
            for chunk, record in enumerate(records, first)
        ]

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


def decisions_of(outputs: np.ndarray, method: str) -> np.ndarray:
    """Return class codes or decision values; of two classes there is one output."""
    if outputs.shape[1] > 1:
        return largest_class(outputs) if method == "predict" else outputs
    return (outputs[:, 0] > 0).astype(np.intp) if method == "predict" else outputs[:, 0]


def largest_class(outputs: np.ndarray) -> np.ndarray:
    """Return the first largest output of each row, as ``argmax`` does.

    The outputs of a class are next to each other in memory, so that comparing one class with the
    next takes less time.
    """
    best, codes = outputs[:, 0].copy(), np.zeros(len(outputs), dtype=np.intp)
    for code in range(1, outputs.shape[1]):
        is_larger = outputs[:, code] > best
        np.copyto(best, outputs[:, code], where=is_larger)
        codes[is_larger] = code
    return codes


_lock = Lock()
_n_inside = 0
_before: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    """Return the libraries with BLAS; looking for them takes 40 ms."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread in this block, so that its sums do not depend on the machine's load.

    The limit holds for the process. The first thread that enters sets it, and the last one that
    leaves lifts it.
    """
    global _n_inside
    with _lock:
        _n_inside += 1
        if _n_inside == 1:
            _before[:] = [(one, one.get_num_threads()) for one in _libraries()]
            for one, _ in _before:
                one.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                for one, n_threads in _before:
                    one.set_num_threads(n_threads)
