"""A study plans its trials once: the plan of one trial never decides on another one wrongly."""

from __future__ import annotations

import warnings

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.crossval import evaluate

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 4))
Y = (X[:, 0] + RNG.normal(size=90) > 0).astype(int)
ALPHA = FloatDistribution(1e-3, 10.0, log=True)


def tried(estimator, points, **options):
    """Evaluate points one after the other in one study; yield each with a result of its own."""
    axes = {name: CategoricalDistribution([point[name] for point in points]) for name in points[0]}
    distributions = options.pop("param_distributions", axes)
    arguments = {"param_distributions": distributions, "cv": 5, "random_state": 0} | options
    objective = treecv_objective(estimator, X, Y, **arguments)
    study = optuna.create_study(direction=objective.direction)
    for point in points:
        study.enqueue_trial(point)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(objective, n_trials=len(points))
        for trial in study.trials:
            alone = treecv_objective(estimator, X, Y, **arguments).evaluate(trial.params)
            yield trial, alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "distributions"),
    [
        (PegasosClassifier(), {"alpha": ALPHA, "average": CategoricalDistribution([True, False])}),
        (AveragedSGDClassifier(), {"alpha": ALPHA, "n_epochs": IntDistribution(1, 3)}),
        (SGDClassifier(max_iter=1, tol=None), {"alpha": ALPHA}),
        (SGDClassifier(tol=None), {"alpha": ALPHA, "max_iter": IntDistribution(1, 2)}),
        (
            make_pipeline(MinMaxScaler(), PegasosClassifier()),
            {
                "pegasosclassifier__alpha": ALPHA,
                "minmaxscaler": CategoricalDistribution(["passthrough"]),
            },
        ),
        (
            make_pipeline(StandardScaler(), Ridge()),
            {
                "ridge__alpha": ALPHA,
                "ridge__solver": CategoricalDistribution(["auto", "svd", "sag"]),
            },
        ),
        (DecisionTreeClassifier(random_state=0), {"max_depth": IntDistribution(1, 5)}),
        (KNeighborsClassifier(), {"n_neighbors": IntDistribution(1, 9)}),
    ],
    ids=lambda one: type(one).__name__ if hasattr(one, "fit") else "",
)
def test_each_trial_has_the_result_of_its_parameters(estimator, distributions):
    rng = np.random.default_rng(0)
    points = [
        {
            name: rng.choice(one.choices).item()
            if isinstance(one, CategoricalDistribution)
            else int(rng.integers(one.low, one.high + 1))
            if isinstance(one, IntDistribution)
            else float(rng.uniform(one.low, one.high))
            for name, one in distributions.items()
        }
        for _ in range(4)
    ]
    for trial, alone in tried(estimator, points, param_distributions=distributions):
        assert trial.value == alone.mean
        assert trial.user_attrs["treecv"]["method"] == alone.method


def test_estimators_that_differ_in_free_parameters_share_a_plan(monkeypatch):
    """A number that is not positive may decide, and any other setting does."""
    plans = []
    run_for = evaluate.run_for
    monkeypatch.setattr(
        evaluate, "run_for", lambda *args, **wants: plans.append(args) or run_for(*args, **wants)
    )

    def model(alpha, **options):
        return make_pipeline(StandardScaler(**options), Ridge(alpha))

    given = [model(1.0), model(0.0), model(np.float64(2)), model(3, with_std=False), model(4)]
    given += [Ridge(2.0), Ridge(1.0), model(5).set_output(transform="pandas")]
    found = tree_cross_validate_many(given, X, Y, cv=3)
    assert len(plans) == 5
    assert [one.method for one in found] == ["exact", "fit", *["exact"] * 6]
    for estimator, result in zip(given, found, strict=True):
        alone = tree_cross_validate(estimator, X, Y, cv=3)
        np.testing.assert_allclose(result.test_score, alone.test_score, rtol=1e-12)


def test_a_number_that_decides_is_planned_for():
    """scikit-learn's Ridge may have no model at alpha=0, so that "auto" fits it."""
    points = [{"alpha": alpha} for alpha in (1.0, 0.0, 2.0)]
    distributions = {"alpha": FloatDistribution(0.0, 2.0)}
    found = list(tried(Ridge(), points, param_distributions=distributions))
    assert [one.user_attrs["treecv"]["method"] for one, _ in found] == ["exact", "fit", "exact"]
    for trial, alone in found:
        assert trial.value == alone.mean


def test_a_trial_that_had_to_be_fitted_does_not_change_the_next_one():
    """Where sums do not tell a model, the folds of its trial are fitted."""
    alike = np.column_stack([X, X[:, 0] + 1e-13 * X[:, 1]])
    distributions = {"alpha": FloatDistribution(1e-300, 2.0)}
    objective = treecv_objective(
        RidgeClassifier(class_weight="balanced"), alike, Y, param_distributions=distributions, cv=5
    )
    study = optuna.create_study()
    for alpha in (1e-300, 1.0, 1e-300):
        study.enqueue_trial({"alpha": alpha})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(objective, n_trials=3)
    methods = [trial.user_attrs["treecv"]["method"] for trial in study.trials]
    assert methods == ["fit", "exact", "fit"]


def test_further_trials_are_not_planned(monkeypatch):
    """This is what the plan is kept for: engines are asked once."""
    asked = []
    plan_for = evaluate.plan_for
    monkeypatch.setattr(evaluate, "plan_for", lambda *args: asked.append(args) or plan_for(*args))
    objective = treecv_objective(
        PegasosClassifier(), X, Y, param_distributions={"alpha": ALPHA}, cv=5
    )
    n_before = len(asked)
    optuna.create_study().optimize(objective, n_trials=5)
    assert len(asked) == n_before + 1


def test_wrong_values_are_refused_in_planned_trials():
    objective, _ = searched(PegasosClassifier(), (X, Y), {"alpha": ALPHA}, 2, cv=5)
    planned = objective.evaluator._last_plan[0]
    with pytest.raises(ValueError, match="'alpha' parameter of PegasosClassifier"):
        planned.with_estimator(PegasosClassifier(alpha=float("inf") * 0))
