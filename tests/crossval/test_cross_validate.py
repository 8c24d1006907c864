"""Fold scores, compared with a naive tree, scikit-learn's metrics and k separate trainings."""

from __future__ import annotations

import copy
from functools import partial
from itertools import islice
from math import log2
import tracemalloc

from conftest import make_folds
from ids import said
import numpy as np
from pairs import pairs
import pytest
import reference
from scipy import sparse
from sklearn import config_context
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import hinge_loss
from sklearn.metrics import log_loss
from sklearn.metrics import mean_absolute_error
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import scale
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.memory import padded_width
from optuna_treecv.testing import treecv

CLASSIFIERS = [
    PegasosClassifier(alpha=0.02),
    PegasosClassifier(alpha=1e-4, average=True, project=True, fit_intercept=False),
    AveragedSGDClassifier(alpha=0.3, step_size=0.2, average_start=20),
    AveragedSGDClassifier("log_loss", learning_rate="invscaling", radius=0.5, average=True),
    StreamingSVRGClassifier(
        alpha=0.1, step_size=0.3, initial_batch_size=3, batch_growth=1.5, inner_steps=6
    ),
]
REGRESSORS = [
    LSQSGDRegressor(),
    LSQSGDRegressor(step_size=0.05, radius=0.3, average=False, fit_intercept=True),
    AveragedSGDRegressor("huber", batch_size=4, average_start=8, step_size=0.1),
    AveragedSGDRegressor("epsilon_insensitive", alpha=0.5, step_size=0.6),
    StreamingSVRGRegressor(initial_batch_size=5, inner_steps=9, schedule="factorial"),
]
UNSUPERVISED = [
    StreamingKMeans(1),
    StreamingKMeans(5),
    StreamingGaussianDensity(),
    StreamingGaussianDensity("full", reg_covar=0.1),
]
COMPILED = [*CLASSIFIERS, *REGRESSORS]
FOR_SPARSE_ROWS = [one for one in COMPILED if get_tags(one).input_tags.sparse]


def twins_of(estimator, n_rows, n_outputs, zeros):
    """Return the NumPy models that compute an estimator's outputs."""
    e = estimator
    loss = getattr(e, "loss", "squared_error"), getattr(e, "epsilon", 0.0)
    step = 0.0 if getattr(e, "step_size", "auto") == "auto" else e.step_size
    match e:
        case PegasosClassifier():
            twin, settings = reference.Pegasos, (e.alpha, e.average, e.project)
        case LSQSGDRegressor():
            twin = reference.SGD
            settings = (*loss, 0.0, step or n_rows**-0.5, 0.0, e.radius, 1, e.average, 0)
        case AveragedSGDClassifier() | AveragedSGDRegressor():
            twin = partial(reference.SGD, is_linear=e.average == "linear")
            power = e.power_t if e.learning_rate == "invscaling" else 0.0
            settings = (*loss, e.alpha, step, power, e.radius, e.batch_size, bool(e.average))
            settings = (*settings, e.average_start)
        case StreamingSVRGClassifier() | StreamingSVRGRegressor():
            twin = reference.StreamingSVRG
            settings = (*loss, e.alpha, step, e.initial_batch_size, e.batch_growth)
            settings = (*settings, e.inner_steps, e.warm_stages, e.schedule == "factorial", 0)
    return [twin(*settings, zeros) for _ in range(n_outputs)]


def by_fold(scores, order):
    """Return the scores of chunks by their folds: of leave-one-out, fold i tests row i."""
    if len(scores) < len(order):
        return np.array(scores)
    found = np.empty(len(order))
    found[order] = scores
    return found


