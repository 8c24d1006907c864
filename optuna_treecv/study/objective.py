"""The objective that ``study.optimize`` calls: a trial becomes an estimator, then a value."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from typing import Literal
from typing import Unpack
import warnings

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from sklearn.ensemble import VotingClassifier
from sklearn.ensemble import VotingRegressor

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.cross_validation import Search
from optuna_treecv.core.html import as_table
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.settings import Arguments
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import takes_settings
from optuna_treecv.crossval.evaluate import explain
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.estimators.base import MOST_EPOCHS
from optuna_treecv.estimators.checks import as_estimator
from optuna_treecv.estimators.incremental import check_effect
from optuna_treecv.rows.checks import check_bytes
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import DEFAULT_MAX_BYTES
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.study.advice import Advice
from optuna_treecv.study.advice import advice_of
from optuna_treecv.study.after_study import ensemble_of
from optuna_treecv.study.after_study import fitted_best
from optuna_treecv.study.after_study import nested_score
from optuna_treecv.study.batches import MOST_SIDE_BY_SIDE
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.grids import GridSampler
from optuna_treecv.study.honest import Honest
from optuna_treecv.study.honest import honest_of
from optuna_treecv.study.nested import Nested
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.space import as_space
from optuna_treecv.study.space import check_given
from optuna_treecv.study.space import Space
from optuna_treecv.study.trial_loop import TrialLoop


class TreeCVObjective:
    """The objective that ``treecv_objective`` makes.

    Attributes
    ----------
    directions : list of {"minimize", "maximize"}
        The directions that a study must have: one, or several if ``optimize`` is a list.
    param_grid : dict of str to list, list of such dicts, or None
        The grid that was given, with the values that trials store: numbers, strings, bools and
        None as they are, and texts for other values and for values that differ only in type. Each
        of several dicts has a value for every parameter.
    """

    def __init__(
        self,
        space: Space,
        cross_validation: CrossValidation,
        report: str | None,
        database: Database | None = None,
        batch_size: int = 1,
        leases: Leases | None = None,
    ) -> None:
        self.evaluator = Evaluator(space, cross_validation, report, database)
        self.directions = self.evaluator.directions
        grids = space.grids
        self.param_grid = grids[0] if grids is not None and len(grids) == 1 else grids
        self._loop = TrialLoop(self.evaluator, batch_size, leases)

    def _repr_html_(self) -> str:
        """Return what notebooks show: what trials will do."""
        searched = self.param_distributions.items()
        rows: dict[str, object] = {f"searched: {name}": one for name, one in searched}
        rows["direction"] = ", ".join(self.directions)
        with suppress(ValueError):  # where a callable makes the estimators, nothing is known yet
            what, *steps = self.explain().splitlines()
            rows |= {"folds": self.evaluator.cross_validation.folds_in_words, "each trial": what}
            rows["steps"] = "; ".join(step.strip() for step in steps)
        return as_table("TreeCVObjective", rows)

    def __repr__(self) -> str:
        """Return the estimator, the searched parameters, the folds and the direction."""
        example, direction = self.evaluator.space.example, ", ".join(self.directions)
        if example is None:  # a callable makes the estimators, and nothing else is known yet
            return f"TreeCVObjective(<callable>, direction={direction!r})"
        return (
            f"TreeCVObjective({type(example).__name__}, "
            f"searched=<{', '.join(self.param_distributions)}>, "
            f"cv={self.evaluator.cross_validation.folds_in_words!r}, direction={direction!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Its notes on studies and trials hold locks, and are made again.
        # Its notes on studies and trials hold locks, and are made again.
        one, batches = self.evaluator, self._loop.batches
        options = one.report, one.database, batches.size, batches.leases
        return type(self), (one.space, one.cross_validation, *options)

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
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from optuna_treecv import PegasosClassifier, treecv_objective
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = make_pipeline(StandardScaler(), PegasosClassifier())
        >>> grid = {"pegasosclassifier__alpha": [0.01, 0.1, 1.0]}
        >>> objective = treecv_objective(model, X, y, param_grid=grid, report="auto")
        >>> type(objective.pruner()).__name__
        'RacingPruner'
        """
        if (
            self.evaluator.report is None
            or self.evaluator.cross_validation.settings.why_no_report is not None
        ):
            return optuna.pruners.NopPruner()
        return RacingPruner()

    @property
    def n_splits(self) -> int:
        """The number of folds, over all repeats."""
        return self.evaluator.cross_validation.n_repeats * self.evaluator.cross_validation.n_folds

    @property
    def has_fold_scores(self) -> bool:
        """Whether there are several folds, and the optimised score is computed for each."""
        run = self.evaluator.run_at(None)
        n_folds = self.evaluator.cross_validation.tested(run.method_name).n_folds
        return n_folds > 1 and not run.request.is_pooled

    @property
    def score_directions(self) -> dict[str, str]:
        """The direction of each score by its name, "minimize" or "maximize"."""
        scoring = self.evaluator.run_at(None).request.scoring
        directions = [metric.direction for metric in scoring.metrics]
        return dict(zip(scoring.names, directions, strict=True))

    @property
    def param_distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter; empty if a callable suggests for itself."""
        return {name: axis.distribution for name, axis in self.evaluator.space.axes.items()}

    def fingerprint(self) -> str:
        """Return a short name of the data, the folds, the scoring and the method of evaluation.

        Returns
        -------
        str
            If two objectives have equal names, the values of their trials can be compared.

        Raises
        ------
        ValueError
            If a callable makes the estimators, so that their scoring is not known.
        """
        run = self.evaluator.run_at(None)
        cross_validation = run.request.cross_validation
        digest, order = cross_validation.digest(run.request.scoring), cross_validation.describe()
        return f"{digest} {run.method_name} {order['order']}"

    @property
    def direction(self) -> str:
        """The direction that a study of this objective must have: "minimize" or "maximize"."""
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
            If the study's direction contradicts the scoring, or an argument is found to be wrong.
        """
        result = self.evaluate_trial(trial)
        scoring = self.evaluator.cross_validation.settings.scored_by
        if scoring is None or not scoring.returns_tuple:
            return result.mean
        return tuple(result.scores[name].mean for name in scoring.optimized_names)

    def evaluate_trial(self, trial: Any) -> CVResult:
        """Evaluate a trial as a call does, and return the whole result.

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
        return self._loop.evaluate(trial)

    def check_study(self, study: optuna.Study) -> None:
        """Refuse a study whose values cannot be compared with those of this objective.

        A trial only warns of other data, folds or scoring.

        Parameters
        ----------
        study : optuna.Study
            The study that is to be continued.

        Raises
        ------
        ValueError
            If its direction, or the data, folds or scoring of its trials, differ.
        """
        self.evaluator.study_check.directions(study, self.directions)
        if self.evaluator.space.axes:
            run = self.evaluator.run_at(None)
            for difference in self.evaluator.study_check.differences(study, run):
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
            The same scores as those of a trial with these parameters.

        Raises
        ------
        ValueError
            If a parameter has no value, or the estimator cannot be evaluated.
        """
        check_given("params", params, ())
        return self.evaluator.run_at(params).finish()

    def values_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameter values of a trial, for ``set_params`` of the estimator.

        Parameters
        ----------
        params : dict
            The ``params`` of a trial, such as ``study.best_params``.

        Returns
        -------
        dict
            The same, but with the values as they were given where the trial stores texts.

        Raises
        ------
        ValueError
            If a parameter has no value.
        """
        return self.evaluator.values_of(params)

    def explain(self, params: Mapping[str, Any] | None = None) -> str:
        """Return how the estimator is evaluated, why, and what it costs, in words.

        Parameters
        ----------
        params : dict, default=None
            A value for each parameter that a trial would suggest; None: the estimator as given.

        Returns
        -------
        str
            A few sentences, a line for each step of a Pipeline, and a line for each faster method
            that is not possible here, with the reason.

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
        return explain(self.evaluator.cross_validation, *self.evaluator.space.candidate(params))

    def best_estimator(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        rule: Rule = "best",
        simpler: Simpler | None = None,
        kind: Literal["refit", "kfold_average"] = "refit",
    ) -> Any:
        """Return the fitted estimator of a study's best trial, or of one that a rule chooses.

        A warning says if a value of the trial lies at the edge of its range.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one completed trial of this objective, or a trial of it.
        rule : {"best", "one_se"} or callable, default="best"
            Which trial of the study is taken, see ``optuna_treecv.select``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            For "one_se": what makes a model simpler, see ``optuna_treecv.select``.
        kind : {"refit", "kfold_average"}, default="refit"
            "refit" trains on all rows, in the order of the tree. "kfold_average" cross-validates
            the trial once more, and averages the models of its folds, see
            ``CVResult.kfold_estimator``. Only linear learners that are trained along the tree
            allow this.

        Returns
        -------
        estimator
            Fitted, with its parameters as given and those of the trial. During the training, the
            objective's seed replaced each ``random_state=None``.

        Raises
        ------
        ValueError
            If an argument is wrong, or the model diverges.
        """
        return fitted_best(self.evaluator, study, rule, kind, simpler)

    def predict_oof(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        method: Literal[
            "predict", "decision_function", "predict_proba", "score_samples"
        ] = "predict",
    ) -> np.ndarray:
        """Return the out-of-fold predictions of a study's best trial, or of another one.

        Each row is predicted by the model that was trained without its fold. Folds and orders of
        rows are those of the trial. All folds are trained once more.

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
            If an argument is wrong, if a row is not tested exactly once, or if a model diverges
            and its labels are asked for.

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
        _, candidate = self.evaluator.trial_and_candidate(study)
        run = run_for(self.evaluator.cross_validation, *candidate, is_scored=False)
        return run.predict(method, "method")

    def honest(
        self,
        study: optuna.Study,
        rule: Literal["best", "one_se"] = "best",
        simpler: Simpler | None = None,
        level: float = 0.95,
        score: str | None = None,
    ) -> Honest:
        """Return the expected score of the chosen model of a study, corrected for the choice.

        The best of many noisy values looks better than it is. The correction needs no training:
        the choice is made again on bootstrap samples of the scores that the objective has kept.

        Parameters
        ----------
        study : optuna.Study
            A study of this objective with at least one complete trial. Pruned trials do not count:
            they could not have been chosen.
        rule : {"best", "one_se"}, default="best"
            How the trial is chosen, see ``optuna_treecv.select``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            For "one_se", see ``optuna_treecv.select``.
        level : float, default=0.95
            The probability with which the interval covers its target.
        score : str, default=None
            Required if ``optimize`` is a list: the name of one of these scores. The trial is
            chosen by this score alone.

        Returns
        -------
        Honest
            The corrected score and its interval, beside the value of the trial.

        Raises
        ------
        ValueError
            If an argument is wrong, or neither the scores of rows nor those of several folds are
            known. For time-ordered splits, such as ``TimeSeriesSplit`` and purged folds: if the
            scores of rows are not known, test sets share rows, there are fewer than 100 test rows,
            or blocks of consecutive test rows are too correlated.

        Examples
        --------
        >>> import optuna
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> grid = {"n_neighbors": list(range(1, 40))}
        >>> objective = treecv_objective(KNeighborsClassifier(), X, y, param_grid=grid)
        >>> study = optuna.create_study(sampler=objective.grid_sampler())
        >>> study.optimize(objective)
        >>> honest = objective.honest(study)
        >>> honest.mean > study.best_value
        True
        """
        correction, run = self.evaluator.correction(study, rule, simpler, level, score)
        return honest_of(correction, run, level)

    def ensemble(
        self,
        study: optuna.Study,
        size: int = 25,
        kind: Literal["refit", "kfold_average"] = "refit",
        level: float = 0.95,
    ) -> VotingClassifier | VotingRegressor:
        """Return a fitted ensemble of a study's trials, often better than the best one of them.

        The first members are the 5 best trials. Further ones are taken one after another from the
        20 best, each time the trial that makes the mean of the out-of-fold outputs best by the
        score of the objective (Caruana et al. 2004). The same trial may be taken several times.
        No fold is trained for this, and each member once.

        Parameters
        ----------
        study : optuna.Study
            A study of this objective with one value and at least one complete trial.
        size : int, default=25
            The largest number of members, counting repetitions; at most 1,000.
        kind : {"refit", "kfold_average"}, default="refit"
            Whether members are trained on all rows, or are averages of the models of their folds,
            see ``best_estimator``.
        level : float, default=0.95
            The probability with which ``honest_interval_`` covers its target.

        Returns
        -------
        VotingClassifier or VotingRegressor
            Of scikit-learn, fitted. The names of its members are "trial_0" and so on. It has three
            more attributes: ``oof_score_``, the score by which its members were selected;
            ``honest_score_``, the same corrected for the selection; and ``honest_interval_``, the
            interval of that, (low, high).

        Raises
        ------
        ValueError
            If an argument is wrong, or no out-of-fold outputs are known.

        References
        ----------
        R. Caruana, A. Niculescu-Mizil, G. Crew and A. Ksikes, "Ensemble selection from libraries
        of models", ICML 2004.

        Examples
        --------
        >>> import optuna
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.neighbors import KNeighborsRegressor
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_diabetes(return_X_y=True)
        >>> grid = {"n_neighbors": [5, 10, 20, 40], "weights": ["uniform", "distance"]}
        >>> objective = treecv_objective(KNeighborsRegressor(), X, y, param_grid=grid)
        >>> study = optuna.create_study(sampler=objective.grid_sampler())
        >>> study.optimize(objective)
        >>> ensemble = objective.ensemble(study)
        >>> ensemble.oof_score_ <= study.best_value
        True
        """
        return ensemble_of(self.evaluator, study, size, kind, level)

    def advise(self, study: optuna.Study) -> Advice:
        """Return whether more trials, or more repeats of each, are the better use of further time.

        Parameters
        ----------
        study : optuna.Study
            A study of this objective with one value and at least 8 complete trials.

        Returns
        -------
        Advice
            How far trials differ, how much of that is noise, and the advice; ``str`` gives it in
            words.

        Raises
        ------
        ValueError
            If the scores of too few trials or folds are known.

        Examples
        --------
        >>> import optuna
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> grid = {"n_neighbors": list(range(1, 40))}
        >>> objective = treecv_objective(KNeighborsClassifier(), X, y, param_grid=grid)
        >>> study = optuna.create_study(sampler=objective.grid_sampler())
        >>> study.optimize(objective)
        >>> objective.advise(study).n_repeats
        1
        """
        return advice_of(self.evaluator.contest(study))

    def grid_sampler(self, seed: int | None = None) -> optuna.samplers.GridSampler:
        """Return a sampler that visits each point of ``param_grid`` once.

        Parameters
        ----------
        seed : int, default=None
            The seed of the order in which the points come.

        Returns
        -------
        optuna.samplers.GridSampler
            For ``optuna.create_study(sampler=...)``. It stops the study after the last point. It
            does the same as Optuna's grid sampler, in less time if there are many points.
            ``optimize`` runs one more trial if no point is left: ``is_exhausted(study)`` tells
            whether that is so.

        Raises
        ------
        ValueError
            If the objective has no ``param_grid``, or ``seed`` is no seed.
        """
        if self.evaluator.space.grids is None:
            raise ValueError("grid_sampler needs an objective with a param_grid.")
        try:
            return GridSampler(self.evaluator.space.grids, seed=seed)
        except (TypeError, ValueError) as error:
            raise ValueError(f"seed cannot be used: {error}") from error

    def nested(self, study: optuna.Study, resample: bool = False, level: float = 0.95) -> Nested:
        """Return the score of choosing among the trials of a study, by nested cross-validation.

        ``study.best_value`` looks better than it is, since it is the best of many. Here each fold
        is left out in turn. Models that have not seen this fold are scored on the other folds, and
        the trial with the best mean is then scored on the fold that was left out.

        Parameters
        ----------
        study : optuna.Study
            A study with one objective and at least one complete trial of this objective. The
            distinct params of its complete trials are the candidates.
        resample : bool, default=False
            Whether a copy of the sampler proposes as many new trials for each fold. This takes
            the time of the study once per fold. By default the candidates are those of the study,
            although they were proposed by scores that include the fold.
        level : float, default=0.95
            The probability with which the interval covers its target.

        Returns
        -------
        Nested
            The mean, its interval, and how often each trial was chosen.

        Raises
        ------
        ValueError
            If an argument is wrong, the study is one of another objective, or its folds cannot be
            left out in pairs: fewer than 3 or more than 100 folds, time series, test sets with
            rows in common, or a pooled score.

        Examples
        --------
        >>> import optuna
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_diabetes(return_X_y=True)
        >>> objective = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0, 10.0]})
        >>> study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
        >>> study.optimize(objective)
        >>> sum(objective.nested(study).wins.values())
        10
        """
        size = self._loop.batches.size
        on = partial(TreeCVObjective, self.evaluator.space, report=None, batch_size=size)
        return nested_score(self.evaluator, study, resample, level, on)


@takes_settings()
def treecv_objective(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    param_distributions: Mapping[str, Any] | Literal["auto"] | None = None,
    param_grid: Mapping[str, Collection[Any]]
    | Sequence[Mapping[str, Collection[Any]]]
    | None = None,
    batch_size: int = 32,
    cache: Literal["memory"] | ModelCache | None = "memory",
    store: Any = None,
    store_max_bytes: int = DEFAULT_MAX_BYTES,
    keep_outputs: Literal["auto", "all", False] = "auto",
    **settings: Unpack[Arguments],
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
        tree needs ``partial_fit``, in a Pipeline for each step that is not stateless. The tree's
        score is that of the model after one pass over the training rows, in the order of the tree;
        a search over parameters that ``partial_fit`` does not use is refused. Any other estimator
        is fitted on each fold, also one whose ``fit`` makes other passes than ``partial_fit``.
        Pipelines that differ only in later steps then share the fits of the steps before them.
    X : array-like, sparse matrix, data frame or path, of shape (n_rows, n_features)
        The rows, or where they lie, as for ``tree_cross_validate``. They must not be changed while
        the objective is in use.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        Labels or targets, as for ``tree_cross_validate``.
    param_distributions : dict of str to distribution or list, "auto" or None, default=None
        The search space, by parameter name: distributions of Optuna, ``uniform``, ``loguniform``
        or ``randint`` of SciPy, or lists of values. With an estimator, either this or
        ``param_grid`` is required; with a callable, neither may be given. "auto" is the
        recommended space of a known estimator, in a Pipeline of its last step. Parameters that the
        estimator has at other values than their defaults keep these values. Categories other than
        numbers, strings, bools and None, such as the tuples of ``ngram_range``, are texts in
        trials, as in ``param_grid``: Optuna cannot store them. Estimators get the values, and
        ``values_of(study.best_params)`` returns them.
    param_grid : dict of str to list, or list of such dicts, default=None
        The grid to search, as ``GridSearchCV`` takes it; use it with
        ``sampler=objective.grid_sampler()``. Points that several dicts share are visited once, and
        a parameter that a dict leaves out keeps the estimator's value there. Estimators get the
        values as they are. In trials, lists of integers or of floats become int or float
        parameters, on a log scale if they are positive and span a factor of more than 100. Other
        lists become categories, of texts where Optuna could not tell values apart.
    batch_size : int, default=32
        The most configurations that are trained side by side in one pass over the rows, 1 to 1024.
        These are points of the grid that have had no trial yet, and trials that run at the same
        time (``study.optimize(n_jobs=...)``). Each configuration gets the same scores as alone.
        Pruning saves no work among them, except with ``report="progressive"`` and a
        ``RacingPruner``.
    cache : {"memory", None} or ModelCache, default="memory"
        Where trials share models. Training that two trials have in common is done once; no score
        depends on this. "memory" makes one cache of 256 MiB for this objective; None switches
        sharing off; one ``ModelCache`` can be given to several objectives.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        A SQLite file or a PostgreSQL database, such as ``"sqlite:///treecv_store.db"`` or the URL
        of a study's own PostgreSQL database. It keeps the score of every fold, and the models that
        took long to train, for other workers and later runs. A trial that was killed while its
        folds were fitted can be resumed at the next fold. Read it with ``optuna_treecv.history``.
        If it is lost, trials go on without it. A callable, () -> Engine, keeps a password out of
        the pickles of the objective.
    store_max_bytes : int, default=256 MiB
        Bytes for shared models in the store. When more are written, the oldest models and those
        that took the fewest seconds per byte are deleted. Fold scores are never deleted.
    keep_outputs : {"auto", "all", False}, default="auto"
        Which out-of-fold outputs of trials are held in memory, for ``honest`` and ``ensemble``.
        "auto" holds the predictions and probabilities that the scores need anyway. "all" also
        holds those that only an ensemble needs; each fitted fold predicts once more for this.
        Outputs and scores of trials take up to 256 MiB: those of the worst trials are dropped
        first.
    **settings

    Returns
    -------
    TreeCVObjective
        Callable with a trial. ``.direction`` is the direction that the study must have (or
        ``.directions``), ``.evaluate(params)`` returns a ``CVResult`` without a study, and
        ``.best_estimator(study)`` returns the best estimator, fitted on all rows.

    Raises
    ------
    ValueError
        If an argument is wrong.

    See Also
    --------
    tree_cross_validate : One evaluation without Optuna.

    Notes
    -----
    Each trial gets a user attribute ``treecv``, a dict:

    * ``mean_test_score`` and ``std_test_score``, to 6 digits; a pooled score and a hold-out have
      ``std_error`` in place of the latter;
    * ``score_<name>`` for each of several scores;
    * ``folds_scored``, ``n_updates`` (rows trained on), ``method`` and ``seconds``;
    * with a store, ``run`` (the name of the evaluation there) and ``seconds_store``;
    * with ``n_estimators="best"``, ``n_estimators`` and ``curve``; for forests with
      ``oob_score=True``, ``oob_score``;
    * ``diverged_folds``, if there are any.

    While rows are read from a file, the attribute ``treecv_progress`` says how much is done.

    The first fold of a tree is ready after about one pass over the data. With reports of folds,
    pruning saves the work after that; early reports come before. Where folds are fitted, pruning
    saves the fits that have not begun; ``n_jobs`` workers begin as many at once.

    Examples
    --------
    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> objective = treecv_objective(
    ...     make_pipeline(StandardScaler(), PegasosClassifier()),
    ...     X,
    ...     y,
    ...     param_distributions={
    ...         "pegasosclassifier__alpha": FloatDistribution(1e-5, 1e2, log=True)
    ...     },
    ...     cv="loo",
    ... )
    >>> study = optuna.create_study(direction=objective.direction)
    >>> study.optimize(objective, n_trials=20)
    >>> study.best_value < 0.05
    True
    """
    checked = Settings(**settings)
    report = checked.report
    if report == "auto":  # the first trial chooses
        checked = replace(checked, report=None)
    estimator = as_estimator(estimator)
    batch_size = check_integer("batch_size", batch_size, MOST_SIDE_BY_SIDE)
    space = as_space(estimator, param_distributions, param_grid)
    shown = space.example
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
    cross_validation = CrossValidation.of(X, y, checked, shown, made_cache, with_others, search)
    if axes:
        argument = "param_distributions" if space.grids is None else "param_grid"
        if "n_epochs" in axes and not hasattr(space.estimator, "n_epochs"):
            for value in axes["n_epochs"].ends:
                check_integer(f"{argument}: n_epochs", value, MOST_EPOCHS)
        # Errors are found here and not in the first trial. A categorical parameter may add a
        # method: SGDClassifier has predict_proba with some losses only.
        distributions = {name: axis.distribution for name, axis in axes.items()}
        choices = any(isinstance(d, CategoricalDistribution) for d in distributions.values())
        run = run_for(cross_validation, shown, of_class=choices, searched=axes)
        if run.why_no_early_report:
            raise ValueError(run.why_no_early_report)
        if run.plan.capabilities.is_incremental:
            check_effect(argument, shown, {n: not d.single() for n, d in distributions.items()})
            cross_validation.unused.warn(shown, axes, checked.n_epochs)
            run.plan.prepare()
    leases = None
    if space.grids is not None and batch_size > 1 and models is not None:
        if isinstance(cross_validation.shared.cache_for(shown), StoredModelCache):
            leases = Leases(models)
    return TreeCVObjective(space, cross_validation, report, database, batch_size, leases)


