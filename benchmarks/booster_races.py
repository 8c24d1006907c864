"""What races of boosters save and what they lose, by replaying recorded curves.

    OMP_NUM_THREADS=1 python benchmarks/booster_races.py record FOLDER [DATA] [SEED]
    python benchmarks/booster_races.py replay FOLDER [N_TRIALS [N_ORDERS]]
    python benchmarks/booster_races.py simulate FOLDER [N_TRIALS [N_STUDIES]]

``record`` runs a study of 60 trials of LightGBM as ``boosters.py`` does, but grows all folds until
they stop early, and a booster that is trained on all rows and tested on withheld ones (4 to 10
minutes for each data set). ``replay`` asks pruners about these curves, in the order of the study
and in others. It prints the time as a share of that of a study without a pruner, and by how much
the winner is worse than that study's, in standard errors of the mean over folds. Pruners of Optuna
see the mean of all folds after every tenth tree, as an objective around ``lightgbm.cv`` reports
it; ours sees the first fold first.

In a replay the sampler does not see what was pruned. ``simulate`` therefore lets TPE suggest, over
curves that a Gaussian process predicts from the recorded ones, with the deviations of the folds
of a recorded trial nearby.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
import sys
from time import process_time
from typing import Any
import warnings

from boosters import DATA
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
from optuna.trial import FrozenTrial
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.gaussian_process.kernels import RBF
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold

from optuna_treecv import RacingPruner
from optuna_treecv.core.engine import LEAD_STEPS
from optuna_treecv.core.result import Curve
from optuna_treecv.engines.ensembles.growth import BLOCKS
from optuna_treecv.study import growing
from optuna_treecv.study.growing import GrowthComparison

ENDS = [end for end in BLOCKS if end < MOST_TREES] + [MOST_TREES]
N_TRIALS = 60
# A recording ends this many trees after the best score of the mean and of the first fold.
MARGIN = 40

# The scores of the folds of a trial by the number of trees, and the losses of rows of the first
# fold at the ends of blocks.
Play = Callable[[optuna.Trial], tuple[np.ndarray, np.ndarray]]


def record(folder: Path, name: str, seed: int) -> None:
    """Record the curves of a study of TPE in which each trial grows all trees it may need."""
    X, y = rows(name, 40_000)
    n_rows = min(20_000, int(0.8 * len(X)))
    kind = StratifiedKFold if is_classes(y) else KFold
    folds = [
        *kind(N_FOLDS, shuffle=True, random_state=0).split(X[:n_rows], y[:n_rows]),
        (np.arange(n_rows), np.arange(n_rows, len(X))),
    ]
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

    curves, of_rows, seconds = [], [], []

    def objective(trial: optuna.Trial) -> float:
        params = fixed | suggested(trial, "lightgbm")
        boosters = [lightgbm.Booster(params, train) for train, _, _ in sets]
        for booster, (_, test, _) in zip(boosters, sets, strict=True):
            booster.add_valid(test, "test")
        means, lead_rows = np.full((N_FOLDS + 1, MOST_TREES), np.nan), []
        began = process_time()
        for n_trees in range(1, MOST_TREES + 1):
            for fold, booster in enumerate(boosters):
                booster.update()
                losses: list[np.ndarray] = []

                def note(outputs: np.ndarray, _: Any, to: list = losses, fold: int = fold) -> Any:
                    to.append(losses_of(outputs, sets[fold][2]))
                    return "noted", 0.0, True

                booster.eval_valid(note)
                means[fold, n_trees - 1] = losses[0].mean()
                if fold == 0 and n_trees in ENDS:
                    lead_rows.append(losses[0].astype(np.float32))
            mean = means[:N_FOLDS, :n_trees].mean(axis=0)
            has_ended = n_trees - 1 - min(mean.argmin(), means[0, :n_trees].argmin()) > MARGIN
            if has_ended and n_trees in ENDS:
                break
        seconds.append((process_time() - began) / n_trees / len(boosters))
        means[:, n_trees:] = means[:, n_trees - 1 : n_trees]
        of_rows.append(np.array(lead_rows + lead_rows[-1:] * (len(ENDS) - len(lead_rows))))
        curves.append(means)
        return float(np.min(means[:N_FOLDS].mean(axis=0)))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=N_TRIALS)
    places = [_place(trial) for trial in study.trials]
    file = folder / f"{name}_{seed}.npz"
    np.savez(file, curves=curves, rows=of_rows, seconds=seconds, places=places)


def curve_of(scores: np.ndarray, end: int = MOST_TREES) -> Curve:
    """Return the mean curve of some folds."""
    return Curve.of(scores[:, :end], np.arange(1, end + 1), 1.0, PATIENCE)


def grown(curve: Curve) -> int:
    """Return how many trees grow for a curve, which ends within a block."""
    return next(end for end in ENDS if end >= len(curve.mean))


def all_folds_at_once(study: optuna.Study, play: Play, n_trials: int) -> tuple[int, np.ndarray]:
    """Report the mean of all folds every tenth tree; return the winner and the trees per trial."""
    n_trees = np.zeros(n_trials)
    for number in range(n_trials):
        trial, is_pruned = study.ask(), False
        curve = curve_of(play(trial)[0])
        for end in range(1, len(curve.mean) + 1):
            if end % 10 == 0:
                trial.report(curve.mean[end - 1], end - 1)
                is_pruned = trial.should_prune()
                if is_pruned:
                    break
        n_trees[number] = N_FOLDS * end
        state = optuna.trial.TrialState.PRUNED if is_pruned else None
        study.tell(trial, None if is_pruned else curve.value, state=state)
    return study.best_trial.number, n_trees


def one_fold_first(study: optuna.Study, play: Play, n_trials: int) -> tuple[int, np.ndarray]:
    """Race as the package does; return the winner and the trees per trial."""
    assert isinstance(study.pruner, RacingPruner)
    n_trees, rows_of_best = np.zeros(n_trials), None
    for number in range(n_trials):
        trial, of_folds, variance = study.ask(), np.zeros(N_FOLDS, int), inf
        scores, losses = play(trial)

        def is_pruned(
            *at: int, value: float, variance: float = inf, trial: optuna.Trial = trial
        ) -> bool:
            step, n_left, n_grown = at
            growth = GrowthComparison(tuple(ENDS), n_left, n_grown, N_FOLDS, variance)
            study.pruner.tell(trial, step, growth)
            trial.report(value, step)
            return n_grown < N_FOLDS and trial.should_prune()

        is_beaten = False
        for step, end in enumerate(ENDS):
            curve = curve_of(scores[:1], end)
            n_left = 0 if curve.has_ended(PATIENCE) else MOST_TREES - end
            of_folds[0] = end
            if n_left == 0 and rows_of_best is not None:
                differences = losses[step].astype(float) - rows_of_best
                variance = differences.var(ddof=1) / len(differences)
            is_beaten = is_pruned(step, n_left, 1, value=curve.value, variance=variance)
            if is_beaten or n_left == 0:
                break
        for n_folds in () if is_beaten else range(2, N_FOLDS + 1):
            curve = curve_of(scores[:n_folds])
            of_folds[:n_folds] = np.maximum(of_folds[:n_folds], grown(curve))
            at = LEAD_STEPS + n_folds - 2, 0, n_folds
            is_beaten = is_pruned(*at, value=curve.value, variance=variance)
            if is_beaten:
                break
        n_trees[number] = of_folds.sum()
        state = optuna.trial.TrialState.PRUNED if is_beaten else None
        study.tell(trial, None if is_beaten else curve.value, state=state)
        if not is_beaten and study.best_trial.number == number:
            rows_of_best = losses[step].astype(float)
    return study.best_trial.number, n_trees


Rule = Callable[[optuna.Study, Play, int], tuple[int, np.ndarray]]

# By the name of a rule, how folds grow, the pruner, and the margin of our rule.
RULES: dict[str, tuple[Rule, Callable[[], optuna.pruners.BasePruner], float]] = {
    "no pruner": (all_folds_at_once, optuna.pruners.NopPruner, 0.0),
    "MedianPruner": (all_folds_at_once, optuna.pruners.MedianPruner, 0.0),
    "PercentilePruner(25)": (all_folds_at_once, partial(optuna.pruners.PercentilePruner, 25.0), 0),
    "HyperbandPruner": (all_folds_at_once, optuna.pruners.HyperbandPruner, 0.0),
} | {f"RacingPruner, {x} sd": (one_fold_first, RacingPruner, x) for x in (0.1, 0.2, 0.5, 1.0, 2.0)}


def summarize(rule: str, of_studies: list[list[float]]) -> None:
    """Print the means over studies, and standard errors of the regrets."""
    share, of_folds, withheld = np.array(of_studies).T
    errors = [x.std(ddof=1) / len(x) ** 0.5 for x in (of_folds, withheld)]
    print(
        f"{rule:22} time {share.mean():.3f}  regret {of_folds.mean():.3f} +- {errors[0]:.3f} in "
        f"the folds, {withheld.mean():+.3f} +- {errors[1]:.3f} on withheld rows",
        flush=True,
    )


def correlations(folder: Path) -> None:
    """Print how well losses of the first fold rank the trials by the mean of all folds."""
    for file in sorted(folder.glob("*.npz")):
        curves = np.load(file)["curves"]
        finals = [curve_of(x[:N_FOLDS]).value for x in curves]
        of_first = np.minimum.accumulate(curves[:, 0], axis=1)
        found = [f"{spearmanr(of_first[:, n - 1], finals)[0]:.2f}" for n in (16, 64, MOST_TREES)]
        print(f"{file.stem}: rank correlation after 16, 64 and all trees {', '.join(found)}")


def replay(folder: Path, n_trials: int, n_orders: int) -> None:
    """Print, for each rule, the time and the regret of studies with recorded candidates."""
    correlations(folder)
    found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for file in sorted(folder.glob("*.npz")):
        recorded = np.load(file)
        for seed in range(n_orders):
            order = np.arange(len(recorded["curves"]))
            if seed:
                order = np.random.default_rng(seed).permutation(order)
            order = order[:n_trials]
            curves, of_rows, seconds = (recorded[x][order] for x in ("curves", "rows", "seconds"))
            means = [curve_of(x[:N_FOLDS]) for x in curves]
            best = int(np.argmin([x.value for x in means]))
            error = means[best].std_error[means[best].best - 1]
            whole = N_FOLDS * sum(len(x.mean) * s for x, s in zip(means, seconds, strict=True))

            def play(trial: optuna.Trial, curves: Any = curves, rows: Any = of_rows) -> Any:
                return curves[trial.number, :N_FOLDS], rows[trial.number]

            for rule, (run, pruner, growing._MARGIN) in RULES.items():
                study = optuna.create_study(pruner=pruner())
                winner, n_trees = run(study, play, len(order))
                withheld = [curves[at, N_FOLDS, means[at].best - 1] for at in (winner, best)]
                regrets = means[winner].value - means[best].value, withheld[0] - withheld[1]
                found[rule].append([n_trees @ seconds / whole, *(x / error for x in regrets)])
    for rule, of_studies in found.items():
        summarize(rule, of_studies)


class Surrogate:
    """The curves of any parameters, from recorded ones."""

    def __init__(self, folder: Path, name: str) -> None:
        recorded = [np.load(file) for file in sorted(folder.glob(f"{name}_*.npz"))]
        parts = "places", "rows", "seconds", "curves"
        self._at, self._rows, self._seconds, curves = (
            np.concatenate([of_study[part] for of_study in recorded]) for part in parts
        )
        logs = np.log(curves)
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

    def curves(self, trial: optuna.Trial) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Return the curves of a trial, those without noise, the losses of rows, and seconds."""
        suggested(trial, "lightgbm")
        at = _place(trial)
        smooth = self._smooth(at)
        near = np.argsort(np.square(self._at - at).sum(axis=1))[:12]
        rng = np.random.default_rng(np.round(at * 1e9).astype(np.int64))
        first, second = rng.choice(near, 2, replace=False)
        curves = np.exp(smooth + self._apart[first])
        losses = self._rows[[first, second]].mean(axis=0)
        ends = curves[0, np.array(ENDS) - 1]
        losses += (ends - losses.mean(axis=1))[:, np.newaxis].astype(losses.dtype)
        seconds = float(self._seconds[near].mean())
        return curves, np.exp(smooth + self._of_folds), losses, seconds


