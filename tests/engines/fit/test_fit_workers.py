"""Worker processes of the method "fit": whose they are, how they end, and what they compute."""

from __future__ import annotations

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from parallel_fits import KillsOnce
import pytest
from sklearn.datasets import load_breast_cancer

from optuna_treecv import tree_cross_validate

SCRIPT = Path(__file__).parents[2] / "helpers" / "parallel_fits.py"


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
        begun.append(subprocess.Popen([sys.executable, SCRIPT, backend, tmp_path, "held"]))
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


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
def test_workers_end_with_their_parent(fits, backend, how):
    parent, workers = fits(backend)
    parent.send_signal(how)
    assert parent.wait() == -how
    until(lambda: not any(map(is_alive, workers)))


def scored(backend, folder, what="scored again", **environment):
    """Return what fits with a backend print."""
    done = subprocess.run(
        [sys.executable, SCRIPT, backend, folder, what],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def expected(folder):
    (folder / "killed").touch()
    X, y = load_breast_cancer(return_X_y=True)
    return tree_cross_validate(KillsOnce(str(folder)), X, y, cv=4, n_jobs=1).test_score.tolist()


@pytest.mark.nightly
def test_spawned_workers_change_nothing(tmp_path):
    one = expected(tmp_path)
    found = scored("multiprocessing", tmp_path, "scored", JOBLIB_START_METHOD="spawn")
    assert list(map(json.loads, found)) == [one]


@pytest.mark.slow
def test_a_killed_worker_of_joblib_is_an_error_and_the_next_call_works(tmp_path):
    error, *_, scores = scored("forked loky", tmp_path)
    assert "A worker process managed by the executor was unexpectedly terminated" in error
    assert json.loads(scores) == expected(tmp_path)


@pytest.mark.nightly
def test_a_killed_worker_of_dask_changes_nothing(tmp_path):
    pytest.importorskip("distributed")
    found = scored("dask", tmp_path)
    assert (tmp_path / "killed").exists()
    one = expected(tmp_path)
    assert list(map(json.loads, found)) == [one, one]
