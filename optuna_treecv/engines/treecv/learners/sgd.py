"""Averaged stochastic gradient descent, and the least-squares learner of the TreeCV paper."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import StrOptions

from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.learners.compiled import KernelRows
from optuna_treecv.engines.treecv.learners.compiled import MOST_ROWS
from optuna_treecv.engines.treecv.learners.linear import LinearClassifier
from optuna_treecv.engines.treecv.learners.linear import LinearEstimator
from optuna_treecv.engines.treecv.learners.linear import LinearRegressor
from optuna_treecv.engines.treecv.learners.linear import LogisticMixin
from optuna_treecv.estimators.base import AT_LEAST_0
from optuna_treecv.estimators.base import COUNT


class AveragedSGD(LinearEstimator):
    """The base class of estimators trained by averaged stochastic gradient descent."""

    _fixed_parameters: tuple[str, ...] = ("average", "batch_size")
    _parameter_constraints = {
        **LinearEstimator._parameter_constraints,
        "learning_rate": [StrOptions({"constant", "invscaling"})],
        "power_t": AT_LEAST_0,
        "average": ["boolean", StrOptions({"linear"})],
        "average_start": [Interval(Integral, 0, None, closed="left")],
        "batch_size": COUNT,
    }

    loss: str
    learning_rate: str
    power_t: float
    average: bool | str
    average_start: int
    batch_size: int
    radius: float

    def bound(self, n_seen: int) -> frozenset[str]:
        """Return the names of the parameters that influence a state after ``n_seen`` rows.

        ``average_start`` has no influence during the first ``average_start`` rows.
        """
        late = {"average_start"} if n_seen <= self.average_start and self.average else set()
        return super().bound(n_seen) - late

    def breakpoints(self) -> tuple[int, ...]:
        """Return (the number of rows after which averaging begins,), or () without averaging."""
        return (int(self.average_start),) if self.average else ()

    @property
    def lane_parameters(self) -> tuple[str, ...]:
        """The names of the parameters in which the candidates of a batch may differ.

        There are none with mini-batches, because then candidates are trained one by one.
        """
        return ("alpha", "step_size", "radius") if self.batch_size == 1 else ()

    def make_kernel(self, rows: KernelRows, lanes: list[Any] | None = None) -> SGD:
        """Return a kernel for padded rows, with the parameters of this estimator or of a batch."""
        X, y, n_classes = rows
        power_t = 0.0 if self.learning_rate == "constant" else self.power_t
        epsilon, is_linear = getattr(self, "epsilon", 0.0), self.average == "linear"
        start, size = min(self.average_start, MOST_ROWS), min(self.batch_size, MOST_ROWS)
        values = [(e.alpha, e._eta, e.radius) for e in lanes or [self]]
        settings = power_t, bool(self.average), start, values, is_linear, size
        return SGD(X, y, n_classes, self.loss, epsilon, *settings, lanes is not None)


@dataclass(repr=False, eq=False)
class AveragedSGDClassifier(LogisticMixin, AveragedSGD, LinearClassifier):
    r"""Linear classifier by averaged stochastic gradient descent, one step per row.

    Step t, for a row x with :math:`y = \pm 1`, or for the mean over a mini-batch, is

    .. math::
        w_{t+1} = \Pi_{|w| \le r} \left( (1 - \eta_t \alpha) w_t
        - \eta_t \, \ell'(w_t \cdot x, y) \, x \right), \qquad w_1 = 0.

    The model is a mean of the :math:`w_t` before each step (Polyak and Juditsky 1992), with
    weights t (Lacoste-Julien et al. 2012) or with equal weights. The mean is taken over all steps,
    or over those after ``average_start`` rows (Jain et al. 2018). With ``average=False`` the model
    is the last :math:`w_t`. ``fit`` makes ``n_epochs`` passes over the rows, one by default. More
    than two classes are trained one-vs-rest.

    Parameters
    ----------
    loss : {"hinge", "log_loss"}, default="hinge"
        The loss :math:`\ell`; "log_loss" gives probabilities.
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        The step size :math:`\eta > 0`. "auto" computes it from the norms of the rows seen so far;
        see the notes.
    learning_rate : {"constant", "invscaling"}, default="constant"
        :math:`\eta_t = \eta`, or :math:`\eta / t^p`.
    power_t : float, default=0.5
        The exponent p of "invscaling".
    average : bool or "linear", default="linear"
        Whether the model is a mean of the :math:`w_t` instead of the last :math:`w_t`. "linear"
        gives them the weights 1, 2, 3, ..., so the first :math:`w_t` have little influence. True
        gives them equal weights.
    average_start : int, default=0
        Number of rows before averaging begins. Until then, the model is the last :math:`w_t`.
    batch_size : int, default=1
        Number of rows per step. Rows have no influence on the model until their batch is complete.
    radius : float, default=inf
        Radius r > 0 of the ball onto which the weights are projected after each step; ``inf``
        means no projection.
    fit_intercept : bool, default=True
        Whether to append a feature of value 1, which is regularised and projected like any other.
    shuffle : bool, default=True
        Whether ``fit`` and ``partial_fit`` train on their rows in random order. With
        ``method="treecv"``, the ``order`` parameter of the cross-validation decides instead.
    random_state : int, RandomState instance or None, default=None
        Seed of the random order.
    class_weight : dict, "balanced" or None, default=None
        The factors by which the weights of rows are multiplied. A dict maps class labels to
        factors; labels that it does not contain have the factor 1. With "balanced", the factor is
        the inverse frequency of the class among the rows seen so far; see the notes.
    n_epochs : int, default=1
        Number of passes of ``fit`` over its rows, each in a new random order if ``shuffle`` is
        True; ``partial_fit`` always makes one pass. With ``method="treecv"``, number of updates
        per training row: one with the row itself, the others with randomly drawn training rows.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Weights of the features, in the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Weights of the appended feature; 0 if ``fit_intercept`` is False.
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    t_ : int
        Number of rows trained on, counted once per epoch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    AveragedSGDRegressor : The corresponding regressor.
    PegasosClassifier : Hinge loss with steps that need no tuning.

    Notes
    -----
    Training on sparse rows takes time proportional to the number of nonzeros and gives the same
    model as training on dense rows. Mini-batches require dense rows. Training uses the dtype of X,
    float64 or float32.

    With ``step_size="auto"``, the gradient of a row is divided by max(M, :math:`|x|^2`) and the
    penalty by M, the geometric mean (to within 6 %) of :math:`|x|^2` of the rows seen so far. The
    step size is then :math:`1 / (1/3 + \alpha / M)`. Rows whose norms are larger than
    typical therefore have less weight.

    With ``class_weight="balanced"``, the weight of a row of class c is multiplied by
    :math:`(W + K) / (K (W_c + 1))`. Here :math:`W_c` is the sum of the weights of class c over the
    rows seen so far, this row included, W is the sum over all classes, and K is the number of
    classes. scikit-learn instead counts all rows before training.

    References
    ----------
    .. [1] B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by
       averaging", SIAM Journal on Control and Optimization 30 (1992), 838-855.
    .. [2] P. Jain, S. M. Kakade, R. Kidambi, P. Netrapalli and A. Sidford, "Parallelizing
       stochastic gradient descent for least squares regression: mini-batching, averaging, and
       model misspecification", Journal of Machine Learning Research 18 (2018), 1-42.
    .. [3] S. Lacoste-Julien, M. Schmidt and F. Bach, "A simpler approach to obtaining an O(1/t)
       convergence rate for the projected stochastic subgradient method", arXiv:1212.2002 (2012).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import AveragedSGDClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = AveragedSGDClassifier(loss="log_loss", random_state=0).fit(scale(X), y)
    >>> round(float(model.score(scale(X), y)), 2)
    0.99
    """

    _parameter_constraints = {
        "loss": [StrOptions({"hinge", "log_loss"})],
        **AveragedSGD._parameter_constraints,
    }

    loss: Literal["hinge", "log_loss"] = "hinge"
    alpha: float = 1e-4
    step_size: float | Literal["auto"] = "auto"
    learning_rate: Literal["constant", "invscaling"] = "constant"
    power_t: float = 0.5
    average: bool | Literal["linear"] = "linear"
    average_start: int = 0
    batch_size: int = 1
    radius: float = np.inf
    fit_intercept: bool = True
    shuffle: bool = True
    random_state: Any = None


@dataclass(repr=False, eq=False)
class AveragedSGDRegressor(AveragedSGD, LinearRegressor):
    r"""Linear regressor by averaged stochastic gradient descent, one step per row.

    Step t, for a row x with target y, or for the mean over a mini-batch, is

    .. math::
        w_{t+1} = \Pi_{|w| \le r} \left( (1 - \eta_t \alpha) w_t
        - \eta_t \, \ell'(w_t \cdot x, y) \, x \right), \qquad w_1 = 0.

    The model is a mean of the :math:`w_t` before each step (Polyak and Juditsky 1992), with
    weights t (Lacoste-Julien et al. 2012) or with equal weights. The mean is taken over all steps,
    or over those after ``average_start`` rows (Jain et al. 2018). With ``average=False`` the model
    is the last :math:`w_t`. ``fit`` makes ``n_epochs`` passes over the rows, one by default.

    Parameters
    ----------
    loss : {"squared_error", "huber", "epsilon_insensitive"}, default="squared_error"
        The loss :math:`\ell`. "squared_error" is half the squared error. "huber" is the same, but
        linear for errors beyond ``epsilon``. "epsilon_insensitive" is the absolute error minus
        ``epsilon``, or 0 if this is negative.
    epsilon : float, default=0.1
        The error beyond which "huber" is linear, or up to which "epsilon_insensitive" is 0, in the
        unit of y.
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        The step size :math:`\eta > 0`. "auto" computes it from the norms of the rows seen so far;
        see the notes.
    learning_rate : {"constant", "invscaling"}, default="constant"
        :math:`\eta_t = \eta`, or :math:`\eta / t^p`.
    power_t : float, default=0.5
        The exponent p of "invscaling".
    average : bool or "linear", default="linear"
        Whether the model is a mean of the :math:`w_t` instead of the last :math:`w_t`. "linear"
        gives them the weights 1, 2, 3, ..., so the first :math:`w_t` have little influence. True
        gives them equal weights.
    average_start : int, default=0
        Number of rows before averaging begins. Until then, the model is the last :math:`w_t`.
    batch_size : int, default=1
        Number of rows per step. Rows have no influence on the model until their batch is complete.
    radius : float, default=inf
        Radius r > 0 of the ball onto which the weights are projected after each step; ``inf``
        means no projection.
    fit_intercept : bool, default=True
        Whether to append a feature of value 1, which is regularised and projected like any other.
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
    coef_ : ndarray of shape (n_features,)
        Weights of the features, in the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,)
        Weight of the appended feature; 0 if ``fit_intercept`` is False.
    t_ : int
        Number of rows trained on, counted once per epoch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    AveragedSGDClassifier : The corresponding classifier, with the other references.
    LSQSGDRegressor : The special case that the TreeCV paper uses.

    Notes
    -----
    Training on sparse rows takes time proportional to the number of nonzeros and gives the same
    model as training on dense rows. Mini-batches require dense rows. Training uses the dtype of X,
    float64 or float32.

    With ``step_size="auto"``, the gradient of a row is divided by max(S, :math:`|x|^2`) and the
    penalty by S. Here S = :math:`2 R^2`, or :math:`4 R^2` with ``average=False``, and
    :math:`R^2 = \sum |x|^4 / \sum |x|^2` over the rows so far. The step size is then
    :math:`1 / (1 + \alpha / S)`. Averaged least squares converges with steps below
    :math:`1 / R^2` (Bach and Moulines [1]_). In addition, a step here moves the prediction of a
    row at most to its target. Only rows with :math:`|x|^2` above S have less weight.

    References
    ----------
    .. [1] F. Bach and E. Moulines, "Non-strongly-convex smooth stochastic approximation with
       convergence rate O(1/n)", Advances in Neural Information Processing Systems 26 (2013),
       773-781.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import AveragedSGDRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AveragedSGDRegressor(average_start=200, random_state=0).fit(scale(X), scale(y))
    >>> round(float(model.score(scale(X), scale(y))), 1)
    0.5
    """

    _parameter_constraints = {
        "loss": [StrOptions({"squared_error", "huber", "epsilon_insensitive"})],
        **AveragedSGD._parameter_constraints,
        "epsilon": AT_LEAST_0,
    }

    loss: Literal["squared_error", "huber", "epsilon_insensitive"] = "squared_error"
    epsilon: float = 0.1
    alpha: float = 1e-4
    step_size: float | Literal["auto"] = "auto"
    learning_rate: Literal["constant", "invscaling"] = "constant"
    power_t: float = 0.5
    average: bool | Literal["linear"] = "linear"
    average_start: int = 0
    batch_size: int = 1
    radius: float = np.inf
    fit_intercept: bool = True
    shuffle: bool = True
    random_state: Any = None


@dataclass(repr=False, eq=False)
class LSQSGDRegressor(AveragedSGD, LinearRegressor):
    r"""Linear least squares by projected, averaged stochastic gradient descent.

    There is one step per row, with a constant step size,

    .. math::
        w_{t+1} = \Pi_{|w| \le r} \left( w_t - \eta \, (w_t \cdot x_t - y_t) \, x_t \right),
        \qquad w_1 = 0,

    and the model is the mean of :math:`w_1, \dots, w_T` (robust stochastic approximation,
    Nemirovski et al. 2009, section 2.2, for half the squared error). ``fit`` makes ``n_epochs``
    passes over the rows, one by default.

    Parameters
    ----------
    step_size : float or "auto", default="auto"
        The step size :math:`\eta > 0`. "auto" is :math:`n^{-1/2}`, where n is the number of rows
        that are passed to ``fit`` or to the first ``partial_fit``. With ``method="treecv"`` or
        another incremental method, n is the number of all rows of X.
    radius : float, default=1.0
        Radius r > 0 of the ball onto which the weights are projected after each step; ``inf``
        means no projection.
    fit_intercept : bool, default=False
        Whether to append a feature of value 1, which is projected like any other.
    average : bool, default=True
        Whether the model is the mean of the weights before each step instead of the last weights.
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
    coef_ : ndarray of shape (n_features,)
        Weights of the features, in the type of X (float64 or float32).
    intercept_ : ndarray of shape (1,)
        Weight of the appended feature; 0 if ``fit_intercept`` is False.
    step_size_ : float
        The step size in use.
    t_ : int
        Number of rows trained on, counted once per epoch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    tree_cross_validate : Cross-validate an estimator in about log2(2k) passes.
    PegasosClassifier : The classifier in the experiments of the TreeCV paper.

    Notes
    -----
    By default the weights stay in the unit ball, so the targets should be of order 1. The TreeCV
    paper scales targets to [0, 1] and features to unit variance.

    References
    ----------
    .. [1] A. Nemirovski, A. Juditsky, G. Lan and A. Shapiro, "Robust stochastic approximation
       approach to stochastic programming", SIAM Journal on Optimization 19 (2009), 1574-1609.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import minmax_scale, scale
    >>> from optuna_treecv.paper import LSQSGDRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = LSQSGDRegressor(fit_intercept=True, random_state=0).fit(scale(X), minmax_scale(y))
    >>> round(float(model.score(scale(X), minmax_scale(y))), 1)
    0.5
    """

    _fixed_parameters = ("average",)
    _parameter_constraints = {**AveragedSGD._parameter_constraints, "average": ["boolean"]}
    lane_parameters = ("step_size", "radius")
    # The values of those parameters of ``AveragedSGD`` that this class does not have.
    loss, alpha = "squared_error", 0.0
    learning_rate, average_start, batch_size = "constant", 0, 1

    step_size: float | Literal["auto"] = "auto"
    radius: float = 1.0
    fit_intercept: bool = False
    average: bool = True
    shuffle: bool = True
    random_state: Any = None

    @property
    def _eta(self) -> float:
        return self.step_size_

    def _settle(self, X: Any, seed: int | None) -> None:
        super()._settle(X, seed)
        auto = isinstance(self.step_size, str)
        self.step_size_ = X.shape[0] ** -0.5 if auto else float(self.step_size)
