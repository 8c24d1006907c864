"""What races of boosters save and what they lose, by replaying recorded curves.

    OMP_NUM_THREADS=1 python benchmarks/booster_races.py record FOLDER [DATA] [SEED]
    python benchmarks/booster_races.py replay FOLDER
    python benchmarks/booster_races.py simulate FOLDER [N_STUDIES]

``record`` runs a study of 60 trials of LightGBM as ``boosters.py`` does, but grows all trees of
all folds, and of a booster that is trained on all rows and tested on withheld ones (5 to 9 minutes
for each data set). ``replay`` asks a ``RacingPruner`` about these curves, in the order of the
study and in nine others, and prints the share of the trees that were grown, and by how much the
winner is worse on the withheld rows than that of a study without races, in standard errors of the
mean over folds.

In a replay the sampler does not see what was pruned. ``simulate`` therefore lets TPE suggest, over
curves that a Gaussian process foretells from the recorded ones, with the deviations of the folds
of a recorded trial nearby (half a second for each study). Each study has a twin without races.
"""

from collections.abc import Callable
from pathlib import Path
import sys
from typing import Any
import warnings

from boosters import is_classes
from boosters import MOST_TREES
from boosters import N_FOLDS
from boosters import PATIENCE
from boosters import rows
from boosters import SPACES
from boosters import suggested
import lightgbm
import numpy as np
import optuna
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.gaussian_process.kernels import RBF
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold

from optuna_treecv import RacingPruner
from optuna_treecv.core.result import Curve
from optuna_treecv.engines.ensembles.engine import LEAD_STEPS
from optuna_treecv.engines.ensembles.growth import BLOCKS
from optuna_treecv.study.race import compared
from optuna_treecv.study.race import sums_of
from optuna_treecv.study.racing import Comparison

DATA = ("magic", "bike", "covertype", "flights")
ENDS = [end for end in BLOCKS if end < MOST_TREES] + [MOST_TREES]
N_TRIALS = 60

# The scores of the folds of a trial by the number of trees, and the losses of rows of the first
# fold at the ends of blocks.
Play = Callable[[optuna.Trial], tuple[np.ndarray, np.ndarray]]


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
    study.optimize(objective, n_trials=N_TRIALS)
    np.savez(folder / f"{name}_{seed}.npz", curves=curves, rows=of_rows)


def curve_of(scores: np.ndarray, end: int = MOST_TREES) -> Curve:
    """Return the mean curve of some folds."""
    return Curve.of(scores[:, :end], np.arange(1, end + 1), 1.0, PATIENCE)


def grown(curve: Curve) -> int:
    """Return how many trees grow for a curve, which ends within a block."""
    return next(end for end in ENDS if end >= len(curve.mean))


def races(study: optuna.Study, play: Play, n_trials: int) -> tuple[int, int, int]:
    """Race over curves; return the trees, the winner and the number of pruned trials."""
    assert isinstance(study.pruner, RacingPruner)
    n_trees, winner, n_pruned = 0, 0, 0
    rows_of_best: np.ndarray | None = None
    for number in range(n_trials):
        trial, of_folds = study.ask(), np.zeros(N_FOLDS, int)
        scores, losses = play(trial)
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
                study = optuna.create_study(pruner=RacingPruner(seed=seed))

                def play(trial: optuna.Trial, curves: Any = curves, rows: Any = of_rows) -> Any:
                    return curves[trial.number, :N_FOLDS], rows[trial.number]

                n_trees, winner, n_pruned = races(study, play, len(curves))
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


