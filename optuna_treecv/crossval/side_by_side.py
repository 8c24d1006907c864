"""Evaluates several estimators together while the rows are read once.

The outputs wait in their runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.run import Run
from optuna_treecv.crossval.trained import bind
from optuna_treecv.crossval.trained import outputs_are_enough
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.from_estimator import layout_for
from optuna_treecv.learners.lanes import Lanes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.scoring import ArrayThenCount
from optuna_treecv.sharing.keys import lanes_key
from optuna_treecv.sharing.results import OutputsAhead
from optuna_treecv.sharing.results import Results
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import walk_tree


def has_lanes(run: Run) -> bool:
    """Return whether a run's estimator can be trained side by side with others at all."""
    return (
        run.method.has_lanes
        and isinstance(run.estimator, CompiledEstimator)
        and bool(run.estimator.lane_parameters)
    )


class Missing(NamedTuple):
    """A run whose results on a repeat are needed and missing."""

    run: Run
    learner: CompiledLearner
    results: Results

    @property
    def name(self) -> str:
        """The name of the results."""
        return self.results.name

    @property
    def n_bytes(self) -> int:
        """The bytes that the outputs of all repeats will take."""
        return _output_bytes(self.learner) * self.run.evaluation.n_repeats


def missing_result(run: Run) -> Missing | None:
    """Return what is missing of a run's first repeat, or None if its results are there already."""
    return _missing(run, run.evaluation.repeats[0], {})


def evaluate_side_by_side(runs: Iterable[Run], are_leased: bool = False) -> bool:
    """Compute the outputs of those runs that can be evaluated side by side.

    A run that cannot is left to evaluate itself. So is a run with a wrong parameter, which raises
    there.

    Parameters
    ----------
    runs : iterable of Run
        All of one evaluation.
    are_leased : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.

    Returns
    -------
    bool
        Whether anything was computed.
    """
    is_any = False
    able = [run for run in runs if has_lanes(run)]
    if len(able) < 2:
        return is_any
    evaluation = able[0].evaluation
    for repeat in evaluation.repeats:
        for group in _groups(able, repeat):
            names = list(group)
            learner = group[names[0]].learner
            least, most = Lanes.least(learner), Lanes.most(learner)
            if most < least:
                continue
            for first in range(0, len(names), most):
                part = names[first : first + most]
                if len(part) >= least:
                    members = {name: group[name] for name in part}
                    _evaluate_group(evaluation, members, repeat, are_leased)
                    is_any = True
    return is_any


def _groups(runs: list[Run], repeat: Repeat) -> Iterable[dict[str, Missing]]:
    """Group the learners whose results are missing; a group can be evaluated side by side.

    The keys within a group are the names of the results.
    """
    groups: dict[tuple[RowLayout, bytes], dict[str, Missing]] = {}
    prepared: dict[RowLayout, PreparedRows] = {}
    for run in runs:
        missing = _missing(run, repeat, prepared)
        if missing is not None:
            alike = layout_for(run.estimator), lanes_key(missing.learner)
            groups.setdefault(alike, {})[missing.name] = missing
    return groups.values()


def _missing(run: Run, repeat: Repeat, prepared: dict[RowLayout, PreparedRows]) -> Missing | None:
    """Return a run's learner if its results on a repeat are needed and missing.

    The repeat's rows are taken from ``prepared``, or put there.
    """
    evaluation = run.evaluation
    layout = layout_for(run.estimator)
    try:
        if layout not in prepared:
            prepared[layout] = evaluation.rows(run.estimator, repeat)[0]
        learner, _, results = bind(run, run.method.name, repeat, prepared[layout])
    except Exception:  # noqa: BLE001  # the run will raise it
        return None
    assert isinstance(learner, CompiledLearner)
    if (
        results is None
        or not all(
            outputs_are_enough(run.estimator, learner, metric) for metric in run.scoring.metrics
        )
        or results.has_outputs(_output_bytes(learner))
        or repeat.number in run.ahead
    ):
        return None
    return Missing(run, learner, results)


def _output_bytes(learner: CompiledLearner) -> int:
    return len(learner.rows.order) * learner.n_outputs * learner.dtype.itemsize


def _evaluate_group(
    evaluation: Evaluation, group: dict[str, Missing], repeat: Repeat, are_leased: bool
) -> None:
    """Compute the outputs of a group in one walk."""
    began = perf_counter()
    plan, shared = repeat.plan, evaluation.shared
    lanes = Lanes([one.learner for one in group.values()])
    out = np.empty((len(group) * plan.n_rows, lanes.n_outputs), lanes.dtype)

    def test(node: Node, state: Any) -> int:
        return lanes.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, lanes, test, repeat.blocks, evaluation.n_jobs)
    n_updates = sum(block.n_updates for block in blocks)
    seconds = (perf_counter() - began) / len(group)
    outputs = _cut(out, len(group), n_updates)
    for one, own in zip(group.values(), outputs, strict=True):
        one.run.ahead[repeat.number] = OutputsAhead(own, seconds)
    if are_leased:
        assert isinstance(shared.cache, StoredModelCache)
        shared.cache.write(
            one.results.to_write(own, seconds)
            for one, own in zip(group.values(), outputs, strict=True)
        )


def _cut(array: np.ndarray, n_parts: int, n_updates: int) -> list[ArrayThenCount]:
    """Copy an array into equal parts that can go one by one.

    The array shrinks meanwhile to nothing, so that this takes the memory of one more part.
    """
    size = len(array) // n_parts
    parts = []
    for begin in range(len(array) - size, -1, -size):
        parts.append(ArrayThenCount.of(array[begin:], n_updates))
        array.resize((begin, *array.shape[1:]), refcheck=False)
    return parts[::-1]
