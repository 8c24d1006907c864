"""Newton's method for logistic models of more columns than a Hessian can have, on sparse rows.

The model of a *lane*, one set of training rows at one penalty a/2 |w|^2, is a sum of its training
rows, w = X'v. So a vector has a number per row, its *share*, and not one per column. The last
share is that of the intercept, as of a further row with a separate column. With K = XX' of
these rows, the inner product of X'u and X'v is u'Kv, and the predictors of X'v are Kv.

1. Conjugate gradients (Nocedal & Wright 2006, algorithm 5.2) find the steps of Newton's method.
   Each of theirs needs one product with K, in float32. Lanes do not wait for each other: one
   X(X'r) computes the products of all lanes that need one.
2. The shares and gradients of models are float64, and so are their predictors near the minimum.
   Rows that do not train a model have no share in it.

**When a model is near enough.** The penalty makes F grow by a/2 |w - w*|^2, so that no Hessian is
needed. With the gradient g of F, and the gradient t of the mean loss of test rows,

    |change of the mean loss| <= |t| |w - w*| <= |t| |g| / a.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from math import prod

import numpy as np
from scipy import sparse
from scipy.special import softmax

from optuna_treecv.engines.newton.kernels.glm import multiply_sparse
from optuna_treecv.engines.newton.solver import MOST_GAP
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.rows.data import PreparedRows

# The most of the gradient that may remain after a step, also as a share of what remained after the
# previous step, and as a share of the gradient of a model that is near enough.
_MOST_LEFT, _PART_LEFT, _PART_AT_END = 0.2, 0.5, 0.3

# Predictors are computed in float64 if the mean loss may change by at most this, or if rounding
# keeps the gradient from falling.
_NEAR = 1e-2

# The steepest rise of F at the end of a step, as a share of its fall at the start.
_MOST_RISE, _LEAST_PART = 0.9, 1e-6

# The most steps of a model, and the most steps of conjugate gradients in one of them.
_MOST_STEPS, _MOST_PRODUCTS = 40, 1500

# The most that the training rows may add to the curvature of the penalty, as a multiple of it: the
# largest square of a row, and this times the weight of all rows, for two classes and for several.
# Beyond that, steps are lost in rounding, or take more time than refits per fold, which end before
# they have converged.
_MOST_OF_ROW, _MOST_OF_ROWS, _MOST_OF_CLASSES = 2000, 1.6e7, 3e6

# The shares that are multiplied at once.
_MOST_LANES = 40

# The bytes of the lanes that are solved at once, and the vectors of float64 that each has.
_MOST_BYTES, _N_VECTORS = 2**29, 10

# With fewer rows, products of float32 save no time.
_FEW_ROWS = 4096

# Yields shares (n_rows + 1, n) of any n, and receives K times them.
Search = Generator[np.ndarray, np.ndarray, np.ndarray]

# K times each of several shares.
Products = Callable[[list[np.ndarray]], list[np.ndarray]]


def products_of(rows: sparse.csr_array) -> Products:
    """Return a function that multiplies arrays of shares, all of one dtype, by K."""
    counts = np.bincount(rows.indices, minlength=rows.shape[1])
    # A column of one row adds to the product of the row with itself alone, and so does the
    # intercept's row. The others are in the order of their counts, so that the columns that are
    # read most often are in a cache.
    squares = np.append(rows.power(2, np.float64)[:, counts == 1].sum(axis=1), 1)[:, None]
    order = np.argsort(-counts, kind="stable")
    by_row = rows[:, order[counts[order] > 1]]
    columns, begins = by_row.indices.astype(np.int32), by_row.indptr.astype(np.int64)
    values = {np.dtype(number): by_row.data.astype(number) for number in (np.float32, np.float64)}
    # Memory that is new in each call would take as long as the products.
    room = np.empty(by_row.shape[1] * _MOST_LANES)

    def products(shares: list[np.ndarray]) -> list[np.ndarray]:
        flat = np.hstack(shares)
        for begin in range(0, flat.shape[1], _MOST_LANES):
            part = flat[:, begin : begin + _MOST_LANES]
            of_rows = np.pad(part[:-1], ((0, 0), (0, -part.shape[1] % 8)))  # strips of 8 are fast
            shape = by_row.shape[1], of_rows.shape[1]
            sums = room.view(flat.dtype)[: prod(shape)].reshape(shape)
            sums[:] = 0
            for are_summed in (True, False):
                multiply_sparse(values[flat.dtype], columns, begins, sums, of_rows, are_summed)
            part *= squares.astype(flat.dtype)
            part[:-1] += of_rows[:, : part.shape[1]]
        ends = np.cumsum([share.shape[1] for share in shares])
        return [np.ascontiguousarray(x) for x in np.split(flat, ends[:-1], axis=1)]

    return products


def _search(
    loss: PredictorLoss,
    y: np.ndarray,
    trained: np.ndarray,
    tested: np.ndarray,
    a: float,
    constant: float,
    precision: type,
) -> Search:
    """Return the predictors of a model for all rows (n_rows, n_outputs), NaN if not found.

    Parameters
    ----------
    loss : PredictorLoss
        The loss of two classes or of several.
    y : ndarray of shape (n_rows,)
    trained, tested : ndarray of shape (n_rows, 1)
        The weights of training rows, and those of test rows, whose sum is 1.
    a : float
        The penalty.
    constant : float
        The value of each row in the column of the intercept; 0 if there is none.
    precision : type
        The type of conjugate gradients.
    """
    n = loss.n_outputs
    v, z = np.zeros((len(y) + 1, n)), np.zeros((len(y), n))
    weights: np.ndarray = trained.astype(precision)
    before, is_exact = 0.0, precision == np.float64

    def sums(numbers: np.ndarray) -> np.ndarray:
        """Return numbers of rows as shares of their sum."""
        of_intercept = numbers.dtype.type(constant) * numbers.sum(axis=0, keepdims=True)
        return np.concatenate([numbers, of_intercept])

    def predictors(products: np.ndarray) -> np.ndarray:
        return products[:-1] + products.dtype.type(constant) * products[-1]

    def gradients(v: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives of losses in predictors, and the gradient of F."""
        slopes = z.copy()
        loss.differentiate(slopes[:, None], y)
        gradient = sums(slopes * trained)
        gradient[:-1] += a * v[:-1]
        return slopes, gradient

    def curved(way: np.ndarray, of_way: np.ndarray, bends: np.ndarray) -> np.ndarray:
        """Return the Hessian times a direction; bends are weighted, or class probabilities."""
        moved = predictors(of_way)
        if n > 1:
            # Less that of the row's class, so that no digit is lost if its probability is near 1.
            moved -= np.take_along_axis(moved, y[:, None], axis=1)
            moved -= np.sum(bends * moved, axis=1, keepdims=True)
            moved *= weights
        moved *= bends
        product = sums(moved)
        product[:-1] += way.dtype.type(a) * way[:-1]
        return product

    for _ in range(_MOST_STEPS):
        slopes, gradient = gradients(v, z)
        both = np.hstack([gradient, sums(slopes * tested)])
        products = yield both.astype(precision)
        size, of_tests = np.sqrt(np.sum((both * products).reshape(-1, 2, n), axis=(0, 2)))
        bends = loss.bends(z[:, None], y)[:, 0] * trained
        inverse = 1 / a
        if constant:  # this bounds the inverse Hessian of a |w|^2 / 2 + S (x.w + cb)^2 / 2
            least = np.min(np.sum(bends, axis=0)) * constant**2
            inverse += 1 / a + 1 / max(least, 1e-300)
        gap = size * of_tests * inverse
        if not is_exact and (gap <= _NEAR or size >= before > 0):
            z, is_exact = predictors((yield v)), True
            continue
        if gap <= MOST_GAP:
            return z
        enough = max(
            min(_MOST_LEFT, _PART_LEFT * size / before) if before else _MOST_LEFT,
            _PART_AT_END * MOST_GAP / gap,
        )
        before = size
        bends = (bends if n == 1 else softmax(z, axis=1)).astype(precision)
        left, of_left = (-(x / size).astype(precision) for x in (gradient, products[:, :n]))
        step = yield from _solve(partial(curved, bends=bends), left, of_left, enough)
        if step is None:
            break
        step *= size
        moved = yield step if is_exact else step.astype(np.float32)
        fall, of_step, part = -np.vdot(gradient, moved), predictors(moved), 1.0
        while part > _LEAST_PART:
            nearer = v + part * step, z + part * of_step
            if np.vdot(gradients(*nearer)[1], moved) <= _MOST_RISE * fall:
                break
            part /= 2
        v, z = nearer
    return np.full_like(z, np.nan)


