"""Scores over the out-of-fold outputs of all rows, and their standard errors."""

from __future__ import annotations

import pickle

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pytest
from sklearn import metrics
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import make_scorer
from sklearn.svm import SVC

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

SCORES = {
    "roc_auc": (metrics.roc_auc_score, "decision_function"),
    "average_precision": (metrics.average_precision_score, "decision_function"),
    "f1": (metrics.f1_score, "predict"),
    "accuracy": (metrics.accuracy_score, "predict"),
    "balanced_accuracy": (metrics.balanced_accuracy_score, "predict"),
    "matthews_corrcoef": (metrics.matthews_corrcoef, "predict"),
    "error": (metrics.zero_one_loss, "predict"),
}
LEARNERS = {
    "compiled": AveragedSGDClassifier(loss="log_loss"),
    "adapter": SGDClassifier(random_state=0),
    "fit": LogisticRegression(),
}


@pytest.fixture
def data(make_data):
    return make_data(150, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "cv"), [("compiled", 30), ("adapter", 5), ("fit", 10)])
def test_a_pooled_score_is_that_of_the_out_of_fold_predictions(data, learner, cv):
    X, y = data
    estimator = LEARNERS[learner]
    result = tree_cross_validate(
        estimator, X, y, cv=cv, scoring={name: pooled(name) for name in SCORES}
    )
    for name, (metric, method) in SCORES.items():
        predicted = tree_cross_val_predict(estimator, X, y, cv=cv, response_method=method)
        found = result.scores[name]
        np.testing.assert_allclose(found.mean, metric(y, predicted), rtol=1e-12)
        assert found.std is None and found.std_error > 0
        assert found.test_score.tolist() == [found.mean]


def test_labels_of_any_kind_and_several_classes(make_data):
    X, y = make_data(120, 4, 3)
    y = np.array(["a", "b", "c"])[y]
    for estimator in (PegasosClassifier(alpha=0.1), LogisticRegression()):
        result = tree_cross_validate(estimator, X, y, cv=6, scoring=pooled("f1_macro"))
        predicted = tree_cross_val_predict(estimator, X, y, cv=6)
        expected = metrics.f1_score(y, predicted, average="macro")
        assert result.mean == pytest.approx(expected, rel=1e-12)


def test_the_jackknife_over_folds_agrees_with_that_over_rows(make_data):
    X, y = make_data(400, 3)
    scoring = {"rows": pooled("f1"), "folds": pooled(make_scorer(metrics.f1_score))}
    result = tree_cross_validate(PegasosClassifier(alpha=0.1), X, y, cv=50, scoring=scoring)
    rows, folds = result.scores.values()
    assert folds.mean == pytest.approx(rows.mean, rel=1e-12)
    assert folds.std_error == pytest.approx(rows.std_error, rel=0.3)


def test_the_standard_error_of_a_weighted_mean(data):
    X, y = data
    weights = np.random.default_rng(0).uniform(0.1, 5, len(y))
    model, options = PegasosClassifier(alpha=0.1), {"cv": 6, "sample_weight": weights}
    result = tree_cross_validate(model, X, y, scoring=pooled("error"), **options)
    is_wrong = tree_cross_val_predict(model, X, y, **options) != y
    mean = np.average(is_wrong, weights=weights)
    assert result.mean == pytest.approx(mean)
    length = np.linalg.norm(weights * (is_wrong - mean))
    assert result.std_error == pytest.approx(length / weights.sum())


def test_one_fold_has_a_standard_error_from_its_rows(data):
    X, y = data
    scoring = [pooled("error"), pooled("f1_macro")]
    result = tree_cross_validate(
        PegasosClassifier(alpha=0.1), X, y, method="holdout", cv=3, scoring=scoring
    )
    error, f1 = result.scores.values()
    assert error.std_error == pytest.approx(np.sqrt(error.mean * (1 - error.mean) / 50))
    assert f1.std_error is None  # the jackknife needs folds to leave out


def test_repeats_are_averaged(data):
    X, y = data
    options = {"cv": 5, "scoring": pooled("roc_auc"), "n_repeats": 3}
    result = tree_cross_validate(PegasosClassifier(alpha=0.1), X, y, **options)
    assert len(result.test_score) == 3
    assert result.mean == pytest.approx(np.mean(result.test_score))
    assert result.std_over_repeats == np.std(result.test_score, ddof=1)
    assert 0 < result.std_error < 0.1


