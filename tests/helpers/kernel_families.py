"""Kernels of each family with many settings, over data made from whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf
from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.kernels.gaussian import Gaussian
from optuna_treecv.engines.treecv.kernels.kmeans import KMeans
from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.kernels.svrg import StreamingSVRG
from optuna_treecv.rows.memory import aligned_empty

# Data from whole numbers, so that they depend on no random generator.
N_ROWS, N_FEATURES = 120, 13
ROW, COLUMN = np.arange(N_ROWS)[:, None], np.arange(N_FEATURES)
VALUES = ((ROW * ROW * 7 + ROW * COLUMN * 13 + COLUMN * COLUMN * 5 + 3 * COLUMN) % 19 - 9) / 8
VALUES[(ROW * 3 + COLUMN * 5 + ROW * COLUMN) % 4 < 2] = 0
CLASSES = ((np.arange(N_ROWS) ** 2 // 5 + np.arange(N_ROWS)) % 3).astype(np.int32)
TARGETS = (np.arange(N_ROWS) * 11 % 23 - 11) / 16 + VALUES[:, 0] / 2
ORDER = (np.arange(N_ROWS) * 49 % N_ROWS).astype(np.uint32)[:77]  # 49 and 120 are coprime
CLASSIFIED = "hinge", "log_loss"

# The arguments after X of a classifier and of a regressor: y and the number of classes.
BINARY, MULTICLASS, REGRESSION = (np.minimum(CLASSES, 1), 2), (CLASSES, 3), (TARGETS, None)


def supervised(loss: str) -> list[tuple[Any, Any]]:
    return [BINARY, MULTICLASS] if loss in CLASSIFIED else [REGRESSION]


def pegasos(X: Any, **_: Any) -> Any:
    for y, alpha, average, project in product(
        [BINARY, MULTICLASS], [1e-3, 0.3], [False, True], [False, True]
    ):
        yield Pegasos(X, *y, [alpha], average, project)


def sgd(X: Any, y_type: Any, is_sparse: bool) -> Any:
    # alpha, step_size, power, radius, batch_size, average, average_start, is_linear
    schedules = [
        (1e-3, 0.05, 0.0, inf, 1, False, 0),
        (1e-3, 0.05, 0.0, inf, 1, True, 10),
        (0.3, 0.5, 0.5, inf, 1, True, 0),
        (15.0, 0.1, 0.0, inf, 1, True, 0),  # the scale changes its sign
        (0.01, 0.3, 0.3, 0.5, 1, True, 0),
        (0.01, 0.3, 0.0, 2.0, 4, True, 8),
        (0.01, 0.0, 0.0, inf, 1, True, 0),
        (0.01, 0.0, 0.5, 2.0, 4, True, 8),
        (0.3, 0.5, 0.5, inf, 1, True, 10, True),
        (0.01, 0.0, 0.0, 2.0, 4, True, 8, True),
    ]
    losses = ["hinge", "log_loss", "squared_error", "huber", "epsilon_insensitive"]
    for loss, schedule in product(losses, schedules):
        for y, n_classes in supervised(loss):
            if schedule[4] == 1 or not is_sparse:
                alpha, step_size, power, radius, size, average, start, *is_linear = schedule
                values = [(alpha, step_size, radius)]
                settings = (power, average, start, values, bool(is_linear), size)
                yield SGD(X, y_type(y), n_classes, loss, 0.1, *settings)


def svrg(X: Any, y_type: Any, is_sparse: bool) -> Any:
    schedules = [  # alpha, step_size, and the stages
        (1e-3, 0.05, (10, 2.0, 15, 0, False, 3)),
        (0.1, 0.0, (7, 1.5, 9, 2, False, 4)),
        (0.5, 0.5, (5, 1.0, 6, 0, True, 5)),
        (0.01, 0.0, (5, 2.0, 0, 0, False, 5)),
    ]
    for loss, (*values, stages) in product(["log_loss", "squared_error", "huber"], schedules):
        for y, n_classes in supervised(loss):
            yield StreamingSVRG(X, y_type(y), n_classes, loss, 0.1, *stages, [values])


def kmeans(X: Any, **_: Any) -> Any:
    for n_clusters in (1, 5):
        yield KMeans(X, n_clusters)


def gaussian(X: Any, **_: Any) -> Any:
    for full in (False, True):
        yield Gaussian(X, N_FEATURES, full, 1e-3)


def pegasos_lanes(X: Any, **_: Any) -> Any:
    for y, average, project in product([BINARY, MULTICLASS], [False, True], [False, True]):
        yield Pegasos(X, *y, [1e-3, 0.03, 0.3, 2.0], average, project, in_lanes=True)


def sgd_lanes(X: Any, y_type: Any, is_sparse: bool) -> Any:
    values = [(1e-3, 0.05, inf), (0.3, 0.0, inf), (15.0, 0.1, inf), (0.01, 0.3, 0.5)]
    losses = ["hinge", "log_loss", "squared_error", "huber", "epsilon_insensitive"]
    for loss, power, (average, start, *is_linear) in product(
        losses, [0.0, 0.5, 0.3], [(False, 0), (True, 0), (True, 10), (True, 10, True)]
    ):
        for y, n_classes in supervised(loss):
            settings = (power, average, start, values, *is_linear)
            yield SGD(X, y_type(y), n_classes, loss, 0.1, *settings, in_lanes=True)


def svrg_lanes(X: Any, y_type: Any, is_sparse: bool) -> Any:
    values = [(1e-3, 0.05), (0.1, 0.0), (0.5, 0.5)]
    for loss, schedule in product(
        ["log_loss", "squared_error", "huber"],
        [(10, 2.0, 15, 0, False, 3), (7, 1.5, 9, 2, False, 4), (5, 1.0, 0, 0, True, 5)],
    ):
        for y, n_classes in supervised(loss):
            yield StreamingSVRG(X, y_type(y), n_classes, loss, 0.1, *schedule, values, True)


FAMILIES: dict[str, tuple[Callable[..., Any], bool]] = {  # whether there are sparse rows
    "pegasos": (pegasos, True),
    "sgd": (sgd, True),
    "svrg": (svrg, True),
    "kmeans": (kmeans, False),
    "gaussian": (gaussian, False),
    "pegasos_lanes": (pegasos_lanes, True),
    "sgd_lanes": (sgd_lanes, True),
    "svrg_lanes": (svrg_lanes, True),
}


CASES = [
    (family, dtype, form)
    for family, (_, takes_sparse) in FAMILIES.items()
    for dtype in ("float64", "float32")
    for form in (["dense", "sparse"] if takes_sparse else ["dense"])
]


def new_state(kernel: Any) -> np.ndarray:
    state = aligned_empty((kernel.state_bytes,))
    kernel.start(state)
    return state


def trained(kernel: Any) -> list[bytes]:
    """Return states after training: on rows as stored, in an order, and of two states at once."""
    state = new_state(kernel)
    states = [state.tobytes()]
    kernel.update(state, 0, 50)
    states.append(state.tobytes())
    kernel.update(state, 0, len(ORDER), ORDER)
    states.append(state.tobytes())
    if kernel.trains_pairs:
        other = state.copy()
        kernel.update_both(state, 0, 40, other, 40, 77, ORDER)
        states += [state.tobytes(), other.tobytes()]
    return states
