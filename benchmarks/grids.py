"""Measure grids, threads and numbers of folds, in comparison with scikit-learn and OptunaSearchCV.

    OMP_NUM_THREADS=1 python benchmarks/grids.py [RUNS [RESULTS.json]]

The data are the full Covertype (581,012 x 54) and 20 newsgroups. All methods run in the same
process. The output is a Markdown table of medians, and JSON if a file is named.

scikit-learn downloads the data or finds them in $SCIKIT_LEARN_DATA. OptunaSearchCV needs
optuna-integration; without it, its row is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
import json
from pathlib import Path
from statistics import median
import sys
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter
from typing import Any
import warnings

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from peak import peak_bytes
from sklearn.datasets import fetch_20newsgroups_vectorized
from sklearn.datasets import fetch_covtype
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.rows.data import Data

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SGD = SGDClassifier(max_iter=1, tol=None)
RESULTS: list[dict[str, Any]] = []
WALKS: dict[Any, list[float]] = defaultdict(list)  # seconds of studies' walks and scores


def timed(function: Callable[[], Any]) -> float:
    begin = perf_counter()
    function()
    return perf_counter() - begin


def row(what: str, must: str, aim: str, measured: str, **numbers: float) -> None:
    print(f"| {what} | {must} | {aim} | {measured} |", flush=True)
    RESULTS.append({"what": what, "must": must, "aim": aim, "measured": measured, **numbers})


def turns(*functions: Callable[[], float]) -> list[float]:
    """Return medians of seconds, measured in turns, so that a slow moment affects all."""
    times = [[function() for function in functions] for _ in range(RUNS)]
    return [median(column) for column in zip(*times, strict=True)]


def grid_of(X: Any, y: Any, n: int, batch_size: int, cv: Any) -> Callable[[], float]:
    """Return the seconds of a study over n lambdas, in memory, with prepared rows."""
    objective = treecv_objective(
        PegasosClassifier(),
        *(X, y),
        param_grid={"alpha": np.geomspace(1e-8, 1e2, n)},
        batch_size=batch_size,
        cv=cv,
        cache=None,
    )

    def run() -> float:
        study = optuna.create_study(sampler=objective.grid_sampler())
        seconds = timed(lambda: study.optimize(objective))
        WALKS[n, batch_size, X.dtype].append(
            sum(one.user_attrs["treecv"]["seconds"] for one in study.trials)
        )
        return seconds

    return run


def evaluation_of(X: Any, y: Any, **options: Any) -> Callable[[], float]:
    """Return the seconds for one lambda, from prepared rows to scores."""
    objective = treecv_objective(
        PegasosClassifier(),
        *(X, y),
        param_distributions={"alpha": FloatDistribution(1e-9, 1e3)},
        cache=None,
        **options,
    )
    return lambda: objective.evaluate({"alpha": 1e-6}).seconds


def grids(X: np.ndarray, y: np.ndarray) -> None:
    for dtype, must, aim in ((np.float32, "1.5", "0.8"), (np.float64, "2.5", "1.5")):
        rows = X.astype(dtype)
        ours, theirs = turns(
            grid_of(rows, y, 32, 32, "loo"),
            lambda: timed(lambda: cross_val_score(SGD, X, y, cv=10)),
        )
        row(
            f"leave-one-out of 32 lambdas, {dtype.__name__}, against scikit-learn's 10 folds of 1",
            f"at most {must}",
            aim,
            f"{ours / theirs:.2f} ({ours:.2f} s, {theirs:.2f} s)",
            ours=ours,
            theirs=theirs,
        )
    for dtype, must, aim, most in ((np.float64, "1.4", "2", 10), (np.float32, "1.8", "3", 6)):
        rows = X.astype(dtype)
        together, alone = turns(grid_of(rows, y, 64, 64, 100), grid_of(rows, y, 64, 1, 100))
        n_updates = 64 * tree_cross_validate(PegasosClassifier(), rows, y, cv=100).n_updates
        a_lane = 1e9 * median(WALKS[64, 64, rows.dtype]) / n_updates
        row(
            f"64 lambdas, k=100, {dtype.__name__}: side by side against one by one",
            f"{must} times faster, {most} ns a row and lane",
            aim,
            f"{alone / together:.1f} times ({together:.2f} s, {alone:.2f} s), {a_lane:.1f} ns",
            together=together,
            alone=alone,
            a_lane=a_lane,
        )


def sparse_grid() -> None:
    X, y = fetch_20newsgroups_vectorized(subset="all", return_X_y=True)
    y = (y < 10).astype(int)
    for dtype in (np.float64, np.float32):
        rows = X.astype(dtype)
        together, alone = turns(grid_of(rows, y, 64, 64, 100), grid_of(rows, y, 64, 1, 100))
        walked, walked_alone = (median(WALKS[64, size, rows.dtype][-RUNS:]) for size in (64, 1))
        row(
            f"64 lambdas, k=100, 20 newsgroups (sparse), {dtype.__name__}: side by side against "
            "one by one",
            "3 times faster",
            "6",
            f"{alone / together:.1f} times ({together:.2f} s, {alone:.2f} s); without Optuna's "
            f"part {walked_alone / walked:.1f} times ({walked:.2f} s, {walked_alone:.2f} s)",
            together=together,
            alone=alone,
            walked=walked,
            walked_alone=walked_alone,
        )


def single(X: np.ndarray, y: np.ndarray) -> None:
    fit, loo, random = turns(
        lambda: timed(lambda: SGD.fit(X, y)),
        evaluation_of(X, y, cv="loo"),
        evaluation_of(X, y, cv=100, order="random"),
    )
    for what, ours, must, aim in (
        ("leave-one-out of one lambda", loo, "1.2", "0.7"),
        ("random order, k=100,", random, "1.0", "0.7"),
    ):
        row(
            f"{what} against one `SGDClassifier(max_iter=1, tol=None).fit`",
            f"at most {must}",
            aim,
            f"{ours / fit:.2f} ({ours:.3f} s, {fit:.3f} s)",
            ours=ours,
            theirs=fit,
        )
    for cv in ("loo", 100):
        run, other = evaluation_of(X, y, cv=cv), evaluation_of(X, y, cv=cv)

        def both(run: Any = run, other: Any = other) -> float:
            thread = Thread(target=other)
            begin = perf_counter()
            thread.start()
            run()
            thread.join()
            return perf_counter() - begin

        one, two, pair = turns(run, evaluation_of(X, y, cv=cv, n_jobs=2), both)
        row(
            f"2 threads against 1, {cv if cv == 'loo' else f'k={cv}'}",
            "at least 1.7",
            "1.9",
            f"{one / two:.2f} ({one:.3f} s, {two:.3f} s); two evaluations at once: "
            f"{2 * one / pair:.2f}",
            one=one,
            two=two,
            pair=pair,
        )


def against_k(X: np.ndarray, y: np.ndarray) -> None:
    # Shuffled, as in the tree: with labels in file order, the CPU would predict many branches.
    order = np.random.default_rng(0).permutation(len(y)).astype(np.uint32)
    rows = Data(X, y).prepare(layout_for(PegasosClassifier()), order)
    learner = make_learner(PegasosClassifier(1e-6), rows, "predict", 0)

    def one_pass() -> float:
        state = learner.start()
        return timed(lambda: learner.update(state, slice(0, len(y))))

    ks = [2, 3, 5, 10, 30, 100, 1000, 10_000, 100_000, len(y)]
    seconds = turns(one_pass, *(evaluation_of(X, y, cv=k) for k in ks))
    an_update = seconds[0] / len(y)
    ratios = {
        k: own / (tree_cross_validate(PegasosClassifier(), X, y, cv=k).n_updates * an_update)
        for k, own in zip(ks, seconds[1:], strict=True)
    }
    worst = max(ratios, key=ratios.__getitem__)
    row(
        "k from 2 to n: time against updates x time of an update in a single pass",
        "at most 1.15",
        "1.05",
        f"{ratios[worst]:.2f} at k={worst} ({', '.join(f'{r:.2f}' for r in ratios.values())})",
        **{f"k={k}": ratio for k, ratio in ratios.items()},
    )


def against_search(X: np.ndarray, y: np.ndarray) -> None:
    try:
        from optuna_integration import OptunaSearchCV
    except ImportError:
        return
    alphas = FloatDistribution(1e-8, 1e2, log=True)

    def theirs() -> float:
        search = OptunaSearchCV(SGD, {"alpha": alphas}, cv=10, n_trials=32, refit=False)
        return timed(lambda: search.fit(X, y))

    ours = median(grid_of(X, y, 32, 32, 10)() for _ in range(RUNS))
    other = theirs()
    row(
        "`study.optimize`, 32 lambdas, k=10, against OptunaSearchCV over SGDClassifier (one run)",
        "25 times faster",
        "60",
        f"{other / ours:.0f} times ({ours:.2f} s, {other:.1f} s)",
        ours=ours,
        theirs=other,
    )


class Clock:
    """A storage that counts the seconds spent in its calls."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def timed_method(*args: Any, **options: Any) -> Any:
            begin = perf_counter()
            try:
                return method(*args, **options)
            finally:
                self.seconds += perf_counter() - begin

        return timed_method


