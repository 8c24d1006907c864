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

from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.traits import name_of
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import Keep
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.preprocessing.divided import Parts
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteCall
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import joined
from optuna_treecv.scoring.scores import OUTPUTS_DIVERGED
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import TestedRows

# With more folds, their sums would take most of the time.
_MOST_FOLDS = 1000

# The test rows of several folds that are scored at once.
_ROWS = 2**14

#: The calls for sums that are in flight for each block.
CALLS_IN_FLIGHT = 2


#: What a block answers of its test rows: of each point, the scores of the chunks that lie in it
#: alone; and by the number of the chunk, what models say of the rows of others, (n_points, n_rows,
#: n_outputs).
Answer = tuple[list[FoldScores], dict[int, np.ndarray]]


def test(
    block: Block,
    make: Callable[[PreparedRows], Any],
    models: Sequence[Any],
    begins: np.ndarray,
    whole: range,
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
    whole : range
        The chunks of which the scores are asked for; of others it is the outputs.
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
            for chunk in range(first, last):
                if chunk not in whole:
                    outputs[chunk] = said[:, slice(*here[chunk - first : chunk - first + 2])]
            low, high = max(first, whole.start), min(last, whole.stop)
            if low >= high:
                continue
            ends = begins[low : high + 1] - begins[low]
            starts = None if ends[-1] == len(ends) - 1 else ends[:-1]
            part, of_rows = slice(*here[[low - first, high - first]]), slice(*begins[[low, high]])
            for of_point, one in zip(scores, said[:, part], strict=True):
                tested = TestedRows.of(rows, of_rows, one, family.response, starts)
                of_point.append(_scores(tested, *scored, rows.classes))
    return [joined(some) for some in scores if some], outputs


def _scores(
    tested: TestedRows, metrics: Sequence[Metric], estimator: Any, classes: np.ndarray | None
) -> FoldScores:
    scores = scores_of_folds(metrics, tested, estimator, classes)
    diverged = np.where(tested.diverged(), OUTPUTS_DIVERGED, scores.diverged)
    return scores._replace(diverged=diverged)


def why_not_of_blocks(request: Request, parts: Parts | str) -> str:
    """Return why sums over remote rows do not tell the models, a clause."""
    if sparse.issparse(request.data.X.sample):
        return "the rows are sparse, and sums are taken of dense ones there"
    cross_validation = request.cross_validation
    cut = cross_validation.repeats[0].cut
    if not isinstance(cut, Folds) or cross_validation.n_folds > _MOST_FOLDS:
        return f"there are more than {_MOST_FOLDS:,} folds, or some of them overlap"
    if not isinstance(parts, str) and (parts.kinds or parts.steps):
        return "its steps need all rows in one place"
    return ""


def scores_of_blocks(
    request: Request, family: Any, rows: PreparedRows, chunks: Chunks, sums: Keep
) -> Iterator[tuple[int, TestedFolds]]:
    """Yield the scores that blocks send, and predictions for folds in several blocks."""
    scored = request.scoring.metrics, request.estimator
    for first, of_chunks, said in _answers(family, chunks, sums, scored):
        for chunk, outputs in said.items():  # those of folds that began in blocks before
            rows_of = slice(*chunks.bounds[chunk : chunk + 2].tolist())
            for number, of_point in enumerate(outputs):
                begins = None if len(of_point) == 1 else np.zeros(1, np.int64)
                tested = TestedRows.of(rows, rows_of, of_point, family.response, begins)
                yield number, TestedFolds(number, Node(chunk, chunk + 1), 0, tested)
        for number, scores in enumerate(of_chunks):
            folds = Node(first, first + len(scores.diverged))
            yield number, TestedFolds(number, folds, 0, scores=scores)


def predictions_of_blocks(family: Any, chunks: Chunks, sums: Keep) -> Iterator[TestedChunks]:
    """Yield the outputs for all test rows, which come back from the blocks."""
    for *_, said in _answers(family, chunks, sums, None):
        for chunk, outputs in said.items():
            yield slice(chunk, chunk + 1), outputs


def refused_fit(request: Request) -> ValueError:
    """Return the error of a final fit on remote rows: the solvers of ``fit`` need all of them."""
    return ValueError(
        f"refit must be False for {name_of(request.estimator)}, whose fit needs all rows in the "
        "memory of this process, which they are not."
    )


def _answers(
    family: Any, chunks: Chunks, sums: Keep, scored: tuple[Sequence[Metric], Any] | None
) -> Iterator[tuple[int, list[FoldScores], dict[int, np.ndarray]]]:
    """Yield the first chunk that a block scores, and its answer.

    Without ``scored``, all outputs come. Those of a chunk in several blocks come with the last.
    """
    models, blocks = family.models_of(chunks, sums), family.rows.X
    bounds = chunks.bounds
    with blocks.calls() as calls:
        sent = []
        for number, (start, stop) in enumerate(pairwise(blocks.bounds)):
            start_here = max(start, int(bounds[0]))
            if start_here >= stop:
                continue
            first = int(np.searchsorted(bounds, start_here, side="right")) - 1
            last = int(np.searchsorted(bounds, stop))
            begins = bounds[first : last + 1].clip(start_here, stop) - start
            # The first and the last chunk may lie in other blocks too.
            is_cut = int(bounds[first] < start), int(bounds[last] > stop)
            whole = range(is_cut[0], last - first - is_cut[1]) if scored else range(0)
            some, what = models[first:last], scored or ((), None)
            arguments = family.make, some, begins, whole, what
            calls.submit(RemoteCall(number, number, test, arguments))
            sent.append((number, first, whole))
        answers = dict(calls.next() for _ in sent)
    parts: dict[int, list[np.ndarray]] = {}
    for number, first, whole in sent:
        (scores, said), complete = answers.pop(number), {}
        for chunk, outputs in said.items():
            of_chunk = parts.setdefault(first + chunk, [])
            of_chunk.append(outputs)
            if bounds[first + chunk + 1] <= blocks.bounds[number + 1]:
                complete[first + chunk] = np.concatenate(parts.pop(first + chunk), axis=1)
        yield first + whole.start, scores, complete
