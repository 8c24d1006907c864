"""One fold before and after some of its rows and labels have changed."""

from __future__ import annotations

from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
from sklearn import impute
from sklearn import preprocessing as pre
from sklearn.model_selection import KFold

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import error_of
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
from differential_cases.folds import piped
from differential_cases.replays import learner
import optuna_treecv as ot


def centred(X: Any) -> Any:
    """Return rows minus their mean: what becomes of a row depends on the others."""
    return X - np.asarray(X).mean(axis=0)


def mixing_steps(rng: draws.Rng) -> list[Any]:
    """Return at most one step, which learns from many rows."""
    binned = pre.KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf")
    made = (pre.QuantileTransformer(n_quantiles=9), pre.StandardScaler(), pre.MinMaxScaler())
    made += (impute.KNNImputer(), impute.SimpleImputer(strategy="median"), binned)
    made += (pre.TargetEncoder(cv=KFold(2)), pre.OneHotEncoder(handle_unknown="ignore"))
    return [pick(rng, made)] if chance(rng, 0.6) else []


def says_of(rows: np.ndarray, model: Any, X: Any, y: Any) -> float:
    """Score a model by what it says of given rows, whatever it is tested on."""
    said = np.ravel(model.predict(rows))
    if said.dtype.kind != "f":
        said = np.array([crc32(repr(one).encode()) % 1009 for one in said.tolist()])
    return float(np.sum(said * np.arange(1, len(said) + 1)))


def leaks(case: Case) -> None:
    """Change some rows and labels of a fold; what its model says of other rows must stay.

    These are the fold's other rows, or rows that no model has seen.
    """
    rng = case.rng
    given = draws.problem(rng, ("normal", "sparse", "counts", "levels"))
    make = pick(rng, (learner, draws.fitted, draws.summed))
    estimator, steps = make(rng, given), mixing_steps(rng)
    options: dict[str, Any] = {"shuffle": chance(rng, 0.5), "n_jobs": pick(rng, (1, 1, 1, 2))}
    is_forest = given.kind == "levels" and given.codes is not None and chance(rng, 0.5)
    if is_forest:
        estimator, steps = ot.HistTreeClassifier(random_state=0), []
    elif make is learner and not steps:
        options["method"] = pick(rng, ("auto", "treecv", "standard"))
        options["order"] = pick(rng, ("fixed", "random"))
    elif make is draws.summed and chance(rng, 0.7):
        steps = [pre.StandardScaler()] * int(rng.integers(0, 2))
    elif make is not learner:
        options["method"] = pick(rng, ("auto", "fit"))
    is_probed = chance(rng, 0.4) and not is_forest
    if is_probed:
        steps += [pre.FunctionTransformer(centred)] * int(rng.integers(0, 2))
        others = rng.normal(size=given.X.shape).round() * np.abs(given.X).max()
        options["scoring"] = partial(says_of, others)
    estimator = piped(steps, estimator)
    ids = rng.permutation(np.arange(len(given.X)) % int(rng.integers(2, 6)))
    held = rng.permutation(np.flatnonzero(ids == 0))
    kept, moved = np.split(held, [len(held) // 2])
    X, y = given.X.copy(), np.array(given.y)
    X[moved] = X[rng.permutation(moved)]  # the edges of a forest's bins come from all rows
    if not is_forest:
        X[moved] = pick(rng, (X[moved], X[moved] * 1000 + 7, 0.0))
    y[moved] = y[rng.integers(0, len(y), len(moved))]
    options |= {"cv": ids, "row_losses": not is_probed}
    case.note(estimator=estimator, X=given.X, y=given.y, moved=moved, others=(X, y), **options)
    before = outcome(
        lambda: ot.tree_cross_validate(estimator, given.X, np.asarray(given.y), **options)
    )
    after = outcome(lambda: ot.tree_cross_validate(estimator, X, y, **options))
    if isinstance(before, Exception) or isinstance(after, Exception):
        case.compare("errors", error_of(before), error_of(after))
        return
    case.note(chosen=before.method)
    case.compare("methods", before.method, after.method)
    # Categories of test rows alone change the order of sums (user_guide/your_table).
    is_rounded = before.method == "exact" or (before.method == "treecv" and steps)
    if is_probed:
        rtol = 1e-9 if is_rounded else 0.0
        case.compare("of other rows", before.test_score[0], after.test_score[0], rtol)
    else:
        rtol = 1e-6 if is_rounded else 0.0  # losses of rows are float32
        case.compare("losses", before.row_losses[kept], after.row_losses[kept], rtol)
