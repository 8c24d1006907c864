"""Compare times and scores with those of other programs in the same process.

    OMP_NUM_THREADS=1 python benchmarks/peers.py [RUNS [RESULTS.json]]

The output is a Markdown table of medians, and JSON if a file is named. The programs take turns for
RUNS runs (default 3); one that has taken 10 s in all is not run again. datasets.py describes the
data and the substitutes for missing data sets. River, LIBLINEAR (``liblinear-official`` on PyPI)
and optuna-integration are measured if they are installed.

What is the same for all programs:

* All get the same rows, scaled and in random order, in memory and in the form that they need.
  Bringing the rows into this form is not timed; checks and copies within a call are.
* No program shuffles again, and each uses one thread.
* SGD reads each row once, with the given constant step and alpha, found by a coarse search. Ours
  and scikit-learn's are the same algorithm: averaged SGD on the hinge loss or half the squared
  error.

What differs:

* The order of the rows, which may follow the tree, and the folds, which scikit-learn stratifies
  for classifiers.
* Ours averages the models before each step, scikit-learn those after it.
* On sparse rows, scikit-learn uses a hundredth of the step for the intercept, and ours the full
  step. On 20 newsgroups, whose classes have equal sizes, both omit the intercept; a separate
  contest includes it.
* River reads rows one by one as Python dictionaries, does not average, and classifies by the
  logistic loss.
* RidgeCV and the hat matrix are exact and have no step size.
* LIBLINEAR's -C solves to a tolerance, on the squared hinge loss, for as many values of C as it
  chooses. Ours tries 32 pairs of step and alpha.

The score is the mean error of the folds, or the root of their mean squared error for a target with
variance 1. The last column divides the seconds by ours in the same contest; below 1 the other
program is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cache
from importlib import import_module
import json
from pathlib import Path
from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from scipy import sparse
from sklearn.linear_model import RidgeCV
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import cross_val_score

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective

ENOUGH = 10  # seconds
Outcome = tuple[float, int | str]  # the score; the rows trained on, or another method's name


@dataclass
class Task:
    """Rows, and the settings of SGD on them, which are the same for all programs."""

    X: Any
    y: np.ndarray
    name: str
    step: float
    alpha: float
    fit_intercept: bool = True

    @property
    def is_regression(self) -> bool:
        return self.y.dtype.kind == "f"

    @property
    def ours(self) -> Any:
        kind = AveragedSGDRegressor if self.is_regression else AveragedSGDClassifier
        return kind(
            alpha=self.alpha, step_size=self.step, average=True, fit_intercept=self.fit_intercept
        )

    @property
    def theirs(self) -> Any:
        """The same in scikit-learn."""
        kind = SGDRegressor if self.is_regression else SGDClassifier
        return kind(
            alpha=self.alpha,
            learning_rate="constant",
            eta0=self.step,
            average=True,
            fit_intercept=self.fit_intercept,
            max_iter=1,
            tol=None,
            shuffle=False,
        )

    def first(self, n: int) -> Task:
        return replace(self, X=self.X[:n], y=self.y[:n])

    def loss(self, predicted: Any, y: Any) -> float:
        """Of a fold."""
        return float(np.mean((predicted - y) ** 2 if self.is_regression else predicted != y))

    def score(self, losses: Any) -> float:
        return float(np.mean(losses) ** (0.5 if self.is_regression else 1))


@dataclass
class Entry:
    """One program in a contest; it is compared with the first one, which is ours."""

    contest: str
    what: str
    run: Callable[[], Outcome]
    part: float = 1.0  # the share of the rows that is used, if all would take too long
    seconds: list[float] = field(default_factory=list)
    outcome: Outcome = (np.nan, "")


def ours(contest: str, task: Task, cv: int | str) -> Entry:
    return by_tree("ours", task.ours, contest, task, cv)


def adapter(contest: str, task: Task, cv: int | str) -> Entry:
    return by_tree(f"ours, over {name_of(task.theirs)}", task.theirs, contest, task, cv)


def by_tree(what: str, model: Any, contest: str, task: Task, cv: int | str) -> Entry:
    def run() -> Outcome:
        result = tree_cross_validate(model, task.X, task.y, cv=cv, stratify=False, shuffle=False)
        return task.score(result.mean), result.n_updates

    return Entry(contest, what, run)


def grid(contest: str, task: Task, steps: Any, alphas: Any, cv: int | str) -> Entry:
    models = [task.ours.set_params(step_size=s, alpha=a) for s in steps for a in alphas]

    def run() -> Outcome:
        results = tree_cross_validate_many(
            models, task.X, task.y, cv=cv, stratify=False, shuffle=False
        )
        best = min(result.mean for result in results)
        return task.score(best), sum(result.n_updates for result in results)

    return Entry(contest, f"ours, {len(models)} models side by side", run)


def scikit_learn(contest: str, task: Task) -> Entry:
    scoring = "neg_mean_squared_error" if task.is_regression else "accuracy"

    def run() -> Outcome:
        scores = cross_val_score(task.theirs, task.X, task.y, cv=10, scoring=scoring)
        losses = -scores if task.is_regression else 1 - scores
        return task.score(losses), 9 * len(task.y)

    return Entry(contest, f"`cross_val_score` of {name_of(task.theirs)}", run)


def python_treecv(model: Any, task: Task, k: int) -> tuple[list[float], int]:
    """Run Algorithm 1 of Joulani et al. (2015) in plain Python, using ``partial_fit``.

    Returns the loss of each fold, and the number of rows trained on.
    """
    cuts = [i * len(task.y) // k for i in range(k + 1)]
    classes = {} if task.is_regression else {"classes": np.unique(task.y)}
    losses, n_updates = [], 0

    def train(model: Any, first: int, last: int) -> None:
        nonlocal n_updates
        rows = slice(cuts[first], cuts[last + 1])
        model.partial_fit(task.X[rows], task.y[rows], **classes)
        n_updates += rows.stop - rows.start

    def tree(model: Any, first: int, last: int) -> None:
        """Test these chunks; the model has seen all others."""
        if first == last:
            rows = slice(cuts[first], cuts[first + 1])
            losses.append(task.loss(model.predict(task.X[rows]), task.y[rows]))
            return
        middle = (first + last) // 2
        other = deepcopy(model)
        train(model, middle + 1, last)
        tree(model, first, middle)
        train(other, first, middle)
        tree(other, middle + 1, last)

    tree(deepcopy(model), 0, k - 1)
    return losses, n_updates


def by_python(contest: str, task: Task, k: int, part: float = 1.0) -> Entry:
    def run() -> Outcome:
        losses, n_updates = python_treecv(task.theirs, task, k)
        return task.score(losses), n_updates

    return Entry(contest, f"TreeCV in Python over {name_of(task.theirs)}", run, part)


def river(contest: str, task: Task, part: float) -> Entry:
    """Cross-validate in 10 folds, row after row."""
    from river.linear_model import LinearRegression
    from river.linear_model import LogisticRegression
    from river.multiclass import OneVsRestClassifier
    from river.optim import SGD

    if task.is_regression:
        model = LinearRegression(SGD(task.step / 2), l2=task.alpha)  # its loss is not halved
    else:
        model = LogisticRegression(SGD(task.step), l2=task.alpha)
    what = f"River's `{type(model).__name__}`"
    if not task.is_regression and task.y.max() > 1:
        model = OneVsRestClassifier(model)
    X, y = dictionaries(task.X), task.y.tolist()
    folds = np.arange(len(y)) * 10 // len(y)

    def run() -> Outcome:
        losses = []
        for fold in range(10):
            one = model.clone()
            for i in np.flatnonzero(folds != fold):
                one.learn_one(X[i], y[i])
            rows = np.flatnonzero(folds == fold)
            losses.append(task.loss(np.array([one.predict_one(X[i]) for i in rows]), task.y[rows]))
        return task.score(losses), 9 * len(y)

    return Entry(contest, what, run, part)


def dictionaries(X: Any) -> list[dict[int, float]]:
    """Return rows as dictionaries: all columns of a dense row, the nonzeros of a sparse one."""
    if not sparse.issparse(X):
        return [dict(enumerate(row)) for row in X.tolist()]
    return [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in X]


def ridge(contest: str, task: Task, alphas: Any) -> Entry:
    def run() -> Outcome:
        model = RidgeCV(alphas).fit(task.X, task.y)
        return task.score(-model.best_score_), "exact"

    return Entry(contest, "`RidgeCV`", run)


def hat_matrix(contest: str, task: Task, alphas: Any) -> Entry:
    """Compute leave-one-out for ridge regression from the eigenvectors of X'X."""

    def run() -> Outcome:
        X, y = task.X - task.X.mean(axis=0), task.y - task.y.mean()
        values, vectors = np.linalg.eigh(X.T @ X)
        X = X @ vectors
        products, squares, losses = X.T @ y, X**2, []
        for alpha in alphas:
            inverse = 1 / (values + alpha)
            leverage = squares @ inverse + 1 / len(y)
            losses.append(np.mean(((y - X @ (inverse * products)) / (1 - leverage)) ** 2))
        return task.score(min(losses)), "exact"

    return Entry(contest, "hat matrix in NumPy", run)


