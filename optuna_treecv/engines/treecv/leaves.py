"""Tests the fold models at the leaves of a tree: collects their outputs, and calls scorers."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.core.fold_models import check_n_bytes
from optuna_treecv.core.fold_models import check_n_models
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.fold_models import LinearModels
from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.engines.treecv.learners.linear import LinearEstimator
from optuna_treecv.engines.treecv.shared_learner import SharedLearner
from optuna_treecv.engines.treecv.walk import TestNode
from optuna_treecv.engines.treecv.walk import walk_to_leaves
from optuna_treecv.estimators.base import divergence_advice
from optuna_treecv.estimators.base import name_of
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scorers import score_of
from optuna_treecv.scoring.scores import call_scorer_per_fold
from optuna_treecv.scoring.scores import TestedRows


@dataclass(eq=False)
class Leaves:
    """Collects the outputs of each fold's model for the test rows of the fold.

    A scorer that needs the fitted estimator is called as soon as the fold's model is available.

    Parameters
    ----------
    plan : Partition
    learner : Learner
    estimator : estimator
        The learner's estimator.
    metrics : sequence of Loss, Scorer or Pooled
        The metrics to compute; empty if only outputs are needed.
    at_leaf : collection of int
        The indices of the metrics that need the fitted estimator, not only outputs.
    prepared_rows : ndarray of shape (plan.n_rows,) or None
        The index of the prepared row for each row of the plan. None if these are the same.
    outputs : ArrayThenCount or None
        The array that receives the outputs for all rows of the plan, (plan.n_rows, n_outputs). If
        it is None, an array is allocated, unless all metrics need the fitted estimator.

    Attributes
    ----------
    methods : set of str
        The response methods that can be computed from the outputs.
    """

    plan: Partition
    learner: Learner
    estimator: Any = None
    metrics: Sequence[Metric] = ()
    at_leaf: Collection[int] = ()
    prepared_rows: np.ndarray | None = None
    outputs: "ArrayThenCount | None" = None

    def __post_init__(self) -> None:
        needs_outputs = not self.at_leaf or len(self.at_leaf) < len(self.metrics)
        if self.outputs is None and needs_outputs:
            shape = self.plan.n_rows, self.learner.n_outputs
            self.outputs = ArrayThenCount(shape, self.learner.dtype, self.learner.rows)
        rows = self.learner.rows
        # The scorers that are called for each fold, by the index of the metric.
        self._per_fold_scorers = {
            number: metric
            for number, metric in enumerate(self.metrics)
            if isinstance(metric, Scorer)
            and (number in self.at_leaf or fold_metric(metric, rows.classes) is None)
        }
        self._at_leaves = {i: np.empty(self.plan.n_folds) for i in self.at_leaf}
        from_outputs = (m for i, m in enumerate(self.metrics) if i not in self.at_leaf)
        self.methods = {response_of(metric, self.estimator) for metric in from_outputs}

    def test_leaf(self, fold: Node, state: Any) -> None:
        """Store the outputs of a fold's model, and call the scorers that need the model."""
        learner = self.learner
        start, stop = low, high = self.plan.rows(fold)
        tested = None if self.prepared_rows is None else self.prepared_rows[start:stop]
        if tested is not None:  # learners only test ranges of rows
            low, high = int(tested.min()), int(tested.max()) + 1
        if self.outputs is not None:
            if tested is None:
                learner.outputs(state, start, stop, self.outputs.array)
            else:  # np.empty takes no memory for rows that are never written
                of_all = np.empty((len(learner.rows.order), learner.n_outputs), learner.dtype)
                learner.outputs(state, low, high, of_all)
                self.outputs.array[start:stop] = of_all[tested]
        if not self.at_leaf:
            return
        fitted = learner.estimator(state)  # None if the model has diverged
        X, y = learner.score_rows(low, high)
        if tested is not None:
            X, y = take_rows(X, tested - low), None if y is None else y[tested - low]
        weights = {}
        if (of_rows := learner.rows.score_weights) is not None:
            weights["sample_weight"] = of_rows[self._part(start, stop)]
        for i in self.at_leaf:
            scorer, score = self.metrics[i], self.metrics[i].if_diverged
            if fitted is not None:
                assert isinstance(scorer, Scorer)
                score = score_of(scorer, fitted, X, y, learner.rows.classes, weights)
            self._at_leaves[i][fold.first] = score

    def called(self, folds: Node) -> dict[int, np.ndarray]:
        """Return the scores of folds by the scorers that are called once per fold.

        Scorers that only need outputs are called here, the others have been called by
        ``test_leaf``.

        Returns
        -------
        dict of int to ndarray of shape (folds.n_folds,)
            The scores by the index of the metric.
        """
        part, classes = slice(folds.first, folds.last), self.learner.rows.classes
        return {
            number: (
                self._at_leaves[number][part]
                if number in self.at_leaf
                else call_scorer_per_fold(scorer, self.tested(folds), self.estimator, classes)
            )
            for number, scorer in self._per_fold_scorers.items()
        }

    def tested(self, folds: Node) -> TestedRows:
        """Return the test rows of folds, with their outputs if these are collected."""
        start, stop = self.plan.rows(folds)
        outputs: np.ndarray = np.empty((stop - start, 0))
        methods: Collection[str] | None = ()
        if self.outputs is not None:
            outputs = self.outputs.array[start:stop]
            # All responses of a compiled learner can be computed from its outputs.
            is_compiled = isinstance(self.learner, CompiledLearner | SharedLearner)
            methods = None if is_compiled else self.methods
        begins = None if folds.n_folds == stop - start else self.plan.begins(folds) - start
        part, respond = self._part(start, stop), self.learner.respond
        return TestedRows.of(self.learner.rows, part, outputs, respond, begins, methods)

    def _part(self, start: int, stop: int) -> Any:
        """Return the indices of the prepared rows for the plan's rows start to stop - 1."""
        return slice(start, stop) if self.prepared_rows is None else self.prepared_rows[start:stop]


