"""The engine "neighbors": one search for the neighbours of all test rows serves many settings.

One search per fold, for the largest ``n_neighbors``, serves smaller ones and both ``weights``. The
first k of K neighbours equal the result of a search for k if neighbour k + 1 is farther away.
Otherwise scikit-learn's choice among equal distances depends on k, so that the row is searched
again.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
from optuna_treecv.engines.neighbors.search import is_tree
from optuna_treecv.engines.neighbors.search import nearest_by_model
from optuna_treecv.engines.neighbors.search import nearest_in_any_order
from optuna_treecv.engines.neighbors.search import part_search
from optuna_treecv.engines.neighbors.search import TILE
from optuna_treecv.engines.neighbors.search import whole_tiles
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import lay_out
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.fits import make_fold_task
from optuna_treecv.plans.fits import order_in_tree
from optuna_treecv.plans.joint import JointPlan
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.preprocessing.decisions import why_not_rowwise
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.preprocessing.parts import steps_before
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.checks import predicted_codes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import ParamValue
from optuna_treecv.types import Targets

#: Two arrays of shape (n_rows, n_neighbors); column k - 1 describes the first k neighbours.
#: n_chosen: how many of them are tied with neighbour k + 1, so others could have been chosen; 0 if
#: all tied rows have the same target. order_matters: whether their sum depends on the order of
#: tied rows.
Choices = tuple[Array, Array]

# The neighbour lists of all folds, and fitted models, are cached up to this number of bytes.
_MOST_BYTES = 2**27

# Tree searches prune by rounded bounds, so distances within this relative tolerance may be treated
# as equal. Sums of votes within it depend on the order of summation.
_RTOL = 1e-9

# The relative rounding error of a squared distance.
_SQUARES_RTOL = 64 * np.finfo(np.float64).eps

# By how many times this error a squared distance must exceed 0 before 1/distance is a weight.
_LEAST_ERRORS = 1e8

# The columns before the distances in ``Lists``.
_N_HEADER_COLUMNS = 4

# A define-by-run callable does not reveal the range of n_neighbors. Its trials search for at least
# this many, so that later trials find them cached.
_LEAST_IF_DEFINE_BY_RUN = 31


def plan_neighbors(request: Request) -> Plan | Declined:
    """Return a plan for an estimator that searches for neighbours."""
    estimator = request.estimator
    parts = _divide(estimator)
    why_not = parts if isinstance(parts, str) else _why_not(request, parts)
    if isinstance(parts, str) or why_not:
        advice = (
            "method='neighbors' must have a KNeighborsClassifier or a KNeighborsRegressor, alone "
            f"or at the end of a Pipeline, but {why_not}; use method='auto' instead."
        )
        free = estimator.get_params() if isinstance(parts, str) else parts.parameters
        return Declined(why_not, advice, free, 0 if isinstance(parts, str) else 2)
    return NeighborsPlan(request, parts)


def _divide(estimator: Estimator) -> Parts | str:
    """Return the parts of an estimator, or the reason why the engine does not take it.

    Any transformers are allowed; they are fitted per fold.
    """
    prefix, last = divided(estimator)
    if type(last) not in (KNeighborsClassifier, KNeighborsRegressor):
        return f"{type(last).__name__} does not search for nearest neighbours"
    steps = tuple(step for _, step in steps_before(estimator))
    return Parts(steps, None, last, NeighborFolds, prefix, {})


def _why_not(request: Request, parts: Parts) -> str:
    """Return the reason why one search does not serve all settings; "" if it does."""
    data = request.data
    if request.metadata.weights is not None or request.metadata.others:
        return f"{type(parts.last).__name__} takes no weights and no further arguments"
    if data.y is None or data.y.dtype.kind not in "biufUSO":
        return "y is missing"
    if isinstance(parts.last, KNeighborsRegressor) and data.y.dtype.kind not in "biuf":
        return "y is not numeric"
    return NeighborFolds.why_not(parts.last) or why_not_scored(request)


class NeighborsPlan(JointPlan):
    """One search per fold; scikit-learn's fit raises the errors of invalid parameters."""

    name = "neighbors"
    reason = "one search for neighbours serves all values of n_neighbors and weights"
    reason_not_finite = "a prediction is not finite"
    reason_failed = "one search cannot serve all settings"

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = Capabilities(
            free_parameters=parts.parameters,
            shared_parameters=parts.parameters,
            one_epoch_reason="its models are the training rows, which more passes do not change",
            in_memory_reason="neighbours are searched among all rows",
            falls_back=True,
            evaluates_jointly=True,
        )

    def free_values(self, candidate: Candidate, repeat: Repeat) -> object:
        """Return the values of free parameters, and the seed of transformers without one."""
        point, seed = super().free_values(candidate, repeat), self.seed(repeat)
        return point if seed is None else (point, seed)

    def seed(self, repeat: Repeat) -> int | None:
        """Return the seed of the fits of a repeat; None if the estimator has all its seeds."""
        lacks_one = self.compute_once("unset seeds", partial(unset_seeds, self.request.estimator))
        return self.request.settings.seed + repeat.number if lacks_one else None

    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the targets in prepared order; the rows are in the given order."""
        target = "number" if self.request.classes is None else "class"

        def numbers(X: Features) -> Array:
            return np.arange(self.request.data.n_rows, dtype=np.float64)[:, None]

        layout, name = RowLayout(target=target), b"numbers of rows"
        return self.request.cross_validation.rows_in(layout, repeat, numbers, name)

    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> "NeighborFolds":
        """Return candidates bound to the rows in the given order."""
        return NeighborFolds(self, repeat, rows, candidates, method)

    def cost(self) -> str:
        """Return the sentence on the cost for ``explain()``."""
        names = " and ".join(self.parts.parameters)
        return (
            f"One search per fold in {self.request.cross_validation.folds_in_words} serves all "
            f"values of {names}; transformers are fitted once per fold."
        )


class Lists(NamedTuple):
    """The nearest neighbours of some test rows, as views of an array of float64.

    Attributes
    ----------
    n_certain : ndarray of shape (n_rows,)
        The number of neighbours of each row that are certain; the next distance follows them.
    are_single : ndarray of shape (n_rows,)
        Whether distances and weights are float32 in scikit-learn.
    share, product : ndarray of shape (n_rows, 1)
        Two distances differ if their difference exceeds this share of the larger one, and times
        the larger one exceeds this product.
    distances : ndarray of shape (n_rows, n_neighbors + 1)
        In ascending order, followed by infinities.
    neighbors : ndarray of shape (n_rows, n_neighbors + 1)
        The numbers of rows in the given order.
    """

    n_certain: Array
    are_single: Array
    share: Array
    product: Array
    distances: Array
    neighbors: Array

    @classmethod
    def of(cls, memory: Array) -> "Lists":
        """Return the views of an array (n_rows, 4 + 2 (n_neighbors + 1))."""
        distances_end = (memory.shape[1] + _N_HEADER_COLUMNS) // 2
        share, product, distances, neighbors = np.split(
            memory[:, 2:], [1, 2, distances_end - 2], axis=1
        )
        return cls(memory[:, 0], memory[:, 1], share, product, distances, neighbors)

    def typed_distances(self) -> Array:
        """Return the distances in the type that scikit-learn returns."""
        return self.distances.astype(np.float32) if self.are_single.any() else self.distances

    def ties(self) -> Array:
        """Return a mask of distances equal to the next one, or not finite."""
        further = self.distances[:, 1:]
        with np.errstate(invalid="ignore"):
            step = further - self.distances[:, :-1]
            return ~((step > self.share * further) & (step * further > self.product))


class NeighborFolds(Family):
    """``KNeighborsClassifier`` or ``KNeighborsRegressor`` on all folds.

    Parameters
    ----------
    plan : NeighborsPlan
    repeat : Repeat
    rows : PreparedRows
        Only their classes are read.
    candidates : sequence of estimators
    method : str
        The method of predictions; "": the methods that the scores need.
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
        self._cut, self._classes, self._seed = repeat.cut, rows.classes, plan.seed(repeat)
        # Whether leave-one-out can transform all rows once, because all transformers are
        # stateless.
        self._is_stateless = not any(map(why_not_rowwise, parts.steps))
        y: Targets = request.data.y
        # Class codes, or numbers of the given type, in the given order.
        self._y = y if rows.classes is None else as_codes(y, rows.classes)
        self._models: dict[int, tuple[Estimator, Features]] = {}
        scored = [response_of(metric, candidates[0]) for metric in request.scoring.metrics]
        methods = [method] if method else [*scored, *request.stored_methods]
        width = count_targets(self._y)
        self._columns, self._width = lay_out(list(dict.fromkeys(methods)), rows.classes, width)
        self._prefix, self._folds = parts.prefix, make_fold_task(request, candidates[0], repeat)
        points = [last_step(candidate) for candidate in candidates]
        self._at = {repr(self._values(points[0])): self._folds.estimator}
        # The number of neighbours to search for, at least that of each point.
        searched = request.cross_validation.search.ends
        memory = request.cross_validation.shared.memory
        ends = searched.get(f"{parts.prefix}n_neighbors", ())
        if not searched and memory is not None:
            # A callable suggests trials one by one: most need no more neighbours than these.
            sizes = [p.n_neighbors for p in points if isinstance(p.n_neighbors, int)]
            ends = _LEAST_IF_DEFINE_BY_RUN, *(2 ** size.bit_length() - 1 for size in sizes)
        self._most = max([0, *(int(end) for end in ends if isinstance(end, int))])
        # Whether other points may need the same neighbours.
        self._may_recur = memory is not None or len(points) > 1
        super().__init__(points, rows, None, request.settings.n_threads)

    def _values(self, last: Estimator) -> dict[str, ParamValue]:
        return {name: getattr(last, name) for name in self.parameters}

    def _bind(self, estimators: Sequence[Estimator]) -> None:
        self._points = [self._values(estimator) for estimator in estimators]
        numbers = [point["n_neighbors"] for point in self._points]
        # Size 0 marks an invalid n_neighbors, for which the fit raises scikit-learn's error.
        sizes = [max(0, int(k)) if isinstance(k, Integral) else 0 for k in numbers]
        self._sizes = np.array(sizes)
        self._most = max(1, min(max(self._most, *sizes), self._cut.n_rows // 2 - 1))
        if self._classes is None:
            digits = np.finfo(self._y.dtype if self._y.dtype.kind == "f" else np.float64).nmant
            largest = np.abs(self._y.astype(np.float64)).max() * self._most
            self._is_exact = _are_multiples(self._y, digits - log2(max(largest, 1)))

    def _fit(self, chunk: int | None, point: dict[str, ParamValue]) -> tuple[Estimator, Features]:
        """Return the last step with these parameters, fitted on a fold's training rows.

        Also return the preprocessed test rows, in the order of the splitter. If chunk is None,
        training and test rows are all rows.
        """
        if (values := repr(point)) not in self._at:
            parameters = {self._prefix + name: value for name, value in point.items()}
            self._at[values] = clone(self._folds.estimator).set_params(**parameters)
        cut, rows = self._cut, np.arange(self._cut.n_rows)
        train = rows if chunk is None else cut.split(chunk).train_rows()
        test = rows if chunk is None else cut.test_rows(chunk)
        with foreign_code():
            folds = replace(self._folds, estimator=self._at[values])
            last, X = folds.last_fitted(b"", train, test)
        return last, np.asarray(X) if isinstance(X, list) else X

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts | None = None) -> str:
        """Return the reason why one search does not serve all settings; "" if it does."""
        if callable(estimator.weights):
            return "weights is a function"
        if isinstance(estimator.metric, str) and estimator.metric == "precomputed":
            return "X holds distances"
        return "p is infinite" if estimator.p == np.inf else ""

    def response(self, outputs: Array, method: str) -> Array:
        """Return the predictions of a method; "predict" of classifiers gives class codes."""
        columns = outputs[:, self._columns[method]]
        if method == "predict" and self._classes is not None:
            return columns[:, 0].astype(np.intp)
        return columns[:, 0] if method == "predict" and self._y.ndim == 1 else columns

    def test(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk with the neighbours among its training rows."""
        bounds, width = chunks.bounds - chunks.bounds[0], _N_HEADER_COLUMNS + 2 * (self._most + 1)
        groups, search = list(chunks.groups(most_rows, chunks.n_chunks)), self._search
        if self._is_stateless and chunks.are_single_rows:
            search = self._search_all
        elif not self._may_recur:  # one setting takes less time without lists
            for first, last in groups:
                predicted = in_order(self._n_jobs, self._fit_and_predict, range(first, last))
                yield slice(first, last), np.concatenate(list(predicted))[None]
            return
        memory, size = None, width * int(bounds[-1])
        if 8 * size <= _MOST_BYTES:

            def fill(array: Array) -> None:
                for first, last in groups:
                    part = slice(width * bounds[first], width * bounds[last])
                    array[part] = search(first, last).ravel()

            name = f"{self._most} neighbors, seed {self._seed}"
            memory = keep(name, size, fill).reshape(-1, width)
        for first, last in groups:
            begin, end = int(bounds[first]), int(bounds[last])
            rows = search(first, last) if memory is None else memory[begin:end]
            lists = Lists.of(rows)
            values = self._y[lists.neighbors.astype(np.intp)]
            numbers, choices = range(self.n_candidates), self._choices(lists, values)
            outputs, doubts = self._votes(values, lists.typed_distances(), numbers, choices)
            doubts |= self._are_uncertain(lists)
            of_rows = np.searchsorted(bounds, begin + np.flatnonzero(doubts.any(axis=0)), "right")
            for chunk in np.unique(of_rows - 1).tolist():
                part = slice(bounds[chunk] - begin, bounds[chunk + 1] - begin)
                self._recompute(chunk, Lists.of(rows[part]), outputs[:, part], doubts[:, part])
            self._models.clear()
            yield slice(first, last), outputs

    def _search(self, first: int, last: int) -> Array:
        """Return the neighbours of the test rows of some chunks, in the layout of ``Lists``."""
        return np.concatenate(list(in_order(self._n_jobs, self._search_chunk, range(first, last))))

    def _search_chunk(self, chunk: int) -> Array:
        train, places = (self._cut.split(chunk).train_rows(), order_in_tree(self._cut, chunk))
        size, (model, X) = self._n_searched(len(train)), self._model(chunk)
        distances, indices = nearest_in_any_order(model, X, size + 1)
        return self._packed(model, size, distances[places], train[indices[places]])

    def _search_all(self, first: int, last: int) -> Array:
        """Return the neighbours of single rows among all others."""
        size = self._n_searched(self._cut.n_rows - 1)
        if -1 not in self._models:
            self._models[-1] = self._fit(None, self._for_search(size))
        (model, X), tested = self._models[-1], self._cut.tested_from(first, last).astype(np.intp)
        distances, indices = nearest_in_any_order(model, take_rows(X, tested), size + 2)
        is_other = indices != tested[:, None]
        is_other[is_other.all(axis=1), -1] = False  # many duplicates of this row
        shape = len(tested), size + 1
        rows = self._packed(
            model, size, distances[is_other].reshape(shape), indices[is_other].reshape(shape)
        )
        # A product with many rows rounds differently from that with the single test row of a
        # refit.
        if distances.dtype == np.float32:
            Lists.of(rows).n_certain[:] = 0
        if not is_tree(model):
            Lists.of(rows).product[:] = _SQUARES_RTOL * max(1, row_norms(X, squared=True).max())
        return rows

    def _packed(self, model: Estimator, size: int, distances: Array, neighbors: Array) -> Array:
        """Return the neighbours of some rows, in the layout of ``Lists``."""
        rows = np.zeros((len(distances), _N_HEADER_COLUMNS + 2 * (self._most + 1)))
        lists = Lists.of(rows)
        lists.n_certain[:], lists.share[:] = size, _RTOL if is_tree(model) else 0
        lists.are_single[:] = distances.dtype == np.float32
        lists.distances[:] = np.inf
        lists.distances[:, : size + 1], lists.neighbors[:, : size + 1] = distances, neighbors
        return rows

    def _n_searched(self, n_trained: int) -> int:
        """Return the number of neighbours that a fold is searched for.

        For more than half of the rows, algorithm="auto" would be brute force.
        """
        return max(0, min(self._most, n_trained // 2 - 1))

    def _for_search(self, size: int) -> dict[str, ParamValue]:
        return {"n_neighbors": max(1, size), "weights": "uniform"}

    def _model(self, chunk: int) -> tuple[Estimator, Features]:
        """Return a fold's fitted estimator and its test rows, cached for ``_recompute``."""
        if chunk in self._models:
            return self._models[chunk]
        size = self._n_searched(len(self._cut.split(chunk).train_rows()))
        model, X = self._fit(chunk, self._for_search(size))
        n_bytes = 8 * model.n_samples_fit_ * model.n_features_in_
        if n_bytes * (1 + len(self._models)) <= _MOST_BYTES:
            self._models[chunk] = model, X
        return model, X

    def _are_uncertain(self, lists: Lists) -> Array:
        """Return a mask of rows without enough certain neighbours, (n_candidates, n_rows).

        Rounding errors may also be too large for the inverse of a distance.
        """
        are_weighted = np.array([point["weights"] == "distance" for point in self._points])
        is_rounded = lists.distances[:, 0] ** 2 < _LEAST_ERRORS * lists.product.T
        sizes = self._sizes[:, None]
        return (sizes < 1) | (sizes > lists.n_certain) | (are_weighted[:, None] & is_rounded)

    def _choices(self, lists: Lists, values: Array) -> Choices:
        """Return for each k whether the choice and the order among equal distances matter."""
        n_chosen = np.zeros(lists.distances.shape, int)
        order_matters = np.zeros(n_chosen.shape, bool)
        ties = lists.ties()
        rows = np.flatnonzero(ties.any(axis=1))
        if not len(rows):
            return n_chosen, order_matters
        ties, values = ties[rows], values[rows].reshape(len(rows), values.shape[1], -1)
        is_mixed = np.zeros(values.shape[:2], bool)
        is_mixed[:, 1:] = ties & (values[:, 1:] != values[:, :-1]).any(axis=2)
        is_mixed[:, 1:] |= ties & ~np.isfinite(lists.distances[rows, 1:])
        order_matters[rows] = np.logical_or.accumulate(is_mixed, axis=1)
        is_mixed[:, -1] |= ties[:, -1]  # more equal distances may follow
        starts_run = np.insert(~ties, 0, True, axis=1)
        run_is_mixed = np.logical_or.reduceat(is_mixed.ravel(), np.flatnonzero(starts_run))
        is_split = ties & run_is_mixed[np.cumsum(starts_run) - 1].reshape(starts_run.shape)[:, :-1]
        places = np.arange(starts_run.shape[1])
        n_tied = 1 + places - np.maximum.accumulate(places * starts_run, axis=1)
        n_chosen[rows, :-1] = n_tied[:, :-1] * is_split
        return n_chosen, order_matters

    def _votes(
        self, values: Array, distances: Array, numbers: Sequence[int], choices: Choices
    ) -> tuple[Array, Array]:
        """Return the predictions of points for rows by their nearest neighbours.

        Parameters
        ----------
        values : ndarray of shape (n_rows, n_neighbors) or (n_rows, n_neighbors, n_targets)
            The targets of the neighbours, in the order of the distances.
        distances : ndarray of shape (n_rows, n_neighbors)
        numbers : sequence of int
            The numbers of the points.
        choices : Choices

        Returns
        -------
        outputs : ndarray of shape (n_candidates, n_rows, width)
        doubts : ndarray of shape (n_candidates, n_rows)
            Whether another choice or order among equal distances may change the prediction.
        """
        outputs = np.empty((len(numbers), len(values), self._width))
        doubts = np.zeros(outputs.shape[:2], bool)
        votes = self._means if self._classes is None else self._of_classes
        for weighting in ("uniform", "distance"):
            at: dict[int, list[int]] = {}
            for place, number in enumerate(numbers):
                if (self._points[number]["weights"] or "uniform") == weighting:
                    size = min(int(self._sizes[number]), values.shape[1])
                    at.setdefault(size, []).append(place)
            if at:
                sizes = sorted(at)
                weights = None if weighting == "uniform" else _inverses(distances)
                of_sizes = votes(values, weights, sizes, choices)
                for size, of_size in zip(sizes, of_sizes, strict=True):
                    outputs[at[size]], doubts[at[size]] = of_size
        return outputs, doubts

    def _means(
        self, values: Array, weights: Array | None, sizes: list[int], choices: Choices
    ) -> Iterator[tuple[Array, Array]]:
        """Yield mean targets, summed in scikit-learn's order, and doubts for each size."""
        n_chosen, order_matters = choices
        values = values.reshape(*values.shape[:2], -1)
        is_exact = weights is None and self._is_exact
        totals = np.cumsum(values, axis=1) if is_exact else values
        of_targets = np.ascontiguousarray(np.moveaxis(values, 2, 0))
        products = of_targets if weights is None else of_targets * weights
        for size in sizes:
            doubts = (n_chosen[:, size - 1] > 0) | order_matters[:, size - 1]
            if weights is not None:
                with np.errstate(invalid="ignore"):
                    sums = products[:, :, :size].sum(axis=2)
                    yield (sums / weights[:, :size].sum(axis=1)).T, doubts
            elif is_exact:  # sums do not depend on the order
                yield totals[:, size - 1] / size, n_chosen[:, size - 1] > 0
            else:
                yield values[:, :size].mean(axis=1), doubts

    def _of_classes(
        self, codes: Array, weights: Array | None, sizes: list[int], choices: Choices
    ) -> Iterator[tuple[Array, Array]]:
        """Yield classes or their probabilities, and doubts for each size."""
        assert self._classes is not None
        votes = np.zeros((len(self._classes), len(codes)))
        cells = codes.astype(np.intp) * len(codes) + np.arange(len(codes))[:, None]
        done = 0
        for size in sizes:
            new = np.s_[:, done:size]
            by = 1.0 if weights is None else weights[new].ravel()
            np.add.at(votes.reshape(-1), cells[new].ravel(), by)  # in the order of the neighbours
            done, chosen = size, choices[0][:, size - 1]
            outputs, doubts = np.empty((len(codes), self._width)), np.zeros(len(codes), bool)
            for method, columns in self._columns.items():
                if method == "predict_proba":
                    of_rows = np.ascontiguousarray(votes.T)
                    totals = of_rows.sum(axis=1)
                    with np.errstate(invalid="ignore"):
                        outputs[:, columns] = of_rows / totals[:, None]
                    doubts |= ~(totals > 0) | (chosen > 0)
                    continue
                # For equal votes argmax takes the first class, as in scikit-learn. Another choice
                # can only move votes from this class to another one.
                outputs[:, columns.start] = votes.argmax(axis=0)
                rows = np.flatnonzero(chosen) if weights is None else slice(None)
                vote = 1.0 if weights is None else weights[:, size - 1] * (1 + _RTOL * size)
                threshold = votes[:, rows].max(axis=0) * (1 - _RTOL) - (2 * chosen * vote)[rows]
                doubts[rows] |= np.count_nonzero(votes[:, rows] >= threshold, axis=0) != 1
            yield outputs, doubts

    def _recompute(self, chunk: int, lists: Lists, outputs: Array, doubts: Array) -> None:
        """Recompute the doubtful predictions of a chunk by the estimator itself."""
        places = order_in_tree(self._cut, chunk)
        needs_own_fit = (self._sizes > lists.n_certain[0]) | (self._sizes < 1)
        for number in np.flatnonzero(needs_own_fit).tolist():
            outputs[number] = self._predict(*self._fit(chunk, self._points[number]))[places]
        pending = np.flatnonzero(doubts.any(axis=1) & ~needs_own_fit)
        if not len(pending):
            return
        model, X = self._model(chunk)
        sizes, train = self._sizes[pending], self._cut.split(chunk).train_rows()
        order = np.argsort(places)  # in the order of the splitter
        certain = lists.distances[order, : int(lists.n_certain[0]) + 1]
        search, in_tree = part_search(model, X), is_tree(model)
        if not in_tree and len(places) < TILE:  # rounded differently from a whole tile
            search = None
        if search is not None and not in_tree:
            at = whole_tiles(places[doubts[pending].any(axis=0)])
            if not np.array_equal(search(take_rows(X, at), certain.shape[1])[0], certain[at]):
                search = None
        for size in np.unique(sizes).tolist():
            numbers, is_same = pending[sizes == size], False
            if search is not None:
                at = places[doubts[numbers].any(axis=0)]
                at = at if in_tree else whole_tiles(at)
                distances, indices = search(take_rows(X, at), size)
                is_same = np.array_equal(distances, certain[at, :size])
            if not is_same:  # rounded differently from all test rows
                at = np.arange(len(places))
                distances, indices = nearest_by_model(model, X, size)
            rows = order[at]
            if in_tree or _openmp_effective_n_threads() == 1:  # else predictions differ
                no_ties, values = np.zeros(distances.shape, int), self._y[train[indices]]
                votes, still_doubtful = self._votes(
                    values, distances, numbers.tolist(), (no_ties, no_ties > 0)
                )
                outputs[np.ix_(numbers, rows)] = votes
                numbers = numbers[still_doubtful.any(axis=1)]
            for number in numbers.tolist():
                model.set_params(**self._points[number])
                outputs[number, rows] = self._predict(model, take_rows(X, at))

    def _fit_and_predict(self, chunk: int) -> Array:
        """Return the predictions of the only point for a chunk."""
        return self._predict(*self._fit(chunk, self._points[0]))[order_in_tree(self._cut, chunk)]

    def _predict(self, model: Estimator, X: Features) -> Array:
        """Return the predictions of a fitted estimator for rows, (n_rows, width)."""
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


def _inverses(distances: Array) -> Array:
    """Return weights="distance"; if neighbours have distance 0, all others weigh 0."""
    with np.errstate(divide="ignore"):
        weights = 1 / distances
    are_infinite = np.isinf(weights)
    return np.where(are_infinite.any(axis=1, keepdims=True), are_infinite, weights)


def _are_multiples(values: Array, n_bits: float) -> bool:
    """Return whether values have at most ``n_bits`` binary digits after the point."""
    scaled = np.ldexp(np.asarray(values, np.float64), int(min(n_bits // 1, 512)))
    return np.array_equal(scaled, np.rint(scaled))
