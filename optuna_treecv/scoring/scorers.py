"""Call scikit-learn scorers with a fitted estimator, or with its stored predictions."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
import warnings

import numpy as np
from scipy.special import xlogy
from sklearn import metrics
from sklearn.base import BaseEstimator
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.utils import get_tags
from sklearn.utils import Tags
from sklearn.utils.validation import _num_samples

from optuna_treecv.estimators.base import METHOD_NAMES
from optuna_treecv.estimators.base import name_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.metrics import SCORER_ADVICE
from optuna_treecv.scoring.metrics import SCORER_EXPECTED

_DICT_ADVICE = "use a dict of scorers, each of which returns one number, instead"


#: The score of a fold whose scorer has raised an error. It is a NaN with a special bit pattern,
#: which distinguishes it from a NaN that a scorer returns.
FAILED = float(np.array(0x7FF8_0000_FA11_ED00, np.uint64).view(np.float64))


def are_failed(scores: np.ndarray) -> np.ndarray:
    """Return a boolean array: which of the scores, of dtype float64, are ``FAILED``."""
    return scores.view(np.uint64) == np.array(FAILED).view(np.uint64)


class NoNumber(ValueError):
    """Raised if a scorer does not return a number.

    Attributes
    ----------
    names : sequence of str
        The keys if the scorer has returned a dict of scores; otherwise empty.
    """

    names: Sequence[str] = ()


def score_of(
    scorer: Scorer,
    estimator: Any,
    X: Any,
    y: Any,
    classes: np.ndarray | None,
    params: Mapping[str, Any],
    is_pooled: bool = False,
) -> float:
    """Return the score of a fitted estimator on the rows of a fold.

    If the scorer has an ``error_score``, the score is ``FAILED`` if it raises an error, and NaN if
    it returns NaN.

    Parameters
    ----------
    scorer : Scorer
    estimator : estimator
    X, y : the rows of the fold
    classes : ndarray or None
        The sorted classes of all rows, for classifiers.
    params : dict
        Further arguments of the scorer, such as ``sample_weight`` of these rows.
    is_pooled : bool
        Whether X and y are the rows of all folds, for a pooled score.

    Raises
    ------
    ValueError
        If the score is undefined on these rows, or is not a number.
    """
    try:
        score = _returned_score(scorer, estimator, X, y, classes, params, is_pooled)
    except NoNumber:
        raise
    except Exception as error:
        if scorer.error_score is None:
            raise
        warnings.warn(
            "Scoring failed. The score on this train-test partition for these parameters will be "
            f"set to {scorer.error_score}. Details: {type(error).__name__}: {error}",
            UserWarning,
            stacklevel=2,
        )
        return FAILED
    if np.isnan(score) and scorer.error_score is None:
        raise undefined(scorer, "NaN", estimator, _num_samples(X), is_pooled)
    return scorer.if_diverged if np.isinf(score) else score


def _returned_score(
    scorer: Scorer,
    estimator: Any,
    X: Any,
    y: Any,
    classes: np.ndarray | None,
    params: Mapping[str, Any],
    is_pooled: bool,
) -> float:
    """Call a scorer and return its result as a float; raise an error with advice if this fails."""
    try:
        is_plain = scorer.is_registered and classes is not None and not params
        returned = _plain_score(scorer, estimator, X, y) if is_plain else None
        if returned is None and scorer.is_zero_one and not hasattr(estimator, "classes_"):
            # The accuracy scorer of scikit-learn needs the attribute classes_ of classifiers.
            returned = metrics.accuracy_score(y, estimator.predict(X), **params)
        elif returned is None:
            returned = scorer.score(estimator, X, y, **params)
    except (TypeError, ValueError) as error:
        is_value = isinstance(error, ValueError)
        if is_value and classes is not None and len(np.unique(y)) < len(classes):
            n_rows = _num_samples(X)
            raise undefined(scorer, str(error), estimator, n_rows, is_pooled) from error
        if not scorer.is_made:  # errors of a user's callable are unchanged
            raise
        like = estimator.like if isinstance(estimator, StandIn) else estimator
        scored = "all tested rows together" if is_pooled else name_of(like)
        raise ValueError(f"scoring={scorer.name!r} cannot score {scored}: {error}") from error
    try:
        return float(returned)
    except (TypeError, ValueError) as error:
        message = f"{SCORER_EXPECTED}, but {scorer.name} returned {returned!r}; "
        if isinstance(returned, Mapping):
            several = NoNumber(f"{message}{_DICT_ADVICE}.")
            several.names = list(returned)
            raise several from error
        raise NoNumber(f"{message}{SCORER_ADVICE}.") from error


def _plain_score(scorer: Scorer, estimator: Any, X: Any, y: Any) -> float | None:
    """Return the accuracy or multiclass log loss, as scikit-learn does, but without slow checks.

    Return None for other scores, and if scikit-learn might warn or raise an error. Otherwise, the
    score is identical to that of scikit-learn, bit for bit.
    """
    method = {"accuracy": "predict", "neg_log_loss": "predict_proba"}.get(scorer.name, "")
    is_plain = type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "iuU"
    if not is_plain or not hasattr(estimator, method):
        return None
    if method == "predict":
        predicted = estimator.predict(X)
        is_plain = type(predicted) is np.ndarray and predicted.shape == y.shape
        is_plain &= predicted.dtype.kind == y.dtype.kind
        return float(np.mean(predicted == y)) if is_plain else None
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 3 or not np.array_equal(classes, getattr(estimator, "classes_", ())):
        return None
    p = estimator.predict_proba(X)
    if type(p) is not np.ndarray or p.dtype != np.float64 or p.shape != (len(y), len(classes)):
        return None
    if not (p.min() >= 0 and p.max() <= 1 and np.allclose(p.sum(axis=1), 1, rtol=1e-8, atol=0)):
        return None
    eps = np.finfo(np.float64).eps
    return float(xlogy(1, np.clip(p[np.arange(len(y)), codes], eps, 1 - eps)).mean())


def undefined(
    scorer: Scorer, what: str, estimator: Any, n_rows: int, is_pooled: bool = False
) -> ValueError:
    """Return the error to raise if a score is undefined because of too few rows or classes."""
    loss = "squared_error" if is_regressor(estimator) else "squared_distance"
    if is_classifier(estimator):
        loss = "error"
    if is_pooled:
        return ValueError(
            f"scoring={scorer.name!r} is undefined ({what}) on all {n_rows} tested rows together; "
            f"use a loss that is a mean over rows, such as {loss!r}, instead."
        )
    pooled = f"pooled({scorer.name!r}), " if scorer.is_registered else ""
    return ValueError(
        f"scoring={scorer.name!r} is undefined ({what}) on a fold of {n_rows} row(s); use "
        f"{pooled}a smaller cv, stratified folds, or a loss that is a mean over rows, such as "
        f"{loss!r}."
    )


class StandIn(BaseEstimator):
    """An estimator that returns stored predictions, for scorers made by ``make_scorer``.

    Parameters
    ----------
    like : estimator
        An estimator of the same class.
    classes : ndarray or None
    method : str
        The response method that the scorers call.
    """

    def __init__(self, like: Any, classes: np.ndarray | None, method: str) -> None:
        self.like = like
        self._tags = get_tags(like)
        self._classes = classes
        self._method = method
        if classes is not None:
            self.classes_ = classes

        def respond(X: Any) -> np.ndarray:
            return self._response.copy()

        respond.__name__ = METHOD_NAMES.get(method, method)  # scikit-learn reads it
        setattr(self, respond.__name__, respond)

    def __sklearn_tags__(self) -> Tags:
        return self._tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def scored(self, scorer: Scorer, rows: Any, part: Any, is_pooled: bool = False) -> float:
        """Return the score of the stored predictions for some of the rows.

        Parameters
        ----------
        scorer : Scorer
        rows : TestedRows
        part : slice or ndarray
            The indices of the rows to score.
        is_pooled : bool
            Whether X and y are the rows of all folds, for a pooled score.
        """
        classes = self._classes
        self._response = rows.response(self._method)[part]
        y = None if rows.targets is None else rows.targets[part]
        if classes is not None:  # targets and predictions are class codes
            y = None if y is None else classes[y]
            if self._method == "predict":
                self._response = classes[self._response.astype(np.intp)]
        params = {} if rows.weights is None else {"sample_weight": rows.weights[part]}
        X = np.empty((len(self._response), 0))
        return score_of(scorer, self, X, y, classes, params, is_pooled=is_pooled)
