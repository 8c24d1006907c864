"""Kill workers with SIGKILL in the middle of their trials on a shared grid and store.

    python tests/fuzz/kill.py [SEED [ROUNDS]]

Each round has its own data and study, on SQLite and on PostgreSQL. Three workers share the grid,
one or two of them are killed, and the rest finish it. Then a new worker evaluates the points of
the killed trials. The script fails if a process does not end, if a value or a fold score differs
from that of one process without a store, if a finished trial is not in the store, or if a lease is
left over.
"""

from __future__ import annotations

import os
from pathlib import Path
import random
from select import select
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings

import numpy as np
import optuna
from optuna.trial import TrialState
from sqlalchemy import make_url

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.storage import model_store
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.model_store import ModelStore

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from postgres_server import postgres_binaries  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402

GRID = {"alpha": [0.0, 1e-4, 1e-2, 1.0], "step_size": [0.001, 0.01, 0.1, 1.0]}
N_WORKERS = 3
#: Seconds within which a worker must have ended.
LIMIT = 100


def make_objective(seed: int, store: str | None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(20_000, 10))
    y = X[:, 0] > rng.normal(size=20_000)
    return treecv_objective(
        AveragedSGDClassifier(), X, y, param_grid=GRID, batch_size=4, store=store
    )


def start(work, *args) -> int:
    """Run a function in a forked process, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end(pid: int) -> int:
    """Return the exit code of a process, or end it if that takes too long."""
    latest = time.monotonic() + LIMIT
    while time.monotonic() < latest:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"a worker was blocked for {LIMIT} seconds")


def work(seed: int, ready: int, storage: str, store: str) -> None:
    """Evaluate the points of the grid that are left; say so before the first one."""
    objective = make_objective(seed, store)
    sampler = objective.grid_sampler(seed=0)
    study = optuna.load_study(study_name=f"{seed}", storage=storage, sampler=sampler)
    os.write(ready, b".")
    study.optimize(objective)


def finish(seed: int, storage: str, store: str) -> None:
    """Evaluate the points of killed trials."""
    objective = make_objective(seed, store)
    study = optuna.load_study(study_name=f"{seed}", storage=storage)
    killed = study.get_trials(states=[TrialState.RUNNING])
    for trial in killed:
        study.enqueue_trial(trial.params)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # the store must work
        study.optimize(objective, n_trials=len(killed) + 1)


def check(seed: int, storage: str, store: str) -> tuple[int, int]:
    """Return the numbers of finished and of killed trials."""
    objective = make_objective(seed, None)
    study = optuna.load_study(study_name=f"{seed}", storage=storage)
    evaluations = load_evaluations(store, study=study).set_index("trial_number")
    scores = load_fold_scores(store, study=study).groupby("trial_number").score
    done = study.get_trials(states=[TrialState.COMPLETE])
    for trial in done:
        expected = objective.evaluate(trial.params)
        assert trial.value == expected.mean, f"trial {trial.number}: a wrong value"
        assert evaluations["mean"][trial.number] == expected.mean
        assert scores.get_group(trial.number).tolist() == expected.test_score.tolist()
        n_done, n_saved = evaluations.loc[trial.number, ["n_updates", "n_updates_saved"]]
        assert n_done == trial.user_attrs["treecv"]["n_updates"]
        assert n_done + n_saved == expected.n_updates + expected.n_updates_saved
    states = {trial.state for trial in study.trials}
    assert states <= {TrialState.COMPLETE, TrialState.RUNNING}, states
    points = {tuple(trial.params.values()) for trial in done}
    assert len(points) >= 16, f"{len(points)} of 16 points are finished"
    database = Database(store)
    latest = time.monotonic() + 2 * model_store.LEASE_SECONDS  # of killed workers
    while Leases(ModelStore(database)).leased_keys():
        assert time.monotonic() < latest, "a lease is left over"
        time.sleep(0.05)
    database.close()
    if store.startswith("sqlite"):
        with sqlite3.connect(make_url(store).database) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return len(done), len(study.trials) - len(done)


def attack(seed: int, n_rounds: int, storage: str, store: str) -> None:
    """Run the rounds on one database of studies and one store."""
    random.seed(seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    lease_seconds, model_store.LEASE_SECONDS = model_store.LEASE_SECONDS, 2.0
    try:
        for i in range(n_rounds):
            name = 1000 * seed + i
            study = optuna.create_study(storage=storage, study_name=f"{name}")
            study._storage.remove_session()
            ready, say = os.pipe()
            pids = [start(work, name, say, storage, store) for _ in range(N_WORKERS)]
            for _ in pids:
                assert select([ready], [], [], LIMIT)[0], "a worker has not begun"
                os.read(ready, 1)
            for pid in random.sample(pids, random.choice([1, 2])):
                time.sleep(random.uniform(0.0, 0.3))
                os.kill(pid, signal.SIGKILL)
            codes = [end(pid) for pid in pids]
            os.close(ready)
            os.close(say)
            assert all(c in (0, -9) for c in codes) and 0 in codes, codes
            assert end(start(finish, name, storage, store)) == 0
            n_done, n_lost = check(name, storage, store)
            print(f"{store[:6]} {i}: {n_done} trials finished, {n_lost} killed", flush=True)
    finally:
        model_store.LEASE_SECONDS = lease_seconds


def main(seed: int = 0, n_rounds: int = 10) -> None:
    with tempfile.TemporaryDirectory() as folder:
        attack(seed, n_rounds, f"sqlite:///{folder}/study.db", f"sqlite:///{folder}/store.db")
    binaries = postgres_binaries()
    if binaries is None:
        print("PostgreSQL is left out: there is no server here")
        return
    server = PostgresServer(binaries)
    try:
        server.start()
        url = server.new_schema()
        attack(seed, n_rounds, url, url)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
