"""Lock, freeze, end and cut off the PostgreSQL server of a store while trials run.

    python tests/fuzz/frozen_postgresql.py [SEED [ROUNDS]]

Each round locks a table, ends the server, or freezes its main process, the process of one
connection, or all processes, for a while. By TCP, a proxy also stalls or drops all connections as
soon as a certain statement is sent. Meanwhile two threads run trials: of a grid, of the tree, or
of fits. Rounds alternate between TCP and a Unix socket, and between a URL and an engine as the
store. The limits in seconds are those of the package divided by ten. The script fails if a trial
takes too long, if a value differs from that without a store, if there are more warnings than one
per purpose, or if trials are not recorded again when the server goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import random
import signal
import socket
import sys
from threading import Thread
import time
import warnings

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.linear_model import LogisticRegression
from sqlalchemy import create_engine
from sqlalchemy import text

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.storage import database
from optuna_treecv.storage import outages

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from postgres_server import postgres_binaries  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402
from tcp_proxy import Proxy  # noqa: E402

GRID = {"alpha": [0.0, 1e-4, 1e-2, 1.0], "step_size": np.geomspace(1e-4, 1, 60).tolist()}
STEP = {"step_size": FloatDistribution(1e-3, 1.0, step=1e-3)}
# What a client sends in the phases of a trial; b"" stands for any statement.
STATEMENTS = [
    b"",
    b"set_config",
    b"pg_advisory_xact_lock",
    b"DELETE FROM treecv_leases",
    b"INSERT INTO treecv_leases",
    b"FROM treecv_models",
    b"INSERT INTO treecv_models",
    b"INSERT INTO treecv_evaluations",
    b"INSERT INTO treecv_fold_scores",
    b"COMMIT",
]
TABLES = ["models", "leases", "evaluations", "fold_scores", "schema"]
#: A tenth of the package's limits, but libpq waits for a connection for at least 2 seconds.
SECONDS = {"WAIT_SECONDS": 0.5, "ANSWER_SECONDS": 1.0, "CONNECT_SECONDS": 2}
#: Seconds after which a trial counts as blocked.
LIMIT = 60


def make_objective(seed: int, store):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(500, 5))
    y = X[:, 0] > rng.normal(size=500)
    if seed % 3 == 0:
        options = {"param_grid": GRID, "batch_size": 4}
        return treecv_objective(AveragedSGDClassifier(), X, y, store=store, **options)
    if seed % 3 == 1:
        return treecv_objective(
            AveragedSGDClassifier(), X, y, param_distributions=STEP, store=store
        )
    space = {"C": FloatDistribution(0.01, 10.0, step=0.01)}
    return treecv_objective(
        LogisticRegression(), X, y, param_distributions=space, method="fit", cv=4, store=store
    )


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes for the time of the block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def backends(url: str) -> list[int]:
    """Return the processes of the server's other connections."""
    engine = create_engine(url)
    query = (
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
    )
    with engine.connect() as connection:
        pids = list(connection.scalars(text(query)))
    engine.dispose()
    return pids


@contextmanager
def fault(server: PostgresServer, url: str, proxy: Proxy | None) -> Iterator[str]:
    """Lock, freeze, end or cut off something for the time of the block."""
    kinds = ["lock", "lock", "main process", "one connection", "all", "end"]
    kind = random.choice(kinds if proxy is None else [*kinds, *4 * ["stall", "drop"]])
    if proxy is not None and kind in ("stall", "drop"):
        statement = random.choice(STATEMENTS)
        proxy.break_at(kind, statement)
        yield f"{kind} at {statement!r}"
        proxy.mend()
        return
    if kind == "end":
        server.stop()
        try:
            yield kind
        finally:
            server.start()
        return
    if kind == "lock":
        table = random.choice(TABLES)
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"LOCK TABLE treecv_{table}"))
            yield f"lock of {table}"
        engine.dispose()
        return
    pids = backends(url)
    if kind == "one connection":
        pids = random.sample(pids, min(len(pids), 1))
    elif kind == "main process":
        pids = [server.pid]
    else:
        pids = [server.pid, *pids]
    with stopped(pids):
        yield kind


