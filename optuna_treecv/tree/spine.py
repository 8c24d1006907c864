"""The left spine of the tree: one training pass, in which each row can be tested before it acts.

The spine leads from the root to the first leaf. Its phases together are one pass over all rows but
those of the first chunk. A model that is tested on each row just before it is trained on it gives
the progressive losses of Blum, Kalai & Langford (1999).
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from typing import Protocol
from typing import runtime_checkable

import numpy as np

from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.learner import RowTrainer
from optuna_treecv.tree.plan import cut
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.plan import Rows

#: A pass over the rows has so many steps.
STEPS_PER_PASS = 16


@runtime_checkable
class PhaseTester(Protocol):
    """A learner that looks up what its models have said of the rows of a phase."""

    def test_phase(
        self, state: Any, phase: Phase, rows: Rows, ends: Sequence[int], out: np.ndarray
    ) -> Generator[int]:
        """Train on a phase, and yield after so many of its rows as each of ``ends`` says.

        Then what the model said of these rows before they acted is in the first rows of ``out``,
        (n_rows of the phase, n_outputs). ``rows`` are those of the phase in their order.
        """


def test_then_train(
    learner: RowTrainer, state: Any, rows: Rows, ends: Sequence[int], out: np.ndarray
) -> Generator[int]:
    """Test and train on rows in their order, and yield each of ``ends`` once it is reached."""
    begin = 0
    for end in ends:
        learner.test_then_train(state, cut(rows, begin, end), out[begin:end])
        begin = end
        yield end


def phases_of_spine(plan: Plan) -> list[tuple[Node, Phase]]:
    """Return the nodes from the root to the first leaf, each with the phase that leads to it."""
    node = plan.root
    phases = [(node, plan.first_phase)]
    while node.n_folds > 1:
        left, _ = plan.split(node)
        phases.append((left, plan.phase(node, left)))
        node = left
    return phases


def length_of_spine(plan: Plan) -> int:
    """Return the number of rows that the model of the first leaf has seen."""
    return plan.n_rows - (plan.begin(1) - plan.begin(0))


def steps_of_spine(plan: Plan) -> dict[int, int]:
    """Return by the number of rows trained on which step is then done.

    A step is a sixteenth of a pass over all rows, rounded up. The last one ends with the spine.
    """
    length = length_of_spine(plan)
    steps: dict[int, int] = {}
    for step in range(1, STEPS_PER_PASS + 1):
        n_rows = min(-(-step * plan.n_rows // STEPS_PER_PASS), length)
        steps.setdefault(n_rows, step)
    return steps


def walk_spine(
    plan: Plan, learner: Learner, states: dict[Node, Any]
) -> Generator[tuple[Rows, np.ndarray, int | None]]:
    """Train a model along the left spine, on which each row is tested before it acts.

    Parameters
    ----------
    plan : Plan
    learner : Learner
    states : dict of Node to state
        Receives the states of the nodes that are reached, if these are those of the tree.

    Yields
    ------
    rows : slice or ndarray
        Prepared rows of a phase, in the order of training.
    outputs : ndarray of shape (len(rows), n_outputs)
        What the model has said of them before they acted.
    step : int or None
        The number of sixteenths of a pass that are done now; None within a sixteenth.
    """
    state = learner.start()
    steps = steps_of_spine(plan)
    begin = 0
    for node, phase in phases_of_spine(plan):
        if phase.n_rows > 0:
            ends = ends_within(steps, begin, phase.n_rows)
            rows, done = phase.rows, 0
            out = np.empty((phase.n_rows, learner.n_outputs), learner.dtype)
            if isinstance(learner, PhaseTester):
                tested = learner.test_phase(state, phase, rows, ends, out)
            else:
                assert isinstance(learner, RowTrainer)
                tested = test_then_train(learner, state, rows, ends, out)
            with closing(tested):
                for end in tested:
                    yield cut(rows, done, end), out[done:end], steps.get(begin + end)
                    done = end
        begin += phase.n_rows
        if learner.phases_may_be_cut:
            states[node] = learner.snapshot(state)


def ends_within(steps: dict[int, int], begin: int, n_rows: int) -> list[int]:
    """Return where steps end within a phase, as numbers of its rows, and then where it ends.

    The phase begins after ``begin`` rows of the spine.
    """
    ends = [end - begin for end in steps if begin < end < begin + n_rows]
    return [*ends, n_rows]
