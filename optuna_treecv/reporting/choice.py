"""The choice of a trial as a figure, and as lines of the dashboard's note."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from optuna_treecv.crossval.intervals import Interval
from optuna_treecv.crossval.intervals import score_range
from optuna_treecv.reporting.evaluated import ALIKE_IF_PAIRED
from optuna_treecv.reporting.evaluated import best_of
from optuna_treecv.reporting.evaluated import evaluations_of
from optuna_treecv.reporting.evaluated import facts_of
from optuna_treecv.reporting.evaluated import fold_scores_of
from optuna_treecv.reporting.evaluated import Frame
from optuna_treecv.study.choice import Candidate
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import differences_from_best
from optuna_treecv.study.choice import is_feasible
from optuna_treecv.study.choice import known_direction

# Methods whose folds are no test sets of models of one size, so that Nadeau and Bengio's interval
# does not apply.
_OTHER_METHODS = ("chain", "holdout", "progressive")


class Compared(NamedTuple):
    """What is shown of a choice.

    Attributes
    ----------
    choice : Choice
        The best trial.
    next_ones : list of Candidate
        The next best trials, each with its difference from the best one.
    simplest : FrozenTrial or None
        The simplest trial within one standard error of the best; None if it is not known what is
        simpler.
    baseline : str
        What a constant prediction scores, in words; "" if that is not known.
    """

    choice: Choice
    next_ones: list[Candidate]
    simplest: FrozenTrial | None
    baseline: str


def compare_trials(
    study: optuna.Study, contest: Contest, simpler: Mapping[str, str] | None, n_best: int
) -> Compared | None:
    """Compare the best trials of a study; None if folds cannot be compared.

    Parameters
    ----------
    study : optuna.Study
    contest : Contest
    simpler : dict or None
        As for ``select``; None: one standard error is applied where the parameter says it.
    n_best : int
        How many trials are shown.
    """
    best = contest.trials[0]
    if contest.n_folds < 2 or best.number not in contest.folds_of([best]):
        return None
    searched = sorted({name for trial in contest.trials for name in trial.params})
    simplest = None
    if simpler is not None or known_direction(searched) is not None:
        simplest = choice_of(contest, "one_se", simpler, 0.95).trial
    choice = choice_of(contest, "best", None, 0.95)
    next_ones = differences_from_best(contest, contest.trials[1:n_best], 0.95)
    facts, said = facts_of(study), ""
    if "baseline" in facts:
        said = f"{facts['baseline']:.4g} by always predicting {facts['baseline_of']}"
    return Compared(choice, next_ones, simplest, said)


def stored_contest(study: optuna.Study, store: Any) -> Contest | None:
    """Return the trials of a study with the fold scores in its store; None if there are none."""
    trials, frame = evaluations_of(study, store)
    best = best_of(study, frame, len(frame))
    best = best[[is_feasible(trials[number]) for number in best["trial_number"]]]
    if best.empty or len(study.directions) > 1:
        return None
    first = best.iloc[0]
    alike = np.all([best[name] == first[name] for name in ALIKE_IF_PAIRED], axis=0)
    best = best[alike]
    n_models = int(first["n_folds"]) * int(first["n_repeats"])
    n_folds = int(first["n_folds"])
    n_rows, n_trained = int(first["n_rows"]), int(first["n_updates_standard"]) / n_models
    if n_folds > 1 and n_trained >= n_rows:  # in several epochs; the store does not say how many
        n_trained /= round(n_trained / (n_rows - n_rows / n_folds))
    # The store does not say how many rows are tested. Of folds it is all that are not trained on;
    # of other splits this would be too many.
    are_folds = n_folds * (n_rows - n_trained) <= n_rows + n_folds
    is_forward = str(first["cv"]).startswith("TimeSeriesSplit")
    has_interval = (
        are_folds
        and not is_forward
        and first["method"] not in _OTHER_METHODS
        and 0 < n_trained < n_rows
    )

    def folds_of(asked: Sequence[FrozenTrial]) -> dict[int, np.ndarray]:
        rows: Frame = best[best["trial_number"].isin([trial.number for trial in asked])]
        found = fold_scores_of(study, store, rows) if len(rows) else {}
        return {number: scores for number, scores in found.items() if len(scores) == n_models}

    return Contest(
        trials=[trials[number] for number in best["trial_number"]],
        folds_of=folds_of,
        rows={},
        shares=None,
        metric=str(first["scoring"]),
        n_folds=n_folds,
        n_trained=round(n_trained),
        test_share=n_rows / n_trained - 1 if has_interval else None,
        score_range=score_range(str(first["scoring"])),
        overlap=None if are_folds or not 0 < n_trained else n_rows / n_trained - 1,
    )


def interval_in_words(interval: Interval) -> str:
    """Return the ends of an interval with as many digits as show two digits of its width."""
    width = interval.high - interval.low
    digits = max(0, 1 - int(np.floor(np.log10(width)))) if 0 < width < 1e6 else 4
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def numbers_in_words(numbers: Sequence[int], most: int = 8) -> str:
    """Return the numbers of trials as text."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more
