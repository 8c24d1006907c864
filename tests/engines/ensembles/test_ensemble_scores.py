"""Cross-validation of ensembles that grow tree by tree has the scores of their own fits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import cycle
from typing import Any

from boosters import catboost
from boosters import lightgbm
from boosters import xgboost
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import TrialState
from pairs import pairs
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
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
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import pooled
from optuna_treecv import RacingPruner
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.engines.ensembles.sklearn import WarmGrowth

N_ROWS = 150
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_ROWS, 6))
SIGNAL = X[:, 0] - X[:, 1] * X[:, 2] + 0.7 * RNG.normal(size=N_ROWS)
LABELS = np.array(["no", "yes"])[(SIGNAL > 0).astype(int)]
WEIGHTS = RNG.random(N_ROWS) + 0.2

FOLDS = KFold(3, shuffle=True, random_state=1)


def of_sklearn(classifier: type, regressor: type, **given: Any) -> Callable[..., Any]:
    def make(kind: str = "Classifier", **options: Any) -> Any:
        options = {"random_state": 0} | given | options
        return (classifier if kind == "Classifier" else regressor)(**options)

    return make


KINDS: dict[str, Callable[..., Any]] = {
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "catboost": catboost,
    "hist": of_sklearn(
        HistGradientBoostingClassifier, HistGradientBoostingRegressor, max_leaf_nodes=5
    ),
    "gradient": of_sklearn(GradientBoostingClassifier, GradientBoostingRegressor, max_depth=2),
    "forest": of_sklearn(RandomForestClassifier, RandomForestRegressor),
    "extra trees": of_sklearn(ExtraTreesClassifier, ExtraTreesRegressor),
    "bagging": of_sklearn(BaggingClassifier, BaggingRegressor),
}
BAGGED = {"forest", "extra trees", "bagging"}


def sized(estimator: Any, n_trees: int) -> Any:
    """Return an ensemble, or a Pipeline that ends with one, with another number of trees."""
    estimator = clone(estimator)
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    kind = kind_of(last)
    assert kind is not None
    last.set_params(**{kind.size: n_trees})
    return estimator


def without_patience(estimator: Any) -> Any:
    names = {"early_stopping_round", "early_stopping_rounds"}
    parameters = estimator.get_params().items()
    return type(estimator)(**{name: value for name, value in parameters if name not in names})


def encode_targets(name: str, kind: str) -> np.ndarray:
    if kind == "Regressor":
        return SIGNAL
    return (LABELS == "yes").astype(int) if name == "xgboost" else LABELS


SCORES = {
    "Classifier": ["accuracy", "roc_auc", "neg_log_loss"],
    "Regressor": ["neg_mean_squared_error", "r2", "neg_mean_absolute_error"],
}


def check(estimator: Any, X: Any, y: np.ndarray, scores: list[str], method: str) -> None:
    """Compare the scores of folds with those of scikit-learn, to the bit."""
    found = tree_cross_validate(estimator, X, y, cv=FOLDS, scoring=scores)
    assert found.method == method, found.reason
    expected = cross_validate(estimator, X, y, cv=FOLDS, scoring=scores, error_score="raise")
    for score in scores:
        np.testing.assert_array_equal(
            found.scores[score].test_score, expected[f"test_{score}"], err_msg=score
        )


# Bins that are kept.
POINTS: dict[str, list[dict[str, Any]]] = {
    "lightgbm": [
        {
            "min_child_samples": least,
            "max_bin": bins,
            "colsample_bytree": 0.4,
            "num_leaves": leaves,
        }
        for least, bins, leaves in [
            *((20, 255, 5), (3, 255, 9), (8, 255, 5), (1, 15, 5), (20, 15, 4), (9, 255, 4)),
            *((2, 255, 3), (30, 255, 5), (3, 15, 5), (20, 255, 7), (7, 255, 5), (20, 4, 5)),
        ]
    ],
    "xgboost": [
        {"max_bin": bins, "tree_method": method, "max_depth": depth, "min_child_weight": least}
        for bins, method, depth, least in [
            *((256, "hist", 2, 1), (256, "hist", 4, 9), (8, "hist", 3, 1), (8, "exact", 2, 1)),
            *((8, "approx", 3, 2), (256, "exact", 2, 1), (256, "hist", 3, 2), (8, "hist", 4, 1)),
        ]
    ],
    "catboost": [
        {"border_count": bins, "depth": depth, "random_strength": strength}
        for bins, depth, strength in [(254, 2, 1), (254, 4, 3), (7, 2, 1), (7, 3, 0), (254, 3, 2)]
    ],
    "hist": [
        {"max_bins": bins, "max_leaf_nodes": leaves, "min_samples_leaf": least}
        for bins, leaves, least in [(255, 5, 20), (7, 5, 20), (255, 4, 9), (255, 9, 3), (7, 3, 9)]
    ],
}


def axes_of(points: list[dict[str, Any]]) -> dict[str, CategoricalDistribution]:
    return {
        name: CategoricalDistribution(sorted({point[name] for point in points}, key=str))
        for name in points[0]
    }


def enqueued(objective: Any, points: list[dict[str, Any]], n_threads: int = 1) -> optuna.Study:
    """Evaluate these points in one study."""
    pruner = optuna.pruners.NopPruner()
    study = optuna.create_study(direction=objective.direction, pruner=pruner)
    for point in points:
        study.enqueue_trial(point)
    study.optimize(objective, n_trials=len(points), n_jobs=n_threads)
    return study


FEW = np.column_stack([np.arange(N_ROWS) % 29 == i for i in range(3)]) * 1.0
RARE = np.column_stack([np.arange(N_ROWS) % 12 == i for i in range(2)]) * 1.0
ROWS = np.column_stack([X, FEW, RARE])


@cache
def scores_of_points(name: str) -> list[np.ndarray]:
    y, options = encode_targets(name, "Classifier"), {"cv": FOLDS, "scoring": "neg_log_loss"}
    models = [sized(KINDS[name](**point), 6) for point in POINTS[name]]
    return [cross_validate(model, ROWS, y, **options)["test_score"] for model in models]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_jobs", "n_threads"),
    [
        ("lightgbm", 1, 1),
        ("lightgbm", 2, 2),
        ("xgboost", 2, 1),
        ("hist", 1, 2),
        ("catboost", 1, 1),
    ],
)
def test_trials_over_kept_bins_have_scores_of_their_own(
    name: str, n_jobs: int, n_threads: int, results: Any
) -> None:
    """Some parameters change bins, and the columns among which others are drawn."""
    points = POINTS[name]
    objective = treecv_objective(
        sized(KINDS[name](), 6),
        ROWS,
        encode_targets(name, "Classifier"),
        param_distributions=axes_of(points),
        cv=FOLDS,
        scoring="neg_log_loss",
        n_jobs=n_jobs,
    )
    study = enqueued(objective, points, n_threads)
    for trial in study.trials:
        expected = scores_of_points(name)[points.index(trial.params)]
        found = results[study.study_name, trial.number].test_score
        np.testing.assert_array_equal(found, expected, err_msg=str(trial.params))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost"])
def test_bins_are_made_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that differ in what bins do not depend on share them."""
    estimator = sized(KINDS[name](), 3)
    kind, made = kind_of(estimator), []
    assert kind is not None
    prepare = kind.prepare
    monkeypatch.setattr(kind, "prepare", lambda *given: made.append(given) or prepare(*given))
    bins = [63, 63, 63, 31, 63, 31]
    parameter = "border_count" if name == "catboost" else "max_bin"
    points = [{parameter: one, "learning_rate": 0.1 + i / 20} for i, one in enumerate(bins)]
    objective = treecv_objective(
        estimator,
        X,
        encode_targets(name, "Classifier"),
        param_distributions=axes_of(points),
        cv=FOLDS,
        scoring="neg_log_loss",
    )
    enqueued(objective, points)
    assert len(made) == 2 * FOLDS.n_splits


