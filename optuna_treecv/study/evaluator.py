"""The evaluator of an objective: it runs candidates and trials, and records their scores."""

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from threading import Lock
from time import perf_counter
from typing import Literal
from typing import Unpack
from uuid import uuid4

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.trial import BaseTrial
from optuna.trial import FrozenTrial

from optuna_treecv.caching.caches import AnyCache
from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.cross_validation import Search
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.intervals import dependence_note
from optuna_treecv.core.request import folds_key
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import Arguments
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.losses import computed_outputs
from optuna_treecv.estimators.base import MOST_EPOCHS
from optuna_treecv.estimators.checks import as_estimator
from optuna_treecv.estimators.incremental import check_effect
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import check_bytes
from optuna_treecv.rows.row_file import reporting_to
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.database import Given
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.evaluations import run_of_score
from optuna_treecv.storage.model_store import DEFAULT_MAX_BYTES
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.outages import advice_on
from optuna_treecv.study.batches import Batches
from optuna_treecv.study.batches import MAX_BATCH_SIZE
from optuna_treecv.study.choice import check_rule
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import complete_trials
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.choice import TrialOutputs
from optuna_treecv.study.out_of_fold import predict_tested
from optuna_treecv.study.race import evaluate_reporting
from optuna_treecv.study.race import Incumbents
from optuna_treecv.study.race import Race
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.records import facts_of_study
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import KnownScores
from optuna_treecv.study.records import PROGRESS_ATTRIBUTE
from optuna_treecv.study.records import SCORE_PREFIX
from optuna_treecv.study.records import TRIAL_ATTRIBUTE
from optuna_treecv.study.space import as_space
from optuna_treecv.study.space import Candidate
from optuna_treecv.study.space import check_given
from optuna_treecv.study.space import Distributions
from optuna_treecv.study.space import Grids
from optuna_treecv.study.space import Params
from optuna_treecv.study.space import Space
from optuna_treecv.study.study_check import is_one_pass
from optuna_treecv.study.study_check import report_for
from optuna_treecv.study.study_check import StudyCheck
from optuna_treecv.study.study_check import warn_if_mixed
from optuna_treecv.types import AnyTrial
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue
from optuna_treecv.types import Targets

_VERSIONS = {name: version(name) for name in ("optuna-treecv", "optuna", "scikit-learn", "numpy")}
# The attributes of a result that give the cost of a trial, which does not depend on the scores.
_COSTS = ("n_updates", "n_updates_saved", "n_updates_standard", "seconds", "seconds_prepare")


