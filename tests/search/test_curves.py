"""Permutation tests, learning curves and validation curves: scikit-learn's scores, or its runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import model_selection
from sklearn.cross_decomposition import PLSRegression
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import HuberRegressor
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import NuSVC
from sklearn.svm import SVC
from sklearn_cases import cases_with

from optuna_treecv import accelerate
from optuna_treecv import tree_cross_validate
from optuna_treecv.numerics import moments
from optuna_treecv.search import curves
from optuna_treecv.search.stand_ins import RECORD

D, T = load_diabetes(return_X_y=True)
X, Y = load_breast_cancer(return_X_y=True)
GROUPS = np.arange(len(T)) % 6
LASSO = Lasso(0.1, tol=1e-12, max_iter=100_000)
LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-9, max_iter=1000))
SPLITS = [
    {},
    {"scoring": "neg_mean_absolute_error"},
    {"cv": KFold(4, shuffle=True, random_state=1)},
    {"cv": GroupKFold(3), "groups": GROUPS},
    {"cv": ShuffleSplit(3, random_state=0)},
    {"cv": TimeSeriesSplit(3)},
    {"cv": KFold(60), "scoring": "neg_root_mean_squared_error"},
]


@pytest.fixture
def calls():
    """The calls that were noted, while names of scikit-learn are those of this package."""
    accelerate.install()
    yield RECORD.calls
    accelerate.uninstall()


class _Seeded:
    @pytest.fixture
    def global_random_seed(self):
        return 42


TestOfSklearn = pytest.mark.slow(
    type(
        "TestOfSklearn",
        (_Seeded,),
        cases_with(
            curves.permutation_test_score,
            curves.learning_curve,
            curves.validation_curve,
            tests="sklearn.model_selection.tests.test_validation",
            nightly="permutation|routing|params_none",
        ),
    )
)


def assert_as_scikit_learn(name, calls, estimator, *rows, atol=1e-9, **options):
    """Compare all that a function returns with what scikit-learn's own returns."""
    ours = getattr(model_selection, name)(estimator, *rows, **options)
    assert (calls[-1].name, calls[-1].reason) == (name, "")
    theirs = getattr(curves, f"_{name}")(estimator, *rows, **options)
    assert len(ours) == len(theirs)
    for found, expected in zip(ours, theirs, strict=True):
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=atol)


# --- Permutation tests ---


@pytest.mark.slow
@pytest.mark.parametrize("options", SPLITS, ids=str)
@pytest.mark.parametrize(
    "estimator",
    [Ridge(), LinearRegression(), LASSO, make_pipeline(StandardScaler(), Ridge(3.0))],
    ids=lambda model: type(model).__name__,
)
def test_permuted_targets_have_the_scores_of_fits(estimator, options, calls):
    assert_as_scikit_learn(
        "permutation_test_score", calls, estimator, D, T, n_permutations=4, **options
    )


def test_permuted_targets_with_weights_and_in_frames(calls):
    weights = np.random.default_rng(0).random(len(T))
    options = {"n_permutations": 3, "random_state": 5, "params": {"sample_weight": weights}}
    rows = pd.DataFrame(D), pd.Series(T)
    for model in (Ridge(), LinearRegression()):
        assert_as_scikit_learn("permutation_test_score", calls, model, *rows, **options)
        options["params"] = {}


def test_dependent_columns(calls):
    """Least squares are then those of the smallest coefficients, for each permutation."""
    one_hot = np.eye(6)[GROUPS]
    rows = np.hstack([D, one_hot, D[:, :2]]), T
    for model in (LinearRegression(), Ridge(1e-3)):
        assert_as_scikit_learn("permutation_test_score", calls, model, *rows, n_permutations=5)


@pytest.mark.slow
@pytest.mark.parametrize("cv", [None, 3, KFold(4)])
def test_permuted_classes_are_split_anew(cv, calls):
    """Stratified folds depend on the permuted labels."""
    options = {"n_permutations": 3, "cv": cv}
    for model in (RidgeClassifier(), LinearDiscriminantAnalysis()):
        assert_as_scikit_learn("permutation_test_score", calls, model, X[:, :9], Y, **options)
    options["scoring"] = "neg_log_loss"
    assert_as_scikit_learn("permutation_test_score", calls, LOGISTIC, X, Y, atol=1e-5, **options)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, np.arange(len(Y)) % 5])
