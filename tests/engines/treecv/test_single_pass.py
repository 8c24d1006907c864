"""The single-pass learners reach the rates of the theory and the optima of other programs."""

from __future__ import annotations

from math import exp
from math import log

from ids import said
from learners import learner_of
import numpy as np
from pairs import pairs
import pytest
import reference
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.mixture import GaussianMixture

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

PLAIN = {"alpha": 0.0, "fit_intercept": False, "shuffle": False}


# exp and log, compared with the C library in extended precision.


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no extended precision")
def test_exp_and_log_are_right_to_two_units_in_the_last_place():
    rng = np.random.default_rng(0)
    for x in [*rng.uniform(-708, 709, 5000), *rng.normal(size=5000), 0.0, -1e-300, 1e-17]:
        exact = np.exp(np.longdouble(x))
        assert abs(reference.exponential(x) - exact) <= 2 * np.spacing(float(exact))
    for x in [*np.exp(rng.uniform(-740, 709, 5000)), *rng.uniform(0.5, 2, 5000), 5e-324, 1.0]:
        exact = np.log(np.longdouble(x))
        assert abs(reference.logarithm(x) - exact) <= 2 * np.spacing(abs(float(exact)))


def test_exp_and_log_at_the_ends():
    inf = float("inf")
    assert [reference.exponential(x) for x in (-inf, -709, 710, inf)] == [0, 0, inf, inf]
    assert [reference.logarithm(x) for x in (0.0, inf)] == [-inf, inf]
    assert np.isnan([reference.exponential(float("nan")), reference.logarithm(-1.0)]).all()
    assert reference.exponential(1.0) == exp(1) and reference.logarithm(10.0) == log(10)


# Textbook algorithms, implemented differently.


def textbook_svrg(X, y, eta, alpha, k0, growth, lengths):
    """Run Algorithm 1 of Frostig et al. (2015) for half the squared error.

    The lengths of the inner phases are given.
    """
    rows = iter(zip(X, y, strict=True))
    anchor, k = np.zeros(X.shape[1]), k0
    for length in lengths:
        batch = [next(rows) for _ in range(round(k))]
        gradient = np.mean([(x @ anchor - t) * x for x, t in batch], axis=0) + alpha * anchor
        w = anchor.copy()
        for _ in range(length):
            x, t = next(rows)
            here, there = (x @ w - t) * x + alpha * w, (x @ anchor - t) * x + alpha * anchor
            w = w - eta * (here - there + gradient)
        anchor, k = w, k * growth
    return anchor, len(y) - len(list(rows))


@pytest.mark.parametrize(("alpha", "growth"), [(0.0, 2.0), (0.3, 1.0), (3.0, 2.0)])
def test_streaming_svrg_is_the_papers(alpha, growth, make_data):
    X, _ = make_data(600, 5)
    y = X @ np.arange(5.0) + np.random.default_rng(1).normal(size=600)
    lengths = [1 + next(reference.draws(reference.chain(9, s), iter([20]))) for s in range(5)]
    expected, n_rows = textbook_svrg(X, y, 0.05, alpha, 7, growth, lengths)
    model = StreamingSVRGRegressor(
        alpha=alpha,
        step_size=0.05,
        initial_batch_size=7,
        batch_growth=growth,
        inner_steps=20,
        fit_intercept=False,
        shuffle=False,
    )
    learner = learner_of(model, X, y, seed=9)
    state = learner.start()
    learner.update(state, slice(0, n_rows))
    fitted = learner.estimator(state)
    np.testing.assert_allclose(fitted.coef_, expected, rtol=1e-9, atol=1e-12)
    assert fitted.n_rows_used_ == n_rows
    learner.update(state, slice(n_rows, n_rows + 3))  # an incomplete batch changes no weight
    fitted = learner.estimator(state)
    np.testing.assert_allclose(fitted.coef_, expected, rtol=1e-9, atol=1e-12)
    assert fitted.n_rows_used_ == n_rows and fitted.t_ == n_rows + 3


@pytest.mark.slow
def test_the_schedules_of_remarks_7_and_8():
    def batches(n_batches, **settings):
        """Return the number of rows of each batch, during which the weights do not change."""
        model = StreamingSVRGRegressor(
            alpha=0.0, step_size=1e-3, inner_steps=1, shuffle=False, random_state=0, **settings
        )
        used, found = 0, []
        while len(found) < n_batches:
            model.partial_fit([[1.0]], [1.0])
            if model.n_rows_used_ > used + 1:
                found.append(model.n_rows_used_ - used)
            used = model.n_rows_used_
        return found

    assert batches(5, initial_batch_size=3, batch_growth=2.0) == [3, 6, 12, 24, 48]
    assert batches(5, initial_batch_size=3, warm_stages=2) == [3, 3, 3, 6, 12]
    assert batches(4, initial_batch_size=2, schedule="factorial") == [2, 8, 64, 768]


