"""Support vector machines (``SVC``, ``SVR``): each fold starts from the solution with all rows.

With all rows, each candidate is solved along a fixed path of C: from the smallest value of the
path to the largest one that is at most C / 2. A solution therefore does not depend on other
candidates.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import _ovr_decision_function

from optuna_treecv.engines.kernel_machines.folds import compute_kernel
from optuna_treecv.engines.kernel_machines.folds import computes_by_row
from optuna_treecv.engines.kernel_machines.folds import KernelFolds
from optuna_treecv.engines.kernel_machines.folds import Split
from optuna_treecv.engines.kernel_machines.kernels.dual import DualSolver
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.plans.family import Facts
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features

# Solvers stop at this violation of the optimality conditions, times max(1, C / 1000): for a larger
# C, the rounding errors of the gradient are larger.
_GAP = 5e-8

# The same on the fixed path of C, and of starts for folds with other Gram matrices, as shares of
# the scale of the targets.
_GAP_ON_PATH, _GAP_OF_STARTS = 5e-2, 5e-3

# The numbers of SMO steps per variable before the first Newton phase, along the path and in a fold
# whose start is close to its solution.
_STEPS, _STEPS_OF_FOLD = 0.5, 0.1

# The path of C has the scale of the problem times powers of this ratio.
_RATIO = 10.0

# The maximum size in bytes of the decision values of several candidates.
_MAX_BYTES = 2**27

# Rounding errors of given kernel values, relative to the largest one.
_ROUNDING = 1e-10

# The solvers whose memory is kept for later problems, because new memory is filled with zeros by
# the system; and the maximum of their bytes.
_unused: list[DualSolver] = []
_MOST_KEPT = 2**28


@contextmanager
def _borrowed_solver() -> Iterator[DualSolver]:
    """Lend a solver to a thread. It is kept afterwards if unused solvers have little memory."""
    try:
        solver = _unused.pop()
    except IndexError:
        solver = DualSolver()
    yield solver
    if sum(other.n_bytes for other in [*_unused, solver]) <= _MOST_KEPT:
        _unused.append(solver)


def _copy_kernel(X: Features, rows: Array, out: Array) -> bool:
    """Copy kernel values in an order of rows and columns, if they are a Gram matrix.

    Returns
    -------
    bool
        Whether they are one.
    """
    if sparse.issparse(X) or X.shape != out.shape:
        return False
    np.take(X, rows, axis=1, out=out)
    limit = _ROUNDING * np.abs(out).max()
    return np.abs(out - out.T).max() <= limit and _is_positive(out + limit * np.eye(len(out)))


def _is_positive(K: Array) -> bool:
    """Return whether a symmetric matrix is positive definite."""
    try:
        np.linalg.cholesky(K)
    except np.linalg.LinAlgError:
        return False
    return True


class Problem(NamedTuple):
    """The dual problem of two classes, or of a regression.

    Attributes
    ----------
    parts : list of slice
        The rows of the Gram matrix that take part.
    gram : Gram
        The Gram matrix of these rows.
    targets : ndarray of shape (n,)
        1 and -1 for two classes.
    is_regression : bool
        Whether coefficients may have both signs.
    """

    parts: list[slice]
    gram: Gram
    targets: Array
    is_regression: bool

    def select(self, values: Array) -> Array:
        """Return the values of the rows that take part."""
        return np.concatenate([values[part] for part in self.parts])

    def scale(self, weights: Array) -> float:
        """Return the scale of the targets of rows with a positive weight."""
        return float(self.targets[weights > 0].std()) or 1.0 if self.is_regression else 1.0

    def bounds(self, limits: Array) -> tuple[Array, Array]:
        """Return the lower and the upper bounds of the coefficients."""
        if self.is_regression:
            return -limits, limits
        return np.where(self.targets > 0, 0, -limits), np.where(self.targets > 0, limits, 0)


class Solution(NamedTuple):
    """The solution of a problem.

    Attributes
    ----------
    coefs : ndarray of shape (n,)
        The coefficients b.
    gradient : ndarray of shape (n,)
        K b - targets; empty if it has not been computed.
    intercept : float
        NaN if the solver does not converge.
    C : float
        The C of the problem that was solved. It is smaller than that of the candidate if no
        coefficient is at its bound, because a larger C has the same solution.
    drift : float
        The size of the rounding errors of the gradient.
    """

    coefs: Array
    gradient: Array
    intercept: float
    C: float
    drift: float = 0.0

    def is_bounded(self, weights: Array) -> bool:
        """Return whether a coefficient is at its bound other than 0."""
        return bool(np.any((np.abs(self.coefs) >= self.C * weights) & (weights > 0)))


def _make_path(first: float, C: float) -> Iterator[float]:
    """Yield the values of the fixed path from ``first`` on that are at most C / 2."""
    while first <= C / 2:
        yield first
        first *= _RATIO


class Starts(NamedTuple):
    """The solutions with all rows.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        The indices of the rows of the Gram matrix in the given X.
    rows_of_problems : list of ndarray
        Those of the rows of each problem.
    solutions : list of list of Solution
        For each problem, those of all candidates.
    """

    rows: Array
    rows_of_problems: list[Array]
    solutions: list[list[Solution]]


class SVMFolds(KernelFolds):
    """``SVC`` or ``SVR`` on all folds, for all values of C, gamma and epsilon."""

    parameters = ("C", "gamma", "epsilon")

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Return the reason why the dual problems cannot be solved by ``DualSolver``."""
        kernel = estimator.kernel
        if callable(kernel) or kernel == "sigmoid":
            return "its kernel may not be positive semi-definite"
        if kernel == "poly" and estimator.coef0 < 0:
            return "its kernel is not positive semi-definite for a negative coef0"
        if estimator.C == np.inf:
            return "C is infinite"
        if estimator.max_iter != -1:
            return "max_iter limits its solver"
        if getattr(estimator, "probability", False) is True:
            return "probability is True"
        if getattr(estimator, "break_ties", False) and estimator.decision_function_shape != "ovr":
            return "break_ties is True, which needs decision_function_shape='ovr'"
        if facts.n_outputs > 1:
            return "there are several targets"
        if facts.n_of_class < 1:
            return "a training set has no row of a class"
        return ""

    @classmethod
    def depends_on_rows(cls, estimator: Estimator) -> bool:
        """Return whether gamma depends on the training rows."""
        return estimator.kernel in ("rbf", "poly") and estimator.gamma == "scale"

    def compute_gram(
        self, estimator: Estimator, X: Features, X_train: Features, rows: Array, out: Array
    ) -> Gram:
        """Return the Gram matrix of the rows X, with the kernel for these training rows."""
        if estimator.kernel == "precomputed":
            # fit refuses kernel values in a list.
            if hasattr(self._fold_task.X, "shape") and _copy_kernel(X, rows, out):
                return Gram(out)
            raise ValueError(
                "X must be a dense array that is symmetric and positive semi-definite for "
                "kernel='precomputed', got other values; use method='fit' instead."
            )
        gamma, variance = estimator.gamma, 1.0
        if gamma == "scale":
            is_dense = isinstance(X_train, np.ndarray)
            squares = None if is_dense else X_train.multiply(X_train).mean()
            variance = X_train.var() if is_dense else squares - X_train.mean() ** 2
        if isinstance(gamma, str):
            gamma = 1 / (X.shape[1] * variance) if variance else 1.0
        has_one_problem = self._classes is None or len(self._classes) == 2
        if has_one_problem and self.has_gram_per_fold(estimator):
            if computes_by_row(estimator.kernel, X):
                return Gram(out, X, float(gamma))
        params = {"degree": estimator.degree, "coef0": estimator.coef0}
        compute_kernel(estimator.kernel, X, out, gamma=float(gamma), **params)
        return Gram(out)

    def sort_rows(self, rows: Array) -> Array:
        """Return the order of the classes, so that the rows of each class are consecutive."""
        if self._classes is None:
            return np.arange(len(rows))
        return np.argsort(self._y[rows], kind="stable")

    def find_starts(self, gram: Gram, rows: Array, estimators: Sequence[Estimator]) -> Starts:
        """Solve all problems with all rows as training rows."""
        weights = self._weigh(rows, np.arange(len(rows)), estimators[0])
        starts = Starts(rows, [], [])
        for problem in self._make_problems(gram, rows):
            starts.rows_of_problems.append(problem.select(rows))
            gap = None
            if self.has_gram_per_fold(estimators[0]):
                gap = _GAP_OF_STARTS * problem.scale(problem.select(weights))
            solutions = self._solve_path(problem, problem.select(weights), estimators, gap)
            starts.solutions.append(solutions)
        return starts

    def _make_problems(self, gram: Gram, rows: Array) -> Iterator[Problem]:
        """Yield one problem for a regression or two classes, otherwise one per pair of classes."""
        if self._classes is None:
            targets = np.asarray(self._y[rows], np.float64).reshape(-1)
            yield Problem([slice(None)], gram, targets, is_regression=True)
            return
        codes = self._y[rows]
        if len(self._classes) == 2:
            yield Problem([slice(None)], gram, 2.0 * codes - 1, is_regression=False)
            return
        bounds = np.searchsorted(codes, np.arange(len(self._classes) + 1))
        parts = [slice(*bounds[code : code + 2]) for code in range(len(self._classes))]
        for pair in combinations(parts, 2):
            sizes = [part.stop - part.start for part in pair]
            of_pair = Gram(np.block([[gram.values[a, b] for b in pair] for a in pair]))
            targets = np.repeat([1.0, -1.0], sizes)
            yield Problem([*pair], of_pair, targets, is_regression=False)

    def _weigh(self, rows: Array, train: Array, estimator: Estimator) -> Array:
        """Return the weight of each row of the Gram matrix; 0 if it is no training row."""
        weights = np.zeros(len(rows))
        weights[train] = 1.0 if self._weights is None else self._weights[rows[train]]
        class_weight = getattr(estimator, "class_weight", None)
        if class_weight is not None:
            assert self._classes is not None
            codes = self._y[rows]
            labels = self._classes[codes[train]]
            weights *= compute_class_weight(class_weight, classes=self._classes, y=labels)[codes]
        return weights

    def predict_folds(
        self,
        gram: Gram,
        rows: Array,
        splits: Sequence[Split],
        estimators: Sequence[Estimator],
        starts: Starts | None,
    ) -> Iterator[Array]:
        """Yield the outputs for the test rows of each split."""
        n_classes = 2 if self._classes is None else len(self._classes)
        n_problems = n_classes * (n_classes - 1) // 2
        n_tested = sum(len(test) for _, test in splits)
        size = max(1, _MAX_BYTES // (8 * n_problems * n_tested))
        outputs = [np.empty((len(estimators), len(test), self._width)) for _, test in splits]
        n_jobs = min(self._n_jobs, len(splits))
        for begin in range(0, len(estimators), size):
            batch = slice(begin, begin + size)
            of_batch = estimators[batch]
            decisions = [np.empty((len(of_batch), len(test), n_problems)) for _, test in splits]
            for number, problem in enumerate(self._make_problems(gram, rows)):
                of_problem = None
                if starts is not None:
                    of_problem = self._map_starts(problem, rows, starts, number, batch)
                predict = partial(self._predict_split, problem, gram, rows, of_batch, of_problem)
                for out, values in zip(decisions, in_order(n_jobs, predict, splits), strict=True):
                    out[:, :, number] = values
            for out, values in zip(outputs, decisions, strict=True):
                out[batch] = self._to_outputs(values, of_batch[0])
        yield from outputs

    def _map_starts(
        self, problem: Problem, rows: Array, starts: Starts, number: int, batch: slice
    ) -> list[Solution]:
        """Return the solutions with all rows, for the rows of this Gram matrix."""
        solutions = starts.solutions[number][batch]
        if rows is starts.rows:
            return solutions
        all_coefs = np.zeros((len(solutions), self._cut.n_rows))
        all_coefs[:, starts.rows_of_problems[number]] = [s.coefs for s in solutions]
        coefs = all_coefs[:, problem.select(rows)]
        return [
            s._replace(coefs=b, gradient=np.empty(0))
            for s, b in zip(solutions, coefs, strict=True)
        ]

    def _predict_split(
        self,
        problem: Problem,
        gram: Gram,
        rows: Array,
        estimators: Sequence[Estimator],
        starts: list[Solution] | None,
        split: Split,
    ) -> Array:
        """Return the decision values for the test rows of a split, (n_estimators, n_test_rows)."""
        train, test = split
        weights = problem.select(self._weigh(rows, train, estimators[0]))
        if self._classes is not None and len(np.unique(problem.targets[weights > 0])) < 2:
            raise ValueError(
                "sample_weight and class_weight must give each class a positive weight in each "
                "training set, but a class has weight 0 in one of them."
            )
        if starts is None:
            solutions = self._solve_path(problem, weights, estimators)
        else:
            solutions = self._solve_from(problem, weights, estimators, starts)
        if problem.gram is gram:
            return np.array(
                [(s.gradient + problem.targets)[test] + s.intercept for s in solutions]
            )
        coefs = np.array([solution.coefs for solution in solutions])
        values = np.array([[solution.intercept] for solution in solutions])
        start = 0
        for part in problem.parts:
            stop = start + part.stop - part.start
            values = values + coefs[:, start:stop] @ gram.values[test, part].T
            start = stop
        return values

    def _solve(
        self,
        problem: Problem,
        weights: Array,
        estimator: Estimator,
        C: float,
        start: Solution,
        gap: float | None = None,
        steps: float = _STEPS,
    ) -> Solution:
        """Return the solution for C, from a start within its bounds, up to a gap."""
        coefs, gradient = start.coefs.copy(), start.gradient.copy()
        lower, upper = problem.bounds(C * weights)
        tol = gap or min(
            _GAP * max(1, C * weights.max() / 1e3, problem.scale(weights)), float(estimator.tol)
        )
        epsilon = float(getattr(estimator, "epsilon", 0))
        with _borrowed_solver() as solver:
            reached, intercept, drift = solver.solve(
                problem.gram,
                problem.targets,
                lower,
                upper,
                epsilon,
                coefs,
                gradient,
                tol,
                steps,
                start.drift,
            )
        if gap is None and not reached <= float(estimator.tol):
            intercept = np.nan
        return Solution(coefs, gradient, intercept, C, drift)

    def _solve_path(
        self,
        problem: Problem,
        weights: Array,
        estimators: Sequence[Estimator],
        gap: float | None = None,
    ) -> list[Solution]:
        """Return the solutions of all candidates up to a gap, along a fixed path of C."""
        cached: dict[tuple[float, float], tuple[Solution, bool]] = {}
        diagonal = problem.gram.values.diagonal()[weights > 0]
        first = problem.scale(weights) / (diagonal.mean() or 1.0)
        zero = Solution(np.zeros(len(weights)), -problem.targets, 0.0, first)
        solutions = []
        for estimator in estimators:
            C, solution = float(estimator.C), zero
            epsilon, is_solved = float(getattr(estimator, "epsilon", 0)), False
            for of_path in _make_path(first, C):
                key = epsilon, of_path
                if key not in cached:
                    cached[key] = self._solve_on_path(
                        problem, weights, estimator, of_path, solution, gap
                    )
                solution, is_solved = cached[key]
                if is_solved:
                    break
            if not is_solved:
                start = self._raise_bounds(problem, weights, solution, C)
                solution = self._solve(problem, weights, estimator, C, start, gap)
            solutions.append(solution)
        return solutions

    def _solve_on_path(
        self,
        problem: Problem,
        weights: Array,
        estimator: Estimator,
        C: float,
        start: Solution,
        gap: float | None,
    ) -> tuple[Solution, bool]:
        """Return the solution for a C of the path, and whether it is that of every larger C."""
        start = self._raise_bounds(problem, weights, start, C)
        gap_on_path = _GAP_ON_PATH * problem.scale(weights)
        solution = self._solve(problem, weights, estimator, C, start, gap_on_path)
        if solution.is_bounded(weights):
            return solution, False
        solution = self._solve(problem, weights, estimator, C, solution, gap)
        return solution, not solution.is_bounded(weights)

    def _raise_bounds(
        self, problem: Problem, weights: Array, solution: Solution, C: float
    ) -> Solution:
        """Return a start for a larger C: coefficients at their bounds stay at their bounds."""
        coefs, gradient = solution.coefs.copy(), solution.gradient.copy()
        is_at_bound = np.abs(coefs) >= solution.C * weights
        changes = np.where(is_at_bound, coefs * (C / solution.C - 1), 0)
        with _borrowed_solver() as solver:
            drift = solver.move(problem.gram, changes, coefs, gradient)
        return Solution(coefs, gradient, 0.0, C, solution.drift + drift)

    def _solve_from(
        self,
        problem: Problem,
        weights: Array,
        estimators: Sequence[Estimator],
        starts: list[Solution],
    ) -> list[Solution]:
        """Return the solutions of all candidates with the training rows of a fold.

        Each starts from the solution with all rows, without the coefficients of the test rows.
        """
        cached: dict[tuple[float, float], Solution] = {}
        coefs = np.empty((len(starts), len(weights)))
        for row, start in zip(coefs, starts, strict=True):
            np.clip(start.coefs, *problem.bounds(start.C * weights), out=row)
        solutions = []
        for number, (estimator, start) in enumerate(zip(estimators, starts, strict=True)):
            key = float(getattr(estimator, "epsilon", 0)), start.C
            if key not in cached:
                if start.gradient.size:
                    b, gradient, drift = start.coefs.copy(), start.gradient.copy(), start.drift
                else:
                    b, gradient, drift = np.zeros(len(weights)), -problem.targets, 0.0
                with _borrowed_solver() as solver:
                    drift += solver.move(problem.gram, coefs[number] - b, b, gradient)
                begin = Solution(coefs[number], gradient, 0.0, start.C, drift)
                cached[key] = self._solve(
                    problem, weights, estimator, start.C, begin, steps=_STEPS_OF_FOLD
                )
            solution = cached[key]
            if start.C < estimator.C and solution.is_bounded(weights):
                solution = self._solve(problem, weights, estimator, float(estimator.C), solution)
            solutions.append(solution)
        return solutions

    def _to_outputs(self, decisions: Array, estimator: Estimator) -> Array:
        """Return class codes or decision values of all problems as outputs, in their columns.

        ``decisions`` and the result are of shape (n_estimators, n_test_rows, ...).
        """
        outputs = np.empty((*decisions.shape[:2], self._width))
        is_finite = np.isfinite(decisions).all(axis=2)
        for method, columns in self._columns.items():
            if self._classes is None or (len(self._classes) == 2 and method != "predict"):
                outputs[:, :, columns] = decisions
            elif len(self._classes) == 2:
                outputs[:, :, columns] = decisions >= 0
            else:
                flat = decisions.reshape(-1, decisions.shape[2])
                of_method = self._vote(flat, method, bool(estimator.break_ties))
                outputs[:, :, columns] = of_method.reshape(*decisions.shape[:2], -1)
        outputs[~is_finite] = np.nan
        return outputs

    def _vote(self, decisions: Array, method: str, breaks_ties: bool) -> Array:
        """Return class codes or a decision value per class, from those of pairs of classes."""
        assert self._classes is not None
        n_classes = len(self._classes)
        if method != "predict" or breaks_ties:
            values = _ovr_decision_function(decisions < 0, -decisions, n_classes)
            return values if method != "predict" else values.argmax(axis=1)
        votes = np.zeros((len(decisions), n_classes), np.intp)
        for number, (first, second) in enumerate(combinations(range(n_classes), 2)):
            is_first = decisions[:, number] > 0
            votes[:, first] += is_first
            votes[:, second] += ~is_first
        return votes.argmax(axis=1)
