"""The engine "neighbors": one search for the neighbours of all test rows serves many settings."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline

from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.exact import Exact
from optuna_treecv.crossval.fit import fold_task_of
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.whole_repeat import why_not_scored
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.neighbors import NeighborFolds
from optuna_treecv.learners.seeds import unset_seeds
from optuna_treecv.learners.steps.decisions import BY_FIT
from optuna_treecv.learners.steps.decisions import why_not_rowwise
from optuna_treecv.learners.steps.parts import foreign_code
from optuna_treecv.learners.steps.parts import is_passed
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.scoring.metrics import response_of

# The neighbours that are searched for at least where a callable suggests their number.
_MOST_BEFORE = 31


class Neighbors(Exact):
    """One search per fold for all values of ``n_neighbors`` and ``weights``."""

    name = "neighbors"
    methods = ("auto", "holdout", "neighbors")
    lost = "a prediction is not finite"
    refused = "one search does not serve its folds"
    reason = "one search for neighbours serves all values of n_neighbors and weights"
    why_one_epoch = "its models are the training rows, which more passes do not change"
    families = {KNeighborsClassifier: NeighborFolds, KNeighborsRegressor: NeighborFolds}
    foreign = "{} does not search for nearest neighbours"
    models = BY_FIT

    def why_not(self, job: Job) -> str:
        """Return why the neighbours of an estimator are not searched for once, a clause."""
        estimator, data = job.estimator, job.task.data
        parts = self._divide(estimator)
        if isinstance(parts, str):
            return parts
        if job.metadata.weights is not None or job.metadata.others:
            return f"{type(parts.last).__name__} takes no weights and no further arguments"
        if data.y is None or data.y.dtype.kind not in "biufUSO":
            return "y is missing"
        if isinstance(parts.last, KNeighborsRegressor) and data.y.dtype.kind not in "biuf":
            return "y holds no numbers"
        return NeighborFolds.why_not(parts.last) or why_not_scored(job)

    def _divide(self, estimator: Any) -> Parts | str:
        """Return the parts of an estimator; its steps may be any, and are fitted by fold."""
        steps, last, prefix = [], estimator, ""
        while type(last) is Pipeline:
            *before, (name, last) = last.steps
            steps += [step for _, step in before if not is_passed(step)]
            prefix += f"{name}__"
        if type(last) not in self.families:
            return self.foreign.format(type(last).__name__)
        return Parts(tuple(steps), None, last, NeighborFolds, prefix, {})

    def why_in_memory(self, job: Job) -> str:
        """Return why all rows must be in memory."""
        return "neighbours are searched among all rows"

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error."""
        return (
            "method='neighbors' must have a KNeighborsClassifier or a KNeighborsRegressor, alone "
            f"or at the end of a Pipeline, but {why_not}; method='auto' would be right."
        )

    def point(self, job: Job, repeat: Repeat) -> Any:
        """Return the values of the point's parameters, and the seed of steps that lack one."""
        point, seed = super().point(job, repeat), _seed_of(job, repeat)
        return point if seed is None else (point, seed)

    def check(self, job: Job) -> None:
        """Leave wrong parameters to the fits of the folds."""

    def _rows(self, job: Job, repeat: Repeat) -> PreparedRows:
        """Return the targets in prepared order; the rows stay as they were given."""
        target = "number" if job.classes is None else "class"

        def numbers(X: Any) -> np.ndarray:
            return np.arange(job.task.data.n_rows, dtype=np.float64)[:, None]

        return job.task.rows_in(RowLayout(target=target), repeat, numbers, b"numbers of rows")

    def _bind(
        self, job: Job, repeat: Repeat, rows: PreparedRows, points: Sequence[Any], method: str = ""
    ) -> NeighborFolds:
        """Return estimators bound to the rows as given."""
        task, cut, parts = job.task, repeat.cut, self._parts(job)
        folds = fold_task_of(job, repeat)
        at = {repr({name: getattr(parts.last, name) for name in parts.names}): folds.estimator}

        def fit(chunk: int | None, point: Mapping[str, Any]) -> tuple[Any, Any]:
            if (values := repr(point)) not in at:
                parameters = {parts.prefix + name: value for name, value in point.items()}
                at[values] = clone(folds.estimator).set_params(**parameters)
            every = np.arange(cut.n_rows)
            train = every if chunk is None else cut.split(chunk).train_rows()
            test = every if chunk is None else cut.test_rows(chunk)
            with foreign_code():
                fitted, X, _ = replace(folds, estimator=at[values]).fitted(b"", train, test)
                while type(fitted) is Pipeline:
                    for _, step in fitted.steps[:-1]:
                        X = X if is_passed(step) else step.transform(X)
                    fitted = fitted.steps[-1][1]
            return fitted, np.asarray(X) if isinstance(X, list) else X

        methods = (
            [method] if method else [response_of(m, job.estimator) for m in job.scoring.metrics]
        )
        methods += [] if method else job.keeps
        y: Any = task.data.y
        if job.classes is not None:
            y = as_codes(y, job.classes)
        ends = task.searched.get(f"{parts.prefix}n_neighbors", ())
        if not task.searched and task.shared.memory is not None:
            # A callable suggests, so that trials are known one by one: most search no further.
            sizes = [one.n_neighbors for one in points if isinstance(one.n_neighbors, int)]
            ends = _MOST_BEFORE, *(2 ** size.bit_length() - 1 for size in sizes)
        most = max([0, *(int(end) for end in ends if isinstance(end, int))])
        leaves_out = not any(map(why_not_rowwise, parts.steps))
        return NeighborFolds(
            points,
            rows,
            task.settings.n_threads,
            fit,
            cut,
            y,
            list(dict.fromkeys(methods)),
            most,
            leaves_out,
            _seed_of(job, repeat),
            task.shared.memory is not None,
        )

    def cost(self, job: Job) -> str:
        """Return that one search serves all settings."""
        names = " and ".join(self._parts(job).parameters)
        return (
            f"One search per fold in {job.task.folds_in_words} serves all values of {names}; "
            "the steps before it are fitted once per fold."
        )


def _seed_of(job: Job, repeat: Repeat) -> int | None:
    """Return the seed of the fits of a repeat; None if the estimator has all its seeds."""
    lacks_one = job.planned("unset seeds", partial(unset_seeds, job.estimator))
    return job.task.settings.seed + repeat.number if lacks_one else None
