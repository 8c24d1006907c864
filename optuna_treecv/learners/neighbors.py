"""Nearest neighbours of the test rows of all folds, and what scikit-learn predicts from them.

One search per fold, for the largest ``n_neighbors``, serves smaller ones and both ``weights``. The
first k of K neighbours are those of a search for k where the next one is farther away. Where it is
not, scikit-learn's choice among equal distances depends on k, so that the row is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from numbers import Integral
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.neighbors._base import _get_weights
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from sklearn.utils.extmath import row_norms

from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.moments import Chunks
from optuna_treecv.learners.exact.moments import in_order
from optuna_treecv.learners.exact.moments import Keep
from optuna_treecv.learners.exact.moments import TestedChunks
from optuna_treecv.learners.steps.parts import foreign_code
from optuna_treecv.rows.data import predicted_codes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds

#: (chunk, parameters) -> the last step with these parameters, fitted on a fold's training rows,
#: and its test rows after the steps, in the order of the splitter. The chunk None has all rows.
FitFold = Callable[[int | None, Mapping[str, Any]], tuple[Any, Any]]

# The bytes of the neighbours of all folds that are held, and kept; and of fitted training rows.
_MOST_BYTES = 2**27

# Trees leave out nodes by rounded bounds, so that distances which differ by less than this share
# may be taken for equal. Sums of votes that differ by less depend on their order.
_NEAR = 1e-9

# In the distances of so many test rows scikit-learn divides training rows among its threads, which
# changes its choice among equal distances.
_FEW_ROWS = 1024

# The share of squares by which a difference of them is rounded, and how many times as large it is
# where its inverse can be a weight.
_EPS, _ROUNDED = 64 * np.finfo(np.float64).eps, 1e8

# The columns of a list before its distances, see ``Lists``.
_HEAD = 4


class Lists(NamedTuple):
    """The nearest neighbours of some test rows, views of an array of float64.

    Attributes
    ----------
    n_known : ndarray of shape (n_rows,)
        So many neighbours of each row are known for certain, and the distance to the next one.
    are_single : ndarray of shape (n_rows,)
        Whether distances are float32 in scikit-learn, so that weights are too.
    share, product : ndarray of shape (n_rows, 1)
        Two distances are apart if their difference is more than this share of the larger one, and
        times the larger one more than this product.
    distances : ndarray of shape (n_rows, n_neighbors + 1)
        In ascending order, and infinite where there are no more.
    neighbors : ndarray of shape (n_rows, n_neighbors + 1)
        The rows as given.
    """

    n_known: np.ndarray
    are_single: np.ndarray
    share: np.ndarray
    product: np.ndarray
    distances: np.ndarray
    neighbors: np.ndarray

    @classmethod
    def of(cls, memory: np.ndarray) -> Lists:
        """Return the parts of an array (n_rows, 4 + 2 (n_neighbors + 1))."""
        half = (memory.shape[1] + _HEAD) // 2
        share, product, distances, neighbors = np.split(memory[:, 2:], [1, 2, half - 2], axis=1)
        return cls(memory[:, 0], memory[:, 1], share, product, distances, neighbors)

    def typed_distances(self) -> np.ndarray:
        """Return the distances in the type of scikit-learn's."""
        return self.distances.astype(np.float32) if self.are_single.any() else self.distances

    def ties(self) -> np.ndarray:
        """Return which distances equal the next one, (n_rows, n_neighbors); also if not finite."""
        further = self.distances[:, 1:]
        with np.errstate(invalid="ignore"):
            step = further - self.distances[:, :-1]
            return ~((step > self.share * further) & (step * further > self.product))


