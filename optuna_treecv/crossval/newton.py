"""The engine "newton": generalised linear models of all folds, solved together.

Models are those of a solver that has converged: ``solver``, ``max_iter`` and ``tol`` do not act.
Mean test losses of folds are within 1e-6 of their limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.exact import chunks_of
from optuna_treecv.crossval.exact import computing
from optuna_treecv.crossval.exact import Exact
from optuna_treecv.crossval.exact import idle_words
from optuna_treecv.crossval.exact import KeptSums
from optuna_treecv.crossval.exact import table_of
from optuna_treecv.crossval.job import Job
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.newton.glm import FAMILIES
from optuna_treecv.learners.newton.glm import GLMFolds
from optuna_treecv.learners.newton.glm import MOST_FOLDS
from optuna_treecv.learners.steps.tables import Table


class Newton(Exact):
    """Newton's method on all rows, from where the models of all folds are found together."""

    name = "newton"
    methods = ("auto", "holdout", "newton")
    reason = "the models of all folds are solved for together"
    why_one_epoch = "its models have converged, which more passes do not change"
    lost = "the model of a fold was not found"
    refused = "the models of folds cannot be solved for together"
    reads_again = True
    families = FAMILIES
    takes = "a generalised linear model"
    foreign = "{} is no generalised linear model that is solved here"

    def why_not(self, job: Job) -> str:
        """Return why the models of folds are not solved for together, a clause."""
        if why := super().why_not(job):
            return why
        parts = self._parts(job)
        table = table_of(job, parts)
        if isinstance(table, Table) and table.has_maps:
            if table.is_sparse:
                return "a step fills in or scales sparse rows by fold"
            if not parts.last.fit_intercept:
                return "a step learns other numbers in each fold, and there is no intercept"
        if parts.scaler is not None and parts.scaler.with_mean and not parts.last.fit_intercept:
            return "a StandardScaler subtracts other means in each fold, and there is no intercept"
        if job.task.n_folds > MOST_FOLDS:
            facts = Facts(0, False, job.metadata.weights is not None, 0, 0)
            if isinstance(table, Table) and table.has_maps:
                return f"there are more than {MOST_FOLDS:,} folds behind steps by fold"
            family = FAMILIES[type(parts.last)]
            if why := family.why_not_left_out(parts.last, parts.scaler, facts):
                return f"there are more than {MOST_FOLDS:,} folds, and {why}"
        return ""

    def models_of_folds(self, jobs: Sequence[Job], repeat: Repeat) -> list[np.ndarray]:
        """Return the models of each fold, (n_jobs, n_outputs, width), of rows as they are.

        The jobs differ in their points alone, and have no steps. The last column holds the
        intercepts, if there are any.
        """
        points = [self._parts(job).last for job in jobs]
        family = self._bind(jobs[0], repeat, self._rows(jobs[0], repeat), points)
        assert isinstance(family, GLMFolds)
        with computing():
            return family.models_of(chunks_of(repeat.cut), KeptSums())

    def cost(self, job: Job) -> str:
        """Return that one solution serves all folds."""
        parts, task = self._parts(job), job.task
        return (
            f"All {task.folds_in_words} begin at the solution for all {task.data.n_rows:,} rows, "
            f"and all values of {' and '.join(parts.parameters)} are solved for in one call."
            f"{idle_words(parts.family.idle)}"
        )
