"""Models of several classes whose folds share the Hessian of all rows."""

from typing import Any

from converged_fits import converged
import numpy as np
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.newton import objective

# Mean test losses are promised to 1e-6.
PROMISED = 1e-6

N_ROWS = 240


def rows_of(n_classes: int, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of different scales, and classes that each training set has."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, 6)) * np.geomspace(0.1, 30, 6)
    scores = X @ rng.normal(size=(6, n_classes))
    if kind != "separable":
        scores += 3 * rng.gumbel(size=scores.shape)
    y = scores.argmax(axis=1)
    if kind == "rare":
        y[rng.random(N_ROWS) < 0.8] = 0
    if kind == "collinear":
        X = np.hstack([X, X[:, :2], np.zeros((N_ROWS, 1))])
        X[:3, -1] = 1  # constant in the training rows of the first fold
    y[rng.permutation(N_ROWS)[: 12 * n_classes]] = np.tile(np.arange(n_classes), 12)
    return X, y


@pytest.fixture(autouse=True)
def as_of_many_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "_MAX_HESSIAN_ENTRIES_PER_ROW", 0)


@pytest.mark.parametrize(
    *pairs(
        kind=["plain", "separable", "rare", "collinear"],
        n_classes=[3, 7],
        layout=["dense", "sparse", "scaled", "imputed"],
        class_weight=[None, "balanced"],
        fit_intercept=[True, False],
        is_weighted=[False, True],
        is_float32=[False, True],
    )
)
def test_folds_are_those_of_converged_fits(
    kind: str,
    n_classes: int,
    layout: str,
    class_weight: Any,
    fit_intercept: bool,
    is_weighted: bool,
    is_float32: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_float32:
        monkeypatch.setattr(objective, "_MIN_ROWS_FOR_FLOAT32", 0)
    X, y = rows_of(n_classes, kind)
    steps: list[Any] = []
    if layout == "scaled":
        steps = [StandardScaler(with_mean=fit_intercept)]
    if layout == "imputed" and fit_intercept:
        X[::7, 1], steps = np.nan, [SimpleImputer()]
    rows = sparse.csr_array(X * (np.abs(X) > 5)) if layout == "sparse" else X
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss"}
    weights = 10 ** np.random.default_rng(1).uniform(-4, 4, N_ROWS) if is_weighted else None
    settings: dict[str, Any] = {"class_weight": class_weight, "fit_intercept": fit_intercept}
    models = [
        make_pipeline(*steps, LogisticRegression(C=C, **settings)) for C in (1e-4, 1.0, 300.0, 1e4)
    ]
    results = tree_cross_validate_many(models, rows, y, sample_weight=weights, **options)
    dense = rows.toarray() if layout == "sparse" else rows
    for model, result in zip(models, results, strict=True):
        if result.method == "fit":
            assert kind == "separable"
            continue
        name = "logisticregression__sample_weight"
        for fold, (train, test) in enumerate(KFold(4).split(dense)):
            params = {} if weights is None else {name: weights[train]}
            fitted = converged(model).fit(dense[train], y[train], **params)
            of_class = fitted.predict_proba(dense[test])[np.arange(len(test)), y[test]]
            logs = np.log(np.maximum(of_class, np.finfo(float).eps))
            expected = np.average(logs, weights=None if weights is None else weights[test])
            error = abs(result.test_score[fold] - expected)
            assert error <= PROMISED * max(1, abs(expected)), (model, fold)


@pytest.mark.parametrize("factor", [7, 1e3])
@pytest.mark.parametrize("C", [1e-2, 1e4])
def test_no_row_reaches_the_model_that_tests_it(C: float, factor: float) -> None:
    X, y = rows_of(4, "plain")
    fold, kept = slice(60, 120), slice(60, 90)
    options: dict[str, Any] = {
        "cv": KFold(4),
        "method": "newton",
        "response_method": "decision_function",
    }
    before = tree_cross_val_predict(LogisticRegression(C=C), X, y, **options)
    X, y = X.copy(), y.copy()
    y[fold] = (y[fold] + 1) % 4
    X[90:120] *= factor
    after = tree_cross_val_predict(LogisticRegression(C=C), X, y, **options)
    np.testing.assert_allclose(after[kept], before[kept], atol=1e-3)
    assert np.abs(after - before)[120:].max() > 0.1


def test_the_order_of_candidates_changes_no_score() -> None:
    X, y = rows_of(5, "plain")
    models = [LogisticRegression(C=C) for C in (1e-3, 0.1, 1.0, 30.0)]
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss", "method": "newton"}
    together = tree_cross_validate_many(models, X, y, **options)
    reversed_order = tree_cross_validate_many(models[::-1], X, y, **options)[::-1]
    for model, one, other in zip(models, together, reversed_order, strict=True):
        (alone,) = tree_cross_validate_many([model], X, y, **options)
        np.testing.assert_allclose(one.test_score, other.test_score, rtol=0, atol=PROMISED)
        np.testing.assert_allclose(one.test_score, alone.test_score, rtol=0, atol=PROMISED)


def test_hessians_are_those_of_each_pair_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(4, "plain")
    computed, compute = {}, objective.Objective.gradients_and_hessians

    def record(self: Any, *arguments: Any, **options: Any) -> Any:
        computed["shared"] = compute(self, *arguments, **options)
        self.has_hessian_per_fold = True
        computed["of pairs"] = compute(self, *arguments, **options)
        self.has_hessian_per_fold = False
        return computed["shared"]

    monkeypatch.setattr(objective.Objective, "gradients_and_hessians", record)
    weights = np.random.default_rng(1).exponential(size=N_ROWS)
    options: dict[str, Any] = {"scoring": "neg_log_loss", "method": "newton"}
    tree_cross_validate_many(
        [LogisticRegression()], X, y, cv=KFold(4), sample_weight=weights, **options
    )
    gradients, hessians = computed["shared"]
    expected_gradients, expected = computed["of pairs"]
    np.testing.assert_allclose(gradients, expected_gradients, atol=1e-10)
    np.testing.assert_allclose(hessians.sum(axis=1), expected.sum(axis=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("n_rows", "n_folds", "method"), [(2000, 5, "newton"), (2000, 4, "fit"), (700, 5, "fit")]
)
def test_few_folds_and_few_rows_are_refitted(n_rows: int, n_folds: int, method: str) -> None:
    X, y = np.random.default_rng(0).normal(size=(n_rows, 41)), np.arange(n_rows) % 10
    grid, model = {"C": [1e-4, 1e-3]}, LogisticRegression()
    search = TreeCVSearchCV(model, param_grid=grid, cv=KFold(n_folds), refit=False).fit(X, y)
    assert {t.user_attrs["treecv"]["method"] for t in search.study_.trials} == {method}


@pytest.mark.slow
def test_default_fits_are_farther_from_the_minimum() -> None:
    X, y = rows_of(7, "plain")
    X /= X.std(axis=0)
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss"}
    model = LogisticRegression(C=10.0)
    (result,) = tree_cross_validate_many([model], X, y, method="newton", **options)
    limit, default = (
        cross_validate(one, X, y, **options)["test_score"] for one in (converged(model), model)
    )
    errors = [np.abs(scores - limit).max() for scores in (result.test_score, default)]
    assert errors[0] < 1e-8 < errors[1]
