"""The equations of ridge regression, which follow from moments or rows, for many penalties.

(G + alpha I) z = b takes one factorisation of G: in G = Q T Q' with a tridiagonal T it takes
O(d^3) once. Each alpha then takes O(d) for T + alpha I and O(d^2) for the product with Q.
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

# Orthogonal transformations mix columns, so that rounding errors are those of the largest one.
# If the diagonal varies more than this, each alpha has a separate Cholesky factorisation, whose
# precision does not depend on the scales of the columns.
_MOST_RATIO = 1e3

#: A pivot is the part of a column's squares that the columns before it do not explain. With a
#: smaller share than this it consists of rounding errors.
LEAST_PIVOT = 1e-13

# The greatest condition number of an equation relative to its reference alpha.
_MOST_CONDITION = 1e4

# Without a penalty, rounding errors are divided by the least eigenvalue of columns of one scale.
_LEAST_EIGENVALUE = 1e-6

# Up to this number of columns, one call of NumPy for all alphas takes less time than one for each.
_FEW_COLUMNS = 48


class Penalties:
    """The factorised equations, as views of one flat array that can be cached.

    Parameters
    ----------
    memory : ndarray of shape (size(n, n_targets),), float64
    n, n_targets : int
        The size of G, and the number of columns of b.

    Attributes
    ----------
    gram : ndarray of shape (n, n)
        G.
    """

    def __init__(self, memory: np.ndarray, n: int, n_targets: int) -> None:
        self.gram, reflectors, *others = views(memory, self._shapes(n, n_targets))
        self._reflectors = reflectors.T  # in Fortran's order
        self._diagonal, self._beside, self._tau, self._b, self._rotated = others

    @staticmethod
    def _shapes(n: int, n_targets: int) -> list[tuple[int, ...]]:
        of_rotations = [(n - 1, n - 1), (n,), (n - 1,), (n - 1,)]
        return [(n, n), *of_rotations, (n, n_targets), (n, n_targets)]

    @classmethod
    def size(cls, n: int, n_targets: int) -> int:
        """Return the size of the flat array of the factorised equations."""
        return sum(map(prod, cls._shapes(n, n_targets)))

    def factor(self, gram: np.ndarray, b: np.ndarray, alphas: np.ndarray) -> None:
        """Factorise a symmetric matrix, for these alphas and later ones."""
        self.gram[:] = gram
        self._b[:] = b
        self._diagonal[0] = np.nan  # not factorised
        if len(gram) == 1 or not np.any(_are_even(gram, alphas)):
            return
        reduced, self._diagonal[:], self._beside[:], self._tau[:] = lapack.tridiagonal(gram)
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
            NaN for an alpha with which the matrix is singular, at least in floating point.
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
        are_even = _are_even(self.gram, alphas) & np.isfinite(self._diagonal[0])
        for i, alpha in enumerate(alphas):
            if are_even[i]:
                solved[i], pivots = lapack.solve_tridiagonal(
                    self._diagonal + alpha, self._beside, self._rotated
                )
                are_even[i] = pivots.min() > LEAST_PIVOT * high
        if not are_even.all():
            solved[~are_even] = self._by_cholesky(alphas[~are_even])
        if np.any(are_even):
            z = solved[are_even].transpose(1, 0, 2).reshape(n, -1)
            back = lapack.rotate(self._reflectors, self._tau, z, False).reshape(n, -1, n_targets)
            solved[are_even] = back.transpose(1, 0, 2)
        if not squares.all():  # rotations spread rounding errors to constant columns
            solved[np.ix_(alphas > 0, squares == 0)] = 0
        return solved

    def _by_cholesky(self, alphas: np.ndarray) -> np.ndarray:
        """Return (G + alpha I)^-1 b for each alpha, NaN where a pivot is lost."""
        n = len(self.gram)
        solved = np.full((len(alphas), *self._b.shape), np.nan)
        squares = self.gram.diagonal()
        if n <= _FEW_COLUMNS:
            whole = self.gram + alphas[:, None, None] * np.identity(n)
            pivots = np.diagonal(_cholesky_factors(whole), axis1=1, axis2=2)
            good = np.all(np.square(pivots) >= LEAST_PIVOT * (squares + alphas[:, None]), axis=1)
            b = np.broadcast_to(self._b, (int(np.count_nonzero(good)), *self._b.shape))
            solved[good] = np.linalg.solve(whole[good], b)
        else:
            for i, alpha in enumerate(alphas):
                solution, pivots = lapack.solve_positive(self.gram, alpha, self._b)
                if np.all(np.square(pivots) >= LEAST_PIVOT * (squares + alpha)):
                    solved[i] = solution
        if not alphas.all() and is_singular(self.gram):
            solved[alphas == 0] = np.nan
        return solved


def _are_even(gram: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return a mask of the alphas for which the columns have similar scales."""
    squares = gram.diagonal()
    return np.asarray(squares.max() + alphas <= _MOST_RATIO * (squares.min() + alphas))


