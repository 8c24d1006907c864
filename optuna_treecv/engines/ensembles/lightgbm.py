"""Growing ensembles of LightGBM: its boosters, on bins that are cached for the study."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from functools import partial
from typing import Any

import joblib
from lightgbm import Booster
from lightgbm import Dataset
from lightgbm import LGBMClassifier
from lightgbm import LGBMRegressor
import numpy as np
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.class_weight import compute_sample_weight

from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import LEAF_BYTES
from optuna_treecv.engines.ensembles.growth import Prepared
from optuna_treecv.engines.ensembles.growth import response_of
from optuna_treecv.engines.ensembles.growth import TreeLimit

# Aliases of parameters that the estimators set.
_SIZES = frozenset(
    "num_iterations num_iteration n_iter num_tree num_trees num_round num_rounds nrounds "
    "num_boost_round max_iter".split()
)
_PATIENCE = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
_OTHERS = frozenset(
    "application app loss objective_type num_class num_classes input_model output_model".split()
)

# Parameters on which bins do not depend. Bins are assumed to depend on all others.
_OF_TREES = frozenset(
    "boosting_type num_leaves max_depth learning_rate min_split_gain min_child_weight "
    "min_child_samples subsample subsample_freq colsample_bytree colsample_bynode reg_alpha "
    "reg_lambda objective metric verbose verbosity extra_trees path_smooth drop_rate "
    "max_drop skip_drop top_rate other_rate alpha scale_pos_weight is_unbalance "
    "data_sample_strategy bagging_fraction bagging_freq feature_fraction feature_fraction_bynode "
    "min_data_in_leaf lambda_l1 lambda_l2 min_gain_to_split min_sum_hessian_in_leaf".split()
)
# The names of ``min_child_samples``, by which LightGBM drops columns.
_LEAST = (
    *("min_data_in_leaf", "min_data_per_leaf", "min_data", "min_child_samples"),
    "min_samples_leaf",
)

# The rows of a column whose median is computed, and the numbers of sparse rows that are made dense
# at once.
_MOST_SORTED = 1000
_MOST_NUMBERS = 2**22


class LightGBMGrowth(Growth):
    """A booster that stays in memory, and predicts after each tree."""

    of_patience = _PATIENCE

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        train, test, self._classes = prepared
        parameters = _parameters(estimator, self._classes) | {"metric": "None"}
        self._booster = Booster(parameters, train)
        self._booster.add_valid(test, "test")
        self._is_additive = parameters["boosting_type"] in ("gbdt", "goss", "rf")
        # LightGBM updates scores of a validation set with each tree. Those of linear trees differ
        # from predictions in the last digits. With boost_from_average=False, the initial score is
        # added to them twice if no column can be split.
        self._is_tracked = (
            parameters["boosting_type"] in ("gbdt", "goss")
            and not parameters.get("linear_tree")
            and parameters.get("boost_from_average", True) is True
        )
        self._n_kept = [0]  # after each round, as a round without any split leaves no tree
        self._outputs: np.ndarray | None = None
        self._summed: tuple[int, Any] = 0, 0.0
        self._test: Any = None

    @classmethod
    def why_not(cls, estimator: Any) -> str:
        """Return the reason why an estimator is fitted as a whole; "" if it can grow."""
        parameters = estimator.get_params()
        if callable(parameters["objective"]):
            return "objective is a function"
        for names in (_SIZES, _OTHERS):
            if named := sorted(names & set(parameters)):
                return f"{named[0]} is given, an alias of another parameter"
        return ""

    @classmethod
    def facts(cls, taken: FoldRows) -> np.ndarray:
        """Return the number of rows on the smaller side of each column's most even split.

        It is exact for columns with one value in nearly all rows, where it matters.
        """
        return _most_even_splits(_as_floats(taken.X))

    @classmethod
    def settings(cls, estimator: Any, facts: np.ndarray) -> Mapping[str, Any]:
        """Return the parameters of bins.

        LightGBM drops the columns that no split with ``min_child_samples`` rows on both sides can
        use, before it draws columns. So Datasets differ only between values that drop different
        columns: one is made with the least value that drops the same ones.
        """
        parameters = _parameters(estimator, None)
        sizes = [parameters.pop(name) for name in _LEAST if name in parameters]
        least = 1 + int(facts[facts < sizes[0]].max(initial=0))
        if sizes[0] > facts.max(initial=0) // 2:  # bins may allow no split that is so even
            least = sizes[0]
        settings = {name: p for name, p in parameters.items() if name not in _OF_TREES}
        weights = {"class_weight": getattr(estimator, "class_weight", None)}
        return settings | weights | {_LEAST[0]: least}

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], taken: FoldRows) -> Prepared:
        """Return Datasets of the training rows and of the test rows, in the bins of the former."""
        y, weights = taken.y, taken.weights
        if taken.classes is not None:
            y = np.searchsorted(taken.classes, y)
        if settings["class_weight"] is not None:
            of_classes = compute_sample_weight(settings["class_weight"], taken.y)
            weights = of_classes if weights is None else weights * of_classes
        parameters = _parameters(estimator, taken.classes)
        # The metric of fit raises an error for such labels. Boosters here have no metric.
        metrics = f"{parameters['objective']} {estimator.get_params().get('metric')}"
        if "gamma" in metrics and np.min(y) <= 0:
            raise ValueError("y must be positive for the gamma deviance.")
        parameters = {n: v for n, v in parameters.items() if n not in _LEAST}
        parameters[_LEAST[0]] = settings[_LEAST[0]]
        X = _as_floats(taken.X)
        train = Dataset(X, y, weight=weights, params=parameters).construct()
        test = train.create_valid(_as_floats(taken.test), params=dict(parameters)).construct()
        nbytes = (train.num_data() + test.num_data()) * max(1, train.num_feature())
        return Prepared(
            (train, test, taken.classes), nbytes * (1 + (parameters.get("max_bin", 255) > 255))
        )

    def forget_rows(self) -> None:
        """Drop the test rows."""
        self._test = None

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Update the booster tree by tree."""
        while self.n_trees < n_trees:
            self._booster.update()
            self._outputs = None
            self._n_kept.append(self._booster.current_iteration())
            self.n_trees += 1
            yield self.n_trees

    @property
    def nbytes(self) -> int:
        """The approximate bytes of the trees."""
        leaves = self.estimator.num_leaves * (1 if self._classes is None else len(self._classes))
        return LEAF_BYTES * leaves * self.n_trees

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first trees for the test rows."""
        is_raw = method == "decision_function"
        if n_trees == self.n_trees and self._is_tracked and not is_raw:
            numbers = self._tracked_outputs()
        elif n_trees == self.n_trees or self._is_additive:
            if self._test is None:
                self._test = _as_floats(self.take().test)
            n_kept, add = self._n_kept[n_trees], partial(self._booster.predict, self._test)
            if is_raw and self._is_tracked:
                return self._sum(n_kept, add)
            numbers = np.asarray(add(num_iteration=n_kept, raw_score=is_raw))
        else:  # further trees change earlier ones
            first = type(self)(self.estimator, self.prepared, self.take)
            for _ in first.grow(n_trees):
                pass
            return first.predict(method, n_trees)
        return numbers if is_raw else response_of(numbers, method, self._classes)

    def _sum(self, n_kept: int, add: Callable[..., Any]) -> np.ndarray:
        """Return the sum of the first trees for the test rows, continued from the last sum."""
        n_summed, total = self._summed
        if n_summed > n_kept or n_kept == 0:
            n_summed, total = 0, 0.0
        for number in range(n_summed, n_kept):
            total = total + add(start_iteration=number, num_iteration=1, raw_score=True)
        self._summed = n_kept, total
        return np.asarray(total)

    def _tracked_outputs(self) -> np.ndarray:
        """Return the outputs for the test rows that LightGBM updates with each tree."""
        if self._outputs is None:

            def note(outputs: np.ndarray, _: Dataset) -> tuple[str, float, bool]:
                self._outputs = outputs.copy()
                return "outputs", 0.0, True

            self._booster.eval_valid(note)
        assert self._outputs is not None
        return self._outputs


KINDS = {LGBMClassifier: LightGBMGrowth, LGBMRegressor: LightGBMGrowth}


def _parameters(estimator: Any, classes: np.ndarray | None) -> dict[str, Any]:
    """Return the parameters of the booster that an estimator's ``fit`` would train."""
    parameters: dict[str, Any] = estimator.get_params()
    for name in ("importance_type", "n_estimators", "class_weight", "metric", *_PATIENCE):
        parameters.pop(name, None)
    if parameters["objective"] is None:
        parameters["objective"] = "regression"
        if classes is not None:
            parameters["objective"] = "binary" if len(classes) <= 2 else "multiclass"
    if classes is not None and len(classes) > 2:
        parameters["num_class"] = len(classes)
    n_jobs, named = parameters.pop("n_jobs"), ("num_threads", "num_thread", "nthread", "nthreads")
    if not any(name in parameters for name in named):
        if n_jobs is None:
            n_jobs = joblib.cpu_count(only_physical_cores=True)
        elif n_jobs < 0:
            n_jobs = max(joblib.cpu_count() + 1 + n_jobs, 1)
        parameters["num_threads"] = n_jobs
    return parameters


