"""What a result prints by a name is its attribute of that name."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from studies import searched

from optuna_treecv import CVResult
from optuna_treecv import results
from optuna_treecv import select
from optuna_treecv import select_features
from optuna_treecv import tree_cross_validate

X, Y = (part[:200] for part in load_breast_cancer(return_X_y=True))


def printed(shown):
    """Return the values behind the names in a repr such as ``Name(a=1, b=[2, 3])``, as text."""
    depth, quote, part, parts = 0, "", "", []
    for sign in shown[shown.index("(") + 1 : -1]:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        depth += 0 if quote else (sign in "([{<") - (sign in ")]}>")
        if sign == "," and not quote and depth == 0:
            parts, part = [*parts, part], ""
        else:
            part += sign
    return dict(one.strip().split("=", 1) for one in [*parts, part])


@pytest.fixture(scope="module")
def shown():
    """Return objects of all public types of results."""
    grid = {"n_neighbors": list(range(1, 12))}
    objective, study = searched(KNeighborsClassifier(), (X, Y), grid, cv=5)
    scoring = ["error", "roc_auc"]
    options = {"row_losses": True, "cv": 5, "method": "fit"}
    several, other = (
        tree_cross_validate(KNeighborsClassifier(n), X, Y, scoring=scoring, **options)
        for n in (1, 5)
    )
    forest = RandomForestClassifier(5, oob_score=True, bootstrap=True, random_state=0)
    with pytest.warns(UserWarning):
        grown = tree_cross_validate(forest, X, Y, cv=3)
    forest = RandomForestClassifier(8, random_state=0)
    best = tree_cross_validate(forest, X, Y, cv=3, n_estimators="best")
    choices = [
        select(study, objective),
        select(study, objective, "one_se", {"n_neighbors": "larger"}),
    ]
    choices.append(select(study, pickle.loads(pickle.dumps(objective))))  # knows no scores
    nested = [objective.nested(study), objective.nested(study, resample=True)]
    return [
        *(several, other, grown, best, several.scores["error"], several.interval()),
        *(several.compare(other), best.curve, objective.advise(study)),
        *(objective.honest(study), objective.threshold(study), *nested),
        *(*choices, choices[0].candidates[1]),
        select_features(Ridge(), X, 1.0 * Y, cv=5),
    ]


@pytest.mark.slow
def test_printed_names_are_attributes(shown):
    types = {CVResult, *map(results.__dict__.get, results.__all__)}
    models = {"ConformalClassifier", "ConformalRegressor", "FoldAverage", "FoldModels"}
    assert {type(one) for one in shown} == {one for one in types if one.__name__ not in models}
    for one in shown:
        for name, text in printed(repr(one)).items():
            value = getattr(one, name)
            if isinstance(value, float) and np.isfinite(value):
                assert re.fullmatch(r"-?[0-9.e+-]+", text), (type(one), name)
                assert float(text) == pytest.approx(value, rel=5e-3)
            elif not text.startswith("<"):  # a summary of a long value
                assert text == repr(value), (type(one), name)


def test_ends_of_intervals_are_attributes(shown):
    for one in shown:
        if isinstance(interval := getattr(one, "interval", None), results.Interval):
            assert (one.low, one.high) == (interval.low, interval.high)
            assert type(one.low) is type(one.high) is float
