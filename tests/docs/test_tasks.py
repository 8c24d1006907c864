"""Tasks as users have them: each script in ``tests/tasks`` asserts what they would check."""

from pathlib import Path
import runpy

import pytest

TASKS = sorted((Path(__file__).parents[1] / "tasks").glob("*.py"))
NEEDS = {
    "polars_frame": "polars",
    "boosted_trees_in_a_race": "lightgbm",
    "catboost_with_categories": "catboost",
    "lambda_grid_in_sql": "optuna_dashboard",
}


@pytest.mark.slow
@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_a_task(path, tmp_path, monkeypatch):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
