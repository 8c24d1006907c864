"""Stratified folds: every fold has its share of every class."""

from __future__ import annotations

import numpy as np


def stratified_sample(codes: np.ndarray, n_sampled: int, among: np.ndarray) -> np.ndarray:
    """Return which rows a stratified sample holds, shape (n_rows,), bool.

    Of a class with m of the n rows it holds m * n_sampled / n rows, rounded up or down.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,), int
        The class of each row.
    n_sampled : int
    among : ndarray of shape (n_rows,)
        A random permutation, which decides between the rows of a class.
    """
    by_class = among[np.argsort(codes[among], kind="stable")]
    # Of the rows in this order every (n / n_sampled)-th is taken.
    before = np.arange(len(codes) + 1, dtype=np.int64) * n_sampled // len(codes)
    is_sampled = np.zeros(len(codes), bool)
    is_sampled[by_class[np.diff(before) > 0]] = True
    return is_sampled


def stratified_chunks(codes, n_folds, rows, seed):
    from optuna_treecv.rows.folds import permutation_for_classes

    among = permutation_for_classes(len(codes), seed)
    by_class = among[np.argsort(codes[among], kind="stable")]
    fold = np.empty(len(codes), np.int64)
    fold[by_class] = np.arange(len(codes)) % n_folds
    order = rows[np.argsort(fold[rows], kind="stable")]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(fold))]).astype(np.int64)
    return order, bounds
