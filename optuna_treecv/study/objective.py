"""The objective that ``study.optimize`` calls: a trial becomes an estimator, then a value."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any
from typing import Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution

from optuna_treecv.crossval.arguments import check_choice
from optuna_treecv.crossval.arguments import check_integer
from optuna_treecv.crossval.arguments import MOST_EPOCHS
from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.choice import settle
from optuna_treecv.crossval.early import why_no_first_pass
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.explain import explain
from optuna_treecv.crossval.predict import predict_out_of_fold
from optuna_treecv.crossval.refit import fit_on_all_rows
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.crossval.run import Run
from optuna_treecv.crossval.side_by_side import parameters_beside
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.without_effect import check_effect
from optuna_treecv.sharing.memory_cache import check_bytes
from optuna_treecv.sharing.memory_cache import ModelCache
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.leases import Leases
from optuna_treecv.storage.model_store import DEFAULT_MAX_BYTES
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.study.batches import Batches
from optuna_treecv.study.batches import MOST_SIDE_BY_SIDE
from optuna_treecv.study.choice import check_rule
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import contest_of
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.edges import edges_of
from optuna_treecv.study.grid import GridSampler
from optuna_treecv.study.grid import points_beside
from optuna_treecv.study.known_scores import KnownScores
from optuna_treecv.study.race import Incumbents
from optuna_treecv.study.race import Race
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.recording import record_trial
from optuna_treecv.study.reports import report_early
from optuna_treecv.study.reports import report_parts
from optuna_treecv.study.space import as_space
from optuna_treecv.study.space import Candidate
from optuna_treecv.study.space import Space
from optuna_treecv.study.study_check import is_one_pass
from optuna_treecv.study.study_check import report_for
from optuna_treecv.study.study_check import StudyCheck
from optuna_treecv.study.study_check import warn_if_mixed


class TreeCVObjective:
    """The objective that ``treecv_objective`` makes.

    Attributes
    ----------
    directions : list of {"minimize", "maximize"}
        What a study must do with the objective's values, one or, if ``optimize`` is a list,
        several.
    param_grid : dict of str to list, list of such dicts, or None
        The grid that was given, as trials hold its values: numbers, strings, bools and None as
        they are, and texts for other values and for values that only their types tell apart. Each
        of several dicts has a value for every parameter.
    """

    def __init__(
        self,
        space: Space,
        evaluation: Evaluation,
        report: str | None,
        database: Database | None = None,
        batch_size: int = 1,
        leases: Leases | None = None,
    ) -> None:
        scoring = evaluation.scoring
        self.directions = ["minimize"] if scoring is None else scoring.directions
        self._space = space
        self._evaluation = evaluation
        self._report = report
        self._database = database
        grids = space.grids
        self.param_grid = grids[0] if grids is not None and len(grids) == 1 else grids
        self._study_check = StudyCheck(evaluation, grids)
        self._batches = Batches(batch_size, leases)
        self._incumbents = Incumbents()
        self._known_scores = KnownScores(database)
        self._choosing = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_choosing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _choosing=Lock())

    def _keep_to(self, points: Sequence[Mapping[str, Any]]) -> None:
        """Evaluate no other points of the grid ahead of their trials; points are in codes."""
        self._space.grids = [{name: [code] for name, code in point.items()} for point in points]

    def _report_for(self, pruner: optuna.pruners.BasePruner, run: Run | None = None) -> None:
        """Make the reports that a pruner needs, from before the first trial on."""
        run = self._run_at(None) if run is None else run
        report = report_for(pruner, run)
        self._evaluation.report_as(report)
        self._report = report

    def pruner(self) -> optuna.pruners.BasePruner:
        """Return the pruner that fits the reports of this objective.

        Returns
        -------
        optuna.pruners.BasePruner
            For ``optuna.create_study(pruner=...)``: a ``RacingPruner``, or a ``NopPruner`` where
            nothing is reported.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from optuna_treecv import PegasosClassifier, treecv_objective
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> grid = {"alpha": [0.01, 0.1, 1.0]}
        >>> objective = treecv_objective(
        ...     PegasosClassifier(), X, y, param_grid=grid, report="auto"
        ... )
        >>> type(objective.pruner()).__name__
        'RacingPruner'
        """
        if self._report is None or self._evaluation.why_no_report is not None:
            return optuna.pruners.NopPruner()
        return RacingPruner()

    @property
    def n_splits(self) -> int:
        """The number of folds, over all repeats."""
        return self._evaluation.n_repeats * self._evaluation.n_folds

    @property
    def has_fold_scores(self) -> bool:
        """Whether the optimised score is one of each fold, and there are several folds."""
        run = self._run_at(None)
        return not run.is_pooled and self._evaluation.tested(run.method_name).n_folds > 1

    @property
    def score_directions(self) -> dict[str, str]:
        """What is better of each score by its name, "minimize" or "maximize"."""
        scoring = self._run_at(None).scoring
        return {
            name: metric.direction
            for name, metric in zip(scoring.names, scoring.metrics, strict=True)
        }

    @property
    def param_distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter; empty if a callable suggests for itself."""
        return {name: axis.distribution for name, axis in self._space.axes.items()}

    def fingerprint(self) -> str:
        """Return a short name for the data, the folds, the scoring and how folds are evaluated.

        Returns
        -------
        str
            Equal for two objectives if the values of their trials can be compared.

        Raises
        ------
        ValueError
            If a callable makes the estimators, so that their scoring is not known.
        """
        run = self._run_at(None)
        order = self._evaluation.describe()["order"]
        return f"{self._evaluation.digest(run.scoring)} {run.method_name} {order}"

    @property
    def direction(self) -> str:
        """What a study must do with the objective's value: "minimize" or "maximize"."""
        if len(self.directions) > 1:
            raise AttributeError(
                f"this objective has {len(self.directions)} values; use directions in place of "
                "direction: optuna.create_study(directions=objective.directions)."
            )
        return self.directions[0]

    def __call__(self, trial: Any) -> float | tuple[float, ...]:
        """Evaluate a trial.

        Parameters
        ----------
        trial : optuna.trial.Trial, FixedTrial or FrozenTrial
            Suggests the parameters and receives the results.

        Returns
        -------
        float, or tuple of float if ``optimize`` is a list
            The mean of the fold scores, never NaN. A diverged fold scores 1 for "error", inf for
            other losses and -inf for scorers.

        Raises
        ------
        optuna.TrialPruned
            If ``report`` is set and the study's pruner prunes the trial.
        ValueError
            If the study's direction contradicts the scoring, or an argument proves to be wrong.
        """
        result = self.evaluate_trial(trial)
        if self._evaluation.scoring is None or not self._evaluation.scoring.returns_tuple:
            return result.mean
        names = self._evaluation.scoring.optimized_names
        return tuple(result.scores[name].mean for name in names)

    def evaluate_trial(self, trial: Any) -> CVResult:
        """Evaluate a trial as a call does, and return all that was found.

        Parameters
        ----------
        trial : optuna.trial.Trial, FixedTrial or FrozenTrial
            Suggests the parameters and receives the results.

        Returns
        -------
        CVResult
            Its ``mean`` is what a call returns.

        Raises
        ------
        optuna.TrialPruned, ValueError
            As for a call.
        """
        self._study_check.directions(getattr(trial, "study", None), self.directions)
        race = None
        try:
            with self._batches.call():
                with self._choosing:
                    chooses = self._report == "auto" and self._evaluation.why_no_report is None
                    if chooses and isinstance(trial, optuna.Trial):
                        self._report_for(trial.study.pruner, self._run(trial))
                run = self._run(trial)
                self._study_check.trial(trial, run)
                if hasattr(trial, "study"):  # FixedTrial and FrozenTrial are alone
                    is_in_grid = self._space.grids is not None
                    run.comes_again = is_in_grid or _may_recur(trial.distributions)
                    others = partial(self._unseen, trial, run) if is_in_grid else None
                    race = self._race(trial, run)
                    run.judge = race if self._evaluation.is_early else None
                    self._batches.compute(run, others)
                with self._batches.leased(run):
                    if self._evaluation.report is None:
                        run.complete()
                    else:
                        self._run_reporting(trial, run, race)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            error.add_note(
                f"This happened in trial {trial.number} with parameters {trial.params}."
            )
            raise
        result = record_trial(trial, run, self._database)
        self._known_scores.note(trial, result, run.scoring.first.direction)
        return result

    def check_study(self, study: optuna.Study) -> None:
        """Refuse a study whose values cannot be compared with those of this objective.

        A call only warns of one with other data, folds or scoring.

        Parameters
        ----------
        study : optuna.Study
            The study that is to be continued.

        Raises
        ------
        ValueError
            If it has another direction, or trials of another evaluation.
        """
        self._study_check.directions(study, self.directions)
        if self._space.axes:
            run = self._run_at(None)
            for difference in self._study_check.differences(study, run):
                raise ValueError(difference)

    def evaluate(self, params: Mapping[str, Any]) -> CVResult:
        """Cross-validate at given parameters, without a study.

        Parameters
        ----------
        params : dict
            A value for each parameter that a trial would suggest, or what a trial stores for it.

        Returns
        -------
        CVResult
            The same numbers as a trial with these parameters.
        """
        if not isinstance(params, Mapping):
            raise ValueError(f"params must be a dict of parameter values, got {params!r}.")
        return self._run_at(params).finish()

    def values_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that the params of a trial mean, for ``set_params``.

        Parameters
        ----------
        params : dict
            The ``params`` of a trial, such as ``study.best_params``.

        Returns
        -------
        dict
            The same, with the values of ``param_grid`` where trials hold texts in their place.
        """
        return self._space.values_of(params)

    def explain(self, params: Mapping[str, Any] | None = None) -> str:
        """Return how the estimator is evaluated, why so, and what it costs, in words.

        Parameters
        ----------
        params : dict, default=None
            A value for each parameter that a trial would suggest; None: the estimator as given.

        Returns
        -------
        str
            Two or three sentences.

        Raises
        ------
        ValueError
            If a parameter has no value, or the estimator cannot be evaluated.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_diabetes(return_X_y=True)
        >>> objective = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0]})
        >>> print(objective.explain().partition(". ")[0])
        Ridge is evaluated by method='exact', since its models follow from sums over rows
        """
        return explain(self._evaluation, *self._space.candidate(params))

    def best_estimator(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        rule: Rule = "best",
        simpler: Simpler | None = None,
        kind: Literal["refit", "kfold_average"] = "refit",
    ) -> Any:
        """The fitted estimator of a study's best trial, or of another one that a rule chooses.

        Where a value of the trial lies at the edge of its range, a warning says so.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one completed trial of this objective, or a trial of it.
        rule : {"best", "one_se"} or callable, default="best"
            Which trial of the study is taken, see ``optuna_treecv.select``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            For "one_se": what makes a model simpler, see ``optuna_treecv.select``.
        kind : {"refit", "kfold_average"}, default="refit"
            "refit" trains on all rows, in prepared order. "kfold_average" cross-validates the
            trial once more, and averages the models of its folds, see
            ``CVResult.kfold_estimator``; this is for linear learners that are trained along the
            tree.

        Returns
        -------
        estimator
            Fitted, with its parameters as given and those of the trial. The objective's seed took
            the place of each ``random_state=None`` during the training.

        Raises
        ------
        ValueError
            If an argument is wrong, or the model diverges.
        """
        check_choice("kind", kind, ("refit", "kfold_average"))
        check_rule(rule)
        trial, candidate = self._trial_and_candidate(study, rule, simpler)
        lists = {name: axis.codes for name, axis in self._space.axes.items() if axis.codes}
        if edges := edges_of(trial, lists):
            listed = " and ".join(f"{name}={where}" for name, where in edges.items())
            warn_caller(
                f"trial {trial.number} has {listed}; a wider range may hold a better value."
            )
        if kind == "refit":
            return fit_on_all_rows(self._evaluation, *candidate)
        run = Run(self._evaluation, *candidate)
        run.average_models()
        return run.finish().kfold_estimator()

    def predict_oof(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        method: Literal[
            "predict", "decision_function", "predict_proba", "score_samples"
        ] = "predict",
    ) -> np.ndarray:
        """Return the out-of-fold predictions of a study's best trial, or of another one.

        Each row is predicted by the model that was trained without its fold, on the folds and in
        the order in which the trial was evaluated. All folds are trained once more.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one completed trial of this objective, or a trial of it.
        method : {"predict", "decision_function", "predict_proba", "score_samples"}, \
                default="predict"
            The method of the estimator whose response is returned.

        Returns
        -------
        ndarray of shape (n_rows,), (n_rows, n_classes) or (n_rows, n_targets)
            In the order of the rows of X.

        Raises
        ------
        ValueError
            If an argument is wrong, rows are not tested once each, or a model diverges whose
            labels are asked for.

        See Also
        --------
        optuna_treecv.tree_cross_val_predict : The same without a study.

        Examples
        --------
        >>> import optuna
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_diabetes(return_X_y=True)
        >>> objective = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0]})
        >>> study = optuna.create_study(sampler=objective.grid_sampler())
        >>> study.optimize(objective)
        >>> objective.predict_oof(study).shape
        (442,)
        """
        _, (estimator, n_epochs) = self._trial_and_candidate(study)
        return predict_out_of_fold(self._evaluation, estimator, method, "method", n_epochs)

    def _trial_and_candidate(
        self, study: Any, rule: Any = "best", simpler: Any = None
    ) -> tuple[optuna.trial.FrozenTrial, Candidate]:
        """Return a given trial, or the one of a study that a rule chooses, and its estimator."""
        if isinstance(study, optuna.trial.FrozenTrial):
            if rule != "best":
                raise ValueError(f"rule must be 'best' where study is a trial, got {rule!r}.")
            trial, argument = study, "study must be a trial of this objective: it"
        elif isinstance(study, optuna.Study):
            if len(study.directions) > 1:
                raise ValueError(
                    "study must have one objective for a best trial; choose one of "
                    "study.best_trials, the Pareto front, and give that."
                )
            trial = study.best_trial
            warn_if_mixed(study)
            if rule != "best":
                trial = self._choose(study, rule, simpler).trial
            argument = "study must be one of this objective: its best trial"
        else:
            raise ValueError(f"study must be an optuna.Study or one of its trials, got {study!r}.")
        return trial, self._candidate_of(trial, argument)

    def _choose(self, study: Any, rule: Any, simpler: Any, level: float = 0.95) -> Choice:
        """Choose a trial of a study."""
        return choice_of(self._contest(study), rule, self._on_values(simpler), level)

    def _on_values(self, simpler: Any) -> Any:
        """Return ``simpler`` so that a callable gets the values that params mean."""
        if not callable(simpler):
            return simpler
        return lambda params: simpler(self.values_of(params))

    def _contest(self, study: Any) -> Contest:
        """Return the trials of a study with what this objective knows of their scores."""
        return contest_of(study, self._run_of, self._known_scores)

    def grid_sampler(self, seed: int | None = None) -> optuna.samplers.GridSampler:
        """Return a sampler of the points of ``param_grid``.

        Parameters
        ----------
        seed : int, default=None
            The seed of the order in which the points come.

        Returns
        -------
        optuna.samplers.GridSampler
            For ``optuna.create_study(sampler=...)``. It stops the study after the last point. It
            does the same as Optuna's grid sampler, in less time if there are many points.

        Raises
        ------
        ValueError
            If the objective has no ``param_grid``.
        """
        if self._space.grids is None:
            raise ValueError("grid_sampler needs an objective with a param_grid.")
        return GridSampler(self._space.grids, seed=seed)

    def _unseen(self, trial: optuna.Trial, own: Run) -> Iterator[Run]:
        """Yield runs for points of the grid that have no trial yet.

        They can all be evaluated side by side with the given trial, whose run is ``own``. If the
        trial is not at a point of the grid, there are none.
        """
        assert self._space.grids is not None
        names = list(self._space.grids[0])
        mine = {name: trial.params[name] for name in names}
        lanes = parameters_beside(own)
        trials = trial.study.get_trials(deepcopy=False)
        seen = {tuple(one.params.get(name) for name in names) for one in trials}
        ahead = self._batches.ahead.setdefault(trial.study, {})
        n_epochs = self._study_check.epochs_in(trial.study)
        for point in points_beside(self._space.grids, mine, lanes):
            if point in seen:
                continue
            seen.add(point)
            if point not in ahead:
                try:
                    candidate = self._space.at(dict(zip(names, point, strict=True)), n_epochs)
                    ahead[point] = Run(self._evaluation, *candidate)
                except Exception:  # noqa: BLE001  # that point's own trial will raise it
                    continue
            if not ahead[point].ahead:  # otherwise its results are there
                yield ahead[point]

    def _run(self, trial: Any) -> Run:
        """Return the trial's run, which may have been made together with other trials' runs."""
        study = getattr(trial, "study", None)  # FixedTrial and FrozenTrial have none
        n_epochs = self._study_check.epochs_in(study)
        if not self._space.axes:
            return Run(self._evaluation, self._space.of_trial(trial), n_epochs)
        params = self._space.suggest(trial)
        ahead = None if study is None else self._batches.ahead.get(study)
        run = ahead.pop(tuple(params.values()), None) if ahead else None
        return Run(self._evaluation, *self._space.at(params, n_epochs)) if run is None else run

    def _run_at(self, params: Mapping[str, Any] | None) -> Run:
        """Return the run at given parameters, or of the estimator as given."""
        return Run(self._evaluation, *self._space.candidate(params))

    def _candidate_of(self, trial: optuna.trial.FrozenTrial, argument: str) -> Candidate:
        """Return what a trial that is over evaluated; errors begin with ``argument``."""
        n_epochs = (self._evaluation.n_epochs or 1) if is_one_pass(trial) else None
        return self._space.candidate_of(trial, n_epochs, argument)

    def _race(self, trial: Any, run: Run) -> Race | None:
        """Return the comparison of a trial with the best one, if the study's pruner needs it."""
        if not isinstance(trial, optuna.Trial):
            return None  # FixedTrial and FrozenTrial have no study
        pruner = trial.study.pruner
        if not isinstance(pruner, RacingPruner):
            return None
        if self._evaluation.report is None:
            pruner.warn_once(
                "RacingPruner needs report='progressive', or 'folds' where folds are fitted, to "
                "prune a trial; with report=None it has no effect."
            )
            return None
        if self._evaluation.is_early and why_no_first_pass(run.method, self._evaluation.report):
            return None
        return self._incumbents.race(trial, run, pruner, self._run_of)

    def _run_reporting(self, trial: Any, run: Run, race: Race | None) -> None:
        """Evaluate and report; a trial that is pruned is recorded too."""
        report = self._evaluation.report
        assert report is not None
        if race is not None and run.ahead:
            race.early = None  # its final score needs no forecast
        progressive = None
        should_prune = self._study_check.should_prune
        try:
            if self._evaluation.is_early and (why_not := why_no_first_pass(run.method, report)):
                run.complete()
                self._evaluation.warn_once(
                    "first pass",
                    lambda: (
                        f"Trial {trial.number} is not pruned, and neither are others like it: "
                        f"{why_not}"
                    ),
                )
            elif self._evaluation.is_early:
                before_report = None if race is None else race.before_report
                early = report_early(trial, run, report, should_prune, before_report)
                progressive = early.progressive.values
            else:
                before_part = None if race is None else race.before_part
                report_parts(trial, run, report, should_prune, before_part)
            if race is not None:
                incumbent = race.incumbent(run.result().mean, progressive)
                self._incumbents.note(trial.study, incumbent)
        except optuna.TrialPruned:
            record_trial(trial, run, self._database)
            run.ahead.clear()  # the exception's traceback refers to the run for a while
            raise
        finally:
            self._study_check.pruner_time(trial, run.seconds)
            if race is not None:
                race.end()

    def _run_of(self, trial: optuna.trial.FrozenTrial) -> Run:
        """Return the run of a trial of this objective that is over."""
        argument = f"study must be one of this objective: trial {trial.number}"
        return Run(self._evaluation, *self._candidate_of(trial, argument))


