"""
When are k folds worth their time?
==================================

Measure the regret of a choice against the time that it takes. For each of five real data sets,
samples of n rows are drawn. On each sample, several methods choose one of 32 values of a
hyper-parameter. The regret of a choice is the risk of the chosen value minus that of the best one.
The risk of a value is the mean error, on rows outside of the sample, of the models of 5 training
orders of the whole sample; so the luck of an order is no regret.

Each method is timed from the rows in memory to the chosen value: by scikit-learn's GridSearchCV,
one fit after another, and by this package. Both run in one thread and train the same estimators,
and in both all values see the same folds and orders of rows. Columns are scaled once, before all
methods; where a score must hold for new rows, a Pipeline scales them in each fold instead.
Of sets with at most 20,000 rows, twice as many samples are drawn.
After Bergman, Purucker & Hutter (2024), "Don't waste your time: early stopping cross-validation".

::

    python -m pip install '.[docs]' && OMP_NUM_THREADS=1 \\
        python examples/when_is_it_worth_it.py [samples] [most rows] [figure.svg]

The files are read from the folders ``$OPTUNA_TREECV_DATA`` and ``$SCIKIT_LEARN_DATA``. A data set
that is not there is left out; if none is there, a made table takes their place.
"""

from collections import defaultdict
import os
from pathlib import Path
import sys
from time import perf_counter
import warnings

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import optuna
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import fetch_covtype
from sklearn.datasets import load_svmlight_file
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import RacingPruner
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective

n_samples = int(sys.argv[1]) if len(sys.argv) > 1 else 20
most_rows = int(float(sys.argv[2])) if len(sys.argv) > 2 else 200_000
figure_file = sys.argv[3] if len(sys.argv) > 3 else "when_is_it_worth_it.svg"

FOLDER = Path(os.environ.get("OPTUNA_TREECV_DATA", "."))
N_VALUES, N_ORDERS, MOST_TEST_ROWS = 32, 5, 100_000
STEPS = {"learning_rate": "invscaling", "power_t": 0.5, "loss": "log_loss", "alpha": 0.0}
LEARNERS = {
    "PEGASOS": (PegasosClassifier(), "alpha", np.geomspace(1e-7, 10, N_VALUES)),
    "averaged PEGASOS": (
        PegasosClassifier(average=True),
        "alpha",
        np.geomspace(1e-7, 10, N_VALUES),
    ),
    "averaged logistic SGD": (
        AveragedSGDClassifier(average=True, **STEPS),
        "step_size",
        np.geomspace(1e-3, 1e3, N_VALUES),
    ),
}
MARKERS = {
    "hold-out 20 %": "v",
    "3 folds": "s",
    "10 folds": "o",
    "100 folds": "D",
    "leave-one-out": "*",
    "progressive": "x",
    "race, 100 folds": "P",
}
FOLDS = {"hold-out 20 %": 0.2, "3 folds": 3, "10 folds": 10, "100 folds": 100}
# scikit-learn fits more than this many rows in a choice only on request of much patience.
MOST_FITTED = 7e7


def npz(name):
    with np.load(FOLDER / name) as file:
        return file["X"].astype(float), file["y"].astype(int)


def weather():
    X, y = npz("weather_noaa.npz")
    return scale(X), y


def magic():
    X, y = npz("magic.npz")
    return scale(X), y


def letter():
    X, y = npz("letter.npz")
    return scale(X), (y < 13).astype(int)


def a9a():
    parts = [
        load_svmlight_file(str(FOLDER / name), n_features=123)
        for name in ("a9a.svm.bz2", "a9a.t.svm.bz2")
    ]
    X = sparse.vstack([X for X, _ in parts], format="csr")
    return X, (np.concatenate([y for _, y in parts]) > 0).astype(int)


def covertype():
    X, y = fetch_covtype(return_X_y=True, download_if_missing=False)
    return scale(X), (y == 2).astype(int)


SETS = {
    "weather": (500, weather),
    "magic": (2_000, magic),
    "letter, A-M or N-Z": (8_000, letter),
    "a9a": (20_000, a9a),
    "Covertype": (200_000, covertype),
}


