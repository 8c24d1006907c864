"""The figures of out-of-fold outputs show the numbers that scikit-learn computes from them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.datasets import make_regression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from studies import searched

from optuna_treecv.report import plot_out_of_fold

X, CODES = make_classification(200, n_features=5, flip_y=0.2, random_state=0)
ROWS, Y = make_regression(200, n_features=5, noise=20.0, random_state=0)
FOLDS = KFold(4, shuffle=True, random_state=0)


def test_threshold_and_calibration():
    model = LogisticRegression(C=0.1, tol=1e-10)
    objective, study = searched(model, (X, CODES), {"C": [0.1]}, cv=FOLDS)
    score, calibration = plot_out_of_fold(objective, study, "f1").data
    predicted = cross_val_predict(model, X, CODES, cv=FOLDS, method="predict_proba")[:, 1]
    shares, means = calibration_curve(CODES, predicted, n_bins=10, strategy="quantile")
    np.testing.assert_allclose(calibration.x, means, rtol=1e-4)
    np.testing.assert_allclose(calibration.y, shares)
    for threshold, value in zip(score.x[5:-5:20], score.y[5:-5:20], strict=True):
        assert value == pytest.approx(f1_score(CODES, predicted >= threshold))


def test_residuals_and_coverage():
    objective, study = searched(Ridge(), (ROWS, Y), {"alpha": [1.0]}, cv=FOLDS)
    residuals, coverage = plot_out_of_fold(objective, study).data
    predicted = cross_val_predict(Ridge(), ROWS, Y, cv=FOLDS)
    np.testing.assert_allclose(residuals.x, predicted)
    np.testing.assert_allclose(residuals.y, Y - predicted, atol=1e-9)
    sizes, n_covered = np.abs(Y - predicted), 0
    for train, test in FOLDS.split(ROWS):
        n_covered += np.count_nonzero(sizes[test] <= np.quantile(sizes[train], 0.9))
    assert coverage.y[list(coverage.x).index(0.9)] == n_covered / len(Y)


def test_what_cannot_be_shown_is_refused():
    objective, study = searched(
        Ridge(), (ROWS, np.column_stack([Y, Y])), {"alpha": [1.0]}, cv=FOLDS
    )
    with pytest.raises(ValueError, match="^y must have one column for this figure, got shape"):
        plot_out_of_fold(objective, study)
    objective, study = searched(Ridge(), (ROWS, Y), {"alpha": [1.0]}, cv=TimeSeriesSplit(3))
    with pytest.raises(ValueError, match="^cv must test every row once"):
        plot_out_of_fold(objective, study)
    objective, study = searched(LogisticRegression(), (X, CODES + (X[:, 0] > 0)), {"C": [1.0]})
    with pytest.raises(ValueError, match="^y must have two classes for a threshold, got 3"):
        plot_out_of_fold(objective, study)
