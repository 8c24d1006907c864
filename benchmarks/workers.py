"""Measure many processes on one study: trials, CPU time and connections.

    OMP_NUM_THREADS=1 python benchmarks/workers.py [WORKERS ...]

A Markdown table. The workers visit a grid of 256 values of alpha on 20,000 rows with 100 folds.
An evaluation takes about 10 ms, so this measures what storages and stores cost. With PostgreSQL
and the gRPC proxy the store is in the same database, with a journal it is a SQLite file. Workers
are forked from a process that has imported the package, and begin together. Connections are those
of the whole server, and the most at a time that were seen. "Done" and "saved" are sums over the
trials, divided by the updates of one process alone without a store.
"""

from __future__ import annotations

from contextlib import ExitStack
import os
from pathlib import Path
import socket
import subprocess
import sys
from tempfile import TemporaryDirectory
from threading import Event
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np
import optuna
from optuna.storages import GrpcStorageProxy
from optuna.storages import JournalStorage
from optuna.storages import RDBStorage
from optuna.storages.journal import JournalFileBackend
from sklearn.datasets import make_classification
from sqlalchemy import create_engine

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.history import load_evaluations
from optuna_treecv.study.objective import TreeCVObjective

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from postgres_server import postgres_binaries  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402
from processes import Script  # noqa: E402

PROXY = """from optuna.storages import get_storage, run_grpc_proxy_server
run_grpc_proxy_server(get_storage({url!r}), host="127.0.0.1", port={port})"""
N_POINTS = 256
CASES = [("PostgreSQL", False), ("PostgreSQL", True), ("gRPC", True), ("journal", True)]


def storage_at(place: str) -> Any:
    """Return the storage at a URL, at "grpc:PORT" or in the journal at a path."""
    if place.startswith("grpc:"):
        proxy = GrpcStorageProxy(host="127.0.0.1", port=int(place.removeprefix("grpc:")))
        proxy.wait_server_ready(timeout=60)
        return proxy
    return place if "://" in place else JournalStorage(JournalFileBackend(place))


def objective_of(store: str | None) -> TreeCVObjective:
    X, y = make_classification(20_000, 10, random_state=0)
    grid = {"alpha": np.geomspace(1e-6, 1, N_POINTS)}
    return treecv_objective(PegasosClassifier(), X, y, param_grid=grid, cv=100, store=store)


def work(place: str, store: str) -> None:
    """Be a worker, which prints its CPU time."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objective = objective_of(store or None)
    study = optuna.load_study(
        study_name="workers", storage=storage_at(place), sampler=objective.grid_sampler()
    )
    print("ready", flush=True)
    sys.stdin.readline()
    began = sum(os.times()[:2])
    study.optimize(objective)
    print(sum(os.times()[:2]) - began, flush=True)


class Connections(Thread):
    """Counts the connections of other processes to a PostgreSQL server until it is ended."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.most, self._ended = 0, Event()
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def run(self) -> None:
        query = (
            "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        with self._engine.connect() as connection:
            while not self._ended.wait(0.02):
                self.most = max(self.most, connection.exec_driver_sql(query).scalar_one())

    def end(self) -> int:
        """Return the most that were seen at a time."""
        self._ended.set()
        self.join()
        self._engine.dispose()
        return self.most


def measure(n_workers: int, server: PostgresServer, storage: str, has_store: bool) -> list[str]:
    """Return the cells of a row."""
    url = server.new_schema()
    with TemporaryDirectory() as folder, ExitStack() as at_end:
        place, store = url, url
        if storage == "journal":
            place, store = f"{folder}/journal", f"sqlite:///{folder}/store.db"
            kept: Any = storage_at(place)
        else:
            kept = RDBStorage(url)
            at_end.callback(kept.engine.dispose)
        optuna.create_study(study_name="workers", storage=kept)
        if storage != "journal":
            kept.engine.dispose()
        if storage == "gRPC":
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            place = f"grpc:{port}"
            code = PROXY.format(url=url, port=port)
            proxy = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
            at_end.callback(proxy.wait)
            at_end.callback(proxy.kill)
        arguments = ["work", place, store if has_store else ""]
        workers = [Script(Path(__file__), *arguments) for _ in range(n_workers)]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        connections = Connections(url)
        connections.start()
        began = perf_counter()
        for worker in workers:
            print(file=worker.stdin, flush=True)
        for worker in workers:
            assert worker.wait(600) == 0, worker.stderr.read()
        seconds = perf_counter() - began
        most = connections.end()
        cpu = sum(float(worker.stdout.read()) for worker in workers)
        study = optuna.load_study(study_name="workers", storage=kept)
        trials = study.trials
        cells = [
            f"{len(trials) / seconds:.1f}",
            f"{1000 * cpu / len(trials):.0f} ms",
            str(most),
            f"{len(trials)}, {len({trial.params['alpha'] for trial in trials})}",
        ]
        if has_store:
            alone = objective_of(None).evaluate(trials[0].params).n_updates * N_POINTS
            found = load_evaluations(store, study=study)
            both = found.n_updates.sum() / alone, found.n_updates_saved.sum() / alone
            cells.append("{:.3f}, {:.3f}".format(*both))
        return cells


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    binaries = postgres_binaries()
    assert binaries is not None, "there is no PostgreSQL server here"
    server = PostgresServer(binaries)
    titles = ["workers, storage", "trials/s", "CPU per trial", "connections", "trials, points"]
    print("|", " | ".join([*titles, "done, saved"]), "|")
    print("|---" * (len(titles) + 1), "|", sep="")
    try:
        server.start()
        for n_workers in [int(word) for word in sys.argv[1:]] or [1, 8]:
            for storage, has_store in CASES:
                name = f"{n_workers}, {storage}{'' if has_store else ' without store'}"
                cells = measure(n_workers, server, storage, has_store)
                print("|", " | ".join([name, *cells]), "|", flush=True)
        server.stop()
    finally:
        server.remove()


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
    else:
        main()
