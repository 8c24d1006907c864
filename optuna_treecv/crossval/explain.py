"""Says in words how an estimator is evaluated, why so, and what it costs."""

from __future__ import annotations

from math import log2
from typing import Any

from sklearn.pipeline import Pipeline

from optuna_treecv.crossval.choice import method_for
from optuna_treecv.crossval.epochs import epochs_of
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.methods import Method
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.exact.families import parts_of
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.one_pass import why_fit_differs
from optuna_treecv.learners.steps.decisions import BY_FIT
from optuna_treecv.learners.steps.decisions import BY_KERNEL
from optuna_treecv.learners.steps.decisions import BY_PARTIAL_FIT
from optuna_treecv.learners.steps.decisions import decisions_for
from optuna_treecv.learners.steps.decisions import FROM_SUMS
from optuna_treecv.learners.steps.decisions import IN_ROW
from optuna_treecv.rows.folds import Folds

# The folds that take a fraction of the time of leave-one-out, with hardly fewer training rows.
_FEWER_FOLDS = 1000


def explain(evaluation: Evaluation, estimator: Any, n_epochs: int | None = None) -> str:
    """Return how an estimator is evaluated, why so, and what it costs.

    ``n_epochs`` are those of a trial; None: those of the evaluation.
    """
    estimator = as_estimator(estimator)
    method = method_for(evaluation, estimator, n_epochs=n_epochs)
    method.check(estimator)
    why = f", since {method.why}" if method.why else ", which was asked for"
    found = f"{name_of(estimator)} is evaluated by method={method.name!r}{why}."
    n_passes = epochs_of(evaluation, estimator, method, n_epochs=n_epochs)
    epochs = f" Models are trained for {n_passes} epochs." if n_passes > 1 else ""
    cost = _cost(evaluation, estimator, method, n_passes)
    said = f"{found}{epochs} {cost}{_alternative(evaluation, estimator, method)}"
    return "\n".join([said, *_steps(evaluation, estimator, method)])


def _alternative(evaluation: Evaluation, estimator: Any, method: Method) -> str:
    """Return a sentence about the tree where "auto" fits what it could train further."""
    is_chosen = method.name == "fit" and method.why == why_fit_differs(estimator)
    in_tree = isinstance(evaluation.repeats[0].cut, Folds) and evaluation.n_folds > 1
    if not method.why or not is_chosen or not in_tree:
        return ""
    can_go_on = is_incremental(estimator) or not isinstance(evaluation.ahead(estimator), str)
    if not can_go_on:
        return ""
    return (
        f" With method='treecv' or n_epochs, the tree takes at most {_most(evaluation):,} row "
        "updates per epoch; models are then those after these passes of partial_fit, and not "
        "those of fit."
    )


def _most(evaluation: Evaluation) -> int:
    """Return the most row updates that the tree takes for one epoch."""
    return int(evaluation.data.n_rows * log2(2 * evaluation.n_folds)) * evaluation.n_repeats


def _steps(evaluation: Evaluation, estimator: Any, method: Method) -> list[str]:
    """Return a line for each step before the last one of a Pipeline."""
    if not isinstance(estimator, Pipeline):
        return []
    models = FROM_SUMS if method.name == "exact" else BY_FIT
    if method.is_one_pass:
        ahead = evaluation.ahead(estimator)
        models = IN_ROW
        if not isinstance(ahead, str):
            models = BY_KERNEL if ahead.front.is_compiled else BY_PARTIAL_FIT
    return [f"  {decision}" for decision in decisions_for(estimator, models)]


def _cost(evaluation: Evaluation, estimator: Any, method: Method, n_epochs: int) -> str:
    n_rows, k = evaluation.data.n_rows, evaluation.n_folds
    folds = (
        f"{k:,} folds" if evaluation.n_repeats == 1 else f"{evaluation.n_repeats} x {k:,} folds"
    )
    if method.name == "exact":
        parts = parts_of(estimator)
        assert isinstance(parts, Parts)
        said = f"One reading of the {n_rows:,} rows serves all {folds}"
        if parts.scaler is not None and parts.scaler.with_std and k == n_rows > _FEWER_FOLDS:
            return (
                f"{said}. Each row that is left out changes the scales of the StandardScaler, "
                f"which takes most of the time; cv={_FEWER_FOLDS} takes a fraction of it."
            )
        return f"{said}, and further values of {parts.parameter} are nearly free."
    if method.name == "forest":
        return (
            f"{folds[0].upper()}{folds[1:]} of {n_rows:,} rows and the tree of all rows are grown "
            "at once; further values of max_depth, min_samples_split, min_impurity_decrease and "
            "ccp_alpha are nearly free."
        )
    if method.name == "treecv" and k == 1:
        n_read = n_epochs * evaluation.n_updates_standard
        return f"One model is trained, in {n_read:,} row updates, and tested on other rows."
    if method.name == "treecv":
        return (
            f"A tree over {folds} of {n_rows:,} rows takes at most "
            f"{n_epochs * _most(evaluation):,} row updates; k "
            f"trainings from scratch take {n_epochs * evaluation.n_updates_standard:,}."
        )
    if method.name == "chain":
        return f"One model walks forward through the {n_rows:,} rows and is tested {k:,} times."
    if method.name == "progressive":
        return (
            f"One model is trained on the {n_rows:,} rows. From the second eighth on it is tested "
            "on each before it acts."
        )
    n_fits = k * evaluation.n_repeats
    kind = "fits" if method.name == "fit" else "trainings of one pass"
    kind = f"trainings of {n_epochs} passes" if n_epochs > 1 else kind
    n_read = evaluation.n_updates_standard
    return f"The {n_fits:,} {kind} have {n_read:,} training rows in all."
