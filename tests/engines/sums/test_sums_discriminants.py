"""Exact folds of discriminant analysis beside models that scikit-learn fits."""

from __future__ import annotations

from itertools import cycle

from exact_chunks import CHUNKS
from exact_chunks import equal_parts
from exact_chunks import folds_of
from exact_chunks import kept
from exact_chunks import N
from exact_chunks import outputs
import numpy as np
from pairs import pairs
import pytest
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.engines.sums.family import LinearDiscriminantFolds
from optuna_treecv.engines.sums.family import QuadraticDiscriminantFolds
from optuna_treecv.plans.family import Facts
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.layout import RowLayout

LINEAR, QUADRATIC = LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
D = 4
SCALERS = {"alone": None, "scaler": StandardScaler(), "no mean": StandardScaler(with_mean=False)}


def numbers(n_classes=3, offset=0.0):
    """Return columns of several scales."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, N)
    X = rng.normal(size=(N, D)) @ rng.normal(size=(D, D)) + rng.normal(size=(n_classes, D))[y]
    return X * [1, 10, 0.1, 1] + offset, y


PRIORS = [0.5, 0.2, 0.3]


def linear(solver, priors=None):
    shrinkages = [None] if solver == "svd" else [None, 1e-3, 0.4, 1.0]
    return [LINEAR(solver=solver, shrinkage=s, priors=priors) for s in shrinkages]


def quadratic(priors=None):
    return [QUADRATIC(reg_param=r, priors=priors, tol=1e-8) for r in (0.0, 1e-3, 0.4, 1.0)]


ESTIMATORS = {
    "svd": linear("svd"),
    "lsqr": linear("lsqr"),
    "eigen": linear("eigen"),
    "quadratic": quadratic(),
}


def prepared(X, y):
    layout = RowLayout(padded=True, sparse=True, target="class")
    return Data(X, y).prepare(layout, np.arange(len(y), dtype=np.uint32))


def family_of(estimators, X, y, scaler=None, n_jobs=1):
    is_linear = isinstance(estimators[0], LINEAR)
    family = LinearDiscriminantFolds if is_linear else QuadraticDiscriminantFolds
    return family(estimators, prepared(X, y), scaler, n_jobs)


def assert_as_fits(estimators, X, y, chunks, scaler=None, rtol=1e-10):
    family = family_of(estimators, X, y, scaler)
    found = outputs(family, chunks)
    wide = X.astype(np.float64)
    every = list(folds_of(chunks))
    for places, train, test in every if len(every) <= 10 else every[::3]:  # to take less time
        for said, estimator in zip(found, estimators, strict=True):
            model = estimator if scaler is None else make_pipeline(clone(scaler), estimator)
            model.fit(wide[train], y[train])
            for method in ("decision_function", "predict_proba"):
                expected = getattr(model, method)(wide[test])
                atol = rtol * np.abs(expected).max()
                own = family.response(said[places], method)
                np.testing.assert_allclose(own, expected, rtol=rtol, atol=atol)
            codes = family.response(said[places], "predict")
            assert np.array_equal(family._classes[codes], model.predict(wide[test]))


_, CASES = pairs(
    estimators=ESTIMATORS,
    scaler=SCALERS,
    kind=["three classes", "two classes", "priors", "float32"],
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimators", "scaler", "kind", "chunks"),
    [(*case, chunks) for case, chunks in zip(CASES, cycle(CHUNKS), strict=False)],
)
def test_outputs_are_those_of_fits(chunks, estimators, scaler, kind):
    """float32 rows are summed in float64, where scikit-learn stays in float32 in parts."""
    X, y = numbers(2 if kind == "two classes" else 3)
    X = X.astype(np.float32) if kind == "float32" else X
    family = [clone(estimator) for estimator in ESTIMATORS[estimators]]
    if kind == "priors":
        family = [estimator.set_params(priors=PRIORS) for estimator in family]
    assert_as_fits(family, X, y, CHUNKS[chunks], SCALERS[scaler])


@pytest.mark.parametrize("k", [5, N])
@pytest.mark.parametrize("name", ["svd", "quadratic"])
def test_large_offsets(name, k):
    """scikit-learn's refit itself errs by more: its own means have rounding errors of 1e-10."""
    X, y = numbers()
    shifted = X + 1e6
    near = outputs(family_of(ESTIMATORS[name], shifted - 1e6, y), equal_parts(k))
    far = outputs(family_of(ESTIMATORS[name], shifted, y), equal_parts(k))
    np.testing.assert_allclose(far, near, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_dependent_columns():
    """The solver svd leaves out directions without variance, one of which a single row has."""
    X, y = numbers()
    groups = np.eye(3)[np.arange(N) % 3]
    once = (np.arange(N) == 7)[:, None]
    X = np.hstack([X, groups, once, np.full((N, 1), 2.0), X[:, :1] + X[:, 1:2]])
    for k in (2, N):
        assert_as_fits(linear("svd"), X, y, equal_parts(k), rtol=1e-8)
        assert_as_fits(linear("svd"), X, y, equal_parts(k), StandardScaler(), rtol=1e-8)
        assert_as_fits(quadratic()[2:], X[:, 3:], y, equal_parts(k))
        assert_as_fits(linear("lsqr")[2:], X, y, equal_parts(k))
        assert_as_fits(linear("eigen")[2:], X, y, equal_parts(k))


@pytest.mark.slow
def test_rows_with_large_leverage():
    X, y = numbers()
    X[3] *= 1e3
    X[[11, 12], 1] = 1e7
    for estimators in (linear("svd"), linear("eigen")[:1], quadratic()[2:]):
        assert_as_fits(estimators, X, y, equal_parts(N), rtol=1e-7)


def test_close_means_of_classes_are_one_direction():
    """The solver svd drops directions in which the means of classes hardly differ."""
    X, y = numbers()
    X = X / [1, 10, 0.1, 1] + np.array([0, 3e4, 3e4 + 1e-3])[y][:, None]
    for k in (2, N):
        assert_as_fits(linear("svd"), X, y, equal_parts(k), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.9, 0.9999, 1.0001, 1.1])
