"""Adapters give the fold scores of independent trainings, or those of scikit-learn."""

from __future__ import annotations

import copy

from ids import said
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from pairs import pairs
import pandas as pd
import pytest
from scipy import sparse
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
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.estimators.base import seeded

SEED = 11


def replay(estimator, X, y, paths, score, partial_fit=None):
    """Train k models independently, each along its path of Algorithm 1 from the first row on."""
    scores = []
    for test, phases in paths:
        model = clone(estimator)
        for i, rows in enumerate(phases):
            args = (X[rows],) if y is None else (X[rows], y[rows])
            classes = {"classes": np.unique(y)} if i == 0 and is_classifier(model) else {}
            if partial_fit is None:
                model.partial_fit(*args, **classes)
            else:
                partial_fit(model, *args, **classes)
        scores.append(score(model, X[test], None if y is None else y[test]))
    return np.array(scores)


def error(model, X, y):
    return np.mean(model.predict(X) != y)


def squared_error(model, X, y):
    return np.mean((model.predict(X) - y) ** 2)


def squared_distance(model, X, _):
    return np.mean(model.transform(X).min(axis=1) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("n_folds", [2, 3, 7, 8])
@pytest.mark.parametrize(
    ("estimator", "score"),
    [
        (SGDClassifier(max_iter=1, tol=None), error),
        (SGDRegressor(max_iter=1, tol=None), squared_error),
        (MLPClassifier(hidden_layer_sizes=(4,), max_iter=1), error),
        (MiniBatchKMeans(3, n_init=1, batch_size=20, max_iter=1), squared_distance),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "get_params") else "",
)
def test_equals_independent_replays(estimator, score, n_folds, order, binary, training_paths):
    X, y = binary
    y = None if score is squared_distance else y
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    result = tree_cross_validate(estimator, X, y, n_epochs=1, **options)
    seeded = clone(estimator).set_params(random_state=SEED)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    expected = replay(seeded, X, y, paths, score)
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("n_folds", [2, 5, 10])
def test_order_insensitive_learners_equal_scikit_learn(n_folds):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    X = rng.poisson(1 + np.eye(3)[y] @ rng.uniform(0, 3, (3, 8)))
    cv = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    kinds = [
        {"cv": cv, "method": method, "order": order}
        for method in ("treecv", "standard")
        for order in ("fixed", "random")
    ]
    for estimator in (MultinomialNB(), BernoulliNB()):
        theirs = cross_val_score(estimator, X, y, cv=cv, scoring="accuracy")
        for rows in (X, sparse.csr_matrix(X), sparse.coo_array(X)):
            for kind in kinds:
                ours = tree_cross_validate(estimator, rows, y, scoring="accuracy", **kind)
                assert np.array_equal(ours.test_score, theirs)
    theirs = cross_val_score(GaussianNB(), X, y, cv=cv, scoring="neg_log_loss")
    for kind in kinds:
        ours = tree_cross_validate(GaussianNB(), X, y, scoring="log_loss", **kind)
        np.testing.assert_allclose(ours.test_score, -theirs, rtol=1e-9)


def test_training_a_copy_leaves_the_original_alone(binary):
    X, y = binary
    model = MLPClassifier(hidden_layer_sizes=(4,), random_state=0).partial_fit(
        X, y, classes=[0, 1]
    )
    before = copy.deepcopy(model.coefs_)
    copy.deepcopy(model).partial_fit(X, 1 - y)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.coefs_, strict=True))


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


