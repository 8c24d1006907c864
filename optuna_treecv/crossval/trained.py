"""What all engines have in common that train models further, by ``partial_fit`` or compiled."""

from abc import abstractmethod
from collections.abc import Collection
from collections.abc import Generator
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import is_regressor
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline

from optuna_treecv._kernels.order import random_order
from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import Engine
from optuna_treecv.crossval.engine import in_given_order
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import RowScores
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.routing import fold_without_rows
from optuna_treecv.crossval.tree_results import Results
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.base import MOST_EPOCHS
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import divergence_advice
from optuna_treecv.learners.from_estimator import forget_seeds
from optuna_treecv.learners.incremental import check_incremental
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.incremental import refused_setting
from optuna_treecv.learners.names import as_given
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.one_pass import why_fit_differs
from optuna_treecv.learners.steps.decisions import ALIKE
from optuna_treecv.learners.steps.decisions import COMPILED
from optuna_treecv.learners.steps.decisions import compiled_part
from optuna_treecv.learners.steps.decisions import decisions_for
from optuna_treecv.learners.steps.decisions import IN_ROW
from optuna_treecv.learners.steps.decisions import NAIVE_BAYES
from optuna_treecv.learners.steps.decisions import ONCE
from optuna_treecv.learners.steps.decisions import split
from optuna_treecv.learners.steps.decisions import why_rows_age
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.learners.without_effect import trained_parts
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Splits
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.keys import under_configuration
from optuna_treecv.sharing.prefix import Prefix
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import ModelTrainer
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import TestNode
from optuna_treecv.tree.walk import walk_to_leaves

#: Why an estimator that only has ``fit`` is not trained further.
NO_PARTIAL_FIT = "it has no partial_fit"


