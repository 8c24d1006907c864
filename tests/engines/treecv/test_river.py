"""River models get the scores of a loop of learn_one and predict_one over the same phases."""

from __future__ import annotations

import math
import pickle

from ids import said
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge
from spread import spread
from studies import searched

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.estimators.checks import as_estimator

pytest.importorskip("river")

from river import anomaly  # noqa: E402
from river import cluster  # noqa: E402
from river import compose  # noqa: E402
from river import dummy  # noqa: E402
from river import ensemble  # noqa: E402
from river import feature_extraction  # noqa: E402
from river import forest  # noqa: E402
from river import linear_model  # noqa: E402
from river import metrics  # noqa: E402
from river import multiclass  # noqa: E402
from river import naive_bayes  # noqa: E402
from river import neighbors  # noqa: E402
from river import optim  # noqa: E402
from river import preprocessing  # noqa: E402
from river import stream  # noqa: E402
from river import tree  # noqa: E402

SEED = 7


def scaled(model):
    return preprocessing.StandardScaler() | model


def replay(model, X, y, paths, loss):
    """Train k models independently, row after row."""
    scores = []
    for test, phases in paths:
        own = model.clone()
        for rows in phases:
            for x, target in stream.iter_array(X[rows], y[rows].tolist()):
                own.learn_one(x, target) if own._supervised else own.learn_one(x)
        rows = stream.iter_array(X[test], y[test].tolist())
        scores.append(np.mean([loss(own, x, target) for x, target in rows]))
    return np.array(scores)


def error(model, x, y):
    return model.predict_one(x) != y


def log_loss(model, x, y):
    eps = np.finfo(float).eps
    return -math.log(min(max(model.predict_proba_one(x).get(y, 0), eps), 1 - eps))


def squared_error(model, x, y):
    return (model.predict_one(x) - y) ** 2


def squared_distance(model, x, _):
    if isinstance(model, compose.Pipeline):
        x, model = model.transform_one(x), model[-1]
    return min(sum((c[k] - x[k]) ** 2 for k in x) for c in model.centers.values())


CLASSIFIERS = [
    linear_model.LogisticRegression(),
    scaled(linear_model.LogisticRegression()),
    naive_bayes.GaussianNB(),
    scaled(naive_bayes.GaussianNB()),
    multiclass.OneVsRestClassifier(naive_bayes.GaussianNB()),
    tree.HoeffdingTreeClassifier(grace_period=10),
    neighbors.KNNClassifier(n_neighbors=3),
]
REGRESSORS = [
    linear_model.LinearRegression(),
    scaled(linear_model.LinearRegression()),
    linear_model.BayesianLinearRegression(),
    tree.HoeffdingTreeRegressor(grace_period=10),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(model=CLASSIFIERS, order=["fixed", "random"], n_folds=[2, 5, 30]), ids=said
)
def test_classifiers_equal_a_loop(model, order, n_folds, binary, training_paths):
    X, y = (rows[:60] for rows in binary)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    ours = tree_cross_validate(model, X, y, **options)
    expected = replay(model, X, y, paths, error)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-12)
    scored = tree_cross_validate(model, X, y, scoring="accuracy", **options)
    np.testing.assert_allclose(scored.test_score, 1 - expected, rtol=1e-12)
    ours = tree_cross_validate(model, X, y, scoring="log_loss", **options)
    expected = replay(model, X, y, paths, log_loss)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(2, model=REGRESSORS, order=["fixed", "random"], n_folds=[2, 5, 40]), ids=said
)
def test_regressors_equal_a_loop(model, order, n_folds, regression, training_paths):
    X, y = (rows[:40] for rows in regression)
    ours = tree_cross_validate(model, X, y, cv=n_folds, order=order, random_state=SEED, n_jobs=2)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    expected = replay(model, X, y, paths, squared_error)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-8)


