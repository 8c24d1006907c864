"""The engines "exact" and "newton" over rows that lie elsewhere: sums travel, and rows stay.

The sums of blocks are added in their order. Models of folds are sent to the rows that they test,
and scores come back.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.exact import Exact
from optuna_treecv.crossval.exact import KeptSums
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.whole_repeat import OUTPUTS_DIVERGED
from optuna_treecv.crossval.whole_repeat import RepeatScores
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.moments import Chunks
from optuna_treecv.learners.exact.moments import TestedChunks
from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.placed import Block
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import joined
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import TestedRows

# With more folds, their sums would take most of the time.
_MOST_FOLDS = 1000

# The test rows of several folds that are scored at once.
_ROWS = 2**14

# The calls for sums that are in flight for each block.
_IN_FLIGHT = 2


#: What a block answers of its test rows: of each point, the scores of the chunks that lie in it
#: alone; and by the number of the chunk, what models say of the rows of others, (n_points, n_rows,
#: n_outputs).
Answer = tuple[list[FoldScores], dict[int, np.ndarray]]


def test(
    block: Block,
    make: Callable[[PreparedRows], Any],
    models: Sequence[Any],
    begins: np.ndarray,
    travels: Sequence[int],
    scored: tuple[Sequence[Metric], Any],
) -> Answer:
    """Return what models say of the test rows in a block, or the scores of that.

    Parameters
    ----------
    block : Block
    make : callable
        (rows) -> a family bound to them.
    models : sequence
        Those of some consecutive chunks.
    begins : ndarray of shape (n_chunks + 1,)
        Where these chunks begin within the block, and where the last one ends.
    travels : sequence of int
        The chunks of which the outputs are asked for, and not the scores.
    scored : (sequence of Metric, estimator)
    """
    rows = block.rows
    family = make(rows)
    chunks = Chunks(len(rows.order), begins)
    scores: list[list[FoldScores]] = [[] for _ in range(family.n_points)]
    outputs = {}
    with np.errstate(all="ignore"):
        for first, last in chunks.groups(_ROWS, chunks.n_chunks):
            _, said = family.tested(chunks, first, last, models[first:last])
            here = begins[first : last + 1] - begins[first]
            of_group = [chunk for chunk in range(first, last) if chunk in travels]
            for chunk in of_group:
                outputs[chunk] = said[:, slice(*here[chunk - first : chunk - first + 2])]
            if len(of_group) == last - first:
                continue
            for first_of, last_of in _without(first, last, of_group):
                part = slice(*(here[[first_of - first, last_of - first]]))
                ends = here[first_of - first : last_of - first + 1] - part.start
                of_rows = slice(begins[first_of], begins[last_of])
                for of_point, one in zip(scores, said[:, part], strict=True):
                    starts = None if ends[-1] == len(ends) - 1 else ends[:-1]
                    tested = TestedRows.of(rows, of_rows, one, family.response, starts)
                    of_point.append(_scores(tested, *scored, rows.classes))
    return [joined(some) for some in scores if some], outputs


def _without(first: int, last: int, some: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield what is left of first to last - 1 without some numbers, as ranges."""
    for at in [*some, last]:
        if first < at:
            yield first, at
        first = at + 1


def _scores(
    tested: TestedRows, metrics: Sequence[Metric], estimator: Any, classes: np.ndarray | None
) -> FoldScores:
    scores = scores_of_folds(metrics, tested, estimator, classes)
    diverged = np.where(tested.diverged(), OUTPUTS_DIVERGED, scores.diverged)
    return scores._replace(diverged=diverged)


