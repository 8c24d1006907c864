"""The engine "forest": the trees of all folds, and that of all rows, grown together.

A grown forest answers all settings that only stop or prune, so the trials of a study share it.
"""

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import clone

from optuna_treecv.crossval.engine import cost_of_trainings
from optuna_treecv.crossval.engine import in_given_order
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.settings import warn_caller
from optuna_treecv.crossval.task import Task
from optuna_treecv.crossval.whole_repeat import WholeRepeat
from optuna_treecv.crossval.whole_repeat import why_not_scored
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.learners.trees.estimators import HistTreeClassifier
from optuna_treecv.learners.trees.estimators import SHARED_PARAMETERS
from optuna_treecv.learners.trees.estimators import shares_of
from optuna_treecv.learners.trees.forest import BinnedRows
from optuna_treecv.learners.trees.forest import Forest as Trees
from optuna_treecv.learners.trees.forest import grow_forest
from optuna_treecv.learners.trees.forest import Limits
from optuna_treecv.learners.trees.forest import NO_LIMIT
from optuna_treecv.rows.bins import which_are_categorical
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.sharing.keys import Key


class Forest(WholeRepeat):
    """Trees of all folds, grown together."""

    name = "forest"
    methods: tuple[str, ...] = ("auto", "holdout", "forest")
    reason = "the trees of all folds are grown together"
    why_one_epoch = "its trees are grown from all rows at once"

    def concerns(self, estimator: Any) -> bool:
        """Return whether it is a decision tree of this package."""
        return isinstance(last_step(estimator), HistTree)

    def why_not(self, job: Job) -> str:
        """Return why an estimator's trees are not grown together, a clause."""
        cut, estimator = job.task.repeats[0].cut, job.estimator
        if not isinstance(estimator, HistTree):
            return f"{name_of(estimator)} is neither a HistTreeClassifier nor a HistTreeRegressor"
        if not isinstance(cut, Folds):
            why = cut.why_no_tree or "the training sets of its folds grow"
            return f"the folds must be a partition of the rows: {why}"
        if cut.n_tested == cut.n_folds:
            return "each node would be searched once per row that is left out"
        return job.metadata.why_not_by_sums(estimator) or why_not_scored(job)

    def why_in_memory(self, job: Job) -> str:
        """Return why all rows must be in memory."""
        return "trees grow on all rows at once"

    def free_parameters(self, job: Job) -> Collection[str]:
        """Return all parameters of an estimator that is no tree."""
        return () if isinstance(job.estimator, HistTree) else job.estimator.get_params()

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error."""
        return (
            f"method={job.task.settings.method!r} must have a HistTreeClassifier or a "
            "HistTreeRegressor, and folds of several rows each that are a partition of the rows, "
            f"but {why_not}; method='fit' would be right."
        )

    def check(self, job: Job) -> None:
        """Refuse wrong parameters."""
        job.estimator.check_parameters(but=job.searched)

    def parts(self, job: Job) -> Sequence[Any]:
        """Return the estimator without the parameters that a forest answers."""
        return [clone(job.estimator).set_params(**dict.fromkeys(SHARED_PARAMETERS))]

    def point(self, job: Job, repeat: Repeat) -> Any:
        """Return the values of these parameters, and the seed where the estimator has none."""
        has_seed = job.estimator.random_state is not None
        seed = None if has_seed else job.task.settings.seed + repeat.number
        return *Limits.of(job.estimator), seed

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[TestedFolds]:
        """Find kept scores, or a forest that answers, or grow one."""
        scores = self.find(job, repeat)
        if scores is not None and self._is_together:
            return self.events(job, repeat, scores)
        rows, job.effort.seconds_prepare = rows_of(job.task, job.estimator, repeat)
        return self._grown(job, repeat, rows)

    _is_together = True

    def _grown(self, job: Job, repeat: Repeat, rows: BinnedRows) -> Generator[TestedFolds]:
        """Score the trees under the estimator's settings."""
        limits, n_standard = Limits.of(job.estimator), repeat.cut.n_trained
        scores = self.new_scores(job, repeat)
        if self._is_together:
            forest, is_new = _forest_for(job, repeat, rows)
            scores.needed[0] = round(forest.share_read * n_standard)
        else:
            growth = job.estimator.growth(rows)
            folds, n_threads = range(growth.n_folds), job.task.settings.n_threads
            forest, is_new = grow_forest(growth, limits, folds, False, n_threads), True
            scores.needed[0] = n_standard
        job.effort.n_updates = int(scores.needed[0]) if is_new else 0
        first = int(rows.bounds[0])
        tested = TestedRows.of(
            rows,
            slice(first, None),
            np.zeros((len(rows.targets) - first, 1)),  # trees are finite
            lambda _, method: respond(forest, forest.ends(limits)[1], method),
            rows.bounds[:-1] - first,
        )
        self.score(job, scores, tested, slice(None), slice(None))
        scores.pooled[:] = job.book.pooled_of(tested)
        yield from self.events(job, repeat, scores, self._is_together)

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the trees of the folds."""
        rows, _ = rows_of(job.task, job.estimator, repeat)
        limits = Limits.of(job.estimator)
        growth = job.estimator.growth(rows)
        n_threads = job.task.settings.n_threads
        forest = grow_forest(growth, limits, range(growth.n_folds), n_jobs=n_threads)
        prepared = respond(forest, forest.ends(limits)[1], method)
        labels = rows.classes if method == "predict" else None
        return in_given_order(prepared, repeat.cut.order, labels)

    def refit(self, job: Job) -> Any:
        """Return the tree of all rows, from the forest that its trials share."""
        task, fitted = job.task, clone(job.estimator)
        rows, _ = rows_of(task, fitted, task.repeats[0])
        fitted.take_tree(forest_of(job), rows.binning, rows.classes)
        names = task.data.feature_names()
        if names is not None:
            fitted.feature_names_in_ = names
        return fitted

    def cost(self, job: Job) -> str:
        """Return what is grown, and which values are nearly free."""
        folds = job.task.folds_in_words
        return (
            f"{folds[0].upper()}{folds[1:]} of {job.task.data.n_rows:,} rows and the tree of all "
            "rows are grown at once; further values of max_depth, min_samples_split, "
            "min_impurity_decrease and ccp_alpha are nearly free."
        )


FOREST = Forest()


class ForestOneByOne(Forest):
    """Trees of all folds, each grown alone, for comparison."""

    name = "standard"
    methods = ("standard",)
    _is_together = False

    def cost(self, job: Job) -> str:
        """Return the number of trees and of their rows."""
        return cost_of_trainings(job, "trainings of one pass")


def rows_of(task: Task, estimator: HistTree, repeat: Repeat) -> tuple[BinnedRows, float]:
    """Return the rows of a repeat, and the seconds that took.

    Of the first repeat, those asked for last are kept.
    """
    if repeat.number > 0:
        return _prepare(task, estimator, repeat)
    columns = which_are_categorical(task.data.X, estimator.categorical_features)
    name = type(estimator), estimator.max_bins, columns.tobytes()
    with task.growing:
        if name not in task.binned:
            task.binned.clear()
            task.binned[name] = _prepare(task, estimator, repeat)
        return task.binned[name]


def _prepare(task: Task, estimator: HistTree, repeat: Repeat) -> tuple[BinnedRows, float]:
    began = perf_counter()
    data, order = task.data, repeat.cut.order
    classes = data.classes() if isinstance(estimator, HistTreeClassifier) else None
    assert data.y is not None  # checked with the scoring
    targets = as_numbers(data.y) if classes is None else as_codes(data.y, classes)
    for code, label in enumerate(() if classes is None else classes.tolist()):
        n_trained, _ = repeat.cut.count(targets == code)
        if np.any(n_trained == 0):
            fold = repeat.cut.number(int(np.argmin(n_trained)))
            warn_caller(
                f"The training rows of fold {fold} have no row of class {label!r}, so its tree "
                "never predicts it; stratified folds would be right."
            )
            break
    deciding = None if data.weights is None else np.flatnonzero(data.weights > 0)
    table, binning = estimator.find_bins(data.X, deciding)
    weights, score_weights = (
        None if one is None else one[order] for one in (data.weights, data.score_weights)
    )
    seed = (task.settings.seed + repeat.number) % 2**63
    assert isinstance(repeat.cut, Folds)  # the engine has checked it
    rows = BinnedRows(
        binning.bins(table, order),
        binning,
        targets[order],
        classes,
        repeat.cut.begins(),
        weights,
        score_weights,
        seed,
    )
    return rows, perf_counter() - began


def _forest_for(job: Job, repeat: Repeat, rows: BinnedRows) -> tuple[Trees, bool]:
    """Return a forest that answers an estimator's settings, and whether it was grown now."""
    task, estimator = job.task, job.estimator
    growth = estimator.growth(rows)
    of_estimator = Limits.of(estimator)
    of_sums = FOREST.kept(job, repeat).of_sums
    cache = task.shared.memory if of_sums else None
    key = Key(of_sums, b"", b"", b"forest %d" % growth.seed)
    with task.growing:
        kept_forest: Trees | None = None if cache is None else cache.find(key)
        if kept_forest is not None and kept_forest.covers(of_estimator):
            return kept_forest, False
        limits = _mild_limits(of_estimator, task.searched, kept_forest)
        began = perf_counter()
        n_threads = task.settings.n_threads
        forest = grow_forest(growth, limits, range(growth.n_folds), n_jobs=n_threads)
        if cache is not None:  # a forest is large and soon grown again, so no store keeps it
            cache.forget(key)
            cache.keep(key, forest, perf_counter() - began)
    return forest, True


