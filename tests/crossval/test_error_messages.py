"""Refusals that the attack of hostile calls found to name no argument; each in one sentence."""

from __future__ import annotations

from ids import said
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.base import RegressorMixin
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import get_scorer
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_score

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.history import forget
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

X = np.random.default_rng(0).normal(size=(30, 3))
y = np.arange(30) % 2
ALPHA = {"alpha": FloatDistribution(1e-4, 1.0)}
MASKED = np.ma.array(np.arange(30) % 3, mask=np.arange(30) > 27)
SECOND = np.timedelta64(1, "s")


class Splitter:
    """Gives the splits it was made with."""

    def __init__(self, *splits):
        self.splits = splits

    def split(self, X, y=None, groups=None):
        return iter(self.splits)


@pytest.mark.parametrize("rows", [pd.Series(X[:, 0]), 10**400, "rows", None], ids=type)
def test_rows(rows):
    fitted = PegasosClassifier().fit(X, y)
    for call in (
        lambda: tree_cross_validate(PegasosClassifier(), rows, y),
        lambda: PegasosClassifier().fit(rows, y),
        lambda: fitted.predict(rows),
        lambda: StreamingKMeans().fit(rows),
    ):
        with pytest.raises((TypeError, ValueError), match=r"\bX\b"):
            call()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_repeats": SECOND}, "n_repeats must be an integer from 1 to 10000, got"),
        ({"random_state": SECOND}, "^random_state cannot be used: "),
        ({"n_jobs": SECOND}, "n_jobs must be None, a number of workers or -1"),
        ({"cv": SECOND}, "cv must be an int, a share .* pairs of training and test rows, got"),
        ({"cv": Splitter(3)}, "cv must .* pairs of training and test rows, but Splitter yields 3"),
        ({"cv": Splitter((5, [0]))}, "arrays of row indices, but Splitter trains on 5 in split 0"),
        ({"cv": Splitter(([0], None))}, "row indices, but Splitter tests None in split 0"),
        (
            {"scoring": "roc_auc"},
            "scoring='roc_auc' needs an estimator with decision_function or predict_proba; "
            "AveragedSGDRegressor has none",
        ),
        ({"scoring": int}, "scoring must be None, a loss name, a scorer name, a scorer.*got"),
        ({"cv": MASKED}, "^cv must not be a masked array, because its mask would be ignored; "),
        ({"groups": MASKED}, "^groups must not be a masked array, because its mask would be ign"),
        (
            {"stratify": True},
            "^stratify must be .* y must contain class labels, but it contains real",
        ),
        ({"scoring": "neg_log_loss"}, "needs an estimator with predict_proba; Averaged.* has non"),
    ],
    ids=said,
)
def test_arguments(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        tree_cross_validate(AveragedSGDRegressor(), X, X[:, 0], **options)


def test_arguments_of_the_methods_of_an_objective():
    objective = treecv_objective(PegasosClassifier(), X, y, param_grid={"alpha": [0.1, 1.0]})
    for params in ({}, {"alpa": 0.1}):
        with pytest.raises(ValueError, match="^params must have a value for 'alpha', got only"):
            objective.values_of(params)
    with pytest.raises(ValueError, match="^params must be a dict of parameter values, got None"):
        objective.values_of(None)
    for seed in ("a", -1, 2**32, 0.5):
        with pytest.raises(ValueError, match="^seed must be None or an integer"):
            objective.grid_sampler(seed)


def test_verbose_may_be_a_flag():
    for verbose in (False, True):
        tree_cross_validate(AveragedSGDRegressor(), X, X[:, 0], verbose=verbose)
        search = TreeCVSearchCV(
            *(AveragedSGDRegressor(), None), param_grid={"alpha": [0.1]}, verbose=verbose
        )
        search.fit(X, X[:, 0])


@pytest.mark.parametrize("value", [1j, "nan", None, -(10**400)], ids=type)
def test_values_that_optuna_refuses(value):
    objective = treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA)
    with pytest.raises(ValueError, match="'alpha' cannot have this value: "):
        objective.evaluate({"alpha": value})


def test_parameters():
    with pytest.raises(ValueError, match="max_bytes must be a number of bytes of at least 0, got"):
        ModelCache(max_bytes=SECOND)
    with pytest.raises(ValueError, match="'alpha' parameter of PegasosClassifier must be a Pyth"):
        PegasosClassifier(alpha=SECOND).fit(X, y)
    assert StreamingKMeans(n_clusters=True).fit(X).cluster_centers_.shape == (1, 3)
    wide = sparse.random(4, 2**14 + 1, density=0.001, random_state=0).toarray()
    with pytest.raises(ValueError, match="X must have at most 16384 columns with covariance_type"):
        StreamingGaussianDensity("full").fit(wide)


def test_estimators_that_are_no_list():
    for wrong in (3, np.inf, None, PegasosClassifier()):
        with pytest.raises(ValueError, match="^estimators must be a list of estimators, got"):
            tree_cross_validate_many(wrong, X, y)


