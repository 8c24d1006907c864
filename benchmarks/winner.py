"""Measure what is said of a study's winner beside the truth, and the ensemble beside the best one.

    OMP_NUM_THREADS=1 python benchmarks/winner.py RESULTS [--repetitions 30]
        [--data magic ...] [--rows 150 ...] [--part random ...] [--processes 2] [--report]
    OMP_NUM_THREADS=1 python benchmarks/winner.py --cost

RESULTS is a file of comma-separated values with one line per study. Studies that it has are not
run again, so that the program can be stopped and continued; --report only prints the tables.

A cell is a data set and a number of rows, which are drawn at random, stratified by class. Up to
20,000 of the other rows tell the truth. A study has 60 trials of neighbours, trees and linear
models, by 10 folds. There are four parts:

* "random" and "tpe" are studies by these samplers for the error or the squared error. The truth is
  the mean risk of the winner's ten fold models. Before errors are squared they are divided by the
  standard error that a mean over the cell's rows would have, of losses as those of the withheld
  rows: the winner's own may be 0. The ratio is one of sums over cells. A cell has little bias if
  this is at most a third of that of ``best_value``, or two of its standard errors over
  repetitions. Beside the ratio is that of ``best_value`` less its true bias in each cell, which
  an estimate can hardly beat. What the truth, itself a mean over rows, adds is subtracted from
  squares and added to the lengths of intervals; it matters for digits, of which few rows are left.
* "pruned" is "random" with a ``MedianPruner`` that looks at the mean of three and more folds.
* "ensemble" is a study by random search for the log loss or the squared error. The losses of the
  ensemble and of the best estimator, both fitted on all rows, are compared on the withheld rows.
  The standard error of a cell is over its repetitions.

--cost compares studies that keep their outputs with studies that do not, on all rows of magic and
w8a. They have 30 trials of trees and linear models, whose trials are the fastest ones. The output
has the medians of interleaved runs, in seconds of the processor.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import csv
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from functools import cache
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from time import perf_counter
from time import process_time
from typing import Any
from typing import NamedTuple
import warnings

import datasets
import numpy as np
import optuna
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale
from sklearn.preprocessing import StandardScaler

from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import treecv_objective

N_TRIALS = 60
FAMILIES = ("neighbors", "tree", "linear")
MOST_WITHHELD = 20_000
LEVEL = 0.9
PARTS = ("random", "tpe", "pruned", "ensemble")
ROWS = (150, 300, 1000)
# The columns of these are 0 or 1.
BINARY = ("w8a", "a9a")
CLASSES = ("magic", "digits", *BINARY)
DATA = (*CLASSES, "elevators", "pol", "kin40k", "bike")


def digits() -> datasets.DataSet:
    """Five classes of two digits each."""
    X, y = load_digits(return_X_y=True)
    return X, y // 2, "digits"


@cache
def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows, dense, with columns of variance 1 unless they are binary."""
    X, y, _ = digits() if name == "digits" else vars(datasets)[name]()
    return (X.toarray() if name in BINARY else scale(X)), y


