"""The engine "fit": an estimator's own ``fit`` on each fold's training rows, for any estimator.

The folds of one evaluation are fitted in parallel by joblib.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import closing
from contextlib import contextmanager
from contextlib import nullcontext
from functools import partial
from itertools import chain
from itertools import groupby
from pickle import PicklingError
from typing import Any

from joblib import effective_n_jobs
from joblib.externals.loky.backend.reduction import dumps
import numpy as np
from sklearn import config_context
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import delayed
from sklearn.utils.parallel import Parallel

from optuna_treecv.crossval.beginnings import Beginnings
from optuna_treecv.crossval.engine import cost_of_trainings
from optuna_treecv.crossval.engine import Engine
from optuna_treecv.crossval.engine import in_given_order
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.fold_task import FoldResult
from optuna_treecv.crossval.fold_task import FoldTask
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.routing import part_of
from optuna_treecv.crossval.settings import warn_caller
from optuna_treecv.learners.adapter import n_columns
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.learners.seeds import unset_seeds
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.folds import Splits
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import with_pooled
from optuna_treecv.scoring.scores import are_known
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.scoring.scores import unknown_spreads
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.results import KeptScores
from optuna_treecv.tree.plan import Node


class Fit(Engine):
    """As many fits as there are folds."""

    name = "fit"
    methods = ("auto", "holdout", "fit")
    why_one_epoch = (
        "the estimator's own parameters, such as max_iter, say how many passes fit makes"
    )

    def why_not(self, job: Job) -> str:
        """Return why an estimator cannot be fitted, a clause."""
        if not hasattr(job.estimator, "fit"):
            return f"{name_of(job.estimator)} has none"
        # The trees of folds of several rows are fitted where they cannot be grown together.
        is_tree = isinstance(job.estimator, HistTree)
        is_chosen = job.task.settings.method == "auto"
        cut = job.task.repeats[0].cut
        if is_tree and is_chosen and cut.n_tested == cut.n_folds:
            return _ONCE_PER_ROW
        return ""

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error."""
        if why_not == _ONCE_PER_ROW:
            return (
                f"cv must have folds of several rows for {name_of(job.estimator)}, got "
                f"leave-one-out, for which {why_not}; cv=10 or method='fit' would be right."
            )
        cut = job.task.repeats[0].cut
        if isinstance(cut, Splits) and is_incremental(job.estimator):
            return (
                "cv must be a splitter that trains each model on all rows that it does not test, "
                "or on growing first parts of the rows, since the tree does, but "
                f"{cut.why_no_tree}; method='standard' would be right."
            )
        return (
            f"estimator must have fit for method='fit', and {why_not}; "
            "method='treecv' or method='standard' would be right."
        )

    def check(self, job: Job) -> None:
        """Refuse wrong parameters of a compiled estimator; others say so in ``fit``."""
        if isinstance(job.estimator, CompiledEstimator):
            job.estimator.check_parameters(but=job.searched)

    def why_in_memory(self, job: Job) -> str:
        """Return why all rows must be in memory."""
        return "fit gets all rows of a training set at once"

    def free_parameters(self, job: Job) -> Collection[str]:
        """Return all parameters: only the class must have ``fit``."""
        is_checked = isinstance(job.estimator, CompiledEstimator | HistTree)
        return () if is_checked or type(self) is not Fit else job.estimator.get_params()

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[TestedFolds]:
        """Look up which folds are done already, and fit the others."""
        return Fits(job, repeat).events()

    def is_kept(self, job: Job) -> bool:
        """Return whether an evaluation of a single repeat would only find results."""
        fits = Fits(job, job.repeats[0])
        return all(fits.find(chunk) is not None for chunk in range(job.task.n_folds))

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the fits of the folds."""
        task, data, cut = job.task, job.task.data, repeat.cut
        why = data.why_only_fit(is_classifier(job.estimator))
        if method != "predict" and why.startswith("y has"):
            raise ValueError(f"response_method must be 'predict' since {why}, got {method!r}.")
        fold_task = fold_task_of(job, repeat)
        chunks, n_jobs = range(cut.n_folds), task.settings.n_jobs
        with fold_task.naming_step(), explaining_pickles(fold_task, n_jobs):
            responses = Parallel(n_jobs)(
                delayed(fold_task.respond)(cut.split(chunk), method) for chunk in chunks
            )
        rows = np.concatenate([cut.test_rows(chunk) for chunk in chunks])
        return in_given_order(np.concatenate(responses), rows)

    def refit(self, job: Job) -> Any:
        """Return a clone of an estimator, fitted on all rows as they were given.

        The seeds that it lacks are those of the task while it is fitted. Warn before ``fit`` reads
        more rows into memory than ``max_memory`` allows.
        """
        estimator, data = job.estimator, job.task.data
        if data.is_large:
            warn_caller(
                f"max_memory does not limit the final fit: fit of {name_of(estimator)} takes all "
                f"rows at once, {data.n_bytes / 1e6:,.0f} MB, and mostly copies them."
            )
        fitted = seeded(clone(estimator), job.task.settings.seed)
        X, y = unshared(estimator, data.X_given), data.y_given
        params = part_of(job.metadata.to_fit(estimator), X, None)
        routing = config_context(enable_metadata_routing=job.metadata.is_routed)
        with routing if params else nullcontext():
            fitted.fit(X, *(() if y is None else (y,)), **params)
        if unset := unset_seeds(estimator):
            parameters = estimator.get_params(deep=True)
            fitted.set_params(**{name: parameters[name] for name in unset})
        return fitted

    def cost(self, job: Job) -> str:
        """Return the number of fits and of their rows."""
        return cost_of_trainings(job, "fits")


#: The engine that others fall back on.
FIT = Fit()

_ONCE_PER_ROW = "each node is searched once per row"


class Fits:
    """The fits of one estimator on one repeat: finds kept results of folds or fits.

    Parameters
    ----------
    job : Job
    repeat : Repeat
    """

    def __init__(self, job: Job, repeat: Repeat) -> None:
        task = job.task
        self._job = job
        self._task = task
        self._repeat = repeat
        self._cut = repeat.cut
        scoring = job.scoring
        if job.needs_rows and not isinstance(scoring.first, Pooled):
            scoring = with_pooled(scoring, Pooled(scoring.first))  # for the responses to the rows
        self._n_metrics = len(job.scoring.metrics)
        self._metrics = scoring.metrics
        pooled = [metric for metric in self._metrics if isinstance(metric, Pooled)]
        self._methods = list(dict.fromkeys(response_of(one, job.estimator) for one in pooled))
        self._is_pooled = bool(pooled)
        kept = tuple(method for method in job.keeps if method not in self._methods)
        self._methods += kept
        self._fold_task = fold_task_of(job, repeat, self._metrics, kept)
        estimator = self._fold_task.estimator
        data, cache = task.data_name(), task.shared.cache
        self._kept = KeptScores.of(cache, data, b"", FIT.name, [estimator], scoring).at(())
        self._names = [b""] * repeat.cut.n_folds
        if self._kept.name or self._fold_task.beginnings is not None:
            cut, name = repeat.cut, data[0]

            def name_of_fold(chunk: int) -> bytes:
                train, test = cut.split(chunk).train_rows(), cut.test_rows(chunk)
                return digest(name, train.tobytes(), test.tobytes())

            names = ("names of folds", repeat.number)
            self._names = task.fact(names, lambda: [*map(name_of_fold, range(cut.n_folds))])
        if repeat.number == 0:
            job.key = self._kept.name
            job.fingerprint = data[0].hex() if job.key else ""
        self._has_failed = False
        # Where the columns end of the responses, which wait for the end.
        n_targets, classes = self._fold_task.n_targets, self._fold_task.classes
        widths = [n_columns(one, classes, n_targets) for one in self._methods]
        self._ends, self._width = np.cumsum(widths, dtype=np.intp), sum(widths)
        self._responses: list[np.ndarray] = []

    def events(self) -> Generator[TestedFolds]:
        """Fit the folds that have no result yet, in parallel, and yield all in order."""
        kept_fits = [self.find(chunk) for chunk in range(self._cut.n_folds)]
        missing = [chunk for chunk, fitted in enumerate(kept_fits) if fitted is None]
        shape = len(self._metrics), self._cut.n_folds
        scores, spreads = np.full(shape, np.nan), unknown_spreads(*shape)
        diverged = np.zeros(self._cut.n_folds, bool)
        of_all = FoldScores(scores[: self._n_metrics], diverged, spreads[: self._n_metrics])
        fitting = closing(self._fits(missing, self._task.settings.n_jobs))
        with closing(self._kept), fitting as fits:
            for block in self._repeat.blocks:
                n_rows = 0
                for chunk in range(block.first, block.last):
                    fitted = kept_fits[chunk] or next(fits)
                    n_rows += fitted.n_trained
                    scores[:, chunk] = fitted.scores
                    spreads[:, :, chunk] = fitted.spreads
                    diverged[chunk] = fitted.has_diverged
                    if self._methods:
                        self._responses.append(fitted.responses)
                is_last = block.last == self._cut.n_folds
                yield TestedFolds(
                    block,
                    n_rows,
                    tested=self._tested if self._is_pooled else None,
                    scores=of_all,
                    pooled=np.full((self._n_metrics, 2), np.nan) if self._has_failed else None,
                    rows=self._test_rows,
                    responses=self._kept_responses() if is_last and self._job.keeps else {},
                )

    def _fits(self, missing: list[int], n_jobs: int | None) -> Generator[FoldResult]:
        """Fit some chunks in parallel, and yield their results in order.

        A run that reports may be stopped after any fold. It begins as many fits at once as there
        are workers, and those that have begun are kept, also where one of them fails.
        """
        is_over = False

        def jobs(part: list[int]) -> Generator[Any]:
            for _, chunks in groupby(part, self._cut.model):
                if not is_over:
                    first, *further = chunks
                    splits = [self._cut.split(chunk) for chunk in (first, *further)]
                    yield delayed(self._fold_task.attempt)(self._names[first], splits)

        try:
            workers, size = Parallel(n_jobs, return_as="generator"), max(1, len(missing))
        except ValueError:  # the backend "multiprocessing" gives results only when all are there
            workers, size = Parallel(n_jobs), effective_n_jobs(n_jobs)
        if self._task.settings.reports_parts:
            size = effective_n_jobs(n_jobs)
        with workers as parallel:
            for begin in range(0, len(missing), size):
                part = missing[begin : begin + size]
                gained = explained(self._fold_task, n_jobs, partial(parallel, jobs(part)))
                results = zip(chain.from_iterable(gained), part, strict=False)
                try:
                    for fitted, chunk in results:
                        if isinstance(fitted, Exception):
                            error = fitted
                            error.add_note(f"This happened in fold {self._cut.number(chunk)}.")
                            if self._task.tries_all_folds:
                                first = self._repeat.number * self._cut.n_folds
                                self._job.errors[first + self._cut.number(chunk)] = error
                                self._has_failed = True
                                n_rows = len(self._cut.test_rows(chunk))
                                nothing = np.full(len(self._metrics), np.nan)
                                spreads = unknown_spreads(len(nothing), 1)[:, :, 0]
                                responses = np.full((n_rows, self._width), np.nan)
                                yield FoldResult(nothing, spreads, responses, True, 0)
                                continue
                            with self._fold_task.naming_step():
                                raise error
                        yield self._take(fitted, chunk)
                finally:
                    is_over = True
                    for fitted, chunk in results:
                        if isinstance(fitted, FoldResult):
                            self._take(fitted, chunk)
                is_over = False

    def _test_rows(self, first: int, last: int) -> np.ndarray:
        """Return the rows as given that some chunks test, in the order of their responses."""
        return np.concatenate([self._cut.test_rows(chunk) for chunk in range(first, last)])

    def _tested(self, folds: Node) -> TestedRows:
        """Return the test rows of fitted folds, with the responses that pooled scores need."""
        data, task = self._task.data, self._fold_task
        rows = self._test_rows(*folds)
        sizes = [len(self._cut.test_rows(chunk)) for chunk in range(*folds)]
        targets = None
        if task.classes is not None:
            targets = as_codes(data.y, task.classes)[rows]
        elif data.y is not None:
            targets = as_numbers(data.y)[rows]
        weights = None if task.score_weights is None else task.score_weights[rows]
        begins = np.cumsum([0, *sizes[:-1]])
        outputs = np.concatenate(self._responses[folds.first : folds.last])
        return TestedRows(outputs, self._respond, targets, weights, begins)

    def _kept_responses(self) -> dict[str, np.ndarray]:
        """Return the responses that outlive the evaluation, in the order of the tree."""
        cut, begins = self._cut, self._cut.begins() - self._cut.begins()[0]
        order = np.empty(begins[-1], np.intp)
        for chunk, begin in enumerate(begins[:-1]):  # fits have them in the splitter's order
            rows, fitted = cut.tested_from(chunk, chunk + 1), cut.test_rows(chunk)
            order[begin + rows.argsort()] = begin + fitted.argsort()
        outputs = np.concatenate(self._responses)[order]
        each = [(method, self._respond(outputs, method)) for method in self._job.keeps]
        return {one: self._job.as_kept(made, one) for one, made in each if np.isfinite(made).all()}

    def _respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the columns of one response."""
        columns = np.split(outputs, self._ends, axis=1)[self._methods.index(method)]
        return columns[:, 0] if columns.shape[1] == 1 else columns

    def find(self, chunk: int) -> FoldResult | None:
        """Return the result of a fold if it is kept."""
        if not self._kept.name:
            return None
        n_rows = len(self._cut.test_rows(chunk)) if self._width else 0
        sizes = len(self._metrics), (n_rows, self._width)
        numbers = self._kept.find(FoldResult.size(*sizes), self._names[chunk])
        return None if numbers is None else FoldResult.of(numbers, *sizes)

    def _take(self, fitted: FoldResult, chunk: int) -> FoldResult:
        """Take note of a fit."""
        self._job.effort.n_updates += fitted.n_trained
        if are_known(self._metrics, fitted.scores):
            self._kept.keep(fitted.numbers(), fitted.seconds, self._names[chunk])
        return fitted


