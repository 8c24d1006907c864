"""What ``TreeCVSearchCV`` does beyond scikit-learn's searches: losses, trials, storages, studies.

scikit-learn's own tests of its searches run with it in ``test_sklearn_search.py``.
"""

from __future__ import annotations

import pickle
from unittest.mock import patch
import warnings

from joblib import parallel_config
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pandas as pd
import pytest
from scipy.stats import loguniform
from scipy.stats import rankdata
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.datasets import make_regression
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import ParameterGrid
from sklearn.model_selection import ParameterSampler
from sklearn.model_selection import RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import RacingPruner
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.rows.data import Data
from optuna_treecv.search import stand_ins
from optuna_treecv.search.scores import ranks_of
from optuna_treecv.study.space import Space

GRID = {"alpha": [0.001, 0.1, 10.0]}
FOLDS = KFold(4, shuffle=True, random_state=0)


@pytest.fixture(scope="module")
def classes():
    return make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)


@pytest.fixture(scope="module")
def two_classes():
    return make_classification(120, 6, random_state=0)


@pytest.fixture(scope="module")
def numbers():
    return make_regression(120, 6, noise=5.0, random_state=0)


def search_of(estimator=None, grid=None, **options):
    estimator = PegasosClassifier() if estimator is None else estimator
    options = {"cv": 4, "random_state": 0} | options
    return TreeCVSearchCV(estimator, param_grid=GRID if grid is None else grid, **options)


_ONE_PASS = "one pass sees a row of weight 2 once, and a repeated row twice"


def _expected(search):
    if isinstance(search.estimator, Ridge):
        return {}
    return {
        f"check_sample_weight_equivalence_on_{kind}_data": _ONE_PASS
        for kind in ("dense", "sparse")
    }


@pytest.mark.slow
@parametrize_with_checks(
    [search_of(cv=2), TreeCVSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2, n_trials=2)],
    expected_failed_checks=_expected,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


# --- Results ---


def test_weights_act_in_training_and_in_scores(two_classes):
    X, y = two_classes
    weights = np.random.default_rng(0).uniform(0, 2, len(y))
    search = search_of(LogisticRegression(), {"C": [0.01, 1.0]}, cv=FOLDS)
    search.fit(X, y, sample_weight=weights)
    for i, (train, test) in enumerate(FOLDS.split(X)):
        fitted = clone(search.best_estimator_)
        fitted.fit(X[train], y[train], sample_weight=weights[train])
        score = fitted.score(X[test], y[test], sample_weight=weights[test])
        assert search.cv_results_[f"split{i}_test_score"][search.best_index_] == (
            pytest.approx(score)
        )


def test_many_splits_have_no_columns(two_classes):
    X, y = two_classes
    assert "split99_test_score" in search_of(cv=100).fit(X, y).cv_results_
    for cv in (101, "loo"):
        results = search_of(cv=cv).fit(X, y).cv_results_
        assert not any(name.startswith("split") for name in results)
        assert np.isfinite(results["std_test_score"]).all()
    repeated = search_of(n_repeats=2).fit(X, y)
    assert repeated.n_splits_ == 8 and "split7_test_score" in repeated.cv_results_


def test_rows_are_in_the_order_of_the_grid(two_classes):
    """Also of grids with points in common, of which each is evaluated once."""
    X, y = two_classes
    grid = [{"alpha": [1.0, 0.1], "fit_intercept": [True, False]}, {"alpha": [0.1, 5]}]
    search = search_of(grid=grid).fit(X, y)
    assert search.cv_results_["params"] == list(ParameterGrid(grid))
    assert search.cv_results_["param_fit_intercept"].mask.tolist() == [False] * 4 + [True] * 2
    assert len(search.study_.trials) == 5
    own = PegasosClassifier().fit_intercept
    twin = 2 if own else 3
    assert search.cv_results_["params"][twin]["alpha"] == 0.1
    means = search.cv_results_["mean_test_score"]
    assert means[4] == means[twin]


def test_ranks_by_the_gaps_between_means():
    """Rounding at a fixed digit would tell 0.5 - 1e-13 and 0.5 + 1e-13 apart, or others not."""
    means = np.array([0.5 - 1e-13, 0.7, 0.5 + 1e-13, 0.5, 0.5 - 1e-11, np.nan, -np.inf])
    assert ranks_of(means).tolist() == [2, 1, 2, 2, 5, 6, 6]
    assert ranks_of(np.array([1e-20, 2e-20, 0.0, -1e-20])).tolist() == [2, 1, 3, 4]
    assert ranks_of(np.array([np.inf, np.inf, 1e300, -np.inf])).tolist() == [1, 1, 3, 4]
    assert ranks_of(np.array([-np.inf, np.inf])).tolist() == [2, 1]
    assert ranks_of(1e9 + np.arange(3) * 1e-4).tolist() == [1, 1, 1]
    assert ranks_of(np.array([np.nan, np.nan])).tolist() == [1, 1]
    random = np.random.default_rng(0).normal(size=30)
    assert ranks_of(random).tolist() == rankdata(-random, method="min").tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TreeCVSearchCV, stand_ins.GridSearchCV])
