"""Evaluates several compiled learners together while the rows are read once.

The outputs wait in their jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from optuna_treecv.crossval.early_lanes import EarlyLanes
from optuna_treecv.crossval.early_scores import EarlyAhead
from optuna_treecv.crossval.early_scores import has_lost
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.trained import bind
from optuna_treecv.crossval.trained import outputs_are_enough
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
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

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job


def parameters_beside(estimator: Any) -> tuple[str, ...]:
    """Return the parameters in which estimators on lanes may differ; none: it has no lanes."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.lane_parameters
    found = split(estimator)
    if isinstance(found, str) or not found.is_compiled:
        return ()
    return tuple(found.prefix + name for name in found.last.lane_parameters)


def missing(job: Job, engine: str) -> Missing | None:
    """Return what is missing of the first repeat; None if the results are there already."""
    found = _unfinished(job, engine, job.repeats[0], {})
    if found is None:
        return None
    n_bytes = _output_bytes(found.learner) * job.task.n_repeats
    if job.task.settings.is_early:  # scores of the first pass and of 16 folds
        n_bytes += 2 * len(found.learner.rows.order) * np.dtype(np.float64).itemsize
    return Missing(found.results.name, n_bytes)


def evaluate(jobs: Sequence[Job], engine: str, watch: Watch | None, are_leased: bool) -> bool:
    """Compute the outputs of those learners that can be trained side by side.

    Parameters
    ----------
    jobs : sequence of Job
    engine : str
        The name under which results are kept.
    watch : Watch or None
    are_leased : bool
        Whether other processes may wait for the results, so that they go to the store at once.

    Returns
    -------
    bool
        Whether there were any.
    """
    is_any = False
    for repeat in jobs[0].task.repeats:
        for group in _groups(jobs, engine, repeat):
            names = list(group)
            learner = group[names[0]].learner
            least, most = Lanes.least(learner), Lanes.most(learner)
            if most < least:
                continue
            for first in range(0, len(names), most):
                part = names[first : first + most]
                if len(part) >= least:
                    _evaluate_group([group[name] for name in part], watch, are_leased)
                    is_any = True
    return is_any


def _groups(jobs: Sequence[Job], engine: str, repeat: Repeat) -> Iterable[dict[str, _Unfinished]]:
    """Group the learners whose results are missing; a group can be evaluated side by side.

    The keys within a group are the names of the results.
    """
    groups: dict[tuple[bytes, bytes, int], dict[str, _Unfinished]] = {}
    prepared: dict[tuple[RowLayout, bytes], PreparedRows] = {}
    for job in jobs:
        found = _unfinished(job, engine, job.repeats[repeat.number], prepared)
        if found is not None:
            alike = found.rows_name, lanes_key(found.learner), job.n_epochs
            groups.setdefault(alike, {})[found.results.name] = found
    return groups.values()


def _unfinished(
    job: Job,
    engine: str,
    repeat: Repeat,
    prepared: dict[tuple[RowLayout, bytes], PreparedRows],
) -> _Unfinished | None:
    """Return a job's learner if its results on a repeat are needed and missing.

    The repeat's rows are taken from ``prepared``, or put there.
    """
    task = job.task
    try:
        after = job.layout, job.steps_name
        if after not in prepared:
            prepared[after] = job.rows(repeat)[0]
        rows = prepared[after]
        learner, identity, results = bind(job, engine, repeat, rows)
    except Exception:  # noqa: BLE001  # the job itself will raise it
        return None
    if not isinstance(learner, CompiledLearner):  # its steps are too wide to be compiled
        return None
    if task.settings.is_early and not learner.phases_may_be_cut:
        return None
    if (
        results is None
        or not all(
            outputs_are_enough(job.estimator, learner, metric) for metric in job.scoring.metrics
        )
        or results.has_outputs(_output_bytes(learner))
        or repeat.number in job.ahead
    ):
        return None
    return _Unfinished(job, learner, results, repeat, identity.rows)


class _Unfinished(NamedTuple):
    """A job whose results on a repeat are needed and missing."""

    job: Job
    learner: CompiledLearner
    results: Results
    repeat: Repeat
    rows_name: bytes


def _output_bytes(learner: CompiledLearner) -> int:
    return len(learner.rows.order) * learner.n_outputs * learner.dtype.itemsize


def _evaluate_group(members: list[_Unfinished], watch: Watch | None, are_leased: bool) -> None:
    """Compute the outputs of a group in one walk."""
    began = perf_counter()
    first, repeat = members[0].job, members[0].repeat
    n_threads = first.task.settings.n_threads
    learners = [one.learner for one in members]
    early: list[EarlyAhead | None] = [None for _ in members]
    if first.task.settings.is_early and repeat.number == 0:
        judge = None if watch is None else watch.judge
        lanes = EarlyLanes(repeat.plan, learners, first.scoring.first, n_threads, judge)
        out, tested = lanes.evaluate()
        known = lanes.early
        early[:] = known
        counts = [known[number].n_updates for number in tested]
    else:
        out, n_updates = _outputs_of(learners, repeat, n_threads)
        tested = list(range(len(members)))
        counts = [n_updates for _ in members]
    seconds = (perf_counter() - began) / len(members)
    outputs = {
        number: own
        for number, own in zip(tested, _cut(out, counts), strict=True)
        if not has_lost(early[number])
    }
    for number, one in enumerate(members):
        one.job.ahead[repeat.number] = OutputsAhead(outputs.get(number), seconds, early[number])
    if are_leased:
        cache = first.task.shared.cache
        assert isinstance(cache, StoredModelCache)
        cache.write(
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
