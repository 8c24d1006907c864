"""Folds: a partition of the rows into chunks that lie side by side in the prepared order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv._kernels.order import random_order
from optuna_treecv.rows.splits import scores_by_number
from optuna_treecv.rows.splits import Split
from optuna_treecv.rows.splits import Splits

# Purposes of derived seeds: the permutations of rows and of folds. They keep these permutations
# independent of the row orders of training phases. rows/stratified.py has further ones.
_ROWS = 1
_FOLDS = 2


# The model has seen one of so many parts of the rows before it is tested.
_PARTS_OF_WARM_UP = 8


@dataclass(frozen=True)
class Folds:
    """A partition of the rows into ``n_folds`` chunks of consecutive prepared rows.

    Each fold's model is trained on all rows outside of its chunk. Rows before the first chunk are
    trained on by every model and tested by none.

    Attributes
    ----------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the data as given.
    n_folds : int
    bounds : ndarray of shape (n_folds + 1,), int64, or None
        Chunk i consists of the prepared rows ``bounds[i]`` to ``bounds[i + 1] - 1``, and the last
        bound is n_rows. None means that chunk i begins at ``i * n_rows // n_folds``.
    numbers : ndarray of shape (n_folds,) or None
        The fold number of each chunk. None means that chunk i is fold i.
    given : Splits or None
        The splits as a splitter gave them, where it gave rows in another than ascending order.
    """

    order: np.ndarray
    n_folds: int
    bounds: np.ndarray | None = None
    numbers: np.ndarray | None = None
    given: Splits | None = None

    @property
    def n_rows(self) -> int:
        return len(self.order)

    def begins(self) -> np.ndarray:
        """Return the bounds of all chunks, shape (n_folds + 1,)."""
        if self.bounds is not None:
            return self.bounds
        return np.arange(self.n_folds + 1, dtype=np.int64) * self.n_rows // self.n_folds

    @property
    def n_tested(self) -> int:
        """The number of rows that some fold tests."""
        return self.n_rows - (0 if self.bounds is None else int(self.bounds[0]))

    @property
    def are_single_rows(self) -> bool:
        """Whether each fold tests one row."""
        return self.n_tested == self.n_folds

    @property
    def n_trained(self) -> int:
        """The number of training rows of all folds together."""
        return self.n_folds * self.n_rows - self.n_tested

    def number(self, chunk: int) -> int:
        """Return the fold number of a chunk."""
        return chunk if self.numbers is None else int(self.numbers[chunk])

    def test_rows(self, chunk: int) -> np.ndarray:
        """Return the rows, as given, that a chunk's fold tests, in the order of the splitter."""
        if self.given is not None:
            return self.given.test_rows(self.number(chunk))
        begins = self.begins()
        return np.sort(self.order[begins[chunk] : begins[chunk + 1]]).astype(np.intp)

    def tested_from(self, first: int, last: int) -> np.ndarray:
        """Return the rows, as given, that some chunks test, in prepared order."""
        if self.bounds is None:
            begin, end = (chunk * self.n_rows // self.n_folds for chunk in (first, last))
        else:
            begin, end = int(self.bounds[first]), int(self.bounds[last])
        return self.order[begin:end]

    def train_rows(self, chunk: int) -> np.ndarray:
        """Return the rows, as given, that a chunk's model is trained on, in their order."""
        return self.split(chunk).train_rows()

    def split(self, chunk: int) -> Split:
        """Return the training and test rows of a chunk."""
        if self.given is not None:
            return self.given.split(self.number(chunk))
        return Split(None, self.test_rows(chunk).astype(np.uint32), self.n_rows)

    def equals(self, other: object) -> bool:
        """Return whether both have the same chunks of the same rows in the same order."""
        if not isinstance(other, Folds):
            return False
        if self.bounds is None or other.bounds is None:
            same_cut = self.bounds is other.bounds and self.n_folds == other.n_folds
        else:
            same_cut = np.array_equal(self.bounds, other.bounds)
        return same_cut and np.array_equal(self.order, other.order)

    def fits_like(self, other: object) -> bool:
        """Return whether both train on the same rows and test the same, whatever their numbers."""
        return isinstance(other, Folds) and np.array_equal(self._ids(), other._ids())

    def _ids(self) -> np.ndarray:
        """Return for each row the first row of its fold; -1 for rows that are only trained on."""
        begins = self.begins()
        tested = self.order[begins[0] :]
        firsts = np.minimum.reduceat(tested, begins[:-1] - begins[0])
        ids = np.full(self.n_rows, -1)
        ids[tested] = np.repeat(firsts, np.diff(begins))
        return ids

    def arrays(self) -> Iterator[np.ndarray | None]:
        """Yield the arrays that tell these folds from others with as many folds."""
        yield from (self.order, self.bounds, self.numbers)
        if self.given is not None:
            yield from self.given.arrays()

    def fewest_rows(self) -> int:
        """Return the number of rows of the smallest chunk."""
        if self.bounds is None:
            return self.n_rows // self.n_folds
        return int(np.diff(self.bounds).min())

    def has_fewer_of_a_class(self, n: int, codes: np.ndarray) -> bool:
        """Return whether some chunk holds fewer than ``n`` rows of some class.

        Parameters
        ----------
        n : int
        codes : ndarray of shape (n_rows,)
            The class of each row as given, as a number from 0.
        """
        n_classes = int(codes.max()) + 1
        if self.n_tested < n * self.n_folds * n_classes:
            return True  # the rows do not suffice; this also bounds the table of counts
        begins = self.begins()
        chunk = np.repeat(np.arange(self.n_folds), np.diff(begins))
        tested = codes[self.order[begins[0] :]]
        counts = np.bincount(chunk * n_classes + tested, minlength=1)
        return len(counts) < self.n_folds * n_classes or bool(counts.min() < n)

    def count(self, is_marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many of the marked rows each chunk's model is trained on, and tested on.

        Parameters
        ----------
        is_marked : ndarray of shape (n_rows,), bool
            In the order of the rows as given.
        """
        marked = is_marked[self.order].astype(np.int64)
        n_tested = np.add.reduceat(marked, self.begins()[:-1])
        return marked.sum() - n_tested, n_tested

    def by_number(self, scores: np.ndarray) -> np.ndarray:
        """Return the scores of the first chunks, ordered by fold number.

        Parameters
        ----------
        scores : ndarray of shape (n_scored,), float64
            The scores of the first ``n_scored`` chunks.

        Returns
        -------
        ndarray of shape (n_folds,), float64
            NaN for a fold without a score yet.
        """
        return scores_by_number(scores, self.n_folds, self.numbers)


#: How the rows are cut for one repeat.
Cut: TypeAlias = Folds | Splits


def even_folds(n_rows: int, n_folds: int, shuffle: bool, seed: int) -> Folds:
    """Return folds of a permutation of the rows, or of the rows as they lie."""
    if not shuffle:
        return Folds(np.arange(n_rows, dtype=np.uint32), n_folds)
    return Folds(permutation_of_rows(n_rows, seed), n_folds)


def singles(n_rows: int, shuffle: bool, seed: int) -> Folds:
    """Return the folds of ``LeaveOneOut``: fold i tests row i."""
    folds = even_folds(n_rows, n_rows, shuffle, seed)
    return replace(folds, numbers=folds.order)


def folds_of_ids(ids: np.ndarray, shuffle: bool, seed: int, given: Splits | None = None) -> Folds:
    """Return one chunk per fold id; rows with the id -1 are only trained on.

    With ``shuffle`` the folds are permuted, because neighbouring chunks train on each other's rows
    last. Otherwise these would be folds that are neighbours in the data.
    """
    is_tested = ids >= 0
    present, folds, sizes = np.unique(ids[is_tested], return_inverse=True, return_counts=True)
    n_folds = len(present)
    chunk = np.full(len(ids), -1)
    numbers = None
    rows = np.arange(len(ids), dtype=np.uint32)
    if shuffle:
        rows = permutation_of_rows(len(ids), seed)
        numbers = _permutation(n_folds, seed, _FOLDS)
        folds = np.argsort(numbers)[folds]
        sizes = sizes[numbers]
    chunk[is_tested] = folds
    order = rows[np.argsort(chunk[rows], kind="stable")]
    begin = len(ids) - sizes.sum()
    bounds = np.concatenate([[begin], begin + np.cumsum(sizes)]).astype(np.int64)
    return Folds(order, n_folds, bounds, numbers, given)


def hold_out(
    test: np.ndarray, n_rows: int, shuffle: bool, seed: int, given: Splits | None = None
) -> Folds:
    """Return one fold that tests some rows; all others are only trained on."""
    rows = permutation_of_rows(n_rows, seed) if shuffle else np.arange(n_rows, dtype=np.uint32)
    is_tested = np.zeros(n_rows, bool)
    is_tested[test] = True
    tested = is_tested[rows]
    order = np.concatenate([rows[~tested], rows[tested]])
    return Folds(order, 1, np.array([n_rows - len(test), n_rows], np.int64), given=given)


def first_split(cut: Cut, shuffle: bool, seed: int) -> Cut:
    """Return the split of number 0 alone.

    It is a hold-out if its model is trained on all rows that are not tested. These are permuted
    with ``shuffle``, unless they belong to a time series.
    """
    if isinstance(cut, Folds):
        chunk = 0 if cut.numbers is None else int(np.flatnonzero(cut.numbers == 0)[0])
        given = None if cut.given is None else cut.given.one()
        return hold_out(cut.test_rows(chunk), cut.n_rows, shuffle, seed, given)
    one = cut.one()
    train, test = one.train_rows(0), one.test_rows(0)
    both = np.concatenate([train, test])
    if len(both) == cut.n_rows == len(np.unique(both)):
        return hold_out(test, cut.n_rows, shuffle and not cut.grows, seed, one)
    return one


def one_pass(cut: Cut) -> Folds:
    """Return one fold that tests all rows but the first eighth, in the order in which they lie.

    Rows that are only trained on come before that too.

    Raises
    ------
    ValueError
        If the splits have no such order.
    """
    if isinstance(cut, Splits) and not cut.grows:
        raise ValueError(
            "cv must be an int, a partition of the rows or a splitter of time series for "
            f"method='progressive', which reads all rows once, but {cut.why_no_tree}."
        )
    n_rows = len(cut.order)
    first = 0 if isinstance(cut, Splits) or cut.bounds is None else int(cut.bounds[0])
    first = max(first, -(-n_rows // _PARTS_OF_WARM_UP))
    return Folds(cut.order, 1, np.array([first, n_rows], np.int64))


def permutation_of_rows(n_rows: int, seed: int) -> np.ndarray:
    """Return the permutation in which rows lie, uint32."""
    return _permutation(n_rows, seed, _ROWS)


def permutation_of_folds(n_folds: int, seed: int) -> np.ndarray:
    """Return the fold number of each chunk, uint32."""
    return _permutation(n_folds, seed, _FOLDS)


def _permutation(n: int, seed: int, purpose: int) -> np.ndarray:
    order = np.empty(n, np.uint32)
    random_order(derive_seed(seed, purpose), 0, n, 0, order)
    return order