def treecv_objective(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    param_distributions: Mapping[str, BaseDistribution] | Literal["auto"] | None = None,
    param_grid: Mapping[str, Collection[Any]]
    | Sequence[Mapping[str, Collection[Any]]]
    | None = None,
    batch_size: int = 32,
    cv: Any = 10,
    groups: Any = None,
    stratify: Literal["auto"] | bool = "auto",
    shuffle: bool = True,
    order: Literal["fixed", "random"] = "fixed",
    method: Literal[
        "auto", "exact", "forest", "treecv", "fit", "standard", "holdout", "progressive"
    ] = "auto",
    n_repeats: int = 1,
    n_epochs: int | None = None,
    scoring: Any = None,
    optimize: str | list[str] | None = None,
    pooled: bool = False,
    sample_weight: Any = None,
    score_weight: Any = "same",
    params: Mapping[str, Any] | None = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
    row_losses: bool = False,
    report: Literal["auto", "progressive", "blocks", "folds", "mean"] | None = None,
    cache: Literal["memory"] | ModelCache | None = "memory",
    store: Any = None,
    store_max_bytes: int = DEFAULT_MAX_BYTES,
) -> TreeCVObjective:
    """Make an objective for ``study.optimize`` that evaluates each trial by cross-validation.

    All trials use the same folds and the same orders of rows, so their values can be compared in
    pairs. The objective can be pickled and shared by threads (``study.optimize(n_jobs=2)``). It
    can also be called with ``study.best_trial`` or an ``optuna.trial.FixedTrial``.

    Parameters
    ----------
    estimator : estimator, River model, or callable
        An estimator whose parameters are searched; or a callable ``trial -> estimator`` that
        suggests parameters itself. The parameters of a Pipeline are named ``step__parameter``. The
        tree needs ``partial_fit``, in a Pipeline for each step that is not stateless. Its estimate
        is that of the model after one pass over the training rows, in the order of the tree, and a
        search over parameters that ``partial_fit`` does not use is refused. Any other estimator is
        fitted on each fold, also one whose ``fit`` makes other passes than ``partial_fit``.
        Pipelines that differ in later steps only then share the fits of the steps before them.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        The rows. They must not be changed while the objective is in use.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), default=None
        Labels, or one or several targets of regressors; None for unsupervised estimators. The loss
        of a row is the mean over its targets.
    param_distributions : dict of str to optuna distribution, "auto" or None, default=None
        The search space, by parameter name. With an estimator, either this or ``param_grid`` is
        required; with a callable, neither may be given. "auto" is the recommended space of a known
        estimator, in a Pipeline of its last step. Parameters that the estimator has at other
        values than their defaults keep these.
    param_grid : dict of str to list, or list of such dicts, default=None
        The grid to search, as ``GridSearchCV`` takes it; use it with
        ``sampler=objective.grid_sampler()``. Points that several dicts share are visited once, and
        a parameter that a dict leaves out keeps the estimator's value there. Estimators get the
        values as they are. In trials, lists of integers or of floats become int or float
        parameters, on a log scale if they are positive and span a factor of more than 100. Other
        lists become categories, of texts where Optuna could not tell values apart.
    batch_size : int, default=32
        The most configurations that are trained side by side in one reading of the rows. These are
        points of the grid that have had no trial yet, and trials that run at the same time
        (``study.optimize(n_jobs=...)``). Each configuration gets the same numbers as alone.
        Pruning saves no work among them, unless they race: with ``report="progressive"`` and a
        ``RacingPruner``. 1 means one by one, 1024 is the most.
    cv : int, float, "loo", splitter, array-like or iterable of pairs, default=10
        The number of folds, from 2 to n_rows; a share between 0 and 1, which a single hold-out
        tests; "loo" for leave-one-out; a splitter of scikit-learn or an object like one; the fold
        of each row, shape (n_rows,), -1 for rows that are only trained on; or pairs of training
        and test rows. Exact folds and fits take any splitter. The tree takes those that train on
        all rows which they do not test and test no row twice, or all rows equally often in
        repetitions; and those whose training sets are growing first parts of the rows, such as
        ``TimeSeriesSplit``.
    groups : array-like of shape (n_rows,), default=None
        The groups, for splitters that need them. With an int, ``cv`` means ``GroupKFold(cv)``, or
        ``StratifiedGroupKFold(cv)`` where folds are stratified.
    stratify : {"auto", True, False}, default="auto"
        For an int or a share: give each fold its share of every class, as ``StratifiedKFold``
        does. "auto" does so for classifiers. Where a class has fewer members than there are folds,
        the folds are plain, with a warning.
    shuffle : bool, default=True
        For an int, a share or "loo", permute the rows once before they are cut into folds.
        Otherwise permute the order of the folds, and the rows that a model is trained on phase by
        phase; the folds themselves stay the same. Time series keep their order.
    order : {"fixed", "random"}, default="fixed"
        Whether a training phase reads its rows in the order in which they lie, or in a new random
        order. The random order takes longer (1.6 times on Covertype).
    method : {"auto", "exact", "forest", "treecv", "fit", "standard", "holdout", "progressive"}
        "exact" computes all folds from sums over the rows, for ``Ridge``, ``RidgeClassifier`` and
        discriminant analysis of scikit-learn, alone or after row-wise steps or a
        ``StandardScaler``. "forest" grows the trees of all folds together, for
        ``HistTreeClassifier`` and ``HistTreeRegressor``. "treecv" trains models further along a
        tree; for time series it is a chain, in which one model walks forward. "fit" calls ``fit``
        of any estimator on each fold's training rows. "auto", the default, takes the first of
        these that is possible and makes the models of ``fit``. "standard" is k trainings from
        scratch of one pass each, the baseline of the paper; of decision trees, k trees that are
        grown one by one. "holdout" is "auto" on the first fold alone. "progressive" is progressive
        validation: one pass, in which each row is tested before the model learns it, but for the
        first eighth. ``CVResult.method`` says what was done, and ``CVResult.why`` why.
    n_repeats : int, default=1
        Cross-validate this many times and average. The repeats differ in their permutations for an
        int, a share or "loo", in what further calls of ``split`` return for a splitter, and in
        random orders. It is refused if nothing makes the repeats differ. At most 10,000.
    n_epochs : int, default=None
        The updates per row, for models that are trained further; None means 1. Where it is given,
        "auto" trains estimators with ``partial_fit`` further whose ``fit`` makes other passes. In
        the tree, each new row is followed by ``n_epochs - 1`` replays of rows that the model may
        see; ``partial_fit`` of other estimators gets as many calls per training phase. "standard"
        makes as many shuffled passes. The ``n_epochs`` of an estimator of this package may be set
        or searched instead. At most 10,000.
    scoring : str, callable, ``pooled(...)``, list or dict of these, or None, default=None
        A loss of rows, or a scikit-learn scorer, to which compiled learners pass plain arrays. The
        losses are "error", "hinge" and "log_loss" for classifiers, "squared_error" and
        "absolute_error" for regressors, "squared_distance" (to the nearest centre) for clusterers,
        and "neg_log_density" for density estimators. None means the first loss that fits the
        estimator. Several scores, in a list or as a dict of names to scores, take one training.
    optimize : str, list of str or None, default=None
        The name of the score whose mean the objective returns; None: the first. With a list of
        names, the objective returns a tuple for a study of several objectives:
        ``optuna.create_study(directions=objective.directions)``.
    pooled : bool, default=False
        Compute each score once over the out-of-fold outputs of all rows, see
        ``optuna_treecv.pooled``.
    sample_weight : array-like of shape (n_rows,), default=None
        The weights of the rows, finite and not negative. They act in training and in scores. They
        go to ``partial_fit`` or ``fit``, in a Pipeline to those of the last step. Where metadata
        routing of scikit-learn is enabled, a Pipeline that is fitted routes them by its requests.
    score_weight : "same", array-like of shape (n_rows,) or None, default="same"
        The weights of the rows in scores. "same" means ``sample_weight``; None weighs all rows
        alike.
    params : dict, default=None
        Further arguments of ``fit``, as for scikit-learn's ``cross_validate``. Arrays with an
        entry for each row are cut into folds. Where metadata routing is enabled, arguments go to
        the ``fit`` and to the scorers that request them. ``sample_weight``, in a Pipeline
        ``step__sample_weight`` of the last step, acts in training alone; others need
        ``method="fit"``, which "auto" then takes.
    random_state : int, RandomState instance or None, default=0
        The seed of permutations and random orders, and of every ``random_state=None`` in the
        estimator.
    n_jobs : int or None, default=1
        The number of threads that share the branches of the tree, or of joblib's workers that fit
        folds, which ``joblib.parallel_config`` chooses; -1 means all cores. No result depends on
        it.
    row_losses : bool, default=False
        Keep the score of each row, float32: in what ``evaluate`` returns, and for the best trials,
        so that ``optuna_treecv.select`` compares trials over rows and not over folds.
    report : {None, "auto", "progressive", "blocks", "folds", "mean"}, default=None
        What to pass to ``trial.report``, for pruning: at most 32 numbers per trial.
        "auto" takes what the pruner of the first trial's study needs; ``.pruner()`` returns a
        pruner that fits. A warning names a pruner that does not fit the reports, and a trial
        that reports nothing because the tree does not train its estimator.
        "progressive" and "blocks" report inside the tree's first pass over the data, at each
        sixteenth of a pass from the second on. Each row is tested before the model learns it.
        "progressive" reports the mean score over the second half of the rows so far, for
        ``RacingPruner``, ``MedianPruner``, ``SuccessiveHalvingPruner`` and ``HyperbandPruner``;
        "blocks" that over the rows since the report before, for ``WilcoxonPruner``. With 32 folds
        or more, step 64 is the mean score of 16 folds. The last report is the trial's value.
        "folds" reports the mean score of each part of the tree, or of each fold that is fitted, at
        the part's number, and "mean" the mean of all folds so far. An infinite mean is reported as
        1e300 or -1e300.
    cache : {"memory", None} or ModelCache, default="memory"
        Where trials share models. What the trainings of two trials have in common is done once,
        and no result depends on it. "memory" makes one cache of 256 MiB for this objective; None
        switches sharing off; one ``ModelCache`` can be given to several objectives.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        A SQLite file or a PostgreSQL database, such as ``"sqlite:///treecv_store.db"`` or the URL
        of a study's own PostgreSQL database. It keeps the score of every fold, and the models that
        took long to train, so that other workers and later runs share them and a killed trial can
        be resumed: one whose folds are fitted goes on at its next fold. Read it with
        ``optuna_treecv.history``. If it is lost, trials go on without it.
        A callable, () -> Engine, keeps a password out of the pickles of the objective.
    store_max_bytes : int, default=256 MiB
        Room for shared models in the store. When more is written, the oldest models and those that
        took the fewest seconds per byte are deleted. Fold scores are never deleted.

    Returns
    -------
    TreeCVObjective
        Callable with a trial. ``.direction`` (``.directions``) is what the study must have,
        ``.evaluate(params)`` returns a ``CVResult`` without a study, and
        ``.best_estimator(study)`` returns the best estimator fitted on all rows.

    Raises
    ------
    ValueError
        If an argument is wrong.

    See Also
    --------
    tree_cross_validate : One evaluation without Optuna.

    Notes
    -----
    Each trial gets one user attribute, ``treecv``, a dict: ``mean_test_score`` and
    ``std_test_score`` to 6 digits (in place of the second, a pooled score and a hold-out have
    ``std_error``), with several scores ``score_<name>`` for each of them, ``folds_scored``,
    ``n_updates`` (rows trained on), ``method`` (how the folds were evaluated), ``seconds``, with a
    store ``run`` (the evaluation's name there) and ``seconds_store``, and ``diverged_folds`` if
    there are any.

    The first fold of a tree is ready after about one reading of the data. With reports of folds,
    pruning saves what follows; early reports come before. Where folds are fitted, pruning saves
    the fits that have not begun; ``n_jobs`` workers begin as many at once.

    Examples
    --------
    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> objective = treecv_objective(
    ...     PegasosClassifier(),
    ...     scale(X),
    ...     y,
    ...     param_distributions={"alpha": FloatDistribution(1e-5, 1e2, log=True)},
    ...     cv="loo",
    ... )
    >>> study = optuna.create_study(direction=objective.direction)
    >>> study.optimize(objective, n_trials=20)
    >>> study.best_value < 0.05
    True
    """
    check_choice("report", report, (None, "auto", "folds", "mean", "progressive", "blocks"))
    estimator = as_estimator(estimator)
    batch_size = check_integer("batch_size", batch_size, MOST_SIDE_BY_SIDE)
    space = as_space(estimator, param_distributions, param_grid)
    shown = space.example
    store_max_bytes = check_bytes("store_max_bytes", store_max_bytes)
    database = None if store is None else Database(store)
    models = None if database is None else ModelStore(database, store_max_bytes)
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        stratify=stratify,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=n_repeats,
        n_epochs=n_epochs,
        scoring=scoring,
        optimize=optimize,
        pooled=pooled,
        sample_weight=sample_weight,
        score_weight=score_weight,
        params=params,
        random_state=random_state,
        n_jobs=n_jobs,
        row_losses=row_losses,
        estimator=shown,
        cache=_make_cache(cache, models),
        with_others=isinstance(cache, ModelCache) or database is not None,
        report=None if report == "auto" else report,
    )
    if axes := space.axes:
        argument = "param_distributions" if space.grids is None else "param_grid"
        if "n_epochs" in axes and not hasattr(space.estimator, "n_epochs"):
            for value in axes["n_epochs"].ends():
                check_integer(f"{argument}: n_epochs", value, MOST_EPOCHS)
        evaluation.searched = {name: axis.ends() for name, axis in axes.items()}
        # Errors are found here and not in the first trial. A categorical parameter may add a
        # method: SGDClassifier has predict_proba with some losses only.
        distributions = {name: axis.distribution for name, axis in axes.items()}
        choices = any(isinstance(d, CategoricalDistribution) for d in distributions.values())
        found, _ = settle(evaluation, shown, of_class=choices, searched=axes)
        if evaluation.is_early and (why_not := why_no_first_pass(found, report)):
            raise ValueError(why_not)
        if found.is_one_pass:
            check_effect(argument, shown, {n: not d.single() for n, d in distributions.items()})
            evaluation.unused.warn(shown, axes, evaluation.n_epochs)
            evaluation.rows(shown)
    leases = None
    if space.grids is not None and batch_size > 1 and models is not None:
        if isinstance(evaluation.shared.cache_for(shown), StoredModelCache):
            leases = Leases(models)
    return TreeCVObjective(space, evaluation, report, database, batch_size, leases)


