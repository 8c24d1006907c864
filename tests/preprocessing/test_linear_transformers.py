"""Transformers that are linear maps, fitted per fold from moments: equal to those of fits."""

from __future__ import annotations

import numpy as np
import optuna
import pandas as pd
import pytest
from sklearn.base import is_regressor
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.feature_selection import chi2
from sklearn.feature_selection import f_classif
from sklearn.feature_selection import f_regression
from sklearn.feature_selection import mutual_info_classif
from sklearn.feature_selection import r_regression
from sklearn.feature_selection import SelectFdr
from sklearn.feature_selection import SelectFpr
from sklearn.feature_selection import SelectFwe
from sklearn.feature_selection import SelectKBest
from sklearn.feature_selection import SelectPercentile
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.preprocessing.reducers import FREE_PARAMETERS
from optuna_treecv.preprocessing.reducers import why_not_reduced
from optuna_treecv.preprocessing.reducers import widen

RNG = np.random.default_rng(0)
N_ROWS, N_COLUMNS = 150, 8
X = RNG.normal(size=(N_ROWS, N_COLUMNS)) @ RNG.normal(size=(N_COLUMNS, N_COLUMNS))
X = X * np.linspace(0.5, 3, N_COLUMNS) + np.arange(N_COLUMNS) * 4
Y = X @ RNG.normal(size=N_COLUMNS) + RNG.normal(size=N_ROWS) * 3
LABELS = np.digitize(Y, np.quantile(Y, [0.4, 0.7]))
CV = KFold(4, shuffle=True, random_state=0)
TIGHT = {"tol": 1e-10, "max_iter": 100_000}

REGRESSORS = [
    make_pipeline(PCA(3), Ridge()),
    make_pipeline(PCA(), Ridge(0.1)),
    make_pipeline(PCA(0.8), Ridge()),
    make_pipeline(PCA("mle"), Ridge()),
    make_pipeline(PCA(3, svd_solver="full"), LinearRegression()),
    make_pipeline(PCA(4, whiten=True), Lasso(0.1, **TIGHT)),
    make_pipeline(PCA(4, whiten=True), Lasso(0.1, positive=True, **TIGHT)),
    make_pipeline(StandardScaler(), PCA(5), StandardScaler(), ElasticNet(0.1, **TIGHT)),
    make_pipeline(TruncatedSVD(3, algorithm="arpack"), Ridge()),
    make_pipeline(SelectKBest(f_regression, k=3), Ridge()),
    make_pipeline(SelectKBest(r_regression, k=3), StandardScaler(), Ridge()),
    make_pipeline(SelectPercentile(f_regression, percentile=40), Ridge()),
    make_pipeline(SelectFpr(f_regression, alpha=0.1), Ridge()),
    make_pipeline(SelectFdr(f_regression, alpha=0.2), StandardScaler(), Ridge()),
    make_pipeline(SelectFwe(f_regression, alpha=0.2), Ridge()),
    make_pipeline(VarianceThreshold(20.0), Ridge()),
    make_pipeline(MinMaxScaler(), VarianceThreshold(), PCA(3), Ridge()),
    make_pipeline(PCA(4), SelectKBest(f_regression, k=2), Ridge()),
    make_pipeline(PCA(3), PoissonRegressor(**TIGHT)),
]
CLASSIFIERS = [
    make_pipeline(PCA(3), RidgeClassifier()),
    make_pipeline(SelectKBest(k=3), RidgeClassifier(class_weight="balanced")),
    make_pipeline(SelectKBest(f_classif, k=4), StandardScaler(), LinearDiscriminantAnalysis()),
    make_pipeline(PCA(3), QuadraticDiscriminantAnalysis()),
    make_pipeline(PCA(3), StandardScaler(), LogisticRegression(**TIGHT)),
    make_pipeline(SelectKBest(k=4), PCA(2), LogisticRegression(**TIGHT)),
]


def name_of(pipeline):
    steps = [step for _, step in getattr(pipeline, "steps", [("", pipeline)])]
    return "-".join(type(step).__name__ for step in steps)


