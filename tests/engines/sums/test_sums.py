"""The method "exact" beside scikit-learn's own cross-validation, which fits each fold."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import optuna
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import TransformerMixin
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.linear_model import HuberRegressor
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler

from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.sums.regression import RidgeFolds
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.plans.family import CachedSums
from optuna_treecv.preprocessing.decisions import why_not_rowwise
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.layout import RowLayout

# Splitters without groups get them here too.
pytestmark = pytest.mark.filterwarnings("ignore:The groups parameter is ignored")

N_ROWS, N_COLUMNS = 60, 6
ALPHAS = [1e-3, 1.0, 1e4]


def numbers(seed=0, n_rows=N_ROWS):
    """Return rows with a dummy, a constant and a far column, numbers and three classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, N_COLUMNS)) * [1, 10, 0.1, 1, 1, 1]
    X[:, 2] += 2
    X[:, 3] = rng.random(n_rows) < 0.2
    X[:, 4] = 3.0
    y = X @ rng.normal(size=N_COLUMNS) + rng.normal(size=n_rows)
    codes = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    return X, y, np.array(["low", "mid", "top"])[codes]


X, Y, LABELS = numbers()
GROUPS = np.random.default_rng(1).integers(0, 7, N_ROWS)
SPLITTERS = {
    "2": KFold(2, shuffle=True, random_state=0),
    "10": KFold(10),
    "n": LeaveOneOut(),
    "groups": GroupKFold(5),
    "time": TimeSeriesSplit(2, test_size=12),
    "time with a gap": TimeSeriesSplit(3, gap=4, test_size=9),
    "window": TimeSeriesSplit(2, max_train_size=34, test_size=12),
    "draws": ShuffleSplit(3, random_state=0),
    "repeats": RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
    "some untested": PredefinedSplit(np.random.default_rng(2).integers(-1, 4, N_ROWS)),
}
REGRESSORS = {
    "ridge": Ridge(),
    "no intercept": Ridge(fit_intercept=False),
    "cholesky": Ridge(solver="cholesky"),
    "scaler": make_pipeline(StandardScaler(), Ridge()),
    "scaler, no intercept": make_pipeline(StandardScaler(), Ridge(fit_intercept=False)),
    "scaler without mean": make_pipeline(
        StandardScaler(with_mean=False), Ridge(fit_intercept=False)
    ),
    "scaler without std": make_pipeline(StandardScaler(with_std=False), Ridge()),
    "steps": make_pipeline(Normalizer(), PolynomialFeatures(2), StandardScaler(), Ridge()),
    "passthrough": make_pipeline("passthrough", make_pipeline(StandardScaler(), Ridge())),
}
CLASSIFIERS = {
    "ridge": RidgeClassifier(),
    "no intercept": RidgeClassifier(fit_intercept=False),
    "scaler": make_pipeline(StandardScaler(), RidgeClassifier()),
    "class weights": RidgeClassifier(class_weight={"top": 5.0}),
    "balanced": make_pipeline(StandardScaler(), RidgeClassifier(class_weight="balanced")),
}


def assert_same(scores, expected):
    """A single row may have an error next to 0, so that the largest score is the measure."""
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def alpha_of(estimator):
    return next(name for name in estimator.get_params() if name.endswith("alpha"))


def with_alphas(estimator):
    return [clone(estimator).set_params(**{alpha_of(estimator): alpha}) for alpha in ALPHAS]


_, CASES = pairs(
    splitter=SPLITTERS,
    number=range(len(ALPHAS)),
    is_weighted=[False, True],
    where=lambda splitter, is_weighted, **_: not (splitter == "n" and is_weighted),
)