def our_share(X: np.ndarray, y: np.ndarray, is_stored: bool) -> None:
    """Return our share of the time inside the objective.

    This excludes the evaluation, the storage, and the time that Optuna needs for a trial with the
    same suggestions and attributes.
    """
    objective = treecv_objective(
        PegasosClassifier(), *(X, y), param_grid={"alpha": np.geomspace(1e-8, 1e2, 32)}, cache=None
    )

    def run(of: Callable[[Any], float]) -> tuple[float, float]:
        with TemporaryDirectory() as folder:
            storage = f"sqlite:///{folder}/study.db" if is_stored else None
            study = optuna.create_study(storage=storage, sampler=objective.grid_sampler())
            study._storage = clock = Clock(study._storage)
            inside = 0.0

            def timed_objective(trial: optuna.Trial) -> float:
                nonlocal inside
                before, begin = clock.seconds, perf_counter()
                value = of(trial)
                inside += perf_counter() - begin - (clock.seconds - before)
                return value

            whole = timed(lambda: study.optimize(timed_objective))
            inside -= sum(trial.user_attrs["treecv"].get("seconds", 0) for trial in study.trials)
        return inside / 32, whole / 32

    runs = [(run(write_attributes)[0], *run(objective)) for _ in range(RUNS)]
    plain, ours, whole = np.median(runs, axis=0)
    row(
        f"{'SQLite' if is_stored else 'in memory'}: our share of a trial of a grid of 32, beside "
        "the evaluation, the storage and Optuna",
        "under 1 ms",
        "",
        f"{1e3 * (ours - plain):.2f} ms of {1e3 * whole:.1f}",
        ours=ours - plain,
        optunas=plain,
        whole=whole,
    )


