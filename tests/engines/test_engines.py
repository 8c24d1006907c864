"""The list of engines, and the engine that CONTRIBUTING.md adds to it."""

from __future__ import annotations

import gc
from itertools import product
from pathlib import Path
import re
import weakref

import numpy as np
from optuna.distributions import FloatDistribution
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.dummy import DummyRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import RobustScaler
from sklearn.preprocessing import StandardScaler
from spread import spread
from studies import searched

from optuna_treecv import engines
from optuna_treecv import HistTreeClassifier
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Engine
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.settings import METHODS
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval import evaluate
from optuna_treecv.engines.fit.engine import FitPlan

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


class AboveTheMean(DummyRegressor):
    """An estimator of another class, whose models may be others."""


@pytest.fixture
def means(monkeypatch):
    """Add the engine of the page to the list, as the page says."""
    section = PAGE.read_text().partition("## Add an engine")[2]
    names = {}
    exec(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0], names)
    monkeypatch.setattr(engines, "ENGINES", (names["MEANS"], *engines.ENGINES))


@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "r2", "neg_median_absolute_error"])
@pytest.mark.parametrize(
    "cv",
    [
        KFold(7, shuffle=True, random_state=1),
        PredefinedSplit(np.r_[np.full(30, -1), np.arange(67) % 5]),
    ],
    ids=["all rows are tested", "some rows are only trained on"],
)
def test_the_engine_of_the_page(means, scoring, cv):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(97, 2)), 10 + rng.normal(size=97)
    ours = tree_cross_validate(DummyRegressor(), X, y, cv=cv, scoring=scoring)
    theirs = cross_validate(DummyRegressor(), X, y, cv=cv, scoring=scoring)["test_score"]
    assert ours.method == "means" and ours.reason == "its models are means"
    np.testing.assert_allclose(ours.test_score, theirs, rtol=1e-12)
    if isinstance(cv, KFold):
        predicted = tree_cross_val_predict(DummyRegressor(), X, y, cv=cv)
        loss = tree_cross_validate(DummyRegressor(), X, y, cv=cv, row_losses=True).row_losses
        np.testing.assert_allclose(loss, (predicted - y) ** 2, rtol=1e-6)


class SmallPlan(FitPlan):
    name = "small"
    reason = "its quantile is small"
    capabilities = Capabilities()

    def __init__(self, request):
        Plan.__init__(self, request)


def plan_small(request):
    """Return a plan that depends on the value of a parameter."""
    if (getattr(request.estimator, "quantile", None) or 1.0) <= 0.5:
        return SmallPlan(request)
    return Declined("its quantile is large")


def test_an_engine_that_asks_for_a_value_is_asked_in_each_trial(monkeypatch):
    monkeypatch.setattr(
        engines, "ENGINES", (Engine("small", plan_small, ("auto",)), *engines.ENGINES)
    )
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(97, 2)), rng.normal(size=97)
    _, study = searched(
        DummyRegressor(strategy="quantile"),
        (X, y),
        {"quantile": FloatDistribution(0.1, 0.9)},
        3,
        candidates=[{"quantile": quantile} for quantile in (0.2, 0.8, 0.3)],
    )
    methods = [trial.user_attrs["treecv"]["method"] for trial in study.trials]
    assert methods == ["small", "fit", "small"]


def test_the_engine_of_the_page_leaves_others_alone(means):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(97, 2)), rng.normal(size=97)
    assert tree_cross_validate(Ridge(), X, y).method == "exact"
    assert tree_cross_validate(DummyRegressor(strategy="median"), X, y).method == "fit"
    assert tree_cross_validate(DummyRegressor(), X, y, sample_weight=y**2).method == "fit"
    assert tree_cross_validate(DummyRegressor(), X, np.stack([y, -y], 1)).method == "fit"
    assert tree_cross_validate(AboveTheMean(), X, y).method == "fit"
    scores = tree_cross_validate(DummyRegressor(), X, y, scoring=lambda model, X, y: len(y))
    assert scores.method == "fit"


def test_each_engine_has_a_name_and_ways_to_ask_for_it():
    asked = {name for engine in engines.ENGINES for name in engine.methods}
    assert asked == set(METHODS)
    assert [engine.name for engine in engines.ENGINES if "auto" in engine.methods] == [
        "forest",
        "exact",
        "newton",
        "neighbors",
        "kernel",
        "boosting",
        "bagging",
        "treecv",
        "treecv",
        "chain",
        "fit",
    ]
    elsewhere = [engine.name for engine in engines.ENGINES if engine.rows != "local"]
    assert elsewhere == ["exact", "newton", "treecv"]


