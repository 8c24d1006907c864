"""Traits of any estimator: its name, parameters, last step, response columns and seeds."""

from collections.abc import Iterator
from collections.abc import Sequence
from functools import cache
from numbers import Integral
import re
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import TargetEncoder

#: The estimator's method for a response, if its name differs from that of the response.
METHOD_NAMES = {"distance": "transform"}


def as_given(estimator: Any) -> Any:
    """Return the estimator or River model that ``as_estimator`` was given."""
    return getattr(estimator, "river_model", estimator)


def name_of(estimator: Any) -> str:
    """Return the name of an estimator for error messages."""
    return type(as_given(estimator)).__name__


def may_have(estimator: Any, method: str) -> bool:
    """Return whether an estimator has a method, or may have it once it is fitted.

    Methods with ``available_if``, such as those of ``StackingClassifier``, can depend on an
    estimator that ``fit`` chooses. They are hidden before because it is None or not yet set.
    """
    try:
        getattr(estimator, method)
    except AttributeError as raised:
        error: BaseException = raised
        while error.__cause__ is not None:
            error = error.__cause__
        if not isinstance(error, AttributeError) or isinstance(error, NotFittedError):
            return isinstance(error, NotFittedError)
        return error.name is not None and (error.obj is None or error.name.endswith("_"))
    return True


def described(estimator: Any) -> str:
    """Return the class of an estimator; of a Pipeline that of its last step, after the others."""
    if not isinstance(estimator, Pipeline):
        return name_of(estimator)
    *before, last = [step for _, step in estimator.steps if step not in (None, "passthrough")]
    after = ", ".join(map(described, before))
    return f"{described(last)} after {after}" if after else described(last)


def last_step(estimator: Any) -> Any:
    """Return the estimator itself, or the last step of a Pipeline."""
    return last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def divided(estimator: Any) -> tuple[str, Any]:
    """Return the prefix of the parameters of the last step of a Pipeline, and this step."""
    prefix, last = "", estimator
    while type(last) is Pipeline:
        name, last = last.steps[-1]
        prefix += f"{name}__"
    return prefix, last


def parameters_of(estimator: Any) -> list[tuple[str, Any]]:
    """Return the names and values of an estimator's own parameters, sorted by name."""
    kind: Any = type(estimator)
    # Pipelines have a get_params of their own, which only adds the parameters of their parts.
    if issubclass(kind, BaseEstimator) and kind.get_params.__module__.startswith("sklearn."):
        return [(name, getattr(estimator, name)) for name in parameter_names(kind)]
    return sorted(estimator.get_params(deep=False).items())


@cache
def parameter_names(kind: type[BaseEstimator]) -> list[str]:
    """Return the names of the parameters of a class, sorted."""
    return kind._get_param_names()


# The errors of scikit-learn's estimators when a model is no longer finite.
_DIVERGED = re.compile("under-/overflow|non-finite parameter weights")


def n_columns(method: str, classes: np.ndarray | None, n_targets: int) -> int:
    """Return how many numbers a response has per row."""
    if method == "predict":
        return n_targets
    n_classes = 0 if classes is None else len(classes)
    one_per_class = method == "predict_proba" or (method == "decision_function" and n_classes > 2)
    return n_classes if one_per_class else 1


def lay_out(
    methods: Sequence[str], classes: np.ndarray | None, n_targets: int
) -> tuple[dict[str, slice], int]:
    """Return the columns of the responses to methods side by side, and their number."""
    columns, end = {}, 0
    for method in methods:
        begin, end = end, end + n_columns(method, classes, n_targets)
        columns[method] = slice(begin, end)
    return columns, end


def in_columns(
    response: np.ndarray, method: str, estimator: Any, classes: np.ndarray | None, n_targets: int
) -> np.ndarray:
    """Return a response with the columns that scores expect, (n_rows, n_columns).

    Raises
    ------
    ValueError
        If it has others, such as the decision values of pairs of classes.
    """
    columns = np.reshape(response, (len(response), -1))
    expected = n_columns(method, classes, n_targets)
    if columns.shape[1] != expected:
        as_many = "y" if method == "predict" else "a score of these classes needs"
        raise ValueError(
            f"{method} of {type(estimator).__name__} must have {expected} "
            f"column{'s' * (expected > 1)}, as many as {as_many}, got {columns.shape[1]}."
        )
    return columns


def is_divergence(error: ValueError) -> bool:
    """Return whether an estimator of scikit-learn says that its model is no longer finite."""
    return _DIVERGED.search(str(error)) is not None


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
