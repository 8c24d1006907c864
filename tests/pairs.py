"""Covering arrays: few test cases in which all pairs of option values occur.

A test of options with many values each needs one case for each combination of two values, and
seldom one for each combination of all. ``pairs`` takes the place of stacked marks::

    @pytest.mark.parametrize(*pairs(order=["fixed", "random"], cv=[3, "loo"], model=MODELS))

The cases depend on the numbers of values and on the seed alone, so that all processes of a run
collect the same ones. Where a property must hold for every combination, such as that no row reaches
the model that tests it, keep the product.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from itertools import product
from random import Random
from typing import Any

# Candidates for each case, of which the best is taken.
_N_CANDIDATES = 10


def pairs(seed: int = 0, **options: Iterable[Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the names and the cases of some options, as ``parametrize`` takes them."""
    if len(options) < 2:
        raise ValueError(f"pairs need two options or more, got {', '.join(options) or 'none'}")
    values = [list(some) for some in options.values()]
    cases = covering_array([len(some) for some in values], seed)
    return ",".join(options), [
        tuple(some[i] for some, i in zip(values, case, strict=True)) for case in cases
    ]


def covering_array(sizes: list[int], seed: int = 0) -> list[list[int]]:
    """Return rows of value numbers; each pair of values of two columns occurs in some row.

    Rows are added one by one, each the best of a few candidates (AETG: Cohen et al. 1997). The
    number of rows is at least the product of the two largest sizes, and seldom much above it.
    """
    if min(sizes) < 1:
        raise ValueError(f"each option must have a value, got sizes {sizes}")
    rng = Random(seed)
    # missing[i, a][j] holds the values of column j that have not yet met value a of column i.
    missing = {
        (i, a): {j: set(range(sizes[j])) for j in range(len(sizes)) if j != i}
        for i in range(len(sizes))
        for a in range(sizes[i])
    }
    to_meet = [
        ((i, a), (j, b))
        for i, j in combinations(range(len(sizes)), 2)
        for a, b in product(range(sizes[i]), range(sizes[j]))
    ]
    rng.shuffle(to_meet)
    rows = []
    while to_meet:
        (i, a), (j, b) = to_meet[-1]
        if b not in missing[i, a][j]:
            to_meet.pop()
            continue
        row = max(
            (_candidate({i: a, j: b}, sizes, missing, rng) for _ in range(_N_CANDIDATES)),
            key=lambda row: _n_new(row, missing),
        )
        for i, j in combinations(range(len(sizes)), 2):
            missing[i, row[i]][j].discard(row[j])
            missing[j, row[j]][i].discard(row[i])
        rows.append(row)
    return rows


def _candidate(chosen, sizes, missing, rng):
    """Return a row with some chosen values, and others by how many missing pairs they bring."""
    others = [i for i in range(len(sizes)) if i not in chosen]
    rng.shuffle(others)
    for i in others:
        counts = [0] * sizes[i]
        for j, b in chosen.items():
            for a in missing[j, b][i]:
                counts[a] += 1
        most = max(counts)
        chosen[i] = rng.choice([a for a in range(sizes[i]) if counts[a] == most])
    return [chosen[i] for i in range(len(sizes))]


def _n_new(row, missing):
    """Return how many missing pairs a row has."""
    return sum(row[j] in missing[i, row[i]][j] for i, j in combinations(range(len(row)), 2))
