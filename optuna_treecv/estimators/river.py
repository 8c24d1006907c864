"""Wraps River models as scikit-learn estimators.

This module imports River and is loaded only if the caller has a River model.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import inspect
from typing import Any
from typing import Self

import numpy as np
from river import base
from river import cluster
from river import compose
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags
from sklearn.utils import RegressorTags
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if

# For a pipeline, isinstance checks the last step, because River overrides it.
_KINDS = {"classifier": base.Classifier, "regressor": base.Regressor, "clusterer": base.Clusterer}

# A River model skips this test if its learn_many differs from learn_one row by row. The linear
# models make a single step for a whole batch, which takes too few gradient steps.
_LEARN_MANY_TEST = "check_learn_many_matches_learn_one"


class RiverEstimator(BaseEstimator):
    """A River model with the interface of a scikit-learn estimator.

    Parameters
    ----------
    river_model : classifier, regressor or clusterer of River, or pipeline that ends in one
        Trained in place.
    """

    def __init__(self, river_model: Any) -> None:
        self.river_model = river_model

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return repr(self.river_model)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = next(
            name for name, kind in _KINDS.items() if isinstance(self.river_model, kind)
        )
        if tags.estimator_type == "classifier":
            tags.classifier_tags = ClassifierTags()
        elif tags.estimator_type == "regressor":
            tags.regressor_tags = RegressorTags()
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the model's parameters if ``deep``; nested ones are named ``step__parameter``."""
        return _flat(self.river_model._get_params()) if deep else {"river_model": self.river_model}

    def set_params(self, **params: Any) -> Self:
        """Replace the model by an untrained copy with other parameters."""
        nested = self.river_model._get_params()
        for name, value in params.items():
            *path, last = name.split("__")
            inner: Any = nested
            for key in path:
                inner = _inside(inner[key])
            inner[last] = value
        self.river_model = self.river_model.clone(nested)
        return self

    def forget_seeds(self, names: Iterable[str]) -> None:
        """Set seeds to None without changing the trained state."""
        for name in names:
            *path, last = name.split("__")
            part = self.river_model
            for key in path:
                of_steps = isinstance(part, compose.Pipeline | compose.TransformerUnion)
                part = part[key] if of_steps else getattr(part, key)
            setattr(part, last, None)

    @property
    def takes_weights(self) -> bool:
        """Whether the model supports real-valued weights.

        River's clusterers accept a weight but ignore it, and ``AMRules`` rounds it.
        """
        model = self.river_model
        last = model[-1] if isinstance(model, compose.Pipeline) else model
        weight = inspect.signature(last.learn_one).parameters.get("w")
        return last._supervised and weight is not None and isinstance(weight.default, float)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: np.ndarray | None = None,
        sample_weight: np.ndarray | None = None,
    ) -> Self:
        """Train the model on rows in the given order, except rows with weight 0."""
        if classes is not None:
            self.classes_ = classes
        model = self.river_model
        if sample_weight is not None:  # no model with weights has an equivalent learn_many
            assert y is not None
            for x, target, w in zip(_dicts(X), y.tolist(), sample_weight.tolist(), strict=True):
                if w > 0:  # means of weights would divide by 0
                    model.learn_one(x, target, w=w)
        elif y is not None and _learns_many_alike(model):
            import pandas as pd

            # River needs a data frame. Columns of an array get the names used in learn_one.
            frame = X if hasattr(X, "iloc") else pd.DataFrame(X, copy=False)
            model.learn_many(frame, pd.Series(y, index=frame.index))
        elif y is None or not model._supervised:
            for x in _dicts(X):
                model.learn_one(x)
        else:
            for x, target in zip(_dicts(X), y.tolist(), strict=True):
                model.learn_one(x, target)
        return self

    def predict_codes(self, X: Any) -> np.ndarray:
        """Return the predicted class codes; -1 if the model has not seen any class yet."""
        codes = {label: code for code, label in enumerate(self.classes_.tolist())}
        predict = self.river_model.predict_one
        return np.array([codes.get(predict(x), -1) for x in _dicts(X)])

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted labels, targets or clusters."""
        if not isinstance(self.river_model, base.Classifier):
            kind = int if isinstance(self.river_model, base.Clusterer) else float
            return np.array([self.river_model.predict_one(x) for x in _dicts(X)], kind)
        codes = self.predict_codes(X)
        if np.any(codes < 0):
            name = type(self.river_model).__name__
            raise ValueError(f"{name} predicts no class, because it has not seen any class yet.")
        return self.classes_[codes]

    @available_if(lambda self: isinstance(self.river_model, base.Classifier))
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class; 0 for classes that the model has not seen yet."""
        labels = self.classes_.tolist()
        probabilities = map(self.river_model.predict_proba_one, _dicts(X))
        return np.array([[p.get(label, 0.0) for label in labels] for p in probabilities])

    @available_if(lambda self: isinstance(self.river_model, cluster.KMeans))
    def transform(self, X: Any) -> np.ndarray:
        """Return the distances to the cluster centers."""
        model, rows = self.river_model, _dicts(X)
        if isinstance(model, compose.Pipeline):
            rows = [model.transform_one(x) for x in rows]
            model = model[-1]
        centers = model.centers.values()
        squares = [
            [sum((c.get(k, 0) - x.get(k, 0)) ** 2 for k in {**x, **c}) for c in centers]
            for x in rows
        ]
        return np.sqrt(squares)


def around(model: Any) -> RiverEstimator:
    """Return an untrained copy of a River model, wrapped as a scikit-learn estimator.

    Raises
    ------
    ValueError
        If the model is not a classifier, regressor or clusterer.
    """
    if not any(isinstance(model, kind) for kind in _KINDS.values()):
        raise ValueError(
            "estimator must be a classifier, regressor or clusterer of River, or a pipeline that "
            f"ends in one, got {model!s}."
        )
    return RiverEstimator(model.clone())


def _learns_many_alike(model: Any) -> bool:
    """Return whether ``learn_many`` gives the same model as ``learn_one`` for each row.

    It does not for pipelines, which transform the whole batch by their state after the batch, and
    for wrappers, which pass the whole batch to models of new classes.
    """
    return (
        hasattr(model, "learn_many")
        and not isinstance(model, compose.Pipeline | base.Wrapper)
        and _LEARN_MANY_TEST not in model._unit_test_skips()
    )


def _dicts(X: Any) -> list[dict[Any, Any]]:
    """Return rows as dicts for River; the columns of an array are named 0, 1, ..."""
    if hasattr(X, "to_dict"):
        return X.to_dict("records")
    return [dict(enumerate(row)) for row in X.tolist()]


def _inside(param: Any) -> dict[str, Any] | None:
    """Return the parameters nested in a parameter, in the form of River's ``_get_params``."""
    if isinstance(param, tuple) and len(param) == 2 and isinstance(param[0], type):
        param = param[1]
    return param if isinstance(param, dict) else None


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, param in params.items():
        if name.startswith("_"):
            continue  # positional arguments have no names
        flat[prefix + name] = param
        flat.update(_flat(_inside(param) or {}, f"{prefix}{name}__"))
    return flat