def _mild_limits(limits: Limits, searched: Mapping[str, Any], kept_forest: Trees | None) -> Limits:
    """Return limits that cover an estimator's, and all others that a search may ask for.

    Parameters
    ----------
    limits : Limits
    searched : dict
        By parameter, the values at the ends of the search.
    kept_forest : Forest or None
        One that did not suffice: the limits cover it too, and leave room.
    """
    depths = [limits.max_depth, *searched.get("max_depth", ())]
    splits = [limits.min_samples_split, *searched.get("min_samples_split", ())]
    decreases = [limits.min_impurity_decrease, *searched.get("min_impurity_decrease", ())]
    deepest = max(NO_LIMIT if depth is None else min(depth, NO_LIMIT) for depth in depths)
    counts = [one for one in splits if not isinstance(one, float)]
    # A share cannot be compared with a number of rows: then all nodes of two rows may be split.
    least = min(splits) if len(counts) in (0, len(splits)) else 2
    if kept_forest is None:
        return Limits(deepest, least, min(decreases))
    depth, _, decrease = kept_forest.numbers[:3].tolist()
    most = int(depth) if deepest <= depth else min(2 * deepest, NO_LIMIT)
    return Limits(most, 2, 0.0 if min(decreases) < decrease else decrease)


def respond(forest: Trees, leaves: np.ndarray, method: str) -> np.ndarray:
    """Return the response of the rows of all folds; "predict" gives class codes."""
    if method == "predict":
        says = forest.codes[leaves] if forest.n_classes else forest.values(leaves)
        return forest.by_row(leaves, says)
    shares = shares_of(forest.values(leaves))
    if method == "predict_log_proba":
        with np.errstate(divide="ignore"):
            shares = np.log(shares)
    return forest.by_row(leaves, shares)


def forest_of(job: Job) -> Trees:
    """Return the forest of an estimator's trials in the first repeat."""
    repeat = job.task.repeats[0]
    rows, _ = rows_of(job.task, job.estimator, repeat)
    return _forest_for(job, repeat, rows)[0]
