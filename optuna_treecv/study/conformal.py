r"""Prediction intervals and prediction sets from the out-of-fold outputs of a trial.

With the out-of-fold residuals :math:`R_i = |y_i - \hat\mu_{-k(i)}(x_i)|`, where k(i) is the fold
of row i, the interval of CV+ (Barber et al. 2021, eq. 1.7) [1]_ is

.. math:: [q^-\{\hat\mu_{-k(i)}(x) - R_i\}, \; q^+\{\hat\mu_{-k(i)}(x) + R_i\}],

where :math:`q^+` is the :math:`\lceil \text{level} \cdot (n + 1) \rceil`-th smallest of the n
values, and :math:`q^-` the corresponding one from above. Jackknife+ is CV+ with single rows as
folds.

References
----------
.. [1] R. F. Barber, E. J. Candes, A. Ramdas and R. J. Tibshirani, "Predictive inference with the
   jackknife+", Annals of Statistics 49, 2021.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.base import is_regressor
from sklearn.base import RegressorMixin

from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.estimators.base import check_is_sklearn
from optuna_treecv.estimators.base import name_of
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.rows.folds import Folds
from optuna_treecv.study.fitted import FittedEstimator
from optuna_treecv.study.fold_average import check_classes
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features

#: The methods of intervals, and those of prediction sets.
INTERVAL_METHODS = ("cv+", "jackknife+", "minmax", "quantile")
SET_METHODS = ("cv+", "quantile")

# The maximum number of values whose quantiles are computed in one call.
_MAX_VALUES = 2**24

# With at least this number of trials, and more than half as many as there are rows or groups,
# choosing the best trial lowers the coverage visibly.
_MANY_TRIALS = 100


@dataclass(frozen=True, eq=False)
class Calibration:
    """The out-of-fold scores of the tested rows, from which quantiles are computed.

    Attributes
    ----------
    scores : ndarray of shape (n_rows,)
        Residuals, or nonconformity scores of the true classes.
    folds : ndarray of shape (n_rows,), int
        The index of the model that was trained without each row.
    units : ndarray of shape (n_rows,), int
        The exchangeable unit of each row: the row itself, or its group.
    rounding : float
        The rounding error of out-of-fold outputs, by which intervals and sets are enlarged so that
        equal targets stay covered.
    """

    scores: Array
    folds: Array
    units: Array
    rounding: float = 0.0

    @property
    def n_units(self) -> int:
        return len(np.unique(self.units))

    @property
    def weights(self) -> Array:
        """The mass of each row: that of a unit, 1 / (n_units + 1), is divided by its rows."""
        _, numbers, counts = np.unique(self.units, return_inverse=True, return_counts=True)
        return 1 / (counts[numbers] * (len(counts) + 1))

    def check_level(self, level: float) -> float:
        """Return the level, or raise ValueError if there are too few rows for it."""
        level = check_level(level)
        most = self.n_units / (self.n_units + 1)
        if level > most:
            raise ValueError(
                f"level must be at most {most:.4g} with {self.n_units} rows or groups, got "
                f"{level}."
            )
        return level

    def quantile(self, values: Array, level: float) -> Array:
        """Return the quantile of each row of ``values``, of shape (n, n_rows), with infinite rest.

        It is the smallest value such that this value and the smaller ones have at least the mass
        ``level``, of a total of 1 that includes the mass of a further unit at infinity.
        """
        n = values.shape[1]
        if self.n_units == n:
            index = ceil(round(level * (n + 1), 9)) - 1
            return np.asarray(np.partition(values, index, axis=1)[:, index])
        order = values.argsort(axis=1)
        masses = self.weights[order].cumsum(axis=1)
        places = (masses < level - 1e-12).sum(axis=1).clip(max=n - 1)
        rows = np.arange(len(values))
        return np.asarray(values[rows, order[rows, places]])


class _Conformal(FittedEstimator):
    """The base class of conformal predictors, which are created fitted.

    Parameters
    ----------
    estimator : estimator
        The estimator that is fitted on all rows, which predicts.
    models : FoldModels or None
        The models of the folds; None if ``method`` needs none.
    calibration : Calibration
    method : str
    """

    def __init__(
        self,
        estimator: Estimator,
        models: FoldModels | None,
        calibration: Calibration,
        method: str,
    ) -> None:
        self.estimator = estimator
        self.models = models
        self.calibration = calibration
        self.method = method

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803  # as in scikit-learn
        """Return the estimator, the method and the numbers of models and rows."""
        models = "" if self.models is None else f", {len(self.models)} fold models"
        n_rows = len(self.calibration.scores)
        return f"{type(self).__name__}({self.estimator!r}, {self.method!r}{models}, {n_rows} rows)"

    def predict(self, X: Features) -> Array:
        """Return the predictions of the estimator that is fitted on all rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.

        Returns
        -------
        ndarray of shape (n_rows,)
            The predictions.
        """
        return np.asarray(self.estimator.predict(X))


class ConformalRegressor(RegressorMixin, _Conformal):
    """A fitted regressor with prediction intervals; ``TreeCVObjective.conformal`` creates it.

    The coverage of "cv+", "jackknife+" and "minmax" is guaranteed for exchangeable rows (or
    groups) and for a candidate that was not chosen by their scores: a new target lies in the
    interval with a probability of at least 1 - 2 (1 - level), for "minmax" of at least level; in
    practice, it is near ``level``. "quantile" has no guarantee, and falls below ``level`` with few
    rows. If the candidate is the best of several, no guarantee is exact. Kept outputs are rounded
    to float32. Therefore, intervals are enlarged by their rounding error, so that they contain
    targets at their ends.

    Parameters
    ----------
    estimator : estimator
        The regressor that is fitted on all rows.
    models : FoldModels or None
        The models of the folds; None for "quantile".
    calibration : Calibration
        The out-of-fold residuals.
    method : {"cv+", "jackknife+", "minmax", "quantile"}
        How intervals are computed.
    """

    def predict_interval(self, X: Features, level: float = 0.9) -> Array:
        """Return prediction intervals.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.
        level : float, default=0.9
            The coverage to aim at.

        Returns
        -------
        ndarray of shape (n_rows, 2)
            The lower and the upper ends, in the unit of y.

        Raises
        ------
        ValueError
            If ``level`` is not between 0 and 1, or too high for the number of rows or groups.
        """
        calibration, level = self.calibration, self.calibration.check_level(level)
        residuals = calibration.scores
        if self.models is None or self.method == "minmax":
            margin = calibration.quantile(residuals[None], level)[0] + calibration.rounding
            outputs = self.predict(X)[None] if self.models is None else self.models.predict(X)
            return np.column_stack([outputs.min(axis=0) - margin, outputs.max(axis=0) + margin])
        ends: list[Array] = []
        for start, stop in _batches(_count(X), len(residuals)):
            of_rows = self.models.predict(_rows(X, start, stop)).T[:, calibration.folds]
            low = -calibration.quantile(residuals - of_rows, level)
            ends.append(np.column_stack([low, calibration.quantile(of_rows + residuals, level)]))
        return np.concatenate(ends) + [-calibration.rounding, calibration.rounding]


class ConformalClassifier(ClassifierMixin, _Conformal):
    """A fitted classifier with prediction sets; ``TreeCVObjective.conformal`` creates it.

    The guarantees are those of ``ConformalRegressor``.

    Parameters
    ----------
    estimator : estimator
        The classifier that is fitted on all rows.
    models : FoldModels or None
        The models of the folds; None for "quantile".
    calibration : Calibration
        The out-of-fold nonconformity scores.
    method : {"cv+", "quantile"}
        How sets are computed.
    conformity_score : {"lac", "aps"}
        The nonconformity score of a class: 1 minus its probability ("lac", Sadinle, Lei &
        Wasserman 2019), or the total probability of the classes that are at least as probable
        ("aps", Romano, Sesia & Candes 2020, without random numbers).
    """

    def __init__(
        self,
        estimator: Estimator,
        models: FoldModels | None,
        calibration: Calibration,
        method: str,
        conformity_score: str,
    ) -> None:
        super().__init__(estimator, models, calibration, method)
        self.conformity_score = conformity_score

    @property
    def classes_(self) -> Array:
        """The classes, in sorted order."""
        return np.asarray(self.estimator.classes_)

    def predict_proba(self, X: Features) -> Array:
        """Return the probabilities of the estimator that is fitted on all rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            The probabilities.
        """
        return np.asarray(self.estimator.predict_proba(X))

    def predict_set(self, X: Features, level: float = 0.9) -> Array:
        """Return prediction sets.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.
        level : float, default=0.9
            The coverage to aim at.

        Returns
        -------
        ndarray of shape (n_rows, n_classes), bool
            Whether each class is in the set, in the order of ``classes_``.

        Raises
        ------
        ValueError
            If ``level`` is not between 0 and 1, or too high for the number of rows or groups.
        """
        calibration, level = self.calibration, self.calibration.check_level(level)
        if self.models is None:
            largest = calibration.quantile(calibration.scores[None], level)[0]
            scores = nonconformity(self.predict_proba(X), self.conformity_score)
            return scores <= largest + calibration.rounding
        masses, weights = np.zeros((_count(X), len(self.classes_))), calibration.weights
        for fold, model in enumerate(self.models):
            # The mass of the rows of this fold with smaller scores than each class.
            is_fold = calibration.folds == fold
            order = calibration.scores[is_fold].argsort()
            scores = calibration.scores[is_fold][order]
            totals = np.append(0, weights[is_fold][order].cumsum())
            of_classes = nonconformity(model.predict_proba(X), self.conformity_score)
            of_classes -= calibration.rounding
            masses += totals[np.searchsorted(scores, of_classes, side="left")]
        return masses < level - 1e-12


def nonconformity(probabilities: Array, name: str) -> Array:
    """Return the nonconformity scores of all classes, of shape (n_rows, n_classes)."""
    if name == "lac":
        return 1 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    totals = np.take_along_axis(probabilities, order, axis=1).cumsum(axis=1, dtype=np.float64)
    scores = np.empty_like(totals)
    np.put_along_axis(scores, order, totals, axis=1)
    return scores


def conformal_of(
    run: Run,
    outputs_of: Callable[[str], Array],
    fit: Callable[[], Estimator],
    method: str,
    conformity_score: str,
    n_trials: int,
) -> ConformalRegressor | ConformalClassifier:
    """Return a conformal predictor for the candidate of a run.

    Parameters
    ----------
    run : Run
    outputs_of : callable
        (response method) -> the out-of-fold outputs of the tested rows, in the order of
        ``Tested.rows``.
    fit : callable
        () -> the estimator, fitted on all rows.
    method, conformity_score : str
        As for ``TreeCVObjective.conformal``.
    n_trials : int
        The number of trials from which the candidate was chosen.
    """
    request, classes = run.request, run.request.classes
    check_choice("method", method, INTERVAL_METHODS if classes is None else SET_METHODS)
    check_choice("conformity_score", conformity_score, ("lac", "aps"))
    data, cross_validation = request.data, request.cross_validation
    if classes is None and not is_regressor(run.estimator):
        raise ValueError(
            f"conformal needs a classifier or a regressor, got {name_of(run.estimator)}."
        )
    if classes is None and cross_validation.n_targets > 1:
        raise ValueError(f"y must have one column for intervals, got shape {data.y.shape}.")
    if classes is not None and not hasattr(run.estimator, "predict_proba"):
        raise ValueError(
            f"prediction sets need an estimator with predict_proba; {name_of(run.estimator)} has "
            "none."
        )
    if data.score_weights is not None:
        raise ValueError(
            "sample_weight must be None for conformal predictions, because weighted rows are not "
            "exchangeable."
        )
    tested = cross_validation.tested(run.method_name)
    if method != "quantile" and tested.is_ordered:
        raise ValueError(
            f"method must be 'quantile' for time-ordered splits, got {method!r}: fold models that "
            "were trained on earlier rows are not exchangeable."
        )
    check_is_sklearn("conformal is not available", run.estimator)
    run.check_each_row_is_tested_once()
    outputs = models = None
    if method == "jackknife+" and not cross_validation.tests_single_rows:
        run = _leave_one_out(run, has_groups=tested.groups is not None)
        tested = run.request.cross_validation.tested(run.method_name)
        models = run.fold_models()
        outputs = models.predict_rows(
            data.X_given, in_given_order(tested.fold_numbers, tested.rows)
        )
        outputs = (run.predict("predict") if outputs is None else outputs)[tested.rows]
    else:
        outputs = outputs_of("predict" if classes is None else "predict_proba")
    if classes is None:
        scores = np.abs(np.asarray(data.y).reshape(-1)[tested.rows] - outputs)
    else:
        codes = data.codes()[tested.rows]
        scores = nonconformity(outputs, conformity_score)[np.arange(len(codes)), codes]
    units, kind = tested.units()
    rounding = float(np.finfo(outputs.dtype).eps * np.abs(outputs).max())
    calibration = Calibration(scores.astype(np.float64), tested.fold_numbers, units, rounding)
    if n_trials >= _MANY_TRIALS and 2 * n_trials > calibration.n_units:
        warn_caller(
            "the coverage may fall below its level by some percent, because the trial is the best "
            f"of {n_trials} trials on {calibration.n_units} {kind}; use more rows or fewer "
            "trials."
        )
    if models is None and method != "quantile":
        models = run.fold_models()
    if models is not None and classes is not None:
        check_classes(models, "prediction sets")
    fitted = fit() if models is None or models.fitted is None else models.fitted
    if classes is None:
        return ConformalRegressor(fitted, models, calibration, method)
    return ConformalClassifier(fitted, models, calibration, method, conformity_score)


def _leave_one_out(run: Run, has_groups: bool) -> Run:
    """Return a run of the same candidate with leave-one-out."""
    if has_groups:
        raise ValueError(
            "method must be 'cv+' with groups, because the groups of rows must not be divided, "
            "got 'jackknife+'."
        )
    cut = run.plan.repeats[0].cut
    folds = Folds(cut.order, cut.n_rows)
    other = run_for(run.request.cross_validation.with_splits([folds]), run.estimator)
    capabilities = other.plan.capabilities
    if not (capabilities.evaluates_jointly or capabilities.is_incremental):
        raise ValueError(
            f"method must be 'cv+' for {name_of(run.estimator)}, because leave-one-out would fit "
            f"{cut.n_rows:,} models, got 'jackknife+'."
        )
    return other


def _count(X: Features) -> int:
    return X.shape[0] if hasattr(X, "shape") else len(X)


def _rows(X: Features, start: int, stop: int) -> Features:
    return X.iloc[start:stop] if hasattr(X, "iloc") else X[start:stop]


def _batches(n_rows: int, n_values: int) -> list[tuple[int, int]]:
    """Return the bounds of batches of rows, with at most 2^24 values in total each."""
    size = max(1, _MAX_VALUES // n_values)
    return [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
