"""Several estimators in one reading of the rows: those that can be trained side by side are, and
what is found waits in the evaluation until they are run.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any

import numpy as np

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
from optuna_treecv.sharing import Found
from optuna_treecv.sharing import lanes_key
from optuna_treecv.walk import walk_tree


def can_be_walked_together(evaluation: Evaluation, estimator: Any) -> bool:
    """Whether an estimator has lanes at all."""
    return (
        evaluation.method == "treecv"
        and isinstance(estimator, CompiledEstimator)
        and bool(estimator.lane_parameters)
    )


def is_found(evaluation: Evaluation, estimator: Any) -> bool:
    """Whether its results are there already."""
    return not any(_groups(evaluation, [estimator], evaluation.plan(0), 0))


def walk_together(evaluation: Evaluation, estimators: Iterable[Any]) -> None:
    """Find the outputs of estimators of which some can be walked side by side.

    Whoever cannot, alone or at all, is left to its own run; so are wrong parameters, which raise
    there.
    """
    candidates = [as_estimator(estimator) for estimator in estimators]
    candidates = [one for one in candidates if can_be_walked_together(evaluation, one)]
    for repeat in range(evaluation.n_repeats if len(candidates) > 1 else 0):
        plan = evaluation.plan(repeat)
        for group in _groups(evaluation, candidates, plan, repeat):
            most = Lanes.most(next(iter(group.values())))
            names = list(group)
            for first in range(0, len(names), most):
                part = names[first : first + most]
                if len(part) >= Lanes.least(group[part[0]]):
                    _walk(evaluation, {name: group[name] for name in part}, plan)


def _groups(
    evaluation: Evaluation, estimators: list[Any], plan: Plan, repeat: int
) -> Iterable[dict[str, CompiledLearner]]:
    """Learners whose results are nowhere yet, by the names of these; those of a group can be
    walked side by side.
    """
    groups: dict[tuple[RowLayout, bytes], dict[str, CompiledLearner]] = {}
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
            groups.setdefault((layout, lanes_key(learner)), {})[results.name] = learner
    return groups.values()


def _walk(evaluation: Evaluation, learners: dict[str, CompiledLearner], plan: Plan) -> None:
    """One walk for all of them."""
    began = perf_counter()
    lanes = Lanes(list(learners.values()))
    out = np.empty((len(learners) * plan.n_rows, lanes.n_outputs), lanes.dtype)

    def test(node: Node, state: Any) -> int:
        return lanes.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, lanes, test, evaluation.blocks(plan), evaluation.n_jobs)
    n_updates = sum(block.n_updates for block in blocks)
    seconds = (perf_counter() - began) / len(learners)
    outputs = out.reshape(len(learners), plan.n_rows, lanes.n_outputs)
    for name, own in zip(learners, outputs, strict=True):
        evaluation.found.put(name, Found(own, n_updates, seconds))
