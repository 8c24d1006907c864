"""The recommended search spaces, for ``param_distributions="auto"``."""

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.pipeline import Pipeline

from optuna_treecv.core.settings import is_number
from optuna_treecv.estimators.base import name_of
from optuna_treecv.types import Estimator


def _log(low: float, high: float) -> BaseDistribution:
    """Return a log-scaled distribution: of integers if both ends are integers, else of floats."""
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=True)
    return FloatDistribution(low, high, log=True)


_TREE_SPACE: dict[str, BaseDistribution] = {
    "max_depth": _log(2, 32),
    "min_samples_leaf": _log(1, 100),
}

#: Package, class names and search space. docs/reference/spaces.rst has the same table.
TABLE: list[tuple[str, str, dict[str, BaseDistribution]]] = [
    (
        "optuna_treecv",
        "AveragedSGDClassifier AveragedSGDRegressor PegasosClassifier "
        "StreamingSVRGClassifier StreamingSVRGRegressor",
        {"alpha": _log(1e-8, 1.0)},
    ),
    ("optuna_treecv", "LSQSGDRegressor", {"step_size": _log(1e-4, 1.0), "radius": _log(0.1, 1e3)}),
    ("optuna_treecv", "StreamingGaussianDensity", {"reg_covar": _log(1e-8, 1.0)}),
    ("optuna_treecv", "HistTreeClassifier HistTreeRegressor", _TREE_SPACE),
    ("sklearn", "Ridge RidgeClassifier", {"alpha": _log(1e-4, 1e6)}),
    ("sklearn", "Lasso", {"alpha": _log(1e-5, 1e2)}),
    ("sklearn", "ElasticNet", {"alpha": _log(1e-5, 1e2), "l1_ratio": FloatDistribution(0.05, 1)}),
    ("sklearn", "LogisticRegression LinearSVC", {"C": _log(1e-4, 1e4)}),
    ("sklearn", "SGDClassifier SGDRegressor", {"alpha": _log(1e-7, 0.1)}),
    (
        "sklearn",
        "KNeighborsClassifier KNeighborsRegressor",
        {
            "n_neighbors": _log(1, 50),
            "weights": CategoricalDistribution(["uniform", "distance"]),
            "p": CategoricalDistribution([1, 2]),
        },
    ),
    (
        "sklearn",
        "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier ExtraTreeRegressor",
        _TREE_SPACE,
    ),
    (
        "sklearn",
        "RandomForestClassifier RandomForestRegressor ExtraTreesClassifier ExtraTreesRegressor",
        {"max_features": FloatDistribution(0.1, 1), "min_samples_leaf": _log(1, 50)},
    ),
    (
        "sklearn",
        "HistGradientBoostingClassifier HistGradientBoostingRegressor",
        {
            "learning_rate": _log(0.01, 0.5),
            "max_iter": _log(50, 500),
            "max_leaf_nodes": _log(8, 128),
            "min_samples_leaf": _log(5, 100),
            "l2_regularization": _log(1e-6, 10.0),
            "max_features": FloatDistribution(0.3, 1),
        },
    ),
    (
        "lightgbm",
        "LGBMClassifier LGBMRegressor",
        {
            "learning_rate": _log(0.01, 0.5),
            "n_estimators": _log(50, 500),
            "num_leaves": _log(8, 128),
            "min_child_samples": _log(5, 100),
            "reg_lambda": _log(1e-6, 10.0),
            "colsample_bytree": FloatDistribution(0.3, 1),
        },
    ),
    (
        "xgboost",
        "XGBClassifier XGBRegressor",
        {
            "learning_rate": _log(0.01, 0.5),
            "n_estimators": _log(50, 500),
            "max_depth": IntDistribution(2, 10),
            "min_child_weight": _log(1, 30),
            "reg_lambda": _log(1e-3, 10.0),
            "subsample": FloatDistribution(0.5, 1),
            "colsample_bytree": FloatDistribution(0.3, 1),
        },
    ),
]


def recommended_space(estimator: Estimator) -> dict[str, BaseDistribution]:
    """Return the recommended distributions of an estimator's parameters.

    For a Pipeline, the space of its last step is returned. A parameter that differs from its
    default keeps its value and is not searched.

    Raises
    ------
    ValueError
        If there is no recommended space for the estimator, or if none of the parameters has its
        default value.
    """
    prefix, last, space = _find_last_step(estimator)
    if space is None:
        raise ValueError(
            f"param_distributions='auto' has no recommended search space for {name_of(last)}; use "
            f"a dict such as {{{suggest_parameter(estimator)!r}: FloatDistribution(...)}} "
            "instead. The page on search spaces in the documentation lists the supported "
            "estimators."
        )
    params, default = last.get_params(deep=False), type(last)().get_params(deep=False)
    names_to_search = [name for name in space if np.array_equal(params[name], default[name])]
    if not names_to_search:
        raise ValueError(
            "param_distributions='auto' searches only parameters that have their default values, "
            f"but all parameters that it could search for {name_of(last)} have other values: "
            f"{', '.join(f'{name}={params[name]!r}' for name in space)}."
        )
    return {prefix + name: space[name] for name in names_to_search}


def _find_last_step(
    estimator: Estimator,
) -> tuple[str, Estimator, dict[str, BaseDistribution] | None]:
    """Return the prefix of the last step's parameters, the step, and its recommended space."""
    prefix, last = "", estimator
    while isinstance(last, Pipeline):
        name, last = last.steps[-1]
        prefix = f"{prefix}{name}__"
    kind = type(last)
    package = kind.__module__.partition(".")[0]
    name = kind.__name__
    spaces = (space for owner, names, space in TABLE if owner == package and name in names.split())
    return prefix, last, next(spaces, None)


def suggest_parameter(estimator: Estimator) -> str:
    """Return the name of a parameter that could be searched, for error messages."""
    prefix, last, space = _find_last_step(estimator)
    params = last.get_params()
    numbers = [name for name, value in params.items() if is_number(value)]
    return prefix + next(iter(space or numbers or params), "...")
