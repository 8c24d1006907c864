"""Steps of Pipelines: their kinds, the parts of composed steps, and errors that name a step."""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
from enum import Enum
from functools import partial
from textwrap import shorten
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import _safe_indexing

from optuna_treecv.rows.checks import naming_entries


class Kind(Enum):
    """How a transformer that precedes a model is fitted."""

    STATELESS = "stateless"
    FITTED_ONCE = "fitted once"
    ONCE_IF_EQUAL = "fitted once if equal in each fold"
    FROM_SUMS = "fitted per fold from sums"
    COMPILED = "incremental, compiled"
    INCREMENTAL = "incremental"
    PER_FOLD = "refitted per fold"


class ModelsFrom(Enum):
    """How the models after the transformers are trained; it determines the transformers' kinds."""

    KERNEL = "by a kernel, which may run transformers too"
    PARTIAL_FIT = "by partial_fit, behind transformers that are fitted once or incremental"
    PARTIAL_FIT_IN_ORDER = "by partial_fit, as all steps before them, one after the other"
    SUMS = "from sums over rows"
    FIT = "by fit, on the training rows of each fold"


def fills_categories(imputer: Any, encoder: Any) -> bool:
    """Return whether an imputer fills in categories that the next step encodes as columns."""
    return (
        type(imputer) is SimpleImputer
        and imputer.strategy == "most_frequent"
        and not (imputer.add_indicator or imputer.keep_empty_features)
        and type(encoder) is OneHotEncoder
        and adds_columns(encoder)
        and (encoder.drop, encoder.min_frequency, encoder.max_categories) == (None, None, None)
    )


def is_running_imputer(step: Any) -> bool:
    """Return whether a step is an imputer by means, which is trained with the models."""
    return type(step) is SimpleImputer and step.strategy == "mean"


def adds_columns(step: Any) -> bool:
    """Return whether a transformer creates a column for each value in the rows."""
    if type(step) is OneHotEncoder:
        return isinstance(step.categories, str)  # "auto", not lists
    return type(step) is CountVectorizer and step.vocabulary is None


#: The classes of composed steps, and the attribute that contains their parts.
COMPOSED = {Pipeline: "steps", ColumnTransformer: "transformers", FeatureUnion: "transformer_list"}

# The errors that steps raise for invalid rows. Other errors, such as the loss of a worker, are not
# analyzed.
_OF_ROWS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# The maximum length of an error that is quoted in a message.
_MOST_CHARACTERS = 240


class NotAheadError(Exception):
    """Raised if preprocessing must be refitted per fold; the message is the reason."""


def is_passed(step: Any) -> bool:
    """Return whether a step is None, "passthrough" or "drop"."""
    return step is None or step in ("passthrough", "drop")


def steps_before(estimator: Any) -> list[tuple[str, Any]]:
    """Return (name, transformer) for all steps of a Pipeline except the last one."""
    if type(estimator) is not Pipeline:
        return []
    *before, (_, last) = estimator.steps
    return [(n, step) for n, step in before if not is_passed(step)] + steps_before(last)


def path_to(path: str, name: str) -> str:
    """Return the path of a part of a step in the form of parameter names, such as "a__b"."""
    return f"{path}__{name}" if path else name


def parts_of(step: Any, is_fitted: bool = False) -> list[tuple[Any, ...]]:
    """Return the parts of a composed step: (name, transformer) or (name, transformer, columns).

    If ``is_fitted``, the fitted parts are returned.
    """
    if type(step) is not ColumnTransformer:
        return list(getattr(step, COMPOSED[type(step)]))
    if is_fitted:
        return step.transformers_
    return [*step.transformers, ("remainder", step.remainder)]


