"""The names of estimators in messages and tables, and those of their responses."""

from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

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
