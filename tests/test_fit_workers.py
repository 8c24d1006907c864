"""Worker processes of the method "fit": whose they are, how they end, and what they compute."""

from __future__ import annotations

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = Path(__file__).with_name("parallel_fits.py")


def until(condition, *args):
    """Wait for an event; the limit says only that it will never come."""
    latest = time.monotonic() + 120
    while not condition(*args):
        assert time.monotonic() < latest
        time.sleep(0.01)


def is_alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # who adopts it has not looked at it yet


@pytest.fixture
def fits(tmp_path):
    """Return a function that starts fits with a backend, and returns their process and workers."""
    begun = []

    def pids():
        return [int(path.name) for path in tmp_path.iterdir()]

    def start(backend):
        begun.append(subprocess.Popen([sys.executable, SCRIPT, backend, tmp_path]))
        until(lambda: len(pids()) == 2 or begun[0].poll() is not None)
        assert begun[0].poll() is None
        return begun[0], pids()

    yield start
    for process in begun:
        process.kill()
        process.wait()
    for pid in pids():
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(fits, backend, how):
    parent, workers = fits(backend)
    parent.send_signal(how)
    assert parent.wait() == -how
    until(lambda: not any(map(is_alive, workers)))
