"""The rows for exact folds: after the row-wise steps of a Pipeline, and prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import take_rows
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

if TYPE_CHECKING:
    from optuna_treecv.crossval.task import Task


def prepared_after(task: Task, parts: Parts, repeat: Repeat) -> tuple[PreparedRows, float]:
    """Return the rows of a repeat after the row-wise steps, and the seconds that took."""
    target = "class" if is_classifier(parts.last) else "number"
    layout = RowLayout(padded=True, sparse=True, target=target)
    if not parts.steps:
        return task.rows_in(layout, repeat)

    def transform(data: Data) -> Data:
        return data.with_rows(_after(parts.steps, data.X))

    return task.rows_in(layout, repeat, transform, _name_of(parts.steps))


def _name_of(steps: Sequence[Any]) -> bytes | None:
    """Return a name for row-wise steps; None if there is none."""
    try:
        return digest(*map(lasting_key, steps))
    except NoKey:
        return None


def columns_after(task: Task, steps: Sequence[Any]) -> tuple[int, bool] | str:
    """Return the number of columns after row-wise steps, and whether the rows are sparse then.

    Both are the same for all rows, so the first row tells them. Or return why it does not, a
    clause.
    """
    data = task.data
    if not steps:
        return data.n_features, sparse.issparse(data.X)
    try:
        after = _after(steps, take_rows(data.X, slice(0, 1)))
    except Exception:  # noqa: BLE001  # whatever steps raise; the fits will raise it again
        return "the steps cannot transform the first row"
    return int(after.shape[1]), sparse.issparse(after)


def _after(steps: Sequence[Any], X: Any) -> Any:
    for step in steps:
        X = unshared(step, X)
        X = clone(step).fit(X).transform(X)
    return X
