"""The evaluation of a candidate: looking up stored results, computing and storing new ones.

All state that changes during an evaluation is in this module. For each repeat, a run looks up
stored results by the keys of the plan, lets the plan evaluate the missing folds, scores their
predictions, makes the scores of the folds available part by part, and stores new results. If a
plan fails for a candidate, the folds are refitted one by one, unless ``method`` is the name of the
engine.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import closing
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np
from tqdm.auto import tqdm

from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.caching.results import choose_cache
from optuna_treecv.core.choose import baseline
from optuna_treecv.core.choose import not_finite_warning
from optuna_treecv.core.engine import Cost
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import ModelSum
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import Sink
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import TreeProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.engine import Work
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.result import Curve
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.result import mean_and_std
from optuna_treecv.core.scorebook import pack
from optuna_treecv.core.scorebook import Scorebook
from optuna_treecv.core.scorebook import unpack
from optuna_treecv.core.settings import check_choice
from optuna_treecv.estimators.base import described
from optuna_treecv.estimators.base import divergence_advice
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.checks import check_methods
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.scores import are_known
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import unknown_spreads
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator

T = TypeVar("T")

RESPONSE_METHODS = ("predict", "decision_function", "predict_proba", "score_samples")

# The number of seconds of an evaluation before its progress bar appears.
_SECONDS_WITHOUT_BAR = 2.0


@dataclass(eq=False)
class Precomputed:
    """The results of a candidate on a repeat that a batch has computed before its run.

    Attributes
    ----------
    cost : Cost
    events : list of Event
        Early scores, followed either by one event for all folds of the repeat, whose scores are in
        the scorebook, or by ``Failed``. If the candidate was pruned, there are only early scores.
    since : datetime or None
        The time at which the batch began; only trials that were recorded later can have counted
        ``Cost.n_uncounted``. None if nothing is uncounted.
    n_needed : int
        The number of row updates that the folds so far need, including cached models.
    """

    cost: Cost = field(default_factory=Cost)
    events: list[Event] = field(default_factory=list)
    since: datetime | None = None
    n_needed: int = 0

    @property
    def n_bytes(self) -> int:
        """The number of bytes of early scores and records, which are not in the scorebook."""
        early = [e.scores.n_bytes for e in self.events if isinstance(e, RowProgress)]
        records = [
            event.record.memory.nbytes
            for event in self.events
            if isinstance(event, TestedFolds) and isinstance(event.record, ArrayThenCount)
        ]
        return max([0, *early]) + sum(records)


class Run:
    """The evaluation of one candidate.

    Iterate over ``events``, to the end or until the candidate is pruned; then call ``result``.
    Iterating a second time repeats the evaluation.

    Parameters
    ----------
    plan : Plan
    estimator : estimator
        The candidate. It differs from the estimator of the plan's request only in free parameters.

    Attributes
    ----------
    plan : Plan
        The plan; after it has failed, its fallback.
    reason : str
        The reason why "auto" has chosen the engine; "" if the user has chosen it.
    book : Scorebook
    curve : Curve or None
        The scores as a function of the number of trees, for a growing ensemble.
    errors : dict of int to Exception
        The errors of folds that could not be fitted, by fold index. The index counts the folds of
        all repeats.
    precomputed : dict of int to Precomputed
        The results of a batch that have not been iterated over yet, by repeat.
    uncounted_since : datetime or None
        The time at which the batch began; only trials that were recorded later can have counted
        ``Cost.n_uncounted``. None: the time is unknown, so any trial may have counted it.
    is_leased : bool
        Whether other processes may be waiting for the results. If so, the results are stored
        immediately.
    may_recur : bool
        Whether another run may have the same parameters, so that it is useful to store results.
    watch : Watch or None
        Requests early scores while several candidates are evaluated in a batch.
    """

    def __init__(self, plan: Plan, estimator: Estimator) -> None:
        self.plan, self.reason = plan, plan.reason
        self.request = plan.request
        self.estimator = estimator
        self.may_recur = True
        self.is_leased = False
        self.uncounted_since: datetime | None = None
        self.watch: Watch | None = None
        self.precomputed: dict[int, Precomputed] = {}
        self._results: dict[int, Results] = {}
        self._book: Scorebook | None = None
        self._reset()

    def _reset(self) -> None:
        """Discard the state of the previous evaluation, except precomputed results."""
        if not self.precomputed:
            self._book = None
        self.curve: Curve | None = None
        self.errors: dict[int, Exception] = {}
        self._costs: list[Cost] = []
        self._models: list[ModelSum] = []
        self._bar: tqdm | None = None

    def with_estimator(self, estimator: Estimator) -> "Run":
        """Return a run of another candidate by the same plan; check its parameters."""
        self.plan.check(estimator)
        return Run(self.plan, estimator)

    def with_row_scores(self) -> "Run":
        """Return a run that also scores rows.

        Return this run itself if its results are precomputed, or if the metric has no row scores.
        """
        if self.precomputed or not self.request.has_row_scores:
            return self
        plan = self.plan.with_request(replace(self.request, wants_rows=True))
        return Run(plan, self.estimator)

    def with_first_metric(self, number: int) -> "Run":
        """Return a copy that uses the optimised metric with this index as the first one."""
        other = copy(self)
        other.request = replace(self.request, first_optimized=number)
        return other

    @property
    def book(self) -> Scorebook:
        if self._book is None:
            self._book = Scorebook(self.request, self.estimator)
        return self._book

    # Keys of results, and storing results.

    def results(self, repeat: Repeat) -> Results:
        """Return the keys of the results of a repeat, which are computed only once."""
        if repeat.number not in self._results:
            self._results[repeat.number] = self.plan.results(self.estimator, repeat)
        return self._results[repeat.number]

    @property
    def is_stored(self) -> bool:
        """Whether the results of the first repeat are stored."""
        specs = self.results(self.plan.repeats[0]).specs
        return bool(specs) and all(spec.cache.has(spec.key) for spec in specs.values())

    def group_of(self, repeat: Repeat) -> bytes:
        """Return the group of a repeat; b"" if the repeat cannot be evaluated in a batch.

        Batches evaluate repeats of the same group. They skip a repeat whose results are already
        stored or precomputed, have no key, or have a key that cannot be computed without an error.
        """
        try:
            results = self.results(repeat)
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001  # the evaluation will raise the error
            return b""
        is_stored = any(spec.cache.has(spec.key) for spec in results.specs.values())
        return b"" if is_stored or repeat.number in self.precomputed else results.group

    def missing(self) -> str:
        """Return the key of the first repeat's results if a batch may compute them; else ""."""
        repeat = self.plan.repeats[0]
        return (self.results(repeat).key or str(id(self))) if self.group_of(repeat) else ""

    @property
    def n_bytes_missing(self) -> int:
        """The number of bytes that the results would take if a batch precomputed them."""
        repeat = self.plan.repeats[0]
        n_bytes, n_rows = self.results(repeat).n_bytes + self.book.n_bytes, repeat.cut.n_tested
        n_output_bytes = self.request.bytes_per_row(self.request.stored_methods)
        n_bytes += n_rows * (n_output_bytes + 8 * self.request.needs_rows)
        # Row scores of the first pass, and of the 16 nested folds.
        if self.request.settings.is_early:
            n_bytes += 2 * 8 * n_rows
        return n_bytes * len(self.plan.repeats)

    @property
    def n_bytes_precomputed(self) -> int:
        """The number of bytes of precomputed results."""
        n_bytes = self.book.n_bytes if self.precomputed else 0
        return n_bytes + sum(x.n_bytes for x in self.precomputed.values())

    def _find_stored(self, repeat: Repeat) -> Iterator[TestedFolds]:
        """Yield the folds of a repeat whose results are stored."""
        methods = self.request.stored_methods
        for spec in self.results(repeat).specs.values():
            memory = spec.cache.find(spec.key)
            if memory is not None:
                if self.plan.capabilities.caches_responses:
                    outputs = {m: spec.cache.memory.find((spec.key, m)) for m in methods}
                    stored = {name: o for name, o in outputs.items() if o is not None}
                    self.book.responses[repeat.number] = stored
                read = spec.read or partial(unpack, self.request, repeat)
                yield read(memory)

    def store(self, repeat: Repeat, event: TestedFolds, n_needed: int, seconds: float) -> None:
        """Store the result that these folds complete, if there is one and all scores are known."""
        spec = self.results(repeat).specs.get(event.folds.last)
        if spec is None:
            return
        record = event.record
        if isinstance(record, ArrayThenCount):
            if record.was_kept:  # it is in a cache or on disk already
                return
            record.n_updates = n_needed
            record = record.memory
        elif record is None and spec.read is None:
            scores = self.book.repeat_scores(repeat)
            if not are_known(self.request.scoring.metrics, scores.scores):
                return
            record = pack(scores, self.book.pooled[:, repeat.number], n_needed)
        if record is None:
            return
        record.flags.writeable = False
        cache = spec.cache if spec.is_optional else choose_cache(spec.cache, seconds)
        cache.keep(spec.key, record, seconds)
        if self.is_leased and spec.is_optional and isinstance(cache, StoredModelCache):
            cache.write([(spec.key, record, seconds)])
        if self.plan.capabilities.caches_responses:
            for method, response in self.book.responses[repeat.number].items():
                spec.cache.memory.keep((spec.key, method), response, seconds)

    def sink(self, repeat: Repeat, cost: Cost) -> Sink:
        """Return the object that receives the plan's costs, curves and late results."""

        def take(event: TestedFolds) -> None:
            self.store(repeat, event, event.n_needed, event.seconds or 0.0)

        return Sink(cost, self.may_recur, self._set_curve, take)

    def _set_curve(self, curve: Curve) -> None:
        self.curve = curve
        if self._bar is not None:
            self._bar.set_postfix_str(f"{curve.n_trees[-1]} trees")

    def _finish_repeat(self, repeat: Repeat) -> None:
        """Write pending results; release the prepared rows of all repeats but the first."""
        results = self._results.get(repeat.number, Results())
        if repeat.number > 0:
            self._results.pop(repeat.number, None)
        for spec in {id(spec.cache): spec for spec in results.specs.values()}.values():
            if isinstance(spec.cache, StoredModelCache) and spec.is_optional:
                spec.cache.end(self.may_recur)
            elif isinstance(spec.cache, StoredModelCache):
                spec.cache.flush()

    # The evaluation.

    def events(self, watch: Watch | None = None) -> Generator[RowProgress | TreeProgress | int]:
        """Evaluate the folds; yield early scores, if requested by ``watch``, and indices of parts.

        The index of a part of the folds, 0, 1, ..., is yielded when the folds are scored. A part
        is a subtree at depth min(5, depth of the tree). With several repeats, parts are larger, so
        that there are at most 32 parts in total, or one part per repeat with more than 32 repeats.

        Raises
        ------
        FoldsFailed
            After all folds were tried, if ``Search.tries_all_folds`` is true and some folds could
            not be fitted or scored.
        """
        self._reset()
        n_parts = 0
        for repeat in self.plan.repeats:
            cost, ends = Cost(), deque(part.last for part in repeat.parts)
            self._costs.append(cost)
            first_watch = watch if repeat.number == 0 else None
            self._bar = bar = progress_bar(self, repeat.cut.n_folds)
            try:
                # This prepares the rows, whose seconds are counted separately.
                self.results(repeat)
                with closing(self._evaluate_folds(repeat, first_watch, cost)) as events:
                    for event in _add_seconds(events, cost):
                        if not isinstance(event, TestedFolds):
                            yield event
                            continue
                        bar.update(event.folds.last - bar.n)
                        while ends and ends[0] <= event.folds.last:
                            self.book.reveal(repeat, ends.popleft())
                            yield n_parts
                            n_parts += 1
                            self.book.begin_part()
            finally:
                bar.close()
                self._finish_repeat(repeat)
        self._check_scores()

    def _check_scores(self) -> None:
        """Raise an error if all folds were tried and a score is unknown; warn if not finite."""
        request, book = self.request, self.book
        scores = book.scores[request.scoring.optimized[0]]
        pooled_scores = book.pooled[request.scoring.optimized[0], :, 0]
        is_unknown = np.isnan(pooled_scores if request.is_pooled else scores).any()
        if request.cross_validation.search.tries_all_folds and (self.errors or is_unknown):
            of_metrics = map(self.book.fold_scores, range(len(request.scoring.names)))
            raise FoldsFailed(np.array([*of_metrics]), dict(sorted(self.errors.items())))
        if not request.is_pooled and not np.isfinite(scores).all():
            mean, n_diverged = mean_and_std(scores)[0], book.n_diverged
            request.cross_validation.warn_once(
                "finite", lambda: not_finite_warning(self.estimator, mean, n_diverged)
            )

    def _evaluate_folds(
        self, repeat: Repeat, watch: Watch | None, cost: Cost, first: int = 0
    ) -> Generator[RowProgress | TreeProgress | TestedFolds]:
        """Yield early scores, and the folds from ``first`` on; add the folds to the scorebook."""
        done, failed = first, None
        with closing(self._iterate_events(repeat, watch, cost, first)) as events:
            for event, is_new in events:
                if isinstance(event, Failed) and self.plan.fallback is not None:
                    failed = event
                    break
                if isinstance(event, Failed):
                    event = self._skip_folds(repeat, event)
                if isinstance(event, ModelSum):
                    self._models.append(event)
                    continue
                if not isinstance(event, TestedFolds):
                    yield event
                    continue
                try:
                    if is_new is not None:
                        self.book.add(repeat, event)
                except ValueError as error:  # a score is undefined
                    if self.plan.fallback is None:
                        raise
                    failed = Failed(error, str(error).removesuffix("."))
                    break
                cost.n_needed += event.n_needed
                cost.n_uncounted += event.n_uncounted
                if is_new and event.seconds is not None:
                    self.store(repeat, event, event.n_needed, event.seconds)
                is_last = event.folds.last == repeat.cut.n_folds
                if is_last or not (is_new and self.plan.capabilities.evaluates_jointly):
                    done = event.folds.last
                    yield event
                if is_last and is_new is not False and event.seconds is None:
                    self.store(repeat, event, cost.n_needed, cost.seconds)
        if failed is not None:
            yield from self._refit_folds(repeat, failed, cost, done)

    def _iterate_events(
        self, repeat: Repeat, watch: Watch | None, cost: Cost, first: int
    ) -> Generator[tuple[Event, bool | None]]:
        """Yield (event, whether it is new) for all events in the order of the folds.

        The second element is True for newly evaluated events, False for stored ones, and None for
        precomputed ones, whose folds are already in the scorebook.
        """
        plan, n_folds = self.plan, repeat.cut.n_folds
        before = self.precomputed.pop(repeat.number, None)
        stored: deque[TestedFolds] = deque()
        if before is None:
            stored.extend(event for event in self._find_stored(repeat) if event.folds.last > first)
        else:
            vars(cost).update(vars(cost + before.cost))
            self.uncounted_since = before.since
            yield from ((event, None) for event in before.events)
            if isinstance(before.events[-1], TestedFolds):
                return
            watch = None
        folds: Sequence[int] = range(first, n_folds)
        if stored:
            done = {chunk for event in stored for chunk in range(*event.folds)}
            folds = [chunk for chunk in folds if chunk not in done]
        if folds or (watch is not None and plan.capabilities.early_reports == "rows"):
            sinks, bound = [self.sink(repeat, cost)], [self.results(repeat).bound]
            work = Work([self.estimator], sinks, repeat, folds, watch, bound)
            with closing(plan.evaluate(work)) as events:
                for event in events:
                    while (
                        stored
                        and isinstance(event, TestedFolds)
                        and stored[0].folds.first < event.folds.first
                    ):
                        yield stored.popleft(), False
                    yield event, True
        yield from ((event, False) for event in stored)

    def _skip_folds(self, repeat: Repeat, failed: Failed) -> TestedFolds:
        """Return failed folds with unknown scores, or raise their error."""
        if failed.folds is None or not self.request.cross_validation.search.tries_all_folds:
            raise failed.error
        n_folds, n_metrics = failed.folds.n_folds, len(self.request.scoring.metrics)
        number = repeat.number * repeat.cut.n_folds + repeat.cut.number(failed.folds.first)
        self.errors[number] = failed.error
        nothing = np.full((n_metrics, n_folds), np.nan)
        spreads = unknown_spreads(n_metrics, n_folds)
        scores = FoldScores(nothing, np.ones(n_folds, bool), spreads)
        return TestedFolds(0, failed.folds, 0, scores=scores, seconds=0.0)

    def _refit_folds(
        self, repeat: Repeat, failed: Failed, cost: Cost, first: int
    ) -> Generator[RowProgress | TreeProgress | TestedFolds]:
        """Refit the folds of this repeat and of later repeats by the fallback plan.

        If refitting raises a ValueError, it is raised, because it is about parameters or data and
        therefore most helpful. If refitting raises another error, the error of the failed plan is
        raised instead if ``failed.outranks_refit_errors`` is true.
        """
        self.plan, self.reason = self.plan.fallback or self.plan, failed.reason
        self._results.clear()
        self.curve = None
        for later_repeat in self.plan.repeats[repeat.number :]:
            self.book.forget(later_repeat)
        for before in self.precomputed.values():  # precomputed by the plan that has failed
            vars(cost).update(vars(cost + before.cost))
        self.precomputed.clear()
        with _explain_errors(failed):
            first = 0 if self.request.needs_predictions else first
            yield from self._evaluate_folds(repeat, None, cost, first)

    def complete(self) -> None:
        """Evaluate all folds."""
        for _ in self.events():
            pass

    def finish(self) -> CVResult:
        """Evaluate all folds and return the result."""
        self.complete()
        return self.result()

    # The state so far.

    @property
    def method_name(self) -> str:
        """The value of ``CVResult.method``: "holdout" or the name of the engine."""
        method = self.request.settings.method
        return method if method == "holdout" else self.plan.name

    @property
    def cost(self) -> Cost:
        """The cost of all repeats."""
        return sum(self._costs, Cost())

    @property
    def n_parts(self) -> int:
        """The total number of parts in all repeats."""
        return sum(len(repeat.parts) for repeat in self.plan.repeats)

    @property
    def early_report_error(self) -> str:
        """The error message if the requested early reports are impossible; else ""."""
        settings, reports = self.request.settings, self.plan.capabilities.early_reports
        if settings.is_growing and reports != "trees":
            return (
                "report='trees' needs an ensemble that grows tree by tree, but the folds are "
                f"evaluated by method={self.plan.name!r}; use report='auto' instead."
            )
        if not settings.is_early or reports == "rows":
            return ""
        return (
            f"report={settings.report!r} needs method='treecv', whose first pass tests each row "
            f"before training on it, but the folds are evaluated by method={self.plan.name!r}; "
            "use report='folds' or 'mean' instead."
        )

    def describe(self) -> dict[str, object]:
        """Return a description of the evaluation and the estimator, as strings and numbers."""
        results = self.results(self.plan.repeats[0])
        return {
            **self.request.cross_validation.describe(),
            "method": self.method_name,
            "key": results.key,
            "fingerprint": results.fingerprint,
            "learner": described(self.estimator),
        }

    def facts(self) -> dict[str, object]:
        """Return the facts that are equal in all evaluations with comparable scores."""
        cross_validation, scoring = self.request.cross_validation, self.request.scoring
        facts = {
            "digest": cross_validation.digest(scoring),
            "scoring": scoring.name,
            "n_folds": cross_validation.n_folds,
            "n_repeats": cross_validation.n_repeats,
            "n_updates_standard": self.plan.n_epochs * cross_validation.n_updates_standard,
        }
        if len(scoring.names) > 1:
            facts["optimize"] = scoring.optimized_names
        constant = baseline(scoring.first, self.estimator, cross_validation.data)
        if constant is None:
            return facts
        return facts | {"baseline": constant[0], "baseline_of": constant[1]}

    def result(self) -> CVResult:
        """Return the result for the folds that have been scored so far."""
        cost, names = self.cost, self.request.scoring.names
        cross_validation = self.request.cross_validation
        scores = {
            name: self.book.score(number, self.method_name) for number, name in enumerate(names)
        }
        first = scores[self.request.scoring.name]
        return CVResult(
            test_score=first.test_score,
            mean=first.mean,
            std=first.std,
            scores=scores,
            row_losses=self.book.row_losses() if self.book.is_complete else None,
            method=self.method_name,
            reason=self.reason,
            n_folds=cross_validation.n_folds,
            n_updates=cost.n_updates,
            n_updates_saved=max(0, cost.n_needed - cost.n_updates),
            n_updates_standard=self.plan.n_epochs * cross_validation.n_updates_standard,
            seconds=cost.seconds,
            seconds_prepare=cost.seconds_prepare,
            diverged_folds=self.book.n_diverged,
            curve=self.curve,
            _name=self.request.scoring.name,
            _kfold_estimator=self._average_models()
            if self._models and self.book.is_complete
            else None,
        )

    def _average_models(self) -> Estimator | ValueError:
        """Return an estimator with the mean of all fold models, or the error to raise instead."""
        total = sum((model.total for model in self._models), np.zeros(()))
        mean = total / sum(model.n_models for model in self._models)
        if not np.all(np.isfinite(mean)):
            return ValueError(
                f"{name_of(self.estimator)} diverges on a fold, so the fold models have no "
                f"average; {divergence_advice(self.estimator)}"
            )
        return self._models[-1].as_estimator(mean)

    # Other uses of the folds.

    def predict(self, response_method: str, argument: str = "response_method") -> Array:
        """Return the out-of-fold predictions, in the order of the rows as given.

        Parameters
        ----------
        response_method : str
        argument : str
            The name of ``response_method`` in the caller's signature, for error messages.
        """
        self.check_predictions(response_method, argument)
        self.check_each_row_is_tested_once()
        estimator, repeat = self.estimator, self.plan.repeats[0]
        return self._with_fallback(lambda plan: plan.predict(estimator, repeat, response_method))

    def fold_models(self) -> FoldModels:
        """Return the fitted models of all folds, by fold index, one repeat after the other."""
        of_repeats = []
        for repeat in self.plan.repeats:
            numbers = [repeat.cut.number(chunk) for chunk in range(repeat.cut.n_folds)]
            of_repeats.append(self._models_of(repeat).ordered(np.argsort(numbers)))
        if len(of_repeats) == 1:
            return of_repeats[0]
        return FoldModels([model for models in of_repeats for model in models])

    def _models_of(self, repeat: Repeat) -> FoldModels:
        """Return the fitted models of all folds of a repeat, in the order of the chunks."""
        return self._with_fallback(lambda plan: plan.fold_models(self.estimator, repeat))

    def _with_fallback(self, compute: Callable[[Plan], T]) -> T:
        """Return the result of ``compute`` for the plan or, if the plan fails, its fallback."""
        try:
            return compute(self.plan)
        except Failed as failed:
            if self.plan.fallback is None:
                raise failed.error from None
            reason = failed
        with _explain_errors(reason):
            return compute(self.plan.fallback)

    def check_predictions(self, response_method: str, argument: str) -> None:
        """Raise an error if there are no out-of-fold predictions by a response method."""
        check_choice(argument, response_method, RESPONSE_METHODS)
        if self.plan.name == "progressive":
            raise ValueError(
                "method must not be 'progressive' for predictions, because progressive validation "
                "does not test the first eighth of the rows; use method='auto' instead."
            )
        check_methods(self.estimator, response_method, f"{argument}={response_method!r}")

    @property
    def tests_each_row_once(self) -> bool:
        cut = self.plan.repeats[0].cut
        is_partition = isinstance(cut, Folds) and cut.n_tested == cut.n_rows
        return is_partition and len(self.plan.repeats) == 1

    def check_each_row_is_tested_once(self) -> None:
        """Raise ValueError unless each row has one out-of-fold prediction."""
        if len(self.plan.repeats) > 1:
            raise ValueError(
                "cv must test every row once, because each row gets one prediction, got "
                f"{len(self.plan.repeats)} repeats."
            )
        if not self.tests_each_row_once:
            raise ValueError(
                "cv must test every row once, because each row gets one prediction, but some rows "
                "are tested several times or not at all."
            )

    def fit(self) -> Estimator:
        """Return the estimator, fitted on all rows."""
        return self.plan.fit(self.estimator)


