"""Honest scores and ensembles follow from outputs of models that had not seen the rows."""

from __future__ import annotations

import copy
from functools import cache
from importlib import import_module
from pathlib import Path
import pickle
from unittest.mock import patch
import warnings

from contests import contest
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.base import is_regressor
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
import studies

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import select
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.crossval.losses import Losses
from optuna_treecv.crossval.losses import losses_per_unit
from optuna_treecv.crossval.losses import standard_error
from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.study import honest as honest_module
from optuna_treecv.study.advice import advice_of
from optuna_treecv.study.honest import choose_best
from optuna_treecv.study.honest import corrected_by_folds
from optuna_treecv.study.honest import out_of_bag_mean
from optuna_treecv.study.records import KnownScores

X, Y = load_breast_cancer(return_X_y=True)
X, LABELS = scale(X)[:240], np.array(["benign", "malignant"])[Y[:240]]
NUMBERS = tuple(part[:200] for part in load_diabetes(return_X_y=True))
NEIGHBORS = {"n_neighbors": list(range(1, 31))}


def searched(estimator, grid, data=(X, LABELS), **options):
    """Return an objective and a study over a grid."""
    return studies.searched(estimator, data, grid, **{"cv": 5} | options)


@cache
def neighbors():
    """Return the objective and the study of several tests, which change neither."""
    return searched(KNeighborsClassifier(), NEIGHBORS)


# What is held.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "grid", "scoring", "method"),
    [
        (LogisticRegression(), {"C": [0.1, 1.0]}, ["error", "log_loss"], "newton"),
        (KNeighborsClassifier(), {"n_neighbors": [3, 5]}, "neg_log_loss", "neighbors"),
        (RandomForestClassifier(5, random_state=0), {"max_depth": [2, 4]}, "roc_auc", "bagging"),
        (PegasosClassifier(), {"alpha": [0.1, 1.0]}, "accuracy", "treecv"),
        (GaussianNB(), {"var_smoothing": [1e-9]}, pooled("neg_log_loss"), "treecv"),
        (HistTreeClassifier(), {"max_depth": [2, 3]}, "log_loss", "forest"),
        (Lasso(), {"alpha": [1.0, 2.0]}, "neg_mean_absolute_error", "exact"),
        (AveragedSGDRegressor(), {"alpha": [1.0, 2.0]}, "r2", "treecv"),
    ],
)
def test_outputs_are_those_of_the_folds(estimator, grid, scoring, method):
    data = NUMBERS if is_regressor(estimator) else (X, LABELS)
    objective, study = searched(estimator, grid, data, scoring=scoring, cv=4)
    for trial in study.trials:
        assert trial.user_attrs["treecv"]["method"] == method
        held = objective.evaluator.known_scores.find(trial).outputs
        assert held
        tested = objective.evaluator.cross_validation.tested(method).rows
        for name, response in held.items():
            expected = objective.predict_oof(trial, name)[tested]
            if expected.dtype.kind == "U":
                response = np.unique(LABELS)[response]
                np.testing.assert_array_equal(response, expected)
            else:
                np.testing.assert_allclose(response, expected, rtol=2e-6, atol=1e-12)


def test_outputs_of_repeats_lie_behind_each_other():
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, n_repeats=3, cv=4)
    held = objective.evaluator.known_scores.find(study.best_trial).outputs["predict"]
    assert held.shape == (3 * len(X),) and held.dtype == np.int8
    tested = objective.evaluator.cross_validation.tested("neighbors")
    errors = np.unique(LABELS)[held] != LABELS[tested.rows]
    assert errors @ tested.test_shares == pytest.approx(study.best_value, abs=1e-12)


def test_nothing_is_held_where_that_is_not_asked_for():
    objective, study = searched(LogisticRegression(), {"C": [0.1, 1.0]}, keep_outputs=False)
    assert not objective.evaluator.known_scores.find(study.best_trial).outputs
    with pytest.raises(
        ValueError, match="^keep_outputs must be one of 'auto', 'all', False, got True"
    ):
        treecv_objective(Ridge(), *NUMBERS, param_grid={"alpha": [1.0]}, keep_outputs=True)


