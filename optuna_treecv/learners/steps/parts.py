"""The parts of steps that hold others: a Pipeline, a ColumnTransformer and a FeatureUnion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

#: The steps that hold others, and the attribute in which they do.
COMPOSED = {
    Pipeline: "steps",
    ColumnTransformer: "transformers",
    FeatureUnion: "transformer_list",
}

#: In the place of a step of a Pipeline: the rows pass as they are.
PASSED = (None, "passthrough")


def is_passed(step: Any) -> bool:
    """Return whether a word stands in the place of a step."""
    return step is None or step in ("passthrough", "drop")


def parts_of(step: Any) -> list[tuple[Any, ...]]:
    """Return the parts of a composed step: (name, transformer), columns behind them if any."""
    parts: list[tuple[Any, ...]] = list(getattr(step, COMPOSED[type(step)]))
    if type(step) is ColumnTransformer:
        parts.append(("remainder", step.remainder))
    return parts


def fitted_parts(fitted: Any) -> list[tuple[Any, ...]]:
    """Return the fitted parts of a composed step."""
    if type(fitted) is ColumnTransformer:
        parts: list[tuple[Any, ...]] = fitted.transformers_
        return parts
    return parts_of(fitted)


def leaves_of(name: str, step: Any) -> Iterator[tuple[str, Any]]:
    """Yield the transformers in a step that hold no others, each with its path."""
    if type(step) in COMPOSED:
        for inner, part, *_ in parts_of(step):
            yield from leaves_of(f"{name}__{inner}", part)
    elif not is_passed(step):
        yield name, step


def rows_of_parts(fitted: ColumnTransformer, X: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the transformer and the rows of each part that gets columns."""
    for name, part, columns in fitted.transformers_:
        rows = _safe_indexing(X, columns, axis=1)
        if len(rows.shape) == 1 or rows.shape[1]:
            yield name, part, rows


def unshared(step: Any, X: Any) -> Any:
    """Return rows for a step: a copy where ``copy=False``, of it or a part, may overwrite them."""
    for _, leaf in leaves_of("", step):
        params = leaf.get_params() if hasattr(leaf, "get_params") else {}
        if any(name.rpartition("__")[2] == "copy" and not params[name] for name in params):
            return X.copy()
    return X
