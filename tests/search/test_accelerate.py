"""scikit-learn's searches and cross-validations, accelerated: the same results, or left alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from copy import deepcopy
import pickle
import re
import subprocess
import sys
import warnings

from joblib import parallel_config
import numpy as np
import pandas as pd
import pytest
from scipy.stats import loguniform
from sklearn import config_context
from sklearn import linear_model
from sklearn import model_selection
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.datasets import make_regression
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifierCV
from sklearn.linear_model import RidgeCV
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import NuSVC
from sklearn.svm import SVC
from sklearn.svm import SVR
from sklearn_cases import cases_with

from optuna_treecv import accelerate
from optuna_treecv.search import stand_ins
from optuna_treecv.search.stand_ins import RECORD

X, Y = load_breast_cancer(return_X_y=True)
D, T = load_diabetes(return_X_y=True)
LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-9, max_iter=1000))


@pytest.fixture
def calls():
    """The calls that were noted, while names of scikit-learn are those of this package."""
    accelerate.install()
    yield RECORD.calls
    accelerate.uninstall()


# --- scikit-learn's own tests ---

SEARCHES_OF_SKLEARN = cases_with(
    stand_ins.GridSearchCV, stand_ins.RandomizedSearchCV, nightly="grid_search_sparse"
)
TestSearches = pytest.mark.slow(type("TestSearches", (), SEARCHES_OF_SKLEARN))


class _Seeded:
    @pytest.fixture
    def global_random_seed(self):
        return 42


TestLogistic = pytest.mark.nightly(
    type(
        "TestLogistic",
        (_Seeded,),
        cases_with(
            stand_ins.LogisticRegressionCV,
            home=linear_model,
            tests="sklearn.linear_model.tests.test_logistic",
        ),
    )
)


# --- The same results ---

SEARCHES = [
    ("newton", LOGISTIC, {"logisticregression__C": [0.01, 1.0, 10.0]}, {}),
    (
        "exact",
        Ridge(),
        {"alpha": [0.01, 0.1, 1.0]},
        {"cv": KFold(4, shuffle=True, random_state=1)},
    ),
    (
        "exact",
        Ridge(),
        {"alpha": [0.1, 1.0]},
        {"scoring": ["r2", "neg_mean_absolute_error"], "refit": "r2"},
    ),
    ("neighbors", KNeighborsClassifier(), {"n_neighbors": [1, 5], "weights": ["uniform"]}, {}),
    ("bagging", RandomForestClassifier(random_state=0), {"n_estimators": [3, 5]}, {"n_jobs": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "estimator", "grid", "options"), SEARCHES)
def test_a_search_has_the_same_results(method, estimator, grid, options, calls):
    rows = (D, T) if isinstance(estimator, Ridge) else (X, Y)
    with parallel_config("threading"):
        ours = model_selection.GridSearchCV(estimator, grid, **options).fit(*rows)
        assert [(call.name, call.method) for call in calls] == [("GridSearchCV", method)]
        theirs = stand_ins.GridSearchCV.stands_for(estimator, grid, **options).fit(*rows)
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    assert {n for n in vars(ours) if n != "_checked_cv_orig"} == {
        n for n in vars(theirs) if n != "_checked_cv_orig"
    }
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    for name, column in theirs.cv_results_.items():
        if "test" in name and "rank" not in name:
            np.testing.assert_allclose(ours.cv_results_[name], column, rtol=1e-5, atol=1e-7)
        elif name == "params":
            assert ours.cv_results_[name] == column
    if options.get("refit", True):
        assert ours.best_params_ == theirs.best_params_
        assert np.array_equal(ours.predict(rows[0]), theirs.predict(rows[0]))
        assert ours.score(*rows) == pytest.approx(theirs.score(*rows))


@pytest.mark.slow
@pytest.mark.parametrize("scoring", [None, ["accuracy", "neg_log_loss"]])
@pytest.mark.parametrize("cv", [3, KFold(4, shuffle=True, random_state=0)])
def test_models_of_folds_and_training_scores(scoring, cv, calls):
    grid, options = {"logisticregression__C": [0.1, 1.0]}, {"scoring": scoring, "cv": cv}
    arguments, refit = (LOGISTIC, X, Y), scoring[0] if scoring else True
    options |= {"return_train_score": True}
    searches = [
        search(LOGISTIC, grid, refit=refit, **options).fit(X, Y).cv_results_
        for search in (model_selection.GridSearchCV, stand_ins.GridSearchCV.stands_for)
    ]
    ours, theirs = (
        validate(*arguments, return_estimator=True, **options)
        for validate in (model_selection.cross_validate, stand_ins._cross_validate)
    )
    assert [call.method for call in calls] == ["newton", "newton"]
    assert list(ours) == list(theirs) and list(searches[0]) == list(searches[1])
    for found, expected in (searches, (ours, theirs)):
        names = [n for n in expected if "train_" in n or "test_" in n and "rank" not in n]
        assert any("train_" in name for name in names)
        for name in names:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-7)
    for model, expected in zip(ours["estimator"], theirs["estimator"], strict=True):
        np.testing.assert_allclose(model[-1].coef_, expected[-1].coef_, rtol=1e-4, atol=1e-5)
        assert np.array_equal(model.predict(X), expected.predict(X))


def _first_coefficient(estimator, X, y):
    return float(np.ravel(estimator[-1].coef_)[0]) * len(X)


def _coefficients_and_score(estimator, X, y):
    return {"first": _first_coefficient(estimator, X, y), "accuracy": estimator.score(X, y)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "scoring", [_first_coefficient, ["accuracy", "r2"], {"a": _first_coefficient, "b": "f1"}]
)
def test_scorers_of_models_and_indices(scoring, calls):
    cv = KFold(4, shuffle=True, random_state=np.random.RandomState(0))
    options = {"scoring": scoring, "return_train_score": True}
    ours, theirs = (
        validate(LOGISTIC, X, Y, cv=deepcopy(cv), return_indices=True, **options)
        for validate in (model_selection.cross_validate, stand_ins._cross_validate)
    )
    grid = {"logisticregression__C": [0.1, 1.0]}
    searches = [
        search(LOGISTIC, grid, refit=False, **options).fit(X, Y).cv_results_
        for search in (model_selection.GridSearchCV, stand_ins.GridSearchCV.stands_for)
    ]
    assert [call.method for call in calls] == ["newton", "newton"]
    assert list(ours) == list(theirs) and list(searches[0]) == list(searches[1])
    for subset in ("train", "test"):
        pairs = zip(ours["indices"][subset], theirs["indices"][subset], strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
    for actual, expected in ((ours, theirs), searches):
        names = [n for n in expected if "train_" in n or "test_" in n and "rank" not in n]
        assert any("train_" in name for name in names)
        for name in names:
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_scorer_that_returns_a_dict(calls):
    options = {"scoring": _coefficients_and_score, "return_train_score": True}
    ours, theirs = (
        validate(LOGISTIC, X, Y, **options)
        for validate in (model_selection.cross_validate, stand_ins._cross_validate)
    )
    assert calls[-1].method == "newton"
    assert list(ours) == list(theirs)
    for name in ("test_first", "train_accuracy"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4)
    grid = {"logisticregression__C": [0.1, 1.0]}
    search = model_selection.GridSearchCV(LOGISTIC, grid, refit="accuracy", **options)
    assert "mean_test_first" in search.fit(X, Y).cv_results_
    assert calls[-1].reason == "the scorer returns several scores"


def test_metadata_routing_without_arguments_has_no_effect(calls):
    options = {"cv": 4, "return_estimator": True, "return_indices": True}
    with config_context(enable_metadata_routing=True):
        ours = model_selection.cross_validate(LOGISTIC, X, Y, **options)
        theirs = stand_ins._cross_validate(LOGISTIC, X, Y, **options)
        search = model_selection.GridSearchCV(LOGISTIC, {"logisticregression__C": [0.1, 1.0]})
        search.fit(X, Y)
        ridge, weights = Ridge().set_fit_request(sample_weight=True), np.ones(len(T))
        ridge.set_score_request(sample_weight=False)
        model_selection.cross_val_score(ridge, D, T, params={"sample_weight": weights})
    np.testing.assert_allclose(ours["test_score"], theirs["test_score"])
    assert len(ours["estimator"]) == len(ours["indices"]["test"]) == 4
    assert [call.method for call in calls] == ["newton", "newton", ""]
    assert calls[-1].reason == "arguments are passed by metadata routing"


def test_scorers_of_models_and_weights_are_left_to_scikit_learn(calls):
    search = model_selection.GridSearchCV(Ridge(), {"alpha": [1.0, 2.0]}, return_train_score=True)
    weights = np.arange(1.0, len(T) + 1)
    ours = search.fit(D, T, sample_weight=weights).cv_results_["split0_train_score"]
    theirs = stand_ins.GridSearchCV.stands_for(**search.get_params(deep=False)).fit(
        D, T, sample_weight=weights
    )
    assert np.array_equal(ours, theirs.cv_results_["split0_train_score"])
    assert calls[0].method == ""


@pytest.mark.parametrize(
    ("refit", "method"),
    [
        (lambda results: int(np.argmin(results["mean_test_score"])), "exact"),
        (lambda results: int(pd.DataFrame(results)["mean_test_score"].idxmin()), "exact"),
        (lambda results: int(np.argmin(results["mean_fit_time"])), ""),
        (lambda results: int(pd.DataFrame(results)["mean_score_time"].idxmin()), ""),
    ],
)
def test_a_choice_by_times_is_left_to_scikit_learn(refit, method, calls):
    search = model_selection.GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, refit=refit).fit(D, T)
    assert [call.method for call in calls] == [method]
    assert np.all(search.cv_results_["mean_score_time"] > 0) == (method == "")


@pytest.mark.slow
def test_calls_inside_scikit_learn_are_replaced(calls):
    members = [("linear", LOGISTIC), ("vectors", SVC())]
    ours = StackingClassifier(members, cv=3).fit(X, Y)
    assert {(call.name, call.method) for call in calls} == {
        ("cross_val_predict", "newton"),
        ("cross_val_predict", "kernel"),
    }
    calibrated = CalibratedClassifierCV(LOGISTIC, ensemble=False, cv=3).fit(X, Y)
    selector = SequentialFeatureSelector(LOGISTIC, n_features_to_select=1, cv=3).fit(X[:, :4], Y)
    assert len(calls) == 2 + 1 + 4 and [call.method for call in calls].count("newton") == 6
    accelerate.uninstall()
    theirs = StackingClassifier(members, cv=3).fit(X, Y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    expected = CalibratedClassifierCV(LOGISTIC, ensemble=False, cv=3).fit(X, Y)
    np.testing.assert_allclose(calibrated.predict_proba(X), expected.predict_proba(X), atol=1e-5)
    again = SequentialFeatureSelector(LOGISTIC, n_features_to_select=1, cv=3).fit(X[:, :4], Y)
    assert np.array_equal(selector.get_support(), again.get_support())


def test_points_are_drawn_as_scikit_learn_draws_them(calls):
    space = {"alpha": loguniform(1e-3, 1e2)}
    for estimator, method in ((Ridge(), "exact"), (linear_model.HuberRegressor(), "")):
        np.random.seed(3)  # noqa: NPY002  # what random_state=None means
        ours = model_selection.RandomizedSearchCV(estimator, space, n_iter=3).fit(D, T)
        np.random.seed(3)  # noqa: NPY002
        theirs = stand_ins.RandomizedSearchCV.stands_for(estimator, space, n_iter=3).fit(D, T)
        assert ours.cv_results_["params"] == theirs.cv_results_["params"]
        assert calls[-1].method == method


@pytest.mark.slow
def test_cross_validations_have_the_same_results(calls):
    scoring = {"a": "accuracy", "b": "neg_log_loss"}
    for name in ("cross_val_score", "cross_validate", "cross_val_predict"):
        of_call = {"cross_validate": {"scoring": scoring}, "cross_val_predict": {}}
        for options in (of_call.get(name, {}), {"cv": KFold(3)}):
            ours = getattr(model_selection, name)(LOGISTIC, X, Y, **options)
            theirs = getattr(stand_ins, f"_{name}")(LOGISTIC, X, Y, **options)
            assert calls[-1].method == "newton"
            if name == "cross_validate":
                assert list(ours) == list(theirs)
                ours, theirs = ours[[*ours][-1]], theirs[[*theirs][-1]]
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    params = {"sample_weight": np.where(T > 150, 3.0, 1.0)}
    ours = model_selection.cross_val_score(Ridge(), D, T, params=params)
    assert calls[-1].method == "exact"
    np.testing.assert_allclose(ours, stand_ins._cross_val_score(Ridge(), D, T, params=params))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("LassoCV", {}), ("ElasticNetCV", {"l1_ratio": [0.5, 0.9]})]
)
def test_paths_have_the_same_penalties(name, options, calls, monkeypatch):
    monkeypatch.setattr(stand_ins, "_MIN_ENTRIES", 0)
    Z, z = make_regression(300, 8, n_informative=3, noise=5.0, random_state=0)
    for more in ({}, {"alphas": [0.01, 1.0, 0.1]}, {"fit_intercept": False, "cv": 3}):
        options |= {"alphas": 20, "tol": 1e-9, **more}
        ours = getattr(linear_model, name)(**options).fit(Z, z)
        assert calls[-1].method == "exact"
        theirs = getattr(stand_ins, name).stands_for(**options).fit(Z, z)
        assert {n for n in vars(ours) if n.endswith("_")} == {
            n for n in vars(theirs) if n.endswith("_")
        }
        for attribute in ("alphas_", "mse_path_", "alpha_", "coef_", "intercept_"):
            found, right = getattr(ours, attribute), getattr(theirs, attribute)
            assert np.shape(found) == np.shape(right)
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-8)


PATHS = [
    {},
    {"Cs": [0.01, 1.0], "cv": 3, "scoring": "neg_log_loss", "refit": False},
    {"use_legacy_attributes": False, "class_weight": "balanced"},
    {"Cs": 3, "fit_intercept": False, "cv": KFold(4, shuffle=True, random_state=0)},
    {"Cs": [0.01, 0.1], "l1_ratios": (0, 0.5, 1), "solver": "saga", "max_iter": 10_000},
    {"Cs": [0.1], "penalty": "l1", "l1_ratios": None, "solver": "saga", "max_iter": 10_000},
    {"Cs": [0.1], "penalty": "l2", "l1_ratios": (1,)},
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("n_classes", "options"), zip([2, 3, 3, 2, 2, 2, 2], PATHS, strict=True))
def test_logistic_paths_are_those_of_a_solver_that_converges(n_classes, options, calls):
    rows = (
        StandardScaler().fit_transform(X),
        np.digitize(X[:, 0], [12, 16]) if n_classes > 2 else Y,
    )
    options = {"Cs": 4, "l1_ratios": (0,), "solver": "newton-cholesky", "tol": 1e-8, **options}
    ours = linear_model.LogisticRegressionCV(**options).fit(*rows)
    assert [(call.name, call.method) for call in calls] == [("LogisticRegressionCV", "newton")]
    theirs = stand_ins.LogisticRegressionCV.stands_for(**options).fit(*rows)
    assert isinstance(ours, type(theirs))
    assert vars(ours).keys() == vars(theirs).keys()
    for name in ("Cs_", "C_", "l1_ratio_", "scores_", "coefs_paths_", "coef_"):
        found, right = getattr(ours, name), getattr(theirs, name)
        if isinstance(right, dict):
            assert found.keys() == right.keys()
            found, right = (np.array([*one.values()]) for one in (found, right))
        assert np.shape(found) == np.shape(right)
        bound = {"rtol": 1e-2, "atol": 1e-2} if name == "coefs_paths_" else {"rtol": 1e-5}
        np.testing.assert_allclose(*(np.asarray(one, float) for one in (found, right)), **bound)
    assert ours.n_iter_.shape == theirs.n_iter_.shape
    assert not np.any(ours.n_iter_)


def test_logistic_paths_with_weights(calls):
    weights, options = np.where(X[:, 1] > 19, 3.0, 1.0), {"Cs": [0.1, 10.0], "l1_ratios": (0,)}
    options |= {"scoring": "accuracy", "solver": "newton-cholesky", "use_legacy_attributes": True}
    rows = StandardScaler().fit_transform(X), Y, weights
    ours = linear_model.LogisticRegressionCV(**options).fit(*rows)
    assert calls[-1].method == "newton"
    theirs = stand_ins.LogisticRegressionCV.stands_for(**options).fit(*rows)
    np.testing.assert_allclose(ours.scores_[1], theirs.scores_[1])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_logistic_paths_that_are_left_to_scikit_learn(calls):
    rows, twice = (X[:, :3], Y), [(np.arange(n), np.arange(400, 569)) for n in (300, 400)]
    for options, why in (
        ({"Cs": [0.01], "l1_ratios": (1,), "solver": "liblinear"}, "liblinear"),
        ({"tol": 0.01}, "tol=0.01 may stop fits"),
        ({"cv": twice}, "same test rows"),
        ({"cv": KFold(3).split(X)}, ""),
    ):
        with warnings.catch_warnings(action="ignore"):
            linear_model.LogisticRegressionCV(**{"Cs": 2, **options}).fit(*rows)
        assert not calls[-1].method
        assert why in calls[-1].reason


def test_another_version_of_scikit_learn_is_left_alone():
    with pytest.raises(stand_ins.LeftToSklearn, match="has no _another_name"):
        stand_ins.with_globals(LogisticRegression.fit, _another_name=None)


def test_ridge_cv_searches_by_exact_folds(calls):
    ours = RidgeCV([0.01, 0.1, 1.0], cv=5).fit(D, T)
    assert [(call.name, call.method) for call in calls] == [("GridSearchCV", "exact")]
    accelerate.uninstall()
    theirs = RidgeCV([0.01, 0.1, 1.0], cv=5).fit(D, T)
    assert ours.alpha_ == theirs.alpha_
    assert ours.best_score_ == pytest.approx(theirs.best_score_)


def test_ridge_classifier_cv_searches_by_exact_folds(calls):
    options = {"alphas": [0.1, 1.0, 10.0], "cv": 5, "scoring": "roc_auc"}
    ours = RidgeClassifierCV(**options).fit(X, Y)
    assert [(call.name, call.method) for call in calls] == [("GridSearchCV", "exact")]
    accelerate.uninstall()
    theirs = RidgeClassifierCV(**options).fit(X, Y)
    assert vars(ours).keys() == vars(theirs).keys()
    assert ours.alpha_ == theirs.alpha_
    assert ours.best_score_ == pytest.approx(theirs.best_score_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_)


def test_support_vector_machines_are_searched_by_shared_gram_matrices(calls):
    grid = {"C": [0.1, 10.0], "gamma": ["scale", 0.1]}
    with warnings.catch_warnings(action="error"):
        ours = model_selection.GridSearchCV(SVC(), grid).fit(X, Y)
    assert [(call.name, call.method) for call in calls] == [("GridSearchCV", "kernel")]
    theirs = stand_ins.GridSearchCV.stands_for(SVC(), grid).fit(X, Y)
    for name in ("mean_test_score", "split0_test_score"):
        assert np.array_equal(ours.cv_results_[name], theirs.cv_results_[name])


# --- What is left alone ---


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (NuSVC(), "are not computed from sums"),
        (SGDClassifier(max_iter=1, tol=None, random_state=0), "has partial_fit"),
        (GaussianNB(), "has partial_fit"),
        (RandomForestClassifier(3), "random_state is None"),
        (RandomForestClassifier(3, random_state=0), "no two candidates differ only in their"),
    ],
)
def test_models_without_a_promise_are_left_to_scikit_learn(estimator, why, calls):
    scores = model_selection.cross_val_score(estimator, X, Y)
    assert calls[-1].method == ""
    assert why in calls[-1].reason
    if estimator.get_params().get("random_state", 0) is not None:
        assert np.array_equal(scores, stand_ins._cross_val_score(estimator, X, Y))


def test_what_an_engine_cannot_do_is_left_to_scikit_learn(calls):
    def score(estimator, X, y):
        return float(len(estimator.support_))

    grid = {"C": [0.1, 1.0]}
    weights = np.ones(len(T))
    forest, trees = RandomForestClassifier(random_state=0), {"n_estimators": [2, 3]}
    search = model_selection.GridSearchCV(forest, trees, cv=2, return_train_score=True).fit(X, Y)
    assert "mean_train_score" in search.cv_results_
    svr = SVR()
    own = model_selection.GridSearchCV(svr, grid, scoring=score).fit(D, T)
    expected = stand_ins.GridSearchCV.stands_for(svr, grid, scoring=score).fit(D, T)
    assert np.array_equal(
        own.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )
    found = model_selection.cross_validate(SVC(), X, Y, return_estimator=True)
    assert len(found["estimator"]) == 5
    linear_model.LassoCV().fit(D, T, sample_weight=weights)
    linear_model.LassoCV().fit(D, T)
    assert [call.reason for call in calls if call.method == ""] == [
        "the models of the folds would be refitted",
        "the models of the folds would be refitted",
        "the models of the folds would be refitted",
        "fit is called with further arguments, such as sample_weight",
        "X is small, so scikit-learn's paths are as fast",
    ]
    with pytest.raises(ValueError, match="error"):
        model_selection.cross_val_score(Ridge(), D, T, scoring="error")


@pytest.mark.slow
@pytest.mark.parametrize("is_seeded", [True, False])
def test_random_splits_are_those_that_scikit_learn_draws(is_seeded, calls):
    def scores(module, model):
        np.random.seed(5)  # noqa: NPY002  # what random_state=None means
        state = np.random.RandomState(3) if is_seeded else None  # noqa: NPY002
        folds = KFold(3, shuffle=True, random_state=state)
        first = module.cross_val_score(model, D, T, cv=folds)
        search = module.GridSearchCV(model, {"fit_intercept": [True, False]}, cv=folds).fit(D, T)
        of_search = search.cv_results_["split1_test_score"]
        return [*first, *of_search, np.random.random()]  # noqa: NPY002

    for model, method in ((Ridge(tol=1e-8), "exact"), (linear_model.HuberRegressor(), "")):
        accelerate.install(check=True)
        ours = scores(model_selection, model)
        assert {call.method for call in calls} == {method}
        assert all(call.difference < 1e-8 for call in calls if method)
        accelerate.uninstall()
        np.testing.assert_allclose(ours, scores(model_selection, model), atol=1e-8)


def test_subclasses_search_in_their_own_way(calls):
    class Twice(stand_ins.GridSearchCV):
        def _run_search(self, evaluate_candidates):
            evaluate_candidates([{"alpha": 1.0}])
            evaluate_candidates([{"alpha": 5.0}])

    search = Twice(Ridge(), {"alpha": [0.1]}).fit(D, T)
    assert search.cv_results_["params"] == [{"alpha": 1.0}, {"alpha": 5.0}]
    assert type(copy(search)) is Twice


def test_solvers_that_are_stopped_early_are_left_to_scikit_learn(calls):
    models = [
        (LogisticRegression(max_iter=1), {"C": [1.0, 10.0]}, X, Y),
        (linear_model.Lasso(tol=0.5), {"alpha": [0.1]}, D, T),
        (Ridge(solver="lsqr", max_iter=1), {"alpha": [0.1]}, D, T),
    ]
    for model, grid, rows, y in models:
        with warnings.catch_warnings(action="ignore"):
            model_selection.GridSearchCV(model, grid).fit(rows, y)
        assert calls[-1].method == ""
        assert "may stop fits before they have converged" in calls[-1].reason
    with pytest.warns(UserWarning, match="best_estimator_ has not converged, but the models"):
        model_selection.GridSearchCV(LogisticRegression(), {"C": [1e4]}).fit(X, Y)
    assert calls[-1].method == "newton"


RARE, SEVENTHS = (np.arange(len(Y)) < 3).astype(int), np.arange(len(Y)) % 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("y", "options"),
    [
        (Y, {"groups": SEVENTHS}),
        (RARE, {}),
        (RARE, {"cv": model_selection.StratifiedGroupKFold(5), "groups": SEVENTHS}),
        (RARE, {"scoring": "precision_macro", "cv": 3}),
    ],
    ids=["groups", "few", "few groups", "precision"],
)
def test_warnings_are_those_of_scikit_learn(y, options, calls):
    def said(function, **others):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(LOGISTIC, X, y, **options | others)
        return [(one.category, str(one.message)) for one in caught]

    expected = said(stand_ins._cross_val_score)
    assert expected
    assert said(model_selection.cross_val_score) == expected
    if "scoring" not in options:
        assert said(model_selection.cross_val_predict) == said(stand_ins._cross_val_predict)
        assert [call.method for call in calls] == ["newton", "newton"]
    groups = {"groups": options.pop("groups", None)}

    def search(model, X, y, **options):
        kind(model, {"logisticregression__C": [1.0]}, refit=False, **options).fit(X, y, **groups)

    kind = model_selection.GridSearchCV
    found = said(search)
    kind = stand_ins.GridSearchCV.stands_for
    assert found == said(search)


def test_wrong_arguments_raise_what_scikit_learn_raises(calls):
    for name, options in (
        ("cross_val_predict", {"scoring": "r2"}),
        ("cross_validate", {"foo": 1}),
        ("cross_validate", {"error_score": "a"}),
        ("cross_validate", {"verbose": -1}),
        ("cross_val_score", {"scoring": ["r2"]}),
    ):
        with pytest.raises((TypeError, ValueError)) as expected:
            getattr(stand_ins, f"_{name}")(Ridge(), D, T, **options)
        with pytest.raises(type(expected.value)) as found:
            getattr(model_selection, name)(Ridge(), D, T, **options)
        assert str(found.value) == str(expected.value)
        assert found.value.__context__ is None or expected.value.__context__ is not None
    with pytest.raises(ValueError, match="MultiTask"):
        linear_model.LassoCV().fit(D, np.column_stack([T, T]))


# --- Patching ---


def test_names_are_put_back():
    accelerate.install()
    assert model_selection.GridSearchCV is stand_ins.GridSearchCV
    accelerate.uninstall()
    assert model_selection.GridSearchCV is stand_ins.GridSearchCV.stands_for
    assert model_selection.cross_val_score is stand_ins._cross_val_score
    assert linear_model.LassoCV is stand_ins.LassoCV.stands_for


def test_a_fitted_search_is_pickled_as_that_of_scikit_learn(calls):
    search = model_selection.GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}).fit(D, T)
    again = pickle.loads(pickle.dumps(search))
    assert type(again) is stand_ins.GridSearchCV.stands_for
    assert isinstance(again, model_selection.GridSearchCV)
    assert not isinstance(again, model_selection.RandomizedSearchCV)
    assert again.get_params().keys() == search.get_params().keys()
    assert np.array_equal(again.predict(D), search.predict(D))


def test_functions_are_found_where_they_are():
    for name in ("cross_validate", "cross_val_score", "cross_val_predict"):
        function = getattr(stand_ins, name)
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__doc__ == getattr(stand_ins, f"_{name}").__doc__


SCRIPT = """
import sys
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import NuSVR
import beside

