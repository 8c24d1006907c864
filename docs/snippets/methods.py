"""The methods of several estimators, and the reasons for their choice."""

from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from optuna_treecv import HistTreeClassifier
from optuna_treecv import tree_cross_validate

X, y = make_classification(500, random_state=0)
for estimator in [
    RidgeClassifier(),
    LogisticRegression(),
    KNeighborsClassifier(),
    RandomForestClassifier(10),
    HistTreeClassifier(),
    GaussianNB(),
]:
    result = tree_cross_validate(estimator, X, y, cv=5)
    print(f"{type(estimator).__name__:22} {result.method:9} {result.reason}")
for options in [{}, {"n_epochs": 5}]:
    result = tree_cross_validate(SGDClassifier(), X, y, cv=5, **options)
    print(f"{'SGDClassifier':22} {result.method:9} {result.reason}")
