"""The objective in real studies: storages, pruners, threads, attributes."""

from __future__ import annotations

from collections import Counter
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
from studies import searched

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
STEP_SIZE = {"step_size": FloatDistribution(1e-9, 1e200, log=True)}


@pytest.fixture(params=["sqlite", "journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
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
    y = None if steps == "reg_covar" else np.tile(y, 6)
    grid = {steps: [1e-3, 1e-2, 1e200, 1e-1]}
    objective, study = searched(estimator, (np.vstack([X] * 6), y), grid, cv=20)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    assert study.best_params[steps] != 1e200 and np.isfinite(study.best_value)
    fitted = objective.best_estimator(study)
    assert np.isfinite(getattr(fitted, "coef_", 0.0)).all()


def test_lists_and_distributions_of_scipy(binary):
    """They are converted as those of a search."""
    space = {
        "alpha": stats.loguniform(1e-3, 1),
        "step_size": stats.uniform(1, 2),
        "random_state": stats.randint(3, 6),
        "fit_intercept": [True, False],
    }
    model = AveragedSGDClassifier()
    objective = treecv_objective(model, *binary, param_distributions=space, cv=3)
    assert objective.param_distributions == {
        "alpha": FloatDistribution(1e-3, 1, log=True),
        "step_size": FloatDistribution(1, 3),
        "random_state": IntDistribution(3, 5),
        "fit_intercept": CategoricalDistribution([True, False]),
    }
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=3)
    for trial in study.trials:
        expected = tree_cross_validate(clone(model).set_params(**trial.params), *binary, cv=3)
        assert trial.value == expected.mean
    for wrong in (stats.norm(0, 1), stats.loguniform(1e-3, 1, loc=1), "abc", [], 3.0):
        with pytest.raises(ValueError, match="^param_distributions.'alpha'. must be"):
            treecv_objective(model, *binary, param_distributions={"alpha": wrong})


@pytest.mark.slow
def test_a_study_on_each_storage(storage, binary, results):
    pruner = optuna.pruners.NopPruner()
    options = {"cv": "loo", "report": "mean", "study": {"storage": storage, "pruner": pruner}}
    _, study = searched(PegasosClassifier(), binary, ALPHA, 4, **options)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    for trial in study.trials:
        expected = tree_cross_validate(PegasosClassifier(**trial.params), *binary, cv="loo")
        assert trial.value == expected.mean
        assert list(trial.user_attrs) == ["treecv"]
        facts, found = trial.user_attrs["treecv"], results[study.study_name, trial.number]
        assert {type(value) for value in facts.values()} == {int, float, str}
        assert facts["mean_test_score"] == float(f"{expected.mean:.6g}")
        assert facts["std_test_score"] == float(f"{expected.std:.6g}")
        assert facts["n_updates"] == found.n_updates
        assert found.n_updates + found.n_updates_saved == expected.n_updates
        assert facts["method"] == found.method == "treecv"
        assert facts["folds_scored"] == len(binary[1])
        assert len(trial.intermediate_values) == 32
        assert trial.intermediate_values[31] == pytest.approx(trial.value)


@pytest.mark.slow
def test_threads_of_optuna_change_no_value(storage, binary):
    grid = {"alpha": [10.0**i for i in range(-4, 2)]}
    options = {"param_distributions": ALPHA, "order": "random", "n_repeats": 2}
    objective = treecv_objective(PegasosClassifier(), *binary, **options)
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.GridSampler(grid, seed=0))
    study.optimize(objective, n_jobs=2)
    assert {trial.params["alpha"] for trial in study.trials} == {*grid["alpha"]}
    for trial in study.trials:
        assert trial.value == objective.evaluate(trial.params).mean


def test_fixed_and_frozen_trials(binary):
    objective, study = searched(PegasosClassifier(), binary, ALPHA, 3, report="folds")
    assert objective(study.best_trial) == study.best_value
    assert objective(optuna.trial.FixedTrial(study.best_params)) == study.best_value
    result = objective.evaluate(study.best_params)
    assert result.mean == study.best_value
    assert len(result.test_score) == 10


