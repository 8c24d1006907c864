"""What follows from a finished study: a threshold, calibrated probabilities, and intervals."""

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)


def search(estimator, data, grid, **options):
    objective = treecv_objective(estimator, *data, param_grid=grid, random_state=0, **options)
    sampler = objective.grid_sampler(seed=0)
    study = optuna.create_study(direction=objective.direction, sampler=sampler)
    study.optimize(objective)
    return objective, study


X, y = load_breast_cancer(return_X_y=True)
forest = RandomForestClassifier(100, random_state=0)
objective, study = search(forest, (X, y), {"max_depth": [2, 4, 8]}, scoring="roc_auc")
found = objective.threshold(study, "f1")
print(f"threshold {found.threshold:.2f}, F1 {found.score:.3f}, honest {found.honest_score:.3f}")
model = objective.best_estimator(study, threshold=found)  # predicts with this threshold
model = objective.best_estimator(study, calibrate="isotonic")
print("calibrated:", model.predict_proba(X[:1]).round(2))

X, y = load_diabetes(return_X_y=True)
objective, study = search(Ridge(), (X, y), {"alpha": [0.1, 0.3, 1.0, 3.0]})
print(objective.predict_oof(study, as_frame=True).head(2).round(1))
model = objective.conformal(study)
for low, high in model.predict_interval(X[:2], level=0.9):
    print(f"between {low:.0f} and {high:.0f}")
