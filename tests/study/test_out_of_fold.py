"""Out-of-fold predictions of a trial are those of fits on equal folds, and need no training."""

from __future__ import annotations

import pickle

import numpy as np
import optuna
from pairs import pairs
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import HuberRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import NuSVC
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
import sqlalchemy as sa
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV

X, CODES = make_classification(
    240, n_features=8, n_informative=4, flip_y=0.1, random_state=0, n_classes=3
)
LABELS = np.array(["b", "a", "c"])[CODES]
NUMBERS = X @ np.linspace(-1, 1, 8) + 0.1 * CODES
FOLDS = KFold(4, shuffle=True, random_state=1)
DEPTHS, TREES = {"max_depth": [2, 3]}, {"n_estimators": 3, "random_state": 0}

#: Estimators of all methods that give the models of ``fit``, their grids and outputs.
CASES = [
    (RandomForestClassifier(**TREES), DEPTHS, ["predict", "predict_proba"]),
    (RandomForestRegressor(**TREES), DEPTHS, ["predict"]),
    (
        HistGradientBoostingClassifier(max_iter=5, random_state=0),
        {"learning_rate": [0.1, 0.3]},
        ["predict", "predict_proba"],
    ),
    (DecisionTreeClassifier(random_state=0), DEPTHS, ["predict", "predict_proba"]),
    (NuSVC(), {"nu": [0.3, 0.5]}, ["predict", "decision_function"]),
    (
        make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=1000)),
        {"logisticregression__C": [0.1, 1.0]},
        ["predict", "predict_proba"],
    ),
    (KNeighborsClassifier(), {"n_neighbors": [3, 7]}, ["predict", "predict_proba"]),
    (Ridge(), {"alpha": [0.1, 1.0]}, ["predict"]),
    (HuberRegressor(), {"alpha": [0.1, 1.0]}, ["predict"]),
    (SVC(tol=1e-7), {"C": [0.1, 1.0]}, ["predict", "decision_function"]),
]


def target_of(estimator):
    return NUMBERS if type(estimator).__name__.endswith(("Regressor", "Ridge")) else LABELS


def forest_study(**options):
    estimator = RandomForestClassifier(**TREES)
    return searched(estimator, (X, LABELS), DEPTHS, **{"cv": FOLDS} | options)


@pytest.mark.slow
@pytest.mark.filterwarnings("error:all folds of trial")
@pytest.mark.parametrize(("estimator", "grid", "methods"), CASES)
def test_predictions_are_those_of_fits_on_equal_folds(estimator, grid, methods):
    """Whether outputs are kept changes no score."""
    y = target_of(estimator)
    kept, all_kept, not_kept = (
        searched(estimator, (X, y), grid, cv=FOLDS, keep_outputs=keep_outputs)
        for keep_outputs in ("auto", "all", False)
    )
    values = [[trial.value for trial in study.trials] for _, study in (kept, all_kept, not_kept)]
    assert values[0] == values[1] == values[2]
    objective, study = all_kept if isinstance(estimator, NuSVC) else kept
    estimator.set_params(**study.best_params)
    for method in methods:
        predicted = objective.predict_oof(study, method)
        expected = cross_val_predict(estimator, X, y, cv=FOLDS, method=method)
        if expected.dtype.kind == "U":
            np.testing.assert_array_equal(predicted, expected)
        else:
            np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.filterwarnings("error:all folds of trial")
@pytest.mark.parametrize("cv", [5, "loo"])
def test_predictions_of_the_tree_are_those_that_were_scored(cv):
    y = LABELS == "a"
    grid = {"alpha": [1e-3, 1e-1]}
    objective, study = searched(PegasosClassifier(), (X, y), grid, cv=cv)
    model = PegasosClassifier(**study.best_params)
    for method in ("predict", "decision_function"):
        expected = tree_cross_val_predict(model, X, y, cv=cv, response_method=method)
        predicted = objective.predict_oof(study, method)
        np.testing.assert_array_equal(predicted, expected.astype(predicted.dtype))
    assert np.mean(objective.predict_oof(study) != y) == pytest.approx(study.best_value)


def test_outputs_that_were_not_kept_are_trained_again_with_a_warning():
    kept, study = forest_study()
    other, other_study = forest_study(keep_outputs=False)
    expected = kept.predict_oof(study, "predict_proba")
    with pytest.warns(UserWarning, match="^all folds of trial . are trained once more"):
        predicted = other.predict_oof(other_study, "predict_proba")
    np.testing.assert_array_equal(predicted, expected)  # rounded in the same way


def test_classifiers_that_predict_slowly_keep_what_is_scored():
    objective, study = searched(NuSVC(), (X, LABELS), {"nu": [0.5]}, cv=FOLDS)
    known = objective.evaluator.known_scores.find(study.trials[0])
    assert set(known.outputs) == {"predict"}
    with pytest.warns(UserWarning, match="because its outputs of decision_function are unknown"):
        objective.predict_oof(study, "decision_function")


