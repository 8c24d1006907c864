"""Modules that pickles of earlier versions name, and where their classes are now."""

import sys

from optuna_treecv.caching import caches
from optuna_treecv.caching import results
from optuna_treecv.core import cross_validation
from optuna_treecv.core import intervals
from optuna_treecv.core import repeat
from optuna_treecv.core import result
from optuna_treecv.core import routing
from optuna_treecv.core import settings
from optuna_treecv.core import steps
from optuna_treecv.core import tested
from optuna_treecv.engines.treecv.learners import pegasos
from optuna_treecv.engines.treecv.learners import sgd
from optuna_treecv.engines.treecv.learners import svrg
from optuna_treecv.engines.trees import estimators
from optuna_treecv.engines.trees import forest
from optuna_treecv.estimators import without_effect
from optuna_treecv.rows import partition

for _before, _now in {
    "crossval.engine": repeat,
    "crossval.intervals": intervals,
    "crossval.result": result,
    "crossval.routing": routing,
    "crossval.settings": settings,
    "crossval.steps": steps,
    "crossval.task": cross_validation,
    "crossval.tested": tested,
    "learners.pegasos": pegasos,
    "learners.sgd": sgd,
    "learners.svrg": svrg,
    "learners.trees.estimators": estimators,
    "learners.trees.forest": forest,
    "learners.without_effect": without_effect,
    "sharing.caches": caches,
    "sharing.results": results,
    "tree.plan": partition,
}.items():
    sys.modules[f"optuna_treecv.{_before}"] = _now
