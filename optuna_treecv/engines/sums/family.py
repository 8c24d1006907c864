"""Families of estimators whose models follow from moments, and those of discriminant analysis.

The moments of rows are collected (``Source``) and merged. From those of a fold's training rows a
family computes a *record*, a flat array that serves all points, which has their models, and
predicts the test rows.
"""

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from functools import cache
from functools import partial
from itertools import islice
from math import prod
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.special import softmax
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from optuna_treecv._kernels.lapack import pivoted_cholesky
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import mapped
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_of_folds
from optuna_treecv.numerics.moments import Source
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.moments import TrainAndTest
from optuna_treecv.numerics.moments import views
from optuna_treecv.numerics.spread import BLOCK
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import scale_of
from optuna_treecv.plans.family import argmax_of_rows
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import to_predictions

# The bytes of the records of all folds in memory, and in the cache.
_MOST_BYTES = 2**27

#: The memory of d x d numbers for each fold, and more during its factorisation: 800 MB.
MOST_COLUMNS = 5000

# Up to this ratio of two columns' squares, rounding errors of the largest eigenvalue are 1e-10 of
# the smaller square.
_MOST_RATIO = 1e6

# The svd solver of LDA compares singular values with tol, and moments know the squares of these.
_LEAST_TOL = 1e-6

# The greatest relative rounding error of an eigenvalue of QDA; scikit-learn's own is smaller.
_MOST_NOISE = 1e-4


#: The coefficients of all points and outputs in rows, and the origin that is subtracted from X.
CoefAndOrigin = tuple[np.ndarray, np.ndarray]


