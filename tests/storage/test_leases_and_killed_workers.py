"""Workers that share a store train each point of a grid once.

A worker that waits for another one continues when that one fails, is killed or is lost with the
store.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
import pickle
import runpy
import signal
from threading import Barrier
from threading import Event
from threading import Thread
import time

import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from processes import Script
import pytest
from sqlalchemy import event
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update

from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv import engine as treecv
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.storage import database as database_module
from optuna_treecv.storage import model_store
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.tables import LEASES
from optuna_treecv.storage.tables import MODELS

WORKER = Path(__file__).parents[1] / "helpers" / "grid_worker.py"
make_objective = runpy.run_path(str(WORKER))["make_objective"]
# For what does not depend on the kind of the database.
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
NAMES = ["aa", "bb", "cc"]


def leases_of(url):
    return Leases(ModelStore(Database(url)))


def expiries(url):
    with Database(url).reading() as session:
        return sorted(session.scalars(select(LEASES.c.expires)))


def clock(url):
    with Database(url).reading() as session:
        return model_store._now(session)


@pytest.fixture
def now(monkeypatch):
    """Return a list with the time of the database's clock, which the test sets."""
    time_now = [1e9]
    monkeypatch.setattr(model_store, "_now", lambda session: time_now[0])
    return time_now


def until(condition, worker=None):
    """Wait for a condition; fail if the worker that should bring it about has ended."""
    latest = time.monotonic() + 300
    while not condition():
        assert worker is None or worker.poll() is None, worker.stderr.read()
        assert time.monotonic() < latest
        time.sleep(0.01)


class Background:
    """A call in a thread; ``end`` returns its result or its error."""

    def __init__(self, function, *args):
        self._call = function, args
        self.result = None
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        function, args = self._call
        try:
            self.result = function(*args)
        except BaseException as error:  # noqa: BLE001
            self.result = error

    @property
    def is_over(self):
        return not self.thread.is_alive()

    def end(self):
        self.thread.join(60)
        assert self.is_over
        return self.result


# Leases.


def test_a_key_is_leased_by_one(store_url):
    ours, theirs = leases_of(store_url), leases_of(store_url)
    with ours.hold(NAMES[:2]) as mine:
        assert mine == NAMES[:2] and theirs.leased_keys() == set(mine)
        with theirs.hold(NAMES) as others:
            assert others == ["cc"]
            with ours.hold(NAMES) as more:  # for example, another thread of this process
                assert more == []
        assert theirs.leased_keys() == set(mine)
    assert ours.leased_keys() == set() and expiries(store_url) == []


def test_leases_are_pickled(store_url):
    with pickle.loads(pickle.dumps(leases_of(store_url))).hold(NAMES) as mine:
        assert mine == NAMES


def test_a_name_is_taken_by_one_of_many_at_once(store_url):
    names = [f"{i:04x}" for i in range(40)]
    taken, all_have_asked = [], Barrier(6)

    def work(i):
        with leases_of(store_url).hold(names[i:] + names[:i]) as mine:
            taken.extend(mine)
            all_have_asked.wait(60)

    threads = [Background(work, i) for i in range(6)]
    for thread in threads:
        thread.end()
    assert sorted(taken) == names


def test_a_block_that_raises_releases(store_url):
    with pytest.raises(KeyboardInterrupt):
        with leases_of(store_url).hold(NAMES):
            raise KeyboardInterrupt
    assert expiries(store_url) == []


