"""The engine "fit": a clone of the estimator is fitted on the training rows of each fold.

joblib fits the folds of a candidate in parallel.
"""

from collections.abc import Generator
from functools import partial
from itertools import chain
from itertools import groupby

from joblib import effective_n_jobs
import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import RadiusNeighborsClassifier
from sklearn.semi_supervised import LabelPropagation
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import NuSVC
from sklearn.svm import SVC
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
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import lay_out
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import TreeCVEstimator
from optuna_treecv.estimators.incremental import is_incremental
from optuna_treecv.plans.fits import describe_trainings
from optuna_treecv.plans.fits import encode_targets
from optuna_treecv.plans.fits import explained
from optuna_treecv.plans.fits import fit_fold_models
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

# Classifiers whose predictions take more than a few percent of the time of their fits.
_SLOW_TO_PREDICT = (
    GaussianProcessClassifier,
    KNeighborsClassifier,
    LabelPropagation,
    LabelSpreading,
    NuSVC,
    RadiusNeighborsClassifier,
    SVC,
)


def plan_fits(request: Request) -> Plan | Declined:
    """Return a plan for any estimator with ``fit``; other estimators are declined."""
    estimator, folds = request.estimator, request.cross_validation.repeats[0].cut
    if not hasattr(estimator, "fit"):
        reason = f"{name_of(estimator)} has no fit"
        if isinstance(folds, Splits) and is_incremental(estimator):
            advice = (
                "cv must be a splitter whose training sets are all rows outside the test set, or "
                f"all rows before it, but {folds.why_no_tree}; use method='standard' instead."
            )
        else:
            advice = (
                f"estimator must have fit for method='fit', but {reason}; use method='treecv' or "
                "method='standard' instead."
            )
        return Declined(reason, advice, relevance=2)
    if isinstance(estimator, CompiledEstimator):
        estimator.check_parameters(but=request.searched)
    return FitPlan(request)


class FitPlan(Plan):
    """The plan "fit": the estimator is fitted once per fold."""

    name = "fit"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        is_ours = isinstance(request.estimator, TreeCVEstimator)
        self.capabilities = Capabilities(
            free_parameters=() if is_ours else request.estimator.get_params(),
            keeps_outputs=not isinstance(last_step(request.estimator), _SLOW_TO_PREDICT),
            leaves_out_pairs=True,
            in_memory_reason="fit takes all rows of a training set at once",
            one_epoch_reason=(
                "the estimator's own parameters, such as max_iter, set the number of passes of fit"
            ),
        )

    def cost(self) -> str:
        """Return a sentence with the number of fits and the number of their training rows."""
        return describe_trainings(self.request, "fits")

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the stored results of each fold."""
        fits = _Fits(self.request, candidate, repeat)
        return fits.results()._replace(bound=fits)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Fit the folds in parallel, and yield their scores in the order of the folds."""
        (fits,), (sink,) = work.bound, work.sinks
        yield from fits.fit_folds(list(work.folds), sink)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Return the out-of-fold predictions for all rows."""
        return predict_by_fits(self.request, candidate, repeat, method)

    def fold_models(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Refit each fold."""
        return fit_fold_models(self.request, candidate, repeat)


