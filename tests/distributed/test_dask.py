"""Rows on a cluster of Dask give the numbers of rows in memory, and clear errors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
import logging
import pickle
import re
import time
from typing import Any

import numpy as np
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
import optuna
import pytest
from scipy import sparse
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from optuna_treecv.dask import DaskRows  # noqa: E402

N, D, CHUNK = 640, 6, 220

pytestmark = pytest.mark.filterwarnings("ignore:Sending large graph")


@dataclass
class Both:
    """Rows in memory, and the same on the workers."""

    X: Any
    y: np.ndarray
    rows: Any


def chunked(X: Any, **options: Any) -> Any:
    return da.from_array(X, chunks=(CHUNK, X.shape[1]), **options)


@pytest.fixture(scope="module", autouse=True)
def client():
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    with distributed.Client(
        processes=False, n_workers=3, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client
    logger.setLevel(before)


@pytest.fixture(scope="module")
def data(client) -> dict[str, Both]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * np.arange(1, D + 1) + 1
    S = sparse.random(N, 30, 0.2, format="csr", random_state=0)
    signal = X[:, 0] + rng.normal(size=N)
    targets = {
        "two": (signal > 1).astype(int),
        "three": np.digitize(signal, [0.5, 1.5]),
        "numbers": X @ rng.normal(size=D) / D + rng.normal(size=N),
        "counts": rng.poisson(np.exp(0.2 * X[:, 0])).astype(float),
    }
    kinds = {"float64": X, "float32": X.astype(np.float32), "sparse": S}
    found = {}
    for kind, rows in kinds.items():
        lazy = chunked(rows, asarray=False)
        for target, y in targets.items():
            if kind == "float64" or target in ("two", "numbers"):
                found[f"{kind} {target}"] = Both(rows, y, DaskRows(lazy, y))
    return found


def assert_same(estimator, both, atol=0.0, **options):
    there = tree_cross_validate(estimator, both.rows, **options)
    here = tree_cross_validate(estimator, both.X, both.y, **options)
    assert there.method == here.method
    for name in ("test_score", "std_error", "mean", "row_losses"):
        one, other = getattr(there, name), getattr(here, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert_allclose(one, other, rtol=0, atol=atol)
    assert there.scores.keys() == here.scores.keys()
    for name in there.scores:
        assert_allclose(there.scores[name].test_score, here.scores[name].test_score, 0, atol)
    if atol == 0:
        assert there.n_updates == here.n_updates
    return there


# --- The tree: the same bits ---

OF_CLASSES = {
    "pegasos": PegasosClassifier(),
    "averaged": AveragedSGDClassifier(batch_size=1),
    "batches": AveragedSGDClassifier(batch_size=8),
    "svrg": StreamingSVRGClassifier(),
    "bayes": GaussianNB(),
    "scikit-learn's SGD": SGDClassifier(shuffle=False, max_iter=1),
}
OF_NUMBERS = {
    "averaged regression": AveragedSGDRegressor(),
    "svrg regression": StreamingSVRGRegressor(),
    "least squares": LSQSGDRegressor(),
    "k-means": StreamingKMeans(n_clusters=3),
    "density": StreamingGaussianDensity(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "kind", "cv"),  # each kind of rows with each number of folds
    [
        ("pegasos", "float64", "loo"),
        ("pegasos", "float32", 100),
        ("pegasos", "sparse", 7),
        ("averaged", "float32", 2),
        ("averaged", "sparse", "loo"),
        ("batches", "float64", 100),
        ("batches", "float32", "loo"),
        ("svrg", "float64", 2),
        ("svrg", "sparse", 100),
        ("bayes", "float64", 7),
        ("scikit-learn's SGD", "float32", 7),
        ("scikit-learn's SGD", "sparse", 2),
        ("averaged regression", "float64", 7),
        ("svrg regression", "sparse", 7),
        ("least squares", "float64", 2),
        ("k-means", "float32", 7),
        ("density", "float64", 100),
    ],
)
def test_scores_are_those_of_rows_in_memory(data, learner, kind, cv):
    estimator = OF_CLASSES.get(learner) or OF_NUMBERS[learner]
    both = data[f"{kind} {'two' if learner in OF_CLASSES else 'numbers'}"]
    assert_same(estimator, both, cv=cv, method="treecv")


def error_rate(estimator, X, y):
    return float(np.mean(estimator.predict(X) != y))


WEIGHTS = np.random.default_rng(1).random(N)
GROUPS = np.random.default_rng(2).integers(17, size=N)
OPTIONS: dict[str, dict[str, Any]] = {
    "weights": {"sample_weight": WEIGHTS},
    "weights of scores": {"sample_weight": WEIGHTS, "score_weight": WEIGHTS[::-1]},
    "groups": {"groups": GROUPS},
    "repeats": {"n_repeats": 3, "cv": 5},
    "hold-out": {"method": "holdout"},
    "not shuffled": {"shuffle": False},
    "folds of one's own": {"cv": StratifiedKFold(6, shuffle=True, random_state=3)},
    "several scores": {"scoring": {"a": "accuracy", "hinge": "hinge", "auc": "roc_auc"}},
    "roc_auc": {"scoring": "roc_auc"},
    "pooled": {"scoring": {"all": pooled("roc_auc"), "folds": "error"}},
    "row losses": {"row_losses": True},
    "row losses of repeats": {"row_losses": True, "n_repeats": 2, "scoring": "hinge"},
    "a callable": {"scoring": error_rate, "cv": 120},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scoring=.* mean over rows")
@pytest.mark.parametrize(
    "learner, options",
    [("pegasos", some) for some in OPTIONS]
    + [("balanced", "weights"), ("bayes", "groups"), ("bayes", "a callable")],
)
def test_options_change_nothing(data, learner, options):
    estimator = {
        "pegasos": PegasosClassifier(),
        "balanced": PegasosClassifier(class_weight={0: 2, 1: 0.5}),
        "bayes": GaussianNB(),
    }[learner]
    given = {"cv": 12, "method": "treecv", **OPTIONS[options]}
    assert_same(estimator, data["float64 two"], **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "response"), [("float64 three", "decision_function"), ("sparse two", "predict")]
)
def test_predictions(data, kind, response):
    both, options = data[kind], {"cv": 7, "response_method": response}
    estimator = AveragedSGDClassifier(batch_size=1)
    there = tree_cross_val_predict(estimator, both.rows, **options)
    assert_array_equal(there, tree_cross_val_predict(estimator, both.X, both.y, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cv"),
    [
        (PegasosClassifier(), 2),
        (PegasosClassifier(), 100),
        (AveragedSGDClassifier(batch_size=8), 7),
        (AveragedSGDClassifier(batch_size=8), "loo"),
    ],
)
def test_a_scaler_in_front(data, model, cv):
    assert_same(make_pipeline(StandardScaler(), model), data["float64 two"], 1e-9, cv=cv)


def values_of(both, estimator, grid, is_remote, **options):
    """Return the values of a grid by its points, and the best estimator."""
    given = (both.rows,) if is_remote else (both.X, both.y)
    objective, study = searched(
        estimator, given, grid, study={"pruner": optuna.pruners.NopPruner()}, **options
    )
    points = {tuple(trial.params.values()): trial.value for trial in study.trials}
    return points, objective.best_estimator(study)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("float64 two", {"cv": 10, "report": "folds"}),
        ("float64 two", {"cv": 100, "scoring": "roc_auc", "pooled": True}),
        ("sparse two", {"cv": 10, "scoring": "hinge", "n_repeats": 2}),
        ("sparse two", {"cv": "loo"}),
    ],
)
def test_a_grid_side_by_side(data, kind, options):
    both, grid = data[kind], {"alpha": np.geomspace(1e-6, 1, 20)}
    there, here = (
        values_of(both, PegasosClassifier(), grid, placed, **options) for placed in (True, False)
    )
    assert there[0] == here[0] and len(there[0]) == 20
    assert_array_equal(there[1].coef_, here[1].coef_)
    assert there[1].get_params() == here[1].get_params()


@pytest.mark.slow
def test_a_store_names_the_rows(data, tmp_path):
    both, store = data["float64 two"], f"sqlite:///{tmp_path / 'store.db'}"
    for _ in range(2):
        values = [
            values_of(both, PegasosClassifier(), {"alpha": [1e-3, 1e-2]}, placed, store=store)[0]
            for placed in (True, False)
        ]
        assert values[0] == values[1]


# --- Exact folds and Newton's method: the same numbers ---

EXACT = {
    "ridge": (Ridge(), "numbers", {}),
    "ridge, absolute errors": (Ridge(), "numbers", {"scoring": "neg_mean_absolute_error"}),
    "ridge, weights": (Ridge(), "numbers", {"sample_weight": WEIGHTS}),
    "lasso": (Lasso(0.01), "numbers", {}),
    "ridge classifier": (RidgeClassifier(class_weight={0: 2}), "two", {}),
    "lda": (LinearDiscriminantAnalysis(), "three", {"scoring": "neg_log_loss"}),
    "qda": (QuadraticDiscriminantAnalysis(), "three", {"scoring": "neg_log_loss"}),
}
NEWTON = {
    "two classes": (LogisticRegression(), "two", {"scoring": "neg_log_loss"}),
    "three classes": (LogisticRegression(), "three", {"scoring": "neg_log_loss"}),
    "weights": (LogisticRegression(), "two", {"scoring": "log_loss", "sample_weight": WEIGHTS}),
    "row losses": (LogisticRegression(), "two", {"scoring": "neg_log_loss", "row_losses": True}),
    "svc": (LinearSVC(), "two", {}),
    "svc, three classes": (LinearSVC(), "three", {"method": "newton"}),
    "poisson": (PoissonRegressor(), "counts", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "cv"), zip(EXACT, cycle([2, 50])))
def test_exact_folds(data, case, cv):
    estimator, target, options = EXACT[case]
    found = assert_same(estimator, data[f"float64 {target}"], 1e-10, cv=cv, **options)
    assert found.method == "exact"


@pytest.mark.slow
@pytest.mark.parametrize(("case", "cv"), zip(NEWTON, cycle([20, 2])))
def test_newton(data, case, cv):
    estimator, target, options = NEWTON[case]
    found = assert_same(estimator, data[f"float64 {target}"], 1e-7, cv=cv, **options)
    assert found.method == "newton"


@pytest.mark.slow
def test_small_rows_are_no_reason_for_fits(data):
    found = tree_cross_validate(LinearSVC(), data["float64 three"].rows, cv=5)
    assert found.method == "newton"


@pytest.mark.slow
@pytest.mark.parametrize("model", [LogisticRegression(), Ridge()])
def test_sums_of_a_grid(data, model):
    name, target = ("C", "two") if isinstance(model, LogisticRegression) else ("alpha", "numbers")
    both, grid = data[f"float64 {target}"], {name: np.geomspace(1e-3, 10, 6)}
    objectives = [
        treecv_objective(model, *given, param_grid=grid, cv=7)
        for given in ((both.rows,), (both.X, both.y))
    ]
    values = []
    for objective in objectives:
        study = optuna.create_study(
            sampler=objective.grid_sampler(), direction=objective.direction
        )
        study.optimize(objective)
        values.append([t.value for t in sorted(study.trials, key=lambda t: t.params[name])])
    assert_allclose(*values, rtol=1e-7)


# --- Where rows come from ---


@pytest.mark.slow
@pytest.mark.parametrize("source", ["frame", "parquet", "series", "unknown chunks"])
def test_frames_and_files(data, client, tmp_path, source):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    both = data["float64 three"]
    names = [f"x{number}" for number in range(D)]
    frame = pd.DataFrame(both.X, columns=names)
    y = np.array(["few", "some", "many"])[both.y]
    lazy = dd.from_pandas(frame.assign(label=y), npartitions=4, sort=False)
    if source == "parquet":
        pytest.importorskip("pyarrow")
        lazy.to_parquet(tmp_path / "rows")
        rows = DaskRows(str(tmp_path / "rows"), "label")
    elif source == "series":
        rows = DaskRows(lazy[names], lazy["label"], client=client)
    elif source == "unknown chunks":
        rows = DaskRows(lazy[names].to_dask_array(), y)
    else:
        rows = DaskRows(lazy, "label")
    assert rows.shape == (N, D)
    assert_array_equal(rows.y, y)
    assert_same(PegasosClassifier(), Both(frame, y, rows), cv=7)
    _, best = values_of(Both(frame, y, rows), PegasosClassifier(), {"alpha": [1e-3, 1]}, True)
    if source != "unknown chunks":
        assert list(best.feature_names_in_) == names


@pytest.mark.slow
def test_columns_in_several_chunks_and_empty_parts(data):
    both = data["float64 two"]
    lazy = da.concatenate([chunked(both.X)[:0], da.from_array(both.X, chunks=(99, 2))])
    assert_same(PegasosClassifier(), Both(both.X, both.y, DaskRows(lazy, both.y)), cv=7)


@pytest.mark.slow
def test_more_blocks_than_rows():
    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    lazy = da.from_array(X, chunks=(1, 2))
    assert_same(PegasosClassifier(), Both(X, y, DaskRows(lazy, y)), cv=2)
    assert_same(PegasosClassifier(), Both(X[:2], y[:2], DaskRows(lazy[:2], y[:2])), cv=2)


@pytest.mark.slow
def test_rows_are_shuffled_once_for_an_order(data, client, monkeypatch):
    both = data["float64 two"]
    rows, shuffles = DaskRows(chunked(both.X), both.y), []
    place = DaskRows.place.__globals__["DaskBlocks"]._put
    monkeypatch.setattr(
        "optuna_treecv.dask.DaskBlocks._put",
        lambda self, numbers: (shuffles.append(numbers), place(self, numbers)),
    )
    for alpha in (1e-3, 1e-2):
        tree_cross_validate(PegasosClassifier(alpha=alpha), rows, cv=7)
    assert len(shuffles) == 1
    tree_cross_validate(PegasosClassifier(), rows, cv=7, random_state=1)
    assert len(shuffles) == 2


@pytest.mark.slow
def test_blocks_go_with_the_rows(data, client):
    both = data["float64 two"]
    rows, before = DaskRows(chunked(both.X), both.y), set(client.who_has())
    tree_cross_validate(PegasosClassifier(), rows, cv=7)
    held = {key for key in client.who_has() if key.startswith("_prepared")} - before
    assert held
    del rows
    for _ in range(100):
        if not held & set(client.who_has()):
            return
        time.sleep(0.05)
    raise AssertionError("blocks are kept")


# --- Refusals ---


def refused(call, *arguments, **options):
    """Return the error, which is a line."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 330, text
    return text