def squared_errors_of_fits(estimator, X, y, cv):
    return -cross_val_score(estimator, X, y, cv=cv, scoring="neg_mean_squared_error")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("splitter", "number", "is_weighted", "name"),
    [(*case, name) for case, name in zip(CASES, cycle(REGRESSORS), strict=False)],
)
def test_regressors_score_as_fits_do(name, splitter, number, is_weighted):
    """All values of alpha are evaluated together, and one of them is fitted."""
    estimators = with_alphas(REGRESSORS[name])
    options = {"cv": SPLITTERS[splitter], "groups": GROUPS}
    if is_weighted:
        weights = np.random.default_rng(3).uniform(0.1, 4, N_ROWS)
        weights[::9] = 0
        options["sample_weight"] = weights
    # Squared errors alone come from moments.
    for scoring in (
        "neg_mean_squared_error",
        ["neg_mean_squared_error", "neg_mean_absolute_error"],
    ):
        results = tree_cross_validate_many(estimators, X, Y, scoring=scoring, **options)
        assert {result.method for result in results} == {"exact"}
        expected = tree_cross_validate(
            estimators[number], X, Y, scoring=scoring, method="fit", **options
        )
        assert_same(results[number].test_score, expected.test_score)
    assert_same(
        results[number].scores["neg_mean_absolute_error"].test_score,
        expected.scores["neg_mean_absolute_error"].test_score,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("splitter", "number", "n_classes", "name"),
    [
        (splitter, number, 2 + is_three, name)
        for (splitter, number, is_three), name in zip(CASES, cycle(CLASSIFIERS), strict=False)
    ],
)
def test_classifiers_score_as_fits_do(name, n_classes, splitter, number):
    y = LABELS if n_classes == 3 else np.where(LABELS == "low", "low", "top")
    estimators = with_alphas(CLASSIFIERS[name])
    options = {"cv": SPLITTERS[splitter], "groups": GROUPS, "scoring": "accuracy"}
    results = tree_cross_validate_many(estimators, X, y, **options)
    method = "fit" if (name, splitter) == ("balanced", "n") else "exact"
    assert {result.method for result in results} == {method}
    expected = cross_val_score(estimators[number], X, y, error_score="raise", **options)
    np.testing.assert_array_equal(results[number].test_score, expected)


@pytest.mark.parametrize("scoring", ["squared_error", "absolute_error"])
@pytest.mark.parametrize("model", [Ridge(), Ridge(fit_intercept=False)], ids=str)
def test_float32_is_computed_in_float64(model, scoring):
    small, options = X.astype(np.float32), {"cv": KFold(5), "scoring": scoring}
    result = tree_cross_validate(model, small, Y, **options)
    wide = tree_cross_validate(model, small.astype(np.float64), Y, **options)
    np.testing.assert_array_equal(result.test_score, wide.test_score)


SPARSE = sparse.random(200, 30, density=0.2, random_state=0, format="csr")
Y_OF_SPARSE = SPARSE @ np.arange(30.0) + np.sin(np.arange(200))


@pytest.mark.slow
@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("solver", ["auto", "sparse_cg", "lsqr", "sag", "cholesky"])
def test_sparse_rows_have_the_models_of_converged_solvers(solver, has_intercept):
    estimator = Ridge(fit_intercept=has_intercept, solver=solver, tol=0.1, random_state=0)
    options = {"cv": KFold(4), "scoring": "r2"}
    if solver == "cholesky" and has_intercept:
        with pytest.raises(ValueError, match="does not support fitting the intercept"):
            tree_cross_validate(estimator, SPARSE, Y_OF_SPARSE, **options)
        return
    result = tree_cross_validate(estimator, SPARSE, Y_OF_SPARSE, **options)
    assert result.method == "exact"
    dense = clone(estimator).set_params(solver="svd")
    dense = tree_cross_validate(dense, SPARSE.toarray(), Y_OF_SPARSE, **options)
    np.testing.assert_array_equal(result.test_score, dense.test_score)
    converged = clone(estimator).set_params(tol=1e-12, max_iter=100_000)
    expected = cross_val_score(converged, SPARSE, Y_OF_SPARSE, cv=KFold(4))
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)


