"""Modules that pickles of earlier versions name, and where their classes are now."""

import sys

from optuna_treecv.core import cross_validation
from optuna_treecv.core import intervals
from optuna_treecv.core import repeat
from optuna_treecv.core import result
from optuna_treecv.core import routing
from optuna_treecv.core import settings
from optuna_treecv.core import steps
from optuna_treecv.core import tested

for _before, _now in {
    "engine": repeat,
    "intervals": intervals,
    "result": result,
    "routing": routing,
    "settings": settings,
    "steps": steps,
    "task": cross_validation,
    "tested": tested,
}.items():
    sys.modules[f"optuna_treecv.crossval.{_before}"] = _now
