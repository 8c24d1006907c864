"""Validation of estimators, methods and targets; and checks whether seeds have an effect."""

from collections.abc import Collection
from collections.abc import Sequence
from contextlib import suppress
import sys
from typing import Any

from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from optuna_treecv.estimators.base import as_given
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import may_have
from optuna_treecv.estimators.base import METHOD_NAMES
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.rows.data import Data

# Regressors of scikit-learn that accept several targets although their tags do not say so.
_OF_SEVERAL_TARGETS = ("BaggingRegressor", "MLPRegressor")


def as_estimator(estimator: Any) -> Any:
    """Return an estimator; a River model is wrapped as a scikit-learn estimator."""
    river = sys.modules.get("river.base")  # loaded if the caller has a River model
    if river is None or not isinstance(estimator, river.Base):
        return estimator
    from optuna_treecv.estimators.river import around

    return around(estimator)


def checked_clone(estimator: Any) -> Any:
    """Return a clone of an estimator; raise ValueError if scikit-learn cannot clone it."""
    try:
        return clone(estimator)
    except RuntimeError as error:  # CatBoost copies a parameter that is a list
        raise ValueError(
            f"estimator must be cloneable, got an error: {error}; pass a tuple instead of a list."
        ) from error


def check_clone(estimator: Any) -> None:
    """Raise ValueError if scikit-learn cannot clone an estimator because of a list."""
    with suppress(TypeError):  # a value that cannot be copied; methods name its parameter
        checked_clone(estimator)


def checked_estimator(estimator: Any) -> Any:
    """Return an estimator or a wrapped River model; raise ValueError for other objects."""
    estimator = as_estimator(estimator)
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise ValueError(
            "estimator must be a scikit-learn estimator instance or a River model, got "
            f"{estimator!r}."
        )
    if isinstance(estimator, Pipeline):
        last = last_step(estimator)
        has_fit = hasattr(last, "fit") or hasattr(type(last), "fit")  # hidden by parameters
        if last not in (None, "passthrough") and not has_fit:
            raise ValueError(
                f"estimator must be a Pipeline whose last step has fit, got {name_of(last)}, with "
                "which scikit-learn's Pipeline cannot predict; use a class with fit instead."
            )
    return estimator


def check_methods(
    estimator: Any,
    response_method: str | Sequence[str] | None,
    argument: str,
    of_class: bool = False,
) -> None:
    """Raise ValueError if an estimator lacks a method that the scoring needs.

    Parameters
    ----------
    estimator : estimator
    response_method : str, sequence of str or None
        As in ``make_learner``. One of several is enough.
    argument : str
        The argument that needs the response, for error messages.
    of_class : bool
        Whether to accept a method that the class defines but the current parameters hide.
    """
    if response_method is None:
        return
    methods = [response_method] if isinstance(response_method, str) else response_method
    needed = [METHOD_NAMES.get(method, method) for method in methods]
    owners = [estimator, type(estimator)] if of_class else [estimator]
    if not any(may_have(owner, method) for owner in owners for method in needed):
        raise ValueError(
            f"{argument} needs an estimator with {' or '.join(needed)}; {name_of(estimator)} has "
            "none."
        )


def check_targets(estimator: Any, data: Data, searched: Collection[str] = ()) -> None:
    """Raise ValueError for missing targets, and for several columns if only one is supported.

    Estimators of other libraries may still raise an error in ``fit``.

    Parameters
    ----------
    estimator : estimator
    data : Data
    searched : collection of str
        Parameters that a search sets. If it sets the last step of a Pipeline, this step is not
        checked.
    """
    if is_regressor(estimator):
        data.check_no_target_is_missing()
    if data.y is None or data.y.ndim == 1:
        return
    prefix = ""
    while isinstance(estimator, Pipeline):
        name, estimator = estimator.steps[-1]
        if (prefix := prefix + name) in searched:
            return
        prefix += "__"
    if data.y.ndim > 2:
        return  # such targets are not checked
    if is_classifier(estimator):
        # Classifiers of libraries without tags may accept several columns, but River's classifiers
        # do not.
        takes_columns = as_given(estimator) is estimator
        if type(estimator).__module__.partition(".")[0] in ("sklearn", "optuna_treecv"):
            tags = get_tags(estimator)
            takes_columns = tags.target_tags.multi_output or tags.classifier_tags.multi_label
        if not takes_columns:
            data.classes()  # raises
        return
    if not is_regressor(estimator):
        raise ValueError(
            f"y must have one column or be None for {name_of(estimator)}, got shape "
            f"{data.y.shape}."
        )
    if _takes_one_target(estimator):
        is_from_river = as_given(estimator) is not estimator
        advice = f"MultiOutputRegressor({name_of(estimator)}())"
        if is_from_river:
            advice = "one evaluation for each column"
        raise ValueError(
            f"y must have one column for {name_of(estimator)}, got shape {data.y.shape}; use "
            f"{advice} instead."
        )


# Estimators of scikit-learn that use random_state only for some values of a parameter.
_DRAWS_BY: dict[str, tuple[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("Ridge", "RidgeClassifier"), ("solver", ("sag", "saga"))),
    "LogisticRegression": ("solver", ("liblinear", "sag", "saga")),
    **dict.fromkeys(("ElasticNet", "Lasso"), ("selection", ("random",))),
    **dict.fromkeys(("NuSVC", "SVC"), ("probability", (True,))),
}


def _takes_one_target(regressor: Any) -> bool:
    """Return whether a regressor is known to accept only one target.

    Only the tags of estimators in scikit-learn and this package are used. Tags of meta-estimators
    are ignored, because they depend on the nested estimator.
    """
    kind = type(regressor)
    is_meta = any(
        hasattr(value, "get_params") for value in regressor.get_params(deep=False).values()
    )
    return (
        kind.__module__.partition(".")[0] in ("sklearn", "optuna_treecv")
        and kind.__name__ not in _OF_SEVERAL_TARGETS
        and not is_meta
        and not get_tags(regressor).target_tags.multi_output
    )


def takes_seed(estimator: Any) -> bool:
    """Return whether an estimator has a seed that is None and affects its models."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.draws and estimator.random_state is None
    parts = {"": estimator, **estimator.get_params(deep=True)}
    return any(_draws(parts[name.rpartition("__")[0]]) for name in unset_seeds(estimator))


def _draws(estimator: Any) -> bool:
    kind = type(estimator)
    name, values = _DRAWS_BY.get(kind.__name__, ("", ()))
    return (
        not name
        or not kind.__module__.startswith("sklearn.")
        or getattr(estimator, name, None) in values
    )


def import_pandas(function: str) -> Any:
    """Return the module pandas, which is optional, or raise an error that names ``function``."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"{function} needs pandas: pip install 'optuna-treecv[pandas]'."
        ) from error
    return pandas
