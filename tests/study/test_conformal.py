"""Prediction intervals and sets equal those of MAPIE and of the formulas, and cover new rows."""

from __future__ import annotations

from math import ceil
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.datasets import make_regression
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from studies import searched

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv.study.conformal import Calibration

X, Y = make_regression(260, n_features=5, noise=30.0, random_state=0)
NEW, NEW_Y, X, Y = X[200:], Y[200:], X[:200], Y[:200]
FOLDS = KFold(5, shuffle=True, random_state=1)
ALPHAS = {"alpha": [0.1, 10.0]}
ROWS, CODES = make_classification(
    300, n_features=5, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.3, random_state=0
)
LABELS = np.array(["b", "a", "c"])[CODES]


def ridge(**options):
    return searched(Ridge(), (X, Y), ALPHAS, **{"cv": FOLDS} | options)


def quantile_by_sorting(values, level):
    return np.sort(values)[ceil(level * (len(values) + 1)) - 1]


@pytest.mark.parametrize(
    ("method", "of_mapie", "cv", "level"),
    [
        ("cv+", "plus", FOLDS, 0.8),
        ("minmax", "minmax", FOLDS, 0.9),
        ("jackknife+", "plus", LeaveOneOut(), 0.9),
        ("minmax", "minmax", LeaveOneOut(), 0.8),
    ],
)
def test_intervals_are_those_of_mapie(method, of_mapie, cv, level):
    regression = pytest.importorskip("mapie.regression")
    objective, study = ridge(cv="loo" if isinstance(cv, LeaveOneOut) else cv)
    conformal = objective.conformal(study, method)
    actual = conformal.predict_interval(NEW, level)
    other = regression.CrossConformalRegressor(
        Ridge(**study.best_params), confidence_level=level, method=of_mapie, cv=cv
    )
    expected = other.fit_conformalize(X, Y).predict_interval(NEW)[1][:, :, 0]
    np.testing.assert_allclose(actual, expected, atol=2 * conformal.calibration.rounding)


@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (RandomForestRegressor(5, random_state=0), {"max_depth": [2]}),
        (KNeighborsRegressor(), {"n_neighbors": [5]}),
        (Ridge(), {"alpha": [1.0]}),
        (AveragedSGDRegressor(), {"step_size": [0.01]}),
    ],
)
def test_intervals_are_those_of_the_formula(estimator, grid):
    objective, study = searched(estimator, (X, Y), grid, cv=FOLDS)
    models, oof = objective.fold_models(study), objective.predict_oof(study)
    residuals = np.abs(Y - oof)
    ups, downs = np.empty((len(X), len(NEW))), np.empty((len(X), len(NEW)))
    for model, (_, test) in zip(models, FOLDS.split(X), strict=True):
        predicted = model.predict(NEW)
        ups[test] = predicted + residuals[test, None]
        downs[test] = predicted - residuals[test, None]
    conformal = objective.conformal(study)
    expected = [
        [-quantile_by_sorting(-down, 0.9), quantile_by_sorting(up, 0.9)]
        for down, up in zip(downs.T, ups.T, strict=True)
    ]
    rounding = conformal.calibration.rounding
    np.testing.assert_allclose(conformal.predict_interval(NEW), expected, atol=2 * rounding)
    best = objective.best_estimator(study)
    np.testing.assert_array_equal(conformal.predict(NEW), best.predict(NEW))
    margin = quantile_by_sorting(residuals, 0.8)
    around = objective.conformal(study, "quantile").predict_interval(NEW, 0.8)
    expected = best.predict(NEW)[:, None] + [-margin, margin]
    np.testing.assert_allclose(around, expected, atol=2 * rounding)
    restored = pickle.loads(pickle.dumps(conformal))
    np.testing.assert_array_equal(restored.predict_interval(NEW), conformal.predict_interval(NEW))


def test_jackknife_follows_from_a_study_with_folds():
    objective, study = ridge()
    loo, _ = ridge(cv="loo")
    expected = loo.conformal(study.best_trial, "jackknife+")
    atol = 2 * expected.calibration.rounding
    actual = objective.conformal(study, "jackknife+").predict_interval(NEW)
    np.testing.assert_allclose(actual, expected.predict_interval(NEW), atol=atol)


@pytest.mark.parametrize("estimator", [AveragedSGDRegressor(), Ridge(solver="lsqr")])
def test_jackknife_of_other_models(estimator):
    grid = {"step_size": [0.01]} if hasattr(estimator, "step_size") else {"alpha": [1.0]}
    objective, study = searched(estimator, (X, Y), grid, cv=7)
    conformal = objective.conformal(study, "jackknife+")
    assert len(conformal.models) == len(X)
    low, high = conformal.predict_interval(NEW, 0.9).T
    assert 0.8 < np.mean((low <= NEW_Y) & (NEW_Y <= high)) <= 1


