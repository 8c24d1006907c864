"""Searches for the nearest training rows of test rows, by scikit-learn or by our kernel."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics._pairwise_distances_reduction import ArgKmin
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from optuna_treecv.engines.neighbors.kernels.nearest import nearest
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.preprocessing.parts import foreign_code

#: (X, n_neighbors) -> distances and indices of the nearest training rows.
Search = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]

# With at most this number of test rows per thread, scikit-learn divides the training rows, not the
# test rows, among its threads. This changes its choice among equal distances.
_MAX_ROWS_PARALLEL_ON_Y = 1024

# With at most this number of neighbours, our kernel's sorted lists are faster than the heaps of
# scikit-learn.
_MAX_NEIGHBORS_OF_KERNEL = 64

# The number of test rows that our kernel searches for in one call.
_BLOCK_ROWS = 256

# BLAS multiplies matrices in tiles of rows, and may round the remaining rows after the last whole
# tile differently. In all tested BLAS libraries, multiples of this number of rows are whole tiles.
TILE = 8


def nearest_in_any_order(model: Any, X: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Like ``nearest_by_model``, but the choice and order among equal distances are arbitrary."""
    rows, metric = model._fit_X, model.effective_metric_
    fits_kernel = (
        not uses_tree(model)
        and metric == "euclidean"
        and size <= _MAX_NEIGHBORS_OF_KERNEL
        and isinstance(X, np.ndarray)
        and X.dtype == np.float64
        and np.isfinite(X).all()
        and ArgKmin.is_usable_for(X, rows, metric)
    )
    if not fits_kernel:
        return nearest_by_model(model, X, size)
    blocks = [X[start : start + _BLOCK_ROWS] for start in range(0, len(X), _BLOCK_ROWS)]
    search = partial(nearest, Y=rows, k=size)
    distances, indices = zip(*in_order(_openmp_effective_n_threads(), search, blocks), strict=True)
    return np.concatenate(distances), np.concatenate(indices)


def nearest_by_model(model: Any, X: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances to the nearest training rows, and their indices, by scikit-learn."""
    with foreign_code():
        return model.kneighbors(X, size)


def uses_tree(model: Any) -> bool:
    """Return whether a fitted estimator searches in a tree, independently for each test row."""
    return model._tree is not None


def subset_search(model: Any, X: Any) -> Search | None:
    """Return a search for a subset of the test rows X that breaks ties as a search for X does.

    Scikit-learn's choice among equal distances may depend on how work is divided among threads,
    and thus on the number of test rows. Return None if the choice for X cannot be reproduced.
    """
    rows, metric = model._fit_X, model.effective_metric_
    is_dense = isinstance(X, np.ndarray) and isinstance(rows, np.ndarray)
    if not uses_tree(model) and is_dense and ArgKmin.is_usable_for(X, rows, metric):
        max_rows = _MAX_ROWS_PARALLEL_ON_Y * _openmp_effective_n_threads()
        strategy = "parallel_on_Y" if X.shape[0] <= max_rows else "parallel_on_X"

        def search(subset: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
            options = dict(model.effective_metric_params_)
            nearest_rows = ArgKmin.compute(subset, rows, k, metric, None, options, strategy, True)
            return nearest_rows[0], nearest_rows[1]

        return search
    # For sparse rows, the choice among equal distances depends on the other test rows.
    is_reproducible = uses_tree(model) or (is_dense and X.shape[0] <= _MAX_ROWS_PARALLEL_ON_Y)
    return partial(nearest_by_model, model) if is_reproducible else None


def fill_tiles(rows: np.ndarray) -> np.ndarray:
    """Return row indices in ascending order, repeated from the first until tiles are filled."""
    return np.resize(np.sort(rows), TILE * -(-len(rows) // TILE))