def fold_task_of(
    job: Job,
    repeat: Repeat,
    metrics: tuple[Metric, ...] = (),
    kept: tuple[str, ...] = (),
    shares_steps: bool = False,
) -> FoldTask:
    """Return what the fits of the folds have in common; without metrics they only respond.

    Fits that are scored share fitted steps of Pipelines, and so do others with ``shares_steps``.
    """
    task, metadata, cache = job.task, job.metadata, job.task.shared.cache
    estimator = seeded(clone(job.estimator), (task.settings.seed + repeat.number) % 2**32)
    beginnings = None
    shares_steps |= bool(metrics)
    if shares_steps and isinstance(estimator, Pipeline) and cache is not None:
        room = cache.max_bytes // task.settings.n_threads
        beginnings = Beginnings(cache.memory, room)
    return FoldTask(
        estimator,
        task.data.X_given,
        task.data.y_given,
        metrics,
        task.data.score_weights,
        job.classes,
        beginnings,
        metadata.to_fit(estimator),
        metadata.is_routed,
        task.n_targets,
        kept,
    )


@contextmanager
def explaining_pickles(task: FoldTask, n_jobs: int | None) -> Generator[None]:
    """Raise an error that names the object, where this block fails as one cannot be pickled."""
    try:
        yield
    except (PicklingError, TypeError, AttributeError) as error:
        culprit = None if n_jobs == 1 else _what_cannot_be_pickled(task)
        if culprit is None:
            raise
        raise ValueError(
            f"n_jobs={n_jobs} sends {culprit} to other processes, but it cannot be pickled: "
            f"{error}; n_jobs=1 or joblib.parallel_config('threading') would be right."
        ) from error


def explained(
    task: FoldTask, n_jobs: int | None, compute: Callable[[], Iterable[Any]]
) -> Generator[Any]:
    """Yield the results of joblib. Errors of who asks for them are not explained."""
    with explaining_pickles(task, n_jobs):
        yield from compute()


def _what_cannot_be_pickled(task: FoldTask) -> str | None:
    parts: list[tuple[str, Any]] = [("X", task.X), ("y", task.y)]
    parts += [("scoring", getattr(metric, "score", None)) for metric in task.metrics]
    parameters = task.estimator.get_params(deep=True)
    deepest = sorted(parameters.items(), key=lambda item: -item[0].count("__"))
    parts += [(f"the estimator's parameter {name!r}", value) for name, value in deepest]
    parts.append(("estimator", task.estimator))
    for name, value in parts:
        try:
            dumps(value)
        except Exception:  # noqa: BLE001  # whatever pickling an object may raise
            return f"{name} ({repr(value)[:80]})"
    return None
