"""The method "fit": an estimator's own ``fit`` on each fold's training rows, for any estimator.

The folds of one evaluation are fitted in parallel by joblib.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Generator
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

from joblib import effective_n_jobs
import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import delayed
from sklearn.utils.parallel import Parallel

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.failed_folds import FoldsFailed
from optuna_treecv.crossval.fold_task import Failed
from optuna_treecv.crossval.fold_task import FoldTask
from optuna_treecv.crossval.identity import under_configuration
from optuna_treecv.crossval.pickling import explained
from optuna_treecv.crossval.pickling import explaining_pickles
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.routing import part_of
from optuna_treecv.learners.adapter import n_columns
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.learners.seeds import unset_seeds
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.data import count_targets
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import pooled_score
from optuna_treecv.scoring import PooledScore
from optuna_treecv.scoring import response_of
from optuna_treecv.scoring import scores_of_rows
from optuna_treecv.scoring import TestedRows
from optuna_treecv.scoring import unknown_spreads
from optuna_treecv.scoring import with_pooled
from optuna_treecv.sharing.fold_results import FoldResult
from optuna_treecv.sharing.fold_results import FoldResults
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import TestedBlock


class Fit:
    """As many fits as there are folds."""

    name = "fit"
    side_by_side = None
    is_one_pass = False

    def __init__(self, why: str = "") -> None:
        self.why = why

    def check(
        self, estimator: Any, of_class: bool = False, searched: Collection[str] = ()
    ) -> None:
        """Refuse an estimator without ``fit``, and wrong parameters of a compiled one."""
        if not hasattr(estimator, "fit"):
            raise ValueError(
                f"estimator must have fit for method='fit', and {name_of(estimator)} has none; "
                "method='treecv' or method='standard' would be right."
            )
        if isinstance(estimator, CompiledEstimator):
            estimator.check_parameters(but=searched)

    def begin(self, request: Request, repeat: Repeat) -> FittedRepeat:
        """Look up which folds are done already."""
        return FittedRepeat(request, repeat)


class FittedRepeat:
    """One estimator's way through one repeat: finds kept fold results or fits.

    Parameters
    ----------
    request : Request
    repeat : Repeat
    """

    seconds_prepare = 0.0

    def __init__(self, request: Request, repeat: Repeat) -> None:
        evaluation = request.evaluation
        self.n_updates = 0
        self.seconds_before = 0.0
        self._ahead: list[TestedBlock] = []
        self._evaluation = evaluation
        self._repeat = repeat
        self._cut = repeat.cut
        scoring, first = request.scoring, request.scoring.first
        self._by_row: Pooled | None = None
        if request.needs_rows and not isinstance(first, Pooled):
            self._by_row = Pooled(first)
            scoring = with_pooled(scoring, self._by_row)
        self._n_metrics = len(request.scoring.metrics)
        self._metrics = scoring.metrics
        self._scores = np.full((len(self._metrics), self._cut.n_folds), np.nan)
        self._spreads = unknown_spreads(*self._scores.shape)
        self._diverged = np.zeros(self._cut.n_folds, bool)
        estimator = seeded(clone(request.estimator), (evaluation.seed + repeat.number) % 2**32)
        passed = evaluation.passed_to(estimator)
        cache = evaluation.shared.cache
        data = evaluation.data_name()
        named = under_configuration(data[0]), data[1]
        self._results = FoldResults(cache, estimator, named, scoring)
        self._names: list[bytes] | None = None
        beginnings = None
        if isinstance(estimator, Pipeline) and cache is not None:
            beginnings = evaluation.shared.beginnings(evaluation.n_jobs)
        if self._results.name or beginnings is not None:
            self._names = evaluation.fold_names(repeat)
        self.key = self._results.name
        self.fingerprint = data[0].hex() if self.key else ""
        self._task = FoldTask(
            estimator,
            evaluation.data.X_given,
            evaluation.data.y_given,
            self._metrics,
            evaluation.data.score_weights,
            evaluation.classes_for(estimator),
            beginnings,
            passed.to_fit(estimator),
            passed.is_routed,
            count_targets(evaluation.data.y),
            evaluation.tries_all_folds,
        )
        self._errors: dict[int, Exception] = {}
        self._by_fold = [not isinstance(metric, Pooled) for metric in self._metrics]
        # The columns of the responses that each pooled score needs, which are kept until the end.
        self._pooled = [metric for metric in self._metrics if isinstance(metric, Pooled)]
        self._methods = [response_of(metric, estimator) for metric in self._pooled]
        n_targets = self._task.n_targets
        widths = [n_columns(one, self._task.classes, n_targets) for one in self._methods]
        self._ends = np.cumsum(widths, dtype=np.intp)
        self._responses: list[np.ndarray] = []

    def fit_ahead(self) -> None:
        """Fit all folds now, so that an error is raised before a fold is scored."""
        began = perf_counter()
        self._ahead = list(self.blocks())
        self.seconds_before = perf_counter() - began

    def blocks(self) -> Generator[TestedBlock]:
        """Fit the folds that have no result yet, in parallel, and yield all in order."""
        if self._ahead:
            yield from self._ahead
            return
        done = [self._find(chunk) for chunk in range(self._cut.n_folds)]
        missing = [chunk for chunk, found in enumerate(done) if found is None]
        n_jobs = self._evaluation.n_jobs_given
        with closing(self._fits(missing, n_jobs)) as fits:
            for block in self._repeat.blocks:
                n_rows = 0
                for chunk in range(block.first, block.last):
                    found = done[chunk] or next(fits)
                    n_rows += found.n_trained
                    self._scores[:, chunk] = found.scores
                    self._spreads[:, :, chunk] = found.spreads
                    self._diverged[chunk] = found.has_diverged
                    if self._methods:
                        self._responses.append(found.responses)
                if block.last == self._cut.n_folds:
                    self._check_all()
                yield TestedBlock(block, n_rows)

    def _check_all(self) -> None:
        """Raise the errors of all folds where all of them are tried."""
        if self._evaluation.tries_all_folds and np.isnan(self._scores[self._by_fold]).any():
            scores = np.array([self._cut.by_number(of_metric) for of_metric in self._scores])
            raise FoldsFailed(scores, dict(sorted(self._errors.items())))

    def _fits(self, missing: list[int], n_jobs: int | None) -> Generator[FoldResult]:
        """Fit some chunks in parallel, and yield their results in order.

        A run that reports may be stopped after any fold. It begins as many fits at once as there
        are workers, and those that have begun are kept, also where one of them fails.
        """
        is_over = False

        def jobs(part: list[int]) -> Generator[Any]:
            for chunk in part:
                if not is_over:
                    yield self._job(chunk)

        try:
            workers, size = Parallel(n_jobs, return_as="generator"), max(1, len(missing))
        except ValueError:  # the backend "multiprocessing" gives results only when all are there
            workers, size = Parallel(n_jobs), effective_n_jobs(n_jobs)
        if self._evaluation.reports_parts:
            size = effective_n_jobs(n_jobs)
        with workers as parallel:
            for begin in range(0, len(missing), size):
                part = missing[begin : begin + size]
                gained = explained(self._task, n_jobs, partial(parallel, jobs(part)))
                results = zip(gained, part, strict=False)
                try:
                    for fitted, chunk in results:
                        if isinstance(fitted, Failed):
                            error = _with_traceback(fitted)
                            error.add_note(f"This happened in fold {self._cut.number(chunk)}.")
                            if self._evaluation.tries_all_folds:
                                self._errors[self._cut.number(chunk)] = error
                                yield self._without_scores(chunk)
                                continue
                            with self._task.naming_step():
                                raise error
                        yield self._take(fitted, chunk)
                finally:
                    is_over = True
                    for fitted, chunk in results:
                        if isinstance(fitted, FoldResult):
                            self._take(fitted, chunk)
                is_over = False

    def _job(self, chunk: int) -> Any:
        return delayed(self._task.attempt)(self._name(chunk), self._cut.split(chunk))

    def scores(self, folds: Node) -> FoldScores:
        """Return the scores of fitted folds."""
        part, n_metrics = slice(folds.first, folds.last), self._n_metrics
        spreads = self._spreads[:n_metrics, :, part]
        return FoldScores(self._scores[:n_metrics, part], self._diverged[part], spreads)

    def pooled(self, metric: Pooled) -> PooledScore:
        """Return a score over all rows, now that all of them are tested."""
        method, rows = self._tested(metric, Node(0, self._cut.n_folds))
        return pooled_score(metric, method, rows, self._task.estimator, self._task.classes)

    def row_scores(self, folds: Node) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the scores of the rows of fitted folds, and their weights."""
        if self._by_row is None:
            return None
        _, rows = self._tested(self._by_row, folds)
        rows.begins, weights, rows.weights = None, rows.weights, None
        metric, task = self._by_row.of, self._task
        return scores_of_rows(metric, rows, task.estimator, task.classes), weights

    def tested_rows(self, folds: Node) -> np.ndarray:
        """Return the rows as given that ``row_scores`` has."""
        chunks = range(folds.first, folds.last)
        return np.concatenate([self._cut.test_rows(chunk) for chunk in chunks])

    def _tested(self, metric: Pooled, folds: Node) -> tuple[str, TestedRows]:
        """Return the response that a metric needs, and the rows of some folds with it."""
        data, task = self._evaluation.data, self._task
        chunks = [self._cut.test_rows(chunk) for chunk in range(folds.first, folds.last)]
        tested = self.tested_rows(folds)
        begins = np.cumsum([0, *map(len, chunks[:-1])])
        targets = None
        if task.classes is not None:
            targets = as_codes(data.y, task.classes)[tested]
        elif data.y is not None:
            targets = as_numbers(data.y)[tested]
        weights = None if task.score_weights is None else task.score_weights[tested]
        number = self._pooled.index(metric)
        of_folds = np.concatenate(self._responses[folds.first : folds.last])
        outputs = np.split(of_folds, self._ends, axis=1)[number]
        method = self._methods[number]
        answered = outputs[:, 0] if outputs.shape[1] == 1 else outputs
        return method, TestedRows(outputs, lambda _: answered, targets, weights, begins)

    def keep(self, n_needed: int, seconds: float) -> None:
        """Do nothing: each fold is kept as soon as it is fitted."""

    def _name(self, chunk: int) -> bytes:
        return b"" if self._names is None else self._names[chunk]

    def _find(self, chunk: int) -> FoldResult | None:
        if not self._results.name:
            return None
        width = int(self._ends[-1]) if len(self._ends) else 0
        n_rows = len(self._cut.test_rows(chunk)) if width else 0
        return self._results.find(self._name(chunk), (n_rows, width))

    def _take(self, fitted: FoldResult, chunk: int) -> FoldResult:
        """Take note of a fit."""
        self.n_updates += fitted.n_trained
        if not np.isnan(fitted.scores[self._by_fold]).any():
            self._results.keep(self._name(chunk), fitted)
        return fitted

    def _without_scores(self, chunk: int) -> FoldResult:
        """Return what a fit that has failed has given."""
        nothing = np.full(len(self._metrics), np.nan)
        width = int(self._ends[-1]) if len(self._ends) else 0
        responses = np.full((len(self._cut.test_rows(chunk)), width), np.nan)
        return FoldResult(nothing, unknown_spreads(len(nothing), 1)[:, :, 0], responses, True, 0)


