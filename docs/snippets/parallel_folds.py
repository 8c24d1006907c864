"""Folds that are fitted in parallel, by threads."""

from joblib import parallel_config
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from optuna_treecv import tree_cross_validate

X, y = load_breast_cancer(return_X_y=True)
with parallel_config("threading", n_jobs=2):
    result = tree_cross_validate(RandomForestClassifier(10), X, y, cv=10, n_jobs=None)
