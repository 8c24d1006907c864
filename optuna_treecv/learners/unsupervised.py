"""The base class of compiled estimators without targets."""

from __future__ import annotations

from typing import Any
from typing import Self

import numpy as np

from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.rows.data import RowLayout


class UnsupervisedEstimator(CompiledEstimator):
    """A compiled estimator that is trained without targets."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train from scratch, in one pass or in ``n_epochs``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; float32 stays float32, everything else becomes float64.
        y : None
            Not used.
        sample_weight : array-like of shape (n_samples,), default=None
            The weights of the rows, at least 0. None stands for ones.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._pass(X, None, sample_weight, is_fit=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue training, with one pass over these rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; they are converted to the type of X in the first call.
        y : None
            Not used.
        sample_weight : array-like of shape (n_samples,), default=None
            The weights of the rows, at least 0. None stands for ones.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._pass(X, None, sample_weight, is_fit=False)

    @property
    def row_layout(self) -> RowLayout:
        """The layout of the rows that this estimator needs inside TreeCV."""
        return RowLayout(padded=True)

    def _read(
        self, X: Any, y: Any, first: bool, is_fit: bool, classes: Any
    ) -> tuple[np.ndarray, None]:
        types = [np.float64, np.float32] if first else self._dtype
        return self._validated(X, dtype=types, reset=first), None

    def _take_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        self._dtype = dtype  # training continues in the type of the first rows
