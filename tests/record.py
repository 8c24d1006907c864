"""The record: what every engine does, by the public API alone, one line for each evaluation.

    python tests/record.py                      # print the record
    python tests/record.py --check              # compare it with tests/data/record.txt
    python tests/record.py --check --fast       # only the fast half
    python tests/record.py --check newton loo   # lines whose names have one of these words
    python tests/record.py --write              # make the reference anew, or lines of it

``SUBJECTS`` are estimators, one or more for each engine, and ``SITUATIONS`` are ways to evaluate
them. A line names both, and then gives what came of it as ``key=value``. Values of an engine that
promises bits are digests of bytes. Other values are two sums with ten digits, which begin with
``~`` and are compared to nine digits. A reason is recorded as the names that occur in it, and an
error as its type and the argument that it names, so that other words change nothing.

A difference from the reference is a defect, or is explained where the reference is made anew. The
lines of estimators of another library are not compared if another version of it is installed, and
those that depend on the last bits of NumPy's functions and of BLAS not on another kind of machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import as_completed
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import hashlib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
import math
from multiprocessing import get_context
import os
from pathlib import Path
import re
import sqlite3
import subprocess
import sys
import tempfile
from time import perf_counter
from time import sleep
from typing import Any
import warnings

sys.path.insert(0, str(Path(__file__).with_name("helpers")))
import blas_threads  # noqa: F401  # before NumPy
from joblib.externals.loky import get_reusable_executor
import numpy as np
import optuna
import pandas as pd
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.cluster import MiniBatchKMeans
from sklearn.compose import ColumnTransformer
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR
from sklearn.svm import NuSVC
from sklearn.svm import SVC
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree import DecisionTreeRegressor

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.history import load_fold_scores
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

REFERENCE = Path(__file__).with_name("data") / "record.txt"

Fields = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """An estimator to be recorded.

    Attributes
    ----------
    name : str
        That of its engine, a slash, and that of the estimator.
    estimator : estimator
    grid : dict of str to list
        One parameter that is searched.
    bad : dict of str to object
        Parameters that are refused.
    target : {"two", "three", "number", "count", "none"}
        What y holds.
    library : str
        The distribution whose version its numbers depend on.
    promises_bits : bool
        Whether its scores have the same bits everywhere.
    is_fast : bool
        Whether it belongs to the fast half.
    settings : dict of str to object
        Arguments of all its evaluations.
    X : ndarray or None
        Its rows; None: those of all.
    only : tuple of str
        The situations that it is for; all if there is none.
    """

    name: str
    estimator: Any
    grid: Mapping[str, list[Any]]
    bad: Mapping[str, Any]
    target: str = "two"
    library: str = "optuna_treecv"
    promises_bits: bool = False
    is_fast: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    X: np.ndarray | None = None
    only: tuple[str, ...] = ()

    def rows(self, n: int = 200) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the first n rows and their targets."""
        X = ROWS if self.X is None else self.X
        return X[:n], None if self.target == "none" else TARGETS[self.target][:n]

    def with_defaults(self, **settings: Any) -> dict[str, Any]:
        """Return arguments of an evaluation, with a score that small changes of a model move."""
        scoring: Any = None
        if is_classifier(self.estimator) and not self.name.startswith("neighbors"):
            has_probabilities = hasattr(self.estimator, "predict_proba")
            scoring = "neg_log_loss" if has_probabilities else "hinge"
        return {"cv": 5, "scoring": scoring, **self.settings, **settings}

    def candidates(self) -> list[Any]:
        ((name, values),) = self.grid.items()
        return [clone(self.estimator).set_params(**{name: value}) for value in values]


_RNG = np.random.default_rng(66)
ROWS = _RNG.normal(size=(200, 6))
_SCORE = ROWS @ [1.0, -0.7, 0.5, 0.2, 0.0, 0.0] + 0.7 * _RNG.normal(size=200)
TARGETS = {
    "two": (_SCORE > 0).astype(int),
    "three": np.digitize(_SCORE, [-0.6, 0.6]),
    "number": _SCORE,
    "count": _RNG.poisson(np.exp(0.4 * _SCORE)),
}
WEIGHTS = _RNG.exponential(size=200) * (_RNG.random(200) > 0.1)
COUNTS = _RNG.poisson(np.exp(ROWS / 2)).astype(float)


