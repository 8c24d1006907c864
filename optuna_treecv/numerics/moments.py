"""Moments of the training rows of each fold: weights, means and centred scatter matrices.

Many models can be computed from these sums, which are kept separately for each group, such as a
class. If the moments of a training set were a difference between the moments of all rows and those
of the test rows, small variances would lose their digits. Therefore, nothing is subtracted: the
moments of the rows before a chunk and of the rows after it are merged. This takes about 2 k merges
for k chunks.

A *chunk* is a set of test rows that one model predicts, which is usually a fold.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import partial
from functools import reduce
from itertools import accumulate
from itertools import pairwise
from math import isqrt
from math import prod
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import numpy as np
from sklearn import get_config
from sklearn import set_config

from optuna_treecv.numerics.spread import BLOCK
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import merge_spreads
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import Spread
from optuna_treecv.numerics.spread import spread_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.maps import ColumnMaps
from optuna_treecv.rows.maps import LinearMaps

Item = TypeVar("Item")
Result = TypeVar("Result")


#: (name, size, make) -> a read-only array of ``size`` float64 values. If no array with this name
#: is cached, ``make`` fills a new array, which is then cached.
ArrayCache = Callable[[str, int, Callable[[np.ndarray], None]], np.ndarray]


#: A slice of consecutive chunks, and the predictions for their test rows, in the order of
#: ``Chunks.test_rows``: an array of shape (n_candidates, n_rows, n_outputs). A model that is not
#: finite has predictions that are not finite.
TestedChunks = tuple[slice, np.ndarray]

# The number of rows that are sorted by group together.
_SORTED_ROWS = 8 * BLOCK


# If the training sets together have at least this many times as many rows as there are, the
# moments of cells are computed first, unless there are more than this number of cells per chunk.
_READINGS_OF_CELLS, _CELLS_PER_CHUNK = 4, 4

# The smallest mean share of the rows in a training set with which cells are sought, because each
# set takes a pass over an array with an entry for each row.
_SHARE_OF_CELLS = 1 / 16


class Cells(NamedTuple):
    """The largest sets of rows that each training or test set contains completely or not at all.

    Attributes
    ----------
    rows : list of ndarray
        The rows of each cell.
    trains, tests : list of ndarray
        The cells of which the training and the test set of each chunk consist.
    """

    rows: list[np.ndarray]
    trains: list[np.ndarray]
    tests: list[np.ndarray]


@dataclass(frozen=True)
class Chunks:
    """The training and test rows of each chunk, as indices of prepared rows.

    Attributes
    ----------
    n_rows : int
        The number of prepared rows.
    bounds : ndarray of shape (n_chunks + 1,), int64
        Chunk c has the test rows ``bounds[c]`` to ``bounds[c + 1] - 1``. They are indices into
        ``tested_rows``.
    tested_rows : ndarray of shape (bounds[-1],) or None
        The indices of the prepared rows that are tested, in the order of the chunks. None if this
        would be the array 0, 1, 2, ...
    trains : list of list of (slice or ndarray) or None
        For each chunk, the training rows of its model, as a list of slices and arrays of row
        indices. None if each model is trained on all rows outside its chunk.
    """

    n_rows: int
    bounds: np.ndarray
    tested_rows: np.ndarray | None = None
    trains: list[list[RowIndices]] | None = None

    @property
    def n_chunks(self) -> int:
        return len(self.bounds) - 1

    @property
    def are_single_rows(self) -> bool:
        """Whether this is leave-one-out cross-validation."""
        return self.trains is None and self.n_chunks == self.n_rows

    @property
    def sizes(self) -> np.ndarray:
        """The number of test rows of each chunk."""
        return np.diff(self.bounds)

    @property
    def scored_bounds(self) -> np.ndarray:
        """The bounds of the sets of rows that are scored together; a chunk may have several."""
        return self.bounds

    @property
    def n_read(self) -> int:
        """The number of rows that are read to compute the moments of all training sets."""
        if self.trains is None:
            return self.n_rows if self.n_chunks > 1 else int(self.bounds[0])
        return self.n_rows if self.cells is not None else self._n_added

    @cached_property
    def additions(self) -> list[tuple[bool, RowIndices]]:
        """Whether each training set extends the previous one, and the rows that it adds to it."""
        trains = self.trains or []
        stops = [rows.stop for rows, *_ in trains if isinstance(rows, slice) and not rows.start]
        # Each training set consists of the first n rows, where n never decreases.
        if 0 < len(stops) == len(trains) and stops == sorted(stops):
            return [(bool(start), slice(start, stop)) for start, stop in pairwise([0, *stops])]
        additions: list[tuple[bool, RowIndices]] = []
        previous = np.zeros(0, np.intp)
        for parts in trains:
            rows, n = _as_indices(parts), len(previous)
            extends = n > 0 and np.array_equal(rows[:n], previous)
            additions.append((extends, rows[n if extends else 0 :]))
            previous = rows
        return additions

    @property
    def _n_added(self) -> int:
        return sum(count_rows(rows) for _, rows in self.additions)

    @cached_property
    def cells(self) -> "Cells | None":
        """The cells of the training and test sets; None if reading each set takes less time."""
        if self.trains is None or self._n_added < _READINGS_OF_CELLS * self.n_rows:
            return None
        sets = [_as_indices(parts) for parts in self.trains]
        if sum(map(len, sets)) < _SHARE_OF_CELLS * self.n_rows * self.n_chunks:
            return None
        sets += [_as_indices([self.test_rows(i, i + 1)]) for i in range(self.n_chunks)]
        labels, n_cells = np.zeros(self.n_rows, np.intp), 1
        for rows in sets:  # each set divides the cells into rows inside and outside of it
            labels *= 2
            labels[rows] += 1
            is_present = np.bincount(labels, minlength=2 * n_cells) > 0
            n_cells = int(np.count_nonzero(is_present))
            if n_cells > _CELLS_PER_CHUNK * self.n_chunks:
                return None
            labels = (np.cumsum(is_present) - 1)[labels]
        sizes = np.bincount(labels)
        members = [np.flatnonzero(np.bincount(labels[rows], minlength=n_cells)) for rows in sets]
        if any(sizes[cells].sum() != len(rows) for cells, rows in zip(members, sets, strict=True)):
            return None  # a set contains a row several times
        rows_of_cells = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
        return Cells(rows_of_cells, members[: self.n_chunks], members[self.n_chunks :])

    def train_parts(self, chunk: int) -> list[RowIndices]:
        """Return the training rows of a chunk's model as slices and arrays of row indices."""
        if self.trains is None:
            start, stop = int(self.bounds[chunk]), int(self.bounds[chunk + 1])
            return [slice(0, start), slice(stop, self.n_rows)]
        return self.trains[chunk]

    def test_rows(self, first: int, last: int) -> RowIndices:
        """Return the test rows of the chunks ``first`` to ``last - 1``."""
        tested = slice(int(self.bounds[first]), int(self.bounds[last]))
        return tested if self.tested_rows is None else self.tested_rows[tested]

    def groups(self, most_rows: int, most_chunks: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) for groups of consecutive chunks ``first`` to ``last - 1``.

        A group has at most ``most_chunks`` chunks and ``most_rows`` test rows, but at least one
        chunk.
        """
        first = 0
        while first < self.n_chunks:
            most = np.searchsorted(self.bounds, self.bounds[first] + most_rows, side="right")
            last = max(first + 1, min(int(most) - 1, first + most_chunks, self.n_chunks))
            yield first, last
            first = last


@dataclass(frozen=True)
class FoldsLeftOut(Chunks):
    """Chunks whose test rows are one or two folds, with models trained on all other folds.

    Attributes
    ----------
    folds : Chunks
        One chunk for each fold; its ``trains`` is None.
    models : sequence of tuple of int
        The indices of the folds of each chunk, in ascending order: (0, 1), (0, 2), ..., (1, 2),
        ... If there are also chunks of single folds, (0,) precedes (0, 1), and so on.
    """

    folds: Chunks = field(kw_only=True)
    models: Sequence[tuple[int, ...]] = field(kw_only=True)

    @classmethod
    def of(cls, folds: Chunks, models: Sequence[tuple[int, ...]]) -> "FoldsLeftOut":
        """Create the chunks from the folds, and the indices of the folds of each chunk."""
        bounds = folds.bounds.tolist()
        rows = [np.arange(*limits, dtype=np.uint32) for limits in pairwise(bounds)]
        trains: list[list[RowIndices]] = []
        for model in models:
            excluded = [bound for fold in model for bound in bounds[fold : fold + 2]]
            limits = [0, *excluded, folds.n_rows]
            trains.append([slice(*pair) for pair in zip(limits[::2], limits[1::2], strict=True)])
        sizes = [int(folds.sizes[list(model)].sum()) for model in models]
        tested = np.concatenate([rows[fold] for model in models for fold in model])
        chunk_bounds = np.cumsum([0, *sizes])
        return cls(folds.n_rows, chunk_bounds, tested, trains, folds=folds, models=models)

    @property
    def scored_bounds(self) -> np.ndarray:
        """The bounds of the folds of all chunks, each of which is scored separately."""
        return np.concatenate([[0], np.cumsum(self.folds.sizes[np.concatenate(self.models)])])

    @property
    def n_read(self) -> int:
        """The number of rows that are read to compute the moments of all training sets."""
        return self.n_rows


def copy_rows(
    rows: PreparedRows, indices: RowIndices, out: np.ndarray, chunk: int | None = None
) -> None:
    """Copy dense or sparse rows into an array, and release their memory pages if X is on disk.

    The first ``out.shape[1]`` columns are copied. With the index of a chunk, the columns are those
    after the transformers of the chunk's model.
    """
    X, n_columns = rows.X, out.shape[1]
    if chunk is not None and rows.maps is not None:
        columns = np.empty((len(out), rows.maps.n_columns))
        copy_rows(rows, indices, columns)
        out[:] = rows.maps.apply(chunk, columns)
    elif not isinstance(X, SparseRows):
        out[:] = X[indices, :n_columns]
    elif isinstance(indices, slice):
        out[:] = X.as_given(indices.start, indices.stop, n_columns).toarray()
    else:
        low, high = int(indices.min()), int(indices.max()) + 1
        out[:] = X.as_given(low, high, n_columns)[indices.astype(np.intp) - low].toarray()
    if rows.file is not None:
        rows.file.release_pages(indices)


def select_rows(rows: PreparedRows, indices: np.ndarray) -> PreparedRows:
    """Return the prepared rows with the given indices.

    If the indices are a permutation of all rows, rows on disk stay on disk.
    """
    X, file = rows.X, rows.file
    if isinstance(X, SparseRows):
        X = X[indices]
    else:
        is_permutation = len(indices) == len(X)
        empty = rows.empty if is_permutation else np.empty
        X, file = empty((len(indices), *X.shape[1:]), X.dtype), file if is_permutation else None
        for part in blocks(slice(0, len(indices))):
            X[part] = rows.X[indices[part]]
            if rows.file is not None:
                rows.file.release_pages(indices[part])
    selected: dict[str, Any] = {"X": X, "file": file, "order": rows.order[indices]}
    for name in ("y", "targets", "weights", "score_weights"):
        values = getattr(rows, name)
        selected[name] = None if values is None else values[indices]
    return replace(rows, **selected)


class Moments(NamedTuple):
    """The moments of a set of rows. A row z consists of features, optionally followed by targets.

    Attributes
    ----------
    counts : ndarray of shape (n_groups,)
        The number of rows of each group.
    weights : ndarray of shape (n_groups,)
        The sum of the weights w of each group; equal to ``counts`` if rows have no weights.
    means : ndarray of shape (n_groups, n_columns)
        sum w z / sum w; zeros for a group whose weights are all 0.
    scatters : ndarray of shape (n_groups, n_columns, n_columns) or (1, n_columns, n_columns)
        sum w (z - mean) (z - mean)' of each group, or the sum of these matrices over all groups.
    spread : Spread or None
        The statistics that a ``StandardScaler`` needs, which ignore the weights.
    """

    counts: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    scatters: np.ndarray
    spread: Spread | None


class Source:
    """Computes the moments of prepared rows.

    Parameters
    ----------
    rows : PreparedRows
    n_groups : int
        1, or the number of classes if each class is a group.
    are_pooled : bool
        Whether the scatter matrices of all groups are added.
    n_targets : int
        The number of targets, which are columns after the features.
    with_spread : bool
        Whether the statistics of a ``StandardScaler`` are computed too.

    Attributes
    ----------
    n_columns : int
        The number of features and targets.
    n_values : int
        The number of float64 values in a flat array of moments.
    make : callable or None
        (rows) -> the family of this source, bound to other rows. Remote workers call it.
    """

    def __init__(
        self,
        rows: PreparedRows,
        n_groups: int = 1,
        are_pooled: bool = False,
        n_targets: int = 0,
        *,
        with_spread: bool,
    ) -> None:
        d, g = rows.n_features, n_groups
        self.rows, self.n_groups, self.with_spread = rows, n_groups, with_spread
        self.make: Callable[[PreparedRows], Any] | None = None
        self.n_columns, self.n_targets = d + n_targets, n_targets
        # The number of columns that are read. Transformers that are fitted per fold may change it.
        self._n_read_columns = n_targets + (d if rows.maps is None else rows.maps.n_columns)
        self._n_scatters = 1 if are_pooled else g
        self._shapes = self._moment_shapes(self.n_columns)
        if with_spread:
            self._shapes += [(1,), (4, d)]
        self.n_values = sum(map(prod, self._shapes))

    def _moment_shapes(self, n_columns: int) -> list[tuple[int, ...]]:
        """Return the shapes of counts, weights, means and scatters."""
        g, c = self.n_groups, n_columns
        return [(g,), (g,), (g, c), (self._n_scatters, c, c)]

    def moment_shapes(self, after: ColumnMaps | None) -> list[tuple[int, ...]]:
        """Return the shapes of moments after maps of single columns; None: as rows are read."""
        n_filled = 0 if after is None else len(after.filled)
        return self._moment_shapes(self._n_read_columns - n_filled)

    def view(self, memory: np.ndarray) -> Moments:
        """Return moments whose arrays are views of a flat array."""
        counts, weights, means, scatters, *columns = views(memory, self._shapes)
        spread = Spread(columns[0][0], *columns[1]) if columns else None
        return Moments(counts, weights, means, scatters, spread)

    def write(self, moments: Moments, memory: np.ndarray) -> None:
        """Copy moments into a flat array."""
        arrays: list[Any] = [*moments[:-1]]
        if moments.spread is not None:
            n_rows, *columns = moments.spread
            arrays += [n_rows, columns]
        for array, out in zip(arrays, views(memory, self._shapes), strict=True):
            out[:] = array

    def empty_moments(self) -> Moments:
        """Return the moments of an empty set of rows."""
        shapes, spread = self.moment_shapes(None), None
        if self.with_spread:
            zeros = np.zeros(self.rows.n_features)
            spread = Spread(0, zeros, zeros, zeros + np.inf, zeros - np.inf)
        counts, weights, means, scatters = views(np.zeros(sum(map(prod, shapes))), shapes)
        return Moments(counts, weights, means, scatters, spread)

    def fill(
        self, rows: RowIndices, out: np.ndarray, chunk: int | None = None
    ) -> np.ndarray | None:
        """Copy rows and their targets into an array, and return their weights.

        The columns are those of the prepared rows. With the index of a chunk, they are the columns
        after the transformers of the chunk's model.
        """
        copy_rows(self.rows, rows, out[:, : out.shape[1] - self.n_targets], chunk)
        weights = self.rows.weights
        return None if weights is None else weights[rows].astype(np.float64)

    def collect(self, rows: RowIndices) -> Moments:
        """Compute the moments of a set of rows. Remote rows must be a slice."""
        if isinstance(self.rows.X, RemoteBlocks):
            if self.make is None:
                raise ValueError("X must have linearly independent columns if it is remote.")
            assert isinstance(rows, slice)
            block_moments = self.rows.X.over(rows.start, rows.stop, _collect_in_block, self.make)
            return reduce(merge, block_moments, self.empty_moments())
        sums = self.empty_moments()
        if not count_rows(rows):
            return sums
        spread = sums.spread
        buffer = np.empty((min(BLOCK, count_rows(rows)), self._n_read_columns))
        for group, group_rows in self._split_by_group(rows):
            for block_rows in blocks(group_rows):
                block = buffer[: count_rows(block_rows)]
                weights = self.fill(block_rows, block)
                if spread is not None:
                    spread = merge_spreads(spread, spread_of(block[:, : self.rows.n_features]))
                _add_block(sums, group, block, weights)
        return sums._replace(spread=spread)

    def before(self, chunks: Chunks) -> list[Moments]:
        """Return a list with the moments of all rows that precede the first chunk.

        The list is empty if there are no such rows.
        """
        first = slice(0, int(chunks.bounds[0]))
        return [self.collect(first)] if first.stop else []

    def _split_by_group(self, rows: RowIndices) -> Iterator[tuple[int, RowIndices]]:
        """Yield (group, row indices), where a group may be yielded several times."""
        if self.n_groups == 1:
            yield 0, rows
            return
        assert self.rows.targets is not None
        for block in blocks(rows, _SORTED_ROWS):
            codes = self.rows.targets[block]
            order = np.argsort(codes, kind="stable")
            sorted_rows = order + block.start if isinstance(block, slice) else block[order]
            stops = np.cumsum(np.bincount(codes))
            for code, group_rows in enumerate(np.split(sorted_rows, stops[:-1])):
                if len(group_rows):
                    yield code, group_rows


def _collect_in_block(
    block: Block, start: int, stop: int, make: Callable[[PreparedRows], Any]
) -> Moments:
    """Compute the moments of the rows ``start`` to ``stop - 1`` of a block in a remote worker."""
    with np.errstate(all="ignore"):
        return make(block.rows).source.collect(slice(start, stop))


def _as_indices(parts: list[RowIndices]) -> np.ndarray:
    """Return slices and arrays of row indices as one array."""
    arrays = [np.arange(p.start, p.stop) if isinstance(p, slice) else p for p in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def views(memory: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Divide a flat array into views of the given shapes.

    ``np.split`` takes several times longer.
    """
    stops = accumulate(map(prod, shapes))
    return [
        memory[stop - prod(shape) : stop].reshape(shape)
        for stop, shape in zip(stops, shapes, strict=True)
    ]


