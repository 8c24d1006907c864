"""What is asked of a learner that the tree trains.

A learner is an estimator's settings bound to prepared rows. Training changes a *state*, which
depends on the settings and on the rows fed so far, in their order, and on nothing else. A state
is cheap to copy, and the tree depends on that.
"""

from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import runtime_checkable

import numpy as np

from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.partition import Rows


class Trainer(Protocol):
    """What the walk asks of a learner."""

    rows: PreparedRows

    def start(self) -> Any:
        """Return the state before the first row."""

    def update(self, state: Any, phase: Phase | Rows) -> None:
        """Train a state in place on the rows of a phase, or on given rows, in their order."""

    def snapshot(self, state: Any) -> Any:
        """Return a copy of a state that can be trained independently."""


class Learner(Trainer, Protocol):
    """A learner over prepared rows: it trains, and its models can be tested."""

    #: How many numbers ``outputs`` writes per row, and their type.
    n_outputs: int
    dtype: np.dtype

    def outputs(self, state: Any, start: int, stop: int, out: np.ndarray) -> None:
        """Write the model's outputs for the rows start to stop - 1 into the same rows of ``out``.

        ``out`` is of shape (n_rows, n_outputs) and type ``dtype``.
        """

    #: Whether a state is the same if a phase is trained in several parts.
    phases_may_be_cut: bool

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Turn outputs (rows, n_outputs) into the response that a loss needs.

        ``method`` is one of "predict" (class codes or numbers), "decision_function",
        "predict_proba" and "distance".
        """

    def estimator(self, state: Any) -> Any:
        """Return a fitted scikit-learn estimator with this state's model.

        None if the model is not finite.
        """

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return X and y of the rows start to stop - 1 in the form that a scorer takes."""


@runtime_checkable
class ModelTrainer(Trainer, Protocol):
    """A learner that holds its models itself, instead of sharing those of other trials.

    It trains a state on rows again, or on each row after it has tested it. Its models are vectors
    of numbers, so that they can be averaged.
    """

    def replay(self, state: Any, rows: Rows) -> None:
        """Train a state in place on rows that it has seen before, in their order.

        What is counted once per row, such as the moments of a step that scales, stays as it is.
        """

    def test_then_train(self, state: Any, rows: Rows, out: np.ndarray) -> None:
        """Train a state in place on rows in their order, and write what its model says of them.

        It says so of each row before the row acts; a learner that is trained on whole blocks says
        so of all ``rows`` before any of them acts. ``out`` is of shape (len(rows), n_outputs).
        """

    def numbers(self, state: Any) -> np.ndarray:
        """Return the numbers of a state's model, float64; NaN if it is not finite."""

    def with_numbers(self, numbers: np.ndarray) -> Any:
        """Return a fitted estimator whose model has these numbers."""


@runtime_checkable
class PairTrainer(Trainer, Protocol):
    """A learner that may train two states at once, interleaving their instructions."""

    @property
    def trains_pairs(self) -> bool:
        """Whether training two states at once is possible, and faster than one by one."""

    def update_both(
        self, first: Any, phase: Phase | Rows, second: Any, other: Phase | Rows
    ) -> None:
        """Train two states in place, each on the rows of a phase, or on given rows."""


class Part(NamedTuple):
    """A state, and the rows begin to end - 1 of a phase, on which it is to be trained."""

    state: Any
    phase: Phase
    begin: int
    end: int


class PartTrainer(Trainer, Protocol):
    """A learner that is trained part by part of a phase, from the left."""

    trains_pairs: bool

    def update_part(self, part: Part) -> None:
        """Train a state in place on a part of a phase."""

    def update_both_parts(self, part: Part, other: Part) -> None:
        """Train two states in place, each on its part, where ``trains_pairs``."""