def test_a_lease_lasts_a_minute_by_the_clock_of_the_database(store_url, monkeypatch):
    """The minute begins when the lease is taken, however long that had to wait for others."""
    for name in ("WAIT_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(database_module, name, 600.0)
    real = time.time  # the database's clock, since the database is on this machine
    for name in ("time.time", "optuna_treecv.storage.model_store.time"):
        monkeypatch.setattr(name, lambda: 0.0, raising=False)
    assert model_store.LEASE_SECONDS == 60
    expires, has_begun = [], Event()

    def take():
        has_begun.set()
        with leases_of(store_url).hold(NAMES):
            expires.extend(expiries(store_url))

    with Database(store_url).writing(alone=True):
        thread = Background(take)
        assert has_begun.wait(60)
        time.sleep(0.2)  # a clock that is read before the wait would be wrong by this time
        earliest = real()
    assert thread.end() is None
    assert len(expires) == 3 and expires[0] == expires[-1]
    assert earliest + 59.99 < expires[0] < real() + 60.01


def test_an_abandoned_lease_expires(store_url, monkeypatch, now):
    monkeypatch.setattr(Leases, "_renew", lambda *_: None)  # as if the process had been killed
    with leases_of(store_url).hold(NAMES[:1]):
        leases = leases_of(store_url)
        now[0] += 59.9
        assert leases.leased_keys() == {"aa"}
        waiting = Background(leases.wait, "aa")
        now[0] += 0.2
        assert waiting.end() is None
        assert leases.leased_keys() == set()
        with leases.hold(NAMES) as mine:
            assert mine == NAMES
    # The first owner has released only its own lease, which no longer existed.
    assert expiries(store_url) == []


def test_a_lease_from_the_future_is_over(store_url):
    """A clock that is set back by a day would make others wait for a day."""
    leases = leases_of(store_url)
    with leases._store.database.writing() as session:
        expires = clock(store_url) + 86_400
        row = {"key": bytes.fromhex("aa"), "owner": "nobody", "expires": expires}
        session.execute(insert(LEASES).values(row))
    assert leases.leased_keys() == set()
    leases.wait("aa")
    with leases.hold(NAMES) as mine:
        assert mine == NAMES
        assert leases_of(store_url).leased_keys() == set(NAMES)


@pytest.mark.parametrize(
    ("column", "value"),
    [("key", "aa"), ("key", 5), ("expires", "x"), ("expires", b"x"), ("expires", None)],
)
def test_a_lease_with_a_value_of_another_type_is_none(tmp_path, column, value):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    leases = leases_of(url)
    with leases._store.database.writing() as session:
        session.execute(text("DROP TABLE treecv_leases"))
        session.execute(text("CREATE TABLE treecv_leases (key, owner, expires)"))
        row = {"key": bytes.fromhex("aa"), "owner": "nobody", "expires": clock(url) + 30}
        session.execute(
            text("INSERT INTO treecv_leases VALUES (:key, :owner, :expires)"),
            row | {column: value},
        )
    assert leases.leased_keys() == set()
    leases.wait("aa")
    with leases.hold(NAMES) as mine:
        assert mine == NAMES


def test_a_lease_is_renewed(store_url, monkeypatch, now):
    assert model_store._RENEWALS == 3
    monkeypatch.setattr(model_store, "_RENEWALS", 1000)
    leases = leases_of(store_url)
    with leases.hold(NAMES):
        for _ in range(3):
            now[0] += 50.0
            until(lambda: expiries(store_url) == [now[0] + 60.0] * 3)
        with leases_of(store_url).hold(NAMES) as theirs:
            assert theirs == []
        assert leases.leased_keys() == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-5, -0.01, 0.01, 5])
def test_a_clock_that_jumps_makes_nobody_wait_for_long(store_url, monkeypatch, now, hours):
    monkeypatch.setattr(model_store, "_RENEWALS", 1000)
    ours, theirs = leases_of(store_url), leases_of(store_url)
    with ours.hold(NAMES):
        now[0] += 3600 * hours
        with theirs.hold(NAMES) as mine:  # at worst, both do the same work
            assert mine in (NAMES, [])
        # The owner is alive; if it has lost its leases by the jump, it does not take them back.
        until(lambda: expiries(store_url) in ([], [now[0] + 60.0] * 3))
    assert expiries(store_url) == []
    monkeypatch.setattr(Leases, "_renew", lambda *_: None)  # as if the process had been killed
    with ours.hold(NAMES):
        now[0] += 3600 * hours
        waiting = Background(theirs.wait, "aa")
        now[0] += model_store._MAX_LEASE_FACTOR * 60.0
        assert waiting.end() is None
        with theirs.hold(NAMES) as mine:
            assert mine == NAMES


def test_a_store_that_is_lost_holds_nobody_up(store_url):
    leases = leases_of(store_url)
    with leases._store.database.writing() as session:
        session.execute(text("DROP TABLE treecv_leases"))
    with pytest.warns(RuntimeWarning, match="treecv_leases.*continue without leases") as caught:
        with leases.hold(NAMES) as mine, leases.hold(NAMES) as theirs:
            assert mine == theirs == NAMES
            assert leases.leased_keys() == set()
            leases.wait("aa")
    ours = [one for one in caught if one.category is RuntimeWarning]
    assert len(ours) == 1  # Python 3.13 warns of other tests' connections here, too


