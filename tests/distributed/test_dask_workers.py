"""Rows on workers that are killed, on a scheduler that goes away, and what travels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
import logging
import os
import signal
import sys
from threading import Thread
from typing import Any

from dask_processes import counting
from dask_processes import LIMIT
from dask_processes import Processes
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from optuna_treecv.dask import DaskBlocks  # noqa: E402
from optuna_treecv.dask import DaskRows  # noqa: E402

N, D = 20_000, 10
LANES = [PegasosClassifier(alpha=alpha) for alpha in np.geomspace(1e-6, 1, 32)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Sending large graph"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills processes"),
]


def within(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or raise its error; fail if it takes too long."""
    found: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:  # noqa: BLE001
            found.append((None, error))

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found, f"nothing came within {LIMIT} seconds"
    ((result, error),) = found
    if error is not None:
        raise error
    return result


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def in_memory() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) + 1
    return X, (X[:, 0] + rng.normal(size=N) > 1).astype(int)


@pytest.fixture(scope="module", params=["nanny", "no-nanny"])
def cluster(request, tmp_path_factory):
    """Return a client, and a function that waits until there are two workers (again)."""
    processes = Processes(tmp_path_factory.mktemp("workers"))
    options = {"dashboard_address": ":0", "host": "127.0.0.1"}
    with (
        distributed.LocalCluster(n_workers=0, **options) as scheduler,
        distributed.Client(scheduler) as client,
    ):

        def ready() -> None:
            is_new = not client.nthreads()
            if is_new or request.param == "no-nanny":
                for _ in range(2 - len(client.nthreads())):
                    processes.start_worker(scheduler.scheduler_address, f"--{request.param}")
            client.wait_for_workers(2, timeout=LIMIT)

        try:
            ready()
            yield client, ready
        finally:
            processes.end()


without_nanny = pytest.mark.parametrize("cluster", ["no-nanny"], indirect=True)


def rows_of(in_memory, client):
    X, y = in_memory
    return DaskRows(da.from_array(X, chunks=(3000, D)), y, client=client)


def scores(estimators, *rows, **options):
    found = tree_cross_validate_many(estimators, *rows, **{"cv": 10, **options})
    return np.array([one.test_score for one in found])


@pytest.fixture(scope="module")
def expected(in_memory):
    return scores(LANES, *in_memory)


