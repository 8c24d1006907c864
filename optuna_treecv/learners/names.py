"""The names of estimators in messages and tables, and those of their responses."""

from typing import Any

from sklearn.pipeline import Pipeline

#: The estimator's method for a response, if its name differs from that of the response.
METHOD_NAMES = {"distance": "transform"}


def as_given(estimator: Any) -> Any:
    """Return the estimator or River model that ``as_estimator`` was given."""
    return getattr(estimator, "river_model", estimator)


def name_of(estimator: Any) -> str:
    """Return the name of an estimator for error messages."""
    return type(as_given(estimator)).__name__


def described(estimator: Any) -> str:
    """Return the class of an estimator; of a Pipeline that of its last step, after the others."""
    if not isinstance(estimator, Pipeline):
        return name_of(estimator)
    *before, last = [step for _, step in estimator.steps if step not in (None, "passthrough")]
    after = ", ".join(map(described, before))
    return f"{described(last)} after {after}" if after else described(last)
