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
from optuna_treecv.evaluation import outputs_are_enough
from optuna_treecv.learners import as_estimator
from optuna_treecv.learners import layout_for
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import Lanes
from optuna_treecv.plan import Node
from optuna_treecv.plan import Plan
from optuna_treecv.scoring import Counted
from optuna_treecv.sharing import Found
from optuna_treecv.sharing import lanes_key
from optuna_treecv.sharing import Results
from optuna_treecv.walk import walk_tree


def can_be_walked_together(evaluation: Evaluation, estimator: Any) -> bool:
    """Whether an estimator has lanes at all."""
    return (
        evaluation.method == "treecv"
        and isinstance(estimator, CompiledEstimator)
        and bool(estimator.lane_parameters)
    )


def missing_name(evaluation: Evaluation, estimator: Any) -> str | None:
    """The name of its results, if these are not there yet."""
    groups = _groups(evaluation, [estimator], evaluation.plan(0), 0)
    return next((name for group in groups for name in group), None)


def walk_together(
    evaluation: Evaluation, estimators: Iterable[Any], are_claimed: bool = False
) -> bool:
    """Find the outputs of estimators of which some can be walked side by side.

    Whoever cannot, alone or at all, is left to its own run; so are wrong parameters, which raise
    there.

    Parameters
    ----------
    evaluation : Evaluation
    estimators : iterable of estimator
    are_claimed : bool
        Whether other processes may wait for them, so that what is found goes to the store at once.

    Returns
    -------
    bool
        Whether anything was walked.
    """
    walked = False
    candidates = [as_estimator(estimator) for estimator in estimators]
    candidates = [one for one in candidates if can_be_walked_together(evaluation, one)]
    for repeat in range(evaluation.n_repeats if len(candidates) > 1 else 0):
        plan = evaluation.plan(repeat)
        for group in _groups(evaluation, candidates, plan, repeat):
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


def _groups(
    evaluation: Evaluation, estimators: list[Any], plan: Plan, repeat: int
) -> Iterable[dict[str, _Missing]]:
    """Learners whose results are nowhere yet, by the names of these; those of a group can be
    walked side by side.
    """
    groups: dict[tuple[RowLayout, bytes], dict[str, _Missing]] = {}
    prepared: dict[RowLayout, PreparedRows] = {}
    for estimator in estimators:
        try:
            scoring = evaluation.scoring_of(estimator)
            layout = layout_for(estimator)
            if layout not in prepared:
                prepared[layout] = evaluation.rows(estimator, repeat)[0]
            method = scoring.response_method
            learner = evaluation.learner(estimator, prepared[layout], method, repeat)
        except ValueError:
            continue
        assert isinstance(learner, CompiledLearner)
        _, results = evaluation.results(estimator, learner, plan, repeat)
        n_bytes = len(learner.rows.order) * learner.n_outputs * learner.dtype.itemsize
        if (
            results is not None
            and outputs_are_enough(estimator, learner, scoring)
            and not results.has_outputs(n_bytes)
            and results.name not in evaluation.found
        ):
            group = groups.setdefault((layout, lanes_key(learner)), {})
            group[results.name] = _Missing(learner, results)
    return groups.values()


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
