"""Finds the tests that are slow, which ``pytest -m "not slow"`` leaves out.

    pytest -n auto --durations=0 -vv > durations.txt
    python tests/slow_tests.py durations.txt

This writes ``tests/slow_tests.txt``, which ``tests/conftest.py`` reads: the tests whose cases took
more than half a second together, fixtures included. Measure on a machine that does nothing else.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
import re
import sys

LISTED = Path(__file__).with_name("slow_tests.txt")
MOST_SECONDS = 0.5
LINE = re.compile(r"\s*([\d.]+)s (?:setup|call|teardown)\s+tests/(\S+?\.py::[^\s\[]+)")


def slow_tests(durations: str) -> list[str]:
    """Return the slow tests of a report, as file::test or file::class::test."""
    seconds: Counter[str] = Counter()
    for line in durations.splitlines():
        if found := LINE.match(line):
            seconds[found[2]] += float(found[1])
    return sorted(name for name, took in seconds.items() if took > MOST_SECONDS)


if __name__ == "__main__":
    LISTED.write_text("".join(f"{name}\n" for name in slow_tests(Path(sys.argv[1]).read_text())))
