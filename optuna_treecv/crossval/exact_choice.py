"""Whether an estimator can have exact folds, why not, and the rows for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.learners.exact.chunks import Facts
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.exact.families import parts_of
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import take_rows
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import Scorer
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job
    from optuna_treecv.crossval.task import Task

_RESPONSES = {"predict", "decision_function", "predict_proba"}


def why_not_exact(job: Job) -> str:
    """Return why an estimator has no exact folds, a clause; "" if it has them."""
    estimator, passed, is_asked = job.estimator, job.passed, job.task.settings.method == "exact"
    parts = parts_of(estimator)
    if isinstance(parts, str):
        return parts
    if job.task.repeats[0].plan.random and not is_asked:
        return "order='random' has no meaning for sums over rows"
    why = passed.why_not_by_sums(estimator) or why_not_scored(job)
    if why:
        return why
    after = columns_after(job.task, parts.steps)
    if isinstance(after, str):
        return after
    n_features, is_sparse = after
    if is_sparse and parts.scaler is not None and parts.scaler.with_mean:
        return "a StandardScaler cannot subtract a mean from sparse rows"
    n_trained, n_of_class = job.task.fewest_trained(is_classifier(estimator))
    facts = Facts(
        n_features=n_features,
        is_sparse=is_sparse,
        has_weights=passed.weights is not None,
        has_scaler=parts.scaler is not None,
        n_trained=n_trained,
        n_of_class=n_of_class,
        n_folds=job.task.n_folds,
        is_asked=is_asked,
    )
    return parts.family.why_not(parts.last, facts)


def why_not_scored(job: Job) -> str:
    """Return why a score needs more than predictions, a clause; "" if none does."""
    scoring = job.task.settings.scored_by
    for metric in () if scoring is None else scoring.metrics:
        scorer = metric.of if isinstance(metric, Pooled) else metric
        if isinstance(scorer, Scorer) and not scorer.is_made:
            return f"the scorer {scorer.name} may look at more than predictions"
        methods = [scorer.methods] if isinstance(scorer.methods, str) else scorer.methods
        if not _RESPONSES.issuperset(methods or ()):
            return f"the score {scorer.name} needs other responses than predictions"
    return ""


def prepared_after(task: Task, parts: Parts, repeat: Repeat) -> tuple[PreparedRows, float]:
    """Return the rows of a repeat after the row-wise steps, and the seconds that took."""
    target = "class" if is_classifier(parts.last) else "number"
    layout = RowLayout(padded=True, sparse=True, target=target)
    if not parts.steps:
        rows = task.rows_in(layout, repeat)
        return rows, rows.seconds

    def transform(data: Data) -> Data:
        return data.with_rows(_after(parts.steps, data.X))

    rows = task.rows_in(layout, repeat, transform, _name_of(parts.steps))
    return rows, rows.seconds


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
