"""The scores of a search: the scoring, the scorers, and the columns of ``cv_results_``."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
import inspect
from typing import Any
from typing import NamedTuple

import numpy as np
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.base import ClassifierMixin
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.base import RegressorMixin
from sklearn.metrics import check_scoring
from sklearn.model_selection._search import _yield_masked_array_for_each_param
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor

from optuna_treecv.caching.keys import is_ours
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.settings import warn_caller
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
from optuna_treecv.scoring.scorers import are_failed
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import scores_of_trial

#: ``cv_results_`` has columns for the splits only if there are at most this number of splits.
MAX_SPLITS = 100

#: (estimator, X, y, **params) -> score; larger is better.
SignedScorer = Callable[..., float]


class SearchScores(NamedTuple):
    """The scores that a search computes.

    Attributes
    ----------
    requested : Any
        The argument ``scoring`` of the objective.
    names : list of str
        The names of the scores in ``cv_results_``; ["score"] for a single score.
    scorers : dict of str to callable
        The scorers by name.
    is_multiple : bool
        Whether the argument ``scoring`` of the search is a list or a dict.
    """

    requested: Any
    names: list[str]
    scorers: dict[str, SignedScorer]
    is_multiple: bool

    def with_error_score(self, error_score: float) -> "SearchScores":
        """Return the same scores, but errors of scorers are replaced by ``error_score``."""
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
        """The argument ``scoring`` of an objective that also computes training scores."""
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

    def for_names(self, names: Sequence[str]) -> "SearchScores":
        """Return one scorer per name, for a scorer that returns a dict with these names."""
        several, signature = Several(self.requested), inspect.signature(self.requested)
        scorers: dict[str, Any] = {name: partial(several, name) for name in names}
        for name, scorer in scorers.items():
            scorer.__name__ = name
            scorer.__signature__ = (
                signature  # the signature tells whether the scorer takes weights
            )
        return SearchScores(scorers, list(names), scorers, is_multiple=True)


class Several:
    """Caches the last dict of scores of a scorer, so that several scores need only one call.

    Parameters
    ----------
    score : callable
        (estimator, X, y) -> dict of str to float.
    """

    def __init__(self, score: Callable[..., Mapping[str, Any]]) -> None:
        self._score = score
        self._last: tuple[Any, ...] = ()

    def __call__(self, name: str, estimator: Any, X: Any, y: Any = None, **params: Any) -> Any:
        """Return the score of a given name for a fitted estimator."""
        arguments = estimator, X, y, *params.values()
        last = self._last
        is_same_call = len(last) == 1 + len(arguments) and all(
            a is b for a, b in zip(arguments, last[1:], strict=True)
        )
        if not is_same_call:
            self._last = last = self._score(estimator, X, y, **params), *arguments
        return last[0][name]

    def __getstate__(self) -> dict[str, Any]:
        return {"_score": self._score, "_last": ()}


def scores_of(scoring: Any, estimator: Any, has_y: bool = True) -> SearchScores:
    """Return the scores for the argument ``scoring`` of a search.

    Parameters
    ----------
    scoring : None, str, callable, ``pooled(...)``, or several of these in a list or dict
        None: the ``score`` method of the estimator.
    estimator : estimator
    has_y : bool
        Whether the rows have targets.

    Raises
    ------
    ValueError
        If ``scoring`` is invalid.
    TypeError
        If ``scoring`` is None and the estimator has no ``score`` method.
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
                f"scoring must be given because {name_of(estimator)} has no score method, got "
                "None; use the name of a scorer or a callable scorer(estimator, X, y) instead."
            )
        scorers: dict[str, SignedScorer] = {"score": check_scoring(estimator)}
        return SearchScores(_own_score(estimator), ["score"], scorers, is_multiple=False)
    tree_scoring = make_scoring(scoring)
    assert isinstance(tree_scoring, Scoring)
    is_multiple = isinstance(scoring, list | tuple | Mapping)
    names = list(tree_scoring.names) if is_multiple else ["score"]
    scorers = {}
    for name, metric in zip(names, tree_scoring.metrics, strict=True):
        single = metric.of if isinstance(metric, Pooled) else metric
        scorers[name] = NegativeLoss(single) if isinstance(single, Loss) else single.score
    return SearchScores(scoring, names, scorers, is_multiple)


