"""Prepares rows for training, once for all folds, in the layout that the learners need.

Prepared rows are in the order of the tree, so kernels read memory sequentially.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from functools import cached_property
from functools import partial
from itertools import starmap
import pickle
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.validation import _num_samples
from xxhash import xxh3_128

from optuna_treecv._kernels.moments import Blocks
from optuna_treecv._kernels.prepare import inverse
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import check_rows
from optuna_treecv.rows.checks import check_targets
from optuna_treecv.rows.checks import find_classes
from optuna_treecv.rows.checks import first_missing
from optuna_treecv.rows.checks import in_type
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.checks import times_classes
from optuna_treecv.rows.distributed import block_bounds
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.maps import ColumnMaps
from optuna_treecv.rows.maps import LinearMaps
from optuna_treecv.rows.memory import empty_rows
from optuna_treecv.rows.memory import free_cached_memory
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.memory import padded_width
from optuna_treecv.rows.memory import write_rows
from optuna_treecv.rows.row_file import DenseFile
from optuna_treecv.rows.row_file import leave_pages
from optuna_treecv.rows.row_file import NO_LIMIT
from optuna_treecv.rows.row_file import Room
from optuna_treecv.rows.row_file import RowFile
from optuna_treecv.rows.row_file import SparseFile
from optuna_treecv.rows.row_file import stamp_of


@dataclass(frozen=True)
class PreparedRows:
    """Prepared rows in the order of the tree.

    Attributes
    ----------
    X : ndarray of shape (n_rows, width), SparseRows, or the original rows in prepared order
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        The training targets: class codes or numbers if padded, else the values of the user.
    targets : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        The targets for scoring: class codes (int32) or numbers.
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the user's data.
    n_features : int
        The number of features of models; X may have more columns if there are ``maps``.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels; code c stands for ``classes[c]``.
    feature_names : ndarray of str or None
    weights : ndarray of shape (n_rows,) or None
        The weights in training, of the type of X if padded, else float64; None: all are 1.
    score_weights : ndarray of shape (n_rows,), float64, or None
        The weights in scores.
    may_miss : bool
        Whether values of padded rows may be missing (NaN).
    seconds : float
        The time of preparing the rows.
    maps : ColumnMaps, LinearMaps or None
        The preprocessing of columns that is fitted per fold; None: none.
    file : RowFile or None
        The file on disk that stores X; None: X is in memory.
    first : PreparedRows or None
        The first row, if X is remote, for the local copies of learners.
    """

    X: Any
    y: np.ndarray | None
    targets: np.ndarray | None
    order: np.ndarray
    n_features: int
    classes: np.ndarray | None
    feature_names: np.ndarray | None
    weights: np.ndarray | None = None
    score_weights: np.ndarray | None = None
    may_miss: bool = False
    seconds: float = 0.0
    maps: ColumnMaps | LinearMaps | None = None
    file: RowFile | None = None
    first: "PreparedRows | None" = None
    _products: WeakValueDictionary[tuple[float, ...], np.ndarray] = field(
        default_factory=WeakValueDictionary, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> Any:
        values = [getattr(self, f.name) for f in fields(self) if f.init]
        return PreparedRows, tuple(values)

    @property
    def here(self) -> "PreparedRows":
        """These rows; if they are remote, only the first row."""
        return self if self.first is None else self.first

    @property
    def nbytes(self) -> int:
        """The number of bytes of the rows and, if rows are scaled, of the moments of blocks."""
        X = self.X
        parts = [X]
        if isinstance(X, SparseRows):
            parts = [X.values, X.columns, X.begins, X.dense]
        elif sparse.issparse(X):
            parts = [X.data, X.indices, X.indptr]
        parts += [self.y, self.targets, self.weights, self.score_weights]
        dense = X.dense if isinstance(X, SparseRows) else X
        # Three float64 vectors for each block of 64 rows, for each pair of these blocks, and so
        # on.
        of_blocks = dense.size * 3 * 8 * 2 // 64 if isinstance(dense, np.ndarray) else 0
        return of_blocks + sum(part.nbytes for part in parts if part is not None)

    @cached_property
    def blocks(self) -> Blocks:
        """The moments of blocks of dense rows, or of the dense columns of sparse rows.

        They are shared by all learners that scale rows.
        """
        dense = self.X.dense if isinstance(self.X, SparseRows) else self.X
        assert dense is not None
        return Blocks(dense, self.may_miss, lambda n, dtype: self.empty((n,), dtype))

    def in_blocks(self, rows: slice | np.ndarray) -> Iterable[slice | np.ndarray]:
        """Yield blocks of rows. If the rows are on disk, only one block at a time is in memory."""
        if self.file is None or not isinstance(rows, slice):
            return (rows,)
        return starmap(slice, self.file.blocks(rows.start, rows.stop))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialized array with an entry for each row, on disk if the rows are."""
        return np.empty(shape, dtype) if self.file is None else self.file.empty(shape, dtype)

    def weights_with(self, of_classes: tuple[float, ...] | None) -> np.ndarray | None:
        """Return row weights multiplied by class weights; None if all are 1.

        Learners with the same class weights share the array, because there may be hundreds of
        learners.
        """
        if of_classes is None:
            return self.weights
        product = self._products.get(of_classes)
        if product is None:
            assert self.y is not None
            product = times_classes(self.weights, of_classes, self.y, self.here.X.dtype)
            self._products[of_classes] = product
        return product


