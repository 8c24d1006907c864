"""Measure what a race saves by foretelling final scores, and what it costs.

    OMP_NUM_THREADS=1 python benchmarks/futility.py [SEEDS [NAME]]

Studies of 40 trials run whole, by a random search and by TPE, with 10 folds, on four data sets of
two classes and two regressions: SGD over its step size, penalty and averaging, and with odd seeds
PEGASOS, or a regression with two losses. Each sequence of trials is then replayed with
``RacingPruner``, with and without ``futility``. A pruned trial is charged up to its last report.
Regret is how much worse the best completed trial is than the best of all 40, in standard errors of
the latter's score.

With a NAME, only this data set is measured. The output is a Markdown table. A seed takes about
half a minute for all data sets.
"""

from __future__ import annotations

from collections.abc import Iterator
import sys
from typing import Any
import warnings

from datasets import file_of
import numpy as np
import optuna
import pruning
from sklearn.datasets import fetch_covtype
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import RacingPruner
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.study.race import RaceLosses

SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
NAME = sys.argv[2] if len(sys.argv) > 2 else ""
N_TRIALS = 40
REGRESSIONS = ("elevators", "pol")


def data_sets() -> Iterator[tuple[str, Any, np.ndarray]]:
    """Yield (name, X, y)."""
    for name in ("magic", *REGRESSIONS):
        with np.load(file_of(f"{name}.npz")) as file:
            X, y = scale(file["X"].astype(np.float64)), file["y"]
        yield name, X, y.astype(float) if name in REGRESSIONS else (y > 0).astype(int)
    for name, width in (("a9a", 123), ("w8a", 300)):
        X, y = load_svmlight_file(str(file_of(f"{name}.svm.bz2")), n_features=width)
        yield name, X, (y > 0).astype(int)
    X, y = fetch_covtype(return_X_y=True, download_if_missing=False)
    some = np.random.default_rng(0).permutation(len(y))[:100_000]
    yield "Covertype", scale(X[some]), (y[some] == 2).astype(int)


def estimator_of(trial: optuna.Trial, is_regression: bool, is_odd: bool) -> Any:
    """Return what a trial suggests."""
    average = trial.suggest_categorical("average", [True, False])
    if is_odd and not is_regression:
        return PegasosClassifier(trial.suggest_float("alpha", 1e-7, 10, log=True), average=average)
    options: dict[str, Any] = {"average": average, "learning_rate": "invscaling"}
    if is_regression and is_odd:
        options["loss"] = trial.suggest_categorical("loss", ["squared_error", "huber"])
        options["epsilon"] = trial.suggest_float("epsilon", 1e-3, 10, log=True)
        del options["learning_rate"]
    least, most = (1e-3, 1e3) if not is_regression else (1e-5, 1) if is_odd else (1e-4, 10)
    options["step_size"] = trial.suggest_float("step_size", least, most, log=True)
    options["alpha"] = trial.suggest_float("alpha", 1e-8, 1e-1, log=True)
    if is_regression:
        return AveragedSGDRegressor(**options)
    return AveragedSGDClassifier("log_loss", **options)


def cross_validation_of(X: Any, y: np.ndarray, scoring: str, seed: int) -> CrossValidation:
    """Return a cross-validation with reports in the first pass."""
    settings = Settings(
        stratify=scoring == "error",
        method="treecv",
        scoring=scoring,
        random_state=seed,
        report="progressive",
        row_losses=True,
    )
    return CrossValidation.of(X, y, settings)


def sequence(
    cross_validation: CrossValidation,
    sampler: optuna.samplers.BaseSampler,
    is_regression: bool,
    is_odd: bool,
) -> tuple[list[pruning.Trial], float]:
    """Return the trials of a study that runs whole, and the standard error of its best score."""
    trials, errors = [], []

    def objective(trial: optuna.Trial) -> float:
        run = run_for(cross_validation, estimator_of(trial, is_regression, is_odd))
        *_, last = [event for event in run.events(Watch()) if isinstance(event, RowProgress)]
        result = run.result()
        losses = result.row_losses.astype(float)
        passes = result.n_updates / cross_validation.data.n_rows
        ends = spine_steps(cross_validation.repeats[0].plan)
        trials.append(pruning.Trial(result.mean, last.scores, None, ends, passes))
        errors.append(float(losses.std() / np.sqrt(losses.size)))
        return result.mean

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=N_TRIALS)
    return trials, errors[study.best_trial.number]


def main() -> None:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| data, sampler | saved with futility (without) | regret, mean | above 0.5 SE |")
    print("|---|---|---|---|")
    saved: dict[str, list[float]] = {"classes": [], "regressions": []}
    regrets = []
    for name, X, y in data_sets():
        if NAME not in name:
            continue
        is_regression = name in REGRESSIONS
        scoring = "squared_error" if is_regression else "error"
        pruning.LOSSES = RaceLosses(make_scoring(scoring).first, None, needs_bounds=False)
        for sampler in (optuna.samplers.RandomSampler, optuna.samplers.TPESampler):
            found = []
            for seed in range(SEEDS):
                cross_validation = cross_validation_of(X, y, scoring, seed)
                trials, error = sequence(
                    cross_validation, sampler(seed=seed), is_regression, seed % 2
                )
                full = sum(trial.passes for trial in trials)
                best = min(trial.score for trial in trials)
                one = []
                for futility in (0.05, None):
                    pruner = RacingPruner(futility=futility, seed=seed)
                    order = np.arange(N_TRIALS)
                    work, score = pruning.simulated(trials, order, "progressive", pruner, False)
                    one += [1 - work / full, (score - best) / error]
                found.append(one)
            each = np.array(found)
            median = np.median(each, axis=0)
            print(
                f"| {name}, {sampler.__name__} | {median[0]:.2f} ({median[2]:.2f}) | "
                f"{each[:, 1].mean():.3f} | {np.mean(each[:, 1] > 0.5):.2f} |",
                flush=True,
            )
            saved["regressions" if is_regression else "classes"] += each[:, 0].tolist()
            regrets += each[:, 1].tolist()
    for kind, shares in saved.items():
        if shares:
            print(f"\n{kind}: median saved {np.median(shares):.3f} of {len(shares)} studies")
    above = np.mean(np.array(regrets) > 0.5)
    print(f"\nregret: mean {np.mean(regrets):.3f}, above 0.5 SE in {above:.3f} of the studies")


if __name__ == "__main__":
    main()
