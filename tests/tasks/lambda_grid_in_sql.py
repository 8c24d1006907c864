"""A grid of PEGASOS's lambda and of SVRG's steps, leave-one-out, in SQL and in the dashboard."""

from pathlib import Path
import sqlite3
import sys
import tempfile

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.dashboard import publish
from optuna_treecv.history import load_evaluations

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
from browser import BROWSER  # noqa: E402
from browser import page  # noqa: E402
from browser import served  # noqa: E402
from browser import text_of  # noqa: E402

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
TRIED = (
    (PegasosClassifier(), {"alpha": list(np.logspace(-4, 1, 6))}),
    (StreamingSVRGClassifier(), {"step_size": [0.001, 0.01, 0.1]}),
)
with tempfile.TemporaryDirectory() as folder:
    store, studies = f"sqlite:///{folder}/store.db", f"sqlite:///{folder}/studies.db"
    best = []
    for estimator, grid in TRIED:
        objective = treecv_objective(estimator, X, y, param_grid=grid, cv="loo", store=store)
        study = optuna.create_study(
            storage=studies,
            study_name=type(estimator).__name__,
            direction=objective.direction,
            sampler=objective.grid_sampler(),
        )
        study.optimize(objective)
        alone = tree_cross_validate(estimator.set_params(**study.best_params), X, y, cv="loo")
        assert study.best_value == alone.mean
        assert len(study.trials) == len(next(iter(grid.values())))
        publish(study, store)
        best.append(study.best_trial)

    evaluations = load_evaluations(store)
    assert len(evaluations) == 9
    assert sorted(evaluations["learner"].unique()) == [
        "PegasosClassifier",
        "StreamingSVRGClassifier",
    ]
    with sqlite3.connect(Path(folder, "store.db")) as connection:
        (n_rows,) = connection.execute("SELECT count(*) FROM treecv_evaluations").fetchone()
    connection.close()
    assert n_rows == 9

    if BROWSER is not None:
        with served(studies) as address:
            profile = Path(folder, "profile")
            note = text_of(page(f"{address}/studies/1/note", profile))
            assert f"Best: trial {best[0].number}, error {best[0].value:.4f} ±" in note
            assert f"569 rows × {X.shape[1]} features" in note
            assert "569 × 1 ( cv=loo )" in note
            figures = page(f"{address}/studies/2", profile)
            assert "Value against each hyper-parameter" in figures
            assert 'class="main-svg"' in figures
