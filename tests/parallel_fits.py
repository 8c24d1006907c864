"""Fits of tests/test_fit_workers.py: python parallel_fits.py BACKEND FOLDER.

Each fit leaves a file with the number of its process in FOLDER, and ends when there is a file "go".
"""

import os
from pathlib import Path
import sys
import time

import joblib
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin

from optuna_treecv import tree_cross_validate


class Held(ClassifierMixin, BaseEstimator):
    def __init__(self, folder=""):
        self.folder = folder

    def fit(self, X, y):
        (Path(self.folder) / f"{os.getpid()}").touch()
        while not (Path(self.folder) / "go").exists():
            time.sleep(0.01)
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


if __name__ == "__main__":
    backend, folder = sys.argv[1:]
    with joblib.parallel_config(backend, n_jobs=2):
        tree_cross_validate(
            Held(folder), np.zeros((40, 2)), np.arange(40) % 2, cv=4, method="fit", n_jobs=None
        )
