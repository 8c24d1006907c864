"""The parameters of each ensemble that grows, with some values of each, for tests and attacks.

A value of one parameter may decide whether the first trees, or a pruned or smaller tree, are those
of a fit with another value of a second one. So these tables hold all parameters that change trees,
and the tests take pairs of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.dummy import DummyRegressor
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
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree import DecisionTreeRegressor

#: The columns of the rows that ``rows`` returns.
N_COLUMNS = 5

Values = Mapping[str, Sequence[Any]]


class Ensemble(NamedTuple):
    """An ensemble and what may be varied.

    Attributes
    ----------
    kind : type
    given : dict
        Parameters that it always has.
    values : dict of str to sequence
        By the parameter, its values; the default comes first.
    searched : dict of str to sequence
        By the parameter, values of it that are evaluated together.
    """

    kind: type
    given: dict[str, Any]
    values: Values
    searched: Values


_TREES: Values = {
    "max_depth": [None, 3],
    "min_samples_split": [2, 0.2],
    "min_samples_leaf": [1, 4],
    "min_weight_fraction_leaf": [0.0, 0.05],
    "min_impurity_decrease": [0.0, 0.02],
    "ccp_alpha": [0.0, 0.015, 0.3],
    "max_leaf_nodes": [None, 5],
    "monotonic_cst": [None, [1, 0, -1, 0, 0]],
    "random_state": [0, np.random.RandomState(3)],
}
_FOREST: Values = _TREES | {
    "bootstrap": [True, False],
    "max_features": ["sqrt", None, 0.5, 1],
    "n_jobs": [None, 2],
}
_OF_CLASSES: Values = {
    "criterion": ["gini", "entropy", "log_loss"],
    "class_weight": [None, "balanced", "balanced_subsample"],
}
_OF_NUMBERS: Values = {"criterion": ["squared_error", "friedman_mse", "absolute_error", "poisson"]}
_OF_FOREST: Values = {
    "n_estimators": [2, 7],
    "max_leaf_nodes": [2, 4, 9],
    "ccp_alpha": [0.0, 0.01, 0.05],
}

_GRADIENT: Values = {
    "learning_rate": [0.1, 0.8],
    "subsample": [1.0, 0.6],
    "criterion": ["friedman_mse", "squared_error"],
    "min_samples_split": [2, 0.2],
    "min_samples_leaf": [1, 4],
    "min_weight_fraction_leaf": [0.0, 0.05],
    "max_depth": [3, None, 1],
    "min_impurity_decrease": [0.0, 0.1],
    "init": [None, "zero"],
    "random_state": [0, np.random.RandomState(3)],
    "max_features": [None, "sqrt"],
    "max_leaf_nodes": [None, 4],
    "n_iter_no_change": [None, 2],
    "ccp_alpha": [0.0, 0.02],
}

_HIST: Values = {
    "learning_rate": [0.1, 0.9],
    "max_leaf_nodes": [31, 3, None],
    "max_depth": [None, 2],
    "min_samples_leaf": [20, 3, 60],
    "l2_regularization": [0.0, 2.0],
    "max_features": [1.0, 0.4],
    "max_bins": [255, 4],
    "categorical_features": ["from_dtype", [4]],
    "monotonic_cst": [None, [1, 0, -1, 0, 0]],
    "interaction_cst": [None, "no_interactions"],
    "early_stopping": ["auto", True],
    "scoring": ["loss", None],
    "validation_fraction": [0.2, None],
    "n_iter_no_change": [10, 2],
    "tol": [1e-7, 0.01],
    "random_state": [0, np.random.RandomState(3)],
}

_BAGGING: Values = {
    "max_samples": [1.0, 0.5, 12],
    "max_features": [1.0, 0.5],
    "bootstrap": [True, False],
    "bootstrap_features": [False, True],
    "random_state": [0, np.random.RandomState(3)],
    "n_jobs": [None, 2],
}

_LIGHTGBM: Values = {
    "boosting_type": ["gbdt", "dart", "rf"],
    "num_leaves": [31, 3],
    "max_depth": [-1, 2],
    "learning_rate": [0.1, 0.9],
    "subsample_for_bin": [200_000, 20],
    "min_split_gain": [0.0, 1.0, 1e9],
    "min_child_weight": [1e-3, 5.0, 1e6],
    "min_child_samples": [20, 3, 40, 70],
    "subsample": [1.0, 0.6],
    "subsample_freq": [0, 2],
    "colsample_bytree": [1.0, 0.4],
    "reg_alpha": [0.0, 1.0],
    "reg_lambda": [0.0, 5.0],
    "boost_from_average": [True, False],
    "max_bin": [255, 4],
    "extra_trees": [False, True],
    "linear_tree": [False, True],
    "path_smooth": [0.0, 2.0],
    "max_delta_step": [0.0, 0.1],
    "monotone_constraints": [None, [1, 0, -1, 0, 0]],
    "data_sample_strategy": ["bagging", "goss"],
    "feature_fraction_bynode": [1.0, 0.5],
    "use_quantized_grad": [False, True],
    "max_cat_to_onehot": [4, 1],
    "random_state": [0, 7],
}

_XGBOOST: Values = {
    "max_depth": [3, 1, 0],
    "learning_rate": [0.3, 0.9],
    "gamma": [0.0, 2.0, 1e9],
    "min_child_weight": [1.0, 10.0, 1e6],
    "max_delta_step": [0.0, 0.2],
    "subsample": [1.0, 0.6],
    "colsample_bytree": [1.0, 0.5],
    "colsample_bylevel": [1.0, 0.5],
    "colsample_bynode": [1.0, 0.5],
    "reg_alpha": [0.0, 1.0],
    "reg_lambda": [1.0, 9.0],
    "base_score": [None, 0.3],
    "max_bin": [256, 4],
    "tree_method": ["hist", "exact", "approx"],
    "grow_policy": ["depthwise", "lossguide"],
    "max_leaves": [0, 3],
    "num_parallel_tree": [1, 2],
    "monotone_constraints": [None, (1, 0, -1, 0, 0)],
    "interaction_constraints": [None, [["f0", "f1"], ["f2", "f3", "f4"]]],
    "missing": [np.nan, 0.0],
    "booster": ["gbtree", "dart", "gblinear"],
    "random_state": [0, 7],
}

_CATBOOST: Values = {
    "depth": [6, 2],
    "l2_leaf_reg": [3.0, 0.1],
    "rsm": [1.0, 0.5],
    "bootstrap_type": ["MVS", "Bernoulli", "Bayesian", "No"],
    "sampling_frequency": ["PerTree", "PerTreeLevel"],
    "boosting_type": ["Plain", "Ordered"],
    "grow_policy": ["SymmetricTree", "Depthwise", "Lossguide"],
    "min_data_in_leaf": [1, 20],
    "random_strength": [1.0, 0.0, 9.0],
    "border_count": [254, 4],
    "feature_border_type": ["GreedyLogSum", "Uniform"],
    "leaf_estimation_method": ["Newton", "Gradient"],
    "leaf_estimation_iterations": [1, 4],
    "leaf_estimation_backtracking": ["AnyImprovement", "No"],
    "score_function": ["Cosine", "L2"],
    "monotone_constraints": ["", "0:1,2:-1"],
    "feature_weights": ["", "0:0.2"],
    "boost_from_average": [False, True],
    "has_time": [False, True],
    "model_size_reg": [0.5, 0.0],
    "langevin": [False, True],
    "model_shrink_rate": [0.0, 0.2],
    "random_seed": [0, 7],
}


def _forest(kind: type, of_targets: Values) -> Ensemble:
    is_random = kind.__name__.startswith("Random")
    values = _FOREST | of_targets | {"max_samples": [None, 0.5]} if is_random else _FOREST
    return Ensemble(kind, {"n_estimators": 4}, values | of_targets, _OF_FOREST)


def _boosters() -> dict[str, Ensemble]:
    ensembles = {}
    if find_spec("catboost"):
        from catboost import CatBoostClassifier
        from catboost import CatBoostRegressor

        given = {"iterations": 4, "learning_rate": 0.2, "thread_count": 1, "verbose": False}
        given["allow_writing_files"] = False
        of_classes = {"auto_class_weights": ["None", "Balanced"]}
        of_numbers = {"loss_function": ["RMSE", "MAE", "Quantile:alpha=0.3", "Poisson"]}
        sizes = {"iterations": [1, 3, 9]}
        for kind, values in ((CatBoostClassifier, of_classes), (CatBoostRegressor, of_numbers)):
            ensembles[kind.__name__] = Ensemble(kind, given, _CATBOOST | values, sizes)
    if find_spec("lightgbm"):
        from lightgbm import LGBMClassifier
        from lightgbm import LGBMRegressor

        given = {"n_estimators": 4, "n_jobs": 1, "verbose": -1}
        of_classes = {"class_weight": [None, "balanced"], "is_unbalance": [False, True]}
        of_classes["objective"] = [None, "cross_entropy"]
        of_numbers = {"objective": [None, "l1", "huber", "quantile", "mape", "fair", "poisson"]}
        of_numbers["objective"] += ["gamma", "tweedie"]
        of_numbers["reg_sqrt"] = [False, True]
        sizes = {"n_estimators": [1, 3, 9]}
        for kind, values in ((LGBMClassifier, of_classes), (LGBMRegressor, of_numbers)):
            ensembles[kind.__name__] = Ensemble(kind, given, _LIGHTGBM | values, sizes)
    if find_spec("xgboost"):
        from xgboost import XGBClassifier
        from xgboost import XGBRegressor

        given = {"n_estimators": 4, "n_jobs": 1}
        of_classes = {"scale_pos_weight": [1.0, 4.0], "objective": [None, "binary:logitraw"]}
        of_numbers = {"objective": [None, "reg:absoluteerror", "reg:quantileerror"]}
        of_numbers["objective"] += ["reg:pseudohubererror", "count:poisson", "reg:gamma"]
        of_numbers["quantile_alpha"] = [0.3]
        sizes = {"n_estimators": [1, 3, 9]}
        for kind, values in ((XGBClassifier, of_classes), (XGBRegressor, of_numbers)):
            ensembles[kind.__name__] = Ensemble(kind, given, _XGBOOST | values, sizes)
    return ensembles


def _sklearn() -> dict[str, Ensemble]:
    sizes = {"n_estimators": [1, 3, 9]}
    gradient = _GRADIENT | {"init": [None, "zero", DummyClassifier(strategy="prior")]}
    numbers = _GRADIENT | {"loss": ["squared_error", "absolute_error", "huber", "quantile"]}
    numbers |= {"init": [None, "zero", DummyRegressor(), Ridge()], "alpha": [0.9, 0.3]}
    hist_of_classes = _HIST | {"class_weight": [None, "balanced"]}
    losses = ["squared_error", "absolute_error", "gamma", "poisson", "quantile"]
    hist_of_numbers = _HIST | {"loss": losses, "quantile": [0.5, 0.2]}
    hist = {"max_iter": 4}, {"max_iter": [1, 3, 9]}
    of_classes = _BAGGING | {"estimator": [None, DecisionTreeClassifier(ccp_alpha=0.02)]}
    of_numbers = _BAGGING | {"estimator": [None, DecisionTreeRegressor(max_leaf_nodes=4), Ridge()]}
    made = [
        _forest(RandomForestClassifier, _OF_CLASSES),
        _forest(RandomForestRegressor, _OF_NUMBERS),
        _forest(ExtraTreesClassifier, _OF_CLASSES),
        _forest(ExtraTreesRegressor, _OF_NUMBERS),
        Ensemble(
            GradientBoostingClassifier,
            {"n_estimators": 4},
            gradient | {"loss": ["log_loss", "exponential"]},
            sizes,
        ),
        Ensemble(GradientBoostingRegressor, {"n_estimators": 4}, numbers, sizes),
        Ensemble(HistGradientBoostingClassifier, hist[0], hist_of_classes, hist[1]),
        Ensemble(HistGradientBoostingRegressor, hist[0], hist_of_numbers, hist[1]),
        Ensemble(BaggingClassifier, {"n_estimators": 4}, of_classes, {"n_estimators": [2, 7]}),
        Ensemble(BaggingRegressor, {"n_estimators": 4}, of_numbers, {"n_estimators": [2, 7]}),
    ]
    return {one.kind.__name__: one for one in made}


#: By the name of the class.
ENSEMBLES: dict[str, Ensemble] = _sklearn() | _boosters()


def rows(rng: np.random.Generator, n_rows: int = 70) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with ``N_COLUMNS`` columns, the last one of few values, and positive targets."""
    X = rng.normal(size=(n_rows, N_COLUMNS))
    X[:, 4] = rng.integers(0, 4, n_rows)
    signal = X[:, 0] + np.sin(3 * X[:, 1]) + (X[:, 4] == 2) + 0.4 * rng.normal(size=n_rows)
    return X, np.exp(0.7 * signal).round(3)


def classes_of(y: np.ndarray, n_classes: int) -> np.ndarray:
    """Return classes 0, 1, ... of about equal size."""
    return np.searchsorted(np.quantile(y, np.arange(1, n_classes) / n_classes), y)
