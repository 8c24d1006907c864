from dask.distributed import Client
import joblib
from sklearn.datasets import load_breast_cancer
from sklearn.svm import SVC

from optuna_treecv import tree_cross_validate

X, y = load_breast_cancer(return_X_y=True)
alone = tree_cross_validate(SVC(), X, y)
# For an existing cluster: Client("tcp://scheduler:8786").
with Client(n_workers=2, processes=False, dashboard_address=None):
    with joblib.parallel_config("dask"):
        result = tree_cross_validate(SVC(), X, y, n_jobs=None)
print((result.test_score == alone.test_score).all())
