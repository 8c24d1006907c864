"""A trial is dropped when the study's own trials say that it hardly ends as the best one."""

from __future__ import annotations

from math import inf

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import create_trial
from optuna.trial import TrialState
import pytest
from scipy.stats import t as student
from sklearn.tree import DecisionTreeRegressor
from small_data import data_of

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import RacingPruner
from optuna_treecv import treecv_objective
from optuna_treecv.study.racing import chance_to_win
from optuna_treecv.study.racing import Comparison
from optuna_treecv.study.racing import is_spared
from optuna_treecv.study.racing import N_CALIBRATING

STEP = 8

# Says nothing of the rows: no bound would drop a trial, and one would drop every trial.
LEVEL = Comparison(100, 0.0, 100.0, 2.0, 15, "last")
LOST = Comparison(10_000, 9_000.0, 9_000.0, 2.0, 15, "last")


def study_of(early, final, direction="minimize", storage=None, step=STEP):
    sign = -1.0 if direction == "maximize" else 1.0
    study = optuna.create_study(direction=direction, storage=storage)
    for one, value in zip(early, final, strict=True):
        study.add_trial(
            create_trial(
                value=sign * value, intermediate_values={step: sign * one, 39: sign * value}
            )
        )
    return study


def decides(study, early, comparison=LEVEL, pruner=None, step=STEP, number_at_least=0):
    """Return whether a new trial with this early loss is pruned, as its study would ask."""
    pruner = RacingPruner() if pruner is None else pruner
    trial = study.ask()
    while trial.number < number_at_least or is_spared(pruner.seed, trial.number):
        study.tell(trial, state=TrialState.FAIL)
        trial = study.ask()
    sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
    trial.report(sign * early, step)
    pruner.tell(trial, step, comparison)
    frozen = study.get_trials(deepcopy=False)[trial.number]
    answer = pruner.prune(study, frozen)
    study.tell(trial, state=TrialState.PRUNED)
    return answer


# The chance.


def test_the_chance_is_that_of_a_weighted_regression():
    rng = np.random.default_rng(0)
    early = rng.uniform(0.2, 0.3, 20)
    final = 0.9 * early + rng.normal(0, 0.004, 20)
    own = 0.24
    best = final.argmin()
    x, y = early - early[best], final - final[best]
    others = np.arange(20) != best
    change = np.abs(y - x)[others]
    scale = np.median(change[y[others] <= np.median(y[others])])
    x, y, at = (
        np.arcsinh(x / scale),
        np.arcsinh(y / scale),
        np.arcsinh((own - early[best]) / scale),
    )
    reach = np.sort(np.abs(x - at))[9] * 1.0001
    weights = np.clip(1 - (np.abs(x - at) / reach) ** 3, 0, None) ** 3
    n = weights.sum() ** 2 / (weights**2).sum()
    design = np.vander(x - at, 2, increasing=True)
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design) / weights.sum())
    beta = inverse @ design.T @ (weights * y) / weights.sum()
    variance = weights @ (y - design @ beta) ** 2 / weights.sum() * n / (n - 2)
    variance = max(variance, 1 / np.cosh(beta[0]) ** 2)
    error = np.sqrt(variance * (1 + inverse[0, 0] / n))
    expected = student.cdf(-beta[0] / error, n - 2)
    assert 0 < chance_to_win(early, final, own) < 0.5
    assert chance_to_win(early, final, own) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("n_known", "noise"), [(8, 0.002), (20, 0.02)])
def test_the_chance_is_calibrated(n_known, noise):
    # Final losses are early ones plus noise: the chances foretold are those that come true.
    rng = np.random.default_rng(1)
    foretold, comes_true = [], []
    for _ in range(2500):
        early = rng.uniform(0.2, 0.3, n_known + 1)
        final = early + rng.normal(0, noise, n_known + 1)
        chance = chance_to_win(early[:-1], final[:-1], early[-1])
        if chance < 1 and early[-1] <= early[:-1].max():
            foretold.append(chance)
            comes_true.append(final[-1] < final[:-1].min())
    foretold, comes_true = np.array(foretold), np.array(comes_true)
    assert comes_true[foretold < 0.05].mean() < 0.05
    assert np.count_nonzero(foretold < 0.05) > 300


