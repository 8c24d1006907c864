"""The engine "fit": any estimator is refit on the training rows of each fold.

The folds of one evaluation are fitted in parallel by joblib.
"""

from collections.abc import Generator
from functools import partial
from itertools import chain
from itertools import groupby

from joblib import effective_n_jobs
import numpy as np
from sklearn.utils.parallel import delayed
from sklearn.utils.parallel import Parallel

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.results import ScoreCache
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import ResultSpec
from optuna_treecv.core.engine import Sink
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import lay_out
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import TreeCVEstimator
from optuna_treecv.estimators.incremental import is_incremental
from optuna_treecv.plans.fits import describe_trainings
from optuna_treecv.plans.fits import encode_targets
from optuna_treecv.plans.fits import explained
from optuna_treecv.plans.fits import make_fold_task
from optuna_treecv.plans.fits import order_in_tree
from optuna_treecv.plans.fits import predict_by_fits
from optuna_treecv.plans.fold_task import FoldResult
from optuna_treecv.rows.folds import Splits
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import with_pooled
from optuna_treecv.scoring.scores import are_known
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array


def plan_fits(request: Request) -> Plan | Declined:
    """Return a plan for any estimator with ``fit``, or the reason why there is none."""
    estimator, cut = request.estimator, request.cross_validation.repeats[0].cut
    if not hasattr(estimator, "fit"):
        why_not = f"{name_of(estimator)} has none"
        if isinstance(cut, Splits) and is_incremental(estimator):
            advice = (
                "cv must be a splitter whose training sets are all rows outside the test set, or "
                f"all rows before it, but {cut.why_no_tree}; use method='standard' instead."
            )
        else:
            advice = (
                f"estimator must have fit for method='fit', and {why_not}; use method='treecv' or "
                "method='standard' instead."
            )
        return Declined(why_not, advice, relevance=2)
    if isinstance(estimator, CompiledEstimator):
        estimator.check_parameters(but=request.searched)
    return FitPlan(request)


