"""Whether each training set gets rows in the form of all rows, sparse or dense."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer

from optuna_treecv.preprocessing.parts import adds_columns
from optuna_treecv.preprocessing.parts import leaves_of
from optuna_treecv.preprocessing.parts import rows_after
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import trained_without


def why_form_varies(fitted: Any, X: Any, cuts: Iterable[Cut]) -> str:
    """Return why some folds would get sparse rows and others not, a clause; "" if not.

    A ColumnTransformer decides it by the density of what its branches return for the rows that it
    is fitted on; done once, by all rows. Learners such as ``SGDClassifier`` and ``Ridge`` treat
    sparse rows in another way.
    """
    stacks: list[tuple[ColumnTransformer, list[tuple[Any, Any]]]] = []

    def note(path: str, step: Any, X: Any, branches: list[tuple[Any, Any]]) -> Any:
        if type(step) is ColumnTransformer and any(sparse.issparse(X) for _, X in branches):
            stacks.append((step, branches))
        return step.transform(unshared(step, X))

    # One row tells whether any branch is sparse, before all rows are transformed.
    rows_after("", fitted, take_rows(X, slice(0, 1)), note)
    if stacks:
        stacks.clear()
        rows_after("", fitted, X, note)
    for step, branches in stacks:
        if not all(_is_sure(cut, step, branches) for cut in cuts):
            return (
                "a ColumnTransformer returns sparse rows to some training sets and dense rows to "
                f"others (sparse_threshold={step.sparse_threshold})"
            )
    return ""


def _is_sure(cut: Cut, fitted: ColumnTransformer, outputs: list[tuple[Any, Any]]) -> bool:
    """Return whether each training set has the rows in the form that all rows have."""
    n_rows = outputs[0][1].shape[0]
    n_numbers, n_others = np.zeros(n_rows), 0  # of each row; of columns that all folds have
    encoded = [sparse.csc_array((n_rows, 0))]  # the columns of values that encoders find
    for part, after in outputs:
        is_sparse = sparse.issparse(after)
        # As in scikit-learn, the zeros of dense rows count as numbers.
        n_numbers += np.diff(after.tocsr().indptr) if is_sparse else after.shape[1]
        if is_sparse and any(adds_columns(leaf) for _, leaf in leaves_of("", part)):
            encoded.append(sparse.csc_array(after))
        else:
            n_others += after.shape[1]
    columns = sparse.hstack(encoded, format="csc")
    n_trained, n_numbers, n_present = _of_training_sets(cut, n_numbers, columns)
    # A column that no row of a training set has may be left out of its rows.
    for n_columns in (n_others + n_present, n_others + columns.shape[1]):
        density = n_numbers / np.maximum(n_trained * n_columns, 1)
        if np.any((density < fitted.sparse_threshold) != fitted.sparse_output_):
            return False
    return True


def _of_training_sets(
    cut: Cut, n_numbers: np.ndarray, columns: sparse.csc_array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each training set's number of rows, of numbers, and of such columns that it has."""
    n_columns = np.count_nonzero(np.diff(columns.indptr))
    n_present = n_columns - trained_without(cut, columns).sum(axis=1)
    if isinstance(cut, Folds):
        n_of_chunks = np.add.reduceat(n_numbers[cut.order], cut.begins()[:-1])
        return cut.n_rows - np.diff(cut.begins()), n_numbers.sum() - n_of_chunks, n_present
    trains = [cut.split(chunk).train_rows() for chunk in range(cut.n_folds)]
    n_trained = np.array([len(rows) for rows in trains])
    return n_trained, np.array([n_numbers[rows].sum() for rows in trains]), n_present
