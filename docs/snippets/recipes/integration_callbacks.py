import optuna
from optuna_integration import MLflowCallback
from optuna_integration import WeightsAndBiasesCallback
from sklearn.datasets import load_breast_cancer

from optuna_treecv import HistTreeClassifier
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(HistTreeClassifier(), X, y, param_distributions="auto")
study = optuna.create_study(direction=objective.direction, study_name="cancer")
callbacks = [
    MLflowCallback(tracking_uri="sqlite:///mlflow.db", metric_name="error"),
    WeightsAndBiasesCallback(metric_name="error", wandb_kwargs={"mode": "offline"}),
]
study.optimize(objective, n_trials=3, callbacks=callbacks)
