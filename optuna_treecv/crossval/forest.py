"""The method "forest": the trees of all folds, and that of all rows, grown together.

A grown forest answers all settings that only stop or prune, so the trials of a study share it.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.found_scores import FoundScores
from optuna_treecv.crossval.identity import under_configuration
from optuna_treecv.crossval.methods import SideBySide
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.learners.trees.estimators import HistTreeClassifier
from optuna_treecv.learners.trees.estimators import SHARED_PARAMETERS
from optuna_treecv.learners.trees.estimators import shares_of
from optuna_treecv.learners.trees.forest import Forest
from optuna_treecv.learners.trees.forest import grow_forest
from optuna_treecv.learners.trees.forest import Growth
from optuna_treecv.learners.trees.forest import Limits
from optuna_treecv.learners.trees.forest import NO_LIMIT
from optuna_treecv.rows.bins import Binning
from optuna_treecv.rows.bins import which_are_categorical
from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import as_numbers
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import in_full
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import pooled_score
from optuna_treecv.scoring import response_of
from optuna_treecv.scoring import scores_of_folds
from optuna_treecv.scoring import scores_of_rows
from optuna_treecv.scoring import TestedRows
from optuna_treecv.sharing.exact_results import ExactName
from optuna_treecv.sharing.exact_results import ExactResult
from optuna_treecv.sharing.exact_results import ExactShape
from optuna_treecv.sharing.exact_results import name_of_exact
from optuna_treecv.sharing.forests import KeptForests
from optuna_treecv.tree.walk import TestedBlock


class Grown:
    """Trees of all folds, grown together or one by one.

    Parameters
    ----------
    why : str
        See ``Method``.
    together : bool
        False: each tree is grown alone, for comparison.
    """

    side_by_side: SideBySide | None = None
    is_one_pass = False

    def __init__(self, why: str = "", together: bool = True) -> None:
        self.why = why
        self.together = together
        self.name = "forest" if together else "standard"

    def check(
        self, estimator: Any, of_class: bool = False, searched: Collection[str] = ()
    ) -> None:
        """Refuse wrong parameters."""
        estimator.check_parameters(but=searched)

    def begin(self, request: Request, repeat: Repeat) -> GrownRepeat:
        """Find kept scores, or a forest that answers, or grow one."""
        return GrownRepeat(request, repeat, self.together)


class GrownRepeat(FoundScores):
    """One estimator's way through one repeat.

    Parameters
    ----------
    request : Request
    repeat : Repeat
    together : bool
    """

    seconds_before = 0.0

    def __init__(self, request: Request, repeat: Repeat, together: bool) -> None:
        self._request = request
        self._repeat = repeat
        self._together = together
        self._name = _name_of(request, repeat)
        self.key, self.fingerprint = self._name.key, self._name.fingerprint
        self.n_updates = 0
        shape = _shape(request, repeat)
        self._found = None if request.needs_rows or not together else self._name.find(shape)
        self.seconds_prepare = 0.0
        self._rows: Rows | None = None
        if self._found is None:
            self._rows, self.seconds_prepare = rows_of(
                request.evaluation, request.estimator, repeat
            )

    def blocks(self) -> Generator[TestedBlock]:
        """Yield all blocks at once, after answering if no scores were there."""
        if self._rows is not None:
            self._found = self._answer(self._rows)
            self._rows = None
        assert self._found is not None
        n_rows = self._found.n_needed
        for block in self._repeat.parts:
            yield TestedBlock(block, n_rows)
            n_rows = 0

    def _answer(self, rows: Rows) -> ExactResult:
        """Score the trees under the estimator's settings."""
        request, estimator = self._request, self._request.estimator
        began = perf_counter()
        limits = Limits.of(estimator)
        if self._together:
            forest, is_new = _forest_for(request, self._repeat, rows, self._name)
        else:
            growth = rows.growth(estimator)
            folds = range(growth.n_folds)
            n_jobs = request.evaluation.n_jobs
            forest, is_new = grow_forest(growth, limits, folds, False, n_jobs), True
        found = _scores(request, self._repeat, rows, forest, limits, _shape(request, self._repeat))
        n_standard = self._repeat.cut.n_trained
        found.n_needed = round(forest.share_read * n_standard) if self._together else n_standard
        found.n_updates = self.n_updates = found.n_needed if is_new else 0
        found.seconds = perf_counter() - began
        return found

    def keep(self, n_needed: int, seconds: float) -> None:
        """Keep the scores."""
        assert self._found is not None
        if not self._found.was_kept and self._together:
            self._name.keep(self._found, seconds)


class Rows(NamedTuple):
    """The rows of a repeat, in the order of their folds.

    Attributes
    ----------
    bins : ndarray of shape (n_features, n_rows), uint8
    binning : Binning
    targets : ndarray of shape (n_rows,)
        Class codes or numbers.
    weights, score_weights : ndarray of shape (n_rows,) or None
    classes : ndarray or None
    bounds : ndarray of shape (n_folds + 1,), int64
    seed : int
        For random_state=None.
    """

    bins: np.ndarray
    binning: Binning
    targets: np.ndarray
    weights: np.ndarray | None
    score_weights: np.ndarray | None
    classes: np.ndarray | None
    bounds: np.ndarray
    seed: int

    def growth(self, estimator: HistTree) -> Growth:
        """Return what an estimator's trees are grown from."""
        seed = estimator.seed(self.seed)
        return estimator.growth(
            self.bins,
            self.binning,
            self.targets,
            self.weights,
            self.bounds,
            self.classes,
            seed,
        )


