"""The protocol of an engine, what it evaluates (the folds of a repeat), and what it yields.

A new engine is a new file, and a line in ``engines.py``. The three small engines that make passes
without a tree share ``passes.py``.
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
from types import MappingProxyType
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import plan_key
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.plan import Rows
from optuna_treecv.tree.walk import steps_of_spine
from optuna_treecv.tree.walk import STEPS_PER_PASS

#: The most parts that are reported, or shared out among threads.
MAX_BLOCKS = 32

# Without reports, one thread walks a tree of fewer rows than this as one block, and several
# threads take a few blocks each: above the blocks the interpreter works, and with a cache siblings
# are not trained together there.
_ROWS_IN_ONE_BLOCK = 2**22
_BLOCKS_PER_THREAD = 4


class Repeat(NamedTuple):
    """One of the ``n_repeats`` cross-validations.

    Attributes
    ----------
    number : int
        0, 1, ...
    cut : Folds or Splits
        How the rows are cut.
    plan : Plan
        The tree over the folds. Over splits, its rows are the test rows of all of them, one after
        another, and only its nodes mean anything.
    key : bytes
        A digest of the tree or of the splits.
    blocks, parts : list of Node
        The folds that are evaluated at once, and those after which a report is due.
    """

    number: int
    cut: Cut
    plan: Plan
    key: bytes
    blocks: list[Node]
    parts: list[Node]


def make_repeat(
    number: int,
    cut: Cut,
    is_random: bool,
    seed: int,
    n_jobs: int,
    reports_of: int | None,
) -> Repeat:
    """Return a repeat.

    Parameters
    ----------
    number : int
    cut : Folds or Splits
    is_random : bool
        Whether each training phase has a random order of its own.
    seed : int
        Of these orders, 64 bits.
    n_jobs : int
        The number of threads.
    reports_of : int or None
        The number of repeats that together report at most 32 times; None if none reports.
    """
    if isinstance(cut, Folds):
        plan = Plan(cut.n_rows, cut.n_folds, cut.bounds, is_random, seed)
        key = plan_key(plan)
    else:
        bounds = cut.begins()
        plan = Plan(int(bounds[-1]), cut.n_folds, bounds, is_random, seed)
        key = digest(plan_key(plan), *map(encode, cut.arrays()))
    n_blocks = 1 if n_jobs == 1 else min(_BLOCKS_PER_THREAD * n_jobs, MAX_BLOCKS)
    if reports_of is not None or plan.n_rows >= _ROWS_IN_ONE_BLOCK:
        n_blocks = MAX_BLOCKS
    blocks = plan.blocks(n_blocks)
    parts = blocks if reports_of is None else plan.blocks(MAX_BLOCKS // reports_of)
    return Repeat(number, cut, plan, key, blocks, parts)


def divided(plan: Plan, nodes: list[Node], n_jobs: int) -> list[Node]:
    """Return subtrees of which these nodes consist, enough for that many threads."""
    blocks = list(nodes)
    while n_jobs > 1 and len(blocks) < _BLOCKS_PER_THREAD * n_jobs:
        largest = max(blocks, key=lambda node: node.n_folds)
        if largest.n_folds == 1:
            break
        at = blocks.index(largest)
        blocks[at : at + 1] = plan.split(largest)
    return blocks


class Early(NamedTuple):
    """Scores of rows that are known before those of folds.

    Attributes
    ----------
    step : int
        The sixteenths of a pass that are done, or ``NESTED_STEP``.
    scores : RowScores
        Of all rows so far.
    has_lost : bool
        Whether the estimator has lost against others that were evaluated together with it.
    """

    step: int
    scores: "RowScores"
    has_lost: bool = False


class Grown(NamedTuple):
    """How ensembles score that are still growing.

    Attributes
    ----------
    step : int
        Of the report.
    value : float
        The mean score of the folds so far.
    n_trees, n_folds : int
        How many trees of how many folds have grown.
    n_left : int
        The trees that may follow in these folds.
    scores : RowScores or None
        Of the test rows of the first fold, while it grows alone; None: not asked for.
    """

    step: int
    value: float
    n_trees: int
    n_folds: int
    n_left: int = 0
    scores: "RowScores | None" = None


class TestedFolds(NamedTuple):
    """Neighbouring folds of a repeat that are tested: what their models say, or their scores.

    Attributes
    ----------
    folds : Node
        The chunks along the tree.
    n_needed : int
        The rows of their trainings, whether these were done now or before.
    tested : callable or None
        (folds) -> the outputs for any folds of the repeat that are tested; None where outputs do
        not leave the engine.
    called : callable or None
        (folds) -> by the number of the metric, the scores that do not follow from outputs.
    scores : FoldScores or None
        Those of all folds of the repeat, where the scores of these folds are known already.
    pooled : ndarray of shape (n_metrics, 2) or None
        The pooled scores of the repeat and their standard errors, where they are known already
        with its last folds; NaN for those that are not pooled.
    row_scores : ndarray of shape (n_tested,) or None
        The scores of all rows that the repeat tests, by the first optimised metric, where they are
        asked for and known already.
    rows : callable or None
        (first, last) -> the rows as given that these chunks test, in the order of their outputs;
        None: that of ``Folds.tested_from``.
    responses : dict of str to ndarray of shape (n_tested, ...)
        With the last folds of a repeat, the responses to all rows that it tests, of those in
        ``Job.keeps`` that are known.
    """

    folds: Node
    n_needed: int
    tested: Callable[[Node], TestedRows] | None = None
    called: Callable[[Node], Mapping[int, np.ndarray]] | None = None
    scores: FoldScores | None = None
    pooled: np.ndarray | None = None
    row_scores: np.ndarray | None = None
    rows: Callable[[int, int], np.ndarray] | None = None
    responses: Mapping[str, np.ndarray] = MappingProxyType({})


class Missing(NamedTuple):
    """Results that are needed and missing.

    Attributes
    ----------
    name : str
        The name under which they are kept.
    n_bytes : int
        The bytes that they will take while they wait for their trial.
    """

    name: str
    n_bytes: int


class Watch:
    """Asks for early scores, and decides who is left out of those evaluated together: nobody.

    Attributes
    ----------
    takes_rows : bool
        Whether it asks for the scores of rows while ensembles grow.
    """

    takes_rows = False

    def losers(self, step: int, scores: "Sequence[RowScores]", rows: slice) -> list[int]:
        """Return the numbers of those whose scores on some rows lose against the others'."""
        return []