def _subjects() -> Iterator[Subject]:
    ours: Any = {"promises_bits": True}
    fast: Any = {"is_fast": True}
    sk: Any = {"library": "scikit-learn"}
    alphas = {"alpha": [1e-3, 1e-2, 1e-1, 1.0]}
    bad_alpha = {"alpha": -1.0}
    yield Subject("treecv/pegasos", PegasosClassifier(0.01), alphas, bad_alpha, **ours, **fast)
    for name, settings in {
        "random": {"order": "random"},
        "epochs": {"n_epochs": 3},
        "standard": {"method": "standard"},
        "progressive": {"method": "progressive"},
    }.items():
        yield Subject(
            f"treecv/pegasos_{name}",
            PegasosClassifier(0.01, average=True),
            alphas,
            bad_alpha,
            "three",
            settings=settings,
            is_fast=name in ("standard", "progressive"),
            **ours,
        )
    steps = {"step_size": [0.01, 0.03, 0.1]}
    bad_step = {"step_size": -1.0}
    sgd = AveragedSGDClassifier("log_loss", average_start=50)
    yield Subject("treecv/sgd", sgd, steps, bad_step, "three", **ours, **fast)
    yield Subject(
        "treecv/sgd_regressor", AveragedSGDRegressor(), steps, bad_step, "number", **ours
    )
    yield Subject("treecv/svrg", StreamingSVRGClassifier(step_size=0.05), steps, bad_step, **ours)
    svrg = StreamingSVRGRegressor("huber", step_size=0.05)
    yield Subject("treecv/svrg_regressor", svrg, steps, bad_step, "number", **ours, **fast)
    clusters = {"n_clusters": [2, 3, 5]}
    bad_clusters = {"n_clusters": 0}
    yield Subject("treecv/kmeans", StreamingKMeans(3), clusters, bad_clusters, "none", **ours)
    density = StreamingGaussianDensity("full")
    covariances = {"covariance_type": ["full", "diag"]}
    yield Subject("treecv/density", density, covariances, {"covariance_type": "x"}, "none")
    lsq = LSQSGDRegressor(radius=0.5)
    yield Subject("treecv/lsq", lsq, steps, bad_step, "number", **ours)
    further = {"method": "treecv"}
    yield Subject("treecv/scikit_sgd", SGDClassifier(random_state=0), alphas, bad_alpha,
                  settings=further, **sk, **fast)  # fmt: skip
    smoothings = {"var_smoothing": [1e-9, 1e-3, 0.1]}
    yield Subject("treecv/gaussian_nb", GaussianNB(), smoothings, {"var_smoothing": -1.0}, "three",
                  **sk)  # fmt: skip
    yield Subject("treecv/multinomial_nb", MultinomialNB(), alphas, bad_alpha, "three", X=COUNTS,
                  **sk)  # fmt: skip
    for name, kind in {"pegasos": PegasosClassifier, "scikit_sgd": SGDClassifier}.items():
        scaled = make_pipeline(StandardScaler(), kind(alpha=0.01, random_state=0))
        alpha = f"{kind.__name__.lower()}__alpha"
        yield Subject(f"treecv/{name}_scaled", scaled, {alpha: alphas["alpha"]}, {alpha: -1.0},
                      settings=further, is_fast=kind is PegasosClassifier)  # fmt: skip
    mini = MiniBatchKMeans(3, n_init=1, random_state=0)
    yield Subject("treecv/mini_batch", mini, clusters, bad_clusters, "none", **sk)

    penalties = {"alpha": [0.01, 0.1, 1.0, 10.0]}
    yield Subject("exact/ridge", Ridge(), penalties, bad_alpha, "number", **fast)
    scaled = make_pipeline(StandardScaler(), Ridge())
    of_ridge = {"ridge__alpha": penalties["alpha"]}
    yield Subject("exact/ridge_scaled", scaled, of_ridge, {"ridge__alpha": -1.0}, "number")
    yield Subject("exact/linear", LinearRegression(), {"fit_intercept": [True, False]},
                  {"positive": "x"}, "number")  # fmt: skip
    yield Subject("exact/lasso", Lasso(0.05), penalties, bad_alpha, "number", **fast)
    net = ElasticNet(0.05)
    yield Subject("exact/net", net, {"l1_ratio": [0.2, 0.8]}, {"l1_ratio": 2.0}, "number")
    components = {"n_components": [1, 2, 4]}
    yield Subject("exact/pls", PLSRegression(), components, {"n_components": 0}, "number")
    reduced = make_pipeline(StandardScaler(), PCA(2), Ridge())
    yield Subject("exact/reduced", reduced, {"pca__n_components": [1, 2, 4]},
                  {"pca__n_components": 1000}, "number")  # fmt: skip
    yield Subject("exact/ridge_classifier", RidgeClassifier(), penalties, bad_alpha, "three")
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1)
    shrinkages = {"shrinkage": [None, 0.1, 0.5]}
    yield Subject("exact/lda", lda, shrinkages, {"shrinkage": 2.0}, "three", **fast)
    qda = QuadraticDiscriminantAnalysis()  # other covariances from scikit-learn 1.9 on
    regs = {"reg_param": [0.0, 0.1, 0.5]}
    yield Subject("exact/qda", qda, regs, {"reg_param": 2.0}, "three", **sk)

    Cs = {"C": [0.01, 0.1, 1.0, 10.0]}
    bad_C = {"C": -1.0}
    yield Subject("newton/logistic", LogisticRegression(), Cs, bad_C, **fast)
    sparse_model = LogisticRegression(l1_ratio=0.7, solver="saga")
    yield Subject("newton/l1", sparse_model, Cs, bad_C)
    yield Subject("newton/logistic_scaled", make_pipeline(StandardScaler(), LogisticRegression()),
                  {"logisticregression__C": Cs["C"]}, {"logisticregression__C": -1.0},
                  "three", **fast)  # fmt: skip
    selected = make_pipeline(SelectKBest(k=3), LogisticRegression())
    yield Subject("newton/selected", selected, {"selectkbest__k": [2, 4]}, {"selectkbest__k": -1},
                  "three")  # fmt: skip
    yield Subject("newton/poisson", PoissonRegressor(), penalties, bad_alpha, "count")
    yield Subject("newton/svc", LinearSVC(), Cs, bad_C, "three")
    yield Subject("newton/svr", LinearSVR(epsilon=0.1, loss="squared_epsilon_insensitive"), Cs,
                  bad_C, "number")  # fmt: skip

    neighbors = {"n_neighbors": [1, 5, 15]}
    none = {"n_neighbors": 0}
    yield Subject("neighbors/classifier", KNeighborsClassifier(), neighbors, none, "three", **fast)
    yield Subject("neighbors/regressor", KNeighborsRegressor(weights="distance"), neighbors, none,
                  "number", **fast)  # fmt: skip

    yield Subject("kernel/svc", SVC(), Cs, bad_C, **fast)
    scaled = make_pipeline(StandardScaler(), SVR(gamma=0.2))
    yield Subject("kernel/svr", scaled, {"svr__C": Cs["C"]}, {"svr__C": -1.0}, "number")
    yield Subject(
        "kernel/ridge", KernelRidge(kernel="rbf"), penalties, bad_alpha, "number", **fast
    )

    sizes = {"n_estimators": [5, 10, 20]}
    bad_size = {"n_estimators": 0}
    yield Subject("boosting/gradient", GradientBoostingClassifier(n_estimators=12, random_state=0),
                  sizes, bad_size, "three", **sk)  # fmt: skip
    yield Subject("boosting/hist", HistGradientBoostingRegressor(max_iter=12, random_state=0),
                  {"max_iter": [5, 10, 20]}, {"max_iter": 0}, "number", **sk, **fast)  # fmt: skip
    try:
        from catboost import CatBoostRegressor
        from lightgbm import LGBMClassifier
        from xgboost import XGBRegressor
    except ImportError:
        pass
    else:
        light = LGBMClassifier(n_estimators=12, verbose=-1, n_jobs=1, random_state=0)
        yield Subject("boosting/lightgbm", light, sizes, {"num_leaves": 1}, "three",
                      "lightgbm", is_fast=True)  # fmt: skip
        extreme = XGBRegressor(n_estimators=12, n_jobs=1, random_state=0)
        yield Subject("boosting/xgboost", extreme, sizes, {"booster": "x"}, "number", "xgboost")
        cat = CatBoostRegressor(iterations=12, learning_rate=0.2, thread_count=1, verbose=False,
                                allow_writing_files=False)  # fmt: skip
        yield Subject("boosting/catboost", cat, {"iterations": [5, 10, 20]}, {"depth": -1},
                      "number", "catboost")  # fmt: skip
    forest = RandomForestClassifier(12, random_state=0)
    yield Subject("bagging/forest", forest, sizes, bad_size, "three", **sk, **fast)
    extra = ExtraTreesRegressor(12, random_state=0, min_samples_leaf=3)
    yield Subject("bagging/extra", extra, sizes, bad_size, "number", **sk)

    leaves = {"min_samples_leaf": [1, 5, 20]}
    bad_leaves = {"min_samples_leaf": 0}
    tree = HistTreeClassifier(random_state=0)
    yield Subject("forest/classifier", tree, leaves, bad_leaves, "three", **ours, **fast)
    yield Subject("forest/regressor", HistTreeRegressor(random_state=0), leaves, bad_leaves,
                  "number", **ours)  # fmt: skip
    yield Subject("forest/one_by_one", tree, leaves, bad_leaves, settings={"method": "standard"},
                  **ours)  # fmt: skip

    yield Subject("fit/svc", NuSVC(), {"nu": [0.2, 0.4, 0.5, 0.6]}, {"nu": -1.0}, **sk, **fast)
    yield Subject("fit/tree", DecisionTreeRegressor(random_state=0), leaves, bad_leaves, "number",
                  **sk)  # fmt: skip
    slow = RandomForestClassifier(1500, random_state=0)  # its folds are stored one by one
    yield Subject("fit/slow", slow, leaves, bad_leaves, only=("killed",),
                  settings={"method": "fit"}, **sk)  # fmt: skip
    of_tree = make_pipeline(SelectKBest(k=3), DecisionTreeClassifier(max_depth=3, random_state=0))
    yield Subject("fit/selected", of_tree, {"selectkbest__k": [2, 4]}, {"selectkbest__k": -1},
                  **sk)  # fmt: skip


