"""Fits one fold and scores it. This runs in the workers of joblib, so it knows no evaluation.

Fitted beginnings of Pipelines are kept for trials whose later steps differ. Worker processes whose
parent has died end themselves, because nobody takes their results.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from functools import cache
from functools import partial
from functools import wraps
import os
import pickle
import re
import signal
from threading import Thread
from time import perf_counter
from time import sleep
from traceback import format_exc
from types import SimpleNamespace
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from joblib.externals.loky.backend.reduction import dumps
import numpy as np
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import _safe_split

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.caching.keys import under_configuration
from optuna_treecv.core.routing import part_of
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import in_columns
from optuna_treecv.estimators.base import is_divergence
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import METHOD_NAMES
from optuna_treecv.estimators.base import n_columns
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.checks import check_methods
from optuna_treecv.estimators.incremental import keeping_rows
from optuna_treecv.preprocessing.parts import naming_step
from optuna_treecv.preprocessing.parts import steps_before
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.checks import predicted_codes
from optuna_treecv.rows.checks import without_single_column
from optuna_treecv.rows.folds import Split
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scorers import score_of
from optuna_treecv.scoring.scores import by_loss
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import spread_of_counts
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.scoring.scores import unknown_spreads
from optuna_treecv.types import Array

T = TypeVar("T")

# NumPy's errors for writing to read-only arrays; the second one is of compiled code, which may
# ask for an array that can be written to without ever doing so.
_WRITES = re.compile("(assignment destination|output array) is read-only")
_MAY_WRITE = re.compile("buffer source array is read-only")


# The cache of a worker process, which all tasks that it gets share.
_of_this_process: list[ModelCache] = []


class FoldResult(NamedTuple):
    """The result of one fit.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics,)
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3)
        Of the scores of rows; NaN where they are not known.
    responses : ndarray of shape (n_rows, n_columns), float64
        The responses to the test rows that pooled scores need, side by side.
    has_diverged : bool
    n_trained : int
        The rows that the model was trained on.
    seconds : float
        The time of the fit and the score; 0 if they are kept.
    """

    scores: Array
    spreads: Array
    responses: Array
    has_diverged: bool
    n_trained: int
    seconds: float = 0.0

    @classmethod
    def of(cls, numbers: Array, n_metrics: int, shape: tuple[int, int]) -> "FoldResult":
        """Return the result that has these numbers, with responses of the given shape."""
        ends = np.cumsum([n_metrics, SPREAD_SIZE * n_metrics, 2])
        scores, spreads, (has_diverged, n_trained), responses = np.split(numbers, ends)
        spreads = spreads.reshape(n_metrics, SPREAD_SIZE)
        return cls(scores, spreads, responses.reshape(shape), bool(has_diverged), int(n_trained))

    def numbers(self) -> Array:
        """Return all but the seconds as an array of float64."""
        facts = [self.has_diverged, self.n_trained]
        return np.concatenate([self.scores, self.spreads.ravel(), facts, self.responses.ravel()])

    @staticmethod
    def size(n_metrics: int, shape: tuple[int, int]) -> int:
        """Return how many numbers a result has."""
        return (1 + SPREAD_SIZE) * n_metrics + 2 + shape[0] * shape[1]


@dataclass(frozen=True)
class FoldTask:
    """What the fits of all folds have in common.

    Attributes
    ----------
    estimator : estimator
        With all its seeds.
    X, y : the rows as given
    metrics : tuple of Loss, Scorer or Pooled
        None of them if only responses are asked for.
    score_weights : ndarray of shape (n_rows,) or None
        The weights of the rows in scores.
    classes : ndarray or None
        The sorted classes of y, for classifiers.
    beginnings : Beginnings or None
        Where fitted beginnings of Pipelines are kept.
    params : dict
        Further arguments of ``fit``. Those with an entry for each row are cut into folds.
    is_routed : bool
        Whether scikit-learn's metadata routing is enabled.
    n_targets : int
        The number of columns of y.
    kept : tuple of str
        The responses that are returned beside those for pooled scores.
    owner : int
        The process that takes the results.
    """

    estimator: Any
    X: Any
    y: Any
    metrics: tuple[Metric, ...]
    score_weights: Array | None
    classes: Array | None
    beginnings: "Beginnings | None"
    params: Mapping[str, Any]
    is_routed: bool
    n_targets: int
    kept: tuple[str, ...] = ()
    owner: int = field(default_factory=os.getpid)

    def naming_step(self) -> AbstractContextManager[None]:
        """Name the step of a Pipeline that an error of a fit comes from.

        Steps that are fitted again do not get what metadata routing gives them.
        """
        return nullcontext() if self.is_routed else naming_step(self.estimator, self.X, self.y)

    def attempt(self, name: bytes, splits: Sequence[Split]) -> list[FoldResult | Exception]:
        """Fit a clone on the training rows and score it on test rows, or return errors.

        For an error that is raised joblib would kill all workers, also those of other threads.

        Parameters
        ----------
        name : bytes
            The name of the data, the training rows and the first test rows.
        splits : sequence of Split
            They have the same training rows.
        """
        end_with(self.owner)
        results: list[FoldResult | Exception] = []
        try:
            began, train = perf_counter(), splits[0].train_rows()
            n_trained = len(train)
            fitted, X, y = self.fitted(name, train, splits[0].test)
            for split in splits:
                if results:  # the model is there
                    began, n_trained = perf_counter(), 0
                    X, y = self._part(self.estimator, split.test.astype(np.intp), train)
                scores = _writable_if_asked(partial(self._scored, fitted, train, split.test), X, y)
                results.append(FoldResult(*scores, n_trained, perf_counter() - began))
        except Exception as error:  # noqa: BLE001  # whatever fits may raise
            raised = error if os.getpid() == self.owner else _sendable(error)
            results += [raised] * (len(splits) - len(results))
        return results

    def _scored(
        self, fitted: Any, train: Array, test: Array, X: Any, y: Any
    ) -> tuple[Array, Array, Array, bool]:
        """Return the scores, their spreads, the responses, and whether the model has diverged."""
        if fitted is not None:  # some methods depend on an estimator that fit has chosen
            for metric in self.metrics:
                if getattr(metric, "error_score", None) is None:
                    check_methods(fitted, metric.methods, f"scoring={metric.name!r}")
        weights = None if self.score_weights is None else self.score_weights[test]
        scores = np.full(len(self.metrics), np.nan)
        spreads = unknown_spreads(len(self.metrics), 1)
        pooled = [metric for metric in self.metrics if isinstance(metric, Pooled)]
        methods = dict.fromkeys(response_of(metric, self.estimator) for metric in pooled)
        columns = [self._columns(method, fitted, _fresh(X), len(test)) for method in methods]
        has_diverged = fitted is None or not all(np.isfinite(one).all() for one in columns)
        answers: dict[str, Any] = {}
        untouched = _fresh(X) if self.kept else X
        for number, metric in enumerate(self.metrics):
            if isinstance(metric, Pooled):
                continue
            scores[number] = metric.if_diverged
            if isinstance(metric, Scorer) and metric.is_of_training and fitted is not None:
                own_X, own_y = self._part(fitted, train)
                own_weights = None if self.score_weights is None else self.score_weights[train]
                scores[number] = self._score(metric, fitted, own_X, own_y, own_weights)
            elif isinstance(metric, Scorer) and fitted is not None:
                with _noting(fitted, X, self.kept if metric.is_made else (), answers):
                    scores[number] = self._score(metric, fitted, X, y, weights)
                has_diverged |= scores[number] == metric.if_diverged
                if metric.is_zero_one and weights is None:
                    n_rows = np.array([len(test)])
                    spreads[number] = spread_of_counts(scores[[number]], n_rows)
            elif isinstance(metric, Loss) and fitted is not None:
                with _explaining(fitted), _noting(fitted, X, self.kept, answers):
                    loss = mean_loss(metric, fitted, X, y, weights, self.classes)
                scores[number], spreads[number] = loss.scores[0], loss.spreads
                has_diverged |= bool(loss.diverged[0])
        for method in self.kept:
            columns.append(self._kept_columns(method, fitted, untouched, answers, len(test)))
        responses = np.hstack([np.empty((len(test), 0)), *columns])
        return scores, spreads[:, :, 0], responses, has_diverged

    def _score(self, metric: Scorer, fitted: Any, X: Any, y: Any, weights: Array | None) -> float:
        """Return a scorer's score."""
        takes_weights = weights is not None and metric.takes_weights
        params = {"sample_weight": weights} if takes_weights else {}
        with _explaining(fitted):
            return score_of(metric, fitted, X, y, self.classes, params)

    def respond(self, split: Split, method: str) -> Array:
        """Fit a clone on the training rows and return its response to the test rows."""
        end_with(self.owner)
        fitted, X, _ = self.fitted(b"", split.train_rows(), split.test)
        if fitted is None:
            raise ValueError(f"{name_of(self.estimator)} diverges: its model is not finite.")
        with _explaining(fitted):
            return _writable_if_asked(partial(self._responded, fitted, method), X)

    def _responded(self, fitted: Any, method: str, X: Any) -> Array:
        if method != "predict":
            return _response(fitted, X, method, self.classes)
        predicted: Array = without_single_column(fitted.predict(X))
        in_columns(predicted, method, fitted, self.classes, self.n_targets)
        return predicted

    def fitted(self, name: bytes, train: Array, test: Array) -> tuple[Any, Any, Any]:
        """Return a fitted clone, None if its model is not finite, and the test rows."""
        estimator = clone(self.estimator)
        X, y = self._part(estimator, train)
        test_X, test_y = self._part(estimator, test.astype(np.intp), train)
        beginning: AbstractContextManager[None] = nullcontext()
        # A subclass of Pipeline may fit its steps on other rows than it is given.
        if self.beginnings is not None and type(estimator) is Pipeline:
            beginning = self.beginnings.of_fold(under_configuration(name)).lent_to(estimator)
        try:
            with _explaining(estimator), keeping_rows(estimator), beginning:
                self._fit(estimator, X, y, train)
        except ValueError as error:
            if not is_divergence(error):
                raise
            return None, test_X, test_y
        return estimator if _is_finite(estimator) else None, test_X, test_y

    def last_fitted(self, name: bytes, train: Array, test: Array) -> tuple[Any, Any]:
        """Return the last step of a fitted clone, and the test rows after the steps before it."""
        last, X, _ = self.fitted(name, train, test)
        for _, step in steps_before(last):
            X = step.transform(X)
        return last_step(last), X

    def _part(self, estimator: Any, rows: Array, train: Array | None = None) -> tuple[Any, Any]:
        """Return some rows, read-only and as an estimator takes them.

        ``_safe_split`` takes several times longer for arrays. To test an estimator, it needs the
        rows that this was trained on.
        """
        X, y = self.X, self.y
        are_arrays = type(X) is np.ndarray and (y is None or type(y) is np.ndarray)
        if are_arrays and not get_tags(estimator).input_tags.pairwise:
            X, y = X[rows], None if y is None else y[rows]
        else:
            X, y = _safe_split(estimator, X, y, rows, train)
        return _protected(X), _protected(y)

    def _fit(self, estimator: Any, X: Any, y: Any, train: Array) -> None:
        """Fit an estimator on training rows; it gets their part of the further arguments."""
        params = part_of(self.params, self.X, train)
        routing = config_context(enable_metadata_routing=self.is_routed)
        labels, is_frame = () if y is None else (y,), hasattr(X, "columns")
        shape = np.shape(X) if is_frame else ()
        with routing if params else nullcontext():
            _writable_if_asked(partial(estimator.fit, **params), X, *labels)
        if is_frame and np.shape(X) != shape:
            raise _mutation(estimator)

    def _columns(self, method: str, fitted: Any, X: Any, n_rows: int) -> Array:
        """Return a response for pooled scores, a column for each of its numbers."""
        if fitted is None:
            return np.full((n_rows, n_columns(method, self.classes, self.n_targets)), np.nan)
        with _explaining(fitted):
            answered = _response(fitted, X, method, self.classes)
        columns = in_columns(answered, method, fitted, self.classes, self.n_targets)
        return columns.astype(np.float64)

    def _kept_columns(
        self, method: str, fitted: Any, X: Any, answers: Mapping[str, Any], n_rows: int
    ) -> Array:
        """Return a response from which no score follows; NaN if it cannot be had.

        Neither an error nor random numbers that are drawn here may change a trial.
        """
        state = np.random.get_state()  # noqa: NPY002  # estimators draw from it
        if method in answers:
            classes = getattr(fitted, "classes_", None)
            fitted = SimpleNamespace(**{method: lambda _: answers[method]}, classes_=classes)
        try:
            return self._columns(method, fitted, X, n_rows)
        except Exception:  # noqa: BLE001
            return self._columns(method, None, X, n_rows)
        finally:
            np.random.set_state(state)  # noqa: NPY002


