"""Measure how often the intervals of a cross-validation cover what they should, on Covertype.

    OMP_NUM_THREADS=1 python benchmarks/interval_coverage.py [SAMPLES] [ROWS]

Samples of 10,000 rows are drawn from 431,012; the other 150,000 tell the truth. Two Markdown
tables of coverages of three targets at level 0.95: A, the mean risk of the k fold models; B, the
risk of one model that is trained on all rows; C, the expected risk of such models. Then how often
the interval carries a note that the learner is unstable, with one repeat and with five, and the
median of ``std_over_repeats / std_error``.

The first table is for rows of length 1 and no intercept, the second for columns of variance 1 and
an intercept, by which training is less stable. A third table, for the rows of the second, shows by
how much the best of 32 values looks better than the mean risk of its fold models, in standard
errors, and how often Bayle's interval still covers that; 10 folds, a quarter of the samples.
"""

from __future__ import annotations

from collections import defaultdict
import sys
from typing import Any

from datasets import covertype
import numpy as np
from sklearn.base import clone
from sklearn.preprocessing import normalize

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv.walk import walk_to_leaves

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 400
ROWS = int(float(sys.argv[2])) if len(sys.argv) > 2 else 10_000
TRUTH = 150_000
REPEATED = 40  # samples that are evaluated with five repeats
SGD = {"learning_rate": "invscaling", "power_t": 0.5, "loss": "log_loss", "alpha": 0.0}


def learners(has_intercept: bool) -> dict[str, Any]:
    own = {"fit_intercept": has_intercept}
    return {
        "PEGASOS 5e-4": PegasosClassifier(alpha=5e-4, **own),
        "PEGASOS 1e-6": PegasosClassifier(alpha=1e-6, **own),
        "averaged PEGASOS 3e-4": PegasosClassifier(alpha=3e-4, average=True, **own),
        "logistic SGD 16": AveragedSGDClassifier(average=False, step_size=16.0, **SGD, **own),
        "averaged logistic SGD 58": AveragedSGDClassifier(
            step_size=58.0, average=True, **SGD, **own
        ),
    }


