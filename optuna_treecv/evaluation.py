"""One evaluation of an estimator: prepared rows, a walk, scores; everything between the public
functions and the tree.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Hashable
from collections.abc import Iterator
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
from optuna_treecv.learners.pipeline import check_incremental
from optuna_treecv.plan import Node
from optuna_treecv.plan import Plan
from optuna_treecv.scoring import Leaves
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import make_scoring
from optuna_treecv.scoring import OutputsAtLeaves
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import scoring_for
from optuna_treecv.sharing import FoundTogether
from optuna_treecv.sharing import Identity
from optuna_treecv.sharing import Results
from optuna_treecv.sharing import results_of
from optuna_treecv.sharing import Way
from optuna_treecv.walk import Done
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

# Repeats whose chains of keys are remembered.
_MOST_WAYS = 8

RESPONSE_METHODS = ("predict", "decision_function", "predict_proba", "score_samples")
DIVERGENCE_ADVICE = "a smaller step size, or scaled features, may help."


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
