"""What follows from the out-of-fold outputs of a run: losses of rows, scores of folds."""

from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import VotingClassifier

from optuna_treecv.core.run import Run
from optuna_treecv.core.tested import Tested
from optuna_treecv.plans.fits import targets_of
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows

# The rows that are scored at once.
_ROWS_AT_ONCE = 2**20


def computed_outputs(run: Run, method: str) -> np.ndarray | None:
    """Return the outputs of a run, in the order of ``Tested.rows``, where they take no training.

    They come from kept results, or from sums, solutions, neighbours or trees that the trials of a
    study share. None elsewhere.
    """
    is_single, at_once = len(run.plan.repeats) == 1, run.plan.capabilities.at_once
    if is_single and not at_once and run.is_stored:
        run.complete()
        return run.book.responses_of_all().get(method)
    cut = run.plan.repeats[0].cut
    is_partition = isinstance(cut, Folds) and cut.n_tested == cut.n_rows
    if not (is_single and at_once and is_partition):
        return None
    if not hasattr(run.estimator, method):
        return None
    answered = run.predict(method)
    if method == "predict" and run.request.classes is not None:
        answered = as_codes(answered, run.request.classes)
    return run.request.as_kept(answered[cut.tested_from(0, cut.n_folds)], method)


def method_of(run: Run) -> str | None:
    """Return the response from which the first optimised score follows; None if none is kept."""
    metric = metric_of(run)
    return next((name for name in run.request.kept_responses if name == metric.methods), None)


def metric_of(run: Run) -> Loss | Scorer:
    """Return the first optimised metric; of a pooled one, that which is pooled."""
    first = run.request.scoring.first
    return first.of if isinstance(first, Pooled) else first


def sign_of(run: Run) -> int:
    """Return 1 if smaller values of the first optimised metric are better, else -1."""
    return 1 if metric_of(run).direction == "minimize" else -1


def losses_of_tests(
    run: Run, responses: Sequence[np.ndarray] | np.ndarray, tested: Tested
) -> np.ndarray:
    """Return the losses, (n_responses, n_tests), by the first optimised metric.

    Smaller ones are better: those of scorers have the other sign.

    Parameters
    ----------
    run : Run
        Its metric scores rows.
    responses : sequence of ndarray of shape (n_tests, ...)
    tested : Tested
    """
    metric, targets = metric_of(run), targets_of(run.request)[tested.rows]
    losses = np.empty((len(responses), len(targets)))
    at_once = max(1, _ROWS_AT_ONCE // len(targets))
    for begin in range(0, len(responses), at_once):
        part = np.asarray(responses[begin : begin + at_once])
        part = part.reshape(-1, *part.shape[2:])
        repeated = np.concatenate([targets] * (len(part) // len(targets)))
        of_part = scores_of_rows(
            metric, _rows(run, part, repeated), run.estimator, run.request.classes
        )
        losses[begin : begin + at_once] = sign_of(run) * of_part.reshape(-1, len(targets))
    return losses


def losses_of_folds(
    run: Run, responses: Sequence[np.ndarray] | np.ndarray, tested: Tested
) -> np.ndarray:
    """Return the same of folds, (n_responses, n_folds), where the metric does not score rows."""
    targets, begins = targets_of(run.request)[tested.rows], tested.cuts[0].begins()
    # The mean of classifiers answers by ``predict_proba``, whatever methods its members have.
    like = run.estimator if run.request.classes is None else VotingClassifier([], voting="soft")
    rows = (_rows(run, one, targets, begins[:-1] - begins[0]) for one in responses)
    folds = (scores_of_folds([metric_of(run)], one, like, run.request.classes) for one in rows)
    return sign_of(run) * np.array([one.scores[0] for one in folds])


def _rows(
    run: Run, response: np.ndarray, targets: np.ndarray, begins: np.ndarray | None = None
) -> TestedRows:
    """Return tests of rows with one response to them; probabilities tell classes too."""
    is_code = response.dtype.kind == "i"
    numbers = response if is_code else response.astype(np.float64, copy=False)

    def respond(_: np.ndarray, method: str) -> np.ndarray:
        are_probabilities = run.request.classes is not None and numbers.ndim == 2
        return numbers.argmax(axis=1) if method == "predict" and are_probabilities else numbers

    return TestedRows(numbers.reshape(len(numbers), -1), respond, targets, None, begins)