WEIGHTED = [
    linear_model.LinearRegression(),
    scaled(linear_model.LinearRegression()),
    tree.HoeffdingTreeRegressor(grace_period=10),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", WEIGHTED, ids=said)
def test_weights_equal_a_loop(model, regression, training_paths):
    """Rows of weight 0 are left out: River's means of weights would divide by 0."""
    X, y = regression
    rng = np.random.default_rng(0)
    weights = np.where(rng.random(len(y)) < 0.2, 0, rng.lognormal(0, 1, len(y)))
    found = tree_cross_val_predict(model, X, y, cv=5, sample_weight=weights)
    for test, phases in training_paths(len(y), 5):
        own = model.clone()
        for row in np.concatenate(phases):
            if weights[row] > 0:
                own.learn_one(dict(enumerate(X[row])), y[row], w=weights[row])
        expected = [own.predict_one(dict(enumerate(x))) for x in X[test]]
        np.testing.assert_allclose(found[test], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "model",
    [naive_bayes.GaussianNB(), scaled(neighbors.KNNClassifier()), cluster.CluStream()],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("method", ["auto", "standard"])
def test_models_that_learn_without_weights(model, method, binary):
    X, y = binary
    with pytest.raises(ValueError, match=r"^sample_weight must be None for \w+, because p"):
        tree_cross_validate(
            model, X, y, method=method, scoring=lambda *_: 0.0, sample_weight=np.ones(len(y))
        )


@pytest.mark.parametrize("scale", [False, True])
def test_clusters(scale, binary, training_paths):
    X = binary[0] * 3 + 1

    def model(seed):
        kmeans = cluster.KMeans(3, seed=seed)
        return scaled(kmeans) if scale else kmeans

    ours = tree_cross_validate(model(None), X, cv=5, random_state=SEED)
    paths = training_paths(len(X), 5, random_state=SEED)
    expected = replay(model(SEED), X, binary[1], paths, squared_distance)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-9)
    labels = tree_cross_val_predict(model(None), X, cv=5)
    assert labels.dtype.kind == "i" and set(labels) <= {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scoring", "n_folds"), [("error", 2), ("log_loss", 4), ("error", 9), ("log_loss", 9)]
)
def test_classes_that_come_late(scoring, n_folds, training_paths):
    rng = np.random.default_rng(0)
    codes = np.sort(rng.integers(0, 4, 80))
    X = rng.normal(size=(80, 3)) + 2 * np.eye(4, 3)[codes]
    y = np.array(list("dbca"))[codes]
    model = naive_bayes.GaussianNB()
    options = {"cv": n_folds, "stratify": False, "shuffle": False}
    ours = tree_cross_validate(model, X, y, scoring=scoring, **options)
    paths = training_paths(len(X), n_folds, shuffle=False)
    expected = replay(model, X, y, paths, error if scoring == "error" else log_loss)
    np.testing.assert_allclose(ours.test_score, expected, rtol=1e-9)
    predicted = tree_cross_val_predict(model, X, y, **options)
    assert predicted.dtype == y.dtype and set(predicted) <= set(y)


class KnowsNothing(dummy.PriorClassifier):
    def learn_one(self, x, y):
        if x[0] > 0:
            super().learn_one(x, y)


def test_no_class_is_an_error():
    X, y = -np.ones((8, 2)), np.arange(8) % 2
    assert tree_cross_validate(KnowsNothing(), X, y, cv=4).mean == 1
    result = tree_cross_validate(KnowsNothing(), X, y, cv=4, scoring="log_loss")
    assert result.mean == pytest.approx(-math.log(np.finfo(float).eps))
    assert result.diverged_folds == 0
    for call in (
        lambda: tree_cross_val_predict(KnowsNothing(), X, y, cv=4),
        lambda: tree_cross_validate(KnowsNothing(), X, y, cv=4, scoring="accuracy"),
    ):
        with pytest.raises(
            ValueError, match="KnowsNothing (must predict classes of y|predicts no class, because)"
        ):
            call()


class Watching(naive_bayes.GaussianNB):
    seen: list = []

    def learn_many(self, X, y):
        self.seen.append((X, y))
        super().learn_many(X, y)

    def learn_one(self, x, y):
        self.seen.append((x, y))
        super().learn_one(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        forest.ARFClassifier(n_models=3),
        scaled(ensemble.BaggingClassifier(tree.HoeffdingTreeClassifier(), n_models=3)),
    ],
    ids=said,
)
def test_seeds(model, binary):
    X, y = (rows[:40] for rows in binary)
    options = {"cv": 3, "shuffle": False, "scoring": "log_loss"}
    a, b, c = (
        tree_cross_validate(model, X, y, random_state=seed, **options).mean for seed in (1, 1, 2)
    )
    assert a == b != c
    repeated = tree_cross_validate(model, X, y, n_repeats=2, random_state=1, **options)
    assert repeated.mean != a


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (cluster.KMeans(3), "seed"),
        (scaled(cluster.KMeans(3)), "KMeans__seed"),
        (
            (preprocessing.StandardScaler() + feature_extraction.RBFSampler(n_components=3))
            | cluster.KMeans(3),
            "TransformerUnion__RBFSampler__seed",
        ),
    ],
    ids=said,
)
def test_best_estimator_has_the_seed_that_was_given(model, name, binary):
    searched = "halflife" if name == "seed" else "KMeans__halflife"
    space = {searched: FloatDistribution(0.1, 0.9)}
    objective = treecv_objective(model, binary[0], param_distributions=space, cv=3)
    study = optuna.create_study()
    study.optimize(objective, n_trials=1)
    best = objective.best_estimator(study)
    assert as_estimator(best).get_params()[name] is None
    labels = [best.predict_one(dict(enumerate(row))) for row in binary[0].tolist()]
    again = objective.best_estimator(study)
    assert labels == [again.predict_one(dict(enumerate(row))) for row in binary[0].tolist()]