def test_no_client(monkeypatch, data):
    both = data["float64 two"]

    def none(*_, **__):
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr(distributed, "get_client", none)
    assert refused(DaskRows, chunked(both.X), both.y).startswith("client must be a distributed.")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda both: (da.from_array(both.y, chunks=9), both.y), "X must have 2 dimensions"),
        (lambda both: (both.X, both.y), "X must be a dask.array.Array, .* got ndarray"),
        (lambda both: (chunked(both.X), both.y[:-1]), "X has 640 rows|inconsistent numbers"),
        (lambda both: (chunked(both.X), "label"), "y must be an array .*, got 'label'"),
        (lambda both: (chunked(both.X)[:0], both.y[:0]), "at least 2 rows"),
        (lambda both: (chunked(both.X)[:, :0], both.y), "at least 1 column"),
        (lambda both: (chunked(both.X + 1j), both.y), "must hold real numbers"),
    ],
)
def test_what_is_no_table(data, make, words):
    both = data["float64 two"]

    def evaluate():
        X, y = make(both)
        tree_cross_validate(PegasosClassifier(), DaskRows(X, y), cv=5)

    assert re.search(words, refused(evaluate))


def test_an_unknown_column_or_path(tmp_path):
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    frame = dd.from_pandas(pd.DataFrame({"a": [1.0, 2, 3], "b": [0, 1, 0]}), npartitions=2)
    assert refused(DaskRows, frame, "c").startswith(
        "y must be the name of a column of X, got 'c'; X has a, b."
    )
    words = frame.assign(a=frame["a"].astype(str) + " m")
    text = refused(tree_cross_validate, PegasosClassifier(), DaskRows(words, "b"), cv=2)
    assert "m" in text and "X" in text
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DaskRows(str(tmp_path / "nowhere"), "b")


