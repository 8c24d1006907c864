"""The objective that ``study.optimize`` calls: it evaluates a trial and returns its value."""

from contextlib import suppress
from functools import partial
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution
from sklearn.ensemble import VotingClassifier
from sklearn.ensemble import VotingRegressor

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.html import as_table
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.settings import check_choice
from optuna_treecv.crossval.evaluate import explain
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.study.advice import Advice
from optuna_treecv.study.advice import advice_of
from optuna_treecv.study.advice import warn_of_edges
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.ensemble import ensemble_of
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.grids import GridSampler
from optuna_treecv.study.honest import Honest
from optuna_treecv.study.honest import honest_of
from optuna_treecv.study.nested import Nested
from optuna_treecv.study.nested import nested_score
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.space import check_given
from optuna_treecv.study.space import Params
from optuna_treecv.study.space import Space
from optuna_treecv.types import AnyTrial
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import ParamValue


class TreeCVObjective:
    """The objective that ``treecv_objective`` returns.

    Attributes
    ----------
    directions : list of {"minimize", "maximize"}
        The directions that a study must have: one, or several if ``optimize`` is a list.
    param_grid : dict of str to list, list of such dicts, or None
        The grid as given, but with the values that trials store: numbers, strings, bools and
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
        self.evaluator = Evaluator(space, cross_validation, report, database, batch_size, leases)
        self.directions = self.evaluator.directions
        grids = space.grids
        self.param_grid = grids[0] if grids is not None and len(grids) == 1 else grids

    def _repr_html_(self) -> str:
        """Return the display for notebooks: the search and the evaluation of a trial."""
        searched = self.param_distributions.items()
        rows: dict[str, object] = {f"searched: {name}": axis for name, axis in searched}
        rows["direction"] = ", ".join(self.directions)
        with suppress(ValueError):  # if a callable makes the estimators, there is none yet
            what, *steps = self.explain().splitlines()
            rows |= {"folds": self.evaluator.cross_validation.folds_in_words, "each trial": what}
            rows["steps"] = "; ".join(step.strip() for step in steps)
        return as_table("TreeCVObjective", rows)

    def __repr__(self) -> str:
        """Return the estimator, the searched parameters, the folds and the direction."""
        example, direction = self.evaluator.space.example, ", ".join(self.directions)
        if example is None:  # a callable makes the estimators, and there is none yet
            return f"TreeCVObjective(<callable>, direction={direction!r})"
        return (
            f"TreeCVObjective({type(example).__name__}, "
            f"searched=<{', '.join(self.param_distributions)}>, "
            f"cv={self.evaluator.cross_validation.folds_in_words!r}, direction={direction!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        # State of studies and trials contains locks, and is created again.
        evaluator, batches = self.evaluator, self.evaluator.batches
        options = evaluator.report, evaluator.database, batches.size, batches.leases
        return type(self), (evaluator.space, evaluator.cross_validation, *options)

    def pruner(self) -> optuna.pruners.BasePruner:
        """Return the pruner that fits the reports of this objective.

        Returns
        -------
        optuna.pruners.BasePruner
            For ``optuna.create_study(pruner=...)``: a ``RacingPruner``, or a ``NopPruner`` if
            there are no reports.

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
        settings = self.evaluator.cross_validation.settings
        if self.evaluator.report is None or settings.why_no_report is not None:
            return optuna.pruners.NopPruner()
        return RacingPruner()

    @property
    def n_splits(self) -> int:
        """The number of folds, over all repeats."""
        return self.evaluator.n_splits

    @property
    def has_fold_scores(self) -> bool:
        """Whether there are several folds, and the optimised score is computed for each."""
        return self.evaluator.has_fold_scores

    @property
    def score_directions(self) -> dict[str, str]:
        """The direction of each score by its name, "minimize" or "maximize"."""
        return self.evaluator.score_directions

    @property
    def param_distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter; empty if a callable suggests for itself."""
        return self.evaluator.param_distributions

    def fingerprint(self) -> str:
        """Return a short digest of the data, the folds, the scoring and the method.

        Returns
        -------
        str
            If two objectives have equal fingerprints, the values of their trials are comparable.

        Raises
        ------
        ValueError
            If a callable makes the estimators, so that their scoring is unknown.
        """
        return self.evaluator.fingerprint()

    @property
    def direction(self) -> str:
        """The direction that a study of this objective must have: "minimize" or "maximize"."""
        if len(self.directions) > 1:
            raise AttributeError(
                f"this objective has {len(self.directions)} values and no direction; use "
                "optuna.create_study(directions=objective.directions) instead."
            )
        return self.directions[0]

    def __call__(self, trial: AnyTrial) -> float | tuple[float, ...]:
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
            If the study's direction contradicts the scoring, or an argument is wrong.
        """
        result = self.evaluate_trial(trial)
        scoring = self.evaluator.cross_validation.settings.scored_by
        if scoring is None or not scoring.returns_tuple:
            return result.mean
        return tuple(result.scores[name].mean for name in scoring.optimized_names)

    def evaluate_trial(self, trial: AnyTrial) -> CVResult:
        """Evaluate a trial as a call does, and return the whole result.

        Parameters
        ----------
        trial : optuna.trial.Trial, FixedTrial or FrozenTrial
            Suggests the parameters and receives the results.

        Returns
        -------
        CVResult
            Its ``mean`` is the value that a call returns.

        Raises
        ------
        optuna.TrialPruned, ValueError
            As for a call.
        """
        return self.evaluator.evaluate(trial)

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
        self.evaluator.check_study(study)

    def evaluate(self, params: Params) -> CVResult:
        """Cross-validate at given parameters, without a study.

        Parameters
        ----------
        params : dict
            A value for each parameter that a trial would suggest, or the text that a trial stores
            for it.

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

    def values_of(self, params: Params) -> dict[str, ParamValue]:
        """Return the parameter values of a trial, for ``set_params`` of the estimator.

        Parameters
        ----------
        params : dict
            The ``params`` of a trial, such as ``study.best_params``.

        Returns
        -------
        dict
            The same parameters, with the original values in place of texts.

        Raises
        ------
        ValueError
            If a parameter has no value.
        """
        return self.evaluator.values_of(params)

    def explain(self, params: Params | None = None) -> str:
        """Explain how the estimator is evaluated, why, and at what cost.

        Parameters
        ----------
        params : dict, default=None
            A value for each parameter that a trial would suggest; None: the estimator as given.

        Returns
        -------
        str
            A few sentences, a line for each step of a Pipeline, and a line for each faster method
            that is not possible, with the reason.

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
        Ridge is evaluated by method='exact', because its models follow from sums over rows
        """
        return explain(self.evaluator.cross_validation, *self.evaluator.space.candidate(params))

    def best_estimator(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        rule: Rule = "best",
        simpler: Simpler | None = None,
        kind: Literal["refit", "kfold_average"] = "refit",
    ) -> Estimator:
        """Return the fitted estimator of a study's best trial, or of one that a rule chooses.

        Warn if a value of the trial lies at the edge of its range.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one completed trial of this objective, or a trial of it.
        rule : {"best", "one_se"} or callable, default="best"
            Which trial of the study is taken, see ``optuna_treecv.select``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            For "one_se": which values make a model simpler, see ``optuna_treecv.select``.
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
        check_choice("kind", kind, ("refit", "kfold_average"))
        evaluator = self.evaluator
        trial, candidate = evaluator.trial_and_candidate(study, rule, simpler)
        lists = {name: axis.codes for name, axis in evaluator.space.axes.items() if axis.codes}
        warn_of_edges(study, trial, lists)
        if kind == "refit":
            return run_for(evaluator.cross_validation, *candidate, is_scored=False).fit()
        average = "kind must be 'refit'"  # the error if there is none
        run = run_for(evaluator.cross_validation, *candidate, wants_average=average)
        return run.finish().kfold_estimator()

    def predict_oof(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        method: Literal[
            "predict", "decision_function", "predict_proba", "score_samples"
        ] = "predict",
    ) -> Array:
        """Return the out-of-fold predictions of a study's best trial, or of another one.

        Each row is predicted by the model that was trained without its fold. Folds and orders of
        rows are those of the trial. All folds are trained once more.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one completed trial of this objective, or a trial of it.
        method : {"predict", "decision_function", "predict_proba", "score_samples"}, \
                default="predict"
            The method of the estimator whose output is returned.

        Returns
        -------
        ndarray of shape (n_rows,), (n_rows, n_classes) or (n_rows, n_targets)
            In the order of the rows of X.

        Raises
        ------
        ValueError
            If an argument is wrong, if a row is not tested exactly once, or if a model diverges
            and labels are requested.

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
        the choice is repeated on bootstrap samples of the scores in the objective's memory.

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
            known. For time-ordered splits, such as ``TimeSeriesSplit`` and purged folds, if the
            scores of rows are unknown, test sets share rows, there are fewer than 100 test rows,
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
        contest = self.evaluator.contest(study, self.evaluator.number_of(score))
        return honest_of(contest, rule, simpler, level)

    def ensemble(
        self,
        study: optuna.Study,
        size: int = 25,
        kind: Literal["refit", "kfold_average"] = "refit",
        level: float = 0.95,
    ) -> VotingClassifier | VotingRegressor:
        """Return a fitted ensemble of a study's trials, often better than the best of them.

        The first members are the 5 best trials. Further members are selected one after another
        from the 20 best: each time the trial with which the mean of the out-of-fold outputs has
        the best score (Caruana et al. 2004). A trial may be selected several times. No fold is
        trained for this, and each member is trained once.

        Parameters
        ----------
        study : optuna.Study
            A study of this objective with one value and at least one complete trial.
        size : int, default=25
            The largest number of members, counting repetitions; at most 1,000.
        kind : {"refit", "kfold_average"}, default="refit"
            Whether members are refitted on all rows, or are averages of the models of their folds,
            see ``best_estimator``.
        level : float, default=0.95
            The probability with which ``honest_interval_`` covers its target.

        Returns
        -------
        VotingClassifier or VotingRegressor
            The fitted ensemble of scikit-learn. The names of its members are "trial_0" and so on.
            It has three more attributes: ``oof_score_``, the score by which its members were
            selected; ``honest_score_``, this score corrected for the selection; and
            ``honest_interval_``, the interval of the latter, (low, high).

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
        check_choice("kind", kind, ("refit", "kfold_average"))
        fit = partial(self.best_estimator, kind=kind)
        return ensemble_of(self.evaluator.contest(study), fit, size, level)

    def advise(self, study: optuna.Study) -> Advice:
        """Advise whether more trials or more repeats are the better use of further time.

        Parameters
        ----------
        study : optuna.Study
            A study of this objective with one value and at least 8 complete trials.

        Returns
        -------
        Advice
            How much trials differ, how much of that is noise, and the advice; ``str`` gives it in
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
            The seed of the order of the points.

        Returns
        -------
        optuna.samplers.GridSampler
            For ``optuna.create_study(sampler=...)``. It stops the study after the last point. It
            does the same as Optuna's grid sampler, in less time if there are many points. If no
            point is left, which ``is_exhausted(study)`` checks, ``optimize`` runs one more trial.

        Raises
        ------
        ValueError
            If the objective has no ``param_grid``, or ``seed`` is no seed.
        """
        if self.evaluator.space.grids is None:
            raise ValueError("grid_sampler needs an objective with a param_grid, got none.")
        try:
            return GridSampler(self.evaluator.space.grids, seed=seed)
        except (TypeError, ValueError) as error:
            raise ValueError(f"seed cannot be used: {error}") from error

    def nested(self, study: optuna.Study, resample: bool = False, level: float = 0.95) -> Nested:
        """Return the score of choosing among the trials of a study, by nested cross-validation.

        ``study.best_value`` looks better than it is, because it is the best of many. Here each
        fold is held out in turn. Models that have not seen this fold are scored on the other
        folds, and the trial with the best mean is then scored on the held-out fold.

        Parameters
        ----------
        study : optuna.Study
            A study with one objective and at least one complete trial of this objective. The
            distinct params of its complete trials are the candidates.
        resample : bool, default=False
            Whether a copy of the sampler suggests as many new trials for each fold. This takes
            the time of the study once per fold. By default the candidates are those of the study,
            although they were suggested by scores that include the fold.
        level : float, default=0.95
            The probability with which the interval covers its target.

        Returns
        -------
        Nested
            The mean, its interval, and how often each trial was chosen.

        Raises
        ------
        ValueError
            If an argument is wrong, the study belongs to another objective, or its folds cannot be
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
        check_choice("resample", resample, (True, False))
        evaluator, objective_on = self.evaluator, None
        contest = evaluator.contest(study)
        evaluator.study_check.directions(study, self.directions)
        if resample:
            size = evaluator.batches.size
            objective_on = partial(TreeCVObjective, evaluator.space, report=None, batch_size=size)
        return nested_score(study, contest, evaluator.run_of, objective_on, level)
