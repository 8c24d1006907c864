"""Folds, which partition the rows, and splits, which are arbitrary pairs of row sets."""

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from scipy import sparse

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv._kernels.order import random_order
from optuna_treecv._kernels.order import sort_by_key

# Purposes of derived seeds: the permutations of rows and of folds, which are independent of the
# row orders of training phases. The members of a stratified fold must not depend on the
# permutation that orders its rows: the rows of each class would then be evenly spaced within a
# fold, and the labels would alternate.
OF_ROWS = 1
OF_FOLDS = 2
_MEMBERS = 3
_FIRST_TURN = 4

# The model of a single pass is trained on the first 1 / _PARTS_OF_WARM_UP of the rows before it is
# tested.
_PARTS_OF_WARM_UP = 8

# For numbers of folds that are powers of two, the order of the rows is the same if the folds have
# at least this many rows. Each run of that many rows has an even share of each class, so the last
# rows of a training set vary less than random rows. This biases the estimates of learners that
# give the last rows most weight. In experiments with such learners, the bias was up to 0.9
# standard deviations of one estimate without this minimum, 0.3 with a minimum of 256 rows, and 0.1
# with 1024, which is not visible in the mean over 50 seeds.
_FEWEST_ROWS = 1024

#: Training rows: None for all rows outside the test set, in ascending order; n for the rows 0 to
#: n - 1; a mask of packed bits (uint8) for other ascending rows; else the rows (uint32).
TrainRows = int | np.ndarray | None


class Split(NamedTuple):
    """The training and test rows of a split, stored compactly.

    Attributes
    ----------
    train : TrainRows
    test : ndarray of int
    n_rows : int
        The number of all rows.
    """

    train: TrainRows
    test: np.ndarray
    n_rows: int

    def train_rows(self) -> np.ndarray:
        """Return the indices of the training rows (intp), in training order."""
        rows = self.train
        if rows is None:
            is_trained = np.ones(self.n_rows, bool)
            is_trained[self.test] = False
            return np.flatnonzero(is_trained)
        if isinstance(rows, int):
            return np.arange(rows)
        if rows.dtype == np.uint8:
            return np.flatnonzero(np.unpackbits(rows, count=self.n_rows))
        return rows.astype(np.intp)


