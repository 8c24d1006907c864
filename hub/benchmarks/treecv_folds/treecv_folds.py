"""A benchmark problem whose noise is that of real folds."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import FloatDistribution
from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optunahub.benchmarks import BaseProblem
from sklearn import datasets
from sklearn.preprocessing import scale


_SPACE = {
    "alpha": FloatDistribution(1e-6, 10.0, log=True),
    "step_size": FloatDistribution(1e-5, 10.0, log=True),
}
# The true value is a mean over other folds than those of any usual seed.
_TRUE_SEED = 2**31 - 1


class Problem(BaseProblem):
    """The mean error over the first folds of a cross-validation, to be minimised.

    The problem tunes ``AveragedSGDClassifier(loss="log_loss")`` on standardised rows. All
    configurations are tested on the same folds.

    Parameters
    ----------
    dataset : {"breast_cancer", "digits", "iris", "wine"}, default="breast_cancer"
        A data set that comes with scikit-learn.
    fidelity : int, default=None
        The number of folds that a value is the mean of, repeat after repeat; None: all
        ``n_folds * n_repeats``.
    n_folds : int, default=10
        The number of folds per repeat.
    n_repeats : int, default=1
        How often the rows are permuted and cut into folds.
    seed : int, default=0
        The seed of these permutations. Another seed gives other folds, thus other noise.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """

    available_datasets = ("breast_cancer", "digits", "iris", "wine")

    def __init__(
        self,
        dataset: str = "breast_cancer",
        *,
        fidelity: int | None = None,
        n_folds: int = 10,
        n_repeats: int = 1,
        seed: int = 0,
    ) -> None:
        if dataset not in self.available_datasets:
            raise ValueError(f"dataset must be one of {self.available_datasets}, got {dataset!r}.")
        X, y = getattr(datasets, f"load_{dataset}")(return_X_y=True)
        self._data = scale(X), y
        self._objective = treecv_objective(
            AveragedSGDClassifier(loss="log_loss"),
            *self._data,
            param_distributions=_SPACE,
            scoring="error",
            cv=n_folds,
            n_repeats=n_repeats,
            random_state=seed,
        )
        self._n_folds = n_folds
        self.max_fidelity = n_folds * n_repeats
        self.fidelity = self._check_fidelity(self.max_fidelity if fidelity is None else fidelity)

    @property
    def search_space(self) -> dict[str, BaseDistribution]:
        """The distributions of ``alpha`` and ``step_size``."""
        return {**_SPACE}

    @property
    def directions(self) -> list[optuna.study.StudyDirection]:
        """The error is minimised."""
        return [optuna.study.StudyDirection.MINIMIZE]

    def __call__(self, trial: optuna.Trial) -> float:
        """Return the value of a trial; step i reports the mean error of the first i folds."""
        params = {
            name: trial.suggest_float(name, space.low, space.high, log=space.log)
            for name, space in _SPACE.items()
        }
        means = self._means(params)[: self.fidelity]
        for step, mean in enumerate(means, 1):
            trial.report(mean, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(means[-1])

    def evaluate(self, params: dict[str, Any], fidelity: int | None = None) -> float:
        """Return the mean error of the first ``fidelity`` folds, None: those of the problem."""
        k = self.fidelity if fidelity is None else self._check_fidelity(fidelity)
        return float(self._means(params)[k - 1])

    def true_value(self, params: dict[str, Any], n_repeats: int = 100) -> float:
        """Return the mean error over all folds of many other repeats, which no seed changes."""
        model = AveragedSGDClassifier(loss="log_loss", **params)
        return tree_cross_validate(
            model,
            *self._data,
            scoring="error",
            cv=self._n_folds,
            n_repeats=n_repeats,
            random_state=_TRUE_SEED,
        ).mean

    def _means(self, params: dict[str, Any]) -> np.ndarray:
        scores = self._objective.evaluate(params).test_score
        return np.cumsum(scores) / np.arange(1, len(scores) + 1)

    def _check_fidelity(self, fidelity: int) -> int:
        if not 1 <= fidelity <= self.max_fidelity:
            raise ValueError(
                f"fidelity must be a number of folds from 1 to {self.max_fidelity}, got "
                f"{fidelity!r}."
            )
        return fidelity
