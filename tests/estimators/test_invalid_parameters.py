"""Evaluations refuse exactly those parameters that ``fit`` of scikit-learn refuses.

Each engine is chosen by rules of its own, which must not let through what ``fit`` refuses beyond
the ranges of single parameters. Pairs of values differ from the defaults, so that no refusal hides
another one.
"""

from __future__ import annotations

from fractions import Fraction

from ids import said
import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.covariance import LedoitWolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import TweedieRegressor
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

RNG = np.random.default_rng(0)
N = 36
X = np.abs(RNG.normal(size=(N, 3)))
CODES = np.arange(N) % 2
Y = X @ [1, 2, 0.5] + 0.1
ROWS = {
    "classes": (X, CODES),
    "three": (X, np.arange(N) % 3),
    "sparse": (sparse.csr_matrix(X), CODES),
    "negative": (-X, CODES),
    "numbers": (X, Y),
    "two columns": (X, np.c_[Y, Y**2]),
    "sparse numbers": (sparse.csr_matrix(X), Y),
    "negative numbers": (X, -Y),
}
OF_CLASSES, OF_NUMBERS = (
    ["classes", "three", "sparse"],
    ["numbers", "two columns", "sparse numbers"],
)
FLAGS = [True, False]
WEIGHTS = [None, "balanced", {0: 0, 1: 1}, {5: 1.0}]


def family(estimator, *, rows=None, **parameters):
    """Return an estimator, and some values of its parameters. The first ones are the default."""
    rows = rows or (OF_CLASSES if is_classifier(estimator) else OF_NUMBERS)
    return estimator, {"rows": rows, **parameters}


