"""Thresholds are the best ones on out-of-fold outputs, and as good as those of scikit-learn."""

from __future__ import annotations

from dataclasses import replace
import pickle

import numpy as np
import pytest
from sklearn import metrics
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import get_scorer
from sklearn.metrics import make_scorer
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.model_selection import train_test_split
from sklearn.model_selection import TunedThresholdClassifierCV
from studies import searched

from optuna_treecv.scoring.thresholds import count_at
from optuna_treecv.scoring.thresholds import find_thresholds

X, CODES = make_classification(
    400, n_features=8, n_informative=4, weights=[0.8], flip_y=0.1, random_state=0
)
GRID = {"C": [0.01, 1.0]}
COSTS = [[0, 1], [7, 0.5]]


def logistic(y=CODES, **options):
    options = {"scoring": "log_loss", "cv": 4} | options
    return searched(LogisticRegression(), (X, y), GRID, **options)


def score_at(metric, found, outputs, y=CODES):
    """Return the score of labels by scikit-learn, or the negative mean cost."""
    codes = (y == found.pos_label).astype(int)
    labels = (outputs >= found.threshold).astype(int)
    if isinstance(metric, list):
        return -(np.array(metric) * metrics.confusion_matrix(codes, labels)).sum() / len(y)
    scorer = get_scorer(metric)
    options = scorer._kwargs | ({"pos_label": 1} if "average" in scorer._kwargs else {})
    return scorer._sign * scorer._score_func(codes, labels, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric",
    [
        *("accuracy", "balanced_accuracy", "f1", "jaccard", "precision", "recall"),
        *("matthews_corrcoef", make_scorer(metrics.fbeta_score, beta=2), COSTS),
        make_scorer(metrics.cohen_kappa_score),  # no formula
    ],
)
@pytest.mark.parametrize("estimator", [LogisticRegression(), RidgeClassifier()])
def test_no_threshold_has_a_better_score(estimator, metric):
    """All scores are those of scikit-learn's metric; decision values serve as probabilities do."""
    grid = GRID if isinstance(estimator, LogisticRegression) else {"alpha": [0.1, 10.0]}
    objective, study = searched(estimator, (X, CODES), grid, scoring="accuracy", cv=4)
    found = objective.threshold(study, metric)
    outputs = objective.predict_oof(study, found.response_method)
    outputs = (outputs if outputs.ndim == 1 else outputs[:, 1]).astype(np.float32)
    assert found.score == pytest.approx(score_at(metric, found, outputs))
    assert found.score == found.scores.max()
    for number in range(0, len(found.thresholds), 9):
        at = replace(found, threshold=found.thresholds[number])
        assert found.scores[number] == pytest.approx(score_at(metric, at, outputs))
    assert np.all(np.diff(found.thresholds) < 0)
    assert found.low <= found.threshold <= found.high
    assert found.honest_score <= found.score


def test_the_classifier_has_the_threshold():
    objective, study = logistic(np.array(["no", "yes"])[CODES])
    for pos_label in ("yes", "no"):
        found = objective.threshold(study, "balanced_accuracy", pos_label=pos_label)
        model = pickle.loads(pickle.dumps(objective.best_estimator(study, threshold=found)))
        column = model.classes_.tolist().index(pos_label)
        is_positive = model.predict_proba(X)[:, column] >= found.threshold
        np.testing.assert_array_equal(model.predict(X) == pos_label, is_positive)
    other = next(t for t in study.trials if t.number != study.best_trial.number)
    with pytest.raises(ValueError, match="^threshold must be that of trial"):
        objective.best_estimator(other, threshold=found)


@pytest.mark.slow
def test_a_constraint_holds_at_the_threshold():
    objective, study = logistic()
    free = objective.threshold(study, "precision", constraint="recall >= 0.5")
    bound = objective.threshold(study, "precision", constraint="recall >= 0.9")
    outputs = objective.predict_oof(study, "predict_proba")[:, 1].astype(np.float32)
    assert score_at("recall", bound, outputs) >= 0.9
    assert bound.score <= free.score
    feasible = [
        metrics.precision_score(CODES, outputs >= value)
        for value in np.unique(outputs)
        if metrics.recall_score(CODES, outputs >= value) >= 0.9
    ]
    assert bound.score == pytest.approx(max(feasible))


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["f1", "balanced_accuracy"])
def test_rows_that_were_withheld_are_scored_as_by_scikit_learn(metric):
    differences = []
    for seed in range(3):
        rows, y = make_classification(
            1500, n_features=8, n_informative=4, weights=[0.85], flip_y=0.05, random_state=seed
        )
        A, B, a, b = train_test_split(rows, y, test_size=500, random_state=0)
        cv = StratifiedKFold(5, shuffle=True, random_state=0)
        objective, study = searched(
            LogisticRegression(), (A, a), {"C": [1.0]}, scoring="log_loss", cv=cv
        )
        ours = objective.best_estimator(study, threshold=objective.threshold(study, metric))
        theirs = TunedThresholdClassifierCV(LogisticRegression(C=1.0), scoring=metric, cv=cv)
        scorer = get_scorer(metric)
        differences.append(scorer(ours, B, b) - scorer(theirs.fit(A, a), B, b))
    assert abs(np.mean(differences)) < 0.01


