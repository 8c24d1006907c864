"""Joint plans whose transformers are refitted on the training rows of each fold."""

from collections.abc import Callable
from collections.abc import Mapping
from functools import partial

import numpy as np

from optuna_treecv.core.engine import Declined
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.joint import JointPlan
from optuna_treecv.preprocessing.parts import steps_before
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.types import Array
from optuna_treecv.types import Features


class PerFoldPlan(JointPlan):
    """A joint plan that reads the rows as given, after transformers that are fitted per fold."""

    def free_values(self, candidate: Candidate, repeat: Repeat) -> object:
        """Return the values of the free parameters, with the seed if a transformer needs one."""
        values, seed = super().free_values(candidate, repeat), self.seed(repeat)
        return values if seed is None else (values, seed)

    def seed(self, repeat: Repeat) -> int | None:
        """Return the seed of the fits of a repeat; None if no random_state of a step is None."""
        lacks_seed = self.compute_once("unset seeds", partial(unset_seeds, self.request.estimator))
        return self.request.settings.seed + repeat.number if lacks_seed else None

    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the targets in prepared order, with row indices in place of the features.

        The index of a row is its position in the given X.
        """
        target = "number" if self.request.classes is None else "class"

        def row_indices(X: Features) -> Array:
            return np.arange(self.request.data.n_rows, dtype=np.float64)[:, None]

        layout, name = RowLayout(target=target), b"numbers of rows"
        return self.request.cross_validation.rows_in(layout, repeat, row_indices, name)


def plan_per_fold(
    request: Request,
    plan: type[PerFoldPlan],
    families: Mapping[type, type[Family]],
    unsupported: str,
    find_reason: Callable[[Request, Parts], str],
) -> PerFoldPlan | Declined:
    """Return a plan for an estimator after any transformers, or the reason why it is declined.

    Parameters
    ----------
    request : Request
    plan : type
        The class of the plan.
    families : mapping of type to type
        The family of each supported class. Subclasses are not supported.
    unsupported : str
        The reason why another class is declined, in which ``{}`` stands for its name.
    find_reason : callable
        (request, parts) -> the reason why a supported estimator is declined, or "".
    """
    estimator = request.estimator
    prefix, last = divided(estimator)
    family = families.get(type(last))
    reason, free = unsupported.format(type(last).__name__), estimator.get_params()
    if family is not None:
        steps = tuple(step for _, step in steps_before(estimator))
        parts = Parts(steps, None, last, family, prefix, {})
        reason, free = find_reason(request, parts), parts.parameters
        if not reason:
            return plan(request, parts)
    advice = (
        f"method={plan.name!r} cannot evaluate this estimator, because {reason}; use "
        "method='auto' instead."
    )
    return Declined(reason, advice, free, 0 if family is None else 2)
