"""The protocol between the core and the engines: plans, the keys of their results, their events.

An engine decides whether it can evaluate a request. If so, it returns a plan, which evaluates all
candidates that differ in ``Capabilities.free_parameters`` alone. A plan only computes: it looks up
and stores no results, and does not change the state of a run.
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
    """Scores of rows, available before the scores of folds.

    Attributes
    ----------
    candidate : int
        The number of the candidate among those that are evaluated.
    step : int
        The sixteenths of a training pass that are done, or ``NESTED_STEP``.
    scores : RowScores
        The scores of all rows so far.
    was_pruned : bool
        Whether the candidate was pruned within its batch.
    """

    candidate: int
    step: int
    scores: RowScores
    was_pruned: bool = False


class TreeProgress(NamedTuple):
    """Scores of ensembles that are still growing.

    Attributes
    ----------
    candidate : int
    step : int
        The step of the report.
    value : float
        The mean score of the folds so far.
    n_trees, n_folds : int
        The number of trees, and of the folds whose ensembles have that many.
    n_left : int
        The trees that these folds may still grow.
    scores : RowScores or None
        The scores of the test rows of the first fold, while it grows alone and ``watch`` takes
        rows.
    """

    candidate: int
    step: int
    value: float
    n_trees: int
    n_folds: int
    n_left: int = 0
    scores: RowScores | None = None


class TestedFolds(NamedTuple):
    """Predictions or scores of consecutive folds of a repeat, in the order of the tree.

    Attributes
    ----------
    candidate : int
    folds : Node
    n_needed : int
        The rows of their trainings, including those of cached models.
    predictions : TestedRows or None
        None if predictions are not requested, or do not leave the engine.
    scores : FoldScores or None
        None: they are computed from the predictions, except the scores of ``called``.
    called : callable or None
        (folds) -> by the number of the metric, the scores that cannot be computed from
        predictions.
    pooled : ndarray of shape (n_metrics, 2) or None
        The pooled scores of the repeat with their standard errors, if they were stored.
    record : ArrayThenCount, ndarray or None
        The record to store if these are the last folds of a ``ResultSpec``; None: the scores of
        all of them.
    seconds : float or None
        The time that these folds alone have taken; None: unknown.
    n_uncounted : int
        The row updates of a stored result that no trial has counted yet.
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


