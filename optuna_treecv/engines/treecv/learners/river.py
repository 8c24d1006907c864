"""The learner of River models.

This module is only imported for River models, because it imports River.
"""

from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.estimators.river import RiverEstimator
from optuna_treecv.rows.data import PreparedRows


class RiverLearner(Adapter):
    """The learner of a River model, whose rows are not converted for kernels.

    The parameters are the same as in ``Adapter``. In each training phase, ``learn_one`` is called
    for each row, or ``learn_many`` once if it gives the same model.
    """

    phases_may_be_cut = True
    _overflow = (OverflowError,)  # raised by Python's math module when NumPy would return infinity

    def __init__(
        self,
        estimator: RiverEstimator,
        rows: PreparedRows,
        response_methods: tuple[str, ...],
        seed: int,
    ) -> None:
        model = estimator.river_model
        if hasattr(rows.X, "tocsr"):
            raise ValueError(
                f"X must be an array or a data frame for River's {model!s}, got sparse rows."
            )
        if rows.classes is not None and not model._multiclass:
            if not set(rows.classes.tolist()) <= {False, True}:
                advice = "river.multiclass.OneVsRestClassifier"
                if len(rows.classes) == 2:
                    advice = "LabelEncoder().fit_transform(y)"
                raise ValueError(
                    f"y must hold False and True, or 0 and 1, for River's {model!s}, got "
                    f"{rows.classes.tolist()}; use {advice} instead."
                )
        super().__init__(estimator, rows, response_methods, seed)

    def _response(self, estimator: Any, X: Any, method: str) -> np.ndarray:
        if method == "predict" and self.rows.classes is not None:
            return estimator.predict_codes(X)
        return super()._response(estimator, X, method)
