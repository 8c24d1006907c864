"""Losses beside that of LogisticRegression, and intercepts that are penalised."""

from __future__ import annotations

from typing import Any

from converged_fits import converged
import numpy as np
from pairs import pairs
import pytest
from sklearn._loss import HalfBinomialLoss
from sklearn._loss import HalfGammaLoss
from sklearn._loss import HalfMultinomialLoss
from sklearn._loss import HalfPoissonLoss
from sklearn._loss import HalfTweedieLoss
from sklearn.base import clone
from sklearn.linear_model import GammaRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import TweedieRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv.engines.newton.terms import Logistic
from optuna_treecv.engines.newton.terms import Multinomial
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.engines.newton.terms import SquaredDistance
from optuna_treecv.engines.newton.terms import Tweedie

# Mean test losses are promised to 1e-6.
PROMISED = 1e-6

N_ROWS = 200
FOLDS = KFold(4, shuffle=True, random_state=0)


def columns(offset: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return columns of different scales."""
    X = np.random.default_rng(seed).normal(size=(N_ROWS, 4))
    return X * np.geomspace(0.1, 50, 4) + 3 + offset


def classes(n_classes: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scores = (columns() - 3) / np.geomspace(0.1, 50, 4) @ rng.normal(size=(4, n_classes))
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def squared_hinge(values: np.ndarray, y: np.ndarray) -> float:
    values = values[:, None] if values.ndim == 1 else values
    signs = 2 * (y[:, None] == np.arange(max(values.shape[1], 2))) - 1
    return float(np.square(np.maximum(1 - signs[:, -values.shape[1] :] * values, 0)).mean())


def log_loss(values: np.ndarray, y: np.ndarray) -> float:
    return float(np.logaddexp(0, (1 - 2 * y) * values).mean())


def squares(values: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(values - y).mean() / 2)


def assert_folds(estimator: Any, X: Any, y: Any, loss: Any, method: str, unit: float = 1) -> None:
    """Compare the outputs of each fold's model with those of a fit that has converged."""
    options: dict[str, Any] = {"cv": FOLDS}
    ours = tree_cross_val_predict(
        estimator, X, y, response_method=method, method="newton", **options
    )
    theirs = cross_val_predict(converged(estimator), X, y, method=method, **options)
    for _, test in FOLDS.split(X):
        expected = loss(theirs[test], y[test]) / unit
        assert abs(loss(ours[test], y[test]) / unit - expected) < PROMISED
    if method == "decision_function" and ours.ndim == 1:
        is_clear = np.abs(theirs) > 1e-3
        np.testing.assert_array_equal(ours[is_clear] > 0, theirs[is_clear] > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        estimator=[LinearSVC(), LogisticRegression(solver="liblinear")],
        C=[1e-3, 1.0, 1e3],
        offset=[0.0, 1e3],
        is_scaled=[False, True],
        options=[
            {},
            {"intercept_scaling": 10.0, "class_weight": "balanced"},
            {"class_weight": {1: 3.0}, "intercept_scaling": 0.5},
        ],
    )
)
def test_penalised_intercepts_are_those_of_liblinear(
    estimator: Any, C: float, offset: float, is_scaled: bool, options: dict[str, Any]
) -> None:
    model = clone(estimator).set_params(C=C, **options)
    loss = squared_hinge if isinstance(estimator, LinearSVC) else log_loss
    ours = make_pipeline(StandardScaler(), model) if is_scaled else model
    assert_folds(ours, columns(offset), classes(2), loss, "decision_function")


@pytest.mark.parametrize("class_weight", [None, {0: 2.0, 2: 0.5}])
def test_one_class_against_the_rest(class_weight: Any) -> None:
    model = LinearSVC(class_weight=class_weight)
    assert_folds(model, columns(), classes(3), squared_hinge, "decision_function")


