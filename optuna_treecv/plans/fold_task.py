"""Fit and score one fold. This code runs in joblib's workers, which have no access to the run.

The fitted transformers at the beginning of a Pipeline are cached for trials that differ only in
later steps. Worker processes end themselves after their parent has died, because their results
are no longer needed.
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
from types import MappingProxyType
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
from optuna_treecv.preprocessing.reducers import narrow_to
from optuna_treecv.preprocessing.reducers import widen
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

# NumPy's errors for writing to read-only arrays. Compiled code raises the second error, even if it
# requires a writable array without ever writing to it.
_WRITES = re.compile("(assignment destination|output array) is read-only")
_MAY_WRITE = re.compile("buffer source array is read-only")


# The cache of a worker process, shared by all its tasks.
_of_this_process: list[ModelCache] = []


class FoldResult(NamedTuple):
    """The result of one fit.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics,)
        The fold scores; NaN for pooled scores.
    spreads : ndarray of shape (n_metrics, 3)
        The spreads of the row scores; NaN if unknown.
    responses : ndarray of shape (n_rows, n_columns), float64
        The predictions for the test rows that pooled scores and stored outputs need, in columns.
    has_diverged : bool
    n_trained : int
        The number of rows that the model was trained on.
    seconds : float
        The time of fitting and scoring; 0 if the result is cached.
    """

    scores: Array
    spreads: Array
    responses: Array
    has_diverged: bool
    n_trained: int
    seconds: float = 0.0

    @classmethod
    def of(cls, numbers: Array, n_metrics: int, shape: tuple[int, int]) -> "FoldResult":
        """Return the result that ``numbers`` represents, with responses of the given shape."""
        ends = np.cumsum([n_metrics, SPREAD_SIZE * n_metrics, 2])
        scores, spreads, (has_diverged, n_trained), responses = np.split(numbers, ends)
        spreads = spreads.reshape(n_metrics, SPREAD_SIZE)
        return cls(scores, spreads, responses.reshape(shape), bool(has_diverged), int(n_trained))

    def numbers(self) -> Array:
        """Return all fields except ``seconds`` as one array of float64."""
        facts = [self.has_diverged, self.n_trained]
        return np.concatenate([self.scores, self.spreads.ravel(), facts, self.responses.ravel()])

    @staticmethod
    def size(n_metrics: int, shape: tuple[int, int]) -> int:
        """Return the size of the array that ``numbers`` returns."""
        return (1 + SPREAD_SIZE) * n_metrics + 2 + shape[0] * shape[1]


@dataclass(frozen=True)
class FoldTask:
    """The data and settings that the fits of all folds share.

    Attributes
    ----------
    estimator : estimator
        The candidate, in which all seeds are set.
    X, y : the rows as given
    metrics : tuple of Loss, Scorer or Pooled
        The metrics; empty if only predictions are requested.
    score_weights : ndarray of shape (n_rows,) or None
        The weights of the rows in scores.
    classes : ndarray or None
        The sorted classes of y, for classifiers.
    first_steps : FirstSteps or None
        The cache of the fitted transformers at the beginning of Pipelines.
    params : dict
        Further arguments of ``fit``. Arguments with an entry for each row are split into folds.
    is_routed : bool
        Whether scikit-learn's metadata routing is enabled.
    n_targets : int
        The number of columns of y.
    cached_methods : tuple of str
        The response methods whose outputs are returned in addition to those for pooled scores.
    owner : int
        The id of the process to which the results are returned.
    """

    estimator: Any
    X: Any
    y: Any
    metrics: tuple[Metric, ...]
    score_weights: Array | None
    classes: Array | None
    first_steps: "FirstSteps | None"
    params: Mapping[str, Any]
    is_routed: bool
    n_targets: int
    cached_methods: tuple[str, ...] = ()
    owner: int = field(default_factory=os.getpid)

    def naming_step(self) -> AbstractContextManager[None]:
        """Name the failing step of a Pipeline in errors of its fit.

        With metadata routing, the step is not named, because finding it refits the steps without
        metadata.
        """
        return nullcontext() if self.is_routed else naming_step(self.estimator, self.X, self.y)

    def attempt(self, name: bytes, splits: Sequence[Split]) -> list[FoldResult | Exception]:
        """Fit a clone on the training rows and score it on test rows; return errors as results.

        If an error were raised, joblib would kill all workers, also those that other threads use.

        Parameters
        ----------
        name : bytes
            The key of the data, the training rows and the first test rows.
        splits : sequence of Split
            Splits with the same training rows.
        """
        end_with(self.owner)
        results: list[FoldResult | Exception] = []
        try:
            began, train = perf_counter(), splits[0].train_rows()
            n_trained = len(train)
            fitted, X, y = self.fitted(name, train, splits[0].test)
            for split in splits:
                if results:  # the model is fitted
                    began, n_trained = perf_counter(), 0
                    X, y = self._part(self.estimator, split.test.astype(np.intp), train)
                scores = _call_writable(partial(self._scored, fitted, train, split.test), X, y)
                results.append(FoldResult(*scores, n_trained, perf_counter() - began))
        except Exception as error:  # noqa: BLE001  # fits may raise anything
            raised = error if os.getpid() == self.owner else _sendable(error)
            results += [raised] * (len(splits) - len(results))
        return results

    def _scored(
        self, fitted: Any, train: Array, test: Array, X: Any, y: Any
    ) -> tuple[Array, Array, Array, bool]:
        """Return the scores, their spreads, the responses, and whether the model has diverged."""
        if fitted is not None:  # fit may have chosen an estimator that lacks a method
            for metric in self.metrics:
                if getattr(metric, "error_score", None) is None:
                    check_methods(fitted, metric.methods, f"scoring={metric.name!r}")
        weights = None if self.score_weights is None else self.score_weights[test]
        scores = np.full(len(self.metrics), np.nan)
        spreads = unknown_spreads(len(self.metrics), 1)
        pooled = [metric for metric in self.metrics if isinstance(metric, Pooled)]
        methods = dict.fromkeys(response_of(metric, self.estimator) for metric in pooled)
        columns = [self._columns(method, fitted, _fresh(X), len(test)) for method in methods]
        has_diverged = fitted is None or not all(np.isfinite(c).all() for c in columns)
        outputs: dict[str, Any] = {}
        untouched = _fresh(X) if self.cached_methods else X
        for number, metric in enumerate(self.metrics):
            if isinstance(metric, Pooled):
                continue
            scores[number] = metric.if_diverged
            if isinstance(metric, Scorer) and metric.is_of_training and fitted is not None:
                own_X, own_y = self._part(fitted, train)
                own_weights = None if self.score_weights is None else self.score_weights[train]
                scores[number] = self._score(metric, fitted, own_X, own_y, own_weights)
            elif isinstance(metric, Scorer) and fitted is not None:
                with _recording(fitted, X, self.cached_methods if metric.is_made else (), outputs):
                    scores[number] = self._score(metric, fitted, X, y, weights)
                has_diverged |= scores[number] == metric.if_diverged
                if metric.is_zero_one and weights is None:
                    n_rows = np.array([len(test)])
                    spreads[number] = spread_of_counts(scores[[number]], n_rows)
            elif isinstance(metric, Loss) and fitted is not None:
                with _explaining(fitted), _recording(fitted, X, self.cached_methods, outputs):
                    loss = mean_loss(metric, fitted, X, y, weights, self.classes)
                scores[number], spreads[number] = loss.scores[0], loss.spreads
                has_diverged |= bool(loss.diverged[0])
        for method in self.cached_methods:
            columns.append(self._columns_to_cache(method, fitted, untouched, outputs, len(test)))
        responses = np.hstack([np.empty((len(test), 0)), *columns])
        return scores, spreads[:, :, 0], responses, has_diverged

    def _score(self, metric: Scorer, fitted: Any, X: Any, y: Any, weights: Array | None) -> float:
        """Return the score that a scorer gives."""
        takes_weights = weights is not None and metric.takes_weights
        params = {"sample_weight": weights} if takes_weights else {}
        with _explaining(fitted):
            return score_of(metric, fitted, X, y, self.classes, params)

    def respond(self, split: Split, method: str) -> Array:
        """Fit a clone on the training rows and return its predictions for the test rows."""
        end_with(self.owner)
        fitted, X = self._fitted_and_rows(split)
        with _explaining(fitted):
            return _call_writable(partial(self._responded, fitted, method), X)

    def fitted_on(self, split: Split) -> Any:
        """Return a clone that is fitted on the training rows."""
        end_with(self.owner)
        return self._fitted_and_rows(split)[0]

    def _fitted_and_rows(self, split: Split) -> tuple[Any, Any]:
        fitted, X, _ = self.fitted(b"", split.train_rows(), split.test)
        if fitted is None:
            raise ValueError(f"{name_of(self.estimator)} diverges: its model is not finite.")
        return fitted, X

    def _responded(self, fitted: Any, method: str, X: Any) -> Array:
        if method != "predict":
            return _response(fitted, X, method, self.classes)
        predicted: Array = without_single_column(fitted.predict(X))
        in_columns(predicted, method, fitted, self.classes, self.n_targets)
        return predicted

    def fitted(self, name: bytes, train: Array, test: Array) -> tuple[Any, Any, Any]:
        """Return a fitted clone, or None if its model is not finite, and X and y for testing."""
        estimator = clone(self.estimator)
        X, y = self._part(estimator, train)
        test_X, test_y = self._part(estimator, test.astype(np.intp), train)
        caching: AbstractContextManager[None] = nullcontext()
        # A subclass of Pipeline may fit its steps on other rows, so its steps are not cached.
        if self.first_steps is not None and type(estimator) is Pipeline:
            caching = self.first_steps.of_fold(under_configuration(name)).used_by(estimator)
        try:
            with _explaining(estimator), keeping_rows(estimator), caching:
                self._fit(estimator, X, y, train)
        except ValueError as error:
            if not is_divergence(error):
                raise
            return None, test_X, test_y
        return estimator if _is_finite(estimator) else None, test_X, test_y

    def last_fitted(self, name: bytes, train: Array, test: Array) -> tuple[Any, Any]:
        """Return the last step of a fitted clone, and the preprocessed test rows."""
        last, X, _ = self.fitted(name, train, test)
        for _, step in steps_before(last):
            X = step.transform(X)
        return last_step(last), X

    def _part(self, estimator: Any, rows: Array, train: Array | None = None) -> tuple[Any, Any]:
        """Return read-only X and y of some rows, in the form that an estimator needs.

        Arrays are indexed directly, because ``_safe_split`` takes several times longer. For test
        rows, it needs the training rows ``train`` if the estimator takes pairwise distances.
        """
        X, y = self.X, self.y
        are_arrays = type(X) is np.ndarray and (y is None or type(y) is np.ndarray)
        if are_arrays and not get_tags(estimator).input_tags.pairwise:
            X, y = X[rows], None if y is None else y[rows]
        else:
            X, y = _safe_split(estimator, X, y, rows, train)
        return _protected(X), _protected(y)

    def _fit(self, estimator: Any, X: Any, y: Any, train: Array) -> None:
        """Fit an estimator on training rows, with these rows' entries of further arguments."""
        params = part_of(self.params, self.X, train)
        routing = config_context(enable_metadata_routing=self.is_routed)
        labels, is_frame = () if y is None else (y,), hasattr(X, "columns")
        shape = np.shape(X) if is_frame else ()
        with routing if params else nullcontext():
            _call_writable(partial(estimator.fit, **params), X, *labels)
        if is_frame and np.shape(X) != shape:
            raise _mutation(estimator)

    def _columns(self, method: str, fitted: Any, X: Any, n_rows: int) -> Array:
        """Return the predictions by a method, in columns."""
        if fitted is None:
            return np.full((n_rows, n_columns(method, self.classes, self.n_targets)), np.nan)
        with _explaining(fitted):
            predicted = _response(fitted, X, method, self.classes)
        columns = in_columns(predicted, method, fitted, self.classes, self.n_targets)
        return columns.astype(np.float64)

    def _columns_to_cache(
        self, method: str, fitted: Any, X: Any, outputs: Mapping[str, Any], n_rows: int
    ) -> Array:
        """Return predictions that no score needs; NaN if the method fails or omits rows.

        An error in this method, or random numbers that it draws, must not change a trial.
        """
        state = np.random.get_state()  # noqa: NPY002  # estimators draw from it
        if method in outputs:
            classes = getattr(fitted, "classes_", None)
            fitted = SimpleNamespace(**{method: lambda _: outputs[method]}, classes_=classes)
        try:
            columns = self._columns(method, fitted, X, n_rows)
        except Exception:  # noqa: BLE001
            columns = np.empty((0, 0))
        finally:
            np.random.set_state(state)  # noqa: NPY002
        return columns if len(columns) == n_rows else self._columns(method, None, X, n_rows)


