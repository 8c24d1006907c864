"""Steps before learners that are not compiled: done once, or trained by ``partial_fit``."""

from __future__ import annotations

from itertools import cycle
import re

import numpy as np
import optuna
import pandas as pd
from pipelines_by_hand import by_hand
from pipelines_by_hand import CITIES
from pipelines_by_hand import DAYS
from pipelines_by_hand import table_of_kinds_and_numbers
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import IncrementalPCA
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Perceptron
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDOneClassSVM
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import make_union
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.preprocessing.decisions import DividedPipeline
from optuna_treecv.preprocessing.decisions import split

SEED = 3

# A learner of each kind, for which the columns that encoders find need not be given.
LINEAR = [
    SGDClassifier(max_iter=1, tol=None, random_state=0),
    SGDClassifier(
        max_iter=1, loss="log_loss", penalty="elasticnet", average=5, alpha=0.01, random_state=0
    ),
    SGDRegressor(max_iter=1, eta0=0.1, random_state=0),
    SGDRegressor(
        max_iter=1, learning_rate="pa1", loss="epsilon_insensitive", eta0=0.5, random_state=0
    ),
    Perceptron(max_iter=1, penalty="l1", alpha=0.01, random_state=0),
    AveragedSGDClassifier(shuffle=False),
    AveragedSGDRegressor(shuffle=False),
    StreamingSVRGRegressor(settings="theory", shuffle=False, random_state=0),
]


def name_of(estimator):
    return repr(estimator).replace("\n", "")[:60]


@pytest.fixture
def table():
    return table_of_kinds_and_numbers()


def given_categories(columns, **options):
    known = {"city": CITIES, "day": DAYS}
    return OneHotEncoder(categories=[known[name] for name in columns], **options)


def found_categories(**options):
    return OneHotEncoder(handle_unknown="ignore", **options)


def check(pipeline, X, y, paths, **options):
    """Compare the folds with those by hand; the tree is that of ``paths``."""
    options |= {"cv": len(paths), "stratify": False, "random_state": SEED}
    found = tree_cross_validate(pipeline, X, y, **options)
    assert found.method == "treecv"
    assert isinstance(split(pipeline), DividedPipeline)
    expected = by_hand(pipeline, X, y, paths)
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-9)
    predicted = tree_cross_val_predict(pipeline, X, y, **options)
    losses = predicted != y if is_classifier(pipeline) else (predicted - y) ** 2
    np.testing.assert_allclose([np.mean(losses[test]) for test, _ in paths], expected, rtol=1e-9)


def labels_for(learner, y):
    return np.digitize(y, [-0.5, 0.8]) if is_classifier(learner) else y


BRANCHES = {
    "kinds": (["city", "day"], [found_categories(sparse_output=False)]),
    "size": (["size"], [MaxAbsScaler()]),
    "rest": (["count", "width"], [SimpleImputer(strategy="constant"), MinMaxScaler()]),
}


def prepared(branches, **options):
    """Return a ColumnTransformer of such branches."""
    parts = [(name, make_pipeline(*steps), columns) for name, (columns, steps) in branches.items()]
    return ColumnTransformer(parts, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "n_folds", "order"),
    [*zip(LINEAR, cycle([3, 6]), cycle(["fixed", "random", "random", "fixed"]), strict=False)],
    ids=name_of,
)
def test_folds_are_those_of_steps_inside_each_fold(learner, order, n_folds, table, training_paths):
    X, y = table
    y = labels_for(learner, y)
    if isinstance(learner, AveragedSGDClassifier):
        y = y > 0
    pipeline = make_pipeline(prepared(BRANCHES), learner)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    check(pipeline, X, y, paths, order=order)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tail", "nested"), [([MaxAbsScaler(), StandardScaler()], True), ([StandardScaler()], False)]
)
def test_running_steps_may_follow_each_other(tail, nested, table, training_paths):
    X, y = table
    branches = {
        "kinds": BRANCHES["kinds"],
        "size": (["size"], [FunctionTransformer(np.abs), StandardScaler(), MinMaxScaler()]),
    }
    learner = SGDRegressor(max_iter=1, random_state=0)
    steps = [make_pipeline(*tail), "passthrough"] if nested else tail
    pipeline = make_pipeline(prepared(branches), *steps, learner)
    paths = training_paths(len(X), 4, random_state=SEED)
    check(pipeline, X, y, paths)


