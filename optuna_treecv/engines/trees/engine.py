"""The engine "forest": the trees of all folds and the tree of all rows are grown jointly.

These trees are called the forest, which is not a random forest. A grown forest serves all
candidates that differ only in parameters that stop growth earlier or prune more. The trials of a
study therefore share it.
"""

from collections.abc import Generator
from collections.abc import Mapping
from functools import cache
from functools import partial
from time import perf_counter

import numpy as np
from sklearn.base import clone

from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.results import ScoreCache
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import results_of
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Work
from optuna_treecv.core.fold_models import check_n_models
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.core.request import score_cache
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.engines.trees.estimators import class_fractions
from optuna_treecv.engines.trees.estimators import HistTree
from optuna_treecv.engines.trees.estimators import HistTreeClassifier
from optuna_treecv.engines.trees.estimators import SHARED_PARAMETERS
from optuna_treecv.engines.trees.estimators import weakest_links
from optuna_treecv.engines.trees.forest import BinnedRows
from optuna_treecv.engines.trees.forest import Forest
from optuna_treecv.engines.trees.forest import grow_forest
from optuna_treecv.engines.trees.forest import Limits
from optuna_treecv.engines.trees.forest import NO_LIMIT
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.plans.fits import describe_trainings
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.rows.bins import which_are_categorical
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import ParamValue


def plan_trees(request: Request, is_joint: bool = True) -> Plan | Declined:
    """Return a plan for HistTree estimators, or the reason why others are declined.

    Parameters
    ----------
    request : Request
    is_joint : bool
        Whether trees are grown jointly, by the plan "forest". If not, each tree is grown alone, by
        the plan "standard".
    """
    estimator = request.estimator
    if reason := _find_reason_declined(request):
        is_tree = isinstance(estimator, HistTree)
        advice = (
            f"method={request.settings.method!r} cannot evaluate this estimator, because "
            f"{reason}; use method='fit' instead."
        )
        relevance = 2 if isinstance(last_step(estimator), HistTree) else 0
        return Declined(reason, advice, () if is_tree else estimator.get_params(), relevance)
    estimator.check_parameters(but=request.searched)
    return ForestPlan(request, is_joint)


def _find_reason_declined(request: Request) -> str:
    """Return the reason why the trees of all folds cannot be grown jointly; "" if they can."""
    folds, estimator = request.cross_validation.repeats[0].cut, request.estimator
    if not isinstance(estimator, HistTree):
        return f"{name_of(estimator)} is neither a HistTreeClassifier nor a HistTreeRegressor"
    if not isinstance(folds, Folds):
        reason = folds.why_no_tree or "the training sets grow from fold to fold"
        return f"the folds are not a partition of the rows: {reason}"
    if folds.n_tested == folds.n_folds:
        if request.settings.method == "auto":
            raise ValueError(
                f"cv must have folds of several rows for {name_of(estimator)}, got leave-one-out, "
                "for which the split of each node would be searched once per row; use cv=10 or "
                "method='fit' instead."
            )
        return "the split of each node would be searched once per held-out row"
    return request.metadata.reason_not_from_sums(estimator) or why_not_scored(request)


