"""What generalised linear models minimise: the derivatives of losses in predictors z = x.w."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod

import numpy as np
from scipy.special import expit
from scipy.special import logsumexp


class PredictorLoss(ABC):
    """The loss of a row, which depends on ``n_outputs`` linear predictors.

    Attributes
    ----------
    n_outputs : int
    """

    n_outputs = 1

    @abstractmethod
    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Return the intercepts (n_outputs,) of the best model without slopes."""

    @abstractmethod
    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        """Replace the predictors of several models by the derivatives of the losses in them.

        Parameters
        ----------
        z : ndarray of shape (n_rows, n_models, n_outputs)
        y : ndarray of shape (n_rows,)
        """

    @abstractmethod
    def bends(self, slopes: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the second derivatives in each predictor, from what ``differentiate`` leaves."""

    @abstractmethod
    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the second derivatives at the predictors (n_rows, n_outputs) of one model.

        They are of shape (n_rows, n_outputs, n_outputs).
        """


class Logistic(PredictorLoss):
    """log(1 + exp(z)) - y z, for the classes 0 and 1."""

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        share = np.average(y, weights=weights)
        return np.array([np.log(share / (1 - share))])

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        np.negative(z, out=z)
        np.exp(z, out=z)  # infinity leads to 0 below
        z += 1
        np.reciprocal(z, out=z)
        z -= y[:, None, None]

    def bends(self, slopes: np.ndarray, y: np.ndarray) -> np.ndarray:
        shares = slopes + y[:, None, None]
        return shares * (1 - shares)

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        share = expit(z)
        return (share * (1 - share))[:, :, None]


class Multinomial(PredictorLoss):
    """log sum_k exp(z_k) - z_y, for the classes 0, 1, ...."""

    def __init__(self, n_classes: int) -> None:
        self.n_outputs = n_classes

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        counts = np.bincount(y, weights, self.n_outputs)
        logs = np.log(np.maximum(counts, 1e-3))
        return logs - logs.mean()

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        z -= z.max(axis=2, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=2, keepdims=True)
        z[np.arange(len(y)), :, y] -= 1

    def bends(self, slopes: np.ndarray, y: np.ndarray) -> np.ndarray:
        shares = slopes + (y[:, None, None] == np.arange(self.n_outputs))
        return shares * (1 - shares)

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        shares = np.exp(z - logsumexp(z, axis=1, keepdims=True))
        curvatures = -shares[:, :, None] * shares[:, None, :]
        diagonal = np.arange(self.n_outputs)
        curvatures[:, diagonal, diagonal] += shares
        return curvatures


class Poisson(PredictorLoss):
    """exp(z) - y z, half the deviance up to a constant."""

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return np.array([np.log(np.average(y, weights=weights))])

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        np.exp(z, out=z)
        z -= y[:, None, None]

    def bends(self, slopes: np.ndarray, y: np.ndarray) -> np.ndarray:
        return slopes + y[:, None, None]

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(z)[:, :, None]
