"""Races while ensembles grow: what a pruner foretells from reports, and what a study shows."""

import gc
import warnings
from weakref import WeakSet

from joblib import parallel_config
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import create_trial
from optuna.trial import TrialState
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedKFold
from studies import searched

from optuna_treecv import RacingPruner
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.core.engine import LEAD_STEPS
from optuna_treecv.core.result import Curve
from optuna_treecv.dashboard import publish
from optuna_treecv.engines.ensembles import sklearn as growing
from optuna_treecv.engines.ensembles.growth import BLOCKS as ALL_BLOCKS
from optuna_treecv.report import plot_trees
from optuna_treecv.study.growing import GrowthComparison
from optuna_treecv.study.growing import is_beaten
from optuna_treecv.study.growing import predict_final
from optuna_treecv.study.racing import early_and_final

X, Y = make_classification(240, 6, n_informative=4, flip_y=0.2, random_state=0)
SPACE = {
    "learning_rate": FloatDistribution(0.01, 1.0, log=True),
    "max_leaf_nodes": IntDistribution(2, 16),
}


def study_of(curves, finals, pruned=(), direction="minimize"):
    """Return a study whose trials have reported these curves, by step."""
    study = optuna.create_study(direction=direction, pruner=RacingPruner())
    for curve, final in zip(curves, finals, strict=True):
        study.add_trial(create_trial(value=final, intermediate_values=dict(enumerate(curve))))
    for curve in pruned:
        values = dict(enumerate(curve))
        study.add_trial(create_trial(state=TrialState.PRUNED, intermediate_values=values))
    return study


def running(study, curve):
    trial = study.ask()
    for step, value in enumerate(curve):
        trial.report(value, step)
    return trial


BLOCKS = (8, 16, 24, 32, 48, 64)


def level(n_trees, rate):
    """Return a loss that is linear in the logarithm of the rate times the number of trees."""
    return 3.0 - np.log(rate * np.asarray(n_trees))


def frozen(study, trial):
    return study.get_trials(deepcopy=False)[trial.number]


def growth(n_left=0, n_grown=1, variance=np.inf):
    return GrowthComparison(BLOCKS, n_left, n_grown, 5, variance)


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_final_loss_is_that_of_the_best_trial_after_as_much_learning(rate, sign):
    study = study_of([sign * level(BLOCKS, 1.0)], [sign * level(64, 1.0)])
    trial = frozen(study, running(study, sign * level(BLOCKS[:4], rate)))
    best = study.get_trials(deepcopy=False)[0]
    predicted = predict_final(trial, best, BLOCKS, sign)
    assert predicted == pytest.approx(level(64, rate), rel=1e-12)


def test_a_loss_that_the_best_trial_never_had_is_predicted_from_its_slope_or_kept():
    study = study_of([level(BLOCKS, 1.0), level(BLOCKS[:1], 1.0)], [level(64, 1.0), 9.0])
    best, short = study.get_trials(deepcopy=False)
    slow = frozen(study, running(study, level(BLOCKS[:3], 0.25)))  # the best had it before 8 trees
    assert predict_final(slow, best, BLOCKS, 1.0) == pytest.approx(level(64, 0.25))
    slower = frozen(study, running(study, level(BLOCKS[:3], 0.05)))
    assert predict_final(slower, best, BLOCKS, 1.0) == level(24, 0.05)
    assert predict_final(slow, short, BLOCKS, 1.0) == level(8, 1.0)
    fast = frozen(study, running(study, level(BLOCKS[:3], 9.0)))  # better than the best at its end
    assert predict_final(fast, best, BLOCKS, 1.0) == level(24, 9.0)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_slow_trials_are_beaten_while_their_first_fold_grows(direction):
    sign = 1.0 if direction == "minimize" else -1.0
    curves = [sign * level(BLOCKS, rate) for rate in (1.0, 0.7, 0.6)]
    for n_completed, n_reports, rate, beaten in (
        *((3, 4, 0.5, True), (3, 4, 1.1, False)),
        (3, 3, 0.5, False),  # 24 of 64 trees
        (2, 4, 0.5, False),
    ):
        finals = [curve[-1] for curve in curves]
        study = study_of(curves[:n_completed], finals[:n_completed], direction=direction)
        trial = running(study, sign * level(BLOCKS[:n_reports], rate))
        assert is_beaten(study, frozen(study, trial), growth(n_left=32)) == beaten


def test_the_margin_follows_from_completed_trials_and_from_rows():
    """The mean of the folds is 0.1 and 0.3 worse than the first fold, compared with the best."""
    study = study_of([[1.0], [1.5], [1.6]], [1.2, 1.8, 2.1])
    residuals = np.array([0.1, 0.3])
    for variance, sigma in (
        (np.inf, np.sqrt(np.mean(residuals**2))),
        (0.36, np.sqrt((np.sum(residuals**2) + 2 * 0.36) / 4)),
    ):
        for factor, beaten in ((0.999, False), (1.001, True)):
            trial = running(study, [1.0 + factor * sigma])
            assert is_beaten(study, frozen(study, trial), growth(variance=variance)) == beaten


