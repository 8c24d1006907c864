"""What engines have in common that score all folds of a repeat at once, and keep these scores."""

from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from optuna_treecv.crossval.engine import Engine
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.job import Job
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import are_known
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import in_full
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.results import KeptScores
from optuna_treecv.tree.plan import Node

_RESPONSES = {"predict", "decision_function", "predict_proba"}


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


class WholeRepeat(Engine):
    """An engine that scores all folds of a repeat at once, and keeps the scores."""

    @abstractmethod
    def parts(self, job: Job) -> Sequence[Any]:
        """Return the parts of the estimator, without the point, by which scores are named."""

    @abstractmethod
    def point(self, job: Job, repeat: Repeat) -> Any:
        """Return the values by which estimators may differ that share the work."""

    def kept(self, job: Job, repeat: Repeat) -> KeptScores:
        """Return where a job's scores on a repeat are kept; their name is looked up once.

        That of the first repeat names the job.
        """
        kept: KeptScores | None = job.names.get(repeat.number)
        if kept is None:
            of_plan = job.planned(("names", repeat.number), partial(self._kept, job, repeat))
            job.names[repeat.number] = kept = of_plan.at(self.point(job, repeat))
            if repeat.number == 0:
                job.key, job.fingerprint = kept.name, kept.data.hex()
        return kept

    def _kept(self, job: Job, repeat: Repeat) -> KeptScores:
        """Return the same at no point yet."""
        cache, data = job.task.shared.cache, job.task.data_name()
        folds = self.name_of_folds(job, repeat)
        return KeptScores.of(cache, data, folds, self.name, self.parts(job), job.scoring)

    def name_of_folds(self, job: Job, repeat: Repeat) -> bytes:
        """Return a name of the folds of a repeat."""
        order = repeat.cut.order
        name = partial(digest, repeat.key, order.tobytes())
        return job.task.fact(("folds", repeat.number), name)

    def find(self, job: Job, repeat: Repeat) -> RepeatScores | None:
        """Return the scores if they are kept; those of single rows never are."""
        if job.needs_rows:
            return None
        shape = _shape(job, repeat)
        numbers = self.kept(job, repeat).find(sum(RepeatScores.sizes(*shape)))
        return None if numbers is None else RepeatScores(shape, numbers)

    def new_scores(self, job: Job, repeat: Repeat) -> RepeatScores:
        """Return scores that are to be filled in."""
        scores = RepeatScores(_shape(job, repeat))
        scores.n_tested = repeat.cut.n_tested
        if job.needs_rows:
            scores.of_rows = np.empty(scores.n_tested, np.float32)
        return scores

    def score(
        self, job: Job, scores: RepeatScores, rows: TestedRows, folds: slice, tested: slice
    ) -> None:
        """Fill in the scores of consecutive folds; ``tested`` are their rows among all tested."""
        scored = job.book.scores_of(rows)
        scores.scores[:, folds] = scored.scores
        if scores.spreads is not None:
            scores.spreads[:, :, folds] = in_full(scored.spreads, scored.scores.shape)
        scores.diverged[folds] = np.where(rows.diverged(), OUTPUTS_DIVERGED, scored.diverged)
        self.take_rows(job, scores, rows, tested)

    def take_rows(self, job: Job, scores: RepeatScores, rows: TestedRows, tested: slice) -> None:
        """Fill in what is said of single rows."""
        if scores.of_rows is not None:
            scores.of_rows[tested] = job.book.row_scores_of(rows)
        for method in job.keeps:
            response = job.as_kept(rows.response(method), method)
            if method not in scores.responses:
                shape = scores.n_tested, *response.shape[1:]
                scores.responses[method] = np.empty(shape, response.dtype)
            scores.responses[method][tested] = response

    def events(
        self,
        job: Job,
        repeat: Repeat,
        scores: RepeatScores,
        keeps: bool = True,
        fill: Callable[[RepeatScores, Node], None] | None = None,
    ) -> Generator[TestedFolds]:
        """Yield the parts of a repeat with their scores; keep new scores if ``keeps``.

        ``fill`` fills them in before each part; without it they are known.
        """
        n_needed, of_rows, pooled = int(scores.needed[0]), scores.of_rows, scores.pooled
        of_folds = FoldScores(scores.scores, scores.diverged, scores.spreads)
        for part in repeat.parts:
            if fill is not None:
                fill(scores, part)
            yield TestedFolds(
                part,
                n_needed,
                scores=of_folds,
                pooled=pooled,
                row_scores=of_rows,
                responses=scores.responses,
            )
            n_needed = 0
        if keeps and not scores.was_kept and are_known(job.scoring.metrics, scores.scores):
            with closing(self.kept(job, repeat)) as kept:
                kept.keep(scores.numbers, job.effort.seconds)


def _shape(job: Job, repeat: Repeat) -> tuple[int, int, bool]:
    """Return the number of metrics and of folds, and whether a fold has several rows."""
    return len(job.scoring.metrics), repeat.cut.n_folds, not job.task.tests_single_rows


def why_not_scored(job: Job) -> str:
    """Return why a score needs more than predictions, a clause; "" if none does."""
    scoring = job.task.settings.scored_by
    for metric in () if scoring is None else scoring.metrics:
        scorer = metric.of if isinstance(metric, Pooled) else metric
        if isinstance(scorer, Scorer) and not scorer.is_made:
            return f"the scorer {scorer.name} may look at more than predictions"
        methods = [scorer.methods] if isinstance(scorer.methods, str) else scorer.methods
        if not _RESPONSES.issuperset(methods or ()):
            return f"the score {scorer.name} needs other responses than predictions"
    return ""
