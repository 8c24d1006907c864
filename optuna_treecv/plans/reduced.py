"""Families behind transformers that reduce columns by linear maps, such as PCA and SelectKBest.

The maps of each fold are computed from the moments of its training rows. For families that are
computed from moments too, the moments are mapped. For others, the rows are mapped once per fold.
Candidates with equal parameters of the transformers share the maps.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from optuna_treecv.estimators.base import last_step
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import select_rows
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.plans.family import CachedSums
from optuna_treecv.plans.family import Family
from optuna_treecv.preprocessing.decisions import ignores_zero_columns
from optuna_treecv.preprocessing.linear import fit_linear_maps
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.maps import LinearMaps


class ReducedFolds:
    """Candidates whose rows are reduced by transformers that are fitted per fold.

    It has the methods of a ``Family`` that evaluate folds.

    Parameters
    ----------
    make : callable
        (estimators, rows) -> a family of these estimators.
    candidates : sequence of estimators
    names : sequence of str
        The names of the transformers in the candidates, which are Pipelines.
    rows : PreparedRows
        The rows before these transformers.
    n_threads : int
    """

    def __init__(
        self,
        make: Callable[[Sequence[Any], PreparedRows], Family],
        candidates: Sequence[Any],
        names: Sequence[str],
        rows: PreparedRows,
        n_threads: int,
    ) -> None:
        self._make, self._rows, self._n_threads = make, rows, n_threads
        self.n_candidates = len(candidates)
        self._lasts = [last_step(candidate) for candidate in candidates]
        self._indices: dict[str, list[int]] = {}
        self._steps = {}
        for index, candidate in enumerate(candidates):
            steps = [candidate.named_steps[name] for name in names]
            setting = " ".join(repr(step.__dict__) for step in steps)
            self._indices.setdefault(setting, []).append(index)
            self._steps[setting] = steps
        self._family = make(self._lasts[:1], rows)
        #: (outputs, method) -> predictions, as ``Family.response``.
        self.response = self._family.response

    def _maps(
        self, chunks: Chunks, cached: ArrayCache
    ) -> Iterator[tuple[str, list[Any], list[int], LinearMaps]]:
        """Yield (setting, last steps, indices of the candidates, maps) for each setting."""
        for setting, indices in self._indices.items():
            for step in self._steps[setting]:
                step._validate_params()
            lasts = [self._lasts[index] for index in indices]
            ignores_zeros = ignores_zero_columns(lasts[0])
            maps = fit_linear_maps(
                *(self._steps[setting], self._rows, chunks, cached),
                *(self._family.depends_on_rotation, ignores_zeros, self._n_threads),
            )
            if not (maps.have_one_size or ignores_zeros):
                raise ValueError("training sets have different numbers of columns")
            yield setting, lasts, indices, maps

    def _families(
        self, chunks: Chunks, cached: ArrayCache
    ) -> Iterator[tuple[Any, list[int], ArrayCache]]:
        """Yield (family, indices of its candidates, cache of its arrays) for each setting."""
        for setting, lasts, indices, maps in self._maps(chunks, cached):
            rows = replace(self._rows, n_features=maps.n_features, maps=maps)
            family = self._make(lasts, rows)
            family.shared_cache = cached
            yield family, indices, _label(cached, setting)

    def squares(
        self, chunks: Chunks, cached: ArrayCache
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squared errors of each fold; see ``Family.squares``."""
        errors: Any = None
        for family, indices, label in self._families(chunks, cached):
            squares = family.squares(chunks, label)
            if squares is None:
                return None
            of_setting, totals, weights = squares
            if errors is None:
                errors = np.empty((self.n_candidates, *of_setting.shape[1:]))
            errors[indices] = of_setting
        return errors, totals, weights

    def test(self, chunks: Chunks, cached: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Predict the test rows of each chunk; see ``Family.test``."""
        if not self._family.maps_moments:
            yield from self._test_mapped_rows(chunks, cached)
            return
        families = [
            (family, indices, family.models_of(chunks, label))
            for family, indices, label in self._families(chunks, cached)
        ]
        for first, last in chunks.groups(most_rows, chunks.n_chunks):
            outputs: Any = None
            for family, indices, models in families:
                _, predicted = family.predict(chunks, first, last, models[first:last])
                if outputs is None:
                    outputs = np.empty((self.n_candidates, *predicted.shape[1:]))
                outputs[indices] = predicted
            yield slice(first, last), outputs

    def _test_mapped_rows(self, chunks: Chunks, cached: ArrayCache) -> Iterator[TestedChunks]:
        """Map the rows for each chunk, and predict its test rows."""
        settings = [*self._maps(chunks, cached)]
        for chunk in range(chunks.n_chunks):
            tested = chunks.test_rows(chunk, chunk + 1)
            indices = np.r_[*chunks.train_parts(chunk), tested]
            bounds = np.array([len(indices) - count_rows(tested), len(indices)])
            of_chunk = Chunks(len(indices), bounds)
            outputs: Any = None
            for lasts, maps, candidates, masks in _join_settings(settings, chunk):
                family = self._make(lasts, _map_rows(self._rows, maps, chunk, indices))
                family.column_masks = masks
                ((_, predicted),) = family.test(of_chunk, CachedSums(), len(indices))
                if outputs is None:
                    outputs = np.empty((self.n_candidates, *predicted.shape[1:]))
                outputs[candidates] = predicted
            yield slice(chunk, chunk + 1), outputs


def _join_settings(
    settings: Sequence[tuple[str, list[Any], list[int], LinearMaps]], chunk: int
) -> Iterator[tuple[list[Any], LinearMaps, list[int], np.ndarray | None]]:
    """Yield (last steps, maps, indices of the candidates, masks of columns), solved jointly.

    Candidates whose columns are among those of the setting with the most columns are joined.
    """
    *_, widest = max(settings, key=lambda setting: setting[-1].n_features)
    lasts, indices, masks = list[Any](), list[int](), list[np.ndarray]()
    for _, of_setting, candidates, maps in settings:
        positions = maps.maps[chunk].positions_in(widest.maps[chunk])
        if positions is None or len(positions) < maps.n_features:
            yield of_setting, maps, candidates, None
            continue
        lasts += of_setting
        indices += candidates
        masks += [np.isin(np.arange(widest.n_features), positions)] * len(candidates)
    if lasts:
        yield lasts, widest, indices, np.array(masks)


def _map_rows(
    rows: PreparedRows, maps: LinearMaps, chunk: int, indices: np.ndarray
) -> PreparedRows:
    """Return rows after the maps of a chunk, in the type of X."""
    X = np.empty((len(rows.order), maps.n_features), rows.X.dtype)
    source = replace(rows, n_features=maps.n_features, maps=maps)
    for block in blocks(slice(0, len(X))):
        out = np.empty((count_rows(block), maps.n_features))
        copy_rows(source, block, out, chunk)
        X[block] = out
    mapped = replace(rows, X=X, n_features=maps.n_features, maps=None, file=None)
    return select_rows(mapped, indices)


def _label(cached: ArrayCache, label: str) -> ArrayCache:
    """Return a cache in which the names of arrays begin with a label."""

    def find(name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        return cached(f"{label} {name}", size, make)

    return find
