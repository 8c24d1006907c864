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
from optuna_treecv.core.result import Curve
from optuna_treecv.dashboard import publish
from optuna_treecv.engines.ensembles import sklearn as growing
from optuna_treecv.report import plot_trees
from optuna_treecv.study.racing import chance_to_win
from optuna_treecv.study.racing import Comparison
from optuna_treecv.study.racing import early_and_final

X, Y = make_classification(240, 6, n_informative=4, flip_y=0.2, random_state=0)
SPACE = {
    "learning_rate": FloatDistribution(0.01, 1.0, log=True),
    "max_leaf_nodes": IntDistribution(2, 16),
}


def study_of(curves, finals, pruned=()):
    """Return a study whose trials have reported these curves, by step, and its pruner."""
    study = optuna.create_study(pruner=RacingPruner())
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


def test_losses_are_foretold_by_what_completed_trials_still_gained():
    """Each trial halves its distance to its end at each step, from another start."""
    starts, ends = np.linspace(1, 5, 9), np.full(9, 0.3)
    curves = [end + start / 2.0 ** np.arange(3) for start, end in zip(starts, ends, strict=True)]
    study = study_of(curves, ends)
    trial = running(study, 0.1 + 7 / 2.0 ** np.arange(3))
    frozen = study.get_trials(deepcopy=False)[trial.number]
    current, early, final = early_and_final(study, frozen, 2, "next")
    # What was gained last, start / 4, is what is gained until the end.
    np.testing.assert_allclose(early, ends)
    np.testing.assert_allclose(final, ends)
    assert current == pytest.approx(0.1)
    assert early_and_final(study, frozen, 2, "last")[0] == pytest.approx(0.1 + 7 / 4)


def test_trials_that_ended_early_count_by_their_last_report():
    study = study_of([[3.0, 2.0], [3.0, 2.5, 2.4]], [2.0, 2.4])
    trial = running(study, [3.0, 2.6, 2.5])
    frozen = study.get_trials(deepcopy=False)[trial.number]
    assert early_and_final(study, frozen, 2, "last")[1].tolist() == [2.0, 2.4]


def test_rows_decide_from_the_second_trial_on():
    study = study_of([[0.5, 0.4, 0.3]], [0.3])
    rows = np.random.default_rng(0).normal(0.1, 0.2, 400)
    for mean, is_pruned in ((0.0, False), (0.1, True)):
        trial = running(study, [0.6, 0.5, 0.5])
        moved = rows - rows.mean() + mean
        told = Comparison(400, moved.sum(), moved @ moved, None, early="next", is_growing=True)
        study.pruner.tell(trial, 2, told)
        assert trial.should_prune() == is_pruned
        study.pruner.tell(trial, 2, None)
        assert not trial.should_prune()


def test_a_trial_that_may_be_among_the_best_tenth_is_completed():
    """Of 40 trials the best four count, from which TPE learns."""
    rng = np.random.default_rng(1)
    finals = np.concatenate([[0.0, 1.0, 1.1, 1.2], rng.uniform(2, 9, 16)])
    lost = rng.uniform(5, 9, 20)
    curves = [
        [final + noise] for final, noise in zip(finals, rng.normal(0, 0.05, 20), strict=True)
    ]
    for n_pruned, is_pruned in ((0, True), (20, False)):
        study = study_of(curves, finals, [[one] for one in lost[:n_pruned]])
        trial = running(study, [1.05])
        study.pruner.tell(trial, 0, Comparison(1, 0.0, 0.0, None, early="last", is_growing=True))
        early = np.array([curve[0] for curve in curves])
        assert chance_to_win(early, finals, 1.05) < 0.05
        # Of 20 trials two count, the second with 1.0; of 40 four.
        assert chance_to_win(early, finals, 1.05, rank=2) < 0.7
        assert chance_to_win(early, finals, 1.05, rank=4) > 0.7
        assert trial.should_prune() == is_pruned


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


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_rankers_are_refused(library):
    module = pytest.importorskip(library)
    ranker = {"lightgbm": "LGBMRanker", "xgboost": "XGBRanker"}[library]
    with pytest.raises(ValueError, match="estimator must be a classifier or a regressor"):
        treecv_objective(getattr(module, ranker)(), X, Y, param_grid={"max_depth": [2]})


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
