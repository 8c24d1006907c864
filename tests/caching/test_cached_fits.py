"""What is kept of fits: scores of folds, in memory and in stores, and beginnings of Pipelines."""

from __future__ import annotations

from itertools import product
import pickle
import sqlite3

from ids import said
import numpy as np
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import AdaBoostClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from studies import searched
from watching import Counting
from watching import Notes
from watching import X_CLASSES
from watching import Y_CLASSES

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.caching import results
from optuna_treecv.plans.fold_task import FirstSteps
from optuna_treecv.preprocessing.fitted import FittedSteps


def test_the_same_configuration_trains_nothing_twice():
    Counting.fits = Notes()
    _, study = searched(lambda trial: Counting(), (X_CLASSES, Y_CLASSES), None, 3, cv=5)
    assert len(Counting.fits) == 5
    assert len({trial.value for trial in study.trials}) == 1
    assert [trial.user_attrs["treecv"]["n_updates"] for trial in study.trials][1:] == [0, 0]


class SlowPCA(PCA):
    fits = Notes()

    def fit_transform(self, X, y=None):
        SlowPCA.fits.append(self.n_components)
        return super().fit_transform(X, y)


@pytest.mark.slow
def test_pipelines_share_fitted_beginnings():
    SlowPCA.fits = Notes()
    pipeline = make_pipeline(StandardScaler(), SlowPCA(5, random_state=0), LogisticRegression())
    _, study = searched(
        pipeline,
        (X_CLASSES, Y_CLASSES),
        {
            "logisticregression__C": FloatDistribution(1e-3, 1e3, log=True),
            "slowpca__n_components": IntDistribution(2, 3),
        },
        5,
        cv=StratifiedKFold(4),
        scoring="accuracy",
    )
    assert len(SlowPCA.fits) == 4 * len(
        {trial.params["slowpca__n_components"] for trial in study.trials}
    )
    for trial in study.trials:
        plain = clone(pipeline).set_params(**trial.params)
        expected = cross_validate(
            plain, X_CLASSES, Y_CLASSES, cv=StratifiedKFold(4), scoring="accuracy"
        )
        assert trial.value == expected["test_score"].mean()


def value_of(model, X=X_CLASSES, y=Y_CLASSES, scoring="accuracy", **options):
    """Return the value of a trial with this estimator."""
    _, study = searched(lambda trial: clone(model), (X, y), None, 1, scoring=scoring, **options)
    return study.best_value


def mean_of_fits(model, X=X_CLASSES, y=Y_CLASSES, scoring="accuracy", **options):
    return cross_validate(model, X, y, scoring=scoring, **options)["test_score"].mean()


class BothWays(Pipeline):
    """Fits its steps on a part of the rows before it does so on all."""

    def fit(self, X, y=None, **params):
        super().fit(X[::2], y[::2])
        return super().fit(X, y)


