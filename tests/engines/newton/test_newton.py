"""Generalised linear models of all folds are those of scikit-learn's fits that have converged."""

from __future__ import annotations

from typing import Any
import warnings

from converged_fits import converged
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.newton import engine
from optuna_treecv.engines.newton import objective
from optuna_treecv.engines.newton import solver
from optuna_treecv.engines.newton.terms import TrainingSets

# Mean test losses are promised to 1e-6.
PROMISED = 1e-6

N_ROWS = 240


def rows_of(n_classes: int, n_columns: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of different scales, and noisy classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, n_columns))
    scores = X @ rng.normal(size=(n_columns, n_classes))
    y = (scores + 1.5 * rng.gumbel(size=scores.shape)).argmax(axis=1)
    return X * np.geomspace(0.1, 50, n_columns) + 3, y


def assert_as_fits(
    estimator: Any, X: Any, y: np.ndarray, scoring: str = "neg_log_loss", **options: Any
) -> None:
    """Compare scores with those of fits that have converged."""
    options["scoring"] = scoring
    result = tree_cross_validate(estimator, X, y, **options)
    assert result.method == "newton", result.reason
    dense = X.toarray() if sparse.issparse(X) else X
    expected = tree_cross_validate(converged(estimator), dense, y, **options | {"method": "fit"})
    np.testing.assert_allclose(result.test_score, expected.test_score, rtol=0, atol=PROMISED)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        n_classes=[2, 3],
        fit_intercept=[True, False],
        is_scaled=[False, True],
        class_weight=[None, "balanced", {0: 2.0, 1: 0.5}],
        C=[1e-3, 1.0, 1e4],
        is_weighted=[False, True],
    )
)
def test_folds_are_those_of_converged_fits(
    n_classes: int,
    fit_intercept: bool,
    is_scaled: bool,
    class_weight: Any,
    C: float,
    is_weighted: bool,
) -> None:
    X, y = rows_of(n_classes)
    model = LogisticRegression(C=C, fit_intercept=fit_intercept, class_weight=class_weight)
    steps = [StandardScaler(with_mean=fit_intercept)] if is_scaled else []
    weights = np.random.default_rng(0).integers(0, 3, N_ROWS).astype(float)
    options = {"sample_weight": weights} if is_weighted else {}
    folds = KFold(4, shuffle=True, random_state=0)
    assert_as_fits(make_pipeline(*steps, model), X, y, cv=folds, **options)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", [np.array, sparse.csr_array])
def test_probabilities_have_the_type_of_the_rows(kind: Any, n_classes: int) -> None:
    # A row that is far on the wrong side has the largest log loss, -log(eps) of this type.
    X, y = np.random.default_rng(0).normal(size=(N_ROWS, 3)).astype(np.float32), np.zeros(N_ROWS)
    y[(X[:, 0] > 0.5) & (X[:, 1] > -1)], y[X[:, 0] < -0.5] = 1, n_classes - 1
    X[:2] *= -1e3
    model, folds = LogisticRegression(), KFold(4)
    ours = tree_cross_val_predict(model, kind(X), y, cv=folds, response_method="predict_proba")
    options = {"cv": folds, "method": "predict_proba"}
    theirs = cross_val_predict(converged(model), X.astype(float), y, **options)
    assert ours.dtype == cross_val_predict(model, kind(X), y, **options).dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=PROMISED)
    score = tree_cross_validate(model, kind(X), y, cv=folds, scoring="neg_log_loss").test_score
    of_class = theirs[np.arange(N_ROWS), y.astype(int)]
    smallest = np.finfo(np.float32).eps
    assert of_class.min() < smallest
    expected = np.log(of_class.clip(smallest, 1 - smallest)).reshape(4, -1).mean(axis=1)
    np.testing.assert_allclose(score, expected, rtol=0, atol=PROMISED)


