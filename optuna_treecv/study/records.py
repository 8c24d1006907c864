"""The records of finished trials: in Optuna's user attributes, in a store and in memory."""

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

from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import Key
from optuna_treecv.core.result import CVResult
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import read_named_scores
from optuna_treecv.storage.evaluations import run_of_score
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

#: The name of the user attribute of a study that describes how its trials are evaluated.
STUDY_ATTRIBUTE = "treecv_evaluation"
#: The name of the user attribute of a trial with all results in a flat dict. There is only one,
#: because setting an attribute is a transaction of Optuna's storage.
TRIAL_ATTRIBUTE = "treecv"
#: If there are several scores, the key of a score's mean in this dict is this prefix followed by
#: the name of the score.
SCORE_PREFIX = "score_"
#: The name of the user attribute of a trial with the progress of reading rows from disk.
PROGRESS_ATTRIBUTE = "treecv_progress"

#: The maximum number of bytes of scores and outputs that an objective keeps in memory: 256 MiB.
MAX_BYTES = 2**28

# The outputs of this number of best trials are stored.
_N_STORED = 20

# The maximum number of bytes of fold scores that are read from a store in one call.
_MAX_READ_BYTES = 2**28

# The key of a trial: its number and start time.
_Key = tuple[int, datetime | None]
_Outputs = Mapping[str, Array]
_NO_OUTPUTS: _Outputs = MappingProxyType({})


