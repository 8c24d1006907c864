"""The first trees of an ensemble that grows say to the bit what a fit with fewer trees says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import boosters
import numpy as np
from pairs import pairs
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.ensemble import BaggingClassifier
from sklearn.ensemble import BaggingRegressor
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import kind_of

N_ROWS, N_TRAINED, N_COLUMNS = 240, 170, 8

# The trees after each of the calls of ``grow``, and the numbers of trees that are asked about.
ENDS = 4, 6, 12
SIZES = 1, 3, 4, 5, 7, 12

METHODS = "predict", "predict_proba", "decision_function"

Make = Callable[..., Any]


lightgbm = partial(boosters.lightgbm, random_state=5, num_leaves=7)
xgboost = partial(boosters.xgboost, random_state=5)
catboost = partial(boosters.catboost, random_seed=5)


def hist(kind: str = "Classifier", **options: Any) -> Any:
    of_kind = {"Classifier": HistGradientBoostingClassifier}
    options = {"max_leaf_nodes": 7, "random_state": 5} | options
    return of_kind.get(kind, HistGradientBoostingRegressor)(**options)


def seeded(kind: type, **options: Any) -> Any:
    return kind(random_state=5, **options)


SAMPLED = {"subsample": 0.6, "subsample_freq": 1}

# Where a class is drawn by its weight: the classes are "a", "b" and "c".
WEIGHTS = {"a": 3.0, "b": 0.5, "c": 1.0}

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "catboost": catboost,
    "catboost that samples": lambda: catboost(
        bootstrap_type="Bernoulli", subsample=0.5, rsm=0.5, random_strength=4.0
    ),
    "catboost ordered": lambda: catboost(boosting_type="Ordered", border_count=9),
    "catboost by leaves": lambda: catboost(grow_policy="Lossguide", auto_class_weights="Balanced"),
    "lightgbm": lightgbm,
    "lightgbm that samples": lambda: lightgbm(colsample_bytree=0.5, **SAMPLED),
    "lightgbm dart": lambda: lightgbm(boosting_type="dart", drop_rate=0.5, skip_drop=0.2),
    "lightgbm rf": lambda: lightgbm(boosting_type="rf", **SAMPLED),
    "lightgbm goss": lambda: lightgbm(data_sample_strategy="goss", learning_rate=0.3),
    "lightgbm extra trees": lambda: lightgbm(extra_trees=True, class_weight="balanced"),
    "lightgbm weights": lambda: lightgbm(class_weight=WEIGHTS, linear_tree=True),
    "lightgbm few splits": lambda: lightgbm(min_child_samples=80, **SAMPLED),
    "lightgbm no split": lambda: lightgbm(min_child_samples=150),
    "lightgbm few bins": lambda: lightgbm(max_bin=7, importance_type="gain", metric="None"),
    "lightgbm one against all": lambda: lightgbm(objective="multiclassova", path_smooth=1.0),
    "xgboost": xgboost,
    "xgboost that samples": lambda: xgboost(subsample=0.6, colsample_bytree=0.5),
    "xgboost exact": lambda: xgboost(tree_method="exact"),
    "xgboost approx": lambda: xgboost(tree_method="approx", grow_policy="lossguide", max_bin=9),
    "xgboost forests": lambda: xgboost(num_parallel_tree=3, subsample=0.5),
    "xgboost base": lambda: xgboost(eval_metric="auc", missing=np.nan, max_bin=16, gamma=0.1),
    "hist": hist,
    "hist that samples": lambda: hist(max_features=0.5, class_weight="balanced"),
    "hist that stops": lambda: hist(early_stopping=True, n_iter_no_change=2, learning_rate=0.8),
    "hist that stops by training scores": lambda: hist(
        early_stopping=True, validation_fraction=None, tol=0.01, n_iter_no_change=3
    ),
    "gradient": lambda: seeded(GradientBoostingClassifier, n_estimators=40),
    "gradient that samples": lambda: seeded(
        GradientBoostingClassifier, n_estimators=40, subsample=0.5, max_features=0.5
    ),
    "forest": lambda: seeded(RandomForestClassifier),
    "forest of samples": lambda: seeded(
        RandomForestClassifier, max_samples=0.5, class_weight=WEIGHTS, criterion="log_loss"
    ),
    "forest with oob scores": lambda: seeded(RandomForestClassifier, oob_score=True, max_depth=3),
    "extra trees": lambda: seeded(ExtraTreesClassifier, class_weight="balanced"),
    "extra trees of samples": lambda: seeded(
        ExtraTreesClassifier, bootstrap=True, class_weight="balanced_subsample"
    ),
    "bagging": lambda: seeded(BaggingClassifier, max_features=0.5, max_samples=0.7),
    "bagging of features": lambda: seeded(
        BaggingClassifier, bootstrap=False, bootstrap_features=True
    ),
}

REGRESSORS: dict[str, Callable[[], Any]] = {
    "catboost": lambda: catboost("Regressor"),
    "catboost without average": lambda: catboost("Regressor", boost_from_average=False),
    "catboost poisson": lambda: catboost("Regressor", loss_function="Poisson", rsm=0.5),
    "catboost quantile": lambda: catboost("Regressor", loss_function="Quantile:alpha=0.7"),
    "lightgbm": lambda: lightgbm("Regressor"),
    "lightgbm linear": lambda: lightgbm("Regressor", linear_tree=True, linear_lambda=0.1),
    "lightgbm poisson": lambda: lightgbm("Regressor", objective="poisson", **SAMPLED),
    "lightgbm quantile": lambda: lightgbm("Regressor", objective="quantile", alpha=0.7),
    "lightgbm l1 dart": lambda: lightgbm("Regressor", objective="l1", boosting_type="dart"),
    "lightgbm rf": lambda: lightgbm("Regressor", boosting_type="rf", **SAMPLED),
    "xgboost": lambda: xgboost("Regressor"),
    "xgboost absolute": lambda: xgboost("Regressor", objective="reg:absoluteerror"),
    "xgboost base": lambda: xgboost("Regressor", base_score=3.0, tree_method="exact"),
    "xgboost poisson": lambda: xgboost("Regressor", objective="count:poisson", max_leaves=5),
    "xgboost forests": lambda: xgboost(
        "Regressor", num_parallel_tree=4, subsample=0.5, colsample_bynode=0.5
    ),
    "hist": lambda: hist("Regressor", loss="absolute_error"),
    "hist poisson": lambda: hist("Regressor", loss="poisson", max_features=0.5),
    "hist quantile that stops": lambda: hist(
        "Regressor", loss="quantile", quantile=0.3, early_stopping=True, n_iter_no_change=2
    ),
    "gradient": lambda: seeded(
        GradientBoostingRegressor, loss="huber", subsample=0.7, n_estimators=40
    ),
    "forest": lambda: seeded(RandomForestRegressor, max_features=0.5),
    "forest of absolute errors": lambda: seeded(
        RandomForestRegressor, criterion="absolute_error", max_depth=2
    ),
    "extra trees": lambda: seeded(ExtraTreesRegressor),
    "bagging": lambda: seeded(BaggingRegressor, max_samples=0.5, max_features=0.7),
}


def rows_of(n_classes: int, has_missing: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with missing values, and noisy classes or counts (for n_classes=0)."""
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)).round(2)
    X[:, 5] = rng.integers(0, 3, N_ROWS)
    X[:, 6] = rng.random(N_ROWS) < 0.03  # of so few ones, LightGBM leaves the column out
    signal = X[:, 0] - X[:, 1] * X[:, 2] + 0.5 * X[:, 5] + rng.normal(size=N_ROWS)
    if has_missing:
        X[::7, 3] = np.nan
    if n_classes == 0:
        return X, rng.poisson(np.exp(0.5 * signal)).astype(float)
    cuts = np.quantile(signal, np.arange(1, n_classes) / n_classes)
    return X, np.searchsorted(cuts, signal)


