"""Logistic models of sparse rows that have more columns than a Hessian can have."""

from typing import Any

from converged_fits import converged
import numpy as np
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.engines.newton import engine
from optuna_treecv.engines.newton import wide

# Mean test losses are promised to 1e-6.
PROMISED = 1e-6

N_ROWS = 240


def rows_of(
    n_classes: int, n_rows: int = N_ROWS, n_columns: int = 60, density: float = 0.1
) -> tuple[sparse.csr_array, np.ndarray]:
    """Return sparse rows, the last columns with one number each, and noisy classes."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((n_rows, n_columns), density=density, format="lil", random_state=rng)
    X[:, -5:] = 0
    X[rng.choice(n_rows, 5, replace=False), range(-5, 0)] = 1
    X = sparse.csr_array(X)
    scores = 3 * X @ rng.normal(size=(n_columns, n_classes))
    return X, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


@pytest.fixture
def as_if_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_COLUMNS", 20)


@pytest.mark.slow
@pytest.mark.usefixtures("as_if_wide")
@pytest.mark.parametrize(
    *pairs(
        n_classes=[2, 3],
        fit_intercept=[True, False],
        class_weight=[None, "balanced", {0: 2.0, 1: 0.5}],
        C=[1e-3, 1.0, 100.0],
        is_float32=[True, False],
        has_weights=[True, False],
    )
)
def test_folds_are_those_of_converged_fits(
    n_classes: int,
    fit_intercept: bool,
    class_weight: Any,
    C: float,
    is_float32: bool,
    has_weights: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_float32:
        monkeypatch.setattr(wide, "_MIN_ROWS_FOR_FLOAT32", 0)
    X, y = rows_of(n_classes)
    weights = np.random.default_rng(0).integers(0, 3, N_ROWS).astype(float)
    model = LogisticRegression(C=C, fit_intercept=fit_intercept, class_weight=class_weight)
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss"}
    options["sample_weight"] = weights if has_weights else None
    result = tree_cross_validate(model, X, y, method="newton", **options)
    expected = tree_cross_validate(converged(model), X.toarray(), y, method="fit", **options)
    np.testing.assert_allclose(result.test_score, expected.test_score, rtol=0, atol=PROMISED)


@pytest.mark.usefixtures("as_if_wide")
def test_predictors_near_the_minimum_are_those_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    made, types = wide.make_multiply, list[type]()

    def make_multiply(rows: sparse.csr_array) -> wide.MultiplyByK:
        products = made(rows)

        def recorded(shares: list[np.ndarray]) -> list[np.ndarray]:
            types.append(shares[0].dtype.type)
            return products(shares)

        return recorded

    monkeypatch.setattr(wide, "make_multiply", make_multiply)
    monkeypatch.setattr(wide, "_MIN_ROWS_FOR_FLOAT32", 0)
    X, y = rows_of(2)
    tree_cross_validate(LogisticRegression(), X, y, cv=KFold(2), method="newton")
    assert types[0] == np.float32
    assert np.float64 in types


@pytest.mark.usefixtures("as_if_wide")
@pytest.mark.parametrize(
    "cv",
    [TimeSeriesSplit(4, gap=3), PredefinedSplit(np.arange(N_ROWS) % 5 - 1)],
    ids=["time", "some rows train all models"],
)
def test_splits_of_any_kind(cv: Any) -> None:
    X, y = rows_of(3)
    model, options = LogisticRegression(), {"cv": cv, "scoring": "neg_log_loss"}
    result = tree_cross_validate(model, X, y, method="newton", **options)
    expected = cross_validate(converged(model), X.toarray(), y, **options)["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=0, atol=PROMISED)


@pytest.mark.usefixtures("as_if_wide")
@pytest.mark.parametrize(("n_classes", "C"), [(2, 30.0), (3, 1e-2)])
def test_no_row_reaches_the_model_that_tests_it(n_classes: int, C: float) -> None:
    X, y = rows_of(n_classes)
    kept = slice(60, 90)  # of the second of four folds
    options: dict[str, Any] = {
        "cv": KFold(4),
        "method": "newton",
        "response_method": "decision_function",
    }
    before = tree_cross_val_predict(LogisticRegression(C=C), X, y, **options)[kept]
    y = y.copy()
    y[60:120] = (y[60:120] + 1) % n_classes
    X = sparse.vstack([X[:90], 2 * X[90:120], X[120:]], format="csr")
    after = tree_cross_val_predict(LogisticRegression(C=C), X, y, **options)[kept]
    np.testing.assert_allclose(after, before, atol=1e-3)


@pytest.mark.usefixtures("as_if_wide")
def test_candidates_in_turns_have_the_scores_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(3)
    models = [LogisticRegression(C=C) for C in (10.0, 1e-3, 0.1)]
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss", "method": "newton"}
    together = tree_cross_validate_many(models, X, y, **options)
    monkeypatch.setattr(wide, "_MAX_BYTES", 2 * 8 * N_ROWS * 3 * wide._N_VECTORS)
    by_two = tree_cross_validate_many(models, X, y, **options)
    for one, other in zip(together, by_two, strict=True):
        np.testing.assert_allclose(one.test_score, other.test_score, rtol=0, atol=PROMISED)


@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "method"), [(3600, "newton"), (2600, "fit")])
def test_many_columns(n_rows: int, method: str) -> None:
    X, y = rows_of(2, n_rows, 1600, 0.01)
    model = LogisticRegression(C=3, tol=1e-9, max_iter=10_000)
    options: dict[str, Any] = {"cv": KFold(3), "scoring": "neg_log_loss"}
    result = tree_cross_validate(model, X, y, **options)
    assert result.method == method
    expected = cross_validate(model, X, y, **options)["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=0, atol=PROMISED)


@pytest.mark.usefixtures("as_if_wide")
def test_models_that_are_not_found_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(2)
    monkeypatch.setattr(engine, "_MIN_TRAINING_ROWS", 0)
    monkeypatch.setattr(wide, "_MAX_ITERATIONS", 9)
    models = [LogisticRegression(C=C) for C in (1e-3, 10.0)]
    results = tree_cross_validate_many(models, X, y, cv=KFold(4))
    assert [result.method for result in results] == ["newton", "fit"]
    assert results[-1].reason == "Newton's method does not converge in a fold"


@pytest.mark.slow
@pytest.mark.usefixtures("as_if_wide")
@pytest.mark.parametrize("name", ["_MAX_SQUARE", "_MAX_TOTAL", "_MAX_TOTAL_OF_CLASSES"])
def test_large_values_of_C_are_fitted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(3 if name == "_MAX_TOTAL_OF_CLASSES" else 2)
    square = float(X.power(2).sum(axis=1).max())
    n_rows = 1 if name == "_MAX_SQUARE" else N_ROWS * 3 / 4
    monkeypatch.setattr(engine, "_MIN_TRAINING_ROWS", 0)
    monkeypatch.setattr(wide, name, 2 * n_rows * square)
    near, far = LogisticRegression(C=1.99), LogisticRegression(C=2.01)
    together = tree_cross_validate_many([near, far], X, y, cv=KFold(4))
    assert [result.method for result in together] == ["newton", "fit"]
    alone = tree_cross_validate(far, X, y, cv=KFold(4))
    assert alone.method == "fit"
    assert "C must be at most 2 " in alone.reason
    options: dict[str, Any] = {"cv": KFold(4), "method": "newton"}
    for model, got in ((far, r"2\.01"), (LogisticRegression(C=np.inf), "inf")):
        with pytest.raises(ValueError, match=f"C must be at most 2 .*got {got}"):
            tree_cross_validate(model, X, y, **options)
    with pytest.raises(ValueError, match="C must be at most 2 "):
        tree_cross_validate_many([near, far], X, y, **options)


@pytest.mark.usefixtures("as_if_wide")
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(solver="liblinear"),
        make_pipeline(StandardScaler(with_mean=False), LogisticRegression()),
    ],
)
def test_other_models_are_fitted(model: Any) -> None:
    X, y = rows_of(2)
    with pytest.raises(ValueError, match="X has more than 20 columns"):
        tree_cross_validate(model, X, y, cv=KFold(4), method="newton")
    with pytest.raises(ValueError, match="X has more than 20 columns"):
        tree_cross_validate(LogisticRegression(), X.toarray(), y, cv=KFold(4), method="newton")


def test_several_classes_of_few_columns_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_COEFFICIENTS", 400)
    X, y = rows_of(9)
    with pytest.raises(ValueError, match="a model has more than 400 coefficients"):
        tree_cross_validate(LogisticRegression(), X, y, cv=KFold(4), method="newton")
