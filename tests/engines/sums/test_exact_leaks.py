"""No row takes part in the model that tests it, whatever the estimator and the splitter."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_validate

N_ROWS = 60
RNG = np.random.default_rng(0)
X = RNG.poisson(2.0, size=(N_ROWS, 5)) + 0.0
LABELS = np.arange(N_ROWS) % 3
NUMBERS = X @ np.arange(5.0) + RNG.normal(size=N_ROWS)
GROUPS = np.arange(N_ROWS) // 7

ESTIMATORS = [
    Ridge(),
    make_pipeline(StandardScaler(), Ridge()),
    RidgeClassifier(),
    RidgeClassifier(class_weight="balanced"),
    LinearDiscriminantAnalysis(),
    make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3)),
    QuadraticDiscriminantAnalysis(reg_param=0.2),
    GaussianNB(var_smoothing=0.01),
    make_pipeline(StandardScaler(), GaussianNB()),
    MultinomialNB(),
    BernoulliNB(binarize=1.0),
    ComplementNB(),
]
SPLITTERS = [
    KFold(2),
    KFold(9),
    GroupKFold(4),
    LeaveOneOut(),
    TimeSeriesSplit(3),
    ShuffleSplit(3, random_state=0),
]


def said(y, response):
    """Return a number that changes with any prediction, and not with y."""
    return float(np.sum(np.ravel(response) * np.arange(1, np.size(response) + 1)))


def methods(estimator, cv):
    """Return the methods that may evaluate an estimator; naive Bayes is trained further."""
    if "NB(" in str(estimator):
        return {"treecv", "chain", "fit"}
    is_all_but = isinstance(cv, LeaveOneOut) and "balanced" in str(estimator)
    return {"fit" if is_all_but else "exact"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is fitted .* times:UserWarning")
@pytest.mark.parametrize("cv", SPLITTERS, ids=lambda cv: type(cv).__name__)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_targets_of_a_fold_change_nothing_of_its_own_score(estimator, cv):
    is_regressor = "Ridge(" in str(estimator)
    y = NUMBERS if is_regressor else LABELS
    method = "predict" if is_regressor else ("decision_function", "predict_proba")
    scoring = make_scorer(said, response_method=method)
    groups = GROUPS if isinstance(cv, GroupKFold) else None
    kind = {"cv": cv, "groups": groups, "scoring": scoring}
    before = tree_cross_validate(estimator, X, y, **kind)
    assert before.method in methods(estimator, cv)
    splits = list(cv.split(X, y, groups))
    for fold in range(0, len(splits), max(1, len(splits) // 4)):
        other = y.copy()
        test = splits[fold][1]
        other[test] = other[test] * -3 + 7 if is_regressor else (other[test] + 1) % 3
        after = tree_cross_validate(estimator, X, other, **kind)
        assert after.test_score[fold] == pytest.approx(before.test_score[fold], rel=1e-10)
        others = np.delete(np.arange(len(splits)), fold)
        if not isinstance(cv, TimeSeriesSplit | ShuffleSplit):  # the others have trained on them
            assert np.all(after.test_score[others] != before.test_score[others])