class Trained(Engine):
    """An engine that trains models further."""

    trains_further = True

    def concerns(self, estimator: Any) -> bool:
        """Return whether it can be trained further."""
        return is_incremental(last_step(estimator))

    def why(self, job: Job) -> str:
        """Return why "auto" trains an estimator further."""
        front = job.front
        if isinstance(front, str):
            slowly = f"; its steps run in Python, since {front}" if front else ""
            return f"{name_of(job.estimator)} has partial_fit{slowly}"
        last = name_of(last_step(job.estimator))
        if front.steps.is_compiled:
            return f"its steps run with the compiled {last}"
        slowly = f", since {front.why_python}" if front.why_python else ""
        return f"{last} has partial_fit; its steps are done once or run in Python{slowly}"

    def refusal(self, job: Job, why_not: str) -> str:
        """Return the error where splits cannot be trained further."""
        fit = "method='fit' or " if hasattr(job.estimator, "fit") else ""
        return (
            "cv must be a splitter that trains each model on all rows that it does not test, or "
            f"on growing first parts of the rows, since the tree does, but {why_not}; "
            f"{fit}method='standard' would be right."
        )

    def check(self, job: Job) -> None:
        """Refuse an estimator that cannot be trained further, or with wrong parameters."""
        estimator, searched = job.estimator, job.searched
        parts = split(estimator)
        if isinstance(parts, str):
            try:
                check_incremental(estimator, job.of_class)
            except ValueError as error:
                raise ValueError(f"{error} With method='fit' each fold is fitted anew.") from error
            if isinstance(estimator, CompiledEstimator):
                estimator.check_parameters(but=searched)
        elif isinstance(parts.last, CompiledEstimator):
            n_prefix = len(parts.prefix)
            of_last = [name[n_prefix:] for name in searched if name.startswith(parts.prefix)]
            parts.last.check_parameters(but=of_last)

    def free_parameters(self, job: Job) -> Collection[str]:
        """Return those of lanes, and all where the last step has no ``partial_fit``.

        There are none of a user's own class, which may decide by their values.
        """
        estimator, last = job.estimator, last_step(job.estimator)
        if isinstance(last, CompiledEstimator):
            return lane_parameters(estimator) if is_ours(type(last)) else ()
        is_open = hasattr(last, "partial_fit") or isinstance(last, HistTree)
        return () if is_open or as_given(last) is not last else estimator.get_params()

    def epochs(self, job: Job) -> int:
        """Return the epochs that the settings ask for, or the estimator itself."""
        super().epochs(job)
        estimator = job.estimator
        of_job, of_estimator = job.given_epochs or 1, _epochs_of(estimator, job.searched)
        if of_job > 1 and of_estimator > 1:
            raise ValueError(
                f"n_epochs must be given once, got n_epochs={of_job} and {name_of(estimator)} "
                f"with n_epochs={of_estimator}."
            )
        if of_job > 1 and any(name.rpartition("__")[2] == "n_epochs" for name in job.searched):
            raise ValueError(f"n_epochs must be None where it is searched, got n_epochs={of_job}.")
        n_epochs = max(of_job, of_estimator)
        last, report = last_step(estimator), job.task.settings.report
        if n_epochs == 1:
            return 1
        if isinstance(last, CompiledEstimator) and not last.has_epochs:
            raise ValueError(
                f"n_epochs must be 1 for {name_of(estimator)}, whose model is exact after one "
                f"pass, got {n_epochs}."
            )
        if self.name == "progressive":
            raise ValueError(
                "n_epochs must be 1 with method='progressive', which tests each row before the "
                f"model has seen it, got {n_epochs}."
            )
        if job.task.settings.is_early:
            raise ValueError(
                "report must be 'folds', 'mean' or None with several epochs, since rows that are "
                f"replayed have been seen before, got report={report!r} with n_epochs={n_epochs}."
            )
        return n_epochs

    def why_in_memory(self, job: Job) -> str:
        """Return why rows are not read forwards, a clause; "" if they are."""
        if job.task.settings.order == "random":
            return "order='random' trains on rows in orders of their own"
        if job.n_epochs > 1:
            return "several epochs read rows again in any order"
        parts, X = split(job.estimator), job.task.data.X
        if not isinstance(parts, str) and not {*parts.kinds.values()} <= {COMPILED}:
            return "its steps are done for all rows at once"
        are_numbers = sparse.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind in "biuf")
        if compiled_part(job.estimator) is None and not are_numbers:
            return "its partial_fit gets rows in the form in which they are given"
        return ""

    def check_values(self, job: Job) -> None:
        """Refuse wrong values of the parameters in which learners on lanes may differ."""
        estimator = job.estimator
        last = estimator if isinstance(estimator, CompiledEstimator) else estimator[-1]
        fixed = last.get_params(deep=False).keys() - last.lane_parameters
        last.check_parameters(but=fixed)

    def share(self, learner: Learner, cache: AnyCache, root: Prefix) -> Learner:
        """Return the learner that shares models with other evaluations of the same rows.

        Parameters
        ----------
        learner : Learner
        cache : ModelCache or StoredModelCache
            Where the models are kept.
        root : Prefix
            The prefix before the first prepared row.
        """
        return learner

    @abstractmethod
    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Test each fold with a model that has not seen its rows.

        Parameters
        ----------
        repeat : Repeat
            The folds, and the tree over them.
        learner : Learner
            Bound to the prepared rows.
        leaves : Leaves
            Takes what the models say.
        n_jobs : int
            Threads.

        Yields
        ------
        TestedBlock
            A block once all its folds are tested.
        """

    def walk(self, training: "Training") -> Generator[TestedBlock]:
        """Test the folds of a repeat."""
        n_threads = training.job.task.settings.n_threads
        return self.test_folds(training.repeat, training.learner, training.leaves, n_threads)

    def early(self, training: "Training") -> Generator[Early]:
        """Yield what is known before the folds are."""
        yield from ()

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[Early | TestedFolds]:
        """Bind the estimator to the prepared rows; find kept results or train models."""
        rows = job.rows(repeat)
        job.effort.seconds_prepare = rows.seconds
        bound = bind(job, repeat, rows)
        learner = bound.learner
        if job.cache is not None:
            if repeat.number == 0:
                job.fingerprint = bound.rows.hex()
                job.key = "" if bound.results is None else bound.results.name
            root = job.task.shared.root(bound.rows)
            # A shared learner keeps the states after parts of phases, at which early scores are
            # asked for. A learner that is trained on whole phases has no such states.
            # Models of rows in a file are not shared: they wait for rows in another order.
            may_share = learner.phases_may_be_cut or not job.task.settings.is_early
            if may_share and rows.file is None:
                learner = self.share(learner, job.cache, root)
        leaves = self.leaves_for(job, repeat, learner)
        if job.task.settings.row_losses and job.needs_rows:
            check_has_row_scores(job, leaves, learner)
        training = Training(job, repeat, learner, leaves, bound.results)
        return self._events(training, watch is not None)

    def is_kept(self, job: Job) -> bool:
        """Return whether an evaluation of a single repeat would only find results."""
        repeat = job.repeats[0]
        bound = bind(job, repeat, job.rows(repeat))
        leaves = self.leaves_for(job, repeat, bound.learner)
        return bound.results is not None and bound.results.take(leaves) is not None

    def leaves_for(self, job: Job, repeat: Repeat, learner: Learner) -> Leaves:
        """Return what is kept at the leaves and scored."""
        cut, metrics = repeat.cut, job.scoring.metrics
        tested = cut.prepared(cut.tested_from(0, cut.n_folds)) if isinstance(cut, Splits) else None
        at_leaf = [
            number
            for number, metric in enumerate(metrics)
            if not outputs_are_enough(job.estimator, learner, metric)
        ]
        scorers = [metrics[number] for number in at_leaf]
        if isinstance(learner, Adapter) and all(getattr(one, "is_made", False) for one in scorers):
            learner = learner.without_steps()  # such scorers look at predictions alone
        return Leaves(repeat.plan, learner, job.estimator, metrics, at_leaf, tested)

    def _events(self, training: "Training", is_early: bool) -> Generator[Early | TestedFolds]:
        effort, leaves = training.job.effort, training.leaves
        try:
            if is_early:
                yield from self.early(training)
            n_needed = training.take_results()
            if n_needed is not None:
                for part in training.repeat.parts:
                    responses = training.responses(part)
                    yield TestedFolds(
                        part, n_needed, leaves.tested, leaves.called, responses=responses
                    )
                    n_needed = 0
            else:
                training.is_training = True
                for block, n_updates in self.walk(training):
                    training.n_walked += n_updates
                    n_updates += training.n_needed
                    training.n_needed = 0
                    responses = training.responses(block)
                    yield TestedFolds(
                        block, n_updates, leaves.tested, leaves.called, responses=responses
                    )
        finally:  # what had begun when the job was left is done too
            effort.n_updates = training.n_updates
        training.keep_results(effort.n_needed, effort.seconds)

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the models of the folds."""
        learner = job.learner(job.rows(), (method,))
        leaves = Leaves(repeat.plan, learner)
        assert leaves.outputs is not None
        for _ in self.test_folds(repeat, learner, leaves, job.task.settings.n_threads):
            pass
        return self.in_given_order(job, learner, leaves.outputs.array, method)

    def in_given_order(
        self, job: Job, learner: Learner, outputs: np.ndarray, method: str
    ) -> np.ndarray:
        """Return the responses that follow from outputs, in the order of the rows as given."""
        estimator, rows = job.estimator, learner.rows
        prepared, labels = learner.respond(outputs, method), None
        if method == "predict" and not is_regressor(estimator):
            if not np.all(np.isfinite(outputs)):
                raise ValueError(f"{estimator!r} diverges; {divergence_advice(estimator)}")
            prepared, labels = prepared.astype(np.intp), rows.classes
            if labels is not None and np.any(prepared < 0):
                raise ValueError(
                    f"{name_of(estimator)} predicts no class where it has learned none, or a "
                    "label that is no class of y."
                )
        return in_given_order(prepared, rows.order, labels)

    def refit(self, job: Job) -> Any:
        """Train on the rows in prepared order, and in further epochs in random orders."""
        task, rows = job.task, job.rows()
        learner = job.learner(rows)
        state = learner.start()
        learner.update(state, slice(0, task.data.n_rows))
        order = np.empty(len(rows.order), np.uint32)
        for epoch in range(1, job.n_epochs):
            random_order(task.settings.seed, 0, len(order), epoch * len(order), order)
            assert isinstance(learner, ModelTrainer)
            learner.replay(state, order)
        return self.as_refitted(job, learner.estimator(state))

    def as_refitted(self, job: Job, fitted: Any) -> Any:
        """Return an estimator that was trained on all rows as its user expects it."""
        estimator, names = job.estimator, job.task.data.feature_names()
        if fitted is None:
            raise ValueError(f"{estimator!r} diverges on all rows; {divergence_advice(estimator)}")
        if not isinstance(job.front, str):
            # Whoever fits its steps again must not change those of trials.
            fitted = deepcopy(fitted)
        forget_seeds(fitted, estimator)
        if names is not None and isinstance(estimator, CompiledEstimator):
            fitted.feature_names_in_ = names  # other estimators have seen the names
        return as_given(fitted)