def refitted(estimator, X, y):
    """Score a model that was fitted on the test rows, which then is no model of the fold."""
    return float(estimator.fit(X, y).predict(X).mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scoring=.*may not be a mean over rows")
@pytest.mark.parametrize(("first", "scoring"), [(Pipeline, refitted), (BothWays, "accuracy")])
def test_beginnings_are_those_of_the_training_rows(first, scoring):
    cache, cv = ModelCache(), StratifiedKFold(3)
    for kind, C in ((first, 1.0), (Pipeline, 0.1), (BothWays, 0.01), (Pipeline, 0.001)):
        steps = [("scale", StandardScaler()), ("pca", PCA(3)), ("last", LogisticRegression(C=C))]
        model = kind(steps).set_params(pca__random_state=0)
        found = value_of(model, cv=cv, scoring=scoring, cache=cache)
        assert found == mean_of_fits(model, cv=cv, scoring=scoring)


@pytest.mark.slow
def test_beginnings_after_a_step_without_a_key_are_not_kept():
    cache, cv = ModelCache(), StratifiedKFold(3)
    for factors in (np.ones(30), np.arange(1.0, 31.0), np.arange(30.0, 0.0, -1.0)):
        scale = FunctionTransformer(lambda rows, by=factors: rows * by)
        model = make_pipeline(scale, PCA(2, random_state=0), LogisticRegression())
        assert value_of(model, cv=cv, cache=cache) == mean_of_fits(model, cv=cv)


def test_folds_with_one_half_in_common_are_kept_apart():
    cache = ModelCache()
    some, more, others = np.arange(200), np.arange(300), np.arange(300, 569)
    model = DecisionTreeClassifier(random_state=0)
    for cv in (
        [(some, others), (more, others)],
        [(more, others), (some, others)],
        [(some, others[:100]), (some, others)],
        [(some, others), (some, others[:100])],
        [(some[::-1], others), (some, others[::-1])],
    ):
        assert value_of(model, cv=cv, cache=cache) == mean_of_fits(model, cv=cv)


def n_updates_of(model, X=X_CLASSES, y=Y_CLASSES, **options):
    """Return the row updates of a trial with this estimator, of which none are cached ones."""
    return treecv_objective(lambda trial: clone(model), X, y, **options).evaluate({}).n_updates


def test_scores_of_other_versions_are_not_taken(tmp_path, monkeypatch):
    store, n_updates = f"sqlite:///{tmp_path / 'store.db'}", []
    for scored_by in (results.SCORED_BY, b"another version", results.SCORED_BY):
        monkeypatch.setattr(results, "SCORED_BY", scored_by)
        model = RandomForestClassifier(3, random_state=0)
        n_updates.append(n_updates_of(model, cv=3, store=store))
    assert n_updates == [569 * 2, 569 * 2, 0]


class ByWhatItGets(TransformerMixin, BaseEstimator):
    """Keeps all columns of a data frame, and two of an array; or gives the index alone."""

    def __init__(self, index=False):
        self.index = index

    def fit(self, X, y=None):
        return self

    def partial_fit(self, X, y=None):
        return self

    def transform(self, X):
        if self.index:
            return np.asarray(X.index).reshape(-1, 1)
        return np.asarray(X if hasattr(X, "columns") else X[:, :2])


@pytest.mark.slow
@pytest.mark.parametrize("last", [LogisticRegression(), GaussianNB()], ids=said)
def test_the_configuration_of_scikit_learn_is_part_of_what_is_kept(last):
    cache = ModelCache()
    model = make_pipeline(StandardScaler(), ByWhatItGets(), last)
    for output in ("default", "pandas", "default"):
        with config_context(transform_output=output):
            found = value_of(model, cv=KFold(3), cache=cache)
            plain = tree_cross_validate(
                model, X_CLASSES, Y_CLASSES, scoring="accuracy", cv=KFold(3)
            )
        assert found == plain.mean


def test_the_index_is_part_of_what_is_kept():
    cache, frame = ModelCache(), pd.DataFrame(X_CLASSES)
    model = make_pipeline(ByWhatItGets(index=True), DecisionTreeClassifier(random_state=0))
    for index in (frame.index, Y_CLASSES, Y_CLASSES[::-1]):
        rows = frame.set_axis(index)
        assert value_of(model, rows, cv=KFold(3), cache=cache) == mean_of_fits(
            model, rows, cv=KFold(3)
        )


@pytest.mark.parametrize("what", ["a class of the script", "mixed objects", "a function"])
def test_what_later_processes_may_not_know_stays_in_memory(tmp_path, what):
    X, y = pd.DataFrame(X_CLASSES[:, :3], columns=list("abc")), Y_CLASSES
    model = RandomForestClassifier(2, random_state=0)
    if what == "a class of the script":
        model = Counting()
    elif what == "mixed objects":
        X = X.assign(mixed=[[1], "1"] * 284 + [2])
        model = make_pipeline(make_column_transformer(("passthrough", [0, 1])), model)
    else:
        model = make_pipeline(FunctionTransformer(lambda rows: rows), model)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    assert [n_updates_of(model, X, y, cv=3, store=store) for _ in "ab"] == [569 * 2] * 2


def test_a_damaged_fold_result_is_fitted_again(tmp_path):
    options = {"cv": 4, "store": f"sqlite:///{tmp_path / 'store.db'}"}
    model = AdaBoostClassifier(n_estimators=5, random_state=0)
    expected = value_of(model, **options)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE treecv_models SET payload = zeroblob(24) WHERE id = 2")
    options["scoring"] = "accuracy"
    assert n_updates_of(model, **options) == pytest.approx(569 * 3 / 4, abs=2)
    assert value_of(model, **options) == expected


@pytest.mark.slow
@pytest.mark.parametrize("scoring", ["accuracy", "f1", "error"])
def test_each_fold_is_kept_with_its_own_rows_labels_and_scoring(scoring):
    cache, model = ModelCache(), DecisionTreeClassifier(random_state=0)
    others = Y_CLASSES.copy()
    others[0] = 1 - others[0]
    for y, cv, seed in product((Y_CLASSES, others), (3, KFold(3)), (0, 1)):
        options = {"cv": cv, "scoring": scoring, "random_state": seed}
        plain = tree_cross_validate(model, X_CLASSES, y, **options)
        for _ in range(2):
            assert value_of(model, y=y, cache=cache, **options) == plain.mean


def test_beginnings_in_workers_are_shared_and_bounded():
    first, same, other = (
        pickle.loads(pickle.dumps(FirstSteps(ModelCache(10_000), n_bytes)))
        for n_bytes in (500, 500, 700)
    )
    assert first.cached_steps is same.cached_steps
    assert first.cached_steps.max_bytes == 500
    assert other.cached_steps.max_bytes == 700


@pytest.mark.slow
def test_a_beginning_belongs_to_its_rows_its_steps_and_their_order():
    cache, pca = ModelCache(), PCA(3, random_state=0)
    swapped = np.random.default_rng(0).permutation(Y_CLASSES)
    as_frame = StandardScaler().set_output(transform="pandas")
    pipelines = [
        make_pipeline(SelectKBest(k=3), LogisticRegression()),
        make_pipeline(SelectKBest(k=4), LogisticRegression()),
        make_pipeline(pca, LogisticRegression()),
        make_pipeline(pca, StandardScaler(), LogisticRegression()),
        make_pipeline(StandardScaler(), pca, LogisticRegression()),
        make_pipeline(as_frame, SelectKBest(k=3), Lasso()),
        make_pipeline("passthrough", SelectKBest(k=3), LogisticRegression()),
    ]
    turned = X_CLASSES[:, ::-1].copy()
    for X, y, cv, tried in (
        (X_CLASSES, Y_CLASSES, StratifiedKFold(3), pipelines),
        (X_CLASSES, Y_CLASSES, KFold(3), pipelines[:1]),
        (turned, Y_CLASSES, StratifiedKFold(3), pipelines[2:3]),
        (X_CLASSES, swapped, StratifiedKFold(3), pipelines[5:]),
    ):
        for pipeline in tried:
            scoring = "r2" if isinstance(pipeline[-1], Lasso) else "accuracy"
            options = {"cv": cv, "scoring": scoring}
            found = value_of(pipeline, X, y, cache=cache, **options)
            assert found == mean_of_fits(pipeline, X, y, **options)


def test_functions_of_packages_have_keys_without_a_store():
    model = make_pipeline(FunctionTransformer(np.log1p), DecisionTreeClassifier(random_state=0))
    cache = ModelCache()
    assert [n_updates_of(model, cv=3, cache=cache) for _ in "ab"] == [2 * 569, 0]


# Transformed rows, which trials share within the bound of the cache.


N_ROWS = 300


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"kind": rng.integers(0, 4, N_ROWS), "size": rng.normal(size=N_ROWS)})
    return X, X["size"].to_numpy() + rng.normal(size=N_ROWS)


