"""Newton's method for logistic models of sparse rows with too many columns for a Hessian.

Each model belongs to one training set and one penalty a/2 |w|^2. It is a combination of its
training rows, w = X'v, with the dual coefficients v. So vectors have one entry per row and not one
per column. The intercept is a further column. An extra row, which is 1 in this column and 0
elsewhere, represents it, and the last entry of each vector belongs to this row. With the kernel
matrix K = XX', the inner product of X'u and X'v is u'Kv, and the predictors of X'v are Kv.

1. Newton steps are computed by conjugate gradients (Nocedal & Wright 2006, algorithm 5.2). Each
   iteration needs one product with K, in float32. The models do not wait for each other: one
   product X(X'V) serves all models that currently need one.
2. Dual coefficients and gradients are float64, and so are the predictors close to the minimum. The
   dual coefficient of a row that does not train the model is 0.

**Stopping criterion.** Because of the penalty, F grows at least as a/2 |w - w*|^2 around its
minimum w* if the intercept is penalised. Therefore, no Hessian is needed to bound the error. With
the gradient g of F, and the gradient t of the mean test loss,

    |change of the mean test loss| <= |t| |w - w*| <= |t| |g| / a.

For an intercept without a penalty, 1/a is replaced by a bound of the inverse Hessian at the
current model.
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
from optuna_treecv.engines.newton.solver import MAX_ERROR
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.rows.data import PreparedRows

# Conjugate gradients end if the residual is at most this fraction of the gradient.
_MAX_RESIDUAL = 0.2

# If the last Newton step has reduced the gradient to a fraction r, conjugate gradients end only
# when the residual is at most r times this value.
_RESIDUAL_PER_REDUCTION = 0.5

# A residual is always small enough if it is at most this fraction of the gradient norm at
# convergence.
_RESIDUAL_AT_END = 0.3

# Predictors are computed in float64 if the mean loss may change by at most this, or if rounding
# keeps the gradient from decreasing.
_MAX_ERROR_OF_FLOAT32 = 1e-2

# A step is halved if F rises more steeply at its end than this fraction of its fall at the start.
_MAX_RISE = 0.9

# The fraction of a step that is not shortened further.
_MIN_STEP_FRACTION = 1e-6

# The maximum number of Newton steps of a model.
_MAX_STEPS = 40

# The maximum number of iterations of conjugate gradients in one Newton step.
_MAX_ITERATIONS = 1500

# The largest squared norm of a row relative to the penalty a. Beyond this limit or the next two,
# steps are lost in rounding, or take more time than refits, which stop before convergence.
_MAX_SQUARE = 2000

# The largest squared norm of a row times the total weight of the training rows, relative to a.
_MAX_TOTAL = 1.6e7

# The same for more than two classes.
_MAX_TOTAL_OF_CLASSES = 3e6

# How many vectors are multiplied by K together, and the smallest number that is padded to this.
_WIDTHS = (40, 33), (16, 9), (8, 3), (2, 1)

# The maximum size in bytes of the models that are solved together.
_MAX_BYTES = 2**29

# The number of models of two classes that are solved at the same time. They fill 16 lanes of the
# kernel, one of which is for a model that multiplies two vectors. With more models, the last ones
# would leave lanes empty for longer.
_MAX_ACTIVE = 15

# The number of float64 vectors in memory for each model.
_N_VECTORS = 10

# With fewer rows, products in float32 save no time.
_MIN_ROWS_FOR_FLOAT32 = 4096

# A generator that yields vectors (n_rows + 1, n) for any n, and receives K times them.
Search = Generator[np.ndarray, np.ndarray, np.ndarray]

# A function that multiplies each array of vectors by K.
MultiplyByK = Callable[[list[np.ndarray]], list[np.ndarray]]


def make_multiply(rows: sparse.csr_array) -> MultiplyByK:
    """Return a function that multiplies arrays of vectors, all of one dtype, by K = XX'."""
    counts = np.bincount(rows.indices, minlength=rows.shape[1])
    # A column with a single nonzero row, like the one of the intercept, contributes only to the
    # diagonal of K. The other columns are sorted by their counts, so that the columns that are
    # read most often stay in the CPU cache.
    diagonal = np.append(rows.power(2, np.float64)[:, counts == 1].sum(axis=1), 1)[:, None]
    order = np.argsort(-counts, kind="stable")
    csr = rows[:, order[counts[order] > 1]]
    columns, starts = csr.indices.astype(np.int32), csr.indptr.astype(np.int64)
    values = {np.dtype(dtype): csr.data.astype(dtype) for dtype in (np.float32, np.float64)}
    # Memory that is allocated in each call would take as long as the products.
    memory = np.empty(csr.shape[1] * _WIDTHS[0][0])

    def multiply(arrays: list[np.ndarray]) -> list[np.ndarray]:
        vectors, start = np.hstack(arrays), 0
        while left := vectors.shape[1] - start:
            # The kernel is fastest for these numbers of vectors.
            width = next(n for n, smallest in _WIDTHS if left >= smallest)
            batch = vectors[:, start : start + width]
            start += batch.shape[1]
            padded = np.pad(batch[:-1], ((0, 0), (0, width - batch.shape[1])))
            shape = csr.shape[1], width
            W = memory.view(vectors.dtype)[: prod(shape)].reshape(shape)
            W[:] = 0
            for transpose in (True, False):  # W = X'V, then V = X W
                multiply_sparse(values[vectors.dtype], columns, starts, W, padded, transpose)
            batch *= diagonal.astype(vectors.dtype)
            batch[:-1] += padded[:, : batch.shape[1]]
        stops = np.cumsum([array.shape[1] for array in arrays])
        return [np.ascontiguousarray(x) for x in np.split(vectors, stops[:-1], axis=1)]

    return multiply


