"""Print the CPU seconds and the sizes of what Cython and the C compiler write, for each kernel.

    CCACHE_DISABLE=1 python benchmarks/compiling.py [CMake option ...]

A copy of the sources is built in a temporary folder, one command after the other. Cython writes
all files in a few processes, so there is one number for it. Then a line of a source is edited, and
all is built again, as an editable installation does at the next import.
"""

import os
from pathlib import Path
import shutil
import subprocess
import sys
from tempfile import TemporaryDirectory
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "optuna_treecv"

#: A line of a source, and what is written in its place.
EDITS = {
    "pegasos.pyx": ("outputs[c].scale = 1\n", "outputs[c].scale = 2\n"),
    "rows.pxd": ("AHEAD_IN_ORDER = 8", "AHEAD_IN_ORDER = 9"),
}


def cpu_seconds(command: str, folder: Path) -> float:
    """Run a command; return the user seconds of it and of its children."""
    process = subprocess.Popen(command, shell=True, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{command} failed.")
    return usage.ru_utime


def seconds_by_kernel(built: Path) -> dict[str, float]:
    """Run all commands of a build; return the CPU seconds of Cython and of each C file."""
    listed = subprocess.run(
        ["ninja", "-t", "commands"], cwd=built, check=True, capture_output=True, text=True
    )
    seconds = {}
    for command in listed.stdout.splitlines():
        name = Path(command.split()[-1]).name.split(".")[0] if " -c " in command else "Cython"
        spent = cpu_seconds(command, built)
        if " -c " in command or "transpile.py" in command:
            seconds[name] = spent
    return seconds


with TemporaryDirectory() as folder:
    sources, built = Path(folder, "sources"), Path(folder, "built")
    for part in (PACKAGE, "cmake"):
        shutil.copytree(ROOT / part, sources / part)
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", sources / PACKAGE / "_kernels", "-B", built]
        + ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}", *sys.argv[1:]],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = seconds_by_kernel(built)
    print(f"{'':16}{'CPU seconds':>12}{'kB of C':>9}{'kB of .so':>11}")
    for name, of_name in sorted(seconds.items(), key=lambda item: -item[1]):
        c_bytes = sum(file.stat().st_size for file in built.rglob(f"{name}.c"))
        so_bytes = sum(file.stat().st_size for file in built.rglob(f"{name}.*.so"))
        print(f"{name:16}{of_name:12.1f}{c_bytes // 1000:9,}{so_bytes // 1000:11,}")
    print(f"{'all':16}{sum(seconds.values()):12.1f}")
    cpu_seconds("ninja", built)  # notes that all is current
    print(f"\n{'edited':16}{'CPU seconds':>12}{'seconds':>9}{'C files':>9}")
    for name, (line, edited) in EDITS.items():
        (source,) = (sources / PACKAGE).rglob(name)
        text = source.read_text()
        if line not in text:
            raise RuntimeError(f"{name} has no line with {line!r}.")
        source.write_text(text.replace(line, edited))
        before = {file: file.stat().st_mtime_ns for file in built.rglob("*.o")}
        begin = perf_counter()
        spent = cpu_seconds("ninja", built)
        n_files = sum(file.stat().st_mtime_ns != at for file, at in before.items())
        print(f"{name:16}{spent:12.1f}{perf_counter() - begin:9.1f}{n_files:9}")
