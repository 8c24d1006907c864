"""What linear and quadratic discriminant analysis share: folds from the moments of classes."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from functools import reduce
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.class_moments import check_classes
from optuna_treecv.learners.exact.class_moments import class_moments_of
from optuna_treecv.learners.exact.class_moments import ClassMoments
from optuna_treecv.learners.exact.class_moments import merge_classes
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.family import Tested
from optuna_treecv.learners.exact.records import records_in_groups
from optuna_treecv.learners.exact.threads import in_order
from optuna_treecv.learners.exact.training_sums import FoldSums
from optuna_treecv.learners.exact.training_sums import training_sums
from optuna_treecv.rows.data import PreparedRows

#: What is left of a row's leverage, 1 - h, below which a shortcut for leaving it out loses digits.
LEAST_LEFT = 1e-3

#: A matrix of d x d numbers for each fold, and more of them while it is factorised: 800 MB.
MOST_COLUMNS = 5000

# The rows that one thread reads at a time.
_ROWS = 2**16

# With a scaler, the model without each row has a factorisation of its own.
_MOST_ROWS_SCALED = 2000


class DiscriminantFolds(ABC):
    """Models of each fold from the moments of its classes.

    A subclass has ``least_of_class``, the fewest rows of a class, and turns moments into a
    *record*, a flat array of ``_size()`` numbers that serves all points.
    """

    least_of_class: int

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        assert rows.classes is not None
        self.n_points = len(estimators)
        self._classes = rows.classes
        self._n_classes = len(rows.classes)
        self.n_outputs = self._n_classes
        self._rows = rows
        self._scaler = scaler
        self._n_jobs = n_jobs
        self._priors: np.ndarray | None = None
        if estimators[0].priors is not None:
            self._priors = np.array(estimators[0].priors, dtype=np.float64)
            if self._priors.shape != (self._n_classes,):
                raise ValueError(
                    f"priors must have a number for each of the {self._n_classes} classes, got "
                    f"{estimators[0].priors!r}."
                )
        # Points that give the same models are computed once.
        self._n_distinct = self.n_points
        self._are_pooled = False

    @classmethod
    def _why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reasons that both families share."""
        if estimator.covariance_estimator is not None:
            return "covariance_estimator learns from the rows"
        if facts.is_sparse:
            return f"{type(estimator).__name__} takes no sparse rows"
        if facts.has_weights:
            return f"{type(estimator).__name__} takes no weights"
        if estimator.priors is not None and np.min(estimator.priors) <= 0:
            return "a prior is not above 0"
        if facts.n_of_class < cls.least_of_class:
            few = "no row" if facts.n_of_class == 0 else "only one row"
            return f"a training set has {few} of a class"
        if facts.n_features > MOST_COLUMNS:
            return f"X has more than {MOST_COLUMNS} columns"
        if facts.n_features >= facts.n_trained:
            return "X has more columns than a training set has rows"
        return ""

    @staticmethod
    def _why_not_scaled(facts: Facts) -> str:
        """Return why a scaler is in the way of leaving out single rows."""
        is_each_row = facts.n_folds > facts.n_trained
        if facts.has_scaler and is_each_row and facts.n_folds > _MOST_ROWS_SCALED:
            return (
                f"a StandardScaler without each of more than {_MOST_ROWS_SCALED} rows takes long, "
                "where KFold(1000) would not"
            )
        return ""

    @abstractmethod
    def _size(self) -> int:
        """Return how many numbers the record of a fold has."""

    @abstractmethod
    def _fill(self, record: np.ndarray, train: ClassMoments) -> None:
        """Fill the record of a fold from the moments of its training rows."""

    @abstractmethod
    def _say(self, record: np.ndarray, numbers: RowNumbers, out: np.ndarray) -> None:
        """Write what a fold's models say of rows, (n_distinct, n_outputs, n_rows)."""

    @abstractmethod
    def _size_of_all(self) -> int:
        """Return how many numbers the record of all rows has."""

    @abstractmethod
    def _fill_from_all(self, record: np.ndarray, moments: ClassMoments) -> None:
        """Fill the record of all rows, each of which is left out in its turn."""

    @abstractmethod
    def _leave(self, record: np.ndarray) -> Any:
        """Return what is needed to leave out rows."""

    @abstractmethod
    def _doubtful(self, leave: Any, part: slice) -> np.ndarray:
        """Return the numbers of the rows whose scores the shortcut may get wrong."""

    @abstractmethod
    def _scores_left_out(self, leave: Any, part: slice) -> np.ndarray:
        """Return what models say of rows that are left out, (n_distinct, n_outputs, n_rows)."""

    @property
    def _needs_scale(self) -> bool:
        """Whether a scaler changes the models."""
        return self._scaler is not None

    def squares(self, chunks: Chunks, kept: Kept) -> None:
        """Return None: scores of classes are no sums of squares."""
        return None

    def test(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each chunk with models that are trained on its training rows."""
        if chunks.are_single_rows and not self._needs_scale:
            yield from self._by_row(chunks, kept, most_rows)
        else:
            yield from self._by_fold(chunks, kept, most_rows)

    def _by_fold(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each chunk with models from the merged moments of its training rows."""
        make = partial(self._records, chunks, None)
        groups = records_in_groups(chunks, kept, "folds", self._size(), make, most_rows)
        yield from in_order(self._n_jobs, partial(self._test_group, chunks), groups)

    def _test_group(self, chunks: Chunks, group: tuple[int, np.ndarray]) -> Tested:
        first, records = group
        said = [self._test_one(chunks, None, fold) for fold in enumerate(records, first)]
        return self._tested(first, first + len(records), said)

    def _by_row(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test single rows with models of all rows that leave them out."""

        def make(memory: np.ndarray) -> None:
            self._fill_from_all(memory, self._moments_of_all())

        leave = self._leave(kept("all rows", self._size_of_all(), make))
        parts = slices(chunks.n_rows, most_rows)
        doubtful = partial(self._doubtful, leave)
        directly = np.concatenate(list(in_order(self._n_jobs, doubtful, parts)))
        if 2 * len(directly) > chunks.n_rows:
            yield from self._by_fold(chunks, kept, most_rows)
            return
        said = self._without(directly)
        score = partial(self._scores_left_out, leave)
        for part, out in zip(parts, in_order(self._n_jobs, score, parts), strict=True):
            inside = slice(*np.searchsorted(directly, [part.start, part.stop]))
            out[:, :, directly[inside] - part.start] = said[:, :, inside]
            yield self._tested(part.start, part.stop, [out])

    def _without(self, numbers: np.ndarray) -> np.ndarray:
        """Return what models say of rows that are left out one by one, from merged moments.

        Parameters
        ----------
        numbers : ndarray of int

        Returns
        -------
        ndarray of shape (n_distinct, n_outputs, len(numbers))
        """
        n = len(self._rows.order)
        if len(numbers) == 0:
            return np.empty((self._n_distinct, self.n_outputs, 0))
        is_other = np.ones(n, dtype=bool)
        is_other[numbers] = False
        order = np.concatenate([np.flatnonzero(is_other), numbers])
        chunks = Chunks(n, np.arange(n - len(numbers), n + 1))
        records = self._records(chunks, order)
        return np.concatenate(list(self._test_each(chunks, records, order)), axis=2)

    def _moments_of_all(self) -> ClassMoments:
        """Return the moments of all rows, each of which will be left out."""

        def moments_of(part: RowNumbers) -> ClassMoments:
            return class_moments_of(self._rows, part, self._are_pooled, with_spread=False)

        parts = slices(len(self._rows.order), _ROWS)
        moments = reduce(merge_classes, in_order(self._n_jobs, moments_of, parts))
        check_classes(moments.counts - 1, self._classes, self.least_of_class)
        return moments

    def _records(self, chunks: Chunks, order: np.ndarray | None) -> Iterator[np.ndarray]:
        """Yield the record of each fold; ``order[i]`` is the row behind row i of the chunks."""

        def sums_of(part: RowNumbers) -> ClassMoments:
            behind = part if order is None else order[part]
            return class_moments_of(self._rows, behind, self._are_pooled, self._needs_scale)

        d = self._rows.n_features
        n_bytes = 8 * d * d * (1 if self._are_pooled else self._n_classes)
        sums = training_sums(sums_of, merge_classes, chunks, n_bytes, self._n_jobs)
        yield from in_order(self._n_jobs, self._record, sums)

    def _record(self, sums: FoldSums[ClassMoments]) -> np.ndarray:
        return self._record_of(sums.train)

    def _record_of(self, train: ClassMoments) -> np.ndarray:
        check_classes(train.counts, self._classes, self.least_of_class)
        record = np.empty(self._size())
        self._fill(record, train)
        return record

    def _test_each(
        self, chunks: Chunks, records: Iterator[np.ndarray], order: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """Yield what each fold's models say of its test rows."""
        function = partial(self._test_one, chunks, order)
        return in_order(self._n_jobs, function, enumerate(records))

    def _test_one(
        self, chunks: Chunks, order: np.ndarray | None, fold: tuple[int, np.ndarray]
    ) -> np.ndarray:
        chunk, record = fold
        numbers = chunks.test_rows(chunk, chunk + 1)
        out = np.empty((self._n_distinct, self.n_outputs, int(chunks.sizes[chunk])))
        self._say(record, numbers if order is None else order[numbers], out)
        return out

    def _tested(self, first: int, last: int, said: list[np.ndarray]) -> Tested:
        """Return what models said, (n_distinct, n_outputs, n_rows) each, for all points."""
        outputs = said[0] if len(said) == 1 else np.concatenate(said, axis=2)
        shape = (self.n_points, *outputs.shape[1:])
        return Tested(first, last, np.broadcast_to(outputs, shape).transpose(0, 2, 1))


def slices(n_rows: int, size: int) -> list[slice]:
    """Return slices of ``size`` rows."""
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def split_record(record: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return views of the arrays that follow each other in a record."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = np.split(record[: ends[-1]], ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