def _cholesky_factors(matrices: np.ndarray) -> np.ndarray:
    """Return L of each LL', (n_matrices, n, n); zeros where one is not positive definite."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # of an unknown matrix
        if len(matrices) == 1:
            return np.zeros_like(matrices)
        return np.concatenate([_cholesky_factors(matrix[None]) for matrix in matrices])


def is_singular(gram: np.ndarray, least: float = 0.0) -> bool:
    """Return whether columns are linearly dependent, whatever their scales are.

    ``least`` is the least eigenvalue of independent columns; by default that of rounding errors.
    """
    squares = gram.diagonal()
    if squares.min() <= 0:
        return True
    scale = np.sqrt(squares)
    values = np.linalg.eigvalsh(gram / scale / scale[:, None])
    return not bool(values[0] >= (least or 10 * len(squares) * np.finfo(np.float64).eps))


class Basis(NamedTuple):
    """(G + alpha I)^-1 = vectors diag(shrinks) vectors' for some of the alphas.

    Attributes
    ----------
    points : ndarray of shape (n_candidates,), int
        The numbers of the alphas.
    vectors : ndarray of shape (n, n)
    shrinks : ndarray of shape (n_candidates, n)
    projected : ndarray of shape (n, n_targets)
        vectors' b.
    is_orthonormal : bool
        Whether the vectors are.
    """

    points: np.ndarray
    vectors: np.ndarray
    shrinks: np.ndarray
    projected: np.ndarray
    is_orthonormal: bool


def bases(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, triangle: Callable[[], np.ndarray]
) -> list[Basis]:
    """Return bases that together serve all alphas, usually a single one.

    If the columns have very different scales, G + alpha I = L L' is factorised for a reference
    alpha r, because the scales do not affect a Cholesky factorisation. With the eigenvalues m and
    eigenvectors W of (L'L)^-1, the vectors L^-T W are a basis in which G + alpha I is
    1 + (alpha - r) m. Alphas that are near each other share their reference.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
        G.
    b : ndarray of shape (n, n_targets)
    alphas : ndarray of shape (n_alphas,)
        An alpha of 0 requires that G is not singular.
    triangle : callable
        Returns R of [X, y] = QR with X'X = G and X'y = b. It is called if rounding errors hide
        small eigenvalues of G.
    """
    are_even = _are_even(gram, alphas)
    parts, lost_points = [], []
    points = np.flatnonzero(are_even)
    if len(points):
        values, vectors = np.linalg.eigh(gram)
        if values[0] + alphas[points].min() < LEAST_PIVOT * values[-1]:
            lost_points.append(points)
        else:
            shrinks = 1 / (np.maximum(values, 0) + alphas[points, None])
            parts.append(Basis(points, vectors, shrinks, vectors.T @ b, True))
    uneven = np.flatnonzero(~are_even)
    for points, basis in _by_references(gram, b, alphas, uneven[np.argsort(alphas[uneven])]):
        if basis is None:
            lost_points.append(points)
        else:
            parts.append(basis)
    if lost_points:  # R has the singular values of X, of which G has the squares
        points, R, n = np.concatenate(lost_points), triangle(), len(gram)
        left, values, right = np.linalg.svd(R[:n, :n])
        shrinks = 1 / (np.square(values) + alphas[points, None])
        parts.append(Basis(points, right.T, shrinks, values[:, None] * (left.T @ R[:n, n:]), True))
    return parts


def _by_references(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, points: np.ndarray
) -> Iterator[tuple[np.ndarray, Basis | None]]:
    """Yield numbers of alphas and their basis; None if rounding errors hide eigenvalues."""
    if not len(points):
        return
    served = alphas[points]
    positive = served[served > 0]
    reference = float(np.sqrt(positive[0] * positive[-1])) if len(positive) else 0.0
    if len(points) == 1:
        reference = float(served[0])
    whole = gram + reference * np.identity(len(gram))
    factor = lapack.cholesky(whole)
    if factor is None or np.any(np.square(factor.diagonal()) < LEAST_PIVOT * whole.diagonal()):
        yield points, None
        return
    inverse = lapack.inverse_of_triangle(factor)
    values, vectors = np.linalg.eigh(inverse @ inverse.T)
    shrinks = 1 + np.multiply.outer(served - reference, values)
    # No eigenvalue of G is below 0.
    least = np.minimum(1, served / reference) if reference else np.ones_like(served)
    np.maximum(shrinks, least[:, None], out=shrinks)
    if len(points) == 1 or np.all(shrinks.max(axis=1) <= _MOST_CONDITION * shrinks.min(axis=1)):
        vectors = inverse.T @ vectors
        yield points, Basis(points, vectors, 1 / shrinks, vectors.T @ b, False)
        return
    n_low = min(max(1, int(np.searchsorted(served, reference))), len(served) - 1)
    yield from _by_references(gram, b, alphas, points[:n_low])
    yield from _by_references(gram, b, alphas, points[n_low:])


class Equations(NamedTuple):
    """(gram + alpha I) coef = b of centred and scaled rows.

    Attributes
    ----------
    gram : ndarray of shape (n_features, n_features)
    b : ndarray of shape (n_features, n_targets)
    origin : ndarray of shape (n_features + n_targets,)
        The means that are subtracted from shifted X and targets.
    scale : ndarray of shape (n_features,)
        The divisors of X.
    is_constant : ndarray of shape (n_features,), bool
        The columns that a scaler does not scale.
    """

    gram: np.ndarray
    b: np.ndarray
    origin: np.ndarray
    scale: np.ndarray
    is_constant: np.ndarray


class RidgeRows(Source):
    """Rows of X, followed by their targets.

    Parameters
    ----------
    rows : PreparedRows
        With class codes as targets, ridge regression is on labels of -1 and 1: those of the second
        of two classes, or of each class against the rest.
    fit_intercept : bool
    scaler : StandardScaler or None
        Fitted on the training rows of each model, without weights.
    n_groups : int
        The number of classes if their weights depend on the training rows, otherwise 1.

    Attributes
    ----------
    n_targets : int
    has_centre : bool
        Whether a mean is subtracted from X.
    shift : ndarray of shape (n_features + n_targets,)
        The numbers that are first subtracted from X and the targets; 0 unless they are
        ``shifted``. A mean that is large relative to the differences of rows has more digits as a
        small difference from the shift.
    cutoff : float
        The relative singular value of X below which least squares drop directions; 0 for others.
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
        """Return these rows with a shift, so that large offsets cost no digits.

        If a mean is subtracted, the shift is the median of a few rows, which may be test rows.
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
        self, part: RowIndices, out: np.ndarray, chunk: int | None = None
    ) -> np.ndarray | None:
        """Copy shifted rows and their targets into an array, and return their weights."""
        weights = super().fill(part, out, chunk)
        assert self.rows.targets is not None
        targets, y = self.rows.targets[part], out[:, -self.n_targets :]
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
        self, part: RowIndices, chunk: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return shifted X and targets, and the weights, of some rows as float64.

        ``chunk`` is the number of the chunk whose transformers are applied.
        """
        d, n_rows = self.rows.n_features, count_rows(part)
        both = np.empty((n_rows, self.n_columns))
        weights = self.fill(part, both, chunk)
        return both[:, :d], both[:, d:], np.ones(n_rows) if weights is None else weights

    def equations(self, moments: Moments) -> Equations:
        """Return the equations of models from the moments of their training rows."""
        d = self.rows.n_features
        mean = moments.means[0]
        origin = mean if self.fit_intercept else np.zeros_like(mean)
        scale, are_constant = np.ones(d), np.zeros(d, dtype=bool)
        if self.scaler is not None:
            assert moments.spread is not None
            spread = moments.spread
            whole = spread._replace(mean=spread.mean + self.shift[:d])
            scale = scale_of(self.scaler, whole)
            are_constant = is_constant(whole)
            if self.has_centre and not self.fit_intercept:
                origin[:d] = spread.mean
        second = moments.scatters[0] if self.fit_intercept else about(moments, origin)
        gram = second[:d, :d] / scale / scale[:, None]
        if self.cutoff:  # with a margin for leave-one-out
            values = np.linalg.eigvalsh(gram)
            is_cut = not values[0] > 400 * self.cutoff**2 * values[-1]
            if is_cut or is_singular(gram, _LEAST_EIGENVALUE):
                raise nearly_dependent_error()
        return Equations(gram, second[:d, d:] / scale[:, None], origin, scale, are_constant)

    def triangle(
        self,
        parts: Sequence[RowIndices],
        origin: np.ndarray,
        scale: np.ndarray,
        chunk: int | None = None,
    ) -> np.ndarray:
        """Return R of [X, y] = QR, of centred and scaled rows, with the columns of both.

        X'X has the squares of X's singular values. If the largest is 1e8 times the smallest,
        rounding errors hide the latter. R has the singular values themselves.
        """
        d = self.rows.n_features
        triangle: np.ndarray = np.zeros((0, self.n_columns))  # at most as many rows as columns
        for part in parts:
            for rows in blocks(part):
                X, y, weights = self.copy(rows, chunk)
                both = np.hstack([(X - origin[:d]) / scale, y - origin[d:]])
                both *= np.sqrt(weights)[:, None]
                triangle = np.asarray(np.linalg.qr(np.vstack([triangle, both]), mode="r"))
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
        """Return the coefficients of scaled columns, (n_alphas, n_features, n_targets).

        If rounding errors make the factorised equations singular, they are
        (X'X + alpha I)^-1 X'y from centred and scaled rows.

        Raises
        ------
        ValueError
            For an alpha of 0 if columns are linearly dependent.
        """
        solved = penalties.solve(alphas)
        if not np.isnan(solved.sum()) or not np.all(np.isfinite(penalties.gram)):
            return solved
        failed = np.isnan(solved).any(axis=(1, 2))
        if self.n_groups > 1:
            raise ValueError(
                "X must have columns that are linearly independent in floating point for "
                "class_weight='balanced' with method='exact'; use method='fit' instead."
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
    """Return the error for training rows that all have a weight of 0."""
    return ValueError(
        "sample_weight must be above 0 in some row of each training set, got one with 0 in all "
        "rows."
    )


def nearly_dependent_error() -> ValueError:
    """Return the error for models that are not determined in float64."""
    return ValueError(
        "X must have columns that are linearly independent in floating point in each training set "
        "for method='exact'; use method='fit' instead."
    )


def singular_error(whose: str) -> ValueError:
    """Return the error for an alpha of 0 if columns are linearly dependent."""
    return ValueError(
        f"alpha must be above 0 if columns of X are linearly dependent within {whose}, got "
        "alpha=0; use a small alpha such as 1e-6 instead."
    )
