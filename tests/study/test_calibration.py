"""Calibrated classifiers are those of ``CalibratedClassifierCV`` with the same folds."""

from __future__ import annotations

import pickle

import numpy as np
from pairs import pairs
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC
from sklearn.svm import SVC
from sklearn.utils.metaestimators import available_if
from studies import searched

X, CODES = make_classification(
    240, n_features=6, n_informative=5, n_redundant=0, n_classes=3, flip_y=0.2, random_state=0
)
LABELS = np.array(["b", "a", "c"])[CODES]
FOLDS = StratifiedKFold(4, shuffle=True, random_state=0)
WEIGHTS = np.random.default_rng(0).integers(1, 4, len(X)).astype(float)
FOREST = RandomForestClassifier(5, random_state=0)
LOGISTIC = LogisticRegression(tol=1e-9, max_iter=1000)


class OnlyProba(HistGradientBoostingClassifier):
    """A booster whose probabilities are calibrated, as they are here."""

    @available_if(lambda self: False)
    def decision_function(self, X):
        raise AttributeError


@pytest.mark.filterwarnings("error:all folds of trial")
@pytest.mark.parametrize(
    *pairs(
        estimator=[FOREST, LOGISTIC, SVC(tol=1e-6), LinearSVC(tol=1e-9, max_iter=100_000)],
        method=["sigmoid", "isotonic", "temperature"],
        n_classes=[2, 3],
    )
)
def test_they_are_those_of_scikit_learn(estimator, method, n_classes):
    y = LABELS if n_classes == 3 else LABELS == "a"
    grid = {"max_depth": [3]} if estimator is FOREST else {"C": [0.1]}
    options = {"keep_outputs": "all"} if isinstance(estimator, SVC) else {}
    objective, study = searched(estimator, (X, y), grid, cv=FOLDS, **options)
    ours = objective.best_estimator(study, calibrate=method)
    estimator.set_params(**study.best_params)
    theirs = CalibratedClassifierCV(estimator, method=method, ensemble=False, cv=FOLDS).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=5e-5)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    assert np.mean(ours.predict(X) == theirs.predict(X)) > 0.99
    restored = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(restored.predict_proba(X), ours.predict_proba(X))


def test_probabilities_are_calibrated_where_they_are_kept():
    grid = {"learning_rate": [0.1]}
    booster = HistGradientBoostingClassifier(max_iter=5, random_state=0)
    objective, study = searched(booster, (X, LABELS), grid, cv=FOLDS)
    ours = objective.best_estimator(study, calibrate="sigmoid")
    same = OnlyProba(max_iter=5, random_state=0)
    theirs = CalibratedClassifierCV(same, ensemble=False, cv=FOLDS).fit(X, LABELS)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def test_weights_are_those_of_the_calibrator():
    options = {"cv": FOLDS, "sample_weight": WEIGHTS}
    objective, study = searched(LOGISTIC, (X, LABELS), {"C": [0.1]}, **options)
    ours = objective.best_estimator(study, calibrate="sigmoid")
    model = CalibratedClassifierCV(LogisticRegression(C=0.1, tol=1e-9), ensemble=False, cv=FOLDS)
    theirs = model.fit(X, LABELS, sample_weight=WEIGHTS)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def test_names_of_columns():
    names = list("abcdef")
    frame = pd.DataFrame(X, columns=names)
    objective, study = searched(LOGISTIC, (frame, LABELS), {"C": [0.1]}, cv=FOLDS)
    model = objective.best_estimator(study, calibrate="isotonic")
    assert model.n_features_in_ == 6 and list(model.feature_names_in_) == names
    plain, plain_study = searched(LOGISTIC, (X, LABELS), {"C": [0.1]}, cv=FOLDS)
    other = plain.best_estimator(plain_study, calibrate="isotonic")
    np.testing.assert_array_equal(model.predict_proba(frame), other.predict_proba(X))
    assert other.n_features_in_ == 6 and not hasattr(other, "feature_names_in_")


def test_the_average_of_the_folds_is_calibrated():
    objective, study = searched(FOREST, (X, LABELS), {"max_depth": [3]}, cv=FOLDS)
    model = objective.best_estimator(study, kind="folds", calibrate="sigmoid")
    average = objective.best_estimator(study, kind="folds")
    (of_all,) = model.calibrated_classifiers_
    np.testing.assert_array_equal(of_all.estimator.predict_proba(X), average.predict_proba(X))


def test_refusals():
    objective, study = searched(FOREST, (X, LABELS == "a"), {"max_depth": [3]}, cv=FOLDS)
    with pytest.raises(ValueError, match="^calibrate must be one of 'sigmoid', 'isotonic'"):
        objective.best_estimator(study, calibrate="platt")
    found = objective.threshold(study)
    with pytest.raises(ValueError, match="^calibrate must be None if threshold is given"):
        objective.best_estimator(study, threshold=found, calibrate="sigmoid")
    objective, study = searched(
        LinearRegression(), (X, CODES), {"fit_intercept": [True]}, cv=FOLDS
    )
    with pytest.raises(ValueError, match="^calibrate needs a classifier with predict_proba or"):
        objective.best_estimator(study, calibrate="sigmoid")
    objective, study = searched(FOREST, (X, LABELS), {"max_depth": [3]}, cv=4, n_repeats=2)
    with pytest.raises(ValueError, match="^cv must test every row once"):
        objective.best_estimator(study, calibrate="sigmoid")
