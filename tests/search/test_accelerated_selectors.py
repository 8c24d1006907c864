"""``SequentialFeatureSelector``, ``RFE`` and ``RFECV``, by engines: the same features."""

from __future__ import annotations

from itertools import cycle
import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn import feature_selection
from sklearn import model_selection
from sklearn.datasets import load_diabetes
from sklearn.datasets import make_regression
from sklearn.feature_selection import _sequential
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn_cases import cases_with

from optuna_treecv import accelerate
from optuna_treecv.search import selectors
from optuna_treecv.search import stand_ins
from optuna_treecv.search.stand_ins import RECORD

X, Y = load_diabetes(return_X_y=True, as_frame=True)
Z, T = make_regression(200, 15, n_informative=5, noise=20.0, random_state=0)


@pytest.fixture
def calls(monkeypatch):
    """The calls that were recorded, while names of scikit-learn are those of this package."""
    accelerate.install()
    # The scores inside scikit-learn's own selector remain its own, for comparison.
    monkeypatch.setattr(_sequential, "cross_val_score", stand_ins._cross_val_score)
    yield RECORD.calls
    accelerate.uninstall()


TESTS = "sklearn.feature_selection.tests"
TestSequentialCases = pytest.mark.slow(
    type(
        "TestSequentialCases",
        (),
        cases_with(
            selectors.SequentialFeatureSelector,
            home=feature_selection,
            tests=f"{TESTS}.test_sequential",
        ),
    )
)


class _Seeded:
    @pytest.fixture
    def global_random_seed(self):
        return 42


TestEliminationCases = pytest.mark.slow(
    type(
        "TestEliminationCases",
        (_Seeded,),
        cases_with(
            selectors.RFE, selectors.RFECV, home=feature_selection, tests=f"{TESTS}.test_rfe"
        ),
    )
)

SEQUENTIAL, RFE, RFECV = "SequentialFeatureSelector", "RFE", "RFECV"
SELECTORS = [
    (SEQUENTIAL, {}),
    (SEQUENTIAL, {"direction": "backward", "cv": TimeSeriesSplit(4)}),
    (SEQUENTIAL, {"tol": 0.001, "scoring": "r2", "cv": 4}),
    (SEQUENTIAL, {"n_features_to_select": 0.3, "scoring": "neg_root_mean_squared_error"}),
    (SEQUENTIAL, {"cv": list(KFold(3, shuffle=True, random_state=0).split(X))}),
    (RFE, {}),
    (RFE, {"n_features_to_select": 2, "step": 3}),
    (RFE, {"n_features_to_select": 0.4, "step": 0.25}),
    (RFECV, {}),
    (RFECV, {"cv": 3, "step": 4, "min_features_to_select": 2}),
    (RFECV, {"cv": ShuffleSplit(4, random_state=0), "scoring": "neg_mean_squared_error"}),
    (RFECV, {"step": 0.3, "importance_getter": "coef_"}),
]


def check_is_equal(ours, theirs):
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    assert vars(ours).keys() == vars(theirs).keys()
    for name in ("support_", "ranking_", "n_features_", "n_features_in_", "n_features_to_select_"):
        assert np.array_equal(getattr(ours, name, None), getattr(theirs, name, None)), name
    for name in ("support_", "ranking_"):
        if hasattr(theirs, name):
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
    for name, column in getattr(theirs, "cv_results_", {}).items():
        found = ours.cv_results_[name]
        assert found.dtype == column.dtype
        np.testing.assert_allclose(found, column, rtol=1e-9, atol=1e-12)
    assert list(getattr(ours, "cv_results_", {})) == list(getattr(theirs, "cv_results_", {}))
    if hasattr(theirs, "estimator_"):
        np.testing.assert_allclose(ours.estimator_.coef_, theirs.estimator_.coef_, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "estimator"),
    [
        (*selector, estimator)
        for selector, estimator in zip(SELECTORS, cycle([LinearRegression(), Ridge(0.2)]))
    ],
)
def test_selectors_have_the_same_features(name, options, estimator, calls):
    for rows in ((X, Y), (Z.astype(np.float32), T)):
        if rows[0] is not X and isinstance(options.get("cv"), list):
            continue
        ours = getattr(feature_selection, name)(estimator, **options).fit(*rows)
        assert [(call.name, call.method) for call in calls] == [(name, "exact")]
        calls.clear()
        original = getattr(selectors, name).stands_for
        theirs = original(estimator, **options).fit(np.asarray(rows[0], np.float64), rows[1])
        if rows[0] is X:
            theirs = original(estimator, **options).fit(*rows)
            assert ours.get_feature_names_out().tolist() == theirs.get_feature_names_out().tolist()
            check_is_equal(ours, theirs)
        else:
            assert np.array_equal(ours.support_, theirs.support_)
            for column, scores in getattr(theirs, "cv_results_", {}).items():
                np.testing.assert_allclose(ours.cv_results_[column], scores, rtol=1e-9, atol=1e-9)