def test_a_completed_trial_without_a_finite_score_says_nothing_about_the_margin():
    study = study_of([[1.0], [1.5], [1.6], [1e300]], [1.2, 1.8, 2.1, np.inf])
    trial = running(study, [1.0 + 1.001 * np.sqrt(np.mean(np.square([0.1, 0.3])))])
    assert is_beaten(study, frozen(study, trial), growth())


def test_more_folds_leave_less_doubt():
    reports = [{0: 1.0, LEAD_STEPS + 1: 1.1}, {0: 1.5}, {0: 1.6}]
    study = optuna.create_study(pruner=RacingPruner())
    for values, final in zip(reports, [1.2, 1.8, 2.1], strict=True):
        study.add_trial(create_trial(value=final, intermediate_values=values))
    sigma = np.sqrt(np.mean(np.square([0.1, 0.3]))) * np.sqrt((5 - 3) / (3 * 4))
    for factor, beaten in ((0.999, False), (1.001, True)):
        trial = study.ask()
        trial.report(0.5, 0)
        trial.report(1.1 + factor * sigma, LEAD_STEPS + 1)
        assert is_beaten(study, frozen(study, trial), growth(n_grown=3)) == beaten


def test_a_fifth_of_the_trials_is_completed():
    curves, finals = [[1.0], [1.2]], [1.0, 1.2]
    for n_pruned, beaten in ((7, True), (8, False)):
        study = study_of(curves, finals, [[9.0]] * n_pruned)
        trial = running(study, [50.0])
        assert is_beaten(study, frozen(study, trial), growth(variance=0.01)) == beaten


def test_one_completed_trial_without_rows_prunes_no_trial():
    study = study_of([[1.0]], [1.0])
    trial = running(study, [50.0])
    assert not is_beaten(study, frozen(study, trial), growth())
    assert is_beaten(study, frozen(study, trial), growth(variance=1.0))


def test_the_pruner_asks_only_about_reported_values_and_with_futility():
    study = study_of([[1.0]], [1.0])
    trial = running(study, [50.0])
    study.pruner.tell(trial, 0, growth(variance=1.0))
    assert trial.should_prune()
    study.pruner.tell(trial, 1, growth(variance=1.0))  # NaN is not reported
    assert not trial.should_prune()
    study.pruner.futility = None
    study.pruner.tell(trial, 0, growth(variance=1.0))
    assert not trial.should_prune()


def test_trials_that_ended_early_count_by_their_last_report():
    study = study_of([[3.0, 2.0], [3.0, 2.5, 2.4]], [2.0, 2.4])
    trial = running(study, [3.0, 2.6, 2.5])
    assert early_and_final(study, frozen(study, trial), 2, "last")[1].tolist() == [2.0, 2.4]


def test_the_curve_ends_where_its_mean_has_not_been_better_for_long():
    means = np.array([5, 4, 3, 3, 3.5, 2, 2, 2, 2, 1])
    scores = np.stack([means - 0.5, means + 0.5])
    sizes = np.arange(1, 11)
    for patience, n_sizes, best in ((None, 10, 10), (2, 5, 3), (3, 9, 6), (9, 10, 10)):
        curve = Curve.of(scores, sizes, 1.0, patience)
        assert (len(curve.mean), curve.best) == (n_sizes, best)
        assert curve.value == means[best - 1]
        np.testing.assert_allclose(curve.std_error, 0.5)
        assert curve.has_ended(patience) == (n_sizes < 10)
    assert Curve.of(-scores, sizes, -1.0, 2).best == 3


@pytest.mark.slow
def test_a_study_races_and_shows_its_best_curve(tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    objective = treecv_objective(
        HistGradientBoostingClassifier(max_iter=25, random_state=0),
        X,
        Y,
        param_distributions=SPACE,
        cv=StratifiedKFold(3),
        scoring="log_loss",
        n_estimators="best",
        report="auto",
        store=store,
    )
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler, pruner=objective.pruner())
    assert "no finished trial" in plot_trees(study).layout.annotations[0].text
    study.optimize(objective, n_trials=15)
    pruned = [one for one in study.trials if one.state == TrialState.PRUNED]
    assert len(pruned) > 3
    assert all(one.user_attrs["treecv"]["n_updates"] < 160 * 3 for one in pruned)
    assert max(len(one.intermediate_values) for one in study.trials) <= 32
    facts = study.best_trial.user_attrs["treecv"]
    n_trees, mean, _ = facts["curve"]
    assert facts["n_estimators"] == n_trees[int(np.argmin(mean))]
    figure = plot_trees(study)
    assert figure.data[-1].y.min() == pytest.approx(study.best_value, rel=1e-5)
    publish(study, store)
    names = [key for key in study._storage.get_study_system_attrs(study._study_id)]
    assert any("treecv-trees" in name for name in names)