class PlacedExact(Exact):
    """Exact folds of rows that lie elsewhere."""

    takes_placed = True

    def why_not(self, job: Job) -> str:
        """Return why sums over rows elsewhere do not tell the models, a clause."""
        if sparse.issparse(job.task.data.X.sample):
            return "the rows are sparse, and sums are taken of dense ones there"
        cut = job.task.repeats[0].cut
        if not isinstance(cut, Folds) or job.task.n_folds > _MOST_FOLDS:
            return f"there are more than {_MOST_FOLDS:,} folds, or some of them overlap"
        parts = self._divide(job.estimator)
        if not isinstance(parts, str) and (parts.kinds or parts.steps):
            return "its steps need all rows in one place"
        return super().why_not(job)

    def _bind(
        self, job: Job, repeat: Repeat, rows: PreparedRows, points: Sequence[Any], method: str = ""
    ) -> Family:
        """Return estimators bound to the rows; several threads wait for sums."""
        parts = self._parts(job)
        n_threads = _IN_FLIGHT * (len(rows.X.bounds) - 1)
        return parts.family(points, rows, parts.scaler, n_threads)

    def _score_outputs(
        self,
        job: Job,
        family: Any,
        rows: PreparedRows,
        chunks: Chunks,
        sums: KeptSums,
        scores: list[RepeatScores],
    ) -> None:
        """Fill in the scores that blocks send, or those of what their models say."""
        if job.needs_outputs:
            super()._score_outputs(job, family, rows, chunks, sums, scores)
            return
        scored = job.scoring.metrics, job.estimator
        for first, of_chunks, said in _answers(family, chunks, sums, scored):
            for one, of_point in zip(scores, of_chunks, strict=False):
                folds = slice(first, first + len(of_point.diverged))
                one.scores[:, folds], one.diverged[folds] = of_point.scores, of_point.diverged
                if one.spreads is not None:
                    one.spreads[:, :, folds] = of_point.spreads
            for chunk, outputs in said.items():
                rows_of = slice(*chunks.bounds[chunk : chunk + 2].tolist())
                of_tested = slice(*(chunks.bounds[chunk : chunk + 2] - chunks.bounds[0]))
                for one, of_point in zip(scores, outputs, strict=True):
                    begins = None if len(of_point) == 1 else np.zeros(1, np.int64)
                    tested = TestedRows.of(rows, rows_of, of_point, family.response, begins)
                    self.score(job, one, tested, slice(chunk, chunk + 1), of_tested)

    def _said(self, family: Any, chunks: Chunks, sums: KeptSums) -> Iterator[TestedChunks]:
        """Yield what models say of all test rows, which comes back from the blocks."""
        for *_, said in _answers(family, chunks, sums, None):
            for chunk, outputs in said.items():
                yield slice(chunk, chunk + 1), outputs

    def refit(self, job: Job) -> Any:
        """Refuse it, since the solvers of ``fit`` need all rows."""
        raise ValueError(
            f"refit must be False for {name_of(job.estimator)}, whose fit needs all rows in the "
            "memory of this process, which they are not."
        )


def _answers(
    family: Any,
    chunks: Chunks,
    sums: KeptSums,
    scored: tuple[Sequence[Metric], Any] | None,
) -> Iterator[tuple[int, list[FoldScores], dict[int, np.ndarray]]]:
    """Yield the first chunk that a block scores, and its answer.

    Without ``scored``, all outputs come. Those of a chunk in several blocks come with the last.
    """
    models, placement = family.models_of(chunks, sums), family.rows.X
    bounds = chunks.bounds
    with placement.calls() as calls:
        sent = []
        for number, (start, stop) in enumerate(pairwise(placement.bounds)):
            start_here = max(start, int(bounds[0]))
            if start_here >= stop:
                continue
            first = int(np.searchsorted(bounds, start_here, side="right")) - 1
            last = int(np.searchsorted(bounds, stop))
            begins = bounds[first : last + 1].clip(start_here, stop) - start
            travels = [
                chunk - first
                for chunk in range(first, last)
                if scored is None or bounds[chunk] < start or bounds[chunk + 1] > stop
            ]
            some, what = models[first:last], scored or ((), None)
            calls.submit(number, number, 0, test, family.make, some, begins, travels, what)
            sent.append((number, first, travels))
        answers = dict(calls.next() for _ in sent)
    parts: dict[int, list[np.ndarray]] = {}
    for number, first, travels in sent:
        (scores, said), whole = answers.pop(number), {}
        for chunk, outputs in said.items():
            of_chunk = parts.setdefault(first + chunk, [])
            of_chunk.append(outputs)
            if bounds[first + chunk + 1] <= placement.bounds[number + 1]:
                whole[first + chunk] = np.concatenate(parts.pop(first + chunk), axis=1)
        yield first + (0 in travels), scores, whole
