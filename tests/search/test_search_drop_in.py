"""What scripts of ``GridSearchCV`` do, with ``TreeCVSearchCV`` in its place."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
import re

from joblib import parallel_config
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
import pytest
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.datasets import make_multilabel_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import RepeatedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import TreeCVSearchCV

X, Y = make_classification(90, 6, random_state=0)


def beside(estimator, grid, X=X, y=Y, rtol=1e-12, **options):
    """Return ``GridSearchCV`` and ``TreeCVSearchCV``, fitted, after a comparison of both."""
    theirs = GridSearchCV(estimator, grid, **options).fit(X, y)
    ours = TreeCVSearchCV(
        estimator, param_grid=grid, shuffle=False, **({"cv": None} | options)
    ).fit(X, y)
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"] or not _are_plain(grid)
    for name, column in theirs.cv_results_.items():
        if "time" in name or name == "params":
            continue
        found = ours.cv_results_[name]
        if name.startswith("param_"):
            assert found.dtype == column.dtype
            assert found.mask.tolist() == column.mask.tolist()
            assert list(map(repr, found)) == list(map(repr, column))
        else:
            np.testing.assert_allclose(found, column, rtol=rtol)
    assert ours.best_index_ == theirs.best_index_
    return theirs, ours


def _are_plain(grid):
    dicts = [grid] if isinstance(grid, dict) else grid
    return not any(hasattr(v, "fit") for one in dicts for values in one.values() for v in values)


# --- Errors ---


def _fails(y, predicted):
    raise ValueError("no score")


def _fails_in_some_folds(model, X, y):
    if X[0, 0] > 0:
        raise RuntimeError("no score of this fold")
    return 0.5


@pytest.mark.parametrize("error_score", [np.nan, 0.25])
def test_failing_fits_of_a_repeated_splitter(error_score):
    cv = RepeatedKFold(n_splits=3, n_repeats=2, random_state=0)
    with pytest.warns(FitFailedWarning, match="6 fits failed out of a total of 12"):
        beside(SVC(), {"C": [1.0, -1.0]}, cv=cv, error_score=error_score)


# The first fold of ``KFold(3)`` has a single class.
ONE_CLASS = np.concatenate([np.zeros(30, int), Y[:60]])
SCORERS = {"a": "accuracy", "b": make_scorer(_fails), "c": _fails_in_some_folds}


TWO = {"C": [1.0, 2.0]}
FAILING = {
    "fits": (SVC(), TWO, Y, {"scoring": SCORERS, "refit": "a"}),
    "optimised": (SVC(), TWO, Y, {"scoring": SCORERS, "refit": "c"}),
    "train": (SVC(), TWO, Y, {"scoring": SCORERS, "refit": "a", "return_train_score": True}),
    "single": (SVC(), TWO, Y, {"scoring": make_scorer(_fails)}),
    "newton": (
        LogisticRegression(tol=1e-12, max_iter=1000),
        TWO,
        ONE_CLASS,
        {"scoring": ["accuracy", "neg_log_loss", "roc_auc"], "refit": "accuracy"},
    ),
    "neighbors": (
        KNeighborsClassifier(),
        {"n_neighbors": [2, 5]},
        ONE_CLASS,
        {"scoring": ["neg_log_loss", "accuracy"], "refit": "neg_log_loss"},
    ),
    "forest": (
        RandomForestClassifier(random_state=0),
        {"n_estimators": [2, 3]},
        ONE_CLASS,
        {"scoring": {"b": make_scorer(_fails), "a": "accuracy"}, "refit": "a"},
    ),
    "label": (
        SVC(),
        TWO,
        np.array(["no", "yes"])[Y],
        {"scoring": ["accuracy", "f1"], "refit": "accuracy"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error_score"), zip(FAILING, [np.nan, 0.25] * 4, strict=True))
def test_scorers_that_fail(name, error_score):
    """The other scores are known, and ``error_score`` stands for those of the failing scorer."""
    estimator, grid, y, options = FAILING[name]
    options = {"cv": KFold(3), "error_score": error_score} | options
    with pytest.warns(UserWarning, match=f"Scoring failed. .* set to {error_score}. Details"):
        beside(estimator, grid, y=y, rtol=1e-7, **options)
    with pytest.raises((ValueError, RuntimeError)):
        TreeCVSearchCV(estimator, param_grid=grid, **options | {"error_score": "raise"}).fit(X, y)


def test_a_pooled_score_that_fails():
    scoring = {"a": "accuracy", "p": pooled(make_scorer(_fails))}
    options = {"scoring": scoring, "refit": "a", "cv": 3, "error_score": np.nan}
    with pytest.warns(UserWarning, match="Scoring failed"):
        search = TreeCVSearchCV(SVC(), param_grid={"C": [1.0, 2.0]}, **options).fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_p"]).all()
    assert np.isfinite(search.cv_results_["mean_test_a"]).all() and search.best_score_ > 0.5


@pytest.mark.slow
def test_scorers_that_fail_beside_trained_models(tmp_path):
    """Models are trained along the tree; no store keeps scores that have failed."""
    options = {"param_grid": {"alpha": [0.1, 0.2]}, "cv": KFold(3), "random_state": 0}
    options |= {"refit": "a", "store": f"sqlite:///{tmp_path}/store.db"}
    expected = TreeCVSearchCV(PegasosClassifier(), **options, scoring={"a": "accuracy"}).fit(X, Y)
    scoring = {"a": "accuracy", "l": "neg_median_absolute_error", "b": make_scorer(_fails)}
    for _ in range(2):
        search = TreeCVSearchCV(PegasosClassifier(), **options, scoring=scoring, error_score=0.25)
        found = search.fit(X, Y).cv_results_
        assert [trial.state.name for trial in search.study_.trials] == 2 * ["COMPLETE"]
        name = "mean_test_a"
        assert found[name].tolist() == expected.cv_results_[name].tolist()
        assert found["split1_test_b"].tolist() == found["mean_test_b"].tolist() == [0.25, 0.25]
        assert found["std_test_b"].tolist() == [0, 0] and np.isfinite(found["mean_test_l"]).all()


# --- Grids ---


@pytest.mark.slow
@pytest.mark.parametrize("model", [SVC(), "passthrough"])
def test_points_that_swap_a_step_and_set_its_parameters(model):
    pipeline = Pipeline([("scale", StandardScaler()), ("c", model)])
    grid = [
        {"c": [SVC()], "c__gamma": [0.01, 0.1]},
        {"c": [LogisticRegression()], "c__C": [0.1, 1], "scale": [MinMaxScaler(), "passthrough"]},
        {"c": [KNeighborsClassifier()], "scale": [StandardScaler()], "scale__with_mean": [False]},
    ]
    cv = KFold(3)
    theirs, ours = beside(pipeline, grid, cv=cv, scoring="accuracy")
    assert repr(ours.best_estimator_) == repr(theirs.best_estimator_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_unknown_names_beside_a_swapped_step_are_refused():
    pipeline = Pipeline([("c", SVC())])
    for grid in ({"c": [SVC()], "c__alpha": [1]}, {"c": [SVC(), Ridge()], "c__gamma": [1]}):
        with pytest.raises(ValueError, match="^param_grid: Pipeline has no parameter 'c__"):
            TreeCVSearchCV(pipeline, param_grid=grid).fit(X, Y)


def test_a_distribution_beside_a_swapped_step():
    pipeline = Pipeline([("c", None)])
    space = {
        "c": [LogisticRegression(), SVC(kernel="linear")],
        "c__C": FloatDistribution(0.01, 1, log=True),
    }
    search = TreeCVSearchCV(pipeline, space, cv=3, n_iter=4, scoring="accuracy", random_state=0)
    search.fit(X, Y)
    assert search.best_estimator_[-1].C == search.best_params_["c__C"]


def conditional(trial):
    """Suggest a model, and what it alone has."""
    if trial.suggest_categorical("family", ["svc", "tree"]) == "svc":
        return {"c": SVC(kernel="linear"), "c__C": trial.suggest_float("C", 0.01, 1, log=True)}
    tree = DecisionTreeClassifier(random_state=0)
    return {"c": tree, "c__max_depth": trial.suggest_int("max_depth", 1, 3)}


@pytest.mark.slow
def test_a_function_suggests_parameters():
    pipeline = Pipeline([("scale", StandardScaler()), ("c", SVC())])
    folds = KFold(3)
    options = {"cv": folds, "n_iter": 8, "random_state": 0}
    search = TreeCVSearchCV(pipeline, conditional, **options).fit(X, Y)
    results = search.cv_results_
    families = {type(params["c"]).__name__ for params in results["params"]}
    assert families == {"SVC", "DecisionTreeClassifier"} and len(results["params"]) == 8
    for params, mean in zip(results["params"], results["mean_test_score"], strict=True):
        alone = cross_val_score(clone(pipeline).set_params(**params), X, Y, cv=folds)
        assert mean == pytest.approx(alone.mean())
    assert search.score(X, Y) == search.best_estimator_.score(X, Y) > 0.8
    chosen = TreeCVSearchCV(
        pipeline,
        conditional,
        refit="one_se",
        simpler=lambda params: params.get("c__max_depth", 9),
        **options,
    ).fit(X, Y)
    assert chosen.best_score_ <= search.best_score_
    study = optuna.create_study(direction="maximize")
    for n_trials in (2, 4):
        TreeCVSearchCV(pipeline, conditional, n_trials=2, study=study, random_state=0).fit(X, Y)
        assert len(study.trials) == n_trials
    with pytest.raises(ValueError, match="^the callable param_distributions must return a dict"):
        TreeCVSearchCV(pipeline, lambda trial: 3, cv=3).fit(X, Y)
    with pytest.raises(ValueError, match="^simpler must be given .* that a callable suggests"):
        TreeCVSearchCV(pipeline, conditional, refit="one_se").fit(X, Y)


@pytest.mark.slow
def test_a_search_over_a_function_is_found_again_in_a_storage(tmp_path):
    pipeline = Pipeline([("scale", StandardScaler()), ("c", SVC())])
    options = {"storage": f"sqlite:///{tmp_path}/studies.db", "random_state": 0, "cv": 3}

    def search(suggest, n_trials, estimator=pipeline):
        found = TreeCVSearchCV(estimator, suggest, n_trials=n_trials, **options).fit(X, Y)
        return found.study_.study_name, len(found.study_.trials), found.cv_results_["params"]

    name, n_trials, _ = search(conditional, 3)
    assert n_trials == 3
    assert search(conditional, 5)[:2] == (name, 5)
    assert search(conditional, 5)[:2] == (name, 5)
    # Another function, and the same code with another value behind it, are other searches.
    names = {name}
    for largest in (0.5, 0.7):

        def suggest(trial, largest=largest):
            return {"c__C": trial.suggest_float("C", 0.1, largest)}

        found, n_trials, params = search(suggest, 2)
        assert n_trials == 2 and all(0.1 <= one["c__C"] <= largest for one in params)
        names.add(found)
    assert len(names) == 3

    class Own(SVC):
        pass

    def by_c(trial):
        return {"C": trial.suggest_float("C", 0.1, 1)}

    for _ in range(2):
        with pytest.warns(UserWarning, match="^a later search cannot continue the study"):
            found, n_trials, _ = search(by_c, 2, Own())
        assert n_trials == 2 and found not in names
        names.add(found)


def test_an_empty_grid_is_the_estimator_as_given():
    beside(SVC(), {})
    theirs, _ = beside(SVC(), [{}, {"C": [0.1]}])
    assert theirs.cv_results_["params"] == [{}, {"C": 0.1}]


@pytest.mark.slow
def test_a_grid_of_swapped_steps_in_a_storage(tmp_path):
    """A parameter that is not set is a text in a database, and no value of the estimator."""
    pipeline = Pipeline([("c", SVC())])
    grid = [{"c": [SVC()], "c__gamma": [0.1]}, {"c": [LogisticRegression()], "c__C": [1.0]}]
    options = {"storage": f"sqlite:///{tmp_path}/studies.db", "random_state": 0, "cv": 3}
    first = TreeCVSearchCV(pipeline, param_grid=grid, **options).fit(X, Y)
    again = TreeCVSearchCV(pipeline, param_grid=grid, **options).fit(X, Y)
    assert len(again.study_.trials) == 2
    assert again.best_params_.keys() == first.best_params_.keys()
    means = again.cv_results_["mean_test_score"]
    assert means.tolist() == first.cv_results_["mean_test_score"].tolist()


# --- Scores ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scoring", "n_jobs"), [(None, 1), ("roc_auc", 2), (["accuracy", "f1"], 2)]
)
def test_train_scores(scoring, n_jobs):
    options = {"refit": "f1"} if isinstance(scoring, list) else {}
    grid = {"max_depth": [1, 3]}
    tree = DecisionTreeClassifier(random_state=0)
    with parallel_config("threading"):
        beside(tree, grid, scoring=scoring, return_train_score=True, n_jobs=n_jobs, **options)


def test_train_scores_where_models_are_not_fitted():
    """Exact folds are fitted instead, with the same scores; the tree refuses."""
    grid = {"alpha": [0.1, 1.0]}
    _, ours = beside(Ridge(), grid, return_train_score=True)
    assert ours.study_.best_trial.number == ours.best_index_
    search = TreeCVSearchCV(Ridge(), param_grid=grid, return_train_score=True, method="exact")
    with pytest.raises(ValueError, match="^return_train_score must be False unless method is"):
        search.fit(X, Y)
    own = TreeCVSearchCV(PegasosClassifier(), param_grid=grid, cv=3, return_train_score=True)
    means = own.fit(X, Y).cv_results_["mean_train_score"]
    assert np.all((means > 0.5) & (means <= 1))


def test_losses_of_training_rows_are_negated():
    search = TreeCVSearchCV(
        LogisticRegression(),
        param_grid={"C": [0.1, 1.0]},
        cv=KFold(3),
        scoring="log_loss",
        return_train_score=True,
    ).fit(X, Y)
    theirs = GridSearchCV(
        LogisticRegression(),
        {"C": [0.1, 1.0]},
        cv=KFold(3),
        scoring="neg_log_loss",
        return_train_score=True,
    ).fit(X, Y)
    for name in ("mean_test_score", "mean_train_score", "split2_train_score"):
        np.testing.assert_allclose(search.cv_results_[name], theirs.cv_results_[name])


def test_weights_of_training_scores():
    weights = np.linspace(0.5, 2, len(Y))
    search = TreeCVSearchCV(
        LogisticRegression(),
        param_grid={"C": [0.1]},
        cv=[(np.arange(60), np.arange(60, 90))],
        return_train_score=True,
        refit=False,
    ).fit(X, Y, sample_weight=weights)
    model = LogisticRegression(C=0.1).fit(X[:60], Y[:60], weights[:60])
    train = model.score(X[:60], Y[:60], weights[:60])
    assert search.cv_results_["mean_train_score"][0] == pytest.approx(train)


def test_scorers_without_y():
    def score(model, X):
        return -model.alpha

    found = TreeCVSearchCV(
        Fixed(), param_grid={"alpha": [3, 1, 2]}, scoring=score, cv=3, error_score="raise"
    ).fit(X)
    assert found.best_params_ == {"alpha": 1} and found.best_score_ == -1
    with pytest.raises(ValueError, match="^scoring must be a scorer"):
        TreeCVSearchCV(Fixed(), param_grid={"alpha": [3]}, scoring=score, cv=3).fit(X, Y)


class Fixed(BaseEstimator):
    """Fits nothing."""

    def __init__(self, alpha=0):
        self.alpha = alpha

    def fit(self, X, y=None):
        """Return itself."""
        return self


# --- Rows ---


def test_several_columns_of_classes_are_refused_where_they_are_not_fitted():
    X, y = make_multilabel_classification(100, random_state=0)
    tree, logistic = DecisionTreeClassifier(), LogisticRegression()
    for estimator, options, message in (
        (tree, {"scoring": "error"}, "scoring must be the name .* for y of shape"),
        (logistic, {}, "y must have one column if it contains classes"),
        (tree, {"method": "standard"}, "y must be one column .* several columns of classes"),
    ):
        grid = {"class_weight": [None]}
        with pytest.raises(ValueError, match=f"^{message}"):
            TreeCVSearchCV(estimator, param_grid=grid, **options).fit(X, y)


# --- What is said ---


def test_a_search_is_quiet_by_default(capsys, caplog):
    def says(**options):
        caplog.clear()
        TreeCVSearchCV(SVC(), param_grid={"C": [0.1, 1.0]}, cv=3, **options).fit(X, Y)
        return capsys.readouterr().out, caplog.text

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.enable_propagation()
    try:
        assert says() == ("", "")
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
        assert "Trial 1 finished" in says(verbose=1)[1]
        out, _ = says(verbose=3)
        assert out.count("; score=") == 6 and "split 2: C=1.0; score=" in out
        out, _ = says(verbose=3, return_train_score=True)
        assert out.count("score=(train=") == 6
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(before)


@pytest.mark.slow
def test_a_search_is_quiet_in_workers(capfd):
    """A worker does not know the level of messages that this process has set."""
    search = TreeCVSearchCV(SVC(), param_grid={"C": [0.1, 1.0]}, cv=3)
    with parallel_config("loky", n_jobs=2):
        scores = cross_val_score(search, X, Y, cv=2)
    assert scores.shape == (2,) and "Trial" not in capfd.readouterr().err


def test_callbacks_of_scikit_learn():
    callback = pytest.importorskip("sklearn.callback", reason="new in scikit-learn 1.9")
    heard = [callback.ScoringMonitor(scoring="accuracy")]
    search = TreeCVSearchCV(SVC(), param_grid={"C": [0.1, 1.0]}, cv=3)
    search.set_callbacks(*heard).fit(X, Y)
    assert search.score(X, Y) > 0.5
    # They are told of the end also where the search fails.
    failing = TreeCVSearchCV(SVC(), param_grid={"C": [-1.0]}, cv=3).set_callbacks(*heard)
    with pytest.raises(ValueError, match="C"):
        failing.fit(X, Y)
    assert not hasattr(failing, "_callback_fit_ctx")
    with pytest.raises(TypeError, match="callbacks must be instances"):
        search.set_callbacks(3)


@pytest.mark.filterwarnings("ignore:The estimator SVC does not support callbacks")
def test_the_progress_bar_of_scikit_learn_shows_what_it_shows_of_grid_search():
    callback = pytest.importorskip("sklearn.callback", reason="new in scikit-learn 1.9")
    pytest.importorskip("rich", reason="draws the bar")

    def shown(search):
        with redirect_stdout(StringIO()) as output:
            search.set_callbacks(callback.ProgressBar()).fit(X, Y)
        lines = output.getvalue().replace(type(search).__name__, "Search").splitlines()
        return [re.sub(r"[\s━]+", " ", line).rpartition(" ")[0] for line in lines]

    grid = {"C": [0.1, 1.0]}
    ours = shown(TreeCVSearchCV(SVC(), param_grid=grid, cv=3))
    assert ours == shown(GridSearchCV(SVC(), grid, cv=3))
    assert ours == ["Search - fit 100%", " Search - search #0 100%"]
    with redirect_stdout(StringIO()), pytest.raises(ValueError, match="C"):
        failing = TreeCVSearchCV(SVC(), param_grid={"C": [-1.0]}, cv=3)
        failing.set_callbacks(callback.ProgressBar()).fit(X, Y)
    assert not hasattr(failing, "_callback_fit_ctx")


# --- The simplest ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "simpler",
    ["n_updates", lambda params: params.get("c__max_depth", 99), {"pca__n_components": "smaller"}],
)
def test_one_se_over_families(simpler):
    pipeline = Pipeline([("pca", PCA()), ("c", LogisticRegression())])
    tree = DecisionTreeClassifier(random_state=0)
    grid = [
        {"c": [LogisticRegression()], "c__C": [0.1, 1.0], "pca__n_components": [3]},
        {"c": [tree], "c__max_depth": [1, 2], "pca__n_components": [2, 5]},
    ]
    options = {"param_grid": grid, "cv": 5, "random_state": 0}
    search = TreeCVSearchCV(pipeline, **options, refit="one_se", simpler=simpler).fit(X, Y)
    best = TreeCVSearchCV(pipeline, **options).fit(X, Y)
    assert search.best_score_ <= best.best_score_
    if callable(simpler):
        folds = np.array([best.cv_results_[f"split{i}_test_score"] for i in range(5)])
        differences = folds - folds[:, [best.best_index_]]
        errors = differences.std(axis=0, ddof=1) / np.sqrt(5)
        near = np.abs(differences.mean(axis=0)) <= errors * (1 + 1e-9)
        depths = [simpler(params) for params in best.cv_results_["params"]]
        simplest = min(np.flatnonzero(near), key=depths.__getitem__)
        assert depths[search.best_index_] == depths[simplest]


def test_simpler_is_checked_before_the_trials():
    study = optuna.create_study(direction="maximize")
    options = {"cv": 3, "refit": "one_se", "study": study}
    space = {"gamma": FloatDistribution(0.1, 1), "kernel": CategoricalDistribution(["rbf"])}
    for simpler, message in (
        ("C", "simpler must be 'n_updates', a callable"),
        ({"C": "smaller"}, "simpler must name parameters of the study"),
        ({"kernel": "smaller"}, "refit='one_se' needs numbers as values of 'kernel'"),
    ):
        with pytest.raises(ValueError, match=message):
            TreeCVSearchCV(SVC(), space, simpler=simpler, **options).fit(X, Y)
    assert not study.trials
    with pytest.raises(ValueError, match="^simpler must be None unless refit is 'one_se'"):
        TreeCVSearchCV(SVC(), space, simpler="n_updates").fit(X, Y)
