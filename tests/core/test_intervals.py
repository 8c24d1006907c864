"""Intervals equal formulas written by hand, numbers of mlr3inferr, and cover what they should."""

from __future__ import annotations

from functools import partial
import warnings

from ids import said
import numpy as np
import optuna
import pytest
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import fbeta_score
from sklearn.metrics import make_scorer
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.scoring import metrics

ONE_PASS = SGDClassifier(max_iter=1, tol=None, random_state=0)


# Numbers of mlr3inferr 0.2.2, by the functions of its classes MeasureCiWaldCV, MeasureCiHoldout
# and MeasureCiCorrectedT in R 4.2, for 60 losses in 5 folds: i <- 0:59; ((i * 37 + 11) %% 61) / 16
# in fold i %% 5.


@pytest.fixture
def example():
    """Return evaluations of the 60 losses: of an estimator that predicts 0, on other targets."""
    numbers = np.arange(60)
    losses = (numbers * 37 + 11) % 61 / 16
    return partial(
        tree_cross_validate,
        DummyRegressor(strategy="constant", constant=0.0),
        np.zeros((60, 1)),
        losses,
        cv=numbers % 5,
        scoring="absolute_error",
        method="fit",
    )


def test_numbers_of_mlr3inferr(example):
    result = example()
    assert result.mean == pytest.approx(1.86979166666667, rel=1e-14)
    ends = {
        ("bayle", 0.95): (1.58922856020615, 2.15035477312719),
        ("bayle", 0.9): (1.63433568538819, 2.10524764794515),
        ("nadeau_bengio", 0.95): (0.237194348933479, 3.502388984399854),
    }
    for (method, level), expected in ends.items():
        interval = result.interval(method, level)
        assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-12)
        assert (interval.method, interval.level) == (method, level)


def test_a_hold_out_of_mlr3inferr(example):
    tested = np.where(np.arange(60) % 5 == 0, 0, -1)
    interval = example(cv=tested).interval()
    ends = (1.1200006008253, 1.6299993991747)
    assert (interval.low, interval.high) == pytest.approx(ends, rel=1e-12)
    assert interval.target == "the score of the tested model on new rows"


def rows_by_hand(result, cut, weights=None):
    """Return the standard error of the mean over rows, from the losses of the rows."""
    n = len(result.row_losses)
    weights = np.ones(n) if weights is None else weights
    shares = np.zeros(n)
    for rows in cut:
        shares[rows] = weights[rows] / weights[rows].sum() / len(cut)
    tested = shares > 0
    losses = result.row_losses[tested].astype(float)
    return np.sqrt(np.sum(shares[tested] ** 2 * (losses - result.mean) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "scoring", "options", "has_weights"),
    [
        (PegasosClassifier(), "error", {}, False),
        (PegasosClassifier(), "error", {}, True),
        (PegasosClassifier(), "hinge", {"n_jobs": 2}, True),
        (PegasosClassifier(), "accuracy", {"order": "random"}, False),
        (AveragedSGDClassifier(loss="log_loss"), "log_loss", {}, False),
        (AveragedSGDClassifier(loss="log_loss"), "neg_log_loss", {}, True),
        (AveragedSGDClassifier(loss="log_loss"), "neg_brier_score", {}, True),
        (ONE_PASS, "error", {}, True),
        (LogisticRegression(), "error", {"method": "fit"}, True),
        (LogisticRegression(), "log_loss", {"method": "fit"}, False),
        (PegasosClassifier(), "error", {"method": "standard"}, False),
    ],
    ids=said,
)
def test_bayle_is_the_variance_over_rows(estimator, scoring, options, has_weights, make_data):
    """The folds have 5 to 20 rows, so that shares of rows differ."""
    X, y = make_data(75, 4)
    ids = np.repeat(np.arange(6), [5, 20, 14, 9, 17, 10])
    weights = np.random.default_rng(1).uniform(0.2, 3.0, 75) if has_weights else None
    given = {"cv": ids, "scoring": scoring, "sample_weight": weights} | options
    result = tree_cross_validate(estimator, X, y, row_losses=True, **given)
    cut = [np.flatnonzero(ids == fold) for fold in range(6)]
    error = rows_by_hand(result, cut, weights)
    assert result.std_error == pytest.approx(error, rel=1e-5)  # row losses are float32
    interval = result.interval("bayle", 0.9)
    half = stats.norm.ppf(0.95) * error
    ends = np.clip([result.mean - half, result.mean + half], *bounds_of(scoring))
    np.testing.assert_allclose([interval.low, interval.high], ends, rtol=1e-5)
    plain = tree_cross_validate(estimator, X, y, **given)
    if plain.scores[scoring]._behind.spreads is not None and np.all(
        np.isfinite(plain.scores[scoring]._behind.spreads)
    ):
        assert plain.std_error == result.std_error


