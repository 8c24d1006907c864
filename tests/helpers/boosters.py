"""Estimators of LightGBM and XGBoost; a test that asks for one is skipped without its library."""

from __future__ import annotations

from typing import Any

import pytest


def lightgbm(kind: str = "Classifier", **options: Any) -> Any:
    module = pytest.importorskip("lightgbm")
    options = {"num_leaves": 5, "n_jobs": 1, "verbose": -1, "random_state": 0} | options
    return getattr(module, f"LGBM{kind}")(**options)


def xgboost(kind: str = "Classifier", **options: Any) -> Any:
    module = pytest.importorskip("xgboost")
    options = {"max_depth": 3, "n_jobs": 1, "random_state": 0} | options
    return getattr(module, f"XGB{kind}")(**options)
