"""The scores of a search: for its objective, and as scikit-learn's scorers."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
import inspect
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.base import RegressorMixin
from sklearn.metrics import check_scoring
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor

from optuna_treecv.caching.keys import is_ours
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import weights_of_rows
from optuna_treecv.plans.fold_task import mean_loss
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.scoring.metrics import takes

#: (estimator, X, y, **params) -> a number of which larger ones are better.
SignedScorer = Callable[..., float]


class SearchScores(NamedTuple):
    """The scores of a search.

    Attributes
    ----------
    requested : Any
        ``scoring`` of an objective.
    names : list of str
        The names in ``cv_results_``: "score" where there is one.
    scorers : dict of str to callable
        By these names.
    is_multiple : bool
        Whether the user has asked for several scores by name.
    """

    requested: Any
    names: list[str]
    scorers: dict[str, SignedScorer]
    is_multiple: bool

    def with_error_score(self, error_score: float) -> "SearchScores":
        """Return the same scores, of which failing scorers do not raise errors."""
        scoring = make_scoring(self.requested)
        assert isinstance(scoring, Scoring)

        def lenient(metric: Any) -> Any:
            if isinstance(metric, Pooled):
                return Pooled(lenient(metric.of))
            is_scorer = isinstance(metric, Scorer)
            return replace(metric, error_score=error_score) if is_scorer else metric

        metrics = [*map(lenient, scoring.metrics)]
        by_name = dict(zip(scoring.names, metrics, strict=True))
        return self._replace(requested=by_name if self.is_multiple else metrics[0])

    @property
    def with_train(self) -> dict[str, Any]:
        """``scoring`` of an objective that has the same scores of training rows too."""
        scoring = self.requested if self.is_multiple else {"score": self.requested}
        if not isinstance(scoring, Mapping):
            scoring = dict(zip(self.names, scoring, strict=True))
        on_training = {
            f"train_{name}": Scorer(
                f"train_{name}",
                self.scorers[name],
                is_mean=True,
                is_of_training=True,
                error_score=getattr(metric, "error_score", None),
            )
            for name, metric in scoring.items()
        }
        return {**scoring, **on_training}

    def by_names(self, names: Sequence[str]) -> "SearchScores":
        """Return the scores of a callable that has returned a dict of these names."""
        several, signature = Several(self.requested), inspect.signature(self.requested)
        scorers: dict[str, Any] = {name: partial(several, name) for name in names}
        for name, scorer in scorers.items():
            scorer.__name__ = name
            scorer.__signature__ = signature  # says whether it takes weights
        return SearchScores(scorers, list(names), scorers, is_multiple=True)


class Several:
    """A callable that returns a dict of scores; it is called once for all of them.

    Parameters
    ----------
    score : callable
        (estimator, X, y) -> dict of str to number.
    """

    def __init__(self, score: Callable[..., Mapping[str, Any]]) -> None:
        self._score = score
        self._last: tuple[Any, ...] = ()

    def __call__(self, name: str, estimator: Any, X: Any, y: Any = None, **params: Any) -> Any:
        """Return one of the scores of a fitted estimator."""
        called = estimator, X, y, *params.values()
        last = self._last
        is_known = len(last) == 1 + len(called) and all(
            one is other for one, other in zip(called, last[1:], strict=True)
        )
        if not is_known:
            self._last = last = self._score(estimator, X, y, **params), *called
        return last[0][name]

    def __getstate__(self) -> dict[str, Any]:
        return {"_score": self._score, "_last": ()}


def scores_of(scoring: Any, estimator: Any, has_y: bool = True) -> SearchScores:
    """Return the scores that ``scoring`` of a search means for an estimator.

    Parameters
    ----------
    scoring : None, str, callable, ``pooled(...)``, or several of these in a list or dict
        None: what ``score`` of the estimator returns.
    estimator : estimator
    has_y : bool
        Whether rows have targets.

    Raises
    ------
    ValueError
        If ``scoring`` is wrong.
    TypeError
        If it is None for an estimator without ``score``.
    """
    if isinstance(scoring, set | frozenset):
        scoring = sorted(scoring)
    if not has_y and callable(scoring) and not isinstance(scoring, type):
        if takes(scoring, 2) and not takes(scoring, 3):
            scoring = partial(_without_y, scoring)
            scoring.__name__ = getattr(scoring.args[0], "__name__", "scorer")
    if scoring is None:
        if not hasattr(estimator, "score"):
            raise TypeError(
                f"scoring must be given for {name_of(estimator)}, which has no score, but there "
                "is no scoring; the name of a scorer or a callable scorer(estimator, X, y) would "
                "be right."
            )
        scorers: dict[str, SignedScorer] = {"score": check_scoring(estimator)}
        return SearchScores(_own_score(estimator), ["score"], scorers, is_multiple=False)
    tree_scoring = make_scoring(scoring)
    assert isinstance(tree_scoring, Scoring)
    is_multiple = isinstance(scoring, list | tuple | Mapping)
    names = list(tree_scoring.names) if is_multiple else ["score"]
    scorers = {}
    for name, metric in zip(names, tree_scoring.metrics, strict=True):
        one = metric.of if isinstance(metric, Pooled) else metric
        scorers[name] = NegativeLoss(one) if isinstance(one, Loss) else one.score
    return SearchScores(scoring, names, scorers, is_multiple)


def _without_y(score: Callable[..., Any], estimator: Any, X: Any, y: Any = None) -> Any:
    """Score by a callable of rows without targets."""
    return score(estimator, X)


# Those of neighbours only take X=None too, for the training rows.
_ACCURACIES = ClassifierMixin.score, KNeighborsClassifier.score
_R2S = RegressorMixin.score, KNeighborsRegressor.score


def _own_score(estimator: Any) -> Any:
    """Return a scoring that is an estimator's score; by its name where the tree has the score."""
    last = last_step(estimator)
    score = getattr(type(last), "score", None)
    if score in _ACCURACIES or (is_ours(type(last)) and is_classifier(last)):
        return "accuracy"
    if score in _R2S or (is_ours(type(last)) and is_regressor(last)):
        return "r2"
    return _score_of


