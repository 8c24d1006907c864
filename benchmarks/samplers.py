"""Measure samplers by the truth of their choices, after equally many fits of folds.

    OMP_NUM_THREADS=1 python benchmarks/samplers.py RESULTS [REPETITIONS [METHOD ...]]

RESULTS is a file of comma-separated values with one line per search. Searches that it has are not
run again, so the program can be stopped and continued. The table is of the repetitions that all
methods of the file have on all data sets. "random", "futility" and "one noise" must be among them.

A search has five folds of 400 rows, drawn at random, and may fit 200 fold models. It searches six
parameters of boosted trees for the log loss (magic, a9a) or the squared error (bike), or four of a
support vector regression (elevators, pol, kin40k). The truth of a configuration is the mean loss
of its fold models on 5,000 withheld rows. Regret is how much more that is than the least of the
methods, as a share of what it is for random search on the same data, as a mean.

* "random", "tpe" and "gp" are samplers of Optuna, which get the mean of all folds. "gp" needs
  PyTorch.
* "futility" is TPE with a ``RacingPruner``. Its last trial may fit a few folds more.
* "one noise" and "fold noise" are Gaussian processes of the logarithm of the mean. The second one
  is told the variance of each mean, from the paired differences to the best one's folds.
* "folds" is a hierarchical process of the losses of folds, y_j(x) = f(x) + d_j(x) + b_j + e. It
  fits one fold at a time: where the expected improvement of the mean over all folds is largest,
  the fold that says most of this mean.

The three processes begin with ten points of a Latin hypercube, all folds of them or two of each.
They choose the configuration with the least posterior mean among those that they have fitted. Own
seconds are of the processor, per five fits, without the fits and the pruner.
"""

from __future__ import annotations

from collections.abc import Callable
import csv
from functools import cache
from itertools import product
from pathlib import Path
import sys
from time import process_time
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from scipy.linalg import cho_solve
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.stats import norm
from scipy.stats import qmc
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_selection import f_regression
from sklearn.feature_selection import SelectPercentile
from sklearn.metrics import log_loss
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import scale
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from optuna_treecv import RacingPruner
from optuna_treecv import treecv_objective

N_ROWS, N_WITHHELD, N_FOLDS, N_FITS, N_FIRST = 400, 5000, 5, 200, 10
DATA = ("magic", "a9a", "bike", "elevators", "pol", "kin40k")
CLASSES = ("magic", "a9a")
BESIDE = ("futility", "one noise")  # what methods are compared with
BOOSTING = {
    "learning_rate": FloatDistribution(0.03, 1, log=True),
    "max_leaf_nodes": IntDistribution(2, 32, log=True),
    "min_samples_leaf": IntDistribution(2, 80, log=True),
    "l2_regularization": FloatDistribution(1e-3, 100, log=True),
    "max_features": FloatDistribution(0.1, 1),
    "max_iter": IntDistribution(5, 30, log=True),
}
SVM = {
    "columns__percentile": IntDistribution(10, 100),
    "svr__C": FloatDistribution(1e-2, 100, log=True),
    "svr__gamma": FloatDistribution(1e-4, 1, log=True),
    "svr__epsilon": FloatDistribution(1e-3, 1, log=True),
}
STEPS = [("scaler", StandardScaler()), ("columns", SelectPercentile(f_regression)), ("svr", SVR())]


