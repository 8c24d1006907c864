"""The sums that models follow from, for the training rows of each fold.

They are weight, mean and centred scatter of rows, by group. A variance that is a difference of two
large sums loses its digits. So nothing is subtracted: the moments of all rows outside a chunk are
merged from those of the rows before and after it, so that k folds take 2 k merges.
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
from optuna_treecv.rows.data import ColumnMaps
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.layout import SparseRows

Item = TypeVar("Item")
Result = TypeVar("Result")


#: (name, size, make) -> a read-only array of ``size`` float64. ``make`` fills a new one if none is
#: cached by this name.
ArrayCache = Callable[[str, int, Callable[[np.ndarray], None]], np.ndarray]


#: A slice of consecutive chunks, and the predictions for their test rows, in the order of
#: ``Chunks.test_rows``: an array of shape (n_candidates, n_rows, n_outputs). A model that is not
#: finite has predictions that are not finite.
TestedChunks = tuple[slice, np.ndarray]

# The rows that are sorted by group together.
_SORTED = 8 * BLOCK


@dataclass(frozen=True)
class Chunks:
    """The training and the test rows of each fold, as numbers of prepared rows.

    Attributes
    ----------
    n_rows : int
        The number of prepared rows.
    bounds : ndarray of shape (n_chunks + 1,), int64
        The tested rows ``bounds[c]`` to ``bounds[c + 1] - 1`` are those of chunk c.
    tested_rows : ndarray of shape (bounds[-1],) or None
        The prepared row of each tested row; None: the same.
    trains : list of list of (slice or ndarray) or None
        The prepared rows that each model is trained on, in parts. None: all rows outside of the
        chunk.
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
        """Whether this is leave-one-out."""
        return self.trains is None and self.n_chunks == self.n_rows

    @property
    def sizes(self) -> np.ndarray:
        """The number of test rows of each chunk."""
        return np.diff(self.bounds)

    @property
    def scored_bounds(self) -> np.ndarray:
        """The bounds of the tested rows that are scored together; a chunk may have several."""
        return self.bounds

    @property
    def are_growing(self) -> bool:
        """Whether training sets are growing first parts of the rows."""
        trains = self.trains or []
        ends = [rows.stop for rows, *_ in trains if isinstance(rows, slice) and not rows.start]
        return 0 < len(ends) == len(trains) and ends == sorted(ends)

    @property
    def n_read(self) -> int:
        """The number of rows that are read for the sums of all training sets."""
        if self.trains is None:
            return self.n_rows if self.n_chunks > 1 else int(self.bounds[0])
        sizes = [sum(map(count_rows, parts)) for parts in self.trains]
        return sizes[-1] if self.are_growing else sum(sizes)

    def train_parts(self, chunk: int) -> list[RowIndices]:
        """Return the prepared rows that a chunk's model is trained on."""
        if self.trains is None:
            start, stop = int(self.bounds[chunk]), int(self.bounds[chunk + 1])
            return [slice(0, start), slice(stop, self.n_rows)]
        return self.trains[chunk]

    def test_rows(self, first: int, last: int) -> RowIndices:
        """Return the prepared rows that the chunks ``first`` to ``last - 1`` test."""
        part = slice(int(self.bounds[first]), int(self.bounds[last]))
        return part if self.tested_rows is None else self.tested_rows[part]

    def groups(self, most_rows: int, most_chunks: int) -> Iterator[tuple[int, int]]:
        """Yield first and last + 1 of consecutive chunks with up to ``most_rows`` test rows."""
        first = 0
        while first < self.n_chunks:
            most = np.searchsorted(self.bounds, self.bounds[first] + most_rows, side="right")
            last = max(first + 1, min(int(most) - 1, first + most_chunks, self.n_chunks))
            yield first, last
            first = last


@dataclass(frozen=True)
class FoldsLeftOut(Chunks):
    """Chunks of one or two folds, which are excluded from their training sets.

    Attributes
    ----------
    folds : Chunks
        The single folds, without explicit training rows.
    models : sequence of tuple of int
        The folds of each chunk in ascending order: (0, 1), (0, 2), ..., (1, 2), ... If single
        folds are excluded too, (0,) comes before (0, 1), and so on.
    """

    folds: Chunks = field(kw_only=True)
    models: Sequence[tuple[int, ...]] = field(kw_only=True)

    @classmethod
    def of(cls, folds: Chunks, models: Sequence[tuple[int, ...]]) -> "FoldsLeftOut":
        """Return the chunks of models."""
        bounds = folds.bounds.tolist()
        rows = [np.arange(*ends, dtype=np.uint32) for ends in pairwise(bounds)]
        trains: list[list[RowIndices]] = []
        for model in models:
            ends = [0, *(end for fold in model for end in bounds[fold : fold + 2]), folds.n_rows]
            trains.append([slice(*part) for part in zip(ends[::2], ends[1::2], strict=True)])
        sizes = [int(folds.sizes[list(model)].sum()) for model in models]
        tested = np.concatenate([rows[fold] for model in models for fold in model])
        begins = np.cumsum([0, *sizes])
        return cls(folds.n_rows, begins, tested, trains, folds=folds, models=models)

    @property
    def scored_bounds(self) -> np.ndarray:
        """The bounds of the single folds."""
        return np.concatenate([[0], np.cumsum(self.folds.sizes[np.concatenate(self.models)])])

    @property
    def n_read(self) -> int:
        """The number of rows that are read for the sums of all training sets."""
        return self.n_rows


