"""What a learner is: everything that the tree, the scores and the objective ask of one.

A learner is an estimator's settings bound to prepared rows. What training changes is in a *state*,
which depends on the settings and on the rows fed so far, in order, and on nothing else. Copying a
state is cheap; the tree lives on that.
"""

from __future__ import annotations

from typing import Any
from typing import Protocol
from typing import runtime_checkable

import numpy as np

from optuna_treecv.data import PreparedRows
from optuna_treecv.plan import Node
from optuna_treecv.plan import Phase
from optuna_treecv.plan import Plan
from optuna_treecv.plan import Rows


class Learner(Protocol):
    """A learner over prepared rows."""

    rows: PreparedRows
    #: Numbers a row that ``outputs`` writes, and their type.
    n_outputs: int
    dtype: np.dtype

    def start(self) -> Any:
        """The state before the first row."""

    def update(self, state: Any, phase: Phase | Rows) -> None:
        """Train a state in place on the rows of a phase, or on rows, in their order."""

    def snapshot(self, state: Any) -> Any:
        """A copy of a state that goes its own way from here."""

    def outputs(self, state: Any, start: int, stop: int, out: np.ndarray) -> None:
        """Write what the model says of the rows start..stop-1 to the same rows of ``out``
        (n_rows, n_outputs).
        """

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Outputs (rows, n_outputs) -> the response that a loss wants: ``method`` is one of
        "predict" (class codes or numbers), "decision_function", "predict_proba", "distance".
        """

    def estimator(self, state: Any) -> Any:
        """A fitted scikit-learn estimator with this state's model; None if the model is not
        finite.
        """

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        """X and y of the rows start..stop-1 as a scikit-learn scorer takes them."""


@runtime_checkable
class SubtreeWalker(Protocol):
    """A learner whose lower levels of a tree are one call without the interpreter."""

    def walk_subtree(self, plan: Plan, node: Node, state: Any, out: np.ndarray) -> int:
        """Test the chunks of ``node``, whose model is ``state`` (used up); the row updates
        done.
        """


@runtime_checkable
class PairTrainer(Learner, Protocol):
    """A learner that may train two states at once, which do not wait for each other."""

    @property
    def trains_pairs(self) -> bool:
        """Whether it does, and faster than one after the other."""

    def update_both(self, first: Any, phase: Phase, second: Any, second_phase: Phase) -> None:
        """Train two states in place that have seen as many rows, each on its phase."""


class StandsIn(Learner, Protocol):
    """A learner whose estimators may say of a row only what follows from its outputs."""

    @property
    def can_answer(self) -> bool:
        """Whether they do."""

    def answering(self, outputs: np.ndarray) -> Any:
        """What a scorer takes for a fitted estimator: whatever the rows, it answers by these
        outputs (rows, n_outputs).
        """
