"""Covering arrays have all pairs of values, and few rows."""

from __future__ import annotations

from itertools import combinations
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from pairs import covering_array
from pairs import pairs
import pytest

SIZES = st.lists(st.integers(1, 4), min_size=2, max_size=5)


def pairs_of(rows):
    """Return all pairs of values of two columns that some rows have."""
    return {
        ((i, row[i]), (j, row[j])) for row in rows for i, j in combinations(range(len(row)), 2)
    }


def all_rows(sizes):
    return list(product(*map(range, sizes)))


@pytest.mark.slow
@given(SIZES, st.integers(0, 2**32))
def test_every_pair_of_values_is_there_and_no_other_value(sizes, seed):
    assert pairs_of(covering_array(sizes, seed=seed)) == pairs_of(all_rows(sizes))


@pytest.mark.slow
@given(SIZES, st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_every_pair_of_possible_rows_is_there(sizes, seed, random):
    possible = {row for row in all_rows(sizes) if random.random() < 0.3}
    rows = covering_array(sizes, possible.__contains__, seed)
    assert possible.issuperset(rows)
    assert pairs_of(rows) == pairs_of(possible)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([2, 2, 2], 5),  # the smallest array has 4 rows
        ([3, 3, 3, 3], 12),  # 9 rows, an orthogonal array
        ([2] * 10, 10),  # 6 rows
        ([23, 2, 5, 2], 117),  # 115 rows at least
        ([8, 2, 2, 4, 2, 2], 34),  # 32 rows at least
        ([14, 3, 2, 2], 44),  # 42 rows at least
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_arrays_are_small(sizes, most, seed):
    assert len(covering_array(sizes, seed=seed)) <= most


def test_values_need_not_be_hashable():
    folds = [np.arange(4), np.zeros(4)]
    _, cases = pairs(cv=folds, options=[{}, {"shuffle": True}], n_jobs=[1])
    assert len(cases) == 4
    assert all(case[0] is folds[0] or case[0] is folds[1] for case in cases)


def test_bad_calls():
    with pytest.raises(ValueError, match="two options or more, got cv"):
        pairs(cv=[2, 3])
    with pytest.raises(ValueError, match="two options or more, got none"):
        pairs()