SUBJECTS = {subject.name: subject for subject in _subjects()}

Situation = Callable[[Subject], Fields]
SITUATIONS: dict[str, Situation] = {}


def situation(function: Situation) -> Situation:
    SITUATIONS[function.__name__] = function
    return function


# What is written down.


def numbers(values: Any, subject: Subject) -> str:
    """Return a digest of bytes where the engine promises bits, and two sums otherwise."""
    values = np.atleast_1d(np.asarray(values))
    if values.dtype.kind in "OUS":
        values = np.unique(values.astype(str), return_inverse=True)[1]
    if subject.promises_bits or values.dtype.kind in "biu":
        return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:12]
    values = values.astype(float).ravel()
    is_finite = np.isfinite(values)
    finite = np.where(is_finite, values, 0.0)
    if len(values) == 1:
        return f"~{values[0]:.9e}"
    sums = math.fsum(finite), math.fsum(finite * np.cos(np.arange(len(values))))
    n_others = np.count_nonzero(~is_finite)
    return f"~{sums[0]:.9e},{sums[1]:.9e}" + (f",{n_others}" if n_others else "")


def category(reason: str) -> str:
    """Return the names of classes, parameters and methods in a reason."""
    names = re.findall(r"[A-Z][a-z]+[A-Z]\w+|\w+=[\w'.]+|[a-z]+_[a-z_]+|\b[A-Z]{3}\b", reason)
    return ",".join(sorted(set(names))) or ("some" if reason else "none")


