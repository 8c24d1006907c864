"""Growing ensembles of scikit-learn, which are fitted incrementally by ``warm_start``."""

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

# The assumed depth of trees without a limit.
_DEPTH = 12
_NODE_BYTES = 64

# The minimum values of scikit-learn.
_LEAST = {"max_depth": 1, "max_leaf_nodes": 2}


class WarmGrowth(Growth):
    """An estimator that is fitted incrementally."""

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        self.fitted = clone(estimator)
        self._n_rows = 0

    @classmethod
    def why_not(cls, estimator: Any) -> str:
        """Return the reason why an estimator is fitted as a whole; "" if it can grow."""
        return "warm_start is set" if estimator.warm_start else ""

    @cached_property
    def taken(self) -> FoldRows:
        """The rows of the fold."""
        return self.take()

    def forget_rows(self) -> None:
        """Drop the rows of the fold."""
        vars(self).pop("taken", None)

    def fit(self, n_trees: int) -> None:
        """Fit the estimator up to ``n_trees`` trees."""
        X, y, weights, *_ = self.taken
        self._n_rows = len(y)
        options = {} if weights is None else {"sample_weight": weights}
        # Forests warn of a warm start with some class weights.
        self.fitted.set_params(**{self.size: n_trees, "warm_start": self.n_trees > 0})
        self.fitted.fit(X, y, **options)


class BoostedGrowth(WarmGrowth):
    """Boosting, possibly with early stopping; staged methods predict by the first trees."""

    # Each further fit predicts all training rows by all trees so far.
    blocks = BLOCKS[1::2]

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        # By the method: the predictions of the first trees in turn, and the number of trees.
        self._staged: dict[str, tuple[Iterator[np.ndarray], int]] = {}
        self._predicted: dict[str, tuple[int, np.ndarray]] = {}

    def forget_rows(self) -> None:
        """Drop the rows of the fold, also those of staged predictions."""
        super().forget_rows()
        self._staged = {}

    @property
    def nbytes(self) -> int:
        """The approximate bytes of the trees."""
        parameters = self.estimator.get_params()
        depth = parameters["max_depth"] or _DEPTH
        leaves = parameters["max_leaf_nodes"] or 2 ** min(depth, _DEPTH)
        n_classes = len(getattr(self.fitted, "classes_", (0,)))
        return LEAF_BYTES * leaves * n_classes * self.n_trees

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Fit further; no trees are added after early stopping."""
        first = self.n_trees + 1
        if not self.has_ended:
            self.fit(n_trees)
            self._staged, self._predicted = {}, {}
        for self.n_trees in range(first, n_trees + 1):
            yield self.n_trees

    @classmethod
    def why_not(cls, estimator: Any) -> str:
        """Return the reason why an estimator is fitted as a whole, also for early stopping."""
        if cls is BoostedGrowth and estimator.n_iter_no_change is not None:
            return "n_iter_no_change holds out training rows"
        return super().why_not(estimator)

    @property
    def has_ended(self) -> bool:
        """Whether no score of the last ``n_iter_no_change`` trees is better by ``tol``."""
        fitted = self.fitted
        if self.n_trees == 0 or not getattr(fitted, "do_early_stopping_", False):
            return False
        is_apart = fitted.validation_fraction is not None
        scores = fitted.validation_score_ if is_apart else fitted.train_score_
        n_last = fitted.n_iter_no_change
        if len(scores) <= n_last:
            return False
        return bool(max(scores[-n_last:]) <= scores[-n_last - 1] + fitted.tol)

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first trees for the test rows."""
        n_fitted = getattr(self.fitted, "n_iter_", None) or self.fitted.n_estimators_
        n_trees = min(n_trees, n_fitted)
        n_predicted, predicted = self._predicted.get(method, (0, None))
        if n_predicted != n_trees:
            stages, at = self._staged.get(method, (iter(()), 0))
            if at == 0 or at > n_trees:
                stages = getattr(self.fitted, f"staged_{method}")(self.taken.test)
                at = 0
            predicted = next(islice(stages, n_trees - at - 1, None))
            if predicted.ndim > 1 and predicted.shape[1] == 1:  # as decision_function returns it
                predicted = predicted[:, 0]
            self._staged[method], self._predicted[method] = (stages, n_trees), (n_trees, predicted)
        assert predicted is not None
        return predicted


class HistGrowth(BoostedGrowth):
    """Histogram-based boosting."""

    size = "max_iter"


