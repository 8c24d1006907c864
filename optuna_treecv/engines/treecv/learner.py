"""The protocols of the learners that are trained along the tree.

A learner holds the parameters of an estimator and the prepared rows that it is trained on.
Training updates a *state*, which depends only on the parameters and on the rows seen so far, in
their order. The tree copies a state at each of its inner nodes, so copies must be cheap.
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
        """Train a state in place on a phase, or on given rows, in their order."""

    def snapshot(self, state: Any) -> Any:
        """Return an independent copy of a state."""


class Learner(Trainer, Protocol):
    """A learner whose models can also be tested."""

    #: The number of values that ``outputs`` writes per row.
    n_outputs: int

    #: The type of these values.
    dtype: np.dtype

    def outputs(self, state: Any, start: int, stop: int, out: np.ndarray) -> None:
        """Write the model's outputs for the rows start to stop - 1 to ``out[start:stop]``.

        ``out`` has the shape (n_rows, n_outputs) and the type ``dtype``.
        """

    #: Whether training on a phase piece by piece gives the same state as training on it whole.
    phases_may_be_cut: bool

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Compute predictions from outputs of shape (n_rows, n_outputs).

        ``method`` is one of "predict" (class codes, or targets of a regressor),
        "decision_function", "predict_proba" and "distance".
        """

    def estimator(self, state: Any) -> Any:
        """Return a fitted estimator with the model of a state; None if the model is not finite."""

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return X and y of the rows start to stop - 1, in the form that scorers need."""


@runtime_checkable
class ModelTrainer(Trainer, Protocol):
    """A learner whose states contain their models, instead of references to cached models.

    It can train a state on the same rows again, and test the model on each row before training on
    it. Its models are vectors, which can be averaged.
    """

    def replay(self, state: Any, rows: Rows) -> None:
        """Train a state in place on rows that it has seen before, in their order.

        Statistics that count each row only once, such as the moments of a scaler, do not change.
        """

    def test_then_train(self, state: Any, rows: Rows, out: np.ndarray) -> None:
        """Test the model on each row just before training on it, in the order of ``rows``.

        The outputs are written to ``out``, of shape (len(rows), n_outputs), and the state is
        trained in place. A learner that can only be trained on several rows at a time is tested on
        all ``rows`` first.
        """

    def numbers(self, state: Any) -> np.ndarray:
        """Return the model parameters of a state as a float64 vector; NaN if it has diverged."""

    def with_numbers(self, numbers: np.ndarray) -> Any:
        """Return a fitted estimator with the given model parameters."""


@runtime_checkable
class PairTrainer(Trainer, Protocol):
    """A learner that can train two states at once, interleaving their instructions."""

    @property
    def trains_pairs(self) -> bool:
        """Whether two states can be trained at once, faster than one after the other."""

    def update_both(
        self, first: Any, phase: Phase | Rows, second: Any, other: Phase | Rows
    ) -> None:
        """Train two states in place, each on its own phase or rows."""


class Part(NamedTuple):
    """A state and the piece of a phase to train it on, the rows ``phase.rows[begin:end]``."""

    state: Any
    phase: Phase
    begin: int
    end: int


class PartTrainer(Trainer, Protocol):
    """A learner that can be trained on a phase piece by piece, from its first row to its last."""

    trains_pairs: bool

    def update_part(self, part: Part) -> None:
        """Train a state in place on one piece of a phase."""

    def update_both_parts(self, part: Part, other: Part) -> None:
        """Train two states in place, each on its own piece; only if ``trains_pairs`` is True."""
