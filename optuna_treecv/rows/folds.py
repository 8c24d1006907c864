"""Fold partitions: turns ``cv`` into one chunk of rows per fold, or explains why it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.model_selection import LeaveOneOut

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv._kernels.order import random_order
from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import is_integer

# Purposes of derived seeds: the permutations of rows and of folds. They keep these permutations
# independent of the row orders of training phases.
_ROWS = 1
_FOLDS = 2

# A splitter that tests a row more often than this is asked for no further splits, since it may
# never end.
_MOST_TIMES = 100


@dataclass(frozen=True)
class Folds:
    """A partition of the rows into ``n_folds`` chunks of consecutive prepared rows.

    Attributes
    ----------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the data as given.
    n_folds : int
    bounds : ndarray of shape (n_folds + 1,), int64, or None
        Chunk i consists of the prepared rows ``bounds[i]`` to ``bounds[i + 1] - 1``. None means
        that it begins at ``i * n_rows // n_folds``.
    numbers : ndarray of shape (n_folds,) or None
        The fold number of each chunk. None means that chunk i is fold i.
    """

    order: np.ndarray
    n_folds: int
    bounds: np.ndarray | None = None
    numbers: np.ndarray | None = None

    def equals(self, other: Folds) -> bool:
        """Return whether both have the same chunks of the same rows in the same order."""
        if self.bounds is None or other.bounds is None:
            same_cut = self.bounds is other.bounds and self.n_folds == other.n_folds
        else:
            same_cut = np.array_equal(self.bounds, other.bounds)
        return same_cut and np.array_equal(self.order, other.order)

    def fewest_rows(self) -> int:
        """Return the number of rows of the smallest chunk."""
        if self.bounds is None:
            return len(self.order) // self.n_folds
        return int(np.diff(self.bounds).min())

    def has_fewer_of_a_class(self, n: int, codes: np.ndarray) -> bool:
        """Return whether some chunk holds fewer than ``n`` rows of some class.

        Parameters
        ----------
        n : int
        codes : ndarray of shape (n_rows,)
            The class of each row as given, as a number from 0.
        """
        n_rows, n_classes = len(codes), int(codes.max()) + 1
        if n_rows < n * self.n_folds * n_classes:
            return True  # the rows do not suffice; this also bounds the table of counts
        if self.bounds is None:
            begins = np.arange(self.n_folds + 1) * n_rows // self.n_folds
        else:
            begins = self.bounds
        chunk = np.repeat(np.arange(self.n_folds), np.diff(begins))
        counts = np.bincount(chunk * n_classes + codes[self.order], minlength=1)
        return len(counts) < self.n_folds * n_classes or bool(counts.min() < n)

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
        if self.numbers is None and len(scores) == self.n_folds:
            return scores
        in_order = np.full(self.n_folds, np.nan)
        of = slice(len(scores)) if self.numbers is None else self.numbers[: len(scores)]
        in_order[of] = scores
        return in_order


def make_folds(
    cv: Any, X: Any, y: np.ndarray | None, groups: Any, shuffle: bool, seed: int, n_rows: int
) -> Folds:
    """Return the partition of the rows into folds.

    Parameters
    ----------
    cv : int, "loo", scikit-learn splitter, or array-like of shape (n_rows,)
        The number of folds; "loo" for leave-one-out; an object whose test sets partition the rows;
        or the fold of each row.
    X, y, groups
        The arguments of the splitter's ``split``.
    shuffle : bool
        For an int or "loo": permute the rows before they are cut into folds. Otherwise: permute
        the folds, and the rows within each fold.
    seed : int
        Seed of these permutations, 64 bits.
    n_rows : int
    """
    if isinstance(cv, str):
        if cv != "loo":
            raise ValueError(
                f'cv must be an int, "loo", a splitter or one fold id per row, got {cv!r}.'
            )
        return _even(n_rows, n_rows, shuffle, seed)
    if is_integer(cv):
        if not 2 <= cv <= n_rows:
            raise ValueError(f"cv must be between 2 and the number of rows, {n_rows}, got {cv}.")
        return _even(n_rows, int(cv), shuffle, seed)
    if isinstance(cv, LeaveOneOut):  # its split() would write n_rows - 1 row numbers per fold
        folds = _even(n_rows, n_rows, shuffle, seed)
        return replace(folds, numbers=folds.order)
    if isinstance(cv, type):
        raise ValueError(
            f"cv must be a splitter instance, such as KFold(5), got the class {cv!r}."
        )
    if hasattr(cv, "split"):
        return _cut(_test_folds(cv, X, y, groups, n_rows), shuffle, seed)
    if isinstance(cv, Iterable) and not isinstance(cv, dict | bytes):
        return _cut(_fold_ids(cv, n_rows), shuffle, seed)
    raise ValueError(f'cv must be an int, "loo", a splitter or one fold id per row, got {cv!r}.')


def _even(n_rows: int, n_folds: int, shuffle: bool, seed: int) -> Folds:
    if not shuffle:
        return Folds(np.arange(n_rows, dtype=np.uint32), n_folds)
    return Folds(_permutation(n_rows, seed, _ROWS), n_folds)


def _permutation(n: int, seed: int, purpose: int) -> np.ndarray:
    order = np.empty(n, np.uint32)
    random_order(derive_seed(seed, purpose), 0, n, 0, order)
    return order


def _test_folds(cv: Any, X: Any, y: np.ndarray | None, groups: Any, n_rows: int) -> np.ndarray:
    """Return the fold in which a splitter tests each row.

    Every model of TreeCV trains on all rows outside its fold. Therefore a splitter is refused if
    it leaves rows out of training, as purged or embargoed folds do: they would be trained on.
    """
    name = type(cv).__name__
    times = np.zeros(n_rows, np.int64)
    fold = np.full(n_rows, -1, np.int64)
    problem = None  # the first training set that is not the complement of its test set
    looks_ahead = True  # every test set comes after its training set
    for i, split in enumerate(_splits(cv, X, y, groups)):
        if not isinstance(split, tuple | list) or len(split) != 2:
            raise ValueError(
                "cv must be a splitter that gives pairs of train and test rows, but "
                f"{name} gives {split!r} in split {i}."
            )
        train, test = split
        tested = _row_numbers(test, n_rows, f"{name} tests", i)
        if len(tested) == 0:
            raise ValueError(
                f"cv must be a splitter whose test sets hold at least one row, but {name} tests "
                f"no row in split {i}."
            )
        np.add.at(times, tested, 1)
        fold[tested] = i
        is_other = np.ones(n_rows, bool)
        is_other[tested] = False
        if not np.array_equal(train, np.flatnonzero(is_other)):  # most splitters give just these
            trained = _row_numbers(train, n_rows, f"{name} trains on", i)
            problem = problem or _leak(trained, tested, n_rows, i)
            looks_ahead = looks_ahead and trained.max(initial=-1) < tested.min()
        if i >= n_rows or times[tested].max() > _MOST_TIMES:  # the splitter may never end
            break
    if np.all(times == 1):
        if problem is not None:
            raise ValueError(
                "cv must be a splitter that trains each model on all rows outside its test set, "
                f"since TreeCV does, but {name} {problem}."
            )
        return fold
    if np.any(times > 1):
        reason = f"row {np.argmax(times > 1)} is tested {times.max()} times"
        advice = (
            "use n_repeats for several partitions"
            if np.all(times == times[0])
            else "use KFold, for example"
        )
    else:
        reason = f"row {np.argmin(times)} is never tested"
        advice = "use KFold, for example"
        if looks_ahead:
            advice = (
                "where models must not know later rows, cross_val_score of scikit-learn would be "
                "right, since the tree trains each model on all rows that it does not test"
            )
    raise ValueError(
        f"cv must be a splitter whose test sets partition the rows, but with {name} {reason}; "
        f"{advice}."
    )


def _splits(
    cv: Any, X: Any, y: np.ndarray | None, groups: Any
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a splitter's train and test rows; its errors name the argument that is missing."""
    name = type(cv).__name__
    try:
        yield from cv.split(X, y, groups)
    except (TypeError, ValueError) as error:
        if groups is None and "groups" in str(error):
            raise ValueError(
                f"groups must be given with cv={name}, one group id per row, got None."
            ) from error
        if y is None and "Stratified" in name:
            raise ValueError(
                f"y must be given with cv={name}, one label per row, got None."
            ) from error
        raise ValueError(f"cv={name} cannot split the rows: {error}") from error