class FoldModels(NamedTuple):
    """The sum of the models of all folds of a repeat, for their average.

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
    """A plan has failed for folds of a candidate: ``evaluate`` yields it, ``predict`` raises it.

    It is the last event of its candidate.

    Parameters
    ----------
    error : Exception
        The error to raise unless the folds are refitted one by one.
    reason : str
        The reason to refit the folds.
    candidate : int
    folds : Node or None
        None: all requested folds.
    stands : bool
        Whether this error is raised if the refits raise another one that is no ValueError.
    """

    def __init__(
        self,
        error: Exception,
        reason: str = "",
        candidate: int = 0,
        folds: Node | None = None,
        stands: bool = True,
    ) -> None:
        super().__init__(reason)
        self.error, self.reason, self.stands = error, reason, stands
        self.candidate, self.folds = candidate, folds


Event = RowProgress | TreeProgress | TestedFolds | FoldModels | Failed


class ResultSpec(NamedTuple):
    """A result that can be looked up.

    Attributes
    ----------
    key : Key
    cache : AnyCache
    read : callable or None
        (memory) -> the folds; None: it contains their scores.
    is_optional : bool
        Whether a store behind the cache skips it if no other run has the same parameters. Other
        results are stored if they took some time.
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
        The key of the estimator and its training, in hexadecimal; "" if it has none.
    fingerprint : str
        The fingerprint of the rows.
    group : bytes
        Candidates of equal groups are evaluated in one call; empty: each one alone.
    specs : dict of int to ResultSpec
        By the end of the run of folds whose scores it contains. Each run begins at the end of the
        previous one.
    n_bytes : int
        The bytes that a batch holds for the candidate's run beside its scores.
    bound : object
        An object that the plan needs to evaluate the candidate, if it took time to make.
    """

    key: str = ""
    fingerprint: str = ""
    group: bytes = b""
    specs: Mapping[int, ResultSpec] = MappingProxyType({})
    n_bytes: int = 0
    bound: Opaque = None


class Watch:
    """Requests early scores, and may prune candidates of a batch.

    This default prunes no candidate.

    Attributes
    ----------
    takes_rows : bool
        Whether it requests the scores of rows while ensembles grow.
    """

    takes_rows = False

    def losers(self, step: int, scores: Sequence[RowScores], rows: "slice[int]") -> list[int]:
        """Return the numbers of the candidates to prune by their scores on a slice of rows."""
        return []


@dataclass
class Cost:
    """The cost of an evaluation, in row updates and seconds.

    Attributes
    ----------
    n_updates : int
        The rows trained on.
    n_needed : int
        The rows of all trainings, including those of cached models.
    n_uncounted : int
        The rows that a batch has trained on for the store: the first trial that is recorded there
        with its results counts them as ``n_updates``.
    seconds, seconds_prepare : float
        The time of the evaluation, and the time in which the rows were prepared.
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
    """Receives what a plan reports beside its events.

    Attributes
    ----------
    cost : Cost
        The plan adds its row updates, and the seconds in which rows were prepared.
    comes_again : bool
        Whether another run may have the same parameters, so that a store may keep its models.
    set_curve : callable
        (curve) -> None. Receives the scores after each number of trees.
    take : callable
        (TestedFolds) -> None. Stores the folds that were done when the evaluation was closed.
    """

    cost: Cost
    comes_again: bool
    set_curve: Callable[[Curve], None]
    take: Callable[[TestedFolds], None]


class Work(NamedTuple):
    """The candidates and folds that a plan is to evaluate.

    Attributes
    ----------
    candidates : sequence of estimators
        All of one group.
    sinks : sequence of Sink
        One for each candidate.
    repeat : Repeat
    folds : sequence of int
        The folds without a stored result. With a watch, it may be empty.
    watch : Watch or None
        Requests early scores.
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
        The parameters on which neither the choice of the engine nor the plan depends, as long as
        they are positive and finite numbers.
    shared_parameters : tuple of str
        The parameters in which the candidates of one call may differ.
    is_incremental : bool
        Whether models are trained by ``partial_fit``, in passes over their rows.
    is_seeded : bool
        Whether models depend on ``random_state``.
    early_reports : {"", "rows", "trees"}
        Which scores are available before those of folds.
    n_epochs : int
        The number of epochs for which models are trained.
    why_one_epoch : str
        The reason why models are trained for a single epoch; "" if they may be trained for more.
    needs_memory : str
        The reason why all rows must be in memory; "" if they may be on disk.
    falls_back : bool
        Whether folds are refitted if the plan fails and ``method`` does not name its engine.
    at_once : bool
        Whether all folds of a repeat are evaluated before the first one is reported.
    caches_responses : bool
        Whether predictions would take another training, so that they are cached beside the
        scores.
    averages_models : bool
        Whether the models of folds can be averaged.
    leaves_out_pairs : bool
        Whether models that leave out two folds take little more time.
    preprocessing : ModelsFrom
        How the models are trained, which decides how their preprocessing is evaluated.
    settings : tuple of str
        Which of ``core.settings.ENGINE_SETTINGS`` it takes.
    readings : str
        How often rows on disk are read, as the end of a sentence; "" if that is unknown.
    with_size : callable or None
        (estimator, n_trees) -> an ensemble of the best number of trees.
    fold_models : callable or None
        (plan, candidates, repeat) -> the linear models of each fold, (n_candidates, n_outputs,
        n_columns), for rows without transformers. The last column holds intercepts, if any.
    """

    free_parameters: Collection[str] = ()
    shared_parameters: tuple[str, ...] = ()
    is_incremental: bool = False
    is_seeded: bool = True
    early_reports: Literal["", "rows", "trees"] = ""
    n_epochs: int = 1
    why_one_epoch: str = ""
    needs_memory: str = ""
    falls_back: bool = False
    at_once: bool = False
    caches_responses: bool = False
    averages_models: bool = False
    leaves_out_pairs: bool = False
    preprocessing: ModelsFrom = ModelsFrom.FIT
    settings: tuple[str, ...] = ()
    readings: str = ""
    with_size: Callable[[Estimator, int], Estimator] | None = None
    fold_models: "Callable[[Opaque, Sequence[Candidate], Repeat], list[Array]] | None" = None


