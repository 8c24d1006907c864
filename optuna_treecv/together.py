"""Several estimators in one reading of the rows: those that can be trained side by side are, and
what is found waits in the evaluation until they are run.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.cache import StoredModelCache
from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.evaluation import Evaluation
from optuna_treecv.learners import layout_for
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import Lanes
from optuna_treecv.plan import Node
from optuna_treecv.plan import Plan
from optuna_treecv.run import outputs_are_enough
from optuna_treecv.run import Run
from optuna_treecv.scoring import Counted
from optuna_treecv.sharing import Found
from optuna_treecv.sharing import lanes_key
from optuna_treecv.sharing import Results
from optuna_treecv.walk import walk_tree


def can_be_walked_together(run: Run) -> bool:
    """Whether an estimator has lanes at all."""
    return (
        run.evaluation.method == "treecv"
        and isinstance(run.estimator, CompiledEstimator)
        and bool(run.estimator.lane_parameters)
    )


def missing_name(run: Run) -> str | None:
    """The name of its results, if these are not there yet."""
    missing = _missing(run, run.evaluation.plan(0), 0, {})
    return None if missing is None else missing.results.name


def walk_together(runs: Iterable[Run], are_claimed: bool = False) -> bool:
    """Find the outputs of those runs that can be walked side by side.

    Whoever cannot, alone or at all, is left to its own walk; so are wrong parameters, which raise
    there.

    Parameters
    ----------
    runs : iterable of Run
        Of one evaluation.
    are_claimed : bool
        Whether other processes may wait for them, so that what is found goes to the store at once.

    Returns
    -------
    bool
        Whether anything was walked.
    """
    walked = False
    able = [run for run in runs if can_be_walked_together(run)]
    if len(able) < 2:
        return walked
    evaluation = able[0].evaluation
    for repeat in range(evaluation.n_repeats):
        plan = evaluation.plan(repeat)
        for group in _groups(able, plan, repeat):
            names = list(group)
            learner = group[names[0]].learner
            least, most = Lanes.least(learner), Lanes.most(learner)
            if most < least:
                continue
            for first in range(0, len(names), most):
                part = names[first : first + most]
                if len(part) >= least:
                    _walk(evaluation, {name: group[name] for name in part}, plan, are_claimed)
                    walked = True
    return walked


class _Missing(NamedTuple):
    learner: CompiledLearner
    results: Results


def _groups(runs: list[Run], plan: Plan, repeat: int) -> Iterable[dict[str, _Missing]]:
    """Learners whose results are nowhere yet, by the names of these; those of a group can be
    walked side by side.
    """
    groups: dict[tuple[RowLayout, bytes], dict[str, _Missing]] = {}
    prepared: dict[RowLayout, PreparedRows] = {}
    for run in runs:
        missing = _missing(run, plan, repeat, prepared)
        if missing is not None:
            alike = layout_for(run.estimator), lanes_key(missing.learner)
            groups.setdefault(alike, {})[missing.results.name] = missing
    return groups.values()


def _missing(
    run: Run, plan: Plan, repeat: int, prepared: dict[RowLayout, PreparedRows]
) -> _Missing | None:
    """A run's learner, if its results on a repeat's rows are wanted and nowhere yet.

    Rows that were ``prepared`` for the repeat are taken from there, and put there.
    """
    evaluation = run.evaluation
    layout = layout_for(run.estimator)
    try:
        if layout not in prepared:
            prepared[layout] = evaluation.rows(run.estimator, repeat)[0]
        learner, _, results = run.bind(plan, prepared[layout], repeat)
    except Exception:  # noqa: BLE001  # its own walk will raise it
        return None
    assert isinstance(learner, CompiledLearner)
    n_bytes = len(learner.rows.order) * learner.n_outputs * learner.dtype.itemsize
    if (
        results is None
        or not outputs_are_enough(run.estimator, learner, run.scoring)
        or results.has_outputs(n_bytes)
        or results.name in evaluation.found
    ):
        return None
    return _Missing(learner, results)


def _walk(
    evaluation: Evaluation, group: dict[str, _Missing], plan: Plan, are_claimed: bool
) -> None:
    """One walk for all of them."""
    began = perf_counter()
    lanes = Lanes([one.learner for one in group.values()])
    out = np.empty((len(group) * plan.n_rows, lanes.n_outputs), lanes.dtype)

    def test(node: Node, state: Any) -> int:
        return lanes.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, lanes, test, evaluation.blocks(plan), evaluation.n_jobs)
    n_updates = sum(block.n_updates for block in blocks)
    seconds = (perf_counter() - began) / len(group)
    outputs = out.reshape(len(group), plan.n_rows, lanes.n_outputs)
    for name, own in zip(group, outputs, strict=True):
        evaluation.found.put(name, Found(own, n_updates, seconds))
    if are_claimed:
        assert isinstance(evaluation.cache, StoredModelCache)
        evaluation.cache.write(
            one.results.to_write(_counted(own, n_updates), seconds)
            for one, own in zip(group.values(), outputs, strict=True)
        )


def _counted(outputs: np.ndarray, n_updates: int) -> Counted:
    counted = Counted(outputs.shape, outputs.dtype)
    counted.array[:] = outputs
    counted.n_updates = n_updates
    return counted
