"""Evaluates several compiled learners together while the rows are read once.

The outputs wait in their requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.crossval.early_lanes import EarlyLanes
from optuna_treecv.crossval.early_scores import EarlyAhead
from optuna_treecv.crossval.early_scores import has_lost
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.methods import Missing
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.trained import bind
from optuna_treecv.crossval.trained import outputs_are_enough
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.from_estimator import layout_for
from optuna_treecv.learners.lanes import Lanes
from optuna_treecv.learners.steps.split import split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.scoring import ArrayThenCount
from optuna_treecv.sharing.keys import lanes_key
from optuna_treecv.sharing.results import OutputsAhead
from optuna_treecv.sharing.results import Results
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import walk_tree


class CompiledLanes:
    """Trains several compiled learners row by row, in one walk over the tree.

    Parameters
    ----------
    method : str
        The name under which results are kept.
    """

    def __init__(self, method: str) -> None:
        self._method = method

    def parameters(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameters in which estimators may differ."""
        if isinstance(estimator, CompiledEstimator):
            return estimator.lane_parameters
        found = split(estimator)
        if isinstance(found, str) or not found.is_compiled:
            return ()
        return tuple(found.prefix + name for name in found.last.lane_parameters)

    def missing(self, request: Request) -> Missing | None:
        """Return what is missing of the first repeat; None if the results are there already."""
        found = self._missing(request, request.repeats[0], {})
        if found is None:
            return None
        n_bytes = _output_bytes(found.learner) * request.evaluation.n_repeats
        if request.evaluation.is_early:  # scores of the first pass and of 16 folds
            n_bytes += 2 * len(found.learner.rows.order) * np.dtype(np.float64).itemsize
        return Missing(found.results.name, n_bytes)

    def evaluate(self, requests: Sequence[Request], are_leased: bool) -> bool:
        """Compute the outputs of those learners that can be trained side by side."""
        is_any = False
        evaluation = requests[0].evaluation
        for repeat in evaluation.repeats:
            for group in self._groups(requests, repeat):
                names = list(group)
                of_group = group[names[0]].repeat
                learner = group[names[0]].learner
                least, most = Lanes.least(learner), Lanes.most(learner)
                if most < least:
                    continue
                for first in range(0, len(names), most):
                    part = names[first : first + most]
                    if len(part) >= least:
                        members = {name: group[name] for name in part}
                        _evaluate_group(evaluation, members, of_group, are_leased)
                        is_any = True
        return is_any

    def _groups(
        self, requests: Sequence[Request], repeat: Repeat
    ) -> Iterable[dict[str, _Unfinished]]:
        """Group the learners whose results are missing; a group can be evaluated side by side.

        The keys within a group are the names of the results.
        """
        groups: dict[tuple[bytes, bytes, int], dict[str, _Unfinished]] = {}
        prepared: dict[tuple[RowLayout, bytes], PreparedRows] = {}
        for request in requests:
            own = request.repeats[repeat.number]
            found = self._missing(request, own, prepared)
            if found is not None:
                alike = found.rows_name, lanes_key(found.learner), request.n_epochs
                groups.setdefault(alike, {})[found.results.name] = found
        return groups.values()

    def _missing(
        self,
        request: Request,
        repeat: Repeat,
        prepared: dict[tuple[RowLayout, bytes], PreparedRows],
    ) -> _Unfinished | None:
        """Return a request's learner if its results on a repeat are needed and missing.

        The repeat's rows are taken from ``prepared``, or put there.
        """
        evaluation = request.evaluation
        try:
            ahead = evaluation.ahead(request.estimator)
            layout, steps = layout_for(request.estimator), b""
            if not isinstance(ahead, str):
                layout, steps = ahead.layout, ahead.name
            if (layout, steps) not in prepared:
                prepared[layout, steps] = evaluation.rows(request.estimator, repeat)[0]
            rows = prepared[layout, steps]
            learner, identity, results = bind(request, self._method, repeat, rows)
        except Exception:  # noqa: BLE001  # the run will raise it
            return None
        if not isinstance(learner, CompiledLearner):  # its steps are too wide to be compiled
            return None
        if evaluation.is_early and not learner.phases_may_be_cut:
            return None
        if (
            results is None
            or not all(
                outputs_are_enough(request.estimator, learner, metric)
                for metric in request.scoring.metrics
            )
            or results.has_outputs(_output_bytes(learner))
            or repeat.number in request.ahead
        ):
            return None
        return _Unfinished(request, learner, results, repeat, identity.rows)


class _Unfinished(NamedTuple):
    """A request whose results on a repeat are needed and missing."""

    request: Request
    learner: CompiledLearner
    results: Results
    repeat: Repeat
    rows_name: bytes


def _output_bytes(learner: CompiledLearner) -> int:
    return len(learner.rows.order) * learner.n_outputs * learner.dtype.itemsize


def _evaluate_group(
    evaluation: Evaluation, group: dict[str, _Unfinished], repeat: Repeat, are_leased: bool
) -> None:
    """Compute the outputs of a group in one walk."""
    began = perf_counter()
    plan, shared = repeat.plan, evaluation.shared
    members = list(group.values())
    learners = [one.learner for one in members]
    early: list[EarlyAhead | None] = [None for _ in members]
    if evaluation.is_early and repeat.number == 0:
        metric = members[0].request.scoring.first
        judge = next(filter(None, (one.request.judge for one in members)), None)
        lanes = EarlyLanes(plan, learners, metric, evaluation.n_jobs, judge)
        out, tested = lanes.evaluate()
        known = lanes.early
        early[:] = known
        counts = [known[number].n_updates for number in tested]
    else:
        out, n_updates = _outputs_of(learners, repeat, evaluation.n_jobs)
        tested = list(range(len(members)))
        counts = [n_updates for _ in members]
    seconds = (perf_counter() - began) / len(group)
    outputs = {
        number: own
        for number, own in zip(tested, _cut(out, counts), strict=True)
        if not has_lost(early[number])
    }
    for number, one in enumerate(members):
        one.request.ahead[repeat.number] = OutputsAhead(
            outputs.get(number), seconds, early[number]
        )
    if are_leased:
        assert isinstance(shared.cache, StoredModelCache)
        shared.cache.write(
            members[number].results.to_write(own, seconds) for number, own in outputs.items()
        )


def _outputs_of(
    learners: list[CompiledLearner], repeat: Repeat, n_jobs: int
) -> tuple[np.ndarray, int]:
    """Return the outputs of learners for all rows, one after the other, and the row updates."""
    plan, lanes = repeat.plan, Lanes(learners)
    out = np.empty((len(learners) * plan.n_rows, lanes.n_outputs), lanes.dtype)

    def test(node: Node, state: Any) -> int:
        return lanes.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, lanes, test, repeat.blocks, n_jobs)
    return out, sum(block.n_updates for block in blocks)


def _cut(array: np.ndarray, counts: list[int]) -> list[ArrayThenCount]:
    """Copy an array into equal parts that can go one by one, each with its count.

    The array shrinks meanwhile to nothing, so that this takes the memory of one more part.
    """
    parts = []
    for number in range(len(counts) - 1, -1, -1):
        begin = number * (len(array) // (number + 1))
        parts.append(ArrayThenCount.of(array[begin:], counts[number]))
        array.resize((begin, *array.shape[1:]), refcheck=False)
    return parts[::-1]
