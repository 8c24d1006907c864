"""Creates an objective and runs a study in one call."""

from __future__ import annotations

from typing import Any

import optuna

from optuna_treecv import treecv_objective


def searched(
    estimator: Any,
    data: tuple[Any, ...],
    space: Any,
    n_trials: int | None = None,
    *,
    candidates: Any = (),
    study: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, optuna.Study]:
    """Return an objective and a study that was run with it.

    Lists of values are a grid, which is searched as a whole in a fixed order; distributions are
    sampled at random.

    Parameters
    ----------
    estimator : estimator or callable
    data : tuple
        X and y.
    space : dict, list of dicts or None
        Lists of values or distributions; None for a callable that suggests an estimator.
    n_trials : int or None
        None: as many as there are candidates, or all of a grid.
    candidates : iterable of dicts
        The parameters of the first trials.
    study : dict or None
        Further arguments of ``optuna.create_study``.
    **options
        Further arguments of ``treecv_objective``.
    """
    dicts = [space] if isinstance(space, dict) else space or []
    is_grid = any(not hasattr(v, "to_internal_repr") for one in dicts for v in one.values())
    given = {"param_grid" if is_grid else "param_distributions": space} if dicts else {}
    objective = treecv_objective(estimator, *data, **given, **options)
    sampler = objective.grid_sampler(seed=0) if is_grid else optuna.samplers.RandomSampler(seed=0)
    settings = {"directions": objective.directions, "sampler": sampler} | (study or {})
    if "direction" in settings:
        del settings["directions"]
    run = optuna.create_study(**settings)
    for params in candidates:
        run.enqueue_trial(params)
    n_trials = len(list(candidates)) or None if n_trials is None else n_trials
    run.optimize(objective, n_trials=n_trials)
    return objective, run
