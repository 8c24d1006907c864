"""What all estimators of this package share: the checks of parameters, weights and scores."""

from collections.abc import Collection
from functools import cache
from numbers import Integral
from numbers import Real
from typing import Any
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils._param_validation import StrOptions
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.validation import _num_samples

from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import check_weights
from optuna_treecv.rows.checks import is_float64
from optuna_treecv.rows.checks import naming

#: Entries of ``_parameter_constraints`` that several estimators need.
AT_LEAST_0 = [Interval(Real, 0, None, closed="left")]
ABOVE_0 = [Interval(Real, 0, None, closed="neither")]
AUTO_OR_ABOVE_0 = [StrOptions({"auto"}), *ABOVE_0]
COUNT = [Interval(Integral, 1, None, closed="left")]

#: The most epochs; no study gains by more, and a fit of 2**31 would never end.
MOST_EPOCHS = 10_000


class TreeCVEstimator(BaseEstimator):
    """An estimator whose parameters are the fields of a dataclass.

    Its class remembers the names of the parameters: a trial clones its estimator and names it by
    its parameters some seven times, and to read the signature anew each time would take longer
    than the scores of a forest.
    """

    is_grown = False  # whether models are searched anew on each training set, not trained further
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "random_state": ["random_state"],
    }

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return super()._get_param_names()

    def check_parameters(self, but: Collection[str] = ()) -> None:
        """Refuse wrong parameters, except for those named in ``but``.

        Raises
        ------
        ValueError
            With scikit-learn's message, which names the parameter.
        """
        checked = {k: v for k, v in self.get_params(deep=False).items() if k not in but}
        if checked.get("class_weight") is None:  # this saves a tenth of a short trial
            checked.pop("class_weight", None)
        name = type(self).__name__
        for parameter, value in checked.items():
            if type(value) is not float and isinstance(value, Real) and not is_float64(value):
                raise InvalidParameterError(
                    f"The {parameter!r} parameter of {name} must be a Python or NumPy number "
                    f"within the range of float64. Got {value!r} instead."
                )
        validate_parameter_constraints(self._parameter_constraints, checked, name)
        weights = checked.get("class_weight")
        for label, w in weights.items() if isinstance(weights, dict) else ():
            if not (isinstance(w, Real) and is_float64(w) and 0 <= float(w) < np.inf):
                raise InvalidParameterError(
                    f"The 'class_weight' parameter of {name} must be a dict of finite weights of "
                    f"at least 0, 'balanced' or None. Got {w!r} for the label {label!r} instead."
                )


def is_grown(estimator: Any) -> bool:
    """Return whether models of an estimator of this package are not trained further."""
    return isinstance(estimator, TreeCVEstimator) and estimator.is_grown


class ScoreMixin:
    """``score`` of a classifier or regressor, which checks its arguments first."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of a classifier, or the R^2 of a regressor.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            True labels or targets.
        sample_weight : array-like of shape (n_samples,), default=None
            The weights of the rows.

        Returns
        -------
        float
            The share of correctly predicted labels, or the coefficient of determination R^2; both
            are at most 1.
        """
        check_array_kind("y", y)
        weights = weights_of_rows(X, sample_weight)
        of_kind: Any = super()
        with naming("X and y"):
            return float(of_kind.score(X, y, weights))


def weights_of_rows(X: Any, sample_weight: Any, may_be_zero: bool = False) -> np.ndarray | None:
    """Return checked weights as float64; a number is the weight of each row, None stands for 1."""
    if sample_weight is None:
        return None
    with naming("X"):
        n_rows = _num_samples(X)
    if isinstance(sample_weight, Real):
        sample_weight = np.full(n_rows, sample_weight)
    return check_weights("sample_weight", sample_weight, n_rows, may_be_zero)


def weights_of_classes(class_weight: dict[Any, Any], classes: np.ndarray) -> tuple[float, ...]:
    """Return the weight of each class.

    A class that the dict lacks has weight 1. As in scikit-learn, a label that is none of the
    classes is refused unless all classes have a weight.
    """
    # The labels as NumPy's scalars and as Python's: dates of the two have different hashes.
    codes = {label: c for labels in (classes, classes.tolist()) for c, label in enumerate(labels)}
    weights = dict.fromkeys(range(len(classes)), 1.0)
    known = {codes[label]: float(w) for label, w in class_weight.items() if label in codes}
    unknown = [label for label in class_weight if label not in codes]
    if unknown and len(known) < len(classes):
        raise ValueError(
            f"class_weight must have labels of y as its keys, {classes.tolist()}, got "
            f"{unknown[0]!r}."
        )
    weights |= known
    if not any(weights.values()):
        raise ValueError("class_weight must hold a weight above 0 for one of the classes of y.")
    return tuple(weights.values())


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
