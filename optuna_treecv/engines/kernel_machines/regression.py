"""``KernelRidge`` and ``GaussianProcessRegressor`` on all folds, for all values of alpha."""

from collections.abc import Iterator
from collections.abc import Sequence
from numbers import Real

import numpy as np
from scipy import sparse
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.gaussian_process.kernels import Kernel
from sklearn.gaussian_process.kernels import RBF

from optuna_treecv.engines.kernel_machines.folds import compute_kernel
from optuna_treecv.engines.kernel_machines.folds import KernelFolds
from optuna_treecv.engines.kernel_machines.folds import Split
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram
from optuna_treecv.engines.kernel_machines.ridge import predict_folds
from optuna_treecv.plans.family import Facts
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque


class KernelRidgeFolds(KernelFolds):
    """``KernelRidge`` on all folds, for all values of alpha and gamma."""

    parameters = ("alpha", "gamma")

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Return the reason why the estimator is refitted per fold; "" if it is not."""
        if not isinstance(estimator.alpha, Real):
            return "alpha is not a number"
        if callable(estimator.kernel):
            return "its kernel is a function"
        return "X holds kernel values" if estimator.kernel == "precomputed" else ""

    def compute_gram(
        self, estimator: Estimator, X: Features, X_train: Features, rows: Array, out: Array
    ) -> Gram:
        """Return the Gram matrix of the rows X."""
        gamma = estimator.gamma
        if gamma is None and estimator.kernel in ("rbf", "poly", "sigmoid", "laplacian"):
            gamma = 1 / X.shape[1]
        params = {"degree": estimator.degree, "coef0": estimator.coef0}
        compute_kernel(estimator.kernel, X, out, gamma=gamma, **params)
        return Gram(out)

    def predict_folds(
        self,
        gram: Gram,
        rows: Array,
        splits: Sequence[Split],
        estimators: Sequence[Estimator],
        starts: Opaque,
    ) -> Iterator[Array]:
        """Yield the predictions for the test rows of each split."""
        weights = None if self._weights is None else self._weights[rows]
        targets = np.asarray(self._y[rows], np.float64).reshape(len(rows), -1)
        alphas = np.array([estimator.alpha for estimator in estimators], np.float64)
        if weights is not None and not all(weights[train].any() for train, _ in splits):
            raise ValueError(
                "sample_weight must have a positive weight in each training set, but all weights "
                "of one of them are 0."
            )
        yield from predict_folds(gram.values, targets, weights, alphas, splits)


class GaussianProcessFolds(KernelFolds):
    """The mean of ``GaussianProcessRegressor`` on all folds, without an optimizer."""

    parameters = ("alpha",)

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Return the reason why the estimator is refitted per fold; "" if it is not."""
        if not isinstance(estimator.alpha, Real):
            return "alpha is not a number"
        kernel = estimator.kernel
        if kernel is not None and not isinstance(kernel, Kernel):
            return "its kernel is not a kernel of Gaussian processes"
        if estimator.n_targets not in (None, facts.n_outputs):
            return "n_targets is not the number of targets"
        if estimator.optimizer is not None and (kernel is None or kernel.n_dims):
            return "its optimizer chooses the parameters of the kernel on each training set"
        if facts.has_weights:
            return "GaussianProcessRegressor does not support sample weights"
        return ""

    def compute_gram(
        self, estimator: Estimator, X: Features, X_train: Features, rows: Array, out: Array
    ) -> Gram:
        """Return the Gram matrix of the rows X."""
        kernel = estimator.kernel
        if kernel is None:
            kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
        if sparse.issparse(X):
            raise ValueError("X must be dense for GaussianProcessRegressor, got sparse rows.")
        out[:] = kernel(X)
        return Gram(out)

    def predict_folds(
        self,
        gram: Gram,
        rows: Array,
        splits: Sequence[Split],
        estimators: Sequence[Estimator],
        starts: Opaque,
    ) -> Iterator[Array]:
        """Yield the predictions for the test rows of each split.

        If ``normalize_y`` is True, the mean of the training targets is subtracted from y. The
        predictions f are linear in y, so that f(y - mean) + mean = f(y) + mean (1 - f(1)).
        """
        targets = np.asarray(self._y[rows], np.float64).reshape(len(rows), -1)
        alphas = np.array([estimator.alpha for estimator in estimators], np.float64)
        if not estimators[0].normalize_y:
            yield from predict_folds(gram.values, targets, None, alphas, splits)
            return
        with_ones = np.hstack([targets, np.ones((len(targets), 1))])
        predicted = predict_folds(gram.values, with_ones, None, alphas, splits)
        for (train, _), of_split in zip(splits, predicted, strict=True):
            mean = targets[train].mean(axis=0)
            yield of_split[:, :, :-1] + mean * (1 - of_split[:, :, -1:])
