"""Searches over values of mixed types against ``GridSearchCV``."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from sklearn import model_selection as ms
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree import DecisionTreeRegressor

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import error_of
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
import optuna_treecv as ot


def grid_of(rng: draws.Rng, given: draws.Problem) -> tuple[Any, Any]:
    """Return an estimator, and a grid with values of mixed types."""

    def some(*values: Any) -> list[Any]:
        n = int(rng.integers(1, min(4, len(values)) + 1))
        return [values[i] for i in rng.permutation(len(values))[:n]]

    kind = DecisionTreeRegressor if given.codes is None else DecisionTreeClassifier
    grown = kind(random_state=int(rng.integers(9)))
    shares = (np.float32(0.3), 0.3, np.float64(0.5), 0.25)
    values = {
        "max_features": some(1, 2, 1.0, 0.5, "sqrt", "log2", None, np.int64(1), *shares),
        "min_samples_leaf": some(1, 2, 0.1, 0.2, 5, np.int32(3), np.float64(0.1)),
        "min_samples_split": some(2, 3, 0.3, 0.6, 9, 0.9),
        "max_depth": some(None, 1, 2, np.int64(3), 10**6),
        "ccp_alpha": some(0, 0.0, 0.01, 1, 1e-5),
        "criterion": some(*(["squared_error"] if given.codes is None else ["gini", "entropy"])),
    }
    names = rng.permutation(list(values))[: rng.integers(1, 4)].tolist()
    form = pick(rng, ("plain", "plain", "dicts", "steps", "ranges"))
    if form == "steps":
        learners = some(grown, clone(grown).set_params(max_depth=1))
        scalers = some("passthrough", pre.StandardScaler(), pre.MinMaxScaler(), None)
        grid = {"learn": learners, "scale": scalers, f"learn__{names[0]}": values[names[0]]}
        return Pipeline([("scale", pre.StandardScaler()), ("learn", grown)]), grid
    if form == "ranges":
        ranges = some((25, 75), (25.0, 75.0), (10, 90), (10, 90.0))
        grid = {"quantile_range": ranges, "with_centering": some(True, False)}
        grid = {f"robustscaler__{name}": values for name, values in grid.items()}
        return make_pipeline(pre.RobustScaler(), grown if chance(rng, 0.5) else Ridge()), grid
    if form == "dicts":
        return grown, [{name: values[name]} for name in names]
    return grown, {name: values[name] for name in names}


def grids(case: Case) -> None:
    """Search a grid, and compare each point, the best one and its model with ``GridSearchCV``."""
    rng = case.rng
    given = draws.problem(rng, ("normal", "counts"))
    estimator, grid = grid_of(rng, given)
    cv = pick(rng, (draws.partition, draws.splits))(rng, given)
    cv = cv.same if cv.groups is None else ms.KFold(3)
    is_class = is_classifier(estimator)
    scoring = "accuracy" if is_class else "neg_mean_squared_error"
    y = given.y if is_class or given.codes is None else given.codes
    case.note(estimator=estimator, grid=grid, X=given.X, y=y, cv=cv)
    common = {"cv": cv, "scoring": scoring}
    theirs = outcome(
        lambda: ms.GridSearchCV(estimator, grid, error_score="raise", **common).fit(given.X, y)
    )
    ours = outcome(
        lambda: ot.TreeCVSearchCV(estimator, param_grid=grid, method="fit", **common).fit(
            given.X, y
        )
    )
    common |= {"param_grid": grid, "method": "fit"}
    values = outcome(lambda: values_of_study(estimator, given.X, y, common))
    if any(isinstance(one, Exception) for one in (ours, theirs, values)):
        case.compare("search", *map(error_of, (ours, theirs)))
        case.compare("study", *map(error_of, (values, theirs)))
        return
    points, right = by_point(ours), by_point(theirs)
    case.compare("points", sorted(points), sorted(right))
    for point, score in right.items():
        case.compare(f"at {point}", points.get(point, np.nan), score, 1e-15)
    best = first_of_the_best(theirs.cv_results_)
    case.compare("best params", exactly(ours.best_params_), exactly(best))
    refit = clone(estimator).set_params(**{name: clone(best[name], safe=False) for name in best})
    case.compare("refit", ours.predict(given.X), refit.fit(given.X, y).predict(given.X))
    # A point that several dicts share is visited once (treecv_objective, param_grid).
    distinct = [sorted(set(np.round(list(of), 12))) for of in (values, right.values())]
    case.compare("values", *distinct)


def values_of_study(estimator: Any, X: Any, y: Any, options: dict[str, Any]) -> list[float]:
    """Return the values of a study that visits each point of a grid."""
    objective = ot.treecv_objective(estimator, X, y, **options)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0), direction="maximize")
    study.optimize(objective, n_trials=1000)
    return [trial.value for trial in study.trials]


def first_of_the_best(results: Any, score: str = "mean_test_score") -> dict[str, Any]:
    """Return the first candidate that is at most rounding errors worse than the best one."""
    params: dict[str, Any] = results["params"][ranks_of(results[score]).argmin()]
    return params


def ranks_of(means: np.ndarray) -> np.ndarray:
    """Return ranks, of which those are equal that rounding errors alone tell apart."""
    means = np.where(np.isnan(means), -np.inf, means)
    room = 1e-12 * np.abs(np.where(np.isinf(means), 0.0, means))
    return 1 + (means[None] > (means + room)[:, None]).sum(axis=1)


def exactly(params: dict[str, Any]) -> str:
    """Return parameters with their types."""
    return repr([(name, type(params[name]).__name__, params[name]) for name in sorted(params)])


def by_point(search: Any) -> dict[str, float]:
    results = search.cv_results_
    points = map(exactly, results["params"])
    return dict(zip(points, results["mean_test_score"].tolist(), strict=True))
