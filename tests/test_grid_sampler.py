"""The grid sampler suggests what Optuna's does, without comparing value by value."""

from __future__ import annotations

from unittest.mock import patch

import optuna
import pytest

from optuna_treecv.study.grid import GridSampler

CHOICES = {"a": [0.1, float("nan"), 3], "b": ["x", None, True]}
GRIDS = [CHOICES, {"a": [float("nan"), 0.1, 3], "b": ["x", None, True]}, {"a": [0.1, 3]}]


def points_of(kind, storage):
    """Return the points of a study over several grids, the last one being the first again."""
    study = optuna.create_study(storage=storage)
    for grid in (*GRIDS, GRIDS[0]):

        def objective(trial, names=tuple(grid)):
            return len([trial.suggest_categorical(name, CHOICES[name]) for name in names])

        study.sampler = kind(grid, seed=1)
        study.optimize(objective, n_trials=4)
    return [repr(trial.params) for trial in study.trials], study.sampler.is_exhausted(study)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_points_are_optunas(is_stored, tmp_path):
    def storage(name):
        return f"sqlite:///{tmp_path}/{name}.db" if is_stored else None

    assert points_of(GridSampler, storage("ours")) == points_of(
        optuna.samplers.GridSampler, storage("theirs")
    )


def test_equal_grids_are_not_compared_by_value():
    grid = {"a": [1.0, 2.0, 3.0]}
    study = optuna.create_study(sampler=GridSampler(grid))
    with patch.object(GridSampler, "_grid_value_equal", side_effect=AssertionError):
        study.optimize(lambda trial: trial.suggest_float("a", 0, 4))
    assert sorted(trial.value for trial in study.trials) == grid["a"]