class FitPlan(Plan):
    """The plan "fit": one fit per fold."""

    name = "fit"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        is_checked = isinstance(request.estimator, TreeCVEstimator)
        self.capabilities = Capabilities(
            free_parameters=() if is_checked else request.estimator.get_params(),
            leaves_out_pairs=True,
            in_memory_reason="fit gets all rows of a training set at once",
            one_epoch_reason=(
                "the estimator's own parameters, such as max_iter, set the number of passes of fit"
            ),
        )

    def cost(self) -> str:
        """Return a sentence with the number of fits and of their rows."""
        return describe_trainings(self.request, "fits")

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the stored results of each fold."""
        fits = _Fits(self.request, candidate, repeat)
        return fits.results()._replace(bound=fits)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Fit the folds in parallel, and yield their scores in order."""
        (fits,), (sink,) = work.bound, work.sinks
        yield from fits.events(list(work.folds), sink)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Return the predictions for all rows, each by the fit that did not see it."""
        return predict_by_fits(self.request, candidate, repeat, method)


class _Fits:
    """The fits of one candidate on one repeat.

    Parameters
    ----------
    request : Request
    candidate : estimator
    repeat : Repeat
    """

    def __init__(self, request: Request, candidate: Candidate, repeat: Repeat) -> None:
        cross_validation = request.cross_validation
        self._request, self._repeat, self._cut = request, repeat, repeat.cut
        scoring = request.scoring
        if request.needs_rows and not isinstance(scoring.first, Pooled):
            scoring = with_pooled(scoring, Pooled(scoring.first))  # for predictions of all rows
        self._n_metrics = len(request.scoring.metrics)
        self._metrics = scoring.metrics
        pooled = [metric for metric in self._metrics if isinstance(metric, Pooled)]
        self._methods = list(dict.fromkeys(response_of(metric, candidate) for metric in pooled))
        methods = tuple(m for m in request.stored_methods if m not in self._methods)
        self._methods += methods
        self._fold_task = make_fold_task(request, candidate, repeat, self._metrics, methods)
        data, cache = cross_validation.data_key(), cross_validation.shared.cache
        estimators = [self._fold_task.estimator]
        self._kept = ScoreCache.of(cache, data, b"", "fit", estimators, scoring).for_candidate(())
        self._names = [b""] * repeat.cut.n_folds
        if self._kept.name or self._fold_task.beginnings is not None:
            cut, name = repeat.cut, data[0]

            def name_of_fold(chunk: int) -> bytes:
                train, test = cut.split(chunk).train_rows(), cut.test_rows(chunk)
                return digest(name, train.tobytes(), test.tobytes())

            self._names = cross_validation.fact(
                ("names of folds", repeat.number), lambda: [*map(name_of_fold, range(cut.n_folds))]
            )
        self._fingerprint = data[0].hex() if self._kept.name else ""
        n_targets, classes = self._fold_task.n_targets, self._fold_task.classes
        self._columns, self._width = lay_out(self._methods, classes, n_targets)

    def results(self) -> Results:
        """Return the keys of the stored results of each fold."""
        specs: dict[int, ResultSpec] = {}
        if self._kept.name and self._kept.cache is not None:
            for chunk in range(self._cut.n_folds):
                key = self._kept.key(8 * FoldResult.size(*self._sizes(chunk)), self._names[chunk])
                specs[chunk + 1] = ResultSpec(key, self._kept.cache, partial(self._read, chunk))
        return Results(self._kept.name, self._fingerprint, specs=specs)

    def _sizes(self, chunk: int) -> tuple[int, tuple[int, int]]:
        """Return the number of metrics, and the shape of the predictions of a fold."""
        n_rows = len(self._cut.test_rows(chunk)) if self._width else 0
        return len(self._metrics), (n_rows, self._width)

    def _read(self, chunk: int, memory: Array) -> TestedFolds:
        return self._event(chunk, FoldResult.of(memory.view(np.float64), *self._sizes(chunk)))

    def _event(self, chunk: int, fitted: FoldResult) -> TestedFolds:
        """Return the event of a fitted fold."""
        n = self._n_metrics
        diverged = np.array([fitted.has_diverged])
        scores = FoldScores(fitted.scores[:n, None], diverged, fitted.spreads[:n, :, None])
        is_known = are_known(self._metrics, fitted.scores)
        return TestedFolds(
            0,
            Node(chunk, chunk + 1),
            fitted.n_trained,
            self._predictions(chunk, fitted.responses) if self._methods else None,
            scores,
            record=fitted.numbers().view(np.uint8) if is_known else None,
            seconds=fitted.seconds,
        )

    def _predictions(self, chunk: int, responses: Array) -> TestedRows:
        """Return the test rows of a fold in the order of the tree, with their predictions."""
        request, fold_task = self._request, self._fold_task
        rows = self._cut.tested_from(chunk, chunk + 1)
        targets = None if request.data.y is None else encode_targets(request)[rows]
        weights = None if fold_task.score_weights is None else fold_task.score_weights[rows]
        begins = None if request.cross_validation.tests_single_rows else np.zeros(1, np.intp)
        outputs = responses[order_in_tree(self._cut, chunk)]
        return TestedRows(outputs, self._respond, targets, weights, begins)

    def _respond(self, outputs: Array, method: str) -> Array:
        """Return the columns of one response method."""
        columns = outputs[:, self._columns[method]]
        return columns[:, 0] if columns.shape[1] == 1 else columns

    def events(self, folds: list[int], sink: Sink) -> Generator[TestedFolds | Failed]:
        """Fit some folds in parallel, and yield their results in order.

        An evaluation that reports may be pruned after any fold. It starts as many fits at once as
        there are workers. Fits that have started are stored, even if one of them fails.
        """
        settings, is_over = self._request.settings, False
        n_jobs = settings.n_jobs

        def calls(part: list[int]) -> Generator[object]:
            for _, chunks in groupby(part, self._cut.model):
                if not is_over:
                    first, *further = chunks
                    splits = [self._cut.split(chunk) for chunk in (first, *further)]
                    yield delayed(self._fold_task.attempt)(self._names[first], splits)

        try:
            workers, size = Parallel(n_jobs, return_as="generator"), max(1, len(folds))
        except ValueError:  # the backend "multiprocessing" returns results only when all are done
            workers, size = Parallel(n_jobs), effective_n_jobs(n_jobs)
        if settings.reports_parts:
            size = effective_n_jobs(n_jobs)
        with workers as parallel:
            for begin in range(0, len(folds), size):
                part = folds[begin : begin + size]
                fitted_folds = explained(self._fold_task, n_jobs, partial(parallel, calls(part)))
                results = zip(chain.from_iterable(fitted_folds), part, strict=False)
                try:
                    for fitted, chunk in results:
                        if isinstance(fitted, Exception):
                            yield self._failed(chunk, fitted)
                        else:
                            sink.cost.n_updates += fitted.n_trained
                            yield self._event(chunk, fitted)
                finally:
                    is_over = True
                    for fitted, chunk in results:
                        if isinstance(fitted, FoldResult):
                            sink.cost.n_updates += fitted.n_trained
                            sink.take(self._event(chunk, fitted))
                is_over = False

    def _failed(self, chunk: int, error: Exception) -> Failed:
        """Return the event of a failed fit; raise its error unless all folds are tried."""
        error.add_note(f"This happened in fold {self._cut.number(chunk)}.")
        if not self._request.cross_validation.search.tries_all_folds:
            with self._fold_task.naming_step():
                raise error
        return Failed(error, folds=Node(chunk, chunk + 1))