def copy_rows(
    rows: PreparedRows, part: RowIndices, out: np.ndarray, chunk: int | None = None
) -> None:
    """Copy some rows, dense or sparse, into an array, and release their pages if X is on disk.

    The array receives as many of their columns as it has. With the number of a chunk these are the
    features of the chunk's model, after its transformers.
    """
    X, n_columns = rows.X, out.shape[1]
    if chunk is not None and rows.maps is not None:
        columns = np.empty((len(out), rows.maps.n_columns))
        copy_rows(rows, part, columns)
        out[:] = rows.maps.apply(chunk, columns)
    elif not isinstance(X, SparseRows):
        out[:] = X[part, :n_columns]
    elif isinstance(part, slice):
        out[:] = X.as_given(part.start, part.stop, n_columns).toarray()
    else:
        low, high = int(part.min()), int(part.max()) + 1
        out[:] = X.as_given(low, high, n_columns)[part.astype(np.intp) - low].toarray()
    if rows.file is not None:
        rows.file.release_pages(part)


class Moments(NamedTuple):
    """The moments of rows z; each is a row of X, possibly followed by its targets.

    Attributes
    ----------
    counts : ndarray of shape (n_groups,)
        The number of rows of each group.
    weights : ndarray of shape (n_groups,)
        The sums of the weights w; equal to ``counts`` without weights.
    means : ndarray of shape (n_groups, n_columns)
        sum w z / weight; zeros for a group without weight.
    scatters : ndarray of shape (n_groups or 1, n_columns, n_columns)
        sum w (z - mean) (z - mean)' of each group, or the sum of all groups.
    spread : Spread or None
        The statistics of a ``StandardScaler`` of X, without weights.
    """

    counts: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    scatters: np.ndarray
    spread: Spread | None


