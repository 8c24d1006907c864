"""The interface for remote rows, which are divided into blocks.

Models are sent to the blocks, whereas rows stay on their workers, as in section 4.1 of Joulani,
Gyorgy & Szepesvari (2015). Only the subclasses of these classes depend on the library of the
cluster.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from typing import TypeVar

import numpy as np

T = TypeVar("T")

#: (ascending row indices) -> a picklable function, (X of these rows, order) -> ``PreparedRows``.
Prepare = Callable[[np.ndarray], Callable[[Any, np.ndarray], Any]]

# By how much the sizes of blocks may differ, relative to the size of a block.
_LEEWAY = 0.05


@dataclass(frozen=True)
class Block:
    """A block of consecutive prepared rows on one worker.

    Attributes
    ----------
    rows : PreparedRows
    start : int
        The index of the block's first row among all prepared rows.
    """

    rows: Any
    start: int

    def __sizeof__(self) -> int:  # for the memory accounting of a worker
        return int(self.rows.nbytes)

    def slice_of(self, start: int, stop: int) -> slice:
        """Convert a range of prepared rows to a slice within the block."""
        return slice(start - self.start, stop - self.start)


class RemoteRows(ABC):
    """The user's rows on the workers of a cluster.

    Attributes
    ----------
    shape : (int, int)
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
    names : list of str or None
        The names of the columns.
    sample : ndarray, sparse matrix or data frame
        A sample of the rows, beginning with the first row.
    content : bytes or None
        A digest of X; None if it cannot be computed.
    """

    shape: tuple[int, int]
    y: np.ndarray | None
    names: list[str] | None
    sample: Any
    content: bytes | None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Any:
        """Return the first row, the only one in this process."""
        if not isinstance(rows, slice) or rows not in (slice(0, 1), slice(None, 1)):
            raise TypeError("X is remote: only its first row is in this process.")
        return self.sample[:1]

    @property
    @abstractmethod
    def n_blocks(self) -> int:
        """The number of blocks on which models can be trained at the same time."""

    @abstractmethod
    def place(
        self, order: np.ndarray, bounds: list[int], prepare: Prepare, name: bytes
    ) -> "RemoteBlocks":
        """Permute the rows and divide them into blocks.

        Parameters
        ----------
        order : ndarray of shape (n_rows,), uint32
        bounds : list of int
            The first row of each block in this order, and the number of rows.
        prepare : callable
            Returns the function that prepares the rows of a block.
        name : bytes
            Identifies the blocks among others of the same rows.
        """


class RemoteBlocks(ABC):
    """Permuted rows that are divided into remote blocks.

    Parameters
    ----------
    bounds : list of int
        The first row of each block, and the number of rows.
    """

    def __init__(self, bounds: list[int]) -> None:
        self.bounds = bounds
        self.shape = (bounds[-1],)

    def __len__(self) -> int:
        return self.bounds[-1]

    def spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (block, start, stop) for the blocks that contain a range of rows."""
        blocks = enumerate(pairwise(self.bounds))
        spans = [(number, max(start, first), min(stop, last)) for number, (first, last) in blocks]
        return [span for span in spans if span[1] < span[2]]

    def over(self, start: int, stop: int, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Call ``function(block, start, stop, *arguments)`` for each block of a range of rows.

        ``start`` and ``stop`` are relative to the first row of the block. Results are in the order
        of the blocks, so their sum does not depend on the timing.
        """
        calls = []
        for number, first, last in self.spans(start, stop):
            begin = self.bounds[number]
            part = first - begin, last - begin
            calls.append(RemoteCall(number, function, (*part, *arguments)))
        return self.run(calls)

    def run(self, calls: Sequence["RemoteCall"]) -> list[Any]:
        """Run calls in parallel, and return their results in the order of the calls."""
        with self.calls() as running:
            for call in calls:
                running.submit(call)
            results = dict(running.next() for _ in calls)
        return [results[call] for call in calls]

    @abstractmethod
    def calls(self) -> "Calls":
        """Return an object that runs calls on the workers of the blocks."""


@dataclass(eq=False)
class RemoteCall:
    """A call ``function(block, *arguments)`` on the worker of the block, possibly repeated.

    Attributes
    ----------
    block : int
        The number of the block.
    function : callable
    arguments : tuple
    priority : float
        Larger is more urgent.
    at : object
        The block to which it was sent; set by ``Calls``.
    n_tries : int
        How often it was lost; set by ``Calls``.
    """

    block: int
    function: Callable[..., Any]
    arguments: Sequence[Any]
    priority: float = 0
    at: Any = None
    n_tries: int = 0


class Calls(ABC):
    """Runs calls on the workers of blocks. Leaving the context cancels pending calls."""

    def __enter__(self) -> "Calls":
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def submit(self, call: RemoteCall) -> None:
        """Start a call."""

    @abstractmethod
    def next(self) -> tuple[RemoteCall, Any]:
        """Wait for the next result; return (call, result), or raise the error of the call."""


def block_bounds(begins: np.ndarray, n_rows: int, n_blocks: int) -> list[int]:
    """Return the offsets of blocks of about equal size.

    An offset is moved to the start of a fold if one is near. Each fold is then in a single block,
    and its predictions need not be sent. Equal sizes are more important, because all blocks wait
    for the largest one.

    Parameters
    ----------
    begins : ndarray of shape (n_folds + 1,), int
        The first row of each fold, and the number of rows.
    n_rows, n_blocks : int
    """
    at = np.arange(n_blocks + 1) * n_rows // n_blocks
    begins = np.union1d(begins, [0, n_rows])
    after = np.searchsorted(begins, at)
    before = begins[np.maximum(after - 1, 0)]
    nearest = np.where(begins[after] - at <= at - before, begins[after], before)
    is_near = n_blocks * np.abs(nearest - at) <= _LEEWAY * n_rows
    return np.unique(np.where(is_near, nearest, at)).tolist()
