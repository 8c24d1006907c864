"""A worker of tests/test_workers.py: python worker.py STORAGE STORE TRIALS WHAT."""

import sys

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.storages import RDBStorage
from optuna.storages import RetryHeartbeatStaleTrialCallback

from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingKMeans
from optuna_treecv import treecv_objective


def make_objective(what, store=None):
    """Return an objective whose trials are short, or need some seconds of training."""
    rng = np.random.default_rng(0)
    if what == "short":
        X = rng.normal(size=(2000, 5))
        return treecv_objective(
            PegasosClassifier(),
            *(X, X[:, 0] > rng.normal(size=2000)),
            param_distributions={"alpha": FloatDistribution(1e-3, 1e1, log=True)},
            store=store,
        )
    return treecv_objective(
        StreamingKMeans(),
        rng.normal(size=(60_000, 8)),
        param_distributions={"n_clusters": CategoricalDistribution([12_000])},
        cv=16,
        store=store,
    )


if __name__ == "__main__":
    url, store, n_trials, what = sys.argv[1:]
    storage = RDBStorage(
        url,
        heartbeat_interval=1,
        grace_period=3,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=3),
    )
    study = optuna.load_study(study_name="together", storage=storage)
    study.optimize(make_objective(what, store), n_trials=int(n_trials))
