"""Kill a worker with SIGKILL while it fits LightGBM fold by fold, and start it again.

    python tests/fuzz/kill_fits.py [SEED [KILLS [STORE]]]

A study of 10 folds per trial goes on until it has been killed KILLS times (default 30) and is
complete. STORE is the URL of its store, a new SQLite file by default. The script fails if more
folds are fitted twice than there were kills, or if a value differs from that of one process
without a store.
"""

from __future__ import annotations

from collections import Counter
import os
from pathlib import Path
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import TrialState

from optuna_treecv import treecv_objective
from optuna_treecv.caching import caches

# As if each fit took the two seconds after which it is written; shorter ones are written together.
caches._SECONDS_PER_WRITE = 0.0

SPACE = {"learning_rate": FloatDistribution(0.01, 0.3), "num_leaves": IntDistribution(4, 32)}
N_FOLDS = 10


def make_objective(seed: int, store: str | None):
    from lightgbm import LGBMClassifier

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(4_000, 10))
    y = X[:, 0] * X[:, 1] > rng.normal(size=4_000)
    model = LGBMClassifier(n_estimators=30, n_jobs=1, random_state=0, verbose=-1)
    options = {"cv": N_FOLDS, "method": "fit", "store": store, "report": "folds"}
    return treecv_objective(model, X, y, param_distributions=SPACE, **options)


def work(seed: int, folder: Path, n_trials: int, store: str) -> None:
    """Finish the study; each fit that has ended is a line of the file "fits"."""
    import lightgbm

    plain = lightgbm.LGBMClassifier.fit

    def fit(self, X, y, **options):
        fitted = plain(self, X, y, **options)
        line = f"{self.learning_rate!r} {self.num_leaves} {X[:, 0].sum()!r}\n"
        file = os.open(folder / "fits", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
        return fitted

    lightgbm.LGBMClassifier.fit = fit
    study = open_study(folder)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    objective = make_objective(seed, store)
    while len(study.get_trials(states=(TrialState.COMPLETE,))) < n_trials:
        study.optimize(objective, n_trials=1)


def open_study(folder: Path) -> optuna.Study:
    return optuna.create_study(
        storage=f"sqlite:///{folder / 'study.db'}",
        study_name="killed",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(),
    )


def attack(seed: int, n_kills: int, store: str | None = None) -> tuple[int, int]:
    """Return the folds that were fitted twice or more, and all fits."""
    n_trials = max(2, n_kills // 2)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = store or f"sqlite:///{folder / 'store.db'}"
        command = [sys.executable, __file__, "work", str(seed), name, str(n_trials), url]
        for kill in range(n_kills + 1):
            worker = subprocess.Popen(command)
            if kill < n_kills:
                fits_before = n_lines(folder)
                while n_lines(folder) == fits_before and worker.poll() is None:
                    time.sleep(0.005)  # until the worker has begun
                time.sleep(rng.uniform(0, 0.3))
                worker.kill()
            worker.wait()
        study = open_study(folder)
        lines = (folder / "fits").read_text().splitlines()
    plain = make_objective(seed, None)
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    assert len(complete) >= n_trials
    for trial in complete:
        assert plain.evaluate(trial.params).mean == trial.value, trial
    times = Counter(lines)
    return sum(times.values()) - len(times), len(lines)


def n_lines(folder: Path) -> int:
    file = folder / "fits"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def main(seed: str = "0", n_kills: str = "30", store: str | None = None) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    again, fits = attack(int(seed), int(n_kills), store)
    print(f"{n_kills} kills: {fits} fits, {again} of them of a fold that was fitted before")
    assert again <= int(n_kills)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        work(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        main(*sys.argv[1:])
