"""ROOT-SGD: variance reduction in a single loop, without stages."""

from dataclasses import dataclass
from dataclasses import KW_ONLY
from typing import Any
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from optuna_treecv._kernels.root_sgd import RootSGD as Kernel
from optuna_treecv.learners.base import COUNT
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.learners.compiled import PaddedRows
from optuna_treecv.learners.compiled import Targets
from optuna_treecv.learners.linear import LinearClassifier
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.linear import LinearRegressor
from optuna_treecv.learners.linear import LogisticMixin


class RootSGD(LinearEstimator):
    """The shared part of the classifier and the regressor."""

    _parameter_constraints = {
        **LinearEstimator._parameter_constraints,
        "loss": [StrOptions({"squared_error", "huber"})],
        "burn_in": COUNT,
    }

    _has_sparse_kernel = False
    alpha: float
    burn_in: int
    loss: str

    def bound(self, n_seen: int) -> frozenset[str]:
        """Return the parameters that have influenced a state of ``n_seen`` rows.

        During the burn-in these are the parameters of the loss, and the automatic step, which
        weights rows.
        """
        if n_seen <= self.burn_in:
            early = {"loss", "epsilon", "class_weight"}
            if self.step_size == "auto":
                early.add("step_size")
            return frozenset(self._get_param_names()) & early
        return super().bound(n_seen)

    def breakpoints(self) -> tuple[int, ...]:
        """Return the end of the burn-in."""
        return (int(self.burn_in),)

    def make_kernel(self, X: PaddedRows, y: Targets, n_classes: int | None) -> Kernel:
        """Return the kernel with this estimator's settings over padded rows."""
        return Kernel(
            *(X, y, n_classes, self.loss, getattr(self, "epsilon", 0.0), self.alpha),
            self._eta,
            min(self.burn_in, MOST_ROWS),
        )


@dataclass(repr=False, eq=False)
class RootSGDClassifier(LogisticMixin, RootSGD, LinearClassifier):
    r"""Logistic regression by ROOT-SGD, in one pass.

    Minimises the mean of :math:`\ell(w \cdot x, y) = \log(1 + e^{-y \, w \cdot x})`, with
    :math:`y = \pm 1`, plus :math:`\alpha |w|^2 / 2`.

    The step for row t, with :math:`g_t(w) = \ell'(w \cdot x_t, y_t) \, x_t + \alpha w`, is

    .. math::
        v_t = g_t(w_{t-1}) + \left( 1 - \tfrac{1}{t} \right) (v_{t-1} - g_t(w_{t-2})),
        \qquad w_t = w_{t-1} - \eta \, [t > B] \, v_t, \qquad w_0 = 0

    (Li et al. 2022, algorithm 1). The model is the last iterate. ``fit`` is one pass over the
    rows. Several classes are trained one against the rest.

    Parameters
    ----------
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        The step size :math:`\eta`. "auto" follows from the norms of the rows so far; see the
        notes.
    burn_in : int, default=100
        B, the number of rows before the first step. During these rows :math:`v` is the mean
        gradient at 0.
    fit_intercept : bool, default=True
        Append a feature of value 1, which is regularised like any other.
    shuffle : bool, default=True
        Train on the rows of ``fit`` and ``partial_fit`` in random order. Inside TreeCV, the
        evaluation chooses the order.
    random_state : int, RandomState instance or None, default=None
        Seed of that order.
    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of rows. A dict holds the factor of each class by its label, 1 for
        labels that it lacks. "balanced" is the inverse frequency of the class among the rows seen
        so far; see the notes.
    n_epochs : int, default=1
        The passes of ``fit`` over its rows, each in a new random order; ``partial_fit`` makes one.
        Inside TreeCV, the updates per row, most of them replays of rows seen before.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Weights, of the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Weights of the appended feature; 0 if ``fit_intercept`` is False.
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    t_ : int
        Number of rows seen, in all epochs.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names.

    See Also
    --------
    RootSGDRegressor : The regressor, for squared and Huber loss.
    StreamingSVRGClassifier : Variance reduction in stages.

    Notes
    -----
    The state consists of three vectors, whatever the number of rows. Every row changes every
    weight, so rows must be dense. ``StreamingSVRG`` and ``AveragedSGD`` also accept sparse rows.

    With ``step_size="auto"``, the gradient of a row is divided by max(M, :math:`|x|^2`) and the
    penalty by M, the geometric mean (up to 6 %) of :math:`|x|^2` over the rows so far. The step
    size is then :math:`1 / (1/3 + \alpha / M)`. Rows larger than is typical have less weight.

    With ``class_weight="balanced"``, the weight of a row of class c is multiplied by
    :math:`(W + K) / (K (W_c + 1))`. Here :math:`W_c` is the sum of the weights of class c over the
    rows seen so far, this row included, W is the sum over all classes, and K is the number of
    classes. scikit-learn instead counts all rows before training.

    References
    ----------
    .. [1] C. J. Li, W. Mou, M. J. Wainwright and M. I. Jordan, "ROOT-SGD: sharp nonasymptotics and
       asymptotic efficiency in a single algorithm", Conference on Learning Theory, PMLR 178
       (2022), 909-981.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv.paper import RootSGDClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = RootSGDClassifier(burn_in=50, random_state=0).fit(scale(X), y)
    >>> round(float(model.score(scale(X), y)), 2)
    0.96
    """

    loss = "log_loss"

    alpha: float = 1e-4
    step_size: float | Literal["auto"] = "auto"
    burn_in: int = 100
    fit_intercept: bool = True
    shuffle: bool = True
    random_state: Any = None
    _: KW_ONLY
    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    n_epochs: int = 1


