"""Optuna's user attributes of studies and trials, which describe their evaluations."""

from collections.abc import Mapping
from typing import Any

import optuna

from optuna_treecv.storage.evaluations import further_run

#: The user attribute of a study that says what its trials evaluate.
STUDY_ATTRIBUTE = "treecv_evaluation"
#: The user attribute of a trial, a flat dict: each attribute is a transaction in Optuna's storage.
TRIAL_ATTRIBUTE = "treecv"
#: In that dict, the mean of each of several scores has this and its name as its key.
SCORE_PREFIX = "score_"
#: The user attribute of a trial whose rows are in a file, which says how far long readings are.
PROGRESS_ATTRIBUTE = "treecv_progress"


def facts_of_study(study: optuna.Study) -> Mapping[str, Any]:
    """Return a study's record of what its trials evaluate; empty if it has none."""
    facts = study.user_attrs.get(STUDY_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def facts_of_trial(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trial's record of its evaluation from its user attributes; empty if it has none."""
    facts = attributes.get(TRIAL_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def scores_of_trial(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the means of a trial's scores by name; empty if it has only one."""
    return {
        key.removeprefix(SCORE_PREFIX): mean
        for key, mean in facts_of_trial(attributes).items()
        if key.startswith(SCORE_PREFIX)
    }


def runs_of_trial(attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of a trial's evaluations, one for each score, the first one first."""
    run = facts_of_trial(attributes).get("run")
    if not isinstance(run, str):
        return []
    n_scores = len(scores_of_trial(attributes))
    return [run, *(further_run(run, number) for number in range(1, n_scores))]
