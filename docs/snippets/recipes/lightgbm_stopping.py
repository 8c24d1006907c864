import lightgbm
import optuna
from sklearn.datasets import load_breast_cancer

from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
model = lightgbm.LGBMClassifier(early_stopping_round=10, n_estimators=200, verbose=-1)
space = {"num_leaves": optuna.distributions.IntDistribution(4, 16)}
objective = treecv_objective(
    model, X, y, param_distributions=space, n_estimators="best", scoring="neg_log_loss"
)
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=3)
print(objective.best_estimator(study).n_estimators < 200)

model = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1)
rates = lightgbm.reset_parameter(learning_rate=lambda i: 0.2 * 0.95**i)
result = tree_cross_validate(model, X, y, params={"callbacks": [rates]})
print(result.method, "-", result.reason)