def _row_numbers(rows: Any, n_rows: int, what: str, split: int) -> np.ndarray:
    """Return the row numbers of one half of a split, which may be a mask; ``what`` it does."""
    numbers = np.asarray(rows)
    if numbers.ndim != 1:
        raise ValueError(
            f"cv must be a splitter that gives arrays of row numbers, but {what} {rows!r} in "
            f"split {split}."
        )
    if numbers.dtype == bool and numbers.shape == (n_rows,):
        return np.flatnonzero(numbers)
    expected = f"cv must be a splitter that gives row numbers from 0 to {n_rows - 1}, but {what}"
    if len(numbers) and numbers.dtype.kind not in "iu":
        raise ValueError(f"{expected} rows of type {numbers.dtype} in split {split}.")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < n_rows:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise ValueError(f"{expected} row {wrong} in split {split}.")
    return numbers.astype(np.intp, copy=False)


def _leak(trained: np.ndarray, tested: np.ndarray, n_rows: int, split: int) -> str | None:
    """Return how the training rows of a split differ from all rows that it does not test."""
    is_used = np.zeros(n_rows, bool)
    is_used[trained] = True
    if np.any(is_used[tested]):
        row = tested[np.argmax(is_used[tested])]
        return f"trains on row {row} in split {split}, which it tests there"
    is_used[tested] = True
    if not np.all(is_used):
        row = np.argmin(is_used)
        return f"leaves row {row} out of training in split {split} without testing it"
    if len(trained) + len(np.unique(tested)) > n_rows:
        row = np.argmax(np.bincount(trained) > 1)
        return f"trains on row {row} twice or more in split {split}"
    return None


