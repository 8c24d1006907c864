"""Rows prepared once, in the order and memory layout that the learners need.

The prepared order is that of the tree, so kernels read memory forwards.
"""

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
from typing import cast
from weakref import WeakValueDictionary

import numpy as np
from scipy import sparse
from sklearn.utils import assert_all_finite
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples
from xxhash import xxh3_128

from optuna_treecv._kernels.moments import Blocks
from optuna_treecv._kernels.prepare import copy_rows
from optuna_treecv._kernels.prepare import inverse
from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import check_rows
from optuna_treecv.rows.checks import first_missing
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.distributed import block_bounds
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.memory import empty_rows
from optuna_treecv.rows.memory import keep_nothing
from optuna_treecv.rows.row_file import DenseFile
from optuna_treecv.rows.row_file import leave_pages
from optuna_treecv.rows.row_file import NO_LIMIT
from optuna_treecv.rows.row_file import Room
from optuna_treecv.rows.row_file import RowFile
from optuna_treecv.rows.row_file import SparseFile
from optuna_treecv.rows.row_file import stamp_of
from optuna_treecv.rows.sparse_rows import SparseRows

_LABELS_AT_ONCE = 2**20


@dataclass(frozen=True)
class RowLayout:
    """The layout of the rows that a learner needs.

    Attributes
    ----------
    padded : bool
        Copy the rows into one block of memory, float64 or float32, padded with zeros to a multiple
        of 8 columns. Otherwise the rows keep their form: an array, a sparse matrix or a data
        frame.
    sparse : bool
        With ``padded``: also accept sparse rows, as ``SparseRows``.
    intercept : bool
        With ``padded``: add a column of ones after the features.
    target : {"class", "number"} or None
        The targets of predictions: class codes 0, 1, ... (int32), or float64, which may
        have several columns. A padded learner trains on the codes, or on the numbers in the type
        of X.
    missing : bytes
        With ``padded``: a byte for each feature, not 0 if values may be missing (NaN) in it. None
        may be missing if it is empty. In sparse rows, such features must lie beside them.
    beside : bytes
        With ``sparse``: a byte for each feature, not 0 if it lies beside sparse rows as a dense
        column. None does if it is empty.
    """

    padded: bool = False
    sparse: bool = False
    intercept: bool = False
    target: str | None = None
    missing: bytes = b""
    beside: bytes = b""


@dataclass(frozen=True)
class ColumnMaps:
    """Fills in missing values, shifts and scales columns by the numbers of each training set.

    Prepared rows have the features, where a number stands in the place of missing values, and
    behind them a column for each feature that has some: 1 where its value is missing, otherwise 0.

    Attributes
    ----------
    filled : ndarray of shape (n_filled,), int
        The features that have missing values.
    fill : ndarray of shape (n_sets, n_filled)
        What is added in their places in a training set and the rows that its model tests.
    centre, scale : ndarray of shape (n_sets, n_features)
        What is subtracted from a feature then, and by what it is divided.
    """

    filled: np.ndarray
    fill: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    @property
    def n_columns(self) -> int:
        """The number of columns of prepared rows."""
        return self.centre.shape[1] + len(self.filled)

    def apply(self, chunk: int, numbers: np.ndarray, is_centred: bool = True) -> np.ndarray:
        """Return numbers of features from those of prepared columns, for the model of a chunk.

        Parameters
        ----------
        chunk : int
        numbers : ndarray of shape (..., n_columns + n_others)
            They follow linearly from rows. The others are returned as they are.
        is_centred : bool
            Whether centres are subtracted, as from rows and means.
        """
        d = self.centre.shape[1]
        out = np.concatenate([numbers[..., :d], numbers[..., self.n_columns :]], axis=-1)
        out[..., self.filled] += self.fill[chunk] * numbers[..., d : self.n_columns]
        if is_centred:
            out[..., :d] -= self.centre[chunk]
        out[..., :d] /= self.scale[chunk]
        return out


