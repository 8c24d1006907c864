"""Trials evaluated in one walk: grids, concurrent trials, and trials that wait for others."""

from __future__ import annotations

import gc
import pickle
from threading import Event
from threading import Thread
from time import monotonic
from time import sleep

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.utils.metaestimators import available_if
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.crossval.evaluate import run_for
import optuna_treecv.study.batches
from optuna_treecv.study.batches import Batches

X, Y = make_classification(300, 8, random_state=0)
GRID = {"alpha": np.geomspace(1e-5, 10, 12), "average": [False, True]}
PEGASOS = PegasosClassifier()


def assert_same_trials(study, results, **options):
    for trial in study.trials:
        alone = tree_cross_validate(PegasosClassifier(**trial.params), X, Y, **options)
        assert trial.value == alone.mean
        found = results[study.study_name, trial.number]
        assert found.n_updates == trial.user_attrs["treecv"]["n_updates"]
        assert found.n_updates + found.n_updates_saved == alone.n_updates


# Two points are too few for lanes and are evaluated one by one.
@pytest.mark.parametrize(
    ("batch_size", "cache", "expected"),
    [(1, "memory", []), (5, None, [5, 5, 2, 1] * 2), (32, "memory", [12, 12])],
)
def test_a_grid_is_walked_in_batches(batch_sizes, batch_size, expected, cache, results):
    objective, study = searched(PEGASOS, (X, Y), GRID, batch_size=batch_size, cache=cache)
    assert len(study.trials) == 24
    assert sorted(batch_sizes) == sorted(expected)
    assert_same_trials(study, results)
    assert not any(run.precomputed for run in objective.evaluator.batches._precomputed)


@pytest.mark.slow
def test_a_grid_with_reports_and_a_pruner(batch_sizes):
    # With 16 folds SciPy takes a minute for the tests on accuracies, which are often equal.
    options = {"cv": 8, "scoring": "accuracy", "report": "folds", "cache": None}
    options["study"] = {
        "pruner": optuna.pruners.WilcoxonPruner(p_threshold=0.3, n_startup_steps=2)
    }
    trials = [
        searched(PEGASOS, (X, Y), GRID, batch_size=batch_size, **options)[1].trials
        for batch_size in (8, 1)
    ]
    assert len(batch_sizes) == 4
    assert any(trial.state.name == "PRUNED" for trial in trials[0])
    for one, other in zip(*trials, strict=True):
        assert (one.params, one.state, one.value) == (other.params, other.state, other.value)
        assert one.intermediate_values == other.intermediate_values


def test_no_more_is_found_ahead_than_there_is_room_for(batch_sizes, monkeypatch, results):
    objective = treecv_objective(PEGASOS, X, Y, param_grid=GRID, cache=None)
    n_bytes = run_for(objective.evaluator.cross_validation, PegasosClassifier()).n_bytes_missing
    assert 8 * len(Y) < n_bytes < 18 * len(Y)
    monkeypatch.setattr(optuna_treecv.study.batches, "_MAX_PRECOMPUTED_BYTES", 5 * n_bytes)
    study = optuna.create_study(sampler=objective.grid_sampler())
    most = []

    def count(study, trial):
        runs = list(objective.evaluator.batches._precomputed)
        waiting = [one.events[-1].record for run in runs for one in run.precomputed.values()]
        own = {id(record.memory.base) for record in waiting}
        assert len(own) == len(waiting)  # each goes by itself
        most.append(sum(record.array.nbytes for record in waiting))

    study.optimize(objective, callbacks=[count])
    assert batch_sizes[0] == 6 and max(batch_sizes) == 6  # a trial's own point and five others
    assert max(most) == 5 * 8 * len(Y) and most[-1] == 0
    assert_same_trials(study, results)


@pytest.mark.slow
def test_what_waits_goes_with_its_study():
    objective, study = searched(PEGASOS, (X, Y), GRID, 1, cache=None)
    batches = objective.evaluator.batches
    assert sum(len(run.precomputed) for run in batches._precomputed) == 11
    del study
    gc.collect()
    assert not batches._precomputed and not batches.prefetched