class Evaluator:
    """Cross-validates the candidates of a search space, and the trials of studies.

    Parameters
    ----------
    space : Space
    cross_validation : CrossValidation
    report : str or None
        The kind of reports, see ``treecv_objective``. "auto" is replaced by the kind that fits the
        pruner of the first trial.
    database : Database or None
        The store.
    batch_size : int
        The maximum number of candidates that are trained in one batch.
    leases : Leases or None
        The leases by which processes with the same store avoid evaluating the same candidate
        twice.

    Attributes
    ----------
    directions : list of {"minimize", "maximize"}
    known_scores : KnownScores
        The scores of finished trials.
    study_check : StudyCheck
    batches : Batches
    incumbents : Incumbents
    """

    def __init__(
        self,
        space: Space,
        cross_validation: CrossValidation,
        report: str | None,
        database: Database | None,
        batch_size: int,
        leases: Leases | None,
    ) -> None:
        scoring = cross_validation.settings.scored_by
        self.directions = ["minimize"] if scoring is None else scoring.directions
        self.space = space
        self.cross_validation = cross_validation
        self.report = report
        self.database = database
        self.study_check = StudyCheck(cross_validation, space)
        cache = cross_validation.shared.cache
        store = cache if isinstance(cache, StoredModelCache) else None
        self.known_scores = KnownScores(database, store)
        self.batches = Batches(batch_size, leases)
        self.incumbents = Incumbents()
        self._report_lock = Lock()
        # A run with the most recent plan, and the params on which the plan depends. This run
        # itself is never evaluated.
        self._last_plan: tuple[Run, object] | None = None

    # Candidates and their runs.

    def report_for(self, pruner: optuna.pruners.BasePruner, run: Run | None = None) -> None:
        """Set the kind of reports that a pruner needs. Must be called before the first trial."""
        self.report = report = report_for(pruner, self.run_at(None) if run is None else run)
        self.use(self.cross_validation.with_report(report))

    def use(self, cross_validation: CrossValidation) -> None:
        """Set the cross-validation of all trials. Must be called before the first trial."""
        self.cross_validation = self.study_check.cross_validation = cross_validation
        self._last_plan = None

    @property
    def n_splits(self) -> int:
        """The number of folds, over all repeats."""
        return self.cross_validation.n_repeats * self.cross_validation.n_folds

    @property
    def has_fold_scores(self) -> bool:
        """Whether there are several folds, and the optimized score is computed for each fold."""
        run = self.run_at(None)
        n_folds = self.cross_validation.tested(run.method_name).n_folds
        return n_folds > 1 and not run.request.is_pooled

    @property
    def score_directions(self) -> dict[str, str]:
        """The direction of each score by its name."""
        scoring = self.run_at(None).request.scoring
        directions = [metric.direction for metric in scoring.metrics]
        return dict(zip(scoring.names, directions, strict=True))

    @property
    def param_distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter; empty if a callable suggests the parameters."""
        return {name: axis.distribution for name, axis in self.space.axes.items()}

    def fingerprint(self) -> str:
        """Return a short digest of the data, the folds, the scoring and the method."""
        run = self.run_at(None)
        cross_validation = run.request.cross_validation
        digest, order = cross_validation.digest(run.request.scoring), cross_validation.describe()
        return f"{digest} {run.method_name} {order['order']}"

    def check_study(self, study: optuna.Study) -> None:
        """Raise ValueError if a study's values are not comparable with those of this evaluator."""
        self.study_check.directions(study, self.directions)
        if self.space.axes:
            for difference in self.study_check.differences(study, self.run_at(None)):
                raise ValueError(difference)

    def run_at(self, params: Params | None) -> Run:
        """Return the run for parameter values; if they are None, for the estimator as given."""
        return run_for(self.cross_validation, *self.space.candidate(params))

    def run_of(self, trial: FrozenTrial) -> Run:
        """Return the run of a finished trial of this objective."""
        argument = f"study must have been run with this objective: trial {trial.number}"
        return run_for(self.cross_validation, *self._candidate_of(trial, argument))

    def _candidate_of(self, trial: FrozenTrial, argument: str) -> Candidate:
        """Return the candidate that a finished trial evaluated; errors begin with ``argument``."""
        n_epochs = (self.cross_validation.settings.n_epochs or 1) if is_one_pass(trial) else None
        estimator, n_epochs = self.space.candidate_of(trial, n_epochs, argument)
        if (best := facts_of_trial(trial.user_attrs).get("n_estimators")) is not None:
            with_size = run_for(self.cross_validation, estimator).plan.capabilities.with_size
            assert with_size is not None
            estimator = with_size(estimator, best)
        return estimator, n_epochs

    def values_of(self, params: Params) -> dict[str, ParamValue]:
        """Return the parameter values of the estimator for the params of a trial."""
        check_given("params", params, self.space.axes)
        return self.space.values_of(params)

    def _run_of_params(self, params: dict[str, ParamValue], n_epochs: int | None) -> Run:
        """Return the run for the params of a trial. It reuses the most recent plan if possible."""
        estimator, n_epochs = self.space.at(params, n_epochs)
        if self._last_plan is not None:
            last, plan_parameters = self._last_plan
            if plan_parameters == (n_epochs, _plan_parameters(params, last)):
                return last.with_estimator(estimator)
        run = run_for(self.cross_validation, estimator, n_epochs)
        if run.plan.capabilities.free_parameters:
            self._last_plan = (
                run.with_estimator(estimator),
                (n_epochs, _plan_parameters(params, run)),
            )
        return run

    # Running trials.

    def evaluate(self, trial: AnyTrial) -> CVResult:
        """Evaluate a trial and return the full result."""
        race, listener = None, partial(_write_progress, trial)
        self.study_check.directions(getattr(trial, "study", None), self.directions)
        try:
            with self.batches.call(), reporting_to(listener):
                self._choose_report(trial)
                run = self._run(trial)
                if hasattr(trial, "study"):  # FixedTrial and FrozenTrial belong to no study
                    self.study_check.trial(trial, run)
                    is_in_grid = self.space.grids is not None
                    race = self._race(trial, run)
                    if race is not None and race.compares_folds:
                        run = run.with_row_scores()
                    if self.database is not None:
                        run.may_recur = is_in_grid or _may_recur(trial.distributions)
                    others = partial(self._unseen, trial, run) if is_in_grid else None
                    if self.cross_validation.settings.is_early:
                        run.watch = race or Watch()
                    self.batches.compute(run, others)
                with self.batches.leased(run):
                    if self.cross_validation.settings.report is None:
                        run.complete()
                    else:
                        self._run_reporting(trial, run, race)
            result, name = record_trial(trial, run, self.database)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            context = f"in trial {trial.number} with parameters {trial.params}"
            error.add_note(f"This happened {context}.{advice_on(error)}")
            raise
        direction = run.request.scoring.first.direction
        stored_as = ""
        if name and run.plan.capabilities.keeps_outputs:
            stored_as = f"{name} {_digest_of_outputs(run)}"
        outputs = run.book.all_outputs()
        self.known_scores.note(trial, result, direction, outputs, stored_as)
        return result

    def _choose_report(self, trial: BaseTrial) -> None:
        """If report="auto", choose the reports that the pruner of the first trial needs."""
        with self._report_lock:
            may_report = self.cross_validation.settings.no_report_reason is None
            if self.report == "auto" and may_report and isinstance(trial, optuna.Trial):
                self.report_for(trial.study.pruner, self._run(trial))

    def _unseen(self, trial: optuna.Trial, run: Run) -> Iterator[Run]:
        """For each grid point without a trial, yield its run if it can join the batch of ``run``.

        ``run`` is the run of the given trial. Nothing is yielded if the trial is not on the grid.
        """
        names = list(self.space.axes)
        trial_params = {name: trial.params[name] for name in names}
        shared = run.plan.capabilities.shared_parameters
        trials = trial.study.get_trials(deepcopy=False)
        seen = {tuple(t.params.get(name) for name in names) for t in trials}
        prefetched = self.batches.prefetched.setdefault(trial.study, {})
        n_epochs = self.study_check.epochs_in(trial.study)
        for point in self.space.points_beside(trial_params, shared):
            if point in seen:
                continue
            seen.add(point)
            if point not in prefetched:
                params = dict(zip(names, point, strict=True))
                with suppress(Exception):  # the trial of this point will raise the same error
                    prefetched[point] = self._run_of_params(params, n_epochs)
            if point in prefetched and not prefetched[point].precomputed:
                yield prefetched[point]

    def _run(self, trial: BaseTrial) -> Run:
        """Return the run of a trial, which a batch of an earlier trial may have precomputed."""
        study = getattr(trial, "study", None)  # FixedTrial and FrozenTrial have none
        space = self.space
        n_epochs = self.study_check.epochs_in(study)
        if not space.axes:
            return run_for(self.cross_validation, space.of_trial(trial), n_epochs)
        params = space.suggest(trial)
        prefetched = None if study is None else self.batches.prefetched.get(study)
        run = prefetched.pop(tuple(params.values()), None) if prefetched else None
        return self._run_of_params(params, n_epochs) if run is None else run

    def _race(self, trial: optuna.Trial, run: Run) -> Race | None:
        """Return the comparison of a trial with the best one, which a ``RacingPruner`` needs."""
        pruner = trial.study.pruner
        if not isinstance(pruner, RacingPruner):
            return None
        if self.cross_validation.settings.report is None:
            pruner.warn_once(
                "RacingPruner has no effect with report=None; use report='auto' instead."
            )
            return None
        if run.early_report_error:
            return None
        return self.incumbents.race(trial, run, pruner, self.run_of)

    def _run_reporting(self, trial: AnyTrial, run: Run, race: Race | None) -> None:
        """Evaluate a trial with reports, and record it even if it is pruned."""
        if race is not None and run.precomputed:
            race.early = None  # its final score is already known
        try:
            evaluate_reporting(trial, run, self.study_check.should_prune, race)
            if run.early_report_error:
                self.cross_validation.warn_once(
                    "first pass",
                    lambda: (
                        f"trial {trial.number} and similar trials are not pruned, because "
                        f"{run.early_report_error}"
                    ),
                )
            if race is not None:
                self.incumbents.note(trial.study, race.incumbent(run.result().mean))
        except optuna.TrialPruned:
            record_trial(trial, run, self.database)
            run.precomputed.clear()  # the exception's traceback refers to the run for a while
            raise
        finally:
            self.study_check.pruner_time(trial, run.cost.seconds)
            if race is not None:
                race.pruner.forget(trial)

    # Finished trials.

    def contest(self, study: optuna.Study, number: int | None = None) -> Contest:
        """Return the trials of a study from which a rule chooses, with their known scores.

        If the study has several objectives, ``number`` is the index of the one to compare by.
        """
        trials = complete_trials(study, number)
        run = self.run_of(trials[0])
        cross_validation, scoring = run.request.cross_validation, run.request.scoring
        digest = facts_of_study(study).get("digest")
        if digest is not None and digest != cross_validation.digest(scoring):
            raise ValueError(
                "study must have been run with this objective, but the values of its trials were "
                "computed with other data, weights, folds or scoring."
            )
        n_splits = cross_validation.n_repeats * cross_validation.n_folds
        tested = cross_validation.tested(run.method_name)
        is_progressive = tested.method == "progressive"
        has_interval = tested.n_folds > 1 and not tested.goes_forward and not is_progressive
        rows = self.known_scores.rows_of(trials)
        reason_unknown = (
            "because another process evaluated the trial, or the scores exceeded the memory "
            "limit; use a store to keep fold scores"
        )
        if run.request.is_pooled:
            reason_unknown = (
                "because a pooled score is not computed for each fold; use another score instead"
            )
        contest = Contest(
            trials=trials,
            folds_of=partial(self.known_scores.folds_of, n_splits=n_splits),
            rows=rows,
            shares=tested.shares if rows else None,
            metric=scoring.name,
            n_folds=tested.n_folds,
            n_trained=tested.n_trained,
            test_share=tested.test_share if has_interval else None,
            score_range=run.request.score_range,
            overlap=tested.test_share if tested.shares_test_rows else None,
            note=dependence_note(tested),
            reason_unknown=reason_unknown,
            run=run,
            outputs_of=self._outputs_of,
            values_of=self.values_of,
        )
        if not number:
            return contest
        run = run.with_first_metric(number)
        reason = "because fold scores are kept only for the first of several optimized scores"
        return contest._replace(
            folds_of=lambda trials: {}, rows={}, reason_unknown=reason, run=run
        )

    def number_of(self, score: str | None) -> int | None:
        """Return the index of a score among the optimized ones; None for a single score."""
        scoring = self.cross_validation.settings.scored_by
        names = scoring.optimized_names if scoring is not None and scoring.returns_tuple else []
        if score not in names if names else score is not None:
            valid = f"one of {', '.join(map(repr, names))}" if names else "None for a single score"
            raise ValueError(f"score must be {valid}, got {score!r}.")
        return None if score is None else names.index(score)

    def _outputs_of(self, trials: list[FrozenTrial], method: str) -> TrialOutputs:
        """Return the trials whose out-of-fold outputs of a method are known, and these outputs.

        Outputs that are not in memory are computed if this needs no training.
        """
        with_outputs: TrialOutputs = [], []
        for trial in trials:
            outputs = self.known_scores.outputs_in_memory(trial, method)
            if outputs is None:
                outputs = self._find_outputs(trial, self.run_of(trial), method)
            if outputs is not None:
                with_outputs[0].append(trial)
                with_outputs[1].append(outputs)
        return with_outputs

    def oof_outputs(self, trial: FrozenTrial, run: Run, method: str) -> Array:
        """Return the outputs of a trial for all tested rows, in the order of ``Tested.rows``.

        The folds are trained once more if the outputs are not known, with a warning. Outputs are
        rounded as they are kept, so that they do not depend on this.
        """
        outputs = self._find_outputs(trial, run, method)
        if outputs is not None:
            return outputs
        request = run.request
        warn_caller(
            f"all folds of trial {trial.number} are trained once more, because its outputs of "
            f"{method} are unknown; use keep_outputs='all' in treecv_objective to keep them."
        )
        outputs = predict_tested(run, method)
        if method == "predict" and request.classes is not None:
            outputs = as_codes(outputs, request.classes)
        return request.compact_output(outputs, method)

    def has_outputs(self, trial: FrozenTrial, run: Run, method: str) -> bool:
        """Return whether the outputs of a trial are in memory or stored."""
        return self._find_kept(trial, run, method) is not None

    def _find_kept(self, trial: FrozenTrial, run: Run, method: str) -> Array | None:
        outputs = self.known_scores.outputs_in_memory(trial, method)
        if outputs is not None:
            return outputs
        empty, of_folds = run.request.empty_outputs(method), _digest_of_outputs(run)
        return self.known_scores.stored_outputs(trial, method, empty, of_folds)

    def _find_outputs(self, trial: FrozenTrial, run: Run, method: str) -> Array | None:
        """Return the outputs of a trial if they are known or need no training; else None."""
        outputs = self._find_kept(trial, run, method)
        return computed_outputs(run, method) if outputs is None else outputs

    def trial_and_candidate(
        self,
        study: optuna.Study | FrozenTrial,
        rule: Rule = "best",
        simpler: Simpler | None = None,
    ) -> tuple[FrozenTrial, Candidate]:
        """Return a trial and its candidate: the given trial, or the one that a rule chooses."""
        check_rule(rule)
        if isinstance(study, FrozenTrial):
            if rule != "best":
                raise ValueError(f"rule must be 'best' if study is a trial, got {rule!r}.")
            return study, self._candidate_of(study, "the trial passed as study")
        if not isinstance(study, optuna.Study):
            raise ValueError(f"study must be an optuna.Study or one of its trials, got {study!r}.")
        if len(study.directions) > 1:
            raise ValueError(
                "study must have a single objective, because otherwise there is no best trial; "
                "use one of study.best_trials, the Pareto front, instead."
            )
        try:
            trial = study.best_trial
        except ValueError as error:
            raise ValueError("study must have a complete trial, got none.") from error
        warn_if_mixed(study)
        if rule != "best":
            trial = choice_of(self.contest(study), rule, simpler, 0.95).trial
        argument = "study must have been run with this objective: its best trial"
        return trial, self._candidate_of(trial, argument)


