"""A grid search over rows on disk, in less memory than the rows need."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import optuna
from sklearn.datasets import make_classification

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = make_classification(50_000, random_state=2)
with TemporaryDirectory() as folder:
    path = Path(folder) / "rows.npy"
    np.save(path, X)
    objective = treecv_objective(
        PegasosClassifier(),
        path,
        y,
        param_grid={"alpha": [1e-4, 1e-2, 1.0, 100.0]},
        cv=10,
        max_memory="2MB",
    )
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    print(study.best_params, round(study.best_value, 3))
    print(objective.explain().splitlines()[0].split(". ")[-1])

in_memory = tree_cross_validate(PegasosClassifier(alpha=1e-2), X, y, cv=10)
print("the same score as in memory:", in_memory.mean == study.best_value)