def liblinear(contest: str, task: Task) -> Entry:
    """Run LIBLINEAR's search for C, which starts each model from that of the previous C."""
    from liblinear.liblinearutil import problem
    from liblinear.liblinearutil import train

    rows = problem(np.where(task.y > 0, 1, -1), sparse.csr_matrix(task.X))

    def run() -> Outcome:
        with redirect_stdout(sys.stderr):
            _, _, accuracy = train(rows, "-C -s 2 -v 5 -B 1 -q")
        return 1 - accuracy, "to tolerance"

    return Entry(contest, "LIBLINEAR's `-C`", run)


def our_study(contest: str, task: Task, step: Any, alpha: Any) -> Entry:
    def run() -> Outcome:
        objective = treecv_objective(
            task.ours,
            *(task.X, task.y),
            param_distributions={"alpha": alpha, "step_size": step},
            cv=10,
            stratify=False,
            shuffle=False,
        )
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(objective, n_trials=10)
        return study.best_value, sum(one.user_attrs["treecv"]["n_updates"] for one in study.trials)

    return Entry(contest, "ours, `study.optimize`", run)


def optuna_search(contest: str, task: Task, step: Any, alpha: Any) -> Entry:
    from optuna_integration import OptunaSearchCV

    def run() -> Outcome:
        sampler = optuna.samplers.TPESampler(seed=0)
        search = OptunaSearchCV(
            task.theirs,
            {"alpha": alpha, "eta0": step},
            cv=10,
            n_trials=10,
            refit=False,
            study=optuna.create_study(direction="maximize", sampler=sampler),
        ).fit(task.X, task.y)
        return 1 - search.best_score_, 10 * 9 * len(task.y)

    return Entry(contest, f"`OptunaSearchCV` of {name_of(task.theirs)}", run)


