"""Solve the normal equations of ridge regression, (G + alpha I) z = b, for many alphas.

G and b are computed from the moments of the training rows, or from the rows themselves. One
factorisation G = Q T Q' with a tridiagonal T, which takes O(d^3), serves all alphas. Each alpha
then takes O(d) to solve an equation with T + alpha I, and O(d^2) to multiply the solution by Q.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from copy import copy
from math import prod
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv._kernels import lapack
from optuna_treecv.numerics.moments import about
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import Source
from optuna_treecv.numerics.moments import views
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import is_constant
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import scale_of
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.data import PreparedRows

# The largest ratio of two diagonal entries of G + alpha I for which T is used. Orthogonal
# transformations mix the columns, which spreads the rounding errors of the column with the largest
# scale. Above this ratio, each alpha has its own Cholesky factorisation, whose precision does not
# depend on the scales of the columns.
_MAX_RATIO = 1e3

#: A pivot is the part of a column's sum of squares that the preceding columns do not explain. If
#: it is a smaller share than this, it consists of rounding errors.
MIN_PIVOT = 1e-13

# The largest condition number of G + alpha I relative to G + r I with the reference alpha r.
_MAX_CONDITION = 1e4

# The smallest eigenvalue of scaled columns for which least squares are solved: without a penalty,
# rounding errors are divided by it.
_MIN_EIGENVALUE = 1e-6

# Up to this number of columns, one call of NumPy for all alphas takes less time than one call for
# each alpha.
_MAX_COLUMNS_FOR_BATCH = 48


class Penalties:
    """The factorised equations (G + alpha I) z = b, in one flat array that can be cached.

    Parameters
    ----------
    memory : ndarray of shape (size(n, n_targets),), float64
        The flat array. All other arrays are views of it.
    n : int
        The number of rows and columns of G.
    n_targets : int
        The number of columns of b.

    Attributes
    ----------
    gram : ndarray of shape (n, n)
        G.
    """

    def __init__(self, memory: np.ndarray, n: int, n_targets: int) -> None:
        self.gram, reflectors, *others = views(memory, self._shapes(n, n_targets))
        self._reflectors = reflectors.T  # in Fortran order
        self._diagonal, self._off_diagonal, self._tau, self._b, self._rotated = others

    @staticmethod
    def _shapes(n: int, n_targets: int) -> list[tuple[int, ...]]:
        rotations = [(n - 1, n - 1), (n,), (n - 1,), (n - 1,)]
        return [(n, n), *rotations, (n, n_targets), (n, n_targets)]

    @classmethod
    def size(cls, n: int, n_targets: int) -> int:
        """Return the number of float64 values in the flat array."""
        return sum(map(prod, cls._shapes(n, n_targets)))

    def factor(self, gram: np.ndarray, b: np.ndarray, alphas: np.ndarray) -> None:
        """Factorise G. Other alphas can be solved later, but may take longer."""
        self.gram[:] = gram
        self._b[:] = b
        self._diagonal[0] = np.nan  # not factorised
        if len(gram) == 1 or not np.any(_have_similar_scales(gram, alphas)):
            return
        reduced, self._diagonal[:], self._off_diagonal[:], self._tau[:] = lapack.tridiagonal(gram)
        self._reflectors[:] = reduced[1:, :-1]
        self._rotated[:] = lapack.rotate(self._reflectors, self._tau, b, True)

    def solve(self, alphas: np.ndarray) -> np.ndarray:
        """Return (G + alpha I)^-1 b for each alpha.

        Parameters
        ----------
        alphas : ndarray of shape (n_alphas,)

        Returns
        -------
        ndarray of shape (n_alphas, n, n_targets)
            NaN for an alpha with which G + alpha I is singular, at least in floating point.
        """
        n, n_targets = self._b.shape
        if n == 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                solved = self._b / (self.gram + alphas[:, None, None])
            return np.where(np.isfinite(solved), solved, np.nan)
        solved = np.full((len(alphas), n, n_targets), np.nan)
        squares = self.gram.diagonal()
        if not np.all(np.isfinite(squares)):
            return solved
        high = squares.max()
        use_rotations = _have_similar_scales(self.gram, alphas) & np.isfinite(self._diagonal[0])
        for i, alpha in enumerate(alphas):
            if use_rotations[i]:
                solved[i], pivots = lapack.solve_tridiagonal(
                    self._diagonal + alpha, self._off_diagonal, self._rotated
                )
                use_rotations[i] = pivots.min() > MIN_PIVOT * high
        if not use_rotations.all():
            solved[~use_rotations] = self._solve_by_cholesky(alphas[~use_rotations])
        if np.any(use_rotations):
            z = solved[use_rotations].transpose(1, 0, 2).reshape(n, -1)
            back = lapack.rotate(self._reflectors, self._tau, z, False).reshape(n, -1, n_targets)
            solved[use_rotations] = back.transpose(1, 0, 2)
        if not squares.all():  # the product with Q spreads rounding errors to constant columns
            solved[np.ix_(alphas > 0, squares == 0)] = 0
        # Small pivots do not reveal every singular matrix.
        if not alphas.all() and is_singular(self.gram):
            solved[alphas == 0] = np.nan
        return solved

    def _solve_by_cholesky(self, alphas: np.ndarray) -> np.ndarray:
        """Return (G + alpha I)^-1 b for each alpha; NaN if a pivot consists of rounding errors."""
        n = len(self.gram)
        solved = np.full((len(alphas), *self._b.shape), np.nan)
        squares = self.gram.diagonal()
        if n <= _MAX_COLUMNS_FOR_BATCH:
            matrices = self.gram + alphas[:, None, None] * np.identity(n)
            pivots = np.diagonal(_cholesky_factors(matrices), axis1=1, axis2=2)
            good = np.all(np.square(pivots) >= MIN_PIVOT * (squares + alphas[:, None]), axis=1)
            b = np.broadcast_to(self._b, (int(np.count_nonzero(good)), *self._b.shape))
            solved[good] = np.linalg.solve(matrices[good], b)
        else:
            for i, alpha in enumerate(alphas):
                solution, pivots = lapack.solve_positive(self.gram, alpha, self._b)
                if np.all(np.square(pivots) >= MIN_PIVOT * (squares + alpha)):
                    solved[i] = solution
        return solved


def _have_similar_scales(gram: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return a mask of the alphas for which the diagonal of G + alpha I varies little."""
    squares = gram.diagonal()
    return np.asarray(squares.max() + alphas <= _MAX_RATIO * (squares.min() + alphas))


