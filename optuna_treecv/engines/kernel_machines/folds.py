"""Candidates of a kernel machine, evaluated on all folds from Gram matrices.

If neither the preprocessing nor the kernel depends on the training rows, one Gram matrix of all
rows serves all folds. Otherwise, each fold has its own, of its training and its test rows.
"""

from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.metrics.pairwise import pairwise_kernels

from optuna_treecv.caching.keys import digest
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram
from optuna_treecv.engines.kernel_machines.kernels.gram import rbf_gram
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import lay_out
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.fits import make_fold_task
from optuna_treecv.plans.fits import order_in_tree
from optuna_treecv.preprocessing.decisions import why_not_rowwise
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.memory import empty_rows
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque

# The maximum size in bytes of the transformed rows of all folds that are cached for other kernels.
_MAX_BYTES = 2**27

# With at most this many columns, rows of a Gram matrix are computed one by one as fast as by BLAS.
_MOST_COLUMNS = 32

# With fewer folds, their problems are not started from the solutions with all rows.
_MIN_FOLDS = 4

#: The training rows and the test rows of a fold, as indices of rows of the Gram matrix.
Split = tuple[Array, Array]


class KeepRows(BaseEstimator):
    """The last step of a Pipeline, in place of the kernel machine: its ``fit`` only keeps X."""

    def fit(self, X: Features, y: Opaque = None) -> "KeepRows":
        """Store X."""
        self.X_ = X
        return self