def test_outputs_of_many_bytes_are_not_kept(monkeypatch):
    monkeypatch.setattr("optuna_treecv.core.request.MAX_OUTPUT_BYTES", 240 * 4 * 4 - 1)
    objective, study = forest_study()
    with pytest.warns(UserWarning, match="use keep_outputs='all'"):
        objective.predict_oof(study, "predict_proba")
    objective, study = forest_study(keep_outputs="all")
    objective.predict_oof(study, "predict_proba")


@pytest.mark.filterwarnings("error:all folds of trial")
@pytest.mark.parametrize("estimator", [CASES[0][0], KNeighborsClassifier(3)])
def test_another_process_finds_outputs_in_the_store(tmp_path, estimator):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    grid = DEPTHS if hasattr(estimator, "max_depth") else {"weights": ["uniform", "distance"]}
    objective, study = searched(estimator, (X, LABELS), grid, cv=FOLDS, store=url)
    expected = objective.predict_oof(study, "predict_proba")
    other = treecv_objective(estimator, X, LABELS, param_grid=grid, cv=FOLDS, store=url)
    assert not other.evaluator.known_scores._scores
    np.testing.assert_array_equal(other.predict_oof(study, "predict_proba"), expected)


def test_a_damaged_entry_of_the_store_is_not_used(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    objective, study = forest_study(store=url)
    expected = objective.predict_oof(study, "predict_proba")
    with sa.create_engine(url).begin() as connection:
        changed = connection.execute(
            sa.text("UPDATE treecv_models SET payload = zeroblob(n_bytes)")
        )
        assert changed.rowcount >= 4  # two trials with two outputs
    other = treecv_objective(
        RandomForestClassifier(**TREES), X, LABELS, param_grid=DEPTHS, cv=FOLDS, store=url
    )
    with pytest.warns(RuntimeWarning, match="the payload is not what was written for this key"):
        predicted = other.predict_oof(study, "predict_proba")
    np.testing.assert_array_equal(predicted, expected)


@pytest.mark.parametrize("changed", ["rows", "labels", "folds", "order"])
def test_outputs_of_other_rows_or_folds_are_not_read_from_the_store(tmp_path, changed):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    forest = RandomForestClassifier(**TREES)
    _, study = searched(forest, (X, LABELS), DEPTHS, cv=FOLDS, store=url)
    data, cv = {"rows": (X[::-1], LABELS), "labels": (X, LABELS[::-1])}, FOLDS
    if changed == "folds":
        cv = KFold(5)
    elif changed == "order":
        cv = KFold(4, shuffle=True, random_state=7)
    rows, labels = data.get(changed, (X, LABELS))
    other = treecv_objective(forest, rows, labels, param_grid=DEPTHS, cv=cv, store=url)
    with pytest.warns(UserWarning, match="all folds of trial"):
        predicted = other.predict_oof(study)
    forest.set_params(**study.best_params)
    np.testing.assert_array_equal(predicted, cross_val_predict(forest, rows, labels, cv=cv))


@pytest.mark.slow
def test_the_store_has_the_outputs_of_the_best_trials(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    grid = {"max_depth": list(range(1, 31))}
    tree = RandomForestClassifier(2, random_state=0)
    objective, study = searched(tree, (X, LABELS), grid, cv=FOLDS, store=url)
    other = treecv_objective(tree, X, LABELS, param_grid=grid, cv=FOLDS, store=url)
    run = other.evaluator.run_of(study.best_trial)
    by_value = sorted(study.trials, key=lambda trial: trial.value)
    are_stored = [other.evaluator.has_outputs(t, run, "predict_proba") for t in by_value]
    assert all(are_stored[:20]) and not all(are_stored)


def test_a_frame_has_the_index_the_folds_and_the_repeats():
    rows = pd.DataFrame(X, index=[f"row {i}" for i in range(len(X))])
    estimator = RandomForestClassifier(**TREES)
    objective, study = searched(estimator, (rows, LABELS), DEPTHS, cv=4, n_repeats=2)
    frame = objective.predict_oof(study, "predict_proba", as_frame=True)
    columns = ["repeat", "fold", "predict_proba_a", "predict_proba_b", "predict_proba_c"]
    assert list(frame.columns) == columns
    assert list(frame.index) == [*rows.index] * 2
    estimator.set_params(**study.best_params)
    cuts = objective.evaluator.cross_validation.tested("bagging").cuts
    for repeat, of_repeat in frame.groupby("repeat"):
        for fold, of_fold in of_repeat.groupby("fold"):
            test = rows.index.isin(of_fold.index)
            np.testing.assert_array_equal(np.flatnonzero(test), cuts[repeat].test_rows(fold))
            estimator.set_params(random_state=repeat)
    labels = objective.predict_oof(study, as_frame=True)
    best = frame[columns[2:]].to_numpy().argmax(axis=1)
    np.testing.assert_array_equal(labels["predict"], np.array(["a", "b", "c"])[best])
    scores = (labels["predict"].to_numpy() != np.tile(LABELS, 2)).mean()
    assert scores == pytest.approx(study.best_value)


@pytest.mark.parametrize(
    ("options", "cv"),
    [
        ({"cv": TimeSeriesSplit(3)}, TimeSeriesSplit(3)),
        ({"cv": RepeatedKFold(n_splits=3, n_repeats=2, random_state=1)}, None),
        ({"cv": 4, "n_repeats": 2}, None),
        ({"cv": 0.3}, None),
    ],
)
@pytest.mark.parametrize(
    ("estimator", "grid", "method"),
    [
        (KNeighborsClassifier(), {"n_neighbors": [3, 7]}, "predict_proba"),
        (LogisticRegression(tol=1e-8), {"C": [0.1, 1.0]}, "predict"),
        (Ridge(), {"alpha": [0.1, 1.0]}, "predict"),
    ],
)
def test_frames_of_joint_methods_have_each_test(estimator, grid, method, options, cv):
    y = target_of(estimator)
    objective, study = searched(estimator, (X, y), grid, **options)
    frame = objective.predict_oof(study, method, as_frame=True)
    estimator.set_params(**study.best_params)
    n_tests = 0
    for (_, fold), part in frame.groupby(["repeat", "fold"]):
        test = part.index.to_numpy()
        train = np.setdiff1d(np.arange(len(X)), test)
        if cv is not None:
            train = [train for train, _ in cv.split(X)][fold]
        fitted = estimator.fit(X[train], y[train])
        expected = getattr(fitted, method)(X[test])
        actual = part.iloc[:, 2:].to_numpy()
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(actual, expected.reshape(actual.shape), rtol=1e-6)
        else:
            np.testing.assert_array_equal(actual[:, 0], expected)
        n_tests += len(test)
    assert n_tests == len(frame)


@pytest.mark.parametrize(
    *pairs(
        estimator=[RandomForestClassifier(**TREES), AveragedSGDClassifier()],
        method=["predict", "predict_proba"],
        options=[{"cv": 4, "n_repeats": 2}, {"cv": TimeSeriesSplit(3)}],
    )
)
def test_frames_do_not_depend_on_what_is_kept(estimator, method, options):
    grid = DEPTHS if hasattr(estimator, "max_depth") else {"alpha": [0.01, 0.1]}
    if method == "predict_proba" and not hasattr(estimator, method):
        method = "decision_function"
    kept, study = searched(estimator, (X, LABELS), grid, **options)
    expected = kept.predict_oof(study.trials[0], method, as_frame=True)
    trained, other = searched(estimator, (X, LABELS), grid, keep_outputs=False, **options)
    with pytest.warns(UserWarning, match="all folds of trial 0 are trained once more"):
        actual = trained.predict_oof(other.trials[0], method, as_frame=True)
    pd.testing.assert_frame_equal(actual, expected)


@pytest.mark.parametrize(("estimator", "grid", "methods"), [CASES[i] for i in (0, 2, 4, 6, 7, 9)])
def test_a_search_has_the_outputs_of_its_best_trial(estimator, grid, methods):
    y = target_of(estimator)
    search = TreeCVSearchCV(estimator, param_grid=grid, cv=FOLDS).fit(X, y)
    estimator.set_params(**search.best_params_)
    expected = cross_val_predict(estimator, X, y, cv=FOLDS, method=methods[-1])
    restored = pickle.loads(pickle.dumps(search))
    np.testing.assert_allclose(search.oof_predictions_, expected, rtol=1e-5, atol=2e-6)
    if isinstance(estimator, Ridge | NuSVC | KNeighborsClassifier):  # computed on first access
        with pytest.raises(AttributeError, match="^oof_predictions_ is not available"):
            restored.oof_predictions_  # noqa: B018
        restored = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(restored.oof_predictions_, search.oof_predictions_)


def test_a_search_without_predictions_of_all_rows_says_why():
    search = TreeCVSearchCV(Ridge(), param_grid={"alpha": [1.0]}, cv=TimeSeriesSplit(3))
    with pytest.raises(AttributeError, match="oof_predictions_ is not available, because"):
        search.oof_predictions_  # noqa: B018
    search.fit(X, NUMBERS)
    with pytest.raises(AttributeError, match="cv must test every row once"):
        search.oof_predictions_  # noqa: B018


def test_missing_pandas_is_named(monkeypatch):
    objective, study = forest_study()
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match="^predict_oof with as_frame=True needs pandas: pip"):
        objective.predict_oof(study, as_frame=True)
    with pytest.raises(ValueError, match="^as_frame must be one of True, False, got 'yes'"):
        objective.predict_oof(study, as_frame="yes")


def test_a_pruned_or_unknown_trial_is_refused():
    objective, study = forest_study()
    trial = optuna.trial.create_trial(value=0.0)
    with pytest.raises(ValueError, match="the trial passed as study"):
        objective.predict_oof(trial)
