"""State shared by the jobs of a task: names of rows, the cache, and results in it.

These are the outputs and scores of an estimator along the tree, the scores of folds and of whole
repeats, the sums behind them, and fitted beginnings of Pipelines.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Hashable
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cached_property
from functools import partial
import pickle
from threading import Lock
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import keys_of
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.sharing.keys import token
from optuna_treecv.sharing.keys import under_configuration
from optuna_treecv.sharing.shared_learner import Prefix
from optuna_treecv.tree.plan import Learner

# The most repeats whose prefixes are remembered, and the most prefixes of one repeat. A prefix
# takes about a kilobyte, and a hyper-parameter that begins to act at some row, such as
# ``average_start``, adds some for each of its values.
_MOST_ROOTS = 8
_MOST_PREFIXES = 2**14


class SharedBetweenRuns:
    """The models and results of one evaluation, and the names under which they are kept.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
        Where models and results are kept; None: nowhere.
    with_others : bool
        Whether other evaluations may use the same cache. If so, rows are named by their content.
    """

    def __init__(self, cache: AnyCache | None, with_others: bool) -> None:
        self.cache = cache
        self._with_others = with_others
        self._names: dict[Hashable, tuple[bytes, bool]] = {}
        self._roots: dict[bytes, Prefix] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedBetweenRuns, (self.cache, self._with_others)

    @property
    def memory(self) -> ModelCache | None:
        """The cache of this process, without a store behind it."""
        return None if self.cache is None else self.cache.memory

    def name_of(self, what: Hashable, content: Callable[[], bytes | None]) -> tuple[bytes, bool]:
        """Return a name of data, and whether later processes name them so too.

        Parameters
        ----------
        what : hashable
            The same for the same data of this evaluation, which are read once.
        content : callable
            () -> their digest; None if they have none.
        """
        with self._lock:
            if what not in self._names:
                name = content() if self._with_others else None
                self._names[what] = name or token(), name is not None
            return self._names[what]

    def beginnings(self, n_workers: int) -> "Beginnings":
        """Return the cache of fitted beginnings of Pipelines, for this process and its workers."""
        memory = self.memory
        assert memory is not None
        return Beginnings(memory, memory.max_bytes // n_workers)

    def root(self, rows: bytes) -> Prefix:
        """Return the empty prefix over the rows of this name.

        Those of a few repeats are kept. They are only looked up faster: a new one has the same
        name.
        """
        with self._lock:
            root = self._roots.pop(rows, None)
            if root is None or root.n_prefixes[0] > _MOST_PREFIXES:
                root = Prefix(rows)
            self._roots[rows] = root
            if len(self._roots) > _MOST_ROOTS:
                del self._roots[next(iter(self._roots))]
            return root

    def cache_for(self, estimator: Any) -> AnyCache | None:
        """Return the cache for an estimator's models.

        Code from outside this package may be different in the next process under the same name,
        so its models stay in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache.of_run() if is_ours(type(estimator)) else self.cache.memory
        return self.cache