class Beginnings:
    """A cache of fitted beginnings of Pipelines; each worker process of joblib has its own.

    With a name it is the ``memory`` of a Pipeline that is fitted on one fold.

    Parameters
    ----------
    kept : ModelCache
        The cache of the process that evaluates.
    max_bytes : int
        Room in each worker process.
    name : bytes
        Of the training rows.
    """

    def __init__(self, kept: ModelCache, max_bytes: int, name: bytes = b"") -> None:
        self.kept = kept
        self._max_bytes = max_bytes
        self._start = digest(b"beginning", name)
        self._name: bytes | None = self._start  # of the steps fitted so far

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self._max_bytes,)

    def of_fold(self, name: bytes) -> "Beginnings":
        """Return the beginnings that were fitted on the training rows of this name."""
        return Beginnings(self.kept, self._max_bytes, name)

    @contextmanager
    def lent_to(self, pipeline: Any) -> Generator[None]:
        """Set this as the ``memory`` of a Pipeline in the block, unless the Pipeline has another.

        After the block a scorer may fit the Pipeline on other rows.
        """
        previous = pipeline.memory
        if previous is None:
            pipeline.memory = self
        try:
            yield
        finally:
            pipeline.memory = previous

    def cache(self, fit_transform: Callable[..., Any], ignore: object = ()) -> Callable[..., Any]:
        """Return a function that fits and transforms, or returns the kept result.

        A Pipeline asks for it once at the beginning of each fit.
        """
        self._name = self._start
        return partial(self._call, fit_transform)

    def _call(
        self, fit_transform: Callable[..., Any], step: Any, X: Any, *args: Any, **options: Any
    ) -> Any:
        try:
            self._name = None if self._name is None else digest(self._name, encode(step))
        except NoKey:
            self._name = None
        if self._name is None:
            return fit_transform(step, X, *args, **options)
        key = Key(self._name, b"", b"", b"beginning")
        pickled = self.kept.find(key)
        if pickled is not None:
            return pickle.loads(pickled.data)
        began = perf_counter()
        result = fit_transform(step, X, *args, **options)
        seconds = perf_counter() - began
        try:
            array = np.frombuffer(pickle.dumps(result, protocol=5), np.uint8)
        except Exception:  # noqa: BLE001  # a step that cannot be pickled is fitted each time
            return result
        self.kept.keep(key, array, seconds)
        return result


