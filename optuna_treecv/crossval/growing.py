"""The engines "boosting" and "bagging": ensembles of other libraries that grow tree by tree.

The first trees of an ensemble are the ensemble that a fit with fewer trees makes. So one growth
per fold tells the scores for all numbers of trees, and a trial can be left while its trees grow.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from functools import cached_property
from itertools import takewhile
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from optuna_treecv.crossval.curves import Curve
from optuna_treecv.crossval.engine import cost_of_trainings
from optuna_treecv.crossval.engine import Grown
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import RowScores
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.fit import FIT
from optuna_treecv.crossval.fit import fold_task_of
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.whole_repeat import RepeatScores
from optuna_treecv.crossval.whole_repeat import why_not_scored
from optuna_treecv.crossval.whole_repeat import WholeRepeat
from optuna_treecv.learners.adapter import in_columns
from optuna_treecv.learners.growing.growth import Growth
from optuna_treecv.learners.growing.growth import kind_of
from optuna_treecv.learners.growing.growth import Prepared
from optuna_treecv.learners.growing.growth import Taken
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.learners.steps.parts import foreign_code
from optuna_treecv.learners.steps.parts import is_passed
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.data import predicted_codes
from optuna_treecv.rows.data import without_single_column
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import first_key
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

# After so many trees reports are due; at most 16 numbers, each at most 1.5 times the one before.
_BLOCKS = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536]

# The reports while the first fold grows, and the most reports of further folds.
LEAD_STEPS = len(_BLOCKS) + 1
_MOST_REPORTS = 32 - LEAD_STEPS


class Taking(BaseEstimator):
    """The last step of a Pipeline in place of an ensemble: keeps what it would be fitted on."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "Taking":
        """Keep the rows."""
        self.taken_ = X, y, sample_weight
        return self


@dataclass
class Fold:
    """The ensemble of one fold, and its scores after some of its trees.

    Attributes
    ----------
    growth : Growth or None
        None: it has not begun.
    scores : dict of int to FoldScores
        By the number of trees.
    """

    growth: Growth | None = None
    scores: dict[int, FoldScores] = field(default_factory=dict)


class Growing(WholeRepeat):
    """One growth per fold for all numbers of trees."""

    grows = True
    methods: tuple[str, ...]
    reason = "one growth per fold tells the scores of all numbers of trees"
    why_one_epoch = "its trees grow once"

    def __init__(self, name: str, are_boosted: bool) -> None:
        self.name = name
        self.methods = "auto", "holdout", name
        self._are_boosted = are_boosted

    def why_not(self, job: Job) -> str:
        """Return why an estimator does not grow here, a clause."""
        task, data = job.task, job.task.data
        *_, last = divided(job.estimator)
        kind = kind_of(last)
        if kind is None or kind.is_boosted != self._are_boosted:
            return f"{type(last).__name__} does not grow tree by tree"
        size = getattr(last, kind.size)
        if not is_integer(size) or size < 1:
            return f"{kind.size} is no positive integer"
        if why := kind.why_not(last) or job.metadata.why_not_by_sums(job.estimator):
            return why
        if data.y is None or data.y.ndim > 1:
            return "y has several columns" if data.y is not None else "y is missing"
        if is_classifier(last) and task.fewest_trained(of_classes=True)[1] == 0:
            return "a training set lacks a class"
        return why_not_scored(job)

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error."""
        return (
            f"method={self.name!r} must have an ensemble whose trees grow one after another, alone "
            f"or at the end of a Pipeline, but {why_not}; method='auto' would be right."
        )

    def why_in_memory(self, job: Job) -> str:
        """Return why all rows must be in memory."""
        return "its library takes them as arrays"

    def check(self, job: Job) -> None:
        """Leave wrong parameters to the library."""

    def parts(self, job: Job) -> Sequence[Any]:
        """Return the estimator, with all its seeds."""
        return [seeded(clone(job.estimator), _seed_of(job, job.repeats[0]))]

    def point(self, job: Job, repeat: Repeat) -> Any:
        """Return what else the scores depend on."""
        return job.task.settings.n_estimators, _seed_of(job, repeat)

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[Grown | TestedFolds]:
        """Grow the trees of the folds, unless the scores are kept."""
        scores = self.find(job, repeat)
        if scores is None:
            growing = GrowingFolds(self, job, repeat)
            yield from growing.events(watch)
            scores = growing.scored()
        yield from self.events(job, repeat, scores)

    def is_kept(self, job: Job) -> bool:
        """Return whether the scores are kept."""
        return self.find(job, job.repeats[0]) is not None

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the fits of the folds."""
        return FIT.predict(job, repeat, method)

    def refit(self, job: Job) -> Any:
        """Fit the estimator on all rows as they were given."""
        return FIT.refit(job)

    def cost(self, job: Job) -> str:
        """Return the number of growths and of their rows."""
        return cost_of_trainings(job, "growths")


def divided(estimator: Any) -> tuple[str, Any]:
    """Return the prefix of the parameters of the last step of a Pipeline, and this step."""
    prefix, last = "", estimator
    while type(last) is Pipeline:
        name, last = last.steps[-1]
        prefix += f"{name}__"
    return prefix, last


