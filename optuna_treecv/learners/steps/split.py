"""Divides a Pipeline into steps that can be done before the folds and the learner behind them.

The running steps among them are those of the kernels, where all are and the learner is compiled.
Otherwise they run in Python: each step with ``partial_fit`` is trained on the rows of each phase.
"""

from __future__ import annotations

from copy import copy
from numbers import Real
from typing import Any
from typing import NamedTuple

from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.incremental import check_incremental
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.steps.by_partial_fit import python_placeholder
from optuna_treecv.learners.steps.by_partial_fit import runs_in_python
from optuna_treecv.learners.steps.once import adds_columns
from optuna_treecv.learners.steps.once import keeps_zero_columns
from optuna_treecv.learners.steps.once import why_not_once
from optuna_treecv.learners.steps.running import compiled_placeholder
from optuna_treecv.learners.steps.running import COMPOSED
from optuna_treecv.learners.steps.running import is_running_imputer
from optuna_treecv.learners.steps.running import leaves_of
from optuna_treecv.learners.steps.running import parts_of
from optuna_treecv.learners.steps.running import PASSED
from optuna_treecv.learners.steps.running import without_running

# Learners of scikit-learn whose weights start at 0, are changed by a row only where the row is not
# 0, and do not depend on the number of columns. So a column that no training row has changes
# nothing. It does in others: naive Bayes divides by the number of columns, an MLP draws its first
# weights, and the random numbers of each column would move those of the next.
_LINEAR = {
    "PassiveAggressiveClassifier",
    "PassiveAggressiveRegressor",
    "Perceptron",
    "SGDClassifier",
    "SGDRegressor",
}


#: Learners of scikit-learn whose models do not depend on the order of the rows.
NAIVE_BAYES = BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB


class Split(NamedTuple):
    """A Pipeline, divided into the steps before its learner and the learner.

    Attributes
    ----------
    pipeline : Pipeline
    before : Pipeline
        Not fitted, with a placeholder for each running step.
    last : estimator
        The learner.
    prefix : str
        Before the names of the learner's parameters.
    is_compiled : bool
        Whether the learner is a CompiledEstimator whose kernel does the running steps. Otherwise
        they run in Python.
    why_python : str
        Why the steps of a compiled learner run in Python, a clause.
    """

    pipeline: Pipeline
    before: Pipeline
    last: Any
    prefix: str
    is_compiled: bool
    why_python: str = ""


def compiled_part(estimator: Any) -> CompiledEstimator | None:
    """Return an estimator if it is compiled, or else the compiled learner behind such steps."""
    if isinstance(estimator, CompiledEstimator):
        return estimator
    found = split(estimator)
    return found.last if isinstance(found, Split) and found.is_compiled else None


def split(estimator: Any) -> Split | str:
    """Divide a Pipeline; return why its steps cannot be done before the folds, a clause.

    It is empty if there is no Pipeline, if its learner has no ``partial_fit``, or if all its steps
    can be trained in Python one after the other, as they are.
    """
    if not _has_steps(estimator):
        return ""
    if not isinstance(estimator.steps[-1][1], CompiledEstimator):
        return split_in_python(estimator)
    found = _split(estimator, is_compiled=True)
    if isinstance(found, Split):
        return found
    in_python = split_in_python(estimator, found)
    if isinstance(in_python, Split):
        return in_python
    # Where a step needs Python, the kernels' reason is none.
    return in_python if in_python and _needs_python(estimator) else found


def split_in_python(estimator: Any, why_python: str = "") -> Split | str:
    """Divide a Pipeline whose running steps run in Python; return as ``split`` does."""
    if not _has_steps(estimator) or is_incremental(estimator):
        return ""
    last = estimator.steps[-1][1]
    if not hasattr(last, "partial_fit") or not is_incremental(last):
        return ""
    return _split(estimator, is_compiled=False, why_python=why_python)


def why_rows_age(estimator: Any) -> str:
    """Return why a learner must not be trained behind steps that run, a clause; empty if it may.

    The first rows are scaled by few others. Learners that take steps forget them; naive Bayes
    counts all rows alike.
    """
    before, last = [], estimator
    while type(last) is Pipeline:
        *some, (_, last) = last.steps
        before += some
    if not isinstance(last, NAIVE_BAYES):
        return ""
    for name, step in before:
        for path, leaf in leaves_of(name, step):
            if runs_in_python(leaf):
                return (
                    f"{_name(last)} would keep the first rows as the step {path!r} made them "
                    "when it had seen few"
                )
    return ""


def has_branches(estimator: Any) -> bool:
    """Return whether a step of a Pipeline has branches."""
    steps = estimator.steps if type(estimator) is Pipeline else ()
    return any(type(step) in (ColumnTransformer, FeatureUnion) for _, step in steps)


def _has_steps(estimator: Any) -> bool:
    """Return whether an estimator is a Pipeline with steps before the last one."""
    if type(estimator) is not Pipeline:
        return False
    return any(step not in PASSED for _, step in estimator.steps[:-1])


def _split(estimator: Pipeline, is_compiled: bool, why_python: str = "") -> Split | str:
    *before, (name, last) = estimator.steps
    steps = copy(estimator)
    steps.steps, steps.memory = before, None
    why = _why_not(steps, _Behind(last, not is_compiled))
    if why:
        return why
    placeholder = compiled_placeholder if is_compiled else python_placeholder
    without = without_running(steps, placeholder)
    return Split(estimator, without, last, f"{name}__", is_compiled, why_python)


