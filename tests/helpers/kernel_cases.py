"""Settings of the kernels that train one model, each beside its NumPy twin."""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np
import reference

from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.kernels.svrg import StreamingSVRG
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import pad_rows

FLOATS = [np.float64, np.float32]


def prepared(n: int, d: int, dtype: type, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)
    return pad_rows(X, np.arange(n, dtype=np.uint32), True)


def weights(kernel, state, dtype):
    model = aligned_empty((kernel.model_bytes,))
    kernel.read_out(state, model)
    return model.view(dtype).reshape(kernel.n_outputs, -1)


def fresh(kernel):
    state = aligned_empty((kernel.state_bytes,))
    kernel.start(state)
    return state


def one_pegasos(X, y, n_classes, alpha, average, project):
    return Pegasos(X, y, n_classes, [alpha], average, project)


def one_sgd(X, y, k, loss, epsilon, alpha, eta, power, radius, size, average, start, is_linear=0):
    values = [(alpha, eta, radius)]
    return SGD(X, y, k, loss, epsilon, power, average, start, values, is_linear, size)


def one_svrg(X, y, n_classes, loss, epsilon, alpha, step_size, *stages):
    return StreamingSVRG(X, y, n_classes, loss, epsilon, *stages, [(alpha, step_size)])


CLASSIFIERS = (
    [
        (one_pegasos, reference.Pegasos, settings)
        for settings in (
            (1e-5, False, False),
            (0.03, True, False),
            (2.0, False, True),
            (1e-5, True, True),
            (0.03, True, True),
        )
    ]
    + [
        (one_sgd, reference.SGD, settings)
        for settings in (
            ("hinge", 0.0, 0.01, 0.05, 0.0, inf, 1, True, 0),
            ("hinge", 0.0, 0.5, 1.5, 0.3, inf, 1, True, 30),
            ("log_loss", 0.0, 0.0, 0.05, 0.5, 0.3, 1, False, 0),
            ("log_loss", 0.0, 0.8, 1.25, 0.0, 0.5, 1, True, 7),
            ("log_loss", 0.0, 0.01, 0.5, 0.75, 0.4, 7, True, 11),
            ("hinge", 0.0, 0.01, 0.0, 0.0, inf, 1, True, 0),
            ("log_loss", 0.0, 0.5, 0.0, 0.75, 0.4, 7, True, 11),
        )
    ]
    + [
        (partial(one_sgd, is_linear=True), partial(reference.SGD, is_linear=True), settings)
        for settings in (
            ("hinge", 0.0, 0.5, 1.5, 0.3, inf, 1, True, 30),
            ("log_loss", 0.0, 0.5, 0.0, 0.0, 0.4, 1, True, 0),
            ("log_loss", 0.0, 0.5, 0.0, 0.75, 0.4, 7, True, 11),
        )
    ]
    + [
        (one_svrg, reference.StreamingSVRG, settings)
        for settings in (
            ("log_loss", 0.0, 0.0, 0.0, 10, 1.5, 20, 0, False, 3),
            ("log_loss", 0.0, 0.1, 0.3, 3, 1.0, 5, 2, False, 4),
            ("log_loss", 0.0, 2.0, 0.5, 1, 2.0, 30, 0, False, 5),
            ("log_loss", 0.0, 0.9, 0.7, 2, 2.0, 2, 1, True, 6),
            ("log_loss", 0.0, 0.01, 0.0, 4, 1.5, 0, 0, False, 7),
        )
    ]
)


REGRESSORS = (
    [
        (one_sgd, reference.SGD, settings)
        for settings in (
            ("squared_error", 0.0, 0.0, 0.05, 0.0, 0.3, 1, True, 0),
            ("squared_error", 0.0, 0.0, 0.05, 0.0, inf, 1, False, 0),
            ("huber", 0.4, 0.02, 0.05, 0.5, inf, 5, True, 20),
            ("epsilon_insensitive", 0.2, 0.02, 0.05, 0.25, 1e3, 1, True, 50),
            ("squared_error", 0.0, 0.02, 0.0, 0.0, inf, 1, True, 0),
            ("epsilon_insensitive", 0.2, 3.0, 0.0, 0.5, inf, 1, False, 0),
            ("huber", 0.4, 0.0, 0.0, 0.0, 0.3, 5, True, 20),
        )
    ]
    + [
        (partial(one_sgd, is_linear=True), partial(reference.SGD, is_linear=True), settings)
        for settings in (
            ("squared_error", 0.0, 0.02, 0.0, 0.0, inf, 1, True, 0),
            ("huber", 0.4, 0.02, 0.05, 0.5, inf, 5, True, 20),
        )
    ]
    + [
        (one_svrg, reference.StreamingSVRG, settings)
        for settings in (
            ("squared_error", 0.0, 0.01, 0.01, 10, 2.0, 30, 0, False, 7),
            ("huber", 0.5, 0.0, 0.0, 5, 3.0, 10, 1, False, 8),
            ("squared_error", 0.0, 0.1, 0.0, 3, 1.5, 0, 1, True, 9),
        )
    ]
)


def takes_sparse(case):
    """Return whether a learner accepts sparse rows: mini-batches do not."""
    make, _, options = case
    is_sgd = isinstance(make, partial) or make is one_sgd
    return not (is_sgd and options[6] > 1)


def name_of(case):
    if not isinstance(case, tuple):
        return None
    is_linear = isinstance(case[0], partial)
    return f"{'linear SGD' if is_linear else case[1].__name__}{case[2]}"
