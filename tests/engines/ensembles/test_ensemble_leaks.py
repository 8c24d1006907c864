"""No row takes part in the ensemble that tests it, nor in the bins over which that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boosters import catboost
from boosters import lightgbm
from boosters import xgboost
import numpy as np
from optuna.distributions import CategoricalDistribution
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import KFold

from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.engines.ensembles.growth import kind_of

N_ROWS = 120
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_ROWS, 4))
LABELS = np.arange(N_ROWS) % 3
X[:, 0] += LABELS
# Different for all rows, so that no change of an output hides behind that of another row.
SCORE_WEIGHTS = RNG.random(N_ROWS) + 0.5


def said(y: Any, response: Any, sample_weight: Any = None) -> float:
    """Return a number that changes with any response, and not with y."""
    return float(np.sum(sample_weight @ response * np.arange(1, response.shape[1] + 1)))


SCORING = make_scorer(said, response_method="predict_proba")


KINDS: dict[str, Callable[[], Any]] = {
    "lightgbm": lambda: lightgbm(n_estimators=6, min_child_samples=5, max_bin=15),
    "xgboost": lambda: xgboost(n_estimators=6, max_bin=15),
    "xgboost that samples": lambda: xgboost(subsample=0.7, tree_method="approx", max_bin=15),
    "catboost": lambda: catboost(iterations=6, border_count=15),
    "hist": lambda: HistGradientBoostingClassifier(
        max_iter=4, max_bins=15, max_leaf_nodes=5, early_stopping=True, random_state=0
    ),
    "forest": lambda: RandomForestClassifier(n_estimators=6, random_state=0),
}

FOLDS = KFold(4, shuffle=True, random_state=3)


def change_a_fold(seed: int) -> tuple[int, list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Return a fold, the data before and after a change of it, and weights for its scores.

    All labels of the fold are drawn anew. Some of its rows are replaced, which weigh nothing.
    """
    rng = np.random.default_rng(seed)
    fold = int(rng.integers(0, 3))
    tested = [test for _, test in FOLDS.split(X)][fold]
    changed = rng.permutation(tested)[: rng.integers(1, len(tested))]
    rows, y, weights = X.copy(), LABELS.copy(), SCORE_WEIGHTS.copy()
    rows[changed] = rng.normal(size=(len(changed), 4)) * 10.0 ** rng.integers(-2, 5)
    y[tested] = rng.integers(0, 3, len(tested))
    weights[changed] = 0.0
    return fold, [(X, LABELS), (rows, y)], weights


# The bins of a trial are cached for the trials that follow.
KEPT: dict[str, dict[str, list[Any]]] = {
    "lightgbm": {"learning_rate": [0.1, 0.3], "min_child_samples": [20, 3]},
    "xgboost": {"learning_rate": [0.1, 0.3], "min_child_weight": [1, 5]},
    "catboost": {"learning_rate": [0.1, 0.3], "depth": [3, 5]},
    "hist": {"learning_rate": [0.1, 0.3], "max_leaf_nodes": [3, 5]},
    "forest": {"n_estimators": [6, 3, 9]},
    "lightgbm of searched sizes": {"n_estimators": [6, 3, 9]},
    "xgboost of searched sizes": {"n_estimators": [6, 3, 9]},
    "catboost of searched sizes": {"iterations": [6, 3, 9]},
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_for_other_trials_has_not_seen_the_fold(name: str, seed: int) -> None:
    fold, every_data, weights = change_a_fold(seed)
    axes = KEPT[name]
    found = []
    for data in every_data:
        objective = treecv_objective(
            KINDS[name.removesuffix(" of searched sizes")](),
            *data,
            param_distributions={one: CategoricalDistribution(v) for one, v in axes.items()},
            cv=FOLDS,
            scoring=SCORING,
            score_weight=weights,
        )
        points = zip(*axes.values(), strict=True)
        results = [objective.evaluate(dict(zip(axes, one, strict=True))) for one in points]
        assert {one.method for one in results} <= {"boosting", "bagging"}
        found.append(np.array([one.test_score for one in results]))
    np.testing.assert_array_equal(*(scores[:, fold] for scores in found))
    assert np.any(found[0] != found[1])  # these rows train the models of the other folds


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lightgbm", "xgboost that samples", "catboost", "hist", "forest"]
)
def test_no_size_of_an_ensemble_has_seen_the_held_out_rows(name: str) -> None:
    """Of one hold-out, the curve has the predictions of its rows after each number of trees."""
    fold, every_data, weights = change_a_fold(0)
    estimator = KINDS[name]()
    estimator.set_params(**{kind_of(estimator).size: 11})
    before, after = (
        tree_cross_validate(
            *(estimator, *data),
            cv=[list(FOLDS.split(X))[fold]],
            scoring=SCORING,
            score_weight=weights,
            n_estimators="best",
        ).curve
        for data in every_data
    )
    assert len(before.mean) == 11
    np.testing.assert_array_equal(before.mean, after.mean)