def test_string_labels(binary):
    X, y = binary
    words = np.array(["no", "yes"])[y]
    a = tree_cross_validate(Perceptron(max_iter=1), X, y, cv=5)
    b = tree_cross_validate(Perceptron(max_iter=1), X, words, cv=5)
    assert np.array_equal(a.test_score, b.test_score)
    predicted = tree_cross_val_predict(Perceptron(max_iter=1), X, words, cv=5)
    assert set(predicted) <= {"no", "yes"}
    assert np.mean(predicted != words) == pytest.approx(b.mean, abs=0.02)


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
@pytest.mark.parametrize("size", [1e155, 1e200, 1e308])
def test_variances_that_overflow_are_divergence(size, binary):
    X, y = np.sign(binary[0]) * size, binary[1]
    for scoring, worst in ((None, 1.0), ("log_loss", np.inf), ("accuracy", -np.inf)):
        options = {"cv": 4, "scoring": scoring, "method": "treecv"}
        result = tree_cross_validate(GaussianNB(), X, y, **options)
        assert result.diverged_folds == 4 and np.all(result.test_score == worst)


def test_other_errors_of_an_estimator_are_not_swallowed(binary):
    X, y = binary
    X = X.copy()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        tree_cross_validate(SGDClassifier(max_iter=1), X, y, cv=4)


def test_clusters_are_numbered(binary):
    labels = tree_cross_val_predict(MiniBatchKMeans(3, n_init=1, max_iter=1), binary[0], cv=4)
    assert labels.dtype.kind == "i" and set(labels) <= {0, 1, 2}


def by_metrics(method, metric):
    return lambda model, X, y: metric(y, getattr(model, method)(X), labels=model.classes_)