@cache
def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows; of a9a only the 30 columns that vary most, so that fits take 20 ms."""
    X, y, _ = vars(datasets)[name]()
    if name == "a9a":
        X = X.toarray()
        X = X[:, np.argsort(X.var(axis=0))[-30:]]
    return X, y if name in CLASSES else scale(y)


class Problem:
    """What is searched: an estimator, its space, rows and folds. Counts the time of fits."""

    def __init__(self, name: str, seed: int) -> None:
        is_class = name in CLASSES
        X, y = rows_of(name)
        sizes = {"train_size": N_ROWS, "test_size": N_WITHHELD}
        self.X, self.X_withheld, self.y, self.y_withheld = train_test_split(
            *(X, y), **sizes, stratify=y if is_class else None, random_state=seed
        )
        of_kind = StratifiedKFold if is_class else KFold
        self.splitter = of_kind(N_FOLDS, shuffle=True, random_state=seed)
        self.folds = list(self.splitter.split(self.X, self.y))
        self.is_class, self.seconds = is_class, 0.0
        self.estimator: Any = Pipeline(STEPS)
        self.space: dict[str, Any] = SVM
        if name in (*CLASSES, "bike"):
            classifier, regressor = HistGradientBoostingClassifier, HistGradientBoostingRegressor
            boosting = classifier if is_class else regressor
            self.estimator = boosting(early_stopping=False, random_state=0)
            self.space = BOOSTING

    def loss(self, params: dict[str, Any], fold: int, is_withheld: bool = False) -> float:
        """Return the loss of a fold model on the fold's rows or on the withheld ones."""
        began = process_time()
        train, test = self.folds[fold]
        model = clone(self.estimator).set_params(**params).fit(self.X[train], self.y[train])
        X, y = self.X[test], self.y[test]
        if is_withheld:
            X, y = self.X_withheld, self.y_withheld
        loss = log_loss if self.is_class else mean_squared_error
        found = float(loss(y, model.predict_proba(X) if self.is_class else model.predict(X)))
        self.seconds += process_time() - began
        return found

    def losses(self, params: dict[str, Any], is_withheld: bool = False) -> list[float]:
        return [self.loss(params, fold, is_withheld) for fold in range(N_FOLDS)]

    def params(self, point: np.ndarray) -> dict[str, Any]:
        """Return the parameters at a point of the unit cube."""
        params = {}
        for part, (name, axis) in zip(point, self.space.items(), strict=True):
            ends = np.array([axis.low, axis.high])
            low, high = np.log(ends) if axis.log else ends
            value = low + part * (high - low)
            value = np.clip(np.exp(value) if axis.log else value, *ends)
            params[name] = round(value) if isinstance(axis, IntDistribution) else float(value)
        return params