class Training:
    """The training of one estimator on one repeat.

    Parameters
    ----------
    job : Job
    repeat : Repeat
    learner : Learner
        Bound to the prepared rows.
    leaves : Leaves
        Takes what the models say.
    results : Results or None
        Where the results are kept; None if the estimator has no key.

    Attributes
    ----------
    n_before : int
        The rows that were trained on before, together with other jobs.
    n_walked : int
        The rows of the phases that were walked.
    n_needed : int
        Those of them that the tree needs and that no block has counted yet.
    is_training : bool
        Whether models are trained, so that a ``SharedLearner`` counts the rows.
    first_pass : FirstPass or None
        What the tree has done before its folds.
    """

    def __init__(
        self, job: Job, repeat: Repeat, learner: Learner, leaves: Leaves, results: Results | None
    ) -> None:
        self.job = job
        self.repeat = repeat
        self.learner = learner
        self.leaves = leaves
        self.results = results
        self.ahead: Ahead | None = job.ahead.pop(repeat.number, None)
        self.n_walked = self.n_needed = 0
        self.n_before = 0
        if self.ahead is not None and self.ahead.since is not None:
            job.effort.n_ahead, job.ahead_since = self.ahead.n_updates, self.ahead.since
        elif self.ahead is not None:
            self.n_before = self.ahead.n_updates
        self.is_training = False
        self.first_pass: Any = None

    @property
    def n_updates(self) -> int:
        """The rows trained on so far."""
        if self.is_training and isinstance(self.learner, SharedLearner):
            return self.n_before + self.learner.n_updates
        return self.n_before + self.n_walked

    def take_results(self) -> int | None:
        """Fill the leaves with results that are there, and return the row updates that they took.

        Return None if models must be trained.
        """
        if self.results is None:  # the estimator has no key
            return None
        if self.ahead is None:
            n_updates = self.results.take(self.leaves)
            if n_updates is not None and n_updates < 0:  # from the batch of another process
                n_updates = self.job.effort.n_ahead = -n_updates
            return n_updates
        # The other jobs went on without this one, as its early scores had lost. Its pruner has let
        # it live all the same.
        if self.leaves.at_leaf or self.ahead.outputs is None:
            return None
        self.leaves.outputs = self.ahead.outputs
        self.job.effort.seconds += self.ahead.seconds
        return self.ahead.outputs.n_updates

    def responses(self, tested: Node) -> dict[str, np.ndarray]:
        """Return the responses that outlive the evaluation, once the last folds are tested.

        A scorer that is called with each model leaves none.
        """
        job, leaves, folds = self.job, self.leaves, self.repeat.plan.root
        if tested.last < folds.last or not job.keeps or leaves.outputs is None:
            return {}
        enough = (m for i, m in enumerate(leaves.metrics) if i not in leaves.at_leaf)
        methods = {response_of(one, job.estimator) for one in enough}
        rows = leaves.tested(folds)
        kept = (one for one in job.keeps if one in methods)
        return {one: job.as_kept(rows.response(one), one) for one in kept}

    def keep_results(self, n_needed: int, seconds: float) -> None:
        """Keep the results; other processes may wait for them."""
        if self.results is None:
            return
        self.results.keep(self.leaves, n_needed, seconds)
        outputs = self.leaves.outputs
        if outputs is None or outputs.was_kept:
            return
        if self.job.is_leased and self.is_training:
            assert isinstance(self.job.cache, StoredModelCache)
            self.job.cache.write([self.results.to_write(outputs, seconds)])


