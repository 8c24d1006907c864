"""Whether ``honest`` is right where rows depend on each other, by studies whose truth is known.

Rows are a stationary process in the order of time, or have effects of their groups. The trials of
a study are sources that predict the target without training, or ridge regressions, whose expected
squared errors follow from their coefficients. "regimes" are sources of other quality in each
period that is tested. For each kind of splits the script prints

* the share of studies that ``honest`` does not refuse, and for those
* the bias of ``study.best_value`` and of the honest mean, in standard deviations of the error of
  ``study.best_value``, with the standard error of the latter;
* the coverage of the interval at 95 %;
* the share of honest means that are worse than every trial.

``python benchmarks/dependent_rows.py --studies 60`` takes about half an hour.
"""

import argparse
from typing import Any
import warnings

import numpy as np
import optuna
from scipy.signal import lfilter
from sklearn.base import BaseEstimator
from sklearn.base import RegressorMixin
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.model_selection import TimeSeriesSplit

from optuna_treecv import treecv_objective

N_SOURCES, N_COLUMNS = 15, 20


class Source(RegressorMixin, BaseEstimator):
    """Predict the numbers of a column as they are."""

    def __init__(self, column: int = 0) -> None:
        self.column = column

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Source":
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X[:, self.column]


def autoregressive(rng: np.random.Generator, n_series: int, n_rows: int, phi: float) -> Any:
    """Return series with variance 1 and the autocorrelation phi, (n_series, n_rows)."""
    start = 1000
    noise = rng.normal(size=(n_series, start + n_rows)) * np.sqrt(1 - phi**2)
    return lfilter([1], [1, -phi], noise, axis=1)[:, start:]


