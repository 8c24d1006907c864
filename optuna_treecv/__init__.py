"""Fast cross-validation, also as an objective for Optuna.

All folds are evaluated for about the cost of a few trainings: by TreeCV (incremental learners),
sums over rows, joint Newton steps, one search for neighbours, or ensembles that grow.
"""

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.core.result import CVResult
from optuna_treecv.crossval.evaluate import tree_cross_val_predict
from optuna_treecv.crossval.evaluate import tree_cross_validate
from optuna_treecv.crossval.evaluate import tree_cross_validate_many
from optuna_treecv.engines.treecv.learners.pegasos import PegasosClassifier
from optuna_treecv.engines.treecv.learners.sgd import AveragedSGDClassifier
from optuna_treecv.engines.treecv.learners.sgd import AveragedSGDRegressor
from optuna_treecv.engines.treecv.learners.svrg import StreamingSVRGClassifier
from optuna_treecv.engines.treecv.learners.svrg import StreamingSVRGRegressor
from optuna_treecv.engines.trees.estimators import HistTreeClassifier
from optuna_treecv.engines.trees.estimators import HistTreeRegressor
import optuna_treecv.moved  # noqa: F401
import optuna_treecv.results  # noqa: F401
from optuna_treecv.scoring.metrics import pooled
from optuna_treecv.scoring.thresholds import thresholded
from optuna_treecv.search.search_cv import TreeCVSearchCV
from optuna_treecv.selection.select import select_features
from optuna_treecv.study.functions import select
from optuna_treecv.study.functions import treecv_objective
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.racing import RacingPruner

__all__ = [
    "AveragedSGDClassifier",
    "AveragedSGDRegressor",
    "CVResult",
    "HistTreeClassifier",
    "HistTreeRegressor",
    "ModelCache",
    "PegasosClassifier",
    "RacingPruner",
    "StreamingSVRGClassifier",
    "StreamingSVRGRegressor",
    "TreeCVObjective",
    "TreeCVSearchCV",
    "pooled",
    "select",
    "select_features",
    "thresholded",
    "tree_cross_val_predict",
    "tree_cross_validate",
    "tree_cross_validate_many",
    "treecv_objective",
]

__version__ = "0.1.0"

# Pickles and keys contain the public name of a class, not that of its file, as in results, paper.
for _name in __all__:
    globals()[_name].__module__ = __name__