def test_the_first_of_equal_candidates_is_the_best(kind, numbers):
    """Ridge by the exact folds of scaled rows: by how much the scores differ is rounding's.

    The candidate with the largest mean stands last in the second search.
    """
    X, y = numbers
    model = make_pipeline(MinMaxScaler(), Ridge())
    options = {"cv": KFold(5), "scoring": "neg_mean_squared_error"}

    def searched(factors):
        grid = [
            {"minmaxscaler__feature_range": [(0, factor)], "ridge__alpha": [factor**2]}
            for factor in factors
        ]
        return kind(model, param_grid=grid, **options).fit(X, y)

    factors = np.array([1.0, 3.0, 7.0, 1.1])
    factors = factors[searched(factors).cv_results_["mean_test_score"].argsort()]
    found = searched(factors)
    assert found.cv_results_["rank_test_score"].tolist() == [1, 1, 1, 1]
    assert found.best_index_ == 0
    assert found.best_score_ == found.cv_results_["mean_test_score"][0]
    assert found.best_estimator_["ridge"].alpha == factors[0] ** 2


def test_infinite_means_are_warned_of(numbers):
    X, y = numbers
    search = search_of(AveragedSGDRegressor(), {"step_size": [1e-3, 1e30]}, cv=3)
    with pytest.warns(UserWarning, match="test scores are non-finite"):
        search.fit(X, y)
    assert search.cv_results_["mean_test_score"][1] == -np.inf
    assert search.cv_results_["rank_test_score"].tolist() == [1, 2]
    assert search.best_params_ == {"step_size": 1e-3}


# --- Scores and the choice ---


def test_losses_are_negated(classes):
    X, y = classes
    losses = search_of(scoring="error").fit(X, y)
    accuracies = search_of(scoring="accuracy").fit(X, y)
    np.testing.assert_allclose(
        losses.cv_results_["mean_test_score"], accuracies.cv_results_["mean_test_score"] - 1
    )
    assert losses.study_.direction.name == "MINIMIZE"
    assert losses.best_index_ == accuracies.best_index_
    assert losses.score(X, y) == pytest.approx(accuracies.score(X, y) - 1)
    assert "NegativeLoss('error')" in repr(losses.scorer_)
    copied = pickle.loads(pickle.dumps(losses))
    assert copied.score(X, y) == losses.score(X, y)


@pytest.mark.parametrize("scoring", ["hinge", "log_loss"])
def test_score_by_a_loss(two_classes, scoring):
    X, y = two_classes
    labels = np.array(["no", "yes"])[y]
    search = search_of(AveragedSGDClassifier(loss="log_loss"), scoring=scoring).fit(X, labels)
    decision = search.decision_function(X)
    margins = np.where(y == 1, decision, -decision)
    losses = np.maximum(0, 1 - margins) if scoring == "hinge" else np.log1p(np.exp(-margins))
    assert search.score(X, labels) == pytest.approx(-losses.mean())


def test_scoring_none_is_the_score(classes, numbers):
    for estimator, data, scoring in (
        (HistTreeClassifier(max_depth=2), classes, "accuracy"),
        (DecisionTreeRegressor(max_depth=2), numbers, "r2"),
    ):
        grid = {"random_state": [0, 1]}
        search = search_of(estimator, grid).fit(*data)
        assert search.score(*data) == search.best_estimator_.score(*data)
        given = search_of(estimator, grid, scoring=scoring).fit(*data)
        assert search.best_score_ == given.best_score_

    class Scored(LinearSVC):
        def score(self, X, y, sample_weight=None):
            return -float(self.C)

    search = search_of(Scored(), {"C": [1.0, 2.0]}).fit(*classes)
    assert search.cv_results_["mean_test_score"].tolist() == [-1.0, -2.0]


def test_a_choice_by_a_callable_leaves_open_which_score_is_meant(two_classes):
    search = search_of(scoring=["roc_auc", "accuracy"], refit=lambda results: 0).fit(*two_classes)
    with pytest.raises(ValueError, match="^refit must be the name of a score"):
        search.score(*two_classes)