class FirstSteps:
    """A cache of the fitted transformers at the beginning of Pipelines.

    Each worker process of joblib has its own cache. With the key of training rows, an object of
    this class is the ``memory`` of a Pipeline that is fitted on these rows.

    Parameters
    ----------
    cached_steps : ModelCache
        The cache of the process in which the object was created.
    max_bytes : int
        The size of the cache in each worker process.
    name : bytes
        The key of the training rows.
    sizes : mapping
        The largest numbers of columns in the search, from ``find_largest_sizes``.
    """

    def __init__(
        self,
        cached_steps: ModelCache,
        max_bytes: int,
        name: bytes = b"",
        sizes: Mapping[type, int] = MappingProxyType({}),
    ) -> None:
        self.cached_steps = cached_steps
        self._max_bytes, self._sizes = max_bytes, sizes
        self._start = digest(b"beginning", name)
        self._name: bytes | None = self._start  # the key of the steps that were fitted so far

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self._max_bytes, dict(self._sizes))

    def of_fold(self, name: bytes) -> "FirstSteps":
        """Return the cache of steps that are fitted on the training rows with the key ``name``."""
        return FirstSteps(self.cached_steps, self._max_bytes, name, self._sizes)

    @contextmanager
    def used_by(self, pipeline: Any) -> Generator[None]:
        """Use this as the ``memory`` of a Pipeline within the block, unless a memory is set.

        It is removed after the block, because a scorer may fit the Pipeline on other rows.
        """
        previous = pipeline.memory
        if previous is None:
            pipeline.memory = self
        try:
            yield
        finally:
            pipeline.memory = previous

    def cache(self, fit_transform: Callable[..., Any], ignore: object = ()) -> Callable[..., Any]:
        """Return a function that fits a step and transforms the rows, or returns cached results.

        A Pipeline calls this method once at the start of each fit.
        """
        self._name = self._start
        return partial(self._call, fit_transform)

    def _call(
        self, fit_transform: Callable[..., Any], step: Any, X: Any, *args: Any, **options: Any
    ) -> Any:
        before = self._name
        try:
            self._name = None if before is None else digest(before, encode(step))
        except NoKey:
            self._name = None
        if before is None or self._name is None:
            return fit_transform(step, X, *args, **options)
        wide = widen(step, X, self._sizes)
        if wide is not None:
            name = digest(before, encode(wide))
            compute = partial(fit_transform, wide, X, *args, **options)
            transformed, fitted = self._find(name, compute)
            if (narrow := narrow_to(step, fitted, X, transformed)) is not None:
                return narrow
        return self._find(self._name, partial(fit_transform, step, X, *args, **options))

    def _find(self, name: bytes, compute: Callable[[], Any]) -> Any:
        """Return the cached result with this key, or compute and cache it."""
        key = Key(name, b"", b"", b"beginning")
        pickled = self.cached_steps.find(key)
        if pickled is not None:
            return pickle.loads(pickled.data)
        began = perf_counter()
        result = compute()
        seconds = perf_counter() - began
        try:
            array = np.frombuffer(pickle.dumps(result, protocol=5), np.uint8)
        except Exception:  # noqa: BLE001  # a step that cannot be pickled is always fitted anew
            return result
        self.cached_steps.keep(key, array, seconds)
        return result