def _in_this_process(max_bytes: int) -> Beginnings:
    if not _of_this_process or _of_this_process[0].max_bytes != max_bytes:
        _of_this_process[:] = [ModelCache(max_bytes)]
    return Beginnings(_of_this_process[0], max_bytes)


def mean_loss(
    loss: Loss, fitted: Any, X: Any, y: Any, weights: Array | None, classes: Array | None
) -> FoldScores:
    """Return the mean loss of a fitted estimator; it has diverged if a response or loss has.

    Parameters
    ----------
    loss : Loss
    fitted : estimator
    X, y : rows as given
    weights : ndarray of shape (n_rows,) or None
    classes : ndarray or None
        The sorted classes, for classifiers.
    """
    targets = None
    if classes is not None:
        targets = as_codes(np.ravel(y), classes)
    elif y is not None:
        targets = as_numbers(without_single_column(y))
    method, n_targets = loss.methods, count_targets(targets)
    outputs = in_columns(_response(fitted, X, method, classes), method, fitted, classes, n_targets)
    answered = outputs[:, 0] if outputs.shape[1] == 1 else outputs
    rows = TestedRows(outputs, lambda *_: answered, targets, weights, np.zeros(1, np.intp))
    return by_loss(loss, rows)


def _sendable(error: Exception) -> Exception:
    """Return an error that can be sent to another process, with its traceback in a note."""
    where = format_exc()
    try:
        pickle.loads(dumps(error))
    except Exception:  # noqa: BLE001  # such an error would break the pool of processes
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(where)
    return error


