"""Calls of scikit-learn, and the corresponding calls of this package."""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_validate
from optuna_treecv import TreeCVSearchCV

X, y = load_breast_cancer(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression())
folds = StratifiedKFold(5)

scores = cross_val_score(model, X, y, cv=folds)
result = tree_cross_validate(model, X, y, cv=folds, scoring="accuracy")
for fold_scores in (scores, result.test_score):
    print(fold_scores.round(3))

grid = {"logisticregression__C": [0.01, 0.1, 1.0, 10.0]}
theirs = GridSearchCV(model, grid, cv=folds).fit(X, y)
ours = TreeCVSearchCV(model, param_grid=grid, cv=folds).fit(X, y)
for search in (theirs, ours):
    print(search.best_params_, round(search.best_score_, 3))
labels = ours.predict(X)

# A nested cross-validation: a search per outer fold, scored on the test rows of this fold.
print(round(cross_val_score(ours, X, y, cv=folds).mean(), 3))
