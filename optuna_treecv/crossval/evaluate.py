"""Runs of estimators by the engines, and how ``explain`` describes them."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from copy import copy
from math import inf
from math import prod
from types import NoneType
from typing import Any

from sklearn.pipeline import Pipeline

from optuna_treecv import engines
from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.core.choose import answers_to
from optuna_treecv.core.choose import plan_for
from optuna_treecv.core.choose import request_for
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.cross_validation import Search
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import Settings
from optuna_treecv.estimators.base import name_of
from optuna_treecv.preprocessing.decisions import decisions_for


def run_for(
    cross_validation: CrossValidation, estimator: Any, n_epochs: int | None = None, **wants: Any
) -> Run:
    """Return the run of an estimator, planned by the engine that evaluates it.

    Parameters
    ----------
    cross_validation : CrossValidation
    estimator : estimator
    n_epochs : int or None
        The epochs of this estimator; None: those of the settings.
    **wants : Any
        As for ``request_for``.
    """
    request = request_for(cross_validation, estimator, n_epochs, **wants)
    return Run(plan_for(request, engines.ENGINES), request.estimator)


def cross_validation_for(
    X: Any, y: Any, settings: Settings, estimators: Sequence[Any]
) -> CrossValidation:
    """Return a cross-validation of several estimators, searched where they form a grid.

    Ensembles of a grid will grow once for it.
    """
    grow = any(map(nested_parameter, estimators))
    grid = _grid_of(estimators)
    search = Search(ends=grid, grid=grid if grow else {})
    cache = ModelCache() if grow else None
    return CrossValidation.of(X, y, settings, cache=cache, search=search)


def nested_parameter(estimator: Any) -> str:
    """Return the parameter that is the number of trees of a growing ensemble; else ""."""
    nests = (engine.nests_by(estimator) for engine in engines.ENGINES if engine.nests_by)
    return next(filter(None, nests), "")


# The types of values that tell points of a grid apart.
_PLAIN = (int, float, str, NoneType)


def _grid_of(estimators: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values of parameters in which estimators differ; empty if they form no grid."""
    params = [one.get_params() for one in estimators]
    if any(one.keys() != params[0].keys() for one in params):
        return {}
    grid: dict[str, tuple[Any, ...]] = {}
    for name in params[0]:
        values = dict.fromkeys(one[name] for one in params if isinstance(one.get(name), _PLAIN))
        if len(values) > 1:
            grid[name] = tuple(values)
    return grid if prod(map(len, grid.values())) == len(estimators) else {}


def runs_for(cross_validation: CrossValidation, estimators: Iterable[Any]) -> list[Run]:
    """Return a run of each estimator; those that differ in free parameters alone share a plan."""
    runs: list[Run] = []
    plans: dict[bytes, Run] = {}
    free: dict[type, Collection[str]] = {}
    for estimator in estimators:
        name = _name_of_plan(estimator, free.get(type(estimator), ()))
        if name in plans:
            runs.append(plans[name].like(estimator))
            continue
        run = run_for(cross_validation, estimator)
        free[type(estimator)] = run.plan.capabilities.free_parameters
        if name := _name_of_plan(estimator, free[type(estimator)]):
            plans[name] = run
        runs.append(run)
    return runs


def _name_of_plan(estimator: Any, free: Collection[str]) -> bytes:
    """Return what tells an estimator from those with another plan; empty if nothing does.

    Free parameters do not while they are positive and finite numbers.
    """
    if not free:
        return b""
    of_plan = last = copy(estimator)
    prefix = ""
    while type(last) is Pipeline:
        *before, (name, inner) = last.steps
        last.steps, prefix = [*before, (name, copy(inner))], f"{prefix}{name}__"
        last = last.steps[-1][1]
    for name in free:
        value: Any = getattr(last, own := name.removeprefix(prefix), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name.startswith(prefix) and is_number and 0 < value < inf:
            setattr(last, own, None)
    return first_key(of_plan, encode, lasting_key) or b""


def explain(cross_validation: CrossValidation, estimator: Any, n_epochs: int | None = None) -> str:
    """Return how an estimator is evaluated, why so, and what it costs.

    ``n_epochs`` are those of a trial; None: those of the settings.
    """
    request = request_for(cross_validation, estimator, n_epochs, is_scored=False)
    plan = plan_for(request, engines.ENGINES)
    why = f", since {plan.reason}" if plan.reason else ", which was asked for"
    how = f"{name_of(request.estimator)} is evaluated by method={plan.name!r}{why}."
    epochs = f" Models are trained for {plan.n_epochs} epochs." if plan.n_epochs > 1 else ""
    by_reason: dict[str, str] = {}
    offers = []
    for engine, answer in answers_to(request, engines.ENGINES):
        if not isinstance(answer, Declined):
            continue
        if plan.reason and answer.reason == plan.reason:
            offers.append(answer.offer)
        elif answer.relevance == 2:
            by_reason.setdefault(answer.reason, engine.name)
    offer = next(filter(None, offers), "")
    first = f"{how}{epochs} {plan.cost()}{_in_file(plan)}{offer}"
    others = [f"  not by method={name!r}: {why_not}" for why_not, name in by_reason.items()]
    return "\n".join([first, *_steps(plan), *(others if plan.reason else [])])


def _in_file(plan: Plan) -> str:
    """Return a sentence about the file of the rows, if they are in one."""
    data = plan.request.data
    if not data.is_large:
        return ""
    size = f"{data.n_bytes / 1e9:,.2f} GB"
    return f" The prepared rows, {size}, are in a file{plan.capabilities.readings}."


def _steps(plan: Plan) -> list[str]:
    """Return a line for each step before the last one of a Pipeline."""
    estimator = plan.request.estimator
    if not isinstance(estimator, Pipeline):
        return []
    models = plan.capabilities.preprocessing
    return [f"  {decision}" for decision in decisions_for(estimator, models)]
