"""The fitted models of all folds of a repeat."""

from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

from optuna_treecv.estimators.base import name_of
from optuna_treecv.rows.checks import without_single_column
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features

# The number of rows that are predicted in one call, each by its own model.
_N_ROWS = 4096

# The maximum number of bytes of linear models: 1 GiB.
_MAX_BYTES = 2**30

# The maximum number of models of another kind.
_MAX_MODELS = 10_000


def check_n_bytes(n_models: int, n_numbers: int) -> None:
    """Raise ValueError if models of this number of coefficients need too much memory."""
    if 8 * n_models * n_numbers > _MAX_BYTES:
        raise ValueError(
            f"cv must have at most {_MAX_BYTES // (8 * n_numbers):,} folds, so that the linear "
            f"models of all folds take at most 1 GiB, got {n_models:,}; use fewer folds instead."
        )


def check_n_models(candidate: Estimator, n_models: int) -> None:
    """Raise ValueError if there are too many folds to return a fitted estimator for each."""
    if n_models > _MAX_MODELS:
        raise ValueError(
            f"cv must have at most {_MAX_MODELS:,} folds for fold models of "
            f"{name_of(candidate)}, got {n_models:,}; use fewer folds instead."
        )


class LinearModels(NamedTuple):
    """Linear models as arrays.

    Attributes
    ----------
    fitted : estimator
        A fitted estimator, whose ``coef_`` and ``intercept_`` are replaced.
    coef : ndarray of shape (n_models, n_outputs, n_features)
    intercept : ndarray of shape (n_models, n_outputs)
    has_link : bool
        Whether predictions are functions of the linear combinations, as those of
        ``PoissonRegressor``.
    """

    fitted: Estimator
    coef: Array
    intercept: Array
    has_link: bool = False

    @property
    def predict_combinations(self) -> bool:
        """Whether each prediction is a single linear combination of the columns."""
        is_classifier = hasattr(self.fitted, "classes_")
        return self.coef.shape[1] == 1 and not self.has_link and not is_classifier

    def model(self, index: int) -> Estimator:
        """Return the estimator with the coefficients of one model."""
        estimator = copy(self.fitted)
        coef, intercept = np.asarray(estimator.coef_), np.asarray(estimator.intercept_)
        estimator.coef_ = self.coef[index].reshape(coef.shape).astype(coef.dtype)
        estimator.intercept_ = self.intercept[index].reshape(intercept.shape)
        if not intercept.ndim:
            estimator.intercept_ = float(estimator.intercept_)
        return estimator


class FoldModels:
    """The fitted models of all folds, which are created when they are needed.

    Parameters
    ----------
    models : list of estimators or LinearModels
        The fitted models, or their coefficients.
    fitted : estimator or None, default=None
        The estimator fitted on all rows, if the models needed it.
    """

    def __init__(
        self, models: list[Estimator] | LinearModels, fitted: Estimator | None = None
    ) -> None:
        self.models = models
        self.fitted = fitted

    def __len__(self) -> int:
        return len(self.models.coef if isinstance(self.models, LinearModels) else self.models)

    def __getitem__(self, index: int) -> Estimator:
        if isinstance(self.models, LinearModels):
            return self.models.model(range(len(self))[index])
        return self.models[index]

    def __iter__(self) -> Iterator[Estimator]:
        return map(self.__getitem__, range(len(self)))

    def ordered(self, indices: Array) -> "FoldModels":
        """Return the models with the given indices.

        Parameters
        ----------
        indices : ndarray of shape (n_models,), int
            The indices of the models.

        Returns
        -------
        FoldModels
            These models, in this order.
        """
        models = self.models
        if isinstance(models, LinearModels):
            coef, intercept = models.coef[indices], models.intercept[indices]
            return FoldModels(models._replace(coef=coef, intercept=intercept), self.fitted)
        return FoldModels([models[i] for i in indices], self.fitted)

    def predict_rows(self, X: Features, indices: Array) -> Array | None:
        """Return the prediction for each row by one model, if the models are arrays.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.
        indices : ndarray of shape (n_rows,), int
            The index of the model for each row.

        Returns
        -------
        ndarray of shape (n_rows,) or None
            None if the models are not linear regressors of the given columns.
        """
        models = self.models
        if not isinstance(models, LinearModels) or not models.predict_combinations:
            return None
        X = validate_data(models.fitted, X, reset=False, accept_sparse="csr")
        predicted = np.empty(len(indices))
        for start in range(0, len(indices), _N_ROWS):
            rows, of_rows = slice(start, start + _N_ROWS), indices[start : start + _N_ROWS]
            block = X[rows].toarray() if issparse(X) else X[rows]
            predicted[rows] = (block * models.coef[of_rows, 0]).sum(axis=1)
        return predicted + models.intercept[indices, 0]

    def predict(self, X: Features) -> Array:
        """Return the predictions of all models.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.

        Returns
        -------
        ndarray of shape (n_models, n_rows) or (n_models, n_rows, n_targets)
            The predictions, as the models return them.
        """
        models = self.models
        if isinstance(models, LinearModels) and models.predict_combinations:
            X = validate_data(models.fitted, X, reset=False, accept_sparse="csr")
            products = X @ models.coef[:, 0].T
            return products.T + models.intercept
        return np.array([without_single_column(model.predict(X)) for model in self])
