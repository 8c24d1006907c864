"""Compare the defaults of streaming SVRG with those of averaged SGD, on withheld rows.

    OMP_NUM_THREADS=1 python benchmarks/svrg_defaults.py [NAME ...]

A name is ``letter`` or one of ``against_linear.py``, which also makes the splits and the losses.
The table has the median over five splits, and in brackets the largest loss. Its last column is the
median ratio of the losses of streaming SVRG and averaged SGD after one pass, with batches of 100
rows at first, and with some of 20.
"""

from __future__ import annotations

import sys
from typing import Any
import warnings

import against_linear
import datasets
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor

NAMES = (
    *("letter", "magic", "higgs", "covertype", "a9a", "w8a"),
    *("bikes", "elevators", "kin8nm", "pol", "kin40k", "flights"),
)
N_SPLITS = 5


def letter() -> against_linear.Table:
    X, y, _ = datasets.letter()
    return X, y, X.shape[1]


def losses(split: against_linear.Split, seed: int) -> dict[str, float]:
    """Return the losses of each model on the withheld rows."""
    if split.y.dtype.kind == "f":
        reference, kinds = Ridge(), (AveragedSGDRegressor, StreamingSVRGRegressor)
    else:
        reference = LogisticRegression(max_iter=300)
        kinds = (AveragedSGDClassifier, StreamingSVRGClassifier)
    made: dict[str, Any] = {f"{type(reference).__name__}": reference}
    for name, kind in zip(("averaged SGD", "SVRG"), kinds, strict=True):
        for n_epochs in (1, 5):
            made[f"{name}, {n_epochs}"] = kind(random_state=seed, n_epochs=n_epochs)
    made["SVRG, small batches"] = kinds[1](random_state=seed, initial_batch_size=20)
    return {
        name: split.loss(split.outputs(model.fit(split.X, split.y)))
        for name, model in made.items()
    }


def main() -> None:
    warnings.simplefilter("ignore")
    head = "| data | reference | averaged SGD, one pass | five | SVRG, one pass | five | ratios |"
    print(f"{head}\n|{'---|' * 7}")
    for name in sys.argv[1:] or NAMES:
        load = letter if name == "letter" else getattr(against_linear, name)
        found = [losses(against_linear.Split(load, seed), seed) for seed in range(N_SPLITS)]
        small = [one.pop("SVRG, small batches") for one in found]
        cells = [[one[model] for one in found] for model in found[0]]
        shown = " | ".join(f"{np.median(cell):.4g} ({max(cell):.4g})" for cell in cells)
        ratios = [np.median(np.divide(losses, cells[1])) for losses in (cells[3], small)]
        print(f"| {name} | {shown} | {ratios[0]:.2f}, {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
