"""Measure the models that people use beside scikit-learn's searches.

    OMP_NUM_THREADS=1 python benchmarks/converged.py [RUNS [WORK ...]]

WORK is a name in WORKS, or the first part of one (default: all of them). The output is a Markdown
table of medians of RUNS runs (default 3). The programs take turns, with one thread of BLAS and
OpenMP, on rows that are in memory. datasets.py describes the data; the folds are ranges of rows.

* Ours is one call of ``tree_cross_validate_many`` with its checks and copies.
* ``GridSearchCV`` is measured by 6 of its fits with their scores, spread over the grid and over
  the folds; the mean is multiplied by the number of values and folds. A program that has taken a
  minute is not run again.
* ``LogisticRegressionCV`` and ``LassoCV`` run whole. The paths of ``LassoCV`` alone are its time
  without that of its last fit.
* *Difference* is the largest difference between our score of a fold and theirs, where theirs is
  a fit that has converged (``tol=1e-12`` in a solver that reaches it) of the 6 fits.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from functools import partial
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
from sklearn.compose import make_column_selector
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LassoCV
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import LogisticRegressionCV
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold
from sklearn.model_selection import ParameterGrid
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import scale
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.rows.data import take_rows

ENOUGH = 60  # seconds of one program that is not run again
N_FITS = 6
CS = np.geomspace(1e-4, 1e2, 10)

Rows = tuple[Any, np.ndarray]


@dataclass
class Work:
    """A grid of an estimator on some rows.

    ``must`` and ``aim`` are by opponent; ``converged`` are the parameters of a fit that has.
    """

    load: Callable[[], Rows]
    estimator: Any
    grid: Mapping[str, Any]
    scoring: str
    must: Mapping[str, tuple[float, float]]
    k: int = 10
    converged: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def models(self) -> list[Any]:
        return [clone(self.estimator).set_params(**point) for point in ParameterGrid(self.grid)]


def of_covertype(n_rows: int, n_classes: int = 2) -> Callable[[], Rows]:
    def load() -> Rows:
        X, y, _ = datasets.covertype(as_is=n_classes > 2)
        return scale(X[:n_rows]), y[:n_rows]

    return load


def scaled(load: Callable[[], datasets.DataSet], n_rows: int | None = None) -> Callable[[], Rows]:
    def load_scaled() -> Rows:
        X, y, _ = load()
        return scale(X[:n_rows]), y[:n_rows]

    return load_scaled


def plain(load: Callable[..., datasets.DataSet], **options: Any) -> Callable[[], Rows]:
    return lambda: load(**options)[:2]


def digits() -> Rows:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def flights() -> Rows:
    """Return rows with the largest alpha of the lasso, 1."""
    X, y, _ = datasets.nycflights13()
    X, y = scale(X), y - y.mean()
    return X, y / np.abs(X.T @ y).max() * len(y)


def of_table(**options: Any) -> Pipeline:
    encoder = OneHotEncoder(handle_unknown="ignore", **options)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    steps = make_column_transformer(
        (encoder, make_column_selector(dtype_include=object)),
        (numbers, make_column_selector(dtype_include=float)),
    )
    return make_pipeline(steps, Ridge())


# Its rows are sparse, so that theirs are solved by conjugate gradients.
TABLE, DENSE_TABLE = of_table(), of_table(sparse_output=False)
TIGHT_RIDGE = {"ridge__tol": 1e-12}
LOGISTIC = LogisticRegression()
TIGHT = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 1000}
SEARCH = "GridSearchCV"
NEIGHBORS = {"n_neighbors": range(1, 31), "weights": ["uniform", "distance"]}
ONE_VALUE = {"cross_val_score": (1.0, 2.0)}
PATHS = "paths of LassoCV"
GRAM = {"tol": 1e-14, "max_iter": 1_000_000, "precompute": True}

WORKS = {
    "logistic-covertype": Work(
        of_covertype(581_012),
        LOGISTIC,
        {"C": CS},
        "neg_log_loss",
        {SEARCH: (60, 150), "LogisticRegressionCV": (10, 25)},
        converged=TIGHT,
    ),
    "logistic-magic": Work(
        scaled(datasets.magic),
        LOGISTIC,
        {"C": CS},
        "neg_log_loss",
        {SEARCH: (20, 60)},
        converged=TIGHT,
    ),
    "logistic-higgs": Work(
        scaled(datasets.higgs),
        LOGISTIC,
        {"C": CS},
        "neg_log_loss",
        {SEARCH: (20, 60)},
        converged=TIGHT,
    ),
    "logistic-study": Work(
        of_covertype(100_000),
        LOGISTIC,
        {"C": np.geomspace(1e-4, 1e2, 64)},
        "neg_log_loss",
        {"cross_val_score in a study": (20, 60)},
        converged=TIGHT,
    ),
    "multinomial-digits": Work(
        digits, LOGISTIC, {"C": CS}, "neg_log_loss", {SEARCH: (8, 30)}, converged=TIGHT
    ),
    "multinomial-covertype": Work(
        of_covertype(50_000, n_classes=7),
        LOGISTIC,
        {"C": CS},
        "neg_log_loss",
        {SEARCH: (8, 30)},
        converged=TIGHT,
    ),
    "poisson": Work(
        plain(datasets.bike),
        PoissonRegressor(),
        {"alpha": np.geomspace(1e-6, 10, 20)},
        "neg_mean_poisson_deviance",
        {SEARCH: (15, 40)},
        converged=TIGHT,
    ),
    "svc": Work(
        of_covertype(100_000),
        LinearSVC(),
        {"C": CS},
        "accuracy",
        {SEARCH: (10, 40)},
        converged={"dual": False, "tol": 1e-12, "max_iter": 100_000},
    ),
    "sparse-news": Work(
        plain(datasets.newsgroups),
        LOGISTIC,
        {"C": np.geomspace(1e-2, 1e3, 8)},
        "neg_log_loss",
        {SEARCH: (3, 8)},
        k=5,
        converged={"tol": 1e-9, "max_iter": 5000},
    ),
    "sparse-news20": Work(
        plain(datasets.newsgroups, as_is=True),
        LOGISTIC,
        {"C": np.geomspace(1e-2, 1e3, 8)},
        "neg_log_loss",
        {SEARCH: (3, 8)},
        k=5,
        converged={"tol": 1e-8, "max_iter": 5000},
    ),
    "sparse-w8a": Work(
        plain(datasets.w8a),
        LOGISTIC,
        {"C": np.geomspace(1e-3, 1e2, 8)},
        "neg_log_loss",
        {SEARCH: (3, 8)},
        k=5,
        converged=TIGHT,
    ),
    "sparse-a9a": Work(
        plain(datasets.a9a),
        LOGISTIC,
        {"C": np.geomspace(1e-3, 1e2, 8)},
        "neg_log_loss",
        {SEARCH: (3, 8)},
        k=5,
        converged=TIGHT,
    ),
    "lasso-flights": Work(
        flights,
        Lasso(),
        {"alpha": np.geomspace(1, 1e-3, 100)},
        "r2",
        {SEARCH: (300, 1000), "LassoCV": (8, 20), PATHS: (3, 6)},
        converged=GRAM,
    ),
    "one-lasso": Work(
        scaled(datasets.protein, 500),
        Lasso(),
        {"alpha": [0.1]},
        "r2",
        ONE_VALUE,
        k=5,
        converged=GRAM,
    ),
    "one-elastic-net": Work(
        scaled(datasets.protein, 500),
        ElasticNet(),
        {"alpha": [0.1]},
        "r2",
        ONE_VALUE,
        k=5,
        converged=GRAM,
    ),
    "one-least-squares": Work(
        scaled(datasets.protein, 500), LinearRegression(), {}, "r2", ONE_VALUE, k=5
    ),
    **{
        f"table-{name}": Work(
            plain(load),
            table,
            {"ridge__alpha": np.geomspace(1e-3, 1e4, 30)},
            "r2",
            {SEARCH: (100, 200)},
            converged=TIGHT_RIDGE,
        )
        for name, load, table in (
            ("flights", datasets.flights_table, TABLE),
            ("flights-dense", datasets.flights_table, DENSE_TABLE),
            ("bike", datasets.bike_table, TABLE),
            ("bike-dense", datasets.bike_table, DENSE_TABLE),
        )
    },
    "one-table": Work(
        lambda: tuple(part[:500] for part in datasets.bike_table()[:2]),
        TABLE,
        {"ridge__alpha": [1.0]},
        "r2",
        ONE_VALUE,
        k=5,
        converged=TIGHT_RIDGE,
    ),
    "neighbors-pol": Work(
        plain(datasets.pol), KNeighborsRegressor(), NEIGHBORS, "r2", {SEARCH: (40, 40)}
    ),
    "neighbors-digits": Work(
        digits, KNeighborsClassifier(), NEIGHBORS, "accuracy", {SEARCH: (40, 40)}
    ),
    "one-neighbors": Work(
        lambda: tuple(part[:500] for part in plain(datasets.pol)()),
        KNeighborsRegressor(),
        {"n_neighbors": [5]},
        "r2",
        ONE_VALUE,
        k=5,
    ),
    "one-logistic": Work(
        scaled(datasets.magic, 500),
        LOGISTIC,
        {"C": [1.0]},
        "neg_log_loss",
        ONE_VALUE,
        k=5,
        converged=TIGHT,
    ),
    "one-poisson": Work(
        lambda: tuple(part[:500] for part in plain(datasets.bike)()),
        PoissonRegressor(),
        {"alpha": [1.0]},
        "neg_mean_poisson_deviance",
        ONE_VALUE,
        k=5,
        converged=TIGHT,
    ),
    "one-svc": Work(
        scaled(datasets.magic, 500),
        LinearSVC(),
        {"C": [1.0]},
        "accuracy",
        ONE_VALUE,
        k=5,
        converged={"dual": False, "tol": 1e-12, "max_iter": 100_000},
    ),
    "one-multinomial": Work(
        lambda: tuple(part[:500] for part in digits()),
        LOGISTIC,
        {"C": [1.0]},
        "neg_log_loss",
        ONE_VALUE,
        k=5,
        converged=TIGHT,
    ),
}


@dataclass
class Times:
    """The seconds of one program, by run."""

    run: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)

    def once(self) -> None:
        if self.seconds and sum(self.seconds) > ENOUGH:
            return
        began = perf_counter()
        estimate = self.run()
        seconds = perf_counter() - began
        self.seconds.append(estimate if isinstance(estimate, float) else seconds)


def sample(work: Work) -> list[tuple[int, int]]:
    """Return the values and folds of the fits that stand for a search."""
    n_values = len(work.models)
    values = np.linspace(0, n_values - 1, N_FITS).round().astype(int)
    folds = np.linspace(0, work.k - 1, N_FITS).round().astype(int)
    return list(zip(values.tolist(), folds.tolist(), strict=True))


def fold(work: Work, X: Any, y: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    return list(KFold(work.k).split(X, y))[number]


def search(work: Work, X: Any, y: np.ndarray) -> float:
    """Return the time of a search by that of a few of its fits."""
    scorer, seconds = get_scorer(work.scoring), 0.0
    for value, number in sample(work):
        train, test = fold(work, X, y, number)
        began = perf_counter()
        model = clone(work.models[value]).fit(take_rows(X, train), y[train])
        scorer(model, take_rows(X, test), y[test])
        seconds += perf_counter() - began
    return seconds / N_FITS * len(work.models) * work.k


def search_of_path(work: Work, X: Any, y: np.ndarray) -> None:
    # Its path starts each C at the last one.
    LogisticRegressionCV(
        Cs=work.grid["C"],
        cv=KFold(work.k),
        scoring=work.scoring,
        refit=False,
        l1_ratios=(0,),
        use_legacy_attributes=False,
    ).fit(X, y)


def lasso_path(work: Work, X: Any, y: np.ndarray) -> LassoCV:
    return LassoCV(alphas=work.grid["alpha"], cv=KFold(work.k)).fit(X, y)


def lasso_path_alone(work: Work, X: Any, y: np.ndarray) -> float:
    """Return the time without the last fit."""
    began = perf_counter()
    model = lasso_path(work, X, y)
    middle = perf_counter()
    Lasso(model.alpha_).fit(X, y)
    return 2 * middle - began - perf_counter()


def all_values(work: Work, X: Any, y: np.ndarray) -> np.ndarray:
    results = tree_cross_validate_many(work.models, X, y, cv=KFold(work.k), scoring=work.scoring)
    methods = {result.method for result in results}
    if "fit" in methods:
        print(f"    fits: {next(result.reason for result in results if result.method == 'fit')}")
    return np.array([result.test_score for result in results])


def trials(objective: Callable[[optuna.Trial], float], n_trials: int) -> None:
    sampler = optuna.samplers.TPESampler(seed=0)
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials)


def study(work: Work, X: Any, y: np.ndarray) -> None:
    space = {"C": FloatDistribution(CS[0], CS[-1], log=True)}
    options = {"cv": KFold(work.k), "scoring": work.scoring}
    objective = treecv_objective(work.estimator, X, y, param_distributions=space, **options)
    trials(objective, len(work.models))


def study_of_fits(work: Work, X: Any, y: np.ndarray) -> float:
    def objective(trial: optuna.Trial) -> float:
        model = clone(work.estimator).set_params(C=trial.suggest_float("C", 1e-4, 1e2, log=True))
        return float(cross_val_score(model, X, y, cv=KFold(work.k), scoring=work.scoring).mean())

    began = perf_counter()
    trials(objective, N_FITS)
    return (perf_counter() - began) / N_FITS * len(work.models)


def one_value(work: Work, X: Any, y: np.ndarray) -> None:
    cross_val_score(work.models[0], X, y, cv=KFold(work.k), scoring=work.scoring)


# They return an estimate of their time, or nothing where it is the time that they take.
OPPONENTS: dict[str, Callable[[Work, Any, np.ndarray], Any]] = {
    SEARCH: search,
    "LogisticRegressionCV": search_of_path,
    "LassoCV": lasso_path,
    PATHS: lasso_path_alone,
    "cross_val_score": one_value,
    "cross_val_score in a study": study_of_fits,
}


def difference(work: Work, X: Any, y: np.ndarray) -> float:
    """Return the largest difference between our scores and those of fits that have converged."""
    ours, scorer, most = all_values(work, X, y), get_scorer(work.scoring), 0.0
    for value, number in sample(work):
        train, test = fold(work, X, y, number)
        model = clone(work.models[value]).set_params(**work.converged)
        model.fit(take_rows(X, train), y[train])
        most = max(most, abs(scorer(model, take_rows(X, test), y[test]) - ours[value, number]))
    return most


def main(runs: str = "3", *names: str) -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| work | ours, s | opponent | theirs, s | ratio | must | aim | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for name, work in WORKS.items():
        if names and not name.startswith(names):
            continue
        X, y = work.load()
        with threadpool_limits(1):
            ours = study if name.endswith("-study") else all_values
            times = {"ours": Times(partial(ours, work, X, y))}
            times |= {name: Times(partial(OPPONENTS[name], work, X, y)) for name in work.must}
            for _ in range(int(runs)):
                for one in times.values():
                    one.once()
            far = difference(work, X, y)
        seconds = median(times["ours"].seconds)
        for opponent, (must, aim) in work.must.items():
            theirs = median(times[opponent].seconds)
            print(
                f"| {name} | {seconds:.3f} | {opponent} | {theirs:.3f} | {theirs / seconds:.1f} "
                f"| {must} | {aim} | {far:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
