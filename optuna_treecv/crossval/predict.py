"""Out-of-fold predictions: each row is predicted by the model that has not seen it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_regressor

from optuna_treecv.crossval.arguments import check_choice
from optuna_treecv.crossval.arguments import check_estimator
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import check_methods
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.scoring import OutputsAtLeaves

RESPONSE_METHODS = ("predict", "decision_function", "predict_proba", "score_samples")


def predict_out_of_fold(
    evaluation: Evaluation, estimator: Any, response_method: str
) -> np.ndarray:
    """Return the out-of-fold responses of the first repeat, in the order of the rows as given."""
    check_choice("response_method", response_method, RESPONSE_METHODS)
    estimator = as_estimator(estimator)
    check_estimator(estimator)
    check_methods(estimator, response_method, f"response_method={response_method!r}")
    evaluation.unused.warn(estimator)
    repeat = evaluation.repeats[0]
    rows, _ = evaluation.rows(estimator)
    learner = evaluation.learner(estimator, rows, response_method)
    leaves = OutputsAtLeaves(repeat.plan, learner)
    blocks = evaluation.method.test_folds(
        repeat.plan, learner, leaves, repeat.blocks, evaluation.n_jobs
    )
    for _ in blocks:
        pass
    prepared = learner.respond(leaves.outputs.array, response_method)
    if response_method == "predict" and not is_regressor(estimator):
        if not np.all(np.isfinite(leaves.outputs.array)):
            raise ValueError(f"{estimator!r} diverges; {DIVERGENCE_ADVICE}")
        codes = prepared.astype(np.intp)
        if rows.classes is not None and np.any(codes < 0):
            raise ValueError(f"{name_of(estimator)} predicts no class where it has learned none.")
        prepared = codes if rows.classes is None else rows.classes[codes]
    predictions = np.empty_like(prepared)
    predictions[rows.order] = prepared
    return predictions
