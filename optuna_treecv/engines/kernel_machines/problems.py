"""The dual problems of support vector machines, for several candidates and for the rows of a fold.

With all rows, each candidate is solved along a fixed path of C: from the smallest value of the
path to the largest one that is at most C / 2. A solution therefore does not depend on other
candidates. In a fold, each candidate starts from its solution with all rows.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from optuna_treecv.engines.kernel_machines.kernels.dual import DualSolver
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator

# Solvers stop at this violation of the optimality conditions, times max(1, C / 1000): for a larger
# C, the rounding errors of the gradient are larger.
_GAP = 5e-8

# The same on the fixed path of C, as a share of the scale of the targets.
_GAP_ON_PATH = 5e-2

# The numbers of SMO steps per variable before the first Newton phase, along the path and in a fold
# whose start is close to its solution.
_STEPS, _STEPS_OF_FOLD = 0.5, 0.1

# The path of C has the scale of the problem times powers of this ratio.
_RATIO = 10.0

# The solvers whose memory is kept for later problems, because new memory is filled with zeros by
# the system; and the maximum of their bytes.
_unused: list[DualSolver] = []
_MOST_KEPT = 2**28


@contextmanager
def borrowed_solver() -> Iterator[DualSolver]:
    """Lend a solver to a thread. It is kept afterwards if unused solvers have little memory."""
    try:
        solver = _unused.pop()
    except IndexError:
        solver = DualSolver()
    yield solver
    if sum(other.n_bytes for other in [*_unused, solver]) <= _MOST_KEPT:
        _unused.append(solver)


class Problem(NamedTuple):
    """The dual problem of two classes, or of a regression.

    Attributes
    ----------
    parts : list of slice
        The rows of the whole Gram matrix that take part.
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


def epsilon_of(estimator: Estimator) -> float:
    """Return the epsilon of ``SVR``; 0 for ``SVC``."""
    return float(getattr(estimator, "epsilon", 0))


def _make_path(first: float, C: float) -> Iterator[float]:
    """Yield the values of the fixed path from ``first`` on that are at most C / 2."""
    while first <= C / 2:
        yield first
        first *= _RATIO


