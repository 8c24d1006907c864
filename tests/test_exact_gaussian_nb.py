"""Exact folds of Gaussian naive Bayes beside models that scikit-learn fits."""

from __future__ import annotations

from exact_chunks import CHUNKS
from exact_chunks import folds_of
from exact_chunks import kept
from exact_chunks import N
from exact_chunks import outputs
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.gaussian_nb import GaussianNBFolds
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import RowLayout

SMOOTHINGS = [1e-12, 1e-3, 3.0]
SCALERS = {
    "alone": None,
    "scaler": StandardScaler(),
    "no mean": StandardScaler(with_mean=False),
    "no std": StandardScaler(with_std=False),
}


def numbers(offset=0.0):
    """Return columns of several scales, a rare dummy, one that is set once, and a constant."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, N, p=[0.5, 0.3, 0.2])
    X = rng.normal(size=(N, 6)) * [1, 10, 0.1, 1, 1, 1] + y[:, None] * [1, 2, 0.1, 0, 0, 0]
    X[:, 3] = rng.random(N) < 0.15
    X[:, 4] = np.arange(N) == 7
    X[:, 5] = 2.0
    return X + offset, y


def prepared(X, y, weights=None, order=None):
    data = Data(X, y)
    data.weights = weights
    order = np.arange(len(y)) if order is None else order
    layout = RowLayout(padded=True, sparse=True, target="class")
    return data.prepare(layout, order.astype(np.uint32))


def family_of(rows, scaler=None, smoothings=SMOOTHINGS, priors=None, n_jobs=1):
    estimators = [GaussianNB(var_smoothing=one, priors=priors) for one in smoothings]
    return GaussianNBFolds(estimators, rows, scaler, n_jobs)


def fitted(X, y, train, test, smoothing, scaler=None, weights=None, priors=None):
    """Return what a model that is fitted on the training rows says of the test rows."""
    A, B = X[train].astype(np.float64), X[test].astype(np.float64)
    if scaler is not None:
        own = clone(scaler).fit(A)
        A, B = own.transform(A), own.transform(B)
    model = GaussianNB(var_smoothing=smoothing, priors=priors)
    model.fit(A, y[train], sample_weight=None if weights is None else weights[train])
    return model.predict_joint_log_proba(B)


def assert_as_fits(found, X, y, chunks, rtol=1e-10, **options):
    for places, train, test in folds_of(chunks):
        for said, smoothing in zip(found, SMOOTHINGS, strict=True):
            expected = fitted(X, y, train, test, smoothing, **options)
            np.testing.assert_allclose(said[places], expected, rtol=rtol, atol=rtol)
            assert np.array_equal(said[places].argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("scaler", SCALERS.values(), ids=SCALERS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_outputs_are_those_of_fits(chunks, weighted, scaler):
    X, y = numbers()
    weights = np.random.default_rng(2).integers(0, 4, N) * 0.7 if weighted else None
    found = outputs(family_of(prepared(X, y, weights), scaler), chunks)
    assert_as_fits(found, X, y, chunks, scaler=scaler, weights=weights)


@pytest.mark.parametrize("factor", [1e-50, 1e50])
@pytest.mark.parametrize("chunks", [CHUNKS["10"], CHUNKS["n"]], ids=["10", "n"])
def test_columns_of_very_large_and_small_numbers(chunks, factor):
    X, y = numbers()
    X[:, :3] *= factor
    assert_as_fits(outputs(family_of(prepared(X, y)), chunks), X, y, chunks)


def test_weights_of_very_different_sizes():
    X, y = numbers()
    weights = np.ones(N)
    weights[[3, 5, 9]] = 1e13, 1e-13, 1e6
    for chunks in (CHUNKS["10"], CHUNKS["n"]):
        found = outputs(family_of(prepared(X, y, weights)), chunks)
        assert_as_fits(found, X, y, chunks, weights=weights)


def test_single_rows_in_another_order():
    X, y = numbers()
    order = np.random.default_rng(4).permutation(N)
    chunks = Chunks(N, np.arange(N + 1), order)
    assert_as_fits(outputs(family_of(prepared(X, y)), chunks), X, y, chunks)


@pytest.mark.parametrize("chunks", [CHUNKS["10"], CHUNKS["n"]], ids=["10", "n"])
def test_priors(chunks):
    X, y = numbers()
    priors = [0.2, 0.2, 0.6]
    found = outputs(family_of(prepared(X, y), priors=priors), chunks)
    assert_as_fits(found, X, y, chunks, priors=priors)


@pytest.mark.parametrize("scaler", [None, StandardScaler()], ids=["alone", "scaler"])
@pytest.mark.parametrize("chunks", [CHUNKS["10"], CHUNKS["n"]], ids=["10", "n"])
def test_float32_rows_are_summed_in_float64(chunks, scaler):
    X, y = numbers()
    X = X.astype(np.float32)
    rows = prepared(X, y)
    assert rows.X.dtype == np.float32
    assert_as_fits(outputs(family_of(rows, scaler), chunks), X, y, chunks, scaler=scaler)


def in_long_double(X, y, train, test, smoothing):
    X = X.astype(np.longdouble)
    of_classes = [X[train][y[train] == code] for code in range(3)]
    added = smoothing * X[train].var(axis=0).max()
    said = []
    for rows in of_classes:
        variance = rows.var(axis=0) + added
        distances = np.square(X[test] - rows.mean(axis=0)) / variance
        normal = np.log(2 * np.longdouble(np.pi) * variance)
        prior = np.log(np.longdouble(len(rows)) / len(train))
        said.append(prior - (normal + distances).sum(axis=1) / 2)
    return np.stack(said, axis=1)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("chunks", [CHUNKS["10"], CHUNKS["n"]], ids=["10", "n"])
def test_errors_are_not_larger_than_those_of_fits(chunks, offset):
    X, y = numbers(offset)
    found = outputs(family_of(prepared(X, y)), chunks)
    for said, smoothing in zip(found, SMOOTHINGS, strict=True):
        ours, theirs = [0.0], [0.0]
        for places, train, test in folds_of(chunks):
            exact = in_long_double(X, y, train, test, smoothing)
            for errors, one in (
                (ours, said[places]),
                (theirs, fitted(X, y, train, test, smoothing)),
            ):
                errors.append(float(np.max(np.abs(one - exact) / (1 + np.abs(exact)))))
        assert max(ours) <= max(10 * max(theirs), 1e-12)


@pytest.mark.parametrize("scaler", [None, StandardScaler()], ids=["alone", "scaler"])
@pytest.mark.parametrize("chunks", [CHUNKS["10"], CHUNKS["n"]], ids=["10", "n"])
def test_a_tested_row_does_not_act_on_its_model(chunks, scaler):
    X, y = numbers()
    far = X.copy()
    far[33] = (far[33] + 0.1) * 1e9
    found, with_far = (outputs(family_of(prepared(rows, y), scaler), chunks) for rows in (X, far))
    for places, train, test in folds_of(chunks):
        if 33 not in test:
            continue
        for said, smoothing in zip(with_far, SMOOTHINGS, strict=True):
            expected = fitted(far, y, train, test, smoothing, scaler=scaler)
            np.testing.assert_allclose(said[places], expected, rtol=1e-12, atol=1e-10)
        others = places[test != 33]
        np.testing.assert_allclose(with_far[:, others], found[:, others], rtol=1e-12, atol=1e-12)


def test_single_rows_of_many_rows():
    """Smoothings are interpolated; far rows and small classes have intervals of their own."""
    rng = np.random.default_rng(3)
    n = 5000
    y = (rng.random(n) < 0.003).astype(int)
    X = rng.standard_t(2, (n, 4)) * [1, 1.01, 1.02, 0.01] + y[:, None]
    chunks = Chunks(n, np.arange(n + 1))
    found = outputs(family_of(prepared(X, y)), chunks, most_rows=2000)
    extremes = np.argsort(np.abs(X[:, :3]).max(axis=1))[[0, 1, -3, -2, -1]]
    for row in {*extremes, *np.flatnonzero(y)[:5], 0, 1999, 2000, n - 1}:
        train = np.delete(np.arange(n), row)
        for said, smoothing in zip(found, SMOOTHINGS, strict=True):
            expected = fitted(X, y, train, [row], smoothing)
            np.testing.assert_allclose(said[[row]], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_numbers_depend_on_nothing_but_the_rows(chunks):
    X, y = numbers()
    rows = prepared(X, y)
    first = outputs(family_of(rows), chunks)
    assert np.array_equal(first, outputs(family_of(rows, n_jobs=3), chunks))
    each = [outputs(family_of(rows, smoothings=[one]), chunks)[0] for one in SMOOTHINGS]
    np.testing.assert_allclose(first, each, rtol=1e-12, atol=1e-12)


def test_further_points_read_no_moments():
    X, y = numbers()
    family = family_of(prepared(X, y))
    for chunks in (CHUNKS["10"], CHUNKS["n"]):
        memories, n_made = {}, []

        def keep(name, size, make, memories=memories, n_made=n_made):
            if name not in memories:
                n_made.append(name)
                memories[name] = kept(name, size, make)
            return memories[name]

        first, second = (
            np.concatenate([one.outputs for one in family.test(chunks, keep, 25)], 1)
            for _ in range(2)
        )
        assert len(n_made) == 1 and np.array_equal(first, second)


def test_folds_above_the_bound_of_memory(monkeypatch):
    X, y = numbers()
    family = family_of(prepared(X, y))
    expected = outputs(family, CHUNKS["10"])
    monkeypatch.setattr("optuna_treecv.learners.exact.records._MOST_BYTES", 0)
    assert np.array_equal(outputs(family, CHUNKS["10"]), expected)


def test_responses():
    X, y = numbers()
    family = family_of(prepared(X, y), smoothings=[0.1])
    said = outputs(family, CHUNKS["10"])[0]
    for places, train, test in folds_of(CHUNKS["10"]):
        model = GaussianNB(var_smoothing=0.1).fit(X[train], y[train])
        assert np.array_equal(family.respond(said[places], "predict"), model.predict(X[test]))
        probabilities = family.respond(said[places], "predict_proba")
        np.testing.assert_allclose(probabilities, model.predict_proba(X[test]), rtol=1e-10)


FACTS = Facts(6, False, False, False, 100, 20)


@pytest.mark.parametrize(
    ("facts", "priors", "why"),
    [
        ({}, None, ""),
        ({}, [0.2, 0.8], ""),
        ({"is_sparse": True}, None, "GaussianNB takes no sparse rows"),
        ({"n_of_class": 0}, None, "a training set lacks a class"),
        ({}, [0, 1], "a prior is 0"),
    ],
)
def test_why_not(facts, priors, why):
    assert GaussianNBFolds.why_not(GaussianNB(priors=priors), FACTS._replace(**facts)) == why


@pytest.mark.parametrize("chunks", [CHUNKS["2"], CHUNKS["n"]], ids=["2", "n"])
def test_bad_input_is_refused_in_a_sentence(chunks):
    X, y = numbers()
    rows = prepared(X, y)
    with pytest.raises(ValueError, match=r"^var_smoothing must be above 0 where a column of X is"):
        outputs(family_of(rows, smoothings=[0.0]), chunks)
    weights = np.where(y == 2, 0.0, 1.0)
    with pytest.raises(
        ValueError, match="^sample_weight must be above 0 for some row of each class"
    ):
        outputs(family_of(prepared(X, y, weights)), chunks)
    with pytest.raises(ValueError, match="priors must hold a number for each of the 3 classes"):
        family_of(rows, priors=[0.5, 0.5])
    for priors in ([0.5, 0.5, 0.5], [-0.5, 0.5, 1]):
        with pytest.raises(
            ValueError, match="priors must be numbers of at least 0 with the sum 1"
        ):
            family_of(rows, priors=priors)


@pytest.mark.parametrize("chunks", [CHUNKS["10"], CHUNKS["n"]], ids=["10", "n"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_variances_that_overflow_are_not_finite(chunks):
    X, y = numbers()
    found = outputs(family_of(prepared(np.sign(X - 0.5) * 1e200, y)), chunks)
    assert not np.any(np.isfinite(found).all(axis=2))


def test_equal_rows_of_a_fold_get_equal_outputs():
    """Ties between rows, as an area under a curve counts them, must not be broken by rounding."""
    rng = np.random.default_rng(0)
    X = (rng.random((200, 5)) > 0.5).astype(float)
    y = (X[:, 0] + rng.random(200) > 1).astype(int)
    said = tree_cross_val_predict(
        GaussianNB(var_smoothing=0.1), X, y, cv=KFold(3), response_method="predict_proba"
    )
    for _, test in KFold(3).split(X):
        distinct, group = np.unique(X[test], axis=0, return_inverse=True)
        for number in range(len(distinct)):
            assert len(np.unique(said[test][group.ravel() == number], axis=0)) == 1
