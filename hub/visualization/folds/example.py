"""Draw the fold scores of the best trials, and which of them differ from the best one."""

from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
from optuna.distributions import FloatDistribution
from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective
import optunahub
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


folds = optunahub.load_module("visualization/folds")

X, y = load_breast_cancer(return_X_y=True)
with TemporaryDirectory() as folder:
    store = f"sqlite:///{Path(folder) / 'folds.db'}"
    objective = treecv_objective(
        make_pipeline(StandardScaler(), AveragedSGDClassifier()),
        X,
        y,
        param_distributions={
            "averagedsgdclassifier__alpha": FloatDistribution(1e-6, 10.0, log=True)
        },
        cv=10,
        store=store,
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=30)

    folds.plot_fold_scores(study, store, n_best=5).show()
    folds.plot_choice(
        study, store, simpler={"averagedsgdclassifier__alpha": "larger"}, n_best=10
    ).show()
