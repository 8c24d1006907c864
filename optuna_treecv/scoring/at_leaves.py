"""Fold scores: losses, which a study minimises, and scikit-learn scorers, which it maximises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
import inspect
from math import prod
from typing import Any

import numpy as np
from sklearn import metrics
from sklearn.base import is_classifier
from sklearn.base import is_clusterer
from sklearn.base import is_regressor
from sklearn.metrics import get_scorer
from sklearn.metrics import get_scorer_names
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples

from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.rows.data import aligned_bytes
from optuna_treecv.rows.data import take_rows
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.learner import StandsIn
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan


@dataclass(frozen=True)
class Loss:
    """A loss per row; a fold's score is its mean.

    Attributes
    ----------
    name : str
    response_method : str
        The response of the model that the loss needs.
    of_rows : callable
        (response, targets) -> ndarray of shape (rows,), float64.
    if_diverged : float
        The score of a fold whose model is not finite.
    """

    name: str
    response_method: str
    of_rows: Callable[[np.ndarray, Any], np.ndarray]
    if_diverged: float = np.inf
    direction = "minimize"

    @property
    def methods(self) -> str:
        """The method of an estimator that gives the response."""
        return self.response_method


@dataclass(frozen=True)
class Scorer:
    """A scikit-learn scorer, which is called with a fitted estimator.

    Attributes
    ----------
    name : str
    score : callable
        (estimator, X, y) -> float.
    is_registered : bool
        Whether ``name`` is a scorer name of scikit-learn.
    is_made : bool
        Whether ``make_scorer`` of scikit-learn made it. Such a scorer uses nothing of an estimator
        but its predictions.
    is_mean : bool
        Whether the score of several rows is known to be the mean over them, as a loss is.
    """

    name: str
    score: Callable[[Any, Any, Any], float]
    is_registered: bool = False
    is_made: bool = False
    is_mean: bool = False
    response_method = None  # a scorer calls the estimator's methods itself
    if_diverged = -np.inf
    direction = "maximize"

    @property
    def methods(self) -> str | tuple[str, ...] | None:
        """The method of an estimator that it calls, one of several, or None if unknown."""
        return getattr(self.score, "_response_method", None) if self.is_made else None


# The losses. Targets of classifiers are class codes.


def _error(predicted: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return (predicted != codes).astype(np.float64)


def _hinge(decision: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return max(0, 1 - margin).

    For several classes this is the margin of Crammer & Singer, as in sklearn.metrics.hinge_loss.
    """
    decision = decision.astype(np.float64)
    if decision.ndim == 1:
        return np.maximum(0, 1 - np.where(codes == 1, decision, -decision))
    own = decision[np.arange(len(codes)), codes]
    others = decision.copy()
    others[np.arange(len(codes)), codes] = -np.inf
    return np.maximum(0, 1 - (own - others.max(axis=1)))


