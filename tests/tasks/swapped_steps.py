"""A search that swaps the preprocessing and the model, each with its own parameters."""

from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import TreeCVSearchCV

X, y = load_wine(return_X_y=True)
pipeline = Pipeline([("scale", StandardScaler()), ("model", SVC())])
grids = [
    {"scale": [StandardScaler(), MinMaxScaler()], "model": [SVC()], "model__gamma": [0.01, 0.1]},
    {"model": [LogisticRegression()], "model__C": [0.1, 1.0]},
]
options = {"param_grid": grids, "cv": StratifiedKFold(3), "scoring": "accuracy"}
ours = TreeCVSearchCV(pipeline, **options).fit(X, y)
theirs = GridSearchCV(pipeline, **options).fit(X, y)
assert list(ours.cv_results_["mean_test_score"]) == list(theirs.cv_results_["mean_test_score"])
assert type(ours.best_estimator_[-1]) is type(theirs.best_estimator_[-1])
