"""Divides a Pipeline into steps that can be done before the folds and the learner behind them.

The running steps among them are those of the kernels, where all are and the learner is compiled.
Otherwise they run in Python: each step with ``partial_fit`` is trained on the rows of each phase.
"""

from __future__ import annotations

from copy import copy
from typing import Any
from typing import NamedTuple

from sklearn.compose import ColumnTransformer
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.steps.decisions import BY_FOLD
from optuna_treecv.learners.steps.decisions import BY_KERNEL
from optuna_treecv.learners.steps.decisions import BY_PARTIAL_FIT
from optuna_treecv.learners.steps.decisions import decisions_for
from optuna_treecv.learners.steps.decisions import runs_in_python
from optuna_treecv.learners.steps.parts import leaves_of
from optuna_treecv.learners.steps.parts import PASSED

#: Learners of scikit-learn whose models do not depend on the order of the rows.
NAIVE_BAYES = BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB


class Split(NamedTuple):
    """A Pipeline, divided into the steps before its learner and the learner.

    Attributes
    ----------
    pipeline : Pipeline
    before : Pipeline
        The steps, not fitted.
    kinds : dict
        How the parts of the steps are treated, by their paths, as in ``Decision``.
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
    kinds: dict[str, str]
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
    found = _split(estimator, BY_KERNEL)
    if isinstance(found, Split):
        return found
    in_python = split_in_python(estimator, found)
    if isinstance(in_python, Split):
        return in_python
    # Where a step runs in Python that the kernels do not know, their reason is none.
    steps = (step for name, part in estimator.steps[:-1] for _, step in leaves_of(name, part))
    needs_python = any(runs_in_python(one) and type(one) is not StandardScaler for one in steps)
    return in_python if in_python and needs_python else found


def split_in_python(estimator: Any, why_python: str = "") -> Split | str:
    """Divide a Pipeline whose running steps run in Python; return as ``split`` does."""
    if not _has_steps(estimator) or is_incremental(estimator):
        return ""
    last = estimator.steps[-1][1]
    if not hasattr(last, "partial_fit") or not is_incremental(last):
        return ""
    return _split(estimator, BY_PARTIAL_FIT, why_python)


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
                kind = type(last).__name__
                return (
                    f"{kind} would keep the first rows as the step {path!r} made them when it had "
                    "seen few"
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


def _split(estimator: Pipeline, models: str, why_python: str = "") -> Split | str:
    *before, (name, last) = estimator.steps
    decisions = decisions_for(estimator, models)
    # The last one is the cause: a step that runs cannot stand before one that is done once.
    for one in reversed(decisions):
        if one.kind == BY_FOLD:
            return f"the step {one.path!r} cannot be done before the folds: {one.why}"
    steps = copy(estimator)
    steps.steps, steps.memory = before, None
    kinds = {one.path: one.kind for one in decisions}
    return Split(estimator, steps, kinds, last, f"{name}__", models == BY_KERNEL, why_python)
