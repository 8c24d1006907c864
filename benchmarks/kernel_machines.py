"""Kernel machines beside scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/kernel_machines.py TABLE [WORDS]

TABLE is one of

* ``svc``: SVC behind StandardScaler, 4 values of gamma x 8 of C, 10 folds, 5,000 rows.
* ``small``: the same pipeline, one candidate, 5 folds, 500 rows, beside ``cross_validate``.
* ``tpe``: 40 trials of TPE over gamma and C, 5 folds, 4,000 rows.
* ``svr``: SVR behind StandardScaler, 4 x 8 x 2 values of epsilon, 10 folds.
* ``letter``: one-vs-one SVC of 26 classes, 5,000 rows, 4 x 8 candidates, 10 folds.
* ``ridge``: KernelRidge, 30 values of alpha x 3 of gamma, 10 folds, 5,000 rows.
* ``loo``: leave-one-out of SVC, 1,000 rows, one gamma, 8 values of C.
* ``libsvm``: the violation of the optimality conditions of SVC(tol=...), computed in float64.

Only rows whose names contain one of WORDS are measured. Ours is one run, or the median of several
short ones; scikit-learn is measured by single fits and predictions of folds, spread over the grid,
and their mean is multiplied by the number of fits. The columns are seconds of ours, seconds of
scikit-learn, their ratio, and the number of fits that were measured, with the labels or
predictions that differ. Files are read from $OPTUNA_TREECV_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import median
import sys
from time import perf_counter
from typing import Any

import datasets
import numpy as np
import optuna
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.svm import SVR

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.kernel_machines.kernels.dual import DualSolver
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram

SCALES, CS = (0.1, 0.316, 1.0, 3.16), np.geomspace(1e-2, 1e3, 8).tolist()


def load(name: str, n_rows: int) -> tuple[Any, Any]:
    """Return randomly chosen rows of a data set."""
    loaded = np.load(datasets.file_of(f"{name}.npz"))
    X, y = loaded["X"].astype(np.float64), loaded["y"]
    rows = np.random.default_rng(0).permutation(len(y))[:n_rows]
    return X[rows], y[rows]


def compare(
    name: str, estimator: Any, X: Any, y: Any, grid: dict[str, Any], cv: Any, n_measured: int = 16
) -> None:
    """Print the seconds of a search, and those of scikit-learn from single fits."""
    began = perf_counter()
    search = TreeCVSearchCV(estimator, param_grid=grid, cv=cv, refit=False).fit(X, y)
    seconds = perf_counter() - began
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    splits = list(cv.split(X, y))
    cells = list(product(range(len(points)), range(len(splits))))
    chosen = np.linspace(0, len(points) - 1, n_measured).round().astype(int)
    theirs, n_different, n_tested, largest = 0.0, 0, 0, 0.0
    for number, index in enumerate(chosen):
        train, test = splits[number % len(splits)]
        model = clone(estimator).set_params(**points[index])
        began = perf_counter()
        predicted = model.fit(X[train], y[train]).predict(X[test])
        theirs += (perf_counter() - began) * len(cells) / n_measured
        if number % 4 == 0:
            candidate = clone(estimator).set_params(**points[index])
            ours = tree_cross_val_predict(candidate, X, y, cv=cv, response_method="predict")
            ours = ours[test]
            n_different += np.sum(ours != predicted)
            largest = max(largest, float(np.abs(ours - predicted).max()))
            n_tested += len(test)
    if is_classifier(estimator):
        difference = f"{n_different} of {n_tested} labels differ"
    else:
        difference = f"largest difference {largest:.1e}, targets' deviation {np.std(y):.1e}"
    method = search.study_.trials[0].user_attrs["treecv"]["method"]
    print(
        f"{name:42} {seconds:8.2f} s {theirs:9.1f} s {theirs / seconds:8.1f} {method} "
        f"{n_measured} fits, {difference}",
        flush=True,
    )


def pipeline_grid(name: str, X: Any, **more: Any) -> dict[str, Any]:
    gammas = [scale / X.shape[1] for scale in SCALES]  # X is standardised
    return {f"{name}__gamma": gammas, f"{name}__C": CS, **more}


def svc(is_asked: Callable[[str], bool]) -> None:
    for name in ("magic", "elec2", "higgs_7k5"):
        if is_asked(name):
            X, y = load(name, 5000)
            cv = StratifiedKFold(10, shuffle=True, random_state=0)
            pipeline = make_pipeline(StandardScaler(), SVC())
            compare(f"SVC, {name}", pipeline, X, y, pipeline_grid("svc", X), cv)


def small(is_asked: Callable[[str], bool]) -> None:
    cv = StratifiedKFold(5, shuffle=True, random_state=0)
    for name, C in product(("magic", "elec2", "higgs_7k5"), (1.0, 100.0)):
        X, y = load(name, 500)
        pipeline, times = make_pipeline(StandardScaler(), SVC(C=C)), {"ours": [], "theirs": []}
        for _ in range(41):
            began = perf_counter()
            tree_cross_validate(pipeline, X, y, cv=cv, scoring="accuracy")
            middle = perf_counter()
            cross_validate(pipeline, X, y, cv=cv, scoring="accuracy")
            times["ours"].append(middle - began)
            times["theirs"].append(perf_counter() - middle)
        ours, theirs = (1e3 * median(t) for t in times.values())
        print(f"500 rows, {name}, C={C:g}: {ours:.1f} ms {theirs:.1f} ms {theirs / ours:.2f}")


def tpe(is_asked: Callable[[str], bool]) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in ("magic", "elec2", "higgs_7k5"):
        if not is_asked(name):
            continue
        X, y = load(name, 4000)
        cv = StratifiedKFold(5, shuffle=True, random_state=0)
        pipeline = make_pipeline(StandardScaler(), SVC())

        def suggest(trial: Any, pipeline: Any = pipeline) -> Any:
            gamma = trial.suggest_float("svc__gamma", 1e-3, 1, log=True)
            C = trial.suggest_float("svc__C", 1e-2, 1e3, log=True)
            return clone(pipeline).set_params(svc__gamma=gamma, svc__C=C)

        seconds = []
        for method in ("auto", "fit"):
            sampler = optuna.samplers.TPESampler(seed=0)
            study = optuna.create_study(direction="maximize", sampler=sampler)
            objective = treecv_objective(
                suggest, X, y, cv=cv, scoring="accuracy", method=method, report=None
            )
            began = perf_counter()
            study.optimize(objective, n_trials=40)
            seconds.append(perf_counter() - began)
        ours, theirs = seconds
        print(
            f"TPE, 40 trials, {name}: {ours:.1f} s {theirs:.1f} s {theirs / ours:.1f}", flush=True
        )


def svr(is_asked: Callable[[str], bool]) -> None:
    for name, n_rows in (("abalone", 4177), ("kin8nm", 5000)):
        if is_asked(name):
            X, y = load(name, n_rows)
            y = (y - y.mean()) / y.std()
            grid = pipeline_grid("svr", X, svr__epsilon=[0.05, 0.2])
            cv = KFold(10, shuffle=True, random_state=0)
            compare(f"SVR, {name}", make_pipeline(StandardScaler(), SVR()), X, y, grid, cv)


def letter(is_asked: Callable[[str], bool]) -> None:
    X, y = load("letter", 5000)
    cv = StratifiedKFold(10, shuffle=True, random_state=0)
    pipeline = make_pipeline(StandardScaler(), SVC())
    compare("SVC, letter, 26 classes", pipeline, X, y, pipeline_grid("svc", X), cv)


def ridge(is_asked: Callable[[str], bool]) -> None:
    X, y = load("kin40k", 5000)
    X = StandardScaler().fit_transform(X)
    grid = {"gamma": [0.02, 0.125, 0.8], "alpha": np.geomspace(1e-6, 1e2, 30).tolist()}
    cv = KFold(10, shuffle=True, random_state=0)
    compare("KernelRidge, kin40k", KernelRidge(kernel="rbf"), X, y, grid, cv)


def loo(is_asked: Callable[[str], bool]) -> None:
    X, y = load("magic", 1000)
    X = StandardScaler().fit_transform(X)
    grid = {"C": CS}
    compare("leave-one-out, 1,000 rows", SVC(gamma=0.1), X, y, grid, LeaveOneOut(), n_measured=8)


def compute_gap(K: Any, y: Any, C: float, coefs: Any) -> float:
    """Return the violation of the optimality conditions of an SVC with coefficients y alpha."""
    gradient = K @ coefs - y
    can_rise, can_fall = coefs < np.where(y > 0, C, 0), coefs > np.where(y > 0, 0, -C)
    return float(gradient[can_fall].max() - gradient[can_rise].min())


def libsvm(is_asked: Callable[[str], bool]) -> None:
    X, y = load("magic", 2000)
    X, y = StandardScaler().fit_transform(X), np.where(y == y.max(), 1.0, -1.0)
    K = rbf_kernel(X, gamma=0.1)
    solver = DualSolver()
    for C in (1.0, 1e2, 1e4, 1e6):
        ours, gradient = np.zeros(len(y)), -y
        bounds = np.where(y > 0, 0, -C), np.where(y > 0, C, 0)
        tol = 5e-8 * max(1, C / 1e3)
        _, intercept, _ = solver.solve(Gram(K), y, *bounds, 0.0, ours, gradient, tol)
        print(f"C = {C:7g}: gap of ours {compute_gap(K, y, C, ours):.0e}", end="")
        for tol in (1e-3, 1e-6):
            model = SVC(C=C, gamma=0.1, tol=tol).fit(X, y)
            theirs = np.zeros(len(y))
            theirs[model.support_] = model.dual_coef_[0]
            difference = np.abs(K @ ours + intercept - model.decision_function(X)).max()
            gap = compute_gap(K, y, C, theirs)
            print(
                f"; of SVC(tol={tol:g}) {gap:.0e}, decision values differ by {difference:.0e}",
                end="",
            )
        print(flush=True)


TABLES = {f.__name__: f for f in (svc, small, tpe, svr, letter, ridge, loo, libsvm)}


def main() -> None:
    table, words = sys.argv[1], sys.argv[2:]
    TABLES[table](lambda name: not words or any(word in name for word in words))


if __name__ == "__main__":
    main()