class Sample:
    """Some rows of a data set, and those withheld from it."""

    def __init__(
        self, name: str, n_rows: int, seed: int, families: tuple[str, ...] = FAMILIES
    ) -> None:
        X, y = rows_of(name)
        self.name = name
        self.families = families
        self.is_class = name in CLASSES
        n_withheld = min(MOST_WITHHELD, len(y) - n_rows)
        self.X, self.X_withheld, self.y, self.y_withheld = train_test_split(
            *(X, y),
            train_size=n_rows,
            test_size=n_withheld,
            stratify=y if self.is_class else None,
            random_state=seed,
        )
        of_kind = StratifiedKFold if self.is_class else KFold
        self.folds = of_kind(10, shuffle=True, random_state=seed)

    def estimator(self, trial: Any) -> Any:
        """Return the estimator that a trial suggests."""
        family = trial.suggest_categorical("family", self.families)
        if family == "neighbors":
            settings = {
                "n_neighbors": trial.suggest_int("n_neighbors", 1, 50),
                "weights": trial.suggest_categorical("weights", ["uniform", "distance"]),
            }
            if self.name not in BINARY:  # whose rows have the same neighbours by both
                settings["p"] = trial.suggest_int("p", 1, 2)
            return (KNeighborsClassifier if self.is_class else KNeighborsRegressor)(**settings)
        if family == "tree":
            settings = {
                "max_depth": trial.suggest_int("max_depth", 1, 20, log=True),
                "min_samples_leaf": trial.suggest_int("min_samples_leaf", 1, 50, log=True),
                "random_state": 0,
            }
            return (HistTreeClassifier if self.is_class else HistTreeRegressor)(**settings)
        if self.is_class:
            C = trial.suggest_float("C", 1e-4, 1e2, log=True)
            model: Any = LogisticRegression(C=C, max_iter=1000)
        else:
            model = Ridge(trial.suggest_float("alpha", 1e-3, 1e4, log=True))
        return model if self.name in BINARY else make_pipeline(StandardScaler(), model)

    def withheld_losses(self, model: Any, scoring: str) -> np.ndarray:
        """Return the loss of a fitted model at each withheld row."""
        if scoring == "log_loss":
            chances = model.predict_proba(self.X_withheld)
            codes = np.searchsorted(model.classes_, self.y_withheld)
            of_class = np.take_along_axis(chances, codes[:, None], axis=1)[:, 0]
            return -np.log(np.clip(of_class, np.finfo(of_class.dtype).eps, 1))
        found = model.predict(self.X_withheld)
        return found != self.y_withheld if self.is_class else (found - self.y_withheld) ** 2

    def fold_losses(self, estimator: Any, scoring: str) -> np.ndarray:
        """Return the losses of an estimator's fold models at the withheld rows, (10, n_rows)."""
        losses = []
        for train, _ in self.folds.split(self.X, self.y):
            model = clone(estimator).fit(self.X[train], self.y[train])
            losses.append(self.withheld_losses(model, scoring))
        return np.array(losses, float)


class Key(NamedTuple):
    """What names a study."""

    data: str
    rows: int
    repetition: int
    part: str


@dataclass
class Found:
    """A line of the results. What a part does not measure is NaN.

    Attributes
    ----------
    data, rows, repetition, part
        As in ``Key``.
    seconds : float
        The time of the study, without that of what is asked of it.
    best : float
        ``study.best_value``.
    estimate, low, high : float
        The honest estimate and the ends of its interval; of ensembles their own.
    truth : float
        What the estimate is to tell. Of an ensemble, its loss when it is fitted on all rows.
    unit : float
        What a mean over as many rows as were drawn has as standard error, by the withheld rows.
    truth_error : float
        The standard error of the truth.
    single : float
        In the part "ensemble", the loss of the best single estimator, fitted on all rows.
    """

    data: str
    rows: int
    repetition: int
    part: str
    seconds: float
    best: float
    estimate: float
    low: float
    high: float
    truth: float
    unit: float
    truth_error: float
    single: float = np.nan

    @property
    def key(self) -> Key:
        return Key(self.data, self.rows, self.repetition, self.part)

    def covers(self) -> bool:
        """Return whether the interval, widened by the noise of the truth, covers it."""
        end = self.low if self.truth < self.estimate else self.high
        noise = norm.ppf((1 + LEVEL) / 2) * self.truth_error
        return bool(abs(self.truth - self.estimate) <= np.hypot(end - self.estimate, noise))


def objective_and_study(sample: Sample, scoring: str, part: str, seed: int) -> tuple[Any, Any]:
    """Return an objective and an empty study with the sampler of a part."""
    options: Any = {"scoring": scoring, "random_state": seed}
    pruner: Any = optuna.pruners.NopPruner()
    if part == "pruned":
        options["report"], pruner = "mean", optuna.pruners.MedianPruner(n_warmup_steps=2)
    objective = treecv_objective(sample.estimator, sample.X, sample.y, cv=sample.folds, **options)
    tpe, random = optuna.samplers.TPESampler, optuna.samplers.RandomSampler
    sampler = tpe(seed=seed) if part == "tpe" else random(seed=seed)
    directions = objective.directions
    return objective, optuna.create_study(sampler=sampler, pruner=pruner, directions=directions)