class Source:
    """The rows whose moments are computed.

    Parameters
    ----------
    rows : PreparedRows
    n_groups : int
        1, or the number of classes.
    are_pooled : bool
        Whether the scatters of all groups are added.
    n_targets : int
        The number of targets that follow the features of each row.
    with_spread : bool

    Attributes
    ----------
    n_columns : int
    n_values : int
        The size of the flat array of moments.
    make : callable or None
        (rows) -> a family with this source, bound to rows.
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
        # The columns of prepared rows, which may differ from those of transformed rows.
        self._n_read = n_targets + (d if rows.maps is None else rows.maps.n_columns)
        self._n_scatters = 1 if are_pooled else g
        self._shapes = self._shapes_of(self.n_columns)
        if with_spread:
            self._shapes += [(1,), (4, d)]
        self.n_values = sum(map(prod, self._shapes))

    def _shapes_of(self, c: int) -> list[tuple[int, ...]]:
        g = self.n_groups
        return [(g,), (g,), (g, c), (self._n_scatters, c, c)]

    def view(self, memory: np.ndarray) -> Moments:
        """Return moments whose parts are views of a flat array."""
        counts, weights, means, scatters, *columns = views(memory, self._shapes)
        spread = Spread(columns[0][0], *columns[1]) if columns else None
        return Moments(counts, weights, means, scatters, spread)

    def write(self, moments: Moments, memory: np.ndarray) -> None:
        """Copy moments into a flat array."""
        parts: list[Any] = [*moments[:-1]]
        if moments.spread is not None:
            n_rows, *columns = moments.spread
            parts += [n_rows, columns]
        for part, out in zip(parts, views(memory, self._shapes), strict=True):
            out[:] = part

    def nothing(self) -> Moments:
        """Return the moments of no rows."""
        shapes, spread = self._shapes_of(self._n_read), None
        if self.with_spread:
            zeros = np.zeros(self.rows.n_features)
            spread = Spread(0, zeros, zeros, zeros + np.inf, zeros - np.inf)
        counts, weights, means, scatters = views(np.zeros(sum(map(prod, shapes))), shapes)
        return Moments(counts, weights, means, scatters, spread)

    def fill(
        self, part: RowIndices, out: np.ndarray, chunk: int | None = None
    ) -> np.ndarray | None:
        """Copy rows and their targets into an array, and return their weights.

        The columns are those of the prepared rows, or with the number of a chunk, those of its
        model.
        """
        copy_rows(self.rows, part, out[:, : out.shape[1] - self.n_targets], chunk)
        weights = self.rows.weights
        return None if weights is None else weights[part].astype(np.float64)

    def collect(self, part: RowIndices) -> Moments:
        """Return the moments of some rows; remote ones are a slice, read block after block."""
        if isinstance(self.rows.X, RemoteBlocks):
            if self.make is None:
                raise ValueError("linearly dependent columns are not supported for remote rows.")
            assert isinstance(part, slice)
            of_blocks = self.rows.X.over(part.start, part.stop, _collected, self.make)
            return reduce(merge, of_blocks, self.nothing())
        sums = self.nothing()
        spread = sums.spread
        buffer = np.empty((min(BLOCK, count_rows(part)), self._n_read))
        for group, numbers in self._by_group(part):
            for block_rows in blocks(numbers):
                block = buffer[: count_rows(block_rows)]
                weights = self.fill(block_rows, block)
                if spread is not None:
                    spread = merge_spreads(spread, spread_of(block[:, : self.rows.n_features]))
                _add(sums, group, block, weights)
        return sums._replace(spread=spread)

    def before(self, chunks: Chunks) -> list[Moments]:
        """Return the moments of the rows before the first chunk, if there are any."""
        first = slice(0, int(chunks.bounds[0]))
        return [self.collect(first)] if first.stop else []

    def _by_group(self, part: RowIndices) -> Iterator[tuple[int, RowIndices]]:
        """Yield row numbers by group."""
        if self.n_groups == 1:
            yield 0, part
            return
        assert self.rows.targets is not None
        for piece in blocks(part, _SORTED):
            codes = self.rows.targets[piece]
            order = np.argsort(codes, kind="stable")
            numbers = order + piece.start if isinstance(piece, slice) else piece[order]
            ends = np.cumsum(np.bincount(codes))
            for code, rows in enumerate(np.split(numbers, ends[:-1])):
                if len(rows):
                    yield code, rows


def _collected(
    block: Block, start: int, stop: int, make: Callable[[PreparedRows], Any]
) -> Moments:
    with np.errstate(all="ignore"):
        return make(block.rows).source.collect(slice(start, stop))


def views(memory: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return views of a flat array in given shapes; ``np.split`` takes several times longer."""
    ends = accumulate(map(prod, shapes))
    return [
        memory[end - prod(shape) : end].reshape(shape)
        for end, shape in zip(ends, shapes, strict=True)
    ]


def _add(sums: Moments, group: int, block: np.ndarray, weights: np.ndarray | None) -> None:
    """Add a block, which is overwritten, to moments.

    Rows are shifted by the first one, because the mean of large offsets is exact only then.
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
    before = sums.weights[group]
    sums.counts[group] += len(block)
    sums.weights[group] += weight
    if weight:
        share = weight / sums.weights[group]
        step = shift + mean - sums.means[group]
        sums.means[group] += step * share
        if before:
            step *= np.sqrt(before * share)
            scatter += np.outer(step, step)


def merge(first: Moments, second: Moments) -> Moments:
    r"""Return the moments of two sets of rows together (Chan, Golub & LeVeque 1979).

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


def mapped(moments: Moments, maps: ColumnMaps, chunk: int) -> Moments:
    """Return the moments of rows after the transformers of a chunk's model."""
    scatters = maps.apply(chunk, moments.scatters, is_centred=False).transpose(0, 2, 1)
    scatters = maps.apply(chunk, scatters, is_centred=False)
    return moments._replace(means=maps.apply(chunk, moments.means), scatters=scatters)


def about(moments: Moments, origin: np.ndarray) -> np.ndarray:
    """Return the second moments of one group about another point than the mean."""
    step = moments.means[0] - origin
    return np.asarray(moments.scatters[0] + moments.weights[0] * np.outer(step, step))


def make_pool(n_jobs: int) -> ThreadPoolExecutor:
    """Return threads with the caller's scikit-learn configuration, which is per thread."""
    return ThreadPoolExecutor(n_jobs, "treecv", initializer=partial(set_config, **get_config()))


