"""Training phases of scikit-learn's ``GaussianNB`` that end in the model of one ``fit``.

Its own ``partial_fit`` takes the number that it adds to the variances, ``epsilon_``, from the rows
of the last phase, and subtracts this number where it had added another one.
"""

from __future__ import annotations

from functools import reduce
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.naive_bayes import GaussianNB
from sklearn.utils import check_array

from optuna_treecv.learners.exact.chunks import blocks
from optuna_treecv.learners.exact.spread import merge_spreads
from optuna_treecv.learners.exact.spread import Spread
from optuna_treecv.learners.exact.spread import spread_of


class Seen(NamedTuple):
    """What a model needs to be trained further; a private attribute of it.

    Attributes
    ----------
    spread : Spread
        Of all rows so far, without their weights; epsilon comes from it.
    variances : ndarray of shape (n_classes, n_features) or None
        Without epsilon; None as long as no row had a weight.
    """

    spread: Spread
    variances: np.ndarray | None


def is_gaussian_nb(estimator: Any) -> bool:
    """Return whether ``partial_fit`` of an estimator is that of ``GaussianNB``.

    A subclass may have one of its own.
    """
    return getattr(type(estimator), "partial_fit", None) is GaussianNB.partial_fit


def train_gaussian_nb(
    model: GaussianNB, X: Any, y: Any, weights: np.ndarray | None, **classes: Any
) -> None:
    """Train a model on one phase, so that it equals a fit on all rows so far.

    Parameters
    ----------
    model : GaussianNB
    X, y : the rows of the phase
    weights : ndarray or None
        They may all be 0, since epsilon comes from the rows without their weights.
    **classes : ndarray
        In the first phase: ``classes``.
    """
    smoothing, seen = model.var_smoothing, getattr(model, "_seen", None)
    variances = None if seen is None else seen.variances
    if weights is not None and not np.any(weights):  # scikit-learn refuses such a call
        X = check_array(X, input_name="X")
    else:
        if variances is None:
            model._validate_params()
        else:
            model.var_ = variances
        try:
            model.var_smoothing = 0.0
            model.partial_fit(X, y, sample_weight=weights, **classes)
        finally:
            model.var_smoothing = smoothing
        variances = model.var_
    spread = spread_in_blocks(np.asarray(X))
    if seen is not None:
        spread = merge_spreads(seen.spread, spread)
    model._seen = Seen(spread, variances)
    if variances is not None:
        epsilon = smoothing * np.max(spread.squares) / spread.n_rows
        model.epsilon_ = variances.dtype.type(epsilon)
        model.var_ = variances + model.epsilon_


def spread_in_blocks(X: np.ndarray) -> Spread:
    """Return the spread of the columns of X in float64, of which a block is held at a time."""
    each = (spread_of(X[some].astype(np.float64)) for some in blocks(slice(0, len(X))))
    return reduce(merge_spreads, each)
