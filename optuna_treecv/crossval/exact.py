"""The engine "exact": the folds of estimators whose models follow from sums over their rows.

The sums of all folds take one reading of the rows, and what is done for a fold serves all values
of a few parameters.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.crossval.engine import in_given_order
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.fit import FIT
from optuna_treecv.crossval.fold_task import FoldsFailed
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.whole_repeat import OUTPUTS_DIVERGED
from optuna_treecv.crossval.whole_repeat import RepeatScores
from optuna_treecv.crossval.whole_repeat import WholeRepeat
from optuna_treecv.crossval.whole_repeat import why_not_scored
from optuna_treecv.learners.exact.families import FAMILIES
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.exact.families import parts_of
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.family import one_blas_thread
from optuna_treecv.learners.exact.moments import Chunks
from optuna_treecv.learners.exact.moments import FoldsLeftOut
from optuna_treecv.learners.exact.moments import RowNumbers
from optuna_treecv.learners.exact.moments import TestedChunks
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.steps.decisions import FROM_SUMS
from optuna_treecv.learners.steps.parts import foreign_code
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.learners.steps.placeholders import NotAheadError
from optuna_treecv.learners.steps.tables import Table
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import FoldPairs
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.scores import follows_from_squares
from optuna_treecv.scoring.scores import scores_from_squares
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.keys import first_key
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import lasting_key

# The rows of several folds that are tested together, and the bytes of what the models of all
# points say of the rows that are tested together.
_ROWS = 2**14
_MOST_BYTES = 2**27

# The folds that take a fraction of the time of leave-one-out, with hardly fewer training rows.
_FEWER_FOLDS = 1000


class KeptSums:
    """The sums that a family keeps for further points; follows ``learners.exact.moments.Keep``.

    It holds the arrays itself as long as it lives, which is one evaluation of several points.

    Parameters
    ----------
    cache : ModelCache or None
    name : bytes
        A digest of everything that the sums depend on; empty: nothing is kept.
    """

    def __init__(self, cache: ModelCache | None = None, name: bytes = b"") -> None:
        self._cache = cache if name else None
        self._name = name
        self._held: dict[Key, np.ndarray] = {}
        self._n_made = 0

    @property
    def were_there(self) -> bool:
        """Whether all arrays that were needed were kept."""
        return bool(self._held) and self._n_made == 0

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return the kept array of a name, or make and keep it."""
        key = Key(self._name, b"", b"", b"sums " + name.encode(), 8 * size)
        if key not in self._held:
            memory = None if self._cache is None else self._cache.find(key)
            if memory is None:
                self._n_made += 1
                began, memory = perf_counter(), np.empty(size)
                make(memory)
                memory.flags.writeable = False
                if self._cache is not None:
                    self._cache.keep(key, memory, perf_counter() - began)
            self._held[key] = memory
        return self._held[key]