# Where the scores of many numbers of trees are asked for, our formulas take the place of scorers.
# They compute with 8 bytes where a scorer takes the 4 bytes of XGBoost's probabilities.
CLOSE, CLOSE_OF_FLOAT32 = {"rtol": 1e-13}, {"rtol": 1e-6}


# The best number of trees.
def means_of(
    estimator: Any, y: np.ndarray, n_trees: int, scoring: str, X: Any = X, cv: Any = FOLDS
) -> np.ndarray:
    """Return the means over the folds for all numbers of trees, by fits."""
    fits = (sized(without_patience(estimator), n + 1) for n in range(n_trees))
    scores = [cross_validate(one, X, y, cv=cv, scoring=scoring)["test_score"] for one in fits]
    return np.array(scores)


def first_end(losses: np.ndarray, patience: int) -> int:
    """Return after how many trees none of the last ``patience`` was better than before."""
    best, since = np.inf, 0
    for number, loss in enumerate(losses):
        best, since = (loss, 0) if loss < best else (best, since + 1)
        if since == patience:
            return number + 1
    return len(losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scoring", "n_jobs"),
    [*zip(KINDS, cycle(["neg_log_loss", "accuracy"]), cycle([1, 2, 2, 1]), strict=False)],
)
def test_the_curve_is_that_of_fits_of_each_size(name: str, scoring: str, n_jobs: int) -> None:
    n_trees, y = 6, encode_targets(name, "Classifier")
    options = {"learning_rate": 0.5} if name not in BAGGED else {}
    if name == "xgboost":
        options |= {"subsample": 0.6, "colsample_bytree": 0.5}
    estimator = sized(KINDS[name](**options), n_trees)
    found = tree_cross_validate(
        estimator, X, y, cv=FOLDS, scoring=scoring, n_estimators="best", n_jobs=n_jobs
    )
    of_fits = means_of(estimator, y, n_trees, scoring)
    means = of_fits.mean(axis=1)
    curve = found.curve
    np.testing.assert_array_equal(curve.n_trees, np.arange(1, n_trees + 1))
    close = CLOSE_OF_FLOAT32 if name == "xgboost" else CLOSE
    np.testing.assert_allclose(curve.mean, means, **close)
    errors = of_fits.std(axis=1, ddof=1) / np.sqrt(FOLDS.n_splits)
    np.testing.assert_allclose(curve.std_error, errors, rtol=1e-5, atol=1e-14)
    assert curve.best == 1 + int(np.argmax(curve.mean))
    assert means[curve.best - 1] == pytest.approx(means.max(), rel=close["rtol"])
    np.testing.assert_allclose(found.test_score, of_fits[curve.best - 1], **close)
    assert found.mean == pytest.approx(curve.mean.max(), rel=1e-14)


