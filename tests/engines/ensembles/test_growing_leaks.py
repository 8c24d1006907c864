"""No row takes part in the ensemble that tests it, nor in the bins over which that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import Phase
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
from optuna.distributions import CategoricalDistribution
import pytest
from sklearn.ensemble import BaggingClassifier
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.engines.ensembles.growth import kind_of

N_ROWS = 120
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_ROWS, 4))
LABELS = np.arange(N_ROWS) % 3
X[:, 0] += LABELS
GROUPS = RNG.integers(0, 12, N_ROWS)

# To find a smaller case takes minutes, and tells no more.
PHASES = Phase.reuse, Phase.generate

# Different for all rows, so that no change of an output hides behind that of another row.
SCORE_WEIGHTS = RNG.random(N_ROWS) + 0.5


def said(y: Any, response: Any, sample_weight: Any = None) -> float:
    """Return a number that changes with any response, and not with y."""
    return float(np.sum(sample_weight @ response * np.arange(1, response.shape[1] + 1)))


SCORING = make_scorer(said, response_method="predict_proba")


def lightgbm(**options: Any) -> Any:
    module = pytest.importorskip("lightgbm")
    options = {"num_leaves": 5, "min_child_samples": 5} | options
    return module.LGBMClassifier(
        n_estimators=6, n_jobs=1, verbose=-1, random_state=0, max_bin=15, **options
    )


def xgboost(**options: Any) -> Any:
    module = pytest.importorskip("xgboost")
    options = {"n_estimators": 6, "max_depth": 3, "max_bin": 15} | options
    return module.XGBClassifier(n_jobs=1, random_state=0, **options)


KINDS: dict[str, Callable[[], Any]] = {
    "lightgbm": lightgbm,
    "lightgbm dart": lambda: lightgbm(boosting_type="dart", class_weight="balanced"),
    "xgboost": xgboost,
    "xgboost that samples": lambda: xgboost(subsample=0.7, tree_method="approx"),
    "hist": lambda: HistGradientBoostingClassifier(
        max_iter=4, max_bins=15, max_leaf_nodes=5, early_stopping=True, random_state=0
    ),
    "gradient": lambda: GradientBoostingClassifier(n_estimators=4, random_state=0),
    "forest": lambda: RandomForestClassifier(n_estimators=6, random_state=0),
    "bagging": lambda: BaggingClassifier(n_estimators=4, random_state=0),
    "lightgbm at the end": lambda: make_pipeline(StandardScaler(), lightgbm()),
    "forest at the end": lambda: make_pipeline(
        StandardScaler(), RandomForestClassifier(n_estimators=4, random_state=0)
    ),
}

SPLITTERS = [
    KFold(4, shuffle=True, random_state=3),
    GroupKFold(3),
    TimeSeriesSplit(3),
    ShuffleSplit(3, random_state=0),
]


def rows_of_folds(cv: Any) -> list[np.ndarray]:
    """Return the test rows of each fold."""
    return [test for _, test in cv.split(X, LABELS, GROUPS)]


def drawn(data: st.DataObject) -> tuple[int, np.random.Generator]:
    """Return a fold, and a generator that says what changes in its test rows."""
    fold = data.draw(st.integers(0, 2))
    return fold, np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))


def some_of(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return at least one of some rows, and not all of them."""
    return rng.permutation(rows)[: rng.integers(1, len(rows))]


def scores_of(estimator: Any, cv: Any, X: Any, y: Any, weights: Any, **options: Any) -> np.ndarray:
    """Return what the models of all folds say of their test rows, as a number per fold."""
    result = tree_cross_validate(
        estimator,
        X,
        y,
        cv=cv,
        groups=GROUPS if isinstance(cv, GroupKFold) else None,
        scoring=SCORING,
        score_weight=weights,
        **options,
    )
    assert result.method in ("boosting", "bagging"), result.why
    return result.test_score


@pytest.mark.slow
@pytest.mark.parametrize("cv", SPLITTERS, ids=lambda cv: type(cv).__name__)
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=3, phases=PHASES)
@given(data=st.data())
def test_labels_of_a_fold_change_nothing_of_its_own_model(
    name: str, cv: Any, data: st.DataObject
) -> None:
    fold, rng = drawn(data)
    tested = rows_of_folds(cv)[fold]
    y = LABELS.copy()
    y[tested] = rng.integers(0, 3, len(tested))
    estimator = KINDS[name]()
    before = scores_of(estimator, cv, X, LABELS, SCORE_WEIGHTS)
    after = scores_of(estimator, cv, X, y, SCORE_WEIGHTS)
    assert before[fold] == after[fold]
    if isinstance(cv, KFold) and np.any(y != LABELS):
        assert np.any(before != after)  # these rows train the models of the other folds


