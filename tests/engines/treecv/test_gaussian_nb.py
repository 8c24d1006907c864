"""``GaussianNB`` trained phase by phase is the model of one fit on the same rows."""

from __future__ import annotations

import copy

from ids import said
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.layout import RowLayout

NB = GaussianNB(var_smoothing=0.1)


class TrainedNB(GaussianNB):
    """A subclass is trained further as its class is."""


@pytest.fixture(scope="module")
def cover():
    """Columns of very different scales, rare indicators and classes of very different sizes."""
    rng = np.random.default_rng(0)
    n = 700
    y = rng.choice(5, n, p=[0.45, 0.35, 0.1, 0.07, 0.03])
    large = rng.gamma(2 + y[:, None], [280, 110, 7, 1500, 600], (n, 5))
    rare = rng.random((n, 6)) < 0.05 + 0.1 * (y[:, None] == np.arange(6))
    return np.c_[large, rare], y


def fits(estimator, X, y, cv, **options):
    scoring = ["accuracy", "neg_log_loss"]
    found = cross_validate(estimator, X, y, cv=cv, scoring=scoring, **options)
    return found["test_accuracy"], -found["test_neg_log_loss"]


def trees(estimator, X, y, cv, **options):
    for scoring in ("accuracy", "log_loss"):
        yield tree_cross_validate(
            estimator, X, y, cv=cv, scoring=scoring, method="treecv", **options
        ).test_score


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("n_folds", [2, 7, 10])
@pytest.mark.parametrize(
    "estimator",
    [NB, GaussianNB(var_smoothing=3), make_pipeline(FunctionTransformer(np.sqrt), NB)],
    ids=said,
)
def test_fold_scores_equal_those_of_fits(estimator, n_folds, order, cover):
    cv = KFold(n_folds, shuffle=True, random_state=0)
    expected = fits(estimator, *cover, cv)
    for ours, theirs in zip(trees(estimator, *cover, cv, order=order), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.slow
def test_folds_of_one_row(cover):
    X, y = cover[0][:60], cover[1][:60] % 2
    cv = KFold(60)
    for model in (NB, make_pipeline("passthrough", NB)):
        expected = cross_validate(model, X, y, cv=cv, scoring="accuracy")["test_score"]
        assert np.array_equal(next(trees(model, X, y, cv)), expected)
    ours = tree_cross_val_predict(NB, X, y, cv=cv, response_method="predict_proba")
    theirs = [
        clone(NB).fit(X[train], y[train]).predict_proba(X[test]) for train, test in cv.split(X)
    ]
    np.testing.assert_allclose(ours, np.concatenate(theirs), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("n_folds", [4, 7])
def test_weights(n_folds, cover):
    """Epsilon comes from all rows, also from those of weight 0."""
    X, y = cover[0].copy(), cover[1]
    X[:100] *= 5
    weights = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    weights[:350] = 0  # with four folds a whole phase, and the first one of a model
    cv = KFold(n_folds)
    options = {"sample_weight": weights, "shuffle": False, "response_method": "predict_proba"}
    ours = tree_cross_val_predict(NB, X, y, cv=cv, method="treecv", **options)
    for train, test in cv.split(X):
        fitted = clone(NB).fit(X[train], y[train], sample_weight=weights[train])
        theirs = fitted.predict_proba(X[test])
        np.testing.assert_allclose(ours[test], theirs, rtol=1e-10, atol=1e-14)


def test_a_missing_number_in_a_row_without_weight_is_refused(cover):
    X, y = cover[0].copy(), cover[1]
    X[7, 3] = np.nan
    weights = np.ones(len(y))
    weights[:350] = 0
    options = {"sample_weight": weights, "score_weight": None, "method": "treecv"}
    with pytest.raises(ValueError, match="Input X contains NaN"):
        tree_cross_validate(NB, X, y, cv=4, shuffle=False, stratify=False, **options)


def test_growing_training_sets(cover):
    cv = TimeSeriesSplit(4)
    X, y = cover
    found = tree_cross_validate(TrainedNB(var_smoothing=0.1), X, y, cv=cv, scoring="accuracy")
    assert found.method == "chain"
    expected = cross_validate(NB, X, y, cv=cv, scoring="accuracy")["test_score"]
    assert np.array_equal(found.test_score, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_model_is_that_of_a_fit_after_each_phase(cover, dtype):
    X, y = cover[0].astype(dtype), cover[1]
    rows = Data(X, y).prepare(RowLayout(target="class"), np.arange(len(y), dtype=np.uint32))
    learner = Adapter(NB, rows, (), seed=0)
    state, old, n_old = learner.start(), None, 0
    for start, stop in [(0, 1), (1, 3), (3, 200), (200, 201), (201, 700)]:
        old, n_old = learner.snapshot(state), start
        learner.update(state, slice(start, stop))
        for model, n in ((learner.estimator(state), stop), (learner.estimator(old), n_old)):
            if n == 0:
                continue
            fitted = clone(NB).fit(X[:n], y[:n])
            seen = np.isin(model.classes_, fitted.classes_)
            assert type(model) is GaussianNB and model.var_smoothing == NB.var_smoothing
            assert model.var_.dtype == fitted.var_.dtype
            tolerance = {"rtol": 1e-12 if dtype == np.float64 else 1e-3}
            for name in ("theta_", "var_", "class_count_", "class_prior_"):
                ours, theirs = getattr(model, name)[seen], getattr(fitted, name)
                np.testing.assert_allclose(ours, theirs, **tolerance, err_msg=name)
            assert model.epsilon_ == pytest.approx(fitted.epsilon_, rel=tolerance["rtol"])


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # log(0), also in its fits
@pytest.mark.parametrize("n_folds", [2, 4, 9])
def test_classes_that_come_late(n_folds, cover):
    order = np.argsort(cover[1], kind="stable")
    X, y = cover[0][order], np.array(list("dbcae"))[cover[1][order]]
    cv = KFold(n_folds)
    options = {"shuffle": False, "response_method": "predict_proba"}
    ours = tree_cross_val_predict(NB, X, y, cv=cv, method="treecv", **options)
    for train, test in cv.split(X):
        fitted = clone(NB).fit(X[train], y[train])
        theirs = np.zeros((len(test), 5))
        theirs[:, np.isin(list("abcde"), fitted.classes_)] = fitted.predict_proba(X[test])
        np.testing.assert_allclose(ours[test], theirs, rtol=1e-10, atol=1e-14)


def test_a_subclass_trains_in_its_own_way(cover):
    calls = []

    class Watching(GaussianNB):
        def partial_fit(self, X, y, classes=None, sample_weight=None):
            calls.append(self.var_smoothing)
            return super().partial_fit(X, y, classes, sample_weight)

    tree_cross_validate(Watching(var_smoothing=0.5), *cover, cv=2, method="treecv")
    assert set(calls) == {0.5}


def test_a_parameter_out_of_range_is_refused(cover):
    with pytest.raises(ValueError, match="'var_smoothing' parameter of GaussianNB must be"):
        tree_cross_validate(GaussianNB(var_smoothing=-1), *cover, cv=3, method="treecv")


def test_copies_have_what_further_training_needs(cover):
    X, y = cover
    rows = Data(X, y).prepare(RowLayout(target="class"), np.arange(len(y), dtype=np.uint32))
    learner = Adapter(NB, rows, ("predict_proba",), seed=0)
    state = learner.start()
    learner.update(state, slice(0, 300))
    other = copy.deepcopy(state)
    for one in (state, other):
        learner.update(one, slice(300, 700))
    assert np.array_equal(learner.estimator(state).var_, learner.estimator(other).var_)
    expected = log_loss(y, clone(NB).fit(X, y).predict_proba(X))
    assert log_loss(y, learner.estimator(other).predict_proba(X)) == pytest.approx(
        expected, rel=1e-12
    )
