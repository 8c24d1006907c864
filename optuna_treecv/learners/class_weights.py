"""The parameter ``class_weight`` of classifiers."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import InvalidParameterError

from optuna_treecv.rows.checks import is_float64


def check_class_weight(class_weight: Any, name: str) -> None:
    """Refuse a dict with values that are no weights; ``name`` is that of the estimator."""
    if not isinstance(class_weight, dict):
        return
    for label, weight in class_weight.items():
        if not (isinstance(weight, Real) and is_float64(weight) and 0 <= float(weight) < np.inf):
            raise InvalidParameterError(
                f"The 'class_weight' parameter of {name} must be a dict of finite weights of at "
                f"least 0, 'balanced' or None. Got {weight!r} for the label {label!r} instead."
            )


def weights_of_classes(class_weight: dict[Any, Any], classes: np.ndarray) -> tuple[float, ...]:
    """Return the weight of each class.

    A class that the dict lacks has weight 1. As in scikit-learn, a label that is none of the
    classes is refused unless all classes have a weight.
    """
    # The labels as NumPy's scalars and as Python's: dates of the two have different hashes.
    codes = {label: c for labels in (classes, classes.tolist()) for c, label in enumerate(labels)}
    found = dict.fromkeys(range(len(classes)), 1.0)
    known = {codes[label]: float(w) for label, w in class_weight.items() if label in codes}
    unknown = [label for label in class_weight if label not in codes]
    if unknown and len(known) < len(classes):
        raise ValueError(
            f"class_weight must have labels of y as its keys, {classes.tolist()}, got "
            f"{unknown[0]!r}."
        )
    found |= known
    if not any(found.values()):
        raise ValueError("class_weight must hold a weight above 0 for one of the classes of y.")
    return tuple(found.values())
