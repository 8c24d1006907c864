"""The preprocessing of a Pipeline, fitted on all rows.

``FittedSteps`` is for learners that are trained row by row, ``Table`` for models that are computed
from sums over rows.

In the transformers that are fitted once, placeholders replace the incremental ones
(``placeholders.py``). A compiled learner scales rows and imputes missing values itself, by the
moments of the rows that a model has seen (``_kernels/moments.pxd``). In Python, ``Running`` trains
transformers by ``partial_fit`` on the rows of each phase.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length

from optuna_treecv.estimators.base import layout_for
from optuna_treecv.estimators.base import seeded
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.spread import BLOCK
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import merge_spreads
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import scale_of
from optuna_treecv.numerics.spread import Spread
from optuna_treecv.preprocessing.decisions import DividedPipeline
from optuna_treecv.preprocessing.decisions import ignores_zero_columns
from optuna_treecv.preprocessing.parts import adds_columns
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.preprocessing.parts import is_running_imputer
from optuna_treecv.preprocessing.parts import Kind
from optuna_treecv.preprocessing.parts import leaves_of
from optuna_treecv.preprocessing.parts import naming_step
from optuna_treecv.preprocessing.parts import NotAheadError
from optuna_treecv.preprocessing.parts import rows_after
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.preprocessing.placeholders import all_placeholders
from optuna_treecv.preprocessing.placeholders import columns_of_placeholders
from optuna_treecv.preprocessing.placeholders import ImputerPlaceholder
from optuna_treecv.preprocessing.placeholders import MOST_FITS
from optuna_treecv.preprocessing.placeholders import TablePlaceholder
from optuna_treecv.preprocessing.placeholders import with_placeholders
from optuna_treecv.preprocessing.placeholders import without_placeholders
from optuna_treecv.preprocessing.placeholders import WordsPlaceholder
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import absent_columns
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.maps import ColumnMaps


def why_form_varies(fitted: Any, X: Any, cuts: Iterable[Cut]) -> str:
    """Return the reason why rows would be sparse only in some folds; "" if all folds agree.

    A ColumnTransformer returns sparse or dense rows depending on the density of its output for the
    rows on which it is fitted. If it is fitted once, these are all rows. Learners such as
    ``SGDClassifier`` and ``Ridge`` treat sparse rows differently.
    """
    stacks: list[tuple[ColumnTransformer, list[tuple[Any, Any]]]] = []

    def note(path: str, step: Any, X: Any, branches: list[tuple[Any, Any]]) -> Any:
        if type(step) is ColumnTransformer and any(sparse.issparse(X) for _, X in branches):
            stacks.append((step, branches))
        return step.transform(unshared(step, X))

    # A single row suffices to find sparse branches before all rows are transformed.
    rows_after("", fitted, take_rows(X, slice(0, 1)), note)
    if stacks:
        stacks.clear()
        rows_after("", fitted, X, note)
    for step, branches in stacks:
        if not all(_is_sure(cut, step, branches) for cut in cuts):
            return (
                "a ColumnTransformer returns sparse rows to some training sets and dense rows to "
                f"others (sparse_threshold={step.sparse_threshold})"
            )
    return ""


def _is_sure(cut: Cut, fitted: ColumnTransformer, outputs: list[tuple[Any, Any]]) -> bool:
    """Return whether the rows of all training sets surely have the same form as all rows."""
    n_rows = outputs[0][1].shape[0]
    n_numbers, n_others = np.zeros(n_rows), 0  # of each row; of columns that all folds have
    encoded = [sparse.csc_array((n_rows, 0))]  # the columns of values that encoders find
    for part, after in outputs:
        is_sparse = sparse.issparse(after)
        # As in scikit-learn, the zeros in dense rows count as stored values.
        n_numbers += np.diff(after.tocsr().indptr) if is_sparse else after.shape[1]
        if is_sparse and any(adds_columns(leaf) for _, leaf in leaves_of("", part)):
            encoded.append(sparse.csc_array(after))
        else:
            n_others += after.shape[1]
    columns = sparse.hstack(encoded, format="csc")
    n_trained, n_numbers, n_present = _of_training_sets(cut, n_numbers, columns)
    # A column that is absent from a training set may be missing in its transformed rows.
    for n_columns in (n_others + n_present, n_others + columns.shape[1]):
        density = n_numbers / np.maximum(n_trained * n_columns, 1)
        if np.any((density < fitted.sparse_threshold) != fitted.sparse_output_):
            return False
    return True


def _of_training_sets(
    cut: Cut, n_numbers: np.ndarray, columns: sparse.csc_array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of rows, stored values and present columns in each training set."""
    n_columns = np.count_nonzero(np.diff(columns.indptr))
    n_present = n_columns - absent_columns(cut, columns).sum(axis=1)
    if isinstance(cut, Folds):
        n_of_chunks = np.add.reduceat(n_numbers[cut.order], cut.begins()[:-1])
        return cut.n_rows - np.diff(cut.begins()), n_numbers.sum() - n_of_chunks, n_present
    trains = [cut.split(chunk).train_rows() for chunk in range(cut.n_folds)]
    n_trained = np.array([len(rows) for rows in trains])
    return n_trained, np.array([n_numbers[rows].sum() for rows in trains]), n_present