def _cholesky_factors(matrices: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of each matrix; zeros for one that is not positive definite.

    The argument and the result have the shape (n_matrices, n, n).
    """
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # it does not tell for which matrix
        if len(matrices) == 1:
            return np.zeros_like(matrices)
        return np.concatenate([_cholesky_factors(matrix[None]) for matrix in matrices])


def is_singular(gram: np.ndarray, least: float = 0.0) -> bool:
    """Return whether the columns of X are linearly dependent, regardless of their scales.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
        X'X.
    least : float
        The columns are independent if the smallest eigenvalue of their correlation matrix is at
        least this. The default is 10 n times the machine epsilon.
    """
    squares = gram.diagonal()
    if squares.min() <= 0:
        return True
    scale = np.sqrt(squares)
    values = np.linalg.eigvalsh(gram / scale / scale[:, None])
    return not bool(values[0] >= (least or 10 * len(squares) * np.finfo(np.float64).eps))


class Basis(NamedTuple):
    """Vectors with (G + alpha I)^-1 = vectors diag(shrinks) vectors' for several alphas.

    Attributes
    ----------
    alpha_indices : ndarray of shape (n_alphas,), int
        The indices of the alphas for which the basis is valid.
    vectors : ndarray of shape (n, n)
    shrinks : ndarray of shape (n_alphas, n)
        The factor of each vector, for each alpha.
    projected : ndarray of shape (n, n_targets)
        vectors' b.
    is_orthonormal : bool
        Whether vectors' vectors = I.
    """

    alpha_indices: np.ndarray
    vectors: np.ndarray
    shrinks: np.ndarray
    projected: np.ndarray
    is_orthonormal: bool


def compute_bases(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, triangle: Callable[[], np.ndarray]
) -> list[Basis]:
    """Compute bases that together are valid for all alphas. A single basis usually suffices.

    If the columns have very different scales, G + r I = L L' is factorised for a reference alpha
    r, because the scales do not affect the precision of a Cholesky factorisation. With the
    eigenvalues m and the eigenvectors W of (L'L)^-1, the vectors L^-T W are a basis in which
    G + alpha I is the diagonal matrix 1 + (alpha - r) m. Similar alphas share a reference.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
        G.
    b : ndarray of shape (n, n_targets)
    alphas : ndarray of shape (n_alphas,)
        An alpha of 0 requires that G is not singular.
    triangle : callable
        () -> R of [X, y] = QR with X'X = G and X'y = b. It is called only if rounding errors hide
        small eigenvalues of G.

    Returns
    -------
    list of Basis
    """
    use_rotations = _have_similar_scales(gram, alphas)
    bases, imprecise = [], []
    indices = np.flatnonzero(use_rotations)
    if len(indices):
        values, vectors = np.linalg.eigh(gram)
        if values[0] + alphas[indices].min() < MIN_PIVOT * values[-1]:
            imprecise.append(indices)
        else:
            shrinks = 1 / (np.maximum(values, 0) + alphas[indices, None])
            bases.append(Basis(indices, vectors, shrinks, vectors.T @ b, True))
    others = np.flatnonzero(~use_rotations)
    for indices, basis in _bases_from_cholesky(
        gram, b, alphas, others[np.argsort(alphas[others])]
    ):
        if basis is None:
            imprecise.append(indices)
        else:
            bases.append(basis)
    if imprecise:  # R has the singular values of X; the eigenvalues of G are their squares
        indices, R, n = np.concatenate(imprecise), triangle(), len(gram)
        left, values, right = np.linalg.svd(R[:n, :n])
        shrinks = 1 / (np.square(values) + alphas[indices, None])
        projected = values[:, None] * (left.T @ R[:n, n:])
        bases.append(Basis(indices, right.T, shrinks, projected, True))
    return bases


def _bases_from_cholesky(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, indices: np.ndarray
) -> Iterator[tuple[np.ndarray, Basis | None]]:
    """Yield the indices of several alphas with their basis.

    The basis is None if rounding errors hide eigenvalues. ``indices`` must be in ascending order
    of alpha.
    """
    if not len(indices):
        return
    served = alphas[indices]
    positive = served[served > 0]
    reference = float(np.sqrt(positive[0] * positive[-1])) if len(positive) else 0.0
    if len(indices) == 1:
        reference = float(served[0])
    matrix = gram + reference * np.identity(len(gram))
    factor = lapack.cholesky(matrix)
    if factor is None or np.any(np.square(factor.diagonal()) < MIN_PIVOT * matrix.diagonal()):
        yield indices, None
        return
    inverse = lapack.inverse_of_triangle(factor)
    values, vectors = np.linalg.eigh(inverse @ inverse.T)
    shrinks = 1 + np.multiply.outer(served - reference, values)
    # Lower bounds of 1 + (alpha - r) m: the eigenvalues of G are at least 0, so m is between 0 and
    # 1 / r.
    least = np.minimum(1, served / reference) if reference else np.ones_like(served)
    np.maximum(shrinks, least[:, None], out=shrinks)
    if len(indices) == 1 or np.all(shrinks.max(axis=1) <= _MAX_CONDITION * shrinks.min(axis=1)):
        vectors = inverse.T @ vectors
        yield indices, Basis(indices, vectors, 1 / shrinks, vectors.T @ b, False)
        return
    n_low = min(max(1, int(np.searchsorted(served, reference))), len(served) - 1)
    yield from _bases_from_cholesky(gram, b, alphas, indices[:n_low])
    yield from _bases_from_cholesky(gram, b, alphas, indices[n_low:])


class Equations(NamedTuple):
    """The equations (gram + alpha I) coef = b of centred and scaled rows.

    Attributes
    ----------
    gram : ndarray of shape (n_features, n_features)
    b : ndarray of shape (n_features, n_targets)
    origin : ndarray of shape (n_features + n_targets,)
        The means that are subtracted from the columns of X and from the targets, in addition to
        ``RidgeRows.shift``.
    scale : ndarray of shape (n_features,)
        The divisors of the columns of X.
    is_constant : ndarray of shape (n_features,), bool
        A mask of the columns that a scaler does not divide, because they are constant.
    """

    gram: np.ndarray
    b: np.ndarray
    origin: np.ndarray
    scale: np.ndarray
    is_constant: np.ndarray


class RidgeRows(Source):
    """The matrix [X, y] of features and targets, whose moments ridge regression needs.

    Parameters
    ----------
    rows : PreparedRows
        For class codes as targets, y consists of labels of -1 and 1. Two classes have one column,
        which is 1 for the second class. More classes have one column each, which is 1 for the rows
        of this class.
    fit_intercept : bool
    scaler : StandardScaler or None
        It is fitted on the training rows of each model and ignores weights.
    n_groups : int
        The number of classes if the class weights depend on the training rows, otherwise 1.

    Attributes
    ----------
    n_targets : int
        The number of columns of y.
    has_centre : bool
        Whether means are subtracted from the columns of X.
    shift : ndarray of shape (n_features + n_targets,)
        Constants that are subtracted from the columns of [X, y] before anything else is computed;
        0 unless ``shifted`` has set them. If means are large compared with the differences between
        rows, the shifted means have more correct digits.
    cutoff : float
        Least squares drop singular values of X below this share of the largest one. 0 for models
        that drop none.
    """

    cutoff = 0.0

    def __init__(
        self,
        rows: PreparedRows,
        fit_intercept: bool,
        scaler: StandardScaler | None,
        n_groups: int = 1,
    ) -> None:
        if rows.classes is None:
            n_targets = count_targets(rows.targets)
        else:
            n_targets = 1 if len(rows.classes) == 2 else len(rows.classes)
        with_spread = scaler is not None
        super().__init__(rows, n_groups, n_targets=n_targets, with_spread=with_spread)
        self.fit_intercept, self.scaler = fit_intercept, scaler
        self.has_centre = fit_intercept or (scaler is not None and bool(scaler.with_mean))
        self.shift = np.zeros(self.n_columns)

    def shifted(self) -> "RidgeRows":
        """Return a copy with a shift, which prevents rounding errors caused by large offsets.

        If means are subtracted, the shift is the median of a few rows, which may be test rows.
        Apart from rounding errors, results do not depend on the shift.
        """
        other = copy(self)
        other.shift = np.zeros_like(self.shift)
        few = np.unique(np.linspace(0, len(self.rows.order) - 1, 15).astype(int))
        X, y, _ = self.copy(few)
        if self.has_centre:
            other.shift[: X.shape[1]] = np.median(X, axis=0)
        if self.fit_intercept:
            other.shift[X.shape[1] :] = np.median(y, axis=0)
        return other

    def fill(
        self, rows: RowIndices, out: np.ndarray, chunk: int | None = None
    ) -> np.ndarray | None:
        """Copy shifted rows and their targets into an array, and return their weights."""
        weights = super().fill(rows, out, chunk)
        assert self.rows.targets is not None
        targets, y = self.rows.targets[rows], out[:, -self.n_targets :]
        if self.rows.classes is None:
            y[:] = targets.reshape(y.shape)
        elif self.n_targets == 1:
            y[:, 0] = np.where(targets == 1, 1, -1)
        else:
            y[:] = -1
            y[np.arange(len(targets)), targets] = 1
        if self.shift.any():
            out -= self.shift
        return weights

    def copy(
        self, rows: RowIndices, chunk: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return shifted X, shifted targets and weights of the given rows as float64.

        With the index of a chunk, the transformers of its model are applied to X.
        """
        d, n_rows = self.rows.n_features, count_rows(rows)
        X_and_y = np.empty((n_rows, self.n_columns))
        weights = self.fill(rows, X_and_y, chunk)
        return X_and_y[:, :d], X_and_y[:, d:], np.ones(n_rows) if weights is None else weights

    def equations(self, moments: Moments) -> Equations:
        """Return the equations of a model from the moments of its training rows."""
        d = self.rows.n_features
        mean = moments.means[0]
        origin = mean if self.fit_intercept else np.zeros_like(mean)
        scale, constant_columns = np.ones(d), np.zeros(d, dtype=bool)
        if self.scaler is not None:
            assert moments.spread is not None
            spread = moments.spread
            unshifted = spread._replace(mean=spread.mean + self.shift[:d])
            scale = scale_of(self.scaler, unshifted)
            constant_columns = is_constant(unshifted)
            if self.has_centre and not self.fit_intercept:
                origin[:d] = spread.mean
        products = moments.scatters[0] if self.fit_intercept else about(moments, origin)
        gram = products[:d, :d] / scale / scale[:, None]
        if self.cutoff:
            values = np.linalg.eigvalsh(gram)
            # The factor leaves a margin, because leave-one-out changes the singular values.
            drops_directions = not values[0] > 400 * self.cutoff**2 * values[-1]
            if drops_directions or is_singular(gram, _MIN_EIGENVALUE):
                raise nearly_dependent_error()
        return Equations(gram, products[:d, d:] / scale[:, None], origin, scale, constant_columns)

    def triangle(
        self,
        segments: Sequence[RowIndices],
        origin: np.ndarray,
        scale: np.ndarray,
        chunk: int | None = None,
    ) -> np.ndarray:
        """Return R of the factorisation [X, y] = QR, for centred and scaled rows.

        The eigenvalues of X'X are the squares of the singular values of X. If the largest singular
        value is 1e8 times the smallest, rounding errors hide the smallest eigenvalue. R has the
        singular values themselves.

        Parameters
        ----------
        segments : sequence of RowIndices
            The rows, which are read segment by segment.
        origin : ndarray of shape (n_features + n_targets,)
        scale : ndarray of shape (n_features,)
        chunk : int or None
            The index of the chunk whose transformers are applied to X.
        """
        d = self.rows.n_features
        triangle: np.ndarray = np.zeros((0, self.n_columns))  # at most as many rows as columns
        for segment in segments:
            for rows in blocks(segment):
                X, y, weights = self.copy(rows, chunk)
                block = np.hstack([(X - origin[:d]) / scale, y - origin[d:]])
                block *= np.sqrt(weights)[:, None]
                triangle = np.asarray(np.linalg.qr(np.vstack([triangle, block]), mode="r"))
        return triangle

    def solve(
        self,
        penalties: Penalties,
        alphas: np.ndarray,
        chunks: Chunks,
        chunk: int,
        origin: np.ndarray,
        scale: np.ndarray,
    ) -> np.ndarray:
        """Return the coefficients of the scaled columns for each alpha.

        If rounding errors make the factorised equations singular for an alpha, its coefficients
        are computed from the singular value decomposition of the centred and scaled rows.

        Parameters
        ----------
        penalties : Penalties
            The factorised equations of one chunk.
        alphas : ndarray of shape (n_alphas,)
        chunks : Chunks
        chunk : int
            The index of the chunk.
        origin, scale : ndarray
            As in ``Equations``.

        Returns
        -------
        ndarray of shape (n_alphas, n_features, n_targets)

        Raises
        ------
        ValueError
            If an alpha is 0 and columns are linearly dependent.
        """
        solved = penalties.solve(alphas)
        if not np.isnan(solved.sum()) or not np.all(np.isfinite(penalties.gram)):
            return solved
        failed = np.isnan(solved).any(axis=(1, 2))
        if self.n_groups > 1:
            raise ValueError(
                "method='exact' with class_weight='balanced' needs linearly independent columns "
                "of X, but they are dependent up to rounding errors; use method='fit' instead."
            )
        if np.any(alphas[failed] == 0):
            raise singular_error("a training set")
        d = self.rows.n_features
        triangle = self.triangle(chunks.train_parts(chunk), origin, scale, chunk)
        left, values, right = np.linalg.svd(triangle[:d, :d])
        projected = left.T @ triangle[:d, d:]
        shrinks = values / (np.square(values) + alphas[failed, None])
        solved[failed] = right.T @ (shrinks[:, :, None] * projected)
        return solved


def no_weight_error() -> ValueError:
    """Return the error for a training set whose rows all have a weight of 0."""
    return ValueError(
        "sample_weight must be above 0 for at least one row of each training set, got a training "
        "set with a weight of 0 for all rows."
    )


def nearly_dependent_error() -> ValueError:
    """Return the error for coefficients that are not determined in float64."""
    return ValueError(
        "X must have columns that are linearly independent in floating point in each training set "
        "for method='exact'; use method='fit' instead."
    )


def singular_error(row_set: str) -> ValueError:
    """Return the error for an alpha of 0 with columns that are linearly dependent."""
    return ValueError(
        f"alpha must be above 0 if columns of X are linearly dependent within {row_set}, got "
        "alpha=0; use a small alpha such as 1e-6 instead."
    )
