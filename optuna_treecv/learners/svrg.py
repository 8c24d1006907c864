"""Streaming SVRG: variance-reduced gradient descent that reads each row once."""

from __future__ import annotations

from math import ceil
from numbers import Integral
from numbers import Real
from typing import Any
import warnings

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import StrOptions

from optuna_treecv._kernels.svrg import inner_length
from optuna_treecv._kernels.svrg import StreamingSVRG as Kernel
from optuna_treecv._kernels.svrg_lanes import StreamingSVRGLanes
from optuna_treecv.data import largest_norm2
from optuna_treecv.data import SparseRows
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.learners.linear import LinearClassifier
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.linear import LinearRegressor
from optuna_treecv.learners.linear import LogisticMixin

# b and p of the corollaries, the smallest that they allow.
_GROWTH, _POWER = 3, 2


class StreamingSVRG(LinearEstimator):
    """What the two estimators share."""

    draws = True
    _parameter_constraints = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "step_size": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "initial_batch_size": [Interval(Integral, 1, None, closed="left")],
        "batch_growth": [Interval(Real, 1, None, closed="left")],
        "inner_steps": [Interval(Integral, 1, None, closed="left")],
        "warm_stages": [Interval(Integral, 0, None, closed="left")],
        "schedule": [StrOptions({"geometric", "factorial"})],
        "settings": [StrOptions({"given", "theory"})],
        "fit_intercept": ["boolean"],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
    }

    alpha: float
    step_size: float | str
    initial_batch_size: int
    batch_growth: float
    inner_steps: int
    warm_stages: int
    schedule: str
    settings: str
    loss: str
    n_rows_used_: int
    _theory: tuple[float, int, float, int]

    def bound(self, n_seen: int) -> frozenset[str]:
        """The parameters that have influenced a state of ``n_seen`` rows.

        Until the first batch is complete the state is a sum of gradients at 0 and waits for the
        rest of its rows; how batches grow is felt from the second one on.
        """
        names = frozenset(self._get_param_names()) - {"fit_intercept", "shuffle"}
        if self.settings == "theory":
            return names
        if n_seen <= self.initial_batch_size:
            return names & {"loss", "epsilon", "initial_batch_size", "settings"}
        if n_seen <= self.breakpoints()[-1]:
            return names - {"batch_growth", "schedule", "warm_stages"}
        return names

    def breakpoints(self) -> tuple[int, ...]:
        """The ends of the first batch and, once its length is drawn, of the first inner phase."""
        if self.settings == "theory":
            return ()
        first = self.initial_batch_size
        if not hasattr(self, "_seed"):
            return (first,)
        return first, first + inner_length(self._seed, 0, min(self.inner_steps, MOST_ROWS))

    def make_kernel(
        self, X: np.ndarray | SparseRows, y: np.ndarray | None, n_classes: int | None
    ) -> Kernel:
        """The compiled learner with this estimator's settings over padded rows."""
        epsilon, alpha, eta = getattr(self, "epsilon", 0.0), self.alpha, self._eta()
        stages = self._stages()
        return Kernel(X, y, n_classes, self.loss, epsilon, alpha, eta, *stages, self._seed)

    @property
    def lane_parameters(self) -> tuple[str, ...]:
        """Estimators that differ in these are trained side by side: they have the same stages."""
        return () if self.settings == "theory" else ("alpha", "step_size")

    @property
    def rewrites_often(self) -> bool:
        """Whether the scale reaches 1 / 64 in some 400 rows, with "auto" for 0.1."""
        return self.alpha * (self._eta() or 0.1) > 0.01

    def _make_lanes(
        self,
        X: np.ndarray | SparseRows,
        y: np.ndarray | None,
        n_classes: int | None,
        estimators: list[Any],
    ) -> StreamingSVRGLanes:
        """The same for several values of ``alpha`` and ``step_size``."""
        values = [(one.alpha, one._eta()) for one in estimators]
        epsilon, stages = getattr(self, "epsilon", 0.0), self._stages()
        return StreamingSVRGLanes(X, y, n_classes, self.loss, epsilon, *stages, self._seed, values)

    def _eta(self) -> float:
        """The step size; 0 is the automatic one."""
        if self.settings == "theory":
            return self._theory[0]
        return 0.0 if isinstance(self.step_size, str) else float(self.step_size)

    def _stages(self) -> tuple[int, float, int, int, bool]:
        """First batch, growth, inner steps, warm stages, and whether they are factorial."""
        if self.settings == "theory":
            _, first, growth, steps = self._theory
        else:
            first, growth, steps = self.initial_batch_size, self.batch_growth, self.inner_steps
        first, steps, warm = (min(n, MOST_ROWS) for n in (first, steps, self.warm_stages))
        factorial = self.settings == "given" and self.schedule == "factorial"
        return first, growth, steps, warm, factorial

    def _settle(self, X: Any, seed: int | None) -> None:
        super()._settle(X, seed)
        if self.settings == "theory":
            self._theory = self._by_theory(X)

    def _by_theory(self, X: Any) -> tuple[float, int, float, int]:
        """Step size, first batch, growth and inner steps.

        Of corollary 4 for the squared loss, whose Hessian is constant (its alpha is 1), of
        corollary 5 for the others, without the constant C of self-concordance, which is not known.
        """
        if self.alpha == 0:
            raise ValueError(
                "alpha must be greater than 0 for settings='theory', whose constants depend on "
                "the condition number, got 0."
            )
        norm2 = largest_norm2(X, self.n_features_in_) + self.fit_intercept
        smoothness = (0.25 if self.loss == "log_loss" else 1.0) * norm2 + self.alpha
        kappa = smoothness / self.alpha
        eta = 1 / (20 * _GROWTH ** (_POWER + 1))
        steps = 20 * _GROWTH ** (_POWER + 1) * kappa / eta
        if self.loss == "squared_error":
            first = 20 * kappa * _GROWTH ** (_POWER + 1)
        else:
            first = _GROWTH * steps * kappa
        if first + steps > X.shape[0]:
            warnings.warn(
                f"settings='theory' asks for {first:.3g} rows in the first batch and up to "
                f"{steps:.3g} inner steps at condition number {kappa:.3g}; the {X.shape[0]} rows "
                "do not suffice for one stage. settings='given' is the practical choice.",
                stacklevel=4,
            )
        most = 2**31  # rows that there may be
        return eta / smoothness, ceil(min(first, most)), _GROWTH, ceil(min(steps, most))

    def _take_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        super()._take_model(kernel, model, dtype, n_features)
        self.n_rows_used_ = kernel.n_used(self._state)


