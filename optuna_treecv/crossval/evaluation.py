"""The data, folds, scoring and seeds of one cross-validation: everything but the estimator."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from threading import Lock
from time import perf_counter
from typing import Any
from typing import NamedTuple

from sklearn.utils.validation import _num_samples

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.crossval.arguments import check_choice
from optuna_treecv.crossval.arguments import check_estimator
from optuna_treecv.crossval.arguments import check_n_repeats
from optuna_treecv.crossval.arguments import count_threads
from optuna_treecv.crossval.arguments import describe_cv
from optuna_treecv.crossval.arguments import draw_seed
from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.baseline import baseline
from optuna_treecv.crossval.identity import name_of_evaluation
from optuna_treecv.crossval.methods import METHODS
from optuna_treecv.crossval.small_folds import why_too_small
from optuna_treecv.crossval.subtrees import reported_parts
from optuna_treecv.crossval.subtrees import walked_blocks
from optuna_treecv.learners.from_estimator import check_methods
from optuna_treecv.learners.from_estimator import layout_for
from optuna_treecv.learners.from_estimator import make_learner
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.from_estimator import takes_seed
from optuna_treecv.learners.without_effect import UnusedWarnings
from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import make_folds
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import make_scoring
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import scoring_for
from optuna_treecv.sharing.between_runs import SharedBetweenRuns
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan


class Repeat(NamedTuple):
    """One of the ``n_repeats`` cross-validations.

    Attributes
    ----------
    number : int
        0, 1, ...
    folds : Folds
        How the rows are cut.
    plan : Plan
        The tree over the folds.
    blocks, parts : list of Node
        The subtrees that are walked, and those after which a report is due.
    """

    number: int
    folds: Folds
    plan: Plan
    blocks: list[Node]
    parts: list[Node]


class Evaluation:
    """The data, folds, scoring and seeds of one cross-validation.

    It is made once and shared by all estimators and threads. The rows are prepared when the first
    estimator asks for them, and kept.

    Parameters
    ----------
    X, y, cv, groups, shuffle, order, method, n_repeats, scoring, random_state, n_jobs
        As for ``tree_cross_validate``.
    cache : ModelCache, StoredModelCache or None
        Where models and results are kept; None: nowhere.
    with_others : bool
        Whether other evaluations may use the same cache.
    reports : bool
        Whether runs report after each part of a tree.

    Attributes
    ----------
    data : Data
        The rows as given.
    repeats : list of Repeat
    method : Method
        How the folds of a repeat are evaluated.
    scoring : Loss, Scorer or None
        What was asked for; None is left to the estimator.
    shared : SharedBetweenRuns
        The models and results that runs share.
    unused : UnusedWarnings
        Warns once of parameters that have no effect.
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
        cache: AnyCache | None = None,
        with_others: bool = False,
        reports: bool = False,
    ) -> None:
        check_choice("shuffle", shuffle, (True, False))
        check_choice("order", order, ("fixed", "random"))
        check_choice("method", method, tuple(METHODS))
        n_repeats = check_n_repeats(n_repeats)
        self.n_jobs = count_threads(n_jobs)
        self.scoring = make_scoring(scoring)
        self.method = METHODS[method]
        self.seed = draw_seed(random_state)
        self.shared = SharedBetweenRuns(cache, with_others)
        self.unused = UnusedWarnings()
        self._order = order
        self._cv = describe_cv(cv)
        began = perf_counter()
        self.data = Data(X, y)
        if groups is not None:
            check_array_kind("groups", groups)
            with naming("groups"):
                n_entries = _num_samples(groups)
            if n_entries != self.data.n_rows:
                raise ValueError(
                    f"groups must have one entry per row: X has {self.data.n_rows} rows, groups "
                    f"{n_entries} entries."
                )
        if isinstance(cv, Iterator):
            cv = list(cv)  # each repeat reads it
        self.repeats = [
            self._repeat(number, cv, X, groups, shuffle, reports, n_repeats)
            for number in range(n_repeats)
        ]
        first = self.repeats[0].folds
        self.n_folds = first.n_folds
        if any(repeat.folds.n_folds != self.n_folds for repeat in self.repeats):
            raise ValueError(
                "cv must make the same number of folds in each of n_repeats calls of its split."
            )
        self._repeats_are_alike = order == "fixed" and all(
            repeat.folds.equals(first) for repeat in self.repeats
        )
        self._seconds = perf_counter() - began
        self._sizes_are_checked = False
        self._prepared: dict[RowLayout, tuple[PreparedRows, float]] = {}
        self._preparing = Lock()

    def __getstate__(self) -> dict[str, Any]:
        # Prepared rows are larger than what they are made from, so they are made again.
        return {**self.__dict__, "_prepared": {}, "_preparing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._preparing = Lock()

    def _repeat(
        self,
        number: int,
        cv: Any,
        X: Any,
        groups: Any,
        shuffle: bool,
        reports: bool,
        n_repeats: int,
    ) -> Repeat:
        seed, n_rows = derive_seed(self.seed, number), self.data.n_rows
        folds = make_folds(cv, X, self.data.y, groups, shuffle, seed, n_rows)
        plan = Plan(n_rows, folds.n_folds, folds.bounds, self._order == "random", seed)
        blocks = walked_blocks(plan, self.n_jobs, reports)
        return Repeat(
            number, folds, plan, blocks, reported_parts(plan, n_repeats) if reports else blocks
        )

    @property
    def n_repeats(self) -> int:
        return len(self.repeats)

    @property
    def n_updates_standard(self) -> int:
        """The row updates of k trainings from scratch."""
        return self.n_repeats * (self.n_folds - 1) * self.data.n_rows

    def describe(self) -> dict[str, Any]:
        """Return what is evaluated, in words and numbers."""
        return {
            "cv": self._cv,
            "n_folds": self.n_folds,
            "n_repeats": self.n_repeats,
            "n_rows": self.data.n_rows,
            "n_features": self.data.X.shape[1],
            "order": self._order,
            "method": self.method.name,
            "random_state": str(self.seed),
        }

    def digest(self, scoring: Loss | Scorer) -> str:
        """Return a short name for the data, the folds and a scoring."""
        folds = [repeat.folds for repeat in self.repeats]
        return name_of_evaluation(self.data, folds, scoring.name)

    def facts(self, scoring: Loss | Scorer, estimator: Any) -> dict[str, Any]:
        """Return what is equal for all estimators that can be compared, one of which is given."""
        facts = {
            "digest": self.digest(scoring),
            "scoring": scoring.name,
            "n_folds": self.n_folds,
            "n_repeats": self.n_repeats,
            "n_updates_standard": self.n_updates_standard,
        }
        found = baseline(scoring, estimator, self.data)
        return facts if found is None else facts | {"baseline": found[0], "baseline_of": found[1]}

    def scoring_for(
        self, estimator: Any, of_class: bool = False, searched: Collection[str] = ()
    ) -> Loss | Scorer:
        """Return the scoring of an estimator after checking its parameters but the searched ones.

        Raises
        ------
        ValueError
            If the estimator cannot be evaluated by it, or if repeats would change nothing. With
            ``of_class``, only if no parameter could change that.
        """
        check_estimator(estimator, of_class, searched)
        scoring = scoring_for(self.scoring, estimator)
        check_methods(estimator, scoring.methods, f"scoring={scoring.name!r}", of_class)
        if self.n_repeats > 1 and self._repeats_are_alike and not takes_seed(estimator):
            raise ValueError(
                f"n_repeats must be 1 where no repeat differs, got {self.n_repeats} with the same "
                "folds each time, order='fixed' and no random_state=None in "
                f"{name_of(estimator)}; order='random' or shuffle=True would be right, or a cv "
                "that shuffles anew."
            )
        self._warn_if_folds_are_small(scoring, estimator)
        return scoring

    def _warn_if_folds_are_small(self, scoring: Loss | Scorer, estimator: Any) -> None:
        """Warn, once, of a score that is not a mean over rows where folds are small."""
        with self._preparing:
            if self._sizes_are_checked:
                return
            self._sizes_are_checked = True
        folds = (repeat.folds for repeat in self.repeats)
        found = (why_too_small(scoring, estimator, self.data, one) for one in folds)
        if (message := next(filter(None, found), None)) is not None:
            warn_caller(message)

    def rows(self, estimator: Any, repeat: Repeat | None = None) -> tuple[PreparedRows, float]:
        """Return the rows of a repeat, prepared for an estimator, and the seconds that took.

        The rows of the first repeat, which is the default, are kept, so that there is one copy of
        the data. The rows of other repeats are made each time.
        """
        layout = layout_for(estimator)
        if repeat is not None and repeat.number > 0:
            return self._prepare(layout, repeat)
        with self._preparing:
            if layout not in self._prepared:
                rows, seconds = self._prepare(layout, self.repeats[0])
                self._prepared[layout] = rows, seconds + self._seconds
            return self._prepared[layout]

    def _prepare(self, layout: RowLayout, repeat: Repeat) -> tuple[PreparedRows, float]:
        began = perf_counter()
        rows = self.data.prepare(layout, repeat.folds.order)
        if self.shared.cache is not None:
            self.shared.identity(layout, rows, repeat.number)  # digesting the rows is part of it
        return rows, perf_counter() - began

    def learner(
        self,
        estimator: Any,
        rows: PreparedRows,
        response_method: str | None,
        repeat: Repeat | None = None,
    ) -> Learner:
        """Return an estimator's settings bound to rows.

        A ``random_state=None`` in the estimator becomes the evaluation's seed plus the number of
        the repeat.
        """
        number = 0 if repeat is None else repeat.number
        return make_learner(estimator, rows, response_method, self.seed + number)
