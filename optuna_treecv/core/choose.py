"""The choice of an engine for a request, and the checks of what was asked for."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sklearn.base import is_classifier

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Engine
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.request import Request
from optuna_treecv.core.scoring_checks import check_scores_rows
from optuna_treecv.core.scoring_checks import check_scoring
from optuna_treecv.core.scoring_checks import why_scales_mislead
from optuna_treecv.core.settings import OF_ENGINES
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.checks import check_targets
from optuna_treecv.estimators.checks import checked_estimator


def request_for(
    cross_validation: CrossValidation,
    estimator: Any,
    n_epochs: int | None = None,
    *,
    searched: Collection[str] = (),
    **wants: Any,
) -> Request:
    """Return a request; the rows are divided for it if they were not.

    Parameters
    ----------
    cross_validation : CrossValidation
    estimator : estimator
    n_epochs : int or None
        The epochs of this estimator; None: those of the settings.
    searched : collection of str
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
        # In a search over epochs, models are incremental whatever their number is.
        n_epochs is not None or cross_validation.asks_for_passes or "n_epochs" in searched,
        searched,
        **wants,
    )


def plan_for(request: Request, engines: Sequence[Engine]) -> Plan:
    """Return the plan of the first engine that was asked for and can evaluate a request.

    The last engine can evaluate any estimator. Warn once where the choice may surprise.

    Raises
    ------
    ValueError
        If no engine can evaluate the estimator in the way that was asked for.
    """
    *others, (engine, plan) = answers_to(request, engines)
    declined = [answer for _, answer in others if isinstance(answer, Declined)]
    if isinstance(plan, Declined):
        raise ValueError(most_relevant([*declined, plan]).advice)
    settings, data = request.settings, request.data
    for argument in OF_ENGINES:
        if getattr(settings, argument) and argument not in plan.capabilities.settings:
            raise ValueError(
                f"{argument} must be left out for {name_of(request.estimator)}, which is evaluated"
                f" by method={plan.name!r}; it is for ensembles that grow tree by tree."
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
                    f"{name_of(request.estimator)} is fitted "
                    f"{request.cross_validation.n_folds} times (method='fit'), since "
                    f"{nearest.warning}."
                ),
            )
    elif plan.capabilities.falls_back:
        fallback = engines[-1].plan(request)
        assert isinstance(fallback, Plan)
        plan.fallback = fallback
    if data.is_large and (why := plan.capabilities.needs_memory):
        raise ValueError(
            f"max_memory must be at least {data.n_bytes:,} bytes, or None, for "
            f"{name_of(request.estimator)} with method={plan.name!r}, since {why}, got "
            f"{settings.max_memory!r}."
        )
    _check_epochs(request, plan, why_fits=plan.reason if engine is engines[-1] else "")
    if request.wants_average and not plan.capabilities.averages_models:
        raise ValueError(
            f"{request.wants_average} unless linear models are trained along the tree, as those "
            f"of PegasosClassifier or SGDClassifier are, got {name_of(request.estimator)} with "
            f"method={plan.name!r}."
        )
    if request.is_scored:
        _check_scores(request, plan)
    return plan


def _check_epochs(request: Request, plan: Plan, why_fits: str) -> None:
    """Refuse several epochs of models that are not trained so."""
    why, n_epochs = plan.capabilities.why_one_epoch, request.given_epochs
    of_trials = "n_epochs" in request.searched and not hasattr(request.estimator, "n_epochs")
    if why and ((n_epochs or 1) > 1 or of_trials):
        problem = "it is searched" if of_trials else f"got {n_epochs}"
        chosen = f"; {plan.name!r} was chosen since {why_fits}" if why_fits else ""
        raise ValueError(
            f"n_epochs must be None for {name_of(request.estimator)} with method={plan.name!r}, "
            f"since {why}, but {problem}{chosen}."
        )


def answers_to(
    request: Request, engines: Sequence[Engine]
) -> Iterator[tuple[Engine, Plan | Declined]]:
    """Yield the engines that were asked for with their answers, up to the first plan.

    Raises
    ------
    ValueError
        If the rows or targets have a form that only ``fit`` takes, and it was not asked for, or if
        no engine takes the rows where they are.
    """
    data, method = request.data, request.settings.method
    only_fit = data.why_only_fit(is_classifier(request.estimator))
    is_compiled = isinstance(last_step(request.estimator), CompiledEstimator)
    if only_fit and (is_compiled or method not in ("auto", "fit", "holdout")):
        whose = f" for {name_of(request.estimator)}" if is_compiled else f" for {method=}"
        raise ValueError(
            f"X must have 2 dimensions, rows and features, and y one column of classes, or "
            f"columns of numbers{whose}, but {only_fit}."
        )
    declined: list[Declined] = []
    rows = "remote" if data.is_remote else "local"
    for engine in engines:
        if method not in engine.methods or engine.rows not in ("any", rows):
            continue
        answer: Plan | Declined = Declined(only_fit, free_parameters=())
        if not only_fit or engine is engines[-1]:
            answer = engine.plan(request)
        yield engine, answer
        if isinstance(answer, Plan):
            return
        declined.append(answer)
    if not declined or data.is_remote:
        nearest = most_relevant(declined) if declined else None
        reason = "no other method trains models there"
        if nearest is not None:
            reason = nearest.reason if nearest.relevance == 2 else declined[-1].reason
        raise ValueError(
            f"X must be in the memory of this process for {name_of(request.estimator)} with "
            f"{method=}, got {type(data.X).__name__}, since {reason}."
        )


def most_relevant(declined: Sequence[Declined]) -> Declined:
    """Return what keeps the engine away that is nearest to the estimator."""
    highest = max((one.relevance for one in declined), default=0)
    return next(one for one in reversed(declined) if one.relevance == highest)


def _check_scores(request: Request, plan: Plan) -> None:
    """Refuse or warn about scores that mislead."""
    cross_validation = request.cross_validation
    check_scoring(request, plan)
    about = f"scales of {type(request.estimator).__name__}"
    cross_validation.warn_once(
        about, lambda: why_scales_mislead(request.estimator, request.data.X)
    )
    check_scores_rows(request)
    if plan.capabilities.is_incremental and not request.searched:
        cross_validation.unused.warn(request.estimator, n_epochs=request.given_epochs)
