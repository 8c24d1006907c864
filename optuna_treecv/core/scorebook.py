"""The scorebook of one candidate: the scores of its folds, its rows and all rows pooled."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.intervals import Scores
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import FoldScorer
from optuna_treecv.core.request import packed_sizes
from optuna_treecv.core.request import Request
from optuna_treecv.core.result import mean_and_std
from optuna_treecv.core.result import Score
from optuna_treecv.rows.folds import by_number
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import in_full
from optuna_treecv.scoring.scores import spread_of
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque

# The most rows of several folds that are scored at once, so that scoring takes little memory.
_MAX_ROWS_PER_BATCH = 2**16


class Scorebook:
    """Computes and holds the scores of tested folds.

    Folds are added as they are evaluated, and revealed as they are reported.

    Parameters
    ----------
    request : Request
    estimator : estimator
        The candidate.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_repeats * n_folds)
        The scores in the order of the tree, repeat after repeat; NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3, n_repeats * n_folds) or None
        See ``FoldScores``; None if each fold is a single row.
    pooled : ndarray of shape (n_metrics, n_repeats, 2)
        The pooled scores of repeats, with their standard errors; NaN for other metrics.
    n_scored : int
        The number of folds that are revealed.
    part_rows : (ndarray, ndarray or None) or None
        The scores of the rows that were revealed since ``begin_part``, and their weights; None if
        they are unknown or not requested.
    responses : list of dict of str to ndarray
        The known outputs of each repeat by the methods of ``Request.stored_methods``, in the order
        of the tree.
    """

    def __init__(self, request: Request, estimator: Estimator) -> None:
        cross_validation = request.cross_validation
        self.scorer = FoldScorer(request, estimator)
        self._request = request
        repeats = cross_validation.repeats
        n_metrics, n_folds = len(request.scoring.metrics), cross_validation.n_folds
        n_scores = len(repeats) * n_folds
        self.scores = np.full((n_metrics, n_scores), np.nan)
        self._diverged: Array | None = None  # made when the first fold has diverged
        self.spreads: Array | None = None
        if not cross_validation.tests_single_rows:
            self.spreads = np.full((n_metrics, SPREAD_SIZE, n_scores), np.nan)
        self.pooled = np.full((n_metrics, len(repeats), 2), np.nan)
        self.n_scored = 0
        # For each row as given: the sum of its losses, and their number if there may be several.
        self._tests_single_rows = cross_validation.tests_single_rows
        self._losses = self._n_tests = None
        if request.settings.row_losses:
            cut = repeats[0].cut
            self._losses = request.data.room.empty((cut.n_rows,), np.float32)
            self._losses[:] = np.nan
            if len(repeats) > 1 or not isinstance(cut, Folds):
                self._losses[:] = 0
                self._n_tests = np.zeros(cut.n_rows, np.int32)
        # For each repeat, pieces of folds that are scored, but not revealed.
        self._hidden: list[list[tuple[Node, Array, Array | None]]] = [[] for _ in repeats]
        self._part: list[tuple[Array, Array | None]] = []
        self._predictions: list[TestedRows] = []  # of the repeat, if scores are pooled
        self.responses: list[dict[str, Array]] = [{} for _ in repeats]

    @property
    def n_bytes(self) -> int:
        """The approximate bytes of all arrays."""
        hidden = (rows for of_repeat in self._hidden for _, rows, _ in of_repeat)
        arrays = [self.scores, self.pooled, *hidden]
        arrays += [x for of_repeat in self.responses for x in of_repeat.values()]
        arrays += [] if self.spreads is None else [self.spreads]
        return sum(array.nbytes for array in arrays)

    @property
    def n_diverged(self) -> int:
        """The number of folds that are revealed and have diverged."""
        if self._diverged is None:
            return 0
        return int(np.count_nonzero(self._diverged[: self.n_scored]))

    def repeat_scores(self, repeat: Repeat) -> FoldScores:
        """Return the scores of all folds of a repeat."""
        n_folds = repeat.cut.n_folds
        diverged = self._diverged
        if diverged is None:
            diverged = np.zeros(self.scores.shape[1], bool)
        scores = FoldScores(self.scores, diverged, self.spreads)
        return scores.part(repeat.number * n_folds, n_folds)

    def begin_part(self) -> None:
        """Discard the scores of rows of the last part."""
        self._part = []

    @property
    def part_rows(self) -> tuple[Array, Array | None] | None:
        if len(self._part) < 2:
            return self._part[0] if self._part else None
        weights = [weights for _, weights in self._part if weights is not None]
        scores = np.concatenate([scores for scores, _ in self._part])
        return scores, np.concatenate(weights) if weights else None

    def forget(self, repeat: Repeat) -> None:
        """Discard the folds of a repeat that are not revealed."""
        self._hidden[repeat.number], self._predictions = [], []
        self.responses[repeat.number] = {}

    def add(self, repeat: Repeat, tested: TestedFolds) -> None:
        """Score tested folds; with the last ones of a repeat, compute its pooled scores."""
        folds, plan = tested.folds, repeat.plan
        size = max(1, _MAX_ROWS_PER_BATCH * plan.n_folds // plan.n_rows)
        ends, stop = [part.last for part in repeat.parts], folds.first
        while stop < folds.last:
            start, end = stop, ends[bisect_right(ends, stop)]
            stop = min(start + size, folds.last, end)
            self._add_piece(repeat, tested, Node(start, stop))
        if self._request.pools and tested.predictions is not None:
            self._predictions.append(tested.predictions)
        if folds.last == repeat.cut.n_folds:
            if tested.pooled is not None:
                self.pooled[:, repeat.number] = tested.pooled
            elif sum(rows.n_folds for rows in self._predictions) == repeat.cut.n_folds:
                rows = concatenate_folds(self._predictions)
                self.pooled[:, repeat.number] = self.scorer.score_pooled(rows)
            self._predictions = []

    def _add_piece(self, repeat: Repeat, tested: TestedFolds, piece: Node) -> None:
        """Score a piece of folds and, if requested, its rows, and store its outputs."""
        folds, rows = tested.folds, tested.predictions
        if rows is not None and piece != folds:
            rows = rows.part(piece.first - folds.first, piece.last - folds.first)
        if tested.scores is not None:
            scores = tested.scores.part(piece.first - folds.first, piece.n_folds)
        else:
            assert rows is not None
            called = None if tested.called is None else tested.called(piece)
            scores = self.scorer.score_folds(rows, called)
        begin = repeat.number * repeat.cut.n_folds
        places = slice(begin + piece.first, begin + piece.last)
        self.scores[:, places] = scores.scores
        if self._diverged is None and scores.diverged.any():
            self._diverged = np.zeros(self.scores.shape[1], bool)
        if self._diverged is not None:
            self._diverged[places] = scores.diverged
        if self.spreads is not None:
            self.spreads[:, :, places] = in_full(scores.spreads, scores.scores.shape)
        if rows is None:
            return
        for method in self._request.stored_methods:
            if rows.methods is None or method in rows.methods:
                self._store_outputs(repeat, piece, rows, method)
        if not self._request.needs_rows:
            return
        of_rows = self.scorer.score_rows(rows)
        self._hidden[repeat.number].append((piece, of_rows, rows.weights))
        first = self._request.scoring.optimized[0]
        spreads = None if self.spreads is None else self.spreads[first, :, places]
        if self._losses is not None and spreads is not None and np.any(np.isnan(spreads)):
            begins = repeat.plan.begins(piece) - repeat.plan.begin(piece.first)
            spreads[:] = spread_of(of_rows, self.scores[first, places], rows.weights, begins)

    def _store_outputs(self, repeat: Repeat, piece: Node, rows: TestedRows, method: str) -> None:
        """Store the outputs for a piece; discard those of the repeat if any is not finite."""
        response, responses = rows.response(method), self.responses[repeat.number]
        compact = self._request.compact_output(response, method)
        if not all(np.isfinite(x).all() for x in (response, compact) if x.dtype.kind == "f"):
            responses[method] = np.empty(0)
        if method not in responses:
            responses[method] = np.empty((repeat.cut.n_tested, *compact.shape[1:]), compact.dtype)
        if len(responses[method]):
            begin, end = (repeat.plan.begin(at) - repeat.plan.begin(0) for at in piece)
            responses[method][begin:end] = compact

    def reveal(self, repeat: Repeat, end: int) -> None:
        """Reveal the folds of a repeat before ``end``."""
        before = repeat.number * repeat.cut.n_folds
        begin, self.n_scored = self.n_scored, before + end
        if self._losses is not None and self._tests_single_rows:
            scores = self.scores[self._request.scoring.optimized[0], begin : self.n_scored]
            self._add_losses(repeat, Node(begin - before, end), scores)
        hidden = self._hidden[repeat.number]
        while hidden and hidden[0][0].last <= end:
            piece, scores, weights = hidden.pop(0)
            if before + piece.first < begin:  # folds that were refitted for their predictions
                continue
            self._part.append((scores, weights))
            if self._losses is not None:
                self._add_losses(repeat, piece, scores)

    def _add_losses(self, repeat: Repeat, folds: Node, losses: Array) -> None:
        """Add the scores of the rows of these folds."""
        assert self._losses is not None
        numbers = repeat.cut.tested_from(*folds)
        if self._n_tests is None:
            self._losses[numbers] = losses
        else:
            np.add.at(self._losses, numbers, losses.astype(np.float32))
            np.add.at(self._n_tests, numbers, 1)

    def row_losses(self) -> Array | None:
        """Return the mean score of each row, float32, if requested; NaN if it is not tested.

        They take 4 bytes per row, and 4 more where rows are tested several times.
        """
        if self._losses is None or self._n_tests is None:
            return self._losses
        with np.errstate(invalid="ignore"):
            return self._losses / self._n_tests.astype(np.float32)

    @property
    def is_complete(self) -> bool:
        """Whether all folds are revealed."""
        return self.n_scored == self.scores.shape[1]

    def fold_scores(self, number: int) -> Array:
        """Return the scores of all folds, repeat after repeat; NaN if there is none (yet).

        Parameters
        ----------
        number : int
            The number of the metric.
        """
        return self._by_number(self.scores[number, : self.n_scored])

    def _by_number(self, scored: Array) -> Array:
        """Reorder values of the first chunks by the numbers of folds, repeat after repeat."""
        cross_validation = self._request.cross_validation
        n_folds = cross_validation.n_folds
        by_repeat = [
            by_number(repeat.cut, scored[repeat.number * n_folds :][:n_folds])
            for repeat in cross_validation.repeats
        ]
        return by_repeat[0] if len(by_repeat) == 1 else np.concatenate(by_repeat)

    def score(self, number: int, method: str) -> Score:
        """Return the result of one metric over the folds that are revealed.

        Parameters
        ----------
        number : int
            The number of the metric.
        method : str
            How the folds were evaluated, as ``CVResult.method``.
        """
        metric = self._request.scoring.metrics[number]
        if isinstance(metric, Pooled):
            n_repeats = self.n_scored // self._request.cross_validation.n_folds
            scores, errors = self.pooled[number, :n_repeats].T
            error = mean_and_std(errors)[0]
            std_error = None if np.isnan(error) else error
            mean = mean_and_std(scores)[0]
            return Score(scores, mean, None, metric.direction, None, True, std_error)
        scores = self.fold_scores(number)
        if not self.is_complete:
            scores = scores[~np.isnan(scores)]
        mean, std = mean_and_std(scores)
        std = std if len(scores) > 1 else None
        behind = (
            self._scores_for_interval(number, metric, scores, method) if self.is_complete else None
        )
        return Score(scores, mean, std, metric.direction, behind)

    def _scores_for_interval(
        self, number: int, metric: Loss | Scorer, scores: Array, method: str
    ) -> Scores:
        """Return the scores of folds by a metric, with the statistics of their rows."""
        tested = self._request.cross_validation.tested(method)
        spreads = None
        if self.spreads is not None:
            spreads = self.spreads[number]
            if any(cut.numbers is not None for cut in tested.cuts):
                spreads = np.array([self._by_number(of_chunks) for of_chunks in spreads])
            spreads = spreads.reshape(SPREAD_SIZE, -1, tested.n_folds)
        by_fold = scores.reshape(-1, tested.n_folds)
        return Scores(self._request.scoring.names[number], metric, by_fold, spreads, tested)

    def all_outputs(self) -> dict[str, Array]:
        """Return the outputs for the tested rows, repeat after repeat, in the order of the tree.

        Only methods whose outputs are known for all repeats are included; none are if a fold has
        diverged, because its score does not follow from its outputs.
        """
        repeats = self.responses if self.is_complete and not self.n_diverged else []
        return {
            name: np.concatenate([of_repeat[name] for of_repeat in repeats])
            for name in self._request.stored_methods
            if repeats and all(len(of_repeat.get(name, ())) for of_repeat in repeats)
        }


def concatenate_folds(folds: Sequence[TestedRows]) -> TestedRows:
    """Return the tested rows of consecutive folds."""
    if len(folds) == 1:
        return folds[0]

    def together(parts: Sequence[Opaque]) -> Opaque:
        return None if parts[0] is None else np.concatenate(parts)

    begins = None
    if any(fold.begins is not None for fold in folds):
        ends = np.cumsum([0, *map(len, folds)])
        begins = np.concatenate(
            [end + e.all_begins() for end, e in zip(ends, folds, strict=False)]
        )
    return TestedRows(
        together([fold.outputs for fold in folds]),
        folds[0].respond,
        together([fold.targets for fold in folds]),
        together([fold.weights for fold in folds]),
        begins,
        folds[0].methods,
    )


def pack(scores: FoldScores, pooled: Array, n_needed: int) -> Array:
    """Return the scores of a repeat as bytes.

    Parameters
    ----------
    scores : FoldScores
        The scores of all folds.
    pooled : ndarray of shape (n_metrics, 2)
    n_needed : int
        The rows of all trainings.
    """
    spreads = () if scores.spreads is None else scores.spreads
    parts = scores.scores, spreads, scores.diverged, pooled, [n_needed]
    return np.concatenate([np.ravel(part) for part in parts], dtype=np.float64).view(np.uint8)


def unpack(request: Request, repeat: Repeat, memory: Array) -> TestedFolds:
    """Return the folds of a repeat with the scores that ``pack`` has written."""
    sizes = packed_sizes(request, repeat)
    parts = np.split(memory.view(np.float64), np.cumsum(sizes[:-1]))
    scores, spreads, diverged, pooled, (n_needed,) = parts
    n_metrics, n_folds = len(request.scoring.metrics), repeat.cut.n_folds
    of_folds = FoldScores(
        scores.reshape(n_metrics, n_folds),
        diverged.astype(bool),
        spreads.reshape(n_metrics, SPREAD_SIZE, n_folds) if len(spreads) else None,
    )
    of_all = pooled.reshape(n_metrics, 2)
    return TestedFolds(0, repeat.plan.root, int(n_needed), scores=of_folds, pooled=of_all)
