"""The records of finished trials: in attributes of Optuna, in a store and in memory."""

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import optuna
from optuna.trial import BaseTrial
from optuna.trial import FrozenTrial

from optuna_treecv.core.result import CVResult
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import further_run
from optuna_treecv.storage.evaluations import read_named_scores
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

#: The user attribute of a study that describes the evaluation of its trials.
STUDY_ATTRIBUTE = "treecv_evaluation"
#: The user attribute of a trial, a flat dict: each attribute is a transaction in Optuna's storage.
TRIAL_ATTRIBUTE = "treecv"
#: In that dict, the key of the mean of each of several scores is this prefix and its name.
SCORE_PREFIX = "score_"
#: The user attribute of a trial with the progress of reading rows on disk.
PROGRESS_ATTRIBUTE = "treecv_progress"

#: The most bytes that one objective keeps in memory: 256 MiB.
MOST_BYTES = 2**28

# The most bytes of fold scores that are read from a store at once.
_MOST_READ_BYTES = 2**28

_Name = tuple[int, datetime | None]
_Outputs = Mapping[str, Array]
_NO_OUTPUTS: _Outputs = MappingProxyType({})


def facts_of_study(study: optuna.Study) -> Mapping[str, Opaque]:
    """Return a study's record of its evaluation; empty if it has none."""
    facts = study.user_attrs.get(STUDY_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def facts_of_trial(attributes: Mapping[str, Opaque]) -> Mapping[str, Opaque]:
    """Return a trial's record of its evaluation from its user attributes; empty if it has none."""
    facts = attributes.get(TRIAL_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def scores_of_trial(attributes: Mapping[str, Opaque]) -> dict[str, float]:
    """Return the means of a trial's scores by name; empty if it has only one."""
    return {
        key.removeprefix(SCORE_PREFIX): mean
        for key, mean in facts_of_trial(attributes).items()
        if key.startswith(SCORE_PREFIX)
    }


def runs_of_trial(attributes: Mapping[str, Opaque]) -> list[str]:
    """Return the names of a trial's evaluations, one for each score, the first one first."""
    run = facts_of_trial(attributes).get("run")
    if not isinstance(run, str):
        return []
    n_scores = len(scores_of_trial(attributes))
    return [run, *(further_run(run, number) for number in range(1, n_scores))]


class TrialScores(NamedTuple):
    """The scores of one trial in memory.

    Attributes
    ----------
    value : float
        Its mean, with the sign by which smaller values are better.
    folds : ndarray of shape (n_repeats * n_folds,)
        The scores of its folds, in one byte each if all are 0 or 1.
    rows : ndarray of shape (n_rows,), float32, or None
        The scores of its rows.
    outputs : dict of str to ndarray of shape (n_repeats * n_tested, ...)
        Its outputs for the tested rows, by method.
    """

    value: float
    folds: Array
    rows: Array | None = None
    outputs: _Outputs = _NO_OUTPUTS

    @property
    def n_bytes(self) -> int:
        arrays = [self.folds, *self.outputs.values()]
        return sum(a.nbytes for a in arrays) + (0 if self.rows is None else self.rows.nbytes)

    def smaller(self) -> "TrialScores | None":
        """Return a copy without outputs, or else without the scores of rows, or else None."""
        if self.outputs:
            return self._replace(outputs={})
        return None if self.rows is None else self._replace(rows=None)


class KnownScores:
    """The scores of an objective's best trials in memory, and those in its store.

    In memory, the key is the number of the trial and the time when it began. Its parameters do not
    suffice, because a callable may make other estimators of the same parameters. When there is no
    more room, outputs are dropped first, those of the worst trial before others; then the scores
    of rows, and the fold scores, likewise.

    Parameters
    ----------
    database : Database, default=None
        The store.
    most_bytes : int, default=256 MiB
    """

    def __init__(self, database: Database | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._database = database
        self._most_bytes = most_bytes
        self._scores: dict[_Name, TrialScores] = {}
        self._lock = Lock()
        self.n_bytes = 0

    def note(
        self, trial: BaseTrial, result: CVResult, direction: str, outputs: _Outputs = _NO_OUTPUTS
    ) -> None:
        """Add a complete trial's scores and outputs, unless its mean is infinite."""
        if not np.isfinite(result.mean):
            return
        name = trial.number, trial.datetime_start
        value = result.mean if direction == "minimize" else -result.mean
        are_bits = np.all((result.test_score == 0) | (result.test_score == 1))
        folds = result.test_score.astype(np.int8) if are_bits else result.test_score.copy()
        scores = TrialScores(value, folds, result.row_losses, outputs)
        with self._lock:
            self._set(name, scores)
            while self.n_bytes > self._most_bytes:
                with_outputs = [name for name, s in self._scores.items() if s.outputs]
                with_rows = [name for name, s in self._scores.items() if s.rows is not None]
                largest = with_outputs or with_rows or self._scores
                worst = max(largest, key=lambda name: self._scores[name].value)
                self._set(worst, self._scores[worst].smaller())

    def find(self, trial: BaseTrial) -> TrialScores | None:
        """Return the scores of a trial in memory; None if there are none."""
        with self._lock:
            return self._scores.get((trial.number, trial.datetime_start))

    def folds_of(self, trials: Sequence[FrozenTrial], n_splits: int) -> dict[int, Array]:
        """Return the ``n_splits`` fold scores of each trial with complete ones.

        At most 256 MiB are read from the store, for the first trials.
        """
        cached = {trial.number: self.find(trial) for trial in trials}
        folds = {n: x.folds for n, x in cached.items() if x and len(x.folds) == n_splits}
        missing = [trial for trial in trials if trial.number not in folds]
        most = max(1, _MOST_READ_BYTES // (8 * n_splits))
        runs = {run: x.number for x in missing[:most] for run in runs_of_trial(x.user_attrs)[:1]}
        return folds | {number: scores for number, _, scores in self._read(runs, n_splits)}

    def rows_of(self, trials: Sequence[FrozenTrial]) -> dict[int, Array]:
        """Return the scores of the rows of trials, which are only in memory."""
        cached = {trial.number: self.find(trial) for trial in trials}
        return {n: x.rows for n, x in cached.items() if x and x.rows is not None}

    def stored(
        self, trials: Sequence[FrozenTrial], n_splits: int
    ) -> Mapping[int, Mapping[str, Array]]:
        """Return the stored fold scores by the number of the trial and the score's name."""
        runs = {run: trial.number for trial in trials for run in runs_of_trial(trial.user_attrs)}
        of_trials: dict[int, dict[str, Array]] = defaultdict(dict)
        for number, name, scores in self._read(runs, n_splits):
            of_trials[number][name] = scores
        return of_trials

    def _read(self, numbers: Mapping[str, int], n_splits: int) -> list[tuple[int, str, Array]]:
        """Return the number, the score's name and the scores of completely stored runs."""
        if self._database is None or not numbers:
            return []
        runs = list(numbers)
        read = partial(read_named_scores, store=self._database, runs=runs, n_scores=n_splits)
        nothing: list[tuple[str, str, Array]] = []
        rows = self._database.attempt(read, nothing, without="the fold scores of other trials")
        return [(numbers[run], name, scores) for run, name, scores in rows]

    def _set(self, name: _Name, scores: TrialScores | None) -> None:
        """Replace the scores of a trial in memory; None: remove them."""
        if (before := self._scores.pop(name, None)) is not None:
            self.n_bytes -= before.n_bytes
        if scores is not None:
            self._scores[name] = scores
            self.n_bytes += scores.n_bytes
