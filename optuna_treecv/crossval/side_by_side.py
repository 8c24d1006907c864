"""Evaluates several estimators together; their methods know how."""

from __future__ import annotations

from collections.abc import Iterable

from optuna_treecv.crossval.methods import Missing
from optuna_treecv.crossval.run import Run


def parameters_beside(run: Run) -> tuple[str, ...]:
    """Return the parameters in which estimators may differ that are evaluated with a run's.

    There are none where it is evaluated alone.
    """
    together = run.method.side_by_side
    return () if together is None else together.parameters(run.estimator)


def missing_result(run: Run) -> Missing | None:
    """Return what is missing of a run's first repeat, or None if its results are there already."""
    together = run.method.side_by_side
    return None if together is None else together.missing(run)


def evaluate_side_by_side(runs: Iterable[Run], are_leased: bool = False) -> bool:
    """Compute the results of those runs that can be evaluated side by side.

    A run that cannot is left to evaluate itself. So is a run with a wrong parameter, which raises
    there.

    Parameters
    ----------
    runs : iterable of Run
        All of one evaluation.
    are_leased : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.

    Returns
    -------
    bool
        Whether anything was computed.
    """
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        if parameters_beside(run):
            by_method.setdefault(run.method.name, []).append(run)
    is_any = False
    for alike in by_method.values():
        together = alike[0].method.side_by_side
        if together is not None and len(alike) > 1:
            is_any |= together.evaluate(alike, are_leased)
    return is_any