@pytest.mark.slow
@pytest.mark.parametrize("n_folds", [2, 4, 9])
@pytest.mark.parametrize(
    ("estimator", "scoring"),
    [
        (SGDClassifier(loss="log_loss", max_iter=1), "hinge"),
        (SGDClassifier(loss="log_loss", max_iter=1), "log_loss"),
        (
            SGDClassifier(loss="hinge", penalty=None, learning_rate="pa1", eta0=1.0, max_iter=1),
            "hinge",
        ),
        (Perceptron(max_iter=1), "hinge"),
        (MultinomialNB(), "log_loss"),
        (MLPClassifier(hidden_layer_sizes=(4,), max_iter=1), "log_loss"),
        (make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", max_iter=1)), "log_loss"),
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
    expected = replay(fitted, X, y, paths, score, by_hand)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-9)


def by_hand(model, X, y, classes=None):
    """Train a Pipeline on one phase, step by step."""
    *transformers, last = model if isinstance(model, Pipeline) else [model]
    for step in transformers:
        if step in (None, "passthrough"):
            continue
        if isinstance(step, Pipeline):
            for inner in step:
                X = inner.partial_fit(X).transform(X)
        elif hasattr(step, "partial_fit"):
            X = step.partial_fit(X).transform(X)
        else:
            X = step.fit_transform(X)
    named = {} if classes is None else {"classes": classes}
    last.partial_fit(X, y, **named)


SGD = SGDClassifier(max_iter=1, tol=None)


PIPELINES = {
    "scaler": make_pipeline(StandardScaler(), SGD),
    "stateless": make_pipeline(Normalizer(), MaxAbsScaler(), SGD),
    "nested": make_pipeline(
        make_pipeline(StandardScaler(), MinMaxScaler()), "passthrough", None, SGD
    ),
    "regressor": make_pipeline(
        FunctionTransformer(np.tanh), StandardScaler(), SGDRegressor(max_iter=1)
    ),
    "one step": make_pipeline(SGD),
    "compiled": make_pipeline(StandardScaler(), PegasosClassifier(shuffle=False)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(*pairs(order=["fixed", "random"], n_folds=[2, 5, 41], name=PIPELINES))
def test_a_pipeline_equals_its_phases_by_hand(name, n_folds, order, make_data, training_paths):
    pipeline = PIPELINES[name]
    X, y = make_data(41, 5)
    X = X * 7 + 3
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    ours = tree_cross_validate(pipeline, X, y, **options)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    score = error if is_classifier(pipeline) else squared_error
    expected = replay(seeded(clone(pipeline), SEED), X, y, paths, score, by_hand)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-12)
    metric = "accuracy" if is_classifier(pipeline) else "neg_mean_squared_error"
    scored = tree_cross_validate(pipeline, X, y, scoring=metric, n_jobs=2, **options).test_score
    theirs = 1 - expected if is_classifier(pipeline) else -expected
    np.testing.assert_allclose(scored, theirs, rtol=1e-12)


@pytest.mark.parametrize("fold", [0, 3, 4])
def test_nothing_of_a_fold_reaches_its_model(fold, binary):
    X, y = binary
    ids = np.arange(len(y)) % 5

    def models(X, y):
        found = []
        pipeline = make_pipeline(StandardScaler(), SGDClassifier(random_state=0, max_iter=1))

        def keep(model, X, y):
            scaler, sgd = copy.deepcopy(model).named_steps.values()
            found.append((scaler.mean_, scaler.var_, sgd.coef_, sgd.intercept_))
            return 0.0

        tree_cross_validate(pipeline, X, y, cv=ids, shuffle=False, scoring=keep)
        return found

    before = models(X, y)
    changed = X.copy()
    changed[ids == fold] *= -1e6
    after = models(changed, np.where(ids == fold, 1 - y, y))
    for i in range(5):
        same = all(np.array_equal(a, b) for a, b in zip(before[i], after[i], strict=True))
        assert same == (i == fold)


def test_a_stateless_step_keeps_naive_bayes_exact():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    X = rng.poisson(1 + np.eye(3)[y] @ rng.uniform(0, 3, (3, 8)))
    cv = StratifiedKFold(5, shuffle=True, random_state=0)
    for last in (MultinomialNB(), BernoulliNB()):
        for first in (FunctionTransformer(np.log1p), Binarizer(threshold=1), Normalizer()):
            pipeline = make_pipeline(first, last)
            ours = tree_cross_validate(pipeline, X, y, cv=cv, scoring="accuracy")
            theirs = cross_val_score(pipeline, X, y, cv=cv, scoring="accuracy")
            assert np.array_equal(ours.test_score, theirs)


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("first", [StandardScaler(), Normalizer(), "passthrough"], ids=said)
def test_a_study_of_a_pipeline(first, binary):
    frame = pd.DataFrame(binary[0], columns=list("abcde"))
    pipeline = make_pipeline(first, SGDClassifier(random_state=0, max_iter=1))
    name = "sgdclassifier__alpha"
    objective = treecv_objective(
        pipeline, frame, binary[1], param_distributions={name: FloatDistribution(1e-5, 1e-2)}, cv=4
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=3)
    best = objective.best_estimator(study)
    assert isinstance(best, Pipeline) and best[-1].alpha == study.best_params[name]
    check_is_fitted(best)
    assert np.mean(best.predict(frame) == binary[1]) > 0.6
    fixed = clone(pipeline).set_params(**study.best_params)
    assert tree_cross_validate(fixed, frame, binary[1], cv=4).mean == study.best_value
    predicted = tree_cross_val_predict(fixed, frame, binary[1], cv=4)
    assert np.mean(predicted != binary[1]) == pytest.approx(study.best_value, abs=0.02)
    assert not hasattr(pipeline[-1], "coef_")


def test_every_seed_in_a_pipeline_is_set(binary):
    X, y = binary
    pipeline = make_pipeline(StandardScaler(), MLPClassifier(hidden_layer_sizes=(3,), max_iter=1))
    a, b, c = (tree_cross_validate(pipeline, X, y, cv=3, random_state=s).mean for s in (1, 1, 2))
    assert a == b != c


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_in_a_pipeline(binary):
    X, y = np.sign(binary[0]) * 1e200, binary[1]
    model = make_pipeline("passthrough", GaussianNB())
    result = tree_cross_validate(model, X, y, cv=4, method="treecv")
    assert result.diverged_folds == 4


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
    with pytest.raises(ValueError, match="decision_function of AnswersAlike must have 3 columns"):
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
    message = "estimator must be a Pipeline whose last step has fit, .* got NearestMean"
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(make_pipeline(StandardScaler(), NearestMean()), *binary, method=method)
