"""The finished trials of a study in numbers, for the figures and the note."""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import Any
from typing import TypeAlias

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.crossval.paired import difference_by_folds
from optuna_treecv.crossval.paired import PairedDifference
from optuna_treecv.reporting.history import check_study
from optuna_treecv.reporting.history import import_pandas
from optuna_treecv.reporting.history import load_evaluations
from optuna_treecv.reporting.history import load_fold_scores
from optuna_treecv.storage.attributes import known_of_trial
from optuna_treecv.storage.attributes import runs_of_trial
from optuna_treecv.storage.attributes import scores_of_trial
from optuna_treecv.storage.attributes import STUDY_ATTRIBUTE

#: A pandas.DataFrame; pandas is optional, and only ``history`` imports it.
Frame: TypeAlias = Any

#: Fold scores of two evaluations can be paired if these are equal; the fingerprint is of the rows
#: in the order in which they are cut into folds.
ALIKE_IF_PAIRED = ("fingerprint", "cv", "n_folds", "n_repeats", "random_state", "scoring")


#: More seconds than this between two trials are a pause.
PAUSE = 60.0


def evaluations_of(study: optuna.Study, store: Any) -> tuple[dict[int, FrozenTrial], Frame]:
    """Return the complete and pruned trials by number, and their evaluations in that order.

    Of several scores these are the evaluations by the first optimised one.

    Without a store, evaluations are what the trials' attributes say of them, which is nothing of
    the row updates that sharing saved.
    """
    check_study(study)
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = {trial.number: trial for trial in study.get_trials(deepcopy=False, states=states)}
    if store is None:
        frame = _from_attributes(trials, facts_of(study))
    else:
        frame = load_evaluations(store, study=study)
        first = {run for trial in trials.values() for run in runs_of_trial(trial.user_attrs)[:1]}
        frame = frame[frame["trial_number"].isin(list(trials)) & frame["run"].isin(first)]
    frame = frame.astype({"trial_number": int, "mean": float, "std": float})
    frame = frame.sort_values("trial_number", ignore_index=True)
    # Repeats use the same rows, so they do not count as additional folds for the standard error.
    n_folds = np.minimum(frame["folds_scored"], frame["n_folds"])
    errors = frame["std"] / np.sqrt(n_folds.astype(float))
    known = [known_of_trial(trials[number].user_attrs) for number in frame["trial_number"]]
    pooled = [one.get("std_error", np.nan) for one in known]
    return trials, frame.assign(standard_error=errors.where(errors.notna(), pooled))


