"""The finished trials of a study as data frames, for the figures and the note."""

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
from optuna_treecv.reporting.history import check_study
from optuna_treecv.reporting.history import import_pandas
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

#: A pandas.DataFrame; pandas is optional, and only ``history`` imports it.
Frame = Any

# The fold scores of two evaluations can be paired if these columns are equal. The fingerprint
# covers the rows and their order before the split into folds.
_EQUAL_IF_PAIRED = ("fingerprint", "cv", "n_folds", "n_repeats", "random_state", "scoring")

# Methods to which Nadeau and Bengio's interval does not apply, because their training sets differ
# in size.
_OTHER_METHODS = ("chain", "holdout", "progressive")


class Evaluations:
    """The complete and pruned trials of a study, and their evaluations in the same order.

    With several scores, these are the evaluations by the first optimised one.

    Parameters
    ----------
    study : optuna.Study
    store : Any
        None: use the attributes of the trials instead.

    Attributes
    ----------
    trials : dict of int to FrozenTrial
        By number.
    facts : dict
        The study's record, which the objective has written; may be empty.
    sign : int
        The factor that makes smaller values of the first optimised score better.
    frame : DataFrame
        One row per evaluation.
    metric : str
        The name of the score.
    has_value : Series of bool
        Which evaluations are complete with a finite mean.
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
        """Return one row per trial of a ``treecv_objective``, from the trials' attributes."""
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
        """How the standard errors are estimated, in words."""
        frame = self.frame
        if frame["std"].notna().any() or frame["standard_error"].isna().all():
            return "std / √folds"
        are_pooled = frame["scoring"].str.startswith("pooled_").all()
        return "jackknife over rows" if are_pooled else "over rows"  # of a single fold

    # The best trials.

    def best(self, n_best: int | None = None) -> Frame:
        """Return the best complete evaluations with a finite mean, best first; None: all."""
        frame = self.frame[self.has_value]
        order = np.argsort(self.sign * frame["mean"].to_numpy(), kind="stable")
        return frame.iloc[order[:n_best]]

    def fold_scores(self, best: Frame) -> dict[int, np.ndarray]:
        """Return the fold scores of some evaluations by trial, if the store has them."""
        if not len(best):
            return {}
        frame = load_fold_scores(self.store, study=self.study, runs=list(best["run"]))
        scores = dict(iter(frame.groupby("trial_number")["score"]))
        return {n: scores[n].to_numpy(float) for n in best["trial_number"] if n in scores}

    def contest(self) -> Contest | None:
        """Return the trials to choose from with their fold scores; None if there are none.

        The store has no numbers of test rows. For folds, all rows outside the training set are
        test rows; for other splits this would overestimate their number.
        """
        best = self.best()
        best = best[[is_feasible(self.trials[number]) for number in best["trial_number"]]]
        if best.empty or len(self.study.directions) > 1:
            return None
        first = best.iloc[0]
        best = best[np.all([best[name] == first[name] for name in _EQUAL_IF_PAIRED], axis=0)]
        n_folds, n_rows = int(first["n_folds"]), int(first["n_rows"])
        n_models = n_folds * int(first["n_repeats"])
        n_trained = int(first["n_updates_standard"]) / n_models
        if n_folds > 1 and n_trained >= n_rows:  # several epochs, whose number is not stored
            n_trained /= round(n_trained / (n_rows - n_rows / n_folds))
        are_folds = n_folds * (n_rows - n_trained) <= n_rows + n_folds
        is_forward = str(first["cv"]).startswith("TimeSeriesSplit")
        is_other = is_forward or first["method"] in _OTHER_METHODS
        has_interval = are_folds and not is_other and 0 < n_trained < n_rows

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
            overlap=None if are_folds or not 0 < n_trained else n_rows / n_trained - 1,
        )


class Compared(NamedTuple):
    """The best trial and its competitors, as figures and notes show them.

    Attributes
    ----------
    choice : Choice
        The best trial.
    next_best : list of Candidate
        The next best trials, each with its difference from the best one.
    simplest : FrozenTrial or None
        The simplest trial within one standard error of the best; None if it is unknown which
        values are simpler.
    """

    choice: Choice
    next_best: list[Candidate]
    simplest: FrozenTrial | None


def compare_trials(
    contest: Contest, simpler: Mapping[str, str] | None, n_best: int
) -> Compared | None:
    """Compare the best trials of a study; return None without comparable folds.

    Parameters
    ----------
    contest : Contest
    simpler : dict or None
        As for ``select``; None: ``simplest`` is known for parameters such as ``alpha``.
    n_best : int
        The number of trials, the best one included.
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
    """Return the paired differences of trials with the same folds to the first trial.

    Parameters
    ----------
    best : DataFrame
        Evaluations, best first.
    scores : dict of int to ndarray
        Fold scores by trial number.
    """
    rows = {row["trial_number"]: row for row in best.to_dict("records")}
    first, *others = scores
    n_folds = rows[first]["n_folds"]
    return {
        number: difference_by_folds(scores[number], scores[first], n_folds, 0.95)
        for number in others
        if all(rows[number][name] == rows[first][name] for name in _EQUAL_IF_PAIRED)
        and len(scores[number]) == len(scores[first])
    }


# Numbers.


def number_of_trials(argument: str, value: Any) -> int:
    """Return an argument that is a number of trials as an int, or raise a ValueError."""
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


def _digits(spread: float) -> int:
    """Return the number of decimals that show two significant digits of a spread."""
    return max(0, 1 - math.floor(math.log10(spread)))