def test_what_waits_for_a_pruned_trial_goes_with_it():
    pruner = optuna.pruners.ThresholdPruner(upper=-1.0)  # prunes all
    options = {"cache": None, "n_repeats": 3, "report": "mean", "study": {"pruner": pruner}}
    objective, study = searched(PEGASOS, (X, Y), GRID, 5, **options)
    assert {trial.state.name for trial in study.trials} == {"PRUNED"}
    assert {len(run.precomputed) for run in objective.evaluator.batches._precomputed} <= {0, 3}


def test_trials_at_the_same_time_share_a_walk(batch_sizes, results):
    alpha = {"alpha": FloatDistribution(1e-5, 10, log=True)}
    objective = treecv_objective(PEGASOS, X, Y, param_distributions=alpha, cv="loo")
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=40, n_jobs=4)
    assert_same_trials(study, results, cv="loo")
    assert max(batch_sizes) >= 3


@pytest.mark.filterwarnings("ignore:param_grid needs sampler=")
def test_points_off_the_grid_are_evaluated_alone(batch_sizes, results):
    study = {"sampler": optuna.samplers.RandomSampler(seed=0)}
    _, study = searched(PEGASOS, (X, Y), {"alpha": [0.01, 0.1, 1.0]}, 5, study=study)
    assert set(batch_sizes) <= {1}
    assert_same_trials(study, results)


def test_other_estimators_search_a_grid_one_by_one(batch_sizes):
    model = SGDClassifier(random_state=0, max_iter=1)
    _, study = searched(model, (X, Y), {"alpha": [1e-4, 1e-2]})
    assert len(study.trials) == 2 and not batch_sizes


def test_a_pickled_objective_goes_on(batch_sizes, results):
    objective, study = searched(PEGASOS, (X, Y), GRID, 1)
    assert len(objective.evaluator.batches.prefetched[study]) == 11
    study.optimize(pickle.loads(pickle.dumps(objective)))
    assert sorted(batch_sizes) == [11, 12, 12]
    assert_same_trials(study, results)


def test_points_have_names_of_their_own():
    values = [1, 1.0, True, "1", None, "None", 1.0 + 2**-52, (1,), PegasosClassifier(1)]
    names = {first_key({"alpha": value}, encode) for value in values}
    assert len(names) == len(values) and None not in names
    assert first_key({"alpha": object()}, encode) is None


class Picky(AveragedSGDClassifier):
    """Has probabilities only for small alpha, and refuses one value of alpha."""

    @available_if(lambda self: self.alpha < 0.5)
    def predict_proba(self, X):
        return super().predict_proba(X)

    def set_params(self, **params):
        if params.get("alpha") == 0.25:
            raise TypeError("alpha=0.25 cannot be.")
        return super().set_params(**params)


@pytest.mark.parametrize("batch_size", [1, 32])
def test_what_is_wrong_with_a_point_is_said_of_its_own_trial(batch_size):
    grid = {"alpha": [0.1, 0.2, 0.6, 0.25, 0.01, 0.02]}
    estimator = Picky("log_loss", alpha=0.01)
    objective = treecv_objective(
        estimator, X, Y, param_grid=grid, scoring="log_loss", batch_size=batch_size
    )
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective, catch=(TypeError, ValueError))
    failed = {trial.params["alpha"] for trial in study.trials if trial.state.name == "FAIL"}
    assert failed == {0.25, 0.6}


def test_an_objective_is_what_it_was_made_from(results):
    estimator = PegasosClassifier()
    objective, study = searched(estimator, (X, Y), GRID | {"average": [False]}, 1, batch_size=5)
    estimator.set_params(project=True, fit_intercept=False)
    study.optimize(objective)
    assert_same_trials(study, results)


class Named:
    """Stands for a run."""

    def __init__(self, name):
        self.name, self.estimator, self.plan = name, None, self
        self.capabilities = Capabilities(shared_parameters=("alpha",))
        self.n_bytes_precomputed = 0

    def missing(self):
        return self