# Grids. Two objectives with one store stand for two processes.


@pytest.fixture
def walks(monkeypatch):
    """Return the list to which each walk adds the names of its points."""
    walked = []
    walk = treecv.TreePlan._walk_lanes

    def note(plan, work, learners, members):
        names = (work.bound[i].key.hex() for i in members)
        walked.append(sorted(names))
        return walk(plan, work, learners, members)

    monkeypatch.setattr(treecv.TreePlan, "_walk_lanes", note)
    return walked


@pytest.fixture
def waits(monkeypatch):
    """Return the list of names that a worker has begun to wait for; leases do not expire."""
    waited = []
    wait = Leases.wait

    def note(leases, name):
        waited.append(name)
        wait(leases, name)

    monkeypatch.setattr(Leases, "wait", note)
    monkeypatch.setattr(model_store, "LEASE_SECONDS", 3600.0)
    return waited


def study_of(objective, **options):
    return optuna.create_study(sampler=objective.grid_sampler(seed=0), **options)


def trial_at(objective, params, **options):
    study = study_of(objective, **options)
    study.enqueue_trial(params)
    return study.ask()


def name_at(objective, params):
    run = run_for(objective.evaluator.cross_validation, *objective.evaluator.space.at(params))
    return run.missing() or None


def all_params(objective):
    grid = objective.param_grid
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def evaluation_of(url, trial):
    """Return what the store says of a trial."""
    return load_evaluations(url).set_index("run").loc[trial.user_attrs["treecv"]["run"]]


def assert_as_alone(url, trials):
    """Check for the values and the row updates of one process without a store."""
    objective = make_objective()
    study = study_of(objective)
    study.optimize(objective)
    values = {tuple(trial.params.values()): trial.value for trial in study.trials}
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert {tuple(trial.params.values()) for trial in done} == set(values)
    for trial in done:
        assert trial.value == values[tuple(trial.params.values())]
        found = evaluation_of(url, trial)
        assert found.n_updates == trial.user_attrs["treecv"]["n_updates"]
        assert (
            found.n_updates + found.n_updates_saved
            == study.trials[0].user_attrs["treecv"]["n_updates"]
        )
    assert n_updates(done) == n_updates(study.trials)


def n_updates(trials):
    return sum(trial.user_attrs["treecv"]["n_updates"] for trial in trials)


@on_sqlite
@pytest.mark.slow
def test_who_is_alone_takes_and_releases_leases_of_a_batch_once(store_url, walks):
    objective = make_objective(store_url, batch_size=24)
    statements = []
    engine = objective.evaluator.database.engine
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    study = study_of(objective)
    study.optimize(objective)
    assert [len(names) for names in walks] == [24]
    # Read all leases; delete expired ones, read those on our names, take ours; at the end, delete
    # ours.
    of_leases = [one.split()[0] for one in statements if "treecv_leases" in one]
    assert of_leases == ["SELECT", "DELETE", "SELECT", "INSERT", "DELETE"]
    # The results of the batch, and the outputs of the trials that were among the best 20.
    assert sum("INSERT INTO treecv_models" in one for one in statements) in range(21, 26)
    assert_as_alone(store_url, study.trials)


def test_results_are_written_in_parts_between_which_others_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr("optuna_treecv.caching.caches._BYTES_PER_WRITE", 2 * 3000 * 8)
    objective = make_objective(f"sqlite:///{tmp_path / 'store.db'}", batch_size=24)
    statements = []
    engine = objective.evaluator.database.engine
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    objective(trial_at(objective, all_params(objective)[0]))
    # Twelve parts of the batch, and the outputs of the trial.
    assert sum("INSERT INTO treecv_models" in one for one in statements) == 13
    again = make_objective(objective.evaluator.database.engine.url)
    assert all(name_at(again, params) is None for params in all_params(again))


def test_points_that_others_are_at_are_left_out(store_url, walks):
    objective = make_objective(store_url, batch_size=12)
    first, *rest = all_params(objective)
    held = [name_at(objective, params) for params in rest[:6]]
    with leases_of(store_url).hold(held):
        objective(trial_at(objective, first))
        # The batch is full all the same, because enough other points are left.
        assert len(walks) == 1 and len(walks[0]) == 12 and not set(walks[0]) & set(held)
        assert leases_of(store_url).leased_keys() == set(held)


