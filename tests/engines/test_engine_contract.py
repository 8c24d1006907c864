"""The contract of engines, for one or more estimators of each engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

from optuna_treecv.testing import EngineContract

pytestmark = pytest.mark.slow

EXACT = [
    (Ridge(), {"alpha": -1.0}, None),
    (make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": -1.0}, None),
    (Lasso(0.05), {"alpha": -1.0}, {"tol": 1e-14, "max_iter": 100_000}),
    (RidgeClassifier(), {"alpha": -1.0}, None),
    (LinearDiscriminantAnalysis(solver="lsqr"), {"shrinkage": 2.0}, None),
]
CONVERGED = {"solver": "newton-cholesky", "tol": 1e-12}
NEWTON = [
    (LogisticRegression(), {"C": -1.0}, CONVERGED),
    (
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": -1.0},
        {f"logisticregression__{name}": value for name, value in CONVERGED.items()},
    ),
    (PoissonRegressor(), {"alpha": -1.0}, CONVERGED),
    (LinearSVC(random_state=0), {"C": -1.0}, {"tol": 1e-10, "max_iter": 100_000}),
]
NEIGHBORS = [
    (KNeighborsClassifier(), {"n_neighbors": 0}, None),
    (KNeighborsRegressor(weights="distance"), {"n_neighbors": 0}, None),
]
BOOSTING = [
    (GradientBoostingRegressor(n_estimators=10, random_state=0), {"n_estimators": 0}, None)
]
BAGGING = [(RandomForestClassifier(10, random_state=0), {"n_estimators": 0}, None)]
TREE = [(GaussianNB(), {"var_smoothing": -1.0}, None)]
FIT = [
    (SVC(), {"C": -1.0}, None),
    (DecisionTreeRegressor(random_state=0), {"min_samples_leaf": 0}, None),
]


def name_of(case: Any) -> str:
    return "-".join(type(step).__name__ for _, step in getattr(case[0], "steps", [(0, case[0])]))


class Contract(EngineContract):
    """The contract of an estimator among several."""

    case: Any

    @property
    def bad_parameters(self) -> Any:  # type: ignore[override]
        return self.case[1]

    def make_estimator(self) -> Any:
        return clone(self.case[0])

    def make_reference(self) -> Any:
        return self.make_estimator().set_params(**(self.case[2] or {}))

    def make_data(self) -> tuple[Any, np.ndarray]:
        X, y = super().make_data()
        if isinstance(self.case[0], LinearSVC):  # for more classes, so few rows are fitted
            return X, y > 0
        return X, abs(y) if isinstance(self.case[0], PoissonRegressor) else y


def contract(method: str, cases: list[Any]) -> type[Contract]:
    class OfMethod(Contract):
        @pytest.fixture(autouse=True, params=cases, ids=name_of)
        def given(self, request: Any) -> None:
            self.case = request.param

    OfMethod.method = method
    return OfMethod


TestExact = contract("exact", EXACT)
TestNewton = contract("newton", NEWTON)
TestNeighbors = contract("neighbors", NEIGHBORS)
TestBoosting = contract("boosting", BOOSTING)
TestBagging = contract("bagging", BAGGING)
TestTree = contract("treecv", TREE)
TestFit = contract("fit", FIT)
