"""Targets and weights as integers, so that sums do not depend on the order of rows.

A number x becomes round(x 2^e). The exponent e depends on the training rows of a tree alone. Trees
whose exponents differ, since one of them leaves out the largest target, are grown apart.
"""

from __future__ import annotations

from itertools import pairwise
from math import frexp
from math import ldexp
from typing import NamedTuple
import warnings

import numpy as np

# The digits of sums of weights of classes, which are multiplied as float64, and those that the
# mean weight has at least where sums of products have to fit into 64 bits.
_DIGITS_OF_CLASSES = 50
_DIGITS_OF_WEIGHT = 16
_DIGITS = 62
_MOST_DIGITS = 52


class Exponents(NamedTuple):
    """The exponents of the integers of one tree.

    Attributes
    ----------
    weight, target : int
    """

    weight: int
    target: int


def exponents_of(
    targets: np.ndarray | None, weights: np.ndarray | None, bounds: np.ndarray
) -> list[Exponents]:
    """Return the exponents of the tree of all rows, then of those of all rows but each fold's.

    Parameters
    ----------
    targets, weights : ndarray of shape (n_rows,) or None
    bounds : ndarray of shape (n_folds + 1,)
        Where the rows of each fold begin.
    """
    n_parts = len(bounds)  # the rows before the first fold, and those of each fold
    n_rows = np.diff(bounds, prepend=0)
    masses, are_integers, largest = n_rows.astype(float), np.ones(n_parts, bool), np.zeros(n_parts)
    for part, (begin, end) in enumerate(pairwise([0, *bounds.tolist()])):
        sizes = None if targets is None else np.abs(targets[begin:end])
        if weights is not None:
            of_rows = weights[begin:end]
            masses[part] = of_rows.sum()
            are_integers[part] = np.all(of_rows == np.rint(of_rows))
            sizes = None if sizes is None else sizes * (of_rows > 0)
        if sizes is not None:
            largest[part] = sizes.max(initial=0.0)
    found = []
    for tree in range(n_parts):
        trained = np.arange(n_parts) != tree
        trained[0] = True
        found.append(
            _exponents(
                int(n_rows[trained].sum()),
                None if weights is None else float(masses[trained].sum()),
                bool(are_integers[trained].all()),
                None if targets is None else float(largest[trained].max()),
            )
        )
    return found


def _exponents(
    n_rows: int, mass: float | None, are_integers: bool, largest: float | None
) -> Exponents:
    """Return the exponents of one tree.

    Parameters
    ----------
    n_rows : int
    mass : float or None
        The sum of the weights; None: all are 1.
    are_integers : bool
        Whether all weights are integers.
    largest : float or None
        The largest target, without its sign, of the rows that have a weight; None for classes.
    """
    exponent, mass_digits = 0, _digits(n_rows)
    if mass is not None:
        room = _DIGITS_OF_CLASSES if largest is None else mass_digits + _DIGITS_OF_WEIGHT
        mass_digits = _digits(mass)
        if not (are_integers and mass_digits <= room):
            exponent = room - mass_digits
            mass_digits = room + 1  # rounding may carry
    if largest is None:
        return Exponents(exponent, 0)
    digits = min(_MOST_DIGITS, _DIGITS - mass_digits)
    return Exponents(exponent, digits - frexp(largest)[1])


def _digits(mass: float) -> int:
    """Return the binary digits of a sum, in steps of 4, so that most trees have the same."""
    return -(-frexp(mass)[1] // 4) * 4


def as_integers(numbers: np.ndarray, exponent: int) -> np.ndarray:
    """Return round(numbers * 2^exponent), int64; 0 for numbers that are too large for integers.

    No tree with this exponent is trained on their rows: they are of the fold that is left out.
    """
    most = ldexp(1.0, min(60 - exponent, 1023))
    in_range = np.where(np.abs(numbers) <= most, numbers, 0.0)
    return np.rint(np.ldexp(in_range, exponent)).astype(np.int64)


def warn_if_coarse(targets: np.ndarray, exponent: int) -> None:
    """Warn of targets of which the largest is so large that the others lose their digits."""
    spread = float(np.median(np.abs(targets - np.median(targets))))
    if spread > 0 and 2.0**-exponent > 1e-3 * spread:
        warnings.warn(
            "y has outliers so large that the other targets lose their digits when they are "
            "rounded to one fixed point; without these rows, or with a logarithm, would be right.",
            stacklevel=4,
        )