def _score_of(estimator: Any, X: Any, y: Any = None, **params: Any) -> float:
    """Score an estimator by itself."""
    return float(estimator.score(X, y, **params))


# Means whose difference is at most this share of their size are taken to be equal: mathematically
# equal candidates get means that differ by rounding.
_ROUNDING = 1e-12


def ranks_of(means: np.ndarray) -> np.ndarray:
    """Return the rank of each mean score, 1 for the largest ones; equal means share a rank.

    Means are equal if no gap between those in between is larger than rounding. NaN has the last
    rank, together with -inf.

    Parameters
    ----------
    means : ndarray of shape (n_candidates,)

    Returns
    -------
    ndarray of shape (n_candidates,), int32
    """
    means = np.where(np.isnan(means), -np.inf, means)
    order = np.argsort(-means, kind="stable")
    larger, smaller = means[order[:-1]], means[order[1:]]
    with np.errstate(invalid="ignore"):
        are_apart = larger - smaller > _ROUNDING * np.maximum(np.abs(larger), np.abs(smaller))
    is_new = np.where(np.isfinite(larger) & np.isfinite(smaller), are_apart, larger != smaller)
    first = np.maximum.accumulate(np.where(np.append(True, is_new), np.arange(len(means)), 0))
    ranks = np.empty(len(means), np.int32)
    ranks[order] = first + 1
    return ranks


class NegativeLoss:
    """A scorer that returns the negative of a mean loss.

    Parameters
    ----------
    loss : Loss
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Score a fitted estimator."""
        classes = None
        if is_classifier(estimator):
            classes = np.unique(np.concatenate([estimator.classes_, np.ravel(y)]))
        weights = weights_of_rows(X, sample_weight)
        tested = mean_loss(self.loss, estimator, X, y, weights, classes)
        return -float(tested.scores[0])

    def __repr__(self) -> str:
        """Return the name of the negated loss."""
        return f"NegativeLoss({self.loss.name!r})"
