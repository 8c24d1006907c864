"""Cross-validation by the tree: from an estimator and rows to fold scores or out-of-fold
predictions."""

from __future__ import annotations

from collections.abc import Generator
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
from optuna_treecv.data import Data
from optuna_treecv.data import PreparedRows
from optuna_treecv.data import RowLayout
from optuna_treecv.folds import make_folds
from optuna_treecv.learners import layout_for
from optuna_treecv.learners import make_learner
from optuna_treecv.learners.base import Learner
from optuna_treecv.learners.base import SubtreeWalker
from optuna_treecv.plan import Node
from optuna_treecv.plan import Plan
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import make_scoring
from optuna_treecv.scoring import OutputsAtLeaves
from optuna_treecv.scoring import ScoresAtLeaves
from optuna_treecv.scoring import scoring_for
from optuna_treecv.walk import Done
from optuna_treecv.walk import walk_standard
from optuna_treecv.walk import walk_to_leaves
from optuna_treecv.walk import walk_tree

#: Parts in which a tree is walked and shared out among threads, and at most so many are reported.
MAX_BLOCKS = 32


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
    n_updates_standard : int
        The same for k trainings from scratch.
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
    n_updates_standard: int
    seconds: float
    seconds_prepare: float
    diverged_folds: int


class Evaluation:
    """Everything about a cross-validation but the estimator: made once, run for many, in many
    threads.

    Parameters are those of ``tree_cross_validate``. Rows are prepared when the first estimator
    asks for them, and kept."""

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
    ) -> None:
        _check_choice("order", order, ("fixed", "random"))
        _check_choice("method", method, ("treecv", "standard"))
        if not isinstance(n_repeats, int | np.integer) or n_repeats < 1:
            raise ValueError(f"n_repeats must be an integer of at least 1, got {n_repeats!r}.")
        self.scoring = make_scoring(scoring)
        self.n_repeats = int(n_repeats)
        self.n_jobs = effective_n_jobs(n_jobs)
        self.order = order
        self.method = method
        self.seed = draw_seed(random_state)
        begin = perf_counter()
        self.data = Data(X, y)
        if groups is not None and _num_samples(groups) != self.data.n_rows:
            raise ValueError(
                f"groups must have one entry a row: X has {self.data.n_rows} rows, groups "
                f"{_num_samples(groups)} entries."
            )
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
        self._seconds = perf_counter() - begin
        self._kept: dict[RowLayout, tuple[PreparedRows, float]] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        # Prepared rows are made again where they are needed: they are larger than what they are
        # made from.
        return {**self.__dict__, "_kept": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
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

    def rows(self, estimator: Any, repeat: int = 0) -> tuple[PreparedRows, float]:
        """The rows of a repeat as an estimator wants them, and the seconds it took to prepare
        them.

        Those of repeat 0 are kept, so that there is one copy of the data. Other repeats' are made
        for the occasion."""
        layout = layout_for(estimator)
        if repeat > 0:
            return self._prepare(layout, repeat)
        with self._lock:
            if layout not in self._kept:
                rows, seconds = self._prepare(layout, 0)
                self._kept[layout] = rows, seconds + self._seconds
            return self._kept[layout]

    def learner(self, estimator: Any, rows: PreparedRows, response_method: str | None) -> Learner:
        """An estimator's settings bound to rows; what it leaves random comes from the
        evaluation's seed."""
        return make_learner(estimator, rows, response_method, self.seed)

    def run(self, estimator: Any) -> Run:
        """A cross-validation of one estimator, ready to be walked."""
        check_estimator_type(estimator)
        return Run(self, estimator)

    def fit(self, estimator: Any) -> Any:
        """An estimator trained on all rows in prepared order."""
        check_estimator_type(estimator)
        learner = self.learner(estimator, self.rows(estimator)[0], None)
        state = learner.start()
        learner.update(state, slice(0, self.data.n_rows))
        fitted = learner.estimator(state)
        if fitted is None:
            raise ValueError(
                f"{estimator!r} diverges on all rows; a smaller step size, or scaled features, "
                "may help."
            )
        return fitted

    def _prepare(self, layout: RowLayout, repeat: int) -> tuple[PreparedRows, float]:
        begin = perf_counter()
        rows = self.data.prepare(layout, self.folds[repeat].order)
        return rows, perf_counter() - begin


class Run:
    """One estimator's way through an evaluation. Iterate it to the end, or leave it early; then
    ask for ``result``.

    Iterating yields the number of each reported part, 0, 1, ..., once its folds are scored. A part
    is a subtree at depth min(5, depth of the tree), less deep with repeats, so that there are at
    most 32 in all, or one a repeat."""

    def __init__(self, evaluation: Evaluation, estimator: Any) -> None:
        self.scoring = scoring_for(evaluation.scoring, estimator)
        self.test_score = np.empty(evaluation.n_repeats * evaluation.n_folds)
        self.n_scored = 0
        self.n_updates = 0
        self.diverged_folds = 0
        self.seconds = 0.0
        self.seconds_prepare = 0.0
        self._evaluation = evaluation
        self._estimator = estimator

    def __iter__(self) -> Iterator[int]:
        evaluation = self._evaluation
        part = 0
        for repeat in range(evaluation.n_repeats):
            rows, seconds = evaluation.rows(self._estimator, repeat)
            self.seconds_prepare += seconds
            plan = evaluation.plan(repeat)
            ends = {block.last for block in plan.blocks(MAX_BLOCKS // evaluation.n_repeats)}
            begin = perf_counter()
            with closing(self._walk(plan, rows)) as blocks:
                for block in blocks:
                    if block.last in ends:
                        self.seconds += perf_counter() - begin
                        yield part
                        part += 1
                        begin = perf_counter()
            self.seconds += perf_counter() - begin

    def finish(self) -> CVResult:
        """Walk to the end."""
        for _ in self:
            pass
        return self.result()

    def result(self) -> CVResult:
        """The result over the folds scored so far."""
        evaluation = self._evaluation
        scores = self.test_score[: self.n_scored]
        mean = float(np.mean(scores))
        return CVResult(
            test_score=scores,
            mean=mean,
            std=float(np.std(scores)) if np.isfinite(mean) else None,
            n_folds=evaluation.n_folds,
            n_updates=self.n_updates,
            n_updates_standard=evaluation.n_repeats
            * (evaluation.n_folds - 1)
            * evaluation.data.n_rows,
            seconds=self.seconds,
            seconds_prepare=self.seconds_prepare,
            diverged_folds=self.diverged_folds,
        )

    def _walk(self, plan: Plan, rows: PreparedRows) -> Generator[Node]:
        """Walk one repeat's tree and score its blocks from the left."""
        evaluation = self._evaluation
        learner = evaluation.learner(self._estimator, rows, self.scoring.response_method)
        leaves: OutputsAtLeaves | ScoresAtLeaves
        if isinstance(self.scoring, Loss):
            leaves = OutputsAtLeaves(plan, learner, self.scoring)
        else:
            leaves = ScoresAtLeaves(plan, learner, self.scoring)
        with closing(walk(plan, learner, leaves, evaluation.method, evaluation.n_jobs)) as blocks:
            for block, n_updates in blocks:
                scores, diverged = leaves.scores(block)
                self.test_score[self.n_scored : self.n_scored + len(scores)] = scores
                self.n_scored += len(scores)
                self.n_updates += n_updates
                self.diverged_folds += int(np.count_nonzero(diverged))
                yield block


def walk(
    plan: Plan,
    learner: Learner,
    leaves: OutputsAtLeaves | ScoresAtLeaves,
    method: str,
    n_jobs: int,
) -> Generator[Done]:
    """Walk a tree, or train k times, with what a leaf keeps."""

    def test(node: Node, state: Any) -> int:
        if isinstance(learner, SubtreeWalker) and isinstance(leaves, OutputsAtLeaves):
            return learner.walk_subtree(plan, node, state, leaves.out)
        return walk_to_leaves(plan, learner, leaves.test_leaf, node, state)

    walk_blocks = walk_tree if method == "treecv" else walk_standard
    return walk_blocks(plan, learner, test, plan.blocks(MAX_BLOCKS), n_jobs)


def tree_cross_validate(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    shuffle: bool = True,
    order: str = "fixed",
    method: str = "treecv",
    n_repeats: int = 1,
    scoring: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
) -> CVResult:
    r"""Cross-validate an incremental estimator for about log2(k) trainings.

    With chunks :math:`Z_1, \dots, Z_k` of the rows and :math:`f_i` the model trained on all but
    :math:`Z_i`, the estimate is

    .. math:: R = \frac{1}{k} \sum_{i=1}^{k} \frac{1}{|Z_i|} \sum_{(x, y) \in Z_i} \ell(f_i(x), y).

    TreeCV (Joulani, Gyorgy & Szepesvari 2015, Algorithm 1) trains what the :math:`f_i` have in
    common once, in at most :math:`n \log_2(2k)` row updates in place of :math:`n (k - 1)`. A model
    sees all rows but its own chunk, each once; which come first differs from fold to fold.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``
        It is cloned. ``PegasosClassifier`` and ``LSQSGDRegressor`` are compiled down to the
        leaves.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        The compiled learners take dense numbers; float32 stays float32.
    y : array-like of shape (n_rows,), default=None
        Labels or targets; None for unsupervised estimators.
    cv : int, "loo", scikit-learn splitter or array-like of shape (n_rows,), default=10
        The number of folds, 2 to n_rows; leave one out; a splitter whose test sets partition the
        rows; or the fold of each row. Folds of an int are not stratified.
    groups : array-like of shape (n_rows,), default=None
        For splitters that need them.
    shuffle : bool, default=True
        For an int or "loo": permute the rows once before they are cut.
    order : {"fixed", "random"}, default="fixed"
        Feed a training phase its rows as they lie, or in a fresh random order, which takes
        longer (1.6 times on Covertype) and is advised where rows are sorted.
    method : {"treecv", "standard"}, default="treecv"
        The tree, or k trainings from scratch.
    n_repeats : int, default=1
        Cross-validate that many times, with other partitions and orders, and average.
    scoring : str, callable or None, default=None
        A loss of rows ("error", "hinge", "log_loss" for classifiers, "squared_error",
        "absolute_error" for regressors, "squared_distance" to the nearest centre for clusterers),
        or a scikit-learn scorer. None: the first of those.
    random_state : int, RandomState instance or None, default=0
        Of permutation, orders and of whatever in the estimator has ``random_state=None``.
    n_jobs : int or None, default=1
        Threads that share the branches of the tree; -1 for all cores. The numbers do not depend on
        it.

    Returns
    -------
    CVResult
        Fold scores, their mean and the work done.

    Raises
    ------
    ValueError
        If an argument is wrong, or an estimator or scorer cannot do what is asked.

    See Also
    --------
    treecv_objective : The same as an objective for Optuna.
    tree_cross_val_predict : Out-of-fold predictions.

    References
    ----------
    .. [1] P. Joulani, A. Gyorgy and C. Szepesvari, "Fast cross-validation for incremental
       learning", IJCAI 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, tree_cross_validate
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> result = tree_cross_validate(PegasosClassifier(alpha=0.01), scale(X), y, cv="loo")
    >>> result.n_folds, result.n_updates, result.n_updates_standard
    (569, 5235, 323192)
    >>> round(result.mean, 2)
    0.04
    """
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=n_repeats,
        scoring=scoring,
        random_state=random_state,
        n_jobs=n_jobs,
    )
    return evaluation.run(estimator).finish()


def tree_cross_val_predict(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    shuffle: bool = True,
    order: str = "fixed",
    method: str = "treecv",
    random_state: Any = 0,
    n_jobs: int | None = 1,
    response_method: str = "predict",
) -> np.ndarray:
    """Out-of-fold predictions: what each row's model, trained on the rows of all other folds, says
    of it.

    Parameters
    ----------
    estimator, X, y : see tree_cross_validate
        The learner and the rows.
    cv, groups, shuffle, order, method, random_state, n_jobs : see tree_cross_validate
        How the rows are cut and fed.
    response_method : {"predict", "decision_function", "predict_proba"}, default="predict"
        What to ask the models for.

    Returns
    -------
    ndarray of shape (n_rows,) or (n_rows, n_classes)
        In the order of the rows of X.

    Raises
    ------
    ValueError
        If an argument is wrong, or a model diverges whose labels are asked for.

    See Also
    --------
    tree_cross_validate : Scores in place of predictions.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, tree_cross_val_predict
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = PegasosClassifier(alpha=0.01)
    >>> decision = tree_cross_val_predict(
    ...     model, scale(X), y, cv="loo", response_method="decision_function"
    ... )
    >>> decision.shape
    (569,)
    """
    _check_choice(
        "response_method", response_method, ("predict", "decision_function", "predict_proba")
    )
    check_estimator_type(estimator)
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=1,
        scoring=None,
        random_state=random_state,
        n_jobs=n_jobs,
    )
    plan = evaluation.plan(0)
    rows, _ = evaluation.rows(estimator)
    learner = evaluation.learner(estimator, rows, response_method)
    leaves = OutputsAtLeaves(plan, learner)
    for _ in walk(plan, learner, leaves, method, evaluation.n_jobs):
        pass
    prepared = learner.respond(leaves.out, response_method)
    if response_method == "predict" and not is_regressor(estimator):
        if not np.all(np.isfinite(leaves.out)):
            raise ValueError(
                f"{estimator!r} diverges; a smaller step size, or scaled features, may help."
            )
        codes = prepared.astype(np.intp)
        prepared = codes if rows.classes is None else rows.classes[codes]
    predictions = np.empty_like(prepared)
    predictions[rows.order] = prepared
    return predictions


def draw_seed(random_state: Any) -> int:
    """The integer behind a ``random_state``; None and RandomState instances draw one."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        if not 0 <= random_state < 2**64:
            raise ValueError(
                f"random_state must be an integer of 0 to 2**64 - 1, got {random_state}."
            )
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def check_estimator_type(estimator: Any) -> None:
    """Refuse what is no estimator instance."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise ValueError(
            f"estimator must be a scikit-learn estimator instance, got {estimator!r}."
        )


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
