"""Splitters whose folds would leak rows, or make no sense, are refused; the tree refuses more."""

from __future__ import annotations

from itertools import count

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import KFold

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate

N_ROWS = 40
X = np.random.default_rng(0).normal(size=(N_ROWS, 3))
Y = (X[:, 0] > 0).astype(int)


class Splitter:
    """Hands out what a function makes of KFold's train and test rows."""

    def __init__(self, change, n_splits=4):
        self.change, self.n_splits = change, n_splits

    def split(self, X, y=None, groups=None):
        for i, (train, test) in enumerate(KFold(4).split(X)):
            if i < self.n_splits:
                yield self.change(i, train, test)


class Endless:
    """Never stops testing row 0."""

    def split(self, X, y=None, groups=None):
        for _ in count():
            yield np.arange(1, N_ROWS), np.array([0])


def purged(i, train, test):
    """Leave two rows beside the test rows out of training, as for overlapping labels."""
    return np.setdiff1d(train, [test[0] - 1, test[-1] + 1]), test


def second(change):
    """Change the second split only."""
    return lambda i, train, test: change(train, test) if i == 1 else (train, test)


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (Splitter(purged), "Splitter neither trains on nor tests row 10 in split 0"),
        (
            Splitter(second(lambda train, test: (np.append(train, train[0]), test))),
            "Splitter trains on row 0 twice or more in split 1",
        ),
        (
            Splitter(second(lambda train, test: (train, np.append(test, test[0])))),
            "Splitter tests row 10 twice in split 1",
        ),
    ],
)
def test_splits_that_the_tree_cannot_train_are_refused_by_it(cv, message):
    options = {"cv": cv, "method": "treecv"}
    with pytest.raises(ValueError, match=f"but {message}; use method='fit' or") as caught:
        tree_cross_validate(PegasosClassifier(), X, Y, **options)
    assert str(caught.value).startswith("cv must ")


@pytest.mark.parametrize("method", ["auto", "treecv", "standard", "fit", "holdout"])
@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (
            Splitter(second(lambda train, test: (np.append(train, test[0]), test))),
            "Splitter has row 10 in both sets of split 1",
        ),
        (
            Splitter(second(lambda train, test: (train, test - 11))),
            "row numbers from 0 to 39, but Splitter tests row -1 in split 1",
        ),
        (
            Splitter(second(lambda train, test: (train, test + 30))),
            "row numbers from 0 to 39, but Splitter tests row 49 in split 1",
        ),
        (
            Splitter(second(lambda train, test: (train - 1, test))),
            "row numbers from 0 to 39, but Splitter trains on row -1 in split 1",
        ),
        (
            Splitter(second(lambda train, test: (train, test[:0]))),
            "Splitter tests no row in split 1",
        ),
        (
            Splitter(second(lambda train, test: (train, test / 2))),
            "row numbers from 0 to 39, but Splitter tests rows of type float64 in split 1",
        ),
        (
            Splitter(second(lambda train, test: (train[:0], test))),
            "Splitter trains on no row in split 1",
        ),
        (Splitter(purged, 0), "cv must yield at least one split, but Splitter yields none"),
        (Endless(), "fewer splits of 40 rows, got more than 100 from Endless"),
    ],
)
def test_splits_that_do_not_fit_are_refused(cv, message, method, monkeypatch):
    monkeypatch.setattr("optuna_treecv.rows.cv.MOST_SPLITS", 100)
    with pytest.raises(ValueError, match=message) as caught:
        tree_cross_validate(PegasosClassifier(), X, Y, cv=cv, method=method)
    assert str(caught.value).startswith("cv must ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    # Of 5000 rows there may be 5000 splits; each of them takes 2500 * 4 bytes.
    [("MOST_SPLITS", 100, 2501), ("MOST_BYTES", 10**6, 51)],
)
def test_an_endless_splitter_is_left_early(limit, value, expected, monkeypatch):
    monkeypatch.setattr(f"optuna_treecv.rows.cv.{limit}", value)
    asked = []

    class Repeating:
        def split(self, X, y=None, groups=None):
            for i in count():
                asked.append(i)
                yield from KFold(2).split(X)

    X, y = np.ones((5000, 1)), np.arange(5000) % 2
    with pytest.raises(ValueError, match="^cv must yield fewer splits of .* from Rep"):
        tree_cross_validate(PegasosClassifier(), X, y, cv=Repeating())
    assert len(asked) == expected


def test_masks_of_rows_are_taken():
    def masks(i, train, test):
        return np.isin(np.arange(N_ROWS), train), np.isin(np.arange(N_ROWS), test)

    by_mask = tree_cross_validate(PegasosClassifier(), X, Y, cv=Splitter(masks))
    by_number = tree_cross_validate(PegasosClassifier(), X, Y, cv=KFold(4))
    assert by_mask.test_score.tolist() == by_number.test_score.tolist()


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
@pytest.mark.parametrize("learner", [PegasosClassifier(), AveragedSGDRegressor()])
def test_a_row_without_a_group_is_refused(learner, missing):
    groups = pd.Series([0, 1, 2, 3] * 10, dtype=object)
    groups[7] = missing
    X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    with pytest.raises(ValueError, match="groups must have an entry for each row, .* in row 7"):
        tree_cross_validate(learner, X, y, cv=3, groups=groups)