def equal_scores(pipeline, y, X=X, tolerance=1e-9, cv=CV, **options):
    scoring = "r2" if y.dtype.kind == "f" else "accuracy"
    result = tree_cross_validate(pipeline, X, y, cv=cv, scoring=scoring, **options)
    fits = cross_validate(pipeline, X, y, cv=cv, scoring=scoring)
    np.testing.assert_allclose(result.test_score, fits["test_score"], tolerance, tolerance)
    return result


@pytest.mark.parametrize("pipeline", REGRESSORS, ids=name_of)
def test_scores_of_regressors_equal_those_of_fits(pipeline):
    is_glm = isinstance(pipeline[-1], PoissonRegressor)
    y = np.maximum(Y - Y.min(), 0) / 30 if is_glm else Y
    result = equal_scores(pipeline, y, tolerance=1e-6 if is_glm else 1e-9)
    assert result.method == ("newton" if is_glm else "exact")


@pytest.mark.parametrize("pipeline", CLASSIFIERS, ids=name_of)
def test_predictions_of_classifiers_equal_those_of_fits(pipeline):
    is_glm = isinstance(pipeline[-1], LogisticRegression)
    method = "newton" if is_glm else "exact"
    response = "predict_proba" if hasattr(pipeline, "predict_proba") else "decision_function"
    options = {"cv": CV, "method": response}
    given = {"cv": CV, "response_method": response, "method": method}
    predicted = tree_cross_val_predict(pipeline, X, LABELS, **given)
    expected = cross_val_predict(pipeline, X, LABELS, **options)
    np.testing.assert_allclose(predicted, expected, atol=1e-4 if is_glm else 1e-9)


def test_folds_may_select_other_columns():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=N_ROWS)
    selector = SelectKBest(f_regression, k=2)
    selected = {
        tuple(selector.fit(X[train], noise[train]).get_support()) for train, _ in CV.split(X)
    }
    assert len(selected) > 1
    assert equal_scores(make_pipeline(selector, Ridge()), noise).method == "exact"


def test_two_classes_and_linear_svc_equal_fits():
    labels = LABELS > 0
    pipeline = make_pipeline(PCA(3), LinearSVC(**TIGHT))
    assert equal_scores(pipeline, labels.astype(int)).method == "newton"


def test_missing_values_are_imputed_per_fold_first():
    rng = np.random.default_rng(1)
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), PCA(4), Ridge())
    assert equal_scores(pipeline, Y, holes).method == "exact"


@pytest.mark.parametrize("reducer", [PCA(3), SelectKBest(f_regression, k=3)], ids=name_of)
def test_float32_rows_and_growing_training_sets(reducer):
    pipeline = make_pipeline(reducer, Ridge())
    assert equal_scores(pipeline, Y, X.astype(np.float32), tolerance=1e-4).method == "exact"
    assert equal_scores(pipeline, Y, cv=TimeSeriesSplit(3)).method == "exact"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "name", "values"),
    [
        (make_pipeline(StandardScaler(), PCA(), Ridge()), "pca__n_components", [1, 3, 8]),
        (make_pipeline(SelectKBest(f_regression), Ridge()), "selectkbest__k", [1, 3, 8]),
        (make_pipeline(SelectKBest(f_regression), PCA(2), Ridge()), "selectkbest__k", [2, 5, 8]),
        (make_pipeline(PCA(), LogisticRegression(**TIGHT)), "pca__n_components", [1, 3, 8]),
        (make_pipeline(PCA(), KNeighborsClassifier()), "pca__n_components", [1, 3, 8]),
        (make_pipeline(PCA(), SVC()), "pca__n_components", [1, 3, 8]),
        (make_pipeline(SelectKBest(), SVC()), "selectkbest__k", [1, 3, 8]),
    ],
    ids=lambda value: name_of(value) if isinstance(value, Pipeline) else "",
)
def test_a_search_over_numbers_of_columns_equals_grid_search(pipeline, name, values):
    y = Y if isinstance(pipeline[-1], Ridge) else LABELS
    grid = {name: values}
    if not isinstance(pipeline[-1], KNeighborsClassifier):
        parameter = "alpha" if isinstance(pipeline[-1], Ridge) else "C"
        grid[f"{pipeline.steps[-1][0]}__{parameter}"] = [0.1, 10.0]
    ours = TreeCVSearchCV(pipeline, param_grid=grid, cv=CV).fit(X, y)
    theirs = GridSearchCV(pipeline, grid, cv=CV).fit(X, y)
    found = {str(sorted(p.items())): s for p, s in _scores_of(ours)}
    for params, score in _scores_of(theirs):
        assert found[str(sorted(params.items()))] == pytest.approx(score, abs=1e-9)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-9)


