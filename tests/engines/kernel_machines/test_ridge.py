"""Kernel ridge regression of all folds and alphas, against fits of scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.gaussian_process.kernels import RBF
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit

from optuna_treecv import tree_cross_validate
from optuna_treecv.engines.kernel_machines import ridge

ALPHAS = np.array([1e-4, 1e-2, 1.0, 1e3])

METHODS = {
    "inverse": (ridge._roots_by_inverse, (0, 1)),
    "band": (ridge._roots_by_band, (0, 1)),
    "fits by Cholesky": (None, (0, 1)),
    "fits by band": (None, (1, 0)),
}


@pytest.fixture(params=METHODS)
def method(request, monkeypatch):
    """Compute by one of the methods, whatever takes the least time."""
    compute_roots, costs = METHODS[request.param]
    monkeypatch.setattr(ridge, "_choose", lambda *_: compute_roots)
    monkeypatch.setattr(ridge, "_costs_of_fit", lambda *_: costs)
    return request.param


def make_rows(n, n_targets=1, gamma=0.1):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 5))
    y = np.sin(X @ rng.normal(size=(5, n_targets))) + 0.1 * rng.normal(size=(n, n_targets)) + 1
    return X, y, rbf_kernel(X, gamma=gamma)


def fit_each(gram, y, weights, alphas, splits):
    for train, test in splits:
        models = [
            KernelRidge(kernel="precomputed", alpha=alpha).fit(
                gram[np.ix_(train, train)], y[train], None if weights is None else weights[train]
            )
            for alpha in alphas
        ]
        yield np.array([model.predict(gram[np.ix_(test, train)]) for model in models])


def check_equal(gram, y, weights, splits, alphas=ALPHAS):
    before = gram.copy()
    predicted = list(ridge.predict_folds(gram, y, weights, alphas, splits))
    np.testing.assert_array_equal(gram, before)
    expected = list(fit_each(gram, y, weights, alphas, splits))
    assert len(predicted) == len(splits)
    for ours, theirs in zip(predicted, expected, strict=True):
        assert ours.shape == theirs.shape
        scale = max(np.abs(theirs).max(), 1e-6 * np.abs(y).max())
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-9 * scale)


def test_several_targets_and_strips_of_rows(method):
    _, y, gram = make_rows(600, n_targets=3)
    splits = list(KFold(3, shuffle=True, random_state=0).split(gram))
    check_equal(gram, y, None, splits, alphas=np.array([1e-4, 1.0]))


@pytest.mark.parametrize("n", [2, 3, 48, 49, 95, 96, 97, 98, 145, 150])
def test_blocks_of_rows(method, n):
    _, y, gram = make_rows(n)
    check_equal(gram, y, None, list(KFold(2).split(gram)))


def test_weights(method):
    _, y, gram = make_rows(160, n_targets=2)
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=160)
    weights[rng.permutation(160)[:20]] = 0
    weights[0] = 1e-9
    check_equal(gram, y, weights, list(KFold(4, shuffle=True, random_state=0).split(gram)))
    check_equal(gram, y, weights, list(LeaveOneOut().split(gram))[:9], np.array([1e-3]))
    check_equal(gram, y, np.maximum(weights, 1e-4), list(KFold(20).split(gram)))


@pytest.mark.parametrize(
    "splitter",
    [
        TimeSeriesSplit(4),
        TimeSeriesSplit(3, gap=5, max_train_size=40),
        ShuffleSplit(3, test_size=0.3, random_state=0),
        ShuffleSplit(3, test_size=0.3, train_size=0.5, random_state=0),
        RepeatedKFold(n_splits=4, n_repeats=2, random_state=0),
        GroupKFold(5, shuffle=True, random_state=0),
        KFold(45, shuffle=True, random_state=0),
        LeaveOneOut(),
    ],
    ids=repr,
)
def test_splitters(method, splitter):
    _, y, gram = make_rows(110, n_targets=2)
    groups = np.random.default_rng(1).integers(0, 11, 110)
    needs_groups = isinstance(splitter, GroupKFold)
    splits = list(splitter.split(gram, groups=groups if needs_groups else None))
    check_equal(gram, y, None, splits, alphas=np.array([1e-3]))


def test_indices_in_any_order_and_one_split(method):
    _, y, gram = make_rows(110)
    order = np.random.default_rng(0).permutation(110)
    check_equal(gram, y, None, [(order[30:], order[:30])])
    check_equal(gram, y, None, [(order[40:], order[:30]), (order[:30], order[30:])])


def test_rows_that_are_used_twice(method):
    _, y, gram = make_rows(60)
    check_equal(gram, y, None, [(np.arange(2, 60), np.array([0, 0]))])
    check_equal(gram, y, None, [(np.arange(60), np.arange(10))])


@pytest.mark.parametrize("kind", ["linear", "identity", "separate groups"])
def test_kernels_of_low_rank_and_with_zeros(method, kind):
    X, y, gram = make_rows(200)
    same_group = np.arange(200)[:, None] // 50 == np.arange(200) // 50
    gram = {"linear": X @ X.T, "identity": np.identity(200), "separate groups": gram * same_group}
    check_equal(gram[kind], y, None, list(KFold(5).split(X)), np.array([1e-2, 1.0]))


@pytest.mark.parametrize("n_folds", [2, 10, 60])
def test_the_mean_of_gaussian_processes(method, n_folds):
    X, y, _ = make_rows(60)
    alphas, splits = np.array([1e-4, 0.1]), list(KFold(n_folds).split(X))
    kernel = ConstantKernel(2.0) * RBF([1.0, 2.0, 1.0, 3.0, 1.0])
    white = WhiteKernel(0.05)
    with_noise = list(ridge.predict_folds((kernel + white)(X), y, None, alphas, splits))
    apart = list(ridge.predict_folds(kernel(X), y, None, alphas + 0.05, splits))
    for fold in (0, n_folds // 2, n_folds - 1):
        train, test = splits[fold]
        for i, alpha in enumerate(alphas):
            model = GaussianProcessRegressor(kernel + white, alpha=alpha, optimizer=None)
            expected = model.fit(X[train], y[train]).predict(X[test])
            for predicted in (with_noise, apart):
                np.testing.assert_allclose(predicted[fold][i, :, 0], expected, atol=2e-9)


@pytest.mark.parametrize("with_weights", [False, True])
def test_predictions_do_not_depend_on_test_targets_and_their_kernel(method, with_weights):
    _, y, gram = make_rows(150)
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.1, 2, 150) if with_weights else None
    splits = list(KFold(5, shuffle=True, random_state=0).split(gram))
    before = list(ridge.predict_folds(gram, y, weights, ALPHAS, splits))
    for fold, (_, test) in enumerate(splits):
        changed_y, changed = y.copy(), gram.copy()
        changed_y[test] += rng.normal(size=(len(test), 1))
        factor = rng.normal(size=(len(test), len(test)))
        changed[np.ix_(test, test)] += factor @ factor.T / len(test)
        changed_weights = weights
        if weights is not None:
            changed_weights = weights.copy()
            changed_weights[test] *= rng.uniform(0.5, 2, len(test))
        after = list(ridge.predict_folds(changed, changed_y, changed_weights, ALPHAS, splits))
        np.testing.assert_allclose(after[fold], before[fold], rtol=0, atol=1e-10)
        others = [i for i in range(5) if i != fold]
        assert all(np.abs(after[i] - before[i]).max() > 1e-4 for i in others)


def test_a_matrix_that_is_not_positive_definite_is_refused(method):
    _, y, gram = make_rows(120)
    same = np.r_[:118, 0, 1]
    gram = gram[np.ix_(same, same)]
    splits = [(np.r_[:50, 80:120], np.arange(50, 80))]
    with pytest.raises(ValueError, match="plus alpha=0 is not positive definite"):
        list(ridge.predict_folds(gram, y, None, np.array([1.0, 0.0]), splits))
    with pytest.raises(ValueError, match="plus alpha=0.1 is not positive definite"):
        list(ridge.predict_folds(-gram, y, None, np.array([0.1]), splits))
    gram[60:100, 60:100] = np.nan
    with pytest.raises(ValueError, match="plus alpha=1 is not positive definite"):
        list(ridge.predict_folds(gram, y, None, np.array([1.0]), splits))


def test_small_alphas_are_as_exact_as_fits(method):
    _, y, gram = make_rows(200, gamma=0.005)
    splits = list(KFold(4).split(gram))
    for alpha in (1e-6, 1e-9):
        predicted = ridge.predict_folds(gram, y, None, np.array([alpha]), splits)
        for ours, (train, test) in zip(predicted, splits, strict=True):
            a = gram[np.ix_(train, train)].astype(np.longdouble)
            a[np.diag_indices(len(a))] += alpha
            inverse, exact = np.linalg.inv(a.astype(float)), np.zeros((len(a), 1), np.longdouble)
            for _ in range(20):
                exact += inverse @ (y[train] - a @ exact)
            exact = gram[np.ix_(test, train)].astype(np.longdouble) @ exact
            (theirs,) = fit_each(gram, y, None, [alpha], [(train, test)])
            error = np.abs(theirs[0] - exact).max()
            assert np.abs(ours[0] - exact).max() < 5 * error + 1e-13 / alpha


@pytest.mark.parametrize(
    "n, n_alphas, n_folds, expected",
    [
        (2000, 1, 10, "_roots_by_inverse"),
        (2000, 30, 10, "_roots_by_band"),
        (2000, 1, 2000, "_roots_by_inverse"),
        (2000, 30, 2000, "_roots_by_band"),
        (2000, 1, 2, None),
        (2000, 30, 3, None),
    ],
)
def test_the_choice_of_a_method(n, n_alphas, n_folds, expected):
    tests = np.array_split(np.arange(n), n_folds)
    assert getattr(ridge._choose(n, n_alphas, tests), "__name__", None) == expected


def test_fits_with_many_alphas_use_a_band():
    by_cholesky, by_band = ridge._costs_of_fit(1000, 3)
    assert by_cholesky < by_band
    by_cholesky, by_band = ridge._costs_of_fit(1000, 10)
    assert by_band < by_cholesky


@pytest.mark.parametrize(
    "params",
    [
        {"kernel": None},
        {"kernel": RBF()},
        {"kernel": RBF(1.0, "fixed")},
        {"kernel": None, "optimizer": None},
        {"kernel": RBF() + WhiteKernel(), "optimizer": None},
    ],
    ids=repr,
)
def test_parameters_of_gaussian_processes_are_optimized_as_by_fit(params):
    X, y, _ = make_rows(40)
    estimator = GaussianProcessRegressor(alpha=0.1, **params)
    options = {"cv": KFold(3), "scoring": "neg_mean_squared_error"}
    actual = tree_cross_validate(estimator, X, y[:, 0], shuffle=False, **options).test_score
    expected = cross_validate(estimator, X, y[:, 0], **options)["test_score"]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("params", [{"kernel": "rbf"}, {"n_targets": 2}], ids=repr)
def test_gaussian_processes_that_fit_refuses_are_refused(params):
    X, y, _ = make_rows(40)
    estimator = GaussianProcessRegressor(optimizer=None, **params)
    with pytest.raises(ValueError, match="kernel|n_targets"):
        tree_cross_validate(estimator, X, y[:, 0], cv=3)


def test_sparse_rows_are_refused_for_gaussian_processes():
    X, y, _ = make_rows(40)
    estimator = GaussianProcessRegressor(optimizer=None)
    with pytest.raises(ValueError, match="X must be dense"):
        tree_cross_validate(estimator, sparse.csr_array(X), y[:, 0], cv=3)


def test_squares_that_overflow_are_refused_as_by_fit():
    X, y, _ = make_rows(40)
    estimator = KernelRidge(kernel="rbf")
    with pytest.raises(ValueError, match="not positive definite|NaN"):
        tree_cross_validate(estimator, X * 1e200, y[:, 0], cv=3)