@dataclass(repr=False, eq=False)
class RootSGDRegressor(RootSGD, LinearRegressor):
    r"""Linear regression by ROOT-SGD, in one pass.

    Minimises the mean of :math:`\ell(w \cdot x, y)`, half the squared error or Huber's loss, plus
    :math:`\alpha |w|^2 / 2`.

    The step for row t, with :math:`g_t(w) = \ell'(w \cdot x_t, y_t) \, x_t + \alpha w`, is

    .. math::
        v_t = g_t(w_{t-1}) + \left( 1 - \tfrac{1}{t} \right) (v_{t-1} - g_t(w_{t-2})),
        \qquad w_t = w_{t-1} - \eta \, [t > B] \, v_t, \qquad w_0 = 0

    (Li et al. 2022, algorithm 1). The model is the last iterate. ``fit`` is one pass over the
    rows.

    Parameters
    ----------
    loss : {"squared_error", "huber"}, default="squared_error"
        The loss :math:`\ell`.
    epsilon : float, default=1.35
        The error beyond which "huber" is linear, in the unit of y.
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        The step size :math:`\eta`. "auto" follows from the norms of the rows so far; see the
        notes.
    burn_in : int, default=100
        B, the number of rows before the first step. During these rows :math:`v` is the mean
        gradient at 0.
    fit_intercept : bool, default=True
        Append a feature of value 1, which is regularised like any other.
    shuffle : bool, default=True
        Train on the rows of ``fit`` and ``partial_fit`` in random order. Inside TreeCV, the
        evaluation chooses the order.
    random_state : int, RandomState instance or None, default=None
        Seed of that order.
    n_epochs : int, default=1
        The passes of ``fit`` over its rows, each in a new random order; ``partial_fit`` makes one.
        Inside TreeCV, the updates per row, most of them replays of rows seen before.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights, of the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,)
        Weight of the appended feature; 0 if ``fit_intercept`` is False.
    t_ : int
        Number of rows seen, in all epochs.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names.

    See Also
    --------
    RootSGDClassifier : The classifier, for logistic loss.
    StreamingSVRGRegressor : Variance reduction in stages.

    Notes
    -----
    The state consists of three vectors, whatever the number of rows. Every row changes every
    weight, so rows must be dense. ``StreamingSVRG`` and ``AveragedSGD`` also accept sparse rows.

    With ``step_size="auto"``, the gradient of a row is divided by max(S, :math:`|x|^2`) and the
    penalty by S = :math:`4 \sum |x|^4 / \sum |x|^2` over the rows so far. The step size is then
    :math:`1 / (1 + \alpha / S)`. This is :math:`1 / (4 R^2)` of Bach and Moulines [2]_, but a step
    moves the prediction of a row at most to its target. Only rows of :math:`|x|^2` above S have
    less weight.

    References
    ----------
    .. [1] C. J. Li, W. Mou, M. J. Wainwright and M. I. Jordan, "ROOT-SGD: sharp nonasymptotics and
       asymptotic efficiency in a single algorithm", Conference on Learning Theory, PMLR 178
       (2022), 909-981.
    .. [2] F. Bach and E. Moulines, "Non-strongly-convex smooth stochastic approximation with
       convergence rate O(1/n)", Advances in Neural Information Processing Systems 26 (2013),
       773-781.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv.paper import RootSGDRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = RootSGDRegressor(burn_in=50, random_state=0).fit(scale(X), scale(y))
    >>> round(float(model.score(scale(X), scale(y))), 1)
    0.5
    """

    loss: Literal["squared_error", "huber"] = "squared_error"
    epsilon: float = 1.35
    alpha: float = 1e-4
    step_size: float | Literal["auto"] = "auto"
    burn_in: int = 100
    fit_intercept: bool = True
    shuffle: bool = True
    random_state: Any = None
    _: KW_ONLY
    n_epochs: int = 1
