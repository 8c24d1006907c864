"""Grow the ensembles of XGBoost: boosters on binned rows, which the trials of a study share."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from xgboost import Booster
from xgboost import DMatrix
from xgboost import QuantileDMatrix
from xgboost import XGBClassifier
from xgboost import XGBRegressor

from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import LEAF_BYTES
from optuna_treecv.engines.ensembles.growth import Prepared
from optuna_treecv.engines.ensembles.growth import response_of
from optuna_treecv.engines.ensembles.growth import TreeLimit

# The parameters on which the binned rows depend.
_OF_ROWS = (
    *("max_bin", "missing", "enable_categorical", "feature_types", "feature_weights", "n_jobs"),
    *("tree_method", "device"),
)

# The number of trees that are grown per call in the thread of a booster. A call takes 0.1 ms.
_TREES_PER_CALL = 16


class XGBoostGrowth(Growth):
    """An XGBoost booster, which stays in memory and can predict after each tree."""

    has_labels_by_probability = True
    patience_names = ("early_stopping_rounds",)

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        self._train, self._test, self._classes = prepared
        parameters = estimator.get_xgb_params()
        for name in ("eval_metric", "n_jobs"):
            parameters.pop(name, None)
        if self._classes is not None and len(self._classes) > 2:
            parameters |= {"objective": "multi:softprob", "num_class": len(self._classes)}
        parameters["nthread"] = estimator.n_jobs
        # Each booster has its own thread, because the boosters of a thread share a random number
        # generator.
        self._thread = ThreadPoolExecutor(1)
        self._booster = self._thread.submit(Booster, parameters, [self._train]).result()
        self._n_updates = 0
        self._predicted: dict[int, np.ndarray] = {}

    @classmethod
    def why_not(cls, estimator: Any, searched: Collection[str]) -> str:
        """Return the reason why an estimator cannot be grown tree by tree, or "" if it can."""
        parameters = estimator.get_params()
        if callable(parameters["objective"]) or parameters["objective"] == "multi:softmax":
            return "objective predicts no probabilities"
        if parameters["callbacks"] is not None:
            return "callbacks are given"
        if parameters["booster"] not in (None, "gbtree"):
            return f"booster={parameters['booster']!r} changes earlier trees"
        if "num_boost_round" in parameters:
            return "num_boost_round is given instead of n_estimators"
        return ""

    @classmethod
    def n_trees_of(cls, estimator: Any) -> Any:
        """Return the number of trees of an estimator, which is 100 by default."""
        return estimator.get_num_boosting_rounds()

    @classmethod
    def settings(cls, estimator: Any, facts: Any) -> Mapping[str, Any]:
        """Return the parameters on which the prepared rows depend."""
        return {name: getattr(estimator, name) for name in _OF_ROWS}

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], fold_rows: FoldRows) -> Prepared:
        """Return the rows as XGBoost's matrices, binned by quantiles if ``fit`` would bin them."""
        if fold_rows.classes is not None:
            n_classes = len(fold_rows.classes)
            if not np.array_equal(fold_rows.classes, np.arange(n_classes)):
                raise ValueError(
                    f"y must consist of the classes 0 to {n_classes - 1} for XGBClassifier, got "
                    "other classes; use LabelEncoder().fit_transform(y) instead."
                )
        options = {
            "missing": estimator.missing,
            "enable_categorical": estimator.enable_categorical,
            "feature_types": estimator.feature_types,
            "nthread": estimator.n_jobs,
        }
        train_options = options | {"label": fold_rows.y, "weight": fold_rows.weights}
        train_options["feature_weights"] = estimator.feature_weights
        is_binned = estimator.tree_method in (None, "auto", "hist")
        if is_binned:
            max_bin = estimator.max_bin
            train: DMatrix = QuantileDMatrix(fold_rows.X, max_bin=max_bin, **train_options)
        else:
            train = DMatrix(fold_rows.X, **train_options)
        test = DMatrix(fold_rows.test, **options)
        nbytes = train.num_row() * train.num_col() * (1 if is_binned else 4)
        nbytes += test.num_row() * test.num_col() * 4
        return Prepared((train, test, fold_rows.classes), nbytes)

    @property
    def nbytes(self) -> int:
        """The approximate size of the trees in bytes."""
        leaves = self.estimator.max_leaves or 2 ** min(self.estimator.max_depth or 6, 12)
        n_classes = 1 if self._classes is None else len(self._classes)
        return LEAF_BYTES * leaves * n_classes * self.n_trees

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow the booster up to ``n_trees`` trees; each call in its thread adds several trees."""
        while self.n_trees < n_trees:
            if self.n_trees == self._n_updates:
                n_added = min(n_trees - self.n_trees, _TREES_PER_CALL)
                self._predicted = self._thread.submit(self._update, n_added, wanted).result()
            self.n_trees += 1
            yield self.n_trees

    def _update(self, n_added: int, wanted: Collection[int]) -> dict[int, np.ndarray]:
        """Add trees, and return the predictions for each number of trees that is in ``wanted``."""
        predicted = {}
        for n_trees in range(self._n_updates + 1, self._n_updates + n_added + 1):
            self._booster.update(self._train, n_trees - 1)
            self._n_updates = n_trees
            if n_trees in wanted:
                predicted[n_trees] = self._predict(n_trees)
        return predicted

    def _predict(self, n_trees: int) -> np.ndarray:
        return self._booster.predict(
            self._test, iteration_range=(0, n_trees), validate_features=False
        )

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first ``n_trees`` trees for the test rows."""
        outputs = self._predicted.get(n_trees)
        if outputs is None:
            outputs = self._predict(n_trees)
        return response_of(outputs, method, self._classes)


KINDS = {XGBClassifier: XGBoostGrowth, XGBRegressor: XGBoostGrowth}