def _as_floats(X: Any) -> Any:
    """Return rows as an estimator's ``fit`` and ``predict`` pass them to a booster."""
    if hasattr(X, "columns"):
        return X
    return check_array(X, accept_sparse=True, ensure_all_finite=False)


def _most_even_splits(X: Any) -> np.ndarray:
    """Return the number of rows on the smaller side of each column's most even split.

    They are counted on both sides of the median of a sample of rows, which is exact if nearly all
    rows have the same value.
    """
    if sparse.issparse(X):
        X = X.tocsc()
        n_columns = max(1, _MOST_NUMBERS // X.shape[0])
        parts = range(0, X.shape[1], n_columns)
        dense = [_most_even_splits(X[:, part : part + n_columns].toarray()) for part in parts]
        return np.concatenate(dense)
    if hasattr(X, "columns"):
        return np.array([_most_even_split(X[name]) for name in X.columns])
    X = np.asarray(X)
    is_missing = np.isnan(X)
    if is_missing.any():
        X = np.where(is_missing, np.inf, X)  # missing values come last
    sample = X[:: 1 + len(X) // _MOST_SORTED]
    median = np.partition(sample, len(sample) // 2, axis=0)[len(sample) // 2]
    return np.maximum((X < median).sum(axis=0), (X > median).sum(axis=0))


def _most_even_split(column: Any) -> int:
    """Return the same for a column of a frame; all rows for one with several categories."""
    if str(column.dtype) == "category":
        column = column.cat.codes
        if column.max() > 1:
            return len(column)
    return int(_most_even_splits(np.asarray(column, dtype=np.float64)[:, None])[0])
