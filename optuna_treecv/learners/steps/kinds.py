"""Says of each step before a learner how it is treated: once, running, or by fold."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from optuna_treecv.learners.steps.by_partial_fit import runs_in_python
from optuna_treecv.learners.steps.once import adds_columns
from optuna_treecv.learners.steps.once import why_not_once
from optuna_treecv.learners.steps.running import is_running_imputer
from optuna_treecv.learners.steps.running import leaves_of

ONCE = "once"
COMPILED = "running, compiled"
PYTHON = "running, in Python"
BY_FOLD = "by fold"


class StepKind(NamedTuple):
    """How a step is treated.

    Attributes
    ----------
    name : str
        Its path, as in the names of parameters.
    step : transformer
    kind : str
        ``ONCE``, ``COMPILED``, ``PYTHON`` or ``BY_FOLD``.
    why : str
        A clause.
    """

    name: str
    step: Any
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({type(self.step).__name__}): {self.kind}, {self.why}"


def kinds_of(
    estimator: Any, are_ahead: bool, is_compiled: bool, is_one_pass: bool
) -> list[StepKind]:
    """Return how the steps before the last one of a Pipeline are treated.

    Parameters
    ----------
    estimator : estimator
    are_ahead : bool
        Whether those that can be done once are.
    is_compiled : bool
        Whether the others among these run in a kernel.
    is_one_pass : bool
        Whether models are trained further, and not fitted by fold.
    """
    if not isinstance(estimator, Pipeline):
        return []
    found = []
    for name, step in estimator.steps[:-1]:
        for path, leaf in leaves_of(name, step):
            if are_ahead:
                found.append(_ahead(path, leaf, is_compiled))
            elif is_one_pass:
                found.append(_running(path, leaf))
            else:
                why = "" if hasattr(leaf, "partial_fit") else why_not_once(leaf)
                why = f"since {why}" if why else "since the models are fitted by fold"
                found.append(StepKind(path, leaf, BY_FOLD, why))
    return found


def _ahead(path: str, step: Any, is_compiled: bool) -> StepKind:
    if not is_compiled and runs_in_python(step):
        return _running(path, step)
    if type(step) is StandardScaler:
        return StepKind(
            path, step, COMPILED, "by the mean and scale of the rows that a model has seen"
        )
    if is_running_imputer(step):
        return StepKind(path, step, COMPILED, "by the means of the values that a model has seen")
    if adds_columns(step):
        why = "since a column that only test rows have touches no weight in training"
        return StepKind(path, step, ONCE, why)
    return StepKind(path, step, ONCE, "since it transforms each row for itself")


def _running(path: str, step: Any) -> StepKind:
    if hasattr(step, "partial_fit"):
        return StepKind(path, step, PYTHON, "by partial_fit on each training phase")
    is_stateless = not get_tags(step).requires_fit
    why = "on each training phase, since it is stateless" if is_stateless else "on each phase"
    if type(step) is FunctionTransformer and why_not_once(step):
        why = "on the rows of each training phase, and its function sees no others"
    return StepKind(path, step, PYTHON, why)
