"""Incremental training: which estimators support it, and how it differs from ``fit``.

``method="auto"`` trains an estimator incrementally only if one pass over the rows gives the model
of ``fit``. Some parameters of ``fit`` have no effect on ``partial_fit``: a search over one of them
compares equal models, and ``max_iter`` passes are not made.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from functools import lru_cache
from functools import reduce
import inspect
from numbers import Real
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array
from sklearn.utils import get_tags

from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import last_step
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import merge_spreads
from optuna_treecv.numerics.spread import spread_of

#: Learners that are trained by gradient steps. ``fit`` makes at most ``max_iter`` passes, whereas
#: ``partial_fit`` makes one pass and does not support early_stopping.
OF_PASSES = (
    "MLPClassifier",
    "MLPRegressor",
    "PassiveAggressiveClassifier",
    "PassiveAggressiveRegressor",
    "Perceptron",
    "SGDClassifier",
    "SGDOneClassSVM",
    "SGDRegressor",
)
_STOPPING = {
    "early_stopping",  # True is an error in partial_fit
    "max_iter",
    "n_iter_no_change",
    "tol",
    "validation_fraction",
    "warm_start",
}
# tests/estimators/test_ignored_parameters.py checks this table against scikit-learn.
_UNUSED = {
    **dict.fromkeys(OF_PASSES, _STOPPING),
    "MiniBatchKMeans": {"max_iter", "max_no_improvement", "n_init", "tol"},
    "MiniBatchDictionaryLearning": {
        "batch_size",
        "max_iter",
        "max_no_improvement",
        "shuffle",
        "tol",
    },
    "MiniBatchNMF": {"max_iter", "max_no_improvement"},
    "LatentDirichletAllocation": {"evaluate_every", "learning_method", "max_iter", "perp_tol"},
    "BernoulliRBM": {"n_iter"},
}
_PASSES = {"max_iter", "n_iter"}


def without_effect(
    estimator: Any, searched: Collection[str] = ()
) -> dict[str, tuple[str, str, Any]]:
    """Return the names of parameters that have no effect on ``partial_fit``.

    Parameters
    ----------
    estimator : estimator
        Possibly a Pipeline or another of scikit-learn's meta-estimators.
    searched : collection of str
        The parameters that a search may change; dependent parameters are omitted.

    Returns
    -------
    dict of str to (str, str, value)
        For each parameter, by its name in ``set_params`` of the estimator: the class to which it
        belongs, its name in this class, and its value.
    """
    by_name = {}
    for prefix, part in trained_parts(estimator, "", searched):
        kind = kind_in_table(part)
        if kind is None:
            continue
        params = part.get_params(deep=False)
        varied = {name for name in params if prefix + name in searched}
        unused = (_UNUSED[kind] & params.keys()) - _exceptions(kind, params, varied)
        for parameter in sorted(unused):
            by_name[prefix + parameter] = kind, parameter, params[parameter]
    return by_name


def trained_parts(
    estimator: Any, prefix: str = "", searched: Collection[str] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield (prefix, estimator) for all nested estimators that ``partial_fit`` trains."""
    if prefix.removesuffix("__") in searched:  # another estimator takes its place
        return
    if isinstance(estimator, Pipeline):
        for name, step in estimator.steps:
            yield from trained_parts(step, f"{prefix}{name}__", searched)
        return
    yield prefix, estimator
    # A user's meta-estimator may train its nested estimator in any way.
    if type(estimator).__module__.startswith("sklearn.") and hasattr(estimator, "estimator"):
        yield from trained_parts(estimator.estimator, f"{prefix}estimator__", searched)


def kind_in_table(estimator: Any) -> str | None:
    """Return the name of the class in the table by which an estimator is trained, or None."""
    for kind in type(estimator).__mro__:
        if kind.__name__ in _UNUSED and kind.__module__.startswith("sklearn."):
            return kind.__name__
        if "partial_fit" in vars(kind):  # an override may use any parameter
            return None
    return None