def test_the_objective_pools_all_scores(data):
    X, y = data
    objective = treecv_objective(
        PegasosClassifier(),
        X,
        y,
        param_distributions={"alpha": FloatDistribution(1e-3, 1, log=True)},
        scoring=["error", "roc_auc"],
        optimize="pooled_roc_auc",
        pooled=True,
        cv="loo",
    )
    study = optuna.create_study(direction=objective.direction)
    study.optimize(pickle.loads(pickle.dumps(objective)), n_trials=2)
    (first, _) = study.trials
    result = objective.evaluate(first.params)
    assert first.value == result.scores["pooled_roc_auc"].mean
    assert first.user_attrs["treecv"]["std_error"] == pytest.approx(result.std_error, rel=1e-5)
    assert "std_test_score" not in first.user_attrs["treecv"]
    default = treecv_objective(
        PegasosClassifier(),
        X,
        y,
        param_distributions={"alpha": FloatDistribution(0.1, 1)},
        pooled=True,
    )
    assert list(default.evaluate({"alpha": 0.5}).scores) == ["pooled_error"]


def test_a_score_that_all_rows_do_not_define_is_refused():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    cv = np.where(y == 1, -1, np.arange(40) % 4)  # all tested rows are of one class
    with pytest.raises(ValueError, match=r"is undefined \(.*\) on all 20 tested rows"):
        tree_cross_validate(PegasosClassifier(), X, y, cv=cv, scoring=pooled("roc_auc"))


@pytest.mark.parametrize(
    ("scoring", "says"),
    [
        (
            lambda estimator, X, y: 1.0,
            "scoring can be pooled only if it is a loss or a scorer made by",
        ),
        ("roc_auk", "did you mean 'roc_auc'"),
        (None, "scoring must be None, a loss name"),
        (["error"], "scoring must be None, a loss name"),
    ],
)
def test_what_cannot_be_pooled_is_refused(scoring, says):
    with pytest.raises(ValueError, match=says):
        pooled(scoring)


def test_pooled_twice_is_pooled_once():
    assert pooled(pooled("error")) == pooled("error")


def test_fits_pool_a_scorer_that_is_given_twice(data):
    X, y = data
    scorer = metrics.make_scorer(metrics.roc_auc_score, response_method="decision_function")
    scoring = {"one": pooled(scorer), "other": pooled(scorer), "error": pooled("error")}
    result = tree_cross_validate(LogisticRegression(), X, y, scoring=scoring, cv=5)
    assert result.scores["one"].mean == result.scores["other"].mean
    alone = tree_cross_validate(LogisticRegression(), X, y, scoring=pooled("error"), cv=5)
    assert result.scores["error"].mean == alone.mean


class KnowsAnotherLabel(ClassifierMixin, BaseEstimator):
    """Predicts a label that no row has."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), 9)


def test_a_predicted_label_that_is_no_class_is_not_taken_for_one(data):
    X, y = data
    options = {"cv": 5, "stratify": False, "shuffle": False}
    for name in ("accuracy", "error"):
        result = tree_cross_validate(KnowsAnotherLabel(), X, y, scoring=pooled(name), **options)
        assert result.mean == (name == "error")
    for name in ("f1_macro", "f1"):
        with pytest.raises(
            ValueError, match=rf"scoring='{name}' cannot be pooled, .* not classes"
        ):
            tree_cross_validate(KnowsAnotherLabel(), X, y, scoring=pooled(name), **options)


@pytest.mark.parametrize("scoring", ["hinge", [pooled("hinge"), pooled("error")]])
def test_decision_values_of_pairs_of_classes_are_refused(scoring):
    X, y = make_classification(80, n_informative=5, n_classes=4, random_state=0)
    estimator = SVC(decision_function_shape="ovo")
    with pytest.raises(
        ValueError, match="decision_function of SVC must return 4 columns for this y, got 6"
    ):
        tree_cross_validate(estimator, X, y, cv=3, scoring=scoring)
    predicted = tree_cross_val_predict(estimator, X, y, cv=3, response_method="decision_function")
    assert predicted.shape == (80, 6)


def test_a_scorer_that_refuses_labels_says_so_of_all_rows(data):
    def numbers_only(y_true, y_predicted):
        return float(np.mean(y_true.astype(float) == y_predicted.astype(float)))

    X, y = data
    scoring = pooled(make_scorer(numbers_only))
    with pytest.raises(ValueError, match="cannot score all tested rows together: could not"):
        tree_cross_validate(PegasosClassifier(), X, np.array(["a", "b"])[y], scoring=scoring)
