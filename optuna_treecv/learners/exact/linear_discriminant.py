"""Linear discriminant analysis from moments: the classes have one covariance."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.special import softmax
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.class_moments import by_class
from optuna_treecv.learners.exact.class_moments import ClassMoments
from optuna_treecv.learners.exact.class_moments import divide_by_rows
from optuna_treecv.learners.exact.class_moments import row_blocks
from optuna_treecv.learners.exact.class_moments import scaled
from optuna_treecv.learners.exact.class_moments import scaling_of
from optuna_treecv.learners.exact.discriminants import DiscriminantFolds
from optuna_treecv.learners.exact.discriminants import LEAST_LEFT
from optuna_treecv.learners.exact.discriminants import split_record
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.graded import eigen_of_scatter
from optuna_treecv.learners.exact.labels import largest_class
from optuna_treecv.learners.exact.linear_left_out import OwnClass
from optuna_treecv.learners.exact.linear_left_out import Point
from optuna_treecv.learners.exact.linear_left_out import Products
from optuna_treecv.learners.exact.linear_left_out import Rotated
from optuna_treecv.rows.data import PreparedRows

# The rows of one product with the coefficients of all points.
_ROWS = 1024

# The rows that are left out in one block: several arrays of them fit into the second-level cache.
_ROWS_LEFT_OUT = 512

# The svd solver compares singular values with tol, and moments know the squares of these.
_LEAST_TOL = 1e-6


class _Basis(NamedTuple):
    """A covariance C with C = (B')^-1 diag(values) B^-1; views of a record.

    Attributes
    ----------
    matrix : ndarray of shape (n_features, n_features)
        B: eigenvectors, or those of the correlations divided by the standard deviations.
    values : ndarray of shape (n_features,)
    """

    matrix: np.ndarray
    values: np.ndarray


class _Fold(NamedTuple):
    """What a fold's models are made from; views of a record.

    Attributes
    ----------
    counts : ndarray of shape (n_classes,)
    means : ndarray of shape (n_classes, n_features)
    centre, scale : ndarray of shape (n_features,)
        Of a scaler.
    of_correlations, plain : _Basis or None
        The first one is for covariances without shrinkage, and does not depend on the scales of
        columns. The second one is for C + a I.
    """

    counts: np.ndarray
    means: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    of_correlations: _Basis | None
    plain: _Basis | None


class _Leave(NamedTuple):
    """What is needed to leave out single rows; by class.

    Attributes
    ----------
    own : list of OwnClass
    points : list of list of Point
    matrices : list of list of ndarray
    """

    own: list[OwnClass]
    points: list[list[Point]]
    matrices: list[list[np.ndarray]]


class LinearDiscriminantFolds(DiscriminantFolds):
    r"""``LinearDiscriminantAnalysis`` of all folds and shrinkages.

    .. math:: s_g(x) = -\tfrac12 |x - m_g|^2_A + \tfrac12 |x - b|^2_A + \log p_g

    with the inverse A of the covariance. The point b is the mean of the classes' means for the
    solver svd, and 0 for others.
    """

    parameter = "shrinkage"
    least_of_class = 1

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        super().__init__(estimators, rows, scaler, n_jobs)
        first = estimators[0]
        self._solver = first.solver
        self.n_outputs = 1 if self._n_classes == 2 else self._n_classes
        self._shrinkages = [float(one.shrinkage or 0) for one in estimators]
        if self._solver == "svd":
            self._n_distinct = 1
        self._tol = float(first.tol)
        self._are_pooled = self._priors is None or self._solver == "svd"
        if self._priors is not None and abs(self._priors.sum() - 1) > 1e-5:
            self._priors /= self._priors.sum()  # as scikit-learn does, which warns
        most = min(self._n_classes - 1, rows.n_features)
        if first.n_components is not None and first.n_components > most:
            raise ValueError(
                f"n_components must be at most {most}, the smaller of the number of features and "
                f"of classes less one, got {first.n_components}."
            )

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if estimator.shrinkage == "auto":
            return "shrinkage='auto' needs fourth moments of the rows"
        if estimator.solver == "svd":
            if estimator.shrinkage is not None:
                return "solver='svd' has no shrinkage"
            if estimator.tol < _LEAST_TOL:
                return f"tol is below {_LEAST_TOL}, which moments cannot tell from 0"
        why = cls._why_not(estimator, facts)
        return why or ("" if estimator.solver == "svd" else cls._why_not_scaled(facts))

    @property
    def _needs_scale(self) -> bool:
        # The solver svd divides by standard deviations itself.
        return self._scaler is not None and self._solver != "svd"

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes, decision values or probabilities."""
        if outputs.shape[1] == 1:
            decision = outputs[:, 0]
            if method == "predict":
                return (decision > 0).astype(np.intp)
            if method == "decision_function":
                return decision
            return np.column_stack([1 - expit(decision), expit(decision)])
        if method == "predict":
            return largest_class(outputs)
        return outputs if method == "decision_function" else softmax(outputs, axis=1)

    # --- The record of a fold ---

    @property
    def _n_bases(self) -> int:
        return 2 if self._solver == "eigen" else 1

    def _size(self) -> int:
        d, g = self._rows.n_features, self._n_classes
        return g + g * d + 2 * d + self._n_bases * (d * d + d)

    def _fold_of(self, record: np.ndarray) -> _Fold:
        d, g = self._rows.n_features, self._n_classes
        shapes = [(g,), (g, d), (d,), (d,), *[(d, d), (d,)] * self._n_bases]
        counts, means, centre, scale, *parts = split_record(record, shapes)
        bases = [_Basis(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
        of_correlations = None if self._solver == "lsqr" else bases[0]
        plain = None if self._solver == "svd" else bases[-1]
        return _Fold(counts, means, centre, scale, of_correlations, plain)

    def _fill(self, record: np.ndarray, train: ClassMoments) -> None:
        """Factorise the covariance."""
        n_rows = train.counts.sum()
        self._check_number(n_rows)
        fold = self._fold_of(record)
        fold.counts[:] = train.counts
        fold.centre[:], fold.scale[:] = 0, 1
        if self._needs_scale:
            fold.centre[:], fold.scale[:] = scaling_of(self._scaler, train)
            train = scaled(train, fold.centre, fold.scale)
        fold.means[:] = train.means
        if self._are_pooled:
            covariance = train.scatters[0] / self._divisor(n_rows)
        else:
            assert self._priors is not None
            covariance = np.tensordot(self._priors / train.counts, train.scatters, 1)
        self._factor(fold.of_correlations, fold.plain, covariance)

    def _check_number(self, n_rows: float) -> None:
        if n_rows <= self._n_classes:
            raise ValueError(
                "Each training set must have more rows than there are classes, got "
                f"{int(n_rows)} rows of {self._n_classes} classes."
            )

    def _divisor(self, n_rows: float) -> float:
        """Return by what the scatter of so many rows is divided."""
        if self._solver == "svd" and not divide_by_rows():
            return n_rows - self._n_classes
        return n_rows

    @staticmethod
    def _factor(of_correlations: _Basis | None, plain: _Basis | None, C: np.ndarray) -> None:
        if of_correlations is not None:
            deviations = np.sqrt(C.diagonal())
            deviations[deviations == 0] = 1
            correlations = C / deviations / deviations[:, None]
            of_correlations.values[:], vectors = np.linalg.eigh(correlations)
            of_correlations.matrix[:] = vectors / deviations[:, None]
        if plain is not None:
            plain.values[:], plain.matrix[:] = eigen_of_scatter(C)

    # --- The models of a fold ---

    def _basis_of(self, fold: _Fold, shrinkage: float) -> _Basis:
        if fold.plain is None or (shrinkage == 0 and fold.of_correlations is not None):
            assert fold.of_correlations is not None
            return fold.of_correlations
        return fold.plain

    def _least_value(self, values: np.ndarray, n_rows: float) -> float:
        """Return up to which eigenvalue a direction counts as one without variance."""
        if self._solver == "svd":
            # The solver divides by standard deviations over the number of rows.
            return self._tol**2 * self._divisor(n_rows) / n_rows
        return float(len(values) * np.finfo(np.float64).eps * values.max())

    def _inverse(self, values: np.ndarray, shrinkage: float, n_rows: float) -> np.ndarray:
        """Return the inverse eigenvalues of (1 - s) C + s tr(C) / d I, 0 if without variance."""
        shrunk = (1 - shrinkage) * values + shrinkage * values.mean() if shrinkage else values
        is_null = shrunk <= self._least_value(shrunk, n_rows)
        if np.all(is_null):
            raise ValueError(
                "X must have a column that varies within a class in each training set, got only "
                "columns that do not."
            )
        if self._solver == "eigen" and np.any(is_null):
            raise ValueError(
                "shrinkage must be above 0 with solver='eigen' where columns of X depend on each "
                f"other within a training set, got {shrinkage:g}; solver='svd' or a shrinkage "
                "such as 1e-6 would be right."
            )
        with np.errstate(divide="ignore"):
            return np.where(is_null, 0, 1 / shrunk)

    def _priors_of(self, counts: np.ndarray) -> np.ndarray:
        return counts / counts.sum() if self._priors is None else self._priors

    def _reference(self, fold: _Fold, priors: np.ndarray) -> np.ndarray:
        """Return the point at which all scores but their logarithms of priors are alike."""
        return priors @ fold.means if self._solver == "svd" else np.zeros(fold.means.shape[1])

    def _say(self, record: np.ndarray, numbers: RowNumbers, out: np.ndarray) -> None:
        """Write the decision values of rows."""
        fold = self._fold_of(record)
        n_rows, d = fold.counts.sum(), len(fold.scale)
        priors = self._priors_of(fold.counts)
        reference = self._reference(fold, priors)
        origin = fold.counts @ fold.means / n_rows
        coef = np.empty((*out.shape[:2], d + 1))  # the last one is the intercept
        for i, shrinkage in enumerate(self._distinct):
            basis = self._basis_of(fold, shrinkage)
            inverse = self._inverse(basis.values, shrinkage, n_rows)
            steps = (fold.means - reference) @ basis.matrix
            if self._solver == "svd":
                steps = self._between(steps, priors, inverse)
            from_origin = (reference - origin) @ basis.matrix
            of_basis = steps * inverse
            of_point = of_basis @ basis.matrix.T
            constant = -0.5 * np.sum(of_basis * (steps + 2 * from_origin), axis=1)
            constant += np.log(priors)
            if out.shape[1] == 1:
                of_point = of_point[1:] - of_point[:1]
                constant = constant[1:] - constant[:1]
            coef[i, :, :d], coef[i, :, d] = of_point / fold.scale, constant
        raw_origin = origin * fold.scale + fold.centre
        coef, said = coef.reshape(-1, d + 1), out.reshape(-1, out.shape[2])
        buffer = np.ones((min(_ROWS, n_rows_of(numbers)), d + 1))
        end = 0
        for some in blocks(numbers, _ROWS):
            block = buffer[: n_rows_of(some)]
            copy_rows(self._rows, some, block[:, :d])
            block[:, :d] -= raw_origin
            begin, end = end, end + len(block)
            np.matmul(coef, block.T, out=said[:, begin:end])

    def _between(self, steps: np.ndarray, priors: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Project on the directions in which the means of classes differ, as the solver svd."""
        root = np.sqrt(inverse)
        whitened = steps * root
        _, sizes, directions = np.linalg.svd(
            np.sqrt(priors)[:, None] * whitened, full_matrices=False
        )
        directions = directions[sizes > self._tol * sizes[0]]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(root > 0, (whitened @ directions.T) @ directions / root, 0)

    # --- Single rows ---

    def _size_of_all(self) -> int:
        d, g = self._rows.n_features, self._n_classes
        n_covariances = 1 if self._are_pooled else g
        return g + g * d + n_covariances * self._n_bases * (d * d + d)

    def _split_of_all(
        self, record: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[list[_Basis]]]:
        """Return counts, means, and the bases of each covariance."""
        d, g = self._rows.n_features, self._n_classes
        n_covariances = 1 if self._are_pooled else g
        shapes = [(g,), (g, d), *[(d, d), (d,)] * self._n_bases * n_covariances]
        counts, means, *parts = split_record(record, shapes)
        bases = [_Basis(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
        each = [bases[i : i + self._n_bases] for i in range(0, len(bases), self._n_bases)]
        return counts, means, each

    def _fill_from_all(self, record: np.ndarray, moments: ClassMoments) -> None:
        """Factorise the covariance of each class; there is one, or they differ by priors."""
        counts, means, each = self._split_of_all(record)
        counts[:], means[:] = moments.counts, moments.means
        n_rows = counts.sum() - 1
        self._check_number(n_rows)
        for code, bases in enumerate(each):
            if self._are_pooled:
                covariance = moments.scatters[0] / self._divisor(n_rows)
            else:
                assert self._priors is not None
                shares = self._priors / counts
                shares[code] = self._priors[code] / (counts[code] - 1)
                covariance = np.tensordot(shares, moments.scatters, 1)
            of_correlations = None if self._solver == "lsqr" else bases[0]
            plain = None if self._solver == "svd" else bases[-1]
            self._factor(of_correlations, plain, covariance)

    def _leave(self, record: np.ndarray) -> _Leave:
        """Return what is needed to leave out rows of each class."""
        counts, means, each = self._split_of_all(record)
        n, d = counts.sum(), means.shape[1]
        priors = self._priors_of(counts)
        reference = priors @ means if self._solver == "svd" else np.zeros(d)
        own, points, matrices = [], [], []
        for code, count in enumerate(counts):
            bases = each[0 if self._are_pooled else code]
            if self._priors is None:
                log_priors = np.log((counts - np.eye(len(counts))[code]) / (n - 1))
            else:
                log_priors = np.log(self._priors)
            if self._are_pooled:
                factor = count / (count - 1) / self._divisor(n - 1)
            else:
                factor = priors[code] * count / (count - 1) ** 2
            of_reference = (1.0, 0.0)
            if self._solver == "svd":
                is_share = self._priors is None
                of_reference = (n / (n - 1), 0.0) if is_share else (1, priors[code] / (count - 1))
            own.append(
                OwnClass(
                    code=code,
                    mean=means[code],
                    others=np.vstack([means, reference]) - means[code],
                    factor=factor,
                    own=count / (count - 1),
                    reference=of_reference,
                    log_priors=log_priors[:, None],
                    trace=bases[-1].values.mean(),
                )
            )
            matrices.append([basis.matrix for basis in bases])
            points.append([self._point(bases, one, n - 1) for one in self._distinct])
        return _Leave(own, points, matrices)

    def _point(self, bases: list[_Basis], shrinkage: float, n_rows: float) -> Point:
        basis = 0 if shrinkage == 0 else len(bases) - 1
        values = bases[basis].values
        inverse = self._inverse(values, shrinkage, n_rows)
        return Point(shrinkage, basis, values[:, None], inverse[:, None])

    @property
    def _distinct(self) -> list[float]:
        return self._shrinkages[: self._n_distinct]

    def _rotated(
        self, own: OwnClass, matrices: list[np.ndarray], numbers: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Rotated]]:
        """Yield blocks of rows of a class: their numbers, and the rows in its bases."""
        buffer = np.empty((min(_ROWS_LEFT_OUT, len(numbers)), self._rows.n_features))
        for some in row_blocks(numbers, _ROWS_LEFT_OUT):
            block = buffer[: len(some)]
            copy_rows(self._rows, some, block)
            block -= own.mean
            yield some, Rotated(own, block, matrices)

    def _doubtful(self, leave: _Leave, part: slice) -> np.ndarray:
        """Return the rows that have to be left out directly.

        1 - h is smallest with the smallest shrinkage.
        """
        found = [np.empty(0, dtype=np.intp)]
        which = int(np.argmin(self._distinct))
        for code, numbers in by_class(self._rows, part):
            own, point = leave.own[code], leave.points[code][which]
            least = self._least_left(point, len(self._rows.order) - 1)
            matrix = leave.matrices[code][point.basis]
            for some, rotated in self._rotated(own, [matrix], numbers):
                products = rotated.products(point._replace(basis=0))
                is_doubtful = products.left < least
                if self._solver == "svd":
                    is_doubtful |= self._may_drop(leave, own, point, matrix, products)
                found.append(some[is_doubtful])
        return np.sort(np.concatenate(found))

    def _least_left(self, point: Point, n_rows: float) -> float:
        """Return up to which 1 - h the directions with variance could be others.

        An eigenvalue falls to (1 - h) of what it was at most, and one that counts as 0 could grow
        by 1 / (1 - h), as the standard deviations of columns fall.
        """
        if point.shrinkage or self._solver == "lsqr":
            return LEAST_LEFT
        values, is_null = point.values, point.inverse == 0
        cut = self._least_value(values, n_rows)
        least = max(LEAST_LEFT, 2 * cut / values[~is_null].min())
        if self._solver == "svd" and np.any(is_null):
            least = max(least, 2 * values[is_null].max() / cut)
        return float(least)

    def _may_drop(
        self,
        leave: _Leave,
        own: OwnClass,
        point: Point,
        matrix: np.ndarray,
        products: Products,
    ) -> np.ndarray:
        """Return which rows the solver svd might see fewer directions between classes without.

        Their singular values change by less than ``step``, and by the whitening.
        """
        n = len(self._rows.order)
        priors = np.exp(own.log_priors)
        between = (own.others[:-1] - own.others[-1]) @ matrix * np.sqrt(point.inverse[:, 0])
        sizes = np.linalg.svd(np.sqrt(priors) * between, compute_uv=False)
        rank = min(self._n_classes - 1, int(np.sum(point.inverse > 0)))
        largest, smallest = sizes[0], sizes[rank - 1]
        step = np.sqrt(priors[own.code] * products.uu) * (own.own - 1)
        step += np.sqrt(np.abs(products.vv[-1])) / (n - 1) + largest / n
        left = np.sqrt(np.maximum(products.left, 0))
        dropped: np.ndarray = (smallest - step) * left <= 2 * self._tol * (largest + step)
        return dropped

    def _scores_left_out(self, leave: _Leave, part: slice) -> np.ndarray:
        """Return the scores of rows by models without each of them."""
        out = np.empty((self._n_distinct, self.n_outputs, part.stop - part.start))
        for code, numbers in by_class(self._rows, part):
            for some, rotated in self._rotated(leave.own[code], leave.matrices[code], numbers):
                for i, point in enumerate(leave.points[code]):
                    scores = rotated.scores(point)
                    if self.n_outputs == 1:
                        scores = scores[1:] - scores[:1]
                    out[i][:, some - part.start] = scores
        return out