def test_the_first_of_several_best_sizes_is_taken() -> None:
    y = np.where(X[:, 0] > 0, "yes", "no")  # the first stump is perfect, and no tree changes that
    estimator = sized(KINDS["hist"](learning_rate=1.0), 9)
    found = tree_cross_validate(
        estimator, np.sign(X), y, cv=FOLDS, scoring="accuracy", n_estimators="best"
    )
    assert found.curve.mean.tolist() == [1.0] * 9
    assert found.curve.best == 1


PATIENT: dict[str, Callable[..., Any]] = {
    "lightgbm": lambda **options: lightgbm(early_stopping_round=4, **options),
    "xgboost": lambda **options: xgboost(early_stopping_rounds=4, **options),
    "catboost": lambda **options: catboost(early_stopping_rounds=4, **options),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_jobs", "subsample"),
    [("lightgbm", 2, 0.6), ("xgboost", 1, 1.0), ("catboost", 1, 0.6)],
)
def test_trees_end_where_the_mean_of_the_folds_does(
    name: str, n_jobs: int, subsample: float
) -> None:
    options = {"learning_rate": 0.7, "subsample": subsample}
    if name == "lightgbm":
        options["subsample_freq"] = 1
    n_trees = 20
    estimator = sized(PATIENT[name](**options), n_trees)
    y = encode_targets(name, "Classifier")
    found = tree_cross_validate(
        estimator, X, y, cv=FOLDS, scoring="neg_log_loss", n_estimators="best", n_jobs=n_jobs
    )
    means = means_of(estimator, y, n_trees, "neg_log_loss").mean(axis=1)
    end = first_end(-means, patience=4)
    assert 5 < end < n_trees  # otherwise the test is of no use
    assert found.curve.n_trees.tolist() == list(range(1, end + 1))
    assert found.curve.best == end - 4
    np.testing.assert_allclose(found.curve.mean, means[:end], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("others", [{}, {"max_features": FloatDistribution(0.2, 1.0)}])
def test_trees_are_larger_than_asked_for_only_where_trials_share_them(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown, fit = [], WarmGrowth.fit
    monkeypatch.setattr(WarmGrowth, "fit", lambda *given: (fit(*given), grown.append(given[0])))
    space = {"max_leaf_nodes": IntDistribution(2, 40)} | others
    objective = treecv_objective(
        sized(KINDS["forest"](), 9), X, LABELS, cv=FOLDS, param_distributions=space
    )
    objective.evaluate({"max_leaf_nodes": 4} | {name: 0.5 for name in others})
    n_leaves = [tree.get_n_leaves() for one in grown for tree in one.fitted.estimators_]
    assert (max(n_leaves) > 4) == (not others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightgbm", "hist", "forest"])
def test_the_winner_has_its_best_number_of_trees(name: str) -> None:
    """Alone and at the end of a Pipeline, in a study and in a search."""
    make = PATIENT.get(name, KINDS[name])
    estimator = sized(make(**{} if name == "forest" else {"learning_rate": 0.5}), 15)
    size = kind_of(estimator).size
    parameter = {"lightgbm": "num_leaves", "hist": "max_leaf_nodes", "forest": "max_depth"}[name]
    piped = make_pipeline(StandardScaler(), estimator)
    for whole, prefix in ((estimator, ""), (piped, f"{piped.steps[-1][0]}__")):
        axes = {prefix + parameter: IntDistribution(2, 6)}
        options = {"cv": FOLDS, "scoring": "accuracy", "n_estimators": "best"}
        objective = treecv_objective(whole, X, LABELS, param_distributions=axes, **options)
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0)
        )
        study.optimize(objective, n_trials=2)
        fitted = objective.best_estimator(study)
        search = TreeCVSearchCV(
            whole,
            param_distributions=axes,
            n_trials=2,
            sampler=optuna.samplers.RandomSampler(seed=0),
            **options,
        ).fit(X, LABELS)
        found = tree_cross_validate(
            clone(whole).set_params(**study.best_params), X, LABELS, **options
        )
        assert 0 < found.curve.best < 15
        expected = clone(whole).set_params(**study.best_params)
        last = expected[-1] if prefix else expected
        last.set_params(**{size: found.curve.best})
        if name == "lightgbm":
            last.set_params(early_stopping_round=None)
        expected.fit(X, LABELS)
        for one in (fitted, search.best_estimator_):
            assert one.get_params()[prefix + size] == found.curve.best
            np.testing.assert_array_equal(one.predict_proba(X), expected.predict_proba(X))


# Sizes that are searched.
GRID_OF_SIZES = [2, 3, 6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("lightgbm", {"num_leaves": [3, 5]}),
        ("xgboost", {"max_depth": [1, 3], "subsample": [0.6]}),
        ("hist", {"max_leaf_nodes": [3, 5]}),
        ("forest", {"max_depth": [3, None]}),
        ("bagging", {"max_samples": [0.5, 1.0]}),
    ],
    ids=lambda one: one if isinstance(one, str) else next(iter(one)),
)
def test_a_grid_of_sizes_grows_each_other_setting_once(name: str, others: dict[str, Any]) -> None:
    estimator, y = KINDS[name](), encode_targets(name, "Classifier")
    size = kind_of(estimator).size
    grid = others | {size: GRID_OF_SIZES}
    options = {"cv": FOLDS, "scoring": "neg_log_loss"}
    expected = GridSearchCV(estimator, grid, **options).fit(X, y)
    search = TreeCVSearchCV(estimator, param_grid=grid, **options).fit(X, y)

    def scores_of(search: Any) -> dict[str, list[float]]:
        found = search.cv_results_
        folds = [found[f"split{i}_test_score"] for i in range(FOLDS.n_splits)]
        return {
            str(sorted(params.items())): [float(fold[number]) for fold in folds]
            for number, params in enumerate(found["params"])
        }

    assert scores_of(search) == scores_of(expected)
    assert search.best_params_ == expected.best_params_
    done = sum(trial.user_attrs["treecv"]["n_updates"] for trial in search.study_.trials)
    n_trained = N_ROWS * (FOLDS.n_splits - 1)
    n_others = np.prod([len(values) for values in others.values()])
    assert done == n_others * n_trained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("lightgbm", None),
        ("xgboost", "memory"),
        ("hist", "memory"),
        ("gradient", "memory"),
        ("forest", "memory"),
    ],
)
def test_searched_sizes_have_the_scores_of_fits(name: str, cache: Any, results: Any) -> None:
    """Sizes come in any order, so that ensembles of other trials grow on or are asked again."""
    options: dict[str, Any] = {"subsample": 0.7} if name in ("xgboost", "gradient") else {}
    make = KINDS[name]
    y = encode_targets(name, "Classifier")
    size = kind_of(make()).size
    rate = "max_features" if name == "forest" else "learning_rate"
    axes = {size: IntDistribution(1, 15), rate: CategoricalDistribution([0.3, 0.5])}
    objective = treecv_objective(
        make(**options),
        X,
        y,
        param_distributions=axes,
        cv=FOLDS,
        scoring="neg_log_loss",
        cache=cache,
    )
    sizes = [(4, 0.3), (2, 0.3), (5, 0.5), (9, 0.3), (7, 0.5), (15, 0.3), (6, 0.3)]
    study = enqueued(objective, [dict(zip((size, rate), one, strict=True)) for one in sizes])
    for trial in study.trials:
        estimator = make(**options | trial.params)
        expected = cross_validate(estimator, X, y, cv=FOLDS, scoring="neg_log_loss")
        found = results[study.study_name, trial.number].test_score
        close = CLOSE_OF_FLOAT32 if name == "xgboost" else CLOSE
        np.testing.assert_allclose(
            found, expected["test_score"], err_msg=str(trial.params), **close
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "report"), [("lightgbm", "trees"), ("hist", None), ("forest", "trees")]
)
def test_the_best_number_is_at_most_that_of_the_point_of_a_grid(
    name: str, report: Any, results: Any
) -> None:
    make = KINDS[name]
    size, sizes = kind_of(make()).size, [4, 20, 10]
    arguments = {"cv": FOLDS, "scoring": "accuracy", "n_estimators": "best"}
    objective = treecv_objective(
        make(), X, LABELS, param_grid={size: sizes}, report=report, **arguments
    )
    study = enqueued(objective, [{size: n_trees} for n_trees in sizes])
    for trial in study.trials:
        alone = tree_cross_validate(make(**trial.params), X, LABELS, **arguments)
        found = results[study.study_name, trial.number]
        assert found.test_score.tolist() == alone.test_score.tolist()
        assert found.curve.best == alone.curve.best <= trial.params[size]
        assert found.curve.mean.tolist() == alone.curve.mean.tolist()