FAMILIES = {
    "logistic": family(
        LogisticRegression(max_iter=30),
        solver=["lbfgs", "liblinear", "newton-cholesky", "saga"],
        C=[1.0, np.inf, 0],
        l1_ratio=[0.0, 0.5, 1],
        penalty=["deprecated", "l2", "l1", None],
        dual=[False, True],
        tol=[1e-4, 0],
        fit_intercept=FLAGS,
        class_weight=WEIGHTS[:3],
    ),
    "tweedie": family(
        TweedieRegressor(),
        rows=["numbers", "negative numbers", "two columns"],
        power=[0, 1, 1.5, 3, -1, 0.5, "a"],
        link=["auto", "identity", "log", "x"],
        alpha=[1.0, 0, -1],
        solver=["lbfgs", "newton-cholesky"],
    ),
    "LinearSVC": family(
        LinearSVC(),
        penalty=["l2", "l1"],
        loss=["squared_hinge", "hinge"],
        dual=["auto", True, False],
        C=[1.0, np.inf],
        multi_class=["ovr", "crammer_singer"],
        intercept_scaling=[1, 0],
        fit_intercept=FLAGS,
        tol=[1e-4, 0],
    ),
    "LinearSVR": family(
        LinearSVR(loss="squared_epsilon_insensitive"),
        loss=["squared_epsilon_insensitive", "epsilon_insensitive"],
        dual=["auto", True, False],
        epsilon=[0.0, 0.1, -1, np.inf],
        C=[1.0, np.inf],
        intercept_scaling=[1, 0],
    ),
    "ridge": family(
        Ridge(),
        solver=["auto", "svd", "cholesky", "lsqr", "sag", "lbfgs"],
        positive=[False, True],
        alpha=[1.0, 0, np.inf, np.array([1.0, 2.0])],
        fit_intercept=FLAGS,
    ),
    "ridge classifier": family(
        RidgeClassifier(),
        solver=["auto", "svd", "cholesky", "saga", "lbfgs"],
        positive=[False, True],
        alpha=[1.0, 0],
        fit_intercept=FLAGS,
        class_weight=WEIGHTS,
    ),
    "elastic net": family(
        ElasticNet(0.1),
        alpha=[0.1, 0, np.inf],
        l1_ratio=[0.5, 0, 2],
        precompute=[False, True, np.eye(2)],
        positive=[False, True],
        selection=["cyclic", "random", "x"],
        fit_intercept=FLAGS,
    ),
    "least squares": family(
        LinearRegression(), positive=[False, True], fit_intercept=FLAGS, tol=[1e-6, 0]
    ),
    "linear discriminant": family(
        LinearDiscriminantAnalysis(),
        solver=["svd", "lsqr", "eigen"],
        shrinkage=[None, "auto", 0.1, 1.5],
        covariance_estimator=[None, LedoitWolf(), Ridge()],
        priors=[None, [0.5, 0.5], [-0.5, 1.5], [0.2, 0.3, 0.5]],
        n_components=[None, 1, 5],
    ),
    "quadratic discriminant": family(
        QuadraticDiscriminantAnalysis(),
        solver=["svd", "eigen"],
        shrinkage=[None, "auto", 0.1],
        covariance_estimator=[None, LedoitWolf(), Ridge()],
        priors=[None, [0.5, 0.5], [0.2, 0.3, 0.5]],
        reg_param=[0.0, 0.1, 2],
    ),
    "neighbours": family(
        KNeighborsClassifier(),
        metric=["minkowski", "cosine", "haversine", "precomputed", "nan_euclidean", "x"],
        algorithm=["auto", "brute", "kd_tree"],
        p=[2, np.inf, 0.5],
        metric_params=[None, {"p": 3}, {"w": np.ones(3)}, {"x": 1}],
        n_neighbors=[5, 0, 25],
    ),
    "GaussianNB": family(
        GaussianNB(), priors=[None, [0.5, 0.5], [0.3, 0.3], [-0.5, 1.5]], var_smoothing=[1e-9, -1]
    ),
    "MultinomialNB": family(
        MultinomialNB(),
        rows=[*OF_CLASSES, "negative"],
        alpha=[1.0, 0, [1, 2, 3], [1, 2], [1, -2, 3]],
        force_alpha=FLAGS,
        class_prior=[None, [0.5, 0.5], [0.2, 0.3, 0.5]],
    ),
    "BernoulliNB": family(
        BernoulliNB(),
        rows=[*OF_CLASSES, "negative"],
        alpha=[1.0, [1, 2, 3], [1, 2], [1, -2, 3]],
        binarize=[0.0, None, "a"],
    ),
    "forest": family(
        RandomForestClassifier(2, random_state=0),
        bootstrap=FLAGS,
        oob_score=[False, True],
        max_samples=[None, 0.5, 100],
        class_weight=[*WEIGHTS, "balanced_subsample"],
        monotonic_cst=[None, [1, 0, 0], [1, 0]],
        warm_start=[False, True],
    ),
    "forest of numbers": family(
        RandomForestRegressor(2, random_state=0),
        rows=["numbers", "negative numbers", "two columns"],
        criterion=["squared_error", "poisson", "absolute_error"],
        bootstrap=FLAGS,
        oob_score=[False, True],
        monotonic_cst=[None, [1, 0, 0]],
    ),
    "boosting": family(
        GradientBoostingRegressor(n_estimators=2, random_state=0),
        loss=["squared_error", "huber", "quantile"],
        init=[None, "zero", Ridge(), LogisticRegression()],
        alpha=[0.9, 0],
        subsample=[1.0, 0.5],
    ),
    "histograms": family(
        HistGradientBoostingClassifier(max_iter=2, random_state=0, early_stopping=False),
        categorical_features=[None, [0], [5]],
        monotonic_cst=[None, [1, 0, 0], [1, 0]],
        interaction_cst=[None, [{0, 1}], [{0, 7}]],
        class_weight=WEIGHTS,
        early_stopping=[False, True],
    ),
}


def error_of(evaluate, *arguments, **options):
    """Return the error of a call as text; empty if there is none."""
    try:
        evaluate(*arguments, **options)
    except Exception as error:  # whatever fits may raise
        return repr(error)
    return ""


