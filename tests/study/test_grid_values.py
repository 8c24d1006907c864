"""Estimators get the values of a grid as they are given: object for object and type for type."""

from __future__ import annotations

from decimal import Decimal
import json
import pickle
import warnings

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import RandomizedSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier
from studies import searched

from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.study.space import axis_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 8))
Y = (X[:, 0] + X[:, 1] + RNG.normal(size=60) > 0).astype(int)
CV = KFold(3)
TREE = DecisionTreeClassifier(random_state=0)


def typed(value):
    """Return the type of a value and what it prints; np.float64 is a float too."""
    value = float(value) if type(value) is np.float64 else value
    return type(value), repr(value)


class Typed(ClassifierMixin, BaseEstimator):
    """Scores a number that only the value and the type of its parameters decide."""

    def __init__(self, a=None, b=None):
        self.a = a
        self.b = b

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.zeros(len(X), int)

    def score(self, X, y):
        seed = [*repr((typed(self.a), typed(self.b))).encode(), len(X)]
        return float(np.random.default_rng(seed).random())


def score_of(estimator, X, y):
    return estimator.score(X, y)


def assert_is_grid_search(estimator, grid, **options):
    ours = TreeCVSearchCV(estimator, param_grid=grid, cv=CV, random_state=0, **options).fit(X, Y)
    theirs = GridSearchCV(estimator, grid, cv=CV).fit(X, Y)
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-12
    )
    for own, their in zip(ours.cv_results_["params"], theirs.cv_results_["params"], strict=True):
        assert {n: typed(v) for n, v in own.items()} == {n: typed(v) for n, v in their.items()}
    for name, value in theirs.best_params_.items():
        assert typed(ours.best_params_[name]) == typed(value)
        assert typed(ours.best_estimator_.get_params()[name]) == typed(value)
    return ours


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid",
    [
        {"max_features": [0.5, 1]},
        {"max_features": ["sqrt", 1, 1.0]},
        {"min_samples_split": [2, 0.3], "max_depth": [None, 2]},
        [{"max_features": [1]}, {"max_features": [1.0, 0.5], "max_depth": [2]}],
        {"class_weight": [{0: 1, 1: 2}, {0: 1, 1: 20}, None, "balanced"]},
    ],
)
def test_trees_are_those_of_grid_search(grid):
    assert_is_grid_search(TREE, grid)


OBJECTS = [
    np.arange(3),
    np.arange(3.0),
    np.eye(2),
    FunctionTransformer(np.log1p),
    KFold,
    Decimal(1),
]
VALUES = st.one_of(
    st.sampled_from([0, 1, 2, 0.0, -0.0, 1.0, 2.0, 0.5, True, False, None, "1", "int(1)", "x"]),
    st.sampled_from([np.float32(0.3), 0.3, np.float64(1), np.int64(1), np.int8(1), np.bool_(1)]),
    st.sampled_from([2**53, 2**53 + 1, 2.0**53, 2**70, np.uint64(2**64 - 1), 5e-324, 1e300]),
    st.sampled_from(
        [float("nan"), np.float32("nan"), float("inf"), np.float16(0.1), np.str_("x")]
    ),
    st.sampled_from([(1, 2), (1.0, 2.0), [1, 2], (True,), (1,), {"a": 1}, {"a": 1.0}, ()]),
    st.sampled_from(OBJECTS),
)
LISTS = st.lists(VALUES, min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(a=LISTS, b=LISTS)
def test_any_grid_is_that_of_grid_search(a, b):
    assert_is_grid_search(Typed(), [{"a": [*a, "end"], "b": b}, {"a": b}])


@settings(max_examples=60, deadline=None)
@given(values=LISTS, are_choices=st.booleans())
def test_codes_are_told_apart_by_optuna_and_by_json(values, are_choices):
    axis = axis_of(values, are_choices=are_choices)
    pickled = pickle.loads(pickle.dumps(axis))
    for value in values:
        code = axis.code_of(value)
        assert typed(pickled.value_of(code)) == typed(axis.value_of(code))
        internal = axis.distribution.to_internal_repr(json.loads(json.dumps(code)))
        stored = axis.distribution.to_external_repr(internal)
        assert typed(stored) == typed(code) and axis.code_of(code) == code
        assert typed(axis.value_of(stored)) == typed(value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2**53, -(2**53)], IntDistribution(-(2**53), 2**53)),
        ([2**53, 2**53 + 1], CategoricalDistribution([2**53, 2**53 + 1])),
        (np.array([1, 2]), IntDistribution(1, 2)),
        ([np.float32(0.5), 0.25], FloatDistribution(0.25, 0.5)),
        ([np.float64(0.5), 0.5], FloatDistribution(0.5, 0.5)),
        ([0.0, -0.0], CategoricalDistribution(["float(0.0)", "float(-0.0)"])),
        ([1, True, 2], CategoricalDistribution(["int(1)", "bool(True)", 2])),
        ([1, 1.0, "int(1)"], CategoricalDistribution(["=int(1)", "float(1.0)", "int(1)"])),
        ([(50,), (50, 50)], CategoricalDistribution(["(50,)", "(50, 50)"])),
        ([0.1, 1, 2.5], CategoricalDistribution([0.1, 1, 2.5])),
        (np.geomspace(1e-4, 1, 3), FloatDistribution(1e-4, 1.0, log=True)),
        (range(1, 200), IntDistribution(1, 199, log=True)),
        ([0, 1000], IntDistribution(0, 1000)),
        ([True, False], CategoricalDistribution([True, False])),
        (("hinge", "log_loss"), CategoricalDistribution(["hinge", "log_loss"])),
        ([None, 0.5], CategoricalDistribution([None, 0.5])),
    ],
)
def test_what_trials_show(values, expected):
    assert axis_of(values).distribution == expected


