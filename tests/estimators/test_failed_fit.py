"""A failed call of fit or partial_fit leaves an estimator as it was."""

from __future__ import annotations

import pickle

from ids import said
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv.engines.treecv.learners import compiled
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
y = (X[:, 0] > 0).astype(int)
BROKEN = np.where(np.arange(120).reshape(40, 3) == 50, np.nan, X)
NAMED = pd.DataFrame(BROKEN, columns=["a", "b", "c"])

ESTIMATORS = [
    PegasosClassifier(random_state=0),
    AveragedSGDRegressor(random_state=0),
    StreamingKMeans(3, random_state=0),
    StreamingGaussianDensity(random_state=0),
]
FAILURES = {
    "NaN": lambda: (BROKEN, y),
    "names": lambda: (NAMED, y),
    "no rows": lambda: (X[:0], y[:0]),
    "targets": lambda: (X, np.array(["a", None] * 20, object)),
}


def state_of(estimator):
    return pickle.dumps(vars(estimator))


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_a_failed_fit_changes_nothing(estimator, failure):
    rows, targets = FAILURES[failure]()
    if failure == "targets" and isinstance(estimator, StreamingKMeans | StreamingGaussianDensity):
        return
    fresh = clone(estimator)
    classes = {"classes": [0, 1]} if is_classifier(estimator) else {}
    for train in (fresh.fit, lambda *data: fresh.partial_fit(*data, **classes)):
        with pytest.raises(ValueError):
            train(rows, targets)
        with pytest.raises(NotFittedError):
            check_is_fitted(fresh)
    fitted = clone(estimator).fit(X, y)
    before = state_of(fitted)
    for train in (fitted.fit, fitted.partial_fit):
        with pytest.raises(ValueError):
            train(rows, targets)
        assert state_of(fitted) == before
    np.testing.assert_equal(
        vars(fresh.partial_fit(X, y, **classes)), vars(clone(estimator).fit(X, y))
    )


def test_a_failed_fit_with_settings_of_theory():
    model = StreamingSVRGClassifier(settings="theory", alpha=0)
    with pytest.raises(ValueError, match="alpha must be greater than 0"):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    with pytest.raises(NotFittedError):
        model.predict(X)
    fitted = StreamingSVRGClassifier().fit(X, y)
    before = fitted.coef_.copy(), fitted.t_
    with pytest.raises(ValueError, match="alpha must be greater than 0"):
        fitted.set_params(settings="theory", alpha=0).fit(X[:, :2], y)
    np.testing.assert_array_equal(fitted.coef_, before[0])
    assert fitted.t_ == before[1] == 40
    assert fitted.n_features_in_ == 3


@pytest.mark.parametrize(
    ("classes", "targets", "match"),
    [
        ([0, 2], y, r"y must hold labels from classes=\[0, 2\], got 1"),
        ([0], y, r"classes must hold at least 2 classes, got \[0\]"),
        (None, y, "classes must be passed on the first call"),
        (7, y, "classes"),
        ([0, 1], np.array([None, 1] * 20), "y must hold a label for each row, got None in row 0"),
        ([0, 1], y / 2, "y must hold class labels: Unknown label type"),
        (["0", "1"], np.array([1, "1"] * 20, object), "y must hold strings, or be an array"),
        (np.array(["2020", "NaT"], "M8[Y]"), y, "classes must not hold NaT"),
        (["0", "1"], y, r"y must hold labels from classes=\['0', '1'\], got 0"),
    ],
)
def test_a_rejected_first_call_forgets_its_classes(classes, targets, match):
    model = PegasosClassifier(random_state=0)
    with pytest.raises((TypeError, ValueError), match=match):
        model.partial_fit(X, targets, classes=classes)
    assert not hasattr(model, "classes_")
    model.partial_fit(X, y, classes=[0, 1])
    expected = PegasosClassifier(random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.coef_, expected.coef_)


def test_an_interrupted_call_changes_nothing(monkeypatch):
    model = PegasosClassifier(random_state=0).fit(X, y)
    before = state_of(model)
    pad_rows, calls = compiled.pad_rows, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return pad_rows(*arguments)

    monkeypatch.setattr(compiled, "pad_rows", interrupted)
    monkeypatch.setattr(compiled, "_ROWS_AT_A_TIME", 20)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y)
    assert len(calls) == 2
    assert state_of(model) == before