def test_outputs_go_first_and_those_of_the_worst_trial_before_others():
    known = KnownScores(max_bytes=3000)

    class Trial:
        datetime_start = None

        def __init__(self, number):
            self.number = number

    class Result:
        row_losses = np.zeros(100, np.float32)

        def __init__(self, mean):
            self.mean, self.test_score = mean, np.full(10, mean)

    for number, mean in enumerate([0.3, 0.1, 0.2]):
        outputs = {"predict_proba": np.zeros((100, 2), np.float32)}
        known.note(Trial(number), Result(mean), "minimize", outputs)
    held = [known.find(Trial(number)) for number in range(3)]
    assert [bool(one.outputs) for one in held] == [False, True, False]
    assert all(one.rows is not None for one in held) and known.n_bytes <= 3000


# The honest score.


@pytest.mark.slow
def test_the_correction_is_that_of_bbc_cv():
    """The same estimate by a loop over draws, without the variate that saves draws."""
    generator = np.random.default_rng(0)
    losses = (generator.random((7, 300)) < 0.3).astype(float)
    shares = np.full(300, 1 / 300)
    expected = []
    for _ in range(2500):
        rows = generator.integers(300, size=300)
        best = losses[:, rows].mean(axis=1).argmin()
        lacking = np.setdiff1d(np.arange(300), rows)
        expected.append(losses[best, lacking].mean())
    chosen = int(losses.mean(axis=1).argmin())

    def choose(means, draws):
        return means.argmin(axis=1)

    found = out_of_bag_mean(Losses(losses * shares, shares, "rows"), choose, chosen)
    assert found == pytest.approx(np.mean(expected), abs=0.006)
    assert losses[chosen].mean() + 0.01 < found


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"n_repeats": 2}, {"row_losses": True}])
def test_of_nothing_but_noise_little_is_left(options):
    """Labels are coins, so the error of every model is one half."""
    bests, honest = [], []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        noise = generator.normal(size=(200, 3)), generator.permutation(np.arange(200) % 2)
        objective, study = searched(KNeighborsClassifier(), NEIGHBORS, noise, **options)
        bests.append(study.best_value)
        honest.append(objective.honest(study).mean)
    assert abs(np.mean(honest) - 0.5) < abs(np.mean(bests) - 0.5) / 2


def test_the_result_says_what_it_is():
    objective, study = neighbors()
    honest = objective.honest(study, level=0.9)
    assert honest.value == study.best_value < honest.mean
    assert honest.trial.number == study.best_trial.number
    assert honest.interval.low < honest.mean < honest.interval.high
    assert honest.by == "rows" and honest.unscored == [] and honest.note == ""
    assert 1 < honest.n_contenders <= 30
    assert "5 fold models" in honest.interval.target and honest.interval.level == 0.9
    assert repr(honest).startswith(f"Honest(mean={honest.mean:.6g}, low=")
    assert objective.honest(study, level=0.9).mean == honest.mean  # one seed


def test_scores_are_corrected_downwards():
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, scoring="accuracy")
    errors, same = neighbors()
    honest = objective.honest(study)
    assert honest.mean == pytest.approx(1 - errors.honest(same).mean, abs=2e-3)
    assert honest.mean < honest.value and honest.interval.low < honest.interval.high


def test_rows_are_those_of_row_losses():
    objective, study = searched(Ridge(), {"alpha": [0.1, 1.0, 10.0]}, NUMBERS)
    with_rows, same = searched(Ridge(), {"alpha": [0.1, 1.0, 10.0]}, NUMBERS, row_losses=True)
    # By the first, no outputs were held: its scores follow from sums alone.
    assert not objective.evaluator.known_scores.find(study.best_trial).outputs
    one, two = objective.honest(study), with_rows.honest(same)
    assert one.mean == pytest.approx(two.mean, rel=1e-5) and one.by == two.by == "rows"


