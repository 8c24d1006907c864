"""Leave-one-out from the model of all rows is that of fits that have converged."""

from __future__ import annotations

from typing import Any

from converged_fits import converged
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_iris
from sklearn.linear_model import GammaRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import TweedieRegressor
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from optuna_treecv import pooled
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv.engines.newton import left_out
from optuna_treecv.engines.newton.left_out import LeaveOneOutModels

# What is promised of the loss of each row, and of the mean of all of them.
OF_ROWS, OF_MEAN = 1e-4, 1e-6


def cancer(n_rows: int = 569) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X)[:n_rows], y[:n_rows]


def of_fits(
    estimator: Any, X: np.ndarray, y: np.ndarray, rows: np.ndarray, weights: Any, method: str
) -> np.ndarray:
    """Return what fits to all rows but one say of it."""
    outputs = []
    for row in rows:
        train = np.delete(np.arange(len(y)), row)
        model = converged(estimator)
        name = f"{model.steps[-1][0]}__" if hasattr(model, "steps") else ""
        options = {} if weights is None else {f"{name}sample_weight": weights[train]}
        outputs.append(getattr(model.fit(X[train], y[train], **options), method)(X[[row]])[0])
    return np.array(outputs)


def losses(outputs: np.ndarray, y: np.ndarray, method: str) -> np.ndarray:
    if method == "predict":
        return outputs - y * np.log(outputs)
    if outputs.ndim == 1:
        return np.logaddexp(0, (1 - 2 * y) * outputs)
    largest = outputs.max(axis=1, keepdims=True)
    sums = np.log(np.exp(outputs - largest).sum(axis=1)) + largest[:, 0]
    return sums - outputs[np.arange(len(y)), y]


def assert_rows(
    estimator: Any,
    X: np.ndarray,
    y: np.ndarray,
    rows: Any = None,
    weights: Any = None,
    method: str = "decision_function",
) -> None:
    """Compare what the models of all rows but one say of it with fits."""
    rows = np.arange(len(y)) if rows is None else rows
    ours = tree_cross_val_predict(
        estimator,
        X,
        y,
        cv=LeaveOneOut(),
        method="newton",
        response_method=method,
        sample_weight=weights,
    )[rows]
    theirs = of_fits(estimator, X, y, rows, weights, method)
    changes = losses(ours, y[rows], method) - losses(theirs, y[rows], method)
    assert np.abs(changes).max() < OF_ROWS
    assert abs(changes.mean()) < OF_MEAN


def some_rows(n_rows: int, n: int = 20) -> np.ndarray:
    return np.random.default_rng(0).choice(n_rows, n, replace=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(C=1e-3),
        LogisticRegression(C=100),
        LogisticRegression(fit_intercept=False, class_weight={0: 3.0}),
        LogisticRegression(solver="liblinear", intercept_scaling=0.5),
        make_pipeline(StandardScaler(), LogisticRegression(C=0.01)),
    ],
)
def test_rows_are_those_of_fits(model: Any) -> None:
    X, y = cancer(300)
    assert_rows(model, X, y, some_rows(len(y)))


@pytest.mark.slow
def test_weights_and_several_classes() -> None:
    X, y = cancer(200)
    weights = np.random.default_rng(0).integers(0, 3, len(y)).clip(1e-3)
    assert_rows(LogisticRegression(), X, y, some_rows(len(y)), weights)
    X, y = load_iris(return_X_y=True)
    for C in (0.1, 100.0):
        assert_rows(LogisticRegression(C=C), scale(X), y, some_rows(len(y)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "is_weighted"),
    [
        (PoissonRegressor(alpha=0.3), True),
        (make_pipeline(StandardScaler(), PoissonRegressor(alpha=1)), False),
        (GammaRegressor(), False),
        (TweedieRegressor(power=1.4, alpha=0.01), True),
        (make_pipeline(StandardScaler(), TweedieRegressor(power=1.4, alpha=0.01)), False),
        (TweedieRegressor(alpha=0.1), True),
    ],
)
def test_rows_of_mean_losses(model: Any, is_weighted: bool) -> None:
    # A penalty beside a mean of losses is another one for each row that is left out.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = rng.poisson(np.exp(0.5 * X[:, 0] + 1)) + 1.0
    weights = rng.uniform(0.5, 3, 60) if is_weighted else None
    assert_rows(model, X, y, some_rows(60, 15), weights, "predict")