def _in_this_process(max_bytes: int, sizes: Mapping[type, int]) -> FirstSteps:
    if not _of_this_process or _of_this_process[0].max_bytes != max_bytes:
        _of_this_process[:] = [ModelCache(max_bytes)]
    return FirstSteps(_of_this_process[0], max_bytes, sizes=sizes)


def mean_loss(
    loss: Loss, fitted: Any, X: Any, y: Any, weights: Array | None, classes: Array | None
) -> FoldScores:
    """Return the mean loss of a fitted estimator.

    The estimator has diverged if a prediction or a loss is not finite.

    Parameters
    ----------
    loss : Loss
    fitted : estimator
    X, y : rows as given
    weights : ndarray of shape (n_rows,) or None
    classes : ndarray or None
        The sorted classes of y, for classifiers.
    """
    targets = None
    if classes is not None:
        targets = as_codes(np.ravel(y), classes)
    elif y is not None:
        targets = as_numbers(without_single_column(y))
    method, n_targets = loss.methods, count_targets(targets)
    outputs = in_columns(_response(fitted, X, method, classes), method, fitted, classes, n_targets)
    predicted = outputs[:, 0] if outputs.shape[1] == 1 else outputs
    rows = TestedRows(outputs, lambda *_: predicted, targets, weights, np.zeros(1, np.intp))
    return by_loss(loss, rows)


