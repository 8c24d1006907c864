"""Results of a cross-validation: scores, standard errors, confidence intervals, comparisons."""

from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
import warnings

import numpy as np

from optuna_treecv.core.html import html_table
from optuna_treecv.core.html import svg_strip
from optuna_treecv.core.intervals import compute_interval
from optuna_treecv.core.intervals import dependence_note
from optuna_treecv.core.intervals import difference_by_folds
from optuna_treecv.core.intervals import difference_by_rows
from optuna_treecv.core.intervals import fold_error
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import IntervalMethod
from optuna_treecv.core.intervals import PairedDifference
from optuna_treecv.core.intervals import row_error
from optuna_treecv.core.intervals import Scores
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean score of the folds as a function of the number of trees; see ``CVResult.curve``.

    Attributes
    ----------
    n_trees : ndarray of shape (n_sizes,), int
        The numbers of trees, in ascending order. A boosting round of a multiclass booster adds one
        tree per class.
    mean : ndarray of shape (n_sizes,)
        The mean over folds of the first optimised score.
    std_error : ndarray of shape (n_sizes,)
        The standard deviation of the fold scores, divided by the square root of the number of
        folds; NaN for one fold. It is only approximate, because folds share training rows.
    best : int
        The number of trees with the best mean score; if several have this mean, the smallest of
        them.
    oob_score : float or None
        The mean over folds of ``oob_score_``. None if ``oob_score`` is not set, for
        ``n_estimators="best"``, for truncated trees, and if the scores were read from a cache or
        store.
    """

    n_trees: Array
    mean: Array
    std_error: Array
    best: int
    oob_score: float | None = None

    @classmethod
    def of(cls, scores: Array, n_trees: Array, sign: float, patience: int | None) -> "Curve":
        """Create a curve from the scores of all folds, up to the point of early stopping.

        Parameters
        ----------
        scores : ndarray of shape (n_folds, n_sizes)
        n_trees : ndarray of shape (n_sizes,), int
        sign : float
            1 if smaller scores are better, -1 if larger scores are better.
        patience : int or None
            The curve ends after this number of trees without a better mean; None: the curve has
            all scores.
        """
        losses = sign * scores.mean(axis=0)
        best_so_far = np.minimum.accumulate(losses)
        is_better = np.concatenate([[True], losses[1:] < best_so_far[:-1]])
        at_best = np.maximum.accumulate(np.where(is_better, np.arange(len(losses)), 0))
        if patience is not None:
            ended = np.flatnonzero(n_trees - n_trees[at_best] >= patience)
            if len(ended):
                scores, n_trees = scores[:, : ended[0] + 1], n_trees[: ended[0] + 1]
        n_folds = len(scores)
        error = scores.std(axis=0, ddof=1) / np.sqrt(n_folds) if n_folds > 1 else np.nan
        errors = np.broadcast_to(error, n_trees.shape)
        return cls(n_trees, scores.mean(axis=0), errors, int(n_trees[at_best[len(n_trees) - 1]]))

    def in_brief(self, most: int = 32) -> list[list[float | None]]:
        """Return a selection of evenly spaced points and the best point of the curve, for display.

        Parameters
        ----------
        most : int, default=32
            The maximum number of points besides the best one.

        Returns
        -------
        list of three lists of float
            The numbers of trees, their means and their standard errors; None for unknown values.
        """
        shown = np.unique(np.linspace(0, len(self.mean) - 1, most).astype(int))
        at_best = np.searchsorted(self.n_trees, self.best)
        shown = np.union1d(shown, [at_best])
        parts = self.n_trees[shown], self.mean[shown], self.std_error[shown]
        return [
            [float(f"{value:.6g}") if np.isfinite(value) else None for value in part.tolist()]
            for part in parts
        ]

    @property
    def value(self) -> float:
        """The best mean score."""
        return float(self.mean[np.searchsorted(self.n_trees, self.best)])

    def has_ended(self, patience: int | None) -> bool:
        """Return whether the curve was ended by early stopping.

        Parameters
        ----------
        patience : int or None
            The number of trees without a better mean after which training ends; None: there is no
            early stopping.

        Returns
        -------
        bool
            Whether training ended before the maximum number of trees.
        """
        return patience is not None and int(self.n_trees[-1]) - self.best >= patience


@dataclass(frozen=True, eq=False)  # arrays have no single ==
class Score:
    """The result of a cross-validation for one loss or scorer.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, one repeat after the other. In
        leave-one-out, fold i tests row i. A pooled score has one value per repeat instead of fold
        scores.
    mean : float
        The mean of ``test_score``.
    std : float or None
        The standard deviation of the fold scores. None if the mean is not finite, if there is only
        one score, or if the score is pooled.
    std_error : float or None
        The standard error of the mean, see ``CVResult``.
    direction : {"minimize", "maximize"}
        Whether lower or higher values are better.
    """

    test_score: Array
    mean: float
    std: float | None
    direction: str
    _behind: Scores | None = field(default=None, repr=False)
    _is_pooled: bool = field(default=False, repr=False)
    _pooled_error: float | None = field(default=None, repr=False)

    @property
    def std_error(self) -> float | None:
        """The standard error of the mean, computed on access."""
        if self._behind is None:
            return self._pooled_error
        tested, metric, by_fold = self._behind.tested, self._behind.metric, self._behind.by_fold
        overlap = tested.test_share if tested.shares_test_rows else None
        by_rows = by_folds = np.nan
        with np.errstate(all="ignore"):
            if metric.is_mean and overlap is None:
                by_rows = row_error(self._behind)
            if tested.n_folds > 1:
                by_folds = fold_error(by_fold, tested.n_folds, overlap)
        # The standard error over rows is preferred, if the scores of rows are known.
        return next((float(x) for x in (by_rows, by_folds) if np.isfinite(x)), None)

    def interval(
        self,
        method: IntervalMethod = "bayle",
        level: float = 0.95,
        loss_range: tuple[float, float] | None = None,
    ) -> Interval:
        """Return a confidence interval around ``mean``, see ``CVResult.interval``.

        Parameters
        ----------
        method : {"bayle", "nadeau_bengio", "hoeffding"}, default="bayle"
            The method.
        level : float, default=0.95
            The probability with which the interval covers its target.
        loss_range : (float, float), default=None
            The minimum and maximum score of a row, for "hoeffding".

        Returns
        -------
        Interval
            The interval.

        Raises
        ------
        ValueError
            If this method is not available for the score.
        """
        return compute_interval(self._scores(), method, level, loss_range)

    def _scores(self) -> Scores:
        """Return the fold scores and row statistics; raise an error if they are unknown."""
        if self._behind is None:
            missing = "a pruned evaluation has not tested all folds"
            if self._is_pooled:
                missing = "a pooled score has only std_error, the standard error over rows"
            raise ValueError(f"interval and compare need the score of each fold, but {missing}.")
        return self._behind

    def __repr__(self) -> str:
        """Return all attributes except the fold scores."""
        return (
            f"Score(mean={self.mean:.6g}, {_spread(self.std, self.std_error)}, "
            f"direction={self.direction!r}, test_score=<{len(self.test_score)} scores>)"
        )


@dataclass(frozen=True, eq=False)
class CVResult:
    """The result of a cross-validation.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, one repeat after the other. In
        leave-one-out, fold i tests row i. A pooled score has one value per repeat instead of fold
        scores. With several scores, this and the next four attributes are those of the first
        optimised score.
    mean : float
        The mean of ``test_score``; R in the TreeCV paper.
    std : float or None
        The standard deviation of the fold scores, like ``std_test_score`` in scikit-learn. None if
        the mean is not finite, if there is only one score, or if the score is pooled.
    std_error : float or None
        The standard error of the mean. It is computed over rows if each fold score is a mean over
        rows (Bayle et al. 2020), over rows by the jackknife if the score is pooled, and over folds
        otherwise. More repeats do not make it smaller, because all repeats have the same rows.
    std_over_repeats : float or None
        The standard deviation of the means of the repeats. It shows how much the mean depends on
        how the rows were shuffled. None for a single repeat, and for hold-outs, whose repeats have
        different test rows.
    scores : dict of str to Score
        The results for all scores, by name, in the order of ``scoring``. Each result has the
        attributes ``test_score``, ``mean``, ``std``, ``std_error`` and ``direction`` and the
        method ``interval``.
    row_losses : ndarray of shape (n_rows,), float32, or None
        With ``row_losses=True``, the score of each row of X, computed with the model that was not
        trained on this row and averaged over repeats; NaN for rows that no fold tests. Otherwise
        None.
    method : {"exact", "newton", "neighbors", "kernel", "boosting", "bagging", "forest", \
            "treecv", "chain", "fit", "standard", "holdout", "progressive"}
        How the folds were evaluated. "chain" is the form of "treecv" for time series splitters.
    reason : str
        The reason why "auto" has chosen this method; "" if the user has chosen the method.
    n_folds : int
        The number of folds per repeat.
    n_updates : int
        The number of row updates: the rows trained on, summed over all trainings.
    n_updates_saved : int
        The number of row updates that were avoided by reusing models of other evaluations.
    n_updates_standard : int
        The number of row updates that k trainings from scratch would need.
    seconds : float
        The time for training and scoring, in seconds.
    seconds_prepare : float
        The time for checking, permuting and padding the rows, in seconds.
    diverged_folds : int
        The number of folds whose model or loss was not finite. The score of such a fold is 1 for
        "error", inf for other losses and -inf for scorers.
    curve : Curve or None
        The learning curve of an ensemble that grows tree by tree. Its attributes are ``n_trees``;
        ``mean`` and ``std_error`` of the scores for each of these numbers of trees; ``best``, the
        number of trees with the best mean; and ``oob_score``. None for other estimators, and if
        the scores were read from a cache or store.
    """

    test_score: Array
    mean: float
    std: float | None
    scores: dict[str, Score]
    row_losses: Array | None
    method: str
    reason: str
    n_folds: int
    n_updates: int
    n_updates_saved: int
    n_updates_standard: int
    seconds: float
    seconds_prepare: float
    diverged_folds: int
    _name: str = field(repr=False)  # the name of the first optimised score
    curve: Curve | None = None
    _kfold_estimator: Estimator = field(default=None, repr=False)  # or the error to raise

    @property
    def std_error(self) -> float | None:
        """The standard error of the mean."""
        return self.scores[self._name].std_error

    @property
    def std_over_repeats(self) -> float | None:
        """The standard deviation of the means of the repeats."""
        score = self.scores[self._name]
        means = self.test_score if score._is_pooled else np.empty(0)
        if score._behind is not None:
            means = score._behind.by_fold.mean(axis=1)
        if len(means) < 2 or not np.all(np.isfinite(means)):
            return None
        return float(np.std(means, ddof=1))

    def interval(
        self,
        method: IntervalMethod = "bayle",
        level: float = 0.95,
        loss_range: tuple[float, float] | None = None,
    ) -> Interval:
        r"""Return a confidence interval around ``mean``.

        * "bayle" covers the mean risk of the k fold models. It is :math:`R \pm z
          \hat\sigma_n / \sqrt n` with :math:`\hat\sigma_n^2 = \frac{1}{n} \sum_i (\ell_i - R)^2`
          over the losses of all n rows [1]_. It is too narrow for the risk of a single model that
          is trained on all rows, especially for learners whose model strongly depends on the order
          of the rows.
        * "nadeau_bengio" covers the expected risk of a model that is trained on equally many new
          rows. It is Student's interval of the J fold scores with the variance :math:`(1 / J + n_2
          / n_1) S^2` for :math:`n_2` test and :math:`n_1` training rows [2]_. It supports any
          score.
        * "hoeffding" has the same target as "bayle", for any distribution of losses in a range of
          width b: :math:`R \pm b \sqrt{\ln(2 / \delta) / (2 m)}` with the m rows of one fold [3]_.
          It is wide except for progressive validation and hold-outs.

        Parameters
        ----------
        method : {"bayle", "nadeau_bengio", "hoeffding"}, default="bayle"
            The method. For scores that are not means over rows, such as "roc_auc", only
            "nadeau_bengio" is available.
        level : float, default=0.95
            The probability with which the interval covers its target, between 0 and 1.
        loss_range : (float, float), default=None
            The minimum and maximum score of a row, for "hoeffding". It may be None if the range is
            known, as for "error".

        Returns
        -------
        Interval
            The interval, with the attributes ``low`` and ``high``, a description ``target`` of the
            quantity that it covers, and a ``note`` if it may be too narrow.

        Raises
        ------
        ValueError
            If an argument is invalid, or if this method is not available for the score.

        Warns
        -----
        UserWarning
            If a Hoeffding interval is wider than the range of the score, or if rows are assumed to
            be independent although they have groups or belong to a time series.

        References
        ----------
        .. [1] P. Bayle, A. Bayle, L. Janson and L. Mackey, "Cross-validation confidence intervals
           for test error", NeurIPS 2020.
        .. [2] C. Nadeau and Y. Bengio, "Inference for the generalization error", Machine Learning
           52, 2003.
        .. [3] A. Blum, A. Kalai and J. Langford, "Beating the hold-out: bounds for k-fold and
           progressive cross-validation", COLT 1999.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from optuna_treecv import AveragedSGDClassifier, tree_cross_validate
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = make_pipeline(StandardScaler(), AveragedSGDClassifier())
        >>> result = tree_cross_validate(model, X, y)
        >>> interval = result.interval()
        >>> interval.low < result.mean < interval.high
        True
        >>> interval.target
        'the mean score of the 10 fold models (each trained on 512 rows) on new rows'
        """
        return self.scores[self._name].interval(method, level, loss_range)

    def compare(self, other: "CVResult", level: float = 0.95) -> PairedDifference:
        """Compare the mean with that of another evaluation on the same folds.

        Two evaluations on the same folds tend to have large losses on the same rows. Therefore,
        the standard error of their difference is often much smaller than the standard errors of
        the two means. If both evaluations have ``row_losses=True``, scores are paired by row;
        otherwise, they are paired by fold. The attribute ``by`` of the result shows which.

        Parameters
        ----------
        other : CVResult
            An evaluation by the same score on the same folds of the same rows. Its estimator and
            its features may differ.
        level : float, default=0.95
            The probability with which the interval covers the difference.

        Returns
        -------
        PairedDifference
            The mean of this evaluation minus the mean of ``other``, with its standard error and
            confidence interval.

        Raises
        ------
        ValueError
            If the folds, the rows or the scoring of the evaluations differ, if a score is not
            finite, or if there is only one fold and ``row_losses`` is None.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from optuna_treecv import PegasosClassifier, tree_cross_validate_many
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> models = [
        ...     make_pipeline(StandardScaler(), PegasosClassifier(alpha=alpha))
        ...     for alpha in (0.01, 1.0)
        ... ]
        >>> small, large = tree_cross_validate_many(models, X, y, row_losses=True)
        >>> difference = small.compare(large)
        >>> difference.by, difference.n_pairs
        ('rows', 569)
        """
        if not isinstance(other, CVResult):
            raise ValueError(f"other must be a CVResult, got {other!r}.")
        ours, theirs = self.scores[self._name]._scores(), other.scores[other._name]._scores()
        a, b = ours.metric, theirs.metric
        is_same = a is b or getattr(a, "score", a) is getattr(b, "score", b)
        if a.is_registered and b.is_registered:
            is_same = a.name == b.name
        if not is_same:
            raise ValueError(
                f"other must be scored by the same metric, {self._name!r}, got a result for "
                f"{other._name!r}."
            )
        if why := ours.tested.reason_not_comparable(theirs.tested):
            raise ValueError(
                f"other must be evaluated on the same folds of the same rows, but {why}."
            )
        if self.row_losses is not None and other.row_losses is not None:
            mean, note = self.mean - other.mean, dependence_note(ours.tested)
            if note:
                warn_caller(f"compare: {note[:1].lower()}{note[1:]}")
            shares = ours.tested.shares
            return difference_by_rows(mean, self.row_losses, other.row_losses, shares, level, note)
        overlap = ours.tested.test_share if ours.tested.shares_test_rows else None
        return difference_by_folds(
            self.test_score, other.test_score, ours.tested.n_folds, level, overlap
        )

    def kfold_estimator(self) -> Estimator:
        """Return the average of the models of all folds, as a fitted estimator.

        Its ``coef_`` and ``intercept_`` are the means over the fold models. If the weights still
        change considerably in the last steps of training, the average predicts better than a model
        that is trained on all rows. The cross-validated score applies to the single fold models,
        not to their average.

        Returns
        -------
        estimator
            A fitted linear estimator. It has no optimiser state from which training could be
            continued, so ``partial_fit`` of the learners of this package raises an error.

        Raises
        ------
        ValueError
            If ``kfold_models`` was not True in the cross-validation, or if a fold model has
            diverged.

        Examples
        --------
        >>> from sklearn.datasets import make_classification
        >>> from optuna_treecv import PegasosClassifier, tree_cross_validate
        >>> X, y = make_classification(random_state=0)
        >>> result = tree_cross_validate(PegasosClassifier(), X, y, kfold_models=True)
        >>> result.kfold_estimator().coef_.shape
        (1, 20)
        """
        if self._kfold_estimator is None:
            raise ValueError(
                "kfold_models must be True in the cross-validation, because kfold_estimator needs "
                "the mean of the fold models, which is computed only during their training."
            )
        if isinstance(self._kfold_estimator, ValueError):
            raise self._kfold_estimator
        return self._kfold_estimator

    @property
    def _method_in_words(self) -> str:
        return f"method={self.method!r}{self.reason and f', because {self.reason}'}"

    def _repr_html_(self) -> str:
        """Return the display for notebooks."""
        names = list(self.scores)
        rows: dict[str, object] = {}
        for name, score in self.scores.items():
            error = "" if score.std_error is None else f" ± {score.std_error:.2g}"
            rows[name] = f"{score.mean:.6g}{error}"
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            interval = self.interval()
            rows["95 % interval"] = f"{interval.low:.6g} to {interval.high:.6g}"
            rows["target of the interval"] = interval.target
        rows["folds"] = f"{self.n_folds:,}"
        rows["evaluated by"] = self._method_in_words
        if self.n_updates and self.n_updates_standard > self.n_updates:
            rows["rows trained on"] = (
                f"{self.n_updates:,}; k separate trainings: {self.n_updates_standard:,}"
            )
        rows["seconds"] = f"{self.seconds + self.seconds_prepare:.3g}"
        rows["diverged folds"] = self.diverged_folds or None
        strip = svg_strip(self.test_score, self.mean, self.std_error)
        return html_table(f"CVResult: {', '.join(names)}", rows, strip)

    def __setstate__(self, state: dict[str, Opaque]) -> None:
        """Restore a pickle. In earlier versions, ``reason`` was named ``why``."""
        former = {"why": "reason"}
        vars(self).update({former.get(name, name): value for name, value in state.items()})

    def __str__(self) -> str:
        """Return the scores with their standard errors, the method and the cost."""
        n_scores = len(self.test_score)
        of_folds = f"of {n_scores} folds" if n_scores == self.n_folds else f"of {n_scores} scores"
        lines = []
        for name, score in self.scores.items():
            error = "" if score.std_error is None else f" ± {score.std_error:.2g} (standard error)"
            lines.append(f"{name}: {score.mean:.6g}{error}, mean {of_folds}")
        lines.append(self._method_in_words)
        cost = f"{self.seconds + self.seconds_prepare:.3g} seconds"
        if self.n_updates and self.n_updates_standard > self.n_updates:
            cost += f"; trained on {self.n_updates:,} rows instead of {self.n_updates_standard:,}"
        if self.diverged_folds:
            cost += f"; {self.diverged_folds} folds diverged"
        return "\n".join([*lines, cost])

    def __repr__(self) -> str:
        """Return all attributes except the fold scores, which may be very long."""
        several = ""
        if len(self.scores) > 1:
            means = (f"{name!r}: {score.mean:.6g}" for name, score in self.scores.items())
            several = f"    scores=<{', '.join(means)}>,\n"
        reason = f"    reason={self.reason!r},\n" if self.reason and self.method == "fit" else ""
        trees = ""
        if self.curve is not None and len(self.curve.n_trees) > 1:
            trees = f" curve=<best: {self.curve.best} trees>,"
        elif self.curve is not None and self.curve.oob_score is not None:
            trees = f" curve=<oob_score: {self.curve.oob_score:.6g}>,"
        return (
            f"CVResult(mean={self.mean:.6g}, {_spread(self.std, self.std_error)}, "
            f"method={self.method!r}, n_folds={self.n_folds},{trees}\n"
            f"{several}{reason}"
            f"    test_score=<{len(self.test_score)} scores>, n_updates={self.n_updates}, "
            f"n_updates_saved={self.n_updates_saved}, "
            f"n_updates_standard={self.n_updates_standard},\n"
            f"    seconds={self.seconds:.3g}, seconds_prepare={self.seconds_prepare:.3g}, "
            f"diverged_folds={self.diverged_folds})"
        )


def _spread(std: float | None, std_error: float | None) -> str:
    """Return the standard deviation and the standard error as text, without values of None."""
    spreads = {"std": std, "std_error": std_error}
    known = [f"{name}={value:.6g}" for name, value in spreads.items() if value is not None]
    return ", ".join(known) or "std=None"


def mean_and_std(scores: Array) -> tuple[float, float | None]:
    """Return the mean and the standard deviation; the latter is None for infinite scores.

    Both are NaN if there are no scores, because the evaluation was stopped before the first one.
    """
    if len(scores) == 0:
        return np.nan, np.nan
    with np.errstate(all="ignore"):
        # The sums of np.mean and np.std, whose checks take many times as long for a few numbers.
        mean = float(np.add.reduce(scores) / len(scores))
        deviations = scores - mean
        std = float(np.sqrt(np.add.reduce(deviations * deviations) / len(scores)))
    if np.isfinite(std):
        return mean, std
    size = np.abs(scores).max()
    if not np.isfinite(size):
        return mean, None
    return float(np.mean(scores / size) * size), float(np.std(scores / size) * size)
