"""Finds tests that should be marked as slow, and those that should not.

    CPU_SECONDS=seconds.txt pytest -n auto
    python tests/slow_tests.py seconds.txt

The first command writes the CPU time of each test, with its fixtures and the processes that it
has started (on Linux also those of pools, for which it does not wait). A busy machine gives about
the same numbers. The second one prints the sums of files and of functions, and the tests whose
marks do not fit: those without the mark whose cases took more than 0.3 seconds together, and those
with it that took less than a third of this (some of these wait instead).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
import os
from pathlib import Path
import sys

import pytest

MAX_SECONDS = 0.3


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
            mark = "slow" if item.get_closest_marker("slow") else "fast"
            name = item.nodeid.partition("[")[0]
            file.write(f"{cpu_seconds() - begin:.2f} {mark} {name}\n")
        return is_done


def main(path: str) -> None:
    of_files: Counter[str] = Counter()
    of_tests: Counter[str] = Counter()
    marks = {}
    for line in Path(path).read_text().splitlines():
        seconds, mark, name = line.split(" ")
        of_tests[name] += float(seconds)
        of_files[name.partition("::")[0]] += float(seconds)
        marks[name] = mark
    for sums in (of_files, of_tests):
        for name, took in sums.most_common(60):
            print(f"{took:8.2f} {name}")
    for name, took in sorted(of_tests.items()):
        if marks[name] == "fast" and took > MAX_SECONDS:
            print(f"to mark as slow: {took:.2f} {name}")
        elif marks[name] == "slow" and took < MAX_SECONDS / 3:
            print(f"not slow: {took:.2f} {name}")
    fast = sum(took for name, took in of_tests.items() if marks[name] == "fast")
    print(f"{of_tests.total():8.2f} all tests, {fast:.2f} those that are not slow")


if __name__ == "__main__":
    main(sys.argv[1])
