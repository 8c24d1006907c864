"""What the linear learners share: a compiled kernel bound to rows, and the estimator's side of
it.
"""

from __future__ import annotations

from abc import ABCMeta
from abc import abstractmethod
from typing import Any
from typing import Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from sklearn.utils.validation import validate_data

from optuna_treecv._kernels.order import random_order
from optuna_treecv.data import aligned_empty
from optuna_treecv.data import pad_rows
from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.plan import Node
from optuna_treecv.plan import Phase
from optuna_treecv.plan import Plan

# An estimator's own fit pads this many rows at a time, so that it needs no second copy of X.
_ROWS_AT_A_TIME = 4096


class LinearEstimator(BaseEstimator, metaclass=ABCMeta):
    """An estimator whose training is a compiled kernel and whose model is one weight vector an
    output.
    """

    fit_intercept: bool
    shuffle: bool
    random_state: Any
    coef_: np.ndarray
    intercept_: np.ndarray
    classes_: np.ndarray
    t_: int
    _state: Any  # the kernel's, ndarray of bytes; None before the first row

    # What a family says of itself.

    @property
    @abstractmethod
    def row_layout(self) -> RowLayout:
        """How TreeCV lays out the rows for this estimator."""

    @abstractmethod
    def make_kernel(self, X: np.ndarray, y: np.ndarray, n_classes: int | None) -> Any:
        """The compiled learner with this estimator's settings over padded rows."""

    def _resolve(self, n_rows: int) -> None:  # noqa: B027 (most have nothing to resolve)
        """Settle the settings that depend on the number of rows."""

    # Inside the tree.

    def make_learner(self, rows: PreparedRows) -> LinearLearner:
        """This estimator as a learner over prepared rows; raises if a parameter is wrong."""
        self._validate_params()
        settings = clone(self)
        settings._resolve(len(rows.X))
        return LinearLearner(settings, rows)

    # As an estimator.

    def _start(self) -> None:
        """Forget all rows."""
        self.t_ = 0
        self._state = None

    def _train(self, X: np.ndarray, y: np.ndarray) -> Self:
        """One pass over validated X and prepared y, shuffled if asked for; then write the
        attributes.
        """
        order = np.arange(len(y), dtype=np.uint32)
        if self.shuffle:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            random_order(seed, 0, len(y), 0, order)
        n_classes = len(self.classes_) if hasattr(self, "classes_") else None
        for begin in range(0, len(order), _ROWS_AT_A_TIME):
            part = order[begin : begin + _ROWS_AT_A_TIME]
            kernel = self.make_kernel(pad_rows(X, part, self.fit_intercept), y[part], n_classes)
            if self._state is None:
                self._state = new_state(kernel)
            elif len(self._state) != kernel.state_bytes:
                raise ValueError(
                    "average must not change between calls of partial_fit; call fit to start anew."
                )
            elif not self._state.flags.writeable:  # loaded as a memory map
                self._state = self._state.copy()
            kernel.update(self._state, 0, len(part))
        self._take_model(read_model(kernel, self._state, X.dtype), X.shape[1])
        self.t_ += len(y)
        return self

    def _take_model(self, weights: np.ndarray, n_features: int) -> None:
        """Split weights (n_outputs, width) into attributes."""
        self.coef_ = weights[:, :n_features].copy()
        self.intercept_ = (
            weights[:, n_features].copy() if self.fit_intercept else np.zeros_like(weights[:, 0])
        )

    def _types(self, first: bool) -> Any:
        """The types that X may have: a model goes on in the type it began with."""
        return [np.float64, np.float32] if first else self.coef_.dtype

    def _decision(self, X: Any) -> np.ndarray:
        """X w + intercept, (n_samples, n_outputs)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return X @ np.atleast_2d(self.coef_).T + self.intercept_


def new_state(kernel: Any) -> np.ndarray:
    """The state before the first row."""
    state = aligned_empty((kernel.state_bytes,))
    kernel.start(state)
    return state


def read_model(kernel: Any, state: np.ndarray, dtype: Any) -> np.ndarray:
    """The weights that a state stands for, (n_outputs, width)."""
    model = aligned_empty((kernel.model_bytes,))
    kernel.read_out(state, model)
    return model.view(dtype).reshape(kernel.n_outputs, -1)


class LinearLearner:
    """A linear estimator's settings bound to prepared rows; a state is one flat block of
    memory.
    """

    def __init__(self, estimator: LinearEstimator, rows: PreparedRows) -> None:
        assert rows.y is not None and rows.targets is not None
        self.rows = rows
        self._targets = rows.targets
        self.dtype = rows.X.dtype
        self._settings = estimator
        n_classes = None if rows.classes is None else len(rows.classes)
        self._kernel = estimator.make_kernel(rows.X, rows.y, n_classes)
        self.n_outputs = self._kernel.n_outputs

    def start(self) -> np.ndarray:
        return new_state(self._kernel)

    def update(self, state: np.ndarray, phase: Phase) -> None:
        if isinstance(phase, slice):
            self._kernel.update(state, phase.start, phase.stop)
        else:
            self._kernel.update_in_order(state, phase)

    def snapshot(self, state: np.ndarray) -> np.ndarray:
        copy = aligned_empty(state.shape)
        copy[:] = state
        return copy

    def outputs(self, state: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
        model = aligned_empty((self._kernel.model_bytes,))
        self._kernel.read_out(state, model)
        self._kernel.test(model, start, stop, out.view(np.uint8))

    def walk_subtree(self, plan: Plan, node: Node, state: np.ndarray, out: np.ndarray) -> int:
        n_levels = (node.n_folds - 1).bit_length() + 1
        states = aligned_empty((n_levels, len(state)))
        states[0] = state
        start, stop = plan.rows(node)
        return self._kernel.walk_subtree(
            states,
            aligned_empty((self._kernel.model_bytes,)),
            node.first,
            node.last,
            plan.n_folds,
            plan.bounds,
            np.empty(stop - start, np.uint32) if plan.random else None,
            plan.seed,
            out.view(np.uint8),
        )

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        if self.rows.classes is None:
            return outputs[:, 0]
        if method == "predict":
            return codes_of(outputs)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def estimator(self, state: np.ndarray) -> LinearEstimator | None:
        weights = read_model(self._kernel, state, self.dtype)
        if not np.all(np.isfinite(weights)):
            return None
        fitted = clone(self._settings)
        fitted.n_features_in_ = self.rows.n_features
        if self.rows.classes is not None:
            fitted.classes_ = self.rows.classes
        fitted._resolve(len(self.rows.X))
        fitted.t_ = self._kernel.n_seen(state)
        fitted._state = self.snapshot(state)
        fitted._take_model(weights, self.rows.n_features)
        return fitted

    def score_rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        X, y = self.rows.X[start:stop, : self.rows.n_features], self._targets[start:stop]
        return X, y if self.rows.classes is None else self.rows.classes[y]


def codes_of(decision: np.ndarray) -> np.ndarray:
    """Class codes of decision values (n_samples, n_outputs): above 0 the second of two classes,
    or the largest's.
    """
    if decision.shape[1] == 1:
        return (decision[:, 0] > 0).astype(np.int32)
    return decision.argmax(axis=1).astype(np.int32)
