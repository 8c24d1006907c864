"""The types of results besides ``CVResult``, for annotations."""

from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import PairedDifference
from optuna_treecv.core.result import Curve
from optuna_treecv.core.result import Score
from optuna_treecv.selection.select import FeatureSelection
from optuna_treecv.study.advice import Advice
from optuna_treecv.study.choice import Candidate
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.conformal import ConformalClassifier
from optuna_treecv.study.conformal import ConformalRegressor
from optuna_treecv.study.fold_average import FoldAverage
from optuna_treecv.study.honest import Honest
from optuna_treecv.study.nested import Nested
from optuna_treecv.study.threshold import Threshold

__all__ = [
    "Advice",
    "Candidate",
    "Choice",
    "ConformalClassifier",
    "ConformalRegressor",
    "Curve",
    "FeatureSelection",
    "FoldAverage",
    "FoldModels",
    "Honest",
    "Interval",
    "Nested",
    "PairedDifference",
    "Score",
    "Threshold",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