@pytest.mark.slow
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
    alpha = {name.replace("random_state", "alpha"): ALPHA["alpha"]}
    _, study = searched(estimator, binary, alpha, 1)
    found = []
    for seed in (None, None, 0, 5):
        given = clone(estimator).set_params(**{name: seed})
        objective = treecv_objective(given, *binary, param_distributions=alpha)
        best = objective.best_estimator(study)
        assert best.get_params()[name] == given.get_params()[name] == seed
        found.append(best.decision_function(binary[0]))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    if "SGDClassifier(max_iter=1)" in str(estimator):  # it draws the order of each phase
        assert not np.array_equal(found[0], found[3])


def test_a_copy_of_an_objective_has_its_random_folds(binary):
    objective, _ = searched(PegasosClassifier(), binary, ALPHA, 1, cv=5, random_state=None)
    copy, params = pickle.loads(pickle.dumps(objective)), {"alpha": 0.03}
    assert np.array_equal(copy.evaluate(params).test_score, objective.evaluate(params).test_score)


def test_best_estimator_is_that_of_a_trial_fitted_on_all_rows(binary):
    X, y = pd.DataFrame(binary[0], columns=list("abcde")), binary[1]
    objective, study = searched(PegasosClassifier(), (X, y), ALPHA, 4)
    for trial in study.trials:
        model = objective.best_estimator(trial)
        assert model.alpha == trial.params["alpha"] and model.t_ == len(y)
    best = objective.best_estimator(study.best_trial)
    assert np.array_equal(best.coef_, objective.best_estimator(study).coef_)
    assert list(best.feature_names_in_) == list("abcde")
    by_run = treecv_objective(
        lambda trial: PegasosClassifier(trial.suggest_float("alpha", 1e-4, 10.0, log=True)), X, y
    )
    assert by_run.best_estimator(study.trials[2]).alpha == study.trials[2].params["alpha"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_choices_that_are_estimators_are_not_shared(binary):
    inner = SGDClassifier(max_iter=1, tol=None, random_state=0)
    space = {
        "estimator": CategoricalDistribution([inner]),
        "estimator__alpha": FloatDistribution(1e-4, 1, log=True),
    }
    objective, study = searched(OneVsRestClassifier(SGDClassifier(max_iter=1)), binary, space, 3)
    assert inner.alpha == 1e-4
    best = objective.best_estimator(study)
    assert best.estimator.alpha == study.best_params["estimator__alpha"]


def test_define_by_run(binary):
    def estimator(trial):
        if trial.suggest_categorical("kind", ["pegasos", "sgd"]) == "sgd":
            alpha = trial.suggest_float("alpha", 1e-5, 1, log=True)
            return SGDClassifier(alpha=alpha, max_iter=1, tol=None)
        return PegasosClassifier(
            alpha=trial.suggest_float("lambda", 1e-5, 1, log=True),
            fit_intercept=trial.suggest_categorical("fit_intercept", [True, False]),
        )

    choices = ({"kind": "sgd"}, {"fit_intercept": True}, {"fit_intercept": False})
    candidates = [{"kind": "pegasos", **choice} for choice in choices]
    objective, study = searched(estimator, binary, None, candidates=candidates)
    study.optimize(objective, n_trials=6, n_jobs=3)  # trials of all layouts share an objective
    assert len({(t.params["kind"], t.params.get("fit_intercept")) for t in study.trials}) == 3
    for trial in study.trials:
        assert objective(trial) == trial.value
    assert objective.best_estimator(study).score(*binary) > 0.5


def test_unsupervised(binary):
    clusters = {"n_clusters": IntDistribution(2, 6)}
    model = MiniBatchKMeans(n_init=1, max_iter=1)
    assert searched(model, (binary[0], None), clusters, 3)[1].best_value > 0


def test_the_other_direction_is_refused_and_the_study_lives_on(binary):
    objective = treecv_objective(PegasosClassifier(), *binary, param_distributions=ALPHA)
    for options, message in (
        ({"direction": "maximize"}, "must be 'minimize', because the score is to be"),
        ({"directions": ["minimize", "minimize"]}, "must have a single direction"),
    ):
        study = optuna.create_study(**options)
        with pytest.raises(ValueError, match=message):
            study.optimize(objective, n_trials=1)
        assert study.trials[0].state == TrialState.FAIL


def test_a_failed_evaluation_names_the_trial_and_leaves_the_study_usable(binary):
    class Moody(SGDClassifier):
        def partial_fit(self, X, y, classes=None):
            if self.alpha > 0.1:
                raise RuntimeError("not today")
            return super().partial_fit(X, y, classes)

    moody = Moody(max_iter=1, tol=None)
    objective, study = searched(
        moody, binary, ALPHA, candidates=[{"alpha": 0.01}], method="treecv"
    )
    study.enqueue_trial({"alpha": 0.5})
    with pytest.raises(RuntimeError, match="not today") as error:
        study.optimize(objective, n_trials=3)
    assert error.value.__notes__ == ["This happened in trial 1 with parameters {'alpha': 0.5}."]
    study.enqueue_trial({"alpha": 0.02})
    study.optimize(objective, n_trials=1, catch=RuntimeError)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_divergence_is_a_value(regression):
    steps = [{"step_size": step_size} for step_size in (1e200, 0.01)]
    model = LSQSGDRegressor(radius=np.inf)
    _, study = searched(model, regression, STEP_SIZE, candidates=steps, report="mean")
    wild, tame = study.trials
    facts = wild.user_attrs["treecv"]
    assert wild.value == np.inf and facts["diverged_folds"] == 10
    assert "std_test_score" not in facts
    assert wild.intermediate_values == dict.fromkeys(range(10), 1e300)
    assert tame.value < 1 and "diverged_folds" not in tame.user_attrs["treecv"]
    assert study.best_trial.number == tame.number


def test_constraints_read_the_attribute(binary):
    def more_auc(trial):
        return (0.9 - trial.user_attrs["treecv"]["score_roc_auc"],)

    with pytest.warns(Warning, match="constraints_func"):
        sampler = optuna.samplers.TPESampler(seed=0, constraints_func=more_auc)
    study = {"sampler": sampler}
    objective, study = searched(
        PegasosClassifier(), binary, ALPHA, 12, scoring=["error", "roc_auc"], study=study
    )
    for trial in study.trials:
        (constraint,) = trial.constraints.values()
        auc = objective.evaluate(trial.params).scores["roc_auc"].mean
        assert constraint == pytest.approx(0.9 - auc, abs=1e-5)


# Reports and pruning.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "n_repeats", "n_reports"),
    [(10, 1, 10), (50, 1, 32), ("loo", 3, 3 * 8), (4, 9, 9 * 2), (4, 32, 32)],
)
def test_at_most_32_means_are_reported(cv, n_repeats, n_reports, binary):
    params, reported = {"alpha": 0.05}, {}
    for report, n_jobs in (("folds", 1), ("mean", 2)):
        options = {"cv": cv, "n_repeats": n_repeats, "report": report, "n_jobs": n_jobs}
        objective, study = searched(
            PegasosClassifier(), binary, ALPHA, candidates=[params], **options
        )
        reported[report] = study.trials[0].intermediate_values
    scores = objective.evaluate(params).test_score
    folds, means = reported["folds"], reported["mean"]
    assert sorted(folds) == sorted(means) == list(range(n_reports))
    assert means[n_reports - 1] == pytest.approx(scores.mean())
    if cv == 10:
        assert list(folds.values()) == scores.tolist()
        np.testing.assert_allclose(list(means.values()), scores.cumsum() / np.arange(1, 11))