@dataclass
class Ahead:
    """What was computed of a job together with others, before the job asks for it.

    Attributes
    ----------
    progressive, nested : RowScores or None
        The early scores, of the first pass until it lost and of 16 folds; None: not known.
    lost_at : int or None
        The step at which it lost against others; None if its folds are evaluated.
    n_updates : int
        The rows trained on.
    outputs : ArrayThenCount or None
        None: the folds were not evaluated, since the early scores lost; or only their ``scores``
        are here.
    scores : FoldScores or None
        Those of all folds, where they were found elsewhere.
    since : datetime or None
        The time from which on other processes may have found the outputs in the store; None if
        they are not written there.
    seconds : float
    """

    progressive: RowScores | None = None
    nested: RowScores | None = None
    lost_at: int | None = None
    n_updates: int = 0
    outputs: ArrayThenCount | None = None
    scores: FoldScores | None = None
    since: datetime | None = None
    seconds: float = 0.0

    @property
    def n_bytes(self) -> int:
        """What it takes while it waits."""
        outputs = 0 if self.outputs is None else self.outputs.memory.nbytes
        early = (one for one in (self.progressive, self.nested) if one is not None)
        of_folds = () if self.scores is None else self.scores
        return (
            outputs
            + sum(one.n_bytes for one in early)
            + sum(one.nbytes for one in of_folds if one is not None)
        )


