"""Measure cross-validation of more rows than memory.

    python benchmarks/scale.py FOLDER [RUNS [COPIES]]

FOLDER is on a disk with room for 15 GB. COPIES (default 16) of Covertype with a little noise are
written there, and as much of sparse rows, if they are not there yet. Each case is a process that
starts with nothing of the files in memory, if the script may see to that (as root on Linux).
Cases with a limit run in a memory cgroup of 512 MB, if the script may make one; cached pages of
files count there.
The output is a Markdown table of medians of RUNS runs (default 3).

* *Readings* are those of the prepared rows, by the pages that the walk held.
* *By direct readings* is the time of the evaluation over that of so many readings with O_DIRECT.
"""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import json
import mmap
import os
from pathlib import Path
from statistics import median
import subprocess
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import optuna_treecv as ot
from optuna_treecv.rows.row_file import RowFile

CAP, LIMIT = 2**29, "256MB"
ALPHAS = np.logspace(-6, -1, 32)
ONE = ot.PegasosClassifier(alpha=1e-4)

#: By case: the files, the estimators and the options.
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "k = 100": ("dense", ONE, {"cv": 100}),
    "k = 10": ("dense", ONE, {"cv": 10}),
    "leave-one-out": ("dense", ONE, {"cv": "loo"}),
    "k = 100, 32 lanes": ("dense", [ot.PegasosClassifier(alpha=a) for a in ALPHAS], {"cv": 100}),
    "k = 100, scaled": ("dense", make_pipeline(StandardScaler(), ONE), {"cv": 100}),
    "ridge, k = 10": ("dense", Ridge(), {"cv": 10, "scoring": "squared_error"}),
    "logistic, k = 10": ("dense", LogisticRegression(C=1e-3), {"cv": 10}),
    "CSR, k = 10": ("sparse", ONE, {"cv": 10}),
}


def write_dense(folder: Path, copies: int) -> None:
    X, y, _ = datasets.covertype()
    rng, n = np.random.default_rng(0), len(X)
    shape = copies * n, X.shape[1]
    rows = np.lib.format.open_memmap(folder / "dense.npy", "w+", np.float64, shape)
    for copy in range(copies):
        rows[copy * n : (copy + 1) * n] = X + 1e-3 * rng.standard_normal(X.shape)
    np.save(folder / "dense_y.npy", np.tile(y, copies).astype(np.int8))


def write_sparse(folder: Path, copies: int) -> None:
    """Write as many bytes: 30 numbers in each row, of 10,000 columns."""
    rng, n, d = np.random.default_rng(0), 11 * 10**6 * copies // 16, 30
    kinds = {"data": np.float64, "indices": np.int32, "indptr": np.int32}
    sizes = {"data": n * d, "indices": n * d, "indptr": n + 1}
    data, indices, indptr = (
        np.lib.format.open_memmap(folder / f"sparse_{name}.npy", "w+", kinds[name], (sizes[name],))
        for name in kinds
    )
    indptr[:] = np.arange(n + 1) * d
    y, step = np.empty(n, np.int8), 10**5
    weights = rng.normal(size=10_000)
    for begin in range(0, n, step):
        end = min(begin + step, n)
        columns = np.sort(rng.integers(0, 10_000 - d, (end - begin, d)), axis=1) + np.arange(d)
        values = rng.normal(size=columns.shape)
        indices[begin * d : end * d], data[begin * d : end * d] = columns.ravel(), values.ravel()
        y[begin:end] = (weights[columns] * values).sum(axis=1) > 0
    np.save(folder / "sparse_y.npy", y)


def read(folder: Path, kind: str) -> tuple[Any, np.ndarray]:
    y = np.load(folder / f"{kind}_y.npy")
    if kind == "dense":
        return np.load(folder / "dense.npy", mmap_mode="r"), y
    names = ("data", "indices", "indptr")
    parts = [np.load(folder / f"sparse_{name}.npy", mmap_mode="r") for name in names]
    return sparse.csr_array(tuple(parts), shape=(len(y), 10_000)), y


