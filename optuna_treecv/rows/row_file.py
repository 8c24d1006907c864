"""Prepared rows that memory does not hold: in files, mapped into memory.

They lie in the order of the tree, so all readings go forwards. Kernels read mapped memory as any
other, so the bits of models are those of rows in memory.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
import errno
from math import prod
import mmap
import os
from pathlib import Path
from tempfile import gettempdir
from tempfile import TemporaryFile
from threading import get_ident
from threading import Lock
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from optuna_treecv.rows.checks import memmap_behind
from optuna_treecv.rows.layout import SparseRows

# ``max_memory`` by a piece of rows as given, which are prepared at once; by a region, whose rows
# are sorted at once; by a block; and by what models say of all rows. Up to one and a half blocks
# are trained on while as many are read.
_PIECES, _REGIONS, _BLOCKS, _BESIDE = 16, 4, 4, 8

_MOST_PIECE = 2**25

#: The least limit of memory.
LEAST_BYTES = 2**20

# A block is read in pieces of this size, as large as a system reads ahead at once.
_READ_BYTES = 2**20

# The rows whose sizes are summed at once.
_ROWS_AT_ONCE = 2**16

_IN_MEMORY = {"tmpfs", "ramfs"}


@dataclass(frozen=True)
class Room:
    """The memory that prepared rows may take, and where those are written that take more.

    Attributes
    ----------
    max_bytes : int or None
        None: there is no limit.
    folder : str or None
        None: that of the system for temporary files.
    is_verbose : bool
        Whether lines on the screen say how far long readings are.
    """

    max_bytes: int | None = None
    folder: str | None = None
    is_verbose: bool = False

    def holds(self, n_bytes: int) -> bool:
        return self.max_bytes is None or n_bytes <= self.max_bytes

    @property
    def piece_bytes(self) -> int:
        """The most bytes of rows as given that are read at once."""
        most = _MOST_PIECE if self.max_bytes is None else self.max_bytes // _PIECES
        return min(most, _MOST_PIECE)

    @property
    def block_bytes(self) -> int:
        """The most bytes of prepared rows that are trained on at once."""
        assert self.max_bytes is not None
        return self.max_bytes // _BLOCKS

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return room for numbers of all rows; in a file, it does not own its memory."""
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        if self.max_bytes is None or n_bytes <= self.max_bytes // _BESIDE:
            return np.empty(shape, dtype)
        return MappedFile(n_bytes, self.folder).array(shape, dtype)


#: No limit of memory.
NO_LIMIT = Room()