class BaggedGrowth(WarmGrowth):
    """Independent models whose predictions are averaged.

    Those of forests are decision trees, which can be cut.
    """

    is_boosted = False

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        # By the method and the limit: the number of the first models, and their sum.
        self._sums: dict[Any, tuple[int, Any]] = {}
        self._test: Any = None
        self._leaves: list[np.ndarray] = []  # of test rows, by tree

    @classmethod
    def limit_of(
        cls, estimator: Any, searched: Mapping[str, Any], truncate: bool, can_share: bool
    ) -> TreeLimit:
        """Return the parameter whose values are cut from larger trees.

        A tree of ``max_leaf_nodes`` is the first nodes of a larger one, as nodes are split best
        first, and ``ccp_alpha`` prunes a tree that has grown. A pruned tree has no such order, so
        only unpruned trees give those of other ``max_leaf_nodes``. ``max_depth`` gives other
        trees, whose nodes are drawn in another order.
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
        is_valid = value is None or (is_integer(value) and value >= _LEAST[name])
        widest = max(sizes) if all(is_integer(s) or s == inf for s in sizes) else -inf
        # Invalid values, and those beyond the ends of the search, need a fit.
        if not is_valid or (inf if value is None else value) > widest:
            return None
        if widest == inf:
            return (name, None) if truncate else None
        return name, widest

    @property
    def nbytes(self) -> int:
        """The approximate bytes of the models and of the leaves of test rows."""
        models: Any = getattr(self.fitted, "estimators_", ())
        trees = [model.tree_ for model in models if hasattr(model, "tree_")]
        n_nodes = sum(tree.node_count for tree in trees)
        n_values = trees[0].value[0].size if trees else 0
        others = LEAF_BYTES * self._n_rows * (len(models) - len(trees))
        leaves = sum(leaf.nbytes for leaf in self._leaves)
        return n_nodes * (_NODE_BYTES + 8 * n_values) + others + leaves

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Fit further."""
        first = self.n_trees + 1
        self.fit(n_trees)
        self.oob_score = getattr(self.fitted, "oob_score_", None)
        for self.n_trees in range(first, n_trees + 1):
            yield self.n_trees

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the mean prediction of the first models for the test rows."""
        classes = self.taken.classes
        if method == "predict" and classes is not None:
            return classes[self.predict("predict_proba", n_trees, limit).argmax(axis=1)]
        n_summed, total = self._sums.get((method, limit), (0, 0.0))
        if n_summed > n_trees:
            n_summed, total = 0, 0.0
        predict = self._predict_by_model
        if not hasattr(self.fitted, "estimators_features_"):
            predict = partial(self._predict_by_tree, limit=limit)
        for number in range(n_summed, n_trees):
            total = total + predict(number, method)
        self._sums[method, limit] = n_trees, total
        return total / n_trees

    def forget_rows(self) -> None:
        """Drop the rows of the fold, also the test rows as trees read them."""
        super().forget_rows()
        self._test = None

    def _predict_by_model(self, number: int, method: str) -> np.ndarray:
        """Return the predictions of one model of any kind."""
        single = copy(self.fitted)
        single.estimators_, single.n_estimators = self.fitted.estimators_[number : number + 1], 1
        single.estimators_features_ = self.fitted.estimators_features_[number : number + 1]
        return getattr(single, method)(self.taken.test)

    def _predict_by_tree(self, number: int, method: str, limit: TreeLimit) -> np.ndarray:
        """Return the values of the leaves of the test rows in a tree, possibly cut."""
        if self._test is None:
            self._test = check_array(
                self.taken.test, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
            )
        for tree in self.fitted.estimators_[len(self._leaves) : number + 1]:
            self._leaves.append(tree.apply(self._test, check_input=False).astype(np.int32))
        tree, nodes = self.fitted.estimators_[number], self._leaves[number]
        name, value = limit or ("", None)
        if name == "ccp_alpha":
            tree = copy(tree).set_params(ccp_alpha=value)
            tree._prune_tree()  # as fit does; the grown tree is unchanged
            nodes = tree.apply(self._test, check_input=False)
        elif value is not None:
            nodes = cut_nodes(tree.tree_, name, value)[nodes]
        values: np.ndarray = tree.tree_.value[nodes, 0]
        return values if method == "predict_proba" else values[:, 0]


def cut_nodes(tree: Any, name: str, value: int) -> np.ndarray:
    """Return, for each node of a tree, itself or its lowest ancestor in the cut tree."""
    nodes, inner = np.arange(tree.node_count), np.flatnonzero(tree.children_left >= 0)
    above = nodes.copy()
    above[tree.children_left[inner]] = above[tree.children_right[inner]] = inner
    n_rounds = int(tree.max_depth).bit_length()  # each one doubles the steps up
    if name == "max_depth":
        depths, up = (above != nodes).astype(np.intp), above
        for _ in range(n_rounds):
            depths, up = depths + depths[up], up[up]
        is_there = depths <= value
    else:
        is_there = nodes < 2 * value - 1
    above[is_there] = nodes[is_there]
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