def run(folder: Path, case: str, max_memory: str | None) -> dict[str, Any]:
    """Run a case in this process."""
    files: list[RowFile] = []
    init: Callable[..., None] = RowFile.__init__

    def noted(self: RowFile, *arguments: Any) -> None:
        init(self, *arguments)
        files.append(self)

    RowFile.__init__ = noted  # type: ignore[method-assign]
    kind, model, options = CASES[case]
    X, y = read(folder, kind)
    options = {**options, "max_memory": max_memory, "spill_dir": max_memory and str(folder)}
    models = model if isinstance(model, list) else [model]
    began = perf_counter()
    results = ot.tree_cross_validate_many(models, X, y, **options)
    scores = [one.test_score for one in results]
    return {
        "prepared": results[0].seconds_prepare,
        "evaluated": perf_counter() - began - results[0].seconds_prepare,
        "readings": files[0].n_read / X.shape[0] if files else 0.0,
        "bytes": sum(one.n_bytes for one in files[0]._files) if files else 0,
        "mean": scores[0].mean(),
        "digest": hashlib.sha256(b"".join(one.tobytes() for one in scores)).hexdigest(),
    }


def start(folder: Path, case: str, max_memory: str | None) -> dict[str, Any]:
    """Run a case in a process of its own, with a cap if it has a limit."""
    os.sync()
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        Path("/proc/sys/vm/drop_caches").write_text("3")
    command = [sys.executable, __file__, str(folder), case, max_memory or ""]
    group = make_cgroup() if max_memory else None
    enter = "" if group is None else f"echo $$ > {group}/cgroup.procs && "
    shell = ["sh", "-c", f'{enter}exec "$0" "$@"', *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    peak = 0
    if group is not None:
        peaks = [group / "memory.max_usage_in_bytes", group / "memory.peak"]
        peak = next(int(one.read_text()) for one in peaks if one.exists())
        group.rmdir()
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr[-2000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "peak": peak}


def make_cgroup() -> Path | None:
    """Return a new memory cgroup with the cap; None if this process may not make one."""
    name = f"scale{os.getpid()}"
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / root / name
        try:
            group.mkdir()
            (group / limit).write_text(str(CAP))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        return group
    return None


def direct_reading(file: Path) -> float:
    """Return the seconds in which a file is read once, not through the system's memory."""
    block, began = mmap.mmap(-1, 2**24), perf_counter()
    number = os.open(file, os.O_RDONLY | os.O_DIRECT)
    at, size = 0, file.stat().st_size
    while at < size:
        at += os.preadv(number, [block], at)
    os.close(number)
    return perf_counter() - began


def main(folder: Path, runs: int = 3, copies: int = 16) -> None:
    for kind, write in (("dense", write_dense), ("sparse", write_sparse)):
        if not (folder / f"{kind}_y.npy").exists():
            write(folder, copies)
    print(
        "| case | prepared, s: in memory / in a file | evaluated, s | times | readings | "
        "by direct readings | peak, MB | bits |"
    )
    print("|---" * 8 + "|")
    for case in CASES:
        turns = []
        for _ in range(runs):
            direct = direct_reading(folder / "dense.npy") / (folder / "dense.npy").stat().st_size
            turns.append((start(folder, case, None), start(folder, case, LIMIT), direct))
        show(case, turns)


def show(case: str, turns: list[tuple[dict[str, Any], dict[str, Any], float]]) -> None:
    inside, outside, direct = zip(*turns, strict=True)

    def pair(name: str) -> str:
        return " / ".join(f"{median(one[name] for one in side):.1f}" for side in (inside, outside))

    times = median(b["evaluated"] / a["evaluated"] for a, b, _ in turns)
    readings = outside[0]["readings"]
    seconds = [b["evaluated"] / (readings * b["bytes"] * per) for _, b, per in turns if readings]
    same = all(a["digest"] == b["digest"] for a, b, _ in turns)
    near = max(abs(b["mean"] / a["mean"] - 1) for a, b, _ in turns)
    print(
        f"| {case} | {pair('prepared')} | {pair('evaluated')} | {times:.2f} | {readings:.2f} | "
        f"{f'{median(seconds):.2f}' if seconds else ''} | "
        f"{max(one['peak'] for one in outside) / 1e6:.0f} | {'same' if same else f'{near:.0e}'} |",
        flush=True,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) == 4 and sys.argv[2] in CASES:
        print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None)))
    else:
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
