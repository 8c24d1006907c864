"""Estimators of each family that are trained in lanes, and data for them."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn.base import is_regressor

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv.paper import LSQSGDRegressor

ALPHAS = (*np.geomspace(1e-7, 1e3, 11), 1e300, 5e-324)


LANES_OF_SGD = [
    *((0.01, eta, np.inf) for eta in (1e-6, 0.003, "auto", 0.1, 0.7, 3.0, 300.0)),
    (9.9, "auto", 0.5),
    *((alpha, 0.1, 0.5) for alpha in (0.0, 1e-4, 1.0, 9.0, 10.0, 19.0, 1e5)),
    (1e-4, 0.5, 1e-3),
    (1e-4, 0.5, 1e300),
]


LANES_OF_SVRG = [
    *((0.01, eta) for eta in (1e-6, 0.003, "auto", 0.1, 0.7, 3.0, 300.0)),
    *((alpha, 0.1) for alpha in (0.0, 1e-4, 1.0, 9.0, 9.99, 10.0, 19.0, 1e5)),
    (9.9, "auto"),
]


FAMILIES = {
    "PEGASOS": [PegasosClassifier(alpha) for alpha in ALPHAS],
    "averaged PEGASOS": [PegasosClassifier(alpha, average=True) for alpha in ALPHAS],
    "projected PEGASOS": [PegasosClassifier(alpha, project=True) for alpha in ALPHAS],
    "averaged projected PEGASOS": [
        PegasosClassifier(alpha, average=True, project=True, fit_intercept=False)
        for alpha in ALPHAS
    ],
    **{
        f"SGD, {name}": [
            AveragedSGDClassifier(alpha=alpha, step_size=step_size, radius=radius, **options)
            for alpha, step_size, radius in LANES_OF_SGD
        ]
        for name, options in {
            "averaged": {},
            "last iterate": {"average": False, "loss": "log_loss"},
            "tail average": {"average_start": 13, "learning_rate": "invscaling"},
            "other decay": {"loss": "log_loss", "learning_rate": "invscaling", "power_t": 0.3},
        }.items()
    },
    **{
        f"SGD, {loss}": [
            AveragedSGDRegressor(loss, alpha=alpha, step_size=step_size, radius=radius)
            for alpha, step_size, radius in LANES_OF_SGD
        ]
        for loss in ("squared_error", "huber", "epsilon_insensitive")
    },
    **{
        f"SVRG, {name}": [
            StreamingSVRGClassifier(
                alpha=alpha,
                step_size=step_size,
                initial_batch_size=4,
                **{"inner_steps": 7, **options},
            )
            for alpha, step_size in LANES_OF_SVRG
        ]
        for name, options in {
            "geometric": {},
            "factorial": {"schedule": "factorial", "fit_intercept": False},
            "warm": {"warm_stages": 2, "batch_growth": 1.5, "random_state": 3},
            "batch and inner phase alike": {"inner_steps": "auto"},
        }.items()
    },
    **{
        f"SVRG, {loss}": [
            StreamingSVRGRegressor(
                loss, alpha=alpha, step_size=step_size, initial_batch_size=5, inner_steps=9
            )
            for alpha, step_size in LANES_OF_SVRG
        ]
        for loss in ("squared_error", "huber")
    },
    "LSQSGD": [
        *(LSQSGDRegressor(step_size=step_size) for step_size in (1e-3, "auto", 1.0)),
        *(LSQSGDRegressor(radius=radius) for radius in (0.01, 2.0)),
    ],
}


def fits(family, n_classes, **_):
    """Return whether a family learns as many classes; regressors learn none."""
    return (n_classes == 0) == is_regressor(FAMILIES[family][0])


def make(dtype=np.float64, is_sparse=False, n_classes=2, n_rows=60, n_features=9, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_features)).round(1)
    X[rng.random(X.shape) < 0.4] = 0
    X[::7] = 0
    y = np.abs((X[:, 0] + rng.normal(size=n_rows)).round()).astype(int) % max(1, n_classes)
    y[:n_classes] = range(n_classes)
    if n_classes == 0:
        y = X[:, 0] - X[:, -1] + rng.normal(size=n_rows)
    X = X.astype(dtype)
    return (sparse.csr_matrix(X) if is_sparse else X), y


def assert_same_bits(one, other):
    np.testing.assert_array_equal(one, other)  # treats NaN as equal
    finite = np.isfinite(one)
    assert one[finite].tobytes() == other[finite].tobytes()  # distinguishes 0 from -0
