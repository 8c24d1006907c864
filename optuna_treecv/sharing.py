"""A learner whose training is looked up before it is done.

The tree is walked as ever; but training a state only notes what it is fed, and a model is made
when somebody asks it for outputs: from the nearest model on its way that is kept, and all that are
made are kept in turn. So whatever the trials of a study, or of several, have in common is trained
once.
"""

from __future__ import annotations

from bisect import bisect_left
from bisect import bisect_right
from functools import cached_property
from functools import lru_cache
from math import exp
from math import log
from threading import Lock
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.cache import ModelCache
from optuna_treecv.cache import StoredModelCache
from optuna_treecv.data import aligned_empty
from optuna_treecv.keys import digest
from optuna_treecv.keys import encode
from optuna_treecv.keys import fed
from optuna_treecv.keys import Key
from optuna_treecv.keys import NoKey
from optuna_treecv.keys import plan_key
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.base import Learner
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.plan import Node
from optuna_treecv.plan import Phase
from optuna_treecv.plan import Plan
from optuna_treecv.plan import Rows
from optuna_treecv.scoring import COUNT_BYTES
from optuna_treecv.scoring import Counted
from optuna_treecv.scoring import Leaves

# States along a phase are kept where the rows seen have grown by this part, no closer than what
# makes copying them cheap beside training, and no more than fill this part of the cache; so few
# are left out.
_PART_A_MARK = 1 / 128
_COPIES_A_MARK = 16
_PART_A_TRAIL = 1 / 64
_LEAST_MARKS = 9

# A subtree is walked in one call if its states fill no more of the cache than this, and if it
# reads no more bytes of rows: about a second's.
_PART_A_CALL = 1 / 16
_BYTES_A_CALL = 2**33

# To look for a model takes longer than to train one on fewer rows: these are kept together only.
_LEAST_ROWS = 8

#: Models are kept down to the leaves of a tree of so many folds, and to that depth in larger ones.
MOST_KEPT_FOLDS = 1024

_NONE = Phase(0, 0)


AnyCache = ModelCache | StoredModelCache


class Way:
    """A chain of rows fed: what models are known by. The same for all trials.

    Attributes
    ----------
    path : bytes
        The chain's name.
    n_seen : int
        Its rows.
    origin, phase, end : Way, Phase, int
        It is that of ``origin`` and then the first ``end`` rows of the phase.
    """

    __slots__ = ("_next", "below", "end", "n_seen", "origin", "path", "phase")

    def __init__(
        self, path: bytes, n_seen: int = 0, origin: Way | None = None, phase: Phase = _NONE
    ) -> None:
        self.path = path
        self.n_seen = n_seen
        self.origin = self if origin is None else origin
        self.phase = phase
        self.end = n_seen - self.origin.n_seen
        self.below: dict[Node, dict[int, Way]] = {}
        self._next: dict[tuple[Phase, int], Way] = {}

    def feed(self, phase: Phase, end: int) -> Way:
        """This chain and then the first ``end`` rows of a phase."""
        way = self._next.get((phase, end))
        if way is None:
            path = fed(self.path, phase, end)
            way = self._next[phase, end] = Way(path, self.n_seen + end, self, phase)
        return way


class Model:
    """A model on the walk, made or not.

    Attributes
    ----------
    way : Way
    before : Model or None
        The model that it is trained from, on the rows from ``begin`` on of the way's phase; None
        before the first row.
    state : ndarray or None
        Once it is made; others may hold it too, so it is not to be changed.
    """

    __slots__ = ("before", "begin", "state", "way")

    def __init__(self, way: Way, before: Model | None = None, begin: int = 0) -> None:
        self.way = way
        self.before = before
        self.begin = begin
        self.state: np.ndarray | None = None


class Branch:
    """What the walk takes for a state."""

    __slots__ = ("model",)

    def __init__(self, model: Model) -> None:
        self.model = model


