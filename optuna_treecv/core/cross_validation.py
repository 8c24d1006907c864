"""The data, settings and cuts of one cross-validation: everything but the estimator."""

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
from optuna_treecv.core.repeat import numbers_of_groups
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.repeat import repeats_of
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

# Numbers are far from 0 beside their spread if they are larger than so many standard deviations.
_FAR = 100


@dataclass(frozen=True)
class Search:
    """What the trials of a search have in common.

    Attributes
    ----------
    ends : mapping
        By parameter, the values at the ends of the search, where they are known.
    grid : mapping
        By parameter, all values, where a grid is searched.
    keep_outputs : {"auto", "all", False}
        Which out-of-fold responses outlive their evaluation, see ``Request.kept_responses``.
    tries_all_folds : bool
        Whether fits go on where a fold has failed, to raise ``FoldsFailed`` in the end.
    """

    ends: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)
    grid: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)
    keep_outputs: Literal["auto", "all", False] = False
    tries_all_folds: bool = False


@dataclass(eq=False)
class _Found:
    """What is found once, by the thread that needs it first, and the time that this has taken.

    Attributes
    ----------
    undivided : Settings or None
        How the rows are to be divided; None: they are.
    repeats : list of Repeat
        Empty before the rows are divided.
    seconds : float
    facts : dict
    topics : set of str
        What users were warned about.
    name_of_metadata : list of (bytes or None)
    metadata : Metadata or None
    prepared : dict of RowLayout to PreparedRows
        Of the first repeat.
    further : mapping
        The prepared rows of further repeats that somebody has.
    last : dict
        What was made for the name that was asked for last, by its kind.
    """

    undivided: Settings | None
    repeats: list[Repeat] = field(default_factory=list)
    seconds: float = 0.0
    facts: dict[Hashable, Opaque] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    name_of_metadata: list[bytes | None] = field(default_factory=list)
    metadata: Metadata | None = None
    prepared: dict[RowLayout, PreparedRows] = field(default_factory=dict)
    further: MutableMapping[Hashable, PreparedRows] = field(default_factory=WeakValueDictionary)
    last: dict[str, tuple[Hashable, Opaque]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[object, ...]:
        # Prepared rows are larger than what they are made from, so they are made again. Metadata
        # is compared by identity, which pickling does not keep for all objects.
        found = self.undivided, self.repeats, self.seconds, self.facts, self.topics
        return _Found, (*found, self.name_of_metadata)


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation:
    """A cross-validation without the estimator: data, settings and cuts.

    It is made once and shared by all estimators and threads. The rows are divided when it is known
    whether classes are predicted, prepared when the first estimator asks for them, and kept.

    Attributes
    ----------
    data : Data
        The rows as given.
    settings : Settings
        Without ``cv`` and ``groups``.
    search : Search
    asks_for_passes : bool
        Whether models that are trained further are asked for, and not those of ``fit``.
    groups : ndarray of shape (n_rows,), int, or None
        The number of the group of each row.
    shared : SharedBetweenRuns
        The models and results that runs share.
    unused : UnusedWarnings
        Warns once of parameters that have no effect.
    steps : Steps
        The steps before the learners, fitted once for all of them.
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
        """Return a cross-validation of rows as given.

        Parameters
        ----------
        X, y : the rows as given
        settings : Settings
        estimator : estimator or None
            One of those that will be evaluated; None if none is known yet.
        cache : ModelCache, StoredModelCache or None
            Where models and results are kept; None: nowhere.
        with_others : bool
            Whether other cross-validations may use the same cache.
        search : Search
        topics : set of str or None
            What users were warned about before; None: nothing.
        """
        began = perf_counter()
        found = _Found(settings, topics=set() if topics is None else topics)
        X, y = on_cluster(X, y)
        _warn_once(found, "reading", lambda: why_read_at_once(X))
        X, y, names = opened(X, y, settings.room)
        data = Data(X, y, settings.room, names)
        if settings.room.max_bytes is None:
            _warn_once(found, "memory", lambda: why_not_in_memory(data.X))
        cv, groups = settings.cv, None
        if not isinstance(cv, str | int | float | np.number) and not hasattr(cv, "split"):
            cv = "pairs of training and test rows" if are_pairs(cv) else "fold ids"
        if settings.groups is not None:
            groups = numbers_of_groups(settings.groups, data.n_rows)
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
            _found=found,
        )
        found.seconds = perf_counter() - began
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
        """Return the same with this kind of reports."""
        return self._copy([one.cut for one in self.repeats], replace(self.settings, report=report))

    def trying_all_folds(self) -> Self:
        """Return the same, in which fits go on where a fold has failed."""
        return replace(self, search=replace(self.search, tries_all_folds=True))

    @property
    def repeats(self) -> list[Repeat]:
        """The repeats; none before the rows are divided."""
        return self._found.repeats

    @property
    def topics(self) -> set[str]:
        """What users were warned about."""
        return self._found.topics

    @cached_property
    def n_targets(self) -> int:
        """The number of columns of y."""
        return count_targets(self.data.y)

    def metadata_for(self, estimator: Estimator) -> Metadata:
        """Return what an estimator and its scores get besides X and y.

        It is the same for all estimators of an evaluation. The rows must have been cut.
        """
        metrics: Sequence[Metric | None] = [None]  # a loss that the estimator decides on
        if self.settings.scored_by is not None:
            metrics = self.settings.scored_by.metrics
        unpooled = [metric.of if isinstance(metric, Pooled) else metric for metric in metrics]
        scorers = [one.score if isinstance(one, Scorer) else None for one in unpooled]
        metadata = self._metadata_arguments.metadata_for(estimator, scorers)
        of_folds = not (self.settings.pooled or all(isinstance(one, Pooled) for one in metrics))
        found = self._found
        with found.lock:
            is_first = found.metadata is None
            if found.metadata is None:
                if not metadata.is_nothing():
                    for repeat in self.repeats:
                        metadata.check_masses(repeat.cut, of_folds)
                    found.name_of_metadata = [metadata.name()]
                self.data.weights = metadata.weights
                self.data.score_weights = metadata.score_weights
                found.metadata = metadata
            before = found.metadata
        if is_first and of_folds:
            metadata.warn_if_weights_act_in_no_score(self.repeats[0].cut)
        if not metadata.equals(before):
            raise ValueError(
                "params must reach the fit and the scores of all estimators alike, but "
                f"{name_of(estimator)} and one before it request different ones."
            )
        return metadata

    def fact(self, name: Hashable, find: Callable[[], T]) -> T:
        """Return what is found once and kept under a name."""
        facts = self._found.facts
        with self._found.lock:
            if name not in facts:
                facts[name] = find()
            return facts[name]

    def last(self, kind: str, name: Hashable, make: Callable[[], T]) -> T:
        """Return what is made once and kept until another name of the kind is asked for."""
        kept = self._found.last
        with self._found.lock:
            if kind not in kept or kept[kind][0] != name:
                kept.pop(kind, None)  # its memory may be needed
                kept[kind] = name, make()
            return kept[kind][1]

    def divide_for(self, estimator: Estimator) -> None:
        """Divide the rows, unless that is done, for estimators of the given kind."""
        found = self._found
        with found.lock:
            if found.undivided is None:
                return
            began, settings = perf_counter(), found.undivided
            cuts = divide(self.data, settings, self._cv_in_words, estimator)
            found.repeats = repeats_of(cuts, self.settings)
            found.undivided = None  # cv and groups are not needed again
            found.seconds += perf_counter() - began

    def divided_as(self, cuts: Sequence[Cut]) -> Self:
        """Return a cross-validation that divides the same rows in another way, in the same order.

        Prepared rows and the cache are shared. Nothing is reported, and no outputs are kept.
        """
        return self._copy(
            cuts,
            replace(self.settings, report=None, row_losses=False),
            search=replace(self.search, keep_outputs=False),
            steps=Steps(self.data.X, self.data.y, self.shared.memory),
        )

    def _copy(self, cuts: Sequence[Cut], settings: Settings, **others: Opaque) -> Self:
        """Return a cross-validation of the same rows, prepared once for both."""
        found = replace(self._found, facts={}, further=WeakValueDictionary())
        other = replace(self, settings=settings, _found=found, **others)
        found.repeats = repeats_of(cuts, settings)
        return other

    def repeats_for(self, n_epochs: int) -> list[Repeat]:
        """Return the repeats for models that are trained for a number of epochs."""
        if n_epochs == 1:
            return self.repeats
        name = encode(("epochs", n_epochs))
        return self.fact(
            ("repeats", n_epochs),
            lambda: [
                one._replace(plan=replace(one.plan, n_epochs=n_epochs), key=digest(one.key, name))
                for one in self.repeats
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
        """Warn by the sentence that is found, unless it is empty or was looked for before."""
        _warn_once(self._found, about, find)

    @cached_property
    def tests_single_rows(self) -> bool:
        """Whether each fold tests one row."""
        return all(one.cut.n_tested == one.cut.n_folds for one in self.repeats)

    @cached_property
    def output_type(self) -> np.dtype[np.float32 | np.float64]:
        """The type of predicted numbers that outlive their evaluation.

        float32 rounds too much where numbers are far from 0 beside their spread, as times are.
        """
        y = self.data.y
        is_number = y is not None and y.dtype.kind in "iuf"
        is_far = is_number and np.any(np.abs(y).max(axis=0) > _FAR * np.std(y, axis=0))
        return np.dtype(np.float64 if is_far else np.float32)

    def tested(self, method: str) -> Tested:
        """Return which rows are tested how; ``method`` is that of ``CVResult``."""
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

    def fewest_trained(self, of_classes: bool) -> tuple[int, int]:
        """Return the rows of the smallest training set, and of the rarest class in any of them."""
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
        """Return what is evaluated, in words and numbers."""
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
        """Return a short name for the data, the folds and a scoring.

        It is one that no other evaluation has if a part of it has no name, see ``why_nameless``.
        """
        try:
            return self._name(scoring)
        except NoKey:
            return self._token

    def why_nameless(self, scoring: Scoring) -> str:
        """Return why no later process can recognise this evaluation, a clause; "" if one can."""
        try:
            self._name(scoring)
        except NoKey as error:
            return str(error)
        return ""

    def _name(self, scoring: Scoring) -> str:
        """Return 16 hexadecimal digits that other data, folds or scoring change.

        Raises
        ------
        NoKey
            If a part has no name; its argument is a clause that says which.
        """
        data, n_epochs = self._content(self.data.y), self.settings.n_epochs or 1
        if data is None:
            raise NoKey("X or y holds objects whose content has no digest")
        if None in self._found.name_of_metadata:
            raise NoKey("params holds an object whose content has no digest")
        parts = [data, encode(scoring.names), encode(scoring.optimized), encode(n_epochs)]
        parts += [
            *map(_name_of_metric, scoring.metrics),
            *filter(None, self._found.name_of_metadata),
        ]
        for cut in [repeat.cut for repeat in self.repeats]:
            parts += [encode(cut.n_folds), *map(encode, cut.arrays())]
        return digest(*parts).hex()[:16]

    def _content(self, y: Targets) -> bytes | None:
        """Return the digest of all rows as given with some form of y; X is read once."""
        of_X = self.fact("digest of X", lambda: data_digest(self.data.X))
        of_y = data_digest(y)
        return None if of_X is None or of_y is None else digest(of_X, of_y)

    def rows_in(
        self,
        layout: RowLayout,
        repeat: Repeat | None = None,
        transform: Callable[[Features], Features] | None = None,
        name: bytes | None = b"",
        are_named: bool = False,
    ) -> PreparedRows:
        """Return the rows of a repeat in a layout.

        Transformed rows are kept as ``Steps.rows`` says.

        Parameters
        ----------
        layout : RowLayout
        repeat : Repeat or None
            The default is the first one.
        transform : callable or None
            Makes the rows that are prepared from those given.
        name : bytes or None
            Tells transformations apart; None if they have no name.
        are_named : bool
            Whether models are known by a digest of the prepared rows, which takes time too.
        """
        repeat, found = repeat or self.repeats[0], self._found
        is_kept = name is not None and repeat.number == 0

        def make() -> PreparedRows:
            began, data = perf_counter(), self.data
            if transform is not None:
                data = data.transformed(transform)
            rows = data.prepare(layout, repeat.cut.order, repeat.cut.begins)
            if self.shared.cache is not None and are_named:
                # Digesting the rows is part of preparing them.
                self.names_of(layout, rows, repeat.number, name or b"")
            seconds = perf_counter() - began
            return replace(rows, seconds=seconds + found.seconds if is_kept else seconds)

        if name is None:
            return make()
        with found.lock:
            if repeat.number > 0:
                further = layout, name, repeat.number
                if (rows := found.further.get(further)) is None:
                    rows = found.further[further] = make()
                return rows
            if name:
                return self.steps.rows((layout, name), make)
            if layout not in found.prepared:
                found.prepared[layout] = make()
            return found.prepared[layout]

    def data_name(self) -> tuple[bytes, bool]:
        """Return a name for the rows as given with their weights and what else ``fit`` gets.

        Also return whether later processes name them so too.
        """

        def content() -> bytes | None:
            parts = self._content(self.data.y_given), *self._found.name_of_metadata
            return None if None in parts else digest(*filter(None, parts))

        return self.shared.name_of("as given", content)

    def names_of(
        self, layout: RowLayout, rows: PreparedRows, repeat: int, steps: bytes
    ) -> tuple[bytes, tuple[bytes, bool]]:
        """Return names of prepared rows, and of the targets and weights they are scored with.

        The latter comes with whether later processes give them the same name.
        """
        counts = np.array([rows.n_features, 0 if rows.classes is None else len(rows.classes)])
        of_rows = rows.X, rows.y, rows.weights, counts
        of_scores = rows.targets, rows.classes, rows.score_weights
        what = layout, repeat, steps
        return (
            self.shared.name_of((*what, "rows"), lambda: content_of(*of_rows))[0],
            self.shared.name_of((*what, "scores"), lambda: content_of(*of_scores)),
        )


#: Its name in pickles of earlier versions.
Task = CrossValidation


def on_cluster(X: Features, y: Targets) -> tuple[Features, Targets]:
    """Return rows of Dask as they lie on a cluster, if there is a current client of one."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask(X):
        return X, y
    try:
        client = distributed.get_client()
    except ValueError:
        return X, y
    from optuna_treecv.dask import DaskRows

    return DaskRows(X, y, client), None


def _warn_once(found: _Found, about: str, find: Callable[[], str]) -> None:
    """Warn by the sentence that is found, unless it is empty or was looked for before."""
    with found.lock:
        if about in found.topics:
            return
        found.topics.add(about)
    if sentence := find():
        warn_caller(sentence)


def _name_of_metric(metric: Metric) -> bytes:
    if isinstance(metric, Pooled):
        return b"pooled " + _name_of_metric(metric.of)
    if not isinstance(metric, Scorer) or metric.is_registered:
        return f"{metric.direction} {metric.name}".encode()
    try:
        return content_key(metric.score)
    except NoKey as error:
        raise NoKey(f"the code or the state of the scorer {metric.name} has no digest") from error
