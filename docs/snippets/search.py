"""A search as an estimator, and its own cross-validation."""

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import TreeCVSearchCV

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
grid = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1]}
model = PegasosClassifier()
search = TreeCVSearchCV(model, param_grid=grid, cv="loo", random_state=0)
search.fit(X, y)
print(search.best_params_, round(search.best_score_, 3))
labels = search.predict(X)

# The score of the whole procedure: each outer fold makes its own choice.
scores = cross_val_score(search, X, y, cv=5)
print(f"{scores.mean():.3f}")
