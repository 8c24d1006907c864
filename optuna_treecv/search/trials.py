"""The trials of a search: evaluates each, and makes ``cv_results_`` of the results.

The study behind them is made, found again in a storage, or given.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field
from threading import Lock
from typing import Any
from typing import NamedTuple
from typing import Self
import warnings

import numpy as np
import optuna
from optuna.distributions import distribution_to_json
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection._search import _yield_masked_array_for_each_param

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.caching.keys import content_key
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.run import FoldsFailed
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.scoring.scorers import are_failed
from optuna_treecv.scoring.scorers import NoNumber
from optuna_treecv.search.points import Points
from optuna_treecv.search.scores import ranks_of
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import scores_of_trial
from optuna_treecv.study.space import Axis

#: With more splits than this, ``cv_results_`` has no columns for them.
MOST_SPLITS = 100


class Row(NamedTuple):
    """A row of ``cv_results_``. All scores are signed, so that larger ones are better.

    Attributes
    ----------
    means, stds : ndarray of shape (n_scores,)
        NaN where they are not known.
    splits : list of (ndarray of shape (n_splits,) or None)
        Of each score; None if there are too many, or it has none.
    seconds : float
    params : dict
    trial : FrozenTrial or None
        The trial of these parameters; None while it runs.
    """

    means: np.ndarray
    stds: np.ndarray
    splits: list[np.ndarray | None]
    seconds: float
    params: dict[str, Any] = {}  # noqa: RUF012  # never changed
    trial: Any = None


@dataclass(eq=False)
class Trials:
    """The function that a study runs: an objective, and what is kept of its trials.

    Parameters
    ----------
    objective : TreeCVObjective
    error_score : "raise" or float
    tasks : FitTasks
    verbose : int
        As for ``TreeCVSearchCV``.
    names : sequence of str
        Of the scores in the columns.
    with_names : callable
        (names) -> the objective to go on with if the scorer returns several scores by name.

    Attributes
    ----------
    errors : dict of int to Exception
        By the numbers of the trials that have failed.
    argument_error : Exception or None
        The error of an argument, if a trial has shown it.
    """

    objective: TreeCVObjective
    error_score: Any
    tasks: "FitTasks"
    verbose: int
    names: Sequence[str]
    with_names: Callable[[Sequence[str]], TreeCVObjective]
    errors: dict[int, Exception] = field(default_factory=dict, init=False)
    argument_error: Exception | None = field(default=None, init=False)
    _rows: dict[int, Row] = field(default_factory=dict, init=False)

    def __call__(self, trial: optuna.Trial) -> float:
        try:
            with self.tasks.trial(self.objective.n_splits):
                result = self._evaluate(trial)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            if isinstance(error, FoldsFailed):
                signs = [sign_of(one) for one in self.objective.score_directions.values()]
                splits = signed(error.scores, np.array(signs)[:, None], self.error_score)
                splits[:, list(error.errors)] = self.error_score
                self._keep(trial, failed_row(splits))
            if not isinstance(error, FoldsFailed) or error.errors:
                self.errors[trial.number] = error
            if self.error_score == "raise":
                raise
            # Optuna logs a failed trial with its traceback: without ours that is a few lines.
            raise error.with_traceback(None) from None
        self._keep(trial, row_of(result, self.objective.n_splits, self.error_score))
        return result.mean

    def _evaluate(self, trial: optuna.Trial) -> CVResult:
        """Evaluate a trial, anew if the scorer turns out to return several scores."""
        try:
            return self.objective.evaluate_trial(trial)
        except (FoldsFailed, NoNumber) as error:
            errors = error.errors.values() if isinstance(error, FoldsFailed) else [error]
            names = next((one.names for one in errors if isinstance(one, NoNumber)), ())
            if not names:
                raise
        try:
            self.objective = self.with_names(names)
            self.names = names
        except ValueError as error:
            self.argument_error = error
            trial.study.stop()
            raise
        return self.objective.evaluate_trial(trial)

    def _keep(self, trial: optuna.Trial, row: Row) -> None:
        """Keep a row, and print a line for each split of it: the parameters and the scores."""
        self._rows[trial.number] = row
        if self.verbose <= 2:
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
        pairs = [] if points is None else points.tried(self.objective.evaluator.space.axes, trials)
        if points is None or points.is_sample:
            numbers = {trial.number for _, trial in pairs}
            others = [trial for trial in trials if trial.number not in numbers]
            pairs = [(self.objective.values_of(one.params), one) for one in others] + pairs
        trials = [trial for _, trial in pairs]
        self._check(trials)
        stored: Mapping[int, Mapping[str, np.ndarray]] = {}
        if self.objective.n_splits <= MOST_SPLITS:
            earlier = [trial for trial in trials if trial.number not in self._rows]
            stored = self.objective.evaluator.known_scores.stored(earlier, self.objective.n_splits)
        directions = self.objective.score_directions
        rows = []
        for params, trial in pairs:
            row = self._rows.get(trial.number)
            if row is None or len(row.means) != len(directions):  # of another run, or other scores
                if trial.state == TrialState.FAIL:
                    shape = len(directions), self.objective.n_splits
                    row = failed_row(np.full(shape, float(self.error_score)))
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
            failures += [error] * self.objective.n_splits if by_fold is None else by_fold
        n_failed, n_fits = len(failures), len(trials) * self.objective.n_splits
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
            f"error_score={self.error_score}: {about}",
            FitFailedWarning,
            stacklevel=3,
        )


def row_of(result: CVResult, n_splits: int, error_score: Any) -> Row:
    """Return the row of a result; its memory does not grow with the number of splits.

    Parameters
    ----------
    result : CVResult
    n_splits : int
    error_score : "raise" or float
    """
    means, stds, splits = [], [], list[np.ndarray | None]()
    for score in result.scores.values():
        sign = sign_of(score.direction)
        of_splits = signed(score.test_score, sign, error_score)
        mean, std = sign * score.mean, np.nan if score.std is None else score.std
        if np.isnan(mean) and len(of_splits):  # a scorer has failed
            mean, std = of_splits.mean(), of_splits.std()
        means.append(mean)
        stds.append(std)
        # A pooled score has one value for each repeat.
        has_splits = len(of_splits) == n_splits <= MOST_SPLITS
        splits.append(of_splits if has_splits else None)
    return Row(np.array(means), np.array(stds), splits, result.seconds)


def earlier_row(
    trial: FrozenTrial,
    directions: Mapping[str, str],
    optimized: int,
    stored: Mapping[str, np.ndarray],
) -> Row:
    """Return the row of a trial of an earlier run, from its attributes and the store.

    Its attributes have six digits; its value and the store have all of them.

    Parameters
    ----------
    trial : FrozenTrial
    directions : dict of str to {"minimize", "maximize"}
        By the names of the scores, as the objective knows them.
    optimized : int
        The number of the score that is the trial's value.
    stored : dict of str to ndarray of shape (n_splits,)
        The fold scores in the store, by the names of the scores.
    """
    facts, scores = facts_of_trial(trial.user_attrs), scores_of_trial(trial.user_attrs)
    signs = np.array([sign_of(direction) for direction in directions.values()])
    means = np.array([scores.get(name, np.nan) for name in directions], float)
    stds = np.full(len(signs), np.nan)
    is_complete = trial.state == TrialState.COMPLETE and trial.values is not None
    if is_complete:
        means[optimized] = trial.values[0]
        stds[optimized] = facts.get("std_test_score", np.nan)
    splits: list[np.ndarray | None] = [None] * len(signs)
    for number, name in enumerate(directions):
        if name not in stored:
            continue
        splits[number] = signs[number] * stored[name]
        if is_complete and np.isfinite(stored[name]).all():
            stds[number] = stored[name].std()
            if number != optimized:
                means[number] = stored[name].mean()
    return Row(signs * means, stds, splits, float(facts.get("seconds", np.nan)))


def failed_row(splits: np.ndarray) -> Row:
    """Return the row of a trial of which some folds failed, or all.

    Parameters
    ----------
    splits : ndarray of shape (n_scores, n_splits)
        The signed scores, and ``error_score`` for folds that failed.
    """
    shown = list(splits) if splits.shape[1] <= MOST_SPLITS else [None] * len(splits)
    return Row(splits.mean(axis=1), splits.std(axis=1), shown, 0.0)


def signed(scores: np.ndarray, sign: Any, error_score: Any) -> np.ndarray:
    """Return scores of which larger ones are better; ``error_score`` where the scorer failed."""
    of_failed = np.nan if error_score == "raise" else error_score
    return np.where(are_failed(scores), of_failed, sign * scores)


def sign_of(direction: str) -> float:
    """Return the factor by which larger values of a score become better."""
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
    seconds = np.array([row.seconds for row in rows]) / n_splits
    results: dict[str, Any] = {
        "mean_fit_time": seconds,
        "std_fit_time": np.zeros(len(rows)),
        "mean_score_time": np.zeros(len(rows)),
        "std_score_time": np.zeros(len(rows)),
    }
    params = [row.params for row in rows]
    results |= {**dict(_yield_masked_array_for_each_param(params)), "params": params}
    for number, name in enumerate(names):
        results |= _scores_of(rows, number, name, n_splits, "test")
        results[f"rank_test_{name}"] = ranks_of(results[f"mean_test_{name}"])
        if with_train:
            results |= _scores_of(rows, len(names) + number, name, n_splits, "train")
    return results


def _scores_of(
    rows: Sequence[Row], number: int, name: str, n_splits: int, which: str
) -> dict[str, np.ndarray]:
    """Return the columns of one score: those of splits, the mean and the standard deviation."""
    columns = {}
    splits = [row.splits[number] for row in rows]
    for split in range(0 if all(one is None for one in splits) else n_splits):
        columns[f"split{split}_{which}_{name}"] = np.array(
            [np.nan if one is None else one[split] for one in splits]
        )
    means = np.array([row.means[number] for row in rows])
    kept = [row for row in rows if row.trial is None or row.trial.state != TrialState.PRUNED]
    if not all(np.isfinite(row.means[number]) for row in kept):
        warn_caller(f"One or more of the {which} scores are non-finite: {means}")
    columns[f"mean_{which}_{name}"] = means
    columns[f"std_{which}_{name}"] = np.array([row.stds[number] for row in rows])
    return columns


# Events for the callbacks of scikit-learn, which are set by ``set_callbacks``.


class FitTasks:
    """The tasks of one search, by the names that they have in scikit-learn's searches.

    It is a context: the search begins where it is entered, and is over where it is left.

    The splits of a trial are evaluated together, so their tasks begin and end together.

    Parameters
    ----------
    search : TreeCVSearchCV
    refits : bool
    **data : Any
        ``X``, ``y`` and ``metadata``, for the callbacks.
    """

    def __init__(self, search: Any, refits: bool, **data: Any) -> None:
        self._search = search
        self._refits = refits
        self._data = {"estimator": search, **data}
        self._is_heard = bool(getattr(search, "_skl_callbacks", ()))

    @contextmanager
    def trial(self, n_splits: int) -> Generator[None]:
        """Return a context in which the splits of one trial are evaluated."""
        n_tasks = n_splits if self._is_heard else 0
        tasks = [self._inner.subcontext("candidate-split-evaluation") for _ in range(n_tasks)]
        for task in tasks:
            task.call_on_fit_task_begin(**self._data)
        try:
            yield
        finally:
            for task in tasks:
                task.call_on_fit_task_end(**self._data)

    @contextmanager
    def within(self, name: str, **options: Any) -> Generator[None]:
        """Return a context in which a task inside the search runs; an error does not end it."""
        if self._is_heard:
            self._inner = self._root.subcontext(name, **options)
            self._inner.call_on_fit_task_begin(**self._data)
        yield
        if self._is_heard:
            self._inner.call_on_fit_task_end(**self._data)

    def __enter__(self) -> Self:
        if self._is_heard:
            self._root = self._search._init_callback_context(max_subtasks=1 + self._refits)
            self._root.call_on_fit_task_begin(**self._data)
        return self

    def __exit__(self, kind: type | None, error: Any, where: Any) -> None:
        if not self._is_heard:
            return
        from sklearn.callback import with_callbacks  # scikit-learn 1.9; before it, none is set

        try:
            if error is None:
                self._root.call_on_fit_task_end(**self._data)
        finally:
            with_callbacks(lambda search: None)(self._search)  # tears the callbacks down


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


def make_study(search: Any, objective: TreeCVObjective, seed: int) -> optuna.Study:
    """Return a new study, or the one in a storage that a search before this one has begun.

    Parameters
    ----------
    search : TreeCVSearchCV
        A study in its ``storage`` is found again if the data, the folds, the scoring, the
        estimator and the space are the same.
    objective : TreeCVObjective
    seed : int
        Of the sampler, where none is given.
    """
    storage, name = search.storage, None
    if storage is not None:
        name = _name_of_search(search, objective)
        if name is None:
            warn_caller(
                "storage gets a new study that no later search finds again, since the estimator "
                "or its space has no name that lasts; study would be right."
            )
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        load_if_exists=name is not None,
        directions=[StudyDirection[one.upper()] for one in objective.directions],
        pruner=optuna.pruners.NopPruner() if search.pruner is None else deepcopy(search.pruner),
    )
    if search.sampler is None:  # one that continues a study does not repeat its first draws
        drawn = derive_seed(seed, len(study.get_trials(deepcopy=False))) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=drawn)
    else:
        study.sampler = deepcopy(search.sampler)  # so that fit leaves the argument as it was
    return study


def _name_of_search(search: Any, objective: TreeCVObjective) -> str | None:
    """Return a name that the same search has in later processes; None if it has none."""
    try:
        spaces = [
            one.encode()
            for name, distribution in sorted(objective.param_distributions.items())
            for one in (name, distribution_to_json(distribution))
        ]
        if callable(search.param_distributions):
            spaces.append(content_key(search.param_distributions))
        key = digest(objective.fingerprint().encode(), lasting_key(search.estimator), *spaces)
    except (NoKey, TypeError):  # choices that are no JSON cannot be in a storage
        return None
    return f"treecv-search-{key.hex()}"


def check_direction(study: optuna.Study, objective: TreeCVObjective) -> None:
    """Refuse a study that does not do with values what the scoring of a search needs."""
    directions = [direction.name.lower() for direction in study.directions]
    if directions != objective.directions:
        what = "a loss" if objective.direction == "minimize" else "a score"
        raise ValueError(
            f"study must have direction={objective.direction!r}, since scoring is {what}, got "
            f"{' and '.join(map(repr, directions))}; "
            f"optuna.create_study(direction={objective.direction!r}) would be right."
        )


def check_trials(study: optuna.Study, axes: Mapping[str, Axis]) -> None:
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
                    f"trial {trial.number} is from {other} and not {axes[name].distribution}; a "
                    "new study would be right."
                )


def over(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that are over."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