def cases_of(family):
    """Return the estimators of a family that differ from the default in two values at most."""
    estimator, options = FAMILIES[family]
    defaults = {name: values[0] for name, values in options.items()}

    def are_two(**values):
        return sum(values[name] is not one for name, one in defaults.items()) <= 2

    names, cases = pairs(where=are_two, **options)
    for values in cases:
        params = dict(zip(names.split(","), values, strict=True))
        yield params.pop("rows"), clone(estimator).set_params(**params)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_what_fit_refuses_is_refused_and_nothing_else(family):
    differ = []
    for rows, estimator in cases_of(family):
        data = ROWS[rows]
        scoring = "accuracy" if is_classifier(estimator) else "neg_mean_absolute_error"
        kind = {"cv": KFold(2), "scoring": scoring}
        by_fit = error_of(cross_validate, estimator, *data, error_score="raise", **kind)
        ours = error_of(tree_cross_validate, estimator, *data, random_state=0, **kind)
        if bool(by_fit) != bool(ours):
            differ.append((rows, estimator, by_fit, ours))
    assert not differ


REFUSED = [{"solver": "liblinear", "C": np.inf}, {"solver": "liblinear", "tol": 0}]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("params", REFUSED, ids=str)
def test_what_liblinear_refuses_is_refused(params):
    estimator = LogisticRegression(**params)
    with pytest.raises(ValueError, match="liblinear|eps") as by_fit:
        estimator.fit(X, CODES)
    with pytest.raises(ValueError, match="liblinear|eps") as ours:
        tree_cross_validate(estimator, X, CODES, cv=3)
    assert str(ours.value) == str(by_fit.value)
    with pytest.raises(ValueError, match="^method='newton' .*does not support"):
        tree_cross_validate(estimator, X, CODES, cv=3, method="newton")


@pytest.mark.filterwarnings("ignore")
def test_a_refused_candidate_beside_others_scores_as_in_scikit_learn():
    """C=np.inf is among the free parameters, by which candidates share a plan."""
    grid = {"param_grid": {"C": [1.0, np.inf]}, "cv": KFold(3), "error_score": -7.0}
    estimator = LogisticRegression(solver="liblinear")
    ours = TreeCVSearchCV(estimator, random_state=0, **grid).fit(X, CODES).cv_results_
    expected = GridSearchCV(estimator, **grid).fit(X, CODES).cv_results_
    for name in ("mean_test_score", "split0_test_score", "split2_test_score"):
        np.testing.assert_array_equal(ours[name], expected[name])
    with pytest.raises(ValueError, match="not supported for the liblinear solver"):
        tree_cross_validate_many(
            [clone(estimator).set_params(C=C) for C in (1.0, np.inf)], X, CODES, cv=3
        )


# Parameters of this package's estimators: refused before rows are prepared, or of NumPy's types.


rng = np.random.default_rng(0)
MANY = rng.normal(size=(600, 3))
LABELS = (MANY[:, 0] > 0).astype(int)
ALPHA = {"alpha": FloatDistribution(1e-4, 1.0, log=True)}
GOOD = MANY, LABELS
BAD = np.where(np.arange(1800).reshape(600, 3) == 7, np.nan, MANY), LABELS


