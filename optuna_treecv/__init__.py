"""Cross-validation of incremental learners for the price of log2(k) trainings, as an objective
for Optuna.
"""

from optuna_treecv.crossval import tree_cross_val_predict
from optuna_treecv.crossval import tree_cross_validate
from optuna_treecv.evaluation import CVResult
from optuna_treecv.learners.lsqsgd import LSQSGDRegressor
from optuna_treecv.learners.pegasos import PegasosClassifier
from optuna_treecv.objective import treecv_objective
from optuna_treecv.objective import TreeCVObjective

__all__ = [
    "CVResult",
    "LSQSGDRegressor",
    "PegasosClassifier",
    "TreeCVObjective",
    "tree_cross_val_predict",
    "tree_cross_validate",
    "treecv_objective",
]

__version__ = "0.1.0"
