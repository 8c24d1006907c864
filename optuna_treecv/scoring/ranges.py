"""The least and the largest value that a score can have."""

from __future__ import annotations

from math import inf
from typing import Any

from optuna_treecv.scoring.losses import LOSSES

# Registered scorers between 0 and 1, by the first words of their names.
_BETWEEN_0_AND_1 = (
    *("accuracy", "average_precision", "balanced_accuracy", "f1", "jaccard"),
    *("precision", "recall", "roc_auc", "top_k_accuracy"),
)
_AT_MOST_1 = ("explained_variance", "r2")


def range_of(metric: Any) -> tuple[float, float] | None:
    """Return the bounds of a loss or scorer; None if it has none that are known.

    Parameters
    ----------
    metric : Loss or Scorer
    """
    return range_by_name(metric.name) if metric.is_registered else None


def range_by_name(name: str) -> tuple[float, float] | None:
    """Return the bounds of a loss, or of a scorer of scikit-learn, with this name."""
    if name in LOSSES:
        if name == "neg_log_density":
            return None
        return LOSSES[name].row_range or (0.0, inf)
    if name.startswith(_BETWEEN_0_AND_1):
        return (0.0, 1.0)
    if name in _AT_MOST_1:
        return (-inf, 1.0)
    return (-inf, 0.0) if name.startswith("neg_") else None