def error_of(error: Exception) -> str:
    """Return the type of an error and the argument that it names first."""
    argument = re.match(r"(?:The )?'?([A-Za-z_]+)'?", str(error))
    return f"{type(error).__name__}:{argument[1] if argument else ''}"


def facts(result: Any, subject: Subject) -> Fields:
    """Return what a result says."""
    found: Fields = {
        "method": result.method,
        "reason": category(result.reason),
        "scores": numbers(result.test_score, subject),
        "updates": f"{result.n_updates}/{result.n_updates_saved}/{result.n_updates_standard}",
    }
    if result.diverged_folds:
        found["diverged"] = result.diverged_folds
    if len(result.scores) > 1:
        others = [score.test_score for score in result.scores.values()]
        found["others"] = numbers(np.concatenate(others), subject)
    if result.row_losses is not None:
        found["rows"] = numbers(result.row_losses, subject)
    if result.std_error is not None:
        found["error"] = numbers(result.std_error, replace(subject, promises_bits=False))
    if result.curve is not None:
        found["curve"] = numbers(result.curve.mean, subject)
        found["trees"] = result.curve.best
    return found


def cross_validate(
    subject: Subject, *, n: int = 200, X: Any = None, y: Any = None, **settings: Any
) -> Fields:
    rows, targets = subject.rows(n)
    X, y = rows if X is None else X, targets if y is None else y
    settings = subject.with_defaults(**settings)
    estimator = settings.pop("estimator", subject.estimator)
    return facts(tree_cross_validate(estimator, X, y, **settings), subject)


def objective_of(subject: Subject, **settings: Any) -> Any:
    settings = subject.with_defaults(**settings)
    grid = settings.pop("param_grid", subject.grid)
    return treecv_objective(subject.estimator, *subject.rows(), param_grid=grid, **settings)


# The ways to evaluate.


@situation
def alone(subject: Subject) -> Fields:
    return cross_validate(subject)


@situation
def batch(subject: Subject) -> Fields:
    return batch_of(subject, subject.rows()[0])


@situation
def batch_of_ties(subject: Subject) -> Fields:
    """Many rows are the same, or as far from a third one."""
    return batch_of(subject, np.round(subject.rows()[0]))


@situation
def batch_of_near_ties(subject: Subject) -> Fields:
    return batch_of(subject, np.round(subject.rows()[0]) * 0.1)


@situation
def batch_of_repeats(subject: Subject) -> Fields:
    """The scores of rows wait with those of folds, repeat after repeat."""
    return batch_of(subject, subject.rows()[0], cv=3, n_repeats=2, row_losses=True)


def batch_of(subject: Subject, X: np.ndarray, **given: Any) -> Fields:
    y, settings = subject.rows()[1], subject.with_defaults(**given)
    results = tree_cross_validate_many(subject.candidates(), X, y, **settings)
    found = facts(results[0], subject)
    found["scores"] = numbers(np.concatenate([one.test_score for one in results]), subject)
    found["all_updates"] = sum(one.n_updates for one in results)
    if results[0].row_losses is not None:
        found["rows"] = numbers(np.concatenate([one.row_losses for one in results]), subject)
    return found


