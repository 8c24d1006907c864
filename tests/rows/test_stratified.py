"""Stratified folds: even counts, nesting of powers of two, and rows in random order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.rows import cv as module
from optuna_treecv.rows.cv import make_cuts
from optuna_treecv.rows.cv import ToCut
from optuna_treecv.rows.folds import permutation
from optuna_treecv.rows.folds import stratified_chunks

# Up to 8 folds share their order, so that each of 2 folds has four balanced quarters.
N_ROWS = 8192
SEEDS = st.integers(0, 2**64 - 1)


def cut(codes, n_folds, seed):
    """Return the order and the bounds that a cross-validation with this seed uses."""
    return stratified_chunks(codes, n_folds, permutation(len(codes), seed, 1), seed)


def folds_of(codes, n_folds, seed):
    """Return the rows of each fold, in their order."""
    order, bounds = cut(codes, n_folds, seed)
    return np.split(order, bounds[1:-1])


def table(codes, folds):
    """Return the number of rows of each class (column) in each fold (row)."""
    return np.array([np.bincount(codes[fold], minlength=codes.max() + 1) for fold in folds])


def shuffled(sizes, seed=0):
    """Return codes with the given number of rows per class, in a random order."""
    codes = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    return np.random.default_rng(seed).permutation(codes)


@st.composite
def cases(draw):
    """Draw codes and a number of folds up to the size of the rarest class."""
    sizes = draw(st.lists(st.integers(2, 300), min_size=1, max_size=6))
    n_folds = draw(st.integers(2, min(sizes)))
    return shuffled(sizes, draw(st.integers(0, 99))), n_folds


@pytest.mark.slow
@settings(max_examples=150)
@given(cases(), SEEDS)
def test_folds_are_a_partition_with_even_counts(case, seed):
    codes, n_folds = case
    order, bounds = cut(codes, n_folds, seed)
    assert order.dtype == np.uint32 and bounds.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(len(codes)))
    assert bounds[0] == 0 and bounds[-1] == len(codes) and len(bounds) == n_folds + 1
    counts = table(codes, np.split(order, bounds[1:-1]))
    for of in (*counts.T, np.diff(bounds)):
        assert set(of) <= {of.sum() // n_folds, -(-of.sum() // n_folds)}
    again = cut(codes, n_folds, seed)
    assert np.array_equal(order, again[0]) and np.array_equal(bounds, again[1])


@pytest.mark.slow
@given(cases(), SEEDS)
def test_counts_are_those_of_scikit_learn(case, seed):
    codes, n_folds = case
    codes = np.concatenate([np.arange(codes.max() + 1, dtype=np.int32), codes])
    expected = [test for _, test in StratifiedKFold(n_folds).split(codes, codes)]
    ours = table(codes, folds_of(codes, n_folds, seed))
    # Which fold has which row of this table is random with us.
    assert sorted(ours.tolist()) == sorted(table(codes, expected).tolist())


@pytest.mark.slow
@given(st.lists(st.integers(2, 6000), min_size=1, max_size=4), st.integers(1, 5), SEEDS)
def test_folds_of_2k_halve_those_of_k(sizes, exponent, seed):
    codes, k = shuffled(sizes), 2**exponent
    (order, bounds), (finer, finer_bounds) = cut(codes, k, seed), cut(codes, 2 * k, seed)
    assert np.array_equal(bounds, finer_bounds[::2])
    for start, stop in zip(bounds, bounds[1:], strict=False):
        assert set(order[start:stop]) == set(finer[start:stop])
    if 2 * k * 1024 <= len(codes) and 2 * k <= min(sizes):
        assert np.array_equal(order, finer)


def test_the_order_is_the_same_for_powers_of_two_with_large_folds():
    codes = shuffled([12000, 4000, 800])
    first = cut(codes, 2, 5)[0]
    assert all(np.array_equal(cut(codes, k, 5)[0], first) for k in (4, 8, 16))
    assert not np.array_equal(cut(codes, 32, 5)[0], first)


def test_a_rare_class_leaves_the_rows_in_random_order():
    """No number of folds above 2 is stratified here, so shorter stretches need not be balanced."""
    codes = shuffled([8190, 8190, 2])
    ones = {np.count_nonzero(codes[cut(codes, 2, seed)[0][:2048]]) for seed in range(20)}
    assert max(ones) - min(ones) > 10


@pytest.mark.slow
@pytest.mark.parametrize("n_folds", [3, 8])
def test_each_row_is_equally_often_in_each_fold(n_folds):
    """This includes the folds that have one row more than others."""
    codes, n_seeds = shuffled([13, 10]), 2000
    times = np.zeros((len(codes), n_folds))
    for seed in range(n_seeds):
        for fold, rows in enumerate(folds_of(codes, n_folds, seed)):
            times[rows, fold] += 1
    expected = n_seeds / n_folds
    z = (times - expected) / np.sqrt(expected * (1 - 1 / n_folds))
    assert abs(z).max() < 4.5 and 0.3 < (z**2).mean() < 2


def changes(labels):
    """Return the mean and the variance of the number of changes of a random binary sequence."""
    n, ones = len(labels), int(labels.sum())
    product = 2 * ones * (n - ones)
    return product / n, product * (product - n) / (n * n * (n - 1))


@pytest.mark.parametrize(("n_folds", "share"), [(2, 0.5), (8, 0.1), (10, 0.5), (32, 0.1)])
def test_labels_are_in_random_order(n_folds, share):
    """The runs test of Wald and Wolfowitz: labels change as often as in random order."""
    n_ones = int(N_ROWS * share)
    codes = shuffled([N_ROWS - n_ones, n_ones])
    surplus = variance = 0.0
    for seed in range(50):
        for rows in folds_of(codes, n_folds, seed):
            labels = codes[rows]
            expected, spread = changes(labels)
            surplus += np.count_nonzero(np.diff(labels)) - expected
            variance += spread
    assert abs(surplus) / np.sqrt(variance) < 3.5


@pytest.mark.parametrize("n_folds", [2, 10])
def test_the_place_in_a_fold_depends_on_neither_the_row_nor_its_label(n_folds):
    codes, n_seeds = shuffled([700, 300]), 200
    places = np.zeros(len(codes))
    for seed in range(n_seeds):
        for rows in folds_of(codes, n_folds, seed):
            places[rows] += (np.arange(len(rows)) + 0.5) / len(rows) - 0.5
    z = places / np.sqrt(n_seeds / 12)
    assert abs(z).max() < 4.5 and 0.85 < (z**2).mean() < 1.15
    assert abs(z[codes == 1].mean()) < 4 * np.sqrt(1 / 300 - 1 / 1000)


@pytest.mark.nightly
@pytest.mark.parametrize("n_folds", [4, 10])
@pytest.mark.parametrize(
    ("estimator", "n_features"),
    [(PegasosClassifier(alpha=1e-3), 2), (AveragedSGDClassifier(step_size=0.01, average=True), 5)],
    ids=["last iterate", "averaged"],
)
def test_the_estimate_is_that_with_scikit_learns_folds(estimator, n_features, n_folds):
    """Means over 50 seeds. If labels alternated, the last iterate would be off by 3 errors."""
    codes = shuffled([6200, 2000])
    X = np.random.default_rng(0).normal(size=(len(codes), n_features)) + codes[:, np.newaxis] / 2
    differences = []
    for seed in range(50):
        splitter = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
        theirs = tree_cross_validate(estimator, X, codes, cv=splitter, random_state=seed)
        order, bounds = cut(codes, n_folds, derive_seed(seed, 0))
        ids = np.repeat(np.arange(n_folds), np.diff(bounds))
        ours = tree_cross_validate(estimator, X[order], codes[order], cv=ids, shuffle=False)
        differences.append(ours.mean - theirs.mean)
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    assert abs(np.mean(differences)) < 2 * error


# The last folds are kept.


def kept_folds(codes, n_folds=5, seed=1):
    """Return the folds that a cross-validation with ``cv=n_folds`` uses."""
    rows = ToCut(None, None, None, len(codes), True, codes)
    return make_cuts(n_folds, rows, lambda number: seed + number, 1)[0]


def test_the_last_folds_are_used_again_for_the_same_classes_alone():
    codes = shuffled([300, 200]).astype(np.uint8)
    first = kept_folds(codes)
    assert kept_folds(codes.copy()) is first
    order, bounds = cut(codes, 5, 1)
    assert np.array_equal(first.order, order)
    assert np.array_equal(first.bounds, bounds)
    with pytest.raises(ValueError, match="read-only"):
        first.order[0] = 1
    wide = np.zeros(1000, np.uint8)
    wide[::2] = codes  # these bytes are also 500 codes of two bytes
    kept_folds(wide)
    assert len(kept_folds(wide.view("<u2")).order) == 500
    others = [(shuffled([300, 200], seed=1).astype(np.uint8),), (codes, 4), (codes, 5, 2)]
    for other in others:
        kept_folds(codes)
        order, bounds = cut(*other, *(5, 1)[len(other) - 1 :])
        found = kept_folds(*other)
        assert np.array_equal(found.order, order)
        assert np.array_equal(found.bounds, bounds)


def test_folds_of_one_cut_are_kept_and_none_of_many_rows(monkeypatch):
    codes = shuffled([300, 200]).astype(np.uint8)
    first = kept_folds(codes)
    kept_folds(codes, seed=2)
    assert len(module._kept) == 1
    assert kept_folds(codes) is not first
    monkeypatch.setattr(module, "MOST_KEPT", 499)
    kept_folds(codes, seed=3)
    assert module._kept == []