def test_the_model_given_is_neither_trained_nor_used(binary):
    X, y = binary
    model = naive_bayes.GaussianNB()
    fresh = tree_cross_validate(model, X, y, cv=3, scoring="log_loss").mean
    assert model.predict_one({0: 1.0}) is None
    for x, target in stream.iter_array(X, (1 - y).tolist()):
        model.learn_one(x, target)
    assert tree_cross_validate(model, X, y, cv=3, scoring="log_loss").mean == fresh


def test_a_study(binary):
    frame = pd.DataFrame(binary[0], columns=list("abcde"))
    y = binary[1]
    objective = treecv_objective(
        scaled(linear_model.LogisticRegression()),
        *(frame, y),
        param_distributions={
            "LogisticRegression__l2": FloatDistribution(1e-5, 1.0, log=True),
            "LogisticRegression__optimizer__lr": FloatDistribution(1e-3, 1.0, log=True),
            "StandardScaler__with_std": CategoricalDistribution([True, False]),
        },
        cv=4,
        scoring="log_loss",
        report="mean",
    )
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=4)
    assert len({trial.value for trial in study.trials}) > 1
    best = objective.best_estimator(study)
    assert isinstance(best, compose.Pipeline)
    params = study.best_params
    model = best["LogisticRegression"]
    assert model.l2 == params["LogisticRegression__l2"]
    assert best["StandardScaler"].with_std == params["StandardScaler__with_std"]
    assert set(model.weights) == set("abcde")

    by_hand = preprocessing.StandardScaler(
        with_std=params["StandardScaler__with_std"]
    ) | linear_model.LogisticRegression(
        l2=model.l2, optimizer=optim.SGD(params["LogisticRegression__optimizer__lr"])
    )
    again = tree_cross_validate(by_hand, frame, y, cv=4, scoring="log_loss")
    assert again.mean == study.best_value
    copied = pickle.loads(pickle.dumps(objective))
    assert copied.evaluate(params).mean == study.best_value


