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


@dataclass(frozen=True)
class LinearMap:
    r"""Selects columns x of rows, and maps them to :math:`z = (x - c) M + b`.

    Attributes
    ----------
    columns : ndarray of shape (n_selected,), int
        The columns that are read.
    centre : ndarray of shape (n_selected,) or None
        c, the means over the training set. None: the selected columns are not changed.
    matrix : ndarray of shape (n_selected, n_features) or None
        M.
    offset : ndarray of shape (n_features,) or None
        b, the means of the mapped columns over the training set.
    """

    columns: np.ndarray
    centre: np.ndarray | None = None
    matrix: np.ndarray | None = None
    offset: np.ndarray | None = None

    @property
    def n_features(self) -> int:
        """The number of mapped columns."""
        return len(self.columns) if self.offset is None else len(self.offset)

    def select(self, columns: np.ndarray) -> "LinearMap":
        """Return the map to some of the mapped columns, whose indices are given."""
        if self.matrix is None or self.offset is None:
            return LinearMap(self.columns[columns])
        matrix, offset = self.matrix[:, columns], self.offset[columns]
        return LinearMap(self.columns, self.centre, matrix, offset)

    def positions_in(self, other: "LinearMap") -> np.ndarray | None:
        """Return the indices of the mapped columns among those of another map, or None.

        They are found if this map has fewer components of a PCA, or fewer selected columns.
        """
        read = np.searchsorted(other.columns, self.columns)
        if np.any(other.columns[read % len(other.columns)] != self.columns):
            return None
        if self.matrix is None or other.matrix is None:
            return read if self.matrix is other.matrix else None
        assert other.centre is not None and other.offset is not None
        if not np.array_equal(other.centre[read], np.asarray(self.centre)):
            return None
        matrix = np.zeros((len(other.columns), self.n_features))
        matrix[read] = self.matrix
        for positions in np.arange(self.n_features), read:
            is_found = len(positions) == self.n_features and (
                np.array_equal(other.matrix[:, positions], matrix)
                and np.array_equal(other.offset[positions], np.asarray(self.offset))
            )
            if is_found:
                return positions
        return None

    def then(self, mean: np.ndarray, matrix: np.ndarray, offset: np.ndarray) -> "LinearMap":
        """Return this map, followed by z -> (z - mean) matrix + offset."""
        if self.matrix is None:
            return LinearMap(self.columns, mean, matrix, offset)
        return LinearMap(self.columns, self.centre, self.matrix @ matrix, offset)

    def apply(self, numbers: np.ndarray, is_centred: bool = True) -> np.ndarray:
        """Map rows, or linear functions of rows, of shape (..., n_columns)."""
        selected = numbers[..., self.columns]
        if self.matrix is None:
            return selected
        mapped = (selected - self.centre if is_centred else selected) @ self.matrix
        return mapped + self.offset if is_centred else mapped


@dataclass(frozen=True)
class LinearMaps:
    """One linear map of columns for each training set.

    Attributes
    ----------
    first : ColumnMaps or None
        The maps of single columns that precede the linear maps.
    n_columns : int
        The number of columns of prepared rows.
    n_inputs : int
        The number of columns that the linear maps get.
    maps : tuple of LinearMap
    """

    first: ColumnMaps | None
    n_columns: int
    n_inputs: int
    maps: tuple[LinearMap, ...]

    @property
    def n_features(self) -> int:
        """The number of mapped columns, of which those of some sets may be zeros."""
        return max(linear_map.n_features for linear_map in self.maps)

    @property
    def have_one_size(self) -> bool:
        """Whether the maps of all training sets have the same number of columns."""
        return len({linear_map.n_features for linear_map in self.maps}) == 1

    def apply(self, chunk: int, numbers: np.ndarray, is_centred: bool = True) -> np.ndarray:
        """Map prepared rows, or linear functions of them, for a chunk; see ``ColumnMaps.apply``.

        Columns of zeros are appended if other training sets have more mapped columns.
        """
        if self.first is not None:
            numbers = self.first.apply(chunk, numbers, is_centred)
        mapped = self.maps[chunk].apply(numbers[..., : self.n_inputs], is_centred)
        n_others = numbers.shape[-1] - self.n_inputs
        out = np.zeros((*numbers.shape[:-1], self.n_features + n_others))
        out[..., : mapped.shape[-1]] = mapped
        out[..., self.n_features :] = numbers[..., self.n_inputs :]
        return out
