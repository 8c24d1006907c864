"""Rows that would be misread or point outside of memory are refused before they are used."""

from __future__ import annotations

from ids import said
import numpy as np
from optuna.distributions import FloatDistribution
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity

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
    "falling": (changed(indptr=put(3, 10**6)), "its indptr does not increase from 0"),
    "not from 0": (changed(indptr=put(0, 1)), "its indptr does not increase from 0"),
    "negative": (changed(indptr=put(0, -5)), "its indptr does not increase from 0"),
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


def with_masks(array):
    return np.ma.array(array, mask=array > 0)


DATES = pd.date_range("2020-01-01", periods=40)


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries())
@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (
            with_masks(X),
            "^X must not be a masked array, because its mask would be ignored; .*[.]$",
        ),
        (X.astype("M8[s]"), "^X must hold numbers, not dates .* got type datetime64.s..$"),
        (X.astype("m8[s]"), "^X must hold numbers, not dates .* got type timedelta64.s..$"),
        (X * 1j, "^Complex data not supported: X must hold real numbers, got type complex128.$"),
    ],
    ids=["masked", "dates", "durations", "complex"],
)
def test_rows_that_would_be_misread(entry, rows, match):
    with pytest.raises(ValueError, match=match):
        call(entry, rows)


@pytest.mark.parametrize("entry", ["validate", "objective", "fit", "partial_fit", "fit numbers"])
@pytest.mark.parametrize(
    "dates", [DATES, DATES.tz_localize("UTC"), DATES - DATES[0]], ids=["naive", "UTC", "durations"]
)
def test_data_frames_with_dates(entry, dates):
    for frame in (pd.DataFrame({"at": dates}), pd.DataFrame({"x": X[:, 0], "at": dates})):
        match = "X must hold numbers, not dates or durations, got type .* in column 'at'.$"
        with pytest.raises(ValueError, match=match):
            call(entry, frame)


def test_a_pipeline_may_turn_dates_into_numbers():
    def days(frame):
        return (frame - frame.iloc[0]) / pd.Timedelta("1D")

    model = make_pipeline(FunctionTransformer(days), SGDClassifier(random_state=0))
    assert tree_cross_validate(model, pd.DataFrame({"at": DATES}), y).mean <= 1


@pytest.mark.parametrize(
    ("estimator", "targets", "match"),
    [
        (PegasosClassifier(), ["a", None] * 20, "y must hold a label for each row, got None"),
        (PegasosClassifier(), with_masks(y), "^y must not be a masked array"),
        (PegasosClassifier(), y * 1j, "y must hold real numbers, got type complex128"),
        (PegasosClassifier(), y + np.linspace(0, 0.5, 40), "y must hold class labels: Unknown"),
        (
            PegasosClassifier(),
            np.array(["2020-01-01", "NaT"] * 20, "M8[D]"),
            "^y must hold a label for each row, got NaT in row 1.$",
        ),
        (PegasosClassifier(), y[:-1], "X and y.*inconsistent numbers of samples"),
        (LSQSGDRegressor(), [1.0, None] * 20, "Input y contains NaN"),
        (LSQSGDRegressor(), np.array(["1", "2"] * 20), "y must hold numbers for a regressor, got"),
        (LSQSGDRegressor(), np.array(DATES), "y must hold numbers for a regressor, got type date"),
        (LSQSGDRegressor(), with_masks(X[:, 0]), "^y must not be a masked array"),
        (LSQSGDRegressor(), np.full(40, 1e39), "Input y contains infinity or a value too large"),
    ],
    ids=[
        *("None", "masked", "complex", "continuous", "NaT", "short"),
        *("no number", "strings", "dates", "masked numbers", "large"),
    ],
)
def test_fit_refuses_the_targets_that_cross_validation_refuses(estimator, targets, match):
    rows = X.astype(np.float32)
    if isinstance(targets, list):
        targets = np.array(targets, object)
    classes = {"classes": [0, 1]} if isinstance(estimator, PegasosClassifier) else {}
    for call in (
        lambda: tree_cross_validate(estimator, rows, targets),
        lambda: estimator.fit(rows, targets),
        lambda: estimator.partial_fit(rows, targets, **classes),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize(
    "estimator",
    [
        AveragedSGDRegressor(step_size=0.01),
        AveragedSGDClassifier(step_size=0.01),
        StreamingGaussianDensity(),
    ],
    ids=said,
)
def test_divergence_warns(estimator):
    has_steps = not isinstance(estimator, StreamingGaussianDensity)
    advice = "a smaller step size, or scaled features," if has_steps else "scaled features"
    advice = f"diverges: its model is not finite; {advice} may help"
    classes = {"classes": [0, 1]} if isinstance(estimator, AveragedSGDClassifier) else {}
    with pytest.warns(ConvergenceWarning, match=advice) as caught:
        estimator.fit(X * 1e300, y)
        clone(estimator).partial_fit(X * 1e300, y, **classes)
    assert [warning.filename for warning in caught] == [__file__, __file__]