def take_rows(X: Any, rows: slice | np.ndarray) -> Any:
    """Select rows of an array, a sparse matrix or a data frame by index or slice.

    A slice of an array is returned as a view.
    """
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def in_given_order(
    prepared: np.ndarray, order: np.ndarray, labels: np.ndarray | None = None
) -> np.ndarray:
    """Return outputs in the order of the user's rows, with labels instead of class codes."""
    if labels is not None:
        prepared = labels[prepared]
    responses = np.empty_like(prepared)
    responses[order] = prepared
    return responses


class Data:
    """The user's X and y, with the checks that all learners require.

    Parameters
    ----------
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        Or an array of texts, of shape (n_rows,).
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or None
    room : Room
        The memory limit of prepared rows.
    names : sequence of str or None
        The column names of an array that was read from a file.

    Attributes
    ----------
    n_rows, n_features : int
    X : array, sparse matrix or data frame
        The rows; lists are converted to arrays, and sparse rows to CSR.
    X_given : array, sparse matrix, data frame or list
        The rows without conversion of lists.
    y : ndarray of shape (n_rows,) or, with more than one column, (n_rows, n_targets); or None
    y_given : array-like or None
        ``y`` without conversion.
    weights, score_weights : ndarray of shape (n_rows,), float64, or None
        The weights of the rows in training and in scores; None: all are 1. They are set after
        ``check_weights``, before rows are prepared.
    numbers : ndarray of shape (n_rows,) or None
        The numbers of these rows among the user's rows; None: all rows.
    """

    def __init__(
        self, X: Any, y: Any = None, room: Room = NO_LIMIT, names: Sequence[str] | None = None
    ) -> None:
        self._names = names
        self.room = room
        original = None
        if not hasattr(X, "shape"):
            original = X
            with naming("X"):
                X = check_array(
                    X,
                    ensure_all_finite=False,
                    dtype=None,
                    ensure_2d=not _is_text(X),
                    allow_nd=True,
                )
        if len(X.shape) < 2 and not _is_text(X):
            raise ValueError(
                f"X must have 2 dimensions, rows and features, got shape {tuple(X.shape)}."
            )
        if X.shape[1:] == (0,):
            raise ValueError(  # in words that scikit-learn's checks know
                f"X must have at least 1 column, got 0 feature(s) (shape={tuple(X.shape)}) while "
                "a minimum of 1 is required."
            )
        check_rows(X)
        if hasattr(X, "tocsr"):
            X = X.tocsr()  # the sparse format whose rows can be selected
        self.y_given = y
        if y is not None:
            y = check_targets(X, y)
        self._targets_are_checked = False
        self.n_rows = _num_samples(X)
        self.n_features = 1 if len(X.shape) == 1 else X.shape[1]
        if self.n_rows < 2:
            raise ValueError(
                f"X must have at least 2 rows to be cross-validated, got n_samples={self.n_rows}."
            )
        if self.n_rows >= 2**31:
            raise ValueError(f"X must have fewer than 2**31 rows, got {self.n_rows}.")
        self.X = X
        self.X_given = X if original is None else original
        self.y = y
        self._stamp = stamp_of(_numbers_of(X))
        self.numbers: np.ndarray | None = None
        self.weights: np.ndarray | None = None
        self.score_weights: np.ndarray | None = None
        self._classes: np.ndarray | None = None
        self._codes: np.ndarray | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stamp = stamp_of(_numbers_of(self.X))  # mapped rows become an array in memory

    def transformed(self, transform: Callable[[Any], Any]) -> "Data":
        """Return the data with transformed rows. Workers transform their remote rows."""
        if self.is_remote:
            return self
        data = Data(transform(self.X), room=self.room)
        data.y, data.y_given, data._classes = self.y, self.y_given, self._classes
        data._codes = self._codes
        data.weights, data.score_weights = self.weights, self.score_weights
        return data

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the prepared rows in this process, with an intercept column."""
        if self.is_remote:
            return 0
        first = take_rows(self.X, slice(0, 1))
        itemsize = 4 if getattr(first, "dtype", None) == np.float32 else 8
        if sparse.issparse(self.X):
            return int(self.X.nnz + self.n_rows) * (itemsize + 4) + 8 * self.n_rows
        return self.n_rows * padded_width(self.n_features + 1) * itemsize

    @property
    def is_large(self) -> bool:
        """Whether the prepared rows exceed the memory limit."""
        return not self.room.holds(self.n_bytes)

    @property
    def is_remote(self) -> bool:
        """Whether the rows are remote."""
        return isinstance(self.X, RemoteRows)

    def require_local(self, purpose: str, instead: str = "") -> None:
        """Raise ValueError if the rows are remote."""
        if self.is_remote:
            raise ValueError(
                f"X must be in the memory of this process for {purpose}, got "
                f"{type(self.X).__name__}{instead}."
            )

    def without_X(self) -> "Data":
        """Return a copy of the data without the rows."""
        bare = copy(self)
        bare.X = bare.X_given = bare.y_given = None
        return bare

    def subset(self, numbers: np.ndarray) -> "Data":
        """Return the data for rows in ascending order, but without X; see ``prepare_with``."""
        subset = self.without_X()
        subset.n_rows, subset.numbers = len(numbers), numbers
        for name in ("y", "weights", "score_weights", "_codes"):
            of_all = getattr(self, name)
            setattr(subset, name, None if of_all is None else of_all[numbers])
        return subset

    def prepare_with(self, layout: RowLayout, X: Any, order: np.ndarray) -> PreparedRows:
        """Prepare the rows X of a ``subset``; ``order`` contains indices of the rows in X."""
        self.X = X.tocsr() if hasattr(X, "tocsr") else X
        return self.prepare(layout, order)

    def _place(
        self, layout: RowLayout, order: np.ndarray, begins: Callable[[], np.ndarray] | None
    ) -> tuple[RemoteBlocks, PreparedRows]:
        """Place the rows in ``order`` in remote blocks; return the blocks and X's first row."""
        assert begins is not None
        if layout.target == "class":
            self.classes()  # those of all rows
        zero = np.zeros(1, np.uint32)
        first = self.subset(zero).prepare_with(layout, self.X[:1], zero)
        bounds = block_bounds(begins(), self.n_rows, self.X.n_blocks)

        bare = self.without_X()  # so that blocks are freed with the rows

        def prepare(numbers: np.ndarray) -> Any:
            return partial(bare.subset(numbers).prepare_with, layout)

        named = layout, bounds, order.tobytes(), self.y, self.weights, self.score_weights
        name = xxh3_128(pickle.dumps(named)).digest()
        return self.X.place(order, bounds, prepare, name), first

    def prepare(
        self, layout: RowLayout, order: np.ndarray, begins: Callable[[], np.ndarray] | None = None
    ) -> PreparedRows:
        """Prepare the rows in ``order``, in the layout that a learner needs.

        Remote rows stay on their workers, in blocks of about equal size. ``begins`` is a function
        that returns the offset of each fold, followed by the number of rows.
        """
        classes, file, first = None, None, None
        y = targets = None
        if self.y is not None and not (layout.padded and layout.target == "class"):
            y = targets = self.y[order]
        weights = None if self.weights is None else self.weights[order]
        score_weights = None if self.score_weights is None else self.score_weights[order]
        if layout.target == "class":
            classes = self.classes()
            targets = self.codes().take(order).astype(np.int32)
        elif layout.target == "number":
            targets = as_numbers(y)
        if layout.padded:
            if len(self.X.shape) == 1:
                raise ValueError("X must hold numbers for this estimator, got strings.")
            check_columns(self.X.sample if self.is_remote else self.X)
            row = self._first_row()
            if sparse.issparse(row) and not layout.sparse:
                raise ValueError(
                    "X must be dense for this estimator, got sparse rows; pass X.toarray(), or "
                    "use an estimator for sparse rows: PegasosClassifier, AveragedSGDClassifier "
                    "with batch_size=1, StreamingSVRGClassifier, or the corresponding regressors."
                )
            y = targets
            if layout.target == "number":
                assert targets is not None
                y = in_type(targets, row.dtype)
            if weights is not None:
                weights = in_type(weights, row.dtype, "sample_weight")
                if not np.any(weights) and self.numbers is None:
                    raise ValueError(
                        f"sample_weight must hold a weight above 0 in {row.dtype}, the type of X, "
                        "but all weights round to 0 in this type; use weights of about 1 instead."
                    )
        X: Any
        if self.is_remote:
            X, first = self._place(layout, order, begins)
        elif self.is_large:
            X, file = self._gather_forwards(layout, order)
            X = X if layout.padded else _without_padding(X, self.n_features)
        elif layout.padded:
            X = self._padded(layout, order)
        else:
            X = take_rows(self.X, order)
        parts = (X.values, X.columns, X.begins, X.dense) if isinstance(X, SparseRows) else (X,)
        for array in (*parts, y, targets, weights, score_weights):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False  # because all trials share them
        return PreparedRows(
            X,
            y,
            targets,
            order,
            self.n_features,
            classes,
            self.feature_names(),
            weights,
            score_weights,
            may_miss=bool(layout.missing),
            file=file,
            first=first,
        )

    def _first_row(self) -> Any:
        """Return the first row of X as floats."""
        return _as_floats(take_rows(self.X, slice(0, 1)))

    def _padded(self, layout: RowLayout, order: np.ndarray) -> np.ndarray | SparseRows:
        """Return padded rows in ``order``; dense rows are read sequentially for speed."""
        row = self._first_row()
        if sparse.issparse(row):
            X = _as_floats(self.X)
            X = X.copy() if self._stamp is not None else X  # reads a file sequentially
            with naming_entries(self.X, self.numbers, self._names):
                return pad_rows(X, order, layout.intercept, layout.missing, layout.beside)
        width = padded_width(self.n_features + layout.intercept)
        rows = empty_rows((len(order), width), row.dtype)
        place = np.empty_like(order)
        is_permutation = inverse(order, place)
        assert is_permutation  # of the rows
        for chunk, numbers in self._given():
            target = place[numbers[0] : numbers[-1] + 1]
            if self.numbers is not None:
                numbers = self.numbers[numbers]
            with naming_entries(chunk, numbers, self._names):
                X = _as_floats(chunk, numbers)
                write_rows(X, layout.intercept, layout.missing, rows, target=target)
        return rows

    def _gather_forwards(
        self, layout: RowLayout, order: np.ndarray
    ) -> tuple[np.ndarray | SparseRows, RowFile]:
        """Write padded rows in ``order`` to disk, for rows that exceed the memory limit."""
        free_cached_memory()
        row = self._first_row()
        width = padded_width(self.n_features + layout.intercept)
        pieces = self._pieces(layout)
        if not sparse.issparse(self.X):
            if sparse.issparse(row):
                raise ValueError(
                    "X must be an array or a sparse matrix if it takes more than max_memory, "
                    "got a data frame with sparse columns; use X.sparse.to_coo().tocsr() instead."
                )
            file: RowFile = DenseFile(pieces, order, width, row.dtype, self.room)
        elif layout.beside:
            raise ValueError(
                "max_memory must be None if a step makes sparse columns dense, as a "
                "StandardScaler with with_mean=True does; use an option such as with_mean=False "
                "instead."
            )
        else:
            offsets, n_more = self.X.indptr, int(layout.intercept)
            file = SparseFile(pieces, order, offsets, n_more, width, row.dtype, self.room)
        return file.rows, file

    def _pieces(self, layout: RowLayout) -> Iterator[tuple[int, Any]]:
        """Yield (index of the first row, padded rows) for consecutive pieces of X."""
        # Other estimators check the rows themselves.
        may_miss = layout.missing if layout.padded else b"\1" * self.n_features
        for chunk, numbers in self._given():
            with naming_entries(chunk, numbers, self._names):
                X, order = _as_floats(chunk, numbers), numbers - numbers[0]
                piece = pad_rows(X, order, layout.intercept, may_miss)
            yield int(numbers[0]), piece

    def _given(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield (rows, row indices) for consecutive pieces of the user's X."""
        n_rows = max(1, self.room.piece_bytes * self.n_rows // self.n_bytes)
        for first in range(0, self.n_rows, n_rows):
            self.check_unchanged()
            chunk = take_rows(self.X, slice(first, first + n_rows))
            numbers = np.arange(first, first + chunk.shape[0], dtype=np.uint32)
            yield chunk, numbers
            if sparse.issparse(self.X):
                entries = slice(*self.X.indptr[[first, first + len(numbers)]])
                leave_pages(self.X.data[entries])
                leave_pages(self.X.indices[entries])
            else:
                leave_pages(chunk)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise ValueError if the file of the rows was changed or removed since it was opened."""
        if self._stamp is None or stamp_of(_numbers_of(self.X)) == self._stamp:
            return
        raise ValueError(
            f"X must not change while it is read, but the file {self._stamp[0]!r} was written or "
            "removed."
        )

    def why_only_fit(self, has_classes: bool) -> str:
        """Return why only ``fit`` supports the shapes of X and y; "" if other methods do.

        Parameters
        ----------
        has_classes : bool
            Whether y contains classes.
        """
        if len(self.X.shape) > 2:
            return f"X has {len(self.X.shape)} dimensions (its shape is {tuple(self.X.shape)})"
        if self.y is None or self.y.ndim == 1 or (self.y.ndim == 2 and not has_classes):
            return ""
        columns = "several columns of classes" if self.y.ndim == 2 else f"{self.y.ndim} dimensions"
        return f"y has {columns} (its shape is {self.y.shape})"

    def check_no_target_is_missing(self) -> None:
        """Raise ValueError if a target of a regressor is missing."""
        if self._targets_are_checked or self.y is None:
            return
        if self.y.dtype == object and self.y.ndim == 1:
            row = first_missing(self.y)
            if row is not None:
                raise ValueError(
                    "Input y contains NaN: it must hold a number for each row, got "
                    f"{self.y[row]!s} in row {row}."
                )
        self._targets_are_checked = True

    def feature_names(self) -> np.ndarray | None:
        """Return the column names of a data frame if all are strings, as scikit-learn does."""
        names = getattr(self.X, "columns", self._names)
        if names is None or not all(isinstance(name, str) for name in names):
            return None
        return np.asarray(names, dtype=object)

    def classes(self) -> np.ndarray:
        """Return the sorted classes in y."""
        if self.y is None:
            raise ValueError("y must be given for a classifier, got None.")
        if self._classes is None:
            if self.y.ndim > 1:
                raise ValueError(
                    f"y must have one column if it contains classes, got shape {self.y.shape}; "
                    "evaluate each column separately instead."
                )
            self._classes = find_classes(self.y)
        return self._classes

    def codes(self) -> np.ndarray:
        """Return the class codes of y, in the smallest unsigned integer type."""
        if self._codes is None:
            narrow = np.min_scalar_type(len(self.classes()))
            self._codes = as_codes(self.y, self.classes()).astype(narrow)
        return self._codes


def _numbers_of(X: Any) -> Any:
    """Return the array that stores the values of dense or sparse rows."""
    return X.data if sparse.issparse(X) else X


def _without_padding(X: np.ndarray | SparseRows, n_features: int) -> Any:
    """Return a view of padded rows without the padding, for estimators in Python."""
    if isinstance(X, np.ndarray):
        return X[:, :n_features]
    begins = X.begins.astype(np.min_scalar_type(-int(X.begins[-1])), copy=False)
    return sparse.csr_array((X.values, X.columns, begins), shape=(len(X), n_features))


def _as_floats(X: Any, numbers: np.ndarray | None = None) -> Any:
    """Convert rows to float64, unless they are float32; sparse rows become CSR.

    Errors name row i of X as row ``numbers[i]``.
    """
    with naming("X"), naming_entries(X, numbers):
        return check_array(
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            input_name="X",
        )


def _is_text(X: Any) -> bool:
    """Return whether X is a sequence of strings, such as documents for a vectorizer."""
    if isinstance(X, str | dict) or not hasattr(X, "__len__") or len(X) == 0:
        return False
    values = X if isinstance(X, list | tuple) else np.asarray(X)
    return np.ndim(values[0]) == 0 and all(isinstance(value, str) for value in values)
