"""If an engine that "auto" has chosen does not find the models, the folds are fitted.

If the fits fail too, the error is theirs; a method that was asked for by name raises its own.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.sums.regression import RidgeFolds

CV = StratifiedKFold(4)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
LABELS = (X[:, 0] + 0.5 * RNG.normal(size=120) > 0).astype(int)
CONSTANT = np.c_[X[:, 0], np.ones(120), X[:, 2:]]
FAR = np.r_[X[:3] * 1e9, X[3:]]
FAR_AND_SMALL = np.r_[X[:3] * 1e6, X[3:] * 0.1]
ALIKE = np.c_[X, X[:, 0] + 1e-13 * X[:, 1]]

NO_SUMS = "its models cannot be computed from sums over rows ("
INFINITE = "the model of a fold is not finite"

CORNERS = {
    "far rows": (QuadraticDiscriminantAnalysis(), FAR, NO_SUMS),
    "far and small rows": (QuadraticDiscriminantAnalysis(), FAR_AND_SMALL, NO_SUMS),
    "columns alike": (RidgeClassifier(1e-300, class_weight="balanced"), ALIKE, NO_SUMS),
    "large squares": (QuadraticDiscriminantAnalysis(), X * 1e160, NO_SUMS),
    "small squares": (LinearDiscriminantAnalysis(solver="lsqr"), X * 1e-160, INFINITE),
}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::FutureWarning")


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "rows", "why"), CORNERS.values(), ids=CORNERS)
def test_scores_and_predictions_are_those_of_fits(estimator, rows, why):
    given = (estimator, rows, LABELS)
    result = tree_cross_validate(*given, cv=CV, scoring="accuracy")
    assert result.method == "fit"
    assert result.reason.startswith(why)
    assert result.diverged_folds == 0
    np.testing.assert_array_equal(result.test_score, cross_val_score(*given, cv=CV))
    predicted = tree_cross_val_predict(*given, cv=CV)
    np.testing.assert_array_equal(predicted, cross_val_predict(*given, cv=CV))
    for evaluate in (tree_cross_validate, tree_cross_val_predict):
        with pytest.raises(ValueError, match=r"instead\.$"):
            evaluate(*given, cv=CV, method="exact")


def test_repeats_row_losses_and_caches():
    cv = RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    estimator, rows, _ = CORNERS["far and small rows"]
    expected = cross_validate(estimator, rows, LABELS, cv=cv, scoring="accuracy")["test_score"]
    cache = ModelCache()
    for _ in range(2):
        objective = treecv_objective(
            estimator,
            rows,
            LABELS,
            param_grid={"reg_param": [0.0, 0.5]},
            cv=cv,
            scoring="accuracy",
            cache=cache,
        )
        result = objective.evaluate({"reg_param": 0.0})
        assert result.method == "fit"
        np.testing.assert_array_equal(result.test_score, expected)
    assert result.n_updates == 0
    result = tree_cross_validate(estimator, rows, LABELS, cv=CV, row_losses=True)
    missed = cross_val_predict(estimator, rows, LABELS, cv=CV) != LABELS
    np.testing.assert_array_equal(result.row_losses, missed)


def test_only_the_points_that_need_it_are_fitted():
    found = tree_cross_validate_many(
        [QuadraticDiscriminantAnalysis(reg_param=one) for one in (0.0, 0.5, 0.9)],
        FAR_AND_SMALL,
        LABELS,
        cv=CV,
    )
    assert [one.method for one in found] == ["fit", "exact", "exact"]


@pytest.mark.parametrize(
    ("estimator", "rows"),
    [(QuadraticDiscriminantAnalysis(), CONSTANT), (RidgeClassifier(), X * 1e160)],
)
def test_if_fits_fail_too_the_error_is_theirs(estimator, rows):
    with pytest.raises((ValueError, np.linalg.LinAlgError)) as of_fit:
        estimator.fit(rows, LABELS)
    for evaluate in (tree_cross_validate, tree_cross_val_predict):
        with pytest.raises(type(of_fit.value)) as raised:
            evaluate(estimator, rows, LABELS, cv=CV)
        assert str(raised.value) == str(of_fit.value)
        assert "The folds were refitted one by one, because" in "".join(raised.value.__notes__)
        with pytest.raises(ValueError, match=r"instead\.$"):
            evaluate(estimator, rows, LABELS, cv=CV, method="exact")


@pytest.mark.parametrize("scale", [1e154, 1e300])
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_a_discriminant_of_huge_numbers_is_refused_in_words(scale, method):
    """The error of ``fit`` is that of an index, or with some versions of SciPy one of values."""
    said = "X must consist of numbers whose squares can be summed in float64, got larger numbers"
    with pytest.raises((IndexError, ValueError)) as of_fit:
        LinearDiscriminantAnalysis().fit(X * scale, LABELS)
    if method == "auto" and isinstance(of_fit.value, ValueError):
        said = str(of_fit.value)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        tree_cross_validate(LinearDiscriminantAnalysis(), X * scale, LABELS, cv=CV, method=method)


ONE_CLASS_FIRST = np.r_[np.zeros(20, int), np.arange(40) % 2]
APART = RNG.normal(size=(60, 2)) + 6 * ONE_CLASS_FIRST[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("C", [1.0, np.inf], ids=["found", "separable"])
def test_a_score_that_is_defined_is_kept_beside_one_that_is_not(C):
    """The first fold tests a single class, on which scikit-learn has no log loss."""
    kind = {"cv": KFold(3), "scoring": ["accuracy", "neg_log_loss"]}
    rows = APART, ONE_CLASS_FIRST
    with pytest.raises(ValueError, match="'neg_log_loss' is undefined .*only one label"):
        tree_cross_validate(LogisticRegression(C=C), *rows, **kind)
    accuracy = tree_cross_validate(
        LogisticRegression(C=C), *rows, **kind | {"scoring": "accuracy"}
    )
    expected = cross_validate(LogisticRegression(C=C), *rows, **kind)
    np.testing.assert_array_equal(accuracy.test_score, expected["test_accuracy"])
    grid = {"param_grid": {"C": [C]}, "refit": "accuracy", "error_score": np.nan}
    search = TreeCVSearchCV(LogisticRegression(), random_state=0, **grid, **kind).fit(*rows)
    expected = GridSearchCV(LogisticRegression(), **grid, **kind).fit(*rows).cv_results_
    for name in expected:
        if "test" in name and "rank" not in name:
            np.testing.assert_allclose(search.cv_results_[name], expected[name], atol=1e-4)


@pytest.mark.slow
def test_a_model_that_newton_does_not_find_is_an_error_if_it_was_asked_for():
    given = (LogisticRegression(C=np.inf), APART, ONE_CLASS_FIRST)
    options = {"cv": KFold(3), "method": "newton"}
    for scoring in ("neg_log_loss", ["error", "accuracy"]):
        with pytest.raises(ValueError, match="^method='newton' cannot .* because Newton"):
            tree_cross_validate(*given, scoring=scoring, **options)
    with pytest.raises(ValueError, match="Newton's method does not converge in a fold"):
        tree_cross_val_predict(*given, response_method="predict_proba", **options)


@pytest.mark.parametrize(
    ("kind", "scoring"),
    [
        (KNeighborsClassifier, "neg_log_loss"),
        (KNeighborsClassifier, "accuracy"),
        (KNeighborsRegressor, "r2"),
        (KNeighborsRegressor, "squared_error"),
    ],
)
def test_distances_that_are_no_numbers(kind, scoring):
    """A row of one column has no correlation with another."""
    estimator = kind(metric="correlation", weights="distance")
    rows = X[:, :1], LABELS

    def attempt(method):
        try:
            result = tree_cross_validate(estimator, *rows, cv=CV, scoring=scoring, method=method)
        except ValueError as error:
            return str(error)
        return result.test_score.tolist()

    assert attempt("auto") == attempt("fit")
    if scoring != "accuracy":  # the classes follow from votes that are no numbers in fit too
        assert "a prediction is not finite" in attempt("neighbors")


def test_a_score_that_is_not_finite_costs_no_fits():
    """The squares of these errors are infinite, whoever fits the models."""
    y = X[:, 0] + RNG.normal(size=120)
    result = tree_cross_validate(Ridge(), X, y * 1e200, cv=4)
    assert (result.method, result.diverged_folds) == ("exact", 4)


@pytest.mark.parametrize("error", [TypeError, IndexError, MemoryError])
def test_an_error_of_ours_is_not_hidden_by_fits(monkeypatch, error):
    def fail(*arguments):
        raise error("ours")

    monkeypatch.setattr(RidgeFolds, "_squared_errors", fail)
    monkeypatch.setattr(RidgeFolds, "write_outputs", fail)
    for evaluate in (tree_cross_validate, tree_cross_val_predict):
        with pytest.raises(error, match="ours"):
            evaluate(Ridge(), X, X[:, 0], cv=4)
    with pytest.raises(error, match="ours"):
        tree_cross_validate_many([Ridge(1.0), Ridge(2.0)], X, X[:, 0], cv=4)


def test_an_error_of_a_step_leads_to_fits():
    """The function of a step is code of others, and may raise what it likes."""
    values = []

    def identity(value):
        values.append(value)
        if len(values) == 50:
            raise KeyError("fiftieth")
        return value

    steps = FunctionTransformer(np.frompyfunc(identity, 1, 1))
    result = tree_cross_validate(make_pipeline(steps, Ridge()), X, X[:, 0], cv=KFold(4))
    assert result.method == "fit"
    assert result.reason == (
        NO_SUMS + "estimator must have steps that accept the rows of X, got KeyError('fiftieth'))"
    )
    expected = cross_validate(Ridge(), X, X[:, 0], cv=KFold(4), scoring="neg_mean_squared_error")
    np.testing.assert_allclose(result.test_score, -expected["test_score"], rtol=1e-9)


def test_an_error_of_a_metric_leads_to_fits():
    """Neighbours are searched for by a function of others."""
    calls = []

    def distance(one, other):
        calls.append(one)
        if len(calls) == 3000:
            raise KeyError("late")
        return np.abs(one - other).sum()

    estimator = KNeighborsClassifier(metric=distance, algorithm="brute")
    result = tree_cross_validate(estimator, X, LABELS, cv=2)
    assert result.method == "fit"
    assert "KeyError('late')" in result.reason