class ModelLeaves(Leaves):
    """Collects the models of folds instead of their outputs.

    Parameters
    ----------
    plan : Partition
    learner : Learner
    estimator : estimator
        The learner's estimator.

    Attributes
    ----------
    numbers : ndarray of shape (n_folds, n_model_parameters) or None
        The parameters of linear models of the given columns; None for other models.
    """

    def __init__(self, plan: Partition, learner: Learner, estimator: Any) -> None:
        # With a metric at the leaves, each model is passed to ``test_leaf``.
        super().__init__(plan, learner, estimator, at_leaf=(0,))
        self.numbers: np.ndarray | None = None
        self._models: dict[int, Any] = {}
        is_linear = isinstance(estimator, LinearEstimator)  # and no Pipeline
        if is_linear and isinstance(learner, CompiledLearner):
            n_parameters = len(learner.numbers(learner.start()))
            check_n_bytes(plan.n_folds, n_parameters)
            self.numbers = np.empty((plan.n_folds, n_parameters))
        else:
            check_n_models(estimator, plan.n_folds)

    def test_leaf(self, fold: Node, state: Any) -> None:
        """Store the model of a fold."""
        learner: Any = self.learner
        if self.numbers is not None:
            self.numbers[fold.first] = learner.numbers(state)
        else:
            self._models[fold.first] = learner.estimator(state)

    def collected(self, finish: Callable[[Any], Any]) -> FoldModels:
        """Return the models of all folds, after ``finish`` has been applied to estimators."""
        candidate, learner, numbers = self.estimator, self.learner, self.numbers
        models = [self._models.get(chunk) for chunk in range(self.plan.n_folds)]
        if not np.isfinite(numbers).all() if numbers is not None else None in models:
            raise ValueError(
                f"{name_of(candidate)} diverges on a fold, so it has no fold models; "
                f"{divergence_advice(candidate)}"
            )
        if numbers is None:
            return FoldModels([finish(model) for model in models])
        assert isinstance(learner, CompiledLearner)
        weights, d = numbers.reshape(len(models), learner.n_outputs, -1), learner.rows.n_features
        intercept = weights[:, :, d] if candidate.fit_intercept else np.zeros(weights.shape[:2])
        fitted = finish(learner.with_numbers(numbers[0]))
        return FoldModels(LinearModels(fitted, weights[:, :, :d], intercept))


def kernel_test(
    plan: Partition, learner: CompiledLearner | SharedLearner | Lanes, out: np.ndarray
) -> TestNode:
    """Return a ``TestNode`` that tests all folds of a node in one call of a kernel.

    It writes the outputs to ``out``.
    """

    def test(node: Node, state: Any, start: int, stop: int) -> int:
        if node.n_folds == 1:
            learner.outputs(state, start, stop, out)
            return 0
        return learner.walk_subtree(plan, node, state, out)

    return test


def node_test(plan: Partition, learner: Learner, leaves: Leaves) -> TestNode:
    """Return a ``TestNode`` that passes the models of all folds of a node to ``leaves``.

    A compiled learner tests the folds of a node in one call, unless scorers need its estimators.
    """
    if isinstance(leaves, ModelLeaves) and (numbers := leaves.numbers) is not None:
        assert isinstance(learner, CompiledLearner)
        out = np.empty((plan.n_rows, learner.n_outputs), learner.dtype)

        def collect(node: Node, state: Any, start: int, stop: int) -> int:
            if stop < plan.rows(node)[1]:
                return 0
            models = numbers[node.first : node.last]
            return learner.walk_subtree(plan, node, state, out, models=models)

        return collect
    if isinstance(learner, CompiledLearner | SharedLearner) and not leaves.at_leaf:
        assert leaves.outputs is not None
        return kernel_test(plan, learner, leaves.outputs.array)

    def test(node: Node, state: Any, start: int, stop: int) -> int:
        if node.n_folds == 1 and not leaves.at_leaf:
            assert leaves.outputs is not None
            learner.outputs(state, start, stop, leaves.outputs.array)
            return 0
        if stop < plan.rows(node)[1]:
            return 0  # further rows of the node follow, and scorers need all rows of a fold
        return walk_to_leaves(plan, learner, leaves.test_leaf, node, state)

    return test