class MomentFamily(Family):
    """Models that follow from the moments of training rows.

    Attributes
    ----------
    n_outputs : int
        The number of outputs of a model for a row.
    source : Source
        The rows whose moments are computed.
    shapes : list of tuple of int
        The shapes of a record's parts.
    size : int
        The size of a record.
    rows_at_once : int
        The number of test rows in a call of ``respond``.
    has_ones : bool
        Whether a column of ones follows their features.
    """

    n_outputs: int
    source: Source
    shapes: list[tuple[int, ...]]
    rows_at_once = BLOCK
    has_ones = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.source.make = self.make
        self.size = sum(map(prod, self.shapes))

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why folds do not follow from sums; "" if they do."""
        if facts.n_features > MOST_COLUMNS:
            return f"X has more than {MOST_COLUMNS} columns"
        if facts.n_features >= facts.n_trained:
            return "X has more columns than a training set has rows"
        return ""

    @abstractmethod
    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Fill the parts of a record from the moments of training rows.

        Raises
        ------
        ValueError
            If a model is not defined on these rows.
        """

    @abstractmethod
    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> Any:
        """Return the models of all points, as ``respond`` takes them.

        Parameters
        ----------
        parts : list of ndarray
            The parts of a record.
        chunks : Chunks
        chunk : int
            The chunk whose training rows the record is computed from.

        Raises
        ------
        ValueError
            If a model is not defined on these rows.
        """

    @abstractmethod
    def respond(self, models: Any, block: np.ndarray, out: np.ndarray) -> None:
        """Write the outputs of models for a block of rows, which may be overwritten.

        Parameters
        ----------
        models : object
        block : ndarray of shape (n_rows, n_features), with a column of ones if ``has_ones``
        out : ndarray of shape (n_distinct, n_outputs, n_rows)
        """

    def test(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk with models that follow from the moments of its training rows."""
        groups = self.records(chunks, keep, most_rows)
        yield from in_order(self._n_jobs, partial(self._test, chunks), groups)

    def records(
        self, chunks: Chunks, keep: ArrayCache, most_rows: int, with_test: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first of several consecutive chunks and their records, (n_chunks, size).

        These chunks are tested together. Records are cached for further points if they are small.
        With ``with_test``, the moments of the test rows follow in each record.
        """
        k, size = chunks.n_chunks, self.size + (self.source.n_numbers if with_test else 0)
        memory = None
        if 8 * size * k <= _MOST_BYTES:

            def fill(array: np.ndarray) -> None:
                for i, record in enumerate(self._solved(chunks, keep, size)):
                    array[i * size : (i + 1) * size] = record

            name = "folds with their test rows" if with_test else "folds"
            memory = keep(name, size * k, fill).reshape(k, size)
        solved = iter(self._solved(chunks, keep, size) if memory is None else ())
        for first, last in chunks.groups(most_rows, max(1, _MOST_BYTES // (8 * size))):
            if memory is None:
                yield first, np.stack(list(islice(solved, last - first)))
            else:
                yield first, memory[first:last]

    def _solved(self, chunks: Chunks, keep: ArrayCache, size: int) -> Iterable[np.ndarray]:
        """Return the record of each chunk, one after another."""

        def record_of(moments: TrainAndTest) -> np.ndarray:
            record, (train, test) = np.empty(size), moments
            self.solve(train, views(record, self.shapes))
            if with_test and test is not None:
                self.source.write(test, record[self.size :])
            return record

        with_test = size > self.size
        of_folds = moments_of_folds(self.source, chunks, keep, self._n_jobs, with_test)
        if (maps := self._rows.maps) is not None:
            of_folds = (
                (mapped(train, maps, chunk), None if test is None else mapped(test, maps, chunk))
                for chunk, (train, test) in enumerate(of_folds)
            )
        return in_order(self._n_jobs, record_of, of_folds)

    def _test(self, chunks: Chunks, group: tuple[int, np.ndarray]) -> TestedChunks:
        """Return the predictions of a group of chunks for their test rows."""
        first, records = group
        return self.predict(chunks, first, first + len(records), self._models_of(chunks, *group))

    def _models_of(self, chunks: Chunks, first: int, records: np.ndarray) -> Iterator[Any]:
        """Yield the models of some chunks from their records."""
        for chunk, record in enumerate(records, first):
            yield self.models(views(record, self.shapes), chunks, chunk)

    def models_of(self, chunks: Chunks, keep: ArrayCache) -> list[Any]:
        """Return the models of each chunk."""
        groups = self.records(chunks, keep, int(chunks.bounds[-1]))
        return [x for group in groups for x in self._models_of(chunks, *group)]

    def predict(
        self, chunks: Chunks, first: int, last: int, models: Iterable[Any]
    ) -> TestedChunks:
        """Return the predictions of the chunks first to last - 1 for their test rows."""
        bounds = chunks.bounds[first : last + 1]
        out = np.empty((self.n_distinct, self.n_outputs, bounds[-1] - bounds[0]))
        d, end = self._rows.n_features, 0
        most = min(self.rows_at_once, int(np.diff(bounds).max()))
        buffer = np.ones((most, d + 1 if self.has_ones else d))
        for chunk, of_chunk in enumerate(models, first):
            for rows in blocks(chunks.test_rows(chunk, chunk + 1), self.rows_at_once):
                begin, end = end, end + count_rows(rows)
                block = buffer[: end - begin]
                copy_rows(self._rows, rows, block[:, :d], chunk)
                self.respond(of_chunk, block, out[:, :, begin:end])
        outputs = np.broadcast_to(out, (self.n_candidates, *out.shape[1:]))
        return slice(first, last), outputs.transpose(0, 2, 1)


class DiscriminantFolds(MomentFamily):
    """Models from the moments of classes.

    A record has counts, means, the scaler's centre and scale, and the parts of a subclass.
    """

    least_of_class: int

    def _bind(self, estimators: Sequence[Any]) -> None:
        assert self._rows.classes is not None
        self._classes = self._rows.classes
        self._n_classes = self.n_outputs = len(self._classes)
        self._tol, self._solver = float(estimators[0].tol), estimators[0].solver
        self._is_svd = self._solver == "svd"
        self._priors: np.ndarray | None = None
        if estimators[0].priors is not None:
            self._priors = np.array(estimators[0].priors, dtype=np.float64)
            if self._priors.shape != (self._n_classes,):
                raise ValueError(
                    f"priors must have a number for each of the {self._n_classes} classes, got "
                    f"{estimators[0].priors!r}."
                )

    def _lay_out(self, are_pooled: bool, shapes: list[tuple[int, ...]]) -> None:
        """Set the source of moments, and the further shapes of a record."""
        g, d = self._n_classes, self._rows.n_features
        with_spread = self._scaler is not None
        self.source = Source(self._rows, g, are_pooled, with_spread=with_spread)
        self.shapes = [(g,), (g, d), (d,), (d,), *shapes]

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reasons that both families share."""
        if estimator.covariance_estimator is not None:
            return "covariance_estimator is set"
        if facts.is_sparse:
            return f"{type(estimator).__name__} takes no sparse rows"
        if facts.has_weights:
            return f"{type(estimator).__name__} takes no weights"
        if estimator.priors is not None and np.min(estimator.priors) <= 0:
            return "a prior is not positive"
        if facts.n_of_class < cls.least_of_class:
            few = "no row" if facts.n_of_class == 0 else "only one row"
            return f"a training set has {few} of a class"
        return super().why_not(estimator, facts)

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Factorise the covariances of training rows."""
        few = np.flatnonzero(moments.counts < self.least_of_class)
        if len(few):
            label, least = self._classes.tolist()[few[0]], self.least_of_class
            raise ValueError(
                f"y must have at least {least} {'row' if least == 1 else 'rows'} of each class in "
                f"each training set, got {int(moments.counts[few[0]])} of class {label!r}; use "
                "fewer folds, or stratified ones, instead."
            )
        counts, means, centre, scale, *factors = parts
        centre[:], scale[:] = 0, 1
        if self._scaler is not None:
            assert moments.spread is not None
            scale[:] = scale_of(self._scaler, moments.spread)
            centre[:] = moments.spread.mean if self._scaler.with_mean else 0
            scatters = moments.scatters / scale / scale[:, None]
            moments = moments._replace(means=(moments.means - centre) / scale, scatters=scatters)
        counts[:], means[:] = moments.counts, moments.means
        self._factor(moments, factors)

    @abstractmethod
    def _factor(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Fill the further parts of a record from the moments of scaled rows."""


class LinearDiscriminantFolds(DiscriminantFolds):
    r"""``LinearDiscriminantAnalysis`` of all folds and shrinkages: classes share a covariance.

    .. math:: s_g(x) = -\tfrac12 |x - m_g|^2_A + \tfrac12 |x - b|^2_A + \log p_g

    with the inverse A of the covariance. The point b is the mean of the classes' means for the
    solver svd, and 0 for others.

    The covariance is C = (B')^-1 diag(values) B^-1. Without shrinkage, B are the eigenvectors of
    the correlations divided by the standard deviations, so that the scales of columns do not
    matter; for C + a I they are those of C. The solver eigen has both.
    """

    parameters = ("shrinkage",)
    least_of_class = 1
    has_ones = True

    def _bind(self, estimators: Sequence[Any]) -> None:
        super()._bind(estimators)
        if self._is_svd:  # it divides by standard deviations itself
            self._scaler = None
        d, first = self._rows.n_features, estimators[0]
        self.n_outputs = 1 if self._n_classes == 2 else self._n_classes
        self._shrinkages = [float(estimator.shrinkage or 0) for estimator in estimators]
        if self._is_svd:
            self.n_distinct = 1
        are_pooled = self._priors is None or self._is_svd
        self._lay_out(are_pooled, [(d, d), (d,)] * (2 if self._solver == "eigen" else 1))
        if self._priors is not None and abs(self._priors.sum() - 1) > 1e-5:
            self._priors /= self._priors.sum()  # as scikit-learn does, which warns
        most = min(self._n_classes - 1, d)
        if first.n_components is not None and first.n_components > most:
            raise ValueError(
                f"n_components must be at most {most}, the smaller of the number of features and "
                f"of classes less one, got {first.n_components}."
            )

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why folds do not follow from sums; "" if they do."""
        if estimator.shrinkage == "auto":
            return "shrinkage='auto' needs fourth moments of the rows"
        if estimator.solver == "svd":
            if estimator.shrinkage is not None:
                return "solver='svd' has no shrinkage"
            if estimator.tol < _LEAST_TOL:
                return f"tol is below {_LEAST_TOL}, the precision of moments"
        return super().why_not(estimator, facts)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes, decision values or probabilities."""
        if method != "predict_proba":
            return to_predictions(outputs, method)
        if outputs.shape[1] == 1:
            decision = outputs[:, 0]
            return np.column_stack([1 - expit(decision), expit(decision)])
        return softmax(outputs, axis=1)

    def _factor(self, moments: Moments, parts: list[np.ndarray]) -> None:
        n_rows = moments.counts.sum()
        if n_rows <= self._n_classes:
            raise ValueError(
                "Each training set must have more rows than there are classes, got "
                f"{int(n_rows)} rows of {self._n_classes} classes."
            )
        if len(moments.scatters) == 1:
            covariance = moments.scatters[0] / self._divisor(n_rows)
        else:
            assert self._priors is not None
            covariance = np.tensordot(self._priors / moments.counts, moments.scatters, 1)
        if self._solver != "lsqr":
            deviations = np.sqrt(covariance.diagonal())
            deviations[deviations == 0] = 1
            correlations = covariance / deviations / deviations[:, None]
            parts[1][:], vectors = np.linalg.eigh(correlations)
            parts[0][:] = vectors / deviations[:, None]
        if self._solver != "svd":
            parts[-1][:], parts[-2][:] = eigen_of_scatter(covariance)

    def _divisor(self, n_rows: float) -> float:
        """Return the divisor of the scatter of ``n_rows`` rows."""
        return n_rows - self._n_classes if self._is_svd and not divide_by_rows() else n_rows

    def _inverse(self, values: np.ndarray, shrinkage: float, n_rows: float) -> np.ndarray:
        """Return the inverse eigenvalues of (1 - s) C + s tr(C) / d I, 0 without variance."""
        shrunk = (1 - shrinkage) * values + shrinkage * values.mean() if shrinkage else values
        if self._is_svd:
            # The solver divides by standard deviations over the number of rows.
            least = self._tol**2 * self._divisor(n_rows) / n_rows
        else:
            least = len(shrunk) * np.finfo(np.float64).eps * shrunk.max()
        is_null = shrunk <= least
        if np.all(is_null):
            raise ValueError(
                "X must have a column that varies within a class in each training set, got only "
                "columns that are constant within each class."
            )
        if self._solver == "eigen" and np.any(is_null):
            raise ValueError(
                "shrinkage must be above 0 with solver='eigen' if columns of X are linearly "
                f"dependent within a training set, got {shrinkage:g}; use solver='svd' or a "
                "shrinkage such as 1e-6 instead."
            )
        with np.errstate(divide="ignore"):
            return np.where(is_null, 0, 1 / shrunk)

    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> CoefAndOrigin:
        """Return the coefficients with intercepts of all points and outputs, and an origin."""
        counts, means, centre, scale, *bases = parts
        n_rows, d = counts.sum(), len(scale)
        priors = counts / n_rows if self._priors is None else self._priors
        # The point at which all scores are equal up to the logarithms of priors.
        reference = priors @ means if self._is_svd else np.zeros(d)
        origin = counts @ means / n_rows
        coef = np.empty((self.n_distinct, self.n_outputs, d + 1))  # the last one is the intercept
        for i, shrinkage in enumerate(self._shrinkages[: self.n_distinct]):
            basis, values = bases[-2:] if shrinkage else bases[:2]
            inverse = self._inverse(values, shrinkage, n_rows)
            steps = (means - reference) @ basis
            if self._is_svd:
                steps = self._between(steps, priors, inverse)
            from_origin = (reference - origin) @ basis
            of_basis = steps * inverse
            of_point = of_basis @ basis.T
            constant = -0.5 * np.sum(of_basis * (steps + 2 * from_origin), axis=1)
            constant += np.log(priors)
            if self.n_outputs == 1:
                of_point = of_point[1:] - of_point[:1]
                constant = constant[1:] - constant[:1]
            coef[i, :, :d], coef[i, :, d] = of_point / scale, constant
        return coef.reshape(-1, d + 1), origin * scale + centre

    def respond(self, models: CoefAndOrigin, block: np.ndarray, out: np.ndarray) -> None:
        """Write the decision values of rows."""
        coef, origin = models
        block[:, :-1] -= origin
        out[:] = (coef @ block.T).reshape(out.shape)

    def _between(self, steps: np.ndarray, priors: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Project onto the directions in which class means differ, as solver='svd' does."""
        root = np.sqrt(inverse)
        whitened = steps * root
        _, sizes, directions = np.linalg.svd(
            np.sqrt(priors)[:, None] * whitened, full_matrices=False
        )
        directions = directions[sizes > self._tol * sizes[0]]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(root > 0, (whitened @ directions.T) @ directions / root, 0)


class QuadraticDiscriminantFolds(DiscriminantFolds):
    r"""``QuadraticDiscriminantAnalysis`` of all folds and values of ``reg_param``.

    .. math:: s_g(x) = -\tfrac12 |x - m_g|^2_{A_g} + \tfrac12 \log \det A_g + \log p_g

    with the inverse :math:`A_g` of :math:`(1 - r) C_g + r I`, where each class has its own
    covariance C. A record has its eigenvectors, its eigenvalues, and their rounding errors.
    """

    parameters = ("reg_param",)
    least_of_class = 2

    def _bind(self, estimators: Sequence[Any]) -> None:
        super()._bind(estimators)
        g, d = self._n_classes, self._rows.n_features
        self._lay_out(False, [(g, d, d), (g, d), (g, d)])
        if self._is_svd:
            self._shares = np.array([float(estimator.reg_param) for estimator in estimators])
        else:
            self._shares = np.zeros(1)  # the solver eigen does not use reg_param
            self.n_distinct = 1

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why folds do not follow from sums; "" if they do."""
        if estimator.shrinkage is not None:
            return "shrinkage is set; reg_param is supported"
        if facts.n_of_class < facts.n_features:
            return "a class has fewer rows in a training set than X has columns"
        return super().why_not(estimator, facts)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes, decision values or probabilities."""
        if method == "predict":
            return argmax_of_rows(outputs)
        if method == "decision_function":
            return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs
        likelihood = outputs - outputs.max(axis=1)[:, None]
        return np.exp(likelihood - np.log(np.exp(likelihood).sum(axis=1)[:, None]))

    def _factor(self, moments: Moments, parts: list[np.ndarray]) -> None:
        vectors, values, noise = parts
        for code, (count, scatter) in enumerate(
            zip(moments.counts, moments.scatters, strict=True)
        ):
            divisor = count - 1 if self._is_svd and not divide_by_rows() else count
            of_scatter, vectors[code] = eigen_of_scatter(scatter)
            values[code] = of_scatter / divisor
            errors = np.square(vectors[code]).T @ scatter.diagonal()
            noise[code] = np.finfo(np.float64).eps * errors / divisor

    def _regularised(
        self, values: np.ndarray, noise: np.ndarray, count: float, code: int
    ) -> np.ndarray:
        """Return the eigenvalues of (1 - r) C + r I, (n_distinct, n_features).

        Parameters
        ----------
        values : ndarray of shape (n_features,)
            The eigenvalues of C.
        noise : ndarray of shape (n_features,)
            Their rounding errors.
        count : float
            The rows of the class.
        code : int
        """
        regularised = np.outer(1 - self._shares, values) + self._shares[:, None]
        if self._is_svd and count < len(values):  # svd has as many singular values as rows
            raise ValueError(
                "Each class must have at least as many rows in each training set as X has "
                f"columns, got {int(count)} rows of class {self._classes.tolist()[code]!r} and "
                f"{len(values)} columns."
            )
        lacks_rank = regularised.min(axis=1) <= self._tol
        if np.any(lacks_rank):
            better = "a larger reg_param" if self._is_svd else "solver='svd' with a reg_param"
            raise ValueError(
                "The covariance of a class must have full rank, got eigenvalues up to "
                f"tol={self._tol:g} in class {self._classes.tolist()[code]!r} with "
                f"reg_param={self._shares[lacks_rank][0]:g}; use {better} such as 0.1 instead."
            )
        if np.any(np.outer(1 - self._shares, noise) > _MOST_NOISE * regularised):
            raise ValueError(
                "The covariance of a class must be precise if it is computed from sums over "
                f"rows, but in class {self._classes.tolist()[code]!r} rounding errors hide its "
                "smallest variances; remove outliers, or use method='fit' instead."
            )
        return regularised

    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> list[Any]:
        """Return a matrix, a mean, inverse eigenvalues and constants of each class."""
        counts, means, centre, scale, vectors, values, noise = parts
        log_priors = np.log(counts / counts.sum() if self._priors is None else self._priors)
        matrices, raw_means, models = vectors / scale[:, None], means * scale + centre, []
        for code, count in enumerate(counts):
            regularised = self._regularised(values[code], noise[code], count, code)
            constants = log_priors[code] - 0.5 * np.log(regularised).sum(axis=1)
            models.append(
                (matrices[code], raw_means[code], -0.5 / regularised, constants[:, None])
            )
        return models

    def respond(self, models: list[Any], block: np.ndarray, out: np.ndarray) -> None:
        """Write the log posterior of rows, up to a constant for each row."""
        for code, (matrix, mean, inverse, constants) in enumerate(models):
            rotated = matrix.T @ (block - mean).T
            rotated *= rotated
            np.add(inverse @ rotated, constants, out=out[:, code])


def eigen_of_scatter(scatter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues, none of them negative, and the eigenvectors in columns.

    If columns have very different scales, small eigenvalues would be lost in the rounding errors
    of large ones. The singular values of a pivoted Cholesky factor keep their digits, and take two
    to three times as long.
    """
    squares = scatter.diagonal()
    squares = squares[squares > 0]
    if len(squares) == 0 or squares.max() <= _MOST_RATIO * squares.min():
        values, vectors = np.linalg.eigh(scatter)
        return np.maximum(values, 0), vectors
    factor, pivots, rank = pivoted_cholesky(scatter)
    factor = np.triu(factor)
    factor[rank:] = 0
    _, sizes, directions = np.linalg.svd(factor)
    vectors = np.empty_like(directions)
    vectors[pivots] = directions.T
    return np.square(sizes), vectors


@cache
def divide_by_rows() -> bool:
    """Return whether scikit-learn's svd solvers divide scatters by the number of rows.

    Older versions, such as 1.8, divide by the degrees of freedom.
    """
    fitted = QuadraticDiscriminantAnalysis().fit([[0.0], [2.0], [0.0], [2.0]], [0, 0, 1, 1])
    return bool(fitted.scalings_[0][0] < 1.5)
