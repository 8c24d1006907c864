"""Streaming SVRG: stochastic gradient descent with variance reduction, in one pass."""

from dataclasses import dataclass
from math import ceil
from numbers import Integral
from numbers import Real
from typing import Any
from typing import Literal
import warnings

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import StrOptions

from optuna_treecv.engines.treecv.kernels.svrg import inner_length
from optuna_treecv.engines.treecv.kernels.svrg import StreamingSVRG as Kernel
from optuna_treecv.engines.treecv.learners.compiled import KernelRows
from optuna_treecv.engines.treecv.learners.compiled import MOST_ROWS
from optuna_treecv.engines.treecv.learners.linear import LinearClassifier
from optuna_treecv.engines.treecv.learners.linear import LinearEstimator
from optuna_treecv.engines.treecv.learners.linear import LinearRegressor
from optuna_treecv.engines.treecv.learners.linear import LogisticMixin
from optuna_treecv.estimators.base import ACT_THROUGH_ROWS
from optuna_treecv.estimators.base import COUNT
from optuna_treecv.rows.memory import largest_norm2

# The smallest b that corollaries 4 and 5 of Frostig et al. (2015) allow.
_GROWTH = 3

# The smallest p that corollaries 4 and 5 of Frostig et al. (2015) allow.
_POWER = 2


