"""Reads rows from NumPy files, Parquet files and lazy data frames.

Rows that exceed the memory limit are read sequentially, in batches, into a file of numbers in
their original order.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from optuna_treecv.rows.checks import is_dask
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.row_file import MappedFile
from optuna_treecv.rows.row_file import Room

_PARQUET = {".parquet", ".pq"}

# Parquet is read in buffers of this size, because otherwise Arrow reads a whole row group at once.
_READ_BYTES = 2**16

Opened = tuple[Any, Any, list[str] | None]


def opened(X: Any, y: Any, room: Room) -> Opened:
    """Open paths and lazy data frames; return rows and targets that can be sliced.

    pyarrow and polars are imported only if they are needed.

    Parameters
    ----------
    X : array-like, sparse matrix, data frame, path or other source
        A path to a .npy or Parquet file, or to a folder of Parquet files, which are read in the
        order of their names; a ``pyarrow.Table`` or ``pyarrow.dataset.Dataset``; a lazy frame of
        polars, which is evaluated up to three times; or a collection of Dask, which is read into
        memory.
    y : array-like, str, path or None
        The name of a column, which is then removed from X; or a path to a .npy file.
    room : Room
        Parquet files and lazy frames whose numbers exceed its limit are written to a file.

    Returns
    -------
    X : array-like, sparse matrix or data frame
    y : array-like or None
    names : list of str or None
        The column names of X if it was written to a file.

    Raises
    ------
    ValueError
        If X or y cannot be read.
    """
    if isinstance(X, RemoteRows):
        if y is not None and y is not X.y:
            name = type(X).__name__
            raise ValueError(
                f"y must be None if X is {name}, because the targets are taken from X; pass y as "
                f"{name}(X, y) instead."
            )
        return X, X.y, X.names
    if isinstance(y, PathLike) or (isinstance(y, str) and y.endswith(".npy")):
        y = _at_path("y", Path(y))
    if isinstance(X, str | PathLike):
        X = _at_path("X", Path(X))
    X, y = (a.compute() if is_dask(a) else a for a in (X, y))
    y = y.collect() if _is(y, "polars", "LazyFrame") else y
    if _is(X, "polars", "LazyFrame"):
        return _read(_of_lazy_frame(X), y, room)
    if _is(X, "pyarrow", "Table") or _is(X, "pyarrow", "Dataset"):
        return _read(_of_dataset(X), y, room)
    wrong = ""
    if _is(X, "duckdb", "DuckDBPyRelation"):
        wrong = "a relation of DuckDB; use X.df()"
    elif isinstance(X, Iterator):
        wrong = f"the iterator {type(X).__name__}; use numpy.stack(list(X))"
    if wrong:
        raise ValueError(
            f"X must be rows that can be read repeatedly, got {wrong}, or the path of a Parquet "
            "file that contains the rows, instead."
        )
    if not isinstance(y, str):
        return X, y, None
    if not hasattr(X, "columns") or not hasattr(X, "drop"):
        raise ValueError(
            "y must be an array, a path to a .npy file or, if X has column names, one of "
            f"these names, got {y!r} for X of type {type(X).__name__}."
        )
    features(X.columns, y)
    return *without_targets(X, y), None


def _at_path(argument: str, path: Path) -> Any:
    """Return the array in a .npy file, or a pyarrow dataset for Parquet files."""
    expected = "a path to a .npy file"
    if argument == "X":
        expected += ", a Parquet file (.parquet) or a folder of those"
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r" if argument == "X" else None)
        if argument == "X" and (path.suffix in _PARQUET or path.is_dir()):
            from pyarrow.dataset import dataset

            # Files in a folder "day=1" get a column "day", as in pandas.
            partitioning = "hive" if path.is_dir() else None
            files = dataset(path, format="parquet", partitioning=partitioning)
            if files.files:
                return files
        wrong = ", which does not exist"
        if path.exists():
            wrong = ", which is another kind of file; use an array or data frame instead"
    except ImportError as error:
        raise ImportError(
            f"X needs pyarrow, got the path {str(path)!r}: pip install 'optuna-treecv[parquet]'."
        ) from error
    except (EOFError, OSError, ValueError) as error:
        wrong = f": {error}"
    raise ValueError(f"{argument} must be {expected}, got {str(path)!r}{wrong}.")


# A source of rows: the type of each column, and its NumPy type (None: it is not numerical); the
# number of rows; a function that reads all rows; one that reads some columns, (columns, n_rows) ->
# batches; and the name of the function that drops columns.
_Source = tuple[dict[str, tuple[Any, Any]], int, Callable[[], Any], Callable[..., Any], str]


def _of_dataset(dataset: Any) -> _Source:
    """Return the source for a pyarrow table or dataset."""
    from pyarrow import Table
    from pyarrow import types
    from pyarrow.dataset import dataset as of_table

    if isinstance(dataset, Table):
        dataset = of_table(dataset)

    def numpy_type(kind: Any) -> Any:
        if types.is_boolean(kind):
            return object  # as pandas converts bools next to numbers
        is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        return kind.to_pandas_dtype() if is_number else None

    index = (dataset.schema.pandas_metadata or {}).get("index_columns", ())
    kinds = {
        field.name: (field.type, numpy_type(field.type))
        for field in dataset.schema
        if field.name not in index
    }
    batches, drop = partial(_batches, dataset), "polars.scan_parquet(...).drop"
    return kinds, dataset.count_rows(), lambda: dataset.to_table().to_pandas(), batches, drop


def _of_lazy_frame(frame: Any) -> _Source:
    """Return the source for a polars LazyFrame."""
    import polars as pl

    def numpy_type(kind: Any) -> Any:
        is_number = kind.is_numeric() or kind == pl.Boolean
        return pl.Series([], dtype=kind).to_numpy().dtype if is_number else None

    def batches(columns: list[str], n_rows: int) -> Iterator[Any]:
        return frame.select(columns).collect_batches(chunk_size=n_rows)

    kinds = {name: (kind, numpy_type(kind)) for name, kind in frame.collect_schema().items()}
    n_rows = frame.select(pl.len()).collect(engine="streaming").item()
    return kinds, n_rows, frame.collect, batches, "X.drop"


def _batches(dataset: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    """Yield batches of the given columns, with at most ``n_rows`` rows each."""
    from pyarrow import parquet
    from pyarrow import system_memory_pool
    import pyarrow.dataset as ds

    try:
        parts = list(dataset.get_fragments())
    except ValueError:  # pyarrow does not give the fragments of a filtered dataset
        parts = [dataset]

    def kinds(schema: Any) -> list[Any]:
        return [schema.field(name).type if name in schema.names else None for name in columns]

    if all(
        isinstance(part, ds.ParquetFileFragment)
        and kinds(part.physical_schema) == kinds(dataset.schema)
        for part in parts
    ):
        # A pyarrow scanner would need several times the memory of a row group; this needs only a
        # fraction of it.
        for part in parts:
            with part.open() as stream:
                file = parquet.ParquetFile(stream, buffer_size=_READ_BYTES, pre_buffer=False)
                groups = [group.id for group in part.row_groups]
                yield from file.iter_batches(n_rows, groups, columns, use_threads=False)
        return
    yield from dataset.to_batches(
        columns=columns,
        batch_size=n_rows,
        batch_readahead=1,
        fragment_readahead=1,
        use_threads=False,
        memory_pool=system_memory_pool(),  # which returns freed memory
    )


def _read(source: _Source, y: Any, room: Room) -> Opened:
    """Read rows into a data frame or, if their numbers exceed the memory limit, into a file."""
    kinds, n_rows, whole, batches, drop = source
    columns = features(kinds, y)
    types = [kinds[name][1] for name in columns]
    wrong = [name for name in columns if kinds[name][1] is None]
    is_single = not wrong and np.result_type(np.int8, *types) == np.float32
    dtype = np.dtype(np.float32 if is_single else np.float64)
    row_bytes = len(columns) * dtype.itemsize
    if room.holds(n_rows * row_bytes):
        return *without_targets(whole(), y), None
    if wrong:
        raise ValueError(
            "X must contain numbers if it takes more than max_memory, got type "
            f"{kinds[wrong[0]][0]} in column {wrong[0]!r}; use {drop}({str(wrong)[1:-1]}) instead."
        )
    has_name = isinstance(y, str)
    file = MappedFile(n_rows * row_bytes, room.folder)
    labels, n_read = [], 0
    for batch in batches(
        [*columns, y] if has_name else columns, room.piece_bytes // row_bytes + 1
    ):
        piece = np.empty((len(batch), len(columns)), dtype)
        for number, name in enumerate(columns):
            piece[:, number] = np.asarray(batch[name])
        file.write(n_read * row_bytes, piece)
        n_read += len(piece)
        if has_name:
            labels.append(np.asarray(batch[y]))
    if n_read != n_rows:
        raise ValueError(
            f"X must not change while it is read, got {n_rows} rows at first and {n_read} later."
        )
    X = file.read_only((n_rows, len(columns)), dtype)
    return X, np.concatenate(labels) if has_name else y, columns


def features(names: Iterable[Any], y: Any) -> list[Any]:
    """Return the column names except the target's; raise ValueError if the target is missing."""
    names = list(names)
    if not isinstance(y, str):
        return names
    if y not in names:
        raise ValueError(
            f"y must be the name of a column of X, got {y!r}; X has "
            f"{', '.join(map(str, names[:20]))}{', ...' if len(names) > 20 else ''}."
        )
    return [name for name in names if name != y]


def without_targets(X: Any, y: Any) -> tuple[Any, Any]:
    """Return (X without column y, column y) if y is a column name, else (X, y)."""
    if not isinstance(y, str):
        return X, y
    return X.drop(columns=y) if hasattr(X, "iloc") else X.drop(y), X[y]


def _is(value: Any, library: str, name: str) -> bool:
    """Return whether a value is an instance of a class, without importing its library."""
    return any(
        kind.__module__.lstrip("_").partition(".")[0] == library and kind.__name__ == name
        for kind in type(value).__mro__
    )
