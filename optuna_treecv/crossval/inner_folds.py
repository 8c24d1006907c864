"""The cross-validations inside of a nested one: tasks without two folds, or without one."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.routing import part_of
from optuna_treecv.core.run import Run
from optuna_treecv.rows.folds import FoldPairs
from optuna_treecv.rows.folds import Folds

# The folds of which pairs are left out: 4,950 models.
_MOST_FOLDS = 100


def check_folds(run: Run) -> None:
    """Refuse folds that cannot be left out in pairs."""
    request = run.request
    cut = request.cross_validation.repeats[0].cut
    tested = request.cross_validation.tested(run.method_name)
    if request.data.is_remote:
        raise ValueError(
            "X must be in the memory of this process for nested cross-validation, got "
            f"{type(request.data.X).__name__}."
        )
    if request.is_pooled:
        raise ValueError(
            "scoring must be a score of each fold for nested cross-validation, got the pooled "
            f"{request.scoring.name!r}."
        )
    why = "" if 3 <= cut.n_folds <= _MOST_FOLDS else f"it makes {cut.n_folds}"
    if tested.goes_forward:
        why = "those that would choose for one of a time series lie after it too"
    elif cut.n_folds > 1 and not isinstance(cut, Folds):
        why = "some have rows in common" if tested.shares_test_rows else cut.why_no_tree
    if why:
        raise ValueError(
            f"cv must make 3 to {_MOST_FOLDS} folds, each tested by a model of all other rows, "
            f"for nested cross-validation, but {why}."
        )


def with_pairs(cross_validation: CrossValidation, with_single: bool) -> CrossValidation:
    """Return the same without pairs of folds, and ``with_single`` without single folds."""
    folds = [repeat.cut for repeat in cross_validation.repeats]
    return cross_validation.divided_as(
        [FoldPairs.of(cut, with_single) for cut in folds if isinstance(cut, Folds)]
    )


def by_pairs(cross_validation: CrossValidation, scores: np.ndarray) -> np.ndarray:
    """Return the scores of a cross_validation of pairs by the numbers of folds, (n_repeats, k, k).

    In row i and column j it is that of the model without the folds i and j on fold j.
    """
    table, of_repeats = [], scores.reshape(cross_validation.n_repeats, -1)
    for repeat, of_repeat in zip(cross_validation.repeats, of_repeats, strict=True):
        cut = repeat.cut
        assert isinstance(cut, FoldPairs)
        k = cut.folds.n_folds
        numbers = np.array([cut.folds.number(chunk) for chunk in range(k)])
        tested = numbers[np.concatenate(cut.models)]
        others = numbers[np.concatenate([model[::-1] for model in cut.models])]
        of_pairs = np.full((k, k), np.nan)
        of_pairs[others, tested] = of_repeat
        table.append(of_pairs)
    return np.array(table)


def without_fold(cross_validation: CrossValidation, number: int, fold: int) -> CrossValidation:
    """Return the cross-validation of a repeat without the rows of one fold, with its seed."""
    cut = cross_validation.repeats[number].cut
    data, settings = cross_validation.data, cross_validation.settings
    ids = np.full(cut.n_rows, -1)  # rows that are never tested
    for chunk in range(cut.n_folds):
        ids[cut.test_rows(chunk)] = cut.number(chunk)
    rows = np.flatnonzero(ids != fold)

    def some(of_rows: Any) -> Any:
        return of_rows if of_rows is None else _safe_indexing(of_rows, rows)

    weights = settings.score_weight
    inner = replace(
        settings,
        cv=ids[rows],
        stratify=False,
        n_repeats=1,
        random_state=settings.seed + number,
        sample_weight=some(settings.sample_weight),
        score_weight=weights if isinstance(weights, str) else some(weights),
        params=settings.params and part_of(settings.params, data.X_given, rows),
        report=None,
        row_losses=False,
    )
    X, y, topics = some(data.X_given), some(data.y_given), cross_validation.topics
    return CrossValidation.of(X, y, inner, cache=ModelCache(), topics=topics)
