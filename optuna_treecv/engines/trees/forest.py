"""The trees of all folds and the tree of all rows, grown once for many candidates.

The mass of a class in a node is the total weight of the node's training rows of this class, times
the class weight.
"""

from dataclasses import dataclass
from functools import cached_property
from functools import partial
from itertools import pairwise
from math import ceil
from math import frexp
from math import ldexp
from math import log
from typing import Any
from typing import NamedTuple
import warnings

import numpy as np

from optuna_treecv.engines.trees.kernels.forest import grow
from optuna_treecv.engines.trees.kernels.pruning import arrange
from optuna_treecv.engines.trees.kernels.pruning import prune
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.rows.bins import Binning

#: The depth that stands for max_depth=None.
NO_LIMIT = 2**31 - 1

# Larger absolute targets are rejected, because their squares might overflow.
_MAX_ABS_TARGET = 1e150

# Targets and weights are summed as integers, so that sums do not depend on the order of rows: a
# number x becomes round(x 2^e). The exponent e depends only on the training rows of a tree. Trees
# whose exponents differ, because one of them holds out the largest target, are grown separately.

# The maximum number of bits of a sum of weights in classification. These sums are multiplied by
# the class weights in float64.
_CLASS_MASS_BITS = 50

# The number of bits of the mean weight in regression, unless all weights are integers.
_MEAN_WEIGHT_BITS = 16

# The maximum number of bits of a sum of weights times targets, which must fit into 64 bits.
_SUM_BITS = 62

# The maximum number of bits of a target.
_MAX_TARGET_BITS = 52

# The exponent of the weights and the exponent of the targets of one tree.
_Exponents = tuple[int, int]

# The maximum number of trees that are grown together. A node has one table per tree.
_MAX_TREES_TOGETHER = 63


class Limits(NamedTuple):
    """The limits of growth. A forest grown under these limits contains all smaller trees.

    Attributes
    ----------
    max_depth : int
    min_samples_split : int or float
        A float is a fraction of the training rows.
    min_impurity_decrease, ccp_alpha : float
    """

    max_depth: int = NO_LIMIT
    min_samples_split: int | float = 2
    min_impurity_decrease: float = 0.0
    ccp_alpha: float = 0.0

    @classmethod
    def of(cls, estimator: Any) -> "Limits":
        deepest = NO_LIMIT if estimator.max_depth is None else int(estimator.max_depth)
        depth = min(deepest, NO_LIMIT)
        decrease = float(estimator.min_impurity_decrease)
        return cls(depth, estimator.min_samples_split, decrease, float(estimator.ccp_alpha))


@dataclass(frozen=True)
class BinnedRows:
    """Binned rows, in the order of their folds.

    Attributes
    ----------
    bins : ndarray of shape (n_features, n_rows), uint8
    binning : Binning
    targets : ndarray of shape (n_rows,)
        Class codes, or the targets of regression.
    classes : ndarray or None
        The class labels; None for regression.
    bounds : ndarray of shape (n_folds + 1,), int64
        Fold i has the rows ``bounds[i]`` to ``bounds[i + 1] - 1``. All trees are trained on the
        rows that precede the first fold.
    weights, score_weights : ndarray of shape (n_rows,) or None
    seed : int or None
        The seed of estimators with random_state=None.
    """

    bins: np.ndarray
    binning: Binning
    targets: np.ndarray
    classes: np.ndarray | None
    bounds: np.ndarray
    weights: np.ndarray | None = None
    score_weights: np.ndarray | None = None
    seed: int | None = None

    @property
    def n_folds(self) -> int:
        return len(self.bounds) - 1

    @property
    def n_trained(self) -> np.ndarray:
        """The number of training rows of each tree; tree 0 is trained on all rows."""
        n_rows = int(self.bounds[-1])
        return np.concatenate([[n_rows], n_rows - np.diff(self.bounds)])

    @cached_property
    def has_missing(self) -> np.ndarray:
        """Whether each feature has missing values, (n_features,), uint8."""
        pairs = zip(self.bins, self.binning.n_bins, strict=True)
        return np.array([np.any(bins == n) for bins, n in pairs], np.uint8)


