"""Learners: what the tree trains. An estimator with a kernel of its own, or any other through
the adapter."""

from __future__ import annotations

from typing import Any

from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.adapter import adapter_layout
from optuna_treecv.learners.base import Learner
from optuna_treecv.learners.linear import LinearEstimator


def layout_for(estimator: Any) -> RowLayout:
    """How the rows must be prepared for an estimator."""
    return (
        estimator.row_layout
        if isinstance(estimator, LinearEstimator)
        else adapter_layout(estimator)
    )


def make_learner(estimator: Any, rows: PreparedRows, response_method: str, seed: int) -> Learner:
    """An estimator's settings bound to prepared rows.

    Parameters
    ----------
    estimator : estimator
    rows : PreparedRows
        In the layout that ``layout_for`` asks for.
    response_method : str
        What the scoring asks models for.
    seed : int
        For whatever in the estimator has ``random_state=None``.
    """
    if isinstance(estimator, LinearEstimator):
        return estimator.make_learner(rows, response_method)
    return Adapter(estimator, rows, response_method, seed % 2**32)
