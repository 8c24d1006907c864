"""The out-of-fold outputs of trials, from which other scores follow without a training."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from optuna.trial import FrozenTrial

from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.tested import Tested
from optuna_treecv.crossval.whole_repeat import WholeRepeat
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.study.known_scores import KnownScores

# The rows that are scored at once.
_ROWS_AT_ONCE = 2**20


class Outputs(NamedTuple):
    """The outputs of some trials for the rows that their folds test.

    Attributes
    ----------
    trials : list of FrozenTrial
        Those whose outputs are known.
    responses : list of ndarray of shape (n_tests,), (n_tests, n_classes) or (n_tests, n_targets)
        One for each trial, in the order of ``Tested.rows``.
    left_out : list of int
        The numbers of the other trials.
    """

    trials: list[FrozenTrial]
    responses: list[np.ndarray]
    left_out: list[int]


def outputs_of(
    trials: Sequence[FrozenTrial],
    method: str,
    job_of: Callable[[FrozenTrial], Job],
    known_scores: KnownScores,
) -> Outputs:
    """Return the outputs of trials by a method, "predict" or "predict_proba".

    Outputs that are not held are computed where that needs no training: from kept results, or from
    sums, solutions, neighbours or trees that all trials share.
    """
    known, responses, left_out = [], [], []
    for trial in trials:
        held = known_scores.find(trial)
        response = None if held is None else held.outputs.get(method)
        if response is None:
            response = _computed(job_of(trial), method)
        if response is None:
            left_out.append(trial.number)
        else:
            known.append(trial)
            responses.append(response)
    return Outputs(known, responses, left_out)


def _computed(job: Job, method: str) -> np.ndarray | None:
    """Return the outputs of a job where they take no training; else None."""
    if len(job.repeats) == 1 and job.engine.is_kept(job):
        job.complete()
        return job.outputs().get(method)
    cut = job.repeats[0].cut
    is_partition = isinstance(cut, Folds) and cut.n_tested == cut.n_rows
    if not isinstance(job.engine, WholeRepeat) or not is_partition or len(job.repeats) > 1:
        return None
    if not hasattr(job.estimator, method):
        return None
    answered = job.predict(method)
    if method == "predict" and job.classes is not None:
        answered = as_codes(answered, job.classes)
    return job.as_kept(answered[cut.tested_from(0, cut.n_folds)], method)


def method_of(job: Job) -> str | None:
    """Return the response from which the first optimised score follows; None if none is kept."""
    metric = metric_of(job)
    return next((name for name in job.keeps if name == metric.methods), None)


def metric_of(job: Job) -> Loss | Scorer:
    """Return the first optimised metric; of a pooled one, that which is pooled."""
    first = job.scoring.first
    return first.of if isinstance(first, Pooled) else first


def sign_of(job: Job) -> int:
    """Return 1 if smaller values of the first optimised metric are better, else -1."""
    return 1 if metric_of(job).direction == "minimize" else -1


def targets_of(job: Job, tested: Tested) -> np.ndarray:
    """Return the targets of all tests of rows: class codes or numbers."""
    y = job.task.data.y
    assert y is not None  # responses are predictions
    codes = as_numbers(y) if job.classes is None else as_codes(y, job.classes)
    return codes[tested.rows]


def losses_of_tests(
    job: Job, responses: Sequence[np.ndarray] | np.ndarray, tested: Tested
) -> np.ndarray:
    """Return the losses, (n_responses, n_tests), by the first optimised metric.

    Smaller ones are better: those of scorers have the other sign.

    Parameters
    ----------
    job : Job
        Its metric scores rows.
    responses : sequence of ndarray of shape (n_tests, ...)
    tested : Tested
    """
    metric, targets = metric_of(job), targets_of(job, tested)
    losses = np.empty((len(responses), len(targets)))
    at_once = max(1, _ROWS_AT_ONCE // len(targets))
    for begin in range(0, len(responses), at_once):
        part = np.asarray(responses[begin : begin + at_once])
        part = part.reshape(-1, *part.shape[2:])
        repeated = np.concatenate([targets] * (len(part) // len(targets)))
        of_part = scores_of_rows(metric, rows_of(job, part, repeated), job.estimator, job.classes)
        losses[begin : begin + at_once] = sign_of(job) * of_part.reshape(-1, len(targets))
    return losses


def rows_of(
    job: Job, response: np.ndarray, targets: np.ndarray, begins: np.ndarray | None = None
) -> TestedRows:
    """Return tests of rows with one response to them; probabilities tell classes too."""
    numbers = response if response.dtype.kind == "i" else response.astype(np.float64, copy=False)

    def respond(_: np.ndarray, method: str) -> np.ndarray:
        are_probabilities = job.classes is not None and numbers.ndim == 2
        return numbers.argmax(axis=1) if method == "predict" and are_probabilities else numbers

    return TestedRows(numbers.reshape(len(numbers), -1), respond, targets, None, begins)