@pytest.mark.filterwarnings("ignore:Choices for a categorical:UserWarning")
def test_a_callable_and_choices_of_models(binary):
    X, y = binary

    def model(trial):
        if trial.suggest_categorical("kind", ["tree", "bayes"]) == "tree":
            return tree.HoeffdingTreeClassifier()
        return scaled(naive_bayes.GaussianNB())

    objective = treecv_objective(model, X, y, cv=4)
    expected = tree_cross_validate(scaled(naive_bayes.GaussianNB()), X, y, cv=4)
    assert objective.evaluate({"kind": "bayes"}).mean == expected.mean

    inner = tree.HoeffdingTreeClassifier()
    objective = treecv_objective(
        scaled(naive_bayes.GaussianNB()),
        *(X, y),
        param_distributions={"GaussianNB": CategoricalDistribution([inner])},
        cv=4,
    )
    expected = tree_cross_validate(scaled(inner), X, y, cv=4)
    assert objective.evaluate({"GaussianNB": inner}).mean == expected.mean
    assert inner.n_nodes is None


def test_words_in_data_frames(binary):
    y = binary[1]
    frame = pd.DataFrame({"word": np.array(["no", "yes"])[y], "number": binary[0][:, 0]})
    model = (
        compose.Select("word") | preprocessing.OneHotEncoder() | linear_model.LogisticRegression()
    )
    assert tree_cross_validate(model, frame, y.astype(bool), cv=5).mean == 0


class BatchSteps(Watching):
    """Like River's linear models: learn_many is another algorithm than learn_one."""

    def _unit_test_skips(self):
        return {"check_learn_many_matches_learn_one"}


@pytest.mark.parametrize("model", [Watching(), BatchSteps(), scaled(Watching())], ids=repr)
def test_learn_many_takes_a_phase_at_once_unless_it_is_another_algorithm(model, binary):
    X, y = binary
    frame = pd.DataFrame(X, columns=list("abcde"))
    for rows, names in ((X, range(5)), (frame, "abcde")):
        Watching.seen.clear()
        result = tree_cross_validate(model, rows, pd.Series(y), cv=4)
        if type(model) is Watching:
            assert sum(len(phase) for phase, _ in Watching.seen) == result.n_updates
            assert len(Watching.seen) == 6
            assert all(list(phase.columns) == list(names) for phase, _ in Watching.seen)
            assert all(phase.index.equals(target.index) for phase, target in Watching.seen)
        else:
            assert len(Watching.seen) == result.n_updates
            assert all(isinstance(x, dict) and list(x) == list(names) for x, _ in Watching.seen)


def test_river_still_says_whose_learn_many_differs():
    # The facts on which the choice between learn_one and learn_many relies.
    name = "check_learn_many_matches_learn_one"
    for model in (linear_model.LinearRegression(), linear_model.Perceptron()):
        assert name in model._unit_test_skips()
    for model in (linear_model.BayesianLinearRegression(), naive_bayes.GaussianNB()):
        assert name not in model._unit_test_skips()


class Overflows(naive_bayes.GaussianNB):
    """Raises OverflowError, as Python's math does where NumPy returns infinity."""

    def __init__(self, in_method):
        super().__init__()
        self.in_method = in_method

    def learn_many(self, X, y):
        super().learn_many(X, y)
        if self.in_method == "learn":
            math.exp(1e3)

    def predict_one(self, x):
        return math.exp(1e3)

    def predict_proba_one(self, x):
        return {0: math.exp(1e3)}


