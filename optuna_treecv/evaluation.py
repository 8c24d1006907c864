"""One evaluation of an estimator: prepared rows, a walk, scores; everything between the public
functions and the tree.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Hashable
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any

from joblib import effective_n_jobs
import numpy as np
from sklearn.base import is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.cache import ModelCache
from optuna_treecv.cache import StoredModelCache
from optuna_treecv.data import Data
from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.folds import make_folds
from optuna_treecv.keys import fingerprint
from optuna_treecv.keys import is_ours
from optuna_treecv.keys import targets_key
from optuna_treecv.keys import token
from optuna_treecv.learners import as_estimator
from optuna_treecv.learners import as_given
from optuna_treecv.learners import check_methods
from optuna_treecv.learners import layout_for
from optuna_treecv.learners import make_learner
from optuna_treecv.learners import name_of
from optuna_treecv.learners import takes_seed
from optuna_treecv.learners.base import Learner
from optuna_treecv.learners.base import SubtreeWalker
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.pipeline import check_incremental
from optuna_treecv.plan import Node
from optuna_treecv.plan import Plan
from optuna_treecv.scoring import Leaves
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import make_scoring
from optuna_treecv.scoring import OutputsAtLeaves
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import ScoresAtLeaves
from optuna_treecv.scoring import ScoresOfOutputs
from optuna_treecv.scoring import scoring_for
from optuna_treecv.sharing import FoundTogether
from optuna_treecv.sharing import Identity
from optuna_treecv.sharing import Results
from optuna_treecv.sharing import results_of
from optuna_treecv.sharing import SharedLearner
from optuna_treecv.sharing import Way
from optuna_treecv.walk import Done
from optuna_treecv.walk import replay
from optuna_treecv.walk import TestNode
from optuna_treecv.walk import walk_standard
from optuna_treecv.walk import walk_to_leaves
from optuna_treecv.walk import walk_tree

#: At most so many parts of a tree are reported, or shared out among threads.
MAX_BLOCKS = 32
# Without reports one thread takes it as one, several take a few each, if the rows are not too
# many: above the parts the interpreter works, and with a cache siblings are not trained together.
_PARTS_A_THREAD = 4
_ROWS_AS_ONE = 2**22

# Rows that are scored at once, if they are several folds.
_ROWS_A_PIECE = 2**16

# Repeats whose chains of keys are remembered.
_MOST_WAYS = 8

RESPONSE_METHODS = ("predict", "decision_function", "predict_proba", "score_samples")
DIVERGENCE_ADVICE = "a smaller step size, or scaled features, may help."


@dataclass(frozen=True, eq=False)  # arrays have no single ==
class CVResult:
    """What a cross-validation found.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, repeat after repeat.
    mean : float
        Their mean, the paper's R.
    std : float or None
        Their standard deviation (of the folds, as scikit-learn's ``std_test_score``); None if the
        mean is not finite.
    n_folds : int
        Folds a repeat.
    n_updates : int
        Rows trained on, counted over all models.
    n_updates_saved : int
        Rows that need not be trained on, because models were shared with other evaluations.
    n_updates_standard : int
        Rows that k trainings from scratch would take.
    seconds : float
        The evaluation alone: from prepared rows to scores.
    seconds_prepare : float
        Checking, permuting and padding the rows.
    diverged_folds : int
        Folds whose model or loss was not finite. They score 1 for "error", inf for other losses
        and -inf for scorers.
    """

    test_score: np.ndarray
    mean: float
    std: float | None
    n_folds: int
    n_updates: int
    n_updates_saved: int
    n_updates_standard: int
    seconds: float
    seconds_prepare: float
    diverged_folds: int


class Evaluation:
    """Everything about a cross-validation but the estimator: made once, run for many, in many
    threads.

    Parameters are those of ``tree_cross_validate``; in ``cache`` models are shared, with others
    than this evaluation too if ``is_shared``. Rows are prepared when the first estimator asks for
    them, and kept.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        *,
        cv: Any,
        groups: Any,
        shuffle: bool,
        order: str,
        method: str,
        n_repeats: int,
        scoring: Any,
        random_state: Any,
        n_jobs: int | None,
        cache: ModelCache | StoredModelCache | None = None,
        is_shared: bool = False,
        reports: bool = False,
    ) -> None:
        check_choice("shuffle", shuffle, (True, False))
        check_choice("order", order, ("fixed", "random"))
        check_choice("method", method, ("treecv", "standard"))
        if not _is_integer(n_repeats) or n_repeats < 1:
            raise ValueError(f"n_repeats must be an integer of at least 1, got {n_repeats!r}.")
        if n_jobs is not None and not (_is_integer(n_jobs) and n_jobs != 0):
            raise ValueError(
                f"n_jobs must be None, a number of threads or -1 for all cores, got {n_jobs!r}."
            )
        self.scoring = make_scoring(scoring)
        self.cv = _describe(cv)
        self.n_repeats = int(n_repeats)
        self.n_jobs = effective_n_jobs(n_jobs)
        self.order = order
        self.method = method
        self.seed = draw_seed(random_state)
        self.cache = cache
        self._is_shared = is_shared
        self._reports = reports
        self.found = FoundTogether()
        self._identities: dict[tuple[RowLayout, int], Identity] = {}
        self._ways: dict[tuple[bytes, int], Way] = {}
        begin = perf_counter()
        self.data = Data(X, y)
        if groups is not None and _num_samples(groups) != self.data.n_rows:
            raise ValueError(
                f"groups must have one entry a row: X has {self.data.n_rows} rows, groups "
                f"{_num_samples(groups)} entries."
            )
        if isinstance(cv, Iterator):
            cv = list(cv)  # each repeat reads it
        self.folds = [
            make_folds(
                cv, X, self.data.y, groups, shuffle, self.repeat_seed(repeat), self.data.n_rows
            )
            for repeat in range(self.n_repeats)
        ]
        self.n_folds = self.folds[0].n_folds
        if any(folds.n_folds != self.n_folds for folds in self.folds):
            raise ValueError(
                "cv must make the same number of folds in each of n_repeats calls of its split."
            )
        self._repeats_are_alike = order == "fixed" and all(
            folds.equals(self.folds[0]) for folds in self.folds
        )
        self._seconds = perf_counter() - begin
        self._kept: dict[RowLayout, tuple[PreparedRows, float]] = {}
        self._preparing = Lock()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        # Prepared rows are made again where they are needed: they are larger than what they are
        # made from.
        return {
            **self.__dict__,
            "_kept": {},
            "_identities": {},
            "_ways": {},
            "_preparing": None,
            "_lock": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._preparing = Lock()
        self._lock = Lock()

    def repeat_seed(self, repeat: int) -> int:
        """The seed of a repeat, 64 bits."""
        return derive_seed(self.seed, repeat)

    def plan(self, repeat: int) -> Plan:
        """The tree of a repeat."""
        folds = self.folds[repeat]
        return Plan(
            self.data.n_rows,
            self.n_folds,
            folds.bounds,
            self.order == "random",
            self.repeat_seed(repeat),
        )

    def identity(self, layout: RowLayout, rows: PreparedRows, repeat: int) -> Identity:
        """Names for prepared rows, by their content if others may have the same."""
        with self._lock:
            if (layout, repeat) not in self._identities:
                found = fingerprint(rows) if self._is_shared else None
                targets = targets_key(rows) if found else b""
                self._identities[layout, repeat] = Identity(found or token(), targets)
            return self._identities[layout, repeat]

    def way(self, identity: bytes, repeat: int) -> Way:
        """Where the ways over a repeat's rows begin; those of a few repeats are remembered."""
        with self._lock:
            way = self._ways.pop((identity, repeat), None)
            if way is None:
                way = Way(identity)
            self._ways[identity, repeat] = way
            if len(self._ways) > _MOST_WAYS:
                del self._ways[next(iter(self._ways))]
            return way

    def results(
        self, estimator: Any, learner: Learner, plan: Plan, repeat: int
    ) -> tuple[bytes, Results | None]:
        """The name of a repeat's rows, and where an estimator's results on them are kept."""
        identity = self.identity(layout_for(estimator), learner.rows, repeat)
        cache = self.cache_for(estimator)
        return identity.rows, results_of(learner, cache, identity, plan, self.method)

    def cache_for(self, estimator: Any) -> ModelCache | StoredModelCache | None:
        """Where an estimator's models are kept. Code that is not ours may change between two
        processes: its models stay in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache if is_ours(type(estimator)) else self.cache.memory
        return self.cache

    def rows(self, estimator: Any, repeat: int = 0) -> tuple[PreparedRows, float]:
        """The rows of a repeat as an estimator wants them, and the seconds it took to prepare
        them.

        Those of repeat 0 are kept, so that there is one copy of the data. Other repeats' are made
        for the occasion.
        """
        layout = layout_for(estimator)
        if repeat > 0:
            return self._prepare(layout, repeat)
        with self._preparing:
            if layout not in self._kept:
                rows, seconds = self._prepare(layout, 0)
                self._kept[layout] = rows, seconds + self._seconds
            return self._kept[layout]

    def learner(
        self, estimator: Any, rows: PreparedRows, response_method: str | None, repeat: int = 0
    ) -> Learner:
        """An estimator's settings bound to rows.

        What it leaves random (``random_state=None``) gets the evaluation's seed, plus the repeat.
        """
        return make_learner(estimator, rows, response_method, self.seed + repeat)

    def scoring_of(self, estimator: Any, of_class: bool = False) -> Loss | Scorer:
        """The scoring of an estimator, which is refused if it cannot be evaluated by it (with
        ``of_class``, only if no settings could change that) or if repeats would change nothing.
        """
        check_estimator_type(estimator, of_class)
        scoring = scoring_for(self.scoring, estimator)
        check_methods(estimator, scoring.response_method, f"scoring={scoring.name!r}", of_class)
        if self.n_repeats > 1 and self._repeats_are_alike and not takes_seed(estimator):
            raise ValueError(
                f"n_repeats must be 1 where no repeat differs, got {self.n_repeats} with the same "
                "folds each time, order='fixed' and no random_state=None in "
                f"{name_of(estimator)}; order='random' or shuffle=True would be right, or a cv "
                "that shuffles anew."
            )
        return scoring

    def run(self, estimator: Any, is_claimed: bool = False) -> Run:
        """A cross-validation of one estimator, ready to be walked."""
        return Run(self, as_estimator(estimator), is_claimed)

    def fit(self, estimator: Any) -> Any:
        """An estimator trained on all rows in prepared order."""
        estimator = as_estimator(estimator)
        check_estimator_type(estimator)
        rows, _ = self.rows(estimator)
        learner = self.learner(estimator, rows, None)
        state = learner.start()
        learner.update(state, slice(0, self.data.n_rows))
        fitted = learner.estimator(state)
        if fitted is None:
            raise ValueError(f"{estimator!r} diverges on all rows; {DIVERGENCE_ADVICE}")
        if rows.feature_names is not None and layout_for(estimator).padded:
            fitted.feature_names_in_ = rows.feature_names  # others have seen the names
        return as_given(fitted)

    def predict(self, estimator: Any, response_method: str) -> np.ndarray:
        """Out-of-fold responses of repeat 0, in the order of the rows as given."""
        check_choice("response_method", response_method, RESPONSE_METHODS)
        estimator = as_estimator(estimator)
        check_estimator_type(estimator)
        check_methods(estimator, response_method, f"response_method={response_method!r}")
        plan = self.plan(0)
        rows, _ = self.rows(estimator)
        learner = self.learner(estimator, rows, response_method)
        leaves = OutputsAtLeaves(plan, learner)
        for _ in self.walk(plan, learner, leaves):
            pass
        prepared = learner.respond(leaves.outputs.array, response_method)
        if response_method == "predict" and not is_regressor(estimator):
            if not np.all(np.isfinite(leaves.outputs.array)):
                raise ValueError(f"{estimator!r} diverges; {DIVERGENCE_ADVICE}")
            codes = prepared.astype(np.intp)
            if rows.classes is not None and np.any(codes < 0):
                raise ValueError(
                    f"{name_of(estimator)} predicts no class where it has learned none."
                )
            prepared = codes if rows.classes is None else rows.classes[codes]
        predictions = np.empty_like(prepared)
        predictions[rows.order] = prepared
        return predictions

    def walk(self, plan: Plan, learner: Learner, leaves: Leaves) -> Generator[Done]:
        """Walk a tree, or train k times; ``leaves`` keeps what comes out."""

        test: TestNode
        if isinstance(learner, SubtreeWalker) and isinstance(leaves, OutputsAtLeaves):
            walk_subtree = learner.walk_subtree

            def test(node: Node, state: Any) -> int:
                return walk_subtree(plan, node, state, leaves.outputs.array)
        else:

            def test(node: Node, state: Any) -> int:
                return walk_to_leaves(plan, learner, leaves.test_leaf, node, state)

        walk_blocks = walk_tree if self.method == "treecv" else walk_standard
        return walk_blocks(plan, learner, test, self.blocks(plan), self.n_jobs)

    def parts(self, plan: Plan) -> list[Node]:
        """The parts in which a tree is scored, and reported."""
        return plan.blocks(MAX_BLOCKS // self.n_repeats) if self._reports else self.blocks(plan)

    def blocks(self, plan: Plan) -> list[Node]:
        """The parts in which a tree is walked."""
        if self._reports or plan.n_rows >= _ROWS_AS_ONE:
            return plan.blocks(MAX_BLOCKS)
        if self.n_jobs == 1:
            return plan.blocks(1)
        return plan.blocks(min(_PARTS_A_THREAD * self.n_jobs, MAX_BLOCKS))

    def _prepare(self, layout: RowLayout, repeat: int) -> tuple[PreparedRows, float]:
        begin = perf_counter()
        rows = self.data.prepare(layout, self.folds[repeat].order)
        if self.cache is not None:
            self.identity(layout, rows, repeat)
        return rows, perf_counter() - begin


class Run:
    """One estimator's way through an evaluation. Iterate it to the end, or leave it early; then
    ask for ``result``.

    Iterating yields the number of each reported part, 0, 1, ..., once its folds are scored. A part
    is a subtree at depth min(5, depth of the tree), less deep with repeats, so that there are at
    most 32 in all, or one a repeat.

    Parameters
    ----------
    is_claimed : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.

    Attributes
    ----------
    walked : ndarray of shape (n_repeats * n_folds,)
        The scores of the first ``n_scored`` folds, in the order in which they lie along the tree.
    """

    def __init__(self, evaluation: Evaluation, estimator: Any, is_claimed: bool = False) -> None:
        self.scoring = evaluation.scoring_of(estimator)
        self.walked = np.empty(evaluation.n_repeats * evaluation.n_folds)
        self.n_scored = 0
        self.n_updates = 0
        self._n_needed = 0  # rows of all phases that were passed, trained on or not
        self.diverged_folds = 0
        self.seconds = 0.0
        self.seconds_prepare = 0.0
        self.key = self.fingerprint = ""  # what was trained how, and on which rows
        self._evaluation = evaluation
        self._estimator = estimator
        self._is_claimed = is_claimed

    def __iter__(self) -> Iterator[int]:
        evaluation = self._evaluation
        part = 0
        for repeat in range(evaluation.n_repeats):
            rows, seconds = evaluation.rows(self._estimator, repeat)
            self.seconds_prepare += seconds
            plan = evaluation.plan(repeat)
            with closing(self._walk(plan, rows, repeat)) as parts:
                for _ in parts:
                    yield part
                    part += 1

    def about(self) -> dict[str, Any]:
        """What was evaluated, in words and numbers."""
        evaluation = self._evaluation
        return {
            "key": self.key,
            "fingerprint": self.fingerprint,
            "learner": name_of(self._estimator),
            "cv": evaluation.cv,
            "n_folds": evaluation.n_folds,
            "n_repeats": evaluation.n_repeats,
            "n_rows": evaluation.data.n_rows,
            "n_features": evaluation.data.X.shape[1],
            "order": evaluation.order,
            "method": evaluation.method,
            "scoring": self.scoring.name,
            "direction": self.scoring.direction,
            "random_state": str(evaluation.seed),
        }

    def finish(self) -> CVResult:
        """Walk to the end."""
        for _ in self:
            pass
        return self.result()

    def by_fold(self) -> np.ndarray:
        """The scores of all folds, repeat after repeat; NaN where there is none yet."""
        evaluation = self._evaluation
        if self.n_scored == len(self.walked) and all(f.numbers is None for f in evaluation.folds):
            return self.walked
        scores = np.full(evaluation.n_repeats * evaluation.n_folds, np.nan)
        for repeat, folds in enumerate(evaluation.folds):
            first = repeat * folds.n_folds
            walked = self.walked[first : min(first + folds.n_folds, self.n_scored)]
            of = slice(len(walked)) if folds.numbers is None else folds.numbers[: len(walked)]
            scores[first : first + folds.n_folds][of] = walked
        return scores

    def result(self) -> CVResult:
        """The result over the folds scored so far."""
        evaluation = self._evaluation
        scores = self.by_fold()
        if self.n_scored < len(scores):
            scores = scores[~np.isnan(scores)]
        mean, std = mean_and_std(scores)
        return CVResult(
            test_score=scores,
            mean=mean,
            std=std,
            n_folds=evaluation.n_folds,
            n_updates=self.n_updates,
            n_updates_saved=max(0, self._n_needed - self.n_updates),
            n_updates_standard=evaluation.n_repeats
            * (evaluation.n_folds - 1)
            * evaluation.data.n_rows,
            seconds=self.seconds,
            seconds_prepare=self.seconds_prepare,
            diverged_folds=self.diverged_folds,
        )

    def _walk(self, plan: Plan, rows: PreparedRows, repeat: int) -> Generator[Node]:
        """Walk one repeat's tree, or take its results where they are kept, and score its parts
        from the left.
        """
        evaluation = self._evaluation
        cache = evaluation.cache_for(self._estimator)
        learner = evaluation.learner(self._estimator, rows, self.scoring.response_method, repeat)
        identity, results = evaluation.results(self._estimator, learner, plan, repeat)
        if cache is not None:
            if repeat == 0:
                self.fingerprint = identity.hex()
                self.key = "" if results is None else results.name
            if isinstance(learner, CompiledLearner) and evaluation.method == "treecv":
                learner = SharedLearner(learner, cache, evaluation.way(identity, repeat))
        leaves = self._leaves(plan, learner)
        needed_before, seconds_before = self._n_needed, self.seconds
        parts = evaluation.parts(plan)
        # What this process has walked counts as trained, though it may be in the store by now.
        found = None if results is None else evaluation.found.take(results.name)
        n_kept = None if results is None or found is not None else results.take(leaves)
        walks = False
        if n_kept is not None:
            blocks = replay(parts, n_kept)
        elif found is not None and isinstance(leaves, OutputsAtLeaves):
            begin = perf_counter()
            leaves.outputs.array[:] = found.outputs
            self.n_updates += found.n_updates
            self.seconds += found.seconds + perf_counter() - begin
            blocks = replay(parts, found.n_updates)
        else:
            walks = True
            blocks = evaluation.walk(plan, learner, leaves)
        n_before = self.n_updates
        begin = perf_counter()
        with closing(blocks):
            for part in parts:
                for block, n_updates in blocks:
                    self._n_needed += n_updates
                    if walks and isinstance(learner, SharedLearner):
                        self.n_updates = n_before + learner.n_updates
                    elif walks:
                        self.n_updates += n_updates
                    if block.last == part.last:
                        break
                for piece in _pieces(plan, part):
                    scores, diverged = leaves.scores(piece)
                    self.walked[self.n_scored : self.n_scored + len(scores)] = scores
                    self.n_scored += len(scores)
                    self.diverged_folds += int(np.count_nonzero(diverged))
                self.seconds += perf_counter() - begin
                yield part
                begin = perf_counter()
        if results is not None:
            n_updates = self._n_needed - needed_before
            seconds = self.seconds - seconds_before
            results.keep(leaves, n_updates, seconds)
            if self._is_claimed and walks and isinstance(leaves, OutputsAtLeaves):
                assert isinstance(cache, StoredModelCache)
                cache.write([results.to_write(leaves.outputs, seconds)])

    def _leaves(self, plan: Plan, learner: Learner) -> Leaves:
        """What to do at the leaves."""
        if isinstance(self.scoring, Loss):
            return OutputsAtLeaves(plan, learner, self.scoring)
        if isinstance(learner, CompiledLearner | SharedLearner):
            if outputs_are_enough(self._estimator, learner, self.scoring):
                return ScoresOfOutputs(plan, learner, self.scoring)
        return ScoresAtLeaves(plan, learner, self.scoring)


def _pieces(plan: Plan, part: Node) -> Iterator[Node]:
    """Neighbouring folds of few rows, so that what scoring takes is little beside the scores."""
    n_folds = max(1, _ROWS_A_PIECE * plan.n_folds // plan.n_rows)
    for first in range(part.first, part.last, n_folds):
        yield Node(first, min(first + n_folds, part.last))


def outputs_are_enough(
    estimator: Any, learner: CompiledLearner | SharedLearner, scoring: Loss | Scorer
) -> bool:
    """Whether scores follow from outputs. A scorer of one's own may look at more than predictions,
    and one's own estimator may predict in ways of its own.
    """
    if isinstance(scoring, Loss):
        return True
    return scoring.is_made and learner.can_answer and is_ours(type(estimator))


def mean_and_std(scores: np.ndarray) -> tuple[float, float | None]:
    """Of scores; the standard deviation is None if one of them is not finite."""
    with np.errstate(all="ignore"):
        mean, std = float(np.mean(scores)), float(np.std(scores))
    if np.isfinite(std):
        return mean, std
    size = np.abs(scores).max()
    if not np.isfinite(size):
        return mean, None
    return float(np.mean(scores / size) * size), float(np.std(scores / size) * size)


def draw_seed(random_state: Any) -> int:
    """The integer behind a ``random_state``; None and RandomState instances draw one."""
    if _is_integer(random_state):
        if not 0 <= random_state < 2**64:
            raise ValueError(
                f"random_state must be an integer of 0 to 2**64 - 1, got {random_state}."
            )
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def check_estimator_type(estimator: Any, of_class: bool = False) -> None:
    """Refuse what is no estimator instance or cannot go on training (with ``of_class``, only if no
    settings could change that).
    """
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise ValueError(
            "estimator must be a scikit-learn estimator instance or a River model, got "
            f"{estimator!r}."
        )
    check_incremental(estimator, of_class)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse what is none of the choices; an array, which has no hash, is none."""
    if not isinstance(value, Hashable) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def _describe(cv: Any) -> str:
    """``cv`` in a few words."""
    if isinstance(cv, str | int | np.integer):
        return str(cv)
    return f"{cv}" if hasattr(cv, "split") else "fold ids"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
