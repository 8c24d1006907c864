"""Steps before compiled learners, done once or running, give the scores of trainings by hand."""

from __future__ import annotations

import re
from unittest.mock import patch

from conftest import paths_of
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from ids import said
import numpy as np
from pipelines_by_hand import by_hand
from pipelines_by_hand import rows_on_different_scales
from pipelines_by_hand import SEED
from pipelines_by_hand import table_of_kinds_and_numbers
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import KFold
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import make_union
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.preprocessing.decisions import compiled_part
from optuna_treecv.preprocessing.decisions import split


@pytest.fixture
def rows():
    return rows_on_different_scales()


# Steps that are done once.


@pytest.fixture
def table():
    return table_of_kinds_and_numbers()


ONCE = {
    "one-hot": make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["city", "day"]), ("passthrough", ["count"])
    ),
    "dense": make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]), remainder="drop"
    ),
    "products": make_pipeline(
        make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city", "day"])),
        PolynomialFeatures(2, interaction_only=True, include_bias=False),
    ),
    "texts": make_column_transformer((CountVectorizer(), "city"), ("passthrough", ["count"])),
    "hashed texts": make_column_transformer(
        (HashingVectorizer(n_features=2**10), "city"), ("passthrough", ["count"])
    ),
    "union": make_pipeline(
        make_column_transformer(("passthrough", ["count", "city"])),
        make_union(
            OneHotEncoder(handle_unknown="ignore"),
            make_pipeline(OneHotEncoder(handle_unknown="ignore"), FunctionTransformer()),
        ),
    ),
}


ENCODED = [
    AveragedSGDRegressor(shuffle=False),
    StreamingSVRGRegressor(shuffle=False, random_state=0),
    AveragedSGDClassifier(shuffle=False),
    StreamingSVRGClassifier(shuffle=False, random_state=0),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "estimator", "n_folds"),
    [
        (steps, ENCODED[(number + other) % 4], [4, 6][other // 2])
        for number, steps in enumerate(ONCE)
        for other in (0, 2)
    ],
    ids=said,
)
def test_categories_may_be_encoded_once(steps, estimator, n_folds, table, training_paths):
    X, y = table
    steps = ONCE[steps]
    if is_classifier(estimator):
        y = y > 0
    pipeline = make_pipeline(steps, estimator)
    assert compiled_part(pipeline) is estimator
    found = tree_cross_validate(pipeline, X, y, cv=n_folds, stratify=False, random_state=SEED)
    paths = training_paths(len(X), n_folds, random_state=SEED)
    expected = by_hand(pipeline, X, y, paths)
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-9)
    predicted = tree_cross_val_predict(
        pipeline, X, y, cv=n_folds, stratify=False, random_state=SEED
    )
    losses = (predicted != y) if is_classifier(estimator) else (predicted - y) ** 2
    np.testing.assert_allclose([np.mean(losses[test]) for test, _ in paths], expected, rtol=1e-9)


