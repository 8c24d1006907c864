"""Scores that are not means over rows: where folds are too small for them, a warning says so."""

from __future__ import annotations

import warnings

from conftest import make_folds
import numpy as np
import optuna
import pytest
from sklearn.metrics import accuracy_score
from sklearn.metrics import f1_score
from sklearn.metrics import get_scorer
from sklearn.metrics import get_scorer_names
from sklearn.metrics import make_scorer
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.core.choose import has_small_class
from optuna_treecv.scoring.metrics import make_scoring

N_ROWS = 600
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_ROWS, 3))
TARGETS = X.sum(axis=1) + 0.1 * RNG.normal(size=N_ROWS)
# 60 rows are positive; they lie together, so that folds of consecutive rows have few or none.
LABELS = (np.arange(N_ROWS) < 60).astype(int)

CLASSIFIER, REGRESSOR = PegasosClassifier(), AveragedSGDRegressor()


def told(estimator, y, **options):
    """Return the sentences of the UserWarnings of a cross-validation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tree_cross_validate(estimator, X, y, **options)
    messages = [str(one.message) for one in caught if one.category is UserWarning]
    return [message for message in messages if message.startswith("scoring=")]


def own(model, X, y):
    return float(np.mean(model.predict(X) == y))


def is_mean_over_rows(scoring):
    """Return whether two parts average to the whole; None: neither classes nor numbers."""
    scorer = get_scorer(scoring)
    rng = np.random.default_rng(1)
    labels = rng.permutation(np.arange(40) % 3 == 0).astype(int)
    responses = [(rng.uniform(size=40) > 0.6).astype(int), rng.uniform(size=40)]
    pairs = [(labels, said) for said in responses] + [tuple(rng.uniform(0.5, 1, (2, 40)))]
    found = []
    for y, said in pairs:
        try:
            with warnings.catch_warnings(action="ignore"):
                whole, first, second = (
                    scorer._score_func(y[rows], said[rows], **scorer._kwargs)
                    for rows in (slice(None), slice(10), slice(10, None))
                )
        except (TypeError, ValueError):  # this scorer is of another kind
            continue
        found.append(np.isclose(whole, 0.25 * first + 0.75 * second, rtol=1e-12, atol=0))
    return all(found) if found else None


@pytest.mark.slow
def test_means_over_rows_are_those_whose_fold_scores_average_to_the_whole():
    """A mean over rows of two parts averages to that of the whole, for any predictions."""
    expected = {name: is_mean_over_rows(name) for name in get_scorer_names()}
    expected = {name: is_mean for name, is_mean in expected.items() if is_mean is not None}
    assert len(expected) > 30
    assert {name: make_scoring(name).first.is_mean for name in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "y", "options", "says"),
    [
        (
            CLASSIFIER,
            LABELS,
            {"scoring": "f1", "cv": "loo"},
            "scoring='f1' is not a mean over rows, so its mean over folds with only 1 row is "
            "misleading; use scoring=pooled('f1') or scoring='accuracy' or at most 12 stratified "
            "folds.",
        ),
        (
            AveragedSGDClassifier(loss="log_loss"),
            LABELS,
            {"scoring": "average_precision", "cv": KFold(3)},
            "scoring='average_precision' is not a mean over rows, so its mean over folds with "
            "fewer than 5 rows of a class is misleading; use scoring=pooled('average_precision') "
            "or scoring='log_loss' or at most 12 stratified folds.",
        ),
        (
            REGRESSOR,
            TARGETS,
            {"scoring": "neg_root_mean_squared_error", "cv": 21},
            "scoring='neg_root_mean_squared_error' is not a mean over rows, so its mean over "
            "folds with only 28 rows is misleading; use "
            "scoring=pooled('neg_root_mean_squared_error') or scoring='neg_mean_squared_error' "
            "or at most 20 folds.",
        ),
        (CLASSIFIER, LABELS, {"scoring": own, "cv": 100}, "scoring='own' may not be a mean over"),
        (
            GaussianNB(),
            LABELS,
            {"scoring": make_scorer(f1_score), "cv": 100},
            "may not be a mean over rows, so its mean over folds with only 6 rows",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_small_folds_are_named_with_what_would_do(estimator, y, options, says):
    (sentence,) = told(estimator, y, **options)
    assert says in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "y", "options"),
    [
        (CLASSIFIER, LABELS, {"cv": "loo"}),
        (CLASSIFIER, LABELS, {"scoring": "accuracy", "cv": "loo"}),
        (CLASSIFIER, LABELS, {"scoring": make_scorer(accuracy_score), "cv": 300}),
        (CLASSIFIER, LABELS, {"scoring": "f1", "cv": 12}),
        (CLASSIFIER, TARGETS > 0, {"scoring": "roc_auc", "cv": 10}),
        (REGRESSOR, TARGETS, {"scoring": "neg_mean_squared_error", "cv": 300}),
        (REGRESSOR, TARGETS, {"scoring": "neg_root_mean_squared_error", "cv": 20}),
        (REGRESSOR, TARGETS, {"scoring": "r2", "cv": 20}),
    ],
)
def test_what_is_advised_needs_no_warning(estimator, y, options):
    assert told(estimator, y, **options) == []


def test_the_number_of_folds_that_is_advised_is_the_largest():
    assert told(CLASSIFIER, LABELS, scoring="f1", cv=13)
    assert told(REGRESSOR, TARGETS, scoring="r2", cv=21)


def test_one_warning_per_objective_and_call_at_the_line_of_the_caller():
    models = [PegasosClassifier(alpha=alpha) for alpha in (0.1, 1.0)]
    options = {"scoring": "f1", "cv": 50}

    def suggested(trial):
        return PegasosClassifier(alpha=trial.suggest_float("alpha", 0.1, 1.0))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tree_cross_validate_many(models, X, LABELS, **options)
        assert [one.filename for one in caught if one.category is UserWarning] == [__file__]
        treecv_objective(models[0], X, LABELS, param_grid={"alpha": [0.1, 1.0]}, **options)
        assert [one.filename for one in caught if one.category is UserWarning] == [__file__] * 2
        objective = treecv_objective(suggested, X, LABELS, **options)
        study = optuna.create_study(direction="maximize")
        study.optimize(objective, n_trials=3, n_jobs=2)
        assert len([one for one in caught if one.category is UserWarning]) == 3


@pytest.mark.parametrize("n_folds", [2, 7, 20])
def test_rows_of_a_class_are_counted_in_each_fold(n_folds):
    """Compare with counting fold by fold."""
    codes = np.random.default_rng(n_folds).choice(3, p=[0.1, 0.2, 0.7], size=N_ROWS)
    ids = np.random.default_rng(1).integers(0, n_folds, N_ROWS)
    for cv in (n_folds, ids):
        folds = make_folds(cv, X, codes, None, True, 3, N_ROWS)
        even = np.arange(n_folds + 1) * N_ROWS // n_folds
        bounds = even if folds.bounds is None else folds.bounds
        cuts = zip(bounds, bounds[1:], strict=False)
        each = [codes[folds.order[start:stop]] for start, stop in cuts]
        fewest = min(int((part == code).sum()) for part in each for code in range(3))
        assert np.diff(folds.begins()).min() == min(map(len, each))
        assert has_small_class(folds, fewest + 1, codes)
        assert not has_small_class(folds, fewest, codes)
