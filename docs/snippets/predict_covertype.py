"""Out-of-fold predictions for Covertype, 581,012 rows: the median seconds of 5 calls.

python docs/snippets/predict_covertype.py
"""

from statistics import median
from time import perf_counter

from sklearn.datasets import fetch_covtype
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_predict

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict

X, y = fetch_covtype(return_X_y=True)
X /= X.std(axis=0)
y = y == 1
model = PegasosClassifier(alpha=1e-6, average=True)
sgd = SGDClassifier(max_iter=1, tol=None)
calls = {
    "TreeCV, 1,000 folds": lambda: tree_cross_val_predict(model, X, y, cv=1000),
    "TreeCV, leave-one-out": lambda: tree_cross_val_predict(model, X, y, cv="loo"),
    "cross_val_predict, 10 folds": lambda: cross_val_predict(sgd, X, y, cv=10),
}
seconds = {name: [] for name in calls}
for _ in range(5):
    for name, call in calls.items():
        begin = perf_counter()
        call()
        seconds[name].append(perf_counter() - begin)
for name, measured in seconds.items():
    print(f"{name:28} {median(measured):.2f} s")
