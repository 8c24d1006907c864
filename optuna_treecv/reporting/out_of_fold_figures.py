"""Figures of the out-of-fold outputs of a trial: threshold and calibration, or residuals."""

from typing import Any

import numpy as np
import optuna
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from optuna_treecv.reporting.figures import BLUE
from optuna_treecv.reporting.figures import finish
from optuna_treecv.reporting.figures import GREEN
from optuna_treecv.reporting.figures import ORANGE
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.threshold import Threshold

# The number of groups of rows in a calibration curve.
_N_GROUPS = 10

# The levels of the coverage curve.
_LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])

# The maximum number of rows whose residuals are drawn.
_MAX_POINTS = 2_000


def plot_out_of_fold(
    objective: TreeCVObjective,
    study: optuna.Study | optuna.trial.FrozenTrial,
    metric: Any = "balanced_accuracy",
) -> go.Figure:
    """Plot the out-of-fold outputs of the best trial of a study, or of a given trial.

    Parameters
    ----------
    objective : TreeCVObjective
        The objective of a regressor of one target, or of a binary classifier with
        ``predict_proba``.
    study : optuna.Study or optuna.trial.FrozenTrial
        A study with at least one complete trial of this objective, or a trial of this objective.
    metric : str, scorer or array-like of shape (2, 2), default="balanced_accuracy"
        For classifiers, the score of the threshold, see ``TreeCVObjective.threshold``.

    Returns
    -------
    plotly.graph_objects.Figure
        For a classifier, the score at each threshold and the calibration curve. For a regressor,
        the residuals by predictions, and how many residuals of each fold are below the quantiles
        of those of the other folds.

    Raises
    ------
    ValueError
        If an argument is invalid, or if a row is not in exactly one test set.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from optuna_treecv import treecv_objective
    >>> from optuna_treecv.report import plot_out_of_fold
    >>> X, y = load_diabetes(return_X_y=True)
    >>> objective = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0]})
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> len(plot_out_of_fold(objective, study).data)
    2
    """
    data = objective.evaluator.cross_validation.data
    classes = objective.evaluator.run_at(None).request.classes
    if classes is None:
        predicted = objective.predict_oof(study)
        if predicted.ndim > 1:
            shape = predicted.shape
            raise ValueError(f"y must have one column for this figure, got shape {shape}.")
        folds = objective.predict_oof(study, as_frame=True)["fold"].to_numpy()
        return _draw_residuals(predicted, folds, np.ravel(data.y) - predicted)
    found = objective.threshold(study, metric)
    index = classes.tolist().index(found.pos_label)
    probabilities = objective.predict_oof(study, "predict_proba")[:, index]
    return _draw_threshold(found, probabilities, data.codes() == index)


def _draw_threshold(
    found: Threshold, probabilities: np.ndarray, is_positive: np.ndarray
) -> go.Figure:
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    shown = np.isfinite(found.thresholds)
    figure.add_scatter(
        x=found.thresholds[shown], y=found.scores[shown], name="score", line={"color": BLUE}
    )
    figure.add_vline(x=found.threshold, line={"color": ORANGE}, col=1)
    if found.low < found.high:
        figure.add_vrect(x0=found.low, x1=found.high, fillcolor=ORANGE, opacity=0.15, col=1)
    groups = np.array_split(np.argsort(probabilities, kind="stable"), _N_GROUPS)
    means = np.array([probabilities[rows].mean() for rows in groups])
    shares = np.array([is_positive[rows].mean() for rows in groups])
    figure.add_scatter(
        x=means,
        y=shares,
        mode="lines+markers",
        name="calibration",
        line={"color": GREEN},
        col=2,
        row=1,
    )
    _add_diagonal(figure)
    figure.update_xaxes(title_text="threshold", col=1)
    figure.update_yaxes(title_text="score", col=1)
    figure.update_xaxes(title_text="mean probability of ten groups of rows", col=2)
    figure.update_yaxes(title_text=f"share of class {found.pos_label!r}", col=2)
    error = np.abs(means - shares).mean()
    return finish(
        figure,
        f"Threshold and calibration of trial {found.trial.number}",
        f"threshold {found.threshold:.3g}: score {found.score:.4g}, corrected for the choice "
        f"{found.honest_score:.4g}, at the default {found.default_score:.4g}",
        f"expected calibration error {error:.3g}",
    )


def _draw_residuals(predicted: np.ndarray, folds: np.ndarray, residuals: np.ndarray) -> go.Figure:
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    shown = np.unique(np.linspace(0, len(predicted) - 1, _MAX_POINTS).astype(int))
    figure.add_scatter(
        x=predicted[shown],
        y=residuals[shown],
        mode="markers",
        name="residuals",
        marker={"color": BLUE, "size": 4},
    )
    figure.add_hline(y=0, line={"color": ORANGE}, col=1)
    sizes, covered = np.abs(residuals), np.zeros(len(_LEVELS))
    for fold in np.unique(folds):
        is_fold = folds == fold
        limits = np.quantile(sizes[~is_fold], _LEVELS)
        covered += (sizes[is_fold][:, None] <= limits).sum(axis=0)
    figure.add_scatter(
        x=_LEVELS,
        y=covered / len(sizes),
        mode="lines+markers",
        name="coverage",
        line={"color": GREEN},
        col=2,
        row=1,
    )
    _add_diagonal(figure)
    figure.update_xaxes(title_text="out-of-fold prediction", col=1)
    figure.update_yaxes(title_text="residual", col=1)
    figure.update_xaxes(title_text="quantile of the residuals of other folds", col=2)
    figure.update_yaxes(title_text="share of residuals below it", col=2)
    error = np.sqrt(np.mean(np.square(residuals)))
    return finish(figure, "Out-of-fold residuals", f"root mean squared error {error:.4g}")


def _add_diagonal(figure: go.Figure) -> None:
    """Add the line of perfect calibration or coverage to the second plot."""
    line = {"color": "gray", "dash": "dot"}
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=line, col=2, row=1)
