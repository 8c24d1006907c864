"""Covering arrays: few test cases in which all pairs of option values occur.

A test of options with many values each needs one case for each combination of two values, and
seldom one for each combination of all. ``pairs`` takes the place of stacked marks::

    @pytest.mark.parametrize(*pairs(order=["fixed", "random"], cv=[3, "loo"], model=MODELS))

The cases depend on the numbers of values and on the seed alone, so that all processes of a run
collect the same ones. Where a property must hold for every combination, such as that no row
reaches the model that tests it, keep the product.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import combinations
from itertools import product
from math import prod
from random import Random
from typing import Any

Row = tuple[int, ...]

# Of more rows than this, random ones are taken.
_MOST_ROWS = 20_000


def pairs(
    *, where: Callable[..., bool] | None = None, seed: int = 0, **options: Iterable[Any]
) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the names and the cases of some options, as ``parametrize`` takes them.

    Parameters
    ----------
    where : callable or None
        Whether options, given by their names, make a case; None: all combinations do.
    seed : int
    **options : iterable
        The values of each option.
    """
    if len(options) < 2:
        raise ValueError(f"pairs need two options or more, got {', '.join(options) or 'none'}")
    values = [list(some) for some in options.values()]

    def case_of(row: Row) -> tuple[Any, ...]:
        return tuple(some[i] for some, i in zip(values, row, strict=True))

    def is_possible(row: Row) -> bool:
        return where is None or where(**dict(zip(options, case_of(row), strict=True)))

    rows = covering_array([len(some) for some in values], is_possible, seed)
    return ",".join(options), [case_of(row) for row in rows]


def covering_array(
    sizes: Sequence[int], is_possible: Callable[[Row], bool] = lambda row: True, seed: int = 0
) -> list[Row]:
    """Return rows of value numbers that have each pair of values which some possible row has.

    Rows are added one by one. Each has a pair that is missing so far, of those columns with the
    most values that have one, and otherwise as many further missing pairs as possible.

    Parameters
    ----------
    sizes : sequence of int
        The number of values of each column.
    is_possible : callable
        Whether a row may be taken.
    seed : int
        Decides between rows that are equally good.
    """
    random = Random(seed)
    every = product(*map(range, sizes)) if prod(sizes) <= _MOST_ROWS else completed(sizes, random)
    possible = [row for row in every if is_possible(row)]
    random.shuffle(possible)
    rows_with: dict[tuple[int, ...], list[Row]] = {}
    for row in possible:
        for pair in pairs_in(row):
            rows_with.setdefault(pair, []).append(row)
    missing = set(rows_with)

    def n_new(row: Row) -> int:
        return len(missing.intersection(pairs_in(row)))

    rows = []
    for pair in sorted(rows_with, key=lambda pair: -sizes[pair[0]] * sizes[pair[2]]):
        if pair in missing:
            rows.append(max(rows_with[pair], key=n_new))
            missing.difference_update(pairs_in(rows[-1]))
    return rows


def completed(sizes: Sequence[int], random: Random) -> Iterator[Row]:
    """Yield a random row for each pair of values, where all rows would be too many."""
    for (i, n_values), (j, n_others) in combinations(enumerate(sizes), 2):
        for pair in product(range(n_values), range(n_others)):
            row = [random.randrange(size) for size in sizes]
            row[i], row[j] = pair
            yield tuple(row)


def pairs_in(row: Row) -> list[tuple[int, ...]]:
    """Return the pairs of a row: column, value, other column, its value."""
    return [(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)]