class ForestPlan(Plan):
    """The plan "forest", or "standard" if each tree is grown alone, for comparison.

    One forest serves all values of the parameters that only stop growth or prune.
    """

    reason = "the trees of all folds are grown together"

    def __init__(self, request: Request, is_joint: bool = True) -> None:
        super().__init__(request)
        self.name = "forest" if is_joint else "standard"
        self._is_joint = is_joint
        self.capabilities = Capabilities(
            one_epoch_reason="its trees are grown once, from all training rows",
            in_memory_reason="trees are grown from all rows at once",
            evaluates_jointly=True,
        )

    def cost(self) -> str:
        """Return a sentence about the cost and the parameters whose values are nearly free."""
        if not self._is_joint:
            return describe_trainings(self.request, "trainings of one pass")
        folds = self.request.cross_validation.folds_in_words
        return (
            f"For {folds} and {self.request.data.n_rows:,} rows, the trees of all folds and the "
            "tree of all rows are grown together; further values of max_depth, "
            "min_samples_split, min_impurity_decrease and ccp_alpha are nearly free."
        )

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the scores."""
        if not self._is_joint:
            return Results()
        return results_of(self.request, repeat, self.stored_scores(candidate, repeat))

    def stored_scores(self, candidate: Candidate, repeat: Repeat) -> ScoreCache:
        """Return the cache for the scores of a candidate on a repeat."""
        parts = [clone(candidate).set_params(**dict.fromkeys(SHARED_PARAMETERS))]
        seed = None
        if candidate.random_state is None:
            seed = self.request.settings.seed + repeat.number
        point = *Limits.of(candidate), seed
        return score_cache(self.request, repeat, "forest", parts).for_candidate(point)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Find or grow a forest that covers the candidate's limits, and test its trees."""
        (candidate,), (sink,), repeat, *_ = work
        request = self.request
        rows, sink.cost.seconds_prepare = self.rows(candidate, repeat)
        limits, n_standard = Limits.of(candidate), repeat.cut.n_trained
        if self._is_joint:
            forest, is_new = self.find_or_grow(candidate, repeat, rows)
            n_needed = round(forest.share_read * n_standard)
        else:
            seed, n_threads = candidate.seed(rows.seed), request.settings.n_threads
            forest = grow_forest(candidate, rows, limits, seed, False, n_threads)
            is_new, n_needed = True, n_standard
        sink.cost.n_updates += n_needed if is_new else 0
        first = int(rows.bounds[0])

        @cache
        def predictions(method: str) -> Array:
            return predict_test_rows(forest, forest.prune(limits)[1], method)

        tested = TestedRows.of(
            rows,
            slice(first, None),
            np.arange(len(rows.targets) - first, dtype=float)[:, None],  # row indices
            lambda indices, method: predictions(method)[indices[:, 0].astype(np.intp)],
            rows.bounds[:-1] - first,
        )
        yield TestedFolds(0, repeat.plan.root, n_needed, tested)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Return the prediction for each row by the tree that holds out its fold."""
        rows, _ = self.rows(candidate, repeat)
        forest, _ = self.find_or_grow(candidate, repeat, rows)
        prepared = predict_test_rows(forest, forest.prune(Limits.of(candidate))[1], method)
        labels = rows.classes if method == "predict" else None
        return in_given_order(prepared, repeat.cut.order, labels)

    def fold_models(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Return the trees that hold out a fold, from the forest that all candidates share."""
        check_n_models(candidate, repeat.cut.n_folds)
        rows, _ = self.rows(candidate, repeat)
        forest, _ = self.find_or_grow(candidate, repeat, rows)
        numbers = range(1, repeat.cut.n_folds + 1)  # the tree of all rows is the first one
        return FoldModels([self._fitted(candidate, forest, rows, number) for number in numbers])

    def fit(self, candidate: Candidate) -> Estimator:
        """Return the tree of all rows, from the forest that all candidates share."""
        rows, _ = self.rows(candidate, self.repeats[0])
        return self._fitted(candidate, self.first_forest(candidate), rows, 0)

    def _fitted(
        self, candidate: Candidate, forest: Forest, rows: BinnedRows, number: int
    ) -> Estimator:
        fitted = clone(candidate)
        fitted.take_tree(forest, rows.binning, rows.classes, number)
        names = self.request.data.feature_names()
        if names is not None:
            fitted.feature_names_in_ = names
        return fitted

    def agreement(self, candidate: Candidate) -> Array:
        """Return the fraction of rows in nodes shared with the tree of all rows, by depth."""
        return self.first_forest(candidate).agreement(Limits.of(candidate))

    def pruning_path(self, candidate: Candidate) -> tuple[Array, Array]:
        """Return the penalties at which the tree of all rows is pruned, and its leaf counts."""
        tree = self.first_forest(candidate).tree(0, Limits.of(candidate))
        alphas, _, n_leaves = weakest_links(tree.nodes)
        is_last = np.append(alphas[1:] > alphas[:-1], True)  # keep the last of equal penalties
        return alphas[is_last], n_leaves[is_last]

    def first_forest(self, candidate: Candidate) -> Forest:
        """Return a forest that covers the candidate's limits on the first repeat."""
        repeat = self.repeats[0]
        rows, _ = self.rows(candidate, repeat)
        return self.find_or_grow(candidate, repeat, rows)[0]

    def find_or_grow(
        self, candidate: Candidate, repeat: Repeat, rows: BinnedRows
    ) -> tuple[Forest, bool]:
        """Return a forest that covers a candidate's limits, and whether it is new."""
        cross_validation, seed = self.request.cross_validation, candidate.seed(rows.seed)
        needed, n_threads = Limits.of(candidate), self.request.settings.n_threads

        def grow(smaller: Forest | None) -> Forest:
            limits = _loosen_limits(needed, cross_validation.search.ends, smaller)
            return grow_forest(candidate, rows, limits, seed, n_threads=n_threads)

        sums_key = self.stored_scores(candidate, repeat).sums_key
        # A forest is cached, but not stored: it is large, and growing it again takes little time.
        cache = cross_validation.shared.memory
        if cache is None or not sums_key:
            return grow(None), True
        key, smaller = Key(sums_key, b"", b"", b"forest %d" % seed), None
        while (cached := cache.claim(key)) is not None:
            if cached.covers(needed):
                return cached, False
            smaller = cache.take(key)
        try:
            began, forest = perf_counter(), grow(smaller)
            cache.keep(key, forest, perf_counter() - began)
        finally:
            cache.release(key)
        return forest, True

    def rows(self, estimator: HistTree, repeat: Repeat) -> tuple[BinnedRows, float]:
        """Return the binned rows of a repeat, and the time of binning in seconds.

        On the first repeat, the most recent result is cached.
        """
        if repeat.number > 0:
            return self._prepare(estimator, repeat)
        columns = which_are_categorical(self.request.data.X, estimator.categorical_features)
        name = type(estimator), estimator.max_bins, columns.tobytes()
        make = partial(self._prepare, estimator, repeat)
        return self.request.cross_validation.last("binned rows", name, make)

    def _prepare(self, estimator: HistTree, repeat: Repeat) -> tuple[BinnedRows, float]:
        began = perf_counter()
        data, order = self.request.data, repeat.cut.order
        classes = data.classes() if isinstance(estimator, HistTreeClassifier) else None
        assert data.y is not None  # checked with the scoring
        targets = as_numbers(data.y) if classes is None else as_codes(data.y, classes)
        for code, label in enumerate(() if classes is None else classes.tolist()):
            n_trained, _ = repeat.cut.count(targets == code)
            if np.any(n_trained == 0):
                fold = repeat.cut.number(int(np.argmin(n_trained)))
                warn_caller(
                    f"The training set of fold {fold} has no row of class {label!r}, so its "
                    "tree never predicts this class; use stratified folds instead."
                )
                break
        weighted_rows = None if data.weights is None else np.flatnonzero(data.weights > 0)
        table, binning = estimator.find_bins(data.X, weighted_rows)
        weights, score_weights = (
            None if w is None else w[order] for w in (data.weights, data.score_weights)
        )
        seed = (self.request.settings.seed + repeat.number) % 2**63
        assert isinstance(repeat.cut, Folds)  # other splits are declined
        rows = BinnedRows(
            binning.bins(table, order),
            binning,
            targets[order],
            classes,
            repeat.cut.begins(),
            weights,
            score_weights,
            seed,
        )
        return rows, perf_counter() - began


