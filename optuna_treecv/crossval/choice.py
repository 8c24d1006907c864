"""Chooses the method for an estimator and the way in which the rows are cut."""

from __future__ import annotations

from typing import Any

from optuna_treecv.crossval.chain import Chain
from optuna_treecv.crossval.fit import Fit
from optuna_treecv.crossval.methods import Method
from optuna_treecv.crossval.standard import Standard
from optuna_treecv.crossval.treecv import TreeCV
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.splits import Cut

#: What users may ask for.
ASKED = ("auto", "treecv", "fit", "standard", "holdout")


def choose(asked: str, estimator: Any, cut: Cut) -> tuple[Method, str]:
    """Return the method that evaluates an estimator, and a sentence where it may surprise.

    Parameters
    ----------
    asked : str
        One of ``ASKED``.
    estimator : estimator
    cut : Folds or Splits
        How the rows are cut.

    Raises
    ------
    ValueError
        If "treecv" is asked for where the rows are cut into splits that it does not train.
    """
    if asked == "fit":
        return Fit(), ""
    if asked == "standard":
        return Standard(), ""
    if asked == "treecv" or is_incremental(estimator):
        if isinstance(cut, Folds):
            return TreeCV(), ""
        if cut.grows:
            return Chain(), ""
        if asked == "treecv" or not hasattr(estimator, "fit"):
            raise ValueError(
                "cv must be a splitter that trains each model on all rows that it does not test, "
                "or on growing first parts of the rows, since the tree does, but "
                f"{cut.why_no_tree}; method='fit' or method='standard' would be right."
            )
        return Fit(), (
            f"{name_of(estimator)} is fitted {cut.n_folds} times (method='fit'), since the tree "
            f"trains each model on all rows that it does not test, but {cut.why_no_tree}."
        )
    return Fit(), ""
