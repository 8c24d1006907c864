"""PLS regression of all folds, from sums, beside scikit-learn's fits."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import optuna
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.cross_decomposition import PLSRegression
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.sums.pls import pls_path

# What is promised of scores and predictions.
PROMISED = 1e-9

D, T = load_diabetes(return_X_y=True)
SPLITTERS = {
    "folds": KFold(4, shuffle=True, random_state=0),
    "time": TimeSeriesSplit(3),
    "draws": ShuffleSplit(3, random_state=0),
    "small folds": KFold(60),
}


def rows_of(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with at least 8 directions in which each training set varies."""
    rng = np.random.default_rng(0)
    X, y = D, T
    if kind == "scales":
        X = rng.normal(size=(150, 9)) @ rng.normal(size=(9, 9)) * np.geomspace(1e-4, 1e5, 9) + 7
        y = X @ rng.normal(size=9) + 1e4 * rng.normal(size=150)
    if kind == "constant columns":
        X = np.hstack([D, np.full((len(D), 1), 0.1), np.zeros((len(D), 1))])
    if kind == "a column that one fold alone has":
        X = np.hstack([D, (np.arange(len(D)) == 7)[:, None]])
    if kind == "duplicates":
        X = np.vstack([np.hstack([D, D[:, :3]])] * 2)
        y = np.append(T, T + rng.normal(size=len(T)))
    if kind == "float32":
        X = D.astype(np.float32)
    return X, y


