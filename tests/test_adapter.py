"""Any ``partial_fit`` estimator: the fold scores of independent replays, or scikit-learn's."""

from __future__ import annotations

import copy

import numpy as np
from optuna_treecv._kernels.order import derive_seed
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import Perceptron
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv._kernels import reference
from optuna_treecv.folds import make_folds

SEED = 11


def replay(estimator, X, y, n_folds, order, score):
    """k independent trainings, each along its own path of Algorithm 1, from the first row on."""
    seed = derive_seed(SEED, 0)
    folds = make_folds(n_folds, X, y, None, True, seed, len(X))
    X, y = X[folds.order], None if y is None else y[folds.order]
    cuts = [i * len(X) // n_folds for i in range(n_folds + 1)]
    chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    paths = {}

    def train(path, rows, n_seen):
        if order == "random" and len(rows) > 1:
            rows = reference.random_order(seed, rows[0], rows[-1] + 1, n_seen)
        return [*path, list(rows)]

    reference.treecv(chunks, train, lambda path, fold: paths.update({fold: path}), [])
    scores = []
    for fold in range(n_folds):
        model = clone(estimator)
        for i, rows in enumerate(paths[fold]):
            if y is None:
                model.partial_fit(X[rows])
            elif hasattr(model, "classes"):
                raise AssertionError
            elif i == 0 and hasattr(model, "predict_proba") | hasattr(model, "decision_function"):
                model.partial_fit(X[rows], y[rows], classes=np.unique(y))
            else:
                model.partial_fit(X[rows], y[rows])
        test = list(chunks[fold])
        scores.append(score(model, X[test], None if y is None else y[test]))
    return np.array(scores)


def error(model, X, y):
    return np.mean(model.predict(X) != y)


def squared_error(model, X, y):
    return np.mean((model.predict(X) - y) ** 2)


def squared_distance(model, X, _):
    return np.mean(model.transform(X).min(axis=1) ** 2)


@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("n_folds", [2, 3, 7, 8])
@pytest.mark.parametrize(
    ("estimator", "score"),
    [
        (SGDClassifier(max_iter=1, tol=None), error),
        (SGDRegressor(max_iter=1, tol=None), squared_error),
        (MLPClassifier(hidden_layer_sizes=(4,)), error),
        (MiniBatchKMeans(3, n_init=1, batch_size=20), squared_distance),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "get_params") else "",
)
def test_equals_independent_replays(estimator, score, n_folds, order, binary):
    X, y = binary
    y = None if score is squared_distance else y
    result = tree_cross_validate(estimator, X, y, cv=n_folds, order=order, random_state=SEED)
    seeded = clone(estimator).set_params(random_state=SEED)
    expected = replay(seeded, X, y, n_folds, order, score)
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-12)


@pytest.mark.parametrize("n_folds", [2, 5, 10])
@pytest.mark.parametrize("method", ["treecv", "standard"])
@pytest.mark.parametrize("order", ["fixed", "random"])
def test_order_insensitive_learners_equal_scikit_learn(n_folds, method, order):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    X = rng.poisson(1 + np.eye(3)[y] @ rng.uniform(0, 3, (3, 8)))
    cv = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    for estimator in (MultinomialNB(), BernoulliNB()):
        for rows in (X, sparse.csr_matrix(X), sparse.coo_array(X)):
            ours = tree_cross_validate(
                *(estimator, rows, y), cv=cv, method=method, order=order, scoring="accuracy"
            )
            theirs = cross_val_score(estimator, X, y, cv=cv, scoring="accuracy")
            assert np.array_equal(ours.test_score, theirs)
    ours = tree_cross_validate(
        GaussianNB(), X, y, cv=cv, method=method, order=order, scoring="log_loss"
    )
    theirs = cross_val_score(GaussianNB(), X, y, cv=cv, scoring="neg_log_loss")
    np.testing.assert_allclose(ours.test_score, -theirs, rtol=1e-9)


def test_training_a_copy_leaves_the_original_alone(binary):
    X, y = binary
    model = MLPClassifier(hidden_layer_sizes=(4,), random_state=0).partial_fit(
        X, y, classes=[0, 1]
    )
    before = copy.deepcopy(model.coefs_)
    copy.deepcopy(model).partial_fit(X, 1 - y)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.coefs_, strict=True))


def test_data_frames_stay_data_frames(binary):
    X, y = binary
    frame = pd.DataFrame(X, columns=list("abcde"))
    seen = []

    class Watching(SGDClassifier):
        def partial_fit(self, X, y, classes=None):
            seen.append(type(X))
            return super().partial_fit(X, y, classes)

    ours = tree_cross_validate(Watching(max_iter=1, tol=None), frame, pd.Series(y), cv=4)
    assert set(seen) == {pd.DataFrame}
    plain = tree_cross_validate(SGDClassifier(max_iter=1, tol=None), X, y, cv=4)
    assert np.array_equal(ours.test_score, plain.test_score)


def test_string_labels(binary):
    X, y = binary
    words = np.array(["no", "yes"])[y]
    a = tree_cross_validate(Perceptron(), X, y, cv=5)
    b = tree_cross_validate(Perceptron(), X, words, cv=5)
    assert np.array_equal(a.test_score, b.test_score)
    predicted = tree_cross_val_predict(Perceptron(), X, words, cv=5)
    assert set(predicted) <= {"no", "yes"}
    assert np.mean(predicted != words) == pytest.approx(b.mean, abs=0.02)


def test_a_diverged_model_scores_its_loss_and_goes_no_further(regression):
    X, y = regression
    wild = SGDRegressor(eta0=1e9, learning_rate="constant", max_iter=1, tol=None)
    result = tree_cross_validate(wild, X * 1e150, y, cv=4)
    assert result.diverged_folds == 4
    assert result.mean == np.inf and result.std is None
    assert np.all(result.test_score == np.inf)
    scored = tree_cross_validate(wild, X * 1e150, y, cv=4, scoring="r2")
    assert np.all(scored.test_score == -np.inf) and scored.diverged_folds == 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1e155, 1e200, 1e308])
def test_variances_that_overflow_are_divergence(size, binary):
    X, y = np.sign(binary[0]) * size, binary[1]
    for scoring, worst in ((None, 1.0), ("log_loss", np.inf), ("accuracy", -np.inf)):
        result = tree_cross_validate(GaussianNB(), X, y, cv=4, scoring=scoring)
        assert result.diverged_folds == 4 and np.all(result.test_score == worst)


def test_other_errors_of_an_estimator_are_not_swallowed(binary):
    X, y = binary
    X = X.copy()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        tree_cross_validate(SGDClassifier(), X, y, cv=4)


def test_clusters_are_numbered(binary):
    labels = tree_cross_val_predict(MiniBatchKMeans(3, n_init=1), binary[0], cv=4)
    assert labels.dtype.kind == "i" and set(labels) <= {0, 1, 2}
