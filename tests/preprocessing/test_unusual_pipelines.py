"""Steps before compiled learners in less usual forms."""

from __future__ import annotations

import numpy as np
import optuna
from pairs import pairs
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import KFold
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.preprocessing.decisions import compiled_part

LEARNER = AveragedSGDRegressor(shuffle=False)


@pytest.fixture
def rows():
    """Return rows on different scales and far from 0, and targets."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 4)) * [1, 10, 0.1, 3] + [0, 5, 1, 2]
    return X, X @ [1, 0.1, 10, 0.3] + 0.1 * rng.standard_normal(60)


def errors_by_hand(pipeline, X, y):
    """Fit each fold of ``KFold(4)``."""
    errors = []
    for train, test in KFold(4).split(X):
        model = clone(pipeline).fit(X[train], y[train])
        errors.append(np.mean((model.predict(X[test]) - y[test]) ** 2))
    return errors


@pytest.mark.parametrize(
    *pairs(
        passed=["passthrough", None],
        steps=[
            ("scaler", "passed"),
            ("imputer", "passed", "scaler"),
            ("imputer", "scaler", "passed"),
        ],
        nested=[False, True],
        learner=[LEARNER, SGDRegressor(max_iter=1, tol=None, shuffle=False)],
    )
)
def test_a_step_that_passes_rows_on_changes_nothing(learner, steps, passed, nested, rows):
    X, y = rows
    if learner is not LEARNER and "imputer" in steps:
        return  # it runs in kernels alone
    if "imputer" in steps:
        X[3, 1] = X[40, 2] = np.nan
    made = {"scaler": StandardScaler(), "imputer": SimpleImputer(), "passed": passed}
    before = Pipeline([(name, made[name]) for name in steps])
    pipeline = Pipeline([*before.steps, ("last", learner)])
    if nested:
        pipeline = make_pipeline(ColumnTransformer([("some", before, [1, 2])]), learner)
    assert (compiled_part(pipeline) is not None) == (learner is LEARNER)
    found = tree_cross_validate(pipeline, X, y, cv=KFold(4), shuffle=False, method="standard")
    np.testing.assert_allclose(found.test_score, errors_by_hand(pipeline, X, y), rtol=1e-9)


def test_learners_behind_the_same_steps_get_their_own_rows(rows):
    X, y = rows
    pipelines = [
        Pipeline([("scaler", StandardScaler()), ("last", clone(LEARNER).set_params(**values))])
        for values in ({}, {"fit_intercept": False})
    ]
    found = tree_cross_validate_many(
        pipelines, X, y + 5, cv=KFold(4), shuffle=False, method="standard"
    )
    for pipeline, result in zip(pipelines, found, strict=True):
        expected = errors_by_hand(pipeline, X, y + 5)
        np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)


def test_one_pipeline_whose_parameters_are_set_by_each_trial(rows):
    X, y = rows
    pipeline = make_pipeline(PolynomialFeatures(), StandardScaler(), clone(LEARNER))

    def make(trial):
        degree = trial.suggest_int("degree", 1, 3)
        return pipeline.set_params(polynomialfeatures__degree=degree)

    objective = treecv_objective(make, X, y, cv=KFold(4), shuffle=False, method="standard")
    study = optuna.create_study()
    for degree in (1, 2, 3):
        study.enqueue_trial({"degree": degree})
    study.optimize(objective, 3)
    for trial in study.trials:
        expected = np.mean(errors_by_hand(make(trial), X, y))
        assert trial.value == pytest.approx(expected, rel=1e-9)
    for trial in study.trials:
        best = objective.best_estimator(trial)
        make(study.trials[0])
        assert best[0].degree == trial.params["degree"]


def test_an_evaluation_fits_copies_of_the_steps():
    rng = np.random.default_rng(0)
    X, other = rng.choice(list("abc"), (60, 1)), rng.choice(list("vwxyz"), (60, 1))
    y = rng.integers(0, 2, 60)
    encoder = OneHotEncoder(handle_unknown="ignore")
    pipeline = make_pipeline(encoder, AveragedSGDClassifier())
    values = {"averagedsgdclassifier__alpha": optuna.distributions.FloatDistribution(0.01, 1)}
    objective = treecv_objective(pipeline, X, y, param_distributions=values, cv=4)
    trial = optuna.trial.FixedTrial({"averagedsgdclassifier__alpha": 0.1})
    score = objective(trial)
    assert not hasattr(encoder, "categories_")
    study = optuna.create_study()
    study.enqueue_trial(trial.params)
    study.optimize(objective, 1)
    first, second = objective.best_estimator(study), objective.best_estimator(study)
    expected = first.predict(X)
    second.fit(other, y)
    np.testing.assert_array_equal(first.predict(X), expected)
    assert objective(trial) == score
    np.testing.assert_array_equal(objective.best_estimator(study).predict(X), expected)


@pytest.mark.parametrize("values", [{"max_df": 1}, {"min_df": 1.0}])
def test_one_row_is_not_a_share_of_1(values):
    texts = np.array([f"word{i % 20} all row{i}" for i in range(60)], object)
    y = np.arange(60) % 2
    pipeline = make_pipeline(CountVectorizer(**values), AveragedSGDClassifier(shuffle=False))
    found = tree_cross_validate(pipeline, texts, y, cv=KFold(4), shuffle=False)
    assert found.method == "fit"
    assert next(iter(values)) in found.reason


def test_the_drop_of_an_encoder_may_be_an_array():
    rng = np.random.default_rng(0)
    X, y = rng.choice(list("abc"), (60, 2)), rng.integers(0, 2, 60)
    encoder = OneHotEncoder(handle_unknown="ignore", drop=np.array(["a", "b"]))
    found = tree_cross_validate(make_pipeline(encoder, AveragedSGDClassifier()), X, y, cv=4)
    assert "depends on the rows" in found.reason


def test_a_search_takes_objects_that_a_step_encodes():
    rng = np.random.default_rng(0)
    X, y = rng.choice(list("abc"), (60, 1)).astype(object), rng.integers(0, 2, 60)
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), AveragedSGDClassifier())
    grid = {"averagedsgdclassifier__alpha": [0.01, 0.1]}
    search = TreeCVSearchCV(pipeline, param_grid=grid, cv=4).fit(X, y)
    assert search.predict(X).shape == (60,)


# What is wrong with the rows or the columns, in one sentence that names the step.


def a_table(**columns):
    rng = np.random.default_rng(0)
    given = {"city": list("abca" * 10), "size": rng.normal(size=40), "age": rng.normal(size=40)}
    return pd.DataFrame(given | columns)


def selecting(*columns, step=None):
    return ColumnTransformer([("some", StandardScaler() if step is None else step, *columns)])


def with_entry(row, value):
    """Return a table with another value in one row of the column "size"."""
    table = a_table()
    table["size"] = table["size"].astype(object)
    table.loc[row, "size"] = value
    return table


NUMBERS = ["size", "age"]
FILL = make_pipeline(SimpleImputer(), StandardScaler())
ALL_EMPTY = a_table(size=np.nan, age=np.nan)[NUMBERS]
COLUMNS, SCALER = "'prepare' (ColumnTransformer)", "'prepare__some' (StandardScaler)"
ONE_EACH = "must have steps that keep the number of rows"

# The step, and what the sentence says besides: where possible the column, as it is called.
SAID = {
    "a missing column": (selecting(["weight"]), a_table(), COLUMNS, "'weight'"),
    "missing columns": (selecting(["weight", "size", "height"]), a_table(), COLUMNS, "'height'"),
    "a missing column that is dropped": (
        ColumnTransformer([("a", "drop", ["weight"]), ("b", StandardScaler(), NUMBERS)]),
        a_table(),
        COLUMNS,
        "'weight'",
    ),
    "a missing column inside": (
        FeatureUnion([("inner", Pipeline([("deep", selecting(["weight"]))]))]),
        a_table()[NUMBERS],
        "'prepare__inner__deep' (ColumnTransformer)",
        "'weight'",
    ),
    "a missing column of a branch": (
        selecting(NUMBERS, step=selecting(["city"])),
        a_table(),
        "'prepare__some' (ColumnTransformer)",
        "'city'",
    ),
    "a missing column of a function": (
        selecting(lambda X: ["size", "weight"]),
        a_table(),
        COLUMNS,
        "'weight'",
    ),
    "a range of missing columns": (
        selecting(slice("size", "weight")),
        a_table(),
        COLUMNS,
        "'weight'",
    ),
    "names for an array": (selecting(["size"]), np.zeros((40, 2)), COLUMNS, ""),
    "a missing number": (selecting([0, 5]), np.zeros((40, 2)), COLUMNS, ""),
    "a short mask": (selecting([True, False]), a_table(), COLUMNS, ""),
    "a column that is no list": (selecting("size"), a_table(), SCALER, ""),
    "a column of strings": (
        selecting(["age", "city"]),
        a_table(),
        SCALER,
        "X must hold numbers, got 'a' in column 'city', row 0.",
    ),
    "a string": (
        selecting(NUMBERS),
        with_entry(7, "big"),
        SCALER,
        "X must hold numbers, got 'big' in column 'size', row 7.",
    ),
    "a string beside gaps": (
        selecting(NUMBERS, step=SimpleImputer()),
        with_entry([2, 7], [None, "big"]),
        "'prepare__some' (SimpleImputer)",
        "X must hold numbers, got 'big' in column 'size', row 7.",
    ),
    "a string of an array": (
        selecting([2]),
        with_entry(7, "big")[["age", "city", "size"]].to_numpy(),
        SCALER,
        "'big'",
    ),
    "a string of the remainder": (
        ColumnTransformer([("some", "drop", ["age"])], remainder=StandardScaler()),
        with_entry(7, "big")[NUMBERS],
        "'prepare__remainder' (StandardScaler)",
        "X must hold numbers, got 'big' in column 'size', row 7.",
    ),
    "a gap": (
        Normalizer(),
        with_entry(7, np.nan)[NUMBERS],
        "'prepare' (Normalizer)",
        "Input X contains NaN in column 'size', row 7, but must hold finite numbers.",
    ),
    "an infinity": (
        Pipeline([("first", PolynomialFeatures()), ("second", StandardScaler())]),
        a_table(size=[np.inf, *range(39)])[NUMBERS],
        "'prepare__first' (PolynomialFeatures)",
        "Input X contains infinity in column 'size', row 0, but must hold finite numbers.",
    ),
    "a column without any value": (
        selecting(["size"], step=FILL),
        ALL_EMPTY,
        "'prepare__some__standardscaler' (StandardScaler)",
        "0 feature(s)",
    ),
    "two columns of one name": (
        selecting(["age"]),
        a_table().rename(columns={"city": "size"}),
        COLUMNS,
        "'size'",
    ),
    "two columns of one name, scaled": (
        StandardScaler(),
        a_table()[["size", "age", "size"]],
        "'prepare' (StandardScaler)",
        "'size'",
    ),
    "a table of texts": (
        selecting(["city"], step=CountVectorizer(analyzer="char")),
        a_table(),
        "'prepare__some' (CountVectorizer)",
        ONE_EACH,
    ),
    "a table of texts beside numbers": (
        ColumnTransformer(
            [("n", StandardScaler(), NUMBERS), ("some", CountVectorizer(), ["city"])]
        ),
        a_table(),
        "'prepare__some' (CountVectorizer)",
        ONE_EACH,
    ),
    "an array of texts": (
        selecting([0], step=CountVectorizer()),
        a_table().to_numpy(),
        "'prepare__some' (CountVectorizer)",
        "",
    ),
    "strings and numbers": (
        selecting(["size", "city"], step=OneHotEncoder(handle_unknown="ignore")),
        a_table(size=["a", None] * 20, city=[*"abc" * 13, 1]),
        "'prepare__some' (OneHotEncoder)",
        "",
    ),
}
SPACE = {"learn__alpha": optuna.distributions.FloatDistribution(1e-3, 1.0)}


def by_functions(pipeline, X, y):
    tree_cross_validate(pipeline, X, y, cv=KFold(4))


def by_an_objective(pipeline, X, y):
    objective = treecv_objective(pipeline, X, y, cv=KFold(4), param_distributions=SPACE)
    optuna.create_study().optimize(objective, 1)


def by_a_search(pipeline, X, y):
    TreeCVSearchCV(pipeline, param_distributions=SPACE, n_trials=1, cv=KFold(4)).fit(X, y)


def by_fits(pipeline, X, y):
    tree_cross_validate(pipeline, X, y, cv=KFold(4), shuffle=False, method="fit")


def by_predictions(pipeline, X, y):
    tree_cross_val_predict(pipeline, X, y, cv=KFold(4), method="fit")


EVALUATIONS = [by_functions, by_an_objective, by_a_search, by_fits, by_predictions]


def check_said(error, step, said):
    """Check that a sentence names X and the step, and that the error of the step is its cause."""
    assert str(error).startswith(f"X must suit the step {step}: ")
    assert said in str(error)
    assert "\n" not in str(error)
    assert isinstance(error.__cause__, Exception)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "evaluate"),
    [
        *((case, by_functions) for case in SAID),
        *((case, EVALUATIONS[1 + i % 4]) for i, case in enumerate(SAID)),
    ],
)
def test_a_wrong_step_is_named_with_its_column(case, evaluate):
    prepare, X, step, said = SAID[case]
    pipeline = Pipeline([("prepare", prepare), ("learn", AveragedSGDClassifier())])
    with pytest.raises(ValueError) as error:
        evaluate(pipeline, X, np.arange(40) % 2)
    check_said(error.value, step, said)


@pytest.mark.parametrize("evaluate", EVALUATIONS)
def test_rows_without_columns_after_the_steps_are_refused(evaluate):
    pipeline = Pipeline([("prepare", SimpleImputer()), ("learn", AveragedSGDClassifier())])
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        evaluate(pipeline, ALL_EMPTY, np.arange(40) % 2)


@pytest.mark.parametrize("last", [AveragedSGDClassifier(), SGDClassifier()])
def test_a_wrong_entry_that_reaches_the_learner_of_a_fit_is_named(last):
    prepare = ColumnTransformer([("n", StandardScaler(), ["age"])], remainder="passthrough")
    column = "in column 'remainder__size', row 30"
    for value, said in (
        ("big", f"X must hold numbers, got 'big' {column}."),
        (np.nan, f"Input X contains NaN {column}, but must hold finite numbers."),
    ):
        X = with_entry(30, value)[NUMBERS]
        with pytest.raises(ValueError) as error:
            by_fits(Pipeline([("prepare", prepare), ("learn", last)]), X, np.arange(40) % 2)
        learner = f"the {type(last).__name__} 'learn'"
        assert str(error.value) == f"After preprocessing, for {learner}: {said}"


def test_what_scikit_learn_says_stands_behind_the_step():
    y = np.arange(40) % 2
    for prepare, X, said in (
        (selecting([1.5]), a_table(), "No valid specification of the columns"),
        (StandardScaler(), a_table()[NUMBERS].set_axis([0, "a"], axis=1), "string names"),
    ):
        pipeline = Pipeline([("prepare", prepare), ("learn", AveragedSGDClassifier())])
        with pytest.raises(ValueError, match=f"^X must suit the step 'prepare'.*{said}"):
            by_functions(pipeline, X, y)


class Failing(FunctionTransformer):
    def fit(self, X, y=None):
        raise ValueError("no value fits: 7 is out of range")


def test_the_error_of_another_transformer_is_kept_as_the_cause():
    pipeline = Pipeline([("prepare", Failing()), ("learn", AveragedSGDClassifier())])
    said = "no value fits: 7 is out of range"
    with pytest.raises(ValueError) as error:
        by_fits(pipeline, np.zeros((40, 2)), np.arange(40) % 2)
    assert str(error.value) == f"X must suit the step 'prepare' (Failing): {said}"
    assert str(error.value.__cause__) == said


class NeedsTargets(FunctionTransformer):
    def fit(self, X, y):
        assert len(X) == len(y)
        return super().fit(X)


def test_an_error_that_no_step_raises_is_left_as_it_is():
    steps = [("targets", NeedsTargets()), ("scale", StandardScaler())]
    pipeline = Pipeline([*steps, ("learn", Ridge(alpha=-1.0))])
    with pytest.raises(ValueError, match="^The 'alpha' parameter of Ridge"):
        by_fits(pipeline, np.zeros((40, 2)), np.arange(40) % 2)


@pytest.mark.parametrize("columns", [["when"], ["when", "size"]])
@pytest.mark.parametrize("learner", [AveragedSGDClassifier(), SGDClassifier(max_iter=1)])
@pytest.mark.parametrize("step", [StandardScaler(), MaxAbsScaler()])
def test_dates_before_a_scaler_do_not_count_as_nanoseconds(step, learner, columns):
    table = a_table(when=pd.date_range("2020-01-01", periods=40))
    pipeline = Pipeline([("prepare", selecting(columns, step=step)), ("learn", learner)])
    with pytest.raises(ValueError, match="not dates or durations, got type .* column 'when'"):
        tree_cross_validate(pipeline, table, np.arange(40) % 2, cv=4)


IN_PLACE = [
    [MinMaxScaler(copy=False)],
    [Normalizer(copy=False)],
    [StandardScaler(copy=False)],
    [MinMaxScaler(copy=False), StandardScaler(copy=False)],
    [SimpleImputer(strategy="constant", fill_value=0.5, copy=False), StandardScaler(copy=False)],
    [SimpleImputer(copy=False), MaxAbsScaler(copy=False)],
    [ColumnTransformer([("some", Normalizer(copy=False), slice(0, 3))], remainder="passthrough")],
    [ColumnTransformer([("some", MaxAbsScaler(copy=False), slice(0, 3))])],
]
LEARNERS = [
    AveragedSGDRegressor(shuffle=False),
    SGDRegressor(max_iter=1, tol=None, random_state=0),
    Ridge(),
]


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(steps=IN_PLACE, learner=LEARNERS, is_frame=[True, False]), ids=str)
def test_steps_that_may_overwrite_rows_change_nothing(steps, is_frame, learner, rows):
    X, y = rows
    has_gaps = isinstance(steps[0], SimpleImputer)
    if has_gaps:
        X[4, 2] = X[50, 0] = np.nan
    X = pd.DataFrame(X).add_prefix("x") if is_frame else X
    before = X.copy()
    found = []
    for copies in (True, False):
        pipeline = make_pipeline(*clone(steps), learner)
        names = (name for name in pipeline.get_params() if name.endswith("__copy"))
        if copies:
            pipeline.set_params(**dict.fromkeys(names, True))
        one = tree_cross_validate(pipeline, X, y, cv=3, n_epochs=1)
        found.append([one.test_score, tree_cross_val_predict(pipeline, X, y, cv=3)])
        grid = {f"{pipeline.steps[-1][0]}__alpha": [1e-2]}
        search = TreeCVSearchCV(pipeline, param_grid=grid, cv=2, random_state=0).fit(X, y)
        found[-1] += [search.cv_results_["mean_test_score"], search.predict(before.copy())]
        np.testing.assert_array_equal(X, before)
    for with_copies, without in zip(*found, strict=True):
        np.testing.assert_array_equal(with_copies, without)


def test_an_entry_that_is_no_number_is_named_before_a_gap_that_is_filled():
    table = a_table(when=["abc"] * 40)
    table.loc[1, "size"] = np.nan
    steps = ColumnTransformer([("n", FILL, ["size"])], remainder="passthrough")
    pipeline = make_pipeline(steps, AveragedSGDClassifier())
    with pytest.raises(ValueError, match="got '.*' in column 'remainder__city', row 0"):
        tree_cross_validate(pipeline, table, np.arange(40) % 2, cv=4)