class PruneSecond(optuna.pruners.BasePruner):
    """Prunes the second trial."""

    def prune(self, study, trial):
        return trial.number == 1


def test_a_trial_writes_one_attribute(binary, tmp_path, monkeypatch):
    written = Counter()
    plain = optuna.storages.RDBStorage.set_trial_user_attr

    def write(storage, trial_id, key, value):
        written[trial_id] += 1
        plain(storage, trial_id, key, value)

    monkeypatch.setattr(optuna.storages.RDBStorage, "set_trial_user_attr", write)
    objective = treecv_objective(
        PegasosClassifier(),
        *binary,
        param_distributions=ALPHA,
        scoring=["error", "roc_auc"],
        report="mean",
        store=f"sqlite:///{tmp_path}/store.db",
    )
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", pruner=PruneSecond())
    study.optimize(objective, n_trials=3)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert list(written.values()) == [1, 1, 1]
    for trial in study.trials:
        assert {type(value) for value in trial.user_attrs["treecv"].values()} == {int, float, str}


class Flipped(SGDClassifier):
    """Predicts the other one of two classes."""

    def __init__(self, alpha=0.01):
        super().__init__(alpha=alpha, max_iter=1, tol=None)

    def predict(self, X):
        return self.classes_[(super().decision_function(X) <= 0).astype(int)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_jobs", "report", "pruner"),
    [
        (1, "folds", optuna.pruners.WilcoxonPruner),
        (2, "mean", partial(optuna.pruners.MedianPruner, n_startup_trials=2)),
        (2, "mean", partial(optuna.pruners.HyperbandPruner, min_resource=1, max_resource=10)),
    ],
    ids=["wilcoxon", "median", "hyperband"],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_losers_are_pruned(n_jobs, report, pruner, make_data):
    X, y = make_data(400, 5)

    def estimator(trial):
        is_flipped = trial.suggest_categorical("flipped", [False, True])
        return (
            Flipped(alpha=0.01) if is_flipped else SGDClassifier(alpha=0.01, max_iter=1, tol=None)
        )

    candidates = [{"flipped": flipped} for flipped in [False] * 4 + [True] * 8]
    # Hyperband derives a trial's bracket from the study's name, which is random by default.
    options = {"study": {"pruner": pruner(), "study_name": "pruned"}, "report": report}
    _, study = searched(
        estimator, (scale(X), y), None, candidates=candidates, n_jobs=n_jobs, **options
    )
    pruned = study.get_trials(states=[TrialState.PRUNED])
    assert len(pruned) >= 1 and all(trial.params["flipped"] for trial in pruned)
    for trial in pruned:
        facts = trial.user_attrs["treecv"]
        assert 1 <= facts["folds_scored"] == len(trial.intermediate_values) < 10
        assert facts["n_updates"] < study.trials[0].user_attrs["treecv"]["n_updates"]
    assert study.best_trial.number < 4


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "error",
    "ignore::optuna.exceptions.ExperimentalWarning",
    "ignore:the mean score is",
    "ignore:WilcoxonPruner has taken",  # on a machine that is busy
)
@pytest.mark.parametrize(("scoring", "sign"), [(None, 1), ("neg_mean_squared_error", -1)])
def test_wilcoxon_pruner_after_a_diverged_trial(scoring, sign, regression):
    steps = [{"step_size": step_size} for step_size in (1e200, 1e-3, 1e200)]
    options = {"report": "folds", "scoring": scoring}
    options["study"] = {"pruner": optuna.pruners.WilcoxonPruner()}
    model = LSQSGDRegressor(radius=np.inf)
    _, study = searched(model, regression, STEP_SIZE, candidates=steps, **options)
    wild, tame, pruned = study.trials
    assert wild.value == sign * np.inf and study.best_trial.number == tame.number
    assert wild.intermediate_values == dict.fromkeys(range(10), sign * 1e300)
    assert pruned.state == TrialState.PRUNED


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_that_diverges_in_its_last_fold_prunes_no_other(binary):
    last = binary[0][-1].copy()

    def scorer(model, X, y):
        if model.alpha < 1:
            return 0.9
        return -np.inf if np.any(np.all(last == X, axis=1)) else 1.0

    options = {"shuffle": False, "scoring": scorer, "report": "folds"}
    options["study"] = {"direction": "maximize", "pruner": optuna.pruners.WilcoxonPruner()}
    alphas = [{"alpha": alpha} for alpha in (2.0, 0.1)]
    _, study = searched(PegasosClassifier(), binary, ALPHA, candidates=alphas, **options)
    assert study.trials[0].value == -np.inf and study.best_trial.number == 1
