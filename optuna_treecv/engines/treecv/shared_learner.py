"""A learner that looks models up in a cache before it trains them.

The walk treats it like any other learner, but training a state only records the rows. A model is
trained when its outputs are requested: from the cached model of its longest prefix, and every
model on the way is cached in turn. So trials train their common prefixes once.
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

# A subtree is walked in one call if its states fill at most this share of the cache, and if it
# reads at most this many bytes of rows, which takes about a second.
_CACHE_PER_CALL = 1 / 16
_BYTES_PER_CALL = 2**33


@dataclass(eq=False, slots=True)
class LazyModel:
    """The model of a prefix, which is trained when its state is requested.

    Attributes
    ----------
    prefix : Prefix
    before : LazyModel or None
        The model from which it is trained, on the rows of the prefix's phase from ``begin`` on;
        None before the first row.
    state : ndarray or None
        None until it is trained. The array may be shared, so it must not be changed.
    """

    prefix: Prefix
    before: "LazyModel | None" = None
    begin: int = 0
    state: np.ndarray | None = None


@dataclass(eq=False, slots=True)
class Branch:
    """A state of the walk: a reference to the model that the branch has reached."""

    model: LazyModel


class SharedLearner:
    """A compiled learner that shares its models through a cache.

    Parameters
    ----------
    learner : CompiledLearner
    cache : ModelCache or StoredModelCache
    root : Prefix
        The prefix before the first prepared row.

    Attributes
    ----------
    n_updates : int
        The number of rows trained on so far. The walk also counts phases whose models were cached.
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
        self._counting = Lock()

    @cached_property
    def _settings(self) -> list[bytes]:
        """The keys of the settings with an influence before each breakpoint, and at the end.

        They are computed lazily, because trials whose results are stored need none.
        """
        ends = *self._breakpoints, MOST_ROWS
        return [settings_key(self._learner, n_seen) for n_seen in ends]

    # The learner protocol of the walk.

    def start(self) -> Branch:
        return Branch(LazyModel(self._root))

    def snapshot(self, state: Branch) -> Branch:
        return Branch(state.model)

    def update(self, state: Branch, phase: Phase | Rows) -> None:
        """Record a phase, split where a hyper-parameter begins to have an influence."""
        assert isinstance(phase, Phase)  # rows without a phase have no key
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
        """Do as ``test_then_train`` of walks, but resume from the longest cached part.

        ``rows`` are the rows of the phase in their order.

        A model's outputs depend on all parameters, even if its state does not. So their key has
        all of them, and they are cached together with the state after them.
        """
        before, size = state.model, self._learner.state_bytes
        self.update(state, phase)
        keys = {end: self._outputs_key(before.prefix.feed(phase, end), out[:end]) for end in ends}
        if phase.n_updates * self._learner.row_bytes < _LEAST_BYTES:
            keys.clear()
        finds = map(self._cache.find, reversed(keys.values()))  # the longest part first
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
        finally:  # a walk that is stopped early may be resumed
            if keys and begin > done and is_whole:  # no signal interrupted the training
                outputs = out[:begin].reshape(-1).view(np.uint8)
                array = _frozen(np.concatenate((outputs, model)))
                self._cache.keep(keys[begin], array, seconds)

    def _outputs_key(self, prefix: Prefix, outputs: np.ndarray) -> Key:
        n_bytes = outputs.nbytes + self._learner.state_bytes
        return Key(prefix.name, b"", self._settings[-1], b"outputs before they act", n_bytes)

    def walk_subtree(self, plan: Partition, node: Node, state: Branch, out: np.ndarray) -> int:
        """Test the folds of a node; return the row updates that the tree below it needs.

        Models of large nodes are cached. If none below this node is cached yet, one compiled call
        trains them all. Of smaller nodes, only the outputs of the models are cached.
        """
        if node.n_folds == 1:
            self.outputs(state, *plan.rows(node), out)
            return 0
        if self._fits_a_call(plan, node, state.model.prefix):
            n_updates = self._walk_at_once(plan, node, state, out)
            if n_updates is not None:
                return n_updates
        n_updates = 0
        for child in plan.split(node):
            branch = self.snapshot(state)
            phase = plan.phase(node, child)
            self.update(branch, phase)
            n_updates += phase.n_updates + self.walk_subtree(plan, child, branch, out)
        return n_updates

    def _fits_a_call(self, plan: Partition, node: Node, prefix: Prefix) -> bool:
        """Return whether a subtree may be walked in one call.

        It may if none of its models will be cached. Otherwise its models must fit in the cache, it
        must not take long, and no hyper-parameter may begin to have an influence in it.
        """
        start, stop = plan.rows(node)
        n_kept = count_nodes(node.n_folds, least_cached_folds(plan, self._learner.row_bytes))
        n_most = plan.n_epochs * plan.n_rows
        n_updates = plan.n_epochs * (stop - start) * node.n_folds.bit_length()
        return n_kept <= 1 or (
            n_kept * self._learner.state_bytes <= self._cache.max_bytes * _CACHE_PER_CALL
            and n_updates * self._learner.row_bytes <= _BYTES_PER_CALL
            and not any(prefix.n_seen < n_seen < n_most for n_seen in self._breakpoints)
        )

    def _walk_at_once(
        self, plan: Partition, node: Node, state: Branch, out: np.ndarray
    ) -> int | None:
        """Walk a subtree in one call; return None if some of its models are cached already.

        Lock order: the owner of a subtree's claim may wait for the claim of a model, never the
        reverse. This prevents deadlock.
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
            least = least_cached_folds(plan, self._learner.row_bytes)
            n_kept = max(1, count_nodes(node.n_folds, least))
            prefixes = prefixes_below(state.model.prefix, plan, node, least)
            keys = {i: self._key(prefix) for i, prefix in prefixes.items()}
            if any(map(self._cache.has, keys.values())):
                return None
            model = self._state(state.model)
            began = perf_counter()
            states = aligned_empty((n_kept, self._learner.state_bytes))
            n_updates = self._learner.walk_subtree(
                plan, node, model, out, states, min(least, node.n_folds)
            )
            seconds = perf_counter() - began
            self._count(n_updates)
            if keys:
                costs = [seconds * prefix.end / n_updates for prefix in prefixes.values()]
                self._cache.keep_all(keys, _frozen(states), costs)
            if node != plan.root:
                outputs.array[:] = out[start:stop]
                outputs.n_updates = n_updates
                self._cache.keep(key, _frozen(outputs.memory), seconds)
            return n_updates
        finally:
            self._cache.release(key)

    def _plan_key(self, plan: Partition) -> bytes:
        planned = self._planned
        if planned is None or planned[0] is not plan:
            planned = self._planned = plan, plan_key(plan)
        return planned[1]

    # Models.

    def _state(self, model: LazyModel) -> np.ndarray:
        """Return a state, cached or trained from the cached state of the longest prefix."""
        state = model.state
        if state is None:
            if model.before is None:
                state = self._learner.start()
            else:
                key = self._key(model.prefix)
                state = self._cache.find(key)
                if state is None:
                    return self._make(model, model.before, key)
            model.state = state  # set for good: branches in other threads share this model
        return state

    def _make(self, model: LazyModel, before: LazyModel, key: Key) -> np.ndarray:
        """Train a model on its phase and cache it, or wait for the thread that does so."""
        base = self._state(before)
        state = self._cache.claim(key)  # only now, because the owner of a claim must not wait
        if state is not None:
            model.state = state
            return state
        try:
            state = model.state
            if state is None:  # it may be trained but not cached, for lack of room
                state = self._learner.snapshot(base)
                prefix, began = model.prefix, perf_counter()
                self._learner.update_part(Part(state, prefix.phase, model.begin, prefix.end))
                seconds = perf_counter() - began
                self._count(prefix.end - model.begin)
                self._cache.keep(key, _frozen(state), seconds)
                model.state = state
            return state
        finally:
            self._cache.release(key)

    def _count(self, n_updates: int) -> None:
        with self._counting:
            self.n_updates += n_updates

    def _key(self, prefix: Prefix) -> Key:
        settings = self._settings[bisect_left(self._breakpoints, prefix.n_seen)]
        return Key(prefix.name, b"", settings, b"model", self._learner.state_bytes)


def _frozen(array: np.ndarray) -> np.ndarray:
    """Return an array that will be shared, made read-only."""
    array.flags.writeable = False
    return array


# A model is cached if its training phase reads at least this many bytes of rows. Looking models up
# and caching them then takes at most a fifth of the time of training them.
_LEAST_BYTES = 2**18


def least_cached_folds(plan: Partition, row_bytes: float) -> int:
    """Return the least number of held-out folds of nodes whose models are cached.

    The training phase before a node has about as many rows as the node holds out.
    """
    return max(1, ceil(_LEAST_BYTES * plan.n_folds / (row_bytes * plan.n_epochs * plan.n_rows)))