def in_order(
    n_jobs: int, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yield the results of a function in the order of the items.

    With several threads, at most as many results wait as there are threads.
    """
    if n_jobs == 1:
        yield from map(function, items)
        return
    with make_pool(n_jobs) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                # NumPy's handling of errors goes with the context.
                waiting.append(pool.submit(copy_context().run, function, item))
                if len(waiting) > n_jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


#: The bytes of moments in memory at once.
MOST_BYTES = 2**28

#: The moments of a chunk's training rows and, if needed, of its test rows.
TrainAndTest = tuple[Moments, Moments | None]


def moments_of_folds(
    source: Source, chunks: Chunks, keep: ArrayCache, n_jobs: int, with_test: bool
) -> Iterator[TrainAndTest]:
    """Yield the moments of each chunk's training and test rows, chunk after chunk.

    If those of all chunks would take too much memory, they are in memory for groups of about
    sqrt(k) chunks, and each chunk is read twice. ``FoldsLeftOut`` come without those of test rows.
    """
    if isinstance(chunks, FoldsLeftOut):
        yield from _without_folds(source, chunks, keep, n_jobs)
        return
    if chunks.trains is None and chunks.n_chunks == 1:
        chunks = replace(chunks, trains=[[slice(0, int(chunks.bounds[0]))]])
    if chunks.trains is not None:
        yield from _of_train_rows(source, chunks, n_jobs, with_test)
        return
    before, k = source.before(chunks), chunks.n_chunks
    parts = [chunks.test_rows(chunk, chunk + 1) for chunk in range(k)]
    if 16 * k * source.n_values <= MOST_BYTES:
        collected = list(in_order(n_jobs, source.collect, parts))
        yield from _leave_one_part_out(collected, before)
        return
    size = isqrt(k)
    begins = range(0, k, size)
    groups = [chunks.test_rows(begin, min(begin + size, k)) for begin in begins]
    outside = _leave_one_part_out(list(in_order(n_jobs, source.collect, groups)), before)
    for begin, (others, _) in zip(begins, outside, strict=True):
        collected = list(in_order(n_jobs, source.collect, parts[begin : begin + size]))
        yield from _leave_one_part_out(collected, [others])


def _leave_one_part_out(parts: list[Moments], outside: list[Moments]) -> Iterator[TrainAndTest]:
    """Yield the moments of ``outside`` and all parts but one, and those of that part."""
    after: list[Moments] = []  # of the last one, the last two, ...
    for part in parts[:0:-1]:
        after.append(merge(part, after[-1]) if after else part)
    before = list(outside)
    for moments in parts:
        yield reduce(merge, before + ([after.pop()] if after else [])), moments
        before = [merge(before[0], moments)] if before else [moments]


def _without_folds(
    source: Source, chunks: FoldsLeftOut, keep: ArrayCache, n_jobs: int
) -> Iterator[TrainAndTest]:
    """Yield the moments of all rows outside one or two folds, which are read once."""
    outside = source.before(chunks.folds)
    if source.rows.maps is None:
        collected = [*map(source.view, moments_of_chunks(source, chunks.folds, keep, n_jobs))]
    else:  # the cached ones have other columns
        parts = [chunks.folds.test_rows(fold, fold + 1) for fold in range(chunks.folds.n_chunks)]
        collected = list(in_order(n_jobs, source.collect, parts))
    with_single = len(chunks.models[0]) == 1
    for fold, (others, _) in enumerate(_leave_one_part_out(collected, outside)):
        if with_single:
            yield others, None
        for without_both, _ in _leave_one_part_out(collected[fold + 1 :], outside):
            yield without_both, None
        outside = [merge(outside[0], collected[fold])] if outside else [collected[fold]]


def moments_of_chunks(
    source: Source, chunks: Chunks, keep: ArrayCache, n_jobs: int, name: str = "chunks"
) -> np.ndarray:
    """Return the moments of each chunk's test rows, (n_chunks, n_values), cached by a name.

    ``Source.view`` takes each.
    """
    shape = chunks.n_chunks, source.n_values
    parts = [chunks.test_rows(chunk, chunk + 1) for chunk in range(chunks.n_chunks)]

    def make(memory: np.ndarray) -> None:
        collected = in_order(n_jobs, source.collect, parts)
        for record, moments in zip(memory.reshape(shape), collected, strict=True):
            source.write(moments, record)

    return keep(name, prod(shape), make).reshape(shape)


def _of_train_rows(
    source: Source, chunks: Chunks, n_jobs: int, with_test: bool
) -> Iterator[TrainAndTest]:
    """Yield the moments of training rows; growing first parts of the rows are read once."""
    assert chunks.trains is not None
    grow, start = chunks.are_growing, 0
    parts: list[RowIndices] = []
    for (rows,) in chunks.trains:
        parts.append(slice(start, rows.stop) if isinstance(rows, slice) else rows)
        if grow and isinstance(rows, slice):
            start = rows.stop
    so_far: list[Moments] = []
    for chunk, moments in enumerate(in_order(n_jobs, source.collect, parts)):
        so_far = [merge(so_far[0], moments)] if grow and so_far else [moments]
        yield so_far[0], source.collect(chunks.test_rows(chunk, chunk + 1)) if with_test else None
