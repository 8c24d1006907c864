"""K-means in one pass over the rows."""

from dataclasses import dataclass
from dataclasses import KW_ONLY
from numbers import Integral
from typing import Any
from typing import Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.base import ClusterMixin
from sklearn.base import TransformerMixin
from sklearn.utils._param_validation import Interval

from optuna_treecv.engines.treecv.kernels.kmeans import KMeans
from optuna_treecv.engines.treecv.learners.compiled import KernelRows
from optuna_treecv.engines.treecv.learners.compiled import UnsupervisedEstimator
from optuna_treecv.estimators.base import weights_of_rows

# The maximal number of centres. Each row is compared with all of them.
MAX_CLUSTERS = 10**6


@dataclass(repr=False, eq=False)
class StreamingKMeans(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, UnsupervisedEstimator
):
    r"""K-means in one pass: each row moves its nearest centre to the mean of that centre's rows.

    The first distinct rows become the centres. Each further row x of weight w then updates

    .. math:: c = \arg\min_j |x - m_j|^2, \qquad n_c \leftarrow n_c + w,
        \qquad m_c \leftarrow m_c + \frac{w}{n_c} (x - m_c)

    (MacQueen 1967, with w = 1). The loss is the squared distance to the nearest centre. A row of
    weight 0 has no influence.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres, at most a million.
    shuffle : bool, default=True
        Whether ``fit`` and ``partial_fit`` train on their rows in random order. With
        ``method="treecv"``, the ``order`` parameter of the cross-validation decides instead.
    random_state : int, RandomState instance or None, default=None
        Seed of the random order.
    n_epochs : int, default=1
        Number of passes of ``fit`` over its rows, each in a new random order if ``shuffle`` is
        True; ``partial_fit`` always makes one pass. With ``method="treecv"``, number of updates
        per training row: one with the row itself, the others with randomly drawn training rows.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres, in the type of X (float64 or float32). If there are fewer distinct rows than
        centres, the last centres repeat the first one.
    counts_ : ndarray of shape (n_clusters,)
        Total weight of the rows that were assigned to each centre. Without ``sample_weight``, this
        is the number of these rows. Integers if all totals are whole numbers.
    labels_ : ndarray of shape (n_samples,)
        The nearest centre of each row of the last ``fit`` or ``partial_fit``.
    t_ : int
        Number of rows trained on, counted once per epoch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    StreamingGaussianDensity : The other unsupervised learner.
    sklearn.cluster.MiniBatchKMeans : Many passes over random batches.

    References
    ----------
    .. [1] J. MacQueen, "Some methods for classification and analysis of multivariate
       observations", Fifth Berkeley Symposium on Mathematical Statistics and Probability 1 (1967),
       281-297.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from optuna_treecv import tree_cross_validate
    >>> from optuna_treecv.paper import StreamingKMeans
    >>> X, _ = load_iris(return_X_y=True)
    >>> for n in (1, 2, 3):
    ...     print(n, round(tree_cross_validate(StreamingKMeans(n), X, cv="loo").mean, 1))
    1 4.6
    2 1.0
    3 0.8
    """

    _fixed_parameters = ("n_clusters",)
    _parameter_constraints = {
        **UnsupervisedEstimator._parameter_constraints,
        "n_clusters": [Interval(Integral, 1, MAX_CLUSTERS, closed="both")],
    }

    n_clusters: int = 8
    shuffle: bool = True
    random_state: Any = None
    _: KW_ONLY
    n_epochs: int = 1

    def transform(self, X: Any) -> np.ndarray:
        """Return the distances to the centres.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
            Euclidean distances.
        """
        return self._distances(self._fitted_rows(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the nearest centre of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Indices of centres, int32.
        """
        return self._nearest(self._fitted_rows(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the score as in scikit-learn's KMeans; larger is better.

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
            Minus the weighted sum of the squared distances to the nearest centres.
        """
        squares = np.square(self._distances(self._fitted_rows(X)).min(axis=1))
        weights = weights_of_rows(X, sample_weight)
        return -float(squares.sum() if weights is None else (weights * squares).sum())

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the index of each row's nearest centre, or the distance to it.

        The outputs of a row are the squared distance to its nearest centre and the centre's index.
        """
        return outputs[:, 1].astype(np.int32) if method == "predict" else np.sqrt(outputs[:, 0])

    def make_kernel(self, rows: KernelRows, lanes: list[Any] | None = None) -> KMeans:
        """Return a kernel with this estimator's parameters for padded rows."""
        return KMeans(rows[0], self.n_clusters)

    def _train(self, X: Any, y: np.ndarray | None, sample_weight: Any, is_fit: bool) -> Self:
        super()._train(X, y, sample_weight, is_fit)
        self.labels_ = self._nearest(X)
        return self

    def _distances(self, X: np.ndarray) -> np.ndarray:
        """Return the distances from validated rows to the centres, (n_samples, n_clusters)."""
        # Computed from differences: |x|^2 - 2 x.m + |m|^2 would lose digits for rows far from 0.
        columns = [np.linalg.norm(X - centre, axis=1) for centre in self.cluster_centers_]
        return np.column_stack(columns)

    def _nearest(self, X: np.ndarray) -> np.ndarray:
        """Return the index of the nearest centre of each validated row."""
        return self._distances(X).argmin(axis=1).astype(np.int32)

    @property
    def _n_features_out(self) -> int:
        """The number of columns that ``transform`` returns, for ``get_feature_names_out``."""
        return len(self.cluster_centers_)

    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        super()._set_model(kernel, model, dtype, n_features)
        self.cluster_centers_ = (
            model.view(dtype).reshape(int(self.n_clusters), -1)[:, :n_features].copy()
        )
        self.counts_ = np.array(kernel.counts(self._state))