@situation
def loo(subject: Subject) -> Fields:
    return cross_validate(subject, n=50, cv="loo")


@situation
def three_folds(subject: Subject) -> Fields:
    return cross_validate(subject, cv=3, stratify=False)


@situation
def no_partition(subject: Subject) -> Fields:
    return cross_validate(subject, cv=ShuffleSplit(3, test_size=0.2, random_state=0))


@situation
def holdout(subject: Subject) -> Fields:
    return cross_validate(subject, cv=0.25)


@situation
def time_series(subject: Subject) -> Fields:
    return cross_validate(subject, cv=TimeSeriesSplit(4))


@situation
def time_series_by_tree(subject: Subject) -> Fields:
    if not subject.name.startswith("treecv") or "method" in subject.settings:
        raise NotApplicableError
    return cross_validate(subject, cv=TimeSeriesSplit(4), method="treecv")


@situation
def repeats(subject: Subject) -> Fields:
    return cross_validate(subject, cv=3, n_repeats=2, random_state=3)


@situation
def weights(subject: Subject) -> Fields:
    return cross_validate(subject, sample_weight=WEIGHTS)


@situation
def class_weights(subject: Subject) -> Fields:
    estimator = clone(subject.estimator)
    names = [name for name in estimator.get_params() if name.endswith("class_weight")]
    if not names:
        raise NotApplicableError
    return cross_validate(subject, estimator=estimator.set_params(**{names[0]: "balanced"}))


@situation
def best_number_of_trees(subject: Subject) -> Fields:
    if not subject.name.startswith("b"):
        raise NotApplicableError
    return cross_validate(subject, n_estimators="best")


def two_scores(subject: Subject) -> list[str]:
    if is_classifier(subject.estimator):
        return ["accuracy", "f1_macro"]
    if is_regressor(subject.estimator):
        return ["r2", "neg_mean_absolute_error"]
    raise NotApplicableError


@situation
def several_scores(subject: Subject) -> Fields:
    return cross_validate(subject, scoring=two_scores(subject))


@situation
def pooled_score(subject: Subject) -> Fields:
    return cross_validate(subject, scoring=pooled(two_scores(subject)[1]))


@situation
def row_losses(subject: Subject) -> Fields:
    return cross_validate(subject, row_losses=True)


@situation
def two_threads(subject: Subject) -> Fields:
    return cross_validate(subject, n_jobs=2)


@situation
def float32(subject: Subject) -> Fields:
    return cross_validate(subject, X=subject.rows()[0].astype(np.float32))


@situation
def csr(subject: Subject) -> Fields:
    X = subject.rows()[0]
    return cross_validate(subject, X=sparse.csr_array(X * (abs(X) > 0.5)))


@situation
def frame(subject: Subject) -> Fields:
    X = pd.DataFrame(subject.rows()[0], columns=list("abcdef"))
    X["kind"] = np.array(["u", "v", "w"])[np.arange(len(X)) % 3]
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), list("abcdef")), ("kinds", OneHotEncoder(), ["kind"])]
    )
    return cross_validate(subject, X=X, estimator=make_pipeline(columns, subject.estimator))


FALL_BACK = ("exact", "newton", "neighbors", "kernel")


@situation
def far_rows(subject: Subject) -> Fields:
    """Three rows far away, for which some engines fall back to fits."""
    if not subject.name.startswith(FALL_BACK):
        raise NotApplicableError
    X = subject.rows()[0] * 0.1
    X[:3] *= 1e7
    return cross_validate(subject, X=X)


@situation
def far_rows_left_out(subject: Subject) -> Fields:
    if not subject.name.startswith(FALL_BACK):
        raise NotApplicableError
    X = subject.rows(50)[0].copy()
    X[:3] *= 1e4
    return cross_validate(subject, X=X, n=50, cv="loo")


@situation
def constant_column(subject: Subject) -> Fields:
    """A column of one number in the training set of one fold."""
    X = subject.rows()[0].copy()
    X[:, 2] = 0.0
    X[7, 2] = 3.0
    return cross_validate(subject, X=X)


@situation
def huge_rows(subject: Subject) -> Fields:
    ends = not subject.name.startswith("newton/sv")  # for LIBLINEAR does not
    if not (subject.name.startswith(FALL_BACK) and ends):
        raise NotApplicableError
    return cross_validate(subject, X=subject.rows()[0] * 1e160)


@situation
def separable_rows(subject: Subject) -> Fields:
    if not subject.name.startswith(FALL_BACK) or subject.target != "two":
        raise NotApplicableError
    X = subject.rows()[0] * 1e4
    return cross_validate(subject, X=X, y=(X[:, 0] > 0).astype(int))


@situation
def missing_number(subject: Subject) -> Fields:
    X = subject.rows()[0].copy()
    X[7, 2] = np.nan
    return cross_validate(subject, X=X)