def folds(task: Task, n_first: int) -> list[Entry]:
    """Return the contests for every data set; slow peers use only the first rows."""
    few, part = task.first(n_first), n_first / len(task.y)
    first = f", first {n_first:,} rows"
    entries = [
        ours("10 folds", task, 10),
        scikit_learn("10 folds", task),
        by_python("10 folds", task, 10),
        ours("100 folds", task, 100),
        adapter("100 folds", task, 100),
        by_python("100 folds", task, 100),
        ours("leave-one-out" + first, few, "loo"),
        by_python("leave-one-out" + first, few, n_first, part),
    ]
    if has("river"):
        entries += [ours("10 folds" + first, few, 10), river("10 folds" + first, few, part)]
    return [*entries, ours("leave-one-out", task, "loo")]


def with_intercept(task: Task) -> list[Entry]:
    task = replace(task, fit_intercept=True)
    return [ours("10 folds, intercept", task, 10), scikit_learn("10 folds, intercept", task)]


def exact(task: Task) -> list[Entry]:
    """Return the contests against closed forms of leave-one-out.

    One is for a single alpha, the other for ten alphas against ten of our step sizes.
    """
    one, ten = "leave-one-out", "leave-one-out, best of 10"
    alphas = np.geomspace(1e-2, 1e4, 10)
    return [
        ridge(one, task, [1.0]),
        hat_matrix(one, task, [1.0]),
        grid(ten, task, np.geomspace(1e-3, 0.1, 10), [task.alpha], "loo"),
        ridge(ten, task, alphas),
        hat_matrix(ten, task, alphas),
    ]