def data_sets():
    """Return the name, the rows of a sample, X and y of each set that is there."""
    found = []
    for name, (n_rows, load) in SETS.items():
        if n_rows <= most_rows:
            try:
                found.append((name, n_rows, *load()))
            except OSError:
                print(f"{name} is left out: its file is not there.")
    if not found:
        X, y = make_classification(20_000, 20, n_informative=10, flip_y=0.1, random_state=0)
        found.append(("made table", 1_000, scale(X), y))
    return found


def models_of(learner):
    model, name, values = LEARNERS[learner]
    return [type(model)(**model.get_params() | {name: value}) for value in values]


def risks(learner, X, y, n_rows):
    """Return the risk of each value: trained on the first n_rows rows, tested on the others."""
    ids = np.zeros(len(y), int)
    ids[:n_rows] = -1  # trained on and not tested
    of_orders = [
        [
            one.mean
            for one in tree_cross_validate_many(
                models_of(learner), X, y, cv=ids, random_state=seed
            )
        ]
        for seed in range(N_ORDERS)
    ]
    return np.mean(of_orders, axis=0)


def ours(method, learner, X, y, seed):
    """Return the number of the chosen value."""
    model, name, values = LEARNERS[learner]
    if method == "race, 100 folds":
        grid = {name: values.tolist()}
        objective = treecv_objective(
            model, X, y, param_grid=grid, cv=100, report="progressive", random_state=seed
        )
        sampler = objective.grid_sampler(seed)
        study = optuna.create_study(sampler=sampler, pruner=RacingPruner())
        study.optimize(objective)
        return grid[name].index(study.best_params[name])
    options = {"cv": FOLDS.get(method, "loo")}
    if method == "progressive":
        options = {"method": "progressive"}
    results = tree_cross_validate_many(models_of(learner), X, y, random_state=seed, **options)
    return int(np.argmin([one.mean for one in results]))


def by_scikit_learn(method, learner, X, y, seed):
    """Return the number of the chosen value."""
    model, name, values = LEARNERS[learner]
    model = clone(model).set_params(random_state=seed)  # the same order of rows for all values
    cv = StratifiedShuffleSplit(1, test_size=0.2, random_state=seed)
    if FOLDS[method] > 1:
        cv = StratifiedKFold(FOLDS[method], shuffle=True, random_state=seed)
    search = GridSearchCV(model, {name: values}, cv=cv, refit=False)
    return int(search.fit(X, y).best_index_)


METHODS = [
    *((by_scikit_learn, method) for method in FOLDS),
    *((ours, method) for method in (*FOLDS, "leave-one-out", "progressive", "race, 100 folds")),
]


def takes_long(choose, method, n_rows):
    n_folds = max(1, FOLDS.get(method, 1))
    is_many = n_folds > 10 and n_rows > 500
    return choose is by_scikit_learn and (is_many or N_VALUES * n_folds * n_rows > MOST_FITTED)


def measure(X, y, n_rows):
    """Return lists of (regret, seconds) by learner and method."""
    found = defaultdict(list)
    for seed in range(n_samples if n_rows > 20_000 else 2 * n_samples):
        rows = np.random.default_rng(seed).permutation(len(y))[: n_rows + MOST_TEST_ROWS]
        sampled, labels = X[rows[:n_rows]], y[rows[:n_rows]]
        for learner in LEARNERS:
            truth = risks(learner, X[rows], y[rows], n_rows)
            for choose, method in METHODS:
                if takes_long(choose, method, n_rows):
                    continue
                began = perf_counter()
                chosen = choose(method, learner, sampled, labels, seed)
                seconds = perf_counter() - began
                found[learner, choose, method].append((truth[chosen] - truth.min(), seconds))
    return found


