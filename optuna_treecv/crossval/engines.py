"""The list of engines, and the functions that evaluate by them."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from copy import copy
from functools import partial
from math import inf
from math import prod
from types import NoneType
from typing import Any

from sklearn.pipeline import Pipeline

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
from optuna_treecv.core.engine import Engine
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import Settings
from optuna_treecv.engines.ensembles.engine import plan_growth
from optuna_treecv.engines.ensembles.growing_folds import divided
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.engines.fit.engine import plan_fits
from optuna_treecv.engines.neighbors.engine import plan_neighbors
from optuna_treecv.engines.newton.engine import NewtonPlan
from optuna_treecv.engines.sums.engine import ExactPlan
from optuna_treecv.engines.sums.engine import plan_of_sums
from optuna_treecv.engines.treecv.engine import plan_tree
from optuna_treecv.engines.treecv.passes import plan_chain
from optuna_treecv.engines.treecv.passes import plan_pass
from optuna_treecv.engines.treecv.passes import plan_standard
from optuna_treecv.engines.treecv.sweeps import rows_to_read
from optuna_treecv.engines.treecv.trained import most_updates
from optuna_treecv.engines.treecv.trained import why_not_in_time
from optuna_treecv.engines.trees.engine import plan_trees
from optuna_treecv.estimators.incremental import is_incremental
from optuna_treecv.estimators.names import name_of
from optuna_treecv.estimators.one_pass import why_fit_differs
from optuna_treecv.preprocessing.decisions import decisions_for
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import Splits

#: "auto" takes the first one that can evaluate an estimator; the last one evaluates any.
ENGINES: tuple[Engine, ...] = (
    Engine("progressive", plan_pass, ("progressive",)),
    Engine("standard", partial(plan_trees, are_together=False), ("standard",)),
    Engine("standard", plan_standard, ("standard",)),
    Engine("forest", plan_trees, ("auto", "holdout", "forest")),
    Engine("exact", partial(plan_of_sums, ExactPlan), ("auto", "holdout", "exact"), True),
    Engine("newton", partial(plan_of_sums, NewtonPlan), ("auto", "holdout", "newton"), True),
    Engine("neighbors", plan_neighbors, ("auto", "holdout", "neighbors")),
    Engine("boosting", partial(plan_growth, "boosting"), ("auto", "holdout", "boosting")),
    Engine("bagging", partial(plan_growth, "bagging"), ("auto", "holdout", "bagging")),
    Engine("treecv", plan_tree, ("auto", "holdout", "treecv"), True),
    Engine("chain", plan_chain, ("auto", "holdout", "treecv")),
    Engine("fit", plan_fits, ("auto", "holdout", "fit")),
)


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
    return Run(plan_for(request, ENGINES), request.estimator)


def cross_validation_for(
    X: Any, y: Any, settings: Settings, estimators: Sequence[Any]
) -> CrossValidation:
    """Return a cross-validation of several estimators, searched where they form a grid.

    Ensembles of a grid will grow once for it.
    """
    grow = any(kind_of(divided(estimator)[1]) is not None for estimator in estimators)
    grid = _grid_of(estimators)
    search = Search(ends=grid, grid=grid if grow else {})
    cache = ModelCache() if grow else None
    return CrossValidation.of(X, y, settings, cache=cache, search=search)


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
    plan = plan_for(request, ENGINES)
    why = f", since {plan.reason}" if plan.reason else ", which was asked for"
    how = f"{name_of(request.estimator)} is evaluated by method={plan.name!r}{why}."
    epochs = f" Models are trained for {plan.n_epochs} epochs." if plan.n_epochs > 1 else ""
    first = f"{how}{epochs} {plan.cost()}{_readings(plan)}{_alternative(plan)}"
    by_reason: dict[str, str] = {}
    for engine, answer in answers_to(request, ENGINES):
        if isinstance(answer, Declined) and answer.relevance == 2 and answer.reason != plan.reason:
            by_reason.setdefault(answer.reason, engine.name)
    others = [f"  not by method={name!r}: {why_not}" for why_not, name in by_reason.items()]
    return "\n".join([first, *_steps(plan), *(others if plan.reason else [])])


def _readings(plan: Plan) -> str:
    """Return a sentence about the file of the rows, if they are in one."""
    data = plan.request.data
    if not data.is_large:
        return ""
    in_file = f" The prepared rows, {data.n_bytes / 1e9:,.2f} GB, are in a file"
    if plan.name != "treecv":
        return f"{in_file}."
    n_block = max(1, data.room.block_bytes * data.n_rows // data.n_bytes)
    n_read = rows_to_read(plan.repeats[0].plan, n_block)
    return f"{in_file}, which is read {n_read / data.n_rows:.1f} times."


def _alternative(plan: Plan) -> str:
    """Return a sentence about the tree where "auto" fits what it could train further."""
    request, cut = plan.request, plan.repeats[0].cut
    cross_validation, estimator = request.cross_validation, request.estimator
    grows = isinstance(cut, Splits) and cut.grows
    if plan.name == "fit" and grows and plan.reason == why_not_in_time(request):
        return (
            " With method='treecv', one model is trained forward through time, on each row once, "
            "and results call it 'chain'; models are then not those of fit."
        )
    is_chosen = plan.name == "fit" and plan.reason == why_fit_differs(estimator)
    in_tree = isinstance(cut, Folds) and cross_validation.n_folds > 1
    if not plan.reason or not is_chosen or not in_tree:
        return ""
    if not is_incremental(estimator) and isinstance(request.front, str):
        return ""
    return (
        " With method='treecv' or n_epochs, the tree takes at most "
        f"{most_updates(cross_validation):,} row "
        "updates per epoch; models are then those after these passes of partial_fit, and not "
        "those of fit."
    )


def _steps(plan: Plan) -> list[str]:
    """Return a line for each step before the last one of a Pipeline."""
    estimator = plan.request.estimator
    if not isinstance(estimator, Pipeline):
        return []
    models = plan.capabilities.preprocessing
    return [f"  {decision}" for decision in decisions_for(estimator, models)]