def test_groups_are_units():
    """Doubled rows give the intervals of the single ones; a row's mass is that of its group."""
    objective, study = ridge(cv=GroupKFold(5), groups=np.arange(len(X)))
    single = objective.conformal(study.trials[0])
    arrays = single.calibration.scores, single.calibration.folds, single.calibration.units
    double = Calibration(*(np.repeat(a, 2) for a in arrays), single.calibration.rounding)
    assert double.n_units == len(X)
    assert double.weights.sum() == pytest.approx(len(X) / (len(X) + 1))
    expected = single.predict_interval(NEW)
    single.calibration = double
    np.testing.assert_allclose(single.predict_interval(NEW), expected)
    sizes = np.arange(len(X)) // 4
    objective, study = ridge(cv=GroupKFold(5), groups=sizes)
    grouped = objective.conformal(study)
    assert grouped.calibration.n_units == 50
    with pytest.raises(ValueError, match="^level must be at most 0.9804 with 50 rows or groups"):
        grouped.predict_interval(NEW, 0.99)
    with pytest.raises(ValueError, match="^method must be 'cv\\+' with groups"):
        objective.conformal(study, "jackknife+")


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("method", ["cv+", "quantile"])
def test_sets_are_those_of_the_formula(score, method):
    """Compare with a loop over rows and classes (Romano, Sesia & Candes 2020, eq. 4)."""
    train, test = np.arange(200), np.arange(200, 300)
    estimator, level = LogisticRegression(C=0.1, tol=1e-9), 0.8
    data = ROWS[train], LABELS[train]
    objective, study = searched(estimator, data, {"C": [0.1]}, cv=FOLDS, scoring="log_loss")
    conformal = objective.conformal(study, method, conformity_score=score)

    def of(probabilities, code):
        if score == "lac":
            return 1 - probabilities[code]
        return probabilities[probabilities >= probabilities[code]].sum()

    codes = np.searchsorted(["a", "b", "c"], LABELS[train])
    oof = cross_val_predict(estimator, *data, cv=FOLDS, method="predict_proba")
    scores = np.array([of(p, code) for p, code in zip(oof, codes, strict=True)])
    sets = conformal.predict_set(ROWS[test], level)
    expected = np.empty_like(sets)
    if method == "quantile":
        q = quantile_by_sorting(scores, level)
        new = estimator.fit(*data).predict_proba(ROWS[test])
        expected[:] = [[of(p, code) <= q + 1e-6 for code in range(3)] for p in new]
    else:
        n_smaller = np.zeros(sets.shape)
        for fit_rows, held_out in FOLDS.split(train):
            new = estimator.fit(data[0][fit_rows], data[1][fit_rows]).predict_proba(ROWS[test])
            of_classes = np.array([[of(p, code) for code in range(3)] for p in new])
            n_smaller += (scores[held_out] < of_classes[:, :, None] - 1e-6).sum(axis=2)
        expected[:] = n_smaller < level * (len(train) + 1)
    assert np.mean(sets != expected) < 0.01  # ties within rounding errors
    truth = np.searchsorted(["a", "b", "c"], LABELS[test])
    assert sets[np.arange(100), truth].mean() > 0.7
    np.testing.assert_array_equal(conformal.classes_, ["a", "b", "c"])
    assert 0 < conformal.score(ROWS[test], LABELS[test]) < 1


@pytest.mark.parametrize("method", ["cv+", "quantile"])
def test_equal_probabilities_are_in_the_set(method):
    """A class whose score equals the quantile is in the set, though outputs are rounded."""
    objective, study = searched(
        KNeighborsClassifier(), (ROWS, LABELS), {"n_neighbors": [3]}, cv=FOLDS
    )
    conformal = objective.conformal(study, method)
    calibration = conformal.calibration
    scores, folds = np.round(calibration.scores * 3).astype(int), calibration.folds
    new = ROWS[:50] + 0.01
    if method == "quantile":
        votes = np.round((1 - conformal.predict_proba(new)) * 3).astype(int)
        expected = votes <= quantile_by_sorting(scores, 0.8)
    else:
        n_smaller = np.zeros((len(new), 3))
        for fold, model in enumerate(conformal.models):
            votes = np.round((1 - model.predict_proba(new)) * 3).astype(int)
            n_smaller += (scores[folds == fold] < votes[:, :, None]).sum(axis=2)
        expected = n_smaller < 0.8 * (len(ROWS) + 1)
    np.testing.assert_array_equal(conformal.predict_set(new, 0.8), expected)