def _add_block(sums: Moments, group: int, block: np.ndarray, weights: np.ndarray | None) -> None:
    """Update the moments of a group, in place, with a block of rows, which is overwritten.

    The first row is subtracted from all rows. Otherwise, large offsets would cause rounding errors
    of the mean.
    """
    shift = block[0].copy()
    block -= shift
    if weights is None:
        weight = float(len(block))
        mean = np.add.reduce(block) / weight
    else:
        weight = float(weights.sum())
        mean = weights @ block / (weight or 1.0)
    block -= mean
    if weights is not None:
        block *= np.sqrt(weights)[:, None]
    scatter = sums.scatters[min(group, len(sums.scatters) - 1)]
    scatter += block.T @ block
    previous = sums.weights[group]
    sums.counts[group] += len(block)
    sums.weights[group] += weight
    if weight:
        share = weight / sums.weights[group]
        step = shift + mean - sums.means[group]
        sums.means[group] += step * share
        if previous:
            step *= np.sqrt(previous * share)
            scatter += np.outer(step, step)


def merge(first: Moments, second: Moments) -> Moments:
    r"""Return the moments of the union of two sets of rows (Chan, Golub & LeVeque 1979).

    .. math:: S = S_1 + S_2 + \frac{w_1 w_2}{w_1 + w_2} (m_2 - m_1) (m_2 - m_1)^\top
    """
    weights = first.weights + second.weights
    share = second.weights / np.where(weights == 0, 1, weights)
    steps = second.means - first.means
    means = first.means + steps * share[:, None]
    steps *= np.sqrt(first.weights * share)[:, None]
    scatters = first.scatters + second.scatters
    if len(scatters) == 1:
        scatters[0] += steps.T @ steps
    else:
        for scatter, step in zip(scatters, steps, strict=True):
            scatter += np.outer(step, step)
    spread = None
    if first.spread is not None and second.spread is not None:
        spread = merge_spreads(first.spread, second.spread)
    return Moments(first.counts + second.counts, weights, means, scatters, spread)


