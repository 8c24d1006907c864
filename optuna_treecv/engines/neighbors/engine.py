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

from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.neighbors.family import NeighborFolds
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.fits import fold_task_of
from optuna_treecv.plans.joint import JointPlan
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.preprocessing.decisions import why_not_rowwise
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.preprocessing.parts import is_passed
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.scoring.metrics import response_of

# The neighbours that are searched for at least where a callable suggests their number.
_MOST_BEFORE = 31


def plan_neighbors(request: Request) -> Plan | Declined:
    """Return a plan for an estimator that searches for neighbours."""
    estimator = request.estimator
    parts = _divide(estimator)
    why_not = parts if isinstance(parts, str) else _why_not(request, parts)
    if isinstance(parts, str) or why_not:
        advice = (
            "method='neighbors' must have a KNeighborsClassifier or a KNeighborsRegressor, "
            f"alone or at the end of a Pipeline, but {why_not}; method='auto' would be right."
        )
        free = estimator.get_params() if isinstance(parts, str) else parts.parameters
        return Declined(why_not, advice, free, 0 if isinstance(parts, str) else 2)
    return NeighborsPlan(request, parts)


def _divide(estimator: Any) -> Parts | str:
    """Return the parts of an estimator, or why it is not for this engine.

    Its transformers may be any, and are fitted per fold.
    """
    steps, last, prefix = [], estimator, ""
    while type(last) is Pipeline:
        *before, (name, last) = last.steps
        steps += [step for _, step in before if not is_passed(step)]
        prefix += f"{name}__"
    if type(last) not in (KNeighborsClassifier, KNeighborsRegressor):
        return f"{type(last).__name__} does not search for nearest neighbours"
    return Parts(tuple(steps), None, last, NeighborFolds, prefix, {})


def _why_not(request: Request, parts: Parts) -> str:
    """Return why the neighbours of an estimator are not searched for once, a clause."""
    data = request.data
    if request.metadata.weights is not None or request.metadata.others:
        return f"{type(parts.last).__name__} takes no weights and no further arguments"
    if data.y is None or data.y.dtype.kind not in "biufUSO":
        return "y is missing"
    if isinstance(parts.last, KNeighborsRegressor) and data.y.dtype.kind not in "biuf":
        return "y holds no numbers"
    return NeighborFolds.why_not(parts.last) or why_not_scored(request)


class NeighborsPlan(JointPlan):
    """One search per fold; wrong parameters are errors of the fits of the folds."""

    name = "neighbors"
    reason = "one search for neighbours serves all values of n_neighbors and weights"
    lost = "a prediction is not finite"
    refused = "one search does not serve its folds"

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = Capabilities(
            free_parameters=parts.parameters,
            shared_parameters=parts.parameters,
            why_one_epoch="its models are the training rows, which more passes do not change",
            needs_memory="neighbours are searched among all rows",
            falls_back=True,
            at_once=True,
        )

    def point(self, candidate: Candidate, repeat: Repeat) -> Any:
        """Return the values of free parameters, and the seed of transformers that lack one."""
        point, seed = super().point(candidate, repeat), self._seed(repeat)
        return point if seed is None else (point, seed)

    def _seed(self, repeat: Repeat) -> int | None:
        """Return the seed of the fits of a repeat; None if the estimator has all its seeds."""
        lacks_one = self.once("unset seeds", partial(unset_seeds, self.request.estimator))
        return self.request.settings.seed + repeat.number if lacks_one else None

    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the targets in prepared order; the rows stay as they were given."""
        target = "number" if self.request.classes is None else "class"

        def numbers(X: Any) -> np.ndarray:
            return np.arange(self.request.data.n_rows, dtype=np.float64)[:, None]

        layout, name = RowLayout(target=target), b"numbers of rows"
        return self.request.cross_validation.rows_in(layout, repeat, numbers, name)

    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> NeighborFolds:
        """Return candidates bound to the rows as given."""
        request, cut, parts = self.request, repeat.cut, self.parts
        memory = request.cross_validation.shared.memory
        folds = fold_task_of(request, candidates[0], repeat)
        points = [last_step(candidate) for candidate in candidates]
        at = {repr({name: getattr(points[0], name) for name in parts.names}): folds.estimator}

        def fit(chunk: int | None, point: Mapping[str, Any]) -> tuple[Any, Any]:
            if (values := repr(point)) not in at:
                parameters = {parts.prefix + name: value for name, value in point.items()}
                at[values] = clone(folds.estimator).set_params(**parameters)
            every = np.arange(cut.n_rows)
            train = every if chunk is None else cut.split(chunk).train_rows()
            test = every if chunk is None else cut.test_rows(chunk)
            with foreign_code():
                last, X = replace(folds, estimator=at[values]).last_fitted(b"", train, test)
            return last, np.asarray(X) if isinstance(X, list) else X

        methods = [method]
        if not method:
            of_scores = [response_of(metric, candidates[0]) for metric in request.scoring.metrics]
            methods = [*of_scores, *request.kept_responses]
        y: Any = request.data.y
        if request.classes is not None:
            y = as_codes(y, request.classes)
        ends = request.cross_validation.search.ends.get(f"{parts.prefix}n_neighbors", ())
        if not request.cross_validation.search.ends and memory is not None:
            # A callable suggests, so that trials are known one by one: most search no further.
            sizes = [one.n_neighbors for one in points if isinstance(one.n_neighbors, int)]
            ends = _MOST_BEFORE, *(2 ** size.bit_length() - 1 for size in sizes)
        most = max([0, *(int(end) for end in ends if isinstance(end, int))])
        leaves_out = not any(map(why_not_rowwise, parts.steps))
        return NeighborFolds(
            points,
            rows,
            request.settings.n_threads,
            fit,
            cut,
            y,
            list(dict.fromkeys(methods)),
            most,
            leaves_out,
            self._seed(repeat),
            memory is not None,
        )

    def cost(self) -> str:
        """Return that one search serves all settings."""
        names = " and ".join(self.parts.parameters)
        return (
            f"One search per fold in {self.request.cross_validation.folds_in_words} serves all "
            f"values of {names}; the steps before it are fitted once per fold."
        )