def entries(estimator):
    return {
        "validate": lambda: tree_cross_validate(estimator, *BAD),
        "many": lambda: tree_cross_validate_many([estimator, estimator], *BAD),
        "out of fold": lambda: tree_cross_val_predict(estimator, *BAD),
        "objective": lambda: treecv_objective(
            estimator, *BAD, param_distributions={"shuffle": CategoricalDistribution([0])}
        ),
        "trial": lambda: treecv_objective(lambda trial: estimator, *BAD).evaluate({}),
        "fit": lambda: estimator.fit(*BAD),
        "partial_fit": lambda: clone(estimator).partial_fit(*BAD, classes=[0, 1]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(None))
@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (PegasosClassifier(fit_intercept=None), "fit_intercept"),
        (PegasosClassifier(fit_intercept=2**27), "fit_intercept"),
        (AveragedSGDClassifier(fit_intercept=np.ones(3)), "fit_intercept"),
        (StreamingSVRGClassifier(fit_intercept="no"), "fit_intercept"),
        (AveragedSGDClassifier(batch_size="2"), "batch_size"),
        (PegasosClassifier(alpha=-1.0), "alpha"),
        (PegasosClassifier(alpha=10**400), "alpha"),
        (PegasosClassifier(alpha=Fraction(1, 3)), "alpha"),
        (PegasosClassifier(n_epochs=2**31), "n_epochs"),
        (AveragedSGDClassifier(step_size=np.longdouble(10) ** 400), "step_size"),
    ],
    ids=said,
)
def test_wrong_parameters_are_found_before_the_rows_are_prepared(estimator, name, entry):
    match = f"^The '{name}' parameter of {type(estimator).__name__} must be .* Got .* instead.$"
    with pytest.raises(ValueError, match=match):
        entries(estimator)[entry]()


def test_a_searched_parameter_may_be_wrong_in_the_estimator_as_given():
    objective = treecv_objective(PegasosClassifier(alpha=0), *GOOD, param_distributions=ALPHA)
    assert objective.evaluate({"alpha": 0.1}).mean < 0.5
    objective = treecv_objective(
        *(PegasosClassifier(fit_intercept=2**27), *GOOD),
        param_grid={"fit_intercept": [True, False]},
    )
    assert objective.evaluate({"fit_intercept": False}).mean < 0.5


def in_numpy(value):
    """Return a parameter in the smallest type of NumPy that holds it."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.min_scalar_type(value).type(value)
    if isinstance(value, float):
        return np.float64(value)
    return value


@pytest.mark.parametrize(
    "estimator",
    [
        PegasosClassifier(2.0**-6, average=True),
        AveragedSGDClassifier(average_start=200),
        AveragedSGDRegressor(batch_size=200),
        LSQSGDRegressor(step_size=0.5),
        StreamingSVRGClassifier(initial_batch_size=200, inner_steps=250, warm_stages=1),
        StreamingSVRGRegressor(alpha=0.5, settings="theory", random_state=3),
        StreamingKMeans(200),
        StreamingGaussianDensity(reg_covar=0.5, random_state=255),
    ],
    ids=said,
)
@pytest.mark.filterwarnings("ignore:settings='theory'")
def test_parameters_of_numpy_types(estimator):
    parameters = {name: in_numpy(value) for name, value in estimator.get_params().items()}
    same = clone(estimator).set_params(**parameters)
    rows = MANY.astype(np.float32)
    target = LABELS if is_classifier(estimator) else MANY[:, 0]
    grid = {"shuffle": [True, False]}
    for make in (
        lambda one: tree_cross_validate(one, rows, target, cv=5).test_score,
        lambda one: (
            treecv_objective(one, rows, target, param_grid=grid)
            .evaluate({"shuffle": True})
            .test_score
        ),
        lambda one: one.set_params(random_state=0).fit(rows, target).score(rows, target),
    ):
        np.testing.assert_array_equal(make(same), make(estimator))


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int64, np.uint64])
def test_arguments_of_numpy_types(number):
    own = {"cv": 5, "n_repeats": 2, "random_state": 3, "n_jobs": 100, "shuffle": True}
    theirs = {name: number(value) for name, value in own.items()} | {"shuffle": np.bool_(True)}
    expected = tree_cross_validate(PegasosClassifier(), *GOOD, **own).test_score
    objective = treecv_objective(
        PegasosClassifier(),
        *(MANY, LABELS),
        param_distributions=ALPHA,
        batch_size=number(4),
        cache=ModelCache(max_bytes=number(100)),
        **theirs,
    )
    found = objective.evaluate({"alpha": PegasosClassifier().alpha}).test_score
    np.testing.assert_array_equal(found, expected)
    assert type(ModelCache(max_bytes=number(100)).max_bytes) is int
