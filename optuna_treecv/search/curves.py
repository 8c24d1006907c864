"""Replacements for scikit-learn's permutation test, learning curve and validation curve.

They are evaluated by an engine, or run by scikit-learn, as described in ``stand_ins``.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import linear_model
from sklearn import model_selection
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import make_scorer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import check_random_state
from sklearn.utils import indexable

from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import quietly
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import cross_validation_for
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.evaluate import runs_for
from optuna_treecv.estimators.base import last_step
from optuna_treecv.plans.joint import JointPlan
from optuna_treecv.preprocessing.parts import steps_before
from optuna_treecv.rows.folds import packed
from optuna_treecv.rows.folds import Splits
from optuna_treecv.search.stand_ins import Call
from optuna_treecv.search.stand_ins import evaluate
from optuna_treecv.search.stand_ins import LeftToSklearn
from optuna_treecv.search.stand_ins import replace_function
from optuna_treecv.search.stand_ins import scores_for
from optuna_treecv.search.stand_ins import select_method
from optuna_treecv.search.stand_ins import settings_for_call

# The estimators whose model of a target does not depend on the other targets.
_INDEPENDENT_TARGETS = (
    linear_model.ElasticNet,
    linear_model.Lasso,
    linear_model.LinearRegression,
    Ridge,
)

# The splitters whose splits do not depend on y, if their random_state is an int or has no effect.
_SPLITTERS_WITHOUT_Y = (
    model_selection.GroupKFold,
    model_selection.KFold,
    model_selection.LeaveOneGroupOut,
    model_selection.LeaveOneOut,
    model_selection.PredefinedSplit,
    model_selection.ShuffleSplit,
    model_selection.TimeSeriesSplit,
    type(model_selection.check_cv([([0], [1])])),  # an iterable of splits
)

_TRAIN_SIZES = np.linspace(0.1, 1.0, 5)  # as in scikit-learn

# The maximum number of classes of a support vector machine whose learning curve is computed here:
# each pair of classes is a separate problem, and problems of few rows cost mostly overhead.
_MAX_CLASSES = 3

# The maximum size of the permuted targets in memory, and their maximum number.
_MAX_BYTES, _MAX_TARGETS = 2**26, 256


def _prepare(
    function: Any, estimator: Any, X: Any, y: Any, options: dict[str, Any]
) -> tuple[Any, Any, Any, Settings]:
    """Return the rows, their groups and the settings; raise an error for invalid arguments."""
    scoring = options.get("scoring")
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise LeftToSklearn("scoring is not a single score")
    X, y, groups = indexable(X, y, options.get("groups"))
    scores = scores_for(scoring, estimator, y)
    settings = settings_for_call(function, estimator, y, options, scoring=scores.requested)
    if type(settings.cv).__module__ != model_selection.KFold.__module__:
        raise LeftToSklearn(
            "cv is a splitter of another package, which may yield splits only once"
        )
    return X, y, groups, settings


def _is_random(cv: Any) -> bool:
    """Return whether a splitter may draw other splits in each call."""
    has_effect = getattr(cv, "shuffle", hasattr(cv, "random_state"))
    return bool(has_effect) and not isinstance(getattr(cv, "random_state", None), Integral)


def _permutation_test_score_by_engine(
    call: Call, estimator: Any, X: Any, y: Any, **options: Any
) -> Any:
    """Run ``permutation_test_score`` by an engine."""
    X, y, groups, settings = _prepare(_permutation_test_score, estimator, X, y, options)
    n_permutations = options.get("n_permutations", 100)
    if not isinstance(n_permutations, Integral) or n_permutations < 1:
        raise LeftToSklearn("an argument is unknown or invalid")
    if _is_random(settings.cv):
        raise LeftToSklearn("cv may draw other splits for each permutation")
    estimator, generator = clone(estimator), check_random_state(options.get("random_state", 0))
    score = np.mean(evaluate(call, X, y, settings, [estimator])[0].test_score)
    joint = _as_regression(estimator, y, settings)
    estimator, y, settings = joint or (estimator, y, settings)
    permuted = (_permute(y, groups, generator) for _ in range(n_permutations))
    if joint is not None:
        size = min(max(1, _MAX_BYTES // (8 * len(y))), _MAX_TARGETS)
        batches = iter(lambda: list(islice(permuted, size)), [])
        scores = np.concatenate([_score_batch(X, b, settings, estimator) for b in batches])
    else:
        results = (evaluate(call, X, of_y, settings, [estimator])[0] for of_y in permuted)
        scores = np.array([np.mean(result.test_score) for result in results])
    p_value = (np.sum(scores >= score) + 1.0) / (int(n_permutations) + 1)
    return score, scores, p_value


def _permute(y: Any, groups: Any, generator: np.random.RandomState) -> Any:
    """Return y in a random order, within each group if there are groups, as scikit-learn does."""
    indices = np.arange(len(y))
    for group in [None] if groups is None else np.unique(groups):
        rows = slice(None) if groups is None else np.asarray(groups) == group
        indices[rows] = generator.permutation(indices[rows])
    return y.iloc[indices] if hasattr(y, "iloc") else np.asarray(y)[indices]


def _as_regression(
    estimator: Any, y: Any, settings: Settings
) -> tuple[Any, np.ndarray, Settings] | None:
    """Return a regressor, its y and settings, such that permuted targets can be joint targets.

    Its models of a target do not depend on the other targets. None if there is no such regressor.
    """
    last, targets = last_step(estimator), np.asarray(y)
    if type(settings.cv) not in _SPLITTERS_WITHOUT_Y or targets.ndim > 1:
        return None
    is_plain = type(estimator) is RidgeClassifier and estimator.class_weight is None
    if is_plain and settings.scoring == "accuracy" and len(labels := np.unique(targets)) == 2:
        params = {name: getattr(estimator, name) for name in Ridge().get_params()}
        scoring = make_scorer(_accuracy_of_signs)
        signs = np.where(targets == labels[1], 1.0, -1.0)
        return Ridge(**params), signs, replace(settings, scoring=scoring)
    is_served = type(last) in _INDEPENDENT_TARGETS and targets.dtype.kind in "iuf"
    is_served &= all(type(step) is StandardScaler for _, step in steps_before(estimator))
    return (estimator, targets, settings) if is_served else None


def _accuracy_of_signs(signs: np.ndarray, outputs: np.ndarray) -> float:
    """Return the accuracy of a binary ridge classifier whose labels are -1 and 1."""
    return float(np.mean((outputs > 0) == (signs > 0)))


def _score_batch(X: Any, batch: list[Any], settings: Settings, estimator: Any) -> np.ndarray:
    """Return the mean score of each permuted target, evaluated as several targets."""
    targets = batch[0] if len(batch) == 1 else np.column_stack(batch)
    with quietly():
        run = run_for(CrossValidation.of(X, targets, settings, estimator), estimator)
    select_method([run])
    plan = run.plan
    assert isinstance(plan, JointPlan)
    of_folds = [plan.score_targets(estimator, repeat) for repeat in plan.repeats]
    return np.concatenate(of_folds, axis=1).mean(axis=1)


def _learning_curve_by_engine(call: Call, estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    """Run ``learning_curve`` by an engine."""
    for name in ("exploit_incremental_learning", "return_times"):
        if options.get(name):
            raise LeftToSklearn(f"{name} is True")
    if options.get("verbose"):
        raise LeftToSklearn("verbose output reports each single fit")
    X, y, groups, settings = _prepare(_learning_curve, estimator, X, y, options)
    splits = list(settings.cv.split(X, y, groups))
    sizes, n_trained = np.asarray(options.get("train_sizes", _TRAIN_SIZES)), len(splits[0][0])
    if sizes.dtype.kind == "f" and np.all((sizes > 0) & (sizes <= 1)):
        sizes = np.clip((sizes * n_trained).astype(int), 1, n_trained)
    sizes = np.unique(given := sizes)
    if len(sizes) < len(given) or not (0 < sizes[0] and sizes[-1] <= n_trained):
        raise LeftToSklearn("train_sizes is invalid or contains duplicates")
    if options.get("shuffle"):
        generator = check_random_state(options.get("random_state"))
        splits = [(generator.permutation(train), test) for train, test in splits]
    if isinstance(last_step(estimator), SVC) and len(np.unique(np.asarray(y))) > _MAX_CLASSES:
        raise LeftToSklearn("fits of few rows of many classes take less time")
    pairs = [(train[:size], test) for train, test in splits for size in sizes]
    (scores,) = _score_both(call, X, y, settings, [clone(estimator)], pairs)
    return sizes, *(of_sets.reshape(-1, len(sizes)).T for of_sets in scores)


def _validation_curve_by_engine(call: Call, estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    """Run ``validation_curve`` by an engine."""
    name, values = options.pop("param_name"), options.pop("param_range")
    if options.get("verbose"):
        raise LeftToSklearn("verbose output reports each single fit")
    X, y, groups, settings = _prepare(_validation_curve, estimator, X, y, options)
    splits = list(settings.cv.split(X, y, groups))
    candidates = [clone(estimator).set_params(**{name: value}) for value in values]
    scores = _score_both(call, X, y, settings, candidates, splits)
    train_scores, test_scores = np.array(scores).transpose(1, 0, 2)
    return train_scores, test_scores


def _score_both(
    call: Call,
    X: Any,
    y: Any,
    settings: Settings,
    candidates: Sequence[Any],
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
) -> list[np.ndarray]:
    """Return the training and test scores of each candidate, (2, n_pairs).

    Each model is tested twice: on its training rows, and on its test rows.
    """
    settings = replace(settings, cv=pairs[:1], groups=None)
    with quietly():
        cross_validation = cross_validation_for(X, y, settings, candidates)
        cross_validation.divide_for(candidates[0])
        n_rows = cross_validation.data.n_rows
        # The two tests of a model are adjacent, so that its training rows are read once.
        trains = [packed(train, n_rows) for train, _ in pairs for _ in range(2)]
        tests = [rows.astype(np.uint32) for pair in pairs for rows in pair]
        order, why = np.arange(n_rows, dtype=np.uint32), "models are tested on their training rows"
        splits = Splits(order, tuple(trains), tuple(tests), why_no_tree=why)
        runs = runs_for(cross_validation.with_splits([splits]), candidates)
        call.method = select_method(runs)
        evaluate_batch(runs)
        return [np.array(run.finish().test_score).reshape(-1, 2).T for run in runs]


_permutation_test_score = model_selection.permutation_test_score
_learning_curve = model_selection.learning_curve
_validation_curve = model_selection.validation_curve

permutation_test_score = replace_function(
    _permutation_test_score, _permutation_test_score_by_engine, "permutation_test_score"
)
learning_curve = replace_function(_learning_curve, _learning_curve_by_engine, "learning_curve")
validation_curve = replace_function(
    _validation_curve, _validation_curve_by_engine, "validation_curve"
)
