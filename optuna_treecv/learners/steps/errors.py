"""Names the step of a Pipeline that an error comes from."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
from textwrap import shorten
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline

from optuna_treecv.learners.steps.parts import is_passed
from optuna_treecv.learners.steps.parts import parts_of
from optuna_treecv.learners.steps.parts import rows_of_parts
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.rows.checks import naming_entries

# What rows that a step cannot take make it raise. Others, such as that of a worker which ended,
# are not looked into.
_OF_ROWS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Of an error, so much stands in the sentence.
_MOST_CHARACTERS = 240


@contextmanager
def naming_step(estimator: Any, X: Any, y: Any = None) -> Generator[None]:
    """Raise an error of a step before a learner under one sentence that names the step.

    The steps are fitted once more on all rows, one after the other, to find the one that fails. If
    none does, an error about an entry is raised with the name of its column after the steps, and
    any other as it is.

    Parameters
    ----------
    estimator : estimator
        Errors of estimators that are no Pipelines are left as they are.
    X, y : rows and targets as given
    """
    try:
        yield
    except _OF_ROWS as error:
        sentence = _sentence(estimator, X, y, error) if type(estimator) is Pipeline else None
        if sentence is None:
            raise
        raise ValueError(sentence) from error


def _sentence(estimator: Pipeline, X: Any, y: Any, error: Exception) -> str | None:
    """Return a sentence about the step that fails or about the learner's rows; None if neither."""
    before, (name, last) = Pipeline(estimator.steps[:-1]), estimator.steps[-1]
    try:
        _done("", before, X, y)
    except ValueError as found:
        by_step = found.__cause__
        assert by_step is not None
        # It is about all rows, but the error of a placeholder may be another, and clearer.
        is_same = by_step.__cause__ is not None or type(by_step) is type(error)
        said = str(by_step if is_same else error)
        return f"{found}: {shorten(said, _MOST_CHARACTERS, placeholder=' ...')}"
    cause = error.__cause__ or error
    try:
        fitted = clone(before).fit(unshared(before, X), y)
        after, names = fitted.transform(unshared(before, X)), None
        with suppress(AttributeError):  # not every transformer names its columns
            names = fitted.get_feature_names_out()
        with naming_entries(after, names=names):
            raise cause
    except Exception as found:  # noqa: BLE001  # the steps as a whole may raise anything
        said = f"After the steps, for the {type(last).__name__} {name!r}: {found}"
        return said if found.__cause__ is cause else None


def _done(name: str, step: Any, X: Any, y: Any) -> Any:
    """Return the rows after a step, or raise an error that names the first part that fails."""
    if is_passed(step):
        return X
    if type(step) is Pipeline:
        for part_name, part in step.steps:
            X = _done(f"{name}__{part_name}" if name else part_name, part, X, y)
        return X
    for part_name, part, rows in _branches(step, X):
        _done(f"{name}__{part_name}", part, rows, y)
    # The columns of an array have other numbers than those given, once some are selected.
    entries = naming_entries(X) if hasattr(X, "columns") else nullcontext()
    try:
        with entries:
            after = clone(step).fit_transform(unshared(step, X), y)
        if np.shape(after)[0] != np.shape(X)[0]:
            raise ValueError(
                "estimator must have steps that return a row for each row, got "
                f"{np.shape(after)[0]} for {np.shape(X)[0]}."
            )
    except Exception as error:
        raise ValueError(f"X must suit the step {name!r} ({type(step).__name__})") from error
    return after


def _branches(step: Any, X: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the transformer and the rows of each branch of a step, if it has any."""
    if type(step) is FeatureUnion:
        for name, part in step.transformer_list:
            yield name, part, X
    if type(step) is not ColumnTransformer:
        return
    listed = [(name, "drop", columns) for name, _, columns in step.transformers]
    try:  # it finds out which columns are left for the remainder
        selects = ColumnTransformer(listed).fit(X)
    except Exception:  # noqa: BLE001  # the step itself raises it again
        return
    parts = {name: part for name, part, *_ in parts_of(step)}
    for name, _, rows in rows_of_parts(selects, X):
        yield name, parts[name], rows