def test_many_sparse_columns_are_fitted_unless_they_are_asked_for():
    wide = sparse.random(300, 200, density=0.1, random_state=0, format="csr")
    y = wide @ np.arange(200.0)
    result = tree_cross_validate(Ridge(), wide, y, cv=4)
    assert result.reason == (
        "an iterative solver takes less time for sparse X with more than 150 columns"
    )
    assert tree_cross_validate(Ridge(), wide, y, cv=4, method="exact").method == "exact"
    objective = treecv_objective(Ridge(), wide, y, param_grid={"alpha": [0.1, 1.0]}, cv=4)
    assert objective.evaluate({"alpha": 1.0}).method == "exact"
    result = tree_cross_validate(LinearRegression(), SPARSE, Y_OF_SPARSE, cv=4)
    assert result.reason == "lsqr takes less time for sparse rows"


def test_a_score_near_perfection_keeps_its_digits():
    """From moments, an error of 1e-9 of the squares would be their rounding errors."""
    y = X @ np.arange(1.0, 7) + 1e-7 * Y
    scores = tree_cross_validate(Ridge(1e-9), X, y, cv=KFold(5), scoring="squared_error")
    expected = squared_errors_of_fits(Ridge(1e-9), X - X.mean(axis=0), y, KFold(5))
    np.testing.assert_allclose(scores.test_score, expected, rtol=1e-5)


def test_explain_names_the_parameters_that_are_ignored():
    ignored = (
        "Models are solved to convergence, so solver, tol, max_iter and random_state are ignored."
    )
    for estimator, rows, is_said in (
        (Ridge(), SPARSE, True),
        (Ridge(solver="sag"), SPARSE.toarray(), True),
        (Ridge(), SPARSE.toarray(), False),
        (Ridge(solver="cholesky", fit_intercept=False), SPARSE, False),
    ):
        objective = treecv_objective(estimator, rows, Y_OF_SPARSE, param_grid={"alpha": [0.1, 1]})
        assert (ignored in objective.explain()) == is_said
    searched = treecv_objective(Ridge(), SPARSE, Y_OF_SPARSE, param_grid={"tol": [0.1, 1e-4]})
    assert "tol is searched, which has no effect on converged models" in searched.explain()


def test_the_objective_explains_itself():
    scaled = make_pipeline(StandardScaler(), Ridge())
    grid = {"ridge__alpha": [1e-3, 1.0]}
    lines = treecv_objective(scaled, X, Y, param_grid=grid).explain()
    assert "method='exact', because its models are computed from sums over rows" in lines
    assert "ridge__alpha are nearly free" in lines
    fitted = treecv_objective(HuberRegressor(), X, Y, param_grid={"alpha": [0.1, 1.0]})
    assert "method='fit', because models of HuberRegressor" in fitted.explain()
    requested = treecv_objective(Ridge(), X, Y, param_grid={"alpha": [0.5]}, method="fit")
    assert "as requested" in requested.explain({"alpha": 0.5})
    rows, y, _ = numbers(n_rows=1100)
    lines = treecv_objective(scaled, rows, y, cv="loo", param_grid=grid).explain()
    assert "cv=1000 takes a fraction of this time" in lines
    with pytest.raises(ValueError, match="^params must be given if a callable"):
        treecv_objective(lambda trial: Ridge(), X, Y).explain()


def test_no_number_depends_on_threads_or_on_other_candidates():
    estimators, scoring = with_alphas(Ridge()), "absolute_error"
    for cv in (7, KFold(7), "loo", TimeSeriesSplit(4)):
        together, in_threads = (
            tree_cross_validate_many(estimators, X, Y, cv=cv, scoring=scoring, n_jobs=n_jobs)
            for n_jobs in (1, 3)
        )
        for estimator, result, other in zip(estimators, together, in_threads, strict=True):
            alone = tree_cross_validate(estimator, X, Y, cv=cv, scoring=scoring).test_score
            np.testing.assert_allclose(alone, result.test_score, atol=1e-12 * alone.max())
            np.testing.assert_array_equal(result.test_score, other.test_score)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_a_study_reads_the_rows_once(batch_size):
    rows, y, _ = numbers(n_rows=2000)
    grid = {"ridge__alpha": [1.0, 2.0, 3.0, 4.0]}
    model = make_pipeline(StandardScaler(), Ridge())
    objective = treecv_objective(model, rows, y, param_grid=grid, batch_size=batch_size)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    study.optimize(objective)
    assert [one.user_attrs["treecv"]["n_updates"] for one in study.trials] == [2000, 0, 0, 0]
    for trial in study.trials:
        fresh = tree_cross_validate(model.set_params(**trial.params), rows, y)
        assert fresh.mean == pytest.approx(trial.value, rel=1e-12)


