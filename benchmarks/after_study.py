"""What follows from a finished study, beside scikit-learn and MAPIE.

    OMP_NUM_THREADS=1 python benchmarks/after_study.py TABLE [REPETITIONS]

TABLE is one of

* ``thresholds``: the threshold of the best trial, beside ``TunedThresholdClassifierCV`` with as
  many folds. Both are scored on withheld rows. About 3 minutes with 12 repetitions.
* ``bias``: scores of ``thresholded`` metrics, beside scores of the same classifiers with their
  thresholds on withheld rows. About 3 minutes with 30 repetitions.
* ``seconds``: the time of everything that needs no further fit of a fold, at 20,000 rows.
* ``kept``: studies with and without outputs that no score needs, interleaved; CPU seconds.
* ``coverage``: the coverage and the width of CV+ at level 0.9 on withheld rows, for the best of
  several settings. About 20 minutes with 50 repetitions.
* ``mapie``: the width of CV+ divided by that of MAPIE on the same folds and settings.
* ``jackknife``: jackknife+ of ridge on all rows of nycflights13, and of averaged SGD on those of
  Covertype, beside leave-one-out and beside MAPIE with a few rows.
* ``folds``: the average of the fold models, beside the model that is fitted on all rows.

Files are read from $OPTUNA_TREECV_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import sys
from time import perf_counter
from time import process_time
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import train_test_split
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import thresholded
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

N_TRAINED = 5_000
GRID = {"logisticregression__C": [0.01, 0.1, 1.0]}


def searched(estimator: Any, X: Any, y: Any, grid: Any, **options: Any) -> tuple[Any, Any]:
    """Return an objective, and a study of all points of its grid."""
    objective = treecv_objective(estimator, X, y, param_grid=grid, **options)
    study = optuna.create_study(
        sampler=objective.grid_sampler(seed=0), directions=objective.directions
    )
    study.optimize(objective)
    return objective, study


def seconds_of(call: Callable[..., object], *args: Any, **options: Any) -> float:
    began = perf_counter()
    call(*args, **options)
    return perf_counter() - began


def binary() -> dict[str, tuple[Any, np.ndarray]]:
    """Return the rows and labels of binary problems; of a9a, a tenth of the rare class."""
    found = {}
    for X, y, name in (datasets.magic(), datasets.elec2()):
        found[name] = X, (y > 0).astype(int)
    with np.load(datasets.file_of("weather_noaa.npz")) as file:
        found["weather"] = file["X"].astype(float), (file["y"] == 1).astype(int)
    X, y, name = datasets.a9a()
    is_kept = (y <= 0) | (np.arange(len(y)) % 10 == 0)
    X = X[is_kept]
    found[f"{name}, rare class"] = getattr(X, "toarray", lambda: X)(), (y[is_kept] > 0).astype(int)
    return found


def thresholds(n_repetitions: int) -> None:
    print("| data | metric | ours - theirs | its SE | ours, ms | theirs, ms |")
    print("|---|---|---|---|---|---|")
    for name, (X, y) in binary().items():
        for metric in ("f1", "balanced_accuracy"):
            differences, ours, theirs = [], [], []
            for seed in range(n_repetitions):
                A, B, a, b = train_test_split(
                    X, y, train_size=N_TRAINED, stratify=y, random_state=seed
                )
                model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
                cv = StratifiedKFold(10, shuffle=True, random_state=seed)
                objective, study = searched(model, A, a, GRID, scoring="log_loss", cv=cv)
                began = perf_counter()
                threshold = objective.threshold(study, metric)
                ours.append(perf_counter() - began)
                chosen = objective.best_estimator(study, threshold=threshold)
                model.set_params(**objective.values_of(study.best_params))
                tuned = TunedThresholdClassifierCV(model, scoring=metric, cv=cv)
                theirs.append(seconds_of(tuned.fit, A, a))
                scorer = get_scorer(metric)
                differences.append(scorer(chosen, B, b) - scorer(tuned, B, b))
            error = np.std(differences, ddof=1) / np.sqrt(len(differences))
            print(
                f"| {name} | {metric} | {np.mean(differences):+.4f} | {error:.4f} "
                f"| {1e3 * np.median(ours):.0f} | {1e3 * np.median(theirs):.0f} |",
                flush=True,
            )


def bias(n_repetitions: int) -> None:
    print("| data | metric | rows | bias of all trials | its SE | bias of the best | its SE |")
    print("|---|---|---|---|---|---|---|")
    for name, (X, y) in binary().items():
        for metric in ("f1", "balanced_accuracy"):
            for n_rows in (200, 500, 2_000):
                of_all, of_best = [], []
                for seed in range(n_repetitions):
                    A, B, a, b = train_test_split(
                        X, y, train_size=n_rows, stratify=y, random_state=seed
                    )
                    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
                    cv = StratifiedKFold(10, shuffle=True, random_state=seed)
                    scoring = thresholded(metric)
                    objective, study = searched(model, A, a, GRID, scoring=scoring, cv=cv)
                    errors = {}
                    for trial in study.trials:
                        chosen = objective.threshold(trial, metric)
                        fitted = objective.best_estimator(trial, threshold=chosen)
                        errors[trial.number] = trial.value - get_scorer(metric)(fitted, B, b)
                    of_all.append(np.mean(list(errors.values())))
                    of_best.append(errors[study.best_trial.number])
                shown = [
                    f"{np.mean(x):+.4f} | {np.std(x, ddof=1) / np.sqrt(len(x)):.4f}"
                    for x in (of_all, of_best)
                ]
                print(f"| {name} | {metric} | {n_rows} | {' | '.join(shown)} |", flush=True)


def seconds(n_repetitions: int) -> None:
    X, y, _ = datasets.elec2()
    X, y = X[:20_000], (y[:20_000] > 0).astype(int)
    models = [
        (HistGradientBoostingClassifier(max_iter=30), {"learning_rate": [0.05, 0.1, 0.2]}),
        (LogisticRegression(), {"C": [0.01, 0.1, 1.0]}),
        (KNeighborsClassifier(), {"n_neighbors": [5, 15, 45]}),
    ]
    print(
        "| model | study, s | fit, s | predict_oof, threshold, calibrate, stack: s beyond fits |"
    )
    print("|---|---|---|---|")
    for model, grid in models:
        began = perf_counter()
        objective, study = searched(model, X, y, grid, scoring="accuracy")
        of_study, times = perf_counter() - began, []
        for _ in range(n_repetitions):
            best, stack = objective.best_estimator, LogisticRegression()
            fit = seconds_of(best, study)
            took = [
                seconds_of(objective.predict_oof, study, "predict_proba"),
                seconds_of(objective.threshold, study),
                seconds_of(best, study, calibrate="isotonic") - fit,
                seconds_of(objective.ensemble, study, stack=stack) - len(study.trials) * fit,
            ]
            times.append([fit, *took])
        fit, *beyond = np.median(times, axis=0)
        shown = ", ".join(f"{value:.3f}" for value in beyond)
        print(f"| {type(model).__name__} | {of_study:.2f} | {fit:.3f} | {shown} |", flush=True)


def kept(n_repetitions: int) -> None:
    X, y, _ = datasets.elec2()
    X, y = X[:3_000], (y[:3_000] > 0).astype(int)
    forest, by_fits = RandomForestClassifier(50, random_state=0), {"method": "fit"}
    models = [
        (forest, {"max_depth": [5, 10, 15]}, {}),
        (forest, {"max_depth": [5, 10, 15]}, by_fits),
        (HistGradientBoostingClassifier(max_iter=30), {"learning_rate": [0.05, 0.1, 0.2]}, {}),
        (SVC(), {"C": [0.1, 1.0, 10.0]}, {}),
        (LogisticRegression(), {"C": [0.01, 0.1, 1.0]}, {}),
        (LogisticRegression(), {"C": [0.01, 0.1, 1.0]}, by_fits),
        (KNeighborsClassifier(), {"n_neighbors": [5, 15, 45]}, {}),
        (PegasosClassifier(), {"alpha": [1e-4, 1e-3, 1e-2]}, {"cv": 10}),
        (PegasosClassifier(), {"alpha": [1e-4, 1e-3, 1e-2]}, {"cv": "loo"}),
    ]
    print("| model | method | without, s | with, s | ratio |\n|---|---|---|---|---|")
    for model, grid, options in models:
        times: dict[Any, list[float]] = {False: [], "auto": []}
        for repetition in range(n_repetitions):
            for keep_outputs in [*times][:: 1 if repetition % 2 else -1]:
                began = process_time()
                objective, study = searched(
                    model, X, y, grid, scoring="accuracy", keep_outputs=keep_outputs, **options
                )
                times[keep_outputs].append(process_time() - began)
        method = objective.evaluator.run_of(study.best_trial).method_name
        without, with_outputs = (float(np.median(of_kind)) for of_kind in times.values())
        ratio = np.median(np.divide(times["auto"], times[False]))
        print(
            f"| {type(model).__name__} | {method} | {without:.3f} | {with_outputs:.3f} "
            f"| {ratio:.3f} |",
            flush=True,
        )


def regressions() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the rows and targets of the data sets of the coverage tables."""
    found = {}
    for name in ("abalone", "kin8nm", "pol", "elevators", "bike_sharing_hour"):
        with np.load(datasets.file_of(f"{name}.npz")) as file:
            found[name] = file["X"].astype(float), file["y"].astype(float)
    return found