def _log_loss(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return -log p of the true class.

    As in sklearn.metrics.log_loss, p is clipped to [eps, 1 - eps], eps being that of float64.
    """
    p = probabilities[np.arange(len(codes)), codes]
    return -np.log(np.clip(p, np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps))


def _squared_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.square(predicted.astype(np.float64) - y)


def _absolute_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(predicted.astype(np.float64) - y)


def _neg_log_density(log_density: np.ndarray, _: Any) -> np.ndarray:
    return -log_density.astype(np.float64)


def _squared_distance(distance: np.ndarray, _: Any) -> np.ndarray:
    return np.square(distance.astype(np.float64))


_FOR_CLASSIFIERS = [
    Loss("error", "predict", _error, if_diverged=1.0),
    Loss("hinge", "decision_function", _hinge),
    Loss("log_loss", "predict_proba", _log_loss),
]
_FOR_REGRESSORS = [
    Loss("squared_error", "predict", _squared_error),
    Loss("absolute_error", "predict", _absolute_error),
]
_FOR_CLUSTERERS = [Loss("squared_distance", "distance", _squared_distance)]
_FOR_DENSITIES = [Loss("neg_log_density", "score_samples", _neg_log_density)]

LOSSES = {
    loss.name: loss
    for loss in _FOR_CLASSIFIERS + _FOR_REGRESSORS + _FOR_CLUSTERERS + _FOR_DENSITIES
}


# The metrics of scikit-learn that are means over rows.
_MEANS = (
    metrics.accuracy_score,
    metrics.brier_score_loss,
    metrics.hamming_loss,
    metrics.hinge_loss,
    metrics.log_loss,
    metrics.mean_absolute_error,
    metrics.mean_absolute_percentage_error,
    metrics.mean_gamma_deviance,
    metrics.mean_pinball_loss,
    metrics.mean_poisson_deviance,
    metrics.mean_squared_error,
    metrics.mean_squared_log_error,
    metrics.mean_tweedie_deviance,
    metrics.top_k_accuracy_score,
    metrics.zero_one_loss,
)

# Metrics with an ``average`` that makes them the accuracy.
_ACCURACIES = (
    (metrics.f1_score, "micro"),
    (metrics.precision_score, "micro"),
    (metrics.recall_score, "micro"),
    (metrics.recall_score, "weighted"),
)

_SCORER_EXPECTED = "scoring must be a scorer(estimator, X, y) that returns a number"
_SCORER_ADVICE = "make_scorer(accuracy_score), for example, would be right"


def make_scoring(scoring: Any) -> Loss | Scorer | None:
    """Return the loss or scorer that the argument ``scoring`` names.

    None stays None; ``scoring_for`` then chooses the loss.
    """
    if scoring is None:
        return None
    if isinstance(scoring, str):
        if scoring in LOSSES:
            return LOSSES[scoring]
        if scoring in get_scorer_names():
            scorer = get_scorer(scoring)
            return Scorer(
                scoring, scorer, is_registered=True, is_made=True, is_mean=_is_mean(scorer)
            )
        like = get_close_matches(scoring, [*LOSSES, *get_scorer_names()], 1)
        meant = f"; did you mean {like[0]!r}?" if like else "."
        raise ValueError(
            f"scoring must be a loss ({', '.join(LOSSES)}) or the name of a scikit-learn scorer "
            f"(sklearn.metrics.get_scorer_names()), got {scoring!r}{meant}"
        )
    if callable(scoring) and not isinstance(scoring, type):
        _check_takes_rows(scoring)
        is_made = isinstance(scoring, type(get_scorer("accuracy")))
        name = getattr(scoring, "__name__", "scorer")
        return Scorer(name, scoring, is_made=is_made, is_mean=_is_mean(scoring))
    raise ValueError(
        "scoring must be None, a loss name, a scorer name or a scorer(estimator, X, y), got "
        f"{scoring!r}."
    )


def _is_mean(scorer: Any) -> bool:
    """Return whether a scorer made by ``make_scorer`` is known to be a mean over rows."""
    metric, options = getattr(scorer, "_score_func", None), getattr(scorer, "_kwargs", {})
    if (average := options.get("average")) is not None:
        return (metric, average) in _ACCURACIES and "labels" not in options
    return metric in _MEANS and options.get("normalize", True) is True


def _check_takes_rows(scorer: Callable[..., Any]) -> None:
    """Refuse metrics, which take labels and predictions in place of an estimator and rows."""
    try:
        inspect.signature(scorer).bind(None, None, None)
    except TypeError as error:
        raise ValueError(f"{_SCORER_EXPECTED}, got {scorer!r}; {_SCORER_ADVICE}.") from error
    except ValueError:  # some compiled callables have no signature
        pass


def scoring_for(scoring: Loss | Scorer | None, estimator: Any) -> Loss | Scorer:
    """Return the given scoring if it fits the estimator.

    For None return the default loss, as in Table 1 of the TreeCV paper.
    """
    if is_classifier(estimator):
        kind, losses = "a classifier", _FOR_CLASSIFIERS
    elif is_regressor(estimator):
        kind, losses = "a regressor", _FOR_REGRESSORS
    elif is_clusterer(estimator):
        kind, losses = "a clusterer", _FOR_CLUSTERERS
    elif get_tags(estimator).estimator_type == "density_estimator":
        kind, losses = "a density estimator", _FOR_DENSITIES
    else:
        kind, losses = "an estimator of no such type", _FOR_CLUSTERERS + _FOR_DENSITIES
        if scoring is None:
            raise ValueError(
                f"scoring must be given for {name_of(estimator)}, which is neither "
                "classifier, regressor, clusterer nor density estimator; a scorer(estimator, X, "
                "y) would be right."
            )
    if scoring is None:
        return losses[0]
    if isinstance(scoring, Loss) and scoring not in losses:
        names = ", ".join(loss.name for loss in losses)
        raise ValueError(
            f"scoring={scoring.name!r} is not for {kind} such as {name_of(estimator)}; "
            f"use {names}."
        )
    return scoring


#: The bytes of the count in an ``ArrayThenCount``.
COUNT_BYTES = 8


class ArrayThenCount:
    """An array and the number of row updates behind it, in one block of memory.

    Caches and stores keep ``memory`` as a whole: the bytes of ``array``, then the count (int64) in
    the last 8 bytes.

    Attributes
    ----------
    memory : ndarray of uint8
    array : ndarray
        A view of ``memory`` without the count.
    was_kept : bool
        Whether ``memory`` comes from a cache or a store.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float64) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self.take(aligned_bytes(prod(shape) * self._dtype.itemsize + COUNT_BYTES))
        self.was_kept = False

    @classmethod
    def of(cls, array: np.ndarray, n_updates: int) -> ArrayThenCount:
        """Return a copy of an array, together with its count."""
        copy = cls(array.shape, array.dtype)
        copy.array[:] = array
        copy.n_updates = n_updates
        return copy

    def take(self, memory: np.ndarray) -> None:
        """Use memory from a cache or a store without copying it."""
        self.memory = memory
        self.array = memory[:-COUNT_BYTES].view(self._dtype).reshape(self._shape)
        self.was_kept = True

    @property
    def n_updates(self) -> int:
        return int(self.memory[-COUNT_BYTES:].view(np.int64)[0])

    @n_updates.setter
    def n_updates(self, n_updates: int) -> None:
        self.memory[-COUNT_BYTES:].view(np.int64)[0] = n_updates


