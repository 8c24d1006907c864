"""Says which object cannot be sent to the worker processes of joblib."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from pickle import PicklingError
from typing import Any

from joblib.externals.loky.backend.reduction import dumps

from optuna_treecv.crossval.fold_task import FoldTask


@contextmanager
def explaining_pickles(task: FoldTask, n_jobs: int | None) -> Generator[None]:
    """Raise an error that names the object, where this block fails as one cannot be pickled."""
    try:
        yield
    except (PicklingError, TypeError, AttributeError) as error:
        found = None if n_jobs == 1 else _what_cannot_be_pickled(task)
        if found is None:
            raise
        raise ValueError(
            f"n_jobs={n_jobs} sends {found} to other processes, but it cannot be pickled: "
            f"{error}; n_jobs=1 or joblib.parallel_config('threading') would be right."
        ) from error


def explained(
    task: FoldTask, n_jobs: int | None, compute: Callable[[], Iterable[Any]]
) -> Generator[Any]:
    """Yield the results of joblib. Errors of who asks for them are not explained."""
    with explaining_pickles(task, n_jobs):
        yield from compute()


def _what_cannot_be_pickled(task: FoldTask) -> str | None:
    parts: list[tuple[str, Any]] = [("X", task.X), ("y", task.y)]
    parts += [("scoring", getattr(metric, "score", None)) for metric in task.metrics]
    parameters = task.estimator.get_params(deep=True)
    deepest = sorted(parameters.items(), key=lambda item: -item[0].count("__"))
    parts += [(f"the estimator's parameter {name!r}", value) for name, value in deepest]
    parts.append(("estimator", task.estimator))
    for name, value in parts:
        try:
            dumps(value)
        except Exception:  # noqa: BLE001  # whatever pickling an object may raise
            return f"{name} ({repr(value)[:80]})"
    return None
