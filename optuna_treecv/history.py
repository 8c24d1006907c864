"""The evaluations and fold scores of a store, as data frames."""

from optuna_treecv.reporting.history import forget
from optuna_treecv.reporting.history import iter_fold_scores
from optuna_treecv.reporting.history import load_evaluations
from optuna_treecv.reporting.history import load_fold_scores

__all__ = ["forget", "iter_fold_scores", "load_evaluations", "load_fold_scores"]
