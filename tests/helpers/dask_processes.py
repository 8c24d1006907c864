"""The processes of a Dask cluster, and the bytes that they send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import suppress
import json
from multiprocessing.process import BaseProcess
import os
from pathlib import Path
import runpy
import signal
import sys
import time
from typing import Any

from processes import SERVER

# Longer than this, nothing may take: seconds.
LIMIT = 60


class Processes:
    """The processes of a cluster, which end with it.

    Parameters
    ----------
    folder : Path
        Where they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[BaseProcess] = []

    def start(self, *arguments: str) -> BaseProcess:
        line = [Path(sys.executable).with_name("dask"), *arguments]
        environment = {
            "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical",
            "PYTHONPATH": str(Path(__file__).parent),  # of the worker of a nanny
        }
        process = SERVER.Process(target=run_in, args=(self._folder, line, environment))
        process.start()
        self._running.append(process)
        return process

    def start_scheduler(self) -> tuple[BaseProcess, str]:
        """Start a scheduler; return its process and its address."""
        file = self._folder / "scheduler.json"
        options = "--port 0 --no-dashboard --host 127.0.0.1 --scheduler-file".split()
        process = self.start("scheduler", *options, str(file))
        until(lambda: file.exists() and file.read_text().endswith("}"))
        return process, json.loads(file.read_text())["address"]

    def start_worker(self, address: str, *options: str) -> None:
        self.start("worker", address, "--nthreads", "1", "--no-dashboard", *options)

    def end(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()


def run_in(
    folder: Path, line: Sequence[Path | str], environment: dict[str, str], output: str = os.devnull
) -> None:
    """Run a line of a shell, whose program is in Python, in this process."""
    os.setsid()  # a nanny and its worker are ended together
    os.chdir(folder)
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = [str(word) for word in line]
    runpy.run_path(sys.argv[0], run_name="__main__")


def until(condition: Callable[[], Any]) -> None:
    latest = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.02)


@contextmanager
def counting(client: Any) -> Iterator[Counter[str]]:
    """Count the "bytes" that this process and all workers send, and those "between workers".

    Of the latter, it counts how often a worker asks another one.
    """
    sent: Counter[str] = Counter()
    client.run(_begin)
    _begin(here := _Sender())
    try:
        yield sent
    finally:
        sent["bytes"] += _end(here)[0]
        for n_bytes, n_asked in client.run(_end).values():
            sent["bytes"] += n_bytes
            sent["between workers"] += n_asked


class _Sender:
    """What has counters, as a worker."""

    state = None


def _begin(dask_worker: Any) -> None:
    from distributed.comm.tcp import TCP

    write = TCP.write
    dask_worker.sent_bytes, dask_worker.asked_before = 0, _n_asked(dask_worker)

    async def counted(comm: Any, *arguments: Any, **options: Any) -> int:
        n_bytes = await write(comm, *arguments, **options)
        dask_worker.sent_bytes += n_bytes
        return n_bytes

    counted.write = write
    TCP.write = counted


def _end(dask_worker: Any) -> tuple[int, int]:
    from distributed.comm.tcp import TCP

    TCP.write = TCP.write.write
    return dask_worker.sent_bytes, _n_asked(dask_worker) - dask_worker.asked_before


def _n_asked(dask_worker: Any) -> int:
    state = dask_worker.state
    return 0 if state is None else state.transfer_incoming_count_total
