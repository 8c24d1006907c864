"""Which estimators have exact folds, and the parts of a Pipeline that ends with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.discriminants import LinearDiscriminantFolds
from optuna_treecv.learners.exact.discriminants import QuadraticDiscriminantFolds
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.lasso import LassoFolds
from optuna_treecv.learners.exact.ridge import RidgeFolds
from optuna_treecv.learners.steps.decisions import BY_FOLD
from optuna_treecv.learners.steps.decisions import decide
from optuna_treecv.learners.steps.decisions import FROM_SUMS
from optuna_treecv.learners.steps.decisions import ON_SUMS

#: The families of estimators. A subclass may do something else, so that it has none.
FAMILIES: dict[type, type[Family]] = {
    Ridge: RidgeFolds,
    RidgeClassifier: RidgeFolds,
    Lasso: LassoFolds,
    ElasticNet: LassoFolds,
    LinearRegression: LassoFolds,
    LinearDiscriminantAnalysis: LinearDiscriminantFolds,
    QuadraticDiscriminantAnalysis: QuadraticDiscriminantFolds,
}


class Parts(NamedTuple):
    """An estimator, and what stands before it in a Pipeline.

    Attributes
    ----------
    steps : tuple of transformers
        They come first and transform each row for itself.
    scaler : StandardScaler or None
    last : estimator
        Of one of the ``FAMILIES``.
    family : type
        Its family.
    prefix : str
        What stands before the names of its parameters in those of the whole estimator.
    """

    steps: tuple[Any, ...]
    scaler: StandardScaler | None
    last: Any
    family: type[Family]
    prefix: str

    @property
    def names(self) -> list[str]:
        """The parameters of the last step that may differ between points."""
        names = self.last.get_params(deep=False)
        return [name for name in self.family.parameters if name in names]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The same of the whole estimator."""
        return tuple(self.prefix + name for name in self.names)


def parts_of(
    estimator: Any,
    families: Mapping[type, type[Family]],
    foreign: str = "{} is of no family",
) -> Parts | str:
    """Return the parts of an estimator, or why it is of none of the families, a clause."""
    before, last, prefix = [], estimator, ""
    while type(last) is Pipeline:
        *some, (of_last, last) = last.steps
        before += [(name, step) for name, step in some if step not in (None, "passthrough")]
        prefix += f"{of_last}__"
    if type(last) not in families:
        return foreign.format(type(last).__name__)
    kind, steps = "", [step for _, step in before]
    for number, (name, step) in enumerate(before, 1):
        kind, why = decide(step, FROM_SUMS, last, steps[number:])
        if kind == BY_FOLD:
            return f"the step {name!r} cannot be done before the folds: {why}"
    scaler = steps.pop() if kind == ON_SUMS else None
    return Parts(tuple(steps), scaler, last, families[type(last)], prefix)
