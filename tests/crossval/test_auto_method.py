"""``method="auto"`` never changes what an estimator is: its models are those of ``fit``."""

import inspect
from pathlib import Path
import re
import warnings

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from sklearn.base import clone
from sklearn.base import is_regressor
from sklearn.cluster import MiniBatchKMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import NuSVC
from sklearn.svm import SVC
from sklearn.utils import all_estimators
from sklearn.utils import get_tags
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.estimators.incremental import why_fit_differs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] + 0.3 * RNG.normal(size=120) > 0).astype(int)
ALPHA = {"alpha": FloatDistribution(1e-5, 1e-1, log=True)}


def is_made_without_arguments(kind):
    parameters = inspect.signature(kind).parameters.values()
    return all(one.default is not inspect.Parameter.empty for one in parameters)


WITH_PARTIAL_FIT = [
    kind
    for _, kind in all_estimators()
    if hasattr(kind, "partial_fit") and is_made_without_arguments(kind)
]


@pytest.mark.parametrize("kind", WITH_PARTIAL_FIT)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*onverge:UserWarning")
def test_what_is_trained_further_is_what_fit_makes(kind):
    """Whatever scikit-learn has: if it is trusted, one call of partial_fit does the same."""
    estimator = kind()
    settings = {"max_iter": 1, "random_state": 0} & estimator.get_params().keys()
    estimator.set_params(**{name: {"max_iter": 1, "random_state": 0}[name] for name in settings})
    if why_fit_differs(estimator) or not get_tags(estimator).requires_fit:
        return
    rows = np.abs(X).round()
    target = X[:, 0] if "Regressor" in kind.__name__ else Y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = clone(estimator).fit(rows, target)
        arguments = inspect.signature(estimator.partial_fit).parameters
        classes = {"classes": np.unique(Y)} if "classes" in arguments else {}
        trained = clone(estimator).partial_fit(rows, target, **classes)
    ask = next(name for name in ("predict_proba", "predict", "transform") if hasattr(fitted, name))
    assert np.array_equal(getattr(fitted, ask)(rows), getattr(trained, ask)(rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "asked"),
    [
        (SGDClassifier(), {"n_epochs": 1}),
        (SGDClassifier(), {"n_epochs": 3}),
        (SGDClassifier(), {"method": "treecv"}),
        (SGDClassifier(max_iter=1), {}),
        (make_pipeline(StandardScaler(), SGDClassifier()), {"n_epochs": 1}),
    ],
)
@pytest.mark.filterwarnings("ignore:SGDClassifier.max_iter:UserWarning")
def test_the_tree_where_it_is_asked_for(estimator, asked):
    result = tree_cross_validate(estimator, X, Y, **asked)
    assert result.method == "treecv"
    if "method" not in asked:
        same = tree_cross_validate(estimator, X, Y, **asked, method="treecv")
        assert np.array_equal(result.test_score, same.test_score)


def test_the_same_on_a_hold_out():
    held = {"method": "holdout", "cv": 5}
    assert "method='fit'" in explained(SGDClassifier(), **held)
    assert "method='treecv'" in explained(SGDClassifier(), **held, n_epochs=1)
    assert "method='treecv'" in explained(PegasosClassifier(), **held)


def explained(estimator, **asked):
    return treecv_objective(estimator, X, Y, param_distributions=ALPHA, **asked).explain()


ESTIMATORS = [
    LogisticRegression(),
    RandomForestClassifier(),
    SVC(),
    NuSVC(),
    KNeighborsClassifier(),
    SGDClassifier(),
    SGDClassifier(max_iter=1),
    Ridge(),
    Lasso(),
    GaussianNB(),
    make_pipeline(StandardScaler(), LogisticRegression()),
    make_pipeline(StandardScaler(), Ridge()),
    PegasosClassifier(),
    make_pipeline(StandardScaler(), AveragedSGDClassifier()),
    HistTreeClassifier(),
    MiniBatchKMeans(),
]


