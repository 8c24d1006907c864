"""The base of estimators that are created from fitted models."""

from typing import Self

from sklearn.base import BaseEstimator

from optuna_treecv.types import Features
from optuna_treecv.types import Targets


class FittedEstimator(BaseEstimator):
    """An estimator that is created fitted, so that ``fit`` and ``clone`` do not change it."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def fit(self, X: Features, y: Targets = None) -> Self:
        """Return this estimator unchanged, because it is fitted.

        Parameters
        ----------
        X, y : object
            Ignored.

        Returns
        -------
        self
            The estimator.
        """
        return self