@pytest.mark.parametrize(
    "learner", [AveragedSGDRegressor(shuffle=False), SGDRegressor(max_iter=1)]
)
@pytest.mark.parametrize("n_known", [23, 24])
def test_a_column_that_a_fold_may_lack_is_not_filled_once(n_known, learner, rows):
    X, y = rows
    X = X[:, :3].copy()
    X[n_known:, 1] = np.nan
    imputer = SimpleImputer(strategy="constant", fill_value=7.0)
    pipeline = make_pipeline(imputer, clone(learner))
    options = {"cv": np.arange(90) // 23, "shuffle": False}
    found = tree_cross_validate(pipeline, X, y, **options)
    assert found.method == ("fit" if n_known == 23 else "treecv")
    if n_known == 23:
        assert "a fold may hold out all 23 rows in which" in found.reason
    imputer.keep_empty_features = True
    assert tree_cross_validate(pipeline, X, y, **options).method == "treecv"


class Lookalike(StandardScaler):
    """A scaler of somebody else."""


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([Lookalike()], "Lookalike learns from the rows"),
        ([MaxAbsScaler()], "MaxAbsScaler learns from the rows"),
        ([StandardScaler(), PolynomialFeatures()], "its scales change during training"),
        ([OneHotEncoder()], "does not ignore categories that are absent"),
        ([OneHotEncoder(handle_unknown="ignore", min_frequency=3)], "its min_frequency"),
        ([OneHotEncoder(handle_unknown="ignore", drop="first")], "drop='first' depends"),
        ([OneHotEncoder(handle_unknown="ignore"), Normalizer()], "a later step would use"),
        ([OneHotEncoder(handle_unknown="ignore"), FunctionTransformer(np.exp)], "a later step"),
        (
            [
                OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                SimpleImputer(missing_values=0, strategy="constant", fill_value=5),
            ],
            "a later step",
        ),
        ([SimpleImputer(strategy="median")], "strategy='median' depends on the rows"),
        ([SimpleImputer(add_indicator=True)], "add_indicator=True uses all rows"),
        ([SimpleImputer(missing_values=-1)], "its missing_values is -1"),
        ([SimpleImputer(), PolynomialFeatures()], "its means change during training"),
        ([StandardScaler(), SimpleImputer()], "its scales change during training"),
        ([FunctionTransformer(lambda X: X - X.mean())], "its function may use all rows"),
        ([CountVectorizer(min_df=2)], "its min_df counts rows"),
        ([FeatureUnion([("a", StandardScaler())], transformer_weights={"a": 2})], "weights"),
    ],
)
def test_what_cannot_be_done_before_a_compiled_learner(steps, why):
    found = split(make_pipeline(*steps, PegasosClassifier()))
    assert isinstance(found, str)
    assert why in found


def test_categories_count_where_an_untouched_column_does():
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), StreamingKMeans())
    assert "a category without training rows would affect" in split(pipeline)


def test_a_pipeline_of_another_kind_is_left_alone():
    class Own(Pipeline):
        pass

    own = Own([("a", StandardScaler()), ("b", PegasosClassifier())])
    assert split(own) == ""
    assert split(make_pipeline(PegasosClassifier())) == ""
    assert split(make_pipeline("passthrough", PegasosClassifier())) == ""


def steps_in(lines):
    """Return the lines of an explanation that are about a step."""
    return [line for line in lines if re.match(r"  \w+ \(\w+\): ", line)]


def test_explain_says_what_happens_to_each_step(table):
    X, y = table
    prepared = ColumnTransformer(
        [
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city", "day"]),
            ("numbers", make_pipeline(FunctionTransformer(np.abs), StandardScaler()), ["size"]),
        ]
    )
    pipeline = Pipeline([("prepare", prepared), ("learn", PegasosClassifier())])
    space = {"learn__alpha": [0.1, 1.0]}
    lines = treecv_objective(pipeline, X, y > 0, param_grid=space).explain().split("\n")
    assert (
        "method='treecv', because its steps run inside the compiled PegasosClassifier" in lines[0]
    )
    assert steps_in(lines) == [
        "  prepare__kinds (OneHotEncoder): fitted once, because columns that are 0 in all "
        "training rows have no effect",
        "  prepare__numbers__functiontransformer (FunctionTransformer): stateless, because it "
        "transforms each row independently",
        "  prepare__numbers__standardscaler (StandardScaler): incremental, compiled, by the mean "
        "and scale of the rows that a model has seen",
    ]
    numbers = X[["size"]].to_numpy()
    running = make_pipeline(MaxAbsScaler(), FunctionTransformer(), PegasosClassifier())
    space = {"pegasosclassifier__alpha": [0.1, 1.0]}
    lines = treecv_objective(running, numbers, y > 0, param_grid=space).explain().split("\n")
    assert (
        "method='treecv', because Pipeline has partial_fit; its steps run in Python, because the "
        "step 'maxabsscaler' must be fitted per fold: MaxAbsScaler learns from the rows."
    ) in lines[0]
    assert steps_in(lines) == [
        "  maxabsscaler (MaxAbsScaler): incremental, by partial_fit on each training phase",
        "  functiontransformer (FunctionTransformer): incremental, on each training phase, "
        "because it is stateless",
    ]
    fitted = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), PegasosClassifier())
    lines = treecv_objective(fitted, numbers, y > 0, param_grid=space).explain().split("\n")
    assert (
        "method='fit', because the step 'simpleimputer' must be fitted per fold: "
        "strategy='median' depends" in lines[0]
    )
    assert steps_in(lines) == [
        "  simpleimputer (SimpleImputer): refitted per fold, because strategy='median' depends "
        "on the rows",
        "  standardscaler (StandardScaler): refitted per fold, because the models are "
        "refitted per fold",
    ]
    exact = make_pipeline(FunctionTransformer(np.abs), StandardScaler(), Ridge())
    lines = treecv_objective(exact, numbers, y, param_grid={"ridge__alpha": [1.0]}).explain()
    assert steps_in(lines.split("\n")) == [
        "  functiontransformer (FunctionTransformer): stateless, because it transforms each row "
        "independently",
        "  standardscaler (StandardScaler): fitted per fold from sums, because they give the "
        "means and scales of each training set",
    ]