@dataclass(frozen=True)
class Splits:
    """Pairs of training and test rows that are no partition, such as splits of a time series.

    Chunk i is the i-th split in the order of evaluation.

    Attributes
    ----------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the user's data.
    trains : tuple of TrainRows
        The training rows of each split of the splitter.
    tests : tuple of ndarray, uint32
        The test rows of each split of the splitter.
    numbers : ndarray of shape (n_folds,) or None
        The number of the split of each chunk. None means that chunk i is split i.
    why_no_tree : str
        The reason why there is no tree over these splits, such as "KFold tests row 3 twice".
    """

    order: np.ndarray
    trains: tuple[TrainRows, ...]
    tests: tuple[np.ndarray, ...]
    numbers: np.ndarray | None = None
    why_no_tree: str = ""

    @property
    def n_rows(self) -> int:
        return len(self.order)

    @property
    def n_folds(self) -> int:
        return len(self.tests)

    @cached_property
    def grows(self) -> bool:
        """Whether the training sets are prefixes of the rows, each longer than the previous one.

        The rows must be in their original order, because method="chain" trains on the first
        prepared rows.
        """
        sizes = [size for size in self.trains if isinstance(size, int)]
        return (
            len(sizes) == self.n_folds
            and all(a < b for a, b in pairwise(sizes))
            and np.array_equal(self.order, np.arange(self.n_rows))
        )

    @property
    def n_tested(self) -> int:
        """The number of test rows, summed over all splits."""
        return sum(map(len, self.tests))

    @cached_property
    def n_trained(self) -> int:
        """The number of training rows, summed over all splits."""
        return int(self.count(np.ones(self.n_rows, bool))[0].sum())

    def number(self, chunk: int) -> int:
        """Return the index of a chunk's split in the order of the splitter."""
        return chunk if self.numbers is None else int(self.numbers[chunk])

    def test_rows(self, chunk: int) -> np.ndarray:
        """Return the indices of a chunk's test rows, in the order of the splitter."""
        return self.tests[self.number(chunk)].astype(np.intp)

    def model(self, chunk: int) -> int:
        """Return the index of a chunk's model. Neighboring chunks may share a model."""
        return chunk

    def split(self, chunk: int) -> Split:
        """Return the split of a chunk."""
        number = self.number(chunk)
        return Split(self.trains[number], self.tests[number], self.n_rows)

    def tested_from(self, first: int, last: int) -> np.ndarray:
        """Return the concatenated indices of the test rows of the chunks first to last - 1."""
        return np.concatenate([self.test_rows(chunk) for chunk in range(first, last)])

    def begins(self) -> np.ndarray:
        """Return the offsets of the chunks among all test rows, and the number of these rows."""
        sizes = [len(self.tests[self.number(chunk)]) for chunk in range(self.n_folds)]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def prepared(self, rows: np.ndarray) -> np.ndarray:
        """Convert indices of the user's rows to indices of prepared rows (uint32)."""
        place = np.empty(self.n_rows, np.uint32)
        place[self.order] = np.arange(self.n_rows, dtype=np.uint32)
        return place[rows]

    def first(self) -> "Splits":
        """Return only split 0; in the original order if it trains on a prefix of the rows."""
        order = self.order
        if isinstance(self.trains[0], int):
            order = np.arange(self.n_rows, dtype=np.uint32)
        return Splits(order, self.trains[:1], self.tests[:1], why_no_tree=self.why_no_tree)

    def equals(self, other: object) -> bool:
        """Return whether another object has the same splits and the same order of rows."""
        return isinstance(other, Splits) and _are_equal(self.arrays(), other.arrays())

    def fits_like(self, other: object) -> bool:
        """Return whether each split of another object has the same training and test rows."""
        return isinstance(other, Splits) and _are_equal(self._rows(), other._rows())

    def arrays(self) -> Iterator[np.ndarray | None]:
        """Yield the arrays that, together with the number of splits, identify these splits."""
        yield from (self.order, self.numbers)
        yield from self._rows()

    def _rows(self) -> Iterator[np.ndarray | None]:
        yield from self.tests
        for rows in self.trains:
            yield np.array([rows]) if isinstance(rows, int) else rows

    def count(self, is_marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many marked rows are in each chunk's training set and in its test set."""
        chunks = range(self.n_folds)
        n_trained = [np.count_nonzero(is_marked[self.split(i).train_rows()]) for i in chunks]
        n_tested = [np.count_nonzero(is_marked[self.test_rows(i)]) for i in chunks]
        return np.array(n_trained), np.array(n_tested)


@dataclass(frozen=True)
class Folds:
    """A partition of the rows into ``n_folds`` chunks of consecutive prepared rows.

    The model of a fold is trained on all rows outside its chunk. Rows that precede the first chunk
    are in every training set and in no test set.

    Attributes
    ----------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the user's data.
    n_folds : int
    bounds : ndarray of shape (n_folds + 1,), int64, or None
        Chunk i consists of the prepared rows ``bounds[i]`` to ``bounds[i + 1] - 1``, and the last
        bound is n_rows. None: chunk i begins at ``i * n_rows // n_folds``.
    numbers : ndarray of shape (n_folds,) or None
        The fold number of each chunk. None: chunk i is fold i.
    splits : Splits or None
        The splits of the splitter, if its rows are not in ascending order.
    """

    order: np.ndarray
    n_folds: int
    bounds: np.ndarray | None = None
    numbers: np.ndarray | None = None
    splits: Splits | None = None

    @property
    def n_rows(self) -> int:
        return len(self.order)

    def begins(self) -> np.ndarray:
        """Return the offsets of all chunks and the number of rows, shape (n_folds + 1,)."""
        if self.bounds is not None:
            return self.bounds
        return np.arange(self.n_folds + 1, dtype=np.int64) * self.n_rows // self.n_folds

    @property
    def n_tested(self) -> int:
        """The number of test rows, summed over all folds."""
        return self.n_rows - (0 if self.bounds is None else int(self.bounds[0]))

    @property
    def n_trained(self) -> int:
        """The number of training rows, summed over all folds."""
        return self.n_folds * self.n_rows - self.n_tested

    def number(self, chunk: int) -> int:
        """Return the index of a chunk's fold."""
        return chunk if self.numbers is None else int(self.numbers[chunk])

    def test_rows(self, chunk: int) -> np.ndarray:
        """Return the indices of the test rows of a chunk's fold, in the order of the splitter."""
        if self.splits is not None:
            return self.splits.test_rows(self.number(chunk))
        begins = self.begins()
        return np.sort(self.order[begins[chunk] : begins[chunk + 1]]).astype(np.intp)

    def tested_from(self, first: int, last: int) -> np.ndarray:
        """Return the indices of the test rows of chunks first to last - 1, in prepared order."""
        if self.bounds is None:
            begin, end = (chunk * self.n_rows // self.n_folds for chunk in (first, last))
        else:
            begin, end = int(self.bounds[first]), int(self.bounds[last])
        return self.order[begin:end]

    def model(self, chunk: int) -> int:
        """Return the index of a chunk's model, which is the chunk itself."""
        return chunk

    def split(self, chunk: int) -> Split:
        """Return the split of a chunk."""
        if self.splits is not None:
            return self.splits.split(self.number(chunk))
        return Split(None, self.test_rows(chunk).astype(np.uint32), self.n_rows)

    def equals(self, other: object) -> bool:
        """Return whether another object has the same chunks, with rows in the same order."""
        return (
            isinstance(other, Folds)
            and np.array_equal(self.begins(), other.begins())
            and np.array_equal(self.order, other.order)
        )

    def fits_like(self, other: object) -> bool:
        """Return whether another object has the same folds, in any order."""
        return isinstance(other, Folds) and np.array_equal(self._ids(), other._ids())

    def _ids(self) -> np.ndarray:
        """For each row, return the first row of its fold; -1 for rows that are only trained on."""
        begins = self.begins()
        tested = self.order[begins[0] :]
        firsts = np.minimum.reduceat(tested, begins[:-1] - begins[0])
        ids = np.full(self.n_rows, -1)
        ids[tested] = np.repeat(firsts, np.diff(begins))
        return ids

    def arrays(self) -> Iterator[np.ndarray | None]:
        """Yield the arrays that, together with the number of folds, identify these folds."""
        yield from (self.order, self.bounds, self.numbers)
        if self.splits is not None:
            yield from self.splits.arrays()

    def count(self, is_marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many marked rows are in each chunk's training set and in its test set.

        Parameters
        ----------
        is_marked : ndarray of shape (n_rows,), bool
            In the order of the user's rows.
        """
        marked = is_marked[self.order].astype(np.int64)
        n_tested = np.add.reduceat(marked, self.begins()[:-1])
        return marked.sum() - n_tested, n_tested


@dataclass(frozen=True)
class FoldPairs(Splits):
    """The splits of nested cross-validation, whose models hold out two folds.

    Each split tests one of the two folds that its model holds out, and the splits of a model are
    adjacent. There may also be models that hold out and test a single fold.

    Attributes
    ----------
    folds : Folds
    models : tuple of tuple of int
        The chunks of ``folds`` that each model holds out, in ascending order.
    """

    folds: Folds = field(kw_only=True)
    models: tuple[tuple[int, ...], ...] = field(kw_only=True)

    @classmethod
    def of(cls, folds: Folds, with_single: bool) -> "FoldPairs":
        """Return the splits for all pairs of folds and, if ``with_single``, for single folds."""
        k = folds.n_folds
        models = tuple(
            (i, j) if i < j else (i,) for i in range(k) for j in range(i + (not with_single), k)
        )
        tests = [folds.test_rows(chunk).astype(np.uint32) for chunk in range(k)]
        return cls(
            folds.order,
            (),  # computed by ``split``
            tuple(tests[chunk] for model in models for chunk in model),
            why_no_tree="the splits leave out two folds at a time",
            folds=folds,
            models=models,
        )

    def model(self, chunk: int) -> int:
        """Return the index of the model of a split."""
        return int(self._models_of_splits[chunk])

    @cached_property
    def _models_of_splits(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.models)), [*map(len, self.models)])

    def split(self, chunk: int) -> Split:
        """Return the training and test rows of a split."""
        is_trained = np.ones(self.n_rows, bool)
        for fold in self.models[self.model(chunk)]:
            is_trained[self.folds.tested_from(fold, fold + 1)] = False
        return Split(np.packbits(is_trained), self.tests[chunk], self.n_rows)

    def _rows(self) -> Iterator[np.ndarray | None]:
        yield from self.folds.arrays()
        yield self._models_of_splits

    def count(self, is_marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many marked rows are in each split's training set and in its test set."""
        n_others, n_tested = self.folds.count(is_marked)
        n_left_out = np.array([n_tested[list(model)].sum() for model in self.models])
        n_trained = n_others[0] + n_tested[0] - n_left_out
        return n_trained[self._models_of_splits], n_tested[np.concatenate(self.models)]


#: The folds or splits of one repeat.
Cut = Folds | Splits


def absent_columns(cut: Cut, columns: sparse.csc_array) -> sparse.csr_array:
    """Return, for each fold, which columns have entries in X but none in the training set.

    Parameters
    ----------
    cut : Folds or Splits
    columns : sparse array of shape (n_rows, n_columns)
        In the order of the user's rows.

    Returns
    -------
    sparse array of shape (n_folds, n_columns), bool
    """
    n_of_column = np.diff(columns.indptr)
    if isinstance(cut, Folds):
        begins = cut.begins()
        rows = cut.order[begins[0] :]
        tested = sparse.csr_array((np.ones(len(rows)), rows, begins - begins[0]))
        tested.resize(cut.n_folds, cut.n_rows)
        ones = columns.astype(np.float64)
        ones.data[:] = 1
        lacks = tested @ ones
        # A column is absent in a training set if all rows in which it is present are in the chunk.
        lacks.data = lacks.data == n_of_column[lacks.indices]
        return lacks
    by_row = columns.tocsr()
    is_lacked = np.tile(n_of_column > 0, (cut.n_folds, 1))
    for chunk in range(cut.n_folds):
        is_lacked[chunk, by_row[cut.split(chunk).train_rows()].indices] = False
    return sparse.csr_array(is_lacked)


def even_folds(n_rows: int, n_folds: int, shuffle: bool, seed: int) -> Folds:
    """Divide the rows, permuted or in their original order, into folds of about equal size.

    If the number of folds is the number of rows, fold i tests row i, as in ``LeaveOneOut``.
    """
    order = permutation(n_rows, seed, OF_ROWS) if shuffle else np.arange(n_rows, dtype=np.uint32)
    return Folds(order, n_folds, numbers=order if n_folds == n_rows else None)


def folds_of_ids(ids: np.ndarray, shuffle: bool, seed: int, splits: Splits | None = None) -> Folds:
    """Return folds with one chunk per fold id; rows with the id -1 are only trained on.

    If ``shuffle``, the folds are permuted: models of neighboring chunks are trained on each
    other's rows last, so neighboring chunks should not be neighbors in the data.
    """
    is_tested = ids >= 0
    present, folds, sizes = np.unique(ids[is_tested], return_inverse=True, return_counts=True)
    n_folds = len(present)
    if n_folds < (2 if np.all(is_tested) else 1):
        raise ValueError(f"cv must make at least 2 folds, got {n_folds}.")
    chunk = np.full(len(ids), -1)
    numbers = None
    rows = np.arange(len(ids), dtype=np.uint32)
    if shuffle:
        rows = permutation(len(ids), seed, OF_ROWS)
        numbers = permutation(n_folds, seed, OF_FOLDS)
        folds = np.argsort(numbers)[folds]
        sizes = sizes[numbers]
    chunk[is_tested] = folds
    order = rows[np.argsort(chunk[rows], kind="stable")]
    begin = len(ids) - sizes.sum()
    bounds = np.concatenate([[begin], begin + np.cumsum(sizes)]).astype(np.int64)
    return Folds(order, n_folds, bounds, numbers, splits)


def hold_out(
    test: np.ndarray, n_rows: int, shuffle: bool, seed: int, splits: Splits | None = None
) -> Folds:
    """Return a single fold that tests the given rows and is trained on all others."""
    rows = permutation(n_rows, seed, OF_ROWS) if shuffle else np.arange(n_rows, dtype=np.uint32)
    is_tested = np.zeros(n_rows, bool)
    is_tested[test] = True
    tested = is_tested[rows]
    order = np.concatenate([rows[~tested], rows[tested]])
    return Folds(order, 1, np.array([n_rows - len(test), n_rows], np.int64), splits=splits)


def first_split(cut: Cut, shuffle: bool, seed: int) -> Cut:
    """Return folds or splits that contain only split 0.

    The result is a hold-out if the model of the split is trained on all rows outside the test set.
    If ``shuffle``, the rows are permuted, unless the splits are a time series.
    """
    if isinstance(cut, Folds):
        chunk = 0 if cut.numbers is None else int(np.flatnonzero(cut.numbers == 0)[0])
        splits = None if cut.splits is None else cut.splits.first()
        return hold_out(cut.test_rows(chunk), cut.n_rows, shuffle, seed, splits)
    only = cut.first()
    train, test = only.split(0).train_rows(), only.test_rows(0)
    both = np.concatenate([train, test])
    if len(both) == cut.n_rows == len(np.unique(both)):
        return hold_out(test, cut.n_rows, shuffle and not cut.grows, seed, only)
    return only


def one_pass(cut: Cut) -> Folds:
    """Return a single fold that tests all rows after the first eighth, in prepared order.

    Rows that are only trained on also precede the tested rows.

    Raises
    ------
    ValueError
        If the splits are not in the order of a time series.
    """
    if isinstance(cut, Splits) and not cut.grows:
        raise ValueError(
            "method='progressive' goes through the rows only once, so cv must be an int, a "
            f"partition of the rows or a splitter of time series, but {cut.why_no_tree}."
        )
    n_rows = len(cut.order)
    first = 0 if isinstance(cut, Splits) or cut.bounds is None else int(cut.bounds[0])
    first = max(first, -(-n_rows // _PARTS_OF_WARM_UP))
    return Folds(cut.order, 1, np.array([first, n_rows], np.int64))


def by_number(cut: Cut, scores: np.ndarray) -> np.ndarray:
    """Sort the scores of the first chunks by fold index.

    Parameters
    ----------
    cut : Folds or Splits
    scores : ndarray of shape (n_scored,), float64
        The scores of the first ``n_scored`` chunks.

    Returns
    -------
    ndarray of shape (n_folds,), float64
        NaN for a fold without a score yet.
    """
    numbers = cut.numbers
    if numbers is None and len(scores) == cut.n_folds:
        return scores
    in_order = np.full(cut.n_folds, np.nan)
    in_order[slice(len(scores)) if numbers is None else numbers[: len(scores)]] = scores
    return in_order


def _are_equal(these: Iterable[np.ndarray | None], those: Iterable[np.ndarray | None]) -> bool:
    return all(
        a is b or (a is not None and b is not None and np.array_equal(a, b))
        for a, b in zip_longest(these, those)
    )


def packed(rows: np.ndarray, n_rows: int) -> TrainRows:
    """Return training rows in the most compact form that preserves order and repetitions."""
    if len(rows) and np.all(rows[1:] > rows[:-1]):
        if rows[-1] == len(rows) - 1:
            return len(rows)
        if 32 * len(rows) > n_rows:
            mask = np.zeros(n_rows, bool)
            mask[rows] = True
            return np.packbits(mask)
    return rows.astype(np.uint32)


def permutation(n: int, seed: int, purpose: int) -> np.ndarray:
    """Return a random permutation (uint32) that depends on a seed and a purpose."""
    order = np.empty(n, np.uint32)
    random_order(derive_seed(seed, purpose), 0, n, 0, order)
    return order


# Stratified folds: the rows of each class are spread over the folds as evenly as possible.


def stratified_chunks(
    codes: np.ndarray, n_folds: int, rows: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of the rows, and the offsets of stratified folds in it.

    The rows of each class are dealt out to the folds in turn, and each class continues where the
    previous class stopped. Therefore the folds differ by at most one row, both in each class and
    in total.

    If ``n_folds`` is a power of two, k, each fold consists of two of the folds for 2k. If these
    have at least 1024 rows each, the whole order is the same for k and 2k, so that both can share
    models.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,), int
        The class code of each row, from 0. Each class has at least ``n_folds`` rows.
    n_folds : int
    rows : ndarray of shape (n_rows,), uint32
        A random permutation of the rows, which determines the order of rows within a fold.
    seed : int
        The 64-bit seed of the members of folds.

    Returns
    -------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the user's data.
    bounds : ndarray of shape (n_folds + 1,), int64
        Fold i consists of the prepared rows ``bounds[i]`` to ``bounds[i + 1] - 1``.
    """
    parts = 1
    if n_folds & (n_folds - 1) == 0:
        # The order is the same up to this number of folds, a power of two that depends only on the
        # classes. There are never more folds than rows of a class.
        most = min(len(codes) // _FEWEST_ROWS, int(np.bincount(codes).min()))
        parts = max(1, (1 << most.bit_length() >> 1) // n_folds)
    n_chunks = parts * n_folds
    # Some chunks get one row more of a class than others. The first turn is random, so that these
    # are not always the same chunks.
    turns = np.roll(_turns(n_chunks), -(derive_seed(seed, _FIRST_TURN) % n_chunks))
    narrow = turns.astype(np.min_scalar_type(n_chunks - 1))
    chunks = np.empty(len(codes), narrow.dtype)
    by_class = _by_class(codes, seed)
    chunks[by_class] = np.tile(narrow, -(-len(codes) // n_chunks))[: len(codes)]
    del by_class
    order, bounds = _sorted_by(rows, chunks, n_chunks)
    return order, np.ascontiguousarray(bounds[::parts])


def stratified_sample(codes: np.ndarray, n_sampled: int, seed: int) -> np.ndarray:
    """Return the row indices of a stratified sample, in ascending order.

    Of a class with m of the n rows, the sample has m * n_sampled / n rows, rounded up or down.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,), int32
        The class code of each row, from 0.
    n_sampled : int
    seed : int
        The 64-bit seed of the sample.
    """
    n_rows = len(codes)
    before = np.arange(n_rows + 1, dtype=np.int64) * n_sampled // n_rows
    return np.sort(_by_class(codes, seed)[np.diff(before) > 0])


def _by_class(codes: np.ndarray, seed: int) -> np.ndarray:
    """Return the row indices grouped by class, in random order within each class."""
    drawn = permutation(len(codes), seed, _MEMBERS)
    most = int(codes.max())
    narrow = codes.astype(np.min_scalar_type(most), copy=False)
    return _sorted_by(drawn, narrow, most + 1)[0]


def _sorted_by(rows: np.ndarray, keys: np.ndarray, n_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows by key (stable), and return them and the offset of each key."""
    done, begins = np.empty_like(rows), np.empty(n_keys + 1, np.int64)
    sort_by_key(rows, keys, begins, done)
    return done, begins


def _turns(n_chunks: int) -> np.ndarray:
    """Return the order in which rows are dealt out to the chunks.

    For a power of two, entry i is i with its bits reversed. Thus the left half of the chunks gets
    the even turns, and the left quarter every fourth turn.
    """
    if n_chunks & (n_chunks - 1) != 0:
        return np.arange(n_chunks)
    turns = np.zeros(1, np.int64)
    while len(turns) < n_chunks:
        turns = np.concatenate([2 * turns, 2 * turns + 1])
    return turns