def test_several_scores(two_classes):
    X, y = two_classes
    scoring = {"auc": "roc_auc", "loss": "error"}
    search = search_of(scoring=scoring, refit="loss").fit(X, y)
    results = search.cv_results_
    assert search.multimetric_ and set(search.scorer_) == {"auc", "loss"}
    for name, alone in (("auc", "roc_auc"), ("loss", "error")):
        single = search_of(scoring=alone).fit(X, y).cv_results_
        for what in ("mean_test", "std_test", "rank_test", "split2_test"):
            np.testing.assert_array_equal(results[f"{what}_{name}"], single[f"{what}_score"])
    assert search.best_score_ == results["mean_test_loss"].max()
    both = search_of(scoring={"roc_auc", "accuracy"}, refit="accuracy").fit(X, y)
    assert set(both.scorer_) == {"roc_auc", "accuracy"}


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (1.0, TypeError, "^refit must return an integer"),
        (3, IndexError, "^refit must return the index of a row of cv_results_, 0 to 2; .*: 3"),
    ],
)
def test_bad_returns_of_refit(two_classes, index, error, message):
    search = search_of(refit=lambda results: index)
    with pytest.raises(error, match=message):
        search.fit(*two_classes)
    assert len(search.cv_results_["params"]) == len(search.study_.trials) == 3


def test_one_se(two_classes):
    """The simplest of those within a standard error is at most as good as the best."""
    X, y = two_classes
    grid = {"alpha": np.logspace(-4, 1, 12).tolist()}
    best = search_of(grid=grid).fit(X, y)
    chosen = search_of(grid=grid, refit="one_se").fit(X, y)
    assert chosen.best_params_["alpha"] >= best.best_params_["alpha"]
    assert chosen.best_score_ <= best.best_score_
    assert chosen.best_estimator_.alpha == chosen.best_params_["alpha"]
    # It does not choose a trial of the study that is no candidate.
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({"alpha": 3 * best.best_params_["alpha"]})
    chosen = search_of(
        grid={"alpha": [1e-9, best.best_params_["alpha"]]}, refit="one_se", study=study
    )
    assert chosen.fit(X, y).best_params_ == best.best_params_


@pytest.mark.parametrize(
    ("estimator", "grid", "options", "message"),
    [
        (
            PegasosClassifier(),
            GRID | {"fit_intercept": [True, False]},
            {},
            "search of 'alpha', 'fit_intercept', got None: .*only for single parameters",
        ),
        (
            PegasosClassifier(),
            {"fit_intercept": [True, False]},
            {},
            "search of 'fit_intercept', got",
        ),
        (DecisionTreeClassifier(), {"max_depth": [2, None]}, {}, "numbers .* got None; use"),
        (PegasosClassifier(), GRID, {"cv": 0.3}, "the scores of several folds"),
        (PegasosClassifier(), GRID, {"method": "holdout"}, "the scores of several folds"),
        (PegasosClassifier(), GRID, {"scoring": pooled("roc_auc")}, "the scores of several folds"),
    ],
)
def test_one_se_is_refused_before_the_first_trial(two_classes, estimator, grid, options, message):
    study = optuna.create_study(direction="maximize")
    search = search_of(estimator, grid, refit="one_se", study=study, **options)
    with pytest.raises(ValueError, match=f"refit='one_se' .*{message}"):
        search.fit(*two_classes)
    assert not study.trials and not hasattr(search, "cv_results_")


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [False, True])
def test_one_se_of_a_resumed_search(two_classes, tmp_path, is_stored):
    """It needs the fold scores of the earlier run, which a store keeps."""
    X, y = two_classes
    options = {"grid": {"alpha": [1e-9, 0.1]}, "refit": "one_se"}
    whole = search_of(**options).fit(X, y)
    assert whole.best_index_ == 1
    options["storage"] = f"sqlite:///{tmp_path}/studies.db"
    if is_stored:
        options["store"] = f"sqlite:///{tmp_path}/store.db"

    def interrupt(study, trial):
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted after 1 trials"):
        search_of(callbacks=[interrupt], **options).fit(X, y)
    resumed = search_of(**options)
    if is_stored:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed.fit(X, y)
        assert resumed.best_params_ == whole.best_params_
        return
    with pytest.raises(ValueError, match="^refit='one_se' needs .* 1 earlier trials .* store"):
        resumed.fit(X, y)
    assert not hasattr(resumed, "cv_results_")
    study = resumed.set_params(refit=True).fit(X, y).study_
    assert len(study.trials) == 2


def test_without_refit(two_classes):
    X, y = two_classes
    search = search_of(refit=False).fit(X, y)
    assert search.best_index_ >= 0 and search.best_score_ > 0.5 and "alpha" in search.best_params_
    assert not hasattr(search, "best_estimator_") and not hasattr(search, "refit_time_")
    for name in ("predict", "transform", "classes_", "n_features_in_"):
        with pytest.raises(AttributeError, match=f"initialized with `refit=False`. {name} is"):
            getattr(search, name)
    with pytest.raises(AttributeError, match="initialized with `refit=False`. score is"):
        search.score(X, y)
    several = search_of(refit="f1", scoring=["accuracy", "f1"]).fit(X, y)
    assert several.best_index_ >= 0
    assert not hasattr(several.set_params(refit=False).fit(X, y), "best_index_")


