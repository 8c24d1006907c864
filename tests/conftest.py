"""Fixtures: small data sets, filled studies and databases."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from itertools import count
import os
from pathlib import Path
import sqlite3
from typing import Any
from uuid import uuid4
import weakref

import blas_threads  # noqa: F401  # before NumPy
from filled_study import FilledStudy
from hypothesis import settings
import numpy as np
import optuna
from postgres_server import postgres_binaries
from postgres_server import PostgresServer
import pytest
import reference
from slow_tests import CpuSeconds
from small_data import data_of
from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.result import CVResult
from optuna_treecv.rows import memory
from optuna_treecv.rows.cv import make_cuts
from optuna_treecv.rows.cv import ToCut
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import WriteQueue
from optuna_treecv.study.evaluator import record_trial
from optuna_treecv.testing import treecv

PUT = WriteQueue.put

settings.register_profile("of any speed", deadline=None)
settings.load_profile("of any speed")


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("CPU_SECONDS"):
        config.pluginmanager.register(CpuSeconds(path))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark nightly tests as slow."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")


@event.listens_for(Engine, "connect")
def _sqlite_waits_for_no_disk(connection: Any, _: Any) -> None:
    """Only a machine that fails would need it; the PostgreSQL server runs without fsync, too."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(autouse=True, scope="session")
def _models_of_small_data_are_shared() -> Iterator[None]:
    """Share also what takes longer to look up than to train, because tests have few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optuna_treecv.engines.treecv.shared_learner._MIN_PHASE_BYTES", 1)
        yield


@pytest.fixture(autouse=True)
def _no_memory_is_kept() -> None:
    """Begin without memory of rows of another test, so that peaks can be measured."""
    memory._kept.clear()


@pytest.fixture(autouse=True)
def _optuna_is_quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(autouse=True, scope="session")
def _writes_are_waited_for() -> Iterator[None]:
    """Write to stores at once, so that tests can look at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteQueue, "put", lambda queue, job, n_bytes=0: job())
        yield


@pytest.fixture
def _real_queue(monkeypatch) -> None:
    monkeypatch.setattr(WriteQueue, "put", PUT)


@pytest.fixture
def make_data() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    return data_of


@pytest.fixture
def binary() -> tuple[np.ndarray, np.ndarray]:
    return data_of(83, 5)


@pytest.fixture
def three_classes() -> tuple[np.ndarray, np.ndarray]:
    return data_of(61, 4, n_classes=3)


@pytest.fixture
def regression() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(79, 6))
    y = X @ rng.normal(size=6) * 0.2 + 0.1 * rng.normal(size=79)
    return X, y


def paths_of(n_rows, n_folds, order="fixed", shuffle=True, random_state=0):
    """Return, for each fold, its rows and the phases in which its model is trained.

    The phases follow Algorithm 1 as the paper writes it. Row numbers are those of the given data.
    Fold i of leave-one-out is row i; other folds of a number come in the order of the tree.
    """
    seed = derive_seed(random_state, 0)
    prepared = make_folds(n_folds, None, None, None, shuffle, seed, n_rows).order
    cuts = [i * n_rows // n_folds for i in range(n_folds + 1)]
    chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    paths = {}

    def train(path, rows, n_seen):
        if order == "random" and len(rows) > 1:
            rows = reference.random_order(seed, rows[0], rows[-1] + 1, n_seen)
        return [*path, prepared[list(rows)]]

    treecv(chunks, train, lambda path, fold: paths.update({fold: path}), [])
    found = [(prepared[list(chunks[fold])], paths[fold]) for fold in range(n_folds)]
    return sorted(found, key=lambda one: one[0][0]) if n_folds == n_rows else found


@pytest.fixture
def training_paths():
    return paths_of


@pytest.fixture
def fill(tmp_path):
    """Return a function that makes a FilledStudy."""
    numbers = count()
    return lambda *args, **kwargs: FilledStudy(
        f"sqlite:///{tmp_path / f'store{next(numbers)}.db'}", *args, **kwargs
    )


@pytest.fixture
def results(monkeypatch) -> dict[tuple[str, int], CVResult]:
    """Return the results of the trials that this process evaluates, by study name and number."""
    found = {}

    def keep(trial, run, database):
        result, name = record_trial(trial, run, database)
        found[trial.study.study_name, trial.number] = result
        return result, name

    monkeypatch.setattr("optuna_treecv.study.evaluator.record_trial", keep)
    return found


@pytest.fixture
def batch_sizes(monkeypatch) -> list[int]:
    """Return a list to which each evaluation of a batch appends the number of its candidates."""
    sizes = []

    def evaluate(runs, **options):
        sizes.append(len(runs))
        return evaluate_batch(runs, **options)

    monkeypatch.setattr("optuna_treecv.study.batches.evaluate_batch", evaluate)
    return sizes


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg")
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server here: Debian's package is postgresql")
    server = PostgresServer(binaries)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Return a URL of an empty schema; connections to it are closed after the test."""
    engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def note(connection: Connection) -> None:
        engines.add(connection.engine)

    event.listen(Engine, "engine_connect", note)
    yield postgres_server.new_schema()
    event.remove(Engine, "engine_connect", note)
    for engine in engines:
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new store, for each kind of database."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def retry_now() -> Callable[[Database], None]:
    """Return a function after which a store that has failed is tried again at once."""

    def retry(database: Database) -> None:
        outages = database._outages
        outages._retry_at = dict.fromkeys(outages._retry_at, 0.0)

    return retry


@pytest.fixture
def make_evaluation() -> Callable[..., dict[str, Any]]:
    def make(**fields: Any) -> dict[str, Any]:
        usual: dict[str, Any] = {
            "learner": "PegasosClassifier",
            "parameters": {"alpha": 0.1},
            "cv": "10",
            "n_folds": 10,
            "n_rows": 100,
            "n_features": 5,
            "scoring": "error",
            "direction": "minimize",
            "random_state": "0",
            "mean": 0.25,
            "folds_scored": 10,
            "n_updates": 340,
            "n_updates_standard": 900,
            "seconds": 0.5,
        }
        return {"run": uuid4().hex[:16]} | usual | fields

    return make


def make_folds(cv, X, y, groups, shuffle, seed, n_rows):
    """Return how the rows are cut, without stratification."""
    (cut,) = make_cuts(cv, ToCut(X, y, groups, n_rows, shuffle), lambda _: seed, 1)
    return cut
