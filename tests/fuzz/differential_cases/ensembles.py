"""Ensembles that grow: random parameters, beside searched numbers of trees and sizes of trees."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from ensemble_parameters import classes_of
from ensemble_parameters import Ensemble
from ensemble_parameters import ENSEMBLES
from ensemble_parameters import rows
import numpy as np
from sklearn import model_selection as ms
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
import optuna_treecv as ot


def ensembles(case: Case) -> None:
    """Evaluate a grid of an ensemble, and compare with ``cross_validate`` of each candidate."""
    rng = case.rng
    ensemble = ENSEMBLES[pick(rng, ENSEMBLES)]
    names = rng.permutation(list(ensemble.values))[: rng.integers(0, 5)].tolist()
    params = {name: pick(rng, ensemble.values[name]) for name in names}
    n_searched = int(rng.integers(1, 1 + min(2, len(ensemble.searched))))
    searched = rng.permutation(list(ensemble.searched))[:n_searched].tolist()
    n_classes = int(pick(rng, (0, 2, 3)))
    weights = draws.weights(rng, 70) if chance(rng, 0.25) else None
    scores = ["neg_mean_squared_error"] if is_regressor(ensemble.kind()) else ["accuracy"]
    if is_classifier(ensemble.kind()):
        n_classes = max(2, n_classes)
        scores = [*scores, "neg_log_loss"]
    cv = pick(rng, (ms.KFold(3), ms.KFold(2, shuffle=True, random_state=1), ms.TimeSeriesSplit(2)))
    X, y = rows(rng)
    if n_classes:
        y = classes_of(y, n_classes)
    if chance(rng, 0.2):  # rows without a signal, and folds without a split
        X[:, : int(rng.integers(1, 6))] = 0.0
    if chance(rng, 0.2):
        X[rng.random(X.shape) < 0.1] = np.nan
    is_search = weights is None and chance(rng, 0.3)
    compare_grid(case, ensemble, params, searched, X, y, cv, scores, weights, is_search)


def compare_grid(
    case: Case,
    ensemble: Ensemble,
    params: Mapping[str, Any],
    searched: list[str],
    X: np.ndarray,
    y: np.ndarray,
    cv: Any,
    scores: list[str],
    weights: np.ndarray | None = None,
    is_search: bool = False,
) -> None:
    """Evaluate the candidates of a grid together, and compare each with ``cross_validate``."""
    base = ensemble.kind(**ensemble.given | {"random_state": 5} | params)
    case.note(kind=ensemble.kind.__name__, params=params, searched=searched, X=X, y=y, cv=cv)
    case.note(scores=scores, weights=weights)
    grid = {name: ensemble.searched[name] for name in searched}
    candidates = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    estimators = [clone(base).set_params(**candidate) for candidate in candidates]
    options = {"cv": cv, "scoring": scores}
    of_fit = None if weights is None else {"sample_weight": weights}

    def expected() -> Any:
        of_fits = options | {"params": of_fit, "error_score": "raise"}
        found = [ms.cross_validate(one, X, y, **of_fits) for one in estimators]
        return [[one[f"test_{name}"] for name in scores] for one in found]

    def searched_scores() -> Any:
        search = ot.TreeCVSearchCV(base, param_grid=grid, refit=False, error_score="raise")
        found = search.set_params(**options).fit(X, y).cv_results_
        folds = range(cv.get_n_splits(X))
        table = [[found[f"split{i}_test_{name}"] for i in folds] for name in scores]
        return [np.array(table)[:, :, found["params"].index(one)] for one in candidates]

    def evaluated() -> Any:
        found = ot.tree_cross_validate_many(
            estimators, X, y, sample_weight=weights, score_weight=None, **options
        )
        case.note(methods={one.method for one in found})
        return [[one.scores[name].test_score for name in scores] for one in found]

    rtol = 1e-6 if ensemble.kind.__name__.startswith("XGB") else 1e-12  # XGBoost predicts float32
    ours = outcome(searched_scores if is_search else evaluated)
    case.compare("scores", ours, outcome(expected), rtol)