class OwnFit(GaussianNB):
    """A class whose ``fit`` may be anything."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y, sample_weight)


OTHERS = [
    (OwnFit(), "fit", "one pass of partial_fit may give another model than fit of OwnFit"),
    (MLPClassifier(max_iter=1), "treecv", "MLPClassifier has partial_fit"),
    (
        OneVsRestClassifier(SGDClassifier(max_iter=1)),
        "treecv",
        "OneVsRestClassifier has partial_fit",
    ),
    (SGDRegressor(), "fit", "fit of SGDRegressor makes up to max_iter=1000 passes"),
    (
        make_pipeline(MinMaxScaler(), make_pipeline(StandardScaler(), SGDClassifier())),
        "fit",
        "fit of SGDClassifier makes up to",
    ),
    (
        make_pipeline(FunctionTransformer(), Normalizer(), PegasosClassifier()),
        "treecv",
        "its steps run inside the compiled PegasosClassifier",
    ),
    (MLPClassifier(), "fit", "fit of MLPClassifier makes up to max_iter=200 passes"),
    (OneVsRestClassifier(SGDClassifier()), "fit", "fit of SGDClassifier makes up to"),
    (BernoulliNB(), "treecv", "BernoulliNB has partial_fit"),
    (LinearDiscriminantAnalysis(), "exact", "its models are computed from sums over rows"),
]
PAGE = Path(__file__).parents[2] / "docs" / "user_guide" / "your_estimator.rst"


def rows_of_table(estimators):
    for estimator in estimators:
        y = X[:, 0] if is_regressor(estimator) else Y
        said = treecv_objective(
            estimator,
            X,
            None if isinstance(estimator, MiniBatchKMeans) else y,
            param_distributions={next(iter(estimator.get_params())): CategoricalDistribution([0])},
        ).explain()
        method, why = re.search(r"by method='(\w+)', because ([^.]*)\.", said).groups()
        named = " -> ".join(map(repr, [step for _, step in getattr(estimator, "steps", [])]))
        yield named or repr(estimator), method, why


def test_the_table_of_what_auto_does():
    """The documentation lists the methods that explain() names, with reasons in its own words."""
    shown = re.findall(r"   \* - ``(.*)``\n     - ``(\w+)``\n     - \S", PAGE.read_text())
    assert shown == [(named, method) for named, method, _ in rows_of_table(ESTIMATORS)]


@pytest.mark.parametrize(("estimator", "method", "why"), OTHERS)
def test_what_auto_does_with_others(estimator, method, why):
    ((_, chosen, said),) = rows_of_table([estimator])
    assert chosen == method
    assert said.startswith(why)


def test_the_tree_is_named_as_the_alternative():
    said = explained(SGDClassifier())
    assert (
        "because fit of SGDClassifier makes up to max_iter=1000 passes and partial_fit one" in said
    )
    assert "method='treecv' or n_epochs, the tree takes at most 518 row updates per epoch" in said
    assert "tree takes" not in explained(SGDClassifier(early_stopping=True))


# --- Epochs of trials ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [SGDClassifier(random_state=0), make_pipeline(StandardScaler(), PegasosClassifier())],
)
def test_epochs_can_be_searched(estimator):
    space = {"n_epochs": IntDistribution(1, 4)}
    objective, study = searched(estimator, (X, Y), space, 3)
    for trial in study.trials:
        n_epochs = trial.params["n_epochs"]
        alone = tree_cross_validate(estimator, X, Y, n_epochs=n_epochs)
        assert trial.value == alone.mean
    best = objective.best_estimator(study)
    n_steps = study.best_params["n_epochs"] * len(X)
    learner = getattr(best, "steps", [("", best)])[-1][1]
    assert learner.t_ == n_steps + isinstance(learner, SGDClassifier)  # which counts from 1


@pytest.mark.slow
def test_epochs_in_a_grid():
    grid = {"n_epochs": [1, 3], "alpha": [1e-3, 1e-2]}
    search = TreeCVSearchCV(SGDClassifier(random_state=0), param_grid=grid, random_state=0)
    search.fit(X, Y)
    for number, params in enumerate(search.cv_results_["params"]):
        own = dict(params)
        n_epochs = own.pop("n_epochs")
        model = SGDClassifier(random_state=0, **own)
        alone = tree_cross_validate(
            model, X, Y, n_epochs=n_epochs, random_state=0, scoring="accuracy"
        )
        assert search.cv_results_["mean_test_score"][number] == pytest.approx(alone.mean)


@pytest.mark.parametrize(
    ("estimator", "space", "right"),
    [
        (
            SVC(),
            {"n_epochs": IntDistribution(1, 3)},
            "n_epochs must be None for SVC with method='kernel', got a search space: "
            "its models are solved to convergence",
        ),
        (
            NuSVC(),
            {"n_epochs": IntDistribution(1, 3)},
            "n_epochs must be None for NuSVC with method='fit', got a search space:",
        ),
        (
            SGDClassifier(),
            {"n_epochs": IntDistribution(0, 3)},
            "n_epochs must be an integer from 1",
        ),
        (SGDClassifier(), {"n_epochs": FloatDistribution(1, 3)}, "n_epochs must be an integer"),
    ],
)
def test_epochs_that_cannot_be_searched(estimator, space, right):
    with pytest.raises(ValueError, match=right):
        treecv_objective(estimator, X, Y, param_distributions=space)


def test_a_search_over_max_iter_fits_all_trials():
    space = {"max_iter": IntDistribution(1, 20)}
    objective = treecv_objective(SGDClassifier(), X, Y, param_distributions=space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert objective.evaluate({"max_iter": 1}).method == "fit"


# --- Studies ---


@pytest.mark.slow
def test_a_study_that_began_in_the_tree_goes_on_in_it(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=storage, study_name="old")
    for alpha in (1e-4, 1e-3, 1e-2, 3e-4):
        study.enqueue_trial({"alpha": alpha})
    estimator = SGDClassifier(random_state=0)
    before = treecv_objective(estimator, X, Y, param_distributions=ALPHA, n_epochs=1)
    study.optimize(before, n_trials=2)

    after = treecv_objective(estimator, X, Y, param_distributions=ALPHA)
    again = optuna.load_study(study_name="old", storage=storage)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.optimize(after, n_trials=2)
        best = after.best_estimator(again)
    for trial in again.trials:
        assert trial.value == before.evaluate(trial.params).mean
    assert np.array_equal(best.coef_, before.best_estimator(again).coef_)
    assert after.evaluate(again.best_params).method == "fit"  # but a new one does not


def test_a_study_of_both_kinds_says_which_trials_compare():
    def suggest(trial):
        kinds = {"network": SGDClassifier(random_state=0), "pegasos": PegasosClassifier()}
        kind = trial.suggest_categorical("kind", ["network", "pegasos"])
        return kinds[kind].set_params(alpha=trial.suggest_float("alpha", 1e-4, 1e-2))

    objective = treecv_objective(suggest, X, Y)
    study = optuna.create_study()
    for kind in ("pegasos", "pegasos", "network", "network", "pegasos"):
        study.enqueue_trial({"kind": kind, "alpha": 1e-3})
    with pytest.warns(UserWarning) as found:
        study.optimize(objective, n_trials=5)
    mixing = [str(one.message) for one in found if "hardly comparable" in str(one.message)]
    assert len(mixing) == 1
    assert "trial 2 by fit, trials 0, 1 by passes" in mixing[0]
    with pytest.warns(UserWarning, match="trials 2, 3 by fit, trials 0, 1, 4 by passes"):
        objective.best_estimator(study)


def test_a_searched_step_that_changes_the_method():
    rows = X.copy()
    rows[::7, 1] = np.nan
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), PegasosClassifier())
    grid = {"simpleimputer__strategy": ["mean", "median"]}
    objective = treecv_objective(pipeline, rows, Y, param_grid=grid)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    with pytest.warns(UserWarning, match="because its models are trained in two ways: "):
        study.optimize(objective)


def test_estimators_of_both_kinds_side_by_side():
    with pytest.warns(UserWarning, match="partial_fit for others .see CVResult.method"):
        tree_cross_validate_many([SGDClassifier(), PegasosClassifier()], X, Y)
