"""The base of all plans that train models incrementally, by ``partial_fit`` or by kernels."""

from abc import abstractmethod
from collections.abc import Generator
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.base import is_regressor

from optuna_treecv._kernels.order import random_order
from optuna_treecv.caching.caches import AnyCache
from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.caches import COUNT_BYTES
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import is_ours
from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.caching.keys import SCORED_BY
from optuna_treecv.caching.keys import under_configuration
from optuna_treecv.caching.results import ScoreCache
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import ModelSum
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import ResultSpec
from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import specs_of_scores
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Work
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.core.routing import find_empty_fold
from optuna_treecv.engines.treecv.conditions import free_parameters_of
from optuna_treecv.engines.treecv.conditions import most_updates
from optuna_treecv.engines.treecv.conditions import n_epochs_of
from optuna_treecv.engines.treecv.conditions import NO_PARTIAL_FIT
from optuna_treecv.engines.treecv.conditions import preprocessing_of
from optuna_treecv.engines.treecv.conditions import why_in_memory
from optuna_treecv.engines.treecv.conditions import why_no_chain
from optuna_treecv.engines.treecv.conditions import why_not_incremental
from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learner import ModelTrainer
from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import MOST_ROWS
from optuna_treecv.engines.treecv.learners.compiled import settings_key
from optuna_treecv.engines.treecv.learners.from_estimator import forget_seeds
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.engines.treecv.learners.from_estimator import make_pipeline_learner
from optuna_treecv.engines.treecv.leaves import Leaves
from optuna_treecv.engines.treecv.leaves import ModelLeaves
from optuna_treecv.engines.treecv.shared_learner import SharedLearner
from optuna_treecv.engines.treecv.walk import TestedBlock
from optuna_treecv.estimators.base import as_given
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import divergence_advice
from optuna_treecv.estimators.base import is_grown
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.incremental import is_incremental
from optuna_treecv.estimators.incremental import why_fit_differs
from optuna_treecv.preprocessing.decisions import compiled_part
from optuna_treecv.preprocessing.parts import ModelsFrom
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import Splits
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer


class Bound(NamedTuple):
    """A learner for a candidate and the rows of a repeat, with the keys of its results.

    Attributes
    ----------
    learner : Learner
    rows : bytes
        The key of the prepared rows.
    settings : bytes
        The key of the learner's settings and the method; empty if results cannot be cached.
    folds : bytes
        The key of the folds.
    targets : (bytes, bool)
        The key of the targets and their weights, and whether this key is also valid in later
        processes.
    """

    learner: Any
    rows: bytes
    settings: bytes
    folds: bytes
    targets: tuple[bytes, bool]

    @property
    def key(self) -> bytes:
        """A digest of rows, folds, settings and method; empty if results cannot be cached."""
        return digest(self.rows, self.folds, self.settings) if self.settings else b""