def _make_cache(cache: Any, store: ModelStore | None) -> ModelCache | StoredModelCache | None:
    """Return the cache of models that ``cache`` and ``store`` describe."""
    if cache is None:
        return None
    if isinstance(cache, str) and cache == "memory":
        cache = ModelCache()
    if not isinstance(cache, ModelCache):
        raise ValueError(f"cache must be None, 'memory' or a ModelCache, got {cache!r}.")
    return cache if store is None else StoredModelCache(cache, store)


def select(
    study: optuna.Study,
    objective: TreeCVObjective,
    rule: Rule = "best",
    simpler: Simpler | None = None,
    level: float = 0.95,
) -> Choice:
    """Choose a trial of a study, with the comparisons that defend the choice.

    All trials of an objective have the same folds, so they are compared in pairs. The standard
    error of a paired difference is often a quarter of that of a mean: 0.00014 against 0.00056 on
    Covertype by leave-one-out.

    Parameters
    ----------
    study : optuna.Study
        A study with one objective and at least one complete trial.
    objective : TreeCVObjective
        The objective that the study was run with. It knows the fold scores of the trials that it
        has evaluated itself, up to 256 MiB of the best ones; those of other trials are read from
        its store. With ``row_losses=True`` it compares its trials over rows.
    rule : {"best", "one_se"} or callable, default="best"
        "best" takes the best value. "one_se" takes the simplest of the trials whose paired
        difference from the best one is at most its standard error. A callable gets a list of
        candidates, the best one first, each with its ``trial`` and its ``difference`` from the
        best one, and returns one of them or the number of its trial.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        For "one_se": which values of a parameter make a simpler model, the most important
        parameter first. It may be left out where a single parameter is searched whose name says
        it, such as ``alpha``. For trials of different kinds of estimators: with "n_updates", the
        simplest trial is the one that was trained on the fewest rows; with a callable,
        (params) -> float, it is the one with the smallest number.
    level : float, default=0.95
        The probability with which intervals cover their targets.

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
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, select, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), PegasosClassifier())
    >>> name = "pegasosclassifier__alpha"
    >>> grid = {name: [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
    >>> objective = treecv_objective(model, X, y, param_grid=grid, cv="loo")
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> choice = select(study, objective, rule="one_se")
    >>> choice.trial.params[name] >= choice.best.params[name]
    True
    """
    if not isinstance(objective, TreeCVObjective):
        raise ValueError(f"objective must be one of treecv_objective, got {objective!r}.")
    evaluator = objective.evaluator
    choice = evaluator.choose(evaluator.contest(study), rule, simpler, level)
    if isinstance(rule, str):
        # Too little is known, or its note says why it may mislead.
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            return replace(choice, honest=objective.honest(study, rule, simpler, level))
    return choice
