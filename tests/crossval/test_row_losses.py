"""The losses of rows are those of the out-of-fold predictions, in the order of the rows."""

from __future__ import annotations

from functools import partial

from ids import said
import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import RidgeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from studies import searched

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many

ONE_PASS = SGDClassifier(max_iter=1, tol=None, random_state=0)
CLASSIFIERS = [
    PegasosClassifier(),
    ONE_PASS,
    RidgeClassifier(),
    LogisticRegression(),
    make_pipeline(StandardScaler(), PegasosClassifier()),
]
IDS = np.repeat([-1, 3, 0, 7], [13, 20, 30, 20])


@pytest.mark.slow
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=said)
def test_errors_of_predictions(estimator, binary):
    X, y = binary
    rows = sparse.csr_matrix(X) if isinstance(estimator, PegasosClassifier) else X
    for cv in (5, "loo"):
        result = tree_cross_validate(estimator, rows, y, cv=cv, row_losses=True)
        assert result.row_losses.dtype == np.float32 and result.row_losses.shape == (83,)
        predicted = tree_cross_val_predict(estimator, rows, y, cv=cv)
        np.testing.assert_array_equal(result.row_losses, predicted != y)


@pytest.mark.parametrize("estimator", CLASSIFIERS[:4], ids=said)
def test_rows_that_no_fold_tests_have_no_loss(estimator, binary):
    result = tree_cross_validate(estimator, *binary, cv=IDS, row_losses=True)
    np.testing.assert_array_equal(np.isnan(result.row_losses), IDS < 0)
    of_folds = [result.row_losses[fold == IDS].mean() for fold in (0, 3, 7)]
    np.testing.assert_allclose(of_folds, result.test_score, rtol=1e-6)


@pytest.mark.parametrize(
    "cv", [0.3, TimeSeriesSplit(4), ShuffleSplit(5, test_size=0.4, random_state=0)], ids=said
)
def test_other_splits(cv, binary):
    X, y = binary
    result = tree_cross_validate(LogisticRegression(), X, y, cv=cv, row_losses=True, method="fit")
    if isinstance(cv, float):
        assert np.count_nonzero(~np.isnan(result.row_losses)) == 25
        assert np.nanmean(result.row_losses) == pytest.approx(result.mean)
        return
    total, n_tests = np.zeros(83), np.zeros(83)
    for train, test in cv.split(X):
        predicted = LogisticRegression().fit(X[train], y[train]).predict(X[test])
        total[test] += predicted != y[test]
        n_tests[test] += 1
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(result.row_losses, total / n_tests, rtol=1e-6)


def test_a_chain_has_losses(binary):
    X, y = binary
    cv = TimeSeriesSplit(4)
    options = {"cv": cv, "method": "treecv", "row_losses": True}
    result = tree_cross_validate(PegasosClassifier(), X, y, **options)
    assert result.method == "chain"
    of_folds = [result.row_losses[test].mean() for _, test in cv.split(X)]
    np.testing.assert_allclose(of_folds, result.test_score, rtol=1e-6)


def test_repeats_are_averaged(binary):
    X, y = binary
    ids = np.arange(83) % 4
    options = {"cv": ids, "order": "random", "shuffle": False}
    evaluate = partial(tree_cross_validate, PegasosClassifier(), X, y, row_losses=True, **options)
    three = evaluate(n_repeats=3)
    assert set(np.unique(three.row_losses * 3)) <= {0.0, 1.0, 2.0, 3.0}
    of_folds = [three.row_losses[ids == fold].mean() for fold in range(4)]
    expected = three.test_score.reshape(3, 4).mean(axis=0)
    np.testing.assert_allclose(of_folds, expected, rtol=1e-6)


def test_many_and_the_objective_give_the_same(binary, tmp_path):
    X, y = binary
    alphas = [1e-3, 1e-2, 1e-1]
    alone = [
        tree_cross_validate(PegasosClassifier(alpha=alpha), X, y, cv=5, row_losses=True)
        for alpha in alphas
    ]
    models = [PegasosClassifier(alpha=alpha) for alpha in alphas]
    together = tree_cross_validate_many(models, X, y, cv=5, row_losses=True)
    objective, study = searched(
        PegasosClassifier(),
        (X, y),
        {"alpha": alphas},
        cv=5,
        row_losses=True,
        store=f"sqlite:///{tmp_path / 'store.db'}",
    )
    for alpha, one, beside in zip(alphas, alone, together, strict=True):
        np.testing.assert_array_equal(one.row_losses, beside.row_losses)
        again = objective.evaluate({"alpha": alpha})
        np.testing.assert_array_equal(one.row_losses, again.row_losses)
        (trial,) = [trial for trial in study.trials if trial.params["alpha"] == alpha]
        held = objective.evaluator.known_scores.find(trial)
        np.testing.assert_array_equal(one.row_losses, held.rows)


@pytest.mark.parametrize(
    ("estimator", "scoring", "message"),
    [
        (PegasosClassifier(), "roc_auc", "^row_losses=True needs either a loss or a scikit"),
        (LogisticRegression(), "f1", "^row_losses=True needs either a loss or a scikit"),
        (ONE_PASS, "accuracy", "^row_losses must be False for SGDClass"),
    ],
    ids=said,
)
def test_scores_of_whole_folds_have_no_losses_of_rows(estimator, scoring, message, binary):
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(estimator, *binary, scoring=scoring, row_losses=True)


@pytest.mark.parametrize("value", [None, 1.5, "yes", np.array([True])], ids=said)
def test_it_is_true_or_false(value, binary):
    with pytest.raises(ValueError, match="row_losses must be one of True, False, got"):
        tree_cross_validate(PegasosClassifier(), *binary, row_losses=value)
    with pytest.raises(ValueError, match="kfold_models must be one of True, False, got"):
        tree_cross_validate(PegasosClassifier(), *binary, kfold_models=value)
