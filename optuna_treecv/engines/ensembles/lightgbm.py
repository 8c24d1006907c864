"""Grow the ensembles of LightGBM: boosters on binned rows, which the trials of a study share."""

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

# Aliases of ``n_estimators``.
_SIZES = frozenset(
    "num_iterations num_iteration n_iter num_tree num_trees num_round num_rounds nrounds "
    "num_boost_round max_iter".split()
)
# The names of the parameter for early stopping.
_PATIENCE = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
# Aliases of other parameters that the estimators set.
_OTHERS = frozenset(
    "application app loss objective_type num_class num_classes input_model output_model".split()
)

# Parameters on which bins do not depend. Bins are assumed to depend on all other parameters.
_OF_TREES = frozenset(
    "boosting_type num_leaves max_depth learning_rate min_split_gain min_child_weight "
    "min_child_samples subsample subsample_freq colsample_bytree colsample_bynode reg_alpha "
    "reg_lambda objective metric verbose verbosity extra_trees path_smooth drop_rate "
    "max_drop skip_drop top_rate other_rate alpha scale_pos_weight is_unbalance "
    "data_sample_strategy bagging_fraction bagging_freq feature_fraction feature_fraction_bynode "
    "min_data_in_leaf lambda_l1 lambda_l2 min_gain_to_split min_sum_hessian_in_leaf".split()
)
# ``min_child_samples`` and its aliases. LightGBM drops columns without a split within this limit.
_MIN_SAMPLES_NAMES = (
    *("min_data_in_leaf", "min_data_per_leaf", "min_data", "min_child_samples"),
    "min_samples_leaf",
)

# The maximum number of rows from which the median of a column is computed.
_MAX_SAMPLE = 1000

# The maximum number of values of a sparse X that are converted to a dense array at a time.
_MAX_DENSE_VALUES = 2**22


