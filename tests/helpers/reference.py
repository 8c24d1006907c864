"""Every kernel again in simple NumPy, equal bit for bit: the tests compare with it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from itertools import pairwise
from math import factorial
from math import floor
from math import frexp
from math import gcd
from math import inf
from math import isfinite
from math import isnan
from math import ldexp
from math import nan
from math import sqrt
from typing import Any
from typing import NamedTuple

import numpy as np

_64_BITS = 2**64 - 1
UNIT = 2.0**52
ONE = float(np.float64(1).view(np.int64))


def dot(a: np.ndarray, b: np.ndarray) -> Any:
    """a . b in the one summation order: vec8.h."""
    s = np.zeros(8, a.dtype)
    for j in range(0, len(a), 8):
        s += a[j : j + 8] * b[j : j + 8]
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def mix(z: int) -> int:
    """SplitMix64's finaliser: order.pxd."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return z ^ (z >> 31)


def chain(key: int, value: int) -> int:
    """Take one more number into a key: order.pxd."""
    return mix(mix((key + 0x9E3779B97F4A7C15) & _64_BITS) ^ value)


def draws(counter: int, bounds: Iterator[int]) -> Iterator[int]:
    """Uniform numbers below each bound, one after the other: order.pxd."""
    for bound in bounds:
        while True:
            counter = (counter + 0x9E3779B97F4A7C15) & _64_BITS
            product = (mix(counter) >> 32) * bound
            if product % 2**32 >= 2**32 % bound:
                break
        yield product >> 32


