"""The objective for ``study.optimize``: it cross-validates a trial and returns its value."""

from contextlib import suppress
from functools import partial
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.html import html_table
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.settings import check_choice
from optuna_treecv.crossval.evaluate import explain
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.estimators.base import check_is_sklearn
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.study import out_of_fold
from optuna_treecv.study.advice import Advice
from optuna_treecv.study.advice import advice_of
from optuna_treecv.study.advice import warn_of_edges
from optuna_treecv.study.calibration import calibrated
from optuna_treecv.study.calibration import CalibrationMethod
from optuna_treecv.study.calibration import method_to_calibrate
from optuna_treecv.study.choice import complete_trials
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.conformal import conformal_of
from optuna_treecv.study.conformal import ConformalClassifier
from optuna_treecv.study.conformal import ConformalRegressor
from optuna_treecv.study.ensemble import ensemble_of
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.fold_average import average_models
from optuna_treecv.study.grids import GridSampler
from optuna_treecv.study.honest import Honest
from optuna_treecv.study.honest import honest_of
from optuna_treecv.study.nested import Nested
from optuna_treecv.study.nested import nested_score
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.space import check_given
from optuna_treecv.study.space import Params
from optuna_treecv.study.space import Space
from optuna_treecv.study.stacking import stacked
from optuna_treecv.study.threshold import choose_threshold
from optuna_treecv.study.threshold import Threshold
from optuna_treecv.study.threshold import with_threshold
from optuna_treecv.types import AnyTrial
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue


