"""An interval, and the difference of two evaluations."""

from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
result = tree_cross_validate(AveragedSGDClassifier(), X, y)
print(result.interval())

models = [PegasosClassifier(alpha=alpha) for alpha in (0.01, 1.0)]
small, large = tree_cross_validate_many(models, X, y, row_losses=True)
print(small.compare(large))