@pytest.mark.parametrize("in_method", ["learn", "predict"])
def test_overflow_is_divergence(in_method, binary, regression):
    X, y = regression
    wild = linear_model.LinearRegression(optim.SGD(1e200), clip_gradient=1e300)
    result = tree_cross_validate(wild, X * 1e100, y, cv=3)
    assert result.diverged_folds == 3 and result.mean == np.inf
    for scoring, worst in (("error", 1), ("log_loss", np.inf)):
        result = tree_cross_validate(Overflows(in_method), *binary, cv=4, scoring=scoring)
        assert result.diverged_folds == 4 and np.all(result.test_score == worst)


@pytest.mark.parametrize(
    "model",
    [
        preprocessing.StandardScaler(),
        metrics.Accuracy(),
        anomaly.HalfSpaceTrees(),
        preprocessing.StandardScaler() | preprocessing.MinMaxScaler(),
    ],
    ids=said,
)
def test_river_objects_that_are_no_models(model, binary):
    match = "estimator must be a classifier, regressor or clusterer of River, or a pipeline"
    for function in (tree_cross_validate, tree_cross_val_predict, treecv_objective):
        with pytest.raises(ValueError, match=match):
            function(model, *binary)
    with pytest.raises(ValueError, match=match):
        treecv_objective(lambda trial: model, *binary).evaluate({})


class LearnsOne:
    def learn_one(self, x, y):
        pass


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (LearnsOne(), {}, "must be a scikit-learn estimator instance or a River model, got"),
        (linear_model.LogisticRegression, {}, "estimator instance or a River model, got <class"),
        (naive_bayes.GaussianNB(), {"scoring": "hinge"}, "decision_function; GaussianNB has none"),
        (
            naive_bayes.GaussianNB(),
            {"scoring": "squared_error"},
            "is not for a classifier such as GaussianNB",
        ),
        (cluster.CluStream(), {}, "needs an estimator with transform; CluStream has none"),
    ],
    ids=said,
)
def test_what_a_model_cannot_do(model, options, match, binary):
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(model, *binary, **options)


def test_wrong_rows(binary, three_classes):
    X, y = binary
    match = "X must be an array or a data frame for River's GaussianNB, got sparse rows"
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(naive_bayes.GaussianNB(), sparse.csr_array(X), y)
    match = "y must hold False and True, or 0 and 1, for River's .*LogisticRegression, got"
    for model in (linear_model.LogisticRegression(), scaled(linear_model.LogisticRegression())):
        with pytest.raises(ValueError, match=rf"{match} \[0, 1, 2\]; .*OneVsRestClassifier"):
            tree_cross_validate(model, *three_classes)
        with pytest.raises(ValueError, match=rf"{match} \[-1, 1\]"):
            tree_cross_validate(model, X, 2 * y - 1)
    ovr = multiclass.OneVsRestClassifier(linear_model.LogisticRegression())
    assert tree_cross_validate(ovr, *three_classes).mean < 0.6


def test_wrong_parameter_names(binary):
    with pytest.raises(ValueError, match="LogisticRegression has no parameter 'alpha'; it has"):
        treecv_objective(
            linear_model.LogisticRegression(),
            *binary,
            param_distributions={"alpha": FloatDistribution(0, 1)},
        )


def test_what_needs_a_scikit_learn_estimator_is_refused():
    X = np.random.default_rng(0).normal(size=(60, 2))
    grid = {"intercept_lr": [0.01, 0.1]}
    model = linear_model.LinearRegression()
    objective, study = searched(model, (X, X[:, 0]), grid, cv=3, scoring="absolute_error")
    assert isinstance(objective.fold_models(study)[0], linear_model.LinearRegression)
    for call, words in (
        (lambda: objective.best_estimator(study, kind="folds"), "kind must be 'refit'"),
        (lambda: objective.conformal(study), "conformal is not available"),
        (lambda: objective.ensemble(study, stack=Ridge()), "stack must be None"),
        (lambda: objective.best_estimator(study, calibrate="sigmoid"), "calibrate must be None"),
    ):
        with pytest.raises(ValueError, match=f"^{words} for River models, got LinearRegression"):
            call()