@contextmanager
def killing(client: Any, at: int | str) -> Iterator[Counter[str]]:
    """Kill a worker before a call with its block is sent, or while rows are shuffled.

    Parameters
    ----------
    client : Client
    at : int or str
        The number of the call, or "shuffle".

    Yields
    ------
    Counter
        What has happened: "calls" and "killed".
    """
    pids, happened = client.run(os.getpid), Counter[str]()

    def kill(address: str) -> None:
        if address in pids and not happened["killed"]:
            happened["killed"] += 1
            os.kill(pids[address], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        send, put = DaskBlocks.send, DaskBlocks._put

        def sending(self: Any, call: Any) -> Any:
            happened["calls"] += 1
            if happened["calls"] - 1 == at:
                kill(self._addresses[call.block])
            return send(self, call)

        def shuffling(self: Any, numbers: Any) -> None:
            put(self, numbers)
            if at == "shuffle":
                kill(self._addresses[0])

        patch.setattr(DaskBlocks, "send", sending)
        patch.setattr(DaskBlocks, "_put", shuffling)
        yield happened


def killed_once(cluster, in_memory, expected, share):
    client, ready = cluster
    ready()
    rows = rows_of(in_memory, client)
    at: int | str = "shuffle"
    if not isinstance(share, str):
        with killing(client, -1) as happened:
            within(lambda: scores(LANES, rows))
        assert happened["calls"] > 5
        at = int(share * (happened["calls"] - 1))
    with killing(client, at) as happened:
        found = within(lambda: scores(LANES, rows))
    assert happened["killed"] == 1
    np.testing.assert_array_equal(found, expected)
    # The rows that were placed anew serve other calls.
    np.testing.assert_array_equal(within(lambda: scores(LANES[:3], rows)), expected[:3])


@pytest.mark.parametrize(
    "cluster, share",
    [
        pytest.param("nanny", "shuffle", marks=pytest.mark.nightly),
        pytest.param("nanny", 0.5, marks=pytest.mark.nightly),
        pytest.param("no-nanny", 0.0, marks=pytest.mark.nightly),
        ("no-nanny", "shuffle"),
        ("no-nanny", 1.0),
    ],
    indirect=["cluster"],
)
def test_a_killed_worker_changes_nothing(cluster, in_memory, expected, share):
    killed_once(cluster, in_memory, expected, share)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("share", ["shuffle", 0.0, 0.5, 1.0])
def test_workers_are_killed_again_and_again(cluster, in_memory, expected, share, number):
    if not isinstance(share, str):
        share = min(max(share + (number - 4) / 40, 0.0), 1.0) if share == 0.5 else share
    killed_once(cluster, in_memory, expected, share)


@pytest.mark.parametrize(
    "model", [LogisticRegression(), make_pipeline(StandardScaler(), PegasosClassifier())]
)
@without_nanny
def test_sums_and_surveys_outlive_a_worker(cluster, in_memory, model):
    client, ready = cluster
    ready()
    rows = rows_of(in_memory, client)
    options = {"cv": 5, "scoring": "hinge" if hasattr(model, "steps") else "neg_log_loss"}

    def evaluate():
        return tree_cross_validate(model, rows, **options).test_score

    undisturbed = within(evaluate)
    with killing(client, 3) as happened:
        np.testing.assert_array_equal(within(evaluate), undisturbed)
    assert happened["killed"] == 1
    np.testing.assert_allclose(
        undisturbed, tree_cross_validate(model, *in_memory, **options).test_score, atol=1e-7
    )


@without_nanny
def test_two_clients_at_once_of_which_one_leaves(cluster, in_memory, expected):
    client, ready = cluster
    ready()
    address, found, threads = client.scheduler.address, {}, []

    def work(number: int, times: int) -> None:
        with distributed.Client(address, set_as_default=False) as own:
            rows = rows_of(in_memory, own)
            found[number] = [scores(LANES[number::2], rows) for _ in range(times)]

    for number, times in enumerate([1, 3]):
        threads.append(Thread(target=work, args=(number, times), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(LIMIT)
    for number, times in enumerate([1, 3]):
        assert len(found[number]) == times
        for some in found[number]:
            np.testing.assert_array_equal(some, expected[number::2])


@pytest.mark.parametrize("cv", [10, 100])
@without_nanny
def test_what_travels(cluster, in_memory, expected, cv):
    client, ready = cluster
    ready()
    rows = rows_of(in_memory, client)
    scores(LANES[:2], rows, cv=cv)  # shuffles the rows
    with counting(client) as sent:
        found = scores(LANES, rows, cv=cv)
    assert 10_000 < sent["bytes"] <= 500_000
    assert sent["between workers"] == 0
    np.testing.assert_array_equal(found, scores(LANES, *in_memory, cv=cv))


@pytest.mark.parametrize("is_asked", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_scheduler_that_goes_away_is_an_error(in_memory, tmp_path, monkeypatch, is_asked):
    monkeypatch.setattr("optuna_treecv.dask._TIMEOUT", 5.0)
    processes = Processes(tmp_path)
    try:
        scheduler, address = processes.start_scheduler()
        processes.start_worker(address, "--no-nanny")
        with distributed.Client(address, timeout=LIMIT, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=LIMIT)
            rows = rows_of(in_memory, client)
            scores(LANES, rows)
            if is_asked:  # it goes while it is asked for a result
                result = distributed.Future.result

                def late(future: Any, timeout: float | None = None) -> Any:
                    scheduler.kill()
                    return result(future, timeout)

                monkeypatch.setattr(distributed.Future, "result", late)
            else:
                scheduler.kill()
            with pytest.raises(ConnectionError, match="must have a scheduler that responds"):
                within(lambda: scores(LANES, rows))
    finally:
        processes.end()