class LightGBMGrowth(Growth):
    """A LightGBM booster, which stays in memory and can predict after each tree."""

    has_labels_by_probability = True
    patience_names = _PATIENCE

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        train, test, self._classes = prepared
        parameters = _parameters(estimator, self._classes) | {"metric": "None"}
        self._booster = Booster(parameters, train)
        self._booster.add_valid(test, "test")
        self._is_additive = parameters["boosting_type"] in ("gbdt", "goss", "rf")
        # LightGBM updates the outputs for a validation set with each tree. The outputs of linear
        # trees differ from predictions in the last digits. With boost_from_average=False, the
        # initial score is added twice to the outputs if no column can be split.
        self._is_tracked = (
            parameters["boosting_type"] in ("gbdt", "goss")
            and not parameters.get("linear_tree")
            and parameters.get("boost_from_average", True) is True
        )
        # The number of LightGBM's iterations after each round. A round without a split adds none.
        self._n_iterations = [0]
        self._outputs: np.ndarray | None = None
        self._summed: tuple[int, Any] = 0, 0.0
        self._test: Any = None

    @classmethod
    def why_not(cls, estimator: Any, searched: Collection[str]) -> str:
        """Return the reason why an estimator cannot be grown tree by tree, or "" if it can."""
        parameters = estimator.get_params()
        if callable(parameters["objective"]):
            return "objective is a function"
        for names in (_SIZES, _OTHERS):
            if aliases := sorted(names & set(parameters)):
                return f"{aliases[0]} is given, an alias of another parameter"
        return ""

    @classmethod
    def facts(cls, fold_rows: FoldRows) -> np.ndarray:
        """Return, for each column, how many rows are on the smaller side of its best split.

        The best split is the most balanced one. The number is exact if nearly all rows have the
        same value. Only such columns can have no split with ``min_child_samples`` rows on both
        sides.
        """
        return _most_balanced_splits(_as_floats(fold_rows.X))

    @classmethod
    def settings(cls, estimator: Any, facts: np.ndarray) -> Mapping[str, Any]:
        """Return the parameters on which a Dataset (the binned rows) depends.

        Before LightGBM draws columns at random, it drops each column without a split that has
        ``min_child_samples`` rows on both sides. Values of this parameter share a Dataset if they
        drop the same columns. The Dataset is made with the smallest of these values.
        """
        parameters = _parameters(estimator, None)
        sizes = [parameters.pop(name) for name in _MIN_SAMPLES_NAMES if name in parameters]
        least = 1 + int(facts[facts < sizes[0]].max(initial=0))
        if sizes[0] > facts.max(initial=0) // 2:  # bins may not allow such a balanced split
            least = sizes[0]
        settings = {name: p for name, p in parameters.items() if name not in _OF_TREES}
        weights = {"class_weight": getattr(estimator, "class_weight", None)}
        return settings | weights | {_MIN_SAMPLES_NAMES[0]: least}

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], fold_rows: FoldRows) -> Prepared:
        """Return Datasets of the training and test rows, with the bins of the training rows."""
        y, weights = fold_rows.y, fold_rows.weights
        if fold_rows.classes is not None:
            y = np.searchsorted(fold_rows.classes, y)
        if settings["class_weight"] is not None:
            class_weights = compute_sample_weight(settings["class_weight"], fold_rows.y)
            weights = class_weights if weights is None else weights * class_weights
        parameters = _parameters(estimator, fold_rows.classes)
        # In ``fit``, the gamma metric raises an error for y <= 0. A growing booster has no metric,
        # so y is checked here.
        metrics = f"{parameters['objective']} {estimator.get_params().get('metric')}"
        if "gamma" in metrics and np.min(y) <= 0:
            raise ValueError("y must be positive for the gamma deviance.")
        parameters = {n: v for n, v in parameters.items() if n not in _MIN_SAMPLES_NAMES}
        parameters[_MIN_SAMPLES_NAMES[0]] = settings[_MIN_SAMPLES_NAMES[0]]
        X = _as_floats(fold_rows.X)
        train = Dataset(X, y, weight=weights, params=parameters).construct()
        test = train.create_valid(_as_floats(fold_rows.test), params=dict(parameters)).construct()
        nbytes = (train.num_data() + test.num_data()) * max(1, train.num_feature())
        return Prepared(
            (train, test, fold_rows.classes), nbytes * (1 + (parameters.get("max_bin", 255) > 255))
        )

    def forget_rows(self) -> None:
        """Release the memory of the test rows."""
        self._test = None

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow the booster tree by tree up to ``n_trees`` trees."""
        while self.n_trees < n_trees:
            self._booster.update()
            self._outputs = None
            self._n_iterations.append(self._booster.current_iteration())
            self.n_trees += 1
            yield self.n_trees

    @property
    def nbytes(self) -> int:
        """The approximate size of the trees in bytes."""
        leaves = self.estimator.num_leaves * (1 if self._classes is None else len(self._classes))
        return LEAF_BYTES * leaves * self.n_trees

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first ``n_trees`` trees for the test rows."""
        is_raw = method == "decision_function"
        if n_trees == self.n_trees and self._is_tracked and not is_raw:
            outputs = self._tracked_outputs()
        elif n_trees == self.n_trees or self._is_additive:
            if self._test is None:
                self._test = _as_floats(self.take().test)
            n_iterations = self._n_iterations[n_trees]
            add = partial(self._booster.predict, self._test)
            if is_raw and self._is_tracked:
                return self._sum(n_iterations, add)
            outputs = np.asarray(add(num_iteration=n_iterations, raw_score=is_raw))
        else:  # later trees have changed the weights of the first trees, which are grown again
            first = type(self)(self.estimator, self.prepared, self.take)
            for _ in first.grow(n_trees):
                pass
            return first.predict(method, n_trees)
        return outputs if is_raw else response_of(outputs, method, self._classes)

    def _sum(self, n_iterations: int, add: Callable[..., Any]) -> np.ndarray:
        """Return the summed outputs of the first trees for the test rows.

        The sum of the last call is continued, unless it contains more trees.
        """
        n_summed, total = self._summed
        if n_summed > n_iterations or n_iterations == 0:
            n_summed, total = 0, 0.0
        for index in range(n_summed, n_iterations):
            total = total + add(start_iteration=index, num_iteration=1, raw_score=True)
        self._summed = n_iterations, total
        return np.asarray(total)

    def _tracked_outputs(self) -> np.ndarray:
        """Return the outputs for the test rows, which LightGBM updates with each tree."""
        if self._outputs is None:

            def record(outputs: np.ndarray, _: Dataset) -> tuple[str, float, bool]:
                self._outputs = outputs.copy()
                return "outputs", 0.0, True

            self._booster.eval_valid(record)
        assert self._outputs is not None
        return self._outputs