class NeighborFolds(Family):
    """``KNeighborsClassifier`` or ``KNeighborsRegressor`` on all folds.

    Parameters
    ----------
    estimators : sequence of estimators
    rows : PreparedRows
        Only their classes are read.
    n_jobs : int
    fit : callable
        As in ``FitFold``.
    cut : Folds or Splits
    y : ndarray of shape (n_rows,) or (n_rows, n_targets)
        Class codes, or numbers of the type that was given, in the order of the rows as given.
    methods : sequence of str
        The responses that are asked for.
    most : int
        So many neighbours are searched for, or as many as a point has.
    leaves_out : bool
        Whether all training sets of single test rows are the same rows but one.
    seed : int or None
        That of the steps before the estimator.
    may_recur : bool
        Whether other points may ask for the same neighbours.
    """

    parameters = ("n_neighbors", "weights")

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        n_jobs: int,
        fit: FitFold,
        cut: Cut,
        y: np.ndarray,
        methods: Sequence[str],
        most: int,
        leaves_out: bool,
        seed: int | None,
        may_recur: bool,
    ) -> None:
        self._fit, self._cut, self._y, self._leaves_out = fit, cut, y, leaves_out
        self._most, self._classes, self._seed = most, rows.classes, seed
        self._may_recur = may_recur or len(estimators) > 1
        self._models: dict[int, tuple[Any, Any]] = {}
        self._columns: dict[str, slice] = {}
        self._width = 0
        for method in methods:
            n_targets = 1 if y.ndim == 1 else y.shape[1]
            of_classes = method == "predict_proba" and rows.classes is not None
            width = len(rows.classes) if of_classes and rows.classes is not None else n_targets
            self._columns[method] = slice(self._width, self._width + width)
            self._width += width
        super().__init__(estimators, rows, None, n_jobs)

    def _bind(self, estimators: Sequence[Any]) -> None:
        self._points = [
            {name: getattr(one, name) for name in self.parameters} for one in estimators
        ]
        numbers = [one["n_neighbors"] for one in self._points]
        # Of wrong numbers scikit-learn itself says so.
        sizes = [max(0, int(k)) if isinstance(k, Integral) else 0 for k in numbers]
        self._sizes = np.array(sizes)
        self._most = max(1, min(max(self._most, *sizes), self._cut.n_rows // 2 - 1))

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts | None = None) -> str:
        """Return why neighbours are not searched for once, a clause."""
        if callable(estimator.weights):
            return "weights is a function"
        if isinstance(estimator.metric, str) and estimator.metric == "precomputed":
            return "X holds distances"
        return "p is infinite" if estimator.p == np.inf else ""

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the columns of a response; "predict" of classifiers gives class codes."""
        columns = outputs[:, self._columns[method]]
        if method == "predict" and self._classes is not None:
            return columns[:, 0].astype(np.intp)
        return columns[:, 0] if method == "predict" and self._y.ndim == 1 else columns

    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk with the neighbours among its training rows."""
        bounds, width = chunks.bounds - chunks.bounds[0], _HEAD + 2 * (self._most + 1)
        groups, search = list(chunks.groups(most_rows, chunks.n_chunks)), self._search
        if self._leaves_out and chunks.are_single_rows:
            search = self._search_all
        elif not self._may_recur:  # one setting takes less time without lists
            for first, last in groups:
                answers = in_order(self._n_jobs, self._fit_and_answer, range(first, last))
                yield slice(first, last), np.concatenate(list(answers))[None]
            return
        memory, size = None, width * int(bounds[-1])
        if 8 * size <= _MOST_BYTES:

            def fill(array: np.ndarray) -> None:
                rows = array.reshape(-1, width)
                for first, last in groups:
                    search(first, last, rows[bounds[first] : bounds[last]])

            name = f"{self._most} neighbors, seed {self._seed}"
            memory = keep(name, size, fill).reshape(-1, width)
        for first, last in groups:
            begin, end = int(bounds[first]), int(bounds[last])
            rows = np.empty((end - begin, width)) if memory is None else memory[begin:end]
            if memory is None:
                search(first, last, rows)
            lists = Lists.of(rows)
            values = self._y[lists.neighbors.astype(np.intp)]
            outputs, doubts = self._votes(values, lists.typed_distances(), range(self.n_points))
            doubts |= self._doubts(lists, values)
            of_rows = np.searchsorted(bounds, begin + np.flatnonzero(doubts.any(axis=0)), "right")
            for chunk in np.unique(of_rows - 1).tolist():
                part = slice(bounds[chunk] - begin, bounds[chunk + 1] - begin)
                self._ask(chunk, Lists.of(rows[part]), outputs[:, part], doubts[:, part])
            self._models.clear()
            yield slice(first, last), outputs

    def _search(self, first: int, last: int, out: np.ndarray) -> None:
        """Write the neighbours of the test rows of some chunks, as ``Lists`` has them."""
        ends = 0
        for rows in in_order(self._n_jobs, self._search_chunk, range(first, last)):
            out[ends : ends + len(rows)] = rows
            ends += len(rows)

    def _search_chunk(self, chunk: int) -> np.ndarray:
        train, places = self._cut.split(chunk).train_rows(), self._places(chunk)
        out = np.zeros((len(places), _HEAD + 2 * (self._most + 1)))
        lists = Lists.of(out)
        lists.distances[:] = np.inf
        size = self._most_known(len(train))
        if size < 1:
            return out
        model, X = self._model(chunk)
        distances, indices = _nearest(model, X, size + 1)
        lists.n_known[:], lists.share[:] = size, _NEAR if _is_tree(model) else 0
        lists.are_single[:] = distances.dtype == np.float32
        lists.distances[:, : size + 1] = distances[places]
        lists.neighbors[:, : size + 1] = train[indices[places]]
        return out

    def _search_all(self, first: int, last: int, out: np.ndarray) -> None:
        """Write the neighbours of single rows among all others."""
        lists, own = Lists.of(out), self._cut.tested_from(first, last).astype(np.intp)
        out[:] = 0
        lists.distances[:] = np.inf
        size = self._most_known(self._cut.n_rows - 1)
        if size < 1:
            return
        if -1 not in self._models:
            self._models[-1] = self._fit(None, self._for_search(size))
        model, X = self._models[-1]
        distances, indices = _nearest(model, take_rows(X, own), size + 2)
        is_other = indices != own[:, None]
        is_other[is_other.all(axis=1), -1] = False  # many rows that are equal to this one
        shape = len(own), size + 1
        lists.distances[:, : size + 1] = distances[is_other].reshape(shape)
        lists.neighbors[:, : size + 1] = indices[is_other].reshape(shape)
        # Products of rows are rounded in another way than those of the single row in a fit.
        lists.n_known[:] = 0 if distances.dtype == np.float32 else size
        lists.share[:] = _NEAR if _is_tree(model) else 0
        if not _is_tree(model):
            lists.product[:] = _EPS * max(1, row_norms(X, squared=True).max())

    def _most_known(self, n_trained: int) -> int:
        """Return for how many neighbours a fold is searched.

        For more than half of the rows algorithm="auto" is brute force.
        """
        return min(self._most, n_trained // 2 - 1)

    def _for_search(self, size: int) -> dict[str, Any]:
        return {"n_neighbors": size, "weights": "uniform"}

    def _model(self, chunk: int) -> tuple[Any, Any]:
        """Return a fold's fitted estimator and its test rows; some are held for ``_ask``."""
        if chunk in self._models:
            return self._models[chunk]
        size = self._most_known(len(self._cut.split(chunk).train_rows()))
        model, X = self._fit(chunk, self._for_search(size))
        n_bytes = 8 * model.n_samples_fit_ * model.n_features_in_
        if n_bytes * (1 + len(self._models)) <= _MOST_BYTES:
            self._models[chunk] = model, X
        return model, X

    def _places(self, chunk: int) -> np.ndarray:
        """Return where the prepared test rows of a chunk are in the order of the splitter."""
        rows = self._cut.test_rows(chunk)
        if not isinstance(self._cut, Folds):
            return np.arange(len(rows))
        sorter = np.argsort(rows)
        return sorter[
            np.searchsorted(rows, self._cut.tested_from(chunk, chunk + 1), sorter=sorter)
        ]

    def _votes(
        self, values: np.ndarray, distances: np.ndarray, numbers: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what points say of rows by their nearest neighbours.

        Parameters
        ----------
        values : ndarray of shape (n_rows, n_neighbors) or (n_rows, n_neighbors, n_targets)
            The targets of the neighbours, in the order of the distances.
        distances : ndarray of shape (n_rows, n_neighbors)
        numbers : sequence of int
            Those of the points.

        Returns
        -------
        outputs : ndarray of shape (n_points, n_rows, width)
        are_close : ndarray of shape (n_points, n_rows)
            Where sums of votes are so close that the largest depends on their order.
        """
        outputs = np.empty((len(numbers), len(values), self._width))
        are_close = np.zeros(outputs.shape[:2], bool)
        for is_weighted in (False, True):
            at: dict[int, list[int]] = {}
            for place, number in enumerate(numbers):
                if (self._points[number]["weights"] == "distance") == is_weighted:
                    size = min(int(self._sizes[number]), values.shape[1])
                    at.setdefault(size, []).append(place)
            if not at:
                continue
            weights = _get_weights(distances, "distance") if is_weighted else None
            votes = _means if self._classes is None else self._of_classes
            of_sizes = votes(values, weights, sorted(at))
            for size, (of_size, are_close_here) in zip(sorted(at), of_sizes, strict=True):
                outputs[at[size]], are_close[at[size]] = of_size, are_close_here
        return outputs, are_close

    def _doubts(self, lists: Lists, values: np.ndarray) -> np.ndarray:
        """Return which rows the lists do not answer, (n_points, n_rows).

        Those are rows with more neighbours than are known, and rows where the choice among equal
        distances matters: at the last neighbour, and for sums that depend on their order.
        """
        sizes = self._sizes[:, None]
        doubts = (sizes < 1) | (sizes > lists.n_known)
        are_weighted = np.array([one["weights"] == "distance" for one in self._points])
        doubts |= are_weighted[:, None] & (lists.distances[:, 0] ** 2 < _ROUNDED * lists.product.T)
        ties = lists.ties()
        rows = np.flatnonzero(ties.any(axis=1))
        if not len(rows):
            return doubts
        ties, values = ties[rows], values[rows].reshape(len(rows), ties.shape[1] + 1, -1)
        is_mixed = np.zeros(values.shape[:2], bool)
        is_mixed[:, 1:] = ties & (values[:, 1:] != values[:, :-1]).any(axis=2)
        is_mixed[:, 1:] |= ties & ~np.isfinite(lists.distances[rows, 1:])
        is_early = np.logical_or.accumulate(is_mixed, axis=1)
        is_mixed[:, -1] |= ties[:, -1]  # equal distances may follow behind the list
        begins = np.flatnonzero(np.insert(~ties, 0, True, axis=1))
        of_runs = np.logical_or.reduceat(is_mixed.ravel(), begins)
        is_mixed = np.repeat(of_runs, np.diff(begins, append=is_mixed.size)).reshape(
            is_mixed.shape
        )
        is_split = ties & is_mixed[:, 1:]
        is_exact = self._classes is not None or self._is_exact
        for number in range(self.n_points):
            last = min(int(self._sizes[number]), self._most) - 1
            doubts[number, rows] |= is_split[:, last]
            if not is_exact or (self._classes is None and are_weighted[number]):
                doubts[number, rows] |= is_early[:, last]
        return doubts

    @property
    def _is_exact(self) -> bool:
        """Whether sums of targets are the same in any order."""
        y = self._y
        digits = np.finfo(y.dtype if y.dtype.kind == "f" else np.float64).nmant
        return bool(np.all(y == np.rint(y)) and np.abs(y).max() * self._most < 2.0**digits)

    def _of_classes(
        self, codes: np.ndarray, weights: np.ndarray | None, sizes: list[int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the outputs for each number of neighbours, and where sums of votes are close."""
        assert self._classes is not None
        n_rows = len(codes)
        every, votes = np.arange(n_rows), np.zeros((n_rows, len(self._classes)))
        done = 0
        for size in sizes:
            for place in range(done, size):
                votes[every, codes[:, place]] += 1.0 if weights is None else weights[:, place]
            done = size
            outputs, are_close = np.empty((n_rows, self._width)), np.zeros(n_rows, bool)
            for method, columns in self._columns.items():
                if method == "predict_proba":
                    totals = votes.sum(axis=1)
                    with np.errstate(invalid="ignore"):
                        outputs[:, columns] = votes / totals[:, None]
                    are_close |= ~(totals > 0)
                    continue
                outputs[:, columns.start] = largest = votes.argmax(axis=1)
                if weights is not None:
                    least = votes[every, largest] * (1 - _NEAR)
                    are_close |= np.count_nonzero(votes >= least[:, None], axis=1) != 1
            yield outputs, are_close

    def _ask(self, chunk: int, lists: Lists, outputs: np.ndarray, doubts: np.ndarray) -> None:
        """Let the estimator itself answer for the rows of a chunk that are in doubt."""
        places = self._places(chunk)
        are_new = self._sizes > lists.n_known[0]
        are_new |= self._sizes < 1
        for number in np.flatnonzero(are_new).tolist():
            model, X = self._fit(chunk, self._points[number])
            self._answer(model, X, outputs[number], places)
        asked = np.flatnonzero(doubts.any(axis=1) & ~are_new)
        if not len(asked):
            return
        model, X = self._model(chunk)
        every = np.flatnonzero(doubts[asked].any(axis=0))
        known = lists.distances[every, : int(lists.n_known[0]) + 1]
        is_exact, train = _is_exact_by_row(model, X), self._cut.split(chunk).train_rows()
        if not is_exact and not _are_alike(model, X, take_rows(X, places[every]), known):
            every = np.arange(len(places))  # no part of the test rows
        for size in np.unique(self._sizes[asked]).tolist():
            numbers = asked[self._sizes[asked] == size]
            rows = np.flatnonzero(doubts[numbers].any(axis=0)) if is_exact else every
            some = X if len(rows) == len(places) else take_rows(X, places[rows])
            order = places if len(rows) == len(places) else np.arange(len(rows))
            if _chooses_alike(model):
                distances, indices = _nearest(model, some, size)
                values, distances = self._y[train[indices[order]]], distances[order]
                of_size, are_close = self._votes(values, distances, numbers.tolist())
                outputs[np.ix_(numbers, rows)] = of_size
                numbers = numbers[are_close.any(axis=1)]
            answers = np.empty((len(rows), self._width))
            for number in numbers.tolist():
                self._answer(model.set_params(**self._points[number]), some, answers, order)
                outputs[number, rows] = answers

    def _fit_and_answer(self, chunk: int) -> np.ndarray:
        """Return what the only point says of a chunk."""
        places = self._places(chunk)
        outputs = np.empty((len(places), self._width))
        self._answer(*self._fit(chunk, self._points[0]), outputs, places)
        return outputs

    def _answer(self, model: Any, X: Any, outputs: np.ndarray, places: np.ndarray) -> None:
        """Write what a fitted estimator says of rows, in another order."""
        for method, columns in self._columns.items():
            with foreign_code():
                response = getattr(model, method)(X)[places]
            if self._classes is None:
                outputs[:, columns] = response.reshape(len(places), -1)
            elif method == "predict":
                outputs[:, columns.start] = predicted_codes(response, self._classes)
            else:
                outputs[:, columns] = 0
                codes = np.searchsorted(self._classes, model.classes_)
                outputs[:, columns.start + codes] = response


def _is_tree(model: Any) -> bool:
    """Return whether a fitted estimator searches in a tree, each row for itself."""
    return model._tree is not None


def _chooses_alike(model: Any) -> bool:
    """Return whether all responses choose the same among equal distances."""
    return _is_tree(model) or _openmp_effective_n_threads() == 1


def _is_divided(X: Any) -> bool:
    """Return whether threads share out other rows if they search for some test rows alone."""
    return _openmp_effective_n_threads() > 1 and X.shape[0] > _FEW_ROWS


def _is_exact_by_row(model: Any, X: Any) -> bool:
    """Return whether the distances of a test row cannot depend on the others.

    Each row is searched for itself, or is a small multiple of 1/1024, so that no sum is rounded.
    """
    if _is_tree(model) or _is_divided(X):
        return _is_tree(model)
    of_squares = model.effective_metric_ in ("euclidean", "sqeuclidean")
    parts = [part for part in (X, model._fit_X) if of_squares and isinstance(part, np.ndarray)]
    most = max((1024 * np.abs(part).max() for part in parts), default=np.inf)
    return (
        len(parts) == 2
        and 4 * most**2 * X.shape[1] < 2**53
        and all(np.array_equal(1024 * part, np.rint(1024 * part)) for part in parts)
    )


def _nearest(model: Any, X: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances and the numbers of the nearest training rows."""
    with foreign_code():
        nearest: tuple[np.ndarray, np.ndarray] = model.kneighbors(X, size)
    return nearest


def _are_alike(model: Any, X: Any, some: Any, distances: np.ndarray) -> bool:
    """Return whether a search finds the same for some test rows as for all of them.

    In a product of matrices, the rounding of a row's sums may depend on the other rows.
    """
    if _is_divided(X):
        return False
    again, _ = _nearest(model, some, distances.shape[1])
    return np.array_equal(again, distances)


def _means(
    values: np.ndarray, weights: np.ndarray | None, sizes: list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the mean targets for each number of neighbours, summed in scikit-learn's order."""
    values = values.reshape(*values.shape[:2], -1)
    are_close = np.zeros(len(values), bool)
    products = None if weights is None else values * weights[:, :, None]
    for size in sizes:
        if weights is None or products is None:
            yield np.mean(values[:, :size], axis=1), are_close
            continue
        means = np.empty((len(values), values.shape[2]))
        with np.errstate(invalid="ignore"):
            for target in range(values.shape[2]):
                sums = np.sum(np.ascontiguousarray(products[:, :size, target]), axis=1)
                means[:, target] = sums / np.sum(weights[:, :size], axis=1)
        yield means, are_close
