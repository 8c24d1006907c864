"""Targets and weights as integers, so that sums do not depend on the order of rows.

A number x becomes round(x 2^e). The exponent e depends on the training rows of a tree alone. Trees
whose exponents differ, since one of them leaves out the largest target, are grown apart.
"""

from __future__ import annotations

from itertools import pairwise
from math import frexp
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


class Facts(NamedTuple):
    """What the exponents depend on.

    Attributes
    ----------
    n_rows : int
    mass : float
        The sum of the weights.
    are_integers : bool
        Whether all weights are integers.
    largest : float
        The largest target, without its sign, of the rows that have a weight.
    """

    n_rows: int
    mass: float
    are_integers: bool
    largest: float


def exponents_of(facts: Facts, has_targets: bool, has_weights: bool) -> Exponents:
    """Return the exponents of a tree's weights and targets."""
    exponent, mass_digits = 0, _digits(facts.n_rows)
    if has_weights:
        room = mass_digits + _DIGITS_OF_WEIGHT if has_targets else _DIGITS_OF_CLASSES
        mass_digits = _digits(facts.mass)
        if not (facts.are_integers and mass_digits <= room):
            exponent = room - mass_digits
            mass_digits = room + 1  # rounding may carry
    if not has_targets:
        return Exponents(exponent, 0)
    digits = min(_MOST_DIGITS, _DIGITS - mass_digits)
    return Exponents(exponent, digits - frexp(facts.largest)[1])


def _digits(mass: float) -> int:
    """Return the binary digits of a sum, in steps of 4, so that most trees have the same."""
    return -(-frexp(mass)[1] // 4) * 4


def facts_of(
    targets: np.ndarray | None, weights: np.ndarray | None, bounds: np.ndarray
) -> list[Facts]:
    """Return the facts of all rows, then those of all rows but each fold's."""
    n_rows = int(bounds[-1])
    ends = [0, *bounds.tolist()]
    parts = [_facts_of_rows(targets, weights, slice(a, b)) for a, b in pairwise(ends)]

    def joined(some: list[Facts]) -> Facts:
        return Facts(
            sum(one.n_rows for one in some),
            sum(one.mass for one in some),
            all(one.are_integers for one in some),
            max((one.largest for one in some), default=0.0),
        )

    found = [joined(parts)]
    for fold in range(1, len(parts)):
        found.append(joined(parts[:fold] + parts[fold + 1 :]))
    assert found[0].n_rows == n_rows
    return found


def _facts_of_rows(targets: np.ndarray | None, weights: np.ndarray | None, rows: slice) -> Facts:
    n_rows = rows.stop - rows.start
    mass, are_integers, largest = float(n_rows), True, 0.0
    if targets is not None and n_rows:
        of_rows = np.abs(targets[rows])
        if weights is not None:
            of_rows = of_rows * (weights[rows] > 0)
        largest = float(of_rows.max())
    if weights is not None:
        mass = float(weights[rows].sum())
        are_integers = bool(np.all(weights[rows] == np.rint(weights[rows])))
    return Facts(n_rows, mass, are_integers, largest)


def as_integers(numbers: np.ndarray, exponent: int) -> np.ndarray:
    """Return round(numbers * 2^exponent), int64."""
    return np.rint(np.ldexp(numbers, exponent)).astype(np.int64)


def warn_if_coarse(targets: np.ndarray, exponent: int) -> None:
    """Warn of targets of which the largest is so large that the others lose their digits."""
    spread = float(np.median(np.abs(targets - np.median(targets))))
    if spread > 0 and 2.0**-exponent > 1e-3 * spread:
        warnings.warn(
            "y has outliers so large that the other targets lose their digits when they are "
            "rounded to one fixed point; without these rows, or with a logarithm, would be right.",
            stacklevel=4,
        )
