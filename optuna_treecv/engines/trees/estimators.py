"""Decision trees on binned features, which are cross-validated while they grow."""

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

#: The parameters that only stop or prune: one grown forest serves all of their stricter values.
SHARED_PARAMETERS = ("max_depth", "min_samples_split", "min_impurity_decrease", "ccp_alpha")


@lru_cache(maxsize=64)  # making a generator may take longer than a trial
def _drawn(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


@dataclass(repr=False, eq=False, kw_only=True)
class HistTree(TreeCVEstimator, metaclass=ABCMeta):
    """The base of the classifier and the regressor."""

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
        """Return the rows as a table, and their binning.

        Parameters
        ----------
        X : array or data frame
        rows : ndarray of int or None
            The rows that determine the bins; None: all.
        """
        is_categorical = which_are_categorical(X, self.categorical_features)
        table = ColumnTable(X, is_categorical)
        return table, find_binning(table, is_categorical, self.max_bins, rows)

    def seed(self, default: int | None = None) -> int:
        """Return the seed for ties; ``default`` replaces random_state=None."""
        if self.random_state is None and default is not None:
            return default
        if isinstance(self.random_state, Integral):
            return _drawn(int(self.random_state))
        return _drawn.__wrapped__(self.random_state)

    def _factors(self, rows: BinnedRows) -> np.ndarray:
        """Return the class weights of each tree, (n_trees, n_classes)."""
        return np.empty((len(rows.bounds), 0))

    def take_tree(self, forest: Forest, binning: Binning, classes: np.ndarray | None) -> None:
        """Set the fitted attributes from the tree of all rows under this estimator's limits."""
        self.tree_ = forest.tree(0, Limits.of(self))
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
            At least two classes, or finite numbers.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, at least 0. None stands for ones.

        Returns
        -------
        object
            The fitted estimator.
        """
        self._fit(X, y, sample_weight)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> np.ndarray:
        """Grow the tree; return y as class codes or numbers."""
        self.check_parameters()
        X = self._checked(X, reset=True)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        check_array_kind("y", y)
        with naming("X and y"):
            check_consistent_length(X, y)
        targets, classes = self._targets(y)
        weights = weights_of_rows(X, sample_weight)
        deciding = None if weights is None else np.flatnonzero(weights > 0)
        table, binning = self.find_bins(X, deciding)
        bounds = np.array([len(targets)], np.int64)
        rows = BinnedRows(binning.bins(table), binning, targets, classes, bounds, weights)
        forest = grow_forest(self, rows, Limits.of(self), self.seed())
        self.take_tree(forest, binning, classes)
        return targets

    def _checked(self, X: Any, reset: bool) -> Any:
        """Return X, validated, as an array or data frame."""
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
        """Return class codes and classes, or numbers and None."""

    def apply(self, X: Any) -> np.ndarray:
        """Return the leaf in which each row ends.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples,), int32
            The numbers of the leaves among all nodes. The root is 0, and left subtrees come first.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
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
            The most splits on the way to a leaf; 0 if the root is the only node.
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
        """The share of each feature in the total decrease of impurity, (n_features,)."""
        check_is_fitted(self)
        nodes = self.tree_.nodes[~self.tree_.is_leaf]
        sums = np.bincount(nodes["feature"], nodes["decrease"], self.n_features_in_)
        return sums / sums.sum() if sums.sum() > 0 else sums

    def cost_complexity_pruning_path(self, X: Any, y: Any, sample_weight: Any = None) -> Bunch:
        """Return the penalties at which the pruned tree changes (Breiman et al. 1984).

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
            ``ccp_alphas``, ascending from 0, and ``impurities``, the total impurity of the leaves
            of the pruned tree for each of them.
        """
        whole = type(self)(**self.get_params(deep=False)).set_params(ccp_alpha=0.0)
        targets = whole._fit(X, y, sample_weight)
        weights = weights_of_rows(X, sample_weight)
        alphas, decreases, _ = weakest_links(whole.tree_.nodes)
        impurities = whole._impurity(targets, weights) - decreases
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
    r"""Decision tree for classes, on features cut into at most 255 bins.

    In a cross-validation, the trees of all folds are grown jointly. A node with the class masses
    :math:`m_c` is split where the impurity decreases most; that of Gini is :math:`1 - \sum_c (m_c
    / m)^2`.

    Parameters
    ----------
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        The impurity. "log_loss" is another name of "entropy", which is in bits.
    max_depth : int or None, default=None
        The most splits on the way to a leaf; None: no limit.
    min_samples_split : int or float, default=2
        The rows that a node must have to be split; a float is a share of the training rows.
    min_samples_leaf : int or float, default=1
        The rows that each leaf must have; a float is a share of the training rows.
    min_weight_fraction_leaf : float, default=0.0
        The share of the weights of all training rows that each leaf must have.
    min_impurity_decrease : float, default=0.0
        The decrease of impurity that a split must reach, times the share of all training rows
        that the node has.
    ccp_alpha : float, default=0.0
        The penalty per leaf of minimal cost-complexity pruning (Breiman et al. 1984).
    max_bins : int, default=255
        The most bins of a feature, 2 to 255.
    categorical_features : {"from_dtype"}, array-like or None, default="from_dtype"
        The columns of categories. "from_dtype": those of a data frame with categories, strings or
        objects. An array is a mask, or has numbers or names of columns. None: no column.
    random_state : int, RandomState instance or None, default=None
        Seed of the choice between features whose best splits are equally good.
    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of rows. A dict holds the factor of each class by its label, 1 for
        labels that it lacks. "balanced" is the inverse frequency of the class among the training
        rows.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    tree_ : Tree
        The nodes of the tree.
    binning_ : Binning
        Edges of bins, and categories.
    feature_importances_ : ndarray of shape (n_features,)
        The share of each feature in the total decrease of impurity.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names.

    See Also
    --------
    HistTreeRegressor : The same for numbers.
    tree_cross_validate : Grows the trees of all folds jointly.

    Notes
    -----
    Missing values are tried on both sides of each split. If a node has none in training, missing
    values in prediction go to the larger child. Categories are ordered by their mean target; with
    more than two classes, each category is tried against the others. Categories unseen in a node
    go where missing values go.

    Weights are rounded to fixed-point numbers, so that sums do not depend on the order of rows;
    integers stay as they are.

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
        """Return the shares of the classes in the leaf of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows; NaN is a missing value.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            They sum to 1.
        """
        leaf = self.apply(X)
        return shares_of(self.tree_.values)[leaf]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the shares of the classes in the leaf of each row.

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
            Class labels; of equally frequent ones the first.
        """
        leaf = self.apply(X)
        return self.classes_[self.tree_.values.argmax(axis=1)[leaf]]

    def _targets(self, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
        y = _column_of(y)
        classes = find_classes(y)
        return as_codes(y, classes), classes

    def _factors(self, rows: BinnedRows) -> np.ndarray:
        targets, bounds, classes = rows.targets, rows.bounds, rows.classes
        assert classes is not None
        n_classes, n_trees = len(classes), len(bounds)
        if self.class_weight is None:
            return np.ones((n_trees, n_classes))
        if isinstance(self.class_weight, dict):
            return np.tile(weights_of_classes(self.class_weight, classes), (n_trees, 1))
        counts = np.bincount(targets, minlength=n_classes)
        of_trees = [counts]
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
            of_trees.append(counts - np.bincount(targets[begin:end], minlength=n_classes))
        trained = np.array(of_trees, np.float64)
        return trained.sum(axis=1, keepdims=True) / (n_classes * np.maximum(trained, 1.0))

    def _impurity(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        shares = shares_of(self.tree_.values[:1])[0]
        if self.criterion == "gini":
            return float(1 - np.sum(shares**2))
        positive = shares[shares > 0]
        return float(-np.sum(positive * np.log2(positive)))


@dataclass(repr=False, eq=False, kw_only=True)
class HistTreeRegressor(ScoreMixin, RegressorMixin, HistTree):
    r"""Decision tree for numbers, on features cut into at most 255 bins.

    In a cross-validation, the trees of all folds are grown jointly. A node is split where the
    variance :math:`\frac{1}{n} \sum_i (y_i - \bar y)^2` decreases most.

    Parameters
    ----------
    criterion : {"squared_error"}, default="squared_error"
        The impurity.
    max_depth : int or None, default=None
        The most splits on the way to a leaf; None: no limit.
    min_samples_split : int or float, default=2
        The rows that a node must have to be split; a float is a share of the training rows.
    min_samples_leaf : int or float, default=1
        The rows that each leaf must have; a float is a share of the training rows.
    min_weight_fraction_leaf : float, default=0.0
        The share of the weights of all training rows that each leaf must have.
    min_impurity_decrease : float, default=0.0
        The decrease of impurity that a split must reach, times the share of all training rows
        that the node has.
    ccp_alpha : float, default=0.0
        The penalty per leaf of minimal cost-complexity pruning (Breiman et al. 1984).
    max_bins : int, default=255
        The most bins of a feature, 2 to 255.
    categorical_features : {"from_dtype"}, array-like or None, default="from_dtype"
        The columns of categories. "from_dtype": those of a data frame with categories, strings or
        objects. An array is a mask, or has numbers or names of columns. None: no column.
    random_state : int, RandomState instance or None, default=None
        Seed of the choice between features whose best splits are equally good.

    Attributes
    ----------
    tree_ : Tree
        The nodes of the tree.
    binning_ : Binning
        Edges of bins, and categories.
    feature_importances_ : ndarray of shape (n_features,)
        The share of each feature in the total decrease of impurity.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names.

    See Also
    --------
    HistTreeClassifier : The same for classes.
    tree_cross_validate : Grows the trees of all folds jointly.

    Notes
    -----
    Targets are rounded to fixed-point numbers of up to 52 binary digits, so that sums do not
    depend on the order of rows. See ``HistTreeClassifier`` for missing values, categories and
    weights.

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
            In the unit of y.
        """
        leaf = self.apply(X)
        return self.tree_.values[leaf]

    def _targets(self, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
        return as_numbers(_column_of(y)), None

    def _impurity(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        mean = np.average(targets, weights=weights)
        return float(np.average((targets - mean) ** 2, weights=weights))


def shares_of(masses: np.ndarray) -> np.ndarray:
    """Return the shares of classes, which are equal if the masses are 0."""
    totals = masses.sum(axis=1, keepdims=True)
    shares = np.full_like(masses, 1 / masses.shape[1])
    return np.divide(masses, totals, out=shares, where=totals > 0)


def _column_of(y: Any) -> np.ndarray:
    with naming("y"):
        y = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
        return column_or_1d(y, warn=True)


def weakest_links(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the penalties at which nodes become leaves (Breiman et al. 1984).

    Parameters
    ----------
    nodes : ndarray of shape (n_nodes,), RECORD
        Of one tree.

    Returns
    -------
    alphas, decreases, n_leaves : ndarray of shape (n_steps,)
        The penalties, ascending from 0, and the remaining decreases of impurity and leaves.
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
    alphas, left_over, n_leaves = [0.0], [float(gains[0])], [int(leaves[0])]
    while heap:
        alpha, i = heappop(heap)
        if not is_split[i] or alpha != gains[i] / (leaves[i] - 1):
            continue  # the split is pruned, or has a newer entry
        stack = [i]
        while stack:
            below = stack.pop()
            if is_split[below]:
                is_split[below] = False
                stack += [int(nodes["left"][below]), int(nodes["right"][below])]
        lost, fewer = gains[i], leaves[i] - 1
        above = int(i)
        while above >= 0:
            gains[above] -= lost
            leaves[above] -= fewer
            if is_split[above]:
                heappush(heap, (gains[above] / (leaves[above] - 1), above))
            above = int(nodes["parent"][above])
        alphas.append(max(float(alpha), alphas[-1]))
        left_over.append(float(gains[0]))
        n_leaves.append(int(leaves[0]))
    return np.array(alphas), np.array(left_over), np.array(n_leaves)
