"""PEGASOS: the linear support vector machine in one pass."""

from __future__ import annotations

from numbers import Real
from typing import Any
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import _check_partial_fit_first_call
from sklearn.utils.validation import validate_data

from optuna_treecv._kernels.pegasos import Pegasos
from optuna_treecv.data import as_codes
from optuna_treecv.data import find_classes
from optuna_treecv.data import RowLayout
from optuna_treecv.learners.linear import codes_of
from optuna_treecv.learners.linear import LinearEstimator


class PegasosClassifier(ClassifierMixin, LinearEstimator):
    r"""Linear support vector machine trained by PEGASOS, one subgradient step a row.

    Minimises

    .. math:: \frac{\lambda}{2} |w|^2 + \frac{1}{n} \sum_i \max(0, 1 - y_i \, w \cdot x_i)

    by :math:`w_{t+1} = (1 - \eta_t \lambda) w_t + [y_t \, w_t \cdot x_t < 1] \, \eta_t y_t x_t`
    with :math:`\eta_t = 1 / (\lambda t)` and :math:`w_1 = 0` (Shalev-Shwartz et al. 2011, figure 1
    with one row a step). ``fit`` is one pass over the rows. Several classes are trained one
    against the rest.

    Parameters
    ----------
    alpha : float, default=1e-4
        The weight :math:`\lambda > 0` of the penalty.
    fit_intercept : bool, default=True
        Append a feature of value 1, which is regularised and projected like any other.
    average : bool, default=False
        Predict with the mean of :math:`w_1, \dots, w_T`, the hypotheses before each step, in place
        of :math:`w_{T+1}`.
    project : bool, default=False
        After each step project onto the ball :math:`|w| \le 1 / \sqrt{\lambda}`, which holds the
        optimum.
    shuffle : bool, default=True
        Feed ``fit`` and ``partial_fit`` their rows in random order. Inside TreeCV the evaluation
        orders the rows.
    random_state : int, RandomState instance or None, default=None
        Of that order.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Weights, of the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Weights of the appended feature; 0 without one.
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    t_ : int
        Rows seen.
    n_features_in_ : int
        Features seen.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X had some.

    See Also
    --------
    tree_cross_validate : Cross-validate it in about log2(2k) passes.
    LSQSGDRegressor : The regressor of the same paper's experiments.

    Notes
    -----
    float64 and float32 are trained in their own type. A decision value above 0 is the second
    class.

    References
    ----------
    .. [1] S. Shalev-Shwartz, Y. Singer, N. Srebro and A. Cotter, "Pegasos: primal estimated
       sub-gradient solver for SVM", Mathematical Programming 127 (2011), 3-30.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = PegasosClassifier(alpha=0.01, random_state=0).fit(scale(X), y)
    >>> round(float(model.score(scale(X), y)), 2)
    0.96
    """

    _parameter_constraints = {
        "alpha": [Interval(Real, 0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "average": ["boolean"],
        "project": ["boolean"],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        alpha: float = 1e-4,
        fit_intercept: bool = True,
        average: bool = False,
        project: bool = False,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.average = average
        self.project = project
        self.shuffle = shuffle
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train from scratch, in one pass.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; float32 stays float32, everything else becomes float64.
        y : array-like of shape (n_samples,)
            At least two classes.

        Returns
        -------
        PegasosClassifier
            The fitted estimator.
        """
        self._validate_params()
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        self.classes_ = find_classes(y)
        self._start()
        return self._train(X, as_codes(y, self.classes_))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on training, with one pass over these rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Of the type of the first call's X, or it is converted.
        y : array-like of shape (n_samples,)
            Labels out of ``classes``.
        classes : array-like of shape (n_classes,), default=None
            All classes there will be; needed in the first call.

        Returns
        -------
        PegasosClassifier
            The fitted estimator.
        """
        self._validate_params()
        first = not hasattr(self, "_state")
        if not first and (self.average, self.project) != self._modes:
            raise ValueError(
                "average and project must not change between calls of partial_fit; call fit to "
                "start anew."
            )
        X, y = validate_data(self, X, y, dtype=self._types(first), reset=first)
        _check_partial_fit_first_call(self, classes)
        if len(self.classes_) < 2:
            found = self.classes_.tolist()
            del self.classes_
            raise ValueError(f"classes must hold at least 2 classes, got {found}.")
        if first:
            self._start()
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y must hold labels out of classes={self.classes_.tolist()}, got {unknown[0]!s}."
            )
        return self._train(X, as_codes(y, self.classes_))

    def decision_function(self, X: Any) -> np.ndarray:
        """Signed distances to the separating hyperplanes, times the norm of the weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to judge.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            Above 0 for the second of two classes; with more, the largest wins.
        """
        decision = self._decision(X)
        return decision[:, 0] if decision.shape[1] == 1 else decision

    def predict(self, X: Any) -> np.ndarray:
        """Class labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to judge.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels out of ``classes_``.
        """
        codes = codes_of(self._decision(X))
        return self.classes_[codes]

    def _take_model(self, weights: np.ndarray, n_features: int) -> None:
        super()._take_model(weights, n_features)
        self._modes = (self.average, self.project)  # what the state was trained for

    @property
    def row_layout(self) -> RowLayout:
        """How TreeCV lays out the rows for this estimator."""
        return RowLayout(padded=True, intercept=self.fit_intercept, target="class")

    def make_kernel(self, X: np.ndarray, y: np.ndarray, n_classes: int | None) -> Pegasos:
        """The compiled learner with this estimator's settings over padded rows and class codes."""
        return Pegasos(X, y, n_classes, self.alpha, self.average, self.project)
