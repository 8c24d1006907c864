"""Train and score linear models on subsets of features, from sums over the rows of each fold.

A model of the features S solves A[S, S] coef = A[S, y], where A holds the sums of squares and
products of the training rows, with alpha on the diagonal of the features. Its squared error on the
test rows follows from the same sums of the test rows about the training means. The rows are read
once, whatever number of subsets is tried.

To add a feature j to S, A is swept by j, which leaves the sums of residuals given S and j, and the
sums of the test rows are transformed accordingly. Each candidate then takes O(1) operations, and
each addition O(d^2). Removing features is the same process on the inverse of A. Subtractions would
let its rounding errors grow, so it starts again from a new inverse every few steps.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge

from optuna_treecv.core.run import Run
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.numerics.moments import about
from optuna_treecv.numerics.moments import merge
from optuna_treecv.numerics.moments import moments_of_folds
from optuna_treecv.plans.family import CachedSums
from optuna_treecv.plans.family import computing
from optuna_treecv.plans.family import make_chunks
from optuna_treecv.plans.joint import SumsPlan
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import can_score_from_squares
from optuna_treecv.scoring.scores import scores_from_squares
from optuna_treecv.types import Array

#: The estimators whose models on any subset of features follow from sums over rows.
SUPPORTED = (Ridge, LinearRegression)

# Two scores, or two squared coefficients, that differ by a smaller share count as equal, because
# rounding errors decide which one is larger. The first column is then chosen.
_MAX_TIE, _MAX_TIE_OF_SQUARES = 1e-12, 1e-10

# If the smallest eigenvalue of the scaled A is smaller, the coefficients of some subset have too
# few correct digits.
_MIN_EIGENVALUE = 1e-7

# ``LinearRegression`` drops singular values of X below this share of the largest one. The factor
# is a margin for the squares of these shares.
_CUTOFF, _MARGIN = 1e-6, 4

# If squared errors are a smaller share of the sum of squares, sums give them as a small difference
# of large numbers.
_MIN_SHARE_OF_ERRORS = 1e-5

# The maximum number of float64 values in the sums of training rows, and in those of test rows.
_MAX_VALUES = 2**26

# The number of removals after which A is inverted again.
_N_REMOVALS = 10


class FoldSums(NamedTuple):
    """The sums of each fold, in the order of the splitter. The last column is the target.

    Attributes
    ----------
    metric : Scorer
        The score, which is greater for better models.
    trains : ndarray of shape (n_folds, n_features + 1, n_features + 1)
        A: sums of squares and products of the training rows, plus alpha on the diagonal of the
        features.
    tests : ndarray of shape (n_folds, n_features + 1, n_features + 1)
        The sums of squares and products of the test rows about the training means.
    totals : ndarray of shape (n_folds,)
        The sum of squares of the targets of the test rows about their mean.
    n_tested : ndarray of shape (n_folds,)
    whole : ndarray of shape (n_features + 1, n_features + 1)
        A of all rows.
    """

    metric: Scorer
    trains: Array
    tests: Array
    totals: Array
    n_tested: Array
    whole: Array

    def scores(self, errors: Array) -> Array:
        """Return the scores of models from their sums of squared errors.

        Parameters
        ----------
        errors : ndarray of shape (n_folds, n_models)

        Returns
        -------
        ndarray of shape (n_folds, n_models)

        Raises
        ------
        ValueError
            If a score is undefined, or has too few correct digits.
        """
        squares, known = self.tests[:, -1:, -1], errors
        if self.metric.name == "neg_mean_squared_error":  # linear in the errors of folds
            squares, known = squares.sum(axis=0), errors.sum(axis=0)
        if self.metric.name != "r2" and np.any(known < _MIN_SHARE_OF_ERRORS * squares):
            raise ValueError(
                "sums over rows have too few digits for squared errors that are a share of less "
                f"than {_MIN_SHARE_OF_ERRORS:g} of the squares of y"
            )
        errors = np.maximum(errors, 0)
        scores = scores_from_squares(
            [self.metric], errors.T[:, :, None], self.totals[:, None], self.n_tested
        )
        if scores is None:
            raise ValueError(
                f"the score {self.metric.name} is undefined on a fold, whose targets are equal or "
                "whose numbers overflow"
            )
        return scores[:, 0].T


def collect_sums(run: Run) -> FoldSums:
    """Compute the sums of all folds of an evaluation by ``method="exact"``.

    Raises
    ------
    ValueError
        If the models of some subset do not follow from sums over rows. The message is the reason.
    """
    plan = run.plan
    assert isinstance(plan, SumsPlan)
    request = plan.request
    if reason := _reason_not_from_sums(plan):
        raise ValueError(reason)
    estimator = last_step(run.estimator)
    alpha, cutoff = float(getattr(estimator, "alpha", 0)), max(_CUTOFF, estimator.tol)
    folds: list[tuple[Array, Array, float, float]] = []
    whole: Array | None = None
    for repeat in request.cross_validation.repeats:
        rows, by_number = plan.rows(repeat), {}
        family: Any = plan.bind(repeat, rows, [run.estimator])
        source = family.source
        with computing():
            sums, n_threads = CachedSums(), request.settings.n_threads
            moments = moments_of_folds(source, make_chunks(repeat.cut), sums, n_threads, True)
            for chunk, (train, test) in enumerate(moments):
                assert test is not None
                equations = source.equations(train)
                matrix = _matrix_of(equations, alpha, cutoff)
                scale = np.append(equations.scale, 1)
                products = about(test, equations.origin) / scale / scale[:, None]
                total, weight = float(test.scatters[0, -1, -1]), float(test.weights[0])
                by_number[repeat.cut.number(chunk)] = matrix, products, total, weight
                if whole is None:
                    is_partition = isinstance(repeat.cut, Folds)
                    all_rows = slice(0, len(rows.order))
                    union = merge(train, test) if is_partition else source.collect(all_rows)
                    whole = _matrix_of(source.equations(union), alpha, cutoff)
        folds += [by_number[number] for number in sorted(by_number)]
    metric = request.scoring.metrics[0]
    assert whole is not None and isinstance(metric, Scorer)
    trains, tests, totals, weights = (np.array(values) for values in zip(*folds, strict=True))
    return FoldSums(metric, trains, tests, totals, weights, whole)


def _reason_not_from_sums(plan: SumsPlan) -> str:
    """Return the reason why the models do not follow from sums over rows, or "" if they do."""
    request, estimator = plan.request, plan.parts.last
    cross_validation, metric = request.cross_validation, request.scoring.metrics[0]
    if type(estimator) not in SUPPORTED or estimator.positive:
        return f"models of {name_of(estimator)} do not follow from sums, at least not if positive"
    if plan.parts.steps or plan.parts.linear:
        return "a transformer other than StandardScaler precedes the model"
    if sparse.issparse(request.data.X):
        return "X is sparse"
    if not isinstance(metric, Scorer) or not can_score_from_squares([metric]):
        return f"the score {metric.name} is not r2 or a negative squared error"
    if cross_validation.n_targets != 1 or request.metadata.weights is not None:
        return "y has several columns, or rows have weights"
    n_columns = request.data.n_features + 1
    n_folds = cross_validation.n_repeats * cross_validation.n_folds
    if n_folds * n_columns**2 > _MAX_VALUES:
        return f"the sums of {n_folds:,} folds need too much memory"
    return ""


def _matrix_of(equations: Any, alpha: float, cutoff: float) -> Array:
    """Return A of ``FoldSums``, or raise an error unless all subsets have well-determined models.

    Constant columns of least squares have a 1 on the diagonal, so that their coefficient is 0.
    """
    gram, b = equations.gram, equations.b[:, 0]
    squares = gram.diagonal()
    varying, is_regular = np.flatnonzero(squares > 0), True
    if alpha == 0 and len(varying):
        values = np.linalg.eigvalsh(gram[np.ix_(varying, varying)])
        is_regular = values[0] > _MARGIN * cutoff**2 * values[-1]
    matrix = np.zeros((len(b) + 1, len(b) + 1))
    matrix[:-1, :-1] = gram + np.diag(np.where(squares > 0, alpha, alpha or 1))
    matrix[:-1, -1] = matrix[-1, :-1] = b
    scale = np.sqrt(matrix.diagonal()[:-1])
    scaled = matrix[:-1, :-1] / scale / scale[:, None]
    if not (is_regular and np.linalg.eigvalsh(scaled)[0] > _MIN_EIGENVALUE):
        raise ValueError("columns of X are linearly dependent, or differ too much in scale")
    return matrix


class Walk:
    """Adds or removes one feature after another, always the one with the best mean score.

    If the best mean scores differ only by rounding, the first of their columns is chosen.

    Parameters
    ----------
    sums : FoldSums
    is_forward : bool
        Whether features are added, to none. Otherwise, they are removed, from all.
    """

    def __init__(self, sums: FoldSums, is_forward: bool) -> None:
        self._sums, self._n_steps = sums, 0
        self._candidates = np.arange(sums.trains.shape[1] - 1)
        self._is_forward, self._trains, self._tests = is_forward, sums.trains, sums.tests
        if not is_forward:
            self._start_removing()

    def _start_removing(self) -> None:
        """Sweep A by all remaining features, so that sweeping by a feature again removes it."""
        columns = np.append(self._candidates, self._sums.trains.shape[1] - 1)
        trains, tests = (
            matrices[:, columns[:, None], columns]
            for matrices in (self._sums.trains, self._sums.tests)
        )
        scale = np.sqrt(np.diagonal(trains, axis1=1, axis2=2)[:, :-1])
        scale = scale[:, :, None] * scale[:, None]
        swept = np.zeros_like(trains)
        swept[:, :-1, :-1] = np.linalg.inv(trains[:, :-1, :-1] / scale) / scale
        swept[:, :-1, -1:] = -swept[:, :-1, :-1] @ trains[:, :-1, -1:]
        swept[:, -1, -1] = 1
        self._tests = swept.transpose(0, 2, 1) @ tests @ swept
        swept[:, -1:, :-1] = swept[:, :-1, -1:].transpose(0, 2, 1)
        self._trains = swept

    def scores(self) -> Array:
        """Return the scores of the current features in all folds, shape (n_folds,)."""
        return self._sums.scores(self._tests[:, -1:, -1])[:, 0]

    def step(self) -> tuple[int, Array]:
        """Add or remove the best feature; return its index, and the scores of all folds after."""
        trains, tests = self._trains, self._tests
        squares, test_squares = (
            np.diagonal(matrices, axis1=1, axis2=2)[:, :-1] for matrices in (trains, tests)
        )
        slopes = trains[:, :-1, -1] / squares
        errors = tests[:, -1:, -1] + slopes * (slopes * test_squares - 2 * tests[:, :-1, -1])
        scores = self._sums.scores(errors)
        means = scores.mean(axis=0)
        best = int(np.argmax(means >= means.max() - _MAX_TIE * abs(means.max())))
        feature = int(self._candidates[best])
        self._candidates = np.delete(self._candidates, best)
        self._n_steps += 1
        if not self._is_forward and self._n_steps % _N_REMOVALS == 0 and len(self._candidates):
            self._start_removing()
        else:
            self._sweep(best)
        return feature, scores[:, best]

    def _sweep(self, index: int) -> None:
        """Replace the sums of all other columns by those of their residuals given a column."""
        others = np.delete(np.arange(self._trains.shape[1]), index)
        rows = others[:, None]
        products = self._trains[:, rows, index]
        shares = products / self._trains[:, index, index, None, None]
        crossed = shares * self._tests[:, None, others, index]
        squares = shares * shares.transpose(0, 2, 1) * self._tests[:, index, index, None, None]
        self._trains = self._trains[:, rows, others] - shares * products.transpose(0, 2, 1)
        self._tests = self._tests[:, rows, others] - crossed - crossed.transpose(0, 2, 1) + squares


def eliminate(matrices: Array, n_to_select: int, step: int) -> tuple[Array, Array]:
    """Eliminate the features with the smallest coefficients in each fold, as ``RFE`` does.

    Parameters
    ----------
    matrices : ndarray of shape (n_folds, n_features + 1, n_features + 1)
        A of each fold.
    n_to_select : int
    step : int
        The number of features to eliminate after each fit.

    Returns
    -------
    supports : ndarray of shape (n_folds, n_fits, n_features), bool
        The features of each fit.
    coefs : ndarray of shape (n_folds, n_fits, n_features)
        The coefficients of each fit, with 0 for eliminated features.
    """
    scale = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2)[:, :-1])
    grams = matrices[:, :-1, :-1] / scale[:, :, None] / scale[:, None]
    b, folds = matrices[:, :-1, -1] / scale, np.arange(len(matrices))[:, None]
    features = np.tile(np.arange(scale.shape[1]), (len(matrices), 1))
    supports, coefs = [], []
    while True:
        blocks = grams[folds[:, :, None], features[:, :, None], features[:, None]]
        solved = np.linalg.solve(blocks, b[folds, features][:, :, None])[:, :, 0]
        solved /= scale[folds, features]
        supports.append(np.zeros(scale.shape, bool))
        supports[-1][folds, features] = True
        coefs.append(np.zeros(scale.shape))
        coefs[-1][folds, features] = solved
        n_out = min(step, features.shape[1] - n_to_select)
        if n_out <= 0:
            return np.stack(supports, axis=1), np.stack(coefs, axis=1)
        squares = np.square(solved)
        limits = np.partition(squares, n_out - 1, axis=1)[:, [n_out - 1]]
        is_out = squares < limits * (1 - _MAX_TIE_OF_SQUARES)
        is_tied = ~is_out & (squares <= limits * (1 + _MAX_TIE_OF_SQUARES))
        n_missing = n_out - is_out.sum(axis=1, keepdims=True)
        is_out |= is_tied & (np.cumsum(is_tied, axis=1) <= n_missing)
        features = features[~is_out].reshape(len(matrices), -1)


def ranks_of_features(supports: Array) -> Array:
    """Return ``ranking_`` of ``RFE`` at each fit, from the features of the fits in each fold."""
    return 1 + np.cumsum(~supports, axis=1)


def squared_errors(tests: Array, coefs: Array) -> Array:
    """Return the sums of squared errors of models on test rows.

    Parameters
    ----------
    tests : ndarray of shape (n_folds, n_features + 1, n_features + 1)
        The sums of the test rows, see ``FoldSums``.
    coefs : ndarray of shape (n_folds, n_models, n_features)

    Returns
    -------
    ndarray of shape (n_folds, n_models)
    """
    residuals = np.insert(-coefs, coefs.shape[2], 1, axis=2)
    return np.asarray(np.sum(residuals @ tests * residuals, axis=2))