class StreamingSVRG(LinearEstimator):
    """The base class of estimators trained by streaming SVRG."""

    draws = True
    _parameter_constraints = {
        **LinearEstimator._parameter_constraints,
        "loss": [StrOptions({"squared_error", "huber"})],
        "initial_batch_size": COUNT,
        "batch_growth": [Interval(Real, 1, None, closed="left")],
        "inner_steps": [StrOptions({"auto"}), *COUNT],
        "warm_stages": [Interval(Integral, 0, None, closed="left")],
        "schedule": [StrOptions({"geometric", "factorial"})],
        "settings": [StrOptions({"given", "theory"})],
    }

    initial_batch_size: int
    batch_growth: float
    inner_steps: int | str
    warm_stages: int
    schedule: str
    settings: str
    loss: str

    def bound(self, n_seen: int) -> frozenset[str]:
        """Return the names of the parameters that influence a state after ``n_seen`` rows.

        Until the first batch is complete, the state is a sum of gradients at 0. During this time,
        the step size matters only if it is "auto", which scales the gradient of each row. The
        growth of batches has no influence before the second batch.
        """
        names = frozenset(self._get_param_names()) - ACT_THROUGH_ROWS
        if self.settings == "theory":
            return names
        if n_seen <= self.initial_batch_size:
            early = {"loss", "epsilon", "initial_batch_size", "settings", "class_weight"}
            return names & (early | {"step_size"} if self.step_size == "auto" else early)
        if n_seen <= self.breakpoints()[-1]:
            return names - {"batch_growth", "schedule", "warm_stages"}
        return names

    def breakpoints(self) -> tuple[int, ...]:
        """Return the numbers of rows after which the first batch and the first inner phase end.

        The second number is missing if the length of the inner phase has not been drawn yet. Both
        are missing with ``settings="theory"``.
        """
        if self.settings == "theory":
            return ()
        first = int(self.initial_batch_size)
        if not hasattr(self, "_seed"):
            return (first,)
        if isinstance(self.inner_steps, str):
            return first, 2 * first
        return first, first + inner_length(self._seed, 0, min(self.inner_steps, MOST_ROWS))

    @property
    def lane_parameters(self) -> tuple[str, ...]:
        """The names of the parameters in which the candidates of a batch may differ.

        The other parameters, such as those of the stages, must be the same for all candidates.
        """
        return () if self.settings == "theory" else ("alpha", "step_size")

    def make_kernel(self, rows: KernelRows, lanes: list[Any] | None = None) -> Kernel:
        """Return a kernel for padded rows, with the parameters of this estimator or of a batch."""
        X, y, n_classes = rows
        values = [(e.alpha, e._eta) for e in lanes or [self]]
        epsilon, settings = getattr(self, "epsilon", 0.0), (*self._stages(), self._seed, values)
        return Kernel(X, y, n_classes, self.loss, epsilon, *settings, lanes is not None)

    @property
    def _eta(self) -> float:
        return self._theory[0] if self.settings == "theory" else super()._eta

    def _stages(self) -> tuple[int, float, int, int, bool]:
        """Return the parameters of the stages in the form that the kernel takes.

        Returns
        -------
        tuple
            The size of the first batch, the growth of batches, the number of inner steps (0 for
            "auto"), the number of warm stages, and whether the schedule is "factorial".
        """
        if self.settings == "theory":
            _, first, growth, steps = self._theory
        else:
            first, growth = self.initial_batch_size, self.batch_growth
            steps = 0 if isinstance(self.inner_steps, str) else self.inner_steps
        first, steps, warm = (min(n, MOST_ROWS) for n in (first, steps, self.warm_stages))
        factorial = self.settings == "given" and self.schedule == "factorial"
        return first, growth, steps, warm, factorial

    @property
    def settles_on_rows(self) -> bool:
        """Whether the step size is computed from the largest norm of a row of X."""
        return bool(self.settings == "theory")

    def _settle(self, X: Any, seed: int | None) -> None:
        super()._settle(X, seed)
        if self.settings == "theory":
            self._theory = self._by_theory(X)

    def _by_theory(self, X: Any) -> tuple[float, int, float, int]:
        """Return the parameters for ``settings="theory"``, computed as the paper recommends.

        For the squared loss, these are the constants of corollary 4. Its Hessian is constant, so
        the paper's alpha, which bounds how much the Hessian varies and is not the parameter
        ``alpha``, is 1. For the other losses, these are the constants of corollary 5 without the
        unknown constant C of self-concordance.

        Returns
        -------
        tuple
            The step size, the size of the first batch, the growth of batches and the number of
            inner steps.
        """
        if self.alpha == 0:
            raise ValueError(
                "alpha must be greater than 0 for settings='theory', got 0: the constants "
                "of the theory depend on the condition number, which would be infinite."
            )
        norm2 = largest_norm2(X, self.n_features_in_) + self.fit_intercept
        alpha = float(self.alpha)
        smoothness = (0.25 if self.loss == "log_loss" else 1.0) * norm2 + alpha
        kappa = smoothness / alpha
        eta = 1 / (20 * _GROWTH ** (_POWER + 1))
        steps = 20 * _GROWTH ** (_POWER + 1) * kappa / eta
        if self.loss == "squared_error":
            first = 20 * kappa * _GROWTH ** (_POWER + 1)
        else:
            first = _GROWTH * steps * kappa
        if first + steps > X.shape[0]:
            warnings.warn(
                f"settings='theory' needs {first:.3g} rows in the first batch and up to "
                f"{steps:.3g} inner steps at condition number {kappa:.3g}; the {X.shape[0]} rows "
                "of X are too few for one stage. Use settings='given' instead.",
                stacklevel=4,
            )
        most = 2**31  # more than the number of rows of any X
        return eta / smoothness, ceil(min(first, most)), _GROWTH, ceil(min(steps, most))

    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        super()._set_model(kernel, model, dtype, n_features)
        if self._state is not None:  # an average of models has no state
            self.n_rows_used_ = kernel.n_used(self._state)


