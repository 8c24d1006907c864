"""Weights of rows in an evaluation, compared with scikit-learn and with separate trainings."""

from __future__ import annotations

import warnings

from ids import said
import numpy as np
import optuna
from pairs import pairs
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

FOLDS = KFold(5, shuffle=True, random_state=0)
TRIAL = optuna.trial.create_trial(value=0.0)


def always(model):
    """Return what makes a trial of a study without parameters an estimator."""
    return lambda trial: clone(model)


def weights_of(n_rows, seed=0):
    """Return weights of many sizes, some of them 0."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n_rows) < 0.2, 0.0, rng.lognormal(0, 1.5, n_rows))


# Fits: scikit-learn's own numbers.

NESTED = Pipeline([("a", StandardScaler()), ("b", make_pipeline(LogisticRegression()))])
NAMES = {LogisticRegression(): "sample_weight", NESTED: "b__logisticregression__sample_weight"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "name", "as_frame"),
    [(*pair, as_frame) for pair, as_frame in zip(NAMES.items(), (False, True), strict=True)],
    ids=["estimator", "Pipeline of a frame"],
)
def test_fits_have_the_scores_of_cross_validate(estimator, name, as_frame, binary):
    X, y = binary
    weights = weights_of(len(y))
    if as_frame:
        X, y, weights = pd.DataFrame(X).add_prefix("c"), pd.Series(y), pd.Series(weights)
    options = {"cv": FOLDS, "scoring": "neg_log_loss"}
    theirs = cross_validate(estimator, X, y, params={name: weights}, **options)["test_score"]
    options |= {"shuffle": False, "method": "fit"}
    ours = tree_cross_validate(
        estimator, X, y, sample_weight=weights, score_weight=None, **options
    )
    np.testing.assert_array_equal(ours.test_score, theirs)
    by_params = tree_cross_validate(estimator, X, y, params={name: weights}, **options)
    np.testing.assert_array_equal(by_params.test_score, theirs)
    options = {"cv": FOLDS, "method": "fit", "response_method": "predict_proba"}
    predicted = tree_cross_val_predict(estimator, X, y, sample_weight=weights, **options)
    theirs = cross_val_predict(
        estimator, X, y, cv=FOLDS, params={name: weights}, method="predict_proba"
    )
    np.testing.assert_array_equal(predicted, theirs)


@pytest.mark.parametrize(
    ("model", "name", "train"),
    [
        *((model, name, "fit") for model, name in NAMES.items()),
        (SGDRegressor(random_state=0, max_iter=1), "sample_weight", "partial_fit"),
    ],
    ids=["fit", "fit of a Pipeline", "partial_fit"],
)
def test_the_best_estimator_has_the_weights(model, name, train, binary):
    X, y = binary
    weights = weights_of(len(y))
    objective = treecv_objective(always(model), X, y, sample_weight=weights, shuffle=False)
    found = objective.best_estimator(TRIAL)
    expected = getattr(clone(model), train)(X, y, **{name: weights})
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        model=[PegasosClassifier(alpha=0.1), MultinomialNB(), LogisticRegression()],
        kind=["int", "ids", "KFold", "chain", "overlapping"],
    ),
    ids=said,
)
def test_scores_weigh_the_rows_that_are_tested(model, kind, binary):
    X, y = np.abs(binary[0]), binary[1]
    weights = weights_of(len(y)) + 0.01
    weight_of = dict(zip(X[:, 0], weights, strict=True))

    def own(estimator, rows, labels, sample_weight=None):
        mine = [weight_of[first] for first in rows[:, 0]]
        np.testing.assert_array_equal(sample_weight, mine)
        return np.average(estimator.predict(rows) == labels, weights=mine)

    scoring = {"own": own, "error": "error", "accuracy": "accuracy", "f1": "f1_micro"}
    options = {"cv": SPLITTERS[kind][0], "scoring": scoring, "score_weight": weights}
    if kind == "overlapping" and not isinstance(model, LogisticRegression):
        options["method"] = "standard"
    if kind == "chain" and isinstance(model, PegasosClassifier):
        options["method"] = "treecv"
    scores = tree_cross_validate(model, X, y, **options).scores
    for name, sign in (("error", -1), ("accuracy", 1), ("f1", 1)):
        expected = scores["own"].test_score if sign == 1 else 1 - scores["own"].test_score
        np.testing.assert_allclose(scores[name].test_score, expected, rtol=1e-12)


# Training further: a replay by hand.


def trained(model, X, y, weights, phases):
    """Return a clone trained phase by phase; scikit-learn refuses phases without any weight."""
    model = clone(model)
    for rows in phases:
        if weights[rows].any():
            model.partial_fit(X[rows], y[rows], classes=[0, 1], sample_weight=weights[rows])
    return model


@pytest.mark.parametrize("kind", [PegasosClassifier, AveragedSGDClassifier])
def test_rows_of_weight_0_are_steps_of_a_compiled_last_step(kind, binary):
    X, y = binary
    model = kind(shuffle=False, class_weight="balanced")
    options = {
        "cv": "loo",
        "sample_weight": weights_of(len(y)),
        "response_method": "decision_function",
    }
    alone = tree_cross_val_predict(model, X, y, **options)
    pipeline = make_pipeline(FunctionTransformer(), model)
    found = tree_cross_val_predict(pipeline, X, y, **options)
    np.testing.assert_allclose(found, alone, rtol=1e-9)


def test_the_last_step_of_a_pipeline_gets_the_weights(binary, training_paths):
    X, y = binary
    weights = weights_of(len(y))
    pipeline = make_pipeline(StandardScaler(), SGDClassifier(random_state=0, max_iter=1))
    options = {"cv": 7, "stratify": False, "response_method": "decision_function"}
    found = tree_cross_val_predict(pipeline, X, y, sample_weight=weights, **options)
    params = {"sgdclassifier__sample_weight": weights}
    by_name = tree_cross_val_predict(pipeline, X, y, params=params, **options)
    np.testing.assert_array_equal(by_name, found)
    for test, phases in training_paths(len(y), 7):
        scaler, sgd = clone(pipeline[0]), clone(pipeline[1])
        for rows in phases:
            scaler.partial_fit(X[rows])
            if weights[rows].any():
                sgd.partial_fit(
                    scaler.transform(X[rows]), y[rows], [0, 1], sample_weight=weights[rows]
                )
        np.testing.assert_array_equal(
            sgd.decision_function(scaler.transform(X[test])), found[test]
        )


def test_a_first_phase_without_weight(binary, training_paths):
    """The first call of ``partial_fit`` names the classes, and it may come later than usual."""
    X, y = binary
    weights = weights_of(len(y)) + 0.01
    weights[len(y) // 2 :] = 0  # the first phase of the left half of the tree
    model = SGDClassifier(random_state=0, max_iter=1, tol=None)
    options = {"cv": 4, "stratify": False, "shuffle": False, "sample_weight": weights}
    options["response_method"] = "decision_function"
    found = tree_cross_val_predict(model, X, y, **options)
    for test, phases in training_paths(len(y), 4, shuffle=False):
        fitted = trained(model, X, y, weights, phases)
        np.testing.assert_array_equal(found[test], fitted.decision_function(X[test]))


# No label and no weight of a fold acts on its own model.


def response(estimator, rows, _):
    """Score a model by what it says of the rows, whatever their labels and weights are."""
    return float(estimator.decision_function(rows).sum())


IDS = np.random.default_rng(1).integers(-1, 4, 83)
SPLITTERS = {
    "int": (
        6,
        PredefinedSplit(np.searchsorted(np.arange(1, 6) * 83 // 6, np.arange(83), "right")),
    ),
    "loo": ("loo", KFold(83)),
    "KFold": (FOLDS, FOLDS),
    "GroupKFold": (GroupKFold(4), GroupKFold(4)),
    "ids": (IDS, PredefinedSplit(IDS)),
    "repeated": (cv := RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), cv),
    "chain": (TimeSeriesSplit(4), TimeSeriesSplit(4)),
    "overlapping": (cv := ShuffleSplit(4, random_state=0), cv),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scoring=.*may not be a mean over rows", "ignore:.*is fitted")
@pytest.mark.parametrize(
    *pairs(
        model=[SGDClassifier(random_state=0, max_iter=2, tol=None), PegasosClassifier(alpha=0.1)],
        kind=SPLITTERS,
        method=["auto", "standard", "fit"],
    ),
    ids=said,
)
def test_nothing_of_a_fold_reaches_its_own_model(kind, method, model, binary):
    X, y = binary
    weights = weights_of(len(y), 3) + 1e-3
    cv, splitter = SPLITTERS[kind]
    groups = np.arange(len(y)) // 5

    options = {"cv": cv, "groups": groups if kind == "GroupKFold" else None, "method": method}
    options |= {"stratify": False, "shuffle": False, "scoring": response, "score_weight": None}

    def scores(labels, weights):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "SGDClassifier.max_iter")
            found = tree_cross_validate(model, X, labels, sample_weight=weights, **options)
        return found.test_score

    before = scores(y, weights)
    splits = list(splitter.split(X, y, groups))
    n_moved = 0
    for number in {0, len(splits) - 1}:
        is_other = np.ones(len(y), bool)
        is_other[splits[number][0]] = False
        after = scores(np.where(is_other, 1 - y, y), np.where(is_other, 2 * weights, weights))
        assert after[number] == before[number]
        n_moved += np.count_nonzero(after != before)
    assert n_moved


# Names: nothing is shared between different weights.


MODELS = [
    PegasosClassifier(alpha=0.1),
    SGDClassifier(random_state=0, max_iter=1, tol=None),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("what", ["sample_weight", "score_weight"])
@pytest.mark.parametrize("scoring", ["hinge", "roc_auc"])
def test_a_shared_cache_tells_weights_apart(model, what, scoring, binary):
    X, y = binary
    cache = ModelCache()
    options = {"cv": 4, "scoring": scoring}
    found = []
    for weights in (None, weights_of(len(y), 1), weights_of(len(y), 2), np.ones(len(y))):
        given = {what: weights}
        shared = treecv_objective(always(model), X, y, cache=cache, **given, **options).evaluate(
            {}
        )
        alone = treecv_objective(always(model), X, y, cache=None, **given, **options).evaluate({})
        np.testing.assert_array_equal(shared.test_score, alone.test_score)
        found.append(shared.mean)
    assert len(set(found)) == 3
    again = treecv_objective(
        always(model), X, y, cache=cache, **{what: weights_of(len(y), 2)}, **options
    )
    again = again.evaluate({})
    assert again.n_updates == 0
    assert again.mean == found[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample_weight", "score_weight", "params"])
def test_studies_and_stores_tell_weights_apart(name, binary, tmp_path, monkeypatch):
    # A quick machine fits such a tree in less time than what is written must have taken.
    monkeypatch.setattr("optuna_treecv.caching.caches._SECONDS_PER_MODEL", -1.0)
    monkeypatch.setattr("optuna_treecv.caching.results._SECONDS_TO_STORE", -1.0)
    X, y = binary
    store = f"sqlite:///{tmp_path / 'store.db'}"
    means = []
    for weights in (None, weights_of(len(y), 1), weights_of(len(y), 2)):
        given = {"sample_weight": weights} if name == "params" else weights
        for _ in range(2):
            objective = treecv_objective(
                always(DecisionTreeClassifier(random_state=0)), X, y, store=store, **{name: given}
            )
            result = objective.evaluate({})
        assert result.n_updates == 0  # found in the store
        means.append(result.mean)
        if weights is None:
            study = optuna.create_study()
            study.optimize(objective, n_trials=1)
            continue
        with pytest.warns(UserWarning, match="other data, weights, folds or scoring"):
            study.optimize(objective, n_trials=1)
    assert len(set(means)) == 3


def test_weights_that_all_vanish_in_float32_are_refused(binary):
    X, y = binary
    X = X.astype(np.float32)
    weights = np.full(len(y), 1e-50)
    with pytest.raises(ValueError, match="sample_weight must hold a weight above 0 in float32"):
        tree_cross_validate(PegasosClassifier(), X, y, cv=4, sample_weight=weights)
    weights[::2] = 1
    tree_cross_validate(PegasosClassifier(), X, y, cv=4, sample_weight=weights)


@pytest.mark.parametrize("method", ["treecv", "standard"])
def test_weights_of_classes_leave_each_fold_a_row_with_weight(binary, method):
    X, y = binary
    model = PegasosClassifier(class_weight={0: 0, 1: 1})
    with pytest.raises(ValueError, match="class_weight .* for all training rows of fold 1"):
        tree_cross_validate(model, X, y, cv=y, method=method)  # fold 1 has all rows of class 1
    tree_cross_validate(model, X, y, cv=4, method=method)
