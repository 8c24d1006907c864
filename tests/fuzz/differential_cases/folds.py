"""Fits, exact folds and forests against scikit-learn's functions and direct fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn import model_selection as ms
from sklearn.base import clone
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.metrics import get_scorer
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import Cut
from differential_cases.draws import pick
from differential_cases.draws import Problem
import optuna_treecv as ot


def steps_of(estimator: Any) -> list[Any]:
    return [one for _, one in estimator.steps] if isinstance(estimator, Pipeline) else [estimator]


def converged(estimator: Any) -> Any:
    """Return an estimator whose ``fit`` ends at its solution, as exact folds and Newton do."""
    last = clone(steps_of(estimator)[-1])
    tight = {"tol": 1e-12, "max_iter": 100_000, "dual": False}
    if isinstance(last, LogisticRegression):
        tight = {"tol": 1e-12, "solver": "newton-cholesky"}
    if isinstance(last, Ridge | Lasso | LinearSVC | LogisticRegression):
        last.set_params(**{name: tight[name] for name in last.get_params() if name in tight})
    return piped(steps_of(estimator)[:-1], last)


def piped(steps: list[Any], estimator: Any) -> Any:
    return make_pipeline(*steps, estimator) if steps else estimator


def fits(case: Case) -> None:
    """Evaluate any estimator, and compare with ``cross_validate``."""
    rng = case.rng
    given = draws.problem(rng)
    estimator = pick(rng, (draws.fitted, draws.fitted, draws.summed))(rng, given)
    if chance(rng, 0.25):
        X, steps = draws.table(rng, given.X), [draws.of_table(rng)]
    else:
        X = draws.container(rng, given.X)
        steps = draws.steps(rng, given, sparse.issparse(X))
    takes_weights = has_fit_parameter(estimator, "sample_weight")
    name = f"{type(estimator).__name__.lower()}__" if steps else ""
    estimator, y, params = piped(steps, estimator), given.y, None
    if takes_weights and chance(rng, 0.3):
        params = {f"{name}sample_weight": draws.weights(rng, len(given.X))}
    if given.codes is None and chance(rng, 0.15):
        y = np.column_stack([given.y, rng.permutation(given.y)])
    cut = pick(rng, (draws.partition, draws.splits))(rng, given)
    scoring, method = draws.scoring(rng, given, estimator), pick(rng, ("auto", "fit"))
    case.note(estimator=estimator, X=X, y=y, cut=cut, scoring=scoring, method=method)
    case.note(params=params)
    common = {"groups": cut.groups, "params": params}
    own = {"scoring": scoring, "shuffle": shuffles(rng, cut), "n_jobs": 1, "method": method}
    ours = outcome(lambda: ot.tree_cross_validate(estimator, X, y, cv=cut.cv, **own, **common))
    chosen = getattr(ours, "method", None)
    other = estimator if chosen == "fit" else converged(estimator)
    theirs = outcome(lambda: fold_scores(scoring, other, X, y, cv=cut.same, **common))
    case.note(chosen=chosen)
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        case.compare("scores", ours, theirs)
        return
    rtol = 0.0 if chosen == "fit" else 1e-3 if is_single(X) else 1e-7
    for (name, score), right in zip(ours.scores.items(), theirs, strict=True):
        case.compare(name, score.test_score, right, rtol)


def fold_scores(scoring: Any, estimator: Any, X: Any, y: Any, **options: Any) -> list[Any]:
    """Return the fold scores of ``cross_validate`` by each score alone.

    Together, scores of other positive labels share one response there (user_guide/your_metric).
    """
    several = list(scoring.values()) if isinstance(scoring, dict) else scoring
    several = several if isinstance(several, list) else [several]
    options["error_score"] = "raise"
    found = [ms.cross_validate(estimator, X, y, scoring=one, **options) for one in several]
    return [one["test_score"] for one in found]


def shuffles(rng: draws.Rng, cut: Cut) -> bool:
    """Return any ``shuffle`` with which the folds are those of scikit-learn."""
    return not isinstance(cut.cv, int) and chance(rng, 0.5)


def is_single(X: Any) -> bool:
    return getattr(X, "dtype", None) == np.float32


#: Pooled scores by the response that they need.
POOLED = {
    "predict": ("accuracy", "f1_macro", "balanced_accuracy", "matthews_corrcoef"),
    "decision_function": ("roc_auc",),
    "predict_proba": ("neg_log_loss",),
}


def pooled(case: Case) -> None:
    """Predict each row out of its fold and pool the scores; compare with ``cross_val_predict``."""
    rng = case.rng
    given = draws.problem(rng)
    X = draws.container(rng, given.X)
    steps = draws.steps(rng, given, sparse.issparse(X))
    estimator = piped(steps, draws.fitted(rng, given))
    cut, response = draws.partition(rng, given), "predict"
    names = ("r2", "neg_root_mean_squared_error", "neg_median_absolute_error")
    if given.codes is not None:
        response = pick(rng, [name for name in POOLED if hasattr(estimator, name)])
        if response == "decision_function" and given.codes.max() > 1:
            response = "predict"
        names = POOLED[response]
    name = pick(rng, names)
    case.note(estimator=estimator, X=X, y=given.y, cut=cut, response=response, scoring=name)
    common = {"groups": cut.groups, "method": response}
    theirs = outcome(lambda: ms.cross_val_predict(estimator, X, given.y, cv=cut.same, **common))
    common = {"cv": cut.cv, "groups": cut.groups, "shuffle": shuffles(rng, cut), "method": "fit"}
    ours = outcome(
        lambda: ot.tree_cross_val_predict(
            estimator, X, given.y, response_method=response, **common
        )
    )
    case.compare("predicted", ours, theirs)
    common["scoring"] = ot.pooled(name)
    ours = outcome(lambda: ot.tree_cross_validate(estimator, X, given.y, **common).mean)
    case.compare(name, ours, outcome(lambda: score_of_all(name, given.y, theirs)), 1e-12)


def score_of_all(name: str, y: Any, predicted: Any) -> float:
    """Return a score of predictions; those in float32 are scored in float64."""
    if isinstance(predicted, Exception):
        raise predicted
    scorer = get_scorer(name)
    wide = predicted.astype(np.float64) if is_single(predicted) else predicted
    if np.ndim(wide) == 2 and wide.shape[1] == 2 and np.ndim(y) == 1:
        wide = wide[:, 1]  # as scorers pass the probabilities of two classes
    return float(scorer._sign * scorer._score_func(y, wide, **scorer._kwargs))


def forest(case: Case) -> None:
    """Grow the trees of all folds together, and compare them with direct fits.

    The edges of bins come from all rows (user_guide/methods), so training sets have every value.
    """
    rng = case.rng
    given = draws.problem(rng, ("levels",))
    kind = ot.HistTreeRegressor if given.codes is None else ot.HistTreeClassifier
    given = given._replace(y=np.round(given.y) if given.codes is None else given.y)
    estimator = kind(
        max_depth=pick(rng, (None, 1, 2, 4)),
        min_samples_leaf=int(rng.integers(1, 6)),
        min_samples_split=int(rng.integers(2, 9)),
        ccp_alpha=pick(rng, (0.0, 0.0, 0.01)),
        random_state=int(rng.integers(9)),
    )
    X = draws.container(rng, given.X, is_dense=True)
    w = rng.integers(1, 4, len(given.X)) * 1.0 if chance(rng, 0.4) else None
    compare_with_fits(case, estimator, (X, X), given, w, needs_all_values=True)


def compare_with_fits(
    case: Case,
    estimator: Any,
    X: tuple[Any, Any],
    given: Problem,
    w: Any,
    needs_all_values: bool = False,
) -> None:
    """Compare out-of-fold predictions and losses with those of a direct fit of each fold.

    Parameters
    ----------
    case : Case
    estimator : estimator
    X : (rows, rows)
        For this package, and for the direct fits.
    given : Problem
    w : ndarray or None
        The weights of the rows.
    needs_all_values : bool
        Compare only if each training set has all values of each column.
    """
    rng, (X, rows) = case.rng, X
    cut = draws.partition(rng, given)
    case.note(estimator=estimator, X=X, y=given.y, cut=cut, weights=w)
    splits = outcome(lambda: list(cut.same.split(given.X, given.y, cut.groups)))
    if isinstance(splits, Exception):
        return
    if needs_all_values and not all(has_all_values(given.X, train) for train, _ in splits):
        return
    theirs = outcome(lambda: direct_fits(estimator, rows, given, splits, w))
    predicted, losses = (theirs, theirs) if isinstance(theirs, Exception) else theirs
    common = {"cv": cut.cv, "groups": cut.groups, "shuffle": shuffles(rng, cut)}
    rtol = 1e-3 if is_single(X) else 1e-7  # steps before sums compute in float32
    if w is None:
        ours = outcome(lambda: ot.tree_cross_val_predict(estimator, X, given.y, **common))
        case.compare("predicted", ours, predicted, rtol)
    common["scoring"] = "squared_error" if given.codes is None else "error"
    common |= {"row_losses": chance(rng, 0.3), "sample_weight": w}
    ours = outcome(lambda: ot.tree_cross_validate(estimator, X, given.y, **common))
    case.note(chosen=getattr(ours, "method", None))
    case.compare("losses", getattr(ours, "test_score", ours), losses, rtol)


def has_all_values(X: np.ndarray, train: np.ndarray) -> bool:
    return all(set(column) == set(column[train]) for column in X.T)


def direct_fits(
    estimator: Any, X: Any, given: Problem, splits: list[Any], w: Any
) -> tuple[np.ndarray, list[float]]:
    """Return what the fit of each fold predicts of its test rows, and its mean losses."""
    predicted, losses = [], []
    y, own = np.asarray(given.y), np.ones(len(given.X)) if w is None else w
    steps, other = steps_of(estimator), converged(estimator)
    prefix = f"{type(steps[-1]).__name__.lower()}__" if isinstance(estimator, Pipeline) else ""
    for train, test in splits:
        passed = {} if w is None else {f"{prefix}sample_weight": own[train]}
        model = clone(other).fit(_safe_indexing(X, train), y[train], **passed)
        predicted.append(model.predict(_safe_indexing(X, test)))
        wrong = losses_of(given, predicted[-1], y[test])
        losses.append(float(np.average(wrong, weights=own[test])))
    order = np.argsort(np.concatenate([test for _, test in splits]))
    return np.concatenate(predicted)[order], losses


def losses_of(given: Problem, predicted: Any, y: np.ndarray) -> np.ndarray:
    """Return the squared error, or the error, of each row."""
    return predicted != y if given.codes is not None else (np.asarray(predicted, float) - y) ** 2
