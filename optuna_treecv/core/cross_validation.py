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

# Numbers are far from 0 relative to their spread above this number of standard deviations.
_MAX_DISTANCE_IN_STDS = 100


@dataclass(frozen=True)
class Search:
    """The properties that all trials of a search have in common.

    Attributes
    ----------
    ends : mapping
        For each parameter with known bounds, the lowest and the highest value of the search.
    grid : mapping
        For each parameter of a grid, all its values.
    keep_outputs : {"auto", "all", False}
        Which out-of-fold outputs outlive their evaluation, see ``Request.stored_methods``.
    tries_all_folds : bool
        Whether further folds are fitted after one has failed, to raise ``FoldsFailed`` in the end.
    """

    ends: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)
    grid: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)
    keep_outputs: Literal["auto", "all", False] = False
    tries_all_folds: bool = False


@dataclass(eq=False)
class _Found:
    """The state that is computed once, by the first thread that needs it.

    Attributes
    ----------
    undivided : Settings or None
        How the rows are to be split; None once they are.
    repeats : list of Repeat
        Empty before the rows are split.
    seconds : float
        The time that preparing the rows has taken so far.
    facts : dict
        The values that ``CrossValidation.fact`` caches, by their keys.
    topics : set of str
        The topics of the warnings that were given.
    metadata_keys : list of (bytes or None)
        The key of the metadata; empty if there are none.
    metadata : Metadata or None
    prepared : dict of RowLayout to PreparedRows
        The prepared rows of the first repeat.
    further : mapping
        The prepared rows of further repeats, while they are in use.
    last : dict
        For each kind of object, the last one that was requested, with its key.
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
        # Prepared rows are larger than the rows as given, so they are prepared again. Metadata
        # are compared by identity, which pickling does not preserve for all objects.
        state = self.undivided, self.repeats, self.seconds, self.facts, self.topics
        return _Found, (*state, self.metadata_keys)


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation:
    """A cross-validation without the estimator: data, settings and splits.

    It is made once and shared by all estimators and threads. The rows are split when it is known
    whether classes are predicted, prepared when the first estimator requests them, and cached.

    Attributes
    ----------
    data : Data
        The rows as given.
    settings : Settings
        Without ``cv`` and ``groups``.
    search : Search
    asks_for_passes : bool
        Whether incremental models are requested, and not those of ``fit``.
    groups : ndarray of shape (n_rows,), int, or None
        The number of the group of each row.
    shared : SharedBetweenRuns
        The models and results that runs share.
    unused : UnusedWarnings
        Warns once of parameters that have no effect.
    steps : Steps
        The preprocessing, fitted once for all learners.
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
        """Return a cross-validation of the rows as given.

        Parameters
        ----------
        X, y : the rows as given
        settings : Settings
        estimator : estimator or None
            One of the estimators that will be evaluated; None if there is none yet.
        cache : ModelCache, StoredModelCache or None
            The cache of models and results; None: they are not cached.
        with_others : bool
            Whether other cross-validations may use the same cache.
        search : Search
        topics : set of str or None
            The topics of earlier warnings; None: there were none.
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
        # Reports that only follow from the pruner do not turn fits into passes.
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
        if "_found" not in state:  # of a version before this one was frozen
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
        """Return a copy with other reports."""
        return self._copy([r.cut for r in self.repeats], replace(self.settings, report=report))

    def with_all_folds_tried(self) -> Self:
        """Return a copy in which further folds are fitted after one has failed."""
        return replace(self, search=replace(self.search, tries_all_folds=True))

    @property
    def repeats(self) -> list[Repeat]:
        """The repeats; none before the rows are split."""
        return self._found.repeats

    @property
    def topics(self) -> set[str]:
        """The topics of the warnings that were given."""
        return self._found.topics

    @cached_property
    def n_targets(self) -> int:
        """The number of columns of y."""
        return count_targets(self.data.y)

    def metadata_for(self, estimator: Estimator) -> Metadata:
        """Return the metadata that an estimator and its scores get besides X and y.

        They are the same for all estimators of an evaluation. The rows must have been split.
        """
        metrics: Sequence[Metric | None] = [None]  # the default loss of the estimator
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
                    state.metadata_keys = [metadata.name()]
                self.data.weights = metadata.weights
                self.data.score_weights = metadata.score_weights
                state.metadata = metadata
            before = state.metadata
        if is_first and of_folds:
            metadata.warn_if_weights_unused(self.repeats[0].cut)
        if not metadata.equals(before):
            raise ValueError(
                "params must be routed to fit and score in the same way for all estimators, but "
                f"{name_of(estimator)} and an earlier estimator request different ones."
            )
        return metadata

    def fact(self, name: Hashable, find: Callable[[], T]) -> T:
        """Return the value of ``find``, which is called once for each key ``name``."""
        facts = self._found.facts
        with self._found.lock:
            if name not in facts:
                facts[name] = find()
            return facts[name]

    def last(self, kind: str, name: Hashable, make: Callable[[], T]) -> T:
        """Return the object of ``make``, cached until the kind is requested by another key."""
        last = self._found.last
        with self._found.lock:
            if kind not in last or last[kind][0] != name:
                last.pop(kind, None)  # its memory may be needed
                last[kind] = name, make()
            return last[kind][1]

    def divide_for(self, estimator: Estimator) -> None:
        """Split the rows for an estimator of this kind, unless that is done."""
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
        """Return a cross-validation with other splits of the same rows, in the same order.

        Prepared rows and the cache are shared. Nothing is reported, and no outputs are stored.
        """
        return self._copy(
            cuts,
            replace(self.settings, report=None, row_losses=False),
            search=replace(self.search, keep_outputs=False),
            steps=Steps(self.data.X, self.data.y, self.shared.memory),
        )

    def _copy(self, cuts: Sequence[Cut], settings: Settings, **others: Opaque) -> Self:
        """Return a cross-validation that shares the prepared rows."""
        state = replace(self._found, facts={}, further=WeakValueDictionary())
        other = replace(self, settings=settings, _found=state, **others)
        state.repeats = make_repeats(cuts, settings)
        return other

    def repeats_for(self, n_epochs: int) -> list[Repeat]:
        """Return the repeats for models that are trained for a number of epochs."""
        if n_epochs == 1:
            return self.repeats
        name = encode(("epochs", n_epochs))
        return self.fact(
            ("repeats", n_epochs),
            lambda: [
                r._replace(plan=replace(r.plan, n_epochs=n_epochs), key=digest(r.key, name))
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
        """The number of folds and repeats."""
        folds = f"{self.n_folds:,} folds"
        return folds if self.n_repeats == 1 else f"{self.n_repeats} x {folds}"

    def warn_once(self, about: str, find: Callable[[], str]) -> None:
        """Warn by the sentence of ``find`` unless it is "" or the topic was checked before."""
        _warn_once(self._found, about, find)

    @cached_property
    def tests_single_rows(self) -> bool:
        """Whether each fold tests one row."""
        return all(repeat.cut.n_tested == repeat.cut.n_folds for repeat in self.repeats)

    @cached_property
    def output_type(self) -> np.dtype[np.float32 | np.float64]:
        """The type of predicted numbers that outlive their evaluation.

        float32 rounds too much if numbers are far from 0 relative to their spread, as times are.
        """
        y = self.data.y
        is_number = y is not None and y.dtype.kind in "iuf"
        is_far = is_number and np.any(
            np.abs(y).max(axis=0) > _MAX_DISTANCE_IN_STDS * np.std(y, axis=0)
        )
        return np.dtype(np.float64 if is_far else np.float32)

    def tested(self, method: str) -> Tested:
        """Return the tests of the rows, for ``method`` as in ``CVResult``."""
        cuts = [repeat.cut for repeat in self.repeats]
        targets, weights = self.data.y, self.data.score_weights
        return self.fact(
            ("tested", method), lambda: Tested(cuts, targets, weights, method, self.groups)
        )

    @property
    def n_updates_standard(self) -> int:
        """The row updates of k trainings from scratch, or of one pass, per epoch."""
        if self.settings.method == "progressive":
            return self.n_repeats * self.data.n_rows
        return sum(repeat.cut.n_trained for repeat in self.repeats)

    def smallest_training_set(self, of_classes: bool) -> tuple[int, int]:
        """Return the rows of the smallest training set, and the fewest rows of a class in any."""
        data = self.data

        def count() -> tuple[int, int]:
            codes = data.codes() if of_classes else np.zeros(data.n_rows, np.intp)
            trained = [
                [repeat.cut.count(codes == code)[0] for code in range(int(codes.max()) + 1)]
                for repeat in self.repeats
            ]
            n_trained = min(int(np.sum(of_repeat, axis=0).min()) for of_repeat in trained)
            return n_trained, min(int(np.min(of_repeat)) for of_repeat in trained)

        return self.fact(("fewest trained", of_classes), count)

    def describe(self) -> dict[str, object]:
        """Return the folds, the data and the seed as strings and numbers."""
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
        """Return the reason why later processes cannot identify this evaluation; else ""."""
        try:
            self._name(scoring)
        except NoKey as error:
            return str(error)
        return ""

    def _name(self, scoring: Scoring) -> str:
        """Return 16 hexadecimal digits that identify the data, folds and scoring.

        Raises
        ------
        NoKey
            If a part has no digest; its argument is the reason.
        """
        data, n_epochs = self._content(self.data.y), self.settings.n_epochs or 1
        if data is None:
            raise NoKey("X or y holds objects whose content has no digest")
        if None in self._found.metadata_keys:
            raise NoKey("params holds an object whose content has no digest")
        parts = [data, encode(scoring.names), encode(scoring.optimized), encode(n_epochs)]
        parts += [*map(_metric_key, scoring.metrics), *filter(None, self._found.metadata_keys)]
        for cut in [repeat.cut for repeat in self.repeats]:
            parts += [encode(cut.n_folds), *map(encode, cut.arrays())]
        return digest(*parts).hex()[:16]

    def _content(self, y: Targets) -> bytes | None:
        """Return the digest of all rows as given with a form of y; X is read once."""
        of_X = self.fact("digest of X", lambda: data_digest(self.data.X))
        of_y = data_digest(y)
        return None if of_X is None or of_y is None else digest(of_X, of_y)

    def rows_in(
        self,
        layout: RowLayout,
        repeat: Repeat | None = None,
        transform: Callable[[Features], Features] | None = None,
        name: bytes | None = b"",
        needs_keys: bool = False,
    ) -> PreparedRows:
        """Return the rows of a repeat in a layout.

        Transformed rows are cached as in ``Steps.rows``.

        Parameters
        ----------
        layout : RowLayout
        repeat : Repeat or None
            The default is the first one.
        transform : callable or None
            Transforms the rows as given before they are prepared.
        name : bytes or None
            The key of the transformation; None if it has none.
        needs_keys : bool
            Whether keys of models contain a digest of the prepared rows, which takes time too.
        """
        repeat, state = repeat or self.repeats[0], self._found
        is_kept = name is not None and repeat.number == 0

        def make() -> PreparedRows:
            began, data = perf_counter(), self.data
            if transform is not None:
                data = data.transformed(transform)
            rows = data.prepare(layout, repeat.cut.order, repeat.cut.begins)
            if self.shared.cache is not None and needs_keys:
                # Digesting the rows is part of preparing them.
                self.row_keys(layout, rows, repeat.number, name or b"")
            seconds = perf_counter() - began
            return replace(rows, seconds=seconds + state.seconds if is_kept else seconds)

        if name is None:
            return make()
        with state.lock:
            if repeat.number > 0:
                further = layout, name, repeat.number
                if (rows := state.further.get(further)) is None:
                    rows = state.further[further] = make()
                return rows
            if name:
                return self.steps.rows((layout, name), make)
            if layout not in state.prepared:
                state.prepared[layout] = make()
            return state.prepared[layout]

    def data_key(self) -> tuple[bytes, bool]:
        """Return a key for the rows as given with their weights and further arguments of ``fit``.

        Also return whether later processes compute the same key.
        """

        def content() -> bytes | None:
            parts = self._content(self.data.y_given), *self._found.metadata_keys
            return None if None in parts else digest(*filter(None, parts))

        return self.shared.key_for("as given", content)

    def row_keys(
        self, layout: RowLayout, rows: PreparedRows, repeat: int, steps: bytes
    ) -> tuple[bytes, tuple[bytes, bool]]:
        """Return keys of prepared rows, and of the targets and weights they are scored with.

        The latter comes with whether later processes compute the same key.
        """
        counts = np.array([rows.n_features, 0 if rows.classes is None else len(rows.classes)])
        of_rows = rows.X, rows.y, rows.weights, counts
        of_scores = rows.targets, rows.classes, rows.score_weights
        what = layout, repeat, steps
        return (
            self.shared.key_for((*what, "rows"), lambda: content_of(*of_rows))[0],
            self.shared.key_for((*what, "scores"), lambda: content_of(*of_scores)),
        )


#: Its name in pickles of earlier versions.
Task = CrossValidation


def as_remote_rows(X: Features, y: Targets) -> tuple[Features, Targets]:
    """Return rows of Dask as remote rows, if there is a current client of a cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask(X):
        return X, y
    try:
        client = distributed.get_client()
    except ValueError:
        return X, y
    from optuna_treecv.dask import DaskRows

    return DaskRows(X, y, client), None


def _warn_once(state: _Found, about: str, find: Callable[[], str]) -> None:
    """Warn by the sentence of ``find`` unless it is "" or the topic was checked before."""
    with state.lock:
        if about in state.topics:
            return
        state.topics.add(about)
    if sentence := find():
        warn_caller(sentence)


def _metric_key(metric: Metric) -> bytes:
    if isinstance(metric, Pooled):
        return b"pooled " + _metric_key(metric.of)
    if not isinstance(metric, Scorer) or metric.is_registered:
        return f"{metric.direction} {metric.name}".encode()
    try:
        return content_key(metric.score)
    except NoKey as error:
        raise NoKey(f"the code or the state of the scorer {metric.name} has no digest") from error