class TreeCVObjective:
    """Objective that evaluates trials by cross-validation; ``treecv_objective`` creates it.

    Attributes
    ----------
    directions : list of {"minimize", "maximize"}
        The directions that a study must have: one, or one for each score if ``optimize`` is a
        list.
    param_grid : dict of str to list, list of such dicts, or None
        The grid as given, but with the values that trials store: numbers, strings, bools and None
        are unchanged, whereas other values, and values that differ only in type, are replaced by
        strings. If there are several dicts, each of them has all parameters.
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
        """Return the HTML representation for notebooks."""
        searched = self.param_distributions.items()
        rows: dict[str, object] = {f"searched: {name}": axis for name, axis in searched}
        rows["direction"] = ", ".join(self.directions)
        with suppress(ValueError):  # if a callable creates the estimators, there is none yet
            what, *steps = self.explain().splitlines()
            rows |= {"folds": self.evaluator.cross_validation.folds_in_words, "each trial": what}
            rows["steps"] = "; ".join(step.strip() for step in steps)
        return html_table("TreeCVObjective", rows)

    def __str__(self) -> str:
        """Return the scores and folds, the search space, and how a trial is evaluated."""
        if self.evaluator.space.example is None:
            return repr(self)
        names = self.evaluator.run_at(None).request.scoring.optimized_names
        goals = map(" ".join, zip(self.directions, names, strict=True))
        folds = self.evaluator.cross_validation.folds_in_words
        searched = (f"searched: {name}, {axis}" for name, axis in self.param_distributions.items())
        return "\n".join([f"{', '.join(goals)} over {folds}", *searched, self.explain()])

    def __repr__(self) -> str:
        """Return a short description of the search."""
        example, direction = self.evaluator.space.example, ", ".join(self.directions)
        if example is None:  # a callable creates the estimators, so there is none yet
            return f"TreeCVObjective(<callable>, direction={direction!r})"
        return (
            f"TreeCVObjective({type(example).__name__}, "
            f"searched=<{', '.join(self.param_distributions)}>, "
            f"cv={self.evaluator.cross_validation.folds_in_words!r}, direction={direction!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        # The state of studies and trials is not pickled, because it contains locks.
        evaluator, batches = self.evaluator, self.evaluator.batches
        options = evaluator.report, evaluator.database, batches.size, batches.leases
        return type(self), (evaluator.space, evaluator.cross_validation, *options)

    def pruner(self) -> optuna.pruners.BasePruner:
        """Return a pruner that is suitable for the reports of this objective.

        Returns
        -------
        optuna.pruners.BasePruner
            For ``optuna.create_study(pruner=...)``: a ``RacingPruner``, or a ``NopPruner`` if the
            objective reports nothing.

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
        if self.evaluator.report is None or settings.no_report_reason is not None:
            return optuna.pruners.NopPruner()
        return RacingPruner()

    @property
    def n_splits(self) -> int:
        """The number of folds, over all repeats."""
        return self.evaluator.n_splits

    @property
    def param_distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter; empty if a callable suggests the parameters."""
        return self.evaluator.param_distributions

    def fingerprint(self) -> str:
        """Return a short digest of the data, the folds, the scoring and the method.

        Returns
        -------
        str
            The values of trials are comparable if their objectives have the same fingerprint.

        Raises
        ------
        ValueError
            If a callable creates the estimators, because the default scoring is then unknown.
        """
        return self.evaluator.fingerprint()

    @property
    def direction(self) -> str:
        """The direction that a study of this objective must have: "minimize" or "maximize"."""
        if len(self.directions) > 1:
            raise AttributeError(
                f"direction is not available, because this objective has {len(self.directions)} "
                "values; use optuna.create_study(directions=objective.directions) instead."
            )
        return self.directions[0]

    def __call__(self, trial: AnyTrial) -> float | tuple[float, ...]:
        """Cross-validate a trial and return its value.

        Parameters
        ----------
        trial : optuna.trial.Trial, FixedTrial or FrozenTrial
            The trial, which suggests the parameters and stores the results.

        Returns
        -------
        float, or tuple of float if ``optimize`` is a list
            The mean of the fold scores, which is never NaN. The score of a diverged fold is 1 for
            "error", inf for other losses and -inf for scorers.

        Raises
        ------
        optuna.TrialPruned
            If ``report`` is set and the study's pruner prunes the trial.
        ValueError
            If the direction of the study does not fit the scoring, or the parameters are invalid.
        """
        result = self.evaluate_trial(trial)
        scoring = self.evaluator.cross_validation.settings.scored_by
        if scoring is None or not scoring.returns_tuple:
            return result.mean
        return tuple(result.scores[name].mean for name in scoring.optimized_names)

    def evaluate_trial(self, trial: AnyTrial) -> CVResult:
        """Cross-validate a trial and return the full result.

        Parameters
        ----------
        trial : optuna.trial.Trial, FixedTrial or FrozenTrial
            The trial, which suggests the parameters and stores the results.

        Returns
        -------
        CVResult
            The result, whose ``mean`` is the value that a call of the objective returns.

        Raises
        ------
        optuna.TrialPruned, ValueError
            As for a call of the objective.
        """
        return self.evaluator.evaluate(trial)

    def check_study(self, study: optuna.Study) -> None:
        """Raise an error if the values of a study are not comparable with those of this objective.

        Without this check, trials with other data, folds or scoring only cause a warning.

        Parameters
        ----------
        study : optuna.Study
            The study to continue.

        Raises
        ------
        ValueError
            If the direction of the study, or the data, folds or scoring of its trials, differ from
            those of this objective.
        """
        self.evaluator.check_study(study)

    def evaluate(self, params: Params) -> CVResult:
        """Cross-validate the estimator with given parameter values, without a study.

        Parameters
        ----------
        params : dict
            A value for each searched parameter. Strings that trials store in place of values are
            also accepted.

        Returns
        -------
        CVResult
            The result, with the same scores as for a trial with these parameters.

        Raises
        ------
        ValueError
            If the value of a parameter is missing or invalid.
        """
        check_given("params", params, ())
        return self.evaluator.run_at(params).finish()

    def values_of(self, params: Params) -> dict[str, ParamValue]:
        """Return the parameter values of a trial in the form that ``set_params`` accepts.

        Parameters
        ----------
        params : dict
            The ``params`` of a trial, such as ``study.best_params``.

        Returns
        -------
        dict
            The parameters, in which strings that trials store are replaced by the original values.

        Raises
        ------
        ValueError
            If the value of a parameter is missing.
        """
        return self.evaluator.values_of(params)

    def explain(self, params: Params | None = None) -> str:
        """Explain which method evaluates the estimator, for what reason, and at what cost.

        Parameters
        ----------
        params : dict, default=None
            A value for each searched parameter; None for the estimator as given.

        Returns
        -------
        str
            A few sentences, a line for each step of a Pipeline, and a line for each faster method
            that is not possible, with the reason.

        Raises
        ------
        ValueError
            If the value of a parameter is missing or invalid.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_diabetes(return_X_y=True)
        >>> objective = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0]})
        >>> print(objective.explain().partition(". ")[0])
        Ridge is evaluated by method='exact', because its models are computed from sums over rows
        """
        return explain(self.evaluator.cross_validation, *self.evaluator.space.candidate(params))

    def best_estimator(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        rule: Rule = "best",
        simpler: Simpler | None = None,
        kind: Literal["refit", "folds", "kfold_average"] = "refit",
        threshold: Threshold | None = None,
        calibrate: CalibrationMethod | None = None,
    ) -> Estimator:
        """Return the fitted estimator of the best trial, or of the trial that a rule chooses.

        A warning is emitted if a parameter value of the trial is at the edge of its range.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one complete trial of this objective, or a trial of this
            objective.
        rule : {"best", "one_se"} or callable, default="best"
            How the trial is chosen from the study, see ``optuna_treecv.select``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            Used if ``rule`` is "one_se": which values make a model simpler, see
            ``optuna_treecv.select``.
        kind : {"refit", "folds", "kfold_average"}, default="refit"
            "refit" fits the estimator on all rows, which incremental learners process in the order
            of the tree. "folds" returns an ``optuna_treecv.results.FoldAverage``, which predicts
            the mean of the fold models; it takes the memory of all of them. "kfold_average"
            cross-validates the trial once more and averages the models of its folds, see
            ``CVResult.kfold_estimator``; this is possible only for linear learners that are
            evaluated by TreeCV.
        threshold : Threshold, default=None
            The decision threshold that ``threshold`` has chosen for this trial.
        calibrate : {"sigmoid", "isotonic", "temperature"}, default=None
            Calibrates the probabilities of a classifier on the out-of-fold outputs of the trial,
            with the calibrator of ``CalibratedClassifierCV(ensemble=False)``. It is fitted on the
            decision values if the folds are evaluated jointly, as those of logistic regression
            are, else on the probabilities, if there are any. None: no calibration.

        Returns
        -------
        estimator
            The fitted estimator with the parameters of the trial, within a
            ``FixedThresholdClassifier`` of scikit-learn if a threshold is given. During the fit,
            each ``random_state=None`` is replaced by the seed of the objective.

        Raises
        ------
        ValueError
            If an argument is invalid, or the model diverges.
        """
        check_choice("kind", kind, ("refit", "folds", "kfold_average"))
        evaluator = self.evaluator
        trial, candidate = evaluator.trial_and_candidate(study, rule, simpler)
        lists = {name: axis.codes for name, axis in evaluator.space.axes.items() if axis.codes}
        if threshold is not None and not isinstance(threshold, Threshold):
            raise ValueError(
                "threshold must be a Threshold that objective.threshold returns, got "
                f"{type(threshold).__name__}."
            )
        if threshold is not None and threshold.trial.number != trial.number:
            raise ValueError(
                f"threshold must be that of trial {trial.number}, got that of trial "
                f"{threshold.trial.number}."
            )
        if threshold is not None and calibrate is not None:
            raise ValueError(
                "calibrate must be None if threshold is given, because the threshold was chosen "
                f"on outputs without calibration, got {calibrate!r}."
            )
        calibrator = None
        if calibrate is not None:
            run = run_for(evaluator.cross_validation, *candidate)
            method = method_to_calibrate(run)
            run.check_each_row_is_tested_once()
            outputs = out_of_fold.as_given(run, evaluator.oof_outputs(trial, run, method))
            calibrator = partial(calibrated, run, outputs, method, calibrate)
        warn_of_edges(study, trial, lists)
        if kind == "refit":
            fitted = run_for(evaluator.cross_validation, *candidate, is_scored=False).fit()
        elif kind == "folds":
            check_is_sklearn("kind must be 'refit'", candidate[0])
            fitted = average_models(run_for(evaluator.cross_validation, *candidate).fold_models())
        else:
            average = "kind must be 'refit'"  # the advice in the error if there is no average
            run = run_for(evaluator.cross_validation, *candidate, wants_average=average)
            fitted = run.finish().kfold_estimator()
        if calibrator is not None:
            return calibrator(fitted)
        if threshold is None:
            return fitted
        return with_threshold(fitted, threshold, evaluator.cross_validation.data)

    def predict_oof(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        method: Literal[
            "predict", "decision_function", "predict_proba", "score_samples"
        ] = "predict",
        as_frame: bool = False,
    ) -> Opaque:
        """Return the out-of-fold predictions of the best trial of a study, or of a given trial.

        Each row is predicted by the model that was trained without its fold. This needs no
        training if the outputs of the trial were kept, see ``keep_outputs`` of
        ``treecv_objective``, or if the folds are evaluated jointly, as those of ridge and logistic
        regression are. Otherwise, all folds are trained once more, and a warning says so.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one complete trial of this objective, or a trial of this
            objective.
        method : {"predict", "decision_function", "predict_proba", "score_samples"}, \
                default="predict"
            The method of the estimator that computes the predictions.
        as_frame : bool, default=False
            Whether to return a data frame, with the columns "repeat" and "fold".

        Returns
        -------
        ndarray of shape (n_rows,), (n_rows, n_classes) or (n_rows, n_targets), or DataFrame
            The predictions, in the order of the rows of X. Numbers that were kept are rounded to
            float32. The data frame has the index of X and a row for each test of a row, so that
            rows may be tested several times or not at all.

        Raises
        ------
        ValueError
            If an argument is invalid, if a row is not in exactly one test set and ``as_frame`` is
            false, or if a model diverges and ``method="predict"`` must return labels.
        ImportError
            If ``as_frame`` is true and pandas is not installed.

        See Also
        --------
        optuna_treecv.tree_cross_val_predict : Out-of-fold predictions without a study.

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
        check_choice("as_frame", as_frame, (True, False))
        evaluator = self.evaluator
        trial, candidate = evaluator.trial_and_candidate(study)
        run = run_for(evaluator.cross_validation, *candidate)
        run.check_predictions(method, "method")
        if not as_frame:
            run.check_each_row_is_tested_once()
        if run.plan.capabilities.computes_outputs:  # not rounded
            predicted = out_of_fold.predict_tested(run, method)
        else:
            outputs = evaluator.oof_outputs(trial, run, method)
            predicted = out_of_fold.as_labels(run, outputs, method)
        if as_frame:
            return out_of_fold.as_frame(run, predicted, method)
        return out_of_fold.as_given(run, predicted)

    def fold_models(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        rule: Rule = "best",
        simpler: Simpler | None = None,
    ) -> FoldModels:
        """Return the fitted models of all folds of the best trial, or of a given trial.

        Linear models that are evaluated from sums over rows or by Newton's method are those that
        were scored. Other models are trained once more, with the same result.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one complete trial of this objective, or a trial of this
            objective.
        rule : {"best", "one_se"} or callable, default="best"
            How the trial is chosen from the study, see ``best_estimator``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            Used if ``rule`` is "one_se", see ``best_estimator``.

        Returns
        -------
        FoldModels
            A sequence with a fitted estimator for each fold, in the order of the folds, one repeat
            after the other. Its method ``predict(X)`` returns the predictions of all models, of
            shape (n_models, n_rows). Linear models of the given columns are stored as arrays.

        Raises
        ------
        ValueError
            If an argument is invalid, if a model diverges, if linear models take more than 1 GiB,
            or if there are more than 10,000 models of another kind.

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
        >>> models = objective.fold_models(study)
        >>> len(models), models.predict(X).shape
        (10, (10, 442))
        """
        _, candidate = self.evaluator.trial_and_candidate(study, rule, simpler)
        return run_for(self.evaluator.cross_validation, *candidate).fold_models()

    def threshold(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        metric: object = "balanced_accuracy",
        *,
        constraint: str | None = None,
        pos_label: object = None,
        rule: Rule = "best",
        simpler: Simpler | None = None,
        level: float = 0.95,
    ) -> Threshold:
        """Choose the decision threshold of a binary classifier on its out-of-fold outputs.

        The outputs are those of the trial, if they are known, see ``keep_outputs`` of
        ``treecv_objective``. Otherwise, all folds are trained once more, and a warning says so.
        ``TunedThresholdClassifierCV`` of scikit-learn would fit k models for the same choice.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one complete trial of this objective, or a trial of this
            objective.
        metric : str, scorer or array-like of shape (2, 2), default="balanced_accuracy"
            What the threshold maximizes: the name of a scorer of labels, such as "f1", a scorer
            that ``make_scorer`` made of a metric of labels with ``sample_weight``, or the costs
            ``[[tn, fp], [fn, tp]]`` of a row, whose mean is minimized.
        constraint : str, default=None
            A condition that the threshold must satisfy on the out-of-fold labels, such as
            "recall >= 0.9".
        pos_label : int, float, bool or str, default=None
            The positive class. None for the second one in sorted order.
        rule : {"best", "one_se"} or callable, default="best"
            How the trial is chosen from the study, see ``best_estimator``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            Used if ``rule`` is "one_se", see ``best_estimator``.
        level : float, default=0.95
            The level of the interval of the threshold.

        Returns
        -------
        Threshold
            The threshold, its interval, its score and the curve of all thresholds. Pass it to
            ``best_estimator`` for the fitted classifier.

        Raises
        ------
        ValueError
            If an argument is invalid, if there are not two classes, or if a row is not in exactly
            one test set.

        Examples
        --------
        >>> import optuna
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> from optuna_treecv import treecv_objective
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model, grid = LogisticRegression(), {"C": [0.001, 0.1]}
        >>> objective = treecv_objective(model, X, y, param_grid=grid, scoring="log_loss")
        >>> study = optuna.create_study(sampler=objective.grid_sampler())
        >>> study.optimize(objective)
        >>> found = objective.threshold(study, "f1", constraint="recall >= 0.99")
        >>> found.threshold < 0.5
        True
        >>> model = objective.best_estimator(study, threshold=found)
        >>> type(model).__name__
        'FixedThresholdClassifier'
        """
        evaluator = self.evaluator
        trial, candidate = evaluator.trial_and_candidate(study, rule, simpler)
        run = run_for(evaluator.cross_validation, *candidate)
        run.check_each_row_is_tested_once()
        outputs_of = partial(evaluator.oof_outputs, trial, run)
        return choose_threshold(run, trial, outputs_of, metric, constraint, pos_label, level)

    def conformal(
        self,
        study: optuna.Study | optuna.trial.FrozenTrial,
        method: Literal["cv+", "jackknife+", "minmax", "quantile"] = "cv+",
        *,
        conformity_score: Literal["lac", "aps"] = "lac",
        rule: Rule = "best",
        simpler: Simpler | None = None,
    ) -> ConformalRegressor | ConformalClassifier:
        """Return a fitted estimator with prediction intervals, or with prediction sets.

        They are computed from the out-of-fold predictions and the fold models of the best trial,
        by CV+ or jackknife+ (Barber et al. 2021). Groups of rows are exchangeable units.

        Parameters
        ----------
        study : optuna.Study or optuna.trial.FrozenTrial
            A study with at least one complete trial of this objective, or a trial of this
            objective.
        method : {"cv+", "jackknife+", "minmax", "quantile"}, default="cv+"
            "cv+" uses the predictions of all fold models. "jackknife+" is "cv+" for leave-one-out,
            which is evaluated once more if the folds have several rows; only ridge regression,
            least squares and incremental learners support it for many rows. "minmax" extends from
            the smallest to the largest prediction of the fold models. "quantile" is the prediction
            of the estimator that is fitted on all rows, plus and minus a quantile of the
            residuals; it needs no fold models. Classifiers support "cv+" and "quantile".
        conformity_score : {"lac", "aps"}, default="lac"
            For classifiers, how well a class conforms: by its probability ("lac"), or by the total
            probability of the classes that are at least as probable ("aps").
        rule : {"best", "one_se"} or callable, default="best"
            How the trial is chosen from the study, see ``best_estimator``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            Used if ``rule`` is "one_se", see ``best_estimator``.

        Returns
        -------
        ConformalRegressor or ConformalClassifier
            The fitted estimator. ``predict_interval(X, level)`` of a regressor returns the lower
            and upper ends, ``predict_set(X, level)`` of a classifier returns a mask of classes.

        Raises
        ------
        ValueError
            If an argument is invalid, if there are sample weights or several targets, if a row is
            not in exactly one test set, or for time-ordered splits unless ``method="quantile"``.

        References
        ----------
        R. F. Barber, E. J. Candes, A. Ramdas and R. J. Tibshirani, "Predictive inference with the
        jackknife+", Annals of Statistics 49, 2021.

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
        >>> model = objective.conformal(study)
        >>> low, high = model.predict_interval(X, level=0.9).T
        >>> 0.88 < ((low <= y) & (y <= high)).mean() < 0.94
        True
        """
        evaluator = self.evaluator
        trial, candidate = evaluator.trial_and_candidate(study, rule, simpler)
        run = run_for(evaluator.cross_validation, *candidate)
        n_trials = len(complete_trials(study, None)) if isinstance(study, optuna.Study) else 1
        outputs_of = partial(evaluator.oof_outputs, trial, run)
        fit = run_for(evaluator.cross_validation, *candidate, is_scored=False).fit
        return conformal_of(run, outputs_of, fit, method, conformity_score, n_trials)

    def honest(
        self,
        study: optuna.Study,
        rule: Literal["best", "one_se"] = "best",
        simpler: Simpler | None = None,
        level: float = 0.95,
        score: str | None = None,
    ) -> Honest:
        """Return the score of the chosen trial, corrected for the optimism of choosing the best.

        The best of many noisy values is better than its expectation. The correction repeats the
        choice on bootstrap samples of the scores that the objective keeps in memory. It needs no
        training.

        Parameters
        ----------
        study : optuna.Study
            A study of this objective with at least one complete trial. Pruned trials are ignored,
            because they could not have been chosen.
        rule : {"best", "one_se"}, default="best"
            How the trial is chosen, see ``optuna_treecv.select``.
        simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
            Used if ``rule`` is "one_se", see ``optuna_treecv.select``.
        level : float, default=0.95
            The coverage probability of the interval.
        score : str, default=None
            If ``optimize`` is a list, the name of the score by which the trial is chosen. Must be
            None otherwise.

        Returns
        -------
        Honest
            The corrected score, its interval, and the value of the trial.

        Raises
        ------
        ValueError
            If an argument is invalid, or if neither the scores of rows nor the scores of several
            folds are known. For time-ordered splits, such as ``TimeSeriesSplit`` and purged folds,
            also if the scores of rows are unknown, if test sets overlap, if there are fewer than
            100 test rows, or if blocks of consecutive test rows are too strongly correlated.

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
        stack: Estimator = None,
        passthrough: bool = False,
    ) -> Estimator:
        """Return a fitted ensemble of a study's trials, which is often better than the best trial.

        The first members are the 5 best trials. Further members are selected one after another
        from the 20 best trials: in each step, the trial that gives the averaged out-of-fold
        outputs the best score (Caruana et al. 2004). A trial may be selected several times. The
        selection needs no training. Each member is then fitted once.

        Parameters
        ----------
        study : optuna.Study
            A single-objective study of this objective with at least one complete trial.
        size : int, default=25
            The maximum number of members, counting repetitions; at most 1,000.
        kind : {"refit", "kfold_average"}, default="refit"
            "refit" fits each member on all rows; "kfold_average" averages the models of its folds,
            see ``best_estimator``.
        level : float, default=0.95
            The coverage probability of ``honest_interval_``.
        stack : estimator, default=None
            A final estimator, such as ``Ridge()`` or ``LogisticRegression()``, that is fitted on
            the out-of-fold outputs of the best trials, of at most 20, instead of averaging
            selected ones (stacked generalization, Wolpert 1992).
        passthrough : bool, default=False
            Whether the final estimator gets the columns of X, too.

        Returns
        -------
        VotingClassifier, VotingRegressor, StackingClassifier or StackingRegressor
            The fitted ensemble. Its members are named "trial_0" and so on. It has three additional
            attributes: ``oof_score_`` is the score of the averaged out-of-fold outputs,
            ``honest_score_`` is this score corrected for the selection of the members, and
            ``honest_interval_`` is the interval (low, high) of ``honest_score_``. With ``stack``,
            both scores are that of the final estimator, cross-validated on the same folds.

        Raises
        ------
        ValueError
            If an argument is invalid, or no out-of-fold outputs are known.

        References
        ----------
        R. Caruana, A. Niculescu-Mizil, G. Crew and A. Ksikes, "Ensemble selection from libraries
        of models", ICML 2004.

        D. H. Wolpert, "Stacked generalization", Neural Networks 5, 1992.

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
        check_choice("passthrough", passthrough, (True, False))
        fit, contest = partial(self.best_estimator, kind=kind), self.evaluator.contest(study)
        if stack is not None:
            return stacked(contest, fit, size, level, stack, passthrough)
        return ensemble_of(contest, fit, size, level)

    def advise(self, study: optuna.Study) -> Advice:
        """Advise whether to spend further time on more trials or on more repeats per trial.

        Parameters
        ----------
        study : optuna.Study
            A single-objective study of this objective with at least 8 complete trials.

        Returns
        -------
        Advice
            By how much the trials differ, how much of this is noise, and the advice. Use ``str``
            to convert it to two sentences.

        Raises
        ------
        ValueError
            If fewer than 8 trials have known fold scores, or there is only one fold.

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
            The sampler, for ``optuna.create_study(sampler=...)``. It stops the study after the
            last point. It is faster than Optuna's grid sampler if there are many points. If all
            points have been visited, ``optimize`` still runs one more trial; check
            ``is_exhausted(study)`` to avoid it.

        Raises
        ------
        ValueError
            If the objective has no ``param_grid``, or ``seed`` is invalid.
        """
        if self.evaluator.space.grids is None:
            raise ValueError(
                "grid_sampler needs an objective with a param_grid, but this objective has none."
            )
        try:
            return GridSampler(self.evaluator.space.grids, seed=seed)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"seed must be None or an integer that NumPy accepts as a seed: {error}"
            ) from error

    def nested(self, study: optuna.Study, resample: bool = False, level: float = 0.95) -> Nested:
        """Estimate the score of the whole tuning procedure by nested cross-validation.

        ``study.best_value`` is optimistic, because it is the best of many values. Here, each fold
        is held out in turn. The trials are compared by the scores, on the other folds, of models
        that were not trained on the held-out fold. The trial with the best mean is then scored on
        the held-out fold.

        Parameters
        ----------
        study : optuna.Study
            A single-objective study with at least one complete trial of this objective. The
            candidates are the distinct parameters of its complete trials.
        resample : bool, default=False
            Whether a copy of the sampler suggests the same number of new trials for each held-out
            fold, which takes the time of one study per fold. If False, the candidates are the
            trials of the study, although the sampler has suggested them by scores that include the
            held-out fold.
        level : float, default=0.95
            The coverage probability of the interval.

        Returns
        -------
        Nested
            The mean score, its interval, and how often each trial was chosen.

        Raises
        ------
        ValueError
            If an argument is invalid, if the study was run with another objective, or if nested
            cross-validation is impossible: with fewer than 3 or more than 100 folds, for time
            series, for overlapping test sets, or for a pooled score.

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
