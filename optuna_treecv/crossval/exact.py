"""The engine "exact": the folds of estimators whose models follow from sums over their rows.

The sums of all folds take one reading of the rows, and what is done for a fold serves all values
of one parameter.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
from copy import copy
from time import perf_counter
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from optuna_treecv.crossval.engine import Effort
from optuna_treecv.crossval.engine import Engine
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.exact_choice import prepared_after
from optuna_treecv.crossval.exact_choice import why_not_exact
from optuna_treecv.crossval.fit import FIT
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.learners.exact.chunks import Chunks
from optuna_treecv.learners.exact.chunks import Tested
from optuna_treecv.learners.exact.families import FAMILIES
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.exact.families import parts_of
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.threads import one_blas_thread
from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.data import count_targets
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import follows_from_squares
from optuna_treecv.scoring import in_full
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import scores_from_squares
from optuna_treecv.scoring import TestedRows
from optuna_treecv.sharing.exact_results import ExactName
from optuna_treecv.sharing.exact_results import ExactResult
from optuna_treecv.sharing.exact_results import ExactShape
from optuna_treecv.sharing.exact_results import KeptSums
from optuna_treecv.sharing.exact_results import name_of_exact
from optuna_treecv.sharing.exact_results import OUTPUTS_DIVERGED
from optuna_treecv.sharing.keys import under_configuration

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job

# The rows of several folds that are tested together, and the bytes of what the models of all
# points say of the rows that are tested together.
_ROWS = 2**14
_MOST_BYTES = 2**27

# The folds that take a fraction of the time of leave-one-out, with hardly fewer training rows.
_FEWER_FOLDS = 1000

# Why folds are fitted after all.
_NOT_FINITE = "a model that follows from sums over rows is not finite"

# The type in which the scores of single rows wait.
_ROW_SCORE = np.dtype(np.float32)


class Exact(Engine):
    """One reading of the rows for all folds and all values of a parameter."""

    name = "exact"
    asked_by = ("auto", "holdout", "exact")
    why_one_epoch = "its models follow from sums over rows, which more passes do not change"

    def why_not(self, job: Job) -> str:
        """Return why an estimator has no exact folds, a clause."""
        return why_not_exact(job)

    def why(self, job: Job) -> str:
        """Return that models follow from sums."""
        return "its models follow from sums over rows"

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error."""
        return (
            f"method='exact' must have an estimator whose models follow from sums over rows "
            f"({', '.join(kind.__name__ for kind in FAMILIES)}), alone or after row-wise steps or "
            f"a StandardScaler, but {why_not}; method='auto' would be right."
        )

    def check(self, job: Job) -> None:
        """Refuse wrong parameters, as the estimator's own ``fit`` would."""
        parts = _parts(job.estimator)
        if parts.scaler is not None:
            parts.scaler._validate_params()
        if parts.parameter not in job.searched:
            parts.last._validate_params()

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[TestedFolds]:
        """Find kept scores, or compute them.

        Where "auto" has chosen exact folds and they are refused or not finite, the folds are
        fitted. What exact folds say stands only if the fits fail too.
        """
        scores: ExactResult | None = None
        try:
            scores = self._scores(job, repeat)
        except Exception as error:
            if not job.why:
                raise
            refused = error
        if scores is not None and not (job.why and np.any(scores.diverged == OUTPUTS_DIVERGED)):
            return self._events(job, repeat, scores)
        effort, job.effort = job.effort, Effort()
        try:
            began = perf_counter()
            fits = list(FIT.start(job, repeat))
            job.effort.seconds = perf_counter() - began
        except Exception as error:
            job.effort = effort
            if scores is not None:
                return self._events(job, repeat, scores)
            raise refused from error
        effort.add(job.effort)
        job.effort = effort
        job.engine = FIT
        job.why = _NOT_FINITE if scores is not None else _why_refused(refused)
        return (one for one in fits)

    def _scores(self, job: Job, repeat: Repeat) -> ExactResult:
        name = _name_of(job, repeat)
        if repeat.number == 0:
            job.key, job.fingerprint = name.key, name.fingerprint
        scores: ExactResult | None = job.ahead.pop(repeat.number, None) or _find(job, repeat)
        if scores is None:
            rows, seconds = prepared_after(job.task, _parts(job.estimator), repeat)
            (scores,) = evaluate_points([job], repeat, rows)
            scores.seconds_prepare = seconds
        return scores

    def _events(self, job: Job, repeat: Repeat, scores: ExactResult) -> Generator[TestedFolds]:
        effort = job.effort
        effort.n_updates = 0 if scores.was_kept else scores.n_updates
        effort.seconds, effort.seconds_prepare = scores.seconds, scores.seconds_prepare
        yield from tested_folds(scores, repeat)
        if not scores.was_kept:
            _name_of(job, repeat).keep(scores, effort.seconds)

    def parameters_beside(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameter in which estimators may differ."""
        parts = parts_of(estimator)
        return (parts.parameter,) if isinstance(parts, Parts) else ()

    def missing(self, job: Job) -> Missing | None:
        """Return what is missing of the first repeat; None if the results are there already."""
        repeat = job.task.repeats[0]
        if repeat.number in job.ahead or _find(job, repeat) is not None:
            return None
        n_bytes = _shape(job, repeat).n_bytes
        if job.needs_rows:
            n_bytes += _ROW_SCORE.itemsize * repeat.cut.n_tested
        name = _name_of(job, repeat).key
        return Missing(name or str(id(job)), n_bytes * job.task.n_repeats)

    def together(self, jobs: Sequence[Job], watch: Watch | None, are_leased: bool) -> bool:
        """Compute the scores of jobs that differ in one parameter alone."""
        is_any = False
        for repeat in jobs[0].task.repeats:
            groups: dict[bytes, list[Job]] = {}
            for job in jobs:
                name = _name_of(job, repeat)
                if repeat.number in job.ahead or name.of_sums is None:
                    continue
                if _find(job, repeat) is None:
                    groups.setdefault(name.of_sums, []).append(job)
            for group in groups.values():
                if len(group) == 1:
                    continue
                try:
                    parts = _parts(group[0].estimator)
                    rows, seconds = prepared_after(group[0].task, parts, repeat)
                    found = evaluate_points(group, repeat, rows)
                except Exception:  # noqa: BLE001  # each job will raise its own
                    continue
                for job, own in zip(group, found, strict=True):
                    own.seconds_prepare = seconds
                    job.ahead[repeat.number] = own
                is_any = True
        return is_any

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the models that follow from sums, or else of fits."""
        try:
            return _predictions(job, repeat, method)
        except Exception as error:
            if not job.why:
                raise
            refused = error
        try:
            return FIT.predict(job, repeat, method)
        except Exception as error:
            raise refused from error

    def refit(self, job: Job) -> Any:
        """Fit the estimator on all rows as they were given."""
        return FIT.refit(job)

    def cost(self, job: Job) -> str:
        """Return that one reading serves all folds."""
        parts, task = _parts(job.estimator), job.task
        said = f"One reading of the {task.data.n_rows:,} rows serves all {task.folds_in_words}"
        k = task.n_folds
        if parts.scaler is not None and parts.scaler.with_std:
            if k == task.data.n_rows > _FEWER_FOLDS:
                return (
                    f"{said}. Each row that is left out changes the scales of the StandardScaler, "
                    f"which takes most of the time; cv={_FEWER_FOLDS} takes a fraction of it."
                )
        return f"{said}, and further values of {parts.parameter} are nearly free."


def tested_folds(scores: ExactResult, repeat: Repeat) -> Generator[TestedFolds]:
    """Yield the parts of a repeat whose scores are known."""
    cut, n_needed = repeat.cut, scores.n_needed
    of_all = FoldScores(scores.scores, scores.diverged, scores.spreads)
    pooled = {
        number: (float(score[0]), float(score[1]))
        for number, score in enumerate(scores.pooled)
        if not np.isnan(score[0])
    }
    bounds = cut.begins()
    for part in repeat.parts:
        of_rows = None
        if scores.of_rows is not None:
            begin, end = bounds[[part.first, part.last]] - bounds[0]
            of_rows = scores.of_rows[begin:end]
        yield TestedFolds(
            part,
            n_needed,
            scores=of_all.part(part.first, part.n_folds),
            pooled=pooled if part.last == cut.n_folds else {},
            row_scores=of_rows,
        )
        n_needed = 0


def evaluate_points(jobs: Sequence[Job], repeat: Repeat, rows: PreparedRows) -> list[ExactResult]:
    """Compute the scores of jobs that differ in one parameter alone."""
    first = jobs[0]
    parts = _parts(first.estimator)
    began = perf_counter()
    estimators = [_parts(job.estimator).last for job in jobs]
    name = _name_of(first, repeat)
    kept = name.kept_sums()
    scorer = _Scorer(first, rows, chunks_of(repeat.cut), _shape(first, repeat))
    n_threads = first.task.settings.n_threads
    found: list[ExactResult] = []
    with _computing():
        size = scorer.most_points()
        for begin in range(0, len(estimators), size):
            family = parts.family(estimators[begin : begin + size], rows, parts.scaler, n_threads)
            found += scorer.score(family, kept)
    seconds = (perf_counter() - began) / len(found)
    for one in found:
        one.seconds = seconds
        one.n_needed = scorer.chunks.n_read
        one.n_updates = 0 if kept.were_there else scorer.chunks.n_read
    return found


def _predictions(job: Job, repeat: Repeat, method: str) -> np.ndarray:
    """Return the responses; refuse those that are not finite if "auto" has chosen exact folds."""
    estimator = job.estimator
    parts = _parts(estimator)
    rows, _ = prepared_after(job.task, parts, repeat)
    with _computing():
        family = parts.family([parts.last], rows, parts.scaler, job.task.settings.n_threads)
        tested = family.test(chunks_of(repeat.cut), KeptSums(None, None), _ROWS)
        outputs = np.concatenate([one.outputs[0] for one in tested])
        prepared = family.response(outputs, method)
    classes = rows.classes if method == "predict" else None
    has_nan = classes is not None and np.any(np.isnan(outputs))
    if has_nan or (job.why and not np.all(np.isfinite(outputs))):
        raise ValueError(f"{name_of(estimator)} diverges: its model is not finite.")
    if classes is not None:
        prepared = classes[prepared]
    predictions = np.empty_like(prepared)
    predictions[rows.order] = prepared
    return predictions


def chunks_of(cut: Cut) -> Chunks:
    """Return the training and test rows of each fold as numbers of prepared rows."""
    if isinstance(cut, Folds):
        return Chunks(cut.n_rows, cut.begins())
    trains: list[int | np.ndarray] = []
    for chunk in range(cut.n_folds):
        rows = cut.prepared(cut.train_rows(chunk))
        is_first_part = len(rows) and np.array_equal(rows, np.arange(len(rows)))
        trains.append(len(rows) if is_first_part else rows)
    return Chunks(cut.n_rows, cut.begins(), cut.prepared(cut.tested_from(0, cut.n_folds)), trains)


class _Scorer:
    """Scores what the models of all points say.

    Parameters
    ----------
    job : Job
        One of those that are evaluated together.
    rows : PreparedRows
    chunks : Chunks
    shape : ExactShape
        Of the results.
    """

    def __init__(self, job: Job, rows: PreparedRows, chunks: Chunks, shape: ExactShape) -> None:
        self._shape = shape
        self._book = job.book
        self._metrics = job.scoring.metrics
        self._classes = rows.classes
        self.chunks = chunks
        self._targets = _behind(rows.targets, chunks)
        self._weights = _behind(rows.score_weights, chunks)
        self._pools = any(isinstance(one, Pooled) for one in self._metrics)
        # Sums of squares are over the weights of training, which may have been rounded.
        data = job.task.data
        same = data.score_weights is data.weights and (
            rows.weights is None or rows.weights.dtype == np.float64
        )
        self._needs_rows = job.needs_rows
        self._by_squares = (
            same
            and not self._needs_rows
            and all(follows_from_squares(metric) for metric in self._metrics)
            and not chunks.are_single_rows
            and int(np.median(chunks.sizes)) >= rows.n_features
        )

    def most_points(self) -> int:
        """Return how many points are evaluated at once, so that their outputs take little room."""
        n_classes = 1 if self._classes is None else len(self._classes)
        n_targets = count_targets(self._targets)
        n_rows = max(int(self.chunks.sizes.max()), _ROWS)
        if self._pools:
            n_rows = int(self.chunks.bounds[-1])
        return max(1, _MOST_BYTES // (8 * n_rows * max(n_classes, n_targets)))

    def score(self, family: Family, kept: KeptSums) -> list[ExactResult]:
        """Return the scores of each point."""
        if self._by_squares:
            found = self._from_squares(family, kept)
            if found is not None:
                return found
        n_points, k = family.n_points, self.chunks.n_chunks
        found = [ExactResult.empty(self._shape) for _ in range(n_points)]
        if self._needs_rows:
            n_tested = int(self.chunks.bounds[-1] - self.chunks.bounds[0])
            for one in found:
                one.of_rows = np.empty(n_tested, _ROW_SCORE)
        outputs = []
        for tested in family.test(self.chunks, kept, _ROWS):
            if self._pools:
                outputs.append(tested.outputs)
            for one, said in zip(found, tested.outputs, strict=True):
                part = slice(tested.first, tested.last)
                scored = self._scores(family, tested, said)
                one.scores[:, part], one.diverged[part] = scored.scores, scored.diverged
                if one.spreads is not None:
                    one.spreads[:, :, part] = in_full(scored.spreads, scored.scores.shape)
                if one.of_rows is not None:
                    bounds = self.chunks.bounds
                    begin, end = bounds[[tested.first, tested.last]] - bounds[0]
                    rows = self._tested_rows(family, tested, said)
                    one.of_rows[begin:end] = self._book.row_scores_of(rows)
        if self._pools:
            for one, said in zip(found, np.concatenate(outputs, axis=1), strict=True):
                rows = self._tested_rows(family, Tested(0, k, said[None]), said)
                for number, pooled in self._book.pooled_of(rows).items():
                    one.pooled[number] = pooled
        return found

    def _from_squares(self, family: Family, kept: KeptSums) -> list[ExactResult] | None:
        squares = family.squares(self.chunks, kept)
        if squares is None or not np.all(np.isfinite(squares.errors)):
            return None
        scores = [scores_from_squares(metric, *squares) for metric in self._metrics]
        if any(one is None for one in scores):
            return None
        of_points = np.stack([one for one in scores if one is not None], axis=1)
        return [ExactResult.of(one, self._shape) for one in of_points]

    def _scores(self, family: Family, tested: Tested, said: np.ndarray) -> FoldScores:
        rows = self._tested_rows(family, tested, said)
        scored = self._book.scores_of(rows)
        diverged = np.where(rows.diverged(), OUTPUTS_DIVERGED, scored.diverged)
        return scored._replace(diverged=diverged)

    def _tested_rows(self, family: Family, tested: Tested, said: np.ndarray) -> TestedRows:
        bounds = self.chunks.bounds[tested.first : tested.last + 1]
        part = slice(int(bounds[0]), int(bounds[-1]))
        each = len(bounds) - 1 == part.stop - part.start
        return TestedRows(
            said,
            family.response,
            None if self._targets is None else self._targets[part],
            None if self._weights is None else self._weights[part],
            None if each else bounds[:-1] - bounds[0],
        )


def _behind(of_rows: np.ndarray | None, chunks: Chunks) -> np.ndarray | None:
    """Return what stands behind the tested rows."""
    return of_rows if of_rows is None or chunks.tested is None else of_rows[chunks.tested]


@contextmanager
def _computing() -> Generator[None]:
    """Return a context for sums and factors, in which what is not finite has diverged."""
    try:
        with one_blas_thread(), np.errstate(all="ignore"):
            yield
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "X must hold numbers whose squares can be summed in float64, got larger ones "
            f"({error}); X / np.abs(X).max() would be right."
        ) from error


def _why_refused(error: Exception) -> str:
    said = str(error).removesuffix(".")
    return f"sums over rows do not tell its models ({said})"


def _parts(estimator: Any) -> Parts:
    parts = parts_of(estimator)
    assert isinstance(parts, Parts)
    return parts


def _shape(job: Job, repeat: Repeat) -> ExactShape:
    has_spreads = not repeat.cut.are_single_rows
    return ExactShape(len(job.scoring.metrics), repeat.cut.n_folds, has_spreads)


def _find(job: Job, repeat: Repeat) -> ExactResult | None:
    """Return kept results; the scores of rows are never kept."""
    return None if job.needs_rows else _name_of(job, repeat).find(_shape(job, repeat))


def _name_of(job: Job, repeat: Repeat) -> ExactName:
    """Return the name of a job's results on a repeat; it is looked up once."""
    if repeat.number not in job.names:
        task, parts = job.task, _parts(job.estimator)
        # A point is a value of one parameter of the last part, which is left out of the others.
        last, parameter = copy(parts.last), parts.family.parameter
        setattr(last, parameter, None)
        data, lasts = task.data_name()
        job.names[repeat.number] = name_of_exact(
            task.shared.cache,
            [*parts.steps, parts.scaler, last],
            getattr(parts.last, parameter),
            (under_configuration(data), lasts),
            task.folds_name(repeat),
            job.scoring,
        )
    found: ExactName = job.names[repeat.number]
    return found