def _exceptions(kind: str, params: dict[str, Any], varied: set[str]) -> set[str]:
    """Return the parameters that ``partial_fit`` uses only for some values of other parameters.

    The values of the parameters in ``varied`` are unknown.
    """

    def may_be(name: str, value: Any) -> bool:
        return name in varied or str(params[name]) == str(value)

    if kind in ("MLPClassifier", "MLPRegressor"):
        # Calls without improvement are counted, and lower an adaptive learning rate.
        if may_be("solver", "sgd") and may_be("learning_rate", "adaptive"):
            return {"n_iter_no_change", "tol"}
    if kind == "MiniBatchNMF" and may_be("transform_max_iter", None):
        return {"max_iter"}  # transform uses it instead
    return set()


def check_effect(argument: str, estimator: Any, searched: Mapping[str, bool]) -> None:
    """Raise ValueError if a searched parameter has no effect on ``partial_fit``.

    Parameters
    ----------
    argument : str
        The argument with the search space, for error messages.
    estimator : estimator
    searched : dict of str to bool
        Whether each parameter has several values; a single value is accepted.
    """
    unused = without_effect(estimator, searched)
    for name, varies in searched.items():
        if varies and name in unused:
            kind, parameter, _ = unused[name]
            raise ValueError(
                f"{argument}: {name!r} must not be searched, because {kind} is trained by "
                f"partial_fit, {_no_effect_of(parameter)}; use method='fit' instead."
            )


def _no_effect_of(parameter: str) -> str:
    return f"which makes one pass over the rows and ignores {parameter}"


