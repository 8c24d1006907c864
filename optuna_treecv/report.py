"""Figures of a study for notebooks."""

from optuna_treecv.reporting.figures import plot_choice
from optuna_treecv.reporting.figures import plot_fold_scores
from optuna_treecv.reporting.figures import plot_parameters
from optuna_treecv.reporting.figures import plot_sharing
from optuna_treecv.reporting.figures import plot_time

__all__ = ["plot_choice", "plot_fold_scores", "plot_parameters", "plot_sharing", "plot_time"]
