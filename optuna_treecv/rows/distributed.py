"""Rows that lie elsewhere, in blocks: what a cross-validation asks of those who hold them.

Models travel to the blocks, and rows never come back. This is section 4.1 of Joulani, Gyorgy &
Szepesvari (2015). Who holds the rows is known in one place only, which implements these classes.
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

#: (numbers) -> a picklable function that makes ``PreparedRows`` from X of the rows with these
#: numbers, which ascend, and their order.
Prepare = Callable[[np.ndarray], Callable[[Any, np.ndarray], Any]]

# How far blocks may be from being equal, as a share of a block.
_LEEWAY = 0.05


@dataclass(frozen=True)
class Block:
    """Consecutive prepared rows that lie in one place.

    Attributes
    ----------
    rows : PreparedRows
    start : int
        Which of all prepared rows is the first one of them.
    """

    rows: Any
    start: int

    def __sizeof__(self) -> int:  # for those who count the memory of a worker
        return int(self.rows.nbytes)

    def slice_of(self, start: int, stop: int) -> slice:
        """Return where some of all rows are among these."""
        return slice(start - self.start, stop - self.start)


class RemoteRows(ABC):
    """Rows as given that lie elsewhere.

    Attributes
    ----------
    shape : (int, int)
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
    names : list of str or None
        The names of the columns.
    sample : ndarray, sparse matrix or data frame
        Some of the rows, the first one first.
    content : bytes or None
        A digest of X; None if it has none.
    """

    shape: tuple[int, int]
    y: np.ndarray | None
    names: list[str] | None
    sample: Any
    content: bytes | None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Any:
        """Return the first row; the others lie elsewhere."""
        if not isinstance(rows, slice) or rows not in (slice(0, 1), slice(None, 1)):
            raise TypeError("X lies elsewhere: only its first row is here.")
        return self.sample[:1]

    @property
    @abstractmethod
    def n_blocks(self) -> int:
        """In how many places rows can be trained on at the same time."""

    @abstractmethod
    def place(
        self, order: np.ndarray, bounds: list[int], prepare: Prepare, name: bytes
    ) -> "RemoteBlocks":
        """Put the rows in an order, and cut them into blocks.

        Parameters
        ----------
        order : ndarray of shape (n_rows,), uint32
        bounds : list of int
            The first row of each block in this order, and the number of rows.
        prepare : callable
            Makes the function that prepares the rows of a block.
        name : bytes
            Tells the blocks from others of the same rows.
        """


class RemoteBlocks(ABC):
    """Rows in an order, in blocks, each of which is somewhere.

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
        """Return the blocks that hold some rows: their numbers, and which rows they hold."""
        each = enumerate(pairwise(self.bounds))
        spans = [(number, max(start, first), min(stop, last)) for number, (first, last) in each]
        return [span for span in spans if span[1] < span[2]]

    def over(self, start: int, stop: int, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Return ``function(block, start, stop, *arguments)`` for some rows, block after block.

        Of each block, start and stop are what is within it, counted from its first row. Sums of
        the results are added in this order.
        """
        calls = []
        for number, first, last in self.spans(start, stop):
            begin = self.bounds[number]
            part = first - begin, last - begin
            calls.append(RemoteCall(number, function, (*part, *arguments)))
        return self.run(calls)

    def run(self, calls: Sequence["RemoteCall"]) -> list[Any]:
        """Make calls at the same time, and return their results in the order of the calls."""
        with self.calls() as running:
            for call in calls:
                running.submit(call)
            results = dict(running.next() for _ in calls)
        return [results[call] for call in calls]

    @abstractmethod
    def calls(self) -> "Calls":
        """Return what makes calls where the blocks are."""


@dataclass(eq=False)
class RemoteCall:
    """A call ``function(block, *arguments)`` where the block is; it may be made several times.

    Attributes
    ----------
    block : int
        The number of the block.
    function : callable
    arguments : tuple
    priority : float
        How urgent it is.
    at : object
        The block to which it was sent, as the one who makes it notes.
    n_tries : int
        How often it was lost, likewise.
    """

    block: int
    function: Callable[..., Any]
    arguments: Sequence[Any]
    priority: float = 0
    at: Any = None
    n_tries: int = 0


class Calls(ABC):
    """Calls of functions with blocks, made where these are. Leaving the context ends them."""

    def __enter__(self) -> "Calls":
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def submit(self, call: RemoteCall) -> None:
        """Begin to make a call."""

    @abstractmethod
    def next(self) -> tuple[RemoteCall, Any]:
        """Wait for a result; return its call and the result, or raise the error of the call."""


def block_bounds(begins: np.ndarray, n_rows: int, n_blocks: int) -> list[int]:
    """Return where blocks of about equal size begin, and where the last one ends.

    They begin with folds where such a place is near, so that what models say of a fold need not
    travel. Equal blocks are worth more: the largest one decides how long all others wait.

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
