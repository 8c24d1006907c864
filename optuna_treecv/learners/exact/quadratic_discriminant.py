"""Quadratic discriminant analysis from moments: each class has its own covariance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
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
from optuna_treecv.rows.data import PreparedRows

# The greatest relative rounding error of an eigenvalue; scikit-learn's own is smaller.
_MOST_NOISE = 1e-4

# The rows of one product with the eigenvectors of a class.
_ROWS = 1024


class _Fold(NamedTuple):
    """What a fold's models are made from; views of a record.

    Attributes
    ----------
    counts : ndarray of shape (n_classes,)
    means : ndarray of shape (n_classes, n_features)
    matrices : ndarray of shape (n_classes, n_features, n_features)
        The eigenvectors of each covariance in its columns, divided by the scale of X.
    values : ndarray of shape (n_classes, n_features)
        The eigenvalues of each covariance.
    noise : ndarray of shape (n_classes, n_features)
        The rounding errors of the eigenvalues, which are those of the scatters' sums.
    """

    counts: np.ndarray
    means: np.ndarray
    matrices: np.ndarray
    values: np.ndarray
    noise: np.ndarray


class _Points(NamedTuple):
    """The models of one fold for all points; by class.

    Attributes
    ----------
    inverse : list of ndarray of shape (n_distinct, n_features)
        -1/2 times the inverse eigenvalues.
    constants : list of ndarray of shape (n_distinct,)
        What is added to the scores.
    """

    inverse: list[np.ndarray]
    constants: list[np.ndarray]


class _OwnClass(NamedTuple):
    """The covariance of a class without one of its rows, K - factor u u' with u = x - mean.

    Attributes
    ----------
    inverse : ndarray of shape (n_distinct, n_features)
        The inverse eigenvalues of K.
    factors, constants : ndarray of shape (n_distinct, 1)
    own : float
        x minus the mean of the other rows is ``own * u``.
    least : ndarray of shape (n_distinct, 1)
        Rows with a smaller 1 - h are left out directly.
    """

    inverse: np.ndarray
    factors: np.ndarray
    constants: np.ndarray
    own: float
    least: np.ndarray

    def scores(self, squares: np.ndarray) -> np.ndarray:
        """Return the scores of the class from the squares of u, by determinant and inverse."""
        uu = self.inverse @ squares
        left = 1 - self.factors * uu
        with np.errstate(divide="ignore", invalid="ignore"):  # these are left out directly
            scores: np.ndarray = self.constants - 0.5 * (self.own**2 * uu / left + np.log(left))
        return scores


class _Leave(NamedTuple):
    """What is needed to leave out single rows.

    Attributes
    ----------
    fold : _Fold
        From all rows.
    points : _Points
        Where the rows are those of other classes.
    own : list of _OwnClass
    """

    fold: _Fold
    points: _Points
    own: list[_OwnClass]


class QuadraticDiscriminantFolds(DiscriminantFolds):
    r"""``QuadraticDiscriminantAnalysis`` of all folds and values of ``reg_param``.

    .. math:: s_g(x) = -\tfrac12 |x - m_g|^2_{A_g} + \tfrac12 \log \det A_g + \log p_g

    with the inverse :math:`A_g` of :math:`(1 - r) C_g + r I`.
    """

    parameter = "reg_param"
    least_of_class = 2

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        super().__init__(estimators, rows, scaler, n_jobs)
        self._is_svd = estimators[0].solver == "svd"
        self._tol = float(estimators[0].tol)
        if self._is_svd:
            self._shares = np.array([float(one.reg_param) for one in estimators])
        else:
            self._shares = np.zeros(1)  # the solver eigen does not use reg_param
            self._n_distinct = 1

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if estimator.shrinkage is not None:
            return "QuadraticDiscriminantAnalysis has exact folds by reg_param, not by shrinkage"
        if facts.n_of_class < facts.n_features:
            return "a class has fewer rows in a training set than X has columns"
        return cls._why_not(estimator, facts) or cls._why_not_scaled(facts)

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes, decision values or probabilities."""
        if method == "predict":
            return largest_class(outputs)
        if method == "decision_function":
            return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs
        likelihood = outputs - outputs.max(axis=1)[:, None]
        return np.exp(likelihood - np.log(np.exp(likelihood).sum(axis=1)[:, None]))

    # --- The record of a fold ---

    def _size(self) -> int:
        d, g = self._rows.n_features, self._n_classes
        return g * (1 + d + d * d + d + d)

    def _fold_of(self, record: np.ndarray) -> _Fold:
        d, g = self._rows.n_features, self._n_classes
        return _Fold(*split_record(record, [(g,), (g, d), (g, d, d), (g, d), (g, d)]))

    def _fill(self, record: np.ndarray, train: ClassMoments) -> None:
        """Factorise the covariances."""
        fold = self._fold_of(record)
        centre, scale = scaling_of(self._scaler, train)
        fold.counts[:], fold.means[:] = train.counts, train.means
        if self._needs_scale:
            train = scaled(train, centre, scale)
        for code, scatter in enumerate(train.scatters):
            values, vectors = eigen_of_scatter(scatter)
            fold.values[code] = values / self._divisor(train.counts[code])
            errors = np.finfo(np.float64).eps * (np.square(vectors).T @ scatter.diagonal())
            fold.noise[code] = errors / self._divisor(train.counts[code])
            fold.matrices[code] = vectors / scale[:, None]

    def _divisor(self, count: float) -> float:
        """Return by what the scatter of so many rows is divided."""
        return count - 1 if self._is_svd and not divide_by_rows() else count

    # --- The models of a fold ---

    def _regularised(
        self, values: np.ndarray, noise: np.ndarray, count: float, code: int
    ) -> np.ndarray:
        """Return the eigenvalues of (1 - r) C + r I, (n_distinct, n_features).

        Parameters
        ----------
        values : ndarray of shape (n_features,)
            Those of C.
        noise : ndarray of shape (n_features,)
            Their rounding errors.
        count : float
            The rows of the class.
        code : int
        """
        regularised = np.outer(1 - self._shares, values) + self._shares[:, None]
        if self._is_svd and count < len(values):  # there are as many singular values as rows
            raise ValueError(
                "Each class must have as many rows in each training set as X has columns, got "
                f"{int(count)} rows of class {self._classes.tolist()[code]!r} and {len(values)} "
                "columns."
            )
        lacks_rank = regularised.min(axis=1) <= self._tol
        if np.any(lacks_rank):
            better = "a larger reg_param" if self._is_svd else "solver='svd' with a reg_param"
            raise ValueError(
                "The covariance of a class must have full rank, got eigenvalues up to tol="
                f"{self._tol:g} in class {self._classes.tolist()[code]!r} with reg_param="
                f"{self._shares[lacks_rank][0]:g}; {better} such as 0.1 would be right."
            )
        if np.any(np.outer(1 - self._shares, noise) > _MOST_NOISE * regularised):
            raise ValueError(
                "The rows of a class must not be so far apart that sums over them lose the "
                "directions in which they vary little, got class "
                f"{self._classes.tolist()[code]!r}; columns without outliers, or method='fit', "
                "would be right."
            )
        return regularised

    def _log_priors(self, counts: np.ndarray) -> np.ndarray:
        return np.log(counts / counts.sum() if self._priors is None else self._priors)

    @staticmethod
    def _squares_of(fold: _Fold, code: int, block: np.ndarray) -> np.ndarray:
        rotated: np.ndarray = fold.matrices[code].T @ (block - fold.means[code]).T
        rotated *= rotated
        return rotated

    def _say(self, record: np.ndarray, numbers: RowNumbers, out: np.ndarray) -> None:
        """Write the log posterior of rows, up to a constant for each row."""
        fold = self._fold_of(record)
        points = self._points(fold, self._log_priors(fold.counts))
        buffer = np.empty((min(_ROWS, n_rows_of(numbers)), self._rows.n_features))
        end = 0
        for some in blocks(numbers, _ROWS):
            block = buffer[: n_rows_of(some)]
            copy_rows(self._rows, some, block)
            begin, end = end, end + len(block)
            for code in range(self._n_classes):
                scores = points.inverse[code] @ self._squares_of(fold, code, block)
                np.add(scores, points.constants[code][:, None], out=out[:, code, begin:end])

    def _points(self, fold: _Fold, log_priors: np.ndarray) -> _Points:
        inverse, constants = [], []
        for code, values in enumerate(fold.values):
            regularised = self._regularised(values, fold.noise[code], fold.counts[code], code)
            inverse.append(-0.5 / regularised)
            constants.append(log_priors[code] - 0.5 * np.log(regularised).sum(axis=1))
        return _Points(inverse, constants)

    # --- Single rows ---

    def _size_of_all(self) -> int:
        return self._size()

    def _fill_from_all(self, record: np.ndarray, moments: ClassMoments) -> None:
        self._fill(record, moments)

    def _leave(self, record: np.ndarray) -> _Leave:
        """Return what is needed to leave out rows of each class.

        The covariance of a row's own class changes by rank one, and others do not change.
        """
        fold = self._fold_of(record)
        n, counts = fold.counts.sum(), fold.counts - 1
        of_others = np.log(fold.counts / (n - 1) if self._priors is None else self._priors)
        of_own = np.log(counts / (n - 1) if self._priors is None else self._priors)
        own = []
        for code, count in enumerate(fold.counts):
            divisor = self._divisor(count - 1)
            values = fold.values[code] * self._divisor(count) / divisor
            regularised = self._regularised(values, fold.noise[code], count - 1, code)
            own.append(
                _OwnClass(
                    inverse=1 / regularised,
                    factors=((1 - self._shares) * count / (count - 1) / divisor)[:, None],
                    constants=(of_own[code] - 0.5 * np.log(regularised).sum(axis=1))[:, None],
                    own=count / (count - 1),
                    least=np.maximum(LEAST_LEFT, self._least_left(regularised))[:, None],
                )
            )
        return _Leave(fold, self._points(fold, of_others), own)

    def _least_left(self, regularised: np.ndarray) -> np.ndarray:
        """Return up to which 1 - h the covariance without a row may lack rank."""
        least: np.ndarray = 2 * self._tol / regularised.min(axis=1)
        least[self._shares > self._tol] = 0
        return least

    def _doubtful(self, leave: _Leave, part: slice) -> np.ndarray:
        """Return the rows that have to be left out directly."""
        found = [np.empty(0, dtype=np.intp)]
        buffer = np.empty((_ROWS, self._rows.n_features))
        for code, numbers in by_class(self._rows, part):
            own = leave.own[code]
            for some in row_blocks(numbers, _ROWS):
                block = buffer[: len(some)]
                copy_rows(self._rows, some, block)
                uu = own.inverse @ self._squares_of(leave.fold, code, block)
                found.append(some[np.any(1 - own.factors * uu < own.least, axis=0)])
        return np.sort(np.concatenate(found))

    def _scores_left_out(self, leave: _Leave, part: slice) -> np.ndarray:
        """Return the scores of rows by models without each of them."""
        assert self._rows.targets is not None
        out = np.empty((self._n_distinct, self.n_outputs, part.stop - part.start))
        buffer = np.empty((_ROWS, self._rows.n_features))
        for some in blocks(part, _ROWS):
            assert isinstance(some, slice)
            block = buffer[: n_rows_of(some)]
            copy_rows(self._rows, some, block)
            codes = self._rows.targets[some]
            inside = slice(some.start - part.start, some.stop - part.start)
            for code in range(self._n_classes):
                squares = self._squares_of(leave.fold, code, block)
                scores = leave.points.inverse[code] @ squares
                scores += leave.points.constants[code][:, None]
                is_own = np.flatnonzero(codes == code)
                scores[:, is_own] = leave.own[code].scores(squares[:, is_own])
                out[:, code, inside] = scores
        return out