@pytest.mark.parametrize("rows", [sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_sparse_rows_of_objects(rows):
    wrong = rows(X)
    wrong.data = wrong.data.astype(object)
    for call in (
        lambda: tree_cross_validate(PegasosClassifier(), wrong, y),
        lambda: tree_cross_validate(SGDClassifier(), wrong, y),
        lambda: PegasosClassifier().fit(wrong, y),
    ):
        with pytest.raises(ValueError, match="^X must be a valid .* its values are of type obj"):
            call()


@pytest.mark.parametrize("model", [PegasosClassifier(), LSQSGDRegressor()], ids=said)
@pytest.mark.parametrize(
    "targets",
    [y[:-1], None, 7, "loo", np.ma.array(y, mask=y > 0), y * 1j, np.c_[y, y], y + np.nan],
    ids=["short", "None", "number", "text", "masked", "complex", "2-D", "NaN"],
)
def test_targets_of_score(model, targets):
    fitted = model.fit(X, y)
    with pytest.raises(ValueError, match=r"(^|\W)(X and )?y(\W)"):
        fitted.score(X, targets)
    weights = np.arange(30) % 3
    kind = ClassifierMixin if hasattr(fitted, "classes_") else RegressorMixin
    assert fitted.score(X, y, weights) == kind.score(fitted, X, y, weights)


@pytest.fixture
def store(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA, store=url)
    return url


@pytest.mark.parametrize("wrong", [3, 1j, print, ["a"]], ids=said)
def test_arguments_of_the_history(store, wrong):
    for call in (
        lambda: load_evaluations(store, study_name=wrong),
        lambda: load_fold_scores(store, study_name=wrong),
        lambda: forget(store, study_name=wrong),
    ):
        with pytest.raises(ValueError, match="^study_name must be a str, got"):
            call()
    for load in (load_evaluations, load_fold_scores):
        with pytest.raises(ValueError, match="^study must be an optuna.Study, got"):
            load(store, study=wrong)
        with pytest.raises(ValueError, match="^study must be an optuna.Study, got"):
            load(store, study=optuna.Study)
    for runs in (np.array(3), np.eye(2), "run", [3], [wrong]):
        with pytest.raises(ValueError, match="^runs must be a collection of names of runs, got"):
            load_fold_scores(store, runs=runs)
        with pytest.raises(
            ValueError, match="^keep_runs must be a collection of names of runs, got"
        ):
            forget(store, keep_runs=runs)


def test_numpy_integers_for_the_dashboard(store):
    report = pytest.importorskip("optuna_treecv.report")
    dashboard = pytest.importorskip("optuna_treecv.dashboard")
    study = optuna.create_study()
    assert report.plot_fold_scores(study, store, n_best=np.int64(2)).layout.annotations
    callback = dashboard.DashboardCallback(store, every=np.uint8(1))
    study.optimize(lambda trial: 0.0, n_trials=2, callbacks=[callback])
    for wrong in (0, True, 1.5, SECOND):
        with pytest.raises(ValueError, match="^n_best must be a number of trials, 1 or more, got"):
            report.plot_fold_scores(study, store, n_best=wrong)
        with pytest.raises(ValueError, match="^every must be a number of trials, 1 or more, got"):
            dashboard.DashboardCallback(store, every=wrong)


def test_figures_need_a_study(store):
    report = pytest.importorskip("optuna_treecv.report")
    dashboard = pytest.importorskip("optuna_treecv.dashboard")
    for function in (
        *(report.plot_parameters, report.plot_fold_scores, report.plot_choice),
        dashboard.publish,
    ):
        with pytest.raises(ValueError, match="^study must be an optuna.Study, got 3"):
            function(3, store)


@pytest.mark.parametrize("scoring", ["f1", "average_precision"])
def test_labels_without_the_positive_one(scoring):
    """The error comes with the objective, and not in the first trial."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    words = np.where(X[:, 0] > 0, "yes", "no")
    space = {"C": FloatDistribution(0.1, 1.0)}
    model = LogisticRegression()
    with pytest.raises(
        ValueError, match=rf"^scoring='{scoring}' needs another pos_label, because .* 'yes'"
    ):
        treecv_objective(model, X, words, param_distributions=space, scoring=scoring)
    with pytest.raises(ValueError, match="pos_label"):
        cross_val_score(model, X, words, scoring=scoring, error_score="raise")
    scorer = get_scorer(scoring)
    right = make_scorer(
        scorer._score_func, pos_label="yes", response_method=scorer._response_method
    )
    assert np.isfinite(tree_cross_validate(model, X, words, scoring=right).mean)
    for others in ("f1_macro", "roc_auc", "accuracy"):
        assert np.isfinite(tree_cross_validate(model, X, words, scoring=others).mean)
    for codes in (words == "yes", np.where(words == "yes", 1, -1)):
        assert np.isfinite(tree_cross_validate(model, X, codes, scoring=scoring).mean)
