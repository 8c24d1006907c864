"""A worker of a grid: python grid_worker.py STORAGE STORE.

The worker prints one line per event:

* "ready": it begins when it reads a line.
* "walks N": it evaluates N candidates in a batch. The first walk begins when it reads another
  line, so that another worker comes while leases are held.
* "waits": it waits for another worker.
* "trained N": at the end, the row updates that this worker has done, counted where models are
  trained.
"""

import sys
import time

import numpy as np
import optuna

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.engines.treecv import engine as treecv
from optuna_treecv.engines.treecv.learners.compiled import KernelTrainer
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


def count_trained():
    """Return a list of the row updates that models are trained with from now on."""
    trained = []

    def count(method, n_rows):
        def train(self, *args):
            done = method(self, *args)
            trained.append(n_rows(done, *args) * len(getattr(self, "learners", [self])))
            return done

        setattr(KernelTrainer, method.__name__, train)

    def length(rows):
        return rows.stop - rows.start if isinstance(rows, slice) else len(rows)

    count(KernelTrainer.walk_subtree, lambda done, *_: done)
    count(KernelTrainer.replay, lambda _, state, rows: length(rows))
    count(KernelTrainer.test_then_train, lambda _, state, rows, out: length(rows))
    return trained


def main(storage, store):
    model_store._RENEWALS = 300  # that is every 0.2 seconds
    walk, wait = treecv.TreePlan._walk_lanes, model_store.Leases.wait
    pauses = iter([sys.stdin.readline])

    def say_and_walk(plan, work, learners, members):
        say("walks", len(members))
        next(pauses, lambda: None)()
        time.sleep(0.1)
        return walk(plan, work, learners, members)

    def say_and_wait(self, name):
        say("waits")
        wait(self, name)

    treecv.TreePlan._walk_lanes, model_store.Leases.wait = say_and_walk, say_and_wait
    trained = count_trained()
    objective = make_objective(store)
    study = optuna.load_study(
        study_name="grid", storage=storage, sampler=objective.grid_sampler(seed=0)
    )
    say("ready")
    sys.stdin.readline()
    study.optimize(objective)
    say("trained", sum(trained))


if __name__ == "__main__":
    main(*sys.argv[1:])
