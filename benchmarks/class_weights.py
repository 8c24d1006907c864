"""Print recall and precision of the rarest class of Covertype, by the weights of classes.

python benchmarks/class_weights.py
"""

from __future__ import annotations

from sklearn.datasets import fetch_covtype
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics import precision_score
from sklearn.metrics import recall_score
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict


def main() -> None:
    X, y = fetch_covtype(return_X_y=True)
    X, y = scale(X), y == 4  # 2,747 of 581,012 rows
    of_all_rows = {True: 0.5 / y.mean(), False: 0.5 / (1 - y.mean())}
    for estimator in (PegasosClassifier(), AveragedSGDClassifier()):
        for class_weight in (None, of_all_rows, "balanced"):
            name = "a dict" if isinstance(class_weight, dict) else class_weight
            estimator.set_params(class_weight=class_weight)
            predicted = tree_cross_val_predict(estimator, X, y, cv=10)
            print(
                f"{type(estimator).__name__:22} {name!s:9}"
                f"recall {recall_score(y, predicted):.2f}, "
                f"precision {precision_score(y, predicted):.2f}, "
                f"balanced accuracy {balanced_accuracy_score(y, predicted):.2f}"
            )


if __name__ == "__main__":
    main()