class Declined(NamedTuple):
    """The refusal of an engine to evaluate a request.

    Attributes
    ----------
    reason : str
    advice : str
        The error message if ``method`` names the engine.
    free_parameters : collection of str
        The parameters on which the refusal does not depend.
    relevance : {0, 1, 2}
        The user is given the reason of the highest relevance: 2 if the engine is for estimators of
        this kind, 1 if no engine is.
    warning : str
        The reason to give in a warning if folds are refitted because of this.
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
        Why "auto" takes the engine.
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
        """Return a copy of the plan for another request of the same candidates."""
        other = copy(self)
        other.request = request
        if self.fallback is not None:
            other.fallback = self.fallback.with_request(request)
        return other

    def check(self, candidate: Candidate) -> None:  # noqa: B027  # in most plans, fits refuse them
        """Refuse wrong values of free parameters.

        Raises
        ------
        ValueError
        """

    def prepare(self) -> None:  # noqa: B027  # most plans do so when they evaluate
        """Prepare the rows, so that errors in them are raised before the first trial."""

    @abstractmethod
    def cost(self) -> str:
        """Return a sentence about the cost of an evaluation."""

    @abstractmethod
    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the results of a candidate on a repeat."""

    @abstractmethod
    def evaluate(self, work: Work) -> Generator[Event]:
        """Evaluate candidates of one group, and yield the events of each of them in order.

        Closing the iterator ends the evaluation.
        """

    @abstractmethod
    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Return the out-of-fold predictions in the order of the rows as given."""

    def fit(self, candidate: Candidate) -> Estimator:
        """Return the estimator fitted on all rows."""
        return self.request.fit_on_all_rows(candidate)


@dataclass(frozen=True)
class Engine:
    """A way to evaluate folds.

    Attributes
    ----------
    name : str
    plan : callable
        (request) -> a plan or a refusal. It raises a ValueError if the estimator has wrong
        parameters.
    methods : tuple of str
        The values of ``method`` for which it may be chosen.
    rows : {"local", "remote", "any"}
        The rows that it takes.
    nests_by : callable or None
        (estimator) -> the parameter whose smaller values give a prefix of the same model, such as
        ``n_estimators``; "" if there is none.
    """

    name: str
    plan: Callable[[Request], Plan | Declined]
    methods: tuple[str, ...]
    rows: Literal["local", "remote", "any"] = "local"
    nests_by: Callable[[Estimator], str] | None = None


def results_of(request: Request, repeat: Repeat, stored: ScoreCache) -> Results:
    """Return the keys of the scores of all folds of a repeat."""
    specs = specs_of_scores(request, repeat, stored)
    return Results(stored.name, stored.data.hex(), specs=specs)


def specs_of_scores(
    request: Request, repeat: Repeat, stored: ScoreCache
) -> Mapping[int, ResultSpec]:
    """Return the stored result of all fold scores of a repeat; none if row scores are needed."""
    if request.needs_rows or stored.cache is None or not stored.settings:
        return {}
    key = stored.key(8 * sum(packed_sizes(request, repeat)))
    return {repeat.cut.n_folds: ResultSpec(key, stored.cache)}
