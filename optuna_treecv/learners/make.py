"""Learners: what the tree trains. An estimator with a kernel of its own, or any other through
an adapter.
"""

from __future__ import annotations

import sys
from typing import Any

from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.adapter import adapter_layout
from optuna_treecv.learners.adapter import METHODS
from optuna_treecv.learners.adapter import unset_seeds
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.tree.learner import Learner


def as_estimator(estimator: Any) -> Any:
    """What was given as estimator; a River model with the methods of a scikit-learn estimator."""
    river = sys.modules.get("river.base")  # whoever has a River model has imported it
    if river is None or not isinstance(estimator, river.Base):
        return estimator
    from optuna_treecv.learners.river import around

    return around(estimator)


def as_given(estimator: Any) -> Any:
    """The other way round."""
    return getattr(estimator, "river_model", estimator)


def name_of(estimator: Any) -> str:
    """How error messages call an estimator."""
    return type(as_given(estimator)).__name__


def layout_for(estimator: Any) -> RowLayout:
    """How the rows must be prepared for an estimator."""
    return (
        estimator.row_layout
        if isinstance(estimator, CompiledEstimator)
        else adapter_layout(estimator)
    )


def check_methods(
    estimator: Any, response_method: str | None, asked_by: str, of_class: bool = False
) -> None:
    """Refuse an estimator that cannot be asked for a response.

    Parameters
    ----------
    estimator : estimator
    response_method : str or None
        As in ``make_learner``.
    asked_by : str
        The argument that asks for it, as error messages write it.
    of_class : bool
        A method of the class will do: other settings may bring it.
    """
    if response_method is None:
        return
    needed = METHODS.get(response_method, response_method)
    if not (hasattr(estimator, needed) or (of_class and hasattr(type(estimator), needed))):
        raise ValueError(
            f"{asked_by} needs an estimator with {needed}; {name_of(estimator)} has none."
        )


def takes_seed(estimator: Any) -> bool:
    """Whether the seed of ``make_learner`` matters to an estimator."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.draws and estimator.random_state is None
    return bool(unset_seeds(estimator))


def make_learner(
    estimator: Any, rows: PreparedRows, response_method: str | None, seed: int
) -> Learner:
    """An estimator's settings bound to prepared rows.

    Parameters
    ----------
    estimator : estimator
        One that passed ``check_methods``.
    rows : PreparedRows
        In the layout that ``layout_for`` asks for.
    response_method : str or None
        What the scoring asks models for: "predict", "decision_function", "predict_proba" or
        "distance" (to the nearest centre); None if it asks for itself.
    seed : int
        For whatever in the estimator has ``random_state=None``.
    """
    if isinstance(estimator, CompiledEstimator):
        return estimator.make_learner(rows, seed)
    if as_given(estimator) is not estimator:
        from optuna_treecv.learners.river import RiverLearner

        return RiverLearner(estimator, rows, response_method, seed % 2**32)
    return Adapter(estimator, rows, response_method, seed % 2**32)