class SharedLearner:
    """A compiled learner that shares its models.

    Parameters
    ----------
    learner : CompiledLearner
    cache : ModelCache or what has its methods
    root : Way
        Before the first of the prepared rows.

    Attributes
    ----------
    n_updates : int
        Rows trained on so far, while the walk counts those of all phases.
    """

    def __init__(self, learner: CompiledLearner, cache: AnyCache, root: Way) -> None:
        self.rows = learner.rows
        self.dtype = learner.dtype
        self.n_outputs = learner.n_outputs
        self.respond = learner.respond
        self.score_rows = learner.score_rows
        self.can_answer = learner.can_answer
        self.answering = learner.answering
        self.n_updates = 0
        self._learner = learner
        self._trainer = learner.tracking()
        self._tracked = learner.tracked
        self._x = 0.0 if self._tracked is None else float(learner.settings_at(1)[self._tracked])
        self._cache = cache
        self._root = root
        self._breakpoints = learner.breakpoints
        self._settings = [
            _settings_key(learner, n_seen, learner.tracked)
            for n_seen in (*self._breakpoints, MOST_ROWS)
        ]
        self._grid = _marks_grid(learner.rows_a_copy * _COPIES_A_MARK, len(learner.rows.order))
        self._most_marks = max(1, int(cache.max_bytes * _PART_A_TRAIL) // learner.state_bytes)
        self._planned: tuple[Plan, bytes] | None = None
        self._counting = Lock()

    # What the walk asks for.

    def start(self) -> Branch:
        return Branch(Model(self._root))

    def snapshot(self, state: Branch) -> Branch:
        return Branch(state.model)

    def update(self, state: Branch, phase: Phase | Rows) -> None:
        """Note a phase, in pieces where a hyper-parameter begins to act in the midst of it."""
        assert isinstance(phase, Phase)  # bare rows have no name
        model = state.model
        way, begin = model.way, 0
        for n_seen in self._breakpoints:
            if way.n_seen < n_seen < way.n_seen + phase.n_rows:
                end = n_seen - way.n_seen
                model = Model(way.feed(phase, end), model, begin)
                begin = end
        state.model = Model(way.feed(phase, phase.n_rows), model, begin)

    def outputs(self, state: Branch, start: int, stop: int, out: np.ndarray) -> None:
        self._learner.outputs(self._state(state.model), start, stop, out)

    def estimator(self, state: Branch) -> Any:
        return self._learner.estimator(self._state(state.model))

    def walk_subtree(self, plan: Plan, node: Node, state: Branch, out: np.ndarray) -> int:
        """The tree below a node; the row updates needed.

        Models are kept down to depth 10. Where none of these is there yet, they are made in one
        call; below, what all models say of their rows is kept.
        """
        if node.n_folds == 1:
            self.outputs(state, *plan.rows(node), out)
            return 0
        if self._fits_a_call(plan, node, state.model.way):
            n_updates = self._walk_at_once(plan, node, state, out)
            if n_updates is not None:
                return n_updates
        n_updates = 0
        for child in plan.split(node):
            branch = self.snapshot(state)
            phase = plan.phase(node, child)
            self.update(branch, phase)
            n_updates += phase.n_rows + self.walk_subtree(plan, child, branch, out)
        return n_updates

    def _fits_a_call(self, plan: Plan, node: Node, way: Way) -> bool:
        """Whether a subtree may be walked in one call: none of its models are to be kept; or there
        is room for them, it does not take long and no hyper-parameter begins to act in it.
        """
        start, stop = plan.rows(node)
        n_kept = _count_nodes(node.n_folds, _least_folds(plan))
        n_updates = (stop - start) * node.n_folds.bit_length()
        return n_kept <= 1 or (
            n_kept * self._learner.state_bytes <= self._cache.max_bytes * _PART_A_CALL
            and n_updates * self._learner.row_bytes <= _BYTES_A_CALL
            and not any(way.n_seen < n_seen < plan.n_rows for n_seen in self._breakpoints)
        )

    def _walk_at_once(self, plan: Plan, node: Node, state: Branch, out: np.ndarray) -> int | None:
        """In one call, by whoever comes first; None if some of its models are there already.

        Who owns this claim may wait for that of a single model, whose owners wait for nobody.
        """
        start, stop = plan.rows(node)
        name = state.model.way.path, self._settings[-1], self._plan_key(plan)
        said = Counted(out[start:stop].shape, out.dtype)
        key = *name, encode(self._x), len(said.memory)
        found = self._cache.claim(key)
        if found is not None:
            said.take(found)
            out[start:stop] = said.array
            return said.n_updates
        try:
            least = _least_folds(plan)
            n_kept = max(1, _count_nodes(node.n_folds, least))
            models_key = (*name, n_kept * self._learner.state_bytes) if least == 1 else None
            if models_key is not None:
                found = self._cache.find(models_key, self._x)
                if found is not None:
                    return self._learner.test_leaves(plan, node, found, out)
            ways = _ways_below(state.model.way, plan, node)
            keys = {i: self._key(way) for i, way in ways.items()}
            trails = self._trails_among(ways)
            if self._cache.has_any(keys.values(), self._x) or any(
                self._cache.find_on_trails(self._trail_key(ways[i]), self._x) for i in trails
            ):
                return None
            model = self._state(state.model)
            began = perf_counter()
            states = aligned_empty((n_kept, self._learner.state_bytes))
            n_updates, passed = self._trainer.walk_keeping(
                plan, node, model, out, states, min(least, node.n_folds), trails
            )
            seconds = perf_counter() - began
            with self._counting:
                self.n_updates += n_updates
            states.flags.writeable = passed.flags.writeable = False
            each = {i: seconds * way.end / n_updates for i, way in ways.items()}
            if keys or models_key is not None:
                ends = None if self._tracked is None else self._trainer.domain(states)
                self._cache.keep_all(keys, states, list(each.values()), ends, models_key)
            begin = 0
            for i, marks in trails.items():
                along = passed[begin : begin + len(marks)]
                ends = self._trainer.domain(along)
                self._cache.keep_trail(self._trail_key(ways[i]), along, each[i], marks, ends)
                begin += len(marks)
            if models_key is None and node != plan.root:
                said.array[:] = out[start:stop]
                said.n_updates = n_updates
                said.memory.flags.writeable = False
                self._cache.keep(key, said.memory, seconds)
            return n_updates
        finally:
            self._cache.release(key)

    def _plan_key(self, plan: Plan) -> bytes:
        planned = self._planned
        if planned is None or planned[0] is not plan:
            planned = self._planned = plan, plan_key(plan)
        return planned[1]

    # Models.

    def _state(self, model: Model) -> np.ndarray:
        """A model's state: found, or trained from the nearest one that is kept."""
        state = model.state
        if state is None:
            if model.before is None:
                state = self._learner.start()
            else:
                key = self._key(model.way)
                state = self._cache.find(key, self._x)
                if state is None:
                    return self._make(model, model.before, key)
            model.state = state  # never None again: branches in other threads have this model too
        return state

    def _make(self, model: Model, before: Model, key: Key) -> np.ndarray:
        """Train a model, or wait for whoever is at it."""
        found = None
        if self._tracked is not None:
            found = self._cache.find_on_trails(self._trail_key(model.way), self._x)
        begin, base = (model.begin, self._state(before)) if found is None else found
        made = self._cache.claim(key, self._x)  # only now: its owner must not wait
        if made is not None:
            model.state = made
            return made
        try:
            state = model.state
            if state is None:  # it may have been made and found no room
                state = self._learner.snapshot(base)
                self._train(model.way, begin, state, key)
                model.state = state
            return state
        finally:
            self._cache.release(key, self._x)

    def _train(self, way: Way, begin: int, state: np.ndarray, key: Key) -> None:
        """From the row ``begin`` of a way's phase to its end; keep what was made."""
        marks = None if self._tracked is None else self._marks(way, begin)
        began = perf_counter()
        states = self._trainer.update_part(state, way.phase, begin, way.end, marks)
        seconds = perf_counter() - began
        state.flags.writeable = False
        with self._counting:
            self.n_updates += way.end - begin
        if self._tracked is None:
            self._cache.keep(key, state, seconds)
            return
        self._cache.keep(key, state, seconds, *self._trainer.domain_of(state))
        if states is not None and marks is not None:
            ends = self._trainer.domain(states)
            self._cache.keep_trail(self._trail_key(way), states, seconds, marks, ends)

    def _marks(self, way: Way, begin: int) -> np.ndarray | None:
        """Where between ``begin`` and the end of a way's phase states are kept, in rows of the
        phase; None if its end is as good.
        """
        seen = way.origin.n_seen
        if way.end < _LEAST_MARKS * _PART_A_MARK / 2 * seen:
            return None
        first = bisect_right(self._grid, seen + begin)
        last = bisect_left(self._grid, way.n_seen)
        if last - first < _LEAST_MARKS:
            return None
        every = -(-(last - first) // self._most_marks)
        return np.array(self._grid[first:last:every]) - seen

    def _trails_among(self, ways: dict[int, Way]) -> dict[int, np.ndarray]:
        """The marks on those ways that have some."""
        if self._tracked is None:
            return {}
        marks = {i: self._marks(way, 0) for i, way in ways.items()}
        return {i: found for i, found in marks.items() if found is not None}

    def _key(self, way: Way) -> Key:
        settings = self._settings[bisect_left(self._breakpoints, way.n_seen)]
        return way.path, settings, self._learner.state_bytes

    def _trail_key(self, way: Way) -> tuple[Any, ...]:
        return way.origin.path, way.phase, self._key(way)


class Results:
    """The results of one whole evaluation: kept, or to be kept.

    Parameters
    ----------
    cache : ModelCache or what has its methods, or None
    key : tuple of bytes
        Of everything but the scoring.
    targets : bytes or None
        What scores depend on beside; None: scores are not kept.
    """

    def __init__(
        self, cache: AnyCache | None, key: tuple[bytes, ...], targets: bytes | None
    ) -> None:
        self._cache = cache
        self._key = key
        self._targets = targets

    @cached_property
    def name(self) -> str:
        """Of what was trained how, on which rows."""
        return digest(*self._key).hex()

    def take(self, leaves: Leaves) -> int | None:
        """Fill in the results, if they are kept; the row updates behind them."""
        for name, results in leaves.results().items():
            key = self._key_of(name, len(results.memory))
            found = None if self._cache is None or key is None else self._cache.find(key)
            if found is not None:
                results.take(found)
                return results.n_updates
        return None

    def has_outputs(self, n_bytes: int) -> bool:
        """Whether outputs of so many bytes are kept, at a glance: they are not read."""
        key = self._key_of("outputs", n_bytes + COUNT_BYTES)
        return self._cache is not None and key is not None and self._cache.has_any([key])

    def to_write(self, outputs: Counted, seconds: float) -> tuple[Key, np.ndarray, float]:
        """Outputs as ``StoredModelCache.write`` takes them."""
        key = self._key_of("outputs", len(outputs.memory))
        assert key is not None  # only scores may have none
        return key, outputs.memory, seconds

    def keep(self, leaves: Leaves, n_updates: int, seconds: float) -> None:
        """Keep what was not there and took so many row updates and seconds."""
        for name, results in leaves.results().items():
            key = self._key_of(name, len(results.memory))
            if self._cache is not None and key is not None and not results.was_kept:
                results.n_updates = n_updates
                results.memory.flags.writeable = False
                self._cache.keep(key, results.memory, seconds)

    def _key_of(self, name: str, n_bytes: int) -> Key | None:
        """Scores depend on what predictions are compared with, outputs do not."""
        targets = b"" if name == "outputs" else self._targets
        return None if targets is None else (*self._key, targets, encode(name), n_bytes)


class Identity(NamedTuple):
    """Names of prepared rows: of what models are trained on, and of what their predictions are
    compared with, None if that has none.
    """

    rows: bytes
    targets: bytes | None


class Found(NamedTuple):
    """What was found of an evaluation in one walk with others."""

    outputs: np.ndarray
    n_updates: int
    seconds: float


class FoundTogether:
    """Evaluations' outputs between the walk that found them and whoever asks, once each, by the
    names of their ``Results``.
    """

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FoundTogether, ()

    def __contains__(self, name: str) -> bool:
        return name in self._found

    @property
    def n_bytes(self) -> int:
        """Of the outputs that wait."""
        with self._lock:
            return sum(found.outputs.nbytes for found in self._found.values())

    def put(self, name: str, found: Found) -> None:
        with self._lock:
            self._found[name] = found

    def take(self, name: str) -> Found | None:
        with self._lock:
            return self._found.pop(name, None)


def results_of(
    learner: Learner, cache: AnyCache | None, identity: Identity, plan: Plan, method: str
) -> Results | None:
    """Where an evaluation's results are kept; None if it has no key."""
    try:
        if isinstance(learner, CompiledLearner):
            settings = _settings_key(learner, MOST_ROWS)
        elif isinstance(learner, Adapter):
            settings = encode(learner.fresh) + encode(learner.response_method)
        else:
            return None
    except NoKey:
        return None
    key = identity.rows, digest(settings), plan_key(plan), encode(method)
    return Results(cache, key, identity.targets)


def _least_folds(plan: Plan) -> int:
    """How many folds the smallest nodes hold out whose models are kept: one, or in large trees
    those at depth 10.
    """
    return max(1, plan.n_folds // MOST_KEPT_FOLDS)


@lru_cache(1024)
def _count_nodes(n_folds: int, least: int) -> int:
    """The nodes of a tree that hold out at least so many folds."""
    if n_folds < least:
        return 0
    if n_folds == 1:
        return 1
    return 1 + _count_nodes((n_folds + 1) // 2, least) + _count_nodes(n_folds // 2, least)


def _ways_below(way: Way, plan: Plan, node: Node) -> dict[int, Way]:
    """Of the nodes below one whose models are kept and worth looking for, by their numbers: the
    node is 0, parents come first, left before right.
    """
    ways = way.below.get(node)
    if ways is None:
        ways = {}
        number = 1
        for child in plan.split(node):
            phase = plan.phase(node, child)
            n_kept = _count_nodes(child.n_folds, _least_folds(plan))
            if n_kept > 0 and plan.n_rows - way.n_seen - phase.n_rows >= _LEAST_ROWS:
                fed = ways[number] = way.feed(phase, phase.n_rows)
                if child.n_folds > 1:
                    below = _ways_below(fed, plan, child)
                    ways |= {number + i: each for i, each in below.items()}
            number += n_kept
        way.below[node] = ways
    return ways


@lru_cache(64)
def _marks_grid(least: int, n_rows: int) -> list[int]:
    """Numbers of rows seen that are worth a mark: at least so many rows apart."""
    even_to = min(int(least / _PART_A_MARK), n_rows)
    n_growing = int(log(n_rows / even_to) / _PART_A_MARK)
    growing = [int(even_to * exp(_PART_A_MARK * i)) for i in range(1, n_growing + 1)]
    return [*range(least, even_to + 1, least), *growing]


def lanes_key(learner: CompiledLearner) -> bytes:
    """The same for all learners that can be walked side by side."""
    return _settings_key(learner, MOST_ROWS, *learner.lane_parameters)


def _settings_key(learner: CompiledLearner, n_seen: int, *but: str | None) -> bytes:
    """What has acted on a state of so many rows, but for some hyper-parameters."""
    acted = [item for item in sorted(learner.settings_at(n_seen).items()) if item[0] not in but]
    return digest(encode(learner.kind), *(encode(part) for item in acted for part in item))
