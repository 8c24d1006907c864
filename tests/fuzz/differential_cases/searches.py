"""Searches with repeated and failing candidates, several scorers, and lists of grids."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import loguniform
from scipy.stats import randint
from sklearn import linear_model as lm
from sklearn import metrics
from sklearn import model_selection as ms
from sklearn import naive_bayes as nb
from sklearn import neighbors
from sklearn import svm
from sklearn import tree
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import error_of
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
import optuna_treecv as ot
from optuna_treecv.search import stand_ins


def spaces(rng: draws.Rng, given: draws.Problem) -> tuple[Any, dict[str, list[Any]]]:
    """Return an estimator, and values of its parameters, some of which its ``fit`` refuses."""
    if given.codes is None:
        made = [
            (lm.Ridge(), {"alpha": [0.1, 1.0, 10.0, -1.0], "fit_intercept": [True, False]}),
            (lm.Lasso(tol=1e-10), {"alpha": [0.1, 0.5, -0.5], "fit_intercept": [True, False]}),
            (neighbors.KNeighborsRegressor(), {"n_neighbors": [1, 4, 1000], "p": [1, 2]}),
            (tree.DecisionTreeRegressor(random_state=0), {"max_depth": [1, 3, 0, None]}),
            (RandomForestRegressor(3, random_state=0), {"n_estimators": [1, 3, 0]}),
        ]
    else:
        logistic = lm.LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000)
        made = [
            (logistic, {"C": [0.1, 1.0, -1.0, 10.0], "fit_intercept": [True, False]}),
            (svm.SVC(), {"C": [1.0, 10.0, -1.0], "kernel": ["rbf", "linear", "wrong"]}),
            (nb.GaussianNB(), {"var_smoothing": [1e-9, 0.1, -1.0]}),
            (neighbors.KNeighborsClassifier(), {"n_neighbors": [1, 4, 1000], "p": [1, 2]}),
            (tree.DecisionTreeClassifier(random_state=0), {"max_depth": [1, 3, 0, None]}),
            (RandomForestClassifier(3, random_state=0), {"n_estimators": [1, 3, 0]}),
        ]
    return pick(rng, made)


class FailsSometimes:
    """A scorer that raises for some models, or for all of them."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """Score, or raise where many predictions are like the first one."""
        predicted = np.asarray(estimator.predict(X))
        if np.mean(predicted == predicted[0]) >= self.share:
            raise ValueError("too many predictions are the same")
        return float(np.mean(predicted == np.asarray(y)))


def scoring_of(rng: draws.Rng, given: draws.Problem) -> Any:
    """Return one score, or several of which one may fail."""
    names = ["r2", "neg_mean_absolute_error"]
    if given.codes is not None:
        names = ["accuracy", "f1_macro", "roc_auc", "neg_log_loss"]
    if chance(rng, 0.5):
        return pick(rng, names)
    fails = FailsSometimes(float(pick(rng, (0.0, 0.7, 0.9))))
    wrong = metrics.make_scorer(metrics.f1_score, pos_label="no such label")
    made = [*names, fails, wrong] if given.codes is not None else [*names, fails]
    chosen = rng.permutation(len(made))[: rng.integers(1, 4)].tolist()
    return {f"score{i}": made[number] for i, number in enumerate(chosen)}


def some_of(rng: draws.Rng, values: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return a grid of some of the parameters, where values may be repeated."""
    names = rng.permutation(list(values))[: rng.integers(1, 1 + len(values))].tolist()
    return {
        name: [pick(rng, values[name]) for _ in range(int(rng.integers(1, 4)))] for name in names
    }


