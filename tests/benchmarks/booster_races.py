"""What races of boosters save and what they lose, by replaying recorded curves.

    OMP_NUM_THREADS=1 python tests/benchmarks/booster_races.py record FOLDER [DATA] [SEED]
    python tests/benchmarks/booster_races.py replay FOLDER

``record`` runs a study of 60 trials of LightGBM as ``boosters.py`` does, but grows all trees of
all folds, and of a booster that is trained on all rows and tested on withheld ones (5 to 9 minutes
for each data set). ``replay`` asks a ``RacingPruner`` about these curves, in the order of the
study and in nine others, and prints the share of the trees that were grown, and by how much the
winner is worse on the withheld rows than that of a study without races, in standard errors of the
mean over folds.
"""

from functools import partial
from pathlib import Path
import sys
from typing import Any
import warnings

from boosters import is_classes
from boosters import MOST_TREES
from boosters import N_FOLDS
from boosters import PATIENCE
from boosters import rows
from boosters import suggested
import lightgbm
import numpy as np
import optuna
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold

from optuna_treecv import RacingPruner
from optuna_treecv.crossval.curves import Curve
from optuna_treecv.crossval.growing_folds import LEAD_STEPS
from optuna_treecv.learners.growing.growth import BLOCKS
from optuna_treecv.study.racing import compared
from optuna_treecv.study.racing import Comparison
from optuna_treecv.study.racing import sums_of

DATA = ("magic", "bike", "covertype", "flights")
ENDS = [end for end in BLOCKS if end < MOST_TREES] + [MOST_TREES]


def record(folder: Path, name: str, seed: int) -> None:
    """Record the curves of a study."""
    X, y = rows(name, 100_000)
    n_rows = min(50_000, int(0.8 * len(X)))
    kind = StratifiedKFold if is_classes(y) else KFold
    every = kind(N_FOLDS, shuffle=True, random_state=0).split(X[:n_rows], y[:n_rows])
    folds = [*every, (np.arange(n_rows), np.arange(n_rows, len(X)))]
    fixed = {"verbose": -1, "num_threads": 1, "seed": 0, "subsample_freq": 1, "metric": "None"}
    fixed |= {"objective": "binary" if is_classes(y) else "regression"}
    fixed |= {"feature_pre_filter": False}
    sets = []
    for train, test in folds:
        of_train = lightgbm.Dataset(X[train], y[train], params=dict(fixed)).construct()
        sets.append((of_train, of_train.create_valid(X[test], y[test]).construct(), y[test]))

    def losses_of(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        if is_classes(y):
            return -np.log(np.clip(np.where(y == 1, outputs, 1 - outputs), 1e-15, 1))
        return (outputs - y) ** 2

    curves, of_rows = [], []

    def objective(trial: optuna.Trial) -> float:
        params, of_folds = fixed | suggested(trial, "lightgbm"), []
        for fold, (train, test, targets) in enumerate(sets):
            booster, losses = lightgbm.Booster(params, train), []
            booster.add_valid(test, "test")

            def note(outputs: np.ndarray, _: Any, to: list = losses, y: Any = targets) -> Any:
                to.append(losses_of(outputs, y))
                return "noted", 0.0, True

            for _ in range(MOST_TREES):
                booster.update()
                booster.eval_valid(note)
            of_folds.append([one.mean() for one in losses])
            if fold == 0:
                of_rows.append(np.array([losses[end - 1] for end in ENDS], np.float32))
        curves.append(of_folds)
        return float(np.min(np.mean(of_folds[:N_FOLDS], axis=0)))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=60)
    np.savez(folder / f"{name}_{seed}.npz", curves=curves, rows=of_rows)


def curve_of(scores: np.ndarray, end: int = MOST_TREES) -> Curve:
    """Return the mean curve of some folds."""
    return Curve.of(scores[:, :end], np.arange(1, end + 1), 1.0, PATIENCE)


def grown(curve: Curve) -> int:
    """Return how many trees grow for a curve, which ends within a block."""
    return next(end for end in ENDS if end >= len(curve.mean))