def test_averaging_algebra_is_the_mean_of_the_iterates(make_data):
    X, y = make_data(200, 5)
    signs = 2.0 * y - 1
    w, iterates = np.zeros(5), []
    for t, (x, sign) in enumerate(zip(X, signs, strict=True), start=1):
        iterates.append(w)
        eta = 0.9 / t**0.3
        slope = -sign / (1 + np.exp(sign * (w @ x)))
        w = (1 - eta * 0.4) * w - eta * slope * x
        w = w * min(1, 0.8 / np.linalg.norm(w))
    settings = {"alpha": 0.4, "step_size": 0.9, "radius": 0.8, "power_t": 0.3}
    settings |= {"fit_intercept": False, "shuffle": False, "learning_rate": "invscaling"}
    for average, start, expected in (
        (True, 0, np.mean(iterates, axis=0)),
        (True, 150, np.mean(iterates[150:], axis=0)),
        ("linear", 0, np.average(iterates, axis=0, weights=np.arange(1, 201))),
        ("linear", 150, np.average(iterates[150:], axis=0, weights=np.arange(1, 51))),
        (False, 0, w),
        (True, 200, w),
    ):
        model = AveragedSGDClassifier("log_loss", average=average, average_start=start, **settings)
        np.testing.assert_allclose(model.fit(X, y).coef_[0], expected, rtol=1e-9, atol=1e-12)


def test_a_mini_batch_is_one_step_with_its_mean_gradient(make_data):
    X, _ = make_data(103, 4)
    y = X @ np.arange(4.0)
    w = np.zeros(4)
    for begin in range(0, 100, 10):
        A, b = X[begin : begin + 10], y[begin : begin + 10]
        w = w - 0.1 * A.T @ (A @ w - b) / 10
    model = AveragedSGDRegressor(batch_size=10, average=False, step_size=0.1, **PLAIN).fit(X, y)
    np.testing.assert_allclose(model.coef_, w, rtol=1e-9)


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_density_equals_a_mixture_of_one(kind, offset, make_data):
    X = make_data(200, 5)[0] @ np.random.default_rng(0).normal(size=(5, 5)) + offset
    ours = StreamingGaussianDensity(kind).fit(X)
    theirs = GaussianMixture(1, covariance_type=kind).fit(X)
    np.testing.assert_allclose(ours.mean_, theirs.means_[0], rtol=1e-12)
    covariance = np.cov(X.T, bias=True) + 1e-6 * np.eye(5)
    expected = covariance if kind == "full" else np.diag(covariance)
    np.testing.assert_allclose(ours.covariance_, expected, rtol=1e-8, atol=1e-8)
    if offset == 0:  # far from 0, the reference loses digits on the diagonal
        np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-9)


def test_clusters_that_are_apart_are_found():
    rng = np.random.default_rng(0)
    truth = 10 * np.eye(4)
    X = truth[rng.integers(0, 4, 400)] + 0.1 * rng.normal(size=(400, 4))
    X[:4] = truth  # each centre starts in its own cluster
    model = StreamingKMeans(4, shuffle=False).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, truth, atol=0.05)
    assert model.counts_.sum() == 400 and len(np.unique(model.labels_)) == 4


def test_a_row_between_two_centres_goes_to_the_first():
    model = StreamingKMeans(2, shuffle=False).fit([[0.0], [2.0], [1.0]])
    assert model.cluster_centers_.ravel().tolist() == [0.5, 2.0]
    assert model.counts_.tolist() == [2, 1]


# Rates: rows x excess risk, divided by d / 2, the constant of the empirical risk minimiser.


