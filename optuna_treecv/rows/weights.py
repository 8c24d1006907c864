"""Checks of the weights of rows, the same in cross-validation and in ``fit``."""

from __future__ import annotations

from typing import Any

import numpy as np

from optuna_treecv.rows.checks import check_array_kind


def check_weights(argument: str, given: Any, n_rows: int, may_be_zero: bool = False) -> np.ndarray:
    """Return the weights of rows as a new array of float64.

    Parameters
    ----------
    argument : str
        The argument that holds them, for error messages.
    given : array-like
    n_rows : int
    may_be_zero : bool
        Whether all weights may be 0.

    Raises
    ------
    ValueError
        If they are not one finite number of at least 0 for each row.
    """
    check_array_kind(argument, given)
    try:
        given = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{argument} must hold one weight per row: {error}.") from error
    if given.ndim != 1:
        raise ValueError(f"{argument} must have the shape (n_rows,), got shape {given.shape}.")
    if len(given) != n_rows:
        raise ValueError(
            f"{argument} must have one weight per row: X has {n_rows} rows, {argument} "
            f"{len(given)} entries."
        )
    try:
        if given.dtype.kind not in "biufO":
            raise TypeError(f"got type {given.dtype}")
        weights = given.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{argument} must hold numbers: {error}.") from error
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if np.any(wrong):
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{argument} must hold finite weights of at least 0, got {weights[row]} in row {row}."
        )
    if not (may_be_zero or np.any(weights)):
        raise ValueError(f"{argument} must hold a weight above 0, got zero in all rows.")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.sum(weights)):
            raise ValueError(f"{argument} must have a finite sum, got {weights.max()} and others.")
    return weights
