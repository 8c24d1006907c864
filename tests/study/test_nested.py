"""Nested cross-validation is that of a loop written with scikit-learn, and sees no tested fold."""

from __future__ import annotations

import logging
from typing import Any
import warnings

from joblib import parallel_config
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
import studies

from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.numerics.moments import Source
from optuna_treecv.plans.fold_task import FoldTask

K = 5
N_ROWS = 200


def numbers() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return X[:N_ROWS], y[:N_ROWS] / 100


def with_gaps() -> tuple[np.ndarray, np.ndarray]:
    X, y = numbers()
    X = X.copy()
    X[::7, 2] = np.nan
    return X, y


def classes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(len(y)) < 0.15, 1 - y, y)
    return X[:N_ROWS, :6], noisy[:N_ROWS]


PATH = np.geomspace(1e-3, 1e2, 5).tolist()
SCALED_LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000))
# By name: engine, estimator, parameter and its values, scoring and data.
CASES: dict[str, tuple[str, Any, str, list[Any], str, Any]] = {
    "ridge": ("exact", Ridge(), "alpha", PATH, "neg_mean_squared_error", numbers),
    "ridge by outputs": ("exact", Ridge(), "alpha", PATH, "neg_mean_absolute_error", numbers),
    "lasso": ("exact", Lasso(tol=1e-9, max_iter=10**6), "alpha", PATH, "r2", numbers),
    "steps by fold": (
        "exact",
        make_pipeline(SimpleImputer(), StandardScaler(), Ridge()),
        "ridge__alpha",
        [0.1, 10.0, 100.0, 1000.0],
        "neg_mean_squared_error",
        with_gaps,
    ),
    "discriminant": (
        "exact",
        LinearDiscriminantAnalysis(solver="eigen"),
        "shrinkage",
        [0.01, 0.1, 0.3],
        "neg_log_loss",
        classes,
    ),
    "logistic": (
        "newton",
        SCALED_LOGISTIC,
        "logisticregression__C",
        PATH,
        "neg_log_loss",
        classes,
    ),
    "neighbors": (
        "neighbors",
        KNeighborsClassifier(),
        "n_neighbors",
        [1, 3, 7, 15],
        "accuracy",
        classes,
    ),
    "tree": (
        "fit",
        DecisionTreeClassifier(random_state=0),
        "max_depth",
        [1, 2, 3, 5],
        "roc_auc",
        classes,
    ),
}


