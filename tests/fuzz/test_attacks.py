"""A small size of the attacks in ``tests/fuzz``; the scripts there say what they do."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
import subprocess
import sys

import pytest

#: How many cases of each kind the differential attack runs; .ci/nightly runs more of them.
DIFFERENTIAL = dict.fromkeys(
    ("ensembles", "lanes", "parquet", "pooled", "routing", "shared", "tables"), 2
) | {"fits": 6, "forest": 4, "leaks": 6, "races": 1, "replays": 4, "searches": 4, "texts": 1}
DIFFERENTIAL |= {"truncations": 2}


@pytest.fixture
def attack(request, monkeypatch):
    """Return the module of the attack that a test names."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    yield import_module(request.param)
    del sys.modules[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["kill"], indirect=True)
def test_workers_are_killed(attack, store_url, tmp_path):
    is_server = store_url.startswith("postgresql")
    storage = store_url if is_server else f"sqlite:///{tmp_path / 'study.db'}"
    attack.attack(0, 1, storage, store_url)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["damaged_stores"], indirect=True)
def test_stores_are_damaged(attack, tmp_path):
    attack.attack(0, 4, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("attack", ["damaged_stores"], indirect=True)
def test_rows_on_a_server_are_hostile(attack, postgres_server):
    attack.attack_server(0, 4, postgres_server)


@pytest.mark.nightly
@pytest.mark.parametrize("attack", ["frozen_postgresql"], indirect=True)
def test_a_server_is_frozen(attack, postgres_server):
    with attack.shortened():
        attack.attack(3, 1, [postgres_server])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", ["differential"], indirect=True)
@pytest.mark.parametrize("kind", sorted(DIFFERENTIAL))
def test_random_evaluations_are_those_of_others(attack, kind, capsys):
    n_different = attack.attack(0, DIFFERENTIAL[kind], [kind])
    assert n_different == 0, capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_within_its_bound():
    # In a process of its own. The cache of 4 MB is full after some 30 of the 400 trials.
    script = Path(__file__).with_name("rss.py")
    command = [sys.executable, str(script), "0", "400", "20000", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