def targets_of(y: np.ndarray) -> np.ndarray:
    """Return three targets of different scales."""
    noise = np.random.default_rng(1).normal(size=(len(y), 2))
    return np.column_stack([y, y**2 + 1e4 * noise[:, 0], 0.01 * y + noise[:, 1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        kind=[
            "diabetes",
            "scales",
            "constant columns",
            "a column that one fold alone has",
            "duplicates",
            "float32",
        ],
        splitter=list(SPLITTERS),
        scale=[True, False],
        is_multiple=[False, True],
        scoring=["neg_mean_squared_error", "r2", "neg_mean_absolute_error"],
        has_scaler=[False, True],
    )
)
def test_scores_are_those_of_fits(
    kind: str, splitter: str, scale: bool, is_multiple: bool, scoring: str, has_scaler: bool
) -> None:
    """A scaler is fitted per fold, in front; without it, unscaled columns may differ by 1e9."""
    X, y = rows_of(kind)
    y = targets_of(y) if is_multiple else y
    cv = SPLITTERS[splitter]
    counts = (1, 2) if kind == "scales" and not (scale or has_scaler) else (1, 3, 8)
    models: list[Any] = [PLSRegression(n, scale=scale) for n in counts]
    if has_scaler:
        models = [make_pipeline(StandardScaler(), model) for model in models]
    results = tree_cross_validate_many(models, X, y, cv=cv, scoring=scoring)
    for model, result in zip(models, results, strict=True):
        assert result.method == "exact", result.reason
        wide = X.astype(np.float64)
        expected = cross_val_score(model, wide, y, cv=cv, scoring=scoring)
        np.testing.assert_allclose(result.test_score, expected, rtol=PROMISED)


@pytest.mark.parametrize("y", [T, targets_of(T)], ids=["one", "three"])
def test_predictions_are_those_of_fits(y: np.ndarray) -> None:
    cv = KFold(5)
    ours = tree_cross_val_predict(PLSRegression(6), D, y, cv=cv, method="exact")
    expected = cross_val_predict(PLSRegression(6), D, y, cv=cv)
    np.testing.assert_allclose(ours, expected, rtol=PROMISED)


@pytest.mark.parametrize("options", [{"tol": 0.1}, {"tol": 1e-14}, {"max_iter": 2}])
@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
def test_several_targets_take_as_many_iterations(options: dict[str, Any]) -> None:
    """Each of the settings gives another model, unless there is one target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    y = X @ rng.normal(size=(6, 3)) + rng.normal(size=(120, 3))
    model, cv = PLSRegression(3, **options), KFold(4, shuffle=True, random_state=0)
    result = tree_cross_validate(model, X, y, cv=cv, scoring="r2", method="exact")
    expected = cross_val_score(model, X, y, cv=cv, scoring="r2")
    np.testing.assert_allclose(result.test_score, expected, rtol=PROMISED)
    others = cross_val_score(PLSRegression(3), X, y, cv=cv, scoring="r2")
    assert not np.allclose(others, expected, rtol=1e-7)
    single = tree_cross_validate(model, X, y[:, 0], cv=cv, scoring="r2", method="exact")
    expected = cross_val_score(PLSRegression(3), X, y[:, 0], cv=cv, scoring="r2")
    np.testing.assert_allclose(single.test_score, expected, rtol=PROMISED)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.filterwarnings("ignore:y residual is constant")
def test_targets_without_residuals(is_constant: bool) -> None:
    """One target is then predicted as scikit-learn does; several are declined."""
    X = np.array(list(product([-1.0, 1.0], repeat=3)) * 5)  # orthogonal in each training set
    y = np.full(len(X), 3.0) if is_constant else X[:, 0] * 2 + 1
    options: dict[str, Any] = {"cv": KFold(5), "scoring": "neg_mean_squared_error"}
    result = tree_cross_validate(PLSRegression(3), X, y, **options)
    assert result.method == "exact"
    np.testing.assert_allclose(result.test_score, 0, atol=1e-25)
    both = np.column_stack([y, X[:, 1] + np.random.default_rng(0).normal(size=len(X))])
    with pytest.raises(ValueError, match="not explained completely"):
        tree_cross_validate(PLSRegression(3), X, both, method="exact", **options)


def test_components_beyond_the_rank_are_fitted() -> None:
    """A component without variance is a rounding error divided by itself."""
    X = np.hstack([D, D[:, :5]])
    results = tree_cross_validate_many([PLSRegression(n) for n in (4, 10, 11)], X, T, cv=4)
    assert [result.method for result in results] == ["exact", "exact", "fit"]
    assert "n_components must be smaller than 11" in results[2].reason
    near = np.hstack([D, D[:, :5] + 1e-7 * np.random.default_rng(0).normal(size=(len(D), 5))])
    assert tree_cross_validate(PLSRegression(10), near, T, cv=4).method == "exact"
    assert tree_cross_validate(PLSRegression(11), near, T, cv=4).method == "fit"


@pytest.mark.parametrize("n_components", [11, 0, 2.5])
def test_components_that_scikit_learn_refuses(n_components: Any) -> None:
    with pytest.raises(ValueError, match="n_components"):
        tree_cross_validate(PLSRegression(n_components), D, T, cv=4)
    model = PLSRegression(n_components)
    with pytest.raises(ValueError, match="n_components"):
        tree_cross_validate_many([PLSRegression(2), model], D, T, cv=4)


def test_what_is_refused_or_fitted() -> None:
    with pytest.raises(ValueError, match="takes no sample_weight"):
        tree_cross_validate(PLSRegression(), D, T, sample_weight=np.ones(len(T)))
    with pytest.raises(TypeError, match="Sparse"):
        tree_cross_validate(PLSRegression(), sparse.csr_array(D), T)
    with pytest.raises(ValueError, match="does not support sparse X"):
        tree_cross_validate(PLSRegression(), sparse.csr_array(D), T, method="exact")
    wide = tree_cross_validate(PLSRegression(), D[:12], T[:12], cv=4)
    assert (wide.method, wide.reason) == (
        "fit",
        "X has at least as many columns as a training set has rows",
    )


@pytest.mark.parametrize("y", [T, targets_of(T)], ids=["one", "three"])
def test_no_model_changes_with_the_rows_that_it_tests(y: np.ndarray) -> None:
    """Far rows and other labels of a fold change the models of all other folds alone."""
    X, y, fold = D.copy(), y.copy(), np.arange(100, 200)
    ids = np.zeros(len(D), int)
    ids[fold] = 1
    far_X, far_y = X.copy(), y.copy()
    far_X[fold] += 1e6
    far_y[fold] *= -7
    options: dict[str, Any] = {"cv": ids, "method": "exact"}

    def predicted(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        return tree_cross_val_predict(PLSRegression(4), X, y, **options)

    before, after = predicted(X, y), predicted(far_X, far_y)
    model = PLSRegression(4).fit(X[ids == 0], y[ids == 0])
    np.testing.assert_allclose(before[fold], model.predict(X[fold]), rtol=PROMISED)
    np.testing.assert_allclose(after[fold], model.predict(far_X[fold]), rtol=1e-8)
    assert not np.allclose(before[ids == 0], after[ids == 0])


def test_fold_models_have_weights_and_loadings() -> None:
    objective = treecv_objective(lambda trial: PLSRegression(3), D, T, cv=KFold(3))
    study = optuna.create_study(direction="minimize")
    study.optimize(objective, n_trials=1)
    for (train, test), model in zip(KFold(3).split(D), objective.fold_models(study), strict=True):
        fitted = clone(model).fit(D[train], T[train])
        np.testing.assert_allclose(model.transform(D[test]), fitted.transform(D[test]))


def test_the_first_components_are_those_of_a_smaller_model() -> None:
    X = (D - D.mean(0)) / D.std(0)
    y = targets_of(T) - targets_of(T).mean(0)
    for targets in (y[:, :1], y):
        arguments = X.T @ X, X.T @ targets, np.square(targets).sum(0)
        whole = pls_path(*arguments, 6, 1e-6, 500)
        for k in (1, 4):
            np.testing.assert_array_equal(whole[:k], pls_path(*arguments, k, 1e-6, 500))