@pytest.mark.slow
def test_a_store_saves_the_sums_of_the_next_process(store_url):
    rows, y, _ = numbers(n_rows=100_000)
    first, again = (
        treecv_objective(
            *(Ridge(), rows, y),
            param_grid={"alpha": [1.0]},
            scoring="absolute_error",
            store=store_url,
            cache=ModelCache(),
        ).evaluate({"alpha": 1.0})
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.test_score, again.test_score)
    assert (first.n_updates, again.n_updates, again.n_updates_saved) == (100_000, 0, 100_000)


class Subclass(Ridge):
    """Its fit may be another one."""


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (Subclass(), "models of Subclass are not computed from sums over rows"),
        (HuberRegressor(), "models of HuberRegressor are not computed from sums over rows"),
        (Ridge(solver="lbfgs", positive=True), "positive=True has no closed form"),
        (Ridge(positive=True), "positive=True has no closed form"),
        (Ridge(alpha=np.ones(1)), "alpha is not a number"),
        (
            make_pipeline(MaxAbsScaler(), Ridge()),
            "the step 'maxabsscaler' must be fitted per fold: MaxAbsScaler learns from the rows",
        ),
        (Ridge(alpha=0), "alpha=0 has no unique model if columns are linearly dependent"),
        (
            make_pipeline(PolynomialFeatures(4), Ridge()),
            "X has at least as many columns as a training set has rows",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_are_fitted_and_the_result_says_why(estimator, why):
    result = tree_cross_validate(estimator, X, Y, cv=3)
    assert (result.method, result.reason) == ("fit", why)
    if why.startswith("alpha=0"):
        return
    with pytest.raises(ValueError, match="^method='exact' cannot evaluate this") as caught:
        tree_cross_validate(estimator, X, Y, cv=3, method="exact")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("estimator", "y", "kind", "said"),
    [
        (Ridge(), Y, {"order": "random"}, r"^order must be 'fixed'"),
        (Ridge(alpha=0), Y, {}, r"^alpha must be above 0 if columns of X are linearly dep"),
        (RidgeClassifier(), np.arange(N_ROWS) // 20, {"cv": GroupKFold(3)}, "lacks a class"),
    ],
)
def test_bad_input(estimator, y, kind, said):
    groups = np.arange(N_ROWS) // 20 if "cv" in kind else None
    with pytest.raises(ValueError, match=said):
        tree_cross_validate(estimator, X, y, method="exact", groups=groups, **kind)


def test_alpha_0_with_full_rank():
    rows = X[:, [0, 1, 2, 3, 5]]
    result = tree_cross_validate(Ridge(0), rows, Y, cv=KFold(5), method="exact")
    expected = squared_errors_of_fits(Ridge(0), rows, Y, KFold(5))
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)


def test_a_fold_that_lies_far_away():
    """The squares of such rows hide all others, so that models come from the rows themselves."""
    rows = X[:, [0, 1, 2, 3, 5]].copy()
    rows[:12] += 1e9
    for alpha in (1e-3, 1.0, 1e3):
        result = tree_cross_validate(Ridge(alpha), rows, Y, cv=KFold(5), scoring="absolute_error")
        expected = []
        for train, test in KFold(5).split(rows):
            fitted = Ridge(alpha, solver="svd").fit(rows[train], Y[train])
            expected.append(np.abs(fitted.predict(rows[test]) - Y[test]).mean())
        np.testing.assert_allclose(result.test_score[1:], expected[1:], rtol=1e-5)


@pytest.mark.parametrize(("name", "splitter"), [("ridge", "10"), ("scaler", "some untested")])
def test_all_ways_agree_where_memory_is_scarce(name, splitter, monkeypatch):
    """Sums of few chunks are held, chunks are read twice, and nothing is cached."""
    options = {"cv": SPLITTERS[splitter], "scoring": "absolute_error"}
    usual = tree_cross_validate(REGRESSORS[name], X, Y, **options)
    monkeypatch.setattr("optuna_treecv.numerics.moments.MAX_BYTES", 0)
    monkeypatch.setattr("optuna_treecv.engines.sums.family._MAX_BYTES", 0)
    scarce = tree_cross_validate(REGRESSORS[name], X, Y, **options)
    np.testing.assert_allclose(scarce.test_score, usual.test_score, rtol=1e-11)


