import mlflow
import optuna
from sklearn.datasets import load_breast_cancer

from optuna_treecv import HistTreeClassifier
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(HistTreeClassifier(), X, y, param_distributions="auto")
study = optuna.create_study(direction=objective.direction)
mlflow.set_tracking_uri("sqlite:///mlflow.db")
with mlflow.start_run(run_name="study") as parent:

    def log(study, trial):
        with mlflow.start_run(nested=True, parent_run_id=parent.info.run_id):
            mlflow.log_params(trial.params)
            facts = dict(trial.user_attrs.get("treecv", {}))  # empty if the trial failed
            mlflow.set_tags({name: facts.pop(name) for name in ("method", "run") if name in facts})
            mlflow.log_metrics(facts)

    study.optimize(objective, n_trials=3, callbacks=[log])
    mlflow.log_metric("best_value", study.best_value)
print(len(mlflow.search_runs()))  # the run of the study and those of its three trials
