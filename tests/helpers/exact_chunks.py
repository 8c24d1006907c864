"""Cuts of 60 rows into folds, and what a family of exact folds says of the tested rows."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import FoldsLeftOut

N = 60


def equal_parts(k):
    return Chunks(N, np.linspace(0, N, k + 1).astype(np.int64))


def given():
    """Return training sets and test sets that overlap with others, in mixed orders."""
    rng = np.random.default_rng(1)
    orders = [rng.permutation(N) for _ in range(3)]
    tested = np.concatenate([order[:15] for order in orders])
    return Chunks(N, np.array([0, 15, 30, 45]), tested, [[order[20:]] for order in orders])


CHUNKS = {
    "2": equal_parts(2),
    "10": equal_parts(10),
    "n": equal_parts(N),
    "groups": Chunks(N, np.array([0, 1, 20, 23, 24, 55, 60])),
    "trained only": Chunks(N, np.array([10, 30, 45, 60])),
    "growing": Chunks(
        N, np.array([0, 10, 25]), np.arange(30, 55), [[slice(0, 30)], [slice(0, 40)]]
    ),
    "given": given(),
    "pairs": FoldsLeftOut.of(equal_parts(6), [*combinations(range(6), 2)]),
    "pairs of some rows": FoldsLeftOut.of(
        Chunks(N, np.array([30, 37, 45, 60])), [(0,), (0, 1), (0, 2), (1,), (1, 2), (2,)]
    ),
}


def kept(name, size, make):
    """Make sums that are not kept."""
    memory = np.empty(size)
    make(memory)
    memory.flags.writeable = False
    return memory


def outputs(family, chunks, most_rows=25):
    every = list(family.test(chunks, kept, most_rows))
    parts = [part for part, _ in every]
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    return np.concatenate([outputs for _, outputs in every], axis=1)


def folds_of(chunks):
    """Yield the places of each chunk's outputs, its training rows and its test rows."""
    for c in range(chunks.n_chunks):
        places = np.arange(chunks.bounds[c], chunks.bounds[c + 1]) - chunks.bounds[0]
        test = chunks.test_rows(c, c + 1)
        train = np.delete(np.arange(chunks.n_rows), test)
        if chunks.trains is not None:
            train = np.concatenate([np.arange(N)[part] for part in chunks.train_parts(c)])
        yield places, train, np.arange(chunks.n_rows)[test]
