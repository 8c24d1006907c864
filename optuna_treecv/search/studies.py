"""The study behind a search: made, found again in a storage, or given; and its trials."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Mapping
from contextlib import contextmanager
from copy import deepcopy
from threading import Lock
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.crossval.settings import warn_caller
from optuna_treecv.sharing.keys import content_key
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.space import Axis

_lock = Lock()
_levels: list[int] = []  # the level before the first of those that are quiet now, and its copies


@contextmanager
def quiet() -> Generator[None]:
    """Show warnings of Optuna alone; several threads may do so at the same time."""
    with _lock:
        _levels.append(_levels[0] if _levels else optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(max(_levels[0], optuna.logging.WARNING))
    try:
        yield
    finally:
        with _lock:
            before = _levels.pop()
            if not _levels:
                optuna.logging.set_verbosity(before)


def make_study(search: Any, objective: TreeCVObjective, seed: int) -> optuna.Study:
    """Return a new study, or the one in a storage that a search before this one has begun.

    Parameters
    ----------
    search : TreeCVSearchCV
        A study in its ``storage`` is found again if the data, the folds, the scoring, the
        estimator and the space are the same.
    objective : TreeCVObjective
    seed : int
        Of the sampler, where none is given.
    """
    storage, name = search.storage, None
    if storage is not None and not isinstance(storage, optuna.storages.InMemoryStorage):
        for parameter, one in objective.param_distributions.items():
            for value in getattr(one, "choices", ()):
                if value is not None and not isinstance(value, bool | int | float | str):
                    raise ValueError(
                        "storage must be None where a parameter has values other than numbers, "
                        f"strings and None, got {value!r} for {parameter!r}."
                    )
    if storage is not None:
        name = _name_of_search(search, objective)
        if name is None:
            warn_caller(
                "storage gets a new study that no later search finds again, since the estimator "
                "or its space has no name that lasts; study would be right."
            )
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        load_if_exists=name is not None,
        directions=[StudyDirection[one.upper()] for one in objective.directions],
        pruner=optuna.pruners.NopPruner() if search.pruner is None else deepcopy(search.pruner),
    )
    if search.sampler is None:  # one that continues a study does not repeat its first draws
        drawn = derive_seed(seed, len(study.get_trials(deepcopy=False))) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=drawn)
    else:
        study.sampler = deepcopy(search.sampler)  # so that fit leaves the argument as it was
    return study


def _name_of_search(search: Any, objective: TreeCVObjective) -> str | None:
    """Return a name that the same search has in later processes; None if it has none."""
    try:
        spaces = [
            one.encode()
            for name, distribution in sorted(objective.param_distributions.items())
            for one in (name, distribution_to_json(distribution))
        ]
        if callable(search.param_distributions):
            spaces.append(content_key(search.param_distributions))
        key = digest(objective.fingerprint().encode(), lasting_key(search.estimator), *spaces)
    except (NoKey, TypeError):  # choices that are no JSON cannot be in a storage
        return None
    return f"treecv-search-{key.hex()}"


def check_direction(study: optuna.Study, objective: TreeCVObjective) -> None:
    """Refuse a study that does not do with values what the scoring of a search needs."""
    directions = [direction.name.lower() for direction in study.directions]
    if directions != objective.directions:
        what = "a loss" if objective.direction == "minimize" else "a score"
        raise ValueError(
            f"study must have direction={objective.direction!r}, since scoring is {what}, got "
            f"{' and '.join(map(repr, directions))}; "
            f"optuna.create_study(direction={objective.direction!r}) would be right."
        )


def check_trials(study: optuna.Study, axes: Mapping[str, Axis]) -> None:
    """Refuse a study whose trials have other parameters than a search, or other values of them.

    There are no axes where a callable suggests parameters.
    """
    for trial in over(study):
        if axes and trial.state == TrialState.COMPLETE and set(trial.params) != set(axes):
            raise ValueError(
                f"study must hold trials of the parameters {', '.join(sorted(axes))}, but trial "
                f"{trial.number} has {', '.join(sorted(trial.params)) or 'none'}."
            )
        for name in trial.distributions.keys() & axes:
            if not axes[name].has_codes_of(other := trial.distributions[name]):
                raise ValueError(
                    f"study must hold trials with the values of this search, but {name!r} of "
                    f"trial {trial.number} is from {other} and not {axes[name].distribution}; a "
                    "new study would be right."
                )


def over(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that are over."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
