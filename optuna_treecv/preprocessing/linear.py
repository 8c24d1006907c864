"""Transformers that are linear maps of columns, fitted per fold from moments of training rows.

``PCA``, ``TruncatedSVD``, ``VarianceThreshold`` and the univariate selectors, such as
``SelectKBest``, are determined by counts, means and scatter matrices, and so is a
``StandardScaler`` behind them. The eigenvectors of a fold serve all values of ``n_components``.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from numbers import Integral
from typing import Any

import numpy as np
from scipy.special import fdtrc
from scipy.stats import f as f_distribution
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.decomposition import TruncatedSVD
from sklearn.decomposition._pca import _infer_dimension
from sklearn.feature_selection import f_classif
from sklearn.feature_selection import r_regression
from sklearn.feature_selection import VarianceThreshold
from sklearn.preprocessing import StandardScaler

from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import cached_moments
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import mapped
from optuna_treecv.numerics.moments import merge_groups
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_name
from optuna_treecv.numerics.moments import Source
from optuna_treecv.numerics.spread import is_rounding
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.preprocessing.reducers import FREE_PARAMETERS
from optuna_treecv.preprocessing.reducers import MIN_GAP
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.maps import LinearMap
from optuna_treecv.rows.maps import LinearMaps

_DECOMPOSITIONS = PCA, TruncatedSVD

# ``MIN_GAP`` for the scores of float32 columns, which scikit-learn computes in float32.
_MIN_GAP_FLOAT32 = 1e-5

# Components with a smaller share of the variance of the first one have too few correct digits.
_MIN_VARIANCE = 1e-8

# The eigenvectors of all folds are cached if they take no more bytes.
_MAX_BYTES = 2**27


class _Source(Source):
    """The moments that linear steps need: of each class if there are any, else of X and y."""

    def __init__(self, rows: PreparedRows, needs_classes: bool) -> None:
        n_groups = len(rows.classes) if needs_classes and rows.classes is not None else 1
        has_one_target = rows.targets is not None and rows.targets.ndim == 1
        n_targets = int(rows.classes is None and has_one_target)
        # Without weights, the moments are those of linear regression.
        self.name = moments_name(rows) if n_targets and rows.weights is None else "linear"
        rows = replace(rows, weights=None)
        super().__init__(rows, n_groups, True, n_targets, with_spread=False)

    def fill(
        self, rows: RowIndices, out: np.ndarray, chunk: int | None = None
    ) -> np.ndarray | None:
        """Copy rows, followed by their targets if there are no classes, into an array."""
        super().fill(rows, out, chunk)
        if self.n_targets:
            assert self.rows.targets is not None
            out[:, -1] = self.rows.targets[rows]
        return None


def fit_linear_maps(
    steps: Sequence[Any],
    rows: PreparedRows,
    chunks: Chunks,
    cached: ArrayCache,
    needs_each: bool,
    ignores_zeros: bool,
    n_threads: int,
) -> LinearMaps:
    """Fit transformers to the training rows of each chunk, one after another.

    Parameters
    ----------
    steps : sequence of transformers
    rows : PreparedRows
        Their ``maps`` are applied first.
    chunks : Chunks
    cached : callable
        An ``ArrayCache`` that is shared by all values of the free parameters.
    needs_each : bool
        Whether models depend on each component instead of only on the span of all components.
    ignores_zeros : bool
        Whether columns that are zero in all training rows have no effect on models.
    n_threads : int

    Raises
    ------
    ValueError
        If rounding errors may change which columns or components are kept.
    """
    has_scores = any(hasattr(step, "score_func") for step in steps)
    source = _Source(rows, has_scores)
    if has_scores and rows.classes is None and not source.n_targets:
        raise ValueError("a score_func of columns takes a single target")
    moments_of_sets = cached_moments(source, chunks, cached, source.name, n_threads)
    train = [of_set for of_set, _ in moments_of_sets]
    n_inputs, column_maps = rows.n_features, rows.maps
    assert not isinstance(column_maps, LinearMaps)
    maps, name = [LinearMap(np.arange(n_inputs)) for _ in train], "eigenvectors"
    are_components = are_scaled = False
    for number, step in enumerate(steps):
        linear_maps = LinearMaps(None, n_inputs, n_inputs, tuple(maps))
        if not (linear_maps.have_one_size or type(step) is StandardScaler):
            raise ValueError("a transformer keeps more columns in some training sets than others")
        moments = train
        if number:
            moments = [mapped(of_set, linear_maps, chunk) for chunk, of_set in enumerate(train)]
        totals = [*map(merge_groups, moments)]
        if type(step) in _DECOMPOSITIONS:
            if are_scaled:
                raise ValueError("the variances of scaled components are equal")
            later = steps[number + 1 :]
            check = partial(_check_values, step, later, needs_each, ignores_zeros)
            eigen = _compute_eigenvectors(step, totals, linear_maps.n_features, cached, name)
            maps = [*map(partial(_decompose, step, check), maps, totals, eigen)]
        elif type(step) is StandardScaler:
            maps = [*map(partial(_scale, step), maps, totals)]
        else:
            min_gap = _MIN_GAP_FLOAT32 if rows.X.dtype == np.float32 else MIN_GAP
            maps = [*map(partial(_select, step, min_gap), maps, moments, totals)]
        are_components |= type(step) in _DECOMPOSITIONS
        are_scaled |= are_components and _scales(step)
        name += f" {getattr(step, FREE_PARAMETERS.get(type(step), 'with_std'))!r}"
    n_columns = n_inputs if column_maps is None else column_maps.n_columns
    return LinearMaps(column_maps, n_columns, n_inputs, tuple(maps))


def _scales(step: Any) -> bool:
    """Return whether a transformer scales columns or components to a variance of 1."""
    return bool(getattr(step, "whiten", False) or getattr(step, "with_std", False))


def _compute_eigenvectors(
    step: Any, totals: Sequence[Moments], d: int, cached: ArrayCache, name: str
) -> np.ndarray:
    """Return the eigenvalues and eigenvectors of each training set, (n_sets, d + 1, d).

    The first row contains the eigenvalues in descending order, and the others are eigenvectors.
    """
    shape = len(totals), d + 1, d

    def make(memory: np.ndarray) -> None:
        for out, total in zip(memory.reshape(shape), totals, strict=True):
            products = total.scatters[0, :d, :d]
            if type(step) is TruncatedSVD:
                mean = total.means[0, :d]
                products = products + total.weights[0] * np.outer(mean, mean)
            values, vectors = np.linalg.eigh(products)
            out[0], out[1:] = np.maximum(values[::-1], 0), vectors.T[::-1]

    size = prod(shape)
    if 8 * size <= _MAX_BYTES:
        return cached(name, size, make).reshape(shape)
    memory = np.empty(size)
    make(memory)
    return memory.reshape(shape)


def _decompose(
    step: Any,
    check: Callable[[np.ndarray, int], None],
    before: LinearMap,
    total: Moments,
    eigen: np.ndarray,
) -> LinearMap:
    """Return the map to the components of a PCA or a truncated singular value decomposition."""
    (values, *_), d, n_rows = eigen, eigen.shape[1], float(total.counts.sum())
    variances, mean = values / (n_rows - 1), total.means[0, :d]
    k = step.n_components
    if k is None:
        k = d
    elif k == "mle":
        k = _infer_dimension(variances, int(n_rows))
    elif not isinstance(k, Integral) and type(step) is PCA:
        shares = np.cumsum(variances) / variances.sum()
        k, given = int(np.searchsorted(shares, k, side="right")) + 1, float(k)
        if np.any(np.abs(shares - given) < MIN_GAP):
            raise ValueError("the share of variance is equal to n_components")
    most = d if type(step) is PCA else d - 1
    if not 1 <= k <= most:
        raise ValueError(f"n_components must be between 1 and {most}, got {k}.")
    check(values, k)
    components = eigen[1 : k + 1]
    largest = np.abs(components).argmax(axis=1)
    matrix = (components * np.sign(components[np.arange(k), largest])[:, None]).T
    if getattr(step, "whiten", False):
        matrix = matrix / np.sqrt(variances[:k])
    offset = np.zeros(k) if type(step) is PCA else mean @ matrix
    return before.then(mean, matrix, offset)


def _check_values(
    step: Any,
    later: Sequence[Any],
    needs_each: bool,
    ignores_zeros: bool,
    values: np.ndarray,
    k: int,
) -> None:
    """Raise an error if rounding errors change the components of the k largest eigenvalues."""
    gaps = -np.diff(values) / (values[0] or 1)
    is_scaled = any(map(_scales, (step, *later)))
    selects = any(type(other) not in (StandardScaler, *_DECOMPOSITIONS) for other in later)
    rank = len(values)
    if ignores_zeros and type(step) is PCA and not (is_scaled or selects):
        least = 10 * len(values) * np.finfo(np.float64).eps * values[0]
        rank = int(np.count_nonzero(values > least))
        gaps[max(rank - 1, 0) :] = 1  # the components without variance
    if np.any(gaps[k - 1 : k] < MIN_GAP):
        raise ValueError(f"the variances of components {k} and {k + 1} are equal")
    if (needs_each or selects) and np.any(gaps[:k] < MIN_GAP):
        raise ValueError("the variances of two components are equal")
    if np.any(values[: min(k, rank)] < _MIN_VARIANCE * values[0]):
        raise ValueError(f"the variance of component {min(k, rank)} is small or a rounding error")


def _scale(step: StandardScaler, before: LinearMap, total: Moments) -> LinearMap:
    """Return the map, followed by a StandardScaler."""
    d, n_rows = before.n_features, total.counts.sum()
    mean, variance = total.means[0, :d], total.scatters[0].diagonal()[:d] / n_rows
    scale = np.ones(d)
    if step.with_std:
        scale = np.where(is_rounding(variance, n_rows, mean), 1, np.sqrt(variance))
    return before.then(mean, np.diag(1 / scale), np.zeros(d) if step.with_mean else mean / scale)


def _select(
    step: Any, min_gap: float, before: LinearMap, moments: Moments, total: Moments
) -> LinearMap:
    """Return the map to the columns that a transformer selects."""
    d, n_rows = before.n_features, float(total.counts.sum())
    mean, variance = total.means[0, :d], total.scatters[0].diagonal()[:d] / n_rows
    is_constant = is_rounding(variance, int(n_rows), mean)
    if type(step) is VarianceThreshold:
        variance = np.where(is_constant, 0, variance)
        if step.threshold and np.any(np.isclose(variance, step.threshold, min_gap, 0)):
            raise ValueError("the variance of a column is equal to the threshold")
        mask = variance > step.threshold
    else:
        if np.any(is_constant & (mean != 0)):
            raise ValueError("the score of a constant column consists of rounding errors")
        with np.errstate(all="ignore"):
            scores, p_values = _scores(step.score_func, moments, total, d)
        selector = clone(step)
        selector.scores_, selector.pvalues_ = scores, p_values
        mask = selector._get_support_mask()
        ranks = np.where(np.isnan(scores), -np.inf, scores)
        if mask.any() and not mask.all():
            least, greatest = ranks[mask].min(), ranks[~mask].max()
            if least == greatest or least - greatest < min_gap * abs(least):
                raise ValueError("the scores of a selected and another column are equal")
    if not mask.any():
        raise ValueError(f"the {type(step).__name__} selects no column")
    return before.select(np.flatnonzero(mask))


def _scores(
    function: Callable[..., Any], moments: Moments, total: Moments, d: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the scores and the p-values of columns by one of scikit-learn's functions."""
    n_rows, squares = float(total.counts.sum()), total.scatters[0].diagonal()
    if function is f_classif:
        n_classes = np.count_nonzero(moments.counts)
        steps = moments.means[:, :d] - total.means[0, :d]
        between = moments.counts @ np.square(steps) / (n_classes - 1)
        within = moments.scatters[0].diagonal()[:d] / (n_rows - n_classes)
        scores = between / within
        return scores, fdtrc(n_classes - 1, n_rows - n_classes, scores)
    correlations = np.nan_to_num(total.scatters[0, :d, d] / np.sqrt(squares[:d] * squares[d]))
    if function is r_regression:
        return correlations, None
    shares = np.square(correlations)
    scores = shares / (1 - shares) * (n_rows - 2)
    p_values = f_distribution.sf(scores, 1, n_rows - 2)
    is_exact = np.isinf(scores)
    scores[is_exact], p_values[is_exact] = np.finfo(np.float64).max, 0
    return scores, p_values
