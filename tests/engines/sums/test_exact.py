"""The method "exact" beside scikit-learn's own cross-validation, which fits each fold."""

from __future__ import annotations

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
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
from sklearn.metrics import make_scorer
from sklearn.metrics import max_error
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import cross_validate
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
from optuna_treecv import pooled
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.sums.engine import ExactPlan
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


def reference(estimator, X, y, cv, scoring):
    return cross_validate(
        estimator, X, y, cv=cv, scoring=scoring, groups=GROUPS, error_score="raise"
    )


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(splitter=SPLITTERS, name=REGRESSORS, number=range(len(ALPHAS))))
def test_regressors_score_as_fits_do(name, splitter, number):
    """All values of alpha are evaluated together, and one of them is fitted."""
    estimator, cv = REGRESSORS[name], SPLITTERS[splitter]
    scoring = ["neg_mean_squared_error", "neg_mean_absolute_error"]
    estimators = with_alphas(estimator)
    results = tree_cross_validate_many(estimators, X, Y, cv=cv, groups=GROUPS, scoring=scoring)
    squares = tree_cross_validate_many(
        estimators, X, Y, cv=cv, groups=GROUPS, scoring="neg_mean_squared_error"
    )
    assert {result.method for result in results} == {"exact"}
    expected = reference(estimators[number], X, Y, cv, scoring)
    for metric in scoring:
        assert_same(results[number].scores[metric].test_score, expected[f"test_{metric}"])
    assert_same(squares[number].test_score, expected["test_neg_mean_squared_error"])


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(splitter=SPLITTERS, n_classes=[2, 3], name=CLASSIFIERS, number=range(len(ALPHAS)))
)
def test_classifiers_score_as_fits_do(name, n_classes, splitter, number):
    estimator, cv = CLASSIFIERS[name], SPLITTERS[splitter]
    y = LABELS if n_classes == 3 else np.where(LABELS == "low", "low", "top")
    estimators = with_alphas(estimator)
    results = tree_cross_validate_many(estimators, X, y, cv=cv, groups=GROUPS, scoring="accuracy")
    method = "fit" if (name, splitter) == ("balanced", "n") else "exact"
    assert {result.method for result in results} == {method}
    expected = reference(estimators[number], X, y, cv, "accuracy")["test_score"]
    np.testing.assert_array_equal(results[number].test_score, expected)


@pytest.mark.parametrize("name", ["ridge", "no intercept", "scaler", "scaler without mean"])
def test_rows_with_weights(name):
    weights = np.random.default_rng(3).uniform(0.1, 4, N_ROWS)
    weights[::9] = 0
    estimator = REGRESSORS[name]
    last = alpha_of(estimator).replace("alpha", "sample_weight")
    for cv in (KFold(5), TimeSeriesSplit(3)):
        result = tree_cross_validate(estimator, X, Y, cv=cv, sample_weight=weights)
        expected = []
        for train, test in cv.split(X):
            fitted = estimator.fit(X[train], Y[train], **{last: weights[train]})
            errors = np.square(fitted.predict(X[test]) - Y[test])
            expected.append(np.average(errors, weights=weights[test]))
        assert result.method == "exact"
        np.testing.assert_allclose(result.test_score, expected, rtol=1e-10)
        unweighted = tree_cross_validate(
            estimator, X, Y, cv=cv, sample_weight=weights, score_weight=None
        )
        assert not np.allclose(unweighted.test_score, expected, rtol=1e-3)


@pytest.mark.parametrize("scoring", ["squared_error", "absolute_error"])
def test_float32_is_computed_in_float64(scoring):
    small = X.astype(np.float32)
    result = tree_cross_validate(Ridge(), small, Y, cv=KFold(5), scoring=scoring)
    wide = tree_cross_validate(Ridge(), small.astype(np.float64), Y, cv=KFold(5), scoring=scoring)
    assert result.method == "exact"
    np.testing.assert_array_equal(result.test_score, wide.test_score)


SPARSE = sparse.random(200, 30, density=0.2, random_state=0, format="csr")
Y_OF_SPARSE = SPARSE @ np.arange(30.0) + np.sin(np.arange(200))