def test_the_chance_has_no_unit():
    rng = np.random.default_rng(2)
    early = rng.uniform(1, 2, 15)
    final = early + rng.normal(0, 0.1, 15)
    chance = chance_to_win(early, final, 1.4)
    for unit, zero in ((1e6, 0.0), (1e-6, 0.0), (1.0, -7.0)):
        moved = chance_to_win(unit * early + zero, unit * final + zero, unit * 1.4 + zero)
        assert moved == pytest.approx(chance, rel=1e-6)


@pytest.mark.parametrize("huge", [1e6, 1e150, 1e300])
def test_trials_that_diverge_do_not_blur_the_others(huge):
    rng = np.random.default_rng(3)
    early = rng.uniform(1, 2, 15)
    final = early + rng.normal(0, 0.01, 15)
    own = np.median(early)
    assert chance_to_win(early, final, own) < 0.05
    with_lost = np.append(early, [huge] * 6), np.append(final, [huge / 3] * 6)
    assert chance_to_win(*with_lost, own) < 0.05
    assert chance_to_win(*with_lost, huge) < 0.05


@pytest.mark.parametrize(
    ("early", "final", "own"),
    [
        ([1.0] * 9, [1.0] * 9, 1.0),
        ([1.0] * 9, list(range(9)), 1.0),
        (list(range(9)), [1.0] * 9, 4.0),
        (list(range(9)), list(range(9)), 4.0),
        ([1e300] * 9, [1e300] * 9, 1e300),
        ([1.0, *[1e300] * 8], [1.0, *[1e300] * 8], 1e300),
        ([-1e300, *[1e300] * 8], [-1e300, *[1e300] * 8], 0.0),
    ],
)
def test_a_chance_is_a_number_for_any_losses(early, final, own):
    with np.errstate(all="raise", under="ignore"):
        chance = chance_to_win(np.array(early), np.array(final, float), own)
    assert 0 <= chance <= 1


# The decision.


def sequences(n, noise=0.002, seed=0):
    rng = np.random.default_rng(seed)
    early = np.linspace(0.2, 0.3, n)
    return early, early - 0.02 + rng.normal(0, noise, n)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_trial_without_a_chance_is_dropped(direction):
    study = study_of(*sequences(10), direction)
    assert decides(study, 0.25)
    assert not decides(study, 0.2005)
    assert not decides(study, 0.19)
    assert not decides(study, 0.25, pruner=RacingPruner(futility=None))
    assert not decides(study, 0.25, pruner=RacingPruner(futility=1e-9))


def test_the_first_trials_run_whole():
    early, final = sequences(N_CALIBRATING)
    assert not decides(study_of(early[1:], final[1:]), 0.25, LOST)
    assert decides(study_of(early, final), 0.25)
    assert not decides(study_of(early, final, step=9), 0.25, LOST)  # they tell of other steps


def test_noisy_first_passes_drop_nothing():
    # The case that a bound cannot see: what a trial loses in its first pass it makes up later.
    rng = np.random.default_rng(5)
    early = rng.uniform(0.24, 0.26, 12)
    study = study_of(early, rng.uniform(0.24, 0.26, 12))
    own = float(np.sort(early)[-2])
    assert decides(study, own, LOST, RacingPruner(futility=None))
    assert not decides(study, own, LOST)


def test_beyond_the_known_trials_the_bound_decides():
    study = study_of(*sequences(10))
    assert decides(study, 0.31, LOST)
    assert not decides(study, 0.31, LEVEL)


@pytest.mark.parametrize(
    ("step", "warmup", "answer"), [(5, 2, False), (6, 2, True), (6, 7, False)]
)
def test_the_first_steps_decide_nothing(step, warmup, answer):
    study = study_of(*sequences(10), step=step)
    assert decides(study, 0.25, pruner=RacingPruner(warmup=warmup), step=step) == answer


