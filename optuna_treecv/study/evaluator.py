"""The candidates of a search space and the trials of a study, for all that evaluates them."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import optuna

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.run import Run
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.losses import computed_outputs
from optuna_treecv.storage.database import Database
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import contest_of
from optuna_treecv.study.honest import Correction
from optuna_treecv.study.honest import correction_of
from optuna_treecv.study.honest import Found
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import KnownScores
from optuna_treecv.study.space import Candidate
from optuna_treecv.study.space import check_given
from optuna_treecv.study.space import Space
from optuna_treecv.study.study_check import is_one_pass
from optuna_treecv.study.study_check import report_for
from optuna_treecv.study.study_check import StudyCheck
from optuna_treecv.study.study_check import warn_if_mixed


class _Planned(NamedTuple):
    """The last plan. Trials that differ only in parameters of the models alone copy it.

    Attributes
    ----------
    params : dict
        The params of the trial that was planned.
    n_epochs : int or None
        Its epochs.
    run : Run
        A run with this plan, which is never evaluated.
    """

    params: dict[str, Any]
    n_epochs: int | None
    run: Run

    def serves(self, params: dict[str, Any], n_epochs: int | None) -> bool:
        """Return whether the run at other params has the same plan.

        Numbers of ``free_parameters`` may differ while they are positive and finite. Others
        decide, such as ``alpha=0`` of ``Ridge``, which has no exact folds, or an infinite ``C``.
        """
        own = self._pick_decisive(self.params)
        return n_epochs == self.n_epochs and self._pick_decisive(params) == own

    def _pick_decisive(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the params that decide on the plan, with their types."""
        free = self.run.plan.capabilities.free_parameters
        return {
            name: (type(value), value)
            for name, value in params.items()
            if name not in free or type(value) not in (int, float) or not 0 < value < np.inf
        }