@dataclass(frozen=True)
class PreparedRows:
    """Rows in the order of the tree.

    Attributes
    ----------
    X : ndarray of shape (n_rows, width), SparseRows, or the given rows in prepared order
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        The targets of training: class codes or targets if padded, else the given values.
    targets : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        The targets of predictions: class codes (int32) or numbers.
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the data as given.
    n_features : int
        As models see them; those of X are others where there are ``maps``.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels; code c stands for ``classes[c]``.
    feature_names : ndarray of str or None
    weights : ndarray of shape (n_rows,) or None
        The weights with which rows are trained on, of the type of X if padded, else float64; None:
        all are 1.
    score_weights : ndarray of shape (n_rows,), float64, or None
        The weights of the rows in scores.
    may_miss : bool
        Whether values of padded rows may be missing (NaN).
    seconds : float
        The time in which they were prepared.
    maps : ColumnMaps or None
        What the steps of each fold do to the columns of X; None: nothing.
    file : RowFile or None
        Where X lies in a file; None: in memory.
    first : PreparedRows or None
        A single row, for learners that answer, where X lies elsewhere.
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
    maps: ColumnMaps | None = None
    file: RowFile | None = None
    first: "PreparedRows | None" = None
    _products: WeakValueDictionary[tuple[float, ...], np.ndarray] = field(
        default_factory=WeakValueDictionary, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> Any:
        values = [getattr(self, one.name) for one in fields(self) if one.init]
        return PreparedRows, tuple(values)

    @property
    def here(self) -> "PreparedRows":
        """These rows, or the single one that is here."""
        return self if self.first is None else self.first

    @property
    def nbytes(self) -> int:
        """The bytes of the rows, and of the moments of their blocks if they are scaled."""
        X = self.X
        parts = [X]
        if isinstance(X, SparseRows):
            parts = [X.values, X.columns, X.begins, X.dense]
        elif sparse.issparse(X):
            parts = [X.data, X.indices, X.indptr]
        parts += [self.y, self.targets, self.weights, self.score_weights]
        dense = X.dense if isinstance(X, SparseRows) else X
        # Three float64 vectors for each 64 rows, and for each pair of these, and so on.
        of_blocks = dense.size * 3 * 8 * 2 // 64 if isinstance(dense, np.ndarray) else 0
        return of_blocks + sum(part.nbytes for part in parts if part is not None)

    @cached_property
    def blocks(self) -> Blocks:
        """The moments of blocks of padded dense rows, or of the dense columns beside sparse ones.

        All learners that scale rows share them.
        """
        dense = self.X.dense if isinstance(self.X, SparseRows) else self.X
        assert dense is not None
        return Blocks(dense, self.may_miss, lambda n, dtype: self.empty((n,), dtype))

    def in_blocks(self, rows: slice | np.ndarray) -> Iterable[slice | np.ndarray]:
        """Return rows in parts, of which one at a time is in memory where they lie in a file."""
        if self.file is None or not isinstance(rows, slice):
            return (rows,)
        return starmap(slice, self.file.blocks(rows.start, rows.stop))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return room for numbers of all rows, in memory or in a file as they are."""
        return np.empty(shape, dtype) if self.file is None else self.file.empty(shape, dtype)

    def weights_with(self, of_classes: tuple[float, ...] | None) -> np.ndarray | None:
        """Return the weights of padded rows times those of their classes; None: all are 1.

        Learners with the same weights of classes share the array, since there may be hundreds.
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
    """Return rows of an array, a sparse matrix or a data frame.

    A slice of an array is a view.
    """
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def padded_width(n_columns: int) -> int:
    """Round up to a multiple of 8."""
    return -(-n_columns // 8) * 8


def pad_rows(
    X: Any, order: np.ndarray, intercept: bool, missing: bytes = b"", beside: bytes = b""
) -> np.ndarray | SparseRows:
    """Copy ``X[order]``, padded with zeros after an optional intercept column of ones.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, n_features), float64 or float32
    order : ndarray of shape (n_rows,), uint32
    intercept : bool
    missing, beside : bytes
        As in ``RowLayout``.

    Returns
    -------
    ndarray of shape (n_rows, multiple of 8), of the type of X, aligned; or SparseRows

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    width = padded_width(X.shape[1] + intercept)
    if sparse.issparse(X):
        return _sparse_rows(X, order, intercept, width, missing, beside)
    rows = empty_rows((len(order), width), X.dtype)
    _write_rows(X, intercept, missing, rows, source=order)
    return rows


