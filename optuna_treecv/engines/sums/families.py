"""Which estimators have exact folds, and the parts of a Pipeline that ends with one."""

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier

from optuna_treecv.engines.sums.discriminants import LinearDiscriminantFolds
from optuna_treecv.engines.sums.discriminants import QuadraticDiscriminantFolds
from optuna_treecv.engines.sums.regression import LassoFolds
from optuna_treecv.engines.sums.regression import RidgeFolds
from optuna_treecv.numerics.family import Family

#: The families of estimators. A subclass may do something else, so that it has none.
FAMILIES: dict[type, type[Family]] = {
    Ridge: RidgeFolds,
    RidgeClassifier: RidgeFolds,
    Lasso: LassoFolds,
    ElasticNet: LassoFolds,
    LinearRegression: LassoFolds,
    LinearDiscriminantAnalysis: LinearDiscriminantFolds,
    QuadraticDiscriminantAnalysis: QuadraticDiscriminantFolds,
}
