"""The engine "forest": the trees of all folds, and that of all rows, are grown jointly.

A grown forest serves all settings that only stop or prune, so the trials of a study share it.
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
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.core.request import score_cache
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.engines.trees.estimators import HistTree
from optuna_treecv.engines.trees.estimators import HistTreeClassifier
from optuna_treecv.engines.trees.estimators import SHARED_PARAMETERS
from optuna_treecv.engines.trees.estimators import shares_of
from optuna_treecv.engines.trees.estimators import weakest_links
from optuna_treecv.engines.trees.forest import BinnedRows
from optuna_treecv.engines.trees.forest import Forest as Trees
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


def plan_trees(request: Request, are_together: bool = True) -> Plan | Declined:
    """Return the plan "forest", "standard" if not ``are_together``, or the reason why not."""
    estimator = request.estimator
    if why_not := _why_not(request):
        is_tree = isinstance(estimator, HistTree)
        advice = (
            f"method={request.settings.method!r} needs a HistTreeClassifier or a "
            "HistTreeRegressor, and a partition of the rows into folds of several rows each, but "
            f"{why_not}; use method='fit' instead."
        )
        relevance = 2 if isinstance(last_step(estimator), HistTree) else 0
        return Declined(why_not, advice, () if is_tree else estimator.get_params(), relevance)
    estimator.check_parameters(but=request.searched)
    return ForestPlan(request, are_together)


def _why_not(request: Request) -> str:
    """Return the reason why an estimator's trees are not grown jointly; "" if they are."""
    cut, estimator = request.cross_validation.repeats[0].cut, request.estimator
    if not isinstance(estimator, HistTree):
        return f"{name_of(estimator)} is neither a HistTreeClassifier nor a HistTreeRegressor"
    if not isinstance(cut, Folds):
        why = cut.why_no_tree or "the training sets of its folds grow"
        return f"the folds are not a partition of the rows: {why}"
    if cut.n_tested == cut.n_folds:
        if request.settings.method == "auto":
            raise ValueError(
                f"cv must have folds of several rows for {name_of(estimator)}, got leave-one-out, "
                "which searches each node once per row; use cv=10 or method='fit' instead."
            )
        return "each node would be searched once per held-out row"
    return request.metadata.reason_not_from_sums(estimator) or why_not_scored(request)


