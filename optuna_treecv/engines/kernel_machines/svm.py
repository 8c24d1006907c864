"""Support vector machines (``SVC``, ``SVR``): each fold starts from the solution with all rows."""

from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import compute_class_weight

from optuna_treecv.engines.kernel_machines.folds import compute_kernel
from optuna_treecv.engines.kernel_machines.folds import computes_by_row
from optuna_treecv.engines.kernel_machines.folds import KernelFolds
from optuna_treecv.engines.kernel_machines.folds import Split
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram
from optuna_treecv.engines.kernel_machines.problems import borrowed_solver
from optuna_treecv.engines.kernel_machines.problems import epsilon_of
from optuna_treecv.engines.kernel_machines.problems import Problem
from optuna_treecv.engines.kernel_machines.problems import Solution
from optuna_treecv.engines.kernel_machines.problems import WeightedProblem
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.plans.family import Facts
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features

# Starts for folds with other Gram matrices have at most this violation of the optimality
# conditions, as a share of the scale of the targets.
_GAP_OF_STARTS = 5e-3

# Folds have few test rows if these are at most this share of the rows. For them, a working set and
# its factor are kept from one fold to the next.
_FEW = 0.02

# The maximum size in bytes of the solutions and decision values of several candidates.
_MAX_BYTES = 2**27

# Rounding errors of given kernel values, relative to the largest one.
_ROUNDING = 1e-10


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


def _group(estimators: Sequence[Estimator], starts: list[Solution]) -> list[slice]:
    """Return the ranges of candidates that start from the same solution."""
    keys = [(epsilon_of(e), start.C) for e, start in zip(estimators, starts, strict=True)]
    firsts = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
    return [slice(i, j) for i, j in zip(firsts, [*firsts[1:], len(keys)], strict=True)]


def _decide(problem: Problem, gram: Gram, solutions: list[Solution], test: Array) -> Array:
    """Return the decision values of a problem for test rows, (n_estimators, n_test_rows)."""
    if problem.gram is gram:
        return np.array([(s.gradient + problem.targets)[test] + s.intercept for s in solutions])
    first, second = problem.parts
    coefs, n = np.array([solution.coefs for solution in solutions]), first.stop - first.start
    values = coefs[:, :n] @ gram.values[first].take(test, axis=1)
    values += coefs[:, n:] @ gram.values[second].take(test, axis=1)
    return values + np.array([[solution.intercept] for solution in solutions])


def _decide_pairs(solved: list[tuple[Problem, list[Solution]]], K: Array) -> Array:
    """Return the decision values of all pairs of classes, (n_pairs, n_estimators, n_test_rows).

    Parameters
    ----------
    solved : list of (Problem, list of Solution)
        The solutions of all estimators.
    K : ndarray of shape (n_rows, n_test_rows)
    """
    values = np.empty((len(solved), len(solved[0][1]), K.shape[1]))
    of_class: dict[int, list[tuple[int, Array]]] = {}
    for number, (problem, solutions) in enumerate(solved):
        first, second = problem.parts
        coefs, n = np.array([solution.coefs for solution in solutions]), first.stop - first.start
        of_class.setdefault(first.start, []).append((number, coefs[:, :n]))
        of_class.setdefault(second.start, []).append((number, coefs[:, n:]))
        values[number] = np.array([[solution.intercept] for solution in solutions])
    for start, parts in of_class.items():
        numbers, of_parts = zip(*parts, strict=True)
        stacked = np.concatenate(of_parts)
        products = stacked @ K[start : start + stacked.shape[1]]
        values[list(numbers)] += products.reshape(len(numbers), *values.shape[1:])
    return values