@pytest.fixture
def as_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read rows as float32, begin at a sample, save Hessians: as with many rows and columns."""
    monkeypatch.setattr(objective, "_MIN_ROWS_FOR_FLOAT32", 0)
    monkeypatch.setattr(objective, "_FAR_ROWS_PER_COLUMN", 2)
    monkeypatch.setattr(solver, "_MAX_SIZE_FOR_OWN_HESSIANS", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(n_classes=[2, 3], C=[1e-2, 1e4], factor=[7, 1e6], are_many=[False, True])
)
def test_no_row_reaches_the_model_that_tests_it(
    n_classes: int, C: float, factor: float, are_many: bool, request: pytest.FixtureRequest
) -> None:
    if are_many:
        request.getfixturevalue("as_of_many_rows")
    X, y = rows_of(n_classes)
    fold = slice(60, 120)  # the second of four
    kept = slice(60, 90)
    options: dict[str, Any] = {
        "cv": KFold(4),
        "method": "newton",
        "response_method": "decision_function",
    }
    before = tree_cross_val_predict(LogisticRegression(C=C), X, y, **options)[kept]
    y = y.copy()
    y[fold] = (y[fold] + 1) % n_classes
    X = X.copy()
    X[90:120] *= factor
    after = tree_cross_val_predict(LogisticRegression(C=C), X, y, **options)[kept]
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_a_column_of_one_number_in_the_training_rows_has_no_coefficient() -> None:
    # Its gradient is 0 wherever training begins, so that a start at the model of all rows would
    # stay there: the rows of the fold would have a part in their own predictions.
    X, y = rows_of(2)
    X[:, 1] = 0
    X[60:120, 1] = 2 * y[60:120] + np.random.default_rng(0).normal(size=60)
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss"}
    for C in (1.0, 1e6, np.inf):
        model = LogisticRegression(C=C)
        result = tree_cross_validate(model, X, y, **options)
        assert result.method == "newton"
        expected = cross_validate(converged(model), X, y, **options)["test_score"]
        np.testing.assert_allclose(result.test_score[1], expected[1], rtol=0, atol=PROMISED)


@pytest.mark.slow
@pytest.mark.usefixtures("as_of_many_rows")
@pytest.mark.parametrize(
    ("n_classes", "seed"), [(2, 0), (2, 2), (2, 3), (2, 9), (3, 0), (3, 2), (3, 7), (3, 9)]
)
def test_many_rows_have_the_models_of_converged_fits(n_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rows_of(n_classes, seed=seed)
    X = np.hstack([X, X[:, :1], rng.random((N_ROWS, 2)) < 0.05])
    X[:, 1] += 1e3 * (seed % 2)
    models = [LogisticRegression(C=C) for C in (1e-2, 1.0, 1e4, 1e5)]
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss"}
    results = tree_cross_validate_many(models, X, y, **options)
    for model, result in zip(models, results, strict=True):
        assert result.method == "newton" or model.C >= 1e4  # some are left to fits
        if result.method == "fit":
            continue
        expected = cross_validate(converged(model), X, y, **options)["test_score"]
        np.testing.assert_allclose(result.test_score, expected, rtol=0, atol=PROMISED)


def objective_of(kind: str, n_classes: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the models of four folds minimise."""
    X, y = rows_of(n_classes)
    rng, kept = np.random.default_rng(0), []
    weights = rng.choice([0.0, 1.0, 3.0], size=N_ROWS)
    if kind in ("missing", "sparse"):
        X[rng.random(X.shape) < 0.9] = np.nan if kind == "missing" else 0
    X[:, 0] += 1e3 * (kind == "far")
    monkeypatch.setattr(
        engine, "solve", lambda one, *others: kept.append(one) or solver.solve(one, *others)
    )
    model = LogisticRegression(C=1e-2)
    tree_cross_validate(
        make_pipeline(SimpleImputer(), model) if kind == "missing" else model,
        sparse.csr_array(X) if kind == "sparse" else X,
        y,
        cv=KFold(4, shuffle=True, random_state=0),
        sample_weight=weights if kind == "weighted" else None,
    )
    (one,) = kept
    return one