class KernelFolds(Family):
    """Candidates of one kernel machine that differ only in its free parameters.

    Parameters
    ----------
    request : Request
    parts : Parts
        The divided estimator.
    repeat : Repeat
    rows : PreparedRows
        Only their ``classes`` are read.
    candidates : sequence of estimators
    method : str
        The response method of the predictions, such as "decision_function". If "", all methods
        that the scores need.
    """

    def __init__(
        self,
        request: Request,
        parts: Parts,
        repeat: Repeat,
        rows: PreparedRows,
        candidates: Sequence[Candidate],
        method: str,
    ) -> None:
        self._cut, self._classes = repeat.cut, rows.classes
        self._y = request.data.y
        if rows.classes is not None:
            self._y = as_codes(self._y, rows.classes)
        self._weights = request.metadata.weights
        self._data_key = request.cross_validation.data_key()[0]
        self._is_stateless = not any(map(why_not_rowwise, parts.steps))
        scored = [response_of(metric, candidates[0]) for metric in request.scoring.metrics]
        methods = [method] if method else [*scored, *request.stored_methods]
        width = count_targets(self._y)
        self._columns, self._width = lay_out(list(dict.fromkeys(methods)), rows.classes, width)
        task = make_fold_task(request, candidates[0], repeat, shares_steps=True)
        step = {parts.prefix.removesuffix("__"): KeepRows()} if parts.prefix else {}
        estimator = task.estimator.set_params(**step) if step else KeepRows()
        self._fold_task = replace(task, estimator=estimator, params={})
        self._transformed: dict[int, tuple[Features, Features]] = {}
        lasts = [last_step(candidate) for candidate in candidates]
        super().__init__(lasts, rows, None, request.settings.n_threads)

    def _bind(self, estimators: Sequence[Estimator]) -> None:
        for estimator in estimators:
            estimator._validate_params()  # raises the error of scikit-learn's fit
        self._estimators = estimators

    def response(self, outputs: Array, method: str) -> Array:
        """Return the columns of a response method; class codes for "predict" of a classifier."""
        columns = outputs[:, self._columns[method]]
        if method == "predict" and self._classes is not None:
            return columns[:, 0].astype(np.intp)
        return columns[:, 0] if columns.shape[1] == 1 and self._y.ndim == 1 else columns

    @classmethod
    def depends_on_rows(cls, estimator: Estimator) -> bool:
        """Return whether the kernel depends on the training rows."""
        return False

    @abstractmethod
    def compute_gram(
        self, estimator: Estimator, X: Features, X_train: Features, rows: Array, out: Array
    ) -> Gram:
        """Return the Gram matrix of the rows X, with the kernel for these training rows.

        ``rows`` are the indices of X in the given X, and ``out`` is the memory of the matrix.
        """

    def sort_rows(self, rows: Array) -> Array:
        """Return the order that these training rows shall have in the Gram matrix."""
        return np.arange(len(rows))

    def find_starts(self, gram: Gram, rows: Array, estimators: Sequence[Estimator]) -> Opaque:
        """Return solutions with all rows, from which the solutions of folds start; or None."""
        return None

    @abstractmethod
    def predict_folds(
        self,
        gram: Gram,
        rows: Array,
        splits: Sequence[Split],
        estimators: Sequence[Estimator],
        starts: Opaque,
    ) -> Iterator[Array]:
        """Yield the outputs for the test rows of each split, (n_estimators, n_test_rows, width).

        Parameters
        ----------
        gram : Gram
            Of shape (n_rows, n_rows).
        rows : ndarray of shape (n_rows,)
            The indices of its rows in the given X.
        splits : sequence of (ndarray, ndarray)
        estimators : sequence of estimators
            The candidates with this kernel.
        starts : object
            What ``find_starts`` returned.
        """

    def test(self, chunks: Chunks, cached: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Yield the predictions for the test rows of all chunks."""
        n_chunks, bounds = chunks.n_chunks, chunks.bounds - chunks.bounds[0]
        outputs = np.empty((self.n_candidates, bounds[-1], self._width))
        groups: dict[str, list[int]] = {}
        for number, estimator in enumerate(self._estimators):
            groups.setdefault(self._kernel_name(estimator), []).append(number)
        for numbers in groups.values():
            estimators = [self._estimators[number] for number in numbers]
            if self.has_gram_per_fold(estimators[0]):
                starts = None
                if n_chunks >= _MIN_FOLDS:
                    gram, rows = self._make_gram(None, estimators[0])[:2]
                    starts = self.find_starts(gram, rows, estimators)
                    del gram  # so that its memory is used again
                predict = partial(self._predict_chunk, estimators, starts)
                predicted = in_order(self._n_jobs, predict, range(n_chunks))
            else:
                predicted = self._predict_from_one_gram(estimators, n_chunks)
            for chunk, of_chunk in enumerate(predicted):
                of_rows = np.s_[bounds[chunk] : bounds[chunk + 1]]
                order = order_in_tree(self._cut, chunk)
                outputs[numbers, of_rows] = of_chunk[:, order]
        self._transformed.clear()
        yield slice(0, n_chunks), outputs

    def has_gram_per_fold(self, estimator: Estimator) -> bool:
        """Return whether each fold has its own Gram matrix."""
        return not self._is_stateless or self.depends_on_rows(estimator)

    def _kernel_name(self, estimator: Estimator) -> str:
        """Return a name that is equal for candidates with equal Gram matrices."""
        return repr(getattr(estimator, "gamma", None))

    def _predict_from_one_gram(
        self, estimators: Sequence[Estimator], n_chunks: int
    ) -> Iterator[Array]:
        """Yield the outputs of all chunks, from one Gram matrix of all rows."""
        gram, rows, _ = self._make_gram(None, estimators[0])
        position = np.argsort(rows)
        splits = []
        for chunk in range(n_chunks):
            train, test = self._cut.split(chunk).train_rows(), self._cut.test_rows(chunk)
            splits.append((position[train], position[test]))
        starts = self.find_starts(gram, rows, estimators) if n_chunks >= _MIN_FOLDS else None
        yield from self.predict_folds(gram, rows, splits, estimators, starts)

    def _predict_chunk(self, estimators: Sequence[Estimator], starts: Opaque, chunk: int) -> Array:
        """Return the outputs of a chunk, from the Gram matrix of its rows."""
        gram, rows, split = self._make_gram(chunk, estimators[0])
        return next(self.predict_folds(gram, rows, [split], estimators, starts))

    def _make_gram(self, chunk: int | None, estimator: Estimator) -> tuple[Gram, Array, Split]:
        """Return a Gram matrix, the indices of its rows in the given X, and the split.

        It has the training rows of a chunk and, after them, its test rows. If ``chunk`` is None,
        it has all rows, of which all are training rows.
        """
        if chunk is None:
            train, test = np.arange(self._cut.n_rows), np.empty(0, np.intp)
        else:
            train, test = self._cut.split(chunk).train_rows(), self._cut.test_rows(chunk)
        rows, n_train = np.concatenate([train, test]), len(train)
        order = np.concatenate([self.sort_rows(train), np.arange(n_train, len(rows))])
        position = np.argsort(order[:n_train])
        X_train, X_test = self._transform(chunk, train, test)
        X = X_train
        if len(test):
            stack = sparse.vstack if sparse.issparse(X_train) else np.concatenate
            X = stack([X_train, X_test])
        memory = empty_rows((len(rows), len(rows)), np.float64)
        rows = rows[order]
        gram = self.compute_gram(estimator, take_rows(X, order), X_train, rows, memory)
        return gram, rows, (position, np.arange(n_train, len(rows)))

    def _transform(
        self, chunk: int | None, train: Array, test: Array
    ) -> tuple[Features, Features]:
        """Return the training rows and the test rows after the preprocessing, in float64.

        Raises
        ------
        ValueError
            If a number is not finite.
        """
        key = -1 if chunk is None else chunk
        if key in self._transformed:
            return self._transformed[key]
        name = digest(self._data_key, train.tobytes())
        with foreign_code():
            last, X_test = self._fold_task.last_fitted(
                name, train, test if len(test) else train[:1]
            )
        transformed = _as_numbers(last.X_), _as_numbers(X_test)
        n_bytes = (len(train) + len(test)) * transformed[0].shape[1] * 8
        if n_bytes * (1 + len(self._transformed)) <= _MAX_BYTES:
            self._transformed[key] = transformed
        return transformed


def compute_kernel(name: str, X: Features, out: Array, **params: Opaque) -> None:
    """Compute the Gram matrix of rows, with a kernel of scikit-learn and its parameters."""
    if name == "rbf" and not sparse.issparse(X):
        rbf_gram(X, params["gamma"], out)
    else:
        out[:] = pairwise_kernels(X, metric=name, filter_params=True, **params)


def computes_by_row(name: str, X: Features) -> bool:
    """Return whether the rows of a Gram matrix can be computed when they are first read."""
    return name == "rbf" and not sparse.issparse(X) and X.shape[1] <= _MOST_COLUMNS


def _as_numbers(X: Features) -> Features:
    """Return rows in float64, in C or CSR order."""
    if sparse.issparse(X):
        X = sparse.csr_matrix(X, dtype=np.float64)
        values = X.data
    else:
        X = values = np.ascontiguousarray(X, np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            "X must be finite after the transformers, got NaN or infinity; use an imputer instead."
        )
    return X
