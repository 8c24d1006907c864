"""What a search has found, as ``cv_results_`` of ``GridSearchCV``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from scipy.stats import rankdata

from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.failed_folds import FoldsFailed
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.storage.attributes import known_of_trial
from optuna_treecv.storage.attributes import scores_of_trial

#: With more splits than this, ``cv_results_`` has no columns for them.
MOST_SPLITS = 100


class Found(NamedTuple):
    """What is kept of a trial. All scores are signed, so that larger ones are better.

    Attributes
    ----------
    means, stds : ndarray of shape (n_scores,)
        NaN where they are not known.
    splits : list of (ndarray of shape (n_splits,) or None)
        Of each score; None if there are too many, or it has none.
    seconds : float
    """

    means: np.ndarray
    stds: np.ndarray
    splits: list[np.ndarray | None]
    seconds: float


class Row(NamedTuple):
    """A row of ``cv_results_``.

    Attributes
    ----------
    params : dict
    trial : FrozenTrial
        The trial of these parameters.
    found : Found
    """

    params: dict[str, Any]
    trial: FrozenTrial
    found: Found


def found_by(result: CVResult, n_splits: int) -> Found:
    """Return what is kept of a result; its memory does not grow with the number of splits."""
    scores = result.scores.values()
    signs = np.array([sign_of(score.direction) for score in scores])
    # A pooled score has one value for each repeat.
    splits = [
        sign * score.test_score if len(score.test_score) == n_splits <= MOST_SPLITS else None
        for sign, score in zip(signs, scores, strict=True)
    ]
    return Found(
        signs * [score.mean for score in scores],
        np.array([np.nan if score.std is None else score.std for score in scores]),
        splits,
        result.seconds,
    )


def found_before(
    trial: FrozenTrial,
    names: Sequence[str],
    directions: Sequence[str],
    optimized: int,
    stored: Mapping[str, np.ndarray],
) -> Found:
    """Return what a trial of an earlier run says of itself, and what a store knows of it.

    Its attributes have six digits; its value and the store have all of them.

    Parameters
    ----------
    trial : FrozenTrial
    names : sequence of str
        Of the scores, as the objective knows them.
    directions : sequence of {"minimize", "maximize"}
    optimized : int
        The number of the score that is the trial's value.
    stored : dict of str to ndarray of shape (n_splits,)
        The fold scores in the store, by the names of the scores.
    """
    known, scores = known_of_trial(trial.user_attrs), scores_of_trial(trial.user_attrs)
    signs = np.array([sign_of(direction) for direction in directions])
    means = np.array([scores.get(name, np.nan) for name in names], float)
    stds = np.full(len(names), np.nan)
    if trial.state == TrialState.COMPLETE and trial.values is not None:
        means[optimized] = trial.values[0]
        stds[optimized] = known.get("std_test_score", np.nan)
    splits: list[np.ndarray | None] = [None] * len(names)
    for number, name in enumerate(names):
        if name not in stored:
            continue
        splits[number] = signs[number] * stored[name]
        if trial.state == TrialState.COMPLETE and np.isfinite(stored[name]).all():
            stds[number] = stored[name].std()
            if number != optimized:
                means[number] = stored[name].mean()
    seconds = known.get("seconds", np.nan)
    return Found(signs * means, stds, splits, float(seconds))


def failed(n_scores: int, n_splits: int, error_score: float) -> Found:
    """Return what is kept of a trial that has failed."""
    means = np.full(n_scores, error_score)
    splits = np.full(n_splits, error_score) if n_splits <= MOST_SPLITS else None
    return Found(means, means - means, [splits] * n_scores, 0.0)


def found_by_folds(some: FoldsFailed, directions: Sequence[str], error_score: Any) -> Found:
    """Return what is kept of a trial some of whose folds have failed.

    Parameters
    ----------
    some : FoldsFailed
    directions : sequence of {"minimize", "maximize"}
        Of the scores.
    error_score : "raise" or float
    """
    signs = np.array([sign_of(direction) for direction in directions])
    splits = signs[:, None] * some.scores
    splits[:, list(some.errors)] = np.nan if error_score == "raise" else error_score
    kept = list(splits) if splits.shape[1] <= MOST_SPLITS else [None] * len(splits)
    return Found(splits.mean(axis=1), splits.std(axis=1), kept, 0.0)


def lines_of(found: Found, params: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return a line for each split of a trial: its parameters and scores.

    Parameters
    ----------
    found : Found
    params : dict
    names : sequence of str
        Of the scores of test rows. Those of training rows, if there are any, come after them.
    """
    given = ", ".join(f"{name}={value}" for name, value in params.items())
    n_splits = min(0 if one is None else len(one) for one in found.splits)
    lines = []
    for split in range(n_splits):
        values = [f"{one[split]:.3f}" for one in found.splits if one is not None]
        tested, trained = values[: len(names)], values[len(names) :]
        if trained:
            pairs = zip(trained, tested, strict=True)
            tested = [f"(train={train}, test={test})" for train, test in pairs]
        scores = [f"{name}={score}" for name, score in zip(names, tested, strict=True)]
        lines.append(f"split {split}: {given}; {', '.join(scores)}")
    return lines