class StreamingSVRGClassifier(LogisticMixin, StreamingSVRG, LinearClassifier):
    r"""Logistic regression by streaming SVRG, in one pass.

    Minimises the mean of :math:`\ell(w \cdot x, y) = \log(1 + e^{-y \, w \cdot x})`, with
    :math:`y = \pm 1`, plus :math:`\alpha |w|^2 / 2`.

    Stage s averages the gradient at the anchor :math:`\tilde w` over a batch of :math:`k_s` rows,

    .. math:: g = \frac{1}{k_s} \sum_i \ell'(\tilde w \cdot x_i, y_i) \, x_i,

    then, from :math:`w_1 = \tilde w`, takes :math:`\tilde m` corrected steps of one new row each,
    :math:`\tilde m` uniform on 1, ..., m,

    .. math::
        w_{t+1} = w_t - \eta \left( (\ell'(w_t \cdot x_t, y_t)
        - \ell'(\tilde w \cdot x_t, y_t)) \, x_t + \alpha w_t + g \right),

    and the last iterate is the next anchor; :math:`k_{s+1} = b k_s` (Frostig et al. 2015,
    algorithm 1). ``fit`` is one pass over the rows, each used once; ``partial_fit`` goes on
    anywhere. Several classes are trained one against the rest.

    Parameters
    ----------
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        :math:`\eta`, which multiplies the corrected gradient (the paper's :math:`\eta / L`).
        "auto" is 0.1 / L, with L = :math:`|x|^2 / 4 + \alpha` for the largest of the rows
        so far.
    initial_batch_size : int, default=100
        :math:`k_0`, the rows of the first batch.
    batch_growth : float, default=2.0
        :math:`b \ge 1`, by which batches grow.
    inner_steps : int, default=1000
        :math:`m`, the longest inner phase.
    warm_stages : int, default=0
        Stages after the first whose batches do not grow yet (the paper's remark 7).
    schedule : {"geometric", "factorial"}, default="geometric"
        "factorial" replaces ``batch_growth``: :math:`k_s = 4^s s! \, k_0`,
        :math:`\eta_s = \eta / 2^s`, :math:`m_s = 4^s m` (remark 8).
    settings : {"given", "theory"}, default="given"
        "theory" replaces ``step_size``, ``initial_batch_size``, ``batch_growth``, ``inner_steps``
        and ``schedule`` by the constants of the paper's corollary 5 with b = 3 and p = 2, and
        warns if the rows do not suffice for one stage of them, as they seldom do. It needs
        ``alpha`` > 0: the condition number is taken as L / alpha, with L of all rows of X.
    fit_intercept : bool, default=True
        Append a feature of value 1, which is regularised like any other.
    shuffle : bool, default=True
        Feed ``fit`` and ``partial_fit`` their rows in random order. Inside TreeCV the evaluation
        orders the rows.
    random_state : int, RandomState instance or None, default=None
        Of that order, and of the inner lengths. Inside TreeCV None is the evaluation's seed.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Weights, of the type of X (float64 or float32): the iterate in an inner phase, the anchor
        in a batch.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Weights of the appended feature; 0 without one.
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    n_rows_used_ : int
        Rows that have acted on the weights: all but those of a batch that is not complete.
    t_ : int
        Rows seen.
    n_features_in_ : int
        Features seen.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X had some.

    See Also
    --------
    StreamingSVRGRegressor : The same for squared and Huber loss.
    RootSGDClassifier : Variance reduction without stages.

    Notes
    -----
    Until the first batch is complete the weights are 0, so ``initial_batch_size`` should be a
    small part of the rows; an inner phase of about :math:`1 / (\eta \mu)` steps, with
    :math:`\mu` the smallest curvature that matters, carries the anchor to the minimum of its
    batch. Sparse rows are trained in the time of their nonzeros, to the same model.

    References
    ----------
    .. [1] R. Frostig, R. Ge, S. M. Kakade and A. Sidford, "Competing with the empirical risk
       minimizer in a single pass", Conference on Learning Theory, PMLR 40 (2015), 728-763.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import StreamingSVRGClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = StreamingSVRGClassifier(step_size=0.1, initial_batch_size=50, random_state=0)
    >>> round(float(model.fit(scale(X), y).score(scale(X), y)), 1)
    0.9
    """

    loss = "log_loss"

    def __init__(
        self,
        alpha: float = 1e-4,
        step_size: float | str = "auto",
        initial_batch_size: int = 100,
        batch_growth: float = 2.0,
        inner_steps: int = 1000,
        warm_stages: int = 0,
        schedule: str = "geometric",
        settings: str = "given",
        fit_intercept: bool = True,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.step_size = step_size
        self.initial_batch_size = initial_batch_size
        self.batch_growth = batch_growth
        self.inner_steps = inner_steps
        self.warm_stages = warm_stages
        self.schedule = schedule
        self.settings = settings
        self.fit_intercept = fit_intercept
        self.shuffle = shuffle
        self.random_state = random_state


class StreamingSVRGRegressor(StreamingSVRG, LinearRegressor):
    r"""Linear regression by streaming SVRG, in one pass.

    Minimises the mean of :math:`\ell(w \cdot x, y)`, half the squared error or Huber's loss, plus
    :math:`\alpha |w|^2 / 2`.

    Stage s averages the gradient at the anchor :math:`\tilde w` over a batch of :math:`k_s` rows,

    .. math:: g = \frac{1}{k_s} \sum_i \ell'(\tilde w \cdot x_i, y_i) \, x_i,

    then, from :math:`w_1 = \tilde w`, takes :math:`\tilde m` corrected steps of one new row each,
    :math:`\tilde m` uniform on 1, ..., m,

    .. math::
        w_{t+1} = w_t - \eta \left( (\ell'(w_t \cdot x_t, y_t)
        - \ell'(\tilde w \cdot x_t, y_t)) \, x_t + \alpha w_t + g \right),

    and the last iterate is the next anchor; :math:`k_{s+1} = b k_s` (Frostig et al. 2015,
    algorithm 1). ``fit`` is one pass over the rows, each used once; ``partial_fit`` goes on
    anywhere.

    Parameters
    ----------
    loss : {"squared_error", "huber"}, default="squared_error"
        The loss :math:`\ell`.
    epsilon : float, default=1.35
        Where "huber" turns from half the squared error to linear, in the unit of y.
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        :math:`\eta`, which multiplies the corrected gradient (the paper's :math:`\eta / L`).
        "auto" is 0.1 / L, with L = :math:`|x|^2 + \alpha` for the largest of the rows
        so far.
    initial_batch_size : int, default=100
        :math:`k_0`, the rows of the first batch.
    batch_growth : float, default=2.0
        :math:`b \ge 1`, by which batches grow.
    inner_steps : int, default=1000
        :math:`m`, the longest inner phase.
    warm_stages : int, default=0
        Stages after the first whose batches do not grow yet (the paper's remark 7).
    schedule : {"geometric", "factorial"}, default="geometric"
        "factorial" replaces ``batch_growth``: :math:`k_s = 4^s s! \, k_0`,
        :math:`\eta_s = \eta / 2^s`, :math:`m_s = 4^s m` (remark 8).
    settings : {"given", "theory"}, default="given"
        "theory" replaces ``step_size``, ``initial_batch_size``, ``batch_growth``, ``inner_steps``
        and ``schedule`` by the constants of the paper's corollary 4 (5 for Huber's loss) with b =
        3 and p = 2, and warns if the rows do not suffice for one stage of them, as they seldom do.
        It needs ``alpha`` > 0: the condition number is taken as L / alpha, L that of all rows.
    fit_intercept : bool, default=True
        Append a feature of value 1, which is regularised like any other.
    shuffle : bool, default=True
        Feed ``fit`` and ``partial_fit`` their rows in random order. Inside TreeCV the evaluation
        orders the rows.
    random_state : int, RandomState instance or None, default=None
        Of that order, and of the inner lengths. Inside TreeCV None is the evaluation's seed.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights, of the type of X (float64 or float32): the iterate in an inner phase, the anchor
        in a batch.
    intercept_ : ndarray of shape (1,)
        Weight of the appended feature; 0 without one.
    n_rows_used_ : int
        Rows that have acted on the weights: all but those of a batch that is not complete.
    t_ : int
        Rows seen.
    n_features_in_ : int
        Features seen.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X had some.

    See Also
    --------
    StreamingSVRGClassifier : The same for logistic loss.
    RootSGDRegressor : Variance reduction without stages.

    Notes
    -----
    Until the first batch is complete the weights are 0, so ``initial_batch_size`` should be a
    small part of the rows; an inner phase of about :math:`1 / (\eta \mu)` steps, with
    :math:`\mu` the smallest curvature that matters, carries the anchor to the minimum of its
    batch. Sparse rows are trained in the time of their nonzeros, to the same model.

    References
    ----------
    .. [1] R. Frostig, R. Ge, S. M. Kakade and A. Sidford, "Competing with the empirical risk
       minimizer in a single pass", Conference on Learning Theory, PMLR 40 (2015), 728-763.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import StreamingSVRGRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = StreamingSVRGRegressor(step_size=0.01, initial_batch_size=50, random_state=0)
    >>> round(float(model.fit(scale(X), scale(y)).score(scale(X), scale(y))), 1)
    0.5
    """

    _parameter_constraints = {
        "loss": [StrOptions({"squared_error", "huber"})],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        **StreamingSVRG._parameter_constraints,
    }

    def __init__(
        self,
        loss: str = "squared_error",
        epsilon: float = 1.35,
        alpha: float = 1e-4,
        step_size: float | str = "auto",
        initial_batch_size: int = 100,
        batch_growth: float = 2.0,
        inner_steps: int = 1000,
        warm_stages: int = 0,
        schedule: str = "geometric",
        settings: str = "given",
        fit_intercept: bool = True,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.alpha = alpha
        self.step_size = step_size
        self.initial_batch_size = initial_batch_size
        self.batch_growth = batch_growth
        self.inner_steps = inner_steps
        self.warm_stages = warm_stages
        self.schedule = schedule
        self.settings = settings
        self.fit_intercept = fit_intercept
        self.shuffle = shuffle
        self.random_state = random_state
