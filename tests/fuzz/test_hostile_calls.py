"""A small size of the attack by hostile calls, and what its judgement is worth."""

from __future__ import annotations

import json
from pathlib import Path
import runpy
import select
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from optuna_treecv import AveragedSGDRegressor

pytest.importorskip("pandas")
pytest.importorskip("plotly")
pytest.importorskip("optuna_dashboard")

SCRIPT = Path(__file__).with_name("hostile_calls.py")
attack = runpy.run_path(str(SCRIPT))


@pytest.mark.slow
def test_a_hundred_hostile_calls(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOSTILE_FOLDER", str(tmp_path))
    status = attack["report"](attack["watch"](5, 100), 20)
    printed = capsys.readouterr().out
    assert status == 0 and "refusals" in printed, printed


def test_a_number_names_a_call():
    calls = [attack["make_call"](3, number) for number in (17, 18, 17)]
    assert calls[0].text.split("0x")[0] == calls[2].text.split("0x")[0] != calls[1].text


def fails(error):
    def run():
        raise error

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (fails(ValueError("X must hold numbers")), "clear"),
        (fails(TypeError("no 'cv' was given")), "clear"),
        (fails(ValueError("cvs, Xs and alphabets")), "unclear"),
        (fails(KeyError("X")), "unclear"),
        (fails(MemoryError("X")), "unclear"),
        (lambda: np.float64(1), "accepted"),
        (lambda: float("nan"), "silent"),
        (lambda: AveragedSGDRegressor().fit(np.eye(3) * 1e300, [1, 2, 3]), "accepted"),
        (lambda: set_nan(AveragedSGDRegressor()), "silent"),
    ],
)
def test_judgement(run, expected):
    call = attack["Call"]("a call", {"X", "cv", "alpha"}, run)
    assert attack["judged"](call)[0] == expected


def set_nan(model):
    model.coef_ = np.array([np.nan])
    return model


@pytest.mark.parametrize(
    ("what", "end"),
    [("os.abort()", "crashed"), ("raise SystemExit(3)", "crashed"), ("time.sleep(600)", "hung")],
)
def test_a_worker_that_dies_or_hangs_is_noticed(monkeypatch, what, end):
    line = json.dumps({"number": 7, "text": "a call"}) + "\n"
    code = f"import os, sys, time; os.write(int(sys.argv[1]), {line.encode()!r}); {what}"
    limits = iter([120, 0 if end == "hung" else 120])  # for the line, and for what follows
    wait = SimpleNamespace(select=lambda *given: select.select(*given[:3], next(limits)))
    monkeypatch.setitem(attack["watch_one"].__globals__, "select", wait)
    found = list(attack["watch_one"]([sys.executable, "-c", code], 0))
    assert [(one["number"], one["end"]) for one in found] == [(7, end)]


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (["clear"] * 99 + ["unclear"], 0),
        (["clear"] * 98 + ["unclear"] * 2, 1),
        (["clear", "accepted", "crashed"], 1),
        (["clear", "hung"], 1),
        (["clear", "silent"], 1),
    ],
)
def test_the_ratchet(ends, status, capsys):
    lines = ({"end": end, "number": i, "text": "", "error": ""} for i, end in enumerate(ends))
    assert attack["report"](lines, 3) == status
    assert "refusals" in capsys.readouterr().out