@pytest.mark.slow
def test_a_column_that_varies_by_one_row() -> None:
    # Without it, its coefficient is 0, and the row would have decided it.
    X, y = cancer(100)
    X[:, 3], X[:, 4] = 0, 2
    X[5, 3] = 8 * y[5] - 4
    for C in (1.0, 1e4):
        assert_rows(LogisticRegression(C=C), X, y, np.r_[5, some_rows(100, 15)])


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_a_row_has_no_part_in_its_prediction(factor: float) -> None:
    X, y = cancer(150)
    model, method = LogisticRegression(), "decision_function"
    for row in (7, 20):
        changed, labels = X.copy(), y.copy()
        changed[row] *= factor
        expected = of_fits(model, changed, y, np.array([row]), None, method)
        for label in (0, 1):
            labels[row] = label
            ours = tree_cross_val_predict(
                *(model, changed, labels),
                cv=LeaveOneOut(),
                method="newton",
                response_method=method,
            )[row]
            np.testing.assert_allclose(ours, expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_errors_are_within_their_bounds(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    n_rows = 500
    codes = rng.geometric(0.25, size=n_rows).clip(0, 15)  # some are rare
    X = np.concatenate([np.eye(16)[codes], rng.normal(size=(n_rows, 3))], axis=1)
    y = (X @ rng.normal(size=(19, n_classes)) + rng.gumbel(size=(n_rows, n_classes))).argmax(1)
    monkeypatch.setattr(left_out, "_N_EXACT", (16, 64))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=10))
    bounds: list[Any] = []
    finals: list[np.ndarray] = []

    def one_step(self: Any, *args: Any) -> Any:
        outputs, errors = steps(self, *args)
        bounds.append((slice(None), outputs.copy(), errors.copy()))
        return outputs, errors

    def refine(self: Any, some: np.ndarray, *args: Any) -> Any:
        outputs, errors = refined(self, some, *args)
        bounds.append((some, outputs.copy(), errors.copy()))
        return outputs, errors

    def final(self: Any) -> Any:
        finals.append(outputs_of(self)[0])
        return outputs_of(self)

    steps, refined, outputs_of = (
        LeaveOneOutModels._one_step,
        LeaveOneOutModels._refine,
        LeaveOneOutModels.predict,
    )
    options: dict[str, Any] = {"cv": LeaveOneOut(), "response_method": "decision_function"}
    with monkeypatch.context() as patch:
        patch.setattr(LeaveOneOutModels, "_one_step", one_step)
        patch.setattr(LeaveOneOutModels, "_refine", refine)
        ours = tree_cross_val_predict(model, X, y, method="newton", **options)
    monkeypatch.undo()
    monkeypatch.setattr(LeaveOneOutModels, "predict", final)  # with sums over all rows
    exact_in_order = tree_cross_val_predict(model, X, y, method="newton", **options)
    np.testing.assert_allclose(ours, exact_in_order, atol=1e-4)
    exact = finals[0]
    assert len(bounds) > 4
    n_finite = 0
    for some, outputs, errors in bounds:
        off = np.linalg.norm(outputs - exact[some], axis=1)
        n_finite += np.isfinite(errors).sum()
        assert np.all(off <= errors + 1e-5)
    assert n_finite > 1000
    rows = some_rows(n_rows, 20)
    theirs = of_fits(model, X, y, rows, None, "decision_function")
    np.testing.assert_allclose(exact_in_order[rows], theirs, atol=1e-4)


@pytest.mark.slow
def test_a_large_table_begins_at_a_part_of_its_rows() -> None:
    rng = np.random.default_rng(0)
    n_rows = 70_000
    X = rng.normal(size=(n_rows, 3))
    X = np.column_stack([X, np.arange(n_rows) < 3, np.arange(n_rows) % 7000 == 1])
    y = (X[:, 0] + X[:, 3] + rng.logistic(size=n_rows) > 0).astype(int)
    result = tree_cross_validate(
        LogisticRegression(), X, y, cv=LeaveOneOut(), scoring=pooled("neg_log_loss")
    )
    assert result.method == "newton"
    rows = np.array([0, 1, 2, 7001, 500])
    ours = tree_cross_val_predict(
        LogisticRegression(), X, y, cv=LeaveOneOut(), response_method="decision_function"
    )
    theirs = of_fits(LogisticRegression(), X, y, rows, None, "decision_function")
    np.testing.assert_allclose(ours[rows], theirs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", [LogisticRegression(class_weight="balanced"), LinearSVC()])
def test_few_rows_of_other_models_are_folds(model: Any) -> None:
    X, y = cancer(40)
    options: dict[str, Any] = {"cv": LeaveOneOut(), "scoring": "accuracy"}
    ours = tree_cross_validate(model, X, y, method="newton", **options)
    theirs = tree_cross_validate(clone(model).set_params(tol=1e-8), X, y, method="fit", **options)
    np.testing.assert_array_equal(ours.test_score, theirs.test_score)


@pytest.mark.slow
def test_many_folds() -> None:
    X, y = cancer(150)
    options: dict[str, Any] = {"cv": KFold(75), "scoring": pooled("neg_log_loss")}
    ours = tree_cross_validate(LogisticRegression(), X, y, method="newton", **options)
    theirs = tree_cross_validate(converged(LogisticRegression()), X, y, method="fit", **options)
    assert ours.mean == pytest.approx(theirs.mean, abs=OF_MEAN)


@pytest.mark.parametrize(
    ("model", "cv", "why"),
    [
        (LogisticRegression(class_weight="balanced"), LeaveOneOut(), "changes the weights of all"),
        (LinearSVC(), LeaveOneOut(), "not twice differentiable"),
        (LogisticRegression(), KFold(1001), "there are more than 1,000 folds"),
        (
            make_pipeline(StandardScaler(), LogisticRegression(solver="liblinear")),
            LeaveOneOut(),
            "a StandardScaler precedes",
        ),
    ],
)
def test_more_rows_of_other_models_are_fitted(model: Any, cv: Any, why: str) -> None:
    X = np.random.default_rng(0).normal(size=(1100, 2))
    y = (X[:, 0] > 0).astype(int)
    with pytest.raises(ValueError, match=why):
        tree_cross_validate(model, X, y, cv=cv, method="newton")
