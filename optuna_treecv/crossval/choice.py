"""Chooses the method for an estimator and the way in which the rows are cut."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sklearn.base import is_classifier

from optuna_treecv.crossval.arguments import check_estimator
from optuna_treecv.crossval.chain import Chain
from optuna_treecv.crossval.epochs import epochs_of
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.exact import Exact
from optuna_treecv.crossval.exact_choice import why_counts_differ
from optuna_treecv.crossval.exact_choice import why_not_exact
from optuna_treecv.crossval.exact_choice import why_not_scored
from optuna_treecv.crossval.fit import Fit
from optuna_treecv.crossval.forest import Grown
from optuna_treecv.crossval.forest import why_no_forest
from optuna_treecv.crossval.methods import Method
from optuna_treecv.crossval.misleading import why_scales_mislead
from optuna_treecv.crossval.progressive import Progressive
from optuna_treecv.crossval.routing import Passed
from optuna_treecv.crossval.standard import Standard
from optuna_treecv.crossval.treecv import TreeCV
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.exact.families import FAMILIES
from optuna_treecv.learners.from_estimator import check_targets
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.incremental import refused_setting
from optuna_treecv.learners.one_pass import why_fit_differs
from optuna_treecv.learners.steps.split import has_branches
from optuna_treecv.learners.steps.split import split
from optuna_treecv.learners.steps.split import why_rows_age
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import Scoring

_WHY_EXACT = "its models follow from sums over rows"
_WHY_FOREST = "the trees of all folds are grown together"


def settle(
    evaluation: Evaluation,
    estimator: Any,
    of_class: bool = False,
    searched: Collection[str] = (),
    n_epochs: int | None = None,
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
    n_epochs : int or None
        The epochs of a trial; None: those of the evaluation.

    Raises
    ------
    ValueError
        If the estimator cannot be evaluated.
    """
    method = method_for(evaluation, estimator, searched, n_epochs)
    method.check(estimator, of_class, searched)
    epochs_of(evaluation, estimator, method, searched, n_epochs)
    scoring = evaluation.scoring_for(estimator, method.is_one_pass, of_class)
    about = f"scales of {type(estimator).__name__}"
    evaluation.warn_once(about, lambda: why_scales_mislead(estimator, evaluation.data.X))
    evaluation.check_scores_rows(scoring, estimator)
    return method, scoring


def method_for(
    evaluation: Evaluation,
    estimator: Any,
    searched: Collection[str] = (),
    n_epochs: int | None = None,
) -> Method:
    """Return the method that evaluates an estimator; warn once where it may surprise.

    The parameters are those of ``settle``.
    """
    check_estimator(estimator)
    check_targets(estimator, evaluation.data, searched)
    evaluation.cut_for(estimator)
    evaluation.forget_steps(estimator)
    passed = evaluation.passed_to(estimator)
    is_further = n_epochs is not None or evaluation.asks_for_passes or "n_epochs" in searched
    # The trials of a search over max_iter are all fitted, those with max_iter=1 too.
    is_open = searched or [name for name in evaluation.searched if name.endswith("max_iter")]
    why_fit = "" if is_further else why_fit_differs(estimator, is_open)
    method, warning = _choose(evaluation, estimator, passed, why_fit)
    if method.is_one_pass:
        passed.check_further(estimator)
        if not searched:
            _check_steps(evaluation, estimator)
    elif hasattr(estimator, "fit"):
        passed.check_fit(estimator, searched)
    if warning:
        evaluation.warn_once("method", lambda: warning)
    return method


def _check_steps(evaluation: Evaluation, estimator: Any) -> None:
    """Refuse steps that can neither be done once nor be trained further.

    Where all steps stand in a row, the method itself says which one it cannot train.
    """
    if isinstance(split(estimator), str) and not has_branches(estimator):
        return
    ahead = evaluation.ahead(estimator)
    if isinstance(ahead, str) and ahead and not is_incremental(estimator):
        raise ValueError(
            f"method must be 'fit' or 'auto' for this {name_of(estimator)}, since {ahead}, got "
            f"{evaluation.asked_method!r}."
        )