@pytest.mark.slow
@pytest.mark.parametrize("cv", SPLITTERS, ids=lambda cv: type(cv).__name__)
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=3, phases=PHASES)
@given(data=st.data())
def test_rows_of_a_fold_change_nothing_of_what_is_said_of_its_others(
    name: str, cv: Any, data: st.DataObject
) -> None:
    """They change neither the trees nor the bins, and no step before the ensemble."""
    fold, rng = drawn(data)
    tested = rows_of_folds(cv)[fold]
    changed = some_of(tested, rng)
    rows, weights = X.copy(), SCORE_WEIGHTS.copy()
    rows[changed] = rng.normal(size=(len(changed), 4)) * 10.0 ** rng.integers(-2, 5)
    weights[changed] = 0.0
    estimator = KINDS[name]()
    before = scores_of(estimator, cv, X, LABELS, weights)
    after = scores_of(estimator, cv, rows, LABELS, weights)
    assert before[fold] == after[fold]


# The bins of a trial are kept for the trials that follow.
KEPT: dict[str, dict[str, list[Any]]] = {
    "lightgbm": {"learning_rate": [0.1, 0.3], "min_child_samples": [20, 3]},
    "xgboost": {"learning_rate": [0.1, 0.3], "min_child_weight": [1, 5]},
    "hist": {"learning_rate": [0.1, 0.3], "max_leaf_nodes": [3, 5]},
    "forest": {"n_estimators": [6, 3, 9]},
    "lightgbm of searched sizes": {"n_estimators": [6, 3, 9]},
    "xgboost of searched sizes": {"n_estimators": [6, 3, 9]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
@settings(max_examples=4, phases=PHASES)
@given(data=st.data())
def test_what_is_kept_for_other_trials_has_not_seen_the_fold(
    name: str, data: st.DataObject
) -> None:
    fold, rng = drawn(data)
    cv = SPLITTERS[0]
    tested = rows_of_folds(cv)[fold]
    changed = some_of(tested, rng)
    rows, y, weights = X.copy(), LABELS.copy(), SCORE_WEIGHTS.copy()
    rows[changed] = rng.normal(size=(len(changed), 4)) * 10.0 ** rng.integers(-2, 5)
    y[tested] = rng.integers(0, 3, len(tested))
    weights[changed] = 0.0
    axes = KEPT[name]
    found = []
    for data_of in ((X, LABELS), (rows, y)):
        objective = treecv_objective(
            KINDS[name.removesuffix(" of searched sizes")](),
            *data_of,
            param_distributions={one: CategoricalDistribution(v) for one, v in axes.items()},
            cv=cv,
            scoring=SCORING,
            score_weight=weights,
        )
        points = zip(*axes.values(), strict=True)
        results = [objective.evaluate(dict(zip(axes, one, strict=True))) for one in points]
        assert {one.method for one in results} <= {"boosting", "bagging"}
        found.append([one.test_score[fold] for one in results])
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightgbm", "xgboost that samples", "hist", "forest"])
@settings(max_examples=4, phases=PHASES)
@given(data=st.data())
def test_no_size_of_an_ensemble_has_seen_the_held_out_rows(name: str, data: st.DataObject) -> None:
    """Of one hold-out, the curve is what is said of its rows after each number of trees."""
    _, rng = drawn(data)
    split = [next(iter(SPLITTERS[0].split(X)))]
    tested = split[0][1]
    changed = some_of(tested, rng)
    rows, y, weights = X.copy(), LABELS.copy(), SCORE_WEIGHTS.copy()
    rows[changed] = rng.normal(size=(len(changed), 4)) * 10.0 ** rng.integers(-2, 5)
    y[tested] = rng.integers(0, 3, len(tested))
    weights[changed] = 0.0
    estimator = KINDS[name]()
    kind = kind_of(estimator)
    assert kind is not None
    estimator.set_params(**{kind.size: 11})
    before, after = (
        tree_cross_validate(
            estimator,
            *data_of,
            cv=split,
            scoring=SCORING,
            score_weight=weights,
            n_estimators="best",
        ).curve
        for data_of in ((X, LABELS), (rows, y))
    )
    assert len(before.mean) == 11
    np.testing.assert_array_equal(before.mean, after.mean)
