"""Figures of a study, for notebooks."""

from optuna_treecv.reporting.figures import plot_choice
from optuna_treecv.reporting.figures import plot_fold_scores
from optuna_treecv.reporting.figures import plot_parameters
from optuna_treecv.reporting.figures import plot_trees
from optuna_treecv.reporting.out_of_fold_figures import plot_out_of_fold
from optuna_treecv.reporting.tree_figures import plot_pruning_path
from optuna_treecv.reporting.tree_figures import plot_tree_agreement

__all__ = [
    "plot_choice",
    "plot_fold_scores",
    "plot_out_of_fold",
    "plot_parameters",
    "plot_pruning_path",
    "plot_tree_agreement",
    "plot_trees",
]
