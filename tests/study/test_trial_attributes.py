"""What a trial says of its evaluation in Optuna's storage."""

from collections import Counter

import optuna
from optuna.distributions import FloatDistribution
import pytest

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

ALPHA = {"alpha": FloatDistribution(1e-4, 1e2, log=True)}


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
