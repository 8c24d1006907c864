"""The naive twin of every kernel, in plain NumPy and bit for bit: what the tests compare with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from math import nan
from math import sqrt
from typing import Any
from typing import TypeVar

import numpy as np

Model = TypeVar("Model")

_64_BITS = 2**64 - 1


def dot(a: np.ndarray, b: np.ndarray) -> Any:
    """a . b in the one summation order: vec8.h."""
    s = np.zeros(8, a.dtype)
    for j in range(0, len(a), 8):
        s += a[j : j + 8] * b[j : j + 8]
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def mix(z: int) -> int:
    """SplitMix64's finaliser: order.pyx."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return z ^ (z >> 31)


def random_order(seed: int, start: int, stop: int, n_seen: int) -> list[int]:
    """Rows start..stop-1 in the order of (seed, start, stop, n_seen): order.pyx."""
    counter = seed
    for value in (start, stop, n_seen):
        counter = mix(mix((counter + 0x9E3779B97F4A7C15) & _64_BITS) ^ value)
    order: list[int] = []
    for i in range(stop - start):
        bound = i + 1
        while True:
            counter = (counter + 0x9E3779B97F4A7C15) & _64_BITS
            product = (mix(counter) >> 32) * bound
            if product % 2**32 >= 2**32 % bound:
                break
        j = product >> 32
        order.append(start + i)
        order[i], order[j] = order[j], order[i]
    return order


def gather_rows(X: np.ndarray, order: np.ndarray, last: float, width: int) -> np.ndarray:
    """Permuted and padded rows: prepare.pyx."""
    rows = np.zeros((len(order), width), X.dtype)
    rows[:, : X.shape[1]] = X[order]
    if X.shape[1] < width:
        rows[:, X.shape[1]] = last
    return rows


@dataclass
class Pegasos:
    """One output of pegasos.pyx: u = scale z; class ``positive`` against the rest."""

    alpha: float
    average: bool
    project: bool
    positive: int
    z: np.ndarray
    v: np.ndarray
    t: int = 0
    scale: float = 1.0
    norm2: float = 0.0
    harmonic: float = 0.0

    def train(self, x: np.ndarray, y: int) -> None:
        """Step t."""
        number = x.dtype.type
        self.t += 1
        if self.average and self.t > 1:
            self.harmonic += self.scale / (self.t - 1)
        sign = 1 if y == self.positive else -1
        margin = number(sign) * dot(self.z, x)
        if self.project:
            margin = number(self.scale * float(margin))
        if margin < number(self.alpha * (self.t - 1)) or self.t == 1:
            self.z = self.z + number(sign / self.scale) * x
            if self.average:
                self.v = self.v + number(sign * self.harmonic / self.scale) * x
            if self.project:
                self.norm2 += 2 * float(margin) + float(dot(x, x))
                self._project()

    def _project(self) -> None:
        number = self.z.dtype.type
        limit = self.alpha * self.t * self.t
        if self.norm2 <= limit:
            return
        if not isfinite(self.norm2):
            self.scale = self.harmonic = nan
            return
        self.scale *= sqrt(limit / self.norm2)
        self.norm2 = limit
        if self.scale <= 1 / 64:
            if self.average:
                self.v = self.v + number(-self.harmonic) * self.z
                self.harmonic = 0.0
            self.z = self.z * number(self.scale)
            self.scale = 1.0

    def weights(self) -> np.ndarray:
        """The last hypothesis, or the mean of those before each step."""
        number = self.z.dtype.type
        per_step = 1 / (self.alpha * self.t) if self.t else 0.0
        if self.average:
            return number(per_step) * (number(self.harmonic) * self.z - self.v)
        return number(self.scale * per_step) * self.z


@dataclass
class LeastSquares:
    """sgd.pyx."""

    step_size: float
    radius: float
    average: bool
    w: np.ndarray
    total: np.ndarray
    t: int = 0

    def train(self, x: np.ndarray, y: float) -> None:
        """Step t."""
        number = x.dtype.type
        self.t += 1
        slope = dot(self.w, x) - number(y)
        self.total = self.total + self.w
        self.w = self.w + number(-self.step_size * float(slope)) * x
        norm2 = float(dot(self.w, self.w))
        if norm2 > self.radius * self.radius:
            self.w = self.w * number(self.radius / sqrt(norm2) if isfinite(norm2) else nan)

    def weights(self) -> np.ndarray:
        """The last hypothesis, or the mean of those before each step."""
        if self.average:
            return (self.total * (1 / self.t if self.t else 0.0)).astype(self.w.dtype)
        return self.w


def treecv(
    chunks: Sequence[Sequence[int]],
    train: Callable[[Model, Sequence[int], int], Model],
    test: Callable[[Model, int], None],
    start: Model,
) -> None:
    """Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015), as printed: tree.pyx and walk.py.

    Parameters
    ----------
    chunks : sequence of sequences of int
        The rows of Z_1..Z_k.
    train : callable
        (model, rows, rows seen before) -> a model; the one given stays what it is.
    test : callable
        (model, fold) with folds from 0.
    start : model
        The one that has seen no rows.
    """

    def rows(s: int, e: int) -> list[int]:
        return [row for chunk in chunks[s - 1 : e] for row in chunk]

    def treecv_node(s: int, e: int, model: Model) -> None:
        if s == e:
            test(model, s - 1)
            return
        m = (s + e) // 2
        n_seen = len(rows(1, len(chunks))) - len(rows(s, e))
        treecv_node(s, m, train(model, rows(m + 1, e), n_seen))
        treecv_node(m + 1, e, train(model, rows(s, m), n_seen))

    treecv_node(1, len(chunks), start)
