"""Families: several estimators of one class bound to rows, and what their folds have in common.

A family is bound to prepared rows and to several estimators that differ in few parameters, such as
``alpha``. Each of these estimators is a *point*.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import Keep
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.rows.data import PreparedRows


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an evaluation before its rows are prepared.

    The defaults are those of rows that every family takes.

    Attributes
    ----------
    n_features : int
    is_sparse : bool
    has_weights : bool
        Whether rows have weights in training.
    n_trained : int
        The rows of the smallest training set.
    n_of_class : int
        The rows of the rarest class in any training set; ``n_trained`` without classes.
    n_folds : int
        The models of a repeat; 0 if unknown.
    is_asked : bool
        Whether exact folds were asked for by name, or no other engine can take the rows.
    is_searched : bool
        Whether several values of a parameter of the family are evaluated.
    n_outputs : int
        The number of classes, or of targets.
    has_scaler : bool
        Whether a StandardScaler stands before the estimator.
    """

    n_features: int = 1
    is_sparse: bool = False
    has_weights: bool = False
    n_trained: int = 2
    n_of_class: int = 2
    n_folds: int = 0
    is_asked: bool = False
    n_outputs: int = 1
    is_searched: bool = False
    has_scaler: bool = False


class Family(ABC):
    """Several estimators bound to rows.

    Parameters
    ----------
    estimators : sequence of estimators
        Those of scikit-learn. They differ in ``parameters`` alone.
    rows : PreparedRows
        Padded and without a column of ones; X may be sparse. ``targets`` are class codes, or
        numbers of shape (n_rows,) or (n_rows, n_targets).
    scaler : StandardScaler or None
        Stands before the estimators, and is fitted on the training rows of each fold.
    n_jobs : int
        The number of threads. No number depends on it.

    Attributes
    ----------
    parameters : tuple of str
        Those in which the estimators may differ.
    idle : tuple of str
        The parameters of iterative solvers, which have no effect on converged models.
    is_slow_left_out : bool
        Whether each row that is left out takes a search.
    maps_dense_rows : bool
        Whether steps that do something else in each fold need dense rows.
    n_points : int
    n_distinct : int
        The first points, which are computed; the others have the same models.
    """

    parameters: tuple[str, ...]
    idle: tuple[str, ...] = ()
    is_slow_left_out = False
    maps_dense_rows = False

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        self.n_points = self.n_distinct = len(estimators)
        #: (rows) -> the same bound to other rows, in one thread.
        self.make = partial(type(self), estimators, scaler=scaler, n_jobs=1)
        self.rows = self._rows = rows
        self._scaler, self._n_jobs = scaler, n_jobs
        self._bind(estimators)

    @abstractmethod
    def _bind(self, estimators: Sequence[Any]) -> None:
        """Set what follows from the estimators."""

    @classmethod
    @abstractmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why an estimator is not of the family here; "" if it is."""

    @classmethod
    def idle_of(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the parameters without effect here; none if scikit-learn's solver is direct."""
        return cls.idle

    @abstractmethod
    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the response that follows from a model's outputs.

        Parameters
        ----------
        outputs : ndarray of shape (n_rows, n_outputs)
        method : {"predict", "decision_function", "predict_proba"}

        Returns
        -------
        ndarray
            As the estimator's method would; "predict" of classifiers gives class codes.
        """

    def squares(
        self, chunks: Chunks, keep: Keep
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squares of the rows that are scored together, without any outputs.

        Returns
        -------
        errors : ndarray of shape (n_points, n_scored, n_targets)
            sum w (y - prediction)^2, of the rows between two of ``chunks.ends``.
        totals : ndarray of shape (n_scored, n_targets)
            sum w (y - mean)^2, with the mean of the test rows.
        weights : ndarray of shape (n_scored,)
            sum w.
            Or None if that is not possible.
        """
        return None

    @abstractmethod
    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk with models that are trained on its training rows.

        Parameters
        ----------
        chunks : Chunks
        keep : callable
        most_rows : int
            The most test rows that should be yielded together. A chunk is never divided.

        Yields
        ------
        (slice, ndarray of shape (n_points, n_rows, n_outputs))
            Consecutive chunks, from the first to the last one, and what models say of their rows.

        Raises
        ------
        ValueError
            If a model is not defined on its training rows.
        """


def decisions_of(outputs: np.ndarray, method: str) -> np.ndarray:
    """Return class codes or decision values; of two classes there is one output."""
    if outputs.shape[1] > 1:
        return largest_class(outputs) if method == "predict" else outputs
    return (outputs[:, 0] > 0).astype(np.intp) if method == "predict" else outputs[:, 0]


def largest_class(outputs: np.ndarray) -> np.ndarray:
    """Return the first largest output of each row, as ``argmax`` does.

    The outputs of a class are next to each other in memory, so that comparing one class with the
    next takes less time.
    """
    best, codes = outputs[:, 0].copy(), np.zeros(len(outputs), dtype=np.intp)
    for code in range(1, outputs.shape[1]):
        is_larger = outputs[:, code] > best
        np.copyto(best, outputs[:, code], where=is_larger)
        codes[is_larger] = code
    return codes