def test_known_outputs_are_not_computed_again(monkeypatch):
    """With and without them, the threshold is the same."""
    kept, kept_study = logistic(keep_outputs="all")
    with_outputs = kept.threshold(kept_study, "f1")
    objective, study = logistic(keep_outputs=False)
    without = objective.threshold(study, "f1")
    assert repr(with_outputs) == repr(without)
    np.testing.assert_array_equal(with_outputs.scores, without.scores)
    monkeypatch.setattr(
        "optuna_treecv.core.run.Run.predict", lambda *_: pytest.fail("it trains again")
    )
    assert repr(kept.threshold(kept_study, "f1")) == repr(with_outputs)


def test_weights_count_rows():
    weights = np.random.default_rng(0).integers(1, 4, len(X)).astype(float)
    objective, study = logistic(score_weight=weights, cv=KFold(4), shuffle=False)
    found = objective.threshold(study, "f1")
    outputs = objective.predict_oof(study, "predict_proba")[:, 1].astype(np.float32)
    labels = outputs >= found.threshold
    assert found.score == pytest.approx(metrics.f1_score(CODES, labels, sample_weight=weights))


def test_groups_are_drawn_whole():
    """With the same folds, groups change the interval of the threshold alone."""
    groups = np.arange(len(X)) // 8
    objective, study = logistic(groups=groups)
    found = objective.threshold(study, "f1")
    cut, everything = objective.evaluator.cross_validation.repeats[0].cut, np.arange(len(X))
    tests = [cut.test_rows(chunk) for chunk in range(cut.n_folds)]
    cv = [(np.setdiff1d(everything, test), test) for test in tests]
    alone, alone_study = logistic(cv=cv)
    rows = alone.threshold(alone_study, "f1")
    assert found.threshold == rows.threshold
    assert (found.low, found.high) != (rows.low, rows.high)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("roc_auc",), "metric must be a scorer of labels, .* got 'roc_auc', which is not"),
        (("f2",), "metric must be the name of a scorer of labels, .* got 'f2'"),
        ((make_scorer(lambda y, labels: 1.0),), "metric must be a scorer of a metric with sample"),
        (([1, 2],), r"metric must be a scorer of labels or a matrix of costs, .* got \[1, 2\]"),
        ((None,), "metric must be a scorer of labels or a matrix of costs, .* got None"),
        (("f1", "recall = 1"), "constraint must be a text such as 'recall >= 0.9', .* got 'rec"),
        (("f1", "roc_auc > 0"), "constraint must be a scorer of labels"),
        (("f1", "recall > 1"), "constraint must hold at one threshold at least, got 'recall > 1'"),
        (("f1", None, 2), r"pos_label must be one of the classes \[0, 1\], got 2"),
        (("f1", None, 1, 2), "level must be between 0 and 1"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    objective, study = logistic()
    names = ("metric", "constraint", "pos_label", "level")
    with pytest.raises(ValueError, match=f"^{message}"):
        objective.threshold(study, **dict(zip(names, arguments, strict=False)))


@pytest.mark.parametrize(
    ("estimator", "grid", "y", "message"),
    [
        (
            LogisticRegression(),
            GRID,
            np.arange(len(X)) % 3,
            "y must have two classes .* 3 classes",
        ),
        (Ridge(), {"alpha": [1.0]}, X[:, 0], "y must have two classes .* got no classes"),
    ],
)
def test_other_targets_are_refused(estimator, grid, y, message):
    objective, study = searched(estimator, (X, y), grid, cv=3)
    with pytest.raises(ValueError, match=message):
        objective.threshold(study)


@pytest.mark.parametrize("keep_outputs", ["all", False])
@pytest.mark.parametrize("options", [{"cv": TimeSeriesSplit(3)}, {"n_repeats": 2}])
def test_each_row_must_have_one_prediction(options, keep_outputs):
    """Also if the outputs are known, so that a study that is resumed does the same."""
    objective, study = logistic(keep_outputs=keep_outputs, **options)
    with pytest.raises(ValueError, match="^cv must test every row once"):
        objective.threshold(study)


def test_many_outputs_are_divided_at_some_thresholds():
    rng = np.random.default_rng(0)
    outputs, is_positive = rng.normal(size=5000), rng.random(5000) < 0.3
    thresholds = find_thresholds(outputs, 100)
    assert 90 < len(thresholds) <= 102
    bins = np.searchsorted(-thresholds, -outputs)
    tn, fp, fn, tp = count_at(bins, is_positive, np.ones(5000), len(thresholds))
    assert fp[0] == tp[0] == 0
    assert tn[-1] == fn[-1] == 0
    for number in (0, 7, 50, len(thresholds) - 1):
        is_predicted = outputs >= thresholds[number]
        assert fp[number] == np.sum(is_predicted & ~is_positive)
        assert tp[number] == np.sum(is_predicted & is_positive)