@on_sqlite
@pytest.mark.slow
@pytest.mark.parametrize("is_found", [True, False])
def test_who_has_to_wait_walks_the_rest_first(store_url, walks, waits, is_found):
    """Then it takes the result from the store, or computes it itself."""
    objective, owner = make_objective(store_url), make_objective(store_url)
    params = all_params(objective)[0]
    name = name_at(objective, params)
    with leases_of(store_url).hold([name]):
        trial = trial_at(objective, params)
        waiting = Background(objective, trial)
        until(lambda: waits)
        # The other 23 points: each batch has the point waited for and 4 others. The last 3 points
        # are too few.
        assert [len(names) for names in walks] == [4] * 5
        assert waits == [name] and name not in sum(walks, [])
        # Other threads of this process do not wait.
        left = next(one for one in all_params(objective)[1:] if name_at(objective, one))
        value = Background(objective, trial_at(objective, left)).end()
        assert value == make_objective().evaluate(left).mean
        assert not waiting.is_over
        if is_found:
            run = run_for(owner.evaluator.cross_validation, *owner.evaluator.space.at(params))
            run.is_leased = True
            run.finish()
    expected = make_objective().evaluate(params)
    assert waiting.end() == expected.mean
    done = trial.user_attrs["treecv"]["n_updates"]
    assert done == (0 if is_found else expected.n_updates)
    found = evaluation_of(store_url, trial)
    assert found.n_updates == done
    assert done + found.n_updates_saved == expected.n_updates
    assert expiries(store_url) == []


def test_the_owner_of_a_batch_fails(store_url, monkeypatch, waits):
    owner, objective = make_objective(store_url, batch_size=24), make_objective(store_url)
    params = all_params(objective)[0]
    began, go = Event(), Event()
    walk = treecv.TreePlan._walk_lanes

    class Killed(BaseException):
        """Ends the thread of the owner."""

    def fail(plan, *others):
        if plan.request.cross_validation is not owner.evaluator.cross_validation:
            return walk(plan, *others)
        began.set()
        assert go.wait(60)
        raise Killed

    monkeypatch.setattr(treecv.TreePlan, "_walk_lanes", fail)
    failing = Background(owner, trial_at(owner, params))
    assert began.wait(60)
    assert len(leases_of(store_url).leased_keys()) == 24
    trial = trial_at(objective, params)
    waiting = Background(objective, trial)
    until(lambda: waits)
    go.set()
    assert isinstance(failing.end(), Killed)
    expected = make_objective().evaluate(params)
    assert waiting.end() == expected.mean
    assert trial.user_attrs["treecv"]["n_updates"] == expected.n_updates
    assert expiries(store_url) == []