def _seed_of(job: Job, repeat: Repeat) -> int:
    return (job.task.settings.seed + repeat.number) % 2**32


class GrowingFolds:
    """The ensembles of one evaluation of a repeat.

    Parameters
    ----------
    engine : Growing
    job : Job
    repeat : Repeat
    """

    def __init__(self, engine: Growing, job: Job, repeat: Repeat) -> None:
        self._engine, self._job, self._repeat = engine, job, repeat
        self._cut = repeat.cut
        self._fold_task = fold_task_of(job, repeat)
        _, last = divided(self._fold_task.estimator)
        kind = kind_of(last)
        assert kind is not None
        self._kind = kind
        self._is_best = job.task.settings.n_estimators == "best"
        self._most: int = getattr(last, kind.size)
        self._patience = kind.patience(last) if self._is_best else None
        self._last = kind.without_patience(last) if self._is_best else last
        self._sign = 1.0 if job.scoring.first.direction == "minimize" else -1.0
        responses = [response_of(one, job.estimator) for one in job.scoring.metrics]
        self._methods = list(dict.fromkeys([*responses, *job.keeps]))
        self._folds = [Fold() for _ in range(repeat.cut.n_folds)]
        self._ends = [*takewhile(lambda end: end < self._most, _BLOCKS), self._most]
        self._curve: Curve | None = None
        self._n_begun = 0

    def events(self, watch: Watch | None) -> Generator[Grown]:
        """Grow the trees of all folds; where a watch asks, those of the first fold come first."""
        n_folds = self._cut.n_folds
        if watch is None:
            self._grow_together(n_folds)
            return
        for step, end in enumerate(self._ends):
            self._grow([0], end)
            curve = self._note(1, end)
            n_left = 0 if curve.has_ended(self._patience) else self._most - end
            rows = self._row_scores(end) if watch.takes_rows else None
            yield Grown(step, curve.value, end, 1, n_left, rows)
            if n_left == 0:
                break
        n_reports = min(_MOST_REPORTS, n_folds - 1)
        groups = np.linspace(1, n_folds, n_reports + 1).astype(int).tolist()[1:]
        for step, n_grown in enumerate(groups):
            curve = self._grow_together(n_grown)
            yield Grown(LEAD_STEPS + step, curve.value, int(curve.n_trees[-1]), n_grown)

    def _grow_together(self, n_folds: int) -> Curve:
        """Grow the first folds until the mean of their curves ends."""
        n_threads = self._job.task.settings.n_threads
        # Each thread takes a fold; those that are ahead are needed soon.
        n_ahead = min(max(n_folds, self._n_begun + n_threads), self._cut.n_folds)
        known = self._most if self._curve is None else int(self._curve.n_trees[-1])
        ends = self._ends if self._patience is not None else [self._most]
        for end in ends:
            self._grow(range(n_ahead if end <= known else n_folds), end)
            curve = self._note(n_folds, end)
            if curve.has_ended(self._patience):
                break
        self._n_begun = n_ahead
        return curve

    def _grow(self, chunks: Iterable[int], end: int) -> None:
        """Grow the ensembles of some folds to so many trees, in threads."""
        left = [one for one in chunks if end not in self._folds[one].scores]
        for chunk in left:
            growth, n_trained = self._folds[chunk].growth, len(self._cut.split(chunk).train_rows())
            n_before = 0 if growth is None else growth.n_trees
            done = n_trained * end // self._most - n_trained * n_before // self._most
            self._job.effort.n_updates += done
        n_threads = min(self._job.task.settings.n_threads, len(left))
        if n_threads < 2:
            for chunk in left:
                self._grow_one(end, chunk)
            return
        with ThreadPoolExecutor(n_threads) as threads:
            list(threads.map(partial(self._grow_one, end), left))

    def _grow_one(self, end: int, chunk: int) -> None:
        """Grow the ensemble of one fold, and score it after each tree, or after the last one."""
        fold = self._folds[chunk]
        take = partial(self._take, chunk)
        with foreign_code():
            if fold.growth is None:
                prepared = self._prepared(chunk, take)
                fold.growth = self._kind(self._last, prepared, take)
            for n_trees in fold.growth.grow(end):
                if self._is_best or n_trees == end:
                    scores = self._job.book.scores_of(self._tested(chunk, n_trees))
                    fold.scores[n_trees] = scores

    def _prepared(self, chunk: int, take: Callable[[], Taken]) -> Any:
        """Return what ensembles share of the rows of a fold, made if it is not kept."""
        memory, kind = self._job.task.shared.memory, self._kind

        def kept(name: Any, make: Callable[[], Any]) -> Any:
            try:
                key = digest(self._name, encode((chunk, name)))
            except NoKey:
                return make()
            found = None if memory is None else memory.find(key)
            if found is None:
                began, found = perf_counter(), make()
                if memory is not None and found is not None:
                    memory.keep(key, found, perf_counter() - began)
            return found

        facts = kept("facts", lambda: kind.facts(take()))
        settings = kind.settings(self._last, facts)
        prepared: Prepared = kept(settings, lambda: kind.prepare(self._last, settings, take()))
        return prepared.rows

    @cached_property
    def _name(self) -> bytes:
        """The name of the rows, the folds and the steps before the ensemble."""
        job, repeat = self._job, self._repeat
        folds = job.task.fact(
            ("folds", repeat.number), lambda: digest(repeat.key, repeat.cut.order.tobytes())
        )
        steps = clone(self._fold_task.estimator)
        if isinstance(steps, Pipeline):
            steps.set_params(**{divided(steps)[0].removesuffix("__"): None})
        names = self._kind.__name__.encode(), first_key(steps, encode, lasting_key)
        return digest(job.task.data_name()[0], folds, *names)

    def _take(self, chunk: int) -> Taken:
        """Return the rows of a fold after the steps before the ensemble."""
        estimator = clone(self._fold_task.estimator)
        if not isinstance(estimator, Pipeline):
            estimator = Taking()
        else:
            estimator.set_params(**{divided(estimator)[0].removesuffix("__"): Taking()})
        train, test = self._cut.split(chunk).train_rows(), self._cut.tested_from(chunk, chunk + 1)
        folds = replace(self._fold_task, estimator=estimator)
        fitted, X, _ = folds.fitted(b"", train, test)
        while isinstance(fitted, Pipeline):
            for _, step in fitted.steps[:-1]:
                X = X if is_passed(step) else step.transform(X)
            fitted = fitted.steps[-1][1]
        return Taken(*fitted.taken_, X, self._job.classes)

    def _tested(self, chunk: int, n_trees: int) -> TestedRows:
        """Return the test rows of a fold, with what its first trees say of them."""
        data, classes = self._job.task.data, self._job.classes
        rows = self._cut.tested_from(chunk, chunk + 1)
        targets = as_numbers(data.y)[rows] if classes is None else as_codes(data.y, classes)[rows]
        weights = None if data.score_weights is None else data.score_weights[rows]
        growth, columns = self._folds[chunk].growth, []
        assert growth is not None
        for method in self._methods:
            said = without_single_column(growth.respond(method, n_trees))
            if method == "predict" and classes is not None:
                said = predicted_codes(said, classes)
            columns.append(in_columns(said, method, self._job.estimator, classes, 1))
        outputs = np.hstack(columns, dtype=np.float64)
        ends = np.cumsum([one.shape[1] for one in columns])

        def respond(outputs: np.ndarray, method: str) -> np.ndarray:
            said = np.split(outputs, ends, axis=1)[self._methods.index(method)]
            return said[:, 0] if said.shape[1] == 1 else said

        return TestedRows(outputs, respond, targets, weights, np.zeros(1, np.intp))

    def _note(self, n_folds: int, end: int) -> Curve:
        """Take note of the mean scores of the first folds, and return them."""
        sizes = np.arange(1, end + 1) if self._is_best else np.array([end])
        first = self._job.scoring.optimized[0]
        folds = self._folds[:n_folds]
        scores = [[one.scores[size].scores[first, 0] for size in sizes.tolist()] for one in folds]
        self._curve = Curve.of(np.array(scores), sizes, self._sign, self._patience)
        self._job.curve = self._curve
        return self._curve

    def _row_scores(self, n_trees: int) -> RowScores:
        """Return the scores of the test rows of the first fold."""
        tested = self._tested(0, n_trees)
        scores = RowScores(len(tested), tested.weights is not None)
        scores.add(self._job.book.row_scores_of(tested), tested.weights)
        return scores

    def scored(self) -> RepeatScores:
        """Return the scores of all folds at the number of trees that counts."""
        job, scores = self._job, self._engine.new_scores(self._job, self._repeat)
        assert self._curve is not None
        n_trees = self._curve.best
        begins = self._cut.begins() - self._cut.begins()[0]
        of_all = []
        for chunk in range(self._cut.n_folds):
            folds, tested = slice(chunk, chunk + 1), slice(*begins[chunk : chunk + 2])
            if job.needs_outputs or n_trees not in self._folds[chunk].scores:
                rows = self._tested(chunk, n_trees)
                of_all.append(rows)
                self._engine.score(job, scores, rows, folds, tested)
            else:
                scores.fill(self._folds[chunk].scores[n_trees], folds)
        if any(isinstance(one, Pooled) for one in job.scoring.metrics):
            scores.pooled[:] = job.book.pooled_of(_one_after_another(of_all))
        scores.needed[0], scores.n_updates = self._cut.n_trained, job.effort.n_updates
        return scores


def _one_after_another(folds: Sequence[TestedRows]) -> TestedRows:
    """Return the tested rows of all folds."""

    def together(parts: Sequence[Any]) -> Any:
        return None if parts[0] is None else np.concatenate(parts)

    return TestedRows(
        together([one.outputs for one in folds]),
        folds[0].respond,
        together([one.targets for one in folds]),
        together([one.weights for one in folds]),
        np.cumsum([0, *map(len, folds[:-1])]),
    )


#: Each tree is grown on what those before it have left, or on rows of its own.
BOOSTING, BAGGING = Growing("boosting", True), Growing("bagging", False)
