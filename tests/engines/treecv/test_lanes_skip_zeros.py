"""Lanes that read only the nonzeros of dense rows are bit for bit what their models are alone."""

from __future__ import annotations

from lane_families import assert_same_bits
from lane_families import FAMILIES
from lane_families import fits
from learners import learners_of
import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from spread import spread

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.rows.partition import Partition


def one_hot_rows(dtype, n_classes, n_features, n_rows=80):
    """Rows like those of a one-hot table, some of them zero, and others with -0 in place of 0."""
    rng = np.random.default_rng(n_features)
    X = rng.normal(size=(n_rows, n_features)).round(1)
    X[rng.random(X.shape) < 0.9] = 0
    X[:, 0] = rng.normal(size=n_rows).round(1)
    X[::9] = 0
    X[::4] *= -1
    y = X[:, 0] + X[:, -1] + rng.normal(size=n_rows)
    if n_classes:
        y = np.argsort(np.argsort(y)) * n_classes // n_rows
    return X.astype(dtype), y


def outputs_of(learner, plan, n_models):
    """Return out-of-fold outputs, and outputs of each row before the model is trained on it."""
    out = np.full((n_models * plan.n_rows, learner.n_outputs), 7, learner.dtype)
    learner.walk_subtree(plan, plan.root, learner.start(), out)
    before = np.full_like(out, 7)
    learner.test_then_train(learner.start(), slice(0, plan.n_rows), before)
    return np.array([out, before]).reshape(2, n_models, plan.n_rows, -1)


@pytest.mark.parametrize(
    *spread(
        2,
        family=FAMILIES,
        n_classes=[0, 2, 3],
        dtype=[np.float64, np.float32],
        n_features=[20, 63, 150],
        n_times=[1, 3, 7],
        cv=[3, 80],
        is_weighed=[False, True],
        where=fits,
    )
)
def test_each_lane_is_what_it_is_alone(
    family, n_classes, dtype, n_features, n_times, cv, is_weighed
):
    X, y = one_hot_rows(dtype, n_classes, n_features)
    weights = np.random.default_rng(0).choice([0.5, 1.0, 3.0], len(y)) if is_weighed else None
    learners = learners_of(FAMILIES[family], X, y, weights)
    plan = Partition(len(y), cv, None, True, 5)
    alone = np.concatenate([outputs_of(learner, plan, 1) for learner in learners], axis=1)
    n_times = min(n_times, Lanes.max_learners(learners[0]) // len(learners))
    together = outputs_of(Lanes(learners * n_times), plan, n_times * len(learners))
    assert_same_bits(together, np.tile(alone, (1, n_times, 1, 1)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("with_mean", [False, True])
def test_scaled_rows_may_have_zeros_too(with_mean, dtype):
    X, y = one_hot_rows(dtype, 2, 40)
    X[:, 3] = 2.5
    models = [
        make_pipeline(StandardScaler(with_mean=with_mean), PegasosClassifier(alpha))
        for alpha in np.geomspace(1e-3, 1, 20)
    ]
    for model, result in zip(models, tree_cross_validate_many(models, X, y, cv=7), strict=True):
        alone = tree_cross_validate(model, X, y, cv=7)
        assert np.array_equal(result.test_score, alone.test_score)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", [AveragedSGDClassifier, StreamingSVRGClassifier])
def test_what_overflows_shows_in_rows_with_a_zero_there(model, n_classes):
    """Weights that are not finite must not be skipped with the zeros of their columns."""
    X, y = one_hot_rows(np.float64, n_classes, 40)
    X[X != 0] = 4
    of_one = np.zeros((40, 64))
    of_one[3, 5] = 1
    n_hidden = 0
    for rows, labels in ((X, y), (of_one, np.arange(40) % n_classes)):
        estimators = [
            model(alpha=0.0, step_size=eta, fit_intercept=False)
            for eta in np.geomspace(1e305, 1.7e308, 17)
        ]
        for estimator in estimators:
            if model is AveragedSGDClassifier:
                estimator.set_params(loss="log_loss", average=False)
            else:
                estimator.set_params(initial_batch_size=4, inner_steps=10**6)
        plan = Partition(len(labels), 5, None, False, 5)
        learners = learners_of(estimators, rows, labels)
        with np.errstate(all="ignore"):
            alone = np.concatenate([outputs_of(learner, plan, 1) for learner in learners], axis=1)
            together = outputs_of(Lanes(learners), plan, len(learners))
        finite = np.isfinite(alone).all(axis=-1)  # one class may make all of them NaN, as in CSR
        assert np.array_equal(np.isfinite(together).all(axis=-1), finite)
        assert_same_bits(together[finite], alone[finite])
        n_hidden += np.isnan(alone[0][:, (rows == 0).all(axis=1)]).sum()
    assert n_hidden > 0