class Pruner(optuna.pruners.BasePruner):
    """A pruner that decides when the test allows it."""

    def __init__(self, outcome):
        self.outcome, self.began, self.go = outcome, Event(), Event()

    def prune(self, study, trial):
        self.began.set()
        assert self.go.wait(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@on_sqlite
@pytest.mark.slow
@pytest.mark.parametrize("outcome", [False, True, RuntimeError()])
def test_the_owner_of_a_lone_point_ends_is_pruned_or_fails(store_url, waits, outcome):
    options = {"param_grid": {"alpha": [0.1]}, "report": "folds"}
    owner, objective = make_objective(store_url, **options), make_objective(store_url, **options)
    params, pruner = {"alpha": 0.1}, Pruner(outcome)
    working = Background(owner, trial_at(owner, params, pruner=pruner))
    assert pruner.began.wait(60)
    trial = trial_at(objective, params, pruner=optuna.pruners.NopPruner())
    waiting = Background(objective, trial)
    until(lambda: waits)
    pruner.go.set()
    expected = make_objective(**options).evaluate(params)
    assert waiting.end() == expected.mean
    if outcome is False:
        assert working.end() == expected.mean
    else:
        kind = optuna.TrialPruned if outcome is True else RuntimeError
        assert isinstance(working.end(), kind)
    assert trial.user_attrs["treecv"]["n_updates"] == (
        0 if outcome is False else expected.n_updates
    )
    assert expiries(store_url) == []


@pytest.mark.slow
def test_the_store_is_lost_while_somebody_waits(store_url, request, waits):
    objective = make_objective(store_url)
    params = all_params(objective)[0]
    is_server = store_url.startswith("postgresql")
    server = request.getfixturevalue("postgres_server") if is_server else None
    leases, trial = leases_of(store_url), trial_at(objective, params)
    with pytest.warns(RuntimeWarning, match="trials continue without"):
        with leases.hold([name_at(objective, params)]):
            waiting = Background(objective, trial)
            until(lambda: waits)
            if server is not None:
                server.stop()
            else:
                with Database(store_url).writing() as session:
                    session.execute(text("DROP TABLE treecv_leases"))
            try:
                assert waiting.end() == make_objective().evaluate(params).mean
            finally:
                if server is not None:
                    server.start()
    assert trial.user_attrs["treecv"]["n_updates"] > 0


@pytest.mark.slow
def test_a_store_that_shows_no_leases_is_not_besieged(store_url, waits, monkeypatch):
    times = []
    wait = Leases.wait
    monkeypatch.setattr(
        Leases, "wait", lambda *args: (times.append(time.monotonic()), wait(*args))
    )
    objective = make_objective(store_url)
    params = all_params(objective)[0]
    with leases_of(store_url).hold([name_at(objective, params)]):
        monkeypatch.setattr(objective.evaluator.batches.leases, "leased_keys", set)
        waiting = Background(objective, trial_at(objective, params))
        until(lambda: len(times) > 2)
    assert times[2] - times[0] > 2 * 0.249
    assert waiting.end() == make_objective().evaluate(params).mean


@on_sqlite
@pytest.mark.slow
def test_damaged_results_are_computed(store_url):
    objective = make_objective(store_url)
    study_of(objective).optimize(objective)
    with objective.evaluator.database.writing() as session:
        session.execute(update(MODELS).values(payload=b"damaged"))
    again = make_objective(store_url)
    study = study_of(again)
    with pytest.warns(RuntimeWarning, match="invalid rows of treecv_models"):
        study.optimize(again)
    assert_as_alone(store_url, study.trials)


@on_sqlite
@pytest.mark.slow
def test_the_next_trial_counts_a_batch_whose_trial_is_lost(store_url, monkeypatch, walks):
    """Each row update of the batch counts once, and for no later study."""
    lost, objective = make_objective(store_url, batch_size=24), make_objective(store_url)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("optuna_treecv.study.evaluator.record_trial", lambda *_: 1 / 0)
        lost(trial_at(lost, all_params(lost)[0]))
    study = study_of(objective)
    study.optimize(objective)
    assert len(walks) == 1
    assert_as_alone(store_url, study.trials)
    for again in (lost, objective, make_objective(store_url)):
        later = study_of(again)
        later.optimize(again)
        assert len(later.trials) == 24 and n_updates(later.trials) == 0


# Processes.


@pytest.mark.usefixtures("_real_queue")
def test_a_lease_ends_after_what_was_put_is_written(store_url):
    store, go = ModelStore(Database(store_url)), Event()
    with Leases(store).hold(NAMES):
        store.queue.put(lambda: go.wait(60))
    assert leases_of(store_url).leased_keys() == set(NAMES)
    go.set()
    store.queue.wait()
    assert leases_of(store_url).leased_keys() == set()


class Worker:
    """A process that runs tests/helpers/grid_worker.py, and its output so far."""

    def __init__(self, *arguments):
        self.said = []
        self.process = Script(WORKER, *arguments)
        self.listening = Thread(target=self._listen, daemon=True)
        self.listening.start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line.strip())

    def until(self, word):
        until(lambda: word in self.words or not self.listening.is_alive())
        assert word in self.words, self.process.stderr.read()

    @property
    def words(self):
        return [line.split()[0] for line in self.said]

    def begin(self):
        print(flush=True, file=self.process.stdin)

    def end(self):
        self.process.wait(120)
        self.listening.join(60)
        assert self.process.returncode == 0, self.process.stderr.read()


@pytest.fixture
def workers():
    """Return a function that starts workers; they are ended after the test."""
    started = []
    yield lambda *arguments: started.append(Worker(*arguments)) or started[-1]
    for worker in started:
        worker.process.kill()
        worker.process.wait(60)


@pytest.fixture
def shared_study(store_url, tmp_path):
    """Return a study in the database of the store, or in another file, and its URL."""
    is_server = store_url.startswith("postgresql")
    url = store_url if is_server else f"sqlite:///{tmp_path / 'study.db'}"
    return optuna.create_study(study_name="grid", storage=url), url