def _find_model(
    loss: PredictorLoss,
    y: np.ndarray,
    train_weights: np.ndarray,
    test_weights: np.ndarray,
    a: float,
    constant: float,
    precision: type,
) -> Search:
    """Return the predictors of a model for all rows, NaN if it does not converge.

    Their shape is (n_rows, n_outputs).

    Parameters
    ----------
    loss : PredictorLoss
        The loss of two classes or of several.
    y : ndarray of shape (n_rows,)
    train_weights, test_weights : ndarray of shape (n_rows, 1)
        The weights of training rows, and of test rows with the sum 1; 0 for all other rows.
    a : float
        The penalty.
    constant : float
        The value of each row in the column of the intercept; 0 if there is none.
    precision : type
        The dtype of conjugate gradients.
    """
    n = loss.n_outputs
    v, z = np.zeros((len(y) + 1, n)), np.zeros((len(y), n))
    weights: np.ndarray = train_weights.astype(precision)
    last_norm, is_exact = 0.0, precision == np.float64

    def add_intercept(coefficients: np.ndarray) -> np.ndarray:
        """Append the entry of the intercept to the dual coefficients of rows."""
        intercept = coefficients.dtype.type(constant) * coefficients.sum(axis=0, keepdims=True)
        return np.concatenate([coefficients, intercept])

    def predictors(products: np.ndarray) -> np.ndarray:
        """Return the predictors from the products with K."""
        return products[:-1] + products.dtype.type(constant) * products[-1]

    def gradients(v: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives of each row's loss, and the dual coefficients of F's gradient."""
        derivatives = z.copy()
        loss.differentiate(derivatives[:, None], y)
        gradient = add_intercept(derivatives * train_weights)
        gradient[:-1] += a * v[:-1]
        return derivatives, gradient

    def multiply_hessian(
        direction: np.ndarray, product: np.ndarray, curvatures: np.ndarray
    ) -> np.ndarray:
        """Return the Hessian times a direction, given K times the direction.

        The curvatures are weighted second derivatives, or the probabilities of several classes.
        """
        changes = predictors(product)
        if n > 1:
            # The change of the row's own class is subtracted, which keeps all digits if the
            # probability of this class is close to 1.
            changes -= np.take_along_axis(changes, y[:, None], axis=1)
            changes -= np.sum(curvatures * changes, axis=1, keepdims=True)
            changes *= weights
        changes *= curvatures
        result = add_intercept(changes)
        result[:-1] += direction.dtype.type(a) * direction[:-1]
        return result

    for _ in range(_MAX_STEPS):
        derivatives, gradient = gradients(v, z)
        both = np.hstack([gradient, add_intercept(derivatives * test_weights)])
        products = yield both.astype(precision)
        norm, test_norm = np.sqrt(np.sum((both * products).reshape(-1, 2, n), axis=(0, 2)))
        curvatures = loss.second_derivatives(z[:, None], y)[:, 0] * train_weights
        inverse = 1 / a
        if constant:
            # With the intercept b, the column's constant c, and the smallest sum s of curvatures,
            # the inverse Hessian of a |w|^2 / 2 + s (x.w + c b)^2 / 2 is at most this.
            smallest = np.min(np.sum(curvatures, axis=0)) * constant**2
            inverse += 1 / a + 1 / max(smallest, 1e-300)
        error_bound = norm * test_norm * inverse
        if not is_exact and (error_bound <= _MAX_ERROR_OF_FLOAT32 or norm >= last_norm > 0):
            z, is_exact = predictors((yield v)), True
            continue
        if error_bound <= MAX_ERROR:
            return z
        max_residual = max(
            min(_MAX_RESIDUAL, _RESIDUAL_PER_REDUCTION * norm / last_norm)
            if last_norm
            else _MAX_RESIDUAL,
            _RESIDUAL_AT_END * MAX_ERROR / error_bound,
        )
        last_norm = norm
        curvatures = (curvatures if n == 1 else softmax(z, axis=1)).astype(precision)
        right, product = (-(x / norm).astype(precision) for x in (gradient, products[:, :n]))
        multiply = partial(multiply_hessian, curvatures=curvatures)
        step = yield from _conjugate_gradients(multiply, right, product, max_residual)
        if step is None:
            break
        step *= norm
        product = yield step if is_exact else step.astype(np.float32)
        fall, z_step, fraction = -np.vdot(gradient, product), predictors(product), 1.0
        while fraction > _MIN_STEP_FRACTION:
            new_v, new_z = v + fraction * step, z + fraction * z_step
            if np.vdot(gradients(new_v, new_z)[1], product) <= _MAX_RISE * fall:
                break
            fraction /= 2
        v, z = new_v, new_z
    return np.full_like(z, np.nan)


def _conjugate_gradients(
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray],
    residual: np.ndarray,
    K_residual: np.ndarray,
    max_residual: float,
) -> Generator[np.ndarray, np.ndarray, np.ndarray | None]:
    """Solve a linear system approximately; return the solution, or None if it is not found.

    The generator yields vectors, and receives K times them.

    Parameters
    ----------
    multiply : callable
        (vector, K times the vector) -> the matrix times the vector.
    residual, K_residual : ndarray of shape (n_rows + 1, n_outputs)
        The right-hand side, whose norm is 1, and K times it. Both are overwritten.
    max_residual : float
        The largest norm of the residual.
    """
    as_scalar = residual.dtype.type
    solution, direction = np.zeros_like(residual), np.zeros_like(residual)
    K_direction = np.zeros_like(residual)
    square, last_square = 1.0, np.inf
    for _ in range(_MAX_ITERATIONS):
        beta, last_square = as_scalar(square / last_square), square
        direction *= beta
        direction += residual
        K_direction *= beta
        K_direction += K_residual
        change = multiply(direction, K_direction)
        alpha = as_scalar(square / np.vdot(K_direction, change))
        solution += alpha * direction
        change *= alpha
        residual -= change
        K_residual = yield residual
        square = float(np.vdot(residual, K_residual))
        if square <= max_residual**2:
            return solution.astype(np.float64)
    return None


def _run_searches(searches: list[Search], multiply: MultiplyByK, max_active: int) -> None:
    """Run searches, from the last to the first, at most ``max_active`` at a time."""
    waiting: list[tuple[Search, np.ndarray]] = []
    while searches or waiting:
        while searches and len(waiting) < max_active:
            started = searches.pop()
            waiting.append((started, next(started)))
        active, waiting = waiting, []
        for dtype in {vectors.dtype for _, vectors in active}:
            batch = [(search, vectors) for search, vectors in active if vectors.dtype == dtype]
            products = multiply([vectors for _, vectors in batch])
            for (search, _), product in zip(batch, products, strict=True):
                with suppress(StopIteration):
                    waiting.append((search, search.send(product)))


def predict_wide_models(
    rows: PreparedRows,
    chunks: Chunks,
    loss: PredictorLoss,
    strengths: np.ndarray,
    has_intercept: bool,
    class_weights: np.ndarray | None,
    precision: type,
) -> Iterator[TestedChunks]:
    """Solve for the models of all folds, and yield the predictors of each fold's test rows.

    Parameters
    ----------
    rows : PreparedRows
        Sparse rows.
    chunks : Chunks
        The folds.
    loss : PredictorLoss
    strengths : ndarray of shape (n_candidates, n_chunks)
        The penalties a.
    has_intercept : bool
    class_weights : ndarray of shape (n_chunks + 1, n_classes) or None
        The weight of each class in each training set.
    precision : type
        The dtype of conjugate gradients.
    """
    X, y, n_rows = rows.X, rows.targets, len(rows.X)
    assert y is not None
    csr = sparse.csr_array((X.values, X.columns, X.begins), shape=X.shape)
    square = float(csr.power(2, np.float64).sum(axis=1).max()) or 1.0
    constant = np.sqrt(square) if has_intercept else 0.0
    if n_rows < _MIN_ROWS_FOR_FLOAT32:
        precision = np.float64

    def compute_train_weights(chunk: int) -> np.ndarray:
        weights = np.zeros((n_rows, 1))
        for part in chunks.train_parts(chunk):
            weights[part, 0] = 1 if rows.weights is None else rows.weights[part]
        if class_weights is not None:
            weights[:, 0] *= class_weights[chunk, y]
        return weights

    def search(index: int) -> Search:
        candidate, chunk = divmod(index, chunks.n_chunks)
        test_rows = chunks.test_rows(chunk, chunk + 1)
        test_weights = np.zeros((n_rows, 1))
        test_weights[test_rows, 0] = (
            1 if rows.score_weights is None else rows.score_weights[test_rows]
        )
        test_weights /= test_weights.sum() or 1
        a, train_weights = strengths[candidate, chunk], compute_train_weights(chunk)
        z = yield from _find_model(loss, y, train_weights, test_weights, a, constant, precision)
        outputs[chunk][candidate] = z[test_rows]
        return z

    max_total = _MAX_TOTAL if loss.n_outputs == 1 else _MAX_TOTAL_OF_CLASSES
    total = max(float(compute_train_weights(chunk).sum()) for chunk in range(chunks.n_chunks))
    min_strength = square * max(1 / _MAX_SQUARE, total / max_total)
    is_strong = strengths >= min_strength
    if not is_strong.any():
        smallest_C = 1 / strengths.max() if strengths.any() else np.inf
        raise ValueError(
            f"C must be at most {1 / min_strength:.3g} for these rows, got {smallest_C:.6g}; the "
            f"limit depends on the largest total weight of a training set ({total:.6g}) and on "
            f"the largest squared norm of a row ({square:.3g})."
        )
    outputs = [np.full((len(strengths), n, loss.n_outputs), np.nan) for n in chunks.sizes]
    order = np.argsort(-strengths, axis=None, kind="stable")
    order = order[is_strong.ravel()[order]]
    max_active = max(1, _MAX_BYTES // (8 * n_rows * loss.n_outputs * _N_VECTORS))
    if loss.n_outputs == 1:
        max_active = min(max_active, _MAX_ACTIVE)
    _run_searches([search(i) for i in order.tolist()], make_multiply(csr), max_active)
    for chunk, predicted in enumerate(outputs):
        yield slice(chunk, chunk + 1), predicted
