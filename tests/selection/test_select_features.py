"""``select_features``: the sets and scores of scikit-learn, for every number of features."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes
from sklearn.datasets import make_regression
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler

from optuna_treecv import select_features

FOLDS = KFold(5, shuffle=True, random_state=1)
X, Y = load_diabetes(return_X_y=True)


@cache
def synthetic():
    """Rows whose columns have different scales and large means, and correlate with each other."""
    rows, y = make_regression(200, 24, n_informative=8, noise=30.0, random_state=0)
    rng = np.random.default_rng(1)
    rows = rows @ (np.eye(24) + 0.2 * rng.normal(size=(24, 24)))
    return rows * np.logspace(-1, 2, 24) + 100 * rng.normal(size=24), y


def rows_of(name):
    return (X, Y) if name == "diabetes" else synthetic()


def check_scores(selection, estimator, rows, y, cv, scoring="r2", rtol=1e-9):
    """Compare the scores of every set with those of fits."""
    assert selection.masks.sum(axis=1).tolist() == list(range(1, rows.shape[1] + 1))
    for mask, scores in zip(selection.masks, selection.fold_scores, strict=True):
        expected = cross_val_score(estimator, rows[:, mask], y, cv=cv, scoring=scoring)
        atol = rtol * np.abs(expected).mean()
        np.testing.assert_allclose(scores.ravel(), expected, rtol=rtol, atol=atol)


MODELS = {
    "least squares": LinearRegression(),
    "ridge": Ridge(2.0),
    "without intercept": Ridge(0.1, fit_intercept=False),
    "scaled": make_pipeline(StandardScaler(), Ridge(3.0)),
    "scaled only": make_pipeline(StandardScaler(with_mean=False), LinearRegression()),
}


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("data", ["diabetes", "synthetic"])
def test_sets_and_scores_are_those_of_scikit_learn(data, model, direction):
    rows, y = rows_of(data)
    scoring = "r2" if data == "diabetes" else "neg_root_mean_squared_error"
    selection = select_features(
        MODELS[model], rows, y, cv=FOLDS, direction=direction, scoring=scoring
    )
    check_scores(selection, MODELS[model], rows, y, FOLDS, scoring)
    options = {"cv": FOLDS, "direction": direction, "scoring": scoring}
    expected = SequentialFeatureSelector(MODELS[model], **options).fit(rows[:, :7], y)
    of_seven = select_features(MODELS[model], rows[:, :7], y, **options)
    assert np.array_equal(of_seven.support, expected.support_)
    assert of_seven.support.sum() == of_seven.n_features


def test_each_set_follows_from_the_one_before():
    for direction in ("forward", "backward"):
        selection = select_features(Ridge(), X, Y, direction=direction)
        for number, mask in enumerate(selection.masks, 1):
            assert sorted(selection.order[:number]) == np.flatnonzero(mask).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("number", [1, 3, 0.35, "auto"])
def test_the_number_of_features_is_that_of_scikit_learn(number, direction):
    rows, options = X[:, :9], {"n_features_to_select": number, "direction": direction}
    expected = SequentialFeatureSelector(Ridge(), cv=FOLDS, **options).fit(rows, Y)
    found = select_features(Ridge(), rows, Y, cv=FOLDS, **options)
    assert np.array_equal(found.support, expected.support_)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "tol"),
    [("forward", 0.01), ("forward", 1e-9), ("backward", -0.01), ("backward", 1.0)],
)
def test_the_selection_ends_where_a_step_gains_too_little(direction, tol):
    options = {"cv": FOLDS, "direction": direction, "tol": tol}
    expected = SequentialFeatureSelector(Ridge(0.01), **options).fit(X, Y)
    found = select_features(Ridge(0.01), X, Y, **options)
    assert np.array_equal(found.support, expected.support_)


SPLITS = {
    "hold-out": ShuffleSplit(1, random_state=0),
    "overlapping": ShuffleSplit(4, test_size=0.4, random_state=0),
    "time": TimeSeriesSplit(4),
    "repeated": RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
    "leave-one-out": LeaveOneOut(),
    "pairs": [(np.arange(50, 442), np.arange(30)), (np.arange(300), np.arange(300, 442))],
}


@pytest.mark.slow
@pytest.mark.parametrize("splits", SPLITS)
def test_any_splits(splits):
    cv, scoring = SPLITS[splits], "neg_mean_squared_error"
    rows, y = (X, Y) if splits != "leave-one-out" else (X[:60, :4], Y[:60])
    for direction in ("forward", "backward"):
        options = {"cv": cv, "scoring": scoring, "direction": direction}
        selection = select_features(LinearRegression(), rows, y, **options)
        check_scores(selection, LinearRegression(), rows, y, cv, scoring)


def test_groups_and_repeats():
    groups = np.arange(len(Y)) % 13
    selection = select_features(Ridge(), X, Y, cv=GroupKFold(4), groups=groups)
    splits = list(GroupKFold(4).split(X, Y, groups))
    check_scores(selection, Ridge(), X, Y, splits)
    repeated = select_features(Ridge(), X, Y, cv=4, n_repeats=3)
    assert repeated.fold_scores.shape == (10, 3, 4)
    assert len({*repeated.fold_scores[3].mean(axis=1)}) == 3


@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("estimator", [LinearRegression(), Ridge(0.5)])
def test_float32_is_summed_in_float64(estimator, is_shifted):
    rows = X[:, :6].astype(np.float32) + np.float32(is_shifted)
    selection = select_features(estimator, rows, Y, cv=FOLDS)
    check_scores(selection, estimator, rows.astype(np.float64), Y, FOLDS)


def test_a_frame_gives_names():
    frame, y = load_diabetes(return_X_y=True, as_frame=True)
    selection = select_features(Ridge(), frame, y, cv=FOLDS)
    assert frame.columns[selection.support].tolist() == sorted(
        selection.feature_names[selection.order[:5]], key=frame.columns.get_loc
    )
    table = selection.frame()
    assert isinstance(table, pd.DataFrame)
    assert table.index.tolist() == list(range(1, 11))
    assert table["feature"][1] == "bmi"
    assert np.array_equal(table["mean"], selection.means)
    named = select_features(Ridge(), frame.assign(target=y), "target", cv=FOLDS)
    assert np.array_equal(named.masks, selection.masks)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("estimator", [LinearRegression(), Ridge()])
def test_constant_columns_change_no_score(estimator, direction):
    rows = np.insert(X[:, :6], [0, 4], [0.1, 1e6], axis=1)
    rows[:, 5] = np.where(np.arange(len(rows)) < 90, np.arange(len(rows)), 7)  # in one fold alone
    selection = select_features(
        estimator, rows, Y, direction=direction, cv=KFold(5), scoring="neg_mean_squared_error"
    )
    check_scores(selection, estimator, rows, Y, KFold(5), "neg_mean_squared_error")
    if direction == "backward":  # the last removals are those of constant columns that do no harm
        assert np.all(np.diff(selection.means[::-1])[:2] >= 0)


def test_the_first_of_equal_columns_is_chosen():
    rows = np.column_stack([X[:, [5]], X, X[:, 2], -3 * X[:, 8]])  # 6 and 0, 3 and 11 are equal
    model = make_pipeline(StandardScaler(), Ridge(1.0))
    forward = select_features(model, rows, Y, cv=FOLDS)
    backward = select_features(model, rows, Y, cv=FOLDS, direction="backward")
    for selection, earlier in ((forward, 0), (backward, 1)):
        order = [*selection.order]
        for pair in ((0, 6), (3, 11), (9, 12)):
            first, second = pair if earlier == 0 else pair[::-1]
            assert order.index(first) < order.index(second)
    check_scores(forward, model, rows, Y, FOLDS)


def test_no_test_row_reaches_the_model_of_its_fold():
    """The scores are those of fits, also if the rows of a fold differ from all others."""
    rows, y = X.copy(), Y.copy()
    _, test = list(FOLDS.split(rows))[2]
    rows[test] = np.random.default_rng(0).normal(scale=1e3, size=(len(test), 10))
    y[test] -= 1e6
    scoring = "neg_mean_squared_error"
    for direction in ("forward", "backward"):
        options = {"cv": FOLDS, "scoring": scoring, "direction": direction}
        selection = select_features(Ridge(), rows, y, **options)
        check_scores(selection, Ridge(), rows, y, FOLDS, scoring)


def test_scores_come_with_intervals():
    selection = select_features(LinearRegression(), X, Y, cv=FOLDS)
    means, errors = selection.means, selection.std_errors
    np.testing.assert_allclose(errors, selection.fold_scores[:, 0].std(axis=1, ddof=1) / 5**0.5)
    for interval, mean in zip(selection.intervals, means, strict=True):
        assert interval.low < mean < interval.high
        assert interval.method == "nadeau_bengio"
    hold_out = select_features(LinearRegression(), X, Y, cv=0.25)
    assert hold_out.intervals == [None] * 10
    assert np.isnan(hold_out.std_errors).all()
    assert hold_out.frame()["low"].isna().all()


def test_the_fewest_features_that_are_nearly_as_good():
    selection = select_features(LinearRegression(), X, Y, cv=FOLDS)
    best = int(np.argmax(selection.means))
    losses = selection.fold_scores[best, 0] - selection.fold_scores[:, 0]
    is_near = losses.mean(axis=1) <= losses.std(axis=1, ddof=1) / 5**0.5
    assert selection.fewest == 1 + np.flatnonzero(is_near)[0]
    assert 1 < selection.fewest <= best + 1
    hold_out = select_features(LinearRegression(), X, Y, cv=0.25)
    assert hold_out.fewest == 1 + np.argmax(hold_out.means)


def test_a_perfect_fit_has_r2_but_no_squared_error():
    y = X @ np.arange(10.0)
    selection = select_features(LinearRegression(), X, y, cv=FOLDS)
    np.testing.assert_allclose(selection.fold_scores[-1], 1, rtol=1e-12)
    with pytest.raises(ValueError, match="too few digits for squared errors"):
        select_features(LinearRegression(), X, y, cv=FOLDS, scoring="neg_mean_squared_error")


TWICE = np.column_stack([X, X[:, 2]])


@pytest.mark.parametrize(
    ("estimator", "rows", "options", "reason"),
    [
        (LinearRegression(), TWICE, {}, "columns of X are linearly dependent"),
        (Ridge(1e-12), TWICE, {}, "columns of X are linearly dependent"),
        (LinearRegression(), X * np.logspace(0, 9, 10), {}, "differ too much in scale"),
        (LinearRegression(positive=True), X, {}, "at least not if positive"),
        (Ridge(positive=True), X, {}, "positive=True has no closed form"),
        (make_pipeline(PolynomialFeatures(), Ridge()), X, {}, "a transformer other than"),
        (Ridge(solver="lsqr"), sparse.csr_array(X), {}, "X is sparse"),
        (Ridge(), X[:12], {"cv": 3}, "as many columns as a training set has rows"),
        (Ridge(), X, {"cv": "loo"}, "the score r2 is undefined on a fold"),
        (Ridge(), X, {"scoring": "neg_mean_absolute_error"}, "is not r2 or a negative squared"),
        (Ridge(), X, {"scoring": "squared_error"}, "is not r2 or a negative squared"),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.filterwarnings("ignore:scoring='r2' is not a mean over rows")
def test_models_that_do_not_follow_from_sums_are_refused(
    estimator, rows, options, reason, direction
):
    message = f"^select_features cannot evaluate .*, because .*{reason}.*; use Seq.* instead.$"
    with pytest.raises(ValueError, match=message):
        select_features(estimator, rows, Y[: rows.shape[0]], direction=direction, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": Lasso()}, "estimator must be Ridge or LinearRegression, got Lasso; use "),
        ({"direction": "both"}, "direction must be one of 'forward', 'backward', got 'both'"),
        ({"n_features_to_select": 11}, "must be 'auto', a share .* from 1 to 10, got 11."),
        ({"n_features_to_select": 0.0}, "must be 'auto', a share .* from 1 to 10, got 0.0."),
        ({"n_features_to_select": True}, "must be 'auto', a share .* from 1 to 10, got True."),
        ({"tol": -0.1}, "tol must be None unless .* if direction='forward', got -0.1"),
        ({"tol": "a"}, "tol must be None unless .* if direction='forward', got 'a'"),
        ({"tol": 0.1, "n_features_to_select": 3}, "tol must be None unless .* got 0.1"),
        ({"scoring": ["r2", "neg_mean_squared_error"]}, "scoring must be a single score, got"),
        ({"X": np.where(X > 0.1, np.nan, X)}, "must"),
    ],
)
def test_invalid_arguments_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        select_features(**{"estimator": Ridge(), "X": X, "y": Y, **options})
    with pytest.raises(TypeError, match="unexpected keyword argument 'method'"):
        select_features(Ridge(), X, Y, method="fit")
