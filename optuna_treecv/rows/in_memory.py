"""Says what to pass where rows are elsewhere: in files, in lazy frames, in the parts of Dask."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

# The memory that a container may use, and what it uses.
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
_MACHINE = Path("/proc/meminfo")


def why_not_in_memory(X: Any) -> str:
    """Return what reading all rows into memory means here, a sentence; empty if they are there."""
    if _is_dask(X):
        return (
            f"X is a Dask {type(X).__name__}, and all its rows are read into the memory of this "
            "process; X.compute() would say so, and a part of the rows would take less."
        )
    base = X
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if isinstance(base, np.memmap) and X.nbytes > (free := free_bytes()):
        return (
            f"X is mapped from a file of {X.nbytes / 2**30:.1f} GiB, and there are "
            f"{free / 2**30:.1f} GiB of free memory, so that reading its rows over and over takes "
            "very long; a part of the rows would be right."
        )
    return ""


def in_memory(argument: str, values: Any) -> Any:
    """Return rows or targets as this process can use them; refuse those that it cannot read."""
    if isinstance(values, str | PathLike):
        raise ValueError(
            f"{argument} must be rows in memory, got the path {str(values)!r}; numpy.load or "
            "pandas.read_parquet would read it."
        )
    if type(values).__name__ == "LazyFrame":
        raise ValueError(
            f"{argument} must be rows in memory, got a LazyFrame; {argument}.collect() would be "
            "right."
        )
    return values.compute() if _is_dask(values) else values


def _is_dask(values: Any) -> bool:
    return type(values).__module__.startswith("dask") and hasattr(values, "compute")


def free_bytes() -> float:
    """Return the memory that this process can still use; infinity where that is not known."""
    free = np.inf
    if _MACHINE.exists():
        for line in _MACHINE.read_text().splitlines():
            name, value, *_ = line.split()
            if name == "MemAvailable:":
                free = 1024.0 * int(value)
    if _LIMIT.exists() and (limit := _LIMIT.read_text().strip()) != "max":
        free = min(free, float(limit) - float(_USED.read_text()))
    return free