class MappedFile:
    """A file without a name, so that the system removes it when the process ends, however it ends.

    Parameters
    ----------
    n_bytes : int
    folder : str or None

    Raises
    ------
    OSError
        If the folder has no room for it, or lies in memory itself.
    """

    def __init__(self, n_bytes: int, folder: str | None) -> None:
        self.n_bytes = max(1, n_bytes)
        folder = gettempdir() if folder is None else folder
        if _lies_in_memory(folder):
            raise OSError(
                f"spill_dir must be a folder on a disk, got {folder!r}, which lies in memory; use "
                "'/var/tmp', for example, instead."
            )
        try:
            self._file = TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115  # goes with the map
        except OSError as error:
            raise OSError(
                f"spill_dir must be a folder that can be written to, got {folder!r}: {error}."
            ) from error
        try:
            os.posix_fallocate(self._file.fileno(), 0, self.n_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            status = os.statvfs(folder)
            raise OSError(
                f"spill_dir must have room for {self.n_bytes / 1e9:,.2f} GB, but {folder!r} has "
                f"{status.f_bavail * status.f_frsize / 1e9:,.2f} GB."
            ) from error
        self.map = mmap.mmap(self._file.fileno(), self.n_bytes)

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the file as an array."""
        return np.frombuffer(self.map, dtype, prod(shape)).reshape(shape)

    def read_only(self, shape: tuple[int, ...], dtype: Any) -> np.memmap:
        """Return the file as an array whose pages ``leave_pages`` lets go of."""
        return np.memmap(self._file, dtype, "r", shape=shape)

    def write(self, begin: int, values: np.ndarray) -> None:
        """Write the bytes of an array in C order, from byte ``begin`` on."""
        left = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        while len(left):
            n_written = os.pwrite(self._file.fileno(), left, begin)
            left, begin = left[n_written:], begin + n_written

    def read_ahead(self, begin: int, end: int) -> None:
        """Let the system read some bytes into its own memory; return when they are there."""
        scratch = bytearray(_READ_BYTES)
        for at in range(begin, end, _READ_BYTES):
            os.preadv(self._file.fileno(), [memoryview(scratch)[: end - at]], at)

    def leave(self, begin: int, end: int) -> None:
        """Let go of the pages within some bytes; they are read again when they are asked for."""
        begin += -begin % mmap.PAGESIZE
        if end > begin:
            self.map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def stamp_of(rows: Any) -> tuple[str, int, int, int] | None:
    """Return what tells the file behind an array from a later state of it; None: there is none.

    It is the name, the inode, the size and the time of the last change.
    """
    owner = memmap_behind(rows)
    if owner is None or owner.filename is None or not os.path.exists(owner.filename):
        return None
    status = os.stat(owner.filename)
    return str(owner.filename), status.st_ino, status.st_size, status.st_mtime_ns


def leave_pages(rows: Any) -> None:
    """Let go of the pages of rows in a file that was mapped into memory by NumPy."""
    owner = memmap_behind(rows)
    if owner is None or owner.mode == "c":  # whose changes are in memory alone
        return
    pages = owner._mmap
    start = np.frombuffer(pages, np.uint8).ctypes.data
    begin, end = byte_bounds(rows)
    begin, end = begin - start, end - start
    begin += -begin % mmap.PAGESIZE
    end -= end % mmap.PAGESIZE
    if begin < end:
        pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _lies_in_memory(folder: str) -> bool:
    """Return whether the file system of a folder keeps its files in memory, as far as is known."""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            kinds = dict(line.split()[1:3] for line in mounts)
    except OSError:
        return False
    parents = [Path(folder).resolve(), *Path(folder).resolve().parents]
    return next((kinds[str(one)] for one in parents if str(one) in kinds), "") in _IN_MEMORY


# Seconds between two lines on the screen, and between two for a listener, because this one may
# write them to a database.
_INTERVAL, _INTERVAL_OF_LISTENER = 5.0, 30.0

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Let a function hear how far the readings are that begin meanwhile in this thread."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Progress:
    """Says how far something is, and the time that is left, if somebody wants to know.

    Parameters
    ----------
    what : str
        Is said before.
    n_rows : int
        What one reading has.
    n_total : callable
        () -> the rows of all readings.
    is_printed : bool
    """

    def __init__(
        self, what: str, n_rows: int, n_total: Callable[[], int], is_printed: bool
    ) -> None:
        self._what, self._n_rows, self._n_done = what, n_rows, 0
        self._began = perf_counter()
        self._lock = Lock()
        #: Of each listener, the seconds between two lines and those until the next one.
        self._listeners: dict[Callable[[str], None], tuple[float, float]] = {}
        if is_printed:
            self._listeners[_print] = _INTERVAL, _INTERVAL
        if (listener := _LISTENER.get()) is not None:
            self._listeners[listener] = _INTERVAL_OF_LISTENER, _INTERVAL_OF_LISTENER
        self._n_total = n_total() if self._listeners else 0

    def add(self, n: int) -> None:
        """Take note of further rows; say every few seconds how far it is."""
        with self._lock:
            self._n_done += n
            seconds = perf_counter() - self._began
            due = [one for one, (_, then) in self._listeners.items() if seconds >= then]
            if not due or self._n_done > self._n_total:
                return
            for one in due:
                interval, _ = self._listeners[one]
                self._listeners[one] = interval, seconds + interval
            left = seconds * (self._n_total / self._n_done - 1)
            done, total = self._n_done / self._n_rows, self._n_total / self._n_rows
        line = f"{self._what}: {done:.1f} of {total:.1f} readings in {seconds:.0f} s, {left:.0f} s"
        for one in due:
            one(f"{line} left")


def _print(line: str) -> None:
    print(f"[optuna_treecv] {line}", flush=True)


class RowFile(ABC):
    """Rows in files, which are read forwards and block by block.

    Parameters
    ----------
    files : list of MappedFile
        Each has something of every row, in the order of the rows.
    n_rows : int
    room : Room
        With a limit.

    Attributes
    ----------
    rows : ndarray or SparseRows
        All of them, mapped into memory.
    n_block : int
        The rows of a block.
    n_read : int
        The rows that were read so far, while others were let go of.
    """

    rows: Any

    def __init__(self, files: list[MappedFile], n_rows: int, room: Room) -> None:
        assert room.max_bytes is not None
        self._files = files
        self._room = room
        row_bytes = max(1, sum(file.n_bytes for file in files) // n_rows)
        self.n_block = max(1, room.block_bytes // row_bytes)
        self._n_region = max(1, room.max_bytes // _REGIONS // row_bytes)
        self._held: dict[int, tuple[int, int]] = {}  # by thread
        self._lock = Lock()
        self._reader: Thread | None = None
        self._n_rows = n_rows
        self.n_read = 0
        self.expect("rows are written to a file", lambda: 2 * n_rows)

    @abstractmethod
    def _bytes_before(self, row: int) -> list[int]:
        """Return how many bytes lie before a row, in each file."""

    def _deal(self, order: np.ndarray) -> tuple[np.ndarray, list[slice]]:
        """Return the region of each row as given, and the rows of each region."""
        starts = range(0, len(order), self._n_region)
        parts = [slice(start, min(start + self._n_region, len(order))) for start in starts]
        region = np.empty(len(order), np.min_scalar_type(len(parts)))
        for number, part in enumerate(parts):
            region[order[part]] = number
        return region, parts

    def expect(self, what: str, n_rows: Callable[[], int]) -> None:
        """Say how far it is while so many rows are read, if that is wanted."""
        self._progress = Progress(what, self._n_rows, n_rows, self._room.is_verbose)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return room for numbers of all rows, as ``Room.empty`` does."""
        return self._room.empty(shape, dtype)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of at most a block that make up a range of rows, each held meanwhile."""
        if any(first <= start and stop <= last for first, last in [*self._held.values()]):
            yield start, stop
            return
        try:
            for begin in range(start, stop, self.n_block):
                end = min(begin + self.n_block, stop)
                self.hold(begin, end, (end, min(end + self.n_block, stop)))
                yield begin, end
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the rows that this thread has held."""
        self.hold(0, 0)
        with self._lock:
            self._held.pop(get_ident(), None)

    def hold(self, start: int, stop: int, following: tuple[int, int] = (0, 0)) -> None:
        """Let go of the rows that this thread has held before, and read the following ahead.

        Parameters
        ----------
        start, stop : int
            The rows that kernels read now.
        following : (int, int)
            Those that they will read next.
        """
        with self._lock:
            first, last = self._held.get(get_ident(), (0, 0))
            self._held[get_ident()] = start, stop
            n_new = stop - start - max(0, min(stop, last) - max(start, first))
            self.n_read += n_new
            before, self._reader = self._reader, None
        for begin, end in ((first, min(last, start)), (max(first, stop), last)):
            if begin < end:
                self._release(begin, end)
        self._progress.add(n_new)
        if before is not None:  # it reads what is held now; two at once would read in turns
            before.join()
        if following[0] < following[1]:
            with self._lock:
                self._reader = Thread(target=self._read_ahead, args=following, daemon=True)
                self._reader.start()

    def release_pages(self, rows: slice | np.ndarray) -> None:
        """Release the mapped pages of some rows, from the first one to the last one."""
        if isinstance(rows, slice):
            self._release(rows.start, rows.stop)
        elif len(rows):
            self._release(int(rows.min()), int(rows.max()) + 1)

    def _release(self, start: int, stop: int) -> None:
        for file, *span in self._spans(start, stop):
            file.leave(*span)

    def _read_ahead(self, start: int, stop: int) -> None:
        for file, *span in self._spans(start, stop):
            file.read_ahead(*span)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[MappedFile, int, int]]:
        ends = self._bytes_before(start), self._bytes_before(stop)
        return zip(self._files, *ends, strict=True)