REFUSED = {
    "y twice": (PegasosClassifier(), {"y": np.zeros(N)}, "y must be None if X is DaskRows"),
    "any order": (PegasosClassifier(), {"order": "random"}, "order='random'"),
    "epochs": (PegasosClassifier(n_epochs=2), {}, "n_epochs must be 1"),
    "epochs of the call": (PegasosClassifier(), {"n_epochs": 2}, "n_epochs must be 1"),
    "other steps": (make_pipeline(MinMaxScaler(), PegasosClassifier()), {}, "its steps need all"),
    "steps before newton": (make_pipeline(MinMaxScaler(), Ridge()), {}, "its steps need all"),
    "one pass": (PegasosClassifier(), {"method": "progressive"}, "method='progressive'"),
    "all fits": (PegasosClassifier(), {"method": "fit"}, "method='fit'"),
    "standard": (PegasosClassifier(), {"method": "standard"}, "method='standard'"),
    "no partial_fit": (RandomForestClassifier(), {}, "partial_fit"),
    "a loss without slope": (LinearSVC(loss="hinge"), {}, "loss='hinge' is not differentiable"),
    "searched nodes": (HistTreeClassifier(), {}, "in the memory of this process"),
    "a callable across blocks": (
        PegasosClassifier(),
        {"scoring": error_rate, "cv": 2},
        "more folds or fewer workers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(data, case):
    estimator, options, words = REFUSED[case]
    both = data["float64 numbers" if case == "steps before newton" else "float64 two"]
    text = refused(tree_cross_validate, estimator, both.rows, **{"cv": 5, **options})
    assert re.search(words, text), text


def test_early_reports(data):
    both = data["float64 two"]
    text = refused(values_of, both, PegasosClassifier(), {"alpha": [1]}, True, report="blocks")
    assert "report='blocks' tests each row just before training on it" in text


def test_too_many_folds_for_sums():
    X, y = np.arange(2002.0).reshape(1001, 2), np.arange(1001) % 2
    rows = DaskRows(da.from_array(X, chunks=(500, 2)), y)
    text = refused(tree_cross_validate, LogisticRegression(), rows, cv="loo")
    assert "there are more than 1,000 folds" in text


def test_a_scaler_of_sparse_rows(data):
    model = make_pipeline(StandardScaler(with_mean=False), PegasosClassifier())
    text = refused(tree_cross_validate, model, data["sparse two"].rows, cv=5)
    assert "StandardScaler of dense rows" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float64", "sparse"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_late_row_that_is_no_number_is_named(data, kind, value):
    both, row = data[f"{kind} two"], N - 7
    X = both.X.copy()
    X[row, 3] = value
    rows = DaskRows(chunked(X, asarray=False), both.y)
    text = refused(tree_cross_validate, PegasosClassifier(), rows, cv=7)
    assert f"row {row}" in text.lower() and str(value) in text.lower(), text
    here = refused(tree_cross_validate, PegasosClassifier(), X, both.y, cv=7)
    assert text == here


def test_an_error_of_a_learner_is_raised(data):
    estimator = SGDClassifier(max_iter=1, shuffle=False, eta0=-1.0, learning_rate="constant")
    with pytest.raises(ValueError, match="eta0"):
        tree_cross_validate(estimator, data["float64 two"].rows, cv=5, method="treecv")


def test_rows_are_not_pickled(data):
    rows = data["float64 two"].rows
    assert "cannot be pickled because it refers" in refused(pickle.dumps, rows)
    with pytest.raises(TypeError, match="only its first row is in this process"):
        rows[:2]


@pytest.mark.slow
def test_a_scaler_of_a_refit_sees_all_rows_first(data):
    both = data["float64 two"]
    found = []
    for X, y in ((both.X, both.y), (both.rows, None)):
        model = make_pipeline(StandardScaler(), PegasosClassifier())
        search = TreeCVSearchCV(model, {"pegasosclassifier__alpha": [0.1]}, cv=5, random_state=0)
        found.append(search.fit(X, y).best_estimator_[-1].coef_)
    assert_allclose(found[1], found[0], rtol=1e-12)


@pytest.mark.parametrize("kind", ["float32", "columns"])
def test_partitions_that_differ_are_refused(kind):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
    other = frame[["b", "a"]] if kind == "columns" else frame.astype(np.float32)
    parts = [dask.delayed(one) for one in (frame, other)]
    X = dd.from_delayed(parts, meta=frame[:0], verify_meta=False)
    assert "in all partitions" in refused(DaskRows, X, np.arange(80) % 2)


@pytest.mark.parametrize("kind", ["dates", "masked", "column of dates", "single column"])
def test_rows_that_would_be_misread(data, kind):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    both = data["float64 two"]
    frame = pd.DataFrame(both.X, columns=[*"abcdef"])
    X = {
        "dates": lambda: chunked(both.X.astype("datetime64[s]")),
        "masked": lambda: da.ma.masked_greater(chunked(both.X), 1),
        "column of dates": lambda: dd.from_pandas(
            frame.assign(a=pd.Timestamp("2026-01-01")), npartitions=2
        ),
        "single column": lambda: dd.from_pandas(frame, npartitions=2)["a"],
    }[kind]()
    text = refused(tree_cross_validate, PegasosClassifier(), X, both.y, cv=5)
    assert re.match("X must (not be a masked|hold numbers, not dates|have 2 dimensions)", text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csc", "coo"])
def test_sparse_blocks_of_any_format(data, kind):
    both = data["sparse two"]
    X = chunked(both.X, asarray=False).map_blocks(lambda one: one.asformat(kind), meta=both.X[:0])
    assert_same(PegasosClassifier(), Both(both.X, both.y, DaskRows(X, both.y)), cv=5)
