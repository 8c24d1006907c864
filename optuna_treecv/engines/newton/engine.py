"""The engine "newton": generalised linear models of all folds, solved together.

Models are those of a solver that has converged: ``solver``, ``max_iter`` and ``tol`` do not act.
Mean test losses of folds are within 1e-6 of their limits.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.newton.glm import FAMILIES
from optuna_treecv.engines.newton.glm import GLMFolds
from optuna_treecv.engines.newton.glm import MOST_FOLDS
from optuna_treecv.plans.family import chunks_of
from optuna_treecv.plans.family import computing
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import idle_words
from optuna_treecv.plans.family import KeptSums
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.joint import SumsPlan
from optuna_treecv.plans.joint import table_of
from optuna_treecv.preprocessing.fitted import Table


class NewtonPlan(SumsPlan):
    """Models of all folds, solved together."""

    name = "newton"
    reason = "the models of all folds are solved for together"
    lost = "the model of a fold was not found"
    refused = "the models of folds cannot be solved for together"
    reads_again = True
    families = FAMILIES
    takes = "a generalised linear model"
    foreign = "{} is no generalised linear model that is solved here"

    why_one_epoch = "its models have converged, which more passes do not change"

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = replace(self.capabilities, fold_models=fold_models)

    @classmethod
    def why_not(cls, request: Request, parts: Parts) -> str:
        """Return why the models of folds are not solved for together, a clause."""
        table, last = table_of(request, parts), parts.last
        if isinstance(table, Table) and table.has_maps:
            if table.is_sparse:
                return "a step fills in or scales sparse rows by fold"
            if not last.fit_intercept:
                return "a step learns other numbers in each fold, and there is no intercept"
        if parts.scaler is not None and parts.scaler.with_mean and not last.fit_intercept:
            return "a StandardScaler subtracts other means in each fold, and there is no intercept"
        if request.cross_validation.n_folds > MOST_FOLDS:
            facts = Facts(has_weights=request.metadata.weights is not None)
            if isinstance(table, Table) and table.has_maps:
                return f"there are more than {MOST_FOLDS:,} folds behind steps by fold"
            family = FAMILIES[type(last)]
            if why := family.why_not_left_out(last, parts.scaler, facts):
                return f"there are more than {MOST_FOLDS:,} folds, and {why}"
        return ""

    def cost(self) -> str:
        """Return that one solution serves all folds."""
        folds = self.request.cross_validation.folds_in_words
        parameters = " and ".join(self.parts.parameters)
        return (
            f"All {folds} begin at the solution for all {self.request.data.n_rows:,} rows, "
            f"and all values of {parameters} are solved for in one call."
            f"{idle_words(self.parts.family.idle)}"
        )


def fold_models(
    plan: NewtonPlan, candidates: Sequence[Candidate], repeat: Repeat
) -> list[np.ndarray]:
    """Return the models of each fold."""
    family = plan.bind(repeat, plan.rows(repeat), candidates)
    assert isinstance(family, GLMFolds)
    with computing():
        return family.models_of(chunks_of(repeat.cut), KeptSums())
