"""The average of fold models is the mean of the models at the leaves."""

from __future__ import annotations

from ids import said
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Perceptron
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDOneClassSVM
from sklearn.linear_model import SGDRegressor
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from spread import spread
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv.walk import walk_to_leaves
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.memory import aligned_bytes
from optuna_treecv.rows.memory import aligned_empty

CLASSIFIERS = [
    PegasosClassifier(),
    PegasosClassifier(average=True, fit_intercept=False),
    AveragedSGDClassifier(),
    AveragedSGDClassifier(batch_size=4),
    StreamingSVRGClassifier(),
    SGDClassifier(max_iter=1, tol=None, random_state=0),
    Perceptron(max_iter=1, tol=None, random_state=0),
]
REGRESSORS = [
    LSQSGDRegressor(),
    AveragedSGDRegressor(step_size=0.01),
    StreamingSVRGRegressor(),
    SGDRegressor(max_iter=1, tol=None, random_state=0),
]


def leaves_of(estimator, X, y, cv, number=0, **options):
    """Return the coefficients with the intercept of each leaf's model, in the order of the leaves.

    They are those of the estimators that a scorer would get.
    """
    given = {"method": "treecv", "random_state": 0}
    evaluation = CrossValidation.of(X, y, Settings(cv=cv, **given | options), estimator)
    repeat = evaluation.repeats[number]
    run = run_for(evaluation, estimator)
    learner = run.plan.learner(run.estimator, run.plan.rows(repeat), repeat=repeat)
    plan, found = repeat.plan, []

    def take(_, state):
        model = learner.estimator(state)
        found.append(np.append(np.ravel(model.coef_), np.ravel(model.intercept_)))

    walk_to_leaves(plan, learner, take, plan.root, learner.start())
    return plan, np.array(found, np.float64)


def numbers_of(model):
    return np.append(np.ravel(model.coef_), np.ravel(model.intercept_))


def along_the_tree(plan, node, leaves):
    """Return the sum of leaves, siblings first."""
    if node.n_folds == 1:
        return leaves[node.first]
    left, right = plan.split(node)
    return along_the_tree(plan, left, leaves) + along_the_tree(plan, right, leaves)


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(
        estimator=[*CLASSIFIERS, *REGRESSORS],
        n_classes=[0, 2, 3],
        cv=[2, 7, "loo"],
        dtype=[np.float64, np.float32],
        where=lambda estimator, n_classes, **_: is_classifier(estimator) == (n_classes > 0),
    ),
    ids=said,
)
def test_the_average_is_the_mean_of_the_models_at_the_leaves(
    estimator, n_classes, cv, dtype, make_data
):
    X, y = make_data(61, 4, max(n_classes, 2))
    X = X.astype(dtype)
    y = X[:, 0] - X[:, 1] if n_classes == 0 else y
    result = tree_cross_validate(estimator, X, y, cv=cv, kfold_models=True)
    model = result.kfold_estimator()
    plan, leaves = leaves_of(estimator, X, y, cv)
    expected = along_the_tree(plan, plan.root, leaves) / len(leaves)
    np.testing.assert_array_equal(numbers_of(model).astype(dtype), expected.astype(dtype))
    np.testing.assert_allclose(expected, leaves.mean(axis=0), rtol=1e-5, atol=1e-7)
    assert model.coef_.shape == ((3, 4) if n_classes == 3 else (1, 4) if n_classes else (4,))
    plain = tree_cross_validate(estimator, X, y, cv=cv)
    np.testing.assert_array_equal(plain.test_score, result.test_score)
    assert plain.n_updates == result.n_updates


@pytest.mark.parametrize("estimator", [PegasosClassifier(), AveragedSGDClassifier()], ids=said)
def test_wide_sparse_rows_are_undone(estimator):
    """Most phases change a small part of such a model and are undone."""
    rng = np.random.default_rng(0)
    X = sparse.random(60, 4000, 0.002, format="csr", random_state=0)
    y = rng.integers(2, size=60)
    for cv in (9, "loo"):
        model = tree_cross_validate(estimator, X, y, cv=cv, kfold_models=True).kfold_estimator()
        _, leaves = leaves_of(estimator, X, y, cv)
        np.testing.assert_allclose(numbers_of(model), leaves.mean(axis=0), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("options", [{}, {"order": "random"}, {"scoring": len}], ids=said)
def test_threads_change_no_bit(options, binary):
    if "scoring" in options:  # a scorer that needs the models, so that Python walks
        options = {"scoring": lambda estimator, X, y: estimator.score(X, y)}
    models = [
        tree_cross_validate(
            PegasosClassifier(), *binary, cv=31, kfold_models=True, n_jobs=n, **options
        ).kfold_estimator()
        for n in (1, 2, 5)
    ]
    for model in models[1:]:
        np.testing.assert_array_equal(numbers_of(model), numbers_of(models[0]))


@pytest.mark.parametrize("options", [{}, {"order": "random"}], ids=said)
def test_repeats_are_averaged_too(options, binary):
    X, y = binary
    given = {"n_repeats": 3} | options
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=4, kfold_models=True, **given)
    leaves = [leaves_of(PegasosClassifier(), X, y, 4, number, **given)[1] for number in range(3)]
    assert not np.allclose(leaves[0], leaves[1])
    expected = np.concatenate(leaves).mean(axis=0)
    np.testing.assert_allclose(numbers_of(result.kfold_estimator()), expected, rtol=1e-10)


