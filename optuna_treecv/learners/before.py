"""The protocols of what stands before a learner in a Pipeline."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from typing import Protocol

import numpy as np

from optuna_treecv._kernels.tree import Kernel
from optuna_treecv.rows.data import PreparedRows


class Before(Protocol):
    """Fitted steps before a compiled learner."""

    def around(self, kernel: Kernel, rows: PreparedRows) -> Kernel:
        """Return a kernel over rows that sees them as the learner should."""

    def settings(self) -> dict[str, Any]:
        """Return what states depend on besides the learner and the rows after the steps."""

    def as_given(self, order: np.ndarray) -> Any:
        """Return rows as they were before the steps."""

    def fitted(self, last: Any, kernel: Kernel, state: np.ndarray | None) -> Any:
        """Return the fitted steps with a fitted learner behind them.

        ``kernel`` is from ``around``, and ``state`` one of its states, or None.
        """


class BeforeAdapter(Protocol):
    """Fitted steps before a learner that is trained by ``partial_fit``."""

    def naming(self) -> AbstractContextManager[None]:
        """Name the column that an error is about as it is called before or after the steps."""

    def as_given(self, order: np.ndarray) -> Any:
        """Return rows as they were before the steps."""

    def fitted(self, behind: Any) -> Any:
        """Return the fitted steps with what was trained behind them."""
