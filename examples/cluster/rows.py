"""A study whose rows lie on a Dask cluster: python rows.py STORAGE SCHEDULER.

The rows are made where they lie. Rows of your own come from ``dask.dataframe.read_parquet`` or
another collection of Dask.
"""

import sys

import dask.array as da
from dask.distributed import Client
import numpy as np
import optuna

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.dask import DaskRows

if __name__ == "__main__":
    storage, scheduler = sys.argv[1:]
    client = Client(scheduler)
    client.wait_for_workers(2)
    rng = da.random.default_rng(0)
    X = rng.normal(size=(100_000, 20), chunks=(25_000, 20))
    y = (X.sum(axis=1) + rng.normal(size=100_000, chunks=25_000) > 0).astype(int)

    rows = DaskRows(X, y, client=client)
    objective = treecv_objective(
        PegasosClassifier(), rows, param_grid={"alpha": np.geomspace(1e-6, 1e-1, 8)}, cv=10
    )
    study = optuna.create_study(
        study_name="rows",
        storage=storage,
        load_if_exists=True,
        direction=objective.direction,
        sampler=objective.grid_sampler(),
    )
    study.optimize(objective)
    print(f"best: {study.best_params}, error {study.best_value:.4f}")