def _sendable(error: Exception) -> Exception:
    """Return an error that can be pickled, with its traceback in a note."""
    where = format_exc()
    try:
        pickle.loads(dumps(error))
    except Exception:  # noqa: BLE001  # such an error would break the pool of processes
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(where)
    return error


def _call_writable(call: Callable[..., T], *parts: Any) -> T:
    """Return ``call(*parts)``; if compiled code requires writable arrays, pass copies of them."""
    try:
        return call(*parts)
    except ValueError as error:
        if not _MAY_WRITE.search(str(error)):
            raise
    return call(*(None if part is None else part.copy() for part in parts))


def _response(fitted: Any, X: Any, method: str, classes: Array | None) -> Array:
    """Return predictions in the form that losses need, with a column for each class of y."""
    response = np.asarray(getattr(fitted, METHOD_NAMES.get(method, method))(X))
    if method == "predict":
        # If y was a single column, some estimators predict an array of shape (n_rows, 1).
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
        missing = next(label for label in classes.tolist() if label not in fitted_classes)
        raise ValueError(
            f"cv must make training sets with every class of y, got a training set without class "
            f"{missing!r}: {method} of {name_of(fitted)} must return a value for each "
            "class; use fewer or stratified folds instead."
        )
    of_all = np.zeros((len(response), len(classes)))
    of_all[:, np.searchsorted(classes, fitted_classes)] = response
    return of_all


