"""Watch the memory of a process while trials fill its cache.

    python tests/fuzz/rss.py [SEED [TRIALS [ROWS [MEGABYTES]]]]

Trials of leave-one-out with a continuous parameter share hardly anything, so their models and
results fill the cache. The resident memory is printed ten times. The script fails if it grew by
more than 1.25 times the bound of the cache and 16 MB.
"""

from __future__ import annotations

import sys

import numpy as np
from optuna.distributions import FloatDistribution

from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

_CONSTANT = 16 * 2**20


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


def main(seed: int = 0, n_trials: int = 1000, n_rows: int = 20_000, megabytes: int = 256) -> int:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 10))
    y = X @ rng.normal(size=10) + rng.normal(size=n_rows) > 0
    cache = ModelCache(megabytes * 2**20)
    alpha = FloatDistribution(1e-7, 1e2, log=True)
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_distributions={"alpha": alpha}, cv="loo", cache=cache
    )
    objective.evaluate({"alpha": 1.0})  # prepares the rows
    before, most = resident(), 0
    for i in range(n_trials):
        objective.evaluate({"alpha": 10 ** rng.uniform(-7, 2)})
        if (i + 1) % max(1, n_trials // 10) == 0:
            most = max(most, resident() - before)
            print(
                f"{i + 1} trials: {(resident() - before) / 2**20:.0f} MB grown, "
                f"{cache.n_bytes / 2**20:.0f} of {megabytes} MB in the cache, "
                f"{len(cache)} arrays",
                flush=True,
            )
    return int(most > 1.25 * cache.max_bytes + _CONSTANT)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