def leaves_of(path: str, step: Any, is_fitted: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield (path, transformer) for each transformer in a step, except composed ones."""
    if type(step) in COMPOSED:
        for name, part, *_ in parts_of(step, is_fitted):
            yield from leaves_of(path_to(path, name), part, is_fitted)
    elif not is_passed(step):
        yield path, step


def unshared(step: Any, X: Any) -> Any:
    """Return rows for a step; a copy if a transformer with ``copy=False`` may overwrite them."""
    for _, leaf in leaves_of("", step):
        params = leaf.get_params() if hasattr(leaf, "get_params") else {}
        if any(name.rpartition("__")[2] == "copy" and not params[name] for name in params):
            return X.copy()
    return X


#: A function that transforms rows by a step that is not a Pipeline: (path, step, rows, branches)
#: -> transformed rows. The branches of a composed step: pairs of a part and the rows that it has
#: transformed.
Action = Callable[[str, Any, Any, list[tuple[Any, Any]]], Any]


def rows_after(path: str, step: Any, X: Any, act: Action) -> Any:
    """Transform rows by a step; ``act`` is applied to its parts in order.

    Parameters
    ----------
    path : str
    step : transformer
        Fitted or not.
    X : rows
    act : callable
        As in ``Action``.
    """
    if is_passed(step):
        return X
    if type(step) is Pipeline:
        for name, part in step.steps:
            X = rows_after(path_to(path, name), part, X, act)
        return X
    branches = [
        (part, rows_after(path_to(path, name), part, rows, act))
        for name, part, rows in _branches(step, X)
        if part != "drop"
    ]
    return act(path, step, X, branches)


def _branches(step: Any, X: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, transformer, rows) for each branch that gets at least one column."""
    if type(step) is FeatureUnion:
        for name, part in step.transformer_list:
            yield name, part, X
    if type(step) is not ColumnTransformer:
        return
    selects, is_fitted = step, hasattr(step, "transformers_")
    if not is_fitted:
        listed = [(name, "drop", columns) for name, _, columns in step.transformers]
        try:  # determines the columns of the remainder
            selects = ColumnTransformer(listed).fit(X)
        except Exception:  # noqa: BLE001  # the step raises it again
            return
    parts = {name: part for name, part, *_ in parts_of(step, is_fitted)}
    for name, _, columns in selects.transformers_:
        rows = _safe_indexing(X, columns, axis=1)
        if len(rows.shape) == 1 or rows.shape[1]:
            yield name, parts[name], rows


@contextmanager
def foreign_code() -> Generator[None]:
    """Return a context that converts errors of code outside this package to ValueErrors.

    After a ValueError, models are refitted per fold. Errors of other types would indicate bugs of
    this package.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        message = f"estimator must have steps that accept the rows of X, got {error!r}."
        raise ValueError(message) from error


@contextmanager
def naming_step(estimator: Any, X: Any, y: Any = None) -> Generator[None]:
    """Return a context that adds the name of the failing step to errors of preprocessing.

    To find the failing step, the steps are fitted again on all rows, one after another. If none of
    them fails, the name of the transformed column is added to an error about an entry; other
    errors are raised unchanged.

    Parameters
    ----------
    estimator : estimator
        Errors of estimators that are not Pipelines are unchanged.
    X, y : the user's rows and targets
    """
    try:
        yield
    except _OF_ROWS as error:
        sentence = _sentence(estimator, X, y, error) if type(estimator) is Pipeline else None
        if sentence is None:
            raise
        raise ValueError(sentence) from error


def _sentence(estimator: Pipeline, X: Any, y: Any, error: Exception) -> str | None:
    """Return a message about the failing step or the learner's rows; None if neither fails."""
    before, (name, last) = clone(Pipeline(estimator.steps[:-1])), estimator.steps[-1]
    try:
        rows_after("", before, X, partial(_after_fit, y))
    except ValueError as of_step:
        cause = of_step.__cause__
        assert cause is not None
        # This error is about all rows. The error of a placeholder may be different and clearer.
        is_same = cause.__cause__ is not None or type(cause) is type(error)
        reason = shorten(str(cause if is_same else error), _MOST_CHARACTERS, placeholder=" ...")
        return f"{of_step}: {reason}"
    cause = error.__cause__ or error
    try:
        fitted = before.fit(unshared(before, X), y)
        after, names = fitted.transform(unshared(before, X)), None
        with suppress(AttributeError):  # not every transformer has column names
            names = fitted.get_feature_names_out()
        with naming_entries(after, names=names):
            raise cause
    except Exception as of_entry:  # noqa: BLE001  # the whole Pipeline may raise anything
        sentence = f"After preprocessing, for the {type(last).__name__} {name!r}: {of_entry}"
        return sentence if of_entry.__cause__ is cause else None


def _after_fit(y: Any, path: str, step: Any, X: Any, branches: list[tuple[Any, Any]]) -> Any:
    """Fit a step and transform its rows; errors name the step."""
    # After columns are selected, their indices differ from the indices in the user's array.
    entries = naming_entries(X) if hasattr(X, "columns") else nullcontext()
    try:
        with entries:
            after = clone(step).fit_transform(unshared(step, X), y)
        if np.shape(after)[0] != np.shape(X)[0]:
            raise ValueError(
                "estimator must have steps that keep the number of rows, got "
                f"{np.shape(after)[0]} rows for {np.shape(X)[0]} rows."
            )
    except Exception as error:
        raise ValueError(f"X must suit the step {path!r} ({type(step).__name__})") from error
    return after