class Exact(WholeRepeat):
    """One reading of the rows for all folds and all points."""

    name = "exact"
    methods = ("auto", "holdout", "exact")
    reason = "its models follow from sums over rows"
    why_one_epoch = "its models follow from sums over rows, which more passes do not change"
    families: Mapping[type, type[Family]] = FAMILIES
    lost = "a model that follows from sums over rows is not finite"
    refused = "sums over rows do not tell its models"
    reads_again = False  # whether each point reads the rows
    takes = "an estimator whose models follow from sums over rows"
    foreign = "models of {} do not follow from sums over rows"
    models = FROM_SUMS

    def why_not(self, job: Job) -> str:
        """Return why an estimator has no exact folds, a clause."""
        task, estimator = job.task, job.estimator
        is_asked = task.settings.method == self.name
        parts, last = self._divide(estimator), last_step(estimator)
        family = self.families.get(type(last))
        if family is None:
            return str(parts)
        if task.repeats[0].plan.random and not is_asked:
            return "order='random' has no meaning for sums over rows"
        if why := job.metadata.why_not_by_sums(estimator) or why_not_scored(job):
            return why
        is_asked |= task.data.is_placed  # where no other engine takes less time
        has_weights = job.metadata.weights is not None
        counts = task.fewest_trained(is_classifier(estimator))
        n_outputs = len(task.data.classes()) if is_classifier(estimator) else task.n_targets
        is_searched = any(name in task.searched for name in self.parameters_beside(estimator))
        of_task = has_weights, *counts, task.n_folds, is_asked, n_outputs, is_searched
        # A step is not the reason if there is one without it. All rows pass those of a table.
        if isinstance(parts, str) or parts.kinds:
            if why := family.why_not(last, Facts(1, False, *of_task)):
                return why
        if isinstance(parts, str):
            return parts
        has_scaler = parts.scaler is not None
        try:
            n_features, is_sparse = self._form(job, parts)
        except NotAheadError as error:
            return str(error)
        idle = parts.family.idle_of(parts.last, is_sparse)
        if searched := [name for name in idle if parts.prefix + name in task.searched]:
            return f"{searched[0]} is searched, which does not act on models that have converged"
        if is_sparse and parts.scaler is not None and parts.scaler.with_mean:
            return "a StandardScaler cannot subtract a mean from sparse rows"
        return parts.family.why_not(parts.last, Facts(n_features, is_sparse, *of_task, has_scaler))

    def _form(self, job: Job, parts: Parts) -> tuple[int, bool]:
        """Return how many columns rows have after the steps, and whether they are sparse."""
        table = table_of(job, parts)
        if isinstance(table, str):
            raise NotAheadError(table)
        if table is not None:
            return table.n_features, table.is_sparse
        try:  # what is true of the first row is true of all
            first = _after(parts.steps, take_rows(job.task.data.X, slice(0, 1)))
        except ValueError as error:  # the fits will raise it again
            raise NotAheadError("the steps cannot transform the first row") from error
        return int(first.shape[1]), sparse.issparse(first)

    def free_parameters(self, job: Job) -> Collection[str]:
        """Return the point's parameters, or all of an estimator that is of no family."""
        parts = self._divide(job.estimator)
        return parts.parameters if isinstance(parts, Parts) else job.estimator.get_params()

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error."""
        kinds = ", ".join(kind.__name__ for kind in self.families)
        return (
            f"method={self.name!r} must have {self.takes} ({kinds}), alone or after steps that "
            f"are alike in each fold or learn numbers of columns, but {why_not}; method='auto' "
            "would be right."
        )

    def check(self, job: Job) -> None:
        """Refuse wrong parameters, as the estimator's own ``fit`` would."""
        parts = self._parts(job)
        if parts.scaler is not None:
            parts.scaler._validate_params()
        if not any(name in job.searched for name in parts.parameters):
            parts.last._validate_params()

    def parts(self, job: Job) -> Sequence[Any]:
        """Return the parts of the estimator without the values of its point."""
        parts = self._parts(job)
        last = copy(parts.last)
        for name in parts.names:
            setattr(last, name, None)
        return [*parts.steps, parts.scaler, last]

    def _divide(self, estimator: Any) -> Parts | str:
        """Return the parts of an estimator, or why it is of none of the families, a clause."""
        return parts_of(estimator, self.families, self.foreign)

    def _parts(self, job: Job) -> Parts:
        parts = self._divide(job.estimator)
        assert isinstance(parts, Parts)
        return parts

    def _rows(self, job: Job, repeat: Repeat) -> PreparedRows:
        """Return the rows of a repeat after the steps that are done once."""
        parts = self._parts(job)
        target = "class" if is_classifier(parts.last) else "number"
        layout = RowLayout(padded=True, sparse=True, target=target)
        table = table_of(job, parts)
        if not isinstance(table, Table):
            if not parts.steps:
                return job.task.rows_in(layout, repeat)
            name = first_key(parts.steps, lasting_key)
            return job.task.rows_in(layout, repeat, partial(_after, parts.steps), name)
        rows, maps = job.task.rows_in(layout, repeat, table.transform, table.name), None
        if table.has_maps:
            make = partial(table.maps, rows, chunks_of(repeat.cut))
            maps = job.planned(("maps", repeat.number), make)
        return replace(rows, n_features=table.n_features, maps=maps)

    def _bind(
        self, job: Job, repeat: Repeat, rows: PreparedRows, points: Sequence[Any], method: str = ""
    ) -> Family:
        """Return estimators bound to rows.

        They answer by ``method``, or else by those that the scores need.
        """
        parts = self._parts(job)
        return parts.family(points, rows, parts.scaler, job.task.settings.n_threads)

    def point(self, job: Job, repeat: Repeat) -> Any:
        """Return the value of the point's parameter, or a tuple of several values or none."""
        parts = self._parts(job)
        values = tuple(getattr(parts.last, name) for name in parts.names)
        return values[0] if len(values) == 1 else values

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[TestedFolds]:
        """Find cached scores, or compute them.

        If "auto" has chosen the engine and it does not find the models, the folds are fitted.
        """
        try:
            scores = self._finite_scores(job, repeat)
        except ValueError as error:
            if not job.why or self.takes_placed:
                raise
            refused = error
        else:
            job.effort.n_updates, job.effort.seconds = scores.n_updates, scores.seconds
            job.effort.seconds_prepare = scores.seconds_prepare
            return self.events(job, repeat, scores)
        began = perf_counter()
        with self._fitting_after(refused):
            fits = list(FIT.start(job, repeat))
        job.effort.seconds = perf_counter() - began
        job.engine, job.why = FIT, self._why_fitted(refused)
        return (one for one in fits)

    def _finite_scores(self, job: Job, repeat: Repeat) -> RepeatScores:
        """Return the scores of a repeat; refuse those of outputs that are not finite."""
        scores = job.ahead.pop(repeat.number, None) or self.find(job, repeat)
        if scores is None:
            (scores,) = self.evaluate([job], repeat)
        if np.any(scores.diverged == OUTPUTS_DIVERGED):
            raise self._not_finite()
        return scores

    def _not_finite(self) -> ValueError:
        return ValueError(
            f"method={self.name!r} must find models whose outputs are finite, but {self.lost}; "
            "use method='auto' instead."
        )

    def _why_fitted(self, refused: ValueError) -> str:
        """Return why the folds are fitted after an error of the engine."""
        if self.lost in str(refused):
            return self.lost
        return f"{self.refused} ({str(refused).removesuffix('.')})"

    @contextmanager
    def _fitting_after(self, refused: ValueError) -> Generator[None]:
        """Fit in this block after an error of the engine, which stands if fits raise no better.

        Their own error about parameters or data is a ValueError.
        """
        try:
            yield
        except (ValueError, FoldsFailed) as error:
            error.add_note(f"The folds were fitted because {self._why_fitted(refused)}.")
            raise
        except Exception as error:
            raise refused from error

    def concerns(self, estimator: Any) -> bool:
        """Return whether the estimator is of a kind that is evaluated here."""
        return bool(self.parameters_beside(estimator))

    def parameters_beside(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameters in which estimators may differ."""
        parts = self._divide(estimator)
        return parts.parameters if isinstance(parts, Parts) else ()

    def missing(self, job: Job) -> Missing | None:
        """Return what is missing of the first repeat; None if the results are there already."""
        repeat = job.task.repeats[0]
        if not self._is_missing(job, repeat):
            return None
        n_bytes = self.new_scores(job, repeat).n_bytes + job.bytes_kept * repeat.cut.n_tested
        name = self.kept(job, repeat).name or str(id(job))
        return Missing(name, n_bytes * job.task.n_repeats)

    def _is_missing(self, job: Job, repeat: Repeat) -> bool:
        return repeat.number not in job.ahead and self.find(job, repeat) is None

    def together(self, jobs: Sequence[Job], watch: Watch | None, are_leased: bool) -> bool:
        """Compute the scores of jobs that differ in their points alone."""
        is_any = False
        for repeat in jobs[0].task.repeats:
            groups: dict[bytes, list[Job]] = {}
            for job in jobs:
                if self._is_missing(job, repeat):
                    groups.setdefault(self.kept(job, repeat).of_sums, []).append(job)
            for of_sums, group in groups.items():
                if not of_sums or len(group) == 1:
                    continue
                try:
                    scores = self.evaluate(group, repeat)
                except Exception:  # noqa: BLE001  # each job will raise its own
                    continue
                for job, of_job in zip(group, scores, strict=True):
                    # A job without fits to fall back on will raise its own error.
                    if job.why or not np.any(of_job.diverged == OUTPUTS_DIVERGED):
                        job.ahead[repeat.number] = of_job
                is_any = True
        return is_any

    def evaluate(self, jobs: Sequence[Job], repeat: Repeat) -> list[RepeatScores]:
        """Compute the scores of jobs that differ in their points alone."""
        job, chunks, metrics = jobs[0], chunks_of(repeat.cut), jobs[0].scoring.metrics
        rows = self._rows(job, repeat)
        began = perf_counter()
        sums = KeptSums(job.task.shared.memory, self.kept(job, repeat).of_sums)
        every = [self.new_scores(job, repeat) for _ in jobs]
        # So many points at once that their outputs take little room.
        n_outputs = job.task.n_targets if rows.classes is None else len(rows.classes)
        n_rows = chunks.bounds[-1] if _pools(job) else max(chunks.sizes.max(), _ROWS)
        size = max(1, _MOST_BYTES // (8 * int(n_rows) * n_outputs))
        follow = partial(_follows_from_squares, job, rows, chunks)
        has_squares = not job.needs_rows and job.planned(("squares", repeat.number), follow)
        with computing():
            for begin in range(0, len(jobs), size):
                scores = every[begin : begin + size]
                points = [self._parts(one).last for one in jobs[begin : begin + size]]
                family = self._bind(job, repeat, rows, points)
                squares = family.squares(chunks, sums) if has_squares else None
                of_points = None if squares is None else scores_from_squares(metrics, *squares)
                if of_points is None:
                    self._score_outputs(job, family, rows, chunks, sums, scores)
                    continue
                for one, of_point in zip(scores, of_points, strict=True):
                    one.scores[:], one.diverged[:] = of_point, 0
        seconds = (perf_counter() - began) / len(every)
        is_read = sums.were_there and not self.reads_again
        for one in every:
            one.seconds = seconds
            one.seconds_prepare = rows.seconds
            one.needed[0] = chunks.n_read
            one.n_updates = 0 if is_read else chunks.n_read
            is_read = not self.reads_again  # the first point has read the rows for all
        return every

    def _score_outputs(
        self,
        job: Job,
        family: Family,
        rows: PreparedRows,
        chunks: Chunks,
        sums: KeptSums,
        scores: list[RepeatScores],
    ) -> None:
        """Fill in the scores of what the models of each point say."""

        def tested(outputs: np.ndarray, first: int, last: int, folds: slice) -> TestedRows:
            bounds = chunks.ends[folds.start : folds.stop + 1] - chunks.bounds[first]
            begins = None if bounds[-1] == len(bounds) - 1 else bounds[:-1]
            test_rows = chunks.test_rows(first, last)
            return TestedRows.of(rows, test_rows, outputs, family.response, begins)

        of_all = []
        for some, outputs in self._said(family, chunks, sums):
            first, last = some.start, some.stop
            begin, end = chunks.bounds[[first, last]]
            folds = slice(*np.searchsorted(chunks.ends, [begin, end]))
            part = slice(begin - chunks.bounds[0], end - chunks.bounds[0])
            for one, of_point in zip(scores, outputs, strict=True):
                self.score(job, one, tested(of_point, first, last, folds), folds, part)
            if _pools(job):
                of_all.append(outputs)
        if of_all:
            for one, of_point in zip(scores, np.concatenate(of_all, axis=1), strict=True):
                every = slice(0, len(chunks.ends) - 1)
                rows_of_all = tested(of_point, 0, chunks.n_chunks, every)
                one.pooled[:] = job.book.pooled_of(rows_of_all)

    def _said(self, family: Family, chunks: Chunks, sums: KeptSums) -> Iterable[TestedChunks]:
        """Yield what the models of each point say of the test rows of consecutive chunks."""
        return family.test(chunks, sums, _ROWS)

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the models that follow from sums, or else of fits."""
        try:
            rows = self._rows(job, repeat)
            family = self._bind(job, repeat, rows, [self._parts(job).last], method)
            return self._predictions(job, family, rows, repeat, method)
        except ValueError as error:
            if not job.why or self.takes_placed:
                raise
            refused = error
        with self._fitting_after(refused):
            return FIT.predict(job, repeat, method)

    def _predictions(
        self, job: Job, family: Family, rows: PreparedRows, repeat: Repeat, method: str
    ) -> np.ndarray:
        """Return the responses; refuse those of outputs that are not finite."""
        with computing():
            tested = self._said(family, chunks_of(repeat.cut), KeptSums())
            outputs = np.concatenate([outputs[0] for _, outputs in tested])
            prepared = family.response(outputs, method)
        if not np.all(np.isfinite(outputs)):
            raise self._not_finite()
        classes = rows.classes if method == "predict" else None
        return in_given_order(prepared, rows.order, classes)

    def refit(self, job: Job) -> Any:
        """Fit the estimator on all rows as they were given."""
        return FIT.refit(job)

    def cost(self, job: Job) -> str:
        """Return that one reading serves all folds."""
        parts, task = self._parts(job), job.task
        reading = f"One reading of the {task.data.n_rows:,} rows serves all {task.folds_in_words}"
        is_slow = parts.names and parts.family.is_slow_left_out
        why_slow = "has models that are searched for" if is_slow else ""
        if parts.scaler is not None and parts.scaler.with_std:
            why_slow = "changes the scales of the StandardScaler"
        if why_slow and task.n_folds == task.data.n_rows > _FEWER_FOLDS:
            return (
                f"{reading}. Each row that is left out {why_slow}, which takes most of the time; "
                f"cv={_FEWER_FOLDS} takes a fraction of it."
            )
        if parts.names:
            reading += f", and further values of {' and '.join(parts.parameters)} are nearly free"
        _, is_sparse = self._form(job, parts)
        return f"{reading}.{idle_words(parts.family.idle_of(parts.last, is_sparse))}"


def idle_words(idle: Sequence[str]) -> str:
    """Return the sentence that parameters do not act, with a space before it; "" without any."""
    names = ", ".join(idle[:-1])
    return f" The models have converged: {names} and {idle[-1]} do not act." if idle else ""


def _pools(job: Job) -> bool:
    """Return whether scores need the outputs for all rows at once."""
    return any(isinstance(metric, Pooled) for metric in job.scoring.metrics)


def _follows_from_squares(job: Job, rows: PreparedRows, chunks: Chunks) -> bool:
    """Return whether scores follow from sums of squares, and these take less time than outputs.

    The sums are over the weights of training, which may have been rounded.
    """
    data = job.task.data
    return (
        data.score_weights is data.weights
        and (rows.weights is None or rows.weights.dtype == np.float64)
        and follows_from_squares(job.scoring.metrics)
        and not chunks.are_single_rows
        and int(np.median(np.diff(chunks.ends))) >= rows.n_features
    )


def table_of(job: Job, parts: Parts) -> Table | str | None:
    """Return the steps of a table, or why they must be fitted by fold; None if there is none."""
    if not parts.kinds:
        return None
    return job.task.steps.table(parts, job.task.repeats)


def chunks_of(cut: Cut) -> Chunks:
    """Return the training and test rows of each model as numbers of prepared rows."""
    if isinstance(cut, Folds):
        return Chunks(cut.n_rows, cut.begins())
    if isinstance(cut, FoldPairs):
        return FoldsLeftOut.of(chunks_of(cut.folds), cut.models)
    trains: list[list[RowNumbers]] = []
    for chunk in range(cut.n_folds):
        rows = cut.prepared(cut.split(chunk).train_rows())
        is_first_part = len(rows) and np.array_equal(rows, np.arange(len(rows)))
        trains.append([slice(0, len(rows)) if is_first_part else rows])
    return Chunks(cut.n_rows, cut.begins(), cut.prepared(cut.tested_from(0, cut.n_folds)), trains)


def _after(steps: Sequence[Any], X: Any) -> Any:
    """Return rows after row-wise steps."""
    with foreign_code():
        for step in steps:
            X = unshared(step, X)
            X = clone(step).fit(X).transform(X)
    return X


@contextmanager
def computing() -> Generator[None]:
    """Return a context for sums and factors, in which what is not finite has diverged."""
    try:
        with one_blas_thread(), np.errstate(all="ignore"):
            yield
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "X must hold numbers whose squares can be summed in float64, got larger ones "
            f"({error}); X / np.abs(X).max() would be right."
        ) from error