def order_with_replays(
    seed: int,
    start: int,
    stop: int,
    n_seen: int,
    random: bool,
    held: range,
    n_rows: int,
    n_epochs: int,
) -> list[int]:
    """Rows of a phase, each followed by replays of any rows that are not held out: order.pyx."""
    new = random_order(seed, start, stop, n_seen) if random else list(range(start, stop))
    seen = [row for row in range(n_rows) if row not in held]
    run = 1 if random or len(seen) < 512 else 8
    n_replays, n_runs = len(new) * (n_epochs - 1), len(seen) // run
    begins = range(0, n_replays, max(1, run * n_runs))
    sizes = [min(run * n_runs, n_replays - begin) for begin in begins]
    bounds = [
        [n_runs // 2 + 1, n_runs, *[len(seen)] * (run > 1), *range(1, -(-size // run) + 1)]
        for size in sizes
    ]
    key = chain(chain(chain(chain(seed, start), stop), n_seen), n_epochs)
    drawn = draws(key, (bound for of_sample in bounds for bound in of_sample))
    replays: list[int] = []
    for size in sizes:
        step, place = n_runs // 4 + next(drawn), next(drawn)
        begin = next(drawn) if run > 1 else 0
        while gcd(step, n_runs) > 1:
            step += 1
        runs: list[int] = []
        for i in range(-(-size // run)):
            j = next(drawn)
            runs.append((place + i * step) % n_runs)
            runs[i], runs[j] = runs[j], runs[i]
        rows = [seen[(begin + run * one + at) % len(seen)] for one in runs for at in range(run)]
        replays += rows[:size]
    after = iter(replays)
    return [row for one in new for row in (one, *(next(after) for _ in range(n_epochs - 1)))]


def random_order(seed: int, start: int, stop: int, n_seen: int) -> list[int]:
    """Rows start..stop-1 in the order of (seed, start, stop, n_seen): order.pyx."""
    counter = chain(chain(chain(seed, start), stop), n_seen)
    order: list[int] = []
    for i, j in enumerate(draws(counter, iter(range(1, stop - start + 1)))):
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


def exponential(x: float) -> float:
    """e^x: exp_log.pxd."""
    if not x >= -708:
        return 0.0 if x < 0 else nan
    if x > 709:
        return inf
    k = floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    r2 = r * r
    r4 = r2 * r2
    c = [1 / factorial(i) for i in range(14)]
    low = (1 + r) + r2 * (c[2] + r * c[3])
    middle = (c[4] + r * c[5]) + r2 * (c[6] + r * c[7])
    high = ((c[8] + r * c[9]) + r2 * (c[10] + r * c[11])) + r4 * (c[12] + r * c[13])
    return ldexp(low + r4 * (middle + r4 * high), k)


def logarithm(x: float) -> float:
    """ln x: exp_log.pxd."""
    if not 0 < x < inf:
        return -inf if x == 0 else x if x == inf else nan
    if x < 2.2250738585072014e-308:
        return logarithm(x * 2.0**52) - 36.04365338911715
    m, k = frexp(x)
    m, k = 2 * m, k - 1
    if m > 1.4142135623730951:
        m, k = m / 2, k + 1
    s = (m - 1) / (m + 1)
    s2 = s * s
    s4 = s2 * s2
    s8 = s4 * s4
    c = [1 / i for i in range(3, 22, 2)]
    low = (c[0] + s2 * c[1]) + s4 * (c[2] + s2 * c[3])
    high = ((c[4] + s2 * c[5]) + s4 * (c[6] + s2 * c[7])) + s8 * (c[8] + s2 * c[9])
    series = s2 * (low + s8 * high)
    return k * 0.693147180369123816490 + (
        2 * s + (2 * s * series + k * 1.90821492927058770002e-10)
    )


def slope(loss: str, epsilon: float, p: float, y: float) -> float:
    """Return the slope of a loss in its prediction p: losses.pxd."""
    miss = p - y
    inside = -epsilon <= miss <= epsilon
    if isnan(p):
        return p
    match loss:
        case "hinge":
            return -y if y * p < 1 else 0.0
        case "log_loss":
            return -y / (1 + exponential(y * p))
        case "squared_error":
            return miss
        case "huber":
            return miss if inside else epsilon if miss > 0 else -epsilon
        case _:
            return 0.0 if inside else 1.0 if miss > 0 else -1.0


def coarse_log2(x: float) -> float:
    """A straight line between powers of two: steps.pxd."""
    return (float(np.float64(x).view(np.int64)) - ONE) / UNIT


def coarse_power_of_two(y: float) -> float:
    """The inverse of ``coarse_log2``."""
    return float(np.int64(y * UNIT + ONE).view(np.float64))


class Balance:
    """Weights of rows by the classes of the rows so far: row_weight.pxd."""

    def __init__(self, n_classes: int) -> None:
        self.masses = [0.0] * n_classes
        self.mass = 0.0

    def weight(self, c: int, given: float) -> float:
        """Count a row of class c, and return its weight."""
        n_classes = len(self.masses)
        self.masses[c] += given
        self.mass += given
        share = (self.masses[c] + 1) * n_classes
        return given * ((self.mass + n_classes) / share)


class Steps:
    """The steps of the rows: steps.pxd."""

    def __init__(
        self,
        loss: str,
        step_size: float,
        alpha: float,
        averages: bool = False,
        total: float = 0.0,
        count: float = 0.0,
    ) -> None:
        self.loss = loss
        self.bounded = loss in ("hinge", "log_loss")
        self.step_size = step_size
        self.alpha = alpha
        self.averages = averages
        self.total = total
        self.count = count

    def after(self, x: np.ndarray, weight: float) -> Steps:
        """The steps after one more row; the given ones stay what they are."""
        norm2 = min(float(dot(x, x)), 1e140)
        total, count = self.total, self.count
        times = min(weight, 1e20)
        if norm2 > 0:
            total += times * (coarse_log2(norm2) if self.bounded else norm2 * norm2)
            count += times * (1 if self.bounded else norm2)
        return Steps(self.loss, self.step_size, self.alpha, self.averages, total, count)

    def of(self, x: np.ndarray, weight: float) -> tuple[float, float, float]:
        """Return (rate, weight, penalty) of the last row, which has the given weight."""
        if self.step_size:
            return self.step_size, weight, self.alpha
        typical = 1.0
        if self.count > 0:
            typical = self.total / self.count
            factor = 2 if self.averages else 4
            typical = coarse_power_of_two(typical) if self.bounded else factor * typical
        typical = max(typical, 1e-30)
        penalty = self.alpha / typical
        rate = 1 / ((1 / 3 if self.bounded else 1) + penalty)
        return rate, weight / max(typical, float(dot(x, x))), penalty


def wide(x: np.ndarray) -> np.ndarray:
    """In float64, as sums are kept."""
    return x.astype(np.float64)


def output(number: Any, a: float, p_x: Any, b: float = 0.0, q_x: Any = None) -> Any:
    """Return w.x = a p.x + b q.x, rounded once: linear.pxd."""
    return number(a * float(p_x) + (0.0 if q_x is None else b * float(q_x)))


class Pegasos:
    """One output of pegasos.pyx: u = scale z."""

    def __init__(self, alpha: float, average: bool, project: bool, zeros: np.ndarray) -> None:
        self.alpha = alpha
        self.average = average
        self.project = project
        self.number = zeros.dtype.type
        self.z = zeros
        self.v = wide(zeros)
        self.t = 0
        self.scale = 1.0
        self.norm2 = self.harmonic = 0.0

    def train(self, x: np.ndarray, y: int, weight: float = 1.0) -> Any:
        """Step t; y is -1 or 1. Return what the model said of x before."""
        said = self._output(x)
        self.t += 1
        if self.average and self.t > 1:
            self.harmonic += self.scale / (self.t - 1)
        margin = self.number(y) * dot(self.z, x)
        if self.project:
            margin = self.number(self.scale * float(margin))
        if isnan(margin):
            self.scale = self.harmonic = nan
        violated = margin < self.number(self.alpha * (self.t - 1)) or self.t == 1
        added = self.number(y * weight / self.scale)
        if violated and added != 0:
            self.z = self.z + added * x
            if self.average:
                self.v = self.v + (y * weight * self.harmonic / self.scale) * wide(x)
            if self.project:
                self.norm2 += weight * (2 * float(margin) + weight * float(dot(x, x)))
                self._project()
        return said

    def _output(self, x: np.ndarray) -> Any:
        per_step = 1 / (self.alpha * self.t) if self.t else 0.0
        if self.average:
            z_x, v_x = dot(self.z, x), dot(self.v, wide(x))
            return output(self.number, per_step * self.harmonic, z_x, -per_step, v_x)
        return output(self.number, per_step * self.scale, dot(self.z, x))

    def _project(self) -> None:
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
                self.v = self.v - self.harmonic * wide(self.z)
                self.harmonic = 0.0
            self.z = self.z * self.number(self.scale)
            self.scale = 1.0

    def weights(self) -> np.ndarray:
        """The last hypothesis, or the mean of those before each step."""
        per_step = 1 / (self.alpha * self.t) if self.t else 0.0
        if self.average:
            w = per_step * self.harmonic * wide(self.z) + -per_step * self.v
        else:
            w = per_step * self.scale * wide(self.z)
        return w.astype(self.number)


class SGD:
    """One output of sgd.pyx: w = scale z."""

    def __init__(
        self,
        loss: str,
        epsilon: float,
        alpha: float,
        step_size: float,
        power: float,
        radius: float,
        batch_size: int,
        average: bool,
        average_start: int,
        zeros: np.ndarray,
        is_linear: bool = False,
    ) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.steps = Steps(loss, step_size, alpha, average)
        self.power = power
        self.radius = radius
        self.batch_size = batch_size
        self.average = average
        self.is_linear = is_linear
        self.average_start = average_start
        self.number = zeros.dtype.type
        self.z = zeros
        self.v = wide(zeros)
        self.gradient = wide(zeros)
        self.n_seen = self.n_averaged = 0
        self.scale = 1.0
        self.norm2 = self.averaged = 0.0

    def train(self, x: np.ndarray, y: float, weight: float = 1.0) -> Any:
        """One row. Return what the model said of x before."""
        said = self._output(x)
        begins_batch = self.n_seen % self.batch_size == 0
        if self.average and self.n_seen >= self.average_start and begins_batch:
            n_steps = (self.n_seen - self.average_start) // self.batch_size
            weight_in_average = 1 + n_steps * self.is_linear
            self.n_averaged += weight_in_average
            self.averaged += weight_in_average * self.scale
        self.n_seen += 1
        margin = float(dot(self.z, x))
        g = slope(self.loss, self.epsilon, self.scale * margin, y)
        self.steps = self.steps.after(x, weight)
        rate, weight, penalty = self.steps.of(x, weight)
        if self.batch_size == 1:
            self._step(x, margin, g, self._decayed(rate, self.n_seen), weight, penalty)
            return said
        self.gradient = self.gradient + weight * g * wide(x)
        if self.n_seen % self.batch_size == 0:
            self._batch_step(self._decayed(rate, self.n_seen // self.batch_size), penalty)
        return said

    def _output(self, x: np.ndarray) -> Any:
        z_x = dot(self.z, x)
        if self.n_averaged == 0:
            return output(self.number, self.scale, z_x)
        per_step = 1 / self.n_averaged
        v_x = dot(self.v, wide(x))
        return output(self.number, per_step * self.averaged, z_x, -per_step, v_x)

    def _decayed(self, rate: float, t: int) -> float:
        if self.power == 0:
            return rate
        if self.power == 0.5:
            return rate / sqrt(t)
        return rate * exponential(-self.power * logarithm(t))

    def _step(
        self, x: np.ndarray, margin: float, g: float, rate: float, weight: float, penalty: float
    ) -> None:
        self.scale *= 1 - rate * penalty
        if not 1 / 64 <= abs(self.scale) <= 64:
            margin *= self.scale
            self._absorb()
        if g != 0:
            added = self.number(-(rate * weight) * g / self.scale)
            self.z = self.z + added * x
            if self.averaged != 0:
                self.v = self.v + float(added) * self.averaged * wide(x)
            self.norm2 += float(added) * (2 * margin + float(added) * float(dot(x, x)))
        self._project()

    def _batch_step(self, rate: float, penalty: float) -> None:
        self.scale *= 1 - rate * penalty
        if not 1 / 64 <= abs(self.scale) <= 64:
            self._absorb()
        factor = -rate / (self.batch_size * self.scale)
        added = (factor * self.gradient).astype(self.number)
        self.gradient = np.zeros_like(self.gradient)
        self.z = self.z + added
        self.norm2 = 0.0
        for z in self.z:  # not by sum(), which from Python 3.12 on carries what rounding loses
            self.norm2 += float(z) * float(z)
        self.v = self.v + wide(added) * self.averaged
        self._project()

    def _absorb(self) -> None:
        self.v = self.v - self.averaged * wide(self.z)
        self.averaged = 0.0
        self.z = (self.scale * wide(self.z)).astype(self.number)
        self.norm2 *= self.scale * self.scale
        self.scale = 1.0

    def _project(self) -> None:
        if not isfinite(self.radius):
            return
        norm2 = self.scale * self.scale * self.norm2
        if norm2 > self.radius * self.radius:
            self.scale *= self.radius / sqrt(norm2)
        if not isfinite(norm2):
            self.scale = nan

    def weights(self) -> np.ndarray:
        """The last iterate, or the mean of those averaged, once there are some."""
        if self.n_averaged == 0:
            return (self.scale * wide(self.z)).astype(self.number)
        per_step = 1 / self.n_averaged
        w = per_step * self.averaged * wide(self.z) + -per_step * self.v
        return w.astype(self.number)


class StreamingSVRG:
    """One output of svrg.pyx: w = scale z + shift G."""

    def __init__(
        self,
        loss: str,
        epsilon: float,
        alpha: float,
        step_size: float,
        initial_batch_size: int,
        batch_growth: float,
        inner_steps: int,
        warm_stages: int,
        by_factorials: bool,
        seed: int,
        zeros: np.ndarray,
    ) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.steps = Steps(loss, step_size, alpha)
        self.batch_growth = batch_growth
        self.inner_steps = inner_steps
        self.warm_stages = warm_stages
        self.by_factorials = by_factorials
        self.seed = seed
        self.number = zeros.dtype.type
        self.z = self.anchor = zeros
        self.sum = wide(zeros)
        self.stage = 0
        self.in_batch = True
        self.batch_size = float(initial_batch_size)
        self.n_batch = self.left = initial_batch_size
        self.scale, self.shift = 1.0, 0.0

    def train(self, x: np.ndarray, y: float, weight: float = 1.0) -> Any:
        """One row. Return what the model said of x, after it was settled where that is due."""
        if self.left == 0:
            self._next_phase()
        self.left -= 1
        self.steps = self.steps.after(x, weight)
        rate, weight, penalty = self.steps.of(x, weight)
        anchor_x = dot(self.anchor, x)
        at_anchor = slope(self.loss, self.epsilon, float(anchor_x), y)
        if self.in_batch:
            self.sum = self.sum + weight * at_anchor * wide(x)
            return anchor_x
        if self.by_factorials:
            rate /= 2 ** self._growing()
        shrink = 1 - rate * penalty
        extreme = not 1 / 64 <= abs(self.scale * shrink) <= 64
        if extreme:
            self._settle()
        next_scale = 1.0 if extreme else self.scale * shrink
        p = self.scale * float(dot(self.z, x)) + self.shift * float(dot(self.sum, wide(x)))
        difference = slope(self.loss, self.epsilon, p, y) - at_anchor
        if extreme:
            self.z = self.z * self.number(shrink)
        self.z = self.z + self.number(-(rate * weight) * difference / next_scale) * x
        self.scale = next_scale
        self.shift = shrink * self.shift - rate / self.n_batch
        return self.number(p)

    def _growing(self) -> int:
        return max(0, self.stage - self.warm_stages)

    def _settle(self) -> None:
        self.z = (self.scale * wide(self.z) + self.shift * self.sum).astype(self.number)
        self.scale, self.shift = 1.0, 0.0

    def _next_phase(self) -> None:
        if self.in_batch:
            most = self.inner_steps * (4 ** self._growing() if self.by_factorials else 1)
            drawn = 1 + next(draws(chain(self.seed, self.stage), iter([most or 1])))
            self.left = drawn if most else self.n_batch
            self.in_batch = False
            return
        self._settle()
        self.anchor = self.z
        self.sum = np.zeros_like(self.sum)
        self.stage += 1
        if self._growing():
            self.batch_size *= 4 * self._growing() if self.by_factorials else self.batch_growth
        self.n_batch = self.left = int(self.batch_size + 0.5)
        self.in_batch = True

    def weights(self) -> np.ndarray:
        """The iterate in an inner phase, the anchor in a batch."""
        if self.in_batch:
            return self.z
        return (self.scale * wide(self.z) + self.shift * self.sum).astype(self.number)


class KMeans:
    """kmeans.pyx."""

    def __init__(self, n_clusters: int) -> None:
        self.n_clusters = n_clusters
        self.centres: tuple[np.ndarray, ...] = ()
        self.masses: tuple[float, ...] = ()

    def train(self, x: np.ndarray, weight: float = 1.0) -> None:
        """One row."""
        if weight == 0:
            return
        c, distance = self.nearest(x) if self.centres else (0, x.dtype.type(1))
        if distance != 0 and len(self.centres) < self.n_clusters:
            c = len(self.centres)
            self.centres, self.masses = (*self.centres, np.zeros_like(x)), (*self.masses, 0.0)
        masses, centres = list(self.masses), list(self.centres)
        masses[c] += weight
        centres[c] = centres[c] + x.dtype.type(weight / masses[c]) * (x - centres[c])
        self.masses, self.centres = tuple(masses), tuple(centres)

    def nearest(self, x: np.ndarray) -> tuple[int, Any]:
        """The nearest centre and its squared distance."""
        distances = [dot(centre - x, centre - x) for centre in self.centres]
        return int(np.argmin(distances)), min(distances)


class Gaussian:
    """gaussian.pyx, by numpy's own sums over all rows: equal to rounding only."""

    def __init__(self, full: bool, reg_covar: float) -> None:
        self.full = full
        self.reg_covar = reg_covar
        self.rows: tuple[np.ndarray, ...] = ()
        self.weights: tuple[float, ...] = ()

    def train(self, x: np.ndarray, weight: float = 1.0) -> None:
        """One row."""
        self.rows = (*self.rows, wide(x))
        self.weights = (*self.weights, weight)

    def log_density(self, x: np.ndarray) -> float:
        """log p(x)."""
        rows, weights = np.array(self.rows), np.array(self.weights)
        mean = weights @ rows / weights.sum()
        centred = rows - mean
        covariance = (weights[:, None] * centred).T @ centred / weights.sum()
        if not self.full:
            covariance = np.diag(np.diag(covariance))
        covariance = covariance + self.reg_covar * np.eye(len(x))
        z = wide(x) - mean
        log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
        return -0.5 * float(log_det + z @ np.linalg.solve(covariance, z))


# --- Trees ---


class TreeNode(NamedTuple):
    """A node of a tree that is grown alone.

    Attributes
    ----------
    sums : tuple of int
        Of the rows in it: split_search.pxd.
    n_rows, depth : int
    decrease : float
    feature : int
        -1 for a leaf.
    bin : int
        -1 for a split by categories.
    missing_left : bool
    left_bins : frozenset of int
        The bins of all rows that go left, seen or not.
    children : tuple of TreeNode
    """

    sums: tuple[int, ...]
    n_rows: int
    depth: int
    decrease: float = 0.0
    feature: int = -1
    bin: int = -1
    missing_left: bool = False
    left_bins: frozenset[int] = frozenset()
    children: tuple[Any, ...] = ()


class TreeRows(NamedTuple):
    """The training rows of a tree, and how it is grown.

    Attributes
    ----------
    bins : ndarray of shape (n_features, n_rows)
        The bin behind the last one is that of missing values.
    n_bins : sequence of int
        Without missing values.
    is_categorical : sequence of bool
    classes : ndarray of shape (n_rows,) or None
    targets : ndarray of shape (n_rows,), int, or None
    weights : ndarray of shape (n_rows,), int, or None
    factors : sequence of float
        The weights of classes.
    min_leaf, min_split, max_depth : int
    min_decrease, min_share : float
    entropy : bool
    unit : float
        Of a decrease.
    """

    bins: np.ndarray
    n_bins: Sequence[int]
    is_categorical: Sequence[bool]
    classes: np.ndarray | None
    targets: np.ndarray | None
    weights: np.ndarray | None
    factors: Sequence[float] = ()
    min_leaf: int = 1
    min_split: int = 2
    max_depth: int = 2**31 - 1
    min_decrease: float = 0.0
    min_share: float = 0.0
    entropy: bool = False
    unit: float = 1.0

    def sums(self, rows: np.ndarray) -> tuple[int, ...]:
        """Return the sums over rows."""
        ones = np.ones(len(rows), np.int64)
        w = ones if self.weights is None else self.weights[rows]
        n = int(np.count_nonzero(w))
        if self.targets is not None:
            total = sum(int(a) * int(b) for a, b in zip(w, self.targets[rows], strict=True))
            return (n, total) if self.weights is None else (n, int(w.sum()), total)
        assert self.classes is not None
        of_class = tuple(int(w[self.classes[rows] == c].sum()) for c in range(len(self.factors)))
        return of_class if self.weights is None else (n, *of_class)

    def n_in(self, sums: Sequence[int]) -> int:
        if self.targets is None and self.weights is None:
            return sum(sums)
        return sums[0]

    def masses(self, sums: Sequence[int]) -> list[float]:
        """Return the weighted masses of classes."""
        of_class = sums if self.weights is None else sums[1:]
        return [f * float(m) for f, m in zip(self.factors, of_class, strict=True)]

    def mass(self, sums: Sequence[int]) -> float:
        if self.targets is not None:
            return float(sums[self.weights is not None])
        total = 0.0
        for m in self.masses(sums):
            total += m
        return total

    def parts(self, sums: Sequence[int], centre: int) -> tuple[float, float]:
        """Return quality = first - second of classes, or first / second."""
        if self.targets is not None:
            w, s = sums[-2], sums[-1]
            return float(s - centre * w) * float(s - centre * w), float(w)
        first = total = 0.0
        for m in self.masses(sums):
            first += _x_log_x(m) if self.entropy else m * m
            total += m
        return first, _x_log_x(total) if self.entropy else total

    def quality(self, sums: Sequence[int], centre: int) -> float:
        first, second = self.parts(sums, centre)
        return first - second if self.entropy else first / second

    def centre(self, sums: Sequence[int]) -> int:
        """Return S / W, rounded towards 0."""
        if self.targets is None or sums[-2] == 0:
            return 0
        return abs(sums[-1]) // sums[-2] * (1 if sums[-1] >= 0 else -1)


def _x_log_x(x: float) -> float:
    return x * logarithm(x) if x > 0 else 0.0


def grow_alone(data: TreeRows, seed: int) -> TreeNode:
    """Grow one tree from its training rows: forest.pyx for one tree alone."""
    rows = np.arange(data.bins.shape[1])
    return _grow(data, rows, 0, seed, data.mass(data.sums(rows)))


def _grow(data: TreeRows, rows: np.ndarray, depth: int, path: int, mass: float) -> TreeNode:
    sums = data.sums(rows)
    n = data.n_in(sums)
    leaf = TreeNode(sums, n, depth)
    if depth >= data.max_depth or n < max(data.min_split, 2 * data.min_leaf):
        return leaf
    used = rows if data.weights is None else rows[data.weights[rows] > 0]
    if data.targets is not None:
        is_pure = len(set(data.targets[used].tolist())) <= 1
    else:
        is_pure = sum(m > 0 for m in data.masses(sums)) <= 1
    if is_pure or data.mass(sums) <= 0:
        return leaf
    best: tuple[float, int, TreeNode] | None = None
    centre = data.centre(sums)
    for feature in range(len(data.bins)):
        for left_sums, node in _splits(data, used, feature, leaf, centre):
            right_sums = tuple(a - b for a, b in zip(sums, left_sums, strict=True))
            if min(data.n_in(left_sums), data.n_in(right_sums)) < data.min_leaf:
                continue
            masses = data.mass(left_sums), data.mass(right_sums)
            if min(masses) <= 0 or min(masses) < data.min_share * mass:
                continue
            gain = data.quality(left_sums, centre) + data.quality(right_sums, centre)
            if data.entropy:
                a, b = data.parts(left_sums, centre), data.parts(right_sums, centre)
                gain = (a[0] - a[1]) + (b[0] - b[1])
            rank = chain(path, feature)
            same = best is not None and best[2].feature == feature
            if best is None or gain > best[0] or (gain == best[0] and not same and rank > best[1]):
                best = gain, rank, node
    if best is None:
        return leaf
    gain, _, node = best
    decrease = max(0.0, data.unit * (gain - data.quality(sums, centre)) / mass)
    if decrease + 2.0**-52 < data.min_decrease:
        return leaf
    goes_left = np.isin(data.bins[node.feature][rows], list(node.left_bins))
    children = tuple(
        _grow(data, rows[side], depth + 1, chain(path, number), mass)
        for number, side in ((1, goes_left), (2, ~goes_left))
    )
    return node._replace(decrease=decrease, children=children)


def _splits(
    data: TreeRows, rows: np.ndarray, feature: int, leaf: TreeNode, centre: int
) -> Iterator[tuple[tuple[int, ...], TreeNode]]:
    """Yield all splits of a feature with the sums of the rows that go left."""
    bins, n_bins = data.bins[feature][rows], int(data.n_bins[feature])
    missing = bins == n_bins
    n_missing = int(np.count_nonzero(missing))

    def split(left: np.ndarray, at: int, missing_left: bool | None, codes: Any) -> Any:
        sums = data.sums(rows[left])
        n_left = data.n_in(sums)
        if missing_left is None:
            missing_left = n_left > leaf.n_rows - n_left
        if codes is None:
            allowed = set(range(at + 1)) | ({n_bins} if missing_left else set())
        else:
            present = set(bins.tolist())
            allowed = set(codes) | (set(range(256)) - present if missing_left else set())
        return sums, leaf._replace(
            feature=feature, bin=at, missing_left=missing_left, left_bins=frozenset(allowed)
        )

    if data.is_categorical[feature]:
        codes = sorted(set(bins.tolist()))
        if len(codes) < 2:
            return
        if data.targets is None and len(data.factors) > 2:
            for code in codes:
                side = (code == n_bins) if n_missing else None
                yield split(bins == code, -1, side, [code])
            return
        means = {code: _mean_target(data, rows[bins == code], centre) for code in codes}
        codes.sort(key=lambda code: means[code])
        for stop in range(1, len(codes)):
            side = (n_bins in codes[:stop]) if n_missing else None
            yield split(np.isin(bins, codes[:stop]), -1, side, codes[:stop])
        return
    present = sorted(set(bins[~missing].tolist()))
    for low, high in pairwise(present):
        at = (low + high - 1) // 2
        left = ~missing & (bins <= low)
        yield split(left, at, False if n_missing else None, None)
        if n_missing:
            yield split(left | missing, at, True, None)
    if n_missing and present:
        yield split(~missing, n_bins - 1, False, None)


def _mean_target(data: TreeRows, rows: np.ndarray, centre: int) -> float:
    sums = data.sums(rows)
    if data.targets is not None:
        return float(sums[-1] - centre * sums[-2]) / float(sums[-2])
    a, b = data.masses(sums)
    return b / (a + b) if a + b > 0 else 0.0
