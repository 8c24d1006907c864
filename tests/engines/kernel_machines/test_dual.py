"""Dual problems: the optimality conditions, computed in NumPy, and models equal to LIBSVM's."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.svm import SVR

from optuna_treecv import tree_cross_val_predict
from optuna_treecv.engines.kernel_machines.kernels.dual import DualSolver

X = np.random.default_rng(0).normal(size=(120, 4))
NUMBERS = X[:, 0] + np.sin(X[:, 1])
FOLDS = KFold(5, shuffle=True, random_state=0)


@pytest.mark.parametrize("seed", range(30))
def test_the_optimality_conditions_hold(seed):
    rng = np.random.default_rng(seed)
    n, C, epsilon = int(rng.choice([20, 60, 150])), 10 ** rng.uniform(-4, 5), 0.1 * (seed % 3 == 0)
    rows = np.round(rng.normal(size=(n, 3)), seed % 2 + 1)
    K = rbf_kernel(rows, gamma=10 ** rng.uniform(-3, 2))
    numbers = rows[:, 0] + 0.3 * rng.normal(size=n)
    y = numbers if epsilon else np.where(numbers > np.median(numbers), 1.0, -1.0)
    lower = np.full(n, -C) if epsilon else np.where(y > 0, 0, -C)
    upper = np.full(n, C) if epsilon else np.where(y > 0, C, 0)
    b, g, tol = np.zeros(n), -y, 5e-8 * max(1, C / 1e3)
    gap, _ = DualSolver().solve(K, y, lower, upper, epsilon, b, g, tol)
    gradient = K @ b - y
    up = np.where(b >= upper, np.inf, np.where(b >= 0, epsilon, -epsilon))
    down = np.where(b <= lower, -np.inf, np.where(b > 0, epsilon, -epsilon))
    assert gap <= tol
    assert (gradient + down).max() - (gradient + up).min() <= 2 * tol
    assert abs(b.sum()) <= 1e-9 * np.abs(b).sum()
    assert np.all((lower <= b) & (b <= upper))


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (SVC(C=3, tol=1e-6), NUMBERS > 0),
        (make_pipeline(StandardScaler(), SVC(C=10, tol=1e-6)), NUMBERS > 0),
        (SVC(gamma=0.1, class_weight="balanced", tol=1e-6), np.digitize(NUMBERS, [-0.5, 0.5])),
        (make_pipeline(StandardScaler(), SVR(C=10, tol=1e-6)), NUMBERS),
        (KernelRidge(kernel="rbf", alpha=0.1), NUMBERS),
        (GaussianProcessRegressor(optimizer=None, alpha=0.1, normalize_y=True), NUMBERS),
    ],
)
def test_predictions_equal_those_of_fits(estimator, y):
    method = "decision_function" if hasattr(estimator, "decision_function") else "predict"
    options = {"cv": FOLDS, "method": "kernel", "response_method": method}
    ours = tree_cross_val_predict(estimator, X, y, **options)
    theirs = cross_val_predict(estimator, X, y, cv=FOLDS, method=method)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_test_rows_have_no_effect_on_their_models():
    y, estimator = NUMBERS > 0, make_pipeline(StandardScaler(), SVC(C=10))
    test = next(iter(FOLDS.split(X)))[1]
    options = {"cv": FOLDS, "method": "kernel", "response_method": "decision_function"}
    changed = y.copy()
    changed[test] = ~changed[test]
    before = tree_cross_val_predict(estimator, X, y, **options)
    after = tree_cross_val_predict(estimator, X, changed, **options)
    np.testing.assert_allclose(after[test], before[test], atol=1e-5)
    assert np.abs(np.delete(after - before, test)).max() > 0.1