@pytest.mark.nightly
def test_single_pass_rates():
    d, n = 20, 300_000
    eigenvalues = np.linspace(0.1, 1, d)
    found = {"svrg": [], "averaged": []}
    for seed in range(24):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, d)) * np.sqrt(eigenvalues)
        truth = rng.normal(size=d) / np.sqrt(d)
        y = X @ truth + rng.normal(size=n)
        svrg = StreamingSVRGRegressor(
            step_size=0.005, initial_batch_size=1000, inner_steps=4000, random_state=seed, **PLAIN
        )
        last = 0, np.zeros(d)
        for begin in range(0, n, 5000):
            svrg.partial_fit(X[begin : begin + 5000], y[begin : begin + 5000])
            if svrg.n_rows_used_ < svrg.t_:  # within a batch: the anchor, and its number of rows
                last = svrg.n_rows_used_, svrg.coef_
        averaged = AveragedSGDRegressor(step_size=0.005, average=True, **PLAIN).fit(X, y)
        for name, (rows, w) in {"svrg": last, "averaged": (n, averaged.coef_)}.items():
            found[name].append(rows * np.sum(eigenvalues * (w - truth) ** 2) / d)
    assert np.mean(found["svrg"]) == pytest.approx(2, rel=0.2)  # b / (b - 1)
    assert np.mean(found["averaged"]) == pytest.approx(1, rel=0.2)


# Which rows have influenced the weights.