def trained_rows(sets: TrainingSets, number: int) -> np.ndarray:
    parts = []
    for some, is_trained, _ in sets.blocks(N_ROWS):
        rows = np.r_[some]
        parts.append(rows[np.broadcast_to(is_trained[:, number], rows.shape)])
    return np.concatenate(parts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse", "missing", "weighted"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_slopes_of_test_rows_are_means_by_the_weights_of_scores(
    kind: str, n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, rng = objective_of(kind, n_classes, monkeypatch), np.random.default_rng(1)
    models, set_indices = rng.normal(size=(20, one.n_outputs, one.width)), rng.integers(0, 4, 20)
    assert (one.rows.score_weights is not None) == (kind == "weighted")
    _, means = one.gradients(models, set_indices)
    for lane, number in enumerate(set_indices):
        trained = trained_rows(one.sets, number)
        tested = np.setdiff1d(np.arange(N_ROWS), trained)
        of_one = models[[lane]], set_indices[[lane]]
        slopes = one.predictors(one.read(tested), *of_one)
        one.loss.differentiate(slopes, one.targets[tested])
        if kind == "weighted":
            slopes *= one.rows.score_weights[tested, None, None]
            slopes *= len(tested) / one.rows.score_weights[tested].sum()
        expected = one._sum_columns(one.read(tested), slopes, set_indices[[lane]])[0] / len(tested)
        np.testing.assert_allclose(means[lane], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse", "missing", "weighted", "far"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_how_far_models_move_the_rows_that_they_are_trained_on(
    kind: str, n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, rng = objective_of(kind, n_classes, monkeypatch), np.random.default_rng(1)
    set_indices = rng.integers(0, 4, 200)
    moves = rng.normal(size=(200, one.n_outputs, one.width))
    moves *= rng.choice([0, 1], size=moves.shape)
    most = np.zeros(200)
    for lane, number in enumerate(set_indices):
        trained = trained_rows(one.sets, number)
        moved = one.predictors(one.read(trained), moves[[lane]], set_indices[[lane]])
        if one.rows.weights is not None:
            moved = moved[one.rows.weights[trained] > 0]
        most[lane] = np.linalg.norm(moved, axis=2).max(initial=0)
    np.testing.assert_allclose(one.max_predictor_changes(moves, set_indices), most, rtol=1e-12)
    bounds = one.bound_predictor_changes(moves, set_indices)
    assert np.all(bounds >= most * (1 - 1e-12))
    assert kind == "missing" or np.all(bounds <= 100 * most)


@pytest.mark.slow
def test_folds_without_a_minimum_are_fitted() -> None:
    X, y = rows_of(2)
    X[:, 0] = 4 * y - 2  # separates the classes but for the first row
    y[0] = 1 - y[0]
    result = tree_cross_validate(LogisticRegression(C=np.inf), X[:60], y[:60], cv=KFold(3))
    assert result.method == "fit"
    assert result.reason == "Newton's method does not converge in a fold"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (LogisticRegression(dual=True), "dual is True"),
        (LogisticRegression(warm_start=True), "warm_start is True"),
        (
            make_pipeline(StandardScaler(), LogisticRegression(fit_intercept=False)),
            "fit_intercept is False",
        ),
    ],
)
def test_other_models_are_fitted(model: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tree_cross_validate(model, *rows_of(2), cv=4, method="newton")


def test_a_search_of_solvers_is_one_of_fits() -> None:
    space = {"max_iter": IntDistribution(1, 100)}
    objective = treecv_objective(LogisticRegression(), *rows_of(2), param_distributions=space)
    assert "method='fit'" in objective.explain()
    assert "max_iter is searched, which has no effect on converged models" in objective.explain()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("C", [10.0, 1e4, 1e6])
def test_nearly_separable_folds_are_those_of_converged_fits(seed: int, C: float) -> None:
    # Second derivatives vanish on the way to these minima, some of which are so far that they
    # are left to fits.
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, int(rng.choice([1, 3, 6]))))
    y = (X[:, 0] + 0.1 * rng.logistic(size=60) > 0).astype(int)
    y[rng.integers(60)] ^= 1
    model = converged(LogisticRegression(C=C))
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_log_loss"}
    result = tree_cross_validate(model, X, y, **options)
    assert result.method == "newton" or C == 1e6
    expected = cross_validate(model, X, y, **options)["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=0, atol=PROMISED)


@pytest.mark.slow
@pytest.mark.usefixtures("as_of_many_rows")
@pytest.mark.parametrize("seed", [1154, 1184])
@pytest.mark.parametrize("C", [1e6, 1e8])
def test_slopes_that_have_vanished_are_no_sign_of_a_minimum(seed: int, C: float) -> None:
    # A step that goes too far leads to where all rows are told apart, and all slopes are nearly 0.
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(int(rng.choice([60, 240])), 6))
    scores = X @ rng.normal(size=6) * rng.choice([2, 5, 20])
    y = (scores + 0.3 * rng.logistic(size=len(X)) > 0).astype(int)
    model, folds = LogisticRegression(C=C), KFold(4)
    result = tree_cross_validate(model, X, y, cv=folds, scoring="neg_log_loss")
    theirs = converged(model) if result.method == "newton" else model
    expected = cross_validate(theirs, X, y, cv=folds, scoring="neg_log_loss")["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=0, atol=1e-4)  # fits may be off


def test_indicators_of_few_rows_are_those_of_converged_fits() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 12, size=(200, 2)) ** 2 // 12
    X = np.concatenate([np.eye(12)[column] for column in codes.T], axis=1)[:, 1:]
    y = (rng.normal(size=200) + (codes[:, 0] == 3) * 4 > 0.5).astype(int)
    for C in (1.0, 1e3, 1e5):
        assert_as_fits(LogisticRegression(C=C), X, y, cv=KFold(5), method="newton")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "class_weight"),
    [
        (TimeSeriesSplit(4, gap=3), "balanced"),
        (ShuffleSplit(4, test_size=0.3, random_state=0), "balanced"),
        (ShuffleSplit(15, train_size=0.6, random_state=0), None),  # hundreds of kinds of rows
        (PredefinedSplit(np.arange(N_ROWS) % 5 - 1), None),  # some rows train all models
    ],
    ids=["time", "shuffle", "kinds", "predefined"],
)
def test_splits_of_any_kind(cv: Any, class_weight: Any) -> None:
    X, y = rows_of(3)
    X[:, 0] = 0
    X[next(cv.split(X, y))[1], 0] = 1  # constant in a training set
    for scaler in ("passthrough", StandardScaler()):
        model = make_pipeline(scaler, LogisticRegression(class_weight=class_weight))
        assert_as_fits(model, X, y, cv=cv)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_columns", "density", "number"), [(40, 0.05, np.float32), (400, 0.3, np.float64)]
)
def test_sparse_rows_have_the_models_of_dense_ones(
    n_columns: int, density: float, number: type
) -> None:
    rng = np.random.default_rng(0)
    X = sparse.random_array((300, n_columns), density=density, format="csr", random_state=rng)
    X.data += 0.5
    X = X.astype(number)
    y = (X @ rng.normal(size=n_columns) + rng.normal(size=300) > 0).astype(int)
    for C in (0.1, 10.0):
        assert_as_fits(LogisticRegression(C=C), X, y, cv=4, shuffle=False, method="newton")


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_trial_does_not_depend_on_those_before(n_classes: int) -> None:
    # It begins at the model of all rows of a trial that is near.
    X, y = rows_of(n_classes)
    space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    values: list[list[float]] = []
    for points in ([0.9, 1.0, 1.2, 500.0], [500.0, 1.2, 1.0, 0.9]):
        objective = treecv_objective(
            LogisticRegression(), X, y, param_distributions=space, cv=5, scoring="neg_log_loss"
        )
        study = optuna.create_study(direction=objective.direction)
        for C in points:
            study.enqueue_trial({"C": C})
        study.optimize(objective, n_trials=len(points))
        values.append(sorted(trial.value or 0.0 for trial in study.trials))
    np.testing.assert_allclose(*values, rtol=0, atol=PROMISED)


