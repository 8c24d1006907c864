"""What a trial says of its evaluation in Optuna's storage, and trials of earlier versions."""

from collections import Counter
import json
import pickle

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pytest

from optuna_treecv import history
from optuna_treecv import PegasosClassifier
from optuna_treecv import report
from optuna_treecv import select
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV

ALPHA = {"alpha": FloatDistribution(1e-4, 1e2, log=True)}
RENAMED = {"method": "treecv_method", "run": "treecv_run"}


def as_before(study):
    """Return a study with the attributes that an earlier version wrote."""
    copy = optuna.create_study(directions=study.directions)
    copy.set_user_attr("treecv_evaluation", study.user_attrs["treecv_evaluation"])
    for trial in study.get_trials():
        known = trial.user_attrs.pop("treecv")
        scores = {key[6:]: known.pop(key) for key in list(known) if key.startswith("score_")}
        if scores:
            del known["mean_test_score"]
            known["treecv_scores"] = json.dumps(scores)
        known.pop("seconds_store", None)
        trial.user_attrs |= {RENAMED.get(key, key): value for key, value in known.items()}
        assert len(trial.user_attrs) == len(known) > 5
        copy.add_trial(trial)
    return copy


@pytest.fixture(params=["error", ["error", "roc_auc"]], ids=["one score", "two scores"])
def run(request, binary, tmp_path):
    """Return an objective with a store, and a study of it of which some trials are pruned."""
    objective = treecv_objective(
        PegasosClassifier(),
        *binary,
        param_distributions=ALPHA,
        scoring=request.param,
        report="mean",
        store=f"sqlite:///{tmp_path}/store.db",
    )
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler, pruner=PruneSecond())
    study.optimize(objective, n_trials=6)
    return objective, study


class PruneSecond(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return trial.number == 1 and trial.last_step == 3


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


def test_earlier_trials_have_the_same_evaluations(run, tmp_path):
    _, study = run
    store = f"sqlite:///{tmp_path}/store.db"
    before, now = (history.load_evaluations(store, study=one) for one in (as_before(study), study))
    n_scores = 1 + any("score_roc_auc" in trial.user_attrs["treecv"] for trial in study.trials)
    assert len(now) == len(before) == 6 * n_scores
    columns = ["run", "trial_number", "scoring", "mean", "seconds"]
    assert before[columns].equals(now[columns])


def test_earlier_trials_have_the_same_figures(run, tmp_path):
    _, study = run
    for store in (None, f"sqlite:///{tmp_path}/store.db"):
        for plot in (report.plot_parameters, report.plot_time):
            before, now = plot(as_before(study), store), plot(study, store)
            assert before.to_json() == now.to_json()
            assert len(now.data) > 1


def test_earlier_trials_are_chosen_alike(run):
    objective, study = run
    objective = pickle.loads(pickle.dumps(objective))  # which knows only what its store knows
    before, now = (select(one, objective) for one in (as_before(study), study))
    assert before.trial.number == now.trial.number
    assert before.not_distinguishable == now.not_distinguishable != []


def test_a_search_goes_on_with_earlier_trials(binary):
    options = {"scoring": ["accuracy", "roc_auc"], "refit": "roc_auc", "cv": 5, "random_state": 0}
    first = TreeCVSearchCV(PegasosClassifier(), ALPHA, n_trials=4, **options).fit(*binary)
    found = []
    for study in (as_before(first.study_), first.study_):
        search = TreeCVSearchCV(PegasosClassifier(), ALPHA, n_trials=4, study=study, **options)
        found.append(search.fit(*binary).cv_results_)
    for name in ("mean_test_accuracy", "mean_test_roc_auc", "std_test_roc_auc", "mean_fit_time"):
        before, now = (one[name][:4] for one in found)
        np.testing.assert_array_equal(before, now)
        assert np.isfinite(before).all()


def test_constraints_read_the_attribute(binary):
    def more_auc(trial):
        return (0.9 - trial.user_attrs["treecv"]["score_roc_auc"],)

    with pytest.warns(Warning, match="constraints_func"):
        sampler = optuna.samplers.TPESampler(seed=0, constraints_func=more_auc)
    objective = treecv_objective(
        PegasosClassifier(), *binary, param_distributions=ALPHA, scoring=["error", "roc_auc"]
    )
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=15)
    for trial in study.trials:
        (constraint,) = trial.constraints.values()
        auc = objective.evaluate(trial.params).scores["roc_auc"].mean
        assert constraint == pytest.approx(0.9 - auc, abs=1e-5)