def by_optuna(problem: Problem, sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
    study = optuna.create_study(sampler=sampler)
    for _ in range(N_FITS // N_FOLDS):
        trial = study.ask(problem.space)
        study.tell(trial, np.mean(problem.losses(trial.params)))
    return study.best_params


def by_race(problem: Problem, seed: int) -> dict[str, Any]:
    objective = treecv_objective(
        *(problem.estimator, problem.X, problem.y),
        param_distributions=problem.space,
        cv=problem.splitter,
        scoring="log_loss" if problem.is_class else "squared_error",
        method="fit",
        report="mean",
        keep_outputs=False,
        random_state=seed,
    )
    sampler, pruner = optuna.samplers.TPESampler(seed=seed), RacingPruner(seed=seed)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    n_fits = 0
    while n_fits < N_FITS:
        trial = study.ask()
        began = process_time()
        try:
            value, state = objective(trial), None
        except optuna.TrialPruned:
            value, state = None, optuna.trial.TrialState.PRUNED
        problem.seconds += process_time() - began
        study.tell(trial, value, state)
        n_fits += len(study.trials[-1].intermediate_values)
    return study.best_params


class Process:
    """A Gaussian process of y = f(x) + d_j(x) + b_j + e, as likely as can be.

    f and d_j have Matern kernels (5/2) with the same length for each parameter. ``folds`` are the
    numbers j, or None: then there is no d and no b. ``noise`` are the variances of e, or None:
    then they are one more parameter. The variances have priors, and so have the lengths.
    """

    def __init__(
        self, x: np.ndarray, y: np.ndarray, folds: np.ndarray | None, noise: np.ndarray | None
    ) -> None:
        self.x, self.y, self.folds = x, (y - y.mean()) / y.std(), folds
        self.noise = np.full(len(y), 1e-6) if noise is None else noise / y.var() + 1e-6
        self.same = 0.0 if folds is None else (folds[:, None] == folds).astype(float)
        # Of f, e, d and b.
        means, has = [0.0, -4.0, -4.0, -2.0], folds is not None
        self.is_free = np.array([True, noise is None, has, has])
        self.prior = np.concatenate([np.full(x.shape[1], np.log(0.5)), means])
        self.sd = np.concatenate([np.ones(x.shape[1] + 1), np.full(3, 2.0)])

    def fit(self, start: np.ndarray | None) -> Process:
        start = self.prior if start is None else start
        bounds = np.array([self.prior - 3 * self.sd, self.prior + 3 * self.sd]).T
        options = {"maxiter": 30}
        found = minimize(self._density, start, jac=True, bounds=bounds, options=options)
        return self.at(found.x)

    def at(self, parameters: np.ndarray) -> Process:
        """Take these parameters."""
        self.parameters = parameters
        self._density(parameters)
        return self

    def _density(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        n_lengths = self.x.shape[1]
        self.lengths = np.exp(parameters[:n_lengths])
        self.variances = np.exp(parameters[n_lengths:]) * self.is_free
        f, e, d, b = self.variances
        scaled = self.x / self.lengths
        s = np.sqrt(5) * cdist(scaled, scaled)
        matern, eye = (1 + s + s**2 / 3) * np.exp(-s), np.eye(len(s))
        parts = [f * matern, e * eye, d * matern * self.same, b * self.same * np.ones_like(s)]
        self.root = np.linalg.cholesky(sum(parts) + np.diag(self.noise))
        inverse = cho_solve((self.root, True), eye)
        self.weights = inverse @ self.y
        away = (parameters - self.prior) / self.sd
        value = self.y @ self.weights / 2 + np.log(np.diag(self.root)).sum() + away @ away / 2
        slope = (inverse - np.outer(self.weights, self.weights)) / 2
        by_length = slope * (f + d * self.same) * (1 + s) * np.exp(-s) * 5 / 3
        squares = (scaled**2 * by_length.sum(axis=1)[:, None]).sum(axis=0)
        of_lengths = 2 * (squares - (scaled * (by_length @ scaled)).sum(axis=0))
        of_variances = [(slope * part).sum() for part in parts]
        return value, np.concatenate([of_lengths, of_variances]) + away / self.sd

    def _shared(self, x: np.ndarray) -> np.ndarray:
        s = np.sqrt(5) * cdist(x / self.lengths, self.x / self.lengths)
        return (1 + s + s**2 / 3) * np.exp(-s)

    def _of_mean(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the covariances of the mean over all folds at x with y, and its variance."""
        f, _, d, b = self.variances
        d, b = d / N_FOLDS, b / N_FOLDS
        return (f + d) * self._shared(x) + b, f + d + b

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of the mean over all folds, without e."""
        shared, variance = self._of_mean(x)
        known = (solve_triangular(self.root, shared.T, lower=True) ** 2).sum(axis=0)
        return shared @ self.weights, np.sqrt(np.maximum(variance - known, 1e-12))

    def best_fold(self, x: np.ndarray, open_folds: list[int]) -> int:
        """Return the fold whose loss at x reduces the variance of the mean there most."""
        f, e, d, b = self.variances
        shared = self._shared(x[None])[0]
        of_mean, variance = self._of_mean(x[None])
        of_mean = solve_triangular(self.root, of_mean[0], lower=True)
        gains = []
        for fold in open_folds:
            of_y = f * shared + (d * shared + b) * (self.folds == fold)
            of_y = solve_triangular(self.root, of_y, lower=True)
            gains.append((variance - of_mean @ of_y) ** 2 / (f + d + b + e - of_y @ of_y))
        return open_folds[int(np.argmax(gains))]


def improving(process: Process, seen: np.ndarray, more: np.ndarray, rng: Any) -> np.ndarray:
    """Return the point, a new one or one of ``more``, of the largest expected improvement."""
    means, _ = process.predict(seen)
    best = seen[np.argsort(means)[:5]]
    steps = rng.normal(size=(100, *best.shape)) * rng.choice([0.02, 0.1, 0.3], (100, 1, 1))
    near = np.clip(best + steps, 0, 1).reshape(-1, seen.shape[1])
    points = np.concatenate([more, near, rng.random((1000, seen.shape[1]))])
    mean, sd = process.predict(points)
    z = (means.min() - mean) / sd
    return points[np.argmax(sd * (z * norm.cdf(z) + norm.pdf(z)))]


def noise_of(losses: np.ndarray) -> np.ndarray:
    """Return the variance of each configuration's mean, of its differences to the best one's."""
    differences = losses - losses[losses.mean(axis=1).argmin()]
    return differences.var(axis=1, ddof=1) / losses.shape[1]


def by_process(problem: Problem, seed: int, has_noise: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    points = qmc.LatinHypercube(len(problem.space), rng=rng).random(N_FIRST)
    losses = np.array([problem.losses(problem.params(point)) for point in points])
    parameters = None
    while True:
        noise = noise_of(np.log(losses)) if has_noise else None
        process = Process(points, np.log(losses.mean(axis=1)), None, noise).fit(parameters)
        if losses.size + N_FOLDS > N_FITS:
            best = points[process.predict(points)[0].argmin()]
            return problem.params(best)
        parameters = process.parameters
        point = improving(process, points, points[:0], rng)
        points = np.vstack([points, point])
        losses = np.vstack([losses, problem.losses(problem.params(point))])


def by_folds(problem: Problem, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    points = qmc.LatinHypercube(len(problem.space), rng=rng).random(N_FIRST)
    # The pairs (number of a point, fold) that are fitted, and their losses.
    pairs = [(i, (2 * i + j) % N_FOLDS) for i in range(N_FIRST) for j in range(2)]
    losses = [problem.loss(problem.params(points[i]), fold) for i, fold in pairs]
    parameters = None
    while True:
        at, folds = np.array(pairs).T
        process = Process(points[at], np.log(losses), folds, None)
        is_late = parameters is not None and len(pairs) % N_FOLDS
        process = process.at(parameters) if is_late else process.fit(parameters)
        if len(pairs) == N_FITS:
            best = points[process.predict(points)[0].argmin()]
            return problem.params(best)
        parameters = process.parameters
        is_open = np.bincount(at) < N_FOLDS
        point = improving(process, points, points[is_open], rng)
        number = np.flatnonzero((points == point).all(axis=1) & is_open)
        if not len(number):
            number, points = [len(points)], np.vstack([points, point])
        left = sorted(set(range(N_FOLDS)) - {fold for i, fold in pairs if i == number[0]})
        fold = process.best_fold(point, left)
        pairs.append((int(number[0]), fold))
        losses.append(problem.loss(problem.params(point), fold))


METHODS: dict[str, Callable[[Problem, int], dict[str, Any]]] = {
    "random": lambda one, seed: by_optuna(one, optuna.samplers.RandomSampler(seed=seed)),
    "tpe": lambda one, seed: by_optuna(one, optuna.samplers.TPESampler(seed=seed)),
    "futility": by_race,
    "gp": lambda one, seed: by_optuna(one, optuna.samplers.GPSampler(seed=seed)),
    "one noise": lambda one, seed: by_process(one, seed, False),
    "fold noise": lambda one, seed: by_process(one, seed, True),
    "folds": by_folds,
}


Key = tuple[str, int, str]


def measure(data: str, seed: int, method: str) -> tuple[float, float]:
    """Return the truth of what a method chooses, and its own seconds."""
    problem = Problem(data, seed)
    began = process_time()
    params = METHODS[method](problem, seed)
    own = process_time() - began - problem.seconds
    return float(np.mean(problem.losses(params, is_withheld=True))), own * N_FOLDS / N_FITS


def read(results: Path) -> dict[Key, tuple[float, float]]:
    if not results.exists():
        return {}
    with results.open(newline="") as file:
        lines = list(csv.reader(file))
    return {(line[0], int(line[1]), line[2]): (float(line[3]), float(line[4])) for line in lines}


def report(found: dict[Key, tuple[float, float]]) -> None:
    """Print a line for each method, of the repetitions that are complete."""
    methods = [name for name in METHODS if name in {key[2] for key in found}]
    seeds = [
        seed
        for seed in sorted({key[1] for key in found})
        if all((name, seed, method) in found for name, method in product(DATA, methods))
    ]
    # (data sets, repetitions, methods)
    each = np.array([[[found[d, s, m] for m in methods] for s in seeds] for d in DATA])
    truths, own = each[..., 0], each[..., 1].mean(axis=(0, 1))
    regrets = truths - truths.min(axis=2, keepdims=True)
    regrets /= regrets[..., [methods.index("random")]].mean(axis=1, keepdims=True)
    ranks = rankdata(truths, axis=2).mean(axis=(0, 1))
    print(f"{len(seeds)} repetitions\n\n| method | regret | rank | own, s ", end="")
    print("".join(f"| less than {other}, SE: wins, losses " for other in BESIDE), "|")
    print("|---" * (4 + len(BESIDE)) + "|")
    for i, method in enumerate(methods):
        line = f"| {method} | {regrets[..., i].mean():.2f} | {ranks[i]:.1f} | {own[i]:.3f}"
        for other in BESIDE:
            less = regrets[..., methods.index(other)] - regrets[..., i]
            error = np.sqrt((less.var(axis=1, ddof=1) / len(seeds)).sum()) / len(DATA)
            line += f" | {less.mean():+.2f}, {error:.2f}: {np.sum(less > 0)}, {np.sum(less < 0)}"
        print(line, "|")


def main(results: Path, n_repetitions: int = 10, *methods: str) -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    done = read(results)
    with results.open("a", newline="") as file:
        for seed, data, method in product(range(n_repetitions), DATA, methods or METHODS):
            if (data, seed, method) not in done:
                csv.writer(file).writerow([data, seed, method, *measure(data, seed, method)])
                file.flush()
    report(read(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:])