def attack(seed: int, n_rounds: int, servers: list[PostgresServer]) -> None:
    """Run the rounds on these servers in turn."""
    random.seed(seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for i in range(n_rounds):
        server = servers[i % len(servers)]
        url = server.new_schema()
        proxy = None if server.port is None else Proxy(server.port)
        through = url if proxy is None else url.replace(f":{server.port}/", f":{proxy.port}/")
        is_engine = random.random() < 0.5
        store = through
        if is_engine:
            store = create_engine(through, pool_pre_ping=random.random() < 0.5)
        objective = make_objective(seed + i, store)
        expected = make_objective(seed + i, None)
        sampler = optuna.samplers.RandomSampler(seed=seed + i)
        if objective.param_grid is not None:
            sampler = objective.grid_sampler(seed=seed + i)
        study = optuna.create_study(sampler=sampler)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            what = run(objective, study, server, url, proxy)
        kinds = (optuna.exceptions.ExperimentalWarning, ResourceWarning)
        said = [str(one.message) for one in caught if not issubclass(one.category, kinds)]
        where = f"round {i} of seed {seed}: {what}, {said}"
        slowest = max(trial.duration.total_seconds() for trial in study.trials)
        assert slowest < LIMIT, f"{where}: a trial took {slowest:.1f} seconds"
        assert len(said) <= 3, where
        assert all(one.startswith("store postgresql") for one in said), where
        for trial in study.trials:
            assert trial.value == expected.evaluate(trial.params).mean, f"{where}: a wrong value"
        is_recorded = ["run" in trial.user_attrs["treecv"] for trial in study.trials]
        print(
            f"{i}: {what}; {len(is_recorded)} trials, {is_recorded.count(False)} not recorded, "
            f"the slowest took {slowest:.1f} s; {[one.split(': ', 1)[1][:90] for one in said]}",
            flush=True,
        )
        objective.evaluator.database.engine.dispose()
        if proxy is not None:
            proxy.close()


def run(
    objective, study: optuna.Study, server: PostgresServer, url: str, proxy: Proxy | None
) -> str:
    """Run trials before, in and after a fault, and return which it was."""
    study.optimize(objective, n_trials=2)
    with fault(server, url, proxy) as what:
        seconds = random.uniform(1.0, 4.0)
        running = Thread(
            target=study.optimize,
            args=(objective,),
            kwargs={"timeout": seconds, "n_jobs": 2, "n_trials": 100},
            daemon=True,
        )
        running.start()
        running.join(seconds + 3 * LIMIT)
        assert not running.is_alive(), f"{what}: trials were blocked"
    latest = time.monotonic() + 120
    while time.monotonic() < latest:
        study.optimize(objective, n_trials=1)
        if "run" in study.trials[-1].user_attrs["treecv"]:
            return what
        time.sleep(0.2)
    raise AssertionError(f"{what}: nothing is recorded after it")


def main(seed: int = 0, n_rounds: int = 20) -> None:
    binaries = postgres_binaries()
    if binaries is None:
        print("there is no PostgreSQL server here")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    servers = []
    try:
        with shortened():
            for one in (None, port):
                servers.append(PostgresServer(binaries, one))
                servers[-1].start()
            attack(seed, n_rounds, servers)
    finally:
        for server in servers:
            server.stop()
            server.remove()


@contextmanager
def shortened() -> Iterator[None]:
    """Divide the limits of the package by ten for the time of the block."""
    usual = {name: getattr(database, name) for name in SECONDS}
    retry = outages.RETRY_SECONDS
    try:
        vars(database).update(SECONDS)
        outages.RETRY_SECONDS = 3.0
        yield
    finally:
        vars(database).update(usual)
        outages.RETRY_SECONDS = retry


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
