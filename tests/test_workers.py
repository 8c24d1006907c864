"""Several processes on one study with one store, on a real server; one of them is killed."""

from __future__ import annotations

from pathlib import Path
import runpy
import signal
import subprocess
import sys
import time

import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState
import pytest
from sqlalchemy import func
from sqlalchemy import select

from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.tables import ModelRow

WORKER = Path(__file__).with_name("worker.py")
make_objective = runpy.run_path(str(WORKER))["make_objective"]


@pytest.fixture
def study(postgres_url):
    return optuna.create_study(study_name="together", storage=RDBStorage(postgres_url))


def start(url, n_trials, what):
    return subprocess.Popen(
        [sys.executable, WORKER, url, url, str(n_trials), what],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*workers):
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors


def n_models(database):
    with database.reading() as session:
        return session.scalar(select(func.count(ModelRow.id)))


def test_four_workers_share_a_study_and_a_store(study, postgres_url):
    finish(*(start(postgres_url, 6, "short") for _ in range(4)))
    trials = study.trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 24
    evaluations = load_evaluations(postgres_url, study=study)
    assert sorted(evaluations.trial_number) == list(range(24))
    scores = load_fold_scores(postgres_url, study=study).groupby("trial_number").score
    objective = make_objective("short")
    for trial in trials:
        expected = objective.evaluate(trial.params)
        assert trial.value == expected.mean
        assert list(scores.get_group(trial.number)) == expected.test_score.tolist()


def test_a_long_trial_keeps_its_heartbeat(study, postgres_url):
    long = start(postgres_url, 1, "long")
    while not study.get_trials(states=(TrialState.RUNNING,)):
        time.sleep(0.1)
    while long.poll() is None:  # each worker looks for stale trials when it begins one
        finish(start(postgres_url, 3, "short"))
    finish(long)
    trials = study.trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    lasted = max(trial.duration.total_seconds() for trial in trials)
    assert lasted > 3, "the trial was too short to show anything"


def test_a_killed_trial_goes_on(study, postgres_url):
    worker = start(postgres_url, 1, "long")
    begin = time.monotonic()
    database = Database(postgres_url)  # only one: connections last as long as their engine
    while n_models(database) == 0:
        assert worker.poll() is None, worker.stderr.read()
        assert time.monotonic() - begin < 100
        time.sleep(0.05)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    time.sleep(4)  # the grace period
    finish(start(postgres_url, 1, "long"))
    stale, retried = study.trials
    assert (stale.state, retried.state) == (TrialState.FAIL, TrialState.COMPLETE)
    expected = make_objective("long").evaluate(stale.params)
    assert retried.value == expected.mean
    evaluations = load_evaluations(postgres_url, study=study).set_index("trial_number")
    done, saved = evaluations.loc[retried.number, ["n_updates", "n_updates_saved"]]
    assert done == retried.user_attrs["n_updates"]
    assert done + saved == expected.n_updates and 0 < saved
    # At most two seconds of training were lost, plus the phase in which the worker was killed.
    assert saved / expected.n_updates > 1 / expected.seconds
    scores = load_fold_scores(postgres_url, study=study)
    # The killed worker may have recorded scores, too, before the trial could name them.
    own = scores[scores.trial_number == retried.number]
    assert list(own.score) == expected.test_score.tolist()
