"""Maps of columns that are fitted on each training set and applied to rows or to their moments."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ColumnMaps:
    """Imputes, centers and scales columns by the statistics of each training set.

    Prepared rows contain the features, in which a placeholder replaces missing values. They are
    followed by one indicator column for each feature with missing values, which is 1 if the value
    is missing, else 0.

    Attributes
    ----------
    filled : ndarray of shape (n_filled,), int
        The features that have missing values.
    fill : ndarray of shape (n_sets, n_filled)
        The numbers to add to the placeholder, for each training set and the rows that its model
        tests.
    centre, scale : ndarray of shape (n_sets, n_features)
        The numbers that are then subtracted from each feature, and by which it is divided.
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
        """Impute, center and scale prepared rows, or linear functions of them, for a chunk.

        Parameters
        ----------
        chunk : int
        numbers : ndarray of shape (..., n_columns + n_others)
            Rows, or linear functions of rows. The last ``n_others`` columns do not change.
        is_centred : bool
            Whether to subtract the centres, as for rows and means.
        """
        d = self.centre.shape[1]
        out = np.concatenate([numbers[..., :d], numbers[..., self.n_columns :]], axis=-1)
        out[..., self.filled] += self.fill[chunk] * numbers[..., d : self.n_columns]
        if is_centred:
            out[..., :d] -= self.centre[chunk]
        out[..., :d] /= self.scale[chunk]
        return out
