"""The estimators ``HistTreeClassifier`` and ``HistTreeRegressor``: trees on binned features."""

from abc import ABCMeta
from abc import abstractmethod
from dataclasses import dataclass
from dataclasses import field
from functools import lru_cache
from heapq import heapify
from heapq import heappop
from heapq import heappush
from numbers import Integral
from numbers import Real
from typing import Any
from typing import Literal
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.base import RegressorMixin
from sklearn.utils import Bunch
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length
from sklearn.utils import check_random_state
from sklearn.utils import column_or_1d
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval
from sklearn.utils._param_validation import RealNotInt
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from sklearn.utils.validation import validate_data

from optuna_treecv.engines.trees.forest import BinnedRows
from optuna_treecv.engines.trees.forest import Forest
from optuna_treecv.engines.trees.forest import grow_forest
from optuna_treecv.engines.trees.forest import Limits
from optuna_treecv.engines.trees.forest import Tree
from optuna_treecv.engines.trees.kernels.pruning import find_leaves
from optuna_treecv.estimators.base import AT_LEAST_0
from optuna_treecv.estimators.base import ScoreMixin
from optuna_treecv.estimators.base import TreeCVEstimator
from optuna_treecv.estimators.base import weights_of_classes
from optuna_treecv.estimators.base import weights_of_rows
from optuna_treecv.rows.bins import Binning
from optuna_treecv.rows.bins import ColumnTable
from optuna_treecv.rows.bins import find_binning
from optuna_treecv.rows.bins import MOST_BINS
from optuna_treecv.rows.bins import which_are_categorical
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import check_rows
from optuna_treecv.rows.checks import find_classes
from optuna_treecv.rows.checks import naming

#: The parameters that only stop growth or prune. A grown forest serves all stricter values, too.
SHARED_PARAMETERS = ("max_depth", "min_samples_split", "min_impurity_decrease", "ccp_alpha")