def purged(n_rows: int, gap: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return five folds of consecutive rows, trained without the rows beside them."""
    splits = []
    for _, test in KFold(5).split(np.zeros(n_rows)):
        beside = np.arange(max(0, test[0] - gap), min(n_rows, test[-1] + 1 + gap))
        splits.append((np.setdiff1d(np.arange(n_rows), beside), test))
    return splits


def splits_of(name: str, n_rows: int) -> dict[str, Any]:
    """Return the arguments that name the splits; groups lie behind each other."""
    gap = n_rows // 50
    if name.startswith("groups"):
        n_groups = int(name.split()[-1])
        cv = LeaveOneGroupOut() if "leave one" in name else GroupKFold(5)
        return {"cv": cv, "groups": np.arange(n_rows) * n_groups // n_rows}
    return {
        "forward": {"cv": TimeSeriesSplit(5)},
        "forward, 20": {"cv": TimeSeriesSplit(20)},
        "forward, gap": {"cv": TimeSeriesSplit(5, gap=gap)},
        "purged": {"cv": purged(n_rows, gap)},
        "independent": {"cv": 5},
    }[name]


def measure(
    kind: str, splits: str, n_rows: int, phi: float, seed: int
) -> tuple[float, float, float, float, bool]:
    """Run a study; return the errors of its value and honest mean, both ends' and a flag.

    They are ``best_value``, the honest mean and both ends of its interval less the truth, all NaN
    but the first where ``honest`` refuses, and whether the mean is worse than every trial.
    """
    rng = np.random.default_rng(seed)
    options = splits_of(splits, n_rows)
    n_columns = N_COLUMNS if kind == "ridge" else N_SOURCES
    X, noise = (
        autoregressive(rng, n_columns, n_rows, phi).T,
        autoregressive(rng, 1, n_rows, phi)[0],
    )
    groups, variance = options.get("groups"), 1.0
    if groups is not None:  # rows of a group have the same effect, in the target and the columns
        X += rng.normal(size=(groups[-1] + 1, n_columns))[groups]
        noise += rng.normal(size=groups[-1] + 1)[groups]
        variance = 2.0
    # Most coefficients are about as large as their standard errors, so trials differ by noise.
    spread = np.sqrt((1 + phi**2) / (1 - phi**2) / n_rows) if groups is None else 0.1
    spread *= {"sources": 1, "regimes": 5, "ridge": 3}[kind]
    periods = np.zeros(n_rows, int)
    if kind == "regimes":  # those of TimeSeriesSplit(5)
        periods = np.maximum(0, 5 - np.arange(n_rows)[::-1] // (n_rows // 6))
    beta = rng.normal(size=(periods[-1] + 1, n_columns)) * spread
    y = np.sum(X * beta[periods], axis=1) + noise
    if kind != "ridge":
        estimator, grid = Source(), {"column": list(range(N_SOURCES))}
    else:
        estimator = Ridge(fit_intercept=False)
        grid = {"alpha": np.geomspace(1, 1e4, 15).tolist()}
    objective = treecv_objective(
        estimator, X, y, param_grid=grid, scoring="squared_error", row_losses=True, **options
    )
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    study.optimize(objective)
    model = estimator.set_params(**study.best_params)
    errors = []
    for train, test in pairs_of(objective):
        if kind == "ridge":
            coefficients = model.fit(X[train], y[train]).coef_
        else:
            coefficients = np.eye(n_columns)[model.column]
        errors.append(np.square(coefficients - beta[periods[test[0]]]).sum())
    truth = float(variance * (1 + np.mean(errors)))
    value = study.best_value - truth
    try:
        honest = objective.honest(study)
    except ValueError:
        return value, np.nan, np.nan, np.nan, False
    worst = max(trial.value for trial in study.trials)
    interval = honest.interval
    return (
        value,
        honest.mean - truth,
        interval.low - truth,
        interval.high - truth,
        honest.mean > worst * (1 + 1e-9),
    )


def pairs_of(objective: Any) -> Any:
    """Yield the training and test rows of an objective's folds."""
    cut = objective.evaluator.cross_validation.repeats[0].cut
    for chunk in range(cut.n_folds):
        split = cut.split(chunk)
        yield split.train_rows(), split.test


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first study")
    parser.add_argument("--only", default="", help="only splits whose name begins so")
    parser.add_argument("--kinds", nargs="+", default=["sources", "regimes", "ridge"])
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    of_series = ((500, 0.5), (500, 0.8), (2000, 0.8), (2000, 0.95))
    cells = [("forward", *one) for one in (*of_series, (500, 0.9))]
    for splits in ("forward, gap", "purged", "forward, 20"):
        cells += [(splits, *one) for one in of_series[::2]]
    cells += [("independent", 500, 0.0)]
    cells += [(f"groups {n}", 500, 0.0) for n in (10, 50, 100)]
    cells += [(f"groups, leave one out, {n}", 500, 0.0) for n in (10, 50)]
    print(
        "| splits, rows, phi, trials | given | best_value | honest | its SE | covered | outside |"
    )
    print("|---|---|---|---|---|---|---|")
    for splits, n_rows, phi in cells:
        if not splits.startswith(given.only):
            continue
        for kind in given.kinds:
            if kind == "regimes" and splits != "forward":
                continue
            seeds = range(given.first, given.first + given.studies)
            found = np.array([measure(kind, splits, n_rows, phi, seed) for seed in seeds])
            unit = found[:, 0].std()
            given_ones = found[~np.isnan(found[:, 1])]
            line = f"| {splits}, {n_rows}, {phi:g}, {kind} | {len(given_ones) / len(found):.0%} "
            if len(given_ones):
                value, mean, low, high, is_worst = given_ones.T
                error = mean.std() / np.sqrt(len(mean)) / unit
                line += (
                    f"| {value.mean() / unit:.2f} | {mean.mean() / unit:.2f} | {error:.2f} "
                    f"| {np.mean((low <= 0) & (high >= 0)):.0%} | {is_worst.mean():.0%} "
                )
            print(f"{line}|", flush=True)


if __name__ == "__main__":
    main()