def measure(key: Key) -> Found:
    """Run a study and return what it says beside the truth."""
    quiet()
    sample = Sample(*key[:3])
    is_ensemble = key.part == "ensemble"
    scoring = "squared_error"
    if sample.is_class:
        scoring = "log_loss" if is_ensemble else "error"
    objective, study = objective_and_study(sample, scoring, key.part, key.repetition)
    began = perf_counter()
    study.optimize(objective, N_TRIALS)
    seconds = perf_counter() - began
    single = np.nan
    if is_ensemble:
        ensemble = objective.ensemble(study, level=LEVEL)
        estimate, (low, high) = ensemble.honest_score_, ensemble.honest_interval_
        losses = sample.withheld_losses(ensemble, scoring)[None]
        single = float(sample.withheld_losses(objective.best_estimator(study), scoring).mean())
    else:
        honest = objective.honest(study, level=LEVEL)
        estimate, low, high = honest.mean, honest.interval.low, honest.interval.high
        losses = sample.fold_losses(sample.estimator(study.best_trial), scoring)
    return Found(
        *key,
        seconds=seconds,
        best=study.best_value,
        estimate=estimate,
        low=low,
        high=high,
        truth=float(losses.mean()),
        unit=float(losses.std() / np.sqrt(key.rows)),
        # Rows, and not losses, are drawn: fold models err at the same ones.
        truth_error=float(losses.mean(axis=0).std() / np.sqrt(losses.shape[1])),
        single=single,
    )


def quiet() -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def read(results: Path) -> list[Found]:
    if not results.exists():
        return []
    kinds = {"str": str, "int": int, "float": float}
    with results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    types = {field.name: kinds[str(field.type)] for field in fields(Found)}
    return [Found(**{name: types[name](line[name]) for name in types}) for line in lines]


def run(results: Path, keys: list[Key], n_processes: int) -> None:
    """Measure what the results lack, and add a line for each study."""
    found = {one.key for one in read(results)}
    is_new = not results.exists()
    with results.open("a", newline="") as file, Pool(n_processes) as pool:
        writer = csv.DictWriter(file, [field.name for field in fields(Found)])
        if is_new:
            writer.writeheader()
        for one in pool.imap_unordered(measure, [key for key in keys if key not in found]):
            writer.writerow(asdict(one))
            file.flush()


class Cell:
    """The studies of one part, data set and number of rows, in units of ``Found.unit``."""

    def __init__(self, found: list[Found]) -> None:
        self.found = found
        unit = np.mean([one.unit for one in found])
        self.claimed = np.array([one.best - one.truth for one in found]) / unit
        self.error = np.array([one.estimate - one.truth for one in found]) / unit
        self.gain = np.array([one.single - one.truth for one in found]) / unit
        self.noise = np.mean([one.truth_error**2 for one in found]) / unit**2
        self.covers = np.array([one.covers() for one in found])

    def square(self, errors: np.ndarray) -> float:
        """Return the mean square of errors, less what the noise of the truth adds to it."""
        return float(np.mean(errors**2) - self.noise)

    @property
    def is_unbiased(self) -> bool:
        most = max(abs(self.claimed.mean()) / 3, 2 * standard_error(self.error))
        return bool(abs(self.error.mean()) <= most)


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.inf


def cells_of(found: list[Found], part: str) -> dict[tuple[str, int], Cell]:
    cells = {}
    for data, rows in product(DATA, ROWS):
        mine = [one for one in found if (one.part, one.data, one.rows) == (part, data, rows)]
        if mine:
            cells[data, rows] = Cell(mine)
    return cells


def report(found: list[Found]) -> None:
    """Print what must be reached, and each cell."""
    for part in PARTS:
        cells = cells_of(found, part)
        if not cells:
            continue
        n_studies = sum(len(cell.found) for cell in cells.values())
        seconds = median(one.seconds for cell in cells.values() for one in cell.found)
        print(f"\n## {part}: {len(cells)} cells, {n_studies} studies, median {seconds:.2f} s\n")
        for line in ensemble_lines(cells) if part == "ensemble" else honest_lines(cells):
            print(line)