@situation
def refusal(subject: Subject) -> Fields:
    return cross_validate(subject, estimator=clone(subject.estimator).set_params(**subject.bad))


@situation
def predictions(subject: Subject) -> Fields:
    X, y = subject.rows()
    settings: Any = {"cv": 5, **subject.settings}
    found: Fields = {}
    for method in ("predict", "predict_proba", "decision_function", "score_samples"):
        if hasattr(subject.estimator, method):
            try:
                predicted = tree_cross_val_predict(
                    subject.estimator, X, y, response_method=method, **settings
                )
            except ValueError as error:
                found[method] = error_of(error)
            else:
                found[method] = numbers(predicted, subject)
    return found


@situation
def sharing(subject: Subject) -> Fields:
    """Two trials, and the first one again."""
    objective = objective_of(subject, batch_size=1)
    ((name, values),) = subject.grid.items()
    results = [objective.evaluate({name: value}) for value in (*values[:2], values[0])]
    found = facts(results[1], subject)
    found["scores"] = numbers(np.concatenate([one.test_score for one in results]), subject)
    found["updates"] = "/".join(f"{one.n_updates}+{one.n_updates_saved}" for one in results)
    return found


@situation
def explained(subject: Subject) -> Fields:
    objective = objective_of(subject)
    words = str(objective.explain())
    return {"numbers": ",".join(re.findall(r"\d[\d,.]*\d|\d", words)), "names": category(words)}


def study_of(subject: Subject, report: str) -> Fields:
    objective = objective_of(subject, report=report, batch_size=1)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    study = optuna.create_study(
        sampler=objective.grid_sampler(), direction=objective.direction, pruner=pruner
    )
    study.optimize(objective)
    reports = [trial.intermediate_values for trial in study.trials]
    found: Fields = {
        "states": "".join(trial.state.name[0] for trial in study.trials),
        "steps": "|".join(",".join(map(str, sorted(one))) for one in reports),
        "reports": numbers([one[step] for one in reports for step in sorted(one)], subject),
        "folds": ",".join(str(t.user_attrs["treecv"]["folds_scored"]) for t in study.trials),
        "keys": ",".join(sorted(study.trials[0].user_attrs["treecv"])),
    }
    return found


@situation
def reports_of_folds(subject: Subject) -> Fields:
    return study_of(subject, "folds")


@situation
def reports_of_means(subject: Subject) -> Fields:
    return study_of(subject, "mean")


@situation
def early_reports(subject: Subject) -> Fields:
    return study_of(subject, "trees" if subject.name.startswith("b") else "progressive")


