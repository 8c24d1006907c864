"""Learners of the TreeCV paper and of papers on single-pass learning, for experiments."""

from optuna_treecv.engines.treecv.learners.gaussian import StreamingGaussianDensity
from optuna_treecv.engines.treecv.learners.kmeans import StreamingKMeans
from optuna_treecv.engines.treecv.learners.sgd import LSQSGDRegressor

__all__ = ["LSQSGDRegressor", "StreamingGaussianDensity", "StreamingKMeans"]

for _name in __all__:
    globals()[_name].__module__ = __name__
