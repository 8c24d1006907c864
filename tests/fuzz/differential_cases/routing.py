"""Metadata that goes to steps, estimators, scorers and splitters, with routing or without."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import config_context
from sklearn import ensemble
from sklearn import linear_model as lm
from sklearn import model_selection as ms
from sklearn import naive_bayes as nb
from sklearn import neighbors
from sklearn import preprocessing as pre
from sklearn import tree
from sklearn.base import is_classifier
from sklearn.metrics import get_scorer
from sklearn.pipeline import make_pipeline

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
from differential_cases.folds import converged
import optuna_treecv as ot


def last_of(rng: draws.Rng, given: draws.Problem) -> Any:
    """Return an estimator of any engine."""
    if given.codes is None:
        made = [lm.Ridge(), lm.Lasso(0.1), tree.DecisionTreeRegressor(random_state=0)]
        made += [
            ensemble.RandomForestRegressor(3, random_state=0),
            neighbors.KNeighborsRegressor(),
        ]
        made += [ensemble.HistGradientBoostingRegressor(max_iter=3)]
    else:
        made = [lm.LogisticRegression(), lm.RidgeClassifier(), nb.GaussianNB()]
        made += [ensemble.RandomForestClassifier(3, random_state=0)]
        made += [neighbors.KNeighborsClassifier(), tree.DecisionTreeClassifier(random_state=0)]
        made += [ensemble.GradientBoostingClassifier(n_estimators=3, random_state=0)]
    return pick(rng, made)


def routing(case: Case) -> None:
    """Evaluate with requested metadata, and compare with ``cross_validate``."""
    rng = case.rng
    given = draws.problem(rng, ("normal", "counts"))
    y = np.asarray(given.y) if given.codes is None else given.codes
    n = len(y)
    with config_context(enable_metadata_routing=True):
        last = last_of(rng, given)
        names = {"weight": draws.weights(rng, n), "sample_weight": draws.weights(rng, n)}
        requested: dict[str, Any] = {}

        def request(of: Any, kind: str) -> Any:
            """Set a request at random, and note what it asks for."""
            value = pick(rng, (False, True, "weight"))
            if not hasattr(of, f"set_{kind}_request"):
                return of
            try:
                of = getattr(of, f"set_{kind}_request")(sample_weight=value)
            except TypeError:  # it takes no weights
                return of
            if value:
                name = "sample_weight" if value is True else value
                requested[name] = names[name]
            return of

        steps = [request(pre.StandardScaler(), "fit")] if chance(rng, 0.4) else []
        estimator = request(last, "fit")
        scores = ["r2", "neg_mean_squared_error"]
        if is_classifier(last):
            scores = ["accuracy"] + ["neg_log_loss"] * hasattr(last, "predict_proba")
        scorer = request(get_scorer(pick(rng, scores)), "score")
        groups = rng.integers(0, 7, n)
        cv = pick(rng, (ms.KFold(3), ms.GroupKFold(3)))
        estimator = make_pipeline(*steps, estimator) if steps else estimator
        method = pick(rng, ("auto", "fit"))
        case.note(estimator=estimator, X=given.X, y=y, cv=cv, scorer=scorer, method=method)
        case.note(requested=sorted(requested))
        common = {"cv": cv, "scoring": scorer}
        takes_groups = isinstance(cv, ms.GroupKFold)
        mine = {"groups": groups if takes_groups else None, "params": requested or None}
        theirs_only = {"params": requested | ({"groups": groups} if takes_groups else {})}
        ours = outcome(
            lambda: ot.tree_cross_validate(
                estimator, given.X, y, method=method, shuffle=False, **mine, **common
            )
        )
        chosen = getattr(ours, "method", None)
        other = estimator
        if chosen in ("exact", "newton"):
            other = converged(estimator)
            requests = estimator[-1] if steps else estimator
            (other[-1] if steps else other)._metadata_request = requests.get_metadata_routing()
        theirs = outcome(
            lambda: ms.cross_validate(
                other, given.X, y, error_score="raise", **theirs_only, **common
            )["test_score"]
        )
    case.note(chosen=chosen)
    found = ours if isinstance(ours, Exception) else ours.test_score
    case.compare("scores", found, theirs, 1e-7)