def test_groups_of_rfecv(calls):
    groups, options = np.arange(len(Y)) % 11, {"cv": GroupKFold(5)}
    ours = feature_selection.RFECV(Ridge(), **options).fit(X, Y, groups=groups)
    assert calls[-1].method == "exact"
    check_is_equal(ours, selectors.RFECV.stands_for(Ridge(), **options).fit(X, Y, groups=groups))


def test_random_splits_of_rfecv_are_those_that_scikit_learn_draws(calls):
    def make(kind):
        state = np.random.RandomState(3)  # noqa: NPY002
        return kind(Ridge(), cv=KFold(4, shuffle=True, random_state=state)).fit(Z, T)

    ours, theirs = make(feature_selection.RFECV), make(selectors.RFECV.stands_for)
    assert calls[-1].method == "exact"
    assert ours.cv_results_["split2_test_score"] == pytest.approx(
        theirs.cv_results_["split2_test_score"]
    )


@pytest.mark.parametrize("name", [RFE, RFECV])
def test_the_first_of_equal_columns_and_constant_columns_are_eliminated_first(name, calls):
    rows = np.column_stack([Z, Z[:, 3], np.full(len(T), 0.1), Z[:, 7]])
    ours = getattr(feature_selection, name)(Ridge(), **{"step": 1} if name == RFECV else {}).fit(
        rows, T
    )
    assert calls[-1].method == "exact"
    ranks = feature_selection.RFE(Ridge(), n_features_to_select=1).fit(rows, T).ranking_
    assert ranks[16] == ranks.max()
    assert ranks[3] > ranks[15]
    assert ranks[7] > ranks[17]
    assert ours.support_.sum() == ours.n_features_


@pytest.mark.slow
def test_a_selector_in_a_pipeline_and_in_a_search(calls):
    """The selector is fitted on the training rows of each outer fold."""
    selector = feature_selection.SequentialFeatureSelector(Ridge(), cv=4)
    model = make_pipeline(StandardScaler(), selector, Ridge())
    grid = {"sequentialfeatureselector__n_features_to_select": [2, 5]}
    ours = model_selection.GridSearchCV(model, grid, cv=3).fit(X, Y)
    named = [call.method for call in calls if call.name == SEQUENTIAL]
    assert named == ["exact"] * 7
    accelerate.uninstall()
    original = feature_selection.SequentialFeatureSelector(Ridge(), cv=4)
    model = make_pipeline(StandardScaler(), original, Ridge())
    theirs = model_selection.GridSearchCV(model, grid, cv=3).fit(X, Y)
    for column in ("split0_test_score", "split2_test_score"):
        np.testing.assert_allclose(ours.cv_results_[column], theirs.cv_results_[column])


@pytest.mark.slow
def test_a_scaler_inside_the_selector_is_fitted_per_fold(calls):
    rows = Z * np.logspace(-2, 2, 15) + 7
    model = make_pipeline(StandardScaler(), Ridge(50.0))
    options = {"direction": "backward", "scoring": "neg_mean_squared_error"}
    ours = feature_selection.SequentialFeatureSelector(model, **options).fit(rows, T)
    assert calls[-1].method == "exact"
    original = selectors.SequentialFeatureSelector.stands_for
    check_is_equal(ours, original(model, **options).fit(rows, T))


class OtherSearch(selectors.SequentialFeatureSelector):
    def _get_best_new_feature_score(self, *args, **params):
        return super()._get_best_new_feature_score(*args, **params)


class OtherElimination(selectors.RFE):
    def _fit(self, *args, **params):
        return super()._fit(*args, **params)


