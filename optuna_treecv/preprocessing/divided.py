"""An estimator whose folds follow from sums, divided from what stands before it in a Pipeline."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.estimators.traits import parameter_names
from optuna_treecv.numerics.family import Facts
from optuna_treecv.numerics.family import Family
from optuna_treecv.preprocessing.decisions import decisions_for
from optuna_treecv.preprocessing.decisions import why_not_ahead
from optuna_treecv.preprocessing.kinds import adds_columns
from optuna_treecv.preprocessing.kinds import FROM_SUMS
from optuna_treecv.preprocessing.kinds import ON_SUMS
from optuna_treecv.preprocessing.kinds import ONCE
from optuna_treecv.preprocessing.parts import COMPOSED
from optuna_treecv.preprocessing.parts import is_passed


class Parts(NamedTuple):
    """An estimator, and what stands before it in a Pipeline.

    Attributes
    ----------
    steps : tuple of transformers
        They come first and transform each row for itself, or are one Pipeline with ``kinds``.
    scaler : StandardScaler or None
    last : estimator
        Of one of the ``FAMILIES``.
    family : type
        Its family.
    prefix : str
        What stands before the names of its parameters in those of the whole estimator.
    kinds : mapping
        How the parts of a Pipeline are treated that is done as a ``Table``, by their paths; empty
        if none is needed.
    """

    steps: tuple[Any, ...]
    scaler: StandardScaler | None
    last: Any
    family: type[Family]
    prefix: str
    kinds: Mapping[str, str]

    @property
    def has_one_form(self) -> bool:
        """Whether training sets must all have sparse or all have dense rows after a table.

        They need not if models have converged, since those of sparse rows are the same.
        """
        steps = self.steps[0]
        *_, last = [step for _, step in steps.steps] if self.scaler is None else [None]
        tables = [one for one in steps.get_params().values() if type(one) is ColumnTransformer]
        facts = Facts(is_sparse=True, is_asked=True)
        return any(one is not last for one in tables) or bool(
            self.family.why_not(self.last, facts)
        )

    @property
    def names(self) -> list[str]:
        """The parameters of the last step that may differ between points."""
        kind: Any = type(self.last)
        return [name for name in self.family.parameters if name in parameter_names(kind)]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The same of the whole estimator."""
        return tuple(self.prefix + name for name in self.names)


def parts_of(
    estimator: Any, families: Mapping[type, type[Family]], foreign: str = "{} is of no family"
) -> Parts | str:
    """Return the parts of an estimator, or why it is of none of the families, a clause."""
    before, last, prefix = [], estimator, ""
    while type(last) is Pipeline:
        *some, (of_last, last) = last.steps
        before += [(name, step) for name, step in some if not is_passed(step)]
        prefix += f"{of_last}__"
    if type(last) not in families:
        return foreign.format(type(last).__name__)
    if len(dict(before)) < len(before):  # names of nested Pipelines may be the same
        before = [(f"{name}-{number}", step) for number, (name, step) in enumerate(before)]
    decisions = decisions_for(Pipeline([*before, ("", last)]), FROM_SUMS)
    if why := why_not_ahead(decisions, FROM_SUMS, last):
        return why
    scaler, n_on_sums = None, sum(one.kind == ON_SUMS for one in decisions)
    if n_on_sums == 1 and type(before[-1][1]) is StandardScaler:
        scaler, n_on_sums = before.pop()[1], 0
        del decisions[-1]
    steps = tuple(step for _, step in before)
    # What these do follows from one row.
    are_alike = all(one.kind == ONCE and not adds_columns(one.step) for one in decisions)
    if are_alike and not any(type(step) in COMPOSED for step in steps):
        return Parts(steps, scaler, last, families[type(last)], prefix, {})
    kinds = {one.path: one.kind for one in decisions}
    return Parts((Pipeline(before),), scaler, last, families[type(last)], prefix, kinds)
