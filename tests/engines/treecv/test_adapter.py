"""Adapters give the fold scores of independent trainings, or those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pipelines_by_hand import by_hand
import pytest
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import Perceptron
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import hinge_loss
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import StandardScaler
from spread import spread

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv.estimators.base import seeded

SEED = 11


def test_data_frames_stay_data_frames(binary):
    X, y = binary
    frame = pd.DataFrame(X, columns=list("abcde"))
    seen = []

    class Watching(SGDClassifier):
        def partial_fit(self, X, y, classes=None):
            seen.append(type(X))
            return super().partial_fit(X, y, classes)

    ours = tree_cross_validate(
        Watching(max_iter=1, tol=None), frame, pd.Series(y), cv=4, method="treecv"
    )
    assert set(seen) == {pd.DataFrame}
    plain = tree_cross_validate(SGDClassifier(max_iter=1, tol=None), X, y, cv=4)
    assert np.array_equal(ours.test_score, plain.test_score)


def test_a_diverged_model_scores_its_loss_and_goes_no_further(regression):
    X, y = regression
    wild = SGDRegressor(eta0=1e9, learning_rate="constant", max_iter=1, tol=None)
    result = tree_cross_validate(wild, X * 1e150, y, cv=4)
    assert result.diverged_folds == 4
    assert result.mean == np.inf and result.std is None
    assert np.all(result.test_score == np.inf)
    scored = tree_cross_validate(wild, X * 1e150, y, cv=4, scoring="r2")
    assert np.all(scored.test_score == -np.inf) and scored.diverged_folds == 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("model", [GaussianNB(), make_pipeline("passthrough", GaussianNB())])
@pytest.mark.parametrize("size", [1e155, 1e308])
def test_variances_that_overflow_are_divergence(size, model, binary):
    X, y = np.sign(binary[0]) * size, binary[1]
    for scoring, worst in ((None, 1.0), ("log_loss", np.inf), ("accuracy", -np.inf)):
        options = {"cv": 4, "scoring": scoring, "method": "treecv"}
        result = tree_cross_validate(model, X, y, **options)
        assert result.diverged_folds == 4 and np.all(result.test_score == worst)


def test_clusters_are_numbered(binary):
    labels = tree_cross_val_predict(MiniBatchKMeans(3, n_init=1, max_iter=1), binary[0], cv=4)
    assert labels.dtype.kind == "i" and set(labels) <= {0, 1, 2}


def by_metrics(method, metric):
    return lambda model, X, y: metric(y, getattr(model, method)(X), labels=model.classes_)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "scoring", "n_folds"),
    [
        (SGDClassifier(loss="log_loss", max_iter=1), "hinge", 2),
        (SGDClassifier(loss="log_loss", max_iter=1), "log_loss", 9),
        (
            SGDClassifier(loss="hinge", penalty=None, learning_rate="pa1", eta0=1.0, max_iter=1),
            *("hinge", 9),
        ),
        (Perceptron(max_iter=1), "hinge", 9),
        (MultinomialNB(), "log_loss", 2),
        (MLPClassifier(hidden_layer_sizes=(4,), max_iter=1), "log_loss", 9),
        (
            make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", max_iter=1)),
            *("log_loss", 2),
        ),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "get_params") else value,
)
def test_classes_that_come_late(estimator, scoring, n_folds, training_paths):
    rng = np.random.default_rng(0)
    codes = np.sort(rng.integers(0, 4, 80))
    X = np.abs(rng.normal(size=(80, 5)) + 2 * np.eye(4, 5)[codes])
    y = np.array(list("dbca"))[codes]  # the order of the codes is not that of the labels
    options = {"cv": n_folds, "stratify": False, "shuffle": False, "random_state": SEED}
    ours = tree_cross_validate(estimator, X, y, scoring=scoring, **options)
    score = {
        "hinge": by_metrics("decision_function", hinge_loss),
        "log_loss": by_metrics("predict_proba", log_loss),
    }[scoring]
    paths = training_paths(len(X), n_folds, shuffle=False)
    assert any(len(set(y[phases[0]])) < 4 for _, phases in paths)
    fitted = seeded(clone(estimator), SEED)
    expected = by_hand(fitted, X, y, paths, loss=score)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-9)


SGD = SGDClassifier(max_iter=1, tol=None)


ESTIMATORS = {
    "classifier": SGD,
    "regressor": SGDRegressor(max_iter=1, tol=None),
    "network": MLPClassifier(hidden_layer_sizes=(4,), max_iter=1),
    "clusters": MiniBatchKMeans(3, n_init=1, batch_size=20, max_iter=1),
    "scaler": make_pipeline(StandardScaler(), SGD),
    "stateless": make_pipeline(Normalizer(), MaxAbsScaler(), SGD),
    "nested": make_pipeline(
        make_pipeline(StandardScaler(), MinMaxScaler()), "passthrough", None, SGD
    ),
    "before a regressor": make_pipeline(
        FunctionTransformer(np.tanh), StandardScaler(), SGDRegressor(max_iter=1)
    ),
    "one step": make_pipeline(SGD),
    "compiled": make_pipeline(StandardScaler(), PegasosClassifier(shuffle=False)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(*spread(name=ESTIMATORS, order=["fixed", "random"], n_folds=[2, 5, 31]))
def test_scores_equal_those_of_phases_trained_by_hand(
    name, order, n_folds, make_data, training_paths
):
    estimator = ESTIMATORS[name]
    X, y = make_data(31, 5)
    X = X * 7 + 3
    y = None if name == "clusters" else y
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    ours = tree_cross_validate(estimator, X, y, n_epochs=1, **options)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    expected = by_hand(seeded(clone(estimator), SEED), X, y, paths)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-12)
    if y is None:
        return
    metric = "accuracy" if is_classifier(estimator) else "neg_mean_squared_error"
    scored = tree_cross_validate(estimator, X, y, scoring=metric, n_jobs=2, **options).test_score
    theirs = 1 - expected if is_classifier(estimator) else -expected
    np.testing.assert_allclose(scored, theirs, rtol=1e-12)


def test_every_seed_in_a_pipeline_is_set(binary):
    X, y = binary
    pipeline = make_pipeline(StandardScaler(), MLPClassifier(hidden_layer_sizes=(3,), max_iter=1))
    a, b, c = (tree_cross_validate(pipeline, X, y, cv=3, random_state=s).mean for s in (1, 1, 2))
    assert a == b != c


class AnswersAlike(ClassifierMixin, BaseEstimator):
    """Answers in the same way for each row, as its parameter says."""

    def __init__(self, label=None):
        self.label = label

    def partial_fit(self, X, y, classes=None):
        self.classes_ = np.unique(y) if classes is None else classes
        return self

    fit = partial_fit

    def predict(self, X):
        return np.full(len(X), self.label)

    def decision_function(self, X):
        return np.zeros(len(X))


@pytest.mark.parametrize("method", ["treecv", "fit"])
@pytest.mark.parametrize("label", [-1, 3, 9])
def test_a_predicted_label_between_the_classes_is_wrong(method, label):
    X, y = np.zeros((30, 1)), np.repeat([0, 5], 15)
    result = tree_cross_validate(AnswersAlike(label), X, y, cv=3, method=method)
    assert result.mean == 1


@pytest.mark.parametrize("method", ["treecv", "fit"])
def test_decision_values_without_a_column_for_each_class_are_refused(method):
    X, y = np.zeros((30, 1)), np.arange(30) % 3
    with pytest.raises(
        ValueError, match="decision_function of AnswersAlike must return 3 columns for"
    ):
        tree_cross_validate(AnswersAlike(0), X, y, cv=3, method=method, scoring="hinge")


class NearestMean(ClassifierMixin, BaseEstimator):
    """Predicts the class of the nearest mean; its ``partial_fit`` has no ``classes``."""

    def partial_fit(self, X, y):
        if not hasattr(self, "classes_"):
            self.classes_ = np.arange(2)
            self.n_, self.sums_ = np.zeros(2), np.zeros((2, X.shape[1]))
        for label in self.classes_:
            self.n_[label] += np.sum(y == label)
            self.sums_[label] += X[y == label].sum(axis=0)
        return self

    def predict(self, X):
        means = self.sums_ / self.n_[:, None]
        return np.argmin(((X[:, None] - means) ** 2).sum(axis=2), axis=1)


class NearestMeanWithFit(NearestMean):
    fit = NearestMean.partial_fit


def test_classes_are_passed_only_if_partial_fit_has_the_parameter(binary):
    X, y = binary[0], (binary[1] == binary[1].max()).astype(int)
    model, scaled = NearestMeanWithFit(), make_pipeline(StandardScaler(), NearestMeanWithFit())
    for ours, theirs in ((NearestMean(), model), (model, model)):
        result = tree_cross_validate(ours, X, y, cv=KFold(4), scoring="accuracy", method="treecv")
        np.testing.assert_array_equal(
            result.test_score, cross_val_score(theirs, X, y, cv=KFold(4))
        )
    result = tree_cross_validate(scaled, X, y, cv=KFold(4), scoring="accuracy", method="treecv")
    assert result.mean > 0.5  # rows are scaled phase by phase, so the scores are not those of fit


@pytest.mark.parametrize("method", ["auto", "treecv", "fit"])
def test_the_last_step_of_a_pipeline_must_have_fit(method, binary):
    message = "estimator must be a Pipeline whose last step has fit, got NearestMean"
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(make_pipeline(StandardScaler(), NearestMean()), *binary, method=method)