class UnusedWarnings:
    """Warns about parameters that have no effect on training, once for each parameter.

    Parameters
    ----------
    warn : callable
        (message) -> None
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._first: dict[str, Any] = {}  # values
        self._claims: dict[tuple[str, ...], object] = {}

    def warn(
        self, estimator: Any, searched: Collection[str] = (), n_epochs: int | None = None
    ) -> None:
        """Warn if an estimator asks for several passes, or varies a parameter without effect.

        Parameters
        ----------
        estimator : estimator
        searched : collection of str
            As for ``without_effect``.
        n_epochs : int or None
            The requested number of epochs, if any.
        """
        has_epochs = n_epochs is not None or "n_epochs" in searched
        for name, (kind, parameter, value) in without_effect(estimator, searched).items():
            if parameter in _PASSES and not has_epochs and str(value) != "1":
                self._warn_once(
                    (kind, parameter),
                    f"{kind}({parameter}={value!r}) is trained in only one pass over the rows, "
                    f"also in the final fit, because partial_fit ignores {parameter}. Set "
                    f"{parameter}=1 if one pass is enough, pass n_epochs to the evaluation for "
                    "several passes, or use method='fit'.",
                )
            first = self._first.setdefault(f"{kind} {name}", value)
            if str(first) != str(value):
                self._warn_once(
                    (kind, name, "differs"),
                    f"estimators differ in {name!r} ({first!r} and {value!r}), but this has no "
                    f"effect, because {kind} is trained by partial_fit, "
                    f"{_no_effect_of(parameter)}.",
                )

    def _warn_once(self, key: tuple[str, ...], message: str) -> None:
        claim = object()
        if self._claims.setdefault(key, claim) is claim:  # atomic, for trials in several threads
            self._warn(message)


#: Learners of scikit-learn whose models do not depend on the order of the rows.
NAIVE_BAYES = BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB

_PASSTHROUGH = (None, "passthrough")

# inspect.signature takes 50 microseconds.
_signature_of = lru_cache(64)(inspect.signature)

# Alternatives with partial_fit, by the type of the estimator.
_ALTERNATIVES = {
    "classifier": "use, for example, SGDClassifier, MultinomialNB or PegasosClassifier instead",
    "regressor": "use, for example, SGDRegressor or AveragedSGDRegressor instead",
    "clusterer": "use, for example, MiniBatchKMeans or StreamingKMeans instead",
    "density_estimator": "use, for example, StreamingGaussianDensity instead",
}
# Parameter values that partial_fit does not support, and supported ones. With warm_start,
# MLPClassifier raises an error if a training phase does not have all classes.
_REFUSED = {
    "early_stopping": (True, "False"),
    "class_weight": ("balanced", "None or a dict of weights"),
    "warm_start": (True, "False"),
}


# Classes of scikit-learn whose ``fit`` is a reset and ``partial_fit``, which
# tests/crossval/test_auto_method.py compares.
_SAME = {kind.__name__ for kind in (*NAIVE_BAYES, MaxAbsScaler, MinMaxScaler, StandardScaler)}
# Meta-estimators whose ``fit`` and ``partial_fit`` call the same method of the nested ones.
_AROUND = {
    "MultiOutputClassifier",
    "MultiOutputRegressor",
    "OneVsOneClassifier",
    "OneVsRestClassifier",
}
# Rounding changes a variance of 0 by up to 1e-32 of the squares.
_LEAST_SMOOTHING = 1e-12


def check_incremental(
    estimator: Any, of_class: bool, called: str = "estimator", transforms: bool = False
) -> None:
    """Raise ValueError if an estimator cannot be trained incrementally.

    Parameters
    ----------
    estimator : estimator, or a step of a Pipeline
    of_class : bool
        Whether to accept a method that the class defines but the current parameters hide.
    called : str
        The name of the estimator in error messages.
    transforms : bool
        Whether it transforms rows for a later step, and so may be stateless.
    """
    if isinstance(estimator, Pipeline):
        for number, (name, step) in enumerate(estimator.steps, 1):
            is_last = number == len(estimator.steps)
            check_incremental(step, of_class, f"Pipeline step {name!r}", transforms or not is_last)
        return
    trainable = hasattr(estimator, "partial_fit") or (
        of_class and hasattr(type(estimator), "partial_fit")
    )
    name = repr(estimator) if estimator in _PASSTHROUGH else type(estimator).__name__
    if isinstance(estimator, IncrementalPCA):
        raise ValueError(
            f"{called} must not be {name}: partial_fit of {name} needs at least n_components "
            "rows, but TreeCV may call it with a single row. Moreover, each call changes the "
            "components, but later steps keep their weights for the old components. Remove "
            f"{name}, or fit it on other rows beforehand."
        )
    if transforms:
        if estimator not in _PASSTHROUGH and not (
            hasattr(estimator, "transform") and (trainable or not get_tags(estimator).requires_fit)
        ):
            raise ValueError(
                f"{called} must be a transformer that either has partial_fit, such as "
                "StandardScaler, or is stateless (tag requires_fit=False), such as Normalizer, "
                f"got {name}."
            )
    elif not trainable:
        raise ValueError(
            f"{called} must have partial_fit, because TreeCV trains models incrementally, "
            f"{_alternatives_to(estimator, name)}."
        )
    for kind, parameter, value, accepted in () if of_class else _refused_settings(estimator):
        raise ValueError(
            f"{called} must have {parameter}={accepted}, because partial_fit of {kind} does not "
            f"support the value {value!r}."
        )


def is_incremental(estimator: Any) -> bool:
    """Return whether an estimator with its current parameters can be trained incrementally."""
    try:
        check_incremental(estimator, of_class=False)
    except ValueError:
        return False
    return True


def _alternatives_to(estimator: Any, name: str) -> str:
    """Return a sentence with alternatives to an estimator without ``partial_fit``."""
    if hasattr(type(estimator), "partial_fit"):  # hidden by the parameters
        if kind_in_table(estimator) in ("MLPClassifier", "MLPRegressor"):
            right = "solver='adam' or solver='sgd'"
            return f"got {name} with solver={estimator.solver!r}; use {right} instead"
        return f"but the parameters of {estimator!r} disable partial_fit"
    kind = get_tags(estimator).estimator_type if hasattr(estimator, "__sklearn_tags__") else ""
    return f"got {name}; {_ALTERNATIVES.get(kind, _ALTERNATIVES['classifier'])}"


def refused_setting(estimator: Any) -> str:
    """Return the reason why ``partial_fit`` does not support a parameter value, or ""."""
    for kind, parameter, value, _ in _refused_settings(estimator):
        return f"partial_fit of {kind} does not support {parameter}={value!r}"
    return ""


def _refused_settings(estimator: Any) -> Iterator[tuple[str, str, Any, str]]:
    """Yield (kind, parameter, value, supported value) for each unsupported parameter value."""
    for prefix, part in trained_parts(estimator):
        kind = kind_in_table(part)
        for parameter, (value, accepted) in _REFUSED.items():
            if kind is None or (parameter == "warm_start" and kind != "MLPClassifier"):
                continue
            if str(part.get_params(deep=False).get(parameter)) == str(value):  # np.True_ too
                yield kind, f"{prefix}{parameter}", value, accepted


def takes_weights(estimator: Any) -> bool:
    """Return whether ``partial_fit`` of the last step accepts ``sample_weight``.

    If the current parameters hide the method, the method of the class is inspected.
    """
    last = last_step(estimator)
    if hasattr(last, "takes_weights"):  # a River model
        return bool(last.takes_weights)
    method = getattr(last, "partial_fit", None) or getattr(type(last), "partial_fit", None)
    if method is None:
        return False
    return "sample_weight" in _signature_of(getattr(method, "__func__", method)).parameters


def takes_classes(estimator: Any) -> bool:
    """Return whether ``partial_fit`` of the last step accepts ``classes``."""
    method = getattr(last_step(estimator), "partial_fit", None)
    if method is None:  # "passthrough"
        return False
    parameters = _signature_of(getattr(method, "__func__", method)).parameters
    return "classes" in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )


def partial_fit(
    estimator: Any,
    X: Any,
    y: Any,
    weights: np.ndarray | None = None,
    are_new: bool = True,
    **classes: Any,
) -> None:
    """Train an estimator on the rows of one phase by ``partial_fit``.

    Each step of a Pipeline is trained on the rows and then transforms them for the next step.

    Parameters
    ----------
    estimator : estimator that passes ``check_incremental``
    X : rows
    y : ndarray or None
    weights : ndarray or None
        For the last step. If all weights are 0, that step is not trained, because scikit-learn
        refuses such a call. Compiled learners are trained, because each row counts as a step, and
        so is ``GaussianNB``, because its epsilon is computed from all rows.
    are_new : bool
        Whether the estimator has not seen these rows yet. Otherwise transformers only transform
        them, so that each row enters the moments of a scaler once.
    **classes : ndarray
        In the first phase: ``classes``, for the last step if its ``partial_fit`` accepts them.
    """
    if isinstance(estimator, Pipeline):
        *transformers, (_, last) = estimator.steps
        for _, step in transformers:
            if step not in _PASSTHROUGH:
                if are_new:
                    partial_fit(step, X, y)
                X = step.transform(X)
        if last not in _PASSTHROUGH:
            partial_fit(last, X, y, weights, are_new, **classes)
    elif getattr(type(estimator), "partial_fit", None) is GaussianNB.partial_fit:
        # A subclass may override the method.
        _train_gaussian_nb(estimator, X, y, weights, **classes)
    elif weights is not None:
        if np.any(weights) or isinstance(estimator, CompiledEstimator):
            labels = () if y is None else (y,)
            estimator.partial_fit(X, *labels, **classes, sample_weight=weights)
    elif hasattr(estimator, "partial_fit"):
        estimator.partial_fit(X, *(() if y is None else (y,)), **classes)
    else:
        estimator.fit(X)  # stateless: uses only the names and the number of the columns


def _train_gaussian_nb(
    model: GaussianNB, X: Any, y: Any, weights: np.ndarray | None, **classes: Any
) -> None:
    """Train a ``GaussianNB`` on one phase such that it is equal to a fit on all rows so far.

    scikit-learn's ``partial_fit`` computes ``epsilon_``, which it adds to the variances, from the
    rows of the last phase only. It first subtracts this value, although the previous call has
    added another one.

    Parameters
    ----------
    model : GaussianNB
    X, y : the rows of the phase
    weights : ndarray or None
        May all be 0, because epsilon is computed from the unweighted rows.
    **classes : ndarray
        In the first phase: ``classes``.
    """
    smoothing = model.var_smoothing
    # Private attributes: the unweighted moments of all rows so far, and the variances without
    # epsilon, which are None until a row has a positive weight.
    before, variances = getattr(model, "_spread", None), getattr(model, "_variances", None)
    if weights is not None and not np.any(weights):  # scikit-learn refuses such a call
        X = check_array(X, input_name="X")
    else:
        if variances is None:
            model._validate_params()
        else:
            model.var_ = variances
        try:
            model.var_smoothing = 0.0
            model.partial_fit(X, y, sample_weight=weights, **classes)
        finally:
            model.var_smoothing = smoothing
        variances = model.var_
    rows = np.asarray(X)
    parts = (spread_of(rows[b].astype(np.float64)) for b in blocks(slice(0, len(rows))))
    spread = reduce(merge_spreads, parts)  # one block at a time in float64
    if before is not None:
        spread = merge_spreads(before, spread)
    model._spread, model._variances = spread, variances
    if variances is not None:
        epsilon = smoothing * np.max(spread.squares) / spread.n_rows
        model.epsilon_ = variances.dtype.type(epsilon)
        model.var_ = variances + model.epsilon_


@contextmanager
def keeping_rows(estimator: Any) -> Iterator[None]:
    """Return a context that raises a clear error if a step changes the number of rows."""
    try:
        yield
    except ValueError as error:
        if not isinstance(estimator, Pipeline) or "inconsistent numbers of sam" not in str(error):
            raise
        raise ValueError(
            "estimator must have steps that keep the number of rows, got a Pipeline with a step "
            f"that does not: {error}"
        ) from error


def why_fit_differs(estimator: Any, searched: Collection[str] = ()) -> str:
    """Return the reason why one pass of ``partial_fit`` differs from ``fit``, or "".

    The reason is also "" if there is no ``fit``. The ``fit`` of this package's estimators makes
    one pass. Scalers that precede a single-pass learner may be trained together with it.

    Parameters
    ----------
    estimator : estimator
        Possibly a Pipeline, or one of scikit-learn's meta-estimators.
    searched : collection of str
        Parameters that a search sets, so that their values are unknown.
    """
    if not hasattr(estimator, "fit"):
        return ""
    for prefix, part in trained_parts(estimator, "", searched):
        if isinstance(part, CompiledEstimator):
            continue
        if not hasattr(part, "partial_fit") or not hasattr(part, "fit"):
            continue
        if get_tags(part).requires_fit and (
            why := _why_part_differs(part, f"{prefix}max_iter" in searched)
        ):
            return why
        if isinstance(part, GaussianNB) and (why := _why_variances_differ(part, prefix, searched)):
            return why
    return ""


def _why_variances_differ(model: GaussianNB, prefix: str, searched: Collection[str]) -> str:
    """Return the reason why variances of ``GaussianNB`` differ from ``fit``, or ""."""
    if prefix.endswith("estimator__"):  # another estimator calls its partial_fit
        return "partial_fit of GaussianNB smooths variances by the variances of its last rows only"
    smoothing, is_open = model.var_smoothing, f"{prefix}var_smoothing" in searched
    if not is_open and isinstance(smoothing, Real) and smoothing < _LEAST_SMOOTHING:
        return f"var_smoothing={smoothing} is so small that variances show rounding errors"
    return ""


def _why_part_differs(part: Any, varies: bool) -> str:
    """Return the reason why ``fit`` of an estimator is not one pass of ``partial_fit``, or ""."""
    name, kind = type(part).__name__, ""
    for base in type(part).__mro__:  # the class of scikit-learn that has fit and partial_fit
        if base.__module__.startswith("sklearn."):
            kind = base.__name__
        if kind or vars(base).keys() & {"fit", "partial_fit"}:
            break
    if kind in _SAME or kind in _AROUND:
        return ""
    if kind in OF_PASSES:
        if part.max_iter == 1 and not varies:
            return ""
        return f"fit of {name} makes up to max_iter={part.max_iter} passes and partial_fit one"
    return f"one pass of partial_fit may give another model than fit of {name}"