def _may_recur(distributions: Mapping[str, BaseDistribution]) -> bool:
    """Return whether a sampler may suggest the same params twice."""
    return not any(
        isinstance(one, FloatDistribution) and one.step is None and not one.single()
        for one in distributions.values()
    )


def _make_cache(cache: Any, store: ModelStore | None) -> ModelCache | StoredModelCache | None:
    """Return where models are kept, from ``cache`` and ``store`` as given."""
    is_known = isinstance(cache, ModelCache | None) or (
        isinstance(cache, str) and cache == "memory"
    )
    if not is_known:
        raise ValueError(f"cache must be None, 'memory' or a ModelCache, got {cache!r}.")
    if cache is None:
        return None
    memory = cache if isinstance(cache, ModelCache) else ModelCache()
    return memory if store is None else StoredModelCache(memory, store)


def select(
    study: optuna.Study,
    objective: TreeCVObjective,
    rule: Rule = "best",
    simpler: Simpler | None = None,
    level: float = 0.95,
) -> Choice:
    """Choose a trial of a study, with the comparisons that defend the choice.

    All trials of an objective have the same folds, so they are compared in pairs. The standard
    error of a paired difference is often a quarter of that of a mean: on Covertype by
    leave-one-out 0.00014, where that of the mean is 0.00056.

    Parameters
    ----------
    study : optuna.Study
        A study with one objective and at least one complete trial.
    objective : TreeCVObjective
        The objective that the study was run with. It knows the fold scores of the trials that it
        has evaluated itself, up to 64 MiB of the best ones; those of other trials are read from
        its store. With ``row_losses=True`` it compares its trials over rows.
    rule : {"best", "one_se"} or callable, default="best"
        "best" takes the best value. "one_se" takes the simplest of the trials whose paired
        difference from the best one is at most its standard error. A callable gets a list of
        candidates, the best one first, each with its ``trial`` and its ``difference`` from the
        best one, and returns one of them.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        For "one_se": which values of a parameter make a simpler model, the most important
        parameter first. It may be left out where a single parameter is searched whose name says
        it, such as ``alpha``. Trials of several families have no such parameter: "n_updates"
        takes the one that was trained on the fewest rows, and a callable, (params) -> float, that
        for whose parameters it returns the smallest number.
    level : float, default=0.95
        The probability with which intervals cover.

    Returns
    -------
    Choice
        The chosen trial, its interval, and how others differ from the best one.

    Raises
    ------
    ValueError
        If an argument is wrong, if the study has another evaluation than the objective, or if the
        fold scores of the best trial are not known.

    See Also
    --------
    TreeCVObjective.best_estimator : Fits the chosen model.
    optuna_treecv.report.plot_choice : Draws the comparisons.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, select, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> grid = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
    >>> objective = treecv_objective(PegasosClassifier(), scale(X), y, param_grid=grid, cv="loo")
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> choice = select(study, objective, rule="one_se")
    >>> choice.trial.params["alpha"] >= choice.best.params["alpha"]
    True
    """
    if not isinstance(objective, TreeCVObjective):
        raise ValueError(f"objective must be one of treecv_objective, got {objective!r}.")
    return objective._choose(study, rule, simpler, level)
