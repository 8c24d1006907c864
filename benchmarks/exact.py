"""Measure exact folds beside searches and closed forms of others.

    python benchmarks/exact.py [RUNS [GROUP ...]]

GROUP is "ridge", "synthetic", "protein", "covertype", "news", "w8a", "fashion" or "further"
(default: all but "fashion"). The output is Markdown tables of medians. The programs take turns for
RUNS runs (default 3); one that has taken 10 s in all is not run again. datasets.py describes the
data. cvmatrix (on PyPI) is measured if it is installed.

All programs evaluate the same 30 values of one parameter on the same rows, which are in memory and
in random order, with one thread of BLAS and OpenMP. The k folds are the same ranges of rows.

* Ours is one call of ``tree_cross_validate_many``. *Walk* is the time from prepared rows to
  scores, and *call* the whole call with its checks and copies. *Outputs* are predictions for each
  row and value; *moments* are scores that need no predictions. Naive Bayes has no exact folds; it
  goes through the tree, once for each value.
* ``GridSearchCV`` fits, with ``refit=False``. Where it is slow it gets 3 of the 30 values, and the
  time is multiplied by ten; its name says so.
* ``RidgeCV`` and ``RidgeClassifierCV`` do leave-one-out.
* The ten lines of NumPy are leave-one-out from the eigenvectors of X'X, either with one product
  for each penalty or with one product for all.
* "cvmatrix + eigh" takes X'X of each training set from that package, one ``eigh`` for each fold,
  and one product for the predictions of all penalties.
* *Difference* is the largest difference between our fold scores and theirs, divided by the mean of
  theirs.
* The group "further" measures a later trial of a study with a value of alpha that is new. The time
  that a trial takes which only writes the same attributes is subtracted. The columns have very
  different scales, unless a ``StandardScaler`` stands before ``Ridge``.

The last table of a group compares ratios of medians with what is required and aimed at. Ours is
the walk there, and everything of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import RidgeClassifierCV
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import PredefinedSplit
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective

ENOUGH = 10  # seconds
N_VALUES = 30
FEW = [0, 14, 29]  # the values that a slow search gets
ALPHAS = np.geomspace(1e-3, 1e6, N_VALUES)
SHRINKAGES = np.linspace(0, 1, N_VALUES)
SMOOTHINGS = np.geomspace(1e-9, 1, N_VALUES)
ADDED = np.geomspace(1e-3, 10, N_VALUES)

# By scoring and cv: the scores of each value and fold, or NaN for values that were left out.
Scores = dict[tuple[str, int | str], np.ndarray]


@dataclass
class Task:
    """Rows, an estimator and the values of its parameter."""

    X: Any
    y: np.ndarray
    name: str
    estimator: Any
    parameter: str
    values: np.ndarray
    scoring: str  # the scorer of the search; ours has the same

    def ids(self, k: int) -> np.ndarray:
        """Return the fold of each row, as an int k cuts them."""
        return np.repeat(np.arange(k), np.diff(self.bounds(k)))

    def bounds(self, k: int) -> np.ndarray:
        return np.arange(k + 1) * len(self.y) // k


@dataclass
class Entry:
    """One program; ``run`` returns the time of the walk, if it is known, and scores."""

    what: str
    run: Callable[[], tuple[float | None, Scores]]
    times: int = 1  # by which the time is multiplied, if only a part is run
    walks: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    scores: Scores = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The median of the walk, or of the whole call where there is no walk."""
        return median(self.walks) if self.walks else self.times * median(self.calls)


def ours(what: str, task: Task, cv: int | str, scoring: str, n_values: int = N_VALUES) -> Entry:
    models = [
        clone(task.estimator).set_params(**{task.parameter: value})
        for value in task.values[:n_values].tolist()
    ]

    def run() -> tuple[float, Scores]:
        results = tree_cross_validate_many(
            models, *(task.X, task.y), cv=cv, scoring=scoring, stratify=False, shuffle=False
        )
        scores = np.array([result.test_score for result in results])
        found: Scores = {(scoring, cv): scores}
        if n_values == N_VALUES:
            found[f"best {scoring}", cv] = scores.mean(axis=1).min()
        return sum(result.seconds for result in results), found

    return Entry(f"ours, {what}", run)


