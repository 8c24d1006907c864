"""The models of all folds are those that were scored, and their average is an estimator."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Perceptron
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
from studies import searched

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier

X, CODES = make_classification(
    150, n_features=6, n_informative=4, n_redundant=0, flip_y=0.1, random_state=0, n_classes=3
)
LABELS = np.array(["b", "a", "c"])[CODES]
NUMBERS = X @ np.linspace(-1, 1, 6) + 0.1 * CODES
WEIGHTS = np.random.default_rng(0).integers(1, 5, len(X)).astype(float)
ALPHAS = {"alpha": [0.01, 1.0]}

CASES = [
    (Ridge(), ALPHAS, {}),
    (Ridge(), ALPHAS, {"cv": "loo"}),
    (Ridge(fit_intercept=False), ALPHAS, {"cv": "loo"}),
    (Ridge(), ALPHAS, {"cv": "loo", "sample_weight": WEIGHTS}),
    (Ridge(), ALPHAS, {"cv": 5, "n_repeats": 2}),
    (LinearRegression(), {"fit_intercept": [True, False]}, {"cv": "loo"}),
    (make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1]}, {"cv": "loo"}),
    (LinearSVC(), {"C": [0.1, 1.0]}, {}),
    (PegasosClassifier(), ALPHAS, {"cv": "loo"}),
    (PegasosClassifier(), ALPHAS, {"method": "standard", "order": "random"}),
    (AveragedSGDRegressor(), {"step_size": [0.01, 0.1]}, {"n_epochs": 2}),
    (AveragedSGDRegressor(fit_intercept=False), {"step_size": [0.01]}, {"cv": TimeSeriesSplit(4)}),
    (StreamingSVRGClassifier(), ALPHAS, {}),
    (
        make_pipeline(StandardScaler(), PegasosClassifier()),
        {"pegasosclassifier__alpha": [0.1]},
        {"cv": 7},
    ),
    (
        make_pipeline(StandardScaler(), SGDRegressor()),
        {"sgdregressor__alpha": [0.1]},
        {"method": "treecv"},
    ),
    (
        make_pipeline(MaxAbsScaler(), StandardScaler(with_mean=False), LogisticRegression()),
        {"logisticregression__C": [0.1]},
        {},
    ),
    (
        make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
        {"logisticregression__C": [0.1]},
        {},
    ),
    (HistTreeClassifier(), {"max_depth": [2, 3]}, {}),
    (HistTreeRegressor(), {"max_depth": [2, 3]}, {"n_repeats": 2}),
    (RandomForestClassifier(3, random_state=0), {"max_depth": [2]}, {"cv": KFold(3)}),
]


def neg_inertia(estimator, X, y=None):
    return estimator.score(X)


def target_of(estimator):
    return LABELS if is_classifier(estimator) else NUMBERS


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "grid", "options"), CASES)
def test_each_model_gives_the_predictions_that_were_scored(estimator, grid, options):
    y = target_of(estimator)
    is_incremental = options.get("method") or type(estimator).__module__.startswith("optuna")
    method = {} if is_incremental else {"method": "auto"}
    objective, study = searched(estimator, (X, y), grid, **{"cv": 6} | method | options)
    run = objective.evaluator.run_of(study.best_trial)
    models = objective.fold_models(study)
    names = ["predict"] + ["decision_function"] * hasattr(estimator, "decision_function")
    for name in names:
        for repeat in run.plan.repeats:
            cut = repeat.cut
            of_repeat = [models[repeat.number * cut.n_folds + i] for i in range(cut.n_folds)]
            if isinstance(options.get("cv"), TimeSeriesSplit):
                frame = objective.predict_oof(study, name, as_frame=True)
                expected = np.full(len(X), np.nan)
                expected[frame.index] = frame[name]
            else:
                expected = run.plan.predict(run.estimator, repeat, name)
            for chunk in range(cut.n_folds):
                rows = cut.test_rows(chunk)
                predicted = getattr(of_repeat[cut.number(chunk)], name)(X[rows])
                if predicted.dtype.kind == "U":
                    np.testing.assert_array_equal(predicted, expected[rows])
                else:
                    np.testing.assert_allclose(predicted, expected[rows], rtol=1e-5, atol=1e-7)
    if is_regressor(estimator):
        expected = [model.predict(X[:5]) for model in models]
        np.testing.assert_allclose(models.predict(X[:5]), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("estimator", "grid", "method"),
    [
        (RandomForestClassifier(3, random_state=0), {"max_depth": [2]}, "predict_proba"),
        (LogisticRegression(tol=1e-10, max_iter=1000), {"C": [1.0]}, "predict_proba"),
        (SVC(), {"C": [1.0]}, "decision_function"),
        (DecisionTreeRegressor(random_state=0), {"max_depth": [2]}, "predict"),
        (Ridge(), {"alpha": [1.0]}, "predict"),
    ],
)
def test_the_average_predicts_the_mean_of_fits(estimator, grid, method):
    y, cv = target_of(estimator), KFold(4, shuffle=True, random_state=0)
    objective, study = searched(estimator, (X, y), grid, cv=cv)
    average = objective.best_estimator(study, kind="folds")
    estimator.set_params(**study.best_params)
    outputs = []
    for train, _ in cv.split(X):
        outputs.append(getattr(estimator.fit(X[train], y[train]), method)(X))
    mean = np.mean(outputs, axis=0)
    np.testing.assert_allclose(getattr(average, method)(X), mean, rtol=1e-5)
    restored = pickle.loads(pickle.dumps(average))
    np.testing.assert_array_equal(restored.predict(X), average.predict(X))
    assert is_classifier(average) == is_classifier(estimator)
    if is_classifier(estimator):
        expected = estimator.classes_[mean.argmax(axis=1)]
        np.testing.assert_array_equal(average.predict(X), expected)
    permutation_importance(average, X, y, n_repeats=1)
    assert clone(average).score(X, y) > 0.3
    assert "FoldAverage(4 models, the first one is" in repr(average)


def test_binary_decision_values_and_votes():
    y = LABELS == "a"
    for estimator in (PegasosClassifier(), Perceptron()):
        grid = {"alpha": [0.1]} if isinstance(estimator, PegasosClassifier) else {"eta0": [1.0]}
        objective, study = searched(estimator, (X, y), grid, cv=3)
        average = objective.best_estimator(study, kind="folds")
        decision = np.mean([m.decision_function(X) for m in average.models], axis=0)
        np.testing.assert_array_equal(average.predict(X), decision > 0)


class Voter(Perceptron):
    """A classifier that only predicts classes."""

    @property
    def decision_function(self):
        raise AttributeError

    def predict(self, X):
        return self.classes_[Perceptron.decision_function(self, X).argmax(axis=1)]


def test_classifiers_without_outputs_vote():
    objective, study = searched(Voter(), (X, LABELS), {"eta0": [1.0]}, cv=5, method="fit")
    models = objective.fold_models(study)
    labels = np.array([model.predict(X) for model in models])
    votes = np.array([(labels == label).sum(axis=0) for label in "abc"])
    average = objective.best_estimator(study, kind="folds")
    np.testing.assert_array_equal(average.predict(X), np.array(list("abc"))[votes.argmax(axis=0)])


def test_too_many_or_too_large_models_are_refused(monkeypatch):
    monkeypatch.setattr("optuna_treecv.core.fold_models._MAX_MODELS", 10)
    monkeypatch.setattr("optuna_treecv.core.fold_models._MAX_BYTES", 8 * 7 * 11)
    for estimator, grid, words in (
        (DecisionTreeRegressor(), {"max_depth": [1]}, "at most 10 folds for fold models of Dec"),
        (Ridge(), ALPHAS, "at most 11 folds, so that"),
        (AveragedSGDRegressor(), {"step_size": [0.1]}, r"at most \d folds, so that"),
    ):
        objective, study = searched(estimator, (X, NUMBERS), grid, cv=12)
        with pytest.raises(ValueError, match=f"^cv must have {words}.* got 12; use fewer folds"):
            objective.fold_models(study)


def test_folds_without_a_class_are_refused():
    y = np.where(np.arange(len(X)) < 20, "a", np.where(LABELS == "a", "b", LABELS))
    estimator, grid = RandomForestClassifier(3, random_state=0), {"max_depth": [1]}
    objective, study = searched(estimator, (X, y), grid, cv=KFold(6), method="fit")
    with pytest.raises(ValueError, match="^cv must make training sets with every class"):
        objective.best_estimator(study, kind="folds")


def test_only_classifiers_and_regressors_are_averaged():
    objective, study = searched(
        KMeans(n_init=1, random_state=0), (X,), {"n_clusters": [2]}, cv=3, scoring=neg_inertia
    )
    with pytest.raises(ValueError, match="^kind must be 'refit' unless the estimator is a class"):
        objective.best_estimator(study, kind="folds")


def test_single_passes_have_no_fold_models():
    objective, study = searched(PegasosClassifier(), (X, LABELS), ALPHAS, method="progressive")
    with pytest.raises(ValueError, match="^method must not be 'progressive' for fold models"):
        objective.fold_models(study)
    diverging = AveragedSGDRegressor(step_size=1e300)
    objective, study = searched(diverging, (X, NUMBERS), {"alpha": [1e-4]}, cv=3)
    with pytest.raises(ValueError, match="AveragedSGDRegressor diverges on a fold"):
        objective.fold_models(study)


def test_several_targets():
    y = np.column_stack([NUMBERS, NUMBERS**2])
    for estimator, grid in (
        (Ridge(), ALPHAS),
        (MultiOutputRegressor(Ridge()), {"estimator__alpha": [1.0]}),
    ):
        objective, study = searched(estimator, (X, y), grid, cv=3)
        average = objective.best_estimator(study, kind="folds")
        predictions = np.array([model.predict(X) for model in average.models])
        np.testing.assert_allclose(average.predict(X), predictions.mean(axis=0))
        np.testing.assert_allclose(objective.fold_models(study).predict(X), predictions)
