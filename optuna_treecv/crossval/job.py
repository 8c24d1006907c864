"""One estimator on a task: planned once, then evaluated, predicted with or fitted."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Hashable
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from time import perf_counter
from typing import Any
from typing import TypeVar

import numpy as np
from sklearn.base import is_classifier

from optuna_treecv.crossval.curves import Curve
from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import Effort
from optuna_treecv.crossval.engine import Engine
from optuna_treecv.crossval.engine import Grown
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.fold_task import FoldsFailed
from optuna_treecv.crossval.intervals import Scores
from optuna_treecv.crossval.job_scoring import baseline
from optuna_treecv.crossval.job_scoring import check_scores_rows
from optuna_treecv.crossval.job_scoring import scoring_of
from optuna_treecv.crossval.job_scoring import why_not_finite
from optuna_treecv.crossval.job_scoring import why_scales_mislead
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.crossval.result import mean_and_std
from optuna_treecv.crossval.result import Score
from optuna_treecv.crossval.scorebook import Scorebook
from optuna_treecv.crossval.settings import check_choice
from optuna_treecv.crossval.steps import Front
from optuna_treecv.crossval.task import Task
from optuna_treecv.learners.from_estimator import check_methods
from optuna_treecv.learners.from_estimator import check_targets
from optuna_treecv.learners.from_estimator import checked_estimator
from optuna_treecv.learners.from_estimator import layout_for
from optuna_treecv.learners.from_estimator import make_learner
from optuna_treecv.learners.names import described
from optuna_treecv.learners.names import may_have
from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import by_number
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import range_of
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.scoring.scores import scores_rows
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.tree.plan import Learner

T = TypeVar("T")

RESPONSE_METHODS = ("predict", "decision_function", "predict_proba", "score_samples")


class Job:
    """One estimator on a task.

    Iterate over it to the end, or leave it early; then ask for ``result``. A second iteration
    begins anew. Iterating yields the number of each reported part, 0, 1, ..., once its folds are
    scored. A part is a subtree at depth min(5, depth of the tree). With repeats parts are larger,
    so that there are at most 32 in all, or one per repeat.

    Parameters
    ----------
    task : Task
    estimator : estimator
    n_epochs : int or None
        The epochs of this estimator; None: those of the task.
    choose : callable
        (job) -> ``engine``, ``why`` and ``free_parameters``.
    searched : collection of str
        Parameters that a search sets, so that their values are not checked.
    of_class : bool
        Whether only that is refused which no parameter of the estimator could change.
    is_scored : bool
        False: it is predicted with or fitted, and needs no scoring.

    Raises
    ------
    ValueError
        If the estimator cannot be evaluated by the scoring, or cannot be trained further.

    Attributes
    ----------
    engine : Engine
        What evaluates the folds.
    why : str
        Why "auto" has chosen it, a clause; "" if the user did.
    metadata : Metadata
        What the estimator and its scores get besides X and y.
    n_epochs : int
        The number of epochs for which models are trained.
    scoring : Scoring
        Without metrics if it is not scored.
    cache : ModelCache, StoredModelCache or None
        Where the models and results are kept of an estimator that is trained further.
    repeats : list of Repeat
        Those of the task, for the epochs of this estimator.
    classes : ndarray or None
        The sorted classes for a classifier; None for others and for several columns.
    free_parameters : collection of str
        The parameters that only change the models: while they are positive and finite, the plan
        does not depend on them.
    asks_for_passes : bool
        Whether models that are trained further are asked for, and not those of ``fit``.
    layout : RowLayout
        The layout of the rows that the learner needs; only of engines that train models further,
        like ``steps_name`` and ``responses``.
    steps_name : bytes
        The name of the steps before the learner; empty if there are none.
    responses : tuple of str
        The responses of the learner from which losses and pooled scores follow.
    key, fingerprint : str
        What was trained how, and on which rows.
    book : Scorebook
        The scores so far.
    effort : Effort
        What the repeat takes that is evaluated now.
    ahead : dict
        By repeat, the results that were computed before it is iterated over, with their
        ``n_bytes``. They go when they are used, or with the job.
    ahead_since : datetime or None
        The time from which on trials of other processes may have counted ``Effort.n_ahead``; None:
        at any time.
    bound : Bound or None
        This job bound to the rows of the first repeat.
    names : dict
        By repeat, the names of the results, where looking them up takes time.
    is_leased : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.
    needs_rows : bool
        Whether the scores of single rows are asked for, by the first optimised metric.
    watch : Watch or None
        Asks for early scores while several jobs are evaluated together.
    average : FoldAverage or None
        Takes the models of the folds if they are to be averaged; nothing is shared then.
    curve : Curve or None
        The scores after each number of trees, where an ensemble has grown.
    errors : dict of int to Exception
        By the numbers of folds, over all repeats, the errors of those that could not be fitted.
    comes_again : bool
        Whether another job may have the same parameters, so that its results go to the store.
    """

    def __init__(
        self,
        task: Task,
        estimator: Any,
        n_epochs: int | None = None,
        *,
        choose: "Callable[[Job], tuple[Engine, str, Collection[str]]]",
        searched: Collection[str] = (),
        of_class: bool = False,
        is_scored: bool = True,
    ) -> None:
        estimator = checked_estimator(estimator)
        task.data.check_unchanged()
        check_targets(estimator, task.data, searched)
        task.cut_for(estimator)
        self.task = task
        self.estimator = estimator
        self.searched = searched
        self.of_class = of_class
        self.metadata = task.metadata_for(estimator)
        self.given_epochs = task.settings.n_epochs if n_epochs is None else n_epochs
        # In a search over epochs, models are trained further whatever their number is.
        self.asks_for_passes = n_epochs is not None or task.asks_for_passes
        self.asks_for_passes |= "n_epochs" in searched
        self.engine, self.why, self.free_parameters = choose(self)
        self.engine.check(self)
        self.n_epochs = self.engine.epochs(self)
        if task.data.is_large and (why := self.engine.why_in_memory(self)):
            raise ValueError(
                f"max_memory must be at least {task.data.n_bytes:,} bytes, or None, for "
                f"{name_of(estimator)} with method={self.engine.name!r}, since {why}, got "
                f"{task.settings.max_memory!r}."
            )
        self.repeats = task.repeats_for(self.n_epochs)
        has_one_column = task.data.y is None or task.data.y.ndim == 1
        is_labelled = is_classifier(estimator) and has_one_column
        self.classes = task.data.classes() if is_labelled else None
        self._plan: dict[Hashable, Any] = {}
        self.scoring, self.needs_rows = Scoring((), ()), False
        self._reset()
        if is_scored:
            self._plan_scores()
        if self.engine.trains_further:
            self._plan_rows()

    def _reset(self) -> None:
        """Forget what belongs to one evaluation; the plan stays."""
        self.cache: AnyCache | None = None
        if self.engine.trains_further:
            self.cache = self.task.shared.cache_for(self.estimator)
        self.ahead: dict[int, Any] = {}
        self.ahead_since: datetime | None = None
        self.bound: Any = None
        self.names: dict[int, Any] = {}
        self.is_leased = False
        self.watch: Watch | None = None
        self.average: Any = None
        self.curve: Curve | None = None
        self.errors: dict[int, Exception] = {}
        self.comes_again = True
        self.key = self.fingerprint = ""
        self._book: Scorebook | None = None
        self._efforts: list[Effort] = []

    def planned(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return what is made once for all jobs with the same plan, by its name."""
        if name not in self._plan:
            self._plan[name] = make()
        return self._plan[name]

    def like(self, estimator: Any) -> "Job":
        """Return a job with the same plan for an estimator that differs in ``free_parameters``.

        Only the values of these parameters are checked.
        """
        other = copy(self)
        other.estimator = estimator
        other._reset()
        other.engine.check_values(other)
        return other

    def optimizing(self, number: int) -> "Job":
        """Return the job as if it were optimised by another one of its optimised scores."""
        other = copy(self)
        other.scoring = replace(self.scoring, optimized=self.scoring.optimized[number:])
        return other

    def _plan_scores(self) -> None:
        task, settings = self.task, self.task.settings
        self.scoring = scoring_of(self, self.of_class)
        about = f"scales of {type(self.estimator).__name__}"
        task.warn_once(about, lambda: why_scales_mislead(self.estimator, task.data.X))
        check_scores_rows(self)
        # Where each fold is a single row, its score is that of the row.
        self.needs_rows = settings.row_losses and not task.tests_single_rows
        if self.engine.trains_further and not self.searched:
            task.unused.warn(self.estimator, n_epochs=self.given_epochs)

    def _plan_rows(self) -> None:
        """Decide on the rows that the learner needs, and on the responses that scores need."""
        self.layout = layout_for(self.estimator)
        self.steps_name = b""
        if not isinstance(self.front, str):
            self.layout, self.steps_name = self.front.layout, self.front.name
        metrics: list[Metric] = []
        if self.scoring.metrics:
            of_folds = [one for one in self.scoring.metrics if not isinstance(one, Scorer)]
            metrics = [*of_folds, *self.scored_by_row]
        responses = [response_of(one, self.estimator) for one in metrics]
        self.responses = tuple(dict.fromkeys(responses))

    @property
    def book(self) -> Scorebook:
        if self._book is None:
            self._book = Scorebook(self)
        return self._book

    # What is evaluated.

    @cached_property
    def front(self) -> Front | str:
        """The steps of a Pipeline that are done ahead of its learner.

        Or why there are none, a clause; it is empty if the estimator has no steps that could be.
        """
        return self.task.steps.front(self.estimator, self.task.repeats)

    def rows(self, repeat: Repeat | None = None) -> PreparedRows:
        """Return the rows of a repeat, prepared for the learner.

        The rows of the first repeat, which is the default, are kept, so that there is one copy of
        the data. The rows of other repeats are made each time.
        """
        front = self.front
        if isinstance(front, str):
            return self.task.rows_in(self.layout, repeat, are_named=True)
        with front.steps.naming():
            return self.task.rows_in(
                self.layout, repeat, front.steps.transform, front.name, are_named=True
            )

    def learner(
        self,
        rows: PreparedRows,
        responses: tuple[str, ...] = (),
        repeat: Repeat | None = None,
    ) -> Learner:
        """Return the estimator's settings bound to prepared rows.

        A ``random_state=None`` in the estimator becomes the task's seed plus the number of the
        repeat.
        """
        seed = self.task.settings.seed + (0 if repeat is None else repeat.number)
        if isinstance(self.front, str):
            return make_learner(self.estimator, rows, responses, seed)
        return self.front.steps.learner(self.estimator, rows, responses, seed)

    @property
    def method_name(self) -> str:
        """What was done: "holdout" if that was asked for, else the name of the engine."""
        method = self.task.settings.method
        return method if method == "holdout" else self.engine.name

    @property
    def scored_by_row(self) -> Sequence[Metric]:
        """The metrics whose scores of single rows are needed."""
        settings = self.task.settings
        if settings.method == "progressive":
            return self.scoring.metrics
        return (self.scoring.first,) if settings.is_early or settings.row_losses else ()

    @property
    def keeps(self) -> tuple[str, ...]:
        """The responses that outlive the evaluation.

        They are those of ``predict`` and ``predict_proba``, as far as the scores need them, or
        where all outputs are asked for.
        """
        return self.planned("keeps", self._keeps)

    def _keeps(self) -> tuple[str, ...]:
        if not self.task.keeps_outputs or self.method_name == "progressive":
            return ()
        scored = [one.of if isinstance(one, Pooled) else one for one in self.scoring.metrics]
        made = [one for one in scored if isinstance(one, Loss) or one.is_made]
        methods = [response_of(one, self.estimator) for one in made]
        if self.task.keeps_outputs == "all":
            method = "predict" if self.classes is None else "predict_proba"
            methods += [method] * may_have(self.estimator, method)
        return tuple(name for name in ("predict_proba", "predict") if name in methods)

    @property
    def needs_outputs(self) -> bool:
        """Whether scores or their users need what models say of all rows."""
        pools = any(isinstance(one, Pooled) for one in self.scoring.metrics)
        return pools or self.needs_rows or bool(self.keeps)

    @property
    def bytes_kept(self) -> int:
        """The bytes per row that responses take which outlive the evaluation."""
        n_classes = 1 if self.classes is None else len(self.classes)
        each = {"predict": self.task.n_targets, "predict_proba": n_classes}
        return self.task.output_type.itemsize * sum(each[method] for method in self.keeps)

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the responses to the tested rows, repeat after repeat, in the order of the tree.

        Those of ``keeps`` that are known of all repeats; none where a fold has diverged, since its
        score does not follow from them.
        """
        each = self.book.responses if self.is_complete and not self.book.n_diverged else []
        known = [one for one in self.keeps if each and all(one in of_repeat for of_repeat in each)]
        of_all = {one: np.concatenate([of_repeat[one] for of_repeat in each]) for one in known}
        return {
            name: one
            for name, one in of_all.items()
            if one.dtype.kind != "f" or np.isfinite(one).all()
        }

    def as_kept(self, response: np.ndarray, method: str) -> np.ndarray:
        """Return a response in few bytes."""
        kind: Any = self.task.output_type
        if self.classes is not None:
            is_code = method == "predict"
            kind = np.min_scalar_type(-len(self.classes)) if is_code else np.float32
        with np.errstate(over="ignore", invalid="ignore"):
            return response.astype(kind)

    @property
    def why_no_early_report(self) -> str:
        """Why the early reports that were asked for cannot be made, a sentence; "" if they can."""
        settings = self.task.settings
        if settings.is_growing and not self.engine.grows:
            return (
                "report='trees' needs an ensemble that grows tree by tree, but the folds are "
                f"evaluated by method={self.engine.name!r}; report='auto' would be right."
            )
        if not settings.is_early or self.engine.name == "treecv":
            return ""
        return (
            f"report={settings.report!r} needs the tree, in which one training pass tests each "
            f"row before it acts, but the folds are evaluated by method={self.engine.name!r}; "
            "report='folds' or 'mean' would be right."
        )

    def scores_rows(self, metric: Metric) -> bool:
        """Return whether a metric is a mean over rows, whose scores are known row by row."""
        return scores_rows(metric, self.classes)

    @property
    def is_pooled(self) -> bool:
        """Whether the first optimised score is pooled, so that folds have none."""
        return isinstance(self.scoring.first, Pooled)

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The bounds of the first optimised score, where they are known."""
        return None if isinstance(self.scoring.first, Pooled) else range_of(self.scoring.first)

    @property
    def n_parts(self) -> int:
        """The number of parts of all repeats."""
        return sum(len(repeat.parts) for repeat in self.task.repeats)

    def describe(self) -> dict[str, Any]:
        """Return what was evaluated, in words and numbers."""
        return {
            **self.task.describe(),
            "method": self.method_name,
            "key": self.key,
            "fingerprint": self.fingerprint,
            "learner": described(self.estimator),
        }

    def facts(self) -> dict[str, Any]:
        """Return what is equal for all estimators that can be compared with this one."""
        task, scoring = self.task, self.scoring
        facts = {
            "digest": task.digest(scoring),
            "scoring": scoring.name,
            "n_folds": task.n_folds,
            "n_repeats": task.n_repeats,
            "n_updates_standard": self.n_epochs * task.n_updates_standard,
        }
        if len(scoring.names) > 1:
            facts["optimize"] = scoring.optimized_names
        constant = baseline(scoring.first, self.estimator, task.data)
        if constant is None:
            return facts
        return facts | {"baseline": constant[0], "baseline_of": constant[1]}

    # The evaluation.

    def average_models(self, else_right: str) -> None:
        """Ask for the average of the models of all folds; models are not shared then.

        Parameters
        ----------
        else_right : str
            Which argument of the caller would be right where there is none, as in an error.
        """
        self.average, self.cache = self.engine.average(self.estimator, else_right), None

    def ask_for_rows(self) -> bool:
        """Ask for the scores of single rows; return whether the metric has them."""
        self.needs_rows = self.scores_rows(self.scoring.first)
        return self.needs_rows

    def __iter__(self) -> Generator[int]:
        for event in self.events():
            assert isinstance(event, int)  # early scores are not asked for
            yield event

    def events(self, watch: Watch | None = None) -> Generator[Early | Grown | int]:
        """Evaluate the folds; yield early scores if ``watch`` asks for them, and then parts.

        Raises
        ------
        FoldsFailed
            In the end, if the task tries all folds and the optimised score of one is not known.
        """
        self._book, self._efforts, self.errors = None, [], {}
        n_parts = 0
        try:
            for repeat in self.repeats:
                first_watch = watch if repeat.number == 0 else None
                with closing(self._events_of(repeat, first_watch)) as events:
                    for event in events:
                        if isinstance(event, Early | Grown):
                            yield event
                        else:
                            yield n_parts
                            n_parts += 1
            scores = self.book.scores[self.scoring.optimized[0]]
            of_repeats = self.book.pooled[self.scoring.optimized[0], :, 0]
            is_unknown = np.isnan(of_repeats if self.is_pooled else scores).any()
            if self.task.tries_all_folds and (self.errors or is_unknown):
                of_metrics = map(self.fold_scores, range(len(self.scoring.names)))
                raise FoldsFailed(np.array([*of_metrics]), dict(sorted(self.errors.items())))
            if not self.is_pooled and not np.isfinite(scores).all():
                mean, n_diverged = mean_and_std(scores)[0], self.book.n_diverged
                self.task.warn_once(
                    "finite", lambda: why_not_finite(self.estimator, mean, n_diverged)
                )
        finally:
            if isinstance(self.cache, StoredModelCache):
                self.cache.end(self.comes_again)

    def _events_of(
        self, repeat: Repeat, watch: Watch | None
    ) -> Generator[Early | Grown | TestedFolds]:
        """Evaluate one repeat; yield early scores, and the last folds of each part."""
        self.effort = Effort()
        self._efforts.append(self.effort)
        ends = {part.last for part in repeat.parts}
        with closing(self.engine.start(self, repeat, watch)) as events:
            began = perf_counter()
            for event in events:
                if isinstance(event, TestedFolds):
                    self.effort.n_needed += event.n_needed
                    self.book.add(repeat, event)
                self.effort.seconds += perf_counter() - began
                if isinstance(event, Early | Grown):
                    yield event
                elif event.folds.last in ends:
                    yield event
                    self.book.begin_part()
                began = perf_counter()

    def complete(self) -> None:
        """Evaluate all folds."""
        for _ in self.events():
            pass

    def finish(self) -> CVResult:
        """Evaluate all folds, and return the result."""
        self.complete()
        return self.result()

    @property
    def is_complete(self) -> bool:
        return self.book.n_scored == self.task.n_repeats * self.task.n_folds

    @property
    def total(self) -> Effort:
        """What all repeats have taken."""
        each = (vars(effort).values() for effort in self._efforts)
        return Effort(*map(sum, zip(*each, strict=True)))

    def fold_scores(self, number: int) -> np.ndarray:
        """Return the scores of all folds, repeat after repeat; NaN where there is none (yet).

        Parameters
        ----------
        number : int
            That of the metric.
        """
        return self._by_number(self.book.scores[number, : self.book.n_scored])

    def _by_number(self, scored: np.ndarray) -> np.ndarray:
        """Return numbers of the first chunks by fold, repeat after repeat."""
        n_folds = self.task.n_folds
        each = [
            by_number(repeat.cut, scored[repeat.number * n_folds :][:n_folds])
            for repeat in self.task.repeats
        ]
        return each[0] if len(each) == 1 else np.concatenate(each)

    def result(self) -> CVResult:
        """Return the result over the folds scored so far."""
        task, total = self.task, self.total
        names = self.scoring.names
        scores = {name: self._score_of(number) for number, name in enumerate(names)}
        first = scores[self.scoring.name]
        return CVResult(
            test_score=first.test_score,
            mean=first.mean,
            std=first.std,
            scores=scores,
            row_losses=self.book.row_losses() if self.is_complete else None,
            method=self.method_name,
            why=self.why,
            n_folds=task.n_folds,
            n_updates=total.n_updates,
            n_updates_saved=max(0, total.n_needed - total.n_updates),
            n_updates_standard=self.n_epochs * task.n_updates_standard,
            seconds=total.seconds,
            seconds_prepare=total.seconds_prepare,
            diverged_folds=self.book.n_diverged,
            curve=self.curve,
            _name=self.scoring.name,
            _kfold_estimator=(
                self.average.finish() if self.average is not None and self.is_complete else None
            ),
        )

    def _score_of(self, number: int) -> Score:
        """Return what was found by one metric."""
        metric = self.scoring.metrics[number]
        if isinstance(metric, Pooled):
            is_scored = ~np.isnan(self.book.pooled[number, :, 0])
            scores, errors = self.book.pooled[number, is_scored].T
            if len(scores) == 0:  # the job was left before its end
                return Score(scores, np.nan, None, metric.direction)
            error = float(np.mean(errors))
            std_error = None if np.isnan(error) else error
            mean = mean_and_std(scores)[0]
            return Score(scores, mean, None, metric.direction, None, True, std_error)
        scores = self.fold_scores(number)
        if self.book.n_scored < len(scores):
            scores = scores[~np.isnan(scores)]
        if len(scores) == 0:  # the job was left before its first fold
            return Score(scores, np.nan, None, metric.direction)
        mean, std = mean_and_std(scores)
        std = std if len(scores) > 1 else None
        if not self.is_complete:
            return Score(scores, mean, std, metric.direction)
        return Score(scores, mean, std, metric.direction, self._scores_behind(number, scores))

    def _scores_behind(self, number: int, scores: np.ndarray) -> Scores:
        """Return the scores of folds by a metric, and what is known of the rows behind them."""
        metric = self.scoring.metrics[number]
        assert not isinstance(metric, Pooled)
        tested = self.task.tested(self.method_name)
        spreads = None
        if self.book.spreads is not None:
            spreads = self.book.spreads[number]
            if any(cut.numbers is not None for cut in tested.cuts):
                spreads = np.array([self._by_number(of_chunks) for of_chunks in spreads])
            spreads = spreads.reshape(SPREAD_SIZE, -1, tested.n_folds)
        by_fold = scores.reshape(-1, tested.n_folds)
        return Scores(self.scoring.names[number], metric, by_fold, spreads, tested)

    # Other uses of the folds.

    def predict(self, response_method: str, argument: str = "response_method") -> np.ndarray:
        """Return the out-of-fold responses, in the order of the rows as given.

        Parameters
        ----------
        response_method : str
        argument : str
            What the caller calls ``response_method``.
        """
        check_choice(argument, response_method, RESPONSE_METHODS)
        if self.engine.name == "progressive":
            raise ValueError(
                "method must not be 'progressive' for predictions, since its first eighth of the "
                "rows is only trained on; 'auto' would be right."
            )
        check_methods(self.estimator, response_method, f"{argument}={response_method!r}")
        repeats = self.repeats
        cut = repeats[0].cut
        if not isinstance(cut, Folds) or cut.n_tested < cut.n_rows or len(repeats) > 1:
            raise ValueError(
                "cv must be a splitter whose test sets hold every row once, and n_repeats must be "
                "1, since each row gets one prediction, got folds that leave rows untested or "
                "test them several times."
            )
        if self.engine.trains_further:
            self.task.unused.warn(self.estimator, n_epochs=self.given_epochs)
        return self.engine.predict(self, repeats[0], response_method)

    def refit(self) -> Any:
        """Return the estimator fitted on all rows, with its parameters as given.

        An engine that trains models further reads the rows in prepared order, and in further
        epochs in random orders.
        """
        return self.engine.refit(self)
