import optuna
from sklearn.datasets import load_breast_cancer
import xgboost

from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
model = xgboost.XGBClassifier(early_stopping_rounds=10, n_estimators=200, max_depth=3)
space = {"learning_rate": optuna.distributions.FloatDistribution(0.03, 0.3, log=True)}
objective = treecv_objective(
    model, X, y, param_distributions=space, n_estimators="best", scoring="neg_log_loss"
)
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=3)
print(objective.best_estimator(study).n_estimators < 200)

rates = xgboost.callback.LearningRateScheduler(lambda i: 0.2 * 0.95**i)
model = xgboost.XGBClassifier(n_estimators=20, callbacks=[rates])
result = tree_cross_validate(model, X, y)
print(result.method, "-", result.reason)
