"""How the folds of one repeat are evaluated: the protocol of a method.

A new method is a new file, and a line in ``choice.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

import numpy as np

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import PooledScore
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import TestedBlock


class Missing(NamedTuple):
    """Results that are needed and missing.

    Attributes
    ----------
    name : str
        The name under which they are kept.
    n_bytes : int
        The bytes that they will take while they wait for their trial.
    """

    name: str
    n_bytes: int


class SideBySide(Protocol):
    """How several estimators are evaluated together."""

    def parameters(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameters in which the estimators may differ; none: it is left alone."""

    def missing(self, request: Request) -> Missing | None:
        """Return what is missing of the first repeat; None if the results are there already."""

    def evaluate(self, requests: Sequence[Request], are_leased: bool) -> bool:
        """Compute what can be computed together, into ``Request.ahead``.

        A request that raises an error is left to its own run.

        Parameters
        ----------
        requests : sequence of Request
            All of one evaluation and of this method.
        are_leased : bool
            Whether other processes may wait for the results.

        Returns
        -------
        bool
            Whether anything was computed.
        """


class Instead(Exception):
    """Says that another method has evaluated a repeat, and does so with the further ones.

    Attributes
    ----------
    method : Method
    own : RepeatRun
        What it has found.
    """

    def __init__(self, method: Method, own: RepeatRun) -> None:
        super().__init__(method.why)
        self.method, self.own = method, own


class Method(Protocol):
    """A way to evaluate the folds of one repeat."""

    @property
    def name(self) -> str:
        """The name under which results are kept, and which ``CVResult.method`` has."""

    @property
    def why(self) -> str:
        """Why "auto" has chosen it, a clause; "" if the user chose it."""

    @property
    def side_by_side(self) -> SideBySide | None:
        """How several estimators are evaluated together; None: each one alone."""

    @property
    def is_one_pass(self) -> bool:
        """Whether models are trained by ``partial_fit`` in one pass over their rows."""

    def check(
        self, estimator: Any, of_class: bool = False, searched: Collection[str] = ()
    ) -> None:
        """Refuse an estimator that this method cannot evaluate.

        Parameters
        ----------
        estimator : estimator
        of_class : bool
            Refuse only what no parameter could change.
        searched : collection of str
            Parameters that a search sets, so that their values are not checked.
        """

    def begin(self, request: Request, repeat: Repeat) -> RepeatRun:
        """Return what evaluates an estimator on a repeat.

        Raises
        ------
        Instead
            If this method turns out to be the wrong one.
        """


class RepeatRun(Protocol):
    """One estimator's way through one repeat.

    Attributes
    ----------
    key, fingerprint : str
        What is trained how, and on which rows.
    seconds_prepare : float
        The time in which the rows were prepared.
    seconds_before : float
        The time spent on it before it began.
    """

    key: str
    fingerprint: str
    seconds_prepare: float
    seconds_before: float

    @property
    def n_updates(self) -> int:
        """The rows trained on so far."""

    def blocks(self) -> Generator[TestedBlock]:
        """Evaluate the folds.

        Yields
        ------
        TestedBlock
            A block once all its folds are tested, and the rows of its trainings, whether they had
            to be done or were done already.
        """

    def scores(self, folds: Node) -> FoldScores:
        """Return the scores of tested folds."""

    def pooled(self, metric: Pooled) -> PooledScore:
        """Return a score over all rows, once all of them are tested."""

    def row_scores(self, folds: Node) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the scores of the rows of tested folds, and their weights.

        They are asked for if ``Request.needs_rows``, and are by the first optimised metric. None
        if they are not known.
        """

    def tested_rows(self, folds: Node) -> np.ndarray:
        """Return the rows as given that ``row_scores`` has, in its order."""

    def keep(self, n_needed: int, seconds: float) -> None:
        """Keep the results, now that all folds are tested."""
