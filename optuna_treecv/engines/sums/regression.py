"""Ridge regression, its classifier, the lasso, the elastic net and least squares, from moments."""

from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf
from scipy.linalg.lapack import dpotri
from scipy.linalg.lapack import dpotrs
from sklearn.linear_model import LinearRegression

from optuna_treecv.engines.sums.equations import nearly_dependent_error
from optuna_treecv.engines.sums.equations import no_weight_error
from optuna_treecv.engines.sums.equations import Penalties
from optuna_treecv.engines.sums.equations import RidgeRows
from optuna_treecv.engines.sums.family import CoefAndOrigin
from optuna_treecv.engines.sums.family import MomentFamily
from optuna_treecv.engines.sums.family import MOST_COLUMNS
from optuna_treecv.engines.sums.left_out import RowsOutOfSums
from optuna_treecv.estimators.base import weights_of_classes
from optuna_treecv.numerics.moments import about
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import FoldsLeftOut
from optuna_treecv.numerics.moments import mapped
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_of_chunks
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.moments import views
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import to_predictions
from optuna_treecv.rows.checks import times_classes

# Chunks of fewer rows than a quarter of the columns are solved from the model of all rows.
_COLUMNS_PER_SMALL_ROW = 4

# The models of all these solvers are the same after convergence.
_SOLVERS = ("auto", "cholesky", "svd", "lsqr", "sparse_cg", "sag", "saga")

# Conjugate gradients take less time for sparse rows with more columns: for a single alpha, and for
# several ones.
_MOST_SPARSE = 150, 500

# Below this share of a fold's squares, its sum of squared errors is computed from outputs, because
# from moments it would be a small difference of large sums.
_LEAST_SHARE = 1e-4


