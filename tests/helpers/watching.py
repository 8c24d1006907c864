"""Data, and estimators that note what they are fitted on."""

from __future__ import annotations

from time import sleep

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes

X_CLASSES, Y_CLASSES = load_breast_cancer(return_X_y=True)

X_NUMBERS, Y_NUMBERS = load_diabetes(return_X_y=True)


class Notes(list):
    """What a class notes of its calls, which is no part of what names the class."""


class Watching(ClassifierMixin, BaseEstimator):
    """Remembers the rows that it was fitted on."""

    fitted_on = Notes()

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        Watching.fitted_on.append((X, y))
        return self

    def predict(self, X):
        return np.full(X.shape[0], self.classes_[0])


class Counting(Watching):
    fits = Notes()
    seconds = 0.0

    def fit(self, X, y):
        Counting.fits.append(len(X))
        sleep(Counting.seconds)
        self.classes_ = np.unique(y)
        return self