@dataclass(frozen=True)
class Forest:
    """Grown trees. Tree 0 is trained on all rows, and tree 1 + i on all rows outside fold i.

    This is not a random forest: there is one decision tree for each training set.

    Attributes
    ----------
    records : ndarray of shape (n_records,), RECORD
        The nodes, one tree after the other, with left subtrees before right ones.
    sums : ndarray of shape (n_records, size)
        The sums over the training rows of each node, as described in ``split_search.pxd``.
    sets : ndarray of shape (n_sets, 4), uint64
        The categories that go left at a categorical split, as 256 bits.
    codes : ndarray of shape (n_records,), int32
        The code of the class with the largest mass in each node; empty for regression.
    sizes : ndarray of shape (n_records,), int32
        The number of nodes of the subtree below each node, including itself.
    roots : ndarray of shape (n_trees,), int64
        The record of the root of each tree.
    rows : ndarray of shape (n_tested,), int32
        The test rows of all folds, ordered by the record of their leaf.
    row_offsets : ndarray of shape (n_records + 1,), int32
        The test rows whose leaf is record r are ``rows[row_offsets[r] : row_offsets[r + 1]]``.
    factors : ndarray of shape (n_trees, n_classes)
        The class weights of each tree.
    exponents : ndarray of shape (n_trees, 3), int64
        The exponents of the weights and of the targets, and the group of trees that were grown
        together.
    n_trained : ndarray of shape (n_trees,), int64
        The number of training rows of each tree.
    summary : ndarray of shape (5,), float64
        The limits ``max_depth``, ``min_samples_split`` and ``min_impurity_decrease`` of growth,
        the number of rows that growth has read, and the number of rows that it would have read if
        the trees had been grown one by one.
    """

    records: np.ndarray
    sums: np.ndarray
    sets: np.ndarray
    codes: np.ndarray
    sizes: np.ndarray
    roots: np.ndarray
    rows: np.ndarray
    row_offsets: np.ndarray
    factors: np.ndarray
    exponents: np.ndarray
    n_trained: np.ndarray
    summary: np.ndarray

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values())

    @property
    def n_classes(self) -> int:
        return self.factors.shape[1]

    @property
    def share_read(self) -> float:
        """The number of rows read, as a fraction of the number for trees grown one by one."""
        together, alone = self.summary[3:]
        return float(together / alone) if alone else 1.0

    def covers(self, limits: Limits) -> bool:
        """Return whether the forest contains the trees that growth under ``limits`` gives."""
        depth, split, decrease = self.summary[:3]
        needed = min_split_rows(limits.min_samples_split, self.n_trained)
        grown = min_split_rows(int(split) if split >= 2 else float(split), self.n_trained)
        return bool(
            limits.max_depth <= depth
            and np.all(needed >= grown)
            and limits.min_impurity_decrease >= decrease
        )

    def prune(self, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes that remain in all trees under these limits.

        Returns
        -------
        remaining : ndarray of shape (n_remaining,), int32
            The records of these nodes, in ascending order.
        leaves : ndarray of shape (n_leaves,), int32
            The records of those nodes that are leaves under the limits.
        """
        n = len(self.records)
        remaining, is_leaf = np.empty(n, np.int32), np.empty(n, np.uint8)
        depth, split, decrease, alpha = limits
        depth, min_split = min(depth, NO_LIMIT), min_split_rows(split, self.n_trained)
        nodes = self.records.view(np.uint8)
        n = prune(nodes, self.sizes, depth, min_split, decrease, alpha, remaining, is_leaf)
        return remaining[:n], remaining[:n][is_leaf[:n].view(bool)]

    def values(self, records: np.ndarray) -> np.ndarray:
        """Return the mean target, (n,), or the class masses, (n, n_classes), of n records."""
        trees = self.records["tree"][records]
        sums = self.sums[records]
        if self.n_classes:
            return sums[:, -self.n_classes :] * self.factors[trees]
        return np.ldexp(sums[:, -1] / sums[:, -2], -self.exponents[trees, 1])

    def expand_to_rows(self, leaves: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return, for each test row in prepared order, the value of its leaf.

        The leaf is in the tree that holds out the fold of the row.

        Parameters
        ----------
        leaves : ndarray of shape (n_leaves,), int32
            The records of the leaves of all trees, from ``prune``.
        values : ndarray of shape (n_leaves,) or (n_leaves, n_outputs)
            The value of each leaf.
        """
        counts = self.row_offsets[leaves + self.sizes[leaves]] - self.row_offsets[leaves]
        row_values = np.empty((len(self.rows), *values.shape[1:]), values.dtype)
        first = int(self.rows.min()) if len(self.rows) else 0  # test rows follow all other rows
        row_values[self.rows - first] = np.repeat(values, counts, axis=0)
        return row_values

    def agreement(self, limits: Limits) -> np.ndarray:
        """Return to what extent the trees of the folds agree with the tree of all rows.

        Parameters
        ----------
        limits : Limits

        Returns
        -------
        ndarray of shape (depth + 1,)
            For each depth, the fraction of a fold tree's training rows that are in nodes which
            this tree has in common with the tree of all rows. It is averaged over the folds,
            weighted by the number of training rows in nodes of this depth. Trees that were not
            grown together with the tree of all rows are excluded.
        """
        records = self.records[self.prune(limits)[0]]
        groups = self.exponents[:, 2]
        records = records[groups[records["tree"]] == groups[0]]
        is_fold = records["tree"] > 0
        in_full_tree = np.zeros(int(self.records["node"].max()) + 1, bool)
        in_full_tree[records["node"][~is_fold]] = True
        depths, n_rows = records["depth"][is_fold], records["n_rows"][is_fold].astype(np.float64)
        is_shared = in_full_tree[records["node"][is_fold]]
        return np.bincount(depths, n_rows * is_shared) / np.bincount(depths, n_rows)

    def tree(self, number: int, limits: Limits) -> "Tree":
        """Return the tree with this number, pruned to the limits."""
        remaining, leaves = self.prune(limits)
        root = int(self.roots[number])
        order = remaining[(remaining >= root) & (remaining < root + self.sizes[root])]
        nodes = self.records[order]
        is_leaf = np.isin(order, leaves)
        for name in ("left", "right", "parent"):
            nodes[name] = np.searchsorted(order, nodes[name])
        for name in ("left", "right", "feature", "left_set"):
            nodes[name][is_leaf] = -1
        nodes["parent"][0] = -1
        for name in ("decrease", "bin", "missing_left"):
            nodes[name][is_leaf] = 0
        is_set = nodes["left_set"] >= 0
        used = np.unique(nodes["left_set"][is_set])
        nodes["left_set"][is_set] = np.searchsorted(used, nodes["left_set"][is_set])
        nodes["tree"] = 0
        nodes["node"] = np.arange(len(nodes))
        return Tree(nodes, self.values(order), self.sets[used])


@dataclass(frozen=True)
class Tree:
    """A decision tree. The first node is the root, and left subtrees precede right ones.

    Attributes
    ----------
    nodes : ndarray of shape (n_nodes,), RECORD
        The structured dtype RECORD is described in ``kernels/records.pxd``.
    values : ndarray of shape (n_nodes,) or (n_nodes, n_classes)
        The mean target or the class masses of each node.
    sets : ndarray of shape (n_sets, 4), uint64
        The categories that go left at a categorical split, as 256 bits.
    """

    nodes: np.ndarray
    values: np.ndarray
    sets: np.ndarray

    @property
    def is_leaf(self) -> np.ndarray:
        return self.nodes["left"] < 0


def min_split_rows(min_samples_split: int | float, n_trained: np.ndarray) -> np.ndarray:
    """Return the minimum number of rows of a node that is split, for each tree."""
    return np.maximum(2, _count_rows(min_samples_split, n_trained))


def _count_rows(count: int | float, n_trained: np.ndarray) -> np.ndarray:
    """Return ``count`` as a number of rows for each tree.

    A fraction of the training rows is rounded up, as in scikit-learn.
    """
    if isinstance(count, float | np.floating) and count <= 1:
        return np.array([ceil(count * n) for n in n_trained.tolist()], np.int64)
    return np.full(len(n_trained), min(int(count), NO_LIMIT), np.int64)


def grow_forest(
    estimator: Any,
    binned: BinnedRows,
    limits: Limits,
    seed: int,
    together: bool = True,
    n_threads: int = 1,
) -> Forest:
    """Grow the tree of all rows and the trees of all folds jointly.

    Parameters
    ----------
    estimator : HistTree
    binned : BinnedRows
    limits : Limits
        ``ccp_alpha`` is ignored, because pruning comes after growth.
    seed : int
        The seed for ties between features.
    together : bool
        If False, each tree is grown alone, as a standard cross-validation does.
    n_threads : int
        The number of threads. Each of them grows a group of trees jointly.
    """
    n_trees, n_rows = 1 + binned.n_folds, int(binned.bounds[-1])
    exponents, factors = find_exponents(binned), estimator._class_weights_by_tree(binned)
    leaf = np.full(n_rows, -1, np.int32)
    roots, group_of_tree = np.empty(n_trees, np.int64), np.zeros(n_trees, np.int64)
    size = min(_MAX_TREES_TOGETHER, -(-n_trees // n_threads)) if together else 1
    groups = [  # of trees with the same exponents
        (exponent, alike[start : start + size])
        for exponent in dict.fromkeys(exponents)
        for alike in [[tree for tree in range(n_trees) if exponents[tree] == exponent]]
        for start in range(0, len(alike), size)
    ]
    grown_arrays: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    n_records = n_sets = 0
    n_read = n_alone = 0
    grow_group = partial(_grow_group, estimator, binned, factors, limits, seed)
    results = in_order(n_threads, grow_group, groups)
    for group, ((_, trees), result) in enumerate(zip(groups, results, strict=True)):
        records, sums, sets, group_leaf, n_visits, n_visits_alone = result
        group_of_tree[trees] = group
        roots[trees] = n_records + np.arange(len(trees))
        leaf[group_leaf >= 0] = group_leaf[group_leaf >= 0] + n_records
        records["tree"] = np.array(trees, np.int16)[records["tree"]]
        if n_records:
            for name in ("left", "right", "parent"):
                records[name][records[name] >= 0] += n_records
            records["left_set"][records["left_set"] >= 0] += n_sets
        grown_arrays.append((records, sums, sets))
        n_records, n_sets = n_records + len(records), n_sets + len(sets)
        n_read, n_alone = n_read + n_visits, n_alone + n_visits_alone
    depth, split, decrease, _ = limits
    records, sums, sets = (
        np.concatenate(a) if len(a) > 1 else a[0] for a in zip(*grown_arrays, strict=True)
    )
    order, sizes = np.empty((2, len(records)), np.int32)
    # Rows without a leaf have the index -1, both before and after the records are rearranged.
    new_index, arranged = np.empty(len(records) + 1, np.int32), np.empty_like(records)
    arrange(records.view(np.uint8), roots, order, sizes, new_index, arranged.view(np.uint8))
    records = arranged
    leaf = new_index[leaf]
    tested = np.flatnonzero(leaf >= 0)
    rows = tested[np.argsort(leaf[tested], kind="stable")].astype(np.int32)
    row_offsets = np.zeros(len(records) + 1, np.int32)
    np.cumsum(np.bincount(leaf[tested], minlength=len(records)), out=row_offsets[1:])
    sums = sums[order]
    codes = np.empty(0, np.int32)
    if binned.classes is not None:
        masses = sums[:, sums.shape[1] - factors.shape[1] :]
        codes = (masses * factors[records["tree"]]).argmax(axis=1).astype(np.int32)
    return Forest(
        records,
        sums,
        sets,
        codes,
        sizes,
        new_index[roots].astype(np.int64),
        rows,
        row_offsets,
        factors,
        np.column_stack([np.array(exponents, np.int64), group_of_tree]),
        binned.n_trained,
        np.array([depth, split, decrease, n_read, n_alone], np.float64),
    )


def _grow_group(
    estimator: Any,
    rows: BinnedRows,
    factors: np.ndarray,
    limits: Limits,
    seed: int,
    group: tuple[_Exponents, list[int]],
) -> tuple[Any, ...]:
    """Grow a group of trees; return the results of ``grow``, and the leaf of each row."""
    (weight_exponent, target_exponent), trees = group
    folds = [tree - 1 for tree in trees if tree > 0]
    first, last = (folds[0], folds[-1] + 1) if folds else (0, 0)
    # The bounds of all folds from the first to the last fold of the group, including folds whose
    # trees are in other groups.
    bounds = np.ascontiguousarray(rows.bounds[first : last + 1])
    fold_of_tree = np.array([tree - 1 - first if tree > 0 else -1 for tree in trees], np.int32)
    is_class = rows.classes is not None
    targets = weights = None
    is_entropy = estimator.criterion in ("entropy", "log_loss")
    unit = 1 / log(2) if is_entropy else 1.0  # entropy in bits, as in scikit-learn
    n_trained = rows.n_trained[trees]
    if rows.weights is not None:
        weights = to_fixed_point(rows.weights, weight_exponent)
    if not is_class:
        targets = to_fixed_point(rows.targets, target_exponent)
        unit = ldexp(1.0, -2 * target_exponent)
    leaf = np.empty(rows.bins.shape[1], np.int32)
    records, sums, sets, n_visits, n_alone = grow(
        rows.bins,
        rows.targets if is_class else None,
        targets,
        weights,
        rows.binning.n_bins,
        rows.has_missing,
        rows.binning.is_categorical,
        bounds,
        fold_of_tree,
        np.ascontiguousarray(factors[trees]),
        _count_rows(estimator.min_samples_leaf, n_trained),
        min_split_rows(limits.min_samples_split, n_trained),
        float(estimator.min_weight_fraction_leaf),
        limits.max_depth,
        limits.min_impurity_decrease,
        is_entropy,
        unit,
        seed,
        leaf,
    )
    return records, sums, sets, leaf, n_visits, n_alone


def find_exponents(rows: BinnedRows) -> list[_Exponents]:
    """Return the fixed-point exponents for the tree of all rows, then for the tree of each fold.

    Warn if the largest target is so large that the others lose precision.
    """
    n_trees = 1 + rows.n_folds
    bounds, weights = rows.bounds, rows.weights
    targets = None if rows.classes is not None else rows.targets
    if targets is None and weights is None:
        return [(0, 0)] * n_trees
    if targets is not None and np.abs(targets).max() > _MAX_ABS_TARGET:
        raise ValueError(
            f"y must hold numbers of at most {_MAX_ABS_TARGET:g} in absolute value, got "
            f"{targets[np.argmax(np.abs(targets))]:g}: trees sum the squares of y."
        )
    # Section 0 has the rows that precede the first fold, section 1 + i those of fold i, on which
    # tree 1 + i is not trained.
    n_rows = np.diff(bounds, prepend=0)
    mass, has_integers, largest = n_rows.astype(float), np.ones(n_trees, bool), np.zeros(n_trees)
    for section, (start, stop) in enumerate(pairwise([0, *bounds.tolist()])):
        sizes = None if targets is None else np.abs(targets[start:stop])
        if weights is not None:
            row_weights = weights[start:stop]
            mass[section] = row_weights.sum()
            has_integers[section] = np.all(row_weights == np.rint(row_weights))
            sizes = None if sizes is None else sizes * (row_weights > 0)
        if sizes is not None:
            largest[section] = sizes.max(initial=0.0)
    exponents = []
    for tree in range(n_trees):
        is_trained = np.arange(n_trees) != tree
        is_trained[0] = True
        exponents.append(
            _find_tree_exponents(
                int(n_rows[is_trained].sum()),
                None if weights is None else float(mass[is_trained].sum()),
                bool(has_integers[is_trained].all()),
                None if targets is None else float(largest[is_trained].max()),
            )
        )
    if targets is not None:
        deviation = float(np.median(np.abs(targets - np.median(targets))))
        if deviation > 0 and 2.0 ** -exponents[0][1] > 1e-3 * deviation:
            warnings.warn(
                "y has outliers so large that the other targets lose precision when they are "
                "rounded to fixed-point numbers; remove the outliers, or use the logarithm of y.",
                stacklevel=3,
            )
    return exponents


def _find_tree_exponents(
    n_rows: int, mass: float | None, has_integers: bool, largest: float | None
) -> _Exponents:
    """Return the fixed-point exponents of the weights and of the targets of one tree.

    Parameters
    ----------
    n_rows : int
        The number of training rows.
    mass : float or None
        The sum of their weights; None if all weights are 1.
    has_integers : bool
        Whether all weights are integers.
    largest : float or None
        The largest absolute target of a row with a positive weight; None in classification.
    """
    exponent, mass_bits = 0, _count_bits(n_rows)
    if mass is not None:
        max_bits = _CLASS_MASS_BITS if largest is None else mass_bits + _MEAN_WEIGHT_BITS
        mass_bits = _count_bits(mass)
        if not (has_integers and mass_bits <= max_bits):
            exponent = max_bits - mass_bits
            mass_bits = max_bits + 1  # because rounding may carry
    if largest is None:
        return exponent, 0
    target_bits = min(_MAX_TARGET_BITS, _SUM_BITS - mass_bits)
    return exponent, target_bits - frexp(largest)[1]


def _count_bits(mass: float) -> int:
    """Return the number of bits of the integer part of a sum, rounded up to a multiple of 4.

    Because of the rounding, most trees have equal exponents.
    """
    return -(-frexp(mass)[1] // 4) * 4


def to_fixed_point(values: np.ndarray, exponent: int) -> np.ndarray:
    """Return ``round(values * 2**exponent)`` as int64.

    Values that are too large for an int64 become 0. No tree with this exponent is trained on their
    rows, which are in held-out folds.
    """
    max_value = ldexp(1.0, min(60 - exponent, 1023))
    in_range = np.where(np.abs(values) <= max_value, values, 0.0)
    return np.rint(np.ldexp(in_range, exponent)).astype(np.int64)
