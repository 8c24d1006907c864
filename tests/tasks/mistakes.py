"""Five mistakes, and the messages that say what to use instead."""

import numpy as np
from optuna.distributions import FloatDistribution
import pytest
from sklearn.linear_model import Ridge
from sklearn.svm import SVC

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

X = np.random.default_rng(0).normal(size=(100, 3))
y = X[:, 0] > 0
alpha = {"alpha": FloatDistribution(0.1, 1.0)}
with pytest.raises(ValueError, match="has no parameter 'alhpa'; it has alpha"):
    treecv_objective(Ridge(), X, y, param_distributions={"alhpa": alpha["alpha"]})
with pytest.raises(ValueError, match="cv must be between 2 and the number of rows, 100, got 1"):
    tree_cross_validate(PegasosClassifier(), X, y, cv=1)
with pytest.raises(ValueError, match="estimator must be .* instance"):
    tree_cross_validate(PegasosClassifier, X, y)
with pytest.raises(ValueError, match="n_epochs must be None for SVC"):
    tree_cross_validate(SVC(), X, y, n_epochs=5)
with pytest.raises(ValueError, match="X must be a path .*, got 'rows.csv', which does not exist"):
    tree_cross_validate(PegasosClassifier(), "rows.csv", y)
