"""The engine "neighbors": one neighbour search per fold serves all candidates.

For each test row of a fold, the nearest K training rows are searched for, where K is the largest
``n_neighbors``. The first k of these K neighbours are the result of a search for k if neighbour k
+ 1 is farther away than neighbour k. Otherwise scikit-learn's choice among the equal distances
depends on k, and the row is searched again for k if this choice may change its prediction.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from math import log2
from numbers import Integral
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from sklearn.utils.extmath import row_norms

from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.neighbors.search import fill_tiles
from optuna_treecv.engines.neighbors.search import nearest_by_model
from optuna_treecv.engines.neighbors.search import nearest_in_any_order
from optuna_treecv.engines.neighbors.search import subset_search
from optuna_treecv.engines.neighbors.search import TILE
from optuna_treecv.engines.neighbors.search import uses_tree
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import lay_out
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.fits import make_fold_task
from optuna_treecv.plans.fits import order_in_tree
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.plans.per_fold import PerFoldPlan
from optuna_treecv.plans.per_fold import plan_per_fold
from optuna_treecv.preprocessing.decisions import why_not_rowwise
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.checks import predicted_codes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import ParamValue
from optuna_treecv.types import Targets

#: (n_replaceable, order_matters), two arrays of shape (n_rows, n_neighbors + 1) that describe the
#: effect of equal distances. Column k - 1 is about the first k neighbours of each row.
#: ``n_replaceable`` is the number of them that are tied with neighbour k + 1, and could therefore
#: be replaced by it; 0 if all rows in this tie have the same target. ``order_matters`` is whether
#: the order of tied rows may change the rounding of the sum of their targets.
TieEffects = tuple[Array, Array]

# The maximum size of the cached neighbour lists of all folds in bytes, and also that of the models
# that are cached while a group of folds is evaluated.
_MAX_BYTES = 2**27

# Two distances within this relative tolerance may be treated as equal by a search in a tree,
# because the bounds by which it prunes are rounded. Two sums of votes within this tolerance may
# change places if the votes are added in another order.
_RTOL = 1e-9

# The relative rounding error of a squared distance.
_SQUARES_RTOL = 64 * np.finfo(np.float64).eps

# For weights="distance", the smallest squared distance of a row must be at least this multiple of
# its rounding error. Otherwise the row is searched again.
_MIN_ERRORS = 1e8

# The supported estimators. Subclasses may search differently.
_KINDS = KNeighborsClassifier, KNeighborsRegressor

# The number of columns of ``NeighborLists`` that precede the distances.
_N_HEADER_COLUMNS = 4

# If a callable suggests n_neighbors trial by trial, its range is unknown. Each trial therefore
# searches for at least this number of neighbours, which later trials find in the cache.
_MIN_NEIGHBORS_DEFINE_BY_RUN = 31


def plan_neighbors(request: Request) -> Plan | Declined:
    """Return a plan for a nearest-neighbours estimator, or the reason why it is declined."""
    families: dict[type, type[Family]] = dict.fromkeys(_KINDS, NeighborFolds)
    unsupported = "{} does not search for nearest neighbours"
    return plan_per_fold(request, NeighborsPlan, families, unsupported, _find_reason_declined)


def _find_reason_declined(request: Request, parts: Parts) -> str:
    """Return the reason why one search cannot serve all candidates; "" if it can."""
    data = request.data
    if request.metadata.weights is not None or request.metadata.others:
        name = type(parts.last).__name__
        return f"{name} supports neither sample weights nor other arguments of fit"
    if data.y is None or data.y.dtype.kind not in "biufUSO":
        return "y is missing or has an unsupported dtype"
    if isinstance(parts.last, KNeighborsRegressor) and data.y.dtype.kind not in "biuf":
        return "y is not numeric"
    return NeighborFolds.why_not(parts.last) or why_not_scored(request)


class NeighborsPlan(PerFoldPlan):
    """The plan of one neighbour search per fold.

    Invalid parameters are reported by the errors of scikit-learn's ``fit``.
    """

    name = "neighbors"
    reason = "one search for neighbours serves all values of n_neighbors and weights"
    reason_not_finite = "a prediction is not finite"
    reason_failed = "one search cannot serve all candidates"

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = Capabilities(
            free_parameters=parts.parameters,
            shared_parameters=parts.parameters,
            one_epoch_reason="its models are the training rows, which no further pass changes",
            in_memory_reason="neighbours are searched among all rows",
            falls_back=True,
            evaluates_jointly=True,
        )

    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> "NeighborFolds":
        """Return candidates bound to the rows of a repeat."""
        return NeighborFolds(self, repeat, rows, candidates, method)

    def cost(self) -> str:
        """Return the sentence about the cost that ``explain()`` prints."""
        names = " and ".join(self.parts.parameters)
        return (
            f"For {self.request.cross_validation.folds_in_words}, one search per fold serves all "
            f"values of {names}. Transformers are fitted once per fold."
        )


class NeighborLists(NamedTuple):
    """The nearest training rows of several test rows, as views of one float64 array.

    Attributes
    ----------
    n_certain : ndarray of shape (n_rows,)
        For at most this many neighbours, the list equals that of a refit of the fold, up to ties.
        ``distances`` has at least one more.
    is_float32 : ndarray of shape (n_rows,)
        Whether scikit-learn computes distances and weights in float32.
    rtol, squares_atol : ndarray of shape (n_rows, 1)
        The tolerances for ties. Two distances ``d < e`` differ if ``e - d > rtol * e`` and
        ``(e - d) * e > squares_atol``.
    distances : ndarray of shape (n_rows, n_neighbors + 1)
        In ascending order. Unused columns at the end hold infinity.
    neighbors : ndarray of shape (n_rows, n_neighbors + 1)
        The index of each neighbour in the given X.
    """

    n_certain: Array
    is_float32: Array
    rtol: Array
    squares_atol: Array
    distances: Array
    neighbors: Array

    @classmethod
    def view(cls, array: Array) -> "NeighborLists":
        """Return views of an array of shape (n_rows, 4 + 2 * (n_neighbors + 1))."""
        distances_end = (array.shape[1] + _N_HEADER_COLUMNS) // 2
        rtol, squares_atol, distances, neighbors = np.split(
            array[:, 2:], [1, 2, distances_end - 2], axis=1
        )
        return cls(array[:, 0], array[:, 1], rtol, squares_atol, distances, neighbors)

    def typed_distances(self) -> Array:
        """Return the distances in the dtype in which scikit-learn returns them."""
        return self.distances.astype(np.float32) if self.is_float32.any() else self.distances

    def find_ties(self) -> Array:
        """Return whether each distance equals the next one, or one of them is not finite."""
        following = self.distances[:, 1:]
        with np.errstate(invalid="ignore"):
            gaps = following - self.distances[:, :-1]
            return ~((gaps > self.rtol * following) & (gaps * following > self.squares_atol))


class NeighborFolds(Family):
    """Candidates of ``KNeighborsClassifier`` or ``KNeighborsRegressor``, evaluated on all folds.

    Parameters
    ----------
    plan : NeighborsPlan
    repeat : Repeat
    rows : PreparedRows
        Only their ``classes`` are read.
    candidates : sequence of estimators
    method : str
        The response method of the predictions, such as "predict_proba". If "", all methods that
        the scores need.
    """

    parameters = ("n_neighbors", "weights")

    def __init__(
        self,
        plan: NeighborsPlan,
        repeat: Repeat,
        rows: PreparedRows,
        candidates: Sequence[Candidate],
        method: str,
    ) -> None:
        request, parts = plan.request, plan.parts
        self._folds, self._classes, self._seed = repeat.cut, rows.classes, plan.seed(repeat)
        # If all transformers are stateless, leave-one-out transforms all rows together.
        self._is_stateless = not any(map(why_not_rowwise, parts.steps))
        y: Targets = request.data.y
        # Class codes, or targets of the given dtype, in the order of the given X.
        self._y = y if rows.classes is None else as_codes(y, rows.classes)
        # By chunk, the fitted last step and the test rows; the key None stands for all rows.
        self._models: dict[int | None, tuple[Estimator, Features]] = {}
        scored = [response_of(metric, candidates[0]) for metric in request.scoring.metrics]
        methods = [method] if method else [*scored, *request.stored_methods]
        width = count_targets(self._y)
        self._columns, self._width = lay_out(list(dict.fromkeys(methods)), rows.classes, width)
        self._prefix, self._fold_task = (
            parts.prefix,
            make_fold_task(request, candidates[0], repeat),
        )
        last_steps = [last_step(candidate) for candidate in candidates]
        # By the values of the free parameters, the whole estimator.
        self._estimators = {repr(self._free_params(last_steps[0])): self._fold_task.estimator}
        # Every search is for the largest n_neighbors of the search space, if it is known.
        ranges = request.cross_validation.search.ends
        memory = request.cross_validation.shared.memory
        bounds = ranges.get(f"{parts.prefix}n_neighbors", ())
        if not ranges and memory is not None:
            # A callable suggests trials one by one. n_neighbors is rounded up to the next 2^m - 1,
            # so that later trials usually find their list in the cache.
            sizes = [last.n_neighbors for last in last_steps if isinstance(last.n_neighbors, int)]
            bounds = _MIN_NEIGHBORS_DEFINE_BY_RUN, *(2 ** k.bit_length() - 1 for k in sizes)
        self._max_neighbors = max([0, *(int(k) for k in bounds if isinstance(k, int))])
        # Whether other candidates, of this call or of later ones, may need the same neighbours.
        self._may_recur = memory is not None or len(last_steps) > 1
        super().__init__(last_steps, rows, None, request.settings.n_threads)

    def _free_params(self, last: Estimator) -> dict[str, ParamValue]:
        return {name: getattr(last, name) for name in self.parameters}

    def _bind(self, estimators: Sequence[Estimator]) -> None:
        self._params = [self._free_params(estimator) for estimator in estimators]
        given = [params["n_neighbors"] for params in self._params]
        # 0 stands for an invalid n_neighbors, for which a fit raises scikit-learn's error.
        n_neighbors = [max(0, int(k)) if isinstance(k, Integral) else 0 for k in given]
        self._n_neighbors = np.array(n_neighbors)
        largest = max(self._max_neighbors, *n_neighbors)
        self._max_neighbors = max(1, min(largest, self._folds.n_rows // 2 - 1))
        if self._classes is None:
            n_bits = np.finfo(self._y.dtype if self._y.dtype.kind == "f" else np.float64).nmant
            max_sum = np.abs(self._y.astype(np.float64)).max() * self._max_neighbors
            self._sums_are_exact = _have_few_bits(self._y, n_bits - log2(max(max_sum, 1)))

    def _fit(self, chunk: int | None, params: dict[str, ParamValue]) -> tuple[Estimator, Features]:
        """Fit the estimator with these parameters on the training rows of a chunk.

        Return its fitted last step, and the preprocessed test rows in the order of the splitter.
        If chunk is None, both the training rows and the test rows are all rows.
        """
        if (key := repr(params)) not in self._estimators:
            parameters = {self._prefix + name: value for name, value in params.items()}
            self._estimators[key] = clone(self._fold_task.estimator).set_params(**parameters)
        folds, rows = self._folds, np.arange(self._folds.n_rows)
        train = rows if chunk is None else folds.split(chunk).train_rows()
        test = rows if chunk is None else folds.test_rows(chunk)
        with foreign_code():
            fold_task = replace(self._fold_task, estimator=self._estimators[key])
            last, X = fold_task.last_fitted(b"", train, test)
        return last, np.asarray(X) if isinstance(X, list) else X

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts | None = None) -> str:
        """Return the reason why one search cannot serve all candidates; "" if it can."""
        if callable(estimator.weights):
            return "weights is a function"
        if isinstance(estimator.metric, str) and estimator.metric == "precomputed":
            return "X holds distances"
        return "p is infinite" if estimator.p == np.inf else ""

    def response(self, outputs: Array, method: str) -> Array:
        """Return the columns of a response method; class codes for "predict" of a classifier."""
        columns = outputs[:, self._columns[method]]
        if method == "predict" and self._classes is not None:
            return columns[:, 0].astype(np.intp)
        return columns[:, 0] if method == "predict" and self._y.ndim == 1 else columns

    def test(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Yield the predictions for the test rows of each chunk."""
        bounds, width = (
            chunks.bounds - chunks.bounds[0],
            _N_HEADER_COLUMNS + 2 * (self._max_neighbors + 1),
        )
        groups, search = list(chunks.groups(most_rows, chunks.n_chunks)), self._search
        if self._is_stateless and chunks.are_single_rows:
            search = self._search_leave_one_out
        elif not self._may_recur:  # for a single candidate, its own predictions take less time
            for first, last in groups:
                predicted = in_order(self._n_jobs, self._fit_and_predict, range(first, last))
                yield slice(first, last), np.concatenate(list(predicted))[None]
            return
        all_lists, size = None, width * int(bounds[-1])
        if 8 * size <= _MAX_BYTES:

            def fill(array: Array) -> None:
                for first, last in groups:
                    group = slice(width * bounds[first], width * bounds[last])
                    array[group] = search(first, last).ravel()

            name = f"{self._max_neighbors} neighbors, seed {self._seed}"
            all_lists = keep(name, size, fill).reshape(-1, width)
        for first, last in groups:
            start, stop = int(bounds[first]), int(bounds[last])
            array = search(first, last) if all_lists is None else all_lists[start:stop]
            lists = NeighborLists.view(array)
            values = self._y[lists.neighbors.astype(np.intp)]
            outputs, doubts = self._predict_from_neighbors(
                values,
                lists.typed_distances(),
                range(self.n_candidates),
                self._find_tie_effects(lists, values),
            )
            doubts |= self._find_uncertain(lists)
            doubtful_rows = start + np.flatnonzero(doubts.any(axis=0))
            doubtful_chunks = np.unique(np.searchsorted(bounds, doubtful_rows, "right") - 1)
            for chunk in doubtful_chunks.tolist():
                rows = slice(bounds[chunk] - start, bounds[chunk + 1] - start)
                lists = NeighborLists.view(array[rows])
                self._recompute(chunk, lists, outputs[:, rows], doubts[:, rows])
            self._models.clear()
            yield slice(first, last), outputs

    def _search(self, first: int, last: int) -> Array:
        """Return the array of ``NeighborLists`` for the test rows of consecutive chunks."""
        return np.concatenate(list(in_order(self._n_jobs, self._search_chunk, range(first, last))))

    def _search_chunk(self, chunk: int) -> Array:
        train, order = self._folds.split(chunk).train_rows(), order_in_tree(self._folds, chunk)
        size, (model, X) = self._limit_neighbors(len(train)), self._model(chunk)
        distances, indices = nearest_in_any_order(model, X, size + 1)
        return self._pack(model, size, distances[order], train[indices[order]])

    def _search_leave_one_out(self, first: int, last: int) -> Array:
        """Return the array of ``NeighborLists`` for single test rows, searched among all rows.

        The row itself is removed from its neighbours.
        """
        size = self._limit_neighbors(self._folds.n_rows - 1)
        if None not in self._models:
            self._models[None] = self._fit(None, self._search_params(size))
        model, X = self._models[None]
        tested = self._folds.tested_from(first, last).astype(np.intp)
        distances, indices = nearest_in_any_order(model, take_rows(X, tested), size + 2)
        is_other = indices != tested[:, None]
        is_self_missing = is_other.all(axis=1)  # because of at least size + 2 duplicates
        is_other[is_self_missing, -1] = False
        shape = len(tested), size + 1
        array = self._pack(
            model, size, distances[is_other].reshape(shape), indices[is_other].reshape(shape)
        )
        # The matrix product of many test rows is rounded differently from that of the single test
        # row of a refit.
        lists = NeighborLists.view(array)
        if distances.dtype == np.float32:
            lists.n_certain[:] = 0
        if not uses_tree(model):
            lists.squares_atol[:] = _SQUARES_RTOL * max(1, row_norms(X, squared=True).max())
        return array

    def _pack(self, model: Estimator, size: int, distances: Array, neighbors: Array) -> Array:
        """Return the array of ``NeighborLists`` that holds these distances and neighbours."""
        array = np.zeros((len(distances), _N_HEADER_COLUMNS + 2 * (self._max_neighbors + 1)))
        lists = NeighborLists.view(array)
        lists.n_certain[:], lists.rtol[:] = size, _RTOL if uses_tree(model) else 0
        lists.is_float32[:] = distances.dtype == np.float32
        lists.distances[:] = np.inf
        lists.distances[:, : size + 1], lists.neighbors[:, : size + 1] = distances, neighbors
        return array

    def _limit_neighbors(self, n_train: int) -> int:
        """Return the number of neighbours to search for among this number of training rows.

        The result is below n_train // 2. For more neighbours, algorithm="auto" uses brute force,
        whereas a refit with few neighbours may use a tree.
        """
        return max(0, min(self._max_neighbors, n_train // 2 - 1))

    def _search_params(self, size: int) -> dict[str, ParamValue]:
        return {"n_neighbors": max(1, size), "weights": "uniform"}

    def _model(self, chunk: int) -> tuple[Estimator, Features]:
        """Return the last step, fitted without a chunk, and the chunk's preprocessed test rows."""
        if chunk in self._models:
            return self._models[chunk]
        size = self._limit_neighbors(len(self._folds.split(chunk).train_rows()))
        model, X = self._fit(chunk, self._search_params(size))
        n_bytes = 8 * model.n_samples_fit_ * model.n_features_in_
        if n_bytes * (1 + len(self._models)) <= _MAX_BYTES:
            self._models[chunk] = model, X
        return model, X

    def _find_uncertain(self, lists: NeighborLists) -> Array:
        """Return a mask of predictions that the lists do not determine, (n_candidates, n_rows).

        The candidate needs more neighbours than are certain, or it weights neighbours by the
        inverse of a distance whose rounding error is too large.
        """
        is_weighted = np.array([params["weights"] == "distance" for params in self._params])
        is_rounded = lists.distances[:, 0] ** 2 < _MIN_ERRORS * lists.squares_atol.T
        k = self._n_neighbors[:, None]
        return (k < 1) | (k > lists.n_certain) | (is_weighted[:, None] & is_rounded)

    def _find_tie_effects(self, lists: NeighborLists, values: Array) -> TieEffects:
        """Return, for each k, the effects of the choice and of the order among equal distances."""
        n_replaceable = np.zeros(lists.distances.shape, int)
        order_matters = np.zeros(n_replaceable.shape, bool)
        ties = lists.find_ties()
        rows = np.flatnonzero(ties.any(axis=1))
        if not len(rows):
            return n_replaceable, order_matters
        ties, values = ties[rows], values[rows].reshape(len(rows), values.shape[1], -1)
        is_mixed = np.zeros(values.shape[:2], bool)
        is_mixed[:, 1:] = ties & (values[:, 1:] != values[:, :-1]).any(axis=2)
        is_mixed[:, 1:] |= ties & ~np.isfinite(lists.distances[rows, 1:])
        order_matters[rows] = np.logical_or.accumulate(is_mixed, axis=1)
        is_mixed[:, -1] |= ties[:, -1]  # unlisted rows may have the same distance
        starts_run = np.insert(~ties, 0, True, axis=1)
        run_is_mixed = np.logical_or.reduceat(is_mixed.ravel(), np.flatnonzero(starts_run))
        is_split = ties & run_is_mixed[np.cumsum(starts_run) - 1].reshape(starts_run.shape)[:, :-1]
        columns = np.arange(starts_run.shape[1])
        n_tied = 1 + columns - np.maximum.accumulate(columns * starts_run, axis=1)
        n_replaceable[rows, :-1] = n_tied[:, :-1] * is_split
        return n_replaceable, order_matters

    def _predict_from_neighbors(
        self, values: Array, distances: Array, candidates: Sequence[int], ties: TieEffects
    ) -> tuple[Array, Array]:
        """Return the predictions of candidates for rows, from the neighbours of the rows.

        Parameters
        ----------
        values : ndarray of shape (n_rows, n_neighbors) or (n_rows, n_neighbors, n_targets)
            The targets of the neighbours, in the order of the distances.
        distances : ndarray of shape (n_rows, n_neighbors)
        candidates : sequence of int
            The indices of the candidates.
        ties : TieEffects

        Returns
        -------
        outputs : ndarray of shape (n_candidates, n_rows, width)
        doubts : ndarray of shape (n_candidates, n_rows)
            Whether another choice or order among equal distances may change the prediction.
        """
        outputs = np.empty((len(candidates), len(values), self._width))
        doubts = np.zeros(outputs.shape[:2], bool)
        predict = self._average_targets if self._classes is None else self._count_votes
        for weighting in ("uniform", "distance"):
            positions: dict[int, list[int]] = {}  # of the candidates with each n_neighbors
            for position, candidate in enumerate(candidates):
                if (self._params[candidate]["weights"] or "uniform") == weighting:
                    size = min(int(self._n_neighbors[candidate]), values.shape[1])
                    positions.setdefault(size, []).append(position)
            if positions:
                sizes = sorted(positions)
                weights = None if weighting == "uniform" else _weights_by_distance(distances)
                predictions = predict(values, weights, sizes, ties)
                for size, prediction in zip(sizes, predictions, strict=True):
                    outputs[positions[size]], doubts[positions[size]] = prediction
        return outputs, doubts

    def _average_targets(
        self, values: Array, weights: Array | None, sizes: list[int], ties: TieEffects
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the mean targets of the nearest k neighbours, and a mask of doubtful rows.

        The targets are summed in scikit-learn's order. ``sizes`` holds the ascending values of k.
        """
        n_replaceable, order_matters = ties
        values = values.reshape(*values.shape[:2], -1)
        is_exact = weights is None and self._sums_are_exact
        totals = np.cumsum(values, axis=1) if is_exact else values
        products = np.ascontiguousarray(np.moveaxis(values, 2, 0))  # first axis: targets
        products = products if weights is None else products * weights
        for size in sizes:
            doubts = (n_replaceable[:, size - 1] > 0) | order_matters[:, size - 1]
            if weights is not None:
                with np.errstate(invalid="ignore"):
                    sums = products[:, :, :size].sum(axis=2)
                    yield (sums / weights[:, :size].sum(axis=1)).T, doubts
            elif is_exact:  # the order of summation does not matter
                yield totals[:, size - 1] / size, n_replaceable[:, size - 1] > 0
            else:
                yield values[:, :size].mean(axis=1), doubts

    def _count_votes(
        self, codes: Array, weights: Array | None, sizes: list[int], ties: TieEffects
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the predictions by the votes of the nearest k neighbours, and doubtful rows.

        ``sizes`` holds the ascending values of k. Predictions are class codes, probabilities or
        both, in the columns of ``self._columns``.
        """
        assert self._classes is not None
        votes = np.zeros((len(self._classes), len(codes)))
        cells = codes.astype(np.intp) * len(codes) + np.arange(len(codes))[:, None]
        n_counted = 0
        for size in sizes:
            new = np.s_[:, n_counted:size]
            new_votes = 1.0 if weights is None else weights[new].ravel()
            np.add.at(votes.reshape(-1), cells[new].ravel(), new_votes)  # from near to far
            n_counted, n_replaceable = size, ties[0][:, size - 1]
            outputs, doubts = np.empty((len(codes), self._width)), np.zeros(len(codes), bool)
            for method, columns in self._columns.items():
                if method == "predict_proba":
                    votes_by_row = np.ascontiguousarray(votes.T)
                    totals = votes_by_row.sum(axis=1)
                    with np.errstate(invalid="ignore"):
                        outputs[:, columns] = votes_by_row / totals[:, None]
                    doubts |= ~(totals > 0) | (n_replaceable > 0)
                    continue
                # If classes have equal votes, argmax returns the first one, as in scikit-learn.
                # Another choice among equal distances moves at most ``n_replaceable`` votes from
                # the predicted class to another one, which changes their difference by twice that.
                outputs[:, columns.start] = votes.argmax(axis=0)
                rows = np.flatnonzero(n_replaceable) if weights is None else slice(None)
                vote = 1.0 if weights is None else weights[:, size - 1] * (1 + _RTOL * size)
                margin = (2 * n_replaceable * vote)[rows]
                threshold = votes[:, rows].max(axis=0) * (1 - _RTOL) - margin
                doubts[rows] |= np.count_nonzero(votes[:, rows] >= threshold, axis=0) != 1
            yield outputs, doubts

    def _recompute(self, chunk: int, lists: NeighborLists, outputs: Array, doubts: Array) -> None:
        """Replace the doubtful predictions of a chunk by those of the estimator itself.

        ``lists``, ``outputs`` and ``doubts`` have the test rows in the order of the tree.
        """
        # X has the test rows in the order of the splitter: row i of outputs is row order[i] of X.
        order = order_in_tree(self._folds, chunk)
        inverse = np.argsort(order)
        needs_own_fit = (self._n_neighbors > lists.n_certain[0]) | (self._n_neighbors < 1)
        for candidate in np.flatnonzero(needs_own_fit).tolist():
            outputs[candidate] = self._predict(*self._fit(chunk, self._params[candidate]))[order]
        pending = np.flatnonzero(doubts.any(axis=1) & ~needs_own_fit)
        if not len(pending):
            return
        model, X = self._model(chunk)
        sizes, train = self._n_neighbors[pending], self._folds.split(chunk).train_rows()
        certain = lists.distances[inverse, : int(lists.n_certain[0]) + 1]
        search, has_tree = subset_search(model, X), uses_tree(model)
        # BLAS rounds fewer rows than a tile differently, so a filled tile would not equal them.
        if not has_tree and len(order) < TILE:
            search = None
        if search is not None and not has_tree:
            tested = fill_tiles(order[doubts[pending].any(axis=0)])
            distances, _ = search(take_rows(X, tested), certain.shape[1])
            if not np.array_equal(distances, certain[tested]):
                search = None
        for size in np.unique(sizes).tolist():
            candidates, is_same = pending[sizes == size], False
            if search is not None:
                tested = order[doubts[candidates].any(axis=0)]
                tested = tested if has_tree else fill_tiles(tested)
                distances, indices = search(take_rows(X, tested), size)
                is_same = np.array_equal(distances, certain[tested, :size])
            if not is_same:  # these rows alone are rounded differently from all test rows
                tested = np.arange(len(order))
                distances, indices = nearest_by_model(model, X, size)
            rows = inverse[tested]
            # With several threads and no tree, ``predict`` may choose other tied neighbours.
            if has_tree or _openmp_effective_n_threads() == 1:
                no_ties, values = np.zeros(distances.shape, int), self._y[train[indices]]
                predictions, still_doubtful = self._predict_from_neighbors(
                    values, distances, candidates.tolist(), (no_ties, no_ties > 0)
                )
                outputs[np.ix_(candidates, rows)] = predictions
                candidates = candidates[still_doubtful.any(axis=1)]
            for candidate in candidates.tolist():
                model.set_params(**self._params[candidate])
                outputs[candidate, rows] = self._predict(model, take_rows(X, tested))

    def _fit_and_predict(self, chunk: int) -> Array:
        """Return the predictions of the only candidate for the test rows of a chunk."""
        return self._predict(*self._fit(chunk, self._params[0]))[order_in_tree(self._folds, chunk)]

    def _predict(self, model: Estimator, X: Features) -> Array:
        """Return the predictions of a fitted estimator by all methods, (n_rows, width)."""
        outputs = np.zeros((X.shape[0], self._width))
        for method, columns in self._columns.items():
            with foreign_code():
                response = getattr(model, method)(X)
            if self._classes is None:
                outputs[:, columns] = response.reshape(len(outputs), -1)
            elif method == "predict":
                outputs[:, columns.start] = predicted_codes(response, self._classes)
            else:
                codes = np.searchsorted(self._classes, model.classes_)
                outputs[:, columns.start + codes] = response
        return outputs


def _weights_by_distance(distances: Array) -> Array:
    """Return the weights of neighbours by weights="distance", as scikit-learn does.

    They are inverse distances. If a row has neighbours at distance 0, these weigh 1 and others 0.
    """
    with np.errstate(divide="ignore"):
        weights = 1 / distances
    is_infinite = np.isinf(weights)
    return np.where(is_infinite.any(axis=1, keepdims=True), is_infinite, weights)


def _have_few_bits(values: Array, n_bits: float) -> bool:
    """Return whether no value has more than ``n_bits`` bits after the binary point."""
    scaled = np.ldexp(np.asarray(values, np.float64), int(min(n_bits // 1, 512)))
    return np.array_equal(scaled, np.rint(scaled))