class Evaluator:
    """Evaluates the candidates of a search space, and knows what became of the trials of a study.

    Parameters
    ----------
    space : Space
    cross_validation : CrossValidation
    report : str or None
        When trials report, as it was given: "auto" until the first trial has chosen.
    database : Database or None
        The store.

    Attributes
    ----------
    directions : list of {"minimize", "maximize"}
    known_scores : KnownScores
        Of trials that are over.
    study_check : StudyCheck
    """

    def __init__(
        self,
        space: Space,
        cross_validation: CrossValidation,
        report: str | None,
        database: Database | None = None,
    ) -> None:
        scoring = cross_validation.settings.scored_by
        self.directions = ["minimize"] if scoring is None else scoring.directions
        self.space = space
        self.cross_validation = cross_validation
        self.report = report
        self.database = database
        self.study_check = StudyCheck(cross_validation, space)
        self.known_scores = KnownScores(database)
        self._planned: _Planned | None = None  # the last one

    def report_for(self, pruner: optuna.pruners.BasePruner, run: Run | None = None) -> None:
        """Make the reports that a pruner needs, from before the first trial on."""
        run = self.run_at(None) if run is None else run
        report = report_for(pruner, run)
        self.report = report
        self._use(self.cross_validation.with_report(report))

    def try_all_folds(self) -> None:
        """Go on where a fold has failed, from before the first trial on."""
        self._use(self.cross_validation.trying_all_folds())

    def _use(self, cross_validation: CrossValidation) -> None:
        self.cross_validation = self.study_check.cross_validation = cross_validation
        self._planned = None

    def run_of_params(self, params: dict[str, Any], n_epochs: int | None) -> Run:
        """Return the run at the params of a trial, planned as the last one where that is right."""
        estimator, n_epochs = self.space.at(params, n_epochs)
        planned = self._planned
        if planned is not None and planned.serves(params, n_epochs):
            return planned.run.like(estimator)
        run = run_for(self.cross_validation, estimator, n_epochs)
        if run.plan.capabilities.free_parameters:
            self._planned = _Planned(params, n_epochs, run.like(estimator))
        return run

    def run_at(self, params: Mapping[str, Any] | None) -> Run:
        """Return the run at given parameters, or of the estimator as given."""
        return run_for(self.cross_validation, *self.space.candidate(params))

    def run_of(self, trial: optuna.trial.FrozenTrial) -> Run:
        """Return the run of a trial of this objective that is over."""
        argument = f"study must be one of this objective: trial {trial.number}"
        return run_for(self.cross_validation, *self.candidate_of(trial, argument))

    def candidate_of(self, trial: optuna.trial.FrozenTrial, argument: str) -> Candidate:
        """Return the candidate that a finished trial evaluated; errors begin with ``argument``."""
        n_epochs = (self.cross_validation.settings.n_epochs or 1) if is_one_pass(trial) else None
        estimator, n_epochs = self.space.candidate_of(trial, n_epochs, argument)
        if (best := facts_of_trial(trial.user_attrs).get("n_estimators")) is not None:
            with_size = run_for(self.cross_validation, estimator).plan.capabilities.with_size
            assert with_size is not None
            estimator = with_size(estimator, best)
        return estimator, n_epochs

    def values_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that params of a trial stand for."""
        check_given("params", params, self.space.axes)
        return self.space.values_of(params)

    def contest(self, study: Any, number: int | None = None) -> Contest:
        """Return the trials of a study with what this objective knows of their scores."""
        return contest_of(study, self.run_of, self.known_scores, number)

    def choose(self, contest: Contest, rule: Any, simpler: Any, level: float = 0.95) -> Choice:
        """Choose a trial."""
        return choice_of(contest, rule, self.with_values(simpler), level)

    def with_values(self, simpler: Any) -> Any:
        """Return ``simpler``; a callable gets the values that params mean."""
        return (lambda params: simpler(self.values_of(params))) if callable(simpler) else simpler

    def correction(
        self, study: Any, rule: Any, simpler: Any, level: float = 0.95, score: str | None = None
    ) -> tuple[Correction, Run]:
        """Return what ``honest`` follows from, and the run of the best trial."""
        scoring = self.cross_validation.settings.scored_by
        names = scoring.optimized_names if scoring is not None and scoring.returns_tuple else []
        if score not in names if names else score is not None:
            right = f"one of {', '.join(map(repr, names))}" if names else "None for a single score"
            raise ValueError(f"score must be {right}, got {score!r}.")
        number = names.index(score) if score is not None else None
        contest = self.contest(study, number)
        run = self.run_of(contest.trials[0])
        if number:  # scores of folds and rows are held for the first one
            run = run.optimizing(number)
            why = "since the scores of folds are held for the first of several optimised scores"
            contest = contest._replace(folds_of=lambda trials: {}, rows={}, why_unknown=why)
        simpler = self.with_values(simpler)
        return correction_of(contest, run, self.outputs_of, rule, simpler, level), run

    def outputs_of(self, trials: list[optuna.trial.FrozenTrial], method: str) -> Found:
        """Return the trials whose out-of-fold outputs are known, and these.

        Outputs that are not held are computed where that needs no training.
        """
        found: Found = [], []
        for trial in trials:
            held = self.known_scores.find(trial)
            outputs = None if held is None else held.outputs.get(method)
            if outputs is None:
                outputs = computed_outputs(self.run_of(trial), method)
            if outputs is not None:
                found[0].append(trial)
                found[1].append(outputs)
        return found

    def trial_and_candidate(
        self, study: Any, rule: Any = "best", simpler: Any = None
    ) -> tuple[optuna.trial.FrozenTrial, Candidate]:
        """Return a given trial, or the one of a study that a rule chooses, and its estimator."""
        if isinstance(study, optuna.trial.FrozenTrial):
            if rule != "best":
                raise ValueError(f"rule must be 'best' where study is a trial, got {rule!r}.")
            return study, self.candidate_of(study, "study must be a trial of this objective: it")
        if not isinstance(study, optuna.Study):
            raise ValueError(f"study must be an optuna.Study or one of its trials, got {study!r}.")
        if len(study.directions) > 1:
            raise ValueError(
                "study must have one objective for a best trial; choose one of study.best_trials, "
                "the Pareto front, and give that."
            )
        try:
            trial = study.best_trial
        except ValueError as error:
            raise ValueError("study must have a complete trial, got none.") from error
        warn_if_mixed(study)
        if rule != "best":
            trial = self.choose(self.contest(study), rule, simpler).trial
        argument = "study must be one of this objective: its best trial"
        return trial, self.candidate_of(trial, argument)
