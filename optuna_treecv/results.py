"""The types of results beside ``CVResult``, for annotations."""

from optuna_treecv.crossval.intervals import Interval
from optuna_treecv.crossval.intervals import PairedDifference
from optuna_treecv.study.advice import Advice
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.honest import Honest
from optuna_treecv.study.nested import Nested

__all__ = ["Advice", "Choice", "Honest", "Interval", "Nested", "PairedDifference"]
