"""The finished trials of a study as data frames, for figures and notes."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.core.intervals import difference_by_folds
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import PairedDifference
from optuna_treecv.estimators.checks import import_pandas
from optuna_treecv.reporting.history import check_study
from optuna_treecv.reporting.history import load_evaluations
from optuna_treecv.reporting.history import load_fold_scores
from optuna_treecv.scoring.metrics import range_by_name
from optuna_treecv.study.choice import Candidate
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import differences_from_best
from optuna_treecv.study.choice import is_feasible
from optuna_treecv.study.choice import known_direction
from optuna_treecv.study.records import facts_of_study
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import runs_of_trial

#: A pandas.DataFrame. Only ``history`` imports pandas, because it is optional.
Frame = Any

# The fold scores of two evaluations can be paired if they have the same values in these columns.
# The fingerprint identifies the rows and their order before the split into folds.
_PAIRING_COLUMNS = ("fingerprint", "cv", "n_folds", "n_repeats", "random_state", "scoring")

# The interval of Nadeau and Bengio does not apply to these methods, because the sizes of their
# training sets differ.
_METHODS_WITHOUT_INTERVAL = ("chain", "holdout", "progressive")


class Evaluations:
    """The complete and pruned trials of a study, with one evaluation per trial.

    If there are several scores, the evaluation by the first optimized score is used.

    Parameters
    ----------
    study : optuna.Study
    store : Any
        The store of the study; None to use the attributes of the trials instead.

    Attributes
    ----------
    trials : dict of int to FrozenTrial
        The trials by number.
    facts : dict
        The study attribute in which the objective describes how trials are evaluated; may be
        empty.
    sign : int
        1 if smaller values of the first optimized score are better, else -1.
    frame : DataFrame
        One row per evaluation, sorted by trial number.
    metric : str
        The name of the score.
    has_value : Series of bool
        Whether each evaluation is complete and has a finite mean.
    """

    def __init__(self, study: optuna.Study, store: Any) -> None:
        check_study(study)
        self.study = study
        self.store = store
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        trials = study.get_trials(deepcopy=False, states=states)
        self.trials = {trial.number: trial for trial in trials}
        self.facts = facts_of_study(study)
        self.sign = 1 if study.directions[0] == StudyDirection.MINIMIZE else -1
        if store is None:
            frame = self._from_attributes()
        else:
            frame = load_evaluations(store, study=study)
            first = {run for trial in trials for run in runs_of_trial(trial.user_attrs)[:1]}
            is_ours = frame["trial_number"].isin(list(self.trials)) & frame["run"].isin(first)
            frame = frame[is_ours]
        frame = frame.astype({"trial_number": int, "mean": float, "std": float})
        frame = frame.sort_values("trial_number", ignore_index=True)
        # Repeats use the same rows, so they do not count as additional folds.
        n_folds = np.minimum(frame["folds_scored"], frame["n_folds"])
        errors = frame["std"] / np.sqrt(n_folds.astype(float))
        records = [facts_of_trial(self.trials[n].user_attrs) for n in frame["trial_number"]]
        pooled = [record.get("std_error", np.nan) for record in records]
        self.frame = frame.assign(standard_error=errors.where(errors.notna(), pooled))
        self.metric = ", ".join(frame["scoring"].unique())
        self.has_value = (frame["state"] == "complete") & np.isfinite(frame["mean"])

    def _from_attributes(self) -> Frame:
        """Return one row per trial that a ``treecv_objective`` has evaluated, from attributes."""
        pandas, facts = import_pandas("a figure without a store"), self.facts
        rows = []
        for number, trial in self.trials.items():
            record = facts_of_trial(trial.user_attrs)
            if "n_updates" in record:
                is_complete = trial.state == TrialState.COMPLETE
                mean = trial.values[0] if is_complete else record.get("mean_test_score")
                state, std = trial.state.name.lower(), record.get("std_test_score")
                rows.append((number, state, mean, std, record["folds_scored"]))
        columns = ["trial_number", "state", "mean", "std", "folds_scored"]
        frame = pandas.DataFrame(rows, columns=columns)
        n_folds = facts.get("n_folds", frame["folds_scored"])
        return frame.assign(scoring=facts.get("scoring", "value"), n_folds=n_folds)

    @property
    def how_sure(self) -> str:
        """A description of how the standard errors are estimated."""
        frame = self.frame
        if frame["std"].notna().any() or frame["standard_error"].isna().all():
            return "std / √folds"
        are_pooled = frame["scoring"].str.startswith("pooled_").all()
        return "jackknife over rows" if are_pooled else "over rows"  # a single fold

    # The best trials.

    def best(self, n_best: int | None = None) -> Frame:
        """Return the ``n_best`` (or all) complete evaluations with a finite mean, best first."""
        frame = self.frame[self.has_value]
        order = np.argsort(self.sign * frame["mean"].to_numpy(), kind="stable")
        return frame.iloc[order[:n_best]]

    def fold_scores(self, best: Frame) -> dict[int, np.ndarray]:
        """Return the fold scores of evaluations by trial number, if they are in the store."""
        if not len(best):
            return {}
        frame = load_fold_scores(self.store, study=self.study, runs=list(best["run"]))
        scores = dict(iter(frame.groupby("trial_number")["score"]))
        return {n: scores[n].to_numpy(float) for n in best["trial_number"] if n in scores}

    def contest(self) -> Contest | None:
        """Return the trials from which a rule chooses; None if there are none.

        The store does not contain the numbers of test rows. For a partition into folds, all rows
        outside the training set are test rows. For other splits, this would overestimate the
        number.
        """
        best = self.best()
        best = best[[is_feasible(self.trials[number]) for number in best["trial_number"]]]
        if best.empty or len(self.study.directions) > 1:
            return None
        first = best.iloc[0]
        best = best[np.all([best[name] == first[name] for name in _PAIRING_COLUMNS], axis=0)]
        n_folds, n_rows = int(first["n_folds"]), int(first["n_rows"])
        n_models = n_folds * int(first["n_repeats"])
        n_trained = int(first["n_updates_standard"]) / n_models
        if n_folds > 1 and n_trained >= n_rows:  # several epochs; their number is not stored
            n_trained /= round(n_trained / (n_rows - n_rows / n_folds))
        is_partition = n_folds * (n_rows - n_trained) <= n_rows + n_folds
        is_forward = str(first["cv"]).startswith("TimeSeriesSplit")
        has_no_method = is_forward or first["method"] in _METHODS_WITHOUT_INTERVAL
        has_interval = is_partition and not has_no_method and 0 < n_trained < n_rows

        def folds_of(trials: Sequence[FrozenTrial]) -> dict[int, np.ndarray]:
            numbers = [trial.number for trial in trials]
            scores = self.fold_scores(best[best["trial_number"].isin(numbers)])
            return {number: s for number, s in scores.items() if len(s) == n_models}

        return Contest(
            trials=[self.trials[number] for number in best["trial_number"]],
            folds_of=folds_of,
            rows={},
            shares=None,
            metric=str(first["scoring"]),
            n_folds=n_folds,
            n_trained=round(n_trained),
            test_share=n_rows / n_trained - 1 if has_interval else None,
            score_range=range_by_name(str(first["scoring"])),
            overlap=None if is_partition or not 0 < n_trained else n_rows / n_trained - 1,
        )


class Compared(NamedTuple):
    """The comparison of the best trial with other trials, for figures and notes.

    Attributes
    ----------
    choice : Choice
        The choice of the best trial.
    next_best : list of Candidate
        The next best trials, with their paired differences from the best one.
    simplest : FrozenTrial or None
        The simplest trial within one standard error of the best; None if it is unknown which
        values make a model simpler.
    """

    choice: Choice
    next_best: list[Candidate]
    simplest: FrozenTrial | None


def compare_trials(
    contest: Contest, simpler: Mapping[str, str] | None, n_best: int
) -> Compared | None:
    """Compare the best trials of a study; return None if there are no comparable fold scores.

    Parameters
    ----------
    contest : Contest
    simpler : dict or None
        See ``select``. If None, ``simplest`` is set only for parameters with a usual direction,
        such as ``alpha``.
    n_best : int
        The number of trials, including the best one.
    """
    best = contest.trials[0]
    if contest.n_folds < 2 or best.number not in contest.folds_of([best]):
        return None
    searched = sorted({name for trial in contest.trials for name in trial.params})
    simplest = None
    if simpler is not None or known_direction(searched) is not None:
        simplest = choice_of(contest, "one_se", simpler, 0.95).trial
    choice = choice_of(contest, "best", None, 0.95)
    next_best = differences_from_best(contest, contest.trials[1:n_best], 0.95)
    return Compared(choice, next_best, simplest)


def paired_differences(
    best: Frame, scores: Mapping[int, np.ndarray]
) -> dict[int, PairedDifference]:
    """Return the paired differences from the first trial, for trials with the same folds.

    Parameters
    ----------
    best : DataFrame
        The evaluations, best first.
    scores : dict of int to ndarray
        The fold scores by trial number.
    """
    rows = {row["trial_number"]: row for row in best.to_dict("records")}
    first, *others = scores
    n_folds = rows[first]["n_folds"]
    return {
        number: difference_by_folds(scores[number], scores[first], n_folds, 0.95)
        for number in others
        if all(rows[number][name] == rows[first][name] for name in _PAIRING_COLUMNS)
        and len(scores[number]) == len(scores[first])
    }


# Numbers.


def number_of_trials(argument: str, value: Any) -> int:
    """Check an argument that is a number of trials, and return it as an int."""
    is_integer = isinstance(value, int | np.integer)
    if not is_integer or isinstance(value, bool | np.timedelta64) or value < 1:
        raise ValueError(f"{argument} must be a number of trials, 1 or more, got {value!r}.")
    return int(value)


def plus_minus(mean: float, standard_error: float) -> str:
    """Return "mean ± standard error" with two significant digits of the standard error."""
    if math.isnan(standard_error):
        return f"{mean:.4g}"
    if not 1e-12 < standard_error < 1e6:
        return f"{mean:.4g} ± {standard_error:.2g}"
    digits = _digits(standard_error)
    return f"{mean:.{digits}f} ± {standard_error:.{digits}f}"


def interval_in_words(interval: Interval) -> str:
    """Return "low to high" with two significant digits of the width."""
    width = interval.high - interval.low
    digits = _digits(width) if 0 < width < 1e6 else 4
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _digits(value: float) -> int:
    """Return the number of decimals that show two significant digits of a value."""
    return max(0, 1 - math.floor(math.log10(value)))
