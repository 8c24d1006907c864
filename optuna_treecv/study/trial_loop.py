"""The way of a trial: from its parameters to its value."""

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import FloatDistribution

from optuna_treecv.core.engine import Watch
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.run import Run
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.rows.row_file import heard_by
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.outages import advice_on
from optuna_treecv.study.batches import Batches
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.race import evaluate_reporting
from optuna_treecv.study.race import Incumbents
from optuna_treecv.study.race import Race
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.records import PROGRESS_ATTRIBUTE
from optuna_treecv.study.records import record_trial


class TrialLoop:
    """Evaluates the trials of a study: batches of a grid, races, reports, and what is recorded.

    Parameters
    ----------
    evaluator : Evaluator
    batch_size : int
        The most points of a grid that are evaluated in one call.
    leases : Leases or None
        Of points that other processes evaluate.
    """

    def __init__(self, evaluator: Evaluator, batch_size: int, leases: Leases | None) -> None:
        self.evaluator = evaluator
        self.batches = Batches(batch_size, leases)
        self.incumbents = Incumbents()
        self._report_lock = Lock()

    def evaluate(self, trial: Any) -> CVResult:
        """Evaluate a trial, and return the whole result."""
        evaluator, race, listener = self.evaluator, None, partial(_write_progress, trial)
        evaluator.study_check.directions(getattr(trial, "study", None), evaluator.directions)
        try:
            with self.batches.call(), heard_by(listener):
                self._choose_report(trial)
                run = self._run(trial)
                if hasattr(trial, "study"):  # FixedTrial and FrozenTrial are alone
                    evaluator.study_check.trial(trial, run)
                    is_in_grid = evaluator.space.grids is not None
                    race = self._race(trial, run)
                    if race is not None and race.compares_folds:
                        run = run.with_row_scores()
                    if evaluator.database is not None:
                        run.comes_again = is_in_grid or _may_recur(trial.distributions)
                    others = partial(self._unseen, trial, run) if is_in_grid else None
                    if evaluator.cross_validation.settings.is_early:
                        run.watch = race or Watch()
                    self.batches.compute(run, others)
                with self.batches.leased(run):
                    if evaluator.cross_validation.settings.report is None:
                        run.complete()
                    else:
                        self._run_reporting(trial, run, race)
            result = record_trial(trial, run, evaluator.database)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            where = f"in trial {trial.number} with parameters {trial.params}"
            error.add_note(f"This happened {where}.{advice_on(error)}")
            raise
        direction = run.request.scoring.first.direction
        evaluator.known_scores.note(trial, result, direction, run.book.responses_of_all())
        return result

    def _choose_report(self, trial: Any) -> None:
        """Choose, for report="auto", what the pruner of a study needs, in its first trial."""
        with self._report_lock:
            may_report = self.evaluator.cross_validation.settings.why_no_report is None
            if self.evaluator.report == "auto" and may_report and isinstance(trial, optuna.Trial):
                self.evaluator.report_for(trial.study.pruner, self._run(trial))

    def _unseen(self, trial: optuna.Trial, run: Run) -> Iterator[Run]:
        """Yield runs for points of the grid that have no trial yet.

        They can all be evaluated side by side with the given trial, whose run is ``run``. If the
        trial is not at a point of the grid, there are none.
        """
        evaluator, names = self.evaluator, list(self.evaluator.space.axes)
        mine = {name: trial.params[name] for name in names}
        lanes = run.plan.capabilities.shared_parameters
        trials = trial.study.get_trials(deepcopy=False)
        seen = {tuple(one.params.get(name) for name in names) for one in trials}
        ahead = self.batches.ahead.setdefault(trial.study, {})
        n_epochs = evaluator.study_check.epochs_in(trial.study)
        for point in evaluator.space.points_beside(mine, lanes):
            if point in seen:
                continue
            seen.add(point)
            if point not in ahead:
                params = dict(zip(names, point, strict=True))
                try:
                    ahead[point] = evaluator.run_of_params(params, n_epochs)
                except Exception:  # noqa: BLE001  # that point's own trial will raise it
                    continue
            if not ahead[point].precomputed:  # otherwise its results are there
                yield ahead[point]

    def _run(self, trial: Any) -> Run:
        """Return the trial's run, which may have been made together with other trials' runs."""
        study = getattr(trial, "study", None)  # FixedTrial and FrozenTrial have none
        evaluator, space = self.evaluator, self.evaluator.space
        n_epochs = evaluator.study_check.epochs_in(study)
        if not space.axes:
            return run_for(evaluator.cross_validation, space.of_trial(trial), n_epochs)
        params = space.suggest(trial)
        ahead = None if study is None else self.batches.ahead.get(study)
        run = ahead.pop(tuple(params.values()), None) if ahead else None
        return evaluator.run_of_params(params, n_epochs) if run is None else run

    def _race(self, trial: optuna.Trial, run: Run) -> Race | None:
        """Return the comparison of a trial with the best one, if the study's pruner needs it."""
        pruner = trial.study.pruner
        if not isinstance(pruner, RacingPruner):
            return None
        if self.evaluator.cross_validation.settings.report is None:
            pruner.warn_once(
                "RacingPruner needs report='progressive', or 'folds' where folds are fitted, to "
                "prune a trial; with report=None it has no effect."
            )
            return None
        if run.why_no_early_report:
            return None
        return self.incumbents.race(trial, run, pruner, self.evaluator.run_of)

    def _run_reporting(self, trial: Any, run: Run, race: Race | None) -> None:
        """Evaluate and report; a trial that is pruned is recorded too."""
        if race is not None and run.precomputed:
            race.early = None  # its final score needs no forecast
        try:
            evaluate_reporting(trial, run, self.evaluator.study_check.should_prune, race)
            if run.why_no_early_report:
                self.evaluator.cross_validation.warn_once(
                    "first pass",
                    lambda: (
                        f"Trial {trial.number} is not pruned, and neither are others like it: "
                        f"{run.why_no_early_report}"
                    ),
                )
            if race is not None:
                self.incumbents.note(trial.study, race.incumbent(run.result().mean))
        except optuna.TrialPruned:
            record_trial(trial, run, self.evaluator.database)
            run.precomputed.clear()  # the exception's traceback refers to the run for a while
            raise
        finally:
            self.evaluator.study_check.pruner_time(trial, run.cost.seconds)
            if race is not None:
                race.pruner.forget(trial)


def _may_recur(distributions: Mapping[str, BaseDistribution]) -> bool:
    """Return whether a sampler may suggest the same params twice."""
    return not any(
        isinstance(one, FloatDistribution) and one.step is None and not one.single()
        for one in distributions.values()
    )


def _write_progress(trial: Any, line: str) -> None:
    with suppress(Exception):  # a trial does not fail by it, and a broken storage is noticed later
        trial.set_user_attr(PROGRESS_ATTRIBUTE, line)