@pytest.mark.parametrize(
    *pairs(epsilon=[0.0, 0.5], unit=[1e-3, 1.0, 1e4], C=[1e-2, 10.0], is_scaled=[False, True])
)
def test_numbers_in_any_unit(epsilon: float, unit: float, C: float, is_scaled: bool) -> None:
    X = columns()
    y = unit * (X @ [1, 1, 0.1, -0.1] + np.random.default_rng(0).normal(size=N_ROWS))
    model = LinearSVR(loss="squared_epsilon_insensitive", C=C, epsilon=epsilon * unit)
    ours = make_pipeline(StandardScaler(), model) if is_scaled else model
    assert_folds(ours, X, y, squares, "predict", y.var())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "unit"),
    [
        (GammaRegressor(alpha=1e-3), 1e5),
        (PoissonRegressor(alpha=1e-3), 1),
        (PoissonRegressor(alpha=30.0), 1e5),
        (TweedieRegressor(power=1.5), 1),
        (TweedieRegressor(power=1, alpha=0), 1),
        (TweedieRegressor(power=2, link="log"), 1),
        (TweedieRegressor(power=0, alpha=0.1), 1e5),
    ],
)
def test_deviances_are_those_of_converged_fits(model: Any, unit: float) -> None:
    X = StandardScaler().fit_transform(columns())
    y = unit * np.random.default_rng(0).gamma(2, np.exp(0.5 * X[:, 0] + 0.2 * X[:, 1]))
    power = {PoissonRegressor: 1, GammaRegressor: 2}.get(type(model))
    power = model.power if power is None else power

    def deviance(values: np.ndarray, y: np.ndarray) -> float:
        if power == 0:
            return squares(values, y)
        return float(HalfTweedieLoss(power=power)(y_true=y, raw_prediction=np.log(values)))

    assert_folds(model, X, y, deviance, "predict", max(1, y.mean() ** (2 - power) / 1e3))


@pytest.mark.parametrize(
    ("loss", "theirs", "y"),
    [
        (Logistic(), HalfBinomialLoss(), np.array([0, 1, 1, 0])),
        (Multinomial(3), HalfMultinomialLoss(n_classes=3), np.array([0, 2, 1, 2])),
        (Tweedie(1.0), HalfPoissonLoss(), np.array([0.0, 2, 1, 5])),
        (Tweedie(2.0), HalfGammaLoss(), np.array([0.5, 2, 1, 5])),
        (Tweedie(1.3), HalfTweedieLoss(power=1.3), np.array([0.0, 2, 1, 5])),
    ],
)
def test_derivatives_are_those_of_scikit_learn(loss: PredictorLoss, theirs: Any, y: Any) -> None:
    z = np.random.default_rng(0).normal(size=(4, loss.n_outputs))
    at = {"y_true": y.astype(float), "raw_prediction": z if loss.n_outputs > 1 else z[:, 0]}
    slopes, curvatures = (part.reshape(z.shape) for part in theirs.gradient_hessian(**at))
    ours = z[:, None].copy()
    loss.differentiate(ours, y)
    np.testing.assert_allclose(ours[:, 0], slopes, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        loss.second_derivatives(z[:, None], y)[:, 0], curvatures, rtol=1e-12
    )
    assert_derivatives(loss, z, y)


@pytest.mark.parametrize("epsilon", [None, 0.0, 0.4])
def test_derivatives_of_squared_distances(epsilon: float | None) -> None:
    y = np.array([0, 1, 1, 0]) if epsilon is None else np.array([0.3, 1.0, -2.0, 0.1])
    assert_derivatives(SquaredDistance(epsilon), np.array([[0.5], [-3.0], [2.0], [-1.5]]), y)
    z = np.array([[[0.5]], [[-3.0]], [[2.0]], [[-1.5]]])
    SquaredDistance(epsilon).differentiate(z, y)
    distances = np.array([0.5, 3, 2, 1.5]) * [1, -1, 1, -1] - y
    expected = np.sign(distances) * np.maximum(np.abs(distances) - (epsilon or 0), 0)
    np.testing.assert_allclose(z.ravel(), [1.5, -4, 0, 0] if epsilon is None else expected)


