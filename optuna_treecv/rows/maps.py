"""What the steps of each fold do to the columns that all folds share."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ColumnMaps:
    """Fills in missing values, shifts and scales columns by the numbers of each training set.

    Prepared rows have the features, where a number stands in the place of missing values, and
    behind them a column for each feature that has some: 1 where its value is missing, otherwise 0.

    Attributes
    ----------
    filled : ndarray of shape (n_filled,), int
        The features that have missing values.
    fill : ndarray of shape (n_sets, n_filled)
        What is added in their places in a training set and the rows that its model tests.
    centre, scale : ndarray of shape (n_sets, n_features)
        What is subtracted from a feature then, and by what it is divided.
    """

    filled: np.ndarray
    fill: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    @property
    def n_columns(self) -> int:
        """The number of columns of prepared rows."""
        return self.centre.shape[1] + len(self.filled)

    def apply(self, chunk: int, numbers: np.ndarray, is_centred: bool = True) -> np.ndarray:
        """Return numbers of features from those of prepared columns, for the model of a chunk.

        Parameters
        ----------
        chunk : int
        numbers : ndarray of shape (..., n_columns + n_others)
            They follow linearly from rows. The others are returned as they are.
        is_centred : bool
            Whether centres are subtracted, as from rows and means.
        """
        d = self.centre.shape[1]
        out = np.concatenate([numbers[..., :d], numbers[..., self.n_columns :]], axis=-1)
        out[..., self.filled] += self.fill[chunk] * numbers[..., d : self.n_columns]
        if is_centred:
            out[..., :d] -= self.centre[chunk]
        out[..., :d] /= self.scale[chunk]
        return out