def test_permuted_classes_of_ridge_are_joint_targets_in_fixed_folds(groups, calls, monkeypatch):
    """Only if there are two classes, and the score is the accuracy."""
    batches = []
    score = curves._score_batch

    def score_batch(X, batch, *arguments):
        batches.append(len(batch))
        return score(X, batch, *arguments)

    monkeypatch.setattr(curves, "_score_batch", score_batch)
    labels, options = np.array(["no", "yes"])[Y], {"n_permutations": 5, "groups": groups}
    for model in (RidgeClassifier(), RidgeClassifier(30.0, fit_intercept=False)):
        for cv in (KFold(4), TimeSeriesSplit(3)):
            options["cv"] = cv
            assert_as_scikit_learn("permutation_test_score", calls, model, X, labels, **options)
    assert batches == [5] * 4
    options["cv"] = KFold(4)
    for model, y, scoring in (
        (RidgeClassifier(class_weight="balanced"), labels, None),
        (RidgeClassifier(), Y, "f1"),
        (RidgeClassifier(), np.digitize(X[:, 0], [12, 16]), None),
    ):
        options["scoring"] = scoring
        assert_as_scikit_learn("permutation_test_score", calls, model, X, y, **options)
    assert len(batches) == 4


def test_other_regressors_are_evaluated_for_each_permutation(calls):
    for model in (PLSRegression(2), KNeighborsRegressor()):
        assert_as_scikit_learn("permutation_test_score", calls, model, D, T, n_permutations=3)


def test_permuted_targets_are_evaluated_in_batches_of_bounded_size(calls, monkeypatch):
    sizes = []
    score = curves._score_batch

    def score_batch(X, batch, *arguments):
        sizes.append(sum(targets.nbytes for targets in batch))
        return score(X, batch, *arguments)

    monkeypatch.setattr(curves, "_score_batch", score_batch)
    monkeypatch.setattr(curves, "_MAX_BYTES", 24 * len(T) + 7)
    assert_as_scikit_learn("permutation_test_score", calls, Ridge(), D, T, n_permutations=7)
    assert sizes == [24 * len(T), 24 * len(T), 8 * len(T)]
    monkeypatch.setattr(curves, "_MAX_BYTES", 1)
    assert_as_scikit_learn("permutation_test_score", calls, Ridge(), D, T, n_permutations=2)
    assert sizes[3:] == [8 * len(T)] * 2
    monkeypatch.setattr(curves, "_MAX_BYTES", 2**26)
    monkeypatch.setattr(curves, "_MAX_TARGETS", 4)
    assert_as_scikit_learn("permutation_test_score", calls, Ridge(), D, T, n_permutations=5)
    assert sizes[5:] == [32 * len(T), 8 * len(T)]


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: 3, lambda: np.random.RandomState(3)])  # noqa: NPY002
def test_permutations_are_those_of_the_same_generator(make, calls):
    """A generator has the same state afterwards, also if scikit-learn runs the call."""
    for model, groups in ((Ridge(), None), (Ridge(), GROUPS), (HuberRegressor(), None)):
        ours, theirs = make(), make()
        options = {"n_permutations": 2, "groups": groups}
        found = model_selection.permutation_test_score(model, D, T, random_state=ours, **options)
        expected = curves._permutation_test_score(model, D, T, random_state=theirs, **options)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-9)
        if isinstance(ours, np.random.RandomState):
            assert ours.random_sample() == theirs.random_sample()


# --- Curves ---


@pytest.mark.slow
@pytest.mark.parametrize("options", [*SPLITS[:6], {"shuffle": True, "random_state": 3}], ids=str)
@pytest.mark.parametrize(
    "estimator",
    [Ridge(), LinearRegression(), make_pipeline(StandardScaler(), Ridge()), PLSRegression(3)],
    ids=lambda model: type(model).__name__,
)
def test_learning_curves_have_the_scores_of_fits(estimator, options, calls):
    sizes = {"train_sizes": [0.2, 0.55, 0.9]} if "cv" not in options else {"train_sizes": [40, 90]}
    assert_as_scikit_learn("learning_curve", calls, estimator, D, T, **options, **sizes)


