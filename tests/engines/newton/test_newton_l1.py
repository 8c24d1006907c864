"""Logistic regression with an L1 penalty: optimality of each fold, leaks, and refits."""

from typing import Any

import numpy as np
import optuna
from pairs import pairs
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.newton import objective
from optuna_treecv.engines.newton import proximal
from optuna_treecv.engines.newton.kernels.quadratic import find_steps

# Mean test losses are promised to 1e-6.
PROMISED = 1e-6

N_ROWS, FOLDS = 200, KFold(4)


def rows_of(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of which some have no effect, and two classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, 7)) * np.geomspace(0.3, 3, 7) + 1
    scores = X @ np.array([3, 0, 1, 0, -1, 0, 0.3])
    scores = (scores - scores.mean()) / scores.std()
    noise = 0.0 if kind == "separable" else 0.7
    y = (scores + noise * rng.normal(size=N_ROWS) > (1.2 if kind == "rare" else 0)).astype(int)
    y[[5, 65, 115, 165]], y[[6, 66, 116, 166]] = 1, 0
    if kind == "collinear":
        X = np.hstack([X, X[:, :2], np.zeros((N_ROWS, 1))])
        X[:3, -1] = 1  # constant in the training rows of the first fold
    return X, y


def solve(X: Any, y: Any, weights: Any, C: float, ratio: float, intercept: bool) -> np.ndarray:
    """Return coefficients and intercept, of which the optimality conditions are checked."""
    n, d = X.shape
    Z = np.hstack([X, np.ones((n, 1))])[:, : d + intercept]
    l1, a = (np.append(np.full(d, x), 0)[: d + intercept] for x in (ratio, 1 - ratio))
    w = np.zeros(d + intercept)

    def value(w: np.ndarray) -> float:
        losses = np.logaddexp(0, (1 - 2 * y) * (Z @ w))
        return float(C * weights @ losses + a @ w**2 / 2 + l1 @ np.abs(w))

    for _ in range(100):
        p = expit(Z @ w)
        slope = C * Z.T @ (weights * (p - y)) + a * w
        violations = np.abs(slope + l1 * np.sign(w))
        violations = np.where(w == 0, np.maximum(np.abs(slope) - l1, 0), violations)
        if violations.max() < 1e-9 * (1 + C * weights.sum()):
            break
        hessian = (Z.T * (C * weights * p * (1 - p))) @ Z + np.diag(a + 1e-12)
        is_free = np.ones((1, len(w)), np.uint8)
        step, size = find_steps(hessian[None], slope[None], w[None], l1[None], is_free)[0], 1.0
        while value(w + size * step) > value(w) and size > 1e-12:
            size /= 2
        w = w + size * step
    assert violations.max() < 1e-6 * (1 + C * weights.sum())
    return w if intercept else np.append(w, 0)