def searches(case: Case) -> None:
    """Search, and compare all columns with those of scikit-learn's search."""
    rng = case.rng
    given = draws.problem(rng, ("normal", "counts"))
    y = np.asarray(given.y) if given.codes is None else given.codes
    estimator, values = spaces(rng, given)
    error_score = pick(rng, (np.nan, 0.0, -7.5, "raise"))
    folds = [ms.KFold(3), ms.RepeatedKFold(n_splits=2, n_repeats=2, random_state=1)]
    folds += [ms.ShuffleSplit(3, random_state=0)]
    if given.codes is not None:
        folds.append(ms.StratifiedKFold(3))
    cv, scoring = pick(rng, folds), scoring_of(rng, given)
    refit = next(iter(scoring)) if isinstance(scoring, dict) else True
    refit = pick(rng, (False, refit))
    common = {"cv": cv, "scoring": scoring, "error_score": error_score, "refit": refit}
    kind = pick(rng, ("grid", "grid", "accelerated grid", "accelerated random"))
    grids: Any = some_of(rng, values)
    if chance(rng, 0.4):
        grids = [some_of(rng, values) for _ in range(int(rng.integers(1, 4)))]
    case.note(kind=kind, estimator=estimator, grids=grids, X=given.X, y=y, **common)
    if kind == "grid":
        ours = ot.TreeCVSearchCV(estimator, param_grid=grids, **common)
        theirs: Any = ms.GridSearchCV(estimator, grids, **common)
    elif kind == "accelerated grid":
        ours, theirs = (
            of(estimator, grids, **common)
            for of in (stand_ins.GridSearchCV, stand_ins.GridSearchCV.stands_for)
        )
    else:
        for grid in grids if isinstance(grids, list) else [grids]:
            for name, distribution in (
                ("alpha", loguniform(1e-2, 10)),
                ("C", loguniform(1e-2, 10)),
                ("n_neighbors", randint(1, 9)),
            ):
                if name in grid and chance(rng, 0.5):
                    grid[name] = distribution
        common |= {"n_iter": int(rng.integers(1, 7)), "random_state": int(rng.integers(9))}
        ours, theirs = (
            of(estimator, grids, **common)
            for of in (stand_ins.RandomizedSearchCV, stand_ins.RandomizedSearchCV.stands_for)
        )
    mine, right = (outcome(lambda one=one: one.fit(given.X, y)) for one in (ours, theirs))
    if isinstance(mine, Exception) or isinstance(right, Exception):
        case.compare("search", error_of(mine), error_of(right))
        return
    compare_results(case, mine, right)


def compare_results(case: Case, ours: Any, theirs: Any) -> None:
    """Compare the tables, where candidates may have another order, and the best candidate."""
    mine, right = (in_order(one.cv_results_) for one in (ours, theirs))
    case.compare("candidates", *(list(map(in_words, one["params"])) for one in (mine, right)))
    if case.differences:
        return
    for name in right:
        if name.startswith(("split", "mean_test", "std_test")):
            case.compare(name, mine[name], right[name], 1e-6)
        elif name.startswith("param_"):
            case.compare(
                f"masked {name}", *(np.ma.getmaskarray(one[name]) for one in (mine, right))
            )
        elif name.startswith("rank_test_"):
            case.compare(name, mine[name], ranks_of(right[name.replace("rank", "mean", 1)]))
    if hasattr(theirs, "best_index_"):
        found = ours.cv_results_["params"][ours.best_index_]
        score = f"mean_test_{theirs.refit if theirs.multimetric_ else 'score'}"
        best = first_of_the_best(theirs.cv_results_, score)
        case.compare("best", in_words(found), in_words(best))


def in_words(params: dict[str, Any]) -> str:
    return repr(sorted(params.items(), key=lambda item: item[0]))


def in_order(results: Any) -> dict[str, np.ndarray]:
    """Return columns whose candidates are in the order of their words."""
    order = sorted(range(len(results["params"])), key=lambda i: in_words(results["params"][i]))
    return {name: column[order] for name, column in results.items() if name != "params"} | {
        "params": np.array(results["params"], dtype=object)[order]
    }


def first_of_the_best(results: Any, score: str = "mean_test_score") -> dict[str, Any]:
    """Return the first candidate that is at most rounding errors worse than the best one."""
    params: dict[str, Any] = results["params"][ranks_of(results[score]).argmin()]
    return params


def ranks_of(means: np.ndarray) -> np.ndarray:
    """Return ranks, of which those are equal that rounding errors alone tell apart."""
    means = np.where(np.isnan(means), -np.inf, means)
    room = 1e-12 * np.abs(np.where(np.isinf(means), 0.0, means))
    return 1 + (means[None] > (means + room)[:, None]).sum(axis=1)