def _digest_of_outputs(run: Run) -> str:
    """Return a digest of the data, the folds and the order of the rows of a run."""
    request = run.request
    keys = [folds_key(request, repeat).hex() for repeat in run.plan.repeats]
    return " ".join([request.cross_validation.digest(request.scoring), *keys])


def _plan_parameters(params: Params, run: Run) -> dict[str, ParamValue]:
    """Return the params on which the plan of a run depends, with their types.

    The plan does not depend on positive and finite values of the ``free_parameters``. It depends
    on other values of them, such as ``alpha=0`` for ``Ridge``, whose folds cannot be solved
    exactly, or an infinite ``C``.
    """
    free = run.plan.capabilities.free_parameters
    return {
        name: (type(value), value)
        for name, value in params.items()
        if name not in free or type(value) not in (int, float) or not 0 < value < np.inf
    }


def _may_recur(distributions: Mapping[str, BaseDistribution]) -> bool:
    """Return whether a sampler may suggest the same params twice."""
    return not any(
        isinstance(d, FloatDistribution) and d.step is None and not d.single()
        for d in distributions.values()
    )


def _write_progress(trial: BaseTrial, line: str) -> None:
    with suppress(Exception):  # if the storage is broken, a later write raises the error
        trial.set_user_attr(PROGRESS_ATTRIBUTE, line)


