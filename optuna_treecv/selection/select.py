"""Select features by cross-validation, with the scores of all numbers of features."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from typing import Literal
from typing import Unpack

import numpy as np

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.intervals import compute_interval
from optuna_treecv.core.intervals import fold_error
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import Scores
from optuna_treecv.core.settings import Arguments
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import is_number
from optuna_treecv.core.settings import quietly
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import takes_settings
from optuna_treecv.core.tested import Tested
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.checks import checked_estimator
from optuna_treecv.estimators.checks import import_pandas
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.selection.sums import collect_sums
from optuna_treecv.selection.sums import SUPPORTED
from optuna_treecv.selection.sums import Walk
from optuna_treecv.types import Array


@dataclass(frozen=True, eq=False)
class FeatureSelection:
    """The selected features, and the best set that was found for each number of features.

    The folds that score the sets have also chosen them, so scores and intervals are optimistic,
    more so with many features and few rows. To estimate the score of the whole procedure, put a
    ``SequentialFeatureSelector`` into a Pipeline and cross-validate it.

    Attributes
    ----------
    n_features : int
        The number of selected features.
    masks : ndarray of shape (n_features_in, n_features_in), bool
        Row i is the mask of the set of i + 1 features.
    order : ndarray of shape (n_features_in,), int
        The features in the order in which they were added, or the reverse of the order in which
        they were removed. The first i + 1 features are those of ``masks[i]``.
    fold_scores : ndarray of shape (n_features_in, n_repeats, n_folds)
        The scores of each set. Larger scores are better.
    std_errors : ndarray of shape (n_features_in,)
        The standard error of each mean score, as if folds were independent.
    intervals : list of Interval or None
        For each set, the 95 % interval of Nadeau and Bengio for the expected score of a model that
        is trained on other rows. None if folds are a single test set or a time series.
    feature_names : ndarray of shape (n_features_in,) or None
        The column names of a data frame.
    scoring : str
        The name of the score.
    direction : {"forward", "backward"}
    """

    n_features: int
    masks: Array
    order: Array
    fold_scores: Array
    std_errors: Array
    intervals: list[Interval | None]
    feature_names: Array | None
    scoring: str
    direction: Literal["forward", "backward"]

    def __repr__(self) -> str:
        """Return the numbers of features and the score of the selected ones."""
        return (
            f"FeatureSelection(n_features={self.n_features}, fewest={self.fewest}, "
            f"scoring={self.scoring!r}, direction={self.direction!r},\n"
            f"    means=<{len(self.means)} scores, {self.means[self.n_features - 1]:.6g} of the "
            f"selected>)"
        )

    @property
    def support(self) -> Array:
        """The mask of the selected features, shape (n_features_in,)."""
        return np.asarray(self.masks[self.n_features - 1])

    @property
    def means(self) -> Array:
        """The mean score of each set, shape (n_features_in,)."""
        return np.asarray(self.fold_scores.mean(axis=(1, 2)))

    @property
    def fewest(self) -> int:
        """The fewest features that lose at most one standard error to the best number.

        The standard error is that of the mean difference on the same folds.
        """
        differences = self.fold_scores[np.argmax(self.means)] - self.fold_scores
        n_folds = self.fold_scores.shape[2]
        errors = [0.0 if d.size == 1 else fold_error(d, n_folds) for d in differences]
        return 1 + int(np.argmax(differences.mean(axis=(1, 2)) <= errors))

    def frame(self) -> Any:
        """Return the scores of all numbers of features as a data frame.

        Returns
        -------
        pandas.DataFrame
            One row for each number of features, which is the index. The columns are "feature", the
            feature that was added last or would be removed next, "mean", "std_error", "low" and
            "high", the ends of the interval.
        """
        features = self.order if self.feature_names is None else self.feature_names[self.order]
        limits = [(np.nan, np.nan) if i is None else (i.low, i.high) for i in self.intervals]
        columns = {"feature": features, "mean": self.means, "std_error": self.std_errors}
        low_and_high = dict(zip(("low", "high"), np.transpose(limits), strict=True))
        pandas = import_pandas("FeatureSelection.frame")
        index = pandas.RangeIndex(1, len(self.order) + 1, name="n_features")
        return pandas.DataFrame({**columns, **low_and_high}, index)


@takes_settings(
    *("method", "order", "n_epochs", "n_estimators", "truncate", "optimize", "pooled", "report"),
    *("sample_weight", "score_weight", "params", "row_losses", "max_memory", "spill_dir"),
    *("verbose", "stratify"),
)
def select_features(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    direction: Literal["forward", "backward"] = "forward",
    n_features_to_select: Literal["auto"] | float = "auto",
    tol: float | None = None,
    **settings: Unpack[Arguments],
) -> FeatureSelection:
    """Add or remove one feature after another by cross-validated score, for every number of them.

    The sets are those of scikit-learn's ``SequentialFeatureSelector`` on the same folds, but all
    of them follow from sums over the rows of each fold, which are read once. If the scores of
    several features differ only by rounding, as for duplicates of a column, the first of these
    features is chosen. Models are solved to convergence, whatever the solver of the estimator.

    Parameters
    ----------
    estimator : Ridge or LinearRegression
        The estimator, which may follow a ``StandardScaler`` in a Pipeline.
    X : array-like or data frame of shape (n_rows, n_features)
        The features, as a dense array of numbers.
    y : array-like of shape (n_rows,) or str
        The targets, or the name of a column of X, which is then not used as a feature.
    direction : {"forward", "backward"}, default="forward"
        Whether to add features to none, or to remove features from all.
    n_features_to_select : "auto", int or float, default="auto"
        The number of features to select, or their share if it is a float. "auto" stops by ``tol``,
        or selects half of the features if ``tol`` is None. The scores of other numbers of features
        are computed in any case.
    tol : float, default=None
        If a step increases the mean score by less than this, it is not taken, and the selection
        ends. It may be negative if features are removed. Only used with "auto".
    **settings

    Returns
    -------
    FeatureSelection
        The selected features, and the sets and scores for all numbers of features.

    Raises
    ------
    ValueError
        If an argument is invalid, columns of X are linearly dependent, or models do not follow
        from sums over rows for another reason.

    See Also
    --------
    optuna_treecv.accelerate : Replaces ``SequentialFeatureSelector``, ``RFE`` and ``RFECV``.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> from optuna_treecv import select_features
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> selection = select_features(LinearRegression(), X, y, tol=0.002)
    >>> X.columns[selection.support].tolist()
    ['sex', 'bmi', 'bp', 's3', 's5']
    >>> selection.frame()["mean"].round(3).tolist()
    [0.319, 0.441, 0.455, 0.466, 0.485, 0.486, 0.486, 0.484, 0.481, 0.479]
    """
    estimator = checked_estimator(estimator)
    check_choice("direction", direction, ("forward", "backward"))
    if type(last_step(estimator)) not in SUPPORTED:
        raise ValueError(
            f"estimator must be Ridge or LinearRegression, got {name_of(last_step(estimator))}; "
            "use SequentialFeatureSelector of scikit-learn instead."
        )
    settings["scoring"], settings["method"] = settings.get("scoring") or "r2", "exact"
    checked = Settings(**settings)
    if checked.scored_by is not None and len(checked.scored_by.metrics) > 1:
        raise ValueError(f"scoring must be a single score, got {settings['scoring']!r}.")
    cross_validation = CrossValidation.of(X, y, checked, estimator)
    cross_validation.data.require_local("select_features")
    n_columns, is_forward = cross_validation.data.n_features, direction == "forward"
    _check_number(n_features_to_select, tol, is_forward, n_columns)
    try:
        sums = collect_sums(run_for(cross_validation, estimator))
        walk = Walk(sums, is_forward)
        start = [] if is_forward else [walk.scores()]
        order, steps = zip(*[walk.step() for _ in range(n_columns - len(start))], strict=True)
    except ValueError as error:
        if " must " in str(error):
            raise
        reason = str(error).partition(";")[0].rpartition("because ")[2]
        raise ValueError(
            f"select_features cannot evaluate {name_of(estimator)} from sums over rows, because "
            f"{reason}; use SequentialFeatureSelector of scikit-learn instead."
        ) from error
    n_steps = _count_steps(np.mean(steps, axis=1), n_features_to_select, tol, is_forward)
    by_fold = np.array([*start, *steps])
    if not is_forward:
        last = set(range(n_columns)).difference(order)
        order, by_fold, n_steps = (*last, *order[::-1]), by_fold[::-1], n_columns - n_steps
    by_fold = by_fold.reshape(n_columns, cross_validation.n_repeats, -1)
    tested = cross_validation.tested("exact")
    return FeatureSelection(
        n_steps,
        np.array([np.isin(np.arange(n_columns), order[: i + 1]) for i in range(n_columns)]),
        np.array(order),
        by_fold,
        np.array([_std_error(of_set, tested) for of_set in by_fold]),
        [_interval(of_set, sums.metric, tested) for of_set in by_fold],
        cross_validation.data.feature_names(),
        sums.metric.name,
        direction,
    )


def _check_number(n_features: Any, tol: Any, is_forward: bool, n_columns: int) -> None:
    """Raise an error unless ``n_features_to_select`` and ``tol`` are valid and compatible."""
    is_share = is_number(n_features) and not is_integer(n_features) and 0 < n_features <= 1
    is_count = is_integer(n_features) and 1 <= n_features <= n_columns
    if not (is_share or is_count or n_features == "auto"):
        raise ValueError(
            "n_features_to_select must be 'auto', a share above 0 and at most 1, or an integer "
            f"from 1 to {n_columns}, got {n_features!r}."
        )
    if tol is not None and (
        n_features != "auto" or not is_number(tol) or (is_forward and tol < 0)
    ):
        raise ValueError(
            "tol must be None unless n_features_to_select='auto', and a number that is not "
            f"negative if direction='forward', got {tol!r}."
        )


def _count_steps(means: Array, n_features: Any, tol: float | None, is_forward: bool) -> int:
    """Return how many steps ``SequentialFeatureSelector`` takes.

    Parameters
    ----------
    means : ndarray of shape (n_steps,)
        The mean score after each step.
    n_features, tol : int, float, str or None
        The arguments of ``select_features``.
    is_forward : bool
    """
    n_columns = len(means) + (0 if is_forward else 1)
    if n_features == "auto" and tol is not None:
        is_last = np.append(np.diff(means) < tol, True)
        return min(1 + int(np.argmax(is_last)), max(1, n_columns - 1))
    if n_features == "auto":
        return max(1, n_columns // 2)
    n_selected = n_features if is_integer(n_features) else max(1, int(n_columns * n_features))
    return int(n_selected if is_forward else n_columns - n_selected)


def _std_error(by_fold: Array, tested: Tested) -> float:
    """Return the standard error of a mean over folds; NaN for a single fold."""
    overlap = tested.test_share if tested.shares_test_rows else None
    return fold_error(by_fold, tested.n_folds, overlap) if by_fold.size > 1 else float("nan")


def _interval(by_fold: Array, metric: Scorer, tested: Tested) -> Interval | None:
    """Return the interval of Nadeau and Bengio, or None if the splits have none."""
    unknown = np.full((3, *by_fold.shape), np.nan)
    with quietly(), suppress(ValueError):
        scores = Scores(metric.name, metric, by_fold, unknown, tested)
        return compute_interval(scores, "nadeau_bengio", 0.95)
    return None
