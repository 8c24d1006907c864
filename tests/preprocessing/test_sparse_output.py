"""Steps done once return sparse rows only where the steps of each fold would."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import make_union
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import tree_cross_validate

N_ROWS = 90


def table(n_kinds, in_one_fold):
    """Return numbers and categories, the last of which lies in the first fold alone, or not."""
    rng = np.random.default_rng(0)
    kinds = np.arange(N_ROWS) % (n_kinds - 1)
    kinds[[0, 1, 2] if in_one_fold else [0, 40, 80]] = n_kinds - 1
    size, width = rng.normal(size=(2, N_ROWS)) + 3
    rows = pd.DataFrame({"kind": [f"k{kind}" for kind in kinds], "size": size, "width": width})
    return rows, 10 + size + kinds % 3


def prepare(threshold=0.3, numbers="passthrough"):
    encode = OneHotEncoder(handle_unknown="ignore")
    branches = [("kinds", encode, ["kind"]), ("numbers", numbers, ["size", "width"])]
    return ColumnTransformer(branches, sparse_threshold=threshold)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", ["passthrough", MaxAbsScaler()], ids=["once", "running"])
def test_a_density_that_crosses_the_threshold_is_fitted_by_fold(numbers):
    """Three numbers in 11 columns are fewer than 30 %, and in 10 columns they are not."""
    model = make_pipeline(prepare(numbers=numbers), SGDRegressor(max_iter=1, random_state=0))
    X, y = table(9, in_one_fold=True)
    result = tree_cross_validate(model, X, y, cv=KFold(3))
    assert result.method == "fit"
    assert result.reason == (
        "a ColumnTransformer returns sparse rows to some training sets and dense rows to others "
        "(sparse_threshold=0.3)"
    )
    expected = cross_validate(model, X, y, cv=KFold(3), scoring="neg_mean_squared_error")
    np.testing.assert_allclose(result.test_score, -expected["test_score"])
    with pytest.raises(ValueError, match="method must be 'fit' or 'auto'.*sparse_threshold"):
        tree_cross_validate(model, X, y, cv=KFold(3), method="standard")


@pytest.mark.parametrize(
    ("rows", "threshold", "learner"),
    [
        (table(9, in_one_fold=False), 0.3, SGDRegressor(max_iter=1, random_state=0)),
        (table(9, in_one_fold=True), 0.2, SGDRegressor(max_iter=1, random_state=0)),
        (table(9, in_one_fold=True), 0.0, SGDRegressor(max_iter=1, random_state=0)),
        (table(9, in_one_fold=True), 0.3, AveragedSGDRegressor()),
    ],
    ids=["all have it", "dense", "never sparse", "compiled"],
)
def test_other_steps_are_done_once(rows, threshold, learner):
    X, y = rows
    model = make_pipeline(prepare(threshold), learner)
    assert tree_cross_validate(model, X, y, cv=KFold(3)).method == "treecv"


CUTS = {
    "2": KFold(2),
    "7": KFold(7, shuffle=True, random_state=0),
    "n": LeaveOneOut(),
    "groups": PredefinedSplit(np.arange(N_ROWS) // 11),
    "some untested": PredefinedSplit(np.arange(N_ROWS) // 9 % 6 - 1),
    "time": TimeSeriesSplit(4),
}


def random_steps(rng):
    """Return nested branches, of which some find their columns, with thresholds near to both."""
    encode = OneHotEncoder(handle_unknown="ignore")
    given = OneHotEncoder(categories=[[f"k{i}" for i in range(12)]], handle_unknown="ignore")
    inner = ColumnTransformer(
        [("kinds", encode, ["kind"]), ("numbers", Normalizer(copy=False), ["size", "width"])],
        sparse_threshold=rng.uniform(0.1, 0.5),
    )
    union = make_union(PolynomialFeatures(2), "passthrough")
    choices = [
        ("inner", inner, ["kind", "size", "width"]),
        ("kinds", encode, ["kind"]),
        ("other", encode, ["other", "kind"]),
        ("given", given, ["kind"]),
        ("words", CountVectorizer(), "text"),
        ("numbers", "passthrough", ["size"]),
        ("union", make_pipeline(union, MaxAbsScaler()), ["size", "width"]),
        ("none", MaxAbsScaler(), []),
        ("dropped", "drop", ["width"]),
    ]
    chosen = rng.choice(len(choices), rng.integers(2, 6), replace=False)
    branches = [("size", "passthrough", ["size"]), *(choices[i] for i in sorted(chosen))]
    return ColumnTransformer(branches, sparse_threshold=rng.uniform(0.1, 0.6))


def random_table(rng):
    """Return rows whose categories and words come in runs, so that folds lack some."""
    runs = np.sort(rng.integers(0, 9, N_ROWS))
    return pd.DataFrame(
        {
            "kind": [f"k{i}" for i in np.where(rng.random(N_ROWS) < 0.6, runs, 0)],
            "other": rng.integers(0, 3, N_ROWS).astype(str),
            "text": [" ".join(rng.choice(["red", "sun", f"w{i}x"], 3)) for i in runs],
            "size": rng.normal(size=N_ROWS),
            "width": rng.normal(size=N_ROWS),
        }
    )


def forms_of(steps, X):
    """Return the decisions of all ColumnTransformers that are fitted to some rows."""
    fitted = clone(steps).fit(X)
    parts = [part for _, part, _ in fitted.transformers_]
    return (fitted.sparse_output_, *(getattr(part, "sparse_output_", None) for part in parts))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),  # leave-one-out has ninety training sets
    [(name, seed) for name in CUTS for seed in range(1 if name == "n" else 2)],
)
def test_the_form_is_that_of_the_steps_fitted_on_each_training_set(name, seed):
    cv, rng = CUTS[name], np.random.default_rng(seed)
    steps, X = random_steps(rng), random_table(rng)
    forms = {forms_of(steps, X)} | {forms_of(steps, X.iloc[train]) for train, _ in cv.split(X)}
    model = make_pipeline(steps, SGDRegressor(random_state=0, max_iter=1, tol=None))
    result = tree_cross_validate(model, X, rng.normal(size=N_ROWS), cv=cv)
    assert len(forms) == 1 or "sparse_threshold" in result.reason