# Rows are written in an order by two passes that read and write forwards. The first pass deals the
# rows out to regions of the file. The second one sorts each region in memory.


class DenseFile(RowFile):
    """Rows of equal size.

    Parameters
    ----------
    pieces : iterable of (int, ndarray of shape (n, n_columns))
        All rows as given, piece by piece, each with the number of its first row.
    order : ndarray of shape (n_rows,), uint32
        Row i of the file is row ``order[i]`` as given.
    n_columns : int
    dtype : dtype
    room : Room

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        The file, mapped into memory.
    """

    def __init__(
        self,
        pieces: Iterable[tuple[int, np.ndarray]],
        order: np.ndarray,
        n_columns: int,
        dtype: Any,
        room: Room,
    ) -> None:
        self._row_bytes = n_columns * np.dtype(dtype).itemsize
        file = MappedFile(len(order) * self._row_bytes, room.folder)
        super().__init__([file], len(order), room)
        self.rows = file.array((len(order), n_columns), dtype)
        region, parts = self._deal(order)
        filled = [part.start for part in parts]
        for first, piece in pieces:
            by_region, cuts = _sorted_cuts(region[first : first + len(piece)], len(parts))
            for number, (begin, end) in enumerate(cuts):
                file.write(filled[number] * self._row_bytes, piece[by_region[begin:end]])
                filled[number] += end - begin
            self._progress.add(len(piece))
        for part in parts:
            rank = np.searchsorted(np.sort(order[part]), order[part])
            file.write(part.start * self._row_bytes, self.rows[part][rank])
            file.leave(part.start * self._row_bytes, part.stop * self._row_bytes)
            self._progress.add(len(rank))
        self.rows.flags.writeable = False

    def _bytes_before(self, row: int) -> list[int]:
        return [row * self._row_bytes]


