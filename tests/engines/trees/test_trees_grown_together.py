"""The trees of all folds, grown together, equal trees that are grown alone by the NumPy twin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
from reference import grow_alone
from reference import TreeRows
from spread import spread

from optuna_treecv._kernels.prepare import fill_bins
from optuna_treecv.engines.trees.kernels.forest import grow


class Problem:
    """Rows in the order of their folds, and how trees are grown from them."""

    def __init__(
        self,
        rng,
        n_rows=60,
        n_features=3,
        n_bins=4,
        n_folds=3,
        n_classes=2,
        missing=0.0,
        categories=False,
        weights=None,
        entropy=False,
        balanced=False,
        n_outside=0,
        **settings,
    ):
        self.n_bins = rng.integers(1, n_bins + 1, n_features).astype(np.int32)
        self.n_bins[0] = n_bins
        bins = rng.integers(0, self.n_bins[:, None], (n_features, n_rows))
        is_missing = rng.random((n_features, n_rows)) < missing
        self.bins = np.where(is_missing, self.n_bins[:, None], bins).astype(np.uint8)
        self.has_missing = is_missing.any(axis=1).astype(np.uint8)
        self.is_categorical = np.zeros(n_features, np.uint8)
        if categories:
            self.is_categorical[rng.random(n_features) < 0.6] = 1
        signal = self.bins[0].astype(np.int64)
        if n_features > 1:
            signal *= 1 - self.bins[1].astype(np.int64) % 3
        self.classes = self.targets = None
        self.factors = np.empty((n_folds + 1, n_classes))
        if n_classes:
            self.classes = ((signal + rng.integers(0, 2, n_rows)) % n_classes).astype(np.int32)
            self.factors[:] = rng.uniform(0.2, 5, self.factors.shape) if balanced else 1.0
        else:
            self.targets = (signal * 1000 + rng.integers(-2000, 2000, n_rows)).astype(np.int64)
        self.weights = None
        if weights is not None:
            self.weights = rng.integers(0, weights + 1, n_rows).astype(np.int64)
        cuts = np.sort(rng.choice(np.arange(n_outside + 1, n_rows), n_folds - 1, replace=False))
        self.bounds = np.concatenate([[n_outside], cuts, [n_rows]]).astype(np.int64)
        self.own = np.arange(-1, n_folds, dtype=np.int32)
        self.entropy = entropy
        self.settings = {"min_leaf": 1, "min_split": 2, "max_depth": 2**31 - 1} | settings
        self.seed = int(rng.integers(2**63))

    @property
    def n_rows(self):
        return self.bins.shape[1]

    @property
    def n_trees(self):
        return len(self.own)

    def is_trained(self, tree):
        trained = np.ones(self.n_rows, bool)
        if self.own[tree] >= 0:
            trained[self.bounds[self.own[tree]] : self.bounds[self.own[tree] + 1]] = False
        return trained

    def alone(self, tree):
        """Grow a tree from its training rows alone."""
        rows = np.flatnonzero(self.is_trained(tree))
        return grow_alone(
            TreeRows(
                self.bins[:, rows],
                self.n_bins,
                self.is_categorical,
                *(one if one is None else one[rows] for one in (self.classes, self.targets)),
                None if self.weights is None else self.weights[rows],
                tuple(self.factors[tree]),
                entropy=self.entropy,
                **self.settings,
            ),
            self.seed,
        )

    def together(self):
        """Return the records, sums and sets of all trees, and the record where each row ends."""
        leaf = np.empty(self.n_rows, np.int32)
        n_trees = self.n_trees
        min_leaf, min_split, max_depth, min_decrease, min_share = (
            self.settings.get(name, 0.0)
            for name in ("min_leaf", "min_split", "max_depth", "min_decrease", "min_share")
        )
        found = grow(
            self.bins,
            self.classes,
            self.targets,
            self.weights,
            self.n_bins,
            self.has_missing,
            self.is_categorical,
            self.bounds,
            self.own,
            self.factors,
            np.full(n_trees, min_leaf, np.int64),
            np.full(n_trees, min_split, np.int64),
            min_share,
            max_depth,
            min_decrease,
            self.entropy,
            1.0,
            self.seed,
            leaf,
        )
        return *found[:3], leaf

    def left_bins(self, record, sets):
        """Return the bins that go left by a record, of those that exist."""
        n_bins = int(self.n_bins[record["feature"]])
        if record["left_set"] >= 0:
            words = sets[record["left_set"]]
            return {b for b in range(n_bins + 1) if int(words[b // 64]) >> (b % 64) & 1}
        left = set(range(record["bin"] + 1))
        return left | {n_bins} if record["missing_left"] else left


def assert_same(problem, tree, node, number, records, sums, sets):
    """Check a record and those below it against a node of the twin."""
    record = records[number]
    assert record["tree"] == tree and record["depth"] == node.depth
    assert tuple(sums[number].tolist()) == node.sums and record["n_rows"] == node.n_rows
    assert record["feature"] == node.feature and record["decrease"] == node.decrease
    if not node.children:
        assert record["left"] == record["right"] == -1
        return
    exist = set(range(int(problem.n_bins[node.feature]) + 1))
    assert problem.left_bins(record, sets) == node.left_bins & exist
    assert record["missing_left"] == node.missing_left
    for child, side in zip(node.children, ("left", "right"), strict=True):
        below = int(record[side])
        assert below > number and records[below]["parent"] == number
        assert_same(problem, tree, child, below, records, sums, sets)


def check(problem, most_trees=99):
    """Compare the first trees and the last one with those of the twin, and all leaves of rows."""
    records, sums, sets, leaf = problem.together()
    trees = range(problem.n_trees)
    for tree in {*trees[:most_trees], trees[-1]}:
        assert_same(problem, tree, problem.alone(tree), tree, records, sums, sets)
    for row in range(problem.n_rows):
        fold = np.searchsorted(problem.bounds, row, side="right") - 1
        if fold < 0:
            assert leaf[row] == -1
            continue
        number = int(np.flatnonzero(problem.own == fold)[0])
        while records[number]["left"] >= 0:
            record = records[number]
            is_left = problem.bins[record["feature"], row] in problem.left_bins(record, sets)
            number = int(record["left" if is_left else "right"])
        assert leaf[row] == number


KINDS = {
    "two classes": {},
    "five classes": {"n_classes": 5},
    "numbers": {"n_classes": 0},
    "entropy": {"n_classes": 3, "entropy": True},
    "weighted classes": {"weights": 3, "n_classes": 3},
    "weighted numbers": {"weights": 3, "n_classes": 0},
    "weighted entropy": {"weights": 2, "entropy": True},
    "weights of classes": {"n_classes": 4, "balanced": True},
    "weights of classes and rows": {"n_classes": 4, "balanced": True, "weights": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(kind=KINDS, n_folds=[2, 3, 10], n_bins=[4, 32, 255], has_gaps=[False, True])
)
def test_each_tree_is_the_one_grown_alone(kind, n_folds, n_bins, has_gaps):
    """Rows enough that the first nodes have tables."""
    rng = np.random.default_rng(n_bins + n_folds)
    options = KINDS[kind] | {"n_bins": n_bins, "n_folds": n_folds, "max_depth": 4}
    if has_gaps:
        options |= {"missing": 0.1, "categories": True, "min_leaf": 5}
    check(Problem(rng, n_rows=330, **options), most_trees=3)


@pytest.mark.slow
def test_more_rows_than_small_counts_hold():
    """The class of most rows has more of them than an int16 counts, and then fewer."""
    problem = Problem(
        np.random.default_rng(0), n_rows=50_000, n_bins=8, n_folds=2, n_classes=4, max_depth=2
    )
    rare = np.random.default_rng(1).random(50_000) < 0.02
    problem.classes = np.where(rare, problem.classes, 0).astype(np.int32)
    assert np.bincount(problem.classes)[0] > 1.5 * np.iinfo(np.int16).max
    check(problem)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(list(KINDS)),
    n_rows=st.integers(12, 90),
    n_features=st.integers(1, 4),
    n_bins=st.sampled_from([2, 3, 8, 255]),
    n_folds=st.integers(2, 6),
    missing=st.sampled_from([0.0, 0.2]),
    categories=st.booleans(),
    n_outside=st.integers(0, 4),
    min_leaf=st.integers(1, 3),
    min_split=st.integers(2, 9),
    max_depth=st.sampled_from([1, 3, 2**31 - 1]),
    min_decrease=st.sampled_from([0.0, 0.01]),
    min_share=st.sampled_from([0.0, 0.05]),
)
def test_any_small_problem(seed, kind, **options):
    """Few rows with many ties."""
    check(Problem(np.random.default_rng(seed), **KINDS[kind], **options))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_edges", [0, 1, 2, 7, 30])
def test_a_bin_holds_its_upper_edge(n_edges, dtype):
    rng = np.random.default_rng(0)
    edges = np.sort(rng.choice(np.arange(-40, 40) / 4, n_edges, replace=False))
    values = np.concatenate([edges, edges - 0.125, edges + 0.125, [-99.0, 99.0, np.nan]])
    X = values.astype(dtype)[:, None]
    bins = np.full((2, len(X)), 77, np.uint8)
    order = rng.permutation(len(X)).astype(np.uint32)
    begins, is_number = np.array([0, n_edges, n_edges]), np.array([1, 0], np.uint8)
    fill_bins(np.hstack([X, X]), order, edges, begins, is_number, bins)
    expected = np.searchsorted(edges, values, side="left")
    expected[np.isnan(values)] = n_edges + 1
    assert np.array_equal(bins[0], expected[order])
    assert np.all(bins[1] == 77)  # it is left alone
