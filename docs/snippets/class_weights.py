"""Recall and precision of the rarest class of Covertype with and without weights of classes.

python docs/snippets/class_weights.py
"""

from sklearn.datasets import fetch_covtype
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics import precision_score
from sklearn.metrics import recall_score
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict

X, y = fetch_covtype(return_X_y=True)
X, y = scale(X), y == 4  # 2,747 of 581,012 rows
of_all_rows = {True: 0.5 / y.mean(), False: 0.5 / (1 - y.mean())}
for estimator in (PegasosClassifier(), AveragedSGDClassifier()):
    for name, class_weight in ("None", None), ("a dict", of_all_rows), ("balanced", "balanced"):
        estimator.set_params(class_weight=class_weight)
        predicted = tree_cross_val_predict(estimator, X, y, cv=10)
        print(
            f"{type(estimator).__name__:22} {name:9}"
            f"recall {recall_score(y, predicted):.2f}, "
            f"precision {precision_score(y, predicted):.2f}, "
            f"balanced accuracy {balanced_accuracy_score(y, predicted):.2f}"
        )
