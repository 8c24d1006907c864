"""Names, parameters and outputs of estimators, and base classes for this package's estimators."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from functools import cache
from numbers import Integral
from numbers import Real
import re
from typing import Any
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import TargetEncoder
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils._param_validation import StrOptions
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.validation import _num_samples

from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import check_weights
from optuna_treecv.rows.checks import is_float64
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.layout import RowLayout

#: For some scoring methods, the method of the estimator with another name.
METHOD_NAMES = {"distance": "transform"}


def as_given(estimator: Any) -> Any:
    """Return the estimator as the user has given it; unwrap a River model."""
    return getattr(estimator, "river_model", estimator)


def check_is_sklearn(words: str, estimator: Any) -> None:
    """Raise ValueError for River models; ``words`` begin the message."""
    if as_given(estimator) is not estimator:
        raise ValueError(f"{words} for River models, got {name_of(estimator)}.")


def name_of(estimator: Any) -> str:
    """Return the name of an estimator for error messages."""
    return type(as_given(estimator)).__name__


def may_have(estimator: Any, method: str) -> bool:
    """Return whether an estimator has a method, or may have it after ``fit``.

    Methods with ``available_if``, such as those of ``StackingClassifier``, may depend on an
    estimator that ``fit`` creates. They are hidden before ``fit``, because the attribute is None
    or not set.
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
    """Return the class name of an estimator; "Ridge after StandardScaler" for a Pipeline."""
    if not isinstance(estimator, Pipeline):
        return name_of(estimator)
    *before, last = [step for _, step in estimator.steps if step not in (None, "passthrough")]
    after = ", ".join(map(described, before))
    return f"{described(last)} after {after}" if after else described(last)


def last_step(estimator: Any) -> Any:
    """Return the last step of a Pipeline; return other estimators unchanged."""
    return last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def divided(estimator: Any) -> tuple[str, Any]:
    """Return (parameter prefix, last step) of a Pipeline; ("", estimator) for other estimators."""
    prefix, last = "", estimator
    while type(last) is Pipeline:
        name, last = last.steps[-1]
        prefix += f"{name}__"
    return prefix, last


def parameters_of(estimator: Any) -> list[tuple[str, Any]]:
    """Return the parameters of an estimator without nested ones, sorted by name."""
    kind: Any = type(estimator)
    # Pipelines override get_params only to add the parameters of their steps.
    if issubclass(kind, BaseEstimator) and kind.get_params.__module__.startswith("sklearn."):
        return [(name, getattr(estimator, name)) for name in parameter_names(kind)]
    return sorted(estimator.get_params(deep=False).items())


@cache
def parameter_names(kind: type[BaseEstimator]) -> list[str]:
    """Return the names of the parameters of a class, sorted."""
    return kind._get_param_names()


# The messages of scikit-learn's errors if a model has diverged.
_DIVERGED = re.compile("under-/overflow|non-finite parameter weights")


def n_columns(method: str, classes: np.ndarray | None, n_targets: int) -> int:
    """Return the number of columns in an output of an estimator."""
    if method == "predict":
        return n_targets
    n_classes = 0 if classes is None else len(classes)
    one_per_class = method == "predict_proba" or (method == "decision_function" and n_classes > 2)
    return n_classes if one_per_class else 1


def lay_out(
    methods: Sequence[str], classes: np.ndarray | None, n_targets: int
) -> tuple[dict[str, slice], int]:
    """Return the slice of columns for each method's output, and the total number of columns."""
    columns, end = {}, 0
    for method in methods:
        begin, end = end, end + n_columns(method, classes, n_targets)
        columns[method] = slice(begin, end)
    return columns, end


def in_columns(
    response: np.ndarray, method: str, estimator: Any, classes: np.ndarray | None, n_targets: int
) -> np.ndarray:
    """Return an output with shape (n_rows, n_columns) and the columns that scores expect.

    Raises
    ------
    ValueError
        If the output has other columns, such as decision values for pairs of classes.
    """
    columns = np.reshape(response, (len(response), -1))
    expected = n_columns(method, classes, n_targets)
    if columns.shape[1] != expected:
        purpose = "for this y (one per target)" if method == "predict" else "for this y"
        raise ValueError(
            f"{method} of {type(estimator).__name__} must return {expected} "
            f"column{'s' * (expected > 1)} {purpose}, got {columns.shape[1]}."
        )
    return columns


