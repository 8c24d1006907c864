"""Figures of decision trees: the agreement between folds, and the pruning path."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from sklearn.base import clone

from optuna_treecv.core.settings import check_integer
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.estimators.base import name_of
from optuna_treecv.reporting.figures import BLUE
from optuna_treecv.reporting.figures import finish
from optuna_treecv.reporting.figures import GREEN
from optuna_treecv.reporting.figures import ORANGE
from optuna_treecv.study.objective import TreeCVObjective


def plot_tree_agreement(
    objective: TreeCVObjective, params: Mapping[str, Any] | None = None
) -> go.Figure:
    """Plot how far the trees of the folds agree with the tree of all rows, by depth.

    Parameters
    ----------
    objective : TreeCVObjective
        The objective of a ``HistTreeClassifier`` or ``HistTreeRegressor``.
    params : dict, default=None
        A value for each searched parameter; None for the estimator as given.

    Returns
    -------
    plotly.graph_objects.Figure
        For each depth, the percentage of training rows in nodes that the tree of a fold has in
        common with the tree of all rows. These nodes are split only once for all folds.

    Raises
    ------
    ValueError
        If the objective does not grow the trees of all folds jointly.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from optuna_treecv import HistTreeClassifier, treecv_objective
    >>> from optuna_treecv.report import plot_tree_agreement
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> tree = HistTreeClassifier(max_depth=4, random_state=0)
    >>> objective = treecv_objective(tree, X, y, param_grid={"ccp_alpha": [0.0, 0.01]})
    >>> len(plot_tree_agreement(objective).data[0].x)
    5
    """
    estimator = objective.evaluator.space.candidate(params)[0]
    shares = _forest_plan(objective, estimator).agreement(estimator)
    figure = go.Figure(
        go.Scatter(
            x=np.arange(len(shares)),
            y=100 * shares,
            mode="lines+markers",
            line={"color": BLUE},
            marker={"size": 7},
            hovertemplate="depth %{x}: %{y:.1f} %<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="depth", rangemode="tozero")
    figure.update_yaxes(title_text="rows in shared nodes, %", range=[0, 104])
    n_folds = objective.evaluator.cross_validation.n_folds
    subtitle = f"{n_folds} folds; shared nodes are split once"
    return finish(figure, "Agreement of the folds' trees", subtitle)


def plot_pruning_path(
    objective: TreeCVObjective, params: Mapping[str, Any] | None = None, most: int = 60
) -> go.Figure:
    """Plot the cross-validated score along the pruning path, with one standard error.

    Parameters
    ----------
    objective : TreeCVObjective
        The objective of a ``HistTreeClassifier`` or ``HistTreeRegressor``, with fold scores.
    params : dict, default=None
        A value for each searched parameter; None for the estimator as given. ``ccp_alpha`` is
        ignored.
    most : int, default=60
        The maximum number of penalties to evaluate.

    Returns
    -------
    plotly.graph_objects.Figure
        The mean score and its standard error against ``ccp_alpha``. The best penalty, and the
        largest penalty within one standard error of it, are marked (Breiman et al. 1984).

    Raises
    ------
    ValueError
        If the objective does not grow the trees of all folds jointly, or its score is pooled.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from optuna_treecv import HistTreeClassifier, treecv_objective
    >>> from optuna_treecv.report import plot_pruning_path
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> tree = HistTreeClassifier(random_state=0)
    >>> objective = treecv_objective(tree, X, y, param_grid={"ccp_alpha": [0.0, 0.01]})
    >>> [trace.name for trace in plot_pruning_path(objective).data]
    ['mean of the folds', 'best', 'smallest within one standard error']
    """
    estimator = objective.evaluator.space.candidate(params)[0]
    metric = _forest_plan(objective, estimator).request.scoring.name
    most = check_integer("most", most, 10_000)
    unpruned = clone(estimator).set_params(ccp_alpha=0.0)
    path, n_leaves = _forest_plan(objective, unpruned).pruning_path(unpruned)
    # The penalties are the geometric means of consecutive penalties at which the tree of all rows
    # changes (Breiman et al. 1984, section 3.4.2). If there are too many, an evenly spaced subset
    # is used.
    subset = np.unique(np.linspace(0, len(path) - 1, min(most, len(path))).round().astype(int))
    alphas = np.sqrt(path * np.append(path[1:], path[-1]))[subset]
    n_leaves = n_leaves[subset]
    candidates = [clone(unpruned).set_params(ccp_alpha=alpha) for alpha in alphas.tolist()]
    cross_validation = objective.evaluator.cross_validation
    results = [run_for(cross_validation, candidate).finish() for candidate in candidates]
    if results[0].std is None:
        raise ValueError(
            "objective must have a score for each fold, from which standard errors are computed, "
            "got a pooled score; use a score without pooled(...) instead."
        )
    means = np.array([result.mean for result in results])
    errors = np.array([result.std_error for result in results], np.float64)
    sign = 1 if objective.direction == "minimize" else -1
    best = int(np.argmin(sign * means))
    is_within = sign * means <= sign * means[best] + errors[best]
    simplest = int(np.flatnonzero(is_within)[-1])
    figure = go.Figure()
    # A penalty of 0 is drawn at half the smallest positive one, because the axis is logarithmic.
    smallest = min(alphas[alphas > 0], default=1.0)
    x_values = np.where(alphas > 0, alphas, smallest / 2)
    figure.add_scatter(
        x=x_values,
        y=means,
        error_y={"array": errors, "color": BLUE, "thickness": 1, "width": 2},
        mode="lines+markers",
        name="mean of the folds",
        line={"color": BLUE, "width": 1},
        marker={"size": 5},
        customdata=n_leaves,
        hovertemplate="ccp_alpha %{x:.3g}: %{y:.5g}, %{customdata} leaves<extra></extra>",
    )
    marked_points = (
        ("best", best, ORANGE, "circle"),
        ("smallest within one standard error", simplest, GREEN, "diamond"),
    )
    for name, i, colour, symbol in marked_points:
        figure.add_scatter(
            x=[x_values[i]],
            y=[means[i]],
            mode="markers",
            name=name,
            marker={"size": 12, "color": colour, "symbol": symbol},
            hovertemplate=f"{n_leaves[i]} leaves<extra></extra>",
        )
    limit = float(means[best] + sign * errors[best])
    figure.add_hline(y=limit, line={"color": ORANGE, "dash": "dot", "width": 1})
    figure.update_xaxes(title_text="ccp_alpha, the penalty per leaf", type="log")
    figure.update_yaxes(title_text=metric)
    subtitle = (
        f"best: {n_leaves[best]} leaves, ccp_alpha = {alphas[best]:.3g}; one standard error: "
        f"{n_leaves[simplest]} leaves, ccp_alpha = {alphas[simplest]:.3g}"
    )
    return finish(figure, "Pruning path", subtitle)


def _forest_plan(objective: TreeCVObjective, estimator: Any) -> Any:
    """Return the plan of an estimator; raise ValueError unless its method is "forest"."""
    run = run_for(objective.evaluator.cross_validation, estimator)
    if run.plan.name != "forest":
        raise ValueError(
            "objective must evaluate a HistTreeClassifier or a HistTreeRegressor by "
            f"method='forest', got {name_of(estimator)} by method={run.plan.name!r}."
        )
    return run.plan