KINDS = {LGBMClassifier: LightGBMGrowth, LGBMRegressor: LightGBMGrowth}


def _parameters(estimator: Any, classes: np.ndarray | None) -> dict[str, Any]:
    """Return the parameters that an estimator's ``fit`` would pass to a booster."""
    parameters: dict[str, Any] = estimator.get_params()
    for name in ("importance_type", "n_estimators", "class_weight", "metric", *_PATIENCE):
        parameters.pop(name, None)
    if parameters["objective"] is None:
        parameters["objective"] = "regression"
        if classes is not None:
            parameters["objective"] = "binary" if len(classes) <= 2 else "multiclass"
    if classes is not None and len(classes) > 2:
        parameters["num_class"] = len(classes)
    n_jobs = parameters.pop("n_jobs")
    aliases = ("num_threads", "num_thread", "nthread", "nthreads")
    if not any(name in parameters for name in aliases):
        if n_jobs is None:
            n_jobs = joblib.cpu_count(only_physical_cores=True)
        elif n_jobs < 0:
            n_jobs = max(joblib.cpu_count() + 1 + n_jobs, 1)
        parameters["num_threads"] = n_jobs
    return parameters


def _as_floats(X: Any) -> Any:
    """Return X in the form in which ``fit`` and ``predict`` pass it to a booster."""
    if hasattr(X, "columns"):
        return X
    return check_array(X, accept_sparse=True, ensure_all_finite=False)


def _most_balanced_splits(X: Any) -> np.ndarray:
    """Return, for each column, how many rows are on the smaller side of its most balanced split.

    If nearly all rows equal the median, the most balanced split is just below or just above it.
    The smaller sides of these two splits are the rows below and the rows above the median. The
    larger of the two counts is returned. It is exact if nearly all rows have the same value.
    """
    if sparse.issparse(X):
        X = X.tocsc()
        n_columns = max(1, _MAX_DENSE_VALUES // X.shape[0])
        starts = range(0, X.shape[1], n_columns)
        return np.concatenate(
            [_most_balanced_splits(X[:, start : start + n_columns].toarray()) for start in starts]
        )
    if hasattr(X, "columns"):
        return np.array([_most_balanced_split(X[name]) for name in X.columns])
    X = np.asarray(X)
    is_missing = np.isnan(X)
    if is_missing.any():
        X = np.where(is_missing, np.inf, X)  # missing values come last
    sample = X[:: 1 + len(X) // _MAX_SAMPLE]
    median = np.partition(sample, len(sample) // 2, axis=0)[len(sample) // 2]
    return np.maximum((X < median).sum(axis=0), (X > median).sum(axis=0))


def _most_balanced_split(column: Any) -> int:
    """Return the result of ``_most_balanced_splits`` for a column of a DataFrame.

    For a column with more than two categories, return the number of all rows.
    """
    if str(column.dtype) == "category":
        column = column.cat.codes
        if column.max() > 1:
            return len(column)
    return int(_most_balanced_splits(np.asarray(column, dtype=np.float64)[:, None])[0])
