"""What calls and studies take now, against a build of a fixed commit.

    OMP_NUM_THREADS=1 python benchmarks/drift.py PYTHON [WORD ...]

PYTHON belongs to an environment with a build of the commit; notes compare with 912d2d8:

    git worktree add ../before 912d2d8
    python -m venv ../before/env && ../before/env/bin/pip install ../before pandas

Three processes take turns: two of this version, whose difference is noise, and one of that build.
The table has the medians of seven rounds, and their ratios. With words, only work whose name has
one of them is done. It takes about six minutes and 1.5 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from statistics import median
import subprocess
import sys
from time import process_time
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective

N_ROUNDS = 7
ALPHAS = [float(alpha) for alpha in np.logspace(-6, 0, 32)]


def call(estimator: Any, rows: Any, **options: Any) -> float:
    """Return the CPU seconds of a call for one model."""
    began = process_time()
    tree_cross_validate(estimator, *rows, **options)
    return process_time() - began


def lanes(make: Any, rows: Any) -> float:
    """Return the CPU seconds of a call for 32 models in one batch."""
    began = process_time()
    tree_cross_validate_many([make(alpha) for alpha in ALPHAS], *rows, cv=10)
    return process_time() - began


def study(rows: Any, n_values: int = 32) -> float:
    """Return the CPU seconds of a study over a grid."""
    grid = {"alpha": ALPHAS[:n_values]}
    objective = treecv_objective(PegasosClassifier(), *rows, param_grid=grid, cv=10)
    trials = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=0))
    began = process_time()
    trials.optimize(objective, n_trials=n_values)
    return process_time() - began


def values_of(estimator: Any, rows: Any, name: str, values: Iterable[Any]) -> float:
    """Return the CPU seconds of a study over all values of a parameter."""
    grid = {name: list(values)}
    objective = treecv_objective(estimator, *rows, param_grid=grid, cv=10)
    trials = optuna.create_study(direction=objective.direction)
    for value in grid[name]:
        trials.enqueue_trial({name: value})
    began = process_time()
    trials.optimize(objective, n_trials=len(grid[name]))
    return process_time() - began


def engines() -> dict[str, Callable[[], float]]:
    """Return a study for each engine but that of walks, by its name."""
    pol, magic, letter = (load()[:2] for load in (datasets.pol, datasets.magic, datasets.letter))
    some, letters = ((rows[0][::8], rows[1][::8]) for rows in (magic, letter))
    scaled = make_pipeline(StandardScaler(), Ridge())
    boosting = GradientBoostingClassifier(subsample=0.5, random_state=0)
    forest = RandomForestClassifier(max_depth=8, random_state=0)
    return {
        f"engine: {name}": partial(values_of, *study)
        for name, study in {
            "sums, ridge": (Ridge(), pol, "alpha", ALPHAS),
            "sums, scaled": (scaled, pol, "ridge__alpha", ALPHAS),
            "sums, lasso": (Lasso(tol=1e-6), pol, "alpha", (0.01, 0.03, 0.1, 0.3, 1.0)),
            "newton": (LogisticRegression(max_iter=1000), magic, "C", ALPHAS[12::4]),
            "neighbors": (KNeighborsClassifier(), letters, "n_neighbors", range(1, 31)),
            "forest": (HistTreeClassifier(), magic, "max_depth", range(3, 9)),
            "boosting": (boosting, some, "n_estimators", (5, 10, 20)),
            "bagging": (forest, some, "n_estimators", (5, 10, 20)),
            "fit": (GaussianNB(), magic, "var_smoothing", ALPHAS[:10]),
        }.items()
    }


def work() -> dict[str, Callable[[], float]]:
    """Return what is timed, by its name."""
    large, small = datasets.covertype()[:2], datasets.magic()[:2]
    found: dict[str, Callable[[], float]] = {}
    for name, make in {
        "PEGASOS": PegasosClassifier,
        # Defaults have changed since.
        "averaged SGD": partial(AveragedSGDClassifier, average=True, step_size=0.01),
        "SVRG": partial(StreamingSVRGClassifier, inner_steps=1000, step_size=0.01),
    }.items():
        for dtype in ("float64", "float32"):
            rows = np.ascontiguousarray(large[0], dtype), large[1]
            for k in (10, 100):
                found[f"{name}, {dtype}, k = {k}"] = partial(call, make(), rows, cv=k)
        found[f"{name}, leave-one-out"] = partial(call, make(), small, cv=len(small[1]))
    found["PEGASOS, leave-one-out of Covertype"] = partial(
        call, PegasosClassifier(), large, cv=len(large[1])
    )
    for order in ("fixed", "random"):
        some = large[0][:200_000], large[1][:200_000]
        found[f"PEGASOS, {order} order, k = 100 of 200,000 rows"] = partial(
            call, PegasosClassifier(), some, cv=100, order=order
        )
    found["32 lanes of PEGASOS"] = partial(lanes, partial(_with_alpha, PegasosClassifier), large)
    found["study of 32 values"] = partial(study, large)
    return found | engines()


def _with_alpha(make: Any, alpha: float) -> Any:
    return make(alpha=alpha)


def answer(known: dict[str, Callable[[], float]]) -> None:
    """Do the work whose names come in, and print its seconds."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    print(*known, sep="\t", flush=True)
    for line in sys.stdin:
        print(known[line.strip()](), flush=True)


def in_turns(
    script: str,
    pythons: list[str],
    n_rounds: int = N_ROUNDS,
    words: tuple[str, ...] = (),
    answered: str = "--answer",
) -> Iterator[tuple[str, list[float]]]:
    """Yield the work of a script by its name, and its median for each of some interpreters."""

    def ask(worker: Any, name: str) -> float:
        worker.stdin.write(name + "\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([one, script, answered], **pipes) for one in pythons]
    names = [worker.stdout.readline().strip().split("\t") for worker in workers][0]
    for name in names:
        if words and not any(word in name for word in words):
            continue
        rounds = [[ask(worker, name) for worker in workers] for _ in range(n_rounds + 1)][1:]
        yield name, [median(each) for each in zip(*rounds, strict=True)]
    for worker in workers:
        worker.stdin.close()
        worker.wait()


def main(python: str, *words: str) -> None:
    """Print the medians of both builds, and their ratios."""
    print("| | now, s | before, s | now / before | now / now |\n|---|---|---|---|---|")
    pythons = [sys.executable, sys.executable, python]
    for name, (now, again, before) in in_turns(__file__, pythons, words=words):
        print(f"| {name} | {now:.4f} | {before:.4f} | {now / before:.2f} | {again / now:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer(work())
    else:
        main(*sys.argv[1:])
