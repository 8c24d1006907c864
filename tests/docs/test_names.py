"""What names of studies, trials, folds and models hold: the table in the documentation."""

from __future__ import annotations

from pathlib import Path
import sys

import numpy as np
import pandas
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.metrics import f1_score
from sklearn.metrics import fbeta_score
from sklearn.metrics import make_scorer
from sklearn.metrics import recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.study.space import axis_of

PAGE = Path(__file__).parents[2] / "docs" / "how_it_works" / "names.rst"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4))
Y = np.where(X[:, 0] + RNG.normal(size=300) > 0, "yes", "no")
FRAME = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
WEIGHTS = RNG.uniform(1, 2, size=300)
FOLDS = np.arange(300) % 3


class Threshold(ClassifierMixin, BaseEstimator):
    """Its class attribute, its method and a function that this calls decide what it predicts."""

    at = 0.0

    def __init__(self, shift=0):
        self.shift = shift

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def partial_fit(self, X, y, classes=None):
        self.classes_ = np.unique(y) if classes is None else classes
        return self

    def predict(self, X):
        return self.classes_[(column_of(X) > self.at).astype(int)]


def column_of(X):
    return np.asarray(X)[:, 0]


def other_column_of(X):
    return np.asarray(X)[:, 1]


class Other(Threshold):
    """Another class with the same code."""


class First(Threshold):
    def predict(self, X):
        return np.full(len(X), self.classes_[0])


class Share:
    """A scorer with a state."""

    def __init__(self, label):
        self.label = label

    def __call__(self, estimator, X, y):
        return float(np.mean(estimator.predict(X) == self.label))


LABEL = "yes"


def share_of_label(estimator, X, y):
    return float(np.mean(estimator.predict(X) == LABEL))


def scorer(factor):
    """Return functions of one name that differ in their code alone."""
    if factor == 1:
        return lambda estimator, X, y: float(np.mean(estimator.predict(X) == y))
    return lambda estimator, X, y: float(np.mean(estimator.predict(X) != y))


LEARNERS = {
    "Study": PegasosClassifier(),
    "Trial": PegasosClassifier(),
    "Fold": DecisionTreeClassifier(max_depth=2, random_state=0),
    "Model": PegasosClassifier(),
}


def evaluate(column, cache=None, estimator=None, X=X, y=Y, output="default", **options):
    """Return an objective, and what it finds; ``estimator`` takes the place of the column's."""
    estimator = LEARNERS[column] if estimator is None else estimator
    name = next(iter(estimator.get_params()))
    value = estimator.get_params()[name]
    options = {"cv": 3, "method": "fit" if column == "Fold" else "auto"} | options
    with config_context(transform_output=output):
        objective = treecv_objective(
            estimator, X, y, param_grid={name: [value]}, cache=cache, **options
        )
        return objective, objective.evaluate({name: value})


def is_other(column, before, after, change):
    """Return whether a change gives another name; what has the same name is trained once."""
    if column == "Trial":  # of a search over the estimators
        either = [options.get("estimator", LEARNERS[column]) for options in (before, after)]
        return len(axis_of(either).distribution.choices) > 1
    cache = ModelCache()
    name = evaluate(column, cache, **before)[0].fingerprint()
    again, found = evaluate(column, cache, **before)
    assert again.fingerprint() == name
    assert found.n_updates == 0 or not is_kept(before)
    if change is not None:
        change()
    objective, found = evaluate(column, cache, **after)
    return objective.fingerprint() != name if column == "Study" else found.n_updates > 0


def is_kept(options):
    """Return whether the scores of fitted folds are kept: those of named scorers are."""
    scoring = options.get("scoring", "error")
    return isinstance(scoring, str | list)


def with_entry(row):
    X_changed = X.copy()
    X_changed[row, 1] += 1e-9
    return X_changed


def by_scoring(before, after, **options):
    return {"scoring": before}, {"scoring": after, **options}


def by_estimator(before, after):
    return {"estimator": before}, {"estimator": after}


def by_class(*attribute):
    """Return the same estimator before and after an attribute of what it is made of changes."""
    own = {"estimator": Threshold(), "scoring": "accuracy"}
    return own, own, attribute


MODULE = sys.modules[__name__]
FRAMES = {"X": FRAME}
SWAPPED = ["a", "c", "b", "d"]
IS_YES = {"pos_label": "yes"}
SCORES = ["accuracy", "f1_macro"]

