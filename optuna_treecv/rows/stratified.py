"""Stratified folds: the rows of each class are spread over the folds as evenly as possible."""

from __future__ import annotations

import numpy as np

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv._kernels.order import random_order

# Purposes of derived seeds, beside those of rows/folds.py (1 and 2). What a fold holds must not
# depend on the permutation that orders its rows: the rows of each class would then lie at even
# distances within a fold, and the labels would alternate.
_MEMBERS = 3
_FIRST_TURN = 4

# Powers of two share one order as long as their folds hold this many rows. Each such stretch of
# rows has an even share of each class, so the rows that a model sees last vary less than random
# rows do. This biases the estimates of learners that weigh them most. In experiments with last
# iterates, the bias was up to 0.9 standard deviations of one estimate without a lower bound, 0.3
# with 256 rows, and 0.1 with 1024, where the mean over 50 seeds does not show it.
_FEWEST_ROWS = 1024


def stratified_chunks(
    codes: np.ndarray, n_folds: int, rows: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of the rows, and the bounds that cut it into stratified folds.

    The rows of each class are dealt out to the folds in turn, and each class begins where the
    class before stopped. Therefore the folds differ by at most one row, both in each class and in
    total.

    If ``n_folds`` is a power of two, k, each fold consists of two folds of 2k. As long as the
    folds of 2k hold at least 1024 rows each, the whole order is the same for k and 2k, so that
    both can share models.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,), int32
        The class of each row as given, as a number from 0. Each class has at least ``n_folds``
        rows.
    n_folds : int
    rows : ndarray of shape (n_rows,), uint32
        A random permutation of the rows. Within a fold, rows keep the order that they have in it.
    seed : int
        Decides which rows a fold holds; 64 bits.

    Returns
    -------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the data as given.
    bounds : ndarray of shape (n_folds + 1,), int64
        Fold i consists of the prepared rows ``bounds[i]`` to ``bounds[i + 1] - 1``.
    """
    parts = 1
    if _is_power_of_two(n_folds):
        # The order is the same up to this number of folds, a power of two that depends on nothing
        # but the classes. There are never more folds than rows of a class.
        most = min(len(codes) // _FEWEST_ROWS, int(np.bincount(codes).min()))
        parts = max(1, (1 << most.bit_length() >> 1) // n_folds)
    n_chunks = parts * n_folds
    chunks = _deal(codes, n_chunks, seed)
    order = rows[np.argsort(chunks[rows], kind="stable")]
    sizes = np.bincount(chunks, minlength=n_chunks)
    bounds = np.concatenate([[0], np.cumsum(sizes)])[::parts]
    return order, np.ascontiguousarray(bounds, np.int64)


def stratified_sample(codes: np.ndarray, n_sampled: int, seed: int) -> np.ndarray:
    """Return the rows of a stratified sample, in ascending order.

    Of a class with m of the n rows it holds m * n_sampled / n rows, rounded up or down.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,), int32
        The class of each row, as a number from 0.
    n_sampled : int
    seed : int
        Decides which rows of a class it holds; 64 bits.
    """
    n_rows = len(codes)
    before = np.arange(n_rows + 1, dtype=np.int64) * n_sampled // n_rows
    return np.sort(_by_class(codes, seed)[np.diff(before) > 0])


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _deal(codes: np.ndarray, n_chunks: int, seed: int) -> np.ndarray:
    """Return the chunk of each row as given."""
    by_class = _by_class(codes, seed)
    # Some chunks get one row more of a class than others. The first turn is random, so that these
    # are no chunks in particular.
    turns = np.roll(_turns(n_chunks), -(derive_seed(seed, _FIRST_TURN) % n_chunks))
    narrow = turns.astype(np.min_scalar_type(n_chunks - 1))
    chunks = np.empty(len(codes), narrow.dtype)
    chunks[by_class] = np.tile(narrow, -(-len(codes) // n_chunks))[: len(codes)]
    return chunks


def _by_class(codes: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows class after class, those of each class in random order."""
    drawn = np.empty(len(codes), np.uint32)
    random_order(derive_seed(seed, _MEMBERS), 0, len(codes), 0, drawn)
    narrow = codes.astype(np.min_scalar_type(codes.max()))  # NumPy sorts narrow integers faster
    return drawn[np.argsort(narrow[drawn], kind="stable")]


def _turns(n_chunks: int) -> np.ndarray:
    """Return the chunks in the order in which they are dealt to.

    For a power of two, turn i is i with its bits reversed. So the left half of the chunks has the
    even turns, the left quarter has every fourth turn, and each of them is dealt to in turn.
    """
    if not _is_power_of_two(n_chunks):
        return np.arange(n_chunks)
    turns = np.zeros(1, np.int64)
    while len(turns) < n_chunks:
        turns = np.concatenate([2 * turns, 2 * turns + 1])
    return turns