def sign_of(direction: str) -> float:
    """Return by what a score is multiplied, so that larger values are better."""
    return -1.0 if direction == "minimize" else 1.0


def table(
    rows: Sequence[Row], names: Sequence[str], n_splits: int, with_train: bool = False
) -> dict[str, Any]:
    """Return ``cv_results_``.

    Parameters
    ----------
    rows : sequence of Row
    names : sequence of str
        The names of the scores in the columns.
    n_splits : int
    with_train : bool
        Whether rows have the same scores of training rows after them.
    """
    seconds = np.array([row.found.seconds for row in rows]) / n_splits
    results: dict[str, Any] = {
        "mean_fit_time": seconds,
        "std_fit_time": np.zeros(len(rows)),
        "mean_score_time": np.zeros(len(rows)),
        "std_score_time": np.zeros(len(rows)),
    }
    results |= _columns_of([row.params for row in rows])
    results["params"] = [row.params for row in rows]
    for number, name in enumerate(names):
        results |= _scores_of(rows, number, name, n_splits, "test")
        results[f"rank_test_{name}"] = _ranks(results[f"mean_test_{name}"])
        if with_train:
            results |= _scores_of(rows, len(names) + number, name, n_splits, "train")
    return results


def _scores_of(
    rows: Sequence[Row], number: int, name: str, n_splits: int, which: str
) -> dict[str, np.ndarray]:
    """Return the columns of one score: those of splits, the mean and the standard deviation."""
    columns = {}
    splits = [row.found.splits[number] for row in rows]
    for split in range(0 if all(one is None for one in splits) else n_splits):
        columns[f"split{split}_{which}_{name}"] = np.array(
            [np.nan if one is None else one[split] for one in splits]
        )
    means = np.array([row.found.means[number] for row in rows])
    if any(row.trial.state != TrialState.PRUNED for row in _not_finite(rows, means)):
        warn_caller(f"One or more of the {which} scores are non-finite: {means}")
    columns[f"mean_{which}_{name}"] = means
    columns[f"std_{which}_{name}"] = np.array([row.found.stds[number] for row in rows])
    return columns


def _not_finite(rows: Sequence[Row], means: np.ndarray) -> list[Row]:
    return [row for row, mean in zip(rows, means, strict=True) if not np.isfinite(mean)]


def _ranks(means: np.ndarray) -> np.ndarray:
    """Return the rank of each mean, 1 for the largest; means that are NaN share the last one."""
    if np.isnan(means).all():
        return np.ones(len(means), np.int32)
    filled = np.where(np.isnan(means), np.nanmin(means) - 1, means)
    ranks: np.ndarray = rankdata(-filled, method="min").astype(np.int32)
    return ranks


def _columns_of(params: Sequence[Mapping[str, Any]]) -> dict[str, np.ma.MaskedArray]:
    """Return a column for each parameter, masked where a row does not have it."""
    given: dict[str, dict[int, Any]] = defaultdict(dict)
    for number, one in enumerate(params):
        for name, value in one.items():
            given[f"param_{name}"][number] = value
    return {
        name: _column(values, len(params))  # the order of their first appearance
        for name, values in given.items()
    }


def _column(values: Mapping[int, Any], n_rows: int) -> np.ma.MaskedArray:
    """Return values in a masked array of their own type if that is one of numbers."""
    try:
        array = np.array(list(values.values()))
        is_plain = array.ndim == 1 and array.dtype.kind in "biuf"
    except ValueError:  # sequences of different lengths
        is_plain = False
    column = np.ma.MaskedArray(np.empty(n_rows, array.dtype if is_plain else object), mask=True)
    for number, value in values.items():
        column[number] = value
    return column
