"""Partial least squares regression from moments, for all numbers of components."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from optuna_treecv.engines.sums.equations import RidgeRows
from optuna_treecv.engines.sums.family import MomentFamily
from optuna_treecv.engines.sums.regression import RidgeFolds
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import views
from optuna_treecv.plans.family import Facts

_EPS = float(np.finfo(np.float64).eps)

# The largest error of a component, relative to its size, that rounding errors of X'X may cause.
_MAX_ERROR = 1e-9

# With several targets, the smallest share of a target's sum of squares that the components leave
# unexplained. scikit-learn's results depend on rounding errors if less is left.
_MIN_SHARE = 1e-10


class PLSFolds(RidgeFolds):
    r"""``PLSRegression`` of all folds, for all values of ``n_components``.

    The weights, loadings and rotations of the components follow from :math:`X^\top X` and
    :math:`X^\top Y` (Dayal & MacGregor 1997, the second kernel algorithm), because the deflated
    :math:`X^\top Y` is the product of the deflated X and Y:

    .. math:: X^\top Y \leftarrow X^\top Y - p q^\top |X r|^2

    with the loadings p and q and the rotation r of a component. The first k components are those
    of a model with k components. A record contains X'X and X'Y of centred and scaled rows, the
    divisors of the columns and the targets, and the sums of squares of the targets.
    """

    depends_on_rotation = True  # with scale=True
    parameters = ("n_components",)
    ignored = ()
    is_linear = False  # fitted models also have weights, loadings and rotations

    def _bind(self, estimators: Sequence[Any]) -> None:
        first, d = estimators[0], self._rows.n_features
        self._n_components = np.array([e.n_components for e in estimators])
        for estimator in estimators:
            value = estimator.n_components
            if not isinstance(value, int | np.integer) or not 1 <= value <= d:
                raise ValueError(
                    f"n_components must be an int between 1 and the number of columns of X, {d}, "
                    f"got {value!r}."
                )
        self._is_scaled = bool(first.scale)
        self._tol, self._max_iter = float(first.tol), int(first.max_iter)
        self.source = RidgeRows(self._rows, True, self._scaler)
        self.n_outputs = t = self.source.n_targets
        self._equation_shapes = [(d, d), (d, t), (d,), (t,), (t,)]
        size = sum(map(prod, self._equation_shapes))
        self.shapes = [(size,), (self.source.n_columns,), (d,)]

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
        if facts.is_sparse:
            return "PLSRegression does not support sparse X"
        if facts.has_weights:
            return "PLSRegression does not support sample weights"
        return super(RidgeFolds, cls).why_not(estimator, facts)

    @classmethod
    def ignored_by(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the ignored parameters: none, because scikit-learn's iterations are repeated."""
        return ()

    test = MomentFamily.test

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Write the equations of one fold into its record."""
        memory, origin, scale = parts
        gram, b, divisors, y_divisors, y_squares = views(memory, self._equation_shapes)
        equations = self.source.equations(moments)
        origin[:], scale[:] = equations.origin, equations.scale
        y_squares[:] = moments.scatters[0].diagonal()[len(scale) :]
        divisors[:] = y_divisors[:] = 1
        if self._is_scaled:
            to_deviations = partial(_deviations, n_rows=moments.counts[0])
            divisors[:] = to_deviations(equations.gram.diagonal())
            y_divisors[:] = to_deviations(y_squares)
        gram[:] = equations.gram / divisors / divisors[:, None]
        b[:] = equations.b / divisors[:, None] / y_divisors
        y_squares /= np.square(y_divisors)

    def _coef(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of unscaled columns, (n_features, n_candidates * n_targets)."""
        gram, b, divisors, y_divisors, y_squares = views(parts[0], self._equation_shapes)
        n_components = int(self._n_components.max())
        path = pls_path(gram, b, y_squares, n_components, self._tol, self._max_iter)
        coef = path[self._n_components - 1] * (y_divisors / (divisors * parts[2])[:, None])
        return coef.transpose(1, 0, 2).reshape(len(gram), -1)


def _deviations(squares: np.ndarray, n_rows: float) -> np.ndarray:
    """Return the standard deviations of columns; 1 for constant columns."""
    return np.where(squares > 0, np.sqrt(squares / (n_rows - 1)), 1)


def pls_path(
    gram: np.ndarray,
    b: np.ndarray,
    y_squares: np.ndarray,
    n_components: int,
    tol: float,
    max_iter: int,
) -> np.ndarray:
    """Return the coefficients of PLS regression for 1, 2, ..., ``n_components`` components.

    Parameters
    ----------
    gram : ndarray of shape (n_features, n_features)
        X'X.
    b : ndarray of shape (n_features, n_targets)
        X'Y.
    y_squares : ndarray of shape (n_targets,)
        The diagonal of Y'Y.
    n_components : int
    tol, max_iter : float, int
        The parameters of scikit-learn's power method for several targets.

    Returns
    -------
    ndarray of shape (n_components, n_features, n_targets)

    Raises
    ------
    ValueError
        If rounding errors of the sums would change a component.
    """
    d, n_targets = b.shape
    rotations, loadings = np.zeros((n_components, d)), np.zeros((n_components, d))
    path, left, largest = np.zeros((n_components, d, n_targets)), y_squares, gram.diagonal().max()
    for k in range(n_components):
        if n_targets > 1 and np.any(left <= _MIN_SHARE * y_squares):
            raise ValueError(
                "y must have targets that vary in each training set and are not explained "
                "completely by the components for method='exact'; use method='fit' instead."
            )
        if not np.any(b):  # scikit-learn stops, too: the residuals of y are constant
            path[k:] = path[k - 1]
            break
        weights = _first_singular_vector(b, tol, max_iter)
        rotation = weights - (loadings[:k] @ weights) @ rotations[:k]
        products = gram @ rotation
        square = rotation @ products
        if not square * _MAX_ERROR > _EPS * largest * np.abs(rotation).sum() ** 2:
            raise ValueError(
                f"n_components must be smaller than {k + 1}, the number of directions in which X "
                "varies in a training set by more than rounding errors of its sums, for "
                f"method='exact', got {n_components}; use method='fit' instead."
            )
        y_loadings = rotation @ b / square
        rotations[k], loadings[k] = rotation, products / square
        path[k] = path[k - 1] + np.outer(rotation, y_loadings)  # path[-1] is 0 for k = 0
        b = b - np.outer(products, y_loadings)
        left = left - square * np.square(y_loadings)
    return path


def _first_singular_vector(b: np.ndarray, tol: float, max_iter: int) -> np.ndarray:
    """Return the first left singular vector of X'Y by as many power iterations as scikit-learn."""
    previous: np.ndarray = np.full(len(b), 100.0)  # scikit-learn's start
    y_weights = np.zeros(b.shape[1])
    y_weights[np.argmax(np.any(b, axis=0))] = 1
    for _ in range(max_iter):
        weights = b @ y_weights
        weights /= np.linalg.norm(weights)
        if b.shape[1] == 1 or np.sum(np.square(weights - previous)) < tol:
            break
        previous, y_weights = weights, weights @ b
    return weights