def mapped(moments: Moments, maps: ColumnMaps | LinearMaps, chunk: int) -> Moments:
    """Return the moments of the rows after the transformers of a chunk's model are applied."""
    scatters = maps.apply(chunk, moments.scatters, is_centred=False).transpose(0, 2, 1)
    scatters = maps.apply(chunk, scatters, is_centred=False)
    return moments._replace(means=maps.apply(chunk, moments.means), scatters=scatters)


def merge_groups(moments: Moments) -> Moments:
    """Return the moments of all groups together, as those of a single group."""
    if len(moments.weights) == 1:
        return moments
    weights = moments.weights
    # No BLAS, so that the moments of a column do not depend on the other columns.
    mean = (weights[:, None] * moments.means).sum(axis=0) / (weights.sum() or 1.0)
    scatter = moments.scatters.sum(axis=0)
    for weight, step in zip(weights, moments.means - mean, strict=True):
        scatter += weight * np.outer(step, step)
    counts, total = np.array([moments.counts.sum()]), np.array([weights.sum()])
    return Moments(counts, total, mean[None], scatter[None], moments.spread)


def about(moments: Moments, origin: np.ndarray) -> np.ndarray:
    """Return sum w (z - origin) (z - origin)' of the first group."""
    step = moments.means[0] - origin
    return np.asarray(moments.scatters[0] + moments.weights[0] * np.outer(step, step))