@pytest.mark.slow
def test_a_task_goes_with_its_last_job():
    """Prepared rows are a copy of the data, which must not wait for the garbage collector."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 2, size=60)
    estimators = [
        PegasosClassifier(),
        SGDClassifier(max_iter=1, tol=None),
        make_pipeline(StandardScaler(), PegasosClassifier()),
        RidgeClassifier(),
        HistTreeClassifier(),
        LogisticRegression(),
    ]
    gc.collect()
    gc.disable()
    try:
        for estimator, n_jobs in product(estimators, (1, 3)):
            cross_validation = CrossValidation.of(X, y, Settings(cv=3), estimator, ModelCache())
            runs = [evaluate.run_for(cross_validation, clone(estimator)) for _ in range(n_jobs)]
            if runs[0].plan.capabilities.free_parameters:
                runs.append(runs[0].with_estimator(clone(estimator)))
            evaluate_batch(runs)
            for run in runs:
                run.finish()
            gone = weakref.ref(cross_validation)
            del cross_validation, runs, run
            assert gone() is None, (estimator, n_jobs)
    finally:
        gc.enable()


def test_several_estimators_are_planned_as_a_search():
    """On such rows one ridge regression is fitted, and a search has exact folds."""
    X = sparse.random(400, 200, 0.05, "csr", random_state=0)
    y = X @ np.arange(200.0)
    one = tree_cross_validate(Ridge(), X, y, cv=5)
    several = tree_cross_validate_many([Ridge(alpha) for alpha in (0.1, 1.0)], X, y, cv=5)
    assert one.method == "fit"
    assert [result.method for result in several] == ["exact", "exact"]
    np.testing.assert_allclose(several[1].test_score, one.test_score, rtol=1e-3)
    stopped = [Ridge(max_iter=n) for n in (1, 2)]
    assert tree_cross_validate_many(stopped, X, y, cv=5)[0].method == "fit"


SCALE, LARGEST, ROOT = StandardScaler(), MaxAbsScaler(), FunctionTransformer(np.abs)
BRANCHES = [
    ("a", make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]),
    ("b", make_pipeline(MinMaxScaler(), PCA(1)), [2, 3]),
]
PIPELINES = {
    "behind a scaler": ([SCALE, LARGEST], ["maxabsscaler"]),
    "before a scaler": ([LARGEST, SCALE], ["maxabsscaler"]),
    "behind two that act on columns": ([SimpleImputer(), SCALE, LARGEST], ["maxabsscaler"]),
    "two": ([RobustScaler(), SCALE, LARGEST], ["robustscaler", "maxabsscaler"]),
    "a scaler behind which columns are multiplied": (
        [SCALE, PolynomialFeatures(), ROOT],
        ["standardscaler"],
    ),
    "in a branch": ([ColumnTransformer(BRANCHES)], ["columntransformer__b__pca"]),
    "in a branch and behind it": (
        [ColumnTransformer(BRANCHES), LARGEST],
        ["columntransformer__b__pca", "maxabsscaler"],
    ),
    "behind branches": (
        [ColumnTransformer([("a", SCALE, [0, 1]), ("b", MinMaxScaler(), [2])]), LARGEST],
        ["maxabsscaler"],
    ),
    "in a union": ([FeatureUnion([("scale", SCALE), ("pca", PCA(1))])], ["featureunion__pca"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(*spread(pipeline=PIPELINES, last=["newton", "exact"]))
def test_the_step_is_named_without_which_the_engine_would_serve(pipeline, last):
    """Without it, or without all that are named, the folds are not fitted."""
    steps, names = PIPELINES[pipeline]
    rng = np.random.default_rng(0)
    X, y = np.abs(rng.normal(size=(60, 4))), np.arange(60) % 2
    model = make_pipeline(*steps, LogisticRegression() if last == "newton" else RidgeClassifier())
    result = tree_cross_validate(model, X, y, cv=3)
    assert result.method == "fit"
    assert re.findall(r"'([a-z_]+)'", result.reason) == names
    without = clone(model).set_params(**dict.fromkeys(names, "passthrough"))
    assert tree_cross_validate(without, X, y, cv=3).method == last


def test_no_step_is_named_before_an_estimator_that_no_engine_takes():
    rng = np.random.default_rng(0)
    X, y = np.abs(rng.normal(size=(60, 4))), np.arange(60) % 2
    for last, why in (
        (LogisticRegression(solver="liblinear", l1_ratio=1), "liblinear penalises the intercept"),
        (RidgeClassifier(positive=True), "positive=True has no closed form"),
        (KNeighborsClassifier(weights=np.ones_like), "weights is a function"),
    ):
        assert tree_cross_validate(make_pipeline(SCALE, LARGEST, last), X, y, cv=3).reason == why
