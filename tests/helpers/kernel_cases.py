"""Settings of the kernels that train one model, each beside its NumPy twin."""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np
import reference
from scipy import sparse

from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.kernels.svrg import StreamingSVRG
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.partition import Partition

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


def rows_of(n, d, dtype, density=1.0, seed=0):
    """Return the same prepared rows twice, dense and sparse."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * (rng.random((n, d)) < density)).astype(dtype)
    order = np.arange(n, dtype=np.uint32)
    return pad_rows(X, order, True), pad_rows(sparse.csr_array(X), order, True)


def weights_of(n, dtype, seed=0):
    """Return weights that are 0, 1, usual, large, tiny, or so tiny that they underflow."""
    rng = np.random.default_rng(seed)
    tiny = np.finfo(dtype).smallest_subnormal
    usual = rng.uniform(0.2, 3, n)
    return np.choose(
        rng.choice(6, n, p=[0.15, 0.2, 0.45, 0.05, 0.1, 0.05]),
        [np.zeros(n), np.ones(n), usual, 20 * usual, 1e-9 * usual, np.full(n, tiny)],
    ).astype(dtype)


# How rows are weighted: not at all, by an array, balanced, or both.
KINDS = [None, "weights", "balanced", "both"]


def weigh(kernel, kind, given):
    if kind is not None:
        kernel.weigh(given if kind != "balanced" else None, kind != "weights")


class Weigher:
    """Gives the twins the weights of rows; balanced ones depend on the rows before."""

    def __init__(self, kind, given, codes, n_classes):
        self.given = given if kind in ("weights", "both") else None
        self.codes = codes
        self.dtype = given.dtype
        self.balance = reference.Balance(n_classes) if kind in ("balanced", "both") else None

    def next(self, row):
        given = 1.0 if self.given is None else float(self.given[row])
        if self.balance is None:
            return given
        return float(self.dtype.type(self.balance.weight(self.codes[row], given)))


class Twins:
    """The twins of all outputs of a kernel."""

    def __init__(self, case, dense, y, n_classes, weigher):
        _, twin, options = case
        self.dense, self.weigher = dense, weigher
        n_outputs = 1 if n_classes in (None, 2) else n_classes
        self.models = [
            twin(*options, np.zeros(dense.shape[1], dense.dtype)) for _ in range(n_outputs)
        ]
        self.targets = [
            [float(target) for target in y]
            if n_classes is None
            else np.where(y == c + (n_classes == 2), 1, -1)
            for c in range(n_outputs)
        ]

    def train(self, rows):
        """Train on rows in order; return the outputs for each row before training on it."""
        outputs = []
        for row in rows:
            weight = self.weigher.next(row)
            outputs.append(
                [
                    model.train(self.dense[row], targets[row], weight)
                    for model, targets in zip(self.models, self.targets, strict=True)
                ]
            )
        return outputs

    def weights(self):
        return np.array([model.weights() for model in self.models])


def problem(case, n, dtype, n_classes, d=11, **options):
    """Return rows, targets and the number of classes for a case."""
    dense, sparse_rows = rows_of(n, d, dtype, **options)
    rng = np.random.default_rng(1)
    y = rng.integers(0, n_classes, n).astype(np.int32)
    if case in REGRESSORS:
        return dense, sparse_rows, rng.normal(size=n).astype(dtype), None
    return dense, sparse_rows, y, n_classes


def walked(kernel, n_folds, random, seed):
    """Return the outputs of all folds, (n_models, n_rows, n_outputs)."""
    states = aligned_empty((9, kernel.state_bytes))
    kernel.start(states[0])
    out = np.zeros((kernel.n_models * kernel.n_rows, kernel.n_outputs), f"f{kernel.itemsize}")
    memory = (
        states,
        aligned_empty((kernel.model_bytes,)),
        out.view(np.uint8),
        aligned_empty((kernel.log_bytes,)) if kernel.log_bytes else None,
        np.empty(kernel.n_rows, np.uint32) if random else None,
    )
    plan = Partition(kernel.n_rows, n_folds, None, random, seed)
    kernel.walk_subtree(plan, plan.root, *memory)
    return out.reshape(kernel.n_models, kernel.n_rows, kernel.n_outputs)