class RidgeFolds(MomentFamily):
    """Ridge regression: coef = (X'X + alpha I)^-1 X'y of centred rows, for all alphas.

    ``RidgeClassifier`` regresses on labels of -1 and 1, and predicts the largest. A record has the
    factorised equations, the origin that is subtracted from X and y, and the divisors of X.
    """

    parameters: tuple[str, ...] = ("alpha",)
    ignored: tuple[str, ...] = ("solver", "tol", "max_iter", "random_state")
    rows_at_once = 4096  # of one product with the coefficients of all alphas
    source: RidgeRows

    def _bind(self, estimators: Sequence[Any]) -> None:
        class_weight = getattr(estimators[0], "class_weight", None)
        self._is_balanced, n_groups = isinstance(class_weight, str), 1
        rows = self._rows
        if rows.classes is not None and isinstance(class_weight, dict):
            assert rows.targets is not None
            of_classes = weights_of_classes(class_weight, rows.classes)
            weights = times_classes(rows.weights, of_classes, rows.targets, np.float64)
            self._rows = rows = replace(rows, weights=weights)
        elif rows.classes is not None and self._is_balanced:
            n_groups = len(rows.classes)
        self._alphas = np.array([float(estimator.alpha) for estimator in estimators])
        fit_intercept = bool(estimators[0].fit_intercept)
        self.source = RidgeRows(rows, fit_intercept, self._scaler, n_groups)
        self.n_outputs, d = self.source.n_targets, rows.n_features
        self.shapes = [(Penalties.size(d, self.n_outputs),), (self.source.n_columns,), (d,)]

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why folds do not follow from sums; "" if they do."""
        is_balanced = getattr(estimator, "class_weight", None) == "balanced"
        if is_balanced and facts.n_folds >= facts.n_trained:
            return "class_weight='balanced' changes the weights of all rows for each held-out row"
        if facts.n_of_class == 0:
            return "a training set lacks a class"
        if not np.isscalar(estimator.alpha):
            return "alpha is not a number"
        if estimator.positive:
            return "positive=True has no closed form"
        if estimator.solver not in _SOLVERS:
            return f"solver={estimator.solver!r} trains other models"
        if estimator.alpha == 0 and not facts.is_requested:
            return "alpha=0 has no unique model if columns are linearly dependent"
        if facts.is_sparse:
            refused = ("svd", "cholesky", "saga") if estimator.fit_intercept else ("svd",)
            if estimator.solver in refused:
                return f"solver={estimator.solver!r} does not support these sparse rows"
            most = _MOST_SPARSE[facts.is_searched]
            if facts.n_features > most and not facts.is_requested:
                return f"an iterative solver takes less time for sparse X with over {most} columns"
        return super().why_not(estimator, facts)

    @classmethod
    def ignored_by(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the parameters of an iterative solver; direct solvers have none."""
        is_direct = estimator.solver in ("cholesky", "svd")
        return () if is_direct or (estimator.solver == "auto" and not is_sparse) else cls.ignored

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Factorise the equations of one fold."""
        memory, origin, scale = parts
        equations = self.source.equations(_balanced(moments) if self._is_balanced else moments)
        origin[:], scale[:] = equations.origin, equations.scale
        penalties = Penalties(memory, len(scale), self.n_outputs)
        penalties.factor(equations.gram, equations.b, self._alphas)

    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> CoefAndOrigin:
        """Return the coefficients of all points in rows, and the origin that is subtracted."""
        return np.ascontiguousarray(self._coef(parts, chunks, chunk).T), parts[1]

    def _coef(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of all points in columns, (d, n_candidates * n_targets)."""
        memory, origin, scale = parts
        penalties = Penalties(memory, len(scale), self.n_outputs)
        solved = self.source.solve(penalties, self._alphas, chunks, chunk, origin, scale)
        return solved.transpose(1, 0, 2).reshape(len(scale), -1) / scale[:, None]

    def respond(self, models: CoefAndOrigin, block: np.ndarray, out: np.ndarray) -> None:
        """Write the predictions of rows."""
        (coef, origin), d = models, block.shape[1]
        if self.source.has_centre:
            block -= origin[:d]
        np.add((coef @ block.T).reshape(out.shape), origin[d:, None], out=out)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return predictions, class codes or decision values."""
        has_numbers = self._rows.classes is None
        return to_predictions(outputs, "decision_function" if has_numbers else method)

    def test(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk; single rows and small chunks use the model of all rows."""
        has_scales = self._scaler is not None and bool(self._scaler.with_std)
        changes_mean = self.source.has_centre and not self.source.fit_intercept
        are_single = chunks.are_single_rows
        # Updates of the model of all rows take less time than a model for each chunk.
        are_small = (
            chunks.trains is None
            and not chunks.bounds[0]
            and not (has_scales or changes_mean)
            and np.mean(chunks.sizes) < self._rows.n_features / _COLUMNS_PER_SMALL_ROW
        )
        if (are_single or are_small) and not self._is_balanced and self._rows.maps is None:
            left_out = RowsOutOfSums(self.source, self._alphas, chunks, keep, self._n_jobs)
            return left_out.test(most_rows, are_single)
        return super().test(chunks, keep, most_rows)

    def squares(
        self, chunks: Chunks, keep: ArrayCache
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squared errors, from the moments of the test rows.

        None if they would be small differences of large sums, for classes, whose scores are no
        sums of squares, and for ``FoldsLeftOut`` with transformers that are fitted per fold.
        """
        are_left_out = isinstance(chunks, FoldsLeftOut)
        if self._rows.classes is not None or (are_left_out and self._rows.maps is not None):
            return None
        of_folds: list[tuple[np.ndarray, ...]] = []
        c, n_equations = self.source.n_columns, self.shapes[0][0]
        most_rows = int(chunks.bounds[-1])  # rows are not read, so that only memory limits groups
        for first, records in self.records(chunks, keep, most_rows, with_test=not are_left_out):
            coef = np.stack(
                [
                    self._coef(views(record, self.shapes), chunks, chunk)
                    for chunk, record in enumerate(records, first)
                ]
            )
            # Parts of records are not copied: a further alpha takes less than 1 ms.
            origins, tests = records[:, n_equations : n_equations + c], records[:, self.size :]
            if isinstance(chunks, FoldsLeftOut):
                models = chunks.models[first : first + len(records)]
                tests = moments_of_chunks(self.source, chunks.folds, keep, self._n_jobs)
                tests, at = tests[np.concatenate(models)], [*map(len, models)]
                coef, origins = np.repeat(coef, at, axis=0), np.repeat(origins, at, axis=0)
            sums = self._squares(coef, origins, tests)
            if sums is None:
                return None
            of_folds.append(sums)
        errors, totals, weights = (np.concatenate(x) for x in zip(*of_folds, strict=True))
        return errors.transpose(1, 0, 2), totals, weights

    def _squares(
        self, coef: np.ndarray, origins: np.ndarray, tests: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return y'y - 2 w'X'y + w'X'Xw about the mean, plus the square of the mean error.

        All folds of a group are computed at once, (n_folds, n_candidates, n_targets).
        """
        d, c, n_folds = self._rows.n_features, self.source.n_columns, len(coef)
        weights, means = tests[:, 1], tests[:, 2 : 2 + c]
        scatters = tests[:, 2 + c : 2 + c + c * c].reshape(n_folds, c, c)
        steps = means - origins
        shape = (n_folds, self.n_candidates, self.n_outputs)
        products = scatters[:, :d, :d] @ coef
        products -= np.tile(2 * scatters[:, :d, d:], self.n_candidates)
        totals = np.diagonal(scatters, axis1=1, axis2=2)[:, d:]
        errors = np.einsum("kij,kij->kj", coef, products).reshape(shape) + totals[:, None]
        of_means = steps[:, None, d:] - (steps[:, None, :d] @ coef).reshape(shape)
        errors += weights[:, None, None] * np.square(of_means)
        least = _LEAST_SHARE * (totals + weights[:, None] * np.square(steps[:, d:]))
        return None if np.any(errors < least[:, None]) else (errors, totals, weights)


# With fewer training rows for each column beyond the first few, one fit of scikit-learn takes less
# time than moments.
_FEW_COLUMNS = 50
_LEAST_ROWS_PER_COLUMN = 10

_EPS = float(np.finfo(np.float64).eps)

# Columns are divided by their norms, and q by its largest number. The rounding errors of a slope
# are then below this times 1 + |w|.
_ROUNDING = 50 * _EPS

# Smaller differences between a slope and a penalty are rounding errors of the rows.
_SAME = 1e-10

# Squares below this have lost digits.
_LEAST_SQUARES = 1e-290

# The least share of a column's squares that other columns do not explain.
_LEAST_PIVOT = 1e-12

# The most that rounding errors of moments may change a coefficient.
_MOST_ERROR = 1e-9

# The most steps of a search per column. It takes one to three from a start without active columns.
_MOST_STEPS = 30

# ``LinearRegression`` drops singular values below this share of the largest.
_CUTOFF = 1e-6

# The most iterations of guessing all active columns at once.
_MOST_TURNS = 15
_FIRST = 16

#: The active columns, and the inverse of their part of A.
Active = tuple[np.ndarray, np.ndarray]


class LassoFolds(RidgeFolds):
    r"""``Lasso``, ``ElasticNet`` and ``LinearRegression``, for all alphas and l1 ratios.

    With the moments :math:`G = X^\top X` and :math:`q = X^\top y` of centred training rows, the
    sum W of their weights and the ``l1_ratio`` r, the coefficients minimise

    .. math:: w^\top A w / 2 - q^\top w + W \alpha r |w|_1, \quad A = G + W \alpha (1 - r) I

    For given signs of w, this is a linear equation for the *active* columns, which are not 0. A
    search for them is finite (Lee, Battle, Raina & Ng 2006): a column whose slope is larger than
    its penalty becomes active, and a column whose coefficient becomes 0 leaves. The result solves
    the equation of the last active columns, wherever the search begins. So a fold may begin at the
    models of another one, from which it differs by few columns.

    A record has the equations of normed columns, the origin that is subtracted from X and y, and
    the divisors of X by a scaler.
    """

    parameters = ("alpha", "l1_ratio")
    ignored = ("max_iter", "tol", "selection", "random_state", "precompute")
    is_slow_left_out = True

    def _bind(self, estimators: Sequence[Any]) -> None:
        first = estimators[0]
        self._is_positive = bool(first.positive)
        self._cutoff = 0.0
        if isinstance(first, LinearRegression) and not self._is_positive:
            self._cutoff = max(_CUTOFF, getattr(first, "tol", 0))
        self._alphas = np.array([float(getattr(e, "alpha", 0)) for e in estimators])
        ratios = np.array([float(getattr(e, "l1_ratio", 0)) for e in estimators])
        self._penalties = np.column_stack([self._alphas * ratios, self._alphas * (1 - ratios)])
        # From one point to the next, few columns become active.
        self._path = np.lexsort([-self._alphas, ratios])
        self.source = RidgeRows(self._rows, bool(first.fit_intercept), self._scaler)
        self.n_outputs, d = self.source.n_targets, self._rows.n_features
        self._of_equations = [(d, d), (d, self.n_outputs), (d,), (1,)]
        n_numbers = sum(map(prod, self._of_equations))
        self.shapes = [(n_numbers,), (self.source.n_columns,), (d,)]
        self._starts: np.ndarray | None = None

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why folds do not follow from sums; "" if they do."""
        if isinstance(estimator, LinearRegression):
            if facts.is_sparse:
                return "lsqr takes less time for sparse rows"
        elif estimator.warm_start:
            return "warm_start is True"
        elif not isinstance(estimator.precompute, bool):
            return "precompute is a matrix"
        elif not np.isscalar(estimator.alpha) or not np.isscalar(estimator.l1_ratio):
            return "alpha or l1_ratio is not a number"
        elif not facts.is_requested:
            if estimator.alpha == 0:
                return "coordinate descent hardly converges with alpha=0"
            if facts.is_sparse:
                return "coordinate descent takes less time for sparse rows"
            if facts.n_trained < _LEAST_ROWS_PER_COLUMN * (facts.n_features - _FEW_COLUMNS):
                return "coordinate descent takes less time for few rows with many columns"
        if facts.n_features > MOST_COLUMNS or isinstance(estimator, LinearRegression):
            return super(RidgeFolds, cls).why_not(estimator, facts)
        return ""

    @classmethod
    def ignored_by(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the parameters of coordinate descent."""
        return () if isinstance(estimator, LinearRegression) else cls.ignored

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Write the equations of one fold."""
        memory, origin, scale = parts
        if moments.weights[0] == 0:
            raise no_weight_error()
        gram, q, norms, weight = views(memory, self._of_equations)
        equations = self.source.equations(moments)
        squares = equations.gram.diagonal()
        if np.any(equations.b[squares < _LEAST_SQUARES]):  # 0 for constant columns
            raise nearly_dependent_error()
        origin[:], scale[:], weight[:] = equations.origin, equations.scale, moments.weights
        norms[:] = np.sqrt(squares)
        divisors = _divisors(norms)
        gram[:] = equations.gram / divisors / divisors[:, None]
        q[:] = equations.b / divisors[:, None]

    def test(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk; least squares of single rows follow from those of all rows."""
        if self._cutoff and chunks.are_single_rows and self._rows.maps is None:
            source = copy(self.source)
            source.cutoff = self._cutoff
            with suppress(ValueError):  # linearly dependent columns
                left_out = RowsOutOfSums(source, self._alphas, chunks, keep, self._n_jobs)
                return left_out.test(most_rows, True)
        return MomentFamily.test(self, chunks, keep, most_rows)

    def records(
        self, chunks: Chunks, keep: ArrayCache, most_rows: int, with_test: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the records of chunks; all searches begin at the models of the first chunk."""
        self._keep = keep
        for first, records in super().records(chunks, keep, most_rows, with_test):
            if self._starts is None:
                zeros = np.zeros((self.n_candidates, self._rows.n_features, self.n_outputs))
                parts = views(records[0, : self.size], self.shapes)
                self._starts = np.nan_to_num(self._solutions(parts, first, zeros))
            yield first, records

    def _coef(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of all points in columns, (d, n_candidates * n_targets)."""
        assert self._starts is not None
        _, q, norms, _ = views(parts[0], self._of_equations)
        solved = self._solutions(parts, chunk, self._starts) * np.abs(q).max(axis=0)
        solved = solved.transpose(1, 0, 2).reshape(len(norms), -1)
        return np.asarray(solved / (_divisors(norms) * parts[2])[:, None])

    def _solutions(self, parts: list[np.ndarray], chunk: int, starts: np.ndarray) -> np.ndarray:
        """Return the coefficients of normed columns, as shares of a target's largest q.

        ``starts`` and the result have the shape (n_candidates, d, n_targets).
        """
        gram, q, norms, weight = views(parts[0], self._of_equations)
        if not np.all(np.isfinite(gram)) or not np.all(np.isfinite(q)):
            return np.full_like(starts, np.nan)
        out, divisors = np.zeros_like(starts), _divisors(norms)
        for target in range(self.n_outputs):
            largest = np.abs(q[:, target]).max() or 1.0
            before = np.zeros(len(q))
            for point in self._path:
                l1, l2 = weight * self._penalties[point, :, None]
                A = gram + np.diag(l2 / np.square(divisors)) if l2[0] else gram
                l1 = np.where(norms > 0, l1 / divisors / largest, np.inf)
                near = [starts[point, :, target], before]
                w, active, excess = minimum(A, q[:, target] / largest, l1, self._is_positive, near)
                error = _EPS * (1 + np.abs(w).sum()) * active[1].diagonal().max(initial=0)
                is_exact = error < _MOST_ERROR and not np.any(excess > _SAME)
                free, rank = _free_directions(A, active, excess)
                if not self._cutoff:
                    is_unique = not self._change_predictions(free / (divisors * parts[2]), chunk)
                else:
                    is_unique = self._has_rank(rank, A * norms * norms[:, None])
                    w = _shortest(w / divisors, free / divisors) * divisors
                if not is_exact or not is_unique:
                    raise nearly_dependent_error()
                before = out[point, :, target] = w
        return out

    def _change_predictions(self, directions: np.ndarray, chunk: int) -> bool:
        """Return whether directions of coefficients change predictions of any rows."""
        if not len(directions):
            return False
        rows, d = self._rows, self._rows.n_features
        source = RidgeRows(replace(rows, weights=None), True, None)
        c = source.nothing().means.shape[1]

        def fill(memory: np.ndarray) -> None:
            moments = source.collect(slice(0, len(rows.order)))
            memory.reshape(c + 1, c)[:] = np.vstack([moments.means, moments.scatters[0]])

        sums, n_rows = self._keep("all rows", (c + 1) * c, fill).reshape(c + 1, c), len(rows.order)
        moments = Moments(np.array([n_rows]), np.array([n_rows]), sums[:1], sums[None, 1:], None)
        if rows.maps is not None:
            moments = mapped(moments, rows.maps, chunk)
        origin = moments.means[0] if self.source.has_centre else np.zeros_like(moments.means[0])
        second = about(moments, origin)[:d, :d]
        most = np.abs(directions) @ np.sqrt(second.diagonal())
        changes = np.sum(directions @ second * directions, axis=1)
        return not bool(np.all(changes < _ROUNDING * np.square(most)))

    def _has_rank(self, rank: int, gram: np.ndarray) -> bool:
        """Return whether ``lstsq`` computes this rank for X, without doubt by rounding errors."""
        values = np.linalg.eigvalsh(gram)
        least = np.array([10 * len(gram) * _EPS, 4 * self._cutoff**2]) * values[-1]
        return bool(np.all(np.count_nonzero(values > least[:, None], axis=1) == rank))


def _free_directions(A: np.ndarray, active: Active, excess: np.ndarray) -> tuple[np.ndarray, int]:
    """Return directions of w that do not change training predictions, and the rank of the others.

    Only columns whose slope equals their penalty contribute.
    """
    directions = []
    for j in np.flatnonzero(excess > -_SAME).tolist():
        shares, pivot = _regression(A, active, j)
        if pivot > _LEAST_PIVOT:
            active = _with_column(active, j, shares, pivot)
            continue
        direction = np.zeros(len(A))
        direction[active[0]], direction[j] = -shares, 1
        directions.append(direction)
    return np.array(directions).reshape(-1, len(A)), len(active[0])


def _shortest(w: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the coefficients of least norm among those that differ by directions."""
    if not len(directions):
        return w
    return np.asarray(w - np.linalg.lstsq(directions.T, w)[0] @ directions)


def _divisors(norms: np.ndarray) -> np.ndarray:
    """Return the divisors of columns; 1 for constant ones."""
    return np.where(norms > 0, norms, 1)


def minimum(
    A: np.ndarray, q: np.ndarray, l1: np.ndarray, is_positive: bool, near: Sequence[np.ndarray]
) -> tuple[np.ndarray, Active, np.ndarray]:
    """Return the minimum of w'Aw / 2 - q'w + l1'|w|.

    Parameters
    ----------
    A : ndarray of shape (d, d)
        The products of columns with a norm of 1, or 0 if they are constant.
    q : ndarray of shape (d,)
        Numbers between -1 and 1.
    l1 : ndarray of shape (d,)
        Infinite for columns that stay at 0.
    is_positive : bool
        Whether no coefficient may be below 0.
    near : sequence of ndarray of shape (d,)
        The starts of the search; the first with linearly independent active columns is used.

    Returns
    -------
    w : ndarray of shape (d,)
    active : Active
    excess : ndarray of shape (d,)
        The size of the slope minus the penalty; -inf for active columns.
    """
    is_open = np.isfinite(l1)
    has_signs = is_positive or bool(np.any(l1[is_open]))
    near = [np.where(is_open, w, 0) for w in near]
    start = next((w for w in near if w.any()), near[0])
    w, active = _begin(A, [_guess(A, q, l1, is_positive, start), *near])
    for step in range(_MOST_STEPS * (len(q) + 1)):
        columns, inverse = active
        here = w[columns]
        signs = np.sign(here)
        goal = inverse @ (q[columns] - l1[columns] * signs)
        if has_signs and np.any(goal * signs <= 0):  # step until the first sign would change
            active = _leave(w, active, goal - here, np.flatnonzero(goal * signs <= 0))
            continue
        w[columns] = goal
        slope = q - A @ w
        w[columns] += inverse @ (slope[columns] - l1[columns] * signs)  # refines the inverse
        excess = (slope if is_positive else np.abs(slope)) - l1
        excess[columns] = -np.inf
        j = int(np.argmax(np.where(is_open, excess, -np.inf)))
        # Rounding errors may make columns enter and leave, but not forever.
        limit = _ROUNDING * (1 + np.abs(w).sum()) * 4 ** (step // (3 * len(q) + 3))
        if not excess[j] > limit:
            return w, active, excess
        sign = np.sign(slope[j])
        shares, pivot = _regression(A, active, j)
        length = excess[j] / pivot if pivot > 0 else np.inf
        falling = np.flatnonzero(w[columns] * shares * sign > 0) if has_signs else columns[:0]
        lengths = w[columns][falling] / (shares[falling] * sign)
        if len(falling) and lengths.min() < length:
            w[j] = sign * lengths.min()
            active = _leave(w, active, -sign * shares, falling)
            shares, pivot = _regression(A, active, j)
        elif pivot > _LEAST_PIVOT:
            w[columns] -= sign * length * shares
            w[j] = sign * length
        else:
            is_open[j] = False  # the others span it
            continue
        active = _with_column(active, j, shares, pivot)
    raise nearly_dependent_error()


def _guess(
    A: np.ndarray, q: np.ndarray, l1: np.ndarray, is_positive: bool, start: np.ndarray
) -> np.ndarray:
    """Return coefficients that are usually the minimum, or else near it.

    All columns that should be active enter at once, and all that should not leave at once (a
    primal-dual active set method), which need not converge. At most as many enter as are active.
    """
    w, signs = start, np.sign(start)
    for _ in range(_MOST_TURNS):
        columns = np.flatnonzero(signs)
        if len(columns):
            factor, info = dpotrf(A[np.ix_(columns, columns)].T, overwrite_a=True)
            if info or np.any(np.square(factor.diagonal()) < _LEAST_PIVOT):
                break
            solution = dpotrs(factor, q[columns] - l1[columns] * signs[columns])[0]
            w = np.zeros(len(q))
            w[columns] = np.where(solution * signs[columns] > 0, solution, 0)
        slope = q - A @ w
        excess = np.where(signs == 0, (slope if is_positive else np.abs(slope)) - l1, 0)
        if np.all(excess <= 0) and np.all(w[columns]):
            break
        signs = np.sign(w)
        new = np.argsort(-excess)[: max(_FIRST, len(columns))]
        new = new[excess[new] > 0]
        signs[new] = np.sign(slope[new])
    return w


def _begin(A: np.ndarray, near: Sequence[np.ndarray]) -> tuple[np.ndarray, Active]:
    """Return the start of a search: coefficients and their active columns."""
    for w in near:
        columns = np.flatnonzero(w)
        if not len(columns):
            break
        factor, info = dpotrf(A[np.ix_(columns, columns)].T, overwrite_a=True)
        if info == 0 and np.all(np.square(factor.diagonal()) > _LEAST_PIVOT):
            upper = np.triu(dpotri(factor)[0])
            return w.copy(), (columns, upper + np.triu(upper, 1).T)
    return np.zeros(len(A)), (np.zeros(0, np.intp), np.zeros((0, 0)))


def _leave(w: np.ndarray, active: Active, direction: np.ndarray, falling: np.ndarray) -> Active:
    """Step to the first coefficient of 0, in place; return the remaining active columns."""
    columns, inverse = active
    lengths = w[columns][falling] / np.where(direction == 0, -1, -direction)[falling]
    w[columns] += lengths.min() * direction
    index = falling[np.argmin(lengths)]
    w[columns[index]] = 0
    others = np.delete(np.arange(len(columns)), index)
    row = inverse[index, others]
    part = inverse[np.ix_(others, others)] - np.outer(row, row / inverse[index, index])
    return columns[others], part


def _regression(A: np.ndarray, active: Active, j: int) -> tuple[np.ndarray, float]:
    """Return the regression of a column on the active ones, and its residual square."""
    columns, inverse = active
    beside = A[j, columns]
    shares = inverse @ beside
    return shares, float(A[j, j] - beside @ shares)


def _with_column(active: Active, j: int, shares: np.ndarray, pivot: float) -> Active:
    """Return the active columns and the inverse with one more column."""
    row = np.append(-shares, 1)
    larger = np.outer(row, row / max(pivot, np.finfo(np.float64).tiny))
    larger[:-1, :-1] += active[1]
    return np.append(active[0], j), larger


def _balanced(moments: Moments) -> Moments:
    """Return the moments with the weights n / (n_classes n_class) of ``class_weight="balanced"``.

    They are those of one group. As in scikit-learn, the weights are from counts of rows, not from
    sums of sample weights.
    """
    counts = moments.counts
    present = counts > 0
    factors = np.zeros(len(counts))
    factors[present] = counts.sum() / (np.count_nonzero(present) * counts[present])
    weights = factors * moments.weights
    mean = weights @ moments.means / (weights.sum() or 1.0)
    steps = (moments.means - mean) * np.sqrt(weights)[:, None]
    scatter = np.tensordot(factors, moments.scatters, 1) + steps.T @ steps
    total = np.array([weights.sum()])
    return Moments(total, total, mean[None], scatter[None], moments.spread)
