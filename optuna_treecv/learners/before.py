"""The protocol of what stands before a learner in a Pipeline."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from typing import Protocol

import numpy as np

from optuna_treecv._kernels.tree import Kernel
from optuna_treecv.rows.data import PreparedRows


class Before(Protocol):
    """Fitted steps before a learner: in its kernel, or trained by ``partial_fit`` as it is."""

    def around(self, kernel: Kernel, rows: PreparedRows) -> Kernel:
        """Return a kernel over rows that sees them as a compiled learner should."""

    def settings(self) -> dict[str, Any]:
        """Return what states depend on besides the learner and the rows after the steps."""

    def naming(self) -> AbstractContextManager[None]:
        """Name the step, or the column after the steps, that an error is about."""

    def as_given(self, order: np.ndarray) -> Any:
        """Return rows as they were before the steps."""

    def fitted(
        self, last: Any, kernel: Kernel | None = None, state: np.ndarray | None = None
    ) -> Any:
        """Return the fitted steps with a fitted learner behind them.

        Of a compiled learner, ``kernel`` is from ``around``, and ``state`` one of its states, or
        None.
        """