@pytest.mark.slow
def test_sparse_rows_keep_their_form(table, training_paths):
    X, y = table
    X["word"] = [f"w{i % 40}" for i in range(120)]
    branches = {
        "kinds": (["word", "city"], [found_categories()]),
        "scaled": (["city", "day"], [given_categories(["city", "day"]), MaxAbsScaler()]),
        "size": (["size"], [StandardScaler()]),
    }
    # scikit-learn's SGD takes smaller steps of the intercept where rows are sparse.
    learner = SGDRegressor(max_iter=1, random_state=0)
    pipeline = make_pipeline(prepared(branches), MaxAbsScaler(), learner)
    seen = []

    def look(fitted, X, y):
        seen.append(fitted[:-1].transform(X))
        return 0.0

    tree_cross_validate(pipeline, X, y, cv=4, scoring=look)
    assert all(sparse.issparse(rows) for rows in seen)
    check(pipeline, X, y, training_paths(len(X), 4, random_state=SEED))


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [MultinomialNB(), MLPClassifier((4,), max_iter=1, random_state=0), SGDOneClassSVM()],
    ids=name_of,
)
def test_other_learners_need_the_categories(learner, table, training_paths):
    X, y = table
    y = y > 0
    columns = ["city", "day"]
    found = ColumnTransformer([("kinds", found_categories(), columns)])
    why = f"a category without training rows would affect {type(learner).__name__}"
    assert why in split(make_pipeline(found, learner))
    encoder = given_categories(columns, sparse_output=False)
    is_bayes = isinstance(learner, MultinomialNB)  # it is not trained behind running steps
    step = FunctionTransformer(np.abs) if is_bayes else MinMaxScaler(clip=True)
    branches = {"kinds": (columns, [encoder]), "size": (["size"], [step])}
    pipeline = make_pipeline(prepared(branches), learner)
    assert isinstance(split(pipeline), DividedPipeline)
    if not is_classifier(learner):
        return
    result = tree_cross_validate(make_pipeline(found, learner), X, y, cv=3)
    assert (result.method, why in result.reason) == ("fit", True)
    check(pipeline, X, y, training_paths(len(X), 4, random_state=SEED))


@pytest.mark.parametrize("learner", [SGDClassifier(max_iter=1, random_state=0), MultinomialNB()])
def test_a_given_vocabulary_is_done_once(learner, training_paths):
    rng = np.random.default_rng(2)
    words = np.array("red green blue sun moon sea wind tree bird fish".split())
    X = np.array([" ".join(rng.choice(words, 5)) for _ in range(60)], dtype=object)
    y = np.array(["sun" in text for text in X])
    counter = CountVectorizer(vocabulary=[*words[:7], "never"], min_df=3)
    pipeline = make_pipeline(counter, learner)
    found = tree_cross_validate(
        pipeline, X, y, cv=6, method="treecv", stratify=False, random_state=SEED
    )
    expected = by_hand(pipeline, X, y, training_paths(60, 6, random_state=SEED))
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-9)


@pytest.mark.slow
def test_branches_of_a_union(table, training_paths):
    X, y = table
    numbers = X[["size", "width"]]
    union = make_union(StandardScaler(), make_pipeline(PolynomialFeatures(2), MaxAbsScaler()))
    learner = SGDRegressor(max_iter=1, random_state=0)
    paths = training_paths(len(X), 4, random_state=SEED)
    check(make_pipeline(union, learner), numbers, y, paths)