@dataclass(repr=False, eq=False)
class StreamingSVRGClassifier(LogisticMixin, StreamingSVRG, LinearClassifier):
    r"""Logistic regression by streaming SVRG, in one pass.

    The estimator minimises the mean of :math:`\ell(w \cdot x, y) = \log(1 + e^{-y \, w \cdot x})`,
    with :math:`y = \pm 1`, plus :math:`\alpha |w|^2 / 2`.

    Stage s first averages the gradient at the anchor :math:`\tilde w` over a batch of
    :math:`k_s` rows,

    .. math:: g = \frac{1}{k_s} \sum_i \ell'(\tilde w \cdot x_i, y_i) \, x_i,

    and then takes :math:`\tilde m` corrected steps from :math:`w_1 = \tilde w`, each with one new
    row. The number :math:`\tilde m` is drawn uniformly from 1, ..., m, or equals :math:`k_s` by
    default:

    .. math::
        w_{t+1} = w_t - \eta \left( (\ell'(w_t \cdot x_t, y_t)
        - \ell'(\tilde w \cdot x_t, y_t)) \, x_t + \alpha w_t + g \right).

    The last iterate is the anchor of the next stage, and :math:`k_{s+1} = b k_s` (Frostig et al.
    2015, algorithm 1). ``fit`` makes ``n_epochs`` passes over the rows, one by default;
    ``partial_fit`` can continue at any point of a stage. More than two classes are trained
    one-vs-rest.

    Parameters
    ----------
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        The step size :math:`\eta > 0`, which multiplies the corrected gradient (:math:`\eta / L`
        in the paper). "auto" computes it from the norms of the rows seen so far; see the notes.
    initial_batch_size : int, default=100
        :math:`k_0`, the number of rows in the first batch.
    batch_growth : float, default=2.0
        :math:`b \ge 1`, the factor by which batches grow from stage to stage.
    inner_steps : int or "auto", default="auto"
        :math:`m`, the maximal number of steps of an inner phase. With "auto", each inner phase has
        as many steps as its batch has rows, and no number is drawn.
    warm_stages : int, default=0
        Number of stages after the first stage in which batches do not grow yet (remark 7 of the
        paper).
    schedule : {"geometric", "factorial"}, default="geometric"
        "geometric" uses ``batch_growth``. "factorial" uses :math:`k_s = 4^s s! \, k_0`,
        :math:`\eta_s = \eta / 2^s` and :math:`m_s = 4^s m` instead (remark 8 of the paper).
    settings : {"given", "theory"}, default="given"
        "theory" replaces ``step_size``, ``initial_batch_size``, ``batch_growth``, ``inner_steps``
        and ``schedule`` by the constants of the paper's corollary 5 with b = 3 and p = 2. Most
        data sets have too few rows for even one such stage, in which case there is a warning.
        "theory" needs ``alpha`` > 0, because it takes L / alpha as the condition number, with L
        computed from all rows of X.
    fit_intercept : bool, default=True
        Whether to append a feature of value 1, which is regularised like any other.
    shuffle : bool, default=True
        Whether ``fit`` and ``partial_fit`` train on their rows in random order. With
        ``method="treecv"``, the ``order`` parameter of the cross-validation decides instead.
    random_state : int, RandomState instance or None, default=None
        Seed of the random order and of the lengths of inner phases. With ``method="treecv"``, None
        stands for the seed of the cross-validation.
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
        Weights of the features, in the type of X (float64 or float32). After a row of an inner
        phase, they are the current iterate; after a row of a batch, they are the anchor.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Weights of the appended feature; 0 if ``fit_intercept`` is False.
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    n_rows_used_ : int
        Number of rows that have influenced the weights, which are all rows except those of an
        incomplete batch.
    t_ : int
        Number of rows trained on, counted once per epoch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    StreamingSVRGRegressor : The regressor, for squared and Huber loss.

    Notes
    -----
    :class:`AveragedSGDClassifier` and :class:`AveragedSGDRegressor` are the better choice in one
    pass: with the default parameters, the losses of streaming SVRG on withheld rows are 1.00 to
    1.10 times theirs on ten of twelve data sets, 1.2 times on w8a and 1.5 times on elevators
    (``benchmarks/svrg_defaults.py``). Streaming SVRG is for those who study the algorithm, and for
    several passes over many classes: five passes over letter gave 0.97 times their loss.

    The weights are 0 until the first batch is complete, so ``initial_batch_size`` should be small
    compared with the number of rows. An inner phase of about :math:`1 / (\eta \mu)` steps, with
    :math:`\mu` the smallest curvature that matters, moves the anchor to the minimum of its batch.

    With ``step_size="auto"``, the gradient of a row is divided by max(M, :math:`|x|^2`) and the
    penalty by M, the geometric mean (to within 6 %) of :math:`|x|^2` of the rows seen so far. The
    step size is then :math:`1 / (1/3 + \alpha / M)`. Rows whose norms are larger than
    typical therefore have less weight.

    Training on sparse rows takes time proportional to the number of nonzeros and gives the same
    model as training on dense rows.

    With ``class_weight="balanced"``, the weight of a row of class c is multiplied by
    :math:`(W + K) / (K (W_c + 1))`. Here :math:`W_c` is the sum of the weights of class c over the
    rows seen so far, this row included, W is the sum over all classes, and K is the number of
    classes. scikit-learn instead counts all rows before training.

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
    >>> model = StreamingSVRGClassifier(initial_batch_size=50, random_state=0)
    >>> round(float(model.fit(scale(X), y).score(scale(X), y)), 2)
    0.97
    """

    loss = "log_loss"

    alpha: float = 1e-4
    step_size: float | Literal["auto"] = "auto"
    initial_batch_size: int = 100
    batch_growth: float = 2.0
    inner_steps: int | Literal["auto"] = "auto"
    warm_stages: int = 0
    schedule: Literal["geometric", "factorial"] = "geometric"
    settings: Literal["given", "theory"] = "given"
    fit_intercept: bool = True
    shuffle: bool = True
    random_state: Any = None