# The maximum length of a row in ``engines/treecv/kernels/scaled.pyx``, half of its
# ``BUFFER_SIZE``.
MOST_NUMBERS = 2**11

# Sparse rows are made dense before scaling if they have at most this many columns.
_MOST_DENSE = 96


class Running(BaseEstimator):
    """Trains transformers incrementally; each one gets columns of the previous one's output.

    Parameters
    ----------
    parts : list of tuple (step, start, stop, dtype, is_sparse)
        For each transformer, in their order: the transformer, which is trained in place; its
        columns, start to stop - 1; and the form of these columns, as in ``Placeholder``.
    """

    def __init__(self, parts: list[tuple[Any, int, int, str, bool]]) -> None:
        self.parts = parts

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Train each transformer on a batch of rows."""
        labels = () if y is None else (y,)
        for number, (step, start, stop, dtype, is_sparse) in enumerate(self.parts, 1):
            rows = _columns_of(X, start, stop, dtype, is_sparse)
            step.partial_fit(rows, *labels)
            # Rows are transformed only for a later step that reads some of these columns.
            behind = self.parts[number:]
            if any(first < stop and start < end for _, first, end, *_ in behind):
                X = _with_columns(X, start, stop, step.transform(rows))
        return self

    def transform(self, X: Any) -> Any:
        """Transform rows by all transformers."""
        for step, start, stop, dtype, is_sparse in self.parts:
            rows = _columns_of(X, start, stop, dtype, is_sparse)
            X = _with_columns(X, start, stop, step.transform(rows))
        return X


def _columns_of(X: Any, start: int, stop: int, dtype: str, is_sparse: bool) -> Any:
    """Select columns of rows, in the form that the previous steps would return."""
    columns = X if (start, stop) == (0, X.shape[1]) else X[:, start:stop]
    if is_sparse and not sparse.issparse(X):
        columns = sparse.csr_matrix(columns)
    elif sparse.issparse(X) and not is_sparse:
        columns = columns.toarray()
    return columns.astype(dtype, copy=False)


def _with_columns(X: Any, start: int, stop: int, columns: Any) -> Any:
    """Replace columns of rows; the result is sparse if the rows are."""
    check_consistent_length(X, columns)
    if columns.shape[1] != stop - start:
        raise ValueError(
            "estimator must have incremental steps that keep the number of columns, got a step "
            f"that returns {columns.shape[1]} columns for {stop - start} columns."
        )
    if not sparse.issparse(X):
        columns = columns.toarray() if sparse.issparse(columns) else columns
        return np.hstack([X[:, :start], columns, X[:, stop:]])
    columns = type(X)(columns)
    return sparse.hstack([X[:, :start], columns, X[:, stop:]], format="csr")


class FittedSteps:
    """Preprocessing that is fitted on all rows, with placeholders for incremental transformers.

    The incremental transformers run in the learner's kernel, or in a step that precedes the
    learner (``Running``).

    Parameters
    ----------
    parts : DividedPipeline
    X : the user's rows
    y : ndarray or None
        The user's targets.

    Attributes
    ----------
    X : the user's rows
    is_compiled : bool
        Whether incremental transformers run in the learner's kernel.
    settings : dict
        The settings on which states depend, besides the learner and the transformed rows.
    acts : ndarray of shape (3, n_columns)
        Whether the kernel centres a column, scales it, and imputes its mean for missing values.
    is_beside : ndarray of shape (n_columns,)
        The dense columns that a kernel reads next to sparse rows.
    has_running : bool
        Whether there are incremental transformers.

    Raises
    ------
    NotAheadError
        If the learner does not support such preprocessing.
    """

    def __init__(self, parts: DividedPipeline, X: Any, y: np.ndarray | None = None) -> None:
        self.is_compiled = parts.is_compiled
        # Copies, because the caller may change these steps or fit them to other rows.
        self._pipeline = clone(parts.pipeline)
        self.X, self._y = X, y
        with self.naming():
            before = with_placeholders("", parts.before, parts.kinds)
            self._fitted = clone(before).fit(unshared(before, X), y)
            first = self._transform(take_rows(X, slice(0, 1)))
        if not self.is_compiled and not sparse.issparse(first):
            try:
                are_numbers = isinstance(first, np.ndarray)  # a data frame has column names
                check_array(first, dtype="numeric", ensure_all_finite=False)
            except (TypeError, ValueError):
                are_numbers = False
            if not are_numbers:
                raise NotAheadError("the preprocessed rows are not an array of numbers")
        takes_sparse = parts.last.row_layout.sparse if self.is_compiled else True
        if sparse.issparse(first) and not (sparse.issparse(X) or takes_sparse):
            raise ValueError(
                f"estimator must have steps that pass dense rows to {type(parts.last).__name__}, "
                "got sparse rows; use sparse_output=False of a OneHotEncoder, or "
                "sparse_threshold=0 of a ColumnTransformer, instead."
            )
        self._running = [
            (part, slice(columns[0], columns[-1] + 1))
            for part, columns in columns_of_placeholders(self._fitted, X, first)
            if not isinstance(part, ImputerPlaceholder) or is_running_imputer(part.step)
        ]
        self.has_running = bool(self._running)
        self._makes_dense = self._lies_beside = False
        self.settings: dict[str, Any] = {}
        if self.is_compiled:
            self._lay_out(first, takes_sparse)

    def _lay_out(self, first: Any, takes_sparse: bool) -> None:
        """Determine the columns that a kernel centers, scales and imputes, and the rows' form."""
        n_columns = first.shape[1]
        self.acts = np.zeros((3, n_columns), np.uint8)
        for part, at in self._running:
            if is_running_imputer(part.step):
                self.acts[2, at] = 1
            else:
                self.acts[:2, at] = [[part.step.with_mean], [part.step.with_std]]
        self.is_beside = (self.acts[0] | self.acts[2]).view(bool)
        if not self._running:
            return
        self.settings = {"running steps": tuple(self.acts)}
        n_numbers, (rows, numbers) = n_columns, ("rows", "columns")
        if sparse.issparse(first):
            self._lies_beside = bool(self.is_beside.any())
            if self._lies_beside and n_columns <= _MOST_DENSE:
                self._makes_dense, self._lies_beside = takes_sparse, False
                return
            # The length of a sparse row includes its dense columns.
            n_numbers = int(np.diff(self._transform(self.X).indptr).max() + self.is_beside.sum())
            rows, numbers = "sparse rows", "numbers"
        if n_numbers >= MOST_NUMBERS:
            raise NotAheadError(
                f"compiled scaling supports {rows} with at most {MOST_NUMBERS - 1} {numbers}, got "
                f"{n_numbers}"
            )

    def _transform(self, X: Any) -> Any:
        """Transform rows by the steps that are fitted once."""
        return self._fitted.transform(unshared(self._fitted, X))

    def transform(self, X: Any) -> Any:
        """Transform rows by the steps that are fitted once, in the form that is prepared."""
        after = self._transform(X)
        if self.is_compiled:
            return after.toarray() if self._makes_dense else after
        if sparse.issparse(after):
            return after
        with naming_entries(after):  # integers of a table with missing values are objects
            return check_array(after, dtype="numeric", ensure_all_finite=False)

    def naming(self) -> AbstractContextManager[None]:
        """Return a context that adds the failing step or transformed column to errors."""
        return naming_step(self._pipeline, self.X, self._y)

    def fewest_known(self, learner: Any) -> int | None:
        """Return the minimum number of known values in imputed columns; None if irrelevant.

        A linear learner gives a column with an unknown mean the weight 0, which is equivalent to
        dropping it.
        """
        counts = (
            part.fewest_known
            for part in all_placeholders(self._fitted)
            if hasattr(part, "fewest_known")
            and not (is_running_imputer(part.step) and ignores_zero_columns(learner))
        )
        return min(counts, default=None)

    def why_form_varies(self, cuts: Iterable[Cut]) -> str:
        """Like the function, but "" for kernels, which train the same models on both forms."""
        return "" if self.is_compiled else why_form_varies(self._fitted, self.X, cuts)

    def layout_for(self, pipeline: Pipeline) -> RowLayout:
        """Return the layout of the rows that the learner needs."""
        if not self.is_compiled:
            return layout_for(pipeline)
        layout: RowLayout = pipeline.steps[-1][1].row_layout
        if np.any(self.acts[2]):
            layout = replace(layout, missing=self.acts[2].tobytes())
        return replace(layout, beside=self.is_beside.tobytes()) if self._lies_beside else layout

    def running(self, name: str, last: Any, seed: int) -> Any:
        """Return a named learner, preceded by the transformers that run in Python."""
        if not self._running:
            return last
        parts = [
            (seeded(clone(part.step), seed), at.start, at.stop, part.dtype, part.is_sparse)
            for part, at in self._running
        ]
        return Pipeline([(f"before {name}", Running(parts)), (name, last)])

    def fitted(self, last: Any, moments: tuple[int, np.ndarray] | None = None) -> Pipeline:
        """Return a fitted Pipeline that consists of this preprocessing and a fitted learner.

        Parameters
        ----------
        last : estimator
            Fitted; a Pipeline from ``running`` if transformers run in Python.
        moments : (int, ndarray of shape (3, n_columns)) or None
            The number of rows and the moments of the columns, if they run in the kernel.
        """
        trained: list[Any] = []
        if self._running and not self.is_compiled:
            (_, running), (_, last) = last.steps
            trained = [step for step, *_ in running.parts]
        elif self._running:
            assert moments is not None
            n_rows, of_columns = moments
            trained = [(n_rows, of_columns[:, at]) for _, at in self._running]
        put_back = {
            part: part.put_back(t) for (part, _), t in zip(self._running, trained, strict=True)
        }
        whole = copy(self._pipeline)
        *before, (name, _) = whole.steps
        steps = without_placeholders(Pipeline(before), self._fitted, put_back).steps
        whole.steps = [*steps, (name, last)]
        return whole