def honest_lines(cells: dict[tuple[str, int], Cell]) -> Iterator[str]:
    every = list(cells.values())
    claimed = sum(cell.square(cell.claimed) for cell in every)
    estimated = sum(cell.square(cell.error) for cell in every)
    known = sum(np.var(cell.claimed, ddof=1) - cell.noise for cell in every)
    covered = np.mean([cell.covers.mean() for cell in every])
    yield "| | found | must |"
    yield "|---|---|---|"
    yield f"| squared error, beside best_value's | {estimated / claimed:.2f} | 0.5 |"
    yield f"| the same of best_value without its bias in each cell | {known / claimed:.2f} | |"
    unbiased = sum(cell.is_unbiased for cell in every)
    yield f"| cells with little bias | {unbiased} of {len(every)} | 20 of 24 |"
    yield f"| coverage at {LEVEL:.0%} | {covered:.1%} | 85 to 97 % |"
    yield ""
    yield "| cell | bias of best_value | of the estimate | its SE | ratio of squares | covered |"
    yield "|---|---|---|---|---|---|"
    for (data, rows), cell in cells.items():
        ratio = cell.square(cell.error) / cell.square(cell.claimed)
        yield (
            f"| {data}, {rows} | {cell.claimed.mean():.2f} | {cell.error.mean():.2f} | "
            f"{standard_error(cell.error):.2f} | {ratio:.2f} | {cell.covers.mean():.0%} |"
        )


def ensemble_lines(cells: dict[tuple[str, int], Cell]) -> Iterator[str]:
    better = np.mean([cell.gain.mean() > 0 for cell in cells.values()])
    worse = [
        f"{data}, {rows}"
        for (data, rows), cell in cells.items()
        if cell.gain.mean() < -standard_error(cell.gain)
    ]
    yield "| | found | must |"
    yield "|---|---|---|"
    yield f"| cells in which the ensemble is better | {better:.0%} | 80 % |"
    yield f"| cells in which it is worse by more than 1 SE | {'; '.join(worse) or 'none'} | none |"
    yield ""
    yield "| cell | loss of the best one | of the ensemble | better by, SE | it says |"
    yield "|---|---|---|---|---|"
    for (data, rows), cell in cells.items():
        single, truth, said = (
            np.mean([getattr(one, name) for one in cell.found])
            for name in ("single", "truth", "estimate")
        )
        by = cell.gain.mean() / standard_error(cell.gain)
        yield f"| {data}, {rows} | {single:.4g} | {truth:.4g} | {by:.1f} | {said:.4g} |"


def cost(runs: int = 7, n_trials: int = 30) -> None:
    """Print the times of studies that keep outputs and of such that do not."""
    quiet()
    print("| data | without, s | with, s | more |\n|---|---|---|---|")
    for name in ("magic", "w8a"):
        X, y = rows_of(name)
        sample = Sample(name, len(y) // 2, 0, FAMILIES[1:])
        seconds: dict[Any, list[float]] = {False: [], "auto": []}
        for keep in list(seconds) * runs:
            objective = treecv_objective(
                *(sample.estimator, X, y),
                cv=sample.folds,
                scoring="error",
                random_state=0,
                keep_outputs=keep,
            )
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
            began = process_time()
            study.optimize(objective, n_trials)
            seconds[keep].append(process_time() - began)
        without, kept = (median(own) for own in seconds.values())
        print(f"| {name} | {without:.2f} | {kept:.2f} | {kept / without - 1:+.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the number of the first repetition")
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--rows", nargs="+", type=int, choices=ROWS, default=ROWS)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    if given.cost:
        cost()
        return
    if given.results is None:
        parser.error("RESULTS or --cost is needed.")
    if not given.report:
        seeds = range(given.first, given.first + given.repetitions)
        order = product(seeds, given.data, given.rows, given.part)
        keys = [Key(data, rows, seed, part) for seed, data, rows, part in order]
        run(given.results, keys, given.processes)
    report(read(given.results))


if __name__ == "__main__":
    main()