# Forests that are cut; depths are also compared by the attack "truncations" of tests/fuzz.
EXACT_CUTS: dict[str, tuple[Any, list[float]]] = {
    "max_leaf_nodes": (IntDistribution(2, 40), [7, 2, 40]),
    "ccp_alpha": (FloatDistribution(0.0, 0.2), [0.004, 0.0, 0.2]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        is_weighted=[False, True],
        target=["Classifier", "Regressor"],
        name=["forest", "extra trees"],
        parameter=EXACT_CUTS,
        space=["grid", "distribution"],
    )
)
def test_trees_of_one_growth_are_those_of_a_fit(
    space: str, parameter: str, name: str, target: str, is_weighted: bool, results: Any
) -> None:
    """If trees of scikit-learn no longer have ``_prune_tree``, ``limit_of`` must not offer
    ``ccp_alpha``, so that each of its values grows anew.
    """
    (distribution, values), sizes = EXACT_CUTS[parameter], [2, 5]
    y, scoring = encode_targets(name, target), SCORES[target][-1]
    weights = WEIGHTS if is_weighted else None
    axes: dict[str, Any] = {"param_grid": {parameter: values, "n_estimators": sizes}}
    if space == "distribution":
        both = {parameter: distribution, "n_estimators": IntDistribution(1, 9)}
        axes = {"param_distributions": both}
    objective = treecv_objective(
        KINDS[name](target, max_features=2),
        *(X, y),
        cv=FOLDS,
        scoring=scoring,
        sample_weight=weights,
        **axes,
    )
    points = [{parameter: value, "n_estimators": size} for value in values for size in sizes]
    study = enqueued(objective, points)
    for trial in study.trials:
        found = results[study.study_name, trial.number]
        alone = KINDS[name](target, max_features=2, **trial.params)
        fit = tree_cross_validate(
            alone, X, y, cv=FOLDS, scoring=scoring, sample_weight=weights, method="fit"
        )
        assert found.method == "bagging", found.reason
        assert found.test_score.tolist() == fit.test_score.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameter", "value", "truncate"),
    [
        ("max_leaf_nodes", 50, False),
        ("max_depth", 9, True),
        ("max_leaf_nodes", 3, False),
        ("n_estimators", 5, False),
    ],
)
def test_values_that_were_not_searched_have_the_scores_of_fits(
    parameter: str, value: int, truncate: bool
) -> None:
    for axes in (
        {"param_grid": {parameter: [2, 7]}},
        {"param_distributions": {parameter: IntDistribution(2, 7)}},
    ):
        objective = treecv_objective(
            KINDS["forest"](n_estimators=4), X, LABELS, cv=FOLDS, truncate=truncate, **axes
        )
        found = objective.evaluate({parameter: value})
        estimator = KINDS["forest"](**({"n_estimators": 4} | {parameter: value}))
        fit = tree_cross_validate(estimator, X, LABELS, cv=FOLDS, method="fit")
        assert found.test_score.tolist() == fit.test_score.tolist()