class Slow(Batches):
    """Batches whose batch_sizes begin when the test allows it."""

    def __init__(self):
        self.size, self.walked, self.go, self.began = 4, [], Event(), Event()
        self.error = None
        super().__init__(self.size)


@pytest.fixture
def slow(monkeypatch):
    batches = Slow()

    def walk(runs):
        batches.began.set()
        assert batches.go.wait(120)
        batches.walked.append([run.name for run in runs])
        if batches.error is not None:
            error, batches.error = batches.error, None
            raise error

    monkeypatch.setattr(optuna_treecv.study.batches, "evaluate_batch", walk)
    return batches


def call(batches, name, ended):
    try:
        with batches.call():
            batches.compute(Named(name), lambda: [])
        ended.append(name)
    except BaseException as error:  # noqa: BLE001
        ended.append(type(error).__name__)


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_who_waits_goes_on_when_the_walk_ends_or_fails(slow, error):
    ended = []
    first = Thread(target=call, args=(slow, "first", ended))
    first.start()
    assert slow.began.wait(120)
    others = [Thread(target=call, args=(slow, f"other {i}", ended)) for i in range(3)]
    for thread in others:
        thread.start()
    while len(slow._waiting) < 3:
        sleep(0.001)
    slow.error = error and error()
    slow.go.set()
    for thread in (first, *others):
        thread.join(120)
        assert not thread.is_alive()
    assert slow.walked[0] == ["first"]
    assert sorted(sum(slow.walked[1:], [])) == ["other 0", "other 1", "other 2"]
    assert sorted(ended) == sorted(
        [error.__name__ if error else "first", "other 0", "other 1", "other 2"]
    )
    assert slow._n_inside == 0 and not slow._waiting and not slow._is_evaluating


def test_those_taken_along_go_on_when_their_walker_fails(slow, monkeypatch):
    monkeypatch.setattr(optuna_treecv.study.batches, "_WAIT_SECONDS", 120.0)
    slow.error = RuntimeError()
    slow._n_expected = 3
    ended = []
    threads = [Thread(target=call, args=(slow, str(i), ended)) for i in range(3)]
    slow.go.set()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert ended.count("RuntimeError") == 1 and len(ended) == 3


def test_nobody_waits_long_for_a_call_that_does_not_come(slow):
    slow.go.set()
    slow._n_expected = 4
    began = monotonic()
    call(slow, "alone", [])
    assert 0.01 < monotonic() - began < 60
    assert slow.walked == [["alone"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"param_grid": {}}, "param_grid must name at least one parameter, got {}"),
        ({"param_grid": []}, "param_grid must be a dict such as .*, or a list of"),
        ({"param_grid": "alpha"}, "param_grid must be a dict such as .*, or a list of"),
        ({"param_grid": [{"alpha": [1]}, 3]}, "param_grid must be a dict such as .*, or a list"),
        ({"param_grid": {"alpha": 0.1}}, "param_grid.'alpha'. must be a list of values, got 0.1"),
        ({"param_grid": {"alpha": []}}, "param_grid.'alpha'. must have at least one value"),
        ({"param_grid": {"alpah": [1]}}, "param_grid: PegasosClassifier has no parameter 'alpah'"),
        ({}, "param_distributions must name at least one parameter to search"),
        (
            {"param_grid": GRID, "param_distributions": {"alpha": FloatDistribution(1, 2)}},
            "param_grid must be None if param_distributions is given",
        ),
        ({"param_grid": GRID, "batch_size": 2.0}, "batch_size must be an integer from 1 to 1024"),
    ],
)
def test_what_is_wrong_is_said_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        treecv_objective(PegasosClassifier(), X, Y, **options)


def test_a_callable_has_no_grid():
    with pytest.raises(ValueError, match="param_grid must be None if estimator is a callable"):
        treecv_objective(lambda trial: PegasosClassifier(), X, Y, param_grid=GRID)


def test_a_sampler_needs_a_grid():
    objective = treecv_objective(
        PegasosClassifier(), X, Y, param_distributions={"alpha": FloatDistribution(1, 2)}
    )
    with pytest.raises(ValueError, match="grid_sampler needs an objective with a param_grid"):
        objective.grid_sampler()