class Bound(NamedTuple):
    """What a job is when it is bound to the rows of a repeat; it does not refer to the job.

    Attributes
    ----------
    learner : Learner
    rows : bytes
        The name of the rows.
    results : Results or None
        Where the results are kept; None if the estimator has no key.
    """

    learner: Any
    rows: bytes
    results: Any


def bind(job: Job, repeat: Repeat, rows: PreparedRows) -> Bound:
    """Return a job bound to the rows of a repeat.

    For the first repeat the job keeps it, because ``missing`` binds the job before ``start`` does.
    """
    if repeat.number == 0 and job.bound is not None:
        return job.bound
    learner = job.learner(rows, job.responses, repeat)
    name, targets = job.task.names_of(job.layout, rows, repeat.number, job.steps_name)
    if isinstance(learner, CompiledLearner) and learner.weights_of_classes:
        _check_masses_of_classes(learner, repeat.cut)
    folds = repeat.key
    if not isinstance(job.estimator, CompiledEstimator):
        folds = under_configuration(folds)
    results = Results.of(learner, job.engine.name, job.cache, name, folds, targets)
    bound = Bound(learner, name, results)
    if repeat.number == 0:
        job.bound = bound
    return bound


def _check_masses_of_classes(learner: CompiledLearner, cut: Cut) -> None:
    """Refuse weights of classes by which all training rows of a fold have the weight 0."""
    if learner.weights_of_classes is None or all(learner.weights_of_classes):
        return
    assert learner.weights is not None
    have_weight = np.zeros(len(learner.weights), bool)
    have_weight[learner.rows.order] = learner.weights > 0
    number = fold_without_rows(cut, cut.count(have_weight)[0])
    if number is not None:
        raise ValueError(
            "class_weight must give some training row of each fold a weight above 0, but is 0 for "
            f"the classes of all those of fold {number}; stratified folds, for example, would be "
            "right."
        )


def _epochs_of(estimator: Any, searched: Collection[str]) -> int:
    """Return the ``n_epochs`` of an estimator of this package, also inside of another one."""
    most = 1
    for prefix, part in trained_parts(estimator, "", searched):
        is_open = f"{prefix}n_epochs" in searched
        if not isinstance(part, CompiledEstimator) or not part.has_epochs or is_open:
            continue
        if not is_integer(part.n_epochs) or not 1 <= part.n_epochs <= MOST_EPOCHS:
            raise ValueError(
                f"{prefix}n_epochs must be an integer of 1 to {MOST_EPOCHS}, got "
                f"{part.n_epochs!r}."
            )
        most = max(most, int(part.n_epochs))
    return most


