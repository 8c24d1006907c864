"""Searches for the nearest training rows of test rows, by scikit-learn and by a kernel."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics._pairwise_distances_reduction import ArgKmin
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from optuna_treecv.engines.neighbors.kernels.nearest import nearest
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.preprocessing.parts import foreign_code

#: (X, n_neighbors) -> distances and training rows.
Search = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]

# Up to this number of test rows per thread, scikit-learn divides training rows among its threads,
# which changes its choice among equal distances.
_FEW_ROWS = 1024

# Up to this number of neighbours, our lists take less time than scikit-learn's heaps; and the rows
# that are searched at once there and here.
_FEW_NEIGHBORS, _BLOCK = 64, 256

# Products of matrices multiply tiles of rows, and round the rows behind the last whole tile in
# another way. In all libraries that were tried, multiples of this number of rows are whole tiles.
TILE = 8


def nearest_in_any_order(model: Any, X: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Like ``nearest_by_model``, with an unspecified choice and order among equal distances."""
    rows, metric = model._fit_X, model.effective_metric_
    is_usual = not is_tree(model) and metric == "euclidean" and size <= _FEW_NEIGHBORS
    are_dense = isinstance(X, np.ndarray) and X.dtype == np.float64 and np.isfinite(X).all()
    if not (is_usual and are_dense and ArgKmin.is_usable_for(X, rows, metric)):
        return nearest_by_model(model, X, size)
    blocks = [X[begin : begin + _BLOCK] for begin in range(0, len(X), _BLOCK)]
    search = partial(nearest, Y=rows, k=size)
    distances, indices = zip(*in_order(_openmp_effective_n_threads(), search, blocks), strict=True)
    return np.concatenate(distances), np.concatenate(indices)


def nearest_by_model(model: Any, X: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances and the indices of the nearest training rows."""
    with foreign_code():
        return model.kneighbors(X, size)


def is_tree(model: Any) -> bool:
    """Return whether a fitted estimator searches in a tree, independently for each row."""
    return model._tree is not None


def part_search(model: Any, X: Any) -> Search | None:
    """Return a search for a subset of the test rows that breaks ties as for all of X, or None.

    The order among equal distances depends on how scikit-learn shares out work, and that on the
    number of test rows.
    """
    rows, metric = model._fit_X, model.effective_metric_
    are_arrays = isinstance(X, np.ndarray) and isinstance(rows, np.ndarray)
    if not is_tree(model) and are_arrays and ArgKmin.is_usable_for(X, rows, metric):
        # Threads share test rows, or training rows if test rows are few.
        are_few = X.shape[0] <= _FEW_ROWS * _openmp_effective_n_threads()
        strategy = "parallel_on_Y" if are_few else "parallel_on_X"

        def search(part: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
            options = dict(model.effective_metric_params_)
            nearest_rows = ArgKmin.compute(part, rows, k, metric, None, options, strategy, True)
            return nearest_rows[0], nearest_rows[1]

        return search
    # The choice among equal distances of sparse rows depends on the other test rows.
    is_any = is_tree(model) or (are_arrays and X.shape[0] <= _FEW_ROWS)
    return partial(nearest_by_model, model) if is_any else None


def whole_tiles(rows: np.ndarray) -> np.ndarray:
    """Return rows in ascending order, some of them repeated to fill whole tiles."""
    return np.resize(np.sort(rows), TILE * -(-len(rows) // TILE))
