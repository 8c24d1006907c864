"""The protocols of the learners that the tree trains.

A learner is an estimator's settings bound to prepared rows. Training changes a *state*, which
depends only on the settings and on the rows fed so far, in their order. The tree relies on states
that are cheap to copy.
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
    """The methods of a learner that the walk calls."""

    rows: PreparedRows

    def start(self) -> Any:
        """Return the state before the first row."""

    def update(self, state: Any, phase: Phase | Rows) -> None:
        """Train a state in place on the rows of a phase, or on given rows, in their order."""

    def snapshot(self, state: Any) -> Any:
        """Return a copy of a state that can be trained independently."""


class Learner(Trainer, Protocol):
    """A learner bound to prepared rows, which is trained and tested."""

    #: The number of values that ``outputs`` writes per row, and their type.
    n_outputs: int
    dtype: np.dtype

    def outputs(self, state: Any, start: int, stop: int, out: np.ndarray) -> None:
        """Write the model's outputs for the rows start to stop - 1 into the same rows of ``out``.

        ``out`` is of shape (n_rows, n_outputs) and type ``dtype``.
        """

    #: Whether training a phase in several parts gives the same state.
    phases_may_be_cut: bool

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return predictions computed from outputs (rows, n_outputs).

        ``method`` is one of "predict" (class codes or numbers), "decision_function",
        "predict_proba" and "distance".
        """

    def estimator(self, state: Any) -> Any:
        """Return a fitted scikit-learn estimator with this state's model; None if not finite."""

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return X and y of the rows start to stop - 1 as a scorer takes them."""


@runtime_checkable
class ModelTrainer(Trainer, Protocol):
    """A learner whose states hold their models, instead of sharing those of other trials.

    It can train a state on the same rows again, or test each row before training on it. Its models
    are vectors, so that they can be averaged.
    """

    def replay(self, state: Any, rows: Rows) -> None:
        """Train a state in place on rows that it has seen before, in their order.

        Statistics that count each row once, such as the moments of a scaler, do not change.
        """

    def test_then_train(self, state: Any, rows: Rows, out: np.ndarray) -> None:
        """Train a state in place on rows in their order, and write the outputs before training.

        The outputs of each row are those of the model before it is trained on the row; a learner
        that is trained on whole blocks first writes the outputs of all ``rows``. ``out`` is of
        shape (len(rows), n_outputs).
        """

    def numbers(self, state: Any) -> np.ndarray:
        """Return the parameters of a state's model, float64; NaN if it is not finite."""

    def with_numbers(self, numbers: np.ndarray) -> Any:
        """Return a fitted estimator whose model has these parameters."""


@runtime_checkable
class PairTrainer(Trainer, Protocol):
    """A learner that can train two states at once, interleaving their instructions."""

    @property
    def trains_pairs(self) -> bool:
        """Whether training two states at once is possible and faster than one after the other."""

    def update_both(
        self, first: Any, phase: Phase | Rows, second: Any, other: Phase | Rows
    ) -> None:
        """Train two states in place, each on the rows of a phase, or on given rows."""


class Part(NamedTuple):
    """A state, and the rows begin to end - 1 of a phase on which to train it."""

    state: Any
    phase: Phase
    begin: int
    end: int


class PartTrainer(Trainer, Protocol):
    """A learner that is trained on successive parts of a phase, from the left."""

    trains_pairs: bool

    def update_part(self, part: Part) -> None:
        """Train a state in place on a part of a phase."""

    def update_both_parts(self, part: Part, other: Part) -> None:
        """Train two states in place, each on its part; only if ``trains_pairs``."""
