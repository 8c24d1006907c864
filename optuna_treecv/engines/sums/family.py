"""The base class of estimators that are computed from moments, and discriminant analysis.

The moments (counts, means and scatter matrices) of rows are collected by a ``Source`` and merged.
From the moments of a fold's training rows, a family computes a *record*: a flat array from which
the models of all candidates can be computed, for example factorised equations. The family then
predicts the test rows with these models.
"""

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
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
from optuna_treecv.numerics.moments import cached_moments
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import mapped
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_name
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
from optuna_treecv.rows.maps import LinearMaps

# The maximum number of bytes that the records of a group of folds take in memory. The records of
# all folds are cached if they take no more.
_MAX_BYTES = 2**27

#: The maximum number d of columns of X. A fold needs a matrix of d x d float64 values, 200 MB, and
#: about 800 MB during its factorisation.
MAX_COLUMNS = 5000

# Up to this ratio of the diagonal entries of a scatter matrix, the rounding errors of its largest
# eigenvalue are at most 1e-10 of the smallest diagonal entry.
_MAX_RATIO = 1e6

# The svd solver of LDA compares singular values with ``tol``. Moments only determine the squares
# of singular values, which limits the precision of small ones.
_MIN_TOL = 1e-6

# The largest relative rounding error of an eigenvalue of QDA. Those of scikit-learn are smaller.
_MAX_ROUNDING = 1e-4


#: The coefficients, with one row for each candidate and output, and the origin that is subtracted
#: from X.
CoefAndOrigin = tuple[np.ndarray, np.ndarray]


