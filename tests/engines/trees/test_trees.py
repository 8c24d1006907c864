"""HistTree estimators against scikit-learn's trees, and forests against trees grown alone."""

from __future__ import annotations

from functools import partial
import pickle

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from spread import spread

from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.trees.forest import BinnedRows
from optuna_treecv.engines.trees.forest import grow_forest
from optuna_treecv.engines.trees.forest import Limits

TREES = {
    "classes": HistTreeClassifier(random_state=0),
    "entropy": HistTreeClassifier(criterion="entropy", min_samples_leaf=3, random_state=1),
    "balanced": HistTreeClassifier(class_weight="balanced", max_bins=32, random_state=0),
    "weights of classes": HistTreeClassifier(class_weight={0: 3.0, 1: 0.2}, random_state=0),
    "numbers": HistTreeRegressor(random_state=0),
    "shares": HistTreeRegressor(min_samples_leaf=0.01, min_samples_split=0.05, random_state=0),
}


def rows_for(tree, n_rows=400, missing=0.0, with_category=False):
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(n_rows, 5)), 2)
    signal = X[:, 0] * X[:, 1] + np.abs(X[:, 2]) + rng.normal(size=n_rows) / 4
    if with_category:
        names = np.array(["north", "east", "south", "west", "unknown"])
        kind = rng.integers(0, 5, n_rows)
        signal += 2 * (kind % 2)
    X[rng.random(X.shape) < missing] = np.nan
    y = signal if isinstance(tree, HistTreeRegressor) else np.digitize(signal, [0.4, 1.2])
    if isinstance(getattr(tree, "class_weight", None), dict):
        y = np.minimum(y, 1)
    if not with_category:
        return X, y
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame["place"] = pd.Categorical(names[kind])
    frame.loc[::17, "place"] = None
    return frame, y


def weights_for(n_rows):
    return np.random.default_rng(1).choice([0.0, 0.5, 1.25, 3.0], n_rows)