def splits_of(n_rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(KFold(K, shuffle=True, random_state=1).split(np.zeros(n_rows)))


def searched(
    estimator: Any, name: str, values: list[Any], X: Any, y: Any, **settings: Any
) -> tuple[Any, optuna.Study]:
    """Return an objective, and a study of it whose trials have the values in their order."""
    candidates = [{name: value} for value in values]
    space = {name: values}
    return studies.searched(estimator, (X, y), space, candidates=candidates, **settings)


def without_facts(study: optuna.Study, direction: Any) -> optuna.Study:
    """Return a study of the same trials that does not say what they have evaluated."""
    other = optuna.create_study(direction=direction)
    for one in study.trials:
        other.add_trial(
            optuna.trial.create_trial(
                params=one.params, distributions=one.distributions, value=one.value
            )
        )
    return other


def by_scikit_learn(
    estimator: Any, grid: dict[str, Any], X: Any, y: Any, splits: Any, scoring: str
) -> tuple[np.ndarray, list[Any]]:
    """Return the scores of the outer folds, and what the inner searches chose."""
    scores, params = [], []
    fold_of = np.empty(len(y), int)
    for fold, (_, test) in enumerate(splits):
        fold_of[test] = fold
    for train, test in splits:
        search = GridSearchCV(estimator, grid, scoring=scoring, cv=PredefinedSplit(fold_of[train]))
        scores.append(search.fit(X[train], y[train]).score(X[test], y[test]))
        params.append(search.best_params_)
    return np.array(scores), params


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_nested_loop_of_scikit_learn(name: str) -> None:
    engine, estimator, parameter, values, scoring, data = CASES[name]
    X, y = data()
    splits = splits_of(len(y))
    scores, params = by_scikit_learn(estimator, {parameter: values}, X, y, splits, scoring)
    settings = {"cv": splits, "scoring": scoring}
    objective, study = searched(estimator, parameter, values, X, y, **settings)
    assert study.trials[0].user_attrs["treecv"]["method"] == engine
    # A new objective does not know the scores of the study's folds.
    new = treecv_objective(estimator, X, y, param_grid={parameter: values}, **settings)
    for found in (objective.nested(study), new.nested(study)):
        np.testing.assert_allclose(found.test_score, scores, rtol=1e-6)
        assert found.params == params
        assert sum(found.wins.values()) == K
        assert found.mean == found.test_score.mean()
        assert found.best_value == study.best_value
        assert found.n_candidates == len(values)
        for number, n_wins in found.wins.items():
            assert params.count(study.trials[number].params) == n_wins


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [(name, "auto") for name in ("ridge", "logistic", "neighbors", "tree")]
    + [("neighbors", "fit")],
)
def test_the_choice_for_a_fold_does_not_see_it(name: str, method: Any) -> None:
    """Rows and labels of a fold are changed so much that a leak would choose another value."""
    _, estimator, parameter, values, scoring, data = CASES[name]
    X, y = data()
    splits = splits_of(len(y))
    settings = {"cv": splits, "scoring": scoring, "method": method}
    rng = np.random.default_rng(0)
    before, study = searched(estimator, parameter, values, X, y, **settings)
    found, n_changed = before.nested(study), 0
    for fold in range(3):
        test, other_X, other_y = splits[fold][1], X.copy(), y.copy()
        other_X[test] = rng.normal(size=X[test].shape) * X.std(axis=0) * 3
        other_y[test] = 1 - y[test] if scoring != "neg_mean_squared_error" else -5 * y[test]
        objective = treecv_objective(
            estimator, other_X, other_y, param_grid={parameter: values}, **settings
        )
        changed = objective.nested(without_facts(study, study.direction))
        assert changed.params[fold] == found.params[fold]
        n_changed += changed.test_score[fold] != found.test_score[fold]
    assert n_changed


def test_the_choice_for_a_fold_sees_the_others() -> None:
    """Otherwise the test above could not fail."""
    _, estimator, parameter, values, scoring, data = CASES["ridge"]
    X, y = data()
    splits, other_y = splits_of(len(y)), y.copy()
    other_y[splits[0][1]] *= -5
    objective, study = searched(estimator, parameter, values, X, y, cv=splits, scoring=scoring)
    changed = treecv_objective(
        estimator, X, other_y, param_grid={parameter: values}, cv=splits, scoring=scoring
    )
    study_after = without_facts(study, study.direction)
    assert changed.nested(study_after).params[1:] != objective.nested(study).params[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "name", "values", "method"),
    [
        (PegasosClassifier(), "alpha", [1e-3, 1e-1, 10.0], "treecv"),
        (HistTreeClassifier(), "max_depth", [1, 3, 6], "forest"),
        (SGDClassifier(random_state=0), "alpha", [1e-4, 1e-1], "standard"),
    ],
)
def test_where_pairs_of_folds_cannot_be_left_out_at_once(
    estimator: Any, name: str, values: list[Any], method: str
) -> None:
    X, y = classes()
    X = StandardScaler().fit_transform(X)
    splits = splits_of(len(y))
    ids = np.empty(len(y), int)
    for fold, (_, test) in enumerate(splits):
        ids[test] = fold
    options: dict[str, Any] = {"method": method, "shuffle": False}
    objective, study = searched(estimator, name, values, X, y, cv=splits, **options)
    found = objective.nested(study)
    for fold, (train, _) in enumerate(splits):
        means = [
            tree_cross_validate(
                clone(estimator).set_params(**{name: value}),
                *(X[train], y[train]),
                cv=ids[train],
                **options,
            ).mean
            for value in values
        ]
        best = int(np.argmin(means))
        assert found.params[fold] == {name: values[best]}
        whole = objective.evaluate({name: values[best]})
        assert found.test_score[fold] == whole.test_score[fold]


def test_rows_are_read_once_for_all_pairs_of_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    _, estimator, parameter, values, scoring, data = CASES["ridge"]
    objective, study = searched(estimator, parameter, values, *data(), cv=K, scoring=scoring)
    n_read, collect = [], Source.collect

    def counted(self: Source, part: Any) -> Any:
        n_read.append(len(np.arange(N_ROWS)[part]))
        return collect(self, part)

    monkeypatch.setattr(Source, "collect", counted)
    first = objective.nested(study)
    assert sum(n_read) == N_ROWS
    np.testing.assert_array_equal(objective.nested(study).test_score, first.test_score)
    assert sum(n_read) == N_ROWS  # they were kept