@pytest.mark.parametrize(
    ("parameter", "value"), [("max_leaf_nodes", 1), ("ccp_alpha", -0.1), ("max_leaf_nodes", "few")]
)
def test_values_that_no_fit_takes_are_refused(parameter: str, value: Any) -> None:
    with pytest.raises(ValueError, match=parameter):
        treecv_objective(
            KINDS["forest"](), X, LABELS, cv=FOLDS, param_grid={parameter: [value, 5]}
        ).evaluate({parameter: value})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forest", "extra trees"])
def test_out_of_bag_scores_are_those_of_the_fits_of_folds(name: str, results: Any) -> None:
    forest = KINDS[name](bootstrap=True, oob_score=True)
    sizes = [20, 25]
    objective = treecv_objective(
        forest, X, LABELS, cv=FOLDS, scoring="accuracy", param_grid={"n_estimators": sizes}
    )
    study = enqueued(objective, [{"n_estimators": size} for size in reversed(sizes)])
    for trial in study.trials:
        found = results[study.study_name, trial.number]
        expected = [
            clone(forest).set_params(**trial.params).fit(X[train], LABELS[train]).oob_score_
            for train, _ in FOLDS.split(X)
        ]
        assert found.curve.oob_score == pytest.approx(np.mean(expected), rel=1e-12)
        assert trial.user_attrs["treecv"]["oob_score"] == float(f"{np.mean(expected):.6g}")
        assert f"curve=<oob_score: {np.mean(expected):.6g}>" in repr(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(is_sized=[False, True], best=[None, "best"], report=[None, "trees"])
)
def test_cut_forests_of_a_study_are_those_of_each_trial_alone(
    is_sized: bool, best: Any, report: Any, results: Any
) -> None:
    axes = {"max_depth": IntDistribution(1, 5)}
    points = [{"max_depth": depth} for depth in (4, 2, 4, 5)]
    if is_sized:
        axes["n_estimators"] = IntDistribution(1, 15)
        sizes = (9, 6, 3, 12)
        points = [one | {"n_estimators": n} for one, n in zip(points, sizes, strict=True)]
    arguments = {
        "param_distributions": axes,
        "cv": FOLDS,
        "scoring": "neg_log_loss",
        "truncate": True,
        "n_estimators": best,
    }
    forest = sized(KINDS["forest"](), 10)
    objective = treecv_objective(forest, X, LABELS, report=report, **arguments)
    study = enqueued(objective, points)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    for trial in study.trials:
        alone = treecv_objective(forest, X, LABELS, cache=None, **arguments)
        expected = alone.evaluate(trial.params)
        found = results[study.study_name, trial.number]
        assert found.method == expected.method == "bagging", found.reason
        np.testing.assert_allclose(found.test_score, expected.test_score, **CLOSE)


