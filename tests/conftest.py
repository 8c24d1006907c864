"""Small data."""

from __future__ import annotations

from collections.abc import Callable
import datetime

import numpy as np
import optuna
from optuna_treecv._kernels.order import derive_seed
import pytest

from optuna_treecv._kernels import reference
from optuna_treecv.folds import make_folds


def data_of(n: int, d: int, n_classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in noisy classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    scores = X @ rng.normal(size=(d, n_classes)) + rng.normal(size=(n, n_classes))
    return X, scores.argmax(axis=1)


@pytest.fixture
def make_data() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    return data_of


@pytest.fixture
def binary() -> tuple[np.ndarray, np.ndarray]:
    return data_of(83, 5)


@pytest.fixture
def three_classes() -> tuple[np.ndarray, np.ndarray]:
    return data_of(61, 4, n_classes=3)


@pytest.fixture
def regression() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(79, 6))
    y = X @ rng.normal(size=6) * 0.2 + 0.1 * rng.normal(size=79)
    return X, y


def paths_of(n_rows, n_folds, order="fixed", shuffle=True, random_state=0):
    """Rows as given: what each fold holds out, and the phases that its model is trained in, by
    Algorithm 1 as the paper writes it.
    """
    seed = derive_seed(random_state, 0)
    prepared = make_folds(n_folds, np.empty((n_rows, 1)), None, None, shuffle, seed, n_rows).order
    cuts = [i * n_rows // n_folds for i in range(n_folds + 1)]
    chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    paths = {}

    def train(path, rows, n_seen):
        if order == "random" and len(rows) > 1:
            rows = reference.random_order(seed, rows[0], rows[-1] + 1, n_seen)
        return [*path, prepared[list(rows)]]

    reference.treecv(chunks, train, lambda path, fold: paths.update({fold: path}), [])
    return [(prepared[list(chunks[fold])], paths[fold]) for fold in range(n_folds)]


@pytest.fixture
def training_paths():
    return paths_of


class FilledStudy:
    """A study and what a store would hold of it, in frames with the columns of ``history``."""

    def __init__(self, storage=None, direction="minimize", **common):
        self.study = optuna.create_study(storage=storage, direction=direction, study_name="iris")
        self.evaluations, self.fold_scores = [], []
        self.common = {
            "key": "k" * 64,
            "fingerprint": "0123456789abcdef" * 4,
            "learner": "PegasosClassifier",
            "cv": "10",
            "n_repeats": 1,
            "n_rows": 1234,
            "n_features": 5,
            "order": "fixed",
            "method": "treecv",
            "scoring": "error",
            "direction": direction,
            "random_state": "0",
            "n_updates": 4000,
            "n_updates_saved": 0,
            "n_updates_standard": 9000,
            "seconds": 0.5,
            "seconds_prepare": 0.1,
            "versions": {},
        } | common

    def add(self, scores, params=(), distributions=(), state="complete", stored=True, **fields):
        """A finished trial with these fold scores."""
        number = len(self.study.get_trials(deepcopy=False))
        run = f"{number:032x}"
        scores = np.asarray(scores, float)
        with np.errstate(invalid="ignore"):
            mean, std = scores.mean(), scores.std()
        self.study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState[state.upper()],
                value=mean if state == "complete" else None,
                params=dict(params),
                distributions=dict(distributions),
                user_attrs={"treecv_run": run} if stored else {},
            )
        )
        if not stored:
            return
        where = {"run": run, "study_name": "iris", "trial_number": number}
        fields = self.common | fields
        fields.setdefault("n_folds", len(scores) // fields["n_repeats"])
        self.evaluations.append(
            where
            | {
                "state": state,
                "mean": mean,
                "std": std if np.isfinite(std) else None,
                "folds_scored": len(scores),
                "diverged_folds": int((~np.isfinite(scores)).sum()),
                "created_at": datetime.datetime(2026, 1, 1, 0, 0, number % 60),
            }
            | fields
        )
        self.fold_scores += [
            where | {"repeat": i // fields["n_folds"], "fold": i % fields["n_folds"], "score": s}
            for i, s in enumerate(scores)
        ]


@pytest.fixture
def fill(monkeypatch):
    """Make a FilledStudy whose frames ``history`` hands out."""
    report = pytest.importorskip("optuna_treecv.report")
    pandas = pytest.importorskip("pandas")

    def frame(rows, columns):
        made = pandas.DataFrame(rows if rows else None, columns=None if rows else columns)
        return made.sample(frac=1, random_state=0)  # no order is promised

    def fill(*args, **kwargs):
        filled = FilledStudy(*args, **kwargs)
        first = ["run", "trial_number", "mean", "std", "n_folds", "folds_scored", "state"]
        columns = [*first, *filled.common]

        def load_evaluations(store, *, study_name=None, study=None):
            assert (store, study) == ("the store", filled.study)
            return frame(filled.evaluations, columns)

        def load_fold_scores(store, *, study_name=None, study=None):
            assert (store, study.study_name) == ("the store", "iris")
            trials = study.get_trials(deepcopy=False)
            assert study.trials == trials
            filled.asked_for = [trial.user_attrs["treecv_run"] for trial in trials]
            rows = [row for row in filled.fold_scores if row["run"] in filled.asked_for]
            return pandas.DataFrame(rows)

        monkeypatch.setattr(report, "load_evaluations", load_evaluations)
        monkeypatch.setattr(report, "load_fold_scores", load_fold_scores)
        return filled

    return fill