def races(curves: np.ndarray, of_rows: np.ndarray, seed: int) -> tuple[int, int, int]:
    """Replay a study with races; return its trees, its winner and the number of pruned trials."""
    study = optuna.create_study(pruner=RacingPruner(seed=seed))
    n_trees, winner, n_pruned = 0, 0, 0
    rows_of_best: np.ndarray | None = None
    for number, (scores, losses) in enumerate(zip(curves[:, :N_FOLDS], of_rows, strict=True)):
        trial, of_folds = study.ask(), np.zeros(N_FOLDS, int)
        n_before, before = 0, 0.0
        is_pruned = False
        for step, end in enumerate(ENDS):
            curve = curve_of(scores[:1], end)
            n_left = 0 if curve.has_ended(PATIENCE) else MOST_TREES - end
            of_folds[0] = end
            early: Any = "next" if n_left and n_before else "last"
            told = Comparison(1, 0.0, 0.0, None, early=early, is_growing=True)
            if rows_of_best is not None and n_before:
                gain = abs(curve.value - before) / (end - n_before) * n_left
                sums = sums_of(losses[step].astype(float) - rows_of_best - gain, None)
                told = (
                    compared(len(rows_of_best), sums, None, early=early, is_growing=True) or told
                )
            n_before, before = end, curve.value
            study.pruner.tell(trial, step, told)
            trial.report(curve.value, step)
            is_pruned = trial.should_prune()
            if is_pruned or not n_left:
                break
        for n_folds in () if is_pruned else range(2, N_FOLDS + 1):
            curve = curve_of(scores[:n_folds])
            of_folds[:n_folds] = np.maximum(of_folds[:n_folds], grown(curve))
            last = LEAD_STEPS + n_folds - 2
            study.pruner.tell(trial, last, Comparison(1, 0.0, 0.0, None, 1, "last", True))
            trial.report(curve.value, last)
            is_pruned = n_folds < N_FOLDS and trial.should_prune()
            if is_pruned:
                break
        n_trees += int(of_folds.sum())
        n_pruned += is_pruned
        state = optuna.trial.TrialState.PRUNED if is_pruned else None
        study.tell(trial, None if is_pruned else curve.value, state=state)
        if not is_pruned and study.best_trial.number == trial.number:
            winner, rows_of_best = number, losses[step].astype(float)
    return n_trees, winner, n_pruned


def replay(folder: Path) -> None:
    """Print what races save and lose."""
    for name in DATA:
        found = []
        for file in sorted(folder.glob(f"{name}_*.npz")):
            recorded = np.load(file)
            for seed in range(10):
                order = np.arange(len(recorded["curves"]))
                if seed:
                    order = np.random.default_rng(seed).permutation(order)
                curves, of_rows = recorded["curves"][order], recorded["rows"][order]
                means = [curve_of(one[:N_FOLDS]) for one in curves]
                best = int(np.argmin([one.value for one in means]))
                n_trees, winner, n_pruned = races(curves, of_rows, seed)
                error = means[best].std_error[means[best].best - 1]
                withheld = [curves[at, N_FOLDS, means[at].best - 1] for at in (winner, best)]
                without = N_FOLDS * sum(map(grown, means))
                share, pruned = n_trees / without, n_pruned / len(curves)
                found.append((share, pruned, (withheld[0] - withheld[1]) / error, seed == 0))
        share, pruned, regret, in_order = np.array(found).T
        print(
            f"{name:10} trees with races / without: {share[in_order > 0].mean():.2f} in the order "
            f"of the study, {share[in_order == 0].mean():.2f} in others; pruned "
            f"{pruned.mean():.0%}; regret {regret.mean():.3f} standard errors, at most "
            f"{regret.max():.2f}"
        )


def main(what: str, folder: str, name: str = "magic", seed: str = "0") -> None:
    """Record or replay."""
    work = {"record": partial(record, name=name, seed=int(seed)), "replay": replay}[what]
    work(Path(folder))


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore")
    main(*sys.argv[1:])