def search(task: Task, is_slow: bool = True, k: int = 10, also: Sequence[str] = ()) -> Entry:
    """Return ``GridSearchCV`` with all values, or with 3 of them."""
    chosen = FEW if is_slow else list(range(N_VALUES))
    scorings = [task.scoring, *also]
    grid = GridSearchCV(
        task.estimator,
        {task.parameter: task.values[chosen].tolist()},
        cv=PredefinedSplit(task.ids(k)),
        refit=False,
        scoring=scorings,
        error_score="raise",
    )

    def run() -> tuple[None, Scores]:
        found = clone(grid).fit(task.X, task.y).cv_results_
        scores: Scores = {}
        for scoring in scorings:
            of_all = np.full((N_VALUES, k), np.nan)
            for fold in range(k):
                of_all[chosen, fold] = found[f"split{fold}_test_{scoring}"]
            if scoring.startswith("neg_mean_"):
                scoring, of_all = scoring.removeprefix("neg_mean_"), -of_all
            scores[scoring, k] = of_all
        return None, scores

    times = N_VALUES // len(chosen)
    part = ", 3 values x 10" if is_slow else ""
    return Entry(f"`GridSearchCV`, k={k}{part}", run, times)


def one_fit(task: Task) -> Entry:
    def run() -> tuple[None, Scores]:
        clone(task.estimator).fit(task.X, task.y)
        return None, {}

    return Entry(f"one `{type(task.estimator).__name__}.fit`", run)


def ridge_cv(task: Task) -> Entry:
    def run() -> tuple[None, Scores]:
        model = RidgeCV(task.values).fit(task.X, task.y)
        return None, {("best squared_error", "loo"): np.array(-model.best_score_)}

    return Entry("`RidgeCV`, leave-one-out", run)


def ridge_classifier_cv(task: Task) -> Entry:
    def run() -> tuple[None, Scores]:
        RidgeClassifierCV(task.values).fit(task.X, task.y)
        return None, {}  # its score is another one

    return Entry("`RidgeClassifierCV`, leave-one-out", run)


def ten_lines(task: Task, at_once: bool, n_values: int = N_VALUES) -> Entry:
    """Return leave-one-out of ridge regression in NumPy."""
    groups = np.split(task.values[:n_values], 1 if at_once else n_values)

    def run() -> tuple[None, Scores]:
        X, y = task.X - task.X.mean(axis=0), task.y - task.y.mean()
        eigenvalues, vectors = np.linalg.eigh(X.T @ X)
        X = X @ vectors
        products, squares, losses = X.T @ y, X**2, []
        for alphas in groups:
            inverse = 1 / (eigenvalues[:, None] + alphas)
            leverage = squares @ inverse + 1 / len(y)
            residuals = y[:, None] - X @ (inverse * products[:, None])
            losses.append((residuals / (1 - leverage)) ** 2)
        return None, {("squared_error", "loo"): np.hstack(losses).T}

    what = "in one product" if at_once else "one by one"
    what = "one penalty" if n_values == 1 else f"penalties {what}"
    return Entry(f"ten lines of NumPy, leave-one-out, {what}", run)


def cvmatrix_and_eigh(task: Task, k: int) -> list[Entry]:
    """Return nothing if cvmatrix is not installed."""
    try:
        from cvmatrix.cvmatrix import CVMatrix
    except ImportError:
        print("cvmatrix is not installed, its rows are left out", file=sys.stderr)
        return []

    def run() -> tuple[None, Scores]:
        sums = CVMatrix(scale_X=False, scale_Y=False, copy=False)
        sums.fit(task.X, task.y)
        bounds, scores = task.bounds(k), np.empty((N_VALUES, k))
        for fold in range(k):
            first, last = bounds[fold], bounds[fold + 1]
            (XX, Xy), (mean, _, mean_of_y, _) = sums.training_XTX_XTY(np.arange(first, last))
            eigenvalues, vectors = np.linalg.eigh(XX)
            coef = vectors @ ((vectors.T @ Xy) / (eigenvalues[:, None] + task.values))
            predicted = (task.X[first:last] - mean) @ coef + mean_of_y
            scores[:, fold] = np.mean((task.y[first:last, None] - predicted) ** 2, axis=0)
        return None, {("squared_error", k): scores}

    return [Entry(f"cvmatrix + `eigh`, k={k}", run)]