def test_directions_that_are_dropped_without_some_rows(factor):
    """The rank that ``tol`` decides on may differ without a single row."""
    y = np.arange(N) % 2
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, 2)) @ [[1, 1], [0, 0.1]] + y[:, None] * [3, 1]
    within = X - np.array([X[y == g].mean(axis=0) for g in range(2)])[y]
    smallest = np.linalg.eigvalsh(np.corrcoef(within.T))[0]
    for k in (5, N):
        rank = [LINEAR(tol=np.sqrt(factor * smallest))]
        assert_as_fits(rank, X, y, equal_parts(k))
    y = rng.integers(0, 3, N)
    X = rng.normal(size=(N, 2)) + np.array([[0, 0], [4, 0], [2, 1]])[y]
    fitted = LINEAR().fit(X, y)
    largest, second = np.sqrt(fitted.explained_variance_ratio_)
    between = [LINEAR(tol=factor * second / largest)]
    for k in (5, N):
        assert_as_fits(between, X, y, equal_parts(k))


@pytest.mark.slow
@pytest.mark.parametrize("estimators", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("k", [10, N])
def test_a_row_does_not_leak_into_its_own_fold(estimators, k):
    """Rows that are far away change the model of their own fold by rounding errors only.

    The shortcuts for single rows read all rows, so that these are left out directly.
    """
    X, y = numbers()
    chunks = equal_parts(k)
    far, probe = X.copy(), X.copy()
    own = np.arange(N // k)
    is_quadratic = isinstance(estimators[0], QUADRATIC)
    far[own] *= 1e4 if is_quadratic else 1e9
    estimators = estimators[-2:]  # the other folds cannot be evaluated without a penalty
    for scaler in SCALERS.values():
        said = outputs(family_of(estimators, far, y, scaler), chunks)[:, own]
        assert np.all(np.isfinite(said))
        for number, estimator in enumerate(estimators):
            model = estimator if scaler is None else make_pipeline(clone(scaler), estimator)
            model.fit(X[len(own) :], y[len(own) :])
            expected = model.decision_function(far[own])
            scale = np.abs(expected).max()
            found = family_of([estimator], probe, y).response(said[number], "decision_function")
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("estimators", ESTIMATORS.values(), ids=ESTIMATORS)
def test_threads_do_not_change_a_bit(estimators):
    X, y = numbers()
    for name in ("10", "n", "groups"):
        one, several = (
            outputs(family_of(estimators, X, y, n_jobs=n_jobs), CHUNKS[name]) for n_jobs in (1, 3)
        )
        assert np.array_equal(one, several)


@pytest.mark.slow
def test_groups_of_folds_and_factors_that_are_not_kept(monkeypatch):
    X, y = numbers()
    monkeypatch.setattr("optuna_treecv.numerics.moments.MAX_BYTES", 1000)
    monkeypatch.setattr("optuna_treecv.engines.sums.family._MAX_BYTES", 0)
    for estimators in ESTIMATORS.values():
        assert_as_fits(estimators, X, y, CHUNKS["10"])


def test_factors_serve_further_points():
    X, y = numbers()
    for chunks in (CHUNKS["10"], CHUNKS["n"]):
        for estimators in (linear("eigen"), quadratic()):
            arrays = {}

            def keep(name, size, make, arrays=arrays):
                if name not in arrays:
                    arrays[name] = kept(name, size, make)
                return arrays[name]

            every = []
            for estimator in estimators:
                family = family_of([estimator], X, y)
                every.append(np.concatenate([o[0] for _, o in family.test(chunks, keep, 25)]))
                assert len(arrays) == 1
            np.testing.assert_allclose(
                every, outputs(family_of(estimators, X, y), chunks), rtol=1e-12, atol=1e-12
            )


def test_outliers_that_hide_the_covariance_are_refused():
    """Sums over such rows lose what their other directions are, so that scores would be wrong."""
    X, y = numbers()
    X[[40, 43, 46]] *= 1e9
    for k in (3, N):
        with pytest.raises(ValueError, match="cannot be computed precisely .* method='fit'"):
            outputs(family_of(quadratic()[2:3], X, y), equal_parts(k))


def facts(**changed):
    return Facts(**{"n_features": 4, "n_trained": 90, "n_of_class": 20} | changed)


@pytest.mark.parametrize(
    ("estimator", "changed", "why"),
    [
        (LINEAR(), {}, ""),
        (LINEAR(solver="lsqr", shrinkage=0.1), {"n_folds": 10}, ""),
        (LINEAR(solver="lsqr", shrinkage="auto"), {}, "fourth moments"),
        (LINEAR(shrinkage=0.1), {}, "does not support shrinkage"),
        (LINEAR(tol=1e-9), {}, "tol"),
        (LINEAR(priors=[0.0, 1.0]), {}, "prior"),
        (LINEAR(), {"is_sparse": True}, "sparse"),
        (LINEAR(), {"has_weights": True}, "weights"),
        (LINEAR(), {"n_of_class": 0}, "no row of a class"),
        (LINEAR(), {"n_features": 100}, "at least as many columns"),
        (LINEAR(), {"n_trained": 4999, "n_folds": 5000}, ""),
        (LINEAR(solver="eigen"), {"n_trained": 4999, "n_folds": 5000}, ""),
        (QUADRATIC(), {}, ""),
        (QUADRATIC(solver="eigen", shrinkage=0.1), {}, "shrinkage"),
        (QUADRATIC(), {"n_of_class": 1, "n_features": 1}, "only one row of a class"),
        (QUADRATIC(), {"n_of_class": 3}, "fewer rows"),
        (QUADRATIC(), {"n_trained": 4999, "n_folds": 5000}, ""),
    ],
)
def test_why_not(estimator, changed, why):
    family = LinearDiscriminantFolds if type(estimator) is LINEAR else QuadraticDiscriminantFolds
    found = family.why_not(estimator, facts(**changed))
    assert (why in found) if why else found == ""


@pytest.mark.parametrize("k", [10, N])
def test_models_that_are_not_defined_are_refused(k):
    X, y = numbers()
    alike = np.hstack([X[:, :3], X[:, 2:3]])
    rare = np.where(np.arange(N) == 5, 2, y % 2)
    for estimators, rows, labels, message in (
        (quadratic(), alike, y, "must have full rank"),
        (linear("eigen"), alike, y, "shrinkage must be above 0 with solver='eigen'"),
        (linear("svd"), np.ones((N, 2)), y, "got only columns that are constant"),
        (linear("svd"), X, rare, "at least 1 row of each class"),
        (quadratic(), X, rare, "at least 2 rows of each class"),
        (linear("svd", [0.5, 0.5]), X, y, "priors must have one value for each of the 3 classes"),
        ([LINEAR(n_components=3)], X, y, r"n_components must be at most min.* = 2"),
    ):
        with pytest.raises(ValueError, match=message):
            outputs(family_of(estimators, rows, labels), equal_parts(k))
