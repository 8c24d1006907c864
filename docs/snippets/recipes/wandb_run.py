import optuna
from sklearn.datasets import load_breast_cancer
import wandb

from optuna_treecv import HistTreeClassifier
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(HistTreeClassifier(), X, y, param_distributions="auto")
study = optuna.create_study(direction=objective.direction)
with wandb.init(project="cancer", mode="offline") as run:

    def log(study, trial):
        run.log({"trial": trial.number, **trial.params, **trial.user_attrs.get("treecv", {})})

    study.optimize(objective, n_trials=3, callbacks=[log])
    print(run.summary["method"], run.summary["folds_scored"])