def _fold_ids(cv: Any, n_rows: int) -> np.ndarray:
    """Return the fold ids of the rows after checking them."""
    check_array_kind("cv", cv)
    expected = "cv must hold one integer fold id per row when it is a sequence"
    try:
        ids = np.asarray(cv if hasattr(cv, "__len__") else list(cv))
    except ValueError as error:
        raise ValueError(
            f"{expected}, not pairs of train and test rows; pass the splitter itself."
        ) from error
    if ids.ndim != 1 or ids.dtype.kind not in "iub":
        raise ValueError(f"{expected}, got shape {ids.shape} of type {ids.dtype}.")
    if len(ids) != n_rows:
        raise ValueError(f"{expected}: X has {n_rows} rows, cv has {len(ids)} entries.")
    if np.any(ids < 0):
        raise ValueError(
            f"cv must not hold negative fold ids (every row is tested), got {ids.min()}."
        )
    return ids


def _cut(ids: np.ndarray, shuffle: bool, seed: int) -> Folds:
    """Return one chunk per fold id.

    With ``shuffle`` the folds are permuted, because neighbouring chunks train on each other's rows
    last. Otherwise these would be folds that are neighbours in the data.
    """
    present, folds, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    n_folds = len(present)
    if n_folds < 2:
        raise ValueError(f"cv must make at least 2 folds, got {n_folds}.")
    rows = np.arange(len(ids), dtype=np.uint32)
    numbers = None
    if shuffle:
        rows = _permutation(len(ids), seed, _ROWS)
        numbers = _permutation(n_folds, seed, _FOLDS)
        folds = np.argsort(numbers)[folds]
        sizes = sizes[numbers]
    order = rows[np.argsort(folds[rows], kind="stable")]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Folds(order, n_folds, bounds, numbers)
