"""The methods of a search that its best estimator carries out."""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any
from typing import Self

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils._set_output import _safe_set_output
from sklearn.utils.metadata_routing import _raise_for_params
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import check_is_fitted

from optuna_treecv.estimators.base import name_of


class Delegated:
    """A method that exists only where the best estimator has the one that it needs.

    It does what ``available_if`` of scikit-learn does, but its AttributeError also says itself why
    the method is not there.

    Parameters
    ----------
    method : callable
    name : str, default=None
        The method of the best estimator that it needs; None: the one of the same name.
    """

    def __init__(self, method: Callable[..., Any], name: str | None = None) -> None:
        self._method = method
        self._name = name or method.__name__
        self.__doc__ = method.__doc__

    def __get__(self, search: Any, owner: Any = None) -> Any:
        if search is None:
            return self._method
        try:
            search._check_has(self._name)
        except AttributeError as error:
            raise AttributeError(
                f"'{type(search).__name__}' has no attribute {self._method.__name__!r}: {error}"
            ) from error
        return MethodType(self._method, search)


class OfBestEstimator:
    """The methods and attributes that a search has from its best estimator.

    Attributes
    ----------
    estimator, refit
        As for ``TreeCVSearchCV``.
    best_estimator_, scorer_
        As for ``TreeCVSearchCV``, once it is fitted.
    """

    estimator: Any
    refit: bool | str | Callable[[dict[str, Any]], int]
    best_estimator_: Any
    scorer_: Any

    @property
    def _is_one_se(self) -> bool:
        return isinstance(self.refit, str) and self.refit == "one_se"

    @property
    def _refits(self) -> bool:
        return not isinstance(self.refit, bool | np.bool_) or bool(self.refit)

    def _check_refits(self, name: str) -> None:
        if not self._refits:
            raise AttributeError(
                f"This {type(self).__name__} instance was initialized with `refit=False`. {name} "
                "is available only after refitting on the best parameters, by refit=True or with "
                "an estimator of your own that has best_params_."
            )

    def _check_has(self, name: str) -> None:
        """Refuse what the best estimator, or before ``fit`` the estimator, does not have."""
        self._check_refits(name)
        getattr(getattr(self, "best_estimator_", self.estimator), name)

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """Return the score of the best estimator on given rows, by ``scorer_``.

        With several scores, it is the one that ``refit`` names; the first one for "one_se".

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), default=None
            Labels or targets.
        **params : dict
            Arguments of the scorer, where metadata routing is enabled.

        Returns
        -------
        float
            Larger is better.
        """
        self._check_refits("score")
        check_is_fitted(self, "best_estimator_")
        _raise_for_params(params, self, "score")
        if params:
            params = process_routing(self, "score", **params).scorer["score"]
        scorer = self.scorer_
        if isinstance(scorer, dict):
            name = next(iter(scorer)) if self.refit == "one_se" else self.refit
            if name not in scorer:
                raise ValueError(
                    "refit must name one of the scores for score, since there are several, got "
                    f"{self.refit!r}."
                )
            scorer = scorer[name]
        return float(scorer(self.best_estimator_, X, y, **params))

    @Delegated
    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets)
            Labels or numbers.
        """
        return self._best("predict", X)

    @Delegated
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of classes that the best estimator predicts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``.
        """
        return self._best("predict_proba", X)

    @Delegated
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities that the best estimator predicts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``.
        """
        return self._best("predict_log_proba", X)

    @Delegated
    def decision_function(self, X: Any) -> np.ndarray:
        """Return the values of the decision function of the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            As the best estimator returns them.
        """
        return self._best("decision_function", X)

    @Delegated
    def score_samples(self, X: Any) -> np.ndarray:
        """Return the score of each row that the best estimator computes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Such as log densities.
        """
        return self._best("score_samples", X)

    @Delegated
    def transform(self, X: Any) -> Any:
        """Return rows transformed by the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array-like or sparse matrix of shape (n_samples, n_outputs)
            Transformed rows.
        """
        return self._best("transform", X)

    @Delegated
    def inverse_transform(self, X: Any) -> Any:
        """Return rows transformed back by the best estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_outputs)
            Transformed rows.

        Returns
        -------
        array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        """
        return self._best("inverse_transform", X)

    @partial(Delegated, name="transform")
    def set_output(self, *, transform: Any = None) -> Self:
        """Choose the type of the output of ``transform``.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            None changes nothing.

        Returns
        -------
        self
            The search, whose estimator and ``best_estimator_`` are changed.
        """
        _safe_set_output(self.estimator, transform=transform)
        if hasattr(self, "best_estimator_"):
            _safe_set_output(self.best_estimator_, transform=transform)
        return self

    def _best(self, method: str, X: Any) -> Any:
        check_is_fitted(self, "best_estimator_")
        return getattr(self.best_estimator_, method)(X)

    @property
    def classes_(self) -> np.ndarray:
        """The labels, of classifiers."""
        self._check_has("classes_")
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """The number of columns of X."""
        self._check_refits("n_features_in_")
        try:
            check_is_fitted(self, "best_estimator_")
        except NotFittedError as error:
            raise AttributeError(f"{name_of(self)} has no n_features_in_ before fit.") from error
        return int(self.best_estimator_.n_features_in_)
