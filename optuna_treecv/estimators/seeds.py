"""Seeds for estimators that would draw from NumPy's global state."""

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import check_cv
from sklearn.preprocessing import TargetEncoder

# The default of parameters of scikit-learn that will go.
_DEPRECATED = "deprecated"


class SeededSplits(BaseEstimator):
    """The shuffled folds in which a ``TargetEncoder`` encodes, with a seed.

    Since scikit-learn 1.9 its ``random_state`` is deprecated, so that only its ``cv`` holds one.

    Parameters
    ----------
    n_splits : int or None
    of_classes : bool
        Whether targets that could be classes are.
    seed : int
    """

    def __init__(self, n_splits: int | None, of_classes: bool, seed: int) -> None:
        self.n_splits = n_splits
        self.of_classes = of_classes
        self.seed = seed

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield training and test rows as ``TargetEncoder(cv=n_splits)`` would."""
        cv = check_cv(
            self.n_splits, y, classifier=self.of_classes, shuffle=True, random_state=self.seed
        )
        yield from cv.split(X, y)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return int(check_cv(self.n_splits).get_n_splits())


def unset_seeds(estimator: Any) -> list[str]:
    """Return the parameters of an estimator, and of nested ones, that lack a seed."""
    parameters = estimator.get_params(deep=True)
    unset = [
        name
        for name, value in parameters.items()
        if value is None and name.rpartition("__")[2] in ("random_state", "seed")
    ]
    for name, value in parameters.items():
        # A TargetEncoder draws folds. Where no parameter seeds them, ``cv`` can.
        if type(value) is TargetEncoder and isinstance(value.cv, Integral | None):
            has_no_seed = getattr(value, "random_state", _DEPRECATED) == _DEPRECATED
            if has_no_seed and getattr(value, "shuffle", _DEPRECATED):
                unset.append(f"{name}__cv")
    return unset


def seeded(estimator: Any, seed: int) -> Any:
    """Set each seed that an estimator and its nested estimators lack."""
    values: dict[str, Any] = dict.fromkeys(unset_seeds(estimator), seed)
    if not values:
        return estimator
    parameters = estimator.get_params(deep=True)
    for name in values:
        if name.endswith("__cv"):
            encoder = parameters[name.removesuffix("__cv")]
            could_be_classes = encoder.target_type != "continuous"
            values[name] = SeededSplits(encoder.cv, could_be_classes, seed)
    return estimator.set_params(**values)
