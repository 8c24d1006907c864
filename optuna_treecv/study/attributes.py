"""Optuna's user attributes of studies and trials, which describe their evaluations."""

from collections.abc import Mapping
import json
from typing import Any

from optuna_treecv.storage.evaluations import further_run

#: The user attribute of a study that says what its trials evaluate.
STUDY_ATTRIBUTE = "treecv_evaluation"
#: The user attribute of a trial, a flat dict: each attribute is a transaction in Optuna's storage.
TRIAL_ATTRIBUTE = "treecv"
#: In that dict, the mean of each of several scores has this and its name as its key.
SCORE_PREFIX = "score_"
#: The user attribute of a trial whose rows are in a file, which says how far long readings are.
PROGRESS_ATTRIBUTE = "treecv_progress"

# Earlier versions wrote an attribute for each key, two of them under other names.
_OLD_NAMES = {
    **{name: name for name in ("mean_test_score", "std_test_score", "std_error", "folds_scored")},
    **{name: name for name in ("n_updates", "seconds", "diverged_folds")},
    "method": "treecv_method",
    "run": "treecv_run",
}
_OLD_SCORES = "treecv_scores"


def facts_of_trial(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trial's record of its evaluation, by the keys of ``TRIAL_ATTRIBUTE``.

    Parameters
    ----------
    attributes : dict
        The user attributes of the trial, which an earlier version may have written.
    """
    facts = attributes.get(TRIAL_ATTRIBUTE)
    if isinstance(facts, dict):
        return facts
    facts = {name: attributes[old] for name, old in _OLD_NAMES.items() if old in attributes}
    try:
        scores = json.loads(attributes.get(_OLD_SCORES, "{}"))
    except (TypeError, ValueError):  # someone has changed it
        scores = None
    if isinstance(scores, dict):
        facts |= {f"{SCORE_PREFIX}{name}": mean for name, mean in scores.items()}
    return facts


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
