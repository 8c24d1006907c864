"""Calibration of a classifier's probabilities on its out-of-fold outputs."""

from typing import Literal

import numpy as np
from sklearn.calibration import CalibratedClassifierCV

from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import check_choice
from optuna_treecv.estimators.base import check_is_sklearn
from optuna_treecv.estimators.base import name_of
from optuna_treecv.study.known_outputs import KnownOutputs
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator

#: The methods of calibration.
CalibrationMethod = Literal["sigmoid", "isotonic", "temperature"]


def method_to_calibrate(run: Run) -> str:
    """Return the method whose outputs are calibrated.

    These are decision values if they need no training, as in ``CalibratedClassifierCV``, else
    those that are kept: probabilities, or decision values if there are none.
    """
    classes, estimator = run.request.classes, run.estimator
    check_is_sklearn("calibrate must be None", estimator)
    methods = [m for m in ("decision_function", "predict_proba") if hasattr(estimator, m)]
    if classes is None or not methods:
        raise ValueError(
            "calibrate needs a classifier with predict_proba or decision_function, got "
            f"{name_of(estimator)}; use calibrate=None instead."
        )
    return methods[0 if run.plan.capabilities.computes_outputs else -1]


def calibrated(
    run: Run, outputs: Array, response_method: str, method: CalibrationMethod, fitted: Estimator
) -> CalibratedClassifierCV:
    """Return a fitted ``CalibratedClassifierCV`` around a fitted classifier.

    The calibrator is that of ``CalibratedClassifierCV(ensemble=False)`` with the same folds.

    Parameters
    ----------
    run : Run
        The run of the trial.
    outputs : ndarray of shape (n_rows, ...)
        The out-of-fold outputs, in the order of the rows as given.
    response_method : str
        The method that has computed the outputs.
    method : {"sigmoid", "isotonic", "temperature"}
    fitted : estimator
        The classifier, fitted on all rows.
    """
    check_choice("calibrate", method, ("sigmoid", "isotonic", "temperature"))
    data, classes = run.request.data, run.request.classes
    assert classes is not None
    known = KnownOutputs(response_method, outputs.astype(np.float64), None)
    rows = np.arange(len(outputs))
    # In a single fold, scikit-learn asks for the outputs of all rows, which are known.
    folds = [(rows, rows)]
    model = CalibratedClassifierCV(known, method=method, ensemble=False, cv=folds)
    model.fit(rows[:, None], classes[data.codes()], sample_weight=data.weights)
    (of_all,) = model.calibrated_classifiers_
    # It would prefer decision values to probabilities, so that only one method is available.
    of_all.estimator = KnownOutputs(response_method, None, fitted).fit(rows, classes)
    model.estimator, model.cv = fitted, None
    for name in ("n_features_in_", "feature_names_in_"):
        vars(model).pop(name, None)
        if hasattr(fitted, name):
            setattr(model, name, getattr(fitted, name))
    return model