@pytest.mark.slow
def test_rows_too_wide_for_the_kernels_are_scaled_in_python(training_paths):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(40, 2050)) * 10).rename(columns=str)
    y = wide["3"].to_numpy() / 10
    columns = list(wide.columns)
    scaler = ColumnTransformer([("all", StandardScaler(), columns)])
    pipeline = make_pipeline(scaler, AveragedSGDRegressor(step_size=1e-4, shuffle=False))
    found = tree_cross_validate(pipeline, wide, y, cv=4, random_state=SEED)
    assert "compiled scaling supports rows with at most 2047 columns, got 2050" in found.reason
    paths = training_paths(40, 4, random_state=SEED)
    expected = by_hand(pipeline, wide, y, paths)
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-9)


# What is fitted, said and refused.


def best_of(pipeline, X, y, **options):
    space = {f"{pipeline.steps[-1][0]}__alpha": [1e-4, 1e-2]}
    objective, study = searched(pipeline, (X, y), space, cv=5, **options)
    return objective.best_estimator(study)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scaler", "learner"),
    [
        (MaxAbsScaler(), SGDRegressor(max_iter=1, random_state=0)),
        (StandardScaler(), AveragedSGDRegressor(shuffle=False)),
    ],
    ids=["in Python", "compiled"],
)
def test_the_fitted_pipeline_predicts_raw_rows(scaler, learner, table):
    X, y = table
    numbers = Pipeline([("fill", SimpleImputer(strategy="constant")), ("scale", scaler)])
    steps = ColumnTransformer(
        [("kinds", found_categories(), ["city", "day"]), ("numbers", numbers, ["size"])],
        remainder=StandardScaler(),
    )
    best = best_of(Pipeline([("prepare", steps), ("learn", learner)]), X, y, shuffle=False)
    expected = clone(best).set_params(learn__shuffle=isinstance(learner, SGDRegressor))
    rows = clone(steps).fit_transform(X)
    expected["learn"].partial_fit(rows, y)
    np.testing.assert_allclose(best["learn"].coef_, expected["learn"].coef_, rtol=1e-9)
    np.testing.assert_allclose(best.predict(X), expected["learn"].predict(rows), rtol=1e-9)
    found, right = vars(best["prepare"]), vars(clone(steps).fit(X))
    assert {name: repr(value) for name, value in found.items()} == {
        name: repr(value) for name, value in right.items()
    }
    fitted = best["prepare"].named_transformers_["numbers"]["scale"]
    np.testing.assert_allclose(fitted.scale_, clone(scaler).fit(X[["size"]]).scale_, rtol=1e-12)
    assert best["prepare"].named_transformers_["remainder"].feature_names_in_.tolist() == [
        "count",
        "width",
    ]
    new = X.head(3).copy()
    new["city"] = "Oslo"
    assert np.all(np.isfinite(best.predict(new)))
    with pytest.raises(ValueError, match="columns are missing: {'size'}"):
        best.predict(X.drop(columns="size"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", [SGDRegressor(max_iter=1), AveragedSGDRegressor()], ids=name_of
)
def test_a_branch_without_columns(learner, table):
    X, y = table
    branches = [(MinMaxScaler(), ["width"]), (StandardScaler(), ["size"])]
    imputer = make_pipeline(SimpleImputer(strategy="constant"), MaxAbsScaler())
    best = [
        best_of(make_pipeline(make_column_transformer(*parts), learner), X, y, random_state=0)
        for parts in (branches, [*branches, (MaxAbsScaler(), []), (imputer, [])])
    ]
    np.testing.assert_array_equal(best[0].predict(X), best[1].predict(X))
    assert repr(best[1][0].transformers_[2][1]) == "MaxAbsScaler()"


def test_explain_says_what_happens_to_each_step(table):
    X, y = table
    steps = ColumnTransformer(
        [
            ("kinds", found_categories(), ["city"]),
            ("days", given_categories(["day"]), ["day"]),
            ("size", MaxAbsScaler(), ["size"]),
            ("width", StandardScaler(), ["width"]),
        ]
    )
    in_python = "incremental, by partial_fit on each training phase"
    lines = [
        "  prepare__kinds (OneHotEncoder): fitted once, because columns that are 0 in all "
        "training rows have no effect",
        "  prepare__days (OneHotEncoder): stateless, because it transforms each row independently",
        f"  prepare__size (MaxAbsScaler): {in_python}",
        f"  prepare__width (StandardScaler): {in_python}",
    ]
    slowly = (
        ", because the step 'prepare__size' must be fitted per fold: MaxAbsScaler learns "
        "from the rows"
    )
    for learner, why in ((SGDRegressor(max_iter=1), ""), (AveragedSGDRegressor(), slowly)):
        pipeline = Pipeline([("prepare", steps), ("learn", learner)])
        space = {"learn__alpha": [0.1, 1.0]}
        said = treecv_objective(pipeline, X, y, param_grid=space).explain().split("\n")
        assert (
            f"method='treecv', because {type(learner).__name__} has partial_fit; the other "
            f"steps are evaluated once for all folds or run in Python{why}. "
        ) in said[0]
        assert [line for line in said if re.match(r"  \w+ \(\w+\): ", line)] == lines


class Doubling(TransformerMixin, BaseEstimator):
    """A step of somebody else that makes two columns of each."""

    def partial_fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    fit = partial_fit

    def transform(self, X):
        return np.hstack([X, X])


class Named(StandardScaler):
    """A scaler that needs the names of the columns."""

    def partial_fit(self, X, y=None, sample_weight=None):
        assert list(X.columns) == ["size"]
        return super().partial_fit(X)


class Lengths(TransformerMixin, BaseEstimator):
    """A step that takes strings."""

    def partial_fit(self, X, y=None):
        self.most_ = X.map(len).max().max()
        return self

    fit = partial_fit

    def transform(self, X):
        return X.map(len).to_numpy(float) / self.most_


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "column", "why"),
    [
        (Doubling(), "size", "Doubling changes the number of columns"),
        (Named(), "size", "Named raises an error on an array: "),
        (Lengths(), "day", "Lengths raises an error on an array: "),
        (StandardScaler().set_output(transform="pandas"), "size", "returns a data frame"),
        (SimpleImputer(), "size", "strategy='mean' depends on the rows"),
        (make_pipeline(MaxAbsScaler(), Normalizer()), "size", "a later step is fitted only once"),
        (IncrementalPCA(1), "size", "it must not be IncrementalPCA"),
    ],
    ids=name_of,
)
def test_what_cannot_run_in_python(step, column, why, table):
    X, y = table
    pipeline = make_pipeline(make_column_transformer((step, [column])), SGDRegressor(max_iter=1))
    found = tree_cross_validate(pipeline, X, y, cv=4)
    assert (found.method, why in found.reason) == ("fit", True)
    for method in ("treecv", "standard", "progressive"):
        with pytest.raises(ValueError, match="method must be 'fit'|must be a transformer that"):
            tree_cross_validate(pipeline, X, y, cv=4, method=method)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([found_categories(), Normalizer()], "a later step would use"),
        ([found_categories(), MinMaxScaler((1, 2))], "a later step would use"),
        ([OneHotEncoder(), MaxAbsScaler()], "does not ignore categories that are absent"),
        ([given_categories(["city"], min_frequency=3)], "its min_frequency"),
        (
            [FunctionTransformer(lambda X: X), SimpleImputer(strategy="median")],
            "strategy='median'",
        ),
        ([FeatureUnion([("a", MaxAbsScaler())], transformer_weights={"a": 2})], "weights"),
    ],
)
@pytest.mark.parametrize(
    "learner", [SGDRegressor(max_iter=1), AveragedSGDRegressor()], ids=name_of
)
def test_what_cannot_be_done_before_a_learner(learner, steps, why):
    assert why in split(make_pipeline(*steps, learner))


