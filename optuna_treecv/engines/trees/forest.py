"""The trees of all folds and of all rows, grown once for many settings."""

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

#: Stands for max_depth=None.
NO_LIMIT = 2**31 - 1

_LARGEST_TARGET = 1e150

# Targets and weights are summed as integers, so that sums do not depend on the order of rows: a
# number x becomes round(x 2^e). The exponent e depends only on the training rows of a tree. Trees
# whose exponents differ, because one of them holds out the largest target, are grown separately.
# Below are the digits of sums of class weights, which are multiplied as float64, and the least
# digits of the mean weight if sums of products must fit into 64 bits.
_DIGITS_OF_CLASSES = 50
_DIGITS_OF_WEIGHT = 16
_DIGITS = 62
_MOST_DIGITS = 52

# The exponents of the weights and of the targets of one tree.
_Exponents = tuple[int, int]

# The maximal number of folds that are grown together; a node has a table for each.
_MOST_TOGETHER = 63


class Limits(NamedTuple):
    """The limits of growth. A forest that is grown with some limits covers all stricter ones.

    Attributes
    ----------
    max_depth : int
    min_samples_split : int or float
        A float is a share of the training rows.
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
        Class codes or numbers.
    classes : ndarray or None
    bounds : ndarray of shape (n_folds + 1,), int64
        The first row of each fold. All trees are trained on the rows before the first fold.
    weights, score_weights : ndarray of shape (n_rows,) or None
    seed : int or None
        For random_state=None.
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
        """The number of training rows of each tree; tree 0 is that of all rows."""
        n_rows = int(self.bounds[-1])
        return np.concatenate([[n_rows], n_rows - np.diff(self.bounds)])

    @cached_property
    def has_missing(self) -> np.ndarray:
        """Whether a feature has missing values, (n_features,), uint8."""
        pairs = zip(self.bins, self.binning.n_bins, strict=True)
        return np.array([np.any(bins == n) for bins, n in pairs], np.uint8)


@dataclass(frozen=True)
class Forest:
    """Grown trees. Tree 0 is that of all rows, tree 1 + i holds out fold i.

    Attributes
    ----------
    records : ndarray of shape (n_records,), RECORD
        The nodes tree after tree, left subtrees before right ones.
    sums : ndarray of shape (n_records, size)
        The sums of the training rows: ``split_search.pxd``.
    sets : ndarray of shape (n_sets, 4), uint64
    codes : ndarray of shape (n_records,), int32
        The class with the largest mass; empty for regression.
    sizes : ndarray of shape (n_records,), int32
        The number of records of each subtree.
    roots : ndarray of shape (n_trees,), int64
    rows : ndarray of shape (n_tested,), int32
        The rows of all folds, in the order of their leaves' records in the tree of their fold.
    firsts : ndarray of shape (n_records + 1,), int32
        The number of these rows in leaves before each record.
    factors : ndarray of shape (n_trees, n_classes)
    exponents : ndarray of shape (n_trees, 3), int64
        The exponents of weights and targets, and the number of the group grown together.
    n_trained : ndarray of shape (n_trees,), int64
    numbers : ndarray of shape (5,), float64
        The three limits of growth, the number of rows read, and the number that trees grown one by
        one would read.
    """

    records: np.ndarray
    sums: np.ndarray
    sets: np.ndarray
    codes: np.ndarray
    sizes: np.ndarray
    roots: np.ndarray
    rows: np.ndarray
    firsts: np.ndarray
    factors: np.ndarray
    exponents: np.ndarray
    n_trained: np.ndarray
    numbers: np.ndarray

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values())

    @property
    def n_classes(self) -> int:
        return self.factors.shape[1]

    @property
    def share_read(self) -> float:
        """The number of rows read, as a share of those for trees grown one by one."""
        together, alone = self.numbers[3:]
        return float(together / alone) if alone else 1.0

    def covers(self, limits: Limits) -> bool:
        """Return whether the forest contains the trees under some limits."""
        depth, split, decrease = self.numbers[:3]
        needed = min_split_of(limits.min_samples_split, self.n_trained)
        grown = min_split_of(int(split) if split >= 2 else float(split), self.n_trained)
        return bool(
            limits.max_depth <= depth
            and np.all(needed >= grown)
            and limits.min_impurity_decrease >= decrease
        )

    def ends(self, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of all trees under some limits.

        Returns
        -------
        reached : ndarray of shape (n_reached,), int32
            Their records, ascending.
        leaves : ndarray of shape (n_leaves,), int32
            Those of them that are leaves.
        """
        n = len(self.records)
        reached, is_end = np.empty(n, np.int32), np.empty(n, np.uint8)
        depth, split, decrease, alpha = limits
        depth, min_split = min(depth, NO_LIMIT), min_split_of(split, self.n_trained)
        nodes = self.records.view(np.uint8)
        n_reached = prune(nodes, self.sizes, depth, min_split, decrease, alpha, reached, is_end)
        reached = reached[:n_reached]
        return reached, reached[is_end[:n_reached].view(bool)]

    def values(self, records: np.ndarray) -> np.ndarray:
        """Return the mean targets, (n,), or the masses of classes, (n, n_classes), of records."""
        trees = self.records["tree"][records]
        sums = self.sums[records]
        if self.n_classes:
            return sums[:, -self.n_classes :] * self.factors[trees]
        return np.ldexp(sums[:, -1] / sums[:, -2], -self.exponents[trees, 1])

    def by_row(self, leaves: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the value of its leaf for each row of the folds, in prepared order.

        Parameters
        ----------
        leaves : ndarray of shape (n_leaves,), int32
            The leaves of all trees under some limits.
        values : ndarray of shape (n_leaves,) or (n_leaves, n_outputs)
            The value of each leaf.
        """
        counts = self.firsts[leaves + self.sizes[leaves]] - self.firsts[leaves]
        of_rows = np.empty((len(self.rows), *values.shape[1:]), values.dtype)
        first = int(self.rows.min()) if len(self.rows) else 0  # the last rows are those of folds
        of_rows[self.rows - first] = np.repeat(values, counts, axis=0)
        return of_rows

    def agreement(self, limits: Limits) -> np.ndarray:
        """Return the share of training rows of fold trees in nodes of the tree of all rows.

        Parameters
        ----------
        limits : Limits

        Returns
        -------
        ndarray of shape (depth + 1,)
            By depth: of all pairs of a fold and a training row in a node of this depth, the share
            in nodes that the fold's tree and the tree of all rows have in common. Trees that were
            not grown together with the latter are excluded.
        """
        records = self.records[self.ends(limits)[0]]
        groups = self.exponents[:, 2]
        records = records[groups[records["tree"]] == groups[0]]
        of_folds = records["tree"] > 0
        whole = np.zeros(int(self.records["node"].max()) + 1, bool)
        whole[records["node"][~of_folds]] = True
        depths, rows = records["depth"][of_folds], records["n_rows"][of_folds].astype(np.float64)
        shared = whole[records["node"][of_folds]]
        return np.bincount(depths, rows * shared) / np.bincount(depths, rows)

    def tree(self, number: int, limits: Limits) -> "Tree":
        """Return one tree under some limits."""
        reached, leaves = self.ends(limits)
        root = int(self.roots[number])
        order = reached[(reached >= root) & (reached < root + self.sizes[root])]
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
    """A tree, with the root first and left subtrees before right ones.

    Attributes
    ----------
    nodes : ndarray of shape (n_nodes,), RECORD
    values : ndarray of shape (n_nodes,) or (n_nodes, n_classes)
    sets : ndarray of shape (n_sets, 4), uint64
    """

    nodes: np.ndarray
    values: np.ndarray
    sets: np.ndarray

    @property
    def is_leaf(self) -> np.ndarray:
        return self.nodes["left"] < 0


def min_split_of(min_samples_split: int | float, n_trained: np.ndarray) -> np.ndarray:
    """Return, by tree, the least number of rows of a split node, as in scikit-learn."""
    return np.maximum(2, _in_rows(min_samples_split, n_trained))


def _in_rows(count: int | float, n_trained: np.ndarray) -> np.ndarray:
    if isinstance(count, float | np.floating) and count <= 1:
        return np.array([ceil(count * n) for n in n_trained.tolist()], np.int64)
    return np.full(len(n_trained), min(int(count), NO_LIMIT), np.int64)


def grow_forest(
    estimator: Any,
    binned: BinnedRows,
    limits: Limits,
    seed: int,
    together: bool = True,
    n_jobs: int = 1,
) -> Forest:
    """Grow the tree of all rows and those of all folds jointly.

    Parameters
    ----------
    estimator : HistTree
    binned : BinnedRows
    limits : Limits
        ``ccp_alpha`` is ignored, because pruning comes after growth.
    seed : int
        The seed for ties between features.
    together : bool
        False to grow each tree alone, for comparison.
    n_jobs : int
        The number of threads, each of which grows some of the trees jointly.
    """
    n_trees, n_rows = 1 + binned.n_folds, int(binned.bounds[-1])
    exponents, factors = exponents_of(binned), estimator._factors(binned)
    leaf = np.full(n_rows, -1, np.int32)
    roots, groups = np.empty(n_trees, np.int64), np.zeros(n_trees, np.int64)
    most = min(_MOST_TOGETHER, -(-n_trees // n_jobs)) if together else 1
    shares = [  # trees that can be grown together
        (exponent, alike[begin : begin + most])
        for exponent in dict.fromkeys(exponents)
        for alike in [[tree for tree in range(n_trees) if exponents[tree] == exponent]]
        for begin in range(0, len(alike), most)
    ]
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    n_records = n_sets = 0
    n_read = n_alone = 0
    grow_share = partial(_grow, estimator, binned, factors, limits, seed)
    grown = in_order(n_jobs, grow_share, shares)
    for group, ((_, trees), of_share) in enumerate(zip(shares, grown, strict=True)):
        records, sums, sets, ends, n_visits, n_visits_alone = of_share
        groups[trees] = group
        roots[trees] = n_records + np.arange(len(trees))
        leaf[ends >= 0] = ends[ends >= 0] + n_records
        records["tree"] = np.array(trees, np.int16)[records["tree"]]
        if n_records:
            for name in ("left", "right", "parent"):
                records[name][records[name] >= 0] += n_records
            records["left_set"][records["left_set"] >= 0] += n_sets
        parts.append((records, sums, sets))
        n_records, n_sets = n_records + len(records), n_sets + len(sets)
        n_read, n_alone = n_read + n_visits, n_alone + n_visits_alone
    depth, split, decrease, _ = limits
    records, sums, sets = (
        np.concatenate(a) if len(a) > 1 else a[0] for a in zip(*parts, strict=True)
    )
    order, sizes = np.empty((2, len(records)), np.int32)
    place, arranged = np.empty(len(records) + 1, np.int32), np.empty_like(records)
    arrange(records.view(np.uint8), roots, order, sizes, place, arranged.view(np.uint8))
    records = arranged
    leaf = place[leaf]
    tested = np.flatnonzero(leaf >= 0)
    rows = tested[np.argsort(leaf[tested], kind="stable")].astype(np.int32)
    firsts = np.zeros(len(records) + 1, np.int32)
    np.cumsum(np.bincount(leaf[tested], minlength=len(records)), out=firsts[1:])
    sums = sums[order]
    codes = np.empty(0, np.int32)
    if binned.classes is not None:
        masses = sums[:, sums.shape[1] - factors.shape[1] :]
        codes = (masses * factors[records["tree"]]).argmax(axis=1).astype(np.int32)
    nodes = records, sums, sets, codes, sizes, place[roots].astype(np.int64)
    exponents_and_groups = np.column_stack([np.array(exponents, np.int64), groups])
    of_trees = factors, exponents_and_groups, binned.n_trained
    numbers = np.array([depth, split, decrease, n_read, n_alone], np.float64)
    return Forest(*nodes, rows, firsts, *of_trees, numbers)


def _grow(
    estimator: Any,
    rows: BinnedRows,
    factors: np.ndarray,
    limits: Limits,
    seed: int,
    share: tuple[_Exponents, list[int]],
) -> tuple[Any, ...]:
    """Grow some trees; return the results of ``grow``, and the leaf of each row."""
    (of_weights, of_targets), trees = share
    folds = [tree - 1 for tree in trees if tree > 0]
    first, last = (folds[0], folds[-1] + 1) if folds else (0, 0)
    # All folds from the first to the last are ranges of rows, even those without a tree here.
    bounds = np.ascontiguousarray(rows.bounds[first : last + 1])
    fold_of_tree = np.array([tree - 1 - first if tree > 0 else -1 for tree in trees], np.int32)
    is_class = rows.classes is not None
    targets = weights = None
    is_entropy = estimator.criterion in ("entropy", "log_loss")
    unit = 1 / log(2) if is_entropy else 1.0  # entropy in bits, as in scikit-learn
    n_trained = rows.n_trained[trees]
    if rows.weights is not None:
        weights = as_integers(rows.weights, of_weights)
    if not is_class:
        targets = as_integers(rows.targets, of_targets)
        unit = ldexp(1.0, -2 * of_targets)
    ends = np.empty(rows.bins.shape[1], np.int32)
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
        _in_rows(estimator.min_samples_leaf, n_trained),
        min_split_of(limits.min_samples_split, n_trained),
        float(estimator.min_weight_fraction_leaf),
        limits.max_depth,
        limits.min_impurity_decrease,
        is_entropy,
        unit,
        seed,
        ends,
    )
    return records, sums, sets, ends, n_visits, n_alone


def exponents_of(rows: BinnedRows) -> list[_Exponents]:
    """Return the fixed-point exponents for the tree of all rows, then for that of each fold.

    Warn if the largest target is so large that the others lose precision.
    """
    n_parts = 1 + rows.n_folds  # those before the first fold, and each fold
    bounds, weights = rows.bounds, rows.weights
    targets = None if rows.classes is not None else rows.targets
    if targets is None and weights is None:
        return [(0, 0)] * n_parts
    if targets is not None and np.abs(targets).max() > _LARGEST_TARGET:
        raise ValueError(
            f"y must hold numbers of at most {_LARGEST_TARGET:g} in absolute value, because trees "
            f"sum their squares, got {targets[np.argmax(np.abs(targets))]:g}."
        )
    n_rows = np.diff(bounds, prepend=0)
    masses, are_integers, largest = n_rows.astype(float), np.ones(n_parts, bool), np.zeros(n_parts)
    for part, (begin, end) in enumerate(pairwise([0, *bounds.tolist()])):
        sizes = None if targets is None else np.abs(targets[begin:end])
        if weights is not None:
            of_rows = weights[begin:end]
            masses[part] = of_rows.sum()
            are_integers[part] = np.all(of_rows == np.rint(of_rows))
            sizes = None if sizes is None else sizes * (of_rows > 0)
        if sizes is not None:
            largest[part] = sizes.max(initial=0.0)
    exponents = []
    for tree in range(n_parts):
        trained = np.arange(n_parts) != tree
        trained[0] = True
        n_trained, are_whole = int(n_rows[trained].sum()), bool(are_integers[trained].all())
        mass = None if weights is None else float(masses[trained].sum())
        most = None if targets is None else float(largest[trained].max())
        exponents.append(_exponents_of_tree(n_trained, mass, are_whole, most))
    if targets is not None:
        spread = float(np.median(np.abs(targets - np.median(targets))))
        if spread > 0 and 2.0 ** -exponents[0][1] > 1e-3 * spread:
            warnings.warn(
                "y has outliers so large that the other targets lose precision when they are "
                "rounded to fixed-point numbers; remove these rows, or use the logarithm of y.",
                stacklevel=3,
            )
    return exponents


def _exponents_of_tree(
    n_rows: int, mass: float | None, are_integers: bool, largest: float | None
) -> _Exponents:
    """Return the exponents of one tree.

    Parameters
    ----------
    n_rows : int
    mass : float or None
        The sum of the weights; None: all are 1.
    are_integers : bool
        Whether all weights are integers.
    largest : float or None
        The largest absolute target of rows with a positive weight; None for classes.
    """
    exponent, mass_digits = 0, _digits(n_rows)
    if mass is not None:
        room = _DIGITS_OF_CLASSES if largest is None else mass_digits + _DIGITS_OF_WEIGHT
        mass_digits = _digits(mass)
        if not (are_integers and mass_digits <= room):
            exponent = room - mass_digits
            mass_digits = room + 1  # rounding may carry
    if largest is None:
        return exponent, 0
    digits = min(_MOST_DIGITS, _DIGITS - mass_digits)
    return exponent, digits - frexp(largest)[1]


def _digits(mass: float) -> int:
    """Return the binary digits of a sum, in steps of 4, so that they are equal for most trees."""
    return -(-frexp(mass)[1] // 4) * 4


def as_integers(numbers: np.ndarray, exponent: int) -> np.ndarray:
    """Return round(numbers * 2^exponent), int64; 0 for numbers that are too large for integers.

    No tree with this exponent is trained on their rows, which are in the held-out fold.
    """
    most = ldexp(1.0, min(60 - exponent, 1023))
    in_range = np.where(np.abs(numbers) <= most, numbers, 0.0)
    return np.rint(np.ldexp(in_range, exponent)).astype(np.int64)