def _with_traceback(failed: Failed) -> Exception:
    """Return the error of a fit; one from another process says in a note where it was raised."""
    if failed.error.__traceback__ is None:
        failed.error.add_note(failed.where)
    return failed.error


def predictions_of_fits(
    evaluation: Evaluation, repeat: Repeat, estimator: Any, method: str
) -> np.ndarray:
    """Return the out-of-fold responses of fits, in the order of the rows as given."""
    data, cut = evaluation.data, repeat.cut
    estimator = seeded(clone(estimator), evaluation.seed % 2**32)
    classes = evaluation.classes_for(estimator)
    why = data.why_only_fit(is_classifier(estimator))
    if method != "predict" and why.startswith("y has"):
        raise ValueError(f"response_method must be 'predict' since {why}, got {method!r}.")
    passed = evaluation.passed_to(estimator)
    task = FoldTask(
        estimator,
        data.X_given,
        data.y_given,
        (),
        None,
        classes,
        None,
        params=passed.to_fit(estimator),
        is_routed=passed.is_routed,
        n_targets=count_targets(data.y),
    )
    chunks = range(cut.n_folds)
    with task.naming_step(), explaining_pickles(task, evaluation.n_jobs_given):
        responses = Parallel(evaluation.n_jobs_given)(
            delayed(task.respond)(cut.split(chunk), method) for chunk in chunks
        )
    of_all = np.concatenate(responses)
    predictions = np.empty_like(of_all)
    predictions[np.concatenate([cut.test_rows(chunk) for chunk in chunks])] = of_all
    return predictions


def fit_on_rows_as_given(evaluation: Evaluation, estimator: Any) -> Any:
    """Return a clone of an estimator, fitted on all rows as they were given.

    The seeds that it lacks are the evaluation's while it is fitted.
    """
    fitted = seeded(clone(estimator), evaluation.seed)
    X, y = unshared(estimator, evaluation.data.X_given), evaluation.data.y_given
    passed = evaluation.passed_to(estimator)
    params = part_of(passed.to_fit(estimator), X, None)
    with passed.as_configured():
        fitted.fit(X, *(() if y is None else (y,)), **params)
    if unset := unset_seeds(estimator):
        given = estimator.get_params(deep=True)
        fitted.set_params(**{name: given[name] for name in unset})
    return fitted