REGRESSORS = {
    "ridge": (Ridge(), {"alpha": np.logspace(-3, 4, 30).tolist()}),
    "neighbours": (KNeighborsRegressor(), {"n_neighbors": list(range(1, 41, 2))}),
}


def samples(n: int, n_repetitions: int) -> Iterator[tuple[str, int, list[np.ndarray]]]:
    """Yield the name, the seed, and n rows to train on and up to 2,000 rows to predict."""
    for name, (X, y) in regressions().items():
        for seed in range(n_repetitions):
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = order[:n], order[n : n + 2_000]
            scaler = StandardScaler().fit(X[train])
            yield name, seed, [*map(scaler.transform, (X[train], X[test])), y[train], y[test]]


def coverage(n_repetitions: int) -> None:
    print("| model | n | data | CV+ (width in deviations of y) | quantile |")
    print("|---|---|---|---|---|")
    for label, (model, grid) in REGRESSORS.items():
        for n in (200, 500, 2_000):
            of_data: dict[str, list[list[float]]] = {}
            for name, _, (A, B, a, b) in samples(n, n_repetitions):
                objective, study = searched(model, A, a, grid)
                row = []
                for method in ("cv+", "quantile"):
                    low, high = objective.conformal(study, method).predict_interval(B).T
                    width = float((high - low).mean() / a.std())
                    row += [float(((low <= b) & (b <= high)).mean()), width]
                of_data.setdefault(name, []).append(row)
            for name, rows in of_data.items():
                c, w, q, v = np.mean(rows, axis=0)
                shown = f"{c:.3f} ({w:.2f}) | {q:.3f} ({v:.2f})"
                print(f"| {label} | {n} | {name} | {shown} |", flush=True)