# --- What the best estimator does ---


def test_probabilities_are_those_of_the_best_estimator(two_classes):
    search = search_of(
        AveragedSGDClassifier(), {"loss": ["hinge", "log_loss"]}, refit=lambda results: 1
    )
    assert not hasattr(search, "predict_proba")
    assert hasattr(search.fit(*two_classes), "predict_proba")


def test_transformed_rows_may_be_data_frames(two_classes):
    X, _ = two_classes

    class Kept(PCA):
        def score(self, X, y=None):
            return float(self.n_components)

    search = search_of(Kept(), {"n_components": [2, 4]}).set_output(transform="pandas").fit(X)
    assert search.best_params_ == {"n_components": 4}
    assert isinstance(search.transform(X), pd.DataFrame)


def test_a_search_may_be_fitted_again_with_the_same_trials(two_classes):
    X, y = two_classes
    search = TreeCVSearchCV(
        PegasosClassifier(),
        {"alpha": FloatDistribution(1e-4, 1, log=True)},
        sampler=optuna.samplers.RandomSampler(seed=3),
        n_trials=3,
        random_state=0,
    )
    first = search.fit(X, y).cv_results_["param_alpha"].tolist()
    assert search.fit(X, y).cv_results_["param_alpha"].tolist() == first
    assert clone(search).fit(X, y).cv_results_["param_alpha"].tolist() == first
    assert pickle.loads(pickle.dumps(search)).study_.best_value == search.study_.best_value


# --- Rows, groups, weights and arguments of fit ---


def test_random_splits_are_drawn_once(two_classes):
    """All trials have the same folds, also those of a splitter without a seed, and n_splits_."""
    X, y = two_classes
    search = search_of(
        LinearSVC(random_state=0), {"verbose": [0, False, np.int64(0)]}, cv=KFold(3, shuffle=True)
    ).fit(X, y)
    for i in range(3):
        assert len(set(search.cv_results_[f"split{i}_test_score"])) == 1
    pairs = ((train, test) for train, test in KFold(3).split(X))
    assert search_of(cv=pairs).fit(X, y).n_splits_ == 3


@pytest.mark.parametrize("estimator", [AveragedSGDClassifier(), LogisticRegression()])
def test_a_pruner_reads_rows_and_folds_once(two_classes, estimator, monkeypatch):
    X, y = two_classes
    pairs = list(KFold(3).split(X))
    options = {"pruner": optuna.pruners.MedianPruner(), "random_state": 0}
    name = "alpha" if isinstance(estimator, AveragedSGDClassifier) else "C"
    expected = search_of(estimator, {name: [0.1, 1.0]}, cv=pairs, **options).fit(X, y)
    copies = []
    copy = Data.__init__
    monkeypatch.setattr(Data, "__init__", lambda *given: copies.append(1) or copy(*given))
    search = search_of(estimator, {name: [0.1, 1.0]}, cv=iter(pairs), **options).fit(X, y)
    assert len(copies) == 1
    for own, their in zip(search.study_.trials, expected.study_.trials, strict=True):
        assert own.intermediate_values == their.intermediate_values != {}
        assert own.value == their.value


@pytest.mark.parametrize("method", ["auto", "treecv"])
def test_rows_of_more_dimensions_are_refused_where_they_are_not_fitted(two_classes, method):
    X, y = two_classes
    with pytest.raises(ValueError, match="^X must have shape .* X has 3 dimensions"):
        search_of(method=method).fit(np.stack([X, -X], axis=2), y)


def test_routing(two_classes):
    from sklearn import config_context

    X, y = two_classes
    weights = np.linspace(0.5, 1.5, 120)
    with config_context(enable_metadata_routing=True):
        estimator = LogisticRegression().set_fit_request(sample_weight=True)
        search = search_of(estimator, {"C": [0.1, 1.0]})
        routing = search.get_metadata_routing()
        assert routing.consumes("fit", ["sample_weight"]) == {"sample_weight"}
        search.fit(X, y, sample_weight=weights)
        scores = cross_val_score(search, X, y, cv=3, params={"sample_weight": weights})
        assert scores.shape == (3,)
    with pytest.raises(ValueError, match=r"enable_metadata_routing|\[sample_weight\]"):
        search.score(X, y, sample_weight=weights)


# --- Trials, studies and faults ---


class Failing(LogisticRegression):
    def fit(self, X, y, sample_weight=None):
        if self.C > 5:
            raise ValueError("this C is too large")
        return super().fit(X, y)


