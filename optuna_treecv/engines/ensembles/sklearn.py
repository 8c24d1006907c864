"""Grow the ensembles of scikit-learn, which ``warm_start=True`` fits incrementally."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from functools import partial
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.ensemble import BaggingRegressor
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.utils import check_array

from optuna_treecv.engines.ensembles.growth import BLOCKS
from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import LEAF_BYTES
from optuna_treecv.engines.ensembles.growth import TreeLimit
from optuna_treecv.rows.checks import is_integer

# The depth that is assumed for trees with ``max_depth=None``.
_DEPTH = 12

# The approximate size of a node in bytes, without its predicted values.
_NODE_BYTES = 64

# The smallest values that scikit-learn accepts.
_MIN_VALUES = {"max_depth": 1, "max_leaf_nodes": 2}


class WarmGrowth(Growth):
    """Base class of ensembles that ``warm_start=True`` fits incrementally."""

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        self.fitted = clone(estimator)
        self._n_rows = 0

    @classmethod
    def why_not(cls, estimator: Any, searched: Collection[str]) -> str:
        """Return the reason why an estimator cannot be grown tree by tree, or "" if it can."""
        return "warm_start is set" if estimator.warm_start else ""

    @cached_property
    def fold_rows(self) -> FoldRows:
        """The rows of the fold."""
        return self.take()

    def forget_rows(self) -> None:
        """Release the memory of the rows of the fold."""
        vars(self).pop("fold_rows", None)

    def fit(self, n_trees: int) -> None:
        """Add trees to the fitted estimator until it has ``n_trees`` trees."""
        X, y, weights, *_ = self.fold_rows
        self._n_rows = len(y)
        options = {} if weights is None else {"sample_weight": weights}
        # Forests warn about some class weights with warm_start=True, even in the first fit.
        self.fitted.set_params(**{self.size: n_trees, "warm_start": self.n_trees > 0})
        self.fitted.fit(X, y, **options)


class BoostedGrowth(WarmGrowth):
    """Gradient boosting, possibly with early stopping.

    The staged methods, such as ``staged_predict``, return the predictions of the first trees.
    """

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        # For each method, an iterator over staged predictions, and the number of trees of the last
        # prediction that it returned.
        self._staged: dict[str, tuple[Iterator[np.ndarray], int]] = {}
        # For each method, the number of trees and the predictions of the last call.
        self._predicted: dict[str, tuple[int, np.ndarray]] = {}

    def forget_rows(self) -> None:
        """Release the memory of the rows of the fold, and the staged predictions that use them."""
        super().forget_rows()
        self._staged = {}

    @classmethod
    def blocks(cls, estimator: Any) -> list[int]:
        """Return the numbers of trees at which growth may pause.

        There are fewer, because each incremental fit first predicts all training rows with all
        previous trees.
        """
        return BLOCKS[1::2]

    @property
    def nbytes(self) -> int:
        """The approximate size of the trees in bytes."""
        parameters = self.estimator.get_params()
        depth = parameters["max_depth"] or _DEPTH
        leaves = parameters["max_leaf_nodes"] or 2 ** min(depth, _DEPTH)
        n_classes = len(getattr(self.fitted, "classes_", (0,)))
        return LEAF_BYTES * leaves * n_classes * self.n_trees

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow the ensemble up to ``n_trees`` trees; after early stopping, no trees are added."""
        first = self.n_trees + 1
        if not self.has_ended:
            self.fit(n_trees)
            self._staged, self._predicted = {}, {}
        for self.n_trees in range(first, n_trees + 1):
            yield self.n_trees

    @classmethod
    def why_not(cls, estimator: Any, searched: Collection[str]) -> str:
        """Return the reason why an estimator cannot be grown tree by tree, or "" if it can."""
        if cls is BoostedGrowth and estimator.n_iter_no_change is not None:
            return "n_iter_no_change holds out training rows"
        return super().why_not(estimator, searched)

    @property
    def has_ended(self) -> bool:
        """Whether the last ``n_iter_no_change`` scores do not improve by more than ``tol``."""
        fitted = self.fitted
        if self.n_trees == 0 or not getattr(fitted, "do_early_stopping_", False):
            return False
        has_validation = fitted.validation_fraction is not None
        scores = fitted.validation_score_ if has_validation else fitted.train_score_
        n_last = fitted.n_iter_no_change
        if len(scores) <= n_last:
            return False
        return bool(max(scores[-n_last:]) <= scores[-n_last - 1] + fitted.tol)

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first ``n_trees`` trees for the test rows."""
        n_fitted = getattr(self.fitted, "n_iter_", None) or self.fitted.n_estimators_
        n_trees = min(n_trees, n_fitted)
        n_predicted, predicted = self._predicted.get(method, (0, None))
        if n_predicted != n_trees:
            stages, n_passed = self._staged.get(method, (iter(()), 0))
            if n_passed == 0 or n_passed > n_trees:
                stages = getattr(self.fitted, f"staged_{method}")(self.fold_rows.test)
                n_passed = 0
            predicted = next(islice(stages, n_trees - n_passed - 1, None))
            if predicted.ndim > 1 and predicted.shape[1] == 1:  # decision_function returns 1-d
                predicted = predicted[:, 0]
            self._staged[method], self._predicted[method] = (stages, n_trees), (n_trees, predicted)
        assert predicted is not None
        return predicted


class HistGrowth(BoostedGrowth):
    """Histogram-based gradient boosting."""

    size = "max_iter"


class BaggedGrowth(WarmGrowth):
    """Bagging: independent models, whose predictions are averaged.

    The models of forests are decision trees, which can be truncated.
    """

    is_boosted = False

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        # For each method and limit: the number of models, and the sum of their predictions.
        self._sums: dict[Any, tuple[int, Any]] = {}
        self._test: Any = None
        self._leaves: list[np.ndarray] = []  # for each tree, the leaf index of each test row

    @classmethod
    def limit_of(
        cls, estimator: Any, searched: Mapping[str, Any], truncate: bool, can_share: bool
    ) -> TreeLimit:
        """Return the tree parameter whose values can be evaluated by truncating larger trees.

        With ``max_leaf_nodes``, the best node is split first. A tree therefore consists of the
        first nodes of any larger tree. ``ccp_alpha`` prunes a tree after it has grown. The nodes
        of a pruned tree are not in the order of their splits, so ``max_leaf_nodes`` needs
        ``ccp_alpha=0``. With another ``max_depth``, random numbers are drawn in another order. A
        tree that is truncated to a depth therefore differs from a tree that is grown to this
        depth, so ``truncate`` must be True.
        """
        names = ["max_depth"] if truncate else ["max_leaf_nodes", "ccp_alpha"]
        names = [name for name in names if name in searched and (truncate or can_share)]
        if "max_leaf_nodes" in names and estimator.ccp_alpha != 0.0:
            names.remove("max_leaf_nodes")
        if not names or not hasattr(estimator, names[0]):
            return None
        name, value = names[0], getattr(estimator, names[0])
        if name == "ccp_alpha":
            return (name, 0.0) if isinstance(value, int | float) and value >= 0 else None
        sizes = [inf if x is None else x for x in searched[name]]
        is_valid = value is None or (is_integer(value) and value >= _MIN_VALUES[name])
        widest = max(sizes) if all(is_integer(s) or s == inf for s in sizes) else -inf
        # A value that is invalid or outside the searched range needs its own fit.
        if not is_valid or (inf if value is None else value) > widest:
            return None
        if widest == inf:
            return (name, None) if truncate else None
        return name, widest

    @property
    def nbytes(self) -> int:
        """The approximate size in bytes of the models and of the leaf indices of test rows."""
        models: Any = getattr(self.fitted, "estimators_", ())
        trees = [model.tree_ for model in models if hasattr(model, "tree_")]
        n_nodes = sum(tree.node_count for tree in trees)
        n_values = trees[0].value[0].size if trees else 0
        others = LEAF_BYTES * self._n_rows * (len(models) - len(trees))
        leaves = sum(leaf.nbytes for leaf in self._leaves)
        return n_nodes * (_NODE_BYTES + 8 * n_values) + others + leaves

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow the ensemble up to ``n_trees`` models."""
        first = self.n_trees + 1
        self.fit(n_trees)
        self.oob_score = getattr(self.fitted, "oob_score_", None)
        for self.n_trees in range(first, n_trees + 1):
            yield self.n_trees

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the mean prediction of the first ``n_trees`` models for the test rows."""
        classes = self.fold_rows.classes
        if method == "predict" and classes is not None:
            return classes[self.predict("predict_proba", n_trees, limit).argmax(axis=1)]
        n_summed, total = self._sums.get((method, limit), (0, 0.0))
        if n_summed > n_trees:
            n_summed, total = 0, 0.0
        predict = self._predict_by_model
        if not hasattr(self.fitted, "estimators_features_"):
            predict = partial(self._predict_by_tree, limit=limit)
        for index in range(n_summed, n_trees):
            total = total + predict(index, method)
        self._sums[method, limit] = n_trees, total
        return total / n_trees

    def forget_rows(self) -> None:
        """Release the memory of the rows of the fold, including the float32 test rows."""
        super().forget_rows()
        self._test = None

    def _predict_by_model(self, index: int, method: str) -> np.ndarray:
        """Return the predictions of one model, which can be any estimator, for the test rows."""
        single = copy(self.fitted)
        single.estimators_, single.n_estimators = self.fitted.estimators_[index : index + 1], 1
        single.estimators_features_ = self.fitted.estimators_features_[index : index + 1]
        return getattr(single, method)(self.fold_rows.test)

    def _predict_by_tree(self, index: int, method: str, limit: TreeLimit) -> np.ndarray:
        """Return the predictions of one tree of a forest, which may be truncated."""
        if self._test is None:
            self._test = check_array(
                self.fold_rows.test, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
            )
        for tree in self.fitted.estimators_[len(self._leaves) : index + 1]:
            self._leaves.append(tree.apply(self._test, check_input=False).astype(np.int32))
        tree, nodes = self.fitted.estimators_[index], self._leaves[index]
        name, value = limit or ("", None)
        if name == "ccp_alpha":
            tree = copy(tree).set_params(ccp_alpha=value)
            tree._prune_tree()  # as fit does; the original tree is not changed
            nodes = tree.apply(self._test, check_input=False)
        elif value is not None:
            nodes = truncate_nodes(tree.tree_, name, value)[nodes]
        values: np.ndarray = tree.tree_.value[nodes, 0]
        return values if method == "predict_proba" else values[:, 0]


def truncate_nodes(tree: Any, name: str, value: int) -> np.ndarray:
    """Return, for each node, the index of the node that replaces it in the truncated tree.

    It is the node itself if it remains in the truncated tree, else its lowest ancestor that does.

    Parameters
    ----------
    tree : sklearn.tree._tree.Tree
    name : {"max_depth", "max_leaf_nodes"}
    value : int
        The maximum to which the tree is truncated.
    """
    nodes, inner = np.arange(tree.node_count), np.flatnonzero(tree.children_left >= 0)
    above = nodes.copy()
    above[tree.children_left[inner]] = above[tree.children_right[inner]] = inner
    # In each round of pointer doubling, the distance between a node and its ``above`` doubles.
    n_rounds = int(tree.max_depth).bit_length()
    if name == "max_depth":
        depths, up = (above != nodes).astype(np.intp), above
        for _ in range(n_rounds):
            depths, up = depths + depths[up], up[up]
        remains = depths <= value
    else:
        remains = nodes < 2 * value - 1
    above[remains] = nodes[remains]
    for _ in range(n_rounds):
        above = above[above]
    return above


KINDS: dict[type, type[Growth]] = {
    HistGradientBoostingClassifier: HistGrowth,
    HistGradientBoostingRegressor: HistGrowth,
    GradientBoostingClassifier: BoostedGrowth,
    GradientBoostingRegressor: BoostedGrowth,
    RandomForestClassifier: BaggedGrowth,
    RandomForestRegressor: BaggedGrowth,
    ExtraTreesClassifier: BaggedGrowth,
    ExtraTreesRegressor: BaggedGrowth,
    BaggingClassifier: BaggedGrowth,
    BaggingRegressor: BaggedGrowth,
}