def assert_derivatives(loss: PredictorLoss, z: np.ndarray, y: np.ndarray) -> None:
    """Compare second derivatives with differences of first ones."""
    curvatures, step = loss.hessians(z, y), 1e-6
    for output in range(loss.n_outputs):
        ahead, behind = z[:, None].copy(), z[:, None].copy()
        ahead[:, 0, output] += step
        behind[:, 0, output] -= step
        loss.differentiate(ahead, y)
        loss.differentiate(behind, y)
        np.testing.assert_allclose(
            curvatures[:, output], (ahead - behind)[:, 0] / (2 * step), rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize(
    "model", [PoissonRegressor(), GammaRegressor(), TweedieRegressor(power=2)]
)
def test_targets_beyond_a_loss_are_refused_as_by_fits(model: Any) -> None:
    y = np.arange(N_ROWS) - 1.0
    y[::2] = -1
    with pytest.raises(ValueError, match="out of the valid range of the loss 'Half"):
        tree_cross_validate(model, columns(), y, cv=FOLDS)


@pytest.mark.parametrize(
    ("model", "n_classes", "why"),
    [
        (LinearSVC(loss="hinge"), 2, "loss='hinge' is not differentiable"),
        (LinearSVC(penalty="l1"), 2, "its penalty is not l2"),
        (LinearSVC(multi_class="crammer_singer"), 3, "its multi_class is not 'ovr'"),
        (LinearSVR(), 0, "loss='epsilon_insensitive' is not differentiable"),
        (LogisticRegression(solver="liblinear"), 3, "supports only two classes"),
        (TweedieRegressor(power=3), 0, "its loss is convex only for"),
        (TweedieRegressor(power=1.5, link="identity"), 0, "its link is the identity"),
    ],
)
def test_other_losses_are_fitted(model: Any, n_classes: int, why: str) -> None:
    y = classes(n_classes) if n_classes else np.abs(columns()[:, 0])
    with pytest.raises(ValueError, match=why):
        tree_cross_validate(model, columns(), y, cv=FOLDS, method="newton")


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        is_scaled=[False, True],
        options=[{}, {"fit_intercept": False}, {"intercept_scaling": 7.0}],
        C=[1e-3, 1.0, 1e3],
    )
)
def test_a_column_of_one_number_beside_a_penalised_intercept(
    is_scaled: bool, options: dict[str, Any], C: float
) -> None:
    # Its coefficient is a part of the intercept, and a feature of the rows that vary.
    X, y = columns(), classes(2)
    X[:, 1] = 5
    with_mean = options.get("fit_intercept", True)
    for number in (5.0, 0.0):
        test = next(FOLDS.split(X))[1]
        X[:, 1] = number
        X[test, 1] = number + 2 * y[test]
        model: Any = LinearSVC(C=C, **options)
        if is_scaled:
            model = make_pipeline(StandardScaler(with_mean=with_mean), model)
        assert_folds(model, X, y, squared_hinge, "decision_function")


def test_a_class_without_weight_is_left_to_fits() -> None:
    X, y = columns(), classes(2)
    weights = np.where((y == 1) & (np.arange(N_ROWS) >= 50), 0.0, 1.0)
    with pytest.raises(ValueError, match="must give each class a positive total weight"):
        tree_cross_validate(LinearSVC(), X, y, cv=KFold(4), sample_weight=weights, method="newton")


def minimum_with_tube(X: np.ndarray, y: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the minimum of |w|^2 / 2 + sum max(0, |y - Xw| - epsilon)^2, by Newton's method."""

    def value(w: np.ndarray) -> float:
        return w @ w / 2 + np.sum(np.maximum(np.abs(y - X @ w) - epsilon, 0) ** 2)

    w = np.zeros(X.shape[1])
    for _ in range(200):
        errors = X @ w - y
        outside = np.abs(errors) > epsilon
        slope = w + 2 * X.T @ (np.sign(errors) * np.maximum(np.abs(errors) - epsilon, 0))
        step = np.linalg.solve(np.eye(len(w)) + 2 * X[outside].T @ X[outside], slope)
        share = 1.0
        while share > 1e-10 and value(w - share * step) > value(w) - 1e-4 * share * slope @ step:
            share /= 2
        w = w - share * step
    return w


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "epsilon"), [("wide", 1.0), ("constant", 0.1), ("constant", 1.0)]
)
def test_a_wide_tube_has_the_scores_of_the_minimum(case: str, epsilon: float) -> None:
    """Test losses do not change within the tube, but other scores do."""
    rng = np.random.default_rng(3)
    if case == "wide":
        X = rng.normal(size=(150, 10))
        y = 0.3 * X @ rng.normal(size=10) + 0.3 * rng.normal(size=150)
    else:
        X, y = rng.normal(size=(150, 4)) + [0, 1e3, 0, 0], np.full(150, 3.0)
    expected = []
    for train, test in KFold(5).split(X):
        rows = np.c_[X, np.ones(len(X))]
        w = minimum_with_tube(rows[train], y[train], epsilon)
        expected.append(np.abs(rows[test] @ w - y[test]).mean())
    model = LinearSVR(loss="squared_epsilon_insensitive", epsilon=epsilon, C=1.0)
    result = tree_cross_validate(
        model, X, y, cv=KFold(5), scoring="absolute_error", method="newton"
    )
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-6)
