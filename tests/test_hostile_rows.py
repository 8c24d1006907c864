"""Rows that would be misread or point outside of memory are refused before they are used."""

from __future__ import annotations

import numpy as np
from optuna.distributions import FloatDistribution
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import LSQSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective

rng = np.random.default_rng(0)
X = np.where(rng.random((40, 6)) < 0.5, rng.normal(size=(40, 6)), 0)
y = np.arange(40) % 2


def changed(kind=sparse.csr_matrix, **arrays):
    """Return a sparse matrix with some of its arrays replaced by what a function makes of them."""
    matrix = kind(X)
    for name, change in arrays.items():
        setattr(matrix, name, change(getattr(matrix, name).copy()))
    return matrix


def put(position, value):
    def change(array):
        array[position] = value
        return array

    return change


MALFORMED = {
    "far column": (changed(indices=put(3, 10**6)), "indices include 1000000, outside of 0 to 5"),
    "next column": (changed(indices=put(3, 6)), "indices include 6, outside of 0 to 5"),
    "negative column": (changed(indices=put(0, -1)), "indices include -1, outside of 0 to 5"),
    "int64 columns": (
        changed(indices=lambda a: put(3, 2**40)(a.astype(np.int64))),
        f"indices include {2**40}, outside",
    ),
    "float columns": (changed(indices=lambda a: a + 0.5), "indices are of type float64"),
    "falling": (changed(indptr=put(3, 10**6)), "its indptr does not rise from 0"),
    "not from 0": (changed(indptr=put(0, 1)), "its indptr does not rise from 0"),
    "negative": (changed(indptr=put(0, -5)), "its indptr does not rise from 0"),
    "past the end": (changed(indptr=put(-1, 10**6)), "its indptr ends at 1000000, and there are"),
    "all at the end": (changed(indptr=put(slice(1, None), 10**6)), "its indptr ends at 1000000"),
    "short": (changed(indptr=lambda a: a[:-1]), "its indptr has 40 entries, not 41"),
    "few values": (changed(data=lambda a: a[:5]), "indices for 5 values"),
    "few columns": (changed(indices=lambda a: a[:5]), "it has 5 indices for"),
    "csc": (changed(sparse.csc_array, indices=put(3, 40)), "CSC .* include 40, outside"),
    "coo": (changed(sparse.coo_matrix, col=put(3, 6)), "COO matrix, but its indices include 6"),
    "bsr": (
        changed(lambda rows: sparse.bsr_array(rows, blocksize=(2, 2)), indices=put(3, 3)),
        "BSR matrix, but its indices include 3, outside of 0 to 2",
    ),
    "lil": (changed(sparse.lil_matrix, rows=put(3, [0, 9])), "LIL matrix, but its"),
    "dia": (
        changed(lambda rows: sparse.dia_array(rows), offsets=lambda a: a[:-1]),
        "DIA matrix, but it has",
    ),
}


def entries():
    objective = {"param_distributions": {"alpha": FloatDistribution(0.1, 1.0)}}
    fitted = PegasosClassifier().fit(X, y)
    probable = StreamingSVRGClassifier().fit(X, y)
    return {
        "validate": lambda rows: tree_cross_validate(PegasosClassifier(), rows, y),
        "adapter": lambda rows: tree_cross_validate(SGDClassifier(), rows, y),
        "many": lambda rows: tree_cross_validate_many([PegasosClassifier()], rows, y),
        "out of fold": lambda rows: tree_cross_val_predict(PegasosClassifier(), rows, y),
        "objective": lambda rows: treecv_objective(PegasosClassifier(), rows, y, **objective),
        "fit": PegasosClassifier().fit,
        "fit numbers": LSQSGDRegressor().fit,
        "partial_fit": AveragedSGDClassifier().partial_fit,
        "partial_fit again": AveragedSGDClassifier().fit(X, y).partial_fit,
        "predict": fitted.predict,
        "decision_function": fitted.decision_function,
        "predict_proba": probable.predict_proba,
        "score": fitted.score,
    }


def call(entry, rows):
    """Call one of the entries; fit and score also need labels."""
    function = entries()[entry]
    return function(rows, y) if "fit" in entry or entry == "score" else function(rows)


@pytest.mark.parametrize("entry", entries())
def test_malformed_csr_is_refused_everywhere(entry):
    for name in ("far column", "falling", "few values"):
        with pytest.raises(ValueError, match=f"X must be a valid CSR.*{MALFORMED[name][1]}"):
            call(entry, MALFORMED[name][0])


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_sparse_rows(name):
    rows, match = MALFORMED[name]
    for entry in ("validate", "fit", "predict"):
        with pytest.raises(ValueError, match=f"^X must be a valid .*{match}.*[.]$"):
            call(entry, rows)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_valid_csr_stays_valid(kind):
    rows = sparse.csr_array(X)
    longer = sparse.csr_array(X)
    longer.data, longer.indices = (np.r_[a, a[:7]] for a in (rows.data, rows.indices))
    longer.indices[-7:] = 100  # behind the last row, where nothing is read
    expected = tree_cross_validate(PegasosClassifier(), rows, y).mean
    for each in (rows, longer):
        each.indices, each.indptr = each.indices.astype(kind), each.indptr.astype(kind)
        assert tree_cross_validate(PegasosClassifier(), each, y).mean == expected
    empty = sparse.csr_array((40, 6))
    assert tree_cross_validate(PegasosClassifier(), empty, y).mean > 0