def lane_parameters(estimator: Any) -> tuple[str, ...]:
    """Return the parameters in which estimators on lanes may differ; none: it has no lanes."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.lane_parameters
    parts = split(estimator)
    if isinstance(parts, str) or not parts.is_compiled:
        return ()
    return tuple(parts.prefix + name for name in parts.last.lane_parameters)


def why_not_trained_further(job: Job) -> str:
    """Return why "auto" does not train an estimator further whatever the rows are, a clause."""
    estimator = job.estimator
    if isinstance(estimator, HistTree):
        return "its nodes are searched anew and not trained further"
    if job.task.settings.method == "treecv":
        return ""
    if not job.asks_for_passes:
        # The trials of a search over max_iter are all fitted, those with max_iter=1 too.
        others = [name for name in job.task.searched if name.endswith("max_iter")]
        if why := why_fit_differs(estimator, job.searched or others):
            return why
    if why := why_rows_age(estimator) or why_counts_differ(job):
        return why
    front = job.front
    if not isinstance(front, str) or is_incremental(estimator):
        return ""
    if isinstance(last_step(estimator), HistTree):
        return "the trees of all folds are grown together only without steps before them"
    return front or refused_setting(estimator) or NO_PARTIAL_FIT


def why_not_in_tree(job: Job) -> str:
    """Return why "auto" does not train an estimator further on these rows and weights."""
    if why := why_not_trained_further(job):
        return why
    if job.task.settings.method == "treecv" or not hasattr(job.estimator, "fit"):
        return ""
    return job.metadata.why_not_further(job.estimator)


def why_not_in_time(job: Job) -> str:
    """Return the reason why "auto" does not train one model forward through time; else "".

    ``fit`` of most learners reads the rows in random order, and the last rows in the order of time
    may count most. Only models that do not depend on the order of the rows are those of ``fit``.
    """
    estimator, last = job.estimator, last_step(job.estimator)
    is_asked = job.task.settings.method == "treecv" or not hasattr(estimator, "fit")
    # A search over the n_epochs of the estimator itself asks for no other model than fit.
    if is_asked or (job.asks_for_passes and not hasattr(estimator, "n_epochs")):
        return ""
    if not (isinstance(last, NAIVE_BAYES) or getattr(last, "has_epochs", True) is False):
        return (
            f"the model of {name_of(last)} depends on the order of the rows, and a chain trains "
            "it in the order of time"
        )
    if isinstance(estimator, Pipeline):
        for step in decisions_for(estimator, IN_ROW):
            if step.kind not in (ONCE, ALIKE):
                return (
                    f"a chain fits {name_of(step.step)} to the rows up to each time, and fit to "
                    "all training rows before the model"
                )
    return ""


def check_has_row_scores(job: Job, leaves: Leaves, learner: Learner) -> None:
    """Refuse to keep the scores of rows where a scorer is called for each fold."""
    metric, classes = job.scoring.first, learner.rows.classes
    follows = isinstance(metric, Loss) or fold_metric(metric, classes) is not None
    at_leaf = job.scoring.optimized[0] in leaves.at_leaf
    if leaves.outputs is None or not follows or at_leaf or not job.scores_rows(metric):
        raise ValueError(
            f"row_losses must be False for scoring={job.scoring.name!r} of "
            f"{name_of(job.estimator)}, which scores each fold as a whole; a loss, such "
            "as 'error' or 'squared_error', would be right."
        )


def outputs_are_enough(estimator: Any, learner: Learner, metric: Metric) -> bool:
    """Return whether a score follows from the outputs.

    A user's own scorer may look at more than predictions, and a user's own estimator may predict
    in its own way.
    """
    if not isinstance(metric, Scorer):
        return True
    can_answer = isinstance(learner, CompiledLearner | SharedLearner) and learner.can_answer
    return metric.is_made and can_answer and is_ours(type(compiled_part(estimator)))


def node_test(plan: Plan, learner: Learner, leaves: Leaves) -> TestNode:
    """Return the function that tests all folds of a node, of a compiled learner in one call."""

    def test(node: Node, state: Any, start: int, stop: int) -> int:
        if node.n_folds == 1 and not leaves.at_leaf:
            assert leaves.outputs is not None
            learner.outputs(state, start, stop, leaves.outputs.array)
            return 0
        if isinstance(learner, CompiledLearner | SharedLearner) and not leaves.at_leaf:
            assert leaves.outputs is not None
            return learner.walk_subtree(plan, node, state, leaves.outputs.array)
        if stop < plan.rows(node)[1]:
            return 0  # what is called with a model takes all rows of its fold
        return walk_to_leaves(plan, learner, leaves.test_leaf, node, state)

    return test


def why_counts_differ(job: Job) -> str:
    """Return why naive Bayes in the tree may be another model than its fit, a clause; else ""."""
    models = [part for _, part in trained_parts(job.estimator) if isinstance(part, NAIVE_BAYES)]
    if not models:
        return ""
    task, weights = job.task, job.metadata.weights
    if task.fewest_trained(of_classes=True)[1] == 0:
        return "a training set lacks a class, which fit would not know"
    if any(isinstance(one, CategoricalNB) for one in models):
        if weights is not None and not np.all(weights):
            return "CategoricalNB knows the categories of rows whose weight is 0"
    if any(isinstance(one, GaussianNB) for one in models):
        if task.fact("squares overflow", lambda: _squares_overflow(task.data.X)):
            return "squares of numbers in X overflow"
    return ""


def _squares_overflow(X: Any) -> bool:
    """Return whether sums of squares may be infinite, if the rows are an array of floats."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    return max(-X.min(), X.max()) > np.sqrt(np.finfo(X.dtype).max / len(X))
