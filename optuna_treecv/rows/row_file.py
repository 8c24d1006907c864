"""Prepared rows on disk, memory-mapped, if they exceed the memory limit.

Rows are in the order of the tree, so all reads are sequential. Kernels read mapped memory like any
other memory, so models are equal, bit for bit, to models of rows in memory.
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
from tqdm.auto import tqdm

from optuna_treecv.rows.checks import memmap_behind
from optuna_treecv.rows.layout import SparseRows

# ``max_memory`` divided by the sizes of: a chunk of the user's rows, which are prepared at once; a
# region, whose rows are sorted at once; a block; and the predictions of all rows. Models are
# trained on up to one and a half blocks while as many are read.
_PIECES, _REGIONS, _BLOCKS, _BESIDE = 16, 4, 4, 8

_MOST_PIECE = 2**25

#: The minimum of ``max_memory``.
LEAST_BYTES = 2**20

# The size of reads, as large as a system reads ahead at once.
_READ_BYTES = 2**20

# The number of rows whose sizes are summed at once.
_ROWS_AT_ONCE = 2**16

_IN_MEMORY = {"tmpfs", "ramfs"}


@dataclass(frozen=True)
class Room:
    """The memory limit for prepared rows, and the folder for rows that exceed it.

    Attributes
    ----------
    max_bytes : int or None
        None: no limit.
    folder : str or None
        None: the system's folder for temporary files.
    is_verbose : bool
        Whether to print the progress of long reads.
    """

    max_bytes: int | None = None
    folder: str | None = None
    is_verbose: bool = False

    def holds(self, n_bytes: int) -> bool:
        return self.max_bytes is None or n_bytes <= self.max_bytes

    @property
    def piece_bytes(self) -> int:
        """The maximum number of bytes of the user's rows in one piece that is read."""
        most = _MOST_PIECE if self.max_bytes is None else self.max_bytes // _PIECES
        return min(most, _MOST_PIECE)

    @property
    def block_bytes(self) -> int:
        """The maximum number of bytes of a block of prepared rows in memory."""
        assert self.max_bytes is not None
        return self.max_bytes // _BLOCKS

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialized array with an entry for each row, on disk if it is large."""
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        if self.max_bytes is None or n_bytes <= self.max_bytes // _BESIDE:
            return np.empty(shape, dtype)
        return MappedFile(n_bytes, self.folder).array(shape, dtype)


#: The memory limit of rows that are always in memory.
NO_LIMIT = Room()


class MappedFile:
    """An unnamed file, which the system removes when the process ends for any reason.

    Parameters
    ----------
    n_bytes : int
    folder : str or None

    Raises
    ------
    OSError
        If the folder does not have enough space, or is in memory.
    """

    def __init__(self, n_bytes: int, folder: str | None) -> None:
        self.n_bytes = max(1, n_bytes)
        folder = gettempdir() if folder is None else folder
        if _is_in_memory(folder):
            raise OSError(
                f"spill_dir must be a folder on a disk, got {folder!r}, which is in memory; use "
                "'/var/tmp', for example, instead."
            )
        try:
            self._file = TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115  # goes with the map
        except OSError as error:
            raise OSError(
                f"spill_dir must be a writable folder, got {folder!r}: {error}."
            ) from error
        try:
            os.posix_fallocate(self._file.fileno(), 0, self.n_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            status = os.statvfs(folder)
            raise OSError(
                f"spill_dir must have {self.n_bytes / 1e9:,.2f} GB of free space, but {folder!r} "
                f"has {status.f_bavail * status.f_frsize / 1e9:,.2f} GB."
            ) from error
        self.map = mmap.mmap(self._file.fileno(), self.n_bytes)

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the file as an array."""
        return np.frombuffer(self.map, dtype, prod(shape)).reshape(shape)

    def read_only(self, shape: tuple[int, ...], dtype: Any) -> np.memmap:
        """Return the file as a read-only array, whose pages ``leave_pages`` releases."""
        return np.memmap(self._file, dtype, "r", shape=shape)

    def write(self, begin: int, values: np.ndarray) -> None:
        """Write the bytes of an array in C order, starting at byte ``begin``."""
        left = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        while len(left):
            n_written = os.pwrite(self._file.fileno(), left, begin)
            left, begin = left[n_written:], begin + n_written

    def read_ahead(self, begin: int, end: int) -> None:
        """Read a byte range into the page cache of the system."""
        scratch = bytearray(_READ_BYTES)
        for at in range(begin, end, _READ_BYTES):
            os.preadv(self._file.fileno(), [memoryview(scratch)[: end - at]], at)

    def leave(self, begin: int, end: int) -> None:
        """Release the mapped pages of a byte range; later reads page them in again."""
        begin += -begin % mmap.PAGESIZE
        if end > begin:
            self.map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def stamp_of(rows: Any) -> tuple[str, int, int, int] | None:
    """Return (name, inode, size, modification time) of a memory-mapped array's file, or None.

    The result changes if the file is changed.
    """
    owner = memmap_behind(rows)
    if owner is None or owner.filename is None or not os.path.exists(owner.filename):
        return None
    status = os.stat(owner.filename)
    return str(owner.filename), status.st_ino, status.st_size, status.st_mtime_ns