class MomentFamily(Family):
    """Base class of families whose models are computed from the moments of their training rows.

    Attributes
    ----------
    n_outputs : int
        The number of outputs of a model for a row.
    source : Source
        The rows whose moments are computed.
    shapes : list of tuple of int
        The shapes of the arrays that form a record.
    size : int
        The number of float64 values of a record.
    rows_per_call : int
        The maximum number of test rows in one call of ``write_outputs``.
    has_ones : bool
        Whether ``write_outputs`` needs a column of ones after the features.
    """

    n_outputs: int
    source: Source
    shapes: list[tuple[int, ...]]
    maps_moments = True
    rows_per_call = BLOCK
    has_ones = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.source.make = self.make
        self.size = sum(map(prod, self.shapes))

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
        if facts.n_features > MAX_COLUMNS:
            return f"X has more than {MAX_COLUMNS} columns"
        if facts.n_features >= facts.n_trained:
            return "X has at least as many columns as a training set has rows"
        return ""

    @abstractmethod
    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Compute the record of a fold from the moments of its training rows.

        Parameters
        ----------
        moments : Moments
        parts : list of ndarray
            The arrays of the record, which are overwritten.

        Raises
        ------
        ValueError
            If a model is not defined on these rows.
        """

    @abstractmethod
    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> Any:
        """Return the models of all candidates, in the form that ``write_outputs`` accepts.

        Parameters
        ----------
        parts : list of ndarray
            The arrays of a record.
        chunks : Chunks
        chunk : int
            The index of the chunk to which the record belongs.

        Raises
        ------
        ValueError
            If a model is not defined on these rows.
        """

    @abstractmethod
    def write_outputs(self, models: Any, block: np.ndarray, out: np.ndarray) -> None:
        """Write the outputs of all models for a block of rows into ``out``.

        Parameters
        ----------
        models : object
            The models of one chunk, as returned by ``models``.
        block : ndarray of shape (n_rows, n_features) or (n_rows, n_features + 1)
            It has one more column, of ones, if ``has_ones``. It may be overwritten.
        out : ndarray of shape (n_distinct, n_outputs, n_rows)
        """

    def test(self, chunks: Chunks, cached: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Predict the test rows of each chunk with models computed from its training moments."""
        groups = self.records(chunks, cached, most_rows)
        yield from in_order(self._n_jobs, partial(self._predict_group, chunks), groups)

    def records(
        self, chunks: Chunks, cached: ArrayCache, most_rows: int, with_test: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the records of all chunks, in groups of consecutive chunks.

        If all records together are small, they are cached for other candidates.

        Parameters
        ----------
        chunks : Chunks
        cached : callable
            An ``ArrayCache``.
        most_rows : int
            The maximum number of test rows of a group.
        with_test : bool
            Whether the moments of the test rows are appended to each record.

        Yields
        ------
        (int, ndarray of shape (n_chunks, size))
            The first chunk of a group, and the records of its chunks.
        """
        k, size = chunks.n_chunks, self.size + (self.source.n_values if with_test else 0)
        memory = None
        if 8 * size * k <= _MAX_BYTES:

            def fill(array: np.ndarray) -> None:
                for i, record in enumerate(self._compute_records(chunks, cached, size)):
                    array[i * size : (i + 1) * size] = record

            name = "folds with their test rows" if with_test else "folds"
            memory = cached(name, size * k, fill).reshape(k, size)
        computed = iter(self._compute_records(chunks, cached, size) if memory is None else ())
        for first, last in chunks.groups(most_rows, max(1, _MAX_BYTES // (8 * size))):
            if memory is None:
                yield first, np.stack(list(islice(computed, last - first)))
            else:
                yield first, memory[first:last]

    def _compute_records(
        self, chunks: Chunks, cached: ArrayCache, size: int
    ) -> Iterable[np.ndarray]:
        """Return an iterator over the records of the chunks, in their order."""

        def compute_record(moments: TrainAndTest) -> np.ndarray:
            record, (train, test) = np.empty(size), moments
            self.solve(train, views(record, self.shapes))
            if with_test and test is not None:
                self.source.write(test, record[self.size :])
            return record

        with_test = size > self.size
        moments: Iterator[TrainAndTest]
        if self.shared_cache is None:
            moments = moments_of_folds(self.source, chunks, cached, self._n_jobs, with_test)
        else:
            shared, name = self.shared_cache, moments_name(self._rows)
            moments = cached_moments(self.source, chunks, shared, name, self._n_jobs)
        if (maps := self._rows.maps) is not None:
            if isinstance(maps, LinearMaps) and self.shared_cache is not None:
                maps = replace(maps, first=None)
            moments = (
                (mapped(train, maps, chunk), None if test is None else mapped(test, maps, chunk))
                for chunk, (train, test) in enumerate(moments)
            )
        return in_order(self._n_jobs, compute_record, moments)

    def _predict_group(self, chunks: Chunks, group: tuple[int, np.ndarray]) -> TestedChunks:
        """Predict the test rows of a group of chunks from their records."""
        first, records = group
        return self.predict(chunks, first, first + len(records), self._models_of(chunks, *group))

    def _models_of(self, chunks: Chunks, first: int, records: np.ndarray) -> Iterator[Any]:
        """Yield the models of consecutive chunks from their records."""
        for chunk, record in enumerate(records, first):
            yield self.models(views(record, self.shapes), chunks, chunk)

    def models_of(self, chunks: Chunks, cached: ArrayCache) -> list[Any]:
        """Return a list with the models of each chunk."""
        groups = self.records(chunks, cached, int(chunks.bounds[-1]))
        return [models for group in groups for models in self._models_of(chunks, *group)]

    def predict(
        self, chunks: Chunks, first: int, last: int, models: Iterable[Any]
    ) -> TestedChunks:
        """Predict the test rows of the chunks ``first`` to ``last - 1`` with their models."""
        bounds = chunks.bounds[first : last + 1]
        out = np.empty((self.n_distinct, self.n_outputs, bounds[-1] - bounds[0]))
        d, stop = self._rows.n_features, 0
        most = min(self.rows_per_call, int(np.diff(bounds).max()))
        buffer = np.ones((most, d + 1 if self.has_ones else d))
        for chunk, chunk_models in enumerate(models, first):
            for rows in blocks(chunks.test_rows(chunk, chunk + 1), self.rows_per_call):
                start, stop = stop, stop + count_rows(rows)
                block = buffer[: stop - start]
                copy_rows(self._rows, rows, block[:, :d], chunk)
                self.write_outputs(chunk_models, block, out[:, :, start:stop])
        outputs = np.broadcast_to(out, (self.n_candidates, *out.shape[1:]))
        return slice(first, last), outputs.transpose(0, 2, 1)


class DiscriminantFolds(MomentFamily):
    """Base class of discriminant analysis, which needs the moments of each class.

    A record contains the counts and the means of the classes, the mean and the scale of the
    scaler, and the arrays of a subclass.

    Attributes
    ----------
    min_rows_per_class : int
        The number of rows of each class that a training set must have.
    """

    min_rows_per_class: int

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
                    f"priors must have one value for each of the {self._n_classes} classes, got "
                    f"{estimators[0].priors!r}."
                )

    def _lay_out(self, are_pooled: bool, shapes: list[tuple[int, ...]]) -> None:
        """Set the source of moments, and the shapes of a record.

        Parameters
        ----------
        are_pooled : bool
            Whether the scatter matrices of all classes are added.
        shapes : list of tuple of int
            The shapes of the arrays of a subclass.
        """
        g, d = self._n_classes, self._rows.n_features
        with_spread = self._scaler is not None
        self.source = Source(self._rows, g, are_pooled, with_spread=with_spread)
        self.shapes = [(g,), (g, d), (d,), (d,), *shapes]

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
        if estimator.covariance_estimator is not None:
            return "covariance_estimator is set"
        if facts.is_sparse:
            return f"{type(estimator).__name__} does not support sparse X"
        if facts.has_weights:
            return f"{type(estimator).__name__} does not support sample weights"
        if estimator.priors is not None and np.min(estimator.priors) <= 0:
            return "a prior is not positive"
        if facts.n_of_class < cls.min_rows_per_class:
            n_rows = "no row" if facts.n_of_class == 0 else "only one row"
            return f"a training set has {n_rows} of a class"
        return super().why_not(estimator, facts)

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Factorise the covariance matrices of a fold, and write them into its record."""
        rare = np.flatnonzero(moments.counts < self.min_rows_per_class)
        if len(rare):
            label, least = self._classes.tolist()[rare[0]], self.min_rows_per_class
            raise ValueError(
                f"y must have at least {least} {'row' if least == 1 else 'rows'} of each class in "
                f"each training set, got {int(moments.counts[rare[0]])} of class {label!r}; use "
                "fewer folds or stratified folds instead."
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
        """Fill the arrays of the subclass in a record from the moments of scaled rows."""


class LinearDiscriminantFolds(DiscriminantFolds):
    r"""``LinearDiscriminantAnalysis`` of all folds, for all values of ``shrinkage``.

    The decision value of class g is

    .. math:: s_g(x) = -\tfrac12 |x - m_g|^2_A + \tfrac12 |x - b|^2_A + \log p_g

    with the class mean :math:`m_g`, the prior :math:`p_g` and the inverse A of the covariance
    matrix, which all classes share. For ``solver="svd"``, the vector b is the mean of the class
    means, weighted by the priors. It is 0 for other solvers.

    The covariance matrix is factorised as C = (B')^-1 diag(values) B^-1. Without shrinkage,
    except with ``solver="lsqr"``, the columns of B are the eigenvectors of the correlation
    matrix, divided by the standard deviations. The precision then does not depend on the scales of
    the columns. Shrinkage changes C to C + a I, up to a factor. The columns of B are then the
    eigenvectors of C. With ``solver="eigen"``, a record contains both.
    """

    parameters = ("shrinkage",)
    min_rows_per_class = 1
    has_ones = True

    def _bind(self, estimators: Sequence[Any]) -> None:
        super()._bind(estimators)
        if self._is_svd:  # this solver divides by standard deviations itself
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
                f"n_components must be at most min(n_features, n_classes - 1) = {most}, got "
                f"{first.n_components}."
            )

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
        if estimator.shrinkage == "auto":
            return "shrinkage='auto' needs fourth moments of the rows"
        if estimator.solver == "svd":
            if estimator.shrinkage is not None:
                return "solver='svd' does not support shrinkage"
            if estimator.tol < _MIN_TOL:
                return f"tol is below {_MIN_TOL}, the precision of singular values from moments"
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
        """Return the number by which the pooled scatter matrix is divided."""
        return n_rows - self._n_classes if self._is_svd and not divide_by_rows() else n_rows

    def _inverse(self, values: np.ndarray, shrinkage: float, n_rows: float) -> np.ndarray:
        """Return the inverse eigenvalues of (1 - s) C + s tr(C) / d I with the shrinkage s.

        The inverse of an eigenvalue that is 0 up to rounding errors is set to 0.
        """
        shrunk = (1 - shrinkage) * values + shrinkage * values.mean() if shrinkage else values
        if self._is_svd:
            # The solver divides by standard deviations whose divisor is the number of rows.
            least = self._tol**2 * self._divisor(n_rows) / n_rows
        else:
            least = len(shrunk) * np.finfo(np.float64).eps * shrunk.max()
        is_null = shrunk <= least
        if np.all(is_null):
            raise ValueError(
                "X must have at least one column that varies within a class in each training "
                "set, got only columns that are constant within each class."
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
        """Return the coefficients with their intercepts, and the origin subtracted from X."""
        counts, means, centre, scale, *bases = parts
        n_rows, d = counts.sum(), len(scale)
        priors = counts / n_rows if self._priors is None else self._priors
        # b: the point that the svd solver subtracts from X and from the class means.
        reference = priors @ means if self._is_svd else np.zeros(d)
        origin = counts @ means / n_rows
        coef = np.empty((self.n_distinct, self.n_outputs, d + 1))  # the last one is the intercept
        for i, shrinkage in enumerate(self._shrinkages[: self.n_distinct]):
            basis, values = bases[-2:] if shrinkage else bases[:2]
            inverse = self._inverse(values, shrinkage, n_rows)
            steps = (means - reference) @ basis
            if self._is_svd:
                steps = self._project(steps, priors, inverse)
            from_origin = (reference - origin) @ basis
            basis_coef = steps * inverse
            class_coef = basis_coef @ basis.T
            intercept = -0.5 * np.sum(basis_coef * (steps + 2 * from_origin), axis=1)
            intercept += np.log(priors)
            if self.n_outputs == 1:
                class_coef = class_coef[1:] - class_coef[:1]
                intercept = intercept[1:] - intercept[:1]
            coef[i, :, :d], coef[i, :, d] = class_coef / scale, intercept
        return coef.reshape(-1, d + 1), origin * scale + centre

    def write_outputs(self, models: CoefAndOrigin, block: np.ndarray, out: np.ndarray) -> None:
        """Write the decision values for a block of rows into ``out``."""
        coef, origin = models
        block[:, :-1] -= origin
        out[:] = (coef @ block.T).reshape(out.shape)

    def _project(self, steps: np.ndarray, priors: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Project class means onto the directions in which they differ, as solver='svd' does.

        Parameters
        ----------
        steps : ndarray of shape (n_classes, n_features)
            The class means minus b, in the basis B.
        priors : ndarray of shape (n_classes,)
        inverse : ndarray of shape (n_features,)
            The inverse eigenvalues.
        """
        root = np.sqrt(inverse)
        whitened = steps * root
        _, sizes, directions = np.linalg.svd(
            np.sqrt(priors)[:, None] * whitened, full_matrices=False
        )
        directions = directions[sizes > self._tol * sizes[0]]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(root > 0, (whitened @ directions.T) @ directions / root, 0)


class QuadraticDiscriminantFolds(DiscriminantFolds):
    r"""``QuadraticDiscriminantAnalysis`` of all folds, for all values of ``reg_param``.

    The decision value of class g is

    .. math:: s_g(x) = -\tfrac12 |x - m_g|^2_{A_g} + \tfrac12 \log \det A_g + \log p_g

    with the class mean :math:`m_g`, the prior :math:`p_g` and the inverse :math:`A_g` of
    :math:`(1 - r) C_g + r I`. Each class has its own covariance matrix :math:`C_g`, and r is
    ``reg_param``. A record contains the eigenvectors and the eigenvalues of :math:`C_g` and bounds
    on the rounding errors of the eigenvalues.
    """

    parameters = ("reg_param",)
    min_rows_per_class = 2

    def _bind(self, estimators: Sequence[Any]) -> None:
        super()._bind(estimators)
        g, d = self._n_classes, self._rows.n_features
        self._lay_out(False, [(g, d, d), (g, d), (g, d)])
        if self._is_svd:
            self._reg_params = np.array([float(estimator.reg_param) for estimator in estimators])
        else:
            self._reg_params = np.zeros(1)  # the solver eigen ignores reg_param
            self.n_distinct = 1

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return the reason why the models cannot be computed from sums, or "" if they can."""
        if estimator.shrinkage is not None:
            return "shrinkage is not supported (reg_param is)"
        if facts.n_of_class < facts.n_features:
            return "a class has fewer rows in a training set than X has columns"
        return super().why_not(estimator, facts)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes, decision values or probabilities."""
        if method == "predict":
            return argmax_of_rows(outputs)
        if method == "decision_function":
            return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs
        log_ratios = outputs - outputs.max(axis=1)[:, None]
        return np.exp(log_ratios - np.log(np.exp(log_ratios).sum(axis=1)[:, None]))

    def _factor(self, moments: Moments, parts: list[np.ndarray]) -> None:
        vectors, values, rounding = parts
        for code, (count, scatter) in enumerate(
            zip(moments.counts, moments.scatters, strict=True)
        ):
            divisor = count - 1 if self._is_svd and not divide_by_rows() else count
            scatter_values, vectors[code] = eigen_of_scatter(scatter)
            values[code] = scatter_values / divisor
            errors = np.square(vectors[code]).T @ scatter.diagonal()
            rounding[code] = np.finfo(np.float64).eps * errors / divisor

    def _regularised(
        self, values: np.ndarray, rounding: np.ndarray, count: float, code: int
    ) -> np.ndarray:
        """Return the eigenvalues of (1 - r) C + r I for each distinct value of ``reg_param``, r.

        Parameters
        ----------
        values : ndarray of shape (n_features,)
            The eigenvalues of C.
        rounding : ndarray of shape (n_features,)
            Bounds on their rounding errors.
        count : float
            The number of training rows of the class.
        code : int
            The class code.

        Returns
        -------
        ndarray of shape (n_distinct, n_features)
        """
        regularised = np.outer(1 - self._reg_params, values) + self._reg_params[:, None]
        if self._is_svd and count < len(values):  # svd has as many singular values as rows
            raise ValueError(
                "Each class must have at least as many rows in each training set as X has "
                f"columns, got {int(count)} rows of class {self._classes.tolist()[code]!r} and "
                f"{len(values)} columns."
            )
        lacks_rank = regularised.min(axis=1) <= self._tol
        if np.any(lacks_rank):
            hint = "a larger reg_param" if self._is_svd else "solver='svd' with a reg_param"
            raise ValueError(
                "The covariance of each class must have full rank, got an eigenvalue of at most "
                f"tol={self._tol:g} for class {self._classes.tolist()[code]!r} with "
                f"reg_param={self._reg_params[lacks_rank][0]:g}; use {hint} such as 0.1 instead."
            )
        if np.any(np.outer(1 - self._reg_params, rounding) > _MAX_ROUNDING * regularised):
            raise ValueError(
                f"The covariance of class {self._classes.tolist()[code]!r} cannot be computed "
                "precisely from sums over rows, because rounding errors are too large relative to "
                "its smallest variances; remove outliers or use method='fit' instead."
            )
        return regularised

    def models(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> list[Any]:
        """Return a tuple for each class: eigenvectors, mean, -1 / (2 eigenvalues), constants."""
        counts, means, centre, scale, vectors, values, rounding = parts
        log_priors = np.log(counts / counts.sum() if self._priors is None else self._priors)
        matrices, raw_means, models = vectors / scale[:, None], means * scale + centre, []
        for code, count in enumerate(counts):
            regularised = self._regularised(values[code], rounding[code], count, code)
            constants = log_priors[code] - 0.5 * np.log(regularised).sum(axis=1)
            models.append(
                (matrices[code], raw_means[code], -0.5 / regularised, constants[:, None])
            )
        return models

    def write_outputs(self, models: list[Any], block: np.ndarray, out: np.ndarray) -> None:
        """Write the log posterior of each class into ``out``, up to a constant for each row."""
        for code, (matrix, mean, inverse, constants) in enumerate(models):
            rotated = matrix.T @ (block - mean).T
            rotated *= rotated
            np.add(inverse @ rotated, constants, out=out[:, code])


def eigen_of_scatter(scatter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues and the eigenvectors of a scatter matrix.

    The eigenvalues are at least 0, and the eigenvectors are the columns of the second array. If
    the scales of the columns of X are very different, the rounding errors of large eigenvalues
    would exceed the small eigenvalues. The eigenvalues are then computed from the singular values
    of a pivoted Cholesky factor, which are precise, but take two to three times as long.
    """
    squares = scatter.diagonal()
    squares = squares[squares > 0]
    if len(squares) == 0 or squares.max() <= _MAX_RATIO * squares.min():
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
