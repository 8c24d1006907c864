"""Least squares by robust stochastic gradient descent, in one pass."""

from __future__ import annotations

from numbers import Real
from typing import Any
from typing import Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import validate_data

from optuna_treecv._kernels.sgd import LeastSquares
from optuna_treecv.data import RowLayout
from optuna_treecv.learners.linear import LinearEstimator


class LSQSGDRegressor(RegressorMixin, LinearEstimator):
    r"""Linear least squares by stochastic gradient descent with a constant step, a ball and
    averaging.

    One step a row,

    .. math::
        w_{t+1} = \Pi_{|w| \le r} \left( w_t - \eta \, (w_t \cdot x_t - y_t) \, x_t \right),
        \qquad w_1 = 0,

    and the hypothesis is the mean of :math:`w_1, \dots, w_T` (robust stochastic approximation,
    Nemirovski et al. 2009, section 2.2, for half the squared error). ``fit`` is one pass over the
    rows.

    Parameters
    ----------
    step_size : float or "auto", default="auto"
        :math:`\eta > 0`. "auto" is :math:`n^{-1/2}`, settled once: n counts the rows of ``fit``,
        of the first ``partial_fit``, or in TreeCV all rows of X.
    radius : float, default=1.0
        The ball's radius r > 0; ``inf`` for none.
    fit_intercept : bool, default=False
        Append a feature of value 1, which is projected like any other.
    average : bool, default=True
        Predict with the mean of the hypotheses before each step in place of the last one.
    shuffle : bool, default=True
        Feed ``fit`` and ``partial_fit`` their rows in random order. Inside TreeCV the evaluation
        orders the rows.
    random_state : int, RandomState instance or None, default=None
        Of that order.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights, of the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,)
        Weight of the appended feature; 0 without one.
    step_size_ : float
        The step in use.
    t_ : int
        Rows seen.
    n_features_in_ : int
        Features seen.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X had some.

    See Also
    --------
    tree_cross_validate : Cross-validate it in about log2(2k) passes.
    PegasosClassifier : The classifier of the same paper's experiments.

    Notes
    -----
    The ball is about the origin and of radius 1 by default, so targets should be of that size: the
    TreeCV paper scales them to [0, 1] and features to unit variance.

    References
    ----------
    .. [1] A. Nemirovski, A. Juditsky, G. Lan and A. Shapiro, "Robust stochastic approximation
       approach to stochastic programming", SIAM Journal on Optimization 19 (2009), 1574-1609.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import minmax_scale, scale
    >>> from optuna_treecv import LSQSGDRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = LSQSGDRegressor(fit_intercept=True, random_state=0).fit(scale(X), minmax_scale(y))
    >>> round(float(model.score(scale(X), minmax_scale(y))), 1)
    0.5
    """

    _parameter_constraints = {
        "step_size": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "radius": [Interval(Real, 0, None, closed="right")],
        "fit_intercept": ["boolean"],
        "average": ["boolean"],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        step_size: float | str = "auto",
        radius: float = 1.0,
        fit_intercept: bool = False,
        average: bool = True,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.step_size = step_size
        self.radius = radius
        self.fit_intercept = fit_intercept
        self.average = average
        self.shuffle = shuffle
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train from scratch, in one pass.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; float32 stays float32, everything else becomes float64.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        LSQSGDRegressor
            The fitted estimator.
        """
        return self._pass(X, y, first=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Go on training, with one pass over these rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Of the type of the first call's X, or it is converted.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        LSQSGDRegressor
            The fitted estimator.
        """
        return self._pass(X, y, first=not hasattr(self, "coef_"))

    def predict(self, X: Any) -> np.ndarray:
        """Predicted targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to judge.

        Returns
        -------
        ndarray of shape (n_samples,)
            X w + intercept.
        """
        return self._decision(X)[:, 0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # a unit ball and one pass over a small sample
        return tags

    @property
    def row_layout(self) -> RowLayout:
        """How TreeCV lays out the rows for this estimator."""
        return RowLayout(padded=True, intercept=self.fit_intercept, target="number")

    def make_kernel(self, X: np.ndarray, y: np.ndarray, n_classes: int | None) -> LeastSquares:
        """The compiled learner with this estimator's settings over padded rows and targets of
        their type.
        """
        return LeastSquares(X, y, self.step_size_, self.radius, self.average)

    def _pass(self, X: Any, y: Any, first: bool) -> Self:
        self._validate_params()
        X, y = validate_data(self, X, y, dtype=self._types(first), reset=first, y_numeric=True)
        if first:
            self._start()
            self._resolve(len(y))
        return self._train(X, y.astype(X.dtype))

    def _resolve(self, n_rows: int) -> None:
        self.step_size_ = (
            n_rows**-0.5 if isinstance(self.step_size, str) else float(self.step_size)
        )

    def _take_model(self, weights: np.ndarray, n_features: int) -> None:
        super()._take_model(weights, n_features)
        self.coef_ = self.coef_[0]