@pytest.mark.slow
def test_each_pair_of_folds_is_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, estimator, parameter, values, scoring, data = CASES["tree"]
    objective, study = searched(estimator, parameter, values, *data(), cv=K, scoring=scoring)
    fits, fit = [], FoldTask._fit
    monkeypatch.setattr(FoldTask, "_fit", lambda self, *args: [fits.append(1), fit(self, *args)])
    objective.nested(study)
    assert len(fits) == len(values) * K * (K - 1) / 2
    fits.clear()
    grid = {parameter: values}
    new = treecv_objective(estimator, *data(), param_grid=grid, cv=K, scoring=scoring, n_jobs=2)
    with_known = objective.nested(study)
    with parallel_config("threading"):
        np.testing.assert_array_equal(new.nested(study).test_score, with_known.test_score)


def pairs_without(tests: list[np.ndarray], fold: int, n_rows: int) -> list[Any]:
    """Return the splits of an inner loop, which neither train on nor test a fold."""
    pairs = []
    for test in tests[:fold] + tests[fold + 1 :]:
        is_trained = np.ones(n_rows, bool)
        is_trained[tests[fold]] = is_trained[test] = False
        pairs.append((np.flatnonzero(is_trained), test))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize("case", ["repeats", "groups", "only trained"])
def test_repeats_groups_weights_and_frames(case: str) -> None:
    X, y = classes()
    rng = np.random.default_rng(0)
    settings: dict[str, Any] = {"sample_weight": rng.random(len(y)) + 0.5, "scoring": "log_loss"}
    frame, name = pd.DataFrame(X).add_prefix("column "), "logisticregression__C"
    folds: dict[str, Any] = {
        "repeats": {"cv": K, "n_repeats": 2},
        "groups": {"cv": K, "groups": rng.integers(30, size=len(y))},
        "only trained": {"cv": np.where(np.arange(len(y)) < 20, -1, np.arange(len(y)) % K)},
    }[case]
    objective, study = searched(SCALED_LOGISTIC, name, PATH, frame, y, **settings, **folds)
    found = objective.nested(study)
    cuts = [repeat.cut for repeat in objective.evaluator.cross_validation.repeats]
    assert len(found.test_score) == K * len(cuts)
    for place, params in enumerate(found.params):
        cut = cuts[place // K]
        numbers = np.argsort([cut.number(chunk) for chunk in range(K)])
        pairs = pairs_without([cut.test_rows(chunk) for chunk in numbers], place % K, len(y))
        means = [
            tree_cross_validate(
                clone(SCALED_LOGISTIC).set_params(**{name: C}), frame, y, cv=pairs, **settings
            ).mean
            for C in PATH
        ]
        assert params == {name: PATH[int(np.argmin(means))]}
        known = objective.evaluate(params).test_score[place]
        assert found.test_score[place] == pytest.approx(known, rel=1e-9)


def test_the_interval_covers_the_whole_procedure() -> None:
    X, y = numbers()
    objective, study = searched(Ridge(), "alpha", PATH, X, y, cv=K)
    found = objective.nested(study, level=0.9)
    assert found.interval is not None
    assert found.interval.level == 0.9 and found.interval.method == "nadeau_bengio"
    assert "of choosing by cross-validation among 5 candidates" in found.interval.target
    half = found.interval.high - found.mean
    S = np.var(found.test_score, ddof=1)
    assert half == pytest.approx(2.131846786 * np.sqrt((1 / K + 1 / (K - 1)) * S))
    assert repr(found).startswith(f"Nested(mean={found.mean:.6g}, best_value=")
    assert "wins={" in repr(found) and f"low={found.low:.6g}" in repr(found)


@pytest.mark.slow
def test_resample_searches_again_for_each_fold() -> None:
    X, y = classes()
    splits = splits_of(len(y))
    objective = treecv_objective(
        SCALED_LOGISTIC,
        X,
        y,
        param_distributions={"logisticregression__C": FloatDistribution(1e-4, 1e2, log=True)},
        cv=splits,
        scoring="log_loss",
    )
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=3)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=6)
    found = objective.nested(study, resample=True)
    again = objective.nested(study, resample=True)
    np.testing.assert_array_equal(again.test_score, found.test_score)
    assert found.wins == {} and found.n_candidates == 6 and len(found.params) == K
    values = [params["logisticregression__C"] for params in found.params]
    assert len(set(values)) == K
    assert not set(values) & {one.params["logisticregression__C"] for one in study.trials}
    for fold, (split, C) in enumerate(zip(splits, values, strict=True)):
        model = SCALED_LOGISTIC.set_params(logisticregression__C=C)
        score = tree_cross_validate(model, X, y, cv=[split], scoring="log_loss").mean
        assert found.test_score[fold] == pytest.approx(score, rel=1e-6)
    assert len(study.trials) == 6


