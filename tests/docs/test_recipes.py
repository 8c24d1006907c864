"""The recipes of docs/reference/recipes.rst run, each in its own process, without a network."""

from __future__ import annotations

from pathlib import Path
import re

from processes import Script
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "reference" / "recipes.rst"
RECIPES = DOCS / "snippets" / "recipes"

# What each recipe needs, and a pattern of what it prints.
NEEDS = {
    "integration_callbacks": ("optuna_integration", "mlflow", "wandb"),
    "joblib_dask": ("distributed",),
    "joblib_ray": ("ray",),
    "joblib_workers": (),
    "lightgbm_stopping": ("lightgbm",),
    "mlflow_runs": ("mlflow",),
    "polars_frame": ("polars",),
    "progress_bar": ("tqdm",),
    "skops_file": ("skops",),
    "skore_report": ("skore",),
    "wandb_run": ("wandb",),
    "xgboost_callbacks": ("xgboost",),
}
PRINTS = {
    "integration_callbacks": r"",
    "joblib_dask": r"True",
    "joblib_ray": r"True",
    "joblib_workers": r"threading True\nloky True",
    "lightgbm_stopping": r"True\nfit - params contains arguments of fit \('callbacks'\)",
    "mlflow_runs": r"4",
    "polars_frame": r"\[0 0\]",
    "progress_bar": r"",
    "skops_file": r"\['optuna_treecv.engines.treecv.learners.pegasos.PegasosClassifier'\]\nTrue",
    "skore_report": r"(?s).*\nroc_auc +0\.9.*",
    "wandb_run": r"forest 10",
    "xgboost_callbacks": r"True\nfit - callbacks are given",
}

# Connections to other machines are refused, so that a recipe that makes one is seen here. Those of
# datagrams send nothing: Dask and Ray ask in this way for the address of this machine.
RUN = """
import os, runpy, socket, sys
from joblib.externals.loky import get_reusable_executor

def refuse(event, args):
    if event == "socket.connect" and args[0].type == socket.SOCK_STREAM:
        here = "127.0.0.1", "::1", "localhost"
        if args[0].family != socket.AF_UNIX and args[1][0] not in here:
            raise OSError(f"a recipe called {args[1]}")

os.environ.update(word.split("=") for word in sys.argv[2:])
sys.addaudithook(refuse)
runpy.run_path(sys.argv[1], run_name="__main__")
# This process cannot end before the workers of joblib, which would wait for minutes.
get_reusable_executor().shutdown(kill_workers=True)
"""
QUIET = {
    "DO_NOT_TRACK": "true",  # MLflow
    "OMP_THREAD_LIMIT": "1",  # LightGBM would use all cores, on which other tests run
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_recipe_runs(name, tmp_path):
    for module in NEEDS[name]:
        pytest.importorskip(module)
    (tmp_path / "home").mkdir()  # some tools write files there
    environment = {**QUIET, "HOME": str(tmp_path / "home")}
    run = tmp_path / "run.py"
    run.write_text(RUN)
    words = ("=".join(item) for item in environment.items())
    script = Script(run, RECIPES / f"{name}.py", *words, folder=tmp_path)
    printed, said = script.stdout.read(), script.stderr.read()
    assert script.wait(300) == 0, said
    assert "a recipe called" not in said
    assert re.fullmatch(PRINTS[name], printed.strip()), printed
    if name == "progress_bar":
        assert "4/4" in said


def test_the_page_shows_each_recipe_and_stays_short():
    page = PAGE.read_text()
    shown = re.findall(r"literalinclude:: \.\./snippets/recipes/(\w+)\.py\n", page)
    assert sorted(shown) == sorted(NEEDS) == sorted(p.stem for p in RECIPES.glob("*.py"))
    assert len(page.split()) <= 900
    assert all(len(line) <= 120 for line in page.splitlines())
    for path in RECIPES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 25