@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("solver", ["auto", "sparse_cg", "lsqr", "sag", "cholesky"])
def test_sparse_rows_have_the_models_of_converged_solvers(solver, has_intercept):
    estimator = Ridge(fit_intercept=has_intercept, solver=solver, tol=0.1, random_state=0)
    kind = {"cv": KFold(4), "scoring": "r2"}
    dense = tree_cross_validate(
        clone(estimator).set_params(solver="svd"), SPARSE.toarray(), Y_OF_SPARSE, **kind
    )
    if solver == "cholesky" and has_intercept:
        with pytest.raises(ValueError, match="does not support fitting the intercept"):
            tree_cross_validate(estimator, SPARSE, Y_OF_SPARSE, **kind)
        return
    result = tree_cross_validate(estimator, SPARSE, Y_OF_SPARSE, **kind)
    assert (result.method, dense.method) == ("exact", "exact")
    np.testing.assert_array_equal(result.test_score, dense.test_score)
    tight = clone(estimator).set_params(tol=1e-12, max_iter=100_000)
    of_fits = cross_val_score(tight, SPARSE, Y_OF_SPARSE, cv=KFold(4))
    np.testing.assert_allclose(result.test_score, of_fits, rtol=1e-9)


def test_labels_of_sparse_rows_and_of_iterative_solvers():
    y = (Y_OF_SPARSE > np.median(Y_OF_SPARSE)).astype(int)
    for rows, solver in ((SPARSE, "auto"), (SPARSE.toarray(), "saga")):
        estimator = RidgeClassifier(solver=solver, random_state=0)
        result = tree_cross_validate(estimator, rows, y, cv=KFold(4), scoring="accuracy")
        assert result.method == "exact"
        tight = clone(estimator).set_params(tol=1e-12, max_iter=100_000)
        of_fits = cross_val_score(tight, rows, y, cv=KFold(4))
        np.testing.assert_array_equal(result.test_score, of_fits)


def test_many_sparse_columns_are_fitted_unless_they_are_asked_for():
    wide = sparse.random(300, 200, density=0.1, random_state=0, format="csr")
    y = wide @ np.arange(200.0)
    result = tree_cross_validate(Ridge(), wide, y, cv=4)
    assert result.why == (
        "an iterative solver takes less time for sparse X with more than 150 columns"
    )
    assert tree_cross_validate(Ridge(), wide, y, cv=4, method="exact").method == "exact"
    objective = treecv_objective(Ridge(), wide, y, param_grid={"alpha": [0.1, 1.0]}, cv=4)
    assert objective.evaluate({"alpha": 1.0}).method == "exact"
    result = tree_cross_validate(LinearRegression(), SPARSE, Y_OF_SPARSE, cv=4)
    assert result.why == "lsqr takes less time for sparse rows"


def test_explain_says_which_parameters_do_not_act():
    idle = (
        "Models are solved to convergence, so solver, tol, max_iter and random_state are ignored."
    )
    grid = {"alpha": [0.1, 1.0]}
    for estimator, rows, is_said in (
        (Ridge(), SPARSE, True),
        (Ridge(solver="sag"), SPARSE.toarray(), True),
        (Ridge(), SPARSE.toarray(), False),
        (Ridge(solver="cholesky", fit_intercept=False), SPARSE, False),
    ):
        lines = treecv_objective(estimator, rows, Y_OF_SPARSE, param_grid=grid).explain()
        assert (idle in lines) == is_said
    searched = treecv_objective(Ridge(), SPARSE, Y_OF_SPARSE, param_grid={"tol": [0.1, 1e-4]})
    why = "tol is searched, which has no effect on converged models"
    assert why in searched.explain()


def reference_of_rows(estimator, X, y, cv):
    return -cross_validate(estimator, X, y, cv=cv, scoring="neg_mean_squared_error")["test_score"]


