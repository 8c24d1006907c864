"""A study whose trials have chosen fold scores in a store."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta
from datetime import UTC
from uuid import uuid4

import numpy as np
import optuna

from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import record


class FilledStudy:
    """A study and a store to which a test adds trials with chosen fold scores."""

    def __init__(self, store, storage=None, direction="minimize", **common):
        self.study = optuna.create_study(storage=storage, direction=direction, study_name="iris")
        self.store = store
        self.database = Database(store)
        self.common = {
            "fingerprint": "0123456789abcdef" * 4,
            "learner": "PegasosClassifier",
            "cv": "10",
            "n_repeats": 1,
            "n_rows": 1234,
            "n_features": 5,
            "scoring": "error",
            "direction": direction,
            "random_state": "0",
            "n_updates": 4000,
            "n_updates_saved": 0,
            "n_updates_standard": 9000,
            "seconds": 0.5,
        } | common

    def add(self, scores, params=(), distributions=(), state="complete", stored=True, **fields):
        """Add a finished trial with these fold scores."""
        number = len(self.study.get_trials(deepcopy=False))
        scores = np.asarray(scores, float)
        with np.errstate(invalid="ignore"):
            mean, std = scores.mean(), scores.std()
        run = uuid4().hex
        self.study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState[state.upper()],
                value=mean if state == "complete" else None,
                params=dict(params),
                distributions=dict(distributions),
                user_attrs={"treecv": {"run": run}} if stored else {},
            )
        )
        if not stored:
            return
        fields = {"n_folds": len(scores) // self.common["n_repeats"]} | self.common | fields
        row = dict(
            run=run,
            state=state,
            parameters=dict(params),
            mean=mean,
            std=std if np.isfinite(std) else None,
            folds_scored=len(scores),
            diverged_folds=int((~np.isfinite(scores)).sum()),
            # The order in the store differs from that of the trials, as it may with workers.
            created_at=datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=number),
            **fields,
        )
        assert record(self.database, row, scores) is not None
