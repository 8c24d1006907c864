"""What naive Bayes of counts shares: the sums by class of each fold's training rows.

A fold's sums are those of all rows minus those of its chunk (``split_sums.py``), and only the
columns are computed in which the chunk has numbers.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import logsumexp
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.family import Tested
from optuna_treecv.learners.exact.nonzeros import BLOCK
from optuna_treecv.learners.exact.nonzeros import count_nonzeros
from optuna_treecv.learners.exact.nonzeros import Nonzeros
from optuna_treecv.learners.exact.nonzeros import nonzeros
from optuna_treecv.learners.exact.split_sums import add_numbers
from optuna_treecv.learners.exact.split_sums import splitters
from optuna_treecv.learners.exact.split_sums import value_of
from optuna_treecv.learners.exact.threads import in_order
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows

# The numbers that are computed at once; they fit into a second-level cache.
LOGS = 2**17

# The sums of several small chunks that are computed together.
_SUMS = 2**17

# Below this number of logarithms, those of several points are computed together.
_TOGETHER = 2**14

# The numbers of several blocks that are multiplied with the same logarithms.
_NUMBERS = 2**20

# What scikit-learn takes for a smaller alpha unless force_alpha is set.
_LEAST_ALPHA = 1e-10


class Columns:
    """The columns in which chunks have numbers, each chunk for itself.

    Parameters
    ----------
    keys : ndarray
        The chunk times ``n_features`` plus the column of each number.
    n_chunks, n_features : int

    Attributes
    ----------
    names : ndarray of shape (n_places,)
        The columns, chunk after chunk, ascending within each.
    begins : ndarray of shape (n_chunks + 1,)
        Where each chunk begins.
    """

    def __init__(self, keys: Sequence[np.ndarray], n_chunks: int, n_features: int) -> None:
        self._places = None
        if n_chunks == 1:
            is_there = np.zeros(n_features, bool)
            for some in keys:
                is_there[some] = True
            self._keys = np.flatnonzero(is_there)
            self._places = np.empty(n_features, np.int32)
            self._places[self._keys] = np.arange(len(self._keys), dtype=np.int32)
        else:
            ordered = np.sort(np.concatenate(keys))
            self._keys = ordered[np.diff(ordered, prepend=-1) != 0]
        self.names = self._keys % n_features
        self.begins = np.searchsorted(self._keys, np.arange(n_chunks + 1) * n_features)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the place of each key."""
        if self._places is not None:
            return self._places[keys]
        return np.searchsorted(self._keys, keys)

    def chunks(self) -> np.ndarray:
        """Return the chunk of each place."""
        return np.repeat(np.arange(len(self.begins) - 1), np.diff(self.begins))


class Sums(NamedTuple):
    """Split sums by class over some rows.

    Attributes
    ----------
    columns : ndarray of shape (3, n_places, n_classes)
        Of the numbers in columns.
    weights, sizes : ndarray of shape (3, n_sets, n_classes)
        Of the weights of rows, and of all their numbers.
    """

    columns: np.ndarray
    weights: np.ndarray
    sizes: np.ndarray


class _Totals(NamedTuple):
    """The sums over all rows, and what numbers are split by.

    Attributes
    ----------
    sums : Sums
    by : ndarray of shape (n_features + 2,)
        The splitters of columns, of weights and of sizes.
    """

    sums: Sums
    by: np.ndarray


class FoldOfCounts(NamedTuple):
    """What the models of consecutive chunks are made from.

    Attributes
    ----------
    first, last : int
    columns : Columns
    left : Sums
        Over the training rows; the columns are those where the chunks have numbers.
    whole : ndarray of shape (n_points, n_chunks, n_classes) or None
        What a family needs from all columns.
    """

    first: int
    last: int
    columns: Columns
    left: Sums
    whole: np.ndarray | None


