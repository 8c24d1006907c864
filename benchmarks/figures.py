"""Draw the figure of the page "Performance": time against k, n and lanes, on Covertype.

    OMP_NUM_THREADS=1 python benchmarks/figures.py [FIGURE]

Times are the best of 3. Dashed lines show the time per update in a single pass, multiplied by the
number of updates that TreeCV needs, which is at most n log2(2 k). The extra ``docs`` installs
matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
import sys
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import fetch_covtype
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many

FIGURE = sys.argv[1] if len(sys.argv) > 1 else "docs/figures/performance.png"
PEGASOS = PegasosClassifier(alpha=1e-6)


def best(evaluate: Callable[[], Any]) -> Any:
    return min((evaluate() for _ in range(3)), key=lambda result: result.seconds)


def main() -> None:
    X, y = fetch_covtype(return_X_y=True)
    X, y = scale(X), (y == 2).astype(int)
    n = len(y)
    figure, (by_k, by_n, by_lane) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")

    ks = [2, 4, 10, 30, 100, 1000, 10_000, 100_000, n]
    results = [best(lambda k=k: tree_cross_validate(PEGASOS, X, y, cv=k)) for k in ks]
    an_update = min(result.seconds / result.n_updates for result in results)
    by_k.loglog(ks, [result.seconds for result in results], "o-", label="measured")
    by_k.loglog(ks, [an_update * n * log2(2 * k) for k in ks], "k--", label="n log2(2k) updates")
    by_k.set(xlabel="folds k", ylabel="seconds", title=f"n = {n:,}", ylim=(5e-3, 1))
    by_k.legend()

    ns = [1000, 3000, 10_000, 30_000, 100_000, 300_000, n]
    order = np.random.default_rng(0).permutation(n)
    seconds = []
    for m in ns:
        rows = order[:m]
        part, target = X[rows], y[rows]
        seconds.append(
            best(
                lambda part=part, target=target: tree_cross_validate(
                    PEGASOS, part, target, cv="loo"
                )
            ).seconds
        )
    by_n.loglog(ns, seconds, "o-", label="measured")
    by_n.loglog(ns, [an_update * m * log2(2 * m) for m in ns], "k--", label="n log2(2n) updates")
    by_n.set(xlabel="rows n", title="leave-one-out")
    by_n.legend()

    lanes = [1, 4, 8, 16, 32, 64]
    for dtype, style in ((np.float64, "o-"), (np.float32, "s-")):
        rows = X.astype(dtype)
        each = []
        for count in lanes:
            models = [PegasosClassifier(alpha) for alpha in np.geomspace(1e-8, 1e2, count)]
            found = [tree_cross_validate_many(models, rows, y, cv=100) for _ in range(3)]
            seconds_a_lane = min(sum(one.seconds for one in many) for many in found) / count
            each.append(1e9 * seconds_a_lane / found[0][0].n_updates)
        by_lane.semilogx(lanes, each, style, base=2, label=dtype.__name__)
    by_lane.set(xlabel="lambdas side by side", ylabel="ns per update and alpha", title="k = 100")
    by_lane.set_ylim(bottom=0)
    by_lane.set_xticks(lanes, lanes)
    by_lane.legend()
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
