"""One search for neighbours answers all settings as scikit-learn's fits do, number for number."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import IntDistribution
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.neighbors import engine
from optuna_treecv.engines.neighbors import search as searches
from optuna_treecv.plans.joint import CachedSums
from optuna_treecv.plans.joint import make_chunks

SIZES = [1, 3, 8]


def table(n: int, d: int, kind: str, seed: int) -> Any:
    """Return rows; many distances of those that are not normal are equal."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return rng.normal(size=(n, d))
    X = rng.integers(0, 3 if d < 5 else 2, (n, d))
    X[0, 0] = 2
    if kind == "sparse":
        return sparse.csr_array(X.astype(float))
    if kind == "tenths":  # products of these are rounded
        return X * 0.1 + 0.7
    return X.astype(kind)


def splitter(kind: str, n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return {
        "folds": KFold(3, shuffle=True, random_state=seed),
        "groups": PredefinedSplit(np.concatenate([[0, 1, 2], rng.integers(-1, 3, n - 3)])),
        "time": TimeSeriesSplit(3),
        "random": ShuffleSplit(3, test_size=0.3, random_state=seed),
        "one": LeaveOneOut(),
    }[kind]


def together(models: list[Any], X: Any, y: Any, cv: Any, method: str) -> Any:
    """Yield for each fold its test rows, and what models that share a search say of them."""
    cross_validation = CrossValidation.of(X, y, Settings(cv=cv, method="neighbors"))
    runs = [run_for(cross_validation, model) for model in models]
    repeat, plan = cross_validation.repeats[0], runs[0].plan
    family = plan.bind(repeat, plan.rows(repeat), [run.estimator for run in runs], method)
    chunks = make_chunks(repeat.cut)
    for folds, outputs in family.test(chunks, CachedSums(), 50):
        for chunk in range(folds.start, folds.stop):
            part = slice(*(chunks.bounds[[chunk, chunk + 1]] - chunks.bounds[folds.start]))
            tested = repeat.cut.tested_from(chunk, chunk + 1)
            responses = [family.response(one[part], method) for one in outputs]
            yield repeat.cut.number(chunk), tested, responses


def same_as_fits(models: list[Any], X: Any, y: Any, cv: Any, is_close: bool = False) -> None:
    """Assert that models which share a search say what their fits say."""
    every = list(cv.split(X, y))
    fits = [[clone(model).fit(X[train], y[train]) for model in models] for train, _ in every]
    for method in ["predict", "predict_proba"] if is_classifier(models[0]) else ["predict"]:
        n_folds = 0
        for number, tested, responses in together(models, X, y, cv, method):
            test = every[number][1]
            places = np.argsort(test)[np.searchsorted(np.sort(test), tested)]
            for fitted, ours in zip(fits[number], responses, strict=True):
                theirs = getattr(fitted, method)(X[test])[places]
                if method == "predict_proba":
                    ours = ours[:, fitted.classes_]
                if is_close and ours.dtype.kind == "f":
                    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
                else:
                    np.testing.assert_array_equal(ours, theirs)
            n_folds += 1
        assert n_folds == len(every)


@st.composite
def cases(draw: Any) -> Any:
    """Draw estimators that differ in their points, rows, targets and a splitter."""
    n, seed = draw(st.integers(12, 60)), draw(st.integers(0, 999))
    kind = draw(st.sampled_from(["int64", "float64", "float32", "tenths", "normal", "sparse"]))
    X = table(n, draw(st.sampled_from([1, 2, 3, 16])), kind, seed)
    rng = np.random.default_rng(seed)
    of = draw(st.sampled_from(["classes", "integers", "numbers", "float32", "columns"]))
    y: np.ndarray = {
        "classes": np.concatenate([[0, 1, 2], rng.integers(0, 3, n - 3)]),
        "integers": rng.integers(0, 4, n),
        "numbers": rng.normal(size=n),
        "float32": rng.normal(size=n).astype(np.float32),
        "columns": rng.normal(size=(n, 2)),
    }[of]
    many = ["folds", "groups", "time", "random"]
    cv = splitter(draw(st.sampled_from([*many, "one"] if n < 25 else many)), n, seed)
    metric = {"metric": "minkowski", "p": draw(st.sampled_from([1, 2, 2, 3]))}
    if kind == "sparse":
        metric["p"] = min(metric["p"], 2)
    else:
        metric |= draw(st.sampled_from([{}, {}, {"metric": "canberra"}, {"metric": "cosine"}]))
        metric["algorithm"] = draw(st.sampled_from(["auto", "auto", "brute", "kd_tree"]))
    if metric["metric"] != "minkowski":
        metric["algorithm"] = "auto"
    model = KNeighborsClassifier if of == "classes" else KNeighborsRegressor
    fewest = min(len(train) for train, _ in cv.split(X, y))
    sizes = [k for k in SIZES if k <= fewest]
    models = [model(k, weights=w, **metric) for k in sizes for w in ("uniform", "distance")]
    if kind != "sparse" and draw(st.sampled_from([False, False, True])):
        models = [make_pipeline(StandardScaler(), one) for one in models]
    return models, X, y, cv


def test_equal_distances_of_sparse_rows_are_chosen_among_as_in_fits():
    """scikit-learn chooses others if a test row is searched for without its neighbours."""
    X = np.zeros((12, 1))
    X[[2, 3, 6, 8, 9, 11], 0] = -0.71, -0.16, -1.28, 0.62, -1.07, 0.87
    y = np.array([0, 1, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0])
    models = [KNeighborsClassifier(k, p=1) for k in (1, 3, 8)]
    same_as_fits(models, sparse.csr_array(X), y, KFold(4, shuffle=True, random_state=0))


@pytest.mark.slow
@settings(max_examples=45, deadline=None)
@given(cases())
def test_all_settings_are_those_of_fits(case: Any) -> None:
    models, X, y, cv = case
    # The products of a single row are rounded in another way than those of many.
    same_as_fits(models, X, y, cv, is_close=isinstance(cv, LeaveOneOut))


@pytest.mark.slow
def test_a_part_of_many_test_rows_is_searched_for_as_all_of_them() -> None:
    X, y = table(6000, 16, "normal", 0), table(6000, 1, "normal", 1)[:, 0]
    X[0], X[3000] = X[2], X[3001]  # equal distances in the training sets of both folds
    models = [KNeighborsRegressor(k, weights="distance") for k in (2, 3, 5, 9, 14)]
    same_as_fits(models, X, y, KFold(2))


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(n=[1, 255, 700], kind=["normal", "float64"], n_threads=[1, 3]))
def test_lists_have_the_distances_of_scikit_learn(
    n: int, kind: str, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "_openmp_effective_n_threads", lambda: n_threads)
    X, Y = table(n, 17, kind, 0), table(901, 17, kind, 1)
    for size in (1, 2, 31, 64):
        model = KNeighborsRegressor(algorithm="brute").fit(Y, Y[:, 0])
        distances, numbers = searches.nearest_in_any_order(model, X, size)
        np.testing.assert_array_equal(distances, model.kneighbors(X, size)[0])
        exact = np.sqrt(np.square(X[:, None] - Y[numbers]).sum(axis=2))
        np.testing.assert_allclose(distances, exact, atol=1e-6)
        assert all(len(set(of_row)) == size for of_row in numbers.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("last", [200, 300])
def test_few_equal_distances_take_no_search_for_all_test_rows(
    monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Row 300 is behind all tiles of its fold: on some machines, its distances round otherwise."""
    X, y = table(901, 16, "normal", 0), table(901, 1, "normal", 1)[:, 0]
    for row in (3, 4, 9, last):
        X[500 + row], X[row + 501] = X[row], X[row]
    numbers, search = [], searches.nearest_by_model

    def counting(model: Any, rows: Any, size: int) -> Any:
        numbers.append(len(rows))
        return search(model, rows, size)

    for module in (engine, searches):
        monkeypatch.setattr(module, "nearest_by_model", counting)
    models = [KNeighborsRegressor(k) for k in (1, 2, 4)]
    same_as_fits(models, X, y, KFold(3))
    assert numbers == [] or (last == 300 and numbers == [301] * 3)


@pytest.mark.parametrize("rounded", [(5,), (1, 2, 4)])  # the first search is for 5
def test_a_search_that_rounds_in_another_way_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, rounded: tuple[int, ...]
) -> None:
    X, y = table(300, 16, "normal", 0), table(300, 1, "normal", 1)[:, 0]
    for row in (3, 4, 9):
        X[150 + row], X[row + 151] = X[row], X[row]
    subset_search = engine.subset_search

    def other(*args: Any) -> Any:
        search = subset_search(*args)
        assert search is not None

        def rounding(part: Any, size: int) -> Any:
            distances, indices = search(part, size)
            distances = np.nextafter(distances, 9) if size in rounded else distances
            return distances, np.zeros_like(indices)

        return rounding

    monkeypatch.setattr(engine, "subset_search", other)
    models = [KNeighborsRegressor(k) for k in (1, 2, 4)]
    same_as_fits(models, X, y, KFold(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("int64", KNeighborsClassifier),
        ("normal", KNeighborsRegressor),
        ("tenths", KNeighborsRegressor),
    ],
)
def test_rows_that_are_left_out_one_by_one(kind: str, model: Any) -> None:
    for d in (2, 16):  # a tree, and products of matrices
        X = table(24, d, kind, 0)
        X[20:] = X[5]  # more rows that are equal than some settings have neighbours
        y = np.arange(24) % 3 if model is KNeighborsClassifier else table(24, 1, "normal", 1)[:, 0]
        models = [model(k, weights=w) for k in (3, 8) for w in ("uniform", "distance")]
        same_as_fits(models, X, y, LeaveOneOut(), is_close=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"score_weight": np.arange(60) % 5}, {"n_repeats": 2}])
def test_options_of_scores_act_as_for_fits(options: Any) -> None:
    """The step before the search is fitted per fold."""
    X, y = table(60, 3, "int64", 0), np.where(np.arange(60) % 3, "yes", "no")
    models = [make_pipeline(PCA(2), KNeighborsClassifier(k)) for k in (4, 7)]
    ours, fits = (
        tree_cross_validate_many(models, X, y, cv=4, method=method, **options)
        for method in ("auto", "fit")
    )
    for result, expected in zip(ours, fits, strict=True):
        assert result.method == "neighbors"
        assert result.mean == pytest.approx(expected.mean, rel=1e-14)
        np.testing.assert_allclose(result.test_score, expected.test_score, rtol=1e-14)


def count_searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the chunk of each search of a fold."""
    chunks: list[int] = []
    search = engine.NeighborFolds._search_chunk

    def counting(self: Any, chunk: int) -> Any:
        chunks.append(chunk)
        return search(self, chunk)

    monkeypatch.setattr(engine.NeighborFolds, "_search_chunk", counting)
    return chunks


def assert_values_are_those_of_fits(study: optuna.Study, X: Any, y: Any, cv: Any) -> None:
    for trial in study.trials:
        model = KNeighborsClassifier(**trial.params)
        assert trial.value == cross_val_score(model, X, y, cv=cv).mean()


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [2**27, 1])
def test_trials_share_the_searches_of_the_largest_size(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    X, y = table(90, 20, "int64", 0), np.arange(90) % 3
    chunks = count_searches(monkeypatch)
    monkeypatch.setattr(engine, "_MAX_BYTES", most_bytes)
    space = {
        "n_neighbors": IntDistribution(1, 20),
        "weights": CategoricalDistribution(["uniform", "distance"]),
    }
    objective = treecv_objective(
        KNeighborsClassifier(), X, y, param_distributions=space, cv=KFold(4), scoring="accuracy"
    )
    assert "method='neighbors'" in objective.explain()
    assert "n_neighbors and weights" in objective.explain()
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=6)
    assert len(chunks) == 4 if most_bytes > 1 else len(chunks) > 4
    assert_values_are_those_of_fits(study, X, y, KFold(4))


def test_trials_of_a_callable_search_for_more_neighbours_than_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their number of neighbours is not known ahead: the first searches are for 31, then 63."""
    X, y = table(90, 2, "int64", 0), np.arange(90) % 3

    def model(trial: optuna.Trial) -> Any:
        return KNeighborsClassifier(trial.suggest_int("n_neighbors", 1, 40))

    objective = treecv_objective(model, X, y, cv=KFold(3), scoring="accuracy")
    chunks = count_searches(monkeypatch)
    study = optuna.create_study(direction="maximize")
    for k in (3, 12, 40, 5, 30):
        study.enqueue_trial({"n_neighbors": k})
    study.optimize(objective, n_trials=5)
    assert len(chunks) == 6
    assert_values_are_those_of_fits(study, X, y, KFold(3))


def test_more_neighbours_than_training_rows_are_errors_of_fits() -> None:
    X, y = table(60, 2, "normal", 0), np.arange(60) % 3
    with pytest.raises(ValueError, match="n_neighbors"):
        tree_cross_validate(KNeighborsClassifier(41), X, y, cv=KFold(3))
    options: dict[str, Any] = {"cv": KFold(3), "refit": False, "error_score": np.nan}
    model, grid = KNeighborsClassifier(), {"n_neighbors": [5, 41]}
    search = TreeCVSearchCV(model, grid, n_trials=2, **options).fit(X, y)
    theirs = GridSearchCV(model, grid, **options).fit(X, y)
    ours, expected = (
        {
            str(params): score
            for params, score in zip(found["params"], found["mean_test_score"], strict=True)
        }
        for found in (search.cv_results_, theirs.cv_results_)
    )
    np.testing.assert_equal(ours, expected)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (KNeighborsClassifier(weights=np.square), "weights is a function"),
        (KNeighborsClassifier(metric="precomputed"), "X holds distances"),
        (KNeighborsClassifier(p=np.inf), "p is infinite"),
        (PCA(2), "PCA does not search for nearest neighbours"),
    ],
)
def test_others_are_refused_with_a_reason(model: Any, why: str) -> None:
    X = np.abs(table(30, 30, "normal", 0))
    with pytest.raises(ValueError, match=f"method='neighbors' cannot .*{why}"):
        tree_cross_validate(model, X + X.T, np.arange(30) % 2, cv=KFold(3), method="neighbors")
