"""One case: what was drawn for it, and how the two sides differ."""

from __future__ import annotations

from collections.abc import Callable
import re
from typing import Any

import numpy as np

#: Refusals of calls that scikit-learn answers: what they say, and the page that explains them.
DOCUMENTED = {
    "is undefined": "user_guide/your_metric, Scores of small folds",
    "needs an estimator with": "such a score is refused, and no error_score",
    "X must be in the memory of this process": "user_guide/more_data, Rows on a Dask cluster",
    "if a fold has rows in several blocks": "user_guide/more_data, Rows on a Dask cluster",
}


class Case:
    """One case.

    Attributes
    ----------
    rng : Generator
        What it draws from.
    drawn : dict
        What was drawn, by name.
    differences : list of str
    end : {"equal", "different", "refused", "documented"}
        How it ended: "refused" if both sides raised an error.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.drawn: dict[str, Any] = {}
        self.differences: list[str] = []
        self.end = "equal"

    def note(self, **drawn: Any) -> None:
        self.drawn |= drawn

    def compare(self, what: str, ours: Any, theirs: Any, rtol: float = 0.0) -> None:
        """Compare two outcomes: numbers, bit for bit if ``rtol`` is 0, or errors."""
        are_errors = [isinstance(one, Exception) for one in (ours, theirs)]
        if all(are_errors):
            end = "refused"
        elif are_errors[0] and any(re.search(said, str(ours)) for said in DOCUMENTED):
            end = "documented"
        elif any(are_errors) or not are_equal(ours, theirs, rtol):
            self.differences.append(f"{what}: {shown(ours)} for {shown(theirs)}")
            end = "different"
        else:
            return
        self.end = "different" if self.differences else end

    def in_brief(self) -> str:
        """Return what was drawn, in a line."""
        return "; ".join(f"{name}={brief(value)}" for name, value in self.drawn.items())


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        return error


def error_of(found: Any) -> Any:
    """Return an outcome if it is an error, else 0."""
    return found if isinstance(found, Exception) else 0


def are_equal(ours: Any, theirs: Any, rtol: float) -> bool:
    a, b = np.asarray(ours), np.asarray(theirs)
    if a.shape != b.shape:
        return False
    if rtol and {a.dtype.kind, b.dtype.kind} <= set("fiub"):
        return bool(np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f"))


def shown(value: Any) -> str:
    if isinstance(value, Exception):
        return f"{type(value).__name__}({' '.join(str(value).split())[:300]})"
    return " ".join(np.array2string(np.asarray(value), precision=17, threshold=12).split())[:600]


def brief(value: Any) -> str:
    """Return a value in a few words; arrays by their types and shapes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))})"
    if hasattr(value, "dtypes") and np.ndim(value) == 2:
        return f"DataFrame({', '.join(map(str, value.dtypes))})"
    if hasattr(value, "dtype") and np.size(value) > 20:
        return f"{type(value).__name__}({value.dtype}, {value.shape})"
    text = " ".join(repr(value).split())
    return text if len(text) < 500 else f"{text[:500]}..."