# Mixtures of steps.

BRANCHES = ("kinds", "imputed", "imputed and scaled", "scaled", "centred", "divided", "as it is")


def running_branch(kind):
    """Return the transformer of a branch."""
    return {
        "kinds": lambda: OneHotEncoder(handle_unknown="ignore"),
        "imputed": SimpleImputer,
        "imputed and scaled": lambda: make_pipeline(SimpleImputer(), StandardScaler()),
        "scaled": StandardScaler,
        "centred": lambda: StandardScaler(with_std=False),
        "divided": lambda: StandardScaler(with_mean=False),
        "as it is": lambda: "passthrough",
    }[kind]()


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data())
def test_any_mixture_of_steps_is_that_by_hand(data):
    kinds = data.draw(st.lists(st.sampled_from(BRANCHES), min_size=1, max_size=5))
    n_rows = data.draw(st.integers(6, 90))
    n_folds = data.draw(st.integers(2, min(n_rows, 12)))
    order = data.draw(st.sampled_from(["fixed", "random"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    columns, parts, places = [], [], []
    for kind in kinds:
        width = int(rng.integers(1, 4))
        part = rng.normal(size=(n_rows, width)) * 3 + 1
        if kind == "kinds":
            part = rng.integers(0, 5, size=(n_rows, width)).astype(float)
        elif kind.startswith("imputed"):
            part[rng.random(part.shape) < 0.3] = np.nan
        places.append(list(range(len(columns), len(columns) + width)))
        columns += list(part.T)
        parts.append(part)
    X, y = np.column_stack(columns), rng.normal(size=n_rows)
    kept = [
        (str(i), running_branch(kind), place)
        for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
        if not (kind.startswith("imputed") and np.isnan(parts[i]).all(axis=0).any())
    ]
    if not kept:
        return
    learner = AveragedSGDRegressor(step_size=0.001, shuffle=False)
    steps = ColumnTransformer(kept, sparse_threshold=data.draw(st.sampled_from([0, 0.3, 1])))
    pipeline = Pipeline([("prepare", steps), ("learn", learner)])
    assert compiled_part(pipeline) is learner
    options = {"cv": n_folds, "order": order, "random_state": SEED}
    most_dense = data.draw(st.sampled_from([0, 96]))
    with patch("optuna_treecv.preprocessing.fitted._MOST_DENSE", most_dense):
        found = tree_cross_validate(pipeline, X, y, **options).test_score
    right = by_hand(pipeline, X, y, paths_of(n_rows, n_folds, order, random_state=SEED))
    np.testing.assert_allclose(found, right, rtol=1e-8)


# Hostile calls.


@pytest.mark.filterwarnings("error")
def test_steps_that_make_data_frames(table):
    X, y = table
    steps = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]),
        (StandardScaler(), ["size"]),
    ).set_output(transform="pandas")
    pipeline = make_pipeline(steps, AveragedSGDRegressor())
    space = {"averagedsgdregressor__alpha": [0.1]}
    objective, study = searched(pipeline, (X, y), space, cv=5)
    best = objective.best_estimator(study)
    assert list(best[-1].feature_names_in_) == list(best[:-1].transform(X).columns)
    assert best.predict(X).shape == y.shape