def record_trial(trial: AnyTrial, run: Run, database: Database | None) -> tuple[CVResult, str]:
    """Record a run in the store, if there is one, and in the trial's user attribute ``treecv``.

    Return the result, and the name of the record in the store; "" if there is none.

    There is only one attribute, because setting an attribute is a transaction of Optuna's storage,
    which takes longer than a short evaluation.
    """
    result = run.result()
    scores: dict[str, float | None] = {}
    if run.book.n_scored:  # otherwise the trial was pruned before its first fold
        scores["mean_test_score"] = result.mean
    scores["std_test_score"] = result.std
    scores["std_error"] = None if result.std is not None else result.std_error
    if run.book.n_scored and len(result.scores) > 1:
        scores |= {f"{SCORE_PREFIX}{name}": s.mean for name, s in result.scores.items()}
    facts: dict[str, Opaque] = {  # for display; the store keeps full precision
        name: float(f"{score:.6g}") for name, score in scores.items() if score is not None
    }
    facts["folds_scored"] = run.book.n_scored
    facts["n_updates"] = result.n_updates + run.cost.n_uncounted
    facts["method"] = result.method
    curve = run.curve if run.book.is_complete else None
    if run.request.settings.n_estimators is not None and curve is not None:
        facts["n_estimators"] = curve.best
        facts["curve"] = curve.in_brief()
    if curve is not None and curve.oob_score is not None:
        facts["oob_score"] = float(f"{curve.oob_score:.6g}")
    facts["seconds"] = round(result.seconds, 6)
    if result.diverged_folds:
        facts["diverged_folds"] = result.diverged_folds
    if database is not None:
        start = perf_counter()
        written = _record_in_store(trial, run, result, database)
        facts["seconds_store"] = round(perf_counter() - start, 6)
        if written is not None:
            facts["run"], facts["n_updates"] = written
    trial.set_user_attr(TRIAL_ATTRIBUTE, facts)
    saved = max(0, result.n_updates_saved - (facts["n_updates"] - result.n_updates))
    name = facts.get("run", "")
    return replace(result, n_updates=facts["n_updates"], n_updates_saved=saved), name


