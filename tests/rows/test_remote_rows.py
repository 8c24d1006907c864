"""The protocol of rows that lie elsewhere: calls in any order, and twice, change nothing."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
import pickle
from random import Random
from threading import Lock

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
from numpy.testing import assert_array_equal
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from studies import searched

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import block_bounds
from optuna_treecv.rows.distributed import Calls
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.distributed import RemoteRows


class ShuffledRows(RemoteRows):
    """Rows in blocks of this process, which are called in an order drawn at random."""

    def __init__(self, X, y, n_blocks, seed, share_of_repeats=0.3):
        self.X, self.y, self._n_blocks = X, y, n_blocks
        self.shape, self.names = X.shape, None
        self.sample, self.content = X[:5], b"0123456789abcdef"
        self.random, self.share_of_repeats = Random(seed), share_of_repeats
        self.asked = []

    @property
    def n_blocks(self):
        return self._n_blocks

    def place(self, order, bounds, prepare, name):
        blocks = []
        for start, stop in pairwise(bounds):
            numbers = np.sort(order[start:stop])
            make = pickle.loads(pickle.dumps(prepare(numbers)))
            ranks = np.searchsorted(numbers, order[start:stop]).astype(np.uint32)
            block = Block(make(take_rows(self.X, numbers), ranks), start)
            blocks.append(pickle.loads(pickle.dumps(block)))
        return ShuffledBlocks(bounds, blocks, self)


class ShuffledBlocks(RemoteBlocks):
    def __init__(self, bounds, blocks, rows):
        super().__init__(bounds)
        self.blocks, self.rows = blocks, rows

    def calls(self):
        return ShuffledCalls(self)


class ShuffledCalls(Calls):
    def __init__(self, blocks):
        self.blocks = blocks
        self.waiting = []

    def __exit__(self, *_):
        self.waiting.clear()

    def submit(self, call):
        self.blocks.rows.asked.append((call.block, call.priority))
        self.waiting.append((call, pickle.dumps((call.function, call.arguments))))

    def next(self):
        rows = self.blocks.rows
        assert self.waiting, "a result is waited for that was not asked for"
        call, sent = self.waiting.pop(rows.random.randrange(len(self.waiting)))
        n_times = 1 + (rows.random.random() < rows.share_of_repeats)
        function, arguments = pickle.loads(sent)
        # A worker does not copy what two calls get.
        results = [function(self.blocks.blocks[call.block], *arguments) for _ in range(n_times)]
        return call, pickle.loads(pickle.dumps(results[-1]))


N = 90


def data_of(n=N, d=5, seed=0, is_sparse=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.arange(1, d + 1)
    if is_sparse:
        X = sparse.csr_array(X * (rng.random(X.shape) < 0.4))
    return X, (rng.normal(size=n) + X[:, [0]].sum(axis=1) > 0).astype(int)


LEARNERS = {
    "pegasos": PegasosClassifier(),
    "svrg": StreamingSVRGClassifier(),
    "averaged": AveragedSGDRegressor(batch_size=4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        learner=LEARNERS,
        cv=[2, 5, 13, "loo"],
        n_blocks=[1, 2, 5, 200],
        is_sparse=[False, True],
        where=lambda learner, is_sparse, **_: not (is_sparse and learner == "averaged"),
    )
)
def test_any_order_of_calls_gives_the_same_bits(learner, cv, n_blocks, is_sparse):
    X, y = data_of(is_sparse=is_sparse)
    here = tree_cross_validate(LEARNERS[learner], X, y, cv=cv)
    for seed in range(2):
        rows = ShuffledRows(X, y, n_blocks, seed)
        there = tree_cross_validate(LEARNERS[learner], rows, cv=cv)
        assert_array_equal(there.test_score, here.test_score)
        assert there.n_updates == here.n_updates
        assert there.std_error == here.std_error


TESTED: dict[int, set[tuple[int, ...]]] = defaultdict(set)
LOCK = Lock()


class Remembers(ClassifierMixin, BaseEstimator):
    """Notes which rows its model has seen, in order, once it answers for a row."""

    def partial_fit(self, X, y, classes=None):
        self.classes_ = classes if classes is not None else self.classes_
        self.seen_ = (*getattr(self, "seen_", ()), *X[:, 0].astype(int).tolist())
        return self

    def predict(self, X):
        with LOCK:
            for row in X[:, 0].astype(int).tolist():
                TESTED[row].add(self.seen_)
        return np.full(len(X), len(self.seen_) % 2)


def histories(rows, y, **options):
    """Return what the model has seen, in order, that tests each row, and the result."""
    TESTED.clear()
    found = tree_cross_validate(Remembers(), rows, y, **options)
    assert all(len(some) == 1 for some in TESTED.values()), "two models test a row"
    return {row: next(iter(some)) for row, some in TESTED.items()}, found


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.integers(4, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(2, n))),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.sampled_from([None, "groups", "holdout"]),
)
def test_every_model_sees_its_rows_in_order_and_none_that_it_tests(size, n_blocks, seed, how):
    n, cv = size
    X = np.column_stack([np.arange(n, dtype=float), np.ones(n)])
    y = np.arange(n) % 2
    options = {"cv": cv, "stratify": False, "method": "treecv"}
    if how == "groups":
        options |= {"cv": 2, "groups": np.arange(n) * 3 // n}
    elif how == "holdout":
        options["method"] = how
    there, of_blocks = histories(ShuffledRows(X, y, n_blocks, seed), None, **options)
    here, in_memory = histories(X, y, **options)
    assert there == here and (how == "holdout" or sorted(there) == list(range(n)))
    assert of_blocks.n_updates == in_memory.n_updates
    for row, seen in there.items():
        assert row not in seen and len(set(seen)) == len(seen)


def test_priorities_are_the_rows_of_the_path_that_is_left():
    X, y = data_of(64)
    rows = ShuffledRows(X, y, 4, 0)
    tree_cross_validate(PegasosClassifier(), rows, cv=4, shuffle=False, stratify=False)
    # Model of folds 2 and 3 on block 0, with a block to go and two that are held out: 16 + 32.
    assert rows.asked[0] in [(0, 48), (2, 48)]
    tests = [block for block, priority in rows.asked if priority == 0]
    assert sorted(tests) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("cv", [2, 9, "loo"])
def test_a_grid_with_a_scaler_is_walked_side_by_side(cv):
    X, y = data_of()
    values = []
    for rows in [(X, y), *((ShuffledRows(X, y, 5, seed),) for seed in range(2))]:
        _, study = searched(PegasosClassifier(), rows, {"alpha": np.geomspace(1e-5, 1, 20)}, cv=cv)
        values.append(sorted((one.params["alpha"], one.value) for one in study.trials))
    assert all(some == values[0] for some in values)


@pytest.mark.slow
@pytest.mark.parametrize("cv", [2, 9, "loo"])
def test_surveys_in_any_order(cv):
    X, y = data_of()
    model = make_pipeline(StandardScaler(), PegasosClassifier())
    found = [
        tree_cross_validate(model, ShuffledRows(X, y, 5, seed), cv=cv).test_score
        for seed in range(5)
    ]
    assert all(np.array_equal(one, found[0]) for one in found)
    here = tree_cross_validate(model, X, y, cv=cv).test_score
    np.testing.assert_allclose(found[0], here, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("model", [Ridge(), LogisticRegression()])
def test_sums_in_any_order(model):
    X, y = data_of()
    found = [
        tree_cross_validate(model, ShuffledRows(X, y, 5, seed), cv=9).test_score
        for seed in range(5)
    ]
    assert all(np.array_equal(one, found[0]) for one in found)
    here = tree_cross_validate(model, X, y, cv=9).test_score
    np.testing.assert_allclose(found[0], here, rtol=0, atol=1e-7)


def test_predictions_of_any_order():
    X, y = data_of()
    here = tree_cross_val_predict(PegasosClassifier(), X, y, cv=7)
    for seed in range(3):
        rows = ShuffledRows(X, y, 5, seed)
        assert_array_equal(tree_cross_val_predict(PegasosClassifier(), rows, cv=7), here)


@pytest.mark.slow
@given(
    st.integers(2, 300).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(1, n - 1)), st.integers(1, 40))
    )
)
def test_blocks_are_about_equal_and_part_the_rows(case):
    n, inner, n_blocks = case
    begins = np.array([0, *sorted(inner), n])
    bounds = block_bounds(begins, n, n_blocks)
    assert bounds[0] == 0 and bounds[-1] == n
    assert all(start < stop for start, stop in pairwise(bounds))
    assert len(bounds) - 1 <= n_blocks
    assert max(np.diff(bounds)) <= n / n_blocks * 1.1 + 1
