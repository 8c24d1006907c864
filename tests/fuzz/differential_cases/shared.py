"""Calls that share a cache or a store against the same calls with nothing shared."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
import tempfile
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from sklearn import linear_model as lm
from sklearn import model_selection as ms
from sklearn import preprocessing as pre
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
from differential_cases.folds import steps_of
import optuna_treecv as ot


class Threshold(lm.LogisticRegression):
    """A class of which an attribute is changed between calls."""

    at = 0.5

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[(self.predict_proba(X)[:, 1] > self.at).astype(int)]


def alike(rng: draws.Rng, is_class: bool) -> list[Any]:
    """Return estimators that differ in little, such as the type of a value."""

    def after(step: Any) -> Any:
        last = DecisionTreeClassifier(max_depth=3, random_state=0) if is_class else lm.Ridge()
        return make_pipeline(step, last)

    def grown(**given: Any) -> Any:
        return DecisionTreeClassifier(random_state=0, **given)

    f4, true, alpha = np.float32, np.True_, 10 ** rng.uniform(-4, 0)
    near = alpha * (1 + 10.0 ** -rng.uniform(0, 9, 4))  # models are valid in intervals of alpha
    made = [
        [after(pre.RobustScaler(quantile_range=q)) for q in ((25, 75), [25, 75], (25.0, 75.0))],
        [after(pre.MinMaxScaler(feature_range=r)) for r in ((0, 1), (0, 1.0), (np.int64(0), 1))],
        [after(pre.PolynomialFeatures(degree=d)) for d in (2, (2, 2), (1, 2), (0, 2))],
        [after(pre.FunctionTransformer(f)) for f in (np.tanh, np.sinh, None)],
        [after(pre.StandardScaler(with_mean=m)) for m in (True, 1, False, true)],
    ]
    if is_class:
        weights = (None, "balanced", {0: 1, 1: 2}, {0: 2, 1: 1}, {False: 1, True: 2})
        made += [
            [grown(max_features=m) for m in (1, 1.0, 0.5, f4(1), None, "sqrt")],
            [grown(min_samples_leaf=m) for m in (1, 0.3, 2, np.int64(2))],
            [grown(class_weight=w) for w in weights],
            [ot.PegasosClassifier(alpha=a) for a in (1, 1.0, true, f4(0.1), 0.1)],
            [ot.PegasosClassifier(alpha=a, average=True) for a in near],
            [ot.PegasosClassifier(alpha=a, project=True) for a in near],
            [ot.AveragedSGDClassifier("log_loss", alpha=a) for a in near],
            [ot.StreamingSVRGClassifier(alpha=a, random_state=0) for a in near],
            [lm.SGDClassifier(average=a, random_state=0) for a in (1, True, 2, False)],
            [ot.AveragedSGDClassifier(class_weight=w) for w in weights],
            [ot.HistTreeClassifier(max_depth=m, random_state=0) for m in (1, 3, None, 2)],
            [Threshold(), Threshold(C=0.1)],
        ]
    else:
        made += [
            [lm.Ridge(alpha=a) for a in (1, 1.0, True, f4(0.1), 0.1)],
            [lm.Ridge(fit_intercept=a) for a in (1, True, 0, np.False_)],
            [lm.SGDRegressor(eta0=e, random_state=0) for e in (0.01, f4(0.01), 0.02)],
            [ot.AveragedSGDRegressor(alpha=a) for a in (0, 0.0, 1e-3, f4(1e-3))],
            [ot.AveragedSGDRegressor(alpha=a, step_size="auto") for a in near],
            [ot.StreamingSVRGRegressor(alpha=a, random_state=0) for a in near],
            [ot.HistTreeRegressor(ccp_alpha=a, random_state=0) for a in near],
        ]
    return pick(rng, made)


def nearly(rng: draws.Rng, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """Return rows and labels that are those given, or a little different."""
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    row, other = (int(one) for one in rng.integers(len(X), size=2))
    other_X, other_y = X.copy(), y.copy()
    other_X[row] += 1
    other_y[[row, other]] = y[[other, row]]
    made = [
        *[(X, y)] * 3,
        *((rows, y) for rows in (frame, frame[frame.columns[::-1]], X[:, ::-1], other_X)),
        (frame.set_axis(frame.columns[::-1], axis=1), y),
        (frame.astype({"x0": "float32"}), y),
        (X, other_y),
        (X.astype(np.float32), y),
        (X.astype(object), y),
    ]
    return pick(rng, made)


def shared(case: Case) -> None:
    """Make several calls with one cache or store, and each again with nothing shared."""
    rng = case.rng
    given = draws.problem(rng, ("normal", "counts"))
    is_class = given.codes is not None
    y = given.codes % 2 if is_class else np.asarray(given.y)
    given = given._replace(y=y, codes=y if is_class else None)
    estimators = alike(rng, is_class)
    method, in_memory = pick(rng, ("auto", "auto", "fit")), pick(rng, (True, True, False))
    case.note(y=y, method=method, in_memory=in_memory)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sharing_small_models():
        kept = {"cache": ot.ModelCache()} if in_memory else {"store": f"sqlite:///{folder}/db"}
        for call in range(4):
            rows, labels = nearly(rng, given.X, y)
            estimator, Threshold.at = pick(rng, estimators), pick(rng, (0.3, 0.5))
            scoring = draws.scoring(rng, given, estimator)
            cv = pick(rng, (3, 4, 8, ms.KFold(3), np.arange(len(y)) % 4))
            case.note(**{f"call {call}": (estimator, rows, labels, scoring, cv, Threshold.at)})
            common = {"cv": cv, "scoring": scoring, "method": method}
            ours, theirs = (
                outcome(lambda: evaluate(estimator, rows, labels, given))  # noqa: B023
                for given in (common | kept, common | {"cache": None})
            )
            compare(case, ours, theirs, isinstance(steps_of(estimator)[-1], lm.Ridge))


@contextmanager
def sharing_small_models() -> Generator[None]:
    """Share also what takes longer to look up than to train, because cases have few rows."""
    with mock.patch("optuna_treecv.engines.treecv.shared_learner._MIN_PHASE_BYTES", 1):
        yield


def evaluate(estimator: Any, X: Any, y: Any, options: dict[str, Any]) -> dict[str, Any]:
    objective = ot.treecv_objective(lambda trial: estimator, X, y, **options)
    try:
        scores = objective.evaluate({}).scores
    finally:
        if objective.evaluator.database is not None:
            objective.evaluator.database.close()  # writes what is left to write
    return {name: score.test_score for name, score in scores.items()}


def lanes(case: Case) -> None:
    """Evaluate several estimators side by side, and compare with each of them alone."""
    rng = case.rng
    given = draws.problem(rng, ("normal", "sparse"))
    is_class = given.codes is not None
    if is_class:
        given = given._replace(y=given.codes % 2, codes=given.codes % 2)
    estimators = alike(rng, is_class)
    X, cut = draws.container(rng, given.X), draws.partition(rng, given)
    w = draws.weights(rng, len(given.X)) if chance(rng, 0.2) else None
    scoring = draws.scoring(rng, given, estimators[0])
    common = {"cv": cut.cv, "groups": cut.groups, "scoring": scoring, "sample_weight": w}
    if hasattr(estimators[0], "partial_fit"):
        common |= {"order": pick(rng, ("fixed", "random")), "n_epochs": pick(rng, (1, 1, 2))}
    case.note(estimators=estimators, X=X, y=given.y, **common)
    alone = [
        (one, outcome(lambda: ot.tree_cross_validate(one, X, given.y, **common)))  # noqa: B023
        for one in estimators
    ]
    alone = [(one, right) for one, right in alone if not isinstance(right, Exception)]
    if not alone:
        return
    estimators = [one for one, _ in alone]
    ours = outcome(lambda: ot.tree_cross_validate_many(estimators, X, given.y, **common))
    if isinstance(ours, Exception):
        case.compare("errors", ours, 0)
        return
    for found, (one, right) in zip(ours, alone, strict=True):
        rtol = 1e-10 if right.method == "exact" else 0.0
        for name, score in right.scores.items():
            what = f"{one} {name}"
            case.compare(what, found.scores[name].test_score, score.test_score, rtol)


def compare(case: Case, ours: Any, theirs: Any, is_exact: bool) -> None:
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        case.compare("scores", ours, theirs)
        return
    for name in ours:  # exact folds: user_guide/methods, Pitfalls
        case.compare(name, ours[name], theirs[name], 1e-10 if is_exact else 0.0)
