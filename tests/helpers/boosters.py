"""Estimators of CatBoost, LightGBM and XGBoost.

A test that asks for one is skipped without its library.
"""

from __future__ import annotations

from typing import Any

import pytest


def catboost(kind: str = "Classifier", **options: Any) -> Any:
    module = pytest.importorskip("catboost")
    options = {"depth": 3, "thread_count": 1, "random_seed": 0, "learning_rate": 0.2} | options
    options |= {"verbose": False, "allow_writing_files": False}
    return getattr(module, f"CatBoost{kind}")(**options)


def lightgbm(kind: str = "Classifier", **options: Any) -> Any:
    module = pytest.importorskip("lightgbm")
    options = {"num_leaves": 5, "n_jobs": 1, "verbose": -1, "random_state": 0} | options
    return getattr(module, f"LGBM{kind}")(**options)


def xgboost(kind: str = "Classifier", **options: Any) -> Any:
    module = pytest.importorskip("xgboost")
    options = {"max_depth": 3, "n_jobs": 1, "random_state": 0} | options
    return getattr(module, f"XGB{kind}")(**options)