class SparseFile(RowFile):
    """Sparse rows, in three files: values, columns, and where rows begin.

    Parameters
    ----------
    pieces : iterable of (int, SparseRows)
        As for ``DenseFile``.
    order : ndarray of shape (n_rows,), uint32
    given : ndarray of shape (n_rows + 1,), int
        Where rows begin as given. They have at most these entries and ``n_more`` others.
    n_more : int
    width : int
    dtype : dtype
    room : Room

    Attributes
    ----------
    rows : SparseRows
    """

    def __init__(
        self,
        pieces: Iterable[tuple[int, SparseRows]],
        order: np.ndarray,
        given: np.ndarray,
        n_more: int,
        width: int,
        dtype: Any,
        room: Room,
    ) -> None:
        n = len(order)
        n_most = int(given[-1]) - int(given[0]) + n_more * n
        self._sizes = np.dtype(dtype).itemsize, 4
        files = [MappedFile(size * n_most, room.folder) for size in self._sizes]
        files.append(MappedFile(8 * (n + 1), room.folder))
        super().__init__(files, n, room)
        self._n_region = max(1, self._n_region // 4)  # for the positions of its entries
        values, columns = files[0].array((n_most,), dtype), files[1].array((n_most,), np.int32)
        begins = files[2].array((n + 1,), np.int64)
        region, parts = self._deal(order)
        sizes = np.zeros(len(parts), np.int64)
        for start in range(0, n, _ROWS_AT_ONCE):
            most = np.diff(given[start : start + _ROWS_AT_ONCE + 1]) + n_more
            of_rows = region[start : start + _ROWS_AT_ONCE]
            sizes += np.bincount(of_rows, most, len(parts)).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        filled, n_filled = starts.copy(), [part.start for part in parts]
        for first, piece in pieces:
            by_region, cuts = _sorted_cuts(region[first : first + len(piece)], len(parts))
            piece = piece[by_region]
            for number, (begin, end) in enumerate(cuts):
                self._write(filled[number], piece[begin:end])
                filled[number] += piece.begins[end] - piece.begins[begin]
                # Until its region is sorted, the sizes of rows stand in the place of their ends.
                of_rows = np.diff(piece.begins[begin : end + 1])
                files[2].write(8 * (n_filled[number] + 1), of_rows)
                n_filled[number] += end - begin
            self._progress.add(len(piece))
        n_entries = 0
        for part, start, stop in zip(parts, starts, filled, strict=True):
            numbers = np.sort(order[part])
            at = np.append(0, np.cumsum(begins[part.start + 1 : part.stop + 1]))
            dealt = SparseRows(values[start:stop], columns[start:stop], at, (len(at) - 1, width))
            in_order = dealt[np.searchsorted(numbers, order[part])]
            self._write(n_entries, in_order)
            begins[part.start + 1 : part.stop + 1] = n_entries + in_order.begins[1:]
            n_entries += int(at[-1])
            for file, size in zip(files, self._sizes, strict=False):
                file.leave(size * start, size * stop)
            files[2].leave(8 * part.start, 8 * part.stop)
            self._progress.add(len(at) - 1)
        for array in (values, columns, begins):
            array.flags.writeable = False
        self.rows = SparseRows(values[:n_entries], columns[:n_entries], begins, (n, width))

    def _write(self, entry: int, rows: SparseRows) -> None:
        for file, size, numbers in zip(
            self._files, self._sizes, (rows.values, rows.columns), strict=False
        ):
            file.write(int(entry) * size, numbers)

    def _bytes_before(self, row: int) -> list[int]:
        entry = int(self.rows.begins[row])
        return [*(entry * size for size in self._sizes), 8 * row]


def _sorted_cuts(region: np.ndarray, n_regions: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the order of rows by their region, and where in it each region begins and ends."""
    by_region = np.argsort(region, kind="stable")
    ends = np.searchsorted(region[by_region], np.arange(1, n_regions + 1)).tolist()
    return by_region, list(zip([0, *ends[:-1]], ends, strict=True))
