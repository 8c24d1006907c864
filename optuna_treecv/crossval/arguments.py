"""Checks of the arguments that all public functions have in common."""

from __future__ import annotations

from collections.abc import Hashable
from numbers import Real
import sys
from typing import Any
import warnings

from joblib import effective_n_jobs
import numpy as np
from sklearn.utils import check_random_state

from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.checks import naming


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse a value that is none of the choices; an array, which has no hash, is none."""
    if not isinstance(value, Hashable) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_integer(name: str, value: Any, most: int) -> int:
    """Return an argument from 1 to ``most`` as an int."""
    if not is_integer(value) or not 1 <= value <= most:
        raise ValueError(f"{name} must be an integer of 1 to {most}, got {value!r}.")
    return int(value)


def count_threads(n_jobs: Any) -> int:
    """Return the number of threads that ``n_jobs`` asks for, as joblib counts them."""
    if n_jobs is not None and not (is_integer(n_jobs) and n_jobs != 0):
        raise ValueError(
            f"n_jobs must be None, a number of workers or -1 for all cores, got {n_jobs!r}."
        )
    return effective_n_jobs(None if n_jobs is None else int(n_jobs))


def draw_seed(random_state: Any) -> int:
    """Return the seed behind a ``random_state``; None and RandomState instances draw one."""
    if is_integer(random_state):
        if not 0 <= random_state < 2**64:
            raise ValueError(
                f"random_state must be an integer of 0 to 2**64 - 1, got {random_state}."
            )
        return int(random_state)
    with naming("random_state"):
        generator = check_random_state(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def is_number(value: Any) -> bool:
    """Return whether a value is a real number; bools are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_estimator(estimator: Any) -> None:
    """Refuse anything but an estimator instance."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise ValueError(
            "estimator must be a scikit-learn estimator instance or a River model, got "
            f"{estimator!r}."
        )


def warn_caller(message: str) -> None:
    """Warn at the line that called this package."""
    level, frame, ours = 1, sys._getframe(), "optuna_treecv."
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
