"""The evaluations and fold scores of a store, as data frames."""

from optuna_treecv.reporting.history import forget
from optuna_treecv.reporting.history import load_evaluations
from optuna_treecv.reporting.history import load_fold_scores

__all__ = ["forget", "load_evaluations", "load_fold_scores"]