def _write_rows(
    X: np.ndarray, intercept: bool, missing: bytes, rows: np.ndarray, **places: np.ndarray
) -> None:
    """Write padded rows to the places of ``copy_rows``, and check that the numbers are finite."""
    if any(stride % X.itemsize for stride in X.strides):
        X = X.copy()  # the strides of a field of packed records are not multiples of the item size
    if not copy_rows(X, float(intercept), rows, **places):
        may_miss = np.frombuffer(missing, bool) if missing else np.zeros(X.shape[1], bool)
        # Raises an error that names the value found.
        assert_all_finite(X[:, ~may_miss], input_name="X")
        assert_all_finite(X[:, may_miss], input_name="X", allow_nan=True)


def _sparse_rows(
    X: Any, order: np.ndarray, intercept: bool, width: int, missing: bytes, beside: bytes
) -> SparseRows:
    if width >= 2**31:
        raise ValueError(f"X must have fewer than 2**31 - 8 columns, got {X.shape[1]}.")
    rows = X.tocsr()[order]
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        rows.sum_duplicates()  # also sorts the columns
    dense = None
    if beside:
        is_beside = np.frombuffer(beside, bool)
        rows, columns = split_columns(rows, is_beside)
        may_miss = np.frombuffer(missing, bool)[is_beside].tobytes() if missing else b""
        in_order = np.arange(len(order), dtype=np.uint32)
        dense = cast(np.ndarray, pad_rows(columns, in_order, False, may_miss))
    assert_all_finite(rows.data, input_name="X")
    rows.eliminate_zeros()
    values, columns, begins = rows.data, rows.indices, rows.indptr.astype(np.int64)
    if intercept:
        values = np.insert(values, begins[1:], 1)
        columns = np.insert(columns, begins[1:], X.shape[1])
        begins += np.arange(len(begins))
    columns = columns.astype(np.int32, copy=False)
    return SparseRows(values, columns, begins, (len(order), width), dense)


def split_columns(
    X: sparse.csr_array, is_beside: np.ndarray
) -> tuple[sparse.csr_array, np.ndarray]:
    """Take columns out of sparse rows, so that they lie beside them as dense ones.

    Steps such as a StandardScaler leave no zeros in the columns that they centre, while the
    columns of a OneHotEncoder in the same table are nearly all zeros.

    Parameters
    ----------
    X : sparse matrix of shape (n_rows, n_features), CSR without duplicates
    is_beside : ndarray of shape (n_features,), bool

    Returns
    -------
    sparse_rows : sparse array of shape (n_rows, n_features)
        Without entries in these columns.
    dense_rows : ndarray of shape (n_rows, n_beside)
        These columns.
    """
    stays = ~is_beside[X.indices]
    begins = np.append(0, np.cumsum(stays))[X.indptr]
    rest = sparse.csr_array((X.data[stays], X.indices[stays], begins), shape=X.shape)
    return rest, X[:, is_beside].toarray()


def largest_norm2(X: Any, n_features: int) -> float:
    """Return the largest |x|^2 of all rows, without the intercept, computed in float64.

    The result is the same for dense and sparse rows.

    Parameters
    ----------
    X : ndarray, sparse matrix or SparseRows
        Given or prepared rows.
    n_features : int

    Returns
    -------
    float
    """
    largest = 0.0
    if sparse.issparse(X):
        X = pad_rows(X, np.arange(X.shape[0], dtype=np.uint32), False)
    if isinstance(X, SparseRows):
        for begin in range(0, len(X), 4096):
            rows = X[begin : begin + 4096]
            of_row = np.repeat(np.arange(len(rows)), np.diff(rows.begins))
            squares = np.square(rows.values, dtype=np.float64) * (rows.columns < n_features)
            largest = max(largest, float(np.bincount(of_row, squares, len(rows)).max()))
        return largest
    for begin in range(0, len(X), 4096):  # cumsum adds from the left, as bincount does
        squares = np.square(X[begin : begin + 4096, :n_features], dtype=np.float64)
        largest = max(largest, float(np.cumsum(squares, axis=1)[:, -1].max()))
    return largest


