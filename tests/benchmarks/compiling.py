"""Print the CPU seconds and the sizes of what Cython and the C compiler write, for each kernel.

    CCACHE_DISABLE=1 python tests/benchmarks/compiling.py [CMake option ...]

Everything is built in a temporary folder, one command after the other. Cython writes all files in
a few processes, so there is one number for it.
"""

import os
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).resolve().parents[2] / "optuna_treecv" / "_kernels"


def cpu_seconds(command: str, folder: str) -> float:
    """Run a command; return the user seconds of it and of its children."""
    process = subprocess.Popen(command, shell=True, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{command} failed.")
    return usage.ru_utime


with TemporaryDirectory() as built:
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", FOLDER, "-B", built, "-DCMAKE_BUILD_TYPE=Release"]
        + [f"-DPython_EXECUTABLE={sys.executable}", *sys.argv[1:]],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    listed = subprocess.run(
        ["ninja", "-t", "commands"], cwd=built, check=True, capture_output=True, text=True
    )
    seconds: dict[str, float] = {}
    for command in listed.stdout.splitlines():
        name = Path(command.split()[-1]).name.split(".")[0] if " -c " in command else "Cython"
        if " -c " in command or "transpile.py" in command:
            seconds[name] = cpu_seconds(command, built)
        else:
            cpu_seconds(command, built)
    print(f"{'':16}{'CPU seconds':>12}{'kB of C':>9}{'kB of .so':>11}")
    for name, of_name in sorted(seconds.items(), key=lambda item: -item[1]):
        c_bytes = sum(file.stat().st_size for file in Path(built).rglob(f"{name}.c"))
        so_bytes = sum(file.stat().st_size for file in Path(built).rglob(f"{name}.*.so"))
        print(f"{name:16}{of_name:12.1f}{c_bytes // 1000:9,}{so_bytes // 1000:11,}")
    print(f"{'all':16}{sum(seconds.values()):12.1f}")
