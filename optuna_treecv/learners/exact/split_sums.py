"""Sums of numbers of at least 0 from which a part can be subtracted without loss.

Each number is split into a multiple of a common power of two and a remainder. The multiples add up
without rounding, in any order and in any parts, and the remainders are 2^52 times smaller. So a
total minus a part equals the sum of the others to full accuracy, also where the part holds nearly
all of the total. Where all numbers are integers there are no remainders.

The sums of n sets are an array of shape (3, n, ...): multiples, remainders, and how many numbers
were not 0. The third one decides whether a sum is 0.
"""

from __future__ import annotations

import numpy as np


def splitters(totals: np.ndarray) -> np.ndarray:
    """Return the power of two by which the numbers of each set are split.

    Parameters
    ----------
    totals : ndarray
        The rounded sum of all numbers of each set.
    """
    exponents = np.frexp(totals)[1]
    return np.where(totals > 0, np.ldexp(1.0, exponents + 1), 0.0)


def add_numbers(sums: np.ndarray, places: np.ndarray, numbers: np.ndarray, by: np.ndarray) -> None:
    """Add numbers to split sums.

    Parameters
    ----------
    sums : ndarray of shape (3, n)
        Changed in place.
    places : ndarray of shape (n_numbers,)
        Where each number is added.
    numbers : ndarray of shape (n_numbers,)
    by : ndarray of shape (n_numbers,) or float
        The splitters.
    """
    multiples, remainders = split(numbers, by)
    np.add.at(sums[0], places, multiples)
    if np.any(remainders):
        np.add.at(sums[1], places, remainders)
    np.add.at(sums[2], places, (numbers != 0).astype(np.float64))


def split(numbers: np.ndarray, by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return multiples and remainders, whose sum is exactly each number."""
    multiples = (numbers + by) - by
    return multiples, numbers - multiples


def value_of(sums: np.ndarray) -> np.ndarray:
    """Return the sums as numbers; exactly 0 where no number was added, or all were subtracted."""
    value = sums[0] + sums[1]
    value *= sums[2] != 0
    return value
