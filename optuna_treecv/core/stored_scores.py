"""The scores of all folds of a repeat as one array, as caches and stores keep them."""

from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.results import KeptScores
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import ResultSpec
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Request
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import SPREAD_SIZE


def name_of_folds(request: Request, repeat: Repeat) -> bytes:
    """Return a name of the folds of a repeat and the order of their rows."""
    name = partial(digest, repeat.key, repeat.cut.order.tobytes())
    return request.cross_validation.fact(("folds", repeat.number), name)


def kept_scores(request: Request, repeat: Repeat, engine: str, parts: Sequence[Any]) -> KeptScores:
    """Return where an engine stores the scores of an estimator's ``parts``, without its point."""
    cross_validation = request.cross_validation
    cache, data = cross_validation.shared.cache, cross_validation.data_name()
    folds = name_of_folds(request, repeat)
    return KeptScores.of(cache, data, folds, engine, parts, request.scoring)


def results_of(request: Request, repeat: Repeat, kept: KeptScores) -> Results:
    """Return what names the scores of all folds of a repeat."""
    specs = specs_of_scores(request, repeat, kept)
    return Results(kept.name, kept.data.hex(), specs=specs)


def specs_of_scores(
    request: Request, repeat: Repeat, kept: KeptScores
) -> Mapping[int, ResultSpec]:
    """Return the result that holds all scores of a repeat; none where those of rows are needed."""
    if request.needs_rows or kept.cache is None or not kept.settings:
        return {}
    key = kept.key(8 * sum(_sizes(request, repeat)))
    return {repeat.cut.n_folds: ResultSpec(key, kept.cache)}


def pack(scores: FoldScores, pooled: np.ndarray, n_needed: int) -> np.ndarray:
    """Return the scores of a repeat as bytes.

    Parameters
    ----------
    scores : FoldScores
        Of all folds.
    pooled : ndarray of shape (n_metrics, 2)
    n_needed : int
        The rows of all trainings.
    """
    spreads = () if scores.spreads is None else scores.spreads
    parts = scores.scores, spreads, scores.diverged, pooled, [n_needed]
    return np.concatenate([np.ravel(part) for part in parts], dtype=np.float64).view(np.uint8)


def unpack(request: Request, repeat: Repeat, memory: np.ndarray) -> TestedFolds:
    """Return the folds whose scores are in an array."""
    sizes = _sizes(request, repeat)
    parts = np.split(memory.view(np.float64), np.cumsum(sizes[:-1]))
    scores, spreads, diverged, pooled, (n_needed,) = parts
    n_metrics, n_folds = len(request.scoring.metrics), repeat.cut.n_folds
    of_folds = FoldScores(
        scores.reshape(n_metrics, n_folds),
        diverged.astype(bool),
        spreads.reshape(n_metrics, SPREAD_SIZE, n_folds) if len(spreads) else None,
    )
    of_all = pooled.reshape(n_metrics, 2)
    return TestedFolds(0, repeat.plan.root, int(n_needed), scores=of_folds, pooled=of_all)


def _sizes(request: Request, repeat: Repeat) -> list[int]:
    """Return how many numbers the parts have."""
    n_metrics, n_folds = len(request.scoring.metrics), repeat.cut.n_folds
    has_spreads = not request.cross_validation.tests_single_rows
    n_spreads = SPREAD_SIZE * n_metrics * n_folds * has_spreads
    return [n_metrics * n_folds, n_spreads, n_folds, 2 * n_metrics, 1]
