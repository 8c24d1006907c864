"""Grow the ensembles of all folds of one evaluation, predict with them, and score them."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from functools import partial
from itertools import islice
from itertools import product
from itertools import takewhile
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.core.engine import Cost
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import FoldScorer
from optuna_treecv.core.request import Request
from optuna_treecv.engines.ensembles.fold_cache import Fold
from optuna_treecv.engines.ensembles.fold_cache import FoldCache
from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.engines.ensembles.growth import TreeLimit
from optuna_treecv.engines.ensembles.growth import with_last
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import in_columns
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.plans.fits import encode_targets
from optuna_treecv.plans.fits import make_fold_task
from optuna_treecv.plans.fold_task import FoldResult
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.checks import predicted_codes
from optuna_treecv.rows.checks import without_single_column
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import call_scorer_per_fold
from optuna_treecv.scoring.scores import in_full
from optuna_treecv.scoring.scores import TestedRows

# The maximum number of predicted values that are scored at once.
_MAX_VALUES_SCORED = 2**18

# The maximum size in bytes of the latest predictions of all folds that are kept. The best number
# of trees is often one of the latest.
_MAX_OUTPUT_BYTES = 2**26


class RowRecorder(BaseEstimator):
    """A last step of a Pipeline that records the rows on which an ensemble would be fitted."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "RowRecorder":
        """Record the rows."""
        self.rows_ = X, y, sample_weight
        return self