class Results:
    """The results of one estimator on one repeat, in the cache or to be put there.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    data, folds, settings : bytes
        The names of all that the outputs depend on.
    targets : bytes
        The name of the targets and their weights, on which scores depend too.
    """

    def __init__(
        self, cache: AnyCache | None, data: bytes, folds: bytes, settings: bytes, targets: bytes
    ) -> None:
        self._cache = cache
        self._names = data, folds, settings
        self._of_scores = digest(SCORED_BY, targets)

    @classmethod
    def of(
        cls,
        learner: Learner,
        method: str,
        cache: AnyCache | None,
        data: bytes,
        folds: bytes,
        targets: bytes,
    ) -> "Results | None":
        """Return the results of a learner that a method trains; None if it has no key."""
        try:
            if isinstance(learner, CompiledLearner):
                settings = settings_key(learner, MOST_ROWS)
            elif isinstance(learner, Adapter):
                settings = encode(learner.fresh) + encode(learner.response_methods)
            else:
                return None
        except NoKey:
            return None
        return cls(cache, data, folds, digest(settings, method.encode()), targets)

    @cached_property
    def name(self) -> str:
        """The digest of the rows, the settings, the folds and the method, in hexadecimal."""
        return digest(*self._names).hex()

    def take(self, leaves: Leaves) -> int | None:
        """Fill in the results if they are kept; return the row updates that they took."""
        results, memories = leaves.results(), {}
        for name, result in results.items():  # outputs are the largest, and come last
            key = self._key_of(name, len(result.memory))
            memory = None if self._cache is None else self._cache.find(key)
            if memory is None:
                continue
            memories[name] = memory
            if leaves.suffice(memories):
                for one, kept in memories.items():
                    results[one].take(kept)
                return results[name].n_updates
        return None

    def has_outputs(self, n_bytes: int) -> bool:
        """Return whether outputs of that many bytes are kept, without reading them."""
        key = self._key_of("outputs", n_bytes + COUNT_BYTES)
        return self._cache is not None and self._cache.has(key)

    def to_write(self, outputs: ArrayThenCount, seconds: float) -> tuple[Key, np.ndarray, float]:
        """Return outputs in the form that ``StoredModelCache.write`` takes."""
        return self._key_of("outputs", len(outputs.memory)), outputs.memory, seconds

    def keep(self, leaves: Leaves, n_updates: int, seconds: float) -> None:
        """Keep the results that were not kept yet, with their row updates and seconds."""
        if self._cache is None:
            return
        for name, results in leaves.to_keep().items():
            results.n_updates = n_updates
            results.memory.flags.writeable = False
            self._cache.keep(self._key_of(name, len(results.memory)), results.memory, seconds)

    def _key_of(self, name: str, n_bytes: int) -> Key:
        """Return the key of a result; for scores it covers the targets and the scoring code."""
        unit = b"outputs" if name == "outputs" else digest(self._of_scores, encode(name))
        return Key(*self._names, unit, n_bytes)


# The cache of a worker process, which all tasks that it gets share.
_of_this_process: list[ModelCache] = []


class Beginnings:
    """A cache of fitted beginnings of Pipelines; each worker process of joblib has its own.

    With a name it is the ``memory`` of a Pipeline that is fitted on one fold.

    Parameters
    ----------
    kept : ModelCache
        The cache of the process that evaluates.
    max_bytes : int
        Room in each worker process.
    name : bytes
        Of the training rows.
    """

    def __init__(self, kept: ModelCache, max_bytes: int, name: bytes = b"") -> None:
        self.kept = kept
        self._max_bytes = max_bytes
        self._start = digest(b"beginning", name)
        self._name: bytes | None = self._start  # of the steps fitted so far

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self._max_bytes,)

    def of_fold(self, name: bytes) -> "Beginnings":
        """Return the beginnings that were fitted on the training rows of this name."""
        return Beginnings(self.kept, self._max_bytes, name)

    @contextmanager
    def lent_to(self, pipeline: Any) -> Generator[None]:
        """Set this as the ``memory`` of a Pipeline in the block, unless the Pipeline has another.

        After the block a scorer may fit the Pipeline on other rows.
        """
        previous = pipeline.memory
        if previous is None:
            pipeline.memory = self
        try:
            yield
        finally:
            pipeline.memory = previous

    def cache(self, fit_transform: Callable[..., Any], ignore: object = ()) -> Callable[..., Any]:
        """Return a function that fits and transforms, or returns the kept result.

        A Pipeline asks for it once at the beginning of each fit.
        """
        self._name = self._start
        return partial(self._call, fit_transform)

    def _call(
        self, fit_transform: Callable[..., Any], step: Any, X: Any, *args: Any, **options: Any
    ) -> Any:
        try:
            self._name = None if self._name is None else digest(self._name, encode(step))
        except NoKey:
            self._name = None
        if self._name is None:
            return fit_transform(step, X, *args, **options)
        key = Key(self._name, b"", b"", b"beginning")
        pickled = self.kept.find(key)
        if pickled is not None:
            return pickle.loads(pickled.data)
        began = perf_counter()
        result = fit_transform(step, X, *args, **options)
        seconds = perf_counter() - began
        try:
            array = np.frombuffer(pickle.dumps(result, protocol=5), np.uint8)
        except Exception:  # noqa: BLE001  # a step that cannot be pickled is fitted each time
            return result
        self.kept.keep(key, array, seconds)
        return result


def _in_this_process(max_bytes: int) -> Beginnings:
    if not _of_this_process or _of_this_process[0].max_bytes != max_bytes:
        _of_this_process[:] = [ModelCache(max_bytes)]
    return Beginnings(_of_this_process[0], max_bytes)


