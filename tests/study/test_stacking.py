"""Stacking ensembles are those of scikit-learn with the same folds."""

from __future__ import annotations

from functools import cache
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import make_classification
from sklearn.datasets import make_regression
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import StackingClassifier
from sklearn.ensemble import StackingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neighbors import KNeighborsRegressor
from studies import searched

X, CODES = make_classification(
    240, n_features=6, n_informative=5, n_redundant=0, n_classes=3, flip_y=0.2, random_state=0
)
LABELS = np.array(["b", "a", "c"])[CODES]
ROWS, Y = make_regression(200, n_features=5, noise=20.0, random_state=0)
FOLDS, SPLITS = KFold(4, shuffle=True, random_state=0), StratifiedKFold(4)
FOREST, DEPTHS = RandomForestClassifier(3, random_state=0), {"max_depth": [2, 3, 5]}
NEIGHBORS = {"n_neighbors": [3, 8, 20]}


def forests(y=LABELS, **options):
    options = {"cv": SPLITS, "scoring": "log_loss"} | options
    return searched(FOREST, (X, y), DEPTHS, **options)


@cache
def forests_of_three_classes():
    return forests()


def neighbors(**options):
    return searched(KNeighborsRegressor(), (ROWS, Y), NEIGHBORS, **{"cv": FOLDS} | options)


@pytest.mark.filterwarnings("error:all folds of trial")
@pytest.mark.parametrize("passthrough", [False, True])
@pytest.mark.parametrize("y", [LABELS, LABELS == "a"], ids=["three classes", "two classes"])
def test_classifiers_are_those_of_scikit_learn(y, passthrough):
    objective, study = forests_of_three_classes() if y is LABELS else forests(y)
    final = LogisticRegression(max_iter=1000, tol=1e-8)
    ours = objective.ensemble(study, stack=final, passthrough=passthrough)
    members = [(name, RandomForestClassifier(**m.get_params())) for name, m in ours.estimators]
    theirs = StackingClassifier(members, final, cv=SPLITS, passthrough=passthrough).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    restored = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(restored.predict(X), ours.predict(X))
    assert ours.oof_score_ == ours.honest_score_
    assert ours.honest_interval_[0] < ours.oof_score_ < ours.honest_interval_[1]


@pytest.mark.parametrize("passthrough", [False, True])
def test_regressors_are_those_of_scikit_learn(passthrough):
    objective, study = neighbors()
    ours = objective.ensemble(study, stack=Ridge(), passthrough=passthrough)
    members = [(name, KNeighborsRegressor(**m.get_params())) for name, m in ours.estimators]
    theirs = StackingRegressor(members, Ridge(), cv=FOLDS, passthrough=passthrough).fit(ROWS, Y)
    np.testing.assert_allclose(ours.predict(ROWS), theirs.predict(ROWS), rtol=1e-4)
    assert ours.named_estimators_["trial_0"] is ours.estimators_[0]


def test_the_index_of_a_series_does_not_matter():
    order = np.random.default_rng(0).permutation(len(Y))
    objective, study = neighbors()
    expected = objective.ensemble(study, stack=Ridge())
    series = pd.Series(Y, index=order)
    objective, study = searched(KNeighborsRegressor(), (ROWS, series), NEIGHBORS, cv=FOLDS)
    actual = objective.ensemble(study, stack=Ridge())
    assert actual.oof_score_ == expected.oof_score_
    np.testing.assert_array_equal(actual.predict(ROWS), expected.predict(ROWS))


def test_folds_without_a_class_are_refused():
    codes = np.where(np.arange(len(X)) < 4, 2, LABELS == "a")
    objective, study = searched(FOREST, (X, codes), DEPTHS, cv=KFold(3))
    words = "^cv must make training sets with every class of y for stack"
    with pytest.raises(ValueError, match=words):
        objective.ensemble(study, stack=LogisticRegression())


@pytest.mark.parametrize("passthrough", [False, True])
def test_the_score_is_that_of_final_estimators_on_other_folds(passthrough):
    objective, study = forests_of_three_classes()
    ensemble = objective.ensemble(study, stack=LogisticRegression(), passthrough=passthrough)
    columns = [objective.predict_oof(trial, "predict_proba") for trial in study.trials]
    table = np.hstack([*columns, X] if passthrough else columns)
    scores = []
    for train, test in SPLITS.split(X, LABELS):
        converged = LogisticRegression(solver="newton-cholesky", tol=1e-12)
        final = converged.fit(table[train], LABELS[train])
        scores.append(log_loss(LABELS[test], final.predict_proba(table[test])))
    assert ensemble.oof_score_ == pytest.approx(np.mean(scores), rel=1e-5)
    objective, study = neighbors()
    ensemble = objective.ensemble(study, stack=Ridge())
    table = np.column_stack([objective.predict_oof(trial) for trial in study.trials])
    scores = []
    for train, test in FOLDS.split(table):
        predicted = Ridge().fit(table[train], Y[train]).predict(table[test])
        scores.append(mean_squared_error(Y[test], predicted))
    assert ensemble.oof_score_ == pytest.approx(np.mean(scores), rel=1e-5)


def test_weights_reach_the_final_estimator():
    weights = np.random.default_rng(0).integers(1, 5, len(X)).astype(float)
    objective, study = forests(sample_weight=weights)
    ensemble = objective.ensemble(study, stack=LogisticRegression())
    columns = [objective.predict_oof(trial, "predict_proba") for trial in study.trials]
    expected = LogisticRegression().fit(np.hstack(columns), CODES_IN_ORDER, weights)
    np.testing.assert_allclose(ensemble.final_estimator_.coef_, expected.coef_, atol=1e-4)


CODES_IN_ORDER = np.searchsorted(["a", "b", "c"], LABELS)


def test_the_number_of_members_and_sparse_rows():
    rows = sparse.csr_matrix(X)
    objective, study = searched(FOREST, (rows, LABELS), DEPTHS, cv=SPLITS, scoring="log_loss")
    ensemble = objective.ensemble(study, 2, stack=LogisticRegression(), passthrough=True)
    assert len(ensemble.estimators_) == 2
    assert set(ensemble.named_estimators_) < {"trial_0", "trial_1", "trial_2"}
    assert ensemble.predict(rows).shape == (len(X),)


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        (Ridge(), "^stack must be a classifier with predict_proba, got Ridge"),
        (RidgeClassifier(), "^stack must be a classifier with predict_proba, got RidgeClass"),
        ("ridge", "^stack must be a classifier with predict_proba"),
    ],
)
def test_refusals(stack, words):
    objective, study = forests_of_three_classes()
    with pytest.raises(ValueError, match=words):
        objective.ensemble(study, stack=stack)


def test_other_refusals():
    objective, study = neighbors()
    with pytest.raises(ValueError, match="^stack must be a regressor, got LogisticRegression"):
        objective.ensemble(study, stack=LogisticRegression())
    with pytest.raises(ValueError, match="^passthrough must be one of"):
        objective.ensemble(study, stack=Ridge(), passthrough="yes")
    objective, study = neighbors(cv=TimeSeriesSplit(3))
    with pytest.raises(ValueError, match="^cv must test every row once"):
        objective.ensemble(study, stack=Ridge())