@pytest.fixture
def pipeline():
    steps = ColumnTransformer(
        [
            ("kind", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind"]),
            ("size", PolynomialFeatures(), ["size"]),
        ]
    )
    return Pipeline([("prepare", steps), ("learn", AveragedSGDRegressor(step_size=1e-3))])


@pytest.fixture
def transformed(monkeypatch):
    """Return the list of all calls that transform all rows."""
    calls = []
    transform = FittedSteps.transform

    def noted(self, X):
        calls.append(self)
        return transform(self, X)

    monkeypatch.setattr(FittedSteps, "transform", noted)
    return calls


POINTS = [
    {"prepare__size__degree": degree, "learn__alpha": alpha}
    for alpha in (1e-4, 1e-2)
    for degree in (1, 2, 3)
]


@pytest.mark.slow
@pytest.mark.parametrize(("room", "n_made"), [(2**20, 3), (2**12, 7), (0, 7)])
def test_rows_are_kept_while_the_cache_has_room(room, n_made, table, pipeline, transformed):
    X, y = table
    cache = ModelCache(max_bytes=room)
    grid = {"prepare__size__degree": [1, 2, 3], "learn__alpha": [1e-4, 1e-2]}
    options = {"cv": 5, "random_state": 0}
    objective = treecv_objective(pipeline, X, y, param_grid=grid, cache=cache, **options)
    found = [objective.evaluate(point).mean for point in POINTS]
    assert len(transformed) == n_made  # once for the pipeline as given, of degree 2
    assert cache.n_bytes <= room
    for point, mean in zip(POINTS, found, strict=True):
        alone = clone(pipeline).set_params(**point)
        assert tree_cross_validate(alone, X, y, **options).mean == mean


def test_trials_with_the_same_steps_share_the_last_rows(table, pipeline, transformed):
    X, y = table
    grid = {"learn__alpha": [1e-4, 1e-3, 1e-2]}
    objective = treecv_objective(pipeline, X, y, cv=5, param_grid=grid, cache=None)
    for alpha in grid["learn__alpha"]:
        objective.evaluate({"learn__alpha": alpha})
    assert len(transformed) == 1