ROWS = Z[:, :4]
TWICE = np.column_stack([ROWS, ROWS[:, 1]])
NOT_BY_SUMS = [
    (SEQUENTIAL, {"estimator": Lasso()}, {}, "models of Lasso do not follow from sums"),
    (SEQUENTIAL, {"estimator": LinearRegression()}, {"X": TWICE}, "linearly dependent"),
    (SEQUENTIAL, {"scoring": "neg_mean_absolute_error"}, {}, "is not r2 or a negative squared"),
    (SEQUENTIAL, {"cv": ShuffleSplit(3)}, {}, "cv yields different splits each time"),
    (SEQUENTIAL, {"estimator": Ridge(tol=0.1)}, {}, "may stop fits before they have converged"),
    (SEQUENTIAL, {}, {"X": sparse.csc_array(ROWS)}, "X is sparse"),
    (SEQUENTIAL, {}, {"y": np.column_stack([T, T])}, "y has several columns"),
    (SEQUENTIAL, {"cv": KFold(3).split(ROWS)}, {}, "can be iterated only once"),
    (RFE, {"importance_getter": "coef_", "estimator": Lasso()}, {}, "do not follow from sums"),
    (RFE, {"importance_getter": lambda model: -abs(model.coef_)}, {}, "not ranked by coef_"),
    (RFE, {"estimator": LinearRegression()}, {"X": TWICE}, "linearly dependent"),
    (RFE, {"n_features_to_select": 9}, {}, "n_features_to_select is not between"),
    (RFE, {}, {"sample_weight": np.ones(200)}, "further arguments"),
    (RFE, {"verbose": 1}, {}, "verbose is above 0"),
    (RFECV, {"estimator": LinearRegression()}, {"X": TWICE}, "linearly dependent"),
    (RFECV, {"scoring": "explained_variance"}, {}, "is not r2 or a negative squared"),
    (RFECV, {"cv": KFold(3).split(ROWS)}, {}, "can be iterated only once"),
    (RFECV, {}, {"X": sparse.csr_array(ROWS)}, "X is sparse"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Found n_features_to_select")
@pytest.mark.parametrize(("name", "options", "arguments", "reason"), NOT_BY_SUMS)
def test_what_does_not_follow_from_sums_is_left_to_scikit_learn(
    name, options, arguments, reason, calls
):
    options, arguments = {"estimator": Ridge(), **options}, {"X": ROWS, "y": T, **arguments}
    ours = getattr(feature_selection, name)(**options).fit(**arguments)
    assert calls[-1].method == ""
    assert reason in calls[-1].reason
    if "different" not in reason and "once" not in reason:
        theirs = getattr(selectors, name).stands_for(**options).fit(**arguments)
        assert np.array_equal(ours.support_, theirs.support_)
        assert vars(ours).keys() == vars(theirs).keys()


def test_subclasses_are_left_alone(calls):
    OtherSearch(Ridge()).fit(ROWS, T)
    OtherElimination(Ridge()).fit(ROWS, T)
    assert [call.reason for call in calls] == [
        "fit has further arguments, or a subclass overrides a method",
        "a subclass overrides _fit",
    ]


def test_wrong_arguments_raise_what_scikit_learn_raises(calls):
    for name, options in (
        (SEQUENTIAL, {"n_features_to_select": 4}),
        (SEQUENTIAL, {"tol": -1.0, "n_features_to_select": "auto"}),
        (SEQUENTIAL, {"direction": "both"}),
        (RFE, {"step": 0}),
        (RFECV, {"min_features_to_select": 0}),
        (RFECV, {"scoring": "unknown"}),
    ):
        with pytest.raises(ValueError) as expected:  # noqa: PT011
            getattr(selectors, name).stands_for(Ridge(), **options).fit(ROWS, T)
        with pytest.raises(ValueError) as found:  # noqa: PT011
            getattr(feature_selection, name)(Ridge(), **options).fit(ROWS, T)
        assert str(found.value) == str(expected.value)


def test_calls_are_checked_and_fitted_selectors_are_pickled(calls):
    accelerate.install(check=True)
    for name in (SEQUENTIAL, RFE, RFECV):
        selector = getattr(feature_selection, name)(Ridge()).fit(ROWS, T)
        assert RECORD.calls[-1].difference < 1e-12
        again = pickle.loads(pickle.dumps(selector))
        assert type(again) is getattr(selectors, name).stands_for
        assert np.array_equal(again.transform(ROWS), selector.transform(ROWS))
        assert pickle.loads(pickle.dumps(type(selector))) is type(selector)
    assert "_get_best_new_feature_score" not in vars(selector)
