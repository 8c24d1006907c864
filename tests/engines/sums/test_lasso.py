"""Lasso, elastic net and least squares of all folds are those of fits that have converged."""

from __future__ import annotations

from typing import Any

from converged_fits import converged
import numpy as np
import optuna
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler

from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

# What is promised of scores.
PROMISED = 1e-9

N_ROWS = 90
GROUPS = np.random.default_rng(5).integers(0, 8, N_ROWS)
SPLITTERS = {
    "folds": KFold(4, shuffle=True, random_state=0),
    "groups": GroupKFold(3),
    "time": TimeSeriesSplit(3),
    "draws": ShuffleSplit(3, random_state=0),
}
NEAR = {"scoring": "neg_mean_absolute_error"}


def rows_of(seed: int = 0, n_columns: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of several scales that depend on each other a little, and targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, n_columns)) + rng.normal(size=(N_ROWS, 1))
    y = X @ (rng.normal(size=n_columns) * (rng.random(n_columns) < 0.6)) + rng.normal(size=N_ROWS)
    return X * np.geomspace(0.1, 20, n_columns) + 3, y


def with_dummies(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with all one-hot columns of two tables, and a column twice."""
    X, y = rows_of(seed, 3)
    rng = np.random.default_rng(seed)
    two, many = rng.integers(0, 2, N_ROWS), rng.integers(0, 5, N_ROWS)
    y = y + 2 * two + rng.normal(size=5)[many]
    return np.hstack([X, np.eye(2)[two], np.eye(5)[many], X[:, :1]]), y


def assert_as_fits(
    estimator: Any, X: np.ndarray, y: np.ndarray, rtol: float = PROMISED, **options: Any
) -> None:
    """Compare scores with those of fits that have converged."""
    result = tree_cross_validate(estimator, X, y, **options)
    assert result.method == "exact", result.reason
    expected = tree_cross_validate(converged(estimator), X, y, method="fit", **options)
    np.testing.assert_allclose(result.test_score, expected.test_score, rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        estimator=[
            Lasso(),
            ElasticNet(),
            ElasticNet(l1_ratio=0.95),
            ElasticNet(l1_ratio=0.0),
            LinearRegression(),
        ],
        alpha=[1e-4, 0.02, 0.5, 1e6],
        fit_intercept=[True, False],
        positive=[False, True],
        scaler=[None, StandardScaler(), StandardScaler(with_mean=False)],
        splitter=list(SPLITTERS),
        scoring=["neg_mean_squared_error", "neg_mean_absolute_error"],
        is_weighted=[False, True],
    )
)
def test_folds_are_those_of_converged_fits(
    estimator: Any,
    alpha: float,
    fit_intercept: bool,
    positive: bool,
    scaler: Any,
    splitter: str,
    scoring: str,
    is_weighted: bool,
) -> None:
    X, y = rows_of()
    estimator = clone(estimator).set_params(fit_intercept=fit_intercept, positive=positive)
    if not isinstance(estimator, LinearRegression):
        estimator.set_params(alpha=alpha)
    if scaler is not None:
        estimator = make_pipeline(scaler, estimator)
    options: dict[str, Any] = {"cv": SPLITTERS[splitter], "scoring": scoring}
    if splitter == "groups":
        options["groups"] = GROUPS
    if is_weighted:
        options["sample_weight"] = np.random.default_rng(0).integers(0, 4, N_ROWS).astype(float)
    assert_as_fits(estimator, X, y, **options)


@pytest.mark.slow
def test_leave_one_out() -> None:
    for estimator, (X, y) in ((Lasso(0.05), rows_of()), (LinearRegression(), with_dummies())):
        assert_as_fits(estimator, X[:50], y[:50], cv=LeaveOneOut(), rtol=1e-8, **NEAR)


@pytest.mark.parametrize("estimator", [Lasso(), ElasticNet(l1_ratio=0.7), LinearRegression()])
def test_several_targets(estimator: Any) -> None:
    X, y = rows_of()
    Y = np.column_stack([y, X[:, 1] - y, np.zeros(N_ROWS)])
    for scoring in ("neg_mean_squared_error", "neg_mean_absolute_error"):
        assert_as_fits(estimator, X, Y, cv=KFold(3), scoring=scoring)


@pytest.mark.slow
@pytest.mark.parametrize("scaler", ["passthrough", StandardScaler()])
@pytest.mark.parametrize(
    "estimator",
    [
        Lasso(1e-3),
        Lasso(0.1),
        Lasso(1e-3, positive=True),
        ElasticNet(1e-2, l1_ratio=0.9),
        LinearRegression(),
        LinearRegression(positive=True),
    ],
    ids=str,
)
def test_columns_that_depend_on_each_other_in_all_rows(estimator: Any, scaler: Any) -> None:
    """Their coefficients are not unique, but predictions are."""
    X, y = with_dummies()
    folds = KFold(4, shuffle=True, random_state=0)
    for scoring in ("neg_mean_squared_error", "neg_mean_absolute_error"):
        assert_as_fits(make_pipeline(scaler, estimator), X, y, cv=folds, scoring=scoring)


@pytest.mark.slow
def test_columns_that_depend_on_each_other_in_one_training_set() -> None:
    """Only fits choose between such columns; least squares are the shortest ones."""
    X, y = rows_of()
    X[:, 0] = X[:, 1]
    X[:9, 0] += np.arange(9)
    for estimator in (LinearRegression(), make_pipeline(StandardScaler(), LinearRegression())):
        for scoring in ("neg_mean_squared_error", "neg_mean_absolute_error"):
            assert_as_fits(estimator, X, y, cv=KFold(10), scoring=scoring)
    estimator = Lasso(1e-3)
    result = tree_cross_validate(estimator, X, y, cv=KFold(10))
    assert (result.method, "linearly independent" in result.reason) == ("fit", True)
    expected = cross_validate(estimator, X, y, cv=KFold(10), scoring="neg_mean_squared_error")
    np.testing.assert_allclose(result.test_score, -expected["test_score"], rtol=1e-14)
    with pytest.raises(ValueError, match="^X must have columns that are linearly independent"):
        tree_cross_validate(estimator, X, y, cv=KFold(10), method="exact")


@pytest.mark.parametrize("estimator", [Lasso(1e-3), ElasticNet(1e-3), LinearRegression()], ids=str)
def test_a_column_of_one_number_in_the_training_rows_has_no_coefficient(estimator: Any) -> None:
    X, y = rows_of()
    X[:, 1] = 7
    X[30:60, 1] += y[30:60]
    assert_as_fits(estimator, X, y, cv=KFold(3), **NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [Lasso(0.05), ElasticNet(0.01), LinearRegression()], ids=str)
def test_behind_a_table(estimator: Any) -> None:
    """All one-hot columns depend on each other, and imputed means differ between folds."""
    X, y = rows_of(n_columns=4)
    kinds = np.random.default_rng(0).integers(0, 3, N_ROWS)
    X[::7, 1] = np.nan
    steps = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), [0, 1, 2, 3]), (OneHotEncoder(), [4])
    )
    model, rows = make_pipeline(steps, estimator), np.column_stack([X, kinds])
    for splitter, scoring in (
        ("folds", "neg_mean_squared_error"),
        ("draws", "neg_mean_absolute_error"),
    ):
        assert_as_fits(model, rows, y + kinds, cv=SPLITTERS[splitter], scoring=scoring)


def test_least_squares_leave_out_the_singular_values_that_scikit_learn_leaves_out() -> None:
    X, y = rows_of()
    for scale in (1e-3, 1e-5, 1e-7, 1e-9):
        rows = X.copy()
        rows[:, 2] *= scale  # on its own it can be told apart
        result = tree_cross_validate(LinearRegression(), rows, y, cv=KFold(3), **NEAR)
        expected = cross_validate(LinearRegression(), rows, y, cv=KFold(3), **NEAR)
        np.testing.assert_allclose(result.test_score, expected["test_score"], rtol=PROMISED)
        assert result.method == ("exact" if scale > 1e-4 else "fit")


def test_columns_far_from_0() -> None:
    X, y = rows_of()
    for estimator in (Lasso(0.05), LinearRegression()):
        near = tree_cross_validate(estimator, X, y, cv=KFold(5), **NEAR)
        far = tree_cross_validate(estimator, X + 2.0**20, y + 2.0**20, cv=KFold(5), **NEAR)
        assert far.method == "exact"
        np.testing.assert_allclose(far.test_score, near.test_score, rtol=1e-8)


@pytest.mark.parametrize("size", [1e-200, 1e-150, 1e-120, 1e120, 1e200])
def test_numbers_whose_squares_float64_does_not_have(size: float) -> None:
    X, y = rows_of()
    result = tree_cross_validate(LinearRegression(), X * size, y, cv=KFold(5), **NEAR)
    expected = cross_validate(LinearRegression(), X * size, y, cv=KFold(5), **NEAR)
    np.testing.assert_allclose(result.test_score, expected["test_score"], rtol=PROMISED)
    assert result.method == ("exact" if 1e-140 < size < 1e140 else "fit")


def test_sparse_rows_where_they_are_asked_for() -> None:
    X, y = rows_of()
    X[np.random.default_rng(0).random(X.shape) < 0.6] = 0
    options: dict[str, Any] = {"cv": KFold(4), **NEAR}
    rows = sparse.csr_array(X)
    assert tree_cross_validate(Lasso(0.05), rows, y, **options).method == "fit"
    result = tree_cross_validate(Lasso(0.05), rows, y, method="exact", **options)
    expected = cross_validate(converged(Lasso(0.05)), X, y, **options)
    np.testing.assert_allclose(result.test_score, expected["test_score"], rtol=PROMISED)


def test_more_columns_than_rows() -> None:
    X, y = rows_of(n_columns=120)
    for estimator in (Lasso(0.3), ElasticNet(0.3)):
        expected = tree_cross_validate(converged(estimator), X, y, cv=KFold(3), **NEAR)
        assert expected.method == "fit"
        assert "coordinate descent takes less time" in expected.reason
        result = tree_cross_validate(estimator, X, y, cv=KFold(3), method="exact", **NEAR)
        np.testing.assert_allclose(result.test_score, expected.test_score, rtol=PROMISED)
    assert tree_cross_validate(LinearRegression(), X, y, cv=KFold(3)).method == "fit"


def test_trials_before_do_not_matter() -> None:
    X, y = rows_of()
    objective = treecv_objective(
        ElasticNet(), X, y, param_distributions="auto", cv=KFold(4), cache=ModelCache()
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=8)
    for trial in study.trials:
        alone = tree_cross_validate(ElasticNet(**trial.params), X, y, cv=KFold(4))
        assert trial.value == pytest.approx(alone.mean, rel=PROMISED)


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (Lasso(warm_start=True), "warm_start is True"),
        (Lasso(precompute=np.eye(8)), "precompute is a matrix"),
        (Lasso(alpha=0), "coordinate descent hardly converges with alpha=0"),
        (
            make_pipeline(PolynomialFeatures(3), Lasso()),
            "coordinate descent takes less time for few rows with many columns",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_are_fitted(estimator: Any, why: str) -> None:
    X, y = rows_of(n_columns=8)
    objective = treecv_objective(lambda trial: estimator, X, y, cv=3)
    assert f"method='fit', because {why}" in objective.explain({})


def test_alpha_0_is_least_squares() -> None:
    X, y = rows_of()
    ours = tree_cross_validate(Lasso(alpha=0), X, y, cv=KFold(3), method="exact")
    expected = tree_cross_validate(LinearRegression(), X, y, cv=KFold(3), method="fit")
    np.testing.assert_allclose(ours.test_score, expected.test_score, rtol=PROMISED)


def test_explain_names_free_and_ignored_parameters() -> None:
    X, y = rows_of()
    grid = {"alpha": [0.1, 1.0], "tol": [1e-1, 1e-4]}
    fits = treecv_objective(Lasso(), X, y, param_grid=grid).explain()
    assert "tol is searched, which has no effect" in fits
    lasso = treecv_objective(Lasso(), X, y, param_grid={"alpha": [0.1, 1.0]}).explain()
    assert (
        "further values of alpha are nearly free. Models are solved to convergence, so max_iter"
        in lasso
    )
    net = treecv_objective(ElasticNet(), X, y, param_distributions="auto").explain()
    assert "further values of alpha and l1_ratio are nearly free" in net
    least = treecv_objective(lambda trial: LinearRegression(), X, y).explain({})
    assert "nearly free" not in least