X, y = load_diabetes(return_X_y=True)
if __name__ == "__main__":
    print(sys.argv[1:], beside.VALUE)
    search = GridSearchCV(Ridge(), {"alpha": [0.01, 0.1, 1.0]}).fit(X, y)
    print(type(search).__name__, search.best_params_)
    cross_val_score(NuSVR(), X, y)
    raise SystemExit(3)
"""


@pytest.mark.slow  # a process
def test_a_script_runs_and_the_report_says_what_was_replaced(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("VALUE = 7")
    command = [sys.executable, "-m", "optuna_treecv.accelerate", "--check"]
    ran = subprocess.run(
        [*command, str(tmp_path / "script.py"), "--fast", "2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,  # where a checkout is not found
    )
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout == "['--fast', '2'] 7\nGridSearchCV {'alpha': 0.01}\n"
    assert "By optuna_treecv:\n  GridSearchCV of Ridge: " in ran.stderr
    assert "largest difference of a score: " in ran.stderr
    left = "method='exact'\nBy scikit-learn, as before:\n  cross_val_score of NuSVR: "
    assert left in ran.stderr


def test_a_script_that_is_not_there(capsys):
    with pytest.raises(SystemExit, match="^2$"):
        accelerate.main(["none.py"])
    assert "script must be a Python file, got 'none.py'." in capsys.readouterr().err


def test_repeated_splits_of_logistic_paths(calls):
    cv = model_selection.RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=1)
    options = {"Cs": [0.1, 1.0], "cv": cv, "l1_ratios": (0,), "use_legacy_attributes": False}
    rows = StandardScaler().fit_transform(X), Y
    ours = linear_model.LogisticRegressionCV(scoring="accuracy", **options).fit(*rows)
    assert calls[-1].method == "newton"
    stands_for = stand_ins.LogisticRegressionCV.stands_for
    theirs = stands_for(scoring="accuracy", tol=1e-8, max_iter=1000, **options).fit(*rows)
    np.testing.assert_allclose(ours.scores_, theirs.scores_)


def test_warnings_of_threads_are_not_lost(calls):
    before = warnings._showwarnmsg_impl, warnings.filters[:]
    with ThreadPoolExecutor(2) as pool:
        some = (LogisticRegression(C=c, max_iter=1000) for c in [0.1, 1.0] * 5)
        list(pool.map(lambda one: model_selection.cross_val_score(one, X[:, :3], Y), some))
    assert all(call.method for call in calls)
    assert (warnings._showwarnmsg_impl, warnings.filters) == before


# --- scikit-learn's own files of tests, with its names replaced ---

FILES = (
    "model_selection/tests/test_search.py",
    "model_selection/tests/test_validation.py",
    "feature_selection/tests/test_rfe.py",
    "feature_selection/tests/test_sequential.py",
    "tests/test_calibration.py",
)
#: They compare, to six digits, with fits of LogisticRegression that stop before convergence.
UNCONVERGED = {"test_cross_val_predict_with_method", "test_cross_val_predict_class_subset"}
RUN = """
from pathlib import Path
import sys
from optuna_treecv import accelerate
accelerate.install()
import pytest
import sklearn
folder = Path(sklearn.__path__[0])
files = [str(folder / name) for name in sys.argv[1:]]
pytest.main([*files, "-q", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", str(folder)])
"""


@pytest.mark.nightly
def test_the_tests_of_scikit_learn_pass_with_replaced_names(tmp_path):
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *FILES],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) .*::(\w+)", run.stdout, flags=re.MULTILINE)
    assert set(failed) == UNCONVERGED and int(re.findall(r"(\d+) passed", run.stdout)[0]) > 500
