"""Finds folds in which all weights are 0, and weights that act in no score."""

from __future__ import annotations

import numpy as np

from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.routing import Passed
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds


def check_masses(passed: Passed, cut: Cut, of_folds: bool) -> None:
    """Refuse folds whose training rows, or whose test rows, all have the weight 0.

    Parameters
    ----------
    passed : Passed
        The weights in training and in scores.
    cut : Folds or Splits
        How the rows are cut.
    of_folds : bool
        Whether there are scores of folds, and not of all rows together alone.
    """
    weights, score_weights = passed.weights, passed.score_weights
    if weights is not None and not np.all(weights):
        n_trained, _ = cut.count(weights > 0)
        if not np.all(n_trained):
            number = cut.number(int(np.argmin(n_trained)))
            raise ValueError(
                "sample_weight must be above 0 in some training row of each fold, but is 0 in all "
                f"of those of fold {number}; fewer folds, for example, would be right."
            )
    if of_folds and score_weights is not None and not np.all(score_weights):
        _, n_tested = cut.count(score_weights > 0)
        if not np.all(n_tested):
            number = cut.number(int(np.argmin(n_tested)))
            raise ValueError(
                f"{passed.name_of_score_weights} must be above 0 in some test row of each fold, "
                f"but is 0 in all of those of fold {number}, whose score would be 0/0; fewer "
                "folds, score_weight=None or pooled scores, for example, would be right."
            )


def check_masses_of_classes(learner: CompiledLearner, cut: Cut) -> None:
    """Refuse weights of classes by which all training rows of a fold have the weight 0."""
    if learner.weights_of_classes is None or all(learner.weights_of_classes):
        return
    assert learner.weights is not None
    have_weight = np.zeros(len(learner.weights), bool)
    have_weight[learner.rows.order] = learner.weights > 0
    n_trained, _ = cut.count(have_weight)
    if not np.all(n_trained):
        number = cut.number(int(np.argmin(n_trained)))
        raise ValueError(
            "class_weight must give some training row of each fold a weight above 0, but is 0 for "
            f"the classes of all those of fold {number}; stratified folds, for example, would be "
            "right."
        )


def warn_if_weights_act_in_no_score(passed: Passed, cut: Cut) -> None:
    """Warn where each fold tests a single row, whose weighted mean is its plain loss."""
    weights = passed.score_weights
    n_tested = cut.n_tested if isinstance(cut, Folds) else int(cut.bounds()[-1])
    if weights is None or np.all(weights == weights[0]) or n_tested > cut.n_folds:
        return
    warn_caller(
        f"{passed.name_of_score_weights} has no effect on scores where each fold tests one row, "
        "since the weighted mean of one loss is that loss; scoring=pooled('error'), for example, "
        "weighs all rows in one score, and score_weight=None is the same without this warning."
    )