class TrainedPlan(Plan):
    """A plan that trains models incrementally.

    Parameters
    ----------
    request : Request
    **capabilities : Any
        Fields of ``Capabilities`` whose values differ from the defaults of incremental plans.
    """

    def __init__(self, request: Request, **capabilities: Any) -> None:
        super().__init__(request)
        estimator = request.estimator
        before = self.preprocessing = preprocessing_of(request)
        n_epochs = n_epochs_of(request, self.name)
        models_from = ModelsFrom.PARTIAL_FIT_IN_ORDER
        self.layout, self.steps_name = layout_for(estimator), b""
        if not isinstance(before, str):
            self.layout, self.steps_name = before.layout, before.name
            models_from = ModelsFrom.KERNEL if before.steps.is_compiled else ModelsFrom.PARTIAL_FIT
        self.reason = _describe_reason(request)
        self.capabilities = Capabilities(
            free_parameters=free_parameters_of(request),
            is_incremental=True,
            keeps_outputs=True,
            n_epochs=n_epochs,
            in_memory_reason=why_in_memory(request, n_epochs),
            models_from=models_from,
        )
        self.capabilities = replace(self.capabilities, **capabilities)

    @cached_property
    def responses(self) -> tuple[str, ...]:
        """The response methods that losses, pooled scores and row scores need."""
        request, metrics = self.request, list[Metric]()
        if request.scoring.metrics:
            of_folds = [m for m in request.scoring.metrics if not isinstance(m, Scorer)]
            metrics = [*of_folds, *request.scored_by_row]
        return tuple(dict.fromkeys(response_of(m, request.estimator) for m in metrics))

    def check(self, candidate: Candidate) -> None:
        """Raise for invalid values of the parameters in which the candidates of a batch differ."""
        last = candidate if isinstance(candidate, CompiledEstimator) else candidate[-1]
        last.check_parameters(but=last.get_params(deep=False).keys() - last.lane_parameters)

    def prepare(self) -> None:
        """Prepare the rows of the first repeat."""
        self.rows(self.repeats[0])

    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the rows of a repeat, prepared for the learner.

        The rows of the first repeat are cached. The rows of other repeats are prepared again in
        each call, unless an earlier copy is still in use.
        """
        make, before = self.request.cross_validation.rows_in, self.preprocessing
        if isinstance(before, str):
            return make(self.layout, repeat, needs_keys=True)
        with before.steps.naming():
            return make(self.layout, repeat, before.steps.transform, before.name, needs_keys=True)

    def learner(
        self,
        candidate: Candidate,
        rows: PreparedRows,
        responses: tuple[str, ...] = (),
        repeat: Repeat | None = None,
    ) -> Learner:
        """Return the learner that trains a candidate on prepared rows.

        Each ``random_state=None`` in the candidate is replaced by the seed of the evaluation plus
        the index of the repeat.
        """
        seed = self.request.settings.seed + (0 if repeat is None else repeat.number)
        if isinstance(self.preprocessing, str):
            return make_learner(candidate, rows, responses, seed)
        return make_pipeline_learner(self.preprocessing.steps, candidate, rows, responses, seed)

    def bind(self, candidate: Candidate, repeat: Repeat) -> Bound:
        """Return the learner of a candidate for the rows of a repeat, with its keys."""
        rows = self.rows(repeat)
        learner = self.learner(candidate, rows, self.responses, repeat)
        row_keys = self.request.cross_validation.row_keys
        name, targets = row_keys(self.layout, rows, repeat.number, self.steps_name)
        if isinstance(learner, CompiledLearner) and learner.weights_of_classes:
            _check_class_weights(learner, repeat.cut)
        folds = repeat.key
        if not isinstance(candidate, CompiledEstimator):
            folds = under_configuration(folds)
        return Bound(learner, name, _make_settings_key(learner, self.name), folds, targets)

    def at_leaf(self, candidate: Candidate, learner: Learner) -> list[int]:
        """Return the indices of the metrics that need the fitted estimator, not only outputs."""
        return [
            number
            for number, metric in enumerate(self.request.scoring.metrics)
            if not needs_only_outputs(candidate, learner, metric)
        ]

    def group(self, candidate: Candidate, bound: Bound) -> bytes:
        """Return a key that the candidates of a batch share; empty if no batch is possible."""
        learner = bound.learner
        if not self.capabilities.shared_parameters or not isinstance(learner, CompiledLearner):
            return b""
        cuts_phases = self.request.settings.is_early
        if (cuts_phases and not learner.phases_may_be_cut) or self.at_leaf(candidate, learner):
            return b""
        settings = settings_key(learner, MOST_ROWS, *learner.lane_parameters)
        return digest(bound.rows, settings, encode(self.n_epochs))

    def leaves_for(
        self,
        candidate: Candidate,
        repeat: Repeat,
        learner: Learner,
        outputs: ArrayThenCount | None = None,
    ) -> Leaves:
        """Return the ``Leaves`` that collect and score the outputs for a candidate."""
        cut, metrics = repeat.cut, self.request.scoring.metrics
        tested = cut.prepared(cut.tested_from(0, cut.n_folds)) if isinstance(cut, Splits) else None
        at_leaf = self.at_leaf(candidate, learner)
        scorers = [metrics[number] for number in at_leaf]
        if isinstance(learner, Adapter) and all(getattr(s, "is_made", False) for s in scorers):
            learner = learner.without_steps()  # these scorers only use predictions
        return Leaves(repeat.plan, learner, candidate, metrics, at_leaf, tested, outputs)

    def in_given_order(
        self, candidate: Candidate, learner: Learner, outputs: np.ndarray, method: str
    ) -> np.ndarray:
        """Compute predictions from outputs, and return them in the order of the rows of X."""
        rows = learner.rows
        prepared, labels = learner.respond(outputs, method), None
        if method == "predict" and not is_regressor(candidate):
            if not np.all(np.isfinite(outputs)):
                raise ValueError(f"{candidate!r} diverges; {divergence_advice(candidate)}")
            prepared, labels = prepared.astype(np.intp), rows.classes
            if labels is not None and np.any(prepared < 0):
                raise ValueError(
                    f"{name_of(candidate)} must predict classes of y, but either it has not been "
                    "trained on any class yet, or it predicts another label."
                )
        return in_given_order(prepared, rows.order, labels)

    def finish_estimator(self, candidate: Candidate, fitted: Any) -> Any:
        """Finish an estimator that was trained on all rows: set names, and reset its seeds.

        Raise if it has diverged, in which case ``fitted`` is None.
        """
        names = self.request.data.feature_names()
        if fitted is None:
            raise ValueError(
                f"{candidate!r} diverges if trained on all rows; {divergence_advice(candidate)}"
            )
        if not isinstance(self.preprocessing, str):
            # A copy, because refitting its transformers must not change those of the trials.
            fitted = deepcopy(fitted)
        forget_seeds(fitted, candidate)
        if names is not None and isinstance(candidate, CompiledEstimator):
            fitted.feature_names_in_ = names  # other estimators have set them in partial_fit
        return as_given(fitted)


class WalkedPlan(TrainedPlan):
    """A plan that trains models in this process, and reports folds from left to right.

    Attributes
    ----------
    shares_models : bool
        Whether compiled learners share models through a cache.
    """

    shares_models = False

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the outputs, or of the scores if these need more than outputs."""
        bound = self.bind(candidate, repeat)
        key, cache = bound.key.hex(), self._cache(candidate)
        if not bound.settings:
            return Results(key, bound.rows.hex(), bound=bound)
        group, n_bytes = self.group(candidate, bound), output_bytes(bound.learner, repeat)
        names, metrics = (bound.rows, bound.folds, bound.settings), self.request.scoring.metrics
        specs: Mapping[int, ResultSpec] = {}
        if cache is not None and not self.at_leaf(candidate, bound.learner):
            outputs_key = Key(*names, b"outputs", n_bytes)
            read = partial(self._read, candidate, repeat, bound.learner)
            specs = {repeat.cut.n_folds: ResultSpec(outputs_key, cache, read, is_optional=True)}
        elif cache is not None and all(metric.is_registered for metric in metrics):
            of_metrics = [encode(metric.name) for metric in metrics]
            settings = digest(bound.settings, SCORED_BY, bound.targets[0], *of_metrics)
            store = cache if bound.targets[1] else cache.memory
            stored = ScoreCache(store, bound.rows, bound.folds, settings=settings)
            specs = specs_of_scores(self.request, repeat, stored)
        return Results(key, bound.rows.hex(), group, specs, n_bytes, bound)

    def _cache(self, candidate: Candidate) -> AnyCache | None:
        """Return the cache of models; None if the average of the fold models is requested."""
        cross_validation = self.request.cross_validation
        return None if self.request.wants_average else cross_validation.shared.cache_for(candidate)

    def _read(
        self, candidate: Candidate, repeat: Repeat, learner: Learner, memory: np.ndarray
    ) -> TestedFolds:
        """Return the tested folds of a repeat, whose outputs are read from ``memory``."""
        leaves = self.leaves_for(candidate, repeat, learner)
        assert leaves.outputs is not None
        leaves.outputs.take(memory)
        # A negative count marks outputs that a batch of another process computed.
        n_updates = leaves.outputs.n_updates
        root, n_uncounted = repeat.plan.root, max(0, -n_updates)
        rows, called = leaves.tested(root), leaves.called
        return TestedFolds(0, root, abs(n_updates), rows, called=called, n_uncounted=n_uncounted)

    @abstractmethod
    def test_folds(self, training: "Training") -> Generator[TestedBlock]:
        """Test each fold with a model that was not trained on its rows.

        Yields
        ------
        TestedBlock
            A block whose folds have all been tested.
        """

    def early(self, training: "Training") -> Generator[RowProgress]:
        """Yield early scores before folds are tested; this default yields none."""
        yield from ()

    def evaluate(self, work: Work) -> Generator[Event]:
        """Train the models of a candidate, test the folds, and yield the results."""
        (candidate,), (sink,), repeat, folds, watch, (bound,) = work
        learner, cache = bound.learner, self._cache(candidate)
        sink.cost.seconds_prepare = learner.rows.seconds
        # For early scores, a shared learner caches states in the middle of phases. A learner whose
        # phases must not be cut has no such states. Models are not shared if the rows are on disk,
        # because a sweep trains them in another order than the recursion.
        may_share = learner.phases_may_be_cut or not self.request.settings.is_early
        may_share &= self.shares_models and isinstance(learner, CompiledLearner)
        if cache is not None and may_share and learner.rows.file is None:
            root = self.request.cross_validation.shared.root(bound.rows)
            learner = SharedLearner(learner, cache, root)
        leaves = self.leaves_for(candidate, repeat, learner)
        check_has_row_scores(self.request, leaves, learner)
        training = Training(self, repeat, learner, leaves)
        try:
            if watch is not None:
                yield from self.early(training)
            if not folds:
                return
            training.is_training = True
            for block, n_updates in self.test_folds(training):
                training.n_walked += n_updates
                n_needed, training.n_needed = n_updates + training.n_needed, 0
                yield TestedFolds(
                    0,
                    block,
                    n_needed,
                    leaves.tested(block),
                    called=leaves.called,
                    record=leaves.outputs if block.last == repeat.cut.n_folds else None,
                )
            yield from training.models
        finally:  # threads may have finished further blocks since the evaluation was stopped
            sink.cost.n_updates += training.n_updates
            if isinstance(cache, StoredModelCache):
                cache.end(sink.may_recur)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> np.ndarray:
        """Return the prediction for each row by a model that was not trained on the row."""
        self.request.cross_validation.unused.warn(candidate, n_epochs=self.request.given_epochs)
        learner = self.learner(candidate, self.rows(repeat), (method,))
        leaves = Leaves(repeat.plan, learner)
        assert leaves.outputs is not None
        for _ in self.test_folds(Training(self, repeat, learner, leaves)):
            pass
        return self.in_given_order(candidate, learner, leaves.outputs.array, method)

    def fold_models(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Train the models of all folds, and return them in the order of the chunks.

        Linear models are stored as arrays, so that there may be as many as rows.
        """
        learner = self.learner(candidate, self.rows(repeat), (), repeat)
        leaves = ModelLeaves(repeat.plan, learner, candidate)
        for _ in self.test_folds(Training(self, repeat, learner, leaves)):
            pass
        return leaves.collected(partial(self.finish_estimator, candidate))

    def fit(self, candidate: Candidate) -> Any:
        """Train on all rows in prepared order; further epochs are in random order."""
        rows = self.rows(self.repeats[0])
        learner = self.learner(candidate, rows)
        state = learner.start()
        learner.update(state, slice(0, self.request.data.n_rows))
        order = np.empty(len(rows.order), np.uint32)
        for epoch in range(1, self.n_epochs):
            random_order(self.request.settings.seed, 0, len(order), epoch * len(order), order)
            assert isinstance(learner, ModelTrainer)
            learner.replay(state, order)
        return self.finish_estimator(candidate, learner.estimator(state))


@dataclass(eq=False)
class Training:
    """The evaluation of one candidate on one repeat.

    Attributes
    ----------
    plan : WalkedPlan
    repeat : Repeat
    learner : Learner
    leaves : Leaves
        Collects the outputs of the models.
    n_walked : int
        The number of row updates along the walk, including updates that a cached model saves.
    n_needed : int
        The number of row updates for early scores that the tree needs as well and that have not
        yet been reported with a block.
    is_training : bool
        Whether training has begun. From then on, a ``SharedLearner`` counts the row updates.
    first_pass : FirstPass or None
        The first pass over the rows, if early scores were requested.
    models : list of ModelSum
        The sum of the fold models (a single element), if their average is requested.
    """

    plan: WalkedPlan
    repeat: Repeat
    learner: Learner
    leaves: Leaves
    n_walked: int = 0
    n_needed: int = 0
    is_training: bool = False
    first_pass: Any = None
    models: list[ModelSum] = field(default_factory=list)

    @property
    def n_updates(self) -> int:
        """The number of row updates so far."""
        if self.is_training and isinstance(self.learner, SharedLearner):
            return self.learner.n_updates
        return self.n_walked


def _make_settings_key(learner: Learner, method: str) -> bytes:
    """Return the key of a learner's settings and the method; empty if there is no such key."""
    try:
        if isinstance(learner, CompiledLearner):
            settings = settings_key(learner, MOST_ROWS)
        elif isinstance(learner, Adapter):
            settings = encode(learner.fresh) + encode(learner.response_methods)
            if learner.rows.file is not None:  # each call of partial_fit gets a piece of a phase
                settings += encode(learner.rows.file.n_block)
        else:
            return b""
    except NoKey:
        return b""
    return digest(settings, method.encode())


def output_bytes(learner: Learner, repeat: Repeat) -> int:
    """Return the size in bytes of the outputs for all rows of a repeat, including their count."""
    item_size = np.dtype(learner.dtype).itemsize
    return repeat.plan.n_rows * learner.n_outputs * item_size + COUNT_BYTES


def _describe_reason(request: Request) -> str:
    """Return the reason why "auto" trains an estimator incrementally."""
    before = preprocessing_of(request)
    if isinstance(before, str):
        slowly = f"; its steps run in Python, because {before}" if before else ""
        return f"{name_of(request.estimator)} has partial_fit{slowly}"
    last = name_of(last_step(request.estimator))
    if before.steps.is_compiled:
        return f"its steps run inside the compiled {last}"
    slowly = f", because {before.why_python}" if before.why_python else ""
    return (
        f"{last} has partial_fit; the other steps are evaluated once for all folds or run in "
        f"Python{slowly}"
    )


def _check_class_weights(learner: CompiledLearner, cut: Cut) -> None:
    """Raise if class weights of 0 leave a fold without training rows of positive weight."""
    if learner.weights_of_classes is None or all(learner.weights_of_classes):
        return
    assert learner.weights is not None
    have_weight = np.zeros(len(learner.weights), bool)
    have_weight[learner.rows.order] = learner.weights > 0
    number = find_empty_fold(cut, cut.count(have_weight)[0])
    if number is not None:
        raise ValueError(
            "class_weight must be above 0 for at least one training row of each fold, but is 0 "
            f"for all training rows of fold {number}; use stratified folds instead."
        )


def check_has_row_scores(request: Request, leaves: Leaves, learner: Learner) -> None:
    """Raise if ``row_losses`` is requested for a scorer that gives one value per fold."""
    if not (request.settings.row_losses and request.needs_rows):
        return
    metric, classes = request.scoring.first, learner.rows.classes
    has_row_values = isinstance(metric, Loss) or fold_metric(metric, classes) is not None
    at_leaf = request.scoring.optimized[0] in leaves.at_leaf
    if leaves.outputs is None or not has_row_values or at_leaf or not request.has_row_scores:
        raise ValueError(
            f"row_losses must be False for {name_of(request.estimator)} with "
            f"scoring={request.scoring.name!r}, which gives one value per fold, but no value per "
            "row; use a loss, such as 'error' or 'squared_error', instead."
        )


def needs_only_outputs(estimator: Any, learner: Learner, metric: Metric) -> bool:
    """Return whether a metric can be computed from outputs, without the fitted estimator.

    A user's own scorer may use more than predictions, and a user's own estimator may override how
    predictions are computed.
    """
    if not isinstance(metric, Scorer):
        return True
    has_outputs = isinstance(learner, CompiledLearner | SharedLearner) and learner.has_outputs
    return metric.is_made and has_outputs and is_ours(type(compiled_part(estimator)))


def declined(request: Request, why_not: str, warns: bool = True) -> Declined:
    """Return a ``Declined`` with the reason ``why_not`` for not training incrementally."""
    estimator = request.estimator
    fit = "method='fit' or " if hasattr(estimator, "fit") else ""
    advice = (
        "cv must be a splitter whose training sets are all rows outside the test set, or all rows "
        f"before it, but {why_not}; use {fit}method='standard' instead."
    )
    if is_grown(estimator):
        advice = (
            f"method must be 'auto', 'forest', 'fit' or 'standard' for {name_of(estimator)}, "
            "because the splits of its nodes are searched again for each training set, got "
            f"{request.settings.method!r}."
        )
    # Warn if the estimator could be trained incrementally on other splits or without weights.
    warning = why_not if warns and not why_not_incremental(request) else ""
    is_tree = is_grown(last_step(estimator))
    is_near = why_not != NO_PARTIAL_FIT and not (is_tree and is_grown(estimator))
    relevance, offer = 2 if is_near else 0, _suggest_tree(request, why_not)
    return Declined(why_not, advice, free_parameters_of(request), relevance, warning, offer)


def _suggest_tree(request: Request, why_not: str) -> str:
    """Return a sentence that suggests the tree or the chain if either is possible; else ""."""
    cut, estimator = request.cross_validation.repeats[0].cut, request.estimator
    if isinstance(cut, Splits) and cut.grows and why_not == why_no_chain(request):
        return (
            " With method='treecv', one model is trained forward through time, once on each row "
            "(the results call this method 'chain'); the models then differ from those of fit."
        )
    in_tree = isinstance(cut, Folds) and request.cross_validation.n_folds > 1
    if not in_tree or why_not != why_fit_differs(estimator):
        return ""
    if not is_incremental(estimator) and isinstance(preprocessing_of(request), str):
        return ""
    return (
        " With method='treecv' or n_epochs, the tree takes at most "
        f"{most_updates(request.cross_validation):,} row updates per epoch; the models are then "
        "trained by passes of partial_fit, and differ from those of fit."
    )