def progress_bar(run: Run, n_folds: int) -> tqdm:
    """Return a bar of folds, which appears after some seconds if ``verbose`` is positive."""
    return tqdm(
        desc=name_of(run.estimator),
        total=n_folds,
        unit="fold",
        leave=False,
        delay=_SECONDS_WITHOUT_BAR,
        disable=run.request.settings.verbose == 0,
    )


class FoldsFailed(Exception):
    """Raised after all folds were tried, if some could not be fitted or have undefined scores.

    Parameters
    ----------
    scores : ndarray of shape (n_metrics, n_folds)
        The scores of all folds, by fold index; NaN for folds without a score.
    errors : dict of int to Exception
        The errors of the folds that could not be fitted, by fold index.
    """

    def __init__(self, scores: Array, errors: Mapping[int, Exception]) -> None:
        first = f" (first error: {next(iter(errors.values()))!r})" if errors else ""
        n_undefined = int(np.isnan(scores).any(axis=0).sum()) - len(errors)
        super().__init__(
            f"{len(errors)} of {scores.shape[1]} folds could not be fitted{first}; the scores of "
            f"{n_undefined} other fold(s) are undefined."
        )
        self.scores = scores
        self.errors = errors


def _add_seconds(events: Iterator[T], cost: Cost) -> Iterator[T]:
    """Yield events; add the time that each event takes to ``cost.seconds``."""
    began = perf_counter()
    for event in events:
        cost.seconds += perf_counter() - began
        yield event
        began = perf_counter()


@contextmanager
def _explain_errors(failed: Failed) -> Generator[None]:
    """Return a context that adds the reason of a plan's failure to errors of the refits."""
    try:
        yield
    except ValueError as error:
        error.add_note(f"The folds were refitted one by one, because {failed.reason}.")
        raise
    except Exception as error:
        if not failed.outranks_refit_errors:
            raise
        raise failed.error from error
