"""The default settings: the automatic step, and the stages of streaming SVRG."""

from __future__ import annotations

from ids import said
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.datasets import make_classification
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate

CLASSIFIERS = [
    StreamingSVRGClassifier(random_state=0),
    AveragedSGDClassifier("log_loss", random_state=0),
]
REGRESSORS = [AveragedSGDRegressor(random_state=0), StreamingSVRGRegressor(random_state=0)]
AUTOMATIC = [
    *CLASSIFIERS,
    *REGRESSORS,
    AveragedSGDClassifier(step_size="auto", random_state=0),
    AveragedSGDClassifier("log_loss", step_size="auto", batch_size=4, random_state=0),
    AveragedSGDRegressor("huber", learning_rate="invscaling", random_state=0),
    StreamingSVRGRegressor("huber", schedule="factorial", random_state=0),
]


def classes(n_rows=3000):
    return make_classification(n_rows, 20, n_informative=10, flip_y=0.1, random_state=1)


def numbers(n_rows=3000, noise=0.5):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 20))
    w = rng.normal(size=20)
    y = X @ (w / np.linalg.norm(w)) + noise * rng.normal(size=n_rows)
    return X, y


def rare_columns(X, n_columns=60, n_ones=4):
    """Append columns of few ones, which standardising makes large."""
    rng = np.random.default_rng(0)
    rare = np.zeros((len(X), n_columns))
    for column in rare.T:
        column[rng.choice(len(X), n_ones, replace=False)] = 1
    return np.hstack([X, scale(rare)])


def loss(estimator, X, y):
    return tree_cross_validate(estimator, X, y, cv=5, random_state=0).test_score.mean()


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=said)
def test_classifiers_err_as_averaged_sgd_does(estimator):
    X, y = classes()
    heavy = X.copy()
    heavy[:: len(X) // 8] *= 100
    for rows in (X, heavy, rare_columns(X)):
        assert loss(estimator, rows, y) <= 1.1 * loss(AveragedSGDClassifier(), X, y)


@pytest.mark.parametrize("estimator", REGRESSORS, ids=said)
def test_regressors_come_near_the_noise(estimator):
    X, y = numbers()
    assert loss(estimator, X, y) <= 1.1 * 0.25
    assert loss(estimator, rare_columns(X), y) <= 0.7  # of a variance of 1.25


# Rows on which a constant step size diverges, from rows of about the same size.
HOSTILE = {
    "unscaled": lambda X: X * 10.0 ** np.random.default_rng(1).integers(-3, 4, 20),
    "one column of thousands": lambda X: X * np.where(np.arange(20) == 3, 1e3, 1),
    "large first row": lambda X: X * np.where(np.arange(800) == 0, 1e6, 1)[:, None],
    "outliers": lambda X: X * np.where(np.arange(800) % 100 == 57, 1e4, 1)[:, None],
    "growing rows": lambda X: X * np.geomspace(1, 1e6, 800)[:, None],
    "heavy tails": lambda X: np.random.default_rng(1).standard_cauchy(size=X.shape),
    "huge": lambda X: X * 1e100,
    "tiny": lambda X: X * 1e-100,
    "rare columns": lambda X: rare_columns(X, 40, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("estimator", AUTOMATIC, ids=said)
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_rows_make_it_diverge(estimator, kind):
    X, y = numbers(800)
    X = HOSTILE[kind](X)
    if is_classifier(estimator):
        y = y > 0
    model = clone(estimator).set_params(shuffle=False).fit(X, y)
    assert np.isfinite(model.coef_).all()
    if not is_classifier(estimator):
        # No weights are needed that are larger than those which fit the smallest row.
        smallest = np.linalg.norm(X, axis=1).min()
        assert np.linalg.norm(model.coef_) * smallest <= 10 * np.abs(y).max()


@pytest.mark.parametrize("estimator", AUTOMATIC, ids=said)
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**10])
def test_the_unit_of_features_does_not_matter(estimator, factor):
    X, y = numbers(500)
    if is_classifier(estimator):
        y = y > 0
    model = clone(estimator).set_params(alpha=0.0, fit_intercept=False)
    first = model.fit(X, y).coef_
    second = model.fit(X * factor, y).coef_ * factor
    np.testing.assert_allclose(second, first, rtol=1e-9)


@pytest.mark.parametrize("average", [False, True])
def test_least_squares_take_a_part_of_the_largest_step(average):
    """1 / (2 R^2) with an average, or 1 / (4 R^2); at most the step that makes an error 0."""
    X, y = numbers(300)
    X[100] *= 50
    model = AveragedSGDRegressor(alpha=0.0, average=average, fit_intercept=False, shuffle=False)
    w = total = np.zeros(20)
    for i, (x, target) in enumerate(zip(X, y, strict=True)):
        total = total + w
        norms = (X[: i + 1] ** 2).sum(axis=1)
        radius2 = (norms**2).mean() / norms.mean()
        w = w - min(1 / ((2 if average else 4) * radius2), 1 / (x @ x)) * (w @ x - target) * x
    np.testing.assert_allclose(
        model.fit(X, y).coef_, total / len(X) if average else w, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", ["hinge", "log_loss"])
def test_classifiers_divide_rows_by_their_norm_or_a_typical_one(name):
    X, _ = numbers(300)
    X[100] *= 50
    alpha, y = 0.1, np.where(X[:, 0] > 0, 1.0, -1.0)
    w = np.zeros(20)
    for i, (x, label) in enumerate(zip(X, y, strict=True)):
        norms = (X[: i + 1] ** 2).sum(axis=1)
        # The logarithm is a straight line between powers of two, and so is its inverse.
        fractions, exponents = np.frexp(norms)
        mean = np.mean(exponents + 2 * fractions - 2)
        typical = 2 ** np.floor(mean) * (1 + mean - np.floor(mean))
        assert abs(np.log(typical / np.exp(np.log(norms).mean()))) < 0.06
        margin = label * (w @ x)
        slope = -label * (margin < 1 if name == "hinge" else 1 / (1 + np.exp(margin)))
        gradient = slope * x / max(typical, x @ x) + alpha / typical * w
        w = w - gradient / (1 / 3 + alpha / typical)
    model = AveragedSGDClassifier(
        name, alpha, "auto", average=False, fit_intercept=False, shuffle=False
    )
    np.testing.assert_allclose(model.fit(X, y).coef_[0], w, rtol=1e-9, atol=1e-12)


def test_an_inner_phase_has_as_many_rows_as_its_batch():
    """Batches of 100, 200 and 400 rows begin at rows 0, 200 and 600."""
    X, y = classes(1000)
    model = StreamingSVRGClassifier(shuffle=False).partial_fit(X[:1], y[:1], classes=[0, 1])
    bounds = [1, 99, 100, 101, 199, 200, 201, 399, 400, 401, 599, 600, 601, 1000]
    in_batches = []  # where the weights do not change
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        before = model.coef_
        model.partial_fit(X[start:stop], y[start:stop])
        if np.array_equal(model.coef_, before):
            in_batches.append(start)
    assert in_batches == [1, 99, 200, 201, 399, 600, 601]