def _scores_of(search):
    results = search.cv_results_
    return zip(results["params"], results["mean_test_score"], strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [*REGRESSORS[:12], *CLASSIFIERS], ids=name_of)
def test_rows_and_labels_of_a_fold_do_not_change_its_model(pipeline):
    rng = np.random.default_rng(1)
    y = Y if is_regressor(pipeline) else LABELS
    splits = list(CV.split(X))
    _, test = splits[1]
    other_X, other_y = X.copy(), y.copy()
    other_X[test[1:]] = rng.normal(size=(len(test) - 1, N_COLUMNS)) * 100
    other_y[test[1:]] = y[test[1:]][::-1]
    method = "newton" if isinstance(pipeline[-1], LogisticRegression) else "exact"
    before = tree_cross_val_predict(pipeline, X, y, cv=CV, method=method)
    after = tree_cross_val_predict(pipeline, other_X, other_y, cv=CV, method=method)
    assert after[test[0]] == pytest.approx(before[test[0]], rel=1e-7, abs=1e-7)


def test_equal_variances_at_the_cut_are_left_to_fits():
    rng = np.random.default_rng(1)
    # The second and the third component have the same variance in each training set.
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.c_[np.cos(angle), np.sin(angle)]
    rows = np.c_[np.tile([3.0, -3.0], 20), circle]
    rows, targets = np.vstack([rows] * 4), np.tile(rng.normal(size=40), 4)
    folds = [np.setdiff1d(np.arange(160), np.arange(40 * i, 40 * i + 40)) for i in range(4)]
    cv = [(train, np.setdiff1d(np.arange(160), train)) for train in folds]
    result = tree_cross_validate(make_pipeline(PCA(2), Ridge()), rows, targets, cv=cv)
    assert result.method == "fit"
    assert "the variances of components 2 and 3 are equal" in result.reason
    assert equal_scores(make_pipeline(PCA(3), Ridge()), targets, rows, cv=cv).method == "exact"


def test_tied_scores_are_left_to_fits():
    tied = np.c_[X, X]
    result = equal_scores(make_pipeline(SelectKBest(f_regression, k=3), Ridge()), Y, tied)
    assert result.method == "fit"
    assert "the scores of a selected and another column are equal" in result.reason
    result = equal_scores(make_pipeline(SelectKBest(f_regression, k=4), Ridge()), Y, tied)
    assert result.method == "exact"


def test_components_without_variance_have_no_effect_before_a_penalised_model():
    rng = np.random.default_rng(1)
    dependent = np.c_[X, X[:, :3] @ rng.normal(size=(3, 2))]
    for k in (8, 9, 10):
        assert equal_scores(make_pipeline(PCA(k), Ridge()), Y, dependent).method == "exact"
    # A scaler would divide them by rounding errors.
    pipeline = make_pipeline(PCA(10), StandardScaler(), Ridge())
    result = tree_cross_validate(pipeline, dependent, Y, cv=CV, scoring="r2")
    assert result.method == "fit"
    assert "the variance of component 10 is small or a rounding error" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize("selector", [SelectPercentile, SelectFdr, SelectFwe])