class KeptSums:
    """The sums that a family keeps for further points; follows ``learners.exact.moments.Keep``.

    It holds the arrays itself as long as it lives, which is one evaluation of several points.

    Parameters
    ----------
    cache : ModelCache or None
    name : bytes
        A digest of everything that the sums depend on; empty: nothing is kept.
    """

    def __init__(self, cache: ModelCache | None = None, name: bytes = b"") -> None:
        self._cache = cache if name else None
        self._name = name
        self._held: dict[Key, np.ndarray] = {}
        self._n_made = 0

    @property
    def were_there(self) -> bool:
        """Whether all arrays that were needed were kept."""
        return bool(self._held) and self._n_made == 0

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return the kept array of a name, or make and keep it."""
        key = Key(self._name, b"", b"", b"sums " + name.encode(), 8 * size)
        if key not in self._held:
            memory = None if self._cache is None else self._cache.find(key)
            if memory is None:
                self._n_made += 1
                began, memory = perf_counter(), np.empty(size)
                make(memory)
                memory.flags.writeable = False
                if self._cache is not None:
                    self._cache.keep(key, memory, perf_counter() - began)
            self._held[key] = memory
        return self._held[key]


class KeptScores(NamedTuple):
    """Where the scores of an estimator are kept, of a repeat or of single folds, and by what name.

    Attributes
    ----------
    cache : ModelCache, StoredModelCache or None
        One in memory where later processes do not know the scores by the same name.
    data, folds : bytes
        The names of the rows and of the folds; of single folds, that of one is given later.
    of_sums : bytes
        The name of the sums, which do not depend on the point and the scoring; empty: they are
        not kept.
    metrics : tuple of bytes
        The names of the metrics; empty: the scores are not kept.
    settings : bytes
        The name of the estimator and the scoring; empty: the scores are not kept.
    """

    cache: AnyCache | None = None
    data: bytes = b""
    folds: bytes = b""
    of_sums: bytes = b""
    metrics: tuple[bytes, ...] = ()
    settings: bytes = b""

    @classmethod
    def of(
        cls,
        cache: AnyCache | None,
        data: tuple[bytes, bool],
        folds: bytes,
        engine: str,
        parts: Sequence[Any],
        scoring: Scoring,
    ) -> "KeptScores":
        """Return where an engine keeps the scores of an estimator, without its point.

        Parameters
        ----------
        cache : ModelCache, StoredModelCache or None
        data : (bytes, bool)
            The name of the rows, and whether later processes give them the same name.
        folds : bytes
        engine : str
        parts : sequence of estimator
            The parts of the estimator, with all their seeds.
        scoring : Scoring
        """
        rows = under_configuration(data[0])
        cache, keys = keys_of(cache, parts, data[1])
        if keys is None:
            return cls()
        if isinstance(cache, StoredModelCache):
            cache = cache.of_run()
        of_sums = digest(engine.encode(), SCORED_BY, rows, folds, *keys)
        if cache is None or not all(metric.is_registered for metric in scoring.metrics):
            return cls(cache, of_sums=of_sums)
        names = tuple(encode(metric.name) for metric in scoring.metrics)
        return cls(cache, rows, folds, of_sums, names)

    def at(self, point: Any) -> "KeptScores":
        """Return the same for the estimator that has these values of the point's parameters."""
        if not self.metrics:
            return self
        return self._replace(settings=digest(self.of_sums, encode(point), *self.metrics))

    @property
    def name(self) -> str:
        """The digest of all names in hexadecimal; "" if the scores are not kept."""
        return self.settings.hex()

    def find(self, n_numbers: int, fold: bytes = b"") -> np.ndarray | None:
        """Return so many numbers, float64, if they are kept."""
        if self.cache is None or not self.settings:
            return None
        memory = self.cache.find(self._key(fold, 8 * n_numbers))
        return None if memory is None else memory.view(np.float64)

    def keep(self, numbers: np.ndarray, seconds: float, fold: bytes = b"") -> None:
        """Keep numbers with the seconds that they took."""
        if self.cache is not None and self.settings:
            memory = numbers.view(np.uint8)
            memory.flags.writeable = False
            self.cache.keep(self._key(fold, len(memory)), memory, seconds)

    def close(self) -> None:
        """Write to the store what is not written yet."""
        if isinstance(self.cache, StoredModelCache):
            self.cache.flush()

    def _key(self, fold: bytes, n_bytes: int) -> Key:
        return Key(self.data, fold or self.folds, self.settings, b"scores", n_bytes)
