"""Measure what pruners save with early reports, what they cost, and how early losses rank trials.

    OMP_NUM_THREADS=1 python benchmarks/pruning.py [ORDERS [NAME]]

Seven real data sets, with four learners and 64 values of one parameter each, are evaluated by
leave-one-out (Covertype by 100 folds), and w8a besides. The values come in random orders. Every
pruner is called as in a study, with the reports of real evaluations and the comparisons that the
objective makes, so that one evaluation of each value serves all orders and pruners. The work of a
trial is counted in passes over the rows. Regret is the score of the best completed trial minus the
best score of all, in standard errors sqrt(p (1 - p) / n) of the latter.

With a NAME, only pruners with this in their name are measured. The output is two Markdown tables.
An order takes a minute for all cases and pruners but WilcoxonPruner, for which SciPy's tests take
20 minutes. Files are read from $OPTUNA_TREECV_DATA and Covertype by scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from math import ceil
from math import sqrt
import sys
from typing import Any
from typing import NamedTuple
import warnings

from datasets import file_of
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from scipy.stats import spearmanr
from sklearn.datasets import fetch_covtype
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import RacingPruner
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.row_scores import LAST_STEP
from optuna_treecv.core.row_scores import NESTED_STEP
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv.engine import compute_row_scores
from optuna_treecv.engines.treecv.engine import EarlyLanes
from optuna_treecv.study.race import Incumbent
from optuna_treecv.study.race import Race
from optuna_treecv.study.race import RaceLosses

ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
NAME = sys.argv[2] if len(sys.argv) > 2 else ""
N_VALUES = 64

SGD = {"learning_rate": "invscaling", "power_t": 0.5, "loss": "log_loss", "alpha": 0.0}
LEARNERS = {
    "PEGASOS": (PegasosClassifier(), "alpha", 1e-7, 10.0),
    "averaged PEGASOS": (PegasosClassifier(average=True), "alpha", 1e-7, 10.0),
    "SGD": (AveragedSGDClassifier(average=False, **SGD), "step_size", 1e-3, 1e3),
    "averaged SGD": (AveragedSGDClassifier(average=True, **SGD), "step_size", 1e-3, 1e3),
}
WILCOXON = "WilcoxonPruner(p_threshold=0.01, n_startup_steps=8)"
PRUNERS: dict[str, tuple[str, Callable[[], optuna.pruners.BasePruner], bool]] = {
    # name: (report, pruner, whether the level of 16 folds is reported)
    "RacingPruner(futility=None), first pass alone": (
        "progressive",
        lambda: RacingPruner(futility=None),
        False,
    ),
    "RacingPruner(delta=0.2, futility=None), first pass alone": (
        "progressive",
        lambda: RacingPruner(delta=0.2, futility=None),
        False,
    ),
    "RacingPruner(futility=None)": ("progressive", lambda: RacingPruner(futility=None), True),
    "RacingPruner(), first pass alone": ("progressive", RacingPruner, False),
    "RacingPruner()": ("progressive", RacingPruner, True),
    WILCOXON: (
        "blocks",
        lambda: optuna.pruners.WilcoxonPruner(p_threshold=0.01, n_startup_steps=8),
        True,
    ),
    "MedianPruner()": ("progressive", optuna.pruners.MedianPruner, True),
    "PercentilePruner(25)": ("progressive", lambda: optuna.pruners.PercentilePruner(25.0), True),
    "SuccessiveHalvingPruner()": ("progressive", optuna.pruners.SuccessiveHalvingPruner, True),
    "HyperbandPruner()": ("progressive", optuna.pruners.HyperbandPruner, True),
}


if NAME:
    PRUNERS = {name: found for name, found in PRUNERS.items() if NAME in name}
else:
    del PRUNERS[WILCOXON]


class Trial(NamedTuple):
    """What one value gives."""

    score: float
    progressive: RowScores
    nested: RowScores | None
    steps: dict[int, int]  # by the number of rows
    passes: float

    def reports(self, report: str, with_nested: bool) -> Iterator[tuple[int, float, Any]]:
        """Yield (step, value, what is compared)."""
        before = 0
        for n_rows, step in self.steps.items():
            scores, block = self.progressive.first(n_rows), slice(before, n_rows)
            before = n_rows
            if step > 1:
                yield step, scores.mean(scores.tail if report == "progressive" else block), scores
        if self.nested is not None and with_nested:
            yield NESTED_STEP, self.nested.mean(slice(0, self.nested.n_rows)), self.nested


def data_sets() -> Iterator[tuple[str, Any, np.ndarray, Any]]:
    """Yield (name, X, y, cv), with two classes."""
    for name in ("higgs_7k5", "weather_noaa", "magic", "letter", "elec2"):
        with np.load(file_of(f"{name}.npz")) as file:
            X, y = file["X"].astype(np.float64), file["y"]
        yield name, scale(X), (y < 13 if name == "letter" else y > 0).astype(int), "loo"
    for name, width in (("a9a", 123), ("w8a", 300)):
        X, y = load_svmlight_file(str(file_of(f"{name}.svm.bz2")), n_features=width)
        yield name, scale(X.toarray()), (y > 0).astype(int), "loo"
    X, y = fetch_covtype(return_X_y=True, download_if_missing=False)
    yield "Covertype", scale(X), (y == 2).astype(int), 100


def evaluated(
    estimator: Any, name: str, values: np.ndarray, X: Any, y: Any, cv: Any
) -> list[Trial]:
    """Evaluate all values in batches of 16."""
    settings = Settings(cv=cv, stratify=False, scoring="error", report="progressive")
    cross_validation = CrossValidation.of(X, y, settings)
    found = []
    for begin in range(0, len(values), 16):
        runs = [
            run_for(cross_validation, type(estimator)(**{**estimator.get_params(), name: value}))
            for value in values[begin : begin + 16]
        ]
        (repeat,) = cross_validation.repeats
        plan, metric = repeat.plan, runs[0].request.scoring.first
        learners = [run.plan.bind(run.estimator, repeat).learner for run in runs]
        lanes = EarlyLanes(plan, learners, metric, 1, None)
        outputs, _ = lanes.evaluate()
        for learner, known, out in zip(learners, lanes.lanes, outputs, strict=True):
            rows = slice(0, plan.n_rows)
            losses, _ = compute_row_scores(learner, metric, learner.settings, out.array, rows)
            passes, ends = known.n_updates / plan.n_rows, spine_steps(plan)
            score = float(losses.mean())
            found.append(Trial(score, known.progressive, known.nested, ends, passes))
    return found


class _Told:
    """Stands for a trial where a comparison asks for its pruner."""

    def __init__(self, study: optuna.Study, number: int) -> None:
        self.study, self.number = study, number


def simulated(
    trials: list[Trial], order: np.ndarray, report: str, pruner: Any, with_nested: bool
) -> tuple[float, float]:
    """Run a study over given evaluations; return its work in passes, and its best score."""
    study = optuna.create_study(pruner=pruner)
    best: tuple[float, int] | None = None
    held: Incumbent | None = None
    is_race = isinstance(pruner, RacingPruner)
    work = 0.0
    for i in order:
        one, trial = trials[i], study.ask({"x": FloatDistribution(0, 1)})
        race = None
        if is_race:
            race = Race(_Told(study, trial.number), pruner, LOSSES, held)
        done = one.passes
        for step, value, scores in one.reports(report, with_nested):
            if race is not None:
                rows = scores.tail if step <= LAST_STEP else slice(0, scores.n_rows)
                race.before_report(step, scores, rows)
            trial.report(value, step)
            if trial.should_prune():
                done = step / 16
                break
        work += done
        if done < one.passes:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        trial.report(one.score, ceil(16 * one.passes))
        study.tell(trial, one.score)
        if best is None or one.score < best[0]:
            best = one.score, i
            nested = None if one.nested is None else LOSSES.of(one.nested.values)
            held = Incumbent(trial.number, one.score, LOSSES.of(one.progressive.values), nested)
    assert best is not None
    return work, best[0]


def main() -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    saved: dict[str, dict[str, list[float]]] = {name: {} for name in PRUNERS}
    regrets: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in PRUNERS}
    ranks: dict[str, dict[str, float]] = {name: {} for name in LEARNERS}
    for data, X, y, cv in data_sets():
        rng = np.random.default_rng(0)
        group = "fresh" if data in ("w8a", "Covertype") else "six sets"
        for learner, (estimator, name, low, high) in LEARNERS.items():
            values = np.geomspace(low, high, N_VALUES)
            trials = evaluated(estimator, name, values, X, y, cv)
            scores = np.array([trial.score for trial in trials])
            tails = [trial.progressive.mean(trial.progressive.tail) for trial in trials]
            ranks[learner][data] = spearmanr(tails, scores).statistic
            p = scores.min()
            error = sqrt(max(p * (1 - p), 1e-12) / len(y))
            full = sum(trial.passes for trial in trials)
            orders = [rng.permutation(N_VALUES) for _ in range(ORDERS)]
            for pruner, (report, make, with_nested) in PRUNERS.items():
                found = [simulated(trials, order, report, make(), with_nested) for order in orders]
                work = np.mean([one[0] for one in found])
                saved[pruner].setdefault(group, []).append(full / work)
                lost = (np.array([one[1] for one in found]) - p) / error
                regrets[pruner].setdefault(group, []).append(lost)
            passes = full / N_VALUES
            print(f"# {data}, {learner}: best {p:.4f}, {passes:.1f} passes", file=sys.stderr)
    print("| pruner | cases | work saved, geometric mean (min to max) |", end="")
    print(" regret in SE: mean | worst case's mean | worst case's 95th percentile |")
    print("|---|---|---|---|---|---|")
    for pruner in PRUNERS:
        for group in saved[pruner]:
            times, lost = np.array(saved[pruner][group]), regrets[pruner][group]
            means = [one.mean() for one in lost]
            print(
                f"| {pruner} | {group}, {len(times)} | {np.exp(np.log(times).mean()):.1f} "
                f"({times.min():.1f} to {times.max():.1f}) | {np.mean(means):.2f} | "
                f"{np.max(means):.2f} | {max(np.quantile(one, 0.95) for one in lost):.1f} |"
            )
    print("\n| learner | Spearman of the tail after one pass with the score: median | worst |")
    print("|---|---|---|")
    for learner, found in ranks.items():
        of_seven = [rank for data, rank in found.items() if data != "w8a"]
        print(f"| {learner} | {np.median(of_seven):.3f} | {min(of_seven):.3f} |")


LOSSES: RaceLosses

if __name__ == "__main__":
    from optuna_treecv.scoring.metrics import make_scoring

    LOSSES = RaceLosses(make_scoring("error").first, None)
    main()
