"""The search spaces of ``param_distributions="auto"``."""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.pipeline import Pipeline

from optuna_treecv.learners.names import name_of


def _log(low: float, high: float) -> BaseDistribution:
    """Return a range of floats, or of integers where both ends are, on a log scale."""
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=True)
    return FloatDistribution(low, high, log=True)


# (package, classes, space); docs/user_guide/spaces.rst shows the same.
TABLE: list[tuple[str, str, dict[str, BaseDistribution]]] = [
    (
        "optuna_treecv",
        "AveragedSGDClassifier AveragedSGDRegressor PegasosClassifier RootSGDClassifier "
        "RootSGDRegressor StreamingSVRGClassifier StreamingSVRGRegressor",
        {"alpha": _log(1e-8, 1.0)},
    ),
    ("optuna_treecv", "LSQSGDRegressor", {"step_size": _log(1e-4, 1.0), "radius": _log(0.1, 1e3)}),
    ("optuna_treecv", "StreamingGaussianDensity", {"reg_covar": _log(1e-8, 1.0)}),
    (
        "optuna_treecv",
        "HistTreeClassifier HistTreeRegressor",
        {"max_depth": _log(2, 32), "min_samples_leaf": _log(1, 100)},
    ),
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
        {"max_depth": _log(2, 32), "min_samples_leaf": _log(1, 100)},
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


def recommended_space(estimator: Any) -> dict[str, BaseDistribution]:
    """Return the recommended distributions of an estimator's parameters.

    Those of a Pipeline are the ones of its last step. A parameter that has another value than its
    default keeps that value, and is not searched.

    Raises
    ------
    ValueError
        If none is known, or no parameter is left to search.
    """
    prefix, last = "", estimator
    while isinstance(last, Pipeline):
        name, last = last.steps[-1]
        prefix = f"{prefix}{name}__"
    kind = type(last)
    package = kind.__module__.partition(".")[0]
    known = (one for of, names, one in TABLE if of == package and kind.__name__ in names.split())
    if (space := next(known, None)) is None:
        raise ValueError(
            "param_distributions='auto' knows no space for "
            f"{name_of(last)}; a dict such as {{{f'{prefix}alpha'!r}: "
            "FloatDistribution(1e-5, 1e2, log=True)} would be right. The user guide lists the "
            "estimators that it knows (Search spaces)."
        )
    given, default = last.get_params(deep=False), kind().get_params(deep=False)
    left = [name for name in space if np.array_equal(given[name], default[name])]
    if not left:
        raise ValueError(
            f"param_distributions='auto' searches {', '.join(space)} of {name_of(last)}, which "
            "must have the default value to be searched, got "
            f"{', '.join(f'{name}={given[name]!r}' for name in space)}."
        )
    return {prefix + name: space[name] for name in left}
