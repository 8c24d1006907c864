"""Chooses the method for an estimator and the way in which the rows are cut."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from optuna_treecv.crossval.arguments import check_estimator
from optuna_treecv.crossval.chain import Chain
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.fit import Fit
from optuna_treecv.crossval.methods import Method
from optuna_treecv.crossval.routing import Passed
from optuna_treecv.crossval.standard import Standard
from optuna_treecv.crossval.treecv import TreeCV
from optuna_treecv.learners.from_estimator import check_targets
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import Scoring


def settle(
    evaluation: Evaluation,
    estimator: Any,
    of_class: bool = False,
    searched: Collection[str] = (),
) -> tuple[Method, Scoring]:
    """Return the method and the scoring by which an estimator is evaluated, after checking it.

    The first estimator of an evaluation decides how the rows are cut.

    Parameters
    ----------
    evaluation : Evaluation
    estimator : estimator
    of_class : bool
        Refuse only what no parameter could change.
    searched : collection of str
        Parameters that a search sets, so that their values are not checked.

    Raises
    ------
    ValueError
        If the estimator cannot be evaluated.
    """
    method = method_for(evaluation, estimator, searched)
    method.check(estimator, of_class, searched)
    return method, evaluation.scoring_for(estimator, method.is_one_pass, of_class)


def method_for(evaluation: Evaluation, estimator: Any, searched: Collection[str] = ()) -> Method:
    """Return the method that evaluates an estimator; warn once where it may surprise."""
    check_estimator(estimator)
    check_targets(estimator, evaluation.data, searched)
    evaluation.cut_for(estimator)
    passed = evaluation.passed_to(estimator)
    method, why = _choose(evaluation.asked_method, estimator, evaluation.repeats[0].cut, passed)
    if method.is_one_pass:
        passed.check_further(estimator)
    elif hasattr(estimator, "fit"):
        passed.check_fit(estimator, searched)
    evaluation.note_method(method.is_one_pass, why)
    return method


def _choose(asked: str, estimator: Any, cut: Cut, passed: Passed) -> tuple[Method, str]:
    """Return the method that evaluates an estimator, and a sentence where it may surprise.

    Parameters
    ----------
    asked : str
        One of ``ASKED_METHODS``.
    estimator : estimator
    cut : Folds or Splits
        How the rows are cut.
    passed : Passed
        What it gets besides X and y.

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
        why = passed.why_not_further(estimator)
        if why and asked != "treecv" and hasattr(estimator, "fit"):
            return Fit(), (
                f"{name_of(estimator)} is fitted {cut.n_folds} times (method='fit'), since {why}."
            )
        if isinstance(cut, Folds):
            return TreeCV(), ""
        if cut.grows:
            return Chain(), ""
        if asked == "treecv" or not hasattr(estimator, "fit"):
            fit = "method='fit' or " if hasattr(estimator, "fit") else ""
            raise ValueError(
                "cv must be a splitter that trains each model on all rows that it does not test, "
                "or on growing first parts of the rows, since the tree does, but "
                f"{cut.why_no_tree}; {fit}method='standard' would be right."
            )
        return Fit(), (
            f"{name_of(estimator)} is fitted {cut.n_folds} times (method='fit'), since the tree "
            f"trains each model on all rows that it does not test, but {cut.why_no_tree}."
        )
    return Fit(), ""
