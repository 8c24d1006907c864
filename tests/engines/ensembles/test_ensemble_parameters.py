"""Pairs of all parameters of ensembles, beside each searched size, give the scores of fits."""

from __future__ import annotations

from itertools import combinations
from itertools import cycle
from pathlib import Path
from random import Random
import sys
from typing import Any

from ensemble_parameters import classes_of
from ensemble_parameters import ENSEMBLES
from ensemble_parameters import rows
import numpy as np
from pairs import covering_array
import pytest
from sklearn.base import is_classifier
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))
from differential_cases.case import Case  # noqa: E402
from differential_cases.ensembles import compare_grid  # noqa: E402

FORESTS = [name for name in ENSEMBLES if "Forest" in name or "ExtraTrees" in name]
SPLITTERS = [KFold(3, shuffle=True, random_state=0), TimeSeriesSplit(2)]


def check(name: str, params: dict[str, Any], searched: list[str], number: int) -> str:
    """Compare a grid with ``cross_validate``, and return how that ended."""
    ensemble = ENSEMBLES[name]
    X, y = rows(np.random.default_rng(number))
    scores = ["neg_mean_squared_error"]
    if is_classifier(ensemble.kind()):
        n_classes = 2 if "objective" in params else 2 + number % 2
        y, scores = classes_of(y, n_classes), ["accuracy", "neg_log_loss"]
    case = Case(np.random.default_rng(0))
    cv = SPLITTERS[number % 2]
    compare_grid(case, ensemble, params, searched, X, y, cv, scores)
    assert not case.differences, f"{params}, {searched}: {case.differences}"
    return case.end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "searched"),
    [*zip(FORESTS, cycle([["max_leaf_nodes"], ["ccp_alpha", "max_leaf_nodes"]]), strict=False)],
)
def test_pruned_forests_are_not_cut(name: str, searched: list[str]) -> None:
    """A tree that was pruned has no order in which its nodes were split."""
    for number, ccp_alpha in enumerate([0.015, 0.0]):
        check(name, {"ccp_alpha": ccp_alpha}, searched, number)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENSEMBLES)
def test_pairs_of_parameters_beside_each_search(name: str) -> None:
    ensemble = ENSEMBLES[name]
    names = list(ensemble.values)
    searches = [[one] for one in ensemble.searched]
    searches += [list(pair) for pair in combinations(ensemble.searched, 2)]
    values = [*ensemble.values.values(), searches]
    for number, row in enumerate(covering_array([len(some) for some in values])):
        *chosen, searched = (some[i] for some, i in zip(values, row, strict=True))
        params, random = dict(zip(names, chosen, strict=True)), Random(number)
        while check(name, params, searched, number) == "refused":
            # Two values exclude each other, so half of them are left at their defaults.
            assert params, "the defaults are refused"
            params = dict(random.sample([*params.items()], len(params) // 2))