@dataclass
class Effort:
    """What the evaluation of a repeat, or of all of them, has taken.

    Attributes
    ----------
    n_updates : int
        The rows trained on.
    n_needed : int
        The rows of all trainings, whether they were done or were done already.
    n_ahead : int
        Those of results that a batch has written to the store: the first trial that is recorded
        there with them counts them as ``n_updates``.
    seconds, seconds_prepare : float
        The time of the evaluation, and the time in which the rows were prepared.
    """

    n_updates: int = 0
    n_needed: int = 0
    n_ahead: int = 0
    seconds: float = 0.0
    seconds_prepare: float = 0.0


class Engine(ABC):
    """A way to evaluate the folds of an estimator. It holds nothing of a single evaluation.

    Attributes
    ----------
    name : str
        The name under which results are kept, and which ``CVResult.method`` has.
    methods : tuple of str
        The values of ``method`` for which it may be chosen.
    trains_further : bool
        Whether models are trained by ``partial_fit`` in passes over their rows.
    grows : bool
        Whether scores are known while models grow.
    takes_placed : bool
        Whether it is for rows that lie elsewhere.
    reason : str
        Why "auto" takes it, a clause, where that is the same for all estimators.
    why_one_epoch : str
        Why models cannot be trained for several epochs, a clause; "" if they can.
    """

    name: str
    methods: tuple[str, ...]
    trains_further = False
    grows = False
    takes_placed = False
    reason = ""
    why_one_epoch = ""

    def concerns(self, estimator: Any) -> bool:
        """Return whether someone may ask why it does not evaluate such an estimator."""
        return True

    @abstractmethod
    def why_not(self, job: Any) -> str:
        """Return why it cannot evaluate an estimator, a clause; "" if it can."""

    def why(self, job: Any) -> str:
        """Return why "auto" takes it, a clause; "" if only the user can."""
        return self.reason

    @abstractmethod
    def refusal(self, job: Any, why_not: str) -> str:
        """Return the error, a sentence, where it was asked for and cannot evaluate."""

    @abstractmethod
    def check(self, job: Any) -> None:
        """Refuse an estimator with wrong parameters."""

    def epochs(self, job: Any) -> int:
        """Return the number of epochs for which models are trained; refuse what cannot be."""
        of_trials = "n_epochs" in job.searched and not hasattr(job.estimator, "n_epochs")
        if self.why_one_epoch and ((job.given_epochs or 1) > 1 or of_trials):
            problem = "it is searched" if of_trials else f"got {job.given_epochs}"
            chosen = (
                f"; 'fit' was chosen since {job.why}" if self.name == "fit" and job.why else ""
            )
            raise ValueError(
                f"n_epochs must be None for {name_of(job.estimator)} with method={self.name!r}, "
                f"since {self.why_one_epoch}, but {problem}{chosen}."
            )
        return 1

    def why_in_memory(self, job: Any) -> str:
        """Return why all rows must be in memory, a clause; "" if they may lie in a file."""
        return ""

    def free_parameters(self, job: Any) -> Collection[str]:
        """Return the parameters on whose values ``why_not`` does not depend.

        That is while they are positive and finite. There are none unless an engine says so.
        """
        return ()

    def check_values(self, job: Any) -> None:
        """Refuse wrong values of ``free_parameters``."""
        self.check(job)

    @abstractmethod
    def start(
        self, job: Any, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[Early | Grown | TestedFolds]:
        """Prepare the rows, and return an iterator that evaluates a repeat from the left.

        Closing the iterator ends the evaluation. What the work takes is added to ``job.effort``,
        but for the time between two results, which the caller measures.

        Parameters
        ----------
        job : Job
        repeat : Repeat
        watch : Watch or None
            Asks for early scores before the first folds, or while ensembles grow; None: there are
            none.
        """

    def parameters_beside(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameters in which estimators may differ that are evaluated together.

        There are none where each one is evaluated alone.
        """
        return ()

    def average(self, estimator: Any, else_right: str) -> Any:
        """Return what takes the models of the folds for their average; refuse what has none.

        Parameters
        ----------
        estimator : estimator
        else_right : str
            Which argument of the caller would be right for others.
        """
        raise ValueError(
            f"{else_right} unless linear models are trained along the tree, as those of "
            f"PegasosClassifier or SGDClassifier are, got {name_of(estimator)} with "
            f"method={self.name!r}."
        )

    def is_kept(self, job: Any) -> bool:
        """Return whether an evaluation of a single repeat would only find results."""
        return False

    def missing(self, job: Any) -> Missing | None:
        """Return what is missing of the first repeat; None if the results are there already."""
        return None

    def together(self, jobs: Sequence[Any], watch: Watch | None, are_leased: bool) -> bool:
        """Compute what jobs have in common, into ``Job.ahead``; ``start`` takes it from there.

        A job that raises an error is left alone, so that its own evaluation raises it.

        Parameters
        ----------
        jobs : sequence of Job
            All of one task and of this engine.
        watch : Watch or None
        are_leased : bool
            Whether other processes may wait for the results, so that they go to the store at once.

        Returns
        -------
        bool
            Whether anything was computed.
        """
        return False

    @abstractmethod
    def predict(self, job: Any, repeat: Repeat, method: str) -> np.ndarray:
        """Return the out-of-fold responses in the order of the rows as given."""

    @abstractmethod
    def refit(self, job: Any) -> Any:
        """Return the estimator fitted on all rows."""

    @abstractmethod
    def cost(self, job: Any) -> str:
        """Return what the evaluation takes, a sentence."""


def cost_of_trainings(job: Any, kind: str) -> str:
    """Return the number of fits or trainings, which ``kind`` names, and of their rows."""
    n_trainings = job.task.n_folds * job.task.n_repeats
    n_rows = job.task.n_updates_standard
    return f"The {n_trainings:,} {kind} have {n_rows:,} training rows in all."


def in_given_order(
    prepared: np.ndarray, order: np.ndarray, labels: np.ndarray | None = None
) -> np.ndarray:
    """Return responses in the order of the rows as given, and labels in place of class codes."""
    if labels is not None:
        prepared = labels[prepared]
    responses = np.empty_like(prepared)
    responses[order] = prepared
    return responses


#: The first step that is reported, an eighth of a pass, and the last one of the pass.
FIRST_STEP, LAST_STEP = 2, STEPS_PER_PASS

#: The number of folds that is known before all folds are, and the fewest folds where that pays.
NESTED_FOLDS = 16
FEWEST_FOLDS = 2 * NESTED_FOLDS


def n_steps_of_first_pass(repeat: Repeat) -> int:
    """Return how many early scores a job yields along its first pass."""
    return len(steps_of_spine(repeat.plan))


#: Where the spine ends.
FIRST_LEAF = Node(0, 1)

#: The step at which these are known: they take four passes.
NESTED_STEP = 4 * STEPS_PER_PASS


class RowScores:
    """The scores of rows, as they become known.

    Parameters
    ----------
    n_rows : int
        The most rows.
    has_weights : bool
    ends : collection of int
        After so many rows their scores are asked for.
    dtype : dtype
        Of the scores.

    Attributes
    ----------
    n_rows : int
        The rows so far.
    marks : list of int
        Where a tail may begin or end, rising.
    """

    def __init__(
        self,
        n_rows: int,
        has_weights: bool,
        ends: Collection[int] = (),
        dtype: Any = np.float64,
    ) -> None:
        self.n_rows = 0
        # Half of a step's rows are rounded up, as in ``tail``.
        self.marks = sorted({*ends, *((end + 1) // 2 for end in ends)})
        self._values = np.empty(n_rows, dtype)
        self._weights = np.empty(n_rows) if has_weights else None

    def add(self, values: np.ndarray, weights: np.ndarray | None) -> None:
        """Take note of the scores of further rows."""
        part = slice(self.n_rows, self.n_rows + len(values))
        self._values[part] = values
        if self._weights is not None:
            self._weights[part] = weights
        self.n_rows = part.stop

    @property
    def values(self) -> np.ndarray:
        """The scores of the rows so far, (n_rows,)."""
        return self._values[: self.n_rows]

    @property
    def weights(self) -> np.ndarray | None:
        """The weights of the rows so far."""
        return None if self._weights is None else self._weights[: self.n_rows]

    @property
    def n_bytes(self) -> int:
        """The bytes that the scores take."""
        return self._values.nbytes + (0 if self._weights is None else self._weights.nbytes)

    def first(self, n_rows: int) -> "RowScores":
        """Return the scores of the first rows."""
        first = copy(self)
        first.n_rows = n_rows
        return first

    @property
    def tail(self) -> slice:
        """The second half of the rows so far."""
        return slice((self.n_rows + 1) // 2, self.n_rows)

    def mean(self, rows: slice) -> float:
        """Return the mean score of some rows; NaN if none of them has a weight."""
        values = self.values[rows]
        if self._weights is None:
            return float(values.mean())
        weights = self._weights[rows]
        total = weights.sum()
        return float(weights @ values / total) if total > 0 else float("nan")


def empty_scores(
    metric: Metric, n_rows: int, of: PreparedRows, ends: Collection[int] = ()
) -> RowScores:
    """Return room for the scores of rows; errors, which are 0 or 1, take a byte each."""
    is_error = isinstance(metric, Loss) and metric.is_zero_one
    return RowScores(n_rows, of.score_weights is not None, ends, np.int8 if is_error else float)


def scored(
    learner: Learner, metric: Metric, estimator: Any, outputs: np.ndarray, rows: Rows
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the scores of tested rows, and their weights.

    Parameters
    ----------
    learner : Learner
    metric : Loss or Scorer
    estimator : estimator
        The learner's.
    outputs : ndarray of shape (len(rows), n_outputs)
        What its models have said of the rows.
    rows : slice or ndarray
        Prepared rows.
    """
    tested = TestedRows.of(learner.rows, rows, outputs, learner.respond, None)
    return scores_of_rows(metric, tested, estimator, learner.rows.classes), tested.weights
