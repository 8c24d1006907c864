"""Compare orders of new rows and replays with trainings of several epochs.

    OMP_NUM_THREADS=1 python benchmarks/epoch_schemes.py [ROWS] [SEEDS]

A phase of m new rows makes c m updates. The schemes differ in which rows these are:

- "mixed": each new row, followed by c - 1 uniform draws from all rows seen, with replacement;
- "mixed, cycled": the same, but the draws go through permutations of the rows seen;
- "mixed, strided": the same, but each pass over the rows seen goes from any row to the one a
  fixed number of rows further on, around the end, a number without a common divisor;
- "mixed, shuffled": the same, and each pass is shuffled;
- "mixed, runs": the same, with runs of 8 neighbours in the places of single rows;
- "uniform": c m uniform draws from all rows seen, with replacement;
- "cycled": c m rows of permutations of all rows seen, one after the other;
- "new only": c passes over the new rows.

The reference is the standard method: k trainings of c shuffled epochs. Samples of at most ROWS
rows (20,000), 10 folds, SEEDS permutations of the rows (4). A cell has, in points (0.01 of error):
the mean over values of alpha of the difference of errors; the mean of the absolute differences of
single runs; and the mean regret, the difference between the standard method's error at the alpha
that a run prefers and its best error. The line "seeds" compares the standard method with itself,
with other shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
import sys
from typing import Any

from datasets import a9a
from datasets import letter
from datasets import magic
from datasets import w8a
import numpy as np
from sklearn.base import clone
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Partition

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
SEEDS = int(sys.argv[2]) if len(sys.argv) > 2 else 4
FOLDS, EPOCHS, ALPHAS = 10, (5, 20), (1e-6, 1e-4, 1e-3, 1e-2)

#: (generator, new rows, all rows seen, epochs) -> rows to train on.
Scheme = Callable[[np.random.Generator, np.ndarray, np.ndarray, int], np.ndarray]


def mixed(rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int) -> np.ndarray:
    return np.column_stack([new, rng.choice(seen, (len(new), c - 1))]).ravel()


def mixed_cycled(
    rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int
) -> np.ndarray:
    replays = cycled(rng, new, seen, c)[: len(new) * (c - 1)].reshape(len(new), c - 1)
    return np.column_stack([new, replays]).ravel()


def mixed_strided(
    rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int
) -> np.ndarray:
    n_replays, found = len(new) * (c - 1), []
    for _ in range(-(-n_replays // len(seen))):
        step = len(seen) // 4 + int(rng.integers(len(seen) // 2 + 1))
        while gcd(step, len(seen)) > 1:
            step += 1
        n_here = min(len(seen), n_replays - sum(map(len, found)))
        places = int(rng.integers(len(seen))) + step * np.arange(n_here)
        found.append(seen[places % len(seen)])
    return np.column_stack([new, np.concatenate(found).reshape(len(new), c - 1)]).ravel()


def mixed_shuffled(
    rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int
) -> np.ndarray:
    rows = mixed_strided(rng, new, seen, c).reshape(len(new), c)
    replays = rows[:, 1:].ravel()
    for begin in range(0, len(replays), len(seen)):
        rng.shuffle(replays[begin : begin + len(seen)])
    return np.column_stack([new, replays.reshape(len(new), c - 1)]).ravel()


def mixed_runs(rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int) -> np.ndarray:
    n_replays, n_runs = len(new) * (c - 1), len(seen) // 8
    passes = []
    for _ in range(-(-n_replays // (8 * n_runs))):
        begins = rng.integers(len(seen)) + 8 * rng.permutation(n_runs)
        passes.append(seen[(begins[:, np.newaxis] + np.arange(8)).ravel() % len(seen)])
    replays = np.concatenate(passes)[:n_replays].reshape(len(new), c - 1)
    return np.column_stack([new, replays]).ravel()


def uniform(rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int) -> np.ndarray:
    return rng.choice(seen, c * len(new))


def cycled(rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int) -> np.ndarray:
    n_passes = -(-c * len(new) // len(seen))
    passes = [rng.permutation(seen) for _ in range(n_passes)]
    return np.concatenate(passes)[: c * len(new)]


def new_only(rng: np.random.Generator, new: np.ndarray, seen: np.ndarray, c: int) -> np.ndarray:
    return np.concatenate([rng.permutation(new) for _ in range(c)])


SCHEMES: dict[str, Scheme] = {
    "mixed": mixed,
    "mixed, cycled": mixed_cycled,
    "mixed, strided": mixed_strided,
    "mixed, shuffled": mixed_shuffled,
    "mixed, runs": mixed_runs,
    "uniform": uniform,
    "cycled": cycled,
    "new only": new_only,
}

LEARNERS: dict[str, Any] = {
    "PEGASOS, last": PegasosClassifier(),
    "PEGASOS, averaged": PegasosClassifier(average=True),
    "averaged SGD": AveragedSGDClassifier(loss="log_loss", average=True),
    "SVRG": StreamingSVRGClassifier(),
}


def wrong(learner: CompiledLearner, state: Any, rows: tuple[int, int]) -> int:
    """Return the number of errors of a model on its fold."""
    out = np.empty((len(learner.rows.order), learner.n_outputs))
    learner.outputs(state, *rows, out)
    said = learner.respond(out[slice(*rows)], "predict")
    return int(np.count_nonzero(said != learner.rows.y[slice(*rows)]))


def by_tree(learner: CompiledLearner, plan: Partition, scheme: Scheme, c: int, seed: int) -> float:
    """Return the error of TreeCV with an order of rows."""
    rng = np.random.default_rng(seed)

    def walk(node: Any, state: Any) -> int:
        if node.n_folds == 1:
            return wrong(learner, state, plan.rows(node))
        n_wrong = 0
        for child in plan.split(node):
            phase = plan.phase(node, child)
            start, stop = plan.rows(child)
            seen = np.r_[:start, stop : plan.n_rows].astype(np.uint32)
            new = np.arange(phase.start, phase.stop, dtype=np.uint32)
            own = learner.snapshot(state)
            learner.update(own, scheme(rng, new, seen, c).astype(np.uint32))
            n_wrong += walk(child, own)
        return n_wrong

    return walk(plan.root, learner.start()) / plan.n_rows


def standard(learner: CompiledLearner, plan: Partition, c: int, seed: int) -> float:
    """Return the error of k trainings of c shuffled epochs."""
    rng = np.random.default_rng(seed)
    n_wrong = 0
    for start, stop in (plan.rows(plan.root._replace(first=i, last=i + 1)) for i in range(FOLDS)):
        rows = np.r_[:start, stop : plan.n_rows].astype(np.uint32)
        state = learner.start()
        for _ in range(c):
            learner.update(state, rng.permutation(rows))
        n_wrong += wrong(learner, state, (start, stop))
    return n_wrong / plan.n_rows


def errors(X: np.ndarray, y: np.ndarray, model: Any, c: int, seed: int) -> dict[str, np.ndarray]:
    """Return the errors for all values of alpha: by the standard method, twice, and by schemes."""
    plan = Partition(len(y), FOLDS)
    order = np.random.default_rng(seed).permutation(len(y)).astype(np.uint32)
    rows = Data(X, y).prepare(model.row_layout, order)
    learners = [clone(model).set_params(alpha=alpha).make_learner(rows, 0) for alpha in ALPHAS]
    found = {
        "standard": np.array([standard(one, plan, c, 1) for one in learners]),
        "seeds": np.array([standard(one, plan, c, 2) for one in learners]),
    }
    for name, scheme in SCHEMES.items():
        found[name] = np.array([by_tree(one, plan, scheme, c, 3) for one in learners])
    return found


def compare(found: list[np.ndarray], references: list[np.ndarray]) -> str:
    """Return mean difference, mean absolute difference and mean regret, in points."""
    pairs = list(zip(found, references, strict=True))
    differences = 100 * np.array([one - reference for one, reference in pairs])
    regrets = [100 * (reference[np.argmin(one)] - reference.min()) for one, reference in pairs]
    return f"{differences.mean():+.2f}, {np.abs(differences).mean():.2f}, {np.mean(regrets):.2f}"


def tables() -> None:
    """Print a row per data set, learner and scheme."""
    cells = " | ".join(f"c = {c}" for c in EPOCHS)
    print(f"| data, learner | order | {cells} |\n|---|---|{'---|' * len(EPOCHS)}")
    for read in (magic, a9a, w8a, letter):
        X, y, data = read()
        X = X.toarray() if hasattr(X, "toarray") else X
        X, y = scale(X[:ROWS]), y[:ROWS]
        for name, model in LEARNERS.items():
            lines: dict[str, list[str]] = {}
            for c in EPOCHS:
                runs = [errors(X, y, model, c, seed) for seed in range(SEEDS)]
                references = [run["standard"] for run in runs]
                best = 100 * np.mean([one.min() for one in references])
                lines.setdefault("best error", []).append(f"{best:.2f}")
                for line in list(runs[0])[1:]:
                    cell = compare([run[line] for run in runs], references)
                    lines.setdefault(line, []).append(cell)
            for line, cells_of in lines.items():
                print(f"| {data}, {name} | {line} | {' | '.join(cells_of)} |", flush=True)


if __name__ == "__main__":
    tables()