def _record_in_store(
    trial: AnyTrial, run: Run, result: CVResult, database: Database
) -> tuple[str, int] | None:
    """Write a record for each score, the first optimized score first.

    Return the name of the run and its number of row updates, or None if nothing was written. Only
    the record of the first score contains the cost, so that sums over records are correct.
    """
    scoring = run.request.scoring
    first = scoring.optimized[0]
    name, rows = uuid4().hex[:16], []
    indices = sorted(range(len(scoring.names)), key=lambda index: index != first)
    for i, index in enumerate(indices):
        score = result.scores[scoring.names[index]]
        row = dict(
            **run.describe(),
            run=run_of_score(name, i) if i else name,
            scoring=scoring.names[index],
            direction=score.direction,
            study_name=getattr(getattr(trial, "study", None), "study_name", None),
            trial_number=trial.number,
            state="complete" if run.book.is_complete else "pruned",
            parameters=trial.params,
            mean=score.mean if run.book.n_scored else None,
            std=score.std,
            folds_scored=run.book.n_scored,
            diverged_folds=result.diverged_folds,
            versions=_VERSIONS,
            **{name: getattr(result, name) if index == first else 0 for name in _COSTS},
        )
        rows.append((row, run.book.fold_scores(index)))
    n_updates = record(database, *rows[0], rows[1:], run.cost.n_uncounted, run.uncounted_since)
    return None if n_updates is None else (name, n_updates)