def leave_pages(rows: Any) -> None:
    """Release the mapped pages of rows that are memory-mapped by NumPy."""
    owner = memmap_behind(rows)
    if owner is None or owner.mode == "c":  # its changes are only in memory
        return
    pages = owner._mmap
    start = np.frombuffer(pages, np.uint8).ctypes.data
    begin, end = byte_bounds(rows)
    begin, end = begin - start, end - start
    begin += -begin % mmap.PAGESIZE
    end -= end % mmap.PAGESIZE
    if begin < end:
        pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _is_in_memory(folder: str) -> bool:
    """Return whether a folder is known to be in a file system in memory."""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            kinds = dict(line.split()[1:3] for line in mounts)
    except OSError:
        return False
    parents = [Path(folder).resolve(), *Path(folder).resolve().parents]
    return next((kinds[str(p)] for p in parents if str(p) in kinds), "") in _IN_MEMORY


# Seconds between two printed lines, and between two calls of a listener, which may write to a
# database.
_INTERVAL, _INTERVAL_OF_LISTENER = 5.0, 30.0

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def reporting_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Return a context in which reads by this thread report their progress to a function."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Progress:
    """Reports the progress of reading, and the remaining time, to listeners.

    Parameters
    ----------
    what : str
        The beginning of the line.
    n_rows : int
        The number of rows of one read.
    n_total : callable
        () -> the number of rows of all reads.
    is_printed : bool
        Whether to print the progress, too.
    """

    def __init__(
        self, what: str, n_rows: int, n_total: Callable[[], int], is_printed: bool
    ) -> None:
        self._what, self._n_rows, self._n_done = what, n_rows, 0
        self._began = perf_counter()
        self._lock = Lock()
        #: The seconds between two lines and until the next line, by listener.
        self._listeners: dict[Callable[[str], None], tuple[float, float]] = {}
        if is_printed:
            self._listeners[_print] = _INTERVAL, _INTERVAL
        if (listener := _LISTENER.get()) is not None:
            self._listeners[listener] = _INTERVAL_OF_LISTENER, _INTERVAL_OF_LISTENER
        self._n_total = n_total() if self._listeners else 0

    def add(self, n: int) -> None:
        """Add rows to the count; report the progress every few seconds."""
        with self._lock:
            self._n_done += n
            seconds = perf_counter() - self._began
            due = [hear for hear, (_, then) in self._listeners.items() if seconds >= then]
            if not due or self._n_done > self._n_total:
                return
            for listener in due:
                interval, _ = self._listeners[listener]
                self._listeners[listener] = interval, seconds + interval
            left = seconds * (self._n_total / self._n_done - 1)
            done, total = self._n_done / self._n_rows, self._n_total / self._n_rows
        line = f"{self._what}: {done:.1f} of {total:.1f} readings in {seconds:.0f} s, {left:.0f} s"
        for listener in due:
            listener(f"{line} left")


