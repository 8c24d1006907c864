"""The average of the models of all folds of linear learners, one vector while leaves are visited.

Blum, Kalai & Langford (1999) use a fold model drawn at random for each prediction, the k-fold
hypothesis. The mean of the fold models' weights is one model that is at least as stable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.from_estimator import forget_seeds
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.names import name_of
from optuna_treecv.tree.learner import ModelReader


def check_has_averages(engine: str, estimator: Any) -> None:
    """Refuse an estimator whose fold models cannot be averaged."""
    kind = type(estimator)
    from_sklearn = kind.__module__.startswith("sklearn.linear_model.")
    is_linear = issubclass(kind, LinearEstimator) or (
        from_sklearn and (is_classifier(estimator) or is_regressor(estimator))
    )
    if engine == "treecv" and is_linear:
        return
    raise ValueError(
        "kfold_models must be False unless linear models are trained along the tree, as those of "
        f"PegasosClassifier or SGDClassifier are, got {name_of(estimator)} with "
        f"method={engine!r}."
    )


class FoldAverage:
    """The sum of the models of all folds and repeats.

    Parameters
    ----------
    estimator : estimator
        As given.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._learner: Any = None
        self._total: Any = 0.0
        self._n_models = 0

    def add(self, learner: ModelReader, total: np.ndarray, n_models: int) -> None:
        """Add the models of one repeat."""
        self._learner = learner
        self._total = self._total + total
        self._n_models += n_models

    def finish(self) -> Any:
        """Return a fitted estimator with the mean of the models, or the error if there is none."""
        mean = self._total / self._n_models
        if not np.all(np.isfinite(mean)):
            return ValueError(
                f"{name_of(self._estimator)} diverges on some fold, so that the fold models have "
                f"no average; {DIVERGENCE_ADVICE}"
            )
        fitted = self._learner.with_numbers(mean)
        forget_seeds(fitted, self._estimator)
        names = self._learner.rows.feature_names
        if names is not None and isinstance(self._learner, CompiledLearner):
            fitted.feature_names_in_ = names
        return fitted
