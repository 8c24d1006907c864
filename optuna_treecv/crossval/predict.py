"""Out-of-fold predictions: each row is predicted by the model that has not seen it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_regressor

from optuna_treecv.crossval.arguments import check_choice
from optuna_treecv.crossval.choice import method_for
from optuna_treecv.crossval.epochs import epochs_of
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.exact import Exact
from optuna_treecv.crossval.exact import predictions_of_exact
from optuna_treecv.crossval.fit import predictions_of_fits
from optuna_treecv.crossval.forest import Grown
from optuna_treecv.crossval.forest import predictions_of_forest
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import check_methods
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import Leaves

RESPONSE_METHODS = ("predict", "decision_function", "predict_proba", "score_samples")


def predict_out_of_fold(
    evaluation: Evaluation,
    estimator: Any,
    response_method: str,
    argument: str = "response_method",
    n_epochs: int | None = None,
) -> np.ndarray:
    """Return the out-of-fold responses, in the order of the rows as given.

    Parameters
    ----------
    evaluation : Evaluation
    estimator : estimator
    response_method : str
    argument : str
        What the caller calls ``response_method``.
    n_epochs : int or None
        The epochs of a trial; None: those of the evaluation.
    """
    check_choice(argument, response_method, RESPONSE_METHODS)
    if evaluation.asked_method == "progressive":
        raise ValueError(
            "method must be another than 'progressive' for predictions, since its first eighth of "
            "the rows is only trained on; 'auto' would be right."
        )
    estimator = as_estimator(estimator)
    method = method_for(evaluation, estimator, n_epochs=n_epochs)
    method.check(estimator)
    n_passes = epochs_of(evaluation, estimator, method, n_epochs=n_epochs)
    check_methods(estimator, response_method, f"{argument}={response_method!r}")
    repeat = evaluation.repeats[0]
    cut = repeat.cut
    is_repeated = len(evaluation.repeats) > 1
    if not isinstance(cut, Folds) or cut.n_tested < cut.n_rows or is_repeated:
        raise ValueError(
            "cv must be a splitter whose test sets hold every row once, and n_repeats must be 1, "
            "since each row gets one prediction, got folds that leave rows untested or test them "
            "several times."
        )
    if isinstance(method, Trained):
        evaluation.unused.warn(estimator, n_epochs=n_epochs or evaluation.n_epochs)
        repeat = evaluation.repeats_for(n_passes)[0]
        return _of_trained_models(evaluation, repeat, method, estimator, response_method)
    if isinstance(method, Grown):
        return predictions_of_forest(evaluation, repeat, estimator, response_method)
    if isinstance(method, Exact):
        is_chosen = bool(method.why)
        return predictions_of_exact(evaluation, repeat, estimator, response_method, is_chosen)
    return predictions_of_fits(evaluation, repeat, estimator, response_method)


def _of_trained_models(
    evaluation: Evaluation, repeat: Repeat, method: Trained, estimator: Any, response_method: str
) -> np.ndarray:
    rows, _ = evaluation.rows(estimator)
    learner = evaluation.learner(estimator, rows, (response_method,))
    leaves = Leaves(repeat.plan, learner)
    assert leaves.outputs is not None
    for _ in method.test_folds(repeat, learner, leaves, evaluation.n_jobs):
        pass
    prepared = learner.respond(leaves.outputs.array, response_method)
    if response_method == "predict" and not is_regressor(estimator):
        if not np.all(np.isfinite(leaves.outputs.array)):
            raise ValueError(f"{estimator!r} diverges; {DIVERGENCE_ADVICE}")
        codes = prepared.astype(np.intp)
        if rows.classes is not None and np.any(codes < 0):
            raise ValueError(
                f"{name_of(estimator)} predicts no class where it has learned none, or a label "
                "that is no class of y."
            )
        prepared = codes if rows.classes is None else rows.classes[codes]
    predictions = np.empty_like(prepared)
    predictions[rows.order] = prepared
    return predictions
