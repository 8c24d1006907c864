"""PEGASOS, which trains a linear support vector machine in one pass."""

from dataclasses import dataclass
from typing import Any

from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.learners.compiled import KernelRows
from optuna_treecv.engines.treecv.learners.linear import LinearClassifier
from optuna_treecv.estimators.base import ABOVE_0


@dataclass(repr=False, eq=False)
class PegasosClassifier(LinearClassifier):
    r"""Linear support vector machine trained by PEGASOS, one subgradient step per row.

    The estimator minimises

    .. math:: \frac{\lambda}{2} |w|^2 + \frac{1}{n} \sum_i \max(0, 1 - y_i \, w \cdot x_i)

    by :math:`w_{t+1} = (1 - \eta_t \lambda) w_t + [y_t \, w_t \cdot x_t < 1] \, \eta_t y_t x_t`
    with :math:`\eta_t = 1 / (\lambda t)` and :math:`w_1 = 0` (Shalev-Shwartz et al. 2011, figure 1
    with one row per step). ``fit`` makes ``n_epochs`` passes over the rows, one by default. More
    than two classes are trained one-vs-rest.

    Parameters
    ----------
    alpha : float, default=1e-4
        The weight :math:`\lambda > 0` of the penalty.
    fit_intercept : bool, default=True
        Whether to append a feature of value 1, which is regularised and projected like any other.
    average : bool, default=False
        Whether the model is the mean of :math:`w_1, \dots, w_T`, the weights before each step,
        instead of :math:`w_{T+1}`.
    project : bool, default=False
        Whether the weights are projected after each step onto the ball
        :math:`|w| \le 1 / \sqrt{\lambda}`, which contains the optimum.
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
    tree_cross_validate : Cross-validate an estimator in about log2(2k) passes.
    LSQSGDRegressor : The regressor in the experiments of the TreeCV paper.

    Notes
    -----
    Training uses the type of X, float64 or float32. With two classes, a decision value above 0
    predicts the second one.

    With ``class_weight="balanced"``, the weight of a row of class c is multiplied by
    :math:`(W + K) / (K (W_c + 1))`. Here :math:`W_c` is the sum of the weights of class c over the
    rows seen so far, this row included, W is the sum over all classes, and K is the number of
    classes. scikit-learn instead counts all rows before training.

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

    _fixed_parameters = ("average", "project")
    _parameter_constraints = {
        **LinearClassifier._parameter_constraints,
        "alpha": ABOVE_0,
        "average": ["boolean"],
        "project": ["boolean"],
    }
    lane_parameters = ("alpha",)

    alpha: float = 1e-4
    fit_intercept: bool = True
    average: bool = False
    project: bool = False
    shuffle: bool = True
    random_state: Any = None

    def make_kernel(self, rows: KernelRows, lanes: list[Any] | None = None) -> Pegasos:
        """Return a kernel for padded rows, with the parameters of this estimator or of a batch."""
        alphas = [e.alpha for e in lanes or [self]]
        return Pegasos(*rows, alphas, self.average, self.project, lanes is not None)
