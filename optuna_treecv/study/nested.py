"""Nested cross-validation: the expected score of choosing a trial by cross-validation."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from sklearn.utils import _safe_indexing

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.intervals import HasInterval
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import nadeau_bengio
from optuna_treecv.core.intervals import within
from optuna_treecv.core.routing import part_of
from optuna_treecv.core.run import Run
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.evaluate import runs_for
from optuna_treecv.rows.folds import FoldPairs
from optuna_treecv.rows.folds import Folds
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.space import Params
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue

T = TypeVar("T")

#: (trial) -> the run of the trial, not necessarily evaluated.
RunOf = Callable[[FrozenTrial], Run]

#: (cross_validation) -> the same objective with other rows and folds.
ObjectiveOn = Callable[[CrossValidation], Callable[[optuna.Trial], float | Sequence[float]]]

# The maximum number of folds. Leaving out each pair of 100 folds takes 4,950 models.
_MAX_FOLDS = 100

_LOGGER = optuna.logging.get_logger("optuna.treecv")


@dataclass(frozen=True, eq=False)
class Nested(HasInterval):
    """The result of nested cross-validation.

    Attributes
    ----------
    mean : float
        The mean of ``test_score``: an estimate of the score of the whole tuning procedure.
    test_score : ndarray of shape (n_repeats * n_folds,)
        For each fold, the score of the model that was chosen without this fold and trained on all
        other rows.
    interval : Interval or None
        The interval of the mean by the method of Nadeau and Bengio; None if a fold score is
        infinite.
    low, high, level : float
        The ends and the level of the interval.
    wins : dict of int to int
        For each trial number, the number of folds for which the trial was chosen; the most
        frequent trial comes first. Empty with ``resample=True``, because the trials of each fold
        then differ.
    params : list of dict
        For each fold, the parameter values that were chosen.
    best_value : float
        The value of the study's best trial, which was chosen on the same folds on which it is
        scored.
    n_candidates : int
        The number of candidates that were compared for each fold.
    """

    mean: float
    test_score: Array
    interval: Interval | None
    wins: Mapping[int, int]
    params: Sequence[Params]
    best_value: float
    n_candidates: int

    def __repr__(self) -> str:
        """Return the most important attributes in a few lines."""
        lines = [
            f"Nested(mean={self.mean:.6g}, best_value={self.best_value:.6g}, "
            f"n_candidates={self.n_candidates}, test_score=<{len(self.test_score)} scores>,"
        ]
        if self.wins:
            lines.append(f"    wins={dict(self.wins)},")
        if self.interval is not None:
            lines.append(f"    low={self.low:.6g}, high={self.high:.6g}, level={self.level:g},")
        return "\n".join(lines)[:-1] + ")"


def nested_score(
    study: optuna.Study,
    contest: Contest,
    run_of: RunOf,
    objective_on: ObjectiveOn | None,
    level: float,
) -> Nested:
    """Return the nested cross-validation score of a study.

    Parameters
    ----------
    study : optuna.Study
    contest : Contest
    run_of : RunOf
    objective_on : ObjectiveOn or None
        Creates the objective with which new trials are evaluated for each fold. None: the
        candidates are the trials of the study.
    level : float
        The level of the interval.
    """
    level = check_level(level)
    assert contest.run is not None
    if contest.run.request.settings.n_estimators is not None:
        raise ValueError(
            "n_estimators of the objective must be None for nested cross-validation, got 'best', "
            "which chooses the number of trees on all folds, including the held-out one; search "
            "over the number of trees as a parameter instead."
        )
    _check_folds(contest.run)
    if objective_on is None:
        return _score_choice(contest, run_of, level)
    return _score_resampled_choice(study, contest, run_of, objective_on, level)


def _score_choice(contest: Contest, run_of: RunOf, level: float) -> Nested:
    """Return the nested score of choosing among complete trials with distinct parameters."""
    by_number = sorted(contest.trials, key=lambda trial: trial.number)
    trials = [*{_key(x): x for x in by_number[::-1]}.values()][::-1]
    runs = [run_of(trial) for trial in trials]
    cross_validation = runs[0].request.cross_validation
    stored = contest.folds_of(trials)
    by_trial = {
        i: stored[trial.number] for i, trial in enumerate(trials) if trial.number in stored
    }
    n_repeats, n_folds = cross_validation.n_repeats, cross_validation.n_folds
    folds = [*np.ndindex(n_repeats, n_folds)]
    inner = np.full((len(runs), n_repeats, n_folds, n_folds), np.nan)
    pair_indices = [i for i, run in enumerate(runs) if run.plan.capabilities.leaves_out_pairs]
    if pair_indices:
        with_single = not by_trial.keys() >= set(pair_indices)
        cuts = [repeat.cut for repeat in cross_validation.repeats]
        pairs = cross_validation.with_splits(
            [FoldPairs.of(cut, with_single) for cut in cuts if isinstance(cut, Folds)]
        )
        pair_runs = runs_for(pairs, [runs[i].estimator for i in pair_indices])
        evaluate_batch(pair_runs)
        for i, run in _logged([*zip(pair_indices, pair_runs, strict=True)], "candidates"):
            inner[i] = _pair_scores(pairs, run.finish().test_score)
            if with_single:
                by_trial[i] = np.diagonal(inner[i], axis1=1, axis2=2).ravel()
    other_indices = [i for i in range(len(runs)) if i not in pair_indices]
    for number, fold in _logged(folds if other_indices else [], "folds"):
        without = _without_fold(cross_validation, number, fold)
        inner_runs = [
            run_for(without, runs[i].estimator, runs[i].request.given_epochs)
            for i in other_indices
        ]
        evaluate_batch(inner_runs)
        for i, run in zip(other_indices, inner_runs, strict=True):
            inner[i, number, fold, np.arange(n_folds) != fold] = run.finish().test_score
    sign = 1 if runs[0].request.scoring.first.direction == "minimize" else -1
    winners = []
    for number, fold in folds:
        means = np.mean(inner[:, number, fold, np.arange(n_folds) != fold], axis=1)
        winners.append(int(np.argmin(sign * means)))  # the first one of equally good candidates
    for i in set(winners):
        if i not in by_trial:
            by_trial[i] = runs[i].finish().test_score
    scores = np.array([by_trial[i][column] for column, i in enumerate(winners)])
    wins = dict(Counter(trials[i].number for i in winners).most_common())
    params = [trials[i].params for i in winners]
    return _nested(contest, scores, wins, params, len(trials), level)


def _score_resampled_choice(
    study: optuna.Study, contest: Contest, run_of: RunOf, objective_on: ObjectiveOn, level: float
) -> Nested:
    """Return the nested score of choosing among new trials, suggested separately for each fold.

    The chosen candidate is scored on the held-out fold by the same model as in the study, with the
    same order of rows and the same seeds. With another order, the models of all folds would be
    trained on the same rows last, and their errors would be correlated.
    """
    stored = contest.folds_of(contest.trials)
    by_key = {
        _key(trial): stored[trial.number] for trial in contest.trials if trial.number in stored
    }
    scores, params, n_trials = [], [], len(study.get_trials(deepcopy=False))
    # One sampler for all folds, because copies with equal seeds would suggest equal candidates.
    sampler = deepcopy(study.sampler)
    cross_validation = run_of(contest.trials[0]).request.cross_validation
    folds = [*np.ndindex(cross_validation.n_repeats, cross_validation.n_folds)]
    for place, (number, fold) in enumerate(_logged(folds, "folds")):
        objective = objective_on(_without_fold(cross_validation, number, fold))
        resampled = optuna.create_study(direction=study.direction, sampler=sampler)
        resampled.optimize(objective, n_trials=n_trials)
        best = resampled.best_trial
        if _key(best) not in by_key:
            by_key[_key(best)] = run_of(best).finish().test_score
        scores.append(by_key[_key(best)][place])
        params.append(best.params)
    return _nested(contest, np.array(scores), {}, params, n_trials, level)


def _logged(items: Sequence[T], unit: str) -> Iterator[T]:
    """Yield items, and log the progress after each item to a logger of Optuna."""
    start = perf_counter()
    for number, item in enumerate(items, 1):
        yield item
        seconds = perf_counter() - start
        _LOGGER.info(f"nested: {number} of {len(items)} {unit} in {seconds:.0f} s")


def _key(trial: FrozenTrial) -> str:
    """Return a key that is equal for trials with equal params."""
    return repr(sorted(trial.params.items()))


def _nested(
    contest: Contest,
    scores: Array,
    wins: Mapping[int, int],
    params: list[dict[str, ParamValue]],
    n_candidates: int,
    level: float,
) -> Nested:
    """Return the result for the scores of all folds."""
    interval = None
    if np.all(np.isfinite(scores)):
        assert contest.test_share is not None
        plain = nadeau_bengio(scores, contest.test_share, contest.n_trained, level)
        target = (
            "the expected score on new rows of choosing by cross-validation among "
            f"{n_candidates:,} candidates, with a model that is trained on {contest.n_trained:,} "
            "other rows from the same source"
        )
        interval = within(replace(plain, target=target), contest.score_range)
    best, values = contest.trials[0].values[0], [contest.values_of(p) for p in params]
    return Nested(float(scores.mean()), scores, interval, wins, values, best, n_candidates)


# Inner cross-validations, whose models leave out the held-out fold and an inner test fold.


def _check_folds(run: Run) -> None:
    """Raise ValueError if folds cannot be held out in pairs."""
    request = run.request
    cut = request.cross_validation.repeats[0].cut
    tested = request.cross_validation.tested(run.method_name)
    request.data.require_local("nested cross-validation")
    if request.is_pooled:
        raise ValueError(
            "nested cross-validation needs a score that is computed for each fold, got the pooled "
            f"score {request.scoring.name!r}."
        )
    reason = ""
    if tested.goes_forward:
        reason = "in a time series, the choice for a fold would depend on later folds"
    elif cut.n_folds > 1 and not isinstance(cut, Folds):
        reason = "test sets overlap" if tested.shares_test_rows else cut.why_no_tree
    if reason:
        raise ValueError(
            "cv must train on all rows outside of each fold for nested cross-validation, but "
            f"{reason}."
        )
    if not 3 <= cut.n_folds <= _MAX_FOLDS:
        raise ValueError(
            f"cv must make 3 to {_MAX_FOLDS} folds for nested cross-validation, got {cut.n_folds}."
        )


def _pair_scores(cross_validation: CrossValidation, scores: Array) -> Array:
    """Return the scores of models that hold out two folds, of shape (n_repeats, k, k).

    Entry [r, i, j] is the score on fold j of the model that is trained without folds i and j.
    """
    tables, scores = [], scores.reshape(cross_validation.n_repeats, -1)
    for repeat, repeat_scores in zip(cross_validation.repeats, scores, strict=True):
        cut = repeat.cut
        assert isinstance(cut, FoldPairs)
        k = cut.folds.n_folds
        fold_ids = np.array([cut.folds.number(chunk) for chunk in range(k)])
        tested = fold_ids[np.concatenate(cut.models)]
        left_out = fold_ids[np.concatenate([model[::-1] for model in cut.models])]
        table = np.full((k, k), np.nan)
        table[left_out, tested] = repeat_scores
        tables.append(table)
    return np.array(tables)


def _without_fold(cross_validation: CrossValidation, number: int, fold: int) -> CrossValidation:
    """Return the inner cross-validation for a held-out fold of a repeat, with the same seed."""
    cut = cross_validation.repeats[number].cut
    data, settings = cross_validation.data, cross_validation.settings
    ids = np.full(cut.n_rows, -1)  # -1: rows that are never tested
    for chunk in range(cut.n_folds):
        ids[cut.test_rows(chunk)] = cut.number(chunk)
    rows = np.flatnonzero(ids != fold)

    def select(values: Opaque) -> Opaque:
        return values if values is None else _safe_indexing(values, rows)

    score_weight = settings.score_weight
    inner = replace(
        settings,
        cv=ids[rows],
        stratify=False,
        n_repeats=1,
        random_state=settings.seed + number,
        sample_weight=select(settings.sample_weight),
        score_weight=score_weight if isinstance(score_weight, str) else select(score_weight),
        params=settings.params and part_of(settings.params, data.X_given, rows),
        report=None,
        row_losses=False,
    )
    X, y, topics = select(data.X_given), select(data.y_given), cross_validation.topics
    return CrossValidation.of(X, y, inner, cache=ModelCache(), topics=topics)
