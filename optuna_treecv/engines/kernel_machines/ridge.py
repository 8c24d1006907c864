r"""Kernel ridge regression: predictions for all folds and alphas from one matrix of kernel values.

With training rows T and test rows S, ``KernelRidge`` predicts
:math:`\hat y_S = K_{ST} (K_{TT} + \alpha I)^{-1} y_T`. So does the mean of a
``GaussianProcessRegressor`` without an optimizer. If T contains all rows but S, the errors of
these predictions also follow from the inverse Q for all rows:

.. math:: y_S - \hat y_S = Q_{SS}^{-1} (Q y)_S, \quad Q = (K + \alpha I)^{-1} = Z^\top Z

For few alphas, Z is the inverse of the Cholesky factor of :math:`K + \alpha I`. For many alphas,
Z is L^-1 U', with a band matrix B = U'KU and the Cholesky factor L of :math:`B + \alpha I`.

If this takes less time, or if T does not contain all rows but S, each fold is fitted separately:
from a Cholesky factorisation for each alpha, or from the band matrix of its training rows.

With sample weights, ``KernelRidge`` multiplies the rows and columns of K, and y, by the square
roots of the weights. Errors that are computed from this product are divided by these square roots.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial

import numpy as np

from optuna_treecv._kernels import lapack
from optuna_treecv.engines.kernel_machines.band import BLOCK
from optuna_treecv.engines.kernel_machines.band import compute_rotation
from optuna_treecv.engines.kernel_machines.band import factor_band
from optuna_treecv.engines.kernel_machines.band import invert_factor
from optuna_treecv.engines.kernel_machines.band import least_pivot
from optuna_treecv.engines.kernel_machines.band import not_definite_error
from optuna_treecv.engines.kernel_machines.band import reduce_to_band
from optuna_treecv.engines.kernel_machines.band import rotate
from optuna_treecv.engines.kernel_machines.band import solve_backward
from optuna_treecv.engines.kernel_machines.band import solve_forward

# The number of test rows that are computed together, if folds have fewer.
_GROUP = 500

# If the weight of a test row is a smaller share of the largest weight, its fold is fitted
# separately: the division by the square root of the weight would lose digits.
_MIN_WEIGHT = 1e-6

# Measured times per multiplication, relative to a Cholesky factorisation of n rows, which takes
# n^3 / 3: of the inverse of the factor (n^3 / 3), the band matrix (n^3), U (n^3), its factor
# (n * BLOCK^2), solutions with this factor (n * BLOCK for each column), and Q_SS (n for each
# entry).
_INVERSE = 1.6
_BAND = 1.6
_ROTATION = 1.1
_BAND_FACTOR = 25.0
_SOLUTION = 5.0
_PRODUCT = 0.9

#: For one alpha: Zy, and the columns of Z for each group of test rows.
Root = tuple[np.ndarray, Iterable[np.ndarray]]

#: Yields the root for each alpha, from K, y, the alphas, and the indices of groups of test rows.
ComputeRoots = Callable[[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]], Iterator[Root]]


def predict_folds(
    gram: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray | None,
    alphas: np.ndarray,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
) -> Iterator[np.ndarray]:
    """Predict the test rows of each fold by kernel ridge regression, for all alphas.

    Parameters
    ----------
    gram : ndarray of shape (n_rows, n_rows)
        The kernel of each pair of rows.
    targets : ndarray of shape (n_rows, n_targets)
    weights : ndarray of shape (n_rows,) or None
        Sample weights of the rows in training.
    alphas : ndarray of shape (n_alphas,)
    splits : sequence of tuple
        The indices of the training rows and of the test rows of each fold.

    Yields
    ------
    ndarray of shape (n_alphas, n_test_rows, n_targets)

    Raises
    ------
    ValueError
        If the kernel matrix plus alpha on its diagonal is not positive definite.
    """
    roots = np.ones(len(gram)) if weights is None else np.sqrt(weights)
    scaled = gram if weights is None else gram * roots * roots[:, None]
    scaled_targets = targets * roots[:, None]
    are_joint = [_leaves_out(train, test, roots) for train, test in splits]
    tests = [test for (_, test), is_joint in zip(splits, are_joint, strict=True) if is_joint]
    compute_roots = _choose(len(gram), len(alphas), tests)
    errors: Iterator[np.ndarray] = iter(())
    if compute_roots is not None:
        errors = _leave_out(compute_roots, scaled, scaled_targets, alphas, tests)
    for (train, test), is_joint in zip(splits, are_joint, strict=True):
        if is_joint and compute_roots is not None:
            yield targets[test] - next(errors) / roots[test, None]
        else:
            coef = _fit(scaled[np.ix_(train, train)], scaled_targets[train], alphas)
            yield gram[np.ix_(test, train)] @ (coef * roots[train, None])


def _leaves_out(train: np.ndarray, test: np.ndarray, roots: np.ndarray) -> bool:
    """Return whether all other rows are training rows, and no test row has a tiny weight."""
    is_used = np.zeros(len(roots), dtype=bool)
    is_used[train] = is_used[test] = True
    is_partition = len(train) + len(test) == len(roots) and bool(is_used.all())
    return is_partition and bool(roots[test].min() > np.sqrt(_MIN_WEIGHT) * roots.max())


def _choose(n: int, n_alphas: int, tests: list[np.ndarray]) -> ComputeRoots | None:
    """Return the function that computes roots in the least time, or None to fit each fold."""
    sizes = np.array([len(test) for test in tests], dtype=float)
    products = _PRODUCT * n * np.square(sizes).sum() + np.power(sizes, 3).sum() / 3
    solutions = _SOLUTION * n * BLOCK * sizes.sum()
    by_cholesky, by_band = _costs_of_fit(n, n_alphas)
    by_cholesky += n_alphas * (_INVERSE * n**3 / 3 + products)
    by_band += _ROTATION * n**3 + n_alphas * (solutions + products)
    if sum(min(_costs_of_fit(n - size, n_alphas)) for size in sizes) <= min(by_cholesky, by_band):
        return None
    return _roots_by_inverse if by_cholesky <= by_band else _roots_by_band


def _costs_of_fit(n: float, n_alphas: int) -> tuple[float, float]:
    """Return the costs of fits to n rows by Cholesky factorisations, and by a band matrix."""
    return n_alphas * n**3 / 3, _BAND * n**3 + n_alphas * _BAND_FACTOR * n * BLOCK**2


def _leave_out(
    compute_roots: ComputeRoots,
    gram: np.ndarray,
    targets: np.ndarray,
    alphas: np.ndarray,
    tests: list[np.ndarray],
) -> Iterator[np.ndarray]:
    """Yield the errors of the test rows of each fold, (n_alphas, n_test_rows, n_targets)."""
    bounds = np.cumsum([0, *map(len, tests)])
    errors = np.empty((len(alphas), bounds[-1], targets.shape[1]))
    groups = _group(bounds)
    indices = [np.concatenate(tests[first:last]) for first, last in groups]
    computed = compute_roots(gram, targets, alphas, indices)
    for alpha, of_alpha, (projected, roots) in zip(alphas, errors, computed, strict=True):
        for (first, last), root in zip(groups, roots, strict=True):
            out = of_alpha[bounds[first] : bounds[last]]
            out[:] = root.T @ projected
            if len(out) == last - first:  # single rows
                out /= np.einsum("ij,ij->j", root, root)[:, None]
                continue
            for fold in range(first, last):
                part = slice(*bounds[fold : fold + 2] - bounds[first])
                q = root[:, part].T @ root[:, part]
                out[part], diagonal = lapack.solve_positive(q, 0.0, out[part])
                if not diagonal.all():
                    raise not_definite_error(alpha)
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        yield errors[:, start:stop]


def _group(bounds: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and the last fold, plus 1, of groups of one fold or ``_GROUP`` rows."""
    groups, first = [], 0
    for fold in range(1, len(bounds)):
        if fold == len(bounds) - 1 or bounds[fold + 1] - bounds[first] > _GROUP:
            groups.append((first, fold))
            first = fold
    return groups