@situation
def after_the_study(subject: Subject) -> Fields:
    """The fitted model, out-of-fold predictions, the honest score, and rows of the store."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/store.db"
        objective = objective_of(subject, store=store, keep_outputs="all")
        study = optuna.create_study(
            sampler=objective.grid_sampler(), direction=objective.direction, study_name="record"
        )
        study.optimize(objective)
        found: Fields = {
            "values": numbers([trial.value for trial in study.trials], subject),
            "oof": attempt(lambda: numbers(objective.predict_oof(study), subject)),
            "honest": attempt(lambda: honest_of(objective, study, subject)),
            "model": attempt(lambda: model_of(objective.best_estimator(study), subject)),
            "again": attempt(lambda: again_of(subject, study, store)),
        }
        found["stored"] = numbers(load_fold_scores(store)["score"].sort_values(), subject)
        found["tables"] = tables_of(Path(folder, "store.db"))
    return found


def attempt(call: Callable[[], str]) -> str:
    try:
        return call()
    except ValueError as error:
        return error_of(error)


def honest_of(objective: Any, study: Any, subject: Subject) -> str:
    honest = objective.honest(study)
    values = [honest.mean, honest.low, honest.high]
    summed = numbers(values, replace(subject, promises_bits=False))
    return f"{honest.by}:{honest.n_contenders}:{summed}"


def model_of(model: Any, subject: Subject) -> str:
    """Return a digest of the fitted attributes that are numbers."""
    model = model[-1] if isinstance(model, Pipeline) else model
    values = []
    names = [name for name in sorted(vars(model)) if name.endswith("_") and name[0] != "_"]
    for name in names:
        try:
            values.append(np.asarray(vars(model)[name], float).ravel())
        except (TypeError, ValueError):
            continue
    summed = numbers(np.concatenate(values), subject) if values else "none"
    return f"{','.join(names)}:{summed}"


def again_of(subject: Subject, study: Any, store: str) -> str:
    """Return what a further objective finds of a trial that is in the store, or trains again."""
    result = objective_of(subject, store=store).evaluate(study.best_params)
    total = result.n_updates + result.n_updates_saved  # which of them, depends on seconds
    return f"{total}:{numbers(result.test_score, subject)}"


def tables_of(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        # How many models are stored, if any, depends on the seconds that they took; SQLite counts
        # them once more.
        by_seconds = "treecv_models", "treecv_leases", "sqlite_sequence"
        names = [name for (name,) in found if name not in by_seconds]
        counts = {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608
            for name in sorted(names)
        }
    return ",".join(f"{name}:{count}" for name, count in counts.items())


@situation
def rows_in_a_file(subject: Subject) -> Fields:
    X, y = subject.rows()
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", X)
        return cross_validate(
            subject, X=f"{folder}/X.npy", max_memory="1MiB", spill_dir=folder, n=len(X)
        )


@situation
def dask(subject: Subject) -> Fields:
    import dask.array as da
    import distributed

    from optuna_treecv.dask import DaskRows

    X, y = subject.rows()
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ):
        rows = DaskRows(da.from_array(X, chunks=(50, X.shape[1])), y)
        return cross_validate_rows(subject, rows)


def cross_validate_rows(subject: Subject, rows: Any) -> Fields:
    settings = subject.with_defaults()
    return facts(tree_cross_validate(subject.estimator, rows, **settings), subject)


# Other processes. They run this file with the name of a subject and of a folder.

_KILLED = (
    "treecv/pegasos",
    "forest/classifier",
    "boosting/lightgbm",
    "fit/slow",
    "newton/logistic",
)


class Dying(optuna.pruners.BasePruner):
    """Ends the process at the fourth report of a trial, once the store has what was put there."""

    def prune(self, study: Any, trial: Any) -> bool:
        if len(trial.intermediate_values) == 4:
            sleep(1.0)
            os._exit(9)
        return False


def in_store(subject: Subject, folder: str) -> Any:
    store = f"sqlite:///{folder}/store.db"
    return objective_of(subject, store=store, scoring="accuracy", report="folds", batch_size=1)


def other_process(what: str, subject: Subject, folder: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--other", what, subject.name, folder]
    return subprocess.Popen(command)


def run_other(what: str, name: str, folder: str) -> None:
    subject = SUBJECTS[name]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objective = in_store(subject, folder)
    study = optuna.load_study(
        study_name="record",
        storage=f"sqlite:///{folder}/study.db",
        sampler=objective.grid_sampler(seed=0),
        pruner=Dying() if what == "killed" else optuna.pruners.NopPruner(),
    )
    study.optimize(objective)


@situation
def killed(subject: Subject) -> Fields:
    if subject.name not in _KILLED:
        raise NotApplicableError
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{folder}/study.db"
        study = optuna.create_study(storage=storage, study_name="record", direction="maximize")
        code = other_process("killed", subject, folder).wait()
        result = in_store(subject, folder).evaluate(study.trials[0].params)
        found = facts(result, subject)
        if subject.name == "fit/slow":  # the fold that was the last one may not have been written
            found["updates"] = "fewer" if result.n_updates < result.n_updates_standard else "all"
        return {"code": code, **found}


@situation
def two_processes(subject: Subject) -> Fields:
    if subject.name not in _KILLED:
        raise NotApplicableError
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{folder}/study.db"
        study = optuna.create_study(storage=storage, study_name="record", direction="maximize")
        for process in [other_process("shared", subject, folder) for _ in range(2)]:
            process.wait()
        ((name, values),) = subject.grid.items()
        by_value = {trial.params[name]: trial.value for trial in study.trials if trial.value}
        scores = load_fold_scores(f"sqlite:///{folder}/store.db")["score"].round(12)
        return {
            "values": numbers([by_value[value] for value in values], subject),
            "stored": numbers(np.unique(scores), subject),
        }


# The whole.


class NotApplicableError(Exception):
    """A situation does not apply to a subject."""


def line_of(subject: Subject, name: str) -> str | None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = SITUATIONS[name](subject)
        except NotApplicableError:
            return None
        except Exception as error:  # noqa: BLE001
            found = {"raised": error_of(error)}
    n_warnings = len({str(one.message) for one in caught if one.category is UserWarning})
    if n_warnings and name != "dask":  # which warns, too
        found["warnings"] = n_warnings
    words = " ".join(f"{key}={str(value).replace(' ', '')}" for key, value in found.items())
    return f"{subject.name} {name} {words}"


def lines_of(subject: str, names: Sequence[str]) -> list[str]:
    lines = [line for name in names if (line := line_of(SUBJECTS[subject], name)) is not None]
    # This process cannot end before its workers, which would wait for minutes.
    get_reusable_executor().shutdown(kill_workers=True)
    return lines


_SLOW = {"dask", "killed", "two_processes", "loo", "repeats", "reports_of_means"}


def record(words: Sequence[str], fast: bool) -> list[str]:
    """Return the lines of all subjects and situations whose names have one of these words."""
    tasks = []
    for subject in SUBJECTS.values():
        if fast and not subject.is_fast:
            continue
        names = [
            name
            for name in SITUATIONS
            if (name in subject.only or not subject.only)
            and (not words or any(word in f"{subject.name} {name}" for word in words))
            and not (fast and name in _SLOW)
        ]
        if names:
            tasks.append((subject.name, names))
    n_processes = 2 * len(os.sched_getaffinity(0))  # half of the time is spent waiting
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as pool:
        # Those that wait for processes which are killed take longest, and begin first.
        begun_at = {
            task[0]: pool.submit(lines_of, *task)
            for task in sorted(tasks, key=lambda task: task[0] not in _KILLED)
        }
        begun = [begun_at[subject] for subject, _ in tasks]
        for _ in as_completed(begun):
            pass
        return [line for one in begun for line in one.result()]


LIBRARIES = ("scikit-learn", "numpy", "scipy", "optuna", "catboost", "lightgbm", "xgboost")


def machine() -> str:
    """Return a digest of functions whose last bits depend on the processor: NumPy's, and BLAS."""
    x = np.linspace(0.01, 9.0, 997)
    A = np.random.default_rng(0).normal(size=(61, 37))
    results = np.exp(-x), np.log(x), A @ A.T, np.linalg.eigvalsh(A.T @ A)
    return hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()[:12]