def bounds_of(scoring):
    return (0, 1) if scoring in ("error", "accuracy") else (-np.inf, np.inf)


def test_leave_one_out_is_the_naive_interval(binary):
    result = tree_cross_validate(PegasosClassifier(), *binary, cv="loo")
    n = len(result.test_score)
    assert result.std_error == pytest.approx(np.std(result.test_score) / np.sqrt(n), rel=1e-12)
    assert result.interval().target.startswith(f"the mean score of the {n} fold models")


def test_repeats_take_the_mean_variance(binary):
    """All repeats have the same rows, so they are not taken for more rows."""
    result = tree_cross_validate(PegasosClassifier(), *binary, cv=5, n_repeats=3)
    behind = result.scores["error"]._behind
    means = behind.by_fold.mean(axis=1)
    variances = []
    for repeat in range(3):
        losses = np.concatenate(
            [
                np.repeat([1.0, 0.0], [round(score * size), size - round(score * size)])
                for score, size in zip(
                    behind.by_fold[repeat], 1 / behind.spreads[2, repeat], strict=True
                )
                for size in [round(size)]
            ]
        )
        shares = np.concatenate(
            [np.full(round(1 / one), one / 5) for one in behind.spreads[2, repeat]]
        )
        variances.append(np.sum(shares**2 * (losses - means[repeat]) ** 2))
    assert result.std_error == pytest.approx(np.sqrt(np.mean(variances)), rel=1e-10)
    assert result.std_over_repeats == pytest.approx(np.std(means, ddof=1), rel=1e-12)
    assert tree_cross_validate(PegasosClassifier(), *binary, cv=5).std_over_repeats is None


@pytest.mark.parametrize("n_repeats", [1, 4])
def test_nadeau_bengio(n_repeats, binary):
    options = {"cv": 5, "n_repeats": n_repeats, "scoring": "roc_auc"}
    result = tree_cross_validate(PegasosClassifier(), *binary, **options)
    folds = result.test_score
    j = 5 * n_repeats
    half = stats.t.ppf(0.975, j - 1) * np.sqrt((1 / j + 1 / 4) * np.var(folds, ddof=1))
    interval = result.interval("nadeau_bengio")
    assert interval.low == pytest.approx(result.mean - half, rel=1e-12)
    assert interval.high == pytest.approx(min(1.0, result.mean + half), rel=1e-12)
    assert "expected" in interval.target and "66 other rows" in interval.target


def test_nadeau_bengio_knows_the_sizes_of_a_splitter(binary):
    cv = ShuffleSplit(6, test_size=0.3, random_state=0)
    result = tree_cross_validate(LogisticRegression(), *binary, cv=cv)
    half = stats.t.ppf(0.975, 5) * np.sqrt((1 / 6 + 25 / 58) * np.var(result.test_score, ddof=1))
    interval = result.interval("nadeau_bengio")
    assert interval.high == pytest.approx(min(1.0, result.mean + half), rel=1e-12)
    with pytest.raises(ValueError, match="test rows in common"):
        result.interval("bayle")


def test_hoeffding_counts_the_rows_of_one_fold(binary):
    X, y = binary
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=3)
    half = np.sqrt(np.log(2 / 0.1) / (2 * 27))  # 83 rows in folds of 27 or 28
    interval = result.interval("hoeffding", 0.9)
    assert interval.high == pytest.approx(min(1.0, result.mean + half), rel=1e-12)
    assert interval.target.endswith("3 fold models (each trained on 55 rows) on new rows")
    with pytest.warns(UserWarning, match="wider than the range of scoring='error' .0 to 1"):
        wide = tree_cross_validate(PegasosClassifier(), X, y, cv="loo").interval("hoeffding")
    assert (wide.low, wide.high) == (0.0, 1.0)


def test_hoeffding_takes_a_range(binary):
    result = tree_cross_validate(PegasosClassifier(), *binary, cv=2, scoring="hinge")
    half = 999 * np.sqrt(np.log(2 / 0.05) / (2 * 41))
    interval = result.interval("hoeffding", loss_range=(0, 999))
    assert interval.high == pytest.approx(result.mean + half, rel=1e-12)
    assert interval.low == max(0, result.mean - half)