def write_attributes(trial: optuna.Trial) -> float:
    """Write an attribute, as our objective does."""
    value = trial.suggest_float("alpha", 1e-8, 1e2, log=True)
    trial.set_user_attr("treecv", {f"value_{i}": 0.123456 for i in range(6)})
    return value


def memory(X: np.ndarray, y: np.ndarray) -> None:
    """Return the largest memory allocated in addition to the prepared rows."""
    run = grid_of(X, y, 32, 32, "loo")
    grown = peak_bytes(run)
    row(
        "memory of 32 lanes of leave-one-out beside the prepared rows, bytes a row and lane",
        "at most 12",
        "",
        f"{grown / len(y) / 32:.1f}",
        grown=grown,
    )


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for category in (optuna.exceptions.ExperimentalWarning, FutureWarning):  # OptunaSearchCV's
        warnings.filterwarnings("ignore", category=category)
    print("| what | must | aim | measured |\n|---|---|---|---|")
    X, y = fetch_covtype(return_X_y=True)
    X, y = scale(X), (y == 2).astype(int)
    memory(X.astype(np.float32), y)
    grids(X, y)
    single(X, y)
    against_k(X, y)
    sparse_grid()
    our_share(X, y, is_stored=False)
    our_share(X, y, is_stored=True)
    against_search(X, y)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(RESULTS, indent=1))


if __name__ == "__main__":
    main()
