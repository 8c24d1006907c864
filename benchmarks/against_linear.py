"""Compare our linear learners, by default and tuned, with scikit-learn's on withheld rows.

    OMP_NUM_THREADS=1 python benchmarks/against_linear.py FOLDER [NAME ...]

A name is that of a function below; without names, all data sets that are not in the folder yet are
run. The results of each are kept in FOLDER/NAME.json, and the output is a Markdown table of all
that are there.

At most 50,000 rows are used, and 30 % of them are withheld. Columns of numbers are standardised
by the training rows, and categories are one-hot. A cell has the loss of the withheld rows (the
share of wrong classes, 1 - average precision for w8a, or the squared error), and in brackets how
much worse than the reference it is, in standard errors of the paired difference: untuned learners
and those tuned over ``alpha`` beside the untuned reference, and those tuned over ``n_epochs`` too
beside the tuned reference. "Tuned" is 20 trials of TPE on five folds of the training rows.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from scipy.sparse import issparse
from sklearn.base import is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import shuffle

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import treecv_objective

MOST_ROWS = 50_000
N_TRIALS = 20
ALPHA = FloatDistribution(1e-8, 1.0, log=True)
N_EPOCHS = IntDistribution(5, 50, log=True)

# X, y, and how many columns are numbers, the first ones.
Table = tuple[Any, np.ndarray, int]


def _file(name: str) -> Any:
    with np.load(datasets.file_of(f"{name}.npz")) as file:
        return {key: file[key] for key in file.files}


def _numbers(name: str) -> Table:
    file = _file(name)
    X, y = shuffle(file["X"].astype(float), file["y"].astype(float), random_state=0)
    return X, y, X.shape[1]


def bikes() -> Table:
    file = _file("bike_sharing_hour")
    names = [str(name) for name in file["feature_names"]]
    categories = ["season", "mnth", "hr", "weekday", "weathersit"]
    X = file["X"].astype(float)
    numbers = [X[:, [names.index(name)]] for name in names if name not in categories]
    one_hot = []
    for name in categories:
        column = X[:, [names.index(name)]]
        one_hot.append((column == np.unique(column)).astype(float))
    X, y = shuffle(np.hstack([*numbers, *one_hot]), file["y"].astype(float), random_state=0)
    return X, y, len(numbers)


def flights() -> Table:
    X, y, _ = datasets.nycflights13(as_is=True)
    return X, y, 9


def elevators() -> Table:
    return _numbers("elevators")


def kin8nm() -> Table:
    return _numbers("kin8nm")


def pol() -> Table:
    return _numbers("pol")


def kin40k() -> Table:
    return _numbers("kin40k")


def magic() -> Table:
    X, y, _ = datasets.magic()
    return X, y, X.shape[1]


def higgs() -> Table:
    X, y, n_columns = _numbers("higgs_7k5")
    return X, y.astype(int), n_columns


def covertype() -> Table:
    X, y, _ = datasets.covertype(as_is=True)
    return X, (y == 2).astype(int), 10


def a9a() -> Table:
    X, y, _ = datasets.a9a()
    return X, y, 0


def w8a() -> Table:
    X, y, _ = datasets.w8a()
    return X, y, 0


def newsgroups() -> Table:
    X, y, _ = datasets.newsgroups()
    return X, y, 0


SETS = (
    *(bikes, flights, elevators, kin8nm, pol, kin40k),
    *(magic, higgs, covertype, a9a, w8a, newsgroups),
)


class Split:
    """A data set, of which 30 % is withheld."""

    def __init__(self, load: Callable[[], Table], seed: int = 0) -> None:
        X, y, n_numbers = load()
        X, y = X[:MOST_ROWS], y[:MOST_ROWS]
        X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=seed)
        if not issparse(X):
            X, X_test = X.copy(), X_test.copy()
            scaler = StandardScaler().fit(X[:, :n_numbers])
            for rows in (X, X_test):
                rows[:, :n_numbers] = scaler.transform(rows[:, :n_numbers])
        self.X, self.y, self.X_test, self.y_test = X, y, X_test, y_test
        self.is_ranked = load.__name__ == "w8a"

    def outputs(self, model: Any) -> np.ndarray:
        """Return what the loss takes: decisions, the rows' own errors, or squared errors."""
        if self.is_ranked:
            return model.decision_function(self.X_test)
        predicted = model.predict(self.X_test)
        if is_classifier(model):
            return (predicted != self.y_test).astype(float)
        return (predicted - self.y_test) ** 2

    def loss(self, outputs: np.ndarray) -> float:
        if self.is_ranked:
            return 1 - float(average_precision_score(self.y_test, outputs))
        return float(outputs.mean())

    def worse(self, outputs: np.ndarray, than: np.ndarray) -> float:
        """Return the difference of the losses, in standard errors."""
        difference = self.loss(outputs) - self.loss(than)
        if self.is_ranked:
            rng, n = np.random.default_rng(0), len(self.y_test)
            drawn = []
            for _ in range(50):
                rows = rng.integers(n, size=n)
                y = self.y_test[rows]
                drawn.append(
                    average_precision_score(y, than[rows])
                    - average_precision_score(y, outputs[rows])
                )
            error = float(np.std(drawn))
        else:
            error = float(np.std(outputs - than, ddof=1)) / len(than) ** 0.5
        return difference / error if error > 0 else 0.0


