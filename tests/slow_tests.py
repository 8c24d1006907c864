"""Finds the tests that are slow, which ``pytest -m "not slow"`` leaves out.

    CPU_SECONDS=seconds.txt pytest -n auto
    python tests/slow_tests.py seconds.txt

The first command writes the CPU time of each test, with its fixtures and the processes that it
has started (on Linux also those of pools, for which it does not wait). A busy machine gives about
the same numbers. The second one prints the sums of files and of functions, and writes
``tests/slow_tests.txt``, which ``tests/conftest.py`` reads: the tests whose cases took more than
0.3 seconds together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
import os
from pathlib import Path
import sys

import pytest

LISTED = Path(__file__).with_name("slow_tests.txt")
MOST_SECONDS = 0.3


def cpu_seconds() -> float:
    """Return what this process and those that it has started have computed."""
    ticks = 0
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread or process has ended meanwhile
            for child in children.read_text().split():
                numbers = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, numbers[11:15]))
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


class CpuSeconds:
    """A plugin that adds a line per test to a file, to which all workers write."""

    def __init__(self, path: str) -> None:
        self._path = path

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begin = cpu_seconds()
        is_done = yield
        with open(self._path, "a") as file:
            file.write(f"{cpu_seconds() - begin:.2f} {item.nodeid.partition('[')[0]}\n")
        return is_done


def main(path: str) -> None:
    of_files: Counter[str] = Counter()
    of_tests: Counter[str] = Counter()
    for line in Path(path).read_text().splitlines():
        seconds, _, name = line.partition(" ")
        name = name.rpartition("/")[2]
        of_tests[name] += float(seconds)
        of_files[name.partition("::")[0]] += float(seconds)
    slow = sorted(name for name, took in of_tests.items() if took > MOST_SECONDS)
    LISTED.write_text("".join(f"{name}\n" for name in slow))
    for sums in (of_files, of_tests):
        for name, took in sums.most_common(60):
            print(f"{took:8.2f} {name}")
    quick = of_tests.total() - sum(of_tests[name] for name in slow)
    print(f"{of_tests.total():8.2f} all tests, {quick:.2f} those that are not slow")


if __name__ == "__main__":
    main(sys.argv[1])
