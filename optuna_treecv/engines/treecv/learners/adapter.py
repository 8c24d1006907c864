"""Learners for scikit-learn estimators with ``partial_fit``, and for Pipelines of them."""

from collections.abc import Generator
from contextlib import contextmanager
from contextlib import nullcontext
import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB

from optuna_treecv.engines.treecv.learner import Part
from optuna_treecv.estimators.base import in_columns
from optuna_treecv.estimators.base import is_divergence
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import lay_out
from optuna_treecv.estimators.base import METHOD_NAMES
from optuna_treecv.estimators.base import seeded
from optuna_treecv.estimators.incremental import keeping_rows
from optuna_treecv.estimators.incremental import partial_fit
from optuna_treecv.estimators.incremental import takes_classes
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.checks import predicted_codes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.partition import cut
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.partition import Rows
from optuna_treecv.rows.partition import rows_of


@dataclass
class State:
    """The state of an ``Adapter``: an estimator on which ``partial_fit`` is called."""

    estimator: Any  # None after it has diverged
    is_fresh: bool = True  # whether no row of positive weight has been trained on yet


class Adapter:
    """The learner of a scikit-learn estimator, whose rows are not converted for kernels.

    For each training phase, ``partial_fit`` is called once with the new rows. In a Pipeline, it is
    called on each step. In each further epoch, ``partial_fit`` of the last step is called with as
    many replayed rows. A phase is never divided, because scikit-learn's SGD would then give
    different models. Exceptions are rows on disk, for which ``partial_fit`` is called once per
    piece that is read, and passes in which rows are predicted before they are trained on. The
    first call passes all classes. A snapshot is a deep copy.

    Parameters
    ----------
    estimator : estimator that passes ``check_incremental``
        It is cloned, and ``seed`` replaces each ``random_state=None`` of the clone (``seed=None``
        for River).
    rows : PreparedRows
    response_methods : tuple of str
        The response methods whose columns ``outputs`` writes, as in ``make_learner``.
    seed : int
        An unsigned 32-bit integer.
    before : FittedSteps or None
        The preprocessing that has been applied to ``rows``.
    """

    dtype = np.dtype(np.float64)
    phases_may_be_cut = False
    trains_pairs = False
    _overflow: tuple[type[Exception], ...] = ()  # exceptions that mean that a model has diverged

    def __init__(
        self,
        estimator: Any,
        rows: PreparedRows,
        response_methods: tuple[str, ...],
        seed: int,
        before: Any = None,
    ) -> None:
        self.rows = rows
        self.before = before
        # Whether ``estimator`` returns a whole Pipeline, which predicts on raw rows.
        self._takes_raw_rows = before is not None
        self.response_methods = response_methods
        self.fresh = seeded(clone(estimator), seed)
        self._like: Any = None  # a fitted estimator, which ``with_numbers`` copies
        n_targets = count_targets(rows.targets)
        self._columns, self.n_outputs = lay_out(response_methods, rows.classes, n_targets)

    def start(self) -> State:
        return State(clone(self.fresh))

    def update(self, state: State, phase: Phase | Rows) -> None:
        rows = rows_of(phase)
        n_epochs = phase.n_epochs if isinstance(phase, Phase) else 1
        if n_epochs == 1:
            for part in self.rows.in_blocks(rows):
                self._train(state, part)
            return
        assert isinstance(rows, np.ndarray)
        by_new_row = rows.reshape(-1, n_epochs)
        self._train(state, by_new_row[:, 0])
        for replays in by_new_row[:, 1:].reshape(n_epochs - 1, -1):
            self.replay(state, replays)

    def replay(self, state: State, rows: Rows) -> None:
        self._train(state, rows, are_new=False)

    def update_part(self, part: Part) -> None:
        """Call ``partial_fit`` with one piece of a phase."""
        self._train(part.state, cut(part.phase.rows, part.begin, part.end))

    def _train(self, state: State, rows: Rows, are_new: bool = True) -> None:
        """Call ``partial_fit`` once; transformers of a Pipeline are only trained on new rows."""
        if state.estimator is None:
            return
        X = self._take(rows)
        y = None if self.rows.y is None else self.rows.y[rows]
        weights = None if self.rows.weights is None else self.rows.weights[rows]
        needs_classes = state.is_fresh and self.rows.classes is not None
        needs_classes = needs_classes and takes_classes(state.estimator)
        classes = {"classes": self.rows.classes} if needs_classes else {}
        with self._naming():
            try:
                with keeping_rows(state.estimator):
                    partial_fit(state.estimator, X, y, weights, are_new, **classes)
                state.is_fresh &= weights is not None and not np.any(weights)
            except self._overflow:
                state.estimator = None
            except ValueError as error:
                if not is_divergence(error):
                    raise
                state.estimator = None
        trained = last_step(state.estimator)
        variances = getattr(trained, "var_", 0.0) if isinstance(trained, GaussianNB) else 0.0
        if not np.all(np.isfinite(variances)):
            state.estimator = None  # otherwise it would silently predict the first class

    def snapshot(self, state: State) -> State:
        return State(copy.deepcopy(state.estimator), state.is_fresh)

    def outputs(self, state: State, start: int, stop: int, out: np.ndarray) -> None:
        for part in self.rows.in_blocks(slice(start, stop)):
            self._write_outputs(state, part, out[part])

    def test_then_train(self, state: State, rows: Rows, out: np.ndarray) -> None:
        done = 0
        for part in self.rows.in_blocks(rows):
            n_rows = len(self.rows.order[part])
            of_part = out[done : done + n_rows]
            if state.is_fresh:
                of_part[:] = np.nan  # an untrained estimator cannot predict
            else:
                self._write_outputs(state, part, of_part)
            self._train(state, part)
            done += n_rows

    def _write_outputs(self, state: State, rows: Rows, out: np.ndarray) -> None:
        """Write a model's outputs for rows to ``out``, of shape (len(rows), n_outputs)."""
        if state.estimator is None:
            out[:] = np.nan
            return
        X = self._take(rows)
        for method, columns in self._columns.items():
            try:
                with self._naming():
                    response = self._response(state.estimator, X, method)
            except self._overflow:
                out[:] = np.nan
                return
            n_targets = count_targets(self.rows.targets)
            out[:, columns] = in_columns(
                response, method, state.estimator, self.rows.classes, n_targets
            )

    def _take(self, rows: Rows) -> Any:
        """Return rows of X; a data frame is copied, because steps with copy=False overwrite it."""
        X = take_rows(self.rows.X, rows)
        return X.copy() if hasattr(X, "iloc") else X

    @contextmanager
    def _naming(self) -> Generator[None]:
        """Return a context that adds the position of an invalid entry of X to errors."""
        of_steps = nullcontext() if self.before is None else self.before.naming()
        with of_steps, naming_entries(self.rows.X, self.rows.order):
            yield

    def _response(self, estimator: Any, X: Any, method: str) -> np.ndarray:
        """Return an estimator's predictions for rows, with class codes instead of labels."""
        response = getattr(estimator, METHOD_NAMES.get(method, method))(X)
        if method == "distance":
            return response.min(axis=1)
        if method == "predict" and self.rows.classes is not None:
            return predicted_codes(response, self.rows.classes)
        return response

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        response = outputs[:, self._columns[method]]
        return response[:, 0] if response.shape[1] == 1 else response

    def without_steps(self) -> "Adapter":
        """Return a copy of the learner whose fitted estimators take preprocessed rows."""
        other = copy.copy(self)
        other._takes_raw_rows = False
        return other

    def estimator(self, state: State) -> Any:
        if self.before is None or not self._takes_raw_rows or state.estimator is None:
            return state.estimator
        return self.before.fitted(state.estimator)

    def numbers(self, state: State) -> np.ndarray:
        """Return the coefficients of a linear model, flattened, followed by its intercepts."""
        self._like = state.estimator or self._like
        if state.estimator is None:
            return np.full(1, np.nan)
        parts = state.estimator.coef_, state.estimator.intercept_
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])

    def with_numbers(self, numbers: np.ndarray) -> Any:
        """Return a fitted linear model with the given coefficients and intercepts."""
        fitted = copy.deepcopy(self._like)
        coef, intercept = fitted.coef_, fitted.intercept_
        fitted.coef_ = numbers[: np.size(coef)].reshape(np.shape(coef)).astype(coef.dtype)
        fitted.intercept_ = numbers[np.size(coef) :].reshape(np.shape(intercept))
        return fitted

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        if self.before is None or not self._takes_raw_rows:
            X = self._take(slice(start, stop))
        else:
            X = take_rows(self.before.X, self.rows.order[start:stop])
        return X, None if self.rows.y is None else self.rows.y[start:stop]
