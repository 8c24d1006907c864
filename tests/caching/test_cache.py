"""The cache in memory: what it keeps, what it evicts, and which thread waits for which."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import gc
import os
import pickle
from threading import Barrier
from threading import Thread
import tracemalloc
import weakref

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from optuna_treecv import ModelCache
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.keys import stored_as
from optuna_treecv.storage.model_store import StoredModel

KEY = Key(b"rows", b"folds", b"settings", b"unit", 3)


def array(value, n_bytes=1000):
    return np.full(n_bytes, value, np.uint8)


def test_what_is_kept_is_found():
    cache = ModelCache()
    assert cache.find("a") is None and len(cache) == 0
    cache.keep("a", array(1), 1.0)
    assert cache.find("a")[0] == 1 and len(cache) == 1
    assert 1000 < cache.n_bytes < 3000
    assert cache.has("a") and not cache.has("b")
    cache.keep_all({0: "b", 1: "c"}, np.stack([array(2), array(3)]), [0.5, 0.5])
    assert [cache.find(key)[0] for key in "abc"] == [1, 2, 3]


def test_those_go_that_are_rebuilt_fastest_a_byte():
    cache = ModelCache(6000)
    cache.keep("dear", array(1), 5.0)
    cache.keep("cheap", array(2), 1.0)
    cache.keep("dear and large", array(3, 4000), 5.0)
    assert cache.find("cheap") is None and cache.n_bytes <= 6000
    assert cache.find("dear") is not None
    cache.keep("too large", array(4, 7000), 100.0)
    assert cache.find("too large") is None and cache.find("dear") is not None


def test_nothing_stays_for_ever():
    cache = ModelCache(20_000)
    cache.keep("once dear", array(1), 100.0)
    for i in range(5000):
        cache.keep(i, array(2), 1.0)
        cache.find(i)
    assert cache.find("once dear") is None


def test_what_is_asked_for_stays():
    cache = ModelCache(20_000)
    cache.keep("asked for", array(1), 1.0)
    for i in range(5000):
        cache.keep(i, array(2), 1.0)
        assert cache.find("asked for") is not None


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.integers(0, 8000),
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "keep_all", "forget", "find"]),
            st.integers(0, 20),
            st.integers(0, 2000),
            st.floats(0, 10),
        )
    ),
)
def test_it_is_never_larger_than_asked_for(max_bytes, calls):
    cache = ModelCache(max_bytes)
    for call, key, n_bytes, seconds in calls:
        if call == "keep":
            cache.keep(key, array(0, n_bytes), seconds)
        elif call == "keep_all":
            states = np.zeros((2, n_bytes), np.uint8)
            keys = {0: key, 1: key + 1} if n_bytes % 2 else {1: key}
            cache.keep_all(keys, states, [seconds / 2] * len(keys))
        elif call == "forget":
            cache.take(key)
        else:
            found = cache.find(key)
            assert found is None or len(found) <= max_bytes
        assert cache.n_bytes <= max_bytes
        blocks = {id(block): block for _, block in cache._entries.values()}.values()
        assert sum(block.n_bytes for block in blocks) == cache.n_bytes
        assert sorted(map(str, cache._entries)) == sorted(str(k) for b in blocks for k in b.keys)


def test_what_is_evicted_is_freed_at_once():
    # Not only by the garbage collector, which may take hundreds of trials to come.
    cache = ModelCache(100_000)
    alive = []
    gc.disable()
    try:
        for i in range(100):
            states = np.zeros((3, 1000), np.uint8)
            cache.keep_all({0: (i, 0), 1: (i, 1)}, states, [1.0, 1.0])
            alive.append(weakref.ref(states))
            del states
        assert 2 <= sum(ref() is not None for ref in alive) <= 100_000 // 3000
    finally:
        gc.enable()


def one_by_one(cache, i):
    cache.keep((os.urandom(16), os.urandom(16), 8), np.zeros(8, np.uint8), 1.0)


def together(cache, i):
    keys = {j: (os.urandom(16), os.urandom(16), 8) for j in range(10)}
    cache.keep_all(keys, np.zeros((10, 8), np.uint8), [1.0] * 10)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [one_by_one, together])
def test_the_bytes_in_use_cover_what_python_takes(keep):
    cache = ModelCache(2**30)
    gc.collect()
    tracemalloc.start()
    try:
        for i in range(2000):
            keep(cache, i)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= cache.n_bytes <= 2.5 * taken


def in_threads(n_threads, run):
    barrier = Barrier(n_threads)

    def start(i):
        barrier.wait()
        run(i)

    threads = [Thread(target=start, args=(i,), daemon=True) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "waits for ever"


def test_who_comes_first_makes_it_and_the_others_wait():
    cache, made, found = ModelCache(), [], []

    def run(i):
        model = cache.claim("a")
        if model is None:
            try:
                made.append(i)
                cache.keep("a", array(7), 1.0)
            finally:
                cache.release("a")
        else:
            found.append(model[0])

    in_threads(8, run)
    assert len(made) == 1 and found == [7] * 7


def test_who_waits_for_one_that_fails_makes_it_in_turn():
    cache, tried = ModelCache(), []

    def run(i):
        if cache.claim("a") is None:
            tried.append(i)
            cache.release("a")  # as after an error, when nothing is kept

    in_threads(4, run)
    assert sorted(tried) == [0, 1, 2, 3]


def test_a_pickled_cache_comes_back_empty():
    cache = ModelCache(5000)
    cache.keep("a", array(1), 1.0)
    assert cache.claim("b") is None
    other = pickle.loads(pickle.dumps(cache))
    assert other.max_bytes == 5000 and len(other) == 0 and other.n_bytes == 0
    assert other.claim("b") is None


@pytest.mark.parametrize("max_bytes", [-1, 1.5, "256MB", True, None])
def test_room_must_be_a_number_of_bytes(max_bytes):
    with pytest.raises(ValueError, match="max_bytes must be a number of bytes"):
        ModelCache(max_bytes)


class Vanishing:
    """A store that lists a model which is gone when it is read."""

    def __init__(self, error=None):
        self.error = error
        self.both_are_there = Barrier(2)
        self.left = [StoredModel(1, stored_as(KEY))]

    def read_new(self):
        left, self.left = self.left, []
        return left

    def read(self, known):
        if self.error is not None:
            raise self.error
        self.both_are_there.wait(120)


def test_two_threads_may_find_that_a_stored_model_is_gone():
    cache = StoredModelCache(ModelCache(), Vanishing())
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(cache.find, [KEY] * 2)) == [None, None]


def test_a_claim_ends_when_the_store_fails():
    cache = StoredModelCache(ModelCache(), Vanishing(MemoryError()))
    with pytest.raises(MemoryError):
        cache.claim(KEY)
    assert not cache.memory._claims


def test_what_is_forgotten_is_freed_and_counts_no_more():
    cache = ModelCache(max_bytes=10_000)
    first = array(1)
    freed = weakref.ref(first)
    cache.keep("a", first, 1.0)
    del first
    cache.take("a")
    assert cache.find("a") is None and cache.n_bytes == 0 and freed() is None
    cache.keep("a", array(2), 10.0)
    assert cache.find("a")[0] == 2
    for key in range(20):  # the block that is forgotten is among those that could go
        cache.keep(key, array(key), 1.0 + key)
        assert 0 < cache.n_bytes <= 10_000
    assert cache.n_bytes == len(cache) * (1000 + 750 + 600)