def test_scores_say_their_own_interval(binary):
    scoring = ["error", "roc_auc", pooled("roc_auc")]
    result = tree_cross_validate(PegasosClassifier(), *binary, cv=5, scoring=scoring)
    assert result.scores["error"].interval() == result.interval()
    auc = result.scores["roc_auc"]
    assert auc.interval("nadeau_bengio").low < auc.mean
    assert auc.std_error == pytest.approx(np.std(auc.test_score, ddof=1) / np.sqrt(5))
    with pytest.raises(
        ValueError, match="'roc_auc', got 'bayle', which needs a score that is a mean"
    ):
        auc.interval()
    with pytest.raises(ValueError, match="a pooled score has only std_error"):
        list(result.scores.values())[2].interval()


def test_unknown_rows_are_asked_for(regression, binary):
    X, y = regression
    with pytest.raises(ValueError, match="row_losses=True or use method='nadeau_bengio'"):
        tree_cross_validate(Ridge(), X, y, cv=5).interval()
    assert tree_cross_validate(Ridge(), X, y, cv=5, row_losses=True).interval().method == "bayle"
    scorer = make_scorer(lambda y, p: float(np.mean(y == p)))
    with pytest.raises(ValueError, match="needs a score that is a mean over rows"):
        tree_cross_validate(PegasosClassifier(), *binary, scoring=scorer).interval()


def test_rows_of_groups_are_not_independent(binary):
    X, y = binary
    groups = np.arange(83) // 4
    for cv in (5, GroupKFold(5), LeaveOneGroupOut()):
        result = tree_cross_validate(PegasosClassifier(), X, y, cv=cv, groups=groups)
        with pytest.warns(UserWarning, match="rows of one group are not"):
            interval = result.interval()
        assert "may be too narrow" in interval.note
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not result.interval("nadeau_bengio").note


