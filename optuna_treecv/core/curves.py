"""The scores of ensembles after each number of trees."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean score of the folds by the number of trees, as ``CVResult.curve``.

    Attributes
    ----------
    n_trees : ndarray of shape (n_sizes,), int
        The numbers of trees, rising. Boosters of several classes have a tree for each of them.
    mean : ndarray of shape (n_sizes,)
        The mean score of the folds by the first optimised metric.
    std_error : ndarray of shape (n_sizes,)
        The standard deviation of the scores of folds over the root of their number, NaN for one.
        Folds share training rows, so that it is a guide and no more.
    best : int
        The number of trees with the best mean, the smallest one of several.
    oob_score : float or None
        The mean of ``oob_score_`` of the forests of the folds; None where ``oob_score`` is not
        set, for ``n_estimators="best"``, for trees that are cut, and where scores were kept.
    """

    n_trees: np.ndarray
    mean: np.ndarray
    std_error: np.ndarray
    best: int
    oob_score: float | None = None

    @classmethod
    def of(
        cls, scores: np.ndarray, n_trees: np.ndarray, sign: float, patience: int | None
    ) -> "Curve":
        """Return the curve of some folds, which ends where more trees bring no better mean.

        Parameters
        ----------
        scores : ndarray of shape (n_folds, n_sizes)
        n_trees : ndarray of shape (n_sizes,), int
        sign : float
            -1 where larger scores are better.
        patience : int or None
            The curve ends after so many trees without a better mean; None: where scores end.
        """
        losses = sign * scores.mean(axis=0)
        best_so_far = np.minimum.accumulate(losses)
        is_better = np.concatenate([[True], losses[1:] < best_so_far[:-1]])
        at_best = np.maximum.accumulate(np.where(is_better, np.arange(len(losses)), 0))
        if patience is not None:
            ended = np.flatnonzero(n_trees - n_trees[at_best] >= patience)
            if len(ended):
                scores, n_trees = scores[:, : ended[0] + 1], n_trees[: ended[0] + 1]
        n_folds = len(scores)
        error = scores.std(axis=0, ddof=1) / np.sqrt(n_folds) if n_folds > 1 else np.nan
        errors = np.broadcast_to(error, n_trees.shape)
        return cls(n_trees, scores.mean(axis=0), errors, int(n_trees[at_best[len(n_trees) - 1]]))

    def in_brief(self, most: int = 32) -> list[list[float | None]]:
        """Return some of its numbers of trees, with the means and errors, for display.

        Parameters
        ----------
        most : int, default=32
            The most numbers of trees beside the best.

        Returns
        -------
        list of three lists of float
            The numbers of trees, their means and their errors, None where one is not known.
        """
        some = np.unique(np.linspace(0, len(self.mean) - 1, most).astype(int))
        at_best = np.searchsorted(self.n_trees, self.best)
        some = np.union1d(some, [at_best])
        parts = self.n_trees[some], self.mean[some], self.std_error[some]
        return [
            [float(f"{one:.6g}") if np.isfinite(one) else None for one in part.tolist()]
            for part in parts
        ]

    @property
    def value(self) -> float:
        """The best mean."""
        return float(self.mean[np.searchsorted(self.n_trees, self.best)])

    def has_ended(self, patience: int | None) -> bool:
        """Return whether it ended before its scores did.

        Parameters
        ----------
        patience : int or None
            After so many trees without a better mean; None: never.

        Returns
        -------
        bool
            False where all numbers of trees have scores.
        """
        return patience is not None and int(self.n_trees[-1]) - self.best >= patience
