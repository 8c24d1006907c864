"""Warnings where a number would mislead, and what is said of rows that are not in memory."""

import warnings

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.rows import checks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = (X[:, 0] > 0).astype(int)
WIDE = X * [1, 1, 1000]
DATES = pd.date_range("2026-01-01", periods=200)


def said(function, *args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    return [str(one.message) for one in caught if one.category is UserWarning]


@pytest.mark.parametrize("learner", [PegasosClassifier(), SGDClassifier(max_iter=1)])
def test_scales(learner):
    (sentence,) = said(tree_cross_validate, learner, WIDE, Y)
    assert "the ranges of the columns of X differ by a factor of 770," in sentence
    assert f"StandardScaler(), {type(learner).__name__}(...)) instead" in sentence
    assert said(tree_cross_validate, learner, X, Y) == []
    assert said(tree_cross_validate, learner, pd.DataFrame(WIDE), Y) == [sentence]
    assert said(tree_cross_validate, make_pipeline(StandardScaler(), learner), WIDE, Y) == []
    rare = np.column_stack([X, np.arange(200) == 7])
    assert said(tree_cross_validate, learner, rare, Y) == []


def test_scales_are_those_of_rows_everywhere():
    rows = RNG.normal(size=(20_000, 2))
    rows[-5_000:, 1] *= 10_000
    (sentence,) = said(tree_cross_validate, PegasosClassifier(), rows, rows[:, 0] > 0)
    assert "the ranges of the columns of X differ by a factor of" in sentence


def test_scales_do_not_matter_to_others():
    assert said(tree_cross_validate, LogisticRegression(max_iter=9999), WIDE, Y) == []


def test_once_per_objective():
    space = {"alpha": FloatDistribution(1e-3, 1e-1, log=True)}
    objectives = []

    def search():
        objective = treecv_objective(PegasosClassifier(), WIDE, Y, param_distributions=space)
        objectives.append(objective)
        optuna.create_study().optimize(objective, n_trials=3)

    assert len(said(search)) == 1


def test_a_score_that_is_not_finite():
    wild = AveragedSGDRegressor(step_size=1e6)
    (sentence,) = said(tree_cross_validate, wild, X, X[:, 0], cv=4)
    assert sentence.startswith(
        "the mean score is inf, because 4 fold models have diverged; a smaller"
    )


def test_advice_about_a_step_size_is_for_estimators_that_have_one():
    """The squares of these errors are infinite, also with scikit-learn's predictions."""
    (sentence,) = said(tree_cross_validate, Ridge(), X, 1e200 * X[:, 0], cv=4)
    assert sentence.endswith("4 fold models have diverged; scaled features may help.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame(X, index=DATES), pd.DataFrame(X).assign(day=DATES)],
    ids=["index", "column"],
)
def test_rows_in_the_order_of_time(frame):
    model = make_pipeline(_Numbers(), LogisticRegression())
    (sentence,) = said(tree_cross_validate, model, frame, Y)
    assert "in the order of time" in sentence and "cv=TimeSeriesSplit() or" in sentence
    assert said(tree_cross_validate, model, frame, Y, shuffle=False) == []
    assert said(tree_cross_validate, model, frame, Y, cv=TimeSeriesSplit(3)) == []
    assert said(tree_cross_validate, model, frame.iloc[::-1], Y) == []


class _Numbers(StandardScaler):
    """Takes the first three columns."""

    def fit(self, X, y=None):
        return super().fit(np.asarray(X.iloc[:, :3]), y)

    def transform(self, X):
        return super().transform(np.asarray(X.iloc[:, :3]))


# --- Rows that are elsewhere ---


class _Delayed:
    """As an array of Dask."""

    __module__ = "dask.array.core"

    def __init__(self, rows):
        self._rows = rows
        self.shape = rows.shape

    def compute(self):
        return self._rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stand-in", "array", "dataframe"])
def test_rows_of_dask_are_read_and_this_is_said(kind):
    if kind == "stand-in":
        delayed = _Delayed(X)
    elif kind == "array":
        delayed = pytest.importorskip("dask.array").from_array(X, chunks=(50, 3))
    else:
        frame = pytest.importorskip("dask.dataframe")
        delayed = frame.from_pandas(pd.DataFrame(X), npartitions=4)
    (sentence,) = said(tree_cross_validate, PegasosClassifier(), delayed, Y)
    assert "read into the memory of this process. Pass X.compute()" in sentence
    found = tree_cross_validate(PegasosClassifier(), delayed, Y)
    assert np.array_equal(
        found.test_score, tree_cross_validate(PegasosClassifier(), X, Y).test_score
    )


def test_a_memory_map_that_is_larger_than_the_memory(tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert said(tree_cross_validate, PegasosClassifier(), mapped, Y) == []
    monkeypatch.setattr(checks, "free_bytes", lambda: 1000.0)
    (sentence,) = said(tree_cross_validate, PegasosClassifier(), mapped[:, :3], Y)
    assert (
        "X is memory-mapped from a file" in sentence
        and "max_memory='2MB', for example," in sentence
    )
    assert said(tree_cross_validate, PegasosClassifier(), tmp_path / "rows.npy", Y) == [sentence]
    assert said(tree_cross_validate, PegasosClassifier(), mapped, Y, max_memory="2MB") == []
    assert said(tree_cross_validate, PegasosClassifier(), X, Y) == []


def test_free_memory_is_known_on_linux(tmp_path, monkeypatch):
    machine, limit, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    monkeypatch.setattr(checks, "_MACHINE", machine)
    monkeypatch.setattr(checks, "_LIMIT", limit)
    monkeypatch.setattr(checks, "_USED", used)
    assert checks.free_bytes() == np.inf
    machine.write_text("MemTotal:       100 kB\nMemAvailable:    50 kB\n")
    limit.write_text("max\n")
    used.write_text("1024\n")
    assert checks.free_bytes() == 50 * 1024
    limit.write_text("10240\n")
    assert checks.free_bytes() == 9 * 1024
