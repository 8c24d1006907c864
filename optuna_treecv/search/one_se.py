"""The choice of ``refit="one_se"``: what it needs, and the row that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.crossval.settings import is_number
from optuna_treecv.storage.evaluations import runs_of_trial
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import known_direction
from optuna_treecv.study.choice import order_of
from optuna_treecv.study.objective import TreeCVObjective

_OTHER_SPACES = "for other spaces, pass simpler or a callable as refit"


def check_one_se(objective: TreeCVObjective, simpler: Any) -> None:
    """Refuse a search whose candidates have no order of simplicity, or no standard error.

    Parameters
    ----------
    objective : TreeCVObjective
        The objective of the search, before its first trial.
    simpler : dict, "n_updates", callable or None
        As for ``TreeCVSearchCV``.

    Raises
    ------
    ValueError
        If the choice would fail after the last trial.
    """
    if not objective.has_fold_scores:
        raise ValueError(
            "refit='one_se' must have the scores of several folds, which a hold-out and a pooled "
            "score do not have; refit=True would be right here."
        )
    distributions = objective.param_distributions
    if simpler is not None:
        order_of([], simpler, list(distributions))  # refuses what is none
        if not isinstance(simpler, Mapping):
            return
        distributions = {name: distributions[name] for name in simpler}
    elif known_direction(list(distributions)) is None:
        raise ValueError(
            "refit='one_se' must have a space of one parameter whose name says what is simpler, "
            f"such as 'alpha' or 'max_depth', got {', '.join(map(repr, distributions))}; "
            f"{_OTHER_SPACES}."
        )
    for name, distribution in distributions.items():
        for value in getattr(distribution, "choices", ()):
            if not is_number(value):
                raise ValueError(
                    f"refit='one_se' must have numbers as values of {name!r}, got {value!r}; "
                    f"{_OTHER_SPACES}."
                )


def check_earlier_scores(earlier: Sequence[FrozenTrial], store: Any) -> None:
    """Refuse, before the first new trial, earlier trials whose fold scores no store keeps.

    Parameters
    ----------
    earlier : sequence of FrozenTrial
    store : Any
        As the user gave it.

    Raises
    ------
    ValueError
        If the choice could pass over an earlier trial, or fail because one is the best.
    """
    n_unknown = sum(
        trial.state == TrialState.COMPLETE
        and (store is None or not runs_of_trial(trial.user_attrs))
        for trial in earlier
    )
    if n_unknown:
        raise ValueError(
            f"refit='one_se' needs fold scores, but those of {n_unknown} earlier trials are not "
            "known; store, given from the first run on, keeps fold scores, and refit=True needs "
            "none."
        )


def row_by_one_se(
    objective: TreeCVObjective, study: optuna.Study, numbers: list[int], simpler: Any
) -> int:
    """Return the number of the row that is simplest of those about as good as the best.

    Parameters
    ----------
    objective : TreeCVObjective
    study : optuna.Study
        It may have further trials, which are not chosen.
    numbers : list of int
        That of the trial of each row.
    simpler : dict, "n_updates", callable or None
        As for ``TreeCVSearchCV``.

    Raises
    ------
    ValueError
        If the fold scores of the best trial are not known, or no trial has a finite score.
    """
    contest = objective._contest(study)
    contest = contest._replace(trials=[one for one in contest.trials if one.number in numbers])
    if not contest.trials:
        raise ValueError("refit='one_se' needs a trial with a finite score, but there is none.")
    best = contest.trials[0]
    if best.number not in contest.folds_of([best]):
        raise ValueError(
            f"refit='one_se' needs the fold scores of the best trial, number {best.number}, which "
            "an earlier run has not kept; store, given from the first run on, keeps fold scores, "
            "and refit=True needs none."
        )
    given = objective._on_values(simpler)
    return numbers.index(choice_of(contest, "one_se", given, level=0.95).trial.number)