# Refusals.
@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lightgbm, {"n_estimators": "best", "scoring": pooled("accuracy")}, "n_estimators='best'"),
        (lightgbm, {"n_estimators": "best", "n_repeats": 2, "cv": 3}, "n_estimators='best'"),
        (Ridge, {"n_estimators": "best"}, "n_estimators"),
        (lambda: lightgbm(early_stopping_round=3), {}, "n_estimators must be 'best' if"),
        (
            lambda: xgboost(early_stopping_rounds=3, n_estimators=5),
            {},
            "n_estimators must be 'best' if",
        ),
        (Ridge, {"method": "boosting"}, "method='boosting'"),
        (lightgbm, {"method": "bagging"}, "method='bagging'"),
        (KINDS["forest"], {"method": "boosting"}, "method='boosting'"),
        (lightgbm, {"n_estimators": 5}, "n_estimators must be"),
        (lightgbm, {"n_estimators": "first"}, "n_estimators must be"),
        (lightgbm, {"n_estimators": "best", "method": "fit"}, "n_estimators"),
        (lambda: KINDS["forest"](warm_start=True), {"method": "bagging"}, "warm_start is set"),
    ],
)
def test_refusals_are_a_sentence_that_names_the_argument(
    make: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    y = SIGNAL if make is Ridge else encode_targets("xgboost", "Classifier")
    options = {"cv": FOLDS} | options
    with pytest.raises(ValueError) as caught:
        tree_cross_validate(make(), X, y, **options)
    said = str(caught.value)
    assert words in said
    assert said.endswith(".") and "\n" not in said and ". " not in said


@pytest.mark.parametrize(
    ("name", "given", "space"),
    [
        ("forest", {}, {"max_features": [0.5]}),
        ("hist", {}, {"max_depth": [2, 3]}),
        ("forest", {"max_leaf_nodes": 9}, {"max_depth": [2, 3]}),
        ("forest", {}, {"max_depth": [2, 3], "ccp_alpha": [0.0, 0.1]}),
    ],
)
def test_trees_are_not_truncated_where_they_would_differ(
    name: str, given: Any, space: Any
) -> None:
    with pytest.raises(ValueError, match="^truncate must be False"):
        treecv_objective(
            KINDS[name](**given), X, LABELS, cv=FOLDS, param_grid=space, truncate=True
        ).evaluate({one: values[0] for one, values in space.items()})


# Reports.
def space_of(name: str) -> dict[str, Any]:
    if name in BAGGED:
        return {"max_depth": IntDistribution(1, 6), "max_features": FloatDistribution(0.2, 1.0)}
    return {"learning_rate": FloatDistribution(0.001, 0.5, log=True)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best", "cv"),
    [
        ("lightgbm", "best", FOLDS),
        ("hist", None, FOLDS),
        ("forest", "best", FOLDS),
        ("hist", "best", KFold(12)),
        ("forest", None, KFold(12)),
    ],
)
def test_pruned_and_complete_trials_report_at_most_32_numbers(
    name: str, best: Any, cv: Any
) -> None:
    n_trees = 20 if cv is FOLDS else 5
    objective = treecv_objective(
        sized(KINDS[name](), n_trees),
        X,
        encode_targets(name, "Classifier"),
        param_distributions=space_of(name),
        cv=cv,
        scoring="log_loss",
        n_estimators=best,
        report="trees",
    )
    pruner = objective.pruner()
    assert isinstance(pruner, RacingPruner)
    sampler = optuna.samplers.RandomSampler(seed=1)
    study = optuna.create_study(pruner=pruner, sampler=sampler)
    study.optimize(objective, n_trials=10 if cv is FOLDS else 2)
    for trial in study.trials:
        assert 1 <= len(trial.intermediate_values) <= 32
        if trial.state == TrialState.COMPLETE:
            assert trial.intermediate_values[max(trial.intermediate_values)] == pytest.approx(
                trial.value, rel=1e-6
            )
    states = {trial.state for trial in study.trials}
    if name != "forest" and cv is FOLDS:
        assert states == {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.slow
@pytest.mark.parametrize(("n_trees", "n_folds"), [(3, 5), (400, 20)])
def test_further_folds_are_reported_once_and_at_most_32_numbers(
    n_trees: int, n_folds: int
) -> None:
    objective = treecv_objective(
        sized(KINDS["lightgbm"](num_leaves=2), n_trees),
        X[:60],
        LABELS[:60],
        param_distributions=space_of("lightgbm"),
        cv=KFold(n_folds),
        scoring="log_loss",
        report="trees",
    )
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    study.optimize(objective, n_trials=1)
    steps = list(study.trials[0].intermediate_values)
    if n_folds == 5:  # the first fold alone, and then each further one
        assert steps == [0, 16, 17, 18, 19]
    else:
        assert 20 < len(steps) <= 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("lightgbm", "best"),
        ("xgboost", "best"),
        ("lightgbm in a Pipeline", None),
        ("hist", None),
        ("forest", "best"),
        ("forest", None),
    ],
)
def test_results_depend_on_neither_reports_nor_caches_nor_threads(
    name: str, best: Any, results: Any
) -> None:
    library = name.partition(" ")[0]
    make = PATIENT.get(library, KINDS[library]) if best else KINDS[library]
    options = {"subsample": 0.6} if library == "xgboost" else {}
    estimator = sized(make(**options), 10)
    space, prefix = space_of(library), ""
    if "Pipeline" in name:
        estimator = make_pipeline(StandardScaler(), estimator)
        prefix = f"{estimator.steps[-1][0]}__"
    space = {prefix + one: axis for one, axis in space.items()}

    def told(**given: Any) -> list[Any]:
        objective = treecv_objective(
            estimator,
            X,
            encode_targets(library, "Classifier"),
            param_distributions=space,
            cv=FOLDS,
            scoring="neg_log_loss",
            n_estimators=best,
            **given,
        )
        sampler = optuna.samplers.RandomSampler(seed=2)
        study = optuna.create_study(
            direction="maximize", sampler=sampler, pruner=optuna.pruners.NopPruner()
        )
        study.optimize(objective, n_trials=2)
        found = [results[study.study_name, trial.number] for trial in study.trials]
        curves = [(one.curve.best, one.curve.mean.tolist()) for one in found] if best else []
        return [[one.test_score.tolist() for one in found], curves]

    expected = told()
    for given in ({"report": "trees", "n_jobs": 3, "cache": None}, {"report": "folds"}):
        assert told(**given) == expected, given