def naive_decisions(estimator, X, y, cv, order, seed=0):
    """Return the out-of-fold decisions of the NumPy models, in prepared order.

    The tree is that of the paper as printed.
    """
    seed = derive_seed(seed, 0)
    folds = make_folds(cv, X, y, None, True, seed, len(X))
    k, n = folds.n_folds, len(X)
    cuts = [i * n // k for i in range(k + 1)]
    chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    width = padded_width(X.shape[1] + estimator.fit_intercept)
    rows = reference.gather_rows(X, folds.order, float(estimator.fit_intercept), width)
    y = y[folds.order]
    if is_classifier(estimator):
        classes, y = np.unique(y, return_inverse=True)
        positive = [1] if len(classes) == 2 else range(len(classes))
        targets = [np.where(y == c, 1, -1) for c in positive]
    else:
        targets = [y.astype(X.dtype).astype(float)]
    start = twins_of(estimator, n, len(targets), np.zeros(width, X.dtype))
    decisions = np.empty((n, len(start)), X.dtype)

    def train(models, phase, n_seen):
        models = [copy.copy(model) for model in models]  # shallow: training replaces the arrays
        if order == "random" and len(phase) > 1:
            phase = reference.random_order(seed, phase[0], phase[-1] + 1, n_seen)
        for model, target in zip(models, targets, strict=True):
            for row in phase:
                model.train(rows[row], float(target[row]))
        return models

    def test(models, fold):
        for row in chunks[fold]:
            decisions[row] = [reference.dot(model.weights(), rows[row]) for model in models]

    treecv(chunks, train, test, start)
    return decisions, chunks, y, folds.order


def forms_of(estimator, X):
    """Return X dense and, if the estimator accepts it, sparse."""
    takes_sparse = estimator.__sklearn_tags__().input_tags.sparse
    return [X, sparse.csr_array(X)] if takes_sparse else [X]


def with_zeros(X):
    """Set half of the entries to 0."""
    return X * (np.random.default_rng(3).uniform(size=X.shape) < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        cv=[2, 3, 5, 7, 8, "loo"],
        dtype=[np.float64, np.float32],
        estimator=CLASSIFIERS,
        n_classes=[2, 3],
    ),
    ids=said,
)
def test_classifier_equals_the_naive_tree(estimator, dtype, cv, order, n_classes, make_data):
    X, y = make_data(45, 8, n_classes)  # 8 columns, no intercept: a state has no padding
    X = with_zeros(X).astype(dtype)
    decisions, chunks, codes, rows = naive_decisions(estimator, X, y, cv, order)
    predicted = decisions[:, 0] > 0 if n_classes == 2 else decisions.argmax(axis=1)
    errors = [np.mean(predicted[chunk] != codes[chunk]) for chunk in map(list, chunks)]
    errors = by_fold(errors, rows)
    options = {"cv": cv, "order": order, "stratify": False}
    for form in forms_of(estimator, X):
        found = tree_cross_val_predict(
            estimator, form, y, response_method="decision_function", **options
        )
        assert np.array_equal(found[rows], decisions[:, 0] if n_classes == 2 else decisions)
        result = tree_cross_validate(estimator, form, y, **options)
        assert np.array_equal(result.test_score, errors)
        assert result.mean == np.mean(errors) and result.std == np.std(errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        cv=[2, 3, 5, 7, 8, "loo"],
        dtype=[np.float64, np.float32],
        estimator=REGRESSORS,
    ),
    ids=said,
)
def test_regressor_equals_the_naive_tree(estimator, dtype, cv, order, regression):
    X, y = with_zeros(regression[0]).astype(dtype), regression[1]
    decisions, chunks, _, rows = naive_decisions(estimator, X, y, cv, order)
    squares = np.square(decisions[:, 0].astype(float) - y[rows])
    for form in forms_of(estimator, X):
        found = tree_cross_val_predict(estimator, form, y, cv=cv, order=order)
        assert found.dtype == dtype
        assert np.array_equal(found[rows], decisions[:, 0])
        result = tree_cross_validate(estimator, form, y, cv=cv, order=order)
        np.testing.assert_allclose(
            result.test_score, by_fold([squares[list(c)].mean() for c in chunks], rows), rtol=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        cv=[2, 3, 5, 7, 8, "loo"],
        dtype=[np.float64, np.float32],
        estimator=UNSUPERVISED,
    ),
    ids=said,
)
def test_unsupervised_equals_the_naive_tree(estimator, dtype, cv, order, make_data):
    X = make_data(45, 8)[0].astype(dtype)  # a multiple of 8: no padding
    X[20:24] = X[3]  # repeated rows, which do not become centres
    seed = derive_seed(0, 0)
    folds = make_folds(cv, X, None, None, True, seed, len(X))
    k, n = folds.n_folds, len(X)
    cuts = [i * n // k for i in range(k + 1)]
    chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    rows = X[folds.order]
    clusters = isinstance(estimator, StreamingKMeans)
    losses, labels = np.empty(n), np.empty(n, int)
    if clusters:
        start = reference.KMeans(estimator.n_clusters)
    else:
        start = reference.Gaussian(estimator.covariance_type == "full", estimator.reg_covar)

    def train(model, phase, n_seen):
        model = copy.copy(model)
        if order == "random" and len(phase) > 1:
            phase = reference.random_order(seed, phase[0], phase[-1] + 1, n_seen)
        for row in phase:
            model.train(rows[row])
        return model

    def test(model, fold):
        for row in chunks[fold]:
            if clusters:
                labels[row], losses[row] = model.nearest(rows[row])
            else:
                losses[row] = -model.log_density(rows[row])

    treecv(chunks, train, test, start)
    result = tree_cross_validate(estimator, X, cv=cv, order=order)
    rtol = 1e-4 if dtype == np.float32 else 1e-9
    expected = by_fold([losses[list(c)].mean() for c in chunks], folds.order)
    np.testing.assert_allclose(result.test_score, expected, rtol=rtol, atol=rtol)
    assert result.diverged_folds == 0
    if clusters:
        found = tree_cross_val_predict(estimator, X, cv=cv, order=order)
        assert np.array_equal(found[folds.order], labels)


@pytest.mark.parametrize(
    *pairs(order=["fixed", "random"], cv=[3, 50, "loo"], estimator=FOR_SPARSE_ROWS), ids=said
)
def test_wide_sparse_rows_are_undone_bit_for_bit(estimator, order, cv):
    # Few nonzeros in many columns: most phases are undone instead of copying the state.
    rng = np.random.default_rng(0)
    X = sparse.random_array((150, 400), density=0.02, random_state=rng, format="csr")
    y = (X @ rng.normal(size=400) > 0).astype(int)
    method = "decision_function" if is_classifier(estimator) else "predict"
    options = {"cv": cv, "order": order, "response_method": method}
    found = tree_cross_val_predict(estimator, X, y, **options)
    assert np.array_equal(found, tree_cross_val_predict(estimator, X.toarray(), y, **options))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("size", [1.0, 30.0, 1e6])
def test_projections_of_wide_sparse_rows_are_undone_bit_for_bit(size, average):
    """A ball that is small for the rows lowers the scale until all is rewritten."""
    rng = np.random.default_rng(0)
    X = size * sparse.random_array((150, 400), density=0.02, random_state=rng, format="csr")
    y = rng.integers(0, 2, 150)
    estimator = PegasosClassifier(alpha=0.01, average=average, project=True)
    for cv in (3, 50, "loo"):
        options = {"cv": cv, "response_method": "decision_function"}
        found = tree_cross_val_predict(estimator, X, y, **options)
        assert np.array_equal(found, tree_cross_val_predict(estimator, X.toarray(), y, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(estimator=COMPILED, order=["fixed", "random"], cv=[2, 33, "loo"]), ids=said
)
def test_compiled_and_python_recursion_agree(estimator, order, cv, binary):
    # A scorer uses the Python recursion down to the leaves, a loss the compiled one.
    X, y = binary

    def minus_loss(model, X, y):
        if is_regressor(model):
            return -np.mean((model.predict(X) - y) ** 2)
        return -np.mean(model.predict(X) != y)

    for method in ("treecv", "standard"):
        options = {"cv": cv, "order": order, "method": method}
        compiled = tree_cross_validate(estimator, X, y, **options)
        python = tree_cross_validate(estimator, X, y, scoring=minus_loss, **options)
        np.testing.assert_allclose(compiled.test_score, -python.test_score, rtol=1e-12, atol=1e-15)
        assert compiled.n_updates == python.n_updates


def test_leave_one_out_costs_log2_trainings(make_data):
    X, y = make_data(1024, 3)
    result = tree_cross_validate(PegasosClassifier(), X, y, cv="loo")
    assert result.n_updates == 1024 * 10
    assert result.n_updates <= 1024 * log2(2 * 1024)
    assert result.n_updates_standard == 1023 * 1024


# No model is trained on a row that it tests, for every learner, order and splitter.

LEARNERS = [*COMPILED, SGDClassifier(max_iter=1, tol=None), GaussianNB()]
SPLITS = [3, 8, "loo", KFold(4), StratifiedKFold(3, shuffle=True), GroupKFold(5), LeaveOneOut()]


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        estimator=LEARNERS,
        cv=[*SPLITS, np.arange(60) % 7],
        order=["fixed", "random"],
        method=["treecv", "standard"],
        # It has the folds of "loo", which take long in Python.
        where=lambda estimator, cv, **_: estimator in COMPILED or not isinstance(cv, LeaveOneOut),
    ),
    ids=said,
)
def test_no_label_of_a_fold_reaches_its_own_model(estimator, cv, order, method, make_data):
    X, y = make_data(60, 4)
    groups = np.repeat(np.arange(20), 3) if isinstance(cv, GroupKFold) else None
    if isinstance(cv, StratifiedKFold):
        # Fixed now, because the splitter stratifies by labels, which change below.
        cv = PredefinedSplit(fold_of(cv, X, y, groups))
    fold = fold_of(cv, X, y, groups)
    regressor = is_regressor(estimator)
    options = {"cv": cv, "groups": groups, "order": order, "method": method, "shuffle": False}
    options["stratify"] = False  # stratified folds depend on the labels, which change below
    options["response_method"] = "predict" if regressor else "predict_proba"
    if hasattr(estimator, "decision_function"):
        options["response_method"] = "decision_function"
    before = tree_cross_val_predict(estimator, X, y, **options)
    moved = 0  # over all folds, because rows of an incomplete batch have no influence
    for i in (0, fold.max() // 2):
        for other in (-100, 100) if regressor else (1 - y,):
            changed = np.where(fold == i, other, y)
            after = tree_cross_val_predict(estimator, X, changed, **options)
            assert np.array_equal(after[fold == i], before[fold == i])
            moved += np.count_nonzero(after[fold != i] != before[fold != i])
    assert moved


def fold_of(cv, X, y, groups):
    if cv == "loo" if isinstance(cv, str) else isinstance(cv, LeaveOneOut):
        return np.arange(len(y))
    if isinstance(cv, int):
        bounds = [i * len(y) // cv for i in range(cv + 1)]
        return np.repeat(np.arange(cv), np.diff(bounds))
    if isinstance(cv, np.ndarray):
        return cv
    fold = np.empty(len(y), int)
    for i, (_, test) in enumerate(cv.split(X, y, groups)):
        fold[test] = i
    return fold


# Scores.


def test_losses_are_scikit_learns_metrics(three_classes, regression):
    X, y = three_classes
    fold = np.arange(len(y)) % 4
    for data in ((X, y), (X, y > 0)):
        decision = tree_cross_val_predict(
            PegasosClassifier(alpha=0.1), *data, cv=fold, response_method="decision_function"
        )
        found = tree_cross_validate(PegasosClassifier(alpha=0.1), *data, cv=fold, scoring="hinge")
        expected = [hinge_loss(data[1][fold == i], decision[fold == i]) for i in range(4)]
        np.testing.assert_allclose(found.test_score, expected, rtol=1e-12)
    probabilities = tree_cross_val_predict(
        GaussianNB(), X, y, cv=fold, response_method="predict_proba"
    )
    found = tree_cross_validate(GaussianNB(), X, y, cv=fold, scoring="log_loss")
    expected = [log_loss(y[fold == i], probabilities[fold == i]) for i in range(4)]
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-12)

    X, y = regression
    fold = np.arange(len(y)) % 4
    predicted = tree_cross_val_predict(LSQSGDRegressor(), X, y, cv=fold)
    for name, metric in (
        ("squared_error", mean_squared_error),
        ("absolute_error", mean_absolute_error),
    ):
        found = tree_cross_validate(LSQSGDRegressor(), X, y, cv=fold, scoring=name)
        expected = [metric(y[fold == i], predicted[fold == i]) for i in range(4)]
        np.testing.assert_allclose(found.test_score, expected, rtol=1e-12)


@pytest.mark.parametrize("average", [False, True])
def test_diverged_folds(regression, average):
    X, y = regression
    wild = LSQSGDRegressor(step_size=1e200, radius=np.inf, average=average)
    result = tree_cross_validate(wild, X, y, cv=5)
    assert result.diverged_folds == 5 and result.mean == np.inf and result.std is None
    scored = tree_cross_validate(wild, X, y, cv=5, scoring="r2")
    assert scored.diverged_folds == 5 and scored.mean == -np.inf
    assert np.all(np.isnan(tree_cross_val_predict(wild, X, y, cv=5)))
    large = (X * 1e25).astype(np.float32)
    for radius in (1.0, np.inf):
        model = LSQSGDRegressor(radius=radius, average=average)
        assert tree_cross_validate(model, large, y, cv=5).diverged_folds == 5


# Folds.


def test_splitters_groups_and_fold_ids_are_one(binary):
    X, y = binary
    groups = np.arange(len(y)) // 4
    for cv, options in (
        (KFold(5, shuffle=True, random_state=2), {}),
        (StratifiedKFold(4), {}),
        (GroupKFold(3), {"groups": groups}),
        (LeaveOneGroupOut(), {"groups": groups}),
    ):
        ids = fold_of(cv, X, y, options.get("groups"))
        a = tree_cross_validate(PegasosClassifier(), X, y, cv=cv, **options)
        b = tree_cross_validate(PegasosClassifier(), X, y, cv=ids)
        c = tree_cross_validate(PegasosClassifier(), X, y, cv=list(ids))
        assert np.array_equal(a.test_score, b.test_score) and np.array_equal(
            b.test_score, c.test_score
        )
        assert a.n_folds == len(np.unique(ids))


# Seeds and repeats.


def test_one_seed_one_result(binary):
    X, y = binary
    one = tree_cross_validate(PegasosClassifier(), X, y, random_state=4, order="random")
    two = tree_cross_validate(PegasosClassifier(), X, y, random_state=4, order="random")
    other = tree_cross_validate(PegasosClassifier(), X, y, random_state=5, order="random")
    assert np.array_equal(one.test_score, two.test_score)
    assert not np.array_equal(one.test_score, other.test_score)
    from_state = [
        tree_cross_validate(PegasosClassifier(), X, y, random_state=np.random.RandomState(3)).mean
        for _ in "ab"
    ]
    assert from_state[0] == from_state[1]


@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("stratify", [False, "auto"])
def test_repeats_begin_with_the_one(binary, order, stratify):
    X, y = binary
    options = {"cv": 5, "order": order, "stratify": stratify}
    one = tree_cross_validate(PegasosClassifier(), X, y, **options)
    three = tree_cross_validate(PegasosClassifier(), X, y, n_repeats=3, n_jobs=2, **options)
    assert three.test_score.shape == (15,) and three.n_folds == 5
    assert np.array_equal(three.test_score[:5], one.test_score)
    assert not np.array_equal(three.test_score[5:10], one.test_score)
    # Which of the stratified folds have a row more than others differs from repeat to repeat.
    assert abs(three.n_updates - 3 * one.n_updates) <= (0 if stratify is False else 2 * 5)
    assert three.n_updates_standard == 3 * one.n_updates_standard


def test_repeats_of_a_random_splitter_are_frozen_once(binary):
    X, y = binary
    cv = KFold(4, shuffle=True, random_state=np.random.RandomState(0))
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=cv, n_repeats=2)
    assert not np.array_equal(result.test_score[:4], result.test_score[4:])


