"""A learner that looks up models in a cache before it trains them.

The walk treats it like any other learner, but updating a state only records the rows. A model is
trained when its outputs are requested. Training then starts from the cached model with the longest
prefix of these rows, and the intermediate models are cached as well. Several trials therefore
train the models of their common prefixes only once.
"""

from bisect import bisect_left
from collections.abc import Generator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.caching.caches import AnyCache
from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.prefix import count_nodes
from optuna_treecv.caching.prefix import plan_key
from optuna_treecv.caching.prefix import Prefix
from optuna_treecv.caching.prefix import prefixes_below
from optuna_treecv.engines.treecv.learner import Part
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import MOST_ROWS
from optuna_treecv.engines.treecv.learners.compiled import settings_key
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.partition import cut
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.partition import Rows

# A subtree is walked in one call only if its states fill at most this fraction of the cache.
_CACHE_PER_CALL = 1 / 16

# A subtree is walked in one call only if it reads at most this many bytes of rows, which takes
# about a second.
_BYTES_PER_CALL = 2**33


@dataclass(eq=False, slots=True)
class LazyModel:
    """A model that is trained on a prefix of the rows when its state is requested.

    Attributes
    ----------
    prefix : Prefix
        The rows, in the order of training.
    before : LazyModel or None
        The model from which training starts; None for an untrained model.
    begin : int
        The position in the prefix's last phase at which training continues, because ``before`` was
        trained up to it.
    state : ndarray or None
        The state, or None until it is requested. It may be shared with the cache, so it must not
        be modified.
    """

    prefix: Prefix
    before: "LazyModel | None" = None
    begin: int = 0
    state: np.ndarray | None = None


@dataclass(eq=False, slots=True)
class Branch:
    """The state of a walk: a reference to the model of the current node."""

    model: LazyModel


