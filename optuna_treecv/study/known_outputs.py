"""A stand-in for a fitted estimator whose outputs for the training rows are known."""

from typing import Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if

from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Targets


class KnownOutputs(BaseEstimator):
    """Returns known outputs, or those of a fitted estimator by a single method.

    The calibrators and final estimators of scikit-learn are fitted on outputs that an estimator
    returns for all training rows. Here, these are its out-of-fold outputs.

    Parameters
    ----------
    method : {"predict", "predict_proba", "decision_function"}
        The method that is available, besides ``predict``.
    outputs : ndarray of shape (n_rows, ...) or None
        The outputs to return, for any rows; None to call ``estimator``.
    estimator : estimator
        The estimator that has the outputs.
    """

    def __init__(self, method: str, outputs: Array | None, estimator: Estimator) -> None:
        self.method = method
        self.outputs = outputs
        self.estimator = estimator

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        is_regressor = self.method == "predict"
        tags.estimator_type = "regressor" if is_regressor else "classifier"
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Features, y: Targets = None, sample_weight: Array | None = None) -> Self:
        """Set the classes of a classifier, which are those of y."""
        if self.method != "predict":
            self.classes_ = np.unique(y)
        return self

    def predict(self, X: Features) -> Array:
        """Return the predictions."""
        return self._respond("predict", X)

    @available_if(lambda self: self.method == "predict_proba")
    def predict_proba(self, X: Features) -> Array:
        """Return the probabilities."""
        return self._respond("predict_proba", X)

    @available_if(lambda self: self.method == "decision_function")
    def decision_function(self, X: Features) -> Array:
        """Return the decision values."""
        return self._respond("decision_function", X)

    def _respond(self, method: str, X: Features) -> Array:
        if self.outputs is None or method != self.method:
            return np.asarray(getattr(self.estimator, method)(X))
        return self.outputs