class Data:
    """The given X and y, with the checks that apply to every learner.

    Parameters
    ----------
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        Or texts, of shape (n_rows,).
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or None
    room : Room
        How much memory prepared rows may take.
    names : sequence of str or None
        The names of the columns of an array that comes from a file.

    Attributes
    ----------
    n_rows, n_features : int
    X : array, sparse matrix or data frame
        The rows as given; lists become arrays, and sparse rows CSR.
    X_given : array, sparse matrix, data frame or list
        The same, but lists stay lists.
    y : ndarray of shape (n_rows,) or, with more than one column, (n_rows, n_targets); or None
    y_given : array-like or None
        ``y`` in the form in which it was given.
    weights, score_weights : ndarray of shape (n_rows,), float64, or None
        The weights of the rows in training and in scores; None: all are 1. They are set after the
        checks of ``check_weights``, and before rows are prepared.
    numbers : ndarray of shape (n_rows,) or None
        The numbers of these rows among all that are given; None: they are all.
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
            check_array_kind("y", y)
            if isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
                if not all(isinstance(label, str) for label in y):
                    # An array of strings would make labels of None and NaN.
                    labels = np.array(y, dtype=object)
                    raise ValueError(_why_no_labels(labels, TypeError("it mixes types")))
            with naming("X and y"):
                check_consistent_length(X, y)
            with naming("y"):
                y = _as_targets(y)
            if y.dtype.kind == "f":
                assert_all_finite(y, input_name="y")
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

    def with_rows(self, X: Any) -> "Data":
        """Return data of other rows with the same targets and weights."""
        data = Data(X, room=self.room)
        data.y, data.y_given, data._classes = self.y, self.y_given, self._classes
        data._codes = self._codes
        data.weights, data.score_weights = self.weights, self.score_weights
        return data

    @property
    def n_bytes(self) -> int:
        """The bytes of the rows when they are prepared here, with an intercept."""
        if self.is_remote:
            return 0
        first = take_rows(self.X, slice(0, 1))
        itemsize = 4 if getattr(first, "dtype", None) == np.float32 else 8
        if sparse.issparse(self.X):
            return int(self.X.nnz + self.n_rows) * (itemsize + 4) + 8 * self.n_rows
        return self.n_rows * padded_width(self.n_features + 1) * itemsize

    @property
    def is_large(self) -> bool:
        """Whether the prepared rows are more than memory may hold."""
        return not self.room.holds(self.n_bytes)

    @property
    def is_remote(self) -> bool:
        """Whether the rows lie elsewhere."""
        return isinstance(self.X, RemoteRows)

    def without_X(self) -> "Data":
        """Return the same data without the rows."""
        bare = copy(self)
        bare.X = bare.X_given = bare.y_given = None
        return bare

    def some(self, numbers: np.ndarray) -> "Data":
        """Return the data of some rows, which ascend, without X; ``prepare_with`` adds that."""
        some = self.without_X()
        some.n_rows, some.numbers = len(numbers), numbers
        for name in ("y", "weights", "score_weights", "_codes"):
            of_all = getattr(self, name)
            setattr(some, name, None if of_all is None else of_all[numbers])
        return some

    def prepare_with(self, layout: RowLayout, X: Any, order: np.ndarray) -> PreparedRows:
        """Return the rows X of ``some`` data in an order of theirs."""
        self.X = X.tocsr() if hasattr(X, "tocsr") else X
        return self.prepare(layout, order)

    def _place(
        self, layout: RowLayout, order: np.ndarray, begins: np.ndarray | None
    ) -> tuple[RemoteBlocks, PreparedRows]:
        """Return blocks of the rows in ``order`` where they lie, and the first row as given."""
        assert begins is not None
        if layout.target == "class":
            self.classes()  # those of all rows
        zero = np.zeros(1, np.uint32)
        first = self.some(zero).prepare_with(layout, self.X[:1], zero)
        bounds = block_bounds(begins, self.n_rows, self.X.n_blocks)

        bare = self.without_X()  # so that blocks go as soon as the rows do

        def prepare(numbers: np.ndarray) -> Any:
            return partial(bare.some(numbers).prepare_with, layout)

        named = layout, bounds, order.tobytes(), self.y, self.weights, self.score_weights
        name = xxh3_128(pickle.dumps(named)).digest()
        return self.X.place(order, bounds, prepare, name), first

    def prepare(
        self, layout: RowLayout, order: np.ndarray, begins: np.ndarray | None = None
    ) -> PreparedRows:
        """Return the rows in ``order``, in the layout that a learner needs.

        Rows that lie elsewhere stay there, in blocks of about equal size. ``begins`` are the first
        rows of folds, and the number of rows.
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
                raise ValueError("X must hold numbers for this estimator, got texts.")
            check_columns(self.X.sample if self.is_remote else self.X)
            row = self._first_row()
            if sparse.issparse(row) and not layout.sparse:
                raise ValueError(
                    "X must be dense for this estimator, got sparse rows; pass X.toarray(), or "
                    "use an estimator for sparse rows: PegasosClassifier, AveragedSGDClassifier "
                    "with batch_size=1, StreamingSVRGClassifier, or their regressors."
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
                        "in which all of them are 0; weights of about 1 would be right."
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
                array.flags.writeable = False  # since all trials share them
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
        """Return the first row as floats."""
        return _as_floats(take_rows(self.X, slice(0, 1)))

    def _padded(self, layout: RowLayout, order: np.ndarray) -> np.ndarray | SparseRows:
        """Return padded rows in an order; dense ones are read forwards, which is faster."""
        row = self._first_row()
        if sparse.issparse(row):
            X = _as_floats(self.X)
            X = X.copy() if self._stamp is not None else X  # which reads a file forwards
            with naming_entries(self.X, self.numbers, self._names):
                return pad_rows(X, order, layout.intercept, layout.missing, layout.beside)
        width = padded_width(self.n_features + layout.intercept)
        rows = empty_rows((len(order), width), row.dtype)
        place = np.empty_like(order)
        is_permutation = inverse(order, place)
        assert is_permutation  # of the rows
        for given, numbers in self._given():
            target = place[numbers[0] : numbers[-1] + 1]
            if self.numbers is not None:
                numbers = self.numbers[numbers]
            with naming_entries(given, numbers, self._names):
                X = _as_floats(given, numbers)
                _write_rows(X, layout.intercept, layout.missing, rows, target=target)
        return rows

    def _gather_forwards(
        self, layout: RowLayout, order: np.ndarray
    ) -> tuple[np.ndarray | SparseRows, RowFile]:
        """Return padded rows in order, which are too large for memory, in a file."""
        keep_nothing()
        row = self._first_row()
        width = padded_width(self.n_features + layout.intercept)
        pieces = self._pieces(layout)
        if not sparse.issparse(self.X):
            if sparse.issparse(row):
                raise ValueError(
                    "X must be an array or a sparse matrix where it takes more than max_memory, "
                    "got a data frame with sparse columns; X.sparse.to_coo().tocsr() would be "
                    "right."
                )
            file: RowFile = DenseFile(pieces, order, width, row.dtype, self.room)
        elif layout.beside:
            raise ValueError(
                "max_memory must be None where a step makes dense columns of sparse rows, as a "
                "StandardScaler with means does; with_mean=False, for example, would be right."
            )
        else:
            given, n_more = self.X.indptr, int(layout.intercept)
            file = SparseFile(pieces, order, given, n_more, width, row.dtype, self.room)
        return file.rows, file

    def _pieces(self, layout: RowLayout) -> Iterator[tuple[int, Any]]:
        """Yield the padded rows as given, some at a time, and the number of their first one."""
        # Estimators of others check their rows themselves.
        may_miss = layout.missing if layout.padded else b"\1" * self.n_features
        for given, numbers in self._given():
            with naming_entries(given, numbers, self._names):
                X, order = _as_floats(given, numbers), numbers - numbers[0]
                piece = pad_rows(X, order, layout.intercept, may_miss)
            yield int(numbers[0]), piece

    def _given(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the rows as given, some at a time, and their numbers."""
        n_rows = max(1, self.room.piece_bytes * self.n_rows // self.n_bytes)
        for first in range(0, self.n_rows, n_rows):
            self.check_unchanged()
            given = take_rows(self.X, slice(first, first + n_rows))
            numbers = np.arange(first, first + given.shape[0], dtype=np.uint32)
            yield given, numbers
            if sparse.issparse(self.X):
                entries = slice(*self.X.indptr[[first, first + len(numbers)]])
                leave_pages(self.X.data[entries])
                leave_pages(self.X.indices[entries])
            else:
                leave_pages(given)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Refuse rows whose file was written, cut short or removed since it was given."""
        if self._stamp is None or stamp_of(_numbers_of(self.X)) == self._stamp:
            return
        raise ValueError(
            f"X must not change while it is read, but the file {self._stamp[0]!r} was written or "
            "removed."
        )

    def why_only_fit(self, has_classes: bool) -> str:
        """Return why only ``fit`` of an estimator takes the rows, a clause; "" if others do.

        Parameters
        ----------
        has_classes : bool
            Whether y holds classes.
        """
        if len(self.X.shape) > 2:
            return f"X has {len(self.X.shape)} dimensions, got shape {tuple(self.X.shape)}"
        if self.y is None or self.y.ndim == 1 or (self.y.ndim == 2 and not has_classes):
            return ""
        columns = "several columns of classes" if self.y.ndim == 2 else f"{self.y.ndim} dimensions"
        return f"y has {columns}, got shape {self.y.shape}"

    def check_no_target_is_missing(self) -> None:
        """Refuse objects as the numbers of a regressor if a row has none."""
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
        """Return the sorted classes of y."""
        if self.y is None:
            raise ValueError("y must be given for a classifier, got None.")
        if self._classes is None:
            if self.y.ndim > 1:
                raise ValueError(
                    "y must have one column where it holds classes, got shape "
                    f"{self.y.shape}; one evaluation for each column would be right."
                )
            self._classes = find_classes(self.y)
        return self._classes

    def codes(self) -> np.ndarray:
        """Return the class codes of y, in the narrowest unsigned type."""
        if self._codes is None:
            narrow = np.min_scalar_type(len(self.classes()))
            self._codes = as_codes(self.y, self.classes()).astype(narrow)
        return self._codes


def _numbers_of(X: Any) -> Any:
    """Return the array with the numbers of rows."""
    return X.data if sparse.issparse(X) else X


def _without_padding(X: np.ndarray | SparseRows, n_features: int) -> Any:
    """Return padded rows in a form that estimators take, in the same memory."""
    if isinstance(X, np.ndarray):
        return X[:, :n_features]
    begins = X.begins.astype(np.min_scalar_type(-int(X.begins[-1])), copy=False)
    return sparse.csr_array((X.values, X.columns, begins), shape=(len(X), n_features))


def _as_floats(X: Any, numbers: np.ndarray | None = None) -> Any:
    """Return rows as float64 or, if they are that, float32; CSR if they are sparse.

    Errors call row i of X by ``numbers[i]``.
    """
    with naming("X"), naming_entries(X, numbers):
        return check_array(
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            input_name="X",
        )


def _as_targets(y: Any) -> np.ndarray:
    """Return y as an array with one dimension, or with two if it has several columns."""
    shape = np.shape(y)
    if len(shape) == 2 and shape[1] > 1:
        return check_array(y, dtype=None, order="C", ensure_all_finite=False, input_name="y")
    if 0 in shape[1:]:
        raise ValueError(
            f"y must have the shape (n_rows,) or (n_rows, n_targets), got shape {shape}."
        )
    if len(shape) > 2:
        return np.asarray(y)
    return column_or_1d(y, warn=True)


def count_targets(y: Any) -> int:
    """Return the number of columns of y, which is 1 for an array with one dimension."""
    shape = np.shape(y)
    return 1 if len(shape) < 2 else shape[1]


def without_single_column(y: Any) -> np.ndarray:
    """Return y or predictions as an array, with two dimensions only if it has several columns."""
    y = np.asarray(y)
    return y if count_targets(y) > 1 else y.ravel()


def _is_text(X: Any) -> bool:
    """Return whether X is a sequence of strings, as vectorizers take them."""
    if isinstance(X, str | dict) or not hasattr(X, "__len__") or len(X) == 0:
        return False
    values = X if isinstance(X, list | tuple) else np.asarray(X)
    return np.ndim(values[0]) == 0 and all(isinstance(value, str) for value in values)


def find_classes(y: np.ndarray) -> np.ndarray:
    """Return the sorted classes of the labels ``y``, which must be two or more."""
    classes = distinct_labels(y)
    if len(classes) < 2:
        raise ValueError(f"y must hold at least 2 classes, got one class: {classes[0]}.")
    return classes


def distinct_labels(y: np.ndarray) -> np.ndarray:
    """Return the sorted distinct labels in ``y``.

    Raises
    ------
    ValueError
        If y is continuous, holds objects other than strings, or lacks labels.
    """
    if y.dtype.kind in "mM" and (row := first_missing(y)) is not None:
        raise ValueError(f"y must hold a label for each row, got NaT in row {row}.")
    if (span := _span_of(y)) is not None:  # integers, of which scikit-learn refuses none
        counts = np.bincount(y.ravel().astype(np.intp) - span.start, minlength=len(span))
        return (np.flatnonzero(counts) + span.start).astype(y.dtype)
    try:
        check_classification_targets(y)
        return np.unique(y)
    except (TypeError, ValueError) as error:
        raise ValueError(_why_no_labels(y, error)) from error


def _span_of(y: np.ndarray) -> range | None:
    """Return the integers from the least label to the largest one, if they are few."""
    if y.dtype.kind not in "iu" or y.size == 0:
        return None
    span = range(int(y.min()), int(y.max()) + 1)
    are_few = span.stop - span.start <= min(_LABELS_AT_ONCE, y.size // 2)
    return span if are_few and span.stop < 2**62 else None


def _why_no_labels(y: np.ndarray, error: Exception) -> str:
    """Return the message for labels in which scikit-learn or NumPy found an error."""
    if y.dtype != object:
        return f"y must hold class labels: {error}"
    row = first_missing(y)
    if row is not None:
        return f"y must hold a label for each row, got {y[row]!s} in row {row}."
    of_each_type = {type(label): repr(label) for label in reversed(y)}
    return (
        "Unknown label type: y must hold strings, or be an array of integers, got objects such as "
        f"{', '.join(reversed(of_each_type.values()))}; y.astype(int) or y.astype(str) would be "
        "right."
    )


def as_codes(y: Any, classes: np.ndarray) -> np.ndarray:
    """Return the class codes (int32) of labels."""
    codes = np.empty(np.shape(y), np.int32)
    if isinstance(y, np.ndarray) and (span := _span_of(y)) is not None:
        of_each = np.searchsorted(classes, span).astype(np.int32)
        return of_each[y.astype(np.intp) - span.start]
    for begin in range(0, len(codes), _LABELS_AT_ONCE):  # since searchsorted returns int64
        part = slice(begin, begin + _LABELS_AT_ONCE)
        codes[part] = np.searchsorted(classes, y[part])
    return codes


def predicted_codes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the class codes of predicted labels, -1 for labels that are no class."""
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[codes] == labels, codes, -1)


def as_numbers(y: np.ndarray | None) -> np.ndarray:
    """Return the targets of a regressor as float64.

    Raises
    ------
    ValueError
        If they are not finite numbers.
    """
    if y is None:
        raise ValueError("y must be given for a regressor, got None.")
    if y.dtype.kind not in "biufO":
        raise ValueError(f"y must hold numbers for a regressor, got type {y.dtype}.")
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y must hold numbers for a regressor: {error}.") from error
    assert_all_finite(numbers, input_name="y")
    return numbers


def in_type(numbers: np.ndarray, dtype: Any, argument: str = "y") -> np.ndarray:
    """Return targets or weights in the type of the rows, which may be too small for them."""
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        converted = numbers.astype(dtype, copy=False)
    assert_all_finite(converted, input_name=argument)
    return converted


def times_classes(
    weights: np.ndarray | None, of_classes: tuple[float, ...], codes: np.ndarray, dtype: Any
) -> np.ndarray:
    """Return the weights of rows times those of their classes, rounded once.

    Parameters
    ----------
    weights : ndarray of shape (n_rows,), of type ``dtype``, or None
        None: all are 1.
    of_classes : tuple of float
        The weight of each class code.
    codes : ndarray of shape (n_rows,), int32
        The class of each row.
    dtype : float64 or float32
        The type of the rows.
    """
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        product = np.array(of_classes)[codes] * (1.0 if weights is None else weights)
    return in_type(product, dtype, "class_weight times sample_weight")
