"""Scores at the best threshold are the largest ones over all thresholds of scikit-learn."""

from __future__ import annotations

import pickle

import numpy as np
from pairs import pairs
import pytest
from sklearn import metrics
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import StratifiedKFold
from studies import searched

from optuna_treecv import pooled
from optuna_treecv import thresholded
from optuna_treecv import tree_cross_validate

X, CODES = make_classification(
    130, n_features=6, n_informative=4, weights=[0.8], flip_y=0.1, random_state=0
)
LABELS = np.where(CODES == 1, "rare", "common")  # in the order of the codes
SPLITS = StratifiedKFold(4)
WEIGHTS = np.random.default_rng(0).integers(1, 5, len(X)).astype(float)
COSTS = [[0, 1], [7, 0.5]]


def by_loop(metric, outputs, is_positive, weights):
    """Return the largest score of labels at a threshold, by one call of a metric for each."""
    thresholds = [*np.unique(outputs), np.inf]
    return max(metric(is_positive, outputs >= t, sample_weight=weights) for t in thresholds)


def neg_mean_cost(true, predicted, sample_weight):
    cells = metrics.confusion_matrix(true, predicted, sample_weight=sample_weight)
    return -(cells * COSTS).sum() / sample_weight.sum()


FUNCTIONS = {
    "f1": metrics.f1_score,
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "kappa": metrics.cohen_kappa_score,
    "costs": neg_mean_cost,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        name=FUNCTIONS,
        estimator=[LogisticRegression(tol=1e-9), RidgeClassifier()],
        is_weighted=[False, True],
    )
)
def test_no_threshold_has_a_better_score(name, estimator, is_weighted):
    metric = {"kappa": make_scorer(metrics.cohen_kappa_score), "costs": COSTS}.get(name, name)
    # Metrics without a formula are computed at 100 thresholds.
    n_rows = len(X) if name == "kappa" else 70
    rows, y = X[:n_rows], CODES[:n_rows]
    weights = WEIGHTS[:n_rows] if is_weighted else None
    options = {"cv": SPLITS, "sample_weight": weights}
    result = tree_cross_validate(estimator, rows, y, scoring=thresholded(metric), **options)
    has_probabilities = hasattr(estimator, "predict_proba")
    outputs = cross_val_predict(
        estimator,
        *(rows, y),
        cv=SPLITS,
        method="predict_proba" if has_probabilities else "decision_function",
        params=None if weights is None else {"sample_weight": weights},
    )
    outputs = outputs[:, 1] if has_probabilities else outputs
    score_weights = np.ones(n_rows) if weights is None else weights
    expected = by_loop(FUNCTIONS[name], outputs, y == 1, score_weights)
    assert result.mean == pytest.approx(expected, abs=0.03 if name == "kappa" else 1e-9)
    assert result.mean <= expected + 1e-9


@pytest.mark.parametrize("pos_label", ["rare", "common", None])
def test_the_threshold_of_the_study_has_this_score(pos_label):
    scoring = {"chosen": thresholded("f1", pos_label), "roc_auc": pooled("roc_auc")}
    objective, study = searched(
        LogisticRegression(), (X, LABELS), {"C": [0.01, 1.0]}, cv=SPLITS, scoring=scoring
    )
    found = objective.threshold(study, "f1", pos_label=pos_label)
    assert found.score == pytest.approx(study.best_value)
    assert objective.direction == "maximize"


def test_names_and_pickles():
    assert thresholded("f1").name == "pooled_thresholded_f1"
    assert thresholded(COSTS).name == "pooled_thresholded_costs"
    beta = make_scorer(metrics.fbeta_score, beta=2)
    assert thresholded(beta).name == "pooled_thresholded_fbeta_score"
    restored = pickle.loads(pickle.dumps(thresholded("f1")))
    scores = [
        tree_cross_validate(LogisticRegression(), X, CODES, cv=3, scoring=scoring).mean
        for scoring in (restored, thresholded("f1"))
    ]
    assert scores[0] == scores[1]


def test_another_metric_is_another_record(tmp_path):
    """Scores of one metric are not read from the store for the other."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    forest = RandomForestClassifier(5, random_state=0)
    values = []
    for metric in ("f1", "balanced_accuracy", "f1"):
        options = {"cv": 3, "scoring": thresholded(metric), "store": url}
        objective, study = searched(forest, (X, CODES), {"max_depth": [2]}, **options)
        values.append(study.best_value)
        assert study.best_value == pytest.approx(objective.threshold(study, metric).score)
    assert values[0] == values[2] != values[1]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("roc_auc", "^metric must be a scorer of labels, such as 'f1'"),
        ("f2", "^metric must be the name of a scorer of labels"),
        ([[1, 2, 3]], "^metric must be a scorer of labels or a matrix of costs"),
    ],
)
def test_other_metrics_are_refused(metric, words):
    with pytest.raises(ValueError, match=words):
        thresholded(metric)


def test_other_targets_are_refused():
    three = np.arange(len(X)) % 3
    with pytest.raises(ValueError, match="y must have two classes for a threshold, got 3 classes"):
        tree_cross_validate(LogisticRegression(), X, three, cv=3, scoring=thresholded("f1"))
    with pytest.raises(
        ValueError,
        match="because 7 is not one of the labels 0 and 1; use, for example, pos_label=1 instead",
    ):
        tree_cross_validate(LogisticRegression(), X, CODES, cv=3, scoring=thresholded("f1", 7))
