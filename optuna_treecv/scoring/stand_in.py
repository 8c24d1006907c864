"""Stands in for a fitted estimator where a scorer needs nothing of it but its predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils import Tags

from optuna_treecv.learners.adapter import METHOD_NAMES
from optuna_treecv.scoring.scorers import score_of
from optuna_treecv.scoring.scorers import Scorer


class StandIn:
    """Has scorers of ``make_scorer`` score predictions that are there already.

    Parameters
    ----------
    like : estimator
        One of the kind that predicts.
    classes : ndarray or None
    method : str
        The response that the scorers ask of the estimator.
    """

    def __init__(self, like: Any, classes: np.ndarray | None, method: str) -> None:
        self._answers = _Answers(like, classes, method)
        self._classes = classes
        self._method = method

    def score(
        self,
        scorer: Scorer,
        response: np.ndarray,
        targets: np.ndarray | None,
        weights: np.ndarray | None,
        is_pooled: bool = False,
    ) -> float:
        """Return the score of rows.

        Parameters
        ----------
        scorer : Scorer
        response : ndarray of shape (n_rows, ...)
            Class codes in place of labels.
        targets : ndarray of shape (n_rows, ...) or None
            Class codes or numbers.
        weights : ndarray of shape (n_rows,) or None
        is_pooled : bool
            Whether the rows are those of all folds.
        """
        classes = self._classes
        self._answers.answer = response
        if self._method == "predict" and classes is not None:
            self._answers.answer = classes[response.astype(np.intp)]
        y = targets if classes is None or targets is None else classes[targets]
        params = {} if weights is None else {"sample_weight": weights}
        X = np.empty((len(response), 0))
        return score_of(scorer, self._answers, X, y, classes, params, is_pooled=is_pooled)


class _Answers(BaseEstimator):
    """Gives ``answer`` whatever the rows are."""

    def __init__(self, like: Any, classes: np.ndarray | None, method: str) -> None:
        self._tags = get_tags(like)
        if classes is not None:
            self.classes_ = classes
        self.answer = np.empty(0)

        def answer(X: Any) -> np.ndarray:
            return self.answer.copy()

        answer.__name__ = METHOD_NAMES.get(method, method)  # scikit-learn looks at it
        setattr(self, answer.__name__, answer)

    def __sklearn_tags__(self) -> Tags:
        return self._tags

    def __sklearn_is_fitted__(self) -> bool:
        return True
