"""A worker is killed with -9, and its study goes on at the next fold, on SQLite and PostgreSQL."""

from collections import Counter
from pathlib import Path
import signal
import sys
import tempfile
import time

import joblib
import optuna
from optuna.storages import RDBStorage
from optuna.storages import RetryHeartbeatStaleTrialCallback
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from optuna_treecv import treecv_objective
from optuna_treecv.caching import caches

caches._SECONDS_PER_WRITE = 0.0  # as if each fit took the two seconds after which it is written

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
from postgres_server import postgres_binaries  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402
from processes import Script  # noqa: E402

DEPTHS = [1, 2, 3, 4]
N_FOLDS = 5
STUCK_AT = N_FOLDS + 3  # the third fit of the second trial
GRACE = 2


def make_objective(store=None):
    """Return the objective, the same in each process."""
    return treecv_objective(
        RandomForestClassifier(10, random_state=0),
        *load_breast_cancer(return_X_y=True),
        param_grid={"max_depth": DEPTHS},
        cv=N_FOLDS,
        store=store,
    )


def work(studies, store, log, is_stuck):
    """Run what is left of the study. Each fit that begins is a line of the log."""
    fit = RandomForestClassifier.fit

    def logged(forest, X, y, **params):
        if is_stuck and n_lines(log) == STUCK_AT - 1:
            # Folds are written beside the fits.
            objective.evaluator.cross_validation.shared.cache._store.queue.wait()
        with Path(log).open("a") as file:
            file.write(f"{forest.max_depth} {joblib.hash(X)}\n")
        if is_stuck and n_lines(log) == STUCK_AT:
            time.sleep(1000)
        return fit(forest, X, y, **params)

    RandomForestClassifier.fit = logged
    storage = RDBStorage(
        studies,
        heartbeat_interval=1,
        grace_period=GRACE,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=1),
    )
    objective = make_objective(store)
    study = optuna.create_study(
        storage=storage,
        study_name="depths",
        load_if_exists=True,
        direction=objective.direction,
        sampler=objective.grid_sampler(seed=0),
    )
    study.optimize(objective)


def n_lines(log):
    """Return how many fits have begun."""
    return len(Path(log).read_text().splitlines()) if Path(log).exists() else 0


def start(studies, store, log, is_stuck):
    """Start a worker in a process of its own."""
    arguments = [studies, store, log, "stuck" if is_stuck else "free"]
    return Script(__file__, "worker", *arguments)


def kill_and_resume(places):
    """Kill a worker of each study and start another; check what both of them did.

    Parameters
    ----------
    places : list of (str, str, Path)
        The URLs of the study and of the store, and the log.
    """
    workers = [start(*place, is_stuck=True) for place in places]
    latest = time.monotonic() + 250  # it is over long before
    while any(n_lines(log) < STUCK_AT for _, _, log in places):
        assert time.monotonic() < latest and all(worker.poll() is None for worker in workers)
        time.sleep(0.05)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    time.sleep(GRACE + 1)  # until the trial's last heartbeat is too old
    for worker in [start(*place, is_stuck=False) for place in places]:
        assert worker.wait(timeout=250) == 0

    objective = make_objective()
    undisturbed = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    undisturbed.optimize(objective)
    values = {trial.params["max_depth"]: trial.value for trial in undisturbed.trials}
    for studies, _, log in places:
        study = optuna.load_study(study_name="depths", storage=studies)
        complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
        assert {trial.params["max_depth"]: trial.value for trial in complete} == values
        assert len(complete) == len(DEPTHS) and len(study.trials) == len(DEPTHS) + 1
        assert study.best_params == undisturbed.best_params
        # Each fold was fitted once, but for that in which the worker was killed.
        fits = Counter(Path(log).read_text().splitlines())
        assert len(fits) == len(DEPTHS) * N_FOLDS
        assert sorted(fits.values()) == [1] * (len(fits) - 1) + [2]
        study._storage.remove_session()


def main():
    """Do so with all databases that are here, at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        urls = (f"sqlite:///{folder}/{name}.db" for name in ("studies", "store"))
        places = [(*urls, Path(folder, "sqlite.log"))]
        binaries = postgres_binaries()
        server = None if binaries is None else PostgresServer(binaries)
        try:
            if server is not None:
                server.start()
                url = server.new_schema()
                places.append((url, url, Path(folder, "postgresql.log")))
            kill_and_resume(places)
        finally:
            if server is not None:
                server.stop()
                server.remove()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(*sys.argv[2:5], is_stuck=sys.argv[5] == "stuck")
    else:
        main()
