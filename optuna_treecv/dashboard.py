"""Notes and figures for optuna-dashboard."""

from optuna_treecv.reporting.dashboard import DashboardCallback
from optuna_treecv.reporting.dashboard import publish

__all__ = ["DashboardCallback", "publish"]
