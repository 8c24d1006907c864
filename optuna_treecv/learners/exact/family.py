"""The protocol of a family: estimators of one class whose models follow from sums over rows.

A family is bound to prepared rows and to several estimators that differ in one parameter, such as
``alpha``. Each of these estimators is a *point*. What is done for one fold serves all points.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple
from typing import Protocol

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.rows.data import PreparedRows

#: The prepared rows of a training or a test set.
RowNumbers = slice | np.ndarray


@dataclass(frozen=True)
class Chunks:
    """The training and the test rows of each fold, as numbers of prepared rows.

    Attributes
    ----------
    n_rows : int
        The number of prepared rows.
    bounds : ndarray of shape (n_chunks + 1,), int64
        The tested rows ``bounds[c]`` to ``bounds[c + 1] - 1`` are those of chunk c.
    tested : ndarray of shape (bounds[-1],) or None
        The prepared row behind each tested row; None: the same.
    trains : list of (int or ndarray) or None
        The prepared rows that each model is trained on; an int n means the first n rows. None: all
        rows outside of the chunk.
    """

    n_rows: int
    bounds: np.ndarray
    tested: np.ndarray | None = None
    trains: list[int | np.ndarray] | None = None

    @property
    def n_chunks(self) -> int:
        return len(self.bounds) - 1

    @property
    def are_single_rows(self) -> bool:
        """Whether each model is trained on all rows but one, and every row is left out once."""
        return self.trains is None and self.n_chunks == self.n_rows

    @property
    def sizes(self) -> np.ndarray:
        """The number of test rows of each chunk."""
        return np.diff(self.bounds)

    @property
    def n_read(self) -> int:
        """How many rows are read for the sums of all training sets."""
        if self.trains is None:
            return self.n_rows if self.n_chunks > 1 else int(self.bounds[0])
        sizes = [one for one in self.trains if isinstance(one, int)]
        if len(sizes) == len(self.trains) and sizes == sorted(sizes):
            return sizes[-1]
        return sum(one if isinstance(one, int) else len(one) for one in self.trains)

    def train_parts(self, chunk: int) -> list[RowNumbers]:
        """Return the prepared rows that a chunk's model is trained on."""
        if self.trains is None:
            start, stop = int(self.bounds[chunk]), int(self.bounds[chunk + 1])
            return [slice(0, start), slice(stop, self.n_rows)]
        rows = self.trains[chunk]
        return [slice(0, rows) if isinstance(rows, int) else rows]

    def test_rows(self, first: int, last: int) -> RowNumbers:
        """Return the prepared rows that the chunks ``first`` to ``last - 1`` test."""
        part = slice(int(self.bounds[first]), int(self.bounds[last]))
        return part if self.tested is None else self.tested[part]


class Tested(NamedTuple):
    """What the models of several consecutive chunks say of their test rows.

    Attributes
    ----------
    first, last : int
        The chunks ``first`` to ``last - 1``.
    outputs : ndarray of shape (n_points, n_rows, n_outputs), float64
        For the rows of ``Chunks.test_rows(first, last)``; not finite where a model is not.
    """

    first: int
    last: int
    outputs: np.ndarray


class Squares(NamedTuple):
    """The sums of squares of each chunk's test rows.

    Attributes
    ----------
    errors : ndarray of shape (n_points, n_chunks, n_targets)
        sum w (y - prediction)^2.
    totals : ndarray of shape (n_chunks, n_targets)
        sum w (y - mean)^2, with the mean of the test rows.
    weights : ndarray of shape (n_chunks,)
        sum w.
    """

    errors: np.ndarray
    totals: np.ndarray
    weights: np.ndarray


class Kept(Protocol):
    """Where a family keeps what it will need again for further points."""

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return an array of ``size`` float64, read-only, by a name.

        Parameters
        ----------
        name : str
            Different arrays of one family on the same folds have different names.
        size : int
        make : callable
            Fills a new array, if none is kept under this name.
        """


class Facts(NamedTuple):
    """What is known of an evaluation before its rows are prepared.

    Attributes
    ----------
    n_features : int
    is_sparse : bool
    has_weights : bool
        Whether rows have weights in training.
    has_scaler : bool
        Whether a ``StandardScaler`` stands before the estimator.
    n_trained : int
        The rows of the smallest training set.
    n_of_class : int
        The rows of the rarest class in any training set; ``n_trained`` without classes.
    n_folds : int
        The models of a repeat; 0 if unknown.
    is_asked : bool
        Whether exact folds were asked for by name, and not found by "auto".
    """

    n_features: int
    is_sparse: bool
    has_weights: bool
    has_scaler: bool
    n_trained: int
    n_of_class: int
    n_folds: int = 0
    is_asked: bool = False


class Family(Protocol):
    """Several estimators bound to rows.

    Parameters
    ----------
    estimators : sequence of estimators
        Those of scikit-learn. They differ in ``parameter`` alone.
    rows : PreparedRows
        Padded and without a column of ones; X may be sparse. ``targets`` are class codes, or
        numbers of shape (n_rows,) or (n_rows, n_targets).
    scaler : StandardScaler or None
        Stands before the estimators, and is fitted on the training rows of each fold.
    n_jobs : int
        The number of threads. No number depends on it.

    Attributes
    ----------
    parameter : str
        The parameter in which the estimators differ.
    n_points : int
    """

    parameter: str
    n_points: int

    @property
    def n_outputs(self) -> int:
        """How many numbers a model says of a row."""

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        """Bind estimators to rows."""

    @staticmethod
    def why_not(estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""

    def test(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each chunk with models that are trained on its training rows.

        Parameters
        ----------
        chunks : Chunks
        kept : Kept
        most_rows : int
            The most test rows that should be yielded together. A chunk is never divided.

        Yields
        ------
        Tested
            Consecutive chunks, from the first to the last one.

        Raises
        ------
        ValueError
            If a model is not defined on its training rows.
        """

    def squares(self, chunks: Chunks, kept: Kept) -> Squares | None:
        """Return the sums of squared errors without any outputs; None if that is not possible."""

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
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