def test_categories_of_test_rows_select_no_columns(selector):
    """These selectors depend on the number of columns."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(X[:60], columns=list("abcdefgh"))
    table["group"] = np.where(np.arange(60) % 2, "k", "l")
    table.loc[range(6), "group"] = [f"new {i}" for i in range(6)]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoded = make_column_transformer((encoder, ["group"]), remainder="passthrough")
    y = table["a"] + table["b"] + 2 * rng.normal(size=60)
    n_compared = 0
    for share in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9):
        value = 100 * share if selector is SelectPercentile else share
        chosen = selector(f_regression).set_params(**{FREE_PARAMETERS[selector]: value})
        pipeline = make_pipeline(encoded, chosen, Ridge())
        try:
            expected = cross_validate(pipeline, table, y, cv=KFold(4), error_score="raise")
        except ValueError:  # no column is selected
            continue
        result = tree_cross_validate(pipeline, table, y, cv=KFold(4), scoring="r2")
        np.testing.assert_allclose(result.test_score, expected["test_score"], 1e-9)
        n_compared += 1
    assert n_compared > 1


def test_components_with_few_correct_digits_are_left_to_fits():
    rng = np.random.default_rng(1)
    small = 1e-5 * rng.normal(size=(N_ROWS, 4)) * [1, 1.3, 0.8, 1]
    small[:, 0] *= 1e5
    small = small @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    far = rng.normal(size=(N_ROWS, 5)) @ (np.eye(5) + 0.5) + 1e8
    y = small.sum(axis=1) + far.sum(axis=1) - 5e8
    for steps, rows, reason in (
        ([PCA(2, whiten=True), PCA(1)], X, "the variances of scaled components are equal"),
        ([PCA(3), StandardScaler(), PCA(1)], X, "the variances of scaled components are equal"),
        ([PCA(2)], small, "the variance"),
        ([TruncatedSVD(2, algorithm="arpack")], far, "the variance"),
    ):
        result = tree_cross_validate(make_pipeline(*steps, Ridge()), rows, y, cv=CV)
        assert (result.method, reason in result.reason) == ("fit", True), result.reason


def test_slices_of_frames_and_of_wide_rows():
    pipeline = make_pipeline(PCA(svd_solver="full"), DecisionTreeRegressor(random_state=0))
    pipeline.set_output(transform="pandas")
    search = TreeCVSearchCV(pipeline, param_grid={"pca__n_components": [1, 2, 3]}, cv=CV)
    expected = GridSearchCV(pipeline, {"pca__n_components": [1, 2, 3]}, cv=CV).fit(X, Y)
    scores = search.fit(X, Y).cv_results_["mean_test_score"]
    np.testing.assert_allclose(np.sort(scores), np.sort(expected.cv_results_["mean_test_score"]))
    wide = PCA(3, svd_solver="covariance_eigh")
    assert widen(wide, X[:5], {PCA: 4}) is None
    assert widen(wide, X, {PCA: 4}).n_components == 4


def test_constant_columns():
    for value in (0.0, 0.1):
        rows = np.c_[X, np.full(N_ROWS, value)]
        for steps in ([VarianceThreshold(), PCA(3)], [StandardScaler(), PCA(3)]):
            assert equal_scores(make_pipeline(*steps, Ridge()), Y, rows).method == "exact"
        # The score of 0.1 is 0 / 0 only up to rounding errors.
        result = equal_scores(make_pipeline(SelectKBest(f_regression, k=3), Ridge()), Y, rows)
        assert result.method == ("fit" if value else "exact")


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        (make_pipeline(PCA(3, svd_solver="randomized"), Ridge()), "is not exact"),
        (make_pipeline(TruncatedSVD(3), Ridge()), "is not exact"),
        (make_pipeline(SelectKBest(f_classif, k=3), Ridge()), "its score_func is not"),
        (make_pipeline(PCA(3), MinMaxScaler(), Ridge()), "it follows a transformer"),
        (make_pipeline(make_pipeline(PCA(3)), Ridge()), "must be fitted per fold"),
    ],
    ids=lambda value: name_of(value) if isinstance(value, Pipeline) else "",
)
def test_other_transformers_are_left_to_fits_with_a_reason(pipeline, reason):
    if isinstance(pipeline[0], TruncatedSVD):
        pipeline.set_params(truncatedsvd__random_state=0)
    result = tree_cross_validate(pipeline, X, Y, cv=CV, scoring="r2", random_state=0)
    assert result.method == "fit"
    assert reason in result.reason


@pytest.mark.parametrize("score_func", [chi2, mutual_info_classif])
def test_other_scores_of_columns_are_left_to_fits(score_func):
    pipeline = make_pipeline(SelectKBest(score_func, k=3), RidgeClassifier())
    result = tree_cross_validate(pipeline, abs(X), LABELS, cv=CV)
    assert result.method == "fit"


@pytest.mark.slow
def test_wide_rows_and_too_few_rows_per_column_are_left_to_fits():
    rng = np.random.default_rng(1)
    wide = rng.normal(size=(60, 70))
    result = tree_cross_validate(make_pipeline(PCA(3), Ridge()), wide, Y[:60], cv=CV)
    assert (result.method, "at least as many columns" in result.reason) == ("fit", True)
    assert why_not_reduced([], 600, 255, 512) == ""
    assert "513 folds of 255 columns take more than 256 MiB" in why_not_reduced([], 600, 255, 513)
    many = rng.normal(size=(800, 70))
    pipeline = make_pipeline(PCA(3, random_state=0), Ridge())
    result = tree_cross_validate(pipeline, many, many[:, 0], cv=CV)
    assert (result.method, "draws random numbers" in result.reason) == ("fit", True)
    pipeline.set_params(pca__svd_solver="full")
    assert equal_scores(pipeline, many[:, 0], many).method == "exact"


def test_weights_reach_the_model_and_not_the_transformer():
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.1, 3, N_ROWS)
    pipeline = make_pipeline(PCA(3), Ridge())
    result = tree_cross_validate(pipeline, X, Y, cv=CV, scoring="r2", sample_weight=weights)
    assert result.method == "exact"
    expected = []
    for train, test in CV.split(X):
        fitted = pipeline.fit(X[train], Y[train], ridge__sample_weight=weights[train])
        expected.append(fitted.score(X[test], Y[test], sample_weight=weights[test]))
    unweighted = cross_validate(pipeline, X, Y, cv=CV)["test_score"]
    assert np.abs(result.test_score - unweighted).max() > 1e-4
    np.testing.assert_allclose(result.test_score, expected, 1e-9)


def test_invalid_numbers_of_components_are_refused_as_by_fit():
    with pytest.raises(ValueError, match="n_components"):
        tree_cross_validate(make_pipeline(PCA(-1), Ridge()), X, Y, cv=CV)
    with pytest.raises(ValueError, match="n_components=9"):
        tree_cross_validate(make_pipeline(PCA(9), Ridge()), X, Y, cv=CV)
    with pytest.raises(ValueError, match="selects no column|0 feature"):
        tree_cross_validate(make_pipeline(VarianceThreshold(1e9), Ridge()), X, Y, cv=CV)


def test_fitted_slices_equal_fits():
    """Attributes of a PCA that a search has sliced, as those of one with fewer components."""
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    pipeline = make_pipeline(PCA(svd_solver="full"), tree)
    seen = []

    def score(estimator, X, y):
        seen.append(estimator[0])
        return estimator.score(X, y)

    search = TreeCVSearchCV(
        pipeline, param_grid={"pca__n_components": [2, 3, 6]}, cv=CV, scoring=score, refit=False
    )
    search.fit(X, Y)
    assert {fitted.n_components for fitted in seen} == {2, 3, 6}
    trains = [train for train, _ in CV.split(X)]
    for fitted in seen:
        of_sets = [PCA(fitted.n_components, svd_solver="full").fit(X[train]) for train in trains]
        assert any(_are_equal(fitted, expected) for expected in of_sets)


def _are_equal(fitted, expected):
    names = [name for name in vars(expected) if name.endswith("_") and not name.startswith("_")]
    return vars(fitted).keys() == vars(expected).keys() and all(
        np.allclose(getattr(fitted, name), getattr(expected, name), 1e-9, 1e-9) for name in names
    )


@pytest.mark.slow
def test_one_by_one_as_in_a_batch():
    """Trials of a sampler that are evaluated alone have the scores of a grid."""
    pipeline = make_pipeline(StandardScaler(), PCA(), Ridge())
    space = {
        "pca__n_components": optuna.distributions.IntDistribution(1, 8),
        "ridge__alpha": optuna.distributions.FloatDistribution(0.1, 10.0, log=True),
    }
    search = TreeCVSearchCV(pipeline, space, cv=CV, n_trials=12, random_state=0).fit(X, Y)
    for params, score in _scores_of(search):
        expected = cross_validate(pipeline.set_params(**params), X, Y, cv=CV)["test_score"]
        assert score == pytest.approx(expected.mean(), rel=1e-9)
