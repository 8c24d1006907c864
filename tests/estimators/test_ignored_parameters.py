"""Parameters that partial_fit does not use: the table, warnings, refused searches."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.linear_model import Perceptron
from sklearn.linear_model import SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import BernoulliRBM
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import all_estimators
from studies import searched

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.estimators.incremental import without_effect

ONE_PASS = "is trained in only one pass over the rows"
FUNCTIONS = (
    tree_cross_validate,
    tree_cross_val_predict,
    tree_cross_validate_many,
    treecv_objective,
)
NOT_USED = "which makes one pass over the rows and ignores"
KINDS = dict(all_estimators())
# Values for each parameter that is about passes, stopping or batches. The first one that an
# estimator does not have is tried.
VALUES = {
    "max_iter": [1],
    "n_iter": [1],
    "tol": [100.0, 1e-9],
    "n_iter_no_change": [1, 50],
    "validation_fraction": [0.4],
    "warm_start": [True],
    "shuffle": [False, True],
    "max_no_improvement": [1],
    "n_init": [5],
    "learning_method": ["online", "batch"],
    "evaluate_every": [1],
    "perp_tol": [100.0],
    "batch_size": [3],
}
ADAPTIVE = {"solver": "sgd", "learning_rate": "adaptive", "tol": 100.0, "n_iter_no_change": 1}
SETTINGS = [
    ("SGDClassifier", {}),
    ("SGDClassifier", {"learning_rate": "adaptive", "eta0": 0.1}),
    ("SGDRegressor", {}),
    ("SGDOneClassSVM", {}),
    ("Perceptron", {}),
    ("PassiveAggressiveClassifier", {}),
    ("PassiveAggressiveRegressor", {}),
    ("MLPClassifier", {"hidden_layer_sizes": 4, "batch_size": 8}),
    ("MLPClassifier", {"hidden_layer_sizes": 4, "batch_size": 8} | ADAPTIVE),
    ("MLPRegressor", {"hidden_layer_sizes": 4, "batch_size": 8}),
    ("MLPRegressor", {"hidden_layer_sizes": 4, "batch_size": 8} | ADAPTIVE),
    ("MiniBatchKMeans", {"n_clusters": 3}),
    ("MiniBatchDictionaryLearning", {"n_components": 3}),
    ("MiniBatchNMF", {"n_components": 2}),
    ("MiniBatchNMF", {"n_components": 2, "transform_max_iter": 10}),
    ("LatentDirichletAllocation", {"n_components": 2}),
    ("BernoulliRBM", {"n_components": 3}),
    ("GaussianNB", {}),
    ("StandardScaler", {}),
]


def rows_and_targets():
    rng = np.random.default_rng(0)
    X = np.abs(rng.normal(size=(90, 5)))
    return X, (X @ rng.normal(size=(5, 3)) + rng.normal(size=(90, 3))).argmax(axis=1)


def responses(estimator) -> list[bytes]:
    """Train in phases and return all that the model says."""
    X, y = rows_and_targets()
    if "random_state" in estimator.get_params():
        estimator.set_params(random_state=0)
    for number, rows in enumerate(np.tile(np.arange(90).reshape(3, 30), (3, 1))):
        if is_classifier(estimator):
            named = {} if number else {"classes": [0, 1, 2]}
            estimator.partial_fit(X[rows], y[rows], **named)
        elif is_regressor(estimator):
            estimator.partial_fit(X[rows], X[rows] @ np.arange(5.0) + y[rows])
        else:
            estimator.partial_fit(X[rows])
    methods = ["decision_function", "predict_proba", "predict", "transform"]
    return [
        np.asarray(getattr(estimator, method)(X)).tobytes()
        for method in methods
        if hasattr(estimator, method)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "settings"), SETTINGS, ids=[f"{kind}-{'-'.join(map(str, s))}" for kind, s in SETTINGS]
)
def test_the_table_says_what_scikit_learn_does(kind, settings):
    """A parameter is in the table if and only if no value of it changes the trained model."""
    if kind not in KINDS:
        pytest.skip(f"this scikit-learn has no {kind}")
    known = KINDS[kind](**settings).get_params()
    unused = without_effect(KINDS[kind](**settings))
    before = responses(KINDS[kind](**settings))
    for name in VALUES.keys() & known.keys():
        value = next(value for value in VALUES[name] if value != known[name])
        after = responses(KINDS[kind](**settings | {name: value}))
        assert (before == after) == (name in unused), name
    assert unused.keys() - VALUES.keys() <= {"early_stopping"}  # partial_fit refuses it
    if "early_stopping" in unused:
        with pytest.raises(ValueError, match="early_stopping"):
            responses(KINDS[kind](**settings, early_stopping=True))


def test_an_estimator_of_the_user_may_use_anything(binary):
    X, y = binary

    class Epochs(SGDClassifier):
        def partial_fit(self, X, y, classes=None):
            for _ in range(self.max_iter):
                super().partial_fit(X, y, classes)
            return self

    class Named(SGDClassifier):
        pass

    assert without_effect(Epochs()) == {}
    assert without_effect(Named()).keys() == without_effect(SGDClassifier()).keys()
    grid = {"max_iter": [1, 2]}
    objective = treecv_objective(Epochs(), X, y, param_grid=grid, cv=3, method="treecv")
    assert objective.evaluate({"max_iter": 1}).mean <= 1


def said(function, *args, **kwargs) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    if function in FUNCTIONS:  # the warning points to the call
        assert {one.filename for one in caught} <= {__file__}
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("function", [tree_cross_validate, tree_cross_val_predict])
def test_several_passes_are_not_what_is_evaluated(function, binary):
    X, y = binary
    further = {"cv": 3, "method": "treecv"}
    (sentence,) = said(function, SGDClassifier(max_iter=20), X, y, **further)
    assert ONE_PASS in sentence and "SGDClassifier(max_iter=20)" in sentence
    assert "Set max_iter=1 " in sentence
    assert said(function, SGDClassifier(max_iter=1), X, y, cv=3) == []
    assert said(function, PegasosClassifier(), X, y, cv=3) == []
    assert said(function, GaussianNB(), X, y, cv=3) == []
    pipeline = make_pipeline(BernoulliRBM(2, n_iter=3), OneVsRestClassifier(Perceptron()))
    first, second = said(function, pipeline, np.abs(X) / np.abs(X).max(), y, **further)
    assert "BernoulliRBM(n_iter=3)" in first and "Set n_iter=1 " in first
    assert "Perceptron(max_iter=1000)" in second


def test_the_warning_comes_once_per_objective(binary):
    X, y = binary
    alpha = {"alpha": FloatDistribution(1e-4, 1.0, log=True)}
    model = SGDClassifier(max_iter=7)
    objectives = []
    further = {"param_distributions": alpha, "cv": 3, "method": "treecv"}
    (sentence,) = said(lambda: objectives.append(treecv_objective(model, X, y, **further)))
    assert "SGDClassifier(max_iter=7)" in sentence
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert said(study.optimize, objectives[0], n_trials=3) == []
    assert said(pickle.loads(pickle.dumps(objectives[0])).evaluate, {"alpha": 0.1}) == []
    assert said(objectives[0].best_estimator, study) == []
    again = said(treecv_objective, model, X, y, **further)
    assert again == [sentence]


def test_a_callable_that_searches_what_has_no_effect(binary):
    """Its search space is not known before the trials, so that it cannot be refused."""
    X, y = binary

    def estimator(trial):
        return make_pipeline(
            StandardScaler(), SGDClassifier(max_iter=trial.suggest_int("epochs", 1, 5), tol=None)
        )

    objective = treecv_objective(estimator, X, y, cv=3, method="treecv")
    assert said(objective.evaluate, {"epochs": 1}) == []
    passes, differ = said(objective.evaluate, {"epochs": 4})
    assert "SGDClassifier(max_iter=4)" in passes
    assert "differ in 'sgdclassifier__max_iter' (1 and 4), but" in differ and NOT_USED in differ
    assert said(objective.evaluate, {"epochs": 5}) == []
    models = [MLPClassifier((2,), max_iter=1, tol=tol) for tol in (1e-4, 1e-3)]
    (differ,) = said(tree_cross_validate_many, models, X, y, cv=3)
    assert "differ in 'tol' (0.0001 and 0.001)" in differ


@pytest.mark.parametrize(
    ("estimator", "name", "values"),
    [
        (SGDClassifier(), "max_iter", [1, 20]),
        (SGDClassifier(), "early_stopping", [False, True]),
        (Perceptron(), "n_iter_no_change", [1, 5]),
        (MLPClassifier(), "tol", [1e-5, 1e-3]),
        (MLPClassifier(), "warm_start", [False, True]),
        (make_pipeline(StandardScaler(), SGDClassifier()), "sgdclassifier__tol", [1e-5, 1e-3]),
        (OneVsRestClassifier(SGDClassifier()), "estimator__validation_fraction", [0.1, 0.2]),
    ],
    ids=str,
)
def test_a_search_space_without_effect_is_refused(estimator, name, values, binary):
    X, y = binary
    kind = "MLPClassifier" if isinstance(estimator, MLPClassifier) else None
    last = name.rpartition("__")[2]
    match = f"'{name}' must not be searched, because {kind or '.*'} is trained by partial_fit, "
    match += f"{NOT_USED} {last}."
    with pytest.raises(ValueError, match=f"^param_grid: {match}"):
        treecv_objective(estimator, X, y, param_grid={name: values}, method="treecv")
    choices = {name: CategoricalDistribution(values)}
    with pytest.raises(ValueError, match=f"^param_distributions: {match}"):
        treecv_objective(estimator, X, y, param_distributions=choices, method="treecv")


@pytest.mark.filterwarnings("ignore:.*is trained in only one pass")
def test_what_may_have_an_effect_is_not_refused(binary):
    X, y = binary
    for estimator, grid in (
        (SGDClassifier(), {"shuffle": [False, True]}),
        (MLPClassifier((2,), solver="sgd", learning_rate="adaptive"), {"tol": [1e-5, 1e-3]}),
        (
            MLPClassifier((2,), solver="sgd"),
            {"learning_rate": ["constant", "adaptive"], "n_iter_no_change": [1, 5]},
        ),
    ):
        objective = treecv_objective(estimator, X, y, param_grid=grid, method="treecv")
        assert objective.param_grid == grid
    step = CategoricalDistribution(["passthrough"])  # it takes the place of the step as given
    space = {"rbm__n_iter": IntDistribution(1, 3), "rbm": step}
    pipeline = make_pipeline(BernoulliRBM(), SGDClassifier())
    pipeline.steps[0] = ("rbm", pipeline.steps[0][1])
    with pytest.raises(ValueError, match="has no parameter 'rbm__n_iter'"):
        treecv_objective(pipeline, X, y, param_distributions=space, method="treecv")


def test_a_single_value_is_no_search():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(2, size=60)
    grid = {"max_iter": [1], "alpha": [1e-4, 1e-3]}
    _, study = searched(SGDClassifier(max_iter=1), (X, y), grid, cv=3)
    assert len(study.trials) == 2
