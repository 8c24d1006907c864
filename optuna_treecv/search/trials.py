"""The trials of a search: evaluates each, and makes ``cv_results_`` of the results.

The study behind them is made, found again in a storage, or given.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field
from threading import Lock
from typing import Any
from typing import Self
import warnings

import numpy as np
import optuna
from optuna.distributions import distribution_to_json
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.exceptions import FitFailedWarning

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.caching.keys import content_key
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.run import FoldsFailed
from optuna_treecv.core.settings import is_number
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.estimators.base import name_of
from optuna_treecv.scoring.scorers import NoNumber
from optuna_treecv.search.points import Points
from optuna_treecv.search.scores import earlier_row
from optuna_treecv.search.scores import failed_row
from optuna_treecv.search.scores import MOST_SPLITS
from optuna_treecv.search.scores import Row
from optuna_treecv.search.scores import row_of
from optuna_treecv.search.scores import sign_of
from optuna_treecv.search.scores import signed
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import known_direction
from optuna_treecv.study.choice import order_of
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.records import runs_of_trial
from optuna_treecv.study.space import Axis


@dataclass(eq=False)
class Trials:
    """The function that a study runs: an evaluator, and what is kept of its trials.

    It is a context: the search begins where it is entered, and is over where it is left. The
    callbacks that ``set_callbacks`` has set are told so, by the names of tasks in scikit-learn's
    searches. The splits of a trial are evaluated together, so their tasks begin and end together.

    Parameters
    ----------
    search : TreeCVSearchCV
    evaluator : Evaluator
    names : sequence of str
        Of the scores in the columns.
    with_names : callable
        (names) -> the evaluator to go on with if the scorer returns several scores by name.
    data : dict
        ``X``, ``y`` and ``metadata``, for the callbacks.

    Attributes
    ----------
    errors : dict of int to Exception
        By the numbers of the trials that have failed.
    argument_error : Exception or None
        The error of an argument, if a trial has shown it.
    """

    search: Any
    evaluator: Evaluator
    names: Sequence[str]
    with_names: Callable[[Sequence[str]], Evaluator]
    data: dict[str, Any]
    errors: dict[int, Exception] = field(default_factory=dict, init=False)
    argument_error: Exception | None = field(default=None, init=False)
    _rows: dict[int, Row] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        self.data |= {"estimator": self.search}
        self._is_heard = bool(getattr(self.search, "_skl_callbacks", ()))
        if self._is_heard:
            n_tasks = 1 + bool(self.search.refit)
            self._root = self.search._init_callback_context(max_subtasks=n_tasks)
            self._root.call_on_fit_task_begin(**self.data)
        return self

    def __exit__(self, kind: type | None, error: Any, where: Any) -> None:
        if not self._is_heard:
            return
        from sklearn.callback import with_callbacks  # scikit-learn 1.9; before it, none is set

        try:
            if error is None:
                self._root.call_on_fit_task_end(**self.data)
        finally:
            with_callbacks(lambda search: None)(self.search)  # tears the callbacks down

    @contextmanager
    def within(self, name: str, **options: Any) -> Generator[None]:
        """Return a context in which a task inside the search runs; an error does not end it."""
        if self._is_heard:
            self._inner = self._root.subcontext(name, **options)
            self._inner.call_on_fit_task_begin(**self.data)
        yield
        if self._is_heard:
            self._inner.call_on_fit_task_end(**self.data)

    def __call__(self, trial: optuna.Trial) -> float:
        error_score = self.search.error_score
        n_tasks = self.evaluator.n_splits if self._is_heard else 0
        tasks = [self._inner.subcontext("candidate-split-evaluation") for _ in range(n_tasks)]
        for task in tasks:
            task.call_on_fit_task_begin(**self.data)
        try:
            result = self._evaluate(trial)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            if isinstance(error, FoldsFailed):
                signs = [sign_of(one) for one in self.evaluator.score_directions.values()]
                splits = signed(error.scores, np.array(signs)[:, None], error_score)
                splits[:, list(error.errors)] = error_score
                self._keep(trial, failed_row(splits))
            if not isinstance(error, FoldsFailed) or error.errors:
                self.errors[trial.number] = error
            if error_score == "raise":
                raise
            # Optuna logs a failed trial with its traceback: without ours that is a few lines.
            raise error.with_traceback(None) from None
        finally:
            for task in tasks:
                task.call_on_fit_task_end(**self.data)
        self._keep(trial, row_of(result, self.evaluator.n_splits, error_score))
        return result.mean

    def _evaluate(self, trial: optuna.Trial) -> CVResult:
        """Evaluate a trial, anew if the scorer turns out to return several scores."""
        try:
            return self.evaluator.evaluate(trial)
        except (FoldsFailed, NoNumber) as error:
            errors = error.errors.values() if isinstance(error, FoldsFailed) else [error]
            names = next((one.names for one in errors if isinstance(one, NoNumber)), ())
            if not names:
                raise
        try:
            self.evaluator = self.with_names(names)
            self.names = names
        except ValueError as error:
            self.argument_error = error
            trial.study.stop()
            raise
        return self.evaluator.evaluate(trial)

    def _keep(self, trial: optuna.Trial, row: Row) -> None:
        """Keep a row, and print a line for each split of it: the parameters and the scores."""
        self._rows[trial.number] = row
        if self.search.verbose <= 2:
            return
        params = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        for split in range(min(0 if one is None else len(one) for one in row.splits)):
            values = [f"{one[split]:.3f}" for one in row.splits if one is not None]
            tested, trained = values[: len(self.names)], values[len(self.names) :]
            if trained:
                pairs = zip(trained, tested, strict=True)
                tested = [f"(train={train}, test={test})" for train, test in pairs]
            scores = [f"{name}={score}" for name, score in zip(self.names, tested, strict=True)]
            print(f"split {split}: {params}; {', '.join(scores)}")

    def rows(self, study: optuna.Study, points: Points | None, optimized: int) -> list[Row]:
        """Return the rows of ``cv_results_``, of all trials but those that failed in earlier runs.

        Parameters
        ----------
        study : optuna.Study
        points : Points or None
            Rows are in their order, after those of earlier trials that are at none of them.
        optimized : int
            The number of the score that is the value of trials.
        """
        trials = [
            trial
            for trial in study.get_trials(deepcopy=False)
            if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            or trial.number in self.errors
            or trial.number in self._rows
        ]
        pairs = [] if points is None else points.tried(self.evaluator.space.axes, trials)
        if points is None or points.is_sample:
            numbers = {trial.number for _, trial in pairs}
            others = [trial for trial in trials if trial.number not in numbers]
            pairs = [(self.evaluator.values_of(one.params), one) for one in others] + pairs
        trials = [trial for _, trial in pairs]
        self._check(trials)
        stored: Mapping[int, Mapping[str, np.ndarray]] = {}
        if self.evaluator.n_splits <= MOST_SPLITS:
            earlier = [trial for trial in trials if trial.number not in self._rows]
            stored = self.evaluator.known_scores.stored(earlier, self.evaluator.n_splits)
        directions = self.evaluator.score_directions
        rows = []
        for params, trial in pairs:
            row = self._rows.get(trial.number)
            if row is None or len(row.means) != len(directions):  # of another run, or other scores
                if trial.state == TrialState.FAIL:
                    shape = len(directions), self.evaluator.n_splits
                    row = failed_row(np.full(shape, float(self.search.error_score)))
                else:
                    of_trial = stored.get(trial.number, {})
                    row = earlier_row(trial, directions, optimized, of_trial)
            rows.append(row._replace(params=params, trial=trial))
        return rows

    def _check(self, trials: Sequence[FrozenTrial]) -> None:
        """Refuse a search in which all fits have failed; warn if some have.

        Parameters
        ----------
        trials : sequence of FrozenTrial
            That of each row.
        """
        if self.argument_error is not None:
            raise self.argument_error
        if not trials:
            raise ValueError("timeout must leave time for one trial, but none is complete.")
        errors = [self.errors[trial.number] for trial in trials if trial.number in self.errors]
        if not errors:
            return
        failures: list[Exception] = []
        for error in errors:  # one of a whole trial stands for all of its folds
            by_fold = error.errors.values() if isinstance(error, FoldsFailed) else None
            failures += [error] * self.evaluator.n_splits if by_fold is None else by_fold
        n_failed, n_fits = len(failures), len(trials) * self.evaluator.n_splits
        counts = Counter(f"{type(one).__name__}: {one}" for one in failures)
        each = (f"{n} fits failed with the following error: {what}" for what, n in counts.items())
        about = f"{'; '.join(each)}; error_score='raise' shows where."
        if n_failed == n_fits:
            raise ValueError(
                f"All the {n_fits} fits failed. Perhaps your model is misconfigured, or does not "
                f"suit the data: {about}"
            ) from errors[0]
        warnings.warn(
            f"{n_failed} fits failed out of a total of {n_fits}; their splits score "
            f"error_score={self.search.error_score}: {about}",
            FitFailedWarning,
            stacklevel=3,
        )


#: The trials of a search that is no grid, as for OptunaSearchCV and RandomizedSearchCV.
N_TRIALS = 10

_OTHER_SPACES = "for other spaces, pass simpler or a callable as refit"

_lock = Lock()
_levels: list[int] = []  # the level before the first of those that are quiet now, and its copies


@contextmanager
def quiet() -> Generator[None]:
    """Show warnings of Optuna alone; several threads may do so at the same time."""
    with _lock:
        _levels.append(_levels[0] if _levels else optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(max(_levels[0], optuna.logging.WARNING))
    try:
        yield
    finally:
        with _lock:
            before = _levels.pop()
            if not _levels:
                optuna.logging.set_verbosity(before)


def study_for(search: Any, evaluator: Evaluator, seed: int) -> optuna.Study:
    """Return the study to run: the given one if it fits, one in a storage, or a new one.

    Parameters
    ----------
    search : TreeCVSearchCV
    evaluator : Evaluator
    seed : int
        Of the sampler, where none is given.
    """
    if search.study is None:
        with nullcontext() if search.verbose else quiet():
            return _make_study(search, evaluator, seed)
    _check_direction(search.study, evaluator)
    try:
        evaluator.check_study(search.study)
    except ValueError as error:
        if search.random_state is not None:
            raise
        raise ValueError(
            "random_state must be an int where study has trials, the same for all of them, "
            f"because None shuffles the rows, and so the folds, anew in each search. ({error})"
        ) from error
    _check_trials(search.study, evaluator.space.axes)
    return search.study


def _make_study(search: Any, evaluator: Evaluator, seed: int) -> optuna.Study:
    """Return a new study, or the one in a storage that a search before this one has begun.

    It is found again if data, folds, scoring, estimator and space are the same.
    """
    storage, name = search.storage, None
    if storage is not None:
        if search.random_state is None:
            warn_caller(
                "storage should have an int as random_state beside it, because None shuffles the "
                "rows anew in each search, which then makes a new study."
            )
        name = _name_of_search(search, evaluator)
        if name is None:
            warn_caller(
                "storage gets a new study that no later search finds again, because the estimator "
                "or its space has no name that lasts; pass study instead."
            )
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        load_if_exists=name is not None,
        directions=[StudyDirection[one.upper()] for one in evaluator.directions],
        pruner=optuna.pruners.NopPruner() if search.pruner is None else deepcopy(search.pruner),
    )
    if search.sampler is None:  # one that continues a study does not repeat its first draws
        drawn = derive_seed(seed, len(study.get_trials(deepcopy=False))) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=drawn)
    else:
        study.sampler = deepcopy(search.sampler)  # so that fit leaves the argument as it was
    return study


def _name_of_search(search: Any, evaluator: Evaluator) -> str | None:
    """Return a name that the same search has in later processes; None if it has none."""
    try:
        spaces = [
            one.encode()
            for name, distribution in sorted(evaluator.param_distributions.items())
            for one in (name, distribution_to_json(distribution))
        ]
        if callable(search.param_distributions):
            spaces.append(content_key(search.param_distributions))
        key = digest(evaluator.fingerprint().encode(), lasting_key(search.estimator), *spaces)
    except (NoKey, TypeError):  # choices that are no JSON cannot be in a storage
        return None
    return f"treecv-search-{key.hex()}"


def _check_direction(study: optuna.Study, evaluator: Evaluator) -> None:
    """Refuse a study that does not do with values what the scoring of a search needs."""
    directions = [direction.name.lower() for direction in study.directions]
    if directions != evaluator.directions:
        what = "a loss" if evaluator.directions[0] == "minimize" else "a score"
        raise ValueError(
            f"study must have direction={evaluator.directions[0]!r}, because scoring is {what}, "
            f"got {' and '.join(map(repr, directions))}; use "
            f"optuna.create_study(direction={evaluator.directions[0]!r}) instead."
        )


def _check_trials(study: optuna.Study, axes: Mapping[str, Axis]) -> None:
    """Refuse a study whose trials have other parameters than a search, or other values of them.

    There are no axes where a callable suggests parameters.
    """
    for trial in over(study):
        if axes and trial.state == TrialState.COMPLETE and set(trial.params) != set(axes):
            raise ValueError(
                f"study must hold trials of the parameters {', '.join(sorted(axes))}, but trial "
                f"{trial.number} has {', '.join(sorted(trial.params)) or 'none'}."
            )
        for name in trial.distributions.keys() & axes:
            if not axes[name].has_codes_of(other := trial.distributions[name]):
                raise ValueError(
                    f"study must hold trials with the values of this search, but {name!r} of "
                    f"trial {trial.number} is from {other} and not {axes[name].distribution}; "
                    "create a new study instead."
                )


def over(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that are over."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def _n_scored(trials: Sequence[FrozenTrial]) -> int:
    """Return how many trials have not failed."""
    return sum(trial.state != TrialState.FAIL for trial in trials)


def run_trials(trials: Trials, study: optuna.Study, points: Points | None) -> None:
    """Run the trials that are missing.

    Parameters
    ----------
    trials : Trials
    study : optuna.Study
    points : Points or None
        Those of a grid, or of a sample of one.
    """
    search, space = trials.search, trials.evaluator.space
    before, sampler = over(study), study.sampler
    asked = search.n_trials or search.n_iter
    n_trials = asked or N_TRIALS
    if search.study is None and (points is None or points.is_sample):
        n_trials = max(0, n_trials - _n_scored(before))
    if points is not None:
        points.find_missing(space.axes, before)
        if asked is not None or points.is_sample:
            del points.missing[n_trials:]
        if points.is_sample:
            # No other points of the grid are evaluated ahead of their trials.
            space.grids = [
                {name: [code] for name, code in point.items()} for point in points.missing
            ]
        study.sampler = points
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        n_trials = len(points.missing) + len(waiting)
    with trials.within("search", max_subtasks=n_trials * trials.evaluator.n_splits):
        try:
            if n_trials > 0:
                with nullcontext() if search.verbose else quiet():
                    study.optimize(
                        trials,
                        n_trials=n_trials,
                        timeout=search.timeout,
                        catch=() if search.error_score == "raise" else (Exception,),
                        callbacks=None if search.callbacks is None else list(search.callbacks),
                        show_progress_bar=bool(search.progress),
                    )
        except KeyboardInterrupt:
            if not (n_scored := _n_scored(over(study))):
                raise
            warn_caller(
                f"The search was interrupted after {n_scored} trials; the results are those "
                "of these trials."
            )
        finally:
            study.sampler = sampler


# Requirements of ``refit="one_se"``, and the row that it takes.


def check_one_se(evaluator: Evaluator, simpler: Any) -> None:
    """Refuse a search whose candidates have no order of simplicity, or no standard error.

    Parameters
    ----------
    evaluator : Evaluator
        The evaluator of the search, before its first trial.
    simpler : dict, "n_updates", callable or None
        As for ``TreeCVSearchCV``.

    Raises
    ------
    ValueError
        If the choice would fail after the last trial.
    """
    if not evaluator.has_fold_scores:
        raise ValueError(
            "refit='one_se' must have the scores of several folds, which a hold-out and a pooled "
            "score do not have; use refit=True instead."
        )
    distributions = evaluator.param_distributions
    if simpler is not None:
        order_of([], simpler, list(distributions))  # refuses what is none
        if not isinstance(simpler, Mapping):
            return
        distributions = {name: distributions[name] for name in simpler}
    elif known_direction(list(distributions)) is None:
        known = ""
        if (example := evaluator.space.example) is not None:
            names = [name for name in example.get_params() if known_direction([name])]
            known = f", of which {name_of(example)} has {', '.join(names) or 'none'}"
        raise ValueError(
            "refit='one_se' must have a space of one parameter for which it is known which values "
            f"are simpler{known}, got {', '.join(map(repr, distributions))}; {_OTHER_SPACES}."
        )
    for name, distribution in distributions.items():
        for value in getattr(distribution, "choices", ()):
            if not is_number(value):
                raise ValueError(
                    f"refit='one_se' must have numbers as values of {name!r}, got {value!r}; "
                    f"{_OTHER_SPACES}."
                )


def check_earlier_scores(earlier: Sequence[FrozenTrial], store: Any) -> None:
    """Refuse, before the first new trial, earlier trials whose fold scores no store keeps.

    Parameters
    ----------
    earlier : sequence of FrozenTrial
    store : Any
        As the user gave it.

    Raises
    ------
    ValueError
        If the choice could pass over an earlier trial, or fail because one is the best.
    """
    n_unknown = sum(
        trial.state == TrialState.COMPLETE
        and (store is None or not runs_of_trial(trial.user_attrs))
        for trial in earlier
    )
    if n_unknown:
        raise ValueError(
            f"refit='one_se' needs fold scores, but those of {n_unknown} earlier trials are not "
            "known; store, given from the first run on, keeps fold scores, and refit=True needs "
            "none."
        )


def row_by_one_se(
    evaluator: Evaluator, study: optuna.Study, numbers: list[int], simpler: Any
) -> int:
    """Return the number of the row that is simplest of those about as good as the best.

    Parameters
    ----------
    evaluator : Evaluator
    study : optuna.Study
        It may have further trials, which are not chosen.
    numbers : list of int
        That of the trial of each row.
    simpler : dict, "n_updates", callable or None
        As for ``TreeCVSearchCV``.

    Raises
    ------
    ValueError
        If the fold scores of the best trial are not known, or no trial has a finite score.
    """
    contest = evaluator.contest(study)
    contest = contest._replace(trials=[one for one in contest.trials if one.number in numbers])
    if not contest.trials:
        raise ValueError("refit='one_se' needs a trial with a finite score, but there is none.")
    best = contest.trials[0]
    if best.number not in contest.folds_of([best]):
        raise ValueError(
            f"refit='one_se' needs the fold scores of the best trial, number {best.number}, which "
            "an earlier run has not kept; store, given from the first run on, keeps fold scores, "
            "and refit=True needs none."
        )
    return numbers.index(choice_of(contest, "one_se", simpler, 0.95).trial.number)