def test_a_wrong_entry_is_named(table):
    X, y = table
    pipeline = make_pipeline(
        make_column_transformer(
            (found_categories(), ["city"]), (MaxAbsScaler(), ["size"]), sparse_threshold=0
        ),
        SGDRegressor(max_iter=1),
    )
    for value, said in (
        (np.nan, "contains NaN in column 'maxabsscaler__size', row 7, but"),
        (np.inf, "contains infinity in column 'size', row 7, but"),
        ("much", "must hold numbers, got 'much' in column 'size', row 7"),
    ):
        wrong = X.astype({"size": object})
        wrong.iloc[7, 2] = value
        with pytest.raises(ValueError, match=said):
            tree_cross_validate(pipeline, wrong, y, cv=3)
    missing = X.copy()
    missing.iloc[9, 3] = pd.NA
    steps = make_column_transformer((found_categories(), ["city"]), ("passthrough", ["count"]))
    with pytest.raises(ValueError, match="'passthrough' transformer for column 'count'"):
        tree_cross_validate(make_pipeline(steps, SGDRegressor(max_iter=1)), missing, y, cv=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (MaxAbsScaler(), "MaxAbsScaler returns a data frame"),
        ("passthrough", "the preprocessed rows are not an array of numbers"),
    ],
    ids=["trained", "stateless"],
)
def test_steps_that_make_data_frames_are_fitted_by_fold(step, why, table):
    X, y = table
    steps = make_column_transformer(
        (found_categories(sparse_output=False), ["city"]), (step, ["size"])
    )
    pipeline = make_pipeline(steps, SGDRegressor(max_iter=1, eta0=1e-6))
    grid = {"sgdregressor__alpha": [0.1, 0.2]}
    objective = treecv_objective(pipeline, X, y, cv=3, param_grid=grid)
    for output, method in (("default", "treecv"), ("pandas", "fit"), ("default", "treecv")):
        with config_context(transform_output=output):
            found = objective.evaluate({"sgdregressor__alpha": 0.1})
        assert found.method == method
        assert method == "treecv" or found.reason == why
    steps.set_output(transform="pandas")
    found = tree_cross_validate(pipeline, X, y, cv=3)
    assert (found.method, found.reason) == ("fit", why)