class GrownFolds:
    """The ensembles of all folds of a repeat.

    Parameters
    ----------
    request : Request
    engine : str
    candidate : estimator
    repeat : Repeat

    Attributes
    ----------
    cut : Cut
    n_trees : int
        The number of trees of the candidate.
    limit : (str, object) or None
        The limit to which the candidate's trees are truncated.
    is_best : bool
        Whether the score after each tree is computed, to choose the best number of trees.
    patience : int or None
        The number of trees without a better score after which growth stops early.
    most : int
        The number of trees to grow, which may be larger than ``n_trees`` for the sake of other
        trials.
    ends : list of int
        The numbers of trees after which growth may stop, up to ``most``.
    """

    def __init__(
        self, request: Request, engine: str, candidate: Candidate, repeat: Repeat
    ) -> None:
        self._request, self._candidate = request, candidate
        self._scorer = FoldScorer(request, candidate)
        self.cut = repeat.cut
        self._fold_task = make_fold_task(request, candidate, repeat, shares_steps=True)
        prefix, last = divided(self._fold_task.estimator)
        kind = kind_of(last)
        assert kind is not None
        self._kind = kind
        self.is_best = request.settings.n_estimators == "best"
        self.n_trees: int = kind.n_trees_of(last)
        self.patience = kind.patience(last) if self.is_best else None
        self._last = kind.without_patience(last) if self.is_best else last
        responses = [response_of(metric, candidate) for metric in request.scoring.metrics]
        # The first ones are needed for scores, the others are only stored.
        self._methods = list(dict.fromkeys([*responses, *request.stored_methods]))
        self._n_scored = len(set(responses))
        needed = {"predict_proba", "predict"}
        self._has_probabilities_first = kind.has_labels_by_probability and needed <= {
            *self._methods
        }
        if self._has_probabilities_first:  # labels follow from them
            self._n_scored += self._methods.index("predict_proba") >= self._n_scored
            self._methods.sort(key="predict_proba".__ne__)
        size, searched = prefix + kind.size, request.cross_validation.search.ends
        self.limit: TreeLimit = None
        self._limits: list[TreeLimit] = [None]
        of_last = {name.removeprefix(prefix): values for name, values in searched.items()}
        grid = request.cross_validation.search.grid
        can_share = bool(grid) or len(searched.keys() - {size}) == 1
        limit = kind.limit_of(last, of_last, request.settings.truncate, can_share)
        if limit is not None:
            name, widest = limit
            self.limit = name, getattr(last, name)
            of_grid = [(name, value) for value in grid.get(prefix + name, ())]
            self._limits = [*dict.fromkeys([*of_grid, self.limit])]
            self._last = clone(self._last).set_params(**{name: widest})
        is_shared, estimator = size in searched or limit is not None, self._fold_task.estimator
        self._cache = FoldCache(
            request, repeat, engine, estimator, self._last, self._methods, is_shared
        )
        self.most = self.n_trees
        self._wanted: Collection[int] = ()
        if self._cache.shares_trees and grid:
            sizes = *grid.get(size, ()), self.n_trees
            self._wanted = [s for s in sizes if is_integer(s)]
            if not self.is_best and not request.settings.is_growing:  # all will be scored
                self.most = max([self.most, *self._wanted])
        self._folds = [self._cache.take_fold(chunk) for chunk in range(repeat.cut.n_folds)]
        self.ends = [*takewhile(lambda end: end < self.most, kind.blocks(self._last)), self.most]

    def grow(self, chunks: Iterable[int], end: int, cost: Cost) -> None:
        """Grow the ensembles of some folds up to ``end`` trees, in several threads."""
        missing = [c for c in chunks if not self._is_cached(c, end)]
        for chunk in missing:
            growth, n_trained = self._folds[chunk].growth, len(self.cut.split(chunk).train_rows())
            n_before = 0 if growth is None else growth.n_trees
            done = n_trained * end // self.most - n_trained * n_before // self.most
            cost.n_updates += max(0, done)
        n_threads = max(1, min(self._request.settings.n_threads, len(missing)))
        for _ in in_order(n_threads, partial(self.grow_one, end), missing):
            pass

    def grow_one(self, end: int, chunk: int) -> None:
        """Grow the ensemble of one fold, and score it.

        It is scored after each tree, only after the last tree, or at each ``n_estimators`` of a
        grid.
        """
        fold, began = self._folds[chunk], perf_counter()
        take = partial(self._take, chunk)
        with foreign_code():
            if fold.growth is None:
                prepared = self._cache.prepared(chunk, take)
                fold.n_row_bytes = prepared.nbytes
                fold.growth = self._kind(self._last, prepared.rows, take)
            fold.growth.take = take
            n_before, keys = fold.growth.n_trees, self._steps_of(fold, end)
            classes = self._request.classes
            n_values = len(self._test_rows[chunk]) * (1 if classes is None else len(classes))
            n_together = max(1, _MAX_VALUES_SCORED // n_values) if self.is_best else 1
            n_methods = self._n_scored
            while batch := {
                key: self.outputs_of(chunk, *key, n_methods) for key in islice(keys, n_together)
            }:
                fold.scores |= zip(batch, self._scored(chunk, [*batch.values()]), strict=True)
                fold.outputs |= batch
                n_bytes = sum(sum(c.nbytes for c in columns) for columns in batch.values())
                n_kept = _MAX_OUTPUT_BYTES // self.cut.n_folds * len(batch) // max(1, n_bytes)
                for old in [*fold.outputs][: -max(1, n_kept)]:
                    del fold.outputs[old]
            if self._request.needs_predictions and not self.is_best and end == self.most:
                key = self.n_trees, self.limit
                fold.outputs = {key: self.outputs_of(chunk, *key)}
        fold.seconds += perf_counter() - began
        for block in self.ends:
            sizes = self._sizes_of_block(block)
            if sizes and (n_before < block <= end or block == end):
                results = [fold.scores[size, self.limit] for size in sizes]
                self._cache.store_scores(chunk, block, results, fold.seconds)
        # The rows of a Pipeline are kept, because computing them again would refit its steps.
        if not isinstance(self._fold_task.estimator, Pipeline):
            fold.growth.forget_rows()
        if not self.is_best and end == self.most:
            self._release(chunk)

    def _steps_of(self, fold: Fold, end: int) -> Iterator[tuple[int, TreeLimit]]:
        """Grow an ensemble; yield each (number of trees, limit) that must be scored."""
        growth = fold.growth
        assert growth is not None
        wanted = range(1, end + 1) if self.is_best else sorted({end, *self._wanted})
        for n_trees in wanted:  # numbers of trees that were reached earlier but not yet scored
            if n_trees <= growth.n_trees and (n_trees, self.limit) not in fold.scores:
                yield n_trees, self.limit
        # Forests compute the out-of-bag score of all their trees at the end of each fit.
        steps = wanted if getattr(growth.estimator, "oob_score", False) else ()
        for step in [*([] if self.is_best else steps), end]:
            for n_trees in growth.grow(step, wanted) if step > growth.n_trees else ():
                if n_trees in wanted:
                    fold.oob_scores[n_trees] = growth.oob_score if n_trees == step else None
                    yield from product([n_trees], self._limits)

    def _sizes_of_block(self, end: int) -> list[int]:
        """Return the numbers of trees whose scores are stored together."""
        if not self.is_best:
            return [end] if end == self.n_trees else []
        return [*range(1 + max([0, *(e for e in self.ends if e < end)]), end + 1)]

    def _is_cached(self, chunk: int, end: int) -> bool:
        """Return whether the scores of a fold are cached, in memory or in the store."""
        scores = self._folds[chunk].scores
        for block in [e for e in self.ends if e <= end] if self.is_best else [end]:
            sizes = self._sizes_of_block(block)
            if (block, self.limit) in scores:
                continue
            stored = self._cache.find_scores(chunk, block, len(sizes)) if sizes else None
            if stored is None:
                return False
            scores |= zip(product(sizes, [self.limit]), stored, strict=True)
        return True

    def close(self) -> None:
        """Put the folds into the cache, for trials with another number of trees."""
        for chunk in range(self.cut.n_folds):
            self._release(chunk)
        self._cache.close()

    def _release(self, chunk: int) -> None:
        """Release a fold for trials with another number of trees, but keep its scores."""
        fold = self._folds[chunk]
        outputs = fold.outputs if self._request.needs_predictions else {}
        self._folds[chunk] = Fold(None, dict(fold.scores), outputs, dict(fold.oob_scores))
        if self.most == max([0, *self._wanted]) and not self.is_best:
            fold.growth = None  # all further scores are cached
        self._cache.release_fold(chunk, fold)

    def _take(self, chunk: int) -> FoldRows:
        """Return the preprocessed rows of a fold."""
        train, test = self.cut.split(chunk).train_rows(), self.cut.test_rows(chunk)
        estimator = with_last(self._fold_task.estimator, RowRecorder())
        rows = self._request.cross_validation.data_key()[0]
        name = digest(rows, self._cache.key_of_folds, encode(chunk))
        last, X = replace(self._fold_task, estimator=estimator).last_fitted(name, train, test)
        train_X, y, weights = last.rows_
        return FoldRows(train_X, y, weights, X, self._request.classes)

    @cached_property
    def _test_rows(self) -> list[np.ndarray]:
        """The indices of the test rows of each fold, in the order of the splitter."""
        return [self.cut.test_rows(chunk) for chunk in range(self.cut.n_folds)]

    @cached_property
    def _test_targets(self) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """The encoded targets and the weights of the test rows of each fold."""
        targets, weights = encode_targets(self._request), self._request.data.score_weights
        return [(targets[i], None if weights is None else weights[i]) for i in self._test_rows]

    def outputs_of(
        self, chunk: int, n_trees: int, limit: TreeLimit, n_methods: int | None = None
    ) -> list[np.ndarray]:
        """Return, for each method, the predictions of the first trees for the test rows.

        ``n_methods`` is the number of methods, by default all of them. If the trees have been
        released, those methods are omitted that only stored outputs need.
        """
        fold, classes = self._folds[chunk], self._request.classes
        columns = [*fold.outputs.get((n_trees, limit), ())]
        methods = self._methods[len(columns) : n_methods]
        has_grown = fold.growth is not None and fold.growth.n_trees >= n_trees
        if not methods or (columns and not has_grown):
            return columns
        assert fold.growth is not None
        fold.growth.take = partial(self._take, chunk)
        for method in methods:
            if method == "predict" and self._has_probabilities_first:
                predicted = columns[0].argmax(axis=1)
            else:
                predicted = without_single_column(fold.growth.predict(method, n_trees, limit))
                if method == "predict" and classes is not None:
                    predicted = predicted_codes(predicted, classes)
            columns.append(in_columns(predicted, method, self._candidate, classes, 1))
        return columns

    def has_outputs(self, chunk: int, n_trees: int) -> bool:
        """Return whether the outputs of ``n_trees`` trees are in memory or can be computed."""
        fold = self._folds[chunk]
        has_grown = fold.growth is not None and fold.growth.n_trees >= n_trees
        return has_grown or (n_trees, self.limit) in fold.outputs

    def test_rows(self, chunk: int, n_trees: int) -> TestedRows:
        """Return the test rows of a fold with the outputs of the first trees."""
        return self._tested(chunk, [self.outputs_of(chunk, n_trees, self.limit)])

    def _tested(self, chunk: int, outputs: Sequence[list[np.ndarray]]) -> TestedRows:
        """Return the test rows of a fold, repeated for each element of ``outputs``."""
        n_times, (targets, weights) = len(outputs), self._test_targets[chunk]
        columns = [np.concatenate(x) for x in zip(*outputs, strict=True)]
        ends = np.cumsum([column.shape[1] for column in columns])

        def respond(outputs: np.ndarray, method: str) -> np.ndarray:
            number = self._methods.index(method)
            predicted = outputs[:, ends[number] - columns[number].shape[1] : ends[number]]
            predicted = predicted.astype(columns[number].dtype, copy=False)
            return predicted[:, 0] if predicted.shape[1] == 1 else predicted

        begins = len(targets) * np.arange(n_times)
        together = (
            np.hstack(columns, dtype=np.float64)
            if columns[1:]
            else columns[0].astype(np.float64, copy=False)
        )
        targets, methods = np.tile(targets, n_times), self._methods[: len(columns)]
        weights = None if weights is None else np.tile(weights, n_times)
        return TestedRows(together, respond, targets, weights, begins, methods)

    def _scored(self, chunk: int, outputs: Sequence[list[np.ndarray]]) -> list[FoldResult]:
        """Return the scores of a fold, one result for each element of ``outputs``.

        An element contains the outputs for a number of trees and a limit.

        scikit-learn's scorers get the rows in the order of the splitter, so that the scores equal
        those of a fit. With ``n_estimators="best"``, our own formulas are used instead, because
        they are faster.
        """
        request, rows, called = self._request, self._tested(chunk, outputs), {}
        for number, scorer in enumerate(() if self.is_best else request.scoring.metrics):
            if isinstance(scorer, Scorer):
                classes = request.classes
                called[number] = call_scorer_per_fold(scorer, rows, self._candidate, classes)
        of = self._scorer.score_folds(rows, called)
        spreads, nothing = in_full(of.spreads, of.scores.shape), np.empty((0, 0))
        return [
            FoldResult(of.scores[:, i], spreads[:, :, i], nothing, bool(of.diverged[i]), 0)
            for i in range(len(outputs))
        ]

    def result(self, chunk: int, n_trees: int) -> FoldResult:
        """Return the scores of a fold after ``n_trees`` trees."""
        return self._folds[chunk].scores[n_trees, self.limit]

    def oob_score(self, n_folds: int, n_trees: int) -> float | None:
        """Return the mean out-of-bag score of the first folds; None unless all have one."""
        scores = [fold.oob_scores.get(n_trees) for fold in self._folds[:n_folds]]
        computed = [score for score in scores if score is not None]
        has_all = len(computed) == n_folds and self.limit is None and not self.is_best
        return float(np.mean(computed)) if has_all else None