def test_failed_trials_are_logged_in_few_lines(two_classes, caplog):
    caplog.set_level("INFO", logger="optuna")  # whatever another test has set
    search = search_of(Failing(), {"C": [1.0, 10.0]}, error_score=np.nan)
    with pytest.warns(FitFailedWarning, match="error_score='raise' shows the traceback"):
        search.fit(*two_classes)
    lines = caplog.text.splitlines()
    first = next(i for i, line in enumerate(lines) if "Trial 1 failed" in line)
    assert "ValueError('this C is too large')" in lines[first]
    assert len(lines) - first <= 12 and "evaluate_trial" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "name", "n_jobs"),
    [(PegasosClassifier(), "alpha", 1), (LinearSVC(random_state=0), "C", 2)],
)
def test_a_scorer_that_returns_a_dict(two_classes, estimator, name, n_jobs):
    X, y = two_classes

    def both(model, X, y):
        predicted = model.predict(X)
        return {"f1": f1_score(y, predicted), "accuracy": accuracy_score(y, predicted)}

    grid, options = {name: GRID["alpha"]}, {"refit": "accuracy", "n_jobs": n_jobs}
    by_dict = search_of(estimator, grid, scoring=both, **options)
    with parallel_config("threading"), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*values from other data")
        by_dict.fit(X, y)
        by_names = search_of(estimator, grid, scoring=["f1", "accuracy"], **options).fit(X, y)
    for column, scores in by_names.cv_results_.items():
        if column.endswith(("_f1", "_accuracy")):
            np.testing.assert_allclose(by_dict.cv_results_[column], scores)
    assert by_dict.best_params_ == by_names.best_params_
    assert by_dict.score(X, y) == by_names.score(X, y)
    assert len(by_dict.study_.trials) == 3 and by_dict.multimetric_
    study = optuna.create_study(direction="maximize")
    with pytest.raises(ValueError, match="^scoring must be a dict of scorers if study"):
        search_of(estimator, grid, scoring=both, study=study, refit="accuracy").fit(X, y)
    with pytest.raises(ValueError, match="^refit must be False, 'f1', 'accuracy', 'one_se' or"):
        search_of(estimator, grid, scoring=both).fit(X, y)


@pytest.mark.parametrize("return_train_score", [False, True])
def test_a_fold_that_fails(two_classes, return_train_score):
    """The other folds keep their scores, as those of GridSearchCV do."""
    X, y = two_classes

    class OfFewRows(LogisticRegression):
        def fit(self, X, y):
            if self.C == 1.0 and len(X) < 81:
                raise ValueError("too few rows")
            return super().fit(X, y)

    cv = [(np.arange(n), np.arange(100, 120)) for n in (80, 90, 100)]
    options = {"cv": cv, "error_score": 0.25, "return_train_score": return_train_score}
    grid = {"C": [0.1, 1.0]}
    results = []
    for make in (GridSearchCV, search_of):
        search = make(OfFewRows(), grid, scoring=["accuracy", "f1"], refit=False, **options)
        with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 6"):
            results.append(search.fit(X, y).cv_results_)
    theirs, ours = results
    assert set(theirs) == set(ours)
    for name in ours:
        if "time" not in name and not name.startswith("param"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12)
    assert ours["split0_test_f1"][1] == 0.25 and ours["split1_test_f1"][1] > 0.5