def facts_of(study: optuna.Study) -> dict[str, Any]:
    """Return what the objective has said of its evaluation in the study; empty if nothing."""
    facts = study.user_attrs.get(STUDY_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def _from_attributes(trials: Mapping[int, FrozenTrial], facts: Mapping[str, Any]) -> Frame:
    """Return one row per trial of a ``treecv_objective``, as far as attributes know them."""
    pandas = import_pandas("a figure without a store")
    rows = []
    for number, trial in trials.items():
        known = known_of_trial(trial.user_attrs)
        if "n_updates" not in known:
            continue
        is_complete = trial.state == TrialState.COMPLETE
        rows.append(
            {
                "trial_number": number,
                "state": trial.state.name.lower(),
                "scoring": facts.get("scoring", "value"),
                "mean": trial.values[0] if is_complete else _mean_of(trial, facts),
                "std": known.get("std_test_score", np.nan),
                "folds_scored": known["folds_scored"],
                "n_folds": facts.get("n_folds", known["folds_scored"]),
                "n_repeats": facts.get("n_repeats", 1),
                "n_updates": known["n_updates"],
                "n_updates_standard": facts.get("n_updates_standard", np.nan),
                "seconds": known["seconds"],
            }
        )
    columns = ["trial_number", "state", "scoring", "mean", "std", "folds_scored", "n_folds"]
    columns += ["n_repeats", "n_updates", "n_updates_standard", "seconds"]
    return pandas.DataFrame(rows, columns=columns)


def _mean_of(trial: FrozenTrial, facts: Mapping[str, Any]) -> float:
    """Return the mean of the first optimised score of a pruned trial from its attributes."""
    known = known_of_trial(trial.user_attrs)
    if "mean_test_score" in known:
        return known["mean_test_score"]
    scores = scores_of_trial(trial.user_attrs)  # an earlier version did not write the first
    return float(scores.get(str(facts.get("scoring")), np.nan))


def number_of_trials(argument: str, value: Any) -> int:
    """Return an argument that counts trials as an int."""
    is_integer = isinstance(value, int | np.integer)
    if not is_integer or isinstance(value, bool | np.timedelta64) or value < 1:
        raise ValueError(f"{argument} must be a number of trials, 1 or more, got {value!r}.")
    return int(value)


def best_of(study: optuna.Study, frame: Frame, n_best: int) -> Frame:
    """Return the best complete evaluations with a finite mean, best first."""
    found = frame[has_value(frame)]
    order = np.argsort(sign_of(study) * found["mean"].to_numpy(), kind="stable")
    return found.iloc[order[:n_best]]


def metric_of(frame: Frame) -> str:
    """Return the name of the score."""
    return ", ".join(frame["scoring"].unique())


def plus_minus(mean: float, standard_error: float) -> str:
    """Return an estimate with as many digits as show two digits of its standard error."""
    if math.isnan(standard_error):
        return f"{mean:.4g}"
    if not 1e-12 < standard_error < 1e6:
        return f"{mean:.4g} ± {standard_error:.2g}"
    digits = max(0, 1 - math.floor(math.log10(standard_error)))
    return f"{mean:.{digits}f} ± {standard_error:.{digits}f}"


def how_sure(frame: Frame) -> str:
    """Return as text how the standard errors were computed."""
    if frame["std"].notna().any() or frame["standard_error"].isna().all():
        return "std / √folds"
    are_pooled = frame["scoring"].str.startswith("pooled_").all()
    return "jackknife over rows" if are_pooled else "over rows"  # of a single fold


def amount(count: float) -> str:
    """Return a count as text, such as 56,232 or 12.3 million."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:,.3g} {name}"
    return f"{count:,.0f}"


def work_of(frame: Frame) -> str:
    """Return as text the row updates done, those saved and those of k trainings from scratch."""
    done, saved = int(frame["n_updates"].sum()), saved_updates(frame)
    work = [f"{amount(done)} done"]
    if saved is not None:
        n_saved = int(saved.sum())
        share = f" ({n_saved / (done + n_saved):.0%})" if n_saved else ""
        work.append(f"{amount(n_saved)} saved by sharing{share}")
    if "method" in frame and set(frame["method"]) == {"fit"}:  # k trainings from scratch anyway
        work.append(f"{amount(frame['n_updates_standard'].sum())} without pruning and sharing")
        return ", ".join(work)
    scratch = updates_from_scratch(frame).sum()
    if np.isfinite(scratch):
        work.append(f"{amount(scratch)} in k trainings from scratch")
    return ", ".join(work)


def saved_updates(frame: Frame) -> np.ndarray | None:
    """Return the row updates that sharing saved; None without a store, which alone knows them."""
    return frame["n_updates_saved"].to_numpy() if "n_updates_saved" in frame else None


def time_of(frame: Frame) -> str:
    """Return as text the seconds of evaluation."""
    return f"{_duration(frame['seconds'].sum())} of evaluation"


def clock_of(trials: Mapping[int, FrozenTrial], frame: Frame) -> str:
    """Return as text the time from the first start to the last end, and Optuna's part of it.

    Optuna's part is what remains of trials, and between them, without the evaluation and the
    store; callbacks are in it. It is left out if trials overlap, failed or are not in the store.
    """
    spans = sorted(
        (trial.datetime_start, trial.datetime_complete)
        for trial in trials.values()
        if trial.datetime_start and trial.datetime_complete
    )
    if not spans:
        return f"{_duration(0.0)} from the first start to the last end"
    seconds = (max(end for _, end in spans) - spans[0][0]).total_seconds()
    clock = f"{_duration(seconds)} from the first start to the last end"
    gaps = [(b[0] - a[1]).total_seconds() for a, b in zip(spans, spans[1:], strict=False)]
    stored = [known_of_trial(one.user_attrs).get("seconds_store", 0.0) for one in trials.values()]
    own = frame["seconds"].sum() + frame["seconds_prepare"].sum() + sum(stored)
    pauses = sum(gap for gap in gaps if gap > PAUSE)
    optunas = seconds - pauses - own
    if len(frame) <= max(trials) or min(gaps, default=0.0) < 0 or not 0 < optunas:
        return clock
    said = f"{clock}, of which {_duration(optunas)} ({optunas / seconds:.0%}) in Optuna"
    return f"{said} and {_duration(pauses)} in pauses" if pauses else said


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def updates_from_scratch(frame: Frame) -> np.ndarray:
    """Return the row updates of k trainings from scratch, for the folds that were scored."""
    share = frame["folds_scored"] / (frame["n_folds"] * frame["n_repeats"])
    return (frame["n_updates_standard"] * share).to_numpy(float)


def has_value(frame: Frame) -> Any:
    """Return which evaluations are complete with a finite mean."""
    return (frame["state"] == "complete") & np.isfinite(frame["mean"])


def sign_of(study: optuna.Study) -> int:
    """Return the sign that makes smaller values better, of the first optimised score."""
    return 1 if study.directions[0] == StudyDirection.MINIMIZE else -1


def fold_scores_of(study: optuna.Study, store: Any, best: Frame) -> dict[int, np.ndarray]:
    """Return the fold scores by trial, best trial first."""
    found = load_fold_scores(store, study=study, runs=list(best["run"]))
    there = set(found["run"])
    return {
        row.trial_number: found.loc[found["run"] == row.run, "score"].to_numpy(float)
        for row in best.itertuples()
        if row.run in there
    }


def paired_differences(
    best: Frame, scores: Mapping[int, np.ndarray]
) -> dict[int, PairedDifference]:
    """Return the differences to the first trial with scores, of trials with the same folds.

    Parameters
    ----------
    best : DataFrame
        Evaluations, best first.
    scores : dict of int to ndarray
        Fold scores by trial number.
    """
    rows = {row["trial_number"]: row for row in best.to_dict("records")}
    first, *others = scores
    same = [
        number
        for number in others
        if all(rows[number][name] == rows[first][name] for name in ALIKE_IF_PAIRED)
        and len(scores[number]) == len(scores[first])
    ]
    return {
        number: difference_by_folds(scores[number], scores[first], rows[first]["n_folds"], 0.95)
        for number in same
    }