class ForestPlan(Plan):
    """The plan "forest": one forest for all values of parameters that only stop or prune."""

    reason = "the trees of all folds are grown together"

    def __init__(self, request: Request, are_together: bool = True) -> None:
        super().__init__(request)
        self.name = "forest" if are_together else "standard"
        self._are_together = are_together
        self.capabilities = Capabilities(
            one_epoch_reason="its trees are grown from all rows at once",
            in_memory_reason="trees grow on all rows at once",
            evaluates_jointly=True,
        )

    def cost(self) -> str:
        """Return a sentence on the growth, and on the parameters that are nearly free."""
        if not self._are_together:
            return describe_trainings(self.request, "trainings of one pass")
        folds = self.request.cross_validation.folds_in_words
        return (
            f"{folds[0].upper()}{folds[1:]} of {self.request.data.n_rows:,} rows and the tree of "
            "all rows are grown at once; further values of max_depth, min_samples_split, "
            "min_impurity_decrease and ccp_alpha are nearly free."
        )

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the scores."""
        if not self._are_together:
            return Results()
        return results_of(self.request, repeat, self.stored_scores(candidate, repeat))

    def stored_scores(self, candidate: Candidate, repeat: Repeat) -> ScoreCache:
        """Return the stored scores of a candidate."""
        parts = [clone(candidate).set_params(**dict.fromkeys(SHARED_PARAMETERS))]
        seed = None
        if candidate.random_state is None:
            seed = self.request.settings.seed + repeat.number
        point = *Limits.of(candidate), seed
        return score_cache(self.request, repeat, "forest", parts).for_candidate(point)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Find or grow a forest that covers the candidate's limits, and test its trees."""
        (candidate,), (sink,), repeat, *_ = work
        request, cut = self.request, repeat.cut
        rows, sink.cost.seconds_prepare = self.rows(candidate, repeat)
        limits, n_standard = Limits.of(candidate), cut.n_trained
        if self._are_together:
            forest, is_new = self.forest_for(candidate, repeat, rows)
            n_needed = round(forest.share_read * n_standard)
        else:
            seed, n_threads = candidate.seed(rows.seed), request.settings.n_threads
            forest = grow_forest(candidate, rows, limits, seed, False, n_threads)
            is_new, n_needed = True, n_standard
        sink.cost.n_updates += n_needed if is_new else 0
        first = int(rows.bounds[0])

        @cache
        def predictions(method: str) -> Array:
            return respond(forest, forest.ends(limits)[1], method)

        tested = TestedRows.of(
            rows,
            slice(first, None),
            np.arange(len(rows.targets) - first, dtype=float)[:, None],  # the numbers of rows
            lambda numbers, method: predictions(method)[numbers[:, 0].astype(np.intp)],
            rows.bounds[:-1] - first,
        )
        yield TestedFolds(0, repeat.plan.root, n_needed, tested)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Return the predictions for all rows, each by the tree that did not see it."""
        rows, _ = self.rows(candidate, repeat)
        forest, _ = self.forest_for(candidate, repeat, rows)
        prepared = respond(forest, forest.ends(Limits.of(candidate))[1], method)
        labels = rows.classes if method == "predict" else None
        return in_given_order(prepared, repeat.cut.order, labels)

    def fit(self, candidate: Candidate) -> Estimator:
        """Return the tree of all rows, from the forest that all candidates share."""
        fitted = clone(candidate)
        rows, _ = self.rows(fitted, self.repeats[0])
        fitted.take_tree(self.forest_of(candidate), rows.binning, rows.classes)
        names = self.request.data.feature_names()
        if names is not None:
            fitted.feature_names_in_ = names
        return fitted

    def agreement(self, candidate: Candidate) -> Array:
        """Return, by depth, the share of rows in nodes that folds share with the full tree."""
        return self.forest_of(candidate).agreement(Limits.of(candidate))

    def pruning_path(self, candidate: Candidate) -> tuple[Array, Array]:
        """Return the penalties at which the tree of all rows changes, and its leaf counts."""
        tree = self.forest_of(candidate).tree(0, Limits.of(candidate))
        alphas, _, n_leaves = weakest_links(tree.nodes)
        is_last = np.append(alphas[1:] > alphas[:-1], True)  # the last of equal penalties
        return alphas[is_last], n_leaves[is_last]

    def forest_of(self, candidate: Candidate) -> Trees:
        """Return the forest of all candidates on the first repeat."""
        repeat = self.repeats[0]
        rows, _ = self.rows(candidate, repeat)
        return self.forest_for(candidate, repeat, rows)[0]

    def forest_for(
        self, candidate: Candidate, repeat: Repeat, rows: BinnedRows
    ) -> tuple[Trees, bool]:
        """Return a forest that covers a candidate's limits, and whether it is new."""
        cross_validation, seed = self.request.cross_validation, candidate.seed(rows.seed)
        of_candidate, n_threads = Limits.of(candidate), self.request.settings.n_threads

        def grow(smaller: Trees | None) -> Trees:
            limits = _mild_limits(of_candidate, cross_validation.search.ends, smaller)
            return grow_forest(candidate, rows, limits, seed, n_jobs=n_threads)

        sums_key = self.stored_scores(candidate, repeat).sums_key
        # A forest is not stored, because it is large and soon grown again.
        cache = cross_validation.shared.memory
        if cache is None or not sums_key:
            return grow(None), True
        key, smaller = Key(sums_key, b"", b"", b"forest %d" % seed), None
        while (cached := cache.claim(key)) is not None:
            if cached.covers(of_candidate):
                return cached, False
            smaller = cache.take(key)
        try:
            began, forest = perf_counter(), grow(smaller)
            cache.keep(key, forest, perf_counter() - began)
        finally:
            cache.release(key)
        return forest, True

    def rows(self, estimator: HistTree, repeat: Repeat) -> tuple[BinnedRows, float]:
        """Return the binned rows of a repeat, and the seconds of binning.

        The last rows of the first repeat are cached.
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
                    f"The training rows of fold {fold} have no row of class {label!r}, so its "
                    "tree never predicts it; use stratified folds instead."
                )
                break
        deciding = None if data.weights is None else np.flatnonzero(data.weights > 0)
        table, binning = estimator.find_bins(data.X, deciding)
        weights, score_weights = (
            None if w is None else w[order] for w in (data.weights, data.score_weights)
        )
        seed = (self.request.settings.seed + repeat.number) % 2**63
        assert isinstance(repeat.cut, Folds)  # the engine has checked it
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


def _mild_limits(
    limits: Limits, searched: Mapping[str, tuple[ParamValue, ...]], smaller: Trees | None
) -> Limits:
    """Return limits that cover those of an estimator and of all candidates of a search.

    Parameters
    ----------
    limits : Limits
    searched : dict
        By parameter, the values at the ends of its range.
    smaller : Forest or None
        A forest that did not cover the candidate. The limits cover it too, with some margin.
    """
    depths = [limits.max_depth, *searched.get("max_depth", ())]
    splits = [limits.min_samples_split, *searched.get("min_samples_split", ())]
    decreases = [limits.min_impurity_decrease, *searched.get("min_impurity_decrease", ())]
    deepest = max(NO_LIMIT if depth is None else min(depth, NO_LIMIT) for depth in depths)
    counts = [split for split in splits if not isinstance(split, float)]
    # A share cannot be compared with a number of rows; with both, nodes of two rows may be split.
    least = min(splits) if len(counts) in (0, len(splits)) else 2
    if smaller is None:
        return Limits(deepest, least, min(decreases))
    depth, _, decrease = smaller.numbers[:3].tolist()
    most = int(depth) if deepest <= depth else min(2 * deepest, NO_LIMIT)
    return Limits(most, 2, 0.0 if min(decreases) < decrease else decrease)


def respond(forest: Trees, leaves: Array, method: str) -> Array:
    """Return the predictions for the rows of all folds; "predict" gives class codes."""
    if method == "predict":
        values = forest.codes[leaves] if forest.n_classes else forest.values(leaves)
        return forest.by_row(leaves, values)
    shares = shares_of(forest.values(leaves))
    if method == "predict_log_proba":
        with np.errstate(divide="ignore"):
            shares = np.log(shares)
    return forest.by_row(leaves, shares)
