"""A few cases for each value of one option, over which the values of other options are spread."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from pairs import pairs


def spread(
    n_each: int = 1, *, where: Callable[..., bool] | None = None, **options: Iterable[Any]
) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the names and the cases of some options, as ``parametrize`` takes them.

    The first option is the main one: each of its values has ``n_each`` cases. The other options
    take turns through all pairs of their values, as far as there are enough cases. It is for tests
    whose cases are too expensive for ``pairs``, which combines each main value with all others.

    Parameters
    ----------
    n_each : int
    where : callable or None
        Whether options, given by their names, make a case; None: all combinations do. Each main
        value must have a case.
    **options : iterable
        The values of each option.
    """
    (main, values), *others = options.items()
    if len(others) == 1:
        names, turns = others[0][0], [(value,) for value in others[0][1]]
    else:
        names, turns = pairs(**dict(others))
    cases, queue, taken = [], list(range(len(turns))), set()
    for number, value in [*enumerate(values)] * n_each:
        for turn in queue:
            case = dict(zip([main, *names.split(",")], (value, *turns[turn]), strict=True))
            if (number, turn) not in taken and (where is None or where(**case)):
                break
        else:
            raise ValueError(f"no further case has {main}={value!r}")
        queue.remove(turn)
        queue.append(turn)
        taken.add((number, turn))
        cases.append(tuple(case.values()))
    return f"{main},{names}", cases