def rows_of(evaluation: Evaluation, estimator: HistTree, repeat: Repeat) -> tuple[Rows, float]:
    """Return the rows of a repeat, and the seconds that took.

    Of the first repeat, those asked for last are kept.
    """
    if repeat.number > 0:
        return _prepare(evaluation, estimator, repeat)
    columns = which_are_categorical(evaluation.data.X, estimator.categorical_features)
    name = type(estimator), estimator.max_bins, columns.tobytes()
    with evaluation.growing:
        if name not in evaluation.binned:
            evaluation.binned.clear()
            evaluation.binned[name] = _prepare(evaluation, estimator, repeat)
        found: tuple[Rows, float] = evaluation.binned[name]
        return found


def _prepare(evaluation: Evaluation, estimator: HistTree, repeat: Repeat) -> tuple[Rows, float]:
    began = perf_counter()
    data, order = evaluation.data, repeat.cut.order
    classes = data.classes() if isinstance(estimator, HistTreeClassifier) else None
    assert data.y is not None  # checked with the scoring
    targets = as_numbers(data.y) if classes is None else as_codes(data.y, classes)
    if classes is not None:
        _warn_of_missing_classes(repeat, targets, classes)
    deciding = None if data.weights is None else np.flatnonzero(data.weights > 0)
    table, binning = estimator.find_bins(data.X, deciding)
    weights, score_weights = (
        None if one is None else one[order] for one in (data.weights, data.score_weights)
    )
    seed = (evaluation.seed + repeat.number) % 2**63
    rows = Rows(
        binning.bins(table, order),
        binning,
        targets[order],
        weights,
        score_weights,
        classes,
        _bounds(repeat),
        seed,
    )
    return rows, perf_counter() - began


def _warn_of_missing_classes(repeat: Repeat, codes: np.ndarray, classes: np.ndarray) -> None:
    """Warn of folds whose training rows lack a class."""
    for code, label in enumerate(classes.tolist()):
        n_trained, _ = repeat.cut.count(codes == code)
        if np.any(n_trained == 0):
            fold = repeat.cut.number(int(np.argmin(n_trained)))
            warn_caller(
                f"The training rows of fold {fold} have no row of class {label!r}, so its tree "
                "never predicts it; stratified folds would be right."
            )
            return


def _bounds(repeat: Repeat) -> np.ndarray:
    assert isinstance(repeat.cut, Folds)  # choice.py has checked it
    return repeat.cut.begins()


def _shape(request: Request, repeat: Repeat) -> ExactShape:
    return ExactShape(len(request.scoring.metrics), repeat.cut.n_folds, True)


def _name_of(request: Request, repeat: Repeat) -> ExactName:
    """Return the name of a request's results on a repeat; it is looked up once."""
    if repeat.number not in request.names:
        evaluation = request.evaluation
        whole = clone(request.estimator)
        limits = Limits.of(whole)
        for name in SHARED_PARAMETERS:
            setattr(whole, name, None)
        seed = None
        if whole.random_state is None:
            seed = evaluation.seed + repeat.number
        data, lasts = evaluation.data_name()
        request.names[repeat.number] = name_of_exact(
            evaluation.shared.cache,
            [whole],
            (*limits, seed),
            (under_configuration(data), lasts),
            evaluation.folds_name(repeat),
            request.scoring,
        )
    found: ExactName = request.names[repeat.number]
    return found


def _forest_for(
    request: Request, repeat: Repeat, rows: Rows, name: ExactName
) -> tuple[Forest, bool]:
    """Return a forest that answers an estimator's settings, and whether it was grown now."""
    evaluation, estimator = request.evaluation, request.estimator
    growth = rows.growth(estimator)
    asked = Limits.of(estimator)
    kept = KeptForests(name.memory, name.of_sums, (repeat.number, growth.seed))
    with evaluation.growing:
        found = kept.find()
        if found is not None and found.covers(asked):
            return found, False
        limits = mildest(asked, evaluation.searched)
        if found is not None:
            limits = wider(limits, found)
        began = perf_counter()
        forest = grow_forest(growth, limits, range(growth.n_folds), n_jobs=evaluation.n_jobs)
        kept.keep(forest, perf_counter() - began)
    return forest, True


def mildest(asked: Limits, searched: Mapping[str, Any]) -> Limits:
    """Return limits that cover those asked for, and all others that a search may ask for.

    Parameters
    ----------
    asked : Limits
    searched : dict
        By parameter, the values at the ends of the search.
    """
    depths = [asked.max_depth, *searched.get("max_depth", ())]
    splits = [asked.min_samples_split, *searched.get("min_samples_split", ())]
    decreases = [asked.min_impurity_decrease, *searched.get("min_impurity_decrease", ())]
    deepest = max(NO_LIMIT if depth is None else min(depth, NO_LIMIT) for depth in depths)
    counts = [one for one in splits if not isinstance(one, float)]
    # A share cannot be compared with a number of rows: then all nodes of two rows may be split.
    least = min(splits) if len(counts) in (0, len(splits)) else 2
    return Limits(deepest, least, min(decreases))