class Starts(NamedTuple):
    """The solutions with all rows.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        The indices of the rows of the Gram matrix in the given X.
    rows_of_problems : list of ndarray
        Those of the rows of each problem.
    weights : list of ndarray
        For each problem, the weights of its rows.
    solutions : list of list of Solution
        For each problem, those of all candidates.
    """

    rows: Array
    rows_of_problems: list[Array]
    weights: list[Array]
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
        starts = Starts(rows, [], [], [])
        for problem in self._make_problems(gram, rows, len(rows)):
            starts.rows_of_problems.append(problem.select(rows))
            starts.weights.append(problem.select(weights))
            with borrowed_solver() as solver:
                weighted = WeightedProblem(problem, starts.weights[-1], solver)
                is_exact = not self.has_gram_per_fold(estimators[0])
                gap = None if is_exact else _GAP_OF_STARTS * weighted.scale
                starts.solutions.append(weighted.solve_path(estimators, gap))
        return starts

    def _make_problems(self, gram: Gram, rows: Array, n_sorted: int) -> Iterator[Problem]:
        """Yield one problem for a regression or two classes, otherwise one per pair of classes.

        The first ``n_sorted`` rows are in the order of the classes. Each problem of a pair of
        classes uses the memory of the one before.
        """
        if self._classes is None:
            targets = np.asarray(self._y[rows], np.float64).reshape(-1)
            yield Problem([slice(None)], gram, targets, is_regression=True)
            return
        codes = self._y[rows]
        if len(self._classes) == 2:
            yield Problem([slice(None)], gram, 2.0 * codes - 1, is_regression=False)
            return
        bounds = np.searchsorted(codes[:n_sorted], np.arange(len(self._classes) + 1))
        parts = [slice(*bounds[code : code + 2]) for code in range(len(self._classes))]
        memory = np.empty(np.sort(np.diff(bounds))[-2:].sum() ** 2)
        for first, second in combinations(parts, 2):
            n = first.stop - first.start
            n_both = n + second.stop - second.start
            K = memory[: n_both**2].reshape(n_both, n_both)
            K[:n, :n], K[:n, n:] = gram.values[first, first], gram.values[first, second]
            K[n:, :n], K[n:, n:] = gram.values[second, first], gram.values[second, second]
            targets = np.repeat([1.0, -1.0], [n, n_both - n])
            yield Problem([first, second], Gram(K), targets, is_regression=False)

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
        has_gram_per_fold = self.has_gram_per_fold(estimators[0])
        n_sorted = len(splits[0][0]) if has_gram_per_fold else len(rows)
        most_tested = max(len(test) for _, test in splits)
        size = max(1, _MAX_BYTES // (8 * n_problems * n_tested + 16 * n_classes * len(rows)))
        outputs = [np.empty((len(estimators), len(test), self._width)) for _, test in splits]
        n_jobs = min(self._n_jobs, len(splits))
        for begin in range(0, len(estimators), size):
            batch = slice(begin, begin + size)
            of_batch = estimators[batch]
            decisions = [np.empty((n_problems, len(of_batch), len(test))) for _, test in splits]
            solved_pairs: list[tuple[Problem, list[Solution]]] = []
            for number, problem in enumerate(self._make_problems(gram, rows, n_sorted)):
                of_problem, weights, groups = [], None, [slice(None)]
                if starts is not None:
                    of_problem = self._map_starts(problem, rows, starts, number, batch)
                    if rows is starts.rows and most_tested <= _FEW * len(rows):
                        weights, groups = starts.weights[number], _group(of_batch, of_problem)
                for group in groups:
                    arguments = rows, of_batch[group], of_problem[group], weights
                    solve = partial(self._solve_split, problem, *arguments)
                    solved = in_order(n_jobs, solve, splits)
                    for out, (_, test), solutions in zip(decisions, splits, solved, strict=True):
                        if problem.gram is not gram and has_gram_per_fold:
                            solved_pairs.append((problem, solutions))
                        else:
                            out[number, group] = _decide(problem, gram, solutions, test)
            if solved_pairs:
                decisions[0] = _decide_pairs(solved_pairs, gram.values[:, n_sorted:])
            for out, values in zip(outputs, decisions, strict=True):
                out[batch] = self._to_outputs(values, getattr(of_batch[0], "break_ties", False))
        yield from outputs

    def _map_starts(
        self, problem: Problem, rows: Array, starts: Starts, number: int, batch: slice
    ) -> list[Solution]:
        """Return the solutions with all rows, for the rows of this Gram matrix."""
        solutions = starts.solutions[number][batch]
        if rows is starts.rows:
            return solutions
        of_problem, no_gradient = starts.rows_of_problems[number], np.empty(0)
        position = np.empty(self._cut.n_rows, np.intp)
        position[of_problem] = np.arange(len(of_problem))
        places = position[problem.select(rows)]
        return [s._replace(coefs=s.coefs[places], gradient=no_gradient) for s in solutions]

    def _solve_split(
        self,
        problem: Problem,
        rows: Array,
        estimators: Sequence[Estimator],
        starts: list[Solution],
        all_weights: Array | None,
        split: Split,
    ) -> list[Solution]:
        """Return the solutions of all candidates with the training rows of a split.

        Parameters
        ----------
        problem : Problem
        rows : ndarray
        estimators : sequence of estimators
        starts : list of Solution
            The solutions with all rows; empty if there are none.
        all_weights : ndarray or None
            The weights of all rows of the problem, if few of them are test rows.
        split : (ndarray, ndarray)
        """
        weights = problem.select(self._weigh(rows, split[0], estimators[0]))
        with borrowed_solver() as solver:
            weighted = WeightedProblem(problem, weights, solver)
            if self._classes is not None and not weighted.has_both_classes:
                raise ValueError(
                    "sample_weight and class_weight must give each class a positive weight in "
                    "each training set, but a class has weight 0 in one of them."
                )
            if not starts:
                solutions = weighted.solve_path(estimators)
            elif all_weights is None:
                solutions = weighted.solve_from(estimators, starts)
            else:
                if not solver.keeps(starts[0].coefs):
                    WeightedProblem(problem, all_weights, solver).keep(estimators[0], starts[0])
                solutions = weighted.solve_from(estimators, starts, uses_kept=True)
        return solutions

    def _to_outputs(self, decisions: Array, breaks_ties: bool) -> Array:
        """Return class codes or decision values of all problems as outputs, in their columns.

        ``decisions`` is of shape (n_problems, n_estimators, n_test_rows), and the result of shape
        (n_estimators, n_test_rows, width).
        """
        outputs = np.empty((*decisions.shape[1:], self._width))
        for method, columns in self._columns.items():
            if self._classes is None or (len(self._classes) == 2 and method != "predict"):
                outputs[:, :, columns] = decisions[0][:, :, None]
            elif len(self._classes) == 2:
                outputs[:, :, columns] = decisions[0][:, :, None] >= 0
            else:
                outputs[:, :, columns] = self._vote(decisions, method, breaks_ties)
        outputs[~np.isfinite(decisions).all(axis=0)] = np.nan
        return outputs

    def _vote(self, decisions: Array, method: str, breaks_ties: bool) -> Array:
        """Return class codes or a decision value per class, from those of pairs of classes.

        The decision value of a class is its number of votes plus a number between -1/3 and 1/3
        that increases with the sum of its decision values, as in scikit-learn.
        """
        assert self._classes is not None
        is_class, n_classes = method == "predict", len(self._classes)
        votes = np.zeros((n_classes, *decisions.shape[1:]))
        sums = np.zeros_like(votes)
        for (first, second), values in zip(
            combinations(range(n_classes), 2), decisions, strict=True
        ):
            is_first = values > 0 if is_class and not breaks_ties else values >= 0
            votes[first] += is_first
            votes[second] += ~is_first
            sums[first] += values
            sums[second] -= values
        if not is_class or breaks_ties:
            votes += sums / (3 * (np.abs(sums) + 1))
        return votes.argmax(axis=0)[:, :, None] if is_class else votes.transpose(1, 2, 0)
