"""Training phases of any estimator with ``partial_fit``, and of Pipelines, step by step."""

from __future__ import annotations

from typing import Any

from sklearn.decomposition import IncrementalPCA
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

_PASSTHROUGH = (None, "passthrough")


def check_incremental(
    estimator: Any, of_class: bool, called: str = "estimator", transforms: bool = False
) -> None:
    """Refuse what cannot be trained phase by phase.

    Parameters
    ----------
    estimator : estimator, or a step of a Pipeline
    of_class : bool
        A method of the class will do: other settings may bring it.
    called : str
        How error messages call it.
    transforms : bool
        Whether it makes rows for a later step; it may then be stateless.
    """
    if isinstance(estimator, Pipeline):
        for number, (name, step) in enumerate(estimator.steps, 1):
            is_last = number == len(estimator.steps)
            check_incremental(step, of_class, f"Pipeline step {name!r}", transforms or not is_last)
        return
    goes_on = hasattr(estimator, "partial_fit") or (
        of_class and hasattr(type(estimator), "partial_fit")
    )
    name = repr(estimator) if estimator in _PASSTHROUGH else type(estimator).__name__
    if isinstance(estimator, IncrementalPCA):
        raise ValueError(
            f"{called} must not be {name}: its partial_fit needs at least n_components rows, and "
            "a training phase of TreeCV may have one; and its components turn from phase to phase "
            "under the weights of later steps. Leave it out, or fit it beforehand on other rows."
        )
    if transforms:
        if estimator not in _PASSTHROUGH and not (
            hasattr(estimator, "transform") and (goes_on or not get_tags(estimator).requires_fit)
        ):
            raise ValueError(
                f"{called} must be a transformer that has partial_fit (StandardScaler) or is "
                "stateless (Normalizer, FunctionTransformer: tag requires_fit=False), got "
                f"{name}."
            )
    elif not goes_on:
        raise ValueError(
            f"{called} must have partial_fit, since TreeCV goes on training a model; "
            f"{name} has none. Take SGDClassifier, MultinomialNB or PegasosClassifier, say."
        )


def partial_fit(estimator: Any, X: Any, y: Any, **classes: Any) -> None:
    """One phase: each step of a Pipeline learns the rows, then transforms them for the next.

    Parameters
    ----------
    estimator : estimator that passes ``check_incremental``
    X : rows
    y : ndarray or None
    **classes : ndarray
        ``classes`` of the first phase, for the last step.
    """
    if isinstance(estimator, Pipeline):
        *transformers, (_, last) = estimator.steps
        for _, step in transformers:
            if step not in _PASSTHROUGH:
                partial_fit(step, X, y)
                X = step.transform(X)
        if last not in _PASSTHROUGH:
            partial_fit(last, X, y, **classes)
    elif hasattr(estimator, "partial_fit"):
        estimator.partial_fit(X, *(() if y is None else (y,)), **classes)
    else:
        estimator.fit(X)  # stateless: it looks at the columns' names and number alone


def last_step(estimator: Any) -> Any:
    """The estimator itself, or what a Pipeline ends in."""
    return last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator
