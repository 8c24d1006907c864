"""The protocol between the core and the engines: plans, result keys and events.

An engine decides whether it can evaluate a request. If it can, it returns a plan, which evaluates
all candidates that differ only in ``Capabilities.free_parameters``. A plan only computes: it
neither looks up nor stores results, and it does not change the state of a run.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from operator import add
from types import MappingProxyType
from typing import Literal
from typing import NamedTuple

from optuna_treecv.caching.caches import AnyCache
from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.results import ScoreCache
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import packed_sizes
from optuna_treecv.core.request import Request
from optuna_treecv.core.result import Curve
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.preprocessing.parts import ModelsFrom
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque


class RowProgress(NamedTuple):
    """Scores of rows that are available before the scores of folds.

    Attributes
    ----------
    candidate : int
        The index of the candidate in ``Work.candidates``.
    step : int
        The number of completed sixteenths of a training pass, or ``NESTED_STEP``.
    scores : RowScores
        The scores of all rows that have been tested so far.
    was_pruned : bool
        Whether the candidate was pruned while its batch was evaluated.
    """

    candidate: int
    step: int
    scores: RowScores
    was_pruned: bool = False


#: The maximum number of reports while the ensemble of the first fold grows, and the first step of
#: later reports.
LEAD_STEPS = 16


class TreeProgress(NamedTuple):
    """Scores of ensembles to which trees are still being added.

    Attributes
    ----------
    candidate : int
    step : int
        The step of the report.
    value : float
        The mean score of the folds that have been evaluated so far.
    n_trees, n_folds : int
        The number of trees, and the number of folds whose ensembles have this number of trees.
    n_left : int
        The number of trees that may still be added in these folds.
    ends : tuple of int
        The numbers of trees at the reports of the first fold.
    scores : RowScores or None
        The scores of the test rows of the first fold, when it has all its trees and
        ``Watch.takes_rows`` is true.
    """

    candidate: int
    step: int
    value: float
    n_trees: int
    n_folds: int
    n_left: int = 0
    ends: tuple[int, ...] = ()
    scores: RowScores | None = None


class TestedFolds(NamedTuple):
    """Predictions or scores of consecutive folds of a repeat, in tree order.

    Attributes
    ----------
    candidate : int
    folds : Node
    n_needed : int
        The number of row updates that the models of these folds need, including cached models.
    predictions : TestedRows or None
        None if predictions are not requested or are scored by the engine itself.
    scores : FoldScores or None
        The fold scores. If they are None, they are computed from ``predictions``, except the
        scores that ``called`` returns.
    called : callable or None
        (folds) -> the scores by those scorers that are called once per fold, as a mapping from the
        index of the metric.
    pooled : ndarray of shape (n_metrics, 2) or None
        The pooled scores of the repeat and their standard errors, if they were stored.
    record : ArrayThenCount, ndarray or None
        The record to store if these folds complete a ``ResultSpec``. If it is None, the scores of
        all its folds are stored, or nothing if the ``ResultSpec`` has a ``read``.
    seconds : float or None
        The time that these folds have taken; None: unknown.
    n_uncounted : int
        The number of row updates of a stored result that no trial has counted yet.
    """

    candidate: int
    folds: Node
    n_needed: int
    predictions: TestedRows | None = None
    scores: FoldScores | None = None
    called: Callable[[Node], Mapping[int, Array]] | None = None
    pooled: Array | None = None
    record: ArrayThenCount | Array | None = None
    seconds: float | None = None
    n_uncounted: int = 0


class ModelSum(NamedTuple):
    """The sum of the models of all folds of a repeat, from which their average is computed.

    Attributes
    ----------
    candidate : int
    total : ndarray
    n_models : int
    as_estimator : callable
        (model) -> a fitted estimator.
    """

    candidate: int
    total: Array
    n_models: int
    as_estimator: Callable[[Array], Estimator]


class Failed(Exception):
    """The failure of a plan: ``evaluate`` yields it as an event, ``predict`` raises it.

    It is the last event of the candidate, unless it is about single folds and
    ``Search.tries_all_folds`` is true.

    Parameters
    ----------
    error : Exception
        The error to raise if the folds are not refitted one by one.
    reason : str
        The reason for refitting the folds.
    candidate : int
    folds : Node or None
        The folds that failed; None: all requested folds.
    outranks_refit_errors : bool
        Whether ``error`` is raised in place of any error of refitting the folds that is not a
        ValueError.
    """

    def __init__(
        self,
        error: Exception,
        reason: str = "",
        candidate: int = 0,
        folds: Node | None = None,
        outranks_refit_errors: bool = True,
    ) -> None:
        super().__init__(reason)
        self.error, self.reason, self.outranks_refit_errors = error, reason, outranks_refit_errors
        self.candidate, self.folds = candidate, folds


Event = RowProgress | TreeProgress | TestedFolds | ModelSum | Failed


class ResultSpec(NamedTuple):
    """A result that can be looked up in a cache or store.

    Attributes
    ----------
    key : Key
    cache : AnyCache
    read : callable or None
        (memory) -> the event for the folds. If it is None, the result consists of packed fold
        scores.
    is_optional : bool
        Whether the result is written to the store of the cache only if another run may have the
        same parameters. Other results are always stored if they took long enough to compute.
    """

    key: Key
    cache: AnyCache
    read: Callable[[Array], TestedFolds] | None = None
    is_optional: bool = False


class Results(NamedTuple):
    """The keys of the results of a candidate on a repeat.

    Attributes
    ----------
    key : str
        The key of the estimator and its training, in hexadecimal; "" if there is no key.
    fingerprint : str
        The fingerprint of the rows.
    group : bytes
        The group of the candidate. Candidates of the same group are evaluated in one call. If the
        group is empty, the candidate is evaluated alone.
    specs : dict of int to ResultSpec
        Maps the end of a range of consecutive folds to the stored result of this range. A range
        begins where the previous one ends; the first range begins at fold 0.
    n_bytes : int
        The number of bytes that a batch needs for this candidate besides its scores.
    bound : object
        An object that the plan needs to evaluate the candidate and that is expensive to create.
    """

    key: str = ""
    fingerprint: str = ""
    group: bytes = b""
    specs: Mapping[int, ResultSpec] = MappingProxyType({})
    n_bytes: int = 0
    bound: Opaque = None


class Watch:
    """Requests scores before folds are complete, and may prune candidates of a batch.

    This base class prunes no candidate.

    Attributes
    ----------
    takes_rows : bool
        Whether the scores of rows are requested while ensembles grow.
    """

    takes_rows = False

    def losers(self, step: int, scores: Sequence[RowScores], rows: "slice[int]") -> list[int]:
        """Return the indices of the candidates to prune, given their scores on a slice of rows."""
        return []


@dataclass
class Cost:
    """The cost of an evaluation, in row updates and seconds.

    Attributes
    ----------
    n_updates : int
        The number of row updates: rows trained on, counted over all models.
    n_needed : int
        The number of row updates that all models need, including cached models.
    n_uncounted : int
        The row updates of a batch whose results were stored for other processes, which are not in
        ``n_updates``. They are counted only once: by the first trial with these results that is
        recorded in the store.
    seconds, seconds_prepare : float
        The time of the evaluation, and the time for preparing the rows.
    """

    n_updates: int = 0
    n_needed: int = 0
    n_uncounted: int = 0
    seconds: float = 0.0
    seconds_prepare: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True, eq=False)
class Sink:
    """Receives what a plan reports besides its events.

    Attributes
    ----------
    cost : Cost
        The plan adds its row updates and the seconds for preparing rows.
    may_recur : bool
        Whether another run may have the same parameters, so that it is useful to store models.
    set_curve : callable
        (curve) -> None. Receives the curve of scores over the number of trees.
    take : callable
        (TestedFolds) -> None. Stores the folds that were complete when the evaluation was closed
        early.
    """

    cost: Cost
    may_recur: bool
    set_curve: Callable[[Curve], None]
    take: Callable[[TestedFolds], None]


class Work(NamedTuple):
    """The candidates and folds that a plan has to evaluate.

    Attributes
    ----------
    candidates : sequence of estimators
        The candidates, which all belong to one group.
    sinks : sequence of Sink
        One sink per candidate.
    repeat : Repeat
    folds : sequence of int
        The indices of the folds without a stored result. It may be empty if there is a watch.
    watch : Watch or None
        Requests early scores; None: only complete folds are reported.
    bound : sequence of object
        The ``bound`` of the ``Results`` of each candidate.
    """

    candidates: Sequence[Candidate]
    sinks: Sequence[Sink]
    repeat: Repeat
    folds: Sequence[int]
    watch: Watch | None
    bound: Sequence[Opaque]


@dataclass(frozen=True)
class Capabilities:
    """What a plan can do.

    Attributes
    ----------
    free_parameters : collection of str
        The parameters that affect neither the choice of the engine nor the plan, as long as their
        values are positive and finite numbers. Other values, such as ``alpha=0`` of ``Ridge``,
        need a new plan.
    shared_parameters : tuple of str
        The parameters in which the candidates of one ``evaluate`` call may differ.
    is_incremental : bool
        Whether models are trained by ``partial_fit``, in passes over their rows.
    is_seeded : bool
        Whether models depend on ``random_state``.
    early_reports : {"", "rows", "trees"}
        Which scores are available before folds are complete: scores of rows, scores of growing
        ensembles ("trees"), or none ("").
    n_epochs : int
        The number of epochs for which models are trained.
    one_epoch_reason : str
        The reason why models are trained for a single epoch; "" if they may be trained for more.
    in_memory_reason : str
        The reason why all rows must be in memory; "" if they may be on disk.
    falls_back : bool
        Whether folds are refitted if the plan fails and ``method`` does not name its engine.
    evaluates_jointly : bool
        Whether all folds of a repeat are evaluated before the first fold is reported.
    keeps_outputs : bool
        Whether outputs are kept that no score needs, because this takes little time compared with
        the evaluation. Other plans compute outputs fast, or take long to predict.
    caches_responses : bool
        Whether computing predictions would require another training. If so, they are cached
        together with the scores.
    averages_models : bool
        Whether the models of folds can be averaged.
    leaves_out_pairs : bool
        Whether models that hold out two folds are hardly more expensive than models that hold out
        one.
    models_from : ModelsFrom
        How the models are trained, which determines how their preprocessing is evaluated.
    settings : tuple of str
        The names in ``core.settings.ENGINE_SETTINGS`` that the plan supports.
    readings : str
        How often rows on disk are read, as the end of a sentence; "" if unknown.
    with_size : callable or None
        (estimator, n_trees) -> an ensemble with that number of trees.
    coefficients : callable or None
        (plan, candidates, repeat) -> for each fold, an array of linear models of shape
        (n_candidates, n_outputs, n_columns). The last column holds the intercepts, if there are
        any. The estimator must have no transformers.
    """

    free_parameters: Collection[str] = ()
    shared_parameters: tuple[str, ...] = ()
    is_incremental: bool = False
    is_seeded: bool = True
    early_reports: Literal["", "rows", "trees"] = ""
    n_epochs: int = 1
    one_epoch_reason: str = ""
    in_memory_reason: str = ""
    falls_back: bool = False
    evaluates_jointly: bool = False
    keeps_outputs: bool = False
    caches_responses: bool = False
    averages_models: bool = False
    leaves_out_pairs: bool = False
    models_from: ModelsFrom = ModelsFrom.FIT
    settings: tuple[str, ...] = ()
    readings: str = ""
    with_size: Callable[[Estimator, int], Estimator] | None = None
    coefficients: "Callable[[Opaque, Sequence[Candidate], Repeat], list[Array]] | None" = None

    @property
    def computes_outputs(self) -> bool:
        """Whether outputs are computed from what candidates share, so that none are kept."""
        return self.evaluates_jointly and not self.keeps_outputs


class Declined(NamedTuple):
    """The refusal of an engine to evaluate a request.

    Attributes
    ----------
    reason : str
    advice : str
        The error message if ``method`` is the name of this engine.
    free_parameters : collection of str
        The parameters that do not affect the refusal.
    relevance : {0, 1, 2}
        How relevant the reason is to the user, who is shown the most relevant one: 2 for an engine
        that is made for estimators of this kind, 1 for the engine whose reason is shown if there
        is no such engine, else 0.
    warning : str
        The reason to state in a warning if folds are fitted one by one because of this refusal.
    offer : str
        A sentence about what the engine would do if ``method`` named it.
    """

    reason: str
    advice: str = ""
    free_parameters: Collection[str] = ()
    relevance: int = 0
    warning: str = ""
    offer: str = ""


class Plan(ABC):
    """How an engine evaluates the candidates of a request.

    Parameters
    ----------
    request : Request

    Attributes
    ----------
    name : str
        The name of the engine, under which results are stored; ``CVResult.method``.
    capabilities : Capabilities
    reason : str
        The reason why "auto" chooses this engine.
    fallback : Plan or None
        The plan that refits the folds if this one fails.
    """

    name: str
    capabilities: Capabilities
    reason = ""
    fallback: "Plan | None" = None

    def __init__(self, request: Request) -> None:
        self.request = request

    @property
    def n_epochs(self) -> int:
        """The number of epochs for which models are trained."""
        return self.capabilities.n_epochs

    @property
    def repeats(self) -> Sequence[Repeat]:
        """The repeats, with trees for the number of epochs."""
        return self.request.cross_validation.repeats_for(self.n_epochs)

    def with_request(self, request: Request) -> "Plan":
        """Return a copy of the plan for another request that has the same candidates."""
        other = copy(self)
        other.request = request
        if self.fallback is not None:
            other.fallback = self.fallback.with_request(request)
        return other

    def check(self, candidate: Candidate) -> None:  # noqa: B027  # usually, fit raises the error
        """Raise an error if a free parameter has an invalid value.

        Raises
        ------
        ValueError
        """

    def prepare(self) -> None:  # noqa: B027  # most plans prepare rows in evaluate
        """Prepare the rows, so that errors in the data are raised before the first trial."""

    @abstractmethod
    def cost(self) -> str:
        """Return a sentence about the cost of an evaluation."""

    @abstractmethod
    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the results of a candidate on a repeat."""

    @abstractmethod
    def evaluate(self, work: Work) -> Generator[Event]:
        """Evaluate the candidates of one group; yield the events of each candidate in order.

        Closing the iterator ends the evaluation.
        """

    @abstractmethod
    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Return the out-of-fold predictions in the order of the rows as given."""

    def fold_models(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Return the fitted models of all folds of a repeat, in the order of the chunks."""
        raise ValueError(
            f"method must not be {self.name!r} for fold models, because it has none; use "
            "method='fit' instead."
        )

    def fit(self, candidate: Candidate) -> Estimator:
        """Return the estimator fitted on all rows."""
        return self.request.fit_on_all_rows(candidate)


@dataclass(frozen=True)
class Engine:
    """A method for evaluating the folds of an estimator.

    Attributes
    ----------
    name : str
    plan : callable
        (request) -> a plan or a refusal. It raises a ValueError if a parameter of the estimator is
        invalid.
    methods : tuple of str
        The values of ``method`` for which this engine may be chosen.
    rows : {"local", "remote", "any"}
        Where the rows may be: in this process (in memory or on disk), or on other machines.
    nests_by : callable or None
        (estimator) -> the name of a parameter, such as "n_estimators", for which the model with a
        smaller value is the beginning of the model with a larger value; "" if there is none.
    """

    name: str
    plan: Callable[[Request], Plan | Declined]
    methods: tuple[str, ...]
    rows: Literal["local", "remote", "any"] = "local"
    nests_by: Callable[[Estimator], str] | None = None


def results_of(request: Request, repeat: Repeat, stored: ScoreCache) -> Results:
    """Return the keys under which all fold scores of a repeat are stored."""
    specs = specs_of_scores(request, repeat, stored)
    return Results(stored.name, stored.data.hex(), specs=specs)


def specs_of_scores(
    request: Request, repeat: Repeat, stored: ScoreCache
) -> Mapping[int, ResultSpec]:
    """Return the ``specs`` of ``Results`` for all fold scores of a repeat.

    Return an empty mapping if row scores are needed, because these are not stored.
    """
    if request.needs_rows or stored.cache is None or not stored.settings:
        return {}
    key = stored.key(8 * sum(packed_sizes(request, repeat)))
    return {repeat.cut.n_folds: ResultSpec(key, stored.cache)}
