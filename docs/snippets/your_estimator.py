"""The method that "auto" chooses for five estimators, and a recommended search space."""

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
for learner in (
    LogisticRegression(),
    KNeighborsClassifier(),
    SVC(),
    SGDClassifier(),
    AveragedSGDClassifier(),
):
    estimator = make_pipeline(StandardScaler(), learner)
    result = tree_cross_validate(estimator, X, y, cv=10, scoring="accuracy")
    print(f"{type(learner).__name__:21}  {result.method:9}  {result.mean:.3f}")

objective = treecv_objective(
    make_pipeline(StandardScaler(), LogisticRegression()),
    X,
    y,
    param_distributions="auto",  # the recommended space of LogisticRegression
    scoring="neg_log_loss",
)
print(objective.explain().partition(". ")[0])
optuna.logging.set_verbosity(optuna.logging.WARNING)
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=20)
print(f"best score {study.best_value:.3f}, searched: {', '.join(study.best_params)}")
