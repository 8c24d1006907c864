"""The base class of families: estimators of one class whose folds are evaluated jointly.

A family is bound to prepared rows and to several *candidates*. These are estimators of one class
that differ only in a few free parameters, such as ``alpha``.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import Key
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import parameter_names
from optuna_treecv.numerics.blas import one_blas_thread
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import FoldsLeftOut
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.preprocessing.decisions import decisions_for
from optuna_treecv.preprocessing.decisions import why_not_ahead
from optuna_treecv.preprocessing.parts import COMPOSED
from optuna_treecv.preprocessing.parts import Kind
from optuna_treecv.preprocessing.parts import ModelsFrom
from optuna_treecv.preprocessing.parts import steps_before
from optuna_treecv.preprocessing.reducers import FREE_PARAMETERS
from optuna_treecv.preprocessing.reducers import split_linear
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import FoldPairs
from optuna_treecv.rows.folds import Folds
from optuna_treecv.types import Estimator


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The properties of a request that are known before its rows are prepared.

    Every family supports an evaluation with the default values.

    Attributes
    ----------
    n_features : int
    is_sparse : bool
    has_weights : bool
        Whether training uses sample weights.
    n_trained : int
        The number of rows of the smallest training set.
    n_of_class : int
        The smallest number of rows of a class in a training set; ``n_trained`` for regressors.
    n_folds : int
        The number of folds of a repeat; 0 if unknown.
    is_requested : bool
        Whether ``method`` names the engine, or the rows are remote, which no other engine
        supports.
    is_searched : bool
        Whether several values of a free parameter are evaluated.
    n_outputs : int
        The number of classes, or of targets.
    has_scaler : bool
        Whether a StandardScaler precedes the estimator.
    """

    n_features: int = 1
    is_sparse: bool = False
    has_weights: bool = False
    n_trained: int = 2
    n_of_class: int = 2
    n_folds: int = 0
    is_requested: bool = False
    n_outputs: int = 1
    is_searched: bool = False
    has_scaler: bool = False

    @property
    def n_models(self) -> int:
        """The number of linear models per fold: one for two classes."""
        return self.n_outputs if self.n_outputs > 2 else 1


