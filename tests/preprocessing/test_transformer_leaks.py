"""Steps that look at several rows: no test row takes part in the model that tests it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.impute import KNNImputer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import QuantileTransformer
from sklearn.preprocessing import StandardScaler
from sklearn.preprocessing import TargetEncoder

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate

N_ROWS, FIRST_HOLE = 80, 30
RNG = np.random.default_rng(0)
FULL = np.c_[RNG.integers(0, 4, N_ROWS), RNG.normal(size=(N_ROWS, 3))]
Y = FULL.sum(axis=1) + RNG.normal(size=N_ROWS)
# The first rows are full, so that who looks at these alone sees nothing.
HOLES = np.where(
    (np.arange(N_ROWS)[:, None] >= FIRST_HOLE) & (RNG.random(FULL.shape) < 0.3), np.nan, FULL
)
GIVEN = RNG.normal(size=(15, 4))
GIVEN[:, 0] = np.arange(15) % 4


def filled(X):
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X)


def clipped(X):
    return np.clip(X, *np.quantile(X, [0.2, 0.8], axis=0))


STEPS = {
    "target encoder": (TargetEncoder(target_type="continuous"), FULL),
    "quantiles": (QuantileTransformer(n_quantiles=10), FULL),
    "filled by means": (FunctionTransformer(filled), HOLES),
    "clipped at quantiles": (FunctionTransformer(clipped), FULL),
    "neighbours": (KNNImputer(n_neighbors=3), HOLES),
    "scaler": (StandardScaler(), FULL),
    "largest": (MaxAbsScaler(), FULL),
    "imputer": (SimpleImputer(), HOLES),
}
MIX_TEST_ROWS = {"filled by means", "clipped at quantiles"}  # these do so in scikit-learn too
LEARNERS = {
    "ridge": Ridge(),
    "sgd": SGDRegressor(eta0=1e-3, random_state=0, max_iter=1, tol=None),
    "compiled": AveragedSGDRegressor(),
}


def says_of_given_rows(model, X, y):
    """Score a model by what it says of rows that are the same for all."""
    return float(model.predict(GIVEN) @ np.arange(1.0, 1 + len(GIVEN)))


def changed(X, y, rows):
    """Return other values and targets in some rows."""
    X, y = X.copy(), y.copy()
    X[rows], y[rows] = X[rows] * 3 + 1, y[rows] * -2 + 9
    return X, y


def scores(model, X, y, **kind):
    """Return the score of each model, or None where the method cannot train the steps."""
    try:
        result = tree_cross_validate(
            model, X, y, scoring=says_of_given_rows, shuffle=False, random_state=0, **kind
        )
    except ValueError as error:
        assert "cannot" in str(error) or "partial_fit" in str(error)
        return None
    return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scoring=")
@pytest.mark.parametrize("method", ["auto", "fit", "treecv", "standard", "holdout"])
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("step", STEPS)
def test_no_model_changes_with_the_rows_that_it_is_tested_on(step, learner, method):
    transformer, X = STEPS[step]
    model = make_pipeline(transformer, LEARNERS[learner])
    cv = KFold(3)
    fold = 0 if method == "holdout" else 2
    _, test = list(cv.split(X))[fold]
    before = scores(model, X, Y, cv=cv, method=method)
    after = scores(model, *changed(X, Y, test), cv=cv, method=method)
    if before is None:
        assert method in ("treecv", "standard")
        assert after is None
        return
    assert after.test_score[fold] == before.test_score[fold]
    if len(before.test_score) > 1:  # and the others do
        assert np.all(np.delete(after.test_score != before.test_score, fold))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scoring=")
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("step", STEPS)
def test_no_model_changes_with_later_rows(step, learner):
    """A chain trains one model along the time."""
    transformer, X = STEPS[step]
    model = make_pipeline(transformer, LEARNERS[learner])
    cv = TimeSeriesSplit(3)
    later = list(cv.split(X))[1][1][0]
    before = scores(model, X, Y, cv=cv)
    after = scores(model, *changed(X, Y, slice(later, None)), cv=cv)
    assert before.method == ("fit" if learner == "ridge" else after.method)
    np.testing.assert_array_equal(after.test_score[:2], before.test_score[:2])
    assert after.test_score[2] != before.test_score[2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "fit", "treecv", "standard"])
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("step", sorted(STEPS.keys() - MIX_TEST_ROWS))
def test_no_prediction_changes_with_other_rows_of_its_fold(step, learner, method):
    transformer, X = STEPS[step]
    model = make_pipeline(transformer, LEARNERS[learner])
    kind = {"cv": KFold(3), "method": method, "random_state": 0}
    _, test = list(KFold(3).split(X))[1]
    try:
        before = tree_cross_val_predict(model, X, Y, **kind)
    except ValueError:
        assert method in ("treecv", "standard")
        return
    after = tree_cross_val_predict(model, *changed(X, Y, test[::2]), **kind)
    np.testing.assert_allclose(after[test[1::2]], before[test[1::2]], rtol=1e-12)
    assert not np.any(after[test[::2]] == before[test[::2]])


@pytest.mark.slow
@pytest.mark.parametrize("step", sorted(STEPS.keys() - {"target encoder"}))
def test_predictions_are_those_of_fits(step):
    transformer, X = STEPS[step]
    model = make_pipeline(transformer, Ridge())
    result = tree_cross_validate(model, X, Y, cv=KFold(4))
    assert result.method == ("exact" if step in ("scaler", "imputer") else "fit")
    expected = cross_val_predict(model, X, Y, cv=KFold(4))
    np.testing.assert_allclose(
        tree_cross_val_predict(model, X, Y, cv=KFold(4)), expected, rtol=1e-9, atol=1e-9
    )


def test_no_tree_of_a_forest_changes_with_the_rows_that_it_is_tested_on():
    """The values that occur stay the same, because the bins are those of all rows."""
    X = np.round(FULL)
    X[:, 1:] = np.clip(X[:, 1:], -1, 1)
    cv, model = KFold(4), HistTreeRegressor(max_depth=4, random_state=0)
    _, test = list(cv.split(X))[1]
    before = tree_cross_val_predict(model, X, Y, cv=cv, method="forest")
    X_after, y_after = X.copy(), Y.copy()
    some = test[::2]
    X_after[some], y_after[some] = X[some][::-1], Y[some] * -2 + 9
    after = tree_cross_val_predict(model, X_after, y_after, cv=cv, method="forest")
    np.testing.assert_array_equal(after[test[1::2]], before[test[1::2]])
    assert np.any(after != before)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["sgd", "compiled"])
@pytest.mark.parametrize("step", ["scaler", "largest"])
def test_rows_that_are_tested_before_they_act_see_no_later_ones(step, learner):
    transformer, X = STEPS[step]
    model = make_pipeline(transformer, LEARNERS[learner])
    kind = {"method": "progressive", "shuffle": False, "row_losses": True, "random_state": 0}
    begin = N_ROWS * 3 // 4
    before = tree_cross_validate(model, X, Y, **kind).row_losses
    after = tree_cross_validate(model, *changed(X, Y, slice(begin, None)), **kind).row_losses
    np.testing.assert_array_equal(after[:begin], before[:begin])
    assert np.any(after[begin:] != before[begin:])