def tuned(split: Split, estimator: Any, space: Any = "auto") -> Any:
    """Return the best of 20 trials, fitted on the training rows."""
    scoring = "average_precision" if split.is_ranked else None
    objective = treecv_objective(
        estimator, split.X, split.y, param_distributions=space, scoring=scoring, cv=5
    )
    study = optuna.create_study(
        direction=objective.direction, sampler=optuna.samplers.TPESampler(seed=0)
    )
    study.optimize(objective, n_trials=N_TRIALS)
    return objective.best_estimator(study)


def models(split: Split) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return what to compare: by name, beside what, and how a fitted model is made."""
    X, y = split.X, split.y
    if split.y.dtype.kind == "f":
        reference, sgd = Ridge(), SGDRegressor(random_state=0)
        ours = {"SGD": AveragedSGDRegressor, "SVRG": StreamingSVRGRegressor}
    else:
        reference, sgd = LogisticRegression(), SGDClassifier(random_state=0)
        ours = {"SGD": AveragedSGDClassifier, "SVRG": StreamingSVRGClassifier}
    made: dict[str, tuple[str, Callable[[], Any]]] = {
        "untuned": ("", lambda: reference.fit(X, y)),
        "tuned": ("untuned", lambda: tuned(split, reference)),
        "SGD*()": ("untuned", lambda: sgd.fit(X, y)),
    }
    for name, kind in ours.items():

        def default(n_epochs: int, kind: Any = kind) -> Any:
            return kind(random_state=0, n_epochs=n_epochs).fit(X, y)

        made |= {
            f"{name}, 1 pass": ("untuned", lambda default=default: default(1)),
            f"{name}, 5 passes": ("untuned", lambda default=default: default(5)),
            f"{name}, alpha tuned": (
                "untuned",
                lambda kind=kind: tuned(split, kind(), {"alpha": ALPHA}),
            ),
            f"{name}, n_epochs too": (
                "tuned",
                lambda kind=kind: tuned(split, kind(), {"alpha": ALPHA, "n_epochs": N_EPOCHS}),
            ),
        }
    return made


def run(load: Callable[[], Table]) -> dict[str, dict[str, float]]:
    """Return the loss, the standard errors and the seconds of each model."""
    split = Split(load)
    found: dict[str, dict[str, float]] = {}
    outputs: dict[str, np.ndarray] = {}
    for name, (beside, make) in models(split).items():
        began = perf_counter()
        model = make()
        seconds = perf_counter() - began
        outputs[name] = split.outputs(model)
        found[name] = {"loss": split.loss(outputs[name]), "seconds": seconds}
        if beside:
            found[name]["worse"] = split.worse(outputs[name], outputs[beside])
        print(load.__name__, name, found[name], file=sys.stderr, flush=True)
    return found


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")
    folder, asked = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(exist_ok=True)
    results = {}
    for load in SETS:
        path = folder / f"{load.__name__}.json"
        if load.__name__ in asked or not (asked or path.exists()):
            path.write_text(json.dumps(run(load), indent=1))
        if path.exists():
            results[load.__name__] = json.loads(path.read_text())
    names = [*results.values()][0]
    print(f"| data | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for name, found in results.items():
        cells = []
        for one in found.values():
            worse = f" ({one['worse']:+.1f})" if "worse" in one else ""
            cells.append(f"{one['loss']:.4g}{worse} {one['seconds']:.2g} s")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
