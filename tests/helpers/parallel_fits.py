"""Fits of tests/engines/fit/test_fit_workers.py: python parallel_fits.py BACKEND FOLDER WHAT.

* "held": each fit leaves a file with the number of its process in FOLDER, and never ends.
* "scored": prints fold scores. The first fit of all kills its process, unless there is a file
  "killed" in FOLDER.
* "scored again": evaluates once more, after what was raised.

The backends are those of joblib, and "forked loky", whose workers need not import the package.
"""

from contextlib import contextmanager
import os
from pathlib import Path
import signal
import sys
import time

import joblib
from joblib.externals.loky.backend.context import set_start_method
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer
from sklearn.tree import DecisionTreeClassifier

from optuna_treecv import tree_cross_validate


class Held(ClassifierMixin, BaseEstimator):
    def __init__(self, folder):
        self.folder = folder

    def fit(self, X, y):
        (Path(self.folder) / f"{os.getpid()}").touch()
        while True:
            time.sleep(1)

    def predict(self, X):
        raise NotImplementedError


class KillsOnce(DecisionTreeClassifier):
    def __init__(self, folder="", random_state=None):
        super().__init__(random_state=random_state)
        self.folder = folder

    def fit(self, X, y):
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return super().fit(X, y)
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def two_workers(backend):
    if backend == "forked loky":
        set_start_method("fork")
        backend = "loky"
    if backend != "dask":
        with joblib.parallel_config(backend, n_jobs=2):
            yield
        return
    from distributed import Client
    from distributed import LocalCluster

    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster), joblib.parallel_config(backend):
            yield


def main(backend, folder, what):
    X, y = load_breast_cancer(return_X_y=True)
    with two_workers(backend):
        if what == "held":
            tree_cross_validate(Held(folder), X, y, cv=4, method="fit", n_jobs=None)
        for _ in range(2 if what == "scored again" else 1):
            try:
                found = tree_cross_validate(KillsOnce(folder), X, y, cv=4, n_jobs=None)
            except Exception as error:  # noqa: BLE001
                print(error)
            else:
                print(found.test_score.tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