def test_a_store_corrects_by_folds_as_the_objective_does(tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    options = {"scoring": "roc_auc", "cv": 8, "store": store}
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, **options)
    honest, contest = objective.honest(study), Evaluations(study, store).contest()
    assert honest.by == "folds" and honest.n_contenders < len(study.trials)
    assert honest.mean < honest.value
    assert corrected_by_folds(contest, -1) == pytest.approx(honest.mean, rel=1e-12)


def test_simpler_ones_are_corrected_as_they_are_chosen():
    objective, study = neighbors()
    honest = objective.honest(study, rule="one_se", simpler={"n_neighbors": "larger"})
    assert honest.trial.params["n_neighbors"] > study.best_params["n_neighbors"]
    assert honest.mean != objective.honest(study).mean
    called = objective.honest(study, "one_se", simpler=lambda params: -params["n_neighbors"])
    assert called.mean == honest.mean


def test_groups_are_drawn_whole():
    groups = np.arange(240) // 3
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, groups=groups, cv=GroupKFold(5))
    assert objective.honest(study).by == "groups"
    # Copies of rows tell nothing: the standard error is that of the groups.
    copies = np.repeat(X[:80], 3, axis=0), np.repeat(LABELS[:80], 3)
    lengths = []
    for options in ({"groups": groups, "cv": GroupKFold(5)}, {"cv": fold_ids(groups)}):
        objective, study = searched(
            KNeighborsClassifier(), NEIGHBORS, copies, scoring="log_loss", **options
        )
        interval = objective.honest(study).interval
        lengths.append(interval.high - interval.low)
    assert lengths[0] > 1.4 * lengths[1]


def fold_ids(groups):
    """Return the folds of ``GroupKFold(5)`` without the groups."""
    ids = np.empty(len(groups), int)
    for fold, (_, test) in enumerate(GroupKFold(5).split(groups, groups=groups)):
        ids[test] = fold
    return ids


def purged(n_rows, gap):
    """Return folds of consecutive rows whose neighbours are left out of training."""
    splits = []
    for _, test in KFold(5).split(np.zeros(n_rows)):
        beside = np.clip(np.arange(test[0] - gap, test[-1] + 1 + gap), 0, n_rows - 1)
        splits.append((np.setdiff1d(np.arange(n_rows), beside), test))
    return splits


@pytest.mark.parametrize(
    "cv",
    [TimeSeriesSplit(6), TimeSeriesSplit(15, gap=3), purged(240, 5)],
    ids=["forward", "gap", "purged"],
)
def test_blocks_are_drawn_of_rows_in_the_order_of_time(cv):
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": range(1, 12)}, cv=cv)
    honest = objective.honest(study)
    values = [trial.value for trial in study.trials]
    assert honest.by == "blocks" and honest.note == ""
    assert honest.interval.target.endswith("in the periods on which they were tested")
    assert honest.value == study.best_value <= honest.mean <= max(values)


def test_blocks_of_repeats_are_the_same_rows():
    options = {"cv": TimeSeriesSplit(5), "n_repeats": 2, "method": "fit"}
    objective, study = searched(RandomForestClassifier(3), {"max_depth": [1, 3]}, **options)
    tested = objective.evaluator.cross_validation.tested("fit")
    pieces = tested.pieces(5, 20).reshape(2, -1)
    np.testing.assert_array_equal(*pieces)
    np.testing.assert_array_equal(
        pieces[0][np.argsort(tested.rows[:200])] // 2, np.arange(200) // 4
    )
    assert objective.honest(study).by == "blocks"