class _Fits:
    """The fits of one candidate on all folds of one repeat.

    Parameters
    ----------
    request : Request
    candidate : estimator
    repeat : Repeat
    """

    def __init__(self, request: Request, candidate: Candidate, repeat: Repeat) -> None:
        cross_validation = request.cross_validation
        self._request, self._repeat, self._folds = request, repeat, repeat.cut
        scoring = request.scoring
        if request.needs_rows and not isinstance(scoring.first, Pooled):
            scoring = with_pooled(scoring, Pooled(scoring.first))  # to request predictions
        self._n_metrics = len(request.scoring.metrics)
        self._metrics = scoring.metrics
        pooled = [metric for metric in self._metrics if isinstance(metric, Pooled)]
        self._methods = list(dict.fromkeys(response_of(metric, candidate) for metric in pooled))
        methods = tuple(m for m in request.stored_methods if m not in self._methods)
        self._methods += methods
        self._fold_task = make_fold_task(request, candidate, repeat, self._metrics, methods)
        data, cache = cross_validation.data_key(), cross_validation.shared.cache
        estimators = [self._fold_task.estimator]
        self._score_cache = ScoreCache.of(
            cache, data, b"", "fit", estimators, scoring
        ).for_candidate(())
        # For each fold, a digest of its training and test rows; empty if no result can be stored.
        self._fold_keys = [b""] * repeat.cut.n_folds
        if self._score_cache.name or self._fold_task.first_steps is not None:
            folds, name = repeat.cut, data[0]

            def digest_fold(chunk: int) -> bytes:
                train, test = folds.split(chunk).train_rows(), folds.test_rows(chunk)
                return digest(name, train.tobytes(), test.tobytes())

            self._fold_keys = cross_validation.fact(
                ("names of folds", repeat.number),
                lambda: [*map(digest_fold, range(folds.n_folds))],
            )
        self._fingerprint = data[0].hex() if self._score_cache.name else ""
        n_targets, classes = self._fold_task.n_targets, self._fold_task.classes
        self._columns, self._width = lay_out(self._methods, classes, n_targets)

    def results(self) -> Results:
        """Return the keys of the stored results of each fold."""
        specs: dict[int, ResultSpec] = {}
        if self._score_cache.name and self._score_cache.cache is not None:
            for chunk in range(self._folds.n_folds):
                key = self._score_cache.key(
                    8 * FoldResult.size(*self._stored_shapes(chunk)), self._fold_keys[chunk]
                )
                specs[chunk + 1] = ResultSpec(
                    key, self._score_cache.cache, partial(self._read_stored, chunk)
                )
        return Results(self._score_cache.name, self._fingerprint, specs=specs)

    def _stored_shapes(self, chunk: int) -> tuple[int, tuple[int, int]]:
        """Return the number of stored scores, and the shape of the predictions of a fold."""
        n_rows = len(self._folds.test_rows(chunk)) if self._width else 0
        return len(self._metrics), (n_rows, self._width)

    def _read_stored(self, chunk: int, memory: Array) -> TestedFolds:
        return self._make_event(
            chunk, FoldResult.of(memory.view(np.float64), *self._stored_shapes(chunk))
        )

    def _make_event(self, chunk: int, fitted: FoldResult) -> TestedFolds:
        """Return the event with the scores and predictions of a fitted fold."""
        n = self._n_metrics
        diverged = np.array([fitted.has_diverged])
        scores = FoldScores(fitted.scores[:n, None], diverged, fitted.spreads[:n, :, None])
        is_known = are_known(self._metrics, fitted.scores)
        return TestedFolds(
            0,
            Node(chunk, chunk + 1),
            fitted.n_trained,
            self._make_tested_rows(chunk, fitted.responses) if self._methods else None,
            scores,
            record=fitted.numbers().view(np.uint8) if is_known else None,
            seconds=fitted.seconds,
        )

    def _make_tested_rows(self, chunk: int, responses: Array) -> TestedRows:
        """Return the predictions for the test rows of a fold, in the order of the tree."""
        request, fold_task = self._request, self._fold_task
        rows = self._folds.tested_from(chunk, chunk + 1)
        targets = None if request.data.y is None else encode_targets(request)[rows]
        weights = None if fold_task.score_weights is None else fold_task.score_weights[rows]
        starts = None if request.cross_validation.tests_single_rows else np.zeros(1, np.intp)
        outputs = responses[order_in_tree(self._folds, chunk)]
        return TestedRows(outputs, self._select_columns, targets, weights, starts)

    def _select_columns(self, outputs: Array, method: str) -> Array:
        """Return the columns of the outputs that belong to one response method."""
        columns = outputs[:, self._columns[method]]
        return columns[:, 0] if columns.shape[1] == 1 else columns

    def fit_folds(self, folds: list[int], sink: Sink) -> Generator[TestedFolds | Failed]:
        """Fit the given folds in parallel, and yield their results in the order of the folds.

        A trial that reports the scores of folds may be pruned after any fold. Therefore, it starts
        only as many fits at a time as there are workers. The results of all fits that were started
        are stored, even if one of them fails.
        """
        settings, is_closed = self._request.settings, False
        n_jobs = settings.n_jobs

        def fit_calls(batch: list[int]) -> Generator[object]:
            for _, chunks in groupby(batch, self._folds.model):
                if not is_closed:
                    first, *further = chunks
                    splits = [self._folds.split(chunk) for chunk in (first, *further)]
                    yield delayed(self._fold_task.attempt)(self._fold_keys[first], splits)

        try:
            workers, size = Parallel(n_jobs, return_as="generator"), max(1, len(folds))
        except ValueError:  # joblib's backend "multiprocessing" cannot return a generator
            workers, size = Parallel(n_jobs), effective_n_jobs(n_jobs)
        if settings.reports_parts:
            size = effective_n_jobs(n_jobs)
        with workers as parallel:
            for start in range(0, len(folds), size):
                batch = folds[start : start + size]
                fitted_folds = explained(
                    self._fold_task, n_jobs, partial(parallel, fit_calls(batch))
                )
                results = zip(chain.from_iterable(fitted_folds), batch, strict=False)
                try:
                    for fitted, chunk in results:
                        if isinstance(fitted, Exception):
                            yield self._handle_error(chunk, fitted)
                        else:
                            sink.cost.n_updates += fitted.n_trained
                            yield self._make_event(chunk, fitted)
                finally:
                    is_closed = True
                    for fitted, chunk in results:
                        if isinstance(fitted, FoldResult):
                            sink.cost.n_updates += fitted.n_trained
                            sink.take(self._make_event(chunk, fitted))
                is_closed = False

    def _handle_error(self, chunk: int, error: Exception) -> Failed:
        """Return the event of a failed fit, or raise its error unless all folds are tried."""
        error.add_note(f"This happened in fold {self._folds.number(chunk)}.")
        if not self._request.cross_validation.search.tries_all_folds:
            with self._fold_task.naming_step():
                raise error
        return Failed(error, folds=Node(chunk, chunk + 1))
