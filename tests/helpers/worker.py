"""A worker of the tests of leases: python worker.py STORAGE STORE WHAT GRACE.

With WHAT "long" a trial takes minutes, with other words seconds. With "stuck" the worker stops
forever as soon as it has written a model to the store. A trial counts
as stale after GRACE seconds without a heartbeat.
"""

import sys
import time

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.storages import RetryHeartbeatStaleTrialCallback

from optuna_treecv import treecv_objective
from optuna_treecv.caching import caches
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import WriteQueue


def make_objective(what, store=None):
    """Return an objective whose trials need seconds or minutes of training."""
    rng = np.random.default_rng(0)
    n_clusters, n_rows = (48_000, 120_000) if what == "long" else (500, 20_000)
    return treecv_objective(
        StreamingKMeans(),
        rng.normal(size=(n_rows, 8)),
        param_distributions={"n_clusters": CategoricalDistribution([n_clusters])},
        cv=16,
        store=store,
    )


def write_all():
    """Write each model to the store as soon as it is trained."""
    for name in ("_SECONDS_PER_WRITE", "_SECONDS_PER_MODEL", "_SECONDS_PER_BYTE"):
        setattr(caches, name, 0.0)


def stop_after_a_write():
    write = ModelStore.write

    def write_and_stop(store, kept):
        write(store, kept)
        print("written", flush=True)
        time.sleep(1000)

    # The trial waits for its writes, so it gets no further.
    WriteQueue.put = lambda queue, job, n_bytes=0: job()
    ModelStore.write = write_and_stop


if __name__ == "__main__":
    url, store, what, grace = sys.argv[1:]
    write_all()
    if what == "stuck":
        stop_after_a_write()
    storage = RDBStorage(
        url,
        heartbeat_interval=1,
        grace_period=int(grace),
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=3),
    )
    study = optuna.load_study(study_name="together", storage=storage)
    study.optimize(make_objective(what, store), n_trials=1)