def facts_of_study(study: optuna.Study) -> Mapping[str, Opaque]:
    """Return the study attribute that describes how trials are evaluated; empty if missing."""
    facts = study.user_attrs.get(STUDY_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def facts_of_trial(attributes: Mapping[str, Opaque]) -> Mapping[str, Opaque]:
    """Return the results in a trial's user attributes; empty if there are none."""
    facts = attributes.get(TRIAL_ATTRIBUTE)
    return facts if isinstance(facts, dict) else {}


def scores_of_trial(attributes: Mapping[str, Opaque]) -> dict[str, float]:
    """Return the means of a trial's scores by name; empty if there is only one score."""
    return {
        key.removeprefix(SCORE_PREFIX): mean
        for key, mean in facts_of_trial(attributes).items()
        if key.startswith(SCORE_PREFIX)
    }


def runs_of_trial(attributes: Mapping[str, Opaque]) -> list[str]:
    """Return the names of a trial's records in the store, one for each score."""
    run = facts_of_trial(attributes).get("run")
    if not isinstance(run, str):
        return []
    n_scores = len(scores_of_trial(attributes))
    return [run, *(run_of_score(run, number) for number in range(1, n_scores))]


class TrialScores(NamedTuple):
    """The scores of a trial that are kept in memory.

    Attributes
    ----------
    value : float
        The mean score, negated if larger scores are better.
    folds : ndarray of shape (n_repeats * n_folds,)
        The scores of the folds, as int8 if all are 0 or 1.
    rows : ndarray of shape (n_rows,), float32, or None
        The scores of the rows.
    outputs : dict of str to ndarray of shape (n_repeats * n_tested, ...)
        The out-of-fold outputs of the tested rows, by method.
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
        """Return a copy without outputs or, if there are none, without row scores; else None."""
        if self.outputs:
            return self._replace(outputs={})
        return None if self.rows is None else self._replace(rows=None)


def _key_of(name: str, method: str, outputs: Array) -> Key:
    """Return the key of the outputs of a trial with this name."""
    key = digest(name.encode(), method.encode(), outputs.dtype.str.encode())
    return Key(key, b"", b"", b"trial outputs", outputs.nbytes)


def _as_bytes(outputs: Array) -> Array:
    return np.ascontiguousarray(outputs).reshape(-1).view(np.uint8)


class KnownScores:
    """The scores of an objective's trials: in memory for the best trials, and in its store.

    In memory, the key is the number and the start time of the trial. The parameters would not
    suffice, because a callable may create different estimators for the same parameters. If the
    memory limit is exceeded, outputs are dropped first, then row scores, then fold scores, each
    beginning with the worst trial.

    Parameters
    ----------
    database : Database, default=None
        The store.
    cache : StoredModelCache, default=None
        The cache by which the outputs of the 20 best trials are stored.
    max_bytes : int, default=256 MiB
    """

    def __init__(
        self,
        database: Database | None = None,
        cache: StoredModelCache | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._database, self._cache = database, cache
        self._max_bytes = max_bytes
        self._scores: dict[_Key, TrialScores] = {}
        self._lock = Lock()
        self.n_bytes = 0

    def note(
        self,
        trial: BaseTrial,
        result: CVResult,
        direction: str,
        outputs: _Outputs = _NO_OUTPUTS,
        stored_as: str = "",
    ) -> None:
        """Add the scores and outputs of a complete trial, unless its mean is infinite.

        If the trial is among the 20 best so far, its outputs are also stored under the name
        ``stored_as``. No outputs are stored if it is empty.
        """
        if not np.isfinite(result.mean):
            return
        key = trial.number, trial.datetime_start
        value = result.mean if direction == "minimize" else -result.mean
        is_binary = np.all((result.test_score == 0) | (result.test_score == 1))
        folds = result.test_score.astype(np.int8) if is_binary else result.test_score.copy()
        scores = TrialScores(value, folds, result.row_losses, outputs)
        with self._lock:
            self._set(key, scores)
            while self.n_bytes > self._max_bytes:
                with_outputs = [key for key, s in self._scores.items() if s.outputs]
                with_rows = [key for key, s in self._scores.items() if s.rows is not None]
                largest = with_outputs or with_rows or self._scores
                worst = max(largest, key=lambda key: self._scores[key].value)
                self._set(worst, self._scores[worst].smaller())
        if self._cache is not None and stored_as and self._rank(value) < _N_STORED:
            stored = [(_key_of(stored_as, name, a), _as_bytes(a)) for name, a in outputs.items()]
            self._cache.write([(*pair, result.seconds) for pair in stored if len(pair[1])])

    def _rank(self, value: float) -> int:
        """Return the number of better trials in memory."""
        with self._lock:
            return sum(scores.value < value for scores in self._scores.values())

    def find(self, trial: BaseTrial) -> TrialScores | None:
        """Return the scores of a trial that are in memory; None if there are none."""
        with self._lock:
            return self._scores.get((trial.number, trial.datetime_start))

    def outputs_in_memory(self, trial: FrozenTrial, method: str) -> Array | None:
        """Return the outputs of a trial by a response method; None if they are not in memory."""
        scores = self.find(trial)
        return None if scores is None else scores.outputs.get(method)

    def stored_outputs(
        self, trial: FrozenTrial, method: str, empty: Array, of_folds: str
    ) -> Array | None:
        """Return the outputs of a trial from the store; None if there are none.

        Parameters
        ----------
        trial : optuna.trial.FrozenTrial
        method : str
        empty : ndarray
            An array with the shape and dtype of the outputs.
        of_folds : str
            The digest of the data, the folds and the order of the rows.
        """
        if self._cache is None:
            return None
        for run in runs_of_trial(trial.user_attrs)[:1]:
            stored = self._cache.find(_key_of(f"{run} {of_folds}", method, empty))
            if stored is not None:
                return stored.view(empty.dtype).reshape(empty.shape)
        return None

    def folds_of(self, trials: Sequence[FrozenTrial], n_splits: int) -> dict[int, Array]:
        """Return fold scores by trial number, for trials with scores of all folds.

        At most 256 MiB are read from the store; the first trials take precedence.
        """
        cached = {trial.number: self.find(trial) for trial in trials}
        folds = {n: x.folds for n, x in cached.items() if x and len(x.folds) == n_splits}
        missing = [trial for trial in trials if trial.number not in folds]
        max_trials = max(1, _MAX_READ_BYTES // (8 * n_splits))
        runs = {
            run: x.number for x in missing[:max_trials] for run in runs_of_trial(x.user_attrs)[:1]
        }
        return folds | {number: scores for number, _, scores in self._read(runs, n_splits)}

    def rows_of(self, trials: Sequence[FrozenTrial]) -> dict[int, Array]:
        """Return the row scores of trials by number, for trials whose row scores are in memory."""
        cached = {trial.number: self.find(trial) for trial in trials}
        return {n: x.rows for n, x in cached.items() if x and x.rows is not None}

    def stored(
        self, trials: Sequence[FrozenTrial], n_splits: int
    ) -> Mapping[int, Mapping[str, Array]]:
        """Return the fold scores in the store, by trial number and by score name."""
        runs = {run: trial.number for trial in trials for run in runs_of_trial(trial.user_attrs)}
        of_trials: dict[int, dict[str, Array]] = defaultdict(dict)
        for number, name, scores in self._read(runs, n_splits):
            of_trials[number][name] = scores
        return of_trials

    def _read(self, numbers: Mapping[str, int], n_splits: int) -> list[tuple[int, str, Array]]:
        """Return (trial number, score name, fold scores) of runs whose scores are all stored."""
        if self._database is None or not numbers:
            return []
        runs = list(numbers)
        read = partial(read_named_scores, store=self._database, runs=runs, n_scores=n_splits)
        nothing: list[tuple[str, str, Array]] = []
        rows = self._database.attempt(read, nothing, without="the fold scores of other trials")
        return [(numbers[run], name, scores) for run, name, scores in rows]

    def _set(self, key: _Key, scores: TrialScores | None) -> None:
        """Replace the scores of a trial in memory, or remove them if ``scores`` is None."""
        if (before := self._scores.pop(key, None)) is not None:
            self.n_bytes -= before.n_bytes
        if scores is not None:
            self._scores[key] = scores
            self.n_bytes += scores.n_bytes