def test_the_standard_error_of_blocks_is_that_of_a_stratified_sample():
    objective, _ = searched(KNeighborsClassifier(), {"n_neighbors": [3]}, cv=TimeSeriesSplit(5))
    tested = objective.evaluator.cross_validation.tested("neighbors")
    losses = np.random.default_rng(0).normal(size=(5, 40)) + np.arange(5)[:, None]
    means = losses.reshape(5, 5, 8).mean(axis=2)  # 5 blocks of 8 rows in each fold
    error = np.sqrt(np.var(means, axis=1, ddof=1).sum() / 5 / 5**2)
    found = losses_per_unit(losses.reshape(1, -1), tested)
    assert found.by == "blocks" and found.parts.sum() == pytest.approx(losses.mean())
    quarters = losses.reshape(5, 20, 2).mean(axis=2)
    quarters -= quarters.mean(axis=1, keepdims=True)
    r = np.sum(quarters[:, 1:] * quarters[:, :-1]) / np.sum(quarters**2)
    grows = np.sqrt(1 + 2 * max(0, r))
    assert standard_error(found, 0) == pytest.approx(error * np.sqrt(25 / 24) * grows)


@pytest.mark.parametrize(
    "cv",
    [KFold(5), ShuffleSplit(5, train_size=0.3, test_size=0.3, random_state=0)],
    ids=["folds", "shuffled"],
)
def test_other_splits_say_nothing_of_time(cv):
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": [3, 9]}, cv=cv)
    assert objective.honest(study).by == "rows"