@contextmanager
def _recording(
    fitted: Any, X: Any, methods: Sequence[str], outputs: dict[str, Any]
) -> Generator[None]:
    """Record the first predictions of an estimator for the rows X while it is scored.

    A second call could return other predictions, and would take as long as the first.
    """

    def record(call: Callable[..., Any], method: str, rows: Any, *args: Any, **kwargs: Any) -> Any:
        predicted = call(rows, *args, **kwargs)
        if rows is X:
            outputs.setdefault(method, predicted)
        return predicted

    attributes = getattr(fitted, "__dict__", {})
    wrapped = [m for m in methods if m not in outputs | attributes and hasattr(fitted, m)]
    for method in wrapped:
        call = getattr(fitted, method)
        attributes[method] = wraps(call)(partial(record, call, method))
    try:
        yield
    finally:
        for method in wrapped:
            attributes.pop(method, None)


def _fresh(part: Any) -> Any:
    """Return rows that steps may overwrite; arrays are copied unless they are read-only."""
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
    """Return a context that explains the error of an estimator that overwrites its rows."""
    try:
        yield
    except ValueError as error:
        if not _WRITES.search(str(error)):
            raise
        raise _mutation(estimator) from error


def _mutation(estimator: Any) -> ValueError:
    return ValueError(
        f"estimator must not change the rows passed to it, but {name_of(estimator)} changes them "
        "in place; let it change a copy instead."
    )


def _is_finite(estimator: Any) -> bool:
    """Return whether a compiled estimator's model is finite; True for other estimators."""
    last = last_step(estimator)
    if not isinstance(last, CompiledEstimator):
        return True
    arrays = (value for value in vars(last).values() if isinstance(value, np.ndarray))
    return all(np.all(np.isfinite(array)) for array in arrays if array.dtype.kind == "f")


# The time between two checks whether the parent process is alive, in seconds.
_POLL_SECONDS = 1.0


def end_with(parent: int) -> None:
    """End this process soon after its parent ends, if ``parent`` is the id of its parent.

    joblib's workers outlive a process that is killed: they finish their tasks and then wait for
    minutes. Processes with another parent, such as Dask's workers, are not ended.
    """
    if os.getppid() == parent:
        _watch(parent, os.getpid())


@cache  # called once per process, also in a forked one, because its arguments differ
def _watch(parent: int, worker: int) -> None:
    Thread(target=_end_after, args=(parent, worker), name="treecv-parent", daemon=True).start()


def _end_after(parent: int, worker: int) -> None:
    while os.getppid() == parent:
        sleep(_POLL_SECONDS)
    os.kill(worker, signal.SIGTERM)
