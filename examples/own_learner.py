"""
A learner of your own
=====================

This file has an estimator with ``partial_fit``, its tests (``pytest examples/own_learner.py``) and
a study (``python examples/own_learner.py``).
"""

import warnings

import numpy as np
import optuna
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits

from optuna_treecv import treecv_objective
from optuna_treecv.testing import LearnerContract


class NearestMean(ClassifierMixin, BaseEstimator):
    """Predicts the class with the nearest mean; means are shrunk towards that of all rows."""

    def __init__(self, shrinkage=0.0):
        self.shrinkage = shrinkage

    def partial_fit(self, X, y, classes=None):
        """Train on rows. A deep copy copies the model, because attributes hold all of it."""
        if classes is not None:  # the first call names all classes
            self.classes_ = np.asarray(classes)
            self.sums_ = np.zeros((len(self.classes_), X.shape[1]))
            self.counts_ = np.zeros(len(self.classes_))
        codes = np.searchsorted(self.classes_, y)
        np.add.at(self.sums_, codes, X)
        np.add.at(self.counts_, codes, 1)
        return self

    def predict(self, X):
        """Return the class with the nearest mean."""
        means = self.sums_ / np.maximum(self.counts_, 1)[:, None]
        means += self.shrinkage * (self.sums_.sum(axis=0) / self.counts_.sum() - means)
        distances = np.square(X[:, None, :] - means).sum(axis=2)
        return self.classes_[distances.argmin(axis=1)]


class TestNearestMean(LearnerContract):
    may_be_cut = True  # sums do not depend on how rows are divided among calls

    def make_estimator(self):
        return NearestMean(0.1)


if __name__ == "__main__":
    X, y = load_digits(return_X_y=True)
    space = {"shrinkage": optuna.distributions.FloatDistribution(0, 1)}
    objective = treecv_objective(NearestMean(), X, y, param_distributions=space, cv=100)
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=20)
    print(f"error {study.best_value:.4f} at shrinkage {study.best_params['shrinkage']:.2f}")
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if optuna.visualization.matplotlib.is_available():  # needs matplotlib
        optuna.visualization.matplotlib.plot_slice(study).figure.savefig("own_learner.svg")