ALTERNATIVES = {
    "alpha": 0.7,
    "average": False,
    "average_start": 3,
    "batch_growth": 3.0,
    "batch_size": 2,
    "covariance_type": "full",
    "epsilon": 0.01,
    "initial_batch_size": 4,
    "inner_steps": 3,
    "learning_rate": "invscaling",
    "n_clusters": 4,
    "power_t": 0.9,
    "project": True,
    "radius": 0.1,
    "random_state": 7,
    "reg_covar": 0.1,
    "schedule": "factorial",
    "settings": "theory",
    "step_size": 0.123,
    "warm_stages": 3,
}
ESTIMATORS = [
    PegasosClassifier(),
    AveragedSGDClassifier("log_loss", average_start=20),
    AveragedSGDRegressor("huber", learning_rate="invscaling"),
    StreamingSVRGClassifier(initial_batch_size=10),
    StreamingSVRGClassifier(step_size=0.5, initial_batch_size=10, inner_steps=20),
    StreamingSVRGRegressor("huber", initial_batch_size=25, schedule="factorial"),
    StreamingKMeans(5),
    StreamingGaussianDensity(),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:settings='theory'")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
@pytest.mark.parametrize("n_seen", [0, 1, 10, 11, 20, 21, 25, 26, 60])
def test_bound_names_all_that_has_acted(estimator, n_seen, make_data):
    X, y = make_data(60, 4)

    def state_of(estimator):
        target = y if is_classifier(estimator) else X[:, 0]
        learner = learner_of(estimator, X, target, response=None, seed=3)
        state = learner.start()
        learner.update(state, slice(0, n_seen))
        return state

    bound = estimator.bound(n_seen)
    given = estimator.get_params()
    assert bound <= set(given)
    silent = [
        name
        for name in given
        if name in ALTERNATIVES and given[name] != ALTERNATIVES[name] and name not in bound
    ]
    for name in silent:
        other = clone(estimator).set_params(**{name: ALTERNATIVES[name]})
        if other.bound(n_seen) == bound:
            assert np.array_equal(state_of(other), state_of(estimator)), name
    if isinstance(estimator, StreamingSVRGClassifier) and n_seen <= 10:
        late = {"inner_steps", "batch_growth", "schedule", "warm_stages"}
        assert late | {"random_state", "alpha"} <= set(silent)
        assert ("step_size" in bound) == (estimator.step_size == "auto")  # which weights rows
    if isinstance(estimator, AveragedSGDClassifier):
        assert ("average_start" in bound) == (n_seen > 20)


# Settings from the theory.


def test_the_papers_constants_and_when_they_ask_for_too_much(make_data):
    X, y = make_data(100, 4)
    with pytest.warns(
        UserWarning, match="settings='theory' needs .* the 100 rows of X are too few"
    ):
        StreamingSVRGClassifier(settings="theory", alpha=0.5).fit(X, y)
    with pytest.warns(UserWarning, match="settings='theory'"):
        tree_cross_validate(StreamingSVRGClassifier(settings="theory"), X, y, cv=3)
    with pytest.raises(ValueError, match="alpha must be greater than 0 for settings='theory'"):
        StreamingSVRGRegressor(settings="theory", alpha=0.0).fit(X, X[:, 0])
    # b = 3, p = 2: eta = 1/540, m = 20 * 27 kappa / eta, k_0 = 20 * 27 kappa.
    model = StreamingSVRGRegressor(settings="theory", alpha=1.0, fit_intercept=False)
    with pytest.warns(UserWarning, match="settings='theory'"):
        model.fit([[1.0], [-1.0]], [0.0, 1.0])
    step_size, first, growth, steps = model._theory
    assert step_size == pytest.approx(1 / 540 / 2) and growth == 3
    assert first == pytest.approx(540 * 2, abs=1.01)
    assert steps == pytest.approx(540 * 540 * 2, abs=1.01)


@pytest.mark.filterwarnings("ignore:settings='theory'")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_theory_is_the_same_for_all_forms_of_rows(dtype, fit_intercept, make_data):
    X, _ = make_data(120, 13)
    X = np.where(X > 0, X, 0).astype(dtype)
    model = StreamingSVRGRegressor(
        settings="theory", alpha=1.0, fit_intercept=fit_intercept, shuffle=False
    )
    schedules = set()
    for rows in (X, sparse.csr_array(X), sparse.csc_array(X)):
        schedules.add(clone(model).fit(rows, X[:, 0])._theory)
        learner = learner_of(model, rows, X[:, 0], response=None)
        schedules.add(learner.estimator(learner.start())._theory)
    assert len(schedules) == 1


# Step sizes that diverge.


@pytest.mark.parametrize(
    "estimator",
    [
        AveragedSGDRegressor(step_size=1e6),
        AveragedSGDRegressor(step_size=1e6, batch_size=5),
        AveragedSGDRegressor(step_size=1e300, radius=1.0),
        StreamingSVRGRegressor(step_size=1e6, initial_batch_size=5),
        StreamingSVRGClassifier(step_size=1e200, initial_batch_size=5),
        AveragedSGDClassifier(alpha=1e3, step_size=1e6),
    ],
    ids=said,
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cv", [4, "loo"])
def test_folds_that_diverge_are_counted_and_have_the_worst_score(estimator, dtype, cv, make_data):
    X, y = make_data(300, 4)
    X = X.astype(dtype)
    worst = 1 if is_classifier(estimator) else np.inf
    if is_classifier(estimator):
        X = X * np.sqrt(np.finfo(dtype).max).astype(dtype)
    else:
        y = 5 * X[:, 0] + 1
    result = tree_cross_validate(estimator, X, y, cv=cv)
    assert result.diverged_folds == result.n_folds
    assert result.mean == worst and (worst == 1 or result.std is None)


@pytest.mark.parametrize(
    *pairs(
        estimator=[
            AveragedSGDClassifier("log_loss", alpha=1.0, step_size=2e4, average=False),
            AveragedSGDClassifier("log_loss", alpha=1.0, step_size=2e4),
            StreamingSVRGClassifier(
                alpha=1.0, step_size=1e100, initial_batch_size=5, inner_steps=20
            ),
            PegasosClassifier(1e-300, project=True),
            PegasosClassifier(1e-300, average=True, project=True),
            AveragedSGDRegressor("huber", step_size=1e120),
        ],
        intercept=[True, False],
        column=[1.0, 1e200, 1e308],
    ),
    ids=said,
)
def test_sparse_rows_see_what_dense_rows_see(estimator, intercept, column):
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 50), density=0.03, random_state=rng, format="csr")
    X = X @ sparse.diags_array([column] + [1.0] * 49)  # one column that may overflow
    y = rng.integers(0, 2, 200)
    estimator = clone(estimator).set_params(fit_intercept=intercept)
    dense, skipping = (
        tree_cross_validate(estimator, rows, y, cv="loo") for rows in (X.toarray(), X)
    )
    assert np.array_equal(dense.test_score, skipping.test_score)
    assert dense.diverged_folds == skipping.diverged_folds


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("big", [1e200, 1e25])
def test_a_margin_that_is_not_a_number_is_seen(big):
    X = np.array([[big, big], [big, -big], [1.0, 0.0], [1.0, 1.0]])
    X = X.astype(np.float32 if big < 1e100 else np.float64)
    settings = {"fit_intercept": False, "shuffle": False}
    for model in (
        PegasosClassifier(1.0, **settings),
        AveragedSGDClassifier(alpha=0.0, step_size=1.0, average=False, **settings),
    ):
        with np.errstate(all="ignore"):
            assert np.isnan(model.fit(X, [1, 1, 0, 0]).coef_).any()
    for loss in ("huber", "epsilon_insensitive"):
        model = AveragedSGDRegressor(loss, step_size=1.0, average=False, **settings)
        with np.errstate(all="ignore"):
            assert np.isnan(model.fit(X, [1, 1, 0, 0]).coef_).any()
