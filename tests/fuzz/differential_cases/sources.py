"""Rows in Parquet files, and wide sparse texts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn import linear_model as lm
from sklearn import model_selection as ms
from sklearn import preprocessing as pre
from sklearn.compose import make_column_selector
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from differential_cases.case import Case
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
from differential_cases.folds import converged
import optuna_treecv as ot


def parquet(case: Case) -> None:
    """Evaluate a Parquet file with times and categories, and compare with the frame it holds."""
    rng = case.rng
    n = int(rng.integers(60, 200))
    frame = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    frame["kind"] = pd.Categorical(rng.choice(["u", "v", "w"], n), ["w", "u", "v", "never"])
    frame["word"] = rng.choice(["red", "green", "blue"], n)
    frame["count"] = pd.array(rng.integers(0, 5, n), dtype=pick(rng, ("int8", "Int64")))
    frame["flag"] = rng.random(n) < 0.5
    unit = pick(rng, ("s", "ms", "us", "ns"))
    frame["time"] = pd.date_range("2020-01-01", periods=n, freq="h").as_unit(unit)
    if chance(rng, 0.3):
        frame.loc[rng.random(n) < 0.1, pick(rng, ("a", "word", "time"))] = None
    target = (frame["a"].fillna(0) + frame["flag"] + rng.normal(size=n)).to_numpy()
    is_class = chance(rng, 0.5)
    frame["target"] = np.where(target > 0.5, "yes", "no") if is_class else target
    columns = [("numbers", ["a", "b"])]
    chosen = [("words", [one]) for one in ("kind", "word") if chance(rng, 0.6)]
    of_words = pre.OneHotEncoder(handle_unknown="ignore")
    scaler = make_pipeline(SimpleImputer(), pre.StandardScaler())
    parts = [(scaler, columns[0][1]), *((of_words, names) for _, names in chosen)]
    if chance(rng, 0.3):
        parts.append((pre.FunctionTransformer(hours), ["time"]))
    last = lm.LogisticRegression() if is_class else lm.Ridge()
    if chance(rng, 0.3) and is_class:
        last = DecisionTreeClassifier(max_depth=3, random_state=0)
    estimator = make_pipeline(make_column_transformer(*parts, remainder="drop"), last)
    if chance(rng, 0.15):  # all columns of numbers, chosen by their types
        numbers = make_column_selector(dtype_include="number")
        estimator = make_pipeline(make_column_transformer((scaler, numbers)), last)
    cv = pick(rng, (ms.KFold(3), ms.TimeSeriesSplit(3)))
    case.note(estimator=estimator, frame=frame.dtypes.to_dict(), cv=cv)
    options = {"cv": cv, "shuffle": False}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        frame.to_parquet(path, row_group_size=int(rng.integers(20, 100)))
        ours = outcome(
            lambda: ot.tree_cross_validate(
                estimator, path if chance(rng, 0.5) else str(path), "target", **options
            )
        )
        read = pd.read_parquet(path)
    X, y = read.drop(columns="target"), read["target"]
    chosen_method = getattr(ours, "method", None)
    other = estimator
    if chosen_method in ("newton", "exact"):
        other = make_pipeline(estimator[0], converged(estimator[-1]))
    scoring = "neg_log_loss" if is_class else "neg_mean_squared_error"
    theirs = outcome(
        lambda: ms.cross_validate(other, X, y, cv=cv, scoring=scoring, error_score="raise")[
            "test_score"
        ]
    )
    case.note(chosen=chosen_method)
    mine = ours
    if not isinstance(ours, Exception):
        mine = outcome(
            lambda: ot.tree_cross_validate(estimator, X, y, scoring=scoring, **options).test_score
        )
        # What a file gives by default is what its frame gives.
        by_default = outcome(lambda: ot.tree_cross_validate(estimator, X, y, **options).test_score)
        case.compare("file", ours.test_score, by_default, 1e-9)
    case.compare("scores", mine, theirs, 1e-7)


def hours(X: Any) -> Any:
    """Return times as hours since 2020."""
    return (X - pd.Timestamp("2020-01-01")) / pd.Timedelta("1h")


def texts(case: Case) -> None:
    """Evaluate wide sparse rows, as of texts, and compare with fits that have converged."""
    rng = case.rng
    n, d = int(rng.integers(2600, 4000)), int(rng.integers(1501, 4000))
    n_words = rng.poisson(12, n) + 1
    words = (d * rng.random(n_words.sum()) ** 3).astype(int)
    X = sparse.csr_matrix(
        (np.ones(len(words)), words, np.concatenate([[0], np.cumsum(n_words)])), (n, d)
    )
    X.sum_duplicates()
    steps: list[Any] = [pre.Normalizer()] if chance(rng, 0.5) else []
    if chance(rng, 0.3):
        steps.append(pre.MaxAbsScaler())
    signal = X @ rng.normal(size=d) / 2 + rng.normal(size=n)
    n_classes = int(pick(rng, (2, 2, 3)))
    y = np.searchsorted(np.quantile(signal, np.arange(1, n_classes) / n_classes), signal)
    weight = pick(rng, (None, None, "balanced"))
    Cs = sorted(float(10 ** rng.uniform(-2, 1.5)) for _ in range(int(rng.integers(1, 3))))
    last = lm.LogisticRegression(fit_intercept=chance(rng, 0.8), class_weight=weight)
    estimators = [
        make_pipeline(*steps, last.__class__(**last.get_params() | {"C": C})) for C in Cs
    ]
    case.note(estimator=estimators[0], X=X, y=y, Cs=Cs)
    options = {"cv": ms.KFold(3), "scoring": ["neg_log_loss", "accuracy"]}
    ours = outcome(lambda: ot.tree_cross_validate_many(estimators, X, y, **options))
    if isinstance(ours, Exception):
        case.compare("scores", ours, 0)
        return
    for estimator, found in zip(estimators, ours, strict=True):
        case.note(method=found.method)
        tight = lm.LogisticRegression(
            **estimator[-1].get_params() | {"tol": 1e-9, "max_iter": 100_000, "solver": "lbfgs"}
        )
        other = estimator if found.method == "fit" else make_pipeline(*steps, tight)
        right = ms.cross_validate(other, X, y, error_score="raise", **options)
        losses = found.scores["neg_log_loss"].test_score
        case.compare("neg_log_loss", losses, right["test_neg_log_loss"], 2e-6)