class OutputsAtLeaves:
    """Keeps the outputs of each fold's model for the fold's rows, and scores them by a loss.

    Parameters
    ----------
    plan : Plan
    learner : Learner
    loss : Loss or None
    tested : ndarray of shape (plan.n_rows,) or None
        The prepared row that stands behind each row of the plan; None: the same.

    Attributes
    ----------
    outputs : ArrayThenCount
        The outputs for all rows of the plan, (n_rows, n_outputs). All scores follow from them, so
        an evaluation needs to keep nothing else.
    """

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        loss: Loss | None = None,
        tested: np.ndarray | None = None,
    ) -> None:
        self.outputs = ArrayThenCount((plan.n_rows, learner.n_outputs), learner.dtype)
        self._plan = plan
        self._learner = learner
        self._loss = loss
        self._tested = tested
        targets = learner.rows.targets
        self._targets = targets if tested is None or targets is None else targets[tested]

    def test_leaf(self, fold: Node, state: Any) -> None:
        start, stop = self._plan.rows(fold)
        if self._tested is None:
            self._learner.outputs(state, start, stop, self.outputs.array)
            return
        rows = self._tested[start:stop]
        # A learner answers for a range of rows. Memory of other rows is never touched.
        of_all = np.empty(
            (len(self._learner.rows.order), self._learner.n_outputs), self._learner.dtype
        )
        self._learner.outputs(state, int(rows.min()), int(rows.max()) + 1, of_all)
        self.outputs.array[start:stop] = of_all[rows]

    def results(self) -> dict[str, ArrayThenCount]:
        """Return, by name, the results that can be kept; any one of them gives all scores."""
        return {"outputs": self.outputs}

    def scores(self, block: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of a block's folds, and which of these folds have diverged."""
        assert self._loss is not None
        start, stop = self._plan.rows(block)
        outputs = self.outputs.array[start:stop]
        targets = self._targets
        with np.errstate(all="ignore"):
            response = self._learner.respond(outputs, self._loss.response_method)
            losses = self._loss.of_rows(response, None if targets is None else targets[start:stop])
            leaves_one_out = block.n_folds == stop - start
            scores = losses
            if not leaves_one_out:
                begins = self._plan.begins(block) - start
                scores = np.add.reduceat(losses, begins) / np.diff(begins, append=stop - start)
            # Any value that is not finite makes its sum not finite. So may a sum of large values,
            # which the code below tells apart.
            if np.isfinite(outputs.sum()) and np.isfinite(scores.sum()):
                return scores, np.zeros(len(scores), bool)
            diverged = ~(np.isfinite(outputs).all(axis=1) & np.isfinite(losses))
            if not leaves_one_out:
                diverged = np.logical_or.reduceat(diverged, begins) | ~np.isfinite(scores)
        scores[diverged] = self._loss.if_diverged
        return scores, diverged


class ScoresAtLeaves:
    """Calls a scorer at each leaf with the leaf's model."""

    def __init__(
        self, plan: Plan, learner: Learner, scorer: Scorer, tested: np.ndarray | None = None
    ) -> None:
        self.fold_scores = ArrayThenCount((plan.n_folds,))
        self._plan = plan
        self._learner = learner
        self._scorer = scorer
        self._tested = tested

    def test_leaf(self, fold: Node, state: Any) -> None:
        self.ask(fold, self._learner.estimator(state))

    def results(self) -> dict[str, ArrayThenCount]:
        """Return the scores by name, as ``OutputsAtLeaves`` does its outputs.

        Nothing is kept for a scorer that its name does not identify.
        """
        return {self._scorer.name: self.fold_scores} if self._scorer.is_registered else {}

    def ask(self, fold: Node, estimator: Any) -> None:
        """Score a fold with an estimator, which is None if its model is not finite."""
        start, stop = self._plan.rows(fold)
        if estimator is None:
            self.fold_scores.array[fold.first] = self._scorer.if_diverged
            return
        X, y = self._rows(start, stop)
        self.fold_scores.array[fold.first] = score_of(
            self._scorer, estimator, X, y, self._learner.rows.classes
        )

    def _rows(self, start: int, stop: int) -> tuple[Any, Any]:
        if self._tested is None:
            return self._learner.score_rows(start, stop)
        rows = self._tested[start:stop]
        low = int(rows.min())
        X, y = self._learner.score_rows(low, int(rows.max()) + 1)
        return take_rows(X, rows - low), None if y is None else y[rows - low]

    def scores(self, block: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of a block's folds, and which of these folds have diverged."""
        scores = self.fold_scores.array[block.first : block.last]
        return scores, scores == self._scorer.if_diverged


def score_of(scorer: Scorer, estimator: Any, X: Any, y: Any, classes: np.ndarray | None) -> float:
    """Return a scorer's score of a fitted estimator on a fold.

    Parameters
    ----------
    scorer : Scorer
    estimator : estimator
    X, y : the rows of the fold
    classes : ndarray or None
        The classes of all rows, for classifiers.

    Raises
    ------
    ValueError
        If the score is not defined on so few rows or classes, or is no number.
    """
    try:
        returned = scorer.score(estimator, X, y)
    except (TypeError, ValueError) as error:
        is_value = isinstance(error, ValueError)
        if is_value and classes is not None and len(np.unique(y)) < len(classes):
            raise _undefined(scorer, str(error), estimator, X, classes) from error
        if not scorer.is_made:  # a user's own scorer may raise what it likes
            raise
        raise ValueError(
            f"scoring={scorer.name!r} cannot score {name_of(estimator)}: {error}"
        ) from error
    try:
        score = float(returned)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_SCORER_EXPECTED}, but {scorer.name} returned {returned!r}; {_SCORER_ADVICE}."
        ) from error
    if np.isnan(score):
        raise _undefined(scorer, "NaN", estimator, X, classes)
    return score if np.isfinite(score) else scorer.if_diverged