@dataclass(repr=False, eq=False)
class StreamingSVRGRegressor(StreamingSVRG, LinearRegressor):
    r"""Linear regression by streaming SVRG, in one pass.

    The estimator minimises the mean of :math:`\ell(w \cdot x, y)`, which is half the squared error
    or Huber's loss, plus :math:`\alpha |w|^2 / 2`.

    Stage s first averages the gradient at the anchor :math:`\tilde w` over a batch of
    :math:`k_s` rows,

    .. math:: g = \frac{1}{k_s} \sum_i \ell'(\tilde w \cdot x_i, y_i) \, x_i,

    and then takes :math:`\tilde m` corrected steps from :math:`w_1 = \tilde w`, each with one new
    row. The number :math:`\tilde m` is drawn uniformly from 1, ..., m, or equals :math:`k_s` by
    default:

    .. math::
        w_{t+1} = w_t - \eta \left( (\ell'(w_t \cdot x_t, y_t)
        - \ell'(\tilde w \cdot x_t, y_t)) \, x_t + \alpha w_t + g \right).

    The last iterate is the anchor of the next stage, and :math:`k_{s+1} = b k_s` (Frostig et al.
    2015, algorithm 1). ``fit`` makes ``n_epochs`` passes over the rows, one by default;
    ``partial_fit`` can continue at any point of a stage.

    Parameters
    ----------
    loss : {"squared_error", "huber"}, default="squared_error"
        The loss :math:`\ell`.
    epsilon : float, default=1.35
        The error beyond which "huber" is linear, in the unit of y.
    alpha : float, default=1e-4
        The weight :math:`\alpha \ge 0` of the penalty :math:`|w|^2 / 2`.
    step_size : float or "auto", default="auto"
        The step size :math:`\eta > 0`, which multiplies the corrected gradient (:math:`\eta / L`
        in the paper). "auto" computes it from the norms of the rows seen so far; see the notes.
    initial_batch_size : int, default=100
        :math:`k_0`, the number of rows in the first batch.
    batch_growth : float, default=2.0
        :math:`b \ge 1`, the factor by which batches grow from stage to stage.
    inner_steps : int or "auto", default="auto"
        :math:`m`, the maximal number of steps of an inner phase. With "auto", each inner phase has
        as many steps as its batch has rows, and no number is drawn.
    warm_stages : int, default=0
        Number of stages after the first stage in which batches do not grow yet (remark 7 of the
        paper).
    schedule : {"geometric", "factorial"}, default="geometric"
        "geometric" uses ``batch_growth``. "factorial" uses :math:`k_s = 4^s s! \, k_0`,
        :math:`\eta_s = \eta / 2^s` and :math:`m_s = 4^s m` instead (remark 8 of the paper).
    settings : {"given", "theory"}, default="given"
        "theory" replaces ``step_size``, ``initial_batch_size``, ``batch_growth``, ``inner_steps``
        and ``schedule`` by the constants of the paper's corollary 4 (5 for Huber's loss) with b =
        3 and p = 2. Most data sets have too few rows for even one such stage, in which case there
        is a warning. "theory" needs ``alpha`` > 0, because it takes L / alpha as the condition
        number, with L computed from all rows of X.
    fit_intercept : bool, default=True
        Whether to append a feature of value 1, which is regularised like any other.
    shuffle : bool, default=True
        Whether ``fit`` and ``partial_fit`` train on their rows in random order. With
        ``method="treecv"``, the ``order`` parameter of the cross-validation decides instead.
    random_state : int, RandomState instance or None, default=None
        Seed of the random order and of the lengths of inner phases. With ``method="treecv"``, None
        stands for the seed of the cross-validation.
    n_epochs : int, default=1
        Number of passes of ``fit`` over its rows, each in a new random order if ``shuffle`` is
        True; ``partial_fit`` always makes one pass. With ``method="treecv"``, number of updates
        per training row: one with the row itself, the others with randomly drawn training rows.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights of the features, in the type of X (float64 or float32). After a row of an inner
        phase, they are the current iterate; after a row of a batch, they are the anchor.
    intercept_ : ndarray of shape (1,)
        Weight of the appended feature; 0 if ``fit_intercept`` is False.
    n_rows_used_ : int
        Number of rows that have influenced the weights, which are all rows except those of an
        incomplete batch.
    t_ : int
        Number of rows trained on, counted once per epoch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features; only set if X has column names.

    See Also
    --------
    StreamingSVRGClassifier : The classifier, for logistic loss.

    Notes
    -----
    :class:`AveragedSGDRegressor` is the better choice in one pass; see the notes of
    :class:`StreamingSVRGClassifier`.

    The weights are 0 until the first batch is complete, so ``initial_batch_size`` should be small
    compared with the number of rows. An inner phase of about :math:`1 / (\eta \mu)` steps, with
    :math:`\mu` the smallest curvature that matters, moves the anchor to the minimum of its batch.

    With ``step_size="auto"``, the gradient of a row is divided by max(S, :math:`|x|^2`) and the
    penalty by S = :math:`4 R^2` with :math:`R^2 = \sum |x|^4 / \sum |x|^2` over the rows so far.
    The step size is then :math:`1 / (1 + \alpha / S)`. For a small :math:`\alpha`, a gradient is
    therefore multiplied by about :math:`1 / (4 R^2)`, as in Bach and Moulines [2]_. In addition, a
    step here moves the prediction of a row at most to its target. Only rows with :math:`|x|^2`
    above S have less weight.

    Training on sparse rows takes time proportional to the number of nonzeros and gives the same
    model as training on dense rows.

    References
    ----------
    .. [1] R. Frostig, R. Ge, S. M. Kakade and A. Sidford, "Competing with the empirical risk
       minimizer in a single pass", Conference on Learning Theory, PMLR 40 (2015), 728-763.
    .. [2] F. Bach and E. Moulines, "Non-strongly-convex smooth stochastic approximation with
       convergence rate O(1/n)", Advances in Neural Information Processing Systems 26 (2013),
       773-781.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import StreamingSVRGRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = StreamingSVRGRegressor(initial_batch_size=50, random_state=0)
    >>> round(float(model.fit(scale(X), scale(y)).score(scale(X), scale(y))), 1)
    0.5
    """

    loss: Literal["squared_error", "huber"] = "squared_error"
    epsilon: float = 1.35
    alpha: float = 1e-4
    step_size: float | Literal["auto"] = "auto"
    initial_batch_size: int = 100
    batch_growth: float = 2.0
    inner_steps: int | Literal["auto"] = "auto"
    warm_stages: int = 0
    schedule: Literal["geometric", "factorial"] = "geometric"
    settings: Literal["given", "theory"] = "given"
    fit_intercept: bool = True
    shuffle: bool = True
    random_state: Any = None
