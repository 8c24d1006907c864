"""Parameters are checked before rows are prepared, and may be NumPy's numbers and bools."""

from __future__ import annotations

from fractions import Fraction

from ids import said
import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
import pytest
from sklearn.base import clone
from sklearn.base import is_classifier

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
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3))
y = (X[:, 0] > 0).astype(int)
ALPHA = {"alpha": FloatDistribution(1e-4, 1.0, log=True)}
BAD_ROWS = np.where(np.arange(1800).reshape(600, 3) == 7, np.nan, X)


def entries(estimator):
    return {
        "validate": lambda: tree_cross_validate(estimator, BAD_ROWS, y),
        "many": lambda: tree_cross_validate_many([estimator, estimator], BAD_ROWS, y),
        "out of fold": lambda: tree_cross_val_predict(estimator, BAD_ROWS, y),
        "objective": lambda: treecv_objective(
            estimator, BAD_ROWS, y, param_distributions={"shuffle": CategoricalDistribution([0])}
        ),
        "trial": lambda: treecv_objective(lambda trial: estimator, BAD_ROWS, y).evaluate({}),
        "fit": lambda: estimator.fit(BAD_ROWS, y),
        "partial_fit": lambda: clone(estimator).partial_fit(BAD_ROWS, y, classes=[0, 1]),
    }


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
    objective = treecv_objective(PegasosClassifier(alpha=0), X, y, param_distributions=ALPHA)
    assert objective.evaluate({"alpha": 0.1}).mean < 0.5
    objective = treecv_objective(
        *(PegasosClassifier(fit_intercept=2**27), X, y),
        param_grid={"fit_intercept": [True, False]},
    )
    assert objective.evaluate({"fit_intercept": False}).mean < 0.5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_repeats": 10**9}, "n_repeats must be an integer from 1 to 10000, got 1000000000"),
        ({"n_repeats": 10**30}, "n_repeats must be an integer from 1 to 10000, got 10{30}"),
        ({"batch_size": 2**40}, "batch_size must be an integer from 1 to 1024, got 1099511627776"),
        ({"batch_size": True}, "batch_size must be an integer from 1 to 1024, got True"),
        ({"batch_size": 2.0}, "batch_size must be an integer from 1 to 1024, got 2.0"),
        ({"groups": 5}, "groups .*Expected sequence"),
        ({"random_state": "x"}, "^random_state cannot be used: 'x' cannot be used to seed"),
    ],
    ids=said,
)
def test_arguments_without_an_end(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA, **options)


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
    rows = X.astype(np.float32)
    target = y if is_classifier(estimator) else X[:, 0]
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
    expected = tree_cross_validate(PegasosClassifier(), X, y, **own).test_score
    objective = treecv_objective(
        PegasosClassifier(),
        *(X, y),
        param_distributions=ALPHA,
        batch_size=number(4),
        cache=ModelCache(max_bytes=number(100)),
        **theirs,
    )
    found = objective.evaluate({"alpha": PegasosClassifier().alpha}).test_score
    np.testing.assert_array_equal(found, expected)
    assert type(ModelCache(max_bytes=number(100)).max_bytes) is int