def needs(subject: str, situation: str) -> set[str]:
    """Return the libraries on whose versions a line depends, and "machine"."""
    names = {"scikit-learn" if situation == "far_rows" else SUBJECTS[subject].library}
    is_of_logarithms = subject in ("treecv/sgd", "treecv/svrg", "boosting/gradient")
    is_rounded = situation.startswith("far_rows") or (
        situation == "float32" and subject in _FLOAT32
    )
    return names | ({"machine"} if is_of_logarithms or is_rounded else set())


# scikit-learn's products of float32 rows.
_FLOAT32 = "treecv/scikit_sgd", "treecv/scikit_sgd_scaled", "fit/selected"


def versions() -> dict[str, str]:
    found = {"machine": machine()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def write(lines: Iterable[str], keeps_others: bool) -> None:
    """Write the reference, in which lines that are not recorded now may stay."""
    line_of = {tuple(line.split(" ", 2)[:2]): line for line in lines}
    if keeps_others:
        _, *before = REFERENCE.read_text().splitlines()
        line_of = {tuple(line.split(" ", 2)[:2]): line for line in before} | line_of
    header = " ".join(f"{name}={of}" for name, of in versions().items())
    names = ((subject, name) for subject in SUBJECTS for name in SITUATIONS)
    ordered = [line_of[name] for name in names if name in line_of]
    REFERENCE.write_text("\n".join([f"# {header}", *ordered]) + "\n")


def differences(reference: Iterable[str], lines: Iterable[str], is_part: bool) -> list[str]:
    """Return in words how lines differ from those of the reference."""
    header, *expected = reference
    of_reference = dict(word.split("=") for word in header.split()[1:])
    others = {name for name, of in versions().items() if of_reference.get(name) != of}
    before = {tuple(line.split(" ", 2)[:2]): fields_of(line) for line in expected}
    now = {tuple(line.split(" ", 2)[:2]): fields_of(line) for line in lines}
    found = (
        [] if is_part else [f"{' '.join(name)} is missing" for name in before.keys() - now.keys()]
    )
    for name, fields in now.items():
        is_other = bool(needs(*name) & others)
        if name not in before:
            if not is_other:
                found.append(f"{' '.join(name)} is new")
            continue
        for key in sorted(fields.keys() | before[name].keys()):
            old, new = before[name].get(key, "nothing"), fields.get(key, "nothing")
            if not (is_equal(old, new) or is_other):
                found.append(f"{' '.join(name)} {key}: {old} -> {new}")
    return found


def fields_of(line: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in line.split(" ")[2:])


def is_equal(old: str, new: str) -> bool:
    """Return whether two values are the same, numbers to nine digits."""
    if "~" not in old or old == new:
        return old == new
    parts = [re.split(r"[~,]", value) for value in (old, new)]
    if len(parts[0]) != len(parts[1]):
        return False
    for a, b in zip(*parts, strict=True):
        if a != b:
            try:
                if not math.isclose(float(a), float(b), rel_tol=1e-9, abs_tol=1e-9):
                    return False
            except ValueError:
                return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--other", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.other:
        run_other(*given.words)
        return
    begin = perf_counter()
    lines = record(given.words, given.fast)
    if given.write:
        write(lines, keeps_others=bool(given.words or given.fast))
    elif not given.check:
        print(*lines, sep="\n")
        return
    print(f"{len(lines)} evaluations in {perf_counter() - begin:.0f} s")
    if given.check:
        found = differences(
            REFERENCE.read_text().splitlines(), lines, bool(given.words or given.fast)
        )
        print(*found, f"{len(found)} differences", sep="\n")
        sys.exit(bool(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import record as imported  # so that processes of the pool find its functions

    imported.main()