def test_an_unstable_learner_is_named():
    """The last iterate of PEGASOS moves far with a small alpha; the average of a large one not."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 50))
    y = (X[:, 0] + 2 * rng.normal(size=20_000) > 0).astype(int)
    for model, options, expected in (
        (PegasosClassifier(alpha=1e-6), {}, "The scores of the folds differ by more"),
        (PegasosClassifier(alpha=1e-6), {"n_repeats": 5}, "The means of 5 repeats have"),
        (PegasosClassifier(alpha=1.0, average=True), {}, ""),
        (PegasosClassifier(alpha=1.0, average=True), {"n_repeats": 5}, ""),
    ):
        result = tree_cross_validate(model, X, y, cv=10, **options)
        note = result.interval().note
        assert note.startswith(expected) and bool(note) == bool(expected)
        assert ("a single model that is trained on all rows" in note) == bool(expected)
        assert repr(result.interval()).count("note=") == bool(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 0}, "level must be between 0 and 1, such as 0.95, got 0"),
        ({"level": 1.0}, "level must be between 0 and 1, such as 0.95, got 1.0"),
        ({"level": "95 %"}, "level must be between 0 and 1, such as 0.95, got '95 %'"),
        ({"level": float("nan")}, "level must be between 0 and 1"),
        ({"level": np.array([0.9])}, "level must be between 0 and 1"),
        ({"method": "normal"}, "method must be one of 'bayle', 'nadeau_bengio', 'hoeffding'"),
        ({"method": ["bayle"]}, "method must be one of"),
        ({"loss_range": (0, 1)}, "loss_range must be None unless method='hoeffding', got"),
        ({"method": "hoeffding", "loss_range": (1, 0)}, "loss_range must be two numbers"),
        ({"method": "hoeffding", "loss_range": 1}, "loss_range must be two numbers"),
        ({"method": "hoeffding", "loss_range": (0, np.inf)}, "loss_range must be two numbers"),
        ({"method": "hoeffding", "loss_range": (0, 0.1)}, "loss_range must include the score"),
    ],
    ids=said,
)
def test_bad_arguments(arguments, message, binary):
    result = tree_cross_validate(PegasosClassifier(), *binary, cv=5)
    with pytest.raises(ValueError, match=f"^{message}"):
        result.interval(**arguments)


def test_no_range_and_no_scores(binary):
    hinge = tree_cross_validate(PegasosClassifier(), *binary, cv=5, scoring="hinge")
    with pytest.raises(ValueError, match="loss_range must be given for method='hoeffding'"):
        hinge.interval("hoeffding")
    auc = tree_cross_validate(PegasosClassifier(), *binary, cv=5, scoring="roc_auc")
    with pytest.raises(ValueError, match="method must be 'nadeau_bengio' for scoring='roc_auc'"):
        auc.interval("hoeffding")
    wild = LSQSGDRegressor(step_size=1e200, radius=np.inf, average=False)
    diverged = tree_cross_validate(wild, *binary, cv=5)
    assert diverged.std_error is None
    with pytest.raises(ValueError, match="a fold is not finite; for example, its model may have"):
        diverged.interval()
    hold_out = tree_cross_validate(PegasosClassifier(), *binary, cv=0.3)
    with pytest.raises(ValueError, match="'bayle' or 'hoeffding' for a single test set"):
        hold_out.interval("nadeau_bengio")


@pytest.mark.parametrize("cv", [0.3, TimeSeriesSplit(4)])
def test_some_scores_have_no_interval(cv, binary):
    result = tree_cross_validate(PegasosClassifier(), *binary, cv=cv, scoring="roc_auc")
    for method in ("bayle", "nadeau_bengio", "hoeffding"):
        with pytest.raises(ValueError, match="no interval is available for scoring='roc_auc' on "):
            result.interval(method)


def test_overlapping_windows_have_an_interval(binary):
    windows = [(np.arange(first), np.arange(first, first + 20)) for first in (30, 40, 50)]
    result = tree_cross_validate(PegasosClassifier(), *binary, cv=windows)
    for method in ("bayle", "nadeau_bengio"):
        with pytest.raises(ValueError, match="method must be 'hoeffding'"):
            result.interval(method)
    with pytest.warns(UserWarning, match="neighbouring rows of a time series"):
        assert result.interval("hoeffding").low < result.mean


@pytest.mark.parametrize(
    ("scoring", "bounds"),
    [
        ("roc_auc", (-np.inf, 1.0)),
        ("f1", (-np.inf, 1.0)),
        ("neg_log_loss", (-np.inf, 0.0)),
        ("hinge", (0.0, np.inf)),
    ],
)
def test_ends_stay_within_the_range_of_the_score(scoring, bounds, binary):
    result = tree_cross_validate(LogisticRegression(), *binary, cv=3, scoring=scoring)
    interval = result.interval("nadeau_bengio", 1 - 1e-9)
    assert bounds[0] <= interval.low < interval.high <= bounds[1]
    assert interval.low == bounds[0] or interval.high == bounds[1]


# Splits that are no folds.


def test_splits_with_common_test_rows_are_not_independent():
    """More splits add no rows: the standard error stays that of the rows."""
    rng = np.random.default_rng(0)
    X, y = np.zeros((500, 1)), (rng.uniform(size=500) < 0.3).astype(int)
    model = DummyClassifier(strategy="constant", constant=0)
    for n_splits in (10, 50):
        cv = ShuffleSplit(n_splits, test_size=0.1, random_state=0)
        result = tree_cross_validate(model, X, y, cv=cv)
        error = np.std(result.test_score, ddof=1) * np.sqrt(1 / n_splits + 1 / 9)
        assert result.std_error == pytest.approx(error, rel=1e-12)
        assert 0.015 < result.std_error < 0.04  # sqrt(0.3 * 0.7 / 500) is 0.02
        assert not result.interval("nadeau_bengio").note
    other = tree_cross_validate(
        DummyClassifier(strategy="stratified", random_state=0), X, y, cv=cv
    )
    d = result.test_score - other.test_score
    expected = np.std(d, ddof=1) * np.sqrt(1 / 50 + 1 / 9)
    assert result.compare(other).std_error == pytest.approx(expected, rel=1e-12)


def test_repeats_of_a_hold_out_are_splits(binary):
    X, y = binary
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=0.2, n_repeats=6)
    half = stats.t.ppf(0.975, 5) * np.sqrt((1 / 6 + 17 / 66) * np.var(result.test_score, ddof=1))
    interval = result.interval("nadeau_bengio")
    ends = np.clip([result.mean - half, result.mean + half], 0, 1)
    np.testing.assert_allclose([interval.low, interval.high], ends, rtol=1e-12)
    assert interval.note == "" and result.std_over_repeats is None
    with pytest.raises(ValueError, match="if folds have test rows in common"):
        result.interval("bayle")


@pytest.mark.parametrize("method", ["treecv", "fit", "standard"])
def test_growing_windows_are_known_whatever_the_method(method, binary):
    options = {"cv": TimeSeriesSplit(4), "method": method}
    result = tree_cross_validate(PegasosClassifier(), *binary, **options)
    with pytest.warns(UserWarning, match="neighbouring rows of a time series"):
        interval = result.interval()
    assert interval.note and "each trained on" not in interval.target
    with pytest.raises(ValueError, match="must be 'bayle' or 'hoeffding' for time series"):
        result.interval("nadeau_bengio")


@pytest.mark.slow
def test_small_folds_of_equal_models_have_no_note():
    y = (np.random.default_rng(0).uniform(size=400) < 0.3).astype(int)
    model = DummyClassifier(strategy="constant", constant=0)
    for cv in (4, 40, 200):
        result = tree_cross_validate(model, np.zeros((400, 1)), y, cv=cv, stratify=False)
        assert result.interval().note == ""


# Comparisons.


IDS_OF_90 = np.repeat([0, 1, 2], [50, 30, 10])


def weak_and_strong(X, y, **options):
    """Return results of a small and of a large penalty."""
    return [
        tree_cross_validate(PegasosClassifier(alpha=alpha), X, y, **options)
        for alpha in (1e-3, 1.0)
    ]


def folds_of_five(X, y):
    """Return the rows of the five folds that ``tree_cross_validate`` makes."""
    cut = (
        tree_cross_validate(PegasosClassifier(), X, y, cv=5).scores["error"]._behind.tested.cuts[0]
    )
    return [cut.test_rows(chunk) for chunk in range(5)]


def test_differences_by_rows_of_groups_warn(binary):
    X, y = binary
    one, other = weak_and_strong(X, y, cv=5, groups=np.arange(83) // 4, row_losses=True)
    with pytest.warns(
        UserWarning, match="compare: the interval assumes that rows are independent"
    ):
        assert one.compare(other).interval.note


def test_scorers_of_ones_own_must_be_the_same(binary):
    mine = make_scorer(fbeta_score, beta=0.1)
    evaluate = partial(tree_cross_validate, LogisticRegression(), *binary, cv=5)
    assert evaluate(scoring=mine).compare(evaluate(scoring=mine)).mean == 0
    with pytest.raises(ValueError, match="^other must be scored by the same metric"):
        evaluate(scoring=mine).compare(evaluate(scoring=make_scorer(fbeta_score, beta=10)))
    names = {"mine": "f1"}
    assert evaluate(scoring=names).compare(evaluate(scoring="f1")).mean == 0


def test_a_difference_by_rows_is_that_of_the_losses(binary):
    X, y = binary
    one, other = weak_and_strong(X, y, cv=5, row_losses=True)
    found = one.compare(other, level=0.9)
    differences = one.row_losses.astype(float) - other.row_losses
    shares = np.zeros(83)
    for rows in folds_of_five(X, y):
        shares[rows] = 1 / 5 / len(rows)
    error = np.sqrt(np.sum(shares**2 * (differences - found.mean) ** 2))
    assert (found.by, found.n_pairs) == ("rows", 83)
    assert found.mean == one.mean - other.mean
    assert found.std_error == pytest.approx(error, rel=1e-12)
    half = stats.norm.ppf(0.95) * error
    ends = (found.mean - half, found.mean + half)
    assert (found.interval.low, found.interval.high) == pytest.approx(ends, rel=1e-12)
    back = other.compare(one)
    assert (back.mean, back.std_error) == (-found.mean, found.std_error)
    assert "by='rows'" in repr(found)


def test_a_difference_by_folds_is_a_paired_t_test(binary):
    X, y = binary
    one, other = weak_and_strong(X, y, cv=7)
    found = one.compare(other)
    paired = stats.ttest_rel(one.test_score, other.test_score)
    assert found.mean / found.std_error == pytest.approx(paired.statistic, rel=1e-12)
    expected = paired.confidence_interval(0.95)
    assert found.interval.low == pytest.approx(expected.low, rel=1e-10)
    assert (found.by, found.n_pairs) == ("folds", 7)


def test_a_difference_by_weighted_rows(make_data):
    X, y = make_data(90, 3)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, 90)
    options = {"sample_weight": weights, "row_losses": True}
    one, other = weak_and_strong(X, y, cv=IDS_OF_90, **options)
    d = one.row_losses.astype(float) - other.row_losses
    shares = np.zeros(90)
    for fold in range(3):
        rows = np.flatnonzero(IDS_OF_90 == fold)
        shares[rows] = weights[rows] / weights[rows].sum() / 3
    error = np.sqrt(np.sum(shares**2 * (d - (one.mean - other.mean)) ** 2))
    assert one.compare(other).std_error == pytest.approx(error, rel=1e-12)
    one, other = weak_and_strong(X, y, cv="loo", **options)
    by_rows = one.compare(other)
    paired = stats.ttest_rel(one.test_score, other.test_score)
    # Each fold counts alike, whatever the weight of its row.
    expected = by_rows.mean / paired.statistic * np.sqrt(89 / 90)
    assert by_rows.std_error == pytest.approx(expected, rel=1e-9)


def test_other_features_and_estimators_compare(binary):
    X, y = binary
    one = tree_cross_validate(PegasosClassifier(), X, y, cv=5, row_losses=True)
    other = tree_cross_validate(LogisticRegression(), X[:, :2], y, cv=5, row_losses=True)
    assert one.compare(other).by == "rows"
    assert one.compare(tree_cross_validate(LogisticRegression(), X, y, cv=5)).by == "folds"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": 6}, "same folds of the same rows, but its folds are different"),
        ({"random_state": 1}, "its folds are different"),
        ({"n_repeats": 2}, "its folds are different"),
        ({"scoring": "hinge"}, "by the same metric, 'error', got a result for 'hinge'"),
        ({"score_weight": np.linspace(1, 2, 83)}, "its score_weight is different"),
    ],
    ids=said,
)
def test_what_does_not_compare(options, message, binary):
    X, y = binary
    one = tree_cross_validate(PegasosClassifier(), X, y, cv=5)
    other = tree_cross_validate(PegasosClassifier(), X, y, **{"cv": 5} | options)
    with pytest.raises(ValueError, match=message):
        one.compare(other)


def test_other_rows_do_not_compare(binary):
    X, y = binary
    evaluate = partial(tree_cross_validate, PegasosClassifier(), cv=5, stratify=False)
    with pytest.raises(ValueError, match="its targets are different"):
        evaluate(X, y).compare(evaluate(X, 1 - y))
    with pytest.raises(ValueError, match="other must be a CVResult, got 0.1"):
        evaluate(X, y).compare(0.1)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        evaluate(X, y).compare(evaluate(X, y), level=5)
    hold_out = partial(tree_cross_validate, PegasosClassifier(), X, y, cv=0.2)
    with pytest.raises(ValueError, match="use row_losses=True in both evaluations"):
        hold_out().compare(hold_out())
    assert hold_out(row_losses=True).compare(hold_out(row_losses=True)).mean == 0


def test_repeats_compare(binary):
    X, y = binary
    cv = RepeatedKFold(n_splits=4, n_repeats=3, random_state=0)
    one, other = weak_and_strong(X, y, cv=cv)
    found = one.compare(other)
    d = one.test_score - other.test_score
    assert found.std_error == pytest.approx(np.std(d, ddof=1) / np.sqrt(4), rel=1e-12)
    assert found.n_pairs == 12


@pytest.mark.parametrize("report", [None, "progressive"])
def test_a_loss_between_0_and_1_is_no_count(monkeypatch, report):
    """Its range does not say that each row scores 0 or 1."""

    def clipped(predicted, y):
        return np.minimum(1.0, np.square(predicted - y))

    def doubled(predicted, y):
        return 2 * clipped(predicted, y)

    of_numbers = [*metrics.LOSSES_FOR["regressor"]]
    of_numbers += [
        metrics.Loss("clipped", "predict", clipped, row_range=(0.0, 1.0)),
        metrics.Loss("doubled", "predict", doubled, row_range=(0.0, 2.0)),
    ]
    monkeypatch.setitem(metrics.LOSSES_FOR, "regressor", of_numbers)
    monkeypatch.setattr(metrics, "LOSSES", {loss.name: loss for loss in of_numbers})
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 3))
    y = 0.3 * rng.normal(size=160)
    reported = []
    for name in ("clipped", "doubled"):
        objective = treecv_objective(
            AveragedSGDRegressor(),
            X,
            y,
            param_grid={"alpha": [0.1]},
            scoring=name,
            cv=5,
            report=report,
        )
        study = optuna.create_study()
        study.optimize(objective, n_trials=1)
        result = objective.evaluate({"alpha": 0.1})
        reported.append([result.std_error, *study.trials[0].intermediate_values.values()])
    np.testing.assert_allclose(2 * np.array(reported[0]), reported[1], rtol=1e-12)
