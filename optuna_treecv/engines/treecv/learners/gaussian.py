"""A Gaussian density, estimated in one pass."""

from dataclasses import dataclass
from math import log
from math import pi
from typing import Any
from typing import Literal

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg import LinAlgError
from scipy.linalg import solve_triangular
from sklearn.base import DensityMixin
from sklearn.utils._param_validation import StrOptions

from optuna_treecv.engines.treecv.kernels.gaussian import Gaussian
from optuna_treecv.engines.treecv.learners.compiled import KernelRows
from optuna_treecv.engines.treecv.learners.compiled import UnsupervisedEstimator
from optuna_treecv.estimators.base import ABOVE_0
from optuna_treecv.estimators.base import weights_of_rows

# The maximal number of features for a full covariance. It then takes 2 GiB in each state.
MAX_FEATURES = 2**14


@dataclass(repr=False, eq=False)
class StreamingGaussianDensity(DensityMixin, UnsupervisedEstimator):
    r"""Gaussian density with diagonal or full covariance, by running sums (Welford 1962).

    .. math::
        \log p(x) = -\tfrac{1}{2} \left( d \log 2 \pi + \log \det C
        + (x - \mu)^T C^{-1} (x - \mu) \right)

    with mean :math:`\mu`; C is the maximum-likelihood covariance plus ``reg_covar`` on its
    diagonal. With ``sample_weight`` both are weighted means. The loss "neg_log_density" is
    :math:`-\log p`.

    Parameters
    ----------
    covariance_type : {"diag", "full"}, default="diag"
        The form of the covariance: variances only, which treats features as independent, or a full
        matrix.
    reg_covar : float, default=1e-6
        Added to each variance, > 0, in the squared unit of X.
    shuffle : bool, default=True
        Whether ``fit`` and ``partial_fit`` train on their rows in random order. The order only
        affects rounding.
    random_state : int, RandomState instance or None, default=None
        Seed of the random order.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,)
        Mean, float64.
    covariance_ : ndarray of shape (n_features,) or (n_features, n_features)
        Variances or covariances, ``reg_covar`` included, float64.
    t_ : int
        Number of rows trained on.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    StreamingKMeans : The other unsupervised learner.
    sklearn.mixture.GaussianMixture : The same model if it has one component, but trained on all
        rows at once.

    References
    ----------
    .. [1] B. P. Welford, "Note on a method for calculating corrected sums of squares and
       products", Technometrics 4 (1962), 419-420.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from optuna_treecv import tree_cross_validate
    >>> from optuna_treecv.paper import StreamingGaussianDensity
    >>> X, _ = load_iris(return_X_y=True)
    >>> for kind in ("diag", "full"):
    ...     model = StreamingGaussianDensity(kind)
    ...     print(kind, round(tree_cross_validate(model, X, cv="loo").mean, 2))
    diag 4.98
    full 2.63
    """

    has_epochs = False
    _fixed_parameters = ("covariance_type",)
    _parameter_constraints = {
        **UnsupervisedEstimator._parameter_constraints,
        "covariance_type": [StrOptions({"diag", "full"})],
        "reg_covar": ABOVE_0,
    }

    covariance_type: Literal["diag", "full"] = "diag"
    reg_covar: float = 1e-6
    shuffle: bool = True
    random_state: Any = None

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-density of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log-densities; minus infinity if the covariance is numerically singular.
        """
        X = self._fitted_rows(X)
        z = X - self.mean_
        if self.covariance_.ndim == 1:
            squares = (z**2 / self.covariance_).sum(axis=1)
            log_det = np.log(self.covariance_).sum()
        else:
            try:
                factor = cholesky(self.covariance_, lower=True)
            except LinAlgError:  # reg_covar is smaller than the rounding error of the covariance
                return np.full(len(X), -np.inf)
            squares = np.square(solve_triangular(factor, z.T, lower=True)).sum(axis=0)
            log_det = 2 * np.log(np.diag(factor)).sum()
        return -0.5 * (X.shape[1] * log(2 * pi) + log_det + squares)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean log-density of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Not used.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        float
            Mean of ``score_samples``, weighted by ``sample_weight``.
        """
        densities = self.score_samples(X)
        weights = weights_of_rows(X, sample_weight)
        return float(densities.mean() if weights is None else np.average(densities, None, weights))

    def make_kernel(self, rows: KernelRows, lanes: list[Any] | None = None) -> Gaussian:
        """Return a kernel with this estimator's parameters for padded rows."""
        full = self.covariance_type == "full"
        if full and self.n_features_in_ > MAX_FEATURES:
            raise ValueError(
                f"X must have at most {MAX_FEATURES} columns with covariance_type='full', got "
                f"{self.n_features_in_}; covariance_type='diag' has no such limit."
            )
        return Gaussian(rows[0], self.n_features_in_, full, self.reg_covar)

    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        super()._set_model(kernel, model, dtype, n_features)
        parameters = model.view(np.float64)
        self.mean_ = parameters[:n_features].copy()
        if self.covariance_type == "diag":
            self.covariance_ = parameters[n_features : 2 * n_features].copy()
        else:
            square = parameters[n_features : n_features + n_features**2]
            self.covariance_ = square.reshape(n_features, n_features).copy()