def search_of_c(task: Task, n_first: int) -> list[Entry]:
    if not has("liblinear"):
        return []
    few = task.first(n_first)
    contest = "search, 5 folds" + (f", first {n_first:,} rows" if n_first < len(task.y) else "")
    steps, alphas = np.geomspace(1e-3, 10, 8), np.geomspace(1e-8, 1e-4, 4)
    return [grid(contest, few, steps, alphas, 5), liblinear(contest, few)]


def studies(task: Task) -> list[Entry]:
    if not has("optuna_integration"):
        return []
    contest = "10 trials of 10 folds"
    ranges = FloatDistribution(1e-3, 10, log=True), FloatDistribution(1e-8, 1e-4, log=True)
    return [our_study(contest, task, *ranges), optuna_search(contest, task, *ranges)]


@cache
def has(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        print(f"{module} is not installed, its rows are left out", file=sys.stderr)
        return False
    return True


def name_of(estimator: Any) -> str:
    return f"`{type(estimator).__name__}`"


def measure(entries: list[Entry], runs: int) -> None:
    """Measure in turns, so that a slow moment of the machine affects all."""
    for _ in range(runs):
        for entry in entries:
            if sum(entry.seconds) < ENOUGH:
                begin = perf_counter()
                entry.outcome = entry.run()
                entry.seconds.append(perf_counter() - begin)


def show(task: Task, entries: list[Entry]) -> list[dict[str, Any]]:
    """Print a data set's rows, contest by contest, and return them."""
    n, d = task.X.shape
    data = f"{task.name}, {n:,} x {d:,}, step {task.step:g}, alpha {task.alpha:g}"
    rows = []
    for contest in dict.fromkeys(entry.contest for entry in entries):
        rivals = [entry for entry in entries if entry.contest == contest]
        for entry in rivals:
            seconds, (score, updates) = median(entry.seconds), entry.outcome
            row = {
                "data": data,
                "contest": contest,
                "what": entry.what,
                "seconds": seconds,
                "updates": updates,
                "score": score,
                "times_ours": seconds / median(rivals[0].seconds),
                "runs": entry.seconds,
            }
            cells = [data, contest, entry.what, f"{seconds:.3g}"]
            if entry.part < 1:
                row["extrapolated"] = seconds / entry.part
                cells[-1] += f" (all rows, extrapolated: {seconds / entry.part:,.0f})"
            cells.append(f"{updates:,}" if isinstance(updates, int) else updates)
            cells.append(f"{score:.4f}" if task.is_regression else f"{100 * score:.2f} %")
            ratio = row["times_ours"]
            cells.append("" if entry is rivals[0] else f"{ratio:,.{0 if ratio > 20 else 2}f}")
            print("|", " | ".join(cells), "|", flush=True)
            rows.append(row)
    return rows


def main(runs: int = 3, results: str | None = None) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for category in (optuna.exceptions.ExperimentalWarning, FutureWarning):  # OptunaSearchCV's
        warnings.filterwarnings("ignore", category=category)
    print("| data | folds | what | seconds | rows trained on | score | times ours |")
    print("|---|---|---|---|---|---|---|")
    rows = []

    def block(task: Task, entries: list[Entry]) -> None:
        measure(entries, runs)
        rows.extend(show(task, entries))

    task = Task(*datasets.covertype(), step=0.01, alpha=1e-6)
    block(task, folds(task, 2000) + search_of_c(task, 20_000))
    task = Task(*datasets.nycflights13(), step=0.03, alpha=1e-6)
    block(task, folds(task, 2000) + exact(task))
    task = Task(*datasets.newsgroups(), step=3, alpha=1e-6, fit_intercept=False)
    block(task, folds(task, 2000) + with_intercept(task) + studies(task))
    task = Task(*datasets.w8a(), step=0.3, alpha=1e-5)
    block(task, folds(task, 2000) + search_of_c(task, len(task.y)) + studies(task))
    task = Task(*datasets.fashion_mnist(), step=0.1, alpha=1e-6)
    block(task, folds(task, 500))
    if results is not None:
        Path(results).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
