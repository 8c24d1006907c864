"""Writes what users may have kept of an earlier version: a store, a study, and pickles.

    python tests/old_data.py tests/data/VERSION

Run it with the version that the folder is named after; ``tests/storage/test_old_data.py`` reads
the files with the present one. They are compressed.
"""

from __future__ import annotations

import gzip
from pathlib import Path
import pickle
import sys
import tempfile
from typing import Any

import numpy as np
import optuna
from sklearn.linear_model import Ridge

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

STUDY, N_ROWS = "kept", 120


def rows(n: int = N_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, 4))
    return X, X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=n)


def fitted() -> list[Any]:
    """Return fitted estimators of this package."""
    X, y = rows()
    return [
        PegasosClassifier(0.1, random_state=0).fit(X, y > 0),
        StreamingSVRGClassifier(step_size=0.05, random_state=0).fit(X, y > 0),
        HistTreeClassifier(min_samples_leaf=10, random_state=0).fit(X, y > 0),
        AveragedSGDRegressor(step_size=0.01, random_state=0).fit(X, y),
    ]


def predictions(estimators: list[Any]) -> np.ndarray:
    return np.array([estimator.predict(rows()[0][:20]) for estimator in estimators], float)


def make_objective(store: str) -> Any:
    X, y = rows()
    return treecv_objective(
        PegasosClassifier(),
        X,
        y > 0,
        param_grid={"alpha": [0.01, 0.1, 1.0]},
        cv=5,
        store=store,
        row_losses=True,
    )


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        objective = make_objective(f"sqlite:///{temporary}/store.db")
        study = optuna.create_study(
            storage=f"sqlite:///{temporary}/study.db",
            study_name=STUDY,
            sampler=objective.grid_sampler(),
            direction=objective.direction,
        )
        study.optimize(objective)
        X, y = rows()
        of_ridge = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0]}, cv=5)
        result = tree_cross_validate(Ridge(), X, y, cv=5, row_losses=True)
        estimators = fitted()
        kept = {
            "objective": of_ridge,
            "result": result,
            "estimators": estimators,
            "honest": objective.honest(study),
        }
        for name, content in kept.items():
            (temporary / f"{name}.pickle").write_bytes(pickle.dumps(content))
        np.save(temporary / "predictions.npy", predictions(estimators))
        del objective
        for path in sorted(temporary.iterdir()):
            if path.suffix in (".db", ".pickle", ".npy"):
                (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    write(Path(sys.argv[1]))