def test_a_lambda_among_the_steps_is_fitted_by_fold(table):
    X, y = table
    steps = make_column_transformer((StandardScaler(), lambda X: ["size"]))
    pipeline = make_pipeline(steps, AveragedSGDRegressor())
    space = {"averagedsgdregressor__alpha": [0.1]}
    said = treecv_objective(pipeline, X, y, cv=5, param_grid=space).explain()
    assert "method='fit', because its steps contain an object that cannot be hashed" in said


def test_a_wrong_entry_is_named_by_the_column_as_given(table):
    X, y = table
    X["size"] = X["size"].where(np.arange(120) != 7)
    steps = ColumnTransformer(
        [
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("numbers", StandardScaler(), ["size"]),
        ]
    )
    with pytest.raises(ValueError, match=r"NaN in column 'numbers__size', row 7, but"):
        tree_cross_validate(make_pipeline(steps, AveragedSGDRegressor()), X, y, cv=3)
    numbers = make_pipeline(StandardScaler(), AveragedSGDRegressor())
    with pytest.raises(ValueError, match=r"NaN in column 'size', row 7, but"):
        tree_cross_validate(numbers, X[["count", "size"]], y, cv=3)
    mixed = make_pipeline(FunctionTransformer(np.sign), AveragedSGDRegressor())
    with pytest.raises(ValueError, match=r"After preprocessing, .* in column 0, row 7"):
        tree_cross_validate(mixed, X[["size"]].to_numpy(), y, cv=3)


def test_sparse_rows_are_not_centred():
    X = sparse.random_array(
        (40, 5), density=0.5, format="csr", random_state=np.random.default_rng(0)
    )
    pipeline = make_pipeline(StandardScaler(), PegasosClassifier())
    with pytest.raises(ValueError, match="Cannot center sparse matrices"):
        tree_cross_validate(pipeline, X, np.arange(40) % 2, cv=4)


@pytest.mark.parametrize("learner", [PegasosClassifier(), SGDClassifier(max_iter=1, tol=None)])
@pytest.mark.parametrize("behind", [StandardScaler(), MaxAbsScaler(), SimpleImputer()])
def test_steps_that_change_the_number_of_rows(behind, learner):
    shorter = FunctionTransformer(lambda X: X[:-1])
    pipeline = make_pipeline(shorter, behind, learner)
    with pytest.raises(ValueError, match="must have steps that keep the number of rows"):
        tree_cross_validate(pipeline, np.random.default_rng(0).random((40, 3)), np.arange(40) % 2)


@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
def test_a_column_that_a_training_set_lacks_is_left_out_of_distances():
    """The values that only the first fold knows must not count where no mean is known."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    X[15:, 2] = np.nan
    model = make_pipeline(SimpleImputer(), StreamingKMeans(2, random_state=0))
    result = tree_cross_validate(model, X, cv=KFold(4))
    assert result.method == "fit"
    assert "a fold may hold out all 15 rows in which some column of a" in result.reason
    fitted = clone(model).fit(X[15:])
    distances = fitted.transform(X[:15]).min(axis=1)
    assert result.test_score[0] == pytest.approx(np.mean(distances**2))
    kept = make_pipeline(SimpleImputer(keep_empty_features=True), StreamingKMeans(2))
    assert tree_cross_validate(kept, X, cv=KFold(4)).method == "treecv"
    linear = make_pipeline(SimpleImputer(), AveragedSGDRegressor())
    kind = {"cv": KFold(4), "random_state": 0}
    found = tree_cross_validate(linear, X, X[:, 0], **kind)
    assert found.method == "treecv"
    without = tree_cross_validate(linear, X[:, :2], X[:, 0], **kind)
    assert found.test_score[0] == pytest.approx(without.test_score[0], rel=1e-12)
    # One evaluation fits the step of these learners once: both take dense rows only.
    learners = [StreamingKMeans(2), AveragedSGDRegressor(batch_size=2)]
    several = [Pipeline([("fill", SimpleImputer()), ("learn", one)]) for one in learners]
    found = tree_cross_validate_many(several, X, X[:, 0], scoring=lambda *_: 0.0, **kind)
    assert [one.method for one in found] == ["fit", "treecv"]