def mapie(n_repetitions: int) -> None:
    from mapie.regression import CrossConformalRegressor

    print("| model | data | width / MAPIE's | largest difference of ends |\n|---|---|---|---|")
    for label, (model, grid) in REGRESSORS.items():
        found: dict[str, list[list[float]]] = {}
        for name, seed, (A, B, a, _) in samples(500, n_repetitions):
            cv = KFold(10, shuffle=True, random_state=seed)
            objective, study = searched(model, A, a, grid, cv=cv)
            ours = objective.conformal(study).predict_interval(B)
            best = type(model)(**study.best_params)
            other = CrossConformalRegressor(best, confidence_level=0.9, method="plus", cv=cv)
            theirs = other.fit_conformalize(A, a).predict_interval(B)[1][:, :, 0]
            ratio = np.diff(ours).mean() / np.diff(theirs).mean()
            found.setdefault(name, []).append([ratio, np.abs(ours - theirs).max() / a.std()])
        for name, rows in found.items():
            ratio, difference = np.mean(rows, axis=0)
            print(f"| {label} | {name} | {ratio:.5f} | {difference:.1e} sd |", flush=True)


def elevation() -> tuple[np.ndarray, np.ndarray]:
    """Return Covertype's rows as a regression of the elevation on the other 53 columns."""
    X, _, _ = datasets.covertype()
    return np.ascontiguousarray(np.delete(X, 0, axis=1)), np.asarray(X[:, 0], dtype=float)


