"""Estimators whose training is a compiled kernel: the estimator's side of it, and the learner that
the tree walks.
"""

from __future__ import annotations

from abc import ABCMeta
from abc import abstractmethod
from copy import copy
from functools import cache
from typing import Any
from typing import cast
from typing import Protocol
from typing import Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils import Tags

from optuna_treecv._kernels.lanes import MOST
from optuna_treecv._kernels.lanes import VECTOR_BYTES
from optuna_treecv._kernels.order import random_order
from optuna_treecv._kernels.tree import Kept
from optuna_treecv._kernels.tree import Kernel
from optuna_treecv._kernels.tree import Memory
from optuna_treecv._kernels.tree import Subtree
from optuna_treecv.data import aligned_bytes
from optuna_treecv.data import aligned_empty
from optuna_treecv.data import pad_rows
from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.data import SparseRows
from optuna_treecv.data import take_rows
from optuna_treecv.plan import Node
from optuna_treecv.plan import Phase
from optuna_treecv.plan import Plan
from optuna_treecv.plan import Rows
from optuna_treecv.plan import rows_of

# An estimator's own fit pads this many rows at a time, so that it needs no second copy of X.
_ROWS_AT_A_TIME = 4096

#: What kernels take for "more rows than there will ever be".
MOST_ROWS = 2**62


class CompiledEstimator(BaseEstimator, metaclass=ABCMeta):
    """An estimator whose training is a compiled kernel."""

    draws = False  # whether training, beside its order, depends on random_state
    shuffle: bool
    random_state: Any
    classes_: np.ndarray
    t_: int
    _state: Any  # the kernel's, ndarray of bytes; None before the first row
    _seed: int  # of what the kernel draws
    _trained_as: tuple[Any, ...]  # the parameters that a state depends on in size or meaning
    _fixed_parameters: tuple[str, ...] = ()  # their names
    _outputs: Any  # (X) -> what all predictions of rows follow from; if a family has it

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """scikit-learn's, which reads the signature anew for each of a trial's several copies."""
        return super()._get_param_names()

    # What a family says of itself.

    @property
    @abstractmethod
    def row_layout(self) -> RowLayout:
        """How TreeCV lays out the rows for this estimator."""

    @abstractmethod
    def make_kernel(
        self, X: np.ndarray | SparseRows, y: np.ndarray | None, n_classes: int | None
    ) -> Any:
        """The compiled learner with this estimator's settings over padded rows."""

    @property
    def lane_parameters(self) -> tuple[str, ...]:
        """The parameters in which estimators may differ that are trained side by side."""
        return ()

    @property
    def rewrites_often(self) -> bool:
        """Whether it shrinks its weights so fast that the whole vector is rewritten every few
        hundred rows. Among wide sparse lanes, where each rewriting reads the weights of all, that
        costs more than lanes save.
        """
        return False

    def _make_lanes(
        self,
        X: np.ndarray | SparseRows,
        y: np.ndarray | None,
        n_classes: int | None,
        estimators: list[Any],
    ) -> Any:
        """The compiled learner for several estimators that are like this one but for the values of
        their ``lane_parameters``.
        """
        raise NotImplementedError

    @abstractmethod
    def _take_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        """Write the fitted attributes from a kernel's model (bytes), for rows of ``dtype``."""

    @abstractmethod
    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """The kernel's outputs (rows, n_outputs) -> what a loss or predict asks for."""

    def _settle(self, X: Any, seed: int | None) -> None:
        """Settle, before the first row, what depends on all rows or on chance; ``seed`` is
        TreeCV's for ``random_state=None``.
        """
        if self.random_state is None and seed is not None:
            self._seed = seed
        else:
            self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def bound(self, n_seen: int) -> frozenset[str]:
        """The parameters that have influenced a state of ``n_seen`` rows.

        Two estimators for which these are the same names, with the same values, have the same
        state after the same rows, bit for bit. The rows are given: ``fit_intercept`` is a column
        of theirs, ``shuffle`` an order.

        Parameters
        ----------
        n_seen : int
            Rows fed.

        Returns
        -------
        frozenset of str
            Names of parameters; too many perhaps, never too few.
        """
        if n_seen == 0:
            return frozenset(self._fixed_parameters)
        silent = {"fit_intercept", "shuffle"} | (set() if self.draws else {"random_state"})
        return frozenset(self._get_param_names()) - silent

    def breakpoints(self) -> tuple[int, ...]:
        """The numbers of rows after which ``bound`` grows, rising.

        Returns
        -------
        tuple of int
            Empty where all parameters act from the first row on.
        """
        return ()

    @property
    def tracked(self) -> str | None:
        """The parameter whose values are tracked for which a state is the same: the kernel has
        ``track`` and ``domain``, and read-out alone may depend on it otherwise. None if there is
        none.
        """
        return None

    # Inside the tree.

    def make_learner(self, rows: PreparedRows, seed: int) -> CompiledLearner:
        """This estimator as a learner over prepared rows; raises if a parameter is wrong."""
        self._validate_params()
        settings = clone(self)
        settings.n_features_in_ = rows.n_features
        settings._settle(rows.X, seed)
        return CompiledLearner(settings, rows)

    # As an estimator.

    def _start(self, X: Any) -> None:
        """Forget all rows; X are the first ones to come."""
        self.t_ = 0
        self._state = None
        self._settle(X, None)
        self._trained_as = self._fixed()

    def _fixed(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fixed_parameters)

    def _check_unchanged(self) -> None:
        """Refuse to go on with a state that means something else under the present parameters."""
        if self._fixed() != self._trained_as:
            names = self._fixed_parameters
            listed = " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]
            raise ValueError(
                f"{listed} must not change between calls of partial_fit; call fit to start anew."
            )

    def _train(self, X: Any, y: np.ndarray | None) -> Self:
        """One pass over validated X and prepared y, shuffled if asked for; then write the
        attributes.
        """
        n_rows = X.shape[0]
        order = np.arange(n_rows, dtype=np.uint32)
        if self.shuffle:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            random_order(seed, 0, n_rows, 0, order)
        n_classes = len(self.classes_) if hasattr(self, "classes_") else None
        for begin in range(0, n_rows, _ROWS_AT_A_TIME):
            part = order[begin : begin + _ROWS_AT_A_TIME]
            rows = pad_rows(X, part, self.row_layout.intercept)
            kernel = self.make_kernel(rows, None if y is None else y[part], n_classes)
            if self._state is None:
                self._state = new_state(kernel)
            elif not self._state.flags.writeable:  # loaded as a memory map
                self._state = self._state.copy()
            kernel.update(self._state, 0, len(part))
        self._take_model(kernel, read_model(kernel, self._state), X.dtype, X.shape[1])
        self.t_ += n_rows
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.row_layout.sparse
        return tags