def drifting(n_rows):
    """Return rows whose targets are a slow random walk."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(n_rows, 3)), np.cumsum(generator.normal(size=n_rows))


@pytest.mark.parametrize(
    ("data", "cv", "scoring", "why"),
    [
        (drifting(600), TimeSeriesSplit(5), "absolute_error", "adjacent blocks of 5 test rows"),
        (drifting(60), TimeSeriesSplit(5), "absolute_error", "at least 100 test rows"),
        (drifting(200), TimeSeriesSplit(5), "r2", "folds of time-ordered splits are not"),
        (
            drifting(240),
            [(np.arange(n), np.arange(n, n + 60)) for n in (60, 90, 120, 150)],
            "absolute_error",
            "time-ordered test sets that share rows",
        ),
    ],
    ids=["correlated", "few", "folds", "shared"],
)
def test_what_is_not_exchangeable_is_refused(data, cv, scoring, why):
    grid = {"n_neighbors": [1, 3, 9]}
    objective, study = searched(KNeighborsRegressor(), grid, data, cv=cv, scoring=scoring)
    with pytest.raises(ValueError, match=f"^honest cannot correct the score .* because .*{why}"):
        objective.honest(study)
    assert select(study, objective).honest is None
    with pytest.warns(UserWarning, match=f"honest_interval_ are NaN, because .*{why}"):
        ensemble = objective.ensemble(study)
    assert np.isfinite(ensemble.oof_score_) and np.isnan(ensemble.honest_score_)
    assert np.all(np.isnan(ensemble.honest_interval_))


def test_correlated_blocks_are_noted():
    generator = np.random.default_rng(0)
    rows, noise = generator.normal(size=(200, 3)), generator.normal(size=200)
    target = np.zeros(200)
    for i in range(1, 200):
        target[i] = 0.9 * target[i - 1] + noise[i]
    grid, options = {"n_neighbors": [1, 3, 9]}, {"cv": TimeSeriesSplit(5)}
    options["scoring"] = "absolute_error"
    objective, study = searched(KNeighborsRegressor(), grid, (rows, target), **options)
    with pytest.warns(
        UserWarning, match="honest: the losses of neighbouring blocks of rows are correlated"
    ):
        honest = objective.honest(study)
    assert honest.note.endswith("so the interval may be too narrow.")


def test_the_mean_is_never_worse_than_all_candidates():
    """Of two candidates that score the same, a draw's choice is the worse one on the others."""
    generator = np.random.default_rng(0)
    one = generator.normal(size=100)
    shares = np.full(100, 1 / 100)
    losses = Losses(np.array([one, one[::-1]]) * shares, shares, "rows")
    assert out_of_bag_mean(losses, choose_best, 0) == pytest.approx(one.mean(), abs=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "splits"),
    [
        ("sources", "forward"),
        ("regimes", "forward"),
        ("sources", "purged"),
        ("sources", "groups 100"),
    ],
)
def test_honest_is_right_by_simulation(kind, splits, monkeypatch):
    """``benchmarks/dependent_rows.py`` simulates more studies of more kinds."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    measure = import_module("dependent_rows").measure
    with warnings.catch_warnings(action="ignore"):
        found = np.array([measure(kind, splits, 500, 0.5, seed) for seed in range(30)])
    found = found[~np.isnan(found[:, 1])]
    value, mean, low, high, is_outside = found.T
    assert len(found) >= 20
    assert abs(mean.mean()) < abs(value.mean()) / 3
    assert np.mean((low <= 0) & (high >= 0)) >= 0.85 and not is_outside.any()


def test_what_cannot_be_known_is_said():
    few = X[:40], LABELS[:40]
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": [1, 3]}, few)
    with pytest.warns(UserWarning, match="honest: a bootstrap of only 40 rows is unreliable"):
        assert "and the interval" in objective.honest(study).note
    folds = {"scoring": "roc_auc", "cv": 3}
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, **folds)
    with pytest.warns(UserWarning, match="honest: a bootstrap of only 3 folds is unreliable"):
        objective.honest(study)
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, **folds, n_repeats=2)
    with pytest.raises(ValueError, match="^honest needs a mean over rows .*scoring='roc_auc'"):
        objective.honest(study)
    with pytest.raises(ValueError, match="^scoring must be a mean over rows for an ensemble"):
        objective.ensemble(study)
    with pytest.raises(ValueError, match="^rule must be one of 'best', 'one_se'"):
        objective.honest(study, rule=min)


@pytest.mark.slow
def test_a_new_objective_computes_what_needs_no_training():
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS)
    again = treecv_objective(KNeighborsClassifier(), X, LABELS, param_grid=NEIGHBORS, cv=5)
    assert again.honest(study).mean == objective.honest(study).mean
    objective, study = searched(SGDClassifier(), {"alpha": [0.1, 1.0]})
    again = treecv_objective(SGDClassifier(), X, LABELS, param_grid={"alpha": [0.1, 1.0]}, cv=5)
    with pytest.raises(ValueError, match="^honest needs the out-of-fold outputs or the fold"):
        again.honest(study)


# Ensembles.


def greedy(probabilities, targets, size):
    """Return the loss and the members by the definition."""

    def loss(members):
        return log_loss(targets, np.mean(probabilities[members], axis=0))

    near = sorted(range(len(probabilities)), key=lambda t: loss([t]))[:20]
    taken = near[:5]
    best = min((loss(near[:1]), near[:1]), (loss(taken), list(taken)))
    while len(taken) < size:
        taken.append(min(near, key=lambda t: loss([*taken, t])))
        best = min(best, (loss(taken), list(taken)))
    return best


@pytest.mark.slow
def test_members_are_those_of_greedy_selection():
    grid = {"n_neighbors": [2, 5, 9, 20, 40], "p": [1, 2]}
    objective, study = searched(KNeighborsClassifier(), grid, scoring="log_loss")
    ensemble = objective.ensemble(study, size=8)
    assert type(ensemble) is VotingClassifier
    trials, tested = study.trials, objective.evaluator.cross_validation.tested("neighbors").rows
    probabilities = np.array(
        [objective.predict_oof(t, "predict_proba")[tested].astype(np.float32) for t in trials]
    ).astype(float)
    loss, taken = greedy(probabilities, LABELS[tested], 8)
    assert ensemble.oof_score_ == pytest.approx(loss, rel=1e-6)
    numbers, counts = np.unique([trials[t].number for t in taken], return_counts=True)
    expected = {f"trial_{n}": c for n, c in zip(numbers, counts, strict=True)}
    assert dict(zip(ensemble.named_estimators_, ensemble.weights, strict=True)) == expected
    assert ensemble.oof_score_ < study.best_value
    assert ensemble.oof_score_ < ensemble.honest_score_
    assert ensemble.honest_interval_[0] < ensemble.honest_score_ < ensemble.honest_interval_[1]


def test_an_ensemble_is_the_mean_of_the_refitted_members():
    grid = {"n_neighbors": [2, 5, 9, 20, 40], "p": [1, 2]}
    codes = Y[: len(X)]  # neighbours of scikit-learn 1.8 have no probabilities of names
    objective, study = searched(KNeighborsClassifier(), grid, (X, codes), scoring="log_loss")
    ensemble = objective.ensemble(study)
    trials = {f"trial_{trial.number}": trial for trial in study.trials}
    members = [objective.best_estimator(trials[name]) for name, _ in ensemble.estimators]
    probabilities = [one.predict_proba(X) for one in members]
    expected = np.average(probabilities, axis=0, weights=ensemble.weights)
    np.testing.assert_allclose(ensemble.predict_proba(X), expected, rtol=1e-12)
    labels = expected.argmax(axis=1)
    np.testing.assert_array_equal(ensemble.predict(X), labels)
    copied = pickle.loads(pickle.dumps(ensemble))
    np.testing.assert_array_equal(copied.predict(X), labels)
    assert copied.honest_score_ == ensemble.honest_score_
    again = make_pipeline(StandardScaler(), ensemble).fit(X, codes)
    assert set(again.predict(X)) == {0, 1}


@pytest.mark.parametrize("scoring", ["squared_error", "r2", pooled("squared_error")])
def test_regressors(scoring):
    grid = {"n_neighbors": [2, 5, 10, 20], "weights": ["uniform", "distance"]}
    objective, study = searched(KNeighborsRegressor(), grid, NUMBERS, scoring=scoring)
    ensemble = objective.ensemble(study, size=10)
    sign = 1 if objective.direction == "minimize" else -1
    assert sign * ensemble.oof_score_ <= sign * study.best_value + 1e-6
    assert ensemble.predict(NUMBERS[0]).shape == (200,)


def test_scores_of_folds_decide_where_rows_have_none():
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, scoring="roc_auc")
    ensemble = objective.ensemble(study, size=5)
    tested = objective.evaluator.cross_validation.tested("neighbors")
    trials = {f"trial_{trial.number}": trial for trial in study.trials}
    mean = np.average(
        [objective.predict_oof(trials[n], "predict_proba")[:, 1] for n, _ in ensemble.estimators],
        axis=0,
        weights=ensemble.weights,
    )
    rows = np.split(tested.rows, tested.cuts[0].begins()[1:-1])
    expected = np.mean([roc_auc_score(LABELS[fold], mean[fold]) for fold in rows])
    assert ensemble.oof_score_ == pytest.approx(expected, abs=1e-9)
    assert expected > study.best_value - 1e-9


def test_ensembles_of_linear_models_may_average_folds():
    objective, study = searched(AveragedSGDRegressor(), {"alpha": [0.01, 1.0]}, NUMBERS)
    ensemble = objective.ensemble(study, kind="kfold_average")
    member = objective.best_estimator(study.best_trial, kind="kfold_average")
    name = f"trial_{study.best_trial.number}"
    np.testing.assert_array_equal(ensemble.named_estimators_[name].coef_, member.coef_)


def test_bad_input_of_ensembles():
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": [3, 5]})
    with pytest.raises(ValueError, match="^size must be an integer from 1 to 1000, got 0"):
        objective.ensemble(study, size=0)
    with pytest.raises(ValueError, match="^kind must be one of 'refit', 'kfold_average'"):
        objective.ensemble(study, kind="all")
    objective, study = searched(SGDClassifier(), {"alpha": [0.1, 1.0]})
    with pytest.raises(ValueError, match="^ensemble needs trials whose out-of-fold output"):
        objective.ensemble(study)
    objective, study = searched(
        LogisticRegression(l1_ratio=1, solver="liblinear"), {"C": [0.1, 1.0]}, keep_outputs="all"
    )
    assert study.best_trial.user_attrs["treecv"]["method"] == "fit"
    assert objective.ensemble(study).predict_proba(X[:3]).shape == (3, 2)


# Advice.


@pytest.mark.parametrize(("spread", "noise"), [(0.5, 2.0), (1.0, 1.0), (1.0, 0.1)])
def test_advice_takes_noise_and_differences_apart(spread, noise):
    generator = np.random.default_rng(0)
    scores = spread * generator.normal(size=(200, 1)) + generator.normal(size=(1, 10))
    advice = advice_of(contest(scores + noise * generator.normal(size=(200, 10))))
    assert advice.noise == pytest.approx(noise / np.sqrt(10), rel=0.1)
    assert advice.spread == pytest.approx(spread, rel=0.2)
    assert (advice.n_repeats > 1) == (noise == 2.0) and advice.n_repeats <= 10
    assert ("so use 5 folds" in str(advice)) == (noise == 0.1)


def test_advice_where_nothing_differs():
    scores = np.random.default_rng(1).normal(size=(12, 10))
    scores -= scores.mean(axis=1, keepdims=True)  # all means are equal
    advice = advice_of(contest(scores))
    assert advice.spread == 0 and "cannot be distinguished from noise" in str(advice)
    with pytest.raises(ValueError, match="^study must have at least 8 complete trials"):
        advice_of(contest(scores[:7]))


def test_few_trials_are_read_where_each_has_many_scores(monkeypatch):
    """A store of leave-one-out has as many scores per trial as there are rows."""
    whole = contest(np.random.default_rng(2).normal(size=(30, 10)))
    read = []

    def folds_of(trials):
        read.append(len(trials))
        return whole.folds_of(trials)

    watched = whole._replace(folds_of=folds_of)
    monkeypatch.setattr("optuna_treecv.study.advice._MAX_SCORES", 120)
    monkeypatch.setattr("optuna_treecv.study.honest._MAX_SCORES", 120)
    assert advice_of(watched).n_trials == 12 and corrected_by_folds(watched, 1) is not None
    assert max(read) == 12
    monkeypatch.setattr("optuna_treecv.study.honest._MAX_SCORES", 19)
    read.clear()
    assert corrected_by_folds(watched, 1) is None and not read


def test_an_objective_gives_advice():
    objective, study = neighbors()
    assert str(objective.advise(study)).startswith(
        "The standard deviation of the true means of 30 trials is 0.0"
    )


# Kept results.


@pytest.mark.parametrize("estimator", [SGDClassifier(random_state=0), GaussianNB()])
def test_kept_results_have_the_outputs(estimator, monkeypatch):
    name = "alpha" if hasattr(estimator, "alpha") else "var_smoothing"
    objective, study = searched(estimator, {name: [1e-3, 1e-2]}, scoring="error")
    mean = objective.honest(study).mean
    objective.evaluator.known_scores = KnownScores()
    monkeypatch.setattr(type(estimator), "fit", None)
    monkeypatch.setattr(type(estimator), "partial_fit", None)
    assert objective.honest(study).mean == mean


def test_searches_correct_their_scores():
    search = TreeCVSearchCV(KNeighborsClassifier(), param_grid=NEIGHBORS, random_state=0)
    search.fit(X, LABELS)
    assert search.study_.trials[0].user_attrs["treecv"]["method"] == "neighbors"
    assert search.honest_score_ < search.best_score_
    losses = TreeCVSearchCV(
        KNeighborsClassifier(), param_grid=NEIGHBORS, random_state=0, scoring="log_loss"
    ).fit(X, LABELS)
    assert losses.honest_score_ < losses.best_score_ < 0
    assert not hasattr(clone(search), "honest_score_")
    search.set_params(refit=lambda results: 0).fit(X, LABELS)
    with pytest.raises(AttributeError, match="^honest_score_ is available after fit if"):
        search.honest_score_  # noqa: B018
    search = TreeCVSearchCV(SVC(), param_grid={"C": [0.1, 1.0]}, cv=0.3, scoring="roc_auc")
    with pytest.raises(AttributeError, match="^honest_score_ is not available: honest needs"):
        search.fit(X, LABELS == LABELS[0]).honest_score_  # noqa: B018


@pytest.mark.slow
def test_corrected_scores_are_computed_when_they_are_asked_for():
    """Once, also by a copy and a pickle, which hold the number and none of the losses."""
    options = {"param_grid": NEIGHBORS, "cv": KFold(5), "random_state": 0}
    search = TreeCVSearchCV(KNeighborsClassifier(), scoring="error", refit=False, **options)
    with patch.object(honest_module, "out_of_bag_mean", wraps=out_of_bag_mean) as computed:
        search.fit(X, LABELS)
        assert not computed.called
        pickled = pickle.dumps(search)
        copied = pickle.loads(pickled)
        assert copied.honest_score_ == search.honest_score_ == copy.copy(search).honest_score_
        assert len(pickle.dumps(search)) == len(pickled)
        assert computed.call_count == 1
        search.fit(X, LABELS)
        assert search.honest_score_ == copied.honest_score_ and computed.call_count == 2
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, scoring="error", cv=KFold(5))
    assert search.honest_score_ == pytest.approx(-objective.honest(study).mean, abs=0.01)


def test_grids_of_ensembles_are_corrected_by_the_scores_of_folds():
    """Outputs are kept of the largest ensembles alone, and they need not have been chosen."""
    grid = {"n_estimators": [1, 3, 5], "max_depth": [2, 4]}
    search = TreeCVSearchCV(RandomForestClassifier(random_state=0), param_grid=grid, cv=5)
    search.fit(X, LABELS)
    assert search.honest_score_ < search.best_score_
    objective, study = searched(search.estimator, grid)
    honest = objective.honest(study)
    assert (honest.by, honest.n_contenders, honest.unscored) == ("folds", 6, [])


def test_searches_make_ensembles():
    search = TreeCVSearchCV(
        KNeighborsClassifier(), param_grid=NEIGHBORS, random_state=0, ensemble=5
    ).fit(X, LABELS)
    assert type(search.best_estimator_) is VotingClassifier
    assert search.honest_score_ == search.best_estimator_.honest_score_
    assert set(search.predict(X)) == set(LABELS)
    with pytest.raises(ValueError, match="^ensemble must be None unless refit is True"):
        search.set_params(refit=False).fit(X, LABELS)
    with pytest.raises(ValueError, match="^ensemble must be an integer from 1 to 1000, got 0"):
        search.set_params(refit=True, ensemble=0).fit(X, LABELS)


def test_each_of_several_values_is_corrected_alone():
    options = {"scoring": ["error", "log_loss", "roc_auc"], "optimize": ["error", "log_loss"]}
    objective, study = searched(KNeighborsClassifier(), NEIGHBORS, **options)
    for name, number in (("error", 0), ("log_loss", 1)):
        alone, same = searched(KNeighborsClassifier(), NEIGHBORS, scoring=name)
        honest = objective.honest(study, score=name)
        assert honest.value == pytest.approx(min(t.values[number] for t in study.trials))
        assert honest.value < honest.mean
        assert honest.mean == pytest.approx(alone.honest(same).mean, rel=0.02)
    with pytest.raises(ValueError, match="^score must be one of 'error', 'log_loss', got None"):
        objective.honest(study)
    with pytest.raises(ValueError, match="^score must be None for a single score, got 'error'"):
        alone.honest(same, score="error")
    options = {"scoring": ["error", "roc_auc"], "optimize": ["error", "roc_auc"]}
    objective, study = searched(KNeighborsClassifier(), {"n_neighbors": [3, 9]}, **options)
    with pytest.raises(ValueError, match="because fold scores are kept only for the first of"):
        objective.honest(study, score="roc_auc")
