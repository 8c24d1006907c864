"""Other processes for tests: forked where the package is imported already, or new ones.

Importing the package takes a new Python two seconds of CPU time. A fork server imports it once for
all scripts of a test run. What a test says about imports, about the end of Python, about hashes or
about processes that a script starts needs a new Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
import os
from pathlib import Path
import runpy
import signal
import subprocess
import sys

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(
    ["alembic.command", "optuna.storages", "optuna_treecv.history", "pandas", "sklearn.ensemble"]
)


class Script:
    """A script that runs in a forked process, with pipes as those of ``subprocess.Popen``.

    Parameters
    ----------
    path : Path or str
        The script, which runs as ``__main__``.
    *arguments : str or Path
    folder : Path or None
        The working directory; None: that of the test run.
    """

    def __init__(
        self, path: Path | str, *arguments: Path | str, folder: Path | None = None
    ) -> None:
        pipes = [os.pipe() for _ in range(3)]
        pipes[0] = pipes[0][::-1]  # the script reads this one, and writes to the others
        theirs = [Connection(end) for _, end in pipes]
        line = [str(path), *map(str, arguments)]
        self._process = SERVER.Process(target=_run, args=(line, theirs, folder))
        self._process.start()
        for end in theirs:
            end.close()
        modes = ("w", "r", "r")
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(end, mode, buffering=1) for (end, _), mode in zip(pipes, modes, strict=True)
        )

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; negative is the number of a signal."""
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"the script has not ended after {timeout} seconds")
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(line: Sequence[str], streams: Sequence[Connection], folder: Path | None) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0)
    sys.argv = list(line)
    if folder is not None:
        os.chdir(folder)
    runpy.run_path(line[0], run_name="__main__")


def printed_by_a_new_python(module: str, call: str) -> str:
    """Return what a function of a test file gives in a process where strings have other hashes."""
    (file,) = Path(__file__).parents[1].rglob(f"{module}.py")
    paths = os.pathsep.join([str(file.parent), os.environ.get("PYTHONPATH", "")])
    there = subprocess.run(
        [sys.executable, "-c", f"import {module}; print({module}.{call}())"],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": paths},
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return there.stdout.strip()
