"""The same splits of time, by a chain and by Newton's method."""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate

X, y = load_breast_cancer(return_X_y=True)
cv = TimeSeriesSplit(10, gap=7)
chain = tree_cross_validate(PegasosClassifier(), X, y, cv=cv)
scaled = make_pipeline(StandardScaler(), LogisticRegression())
logistic = tree_cross_validate(scaled, X, y, cv=cv)
print(chain.method, chain.n_updates)
print(logistic.method, logistic.n_updates)
