"""Any scikit-learn estimator with ``partial_fit`` as a learner."""

from __future__ import annotations

import copy
from dataclasses import dataclass
import re
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.data import take_rows
from optuna_treecv.plan import Phase

# What scikit-learn's estimators say when a model has left the finite numbers.
_DIVERGED = re.compile("under-/overflow|non-finite parameter weights")


@dataclass
class State:
    """An estimator on its way."""

    estimator: Any  # None once it has diverged
    is_fresh: bool = True


class Adapter:
    """An estimator over rows that stay as they are.

    A training phase is one call of ``partial_fit``, the first with all classes named:
    scikit-learn's SGD gives other numbers when a phase is cut. A copy is a deep copy.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``
        It is cloned; each ``random_state=None`` in it becomes ``seed``.
    rows : PreparedRows
    response_method : str
        What to ask models for: "predict", "decision_function", "predict_proba" or "distance" (to
        the nearest centre).
    seed : int
        32 bits.
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self, estimator: Any, rows: PreparedRows, response_method: str, seed: int
    ) -> None:
        name = type(estimator).__name__
        if not hasattr(estimator, "partial_fit"):
            raise ValueError(
                f"estimator must have partial_fit, since TreeCV goes on training a model; {name} "
                "has none. "
                "Take an incremental one, say SGDClassifier, MultinomialNB or PegasosClassifier."
            )
        needed = "transform" if response_method == "distance" else response_method
        if not hasattr(estimator, needed):
            raise ValueError(f"scoring needs an estimator with {needed}; {name} has none.")
        self.rows = rows
        self.n_outputs = 1
        if rows.classes is not None:
            if response_method == "predict_proba" or (
                response_method == "decision_function" and len(rows.classes) > 2
            ):
                self.n_outputs = len(rows.classes)
        self._method = needed
        self._distance = response_method == "distance"
        self._fresh = seeded(clone(estimator), seed)

    def start(self) -> State:
        return State(clone(self._fresh))

    def update(self, state: State, phase: Phase) -> None:
        if state.estimator is None:
            return
        X = take_rows(self.rows.X, phase)
        y = () if self.rows.y is None else (self.rows.y[phase],)
        classes = (
            {"classes": self.rows.classes}
            if state.is_fresh and self.rows.classes is not None
            else {}
        )
        try:
            state.estimator.partial_fit(X, *y, **classes)
            state.is_fresh = False
        except ValueError as error:
            if not _DIVERGED.search(str(error)):
                raise
            state.estimator = None

    def snapshot(self, state: State) -> State:
        return State(copy.deepcopy(state.estimator), state.is_fresh)

    def outputs(self, state: State, start: int, stop: int, out: np.ndarray) -> None:
        if state.estimator is None:
            out[start:stop] = np.nan
            return
        response = getattr(state.estimator, self._method)(
            take_rows(self.rows.X, slice(start, stop))
        )
        if self._distance:
            response = response.min(axis=1)
        elif self._method == "predict" and self.rows.classes is not None:
            response = np.searchsorted(self.rows.classes, response)
        out[start:stop] = np.reshape(response, (stop - start, -1))

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        return outputs[:, 0] if self.n_outputs == 1 else outputs

    def estimator(self, state: State) -> Any:
        return state.estimator

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        X = take_rows(self.rows.X, slice(start, stop))
        return X, None if self.rows.y is None else self.rows.y[start:stop]


def adapter_layout(estimator: Any) -> RowLayout:
    """How the adapter wants its rows."""
    return RowLayout(encode=is_classifier(estimator))


def seeded(estimator: Any, seed: int) -> Any:
    """Set each ``random_state=None`` of an estimator and of what is nested in it."""
    unset = {
        name: seed
        for name, value in estimator.get_params(deep=True).items()
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    return estimator.set_params(**unset) if unset else estimator