def measure(entries: list[Entry], runs: int) -> None:
    """Measure in turns, so that a slow moment of the machine affects all."""
    for _ in range(runs):
        for entry in entries:
            if sum(entry.calls) < ENOUGH:
                began = perf_counter()
                walk, entry.scores = entry.run()
                entry.calls.append(perf_counter() - began)
                if walk is not None:
                    entry.walks.append(walk)


def show(task: Task, entries: list[Entry]) -> None:
    """Print the times, and beside each opponent the largest difference to ours."""
    n, d = task.X.shape
    kind = type(task.estimator).__name__
    print(f"\n{kind}, {task.name}, {n:,} x {d:,}, {N_VALUES} values of {task.parameter}\n")
    print("| what | walk, s | call, s | call / walk | times ours | difference |")
    print("|---|---|---|---|---|---|")
    first = entries[0]
    known: Scores = {}
    for entry in entries:
        walk = ratio = times = difference = ""
        call = f"{entry.times * median(entry.calls):.3g}"
        if entry.walks:
            for key, scores in entry.scores.items():
                known.setdefault(key, scores)
            walk = f"{entry.seconds:.3g}"
            ratio = f"{median(entry.calls) / entry.seconds:.2f}"
        else:
            shared = [key for key in entry.scores if key in known]
            difference = ", ".join(
                f"{key[0]} {largest_difference(known[key], entry.scores[key]):.1e}"
                for key in shared
            )
        if entry is not first:
            times = f"{entry.seconds / first.seconds:.3g}"
        cells = (entry.what, walk, call, ratio, times, difference)
        print("|", " | ".join(cells), "|", flush=True)


