"""Linear regression from moments: ridge, ridge classifier, lasso, elastic net, least squares."""

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
from optuna_treecv.engines.sums.family import MAX_COLUMNS
from optuna_treecv.engines.sums.family import MomentFamily
from optuna_treecv.engines.sums.left_out import HeldOutRidge
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

# Chunks with fewer rows than a quarter of the columns are predicted by low-rank corrections of the
# model of all rows.
_COLUMNS_PER_ROW_OF_SMALL_CHUNKS = 4

# The solvers of scikit-learn that converge to the same model.
_SOLVERS = ("auto", "cholesky", "svd", "lsqr", "sparse_cg", "sag", "saga")

# For sparse rows with more columns, conjugate gradients take less time for a single alpha.
_MAX_SPARSE_COLUMNS = 150
# For sparse rows with more columns, they take less time even if several alphas are evaluated.
_MAX_SPARSE_COLUMNS_OF_SEARCH = 500

# If the squared errors of a fold are a smaller share of its sum of squares, they are computed from
# predictions, because moments give them as a small difference of large sums.
_MIN_SHARE_OF_ERRORS = 1e-4


class RidgeFolds(MomentFamily):
    """Ridge regression: coef = (X'X + alpha I)^-1 X'y of centred rows, for all alphas.

    ``RidgeClassifier`` is a regression on labels of -1 and 1, and predicts the class with the
    largest output. A record contains the factorised equations, the origin that is subtracted from
    [X, y], and the divisors of the columns of X.
    """

    parameters: tuple[str, ...] = ("alpha",)
    ignored: tuple[str, ...] = ("solver", "tol", "max_iter", "random_state")
    is_linear = True
    rows_per_call = 4096  # one call multiplies them by the coefficients of all alphas
    source: RidgeRows

    def _bind(self, estimators: Sequence[Any]) -> None:
        class_weight = getattr(estimators[0], "class_weight", None)
        self._is_balanced, n_groups = isinstance(class_weight, str), 1
        rows = self._rows
        if rows.classes is not None and isinstance(class_weight, dict):
            assert rows.targets is not None
            class_weights = weights_of_classes(class_weight, rows.classes)
            weights = times_classes(rows.weights, class_weights, rows.targets, np.float64)
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
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
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
            return f"solver={estimator.solver!r} gives other models"
        if estimator.alpha == 0 and not facts.is_requested:
            return "alpha=0 has no unique model if columns are linearly dependent"
        if facts.is_sparse:
            unsupported = ("svd", "cholesky", "saga") if estimator.fit_intercept else ("svd",)
            if estimator.solver in unsupported:
                return f"solver={estimator.solver!r} does not support these sparse rows"
            most = _MAX_SPARSE_COLUMNS_OF_SEARCH if facts.is_searched else _MAX_SPARSE_COLUMNS
            if facts.n_features > most and not facts.is_requested:
                return (
                    "an iterative solver takes less time for sparse X with more than "
                    f"{most} columns"
                )
        return super().why_not(estimator, facts)

    @classmethod
    def ignored_by(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the parameters that have no effect; empty if scikit-learn's solver is direct."""
        is_direct = estimator.solver in ("cholesky", "svd")
        return () if is_direct or (estimator.solver == "auto" and not is_sparse) else cls.ignored

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Write the factorised equations of one fold into its record."""
        memory, origin, scale = parts
        equations = self.source.equations(_balanced(moments) if self._is_balanced else moments)
        origin[:], scale[:] = equations.origin, equations.scale
        penalties = Penalties(memory, len(scale), self.n_outputs)
        penalties.factor(equations.gram, equations.b, self._alphas)

    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> CoefAndOrigin:
        """Return the coefficients and the origin that is subtracted from [X, y].

        The coefficients have one row for each candidate and target.
        """
        return np.ascontiguousarray(self._coef(parts, chunks, chunk).T), parts[1]

    def _coef(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of unscaled columns, (n_features, n_candidates * n_targets)."""
        memory, origin, scale = parts
        penalties = Penalties(memory, len(scale), self.n_outputs)
        coef = self.source.solve(penalties, self._alphas, chunks, chunk, origin, scale)
        return coef.transpose(1, 0, 2).reshape(len(scale), -1) / scale[:, None]

    def linear_models(self, chunks: Chunks, cached: ArrayCache) -> tuple[np.ndarray, np.ndarray]:
        """Return the models of the first candidate; see ``Family``."""
        is_ridge = type(self) is RidgeFolds and not self._is_balanced
        if chunks.are_single_rows and is_ridge and self._scaler is None:
            held_out = HeldOutRidge(self.source, self._alphas, chunks, cached, self._n_jobs)
            return held_out.linear_models()
        models, d = self.models_of(chunks, cached), self._rows.n_features
        coef = np.array([of_chunk[: self.n_outputs] for of_chunk, _ in models])
        origin = np.array([of_chunk for _, of_chunk in models])
        intercept = origin[:, d:]
        if self.source.has_centre:
            intercept = intercept - np.einsum("ijk,ik->ij", coef, origin[:, :d])
        return coef, intercept

    def write_outputs(self, models: CoefAndOrigin, block: np.ndarray, out: np.ndarray) -> None:
        """Write the predictions for a block of rows into ``out``."""
        (coef, origin), d = models, block.shape[1]
        if self.source.has_centre:
            block -= origin[:d]
        np.add((coef @ block.T).reshape(out.shape), origin[d:, None], out=out)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the predictions of a regressor, or class codes or decision values."""
        is_regressor = self._rows.classes is None
        return to_predictions(outputs, "decision_function" if is_regressor else method)

    def test(self, chunks: Chunks, cached: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Predict the rows of each chunk; small chunks use updates of the model of all rows."""
        has_scales = self._scaler is not None and bool(self._scaler.with_std)
        only_scaler_centres = self.source.has_centre and not self.source.fit_intercept
        is_leave_one_out = chunks.are_single_rows
        # Updates of the model of all rows take less time than a factorisation for each chunk.
        are_small = (
            chunks.trains is None
            and not chunks.bounds[0]
            and not (has_scales or only_scaler_centres)
            and np.mean(chunks.sizes) < self._rows.n_features / _COLUMNS_PER_ROW_OF_SMALL_CHUNKS
        )
        if (is_leave_one_out or are_small) and not self._is_balanced and self._rows.maps is None:
            left_out = HeldOutRidge(self.source, self._alphas, chunks, cached, self._n_jobs)
            return left_out.test(most_rows, is_leave_one_out)
        return super().test(chunks, cached, most_rows)

    def squares(
        self, chunks: Chunks, cached: ArrayCache
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squared errors, computed from the moments of the test rows.

        None for classifiers, for ``FoldsLeftOut`` with transformers that are fitted per fold, and
        if a sum would lose precision as a small difference of large sums.
        """
        leaves_out_folds = isinstance(chunks, FoldsLeftOut)
        if self._rows.classes is not None or (leaves_out_folds and self._rows.maps is not None):
            return None
        sums_of_groups: list[tuple[np.ndarray, ...]] = []
        c, n_equations = self.source.n_columns, self.shapes[0][0]
        # Test rows are not read one by one. Therefore, only the size of records limits a group.
        most_rows, with_test = int(chunks.bounds[-1]), not leaves_out_folds
        for first, records in self.records(chunks, cached, most_rows, with_test):
            coef = np.stack(
                [
                    self._coef(views(record, self.shapes), chunks, chunk)
                    for chunk, record in enumerate(records, first)
                ]
            )
            # These are views of the records, because a copy would take longer than the evaluation
            # of another alpha.
            origins, tests = records[:, n_equations : n_equations + c], records[:, self.size :]
            if isinstance(chunks, FoldsLeftOut):
                models = chunks.models[first : first + len(records)]
                tests = moments_of_chunks(self.source, chunks.folds, cached, self._n_jobs)
                tests, counts = tests[np.concatenate(models)], [*map(len, models)]
                coef = np.repeat(coef, counts, axis=0)
                origins = np.repeat(origins, counts, axis=0)
            sums = self._squared_errors(coef, origins, tests)
            if sums is None:
                return None
            sums_of_groups.append(sums)
        errors, totals, weights = (np.concatenate(x) for x in zip(*sums_of_groups, strict=True))
        return errors.transpose(1, 0, 2), totals, weights

    def _squared_errors(
        self, coef: np.ndarray, origins: np.ndarray, tests: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return errors, totals and weights as ``squares`` does, for a group of folds.

        With X and y centred by the means of the test rows, the sum of squared errors is
        y'y - 2 w'X'y + w'X'Xw, plus the number of rows times the squared mean error.

        Parameters
        ----------
        coef : ndarray of shape (n_folds, n_features, n_candidates * n_targets)
        origins : ndarray of shape (n_folds, n_features + n_targets)
        tests : ndarray of shape (n_folds, n_values)
            The moments of the test rows, in flat arrays.

        Returns
        -------
        errors : ndarray of shape (n_folds, n_candidates, n_targets)
        totals : ndarray of shape (n_folds, n_targets)
        weights : ndarray of shape (n_folds,)
            None instead of all three if a sum of squared errors loses precision.
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
        mean_errors = steps[:, None, d:] - (steps[:, None, :d] @ coef).reshape(shape)
        errors += weights[:, None, None] * np.square(mean_errors)
        least = _MIN_SHARE_OF_ERRORS * (totals + weights[:, None] * np.square(steps[:, d:]))
        return None if np.any(errors < least[:, None]) else (errors, totals, weights)


# With fewer training rows than this for each column beyond the first ``_N_CHEAP_COLUMNS``, one fit
# of scikit-learn takes less time than moments.
_MIN_ROWS_PER_COLUMN = 10

# This number of columns does not count in the comparison with ``_MIN_ROWS_PER_COLUMN``.
_N_CHEAP_COLUMNS = 50

_EPS = float(np.finfo(np.float64).eps)

# With the symbols of ``LassoFolds``, and columns and q scaled as there, the rounding error of a
# slope q - A w is below this constant times 1 + |w|_1.
_ROUNDING = 50 * _EPS

# A smaller difference between a slope and its penalty may result from the rounding of X and y, so
# they count as equal.
_MAX_EQUAL = 1e-10

# Sums of squares below this have lost digits, because they are close to the smallest float64.
_MIN_SQUARES = 1e-290

# If the active columns leave a smaller share of a column's sum of squares unexplained, the column
# counts as a linear combination of them.
_MIN_PIVOT = 1e-12

# The largest error of a coefficient that rounding errors of moments may cause.
_MAX_ERROR = 1e-9

# The maximum number of steps of a search per column. From a start without active columns, a search
# takes one to three steps per column.
_MAX_STEPS = 30

# ``LinearRegression`` drops singular values below this share of the largest one.
_CUTOFF = 1e-6

# The maximum number of iterations that guess all active columns together.
_MAX_GUESSES = 15

# The number of columns that may become active in each of these iterations, even if fewer are
# active already.
_N_FIRST_COLUMNS = 16

#: The indices of the active columns, and the inverse of A restricted to these columns.
Active = tuple[np.ndarray, np.ndarray]


class LassoFolds(RidgeFolds):
    r"""``Lasso``, ``ElasticNet`` and ``LinearRegression``, for all alphas and l1 ratios.

    With the moments :math:`G = X^\top X` and :math:`q = X^\top y` of centred training rows, the
    sum W of their weights and r, the ``l1_ratio``, the coefficients minimise

    .. math:: w^\top A w / 2 - q^\top w + W \alpha r |w|_1, \quad A = G + W \alpha (1 - r) I

    If the signs of w are known, the coefficients of the *active* columns, which are not 0, solve a
    linear equation. A finite search finds the active columns (Lee, Battle, Raina & Ng 2006): a
    column becomes active if its slope is larger than its penalty, and is removed when its
    coefficient becomes 0. The result does not depend on where the search starts, because it solves
    the equation of the final active columns. Each fold can therefore start from the models of
    another fold, whose active columns usually differ in few columns.

    A record contains the equations for columns with a norm of 1, the origin that is subtracted
    from [X, y], and the divisors by which a scaler divides the columns of X.
    """

    depends_on_rotation = True
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
        # In order of decreasing alpha, few columns become active from one candidate to the next.
        self._path = np.lexsort([-self._alphas, ratios])
        self.source = RidgeRows(self._rows, bool(first.fit_intercept), self._scaler)
        self.n_outputs, d = self.source.n_targets, self._rows.n_features
        self._equation_shapes = [(d, d), (d, self.n_outputs), (d,), (1,)]
        size = sum(map(prod, self._equation_shapes))
        self.shapes = [(size,), (self.source.n_columns,), (d,)]
        self._starts: np.ndarray | None = None

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
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
            if facts.n_trained < _MIN_ROWS_PER_COLUMN * (facts.n_features - _N_CHEAP_COLUMNS):
                return "coordinate descent takes less time for few rows with many columns"
        if facts.n_features > MAX_COLUMNS or isinstance(estimator, LinearRegression):
            return super(RidgeFolds, cls).why_not(estimator, facts)
        return ""

    @classmethod
    def ignored_by(cls, estimator: Any, is_sparse: bool) -> tuple[str, ...]:
        """Return the parameters of coordinate descent, which have no effect."""
        return () if isinstance(estimator, LinearRegression) else cls.ignored

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Write the equations of one fold into its record."""
        memory, origin, scale = parts
        if moments.weights[0] == 0:
            raise no_weight_error()
        gram, q, norms, weight = views(memory, self._equation_shapes)
        equations = self.source.equations(moments)
        squares = equations.gram.diagonal()
        if np.any(equations.b[squares < _MIN_SQUARES]):  # 0 for constant columns
            raise nearly_dependent_error()
        origin[:], scale[:], weight[:] = equations.origin, equations.scale, moments.weights
        norms[:] = np.sqrt(squares)
        divisors = _divisors(norms)
        gram[:] = equations.gram / divisors / divisors[:, None]
        q[:] = equations.b / divisors[:, None]

    def test(self, chunks: Chunks, cached: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Predict the rows of each chunk; leave-one-out of least squares has a closed form."""
        if self._cutoff and chunks.are_single_rows and self._rows.maps is None:
            source = copy(self.source)
            source.cutoff = self._cutoff
            with suppress(ValueError):  # raised if columns are linearly dependent
                left_out = HeldOutRidge(source, self._alphas, chunks, cached, self._n_jobs)
                return left_out.test(most_rows, True)
        return MomentFamily.test(self, chunks, cached, most_rows)

    def records(
        self, chunks: Chunks, cached: ArrayCache, most_rows: int, with_test: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the records of chunks, and store the models of the first chunk.

        The searches of all chunks start from these models.
        """
        self._cached = cached
        for first, records in super().records(chunks, cached, most_rows, with_test):
            if self._starts is None:
                zeros = np.zeros((self.n_candidates, self._rows.n_features, self.n_outputs))
                parts = views(records[0, : self.size], self.shapes)
                self._starts = np.nan_to_num(self._solve_scaled(parts, first, zeros))
            yield first, records

    def _coef(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of unscaled columns, (n_features, n_candidates * n_targets)."""
        assert self._starts is not None
        _, q, norms, _ = views(parts[0], self._equation_shapes)
        coef = self._solve_scaled(parts, chunk, self._starts) * np.abs(q).max(axis=0)
        coef = coef.transpose(1, 0, 2).reshape(len(norms), -1)
        return np.asarray(coef / (_divisors(norms) * parts[2])[:, None])

    def _solve_scaled(self, parts: list[np.ndarray], chunk: int, starts: np.ndarray) -> np.ndarray:
        """Return the coefficients for scaled columns and targets.

        Columns have a norm of 1. Coefficients of a target are divided by its largest |q|.

        Parameters
        ----------
        parts : list of ndarray
            The arrays of a record.
        chunk : int
        starts : ndarray of shape (n_candidates, n_features, n_targets)
            Where the searches start.

        Returns
        -------
        ndarray of shape (n_candidates, n_features, n_targets)
        """
        gram, q, norms, weight = views(parts[0], self._equation_shapes)
        if not np.all(np.isfinite(gram)) or not np.all(np.isfinite(q)):
            return np.full_like(starts, np.nan)
        out, divisors = np.zeros_like(starts), _divisors(norms)
        basic = np.zeros(len(q))
        if self._cutoff:
            values = np.linalg.eigvalsh(gram * norms * norms[:, None])
        for target in range(self.n_outputs):
            largest = np.abs(q[:, target]).max() or 1.0
            previous = basic  # least squares have the same linearly independent columns
            for candidate in self._path:
                l1, l2 = weight * self._penalties[candidate, :, None]
                A = gram + np.diag(l2 / np.square(divisors)) if l2[0] else gram
                l1 = np.where(norms > 0, l1 / divisors / largest, np.inf)
                scaled_q, guesses = (
                    q[:, target] / largest,
                    [starts[candidate, :, target], previous],
                )
                w, active, excess = minimise(A, scaled_q, l1, self._is_positive, guesses)
                error = _EPS * (1 + np.abs(w).sum()) * active[1].diagonal().max(initial=0)
                is_exact = error < _MAX_ERROR and not np.any(excess > _MAX_EQUAL)
                free, rank = _free_directions(A, active, excess)
                if not self._cutoff:
                    is_unique = not self._change_predictions(free / (divisors * parts[2]), chunk)
                else:
                    is_unique, basic = self._has_rank(rank, values), w
                    w = _shortest(w / divisors, free / divisors) * divisors
                if not is_exact or not is_unique:
                    raise nearly_dependent_error()
                previous = out[candidate, :, target] = w
        return out

    def _change_predictions(self, directions: np.ndarray, chunk: int) -> bool:
        """Return whether a step along one of the directions changes the prediction of any row.

        Parameters
        ----------
        directions : ndarray of shape (n_directions, n_features)
            Changes of the coefficients of unscaled columns.
        chunk : int
            The index of the chunk whose transformers are applied.
        """
        if not len(directions):
            return False
        rows, d = self._rows, self._rows.n_features
        source = RidgeRows(replace(rows, weights=None), True, None)
        c = source.empty_moments().means.shape[1]

        def fill(memory: np.ndarray) -> None:
            moments = source.collect(slice(0, len(rows.order)))
            memory.reshape(c + 1, c)[:] = np.vstack([moments.means, moments.scatters[0]])

        sums, n_rows = (
            self._cached("all rows", (c + 1) * c, fill).reshape(c + 1, c),
            len(rows.order),
        )
        moments = Moments(np.array([n_rows]), np.array([n_rows]), sums[:1], sums[None, 1:], None)
        if rows.maps is not None:
            moments = mapped(moments, rows.maps, chunk)
        origin = moments.means[0] if self.source.has_centre else np.zeros_like(moments.means[0])
        products = about(moments, origin)[:d, :d]
        bounds = np.abs(directions) @ np.sqrt(products.diagonal())
        changes = np.sum(directions @ products * directions, axis=1)
        return not bool(np.all(changes < _ROUNDING * np.square(bounds)))

    def _has_rank(self, rank: int, values: np.ndarray) -> bool:
        """Return whether ``lstsq`` computes this rank for X, from the eigenvalues of X'X."""
        least = np.array([10 * len(values) * _EPS, 4 * self._cutoff**2]) * values[-1]
        return bool(np.all(np.count_nonzero(values > least[:, None], axis=1) == rank))


def _free_directions(A: np.ndarray, active: Active, excess: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the directions of w that do not change the predictions of the training rows.

    Only columns whose slope equals their penalty are considered.

    Returns
    -------
    directions : ndarray of shape (n_directions, d)
    rank : int
        The number of linearly independent columns among the considered ones.
    """
    directions = []
    for j in np.flatnonzero(excess > -_MAX_EQUAL).tolist():
        shares, pivot = _regression(A, active, j)
        if pivot > _MIN_PIVOT:
            active = _with_column(active, j, shares, pivot)
            continue
        direction = np.zeros(len(A))
        direction[active[0]], direction[j] = -shares, 1
        directions.append(direction)
    return np.array(directions).reshape(-1, len(A)), len(active[0])


def _shortest(w: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the coefficients of smallest norm that differ from w only along the directions."""
    if not len(directions):
        return w
    return np.asarray(w - np.linalg.lstsq(directions.T, w)[0] @ directions)


def _divisors(norms: np.ndarray) -> np.ndarray:
    """Return the norms of the columns, with 1 instead of 0 for constant columns."""
    return np.where(norms > 0, norms, 1)


def minimise(
    A: np.ndarray, q: np.ndarray, l1: np.ndarray, is_positive: bool, guesses: Sequence[np.ndarray]
) -> tuple[np.ndarray, Active, np.ndarray]:
    """Return the w that minimises w'Aw / 2 - q'w + l1'|w|.

    Parameters
    ----------
    A : ndarray of shape (d, d)
        X'X of columns with a norm of 1 (0 for constant columns), plus an L2 penalty.
    q : ndarray of shape (d,)
        Values between -1 and 1.
    l1 : ndarray of shape (d,)
        Infinite for columns whose coefficients must be 0.
    is_positive : bool
        Whether all coefficients must be at least 0.
    guesses : sequence of ndarray of shape (d,)
        Coefficients from which the active columns are guessed. If that guess fails, the search
        starts from the first of these whose active columns are linearly independent.

    Returns
    -------
    w : ndarray of shape (d,)
    active : Active
    excess : ndarray of shape (d,)
        |slope| - penalty, or slope - penalty if ``is_positive``; -inf for active columns.
    """
    may_enter = np.isfinite(l1)
    has_signs = is_positive or bool(np.any(l1[may_enter]))
    guesses = [np.where(may_enter, w, 0) for w in guesses]
    start = next((w for w in guesses if w.any()), guesses[0])
    w, active = _start_search(A, [_guess(A, q, l1, is_positive, start), *guesses])
    for step in range(_MAX_STEPS * (len(q) + 1)):
        columns, inverse = active
        current = w[columns]
        signs = np.sign(current)
        goal = inverse @ (q[columns] - l1[columns] * signs)
        if has_signs and np.any(goal * signs <= 0):  # step until the first sign would change
            active = _step_to_zero(w, active, goal - current, np.flatnonzero(goal * signs <= 0))
            continue
        w[columns] = goal
        slope = q - A @ w
        # One step of iterative refinement corrects the rounding errors of the inverse.
        w[columns] += inverse @ (slope[columns] - l1[columns] * signs)
        excess = (slope if is_positive else np.abs(slope)) - l1
        excess[columns] = -np.inf
        j = int(np.argmax(np.where(may_enter, excess, -np.inf)))
        # The limit grows, because rounding errors may let columns enter and leave in turn.
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
            active = _step_to_zero(w, active, -sign * shares, falling)
            shares, pivot = _regression(A, active, j)
        elif pivot > _MIN_PIVOT:
            w[columns] -= sign * length * shares
            w[j] = sign * length
        else:
            may_enter[j] = False  # it is a linear combination of the active columns
            continue
        active = _with_column(active, j, shares, pivot)
    raise nearly_dependent_error()


def _guess(
    A: np.ndarray, q: np.ndarray, l1: np.ndarray, is_positive: bool, start: np.ndarray
) -> np.ndarray:
    """Return coefficients that are usually the minimum, and otherwise close to it.

    Each iteration of this primal-dual active set method adds all columns that should be active,
    but at most 16 or as many as are active already, and removes all columns that should not be
    active. It need not converge.
    """
    w, signs = start, np.sign(start)
    for _ in range(_MAX_GUESSES):
        columns = np.flatnonzero(signs)
        if len(columns):
            factor, info = dpotrf(A[np.ix_(columns, columns)].T, overwrite_a=True)
            if info or np.any(np.square(factor.diagonal()) < _MIN_PIVOT):
                break
            solution = dpotrs(factor, q[columns] - l1[columns] * signs[columns])[0]
            w = np.zeros(len(q))
            w[columns] = np.where(solution * signs[columns] > 0, solution, 0)
        slope = q - A @ w
        excess = np.where(signs == 0, (slope if is_positive else np.abs(slope)) - l1, 0)
        if np.all(excess <= 0) and np.all(w[columns]):
            break
        signs = np.sign(w)
        added = np.argsort(-excess)[: max(_N_FIRST_COLUMNS, len(columns))]
        added = added[excess[added] > 0]
        signs[added] = np.sign(slope[added])
    return w


def _start_search(A: np.ndarray, guesses: Sequence[np.ndarray]) -> tuple[np.ndarray, Active]:
    """Return the first guess with linearly independent active columns, and these columns.

    If there is none, all coefficients are 0, and no column is active.
    """
    for w in guesses:
        columns = np.flatnonzero(w)
        if not len(columns):
            break
        factor, info = dpotrf(A[np.ix_(columns, columns)].T, overwrite_a=True)
        if info == 0 and np.all(np.square(factor.diagonal()) > _MIN_PIVOT):
            upper = np.triu(dpotri(factor)[0])
            return w.copy(), (columns, upper + np.triu(upper, 1).T)
    return np.zeros(len(A)), (np.zeros(0, np.intp), np.zeros((0, 0)))


def _step_to_zero(
    w: np.ndarray, active: Active, direction: np.ndarray, falling: np.ndarray
) -> Active:
    """Step along a direction until the first coefficient is 0; return the other active columns.

    Parameters
    ----------
    w : ndarray of shape (d,)
        The coefficients, changed in place.
    active : Active
    direction : ndarray of shape (n_active,)
    falling : ndarray of int
        The positions of the active columns whose coefficients approach 0.
    """
    columns, inverse = active
    lengths = w[columns][falling] / np.where(direction == 0, -1, -direction)[falling]
    w[columns] += lengths.min() * direction
    index = falling[np.argmin(lengths)]
    w[columns[index]] = 0
    others = np.delete(np.arange(len(columns)), index)
    row = inverse[index, others]
    reduced = inverse[np.ix_(others, others)] - np.outer(row, row / inverse[index, index])
    return columns[others], reduced


def _regression(A: np.ndarray, active: Active, j: int) -> tuple[np.ndarray, float]:
    """Return the regression coefficients of column j on the active columns.

    The second value is the residual sum of squares of this regression.
    """
    columns, inverse = active
    products = A[j, columns]
    shares = inverse @ products
    return shares, float(A[j, j] - products @ shares)


def _with_column(active: Active, j: int, shares: np.ndarray, pivot: float) -> Active:
    """Add column j to the active columns; the last arguments are from ``_regression``."""
    row = np.append(-shares, 1)
    larger = np.outer(row, row / max(pivot, np.finfo(np.float64).tiny))
    larger[:-1, :-1] += active[1]
    return np.append(active[0], j), larger


def _balanced(moments: Moments) -> Moments:
    """Merge the moments of all classes, with the weights of ``class_weight="balanced"``.

    The weight of a class is n_rows / (n_classes * n_rows_of_class). As in scikit-learn, these are
    counts of rows rather than sums of sample weights. The result has a single group.
    """
    counts = moments.counts
    is_present = counts > 0
    factors = np.zeros(len(counts))
    factors[is_present] = counts.sum() / (np.count_nonzero(is_present) * counts[is_present])
    weights = factors * moments.weights
    mean = weights @ moments.means / (weights.sum() or 1.0)
    steps = (moments.means - mean) * np.sqrt(weights)[:, None]
    scatter = np.tensordot(factors, moments.scatters, 1) + steps.T @ steps
    total = np.array([weights.sum()])
    return Moments(total, total, mean[None], scatter[None], moments.spread)