# The number of rows per block.
_ROWS = 16 * BLOCK

# The maximum number of entries of the maps of all folds: 400 MB.
_MOST_NUMBERS = 2**24

# Sparse rows are made dense if dense rows take at most this factor times their memory.
_MOST_TIMES = 8


class Table:
    """Preprocessing that is fitted on all rows, for models that are computed from sums over rows.

    Parameters
    ----------
    steps : Pipeline
        Not fitted.
    kinds : mapping
        The kinds of transformers by their paths.
    X : the user's rows
    y : ndarray or None
        The user's targets.
    cuts : sequence of Folds or Splits
    has_one_form : bool
        Whether the rows of each training set must have the form of all rows, sparse or dense.
    may_be_dense : bool
        Whether sparse rows may be made dense if they are imputed or scaled per fold.
    name : bytes
        Identifies the preprocessing.

    Attributes
    ----------
    n_features : int
        The number of transformed columns.
    is_sparse : bool
        Whether the transformed rows are sparse.
    has_maps : bool
        Whether columns are imputed or scaled per fold.

    Raises
    ------
    NotAheadError
        If the preprocessing must be refitted per fold.
    """

    def __init__(
        self,
        steps: Pipeline,
        kinds: Mapping[str, Kind],
        X: Any,
        y: Any,
        cuts: Sequence[Cut],
        has_one_form: bool,
        may_be_dense: bool,
        name: bytes,
    ) -> None:
        self.name = name
        self._fitted = clone(with_placeholders("", steps, kinds))
        try:
            after = _numbers(self._fitted.fit_transform(unshared(self._fitted, X), y))
        except NotAheadError:
            raise
        except Exception as error:  # of any step; refits per fold will raise it again
            raise NotAheadError("the steps cannot transform all rows") from error
        self.n_features, self.is_sparse = int(after.shape[1]), sparse.issparse(after)
        self._check(cuts)
        if has_one_form and not self.is_sparse and (why := why_form_varies(self._fitted, X, cuts)):
            raise NotAheadError(why)
        if any(len(getattr(p, "varying", ())) for p in all_placeholders(self._fitted)):
            after = _numbers(self._fitted.transform(unshared(self._fitted, X)))
        self._running = columns_of_placeholders(self._fitted, X, after)
        self._lay_out(after)
        if may_be_dense and self.is_sparse and self.has_maps:
            size = after.dtype.itemsize
            if size * np.prod(after.shape) <= _MOST_TIMES * (size + 4) * after.nnz:
                self.is_sparse = False
                self._lay_out(after.toarray())
        n_folds = max(cut.n_folds for cut in cuts)
        if self.has_maps and n_folds * self.n_features > _MOST_NUMBERS:
            raise NotAheadError(
                f"separate preprocessing for each of {n_folds:,} folds would need too much memory"
            )
        are_refitted = len(self._filled) and any(
            part.step.strategy != "mean" for part, _ in self._running if _fills(part)
        )
        if are_refitted and n_folds > MOST_FITS:
            raise NotAheadError(
                f"a SimpleImputer would have to be fitted separately for {n_folds:,} folds"
            )

    def _check(self, cuts: Sequence[Cut]) -> None:
        """Raise an error if a step fitted to a training set would transform differently."""
        for path, part in leaves_of("", self._fitted, is_fitted=True):
            if isinstance(part, TablePlaceholder):
                for cut in cuts:
                    if why := part.why_not(cut):
                        raise NotAheadError(f"the step {path!r} must be fitted per fold: {why}")
                part.forget()

    def _lay_out(self, after: Any) -> None:
        """Find the columns with missing values, and choose placeholder values for them."""
        imputed = [columns for part, columns in self._running if _fills(part)]
        columns = np.unique(np.concatenate([[], *imputed]).astype(int))
        values = _columns(after, columns)
        has_missing = np.isnan(values).any(axis=0)
        self._filled = columns[has_missing]
        # Placeholders near the other values, because 0 would cause rounding errors if all others
        # are large.
        self._near = np.nanmedian(values[:, has_missing], axis=0).astype(after.dtype)
        self.has_maps = bool(len(self._filled)) or not all(_fills(p) for p, _ in self._running)
        self._ahead: Any = self._shared(after)

    def _shared(self, after: Any) -> Any:
        """Transform rows to the columns that all folds share."""
        if not len(self._filled):
            return after
        is_missing = np.isnan(_columns(after, self._filled))
        if not self.is_sparse:
            shared = np.hstack([after, is_missing])
            for column, near, rows in zip(self._filled, self._near, is_missing.T, strict=True):
                shared[rows, column] = near
            return shared
        shared = sparse.csr_array(after, copy=True)
        gaps = np.flatnonzero(np.isnan(shared.data) & np.isin(shared.indices, self._filled))
        shared.data[gaps] = self._near[np.searchsorted(self._filled, shared.indices[gaps])]
        return sparse.hstack([shared, is_missing.astype(after.dtype)], format="csr")

    def transform(self, X: Any) -> Any:
        """Return the columns that all folds share, for all rows."""
        shared, self._ahead = self._ahead, None  # the cross-validation stores the rows
        if shared is None:
            with foreign_code():
                after = _numbers(self._fitted.transform(unshared(self._fitted, X)))
            is_made_dense = sparse.issparse(after) and not self.is_sparse
            shared = self._shared(after.toarray() if is_made_dense else after)
        return shared

    def maps(self, rows: PreparedRows, chunks: Chunks) -> ColumnMaps:
        """Return the imputation, centering and scaling of prepared rows for each fold."""
        d, columns = self.n_features, np.unique(np.concatenate([c for _, c in self._running]))
        if isinstance(rows.X, SparseRows):
            shared = rows.X.as_given(0, chunks.n_rows, d + len(self._filled))
        else:
            shared = rows.X
        values = _columns(shared, columns)
        filled = np.searchsorted(columns, self._filled)
        missing = _columns(shared, np.arange(d, d + len(self._filled))) == 1
        values[:, filled] = np.where(missing, np.nan, values[:, filled])
        sets = [chunks.train_parts(chunk) for chunk in range(chunks.n_chunks)]
        n_rows = np.array([[sum(map(count_rows, parts))] for parts in sets])
        observed = _spreads_of_sets(values, chunks)
        fill, centre, scale = np.zeros((3, *observed.mean.shape))
        scale += 1
        spread, is_open = observed, np.isin(columns, self._filled)
        for part, of_part in self._running:
            at = np.searchsorted(columns, of_part)
            if _fills(part):
                gaps = at[is_open[at]]
                is_open[gaps] = False
                fill[:, gaps] = _statistics(part, values, sets, observed, gaps)
                n_missing = np.zeros_like(observed.n_rows)
                n_missing[:, gaps] = n_rows - observed.n_rows[:, gaps]
                # Imputed values may extend the range of the known values.
                ends = np.maximum(fill, observed.low), np.minimum(fill, observed.high)
                spread = merge_spreads(spread, Spread(n_missing, fill, np.zeros_like(fill), *ends))
            else:
                shift, factor = _scaling(part.step, spread, centre, scale)
                centre[:, at] += (scale * shift)[:, at]
                scale[:, at] *= factor[:, at]
        wide = np.zeros((2, len(sets), d))
        wide[1] = 1
        wide[:, :, columns] = centre, scale
        return ColumnMaps(self._filled, fill[:, filled] - self._near, *wide)