def _writable_if_asked(call: Callable[..., T], *parts: Any) -> T:
    """Return ``call(*parts)``; compiled code that asks for writable arrays gets copies."""
    try:
        return call(*parts)
    except ValueError as error:
        if not _MAY_WRITE.search(str(error)):
            raise
    return call(*(None if part is None else part.copy() for part in parts))


def _response(fitted: Any, X: Any, method: str, classes: Array | None) -> Array:
    """Return a response in the form that losses take, with a column for each of all classes."""
    response = np.asarray(getattr(fitted, METHOD_NAMES.get(method, method))(X))
    if method == "predict":
        # An estimator that was fitted on a single column answers by one.
        response = without_single_column(response)
    if method == "distance":
        return response.min(axis=1)
    if classes is None:
        return response
    if method == "predict":
        return predicted_codes(response, classes)
    fitted_classes = fitted.classes_
    if len(fitted_classes) == len(classes):
        return response
    if method != "predict_proba" or response.shape[1] != len(fitted_classes):
        missing = next(label for label in classes if label not in fitted_classes)
        raise ValueError(
            f"cv must make training sets with every class of y, because {method} of "
            f"{name_of(fitted)} is needed for each, got one without class {missing!r}; use fewer "
            "or stratified folds instead."
        )
    of_all = np.zeros((len(response), len(classes)))
    of_all[:, np.searchsorted(classes, fitted_classes)] = response
    return of_all


