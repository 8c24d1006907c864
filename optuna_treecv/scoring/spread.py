"""How far the scores of rows lie apart within folds, from which standard errors follow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optuna_treecv.scoring.losses import fold_sizes

#: The numbers for each fold in a spread.
SPREAD_SIZE = 3


class FoldScores(NamedTuple):
    """The scores of some folds.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_folds)
        NaN for pooled ones.
    diverged : ndarray of shape (n_folds,), bool
        Which folds have diverged.
    spreads : ndarray of shape (n_metrics, 3, n_folds) or None
        Of the scores of rows within each fold, see ``spread_of``. NaN where they are not known;
        None where each fold is a single row, so that it has no spread.
    """

    scores: np.ndarray
    diverged: np.ndarray
    spreads: np.ndarray | None

    def part(self, begin: int, n_folds: int) -> FoldScores:
        """Return the scores of some of the folds, the first of which is number ``begin``."""
        folds = slice(begin, begin + n_folds)
        spreads = None if self.spreads is None else self.spreads[:, :, folds]
        return FoldScores(self.scores[:, folds], self.diverged[folds], spreads)


def spread_of(
    values: np.ndarray, means: np.ndarray, weights: np.ndarray | None, begins: np.ndarray
) -> np.ndarray:
    r"""Return the sums by which the variance of a mean over all folds is estimated.

    For a fold with mean :math:`r` of values :math:`\ell_i`, and shares :math:`f_i = w_i / \sum w`
    of its rows, these are :math:`\sum f_i^2 (\ell_i - r)^2`, :math:`\sum f_i^2 (\ell_i - r)` and
    :math:`\sum f_i^2`. From them, :math:`\sum f_i^2 (\ell_i - c)^2` follows for every centre c.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The scores of the rows.
    means : ndarray of shape (n_folds,)
        The score of each fold.
    weights : ndarray of shape (n_rows,) or None
    begins : ndarray of shape (n_folds,), int
        The first row of each fold, 0 first.

    Returns
    -------
    ndarray of shape (3, n_folds)
    """
    sizes = fold_sizes(begins, len(values))
    spread = np.zeros((SPREAD_SIZE, len(begins)))
    centred = values - np.repeat(means, sizes)
    if weights is None:
        spread[0] = np.add.reduceat(np.square(centred), begins) / np.square(sizes, dtype=float)
        spread[2] = 1 / sizes
        return spread
    totals = np.add.reduceat(weights, begins)
    squares = np.square(weights / np.repeat(totals, sizes))
    for i, power in enumerate((np.square(centred), centred, 1.0)):
        spread[i] = np.add.reduceat(squares * power, begins)
    return spread


def spread_of_counts(means: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the same for values that are 0 or 1, with equal weights: it follows from the means.

    Parameters
    ----------
    means : ndarray of shape (n_folds,)
    sizes : ndarray of shape (n_folds,), int
        The rows of each fold.
    """
    spread = np.zeros((SPREAD_SIZE, len(means)))
    spread[0] = means * (1 - means) / sizes
    spread[2] = 1 / sizes
    return spread


def unknown_spreads(n_metrics: int, n_folds: int) -> np.ndarray:
    """Return spreads of which none is known yet."""
    return np.full((n_metrics, SPREAD_SIZE, n_folds), np.nan)


def in_full(spreads: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return the spreads of ``FoldScores`` as numbers, also where each fold is a single row.

    Parameters
    ----------
    spreads : ndarray of shape (n_metrics, 3, n_folds) or None
    shape : (int, int)
        (n_metrics, n_folds).
    """
    if spreads is not None:
        return spreads
    n_metrics, n_folds = shape
    single = np.zeros((n_metrics, SPREAD_SIZE, n_folds))
    single[:, 2] = 1.0
    return single


def are_counts(metric: object) -> bool:
    """Return whether a metric gives each row the score 0 or 1."""
    return getattr(metric, "row_range", None) == (0.0, 1.0)