def _fills(part: TablePlaceholder) -> bool:
    return type(part.step) is SimpleImputer


def _numbers(after: Any) -> Any:
    """Convert transformed rows to CSR or to an array of floats."""
    if sparse.issparse(after):
        return after.tocsr()
    after = np.asarray(after)
    return after if after.dtype.kind == "f" else after.astype(np.float64)


def _columns(X: Any, columns: np.ndarray) -> np.ndarray:
    """Return columns of sparse or dense rows as float64."""
    part = X[:, columns]
    return np.asarray(part.toarray() if sparse.issparse(part) else part, dtype=np.float64)


def _spreads_of_sets(values: np.ndarray, chunks: Chunks) -> Spread:
    """Return moments and extremes of each set's columns, (n_sets, n_columns), ignoring NaN."""
    zeros = np.zeros(values.shape[1])
    nothing = Spread(zeros, zeros, zeros, zeros + np.inf, zeros - np.inf)

    def of(rows: RowIndices) -> Spread:
        spreads = (_spread_of_known(values[block]) for block in blocks(rows, _ROWS))
        return reduce(merge_spreads, spreads, nothing)

    if chunks.trains is not None:
        of_sets = [reduce(merge_spreads, map(of, parts)) for parts in chunks.trains]
    else:
        parts = [of(slice(0, int(chunks.bounds[0])))]
        parts += [of(chunks.test_rows(chunk, chunk + 1)) for chunk in range(chunks.n_chunks)]
        before = accumulate(parts, merge_spreads)
        behind = [*accumulate(reversed(parts), merge_spreads)][::-1][2:]
        of_sets = list(map(merge_spreads, before, [*behind, nothing]))
    return Spread(*map(np.array, zip(*of_sets, strict=True)))


