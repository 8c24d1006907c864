"""The scoring of an evaluation: one or several losses and scorers, some of which are optimised."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from sklearn.base import is_classifier
from sklearn.base import is_clusterer
from sklearn.base import is_regressor
from sklearn.metrics import get_scorer_names
from sklearn.utils import get_tags

from optuna_treecv.learners.names import name_of
from optuna_treecv.scoring.metrics import FOR_CLASSIFIERS
from optuna_treecv.scoring.metrics import FOR_CLUSTERERS
from optuna_treecv.scoring.metrics import FOR_DENSITIES
from optuna_treecv.scoring.metrics import FOR_REGRESSORS
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import LOSSES
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import own_scorer
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import registered_scorer
from optuna_treecv.scoring.metrics import Scorer


@dataclass(frozen=True)
class Scoring:
    """The metrics by which estimators are scored.

    Attributes
    ----------
    names : tuple of str
        How the metrics are called in results.
    metrics : tuple of Loss, Scorer or Pooled
    optimized : tuple of int
        Which of them are optimised, the first one first.
    returns_tuple : bool
        Whether an objective returns a tuple of values.
    """

    names: tuple[str, ...]
    metrics: tuple[Metric, ...]
    optimized: tuple[int, ...] = (0,)
    returns_tuple: bool = False

    @property
    def name(self) -> str:
        """The name of the first optimised metric."""
        return self.names[self.optimized[0]]

    @property
    def first(self) -> Metric:
        """The first optimised metric."""
        return self.metrics[self.optimized[0]]

    @property
    def optimized_names(self) -> list[str]:
        return [self.names[i] for i in self.optimized]

    @property
    def directions(self) -> list[str]:
        """The direction of each optimised metric, "minimize" or "maximize"."""
        return [self.metrics[i].direction for i in self.optimized]


def pooled(scoring: Any) -> Pooled:
    r"""Score over the out-of-fold outputs of all rows, in place of the mean over folds.

    Metrics such as ``"roc_auc"``, ``"f1"`` and ``"neg_root_mean_squared_error"`` are no means over
    rows, and are biased or undefined on folds of few rows. Pooled, they are what a single
    validation set would give, also for leave-one-out. But models of different folds are then
    compared on one scale, and there are no fold scores. The standard error is that of the
    infinitesimal jackknife over rows (Jaeckel 1972), :math:`\sqrt{\sum_i (w_i \, \partial \theta /
    \partial w_i)^2}` for a score :math:`\theta` and rows of weights :math:`w_i`.

    Parameters
    ----------
    scoring : str or scorer
        A loss, or a scorer of scikit-learn: its name, or one that ``make_scorer`` has made.

    Returns
    -------
    Pooled
        For the argument ``scoring``, alone or in a list or dict.

    Raises
    ------
    ValueError
        If it is no loss, and no scorer that needs predictions alone.

    See Also
    --------
    tree_cross_validate : Takes it as ``scoring``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, pooled, tree_cross_validate
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> result = tree_cross_validate(
    ...     PegasosClassifier(alpha=0.01), scale(X), y, cv="loo", scoring=pooled("roc_auc")
    ... )
    >>> round(result.mean, 3)
    0.988
    """
    metric = _metric(scoring)
    if isinstance(metric, Pooled):
        return metric
    if isinstance(metric, Scorer) and not metric.is_made:
        raise ValueError(
            "scoring must be a loss or a scorer of make_scorer to be pooled, since that needs "
            f"predictions alone, got {scoring!r}."
        )
    return Pooled(metric)


def with_pooled(scoring: Scoring, metric: Pooled) -> Scoring:
    """Return a scoring that has a pooled metric too, the last one unless it was there."""
    if metric in scoring.metrics:
        return scoring
    names, metrics = (*scoring.names, metric.name), (*scoring.metrics, metric)
    return replace(scoring, names=names, metrics=metrics)


def make_scoring(scoring: Any, optimize: Any = None, is_pooled: bool = False) -> Scoring | None:
    """Return the scoring that the arguments ``scoring`` and ``optimize`` describe.

    None stays None; ``scoring_for`` then chooses the loss.

    Parameters
    ----------
    scoring : None, str, callable, Pooled, list of these, or dict of str to these
    optimize : None, str or list of str
    is_pooled : bool
        Whether all metrics are pooled.
    """
    if scoring is None:
        if optimize is not None:
            raise ValueError(
                "optimize must be None where scoring is None, since that is one loss, got "
                f"{optimize!r}."
            )
        return None
    if isinstance(scoring, Mapping):
        by_name = dict(scoring)
    elif isinstance(scoring, list | tuple):
        listed = [_metric(one) for one in scoring]
        by_name = {metric.name: metric for metric in listed}
        if len(by_name) < len(listed):
            raise ValueError(
                f"scoring must hold different names, got {[metric.name for metric in listed]}; a "
                "dict of names to scorers would be right."
            )
    else:
        metric = _metric(scoring)
        by_name = {metric.name: metric}
    if not by_name or not all(isinstance(name, str) for name in by_name):
        raise ValueError(f"scoring must hold one or more scores by name, got {scoring!r}.")
    metrics = [pooled(one) if is_pooled else _metric(one) for one in by_name.values()]
    registered_names = [metric.name for metric in metrics if metric.is_registered]
    if len(set(registered_names)) < len(registered_names):
        raise ValueError(f"scoring must hold each score once, got {registered_names}.")
    names = tuple(
        metric.name if is_pooled and not isinstance(scoring, Mapping) else name
        for name, metric in zip(by_name, metrics, strict=True)
    )
    return Scoring(names, tuple(metrics), *_optimized(optimize, names))


def _optimized(optimize: Any, names: Sequence[str]) -> tuple[tuple[int, ...], bool]:
    """Return which metrics are optimised, and whether values are tuples."""
    if optimize is None:
        return (0,), False
    returns_tuple = isinstance(optimize, list | tuple)
    choices = list(optimize) if returns_tuple else [optimize]
    unknown = [one for one in choices if one not in names]
    if unknown or not choices or len(set(choices)) < len(choices):
        what = repr(unknown[0]) if unknown else repr(optimize)
        raise ValueError(
            f"optimize must be one of the names in scoring ({', '.join(names)}) or a list of "
            f"different ones, got {what}."
        )
    return tuple(names.index(one) for one in choices), returns_tuple


def _metric(scoring: Any) -> Metric:
    """Return the loss or scorer that a string or callable names."""
    if isinstance(scoring, Loss | Scorer | Pooled):
        return scoring
    if isinstance(scoring, str):
        if scoring in LOSSES:
            return LOSSES[scoring]
        if scoring in get_scorer_names():
            return registered_scorer(scoring)
        like = get_close_matches(scoring, [*LOSSES, *get_scorer_names()], 1)
        meant = f"; did you mean {like[0]!r}?" if like else "."
        raise ValueError(
            f"scoring must be a loss ({', '.join(LOSSES)}) or the name of a scikit-learn scorer "
            f"(sklearn.metrics.get_scorer_names()), got {scoring!r}{meant}"
        )
    if callable(scoring) and not isinstance(scoring, type):
        return own_scorer(scoring)
    raise ValueError(
        "scoring must be None, a loss name, a scorer name, a scorer(estimator, X, y), or several "
        f"of these in a list or dict, got {scoring!r}."
    )


def scoring_for(scoring: Scoring | None, estimator: Any, is_pooled: bool = False) -> Scoring:
    """Return the given scoring if it fits the estimator.

    For None return the default loss, as in Table 1 of the TreeCV paper.
    """
    if is_classifier(estimator):
        kind, losses = "a classifier", FOR_CLASSIFIERS
    elif is_regressor(estimator):
        kind, losses = "a regressor", FOR_REGRESSORS
    elif is_clusterer(estimator):
        kind, losses = "a clusterer", FOR_CLUSTERERS
    elif get_tags(estimator).estimator_type == "density_estimator":
        kind, losses = "a density estimator", FOR_DENSITIES
    else:
        kind, losses = "an estimator of no such type", FOR_CLUSTERERS + FOR_DENSITIES
        if scoring is None:
            raise ValueError(
                f"scoring must be given for {name_of(estimator)}, which is neither "
                "classifier, regressor, clusterer nor density estimator; a scorer(estimator, X, "
                "y) would be right."
            )
    if scoring is None:
        default: Metric = Pooled(losses[0]) if is_pooled else losses[0]
        return Scoring((default.name,), (default,))
    for metric in scoring.metrics:
        of: Any = metric.of if isinstance(metric, Pooled) else metric
        if isinstance(of, Loss) and of not in losses:
            names = ", ".join(loss.name for loss in losses)
            raise ValueError(
                f"scoring={of.name!r} is not for {kind} such as {name_of(estimator)}; use {names}."
            )
    return scoring