def _place(trial: optuna.Trial | FrozenTrial) -> np.ndarray:
    """Return the parameters of a trial between 0 and 1."""
    found = []
    for name, value in trial.params.items():
        axis: Any = SPACES["lightgbm"][name]
        scale = np.log if axis.log else float
        low, high = scale(axis.low), scale(axis.high)
        found.append((scale(value) - low) / (high - low))
    return np.array(found)


def simulate(folder: Path, n_trials: int, n_studies: int) -> None:
    """Print, for each rule, the time and the regret of studies in which TPE suggests."""
    found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for name in DATA:
        surrogate = Surrogate(folder, name)
        for seed in range(n_studies):
            worth: dict[str, np.ndarray] = {}
            for rule, (run, pruner, growing._MARGIN) in RULES.items():
                # For each trial: its loss in the folds without noise, its loss on withheld rows,
                # its standard error and the seconds for a tree.
                trials: list[list[float]] = []

                def play(
                    trial: optuna.Trial, trials: Any = trials, surrogate: Surrogate = surrogate
                ) -> Any:
                    curves, smooth, losses, seconds = surrogate.curves(trial)
                    curve = curve_of(curves[:N_FOLDS])
                    at = curve.best - 1
                    of_folds = smooth[:N_FOLDS].mean(axis=0)[at]
                    trials.append([of_folds, smooth[N_FOLDS][at], curve.std_error[at], seconds])
                    return curves[:N_FOLDS], losses

                sampler = optuna.samplers.TPESampler(seed=seed)
                study = optuna.create_study(sampler=sampler, pruner=pruner())
                winner, n_trees = run(study, play, n_trials)
                total = n_trees @ np.array(trials)[:, 3]
                worth[rule] = np.array([total, *trials[winner][:3]])
            whole = worth["no pruner"]
            for rule, of_rule in worth.items():
                regrets = (of_rule[1:3] - whole[1:3]) / whole[3]
                found[rule].append([of_rule[0] / whole[0], *regrets])
    for rule, of_studies in found.items():
        summarize(rule, of_studies)


def main(what: str, folder: str, *given: str) -> None:
    """Record, replay or simulate."""
    if what == "record":
        name, seed = [*given, *("magic", "0")[len(given) :]]
        record(Path(folder), name, int(seed))
    else:
        n_trials, n_studies = [*map(int, given), *(20, 10)[len(given) :]]
        (replay if what == "replay" else simulate)(Path(folder), n_trials, n_studies)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    main(*sys.argv[1:])
