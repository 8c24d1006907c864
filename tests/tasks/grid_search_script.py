"""A script of GridSearchCV in which only the class is changed."""

import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import TreeCVSearchCV

X, y = load_iris(return_X_y=True)
grid = {"svc__C": [0.1, 1, 10], "svc__gamma": ["scale", 0.1]}
pipeline = make_pipeline(StandardScaler(), SVC())
searches = [
    Search(pipeline, param_grid=grid, cv=StratifiedKFold(5), scoring="accuracy").fit(X, y)
    for Search in (GridSearchCV, TreeCVSearchCV)
]
theirs, ours = searches
assert ours.best_params_ == theirs.best_params_
assert np.array_equal(ours.predict(X), theirs.predict(X))
for column in ("mean_test_score", "std_test_score", "rank_test_score", "split3_test_score"):
    np.testing.assert_allclose(ours.cv_results_[column], theirs.cv_results_[column])
