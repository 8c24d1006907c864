"""What users may have kept of an earlier version can be read: see ``old_data.py``."""

from __future__ import annotations

import gzip
from pathlib import Path
import pickle
from typing import Any

import numpy as np
import old_data
import optuna
import pytest

from optuna_treecv import CVResult
from optuna_treecv import tree_cross_validate
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores

VERSIONS = sorted(path for path in (Path(__file__).parents[1] / "data").iterdir() if path.is_dir())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def folder(request: Any, tmp_path: Path) -> Path:
    for path in request.param.iterdir():
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return tmp_path


def unpickled(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def test_evaluations_of_a_store_are_read(folder):
    store = f"sqlite:///{folder}/store.db"
    study = optuna.load_study(
        study_name=old_data.STUDY, storage=f"sqlite:///{folder}/study.db", sampler=None
    )
    evaluations = load_evaluations(store, study=study)
    assert len(evaluations) == len(study.trials) == 3
    means = (
        load_fold_scores(store, study=study).groupby("trial_number", observed=True)["score"].mean()
    )
    np.testing.assert_allclose(means, [trial.value for trial in study.trials])


def test_a_study_goes_on(folder):
    """A trial in the old store has the value that it would have today."""
    objective = old_data.make_objective(f"sqlite:///{folder}/store.db")
    study = optuna.load_study(
        study_name=old_data.STUDY, storage=f"sqlite:///{folder}/study.db", sampler=None
    )
    for trial in study.trials:
        assert objective.evaluate(trial.params).mean == trial.value
    study.enqueue_trial({"alpha": 0.1})
    study.optimize(objective, n_trials=1)
    assert study.trials[-1].value in [trial.value for trial in study.trials[:-1]]


def test_pickles_are_read(folder):
    X, y = old_data.rows()
    estimators = unpickled(folder / "estimators.pickle")
    expected = np.load(folder / "predictions.npy")
    np.testing.assert_array_equal(old_data.predictions(estimators), expected)
    np.testing.assert_array_equal(old_data.predictions(old_data.fitted()), expected)

    result = unpickled(folder / "result.pickle")
    assert isinstance(result, CVResult)
    today = tree_cross_validate(old_data.Ridge(), X, y, cv=5, row_losses=True)
    np.testing.assert_allclose(result.test_score, today.test_score, rtol=1e-9)
    assert result.compare(today).mean == pytest.approx(0.0, abs=1e-9)
    assert result.interval().low < result.mean < result.interval().high

    honest = unpickled(folder / "honest.pickle")
    assert honest.low < honest.mean < honest.high
    assert repr(honest).startswith("Honest(mean=")


def test_an_objective_that_was_pickled_evaluates(folder):
    objective = unpickled(folder / "objective.pickle")
    X, y = old_data.rows()
    expected = tree_cross_validate(old_data.Ridge(0.1), X, y, cv=5)
    assert objective.evaluate({"alpha": 0.1}).mean == pytest.approx(expected.mean, rel=1e-9)
    study = optuna.create_study(direction=objective.direction)
    study.enqueue_trial({"alpha": 1.0})
    study.optimize(objective, n_trials=1)
    assert objective.honest(study).mean == pytest.approx(study.best_value)


def test_a_grid_sampler_is_found_where_earlier_versions_had_it():
    from optuna_treecv.study.grids import GridSampler

    assert pickle.loads(b"coptuna_treecv.study.space\nGridSampler\n.") is GridSampler
