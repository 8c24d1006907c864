"""The way of a trial: what it calls before the first row, and our share of its time.

Run ``python benchmarks/way.py``. It prints a Markdown table: the files and functions of this
package that are called from the beginning of ``study.optimize`` for one further trial until rows
are trained on or models are solved, and the milliseconds per trial that are neither Optuna's nor
the evaluation's. Comprehensions and lambdas, which Python 3.11 calls too, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import sys
from time import perf_counter
from typing import Any
import warnings

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import optuna_treecv
from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

# Where the first row is read: a walk, a solution of sums, a fit.
FIRST = ("walk_subtree", "update_both", "squares", "_fit")
ALPHA = FloatDistribution(1e-4, 1.0, log=True)

PACKAGE = str(Path(optuna_treecv.__file__).parent)


class _Reached(BaseException):
    """Ends the trial where the first row is read."""


def way(objective: Any) -> tuple[int, int]:
    """Return the files and functions that a second trial calls before the first row."""
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=1)
    called: set[tuple[str, str]] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name in FIRST:
            raise _Reached
        if not code.co_name.startswith("<"):
            called.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        study.optimize(objective, n_trials=1)
    except _Reached:
        pass
    finally:
        sys.setprofile(None)
    return len({file for file, _ in called}), len(called)


def seconds_per_trial(run: Callable[[int], float], n_trials: int = 300) -> float:
    """Return the seconds of a trial, the median of five runs."""
    return float(np.median([run(n_trials) / n_trials for _ in range(5)]))


def share(make: Callable[[], Any], name: str) -> float:
    """Return the milliseconds of a trial that are neither Optuna's nor the evaluation's."""

    def ours(n_trials: int) -> float:
        objective = make()
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        began = perf_counter()
        study.optimize(objective, n_trials=n_trials)
        spent = perf_counter() - began
        return spent - sum(trial.user_attrs["treecv"]["seconds"] for trial in study.trials)

    def optunas(n_trials: int) -> float:
        def objective(trial: optuna.Trial) -> float:
            value = trial.suggest_float(name, 1e-4, 1.0, log=True)
            trial.set_user_attr("treecv", {"mean_test_score": value})
            return value

        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        began = perf_counter()
        study.optimize(objective, n_trials=n_trials)
        return perf_counter() - began

    return 1e3 * (seconds_per_trial(ours) - seconds_per_trial(optunas))


def main() -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = (X[:, 0] > 0).astype(int)
    pipeline = make_pipeline(StandardScaler(), PegasosClassifier())
    cases: dict[str, tuple[Any, str]] = {
        "PEGASOS": (PegasosClassifier(), "alpha"),
        "Ridge": (Ridge(), "alpha"),
        "Pipeline(scaler, PEGASOS)": (pipeline, "pegasosclassifier__alpha"),
    }
    try:
        from lightgbm import LGBMClassifier

        cases["LightGBM"] = LGBMClassifier(n_estimators=2, verbose=-1), "reg_lambda"
    except ImportError:
        pass
    print("| estimator | files | functions | our share, ms |")
    print("|---|---|---|---|")
    for label, (estimator, name) in cases.items():

        def make(estimator: Any = estimator, name: str = name) -> Any:
            return treecv_objective(estimator, X, y, param_distributions={name: ALPHA}, cv=5)

        n_files, n_functions = way(make())
        ms = f"{share(make, name):.2f}" if label != "LightGBM" else "-"
        print(f"| {label} | {n_files} | {n_functions} | {ms} |")


if __name__ == "__main__":
    main()