class Family(ABC):
    """Several candidates of one estimator class, bound to prepared rows.

    Parameters
    ----------
    estimators : sequence of estimators
        The candidates. They differ only in ``parameters``.
    rows : PreparedRows
        Padded and without a column of ones. X may be sparse. ``targets`` are class codes, or the
        y of a regression with the shape (n_rows,) or (n_rows, n_targets).
    scaler : StandardScaler or None
        The step that precedes the estimators. It is fitted on the training rows of each fold.
    n_jobs : int
        The number of threads. Results do not depend on it.

    Attributes
    ----------
    parameters : tuple of str
        The free parameters: those in which the estimators may differ.
    ignored : tuple of str
        The parameters of iterative solvers, such as ``tol``, which are ignored because models are
        solved to convergence.
    is_slow_left_out : bool
        Whether leave-one-out needs an iterative search for each held-out row.
    maps_need_dense_rows : bool
        Whether transformers that are fitted per fold need dense rows.
    maps_moments : bool
        Whether models are computed from moments, to which transformers can be applied. If so,
        there are ``models_of`` and ``predict``, and moments of rows are cached in
        ``shared_cache`` if it is set.
    column_masks : ndarray of shape (n_candidates, n_features), bool, or None
        If models are not computed from moments, the columns that each candidate uses; None: all.
    depends_on_rotation : bool
        Whether models change if the columns of the rows are rotated.
    is_linear : bool
        Whether the models are linear, so that ``linear_models`` can return them.
    has_link : bool
        Whether regressors predict functions of linear combinations.
    n_candidates : int
        The number of estimators.
    n_distinct : int
        The number of candidates whose models are computed. It is 1 if the free parameters have no
        effect on the models, and otherwise ``n_candidates``.
    """

    parameters: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    is_slow_left_out = False
    maps_need_dense_rows = False
    maps_moments = False
    depends_on_rotation = False
    shared_cache: ArrayCache | None = None
    column_masks: np.ndarray | None = None
    is_linear = False
    has_link = False

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        self.n_candidates = self.n_distinct = len(estimators)
        #: (rows) -> this family bound to other rows, with one thread.
        self.make = partial(type(self), estimators, scaler=scaler, n_jobs=1)
        self.rows = self._rows = rows
        self._scaler, self._n_jobs = scaler, n_jobs
        self._bind(estimators)

    @abstractmethod
    def _bind(self, estimators: Sequence[Any]) -> None:
        """Set the attributes that depend on the estimators."""

    @classmethod
    @abstractmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the family cannot evaluate an estimator, or "" if it can."""

    @classmethod
    def ignored_by(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the ignored parameters. There are none if scikit-learn's solver is direct."""
        return cls.ignored

    @abstractmethod
    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Convert the outputs of a model to the predictions of an estimator's method.

        Parameters
        ----------
        outputs : ndarray of shape (n_rows, n_outputs)
        method : {"predict", "decision_function", "predict_proba"}

        Returns
        -------
        ndarray
            As returned by the estimator's method, except that ``predict`` of classifiers returns
            class codes.
        """

    def squares(
        self, chunks: Chunks, cached: ArrayCache
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squared errors of each fold, computed without predictions.

        Returns
        -------
        errors : ndarray of shape (n_candidates, n_scored, n_targets)
            sum w (y - prediction)^2 of the rows between two ``chunks.scored_bounds``.
        totals : ndarray of shape (n_scored, n_targets)
            sum w (y - mean)^2, where the mean is that of the same test rows.
        weights : ndarray of shape (n_scored,)
            sum w. The method returns None instead of three arrays if predictions are needed.
        """
        return None

    def linear_models(self, chunks: Chunks, cached: ArrayCache) -> tuple[np.ndarray, np.ndarray]:
        """Return the models of the first candidate, which has no transformers.

        Returns
        -------
        coef : ndarray of shape (n_chunks, n_outputs, n_features)
        intercept : ndarray of shape (n_chunks, n_outputs)
        """
        raise NotImplementedError

    @abstractmethod
    def test(self, chunks: Chunks, cached: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Predict the test rows of each chunk with models that are trained on its training rows.

        Parameters
        ----------
        chunks : Chunks
        cached : callable
            An ``ArrayCache``.
        most_rows : int
            The maximum number of test rows to yield together. A chunk is never divided.

        Yields
        ------
        (slice, ndarray of shape (n_candidates, n_rows, n_outputs))
            A slice of consecutive chunks, and the outputs for their test rows. The slices are in
            the order of the chunks.

        Raises
        ------
        ValueError
            If a model is not defined on its training rows.
        """


def to_predictions(outputs: np.ndarray, method: str) -> np.ndarray:
    """Convert outputs to class codes (for "predict") or decision values.

    Two classes have a single output, which is positive for the second class.
    """
    if outputs.shape[1] > 1:
        return argmax_of_rows(outputs) if method == "predict" else outputs
    return (outputs[:, 0] > 0).astype(np.intp) if method == "predict" else outputs[:, 0]


def argmax_of_rows(outputs: np.ndarray) -> np.ndarray:
    """Return ``outputs.argmax(axis=1)``.

    This is faster than ``argmax`` if the outputs of a class are contiguous in memory, because the
    classes are compared one after another.
    """
    best, codes = outputs[:, 0].copy(), np.zeros(len(outputs), dtype=np.intp)
    for code in range(1, outputs.shape[1]):
        is_larger = outputs[:, code] > best
        np.copyto(best, outputs[:, code], where=is_larger)
        codes[is_larger] = code
    return codes


class Parts(NamedTuple):
    """An estimator, divided into its preprocessing and its last step.

    Attributes
    ----------
    steps : tuple of transformers
        The stateless steps that precede the scaler. If ``kinds`` is not empty, a single Pipeline
        of all steps that precede the scaler.
    scaler : StandardScaler or None
        The step that precedes the last one, if the family fits it per fold.
    last : estimator
        The last step.
    family : type
        The family of the last step.
    prefix : str
        The prefix of the parameters of the last step in the parameters of the whole estimator.
    kinds : mapping of str to Kind
        For each transformer, by its path, how it is fitted. Empty if all are stateless and no
        ``Table`` is needed.
    linear : tuple of (str, transformer)
        The last transformers, which reduce columns by linear maps that are fitted per fold.
    """

    steps: tuple[Estimator, ...]
    scaler: StandardScaler | None
    last: Estimator
    family: type[Family]
    prefix: str
    kinds: Mapping[str, Kind]
    linear: tuple[tuple[str, Estimator], ...] = ()

    @property
    def has_one_form(self) -> bool:
        """Whether the transformed rows must be sparse for all training sets or dense for all.

        This is not necessary if models of sparse and of dense rows are the same.
        """
        steps = self.steps[0]
        *_, last = [step for _, step in steps.steps] if self.scaler is None else [None]
        tables = [x for x in steps.get_params().values() if type(x) is ColumnTransformer]
        facts = Facts(is_sparse=True, is_requested=True)
        return any(table is not last for table in tables) or bool(
            self.family.why_not(self.last, facts)
        )

    @property
    def names(self) -> list[str]:
        """The free parameters of the last step."""
        kind: Any = type(self.last)
        return [name for name in self.family.parameters if name in parameter_names(kind)]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The free parameters of the whole estimator."""
        return (*(self.prefix + name for name in self.names), *self.linear_parameters)

    @property
    def linear_parameters(self) -> list[str]:
        """The free parameters of the transformers that reduce columns."""
        steps = [(name, FREE_PARAMETERS.get(type(step))) for name, step in self.linear]
        return [f"{name}__{parameter}" for name, parameter in steps if parameter]


def split_for_family(
    estimator: Any, families: Mapping[type, type[Family]], unsupported: str = "{} is of no family"
) -> Parts | str:
    """Divide an estimator into its parts, or return the reason why no family supports it.

    Parameters
    ----------
    estimator : estimator
    families : mapping of type to type
    unsupported : str
        The reason if the class of the last step has no family. ``{}`` stands for its name.
    """
    all_before, (prefix, last) = steps_before(estimator), divided(estimator)
    if type(last) not in families:
        return unsupported.format(type(last).__name__)
    before, linear = split_linear(all_before)
    if any(step is not dict(estimator.steps).get(name) for name, step in linear):
        return f"the Pipeline that contains {linear[0][0]!r} is nested"
    if len(dict(before)) < len(before):  # names of nested Pipelines may be the same
        before = [(f"{name}-{number}", step) for number, (name, step) in enumerate(before)]
    decisions = decisions_for(Pipeline([*before, *linear, ("", last)]), ModelsFrom.SUMS)
    if reason := why_not_ahead(decisions, ModelsFrom.SUMS, last):
        return reason
    del decisions[len(decisions) - len(linear) :]
    scaler, n_on_sums = None, sum(decision.kind is Kind.FROM_SUMS for decision in decisions)
    if n_on_sums == 1 and type(before[-1][1]) is StandardScaler and not linear:
        scaler, n_on_sums = before.pop()[1], 0
        del decisions[-1]
    steps = tuple(step for _, step in before)
    are_alike = all(decision.kind is Kind.STATELESS for decision in decisions)
    if are_alike and not any(type(step) in COMPOSED for step in steps):
        return Parts(steps, scaler, last, families[type(last)], prefix, {}, tuple(linear))
    kinds = {decision.path: decision.kind for decision in decisions}
    family = families[type(last)]
    return Parts((Pipeline(before),), scaler, last, family, prefix, kinds, tuple(linear))


class CachedSums:
    """A cache for the arrays of a family, in the form of a ``numerics.moments.ArrayCache``.

    Other candidates find the arrays in the ``ModelCache``. During one evaluation, this object also
    keeps references to them. They are therefore computed once even if the ``ModelCache`` is full.

    Parameters
    ----------
    cache : ModelCache or None
    name : bytes
        A digest of everything on which the arrays depend. If it is empty, the ``ModelCache`` is
        not used.
    """

    def __init__(self, cache: ModelCache | None = None, name: bytes = b"") -> None:
        self._cache = cache if name else None
        self._name = name
        self._arrays: dict[Key, np.ndarray] = {}
        self._n_made = 0

    @property
    def were_cached(self) -> bool:
        """Whether arrays were requested and all of them were found in the ``ModelCache``."""
        return bool(self._arrays) and self._n_made == 0

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return the cached array with this name, or compute and cache it."""
        key = Key(self._name, b"", b"", b"sums " + name.encode(), 8 * size)
        if key not in self._arrays:
            memory = None if self._cache is None else self._cache.find(key)
            if memory is None:
                self._n_made += 1
                start, memory = perf_counter(), np.empty(size)
                make(memory)
                memory.flags.writeable = False
                if self._cache is not None:
                    self._cache.keep(key, memory, perf_counter() - start)
            self._arrays[key] = memory
        return self._arrays[key]


def describe_ignored(names: Sequence[str]) -> str:
    """Return a space and a sentence about ignored parameters, or "" if there are none."""
    text = f" Models are solved to convergence, so {', '.join(names[:-1])} and "
    return f"{text}{names[-1]} are ignored." if names else ""


def make_chunks(cut: Cut) -> Chunks:
    """Return the training and test rows of each fold as indices of prepared rows."""
    if isinstance(cut, Folds):
        return Chunks(cut.n_rows, cut.begins())
    if isinstance(cut, FoldPairs):
        return FoldsLeftOut.of(make_chunks(cut.folds), cut.models)
    trains: list[list[RowIndices]] = []
    for chunk in range(cut.n_folds):
        rows = cut.prepared(cut.split(chunk).train_rows())
        is_prefix = len(rows) and np.array_equal(rows, np.arange(len(rows)))
        trains.append([slice(0, len(rows)) if is_prefix else rows])
    return Chunks(cut.n_rows, cut.begins(), cut.prepared(cut.tested_from(0, cut.n_folds)), trains)


@contextmanager
def computing() -> Generator[None]:
    """A context for numerical code: one BLAS thread, and no NumPy warnings about infinity or NaN.

    A ``LinAlgError`` is replaced by a ValueError that names its usual cause.
    """
    try:
        with one_blas_thread(), np.errstate(all="ignore"):
            yield
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "X must consist of numbers whose squares can be summed in float64, got larger numbers "
            f"({error}); use X / np.abs(X).max() instead."
        ) from error