def new_state(kernel: Kernel) -> np.ndarray:
    """The state before the first row."""
    state = aligned_bytes(kernel.state_bytes)
    kernel.start(state)
    return state


def read_model(kernel: Kernel, state: np.ndarray) -> np.ndarray:
    """The model that a state stands for, in bytes."""
    model = aligned_bytes(kernel.model_bytes)
    kernel.read_out(state, model)
    return model


def _subtree(plan: Plan, node: Node) -> Subtree:
    return Subtree(node.first, node.last, plan.n_folds, plan.bounds, plan.random, plan.seed)


def _numbers(rows: Rows) -> np.ndarray:
    """The numbers of some rows."""
    return np.arange(rows.start, rows.stop, dtype=np.uint32) if isinstance(rows, slice) else rows


class _Tracker(Protocol):
    """A kernel whose states can keep the values of ``tracked`` for which they hold."""

    def track(self) -> None: ...

    def domain_of(self, state: np.ndarray) -> tuple[float, float]: ...

    def domain(self, states: np.ndarray, ends: np.ndarray) -> None: ...


class CompiledLearner:
    """A compiled estimator's settings bound to prepared rows; a state is one flat block of
    memory.
    """

    def __init__(self, estimator: CompiledEstimator, rows: PreparedRows) -> None:
        self.rows = rows
        self.dtype = rows.X.dtype
        self._settings = estimator
        self._kernel = self._make_kernel()
        self.n_outputs = self._kernel.n_outputs
        self.kind = type(estimator)
        self.tracked = estimator.tracked
        is_slow = estimator.rewrites_often and isinstance(rows.X, SparseRows)
        self.lane_parameters = () if is_slow else estimator.lane_parameters
        self.breakpoints = estimator.breakpoints()
        self.state_bytes: int = self._kernel.state_bytes

    def _make_kernel(self) -> Kernel:
        rows = self.rows
        n_classes = None if rows.classes is None else len(rows.classes)
        return self._settings.make_kernel(rows.X, rows.y, n_classes)

    @property
    def _tracker(self) -> _Tracker:
        return cast(_Tracker, self._kernel)

    def start(self) -> np.ndarray:
        return new_state(self._kernel)

    def update(self, state: np.ndarray, phase: Phase | Rows) -> None:
        rows = rows_of(phase)
        if isinstance(rows, slice):
            self._kernel.update(state, rows.start, rows.stop)
        else:
            self._kernel.update_in_order(state, rows)

    @property
    def trains_pairs(self) -> bool:
        return self._kernel.trains_pairs

    def update_both(
        self, first: np.ndarray, phase: Phase, second: np.ndarray, second_phase: Phase
    ) -> None:
        rows, second_rows = phase.rows, second_phase.rows
        if isinstance(rows, slice) and isinstance(second_rows, slice):
            begins, order = (phase.start, second_phase.start), None
        else:
            order = np.concatenate([_numbers(rows), _numbers(second_rows)])
            begins = 0, phase.n_rows
        self._kernel.update_both(
            first,
            begins[0],
            begins[0] + phase.n_rows,
            second,
            begins[1],
            begins[1] + second_phase.n_rows,
            order,
        )

    def settings_at(self, n_seen: int) -> dict[str, Any]:
        """The parameters that have acted on a state of so many rows, as they were settled."""
        names = self._settings.bound(n_seen)
        settings = {name: getattr(self._settings, name) for name in names}
        if "random_state" in settings:
            settings["random_state"] = self._settings._seed
        return settings

    def tracking(self) -> CompiledLearner:
        """The same learner, whose states keep the values of ``tracked`` for which they hold."""
        if self.tracked is None:
            return self
        learner = CompiledLearner(self._settings, self.rows)
        learner._tracker.track()
        return learner

    def update_part(
        self,
        state: np.ndarray,
        phase: Phase,
        begin: int,
        end: int,
        counts: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Train on the rows begin..end-1 of a phase; with ``counts`` (int64, rising) return the
        states after so many rows of the phase, (n_counts, state_bytes).
        """
        rows = phase.rows
        if counts is None:
            if isinstance(rows, slice):
                self._kernel.update(state, phase.start + begin, phase.start + end)
            else:
                self._kernel.update_in_order(state, rows[begin:end])
            return None
        states = aligned_empty((len(counts), self.state_bytes))
        if isinstance(rows, slice):
            start = phase.start
            marks = counts + start
            self._kernel.update_keeping(state, start + begin, start + end, None, marks, states)
        else:
            self._kernel.update_keeping(state, begin, end, rows, counts, states)
        return states

    def domain_of(self, state: np.ndarray) -> tuple[float, float]:
        """The smallest and the largest value of ``tracked`` for which a state is the same."""
        return self._tracker.domain_of(state)

    def domain(self, states: np.ndarray) -> np.ndarray:
        """The same of many states, each a row: (n_states, 2)."""
        ends = np.empty((len(states), 2))
        self._tracker.domain(states, ends)
        return ends

    @property
    def row_bytes(self) -> float:
        """What training on a row reads of it."""
        X = self.rows.X
        n_bytes = (
            len(X.values) * (X.dtype.itemsize + 4) / len(X)
            if isinstance(X, SparseRows)
            else X.shape[1] * X.dtype.itemsize
        )
        return 1 + n_bytes * self.n_outputs

    @property
    def rows_a_copy(self) -> int:
        """Rows whose training takes about as long as copying a state."""
        return 1 + int(self.state_bytes / self.row_bytes)

    def snapshot(self, state: np.ndarray) -> np.ndarray:
        copy = aligned_bytes(len(state))
        copy[:] = state
        return copy

    def outputs(self, state: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
        model = aligned_bytes(self._kernel.model_bytes)
        self._kernel.test(state, model, start, stop, out.view(np.uint8))

    def walk_subtree(self, plan: Plan, node: Node, state: np.ndarray, out: np.ndarray) -> int:
        return self._walk(plan, node, state, out)

    def walk_keeping(
        self,
        plan: Plan,
        node: Node,
        state: np.ndarray,
        out: np.ndarray,
        kept: np.ndarray,
        least_folds: int,
        trails: dict[int, np.ndarray],
    ) -> tuple[int, np.ndarray]:
        """The same, and in ``kept`` (n_nodes, state_bytes) the states of all nodes of at least so
        many folds, parents first, left before right.

        Also returned are the states on the way to some of these nodes: by the node's number
        ``trails`` says after how many rows of its phase (int64, rising). They lie one behind the
        other, (n_states, state_bytes).
        """
        begins = np.zeros(len(kept) + 1, np.int64)
        for i, marks in trails.items():
            begins[i + 1] = len(marks)
        np.cumsum(begins, out=begins)
        marks = np.concatenate([*trails.values(), np.empty(0, np.int64)])
        passed = aligned_empty((len(marks), self.state_bytes))
        where = Kept(kept, least_folds, begins, marks, passed)
        return self._walk(plan, node, state, out, where), passed

    def _walk(
        self,
        plan: Plan,
        node: Node,
        state: np.ndarray,
        out: np.ndarray,
        kept: Kept | None = None,
    ) -> int:
        n_levels = (node.n_folds - 1).bit_length() + 1
        states = aligned_empty((n_levels, len(state)))
        states[0] = state
        start, stop = plan.rows(node)
        kernel = self._kernel
        memory = Memory(
            states,
            aligned_bytes(kernel.model_bytes),
            aligned_bytes(kernel.log_bytes) if kernel.log_bytes else None,
            np.empty(stop - start, np.uint32) if plan.random else None,
        )
        return kernel.walk_subtree(_subtree(plan, node), memory, out.view(np.uint8), kept)

    def test_leaves(self, plan: Plan, node: Node, kept: np.ndarray, out: np.ndarray) -> int:
        """Test the folds of a node by the states of all nodes there, as ``walk_keeping`` leaves
        them; the row updates behind them.
        """
        model = aligned_bytes(self._kernel.model_bytes)
        return self._kernel.test_leaves(_subtree(plan, node), kept, model, out.view(np.uint8))

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        return self._settings.respond(outputs, method)

    @property
    def can_answer(self) -> bool:
        """Whether ``answering`` may be asked for."""
        return hasattr(self.kind, "_outputs")

    def answering(self, outputs: np.ndarray) -> CompiledEstimator:
        stand_in = copy(self._settings)
        if self.rows.classes is not None:
            stand_in.classes_ = self.rows.classes
        stand_in._outputs = lambda X: outputs.copy()  # a metric may write into it
        return stand_in

    def estimator(self, state: np.ndarray) -> CompiledEstimator | None:
        model = read_model(self._kernel, state)
        if not np.all(np.isfinite(model.view(self._kernel.model_type))):
            return None
        fitted = clone(self._settings)
        parameters = fitted.get_params()
        for name, value in vars(self._settings).items():  # what _settle has written
            if name not in parameters:
                setattr(fitted, name, value)
        fitted._trained_as = fitted._fixed()
        if self.rows.classes is not None:
            fitted.classes_ = self.rows.classes
        fitted.t_ = self._kernel.n_seen(state)
        fitted._state = self.snapshot(state)
        fitted._take_model(self._kernel, model, self.dtype, self.rows.n_features)
        return fitted

    def score_rows(self, start: int, stop: int) -> tuple[Any, np.ndarray | None]:
        rows, targets = self.rows, self.rows.targets
        if isinstance(rows.X, SparseRows):
            X = rows.X.as_given(start, stop, rows.n_features)
        else:
            X = take_rows(rows.X, slice(start, stop))[:, : rows.n_features]
        if targets is None:
            return X, None
        y = targets[start:stop]
        return X, y if rows.classes is None else rows.classes[y]


# States of lanes take no more than this: a walk works in several of them, and caches of the third
# level hold 32 MB.
_BYTES_OF_LANES = 2**24


class Lanes(CompiledLearner):
    """Learners side by side in one reading of the rows; each gets the bits it gets alone.

    They are of one kind and differ in its ``lane_parameters`` only. Outputs are those of all rows
    for the first learner, then for the second: (n_learners * n_rows, n_outputs).
    """

    def __init__(self, learners: list[CompiledLearner]) -> None:
        self._all = [learner._settings for learner in learners]
        super().__init__(self._all[0], learners[0].rows)

    def _make_kernel(self) -> Kernel:
        n_classes = None if self.rows.classes is None else len(self.rows.classes)
        return self._settings._make_lanes(self.rows.X, self.rows.y, n_classes, self._all)

    @staticmethod
    def most(learner: CompiledLearner) -> int:
        """How many learners like this one are best walked at once; 0 if one is too large."""
        a_lane = learner.state_bytes // learner.n_outputs
        n_lanes = max(VECTOR_BYTES // learner.dtype.itemsize, _BYTES_OF_LANES // a_lane)
        return min(MOST, n_lanes) // learner.n_outputs

    @staticmethod
    def least(learner: CompiledLearner) -> int:
        """From how many on they are faster than one after the other: lanes fill whole vectors."""
        return 1 + 3 * VECTOR_BYTES // (8 * learner.dtype.itemsize * learner.n_outputs)
