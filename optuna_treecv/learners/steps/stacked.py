"""Whether a ColumnTransformer returns sparse rows for all training sets, or for none.

It decides so by the density of what its branches return for the rows that it is fitted on. Done
once, it decides by all rows. Learners such as ``SGDClassifier`` treat sparse rows in another way.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline

from optuna_treecv.learners.steps.decisions import adds_columns
from optuna_treecv.learners.steps.parts import leaves_of
from optuna_treecv.learners.steps.parts import PASSED
from optuna_treecv.learners.steps.parts import rows_of_parts
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds


def why_form_varies(fitted: Any, X: Any, cuts: Iterable[Cut]) -> str:
    """Return why fitted steps may return sparse rows to some folds only, a clause; "" if not.

    Parameters
    ----------
    fitted : Pipeline
        The steps, fitted on all rows.
    X : the rows as given
    cuts : iterable of Folds or Splits
    """
    if not list(_stacked(fitted, take_rows(X, slice(0, 1)))):
        return ""
    for stacks, outputs in _stacked(fitted, X):
        if not all(_is_sure(cut, stacks, outputs) for cut in cuts):
            return (
                "a ColumnTransformer returns sparse rows to some training sets and dense rows to "
                f"others (sparse_threshold={stacks.sparse_threshold})"
            )
    return ""


def _stacked(step: Any, X: Any) -> Iterator[tuple[ColumnTransformer, list[tuple[Any, Any]]]]:
    """Yield each ColumnTransformer in a fitted step that stacks sparse rows.

    Also yield its parts with the rows that they return.
    """
    if type(step) is Pipeline:
        for _, part in step.steps:
            if part not in PASSED:
                yield from _stacked(part, X)
                X = part.transform(unshared(part, X))
    elif type(step) is FeatureUnion:
        for _, part in step.transformer_list:
            if part not in (*PASSED, "drop"):
                yield from _stacked(part, X)
    elif type(step) is ColumnTransformer:
        outputs = []
        for _, part, rows in rows_of_parts(step, X):
            if part != "drop":
                yield from _stacked(part, rows)
                is_same = part in PASSED
                outputs.append((part, rows if is_same else part.transform(unshared(part, rows))))
        if any(sparse.issparse(after) for _, after in outputs):
            yield step, outputs


def _is_sure(cut: Cut, fitted: ColumnTransformer, outputs: list[tuple[Any, Any]]) -> bool:
    """Return whether each training set has the rows in the form that all rows have."""
    n_rows = outputs[0][1].shape[0]
    n_numbers, n_others = np.zeros(n_rows), 0  # of each row; of columns that all folds have
    found = [sparse.csc_array((n_rows, 0))]  # the columns of values that encoders find
    for part, after in outputs:
        is_sparse = sparse.issparse(after)
        n_numbers += np.diff(after.tocsr().indptr) if is_sparse else after.shape[1]
        if is_sparse and any(adds_columns(leaf) for _, leaf in leaves_of("", part)):
            found.append(sparse.csc_array(after))
        else:
            n_others += after.shape[1]
    columns = sparse.hstack(found, format="csc")
    n_trained, n_numbers, n_found = _of_training_sets(cut, n_numbers, columns)
    # A column that no row of a training set has may be left out of its rows.
    for n_columns in (n_others + n_found, n_others + columns.shape[1]):
        density = n_numbers / np.maximum(n_trained * n_columns, 1)
        if np.any((density < fitted.sparse_threshold) != fitted.sparse_output_):
            return False
    return True


def _of_training_sets(
    cut: Cut, n_numbers: np.ndarray, found: sparse.csc_array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each training set's number of rows, of numbers, and of columns of ``found``."""
    if isinstance(cut, Folds):
        chunk_of = np.empty(cut.n_rows, np.intp)
        begins = cut.begins()
        chunk_of[cut.order] = np.searchsorted(begins, np.arange(cut.n_rows), "right") - 1
        tested = chunk_of >= 0
        n_tested = np.bincount(chunk_of[tested], minlength=cut.n_folds)
        left_out = np.bincount(chunk_of[tested], n_numbers[tested], cut.n_folds)
        # A training set lacks a column if its chunk has all rows of it.
        full = np.flatnonzero(np.diff(found.indptr))
        chunks = chunk_of[found.indices]
        lowest = np.minimum.reduceat(chunks, found.indptr[full]) if len(full) else full
        highest = np.maximum.reduceat(chunks, found.indptr[full]) if len(full) else full
        only = lowest[(lowest == highest) & (lowest >= 0)]
        n_found = len(full) - np.bincount(only, minlength=cut.n_folds)
        return cut.n_rows - n_tested, n_numbers.sum() - left_out, n_found
    by_row = found.tocsr()
    trains = [cut.train_rows(chunk) for chunk in range(cut.n_folds)]
    return (
        np.array([len(rows) for rows in trains]),
        np.array([n_numbers[rows].sum() for rows in trains]),
        np.array([len(np.unique(by_row[rows].indices)) for rows in trains]),
    )
