"""Whether sums over the rows give the models of fits: exact folds, and naive Bayes in the tree."""

from __future__ import annotations

from typing import Any
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import is_classifier
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import GaussianNB

from optuna_treecv.crossval.exact_rows import columns_after
from optuna_treecv.learners.exact.chunks import Facts
from optuna_treecv.learners.exact.families import parts_of
from optuna_treecv.learners.steps.split import NAIVE_BAYES
from optuna_treecv.learners.without_effect import trained_parts
from optuna_treecv.rows.data import as_codes
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import Scorer

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
    n_trained, n_of_class = _fewest_trained(job.task, is_classifier(estimator))
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


def why_counts_differ(job: Job) -> str:
    """Return why naive Bayes in the tree may be another model than its fit, a clause; else ""."""
    models = [part for _, part in trained_parts(job.estimator) if isinstance(part, NAIVE_BAYES)]
    if not models:
        return ""
    task, weights = job.task, job.passed.weights
    if _fewest_trained(task, of_classes=True)[1] == 0:
        return "a training set lacks a class, which fit would not know"
    if any(isinstance(one, CategoricalNB) for one in models):
        if weights is not None and not np.all(weights):
            return "CategoricalNB knows the categories of rows whose weight is 0"
    if any(isinstance(one, GaussianNB) for one in models):
        if task.fact("squares overflow", lambda: _squares_overflow(task.data.X)):
            return "squares of numbers in X overflow"
    return ""


def _squares_overflow(X: Any) -> bool:
    """Return whether sums of squares may be infinite, if the rows are an array of floats."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    return max(-X.min(), X.max()) > np.sqrt(np.finfo(X.dtype).max / len(X))


def _fewest_trained(task: Task, of_classes: bool) -> tuple[int, int]:
    """Return the rows of the smallest training set, and of the rarest class in any of them."""
    data = task.data

    def count() -> tuple[int, int]:
        codes = as_codes(data.y, data.classes()) if of_classes else np.zeros(data.n_rows, np.intp)
        trained = [
            [repeat.cut.count(codes == code)[0] for code in range(int(codes.max()) + 1)]
            for repeat in task.repeats
        ]
        n_trained = min(int(np.sum(of_repeat, axis=0).min()) for of_repeat in trained)
        return n_trained, min(int(np.min(of_repeat)) for of_repeat in trained)

    return task.fact(("fewest trained", of_classes), count)
