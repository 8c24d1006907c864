"""Random evaluations against independent computations of the same numbers.

    python tests/fuzz/differential.py --size 1000 --seed 1
    python tests/fuzz/differential.py --seed 1 --kind fits --size 5000
    python tests/fuzz/differential.py --seed 1 --only fits:1234     one case, in full

The kinds of cases, and what each is compared with:

* fits: any estimator, steps, splitter, scores and rows; ``cross_validate`` of scikit-learn;
* pooled: out-of-fold predictions and pooled scores; ``cross_val_predict``;
* forest: trees grown together; a direct fit of each;
* ensembles: numbers and sizes of trees of ensembles; ``cross_validate`` of each candidate;
* replays: tree, chain and standard; training by hand with ``partial_fit``, phase by phase;
* tables: steps that are done once for all folds; the same fitted on each training set;
* shared: calls one after another with one cache or store; the same calls with nothing shared;
* lanes: estimators evaluated side by side; each of them alone;
* truncations: forests cut at a depth; their trees followed by hand;
* races: ensembles that a study prunes while they grow; ``cross_validate``;
* searches: repeated and failing candidates, scorers that fail, lists of grids; scikit-learn's;
* routing: metadata that is requested; ``cross_validate``;
* parquet: files with times and categories; ``cross_validate`` of the frame they hold;
* texts: wide sparse rows; fits that have converged;
* leaks: one fold with some of its rows and labels changed; the same fold before.

A difference is a number that differs, or an error on one side only, unless the documentation
explains it (``case.DOCUMENTED``). Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path
import sys
import warnings
from zlib import crc32

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))  # for reference.py

from differential_cases.case import Case  # noqa: E402
from differential_cases.ensembles import ensembles  # noqa: E402
from differential_cases.folds import fits  # noqa: E402
from differential_cases.folds import forest  # noqa: E402
from differential_cases.folds import pooled  # noqa: E402
from differential_cases.growth import races  # noqa: E402
from differential_cases.growth import truncations  # noqa: E402
from differential_cases.leaks import leaks  # noqa: E402
from differential_cases.replays import replays  # noqa: E402
from differential_cases.replays import tables  # noqa: E402
from differential_cases.routing import routing  # noqa: E402
from differential_cases.searches import searches  # noqa: E402
from differential_cases.shared import lanes  # noqa: E402
from differential_cases.shared import shared  # noqa: E402
from differential_cases.sources import parquet  # noqa: E402
from differential_cases.sources import texts  # noqa: E402
import numpy as np
import optuna
from threadpoolctl import threadpool_limits  # noqa: E402

KINDS: dict[str, Callable[[Case], None]] = {
    one.__name__: one
    for one in (
        *(fits, pooled, forest, ensembles, truncations, races, replays, tables, shared),
        *(lanes, searches, routing, parquet, texts, leaks),
    )
}


def run_case(seed: int, kind: str, number: int) -> Case:
    """Run one case, quietly."""
    case = Case(np.random.default_rng([seed, crc32(kind.encode()), number]))
    with warnings.catch_warnings(), np.errstate(all="ignore"), threadpool_limits(1):
        warnings.simplefilter("ignore")
        KINDS[kind](case)
    return case


def attack(seed: int, size: int, kinds: Iterable[str] = tuple(KINDS)) -> int:
    """Run cases of each kind; print the differences, and return how many cases have one."""
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    n_different = 0
    for kind in kinds:
        ends: Counter[str] = Counter()
        for number in range(size):
            case = run_case(seed, kind, number)
            ends[case.end] += 1
            if case.differences:
                print(f"--seed {seed} --only {kind}:{number}", *case.differences[:3], sep="\n    ")
                print(f"    {case.in_brief()}", flush=True)
        print(f"{kind}: " + ", ".join(f"{n} {end}" for end, n in sorted(ends.items())), flush=True)
        n_different += ends["different"]
    return n_different


def main() -> int:
    """Run the attack, or one case of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=100, help="number of cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="these kinds only")
    parser.add_argument("--only", help="run this one case, KIND:NUMBER, and print all of it")
    given = parser.parse_args()
    if given.only is None:
        return int(attack(given.seed, given.size, given.kind or tuple(KINDS)) > 0)
    kind, _, number = given.only.partition(":")
    case = run_case(given.seed, kind, int(number))
    for name, value in case.drawn.items():
        print(f"{name} = {value!r}")
    print(*case.differences, sep="\n")
    return int(bool(case.differences))


if __name__ == "__main__":
    sys.exit(main())