class Surrogate:
    """The curves of any parameters, from recorded ones."""

    def __init__(self, folder: Path, name: str) -> None:
        at, curves, of_rows = [], [], []
        for file in sorted(folder.glob(f"{name}_*.npz")):
            recorded = np.load(file)
            curves.append(recorded["curves"])
            of_rows.append(recorded["rows"])
            # A study with the same seed and scores suggests the same parameters.
            study = optuna.create_study(
                sampler=optuna.samplers.TPESampler(seed=int(file.stem.split("_")[-1]))
            )
            for of_trial in curves[-1]:
                trial = study.ask()
                at.append(_place(trial))
                study.tell(trial, float(np.min(of_trial[:N_FOLDS].mean(axis=0))))
        self._at, self._rows = np.array(at), np.concatenate(of_rows)
        logs = np.log(np.concatenate(curves))
        means = np.hstack([logs[:, :N_FOLDS].mean(axis=1), logs[:, N_FOLDS]])
        self._parts = PCA(6).fit(means)
        kernel = ConstantKernel() * RBF(np.ones(self._at.shape[1])) + WhiteKernel(0.02)
        self._models = [
            GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(self._at, one)
            for one in self._parts.transform(means).T
        ]
        self._apart = logs - np.array([self._smooth(one) for one in self._at])
        self._of_folds = self._apart.mean(axis=0)

    def _smooth(self, at: np.ndarray) -> np.ndarray:
        parts = [model.predict(at[np.newaxis]) for model in self._models]
        folds, withheld = np.split(self._parts.inverse_transform(np.transpose(parts))[0], 2)
        return np.vstack([np.tile(folds, (N_FOLDS, 1)), withheld])

    def curves(self, trial: optuna.Trial) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the curves of a trial, those without noise, and the losses of rows."""
        at = _place(trial)
        smooth = self._smooth(at)
        near = np.argsort(np.square(self._at - at).sum(axis=1))[:12]
        rng = np.random.default_rng(np.round(at * 1e9).astype(np.int64))
        first, second = rng.choice(near, 2, replace=False)
        curves = np.exp(smooth + self._apart[first])
        losses = self._rows[[first, second]].mean(axis=0)
        ends = curves[0, np.array(ENDS) - 1]
        losses += (ends - losses.mean(axis=1))[:, np.newaxis].astype(losses.dtype)
        return curves, np.exp(smooth + self._of_folds), losses


def _place(trial: optuna.Trial) -> np.ndarray:
    """Return the parameters of a trial between 0 and 1."""
    found = []
    for name, value in suggested(trial, "lightgbm").items():
        axis: Any = SPACES["lightgbm"][name]
        scale = np.log if axis.log else float
        low, high = scale(axis.low), scale(axis.high)
        found.append((scale(value) - low) / (high - low))
    return np.array(found)


class Player:
    """Plays trials over the curves of a surrogate, and notes what they are worth."""

    def __init__(self, surrogate: Surrogate) -> None:
        self._surrogate = surrogate
        self.n_grown = 0
        # Of each trial: its loss in the folds without noise, on withheld rows, and its error.
        self.worth: list[np.ndarray] = []

    def play(self, trial: optuna.Trial) -> tuple[np.ndarray, np.ndarray]:
        curves, smooth, losses = self._surrogate.curves(trial)
        curve = curve_of(curves[:N_FOLDS])
        of_folds, withheld = smooth[:N_FOLDS].mean(axis=0), smooth[N_FOLDS]
        at = curve.best - 1
        self.worth.append(np.array([of_folds[at], withheld[at], curve.std_error[at]]))
        self.n_grown += N_FOLDS * grown(curve)
        return curves[:N_FOLDS], losses

    def whole(self, trial: optuna.Trial) -> float:
        """Return the score of a trial that grows as a whole."""
        return curve_of(self.play(trial)[0]).value


def simulate(folder: Path, n_studies: int) -> None:
    """Print what races save and lose where TPE suggests."""
    for name in DATA:
        surrogate, found, of_twins = Surrogate(folder, name), [], []
        for seed in range(n_studies):
            alone, player = Player(surrogate), Player(surrogate)
            twin = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
            twin.optimize(alone.whole, n_trials=N_TRIALS)
            study = optuna.create_study(
                sampler=optuna.samplers.TPESampler(seed=seed), pruner=RacingPruner(seed=seed)
            )
            n_trees, winner, n_pruned = races(study, player.play, N_TRIALS)
            best = alone.worth[twin.best_trial.number]
            regret = (player.worth[winner] - best)[:2] / best[2]
            found.append([n_trees / alone.n_grown, n_pruned, *regret])
            of_twins.append(best)
        share, n_pruned, of_folds, withheld = np.array(found).T
        vary = np.std(of_twins, axis=0)[0] / np.median(of_twins, axis=0)[2]
        print(
            f"{name:10} trees with races / without: {share.mean():.2f}; pruned "
            f"{n_pruned.mean() / N_TRIALS:.0%}; regret in standard errors {of_folds.mean():+.2f} "
            f"+- {of_folds.std() / n_studies**0.5:.2f} without noise, {withheld.mean():+.2f} on "
            f"withheld rows; winners of studies without races vary by {vary:.1f}",
            flush=True,
        )


def main(what: str, folder: str, *given: str) -> None:
    """Record, replay or simulate."""
    if what == "record":
        name, seed = [*given, *("magic", "0")[len(given) :]]
        record(Path(folder), name, int(seed))
    elif what == "replay":
        replay(Path(folder))
    else:
        simulate(Path(folder), int(*given) if given else 40)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore")
    main(*sys.argv[1:])
