"""The data, settings and splits of one cross-validation: everything but the estimator."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import MutableMapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
import sys
from threading import Lock
from time import perf_counter
from typing import Literal
from typing import Self
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np

from optuna_treecv.caching.caches import AnyCache
from optuna_treecv.caching.keys import content_key
from optuna_treecv.caching.keys import content_of
from optuna_treecv.caching.keys import data_digest
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.caching.keys import token
from optuna_treecv.caching.results import SharedBetweenRuns
from optuna_treecv.core.repeat import can_stratify
from optuna_treecv.core.repeat import divide
from optuna_treecv.core.repeat import encode_groups
from optuna_treecv.core.repeat import make_repeats
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.routing import Metadata
from optuna_treecv.core.routing import MetadataArguments
from optuna_treecv.core.settings import Report
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.core.steps import Steps
from optuna_treecv.core.tested import Tested
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.incremental import UnusedWarnings
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.checks import is_dask
from optuna_treecv.rows.checks import why_not_in_memory
from optuna_treecv.rows.checks import why_read_at_once
from optuna_treecv.rows.cv import are_pairs
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.rows.sources import opened
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue
from optuna_treecv.types import Targets

T = TypeVar("T")

# Targets whose absolute values exceed this multiple of their standard deviation are stored as
# float64.
_MAX_DISTANCE_IN_STDS = 100


@dataclass(frozen=True)
class Search:
    """The properties that all trials of a search have in common.

    Attributes
    ----------
    ends : mapping
        The lowest and the highest value in the search, for each parameter with known bounds.
    grid : mapping
        All values of each parameter of a grid.
    keep_outputs : {"auto", "all", False}
        Which out-of-fold outputs are stored after their evaluation, see
        ``Request.stored_methods``.
    tries_all_folds : bool
        Whether the remaining folds are still fitted after one has failed. ``FoldsFailed`` is then
        raised in the end.
    """

    ends: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)
    grid: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)
    keep_outputs: Literal["auto", "all", False] = False
    tries_all_folds: bool = False


@dataclass(eq=False)
class _Found:
    """State that is computed once, by the first thread that needs it, and then shared.

    Attributes
    ----------
    undivided : Settings or None
        The settings for splitting the rows; None after they have been split.
    repeats : list of Repeat
        The repeats; empty before the rows are split.
    seconds : float
        The time spent on preparing the rows so far.
    facts : dict
        The values that ``CrossValidation.fact`` has computed, by key.
    topics : set of str
        The topics of the warnings that have been checked already.
    metadata_keys : list of (bytes or None)
        The key of the metadata, or [None] if it cannot be computed; empty if there are no
        metadata.
    metadata : Metadata or None
    prepared : dict of RowLayout to PreparedRows
        The prepared rows of the first repeat.
    further : mapping
        The prepared rows of the other repeats, as long as they are in use.
    last : dict
        The most recently requested object of each kind, with its key.
    """

    undivided: Settings | None
    repeats: list[Repeat] = field(default_factory=list)
    seconds: float = 0.0
    facts: dict[Hashable, Opaque] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    metadata_keys: list[bytes | None] = field(default_factory=list)
    metadata: Metadata | None = None
    prepared: dict[RowLayout, PreparedRows] = field(default_factory=dict)
    further: MutableMapping[Hashable, PreparedRows] = field(default_factory=WeakValueDictionary)
    last: dict[str, tuple[Hashable, Opaque]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[object, ...]:
        # Prepared rows are not pickled, because they are larger than the rows as given; they are
        # prepared again. Metadata are not pickled either, because they are compared by identity,
        # which pickling does not preserve for all objects.
        state = self.undivided, self.repeats, self.seconds, self.facts, self.topics
        return _Found, (*state, self.metadata_keys)


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation:
    """The data, settings and splits of a cross-validation; everything except the estimator.

    It is created once and shared by all estimators and threads. The rows are split as soon as it
    is known whether the estimator is a classifier. They are prepared when the first estimator
    requests them, and then cached.

    Attributes
    ----------
    data : Data
        The rows as given.
    settings : Settings
        The settings, without ``cv`` and ``groups``.
    search : Search
    asks_for_passes : bool
        Whether incrementally trained models are requested, instead of the models of ``fit``.
    groups : ndarray of shape (n_rows,), int, or None
        The group of each row, encoded as 0, 1, ....
    shared : SharedBetweenRuns
        The cached models and results that runs share.
    unused : UnusedWarnings
        Warns once about each parameter that has no effect.
    steps : Steps
        The cached preprocessing, which all candidates share.
    """

    data: Data
    settings: Settings
    search: Search
    asks_for_passes: bool
    groups: Array | None
    shared: SharedBetweenRuns
    unused: UnusedWarnings
    steps: Steps
    _cv_in_words: str
    _metadata_arguments: MetadataArguments
    _token: str
    _found: _Found

    @classmethod
    def of(
        cls,
        X: Features,
        y: Targets,
        settings: Settings,
        estimator: Estimator = None,
        cache: AnyCache | None = None,
        with_others: bool = False,
        search: Search = Search(),
        topics: set[str] | None = None,
    ) -> Self:
        """Create a cross-validation from the arguments of a user.

        Parameters
        ----------
        X, y : features and targets as given
        settings : Settings
        estimator : estimator or None
            One of the estimators that will be evaluated; None if there is none yet.
        cache : ModelCache, StoredModelCache or None
            The cache for models and results; None: nothing is cached.
        with_others : bool
            Whether other cross-validations may use the same cache, so that keys must identify the
            data.
        search : Search
        topics : set of str or None
            The topics of warnings that have been checked already; None: no topics.
        """
        began = perf_counter()
        state = _Found(settings, topics=set() if topics is None else topics)
        X, y = as_remote_rows(X, y)
        _warn_once(state, "reading", lambda: why_read_at_once(X))
        X, y, names = opened(X, y, settings.room)
        data = Data(X, y, settings.room, names)
        if settings.room.max_bytes is None:
            _warn_once(state, "memory", lambda: why_not_in_memory(data.X))
        cv, groups = settings.cv, None
        if not isinstance(cv, str | int | float | np.number) and not hasattr(cv, "split"):
            cv = "pairs of training and test rows" if are_pairs(cv) else "fold ids"
        if settings.groups is not None:
            groups = encode_groups(settings.groups, data.n_rows)
        weights = settings.sample_weight, settings.score_weight
        shared = SharedBetweenRuns(cache, with_others)
        steps = Steps(data.X, data.y, shared.memory)
        if isinstance(data.X, RemoteRows):
            steps = Steps(data.X.sample, None, None)
        # Only reports that the user requested make models incremental, not those chosen for a
        # pruner.
        is_asked = settings.method in ("treecv", "standard", "progressive") or settings.is_early
        cross_validation = cls(
            data=data,
            settings=replace(settings, cv=None, groups=None),
            search=search,
            asks_for_passes=is_asked or settings.n_epochs is not None,
            groups=groups,
            shared=shared,
            unused=UnusedWarnings(warn_caller),
            steps=steps,
            _cv_in_words=str(cv),
            _metadata_arguments=MetadataArguments(*weights, settings.params, data.n_rows),
            _token=token().hex()[:16],
            _found=state,
        )
        state.seconds = perf_counter() - began
        depends_on_estimator = settings.stratify is not False and can_stratify(data, settings)
        if not depends_on_estimator or estimator is not None:
            cross_validation.divide_for(estimator)
        return cross_validation

    def __setstate__(self, state: dict[str, Opaque]) -> None:
        if "_found" not in state:  # pickled by a version in which this class was not frozen
            is_divided = bool(state["repeats"])
            state["_found"] = _Found(
                None if is_divided else state["settings"],
                state["repeats"],
                state["_seconds"],
                state["_facts"],
                state["topics"],
                state["_name_of_metadata"],
            )
            names = "searched", "grid", "keeps_outputs", "tries_all_folds"
            state["search"] = Search(*(state[name] for name in names))
        self.__dict__.update(state)

    def with_report(self, report: Report) -> Self:
        """Return a copy with another value of ``report``."""
        return self._copy([r.cut for r in self.repeats], replace(self.settings, report=report))

    def with_all_folds_tried(self) -> Self:
        """Return a copy in which the remaining folds are still fitted after one has failed."""
        return replace(self, search=replace(self.search, tries_all_folds=True))

    @property
    def repeats(self) -> list[Repeat]:
        """The repeats; an empty list before the rows are split."""
        return self._found.repeats

    @property
    def topics(self) -> set[str]:
        """The topics of the warnings that have been checked already."""
        return self._found.topics

    @cached_property
    def n_targets(self) -> int:
        """The number of columns of y."""
        return count_targets(self.data.y)

    def metadata_for(self, estimator: Estimator) -> Metadata:
        """Return the metadata, such as weights, that ``fit`` and the scorers of an estimator get.

        They must be the same for all estimators of a cross-validation. The rows must have been
        split.
        """
        metrics: Sequence[Metric | None] = [None]  # None is the default loss of the estimator
        if self.settings.scored_by is not None:
            metrics = self.settings.scored_by.metrics
        unpooled = [metric.of if isinstance(metric, Pooled) else metric for metric in metrics]
        scorers = [metric.score if isinstance(metric, Scorer) else None for metric in unpooled]
        metadata = self._metadata_arguments.metadata_for(estimator, scorers)
        of_folds = not (
            self.settings.pooled or all(isinstance(metric, Pooled) for metric in metrics)
        )
        state = self._found
        with state.lock:
            is_first = state.metadata is None
            if state.metadata is None:
                if not metadata.is_empty():
                    for repeat in self.repeats:
                        metadata.check_fold_weights(repeat.cut, of_folds)
                    state.metadata_keys = [metadata.key()]
                self.data.weights = metadata.weights
                self.data.score_weights = metadata.score_weights
                state.metadata = metadata
            first = state.metadata
        if is_first and of_folds:
            metadata.warn_if_weights_unused(self.repeats[0].cut)
        if not metadata.equals(first):
            raise ValueError(
                "all estimators must request the same params for fit and for scores, but the "
                f"requests of {name_of(estimator)} differ from those of an earlier estimator."
            )
        return metadata

    def fact(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of ``compute()``, which is called once for each key."""
        facts = self._found.facts
        with self._found.lock:
            if key not in facts:
                facts[key] = compute()
            return facts[key]

    def last(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, and cache it until another key of the same kind is requested."""
        last = self._found.last
        with self._found.lock:
            if kind not in last or last[kind][0] != key:
                last.pop(kind, None)  # the new object may need its memory
                last[kind] = key, make()
            return last[kind][1]

    def divide_for(self, estimator: Estimator) -> None:
        """Split the rows for this type of estimator if they are not split yet."""
        state = self._found
        with state.lock:
            if state.undivided is None:
                return
            began, settings = perf_counter(), state.undivided
            cuts = divide(self.data, settings, self._cv_in_words, estimator)
            state.repeats = make_repeats(cuts, self.settings)
            state.undivided = None  # cv and groups are not needed again
            state.seconds += perf_counter() - began

    def with_splits(self, cuts: Sequence[Cut]) -> Self:
        """Return a copy with other splits of the same rows, which stay in the same order.

        Both share the prepared rows and the cache. The copy reports nothing and stores no outputs.
        """
        return self._copy(
            cuts,
            replace(self.settings, report=None, row_losses=False),
            search=replace(self.search, keep_outputs=False),
            steps=Steps(self.data.X, self.data.y, self.shared.memory),
        )

    def _copy(self, cuts: Sequence[Cut], settings: Settings, **others: Opaque) -> Self:
        """Return a copy with these splits and settings, which shares the prepared rows."""
        state = replace(self._found, facts={}, further=WeakValueDictionary())
        other = replace(self, settings=settings, _found=state, **others)
        state.repeats = make_repeats(cuts, settings)
        return other

    def repeats_for(self, n_epochs: int) -> list[Repeat]:
        """Return the repeats, with trees and keys for models that are trained for ``n_epochs``."""
        if n_epochs == 1:
            return self.repeats
        epochs_key = encode(("epochs", n_epochs))
        return self.fact(
            ("repeats", n_epochs),
            lambda: [
                r._replace(plan=replace(r.plan, n_epochs=n_epochs), key=digest(r.key, epochs_key))
                for r in self.repeats
            ],
        )

    @property
    def n_folds(self) -> int:
        return self.repeats[0].cut.n_folds

    @property
    def n_repeats(self) -> int:
        return len(self.repeats)

    @property
    def folds_in_words(self) -> str:
        """The number of folds and repeats as text, such as "5 x 10 folds"."""
        folds = f"{self.n_folds:,} folds"
        return folds if self.n_repeats == 1 else f"{self.n_repeats} x {folds}"

    def warn_once(self, topic: str, compute: Callable[[], str]) -> None:
        """Warn with the message of ``compute()``, if any, unless the topic was checked before."""
        _warn_once(self._found, topic, compute)

    @cached_property
    def tests_single_rows(self) -> bool:
        """Whether each fold tests a single row, as in leave-one-out."""
        return all(repeat.cut.n_tested == repeat.cut.n_folds for repeat in self.repeats)

    @cached_property
    def output_type(self) -> np.dtype[np.float32 | np.float64]:
        """The dtype in which numeric out-of-fold predictions are stored.

        It is float64 if targets are large compared with their standard deviation, as timestamps
        are, because float32 would round away their differences. Otherwise it is float32.
        """
        y = self.data.y
        is_number = y is not None and y.dtype.kind in "iuf"
        is_far = is_number and np.any(
            np.abs(y).max(axis=0) > _MAX_DISTANCE_IN_STDS * np.std(y, axis=0)
        )
        return np.dtype(np.float64 if is_far else np.float32)

    def tested(self, method: str) -> Tested:
        """Return which rows each fold tests, as a ``Tested``; for ``method``, see ``CVResult``."""
        cuts = [repeat.cut for repeat in self.repeats]
        targets, weights = self.data.y, self.data.score_weights
        return self.fact(
            ("tested", method), lambda: Tested(cuts, targets, weights, method, self.groups)
        )

    @property
    def n_updates_standard(self) -> int:
        """The number of row updates that k trainings from scratch need per epoch.

        For progressive validation, it is the number of rows of all passes.
        """
        if self.settings.method == "progressive":
            return self.n_repeats * self.data.n_rows
        return sum(repeat.cut.n_trained for repeat in self.repeats)

    def smallest_training_set(self, of_classes: bool) -> tuple[int, int]:
        """Return the size of the smallest training set, and of the smallest class in any of them.

        Unless ``of_classes`` is true, all rows count as one class.
        """
        data = self.data

        def count() -> tuple[int, int]:
            codes = data.codes() if of_classes else np.zeros(data.n_rows, np.intp)
            class_sizes = [
                [repeat.cut.count(codes == code)[0] for code in range(int(codes.max()) + 1)]
                for repeat in self.repeats
            ]
            n_trained = min(int(np.sum(sizes, axis=0).min()) for sizes in class_sizes)
            return n_trained, min(int(np.min(sizes)) for sizes in class_sizes)

        return self.fact(("fewest trained", of_classes), count)

    def describe(self) -> dict[str, object]:
        """Return a description of the folds, the data and the seed, as strings and numbers."""
        return {
            "cv": self._cv_in_words,
            "n_folds": self.n_folds,
            "n_repeats": self.n_repeats,
            "n_rows": self.data.n_rows,
            "n_features": self.data.n_features,
            "order": self.settings.order,
            "random_state": str(self.settings.seed),
        }

    def digest(self, scoring: Scoring) -> str:
        """Return a short digest of the data, the folds and a scoring.

        If any of these has no digest (see ``reason_without_digest``), return a random token of
        this evaluation instead.
        """
        try:
            return self._name(scoring)
        except NoKey:
            return self._token

    def reason_without_digest(self, scoring: Scoring) -> str:
        """Return the reason why other processes cannot recognise this evaluation; else ""."""
        try:
            self._name(scoring)
        except NoKey as error:
            return str(error)
        return ""

    def _name(self, scoring: Scoring) -> str:
        """Return 16 hexadecimal digits that identify the data, the folds and the scoring.

        Raises
        ------
        NoKey
            If any of these has no digest. The argument of the error is the reason.
        """
        data, n_epochs = self._content(self.data.y), self.settings.n_epochs or 1
        if data is None:
            raise NoKey("X or y contains objects that cannot be hashed")
        if None in self._found.metadata_keys:
            raise NoKey("params contains an object that cannot be hashed")
        parts = [data, encode(scoring.names), encode(scoring.optimized), encode(n_epochs)]
        parts += [*map(_metric_key, scoring.metrics), *filter(None, self._found.metadata_keys)]
        for cut in [repeat.cut for repeat in self.repeats]:
            parts += [encode(cut.n_folds), *map(encode, cut.arrays())]
        return digest(*parts).hex()[:16]

    def _content(self, y: Targets) -> bytes | None:
        """Return a digest of X as given and of ``y``, or None. X is read only once."""
        X_digest = self.fact("digest of X", lambda: data_digest(self.data.X))
        y_digest = data_digest(y)
        return None if X_digest is None or y_digest is None else digest(X_digest, y_digest)

    def rows_in(
        self,
        layout: RowLayout,
        repeat: Repeat | None = None,
        transform: Callable[[Features], Features] | None = None,
        name: bytes | None = b"",
        needs_keys: bool = False,
    ) -> PreparedRows:
        """Return the rows of a repeat, prepared in a given layout.

        Transformed rows are cached as described in ``Steps.rows``.

        Parameters
        ----------
        layout : RowLayout
        repeat : Repeat or None
            The default is the first repeat.
        transform : callable or None
            Transforms X as given before it is prepared; None: X is not transformed.
        name : bytes or None
            The key of the transformation; None if it has no key, so that its rows are not cached.
        needs_keys : bool
            Whether keys of models contain a digest of the prepared rows. The time for computing it
            then counts as preparation.
        """
        repeat, state = repeat or self.repeats[0], self._found
        is_cached = name is not None and repeat.number == 0

        def make() -> PreparedRows:
            began, data = perf_counter(), self.data
            if transform is not None:
                data = data.transformed(transform)
            rows = data.prepare(layout, repeat.cut.order, repeat.cut.begins)
            if self.shared.cache is not None and needs_keys:
                # Digesting the rows is part of preparing them.
                self.row_keys(layout, rows, repeat.number, name or b"")
            seconds = perf_counter() - began
            return replace(rows, seconds=seconds + state.seconds if is_cached else seconds)

        if name is None:
            return make()
        with state.lock:
            if repeat.number > 0:
                key = layout, name, repeat.number
                if (rows := state.further.get(key)) is None:
                    rows = state.further[key] = make()
                return rows
            if name:
                return self.steps.rows((layout, name), make)
            if layout not in state.prepared:
                state.prepared[layout] = make()
            return state.prepared[layout]

    def data_key(self) -> tuple[bytes, bool]:
        """Return a key for X and y as given, their weights and further arguments of ``fit``.

        Also return whether other processes compute the same key.
        """

        def content() -> bytes | None:
            parts = self._content(self.data.y_given), *self._found.metadata_keys
            return None if None in parts else digest(*filter(None, parts))

        return self.shared.key_for("as given", content)

    def row_keys(
        self, layout: RowLayout, rows: PreparedRows, repeat: int, steps: bytes
    ) -> tuple[bytes, tuple[bytes, bool]]:
        """Return a key of the prepared rows, and a key of the targets and weights used in scoring.

        The second key comes with a bool: whether other processes compute the same key.
        """
        counts = np.array([rows.n_features, 0 if rows.classes is None else len(rows.classes)])
        arrays = rows.X, rows.y, rows.weights, counts
        score_arrays = rows.targets, rows.classes, rows.score_weights
        key = layout, repeat, steps
        return (
            self.shared.key_for((*key, "rows"), lambda: content_of(*arrays))[0],
            self.shared.key_for((*key, "scores"), lambda: content_of(*score_arrays)),
        )


#: The name of this class in pickles of earlier versions.
Task = CrossValidation


def as_remote_rows(X: Features, y: Targets) -> tuple[Features, Targets]:
    """Convert Dask collections to remote rows if there is a current client of a Dask cluster.

    Otherwise, return X and y unchanged.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask(X):
        return X, y
    try:
        client = distributed.get_client()
    except ValueError:
        return X, y
    from optuna_treecv.dask import DaskRows

    return DaskRows(X, y, client), None


def _warn_once(state: _Found, topic: str, compute: Callable[[], str]) -> None:
    """Warn with the message of ``compute()``, if any, unless the topic was checked before."""
    with state.lock:
        if topic in state.topics:
            return
        state.topics.add(topic)
    if message := compute():
        warn_caller(message)


def _metric_key(metric: Metric) -> bytes:
    if isinstance(metric, Pooled):
        return b"pooled " + _metric_key(metric.of)
    if not isinstance(metric, Scorer) or metric.is_registered:
        return f"{metric.direction} {metric.name}".encode()
    try:
        return content_key(metric.score)
    except NoKey as error:
        raise NoKey(f"the code or state of the scorer {metric.name} cannot be hashed") from error
