"""Rows on a Dask cluster. Blocks of rows stay on their workers, and only models are sent.

This is the only module that imports Dask, an optional dependency (``optuna-treecv[dask]``).
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from itertools import pairwise
from os import PathLike
from queue import Empty
from queue import SimpleQueue
from threading import Lock
from time import monotonic
from time import sleep
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from scipy import sparse

try:
    from dask import array as da
    from dask.delayed import delayed
    import distributed
except ImportError as error:
    raise ImportError("DaskRows needs Dask: pip install 'optuna-treecv[dask]'.") from error

from optuna_treecv.caching.keys import data_digest
from optuna_treecv.caching.keys import digest
from optuna_treecv.rows.checks import check_rows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import Calls
from optuna_treecv.rows.distributed import Prepare
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.distributed import RemoteCall
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.sources import features
from optuna_treecv.rows.sources import without_targets

__all__ = ["DaskRows"]

# The number of seconds between checks of the cluster while no result arrives.
_CHECK_SECONDS = 1.0

# The number of seconds without a response after which an evaluation raises an error.
_TIMEOUT = 45.0

# The number of rows in the sample that this process checks.
_N_SAMPLE_ROWS = 2**10

# The number of partitions of X whose rows are sent to blocks in one message.
_N_PARTITIONS = 64

# The maximum number of times that a call may be lost, and that workers may be lost between two
# results.
_MAX_TRIES = 10


class DaskRows(RemoteRows):
    """Rows on a Dask cluster, to be passed as X to a cross-validation.

    The rows are shuffled once for each combination of ``cv`` and ``random_state``, and then stay
    on their workers, one block of rows for each thread. Only models and scores are sent. For the
    learners of this package, scores are equal, bit for bit, to scores of rows in memory. They
    agree to about 12 digits after a ``StandardScaler`` and for ``method="exact"``, and within the
    tolerance of the solver for ``method="newton"``.

    Parameters
    ----------
    X : dask.array.Array, dask.dataframe.DataFrame, or str
        Numerical rows, dense or in ``scipy.sparse`` blocks; or the path of Parquet files that all
        workers can read. X is read twice: when this object is created, and when the rows are
        shuffled. If a worker is lost, its blocks are read again.
    y : dask.array.Array, dask.dataframe.Series, array-like, str or None, default=None
        The targets, or the name of the target column. Targets stay in this process.
    client : distributed.Client or None, default=None
        The client of the cluster; None for the current client.

    Attributes
    ----------
    shape : (int, int)
        The number of rows and the number of features.
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        The targets.

    Raises
    ------
    ValueError
        If there is no client, or if X or y has an unsupported type.
    ConnectionError
        If no scheduler or no worker responds for 45 seconds. Evaluations raise the same error.

    Notes
    -----
    This process needs about 20 bytes per row for y, the order of the rows and the scores. While
    rows are shuffled, a worker needs about three times the memory of its blocks. Workers should
    have one thread each.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from sklearn.datasets import make_classification
    >>> from optuna_treecv import PegasosClassifier, tree_cross_validate
    >>> from optuna_treecv.dask import DaskRows
    >>> X, y = make_classification(1000, random_state=0)
    >>> with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None):
    ...     rows = DaskRows(da.from_array(X, chunks=(250, 20)), y)
    ...     result = tree_cross_validate(PegasosClassifier(), rows, cv=10)
    >>> result.mean == tree_cross_validate(PegasosClassifier(), X, y, cv=10).mean
    True
    """

    def __init__(self, X: Any, y: Any = None, client: Any = None) -> None:
        try:
            self._client = distributed.get_client() if client is None else client
        except ValueError as error:
            raise ValueError(
                "client must be a distributed.Client if there is no current client, got None; use "
                "client=Client() instead, which starts workers on this machine."
            ) from error
        if isinstance(X, str | PathLike):
            from dask import dataframe

            X = dataframe.read_parquet(str(X))
        if isinstance(X, da.Array):
            X = X.rechunk({1: X.shape[1]}) if X.ndim == 2 else X
        elif not hasattr(X, "map_partitions") or not hasattr(X, "columns"):
            raise ValueError(
                "X must be a dask.array.Array, a dask.dataframe.DataFrame or the path of Parquet "
                f"files, got {type(X).__name__}; use dask.array.from_array(X) instead."
            )
        if X.ndim != 2:
            raise ValueError(f"X must have 2 dimensions, rows and features, got {X.ndim}.")
        self.names = None
        if hasattr(X, "columns"):
            features(X.columns, y)  # raises an error if there is no column y
            X, y = without_targets(X, y)
            self.names = [str(name) for name in X.columns]
        if isinstance(y, str):
            raise ValueError(
                f"y must be an array if X has no column names, got {y!r}; pass the targets "
                "instead."
            )
        # The delayed partitions of X, and the offset of each partition.
        self._parts = np.ravel(X.to_delayed()).tolist()
        most = -(-_N_SAMPLE_ROWS // len(self._parts))
        facts = [delayed(_facts)(part, most) for part in self._parts]
        *by_part, y = _computed(self._client, [*facts, y if hasattr(y, "compute") else delayed(y)])
        sizes, digests, samples = zip(*by_part, strict=True)
        self.y = None if y is None else np.asarray(y)
        self._starts = np.cumsum([0, *sizes])
        self.shape = int(self._starts[-1]), int(X.shape[1])
        self.sample = _stacked(samples)
        check_rows(self.sample)
        kinds = {_kind(sample) for sample in samples if sample.shape[0]}
        if len(kinds) > 1:  # otherwise the columns would differ between blocks
            raise ValueError(
                "X must have the same columns and the same float type in all partitions, got "
                "different ones; use an expression such as X.astype(float)[names] instead."
            )
        self.content = None if None in digests else digest(*digests)
        self._remote_blocks: WeakValueDictionary[bytes, DaskBlocks] = WeakValueDictionary()
        self._last: DaskBlocks | None = None

    @property
    def n_blocks(self) -> int:
        """The total number of threads of all workers."""
        return sum(_threads_of(self._client).values())

    def __reduce__(self) -> Any:
        raise TypeError(
            "DaskRows cannot be pickled because it refers to a client; create one in each process "
            "instead."
        )

    def place(
        self, order: np.ndarray, bounds: list[int], prepare: Prepare, name: bytes
    ) -> "DaskBlocks":
        """Return blocks of shuffled rows; the same ``name`` gives the same blocks."""
        blocks = self._remote_blocks.get(name)
        if blocks is None:
            self._last = None  # release its memory on the workers
            blocks = self._remote_blocks[name] = DaskBlocks(self, order, bounds, prepare)
        self._last = blocks
        return blocks


def _computed(client: Any, lazy: list[Any]) -> list[Any]:
    """Compute delayed values, again if workers are lost."""
    while True:
        _threads_of(client)
        looked, futures = monotonic(), client.compute(lazy)
        while any(future.status == "pending" for future in futures):
            if monotonic() - looked > _CHECK_SECONDS:
                _threads_of(client)
                looked = monotonic()
            sleep(_CHECK_SECONDS / 100)
        if not any(future.status in ("cancelled", "lost") for future in futures):
            results: list[Any] = client.gather(futures)
            return results


def _facts(part: Any, most: int) -> tuple[int, bytes | None, Any]:
    """Return the number of rows of a partition, their digest, and the first ``most`` rows."""
    return part.shape[0], data_digest(part), _rows(part, slice(0, most))


def _kind(rows: Any) -> tuple[Any, ...]:
    """Return the column names of a partition, and whether it is float32."""
    array = rows if sparse.issparse(rows) else np.asarray(rows[:1])
    return (*getattr(rows, "columns", ()), array.dtype == np.float32)


def _taken(part: Any, rows: tuple[np.ndarray, np.ndarray], block: int) -> Any:
    """Return the rows of a partition that belong to a block."""
    by_block, cuts = rows
    return _rows(part, by_block[cuts[block] : cuts[block + 1]])


def _rows(part: Any, rows: Any) -> Any:
    """Select rows of a partition, which may have any sparse format."""
    return take_rows(part.tocsr() if sparse.issparse(part) else part, rows)


def _prepared(arguments: tuple[Callable[..., Any], np.ndarray], start: int, *pieces: Any) -> Block:
    """Concatenate the rows of a block, which come from all partitions."""
    prepare, order = arguments
    return Block(prepare(_stacked(pieces), order), start)


def _stacked(pieces: Sequence[Any]) -> Any:
    if hasattr(pieces[0], "iloc"):
        import pandas as pd

        return pd.concat(pieces)
    return sparse.vstack(pieces, "csr") if sparse.issparse(pieces[0]) else np.concatenate(pieces)


class DaskBlocks(RemoteBlocks):
    """Blocks of rows on the workers of a cluster. Each worker has consecutive blocks.

    Parameters
    ----------
    rows : DaskRows
        The rows on the cluster.
    order, bounds, prepare
        As in ``RemoteRows.place``.

    Attributes
    ----------
    n_lost : int
        How often workers were lost since the last result.
    """

    def __init__(
        self, rows: DaskRows, order: np.ndarray, bounds: list[int], prepare: Prepare
    ) -> None:
        super().__init__(bounds)
        # No reference to the rows, which refer to these blocks: a cycle would delay their
        # deletion.
        self._client, self._parts, self._starts = rows._client, rows._parts, rows._starts
        self._order, self._prepare = order, prepare
        self._lock = Lock()
        self.n_lost = 0
        threads = [at for at, n in sorted(_threads_of(self._client).items()) for _ in range(n)]
        n_blocks = len(bounds) - 1
        self._addresses = [threads[i * len(threads) // n_blocks] for i in range(n_blocks)]
        self._blocks: list[Any] = [None] * n_blocks
        self._put(range(n_blocks))
        looked = monotonic()
        while any(block.status != "finished" for block in self._blocks):
            lost = [block for block in self._blocks if _is_lost(block)]
            for block in self._blocks:
                if block.status == "error" and block not in lost:
                    block.result()  # raises the error that occurred in the rows
            if lost or monotonic() - looked > _CHECK_SECONDS:
                self.look()
                looked = monotonic()
            sleep(_CHECK_SECONDS / 100)

    def calls(self) -> "DaskCalls":
        """Return an object that runs calls on the workers."""
        return DaskCalls(self)

    def send(self, call: RemoteCall) -> Any:
        """Submit a call to the worker of its block, and return a future."""
        with self._lock:
            call.at, address = self._blocks[call.block], self._addresses[call.block]
        return self._submit(
            address, call.function, call.at, *call.arguments, priority=call.priority
        )

    def holds(self, call: RemoteCall) -> bool:
        """Return whether the block of a call is still on the same worker."""
        with self._lock:
            return self._blocks[call.block] is call.at

    def look(self) -> None:
        """Place the blocks of lost workers on other workers.

        Raises
        ------
        ConnectionError
            If the cluster does not respond, has no workers, or loses them repeatedly.
        """
        with self._lock:
            threads, numbers = _threads_of(self._client), range(len(self._blocks))
            is_lost = [
                self._addresses[number] not in threads or _is_lost(self._blocks[number])
                for number in numbers
            ]
            if not any(is_lost):
                return
            self.n_lost += 1
            if self.n_lost > _MAX_TRIES:
                raise ConnectionError(
                    f"workers with rows were lost {_MAX_TRIES} times without a result. They may "
                    "need more memory, about three times the memory of their rows."
                )
            taken = Counter(self._addresses[number] for number in numbers if not is_lost[number])
            lost = [number for number in numbers if is_lost[number]]
            for number in lost:
                address = min(threads, key=lambda worker: taken[worker] / threads[worker])
                self._addresses[number] = address
                taken[address] += 1
            self._put(lost)

    def cancel(self, futures: list[Any]) -> None:
        """Cancel calls whose results are no longer needed."""
        if futures and self._client.status == "running":
            self._client.cancel(futures)

    def _put(self, numbers: Sequence[int]) -> None:
        """Send the rows of blocks to their workers, in shuffled order."""
        block_of = np.full(len(self._order), len(numbers), np.min_scalar_type(len(numbers)))
        for i, number in enumerate(numbers):
            block_of[self._order[self.bounds[number] : self.bounds[number + 1]]] = i
        pieces: list[list[Any]] = [[] for _ in numbers]
        selected = self._selected(block_of, len(numbers))
        while batch := list(islice(selected, _N_PARTITIONS)):
            sent = self._scatter([rows for _, rows in batch])
            for (part, (_, cuts)), rows in zip(batch, sent, strict=True):
                source = self._client.compute(part)  # released before the next partition is read
                for i, n_rows in enumerate(np.diff(cuts)):
                    if n_rows:
                        pieces[i].append(self._submit(None, _taken, source, rows, i))
        for number, of_block in zip(numbers, pieces, strict=True):
            start, stop = self.bounds[number : number + 2]
            order = self._order[start:stop]
            ascending = np.sort(order)
            ranks = np.searchsorted(ascending, order).astype(np.uint32)
            (arguments,) = self._scatter([(self._prepare(ascending), ranks)])
            self._blocks[number] = self._submit(
                self._addresses[number], _prepared, arguments, start, *of_block
            )

    def _selected(
        self, block_of: np.ndarray, n_blocks: int
    ) -> Iterator[tuple[Any, tuple[np.ndarray, np.ndarray]]]:
        """Yield partitions, their rows sorted by block, and the offset of each block."""
        for part, (begin, end) in zip(self._parts, pairwise(self._starts), strict=True):
            here = block_of[begin:end]
            by_block = np.argsort(here, kind="stable").astype(np.uint32)
            cuts = np.searchsorted(here[by_block], np.arange(n_blocks + 1))
            if cuts[-1] > 0:
                yield part, (by_block, cuts)

    def _scatter(self, values: list[Any]) -> list[Any]:
        """Send values to the cluster, again if workers are lost meanwhile."""
        for _ in range(_MAX_TRIES):
            with suppress(OSError, TimeoutError):
                sent: list[Any] = self._client.scatter(values, hash=False, timeout=_TIMEOUT)
                return sent
            sleep(_CHECK_SECONDS)
            _threads_of(self._client)
        raise ConnectionError(f"{self._client} failed to send data {_MAX_TRIES} times.")

    def _submit(self, address: str | None, *arguments: Any, priority: float = 0) -> Any:
        workers = None if address is None else [address]
        return self._client.submit(*arguments, workers=workers, priority=priority, pure=False)


def _threads_of(client: Any) -> dict[str, int]:
    """Return the number of threads of each worker by address, after waiting for a worker.

    Raises
    ------
    ConnectionError
        If the scheduler does not respond, or there are no workers.
    """
    latest = monotonic() + _TIMEOUT
    while True:
        if client.status == "running":
            with suppress(OSError, TimeoutError):
                if threads := dict(client.nthreads(callback_timeout=_TIMEOUT / 3)):
                    return threads
        if client.status == "closed" or monotonic() > latest:
            raise ConnectionError(
                "the cluster must have a scheduler that responds and at least one worker, but the "
                f"cluster of {client} does not."
            )
        sleep(_CHECK_SECONDS)


def _is_lost(future: Any) -> bool:
    """Return whether a result was lost, because its worker was lost."""
    if future.status == "error":
        return isinstance(future.exception(), distributed.KilledWorker)
    return future.status in ("cancelled", "lost")


class DaskCalls(Calls):
    """Runs calls on workers. If a worker is lost, its calls are repeated.

    Parameters
    ----------
    blocks : DaskBlocks
    """

    def __init__(self, blocks: DaskBlocks) -> None:
        self._blocks = blocks
        self._flying: dict[str, tuple[Any, RemoteCall]] = {}
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self._looked = monotonic()

    def __exit__(self, *_: object) -> None:
        self._blocks.cancel([future for future, _ in self._flying.values()])
        self._flying.clear()

    def submit(self, call: RemoteCall) -> None:
        future = self._blocks.send(call)
        self._flying[future.key] = future, call
        future.add_done_callback(self._ended.put)

    def next(self) -> tuple[RemoteCall, Any]:
        while True:
            if monotonic() - self._looked > _CHECK_SECONDS:
                self._look()
            try:
                future = self._ended.get(timeout=_CHECK_SECONDS)
            except Empty:
                continue
            _, call = self._flying.pop(future.key, (None, None))
            if call is None:  # the call was repeated
                continue
            if not _is_lost(future):
                # The call itself may raise errors of these types.
                is_error = future.status == "error"
                with suppress(*() if is_error else (OSError, distributed.CancelledError)):
                    result = future.result(timeout=_TIMEOUT)
                    self._blocks.n_lost = 0
                    return call, result
            call.n_tries += 1
            if call.n_tries > _MAX_TRIES:
                raise ConnectionError(f"workers lost the result of a call {_MAX_TRIES} times.")
            self._blocks.look()
            self.submit(call)

    def _look(self) -> None:
        """Repeat the calls whose blocks were moved to other workers."""
        self._blocks.look()
        self._looked = monotonic()
        for key, (future, call) in list(self._flying.items()):
            if not self._blocks.holds(call):
                del self._flying[key]
                self._blocks.cancel([future])
                self.submit(call)
