"""How probable it is that columns of zeros and ones hold 0: sums over all columns, for all folds.

With the weight W of a class's rows and the weight N_j of those that hold 1 in column j, this is
the sum over j of log((W - N_j + alpha) / (W + 2 alpha)). Most columns are rare. Their part is a
series in N_j / (W + alpha), whose sums of powers follow from those of all rows by correcting the
columns in which the chunk has ones. The other columns are computed one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.exact.split_sums import value_of

# A rare column has at most this share of a training set's weight, so that the first term left
# out is 1e-18 of the first one.
_RARE = 1 / 16
_N_TERMS = 14

# The logarithms that are computed at once.
_LOGS = 2**17


class Touched(NamedTuple):
    """The sums by class and column to which a left-out part has contributed.

    Each belongs to a *cell*: one class of one fold.

    Attributes
    ----------
    cells, columns : ndarray of shape (n,)
    before, after : ndarray of shape (n,)
        The weight of the rows that hold 1, without leaving out and with it.
    absent : ndarray of shape (3, n)
        Split sums of the training rows that hold 0.
    """

    cells: np.ndarray
    columns: np.ndarray
    before: np.ndarray
    after: np.ndarray
    absent: np.ndarray


@np.errstate(divide="ignore", invalid="ignore")
def log_absences(sums: np.ndarray, weights: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return the sums over all columns for one training set.

    Parameters
    ----------
    sums : ndarray of shape (3, n_features, n_classes)
        Split sums of the weights of rows that hold 1.
    weights : ndarray of shape (3, n_classes)
        Split sums of the weights of rows.
    alphas : ndarray of shape (n_points,)

    Returns
    -------
    ndarray of shape (n_points, n_classes)
    """
    _, n_features, n_classes = sums.shape
    columns, codes = np.nonzero(sums[2])
    absent = value_of(weights[:, codes] - sums[:, columns, codes])
    of_class = value_of(weights)
    found = _of_empty(of_class, alphas, n_features)
    for of_point, alpha in zip(found, alphas, strict=True):
        logs = np.log((absent + alpha) / (of_class + alpha)[codes])
        of_point += np.bincount(codes, logs, n_classes)
    return found


class Absences:
    """The sums for training sets that are all rows without a part.

    Parameters
    ----------
    sums, weights, alphas
        As above, of all rows.
    least : ndarray of shape (n_classes,)
        The least weight of each class in any training set.

    Attributes
    ----------
    of_all : ndarray of shape (n_points, n_classes)
        The sums over all columns for all rows.
    """

    def __init__(
        self, sums: np.ndarray, weights: np.ndarray, alphas: np.ndarray, least: np.ndarray
    ) -> None:
        self._alphas = alphas
        self.of_all = log_absences(sums, weights, alphas)
        self._n_features, n_classes = sums.shape[1:]
        columns, codes = np.nonzero(sums[2])
        present = value_of(sums[:, columns, codes])
        is_rare = present <= _RARE * least[codes]
        self._of_class = value_of(weights)
        shares = present[is_rare] / self._of_class[codes[is_rare]]
        self._powers = _power_sums(shares, codes[is_rare], n_classes)
        columns, codes = columns[~is_rare], codes[~is_rare]
        self._frequent = [sums[:, columns[codes == code], code] for code in range(n_classes)]
        self._places = np.full((self._n_features, n_classes), -1, np.int32)
        for code in range(n_classes):
            own = columns[codes == code]
            self._places[own, code] = np.arange(len(own))

    def without(self, codes: np.ndarray, weights: np.ndarray, touched: Touched) -> np.ndarray:
        """Return the sums of cells.

        Parameters
        ----------
        codes : ndarray of shape (n_cells,)
            The class of each cell.
        weights : ndarray of shape (3, n_cells)
            Split sums of the training rows' weights.
        touched : Touched

        Returns
        -------
        ndarray of shape (n_points, n_cells)
        """
        places = self._places[touched.columns, codes[touched.cells]]
        of_cell = value_of(weights)
        found = _of_empty(of_cell, self._alphas, self._n_features)
        found += self._of_rare(codes, of_cell, touched, places < 0)
        is_frequent = places >= 0
        cells, places = touched.cells[is_frequent], places[is_frequent]
        absent = np.compress(is_frequent, touched.absent, axis=1)
        row = np.empty(len(codes), np.intp)  # of a cell among those of its class
        for code, frequent in enumerate(self._frequent):
            own = np.flatnonzero(codes == code)
            row[own] = np.arange(len(own))
            of_class = codes[cells] == code
            rows, columns = row[cells[of_class]], places[of_class]
            absent_of = absent[:, of_class]
            step = max(1, _LOGS // max(1, frequent.shape[1]))
            for start in range(0, len(own), step):
                some = own[start : start + step]
                left = weights[:, some, None] - frequent[:, None]
                here = (rows >= start) & (rows < start + step)
                left[:, rows[here] - start, columns[here]] = absent_of[:, here]
                numbers = value_of(left)
                for of_point, alpha in zip(found, self._alphas, strict=True):
                    logs = np.log((numbers + alpha) / (of_cell[some, None] + alpha))
                    of_point[some] += logs.sum(axis=1)
        return found

    def _of_rare(
        self, codes: np.ndarray, of_cell: np.ndarray, touched: Touched, is_rare: np.ndarray
    ) -> np.ndarray:
        """Return the part of rare columns: log(1 - x) = -(x + x^2 / 2 + x^3 / 3 ...)."""
        cells = touched.cells[is_rare]
        unit = self._of_class[codes[cells]]
        powers = self._powers[:, codes]
        powers += _power_sums(touched.after[is_rare] / unit, cells, len(codes))
        powers -= _power_sums(touched.before[is_rare] / unit, cells, len(codes))
        units = self._of_class[codes] / (of_cell + self._alphas[:, None])
        series = np.zeros_like(units)
        for number in range(_N_TERMS, 0, -1):
            series += powers[number - 1] / number
            series *= units
        return -series


def _of_empty(of_class: np.ndarray, alphas: np.ndarray, n_features: int) -> np.ndarray:
    """Return n_features * log((W + alpha) / (W + 2 alpha)): all columns, as if without any 1."""
    alphas = alphas[:, None]
    return n_features * np.log1p(-alphas / (of_class + 2 * alphas))


def _power_sums(numbers: np.ndarray, cells: np.ndarray, n_cells: int) -> np.ndarray:
    """Return the sums of the first powers of the numbers of each cell, (n_terms, n_cells)."""
    found = np.empty((_N_TERMS, n_cells))
    powers = numbers.copy()
    for of_power in found:
        of_power[:] = np.bincount(cells, powers, n_cells)
        powers *= numbers
    return found