#: By the words of the table: what is given before and after, and what is set between the two.
CHANGES = {
    "a single entry of X": ({}, {"X": with_entry(77)}),
    "the type of X": ({}, {"X": X.astype(np.float32)}),
    "the names of columns": (FRAMES, {"X": FRAME.set_axis(SWAPPED, axis=1)}),
    "the order of columns": (FRAMES, {"X": FRAME[SWAPPED]}),
    "the index of a data frame": (FRAMES, {"X": FRAME.set_axis(np.arange(300) + 1.0)}),
    "a data frame in place of an array": ({}, FRAMES),
    "the layout of X in memory": ({}, {"X": np.asfortranarray(X)}),
    "a label": ({}, {"y": np.where(np.arange(300) == 77, np.where(Y == "no", "yes", "no"), Y)}),
    "a list of labels in place of an array": ({}, {"y": Y.tolist()}),
    "sample_weight": ({"sample_weight": WEIGHTS}, {"sample_weight": WEIGHTS[::-1]}),
    "score_weight": ({"score_weight": WEIGHTS}, {"score_weight": WEIGHTS[::-1]}),
    "params of fit": (
        {"estimator": LEARNERS["Fold"], "params": {"check_input": True}},
        {"estimator": LEARNERS["Fold"], "params": {"check_input": False}},
    ),
    "the number of folds": ({}, {"cv": 4}),
    "the rows of a fold": ({"cv": FOLDS}, {"cv": np.where(np.arange(300) < 2, 2, FOLDS)}),
    "the order of training": ({}, {"order": "random"}),
    "n_epochs": ({}, {"n_epochs": 2}),
    "the name of a scorer": by_scoring("f1_macro", "recall_macro"),
    "the metric of a made scorer": by_scoring(
        make_scorer(f1_score, **IS_YES), make_scorer(recall_score, **IS_YES)
    ),
    "an argument of a made scorer": by_scoring(
        make_scorer(fbeta_score, beta=0.1, **IS_YES), make_scorer(fbeta_score, beta=10, **IS_YES)
    ),
    "the code of a scorer": by_scoring(scorer(1), scorer(2)),
    "what a scorer refers to": (
        *by_scoring(share_of_label, share_of_label),
        (MODULE, "LABEL", "no"),
    ),
    "the state of a scorer": by_scoring(Share("yes"), Share("no")),
    "the score that is optimised": by_scoring(SCORES, SCORES, optimize="f1_macro"),
    "a parameter": by_estimator(Threshold(1), Threshold(2)),
    "the type of a parameter": by_estimator(Threshold(1), Threshold(1.0)),
    "a tuple in place of a list": by_estimator(Threshold((1,)), Threshold([1])),
    "the class": by_estimator(Threshold(), Other()),
    "an attribute of the class": by_class(Threshold, "at", 0.9),
    "a method of the class": by_class(Threshold, "predict", First.predict),
    "a function that a method refers to": by_class(MODULE, "column_of", other_column_of),
    "the form of transformed rows": (
        {"estimator": make_pipeline(StandardScaler(), DecisionTreeClassifier())},
        {
            "estimator": make_pipeline(StandardScaler(), DecisionTreeClassifier()),
            "output": "pandas",
        },
    ),
    "the method": ({"method": "treecv"}, {"method": "fit"}),
}


def rows_of_the_table():
    """Return the cells of the table in the documentation, by the words in the first column."""
    table = PAGE.read_text().partition(".. csv-table::")[2].partition("\nThe versions")[0]
    rows = [line.strip().split(",") for line in table.partition("\n\n")[2].splitlines() if line]
    found = {first: cells for first, *cells in rows}
    columns = found.pop("What changes")
    return {
        (what, column): cell
        for what, cells in found.items()
        for column, cell in zip(columns, cells, strict=True)
    }


TABLE = rows_of_the_table()


def test_each_entry_of_the_table_is_tested():
    assert {what for what, _ in TABLE} == CHANGES.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("what", "column"), [key for key, cell in TABLE.items() if cell != "--"])
def test_a_change_gives_another_name_where_the_table_says_so(what, column, monkeypatch):
    before, after, *attribute = CHANGES[what]
    change = (lambda: monkeypatch.setattr(*attribute[0])) if attribute else None
    assert TABLE[what, column] == ("other" if is_other(column, before, after, change) else "same")
