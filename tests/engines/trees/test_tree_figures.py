"""Figures of trees show what trees grown alone say."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold

from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

pytest.importorskip("plotly")
from optuna_treecv.report import plot_pruning_path  # noqa: E402
from optuna_treecv.report import plot_tree_agreement  # noqa: E402

CV = KFold(5, shuffle=True, random_state=0)


def objective_of(tree, rows, **options):
    X, y = rows
    grid = {"ccp_alpha": [0.0, 0.01], "max_depth": [3, None]}
    return treecv_objective(tree, X, y, cv=CV, param_grid=grid, **options)


def nodes_of(tree, X):
    """Return the features on the way to each node and the rows of X that come to it."""
    nodes = tree.tree_.nodes
    bins = tree.binning_.bins(tree.find_bins(X)[0])
    rows, features = {0: np.arange(len(X))}, {0: ()}
    for number, node in enumerate(nodes):
        if node["left"] >= 0:
            own = rows[number]
            is_left = bins[node["feature"], own] <= node["bin"]
            rows[int(node["left"])], rows[int(node["right"])] = own[is_left], own[~is_left]
            for side in ("left", "right"):
                features[int(node[side])] = (*features[number], int(node["feature"]))
    return {(features[number], tuple(own.tolist())) for number, own in rows.items()}


def test_agreement_is_that_of_trees_fitted_alone():
    """Few distinct values, so that each fold has the same bins."""
    X, y = load_breast_cancer(return_X_y=True)
    X = np.floor(4 * X[:, :6] / X[:, :6].max(axis=0))
    tree = HistTreeClassifier(max_depth=5, min_samples_leaf=5, random_state=0)
    figure = plot_tree_agreement(objective_of(tree, (X, y)), {"ccp_alpha": 0.0, "max_depth": None})
    tree.set_params(max_depth=None)
    whole = nodes_of(clone(tree).fit(X, y), X)
    depths = len(figure.data[0].x)
    shared, of_depth = np.zeros(depths), np.zeros(depths)
    for train, _ in CV.split(X):
        for features, rows in nodes_of(clone(tree).fit(X[train], y[train]), X):
            n = np.isin(rows, train).sum()
            of_depth[len(features)] += n
            shared[len(features)] += n * ((features, rows) in whole)
    np.testing.assert_allclose(figure.data[0].y, 100 * shared / of_depth)
    assert figure.data[0].y[0] == 100 > figure.data[0].y[4]


@pytest.mark.slow
@pytest.mark.parametrize("is_class", [True, False])
def test_pruning_path(is_class):
    rows = load_breast_cancer(return_X_y=True) if is_class else load_diabetes(return_X_y=True)
    tree = (HistTreeClassifier if is_class else HistTreeRegressor)(random_state=0)
    scoring = "accuracy" if is_class else None
    objective = objective_of(tree, rows, scoring=scoring)
    means, best, simple = plot_pruning_path(objective, most=12).data
    assert len(means.x) == 12
    path = clone(tree).cost_complexity_pruning_path(*rows)
    assert np.all(np.diff(means.x) > 0) and np.all(np.diff(means.customdata) < 0)
    assert means.customdata[-1] == 1 and means.x[-1] == pytest.approx(path.ccp_alphas[-1])
    for i in (1, 5, 9):
        pruned = clone(tree).set_params(ccp_alpha=means.x[i])
        result = tree_cross_validate(pruned, *rows, cv=CV, scoring=scoring, method="standard")
        assert (means.y[i], means.error_y.array[i]) == (result.mean, result.std_error)
        assert pruned.fit(*rows).get_n_leaves() == means.customdata[i]
    sign = -1 if is_class else 1
    at = int(np.argmin(sign * np.array(means.y)))
    assert best.x[0] == means.x[at]
    limit = sign * means.y[at] + means.error_y.array[at]
    within = [x for x, y in zip(means.x, means.y, strict=True) if sign * y <= limit]
    assert simple.x[0] == max(within)


def test_other_objectives_are_refused():
    rows = load_breast_cancer(return_X_y=True)
    objective = treecv_objective(PegasosClassifier(), *rows, param_grid={"alpha": [0.1]})
    for plot in (plot_tree_agreement, plot_pruning_path):
        with pytest.raises(ValueError, match="objective must evaluate a HistTreeClassifier"):
            plot(objective)
    objective = objective_of(HistTreeClassifier(), rows, scoring=pooled("roc_auc"))
    with pytest.raises(ValueError, match="objective must have a score for each fold"):
        plot_pruning_path(objective)
    objective = objective_of(HistTreeClassifier(), rows, method="standard")
    with pytest.raises(ValueError, match="method='forest'"):
        plot_tree_agreement(objective)