@pytest.mark.slow
def test_two_processes_train_no_point_twice(store_url, shared_study, workers):
    study, url = shared_study
    both = [workers(url, store_url) for _ in range(2)]
    for word in ("ready", "walks"):
        for worker in both:
            worker.until(word)
        for worker in both:
            worker.begin()
    for worker in both:
        worker.end()
    assert_as_alone(store_url, study.trials)
    trained = [int(worker.said[-1].removeprefix("trained ")) for worker in both]
    assert min(trained) > 0 and sum(trained) == n_updates(study.trials)
    assert expiries(store_url) == []


@on_sqlite
@pytest.mark.slow
def test_a_worker_is_killed_in_a_walk(store_url, shared_study, workers):
    study, url = shared_study
    killed, worker = workers(url, store_url), workers(url, store_url)
    killed.begin()
    killed.until("walks")  # and waits for another line, which does not come
    names = leases_of(store_url).leased_keys()
    assert len(names) == 5
    study.enqueue_trial(study.trials[0].params)  # so that the other worker has to wait
    for _ in range(2):
        worker.begin()
    worker.until("waits")
    # The first worker is alive and renews its leases.
    for _ in range(2):
        before = expiries(store_url)
        until(lambda before=before: min(expiries(store_url)) > max(before))
    assert leases_of(store_url).leased_keys() == names
    assert worker.process.poll() is None
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(60)
    assert len(expiries(store_url)) == 5
    with Database(store_url).writing() as session:  # as if a minute had passed
        session.execute(update(LEASES).values(expires=0.0))
    worker.end()
    stale, *others = study.trials
    assert stale.state == TrialState.RUNNING
    assert {trial.state for trial in others} == {TrialState.COMPLETE}
    assert_as_alone(store_url, others)


# Long trials of processes on a real server.


LONG_WORKER = Path(__file__).parents[1] / "helpers" / "worker.py"
make_long_objective = runpy.run_path(str(LONG_WORKER))["make_objective"]


@pytest.fixture
def study(postgres_url):
    return optuna.create_study(study_name="together", storage=RDBStorage(postgres_url))


def start(url, what, grace=600):
    return Script(LONG_WORKER, url, url, what, str(grace))


def heartbeats(storage):
    """Return when the trials have shown last that they are running."""
    with storage.engine.connect() as connection:
        return set(connection.scalars(text("SELECT heartbeat FROM trial_heartbeats")))


@pytest.mark.slow  # it waits
def test_a_long_trial_keeps_its_heartbeat(study, postgres_url):
    """Heartbeats come from another thread of the worker, which training must let run."""
    storage = RDBStorage(postgres_url)
    long, seen = start(postgres_url, "long"), set()

    def count():
        seen.update(heartbeats(storage))
        return len(seen) > 2

    until(count, long)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    long.kill()
    long.wait()


@pytest.mark.slow
def test_a_killed_trial_goes_on(study, postgres_url):
    worker = start(postgres_url, "stuck", grace=3)
    assert worker.stdout.readline() == "written\n", worker.stderr.read()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    storage = RDBStorage(postgres_url, heartbeat_interval=1, grace_period=3)
    until(lambda: storage._get_stale_trial_ids(study._study_id))
    other = start(postgres_url, "goes on", grace=3)
    assert other.wait(600) == 0, other.stderr.read()
    stale, retried = study.trials
    assert (stale.state, retried.state) == (TrialState.FAIL, TrialState.COMPLETE)
    expected = make_long_objective("goes on").evaluate(stale.params)
    assert retried.value == expected.mean
    evaluations = load_evaluations(postgres_url, study=study).set_index("trial_number")
    done, saved = evaluations.loc[retried.number, ["n_updates", "n_updates_saved"]]
    assert done == retried.user_attrs["treecv"]["n_updates"]
    assert done + saved == expected.n_updates
    # The worker was killed between two writes, after a phase of training on half of the rows.
    assert 10_000 <= saved < expected.n_updates
    scores = load_fold_scores(postgres_url, study=study)
    # The killed worker may have recorded scores, too, before the trial could name them.
    own = scores[scores.trial_number == retried.number]
    assert list(own.score) == expected.test_score.tolist()
