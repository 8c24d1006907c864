"""The grid sampler suggests what Optuna's does, faster, also for a union of grids."""

from __future__ import annotations

from itertools import product
import pickle
from unittest.mock import patch
import warnings

import numpy as np
import optuna
from pairs import pairs
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.core.run import Run
from optuna_treecv.study.grids import GridSampler

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4))
Y = (X[:, 0] + RNG.normal(size=300) > 0).astype(int)

CHOICES = {"a": [0.1, float("nan"), 3], "b": ["x", None, True]}
GRIDS = [CHOICES, {"a": [float("nan"), 0.1, 3], "b": ["x", None, True]}, {"a": [0.1, 3]}]


def ours(grid, seed):
    return GridSampler([grid], seed)


def points_of(kind, storage):
    """Return the points of a study over several grids, the last one being the first again."""
    study = optuna.create_study(storage=storage)
    for grid in (*GRIDS, GRIDS[0]):

        def objective(trial, names=tuple(grid)):
            return len([trial.suggest_categorical(name, CHOICES[name]) for name in names])

        study.sampler = kind(grid, seed=1)
        study.optimize(objective, n_trials=4)
    return [repr(trial.params) for trial in study.trials], study.sampler.is_exhausted(study)


@pytest.mark.slow
def test_the_points_are_optunas(tmp_path):
    found = points_of(ours, f"sqlite:///{tmp_path}/ours.db")
    assert found == points_of(optuna.samplers.GridSampler, None)


def test_equal_grids_are_not_compared_by_value():
    grid = {"a": [1.0, 2.0, 3.0]}
    study = optuna.create_study(sampler=GridSampler([grid]))
    with patch.object(GridSampler, "_grid_value_equal", side_effect=AssertionError):
        study.optimize(lambda trial: trial.suggest_float("a", 0, 4))
    assert sorted(trial.value for trial in study.trials) == grid["a"]


@pytest.mark.parametrize("n_enqueued", [1, 2, 3])
def test_a_point_may_be_enqueued_when_one_is_left(n_enqueued):
    sampler = GridSampler([{"a": [1.0, 2.0, 3.0]}])
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        return trial.suggest_float("a", 0, 4)

    study.optimize(objective, n_trials=2)
    for _ in range(n_enqueued):
        study.enqueue_trial({"a": 2.5})
    study.optimize(objective)
    values = [trial.value for trial in study.trials]
    assert values[2 : 2 + n_enqueued] == [2.5] * n_enqueued
    assert sorted({*values} - {2.5}) == [1.0, 2.0, 3.0] and len(values) == 3 + n_enqueued
    study.enqueue_trial({"a": 0.5})  # nothing is left: it is evaluated, and the study ends
    study.optimize(objective)
    assert study.trials[-1].value == 0.5


UNION = [
    {"a": [0.1, float("nan")], "b": ["x", None]},
    {"a": [0.1, 3.0], "b": ["x"]},
    {"a": [0.1], "b": [True, None]},
]