class Truth:
    """The rows that no sample has."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self._X = np.hstack([X, np.ones((len(X), 1))]).astype(np.float32)
        self._y = y.astype(bool)

    def risks(self, models: list[np.ndarray]) -> np.ndarray:
        """Return the error of each model."""
        weights = np.array(models, np.float32)[:, : self._X.shape[1]]
        is_second = self._X @ weights.T > 0
        return np.mean(is_second != self._y[:, None], axis=0)


def models_of(model: Any, X: np.ndarray, y: np.ndarray, k: int, seed: int) -> list[np.ndarray]:
    """Return the models of all folds, and that of all rows last."""
    cross_validation = CrossValidation.of(
        X, y, Settings(**OPTIONS, cv=k, random_state=seed), model
    )
    run = run_for(cross_validation, model)
    learner: Any = run.learner(run.rows())
    found: list[np.ndarray] = []
    plan, state = cross_validation.repeats[0].plan, learner.start()

    def take(_: Any, state: Any) -> None:
        found.append(learner.numbers(state))

    walk_to_leaves(plan, learner, take, plan.root, state)
    state = learner.start()
    learner.update(state, slice(0, len(y)))
    return [*found, learner.numbers(state)]


OPTIONS: dict[str, Any] = {
    "groups": None,
    "stratify": "auto",
    "shuffle": True,
    "order": "fixed",
    "method": "treecv",
    "n_repeats": 1,
    "scoring": None,
    "n_jobs": 1,
}


def measure(X: np.ndarray, y: np.ndarray, has_intercept: bool) -> None:
    """Print a table."""
    truth, X, y = Truth(X[:TRUTH], y[:TRUTH]), X[TRUTH:], y[TRUTH:]
    found: dict[Any, list[Any]] = defaultdict(list)
    repeated: dict[Any, list[Any]] = defaultdict(list)
    for seed in range(SAMPLES):
        rows = np.random.default_rng(seed).choice(len(y), ROWS, replace=False)
        sample = X[rows], y[rows]
        for learner, model in learners(has_intercept).items():
            for k in (10, 100):
                result = tree_cross_validate(model, *sample, cv=k, random_state=seed)
                risks = truth.risks(models_of(model, *sample, k, seed))
                intervals = [result.interval(method) for method in ("bayle", "nadeau_bengio")]
                found[learner, k].append((risks[:-1].mean(), risks[-1], intervals))
                if seed < REPEATED:
                    five = tree_cross_validate(model, *sample, cv=k, n_repeats=5)
                    ratio = five.std_over_repeats / five.std_error
                    repeated[learner, k].append((ratio, bool(five.interval().note)))
    print("| learner | k | sd of B | Bayle A / B / C | h | Nadeau-Bengio A / B / C | h |", end="")
    print(" notes | 5 repeats: notes | ratio |\n|---|---|---|---|---|---|---|---|---|---|")
    for (learner, k), samples in found.items():
        models, single, intervals = zip(*samples, strict=True)
        targets = np.array([models, single, np.full(SAMPLES, np.mean(single))])
        cells = []
        for own in zip(*intervals, strict=True):
            low, high = np.array([(one.low, one.high) for one in own]).T
            covers = np.mean((low <= targets) & (targets <= high), axis=1)
            shares = " / ".join(f"{share:.3f}" for share in covers)
            cells += [shares, f"{np.mean(high - low) / 2:.4f}"]
        notes = np.mean([bool(own[0].note) for own in intervals])
        ratios, has_note = zip(*repeated[learner, k], strict=True)
        print(
            f"| {learner} | {k} | {np.std(single):.4f} | {' | '.join(cells)} | {notes:.0%} | "
            f"{np.mean(has_note):.0%} | {np.median(ratios):.2f} |"
        )


def winners(X: np.ndarray, y: np.ndarray) -> None:
    """Print a table of what the best of 32 values looks like."""
    truth, X, y = Truth(X[:TRUTH], y[:TRUTH]), X[TRUTH:], y[TRUTH:]
    print("| learner | too good by, standard errors | coverage |\n|---|---|---|")
    for learner, model, name, low, high in (
        ("PEGASOS", PegasosClassifier(), "alpha", 1e-7, 10.0),
        ("averaged PEGASOS", PegasosClassifier(average=True), "alpha", 1e-7, 10.0),
        ("logistic SGD", AveragedSGDClassifier(average=False, **SGD), "step_size", 1e-3, 1e3),
        (
            "averaged logistic SGD",
            AveragedSGDClassifier(average=True, **SGD),
            "step_size",
            1e-3,
            1e3,
        ),
    ):
        found = []
        for seed in range(SAMPLES // 4):
            rows = np.random.default_rng(seed).choice(len(y), ROWS, replace=False)
            models = [
                clone(model).set_params(**{name: value}) for value in np.geomspace(low, high, 32)
            ]
            results = tree_cross_validate_many(models, X[rows], y[rows], random_state=seed)
            best = int(np.argmin([one.mean for one in results]))
            risk = truth.risks(models_of(models[best], X[rows], y[rows], 10, seed))[:-1].mean()
            interval, result = results[best].interval(), results[best]
            covers = interval.low <= risk <= interval.high
            found.append(((risk - result.mean) / result.std_error, covers))
        good, covers = np.mean(found, axis=0)
        print(f"| {learner} | {good:.2f} | {covers:.2f} |")


def main() -> None:
    X, y, name = covertype()
    print(f"{name}, {SAMPLES} samples of {ROWS:,} rows\n")
    measure(normalize(X), y, has_intercept=False)
    print()
    measure(X, y, has_intercept=True)
    print()
    winners(X, y)


if __name__ == "__main__":
    main()