def wider(limits: Limits, found: Forest) -> Limits:
    """Return limits that also cover a forest, and leave room where it did not suffice."""
    depth, split, decrease = found.numbers[:3].tolist()
    most = max(limits.max_depth, int(depth))
    if limits.max_depth > depth:
        most = min(2 * most, NO_LIMIT)
    return Limits(most, 2, 0.0 if limits.min_impurity_decrease < decrease else decrease)


def _scores(
    request: Request,
    repeat: Repeat,
    rows: Rows,
    forest: Forest,
    limits: Limits,
    shape: ExactShape,
) -> ExactResult:
    """Score what the trees say of the rows of their folds."""
    scoring, estimator = request.scoring, request.estimator
    bounds = rows.bounds
    tested = _tested(rows, forest, limits)
    found = ExactResult.empty(shape)
    scored = scores_of_folds(scoring.metrics, tested, estimator, rows.classes)
    found.scores[:], found.diverged[:] = scored.scores, scored.diverged
    if found.spreads is not None:
        found.spreads[:] = in_full(scored.spreads, scored.scores.shape)
    for i, metric in enumerate(scoring.metrics):
        if isinstance(metric, Pooled):
            method = response_of(metric, estimator)
            found.pooled[i] = pooled_score(metric, method, tested, estimator, rows.classes)
    if request.needs_rows:
        tested.begins, tested.weights = None, None
        found.of_rows = scores_of_rows(scoring.first, tested, estimator, rows.classes).astype(
            np.float32
        )
        assert len(found.of_rows) == bounds[-1] - bounds[0]
    return found


def _tested(rows: Rows, forest: Forest, limits: Limits) -> TestedRows:
    """Return what the trees say of the rows of their folds."""
    first = int(rows.bounds[0])
    return TestedRows(
        np.zeros((len(rows.targets) - first, 1)),  # trees are finite
        partial(respond, forest, forest.ends(limits).leaves),
        rows.targets[first:],
        None if rows.score_weights is None else rows.score_weights[first:],
        rows.bounds[:-1] - first,
    )


def respond(forest: Forest, leaves: np.ndarray, method: str) -> np.ndarray:
    """Return the response of the rows of all folds; "predict" gives class codes."""
    if method == "predict":
        says = forest.codes[leaves] if forest.n_classes else forest.values(leaves)
        return forest.by_row(leaves, says)
    shares = shares_of(forest.values(leaves))
    if method == "predict_log_proba":
        with np.errstate(divide="ignore"):
            shares = np.log(shares)
    return forest.by_row(leaves, shares)


def predictions_of_forest(
    evaluation: Evaluation, repeat: Repeat, estimator: Any, method: str
) -> np.ndarray:
    """Return the out-of-fold responses in the order of the rows as given."""
    rows, _ = rows_of(evaluation, estimator, repeat)
    limits = Limits.of(estimator)
    growth = rows.growth(estimator)
    forest = grow_forest(growth, limits, range(growth.n_folds), n_jobs=evaluation.n_jobs)
    prepared = respond(forest, forest.ends(limits).leaves, method)
    if method == "predict" and rows.classes is not None:
        prepared = rows.classes[prepared]
    predictions = np.empty_like(prepared)
    predictions[repeat.cut.order] = prepared
    return predictions


def tree_of_all_rows(evaluation: Evaluation, estimator: Any) -> Any:
    """Return the estimator fitted on all rows, from the forest that its trials share."""
    fitted = clone(estimator)
    rows, _ = rows_of(evaluation, fitted, evaluation.repeats[0])
    fitted.take_tree(forest_of(evaluation, estimator), rows.binning, rows.classes)
    names = evaluation.data.feature_names()
    if names is not None:
        fitted.feature_names_in_ = names
    return fitted


def forest_of(evaluation: Evaluation, estimator: HistTree) -> Forest:
    """Return the forest of an estimator's trials in the first repeat."""
    scoring = evaluation.scoring_for(estimator, is_one_pass=False)
    request, repeat = Request(evaluation, estimator, scoring), evaluation.repeats[0]
    rows, _ = rows_of(evaluation, estimator, repeat)
    return _forest_for(request, repeat, rows, _name_of(request, repeat))[0]


def why_no_forest(evaluation: Evaluation, estimator: Any) -> str:
    """Return why an estimator's trees are not grown together, a clause; "" if they are."""
    cut = evaluation.repeats[0].cut
    if not isinstance(estimator, HistTree):
        return f"{name_of(estimator)} is none of these"
    if not isinstance(cut, Folds):
        return f"the folds must be a partition of the rows: {cut.why_no_tree}"
    if cut.are_single_rows:
        return "each node would be searched once per row that is left out"
    return ""
