import joblib
import ray
from ray.util.joblib import register_ray
from sklearn.datasets import load_breast_cancer
from sklearn.svm import SVC

from optuna_treecv import tree_cross_validate

X, y = load_breast_cancer(return_X_y=True)
alone = tree_cross_validate(SVC(), X, y)
ray.init(num_cpus=2, include_dashboard=False)  # or the address of a cluster
register_ray()
with joblib.parallel_config("ray", n_jobs=2):
    result = tree_cross_validate(SVC(), X, y, n_jobs=None)
print((result.test_score == alone.test_score).all())
