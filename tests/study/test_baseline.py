"""The score of a constant prediction is that of scikit-learn's metrics, and in the study."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv.paper import StreamingKMeans

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
LABELS = RNG.choice(["a", "b", "c"], size=200, p=[0.2, 0.5, 0.3])
NUMBERS = RNG.normal(5, 2, size=200)
SHARES = np.array([np.mean(LABELS == label) for label in "abc"])
LOG_LOSS = metrics.log_loss(LABELS, np.tile(SHARES, (200, 1)))

CLASSIFIER, REGRESSOR = AveragedSGDClassifier(loss="log_loss"), AveragedSGDRegressor()


def facts_of(estimator, y, scoring, **options):
    grid = {"random_state": [0]}
    _, study = searched(estimator, (X, y), grid, scoring=scoring, cv=4, **options)
    return study.user_attrs["treecv_evaluation"]


@pytest.mark.parametrize(
    ("estimator", "y", "scoring", "expected", "what"),
    [
        (CLASSIFIER, LABELS, "error", 1 - SHARES[1], "the most frequent class"),
        (CLASSIFIER, LABELS, "log_loss", LOG_LOSS, "the frequencies of the classes"),
        (CLASSIFIER, LABELS, "neg_log_loss", -LOG_LOSS, "the frequencies of the classes"),
        (CLASSIFIER, LABELS, "accuracy", SHARES[1], "the most frequent class"),
        (REGRESSOR, NUMBERS, "squared_error", NUMBERS.var(), "the mean of y"),
        (REGRESSOR, NUMBERS, "absolute_error", abs(NUMBERS - NUMBERS.mean()).mean(), "the mean"),
        (REGRESSOR, NUMBERS, "neg_root_mean_squared_error", -NUMBERS.std(), "the mean of y"),
    ],
)
def test_the_score_of_a_constant_prediction(estimator, y, scoring, expected, what):
    facts = facts_of(estimator, y, scoring)
    assert facts["baseline"] == pytest.approx(expected, rel=1e-12)
    assert facts["baseline_of"].startswith(what)


def own(model, X, y):
    return float(np.mean(model.predict(X) == y))


@pytest.mark.parametrize(
    ("estimator", "y", "scoring"),
    [
        (CLASSIFIER, LABELS, "hinge"),
        (CLASSIFIER, LABELS, own),
        (CLASSIFIER, LABELS, "f1_macro"),
        (StreamingKMeans(), None, None),
    ],
)
def test_where_there_is_none(estimator, y, scoring):
    facts = facts_of(estimator, y, scoring)
    assert "baseline" not in facts
    assert (facts["n_folds"], facts["n_repeats"], facts["n_updates_standard"]) == (4, 1, 600)


@pytest.mark.parametrize("scoring", ["error", "accuracy"])
def test_the_constant_is_learned_and_scored_with_weights(scoring):
    weights = np.where(LABELS == "b", 0.1, RNG.random(200))
    best = max("abc", key=lambda label: weights[LABELS == label].sum())
    right = weights[LABELS == best].sum() / weights.sum()
    facts = facts_of(CLASSIFIER, LABELS, scoring, sample_weight=weights)
    assert best != "b"  # which is the most frequent one
    assert facts["baseline"] == pytest.approx(1 - right if scoring == "error" else right)
    plain = facts_of(CLASSIFIER, LABELS, scoring, sample_weight=weights, score_weight=None)
    right = np.mean(LABELS == best)
    assert plain["baseline"] == pytest.approx(1 - right if scoring == "error" else right)
    numbers = facts_of(REGRESSOR, NUMBERS, "squared_error", sample_weight=weights)
    mean = np.average(NUMBERS, weights=weights)
    expected = np.average((NUMBERS - mean) ** 2, weights=weights)
    assert numbers["baseline"] == pytest.approx(expected)