def test_repeats_seed_what_an_estimator_leaves_random(binary):
    X, y = binary
    fold = np.arange(len(y)) % 4  # the same partition and order, so nothing else differs
    for estimator in (SGDClassifier(max_iter=1), OneVsRestClassifier(SGDClassifier(max_iter=1))):
        result = tree_cross_validate(estimator, X, y, cv=fold, n_repeats=2)
        assert not np.array_equal(result.test_score[:4], result.test_score[4:])


def test_an_iterator_of_fold_ids_serves_all_repeats(binary):
    X, y = binary
    ids = np.arange(len(y)) % 4
    found, expected = (
        tree_cross_validate(PegasosClassifier(), X, y, cv=cv, order="random", n_repeats=2)
        for cv in (iter(ids), ids)
    )
    assert np.array_equal(found.test_score, expected.test_score)


def test_without_shuffle_rows_keep_their_order_inside_a_fold():
    ids = np.random.default_rng(0).integers(0, 7, 5000)
    folds = make_folds(ids, None, None, None, False, 0, 5000)
    for i in range(7):
        rows = folds.order[folds.bounds[i] : folds.bounds[i + 1]].astype(int)
        assert np.all(np.diff(rows) > 0) and np.all(ids[rows] == i)


def test_with_shuffle_folds_and_their_rows_are_permuted():
    ids = np.random.default_rng(0).integers(0, 7, 5000)
    folds = make_folds(ids, None, None, None, True, 0, 5000)
    assert sorted(folds.order) == list(range(5000))
    assert sorted(folds.numbers) == list(range(7)) != folds.numbers.tolist()
    for i, number in enumerate(folds.numbers):
        rows = folds.order[folds.bounds[i] : folds.bounds[i + 1]].astype(int)
        assert np.all(ids[rows] == number) and len(rows) == np.sum(ids == number)
        assert abs(np.mean(np.diff(rows) > 0) - 0.5) < 0.1


