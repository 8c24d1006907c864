"""The engines "boosting" and "bagging": ensembles of other libraries that grow tree by tree.

The first trees of an ensemble are the ensemble that a fit with fewer trees makes. So one growth
per fold tells the scores for all numbers of trees, and a trial can be left while its trees grow.
"""

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.crossval.engine import cost_of_trainings
from optuna_treecv.crossval.engine import Grown
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.fit import FIT
from optuna_treecv.crossval.growing_folds import divided
from optuna_treecv.crossval.growing_folds import GrowingFolds
from optuna_treecv.crossval.growing_folds import seed_of
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.whole_repeat import RepeatScores
from optuna_treecv.crossval.whole_repeat import WholeRepeat
from optuna_treecv.crossval.whole_repeat import why_not_scored
from optuna_treecv.learners.growing.growth import kind_of
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.scoring.metrics import Pooled


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

    def concerns(self, estimator: Any) -> bool:
        """Return whether it is an ensemble that could grow."""
        kind = kind_of(divided(estimator)[1])
        return kind is not None and kind.is_boosted == self._are_boosted

    def why_not(self, job: Job) -> str:
        """Return why an estimator does not grow here, a clause."""
        task, data = job.task, job.task.data
        *_, last = divided(job.estimator)
        kind = kind_of(last)
        if kind is None or not self.concerns(last):
            return f"{type(last).__name__} does not grow tree by tree"
        size = kind.n_trees_of(last)
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
            f"method={self.name!r} must have an ensemble that grows tree by tree, alone or at "
            f"the end of a Pipeline, but {why_not}; method='auto' would be right."
        )

    def why_in_memory(self, job: Job) -> str:
        """Return why all rows must be in memory."""
        return "its library takes them as arrays"

    def check(self, job: Job) -> None:
        """Refuse early stopping on rows that there are not; the library refuses the rest."""
        prefix, last = divided(job.estimator)
        kind, is_best = kind_of(last), job.task.settings.n_estimators is not None
        if kind is not None and not is_best and (patience := kind.patience(last)):
            raise ValueError(
                f"n_estimators must be 'best' for {name_of(last)} that stops after {patience} "
                "trees without a better score, since it is the mean score of the folds that "
                "decides then, and fit would need further rows; got None."
            )
        if job.task.settings.truncate:
            self._check_truncated(job, prefix, last)
        if is_best and (job.task.n_repeats > 1 or self._pools(job)):
            given = "a pooled score" if self._pools(job) else f"{job.task.n_repeats} repeats"
            raise ValueError(
                "n_estimators='best' needs one repeat and a score of each fold, since it takes "
                f"the best mean over the folds, got {given}."
            )

    def _check_truncated(self, job: Job, prefix: str, last: Any) -> None:
        """Refuse cuts at a depth where trees of this depth would differ by more than chance."""
        kind, searched = kind_of(last), job.task.searched
        if kind is None or kind.is_boosted or f"{prefix}max_depth" not in searched:
            raise ValueError(
                "truncate must be False unless max_depth of a forest is searched, got True for "
                f"{name_of(job.estimator)}."
            )
        for name in ("max_leaf_nodes", "ccp_alpha"):
            if getattr(last, name) or prefix + name in searched:
                raise ValueError(
                    f"truncate must be False where {name} is given or searched, since it gives "
                    "trees of less depth that cuts of deeper ones are not; got True."
                )

    def _pools(self, job: Job) -> bool:
        scoring = job.task.settings.scored_by
        return scoring is not None and isinstance(scoring.first, Pooled)

    def free_parameters(self, job: Job) -> Collection[str]:
        """Return all parameters of an estimator of another kind, whose class alone decides."""
        *_, last = divided(job.estimator)
        return () if kind_of(last) else job.estimator.get_params(deep=True)

    def parts(self, job: Job) -> Sequence[Any]:
        """Return the estimator, with all its seeds."""
        return [seeded(clone(job.estimator), seed_of(job, job.repeats[0]))]

    def point(self, job: Job, repeat: Repeat) -> Any:
        """Return what else the scores depend on."""
        settings = job.task.settings
        return settings.n_estimators, settings.truncate, seed_of(job, repeat)

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[Grown | TestedFolds]:
        """Grow the trees of the folds, unless the scores are kept.

        Where "auto" has chosen this and the library refuses something, the folds are fitted, so
        that errors are those of ``fit``.
        """
        scores, n_done = self.find(job, repeat), 0
        if scores is None:
            growing = GrowingFolds(self, job, repeat)
            try:
                with closing(growing):
                    if watch is not None:
                        yield from growing.events(watch)
                    scores = self.new_scores(job, repeat)
                    scores.needed[0] = repeat.cut.n_trained
                    for event in self.events(job, repeat, scores, fill=growing.fill):
                        n_done = event.folds.last
                        yield event
            except ValueError as error:
                if not job.why or job.task.settings.n_estimators is not None:
                    raise
                job.curve = None
                for event in FIT.start(job, repeat):
                    if event.folds.last > n_done:  # the others are scored already
                        yield event
                job.engine, job.why = FIT, f"growing its trees has failed: {error}"
                return
        else:
            yield from self.events(job, repeat, scores)
        kept, memory = self.kept(job, repeat), job.task.shared.memory
        if memory is not None and kept.settings and not scores.was_kept:
            for method, response in scores.responses.items():
                memory.keep((kept.settings, method), response, job.effort.seconds)

    def find(self, job: Job, repeat: Repeat) -> RepeatScores | None:
        """Return the scores if they are kept; for the best number of trees, those of folds are."""
        scores, kept = super().find(job, repeat), self.kept(job, repeat)
        if job.task.settings.n_estimators is not None:
            return None
        if scores is not None and (memory := job.task.shared.memory) is not None:
            each = {method: memory.find((kept.settings, method)) for method in job.keeps}
            scores.responses = {method: one for method, one in each.items() if one is not None}
        return scores

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


#: Each tree is grown on what those before it have left, or on rows of its own.
BOOSTING, BAGGING = Growing("boosting", True), Growing("bagging", False)
