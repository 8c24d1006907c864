"""The error of an evaluation that some folds have no score in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class FoldsFailed(Exception):
    """Some folds could not be fitted, or their scores are undefined; the others are done.

    Parameters
    ----------
    scores : ndarray of shape (n_metrics, n_folds)
        Of all folds, in the order of their numbers; NaN where there is none.
    errors : dict of int to Exception
        Of those that could not be fitted, by their numbers.
    """

    def __init__(self, scores: np.ndarray, errors: Mapping[int, Exception]) -> None:
        first = f", the first one with: {next(iter(errors.values()))!r}" if errors else ""
        n_undefined = int(np.isnan(scores).any(axis=0).sum()) - len(errors)
        super().__init__(
            f"{len(errors)} of {scores.shape[1]} folds could not be fitted{first}; the scores of "
            f"{n_undefined} more are undefined."
        )
        self.scores = scores
        self.errors = errors