@pytest.mark.slow
def test_learning_curves_of_other_engines(calls):
    assert_as_scikit_learn("learning_curve", calls, KNeighborsRegressor(), D, T)
    assert_as_scikit_learn("learning_curve", calls, RidgeClassifier(), X, Y, train_sizes=[0.5, 1])
    options = {"train_sizes": [200, 400], "scoring": "neg_log_loss", "atol": 1e-5}
    assert_as_scikit_learn("learning_curve", calls, LOGISTIC, X, Y, **options)


CURVES = [
    (Ridge(), D, T, "alpha", [0.01, 1.0, 30.0]),
    (make_pipeline(StandardScaler(), Ridge()), D, T, "ridge__alpha", [1.0, 30.0]),
    (LASSO, D, T, "alpha", [0.1, 1.0]),
    (LinearRegression(), D, T, "fit_intercept", [True, False]),
    (PLSRegression(), D, T, "n_components", [1, 4, 9]),
    (KNeighborsRegressor(), D, T, "n_neighbors", [1, 5]),
    (RidgeClassifier(), X, Y, "alpha", [0.1, 10.0]),
    (RandomForestClassifier(random_state=0), X, Y, "n_estimators", [2, 4]),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CURVES, ids=lambda case: type(case[0]).__name__)
def test_validation_curves_have_the_scores_of_fits(case, calls):
    estimator, *rows, name, values = case
    options = {"param_name": name, "param_range": values}
    for cv in (None, KFold(3, shuffle=True, random_state=0), ShuffleSplit(2, random_state=0)):
        assert_as_scikit_learn("validation_curve", calls, estimator, *rows, cv=cv, **options)


@pytest.fixture
def n_read(monkeypatch):
    """Count the rows whose moments are collected."""
    counts, collect = [], moments.Source.collect

    def counting(self, rows):
        counts.append(moments.count_rows(rows))
        return collect(self, rows)

    monkeypatch.setattr(moments.Source, "collect", counting)
    return counts


def test_cells_are_read_once(n_read, monkeypatch):
    """Overlapping training sets are merged from disjoint sets of rows, unless rows repeat."""
    rows = np.arange(len(T))
    splits = [(rows[start : start + 250], rows[300:]) for start in range(0, 40, 4)]
    repeated = [(np.append(train, train[:5]), test) for train, test in splits]
    for cv, is_once in ((splits, True), (repeated, False)):
        n_read.clear()
        result = tree_cross_validate(Ridge(), D, T, cv=cv, shuffle=False, method="exact")
        assert (sum(n_read) <= len(T)) == is_once
        assert (result.n_updates <= len(T)) == is_once
        expected = tree_cross_validate(Ridge(), D, T, cv=cv, shuffle=False, method="fit")
        np.testing.assert_allclose(result.test_score, expected.test_score, rtol=1e-10)
    monkeypatch.setattr(moments, "MAX_BYTES", 0)
    n_read.clear()
    again = tree_cross_validate(Ridge(), D, T, cv=splits, shuffle=False, method="exact")
    assert sum(n_read) > len(T)
    expected = tree_cross_validate(Ridge(), D, T, cv=splits, shuffle=False, method="fit")
    np.testing.assert_allclose(again.test_score, expected.test_score, rtol=1e-10)


def test_cells_are_not_sought_in_narrow_windows():
    """Each of the sets would take a pass over all rows."""
    rows = np.arange(1000)
    for width, has_cells in ((100, True), (60, False)):
        trains = [[rows[i : i + width]] for i in range(0, 800, 10)]
        tested = np.concatenate([rows[i + width : i + width + 5] for i in range(0, 800, 10)])
        chunks = moments.Chunks(1000, np.arange(0, 401, 5), tested, trains)
        assert (chunks.cells is not None) == has_cells
        assert chunks.n_read == (1000 if has_cells else 80 * width)


def test_shuffled_prefixes_are_read_once(calls, n_read):
    """Each size adds its rows to those of the previous size; test sets are read once per split."""
    options = {"shuffle": True, "random_state": 0, "train_sizes": [0.3, 0.6, 0.9]}
    assert_as_scikit_learn("learning_curve", calls, Ridge(), D, T, cv=KFold(4), **options)
    n_trained = int(0.9 * len(next(KFold(4).split(D))[0]))
    assert sum(n_read) == 4 * n_trained + len(T)


