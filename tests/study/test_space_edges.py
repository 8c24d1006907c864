"""Values at the edge of their ranges are said, where better ones may lie beyond."""

import warnings

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from sklearn.linear_model import Ridge
from sklearn.tree import DecisionTreeClassifier
from studies import searched

from optuna_treecv import TreeCVSearchCV
from optuna_treecv.study.advice import edges_of

LOG, SHARE = FloatDistribution(1e-4, 1e2, log=True), FloatDistribution(0, 1)
WIDE, WHOLE = FloatDistribution(-5, 5), IntDistribution(1, 10)


@pytest.mark.parametrize(
    "distribution, value, end",
    [
        (LOG, 1e-4, "lower"),
        (LOG, 1.2e-4, "lower"),  # 1.3 % of six decades
        (LOG, 2e-4, None),  # 5 %
        (LOG, 90.0, "upper"),
        (FloatDistribution(1e-4, 1.0, log=True), 1.0, "upper"),  # no share
        (WIDE, -4.9, "lower"),
        (WIDE, 4.5, None),
        (SHARE, 0.0, None),  # nothing is less
        (SHARE, 1.0, None),
        (FloatDistribution(0, 10), 0.1, None),
        (FloatDistribution(0, 10), 9.9, "upper"),
        (WHOLE, 2, None),
        (WHOLE, 10, "upper"),
        (IntDistribution(50, 500), 52, "lower"),
        (IntDistribution(50, 500), 70, None),
        (IntDistribution(8, 9), 9, None),  # of two values, each is at an end
        (IntDistribution(8, 512, log=True), 512, "upper"),
        (FloatDistribution(3.0, 3.0), 3.0, None),
        (CategoricalDistribution([0.1, 10.0, 1.0]), 10.0, "upper"),
        (CategoricalDistribution([0.1, 10.0, 1.0]), 1.0, None),
        (CategoricalDistribution([0.1, 10.0]), 10.0, None),
        (CategoricalDistribution(["l1", "l2", None]), "l1", None),
        (CategoricalDistribution([True, False]), True, None),
    ],
)
def test_which_values_are_at_an_edge(distribution, value, end):
    trial = optuna.trial.create_trial(
        value=0.0, params={"x": value}, distributions={"x": distribution}
    )
    found = edges_of(trial, {})
    assert list(found) == ([] if end is None else ["x"])
    if end is not None:
        assert f"at the {end} end of its range (" in found["x"]


@pytest.mark.parametrize(
    "distribution, number, value, is_said",
    [
        (LOG, 1.0, 0.5004, False),  # a plateau
        (LOG, 1.0, 0.5006, True),  # more than a twentieth of the standard deviation
        (LOG, 60.0, 0.5004, True),  # near the edge, too
        (CategoricalDistribution([0.1, 1.0, 90.0]), 1.0, 0.5004, False),
        (CategoricalDistribution([0.1, 1.0, 90.0]), 1.0, 0.5006, True),
    ],
)
def test_a_plateau_has_no_edge(distribution, number, value, is_said):
    def trial(x, value):
        return optuna.trial.create_trial(
            value=value,
            params={"x": x},
            distributions={"x": distribution},
            user_attrs={"treecv": {"std_test_score": 0.01}},
        )

    best = trial(90.0, 0.5)
    elsewhere = optuna.trial.create_trial(value=0.5, params={}, distributions={})
    found = edges_of(best, {}, [best, trial(number, value), elsewhere])
    assert list(found) == ["x"] * is_said


@pytest.mark.parametrize(
    "values, best, end",
    [
        ([0.01, 0.1, 1.0], 1.0, "upper"),
        ([0.1, 0.5, 0.9, 1.0], 1.0, None),  # shares, such as l1_ratio
        ([0.1, 0.5, 0.9, 1.0], 0.1, "lower"),
        ([1, 2, 5], 1, None),
        ([1, 2, 5], 5, "upper"),
        ([5, 7], 7, None),
    ],
)
def test_lists_have_a_first_and_a_last_value(values, best, end):
    space = {"x": FloatDistribution(min(values), max(values))}
    if isinstance(best, int):
        space = {"x": IntDistribution(min(values), max(values))}
    trial = optuna.trial.create_trial(value=0.0, params={"x": best}, distributions=space)
    found = edges_of(trial, {"x": values})
    assert [f"at the {end} end" in where for where in found.values()] == [True] * (end is not None)


@pytest.mark.parametrize("is_union", [False, True])
def test_trials_of_a_grid_know_its_values(is_union):
    X, y = data()
    grid = [{"alpha": [0.01, 0.1, 1.0]}, {"alpha": [1.0, 0.1]}] if is_union else {"alpha": [1, 2]}
    _, study = searched(Ridge(), (X, y), grid)
    found = {trial.params["alpha"]: edges_of(trial, {}) for trial in study.trials}
    expected = [0.01, 1.0] if is_union else []  # of two values, none has others beside it
    assert sorted(alpha for alpha, edges in found.items() if edges) == expected


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    return X, X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=60)


def said(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in found if "its range" in str(one.message)]


@pytest.mark.parametrize("alphas, is_said", [([1e2, 1e3, 1e4], True), ([0.0, 1e2, 1e4], False)])
def test_best_estimator_and_searches_say_it(alphas, is_said):
    X, y = data()
    message = (
        "trial {} has alpha=100 at the lower end of its range (100 to 1e+04); a wider range may "
        "hold a better value."
    )
    objective, study = searched(Ridge(), (X, y), {"alpha": alphas})
    expected = [message.format(study.best_trial.number)] if is_said else []
    assert said(lambda: objective.best_estimator(study)) == expected
    search = TreeCVSearchCV(Ridge(), param_grid={"alpha": alphas})
    assert said(lambda: search.fit(X, y)) == ([message.format(0)] if is_said else [])


def test_a_callable_that_suggests(binary):
    def tree(trial):
        return DecisionTreeClassifier(
            max_leaf_nodes=trial.suggest_int("max_leaf_nodes", 3, 100),
            ccp_alpha=trial.suggest_float("ccp_alpha", 0.0, 1.0),
        )

    candidates = [{"max_leaf_nodes": 3, "ccp_alpha": 0.0}]
    objective, study = searched(tree, binary, None, candidates=candidates, cv=2)
    assert said(lambda: objective.best_estimator(study.trials[0])) == [
        "trial 0 has max_leaf_nodes=3 at the lower end of its range (3 to 100); a wider range may "
        "hold a better value."
    ]
