import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
import skore

from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X, X_test, y, y_test = train_test_split(X, y, random_state=0)
model = make_pipeline(StandardScaler(), LogisticRegression())
objective = treecv_objective(model, X, y, param_distributions="auto", scoring="neg_log_loss")
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=10)
best = objective.best_estimator(study)
report = skore.evaluate(best, X_test, y_test, splitter="prefit")
print(report.metrics.summarize().frame())