def test_few_records_are_held_where_memory_is_scarce(monkeypatch):
    layout = RowLayout(padded=True, sparse=True, target="number")
    rows = Data(X, Y).prepare(layout, np.arange(len(Y), dtype=np.uint32))
    family = RidgeFolds([Ridge()], rows, None, 1)
    chunks = Chunks(len(Y), np.arange(0, 41, 5))
    usual = np.concatenate([out for _, out in family.test(chunks, CachedSums(), 7)], 1)
    monkeypatch.setattr("optuna_treecv.engines.sums.family._MAX_BYTES", 8 * family.size * 3)
    folds, tested = zip(*family.test(chunks, CachedSums(), 1000), strict=True)
    assert folds == (slice(0, 3), slice(3, 6), slice(6, 8))
    np.testing.assert_array_equal(np.concatenate(tested, 1), usual)


class ByRow(TransformerMixin, BaseEstimator):
    """Needs no fit, which does not say that it looks at one row at a time."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X - np.mean(X, axis=0)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (FunctionTransformer(lambda X: X + 1), "its function may use all rows"),
        (
            FunctionTransformer(np.exp2, kw_args={"casting": "same_kind"}),
            "its function may use all rows",
        ),
        (FunctionTransformer(lambda X: X - X[0]), "its function may use all rows"),
        (ByRow(), "ByRow learns from the rows"),
        (OneHotEncoder(drop="first", handle_unknown="ignore"), "a training set lacks a category"),
    ],
    ids=["function", "arguments", "first row", "declared", "categories"],
)
def test_steps_that_may_mix_rows_are_fitted_by_fold(step, why):
    model = make_pipeline(step, Ridge())
    result = tree_cross_validate(model, X, Y, cv=KFold(3))
    name = model.steps[0][0]
    assert result.method == "fit"
    assert result.reason == f"the step {name!r} must be fitted per fold: {why}"
    assert_same(result.test_score, squared_errors_of_fits(model, X, Y, KFold(3)))


def test_a_ufunc_that_sees_whole_rows_may_mix_them():
    assert why_not_rowwise(FunctionTransformer(np.matmul))
    assert not why_not_rowwise(FunctionTransformer(np.log1p))
    assert not why_not_rowwise(FunctionTransformer())


@pytest.mark.parametrize(
    "step",
    [
        AdditiveChi2Sampler(),
        Binarizer(threshold=0.5),
        FunctionTransformer(np.sqrt),
        Normalizer("max"),
        PolynomialFeatures(2, interaction_only=True),
        SimpleImputer(strategy="constant", keep_empty_features=True),
    ],
    ids=str,
)
def test_steps_that_transform_each_row_for_itself_are_done_once(step):
    model = make_pipeline(step, Ridge())
    rows = np.abs(X)
    result = tree_cross_validate(model, rows, Y, cv=KFold(3))
    assert result.method == "exact"
    assert_same(result.test_score, squared_errors_of_fits(model, rows, Y, KFold(3)))


def test_results_of_methods_do_not_mix():
    cache, options = ModelCache(), {"param_grid": {"alpha": [1.0]}}
    fit, exact = (
        treecv_objective(Ridge(), X, Y, method=method, cache=cache, **options).evaluate(
            {"alpha": 1.0}
        )
        for method in ("fit", "exact")
    )
    assert (fit.method, exact.method) == ("fit", "exact")
    assert (exact.n_updates, exact.n_updates_saved) == (N_ROWS, 0)


def test_scorers_that_are_functions_get_fitted_models():
    result = tree_cross_validate(Ridge(), X, Y, cv=3, scoring=lambda model, X, y: model.coef_[0])
    assert result.method == "fit"
    assert "may use more than predictions" in result.reason