@pytest.mark.slow
def test_a_union_of_grids_is_visited_once(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    choices = {"a": [0.1, float("nan"), 3.0], "b": ["x", None, True]}

    def objective(trial):
        return len([trial.suggest_categorical(name, choices[name]) for name in choices])

    study = optuna.create_study(storage=storage, sampler=GridSampler(UNION, seed=1))
    study.optimize(objective, n_trials=2)
    study.sampler = GridSampler(UNION, seed=1)  # as in another process
    study.optimize(objective)
    expected = [
        repr(dict(zip(grid, point, strict=True)))
        for grid in UNION
        for point in product(*grid.values())
    ]
    assert len(expected) == 8
    assert sorted(repr(trial.params) for trial in study.trials) == sorted(set(expected))
    assert study.sampler.is_exhausted(study)


def visited(param_grid, estimator, sampler=None, **options):
    """Return a study of an objective over a grid, without a limit on its trials."""
    objective = treecv_objective(estimator, X, Y, param_grid=param_grid, cv=3)
    study = optuna.create_study(
        direction=objective.direction, sampler=sampler or objective.grid_sampler(seed=0)
    )
    study.optimize(objective, **options)
    return study


def test_a_list_of_dicts_is_searched_as_by_grid_search_cv(batch_sizes):
    """Each point is scored as by a separate evaluation of what GridSearchCV would set."""
    model = AveragedSGDClassifier(loss="log_loss", step_size=0.5)
    grids = [
        {"alpha": [1e-4, 1e-2], "average": ["linear", False]},
        {"step_size": np.array([0.1, 0.5]), "alpha": [1e-2, 1]},
    ]
    study = visited(grids, model)
    points = {}
    for params in ParameterGrid(grids):
        candidate = clone(model).set_params(**params)
        key = candidate.alpha, candidate.step_size, candidate.average
        points[key] = tree_cross_validate(candidate, X, Y, cv=3).mean
    assert len(points) == 7  # of 8: two dicts share one
    found = {
        (trial.params["alpha"], trial.params["step_size"], trial.params["average"]): trial.value
        for trial in study.trials
    }
    assert len(study.trials) == 7 and found == points
    assert max(batch_sizes) > 1  # points are trained side by side as in a single grid


def test_a_list_with_one_dict_is_that_dict():
    grid = {"alpha": [0.1, 1.0]}
    objective = treecv_objective(PegasosClassifier(), X, Y, param_grid=[grid])
    assert objective.param_grid == grid
    assert isinstance(objective.grid_sampler(), optuna.samplers.GridSampler)


def test_an_inner_parameter_is_not_set_beside_another_inner_estimator():
    """A dict that puts in an estimator keeps its parameters; others have those as given."""
    pipeline = Pipeline([("scale", MinMaxScaler()), ("model", PegasosClassifier())])
    grids = [
        {"model": [PegasosClassifier(alpha=5)]},
        {"model__alpha": [0.1, 1.0]},
        {"model": [Ridge()], "model__solver": ["cholesky"]},
        {},
    ]
    folds = np.arange(len(Y)) % 3
    objective, study = searched(pipeline, (X, Y), grids, cv=folds, scoring="r2")
    found = []
    for trial in study.trials:
        values = objective.values_of(trial.params)
        found.append((type(values["model"]).__name__, sorted(values)))
        alone = tree_cross_validate(
            clone(pipeline).set_params(**values), X, Y, cv=folds, scoring="r2", random_state=0
        )
        assert trial.value == pytest.approx(alone.mean, abs=1e-9)
        assert objective.evaluate(values).mean == trial.value
    pegasos = ("PegasosClassifier", ["model", "model__alpha"])
    assert sorted(found) == [
        ("PegasosClassifier", ["model"]),
        *[pegasos] * 3,
        ("Ridge", ["model", "model__solver"]),
    ]
    best = objective.best_estimator(study)
    assert type(best[-1]).__name__ in ("PegasosClassifier", "Ridge")


@pytest.mark.parametrize(
    ("sampler", "param_grid", "says"),
    [
        (optuna.samplers.RandomSampler(seed=0), {"alpha": [0.1, 1.0, 10.0]}, "off the grid"),
        (optuna.samplers.RandomSampler(seed=0), {"fit_intercept": [True, False]}, "a second time"),
        (optuna.samplers.TPESampler(seed=0), [{"alpha": [0.1]}, {"alpha": [1.0]}], "off the grid"),
    ],
)
def test_a_grid_without_its_sampler_is_noticed_once(sampler, param_grid, says):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        visited(param_grid, PegasosClassifier(), sampler, n_trials=6)
    (sentence,) = [str(one.message) for one in caught if one.category is UserWarning]
    assert sentence.startswith(
        f"param_grid needs sampler=objective.grid_sampler(), because {type(sampler).__name__} "
        f"suggests a point {says} (trial "
    )


@pytest.mark.filterwarnings("error", "ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_that_keeps_to_the_grid_gets_no_warning():
    grid = {"alpha": [0.1, 1.0], "fit_intercept": [True, False]}
    visited(grid, PegasosClassifier(), optuna.samplers.GridSampler(grid))
    choices = {"fit_intercept": [True, False]}
    visited(choices, PegasosClassifier(), optuna.samplers.BruteForceSampler())
    objective = treecv_objective(PegasosClassifier(), X, Y, param_grid=grid)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    for _ in range(2):
        study.enqueue_trial({"alpha": 0.5, "fit_intercept": True})
    study.optimize(objective, n_trials=2)


class Interrupted(AveragedSGDClassifier):
    """Raises an error at one value of alpha, a few times."""

    left = {}

    def set_params(self, **params):
        super().set_params(**params)
        if self.left.get(self.alpha, 0) > 0:
            self.left[self.alpha] -= 1
            raise KeyboardInterrupt if self.alpha == 0.1 else ValueError("no luck")
        return self


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(alpha=[0.1, 0.2], is_stored=[True, False], is_new=[True, False]))
def test_a_point_that_failed_is_evaluated_again(alpha, is_stored, is_new, tmp_path, monkeypatch):
    grid = {"alpha": [0.1, 0.2, 0.3, 0.4, 0.5]}
    objective = treecv_objective(Interrupted(), X, Y, param_grid=grid, cv=3, batch_size=1)
    storage = f"sqlite:///{tmp_path}/study.db" if is_stored else None
    study = optuna.create_study(storage=storage, sampler=objective.grid_sampler())
    monkeypatch.setitem(Interrupted.left, alpha, 1)
    with pytest.raises((KeyboardInterrupt, ValueError)):
        study.optimize(objective)
    if is_new:
        study.sampler = objective.grid_sampler()
    study.optimize(objective)
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert sorted(trial.params["alpha"] for trial in complete) == grid["alpha"]
    assert len(study.trials) == 6


def test_a_study_ends_whose_points_always_fail(monkeypatch):
    grid = {"alpha": [0.2, 0.3, 0.4]}
    objective = treecv_objective(Interrupted(), X, Y, param_grid=grid, cv=3, batch_size=1)
    study = optuna.create_study(sampler=objective.grid_sampler())
    monkeypatch.setitem(Interrupted.left, 0.2, 5)
    study.optimize(objective, catch=ValueError)
    assert [trial.state.name for trial in study.trials].count("FAIL") == 2
    assert study.trials[-1].state.name == "FAIL" and len(study.trials) == 4
    study.optimize(objective, catch=ValueError)  # what failed is tried again, and then it is left
    assert [trial.state.name for trial in study.trials[4:]] == ["FAIL", "FAIL"]
    study.optimize(objective, catch=ValueError)
    assert [trial.state.name for trial in study.trials[6:]] == ["FAIL", "COMPLETE"]
    assert {trial.params["alpha"] for trial in study.trials[4:]} == {0.2}


@pytest.mark.slow
def test_a_grid_of_other_types_is_another_grid(tmp_path):
    """Optuna counts the points of [1, None] as those of [1.0, None] and of [True, None]."""
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db")
    for number, values in enumerate(([1, None], [1.0, None], [True, None], [1, None])):
        sampler = pickle.loads(pickle.dumps(GridSampler([{"a": values}])))
        assert sampler.is_exhausted(study) == (number == 3)
        if not sampler.is_exhausted(study):
            study.sampler = sampler
            study.optimize(lambda trial: trial.suggest_categorical("a", [1, None]) or 0.0)


@pytest.mark.slow
def test_work_grows_as_the_grid_does(monkeypatch):
    """No trial looks again at all points that wait for their trials, or at all trials."""
    calls = []
    for owner, name in ((Run, "missing"), (GridSampler, "_same_search_space")):
        inner = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *of, f=inner: calls.append(1) or f(*of))
    n_calls = []
    for n_points in (50, 400):
        calls.clear()
        grid = {"alpha": np.geomspace(1e-4, 1, n_points)}
        _, study = searched(PegasosClassifier(), (X[:50], Y[:50]), grid, cv=2)
        n_calls.append(len(calls))
    assert len(study.trials) == 400 and n_calls[1] < 10 * n_calls[0]
