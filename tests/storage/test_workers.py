"""Several processes on one study with one store, on a real server; one of them is killed."""

from __future__ import annotations

from pathlib import Path
import runpy
import signal
import time

import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from processes import Script
import pytest
from sqlalchemy import text

from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores

WORKER = Path(__file__).parents[1] / "helpers" / "worker.py"
make_objective = runpy.run_path(str(WORKER))["make_objective"]


@pytest.fixture
def study(postgres_url):
    return optuna.create_study(study_name="together", storage=RDBStorage(postgres_url))


def start(url, n_trials, what, grace=600):
    return Script(WORKER, url, url, str(n_trials), what, str(grace))


def finish(*workers):
    for worker in workers:
        assert worker.wait(600) == 0, worker.stderr.read()


def until(condition, worker=None):
    """Wait for an event; the limit says only that it will never come."""
    latest = time.monotonic() + 300
    while not condition():
        assert worker is None or worker.poll() is None, worker.stderr.read()
        assert time.monotonic() < latest
        time.sleep(0.05)


def heartbeats(storage):
    """Return when the trials have shown last that they are running."""
    with storage.engine.connect() as connection:
        return set(connection.scalars(text("SELECT heartbeat FROM trial_heartbeats")))


@pytest.mark.slow  # it waits
def test_a_long_trial_keeps_its_heartbeat(study, postgres_url):
    """Heartbeats come from another thread of the worker, which training must let run."""
    storage = RDBStorage(postgres_url)
    long, seen = start(postgres_url, 1, "long"), set()

    def count():
        seen.update(heartbeats(storage))
        return len(seen) > 4

    until(count, long)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    long.kill()
    long.wait()


@pytest.mark.slow
def test_a_killed_trial_goes_on(study, postgres_url):
    worker = start(postgres_url, 1, "stuck", grace=3)
    assert worker.stdout.readline() == "written\n", worker.stderr.read()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    storage = RDBStorage(postgres_url, heartbeat_interval=1, grace_period=3)
    until(lambda: storage._get_stale_trial_ids(study._study_id))
    finish(start(postgres_url, 1, "goes on", grace=3))
    stale, retried = study.trials
    assert (stale.state, retried.state) == (TrialState.FAIL, TrialState.COMPLETE)
    expected = make_objective("goes on").evaluate(stale.params)
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
