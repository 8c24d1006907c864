"""The scorebook of a candidate: scores of its folds and rows, and scores pooled over all rows."""

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

# Folds with more rows than this in total are scored in batches, so that scoring needs little
# memory.
_MAX_ROWS_PER_BATCH = 2**16


class Scorebook:
    """Computes and stores the scores of tested folds.

    Folds are added when they are evaluated, and revealed when they are reported.

    Parameters
    ----------
    request : Request
    estimator : estimator
        The candidate.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_repeats * n_folds)
        The fold scores in tree order, one repeat after the other; NaN for pooled metrics.
    spreads : ndarray of shape (n_metrics, 3, n_repeats * n_folds) or None
        See ``FoldScores``; None if each fold is a single row.
    pooled : ndarray of shape (n_metrics, n_repeats, 2)
        The pooled scores of repeats, with their standard errors; NaN for other metrics.
    n_scored : int
        The number of folds that have been revealed.
    part_rows : (ndarray, ndarray or None) or None
        The scores and the weights of the rows that were revealed since ``begin_part``; None if
        they are unknown or not requested.
    responses : list of dict of str to ndarray
        For each repeat, the outputs in tree order by response method, see
        ``Request.stored_methods``. Methods whose outputs are unknown are missing.
    """

    def __init__(self, request: Request, estimator: Estimator) -> None:
        cross_validation = request.cross_validation
        self.scorer = FoldScorer(request, estimator)
        self._request = request
        repeats = cross_validation.repeats
        n_metrics, n_folds = len(request.scoring.metrics), cross_validation.n_folds
        n_scores = len(repeats) * n_folds
        self.scores = np.full((n_metrics, n_scores), np.nan)
        self._diverged: Array | None = None  # allocated when the first fold diverges
        self.spreads: Array | None = None
        if not cross_validation.tests_single_rows:
            self.spreads = np.full((n_metrics, SPREAD_SIZE, n_scores), np.nan)
        self.pooled = np.full((n_metrics, len(repeats), 2), np.nan)
        self.n_scored = 0
        # For each row as given: the sum of its losses, and their number if it may be tested
        # repeatedly.
        self._losses = self._n_tests = None
        if request.settings.row_losses:
            cut = repeats[0].cut
            self._losses = request.data.room.empty((cut.n_rows,), np.float32)
            self._losses[:] = np.nan
            if len(repeats) > 1 or not isinstance(cut, Folds):
                self._losses[:] = 0
                self._n_tests = np.zeros(cut.n_rows, np.int32)
        # For each repeat, the folds that are scored but not revealed, with their row scores and
        # weights.
        self._hidden: list[list[tuple[Node, Array, Array | None]]] = [[] for _ in repeats]
        self._part: list[tuple[Array, Array | None]] = []
        self._predictions: list[TestedRows] = []  # of the current repeat, if scores are pooled
        self.responses: list[dict[str, Array]] = [{} for _ in repeats]

    @property
    def n_bytes(self) -> int:
        """The approximate number of bytes of all arrays."""
        hidden = (rows for of_repeat in self._hidden for _, rows, _ in of_repeat)
        arrays = [self.scores, self.pooled, *hidden]
        arrays += [x for of_repeat in self.responses for x in of_repeat.values()]
        arrays += [] if self.spreads is None else [self.spreads]
        return sum(array.nbytes for array in arrays)

    @property
    def n_diverged(self) -> int:
        """The number of revealed folds that have diverged."""
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
        """Discard the row scores of the previous part."""
        self._part = []

    @property
    def part_rows(self) -> tuple[Array, Array | None] | None:
        if len(self._part) < 2:
            return self._part[0] if self._part else None
        weights = [weights for _, weights in self._part if weights is not None]
        scores = np.concatenate([scores for scores, _ in self._part])
        return scores, np.concatenate(weights) if weights else None

    def forget(self, repeat: Repeat) -> None:
        """Discard the folds of a repeat that have not been revealed."""
        self._hidden[repeat.number], self._predictions = [], []
        self.responses[repeat.number] = {}

    def add(self, repeat: Repeat, tested: TestedFolds) -> None:
        """Score tested folds; after the last fold of a repeat, also compute its pooled scores."""
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
        """Score a batch of folds and, if requested, their rows; store their outputs."""
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
        row_scores = self.scorer.score_rows(rows)
        self._hidden[repeat.number].append((piece, row_scores, rows.weights))
        first = self._request.scoring.optimized[0]
        spreads = None if self.spreads is None else self.spreads[first, :, places]
        if self._losses is not None and spreads is not None and np.any(np.isnan(spreads)):
            begins = repeat.plan.begins(piece) - repeat.plan.begin(piece.first)
            spreads[:] = spread_of(row_scores, self.scores[first, places], rows.weights, begins)

    def _store_outputs(self, repeat: Repeat, piece: Node, rows: TestedRows, method: str) -> None:
        """Store the outputs of a batch of folds if all of them are finite.

        Otherwise, the outputs of the whole repeat are discarded.
        """
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
        """Reveal the folds of a repeat with indices below ``end``."""
        before = repeat.number * repeat.cut.n_folds
        begin, self.n_scored = self.n_scored, before + end
        if self._losses is not None and self.spreads is None:  # each fold is a row
            scores = self.scores[self._request.scoring.optimized[0], begin : self.n_scored]
            self._add_losses(repeat, Node(begin - before, end), scores)
        hidden = self._hidden[repeat.number]
        while hidden and hidden[0][0].last <= end:
            piece, scores, weights = hidden.pop(0)
            if before + piece.first < begin:  # it was refitted only for its predictions
                continue
            self._part.append((scores, weights))
            if self._losses is not None:
                self._add_losses(repeat, piece, scores)

    def _add_losses(self, repeat: Repeat, folds: Node, losses: Array) -> None:
        """Add the row scores of these folds to ``row_losses``."""
        assert self._losses is not None
        row_indices = repeat.cut.tested_from(*folds)
        if self._n_tests is None:
            self._losses[row_indices] = losses
        else:
            np.add.at(self._losses, row_indices, losses.astype(np.float32))
            np.add.at(self._n_tests, row_indices, 1)

    def row_losses(self) -> Array | None:
        """Return the mean score of each row as float32, or None; NaN for rows that are not tested.

        They take 4 bytes per row, or 8 bytes if rows may be tested several times.
        """
        if self._losses is None or self._n_tests is None:
            return self._losses
        with np.errstate(invalid="ignore"):
            return self._losses / self._n_tests.astype(np.float32)

    @property
    def is_complete(self) -> bool:
        """Whether all folds have been revealed."""
        return self.n_scored == self.scores.shape[1]

    def fold_scores(self, number: int) -> Array:
        """Return the scores of all revealed folds by fold index, one repeat after the other.

        Pooled metrics have NaN.

        Parameters
        ----------
        number : int
            The index of the metric.
        """
        return self._by_number(self.scores[number, : self.n_scored])

    def _by_number(self, scored: Array) -> Array:
        """Reorder values from tree order to fold indices, one repeat after the other."""
        cross_validation = self._request.cross_validation
        n_folds = cross_validation.n_folds
        by_repeat = [
            by_number(repeat.cut, scored[repeat.number * n_folds :][:n_folds])
            for repeat in cross_validation.repeats
        ]
        return by_repeat[0] if len(by_repeat) == 1 else np.concatenate(by_repeat)

    def score(self, number: int, method: str) -> Score:
        """Return the result of one metric for the folds that have been revealed.

        Parameters
        ----------
        number : int
            The index of the metric.
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
        behind = None
        if self.is_complete:
            behind = self._scores_for_interval(number, metric, scores, method)
        else:
            scores = scores[~np.isnan(scores)]
        mean, std = mean_and_std(scores)
        std = std if len(scores) > 1 else None
        return Score(scores, mean, std, metric.direction, behind)

    def _scores_for_interval(
        self, number: int, metric: Loss | Scorer, scores: Array, method: str
    ) -> Scores:
        """Return the fold scores of a metric with the row statistics that intervals need."""
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
        """Return the outputs for the tested rows in tree order, one repeat after the other.

        The keys are the response methods whose outputs are known for all repeats. The dict is
        empty if a fold has diverged, because the score of this fold cannot be computed from its
        outputs.
        """
        repeats = self.responses if self.is_complete and not self.n_diverged else []
        return {
            name: np.concatenate([of_repeat[name] for of_repeat in repeats])
            for name in self._request.stored_methods
            if repeats and all(len(of_repeat.get(name, ())) for of_repeat in repeats)
        }


def concatenate_folds(folds: Sequence[TestedRows]) -> TestedRows:
    """Concatenate the tested rows of consecutive runs of folds."""
    if len(folds) == 1:
        return folds[0]

    def join(arrays: Sequence[Opaque]) -> Opaque:
        return None if arrays[0] is None else np.concatenate(arrays)

    begins = None
    if any(fold.begins is not None for fold in folds):
        ends = np.cumsum([0, *map(len, folds)])
        pairs = zip(ends, folds, strict=False)
        begins = np.concatenate([end + fold.all_begins() for end, fold in pairs])
    return TestedRows(
        join([fold.outputs for fold in folds]),
        folds[0].respond,
        join([fold.targets for fold in folds]),
        join([fold.weights for fold in folds]),
        begins,
        folds[0].methods,
    )


def pack(scores: FoldScores, pooled: Array, n_needed: int) -> Array:
    """Return the scores of a repeat as an array of bytes.

    Parameters
    ----------
    scores : FoldScores
        The scores of all folds.
    pooled : ndarray of shape (n_metrics, 2)
    n_needed : int
        The number of row updates that all trainings need.
    """
    spreads = () if scores.spreads is None else scores.spreads
    parts = scores.scores, spreads, scores.diverged, pooled, [n_needed]
    return np.concatenate([np.ravel(part) for part in parts], dtype=np.float64).view(np.uint8)


def unpack(request: Request, repeat: Repeat, memory: Array) -> TestedFolds:
    """Return the folds of a repeat with the scores that ``pack`` has stored."""
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