def taken_of(estimator: Any, X: Any, y: np.ndarray, weights: np.ndarray | None) -> FoldRows:
    """Return the rows of one fold, whose classes have names where the library takes them."""
    if is_classifier(estimator) and not type(estimator).__name__.startswith("XGB"):
        y = np.array(["a", "b", "c"])[y]
    X_of = X.iloc if hasattr(X, "iloc") else X
    classes = np.unique(y) if is_classifier(estimator) else None
    if weights is not None:
        weights = weights[:N_TRAINED]
    return FoldRows(X_of[:N_TRAINED], y[:N_TRAINED], weights, X_of[N_TRAINED:], classes)


def grown(estimator: Any, taken: FoldRows) -> Growth:
    """Return an ensemble that has no trees yet."""
    kind = kind_of(estimator)
    assert kind is not None and kind.why_not(estimator, ()) == ""
    settings = kind.settings(estimator, kind.facts(taken))
    return kind(estimator, kind.prepare(estimator, settings, taken).rows, lambda: taken)


def own_fit(estimator: Any, taken: FoldRows, n_trees: int) -> Any:
    """Return the fit of an ensemble of so many trees."""
    kind = kind_of(estimator)
    assert kind is not None
    options = {} if taken.weights is None else {"sample_weight": taken.weights}
    fitted = clone(estimator).set_params(**{kind.size: n_trees})
    return fitted.fit(taken.X, taken.y, **options)