@lru_cache(maxsize=64)  # creating a generator may take longer than a trial
def _draw_seed(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


@dataclass(repr=False, eq=False, kw_only=True)
class HistTree(TreeCVEstimator, metaclass=ABCMeta):
    """The base class of ``HistTreeClassifier`` and ``HistTreeRegressor``."""

    is_grown = True
    criterion: str
    max_depth: int | None = None
    min_samples_split: int | float = 2
    min_samples_leaf: int | float = 1
    min_weight_fraction_leaf: float = 0.0
    min_impurity_decrease: float = 0.0
    ccp_alpha: float = 0.0
    max_bins: int = 255
    categorical_features: Any = "from_dtype"
    random_state: Any = None
    tree_: Tree = field(init=False)
    binning_: Binning = field(init=False)
    n_features_in_: int = field(init=False)

    _parameter_constraints = {
        **TreeCVEstimator._parameter_constraints,
        "max_depth": [Interval(Integral, 1, None, closed="left"), None],
        "min_samples_split": [
            Interval(Integral, 2, None, closed="left"),
            Interval(RealNotInt, 0.0, 1.0, closed="right"),
        ],
        "min_samples_leaf": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0.0, 1.0, closed="neither"),
        ],
        "min_weight_fraction_leaf": [Interval(Real, 0.0, 0.5, closed="both")],
        "min_impurity_decrease": AT_LEAST_0,
        "ccp_alpha": AT_LEAST_0,
        "max_bins": [Interval(Integral, 2, MOST_BINS, closed="both")],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
    }

    # --- Growth of the trees of all folds ---

    def find_bins(self, X: Any, rows: np.ndarray | None = None) -> tuple[ColumnTable, Binning]:
        """Return X as a table, and the edges of the bins of each feature.

        Parameters
        ----------
        X : array or data frame
        rows : ndarray of int or None
            The indices of the rows that determine the bins; None for all rows.
        """
        is_categorical = which_are_categorical(X, self.categorical_features)
        table = ColumnTable(X, is_categorical)
        return table, find_binning(table, is_categorical, self.max_bins, rows)

    def seed(self, default: int | None = None) -> int:
        """Return the seed that breaks ties; ``default`` is used if random_state is None."""
        if self.random_state is None and default is not None:
            return default
        if isinstance(self.random_state, Integral):
            return _draw_seed(int(self.random_state))
        return _draw_seed.__wrapped__(self.random_state)

    def _class_weights_by_tree(self, rows: BinnedRows) -> np.ndarray:
        """Return the class weights of each tree, (n_trees, n_classes)."""
        return np.empty((len(rows.bounds), 0))

    def take_tree(
        self, forest: Forest, binning: Binning, classes: np.ndarray | None, number: int = 0
    ) -> None:
        """Set the fitted attributes from a tree, pruned to the parameters.

        ``number`` is the number of the tree. By default, it is the tree of all rows.
        """
        self.tree_ = forest.tree(number, Limits.of(self))
        self.binning_ = binning
        self.n_features_in_ = len(binning.edges)
        if classes is not None:
            self.classes_ = classes

    # --- scikit-learn's interface ---

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Grow and prune the tree.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows; NaN is a missing value.
        y : array-like of shape (n_samples,)
            Class labels of at least two classes, or finite numbers.
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative weights of the rows. If None, all rows weigh 1.

        Returns
        -------
        object
            The fitted estimator.
        """
        self._fit(X, y, sample_weight)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> np.ndarray:
        """Grow the tree, and return the targets: class codes, or the numbers in y."""
        self.check_parameters()
        X = self._validate(X, reset=True)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        check_array_kind("y", y)
        with naming("X and y"):
            check_consistent_length(X, y)
        targets, classes = self._targets(y)
        weights = weights_of_rows(X, sample_weight)
        weighted_rows = None if weights is None else np.flatnonzero(weights > 0)
        table, binning = self.find_bins(X, weighted_rows)
        bounds = np.array([len(targets)], np.int64)
        rows = BinnedRows(binning.bins(table), binning, targets, classes, bounds, weights)
        forest = grow_forest(self, rows, Limits.of(self), self.seed())
        self.take_tree(forest, binning, classes)
        return targets

    def _validate(self, X: Any, reset: bool) -> Any:
        """Return the validated X as an array, or as the given data frame."""
        check_rows(X)
        is_frame = hasattr(X, "columns") and hasattr(X, "dtypes")
        holds_objects = getattr(getattr(X, "dtype", None), "kind", "f") in "OUS"
        if is_frame or (self.categorical_features is not None and holds_objects):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        with naming("X"):
            return validate_data(
                self, X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan", reset=reset
            )

    @abstractmethod
    def _targets(self, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return class codes and class labels, or numeric targets and None."""

    def apply(self, X: Any) -> np.ndarray:
        """Return the index of the leaf that each row reaches.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples,), int32
            The index of each leaf in ``tree_.nodes``. The root has the index 0, and left subtrees
            precede right ones.
        """
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        table = ColumnTable(X, self.binning_.is_categorical.astype(bool))
        leaf = np.empty(len(table.numbers), np.int32)
        bins = self.binning_.bins(table)
        nodes = self.tree_.nodes.view(np.uint8)
        find_leaves(bins, nodes, self.tree_.sets, self.binning_.n_bins, leaf)
        return leaf

    def get_depth(self) -> int:
        """Return the depth of the tree.

        Returns
        -------
        int
            The maximum number of splits on the way to a leaf; 0 if the root is a leaf.
        """
        check_is_fitted(self)
        return int(self.tree_.nodes["depth"].max())

    def get_n_leaves(self) -> int:
        """Return the number of leaves.

        Returns
        -------
        int
            At least 1.
        """
        check_is_fitted(self)
        return int(np.count_nonzero(self.tree_.is_leaf))

    @property
    def feature_importances_(self) -> np.ndarray:
        """The fraction of the total decrease of impurity due to each feature, (n_features,)."""
        check_is_fitted(self)
        nodes = self.tree_.nodes[~self.tree_.is_leaf]
        sums = np.bincount(nodes["feature"], nodes["decrease"], self.n_features_in_)
        return sums / sums.sum() if sums.sum() > 0 else sums

    def cost_complexity_pruning_path(self, X: Any, y: Any, sample_weight: Any = None) -> Bunch:
        """Return the values of ccp_alpha at which the pruned tree changes (Breiman et al. 1984).

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        Bunch
            ``ccp_alphas`` contains the penalties, in ascending order from 0. ``impurities``
            contains, for each penalty, the total impurity of the leaves of the pruned tree.
        """
        unpruned = type(self)(**self.get_params(deep=False)).set_params(ccp_alpha=0.0)
        targets = unpruned._fit(X, y, sample_weight)
        weights = weights_of_rows(X, sample_weight)
        alphas, decreases, _ = weakest_links(unpruned.tree_.nodes)
        impurities = unpruned._impurity(targets, weights) - decreases
        return Bunch(ccp_alphas=alphas, impurities=impurities)

    @abstractmethod
    def _impurity(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the impurity of the root."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@dataclass(repr=False, eq=False, kw_only=True)
class HistTreeClassifier(ScoreMixin, ClassifierMixin, HistTree):
    r"""Decision tree classifier on features that are divided into at most 255 bins.

    In a cross-validation, the trees of all folds are grown jointly. Each node is split so that the
    impurity decreases most. The Gini impurity of a node in which class c has the weight
    :math:`m_c` of the total weight :math:`m` is :math:`1 - \sum_c (m_c / m)^2`.

    Parameters
    ----------
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        The impurity. "log_loss" is another name for "entropy", which is measured in bits.
    max_depth : int or None, default=None
        The maximum depth of the tree. If None, the depth is not limited.
    min_samples_split : int or float, default=2
        The minimum number of rows of a node that is split. A float is a fraction of the training
        rows.
    min_samples_leaf : int or float, default=1
        The minimum number of rows of a leaf. A float is a fraction of the training rows.
    min_weight_fraction_leaf : float, default=0.0
        The minimum weight of a leaf, as a fraction of the total weight of the training rows.
    min_impurity_decrease : float, default=0.0
        The minimum decrease of impurity by a split, weighted by the fraction of the training rows
        that are in the node, as in scikit-learn.
    ccp_alpha : float, default=0.0
        The penalty per leaf in minimal cost-complexity pruning (Breiman et al. 1984).
    max_bins : int, default=255
        The maximum number of bins of a feature, from 2 to 255.
    categorical_features : {"from_dtype"}, array-like or None, default="from_dtype"
        The categorical columns. "from_dtype" selects the columns of a data frame whose dtype is
        categorical, string or object. An array is a boolean mask, or holds column indices or
        names. If None, no column is categorical.
    random_state : int, RandomState instance or None, default=None
        The seed of the random choice between features whose best splits are equally good.
    class_weight : dict, "balanced" or None, default=None
        The factor by which the weights of the rows of each class are multiplied. A dict maps class
        labels to factors; labels that it does not contain have the factor 1. "balanced" makes
        factors inversely proportional to the number of training rows of each class.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    tree_ : Tree
        The nodes of the tree.
    binning_ : Binning
        The edges of the bins, and the categories.
    feature_importances_ : ndarray of shape (n_features,)
        The fraction of the total decrease of impurity that each feature contributes.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names.

    See Also
    --------
    HistTreeRegressor : The same kind of tree for regression.
    tree_cross_validate : Grows the trees of all folds jointly.

    Notes
    -----
    For each split, missing values are tried on both sides. If the training rows of a node have no
    missing value, missing values are sent to the larger child in prediction. Categories are
    ordered by their mean target. If there are more than two classes, each category is split from
    all others instead. Categories without training rows in a node are treated as missing values.

    Weights are rounded to fixed-point numbers, so that sums do not depend on the order of rows.
    Integer weights are not changed.

    References
    ----------
    .. [1] H. Blockeel and J. Struyf, "Efficient algorithms for decision tree cross-validation",
       ICML 2001; Journal of Machine Learning Research 3 (2002), 621-650.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from optuna_treecv import HistTreeClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HistTreeClassifier(max_depth=3, random_state=0).fit(X, y)
    >>> model.get_n_leaves()
    8
    """

    _parameter_constraints = {
        **HistTree._parameter_constraints,
        "criterion": [StrOptions({"gini", "entropy", "log_loss"})],
    }

    criterion: str = "gini"
    class_weight: dict[Any, float] | Literal["balanced"] | None = None

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the class probabilities of each row: the fractions of the classes in its leaf.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows; NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The probabilities of each row sum to 1.
        """
        leaf = self.apply(X)
        return class_fractions(self.tree_.values)[leaf]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the class probabilities of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows; NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Minus infinity for classes that are not in the leaf.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most frequent class in the leaf of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows; NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels. If several classes are equally frequent, the first of them.
        """
        leaf = self.apply(X)
        return self.classes_[self.tree_.values.argmax(axis=1)[leaf]]

    def _targets(self, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
        y = _to_column(y)
        classes = find_classes(y)
        return as_codes(y, classes), classes

    def _class_weights_by_tree(self, rows: BinnedRows) -> np.ndarray:
        targets, bounds, classes = rows.targets, rows.bounds, rows.classes
        assert classes is not None
        n_classes, n_trees = len(classes), len(bounds)
        if self.class_weight is None:
            return np.ones((n_trees, n_classes))
        if isinstance(self.class_weight, dict):
            return np.tile(weights_of_classes(self.class_weight, classes), (n_trees, 1))
        counts = np.bincount(targets, minlength=n_classes)
        counts_by_tree = [counts]
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            counts_by_tree.append(counts - np.bincount(targets[start:stop], minlength=n_classes))
        train_counts = np.array(counts_by_tree, np.float64)
        return train_counts.sum(axis=1, keepdims=True) / (
            n_classes * np.maximum(train_counts, 1.0)
        )

    def _impurity(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        fractions = class_fractions(self.tree_.values[:1])[0]
        if self.criterion == "gini":
            return float(1 - np.sum(fractions**2))
        positive = fractions[fractions > 0]
        return float(-np.sum(positive * np.log2(positive)))


@dataclass(repr=False, eq=False, kw_only=True)
class HistTreeRegressor(ScoreMixin, RegressorMixin, HistTree):
    r"""Decision tree regressor on features that are divided into at most 255 bins.

    In a cross-validation, the trees of all folds are grown jointly. Each node is split so that the
    variance :math:`\frac{1}{n} \sum_i (y_i - \bar y)^2` decreases most.

    Parameters
    ----------
    criterion : {"squared_error"}, default="squared_error"
        The impurity.
    max_depth : int or None, default=None
        The maximum depth of the tree. If None, the depth is not limited.
    min_samples_split : int or float, default=2
        The minimum number of rows of a node that is split. A float is a fraction of the training
        rows.
    min_samples_leaf : int or float, default=1
        The minimum number of rows of a leaf. A float is a fraction of the training rows.
    min_weight_fraction_leaf : float, default=0.0
        The minimum weight of a leaf, as a fraction of the total weight of the training rows.
    min_impurity_decrease : float, default=0.0
        The minimum decrease of impurity by a split, weighted by the fraction of the training rows
        that are in the node, as in scikit-learn.
    ccp_alpha : float, default=0.0
        The penalty per leaf in minimal cost-complexity pruning (Breiman et al. 1984).
    max_bins : int, default=255
        The maximum number of bins of a feature, from 2 to 255.
    categorical_features : {"from_dtype"}, array-like or None, default="from_dtype"
        The categorical columns. "from_dtype" selects the columns of a data frame whose dtype is
        categorical, string or object. An array is a boolean mask, or holds column indices or
        names. If None, no column is categorical.
    random_state : int, RandomState instance or None, default=None
        The seed of the random choice between features whose best splits are equally good.

    Attributes
    ----------
    tree_ : Tree
        The nodes of the tree.
    binning_ : Binning
        The edges of the bins, and the categories.
    feature_importances_ : ndarray of shape (n_features,)
        The fraction of the total decrease of impurity that each feature contributes.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names.

    See Also
    --------
    HistTreeClassifier : The same kind of tree for classification.
    tree_cross_validate : Grows the trees of all folds jointly.

    Notes
    -----
    Targets are rounded to fixed-point numbers of up to 52 bits, so that sums do not depend on the
    order of rows. See ``HistTreeClassifier`` for missing values, categories and weights.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from optuna_treecv import HistTreeRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> HistTreeRegressor(max_depth=2, random_state=0).fit(X, y).get_n_leaves()
    4
    """

    _parameter_constraints = {
        **HistTree._parameter_constraints,
        "criterion": [StrOptions({"squared_error"})],
    }

    criterion: str = "squared_error"

    def predict(self, X: Any) -> np.ndarray:
        """Return the mean target in the leaf of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows; NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            The predicted targets.
        """
        leaf = self.apply(X)
        return self.tree_.values[leaf]

    def _targets(self, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
        return as_numbers(_to_column(y)), None

    def _impurity(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        mean = np.average(targets, weights=weights)
        return float(np.average((targets - mean) ** 2, weights=weights))


def class_fractions(masses: np.ndarray) -> np.ndarray:
    """Divide class masses by their sum in each row; if the sum is 0, return equal fractions."""
    totals = masses.sum(axis=1, keepdims=True)
    fractions = np.full_like(masses, 1 / masses.shape[1])
    return np.divide(masses, totals, out=fractions, where=totals > 0)


def _to_column(y: Any) -> np.ndarray:
    with naming("y"):
        y = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
        return column_or_1d(y, warn=True)


def weakest_links(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the penalties at which a split becomes a leaf (Breiman et al. 1984).

    Parameters
    ----------
    nodes : ndarray of shape (n_nodes,), RECORD
        The nodes of one tree.

    Returns
    -------
    alphas : ndarray of shape (n_steps,)
        The penalties, in ascending order from 0.
    decreases, n_leaves : ndarray of shape (n_steps,)
        The total decrease of impurity and the number of leaves of the tree at each penalty.
    """
    n = len(nodes)
    gains, leaves = nodes["decrease"].copy(), np.ones(n, np.int64)
    is_split = nodes["left"] >= 0
    for i in range(n - 1, -1, -1):
        if is_split[i]:
            left, right = nodes["left"][i], nodes["right"][i]
            gains[i] += gains[left] + gains[right]
            leaves[i] = leaves[left] + leaves[right]
    heap: list[tuple[float, int]] = [
        (gains[i] / (leaves[i] - 1), i) for i in np.flatnonzero(is_split).tolist()
    ]
    heapify(heap)
    alphas, decreases, n_leaves = [0.0], [float(gains[0])], [int(leaves[0])]
    while heap:
        alpha, i = heappop(heap)
        if not is_split[i] or alpha != gains[i] / (leaves[i] - 1):
            continue  # the split is pruned already, or has a newer entry in the heap
        stack = [i]
        while stack:
            descendant = stack.pop()
            if is_split[descendant]:
                is_split[descendant] = False
                stack += [int(nodes["left"][descendant]), int(nodes["right"][descendant])]
        lost_gain, n_lost_leaves = gains[i], leaves[i] - 1
        ancestor = int(i)
        while ancestor >= 0:
            gains[ancestor] -= lost_gain
            leaves[ancestor] -= n_lost_leaves
            if is_split[ancestor]:
                heappush(heap, (gains[ancestor] / (leaves[ancestor] - 1), ancestor))
            ancestor = int(nodes["parent"][ancestor])
        alphas.append(max(float(alpha), alphas[-1]))
        decreases.append(float(gains[0]))
        n_leaves.append(int(leaves[0]))
    return np.array(alphas), np.array(decreases), np.array(n_leaves)