# Results that are kept.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best"), [("lightgbm", "best"), ("hist", None), ("forest", "best"), ("bagging", None)]
)
def test_a_second_objective_finds_the_results_of_the_first(
    name: str, best: Any, tmp_path: Any
) -> None:
    make = PATIENT.get(name, KINDS[name]) if best else KINDS[name]
    space = {"max_samples": FloatDistribution(0.3, 1.0)} if name == "bagging" else space_of(name)
    found = []
    for _ in range(2):
        objective = treecv_objective(
            sized(make(), 12),
            X,
            encode_targets(name, "Classifier"),
            param_distributions=space,
            cv=FOLDS,
            scoring="neg_log_loss",
            n_estimators=best,
            store=f"sqlite:///{tmp_path / 'store.db'}",
        )
        sampler = optuna.samplers.RandomSampler(seed=2)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(objective, n_trials=2)
        facts = [trial.user_attrs["treecv"] for trial in study.trials]
        values = [trial.value for trial in study.trials]
        found.append([*zip(values, [one.get("n_estimators") for one in facts], strict=True)])
        n_updates = [one["n_updates"] for one in facts]
        fitted = objective.best_estimator(study)
        if best:
            size = kind_of(fitted).size
            assert (
                fitted.get_params()[size] == study.best_trial.user_attrs["treecv"]["n_estimators"]
            )
    assert found[0] == found[1]
    if best is None:  # otherwise blocks that took less than two milliseconds are not stored
        assert n_updates == [0, 0]
    assert all((size is not None) == (best is not None) for _, size in found[0])


def test_all_numbers_of_trees_of_a_store_are_found_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, fits = [], []
    for _ in range(2):
        objective = treecv_objective(
            sized(KINDS["hist"](), 40),
            *(X, LABELS),
            param_distributions={"max_depth": IntDistribution(2, 3)},
            cv=FOLDS,
            scoring="log_loss",
            n_estimators="best",
            store=f"sqlite:///{tmp_path / 'store.db'}",
        )
        study = enqueued(objective, [{"max_depth": 2}])
        found.append((study.best_value, study.best_trial.user_attrs["treecv"]["curve"]))
        monkeypatch.setattr(WarmGrowth, "fit", lambda *given: fits.append(given))
    assert found[0] == found[1]
    assert not fits


def test_scores_in_a_store_do_not_depend_on_what_was_searched(tmp_path: Any) -> None:
    """One objective asks for many numbers of trees, the other one for a single one."""
    arguments = {"cv": FOLDS, "scoring": "neg_log_loss"}
    y = encode_targets("xgboost", "Classifier")
    estimator = sized(KINDS["xgboost"](), 7)
    values = []
    for store in (f"sqlite:///{tmp_path / 'store.db'}", None):
        axes = {"n_estimators": IntDistribution(5, 7)}
        searched = treecv_objective(
            estimator, X, y, param_distributions=axes, store=store, **arguments
        )
        enqueued(searched, [{"n_estimators": 7}])
        alone = treecv_objective(lambda trial: estimator, X, y, store=store, **arguments)
        values.append(enqueued(alone, [{}]).best_value)
    assert values[0] == values[1]


# What users see.
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_warning_that_a_fit_does_not_give(name: str, recwarn: Any) -> None:
    y = encode_targets(name, "Classifier")
    estimator = sized(KINDS[name](), 3)
    if name == "forest":
        estimator.set_params(class_weight="balanced")
    for best in (None, "best"):
        tree_cross_validate(estimator, X, y, cv=FOLDS, scoring="accuracy", n_estimators=best)
    assert [str(one.message) for one in recwarn] == []


