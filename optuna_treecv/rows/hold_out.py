"""One fold that tests some rows: hold-outs, and the rows of one pass after a warm-up."""

from __future__ import annotations

import numpy as np

from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import permutation_of_rows
from optuna_treecv.rows.splits import Splits

# The model has seen one of so many parts of the rows before it is tested.
_PARTS_OF_WARM_UP = 8


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