class WeightedProblem:
    """A problem with the training rows of a fold, or with all rows.

    Parameters
    ----------
    problem : Problem
    weights : ndarray of shape (n,)
        0 if a row is no training row.
    solver : DualSolver
    """

    def __init__(self, problem: Problem, weights: Array, solver: DualSolver) -> None:
        self.problem, self.weights, self.solver = problem, weights, solver
        if problem.is_regression:
            self._lower, self._upper = -weights, weights
            self.scale = float(problem.targets[weights > 0].std()) or 1.0
        else:
            signed = weights * problem.targets
            self._lower, self._upper = np.minimum(signed, 0), np.maximum(signed, 0)
            self.scale = 1.0
        self._largest = weights.max()

    @property
    def has_both_classes(self) -> bool:
        """Whether there are training rows of both classes."""
        return bool(self._lower.min() < 0 < self._upper.max())

    def keep(self, estimator: Estimator, solution: Solution) -> None:
        """Let the solver keep the working set and the factor of a solution for several folds."""
        self.solver.keep(
            self.problem.gram,
            solution.C * self._lower,
            solution.C * self._upper,
            epsilon_of(estimator),
            solution.coefs,
            solution.gradient,
        )

    def _solve(
        self,
        estimator: Estimator,
        C: float,
        start: Solution,
        gap: float | None = None,
        steps: float = _STEPS,
        uses_kept: bool = False,
    ) -> Solution:
        """Return the solution for C, from a start within its bounds, up to a gap."""
        coefs, gradient = start.coefs.copy(), start.gradient.copy()
        tol = float(estimator.tol)
        reached, intercept, drift = self.solver.solve(
            self.problem.gram,
            self.problem.targets,
            C * self._lower,
            C * self._upper,
            epsilon_of(estimator),
            coefs,
            gradient,
            gap or min(_GAP * max(1, C * self._largest / 1e3, self.scale), tol),
            steps,
            start.drift,
            uses_kept,
        )
        if gap is None and not reached <= tol:
            intercept = np.nan
        return Solution(coefs, gradient, intercept, C, drift)

    def _is_bounded(self, solution: Solution) -> bool:
        """Return whether a coefficient is at its bound other than 0."""
        weights = self.weights
        return bool(np.any((np.abs(solution.coefs) >= solution.C * weights) & (weights > 0)))

    def solve_path(
        self, estimators: Sequence[Estimator], gap: float | None = None
    ) -> list[Solution]:
        """Return the solutions of all candidates up to a gap, along a fixed path of C."""
        cached: dict[tuple[float, float], tuple[Solution, bool]] = {}
        diagonal = self.problem.gram.diagonal[self.weights > 0]
        first = self.scale / (diagonal.mean() or 1.0)
        zero = Solution(np.zeros(len(self.weights)), -self.problem.targets, 0.0, first)
        solutions = []
        for estimator in estimators:
            C, solution, is_solved = float(estimator.C), zero, False
            for of_path in _make_path(first, C):
                key = epsilon_of(estimator), of_path
                if key not in cached:
                    cached[key] = self._solve_on_path(estimator, of_path, solution, gap)
                solution, is_solved = cached[key]
                if is_solved:
                    break
            if not is_solved:
                solution = self._solve(estimator, C, self._raise_bounds(solution, C), gap)
            solutions.append(solution)
        return solutions

    def _solve_on_path(
        self, estimator: Estimator, C: float, start: Solution, gap: float | None
    ) -> tuple[Solution, bool]:
        """Return the solution for a C of the path, and whether it is that of every larger C."""
        start = self._raise_bounds(start, C)
        solution = self._solve(estimator, C, start, _GAP_ON_PATH * self.scale)
        if self._is_bounded(solution):
            return solution, False
        solution = self._solve(estimator, C, solution, gap)
        return solution, not self._is_bounded(solution)

    def _raise_bounds(self, solution: Solution, C: float) -> Solution:
        """Return a start for a larger C: coefficients at their bounds stay at their bounds."""
        coefs, gradient = solution.coefs.copy(), solution.gradient.copy()
        is_at_bound = np.abs(coefs) >= solution.C * self.weights
        changes = np.where(is_at_bound, coefs * (C / solution.C - 1), 0)
        drift = self.solver.move(self.problem.gram, changes, coefs, gradient)
        return Solution(coefs, gradient, 0.0, C, solution.drift + drift)

    def solve_from(
        self, estimators: Sequence[Estimator], starts: list[Solution], uses_kept: bool = False
    ) -> list[Solution]:
        """Return the solutions of all candidates, from those with all rows.

        Each starts without the coefficients of the test rows.
        """
        cached: dict[tuple[float, float], Solution] = {}
        steps = 0.0 if uses_kept else _STEPS_OF_FOLD
        solutions = []
        for estimator, start in zip(estimators, starts, strict=True):
            key = epsilon_of(estimator), start.C
            if key not in cached:
                begin = self._clip(start)
                cached[key] = self._solve(
                    estimator, start.C, begin, steps=steps, uses_kept=uses_kept
                )
            solution = cached[key]
            if start.C < estimator.C and self._is_bounded(solution):
                solution = self._solve(estimator, float(estimator.C), solution)
            solutions.append(solution)
        return solutions

    def _clip(self, start: Solution) -> Solution:
        """Return a start whose coefficients are within the bounds."""
        C, drift = start.C, start.drift
        coefs = np.minimum(np.maximum(start.coefs, C * self._lower), C * self._upper)
        if start.gradient.size:
            b, gradient = start.coefs.copy(), start.gradient.copy()
        else:
            b, gradient, drift = np.zeros(len(coefs)), -self.problem.targets, 0.0
        drift += self.solver.move(self.problem.gram, coefs - b, b, gradient)
        return Solution(coefs, gradient, 0.0, C, drift)