def make_pool(n_threads: int) -> ThreadPoolExecutor:
    """Return a thread pool whose threads have the caller's scikit-learn configuration."""
    return ThreadPoolExecutor(n_threads, "treecv", initializer=partial(set_config, **get_config()))


def in_order(
    n_threads: int, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Apply a function to each item in ``n_threads`` threads, and yield the results in order.

    At most ``n_threads`` results are computed before they are requested.
    """
    if n_threads == 1:
        yield from map(function, items)
        return
    with make_pool(n_threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                # The context contains the settings of ``np.errstate``.
                waiting.append(pool.submit(copy_context().run, function, item))
                if len(waiting) > n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


#: The maximum number of bytes of moments in memory at the same time.
MAX_BYTES = 2**28

#: The moments of a chunk's training rows, and of its test rows if they are requested.
TrainAndTest = tuple[Moments, Moments | None]


def moments_of_folds(
    source: Source, chunks: Chunks, cached: ArrayCache, n_threads: int, with_test: bool
) -> Iterator[TrainAndTest]:
    """Yield the moments of the training rows and of the test rows of each chunk, in order.

    If the moments of all k chunks would take too much memory, the moments of groups of about
    sqrt(k) chunks are computed first. Each chunk is then read twice. For ``FoldsLeftOut``, the
    moments of the test rows are None.
    """
    if isinstance(chunks, FoldsLeftOut):
        yield from _exclude_folds(source, chunks, cached, n_threads)
        return
    if chunks.trains is None and chunks.n_chunks == 1:
        chunks = replace(chunks, trains=[[slice(0, int(chunks.bounds[0]))]])
    if chunks.trains is not None:
        yield from _collect_training_rows(source, chunks, n_threads, with_test)
        return
    before, k = source.before(chunks), chunks.n_chunks
    test_rows = [chunks.test_rows(chunk, chunk + 1) for chunk in range(k)]
    if 16 * k * source.n_values <= MAX_BYTES:
        collected = list(in_order(n_threads, source.collect, test_rows))
        yield from _leave_one_out(collected, before)
        return
    size = isqrt(k)
    starts = range(0, k, size)
    groups = [chunks.test_rows(start, min(start + size, k)) for start in starts]
    outside = _leave_one_out(list(in_order(n_threads, source.collect, groups)), before)
    for start, (others, _) in zip(starts, outside, strict=True):
        collected = list(in_order(n_threads, source.collect, test_rows[start : start + size]))
        yield from _leave_one_out(collected, [others])


def cached_moments(
    source: Source, chunks: Chunks, cached: ArrayCache, name: str, n_threads: int
) -> Iterator[TrainAndTest]:
    """Yield the same as ``moments_of_folds``, cached under a name if they are small.

    The moments are those of the columns after ``ColumnMaps`` and before ``LinearMaps``. Those of a
    ``StandardScaler`` are not supported.
    """
    maps = source.rows.maps
    maps = maps.first if isinstance(maps, LinearMaps) else maps
    shapes = source.moment_shapes(after=maps)
    with_test = not isinstance(chunks, FoldsLeftOut)
    shape = chunks.n_chunks, 1 + with_test, sum(map(prod, shapes))

    def compute() -> Iterator[TrainAndTest]:
        computed = moments_of_folds(source, chunks, cached, n_threads, with_test)
        for chunk, pair in enumerate(computed):
            if maps is None:
                yield pair
            else:
                train, test = pair
                yield mapped(train, maps, chunk), test and mapped(test, maps, chunk)

    def make(memory: np.ndarray) -> None:
        for records, pair in zip(memory.reshape(shape), compute(), strict=True):
            for record, moments in zip(records, pair, strict=False):
                for out, array in zip(views(record, shapes), moments or (), strict=False):
                    out[:] = array

    if 8 * prod(shape) > MAX_BYTES:
        yield from compute()
        return
    for records in cached(f"moments {name}", prod(shape), make).reshape(shape):
        train, *test = (views(record, shapes) for record in records)
        yield _moments_of(train), _moments_of(test[0]) if test else None


def moments_name(rows: PreparedRows) -> str:
    """Return the name under which ``cached_moments`` caches the moments of rows and targets.

    It is "rows and targets" only if these do not depend on weights or on codes of classes.
    """
    is_plain = rows.classes is None and rows.weights is None
    return "rows and targets" if is_plain else "rows"


def _moments_of(arrays: list[np.ndarray]) -> Moments:
    counts, weights, means, scatters = arrays
    return Moments(counts, weights, means, scatters, None)


def _leave_one_out(sets: list[Moments], always: list[Moments]) -> Iterator[TrainAndTest]:
    """For each set of rows, yield the moments of all other sets, and of the set itself.

    Parameters
    ----------
    sets : list of Moments
        The moments of each set of rows.
    always : list of Moments
        The moments of rows that are never left out; empty or of length 1.
    """
    after: list[Moments] = []  # the moments of the last set, the last two sets, ...
    for moments in sets[:0:-1]:
        after.append(merge(moments, after[-1]) if after else moments)
    before = list(always)
    for moments in sets:
        yield reduce(merge, before + ([after.pop()] if after else [])), moments
        before = [merge(before[0], moments)] if before else [moments]


def _exclude_folds(
    source: Source, chunks: FoldsLeftOut, cached: ArrayCache, n_threads: int
) -> Iterator[TrainAndTest]:
    """Yield the moments of all rows outside one or two folds. Each row is read only once."""
    outside = source.before(chunks.folds)
    if source.rows.maps is None:
        collected = [*map(source.view, moments_of_chunks(source, chunks.folds, cached, n_threads))]
    else:  # ``moments_of_chunks`` stores moments of transformed columns
        n_folds = chunks.folds.n_chunks
        test_rows = [chunks.folds.test_rows(fold, fold + 1) for fold in range(n_folds)]
        collected = list(in_order(n_threads, source.collect, test_rows))
    with_single = len(chunks.models[0]) == 1
    for fold, (others, _) in enumerate(_leave_one_out(collected, outside)):
        if with_single:
            yield others, None
        for without_both, _ in _leave_one_out(collected[fold + 1 :], outside):
            yield without_both, None
        outside = [merge(outside[0], collected[fold])] if outside else [collected[fold]]


def moments_of_chunks(
    source: Source, chunks: Chunks, cached: ArrayCache, n_threads: int, name: str = "chunks"
) -> np.ndarray:
    """Return the moments of the test rows of each chunk, cached under a name.

    Returns
    -------
    ndarray of shape (n_chunks, n_values)
        ``Source.view`` converts each row to ``Moments``.
    """
    shape = chunks.n_chunks, source.n_values
    test_rows = [chunks.test_rows(chunk, chunk + 1) for chunk in range(chunks.n_chunks)]

    def make(memory: np.ndarray) -> None:
        collected = in_order(n_threads, source.collect, test_rows)
        for record, moments in zip(memory.reshape(shape), collected, strict=True):
            source.write(moments, record)

    return cached(name, prod(shape), make).reshape(shape)


def _collect_training_rows(
    source: Source, chunks: Chunks, n_threads: int, with_test: bool
) -> Iterator[TrainAndTest]:
    """Yield the moments of the training rows in ``chunks.trains``.

    If a training set extends the previous one, only the added rows are read. If training sets
    overlap in a few cells, they are merged from the moments of these cells.
    """
    assert chunks.trains is not None
    cells = chunks.cells
    if cells is not None and 8 * len(cells.rows) * source.n_values <= MAX_BYTES:
        collected = list(in_order(n_threads, source.collect, cells.rows))
        for members in zip(cells.trains, cells.tests, strict=True):
            train, test = (reduce(merge, [collected[cell] for cell in part]) for part in members)
            yield train, test if with_test else None
        return
    so_far, last = source.empty_moments(), (np.zeros(0), source.empty_moments())
    added = in_order(n_threads, source.collect, [rows for _, rows in chunks.additions])
    for chunk, (moments, (extends, _)) in enumerate(zip(added, chunks.additions, strict=True)):
        so_far = merge(so_far, moments) if extends else moments
        if not with_test:
            yield so_far, None
            continue
        test = _as_indices([chunks.test_rows(chunk, chunk + 1)])
        if np.array_equal(test, _as_indices(chunks.train_parts(chunk))):
            yield so_far, so_far
            continue
        if not np.array_equal(test, last[0]):
            last = test, source.collect(chunks.test_rows(chunk, chunk + 1))
        yield so_far, last[1]