def test_xgboost_has_a_number_of_trees_where_none_is_given() -> None:
    y = encode_targets("xgboost", "Classifier")
    check(xgboost(max_depth=1), X, y, SCORES["Classifier"], "boosting")


@pytest.mark.parametrize(
    ("axes", "options", "is_advised"),
    [
        ({"max_leaf_nodes": IntDistribution(2, 9)}, {}, True),
        ({"max_leaf_nodes": IntDistribution(2, 9)}, {"report": "trees"}, False),
        ({"max_iter": IntDistribution(2, 9)}, {}, False),
    ],
)
def test_boosters_of_which_nothing_is_shared_are_to_be_pruned(
    axes: dict[str, Any], options: dict[str, Any], is_advised: bool
) -> None:
    objective = treecv_objective(
        KINDS["hist"](), X, LABELS, param_distributions=axes, cv=FOLDS, **options
    )
    assert ("prune most trials of a study" in objective.explain()) == is_advised


def test_catboost_cannot_be_cloned_with_a_list() -> None:
    with pytest.raises(ValueError, match="pass a tuple instead of a list"):
        tree_cross_validate(catboost(cat_features=[4]), X, LABELS, cv=FOLDS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"learning_rate": None}, "learning_rate is not given"),
        ({"n_estimators": 3}, "n_estimators is given"),
        ({"langevin": True}, "langevin is given"),
        ({"task_type": "GPU"}, "task_type is GPU"),
        ({"iterations": 0}, "iterations is not a positive integer"),
    ],
)
def test_catboost_is_refitted(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tree_cross_validate(catboost(**options), X, LABELS, cv=FOLDS, method="boosting")


def test_xgboost_refuses_labels_that_its_fit_refuses() -> None:
    """Otherwise a study ends with a winner that cannot be fitted."""
    with pytest.raises(ValueError, match="Invalid classes inferred"):
        tree_cross_validate(sized(xgboost(), 3), X, LABELS, cv=FOLDS, scoring="accuracy")


# --- Several estimators ---


@pytest.mark.slow
def test_several_ensembles_that_form_a_grid_grow_once():
    depths, sizes = (2, 4), (2, 5, 3)
    models = [
        RandomForestClassifier(size, max_depth=depth, random_state=0)
        for size in sizes
        for depth in depths
    ]
    together = tree_cross_validate_many(models, X, LABELS, cv=FOLDS)
    alone = [tree_cross_validate(model, X, LABELS, cv=FOLDS) for model in models]
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one.test_score, other.test_score)
        assert one.method == "bagging"
    largest = [result.n_updates for result in alone[2:4]]  # of five trees
    assert sum(result.n_updates for result in together) == sum(largest)
    # Values of all kinds may differ.
    weights = [{"no": 1, "yes": 2}, None]
    forests = [RandomForestClassifier(3, random_state=0, class_weight=w) for w in weights]
    for several in (forests, forests[::-1]):
        found = tree_cross_validate_many(several, X, LABELS, cv=FOLDS)
        expected = [tree_cross_validate(model, X, LABELS, cv=FOLDS).mean for model in several]
        assert [result.mean for result in found] == expected
    # Those that form no grid grow alone, no farther than they must.
    some = tree_cross_validate_many(models[1:], X, LABELS, cv=FOLDS)
    assert [r.n_updates for r in some] == [r.n_updates for r in alone[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ensemble",
    [RandomForestClassifier(4, random_state=0), HistGradientBoostingClassifier(max_iter=4)],
)
def test_trials_share_the_fitted_steps_before_an_ensemble(ensemble, monkeypatch):
    fits = []
    fit_transform = PCA.fit_transform
    monkeypatch.setattr(PCA, "fit_transform", lambda *a: fits.append(1) or fit_transform(*a))
    model = make_pipeline(StandardScaler(), PCA(3), ensemble)
    name = f"{type(ensemble).__name__.lower()}__max_depth"
    space = {name: IntDistribution(1, 9)}
    objective = treecv_objective(model, X, LABELS, param_distributions=space, cv=FOLDS)
    values = [objective.evaluate({name: depth}).mean for depth in (2, 5, 3)]
    assert len(fits) == FOLDS.n_splits
    alone = [
        tree_cross_validate(clone(model).set_params(**{name: depth}), X, LABELS, cv=FOLDS).mean
        for depth in (2, 5, 3)
    ]
    assert values == alone


@pytest.mark.parametrize("options", [{"objective": "gamma"}, {"metric": "gamma_deviance"}])
def test_labels_that_the_metric_of_lightgbm_refuses(options: dict[str, Any]) -> None:
    estimator = lightgbm("Regressor", n_estimators=2, **options)
    y = np.abs(SIGNAL)
    check(estimator, X, y, ["r2"], "boosting")
    y[::7] = 0
    with pytest.raises(Exception, match="label"):  # LightGBM's own error
        tree_cross_validate(estimator, X, y, cv=FOLDS)