def _choose(
    evaluation: Evaluation, estimator: Any, passed: Passed, why_fit: str
) -> tuple[Method, str]:
    """Return the method that evaluates an estimator, and a sentence where it may surprise.

    Parameters
    ----------
    evaluation : Evaluation
        The rows are cut.
    estimator : estimator
    passed : Passed
        What it gets besides X and y.
    why_fit : str
        Why "auto" fits it even if it could be trained further, a clause; empty if it does not.

    Raises
    ------
    ValueError
        If "exact" is asked for where there are no exact folds, or "treecv" where the rows are cut
        into splits that the tree does not train.
    """
    asked, cut = evaluation.asked_method, evaluation.repeats[0].cut
    if why := evaluation.data.why_only_fit(is_classifier(estimator)):
        return _only_fit(estimator, asked, why), ""
    if asked == "fit":
        return Fit(), ""
    if asked == "standard" and not isinstance(estimator, HistTree):
        return Standard(), ""
    if asked == "progressive":
        return Progressive(), ""
    if asked == "forest" or isinstance(estimator, HistTree):
        return _grown(evaluation, estimator, passed), ""
    why_not = ""
    if asked != "treecv":
        why_not = why_not_exact(evaluation, estimator, passed, is_asked=asked == "exact")
        if not why_not:
            return Exact("" if asked == "exact" else _WHY_EXACT), ""
        if asked == "exact":
            raise ValueError(
                f"method='exact' must have an estimator whose models follow from sums over rows "
                f"({', '.join(kind.__name__ for kind in FAMILIES)}), alone or after row-wise "
                f"steps or a StandardScaler, but {why_not}; method='auto' would be right."
            )
    if asked != "treecv":
        why = why_fit or why_rows_age(estimator)
        if why := why or why_counts_differ(evaluation, estimator, passed):
            return Fit(why), ""
    ahead = evaluation.ahead(estimator)
    if asked == "treecv" or not isinstance(ahead, str) or is_incremental(estimator):
        why = passed.why_not_further(estimator)
        if why and asked != "treecv" and hasattr(estimator, "fit"):
            return Fit(why), (
                f"{name_of(estimator)} is fitted {cut.n_folds} times (method='fit'), since {why}."
            )
        trained_further = "" if asked == "treecv" else _why_further(estimator, ahead)
        if isinstance(cut, Folds):
            return TreeCV(trained_further), ""
        if cut.grows:
            return Chain(trained_further), ""
        if asked == "treecv" or not hasattr(estimator, "fit"):
            fit = "method='fit' or " if hasattr(estimator, "fit") else ""
            raise ValueError(
                "cv must be a splitter that trains each model on all rows that it does not test, "
                "or on growing first parts of the rows, since the tree does, but "
                f"{cut.why_no_tree}; {fit}method='standard' would be right."
            )
        return Fit(cut.why_no_tree), (
            f"{name_of(estimator)} is fitted {cut.n_folds} times (method='fit'), since the tree "
            f"trains each model on all rows that it does not test, but {cut.why_no_tree}."
        )
    if isinstance(last_step(estimator), HistTree):
        why_not = "the trees of all folds are grown together only without steps before them"
    elif isinstance(ahead, str) and ahead:
        why_not = ahead
    elif refused := refused_setting(estimator):
        why_not = refused
    return Fit(why_not), ""


def _only_fit(estimator: Any, asked: str, why: str) -> Method:
    """Return fits, for rows of more dimensions or targets that no other method takes."""
    is_compiled = isinstance(last_step(estimator), CompiledEstimator)
    if is_compiled or asked not in ("auto", "fit", "holdout"):
        whose = f" for {name_of(estimator)}" if is_compiled else f" for method={asked!r}"
        raise ValueError(
            f"X must have 2 dimensions, rows and features, and y one column of classes, or "
            f"columns of numbers{whose}, but {why}."
        )
    return Fit(why)


def _why_further(estimator: Any, ahead: Any) -> str:
    if isinstance(ahead, str):
        slowly = f"; its steps run in Python, since {ahead}" if ahead else ""
        return f"{name_of(estimator)} has partial_fit{slowly}"
    last = name_of(last_step(estimator))
    if ahead.front.is_compiled:
        return f"its steps run with the compiled {last}"
    slowly = f", since {ahead.why_python}" if ahead.why_python else ""
    return f"{last} has partial_fit; its steps are done once or run in Python{slowly}"


def _grown(evaluation: Evaluation, estimator: Any, passed: Passed) -> Method:
    """Return the method for a tree that could be grown with those of the other folds."""
    asked = evaluation.asked_method
    why = why_no_forest(evaluation, estimator)
    why = why or passed.why_not_by_sums(estimator) or why_not_scored(evaluation)
    if not why and asked in ("auto", "forest", "holdout", "standard"):
        is_chosen = asked in ("auto", "holdout")
        return Grown(_WHY_FOREST if is_chosen else "", together=asked != "standard")
    if asked == "auto" and not evaluation.repeats[0].cut.are_single_rows:
        return Fit(why)
    if asked in ("auto", "holdout"):
        return _fit_or_refuse(evaluation, estimator, why)
    if asked in ("forest", "standard"):
        raise ValueError(
            f"method={asked!r} must have a HistTreeClassifier or a HistTreeRegressor, and folds "
            f"of several rows each that are a partition of the rows, but {why}; method='fit' "
            "would be right."
        )
    raise ValueError(
        f"method must be 'auto', 'forest', 'fit' or 'standard' for {name_of(estimator)}, whose "
        f"nodes are searched anew and not trained further, got {asked!r}."
    )


def _fit_or_refuse(evaluation: Evaluation, estimator: Any, why: str) -> Method:
    if evaluation.asked_method == "holdout":
        return Fit(why)
    raise ValueError(
        f"cv must have folds of several rows for {name_of(estimator)}, got leave-one-out, for "
        "which each node is searched once per row; cv=10 or method='fit' would be right."
    )
