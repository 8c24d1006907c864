"""An estimator fitted on all rows, as its method would train it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from optuna_treecv._kernels.order import random_order
from optuna_treecv.crossval.choice import method_for
from optuna_treecv.crossval.epochs import epochs_of
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.fit import fit_on_rows_as_given
from optuna_treecv.crossval.forest import Grown
from optuna_treecv.crossval.forest import tree_of_all_rows
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import as_given
from optuna_treecv.learners.from_estimator import forget_seeds
from optuna_treecv.tree.learner import Replayer


def fit_on_all_rows(evaluation: Evaluation, estimator: Any, n_epochs: int | None = None) -> Any:
    """Return the estimator fitted on all rows, with its parameters as given.

    A method that trains models further reads the rows in prepared order, and in further epochs in
    random orders. ``n_epochs`` are those of a trial; None: those of the evaluation.
    """
    estimator = as_estimator(estimator)
    method = method_for(evaluation, estimator, n_epochs=n_epochs)
    method.check(estimator)
    n_passes = epochs_of(evaluation, estimator, method, n_epochs=n_epochs)
    if isinstance(method, Grown):
        return tree_of_all_rows(evaluation, estimator)
    if not method.is_one_pass:
        return fit_on_rows_as_given(evaluation, estimator)
    rows, _ = evaluation.rows(estimator)
    learner = evaluation.learner(estimator, rows)
    state = learner.start()
    learner.update(state, slice(0, evaluation.data.n_rows))
    order = np.empty(len(rows.order), np.uint32)
    for epoch in range(1, n_passes):
        random_order(evaluation.seed, 0, len(order), epoch * len(order), order)
        assert isinstance(learner, Replayer)
        learner.replay(state, order)
    fitted = learner.estimator(state)
    if fitted is None:
        raise ValueError(f"{estimator!r} diverges on all rows; {DIVERGENCE_ADVICE}")
    if not isinstance(evaluation.ahead(estimator), str):
        fitted = deepcopy(fitted)  # whoever fits its steps again must not change those of trials
    forget_seeds(fitted, estimator)
    if rows.feature_names is not None and isinstance(estimator, CompiledEstimator):
        fitted.feature_names_in_ = rows.feature_names  # other estimators have seen the names
    return as_given(fitted)