def test_no_model_of_a_cell_changes_with_the_rows_that_it_tests():
    rows = np.arange(len(T))
    splits = [(rows[start : start + 250], rows[300:]) for start in range(0, 40, 4)]
    far_D, far_T = D.copy(), T.copy()
    far_D[300:] += 1e6
    far_T[300:] *= -7
    for (train, test), score in zip(
        splits,
        tree_cross_validate(Ridge(), far_D, far_T, cv=splits, shuffle=False).test_score,
        strict=True,
    ):
        errors = Ridge().fit(D[train], T[train]).predict(far_D[test]) - far_T[test]
        assert score == pytest.approx(np.mean(np.square(errors)), rel=1e-8)


# --- What is left to scikit-learn ---


def test_learning_curves_of_support_vector_machines_of_many_classes_are_left(calls):
    D, digits = load_digits(return_X_y=True)
    for n_classes, method in ((3, "kernel"), (4, "")):
        rows = np.flatnonzero(digits < n_classes)[:200]
        model_selection.learning_curve(SVC(), D[rows], digits[rows], cv=2, train_sizes=[60])
        assert calls[-1].method == method


@pytest.mark.parametrize(
    ("name", "estimator", "options", "why"),
    [
        ("permutation_test_score", NuSVC(), {"n_permutations": 1}, "not computed from sums"),
        ("permutation_test_score", GaussianNB(), {"n_permutations": 1}, "has partial_fit"),
        (
            "permutation_test_score",
            RidgeClassifier(),
            {"n_permutations": 1, "cv": KFold(3, shuffle=True)},
            "cv may draw other splits",
        ),
        ("learning_curve", RidgeClassifier(), {"return_times": True}, "return_times is True"),
        (
            "learning_curve",
            SGDClassifier(random_state=0),
            {"exploit_incremental_learning": True},
            "exploit_incremental_learning is True",
        ),
        ("learning_curve", RandomForestClassifier(2, random_state=0), {}, "number of trees"),
        ("learning_curve", RidgeClassifier(), {"train_sizes": [25]}, "lacks a class"),
        (
            "validation_curve",
            NuSVC(),
            {"param_name": "nu", "param_range": [0.5]},
            "not computed from sums",
        ),
    ],
)
def test_calls_that_are_left_to_scikit_learn(name, estimator, options, why, calls):
    found = getattr(model_selection, name)(estimator, X, Y, **options)
    assert (calls[-1].name, calls[-1].method) == (name, "")
    assert why in calls[-1].reason
    if not options.get("return_times") and "cv" not in options:
        expected = getattr(curves, f"_{name}")(estimator, X, Y, **options)
        assert all(map(np.array_equal, found, expected))


def test_wrong_arguments_are_refused_as_before(calls):
    for options in ({"n_permutations": 0}, {"scoring": "error"}, {"n_folds": 3}):
        with pytest.raises((TypeError, ValueError)):
            model_selection.permutation_test_score(Ridge(), D, T, **options)
    with pytest.raises(ValueError, match="train_sizes"):
        model_selection.learning_curve(Ridge(), D, T, train_sizes=[2.0])
    with pytest.raises(ValueError, match="alpha"):
        model_selection.validation_curve(
            Ridge(), D, T, param_name="alpha", param_range=[-1.0], error_score="raise"
        )
    assert not any(call.method for call in calls)


def test_sparse_rows(calls):
    rows = sparse.csr_array(D), T
    model = Ridge(solver="sparse_cg", tol=1e-13)
    for name, options in (
        ("permutation_test_score", {"n_permutations": 2}),
        ("learning_curve", {}),
        ("validation_curve", {"param_name": "alpha", "param_range": [1.0, 2.0]}),
    ):
        assert_as_scikit_learn(name, calls, model, *rows, **options)


def test_checked_calls_show_differences(calls):
    accelerate.install(check=True)
    model_selection.permutation_test_score(Ridge(), D, T, n_permutations=2)
    model_selection.learning_curve(Ridge(), D, T)
    assert len(calls) == 2
    assert all(0 < call.difference < 1e-12 for call in calls)
    assert "permutation_test_score of Ridge" in accelerate.report()