def checked_arguments(
    estimator: Estimator,
    X: Features,
    y: Targets = None,
    *,
    param_distributions: Distributions = None,
    param_grid: Grids = None,
    batch_size: int = 32,
    cache: Literal["memory"] | ModelCache | None = "memory",
    store: Given | None = None,
    store_max_bytes: int = DEFAULT_MAX_BYTES,
    keep_outputs: Literal["auto", "all", False] = "auto",
    **settings: Unpack[Arguments],
) -> tuple[Space, CrossValidation, str | None, Database | None, int, Leases | None]:
    """Check the arguments of ``treecv_objective`` and convert them to those of ``Evaluator``."""
    checked = Settings(**settings)
    report = checked.report
    if report == "auto":  # the first trial chooses
        checked = replace(checked, report=None)
    estimator = as_estimator(estimator)
    batch_size = check_integer("batch_size", batch_size, MAX_BATCH_SIZE)
    space = as_space(estimator, param_distributions, param_grid)
    example = space.example
    store_max_bytes = check_bytes("store_max_bytes", store_max_bytes)
    database = None if store is None else Database(store)
    models = None if database is None else ModelStore(database, store_max_bytes)
    with_others = isinstance(cache, ModelCache) or database is not None
    check_choice("keep_outputs", keep_outputs, ("auto", "all", False))
    axes, grid = space.axes, {}
    if space.grids is not None:
        grid = {name: tuple(axis.values) for name, axis in axes.items()}
    search = Search({name: axis.ends for name, axis in axes.items()}, grid, keep_outputs)
    made_cache = _make_cache(cache, models)
    cross_validation = CrossValidation.of(X, y, checked, example, made_cache, with_others, search)
    if axes:
        argument = "param_distributions" if space.grids is None else "param_grid"
        if "n_epochs" in axes and not hasattr(space.estimator, "n_epochs"):
            for value in axes["n_epochs"].ends:
                check_integer(f"{argument}: n_epochs", value, MOST_EPOCHS)
        # Errors are raised here rather than in the first trial. If a parameter is categorical, the
        # class of the estimator is checked instead of the example, which may lack a method that
        # other values add: SGDClassifier has predict_proba only for some losses.
        distributions = {name: axis.distribution for name, axis in axes.items()}
        choices = any(isinstance(d, CategoricalDistribution) for d in distributions.values())
        run = run_for(cross_validation, example, of_class=choices, searched=axes)
        if run.early_report_error:
            raise ValueError(run.early_report_error)
        if run.plan.capabilities.is_incremental:
            check_effect(argument, example, {n: not d.single() for n, d in distributions.items()})
            cross_validation.unused.warn(example, axes, checked.n_epochs)
            run.plan.prepare()
    leases = None
    if space.grids is not None and batch_size > 1 and models is not None:
        if isinstance(cross_validation.shared.cache_for(example), StoredModelCache):
            leases = Leases(models)
    return space, cross_validation, report, database, batch_size, leases


def _make_cache(cache: str | ModelCache | None, store: ModelStore | None) -> AnyCache | None:
    """Return the model cache for the arguments ``cache`` and ``store``."""
    if cache is None:
        return None
    if isinstance(cache, str) and cache == "memory":
        cache = ModelCache()
    if not isinstance(cache, ModelCache):
        raise ValueError(f"cache must be None, 'memory' or a ModelCache, got {cache!r}.")
    return cache if store is None else StoredModelCache(cache, store)
