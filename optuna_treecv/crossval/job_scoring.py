"""The scoring of an estimator: chosen if none was given, and refused where it would mislead."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.crossval.small_folds import why_too_small
from optuna_treecv.learners.from_estimator import check_methods
from optuna_treecv.learners.from_estimator import takes_seed
from optuna_treecv.learners.names import name_of
from optuna_treecv.scoring import Metric
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import Scoring
from optuna_treecv.scoring import scoring_for

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job


def scoring_of(job: Job, of_class: bool = False) -> Scoring:
    """Return the scoring of a job's estimator.

    Parameters
    ----------
    job : Job
        Its engine is chosen.
    of_class : bool
        Refuse only what no parameter could change.

    Raises
    ------
    ValueError
        If the estimator cannot be evaluated by it, or if repeats or the order would change
        nothing.
    """
    task, estimator, settings = job.task, job.estimator, job.task.settings
    scoring = scoring_for(settings.scored_by, estimator, settings.pooled)
    task.take_scoring(scoring, estimator)
    if task.data.y is None and (is_classifier(estimator) or is_regressor(estimator)):
        kind = "classifier" if is_classifier(estimator) else "regressor"
        raise ValueError(f"y must be given for a {kind}, got None.")
    for metric in scoring.metrics:
        _check_takes_columns(metric, job)
        check_methods(estimator, metric.methods, f"scoring={metric.name!r}", of_class)
        _check_takes_weights(metric, job)
    if settings.order == "random" and not job.engine.trains_further:
        raise ValueError(
            "order must be 'fixed' where folds are fitted, since fit of "
            f"{name_of(estimator)} gets the rows in their own order, got 'random'."
        )
    if task.n_repeats > 1 and not takes_seed(estimator):
        _check_repeats_differ(job)
    for metric in scoring.metrics:
        about = f"size of folds for {metric.name}"
        task.warn_once(about, partial(_why_too_small, metric, job))
    return scoring


def check_scores_rows(job: Job) -> None:
    """Refuse a metric that is no mean over rows where the scores of rows are needed."""
    settings = job.task.settings
    for metric in job.scored_by_row:
        if not job.scores_rows(metric):
            asked = f"report={settings.report!r}" if settings.is_early else "row_losses=True"
            if settings.method == "progressive":
                asked = "method='progressive'"
            raise ValueError(
                f"{asked} needs a loss, or a scorer of scikit-learn that is a mean over rows, "
                "such as 'accuracy' or 'neg_mean_squared_error', got "
                f"scoring={metric.name!r}."
            )


def _check_takes_weights(metric: Metric, job: Job) -> None:
    scorer = metric.of if isinstance(metric, Pooled) else metric
    if job.task.data.score_weights is None or not isinstance(scorer, Scorer):
        return
    if not scorer.takes_weights:
        raise ValueError(
            f"score_weight must be None with scoring={metric.name!r}, which takes no "
            "sample_weight."
        )


def _check_takes_columns(metric: Metric, job: Job) -> None:
    """Refuse a loss of classes for several columns of them."""
    data = job.task.data
    columns = data.why_only_fit(is_classifier(job.estimator)).startswith("y has")
    if columns and not isinstance(metric, Scorer):
        raise ValueError(
            "scoring must be a scorer(estimator, X, y), or the name of one such as 'accuracy' "
            f"for columns of classes, for y of shape {data.y.shape}, got {metric.name!r}."
        )


def _check_repeats_differ(job: Job) -> None:
    task = job.task
    first, *others = [repeat.cut for repeat in task.repeats]
    if job.engine.trains_further:
        are_alike = task.settings.order == "fixed" and all(map(first.equals, others))
        order, right = ", order='fixed'", "order='random' or "
    else:
        are_alike = all(map(first.fits_like, others))
        order = right = ""
    if are_alike:
        raise ValueError(
            f"n_repeats must be 1 where no repeat differs, got {task.n_repeats} with the same "
            f"folds each time{order} and no random_state=None in {name_of(job.estimator)}; {right}"
            "shuffle=True would be right, or a cv that shuffles anew."
        )


def _why_too_small(metric: Metric, job: Job) -> str:
    """Return why folds are too small for a score that is not a mean over rows, a sentence."""
    data, repeats = job.task.data, job.task.repeats
    whys = (why_too_small(metric, job.estimator, data, repeat.cut) for repeat in repeats)
    return next(filter(None, whys), "")
