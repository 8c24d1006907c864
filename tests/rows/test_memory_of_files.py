"""Evaluations of rows in files stay within the memory that the user guide promises."""

from __future__ import annotations

from pathlib import Path
import sys

from processes import Script
import pytest

N_ROWS, N_COLUMNS, MAX_MEMORY = 700_000, 30, 20

#: The promise of user_guide/more_data, in bytes.
BOUND = MAX_MEMORY * 10**6 + 150 * 10**6 + 55 * N_ROWS

SCRIPT = """
import sys, threading, time, warnings
import optuna, pyarrow.dataset, pyarrow.parquet, sklearn.linear_model
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from optuna_treecv import PegasosClassifier, treecv_objective
import optuna_treecv.dashboard

def resident():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])

path, name, spill = sys.argv[1:]
estimator, grid = {
    "pegasos": (PegasosClassifier(), {"alpha": [1e-3, 1e-2]}),
    "logistic": (
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": [0.1, 1.0]},
    ),
    "ridge": (Ridge(), {"alpha": [0.1, 1.0]}),
}[name]
before, most, is_over = resident(), 0, threading.Event()

def watch():
    global most
    while not is_over.wait(0.002):
        most = max(most, resident() - before)

thread = threading.Thread(target=watch)
thread.start()
objective = treecv_objective(
    estimator, path, "y", param_grid=grid, cv=5, max_memory="20MB", spill_dir=spill
)
study = optuna.create_study(sampler=objective.grid_sampler(), direction=objective.direction)
study.optimize(objective)
is_over.set()
thread.join()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    objective.best_estimator(study)
print(most, sum("max_memory does not limit the final fit" in str(one.message) for one in caught))
"""


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of 168 MB of numbers, in one group of rows."""
    np = pytest.importorskip("numpy")
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS))
    y = (X[:, 0] + rng.normal(size=N_ROWS) > 0).astype(np.int64)
    path: Path = tmp_path_factory.mktemp("memory") / "rows.parquet"
    columns = {f"c{i}": X[:, i] for i in range(N_COLUMNS)}
    write_table(pa.table(columns | {"y": y}), path)
    return path


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("name", "warns"),
    [
        pytest.param("pegasos", 0, marks=pytest.mark.nightly),
        ("logistic", 1),
        pytest.param("ridge", 1, marks=pytest.mark.nightly),
    ],
)
def test_a_study_of_a_file_stays_within_its_memory(name: str, warns: int, parquet: Path) -> None:
    path = parquet.parent / "script.py"
    path.write_text(SCRIPT)
    script = Script(path, parquet, name, parquet.parent)
    printed = script.stdout.read()
    assert script.wait(600) == 0, script.stderr.read()
    most, n_warnings = map(int, printed.split())
    assert most < BOUND, f"{most / 1e6:.0f} MB of {BOUND / 1e6:.0f}"
    assert n_warnings == warns