def _spread_of_known(block: np.ndarray) -> Spread:
    """Return moments and extremes of the columns of an array (n_rows, n_columns), ignoring NaN."""
    is_known = ~np.isnan(block)
    n_known = is_known.sum(axis=0)
    low = np.where(n_known, np.fmin.reduce(block), np.inf)
    high = np.where(n_known, np.fmax.reduce(block), -np.inf)
    shift = np.where(n_known, low, 0)
    shifted = np.where(is_known, block - shift, 0)
    mean = shifted.sum(axis=0) / np.maximum(n_known, 1)
    shifted -= np.where(is_known, mean, 0)
    squares = np.einsum("ij,ij->j", shifted, shifted)
    return Spread(n_known.astype(np.float64), shift + mean, squares, low, high)


def _statistics(
    part: TablePlaceholder,
    values: np.ndarray,
    sets: list[list[RowIndices]],
    observed: Spread,
    columns: np.ndarray,
) -> np.ndarray:
    """Return the imputed value of each column for each training set, (n_sets, n_columns)."""
    means = observed.mean[:, columns]
    if part.step.strategy == "mean" or not len(columns):
        return means
    if isinstance(part, WordsPlaceholder):
        return part.fills(means * observed.n_rows[:, columns])
    imputer = SimpleImputer(strategy=part.step.strategy)
    x = values[:, columns]
    return np.array([imputer.fit(np.vstack([x[rows] for rows in of])).statistics_ for of in sets])


def _scaling(
    scaler: Any, spread: Spread, centre: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the centers and scales of a scaler for each training set.

    ``spread`` is that of the columns before they are centred and scaled by ``centre`` and
    ``scale``.
    """
    low, high = (spread.low - centre) / scale, (spread.high - centre) / scale
    mean, squares = (spread.mean - centre) / scale, spread.squares / np.square(scale)
    if type(scaler) is not MinMaxScaler:
        factor = scale_of(scaler, Spread(spread.n_rows, mean, squares, low, high))
        return mean if scaler.with_mean else np.zeros_like(mean), factor
    least, greatest = scaler.feature_range
    width = high - low
    factor = np.where(width < 10 * np.finfo(np.float64).eps, 1, width) / (greatest - least)
    return low - least * factor, factor