def _needs_python(estimator: Pipeline) -> bool:
    """Return whether a step runs in Python that the kernels do not know."""
    steps = (step for name, part in estimator.steps[:-1] for _, step in leaves_of(name, part))
    return any(runs_in_python(step) and type(step) is not StandardScaler for step in steps)


class _Behind(NamedTuple):
    """What stands behind a step.

    Attributes
    ----------
    learner : estimator
    in_python : bool
        Whether running steps run in Python.
    is_last : bool
        Whether the step's output is what the learner gets. Steps that run in Python may stand
        between.
    is_scaler : bool
        Whether a StandardScaler comes next, whose output the learner gets.
    is_zero_safe : bool
        Whether a column that is zero in all training rows has no effect on what stands behind.
    """

    learner: Any
    in_python: bool = False
    is_last: bool = True
    is_scaler: bool = False
    is_zero_safe: bool = True

    def after(self, part: Any) -> _Behind:
        """Return what stands behind the step before a part."""
        return self._replace(
            is_last=self.is_last and self.in_python and _only_runs(part),
            is_scaler=self.is_last and type(part) is StandardScaler,
            is_zero_safe=self.is_zero_safe and _keeps_zeros(part),
        )


def _why_not(step: Any, behind: _Behind) -> str:
    """Return why a step cannot be done before a learner; empty if it can."""
    if step in (*PASSED, "drop"):
        return ""
    if type(step) is Pipeline:
        for name, part in reversed(step.steps):
            if why := _why_not(part, behind):
                return _of_step(name, part, why)
            if part not in PASSED:
                behind = behind.after(part)
        return ""
    if type(step) in (ColumnTransformer, FeatureUnion):
        if step.transformer_weights:
            return f"{_name(step)} has transformer_weights"
        for name, part, *_ in parts_of(step):
            if why := _why_not(part, behind):
                return _of_step(name, part, why)
        return ""
    if behind.in_python and runs_in_python(step):
        return _why_not_trained(step, behind)
    if type(step) is StandardScaler:
        return _why_not_scaled(step, behind)
    if is_running_imputer(step) and isinstance(behind.learner, CompiledEstimator):
        return _why_not_imputed(step, behind)
    why = why_not_once(step)
    if not why and adds_columns(step):
        if not ignores_zero_columns(behind.learner):
            return f"a category that no training row has would count in {_name(behind.learner)}"
        if not behind.is_zero_safe:
            return "a later step would mix in categories that no training row has"
    return why


def _of_step(name: str, step: Any, why: str) -> str:
    """Return a reason with the name of its step; those of parts name theirs already."""
    if type(step) in COMPOSED:
        return why
    return f"the step {name!r} cannot be done before the folds: {why}"


def ignores_zero_columns(learner: Any) -> bool:
    """Return whether a column that is zero in all training rows changes nothing in a learner."""
    kind = type(learner)
    from_sklearn = kind.__module__.startswith("sklearn.linear_model.")
    return isinstance(learner, LinearEstimator) or (from_sklearn and kind.__name__ in _LINEAR)


def _keeps_zeros(step: Any) -> bool:
    if type(step) is Pipeline:
        return all(_keeps_zeros(part) for _, part in step.steps)
    if type(step) in COMPOSED:
        return all(_keeps_zeros(part) for _, part, *_ in parts_of(step))
    if type(step) is MinMaxScaler:  # it makes a column of zeros one of its least value
        return bool(step.feature_range[0] == 0)
    if step in (*PASSED, "drop") or type(step) in (StandardScaler, MaxAbsScaler):
        return True
    return keeps_zero_columns(step)


def _only_runs(step: Any) -> bool:
    """Return whether a step is one that runs in Python, or a Pipeline of such steps."""
    if type(step) is Pipeline:
        return all(part in PASSED or _only_runs(part) for _, part in step.steps)
    return runs_in_python(step)


def _why_not_trained(step: Any, behind: _Behind) -> str:
    if not behind.is_last:
        return "it changes with the rows seen, and a later step would be done once"
    try:
        check_incremental(step, of_class=False, called="it", transforms=True)
    except ValueError as error:
        return str(error).removesuffix(".")
    return ""


def _why_not_scaled(scaler: StandardScaler, behind: _Behind) -> str:
    if not behind.is_last:
        return "its scales change with the rows seen, and a later step would be done once"
    if behind.learner.settles_on_rows:
        return f"{_name(behind.learner)} derives its step size from the scaled rows"
    return ""


def _why_not_imputed(imputer: SimpleImputer, behind: _Behind) -> str:
    if imputer.add_indicator:
        return "its add_indicator looks at all rows"
    if repr(imputer.missing_values) != "<NA>" and not _is_nan(imputer.missing_values):
        return f"it takes {imputer.missing_values!r} for a missing value, and not NaN"
    if not (behind.is_last or behind.is_scaler):
        return "its means change with the rows seen, and a later step would be done once"
    if behind.in_python:
        return "its means run in the kernels alone, and other steps run in Python"
    if behind.learner.settles_on_rows:
        return f"{_name(behind.learner)} derives its step size from the rows"
    return ""


def _is_nan(value: Any) -> bool:
    return isinstance(value, Real) and bool(value != value)


def _name(estimator: Any) -> str:
    return type(estimator).__name__