def jackknife(n_repetitions: int) -> None:
    from mapie.regression import CrossConformalRegressor

    flights, delays, _ = datasets.nycflights13()
    others, heights = elevation()
    cases = [
        ("ridge, nycflights13", Ridge(), {"alpha": [1.0]}, flights, delays),
        ("SGD, Covertype", AveragedSGDRegressor(), {"alpha": [1e-4]}, others, heights),
    ]
    print(
        "| case | rows | leave-one-out, s | jackknife+, s | ratio | coverage | MAPIE, s a fit "
        "(rows) | its fits |\n|---|---|---|---|---|---|---|---|"
    )
    for name, model, grid, X, y in cases:
        model.set_params(**{key: values[0] for key, values in grid.items()})
        rows, targets, new, new_y = X[:-4000], y[:-4000], X[-4000:], y[-4000:]
        objective, study = searched(model, rows, targets, grid)
        alone, ours, loo = [], [], {"cv": "loo", "scoring": "squared_error"}
        for _ in range(n_repetitions):
            alone.append(seconds_of(tree_cross_validate, model, rows, targets, **loo))
            began = perf_counter()
            conformal = objective.conformal(study, "jackknife+")
            ours.append(perf_counter() - began)
        low, high = conformal.predict_interval(new).T
        covered = np.mean((low <= new_y) & (new_y <= high))
        few = CrossConformalRegressor(model, confidence_level=0.9, method="plus", cv=LeaveOneOut())
        n_few = 300
        per_fit = seconds_of(few.fit_conformalize, rows[:n_few], targets[:n_few]) / n_few
        fit = seconds_of(model.fit, rows, targets)
        print(
            f"| {name} | {len(rows):,} | {np.median(alone):.2f} | {np.median(ours):.2f} "
            f"| {np.median(np.divide(ours, alone)):.2f} | {covered:.3f} "
            f"| {per_fit:.4f} ({n_few}) | {len(rows):,} of {fit:.2f} s |",
            flush=True,
        )


def folds(n_repetitions: int) -> None:
    from lightgbm import LGBMRegressor

    models = {
        "LightGBM": (LGBMRegressor(n_estimators=100, verbose=-1), {"num_leaves": [7, 15, 31]}),
        "neighbours": REGRESSORS["neighbours"],
    }
    problems = regressions()
    X, y, name = datasets.kin40k()
    problems[name] = X, y
    print("| model | data | RMSE, fold average | RMSE, refit | ratio | its SE |")
    print("|---|---|---|---|---|---|")
    for label, (model, grid) in models.items():
        for name, (X, y) in problems.items():
            errors = []
            for seed in range(n_repetitions):
                order = np.random.default_rng(seed).permutation(len(y))
                train, test = order[:1_000], order[1_000:4_000]
                scaler = StandardScaler().fit(X[train])
                A, B = scaler.transform(X[train]), scaler.transform(X[test])
                objective, study = searched(model, A, y[train], grid)
                predicted = [
                    objective.best_estimator(study, kind=kind).predict(B)
                    for kind in ("folds", "refit")
                ]
                errors.append([np.sqrt(np.mean((p - y[test]) ** 2)) for p in predicted])
            average, refit = np.mean(errors, axis=0)
            ratios = np.array(errors)[:, 0] / np.array(errors)[:, 1]
            se = ratios.std(ddof=1) / np.sqrt(len(ratios))
            shown = f"{average:.4g} | {refit:.4g} | {ratios.mean():.4f} | {se:.4f}"
            print(f"| {label} | {name} | {shown} |", flush=True)


TABLES = {
    function.__name__: (function, n_repetitions)
    for function, n_repetitions in (
        (thresholds, 12),
        (bias, 30),
        (seconds, 3),
        (kept, 5),
        (coverage, 50),
        (mapie, 5),
        (jackknife, 3),
        (folds, 10),
    )
}


def main(table: str, n_repetitions: str = "") -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", "trial .* at the .* end of its range")
    function, usual = TABLES[table]
    function(int(n_repetitions or usual))


if __name__ == "__main__":
    main(*sys.argv[1:3])