def _print(line: str) -> None:
    tqdm.write(f"[optuna_treecv] {line}")  # above progress bars


class RowFile(ABC):
    """Rows on disk that are read sequentially in blocks.

    Parameters
    ----------
    files : list of MappedFile
        Each has a part of every row, in the order of the rows.
    n_rows : int
    room : Room
        The memory limit, which must not be None.

    Attributes
    ----------
    rows : ndarray or SparseRows
        All rows, memory-mapped.
    n_block : int
        The number of rows of a block.
    n_read : int
        The number of rows that were read so far, with repetitions.
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
        """Return the offset of a row in each file, in bytes."""

    def _deal(self, order: np.ndarray) -> tuple[np.ndarray, list[slice]]:
        """Return the region of each of the user's rows, and the rows of each region as a slice."""
        starts = range(0, len(order), self._n_region)
        parts = [slice(start, min(start + self._n_region, len(order))) for start in starts]
        region = np.empty(len(order), np.min_scalar_type(len(parts)))
        for number, part in enumerate(parts):
            region[order[part]] = number
        return region, parts

    def expect(self, what: str, n_rows: Callable[[], int]) -> None:
        """Start a progress report of reading ``n_rows()`` rows."""
        self._progress = Progress(what, self._n_rows, n_rows, self._room.is_verbose)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialized array with an entry for each row, see ``Room.empty``."""
        return self._room.empty(shape, dtype)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield blocks (start, stop) of a range of rows; the current block is held in memory."""
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
        """Release the rows that this thread holds in memory."""
        self.hold(0, 0)
        with self._lock:
            self._held.pop(get_ident(), None)

    def hold(self, start: int, stop: int, following: tuple[int, int] = (0, 0)) -> None:
        """Hold rows in memory, release this thread's previous rows, and prefetch the next ones.

        Parameters
        ----------
        start, stop : int
            The rows that kernels read now.
        following : (int, int)
            The rows that they will read next.
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
        if before is not None:  # it reads the current rows; two threads would alternate
            before.join()
        if following[0] < following[1]:
            with self._lock:
                self._reader = Thread(target=self._read_ahead, args=following, daemon=True)
                self._reader.start()

    def release_pages(self, rows: slice | np.ndarray) -> None:
        """Release the mapped pages from the first to the last of the given rows."""
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


# Rows are written in an order by two sequential passes. The first pass distributes the rows over
# regions of the file. The second pass sorts each region in memory.


class DenseFile(RowFile):
    """Dense rows on disk.

    Parameters
    ----------
    pieces : iterable of (int, ndarray of shape (n, n_columns))
        All of the user's rows in chunks, each with the number of its first row.
    order : ndarray of shape (n_rows,), uint32
        Row i of the file is row ``order[i]`` of the user.
    n_columns : int
    dtype : dtype
    room : Room

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        The memory-mapped file.
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
    """Sparse rows on disk, in three files: values, column indices and row offsets.

    Parameters
    ----------
    pieces : iterable of (int, SparseRows)
        As for ``DenseFile``.
    order : ndarray of shape (n_rows,), uint32
    offsets : ndarray of shape (n_rows + 1,), int
        The row offsets of the user's rows, from which follows their maximum number of entries.
    n_more : int
        The number of additional entries per row.
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
        offsets: np.ndarray,
        n_more: int,
        width: int,
        dtype: Any,
        room: Room,
    ) -> None:
        n = len(order)
        n_most = int(offsets[-1]) - int(offsets[0]) + n_more * n
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
            most = np.diff(offsets[start : start + _ROWS_AT_ONCE + 1]) + n_more
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
                # Until a region is sorted, the file of offsets contains the sizes of its rows.
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
    """Return the row indices sorted by region, and the (start, stop) of each region."""
    by_region = np.argsort(region, kind="stable")
    ends = np.searchsorted(region[by_region], np.arange(1, n_regions + 1)).tolist()
    return by_region, list(zip([0, *ends[:-1]], ends, strict=True))