def check(estimator: Any, taken: FoldRows) -> None:
    """Grow an ensemble, and compare what it says with fits: while it grows, and later."""
    fits = {n_trees: own_fit(estimator, taken, n_trees) for n_trees in SIZES}
    methods = [one for one in METHODS if hasattr(fits[1], one)]
    said = {
        (n_trees, method): getattr(fitted, method)(taken.test)
        for n_trees, fitted in fits.items()
        for method in methods
    }
    growth = grown(estimator, taken)

    def compare(n_trees: int, method: str) -> None:
        found, expected = growth.predict(method, n_trees), said[n_trees, method]
        words = f"{method} after {n_trees} of {growth.n_trees} trees"
        assert found.dtype == expected.dtype, words
        np.testing.assert_array_equal(found, expected, err_msg=words)

    n_seen = 0
    for end in ENDS:
        for n_trees in growth.grow(end):
            n_seen += 1
            assert n_trees == growth.n_trees == n_seen
            if n_trees in SIZES:
                for method in methods:
                    compare(n_trees, method)
        for method in methods:  # now further trees follow
            compare(3, method)
    assert n_seen == ENDS[-1]
    for method in methods:
        for n_trees in (7, 4, 5, 12, 1):  # neither rising nor falling
            compare(n_trees, method)


