"""Outputs that are held change no score, and what cannot be known of a winner is said."""

from __future__ import annotations

from itertools import product
import pickle

import numpy as np
from optuna.distributions import FloatDistribution
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import RegressorMixin
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_breast_cancer
from sklearn.dummy import DummyClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import GroupShuffleSplit
from sklearn.model_selection import KFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import StandardScaler
from sklearn.svm import NuSVC
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
import studies

from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import select
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.study import honest as honest_module
from optuna_treecv.study.ensemble import most_trials

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 4))
NUMBERS = X @ [1, 0.5, -0.3, 0] + GENERATOR.normal(size=60)
CODES = (NUMBERS > 0).astype(int)
DEPTHS = {"max_depth": [1, 2, 3]}


class Flipping(ClassifierMixin, BaseEstimator):
    """Answers otherwise each time that it is asked."""

    def __init__(self, flips=True):
        self.flips = flips

    def fit(self, X, y):
        self.classes_, self.n_asked_ = np.unique(y), 0
        return self

    def predict(self, X):
        self.n_asked_ += self.flips
        return self.classes_[(np.arange(len(X)) // 3 + self.n_asked_) % 2]


class Drawing(ClassifierMixin, BaseEstimator):
    """Draws from the global random numbers of NumPy."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        p = np.random.rand(len(X))  # noqa: NPY002
        return np.column_stack([p, 1 - p])

    def predict(self, X):
        p = np.random.rand(len(X))  # noqa: NPY002
        return self.classes_[(p > 0.5 + self.shift).astype(int)]


class Counting(DecisionTreeClassifier):
    """Counts how often trees of the class predict."""

    n_asked = 0

    def predict(self, X, check_input=True):
        type(self).n_asked += 1
        return super().predict(X, check_input)


class Without(RegressorMixin, BaseEstimator):
    """Predicts no number for some row."""

    def __init__(self, slope=1.0):
        self.slope = slope

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.where(np.arange(len(X)) == 1, np.nan, self.slope * X[:, 0])


def size_of(estimator, X, y):
    """Score an estimator by its size, for which it must be left as it is."""
    return -float(len(pickle.dumps(estimator)))


def error_without_nan(y, predicted):
    return np.nanmean(np.abs(y - predicted))


def searched(estimator, grid, y=CODES, rows=X, **options):
    """Return an objective and a study over a grid."""
    np.random.seed(0)  # noqa: NPY002
    return studies.searched(estimator, (rows, y), grid, **{"cv": 4} | options)


# Outputs change no score.

SCALED = {
    name: (
        make_pipeline(
            MaxAbsScaler(copy=False), StandardScaler(copy=False, with_mean=False), NuSVC()
        ),
        {"nusvc__nu": [0.2, 0.5]},
        rows,
    )
    for name, rows in [
        ("array", X),
        ("frame", pd.DataFrame(X, columns=list("abcd"))),
        ("csr", sparse.csr_matrix(X)),
    ]
}
PLAIN = {
    "flipping": (Flipping(), {"flips": [True, False]}, X),
    "drawing": (Drawing(), {"shift": [0.0, 0.1]}, X),
    "random state": (
        DummyClassifier(random_state=np.random.RandomState(3)),
        {"strategy": ["stratified", "uniform"]},
        X,
    ),
}


SCORINGS = ["accuracy", "error", ["f1", "accuracy"], [pooled("accuracy"), "accuracy"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "scoring", "keep_outputs"),
    [
        *product(["array", "flipping", "drawing"], SCORINGS, ["all"]),
        *product(["frame", "csr", "random state"], SCORINGS[2:], ["auto"]),
    ],
)
def test_no_score_changes(case, scoring, keep_outputs):
    estimator, grid, rows = (SCALED | PLAIN)[case]
    options = {"scoring": scoring}
    if isinstance(scoring, list):
        options["optimize"] = "accuracy"
    values = []
    for keep in (False, keep_outputs):
        _, study = searched(estimator, grid, rows=rows, keep_outputs=keep, **options)
        assert study.best_trial.user_attrs["treecv"]["method"] == "fit"
        values.append([(one.params, one.value) for one in study.trials])
    assert values[0] == values[1]


def test_outputs_are_those_that_were_scored():
    objective, study = searched(Flipping(), {"flips": [True]}, scoring="accuracy")
    assert objective.honest(study).value == study.best_value
    held = objective.evaluator.known_scores.find(study.best_trial).outputs["predict"]
    rows = objective.evaluator.cross_validation.tested("fit").rows
    shares = objective.evaluator.cross_validation.tested("fit").test_shares
    assert (held == CODES[rows]) @ shares == pytest.approx(study.best_value, abs=1e-12)


@pytest.mark.parametrize("scoring", ["accuracy", "error"])
def test_no_fold_predicts_once_more(scoring):
    Counting.n_asked = 0
    objective, study = searched(Counting(random_state=0), {"max_depth": [1]}, scoring=scoring)
    assert Counting.n_asked == 4
    assert objective.evaluator.known_scores.find(study.best_trial).outputs


def test_scorers_of_estimators_see_them_as_they_are():
    scoring = {"error": "error", "size": size_of}
    objective, study = searched(
        DecisionTreeClassifier(random_state=0), DEPTHS, scoring=scoring, optimize="error"
    )
    assert objective.evaluator.known_scores.find(study.best_trial).outputs


def test_outputs_that_are_no_numbers_are_not_held():
    scoring = make_scorer(error_without_nan, greater_is_better=False)
    objective, study = searched(Without(), {"slope": [1.0, 2.0]}, NUMBERS, scoring=scoring)
    assert not objective.evaluator.known_scores.find(study.best_trial).outputs
    assert study.best_trial.user_attrs["treecv"].get("diverged_folds", 0) == 0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_outputs_that_are_too_large_are_not_held():
    objective, study = searched(Without(), {"slope": [1e60]}, NUMBERS, np.ones_like(X), cv=60)
    assert not objective.evaluator.known_scores.find(study.best_trial).outputs


def test_numbers_far_from_zero_are_not_rounded():
    grid = {"n_neighbors": [2, 4, 8]}
    honest = []
    for shift in (0, 1.7e9):
        objective, study = searched(
            KNeighborsRegressor(), grid, NUMBERS + shift, scoring="absolute_error"
        )
        honest.append(objective.honest(study).mean)
    assert honest[1] == pytest.approx(honest[0], rel=1e-5)


# What cannot be known is said.


@pytest.mark.parametrize(
    ("estimator", "grid", "y", "scoring", "message"),
    [
        (
            Ridge(),
            {"alpha": [1.0]},
            np.column_stack([NUMBERS, CODES]),
            None,
            "y must have one column for an ensemble",
        ),
        (
            MiniBatchKMeans(2, random_state=0),
            {"n_clusters": [2]},
            None,
            None,
            "ensemble needs a classifier or a regressor",
        ),
        (
            LogisticRegression(),
            {"C": [1.0]},
            CODES,
            "hinge",
            "scoring must be .* predict_proba for an ensemble",
        ),
        (
            DecisionTreeClassifier(),
            DEPTHS,
            CODES,
            size_of,
            "scoring must be .* predict_proba for an ensemble",
        ),
        (
            SVC(),
            {"C": [1.0]},
            CODES,
            None,
            "ensemble needs trials whose out-of-fold output of predict_proba",
        ),
    ],
)
def test_ensembles_say_what_they_need(estimator, grid, y, scoring, message):
    objective, study = searched(estimator, grid, y, scoring=scoring, keep_outputs="all")
    with pytest.raises(ValueError, match=f"^{message}"):
        objective.ensemble(study)


def test_a_single_group_says_nothing():
    cv = GroupShuffleSplit(1, test_size=1, random_state=0)
    objective, study = searched(
        KNeighborsClassifier(),
        {"n_neighbors": [1, 3]},
        cv=cv,
        groups=np.arange(60) // 20,
        keep_outputs="all",
    )
    for ask in (objective.honest, objective.ensemble):
        with pytest.raises(ValueError, match="^honest scores need at least two tested rows"):
            ask(study)


def test_rows_without_weight_are_not_drawn():
    weights = np.zeros(60)
    weights[::10] = 1
    objective, study = searched(
        DecisionTreeClassifier(random_state=0), DEPTHS, score_weight=weights, cv=2
    )
    with pytest.warns(UserWarning, match="a bootstrap of only 6 rows is unreliable"):
        assert np.isfinite(objective.honest(study).mean)


def test_choices_warn_of_no_bootstrap(recwarn):
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": [1, 3]}, cv=0.3)
    recwarn.clear()
    assert "and the interval" in select(study, objective).honest.note
    assert not recwarn


def test_losses_take_bounded_memory(monkeypatch):
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": list(range(1, 30))})
    everything = objective.honest(study)
    monkeypatch.setattr(honest_module, "_MAX_LOSS_BYTES", 8 * 60 * 5)
    bounded = objective.honest(study)
    assert bounded.n_contenders == 5 and bounded.trial.number == everything.trial.number
    assert len(bounded.unscored) == everything.n_contenders - 5
    assert most_trials(10) == 200 and most_trials(2**27) == 20


@pytest.mark.parametrize("scoring", ["error", "accuracy"])
def test_steps_that_overwrite_rows_are_scored_as_without_pooled_scores(scoring):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)  # frames are not read-only
    steps = SimpleImputer(copy=False), MaxAbsScaler(copy=False)
    model = make_pipeline(*steps, LogisticRegression(C=100.0))
    options = {"cv": 3, "method": "fit"}
    alone = tree_cross_validate(model, X, y, scoring=scoring, **options)
    beside = tree_cross_validate(model, X, y, scoring=[scoring, pooled("log_loss")], **options)
    np.testing.assert_array_equal(beside.test_score, alone.test_score)


# Predictions of the folds that are asked for.

ALPHA = {"alpha": FloatDistribution(1e-4, 1e2, log=True)}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_fits_predict_as_scikit_learn_does(binary, method):
    folds = KFold(5, shuffle=True, random_state=3)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    space = {"logisticregression__C": FloatDistribution(1e-2, 1e2, log=True)}
    objective, study = studies.searched(pipeline, binary, space, 3, cv=folds, method="fit")
    pipeline.set_params(**study.best_params)
    expected = cross_val_predict(pipeline, *binary, cv=folds, method=method)
    predicted = objective.predict_oof(study, method=method)  # kept as float32
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


@pytest.mark.parametrize(("cv", "average"), [("loo", False), (7, True)])
def test_they_are_the_predictions_that_were_scored(binary, cv, average):
    X, y = binary
    estimator = PegasosClassifier(average=average)
    objective, study = studies.searched(estimator, (X, y), ALPHA, 3, cv=cv, pooled=True)
    for trial in study.trials:
        predicted = objective.predict_oof(trial)
        assert np.mean(predicted != y) == pytest.approx(trial.value, abs=1e-12)
        model = PegasosClassifier(average=average, **trial.params)
        np.testing.assert_array_equal(predicted, tree_cross_val_predict(model, X, y, cv=cv))


def test_predictions_that_cannot_be_made_are_refused(binary):
    objective, study = studies.searched(PegasosClassifier(), binary, ALPHA, 1, cv=4)
    with pytest.raises(ValueError, match=r"^method must be one of 'predict', .*, got 'classes'"):
        objective.predict_oof(study, method="classes")
    with pytest.raises(ValueError, match="method='predict_proba'"):
        objective.predict_oof(study, method="predict_proba")
    with pytest.raises(ValueError, match="study must be an optuna.Study or one of its trials"):
        objective.predict_oof({"alpha": 1.0})
    twice = treecv_objective(
        PegasosClassifier(), *binary, param_distributions=ALPHA, cv=4, n_repeats=2
    )
    with pytest.raises(ValueError, match="^cv must test every row once"):
        twice.predict_oof(study)