@pytest.mark.slow
def test_resample_over_a_grid_chooses_as_fixed_candidates_do() -> None:
    X, y = classes()
    for estimator, name, values in [
        (HistTreeClassifier(), "max_depth", [1, 3, 6]),
        (DecisionTreeClassifier(random_state=0), "max_depth", [1, 2, 4]),
    ]:
        objective = treecv_objective(estimator, X, y, param_grid={name: values}, cv=splits_of(200))
        sampler = objective.grid_sampler(seed=0)
        study = optuna.create_study(direction=objective.direction, sampler=sampler)
        study.optimize(objective)
        fixed, again = objective.nested(study), objective.nested(study, resample=True)
        np.testing.assert_allclose(again.test_score, fixed.test_score)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resample", "last"),
    [
        ("tree", False, "nested: 4 of 4 candidates"),
        ("neighbors", False, "nested: 5 of 5 folds"),
        ("neighbors", True, "nested: 5 of 5 folds"),
    ],
)
def test_progress_is_logged_as_trials_are(
    name: str, resample: bool, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, estimator, parameter, values, scoring, data = CASES[name]
    X, y = data()
    grid = {parameter: values}
    objective = treecv_objective(estimator, X, y, param_grid=grid, cv=K, scoring=scoring)
    study = optuna.create_study(
        direction=objective.direction, sampler=objective.grid_sampler(seed=0)
    )
    study.optimize(objective)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr(logging.getLogger("optuna"), "handlers", [handler])
    objective.nested(study, resample=resample)
    assert not records
    optuna.logging.set_verbosity(optuna.logging.INFO)
    objective.nested(study, resample=resample)
    lines = [one.getMessage() for one in records if "nested" in one.getMessage()]
    assert len(lines) == int(last.split()[1]) and lines[-1].startswith(last)


class LastLabel(ClassifierMixin, BaseEstimator):
    """Predict the label of one of the last training rows: a guess that the row order decides."""

    def __init__(self, rows_before: int = 0) -> None:
        self.rows_before = rows_before

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> LastLabel:
        self.classes_ = np.array([0, 1])
        self.guess_ = y[max(-len(y), -1 - self.rows_before)]
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), self.guess_)


def test_resample_scores_the_models_of_the_study() -> None:
    """PEGASOS guesses on unscaled columns: its models depend on the order of the rows.

    The objective has warned of such columns, and its folds do not warn again.
    """
    X, y = load_breast_cancer(return_X_y=True)
    grid = {"alpha": [1e-3, 1e-1]}
    with pytest.warns(UserWarning, match="the ranges of the columns"):
        objective = treecv_objective(PegasosClassifier(), X, y, param_grid=grid, cv=K)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the ranges of the columns")
        study.optimize(objective)
        found = objective.nested(study, resample=True)
    for fold, params in enumerate(found.params):
        assert found.test_score[fold] == objective.evaluate(params).test_score[fold]


@pytest.mark.nightly
def test_intervals_of_guesses_cover_their_error() -> None:
    """A model guesses class 1, of 70 % of the rows, in 70 % of the orders: its error is 0.42."""
    error, means, covers = 2 * 0.7 * 0.3, [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(50, 1)), rng.permutation(np.arange(50) < 35).astype(int)
        options: dict[str, Any] = {"cv": K, "method": "treecv", "random_state": seed}
        objective = treecv_objective(
            LastLabel(), X, y, param_grid={"rows_before": [0, 1]}, **options
        )
        study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
        study.optimize(objective)
        found = objective.nested(study, resample=True)
        assert found.interval is not None
        means.append(found.mean)
        covers.append(found.interval.low <= error <= found.interval.high)
    assert np.mean(means) == pytest.approx(error, abs=3 * np.std(means) / np.sqrt(40))
    assert np.mean(covers) >= 0.8


