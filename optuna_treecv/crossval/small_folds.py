"""Finds folds that are too small for a score that is not a mean over rows.

The mean over folds of such a score depends on the size of the folds: that of the root mean squared
error over folds of one row is the mean absolute error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.folds import Cut
from optuna_treecv.scoring import Metric
from optuna_treecv.scoring import Scorer

#: Folds with fewer rows, or with fewer rows of a class, are too small.
FEWEST_ROWS, FEWEST_OF_A_CLASS = 30, 5

# The mean over rows that is nearest to a scorer of regressors; for others it is the squared error.
_NEAREST = {
    "neg_root_mean_squared_log_error": "neg_mean_squared_log_error",
    "neg_median_absolute_error": "neg_mean_absolute_error",
    "neg_max_error": "neg_mean_absolute_error",
    "d2_absolute_error_score": "neg_mean_absolute_error",
}


def why_too_small(scoring: Metric, estimator: Any, data: Data, folds: Cut) -> str | None:
    """Return why the mean over folds misleads and what would be right; None if it does not.

    Parameters
    ----------
    scoring : Loss, Scorer or Pooled
    estimator : estimator
        The estimator that is scored.
    data : Data
        The rows as given.
    folds : Folds or Splits
        How the rows are cut.
    """
    if not isinstance(scoring, Scorer) or scoring.is_mean:
        return None
    codes = None
    if is_classifier(estimator) and data.y is not None and data.y.ndim == 1:
        codes = as_codes(data.y, data.classes())
    n_rows = folds.fewest_rows()
    if n_rows < FEWEST_ROWS:
        small = f"{n_rows} row{'s' if n_rows > 1 else ''}"
    elif codes is not None and folds.has_fewer_of_a_class(FEWEST_OF_A_CLASS, codes):
        small = f"fewer than {FEWEST_OF_A_CLASS} rows of a class"
    else:
        return None
    is_one = "is not" if scoring.is_registered else "may not be"
    return (
        f"scoring={scoring.name!r} {is_one} a mean over rows, so its mean over folds of {small} "
        f"misleads; use {' or '.join(_remedies(scoring, estimator, data.n_rows, codes))}."
    )


def _remedies(scoring: Scorer, estimator: Any, n_rows: int, codes: np.ndarray | None) -> list[str]:
    """Return the scoring that does not depend on the folds, and the largest number of folds."""
    remedies = [f"scoring=pooled({scoring.name!r})"] if scoring.is_registered else []
    if is_classifier(estimator):
        has_probabilities = hasattr(estimator, "predict_proba")
        losses = "'accuracy' or 'log_loss'" if has_probabilities else "'accuracy'"
        remedies.append(f"scoring={losses}")
    elif is_regressor(estimator):
        remedies.append(f"scoring={_NEAREST.get(scoring.name, 'neg_mean_squared_error')!r}")
    most = n_rows // FEWEST_ROWS
    if codes is None:
        folds = f"cv of at most {most}"
    else:
        most = min(most, int(np.bincount(codes).min()) // FEWEST_OF_A_CLASS)
        folds = f"stratified folds, such as cv of at most {most}"
    if most >= 2:
        remedies.append(folds)
    return remedies or ["a loss"]