def _solve(
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    left: np.ndarray,
    of_left: np.ndarray,
    enough: float,
) -> Generator[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the shares of an approximate solution, or None if it is not found.

    Parameters
    ----------
    product : callable
        The matrix times shares, given these and K times them.
    left, of_left : ndarray of shape (n_rows + 1, n_outputs)
        The right side, whose norm is 1, and K times it.
    enough : float
        The largest norm of the residual.
    """
    number = left.dtype.type
    step, way, of_way = np.zeros_like(left), np.zeros_like(left), np.zeros_like(left)
    square, before = 1.0, np.inf
    for _ in range(_MOST_PRODUCTS):
        beta, before = number(square / before), square
        way *= beta
        way += left
        of_way *= beta
        of_way += of_left
        change = product(way, of_way)
        alpha = number(square / np.vdot(of_way, change))
        step += alpha * way
        change *= alpha
        left -= change
        of_left = yield left
        square = float(np.vdot(left, of_left))
        if square <= enough**2:
            return step.astype(np.float64)
    return None


def _run(searches: list[Search], products: Products, at_once: int) -> None:
    """Run searches, from the last to the first, at most ``at_once`` at once."""
    waiting: list[tuple[Search, np.ndarray]] = []
    while searches or waiting:
        while searches and len(waiting) < at_once:
            begun = searches.pop()
            waiting.append((begun, next(begun)))
        going, waiting = waiting, []
        for number in {shares.dtype for _, shares in going}:
            batch = [(search, shares) for search, shares in going if shares.dtype == number]
            computed = products([shares for _, shares in batch])
            for (search, _), product in zip(batch, computed, strict=True):
                with suppress(StopIteration):
                    waiting.append((search, search.send(product)))


def tested_by_wide_models(
    rows: PreparedRows,
    chunks: Chunks,
    loss: PredictorLoss,
    strengths: np.ndarray,
    has_intercept: bool,
    class_weights: np.ndarray | None,
    precision: type,
) -> Iterator[TestedChunks]:
    """Yield the predictors of the test rows of each chunk.

    Parameters
    ----------
    strengths : ndarray of shape (n_candidates, n_chunks)
        The penalties a.
    class_weights : ndarray of shape (n_chunks + 1, n_classes) or None
        The weights of rows of each class in the training sets.
    """
    X, y, n_rows = rows.X, rows.targets, len(rows.X)
    assert y is not None
    by_row = sparse.csr_array((X.values, X.columns, X.begins), shape=X.shape)
    square = float(by_row.power(2, np.float64).sum(axis=1).max()) or 1.0
    constant = np.sqrt(square) if has_intercept else 0.0
    if n_rows < _FEW_ROWS:
        precision = np.float64

    def trained_by(chunk: int) -> np.ndarray:
        trained = np.zeros((n_rows, 1))
        for part in chunks.train_parts(chunk):
            trained[part, 0] = 1 if rows.weights is None else rows.weights[part]
        if class_weights is not None:
            trained[:, 0] *= class_weights[chunk, y]
        return trained

    def search(lane: int) -> Search:
        point, chunk = divmod(lane, chunks.n_chunks)
        of_test = chunks.test_rows(chunk, chunk + 1)
        tested = np.zeros((n_rows, 1))
        tested[of_test, 0] = 1 if rows.score_weights is None else rows.score_weights[of_test]
        tested /= tested.sum() or 1
        a = strengths[point, chunk]
        z = yield from _search(loss, y, trained_by(chunk), tested, a, constant, precision)
        outputs[chunk][point] = z[of_test]
        return z

    most = _MOST_OF_ROWS if loss.n_outputs == 1 else _MOST_OF_CLASSES
    totals = [float(trained_by(chunk).sum()) for chunk in range(chunks.n_chunks)]
    least = square * max(1 / _MOST_OF_ROW, max(totals) / most)
    is_near = strengths >= least
    if not is_near.any():
        smallest = 1 / strengths.max() if strengths.any() else np.inf
        raise ValueError(
            f"C must be at most {1 / least:.3g} for {max(totals):.6g} rows with squared norms up "
            f"to {square:.3g}, got {smallest:.6g}."
        )
    outputs = [np.full((len(strengths), n, loss.n_outputs), np.nan) for n in chunks.sizes]
    lanes = np.argsort(-strengths, axis=None, kind="stable")
    lanes = lanes[is_near.ravel()[lanes]]
    at_once = max(1, _MOST_BYTES // (8 * n_rows * loss.n_outputs * _N_VECTORS))
    _run([search(lane) for lane in lanes.tolist()], products_of(by_row), at_once)
    for chunk, of_chunk in enumerate(outputs):
        yield slice(chunk, chunk + 1), of_chunk