# A held-out row, and everything around.


def test_weights_reach_the_learner(table, training_paths):
    X, y = table
    weights = np.random.default_rng(0).random(120)
    steps = make_column_transformer(
        (found_categories(), ["city"]), (MaxAbsScaler(), ["size"]), sparse_threshold=0
    )
    pipeline = make_pipeline(steps, SGDRegressor(max_iter=1, random_state=0))
    options = {"cv": 4, "random_state": SEED, "score_weight": None}
    found = tree_cross_validate(pipeline, X, y, sample_weight=weights, **options)
    expected = by_hand(pipeline, X, y, training_paths(120, 4, random_state=SEED), weights)
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", [SGDRegressor(max_iter=1), AveragedSGDRegressor()], ids=name_of
)
def test_one_seed_gives_the_same_bits(learner, table, tmp_path):
    X, y = table
    pipeline = make_pipeline(prepared(BRANCHES), learner)
    name = pipeline.steps[-1][0]
    options = {"cv": 8, "random_state": 0, "order": "random"}
    space = {f"{name}__alpha": optuna.distributions.FloatDistribution(1e-4, 1, log=True)}
    shared = {"store": f"sqlite:///{tmp_path}/store.db"}
    objectives = [
        treecv_objective(pipeline, X, y, param_distributions=space, **more, **options)
        for more in ({}, shared, shared, {"n_jobs": 2}, {"report": "folds"})
    ]
    for alpha in (0.01, 0.1):
        one = clone(pipeline).set_params(**{f"{name}__alpha": alpha})
        alone = tree_cross_validate(one, X, y, **options)
        assert alone.method == "treecv"
        for objective in objectives:
            found = objective.evaluate({f"{name}__alpha": alpha})
            np.testing.assert_array_equal(found.test_score, alone.test_score)


