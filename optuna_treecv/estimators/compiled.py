"""Estimators that compiled kernels train, without their kernels."""

from abc import ABCMeta
from abc import abstractmethod
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval

from optuna_treecv.estimators.base import MOST_EPOCHS
from optuna_treecv.estimators.base import TreeCVEstimator
from optuna_treecv.estimators.base import weights_of_classes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout

# The parameters that are, or scale, the steps along gradients.
_STEP_SIZES = {"eta0", "learning_rate", "learning_rate_init", "step_size"}

#: Parameters that act through the rows and their order, and not through the kernel.
ACT_THROUGH_ROWS = frozenset({"fit_intercept", "shuffle", "n_epochs"})


class CompiledEstimator(TreeCVEstimator, metaclass=ABCMeta):
    """An estimator that is trained by a compiled kernel: what others may know of it."""

    _parameter_constraints = {
        **TreeCVEstimator._parameter_constraints,
        "shuffle": ["boolean"],
        "n_epochs": [Interval(Integral, 1, MOST_EPOCHS, closed="both")],
    }

    has_epochs = True  # whether training for several epochs makes sense
    is_linear = False  # whether a column of zeros gets no weight, and models have an average
    n_epochs: int
    class_weight: Any  # what the weights of rows are multiplied by; classifiers alone have it
    draws = False  # whether training uses random_state for more than the order of the rows
    shuffle: bool
    random_state: Any
    classes_: np.ndarray
    _fixed_parameters: tuple[str, ...] = ()  # those that the size or meaning of a state depends on

    @property
    def settles_on_rows(self) -> bool:
        """Whether a setting is derived from all rows before the first one."""
        return False

    @property
    def row_layout(self) -> RowLayout:
        """The layout of the rows that this estimator needs inside TreeCV."""
        return RowLayout(padded=True)

    @property
    def lane_parameters(self) -> tuple[str, ...]:
        """The parameters in which estimators trained side by side may differ.

        Where there are some, ``make_lanes`` returns the kernel for several estimators: as
        ``make_kernel``, from rows and estimators like this one except for the values of these
        parameters.
        """
        return ()

    @property
    def rewrites_often(self) -> bool:
        """Whether weights shrink so fast that all are rewritten every few hundred rows.

        With wide sparse lanes, each rewriting reads the weights of all lanes. This costs more than
        lanes save.
        """
        return False

    @property
    def is_balanced(self) -> bool:
        """Whether each row is also weighted by the inverse frequency of its class so far."""
        return isinstance(getattr(self, "class_weight", None), str)

    def weights_of_classes(self, classes: np.ndarray | None) -> tuple[float, ...] | None:
        """Return what the weights of each class's rows are multiplied by; None: all are 1."""
        if classes is None or not isinstance(getattr(self, "class_weight", None), dict):
            return None
        return weights_of_classes(self.class_weight, classes)

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the response that a method or a loss needs, from outputs (rows, n_outputs)."""
        return outputs[:, 0]

    def bound(self, n_seen: int) -> frozenset[str]:
        """Return the parameters that have influenced a state of ``n_seen`` rows.

        If these names and their values are the same for two estimators, their states after the
        same rows are the same, bit for bit. ``fit_intercept``, ``shuffle`` and ``n_epochs`` are
        never among them, because they act through the rows: the intercept is a column, the others
        determine an order.

        Parameters
        ----------
        n_seen : int
            Number of rows trained on, replays included.

        Returns
        -------
        frozenset of str
            Names of parameters. There may be too many of them, but never too few.
        """
        if n_seen == 0:
            return frozenset(self._fixed())
        silent = ACT_THROUGH_ROWS | (set() if self.draws else {"random_state"})
        return frozenset(self._get_param_names()) - silent

    def breakpoints(self) -> tuple[int, ...]:
        """Return the numbers of rows after which ``bound`` grows, in ascending order.

        Returns
        -------
        tuple of int
            Empty if all parameters have an influence from the first row on.
        """
        return ()

    def _fixed(self) -> dict[str, Any]:
        """Return what must not change while a state is trained, by the names of parameters."""
        return {name: getattr(self, name) for name in self._fixed_parameters}

    @abstractmethod
    def make_learner(self, rows: PreparedRows, seed: int, before: Any = None) -> Any:
        """Return this estimator as a learner over prepared rows, with the steps before it.

        Its parameters must have passed ``check_parameters``.
        """


def divergence_advice(estimator: Any) -> str:
    """Return what may help if a model or a score of an estimator is not finite."""
    names = {name.rpartition("__")[2] for name in estimator.get_params()}
    if _STEP_SIZES.isdisjoint(names):
        return "scaled features may help."
    return "a smaller step size, or scaled features, may help."
