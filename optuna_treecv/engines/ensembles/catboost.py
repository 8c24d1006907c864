"""Grow the ensembles of CatBoost, which ``init_model`` fits incrementally on quantized rows."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from itertools import islice
from typing import Any

from catboost import CatBoostClassifier
from catboost import CatBoostRegressor
from catboost import Pool
import numpy as np

from optuna_treecv.engines.ensembles.growth import BLOCKS
from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import LEAF_BYTES
from optuna_treecv.engines.ensembles.growth import Prepared
from optuna_treecv.engines.ensembles.growth import TreeLimit

# Aliases of ``iterations``, and its default.
_SIZES = frozenset({"n_estimators", "num_boost_round", "num_trees"})
_N_TREES = 1000

# The parameter for early stopping.
_PATIENCE = ("early_stopping_rounds",)

# The parameters that determine what ``fit`` prints. If none is given, growth prints nothing.
_VERBOSITY = frozenset({"verbose", "logging_level", "silent", "verbose_eval"})

# Parameters with which a continued ensemble differs from one that is fitted in one call, or with
# which rows are not quantized.
_EXCLUDED = (
    *("langevin", "diffusion_temperature", "posterior_sampling", "model_shrink_rate"),
    *("model_shrink_mode", "first_feature_use_penalties", "per_object_feature_penalties"),
    *("penalties_coefficient", "text_features", "embedding_features", "tokenizers"),
    *("dictionaries", "feature_calcers", "text_processing", "save_snapshot", "snapshot_file"),
    *("input_borders", "fixed_binary_splits", "monotone_constraints"),
)

# The parameters of ``Pool.quantize``.
_OF_BORDERS = (
    *("border_count", "max_bin", "feature_border_type", "per_float_feature_quantization"),
    *("ignored_features", "nan_mode", "dev_max_subset_size_for_build_borders", "random_seed"),
)


class CatBoostGrowth(Growth):
    """A CatBoost ensemble, which is continued from its own trees."""

    size = "iterations"
    patience_names = _PATIENCE

    def __init__(self, estimator: Any, prepared: Any, take: Any) -> None:
        super().__init__(estimator, prepared, take)
        self._train, self._test = prepared
        self._fitted: Any = None
        self._predicts_stages = False
        # For each method, an iterator over staged predictions, and the number of trees of the last
        # prediction that it returned.
        self._stages: dict[str, tuple[Iterator[np.ndarray], int]] = {}

    @classmethod
    def why_not(cls, estimator: Any, searched: Collection[str]) -> str:
        """Return the reason why an estimator cannot be grown tree by tree, or "" if it can."""
        given = {name: p for name, p in estimator.get_params().items() if p is not None}
        names = {*given, *searched}
        if aliases := sorted(_SIZES & names):
            return f"{aliases[0]} is given, an alias of iterations"
        if not {"learning_rate", "eta"} & names:
            return "learning_rate is not given, and its default depends on iterations"
        if excluded := [name for name in _EXCLUDED if name in searched or given.get(name)]:
            return f"{excluded[0]} is given"
        losses = [given.get("loss_function"), given.get("objective")]
        if not all(loss is None or isinstance(loss, str) for loss in losses):
            return "loss_function is an object"
        return "task_type is GPU" if given.get("task_type", "CPU") != "CPU" else ""

    @classmethod
    def n_trees_of(cls, estimator: Any) -> Any:
        """Return the number of trees of an estimator, which is 1000 by default."""
        size = estimator.get_params().get(cls.size)
        return _N_TREES if size is None else size

    @classmethod
    def blocks(cls, estimator: Any) -> list[int]:
        """Return the numbers of trees at which growth may pause.

        There are fewer, because the staged predictions of each block begin with the first tree.
        """
        return BLOCKS[1::2]

    @classmethod
    def without_patience(cls, estimator: Any) -> Any:
        """Return a copy without early stopping. ``clone`` fails if a parameter is None."""
        parameters = estimator.get_params()
        return type(estimator)(**{n: p for n, p in parameters.items() if n not in _PATIENCE})

    @classmethod
    def settings(cls, estimator: Any, facts: Any) -> Mapping[str, Any]:
        """Return the parameters on which the quantized rows depend."""
        given = estimator.get_params()
        if "random_state" in given:  # an alias
            given["random_seed"] = given["random_state"]
        return {name: given[name] for name in (*_OF_BORDERS, "cat_features") if name in given}

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], fold_rows: FoldRows) -> Prepared:
        """Return the training rows quantized as ``fit`` quantizes them, and the test rows.

        Rows with categorical columns are not quantized: if a column has at most
        ``one_hot_max_size`` categories, the trees would differ from those of ``fit``.
        """
        categories = settings.get("cat_features")
        categories = None if categories is None else list(categories)
        train = Pool(fold_rows.X, fold_rows.y, cat_features=categories, weight=fold_rows.weights)
        if not categories:
            train.quantize(**{n: p for n, p in settings.items() if n in _OF_BORDERS})
        test = Pool(fold_rows.test, cat_features=categories)
        n_values = sum(pool.num_row() * pool.num_col() for pool in (train, test))
        return Prepared((train, test), 4 * n_values)

    @property
    def nbytes(self) -> int:
        """The approximate size of the trees in bytes."""
        parameters = self.estimator.get_params()
        depth = parameters.get("depth") or parameters.get("max_depth") or 6
        n_outputs = max(1, np.size(getattr(self._fitted, "classes_", ())))
        return LEAF_BYTES * 2**depth * n_outputs * self.n_trees

    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow the ensemble up to ``n_trees`` trees in one call."""
        parameters, first = self.estimator.get_params(), self.n_trees + 1
        if self._fitted is not None:  # its first trees begin with the average
            parameters.pop("boost_from_average", None)
        if not _VERBOSITY & set(parameters):
            parameters["logging_level"] = "Silent"
        parameters |= {self.size: n_trees - self.n_trees, "allow_writing_files": False}
        further = type(self.estimator)(**parameters)
        self._fitted = further.fit(self._train, init_model=self._fitted)
        self._stages, self._predicts_stages = {}, len(wanted) == n_trees
        for self.n_trees in range(first, n_trees + 1):
            yield self.n_trees

    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first ``n_trees`` trees for the test rows.

        If all numbers of trees are wanted, these are staged predictions, which differ from those
        of ``fit`` in the last digits.
        """
        if not self._predicts_stages:
            return getattr(self._fitted, method)(self._test, ntree_end=n_trees)
        stages, n_passed = self._stages.get(method, (iter(()), 0))
        if n_passed == 0 or n_passed >= n_trees:
            stages, n_passed = getattr(self._fitted, f"staged_{method}")(self._test), 0
        predicted = next(islice(stages, n_trees - n_passed - 1, None))
        self._stages[method] = stages, n_trees
        return predicted


KINDS = {CatBoostClassifier: CatBoostGrowth, CatBoostRegressor: CatBoostGrowth}
