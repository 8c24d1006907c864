"""Support vector machines: optimality in each fold, leaks, models of LIBSVM, bits and memory."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.svm import SVR

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.kernel_machines import engine
from optuna_treecv.engines.kernel_machines import folds
from optuna_treecv.engines.kernel_machines import problems
from optuna_treecv.engines.kernel_machines import svm
from optuna_treecv.engines.kernel_machines.kernels.gram import Gram
from optuna_treecv.engines.kernel_machines.problems import WeightedProblem

FOLDS = KFold(5, shuffle=True, random_state=0)
KINDS = ("plain", "separable", "duplicated", "rare", "collinear", "weights", "three classes")


def make_problem(kind, seed, n):
    """Return X, y, numeric targets and weights of a random problem."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    if kind == "duplicated":
        X = X[rng.integers(0, n // 4, n)]
    if kind == "collinear":
        X = np.outer(X[:, 0], X[0])
    targets = X[:, 0] + (0 if kind == "separable" else 0.3 * rng.normal(size=n))
    ranks = np.argsort(np.argsort(targets))
    y = ranks >= (n - max(6, n // 20) if kind == "rare" else n // 2)
    if kind == "three classes":
        y = ranks * 3 // n
    weights = rng.exponential(size=n) * (rng.random(n) < 0.8) if kind == "weights" else None
    return X, y.astype(int), targets, weights


def make_estimator(rng, is_regression):
    """Return an estimator with random parameters, after a scaler in a half of the cases."""
    kernel = str(rng.choice(["rbf", "rbf", "linear", "poly"]))
    params = {
        "C": 10 ** rng.uniform(-6, 6),
        "gamma": ["scale", 10 ** rng.uniform(-4, 0 if kernel == "poly" else 3)][rng.integers(2)],
        "kernel": kernel,
        "degree": 2,
        "coef0": 1.0,
    }
    if is_regression:
        last = SVR(epsilon=float(rng.choice([0.0, 0.01, 0.3, 100.0])), **params)
    else:
        last = SVC(class_weight=["balanced", None][rng.integers(2)], **params)
    return last if rng.random() < 0.5 else make_pipeline(StandardScaler(), last)


def compute_gap(problem, weights, estimator, solution):
    """Return the gap, and how far the intercept is outside the interval of the KKT conditions."""
    b, epsilon = solution.coefs, getattr(estimator, "epsilon", 0)
    limits = estimator.C * weights
    is_positive = problem.targets > 0
    lower = -limits if problem.is_regression else np.where(is_positive, 0, -limits)
    upper = limits if problem.is_regression else np.where(is_positive, limits, 0)
    assert np.all((lower <= b + 1e-15 * limits) & (b - 1e-15 * limits <= upper))
    assert abs(b.sum()) <= 1e-9 * np.abs(b).sum()
    is_support = b != 0  # other rows of the Gram matrix may not have been computed
    gradient = b[is_support] @ problem.gram.values[is_support] - problem.targets
    increase = gradient + np.where(b >= 0, epsilon, -epsilon)
    decrease = gradient + np.where(b > 0, epsilon, -epsilon)
    low = increase[b < upper].min()
    high = decrease[b > lower].max()
    outside = max(min(low, high) + solution.intercept, -solution.intercept - max(low, high))
    return high - low, outside


def record_solutions(monkeypatch):
    """Return a list that receives the problem, weights, estimator and solution of each fold."""
    recorded = []
    for name in ("solve_from", "solve_path"):
        method = getattr(WeightedProblem, name)

        def solve(self, estimators, *args, method=method, name=name, **kwargs):
            solutions = method(self, estimators, *args, **kwargs)
            is_inexact = name == "solve_path" and args and args[0] is not None
            if not is_inexact:  # only starts are
                problem = self.problem
                if len(problem.parts) == 2:  # the next pair of classes uses the same memory
                    problem = problem._replace(gram=Gram(problem.gram.values.copy()))
                for pair in zip(estimators, solutions, strict=True):
                    recorded.append((problem, self.weights, *pair))
            return solutions

        monkeypatch.setattr(WeightedProblem, name, solve)
    return recorded


def check_conditions(recorded):
    for problem, weights, estimator, solution in recorded:
        gap, outside = compute_gap(problem, weights, estimator, solution)
        tol = 1e-7 * max(
            1, estimator.C * weights.max() / 1e3, WeightedProblem(problem, weights, None).scale
        )
        largest = problem.gram.diagonal.max()
        tol += 2e-16 * largest * np.abs(solution.coefs).sum()  # of NumPy's gradient
        assert gap <= tol, (estimator, len(weights))
        assert outside <= tol, (estimator, len(weights))


def check_random_problem(recorded, kind, seed, n, n_folds=None):
    rng = np.random.default_rng([seed, n])
    for is_regression in (False, True):
        estimator = make_estimator(rng, is_regression)
        X, y, targets, weights = make_problem(kind, seed, n)
        if n_folds and weights is not None:
            weights += 0.01  # a test row must have a weight
        n_folds = n_folds or int(rng.choice([3, 5]))
        tree_cross_validate(
            estimator,
            X,
            targets if is_regression else y,
            cv=KFold(n_folds, shuffle=True, random_state=seed),
            method="kernel",
            sample_weight=weights,
            scoring="neg_mean_absolute_error" if is_regression else "accuracy",
        )
        assert len(recorded) >= n_folds
        check_conditions(recorded)
        recorded.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_optimality_conditions_hold_in_each_fold(monkeypatch, kind, seed):
    check_random_problem(record_solutions(monkeypatch), kind, seed, n=[20, 60, 150][seed])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_the_optimality_conditions_hold_in_folds_of_few_rows(monkeypatch, kind, seed):
    """A working set and its factor serve several folds."""
    monkeypatch.setattr(svm, "_FEW", 0.2)
    n, n_folds = [(20, 20), (60, 60), (150, 50), (150, 5)][seed]
    check_random_problem(record_solutions(monkeypatch), kind, seed, n, n_folds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "seeds"),
    [
        (60, range(6)),
        (400, range(1)),
        pytest.param(60, range(6, 30), marks=pytest.mark.nightly),
        pytest.param(400, range(1, 4), marks=pytest.mark.nightly),
    ],
)
def test_the_optimality_conditions_hold_in_folds_of_few_of_many_rows(monkeypatch, kind, n, seeds):
    recorded = record_solutions(monkeypatch)
    for seed in seeds:
        check_random_problem(recorded, kind, 200 + seed, n, n_folds=60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "seeds"),
    [
        (40, range(20)),
        (300, range(6)),
        (800, range(2)),
        pytest.param(40, range(20, 60), marks=pytest.mark.nightly),
        pytest.param(300, range(6, 20), marks=pytest.mark.nightly),
        pytest.param(800, range(2, 6), marks=pytest.mark.nightly),
        pytest.param(2000, range(1), marks=pytest.mark.nightly),
    ],
)
def test_the_optimality_conditions_hold_in_each_fold_of_more_rows(monkeypatch, kind, n, seeds):
    recorded = record_solutions(monkeypatch)
    for seed in seeds:
        check_random_problem(recorded, kind, 100 + seed, n)


def test_the_optimality_conditions_hold_for_all_candidates_of_a_search(monkeypatch):
    recorded = record_solutions(monkeypatch)
    X, y, targets, _ = make_problem("plain", 0, 100)
    grid = {"C": [1e-6, 0.1, 1.0, 1e3, 1e6], "gamma": [1e-3, "scale", 30.0]}
    for estimator, labels in ((SVC(), y), (SVR(), targets)):
        search = TreeCVSearchCV(estimator, param_grid=grid, cv=FOLDS, method="kernel", refit=False)
        search.fit(X, labels)
        check_conditions(recorded)
        assert len({(e.C, e.gamma) for *_, e, _ in recorded}) == 15
        recorded.clear()


def test_the_optimality_conditions_hold_if_only_a_fold_needs_a_larger_C(monkeypatch):
    recorded = record_solutions(monkeypatch)
    X, y, _, _ = make_problem("separable", 20, 40)
    estimator = SVC(C=1e6, gamma=0.5, class_weight="balanced")
    cv = KFold(5, shuffle=True, random_state=0)
    tree_cross_validate(estimator, X, y, cv=cv, method="kernel")
    assert len({solution.C for *_, solution in recorded}) > 1
    check_conditions(recorded)


MODELS = [
    SVC(C=3, tol=1e-6),
    SVC(gamma=0.5, class_weight="balanced", tol=1e-6),
    SVC(kernel="poly", coef0=1, degree=2, tol=1e-6),
    SVC(kernel="linear", C=0.1, tol=1e-6),
    make_pipeline(StandardScaler(), SVC(C=10, tol=1e-6)),
    SVR(C=10, tol=1e-6),
    SVR(epsilon=0, tol=1e-6),
    SVR(kernel="linear", epsilon=0.5, tol=1e-6),
    make_pipeline(StandardScaler(), SVR(gamma=0.3, tol=1e-6)),
    KernelRidge(kernel="rbf", alpha=0.1),
    make_pipeline(StandardScaler(), KernelRidge(kernel="rbf", alpha=0.1)),
]
METHODS = {True: ("decision_function", "predict"), False: ("predict",)}


@pytest.mark.parametrize("kind", ["plain", "duplicated", "rare", "three classes", "weights"])
@pytest.mark.parametrize("estimator", MODELS, ids=repr)
def test_decision_values_and_labels_equal_those_of_fits(estimator, kind):
    X, y, targets, weights = make_problem(kind, 5, 90)
    y = np.array(["no", "yes", "maybe"])[y] if is_classifier(estimator) else targets
    step = estimator.steps[-1][0] + "__" if hasattr(estimator, "steps") else ""
    params = {} if weights is None else {f"{step}sample_weight": weights}
    for name in METHODS[is_classifier(estimator)]:
        actual = tree_cross_val_predict(
            estimator, X, y, cv=FOLDS, method="kernel", response_method=name, sample_weight=weights
        )
        expected = cross_val_predict(estimator, X, y, cv=FOLDS, method=name, params=params)
        if y.dtype.kind == "U" and name == "predict":
            assert np.array_equal(actual, expected)
        else:
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scoring", ["roc_auc", "average_precision", "accuracy", "f1"])
def test_scores_equal_those_of_cross_validate(scoring):
    X, y, _, _ = make_problem("plain", 3, 200)
    for estimator in (SVC(), make_pipeline(StandardScaler(), SVC(C=100, gamma=0.3))):
        actual = tree_cross_validate(
            estimator, X, y, cv=FOLDS, method="kernel", scoring=scoring, shuffle=False
        )
        expected = cross_validate(estimator, X, y, cv=FOLDS, scoring=scoring)["test_score"]
        np.testing.assert_allclose(actual.test_score, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shift", [3.0, 1e6])
@pytest.mark.parametrize("kind", ["plain", "three classes"])
@pytest.mark.parametrize("estimator", MODELS, ids=repr)
def test_no_row_reaches_the_model_that_tests_it(estimator, kind, shift):
    """All test rows of a fold are moved but four, and all their labels are changed."""
    X, y, targets, _ = make_problem(kind, 1, 100)
    fold = np.arange(100) % 5
    is_tested = fold == 2
    unmoved, moved = np.split(np.flatnonzero(is_tested), [4])
    y = y if is_classifier(estimator) else targets
    changed_X, changed_y = X.copy(), np.where(is_tested, y.max() - y, y)
    changed_X[moved] += min(shift, 1e4) if "linear" in repr(estimator) else shift
    name = METHODS[is_classifier(estimator)][0]
    options = {"cv": fold, "method": "kernel", "response_method": name}
    before = tree_cross_val_predict(estimator, X, y, **options)
    after = tree_cross_val_predict(estimator, changed_X, changed_y, **options)
    scale = np.abs(before).max()
    np.testing.assert_allclose(after[unmoved], before[unmoved], rtol=0, atol=3e-7 * scale)
    assert np.abs(after - before)[~is_tested].max() > 1e-3 * scale


@pytest.mark.parametrize("estimator", MODELS[:9], ids=repr)
def test_a_row_that_is_left_out_does_not_reach_its_model(estimator):
    X, y, targets, _ = make_problem("plain", 1, 60)
    y = y if is_classifier(estimator) else targets
    name = METHODS[is_classifier(estimator)][0]
    options = {"cv": LeaveOneOut(), "method": "kernel", "response_method": name}
    before = tree_cross_val_predict(estimator, X, y, **options)
    for row in (3, 20, 41):
        changed = y.copy()
        if is_classifier(estimator):
            changed[row] = 1 - y[row]
        else:  # to the other side of the prediction
            changed[row] = before[row] - 2 * np.sign(y[row] - before[row])
        after = tree_cross_val_predict(estimator, X, changed, **options)
        scale = np.abs(before).max()
        np.testing.assert_allclose(after[row], before[row], rtol=0, atol=3e-7 * scale)
        assert np.abs(after - before).max() > 1e-3 * scale


def test_labels_of_test_rows_do_not_reach_their_model_with_a_precomputed_kernel():
    X, y, _, _ = make_problem("plain", 1, 60)
    fold = np.arange(60) % 5
    options = {"cv": fold, "method": "kernel", "response_method": "decision_function"}
    estimator, is_tested = SVC(kernel="precomputed", tol=1e-6), fold == 2
    before, after = (
        tree_cross_val_predict(estimator, rbf_kernel(X), labels, **options)
        for labels in (y, np.where(is_tested, 1 - y, y))
    )
    scale = np.abs(before).max()
    np.testing.assert_allclose(after[is_tested], before[is_tested], rtol=0, atol=3e-7 * scale)
    assert np.abs(after - before)[~is_tested].max() > 1e-3 * scale


@pytest.mark.parametrize("splitter", [TimeSeriesSplit(4), ShuffleSplit(4, random_state=0)])
def test_gram_matrices_of_folds_may_lack_rows(splitter):
    X, y, _, _ = make_problem("three classes", 0, 90)
    estimator = make_pipeline(StandardScaler(), SVC(tol=1e-6))
    options = {"cv": splitter, "scoring": "accuracy"}
    actual = tree_cross_validate(estimator, X, y, method="kernel", shuffle=False, **options)
    expected = cross_validate(estimator, X, y, **options)["test_score"]
    np.testing.assert_array_equal(actual.test_score, expected)


def predict_bits(estimator, X, y, **options):
    name = METHODS[is_classifier(estimator)][0]
    options = {"cv": FOLDS, "method": "kernel", "response_method": name, **options}
    return tree_cross_val_predict(estimator, X, y, **options).tobytes()


@pytest.mark.parametrize("kind", ["plain", "three classes"])
@pytest.mark.parametrize("estimator", MODELS, ids=repr)
def test_bits_do_not_depend_on_threads_and_kept_solvers(monkeypatch, estimator, kind):
    X, y, targets, _ = make_problem(kind, 2, 120)
    y = y if is_classifier(estimator) else targets
    has_few_test_rows = kind == "plain" and not hasattr(estimator, "steps")
    for cv in [FOLDS, *[KFold(60)] * has_few_test_rows]:
        monkeypatch.setattr(problems, "_unused", [])
        expected = predict_bits(estimator, X, y, cv=cv)
        for n in (30, 300):
            other_X, labels, numbers, _ = make_problem(kind, 9, n)
            predict_bits(estimator, other_X, labels if is_classifier(estimator) else numbers)
            assert predict_bits(estimator, X, y, cv=cv) == expected
        assert predict_bits(estimator, X, y, cv=cv, n_jobs=2) == expected


@pytest.mark.parametrize("estimator", [SVC(tol=1e-6), make_pipeline(StandardScaler(), SVR())])
def test_rows_of_gram_matrices_are_computed_before_they_are_read(monkeypatch, estimator):
    X, y, targets, _ = make_problem("plain", 2, 120)
    y = y if is_classifier(estimator) else targets
    expected = predict_bits(estimator, X, y)
    monkeypatch.setattr(folds, "empty_rows", lambda shape, dtype: np.full(shape, np.nan, dtype))
    assert predict_bits(estimator, X, y) == expected


@pytest.mark.parametrize("estimator", [SVC(), SVR(), make_pipeline(StandardScaler(), SVR())])
def test_models_do_not_depend_on_the_other_candidates(monkeypatch, estimator):
    X, y, targets, _ = make_problem("plain", 4, 90)
    y = y if is_classifier(estimator) else targets
    recorded = record_solutions(monkeypatch)
    prefix = "svr__" if hasattr(estimator, "steps") else ""
    other = "gamma" if is_classifier(estimator) else "epsilon"
    values, others, solutions = [1000.0, 0.01, 1.0, 30.0], [0.5, 0.01], {}
    alone = [([C], [x]) for C in values for x in others]
    for grid in ((values, others), (values[::-1], others[::-1]), *alone):
        search = TreeCVSearchCV(
            estimator,
            param_grid={f"{prefix}C": grid[0], f"{prefix}{other}": grid[1]},
            cv=FOLDS,
            method="kernel",
            refit=False,
        )
        search.fit(X, y)
        for problem, weights, candidate, solution in recorded:
            rows = weights.tobytes(), problem.targets.tobytes()
            key = candidate.C, getattr(candidate, other), hash(rows)
            bits = solution.coefs.tobytes(), solution.intercept
            solutions.setdefault(key, set()).add(bits)
        recorded.clear()
    # For each fold, and with all rows if all folds have one Gram matrix.
    assert len(solutions) == 8 * (6 if is_classifier(estimator) else 5)
    assert all(len(of_model) == 1 for of_model in solutions.values())


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_rows_whose_gram_matrix_exceeds_max_memory_are_refitted(n_jobs):
    X, y, _, _ = make_problem("plain", 0, 200)
    n_rows = int(np.sqrt(2**20 / (32 * n_jobs)))
    options = {"cv": FOLDS, "max_memory": 2**20, "n_jobs": n_jobs}
    reason = rf"Gram matrices of at most {n_rows} rows fit in 0\.00105 GB"
    with pytest.raises(ValueError, match=reason):
        tree_cross_validate(SVC(), X, y, method="kernel", **options)
    fewer = tree_cross_validate(SVC(), X[:n_rows], y[:n_rows], method="kernel", **options)
    assert fewer.method == "kernel"
    if n_jobs == 1:
        result = tree_cross_validate(SVC(), X, y, **options)
        assert result.method == "fit" and f"at most {n_rows} rows" in result.reason


def test_kept_solvers_have_at_most_the_maximum_memory(monkeypatch):
    monkeypatch.setattr(problems, "_unused", [])
    monkeypatch.setattr(problems, "_MOST_KEPT", 5_000_000)
    n_bytes = []
    for n in (40, 90, 450, 40):
        X, y, targets, _ = make_problem("plain", 0, n)
        for estimator, labels in ((SVC(C=100), y), (SVR(), targets)):
            tree_cross_validate(estimator, X, labels, cv=FOLDS, method="kernel", n_jobs=2)
            n_bytes.append(sum(solver.n_bytes for solver in problems._unused))
    assert 0 < max(n_bytes) <= 5_000_000


MEMORY = """
import sys

import numpy as np
from sklearn.svm import SVC

from optuna_treecv import tree_cross_validate


def read(name):
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))


rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 20))
y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.5 * rng.normal(size=3000) > 0
options = {"cv": 4, "method": "kernel", "n_jobs": int(sys.argv[1])}
tree_cross_validate(SVC(), X[:50], y[:50], **options)
before = read("VmRSS")
tree_cross_validate(SVC(C=float(sys.argv[2])), X, y, **options)
print((read("VmHWM") - before) / 3000**2)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("n_jobs", "C"), [(1, 1000.0), (2, 1.0)])
def test_the_memory_of_matrices_is_bounded(n_jobs, C):
    command = [sys.executable, "-P", "-c", MEMORY, str(n_jobs), str(C)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert 4 < float(printed) <= engine._BYTES_PER_ENTRY * n_jobs + 3


@pytest.mark.parametrize("rows", ["dense", "sparse"])
def test_the_best_estimator_of_a_search_equals_that_of_grid_search(rows):
    X, y, _, _ = make_problem("plain", 6, 120)
    X = sparse.csr_array(X * (X > 0)) if rows == "sparse" else X
    options = {"param_grid": {"C": [0.1, 3.0, 100.0], "gamma": [0.01, 0.3]}, "cv": FOLDS}
    actual = TreeCVSearchCV(
        SVC(), method="kernel", scoring="roc_auc", shuffle=False, **options
    ).fit(X, y)
    expected = GridSearchCV(SVC(), scoring="roc_auc", **options).fit(X, y)
    assert actual.best_params_ == expected.best_params_
    assert actual.best_score_ == pytest.approx(expected.best_score_, abs=1e-4)
    np.testing.assert_array_equal(actual.predict(X), expected.predict(X))
    np.testing.assert_array_equal(
        actual.decision_function(X), clone(expected.best_estimator_).fit(X, y).decision_function(X)
    )


@pytest.mark.parametrize("estimator", [SVC(tol=1e-6), SVR(tol=1e-6)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_given_kernel_values_are_a_gram_matrix(estimator, dtype):
    X, y, targets, _ = make_problem("three classes", 3, 90)
    y, K = y if is_classifier(estimator) else targets, rbf_kernel(X, gamma=0.3)
    given = clone(estimator).set_params(kernel="precomputed")
    method = "decision_function" if is_classifier(estimator) else "predict"
    options = {"cv": FOLDS, "response_method": method, "method": "kernel"}
    ours = tree_cross_val_predict(given, K.astype(dtype), y, **options)
    expected = cross_val_predict(given, K, y, cv=FOLDS, method=method)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        lambda K: K - 0.5 * np.eye(len(K)),
        lambda K: K + np.triu(np.full(K.shape, 0.1), 1),
        sparse.csr_array,
        lambda K: K[:, :30],
    ],
)
def test_other_kernel_values_are_left_to_fit(change):
    X, y, _, _ = make_problem("plain", 3, 60)
    K = change(rbf_kernel(X, gamma=3.0))
    with pytest.raises(ValueError, match="X must be a dense array that is symmetric"):
        tree_cross_validate(SVC(kernel="precomputed"), K, y, cv=FOLDS, method="kernel")