@pytest.mark.slow
def test_trials_over_steps_are_told_apart(table, training_paths):
    X, y = table
    pipeline = make_pipeline(
        make_column_transformer(
            (found_categories(), ["city"]), (MinMaxScaler(), ["size"]), ("passthrough", ["width"])
        ),
        SGDRegressor(max_iter=1, random_state=0),
    )
    ranges = [(0, 1), (0, 2), (-1, 1)]
    name = "columntransformer__minmaxscaler__feature_range"
    objective = treecv_objective(pipeline, X, y, cv=4, param_grid={name: ranges}, random_state=0)
    swapped = clone(pipeline).set_params(
        columntransformer__transformers=[
            ("onehotencoder", found_categories(), ["city"]),
            ("minmaxscaler", MinMaxScaler(), ["width"]),
            ("passthrough", "passthrough", ["size"]),
        ]
    )
    scores = [objective.evaluate({name: value}).test_score for value in ranges]
    options = {"cv": 4, "random_state": 0}
    for value, score in zip(ranges, scores, strict=True):
        one = clone(pipeline).set_params(**{name: value})
        alone = tree_cross_validate(one, X, y, **options)
        np.testing.assert_array_equal(score, alone.test_score)
    assert np.any(scores[0] != scores[1])
    assert np.any(scores[0] != tree_cross_validate(swapped, X, y, **options).test_score)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [GaussianNB(), BernoulliNB(binarize=0.5), MultinomialNB()])
@pytest.mark.parametrize("in_columns", [True, False])
def test_naive_bayes_does_not_keep_rows_as_few_others_have_scaled_them(in_columns, learner):
    X, y = load_breast_cancer(return_X_y=True)
    scaler = MinMaxScaler()
    if in_columns:
        scaler = make_column_transformer((scaler, slice(0, 9)), remainder="passthrough")
    pipeline = make_pipeline(scaler, learner)
    cv = StratifiedKFold(5, shuffle=True, random_state=0)
    found = tree_cross_validate(pipeline, X, y, cv=cv, scoring="accuracy")
    assert f"{type(learner).__name__} gives these rows the same weight as all" in found.reason
    np.testing.assert_allclose(found.test_score, cross_val_score(pipeline, X, y, cv=cv))


def test_a_parameter_that_partial_fit_refuses_is_the_reason_for_fits():
    X, y = load_breast_cancer(return_X_y=True)
    learner = SGDClassifier(max_iter=1, class_weight="balanced", random_state=0)
    why = "partial_fit of SGDClassifier does not support class_weight='balanced'"
    assert tree_cross_validate(learner, X, y, cv=3).reason == why
    with pytest.raises(
        ValueError, match=r"n_epochs must be None for .* \('fit' was chosen because " + why
    ):
        tree_cross_validate(learner, X, y, cv=3, n_epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "bool", "float32"])
def test_a_running_step_gets_the_fractions_of_the_step_before(kind):
    """Integers must give what the same numbers as floats give."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"day": np.arange(60) % 3, "a": rng.integers(0, 50, 60)})
    X["b"] = rng.integers(0, 9, 60)
    y = X["a"] / 50 + X["day"]
    if kind == "bool":
        X["a"], X["b"] = X["a"] > 20, X["b"] > 3
    learner = SGDRegressor(max_iter=1, tol=None, random_state=0)
    for numbers in ([MaxAbsScaler(), StandardScaler()], [StandardScaler(), MinMaxScaler()]):
        branches = [
            ("days", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["day"]),
            ("numbers", make_pipeline(*numbers), ["a", "b"]),
        ]
        model = make_pipeline(ColumnTransformer(branches), learner)
        found, expected = (
            tree_cross_validate(model, X.astype(types), y, cv=3, random_state=SEED)
            for types in ({"a": kind, "b": kind}, {"a": float, "b": float})
        )
        assert found.method == "treecv"
        np.testing.assert_allclose(found.test_score, expected.test_score, rtol=1e-5)
