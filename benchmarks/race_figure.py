"""Draw the README's picture of a race: the losses of trials along their first pass, on Covertype.

    OMP_NUM_THREADS=1 python benchmarks/race_figure.py [FIGURE]

40 trials of averaged SGD, with leave-one-out, and reports in the first pass over the rows. The
figure says how many trials were completed, and what the study and the same trials without a pruner
took. The extra ``docs`` installs matplotlib.
"""

from __future__ import annotations

import sys
from time import perf_counter

import datasets
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective

FIGURE = sys.argv[1] if len(sys.argv) > 1 else "docs/figures/races.svg"
SPACE = {
    "alpha": FloatDistribution(1e-8, 1e-1, log=True),
    "step_size": FloatDistribution(1e-4, 1e1, log=True),
}


def run(is_pruned: bool) -> tuple[optuna.Study, float, int]:
    """Return the study, its seconds, and the rows of a pass."""
    X, y, _ = datasets.covertype()
    objective = treecv_objective(
        AveragedSGDClassifier(),
        X,
        y,
        param_distributions=SPACE,
        cv="loo",
        report="progressive" if is_pruned else None,
    )
    pruner = objective.pruner() if is_pruned else optuna.pruners.NopPruner()
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    began = perf_counter()
    study.optimize(objective, n_trials=40)
    return study, perf_counter() - began, len(y)


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, seconds, _ = run(is_pruned=True)
    _, without, _ = run(is_pruned=False)
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    n_complete = 0
    for trial in study.trials:
        steps = sorted(trial.intermediate_values)
        steps = [step for step in steps if step <= 16]
        losses = [trial.intermediate_values[step] for step in steps]
        is_complete = trial.state == TrialState.COMPLETE
        n_complete += is_complete
        colour, order = ("#0072B2", 3) if is_complete else ("#8C8C8C", 2)
        axes.plot([step / 16 for step in steps], losses, color=colour, zorder=order, lw=1)
        if not is_complete:
            axes.plot(steps[-1] / 16, losses[-1], "x", color="#D55E00", zorder=4, ms=5)
    axes.set(
        xlabel="share of the first pass over 581,012 rows",
        ylabel="error so far",
        xlim=(0, 1.02),
        title=f"{n_complete} of 40 trials completed (blue), the others stopped (x): "
        f"{seconds:.1f} s instead of {without:.1f} s",
    )
    axes.title.set_fontsize(10)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"{n_complete} completed, {seconds:.1f} s, without a pruner {without:.1f} s")


if __name__ == "__main__":
    main()
