"""One estimator with several kinds of folds, and its out-of-fold predictions."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate

X, y = load_breast_cancer(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression())
patients = np.arange(len(y)) // 3  # invented groups: three rows per patient
folds = {
    "10 stratified folds": {"cv": 10},
    "10 folds of whole patients": {"cv": 10, "groups": patients},
    "hold-out of 20 %": {"cv": 0.2},
    "time series with a gap": {"cv": TimeSeriesSplit(5, gap=7)},
    "leave-one-out": {"cv": "loo"},
}
for name, arguments in folds.items():
    result = tree_cross_validate(model, X, y, **arguments)
    print(f"{name:26} {result.n_folds:4} folds, error {result.mean:.3f} +- {result.std_error:.3f}")

predicted = tree_cross_val_predict(model, X, y, cv="loo")
print("wrong rows:", np.flatnonzero(predicted != y)[:5])