def is_divergence(error: ValueError) -> bool:
    """Return whether an error of scikit-learn means that a model has diverged."""
    return _DIVERGED.search(str(error)) is not None


# The default value of deprecated parameters in scikit-learn.
_DEPRECATED = "deprecated"


class SeededSplits(BaseEstimator):
    """The splitter of a ``TargetEncoder``, with a seed.

    Since scikit-learn 1.9, the ``random_state`` of the encoder is deprecated, so the seed must be
    passed in ``cv``.

    Parameters
    ----------
    n_splits : int or None
    of_classes : bool
        Whether targets that may be classes are classes.
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
    """Return the names of all seed parameters that are None, including nested ones."""
    parameters = estimator.get_params(deep=True)
    unset = [
        name
        for name, value in parameters.items()
        if value is None and name.rpartition("__")[2] in ("random_state", "seed")
    ]
    for name, value in parameters.items():
        # A TargetEncoder shuffles folds. If no parameter seeds them, ``cv`` can.
        if type(value) is TargetEncoder and isinstance(value.cv, Integral | None):
            has_no_seed = getattr(value, "random_state", _DEPRECATED) == _DEPRECATED
            if has_no_seed and getattr(value, "shuffle", _DEPRECATED):
                unset.append(f"{name}__cv")
    return unset


def seeded(estimator: Any, seed: int) -> Any:
    """Set all seeds that are None, in an estimator and its nested estimators."""
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


#: Entries of ``_parameter_constraints`` that several estimators share.
AT_LEAST_0 = [Interval(Real, 0, None, closed="left")]
ABOVE_0 = [Interval(Real, 0, None, closed="neither")]
AUTO_OR_ABOVE_0 = [StrOptions({"auto"}), *ABOVE_0]
COUNT = [Interval(Integral, 1, None, closed="left")]

#: The maximum number of epochs; more would not improve a model, and 2**31 would never end.
MOST_EPOCHS = 10_000

# The parameters that are, or scale, the step size of gradient steps.
_STEP_SIZES = {"eta0", "learning_rate", "learning_rate_init", "step_size"}

#: Parameters that affect the rows and their order, and not the kernel.
ACT_THROUGH_ROWS = frozenset({"fit_intercept", "shuffle", "n_epochs"})


class TreeCVEstimator(BaseEstimator):
    """An estimator whose parameters are the fields of a dataclass.

    The class caches the names of the parameters, because a trial clones its estimator and computes
    its key about seven times, and inspecting the signature each time would take longer than
    scoring a forest.
    """

    is_grown = False  # whether each training set needs a new model, not incremental training
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "random_state": ["random_state"],
    }

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return super()._get_param_names()

    def check_parameters(self, but: Collection[str] = ()) -> None:
        """Raise ValueError for invalid parameters; those in ``but`` are not checked.

        Raises
        ------
        ValueError
            With scikit-learn's message, which contains the name of the parameter.
        """
        checked = {k: v for k, v in self.get_params(deep=False).items() if k not in but}
        if checked.get("class_weight") is None:  # saves 10 % of a short trial
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
    """Return whether an estimator of this package is grown rather than trained incrementally."""
    return isinstance(estimator, TreeCVEstimator) and estimator.is_grown


class ScoreMixin:
    """Mixin with a ``score`` method that checks its arguments."""

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
            The accuracy, or the coefficient of determination R^2; both are at most 1.
        """
        check_array_kind("y", y)
        weights = weights_of_rows(X, sample_weight)
        of_kind: Any = super()
        with naming("X and y"):
            return float(of_kind.score(X, y, weights))


def weights_of_rows(X: Any, sample_weight: Any, may_be_zero: bool = False) -> np.ndarray | None:
    """Check row weights, and return them as float64; a number applies to all rows."""
    if sample_weight is None:
        return None
    with naming("X"):
        n_rows = _num_samples(X)
    if isinstance(sample_weight, Real):
        sample_weight = np.full(n_rows, sample_weight)
    return check_weights("sample_weight", sample_weight, n_rows, may_be_zero)


