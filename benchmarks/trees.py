"""Measure trees of all folds grown together beside others: tables in Markdown.

    OMP_NUM_THREADS=1 python benchmarks/trees.py [RUNS [GROUP ...]]

GROUP is "peers", "leaves", "alone", "folds", "trials", "path", "memory" or "edges" (default: all).
The programs take turns for RUNS runs (default 5), and the tables have medians; a program that has
taken 20 s in all is not run again. All use one thread and the same ten folds of rows in random
order. datasets.py describes the data.

* Ours is the whole call of ``tree_cross_validate``: bins, ten trees and the tree of all rows, and
  the scores.
* "peers" and "leaves" compare it with ``cross_val_score``, with one round of boosting on as many
  bins where the task has one tree per round, and "alone" with ``method="standard"``, in which the
  same code grows each tree by itself; there only the growth is timed.
* "trials" is a study of 100 settings of max_depth, min_samples_split, min_impurity_decrease and
  ccp_alpha, beside 100 calls of ``cross_val_score``, of which every tenth is made.
* "path" is the grid of 30 values of ccp_alpha, beside ``GridSearchCV`` with every tenth of them.
* "edges" is the loss with edges from all rows minus that with edges from the training rows of each
  fold, over five orders of the rows.
* "memory" is what growth holds at its peak beyond the rows in bins.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from statistics import median
import subprocess
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import lightgbm
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree import DecisionTreeRegressor
import xgboost

from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

ENOUGH = 20  # seconds
NAMES = ("magic", "letter", "elec2", "kin40k", "protein", "covertype")
GROUPS = ("peers", "leaves", "alone", "folds", "trials", "path", "memory", "edges")
FOLDS = KFold(10)


class Task:
    """A data set with its estimators."""

    def __init__(self, name: str) -> None:
        given = datasets.covertype(as_is=True) if name == "covertype" else vars(datasets)[name]()
        self.X, self.y, self.name = given
        self.X = self.X.astype(np.float32)  # scikit-learn's trees would copy float64
        if name == "covertype":
            order = np.random.default_rng(0).permutation(len(self.y))
            self.X, self.y = self.X[order], self.y[order]
        self.is_class = self.y.dtype.kind == "i"
        self.is_large = len(self.y) > 100_000
        self.has_one_tree = not self.is_class or len(np.unique(self.y)) == 2
        self.scoring = "accuracy" if self.is_class else "r2"

    def ours(self, **settings: Any) -> Any:
        kind = HistTreeClassifier if self.is_class else HistTreeRegressor
        return kind(random_state=0, **settings)

    def theirs(self, **settings: Any) -> Any:
        kind = DecisionTreeClassifier if self.is_class else DecisionTreeRegressor
        return kind(random_state=0, **settings)

    def grown(self, cv: Any = FOLDS, method: Any = "forest", **settings: Any) -> Any:
        tree = self.ours(**settings)
        options = {"cv": cv, "method": method, "scoring": self.scoring}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tree_cross_validate(tree, self.X, self.y, shuffle=False, **options)

    def scored(self, **settings: Any) -> float:
        tree = self.theirs(**settings)
        return float(cross_val_score(tree, self.X, self.y, cv=FOLDS, scoring=self.scoring).mean())

    def boosted(self, depth: int) -> None:
        kind = HistGradientBoostingClassifier if self.is_class else HistGradientBoostingRegressor
        model = kind(
            max_iter=1,
            max_depth=depth,
            max_leaf_nodes=None,
            min_samples_leaf=1,
            early_stopping=False,
        )
        cross_val_score(model, self.X, self.y, cv=FOLDS)

    def lightgbm_cv(self, depth: int) -> None:
        settings = {
            "objective": "binary" if self.is_class else "regression",
            "max_depth": depth,
            "num_leaves": 2**depth,
            "min_data_in_leaf": 1,
            "max_bin": 255,
            "num_threads": 1,
            "verbosity": -1,
        }
        data = lightgbm.Dataset(self.X, self.y)
        folds = FOLDS.split(self.X)
        lightgbm.cv(settings, data, 1, folds=folds, stratified=False)

    def xgboost_cv(self, depth: int) -> None:
        settings = {
            "objective": "binary:logistic" if self.is_class else "reg:squarederror",
            "max_depth": depth,
            "min_child_weight": 0,
            "max_bin": 255,
            "tree_method": "hist",
            "nthread": 1,
        }
        data = xgboost.DMatrix(self.X, self.y, nthread=1)
        xgboost.cv(settings, data, 1, folds=list(FOLDS.split(self.X)))


def in_turn(programs: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Return the median seconds of each program; one that returns a number is timed by that."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, run in programs.items():
            if sum(seconds[name]) > ENOUGH:
                continue
            began = perf_counter()
            said = run()
            took = perf_counter() - began
            seconds[name].append(said if isinstance(said, float) else took)
    return {name: median(found) for name, found in seconds.items()}


def show(title: str, rows: list[list[str]]) -> None:
    print(f"\n### {title}\n", flush=True)
    header, *body = rows
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in body:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def peers(tasks: list[Task], runs: int) -> None:
    rows = [["data", "depth", "ours, s", "score"]]
    rows[0] += [f"{one} / ours" for one in ("scikit-learn", "HGB", "LightGBM", "XGBoost")]
    rows[0] += ["their score"]
    for task in tasks:
        depth = 8 if task.is_large else 6
        scores: dict[str, float] = {}

        def ours(task: Task = task, depth: int = depth, scores: dict[str, float] = scores) -> None:
            scores["ours"] = task.grown(max_depth=depth).mean

        def scikit(
            task: Task = task, depth: int = depth, scores: dict[str, float] = scores
        ) -> None:
            scores["theirs"] = task.scored(max_depth=depth)

        programs = {"ours": ours, "scikit-learn": scikit}
        if task.has_one_tree:
            programs["HGB"] = lambda task=task, depth=depth: task.boosted(depth)
            programs["LightGBM"] = lambda task=task, depth=depth: task.lightgbm_cv(depth)
            programs["XGBoost"] = lambda task=task, depth=depth: task.xgboost_cv(depth)
        found = in_turn(programs, runs)
        ratios = [
            f"{found[one] / found['ours']:.1f}" if one in found else "-"
            for one in ("scikit-learn", "HGB", "LightGBM", "XGBoost")
        ]
        row = [task.name, str(depth), f"{found['ours']:.3f}", f"{scores['ours']:.4f}"]
        rows.append([*row, *ratios, f"{scores['theirs']:.4f}"])
    show("Beside others, ten folds", rows)


def leaves(tasks: list[Task], runs: int) -> None:
    rows = [["data", "min leaf", "ours, s", "scikit-learn / ours"]]
    for task in tasks:
        for leaf in () if task.is_large else (20, 1):
            programs = {
                "ours": lambda task=task, leaf=leaf: [task.grown(min_samples_leaf=leaf)],
                "theirs": lambda task=task, leaf=leaf: [task.scored(min_samples_leaf=leaf)],
            }
            found = in_turn(programs, runs)
            ratio = found["theirs"] / found["ours"]
            rows.append([task.name, str(leaf), f"{found['ours']:.3f}", f"{ratio:.1f}"])
    show("Unlimited depth, ten folds", rows)


def alone(tasks: list[Task], runs: int, k: int = 10) -> None:
    rows = [["data", "depth", "min leaf", "255 bins", "64 bins", "32 bins"]]
    for task in tasks:
        shallow = (8 if task.is_large else 6, 1)
        for depth, leaf in (shallow, (None, 20), (None, 1)) if k == 10 else (shallow,):
            if task.is_large and depth is None:
                continue
            ratios = []
            for bins in (255, 64, 32):
                settings = {"max_depth": depth, "min_samples_leaf": leaf, "max_bins": bins}
                programs = {
                    method: lambda task=task, method=method, settings=settings: float(
                        task.grown(KFold(k), method, **settings).seconds
                    )
                    for method in ("forest", "standard")
                }
                found = in_turn(programs, runs)
                ratios.append(f"{found['standard'] / found['forest']:.2f}")
            rows.append([task.name, str(depth), str(leaf), *ratios])
    show(f"Seconds of trees one by one over those grown together, {k} folds", rows)


def folds(tasks: list[Task], runs: int) -> None:
    alone([task for task in tasks if not task.is_large], runs, 30)


def trials(tasks: list[Task], runs: int) -> None:
    space = {
        "max_depth": IntDistribution(2, 20),
        "min_samples_split": IntDistribution(2, 200, log=True),
        "min_impurity_decrease": FloatDistribution(1e-7, 1e-3, log=True),
        "ccp_alpha": FloatDistribution(1e-7, 1e-3, log=True),
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = [["data", "100 trials, s", "one further setting, ms", "scikit-learn / ours"]]
    for task in tasks:
        asked: list[dict[str, Any]] = []
        answers: list[float] = []

        def study(task: Task = task, asked: Any = asked, answers: Any = answers) -> None:
            objective = treecv_objective(
                task.ours(),
                task.X,
                task.y,
                cv=FOLDS,
                shuffle=False,
                scoring=task.scoring,
                param_distributions=space,
            )
            sampler = optuna.samplers.RandomSampler(seed=0)
            found = optuna.create_study(direction="maximize", sampler=sampler)
            found.optimize(objective, n_trials=100)
            asked[:] = [trial.params for trial in found.trials]
            answers[:] = [trial.user_attrs["treecv"]["seconds"] for trial in found.trials[1:]]

        ours = in_turn({"ours": study}, runs)["ours"]
        every = asked[:: 50 if task.is_large else 10]
        theirs = in_turn(
            {"theirs": lambda task=task, every=every: [task.scored(**one) for one in every]}, 1
        )["theirs"]
        ratio = theirs * len(asked) / len(every) / ours
        rows.append([task.name, f"{ours:.3f}", f"{1000 * median(answers):.2f}", f"{ratio:.0f}"])
    show("A study of 100 trials", rows)


def path(tasks: list[Task], runs: int) -> None:
    rows = [["data", "ours, s", "GridSearchCV / ours"]]
    for task in tasks:
        if task.is_large:
            continue
        tree = task.theirs()
        alphas = tree.cost_complexity_pruning_path(task.X, task.y).ccp_alphas
        grid = np.unique(np.quantile(alphas, np.linspace(0, 1, 30)))

        def ours(task: Task = task, grid: np.ndarray = grid) -> None:
            objective = treecv_objective(
                task.ours(),
                task.X,
                task.y,
                cv=FOLDS,
                shuffle=False,
                scoring=task.scoring,
                param_grid={"ccp_alpha": grid.tolist()},
            )
            for alpha in grid.tolist():
                objective.evaluate({"ccp_alpha": alpha})

        def theirs(task: Task = task, tree: Any = tree, grid: np.ndarray = grid) -> None:
            few = {"ccp_alpha": grid[::10]}
            search = GridSearchCV(clone(tree), few, cv=FOLDS, refit=False, scoring=task.scoring)
            search.fit(task.X, task.y)

        found = in_turn({"ours": ours, "theirs": theirs}, runs)
        ratio = found["theirs"] / found["ours"] * len(grid) / len(grid[::10])
        rows.append([task.name, f"{found['ours']:.3f}", f"{ratio:.0f}"])
    show("30 values of ccp_alpha", rows)


def memory(tasks: list[Task], runs: int) -> None:
    """Each growth is a process of its own, which says how its peak rises."""
    rows = [["data", "depth", "MB"]]
    for task, name in zip(tasks, NAMES, strict=True):
        for depth in (8, None):
            leaf = 20 if task.is_large else 1
            call = [sys.executable, __file__, "peak", name, str(depth), str(leaf)]
            said = subprocess.run(call, capture_output=True, text=True, check=True, env=os.environ)
            rows.append([task.name, str(depth), said.stdout.strip()])
    show("Peak memory of growth beyond the rows in bins", rows)


def edges(tasks: list[Task], runs: int) -> None:
    """The five orders split the same rows again, so that standard errors are too small."""
    rows = [["data", "255 bins", "32 bins"]]
    for task in tasks:
        if task.is_large:
            continue
        row = [task.name]
        for bins in (255, 32):
            lost = []
            for seed in range(5):
                cv = KFold(10, shuffle=True, random_state=seed)
                settings = {"min_samples_leaf": 20, "max_bins": bins}
                within = task.grown(cv, "fit", **settings).mean
                lost.append(within - task.grown(cv, **settings).mean)
            row.append(f"{np.mean(lost):+.4f} ± {np.std(lost, ddof=1) / 5**0.5:.4f}")
        rows.append(row)
    show("Loss with edges from all rows minus that with edges within folds", rows)


def peak(name: str, depth: str, leaf: str) -> None:
    """Print by how many MB the peak of memory rises while trees grow."""
    import resource

    from optuna_treecv.engines.trees.forest import BinnedRows
    from optuna_treecv.engines.trees.forest import grow_forest
    from optuna_treecv.engines.trees.forest import Limits

    task = Task(name)
    tree = task.ours(max_depth=None if depth == "None" else int(depth), min_samples_leaf=int(leaf))
    table, binning = tree.find_bins(task.X)
    bins = binning.bins(table)
    targets, classes = tree._targets(task.y)
    bounds = np.arange(11) * len(targets) // 10
    rows = BinnedRows(bins, binning, targets, classes, bounds, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    room = np.ones((before - rss_now()) // 8 * 1024)  # so that what was freed is not used
    grow_forest(tree, rows, Limits.of(tree), tree.seed(0))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{(after - before) / 1024 + 0 * room[0]:.0f}")


def rss_now() -> int:
    """Return the memory in use, in kB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        peak(*sys.argv[2:5])
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    tasks = [Task(name) for name in NAMES]
    for group in sys.argv[2:] or GROUPS:
        globals()[group](tasks, runs)


if __name__ == "__main__":
    main()
