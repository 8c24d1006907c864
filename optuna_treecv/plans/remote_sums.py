"""The engines "exact" and "newton" over rows on other machines: sums travel, and rows stay.

The sums of blocks are added in their order. Models of folds are sent to the rows that they test,
and scores come back.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.request import Request
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import Keep
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.preprocessing.decisions import Parts
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


def test(
    block: Block,
    make: Callable[[PreparedRows], Any],
    models: Sequence[Any],
    begins: np.ndarray,
    whole: range,
    scored: tuple[Sequence[Metric], Any],
) -> tuple[list[FoldScores], dict[int, np.ndarray]]:
    """Return the scores or the outputs of models for the test rows in a block.

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

    Returns
    -------
    scores : list of FoldScores
        Of each point, those of the whole chunks.
    outputs : dict of int to ndarray of shape (n_points, n_rows, n_outputs)
        By the number of the chunk, those of others.
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
                of_folds = scores_of_folds(scored[0], tested, scored[1], rows.classes)
                diverged = np.where(tested.diverged(), OUTPUTS_DIVERGED, of_folds.diverged)
                of_point.append(of_folds._replace(diverged=diverged))
    return [joined(some) for some in scores if some], outputs


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
    for folds, scores, outputs in _tested_there(family, chunks, sums, scored):
        if outputs is None:
            for number, of_point in enumerate(scores):
                yield number, TestedFolds(number, folds, 0, scores=of_point)
            continue
        rows_of = chunks.test_rows(*folds)
        for number, of_rows in enumerate(outputs):
            begins = None if len(of_rows) == 1 else np.zeros(1, np.int64)
            tested = TestedRows.of(rows, rows_of, of_rows, family.response, begins)
            yield number, TestedFolds(number, folds, 0, tested)


def predictions_of_blocks(family: Any, chunks: Chunks, sums: Keep) -> Iterator[TestedChunks]:
    """Yield the outputs for all test rows, which come back from the blocks."""
    for folds, _, outputs in _tested_there(family, chunks, sums, None):
        assert outputs is not None
        yield slice(*folds), outputs


def _tested_there(
    family: Any, chunks: Chunks, sums: Keep, scored: tuple[Sequence[Metric], Any] | None
) -> Iterator[tuple[Node, list[FoldScores], np.ndarray | None]]:
    """Yield tested chunks with their scores, or with the outputs, in their order.

    Outputs are those of a chunk in several blocks; without ``scored``, those of each chunk.
    """
    models, blocks, bounds = family.models_of(chunks, sums), family.rows.X, chunks.bounds
    calls, sent = [], []
    for block, start, stop in blocks.spans(int(bounds[0]), len(blocks)):
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        last = int(np.searchsorted(bounds, stop))
        begins = bounds[first : last + 1].clip(start, stop) - blocks.bounds[block]
        # The first and the last chunk may lie in other blocks too.
        is_cut = int(bounds[first] < start), int(bounds[last] > stop)
        whole = range(is_cut[0], last - first - is_cut[1]) if scored else range(0)
        arguments = family.make, models[first:last], begins, whole, scored or ((), None)
        calls.append(RemoteCall(block, test, arguments))
        sent.append((first, whole, stop))
    parts: dict[int, list[np.ndarray]] = {}
    for (first, whole, stop), (scores, said) in zip(sent, blocks.run(calls), strict=True):
        for number, outputs in said.items():
            chunk = first + number
            parts.setdefault(chunk, []).append(outputs)
            if bounds[chunk + 1] <= stop:
                yield Node(chunk, chunk + 1), [], np.concatenate(parts.pop(chunk), axis=1)
        if whole:
            yield Node(first + whole.start, first + whole.stop), scores, None
