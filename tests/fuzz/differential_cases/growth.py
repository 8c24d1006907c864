"""Forests that are truncated at a depth, and races that stop ensembles while they grow."""

from __future__ import annotations

from typing import Any

from ensemble_parameters import classes_of
from ensemble_parameters import ENSEMBLES
from ensemble_parameters import rows
import numpy as np
import optuna
from sklearn import model_selection as ms
from sklearn.base import clone
from sklearn.base import is_classifier

from differential_cases.case import Case
from differential_cases.case import error_of
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
import optuna_treecv as ot

FORESTS = [name for name in ENSEMBLES if "Forest" in name or "ExtraTrees" in name]


def truncated(forest: Any, X: np.ndarray, max_depth: int) -> np.ndarray:
    """Return the mean of the nodes that rows reach in the trees of a forest, up to a depth."""
    found = []
    for one in forest.estimators_:
        nodes = one.tree_
        at = np.zeros(len(X), dtype=int)
        for _ in range(max_depth):
            is_inner = nodes.children_left[at] >= 0
            features = np.maximum(nodes.feature[at], 0)
            numbers = X.astype(np.float32)[np.arange(len(X)), features]
            is_left = numbers <= nodes.threshold[at]
            below = np.where(is_left, nodes.children_left[at], nodes.children_right[at])
            at = np.where(is_inner, below, at)
        found.append(nodes.value[at, 0])
    return np.mean(found, axis=0)


def truncations(case: Case) -> None:
    """Truncate a forest at several depths, and compare with its trees followed by hand."""
    rng = case.rng
    ensemble = ENSEMBLES[pick(rng, FORESTS)]
    depths = sorted({int(rng.integers(1, 7)) for _ in range(3)})
    X, y = rows(rng)
    params = {"n_estimators": int(rng.integers(1, 5)), "random_state": int(rng.integers(99))}
    for name in ("max_features", "min_samples_leaf", "bootstrap", "min_impurity_decrease"):
        if chance(rng, 0.3):
            params[name] = pick(rng, ensemble.values[name])
    estimator = ensemble.kind(**params)
    is_class = is_classifier(estimator)
    if is_class:
        y = classes_of(y, int(pick(rng, (2, 3))))
    cv = ms.KFold(3, shuffle=True, random_state=0)
    scoring = "neg_log_loss" if is_class else "neg_mean_squared_error"
    case.note(estimator=estimator, depths=depths, X=X, y=y)
    options = {"cv": cv, "scoring": scoring, "param_grid": {"max_depth": depths}}

    def study() -> dict[int, float]:
        objective = ot.treecv_objective(estimator, X, y, truncate=True, **options)
        found = optuna.create_study(sampler=objective.grid_sampler(), direction="maximize")
        found.optimize(objective)
        return {trial.params["max_depth"]: trial.value for trial in found.trials}

    values = outcome(study)
    if isinstance(values, Exception):
        case.compare("study", values, 0)
        return
    for depth in depths:
        scores = []
        for train, test in cv.split(X):
            fitted = clone(estimator).set_params(max_depth=depths[-1]).fit(X[train], y[train])
            means = truncated(fitted, X[test], depth)
            if is_class:
                means = np.clip(means, np.finfo(float).eps, 1)
                of_labels = means[np.arange(len(test)), y[test]] / means.sum(axis=1)
                scores.append(np.mean(np.log(of_labels)))
            else:
                scores.append(-np.mean((y[test] - means[:, 0]) ** 2))
        case.compare(f"max_depth={depth}", values[depth], np.mean(scores), 1e-9)


def races(case: Case) -> None:
    """Race ensembles while they grow; completed trials have the scores of ``cross_validate``."""
    rng = case.rng
    ensemble = ENSEMBLES[pick(rng, ENSEMBLES)]
    X, y = rows(rng)
    size = next(iter(ensemble.given))
    grid: dict[str, Any] = {size: [2, 12, 20]}
    names = [name for name, values in ensemble.values.items() if name != "random_state"]
    for name in rng.permutation(names)[: rng.integers(0, 3)].tolist():
        values = ensemble.values[name]
        grid[name] = [one for one in values if isinstance(one, None | int | float | str)][:2]
    grid = {name: values for name, values in grid.items() if values}
    if chance(rng, 0.4) and "max_leaf_nodes" in ensemble.searched:
        grid["max_leaf_nodes"] = [2, 6]
    estimator = ensemble.kind(**ensemble.given | {"random_state": 1})
    is_class = is_classifier(estimator)
    if is_class:
        y = classes_of(y, 2)
    scoring = "neg_log_loss" if is_class else "neg_mean_squared_error"
    cv = ms.KFold(3, shuffle=True, random_state=0)
    case.note(estimator=ensemble.kind.__name__, grid=grid, X=X, y=y)

    def study() -> list[tuple[dict[str, Any], Any, float]]:
        objective = ot.treecv_objective(
            estimator,
            X,
            y,
            param_grid=grid,
            cv=cv,
            scoring=scoring,
            report=pick(rng, ("auto", "trees", "folds")),
        )
        found = optuna.create_study(
            sampler=objective.grid_sampler(seed=0), direction="maximize", pruner=objective.pruner()
        )
        found.optimize(objective, n_trials=12)
        complete = optuna.trial.TrialState.COMPLETE
        return [
            (trial.params, objective.evaluator.space.candidate(trial.params)[0], trial.value)
            for trial in found.get_trials(states=[complete])
        ]

    values = outcome(study)
    if isinstance(values, Exception):
        estimators = [clone(estimator).set_params(**one) for one in ms.ParameterGrid(grid)]
        right = outcome(lambda: [mean_score(one, X, y, cv, scoring) for one in estimators])
        case.compare("study", values, error_of(right))
        return
    for params, one, value in values:
        right = outcome(lambda one=one: mean_score(clone(one), X, y, cv, scoring))
        case.compare(f"at {params}", value, right, 1e-6)


def mean_score(estimator: Any, X: Any, y: Any, cv: Any, scoring: str) -> float:
    found = ms.cross_validate(estimator, X, y, cv=cv, scoring=scoring, error_score="raise")
    return float(found["test_score"].mean())
