"""Choose the engine that evaluates an estimator, and check that its scoring is meaningful.

If a score is not a mean over rows, its mean over folds depends on the size of the folds. For
example, the root mean squared error of a fold with one row is an absolute error, so its mean over
such folds is the mean absolute error.
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from inspect import signature

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.dummy import DummyClassifier
from sklearn.dummy import DummyRegressor
from sklearn.metrics import average_precision_score

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Engine
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.request import Request
from optuna_treecv.core.settings import ENGINE_SETTINGS
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import divergence_advice
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.checks import check_methods
from optuna_treecv.estimators.checks import check_targets
from optuna_treecv.estimators.checks import checked_estimator
from optuna_treecv.estimators.checks import takes_seed
from optuna_treecv.estimators.incremental import OF_PASSES
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.row_file import leave_pages
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import can_score_rows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque


def request_for(
    cross_validation: CrossValidation,
    estimator: Estimator,
    n_epochs: int | None = None,
    *,
    searched: Collection[str] = (),
    **wants: Opaque,
) -> Request:
    """Return the request to evaluate an estimator; split the rows if they are not split yet.

    Parameters
    ----------
    cross_validation : CrossValidation
    estimator : estimator
    n_epochs : int or None
        The number of epochs for this estimator; None: the number in the settings.
    searched : collection of str
        The names of the parameters that a search sets.
    **wants : bool or str
        ``of_class``, ``is_scored``, ``wants_rows`` and ``wants_average`` of ``Request``.
    """
    estimator = checked_estimator(estimator)
    cross_validation.data.check_unchanged()
    check_targets(estimator, cross_validation.data, searched)
    cross_validation.divide_for(estimator)
    return Request(
        cross_validation,
        estimator,
        cross_validation.metadata_for(estimator),
        cross_validation.settings.n_epochs if n_epochs is None else n_epochs,
        # In a search over n_epochs, models are always trained incrementally, even for one epoch.
        n_epochs is not None or cross_validation.asks_for_passes or "n_epochs" in searched,
        searched,
        **wants,
    )


def plan_for(request: Request, engines: Sequence[Engine]) -> Plan:
    """Return the plan of the first engine that ``method`` allows and that accepts the request.

    The last engine accepts any estimator that has ``fit``. Warn once if the choice of the engine
    may surprise the user.

    Raises
    ------
    ValueError
        If no engine can evaluate the estimator by the requested method.
    """
    *others, (engine, plan) = ask_engines(request, engines)
    declined = [answer for _, answer in others if isinstance(answer, Declined)]
    if isinstance(plan, Declined):
        raise ValueError(most_relevant([*declined, plan]).advice)
    settings, data = request.settings, request.data
    for argument in ENGINE_SETTINGS:
        if getattr(settings, argument) and argument not in plan.capabilities.settings:
            raise ValueError(
                f"{argument} must be omitted for {name_of(request.estimator)} with "
                f"method={plan.name!r}: only methods that grow an ensemble tree by tree, such as "
                "'boosting', take it."
            )
    if hasattr(request.estimator, "fit") and not plan.capabilities.is_incremental:
        request.metadata.check_fit(request.estimator, request.searched)
    free = set(plan.capabilities.free_parameters)
    free = free.intersection(*(answer.free_parameters for answer in declined))
    plan.capabilities = replace(plan.capabilities, free_parameters=free)
    if settings.method not in ("auto", "holdout"):
        plan.reason = ""
    elif engine is engines[-1]:
        nearest = most_relevant(declined)
        plan.reason = nearest.reason
        if nearest.warning:
            request.cross_validation.warn_once(
                "method",
                lambda: (
                    f"{name_of(request.estimator)} is fitted {request.cross_validation.n_folds} "
                    f"times (method='fit'), because {nearest.warning}."
                ),
            )
    elif plan.capabilities.falls_back:
        fallback = engines[-1].plan(request)
        assert isinstance(fallback, Plan)
        plan.fallback = fallback
    if data.is_large and (reason := plan.capabilities.in_memory_reason):
        raise ValueError(
            f"max_memory must be either None or at least {data.n_bytes:,} bytes for "
            f"{name_of(request.estimator)} with method={plan.name!r}, got "
            f"{settings.max_memory!r}: {reason}."
        )
    _check_epochs(request, plan, fit_reason=plan.reason if engine is engines[-1] else "")
    if request.wants_average and not plan.capabilities.averages_models:
        reason = "only method='treecv' averages fold models"
        if plan.name == "treecv":
            reason = "only linear fold models, such as those of SGDClassifier, are averaged"
        raise ValueError(
            f"{request.wants_average} for {name_of(request.estimator)} with "
            f"method={plan.name!r}: {reason}."
        )
    if request.is_scored:
        _check_scores(request, plan)
    if request.cross_validation.search.keep_outputs and plan.capabilities.keeps_outputs:
        plan = plan.with_request(replace(request, keeps_best=True))
    return plan


def _check_epochs(request: Request, plan: Plan, fit_reason: str) -> None:
    """Raise an error if several epochs are requested but models are trained for only one."""
    reason, n_epochs = plan.capabilities.one_epoch_reason, request.given_epochs
    is_searched = "n_epochs" in request.searched and not hasattr(request.estimator, "n_epochs")
    if reason and ((n_epochs or 1) > 1 or is_searched):
        problem = "got a search space" if is_searched else f"got {n_epochs}"
        chosen = f" ({plan.name!r} was chosen because {fit_reason})" if fit_reason else ""
        raise ValueError(
            f"n_epochs must be None for {name_of(request.estimator)} with method={plan.name!r}, "
            f"{problem}: {reason}{chosen}."
        )


def ask_engines(
    request: Request, engines: Sequence[Engine]
) -> Iterator[tuple[Engine, Plan | Declined]]:
    """Yield (engine, its plan or refusal) for the engines that ``method`` allows.

    The iteration ends after the first plan.

    Raises
    ------
    ValueError
        If X or y has a form that only ``method="fit"`` supports but another method is requested,
        or if no engine supports rows of this kind, such as remote rows.
    """
    data, method = request.data, request.settings.method
    fit_only_reason = data.why_only_fit(is_classifier(request.estimator))
    is_compiled = isinstance(last_step(request.estimator), CompiledEstimator)
    if fit_only_reason and (is_compiled or method not in ("auto", "fit", "holdout")):
        subject = f" for {name_of(request.estimator)}" if is_compiled else f" for {method=}"
        expected = "X must have shape (n_rows, n_features)"
        if len(data.X.shape) == 2:
            expected = "y must be one column of classes, or one or more columns of numbers,"
        raise ValueError(f"{expected}{subject}, but {fit_only_reason}.")
    declined: list[Declined] = []
    rows = "remote" if data.is_remote else "local"
    for engine in engines:
        if method not in engine.methods or engine.rows not in ("any", rows):
            continue
        answer: Plan | Declined = Declined(fit_only_reason, free_parameters=())
        if not fit_only_reason or engine is engines[-1]:
            answer = engine.plan(request)
        yield engine, answer
        if isinstance(answer, Plan):
            return
        declined.append(answer)
    if not declined or data.is_remote:
        nearest = most_relevant(declined) if declined else None
        reason = "its rows must be in one process"
        if nearest is not None:
            reason = nearest.reason if nearest.relevance == 2 else declined[-1].reason
        raise ValueError(
            f"X must be in the memory of this process, got {type(data.X).__name__}, because "
            f"{name_of(request.estimator)} cannot be evaluated by {method=} on remote rows: "
            f"{reason}."
        )


def most_relevant(declined: Sequence[Declined]) -> Declined:
    """Return the most relevant refusal; if several are equal, that of the last engine."""
    highest = max((answer.relevance for answer in declined), default=0)
    return next(answer for answer in reversed(declined) if answer.relevance == highest)


def _check_scores(request: Request, plan: Plan) -> None:
    """Raise an error or warn if the scores of a request would be misleading."""
    cross_validation = request.cross_validation
    check_scoring(request, plan)
    topic = f"scales of {type(request.estimator).__name__}"
    cross_validation.warn_once(topic, lambda: scales_warning(request.estimator, request.data.X))
    check_row_scores(request)
    if plan.capabilities.is_incremental and not request.searched:
        cross_validation.unused.warn(request.estimator, n_epochs=request.given_epochs)


def check_scoring(request: Request, plan: Plan) -> None:
    """Check that the scoring suits the estimator, and that n_repeats and order have an effect.

    Raises
    ------
    ValueError
        If the estimator cannot be scored in this way, or if ``n_repeats`` or ``order`` has no
        effect.
    """
    cross_validation, estimator = request.cross_validation, request.estimator
    scoring = request.scoring
    before = cross_validation.fact("scoring", lambda: scoring.name)
    if scoring.name != before:
        raise ValueError(
            f"scoring must be given if the estimators have different default scores: the "
            f"default is {before!r} for the first and {scoring.name!r} for {name_of(estimator)}."
        )
    if request.data.y is None and (is_classifier(estimator) or is_regressor(estimator)):
        kind = "classifier" if is_classifier(estimator) else "regressor"
        raise ValueError(f"y must be given for a {kind}, got None.")
    has_columns = request.data.why_only_fit(is_classifier(estimator)).startswith("y has")
    for metric in scoring.metrics:
        if has_columns and not isinstance(metric, Scorer):
            raise ValueError(
                "scoring must be the name of a scorer, such as 'accuracy', or a callable "
                f"scorer(estimator, X, y), for y of shape {request.data.y.shape}, got "
                f"{metric.name!r}."
            )
        scorer = metric.of if isinstance(metric, Pooled) else metric
        _check_positive_label(scorer, metric.name, request)
        check_methods(estimator, metric.methods, f"scoring={metric.name!r}", request.of_class)
        takes_weights = not isinstance(scorer, Scorer) or scorer.takes_weights
        if request.data.score_weights is not None and not takes_weights:
            raise ValueError(
                f"score_weight must be None with scoring={metric.name!r}, which takes no "
                "sample_weight."
            )
    if request.settings.order == "random" and not plan.capabilities.is_incremental:
        raise ValueError(
            f"order must be 'fixed' for {name_of(estimator)} with method={plan.name!r}, got "
            "'random': order has an effect only if models are trained incrementally."
        )
    if cross_validation.n_repeats > 1 and not (
        plan.capabilities.is_seeded and takes_seed(estimator)
    ):
        _check_repeats_differ(request, plan)
    for metric in scoring.metrics:
        topic = f"size of folds for {metric.name}"
        cross_validation.warn_once(topic, partial(_small_folds_warning, metric, request))


def check_row_scores(request: Request) -> None:
    """Raise an error if row scores are needed but a metric is not a mean over rows."""
    settings = request.settings
    for metric in request.scored_by_row:
        if not can_score_rows(metric, request.classes):
            argument = f"report={settings.report!r}" if settings.is_early else "row_losses=True"
            if settings.method == "progressive":
                argument = "method='progressive'"
            raise ValueError(
                f"{argument} needs either a loss or a scikit-learn scorer that is a mean over "
                "rows, such as 'accuracy' or 'neg_mean_squared_error', got "
                f"scoring={metric.name!r}."
            )


def _check_positive_label(scorer: Loss | Scorer, name: str, request: Request) -> None:
    """Raise an error if the ``pos_label`` of a scikit-learn scorer is not a class of y."""
    score: Opaque = getattr(scorer, "score", None)
    function = getattr(score, "_score_func", None)
    if function is None or request.classes is None or len(request.classes) != 2:
        return
    if getattr(scorer, "error_score", None) is not None:
        return  # a scorer with a wrong label fails on each fold and then returns the error_score
    defaults = {name: p.default for name, p in signature(function).parameters.items()}
    arguments = defaults | score._kwargs
    # pos_label is ignored for other values of ``average``, except by average_precision_score.
    is_binary = arguments.get("average", "binary") == "binary"
    is_used = is_binary or function is average_precision_score
    label, classes = arguments.get("pos_label"), request.classes.tolist()
    if is_used and label is not None and label not in classes:
        advice = f"pos_label={classes[1]!r}"
        if scorer.is_registered:
            method = f"response_method={scorer.methods!r}"
            advice = f"make_scorer({function.__name__}, {advice}, {method})"
        raise ValueError(
            f"scoring={name!r} needs another pos_label, because {label!r} is not one of the "
            f"labels {classes[0]!r} and {classes[1]!r}; use, for example, {advice} instead."
        )


def _check_repeats_differ(request: Request, plan: Plan) -> None:
    """Raise an error if all repeats would have the same folds and the same models."""
    cross_validation = request.cross_validation
    first, *others = [repeat.cut for repeat in cross_validation.repeats]
    if plan.capabilities.is_incremental:
        is_fixed = request.settings.order == "fixed"
        are_identical = is_fixed and all(map(first.equals, others))
        alternative = "order='random', "
    else:
        are_identical = all(map(first.fits_like, others))
        alternative = ""
    if are_identical:
        raise ValueError(
            f"n_repeats must be 1, got {cross_validation.n_repeats}: neither the folds "
            f"nor the models of {name_of(request.estimator)} differ between repeats; use "
            f"{alternative}shuffle=True, or a cv that shuffles on each call, instead."
        )


#: For scores that are not means over rows: there is a warning if a fold has fewer test rows.
MIN_ROWS_PER_FOLD = 30
#: Likewise, there is a warning if a fold has fewer test rows of a class.
MIN_ROWS_PER_CLASS = 5

# For scorers of regressors that are not means over rows, the most similar scorer that is a mean
# over rows. The default is "neg_mean_squared_error".
_SIMILAR_MEANS = {
    "neg_root_mean_squared_log_error": "neg_mean_squared_log_error",
    "neg_median_absolute_error": "neg_mean_absolute_error",
    "neg_max_error": "neg_mean_absolute_error",
    "d2_absolute_error_score": "neg_mean_absolute_error",
}


def _small_folds_warning(metric: Metric, request: Request) -> str:
    """Return a warning if folds are so small that a mean score misleads; else ""."""
    if not isinstance(metric, Scorer) or metric.is_mean:
        return ""
    data, codes = request.data, None
    if is_classifier(request.estimator) and data.y is not None and data.y.ndim == 1:
        codes = data.codes()
    for cut in [repeat.cut for repeat in request.cross_validation.repeats]:
        n_rows = int(np.diff(cut.begins()).min())
        if n_rows < MIN_ROWS_PER_FOLD:
            small = f"only {n_rows} row{'s' if n_rows > 1 else ''}"
        elif codes is not None and has_small_class(cut, MIN_ROWS_PER_CLASS, codes):
            small = f"fewer than {MIN_ROWS_PER_CLASS} rows of a class"
        else:
            continue
        verb = "is not" if metric.is_registered else "may not be"
        alternatives = " or ".join(_alternatives(metric, request.estimator, data.n_rows, codes))
        return (
            f"scoring={metric.name!r} {verb} a mean over rows, so its mean over folds with "
            f"{small} is misleading; use {alternatives}."
        )
    return ""


def _alternatives(
    scoring: Scorer, estimator: Estimator, n_rows: int, codes: Array | None
) -> list[str]:
    """Return, as text, values of ``scoring`` and ``cv`` whose scores are not misleading."""
    alternatives = [f"scoring=pooled({scoring.name!r})"] if scoring.is_registered else []
    if is_classifier(estimator):
        loss = "log_loss" if hasattr(estimator, "predict_proba") else "accuracy"
        alternatives.append(f"scoring={loss!r}")
    elif is_regressor(estimator):
        similar = _SIMILAR_MEANS.get(scoring.name, "neg_mean_squared_error")
        alternatives.append(f"scoring={similar!r}")
    max_folds = n_rows // MIN_ROWS_PER_FOLD
    folds = "folds"
    if codes is not None:
        max_folds = min(max_folds, int(np.bincount(codes).min()) // MIN_ROWS_PER_CLASS)
        folds = "stratified folds"
    if max_folds >= 2:
        alternatives.append(f"at most {max_folds} {folds}")
    return alternatives or ["a loss"]


def baseline(metric: Metric, estimator: Estimator, data: Data) -> tuple[float, str] | None:
    """Return the score of a constant prediction on all rows, and a description of the constant.

    Return None if there is no such score: for estimators without targets, for "hinge", for scorers
    that may use more than predictions, and for scorers of classifiers that are not means over
    rows. Such a scorer gives a constant prediction a trivial score, such as an F1 of 0, and a
    warning that could only be suppressed by changing the warning filters of the whole process.

    Parameters
    ----------
    metric : Loss, Scorer or Pooled
    estimator : estimator
        A classifier or a regressor; None is returned for other estimators.
    data : Data
        The rows as given.
    """
    y = data.y
    scoring = metric.of if isinstance(metric, Pooled) else metric
    if y is None or (isinstance(scoring, Loss) and scoring.name == "hinge"):
        return None
    if isinstance(scoring, Scorer) and not scoring.is_made:
        return None
    if is_classifier(estimator):
        if (y.ndim > 1) if isinstance(scoring, Loss) else not scoring.is_mean:
            return None
        dummy, constant = DummyClassifier(), "the most frequent class"
        if response_of(scoring, estimator) == "predict_proba":
            constant = "the frequencies of the classes"
    elif is_regressor(estimator):
        dummy, constant = DummyRegressor(), "the mean of y" if y.ndim == 1 else "the means of y"
    else:
        return None
    try:
        if isinstance(scoring, Loss) and is_classifier(estimator):
            score = _loss_from_class_weights(scoring, dummy, data)
        else:
            score = _score(scoring, dummy, data)
    except (TypeError, ValueError):  # the scorer is unsuitable; the trial raises the error
        return None
    return (score, constant) if np.isfinite(score) else None


def _loss_from_class_weights(loss: Loss, dummy: Estimator, data: Data) -> float:
    """Compute the loss on all rows from the total weight of each class, which is fast."""
    codes, labels = data.codes(), np.arange(len(data.classes()))
    class_weights = np.bincount(codes, data.weights, len(labels))
    dummy.fit(labels[:, None], labels, sample_weight=class_weights)
    response = getattr(dummy, loss.methods)(labels[:1, None])
    losses = loss.of_rows(np.repeat(response, len(labels), axis=0), labels)
    return float(np.average(losses, weights=np.bincount(codes, data.score_weights, len(labels))))


def _score(scoring: Loss | Scorer, dummy: Estimator, data: Data) -> float:
    """Compute the score of a dummy estimator on all rows."""
    empty_rows, weights = np.zeros((data.n_rows, 1)), data.score_weights
    dummy.fit(empty_rows, data.y, sample_weight=data.weights)
    if isinstance(scoring, Scorer):
        weighted = {} if weights is None else {"sample_weight": weights}
        return float(scoring.score(dummy, empty_rows, data.y, **weighted))
    responses = np.repeat(dummy.predict(empty_rows[:1]), data.n_rows, axis=0)
    return float(np.average(scoring.of_rows(responses, data.y), weights=weights))


# If the ranges of two columns differ by more than this factor, SGD learns from them at very
# different speeds.
_MAX_RANGE_RATIO = 100
# The number of rows in a sample of X.
_SAMPLE_SIZE = 10_000
# The sample consists of runs of this many consecutive rows, so that few places of a file are read.
_RUN_LENGTH = 50


def scales_warning(estimator: Estimator, X: Features) -> str:
    """Return a warning if an SGD learner gets columns with very different ranges; else "".

    Only SGD learners without preprocessing are checked. The ranges are computed on a sample of the
    rows. Sparse rows and texts are not checked.
    """
    is_linear = isinstance(estimator, CompiledEstimator) and estimator.is_linear
    is_sgd = is_linear or any(kind.__name__ in OF_PASSES for kind in type(estimator).__mro__)
    if not is_sgd or sparse.issparse(X) or len(X.shape) != 2:
        return ""
    if isinstance(X, RemoteRows):
        X = X.sample
    sample = np.arange(min(X.shape[0], _SAMPLE_SIZE))
    if X.shape[0] > _SAMPLE_SIZE:
        n_runs = _SAMPLE_SIZE // _RUN_LENGTH
        runs = np.linspace(0, X.shape[0], n_runs, endpoint=False, dtype=np.intp)
        sample = np.ravel(runs[:, np.newaxis] + np.arange(_RUN_LENGTH))
    rows = np.asarray(take_rows(X, sample))
    leave_pages(X)
    if rows.dtype.kind not in "fiub":
        return ""
    with np.errstate(invalid="ignore"):  # other checks raise errors for infinite entries
        ranges = np.ptp(rows.astype(np.float64), axis=0)
    ranges = ranges[np.isfinite(ranges) & (ranges > 0)]
    if not len(ranges) or ranges.max() <= _MAX_RANGE_RATIO * ranges.min():
        return ""
    return (
        "the ranges of the columns of X differ by a factor of "
        f"{ranges.max() / ranges.min():,.0f}, and {name_of(estimator)} learns slowly from the "
        f"small ones; use make_pipeline(StandardScaler(), {type(estimator).__name__}(...)) "
        "instead."
    )


def not_finite_warning(estimator: Estimator, mean: float, n_diverged: int) -> str:
    """Return a warning with the reason why the mean score is not finite."""
    if n_diverged:
        kind = "fold model has" if n_diverged == 1 else "fold models have"
        advice = divergence_advice(estimator)
        return f"the mean score is {mean}, because {n_diverged} {kind} diverged; {advice}"
    return f"the mean score is {mean}; CVResult.test_score shows which folds have no finite score."


def has_small_class(cut: Cut, n: int, codes: Array) -> bool:
    """Return whether any fold has fewer than ``n`` test rows of any class.

    Parameters
    ----------
    cut : Folds or Splits
    n : int
    codes : ndarray of shape (n_rows,)
        The class code (0, 1, ...) of each row as given.
    """
    n_classes = int(codes.max()) + 1
    if cut.n_tested < n * cut.n_folds * n_classes:
        return True  # too few rows in total; this also limits the size of the array of counts
    chunk = np.repeat(np.arange(cut.n_folds), np.diff(cut.begins()))
    tested = codes[cut.tested_from(0, cut.n_folds)]
    counts = np.bincount(chunk * n_classes + tested, minlength=1)
    return len(counts) < cut.n_folds * n_classes or bool(counts.min() < n)