@pytest.mark.slow
def test_a_hold_out_races_too():
    objective = treecv_objective(
        HistGradientBoostingClassifier(max_iter=40, random_state=0),
        X,
        Y,
        param_distributions=SPACE,
        method="holdout",
        scoring="log_loss",
        report="auto",
    )
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler, pruner=objective.pruner())
    study.optimize(objective, n_trials=15)
    pruned = [one for one in study.trials if one.state == TrialState.PRUNED]
    assert pruned and all(len(one.intermediate_values) < 6 for one in pruned)


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_folds_that_do_not_grow_are_fitted_and_others_count_once(monkeypatch, n_jobs):
    grow, n_calls = growing.BaggedGrowth.grow, []

    def failing(self, *given):
        n_calls.append(given)
        if len(n_calls) > 2:
            raise TypeError("as code of another library may")
        yield from grow(self, *given)

    forest = RandomForestClassifier(5, random_state=0)
    options = {"cv": StratifiedKFold(4), "scoring": "roc_auc", "n_jobs": n_jobs}
    expected = tree_cross_validate(forest, X, Y, **options)
    monkeypatch.setattr(growing.BaggedGrowth, "grow", failing)
    objective = treecv_objective(
        forest, X, Y, param_grid={"max_depth": [None]}, report="folds", **options
    )
    study = optuna.create_study(
        direction="maximize", sampler=objective.grid_sampler(), pruner=optuna.pruners.NopPruner()
    )
    with parallel_config("threading"):
        study.optimize(objective)
    assert study.trials[0].user_attrs["treecv"]["method"] == "fit" and len(n_calls) > 2
    assert study.best_value == expected.mean and expected.method == "bagging"
    assert len(study.trials[0].intermediate_values) == 4


@pytest.mark.slow
def test_forests_of_one_fold_are_there_at_a_time(monkeypatch):
    """A forest may take more memory than the rows."""
    alive, most = WeakSet(), []
    grow = growing.BaggedGrowth.grow

    def counting(self, *given):
        alive.add(self)
        gc.collect()
        most.append(len(alive))
        yield from grow(self, *given)

    monkeypatch.setattr(growing.BaggedGrowth, "grow", counting)
    result = tree_cross_validate(
        RandomForestClassifier(5, random_state=0), X, Y, cv=6, scoring=["roc_auc", "accuracy"]
    )
    assert result.method == "bagging" and most == [1] * 6


def test_a_race_of_params_that_were_tried_before():
    """Scores of their trees are kept, the trees are not."""
    objective = treecv_objective(
        HistGradientBoostingClassifier(max_iter=20, random_state=0),
        X,
        Y,
        param_distributions={"max_leaf_nodes": IntDistribution(2, 3)},
        cv=3,
        scoring="log_loss",
        n_estimators="best",
        report="auto",
    )
    study = optuna.create_study(pruner=objective.pruner())
    for leaves in (2, 3, 2, 3):
        study.enqueue_trial({"max_leaf_nodes": leaves})
    study.optimize(objective, n_trials=4)
    assert study.trials[2].value == study.trials[0].value
    assert study.trials[2].user_attrs["treecv"]["n_updates"] == 0


def test_what_a_fold_that_is_left_out_would_choose_is_refused():
    objective, study = searched(
        HistGradientBoostingClassifier(max_iter=3),
        (X, Y),
        {"max_leaf_nodes": [2, 4]},
        cv=3,
        n_estimators="best",
    )
    with pytest.raises(
        ValueError, match="n_estimators of the objective must be None for nested cross-validation"
    ):
        objective.nested(study)


@pytest.mark.parametrize("library", ["catboost", "lightgbm", "xgboost"])
def test_rankers_are_refused(library):
    module = pytest.importorskip(library)
    ranker = {"catboost": "CatBoost", "lightgbm": "LGBM", "xgboost": "XGB"}[library] + "Ranker"
    with pytest.raises(ValueError, match="estimator must be a classifier or a regressor"):
        treecv_objective(getattr(module, ranker)(), X, Y, param_grid={"max_depth": [2]})


def test_reports_of_the_first_fold_have_smaller_steps_than_those_of_others():
    assert len(ALL_BLOCKS) + 1 == LEAD_STEPS


def test_reports_of_trees_need_trees():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective = treecv_objective(
            HistGradientBoostingClassifier(max_iter=3),
            X,
            Y,
            param_distributions=SPACE,
            report="trees",
        )
    assert objective.pruner().__class__ is RacingPruner
    with pytest.raises(ValueError, match="report='trees' needs an ensemble"):
        treecv_objective(Ridge(), X, Y * 1.0, param_grid={"alpha": [1.0]}, report="trees")
