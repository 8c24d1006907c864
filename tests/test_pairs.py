"""Covering arrays have all pairs, few rows, and are the same wherever they are made."""

from __future__ import annotations

from itertools import combinations
from itertools import product
from math import prod

from conftest import printed_in_another_process
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from pairs import covering_array
from pairs import pairs
import pytest

SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=6)


def pairs_of(rows, n_columns):
    """Return all pairs of values of two columns that the rows have."""
    return {(i, row[i], j, row[j]) for row in rows for i, j in combinations(range(n_columns), 2)}


def all_pairs(sizes):
    return {
        (i, a, j, b)
        for i, j in combinations(range(len(sizes)), 2)
        for a, b in product(range(sizes[i]), range(sizes[j]))
    }


@given(SIZES, st.integers(0, 2**32))
def test_every_pair_of_values_is_there_and_no_other_value(sizes, seed):
    assert pairs_of(covering_array(sizes, seed), len(sizes)) == all_pairs(sizes)


@given(SIZES, st.integers(0, 2**32))
def test_no_case_is_there_in_vain(sizes, seed):
    rows = covering_array(sizes, seed)
    seen = set()
    for row in rows:
        new = pairs_of([row], len(sizes)) - seen
        assert new
        seen |= new
    assert len(rows) <= prod(sizes)


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
@pytest.mark.parametrize("seed", range(5))
def test_arrays_are_small(sizes, most, seed):
    assert len(covering_array(sizes, seed)) <= most


def test_two_options_are_their_product():
    names, cases = pairs(order=["fixed", "random"], cv=iter([2, 3, "loo"]))
    assert names == "order,cv"
    assert sorted(cases, key=str) == sorted(product(["fixed", "random"], [2, 3, "loo"]), key=str)


def test_values_need_not_be_hashable():
    folds = [np.arange(4), np.zeros(4)]
    _, cases = pairs(cv=folds, options=[{}, {"shuffle": True}], n_jobs=[1])
    assert len(cases) == 4
    assert all(case[0] is folds[0] or case[0] is folds[1] for case in cases)


def test_a_seed_gives_one_array():
    arrays = [covering_array([4, 3, 5, 2], seed) for seed in (1, 1, 2)]
    assert arrays[0] == arrays[1] != arrays[2]


def of_one_seed():
    return covering_array([4, 3, 5, 2], 1)


def test_other_processes_collect_the_same_cases():
    assert printed_in_another_process("test_pairs", "of_one_seed") == str(of_one_seed())


def test_bad_calls():
    with pytest.raises(ValueError, match="two options or more, got cv"):
        pairs(cv=[2, 3])
    with pytest.raises(ValueError, match="two options or more, got none"):
        pairs()
    with pytest.raises(ValueError, match=r"must have a value, got sizes \[2, 0\]"):
        pairs(cv=[2, 3], order=[])