def weights_of_classes(class_weight: dict[Any, Any], classes: np.ndarray) -> tuple[float, ...]:
    """Return the weight of each class.

    Classes that are not in the dict have weight 1. As in scikit-learn, labels that are no classes
    raise an error unless all classes have a weight.
    """
    # The labels as NumPy and as Python scalars, because dates of both have different hashes.
    codes = {label: c for labels in (classes, classes.tolist()) for c, label in enumerate(labels)}
    weights = dict.fromkeys(range(len(classes)), 1.0)
    known = {codes[label]: float(w) for label, w in class_weight.items() if label in codes}
    unknown = [label for label in class_weight if label not in codes]
    if unknown and len(known) < len(classes):
        raise ValueError(
            f"class_weight must have only labels of y, {classes.tolist()}, as keys, got "
            f"{unknown[0]!r}."
        )
    weights |= known
    if not any(weights.values()):
        raise ValueError("class_weight must have a weight above 0 for at least one class of y.")
    return tuple(weights.values())


class CompiledEstimator(TreeCVEstimator):
    """Base class of estimators that are trained by a compiled kernel."""

    _parameter_constraints = {
        **TreeCVEstimator._parameter_constraints,
        "shuffle": ["boolean"],
        "n_epochs": [Interval(Integral, 1, MOST_EPOCHS, closed="both")],
    }

    has_epochs = True  # whether training for several epochs makes sense
    is_linear = False  # whether a zero column has weight 0, and models can be averaged
    n_epochs: int
    class_weight: Any  # multiplies the weights of rows; only classifiers have it
    draws = False  # whether training uses random_state for more than the order of the rows
    shuffle: bool
    random_state: Any
    classes_: np.ndarray
    _fixed_parameters: tuple[str, ...] = ()  # on which the size or meaning of a state depends

    @property
    def settles_on_rows(self) -> bool:
        """Whether a setting is computed from all rows before the training starts."""
        return False

    @property
    def row_layout(self) -> RowLayout:
        """The layout of the rows that this estimator needs in TreeCV."""
        return RowLayout(padded=True)

    @property
    def lane_parameters(self) -> tuple[str, ...]:
        """The parameters in which the estimators of one batch may differ.

        If there are any, ``make_kernel`` also accepts several estimators that differ only in these
        parameters.
        """
        return ()

    @property
    def rewrites_often(self) -> bool:
        """Whether weights shrink so fast that they must be rescaled every few hundred rows.

        If several candidates are trained on wide sparse rows, each rescaling rewrites the weights
        of all of them, which costs more than the batch saves.
        """
        return False

    @property
    def is_balanced(self) -> bool:
        """Whether each row is also weighted by the inverse frequency of its class so far."""
        return isinstance(getattr(self, "class_weight", None), str)

    def weights_of_classes(self, classes: np.ndarray | None) -> tuple[float, ...] | None:
        """Return the weight of each class; None if all are 1."""
        if classes is None or not isinstance(getattr(self, "class_weight", None), dict):
            return None
        return weights_of_classes(self.class_weight, classes)

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Compute the output of a method from raw outputs of shape (n_rows, n_outputs)."""
        return outputs[:, 0]

    def bound(self, n_seen: int) -> frozenset[str]:
        """Return the parameters on which a state after ``n_seen`` rows depends.

        If these parameters are equal for two estimators, their states after the same rows are
        equal, bit for bit. ``fit_intercept``, ``shuffle`` and ``n_epochs`` are never included,
        because they affect only the rows: the first one adds a column, and the others determine
        their order.

        Parameters
        ----------
        n_seen : int
            Number of rows trained on, replays included.

        Returns
        -------
        frozenset of str
            Names of parameters; a superset is allowed, a subset is not.
        """
        if n_seen == 0:
            return frozenset(self._fixed())
        ignored = ACT_THROUGH_ROWS | (set() if self.draws else {"random_state"})
        return frozenset(self._get_param_names()) - ignored

    def breakpoints(self) -> tuple[int, ...]:
        """Return the numbers of rows after which ``bound`` has more parameters.

        Returns
        -------
        tuple of int
            Empty if the state depends on all parameters from the first row on.
        """
        return ()

    def _fixed(self) -> dict[str, Any]:
        """Return the parameters that must not change while the training of a state continues."""
        return {name: getattr(self, name) for name in self._fixed_parameters}


def divergence_advice(estimator: Any) -> str:
    """Return advice for an error message about a model or score that is not finite."""
    names = {name.rpartition("__")[2] for name in estimator.get_params()}
    if _STEP_SIZES.isdisjoint(names):
        return "scaled features may help."
    return "a smaller step size, or scaled features, may help."


def layout_for(estimator: Any) -> RowLayout:
    """Return the layout of the rows that an estimator needs."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.row_layout
    if is_classifier(estimator):
        return RowLayout(target="class")
    return RowLayout(target="number" if is_regressor(estimator) else None)