@contextmanager
def _noting(
    fitted: Any, X: Any, methods: Sequence[str], answers: dict[str, Any]
) -> Generator[None]:
    """Note the first answers of an estimator to these rows, which scores ask for.

    It may answer otherwise if it is asked once more, and would take as long again.
    """

    def answer(ask: Callable[..., Any], method: str, rows: Any, *args: Any, **options: Any) -> Any:
        answered = ask(rows, *args, **options)
        if rows is X:
            answers.setdefault(method, answered)
        return answered

    own = getattr(fitted, "__dict__", {})
    noted = [one for one in methods if one not in answers | own and hasattr(fitted, one)]
    for method in noted:
        ask = getattr(fitted, method)
        own[method] = wraps(ask)(partial(answer, ask, method))
    try:
        yield
    finally:
        for method in noted:
            own.pop(method, None)


def _fresh(part: Any) -> Any:
    """Return rows of which steps may overwrite their own copy; arrays are copied if they can."""
    is_fixed = isinstance(part, np.ndarray) and not part.flags.writeable
    return part if is_fixed or not hasattr(part, "copy") else part.copy()


def _protected(part: Any) -> Any:
    """Return rows whose arrays are read-only."""
    arrays = (part.data, part.indices, part.indptr) if sparse.issparse(part) else (part,)
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return part


@contextmanager
def _explaining(estimator: Any) -> Generator[None]:
    """Say what is wrong with an estimator that writes to the rows that it is given."""
    try:
        yield
    except ValueError as error:
        if not _WRITES.search(str(error)):
            raise
        raise _mutation(estimator) from error


def _mutation(estimator: Any) -> ValueError:
    return ValueError(
        f"estimator must leave the rows unchanged that it is given, but {name_of(estimator)} "
        "changes them in place; it should change a copy."
    )


def _is_finite(estimator: Any) -> bool:
    """Return whether a compiled estimator's model is finite; others say so by an error."""
    last = last_step(estimator)
    if not isinstance(last, CompiledEstimator):
        return True
    arrays = (value for value in vars(last).values() if isinstance(value, np.ndarray))
    return all(np.all(np.isfinite(one)) for one in arrays if one.dtype.kind == "f")


# Seconds between two looks at the parent.
_POLL_SECONDS = 1.0


def end_with(parent: int) -> None:
    """End this process soon after its parent, if that is the process with this number.

    joblib's workers outlive a process that is killed: they finish what they have begun and then
    wait for minutes. Processes of other origin, such as Dask's workers, are left alone.
    """
    if os.getppid() == parent:
        _watch(parent, os.getpid())


@cache  # once per process, also in one that was forked
def _watch(parent: int, worker: int) -> None:
    Thread(target=_end_after, args=(parent, worker), name="treecv-parent", daemon=True).start()


def _end_after(parent: int, worker: int) -> None:
    while os.getppid() == parent:
        sleep(_POLL_SECONDS)
    os.kill(worker, signal.SIGTERM)