GRID = {"a": [1, 1.0, True, (1, 2)], "b": [np.float32(0.5), 0.25]}


@pytest.mark.slow
def test_every_way_to_a_point_gets_its_values(tmp_path):
    """Trials, evaluate, best_estimator and enqueued trials; also in a study that is loaded."""
    storage = f"sqlite:///{tmp_path}/study.db"
    objective = treecv_objective(Typed(), X, Y, param_grid=GRID, cv=CV, scoring=score_of)
    study = optuna.create_study(
        study_name="grid", storage=storage, direction="maximize", sampler=objective.grid_sampler()
    )
    study.enqueue_trial({"a": "(1, 2)", "b": 0.5})
    study.optimize(objective, n_trials=3)
    # As another process would go on:
    objective = treecv_objective(Typed(), X, Y, param_grid=GRID, cv=CV, scoring=score_of)
    study = optuna.load_study(study_name="grid", storage=storage, sampler=objective.grid_sampler())
    study.optimize(objective)
    seen = set()
    for trial in study.trials:
        values = objective.values_of(trial.params)
        seen.add(repr(values))
        mean = tree_cross_validate(Typed(**values), X, Y, cv=CV, scoring=score_of).mean
        assert trial.value == objective.evaluate(values).mean == mean
        assert trial.value == objective.evaluate(trial.params).mean == objective(trial)
        fitted = objective.best_estimator(trial)
        assert [typed(fitted.a), typed(fitted.b)] == [*map(typed, values.values())]
    assert len(seen) == 8
    assert "np.float32(0.5)" in repr(seen) and "True" in repr(seen) and "(1, 2)" in repr(seen)


def test_a_value_that_is_not_in_the_list_is_refused():
    objective = treecv_objective(TREE, X, Y, param_grid={"max_features": [0.5, 1]}, cv=CV)
    with pytest.raises(
        ValueError, match=r"'max_features' cannot have this .* one of 0.5, 1, got 1\.0"
    ):
        objective.evaluate({"max_features": 1.0})
    objective = treecv_objective(TREE, X, Y, param_grid={"max_depth": [1, 2]}, cv=CV)
    with pytest.raises(ValueError, match="'max_depth' .* must be an integer, got 1.5"):
        objective.evaluate({"max_depth": 1.5})
    assert objective.evaluate({"max_depth": 3}).n_folds == 3


def test_a_study_of_the_older_form_is_refused():
    """Versions before stored a mixed list as floats."""
    search = TreeCVSearchCV(TREE, param_grid={"max_features": [0.5, 1]}, cv=CV, random_state=0)
    study = optuna.create_study(direction="maximize")
    older = {"max_features": FloatDistribution(0.5, 1.0)}
    study.add_trial(
        optuna.trial.create_trial(params={"max_features": 1.0}, distributions=older, value=0.7)
    )
    with pytest.raises(ValueError, match=r"'max_features' of trial 0 has Float.* a new study"):
        search.set_params(study=study).fit(X, Y)
    objective = treecv_objective(TREE, X, Y, param_grid={"max_features": [0.5, 1]}, cv=CV)
    with pytest.raises(
        ValueError, match=r"max_features=1\.0 from the distribution Float.* searches Categ"
    ):
        objective.best_estimator(study)


