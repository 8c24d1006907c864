"""A worker of tests/test_leases.py: python grid_worker.py STORAGE STORE [stuck | meets].

It prints one line per event:

* "ready": it begins when it reads a line.
* "walks N": it evaluates N points side by side. With "stuck" it never ends. With "meets" the first
  walk begins when it reads another line, so that another worker comes while leases are held.
* "waits": it waits for another worker.
* "left N": at the end, the row updates of results that still wait for a trial in this worker,
  because a trial of another worker has used them.
"""

import sys
import time

import numpy as np
import optuna

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.crossval import treecv
from optuna_treecv.storage import model_store

GRID = {"alpha": [0.0, 1e-4, 1e-2, 1.0], "step_size": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]}


def make_objective(store=None, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5))
    y = X[:, 0] > rng.normal(size=3000)
    options = {"param_grid": GRID, "batch_size": 5, "store": store} | options
    return treecv_objective(AveragedSGDClassifier(), X, y, **options)


def say(*words):
    print(*words, flush=True)


def main(storage, store, how=""):
    model_store._RENEWALS = 300  # that is every 0.2 seconds
    walk, wait = treecv._evaluate_group, model_store.Leases.wait

    pauses = iter([sys.stdin.readline] if how == "meets" else [])

    def say_and_walk(members, *others):
        say("walks", len(members))
        next(pauses, lambda: None)()
        time.sleep(600 if how == "stuck" else 0.1)
        walk(members, *others)

    def say_and_wait(self, name):
        say("waits")
        wait(self, name)

    treecv._evaluate_group, model_store.Leases.wait = say_and_walk, say_and_wait
    objective = make_objective(store)
    study = optuna.load_study(
        study_name="grid", storage=storage, sampler=objective.grid_sampler(seed=0)
    )
    say("ready")
    sys.stdin.readline()
    study.optimize(objective)
    say(
        "left",
        sum(
            ahead.outputs.n_updates
            for job in objective._batches._jobs_ahead
            for ahead in job.ahead.values()
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
