"""Dual problems: the optimality conditions, computed in NumPy, and models equal to LIBSVM's."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import polynomial_kernel
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.svm import SVR

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.kernel_machines import problems
from optuna_treecv.engines.kernel_machines.kernels.dual import DualSolver
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram

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
    gap, *_ = DualSolver().solve(Gram(K), y, lower, upper, epsilon, b, g, tol)
    gradient = K @ b - y
    up = np.where(b >= upper, np.inf, np.where(b >= 0, epsilon, -epsilon))
    down = np.where(b <= lower, -np.inf, np.where(b > 0, epsilon, -epsilon))
    assert gap <= tol
    assert (gradient + down).max() - (gradient + up).min() <= 2 * tol
    assert abs(b.sum()) <= 1e-9 * np.abs(b).sum()
    assert np.all((lower <= b) & (b <= upper))


def test_rows_without_a_coefficient_have_no_effect():
    """Test rows may have kernel values that are many orders of magnitude larger."""
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(40, 3)), np.sign(rng.normal(size=40))
    bounds = [np.append(np.minimum(y, 0), 0), np.append(np.maximum(y, 0), 0)]
    solved = []
    for far in (1.0, 1e9):
        K = polynomial_kernel(np.vstack([rows, [[far, far, far]]]), degree=3, gamma=1.0)
        targets = np.append(y, 1.0)
        b, g = np.zeros(41), -targets
        gap, intercept, _ = DualSolver().solve(Gram(K), targets, *bounds, 0.0, b, g, 5e-8)
        assert gap <= 5e-8
        solved.append([*g[:-1], intercept])
    np.testing.assert_allclose(*solved, atol=1e-6)


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


@pytest.mark.parametrize(
    "estimator", [SVC(C=-1), SVC(gamma=-1.0), SVR(epsilon=-1.0), KernelRidge(alpha=-1)]
)
def test_invalid_parameters_are_refused_as_by_fit(estimator):
    y = NUMBERS > 0 if isinstance(estimator, SVC) else NUMBERS
    with pytest.raises(ValueError, match="parameter of") as ours:
        tree_cross_validate(estimator, X, y, cv=FOLDS, method="kernel")
    with pytest.raises(ValueError, match="parameter of") as theirs:
        estimator.fit(X, y)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("estimator", [SVC(tol=1e-6), SVR(tol=1e-6), KernelRidge(kernel="rbf")])
def test_weighted_and_sparse_rows(estimator):
    y = NUMBERS > 0 if isinstance(estimator, SVC) else NUMBERS
    weights = np.random.default_rng(1).exponential(size=len(X))
    weights[:10] = 0
    rows = sparse.csr_array(X * (X > 0))
    method = "decision_function" if isinstance(estimator, SVC) else "predict"
    ours = tree_cross_val_predict(
        estimator,
        rows,
        y,
        cv=FOLDS,
        method="kernel",
        response_method=method,
        sample_weight=weights,
    )
    for train, test in FOLDS.split(X):
        fitted = clone(estimator).fit(rows[train], y[train], sample_weight=weights[train])
        np.testing.assert_allclose(ours[test], getattr(fitted, method)(rows[test]), atol=1e-4)


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (GaussianProcessRegressor(), "its optimizer chooses the parameters of the kernel"),
        (GaussianProcessRegressor(RBF()), "its optimizer chooses the parameters of the kernel"),
        (SVR(kernel="sigmoid"), "may not be positive semi-definite"),
        (SVR(max_iter=10), "max_iter limits its solver"),
    ],
)
def test_other_settings_are_refitted(estimator, reason):
    assert tree_cross_validate(estimator, X[:30], NUMBERS[:30], cv=2).method == "fit"
    with pytest.raises(ValueError, match=reason):
        tree_cross_validate(estimator, X, NUMBERS, cv=FOLDS, method="kernel")


def test_settings_without_parameters_to_choose():
    for estimator in (
        GaussianProcessRegressor(optimizer=None),
        GaussianProcessRegressor(RBF(1.0, "fixed")),
    ):
        assert tree_cross_validate(estimator, X, NUMBERS, cv=FOLDS).method == "kernel"


def test_a_candidate_has_the_same_bits_alone_and_in_a_search():
    grid = {"svc__C": [0.1, 1.0, 30.0, 1000.0], "svc__gamma": [0.1, 1.0]}
    pipeline, options = make_pipeline(StandardScaler(), SVC()), {"cv": FOLDS, "method": "kernel"}
    search = TreeCVSearchCV(
        pipeline, param_grid=grid, scoring="roc_auc", refit=False, **options
    ).fit(X, NUMBERS > 0)
    for params, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        pipeline.set_params(**params)
        alone = tree_cross_validate(pipeline, X, NUMBERS > 0, scoring="roc_auc", **options)
        assert alone.mean == score


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


def test_rounding_errors_of_the_start_are_removed():
    y = np.where(NUMBERS > 0, 1.0, -1.0)
    K, lower, upper = rbf_kernel(X), np.where(y > 0, 0, -10.0), np.where(y > 0, 10.0, 0)
    b = np.zeros(len(y))
    g = -y + 1e-3 * np.random.default_rng(0).normal(size=len(y))
    gap, _, drift = DualSolver().solve(Gram(K), y, lower, upper, 0.0, b, g, 5e-8, drift=1e-2)
    gradient = K @ b - y
    assert gap <= 5e-8 and drift <= 5e-9
    assert gradient[b > lower].max() - gradient[b < upper].min() <= 1e-7


def test_solutions_carry_the_rounding_errors_of_their_start(monkeypatch):
    drifts = []

    class Recorder:
        n_bytes, move = 0, DualSolver().move

        def solve(self, *arguments):
            drifts.append(arguments[-2])
            return DualSolver().solve(*arguments)

    monkeypatch.setattr(problems, "DualSolver", Recorder)
    monkeypatch.setattr(problems, "_unused", [])
    tree_cross_validate(SVC(C=100.0), 1e3 * X, NUMBERS > 0, cv=FOLDS, method="kernel")
    assert max(drifts) > 0