@pytest.mark.slow
def test_lists_that_samplers_draw_from(tmp_path):
    lists = {"a": [1, 1.0, (1, 2), np.float32(0.3)], "b": [True, 1.0]}
    storage = f"sqlite:///{tmp_path}/study.db"
    search = TreeCVSearchCV(
        Typed(), lists, cv=CV, n_trials=12, random_state=0, storage=storage
    ).fit(X, Y)
    theirs = RandomizedSearchCV(Typed(), lists, cv=CV, n_iter=8).fit(X, Y)
    found, expected = (
        {
            repr(sorted(params.items())): mean
            for params, mean in zip(
                one.cv_results_["params"], one.cv_results_["mean_test_score"], strict=True
            )
        }
        for one in (search, theirs)
    )
    assert len(found) > 3
    assert found == pytest.approx({params: expected[params] for params in found}, rel=1e-12)


def test_equal_choices_of_a_users_distribution_are_scored_as_recorded():
    """Optuna stores 1.0 and True as the first choice that equals them."""
    choices = CategoricalDistribution([1, 1.0, True])
    objective = treecv_objective(
        Typed(), X, Y, param_distributions={"a": choices}, cv=CV, scoring=score_of
    )
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=9)
    assert {typed(trial.params["a"]) for trial in study.trials} == {typed(1)}
    assert len({trial.value for trial in study.trials}) == 1
    assert typed(objective.best_estimator(study).a) == typed(1)


@pytest.mark.slow
def test_estimators_go_into_a_storage(tmp_path):
    """A storage holds JSON."""
    pipeline = Pipeline([("step", FunctionTransformer()), ("model", LogisticRegression())])
    steps = {"step": [FunctionTransformer(np.log1p), FunctionTransformer(np.sqrt), "passthrough"]}
    storage = f"sqlite:///{tmp_path}/study.db"
    objective, study = searched(pipeline, (np.abs(X), Y), steps, cv=CV, study={"storage": storage})
    assert len(study.trials) == 3
    best = objective.best_estimator(study)[0]
    assert repr(best) == repr(objective.values_of(study.best_params)["step"])


SIZES = [(2,), (3, 2)]


def chosen_by_hand():
    """Return a distribution of tuples, of which Optuna warns once for each."""
    with pytest.warns(UserWarning, match="^Choices for a categorical distribution"):
        return CategoricalDistribution(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grid", "list", "distribution"])
def test_values_come_back_as_they_were_given(kind, tmp_path):
    """Optuna holds texts in the place of tuples, and does not warn of each trial."""
    name, network = "hidden_layer_sizes", MLPClassifier(max_iter=3, random_state=0)
    space = {name: chosen_by_hand() if kind == "distribution" else SIZES}
    spaces = {"param_grid" if kind == "grid" else "param_distributions": space}
    storage = f"sqlite:///{tmp_path}/study.db" if kind == "list" else "sqlite://"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Choices for")
        search = TreeCVSearchCV(
            network, cv=CV, n_trials=2, random_state=0, storage=storage, **spaces
        ).fit(X, Y)
        objective = treecv_objective(network, X, Y, cv=CV, **spaces)
        study = optuna.create_study(storage=storage, direction="minimize")
        study.optimize(objective, n_trials=3)
    assert any(search.best_params_[name] is size for size in SIZES)
    assert search.best_estimator_.hidden_layer_sizes == search.best_params_[name]
    assert set(search.cv_results_[f"param_{name}"]) <= set(SIZES)
    assert study.best_params[name] in ("(2,)", "(3, 2)")
    value = objective.values_of(study.best_params)[name]
    assert any(value is size for size in SIZES)
    assert objective.best_estimator(study).hidden_layer_sizes == value
    nested = objective.nested(study)
    assert all(any(one[name] is size for size in SIZES) for one in nested.params)
    for one in (value, study.best_params[name]):
        assert objective.evaluate({name: one}).mean == study.best_value
        assert objective(optuna.trial.FixedTrial({name: one})) == study.best_value


@pytest.mark.slow
def test_objects_of_a_users_distribution_go_into_a_storage():
    state = np.random.RandomState(0)
    with pytest.warns(UserWarning, match="^Choices for a categorical distribution"):
        space = {"a": CategoricalDistribution([state])}
    search = TreeCVSearchCV(Typed(), space, cv=CV, storage="sqlite://", random_state=0)
    assert search.set_params(n_trials=1).fit(X, Y).best_params_["a"] is state
