"""The rows for exact folds: after the stateless steps of a Pipeline, and prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.preprocessing import FunctionTransformer

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.steps.running import unshared
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import take_rows
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

# The rows on which stateless steps are tried.
_SAMPLE = 20


def prepared_after(
    evaluation: Evaluation, parts: Parts, repeat: Repeat
) -> tuple[PreparedRows, float]:
    """Return the rows of a repeat after the stateless steps, and the seconds that took."""
    target = "class" if is_classifier(parts.last) else "number"
    layout = RowLayout(padded=True, sparse=True, target=target)
    if not parts.steps:
        return evaluation.rows_in(layout, repeat)

    def transform(data: Data) -> Data:
        return data.with_rows(_after(parts.steps, data.X))

    return evaluation.rows_in(layout, repeat, transform, _name_of(parts.steps))


def _name_of(steps: Sequence[Any]) -> bytes | None:
    """Return a name for stateless steps; None if there is none."""
    try:
        return digest(*map(lasting_key, steps))
    except NoKey:
        return None


def columns_after(evaluation: Evaluation, steps: Sequence[Any]) -> tuple[int, bool] | str:
    """Return the number of columns after the steps, and whether the rows are sparse then.

    Or return why the steps are no transformation of each row for itself, a clause.
    """
    data = evaluation.data
    if not steps:
        return data.n_features, sparse.issparse(data.X)
    name = _name_of(steps)
    if name is None:
        return _columns_of_sample(steps, data)
    return evaluation.fact(("columns", name), lambda: _columns_of_sample(steps, data))


def _columns_of_sample(steps: Sequence[Any], data: Data) -> tuple[int, bool] | str:
    """Return the same after trying the steps on some rows."""
    try:
        return _tried(steps, data)
    except Exception:  # noqa: BLE001  # of code that may need more rows; fits will raise the rest
        return "the stateless steps do not transform a few rows alone"


def _tried(steps: Sequence[Any], data: Data) -> tuple[int, bool] | str:
    n_rows = min(_SAMPLE, data.n_rows)
    rows = take_rows(data.X, slice(0, n_rows))
    after = _after(steps, rows)
    if len(np.shape(after)) != 2 or np.shape(after)[0] != n_rows:
        return f"the step {type(steps[-1]).__name__} does not return one row for each row"
    if any(_may_mix_rows(step) for step in steps):
        together = _dense(after)
        for row in (0, n_rows // 2, n_rows - 1):
            alone = _dense(_after(steps, take_rows(data.X, slice(row, row + 1))))
            same = alone.shape == (1, together.shape[1]) and np.allclose(
                alone[0], together[row], rtol=1e-9, atol=0, equal_nan=True
            )
            if not same:
                return "a stateless step transforms a row differently beside other rows"
    return int(np.shape(after)[1]), sparse.issparse(after)


def _may_mix_rows(step: Any) -> bool:
    """Return whether a step may be a function of all rows; those of scikit-learn are not."""
    is_known = type(step).__module__.partition(".")[0] == "sklearn"
    return not is_known or isinstance(step, FunctionTransformer)


def _after(steps: Sequence[Any], X: Any) -> Any:
    for step in steps:
        X = unshared(step, X)
        X = clone(step).fit(X).transform(X)
    return X


def _dense(rows: Any) -> np.ndarray:
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=np.float64)