@pytest.mark.parametrize(
    "scoring", ["r2", "neg_root_mean_squared_error", "explained_variance", make_scorer(max_error)]
)
def test_scorers(scoring):
    result = tree_cross_validate(Ridge(), X, Y, cv=KFold(5), scoring=scoring)
    assert result.method == "exact"
    expected = reference(Ridge(), X, Y, KFold(5), scoring)["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-10)


def test_a_score_near_perfection_keeps_its_digits():
    """From moments, an error of 1e-9 of the squares would be their rounding errors."""
    y = X @ np.arange(1.0, 7) + 1e-7 * Y
    scores = tree_cross_validate(Ridge(1e-9), X, y, cv=KFold(5), scoring="squared_error")
    expected = reference_of_rows(Ridge(1e-9), X - X.mean(axis=0), y, KFold(5))
    np.testing.assert_allclose(scores.test_score, expected, rtol=1e-5)


def test_pooled_scores_and_predictions():
    cv = KFold(5, shuffle=True, random_state=0)
    result = tree_cross_validate(Ridge(), X, Y, cv=cv, scoring=pooled("r2"))
    predicted = cross_val_predict(Ridge(), X, Y, cv=cv)
    total = np.square(Y - Y.mean()).sum()
    assert result.mean == pytest.approx(1 - np.square(Y - predicted).sum() / total, rel=1e-10)
    np.testing.assert_allclose(tree_cross_val_predict(Ridge(), X, Y, cv=cv), predicted, rtol=1e-9)
    labels = tree_cross_val_predict(RidgeClassifier(), X, LABELS, cv=cv)
    np.testing.assert_array_equal(labels, cross_val_predict(RidgeClassifier(), X, LABELS, cv=cv))


@pytest.mark.parametrize("n_folds", [3, 10])
@pytest.mark.parametrize("name", ["ridge", "no intercept", "scaler", "steps"])
def test_no_row_is_in_the_model_that_tests_it(name, n_folds):
    """A fold's own rows, a billion times as large, change its model by rounding errors only."""
    before = X.copy()
    before[:: N_ROWS // n_folds] = 0  # a row of zeros in each fold shows the intercept
    cv = KFold(n_folds)
    said = tree_cross_val_predict(REGRESSORS[name], before, Y, cv=cv)
    for _, test in cv.split(X):
        far, y = before.copy(), Y.copy()
        far[test] *= 1e9
        y[test] *= -1e9
        of_far = tree_cross_val_predict(REGRESSORS[name], far, y, cv=cv)[test]
        intercept = said[test[0]]
        slopes = (of_far - of_far[0]) / 1e9
        expected = said[test] - intercept
        if name == "steps":  # Normalizer undoes the factor
            slopes *= 1e9
        tolerance = 1e-12 * np.abs(said).max()
        assert of_far[0] == pytest.approx(intercept, rel=1e-12, abs=tolerance)
        np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=tolerance)


def test_labels_of_a_fold_change_nothing_of_its_own_predictions():
    cv = KFold(6)
    for _, test in cv.split(X):
        y, labels = Y.copy(), LABELS.copy()
        y[test] = 1e6
        labels[test] = "mid"
        for estimator, one, other in ((Ridge(), Y, y), (RidgeClassifier(), LABELS, labels)):
            said = tree_cross_val_predict(estimator, X, one, cv=cv)
            again = tree_cross_val_predict(estimator, X, other, cv=cv)
            np.testing.assert_array_equal(said[test], again[test])


def test_no_number_depends_on_threads_or_company():
    estimators = with_alphas(Ridge())
    for cv in (7, KFold(7), "loo", TimeSeriesSplit(4)):
        together = tree_cross_validate_many(estimators, X, Y, cv=cv, scoring="absolute_error")
        threads = tree_cross_validate_many(
            estimators, X, Y, cv=cv, scoring="absolute_error", n_jobs=3
        )
        for one, beside, in_threads in zip(estimators, together, threads, strict=True):
            alone = tree_cross_validate(one, X, Y, cv=cv, scoring="absolute_error")
            tolerance = 1e-12 * np.abs(alone.test_score).max()
            np.testing.assert_allclose(alone.test_score, beside.test_score, atol=tolerance)
            np.testing.assert_array_equal(beside.test_score, in_threads.test_score)


def test_a_study_reads_the_rows_once():
    rows, y, _ = numbers(n_rows=2000)
    objective = treecv_objective(
        make_pipeline(StandardScaler(), Ridge()),
        rows,
        y,
        param_distributions={"ridge__alpha": FloatDistribution(1e-4, 1e4, log=True)},
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=5)
    assert [trial.user_attrs["treecv"]["n_updates"] for trial in study.trials] == [
        2000,
        0,
        0,
        0,
        0,
    ]
    assert {trial.user_attrs["treecv"]["method"] for trial in study.trials} == {"exact"}
    for trial in study.trials:
        fresh = tree_cross_validate(
            make_pipeline(StandardScaler(), Ridge(trial.params["ridge__alpha"])), rows, y
        )
        assert fresh.mean == pytest.approx(trial.value, rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_a_grid_counts_the_rows_once(batch_size):
    rows, y, _ = numbers(n_rows=2000)
    grid = {"alpha": [1.0, 2.0, 3.0, 4.0]}
    objective = treecv_objective(Ridge(), rows, y, param_grid=grid, batch_size=batch_size)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    study.optimize(objective)
    assert [one.user_attrs["treecv"]["n_updates"] for one in study.trials] == [2000, 0, 0, 0]


def test_a_grid_is_one_call(monkeypatch):
    calls = []

    def counted(self, work):
        calls.append(len(work.candidates))
        return evaluate(self, work)

    evaluate = ExactPlan.evaluate
    monkeypatch.setattr(ExactPlan, "evaluate", counted)
    objective = treecv_objective(
        make_pipeline(StandardScaler(), Ridge()), X, Y, param_grid={"ridge__alpha": ALPHAS}
    )
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    assert calls == [3]
    best = objective.best_estimator(study)
    fitted = make_pipeline(StandardScaler(), Ridge(**{"alpha": best[-1].alpha})).fit(X, Y)
    np.testing.assert_array_equal(best.predict(X), fitted.predict(X))


def test_a_store_serves_the_next_process(store_url):
    rows, y, _ = numbers(n_rows=100_000)

    def evaluate():
        objective = treecv_objective(
            Ridge(),
            rows,
            y,
            param_grid={"alpha": [1.0]},
            scoring="absolute_error",
            store=store_url,
            cache=ModelCache(),
        )
        return objective.evaluate({"alpha": 1.0})

    first, again = evaluate(), evaluate()
    np.testing.assert_array_equal(first.test_score, again.test_score)
    assert first.n_updates == 100_000
    assert again.n_updates == 0
    assert again.n_updates_saved == 100_000


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (HuberRegressor(), "models of HuberRegressor do not follow from sums over rows"),
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
    assert (result.method, result.why) == ("fit", why)
    if why.startswith("alpha=0"):
        return
    with pytest.raises(ValueError, match=r"^method='exact' needs .*, but ") as caught:
        tree_cross_validate(estimator, X, Y, cv=3, method="exact")
    assert why in str(caught.value)


def test_a_subclass_may_do_something_else():
    class Own(Ridge):
        pass

    assert tree_cross_validate(Own(), X, Y, cv=3).method == "fit"


def test_own_scorers_see_fitted_models():
    result = tree_cross_validate(Ridge(), X, Y, cv=3, scoring=lambda model, X, y: model.coef_[0])
    assert result.method == "fit"
    assert result.why.startswith("the scorer")


@pytest.mark.parametrize(
    ("estimator", "y", "kind", "said"),
    [
        (Ridge(alpha=-1.0), Y, {}, r"'alpha' parameter of Ridge"),
        (Ridge(), Y, {"order": "random"}, r"^order must be 'fixed'"),
        (Ridge(alpha=0), Y, {}, r"^alpha must be above 0 if columns of X are linearly dep"),
        (RidgeClassifier(), np.arange(N_ROWS) // 20, {"cv": GroupKFold(3)}, "lacks a class"),
    ],
)
def test_bad_input(estimator, y, kind, said):
    groups = np.arange(N_ROWS) // 20 if "cv" in kind else None
    with pytest.raises(ValueError, match=said):
        tree_cross_validate(estimator, X, y, method="exact", groups=groups, **kind)


def test_rows_that_are_not_finite():
    rows = X.copy()
    rows[3, 1] = np.nan
    with pytest.raises(ValueError, match="X contains NaN"):
        tree_cross_validate(Ridge(), rows, Y, method="exact")


def test_alpha_0_with_full_rank():
    rows = X[:, [0, 1, 2, 3, 5]]
    result = tree_cross_validate(Ridge(0), rows, Y, cv=KFold(5), method="exact")
    np.testing.assert_allclose(
        result.test_score, reference_of_rows(Ridge(0), rows, Y, KFold(5)), rtol=1e-9
    )


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


def test_rows_whose_squares_overflow_are_refused_as_by_fit():
    with pytest.raises(ValueError, match="must not contain infs or NaNs"):
        Ridge().fit(X * 1e200, Y)
    with pytest.raises(ValueError, match="must not contain infs or NaNs"):
        tree_cross_validate(Ridge(), X * 1e200, Y, cv=KFold(5))


def test_the_objective_explains_itself():
    def explained(estimator, **kind):
        name = next(name for name in estimator.get_params() if name.endswith("alpha"))
        distributions = {name: FloatDistribution(1e-3, 1.0)}
        return treecv_objective(estimator, X, Y, param_distributions=distributions, **kind)

    said = explained(make_pipeline(StandardScaler(), Ridge())).explain()
    assert "method='exact', because its models follow from sums over rows" in said
    assert "ridge__alpha are nearly free" in said
    assert (
        "method='fit', because models of HuberRegressor" in explained(HuberRegressor()).explain()
    )
    assert "as requested" in explained(Ridge(), method="fit").explain({"alpha": 0.5})
    rows, y, _ = numbers(n_rows=1100)
    scaled = treecv_objective(
        make_pipeline(StandardScaler(), Ridge()),
        rows,
        y,
        cv="loo",
        param_grid={"ridge__alpha": [1]},
    )
    assert "cv=1000 takes a fraction of this time" in scaled.explain()
    with pytest.raises(ValueError, match="^params must be given if a callable"):
        treecv_objective(lambda trial: Ridge(), X, Y).explain()


@pytest.mark.parametrize("splitter", ["2", "10", "groups", "time", "some untested"])
@pytest.mark.parametrize("name", ["ridge", "scaler"])
def test_all_ways_agree_where_memory_is_scarce(name, splitter, monkeypatch):
    """Sums of few chunks are held, chunks are read twice, and nothing is kept."""
    kind = {"cv": SPLITTERS[splitter], "groups": GROUPS, "scoring": "absolute_error"}
    if splitter != "groups":
        del kind["groups"]
    usual = tree_cross_validate(REGRESSORS[name], X, Y, **kind)
    monkeypatch.setattr("optuna_treecv.numerics.moments.MAX_BYTES", 0)
    monkeypatch.setattr("optuna_treecv.engines.sums.family._MAX_BYTES", 0)
    scarce = tree_cross_validate(REGRESSORS[name], X, Y, **kind)
    np.testing.assert_allclose(scarce.test_score, usual.test_score, rtol=1e-11)


def test_few_records_are_held_where_memory_is_scarce(monkeypatch):
    layout = RowLayout(padded=True, sparse=True, target="number")
    rows = Data(X, Y).prepare(layout, np.arange(len(Y), dtype=np.uint32))
    family = RidgeFolds([Ridge()], rows, None, 1)
    chunks = Chunks(len(Y), np.arange(0, 41, 5))
    usual = np.concatenate([out for _, out in family.test(chunks, CachedSums(), 7)], 1)
    monkeypatch.setattr("optuna_treecv.engines.sums.family._MAX_BYTES", 8 * family.size * 3)
    parts, tested = zip(*family.test(chunks, CachedSums(), 1000), strict=True)
    assert parts == (slice(0, 3), slice(3, 6), slice(6, 8))
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
    assert result.why == f"the step {name!r} must be fitted per fold: {why}"
    assert_same(result.test_score, reference_of_rows(model, X, Y, KFold(3)))


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
    assert_same(result.test_score, reference_of_rows(model, rows, Y, KFold(3)))


def test_filling_by_means_stays_in_its_fold():
    """No value is missing in the first rows, where a trial would look."""
    rows = np.random.default_rng(3).normal(size=(90, 4))
    rows[30:][np.random.default_rng(4).random((60, 4)) < 0.3] = np.nan
    y = np.nan_to_num(rows).sum(axis=1)
    fill = FunctionTransformer(lambda X: np.where(np.isnan(X), np.nanmean(X, axis=0), X))
    model = make_pipeline(fill, Ridge())
    predicted = tree_cross_val_predict(model, rows, y, cv=KFold(3))
    np.testing.assert_allclose(predicted, cross_val_predict(model, rows, y, cv=KFold(3)))


def test_steps_that_return_other_columns_are_fitted_by_fold():
    import pandas as pd

    table = pd.DataFrame({"a": np.tile(["x", "y", "z"], 20), "b": X[:, 0]})
    dummies = make_pipeline(FunctionTransformer(pd.get_dummies), Ridge())
    result = tree_cross_validate(dummies, table, Y, cv=KFold(2))
    assert result.method == "fit"
    expected = cross_validate(dummies, table, Y, cv=KFold(2), scoring="neg_mean_squared_error")
    np.testing.assert_allclose(result.test_score, -expected["test_score"])


def test_a_first_row_that_no_step_takes_is_left_to_the_fits():
    rows = X.copy()
    rows[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        tree_cross_validate(make_pipeline(Normalizer(), Ridge()), rows, Y, cv=3)


def test_results_of_methods_do_not_mix():
    cache = ModelCache()
    results = {}
    for method in ("fit", "exact"):
        objective = treecv_objective(
            Ridge(), X, Y, method=method, cache=cache, param_grid={"alpha": [1.0]}
        )
        results[method] = objective.evaluate({"alpha": 1.0})
    assert results["exact"].n_updates == N_ROWS
    assert results["exact"].n_updates_saved == 0
    assert results["fit"].mean == pytest.approx(results["exact"].mean, rel=1e-10)
