"""The fold scores of trials of earlier runs, as far as a store keeps them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial

import numpy as np
from optuna.trial import FrozenTrial

from optuna_treecv.storage.attributes import runs_of_trial
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import read_named_scores


def stored_scores(
    trials: Sequence[FrozenTrial], database: Database | None, n_splits: int
) -> Mapping[int, Mapping[str, np.ndarray]]:
    """Return the fold scores of trials that are in a store in full.

    Parameters
    ----------
    trials : sequence of FrozenTrial
    database : Database or None
    n_splits : int
        The number of scores of one trial.

    Returns
    -------
    dict of int to dict of str to ndarray of shape (n_splits,)
        By the number of the trial and the name of the score.
    """
    numbers = {run: trial.number for trial in trials for run in runs_of_trial(trial.user_attrs)}
    found: dict[int, dict[str, np.ndarray]] = defaultdict(dict)
    if database is None or not numbers:
        return found
    read = partial(read_named_scores, store=database, runs=list(numbers), n_scores=n_splits)
    nothing: list[tuple[str, str, np.ndarray]] = []
    for run, name, scores in database.attempt(
        read, nothing, without="the fold scores of other trials"
    ):
        found[numbers[run]][name] = scores
    return found
