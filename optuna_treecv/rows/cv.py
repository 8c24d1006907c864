"""Converts the argument ``cv`` to folds or splits."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import GroupShuffleSplit
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.model_selection import StratifiedKFold
from xxhash import xxh3_128

from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import even_folds
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import folds_of_ids
from optuna_treecv.rows.folds import hold_out
from optuna_treecv.rows.folds import OF_FOLDS
from optuna_treecv.rows.folds import OF_ROWS
from optuna_treecv.rows.folds import packed
from optuna_treecv.rows.folds import permutation
from optuna_treecv.rows.folds import Splits
from optuna_treecv.rows.folds import stratified_chunks
from optuna_treecv.rows.folds import stratified_sample
from optuna_treecv.rows.folds import TrainRows

#: The limits for splitters that never end: the maximum number of splits (or the number of rows, if
#: it is larger), and the maximum number of bytes.
MOST_SPLITS, MOST_BYTES = 10_000, 2**32

#: The most recent stratified folds are cached if they have at most this number of rows, because
#: several estimators are often compared on the same rows. They take 4 bytes per row and 8 per
#: fold.
MOST_KEPT = 2**22
_kept: list[tuple[tuple[bytes, int, int], Folds]] = []

_EXPECTED = (
    'cv must be an int, a fraction of test rows such as 0.2, "loo", a splitter, one fold id per '
    "row or pairs of training and test rows"
)


@dataclass(frozen=True)
class ToCut:
    """The rows to split, and the options by which they are split.

    Attributes
    ----------
    X, y, groups
        The arguments of ``split`` of a splitter.
    n_rows : int
    shuffle : bool
        For an int, a share or "loo": whether to permute the rows before splitting. Otherwise:
        whether to permute the folds, and the rows within each fold.
    codes : ndarray of shape (n_rows,) or None
        The class of each row if the folds of an int or a share are stratified. Each class must
        have at least as many rows as there are folds.
    """

    X: Any
    y: np.ndarray | None
    groups: Any
    n_rows: int
    shuffle: bool
    codes: np.ndarray | None = None


def make_cuts(cv: Any, rows: ToCut, seeds: Callable[[int], int], n_repeats: int) -> list[Cut]:
    """Return the folds or splits for each repeat.

    A repeated splitter, such as ``RepeatedKFold``, gives several repeats each time it is read.

    Parameters
    ----------
    cv : int, float, "loo", splitter, array-like of shape (n_rows,), or iterable of pairs
        The number of folds; the share of test rows of a hold-out; "loo" for leave-one-out; an
        object with ``split``; the fold of each row, -1 for rows that are only trained on; or pairs
        of training and test rows.
    rows : ToCut
    seeds : callable
        (repeat) -> 64-bit seed.
    n_repeats : int
        How many times ``cv`` is read.

    Raises
    ------
    ValueError
        If ``cv`` is invalid.
    """
    cuts: list[Cut] = []
    for _ in range(n_repeats):
        cuts += _cuts(cv, rows, partial(lambda first, number: seeds(first + number), len(cuts)))
    return cuts


def _cuts(cv: Any, rows: ToCut, seeds: Callable[[int], int]) -> list[Cut]:
    """Return a list of folds or splits; a repeated splitter has several."""
    n_rows, shuffle, seed = rows.n_rows, rows.shuffle, seeds(0)
    if isinstance(cv, str | bytes):
        if cv != "loo":
            raise ValueError(f"{_EXPECTED}, got {cv!r}.")
        _refuse_groups(rows, "cv='loo'", "cv=LeaveOneGroupOut()")
        return [even_folds(n_rows, n_rows, shuffle, seed)]
    if is_integer(cv):
        if not 2 <= cv <= n_rows:
            raise ValueError(f"cv must be between 2 and the number of rows, {n_rows}, got {cv}.")
        if rows.groups is None:
            return [_folds_of_int(int(cv), rows, seed)]
        drawn = {"shuffle": True, "random_state": seed % 2**32} if shuffle else {}
        splitter = (GroupKFold if rows.codes is None else StratifiedGroupKFold)(int(cv), **drawn)
        return _cuts_of_splits(splitter, f"{type(splitter).__name__}({cv})", rows, seeds)
    if isinstance(cv, float | np.floating):
        if not 0 < float(cv) < 1:
            raise ValueError(
                "cv must be either an int or a float between 0 and 1, the fraction of test rows, "
                f"got {cv!r}."
            )
        if rows.groups is None:
            return [_share(float(cv), rows, seed)]
        if not shuffle:
            raise ValueError(
                "groups must be None if cv is a float and shuffle=False, because the groups of a "
                "hold-out are drawn at random; use shuffle=True instead."
            )
        cv = GroupShuffleSplit(1, test_size=float(cv), random_state=seed % 2**32)
    if isinstance(cv, LeaveOneOut):  # its split() yields n_rows - 1 row indices per fold
        return [even_folds(n_rows, n_rows, shuffle, seed)]
    if isinstance(cv, type):
        raise ValueError(
            f"cv must be a splitter instance, such as KFold(5), got the class {cv!r}."
        )
    if hasattr(cv, "split"):
        return _cuts_of_splits(cv, type(cv).__name__, rows, seeds)
    if isinstance(cv, Iterable) and not isinstance(cv, dict):
        _refuse_groups(rows, "fold ids or pairs in cv", "a splitter")
        if are_pairs(cv):
            return _cuts_of_splits(cv, "the iterable", rows, seeds)
        return [_folds_of_given_ids(cv, rows, seed)]
    raise ValueError(f"{_EXPECTED}, got {cv!r}.")


def _folds_of_int(n_folds: int, rows: ToCut, seed: int) -> Folds:
    if rows.codes is None or n_folds == rows.n_rows:
        return even_folds(rows.n_rows, n_folds, rows.shuffle, seed)
    if not rows.shuffle:
        ids = np.empty(rows.n_rows, np.int64)
        nothing = np.zeros(rows.n_rows)
        for fold, (_, test) in enumerate(StratifiedKFold(n_folds).split(nothing, rows.codes)):
            ids[test] = fold
        return folds_of_ids(ids, False, seed)
    codes = rows.codes.dtype.str.encode() + xxh3_128(rows.codes.data).digest()
    key = codes, n_folds, seed
    for cached, folds in _kept:
        if cached == key:
            return folds
    random_rows = permutation(rows.n_rows, seed, OF_ROWS)
    order, bounds = stratified_chunks(rows.codes, n_folds, random_rows, seed)
    order.flags.writeable = bounds.flags.writeable = False
    folds = Folds(order, n_folds, bounds)
    _kept[:] = [(key, folds)] if rows.n_rows <= MOST_KEPT else []
    return folds


def _share(share: float, rows: ToCut, seed: int) -> Folds:
    """Return a single fold with a share of the rows: the last rows, or random ones if shuffled."""
    n_rows = rows.n_rows
    n_test = min(ceil(share * n_rows), n_rows - 1)
    test = np.arange(n_rows - n_test, n_rows)
    if rows.shuffle and rows.codes is not None:
        test = stratified_sample(rows.codes, n_test, seed)
    elif rows.shuffle:
        test = permutation(n_rows, seed, OF_ROWS)[n_rows - n_test :]
    return hold_out(test, n_rows, rows.shuffle, seed)


def _refuse_groups(rows: ToCut, cv: str, hint: str) -> None:
    if rows.groups is not None:
        raise ValueError(f"groups must be None with {cv}, which ignores them; use {hint} instead.")


def are_pairs(cv: Any) -> bool:
    """Return whether a sequence consists of pairs of arrays rather than fold ids."""
    if not isinstance(cv, Iterable) or isinstance(cv, str):
        return False
    first = next(iter(cv), None)
    return (
        isinstance(first, tuple | list)
        and len(first) == 2
        and all(isinstance(part, Iterable) and not isinstance(part, str) for part in first)
    )


def _folds_of_given_ids(cv: Any, rows: ToCut, seed: int) -> Folds:
    check_array_kind("cv", cv)
    expected = "cv must hold one integer fold id per row if it is a sequence"
    try:
        ids = np.asarray(cv if hasattr(cv, "__len__") else list(cv))
    except ValueError as error:
        raise ValueError(
            "cv must be a sequence of one integer fold id per row, or of pairs such as "
            "[(train, test)], got entries of different lengths."
        ) from error
    if ids.ndim != 1 or ids.dtype.kind not in "iub":
        raise ValueError(f"{expected}, got shape {ids.shape} of type {ids.dtype}.")
    if len(ids) != rows.n_rows:
        raise ValueError(f"{expected}: X has {rows.n_rows} rows, cv has {len(ids)} entries.")
    if np.any(ids < -1):
        raise ValueError(
            f"cv must not contain fold ids below -1, got {ids.min()}; use -1 for rows that are "
            "only trained on."
        )
    return folds_of_ids(ids, rows.shuffle, seed)


# Splitters.


def _cuts_of_splits(cv: Any, name: str, rows: ToCut, seeds: Callable[[int], int]) -> list[Cut]:
    """Return folds if the test sets of each repeat are a partition of the rows, else splits."""
    splits, is_ascending, problem = _read_splits(cv, name, rows)
    if splits.grows and splits.n_folds > 1:  # a chain reads the rows in their order
        return [splits]
    reason, partitions = _partitions(splits.tests, rows.n_rows)
    if problem is None and partitions:
        cuts: list[Cut] = []
        for ids, numbers in partitions:
            of_part = None
            if not is_ascending:
                part = slice(numbers.start, numbers.stop)
                of_part = Splits(splits.order, splits.trains[part], splits.tests[part])
            cuts.append(folds_of_ids(ids, rows.shuffle, seeds(len(cuts)), of_part))
        return cuts
    if rows.shuffle and not splits.grows:
        seed = seeds(0)
        splits = replace(
            splits,
            order=permutation(rows.n_rows, seed, OF_ROWS),
            numbers=permutation(splits.n_folds, seed, OF_FOLDS),
        )
    return [replace(splits, why_no_tree=f"{name} {problem or reason}")]


def _read_splits(cv: Any, name: str, rows: ToCut) -> tuple[Splits, bool, str | None]:
    """Read all splits of a splitter, and check them.

    Also return whether the rows of all splits are ascending, and None or the first problem: how a
    training set differs from the complement of its test set.
    """
    n_rows = rows.n_rows
    trains: list[TrainRows] = []
    tests: list[np.ndarray] = []
    is_ascending, problem, n_bytes = True, None, 0
    for i, split in enumerate(_splits(cv, name, rows)):
        if not isinstance(split, tuple | list) or len(split) != 2:
            raise ValueError(
                "cv must be a splitter that yields pairs of training and test rows, but "
                f"{name} yields {split!r} in split {i}."
            )
        if i >= max(MOST_SPLITS, n_rows) or n_bytes > MOST_BYTES:
            raise ValueError(
                f"cv must yield fewer splits of {n_rows} rows, got more than {i} from {name}, or "
                "too many row indices for memory; use fewer splits, or a cv that ends, instead."
            )
        trained = _row_numbers(split[0], n_rows, f"{name} trains on", i)
        tested = _row_numbers(split[1], n_rows, f"{name} tests", i)
        for verb, numbers in (("tests", tested), ("trains on", trained)):
            if len(numbers) == 0:
                raise ValueError(
                    "cv must be a splitter whose training and test sets have at least one row, "
                    f"but {name} {verb} no row in split {i}."
                )
        is_other = np.ones(n_rows, bool)
        is_other[tested] = False
        others = np.flatnonzero(is_other)
        train: TrainRows = None  # most splitters train on all other rows
        if not np.array_equal(trained, others):
            if not np.all(is_other[trained]):
                row = trained[np.argmin(is_other[trained])]
                raise ValueError(
                    "cv must be a splitter with disjoint training and test sets, but "
                    f"{name} has row {row} in both sets of split {i}."
                )
            train = packed(trained, n_rows)
            most = getattr(cv, "max_train_size", None)
            problem = problem or _difference(trained, is_other, i, most)
            is_ascending = is_ascending and bool(np.all(trained[1:] > trained[:-1]))
        elif len(others) == others[-1] + 1:
            train = len(others)
        is_ascending = is_ascending and bool(np.all(tested[1:] > tested[:-1]))
        trains.append(train)
        tests.append(tested.astype(np.uint32))
        n_bytes += getattr(train, "nbytes", 8) + tests[-1].nbytes
    if not tests:
        raise ValueError(f"cv must yield at least one split, but {name} yields none.")
    order = np.arange(n_rows, dtype=np.uint32)
    return Splits(order, tuple(trains), tuple(tests)), is_ascending, problem


def _splits(cv: Any, name: str, rows: ToCut) -> Iterator[Any]:
    """Yield the pairs of training and test rows; errors name a missing argument."""
    try:
        yield from cv.split(rows.X, rows.y, rows.groups) if hasattr(cv, "split") else cv
    except (TypeError, ValueError) as error:
        if rows.groups is None and "groups" in str(error):
            raise ValueError(
                f"groups must be given with cv={name}, one group id per row, got None: {error}"
            ) from error
        if rows.y is None and "Stratified" in name:
            raise ValueError(
                f"y must be given with cv={name}, one label per row, got None."
            ) from error
        raise ValueError(f"cv={name} cannot split the rows: {error}") from error


def _row_numbers(rows: Any, n_rows: int, what: str, split: int) -> np.ndarray:
    """Check the row indices of a training or test set; ``what`` describes the set in errors."""
    numbers = np.asarray(rows)
    if numbers.ndim != 1:
        raise ValueError(
            f"cv must be a splitter that yields arrays of row indices, but {what} {rows!r} in "
            f"split {split}."
        )
    if numbers.dtype == bool and numbers.shape == (n_rows,):
        return np.flatnonzero(numbers)
    expected = f"cv must be a splitter that yields row numbers from 0 to {n_rows - 1}, but {what}"
    if len(numbers) and numbers.dtype.kind not in "iu":
        raise ValueError(f"{expected} rows of type {numbers.dtype} in split {split}.")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < n_rows:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise ValueError(f"{expected} row {wrong} in split {split}.")
    return numbers.astype(np.intp, copy=False)


def _difference(
    trained: np.ndarray, is_other: np.ndarray, split: int, most: int | None
) -> str | None:
    """Return how training rows differ from the complement of the test set, or None.

    The order of the rows is ignored. ``most`` is the ``max_train_size`` of a time series splitter.
    """
    times = np.bincount(trained, minlength=len(is_other))
    if np.any(missing := is_other & (times == 0)):
        row = np.argmax(missing)
        if most is not None and len(trained) == most:
            return f"drops row {row} in split {split} (max_train_size={most})"
        return f"neither trains on nor tests row {row} in split {split}"
    if np.any(times > 1):
        return f"trains on row {np.argmax(times > 1)} twice or more in split {split}"
    return None


def _partitions(
    tests: Sequence[np.ndarray], n_rows: int
) -> tuple[str, list[tuple[np.ndarray, range]]]:
    """Group the test sets of splits into partitions of the rows, one for each repeat.

    Returns
    -------
    str
        The reason if this is impossible, else "".
    list of (ids, numbers)
        For each partition, the fold of each row (-1 for rows that are never tested), and the
        indices of the splits.
    """
    partitions: list[tuple[np.ndarray, range]] = []
    ids, begin = np.full(n_rows, -1), 0
    for i, test in enumerate(tests):
        values, times = np.unique(test, return_counts=True)
        if len(values) < len(test):
            return f"tests row {values[np.argmax(times)]} twice in split {i}", []
        if np.any(ids[test] >= 0):
            partitions.append((ids, range(begin, i)))
            ids, begin = np.full(n_rows, -1), i
        ids[test] = i - begin
    partitions.append((ids, range(begin, len(tests))))
    first, n_folds = partitions[0][0] >= 0, len(partitions[0][1])
    if any(len(numbers) != n_folds or np.any((ids >= 0) != first) for ids, numbers in partitions):
        row = np.argmax(sum((ids >= 0).astype(int) for ids, _ in partitions))
        return f"tests row {row} in more splits than other rows", []
    if len(partitions) > 1 and n_folds == 1:
        return "tests the same rows in every split", []
    return "", partitions
