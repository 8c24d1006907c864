"""Which reports a pruner needs, and what a pruner that does not suit the study costs."""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from typing import Any
from typing import Literal

import optuna

from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.run import Run
from optuna_treecv.study.racing import RacingPruner

Report = Literal["progressive", "blocks", "folds", "mean"]

# A pruner that takes less time than this in all is not worth a warning.
_FEWEST_SECONDS = 1.0

# These compare the values of trials one by one, in place of pairs at the same step.
_OF_RUNNING_MEANS = (
    optuna.pruners.PercentilePruner,  # and MedianPruner
    optuna.pruners.SuccessiveHalvingPruner,
    optuna.pruners.HyperbandPruner,
)


def report_for(pruner: optuna.pruners.BasePruner, run: Run) -> Report | None:
    """Return the kind of reports that a pruner needs, see ``treecv_objective``.

    Those inside the first pass come soonest, but only the tree has them, for means over rows.

    Parameters
    ----------
    pruner : optuna.pruners.BasePruner
    run : Run
        That of any trial.

    Returns
    -------
    str or None
        None for a pruner that never prunes.
    """
    pruner = _innermost(pruner)
    if isinstance(pruner, optuna.pruners.NopPruner):
        return None
    is_paired = isinstance(pruner, optuna.pruners.WilcoxonPruner)
    if can_report_early(run):
        return "blocks" if is_paired else "progressive"
    return "folds" if is_paired or isinstance(pruner, RacingPruner) else "mean"


def can_report_early(run: Run) -> bool:
    """Return whether ``report`` may be "progressive": the tree is used, for a mean over rows."""
    searched = {name.rpartition("__")[2] for name in run.evaluation.searched}
    if run.method.name != "treecv" or run.n_epochs > 1 or "n_epochs" in searched:
        return False
    return run.evaluation.scores_rows(run.scoring.first, run.estimator)


def misfit(pruner: optuna.pruners.BasePruner, report: str | None) -> str | None:
    """Return why a pruner does not fit the reports, as a sentence; None if it does."""
    pruner = _innermost(pruner)
    name = type(pruner).__name__
    if report in ("folds", "blocks") and isinstance(pruner, _OF_RUNNING_MEANS):
        single = "one part of the folds" if report == "folds" else "one block of rows"
        other = "mean" if report == "folds" else "progressive"
        return (
            f"{name} takes each report for a score of the whole trial, but report={report!r} "
            f"makes reports of {single} each, so that chance prunes good trials; use "
            f"pruner=objective.pruner() or report={other!r}."
        )
    if report in ("mean", "progressive") and isinstance(pruner, optuna.pruners.WilcoxonPruner):
        other = "folds" if report == "mean" else "blocks"
        return (
            f"{name} needs reports that do not depend on each other, but those of "
            f"report={report!r} are means over the same rows; use pruner=objective.pruner() or "
            f"report={other!r}."
        )
    return None


def _innermost(pruner: optuna.pruners.BasePruner) -> Any:
    """Return the pruner that a ``PatientPruner`` asks, or the pruner itself."""
    return getattr(pruner, "_wrapped_pruner", pruner)


class PrunerClock:
    """Measures the time that a study's pruner takes, and warns if it exceeds the evaluations'."""

    def __init__(self) -> None:
        self._of_pruner = self._of_evaluations = 0.0
        self._has_warned = False
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return PrunerClock, ()

    def should_prune(self, trial: Any) -> bool:
        """Return what the pruner decides about a trial."""
        began = perf_counter()
        answer = trial.should_prune()
        with self._lock:
            self._of_pruner += perf_counter() - began
        return answer

    def end(self, trial: Any, seconds: float) -> None:
        """Take note of the seconds that the evaluation of a trial took.

        There is one warning if a ``WilcoxonPruner`` has taken longer so far than all evaluations.
        """
        pruner = _innermost(trial.study.pruner) if isinstance(trial, optuna.Trial) else None
        if not isinstance(pruner, optuna.pruners.WilcoxonPruner):
            return
        with self._lock:
            self._of_evaluations += seconds
            is_slow = self._of_pruner > max(self._of_evaluations, _FEWEST_SECONDS)
            is_first = is_slow and not self._has_warned
            self._has_warned = self._has_warned or is_slow
            spent = self._of_pruner, self._of_evaluations
        if is_first:
            warn_caller(
                f"WilcoxonPruner has taken {spent[0]:.1f} s so far, and the evaluations "
                f"{spent[1]:.1f} s: SciPy computes its p-values by a permutation test while there "
                "are at most 13 reports; use pruner=objective.pruner(), or n_startup_steps=14."
            )
