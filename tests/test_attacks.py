"""A small size of each attack in ``tests/attack``; the scripts there say what they do."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest

FOLDER = Path(__file__).with_name("attack")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_within_its_bound():
    # seed, trials, rows, megabytes: the cache is full after some 100 trials
    attack(FOLDER / "rss.py", 0, 400, 20_000, 4)


def attack(script, *arguments):
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
