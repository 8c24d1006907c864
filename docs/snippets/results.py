"""A study that is interrupted and resumed, and its fold scores as data frames."""

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores

optuna.logging.set_verbosity(optuna.logging.WARNING)
STORE = "sqlite:///treecv_store.db"  # this package's store: the score of every fold
X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), LogisticRegression()),
    X,
    y,
    param_grid={"logisticregression__C": [0.01, 0.1, 1.0, 10.0]},
    scoring="log_loss",
    cv=5,
    store=STORE,
)
for n_trials in (1, None):  # simulates a program that is started again after one trial
    study = optuna.create_study(
        study_name="cancer",
        storage="sqlite:///treecv_study.db",  # Optuna's storage: the trials
        load_if_exists=True,
        direction=objective.direction,
        sampler=objective.grid_sampler(),
    )
    study.optimize(objective, n_trials=n_trials)
    print("trials:", len(study.trials))

columns = ["trial_number", "params_logisticregression__C", "mean", "std"]
print(load_evaluations(STORE, study=study)[columns].round(3).to_string(index=False))
scores = load_fold_scores(STORE, study=study)
folds = scores.pivot(index="fold", columns="trial_number", values="score")
print(folds.round(3).to_string(index_names=False))
