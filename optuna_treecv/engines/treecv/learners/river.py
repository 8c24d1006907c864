"""River models: a scikit-learn estimator that wraps one, and its learner.

This module imports River and is loaded only if the caller has a River model.
"""

from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.estimators.river import RiverEstimator
from optuna_treecv.rows.data import PreparedRows


class RiverLearner(Adapter):
    """A River model bound to prepared rows, which keep their original form.

    The parameters are those of ``Adapter``. A training phase calls ``learn_one`` for each row, or
    ``learn_many`` once if that gives the same model.
    """

    phases_may_be_cut = True
    _overflow = (OverflowError,)  # Python's math raises it where NumPy returns infinity

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
                raise ValueError(
                    f"y must hold False and True, or 0 and 1, for River's {model!s}, got "
                    f"{rows.classes.tolist()}; use multiclass.OneVsRestClassifier instead."
                )
        super().__init__(estimator, rows, response_methods, seed)

    def _response(self, estimator: Any, X: Any, method: str) -> np.ndarray:
        if method == "predict" and self.rows.classes is not None:
            return estimator.predict_codes(X)
        return super()._response(estimator, X, method)