def test_it_cannot_be_trained_further(binary):
    X, y = binary
    model = tree_cross_validate(
        PegasosClassifier(), X, y, cv=5, kfold_models=True
    ).kfold_estimator()
    with pytest.raises(ValueError, match="partial_fit cannot continue the training of an average"):
        model.partial_fit(X, y)
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(model.fit(X, y).coef_.shape, again.coef_.shape)


@pytest.mark.parametrize(
    ("estimator", "options", "name"),
    [
        (Ridge(), {}, "Ridge"),
        (LogisticRegression(), {}, "LogisticRegression"),
        (MultinomialNB(), {}, "MultinomialNB"),
        (make_pipeline(StandardScaler(), PegasosClassifier()), {}, "Pipeline"),
        (StreamingKMeans(2), {}, "StreamingKMeans"),
        (SGDOneClassSVM(), {"scoring": len}, "SGDOneClassSVM"),
        (PegasosClassifier(), {"method": "standard"}, "PegasosClassifier"),
        (PegasosClassifier(), {"method": "progressive"}, "PegasosClassifier"),
        (PegasosClassifier(), {"method": "fit"}, "PegasosClassifier"),
    ],
    ids=said,
)
def test_only_linear_models_of_the_tree(estimator, options, name, binary):
    X, y = binary
    if "scoring" in options:
        options = {"scoring": lambda estimator, X, y: 0.0}
    with pytest.raises(ValueError, match=f"^kfold_models must be False for {name} with"):
        tree_cross_validate(estimator, np.abs(X), y, cv=3, kfold_models=True, **options)


def test_it_must_be_asked_for_and_be_finite(binary):
    X, y = binary
    with pytest.raises(ValueError, match="^kfold_models must be True"):
        tree_cross_validate(PegasosClassifier(), X, y).kfold_estimator()
    wild = LSQSGDRegressor(step_size=1e200, radius=np.inf, average=False)
    result = tree_cross_validate(wild, X, y, cv=5, kfold_models=True)
    assert result.diverged_folds == 5
    with pytest.raises(ValueError, match="LSQSGDRegressor diverges on a fold"):
        result.kfold_estimator()
    model = SGDRegressor(eta0=1.0, learning_rate="constant", max_iter=1, tol=None)
    result = tree_cross_validate(model, 1e150 * X, y, cv=5, kfold_models=True)
    with pytest.raises(ValueError, match="SGDRegressor diverges on a fold"):
        result.kfold_estimator()


def test_the_best_trial_of_a_study(binary, tmp_path):
    X, y = binary
    objective, study = searched(
        PegasosClassifier(),
        (X, y),
        {"alpha": FloatDistribution(1e-4, 1.0, log=True)},
        4,
        cv=6,
        store=f"sqlite:///{tmp_path / 'store.db'}",
    )
    model = objective.best_estimator(study, kind="kfold_average")
    best = PegasosClassifier(**study.best_params)
    alone = tree_cross_validate(best, X, y, cv=6, kfold_models=True).kfold_estimator()
    np.testing.assert_array_equal(numbers_of(model), numbers_of(alone))
    refit = objective.best_estimator(study)
    assert not np.array_equal(numbers_of(refit), numbers_of(model))
    of_trial = objective.best_estimator(study.best_trial, kind="kfold_average")
    np.testing.assert_array_equal(numbers_of(of_trial), numbers_of(model))
    ridge = treecv_objective(Ridge(), X, y, param_grid={"alpha": [1.0]})
    of_ridge = optuna.create_study()
    of_ridge.optimize(ridge, n_trials=1)
    with pytest.raises(
        ValueError, match="^kind must be 'refit' for Ridge .* only method='treecv' averages"
    ):
        ridge.best_estimator(of_ridge, kind="kfold_average")
    with pytest.raises(ValueError, match="kind must be one of 'refit', 'folds', 'kfold_average'"):
        objective.best_estimator(study, kind="average")


def test_the_kernel_refuses_sums_of_another_size(binary):
    X, y = binary
    evaluation_of = treecv_objective(
        PegasosClassifier(), X, y, param_grid={"alpha": [1.0]}
    ).evaluator.cross_validation
    run = run_for(evaluation_of, PegasosClassifier())
    learner = run.plan.learner(run.estimator, run.plan.rows(run.plan.repeats[0]))
    kernel, plan = learner._kernel, evaluation_of.repeats[0].plan
    states = aligned_empty((5, kernel.state_bytes))
    states[0] = learner.start()
    out = np.empty((83, kernel.n_outputs), X.dtype).view(np.uint8)
    n_numbers = kernel.model_bytes // kernel.itemsize
    for shape in ((4, n_numbers), (5, n_numbers - 1), (5, n_numbers + 8)):
        memory = states, aligned_bytes(kernel.model_bytes), out, None, None, np.empty(shape)
        with pytest.raises(ValueError, match="sums must have a row for each level"):
            kernel.walk_subtree(plan, plan.root, *memory)