def test_ctrl_c_keeps_what_is_done(two_classes):
    X, y = two_classes

    def interrupt(study, trial):
        if trial.number == 1:
            raise KeyboardInterrupt

    search = search_of(callbacks=[interrupt])
    with pytest.warns(UserWarning, match="^The search was interrupted after 2 trials"):
        search.fit(X, y)
    assert len(search.cv_results_["params"]) == 2 and search.predict(X).shape == (120,)

    class Interrupted(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_of(Interrupted(), {"C": [1.0]}).fit(X, y)


def test_n_trials(two_classes):
    X, y = two_classes
    space = {"alpha": FloatDistribution(1e-4, 1, log=True)}
    search = TreeCVSearchCV(PegasosClassifier(), space, cv=3, random_state=0)
    assert len(search.fit(X, y).study_.trials) == 10
    search.set_params(n_trials=4)
    assert len(search.fit(X, y).study_.trials) == 4
    few = search_of(n_trials=2).fit(X, y)
    assert few.cv_results_["params"] == [{"alpha": 0.001}, {"alpha": 0.1}]
    assert len(search_of(n_trials=9).fit(X, y).study_.trials) == 3
    slow = TreeCVSearchCV(PegasosClassifier(), space, cv=3, n_trials=10_000, timeout=0.2)
    assert 0 < len(slow.fit(X, y).cv_results_["params"]) < 10_000


def test_enqueued_trials_take_no_point_of_a_grid(two_classes):
    X, y = two_classes
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({"alpha": 0.5})
    search = search_of(study=study).fit(X, y)
    assert [one["alpha"] for one in search.cv_results_["params"]] == GRID["alpha"]
    assert len(study.trials) == 4


def test_pooled_scores_have_no_splits(two_classes):
    X, y = two_classes
    search = search_of(scoring={"auc": pooled("roc_auc"), "accuracy": "accuracy"}, refit="auc")
    results = search.fit(X, y).cv_results_
    assert "split3_test_accuracy" in results and "split0_test_auc" not in results
    assert np.isfinite(results["mean_test_auc"]).all() and search.score(X, y) > 0.5
    assert not hasattr(search.set_params(refit=np.bool_(False)).fit(X, y), "best_estimator_")


def test_one_seed_gives_the_same_search(two_classes):
    X, y = two_classes
    space = {"alpha": FloatDistribution(1e-4, 1, log=True), "fit_intercept": [True, False]}

    def found(seed):
        search = TreeCVSearchCV(PegasosClassifier(), space, cv=3, n_trials=5, random_state=seed)
        return search.fit(X, y).cv_results_

    first, again, other = found(3), found(3), found(4)
    assert first["params"] == again["params"] != other["params"]
    assert first["mean_test_score"].tolist() == again["mean_test_score"].tolist()


def test_warnings_point_to_the_line_that_called_fit(two_classes):
    X, y = two_classes
    search = search_of(SGDClassifier(), {"alpha": [0.1, 1.0]}, method="treecv")
    with pytest.warns(UserWarning, match="also in the final fit, because") as caught:
        search.fit(X, y)
    assert caught[0].filename == __file__


@pytest.mark.slow
def test_lists_only_are_sampled_without_repetition(two_classes, tmp_path):
    """Trials are the points of RandomizedSearchCV, and no others are evaluated ahead."""
    X, y = two_classes
    lists = {"alpha": [0.01, 0.1, 1.0, 10.0], "fit_intercept": (True, False)}
    more = [{"alpha": [0.5, 5.0]}, {"alpha": [0.01, 1.0], "random_state": [1, 2, 3]}]
    for space, n_iter in ((lists, 5), (lists, 8), (lists, 50), (more, 6)):
        search = TreeCVSearchCV(PegasosClassifier(), space, cv=3, n_iter=n_iter, random_state=3)
        with patch.object(Space, "at", autospec=True, side_effect=Space.at) as made:
            search.fit(X, y)
        n_points = min(n_iter, 8)
        expected = list(ParameterSampler(space, n_points, random_state=3))
        assert search.cv_results_["params"] == expected
        assert len(search.study_.trials) == n_points <= made.call_count <= n_points + 6
    # The same search goes on where more trials are asked for.
    options = {"cv": 3, "random_state": 0, "storage": f"sqlite:///{tmp_path}/studies.db"}
    TreeCVSearchCV(PegasosClassifier(), lists, n_trials=3, **options).fit(X, y)
    search = TreeCVSearchCV(PegasosClassifier(), lists, n_trials=6, **options).fit(X, y)
    points = {tuple(trial.params.values()) for trial in search.study_.trials}
    assert len(points) == len(search.study_.trials) == 6
    with pytest.raises(ValueError, match="^n_iter must be None if n_trials is given"):
        TreeCVSearchCV(PegasosClassifier(), lists, n_trials=3, n_iter=3).fit(X, y)


EQUAL = [{"alpha": [0.1, 1.0]}, {"alpha": [0.1, 0.5], "fit_intercept": [True]}, {"alpha": [1.0]}]
DRAWN = [{"alpha": loguniform(1e-3, 1)}, {"alpha": [0.1], "solver": ["svd", "cholesky"]}]


@pytest.mark.slow
@pytest.mark.parametrize(("space", "n_iter"), [(EQUAL, 5), (EQUAL, 4), (DRAWN, 6)])
def test_candidates_are_those_of_a_randomized_search(space, n_iter, numbers):
    """Some are equal, and each has the parameters of its own dict."""
    X, y = numbers
    model, options = Ridge(fit_intercept=True), {"n_iter": n_iter, "cv": KFold(3)}
    theirs = RandomizedSearchCV(model, space, random_state=4, **options).fit(X, y)
    ours = TreeCVSearchCV(model, space, random_state=4, **options).fit(X, y)
    assert set(ours.cv_results_) == set(theirs.cv_results_)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    assert ours.best_params_ == ours.cv_results_["params"][ours.best_index_]
    for name, column in theirs.cv_results_.items():
        found = ours.cv_results_[name]
        if name.startswith("param_"):
            assert found.tolist() == column.tolist() and found.dtype == column.dtype
            assert found.mask.tolist() == column.mask.tolist()
        elif "score" in name and "time" not in name and "rank" not in name:
            np.testing.assert_allclose(found, column, rtol=1e-10)
    points = {(0.1, True), (1.0, True), (0.5, True)}
    assert len(ours.study_.trials) <= (len(points) if space is EQUAL else n_iter)


def test_a_study_is_continued(two_classes):
    X, y = two_classes
    study = optuna.create_study(direction="maximize")
    space = {"alpha": FloatDistribution(1e-4, 1, log=True)}
    search = TreeCVSearchCV(
        PegasosClassifier(), space, cv=3, n_trials=3, study=study, random_state=0
    )
    first = search.fit(X, y)
    assert first.study_ is study and len(study.trials) == 3
    second = search.fit(X, y)
    assert len(study.trials) == 6
    assert len(second.cv_results_["params"]) == 6
    for row, trial in enumerate(study.trials):
        assert second.cv_results_["mean_test_score"][row] == trial.value
    assert second.best_score_ == study.best_value
    with pytest.raises(ValueError, match="values from other data, weights, folds or scoring"):
        search.fit(X[:-1], y[:-1])
    with pytest.raises(ValueError, match="values from other data, weights, folds or scoring"):
        clone(search).set_params(study=study, cv=4).fit(X, y)
    for scoring, wanted, direction in (
        ("error", "minimize", "maximize"),
        (None, "maximize", None),
    ):
        wrong = study if direction else optuna.create_study()
        message = f"^study must have direction='{wanted}', .* got '{direction or 'minimize'}'; use"
        with pytest.raises(ValueError, match=message):
            clone(search).set_params(study=wrong, scoring=scoring).fit(X, y)
    both = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(ValueError, match="^study must have .* got 'minimize' and 'maximize'"):
        clone(search).set_params(study=both).fit(X, y)
    other = {"fit_intercept": [True, False]}
    with pytest.raises(ValueError, match="^study must have trials with the parameters"):
        clone(search).set_params(study=study, param_distributions=other).fit(X, y)
    assert len(study.trials) == 6  # nothing was begun


def test_folds_without_a_seed_are_not_continued(two_classes):
    """Each search without a seed has other folds."""
    X, y = two_classes
    study = optuna.create_study(direction="maximize")
    search = search_of(study=study, random_state=None).fit(X, y)
    with pytest.raises(ValueError, match="^random_state must be the int of the study's earlier"):
        search.fit(X, y)
    storage = optuna.storages.InMemoryStorage()
    search = search_of(storage=storage, random_state=None)
    for n_studies in (1, 2):
        with pytest.warns(
            UserWarning, match="^random_state should be an int if storage is given"
        ) as found:
            search.fit(X, y)
        assert found[0].filename == __file__ and len(storage.get_all_studies()) == n_studies


def test_outer_folds_never_mix(two_classes):
    """In nested cross-validation each outer fold has a study of its own, also in a storage."""
    X, y = two_classes
    storage = optuna.storages.InMemoryStorage()
    search = search_of(storage=storage, cv=3)
    scores = []
    for train, test in KFold(3).split(X):
        scores.append(search.fit(X[train], y[train]).score(X[test], y[test]))
    assert len(storage.get_all_studies()) == 3
    search = search_of(cv=3, random_state=0)
    assert cross_val_score(search, X, y, cv=KFold(3)).tolist() == scores


@pytest.mark.slow
@pytest.mark.parametrize("scoring", ["error", {"auc": "roc_auc", "loss": "error"}])
def test_a_store_keeps_the_scores_of_splits(two_classes, tmp_path, scoring):
    X, y = two_classes
    options = {"scoring": scoring, "refit": "loss" if isinstance(scoring, dict) else True}
    expected = search_of(**options).fit(X, y).cv_results_
    storage, store = (f"sqlite:///{tmp_path}/{name}.db" for name in ("studies", "store"))
    options |= {"storage": storage, "store": store}
    search_of(n_trials=2, **options).fit(X, y)
    resumed = search_of(**options).fit(X, y).cv_results_
    assert set(resumed) == set(expected)
    for name in (name for name in expected if "_test_" in name):
        np.testing.assert_allclose(resumed[name], expected[name], rtol=1e-12, err_msg=name)
    # Without the store there are six digits, and no scores of splits.
    alone = search_of(**options | {"store": None}).fit(X, y).cv_results_
    assert not any(name.startswith("split") for name in alone)


@pytest.mark.slow
def test_a_storage_makes_it_resumable(two_classes, tmp_path):
    X, y = two_classes
    options = {"n_trials": 5, "cv": 3, "random_state": 0}
    options["storage"] = f"sqlite:///{tmp_path}/studies.db"
    ran = []

    def interrupt(study, trial):
        ran.append(trial.number)
        if trial.number == 2:
            raise KeyboardInterrupt

    def fit():
        space = {"alpha": loguniform(1e-4, 1)}
        return TreeCVSearchCV(PegasosClassifier(), space, callbacks=[interrupt], **options).fit(
            X, y
        )

    with pytest.warns(UserWarning, match="interrupted after 3 trials"):
        fit()
    resumed = fit()
    assert ran == [0, 1, 2, 3, 4]
    assert len(set(resumed.cv_results_["param_alpha"].tolist())) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "pruner"),
    [
        (AveragedSGDClassifier(), RacingPruner()),
        (AveragedSGDClassifier(), optuna.pruners.WilcoxonPruner()),
        (LogisticRegression(), optuna.pruners.MedianPruner(n_startup_trials=2)),
    ],
)
def test_pruned_trials_have_the_last_rank(estimator, pruner):
    X, y = make_classification(600, 6, weights=[0.7], flip_y=0, random_state=0)
    name = "C" if isinstance(estimator, LogisticRegression) else "step_size"
    space = {name: FloatDistribution(1e-6, 1e4, log=True)}
    options = {"n_trials": 12}
    if isinstance(pruner, optuna.pruners.WilcoxonPruner):
        options = {"n_trials": 4, "cv": 4}  # its test enumerates the signs of all reports
    search = TreeCVSearchCV(estimator, space, pruner=pruner, random_state=0, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*non-finite: .*nan")
        search.fit(X + 5, y)
    states = [trial.state.name for trial in search.study_.trials]
    pruned = np.array(states) == "PRUNED"
    assert pruned.any()
    means = search.cv_results_["mean_test_score"]
    assert np.isnan(means[pruned]).all() and np.isfinite(means[~pruned]).all()
    assert (search.cv_results_["rank_test_score"][pruned] == (~pruned).sum() + 1).all()
    assert search.best_score_ == search.study_.best_value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"param_distributions": GRID}, "^param_grid or param_distributions .* got both"),
        ({"param_grid": None}, "^param_grid or param_distributions .* got neither"),
        ({"n_trials": 0}, "^n_trials must be None or a positive integer, got 0"),
        ({"n_trials": 2.5}, "^n_trials must be"),
        ({"timeout": -1}, "^timeout must be"),
        ({"timeout": "1"}, "^timeout must be"),
        ({"error_score": "ignore"}, "^error_score must be 'raise' or a number"),
        ({"progress": "yes"}, "^progress must be"),
        ({"sampler": 3}, "^sampler must be None or a sampler of Optuna"),
        ({"pruner": "median"}, "^pruner must be None or a pruner of Optuna"),
        ({"study": "study"}, "^study must be None or an optuna.Study"),
        (
            {"study": optuna.create_study(), "storage": "sqlite://"},
            "^storage must be None if study is given",
        ),
        (
            {"study": optuna.create_study(), "pruner": RacingPruner()},
            "^pruner must be None if study is given",
        ),
        (
            {"sampler": optuna.samplers.RandomSampler()},
            "^sampler must be None if param_grid is given, because all candidates of the grid",
        ),
        ({"refit": "one_e"}, "^refit must be True, False, 'one_se' or a callable, got 'one_e'"),
        ({"refit": 3}, "^refit must be"),
        (
            {"scoring": ["f1", "accuracy"]},
            "^refit must be False, 'f1', 'accuracy', 'one_se' or a callable if",
        ),
        (
            {"scoring": ["f1", "accuracy"], "refit": "recall"},
            "^refit must be False, .* or a callable .* got 'recall'",
        ),
        ({"scoring": "acuracy"}, "^scoring must be .* did you mean 'accuracy'"),
        ({"cv": 1}, "^cv must be"),
        ({"estimator": None}, "^estimator must be an instance of an estimator, got None"),
        ({"estimator": PegasosClassifier}, "^estimator must be an instance"),
        ({"param_grid": {"alpa": [1.0]}}, "^param_grid: PegasosClassifier has no parameter"),
        ({"estimator": PCA(2), "param_grid": {"whiten": [True]}}, None),
    ],
)
def test_bad_input(two_classes, options, message):
    X, y = two_classes
    search = search_of().set_params(**options)
    if message is None:  # an estimator with a score may be neither classifier nor regressor
        search.fit(X)
        return
    with pytest.raises(ValueError, match=message):
        search.fit(X, y)
    assert not hasattr(search, "cv_results_") and not hasattr(search, "study_")


def test_an_estimator_without_score(two_classes):
    X, y = two_classes

    class Unscored(BaseEstimator):
        def __init__(self, constant=0):
            self.constant = constant

        def fit(self, X, y=None):
            return self

        def predict(self, X):
            return np.full(len(X), self.constant)

    with pytest.raises(TypeError, match="^scoring must be given because Unscored"):
        search_of(Unscored(), {"constant": [0, 1]}).fit(X, y)
    search = search_of(
        Unscored(), {"constant": [0, 1]}, scoring=lambda model, X, y: float(model.constant)
    ).fit(X, y)
    assert search.best_params_ == {"constant": 1}