@pytest.mark.slow
def test_a_callable_and_a_store(tmp_path: Any) -> None:
    X, y = classes()

    def suggest(trial: Any) -> Any:
        if trial.suggest_categorical("kind", ["ridge", "tree"]) == "tree":
            # Its seed is that of the study.
            return ExtraTreesClassifier(3, max_depth=trial.suggest_int("max_depth", 1, 5))
        C = trial.suggest_float("C", 1e-3, 1e2, log=True)
        return make_pipeline(StandardScaler(), LogisticRegression(C=C))

    store = f"sqlite:///{tmp_path / 'store.db'}"
    settings: dict[str, Any] = {"cv": splits_of(len(y)), "scoring": "accuracy", "store": store}
    objective = treecv_objective(suggest, X, y, **settings)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=8)
    found = objective.nested(study)
    again = treecv_objective(suggest, X, y, **settings).nested(study)
    assert found.params == again.params
    np.testing.assert_allclose(again.test_score, found.test_score)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"cv": 0.3}, "^cv must make 3 to 100 folds .*, got 1\\.$"),
        ({"cv": 2}, "^cv must make 3 to 100 folds .*, got 2\\.$"),
        ({"cv": "loo"}, "^cv must make 3 to 100 folds .*, got 200\\.$"),
        (
            {"cv": ShuffleSplit(3, random_state=0)},
            "^cv must train on .*, but test sets overlap\\.$",
        ),
        (
            {"cv": TimeSeriesSplit(4)},
            "^cv must train on .*, but in a time series, .* would depend on later folds\\.$",
        ),
        (
            {"cv": [(np.arange(0, 50), np.arange(50, 99)), (np.arange(99, 150), np.arange(50))]},
            "^cv must train on .*, but the iterable neither trains on nor tests row",
        ),
        ({"cv": K, "scoring": pooled("r2")}, "^nested cross-validation needs a score .* pooled"),
    ],
)
def test_refusals_of_folds(settings: Any, why: str) -> None:
    objective, study = searched(Ridge(), "alpha", [0.1, 1.0], *numbers(), **settings)
    with pytest.raises(ValueError, match=why):
        objective.nested(study)


def test_refusals_of_studies_and_arguments() -> None:
    """Studies that ``select`` refuses too are tested there."""
    X, y = numbers()
    grid = {"alpha": [0.1, 1.0]}
    objective, study = searched(Ridge(), "alpha", grid["alpha"], X, y, cv=K)
    with pytest.raises(ValueError, match="^resample must be one of"):
        objective.nested(study, resample="yes")
    with pytest.raises(ValueError, match="^level must be between 0 and 1"):
        objective.nested(study, level=95)
    study.enqueue_trial({"alpha": 0.1})
    study.optimize(objective, n_trials=1)
    assert objective.nested(study).n_candidates == 2  # equal parameters are one candidate
    depths = {"max_depth": IntDistribution(1, 3)}
    trees = treecv_objective(DecisionTreeClassifier(), *classes(), param_distributions=depths)
    with pytest.raises(ValueError, match="study must have been run with this objective"):
        trees.nested(study)
    with pytest.raises(ValueError, match="the study's direction must be 'minimize'"):
        objective.nested(without_facts(study, "maximize"))
    losses = ["squared_error", "absolute_error"]
    several = treecv_objective(Ridge(), X, y, param_grid=grid, scoring=losses, optimize=losses)
    with pytest.raises(ValueError, match="directions must be"):
        several.nested(without_facts(study, "minimize"))


def test_folds_that_are_stratified_on_request() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    values, found = [1e-3, 1e-1], []
    for stratify in (True, "auto"):
        options: dict[str, Any] = {"cv": 5, "stratify": stratify}
        objective, study = searched(PegasosClassifier(), "alpha", values, X, y, **options)
        found.append(objective.nested(study).test_score)
    assert np.array_equal(*found)