@pytest.mark.parametrize(
    *pairs(
        kind=["plain", "separable", "rare", "collinear"],
        ratio=[1.0, 0.5],
        layout=["dense", "sparse", "scaled"],
        fit_intercept=[True, False],
        is_weighted=[False, True],
        is_float32=[False, True],
        has_shared_hessian=[False, True],
    )
)
def test_folds_are_those_of_optimal_models(
    kind: str,
    ratio: float,
    layout: str,
    fit_intercept: bool,
    is_weighted: bool,
    is_float32: bool,
    has_shared_hessian: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_float32:
        monkeypatch.setattr(objective, "_MIN_ROWS_FOR_FLOAT32", 0)
    if has_shared_hessian:
        monkeypatch.setattr(objective, "_MAX_HESSIAN_ENTRIES_PER_ROW", 0)
    X, y = rows_of(kind)
    if layout == "sparse":
        X = X * (np.abs(X) > 1)
    Cs, steps = (
        (1e-3, 0.05, 1.0, 50.0),
        [StandardScaler()] * (layout == "scaled" and fit_intercept),
    )
    options: dict[str, Any] = {"solver": "saga", "l1_ratio": ratio, "fit_intercept": fit_intercept}
    models = [make_pipeline(*steps, LogisticRegression(C=C, **options)) for C in Cs]
    weights = np.random.default_rng(1).exponential(size=N_ROWS) if is_weighted else None
    results = tree_cross_validate_many(
        models,
        sparse.csr_array(X) if layout == "sparse" else X,
        y,
        cv=FOLDS,
        scoring="neg_log_loss",
        method="newton",
        sample_weight=weights,
    )
    weights = np.ones(N_ROWS) if weights is None else weights
    for C, result in zip(Cs, results, strict=True):
        for fold, (train, test) in enumerate(FOLDS.split(X)):
            centre = X[train].mean(axis=0) if steps else 0.0
            scale = np.where(X[train].std(axis=0) > 0, X[train].std(axis=0), 1) if steps else 1.0
            w = solve(
                (X[train] - centre) / scale, y[train], weights[train], C, ratio, fit_intercept
            )
            z = (X[test] - centre) / scale @ w[:-1] + w[-1]
            logs = -np.logaddexp(0, (1 - 2 * y[test]) * z)
            expected = np.average(logs, weights=weights[test])
            error = abs(result.test_score[fold] - expected)
            assert error <= PROMISED * max(1, abs(expected)), (C, fold)


@pytest.mark.parametrize("kind", ["plain", "separable", "rare"])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_coefficients_are_zero_where_those_of_optimal_models_are(kind: str, ratio: float) -> None:
    X, y = rows_of(kind)
    model = LogisticRegression(l1_ratio=ratio, solver="saga")
    options: dict[str, Any] = {"cv": FOLDS, "scoring": "neg_log_loss", "method": "newton"}
    grid = {"C": [0.02, 0.1, 0.5, 10.0]}
    tuned = treecv_objective(model, X, y, param_grid=grid, **options)
    study = optuna.create_study(direction="maximize", sampler=tuned.grid_sampler())
    study.optimize(tuned)
    n_zeros = 0
    for trial in study.trials:
        for (train, _), fold_model in zip(FOLDS.split(X), tuned.fold_models(trial), strict=True):
            weights = np.ones(len(train))
            w = solve(X[train], y[train], weights, trial.params["C"], ratio, True)[:-1]
            is_large = np.abs(w) > 1e-6 * np.abs(w).max()
            found = fold_model.coef_[0]
            assert np.all(found[is_large] != 0)
            assert np.all(found[w == 0] == 0)
            np.testing.assert_allclose(found, w, atol=2e-3 * max(1, np.abs(w).max()))
            n_zeros += np.count_nonzero(w == 0)
    assert n_zeros >= 8


@pytest.mark.parametrize("factor", [7, 100])
@pytest.mark.parametrize("C", [1e-2, 1e2])
def test_no_row_reaches_the_model_that_tests_it(C: float, factor: float) -> None:
    X, y = rows_of("plain")
    fold, kept = slice(50, 100), slice(50, 70)
    model = LogisticRegression(C=C, l1_ratio=0.9, solver="saga")
    options: dict[str, Any] = {
        "cv": FOLDS,
        "method": "newton",
        "response_method": "decision_function",
    }
    before = tree_cross_val_predict(model, X, y, **options)
    X, y = X.copy(), y.copy()
    y[fold] = 1 - y[fold]
    X[70:100] *= factor
    after = tree_cross_val_predict(model, X, y, **options)
    np.testing.assert_allclose(after[kept], before[kept], atol=1e-3)
    assert np.abs(after - before)[100:].max() > 1e-2


def test_steps_meet_the_optimality_conditions() -> None:
    rng = np.random.default_rng(0)
    roots, models = rng.normal(size=(20, 30, 12)), rng.normal(size=(20, 12))
    models[:, ::3] = 0
    hessians, gradients = roots.swapaxes(1, 2) @ roots, 20 * rng.normal(size=(20, 12))
    l1, is_free = rng.uniform(0, 20, (20, 12)), np.ones((20, 12), np.uint8)
    is_free[:, 5] = 0
    steps = find_steps(hessians, gradients, models, l1, is_free)
    slopes, ends = gradients + np.einsum("mij,mj->mi", hessians, steps), models + steps
    violations = np.where(
        ends != 0, np.abs(slopes + l1 * np.sign(ends)), np.maximum(np.abs(slopes) - l1, 0)
    )
    assert np.delete(violations, 5, axis=1).max() < 1e-2
    assert np.all(steps[:, 5] == 0) and np.any(ends == 0) and np.any(steps != 0)


@pytest.mark.parametrize(
    ("model", "n_classes", "why"),
    [
        (LogisticRegression(l1_ratio=1.0, solver="saga"), 3, "more than two classes"),
        (LogisticRegression(l1_ratio=1.0, solver="liblinear"), 2, "penalises the intercept"),
    ],
)
def test_other_models_are_fitted(model: LogisticRegression, n_classes: int, why: str) -> None:
    X, y = rows_of("plain")
    y = y + (X[:, 0] > 1.3) * (n_classes == 3)
    with pytest.raises(ValueError, match=why):
        tree_cross_validate(model, X, y, cv=FOLDS, method="newton")


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated")
def test_both_spellings_of_a_penalty() -> None:
    X, y = rows_of("plain")
    options: dict[str, Any] = {"cv": FOLDS, "scoring": "neg_log_loss", "method": "newton"}
    for penalty, ratio in (("l1", 1.0), ("elasticnet", 0.3), ("l2", 0.0)):
        old = LogisticRegression(penalty=penalty, l1_ratio=ratio, solver="saga")
        new = LogisticRegression(l1_ratio=ratio, solver="saga")
        results = [tree_cross_validate(model, X, y, **options) for model in (old, new)]
        np.testing.assert_array_equal(results[0].test_score, results[1].test_score)


def test_a_fold_that_does_not_converge_is_refitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proximal, "_MAX_BOUND", 0.0)
    X, y = rows_of("plain")
    model = LogisticRegression(l1_ratio=1.0, solver="saga", max_iter=1000)
    result = tree_cross_validate(model, X, y, cv=FOLDS, scoring="neg_log_loss")
    assert result.method == "fit" and "converge" in result.reason


def test_folds_whose_test_rows_are_very_far_are_refitted() -> None:
    X, y = rows_of("plain")
    X[10:50] += 1e6
    model = LogisticRegression(l1_ratio=1.0, solver="saga", max_iter=20)
    result = tree_cross_validate(model, X, y, cv=FOLDS, scoring="neg_log_loss")
    assert result.method == "fit" and "converge" in result.reason


def test_candidates_of_a_search_have_the_scores_of_candidates_alone() -> None:
    X, y = rows_of("rare")
    models = [
        LogisticRegression(C=C, l1_ratio=ratio, solver="saga")
        for C in (0.03, 1.0, 30.0)
        for ratio in (0.0, 0.5, 1.0)
    ]
    options: dict[str, Any] = {"cv": FOLDS, "scoring": "neg_log_loss", "method": "newton"}
    for model, result in zip(
        models, tree_cross_validate_many(models, X, y, **options), strict=True
    ):
        alone = tree_cross_validate(model, X, y, **options)
        np.testing.assert_allclose(alone.test_score, result.test_score, rtol=0, atol=PROMISED)