def _roots_by_inverse(
    gram: np.ndarray, targets: np.ndarray, alphas: np.ndarray, indices: list[np.ndarray]
) -> Iterator[Root]:
    """Yield roots that are inverses of Cholesky factors; see ``ComputeRoots``."""
    for alpha in alphas:
        inverse = invert_factor(gram, alpha, least_pivot(gram))
        yield inverse @ targets, [inverse[:, test] for test in indices]


def _roots_by_band(
    gram: np.ndarray, targets: np.ndarray, alphas: np.ndarray, indices: list[np.ndarray]
) -> Iterator[Root]:
    """Yield roots that are computed from a band matrix; see ``ComputeRoots``."""
    band = reduce_to_band(gram)
    rotation = compute_rotation(band)
    projected = rotation.T @ targets
    columns = [np.ascontiguousarray(rotation[test].T) for test in indices]
    del rotation
    for alpha in alphas:
        factor = factor_band(band, alpha)
        yield solve_forward(factor, projected), map(partial(solve_forward, factor), columns)


def _fit(gram: np.ndarray, targets: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return (K + alpha I)^-1 y for each alpha, (n_alphas, n_rows, n_targets)."""
    coef = np.empty((len(alphas), *targets.shape))
    by_cholesky, by_band = _costs_of_fit(len(gram), len(alphas))
    if by_cholesky <= by_band:
        for out, alpha in zip(coef, alphas, strict=True):
            out[:], diagonal = lapack.solve_positive(gram, alpha, targets)
            if not diagonal.min() ** 2 > least_pivot(gram):
                raise not_definite_error(alpha)
        return coef
    band, projected = reduce_to_band(gram), targets.copy()
    rotate(band, projected, transposed=True)
    for out, alpha in zip(coef, alphas, strict=True):
        factor = factor_band(band, alpha)
        out[:] = solve_backward(factor, solve_forward(factor, projected))
    rotated = np.hstack(list(coef))
    rotate(band, rotated, transposed=False)
    return rotated.reshape(len(gram), len(alphas), -1).swapaxes(0, 1)