def column(rng: np.random.Generator, n_rows: int) -> np.ndarray:
    """Return a column of one number, of few or many ones, or of numbers far from 1 or from 0."""
    numbers = rng.normal(size=n_rows) * 10.0 ** rng.integers(-3, 4) + rng.choice([0, 0, 100])
    ones = (rng.random(n_rows) < rng.choice([0.02, 0.1, 0.5])).astype(float)
    return rng.choice(np.array([np.ones(n_rows), ones, ones, numbers, numbers]))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_random_tables_have_the_models_of_converged_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_rows, n_classes = int(rng.integers(30, 150)), int(rng.choice([2, 2, 3, 4]))
    X = np.column_stack([column(rng, n_rows) for _ in range(rng.integers(1, 8))])
    X = np.hstack([X, X[:, :1]])  # columns that depend on each other
    scores = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
    scores = scores @ rng.normal(size=(X.shape[1], n_classes))
    y = (scores * rng.choice([0.3, 1, 5]) + rng.gumbel(size=scores.shape)).argmax(axis=1)
    y[:n_classes] = y[-n_classes:] = range(n_classes)
    model = LogisticRegression(
        C=10 ** rng.uniform(-4, 5),
        fit_intercept=bool(rng.random() < 0.8),
        class_weight="balanced" if rng.random() < 0.5 else None,
    )
    steps = [StandardScaler(with_mean=model.fit_intercept)] if rng.random() < 0.4 else []
    weights = (
        rng.choice([0.0, 1.0, 2.0], n_rows, p=[0.1, 0.6, 0.3]) if rng.random() < 0.3 else None
    )
    cv = [
        KFold(4),
        StratifiedKFold(3, shuffle=True, random_state=seed),
        TimeSeriesSplit(3),
        ShuffleSplit(12, random_state=seed),
        PredefinedSplit(rng.integers(-1, 4, n_rows)),
    ][rng.integers(5)]
    for train, test in cv.split(X, y):
        used = train if weights is None else train[weights[train] > 0]
        assume(len(test) and len(np.unique(y[used])) == n_classes)
    rows = sparse.csr_array(X) if not steps and rng.random() < 0.3 else X
    options: dict[str, Any] = {"cv": cv, "scoring": "log_loss", "random_state": 0}
    if weights is not None:
        options |= {"sample_weight": weights}
    ours = tree_cross_validate(make_pipeline(*steps, model), rows, y, **options)
    assume(ours.method == "newton")  # no fold is without a minimum
    theirs = make_pipeline(*steps, converged(model))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = tree_cross_validate(theirs, X, y, method="fit", **options)
    assume(not caught)  # newton-cholesky gives up where a Hessian is nearly singular
    # With columns of 1e3 it leaves 2e-7 of a loss of 5; ours is the same with a smaller tolerance.
    np.testing.assert_allclose(ours.test_score, expected.test_score, rtol=PROMISED, atol=PROMISED)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_model_of_all_rows_whose_steps_go_too_far_is_only_where_folds_begin(seed: int) -> None:
    # Without an intercept, exponentials of columns of 100 leave no minimum in reach of full steps.
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 4)) * [1, 100, 1, 20]
    X[:, 0] = rng.random(60) < 0.05
    y = rng.poisson(np.exp(np.clip(3 * X[:, 2] + 2 * X[:, 0], -9, 7)))
    model = PoissonRegressor(alpha=10.0 ** -(1 + seed), fit_intercept=False)
    options: dict[str, Any] = {"cv": KFold(4), "scoring": "neg_mean_poisson_deviance"}
    result = tree_cross_validate(model, X, y, **options)
    assert result.method == "newton"
    expected = cross_validate(converged(model), X, y, **options)["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=PROMISED, atol=PROMISED)


@pytest.mark.parametrize("model", [LinearSVC(), LinearSVR(loss="squared_epsilon_insensitive")])
def test_dual_problems_of_few_rows_are_refitted(model: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 170)), rng.integers(2, size=400)
    few = tree_cross_validate(model, X, y, cv=KFold(5), scoring="neg_mean_squared_error")
    assert few.method == "fit"
    assert "fewer than 2 training rows for each of 170 coeff" in few.reason
    for columns in (128, 160):
        result = tree_cross_validate(model, X[:, :columns], y, cv=KFold(5))
        assert result.method == "newton"


def test_single_candidates_need_rows_for_each_coefficient() -> None:
    X, y = load_digits(return_X_y=True)
    X, y, model = StandardScaler().fit_transform(X)[:600], y[:600] // 2, LogisticRegression()
    few = tree_cross_validate(model, X, y, cv=5)
    assert (
        few.method == "fit" and "fewer than 30 training rows for each of 320 coeff" in few.reason
    )
    assert tree_cross_validate(model, X[:, :20], y, cv=5).method == "newton"
    assert tree_cross_validate(model, X, y > 1, cv=5).method == "newton"
    tree_cross_validate(model, X[:200], y[:200], cv=2, method="newton")
    search = treecv_objective(model, X, y, param_grid={"C": [0.01, 0.1]})
    assert "method='newton'" in search.explain()