def test_what_is_known_needs_no_forecast():
    study = study_of(*sequences(10))
    assert not decides(study, 0.25, Comparison(100, 0.0, 100.0, 2.0, 15))


def test_some_trials_without_a_chance_are_completed():
    study = study_of(*sequences(10))
    pruner = RacingPruner(seed=3)
    answers = []
    for _ in range(300):
        trial = study.ask()
        trial.report(0.25, STEP)
        pruner.tell(trial, STEP, LEVEL)
        answers.append(pruner.prune(study, study.get_trials(deepcopy=False)[trial.number]))
        assert answers[-1] != is_spared(3, trial.number)
        study.tell(trial, state=TrialState.PRUNED)
    assert 10 <= answers.count(False) <= 50
    assert [is_spared(3, n) for n in range(99)] != [is_spared(4, n) for n in range(99)]


@pytest.mark.slow
def test_another_worker_decides_the_same(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    study = study_of(*sequences(10), storage=storage)
    other = optuna.load_study(study_name=study.study_name, storage=storage)
    for own in np.linspace(0.19, 0.32, 6).tolist():
        assert decides(study, own) == decides(other, own)


def test_block_means_are_averaged():
    early, final = sequences(10)
    study = optuna.create_study()
    swing = np.array([0.05, -0.05])
    for one, value in zip(early, final, strict=True):
        blocks = {6: one + 0.05, 8: one - 0.05, 39: value}
        study.add_trial(create_trial(value=value, intermediate_values=blocks))
    of_blocks = Comparison(100, 0.0, 100.0, 2.0, 15, "mean")
    pruner = RacingPruner()
    for own, answer in ((0.25, True), (0.19, False)):
        trial = study.ask()
        while is_spared(0, trial.number):
            study.tell(trial, state=TrialState.FAIL)
            trial = study.ask()
        for step, value in zip((6, 8), own - swing, strict=True):
            trial.report(value, step)
        pruner.tell(trial, 8, of_blocks)
        frozen = study.get_trials(deepcopy=False)[trial.number]
        assert pruner.prune(study, frozen) == answer
        study.tell(trial, state=TrialState.PRUNED)


def test_infinite_scores_are_losses_like_others():
    early, final = sequences(10)
    study = study_of([*early, 1e300, 1e300], [*final, inf, inf])
    assert decides(study, 0.25)
    assert decides(study, 1e300)


# In studies.


@pytest.mark.slow
def test_a_study_of_near_ties_is_shortened():
    X, y = data_of(2000, 5)
    space = {"step_size": FloatDistribution(1e-2, 10.0, log=True)}
    found = {}
    for futility in (None, 0.05):
        objective = treecv_objective(
            AveragedSGDClassifier("log_loss", step_size=0.01, average=True),
            X,
            y,
            param_distributions=space,
            cv=10,
            report="progressive",
        )
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=0), pruner=RacingPruner(futility=futility)
        )
        study.optimize(objective, n_trials=40)
        updates = sum(trial.user_attrs["treecv"]["n_updates"] for trial in study.trials)
        found[futility] = updates, study.best_value
        if futility is not None:
            assert {one.state for one in study.trials[:8]} == {TrialState.COMPLETE}
    error = np.sqrt(0.25 / 2000)
    assert found[0.05][0] < 0.8 * found[None][0]
    assert found[0.05][1] < found[None][1] + error / 2


@pytest.mark.slow
def test_fits_of_folds_are_foretold_without_bounds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = X[:, 0] + rng.normal(size=200)
    tree, space = DecisionTreeRegressor(random_state=0), {"max_depth": IntDistribution(1, 30)}
    objective = treecv_objective(tree, X, y, param_distributions=space, report="auto")
    assert objective.pruner().futility == 0.05
    study = optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=0), pruner=objective.pruner()
    )
    study.optimize(objective, n_trials=30)
    assert len(study.get_trials(states=[TrialState.PRUNED])) >= 5
    silent = treecv_objective(tree, X, y, param_distributions=space)
    values = [silent.evaluate(trial.params).mean for trial in study.trials]
    assert study.best_value == min(values)
