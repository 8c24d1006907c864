"""State shared by the jobs of a task: names of rows, the cache, and results in it.

These are the outputs and scores of an estimator along the tree, the scores of fitted folds and
fitted beginnings of Pipelines. Engines that score a repeat at once, for exact folds and trees of
all folds, keep the scores of all folds as one block, and the sums behind them.
"""

from collections.abc import Callable
from collections.abc import Generator
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
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import keep_scores
from optuna_treecv.sharing.caches import keys_of
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import fingerprint
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.sharing.keys import targets_key
from optuna_treecv.sharing.keys import token
from optuna_treecv.sharing.shared_learner import Prefix
from optuna_treecv.tree.plan import Learner

# The most repeats whose prefixes are remembered, and the most prefixes of one repeat. A prefix
# takes about a kilobyte, and a hyper-parameter that begins to act at some row, such as
# ``average_start``, adds some for each of its values.
_MOST_ROOTS = 8
_MOST_PREFIXES = 2**14


class RowsIdentity(NamedTuple):
    """Names of prepared rows.

    Attributes
    ----------
    rows : bytes
        The name of the rows that models are trained on.
    targets : bytes or None
        The name of what predictions are compared with; None if that has no name.
    """

    rows: bytes
    targets: bytes | None


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
        self._identities: dict[tuple[RowLayout, int, bytes], RowsIdentity] = {}
        self._roots: dict[tuple[bytes, int], Prefix] = {}
        self._data_name: tuple[bytes, bool] | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedBetweenRuns, (self.cache, self._with_others)

    @property
    def memory(self) -> ModelCache | None:
        """The cache of this process, without a store behind it."""
        return None if self.cache is None else self.cache.memory

    def identity(
        self, layout: RowLayout, rows: PreparedRows, repeat: int, steps: bytes = b""
    ) -> RowsIdentity:
        """Return the names of rows that were prepared after some steps."""
        with self._lock:
            if (layout, repeat, steps) not in self._identities:
                rows_digest = fingerprint(rows) if self._with_others else None
                targets = targets_key(rows) if rows_digest else b""
                self._identities[layout, repeat, steps] = RowsIdentity(
                    rows_digest or token(), targets
                )
            return self._identities[layout, repeat, steps]

    def data_name(
        self, content: Callable[[], bytes | None], *names: bytes | None
    ) -> tuple[bytes, bool]:
        """Return a name for rows as given, and whether later processes name them so too.

        Parameters
        ----------
        content : callable
            () -> the digest of the rows as given; None if they have none.
        *names : bytes or None
            Names of what else belongs to them; None for what has no name.
        """
        with self._lock:
            if self._data_name is None:
                name = content() if self._with_others else None
                if name is not None and names:
                    name = None if None in names else digest(name, *filter(None, names))
                self._data_name = name or token(), name is not None
            return self._data_name

    def beginnings(self, n_workers: int) -> "Beginnings":
        """Return the cache of fitted beginnings of Pipelines, for this process and its workers."""
        memory = self.memory
        assert memory is not None
        return Beginnings(memory, memory.max_bytes // n_workers)

    def root(self, identity: RowsIdentity, repeat: int) -> Prefix:
        """Return the empty prefix over the rows of a repeat.

        Those of a few repeats are kept. They are only looked up faster: a new one has the same
        name.
        """
        with self._lock:
            root = self._roots.pop((identity.rows, repeat), None)
            if root is None or root.n_prefixes[0] > _MOST_PREFIXES:
                root = Prefix(identity.rows)
            self._roots[identity.rows, repeat] = root
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
    key : tuple of bytes
        Everything that the outputs depend on.
    targets : bytes or None
        A digest of the targets, on which scores depend too; None: scores are not kept.
    """

    def __init__(
        self, cache: AnyCache | None, key: tuple[bytes, ...], targets: bytes | None
    ) -> None:
        self._cache = cache
        self._key = key
        self._targets = targets

    @cached_property
    def name(self) -> str:
        """The digest of the rows, the settings, the folds and the method, in hexadecimal."""
        return digest(*self._key).hex()

    def take(self, leaves: Leaves) -> int | None:
        """Fill in the results if they are kept; return the row updates that they took."""
        results, memories = leaves.results(), {}
        for name, result in results.items():  # outputs are the largest, and come last
            key = self._key_of(name, len(result.memory))
            memory = None if self._cache is None or key is None else self._cache.find(key)
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
        return self._cache is not None and key is not None and self._cache.has_any([key])

    def to_write(self, outputs: ArrayThenCount, seconds: float) -> tuple[Key, np.ndarray, float]:
        """Return outputs in the form that ``StoredModelCache.write`` takes."""
        key = self._key_of("outputs", len(outputs.memory))
        assert key is not None  # only scores may have none
        return key, outputs.memory, seconds

    def keep(self, leaves: Leaves, n_updates: int, seconds: float) -> None:
        """Keep the results that were not kept yet, with their row updates and seconds."""
        for name, results in leaves.to_keep().items():
            key = self._key_of(name, len(results.memory))
            if self._cache is not None and key is not None:
                results.n_updates = n_updates
                results.memory.flags.writeable = False
                self._cache.keep(key, results.memory, seconds)

    def _key_of(self, name: str, n_bytes: int) -> Key | None:
        """Return the key of a result; for scores it covers the targets and the scoring code."""
        if name == "outputs":
            return *self._key, b"", encode(name), n_bytes
        if self._targets is None:
            return None
        return *self._key, digest(SCORED_BY, self._targets), encode(name), n_bytes


def results_of(
    learner: Learner,
    cache: AnyCache | None,
    identity: RowsIdentity,
    folds: bytes,
    method: str,
) -> Results | None:
    """Return the results of a learner on some folds; None if the learner has no key."""
    try:
        if isinstance(learner, CompiledLearner):
            settings = settings_key(learner, MOST_ROWS)
        elif isinstance(learner, Adapter):
            settings = encode(learner.fresh) + encode(learner.response_methods)
        else:
            return None
    except NoKey:
        return None
    key = identity.rows, digest(settings), folds, encode(method)
    return Results(cache, key, identity.targets)


# Shorter fits are not written, as a store takes about a millisecond for each.
_SECONDS_TO_WRITE = 1e-3


class FoldResult(NamedTuple):
    """The result of one fit.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics,)
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3)
        Of the scores of rows; NaN where they are not known.
    responses : ndarray of shape (n_rows, n_columns), float64
        The responses to the test rows that pooled scores need, side by side.
    has_diverged : bool
    n_trained : int
        The rows that the model was trained on.
    seconds : float
        The time of the fit and the score; 0 if they are kept.
    """

    scores: np.ndarray
    spreads: np.ndarray
    responses: np.ndarray
    has_diverged: bool
    n_trained: int
    seconds: float = 0.0


class FoldResults:
    """The results of one estimator's folds, in the cache or to be put there.

    The store only gets results that later processes find by the same name: those of estimators of
    installed packages, on data that can be named by their content.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    estimator : estimator
        With all its seeds.
    data : (bytes, bool)
        The name of the data, and whether later processes give them the same name.
    scoring : Scoring
    """

    def __init__(
        self,
        cache: AnyCache | None,
        estimator: Any,
        data: tuple[bytes, bool],
        scoring: Scoring,
    ) -> None:
        self._cache: AnyCache | None = None
        self._settings: bytes | None = None
        self._n_metrics = len(scoring.metrics)
        if cache is None or not all(metric.is_registered for metric in scoring.metrics):
            return
        data_name, lasts = data
        self._cache, settings = keys_of(cache, [estimator], lasts)
        if settings is not None:
            names = (encode(metric.name) for metric in scoring.metrics)
            self._settings = digest(b"fit", SCORED_BY, data_name, *settings, *names)

    @property
    def name(self) -> str:
        """The digest of the estimator, the data and the metrics in hexadecimal; "" without one."""
        return "" if self._settings is None else self._settings.hex()

    def find(self, fold: bytes, shape: tuple[int, int]) -> FoldResult | None:
        """Return the result of a fold, with responses of the given shape, if it is kept."""
        n_scores, n_spreads = self._n_metrics, SPREAD_SIZE * self._n_metrics
        n_numbers = n_scores + n_spreads + 1 + shape[0] * shape[1]
        if self._cache is None or self._settings is None:
            return None
        array = self._cache.find((self._settings, fold, 8 * n_numbers + COUNT_BYTES))
        if array is None:
            return None
        kept = ArrayThenCount((n_numbers,))
        kept.take(array)
        ends = np.cumsum([n_scores, n_spreads, 1])
        scores, spreads, diverged, responses = np.split(kept.array, ends)
        return FoldResult(
            scores,
            spreads.reshape(n_scores, SPREAD_SIZE),
            responses.reshape(shape),
            bool(diverged[0]),
            kept.n_updates,
        )

    def keep(self, fold: bytes, result: FoldResult) -> None:
        """Keep the result of a fold, and write it to the store at once."""
        if self._cache is None or self._settings is None:
            return
        spreads, responses = result.spreads.ravel(), result.responses.ravel()
        parts = result.scores, spreads, [result.has_diverged], responses
        memory = ArrayThenCount.of(np.concatenate(parts), result.n_trained).memory
        key = self._settings, fold, memory.nbytes
        keep_scores(self._cache, key, memory, result.seconds, _SECONDS_TO_WRITE)


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
        key = (self._name, 0)
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


# Scores that took less time are not written, as a store takes about a millisecond for each.
_SECONDS_OF_REPEAT = 2e-3

#: In ``RepeatScores.diverged``.
OUTPUTS_DIVERGED = 2


class RepeatScores:
    """The scores of one estimator on one repeat.

    Parameters
    ----------
    shape : (int, int, bool)
        The number of metrics and of folds, and whether some fold has several rows, so that it
        has a spread.
    numbers : ndarray of shape (n_numbers,) or None
        Those that were kept: all numbers up to ``needed``. None: NaN.

    Attributes
    ----------
    numbers : ndarray of shape (n_numbers,)
    scores : ndarray of shape (n_metrics, n_folds)
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3, n_folds) or None
        See ``FoldScores``.
    diverged : ndarray of shape (n_folds,)
        0, 1 where a score is not finite, or ``OUTPUTS_DIVERGED`` where a model's output is not.
    pooled : ndarray of shape (n_metrics, 2)
        NaN for those that are not pooled.
    needed : ndarray of shape (1,)
        The rows that are read where no sums are kept.
    n_updates : int
        The rows that were read for it.
    seconds, seconds_prepare : float
        The time that it took, and the time in which the rows were prepared.
    was_kept : bool
        Whether it comes from a cache or a store.
    of_rows : ndarray of shape (n_tested,), float32, or None
        The scores of the tested rows, one chunk after another; None unless they are needed. They
        are never kept.
    responses : dict of str to ndarray of shape (n_tested, ...)
        The responses to the tested rows, which are never kept here either.
    n_tested : int
        The number of tested rows; 0 if the scores were kept.
    """

    def __init__(self, shape: tuple[int, int, bool], numbers: np.ndarray | None = None) -> None:
        self.was_kept = numbers is not None
        (n_metrics, n_folds, has_spreads), sizes = shape, self.sizes(*shape)
        self.numbers = np.full(sum(sizes), np.nan) if numbers is None else numbers
        parts = np.split(self.numbers, np.cumsum(sizes[:-1]))
        scores, spreads, self.diverged, pooled, self.needed = parts
        self.scores = scores.reshape(n_metrics, n_folds)
        self.spreads = spreads.reshape(n_metrics, SPREAD_SIZE, n_folds) if has_spreads else None
        self.pooled = pooled.reshape(n_metrics, 2)
        self.n_updates = 0
        self.seconds = self.seconds_prepare = 0.0
        self.of_rows: np.ndarray | None = None
        self.responses: dict[str, np.ndarray] = {}
        self.n_tested = 0

    @staticmethod
    def sizes(n_metrics: int, n_folds: int, has_spreads: bool) -> list[int]:
        """Return how many numbers the parts have."""
        n_spreads = SPREAD_SIZE * n_metrics * n_folds if has_spreads else 0
        return [n_metrics * n_folds, n_spreads, n_folds, 2 * n_metrics, 1]

    @property
    def n_bytes(self) -> int:
        of_rows = 0 if self.of_rows is None else self.of_rows.nbytes
        return self.numbers.nbytes + of_rows + sum(one.nbytes for one in self.responses.values())


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
        key: Key = self._name, encode(name), 8 * size
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
    """The cache of an estimator's scores on a repeat, and their name in it.

    Attributes
    ----------
    cache : ModelCache, StoredModelCache or None
        One in memory where later processes do not know the scores by the same name.
    of_sums : bytes
        The name of the sums, which do not depend on the point and the scoring; empty: they are
        not kept.
    metrics : tuple of bytes
        The names of the metrics; empty: the scores are not kept.
    fingerprint : str
        The name of the rows; empty if the scores are not kept.
    name : bytes
        The name of the scores; empty: they are not kept.
    """

    cache: AnyCache | None = None
    of_sums: bytes = b""
    metrics: tuple[bytes, ...] = ()
    fingerprint: str = ""
    name: bytes = b""

    def at(self, point: Any) -> "KeptScores":
        """Return the same for the estimator that has these values of the point's parameters."""
        if not self.metrics:
            return self
        return self._replace(name=digest(self.of_sums, encode(point), *self.metrics))

    def find(self, shape: tuple[int, int, bool]) -> RepeatScores | None:
        """Return the scores of this shape if they are kept, see ``RepeatScores``."""
        if self.cache is None or not self.name:
            return None
        memory = self.cache.find((self.name, 8 * sum(RepeatScores.sizes(*shape))))
        return None if memory is None else RepeatScores(shape, memory.view(np.float64))

    def keep(self, scores: RepeatScores, seconds: float) -> None:
        """Keep scores with the seconds that they took."""
        if self.cache is not None and self.name:
            memory = scores.numbers.view(np.uint8)
            keep_scores(self.cache, (self.name, len(memory)), memory, seconds, _SECONDS_OF_REPEAT)