def test_equal_residuals_are_in_the_interval():
    """A stump predicts numbers that float32 rounds; its residuals are equal in each leaf."""
    x = np.repeat([[0.0], [1.0]], 60, axis=0)
    y = np.where(x[:, 0] > 0, 0.1, 0.7) + np.tile([-0.1, 0.1], 60)
    cv = KFold(4, shuffle=True, random_state=0)
    objective, study = searched(KNeighborsRegressor(), (x, y), {"n_neighbors": [3]}, cv=cv)
    conformal = objective.conformal(study, "quantile")
    low, high = conformal.predict_interval(x, 0.9).T
    margin = quantile_by_sorting(np.abs(y - objective.predict_oof(study)), 0.9)
    assert np.all(high >= conformal.predict(x) + margin)
    assert np.all(low <= conformal.predict(x) - margin)


def test_folds_without_a_class_are_refused():
    codes = np.where(np.arange(300) < 4, 2, LABELS == "a")
    cv = KFold(3)
    tree = DecisionTreeClassifier(random_state=0)
    objective, study = searched(tree, (ROWS, codes), {"max_depth": [2]}, cv=cv)
    words = "^cv must make training sets with every class of y for prediction sets"
    with pytest.raises(ValueError, match=words):
        objective.conformal(study)


def test_many_trials_on_few_rows_are_warned_about():
    few = X[:90], Y[:90]
    grid = {"alpha": np.logspace(-3, 3, 120).tolist()}
    objective, study = searched(Ridge(), few, grid, cv=FOLDS)
    with pytest.warns(UserWarning, match="the best of 120 trials on 90 rows; use more rows"):
        objective.conformal(study)
    objective.conformal(study.best_trial)  # without a warning, because it was given


@pytest.mark.filterwarnings("error")
def test_tens_of_trials_are_not_warned_about():
    objective, study = ridge()
    objective.conformal(study).predict_interval(NEW)


def test_data_frames_and_lists():
    names = list("abcde")
    frame = pd.DataFrame(X, columns=names)
    objective, study = searched(Ridge(), (frame, Y), ALPHAS, cv=FOLDS)
    conformal = objective.conformal(study)
    expected = conformal.predict_interval(pd.DataFrame(NEW, columns=names))
    plain, plain_study = ridge()
    actual = plain.conformal(plain_study).predict_interval(NEW.tolist())
    np.testing.assert_allclose(actual, expected)


@pytest.mark.parametrize(
    ("options", "method", "words"),
    [
        ({}, "split", "^method must be one of 'cv\\+', 'jackknife\\+', 'minmax', 'quantile', got"),
        ({"sample_weight": np.arange(1.0, 201)}, "cv+", "^sample_weight must be None"),
        ({"cv": 5, "n_repeats": 2}, "cv+", "^cv must test every row once"),
        ({"cv": TimeSeriesSplit(4)}, "cv+", "^method must be 'quantile' for time-ordered"),
        ({"cv": TimeSeriesSplit(4)}, "quantile", "^cv must test every row once"),
    ],
)
def test_what_cannot_be_covered_is_refused(options, method, words):
    objective, study = ridge(**options)
    with pytest.raises(ValueError, match=words):
        objective.conformal(study, method)


def test_other_refusals():
    several = np.column_stack([Y, Y])
    objective, study = searched(Ridge(), (X, several), ALPHAS, cv=FOLDS)
    with pytest.raises(ValueError, match="^y must have one column for intervals, got shape"):
        objective.conformal(study)
    objective, study = searched(SVC(), (ROWS, LABELS), {"C": [1.0]}, cv=FOLDS)
    with pytest.raises(ValueError, match="^prediction sets need an estimator with predict_proba"):
        objective.conformal(study)
    forest = RandomForestClassifier(3, random_state=0)
    objective, study = searched(forest, (ROWS, LABELS), {"max_depth": [2]}, cv=FOLDS)
    with pytest.raises(ValueError, match="^conformity_score must be one of 'lac', 'aps'"):
        objective.conformal(study, conformity_score="raps")
    with pytest.raises(ValueError, match="^method must be one of 'cv\\+', 'quantile'"):
        objective.conformal(study, "minmax")
    forest = RandomForestRegressor(3, random_state=0)
    objective, study = searched(forest, (X, Y), {"max_depth": [2]}, cv=FOLDS)
    with pytest.raises(ValueError, match="leave-one-out would fit 200 models"):
        objective.conformal(study, "jackknife+")
    with pytest.raises(ValueError, match="^level must be between 0 and 1"):
        objective.conformal(study).predict_interval(NEW, 90)
    assert "5 fold models, 200 rows" in repr(objective.conformal(study))
