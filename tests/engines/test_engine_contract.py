"""The contract of engines, for estimators of each engine but ``trees``.

The tests are those of ``optuna_treecv.testing.EngineContract``. The bins of trees that are grown
together are those of all rows, so that their scores are not those of fits: see ``trees/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
from processes import SERVER
import pytest
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import f_regression
from sklearn.feature_selection import SelectKBest
from sklearn.feature_selection import SelectPercentile
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import NuSVC
from sklearn.svm import NuSVR
from sklearn.svm import SVC
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from optuna_treecv import testing
from optuna_treecv.testing import EngineContract

pytestmark = pytest.mark.slow

# (estimator, parameters that its fit refuses, parameters of another candidate, parameters of
# converged reference fits)
EXACT = [
    (Ridge(), {"alpha": -1.0}, {"alpha": 30.0}, {"tol": 1e-12}),
    (make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": -1.0}, {"ridge__alpha": 30.0}, {}),
    (Lasso(0.05), {"alpha": -1.0}, {"alpha": 0.3}, {"tol": 1e-14, "max_iter": 100_000}),
    (RidgeClassifier(), {"alpha": -1.0}, {"alpha": 300.0}, {}),
    (LinearDiscriminantAnalysis(solver="lsqr"), {"shrinkage": 2.0}, {"shrinkage": 0.9}, {}),
    (LinearRegression(), {"fit_intercept": "no"}, {"fit_intercept": False}, {}),
    (PLSRegression(), {"n_components": 0}, {"n_components": 1}, {}),
    (QuadraticDiscriminantAnalysis(reg_param=0.1), {"reg_param": 2.0}, {"reg_param": 0.9}, {}),
    (
        make_pipeline(StandardScaler(), PCA(2), Ridge()),
        {"pca__n_components": 1000},
        {"pca__n_components": 3},
        {},
    ),
    (
        make_pipeline(SelectKBest(f_regression, k=3), PCA(2), StandardScaler(), Ridge()),
        {"selectkbest__k": -1},
        {"selectkbest__k": 2},
        {},
    ),
    (
        make_pipeline(SelectPercentile(percentile=60), RidgeClassifier()),
        {"ridgeclassifier__alpha": -1.0},
        {"ridgeclassifier__alpha": 300.0},
        {},
    ),
]
CONVERGED = {"solver": "newton-cholesky", "tol": 1e-12}
NEWTON = [
    (LogisticRegression(), {"C": -1.0}, {"C": 0.003}, CONVERGED),
    (
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": -1.0},
        {"logisticregression__C": 0.003},
        {f"logisticregression__{name}": value for name, value in CONVERGED.items()},
    ),
    (
        make_pipeline(SelectKBest(k=3), StandardScaler(), LogisticRegression()),
        {"selectkbest__k": -1},
        {"selectkbest__k": 2},
        {f"logisticregression__{name}": value for name, value in CONVERGED.items()},
    ),
    (
        # Folds whose test rows are far away are refitted.
        LogisticRegression(l1_ratio=0.7, solver="saga", tol=1e-10, max_iter=100_000),
        {"C": -1.0},
        {"C": 0.03},
        {},
    ),
    (PoissonRegressor(), {"alpha": -1.0}, {"alpha": 30.0}, CONVERGED),
    (LinearSVC(random_state=0), {"C": -1.0}, {"C": 0.001}, {"tol": 1e-10, "max_iter": 100_000}),
]
NEIGHBORS = [
    (KNeighborsClassifier(), {"n_neighbors": 0}, {"n_neighbors": 21}, {}),
    (KNeighborsRegressor(weights="distance"), {"n_neighbors": 0}, {"n_neighbors": 21}, {}),
    (
        make_pipeline(MinMaxScaler(), KNeighborsClassifier()),
        {"kneighborsclassifier__n_neighbors": 0},
        {"kneighborsclassifier__n_neighbors": 21},
        {},
    ),
]
KERNEL = [
    (SVC(tol=1e-8), {"C": -1.0}, {"C": 100.0}, {}),
    (
        make_pipeline(StandardScaler(), SVC(gamma="scale", tol=1e-8)),
        {"svc__C": -1.0},
        {"svc__C": 0.01},
        {},
    ),
    (
        make_pipeline(
            MinMaxScaler(), SVC(kernel="poly", degree=2, gamma=1.0, coef0=1.0, tol=1e-8)
        ),
        {"svc__gamma": -1.0},
        {"svc__gamma": 0.1},
        {},
    ),
    (SVR(C=3.0, gamma=0.2, tol=1e-8), {"epsilon": -1.0}, {"epsilon": 0.5}, {}),
    (
        make_pipeline(MinMaxScaler(), SVR(kernel="linear", tol=1e-8)),
        {"svr__C": -1.0},
        {"svr__C": 0.01},
        {},
    ),
    (KernelRidge(kernel="rbf"), {"alpha": -1.0}, {"alpha": 30.0}, {}),
    (
        make_pipeline(PCA(3), KernelRidge(kernel="laplacian", alpha=0.1)),
        {"kernelridge__gamma": -1.0},
        {"kernelridge__gamma": 0.01},
        {},
    ),
    (
        GaussianProcessRegressor(optimizer=None, alpha=0.1, normalize_y=True),
        {"alpha": -1.0},
        {"alpha": 3.0},
        {},
    ),
]
BOOSTING = [
    (
        GradientBoostingRegressor(n_estimators=4, random_state=0),
        {"n_estimators": 0},
        {"n_estimators": 2},
        {},
    ),
    (
        GradientBoostingClassifier(n_estimators=3, random_state=0),
        {"n_estimators": 0},
        {"n_estimators": 2},
        {},
    ),
    (
        HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5, random_state=0),
        {"max_iter": 0},
        {"max_iter": 2},
        {},
    ),
]
if find_spec("lightgbm"):
    from lightgbm import LGBMClassifier

    light = LGBMClassifier(
        n_estimators=3, min_child_samples=5, n_jobs=1, verbose=-1, random_state=0
    )
    BOOSTING.append((light, {"n_estimators": -1}, {"n_estimators": 2}, {}))
if find_spec("catboost"):
    from catboost import CatBoostClassifier

    cat = CatBoostClassifier(
        iterations=3, learning_rate=0.3, depth=3, verbose=False, allow_writing_files=False
    )
    BOOSTING.append((cat, {"iterations": -1}, {"iterations": 2}, {}))
if find_spec("xgboost"):
    from xgboost import XGBClassifier

    extreme = XGBClassifier(n_estimators=3, max_bin=32, n_jobs=1, random_state=0)
    BOOSTING.append((extreme, {"max_depth": -1}, {"max_depth": 1}, {}))
BAGGING = [
    (
        make_pipeline(PCA(3), RandomForestClassifier(3, random_state=0)),
        {"randomforestclassifier__n_estimators": 0},
        {"randomforestclassifier__n_estimators": 2},
        {},
    ),
    (RandomForestClassifier(4, random_state=0), {"n_estimators": 0}, {"n_estimators": 3}, {}),
    (ExtraTreesRegressor(4, random_state=0), {"n_estimators": 0}, {"n_estimators": 3}, {}),
    (
        BaggingClassifier(n_estimators=3, random_state=0),
        {"n_estimators": 0},
        {"n_estimators": 2},
        {},
    ),
]
TREE = [
    (GaussianNB(), {"var_smoothing": -1.0}, {"var_smoothing": 1.0}, {}),
    (BernoulliNB(), {"alpha": -1.0}, {"alpha": 30.0}, {}),
    (MultinomialNB(), {"alpha": -1.0}, {"alpha": 300.0}, {}),
    (ComplementNB(), {"alpha": -1.0}, {"alpha": 300.0}, {}),
]
FIT = [
    (NuSVC(gamma=0.1), {"nu": -1.0}, {"nu": 0.1}, {}),
    (DecisionTreeRegressor(random_state=0), {"min_samples_leaf": 0}, {"min_samples_leaf": 9}, {}),
    (make_pipeline(PCA(3), NuSVR()), {"nusvr__C": -1.0}, {"nusvr__C": 0.01}, {}),
]


def name_of(case: Any) -> str:
    return "-".join(type(step).__name__ for _, step in getattr(case[0], "steps", [(0, case[0])]))


# What libraries refuse in words of their own.
SKIPPED = {"LGBMClassifier": "test_refusals", "XGBClassifier": "test_missing_and_infinite_values"}
# What depends on the engine and the kind of targets, and on nothing else of the estimator.
OF_THE_ENGINE = {"test_several_scores_equal_those_of_fits", "test_two_processes_have_one_store"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    test, cases = metafunc.function.__name__, metafunc.cls.cases
    if test in OF_THE_ENGINE:  # the first classifier and the first regressor
        cases = {is_classifier(case[0]): case for case in reversed(cases)}.values()
    cases = [case for case in cases if SKIPPED.get(name_of(case)) != test]
    metafunc.parametrize("given", cases, indirect=True, ids=name_of)


@pytest.fixture(autouse=True, scope="module")
def _processes_are_forked() -> Iterator[None]:
    """Take the two processes that share a store from where the package is imported already."""
    pools = [ProcessPoolExecutor(1, mp_context=SERVER) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_two_processes", lambda: pools)
        yield
    for pool in pools:
        pool.shutdown()


class Contract(EngineContract):
    """The contract of an estimator among several."""

    cases: list[Any]
    case: Any

    @pytest.fixture(autouse=True)
    def given(self, request: Any) -> None:
        self.case = request.param

    @property
    def bad_parameters(self) -> Any:  # type: ignore[override]
        return self.case[1]

    @property
    def other_parameters(self) -> Any:  # type: ignore[override]
        return self.case[2]

    def make_estimator(self) -> Any:
        return clone(self.case[0])

    def make_reference(self) -> Any:
        return self.make_estimator().set_params(**self.case[3])

    def make_data(self) -> tuple[Any, np.ndarray]:
        X, y = super().make_data()
        if isinstance(self.case[0], MultinomialNB | ComplementNB):  # of counts
            return abs(X), y
        # For more classes, LinearSVC and L1 penalties are refitted.
        if isinstance(self.case[0], LinearSVC | SVC) or getattr(self.case[0], "l1_ratio", 0):
            return X, y > 0
        return X, abs(y) if isinstance(self.case[0], PoissonRegressor) else y


def contract(method: str, cases: list[Any]) -> type[Contract]:
    return type("OfMethod", (Contract,), {"method": method, "cases": cases})


TestExact = contract("exact", EXACT)
TestNewton = contract("newton", NEWTON)
TestNeighbors = contract("neighbors", NEIGHBORS)
TestKernel = contract("kernel", KERNEL)
TestBoosting = contract("boosting", BOOSTING)
TestBagging = contract("bagging", BAGGING)
TestTree = contract("treecv", TREE)
TestFit = contract("fit", FIT)