class CountFolds(ABC):
    """What the three families share."""

    name: str  #: of the estimator
    parameter = "alpha"

    #: Whether a row that is left out changes the model of its own class alone.
    is_by_own_class = True

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        first = estimators[0]
        alphas = np.array([float(one.alpha) for one in estimators])
        if np.any(alphas < 0):
            raise ValueError(f"alpha must be at least 0, got {alphas.min()}.")
        if first.force_alpha and not isinstance(rows.X, SparseRows) and not np.all(alphas):
            raise ValueError(
                "alpha must be above 0 for dense rows, of which scikit-learn makes NaN where a "
                "class lacks a column, got alpha=0; 1e-10 would be right."
            )
        self._alphas = alphas if first.force_alpha else np.maximum(alphas, _LEAST_ALPHA)
        assert rows.classes is not None and rows.targets is not None
        self._rows, self._codes, self._n_jobs = rows, rows.targets, n_jobs
        self._d = rows.n_features
        self.n_points, self.n_outputs = len(estimators), len(rows.classes)
        self._class_prior, self._fit_prior = first.class_prior, first.fit_prior
        if first.class_prior is not None and len(first.class_prior) != self.n_outputs:
            raise ValueError(
                f"class_prior must hold one number per class, {self.n_outputs}, got "
                f"{len(first.class_prior)}."
            )

    @staticmethod
    def why_not(estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if not np.isscalar(estimator.alpha):
            return "alpha is not one number"
        if estimator.alpha == 0 and estimator.force_alpha:
            return "alpha=0 gives infinite logarithms where a class lacks a column"
        if estimator.class_prior is not None and not np.all(estimator.class_prior):
            return "a prior is 0"
        if facts.has_scaler:
            return "scaled columns are no counts"
        if facts.n_of_class == 0:
            return "a training set lacks a class"
        return ""

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes or probabilities."""
        if method == "predict":
            return outputs.argmax(axis=1)
        return np.exp(outputs - logsumexp(outputs, axis=1, keepdims=True))

    def squares(self, chunks: Chunks, kept: Kept) -> None:
        """Return None: scores of classes are no sums of squares."""
        return None

    def test(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each chunk with models that are trained on its training rows."""
        self._check_classes(chunks)
        if chunks.trains is not None:
            yield from in_order(self._n_jobs, partial(self._answer, chunks), self._given(chunks))
            return
        totals = self._totals(kept)
        by_class = chunks.are_single_rows and self.is_by_own_class
        basis = self._basis(chunks, totals.sums)
        function = self._answer_single_rows if by_class else self._answer_without
        groups = self._groups(chunks, most_rows, BLOCK if by_class else _SUMS // self.n_outputs)
        yield from in_order(self._n_jobs, partial(function, chunks, totals, basis), groups)

    # What a family computes from sums.

    def _check(self, block: Nonzeros) -> Nonzeros:
        """Return the numbers as they are counted."""
        if len(block.values) and block.values.min() < 0:
            raise ValueError(
                f"Negative values in data passed to {self.name} (input X), got "
                f"{block.values.min()}; counts of at least 0 would be right."
            )
        return block

    def _splitters(self, totals: np.ndarray) -> np.ndarray:
        """Return what the numbers of columns, weights and sizes are split by."""
        return splitters(totals)

    def _basis(self, chunks: Chunks, sums: Sums) -> Any:
        """Return what ``_whole_without`` needs of all rows."""
        return None

    def _whole_without(
        self, basis: Any, columns: Columns, before: np.ndarray, left: Sums
    ) -> np.ndarray | None:
        """Return what is needed from all columns, (n_points, n_chunks, n_classes)."""
        return None

    def _whole(self, sums: Sums) -> np.ndarray | None:
        """Return the same for one training set whose sums are complete."""
        return None

    @abstractmethod
    def _tables(self, columns: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the numbers that logarithms are made from.

        Parameters
        ----------
        columns : ndarray of shape (3, n_places, n_classes)
        weights : ndarray of shape (3, n_places or 1, n_classes)
        """

    def _logs(self, tables: tuple[np.ndarray, ...], alphas: np.ndarray, out: np.ndarray) -> None:
        """Fill in what rows are multiplied with, (n_places, n_alphas, n_classes)."""
        (table,) = tables
        np.add(table[:, None], alphas[:, None], out=out)
        np.log(out, out=out)

    @abstractmethod
    def _finish(
        self,
        said: np.ndarray,
        fold: FoldOfCounts,
        chunk_of: np.ndarray,
        sizes: np.ndarray,
    ) -> None:
        """Turn products of rows and logarithms into joint log-likelihoods, in place.

        Parameters
        ----------
        said : ndarray of shape (n_points, n_rows, n_classes)
        fold : FoldOfCounts
        chunk_of : ndarray of shape (n_rows,)
            The chunk of each row, from 0.
        sizes : ndarray of shape (n_rows,)
            The sum of each row.
        """

    def _log_priors(self, weights: np.ndarray) -> np.ndarray:
        """Return the logarithms of the classes' probabilities, (n_chunks, n_classes)."""
        shape = weights.shape[1:]
        if self._class_prior is not None:
            return np.broadcast_to(np.log(np.asarray(self._class_prior, np.float64)), shape)
        if not self._fit_prior:
            return np.full(shape, -np.log(self.n_outputs))
        of_class = value_of(weights)
        if not np.all(of_class):
            assert self._rows.classes is not None
            missing = self._rows.classes[np.argwhere(of_class == 0)[0, 1]]
            raise ValueError(
                "sample_weight must be above 0 in some row of each class in each training set, "
                f"but is 0 in all rows of class {missing} in one; fit_prior=False or a "
                "class_prior would be right."
            )
        logs: np.ndarray = np.log(of_class) - np.log(of_class.sum(axis=1, keepdims=True))
        return logs

    # Sums over rows.

    def _blocks(self, part: RowNumbers) -> Iterator[Nonzeros]:
        yield from map(self._check, nonzeros(self._rows, part))

    def _weights(self, part: RowNumbers) -> np.ndarray:
        if self._rows.weights is None:
            return np.ones(n_rows_of(part))
        return self._rows.weights[part].astype(np.float64, copy=False)

    def _no_sums(self, n_places: int, n_sets: int) -> Sums:
        k = self.n_outputs
        return Sums(np.zeros((3, n_places, k)), np.zeros((3, n_sets, k)), np.zeros((3, n_sets, k)))

    def _add(
        self,
        sums: Sums,
        by: np.ndarray,
        block: Nonzeros,
        places: np.ndarray,
        sets: np.ndarray | int,
    ) -> None:
        """Add rows to sums.

        Parameters
        ----------
        sums : Sums
            Changed in place.
        by : ndarray of shape (n_features + 2,)
        block : Nonzeros
        places : ndarray of shape (n_nonzeros,)
            The place of each number.
        sets : ndarray of shape (n_rows,) or int
            The set of each row.
        """
        k, codes, weights = self.n_outputs, self._codes[block.part], self._weights(block.part)
        terms = block.values * block.behind(weights)
        cells = places * k + block.behind(codes)
        add_numbers(sums.columns.reshape(3, -1), cells, terms, by[block.columns])
        cells = sets * k + codes
        add_numbers(sums.weights.reshape(3, -1), cells, weights, by[-2])
        add_numbers(sums.sizes.reshape(3, -1), cells, weights * block.row_sums(), by[-1])

    def _find_splitters(self) -> np.ndarray:
        totals = np.zeros(self._d + 2)
        for block in self._blocks(slice(0, len(self._codes))):
            weights = self._weights(block.part)
            terms = block.values * block.behind(weights)
            np.add.at(totals, block.columns, terms)
            totals[-2] += weights.sum()
            totals[-1] += terms.sum()
        return self._splitters(totals)

    def _totals(self, kept: Kept) -> _Totals:
        """Return the sums over all rows."""
        d, k = self._d, self.n_outputs

        def parts(memory: np.ndarray) -> _Totals:
            by, columns, weights, sizes = np.split(memory, np.cumsum([d + 2, 3 * d * k, 3 * k]))
            sums = Sums(columns.reshape(3, d, k), weights.reshape(3, 1, k), sizes.reshape(3, 1, k))
            return _Totals(sums, by)

        def make(memory: np.ndarray) -> None:
            memory[:] = 0
            sums, by = parts(memory)
            by[:] = self._find_splitters()
            for block in self._blocks(slice(0, len(self._codes))):
                self._add(sums, by, block, block.columns.astype(np.intp), 0)

        return parts(kept("sums", d + 2 + 3 * (d + 2) * k, make))

    def _classes_by_chunk(
        self, chunks: Chunks, weights: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """Yield the rows or the weight of each class in the test rows, for groups of chunks."""
        k, step = self.n_outputs, max(1, LOGS // self.n_outputs)
        for first in range(0, chunks.n_chunks, step):
            last = min(first + step, chunks.n_chunks)
            part = chunks.test_rows(first, last)
            cells = np.repeat(np.arange(last - first), chunks.sizes[first:last]) * k
            cells += self._codes[part]
            of_rows = None if weights is None else weights[part]
            yield np.bincount(cells, of_rows, (last - first) * k).reshape(-1, k)

    def _check_classes(self, chunks: Chunks) -> None:
        """Refuse training sets that lack a class."""
        found: Iterator[np.ndarray]
        if chunks.trains is None:
            of_all = np.bincount(self._codes, minlength=self.n_outputs)
            found = (of_all - some for some in self._classes_by_chunk(chunks, None))
        else:
            found = (
                np.bincount(self._codes[_numbers(rows)], minlength=self.n_outputs)[None]
                for rows in chunks.trains
            )
        for left in found:
            if not np.all(left):
                assert self._rows.classes is not None
                missing = self._rows.classes[np.argwhere(left == 0)[0, 1]]
                raise ValueError(
                    f"cv must make training sets with every class of y for {self.name}, got one "
                    f"without class {missing}; fewer or stratified folds would be right."
                )

    def _groups(self, chunks: Chunks, most_rows: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last + 1 of chunks that are tested together."""
        bounds = chunks.bounds
        lengths = count_nonzeros(self._rows, chunks.test_rows(0, chunks.n_chunks))
        ends = np.concatenate([[0], np.cumsum(lengths)])[bounds - bounds[0]]
        first = 0
        while first < chunks.n_chunks:
            by_size = np.searchsorted(ends, ends[first] + size, side="right")
            by_rows = np.searchsorted(bounds, bounds[first] + most_rows, side="right")
            last = max(first + 1, int(min(by_size, by_rows)) - 1)
            yield first, last
            first = last

    # Folds.

    def _own_columns(self, part: RowNumbers, chunk_of: np.ndarray, n_chunks: int) -> Columns:
        keys = [self._keys(block, some) for block, some in self._with_chunks(part, chunk_of)]
        return Columns(keys, n_chunks, self._d)

    def _with_chunks(
        self, part: RowNumbers, chunk_of: np.ndarray
    ) -> Iterator[tuple[Nonzeros, np.ndarray]]:
        """Yield blocks of rows and the chunk of each row."""
        stop = 0
        for block in self._blocks(part):
            start, stop = stop, stop + block.n_rows
            yield block, chunk_of[start:stop]

    def _keys(self, block: Nonzeros, chunk_of: np.ndarray) -> np.ndarray:
        return block.behind(chunk_of * self._d) + block.columns

    @np.errstate(divide="ignore", invalid="ignore")
    def _answer_without(
        self, chunks: Chunks, totals: _Totals, basis: Any, group: tuple[int, int]
    ) -> Tested:
        """Return what the models say that are trained on all rows but a chunk."""
        first, last = group
        part = chunks.test_rows(first, last)
        chunk_of = np.repeat(np.arange(last - first), chunks.sizes[first:last])
        columns = self._own_columns(part, chunk_of, last - first)
        own = self._no_sums(len(columns), last - first)
        for block, some in self._with_chunks(part, chunk_of):
            self._add(own, totals.by, block, columns.find(self._keys(block, some)), some)
        before = np.take(totals.sums.columns, columns.names, axis=1)
        for of_all, of_own in zip((before, *totals.sums[1:]), own, strict=True):
            np.subtract(of_all, of_own, out=of_own)
        left = own
        whole = self._whole_without(basis, columns, before, left)
        return self._answer(chunks, FoldOfCounts(first, last, columns, left, whole))

    def _given(self, chunks: Chunks) -> Iterator[FoldOfCounts]:
        """Yield the folds whose training sets are given; growing ones are read once."""
        assert chunks.trains is not None
        by = self._find_splitters()
        sums, n_added = self._no_sums(self._d, 1), 0
        for chunk, rows in enumerate(chunks.trains):
            if not isinstance(rows, int) or rows < n_added:
                sums, n_added = self._no_sums(self._d, 1), 0
            part = slice(n_added, rows) if isinstance(rows, int) else rows
            for block in self._blocks(part):
                self._add(sums, by, block, block.columns.astype(np.intp), 0)
            n_added = rows if isinstance(rows, int) else len(self._codes)
            part = chunks.test_rows(chunk, chunk + 1)
            columns = self._own_columns(part, np.zeros(n_rows_of(part), np.intp), 1)
            own = np.take(sums.columns, columns.names, axis=1)
            left = Sums(own, sums.weights.copy(), sums.sizes.copy())
            with np.errstate(divide="ignore", invalid="ignore"):
                whole = self._whole(sums)
            yield FoldOfCounts(chunk, chunk + 1, columns, left, whole)

    @np.errstate(divide="ignore", invalid="ignore")
    def _answer(self, chunks: Chunks, fold: FoldOfCounts) -> Tested:
        """Return what models say of their test rows."""
        part = chunks.test_rows(fold.first, fold.last)
        chunk_of = np.repeat(
            np.arange(fold.last - fold.first), chunks.sizes[fold.first : fold.last]
        )
        weights = fold.left.weights
        if fold.last - fold.first > 1:
            weights = np.take(weights, fold.columns.chunks(), axis=1)
        tables = self._tables(fold.left.columns, weights)
        said = np.empty((self.n_points, len(chunk_of), self.n_outputs))
        sizes = np.empty(len(chunk_of))
        matrices: list[sparse.csr_array] = []
        n_numbers = begin = end = 0
        for block, some in self._with_chunks(part, chunk_of):
            places = fold.columns.find(self._keys(block, some))
            matrices.append(block.as_matrix(places, len(fold.columns)))
            sizes[end : end + block.n_rows] = block.row_sums()
            n_numbers, end = n_numbers + len(places), end + block.n_rows
            if n_numbers > _NUMBERS or end == len(sizes):
                self._multiply(matrices, tables, said[:, begin:end])
                matrices, n_numbers, begin = [], 0, end
        self._finish(said, fold, chunk_of, sizes)
        return Tested(fold.first, fold.last, said)

    def _multiply(
        self,
        matrices: list[sparse.csr_array],
        tables: tuple[np.ndarray, ...],
        out: np.ndarray,
    ) -> None:
        """Multiply consecutive rows with the logarithms of all points."""
        n_places, n_columns = tables[0].shape
        step = min(max(1, _TOGETHER // max(1, n_places * n_columns)), self.n_points)
        memory = np.empty(n_places * step * n_columns)
        for start in range(0, self.n_points, step):
            alphas = self._alphas[start : start + step]
            logs = memory[: n_places * len(alphas) * n_columns]
            logs = logs.reshape(n_places, len(alphas), n_columns)
            self._logs(tables, alphas, logs)
            end = 0
            for matrix in matrices:
                begin, end = end, end + matrix.shape[0]
                product = matrix @ logs.reshape(n_places, len(alphas) * n_columns)
                product = product.reshape(end - begin, len(alphas), n_columns)
                out[start : start + step, begin:end] = product.transpose(1, 0, 2)

    @np.errstate(divide="ignore", invalid="ignore")
    def _answer_single_rows(
        self, chunks: Chunks, totals: _Totals, basis: Any, group: tuple[int, int]
    ) -> Tested:
        """Return what the models say that are trained on all rows but one.

        A row that is left out changes the model of its own class alone. What the others say
        follows from the sums over all rows.
        """
        first, last = group
        part = chunks.test_rows(first, last)
        (block,) = self._blocks(part)
        codes, weights, k = self._codes[part], self._weights(part), self.n_outputs
        rows, sizes = np.arange(last - first), block.row_sums()
        columns = Columns([block.columns], 1, self._d)
        said = np.empty((self.n_points, last - first, k))
        of_all = np.take(totals.sums.columns, columns.names, axis=1)
        tables = self._tables(of_all, totals.sums.weights)
        matrix = block.as_matrix(columns.find(block.columns), len(columns))
        self._multiply([matrix], tables, said)

        own_weights, own_sizes = np.zeros((2, 3, (last - first) * k))
        add_numbers(own_weights, rows * k + codes, weights, totals.by[-2])
        add_numbers(own_sizes, rows * k + codes, weights * sizes, totals.by[-1])
        left_weights = totals.sums.weights - own_weights.reshape(3, -1, k)
        left_sizes = totals.sums.sizes - own_sizes.reshape(3, -1, k)
        left = np.zeros((3, len(block.values)))
        places, terms = np.arange(len(block.values)), block.values * block.behind(weights)
        add_numbers(left, places, terms, totals.by[block.columns])
        row_of, code_of = block.behind(rows), block.behind(codes)
        cells = block.columns.astype(np.intp) * k + code_of
        before = np.take(totals.sums.columns.reshape(3, -1), cells, axis=1)
        np.subtract(before, left, out=left)
        of_own = left_weights[:, rows, codes]
        weights_behind = np.take(of_own, row_of, axis=1)
        tables = self._tables(left[:, :, None], weights_behind[:, :, None])
        own = np.empty((self.n_points, last - first, 1))
        self._multiply([block.as_matrix(places, len(places))], tables, own)
        said[:, rows, codes] = own[:, :, 0]

        whole = self._whole_of_rows(basis, block, codes, before, left, of_own)
        sums = Sums(left, left_weights, left_sizes)
        self._finish(said, FoldOfCounts(first, last, columns, sums, whole), rows, sizes)
        return Tested(first, last, said)

    def _whole_of_rows(
        self,
        basis: Any,
        block: Nonzeros,
        codes: np.ndarray,
        before: np.ndarray,
        left: np.ndarray,
        weights: np.ndarray,
    ) -> np.ndarray | None:
        """Return what is needed from all columns, for each row that is left out.

        Parameters
        ----------
        basis : object
        block : Nonzeros
            The rows.
        codes : ndarray of shape (n_rows,)
        before, left : ndarray of shape (3, n_nonzeros)
            Split sums of a number's column and class, over all rows and without the row.
        weights : ndarray of shape (3, n_rows)
            Split sums of the weights of a row's class, without the row.
        """
        return None


def _numbers(rows: int | np.ndarray) -> RowNumbers:
    return slice(0, rows) if isinstance(rows, int) else rows