def _loosen_limits(
    limits: Limits, ranges: Mapping[str, tuple[ParamValue, ...]], smaller: Forest | None
) -> Limits:
    """Return limits under which a forest serves a candidate and all others of the search.

    Parameters
    ----------
    limits : Limits
        The limits of the candidate.
    ranges : dict
        The lower and upper bound of each searched parameter.
    smaller : Forest or None
        A forest that does not cover the candidate. The returned limits cover both this forest and
        the candidate, with some margin for later candidates.
    """
    depths = [limits.max_depth, *ranges.get("max_depth", ())]
    splits = [limits.min_samples_split, *ranges.get("min_samples_split", ())]
    decreases = [limits.min_impurity_decrease, *ranges.get("min_impurity_decrease", ())]
    deepest = max(NO_LIMIT if depth is None else min(depth, NO_LIMIT) for depth in depths)
    counts = [split for split in splits if not isinstance(split, float)]
    # A fraction cannot be compared with a number of rows. If both occur, trees are grown with the
    # smallest possible value, 2.
    least = min(splits) if len(counts) in (0, len(splits)) else 2
    if smaller is None:
        return Limits(deepest, least, min(decreases))
    depth, _, decrease = smaller.summary[:3].tolist()
    max_depth = int(depth) if deepest <= depth else min(2 * deepest, NO_LIMIT)
    return Limits(max_depth, 2, 0.0 if min(decreases) < decrease else decrease)


def predict_test_rows(forest: Forest, leaves: Array, method: str) -> Array:
    """Return the predictions for the test rows of all folds; class codes for "predict"."""
    if method == "predict":
        values = forest.codes[leaves] if forest.n_classes else forest.values(leaves)
        return forest.expand_to_rows(leaves, values)
    probabilities = class_fractions(forest.values(leaves))
    if method == "predict_log_proba":
        with np.errstate(divide="ignore"):
            probabilities = np.log(probabilities)
    return forest.expand_to_rows(leaves, probabilities)