@pytest.mark.parametrize("order", ["fixed", "random"])
def test_neighbours_that_are_alike_do_not_flatter(order):
    # Rows are sorted by class, so a fold's neighbours in the data have its class. If training
    # ended with them, the error would be 0.01.
    X, y = load_digits(return_X_y=True)
    rows = np.argsort(y, kind="stable")
    X, y = scale(X)[rows], y[rows]
    expected = tree_cross_validate(PegasosClassifier(0.01), X, y, cv="loo", order=order)
    for cv in (LeaveOneOut(), KFold(599), np.arange(len(y)) // 3):
        found = tree_cross_validate(PegasosClassifier(0.01), X, y, cv=cv, order=order)
        assert abs(found.mean - expected.mean) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (Ridge(), {"scoring": "neg_mean_absolute_error"}),
        (Ridge(), {"scoring": "squared_error", "row_losses": True}),
        (GaussianNB(), {"scoring": "accuracy"}),
        (GaussianNB(), {"scoring": "neg_brier_score", "method": "fit"}),
        (DecisionTreeClassifier(random_state=0), {"scoring": "accuracy"}),
    ],
    ids=str,
)
def test_leave_one_out_is_in_the_order_of_the_rows(estimator, options):
    """Fold i tests row i, also where the rows are shuffled for training."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 3))
    y = X[:, 0] + rng.normal(size=20)
    if is_classifier(estimator):
        y = (y > 0).astype(int)
    scoring = options["scoring"].replace("squared_error", "neg_mean_squared_error")
    expected = cross_val_score(estimator, X, y, cv=LeaveOneOut(), scoring=scoring)
    expected = -expected if options["scoring"] == "squared_error" else expected
    for cv in ("loo", 20, LeaveOneOut()):
        result = tree_cross_validate(estimator, X, y, cv=cv, **options)
        np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)
        if options.get("row_losses"):
            np.testing.assert_allclose(result.row_losses, expected, rtol=1e-5)


def test_leave_one_out_by_its_splitter_is_loo(binary):
    """The order of training, and so the numbers, are those of one permutation of the rows."""
    X, y = binary
    expected = tree_cross_validate(PegasosClassifier(), X, y, cv=LeaveOneOut(), scoring="hinge")
    order = make_folds("loo", X, y, None, True, derive_seed(0, 0), len(y)).order
    moved = tree_cross_validate(
        PegasosClassifier(), X[order], y[order], cv="loo", shuffle=False, scoring="hinge"
    )
    for cv in ("loo", len(y)):
        found = tree_cross_validate(PegasosClassifier(), X, y, cv=cv, scoring="hinge")
        assert np.array_equal(found.test_score, expected.test_score)
        assert np.array_equal(found.test_score[order], moved.test_score)


def test_rows_as_lists_integers_and_columns_first(binary):
    X, y = binary
    expected = tree_cross_validate(PegasosClassifier(), X, y).test_score
    for rows, labels in ((X.tolist(), y.tolist()), (np.asfortranarray(X), y), (X, y.astype(bool))):
        assert np.array_equal(
            tree_cross_validate(PegasosClassifier(), rows, labels).test_score, expected
        )
    whole = np.round(X * 10)
    a = tree_cross_validate(PegasosClassifier(), whole, y).test_score
    assert np.array_equal(
        a, tree_cross_validate(PegasosClassifier(), whole.astype(int), y).test_score
    )


def test_the_data_is_left_alone(binary):
    X, y = binary
    before = X.copy(), y.copy()
    for array in (X, y):
        array.flags.writeable = False
    tree_cross_validate(PegasosClassifier(), X, y, n_jobs=2, order="random")
    tree_cross_validate(SGDClassifier(max_iter=1, tol=None), X, y)
    assert np.array_equal(X, before[0]) and np.array_equal(y, before[1])


# Errors and divergence.


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 1e200), (np.float32, 1e30)])
def test_overflow_is_divergence_and_no_projection_hides_it(project, average, dtype, size, binary):
    X, y = (binary[0] * size).astype(dtype), binary[1]
    estimator = PegasosClassifier(alpha=0.1, project=project, average=average)
    result = tree_cross_validate(estimator, X, y, cv=5)
    assert result.diverged_folds == 5 and result.mean == 1.0
    hinge = tree_cross_validate(estimator, X, y, cv=5, scoring="hinge")
    assert hinge.mean == np.inf and hinge.std is None


def test_rows_are_not_theirs_to_write(binary):
    X, y = binary

    def scorer(model, X, y):
        X -= X.mean(axis=0)
        return 0.0

    for estimator in (PegasosClassifier(), SGDClassifier(max_iter=1, tol=None)):
        with pytest.raises(ValueError, match="read-only"):
            tree_cross_validate(estimator, X, y, scoring=scorer)


def test_infinite_scores_never_become_nan(binary):
    X, y = binary
    signs = iter([np.inf, -np.inf, 0.5, 0.5, 0.5])
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=5, scoring=lambda *_: next(signs))
    assert result.mean == -np.inf and result.diverged_folds == 2


@pytest.mark.filterwarnings("error", "ignore:scoring='<lambda>' may not be a mean")
@pytest.mark.parametrize("size", [1e200, 1e300, np.finfo(np.float64).max])
def test_huge_scores_have_a_mean_and_a_standard_deviation(size, binary):
    X, y = binary
    for signs in ([1, -1, 1, 1], [1, 1, 1, 1]):
        left = iter(signs)
        result = tree_cross_validate(
            PegasosClassifier(), X, y, cv=4, scoring=lambda *_, left=left: size * next(left)
        )
        assert result.diverged_folds == 0
        assert result.mean == pytest.approx(size * np.mean(signs), rel=1e-14)
        assert result.std == pytest.approx(size * np.std(signs), rel=1e-14)


def test_a_result_is_shown_in_three_lines(binary):
    X, y = binary
    result = tree_cross_validate(PegasosClassifier(), X, y, cv="loo", n_repeats=3)
    shown = repr(result)
    assert len(shown.splitlines()) == 3 and max(map(len, shown.splitlines())) < 100
    assert f"mean={result.mean:.6g}, std=" in shown and "<249 scores>" in shown
    # There is one score, it is not pooled, and nothing is slow.
    hidden = {"scores", "row_losses", "reason", "curve", "_name", "_kfold_estimator"}
    assert all(f"{name}=" in shown for name in vars(result).keys() - hidden)
    fitted = repr(tree_cross_validate(DecisionTreeClassifier(), X, y, cv=3))
    reason = "models of DecisionTreeClassifier are not computed from sums over rows"
    assert f"    reason={reason!r}" in fitted
    wild = LSQSGDRegressor(step_size=1e200, radius=np.inf, average=False)
    assert "mean=inf, std=None" in repr(tree_cross_validate(wild, X, y, cv=5))


def test_a_printed_result_has_scores_method_and_cost(binary):
    X, y = binary
    scoring = ["hinge", "error"]
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=4, scoring=scoring, n_repeats=2)
    hinge, error, method, cost = str(result).splitlines()
    assert (
        hinge
        == f"hinge: {result.mean:.6g} ± {result.std_error:.2g} (standard error), mean of 8 scores"
    )
    assert error.startswith(f"error: {result.scores['error'].mean:.6g} ± ")
    assert method == f"method='treecv', because {result.reason}"
    assert f"trained on {result.n_updates:,} rows instead of {result.n_updates_standard:,}" in cost
    wild = LSQSGDRegressor(step_size=1e200, radius=np.inf, average=False)
    assert str(tree_cross_validate(wild, X, y, cv=5)).endswith("; 5 folds diverged")


def test_a_bar_counts_the_folds_and_trees_of_long_evaluations(binary, monkeypatch, capsys):
    X, y = binary
    monkeypatch.setattr("optuna_treecv.core.run._SECONDS_WITHOUT_BAR", 0)
    for estimator, options, words in (
        (DecisionTreeClassifier(), {}, ["DecisionTreeClassifier:", "/3"]),
        (GradientBoostingClassifier(n_estimators=4), {}, ["/3", " 4 trees"]),
        (HistGradientBoostingClassifier(max_iter=9), {"n_estimators": "best"}, ["/3", " trees"]),
    ):
        tree_cross_validate(estimator, X, y, cv=3, **options)
        assert capsys.readouterr() == ("", "")
        tree_cross_validate(estimator, X, y, cv=3, verbose=1, **options)
        shown = capsys.readouterr().err
        assert all(word in shown for word in words)
    models = [Ridge(alpha=alpha) for alpha in (1, 2)]
    tree_cross_validate_many(models, X, y, cv=3, verbose=1)
    assert "/6" in capsys.readouterr().err


def test_scores_compare_with_targets_as_given():
    X = np.ones((20, 1), np.float32)
    y = 2.0**24 + np.arange(20) % 2
    model = LSQSGDRegressor(step_size=1.0, radius=np.inf, average=False)
    result = tree_cross_validate(model, X, y, cv=2, scoring="squared_error")
    assert result.mean == 0.5  # both targets round to the same float32 number


def test_threads_know_the_configuration(binary):
    X, y = binary
    X = X.copy()
    X[0, 0] = np.nan
    for n_jobs in (1, 2):
        with config_context(assume_finite=True):
            result = tree_cross_validate(GaussianNB(), X, y, cv=4, n_jobs=n_jobs)
        assert np.isfinite(result.mean)


def test_random_orders_of_repeats_and_of_the_standard_method(binary):
    X, y = binary
    ids = np.arange(len(y)) % 4
    result = tree_cross_validate(
        PegasosClassifier(1e-5), X, y, cv=ids, order="random", n_repeats=3
    )
    assert len(np.unique(result.test_score.reshape(3, 4), axis=0)) == 3
    options = {"cv": ids, "method": "standard"}
    fixed = tree_cross_validate(PegasosClassifier(1e-5), X, y, **options)
    random = tree_cross_validate(PegasosClassifier(1e-5), X, y, order="random", **options)
    assert not np.array_equal(fixed.test_score, random.test_score)


def test_leave_one_out_needs_little_beside_the_rows():
    n = 50_000
    X = np.random.default_rng(0).normal(size=(n, 7))
    y = (X[:, 0] > 0).astype(int)
    tree_cross_validate(PegasosClassifier(), X[:100], y[:100], cv="loo")  # warm-up: imports
    tracemalloc.start()
    try:
        tree_cross_validate(PegasosClassifier(), X, y, cv="loo")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    prepared = n * (8 * 8 + 4)  # padded rows, class codes
    assert peak - prepared < 24 * n + 2**20


@pytest.mark.parametrize("cache", [None, ModelCache()], ids=["plain", "cached"])
@pytest.mark.parametrize("n_repeats", [1, 2])
def test_a_run_can_be_made_again(cache, n_repeats, binary):
    X, y = binary
    options = {"cv": 7, "n_repeats": n_repeats, "scoring": None, "random_state": 0}
    cross_validation = CrossValidation.of(X, y, Settings(method="treecv", **options), cache=cache)
    run = run_for(cross_validation, PegasosClassifier())
    expected = tree_cross_validate(PegasosClassifier(), X, y, **options)
    for n_parts in (1, None, 2, None):  # left early, or to the end
        for _ in islice(run.events(), n_parts):
            pass
        found = run.result()
        assert found.n_folds == 7
        if n_parts is None:
            assert np.array_equal(found.test_score, expected.test_score)
            assert found.n_updates + found.n_updates_saved == expected.n_updates
            assert found.diverged_folds == 0
    assert np.array_equal(run.finish().test_score, expected.test_score)