def _without_y(score: Callable[..., Any], estimator: Any, X: Any, y: Any = None) -> Any:
    """Call a scorer that does not take ``y``."""
    return score(estimator, X)


# The ``score`` methods of nearest neighbors differ only in that they accept X=None.
_ACCURACIES = ClassifierMixin.score, KNeighborsClassifier.score
_R2S = RegressorMixin.score, KNeighborsRegressor.score


def _own_score(estimator: Any) -> Any:
    """Return the scoring that is equivalent to an estimator's ``score``, by name if possible."""
    last = last_step(estimator)
    score = getattr(type(last), "score", None)
    if score in _ACCURACIES or (is_ours(type(last)) and is_classifier(last)):
        return "accuracy"
    if score in _R2S or (is_ours(type(last)) and is_regressor(last)):
        return "r2"
    return _score_of


def _score_of(estimator: Any, X: Any, y: Any = None, **params: Any) -> float:
    """Call the ``score`` method of an estimator."""
    return float(estimator.score(X, y, **params))


# Mean scores whose relative difference is at most this value are treated as equal, because the
# means of mathematically equal candidates differ by rounding.
_ROUNDING = 1e-12


def ranks_of(means: np.ndarray) -> np.ndarray:
    """Return the rank of each mean score; the largest has rank 1, and equal means share a rank.

    In sorted order, consecutive means share a rank if their difference is within rounding. NaN and
    -inf share the last rank.

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
    """A scorer that returns the negative mean loss.

    Parameters
    ----------
    loss : Loss
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative mean loss of a fitted estimator."""
        classes = None
        if is_classifier(estimator):
            classes = np.unique(np.concatenate([estimator.classes_, np.ravel(y)]))
        weights = weights_of_rows(X, sample_weight)
        return -float(mean_loss(self.loss, estimator, X, y, weights, classes).scores[0])

    def __repr__(self) -> str:
        """Return the class name and the name of the loss."""
        return f"NegativeLoss({self.loss.name!r})"


# The scores of trials in ``cv_results_``.


class Row(NamedTuple):
    """A row of ``cv_results_``. All scores are signed such that larger is better.

    Attributes
    ----------
    means, stds : ndarray of shape (n_scores,)
        NaN if unknown.
    splits : list of (ndarray of shape (n_splits,) or None)
        For each score, the scores of the splits; None if there are too many splits, or if the
        score is not computed for each split.
    seconds : float
        The duration of the trial.
    params : dict
        The parameters of the trial.
    trial : FrozenTrial or None
        The trial; None while it is running.
    """

    means: np.ndarray
    stds: np.ndarray
    splits: list[np.ndarray | None]
    seconds: float
    params: dict[str, Any]
    trial: Any = None


def row_of(result: CVResult, n_splits: int, error_score: Any) -> Row:
    """Return the row for the result of a trial.

    Parameters
    ----------
    result : CVResult
    n_splits : int
    error_score : "raise" or float
    """
    means, stds, splits = [], [], list[np.ndarray | None]()
    for score in result.scores.values():
        sign = sign_of(score.direction)
        split_scores = signed(score.test_score, sign, error_score)
        mean, std = sign * score.mean, np.nan if score.std is None else score.std
        if np.isnan(mean) and len(split_scores):  # a scorer has failed in a fold
            mean, std = split_scores.mean(), split_scores.std()
        means.append(mean)
        stds.append(std)
        # A pooled score has one value for each repeat.
        splits.append(split_scores if len(split_scores) == n_splits <= MAX_SPLITS else None)
    return Row(np.array(means), np.array(stds), splits, result.seconds, {})


def earlier_row(
    trial: FrozenTrial,
    directions: Mapping[str, str],
    optimized: int,
    stored: Mapping[str, np.ndarray],
) -> Row:
    """Return the row for a trial of an earlier run, from its attributes and the store.

    Attributes are rounded to six digits; the trial's value and the store have full precision.

    Parameters
    ----------
    trial : FrozenTrial
    directions : dict of str to {"minimize", "maximize"}
        The direction of each score, by its name in the objective.
    optimized : int
        The index of the score that is the value of the trial.
    stored : dict of str to ndarray of shape (n_splits,)
        The fold scores in the store, by score name.
    """
    facts, scores = facts_of_trial(trial.user_attrs), scores_of_trial(trial.user_attrs)
    signs = np.array([sign_of(direction) for direction in directions.values()])
    means = np.array([scores.get(name, np.nan) for name in directions], float)
    stds = np.full(len(signs), np.nan)
    is_complete = trial.state == TrialState.COMPLETE and trial.values is not None
    if is_complete:
        means[optimized] = trial.values[0]
        stds[optimized] = facts.get("std_test_score", np.nan)
    splits: list[np.ndarray | None] = [None] * len(signs)
    for number, name in enumerate(directions):
        if name not in stored:
            continue
        splits[number] = signs[number] * stored[name]
        if is_complete and np.isfinite(stored[name]).all():
            stds[number] = stored[name].std()
            if number != optimized:
                means[number] = stored[name].mean()
    return Row(signs * means, stds, splits, float(facts.get("seconds", np.nan)), {})


def failed_row(splits: np.ndarray) -> Row:
    """Return the row for a trial with failed folds.

    Parameters
    ----------
    splits : ndarray of shape (n_scores, n_splits)
        The signed scores, with ``error_score`` for failed folds.
    """
    shown = list(splits) if splits.shape[1] <= MAX_SPLITS else [None] * len(splits)
    return Row(splits.mean(axis=1), splits.std(axis=1), shown, 0.0, {})


def signed(scores: np.ndarray, sign: Any, error_score: Any) -> np.ndarray:
    """Return scores times ``sign``; scores of failed scorers are replaced by ``error_score``."""
    failed_score = np.nan if error_score == "raise" else error_score
    return np.where(are_failed(scores), failed_score, sign * scores)


def sign_of(direction: str) -> float:
    """Return the factor by which a score is multiplied so that larger is better."""
    return -1.0 if direction == "minimize" else 1.0


def table(
    rows: Sequence[Row], names: Sequence[str], n_splits: int, with_train: bool = False
) -> dict[str, Any]:
    """Return the dict ``cv_results_`` for a list of rows.

    Parameters
    ----------
    rows : sequence of Row
    names : sequence of str
        The names of the scores in the columns.
    n_splits : int
    with_train : bool
        Whether the rows also have training scores, after the test scores.
    """
    seconds = np.array([row.seconds for row in rows]) / n_splits
    results: dict[str, Any] = {
        "mean_fit_time": seconds,
        "std_fit_time": np.zeros(len(rows)),
        "mean_score_time": np.zeros(len(rows)),
        "std_score_time": np.zeros(len(rows)),
    }
    params = [row.params for row in rows]
    results |= {**dict(_yield_masked_array_for_each_param(params)), "params": params}
    for number, name in enumerate(names):
        results |= _scores_of(rows, number, name, n_splits, "test")
        results[f"rank_test_{name}"] = ranks_of(results[f"mean_test_{name}"])
        if with_train:
            results |= _scores_of(rows, len(names) + number, name, n_splits, "train")
    return results


def _scores_of(
    rows: Sequence[Row], number: int, name: str, n_splits: int, subset: str
) -> dict[str, np.ndarray]:
    """Return the columns for one score: the splits, the mean and the standard deviation."""
    columns = {}
    splits = [row.splits[number] for row in rows]
    for split in range(0 if all(s is None for s in splits) else n_splits):
        columns[f"split{split}_{subset}_{name}"] = np.array(
            [np.nan if s is None else s[split] for s in splits]
        )
    means = np.array([row.means[number] for row in rows])
    unpruned = [row for row in rows if row.trial is None or row.trial.state != TrialState.PRUNED]
    if not all(np.isfinite(row.means[number]) for row in unpruned):
        warn_caller(f"One or more of the {subset} scores are non-finite: {means}")
    columns[f"mean_{subset}_{name}"] = means
    columns[f"std_{subset}_{name}"] = np.array([row.stds[number] for row in rows])
    return columns