def _undefined(
    scorer: Scorer, what: str, estimator: Any, X: Any, classes: np.ndarray | None
) -> ValueError:
    """Return the error for a fold with too few rows or classes for the scorer."""
    loss = "squared_error" if is_regressor(estimator) else "squared_distance"
    if classes is not None:
        loss = "error"
    return ValueError(
        f"scoring={scorer.name!r} is undefined ({what}) on a fold of {_num_samples(X)} row(s); "
        "use a smaller cv, stratified folds, or a loss that is a mean over rows, such as "
        f"{loss!r}."
    )


class ScoresOfOutputs(OutputsAtLeaves):
    """Keeps outputs as for a loss, and calls a scorer with an estimator that answers by them.

    The tree is therefore walked as for a loss, and outputs kept for another scoring can be reused.
    """

    def __init__(
        self, plan: Plan, learner: StandsIn, scorer: Scorer, tested: np.ndarray | None = None
    ) -> None:
        super().__init__(plan, learner, tested=tested)
        self._answering = learner.answering
        self._asker = ScoresAtLeaves(plan, learner, scorer, tested)

    def results(self) -> dict[str, ArrayThenCount]:
        """Return the scores and, unless they come from a cache or a store, the outputs."""
        scores = self._asker.results()
        return scores if self._asker.fold_scores.was_kept else scores | super().results()

    def scores(self, block: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of a block's folds, and which of these folds have diverged."""
        if self._asker.fold_scores.was_kept:
            return self._asker.scores(block)
        for chunk in range(block.first, block.last):
            fold = Node(chunk, chunk + 1)
            start, stop = self._plan.rows(fold)
            outputs = self.outputs.array[start:stop]
            is_finite = np.isfinite(outputs).all()
            self._asker.ask(fold, self._answering(outputs) if is_finite else None)
        return self._asker.scores(block)


#: How the leaves of a tree are tested and scored.
Leaves = OutputsAtLeaves | ScoresAtLeaves