def main():
    matplotlib.rcParams["svg.hashsalt"] = "optuna_treecv"  # equal numbers give an equal file
    chosen = data_sets()
    figure, axes = plt.subplots(
        len(LEARNERS),
        len(chosen),
        figsize=(max(9, 3.1 * len(chosen)), 2.6 * len(LEARNERS)),  # 9 for the legend
        layout="constrained",
        squeeze=False,
    )
    summary = []
    print("| data, rows | learner | method | scikit-learn: regret | seconds | ", end="")
    print("this package: regret | seconds |\n|---|---|---|---|---|---|---|")
    for column, (name, n_rows, X, y) in enumerate(chosen):
        found = measure(X, y, n_rows)
        for row, learner in enumerate(LEARNERS):
            points = [
                (choose, method, *mean_of(found[learner, choose, method]))
                for choose, method in METHODS
                if found[learner, choose, method]
            ]
            draw(axes[row, column], points)
            for method in dict.fromkeys(method for _, method in METHODS):
                cells = [
                    cell(found[learner, choose, method]) for choose in (by_scikit_learn, ours)
                ]
                print(f"| {name}, {n_rows:,} | {learner} | {method} | {' | '.join(cells)} |")
            sys.stdout.flush()
            axes[row, 0].set_ylabel(f"{learner}\nregret, points")
        axes[0, column].set_title(f"{name}, {n_rows:,} rows")
        axes[-1, column].set_xlabel("seconds for 32 values")
        summary.append(found)
    explain(figure)
    summarise(summary)
    figure.savefig(figure_file, metadata={"Date": None})


def summarise(sets):
    """Print for each method the mean regret of all sets and learners, and the time it takes.

    Times are divided by that of scikit-learn's hold-out; the mean is a geometric one.
    """
    print("\n| method | scikit-learn: regret | time | this package: regret | time |")
    print("|---|---|---|---|---|")
    base = {
        (number, learner): np.median(
            np.transpose(found[learner, by_scikit_learn, "hold-out 20 %"])[1]
        )
        for number, found in enumerate(sets)
        for learner in LEARNERS
    }
    for method in dict.fromkeys(method for _, method in METHODS):
        cells = []
        for choose in (by_scikit_learn, ours):
            regrets, times = [], []
            for (number, learner), seconds_of_base in base.items():
                pairs = sets[number][learner, choose, method]
                if pairs:
                    regret, seconds = np.transpose(pairs)
                    regrets.append(regret)
                    times.append(np.median(seconds) / seconds_of_base)
            if len(times) < len(base):  # it was left out somewhere
                cells.append("- | -")
                continue
            error = 100 * np.sqrt(sum(one.var() / len(one) for one in regrets)) / len(regrets)
            mean = 100 * np.mean([one.mean() for one in regrets])
            time = np.exp(np.mean(np.log(times)))
            cells.append(f"{mean:.2f} ± {error:.2f} | {time:.3g}")
        print(f"| {method} | {' | '.join(cells)} |")


def mean_of(pairs):
    """Return the median seconds, and the mean regret in points with its standard error."""
    regrets, seconds = np.transpose(pairs)
    error = 100 * regrets.std() / np.sqrt(len(regrets))
    return np.median(seconds), 100 * regrets.mean(), error


def cell(pairs):
    if not pairs:
        return "- | -"
    seconds, regret, error = mean_of(pairs)
    return f"{regret:.2f} ± {error:.2f} | {seconds:.3g}"


def draw(axis, points):
    """Draw the regret of each method against its seconds: (choose, method, seconds, y, error)."""
    for choose, method, seconds, regret, error in points:
        colour = "#D55E00" if choose is by_scikit_learn else "#0072B2"
        style = {"color": colour, "marker": MARKERS[method], "ms": 6, "lw": 1, "mfc": "none"}
        axis.errorbar(seconds, regret, error, **style)
    axis.set(xscale="log", xlim=(5e-3, 30))
    axis.set_ylim(bottom=0)


def explain(figure):
    """Write below the panels what colours and markers mean."""
    kinds = {"scikit-learn, fit by fit": "#D55E00", "this package": "#0072B2"}
    handles = [plt.Line2D([], [], color=one, lw=4, label=kind) for kind, one in kinds.items()]
    for method, marker in MARKERS.items():
        style = {"color": "grey", "marker": marker, "ls": "", "mfc": "none"}
        handles.append(plt.Line2D([], [], label=method, **style))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    main()
