"""Aliases for former modules, to which pickles of earlier versions refer."""

from importlib import import_module
import sys

for _before, _now in {
    "crossval.engine": "core.repeat",
    "crossval.intervals": "core.intervals",
    "crossval.result": "core.result",
    "crossval.routing": "core.routing",
    "crossval.settings": "core.settings",
    "crossval.steps": "core.steps",
    "crossval.task": "core.cross_validation",
    "crossval.tested": "core.tested",
    "learners.pegasos": "engines.treecv.learners.pegasos",
    "learners.sgd": "engines.treecv.learners.sgd",
    "learners.svrg": "engines.treecv.learners.svrg",
    "learners.trees.estimators": "engines.trees.estimators",
    "learners.trees.forest": "engines.trees.forest",
    "learners.without_effect": "estimators.incremental",
    "sharing.caches": "caching.caches",
    "sharing.results": "caching.results",
    "tree.plan": "rows.partition",
}.items():
    sys.modules[f"optuna_treecv.{_before}"] = import_module(f"optuna_treecv.{_now}")

_space, _grids = (import_module(f"optuna_treecv.study.{name}") for name in ("space", "grids"))
vars(_space)["GridSampler"] = vars(_grids)["GridSampler"]
