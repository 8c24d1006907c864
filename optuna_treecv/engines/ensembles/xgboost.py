"""Growing ensembles of XGBoost: its boosters, on bins that are cached for the study."""

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

# The parameters on which the rows of boosters depend.
_OF_ROWS = (
    *("max_bin", "missing", "enable_categorical", "feature_types", "feature_weights", "n_jobs"),
    *("tree_method", "device"),
)

# The trees per call in the thread, because a call takes a tenth of a millisecond.
_AT_ONCE = 16


class XGBoostGrowth(Growth):
    """A booster that stays in memory, and predicts after each tree."""

    of_patience = ("early_stopping_rounds",)

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        self._train, self._test, self._classes = prepared
        parameters = estimator.get_xgb_params()
        for name in ("eval_metric", "n_jobs"):
            parameters.pop(name, None)
        if self._classes is not None and len(self._classes) > 2:
            parameters |= {"objective": "multi:softprob", "num_class": len(self._classes)}
        parameters["nthread"] = estimator.n_jobs
        # The boosters of a thread share one random number generator.
        self._thread = ThreadPoolExecutor(1)
        self._booster = self._thread.submit(Booster, parameters, [self._train]).result()
        self._n_updates = 0
        self._predicted: dict[int, np.ndarray] = {}

    @classmethod
    def why_not(cls, estimator: Any) -> str:
        """Return the reason why an estimator is fitted as a whole; "" if it can grow."""
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
        """Return the number of trees of an estimator; the default is 100."""
        return estimator.get_num_boosting_rounds()

    @classmethod
    def settings(cls, estimator: Any, facts: Any) -> Mapping[str, Any]:
        """Return the parameters on which the prepared rows depend."""
        return {name: getattr(estimator, name) for name in _OF_ROWS}

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], taken: FoldRows) -> Prepared:
        """Return the rows of one fold, in quantiles if ``fit`` would compute these."""
        if taken.classes is not None:
            n_classes = len(taken.classes)
            if not np.array_equal(taken.classes, np.arange(n_classes)):
                raise ValueError(
                    f"y must hold the classes 0 to {n_classes - 1} for XGBClassifier, got others; "
                    "use LabelEncoder().fit_transform(y) instead."
                )
        options = {
            "missing": estimator.missing,
            "enable_categorical": estimator.enable_categorical,
            "feature_types": estimator.feature_types,
            "nthread": estimator.n_jobs,
        }
        of_train = options | {"label": taken.y, "weight": taken.weights}
        of_train["feature_weights"] = estimator.feature_weights
        is_binned = estimator.tree_method in (None, "auto", "hist")
        if is_binned:
            train: DMatrix = QuantileDMatrix(taken.X, max_bin=estimator.max_bin, **of_train)
        else:
            train = DMatrix(taken.X, **of_train)
        test = DMatrix(taken.test, **options)
        nbytes = train.num_row() * train.num_col() * (1 if is_binned else 4)
        nbytes += test.num_row() * test.num_col() * 4
        return Prepared((train, test, taken.classes), nbytes)

    @property
    def nbytes(self) -> int:
        """The approximate bytes of the trees."""
        leaves = self.estimator.max_leaves or 2 ** min(self.estimator.max_depth or 6, 12)
        n_classes = 1 if self._classes is None else len(self._classes)
        return LEAF_BYTES * leaves * n_classes * self.n_trees

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Update the booster, several trees per call in its thread."""
        while self.n_trees < n_trees:
            if self.n_trees == self._n_updates:
                more = min(n_trees - self.n_trees, _AT_ONCE)
                self._predicted = self._thread.submit(self._update, more, wanted).result()
            self.n_trees += 1
            yield self.n_trees

    def _update(self, more: int, wanted: Collection[int]) -> dict[int, np.ndarray]:
        """Add trees; return the predictions at the ``wanted`` numbers of trees."""
        predicted = {}
        for number in range(self._n_updates + 1, self._n_updates + more + 1):
            self._booster.update(self._train, number - 1)
            self._n_updates = number
            if number in wanted:
                predicted[number] = self._predict(number)
        return predicted

    def _predict(self, n_trees: int) -> np.ndarray:
        return self._booster.predict(
            self._test, iteration_range=(0, n_trees), validate_features=False
        )

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first trees for the test rows."""
        numbers = self._predicted.get(n_trees)
        if numbers is None:
            numbers = self._predict(n_trees)
        return response_of(numbers, method, self._classes)


KINDS = {XGBClassifier: XGBoostGrowth, XGBRegressor: XGBoostGrowth}