@pytest.mark.slow
@parametrize_with_checks([HistTreeClassifier(), HistTreeRegressor()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# Against scikit-learn.


def without_ties(n_rows, is_regression):
    """Few distinct values, each split of which has another gain."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 40, (n_rows, 4)).astype(float)
    y = X @ [1.0, -0.5, 0.25, 0.1] + rng.normal(size=n_rows) * 8
    return X, y if is_regression else (y > np.median(y)).astype(int)


PAIRS = [
    (HistTreeClassifier, DecisionTreeClassifier, "gini"),
    (HistTreeClassifier, DecisionTreeClassifier, "entropy"),
    (HistTreeRegressor, DecisionTreeRegressor, "squared_error"),
]


@pytest.mark.parametrize(("ours", "theirs", "criterion"), PAIRS)
def test_trees_and_scores_are_those_of_scikit_learn(ours, theirs, criterion):
    X, y = without_ties(1500, criterion == "squared_error")
    settings = {"criterion": criterion, "min_samples_leaf": 5, "max_depth": 4}
    tree = ours(**settings, random_state=0).fit(X, y)
    other = theirs(**settings, random_state=0).fit(X, y)
    assert tree.get_n_leaves() == other.get_n_leaves()
    nodes = tree.tree_.nodes
    assert nodes["feature"][0] == other.tree_.feature[0]
    np.testing.assert_allclose(tree.predict(X), other.predict(X))
    np.testing.assert_allclose(tree.feature_importances_, other.feature_importances_, atol=1e-9)
    np.testing.assert_allclose(np.sort(nodes["n_rows"]), np.sort(other.tree_.n_node_samples))
    is_split = other.tree_.children_left >= 0
    t = other.tree_
    lost = t.weighted_n_node_samples * t.impurity
    decreases = (lost - lost[t.children_left] - lost[t.children_right])[is_split] / len(X)
    found = nodes["decrease"][nodes["left"] >= 0]
    np.testing.assert_allclose(np.sort(found), np.sort(decreases), rtol=1e-9)
    cv = KFold(10, shuffle=True, random_state=0)
    scoring = "r2" if criterion == "squared_error" else "accuracy"
    result = tree_cross_validate(
        ours(**settings, random_state=0), X, y, cv=cv, scoring=scoring, method="forest"
    )
    expected = cross_val_score(theirs(**settings, random_state=0), X, y, cv=cv, scoring=scoring)
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)


@pytest.mark.parametrize(("ours", "theirs", "criterion"), PAIRS)
def test_pruning_path_is_that_of_scikit_learn(ours, theirs, criterion):
    X, y = without_ties(300, criterion == "squared_error")
    settings = {"criterion": criterion, "min_samples_leaf": 7, "random_state": 0}
    path = ours(**settings).cost_complexity_pruning_path(X, y)
    expected = theirs(**settings).cost_complexity_pruning_path(X, y)
    np.testing.assert_allclose(path.ccp_alphas, expected.ccp_alphas, atol=1e-12)
    np.testing.assert_allclose(path.impurities, expected.impurities, rtol=1e-9)
    for alpha in (path.ccp_alphas[1:] + path.ccp_alphas[:-1])[::5] / 2:
        tree = ours(ccp_alpha=alpha, **settings).fit(X, y)
        other = theirs(ccp_alpha=alpha, **settings).fit(X, y)
        assert tree.get_n_leaves() == other.get_n_leaves()
        if criterion == "squared_error":  # shares of classes have ties
            np.testing.assert_allclose(tree.predict(X), other.predict(X))


def test_weights_are_repeated_rows():
    X, y = load_iris(return_X_y=True)
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    rows = np.repeat(np.arange(len(X)), weights)
    weighted = HistTreeClassifier(random_state=0).fit(X, y, weights)
    repeated = HistTreeClassifier(random_state=0).fit(X[rows], y[rows])
    np.testing.assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))


# Forests against trees that are grown alone.


def assert_equal_trees(forest, other, number, leaves=(), others=()):
    """Compare one tree of two forests node by node, down to some leaves."""
    pairs = [(int(forest.roots[number]), int(other.roots[number]))]
    while pairs:
        a, b = pairs.pop()
        one, two = forest.records[a], other.records[b]
        kept = ("feature", "bin", "missing_left", "n_rows", "depth", "tree", "decrease")
        ends = one["left"] < 0 or a in leaves
        if ends:
            assert two["left"] < 0 or b in others
            kept = ("n_rows", "depth", "tree")
        for name in kept:
            assert one[name] == two[name], name
        np.testing.assert_array_equal(forest.sums[a], other.sums[b])
        if ends:
            continue
        assert (one["left_set"] < 0) == (two["left_set"] < 0)
        if one["left_set"] >= 0:
            sets = forest.sets[one["left_set"]], other.sets[two["left_set"]]
            np.testing.assert_array_equal(*sets)
        pairs += [(int(one[name]), int(two[name])) for name in ("left", "right")]


def growth_of(tree, X, y, n_folds=10, weights=None):
    table, binning = tree.find_bins(X)
    targets, classes = tree._targets(y)
    bounds = np.arange(n_folds + 1) * len(targets) // n_folds
    rows = BinnedRows(binning.bins(table), binning, targets, classes, bounds, weights)
    return partial(grow_forest, tree, rows, seed=tree.seed())


@pytest.mark.slow
@pytest.mark.parametrize(*spread(2, kind=TREES, n_folds=[2, 3, 10], weighted=[False, True]))
def test_a_forest_is_the_trees_grown_alone(kind, n_folds, weighted):
    tree = TREES[kind]
    X, y = rows_for(tree, missing=0.1, with_category=True)
    weights = weights_for(len(y)) if weighted else None
    growth = growth_of(tree, X, y, n_folds, weights)
    limits = Limits.of(tree)
    together = growth(limits)
    alone = growth(limits, together=False)
    for number in range(n_folds + 1):
        assert_equal_trees(together, alone, number)
    assert together.summary[3] <= together.summary[4] == alone.summary[4]
    assert weighted or n_folds == 2 or together.summary[3] < together.summary[4]


@pytest.mark.slow
def test_more_folds_than_are_grown_together():
    tree = HistTreeClassifier(random_state=0)
    growth = growth_of(tree, *rows_for(tree), 80)
    together, alone = growth(Limits()), growth(Limits(), together=False)
    for number in range(81):
        assert_equal_trees(together, alone, number)


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(2, kind=TREES, options=["weights", "repeats", "threads", "row losses"])
)
def test_the_method_is_that_of_separate_trees(kind, options):
    tree = TREES[kind]
    X, y = rows_for(tree, missing=0.1, with_category=True)
    options = {
        "weights": {"sample_weight": weights_for(len(y))},
        "repeats": {"cv": 3, "n_repeats": 2},
        "threads": {"n_jobs": 2, "cv": 10},
        "row losses": {"row_losses": True},
    }[options]
    forest = tree_cross_validate(tree, X, y, **options)
    assert forest.method == "forest"
    alone = tree_cross_validate(tree, X, y, method="standard", **options)
    np.testing.assert_array_equal(forest.test_score, alone.test_score)
    assert forest.n_updates < alone.n_updates == alone.n_updates_standard
    if "row_losses" in options:
        np.testing.assert_array_equal(forest.row_losses, alone.row_losses)


@pytest.mark.parametrize("kind", TREES)
def test_predictions_are_those_of_each_folds_tree(kind):
    """With few distinct values the edges are the same, up to values that a fold lacks."""
    tree = TREES[kind]
    X, y = rows_for(tree, missing=0.1)
    X = np.nan_to_num(np.round(X))
    cv = KFold(4, shuffle=True, random_state=1)
    ours = tree_cross_val_predict(tree, X, y, cv=cv)
    np.testing.assert_allclose(ours, cross_val_predict(tree, X, y, cv=cv), rtol=1e-12)
    if isinstance(tree, HistTreeClassifier):
        ours = tree_cross_val_predict(tree, X, y, cv=cv, response_method="predict_proba")
        expected = cross_val_predict(tree, X, y, cv=cv, method="predict_proba")
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["classes", "balanced", "numbers"])
def test_targets_of_a_fold_do_not_reach_its_tree(kind):
    tree = TREES[kind]
    X, y = rows_for(tree, missing=0.1, with_category=True)
    ids = np.arange(len(y)) % 5
    weights = np.ones(len(y))
    before = tree_cross_val_predict(tree, X, y, cv=ids, sample_weight=weights)
    for fold in range(5):
        own = ids == fold
        changed, heavy = y.copy(), weights.copy()
        changed[own] = y[own][::-1] if kind != "numbers" else 1e12 * (1 - y[own])
        heavy[own] = 0.37 if kind == "balanced" else 1e9
        with np.errstate(all="ignore"):
            after = tree_cross_val_predict(tree, X, changed, cv=ids, sample_weight=heavy)
        np.testing.assert_array_equal(after[own], before[own])
        assert np.any(after[~own] != before[~own])


# Sharing.


def settings_at_random(n, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        yield {
            "max_depth": rng.choice([None, 1, 2, 3, 5, 8]),
            "min_samples_split": rng.choice([2, 5, 20, 0.1]),
            "min_impurity_decrease": rng.choice([0.0, 1e-4, 1e-3, 1e-2]),
            "ccp_alpha": rng.choice([0.0, 1e-4, 1e-3, 1e-2]),
        }


@pytest.mark.slow
@pytest.mark.parametrize("kind", TREES)
def test_a_forest_answers_all_settings_that_only_stop_or_prune(kind):
    tree = TREES[kind]
    X, y = rows_for(tree, missing=0.05, with_category=True)
    growth = growth_of(tree, X, y, 5)
    forest = growth(Limits())
    for settings in settings_at_random(8):
        limits = Limits.of(clone(tree).set_params(**settings))
        own = growth(limits)
        assert forest.covers(limits)
        leaves, others = forest.prune(limits)[1], own.prune(limits)[1]
        for number in range(6):
            sets = set(leaves.tolist()), set(others.tolist())
            assert_equal_trees(forest, own, number, *sets)
        values = forest.expand_to_rows(leaves, forest.values(leaves))
        np.testing.assert_array_equal(values, own.expand_to_rows(others, own.values(others)))


@pytest.mark.parametrize("kind", TREES)
def test_a_node_of_min_samples_split_rows_is_split(kind):
    tree = TREES[kind]
    growth = growth_of(tree, *rows_for(tree), 3)
    forest = growth(Limits())
    for n_rows in (2, 3, 4, 7):
        limits = Limits(min_samples_split=n_rows)
        own = growth(limits)
        is_leaf = own.records["left"] < 0
        assert np.all(own.records["n_rows"][~is_leaf] >= n_rows)
        assert len(forest.prune(limits)[1]) == np.count_nonzero(is_leaf)


def test_what_a_forest_covers():
    tree = TREES["classes"]
    forest = growth_of(tree, *rows_for(tree), 5)(Limits(4, 10, 1e-3))
    assert forest.covers(Limits(4, 10, 1e-3)) and forest.covers(Limits(2, 0.5, 1.0, 3.0))
    for limits in (
        *(Limits(5, 10, 1e-3), Limits(4, 9, 1e-3)),
        *(Limits(4, 0.001, 1e-3), Limits(4, 10, 0.0)),
    ):
        assert not forest.covers(limits)


SPACE = {
    "max_depth": IntDistribution(1, 12),
    "min_samples_split": IntDistribution(2, 100, log=True),
    "min_impurity_decrease": FloatDistribution(1e-6, 1e-2, log=True),
    "ccp_alpha": FloatDistribution(1e-6, 1e-2, log=True),
}


def study_of(objective, n_trials=20, n_jobs=1):
    study = optuna.create_study(
        direction=objective.direction, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=n_trials, n_jobs=n_jobs)
    return study


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n_jobs"), [("entropy", 1), ("balanced", 2), ("numbers", 4), ("shares", 1)]
)
def test_a_study_grows_once(kind, n_jobs):
    tree = TREES[kind]
    X, y = rows_for(tree, with_category=True)
    weights = weights_for(len(y))
    space = {name: one for name, one in SPACE.items() if name != "min_samples_split"}
    options = {"sample_weight": weights, "cv": 5}
    objective = treecv_objective(tree, X, y, param_distributions=space, **options)
    study = study_of(objective, n_jobs=n_jobs)
    counts = [trial.user_attrs["treecv"]["n_updates"] for trial in study.trials]
    assert np.count_nonzero(counts) == 1
    for trial in study.trials[::5]:
        own = clone(tree).set_params(**trial.params)
        alone = tree_cross_validate(own, X, y, method="standard", **options)
        assert trial.value == alone.mean
    best = objective.best_estimator(study)
    fitted = clone(tree).set_params(**study.best_params).fit(X, y, weights)
    np.testing.assert_array_equal(best.tree_.nodes, fitted.tree_.nodes)
    np.testing.assert_array_equal(best.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(best.feature_names_in_, fitted.feature_names_in_)


def test_a_study_whose_space_is_not_known():
    """A forest that does not suffice is grown anew with room for what comes."""
    tree = HistTreeClassifier(random_state=0)
    X, y = rows_for(tree)

    def suggest(trial):
        return clone(tree).set_params(max_depth=trial.suggest_int("max_depth", 1, 40))

    study = study_of(treecv_objective(suggest, X, y, cv=5), 60)
    counts = [trial.user_attrs["treecv"]["n_updates"] for trial in study.trials]
    assert 1 < np.count_nonzero(counts) <= 6
    for trial in study.trials[::20]:
        alone = tree_cross_validate(
            clone(tree).set_params(**trial.params), X, y, cv=5, method="standard"
        )
        assert trial.value == alone.mean


@pytest.mark.parametrize("cache", [None, "small"])
def test_without_room_for_a_forest(cache):
    tree = HistTreeRegressor(random_state=0)
    X, y = rows_for(tree)
    room = None if cache is None else ModelCache(max_bytes=20_000)
    values = [
        [trial.value for trial in study_of(objective, 6).trials]
        for objective in (
            treecv_objective(tree, X, y, param_distributions=SPACE, cache=one, cv=5)
            for one in (room, "memory")
        )
    ]
    assert values[0] == values[1]
    assert room is None or room.n_bytes <= 20_000


@pytest.mark.slow
def test_a_store_keeps_the_scores(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    tree = HistTreeClassifier(random_state=0)
    X, y = rows_for(tree, 1000)
    first = treecv_objective(tree, X, y, param_distributions=SPACE, store=store, cv=5)
    study = study_of(first, 5)
    again = treecv_objective(tree, X, y, param_distributions=SPACE, store=store, cv=5)
    result = again.evaluate(study.trials[0].params)
    assert result.mean == study.trials[0].value
    assert result.n_updates == 0 and result.n_updates_saved > 0


def test_rows_in_bins_are_held_once_and_not_pickled():
    tree = HistTreeClassifier(random_state=0)
    X, y = rows_for(tree, 3000)
    space = {"max_bins": IntDistribution(10, 40)}
    objective = treecv_objective(tree, X, y, param_distributions=space, cv=5)
    values = {bins: objective.evaluate({"max_bins": bins}).mean for bins in (10, 20, 40)}
    assert [*objective.evaluator.cross_validation._found.last] == ["binned rows"]
    data = pickle.dumps(objective)
    assert len(data) < X.nbytes + 10 * y.nbytes
    again = pickle.loads(data)
    assert {bins: again.evaluate({"max_bins": bins}).mean for bins in (10, 20, 40)} == values


# Splits and bad input.


def test_splits_that_are_no_partition_are_fitted():
    tree = HistTreeRegressor(random_state=0)
    X, y = rows_for(tree)
    result = tree_cross_validate(tree, X, y, cv=TimeSeriesSplit(4))
    assert result.method == "fit" and "partition" in result.reason
    with pytest.raises(ValueError, match="^method='forest' cannot .*partition"):
        tree_cross_validate(tree, X, y, cv=TimeSeriesSplit(4), method="forest")
    assert tree_cross_validate(tree, X, y, cv=0.2).method == "forest"
    assert tree_cross_validate(tree, X, y, method="holdout").method == "holdout"
    groups = np.arange(len(y)) // 7
    assert tree_cross_validate(tree, X, y, cv=GroupKFold(5), groups=groups).method == "forest"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": "loo"}, "cv must have folds of several rows .*cv=10 or method='fit'"),
        ({"cv": 400}, "cv must have folds of several rows"),
        ({"method": "treecv"}, "method must be 'auto', 'forest', 'fit' or 'standard'"),
        ({"method": "exact"}, "method='exact' cannot .* are not computed from sums"),
        ({"method": "progressive"}, "partial_fit"),
        ({"order": "random"}, "order must be 'fixed'"),
        ({"cv": 401}, "cv must be between 2 and the number of rows"),
    ],
)
def test_arguments_that_trees_cannot_have(options, message):
    tree = TREES["classes"]
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(tree, *rows_for(tree), **options)


def test_forest_is_for_trees_without_preprocessing():
    X, y = rows_for(TREES["numbers"])
    with pytest.raises(ValueError, match="^method='forest' cannot evaluate this"):
        tree_cross_validate(DecisionTreeRegressor(), X, y, method="forest")
    result = tree_cross_validate(make_pipeline(StandardScaler(), TREES["numbers"]), X, y, cv=3)
    assert result.method == "fit" and "only without preprocessing" in result.reason


def test_a_scorer_that_may_look_at_the_model_needs_fits():
    X, y = rows_for(TREES["classes"])

    def depth(tree, X, y):
        return -tree.get_depth()

    tree = HistTreeClassifier(max_depth=3, random_state=0)
    result = tree_cross_validate(tree, X, y, scoring=depth, cv=3)
    assert (result.method, result.mean) == ("fit", -3)
    for method in ("forest", "standard"):
        with pytest.raises(ValueError, match=f"method='{method}' .* more than pred"):
            tree_cross_validate(tree, X, y, scoring=depth, cv=3, method=method)


def assert_refused(tree, X, y, weights, message, evaluate):
    """Check that ``fit`` and the forest of all folds refuse the same."""
    with pytest.raises(ValueError, match=message):
        if evaluate == "fit":
            tree.fit(X, y, weights)
        else:
            tree_cross_validate(tree, X, y, sample_weight=weights)


@pytest.mark.parametrize("evaluate", ["fit", "forest"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_bins": 1}, "max_bins"),
        ({"max_bins": 256}, "max_bins"),
        ({"max_depth": 0}, "max_depth"),
        ({"min_samples_leaf": 0}, "min_samples_leaf"),
        ({"ccp_alpha": -1.0}, "ccp_alpha"),
        ({"criterion": "friedman_mse"}, "criterion"),
        ({"categorical_features": [9]}, "categorical_features must contain indices of columns"),
        ({"categorical_features": ["a"]}, "categorical_features must contain indices of columns"),
        ({"categorical_features": [True]}, "categorical_features must have one entry per column"),
    ],
)
def test_parameters_out_of_range(change, message, evaluate):
    tree = HistTreeClassifier(**change)
    assert_refused(tree, *rows_for(tree), None, message, evaluate)


@pytest.mark.parametrize("evaluate", ["fit", "forest"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X, y: (np.where(X > 1, np.inf, X), y, None), "infinity"),
        (lambda X, y: (X, np.where(y > 0, np.nan, y), None), "y .*NaN|NaN"),
        (lambda X, y: (X, y, -np.ones(len(y))), "sample_weight must hold finite weights"),
        (lambda X, y: (X, y, np.full(len(y), np.nan)), "sample_weight must hold finite weights"),
        (lambda X, y: (X, y, np.zeros(len(y))), "sample_weight must hold a weight above 0"),
    ],
)
def test_rows_that_are_wrong(spoil, message, evaluate):
    tree = TREES["numbers"]
    assert_refused(clone(tree), *spoil(*rows_for(tree)), message, evaluate)


def test_one_class_and_too_many_categories_are_refused():
    X = np.arange(300.0)[:, None]
    with pytest.raises(ValueError, match="at least 2 classes"):
        HistTreeClassifier().fit(X, np.zeros(300))
    with pytest.raises(ValueError, match="X must have at most 255 categories .* got 300"):
        HistTreeRegressor(categorical_features=[0]).fit(X, X[:, 0])


def test_numbers_that_are_very_large_or_small():
    X, y = rows_for(TREES["numbers"])
    with pytest.raises(
        ValueError, match="y must hold numbers of at most 1e.150 in absolute value, .* -2e.300"
    ):
        HistTreeRegressor().fit(X, np.where(np.arange(len(y)) == 5, -2e300, y))
    with pytest.warns(UserWarning, match="y has outliers so large"):
        HistTreeRegressor().fit(X, np.where(np.arange(len(y)) == 3, 1e18, y))
    huge = HistTreeRegressor(min_samples_split=2**80, max_depth=2**80, random_state=0)
    assert huge.fit(X, y).get_n_leaves() == 1
    for scale in (1e-300, 1e140):
        scaled = HistTreeRegressor(max_depth=4, random_state=0).fit(X, y * scale).predict(X)
        plain = HistTreeRegressor(max_depth=4, random_state=0).fit(X, y).predict(X)
        np.testing.assert_allclose(scaled / scale, plain, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("several", [["1"], ["1", 0], [True, False, False]], ids=str)
def test_columns_by_name_and_by_number_are_told_apart(several):
    """The column called "1" is not column 1; each estimator gets its own bins."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.integers(0, 40, size=(400, 3)), columns=["0", "2", "1"])
    y = (rng.permutation(40)[X["2"]] % 2) * 2 + (rng.permutation(40)[X["1"]] % 2)
    trees = [
        HistTreeRegressor(categorical_features=columns, random_state=0, max_depth=4)
        for columns in (several, [1], np.array([1]), ["2"], [0, "1"])
    ]
    cv = np.arange(400) % 4
    together = tree_cross_validate_many(trees, X, y, cv=cv)
    objective = treecv_objective(
        HistTreeRegressor(random_state=0, max_depth=4),
        X,
        y,
        cv=cv,
        param_grid={"categorical_features": [tree.categorical_features for tree in trees]},
    )
    for tree, found in zip(trees, together, strict=True):
        errors = []
        for fold in range(4):
            fitted = clone(tree).fit(X[cv != fold], y[cv != fold])
            errors.append(np.mean((fitted.predict(X[cv == fold]) - y[cv == fold]) ** 2))
        np.testing.assert_allclose(found.test_score, errors, rtol=0.2)
        alone = tree_cross_validate(tree, X, y, cv=cv, method="standard")
        np.testing.assert_array_equal(found.test_score, alone.test_score)
        again = objective.evaluate({"categorical_features": tree.categorical_features})
        np.testing.assert_array_equal(again.test_score, alone.test_score)


def test_a_number_beside_a_name_stays_a_number():
    X = pd.DataFrame(np.zeros((3, 3)), columns=["0", "2", "1"])
    found = HistTreeRegressor(categorical_features=["1", 1]).find_bins(X)[1]
    assert found.is_categorical.tolist() == [0, 1, 1]


def test_a_missing_category_of_pandas_is_like_none():
    """A text "<NA>" is a category like any other."""
    texts, y = ["x", "y", "<NA>", "z"] * 20, np.arange(80.0) % 4
    tables = [
        pd.DataFrame({"a": pd.array([gap if text == "z" else text for text in texts], dtype)})
        for gap, dtype in ((pd.NA, "string"), (None, "object"))
    ]
    model = HistTreeRegressor(categorical_features=[0])
    found = [model.fit(table, y).predict(table) for table in tables]
    np.testing.assert_array_equal(found[0], y)
    np.testing.assert_array_equal(found[1], y)


def test_a_fold_whose_training_rows_lack_a_class():
    X, y = rows_for(TREES["classes"])
    rare = np.where(np.arange(len(y)) < 5, 9, y)
    ids = np.arange(len(y)) // 100
    tree = HistTreeClassifier(random_state=0)
    with pytest.warns(UserWarning, match="training set of fold 0 has no row of class 9"):
        result = tree_cross_validate(tree, X, rare, cv=ids)
    alone = tree_cross_validate(tree, X, rare, cv=ids, method="standard")
    np.testing.assert_array_equal(result.test_score, alone.test_score)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_only_the_ratios_of_weights_matter(scale):
    tree = HistTreeRegressor(min_samples_leaf=5, random_state=0)
    X, y = rows_for(tree)
    weights = weights_for(len(y)) + 0.3
    expected = tree_cross_validate(tree, X, y, sample_weight=weights).test_score
    found = tree_cross_validate(tree, X, y, sample_weight=weights * scale).test_score
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_categories_and_missing_values_that_were_not_seen():
    X = pd.DataFrame({"place": ["a", "b", "c"] * 40, "x": np.arange(120.0)})
    y = (X["place"] == "b").astype(int)
    tree = HistTreeClassifier(random_state=0).fit(X, y)
    new = pd.DataFrame({"place": ["b", "z", None, "a"], "x": [np.nan, 5.0, np.nan, 1.0]})
    assert tree.predict(new).tolist() == [1, 0, 0, 0]


def test_an_array_of_objects_has_the_scores_of_a_data_frame():
    rng = np.random.default_rng(0)
    letters, numbers = rng.choice(list("abc"), 200), rng.normal(size=200)
    y = (letters == "a") ^ (numbers > 0)
    frame = pd.DataFrame({"letter": pd.Categorical(letters), "number": numbers})
    found = [
        tree_cross_validate(HistTreeClassifier(max_depth=3, categorical_features=[0]), X, y, cv=4)
        for X in (frame, np.array([letters, numbers], dtype=object).T)
    ]
    np.testing.assert_array_equal(*(result.test_score for result in found))
    assert found[0].mean < 0.1