def row_weights(is_weighted: bool) -> np.ndarray | None:
    return np.random.default_rng(3).random(N_ROWS) + 0.1 if is_weighted else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_classes", "is_weighted"),
    [(name, 2 + number % 2, number % 2 == 0) for number, name in enumerate(CLASSIFIERS)],
)
@pytest.mark.filterwarnings("ignore:class_weight presets:UserWarning")
@pytest.mark.filterwarnings("ignore:Some inputs do not have OOB scores:UserWarning")
def test_first_trees_of_a_classifier_say_what_a_fit_says(
    name: str, n_classes: int, is_weighted: bool
) -> None:
    estimator = CLASSIFIERS[name]()
    if n_classes == 2 and getattr(estimator, "class_weight", None) == WEIGHTS:
        estimator.set_params(class_weight={"a": 3.0, "b": 0.5})
    if n_classes == 2 and getattr(estimator, "objective", None) == "multiclassova":
        estimator.set_params(objective="cross_entropy")
    X, y = rows_of(n_classes, has_missing=not name.startswith("gradient"))
    check(estimator, taken_of(estimator, X, y, row_weights(is_weighted)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_weighted"), [*zip(REGRESSORS, cycle([False, True]))])
def test_first_trees_of_a_regressor_say_what_a_fit_says(name: str, is_weighted: bool) -> None:
    estimator = REGRESSORS[name]()
    X, y = rows_of(0, has_missing=not name.startswith("gradient"))
    check(estimator, taken_of(estimator, X, y, row_weights(is_weighted)))


def frame_of(X: np.ndarray) -> pd.DataFrame:
    """Return rows as a frame with a categorical column; a category is in the test rows alone."""
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    names = np.array(["u", "v", "w", "x"])[X[:, 5].astype(int)]
    names[-3:] = "x"
    return frame.assign(x5=pd.Categorical(names, categories=["u", "v", "w", "x"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lightgbm,
        lambda: lightgbm(cat_smooth=1.0, min_data_per_group=5, max_cat_to_onehot=2, **SAMPLED),
        lambda: xgboost(enable_categorical=True),
        lambda: xgboost(enable_categorical=True, max_cat_to_onehot=1),
        lambda: hist(categorical_features="from_dtype"),
        lambda: catboost(cat_features=("x5",), one_hot_max_size=2),
        lambda: catboost(cat_features=("x5",), one_hot_max_size=9, model_size_reg=3.0),
    ],
    ids=[
        *("lightgbm", "lightgbm by category", "xgboost", "xgboost by category", "hist"),
        *("catboost", "catboost one-hot"),
    ],
)
def test_frames_with_categories(make: Make) -> None:
    X, y = rows_of(2)
    estimator = make()
    check(estimator, taken_of(estimator, frame_of(X), y, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lightgbm,
        xgboost,
        catboost,
        lambda: seeded(RandomForestClassifier),
        lambda: seeded(GradientBoostingClassifier, n_estimators=40),
        lambda: seeded(BaggingClassifier),
    ],
    ids=["lightgbm", "xgboost", "catboost", "forest", "gradient", "bagging"],
)
def test_sparse_rows(make: Make) -> None:
    X, y = rows_of(3, has_missing=False)
    X = sparse.csr_array(np.where(np.abs(X) < 0.8, 0, X).astype(np.float32))
    if type(make()).__name__ in ("CatBoostClassifier", "GradientBoostingClassifier"):
        X = sparse.csr_matrix(X)
    estimator = make()
    check(estimator, taken_of(estimator, X, y, None))


@pytest.mark.slow
@pytest.mark.parametrize("model", [LogisticRegression(), LinearSVC()], ids=str)
def test_ensembles_of_other_models(model: Any) -> None:
    X, y = rows_of(3, has_missing=False)
    estimator = seeded(BaggingClassifier, estimator=model, max_samples=0.5)
    check(estimator, taken_of(estimator, X, y, None))


@pytest.mark.parametrize("library", [lightgbm, xgboost, catboost])
def test_ensembles_that_grow_in_turns_over_the_same_bins(library: Make) -> None:
    """They differ in what bins do not depend on."""
    X, y = rows_of(3)
    others = {
        lightgbm: {"num_leaves": 15, "learning_rate": 0.3, "min_child_samples": 12, **SAMPLED},
        xgboost: {"max_depth": 5, "learning_rate": 0.1, "min_child_weight": 9, "subsample": 0.7},
        catboost: {"depth": 5, "learning_rate": 0.1, "l2_leaf_reg": 9.0, "random_strength": 3.0},
    }[library]
    columns = {catboost: {"rsm": 0.5}}.get(library, {"colsample_bytree": 0.5})
    estimators = [library(**columns), library(**others)]
    taken = taken_of(estimators[0], X, y, None)
    kind = kind_of(estimators[0])
    assert kind is not None
    facts = kind.facts(taken)
    settings, same = (kind.settings(one, facts) for one in estimators)
    assert repr(settings) == repr(same)
    prepared = kind.prepare(estimators[0], settings, taken).rows
    growths = [kind(one, prepared, lambda: taken) for one in estimators]
    for end in (3, 4, 9, 10):
        for growth, estimator in zip(growths, estimators, strict=True):
            for _ in growth.grow(end):
                pass
            fitted = own_fit(estimator, taken, end)
            found, expected = (
                growth.predict("predict_proba", end),
                fitted.predict_proba(taken.test),
            )
            np.testing.assert_array_equal(found, expected)


OBJECTIVES = {
    "Classifier": "binary cross_entropy cross_entropy_lambda multiclass multiclassova".split(),
    "Regressor": "regression l1 huber fair quantile mape poisson gamma tweedie".split(),
}

# Why no round, or only some rounds or classes, have a split.
NO_SPLIT = {
    "no column has enough rows": {"min_child_samples": 150},
    "some columns have enough rows": {"min_child_samples": 70},
    "no gain is large enough": {"min_split_gain": 1e9},
    "no leaf has enough weight": {"min_child_weight": 1e9},
    "some leaves have enough weight": {"min_child_weight": 15.0},
}


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(kind=OBJECTIVES, reason=NO_SPLIT, from_average=[True, False]))
def test_rounds_of_lightgbm_without_a_split(kind: str, reason: str, from_average: bool) -> None:
    for objective in OBJECTIVES[kind]:
        X, y = rows_of(0 if kind == "Regressor" else 3 if "multi" in objective else 2)
        if objective == "gamma":
            y = y + 1.0
        estimator = lightgbm(
            kind, objective=objective, boost_from_average=from_average, **NO_SPLIT[reason]
        )
        taken = taken_of(estimator, X, y, None)
        growth = grown(estimator, taken)
        for n_trees in growth.grow(6):
            if n_trees in (1, 2, 6):
                fitted = own_fit(estimator, taken, n_trees)
                for method in {"predict", "predict_proba"} & set(dir(fitted)):
                    np.testing.assert_array_equal(
                        growth.predict(method, n_trees),
                        getattr(fitted, method)(taken.test),
                        err_msg=f"{objective}: {method} after {n_trees} trees",
                    )


# Few different values, nearly all of them missing, or one value in nearly all rows.
RARE = {
    "missing but 9": lambda rng, n: np.where(np.arange(n) % 19 == 0, rng.normal(size=n), np.nan),
    "missing but 25, of one value": lambda _, n: np.where(np.arange(n) % 7 == 0, 1.0, np.nan),
    "missing 9": lambda rng, n: np.where(np.arange(n) % 19 == 0, np.nan, 1.0),
    "two rare ends": lambda rng, n: (np.arange(n) % 17 == 0) * 1.0 - (np.arange(n) % 15 == 1),
    "ones": lambda rng, n: (rng.random(n) < 0.08) * 1.0,
    "zeros": lambda rng, n: (rng.random(n) > 0.08) * 1.0,
    "all the same": lambda rng, n: np.ones(n),
    "all missing": lambda rng, n: np.full(n, np.nan),
    "thirds": lambda rng, n: rng.integers(0, 3, n) * 1.0,
}


def check_columns(X: np.ndarray, y: np.ndarray, least: tuple[int, ...], **options: Any) -> None:
    """Compare with fits for some values of ``min_child_samples``."""
    for n_least in least:
        estimator = lightgbm(min_child_samples=n_least, colsample_bytree=0.5, **options)
        taken = taken_of(estimator, X, y, None)
        growth = grown(estimator, taken)
        for _ in growth.grow(12):
            pass
        expected = own_fit(estimator, taken, 12).predict_proba(taken.test)
        found = growth.predict("predict_proba", 12)
        np.testing.assert_array_equal(found, expected, err_msg=f"min_child_samples={n_least}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "max_bin"), [*((name, 255) for name in RARE), ("two rare ends", 3), ("thirds", 3)]
)
def test_columns_that_lightgbm_leaves_out(name: str, max_bin: int) -> None:
    """It draws columns among the others, so that bins for fewer rows must leave out the same."""
    X, y = rows_of(2)
    rng = np.random.default_rng(0)
    X = np.column_stack([X[:, :4], RARE[name](rng, N_ROWS), X[:, 6]])
    check_columns(X, y, (1, 5, 9, 10, 12, 20, 40, 60), max_bin=max_bin)


@pytest.mark.parametrize("max_bin", [255, 3])
def test_where_no_column_has_enough_rows_on_both_sides(max_bin: int) -> None:
    X, y = rows_of(2)
    check_columns(X, y, (69, 70, 72, 73, 83, 84, 85, 86, 90), max_bin=max_bin)
