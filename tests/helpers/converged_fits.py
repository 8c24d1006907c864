"""Estimators whose fits come as near to the minimum as solvers of scikit-learn can."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone


def converged(estimator: Any) -> Any:
    """Return the same estimator, or Pipeline, with a solver and a tolerance for converged fits."""
    estimator = clone(estimator)
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    parameters = last.get_params()
    if parameters.get("solver", "liblinear") != "liblinear":
        last.set_params(solver="newton-cholesky", tol=1e-12, max_iter=1000)
    elif "dual" in parameters:
        last.set_params(dual=False, tol=1e-12, max_iter=100_000)
    elif "max_iter" in parameters:  # coordinate descent
        last.set_params(tol=1e-14, max_iter=1_000_000)
    return estimator
