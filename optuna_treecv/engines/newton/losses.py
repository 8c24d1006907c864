"""What generalised linear models minimise: the derivatives of losses in predictors z = x.w."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod

import numpy as np

from optuna_treecv.engines.newton.kernels.glm import logistic_slopes
from optuna_treecv.engines.newton.kernels.glm import softmax


class PredictorLoss(ABC):
    """The loss of a row, which depends on ``n_outputs`` linear predictors.

    Attributes
    ----------
    n_outputs : int
    is_steady : bool
        Whether first derivatives are bounded, so that sums of float32 keep their digits.
    most_bend : float
        The largest part of second derivatives by which they change if predictors change by 1.
    is_flat : bool
        Whether it does not tell predictors within a tube from each other.
    """

    n_outputs = 1
    is_steady = is_flat = False
    most_bend = 1.0

    def unit(self, y: np.ndarray) -> float:
        """Return how large losses are in the units of the targets."""
        return 1.0

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
    def bends(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the second derivatives in each predictor; all arrays as in ``differentiate``."""

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the second derivatives at the predictors (n_rows, n_outputs) of one model.

        They are of shape (n_rows, n_outputs, n_outputs).
        """
        return self.bends(z[:, None], y)[:, 0, :, None]


class Logistic(PredictorLoss):
    """log(1 + exp(z)) - y z, for the classes 0 and 1."""

    is_steady = True

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        share = np.average(y, weights=weights)
        return np.array([np.log(share / (1 - share))])

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        logistic_slopes(z[:, :, 0], y.astype(np.int32, copy=False))

    def bends(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        slopes = z.copy()
        self.differentiate(slopes, y)
        return np.abs(slopes) - np.square(slopes)


class Multinomial(PredictorLoss):
    """log sum_k exp(z_k) - z_y, for the classes 0, 1, ...."""

    is_steady = True
    most_bend = 2**0.5

    def __init__(self, n_classes: int) -> None:
        self.n_outputs = n_classes

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        counts = np.bincount(y, weights, self.n_outputs)
        logs = np.log(np.maximum(counts, 1e-3))
        return logs - logs.mean()

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        outputs = np.ascontiguousarray(z.transpose(0, 2, 1))
        softmax(outputs, y.astype(np.int32, copy=False))
        z[:] = outputs.transpose(0, 2, 1)  # NumPy does nothing if it is the same memory

    def bends(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        shares = z.transpose(0, 2, 1).copy()
        softmax(shares)
        shares *= np.maximum(1 - shares, 0)  # rounding may leave less than 0 of a share of 1
        return shares.transpose(0, 2, 1)

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        shares = z.copy()
        softmax(shares[:, :, None])
        curvatures = -shares[:, :, None] * shares[:, None, :]
        diagonal = np.arange(self.n_outputs)
        curvatures[:, diagonal, diagonal] = shares * np.maximum(1 - shares, 0)
        return curvatures


class Tweedie(PredictorLoss):
    """Half the deviance of a power p from 1 to 2, up to a constant, for the mean exp(z).

    exp((2 - p) z) / (2 - p) - y exp((1 - p) z) / (1 - p), or its limit: that of Poisson's
    distribution is exp(z) - y z, that of the gamma distribution z + y exp(-z). Beyond these powers
    it is not convex.
    """

    def __init__(self, power: float) -> None:
        self.power = power

    def unit(self, y: np.ndarray) -> float:
        return float(y.mean() ** (2 - self.power))

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return np.array([np.log(np.average(y, weights=weights))])

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        y = y[:, None, None]
        factor = np.exp((1 - self.power) * z) if self.power != 1 else None
        np.exp(z, out=z)
        z -= y
        if factor is not None:
            z *= factor

    def bends(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        p, y = self.power, y[:, None, None]
        if p == 1:
            return np.exp(z)
        return (2 - p) * np.exp((2 - p) * z) + (p - 1) * np.exp((1 - p) * z) * y


class SquaredDistance(PredictorLoss):
    """1/2 d^2, with the distance d of z to an interval.

    This is [y - epsilon, y + epsilon]; for the classes 0 and 1 without an epsilon those numbers
    from which the hinge loss is 0, z <= -1 and z >= 1. The second derivative is 0 in the interval
    and 1 outside of it.
    """

    def __init__(self, epsilon: float | None = None) -> None:
        self.epsilon = epsilon
        self.most_bend = 0.0 if epsilon == 0 else np.inf
        self.is_flat = bool(epsilon)

    def unit(self, y: np.ndarray) -> float:
        return 1.0 if self.epsilon is None else float(y.var()) or 1.0

    def _interval(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.epsilon is None:
            return np.where(y == 1, 1, -np.inf), np.where(y == 1, np.inf, -1)
        return y - self.epsilon, y + self.epsilon

    def first(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        share = np.average(y, weights=weights)
        return np.array([2 * share - 1 if self.epsilon is None else share])

    def differentiate(self, z: np.ndarray, y: np.ndarray) -> None:
        z -= np.clip(z, *self._interval(y[:, None, None]))

    def bends(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        low, high = self._interval(y[:, None, None])
        return ((z <= low) | (z >= high)).astype(np.float64)
