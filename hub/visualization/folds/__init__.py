from optuna_treecv.report import plot_choice
from optuna_treecv.report import plot_fold_scores


__all__ = ["plot_choice", "plot_fold_scores"]