class SharedLearner:
    """A compiled learner that shares its models through a cache.

    Parameters
    ----------
    learner : CompiledLearner
    cache : ModelCache or StoredModelCache
    root : Prefix
        The empty prefix of the prepared rows.

    Attributes
    ----------
    n_updates : int
        The number of row updates so far. Unlike the count of the walk, it excludes updates that
        were saved by cached models.
    """

    phases_may_be_cut = True

    def __init__(self, learner: CompiledLearner, cache: AnyCache, root: Prefix) -> None:
        self.rows, self.dtype, self.n_outputs = learner.rows, learner.dtype, learner.n_outputs
        self.respond, self.score_rows = learner.respond, learner.score_rows
        self.has_outputs = learner.has_outputs
        self.n_updates = 0
        self._learner = learner
        self._cache = cache
        self._root = root
        self._breakpoints = learner.breakpoints
        self._planned: tuple[Partition, bytes] | None = None
        self._count_lock = Lock()

    @cached_property
    def _settings(self) -> list[bytes]:
        """The keys of the influential parameters up to each breakpoint, and after the last one.

        They are computed lazily, because trials with stored results do not need them.
        """
        ends = *self._breakpoints, MOST_ROWS
        return [settings_key(self._learner, n_seen) for n_seen in ends]

    # --- The learner protocol of the walk ---

    def start(self) -> Branch:
        return Branch(LazyModel(self._root))

    def snapshot(self, state: Branch) -> Branch:
        return Branch(state.model)

    def update(self, state: Branch, phase: Phase | Rows) -> None:
        """Record a phase; divide it at each breakpoint, where a parameter begins to matter."""
        assert isinstance(phase, Phase)  # there are no keys for rows outside a phase
        model = state.model
        prefix, begin = model.prefix, 0
        for n_seen in self._breakpoints:
            if prefix.n_seen < n_seen < prefix.n_seen + phase.n_updates:
                end = n_seen - prefix.n_seen
                model = LazyModel(prefix.feed(phase, end), model, begin)
                begin = end
        state.model = LazyModel(prefix.feed(phase, phase.n_updates), model, begin)

    def outputs(self, state: Branch, start: int, stop: int, out: np.ndarray) -> None:
        self._learner.outputs(self._state(state.model), start, stop, out)

    def estimator(self, state: Branch) -> Any:
        return self._learner.estimator(self._state(state.model))

    def test_phase(
        self, state: Branch, phase: Phase, rows: Rows, ends: Sequence[int], out: np.ndarray
    ) -> Generator[int]:
        """Test a model on each row of a phase just before training on it; reuse cached outputs.

        Like ``walk.test_then_train``, it yields after each row count in ``ends``, when ``out`` has
        the outputs for the rows so far. ``rows`` are the rows of the phase in training order.

        The outputs of the longest cached beginning of the phase are reused. Outputs may depend on
        all parameters even if the state does not, so their key contains all parameters. They are
        cached together with the state after these rows.
        """
        before, size = state.model, self._learner.state_bytes
        self.update(state, phase)
        keys = {end: self._outputs_key(before.prefix.feed(phase, end), out[:end]) for end in ends}
        if phase.n_updates * self._learner.row_bytes < _MIN_PHASE_BYTES:
            keys.clear()
        finds = map(self._cache.find, reversed(keys.values()))  # the longest beginning first
        cached = next((array for array in finds if array is not None), None)
        done = 0 if cached is None else (len(cached) - size) // out[:1].nbytes
        if cached is not None:
            out[:done] = cached[:-size].view(out.dtype).reshape(out[:done].shape)
        model = self._learner.snapshot(self._state(before) if cached is None else cached[-size:])
        begin, seconds, is_whole = done, 0.0, True
        try:
            for end in ends:
                if end > done:
                    began, is_whole = perf_counter(), False
                    self._learner.test_then_train(model, cut(rows, begin, end), out[begin:end])
                    seconds += perf_counter() - began
                    self._count(end - begin)
                    begin, is_whole = end, True
                if end == phase.n_updates:
                    state.model.state = model
                yield end
        finally:  # if the walk is stopped early, a later one can resume from here
            if keys and begin > done and is_whole:  # unless a signal interrupted the training
                outputs = out[:begin].reshape(-1).view(np.uint8)
                array = _freeze(np.concatenate((outputs, model)))
                self._cache.keep(keys[begin], array, seconds)

    def _outputs_key(self, prefix: Prefix, outputs: np.ndarray) -> Key:
        n_bytes = outputs.nbytes + self._learner.state_bytes
        return Key(prefix.name, b"", self._settings[-1], b"outputs before they act", n_bytes)

    def walk_subtree(self, plan: Partition, node: Node, state: Branch, out: np.ndarray) -> int:
        """Test the folds of a node; return the number of row updates that the tree below it needs.

        The models of nodes with at least ``min_cached_folds`` folds are cached. If none of those
        below this node is cached yet, and if ``_may_walk_in_one_call`` returns True, one call of
        the kernel trains all models below this node. The models of smaller nodes are not cached,
        only the outputs of all folds below them.
        """
        if node.n_folds == 1:
            self.outputs(state, *plan.rows(node), out)
            return 0
        if self._may_walk_in_one_call(plan, node, state.model.prefix):
            n_updates = self._walk_in_one_call(plan, node, state, out)
            if n_updates is not None:
                return n_updates
        n_updates = 0
        for child in plan.split(node):
            branch = self.snapshot(state)
            phase = plan.phase(node, child)
            self.update(branch, phase)
            n_updates += phase.n_updates + self.walk_subtree(plan, child, branch, out)
        return n_updates

    def _may_walk_in_one_call(self, plan: Partition, node: Node, prefix: Prefix) -> bool:
        """Return whether a subtree may be walked in one call of the kernel.

        It may be walked in one call if none of its models will be cached. Otherwise its models
        must fit into the cache, the walk must be short, and no breakpoint may lie within the
        training of its models.
        """
        start, stop = plan.rows(node)
        n_cached = count_nodes(node.n_folds, min_cached_folds(plan, self._learner.row_bytes))
        n_total = plan.n_epochs * plan.n_rows
        n_updates = plan.n_epochs * (stop - start) * node.n_folds.bit_length()
        return n_cached <= 1 or (
            n_cached * self._learner.state_bytes <= self._cache.max_bytes * _CACHE_PER_CALL
            and n_updates * self._learner.row_bytes <= _BYTES_PER_CALL
            and not any(prefix.n_seen < n_seen < n_total for n_seen in self._breakpoints)
        )

    def _walk_in_one_call(
        self, plan: Partition, node: Node, state: Branch, out: np.ndarray
    ) -> int | None:
        """Walk a subtree in one call of the kernel, unless some of its models are already cached.

        Return the number of row updates that the subtree needs, or None if it was not walked.

        To prevent deadlocks, a thread that has claimed a subtree may wait for the claim of a
        model, but a thread that has claimed a model never waits for a subtree.
        """
        start, stop = plan.rows(node)
        outputs = ArrayThenCount(out[start:stop].shape, out.dtype)
        name, folds = state.model.prefix.name, self._plan_key(plan)
        key = Key(name, folds, self._settings[-1], b"outputs below", len(outputs.memory))
        memory = self._cache.claim(key)
        if memory is not None:
            outputs.take(memory)
            out[start:stop] = outputs.array
            return outputs.n_updates
        try:
            min_folds = min_cached_folds(plan, self._learner.row_bytes)
            n_cached = max(1, count_nodes(node.n_folds, min_folds))
            prefixes = prefixes_below(state.model.prefix, plan, node, min_folds)
            keys = {i: self._key(prefix) for i, prefix in prefixes.items()}
            if any(map(self._cache.has, keys.values())):
                return None
            model = self._state(state.model)
            began = perf_counter()
            states = aligned_empty((n_cached, self._learner.state_bytes))
            n_updates = self._learner.walk_subtree(
                plan, node, model, out, states, min(min_folds, node.n_folds)
            )
            seconds = perf_counter() - began
            self._count(n_updates)
            if keys:
                costs = [seconds * prefix.end / n_updates for prefix in prefixes.values()]
                self._cache.keep_all(keys, _freeze(states), costs)
            if node != plan.root:
                outputs.array[:] = out[start:stop]
                outputs.n_updates = n_updates
                self._cache.keep(key, _freeze(outputs.memory), seconds)
            return n_updates
        finally:
            self._cache.release(key)

    def _plan_key(self, plan: Partition) -> bytes:
        planned = self._planned
        if planned is None or planned[0] is not plan:
            planned = self._planned = plan, plan_key(plan)
        return planned[1]

    # --- Models ---

    def _state(self, model: LazyModel) -> np.ndarray:
        """Return the state of a model: from the cache, or trained from its predecessor's state."""
        state = model.state
        if state is None:
            if model.before is None:
                state = self._learner.start()
            else:
                key = self._key(model.prefix)
                state = self._cache.find(key)
                if state is None:
                    return self._train_model(model, model.before, key)
            model.state = state  # never changed again: branches in other threads share this model
        return state

    def _train_model(self, model: LazyModel, before: LazyModel, key: Key) -> np.ndarray:
        """Train a model on its last phase and cache it, or wait for the thread that does so."""
        base = self._state(before)
        # Claimed only after ``base`` is available, because the owner of a claim must not wait.
        state = self._cache.claim(key)
        if state is not None:
            model.state = state
            return state
        try:
            state = model.state
            if state is None:  # another thread may have trained it, and the cache may be full
                state = self._learner.snapshot(base)
                prefix, began = model.prefix, perf_counter()
                self._learner.update_part(Part(state, prefix.phase, model.begin, prefix.end))
                seconds = perf_counter() - began
                self._count(prefix.end - model.begin)
                self._cache.keep(key, _freeze(state), seconds)
                model.state = state
            return state
        finally:
            self._cache.release(key)

    def _count(self, n_updates: int) -> None:
        with self._count_lock:
            self.n_updates += n_updates

    def _key(self, prefix: Prefix) -> Key:
        settings = self._settings[bisect_left(self._breakpoints, prefix.n_seen)]
        return Key(prefix.name, b"", settings, b"model", self._learner.state_bytes)


def _freeze(array: np.ndarray) -> np.ndarray:
    """Make an array read-only, because it will be shared, and return it."""
    array.flags.writeable = False
    return array


# ``test_phase`` and ``_walk_in_one_call`` cache a model only if its training phase reads at least
# this many bytes of rows. Looking up and caching models then takes at most a fifth of their
# training time.
_MIN_PHASE_BYTES = 2**18


def min_cached_folds(plan: Partition, row_bytes: float) -> int:
    """Return the minimum number of folds below a node for its model to be cached.

    The phase that leads to a node has about as many rows as the node holds out.
    """
    return max(
        1, ceil(_MIN_PHASE_BYTES * plan.n_folds / (row_bytes * plan.n_epochs * plan.n_rows))
    )
