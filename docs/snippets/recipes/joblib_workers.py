import joblib
from sklearn.datasets import load_breast_cancer
from sklearn.svm import SVC

from optuna_treecv import tree_cross_validate

X, y = load_breast_cancer(return_X_y=True)
alone = tree_cross_validate(SVC(), X, y)
for backend in ("threading", "loky"):
    with joblib.parallel_config(backend, n_jobs=2):
        result = tree_cross_validate(SVC(), X, y, n_jobs=None)
    print(backend, (result.test_score == alone.test_score).all())