def largest_difference(found: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference over the mean of theirs; NaN is left out."""
    if np.ndim(theirs):
        found = found[: len(theirs)]
    return float(np.nanmax(np.abs(found - theirs)) / np.nanmean(np.abs(theirs)))


Ratio = tuple[str, float, float, float, bool]  # what, measured, must, aim, more is better


def judge(ratios: list[Ratio]) -> None:
    print("\n| ratio | measured | must | aim | |\n|---|---|---|---|---|")
    for what, measured, must, aim, more in ratios:
        compare = np.greater_equal if more else np.less_equal
        verdict = "aim" if compare(measured, aim) else "must" if compare(measured, must) else "no"
        sign = "at least" if more else "at most"
        print(f"| {what} | {measured:.3g} | {sign} {must:g} | {aim:g} | {verdict} |", flush=True)


def faster(what: str, them: Entry, us: Entry, must: float, aim: float) -> Ratio:
    return f"{what}: faster than {them.what}", them.seconds / us.seconds, must, aim, True


def over(what: str, one: Entry, other: Entry, must: float, aim: float) -> Ratio:
    return f"{what} / {other.what}", one.seconds / other.seconds, must, aim, False


def whole_call(entries: list[Entry]) -> Ratio:
    """Return the worst ratio of a call of ours and its walk."""
    worst = max(median(entry.calls) / entry.seconds for entry in entries if entry.walks)
    return "whole call / walk, the worst", worst, 2, 2, False


def regression(runs: int, X: Any, y: np.ndarray, name: str, is_slow: bool = True) -> None:
    """Print ridge regression on dense rows."""
    task = Task(X, y, name, Ridge(), "alpha", ALPHAS, "neg_mean_absolute_error")
    by_outputs, by_moments = "absolute_error", "squared_error"
    tens = ours("k=10, outputs", task, 10, by_outputs)
    hundreds = ours("k=100, outputs", task, 100, by_outputs)
    thousands = ours("k=1000, outputs", task, 1000, by_outputs)
    moments = ours("k=10, moments", task, 10, by_moments)
    loo = ours("leave-one-out", task, "loo", by_moments)
    loo_one = ours("leave-one-out, one penalty", task, "loo", by_moments, 1)
    grid = search(task, is_slow, also=["neg_mean_squared_error"])
    fit, their_loo = one_fit(task), ridge_cv(task)
    lines, lines_one = ten_lines(task, at_once=False), ten_lines(task, False, 1)
    peers = cvmatrix_and_eigh(task, 10)
    entries = [tens, hundreds, thousands, moments]
    entries += [ours("k=100, moments", task, 100, by_moments), loo, loo_one, grid, fit, their_loo]
    entries += [lines, ten_lines(task, at_once=True), lines_one]
    entries += peers + cvmatrix_and_eigh(task, 100)
    measure(entries, runs)
    show(task, entries)
    if name != "nycflights13":
        judge([whole_call(entries)])
        return
    ratios = [faster("k=10, outputs", grid, tens, 150, 300)]
    ratios += [faster("k=10, outputs", peer, tens, 1.3, 2) for peer in peers]
    ratios += [
        over("k=10, outputs", tens, fit, 2.0, 1.2),
        over("k=10, moments", moments, fit, 1.2, 0.75),
        over("k=100", hundreds, tens, 1.6, 1.3),
        over("k=1000", thousands, tens, 5, 3),
        faster("leave-one-out", their_loo, loo, 10, 20),
        faster("leave-one-out", lines, loo, 2, 4),
        faster("leave-one-out, one penalty", lines_one, loo_one, 0.9, 1.1),
        whole_call(entries),
    ]
    judge(ratios)


def ridge(runs: int) -> None:
    regression(runs, *datasets.nycflights13(as_is=True))


def synthetic(runs: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500_000, 90))
    y = X @ rng.normal(size=90) + 3 * rng.normal(size=len(X))
    regression(runs, X, y, "synthetic")


def protein(runs: int) -> None:
    regression(runs, *datasets.protein(), is_slow=False)


def classification(
    runs: int,
    task: Task,
    must_grid: tuple[float, float] | None,
    others: Sequence[Entry] = (),
    has_loo: bool = True,
) -> None:
    """Print a classifier."""
    tens = ours("k=10", task, 10, "accuracy")
    entries = [tens, ours("k=100", task, 100, "accuracy")]
    if has_loo:
        entries.append(ours("leave-one-out", task, "loo", "error"))
    grid = search(task)
    entries += [grid, one_fit(task), *others]
    measure(entries, runs)
    show(task, entries)
    ratios = [whole_call(entries)]
    if must_grid is not None:
        ratios.append(faster("k=10", grid, tens, *must_grid))
    judge(ratios)


def covertype(runs: int) -> None:
    X, y, name = datasets.covertype(as_is=True)
    rows = (X, y, name)
    task = Task(*rows, RidgeClassifier(), "alpha", ALPHAS, "accuracy")
    classification(runs, task, (150, 320), others=[ridge_classifier_cv(task)])
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5)
    task = Task(*rows, lda, "shrinkage", SHRINKAGES, "accuracy")
    classification(runs, task, (120, 250), has_loo=False)
    # Some columns are constant within a class, which scikit-learn refuses without a penalty.
    qda = QuadraticDiscriminantAnalysis(reg_param=0.5)
    penalties = np.linspace(0.01, 1, N_VALUES)
    task = Task(*rows, qda, "reg_param", penalties, "accuracy")
    classification(runs, task, (200, 450), has_loo=False)
    task = Task(*rows, GaussianNB(), "var_smoothing", SMOOTHINGS, "accuracy")
    classification(runs, task, None, has_loo=False)


def fashion(runs: int) -> None:
    rows = datasets.fashion_mnist()
    task = Task(*rows, RidgeClassifier(), "alpha", ALPHAS, "accuracy")
    classification(runs, task, None)
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5)
    task = Task(*rows, lda, "shrinkage", SHRINKAGES, "accuracy")
    classification(runs, task, None, has_loo=False)


def news(runs: int) -> None:
    rows = datasets.newsgroups(as_is=True)
    for model in (MultinomialNB(), BernoulliNB(), ComplementNB()):
        task = Task(*rows, model, "alpha", ADDED, "accuracy")
        classification(runs, task, None, has_loo=False)


def w8a(runs: int) -> None:
    """Print ridge regression on sparse rows; scikit-learn solves to a tolerance there."""
    X, y, name = datasets.w8a()
    task = Task(X, y.astype(float), name, Ridge(), "alpha", ALPHAS, "neg_mean_absolute_error")
    entries = [
        ours("k=10, outputs", task, 10, "absolute_error"),
        ours("k=100, outputs", task, 100, "absolute_error"),
        ours("leave-one-out", task, "loo", "squared_error"),
        search(task),
        one_fit(task),
    ]
    measure(entries, runs)
    show(task, entries)


def further(runs: int) -> None:
    """Print what a further value of alpha takes in a later trial, beside Optuna."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    X, y, name = datasets.nycflights13(as_is=True)
    print(f"\nA further alpha, {name}, median of {10 * runs} trials\n")
    print("| | k | scoring | first trial, ms | later trial, ms | without Optuna's share, ms |")
    print("|---|---|---|---|---|---|")
    found = {}
    for what, model in (("Ridge", Ridge()), ("scaled", make_pipeline(StandardScaler(), Ridge()))):
        for k in (10, 100):
            for scoring in ("squared_error", "absolute_error"):
                times = trials(model, X, y, k, scoring, 10 * runs)
                found[what, k, scoring] = times[-1]
                shown = " | ".join(f"{1e3 * seconds:.2f}" for seconds in times)
                print(f"| {what} | {k} | {scoring} | {shown} |", flush=True)
    own = [1e3 * found[what, 10, "squared_error"] for what in ("Ridge", "scaled")]
    what = "a further alpha, k=10, moments, ms"
    judge([(what, own[0], 1, 0.4, False), (f"{what}, scaled", own[1], 1, 0.4, False)])


def trials(
    model: Any, X: Any, y: np.ndarray, k: int, scoring: str, n: int
) -> tuple[float, float, float]:
    """Return the seconds of the first and a later trial, and those beyond Optuna's own."""
    parameter = "alpha" if isinstance(model, Ridge) else "ridge__alpha"
    space = FloatDistribution(1e-3, 1e6, log=True)
    objective = treecv_objective(
        model,
        *(X, y),
        param_distributions={parameter: space},
        cv=k,
        method="exact",
        scoring=scoring,
        shuffle=False,
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    empty = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    evaluated, written = [], []
    for _ in range(n + 1):
        trial = study.ask()
        began = perf_counter()
        value = objective(trial)
        evaluated.append(perf_counter() - began)
        study.tell(trial, value)
        attributes = study.trials[-1].user_attrs
        trial = empty.ask()
        began = perf_counter()
        trial.suggest_float(parameter, space.low, space.high, log=True)
        for key, attribute in attributes.items():
            trial.set_user_attr(key, attribute)
        written.append(perf_counter() - began)
        empty.tell(trial, value)
    later = median(evaluated[1:])
    return evaluated[0], later, later - median(written[1:])


def main(runs: str = "3", *groups: str) -> None:
    warnings.filterwarnings("ignore", message="Variables are collinear")
    warnings.filterwarnings("ignore", message="Only one sample available")
    known = {
        "ridge": ridge,
        "synthetic": synthetic,
        "protein": protein,
        "covertype": covertype,
        "news": news,
        "w8a": w8a,
        "further": further,
        "fashion": fashion,
    }
    for group in groups or list(known)[:-1]:
        print(f"\n## {group}", flush=True)
        with threadpool_limits(1):
            known[group](int(runs))


if __name__ == "__main__":
    main(*sys.argv[1:])
