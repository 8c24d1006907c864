"""What follows from the out-of-fold outputs of a job: losses of rows, scores of folds."""

from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import VotingClassifier

from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.tested import Tested
from optuna_treecv.crossval.whole_repeat import WholeRepeat
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows

# The rows that are scored at once.
_ROWS_AT_ONCE = 2**20


def computed_outputs(job: Job, method: str) -> np.ndarray | None:
    """Return the outputs of a job, in the order of ``Tested.rows``, where they take no training.

    They come from kept results, or from sums, solutions, neighbours or trees that the trials of a
    study share. None elsewhere.
    """
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
    metric, targets = metric_of(job), _targets(job, tested)
    losses = np.empty((len(responses), len(targets)))
    at_once = max(1, _ROWS_AT_ONCE // len(targets))
    for begin in range(0, len(responses), at_once):
        part = np.asarray(responses[begin : begin + at_once])
        part = part.reshape(-1, *part.shape[2:])
        repeated = np.concatenate([targets] * (len(part) // len(targets)))
        of_part = scores_of_rows(metric, _rows(job, part, repeated), job.estimator, job.classes)
        losses[begin : begin + at_once] = sign_of(job) * of_part.reshape(-1, len(targets))
    return losses


def losses_of_folds(
    job: Job, responses: Sequence[np.ndarray] | np.ndarray, tested: Tested
) -> np.ndarray:
    """Return the same of folds, (n_responses, n_folds), where the metric does not score rows."""
    targets, begins = _targets(job, tested), tested.cuts[0].begins()
    # The mean of classifiers answers by ``predict_proba``, whatever methods its members have.
    like = job.estimator if job.classes is None else VotingClassifier([], voting="soft")
    rows = (_rows(job, one, targets, begins[:-1] - begins[0]) for one in responses)
    folds = (scores_of_folds([metric_of(job)], one, like, job.classes) for one in rows)
    return sign_of(job) * np.array([one.scores[0] for one in folds])


def _targets(job: Job, tested: Tested) -> np.ndarray:
    """Return the targets of all tests of rows: class codes or numbers."""
    y = job.task.data.y
    assert y is not None  # responses are predictions
    codes = as_numbers(y) if job.classes is None else as_codes(y, job.classes)
    return codes[tested.rows]


def _rows(
    job: Job, response: np.ndarray, targets: np.ndarray, begins: np.ndarray | None = None
) -> TestedRows:
    """Return tests of rows with one response to them; probabilities tell classes too."""
    is_code = response.dtype.kind == "i"
    numbers = response if is_code else response.astype(np.float64, copy=False)

    def respond(_: np.ndarray, method: str) -> np.ndarray:
        are_probabilities = job.classes is not None and numbers.ndim == 2
        return numbers.argmax(axis=1) if method == "predict" and are_probabilities else numbers

    return TestedRows(numbers.reshape(len(numbers), -1), respond, targets, None, begins)
