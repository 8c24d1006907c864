"""The objective in real studies: storages, pruners, threads, attributes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
import pickle
from typing import Any

from ids import said
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal import JournalFileOpenLock
from optuna.trial import TrialState
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity

ALPHA = {"alpha": FloatDistribution(1e-4, 10.0, log=True)}


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(params=["memory", "sqlite", "journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    path = str(tmp_path / "study.log")
    return optuna.storages.JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))


@pytest.mark.parametrize(
    ("estimator", "steps"),
    [
        (StreamingSVRGClassifier(initial_batch_size=10, inner_steps=20), "step_size"),
        (AveragedSGDClassifier("log_loss"), "step_size"),
        (AveragedSGDRegressor("huber"), "step_size"),
        (StreamingSVRGRegressor(initial_batch_size=10, inner_steps=20), "step_size"),
        (StreamingGaussianDensity("full"), "reg_covar"),
    ],
    ids=said,
)
def test_a_study_goes_on_after_steps_that_diverge(estimator, steps, binary):
    X, y = binary
    X = np.vstack([X] * 6)
    y = None if steps == "reg_covar" else np.tile(y, 6)
    grid = {steps: [1e-3, 1e-2, 1e200, 1e-1]}
    objective = treecv_objective(
        estimator, X, y, param_distributions={steps: CategoricalDistribution(grid[steps])}, cv=20
    )
    study = optuna.create_study(
        sampler=optuna.samplers.GridSampler(grid), direction=objective.direction
    )
    study.optimize(objective)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    assert study.best_params[steps] != 1e200 and np.isfinite(study.best_value)
    fitted = objective.best_estimator(study)
    assert np.isfinite(getattr(fitted, "coef_", 0.0)).all()


def test_lists_and_distributions_of_scipy(binary):
    """They are converted as those of a search."""
    X, y = binary
    space = {
        "alpha": stats.loguniform(1e-3, 1),
        "step_size": stats.uniform(1, 2),
        "random_state": stats.randint(3, 6),
        "fit_intercept": [True, False],
    }
    model = AveragedSGDClassifier()
    objective = treecv_objective(model, X, y, param_distributions=space, cv=3)
    assert objective.param_distributions == {
        "alpha": FloatDistribution(1e-3, 1, log=True),
        "step_size": FloatDistribution(1, 3),
        "random_state": IntDistribution(3, 5),
        "fit_intercept": CategoricalDistribution([True, False]),
    }
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=3)
    for trial in study.trials:
        expected = tree_cross_validate(clone(model).set_params(**trial.params), X, y, cv=3)
        assert trial.value == expected.mean
    for wrong in (stats.norm(0, 1), stats.loguniform(1e-3, 1, loc=1), "abc", [], 3.0):
        with pytest.raises(ValueError, match="^param_distributions.'alpha'. must be"):
            treecv_objective(model, X, y, param_distributions={"alpha": wrong})


@pytest.mark.slow
def test_a_study_on_each_storage(storage, binary, results):
    X, y = binary
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_distributions=ALPHA, cv="loo", report="mean"
    )
    nop = optuna.pruners.NopPruner()
    study = optuna.create_study(storage=storage, pruner=nop, direction=objective.direction)
    study.optimize(objective, n_trials=8)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 8
    for trial in study.trials:
        expected = tree_cross_validate(
            PegasosClassifier(alpha=trial.params["alpha"]), X, y, cv="loo"
        )
        assert trial.value == expected.mean
        assert trial.user_attrs["treecv"]["mean_test_score"] == float(f"{expected.mean:.6g}")
        assert trial.user_attrs["treecv"]["std_test_score"] == float(f"{expected.std:.6g}")
        found = results[study.study_name, trial.number]
        assert trial.user_attrs["treecv"]["n_updates"] == found.n_updates
        assert found.n_updates + found.n_updates_saved == expected.n_updates
        assert trial.user_attrs["treecv"]["method"] == found.method == "treecv"
        assert trial.user_attrs["treecv"]["folds_scored"] == len(y)
        assert list(trial.user_attrs) == ["treecv"]
        assert {type(value) for value in trial.user_attrs["treecv"].values()} == {int, float, str}
        assert len(trial.intermediate_values) == 32
        assert trial.intermediate_values[31] == pytest.approx(trial.value)


@pytest.mark.slow
def test_threads_of_optuna_change_no_value(storage, binary):
    X, y = binary
    grid = {"alpha": [10.0**i for i in range(-4, 2)]}
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_distributions=ALPHA, order="random", n_repeats=2
    )
    found = []
    for n_jobs in (1, 2):
        study = optuna.create_study(
            storage=storage, sampler=optuna.samplers.GridSampler(grid, seed=0)
        )
        study.optimize(objective, n_jobs=n_jobs)
        found.append({trial.params["alpha"]: trial.value for trial in study.trials})
    assert found[0] == found[1] and len(found[0]) == 6


def test_fixed_and_frozen_trials(binary):
    X, y = binary
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_distributions=ALPHA, report="folds"
    )
    study = optuna.create_study()
    study.optimize(objective, n_trials=3)
    assert objective(study.best_trial) == study.best_value
    assert objective(optuna.trial.FixedTrial(study.best_params)) == study.best_value
    result = objective.evaluate(study.best_params)
    assert result.mean == study.best_value
    assert len(result.test_score) == 10


def test_pickling_keeps_everything_but_the_prepared_rows(binary):
    X, y = binary
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_distributions=ALPHA, cv=5, random_state=None
    )
    copy = pickle.loads(pickle.dumps(objective))
    params = {"alpha": 0.03}
    assert np.array_equal(copy.evaluate(params).test_score, objective.evaluate(params).test_score)
    assert copy.direction == objective.direction


def test_best_estimator_is_fitted_on_all_rows(binary):
    X, y = binary
    for estimator in (PegasosClassifier(), SGDClassifier(max_iter=1, tol=None)):
        objective = treecv_objective(estimator, X, y, param_distributions=ALPHA)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.optimize(objective, n_trials=5)
        best = objective.best_estimator(study)
        assert best.alpha == study.best_params["alpha"]
        assert best.t_ - isinstance(best, SGDClassifier) == len(y)
        assert best.score(X, y) > 0.6


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (SGDClassifier(max_iter=1), "random_state"),
        (AveragedSGDClassifier(), "random_state"),
        (make_pipeline(Normalizer(), SGDClassifier(max_iter=1)), "sgdclassifier__random_state"),
        (OneVsRestClassifier(SGDClassifier(max_iter=1)), "estimator__random_state"),
    ],
    ids=said,
)
def test_best_estimator_has_the_random_state_that_was_given(estimator, name, binary):
    """Training is reproducible all the same."""
    X, y = binary
    alpha = {name.replace("random_state", "alpha"): ALPHA["alpha"]}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found = []
    for seed in (None, None, 0, 5):
        given = clone(estimator).set_params(**{name: seed})
        objective = treecv_objective(given, X, y, param_distributions=alpha)
        study.optimize(objective, n_trials=0 if found else 1)
        best = objective.best_estimator(study)
        assert best.get_params()[name] == seed
        assert given.get_params()[name] == seed
        found.append(best.decision_function(X))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    if "SGDClassifier(max_iter=1)" in str(estimator):  # it draws the order of each phase
        assert not np.array_equal(found[0], found[3])


def test_best_estimator_of_a_trial(binary):
    X, y = binary
    objective = treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=4)
    for trial in study.trials:
        model = objective.best_estimator(trial)
        assert model.alpha == trial.params["alpha"] and model.t_ == len(y)
    best = objective.best_estimator(study.best_trial)
    assert np.array_equal(best.coef_, objective.best_estimator(study).coef_)
    by_run = treecv_objective(
        lambda trial: PegasosClassifier(trial.suggest_float("alpha", 1e-4, 10.0, log=True)), X, y
    )
    assert by_run.best_estimator(study.trials[2]).alpha == study.trials[2].params["alpha"]


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_choices_that_are_estimators_are_not_shared(binary):
    X, y = binary
    inner = SGDClassifier(max_iter=1, tol=None, random_state=0)
    objective = treecv_objective(
        OneVsRestClassifier(SGDClassifier(max_iter=1)),
        X,
        y,
        param_distributions={
            "estimator": CategoricalDistribution([inner]),
            "estimator__alpha": FloatDistribution(1e-4, 1, log=True),
        },
    )
    study = optuna.create_study()
    study.optimize(objective, n_trials=3)
    assert inner.alpha == 1e-4
    best = objective.best_estimator(study)
    assert best.estimator.alpha == study.best_params["estimator__alpha"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "estimator", [PegasosClassifier(), SGDClassifier(max_iter=1, tol=None)], ids=said
)
def test_data_frames(estimator, binary):
    X, y = binary
    frame = pd.DataFrame(X, columns=list("abcde"))
    objective = treecv_objective(
        estimator, frame, y, param_distributions=ALPHA, scoring="accuracy"
    )
    plain = treecv_objective(estimator, X, y, param_distributions=ALPHA, scoring="accuracy")
    params = {"alpha": 0.01}
    assert np.array_equal(objective.evaluate(params).test_score, plain.evaluate(params).test_score)
    study = optuna.create_study(direction=objective.direction)
    study.enqueue_trial(params)
    study.optimize(objective, n_trials=1)
    best = objective.best_estimator(study)
    assert list(best.feature_names_in_) == list("abcde")
    assert np.array_equal(best.predict(frame), best.predict(frame[list("abcde")]))


def test_define_by_run(binary):
    X, y = binary

    def estimator(trial):
        if trial.suggest_categorical("kind", ["pegasos", "sgd"]) == "sgd":
            return SGDClassifier(
                alpha=trial.suggest_float("alpha", 1e-5, 1, log=True), max_iter=1, tol=None
            )
        return PegasosClassifier(
            alpha=trial.suggest_float("lambda", 1e-5, 1, log=True),
            fit_intercept=trial.suggest_categorical("fit_intercept", [True, False]),
        )

    objective = treecv_objective(estimator, X, y)
    study = optuna.create_study()
    for choice in ({"kind": "sgd"}, {"fit_intercept": True}, {"fit_intercept": False}):
        study.enqueue_trial({"kind": "pegasos", **choice})
    study.optimize(objective, n_trials=3)
    study.optimize(objective, n_trials=12, n_jobs=3)  # trials of all layouts share an objective
    assert len({(t.params["kind"], t.params.get("fit_intercept")) for t in study.trials}) == 3
    for trial in study.trials:
        assert objective(trial) == trial.value
    assert objective.best_estimator(study).score(X, y) > 0.5


def test_every_kind_of_distribution(binary):
    X, y = binary
    objective = treecv_objective(
        make_pipeline(SGDClassifier(max_iter=1, tol=None))[-1],
        X,
        y,
        param_distributions={
            "alpha": FloatDistribution(0.1, 0.5, step=0.2),
            "average": IntDistribution(1, 64, log=True),
            "loss": CategoricalDistribution(["hinge", "log_loss"]),
        },
    )
    study = optuna.create_study()
    study.optimize(objective, n_trials=5)
    assert set(study.best_params) == {"alpha", "average", "loss"}
    assert study.trials[0].distributions["alpha"] == FloatDistribution(0.1, 0.5, step=0.2)


def test_unsupervised(binary):
    objective = treecv_objective(
        MiniBatchKMeans(n_init=1, max_iter=1),
        binary[0],
        param_distributions={"n_clusters": IntDistribution(2, 6)},
    )
    study = optuna.create_study()
    study.optimize(objective, n_trials=3)
    assert study.best_value > 0


def test_a_scorer_is_maximised(binary):
    X, y = binary
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_distributions=ALPHA, scoring="accuracy"
    )
    assert objective.direction == "maximize"
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=3)
    error = treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA)
    assert study.best_value == pytest.approx(1 - error.evaluate(study.best_params).mean)


def test_the_other_direction_is_refused_and_the_study_lives_on(binary):
    X, y = binary
    objective = treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA)
    for options in ({"direction": "maximize"}, {"directions": ["minimize", "minimize"]}):
        study = optuna.create_study(**options)
        with pytest.raises(
            ValueError,
            match="must be 'minimize', because the score is to be|must have a single direction",
        ):
            study.optimize(objective, n_trials=1)
        assert study.trials[0].state == TrialState.FAIL


def test_a_failed_evaluation_names_the_trial_and_leaves_the_study_usable(binary):
    X, y = binary

    class Moody(SGDClassifier):
        def partial_fit(self, X, y, classes=None):
            if self.alpha > 0.1:
                raise RuntimeError("not today")
            return super().partial_fit(X, y, classes)

    moody = Moody(max_iter=1, tol=None)
    objective = treecv_objective(moody, X, y, param_distributions=ALPHA, method="treecv")
    study = optuna.create_study()
    study.enqueue_trial({"alpha": 0.01})
    study.enqueue_trial({"alpha": 0.5})
    with pytest.raises(RuntimeError, match="not today") as error:
        study.optimize(objective, n_trials=3)
    assert error.value.__notes__ == ["This happened in trial 1 with parameters {'alpha': 0.5}."]
    study.enqueue_trial({"alpha": 0.02})
    study.optimize(objective, n_trials=1, catch=RuntimeError)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_divergence_is_a_value(regression):
    X, y = regression
    objective = treecv_objective(
        LSQSGDRegressor(radius=np.inf),
        X,
        y,
        param_distributions={"step_size": FloatDistribution(1e-3, 1e200, log=True)},
        report="mean",
    )
    study = optuna.create_study()
    for step_size in (1e200, 0.01):
        study.enqueue_trial({"step_size": step_size})
    study.optimize(objective, n_trials=5)
    wild, tame = study.trials[:2]
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)
    assert wild.value == np.inf and wild.user_attrs["treecv"]["diverged_folds"] == 10
    assert "std_test_score" not in wild.user_attrs["treecv"]
    assert wild.intermediate_values == dict.fromkeys(range(10), 1e300)
    assert tame.value < 1 and "diverged_folds" not in tame.user_attrs["treecv"]
    assert study.best_value < 1


# Reports and pruning.


def test_what_is_reported(binary):
    X, y = binary
    for cv, n_repeats, n_parts in (
        (10, 1, 10),
        (50, 1, 32),
        ("loo", 3, 3 * 8),
        (4, 9, 9 * 2),
        (4, 32, 32),
    ):
        options: Any = {"param_distributions": ALPHA, "cv": cv, "n_repeats": n_repeats}
        objectives = [
            treecv_objective(PegasosClassifier(), X, y, report=r, **options)
            for r in ("folds", "mean")
        ]
        trials = []
        for objective in objectives:
            study = optuna.create_study()
            study.enqueue_trial({"alpha": 0.05})
            study.optimize(objective, n_trials=1)
            trials.append(study.trials[0])
        scores = objectives[0].evaluate({"alpha": 0.05}).test_score
        folds, means = (trial.intermediate_values for trial in trials)
        assert sorted(folds) == sorted(means) == list(range(n_parts))
        assert means[n_parts - 1] == pytest.approx(scores.mean())
        if cv == 10:
            assert list(folds.values()) == scores.tolist()
            running = np.cumsum(scores) / np.arange(1, 11)
            np.testing.assert_allclose(list(means.values()), running)


def test_reports_do_not_depend_on_threads(binary):
    X, y = binary
    reports = []
    for n_jobs in (1, 2, 4):
        objective = treecv_objective(
            PegasosClassifier(),
            X,
            y,
            param_distributions=ALPHA,
            cv="loo",
            report="folds",
            n_jobs=n_jobs,
        )
        study = optuna.create_study()
        study.enqueue_trial({"alpha": 0.05})
        study.optimize(objective, n_trials=1)
        reports.append(study.trials[0].intermediate_values)
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("report", "pruner"),
    [
        ("folds", optuna.pruners.WilcoxonPruner),
        ("mean", partial(optuna.pruners.MedianPruner, n_startup_trials=2)),
        ("mean", partial(optuna.pruners.HyperbandPruner, min_resource=1, max_resource=10)),
    ],
    ids=["wilcoxon", "median", "hyperband"],
)
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_pruning(report, pruner, n_jobs, make_data):
    X, y = make_data(400, 5)
    X = scale(X)

    def estimator(trial):
        flipped = trial.suggest_categorical("flipped", [False, True])
        return Flipped(alpha=0.01) if flipped else SGDClassifier(alpha=0.01, max_iter=1, tol=None)

    objective = treecv_objective(estimator, X, y, report=report, n_jobs=n_jobs)
    # Hyperband derives a trial's bracket from the study's name, which is random by default.
    study = optuna.create_study(pruner=pruner(), study_name="pruned")
    for flipped in [False] * 4 + [True] * 8:
        study.enqueue_trial({"flipped": flipped})
    study.optimize(objective, n_trials=12)
    assert not any(t.params["flipped"] for t in study.trials if t.number < 4)
    pruned = study.get_trials(states=[TrialState.PRUNED])
    assert len(pruned) >= 1 and all(trial.params["flipped"] for trial in pruned)
    for trial in pruned:
        assert (
            1 <= trial.user_attrs["treecv"]["folds_scored"] == len(trial.intermediate_values) < 10
        )
        assert (
            trial.user_attrs["treecv"]["n_updates"]
            < study.trials[0].user_attrs["treecv"]["n_updates"]
        )
    assert study.best_trial.number < 4


class Flipped(SGDClassifier):
    """Predicts the other one of two classes."""

    def __init__(self, alpha=0.01):
        super().__init__(alpha=alpha, max_iter=1, tol=None)

    def predict(self, X):
        return self.classes_[(super().decision_function(X) <= 0).astype(int)]


@pytest.mark.filterwarnings(
    "error",
    "ignore::optuna.exceptions.ExperimentalWarning",
    "ignore:the mean score is",
    "ignore:WilcoxonPruner has taken",  # on a machine that is busy
)
@pytest.mark.parametrize("scoring", [None, "neg_mean_squared_error"])
def test_wilcoxon_pruner_after_a_diverged_trial(scoring, regression):
    X, y = regression
    objective = treecv_objective(
        LSQSGDRegressor(radius=np.inf),
        X,
        y,
        param_distributions={"step_size": FloatDistribution(1e-9, 1e200, log=True)},
        report="folds",
        scoring=scoring,
    )
    study = optuna.create_study(
        direction=objective.direction, pruner=optuna.pruners.WilcoxonPruner()
    )
    for step_size in (1e200, 1e-3, 1e200):
        study.enqueue_trial({"step_size": step_size})
    study.optimize(objective, n_trials=3)
    wild, tame, pruned = study.trials
    sign = 1 if scoring is None else -1
    assert wild.value == sign * np.inf and study.best_trial.number == tame.number
    assert wild.intermediate_values == dict.fromkeys(range(10), sign * 1e300)
    assert pruned.state == TrialState.PRUNED


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_that_diverges_in_its_last_fold_prunes_no_other(binary):
    X, y = binary
    last = X[-1].copy()

    def scorer(model, X, y):
        if model.alpha < 1:
            return 0.9
        return -np.inf if np.any(np.all(last == X, axis=1)) else 1.0

    objective = treecv_objective(
        PegasosClassifier(),
        X,
        y,
        param_distributions=ALPHA,
        shuffle=False,
        scoring=scorer,
        report="folds",
    )
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.WilcoxonPruner())
    for alpha in (2.0, 0.1):
        study.enqueue_trial({"alpha": alpha})
    study.optimize(objective, n_trials=2)
    assert study.trials[0].value == -np.inf and study.best_trial.number == 1


def test_few_commits_a_trial(binary, tmp_path):
    # One report or attribute per fold would make a trial with many folds slow.
    X, y = binary
    objective = treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA, cv="loo")
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db")
    study.optimize(objective, n_trials=1)
    assert list(study.trials[0].user_attrs) == ["treecv"]
    assert not study.trials[0].intermediate_values
