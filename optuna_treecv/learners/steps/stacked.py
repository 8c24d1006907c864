"""Whether a ColumnTransformer returns sparse rows for all training sets, or for none.

It decides so by the density of what its branches return for the rows that it is fitted on. Done
once, it decides by all rows. Learners such as ``SGDClassifier`` treat sparse rows in another way.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from optuna_treecv.learners.steps.once import adds_columns
from optuna_treecv.learners.steps.running import leaves_of
from optuna_treecv.learners.steps.running import PASSED
from optuna_treecv.learners.steps.running import unshared
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds


class Stacked(NamedTuple):
    """What a ColumnTransformer stacks, where some of it is sparse.

    Attributes
    ----------
    of : ColumnTransformer
        Fitted on all rows.
    n_numbers : ndarray of shape (n_rows,)
        How many numbers of a row are stored: those of sparse branches, and all of dense ones.
    found : csc_array
        The columns that an encoder makes of the values that it finds.
    n_others : int
        The number of all other columns.
    """

    of: ColumnTransformer
    n_numbers: np.ndarray
    found: sparse.csc_array
    n_others: int

    def is_sure(self, cut: Cut) -> bool:
        """Return whether each training set has the rows in the form that all rows have."""
        n_trained, n_numbers, n_found = _of_training_sets(cut, self.n_numbers, self.found)
        # A column that no row of a training set has may be left out of its rows.
        for n_columns in (self.n_others + n_found, self.n_others + self.found.shape[1]):
            density = n_numbers / np.maximum(n_trained * n_columns, 1)
            if np.any((density < self.of.sparse_threshold) != self.of.sparse_output_):
                return False
        return True


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
    for stacked in _stacked(fitted, X):
        if not all(map(stacked.is_sure, cuts)):
            return (
                "a ColumnTransformer returns sparse rows to some training sets and dense rows to "
                f"others (sparse_threshold={stacked.of.sparse_threshold})"
            )
    return ""


def _stacked(step: Any, X: Any) -> Iterator[Stacked]:
    """Yield what each ColumnTransformer in a fitted step stacks, if some of it is sparse."""
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
        branches = list(_branches(step, X))
        for _, part, rows in branches:
            yield from _stacked(part, rows)
        outputs = [
            (name, part, rows if part in PASSED else part.transform(unshared(part, rows)))
            for name, part, rows in branches
        ]
        if any(sparse.issparse(after) for _, _, after in outputs):
            yield _counted(step, outputs)


def _branches(fitted: ColumnTransformer, X: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the transformer and the rows of each branch that returns columns."""
    for name, part, columns in fitted.transformers_:
        written = fitted.output_indices_[name]
        if written.start < written.stop:
            yield name, part, _safe_indexing(X, columns, axis=1)


def _counted(fitted: ColumnTransformer, outputs: list[tuple[str, Any, Any]]) -> Stacked:
    n_rows = outputs[0][2].shape[0]
    n_numbers, n_others = np.zeros(n_rows), 0
    found = [sparse.csc_array((n_rows, 0))]
    for name, part, after in outputs:
        n_columns = after.shape[1]
        if not sparse.issparse(after):
            n_numbers += n_columns
            n_others += n_columns
            continue
        n_numbers += np.diff(after.tocsr().indptr)
        if any(adds_columns(leaf) for _, leaf in leaves_of(name, part)):
            found.append(sparse.csc_array(after))
        else:
            n_others += n_columns
    return Stacked(fitted, n_numbers, sparse.hstack(found, format="csc"), n_others)


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
