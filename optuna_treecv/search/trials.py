"""The trials of a search: evaluates them and collects the rows of ``cv_results_``.

The study is created, loaded from a storage, or passed by the user.
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
from optuna_treecv.search.scores import MAX_SPLITS
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
    """The objective function of a search, which collects a row of ``cv_results_`` for each trial.

    It is a context manager for the duration of the search, which notifies the callbacks of
    ``set_callbacks`` with the same task names as scikit-learn's searches. All splits of a trial
    are evaluated together, so their tasks begin and end at the same time.

    Parameters
    ----------
    search : TreeCVSearchCV
    evaluator : Evaluator
    names : sequence of str
        The names of the scores in ``cv_results_``.
    with_names : callable
        (names) -> Evaluator. It is called if the scorer turns out to return a dict of scores, and
        its evaluator replaces the given one.
    data : dict
        ``X``, ``y`` and ``metadata``, which are passed to the callbacks.

    Attributes
    ----------
    errors : dict of int to Exception
        The errors of failed trials, by trial number.
    argument_error : Exception or None
        The error for an invalid argument that was detected only in a trial.
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
        self._has_callbacks = bool(getattr(self.search, "_skl_callbacks", ()))
        if self._has_callbacks:
            n_tasks = 1 + bool(self.search.refit)
            self._root = self.search._init_callback_context(max_subtasks=n_tasks)
            self._root.call_on_fit_task_begin(**self.data)
        return self

    def __exit__(self, kind: type | None, error: Any, where: Any) -> None:
        if not self._has_callbacks:
            return
        # Exists since scikit-learn 1.9, which introduced callbacks.
        from sklearn.callback import with_callbacks

        try:
            if error is None:
                self._root.call_on_fit_task_end(**self.data)
        finally:
            with_callbacks(lambda search: None)(self.search)  # this tears down the callbacks

    @contextmanager
    def within(self, name: str, **options: Any) -> Generator[None]:
        """Return a context for a subtask of the search; an error leaves the subtask open."""
        if self._has_callbacks:
            self._inner = self._root.subcontext(name, **options)
            self._inner.call_on_fit_task_begin(**self.data)
        yield
        if self._has_callbacks:
            self._inner.call_on_fit_task_end(**self.data)

    def __call__(self, trial: optuna.Trial) -> float:
        error_score = self.search.error_score
        n_tasks = self.evaluator.n_splits if self._has_callbacks else 0
        tasks = [self._inner.subcontext("candidate-split-evaluation") for _ in range(n_tasks)]
        for task in tasks:
            task.call_on_fit_task_begin(**self.data)
        try:
            result = self._evaluate(trial)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            if isinstance(error, FoldsFailed):
                signs = [sign_of(d) for d in self.evaluator.score_directions.values()]
                splits = signed(error.scores, np.array(signs)[:, None], error_score)
                splits[:, list(error.errors)] = error_score
                self._store_row(trial, failed_row(splits))
            if not isinstance(error, FoldsFailed) or error.errors:
                self.errors[trial.number] = error
            if error_score == "raise":
                raise
            # Optuna logs the traceback of a failed trial. Without the frames of this package, it
            # is short.
            raise error.with_traceback(None) from None
        finally:
            for task in tasks:
                task.call_on_fit_task_end(**self.data)
        self._store_row(trial, row_of(result, self.evaluator.n_splits, error_score))
        return result.mean

    def _evaluate(self, trial: optuna.Trial) -> CVResult:
        """Evaluate a trial; repeat this if the scorer turns out to return several scores."""
        try:
            return self.evaluator.evaluate(trial)
        except (FoldsFailed, NoNumber) as error:
            errors = error.errors.values() if isinstance(error, FoldsFailed) else [error]
            names = next((e.names for e in errors if isinstance(e, NoNumber)), ())
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

    def _store_row(self, trial: optuna.Trial, row: Row) -> None:
        """Store the row of a trial; if ``verbose`` > 2, print the scores of each split."""
        self._rows[trial.number] = row
        if self.search.verbose <= 2:
            return
        params = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        for split in range(min(0 if s is None else len(s) for s in row.splits)):
            values = [f"{s[split]:.3f}" for s in row.splits if s is not None]
            tested, trained = values[: len(self.names)], values[len(self.names) :]
            if trained:
                pairs = zip(trained, tested, strict=True)
                tested = [f"(train={train}, test={test})" for train, test in pairs]
            scores = [f"{name}={score}" for name, score in zip(self.names, tested, strict=True)]
            print(f"split {split}: {params}; {', '.join(scores)}")

    def rows(self, study: optuna.Study, points: Points | None, optimized: int) -> list[Row]:
        """Return the rows of ``cv_results_``, which exclude trials that failed in earlier runs.

        Parameters
        ----------
        study : optuna.Study
        points : Points or None
            If given, rows are sorted in the order of the points. Earlier trials with other
            parameters come first.
        optimized : int
            The index of the score that is the value of the trials.
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
            pairs = [(self.evaluator.values_of(t.params), t) for t in others] + pairs
        trials = [trial for _, trial in pairs]
        self._check(trials)
        stored: Mapping[int, Mapping[str, np.ndarray]] = {}
        if self.evaluator.n_splits <= MAX_SPLITS:
            earlier = [trial for trial in trials if trial.number not in self._rows]
            stored = self.evaluator.known_scores.stored(earlier, self.evaluator.n_splits)
        directions = self.evaluator.score_directions
        rows = []
        for params, trial in pairs:
            row = self._rows.get(trial.number)
            # The trial is from an earlier run, or had other scores.
            if row is None or len(row.means) != len(directions):
                if trial.state == TrialState.FAIL:
                    shape = len(directions), self.evaluator.n_splits
                    row = failed_row(np.full(shape, float(self.search.error_score)))
                else:
                    trial_scores = stored.get(trial.number, {})
                    row = earlier_row(trial, directions, optimized, trial_scores)
            rows.append(row._replace(params=params, trial=trial))
        return rows

    def _check(self, trials: Sequence[FrozenTrial]) -> None:
        """Raise an error if all fits have failed; warn if some have.

        Parameters
        ----------
        trials : sequence of FrozenTrial
            The trial for each row of ``cv_results_``.
        """
        if self.argument_error is not None:
            raise self.argument_error
        if not trials:
            raise ValueError(
                "timeout must be long enough for at least one trial, but no trial has finished."
            )
        errors = [self.errors[trial.number] for trial in trials if trial.number in self.errors]
        if not errors:
            return
        failures: list[Exception] = []
        for error in errors:  # an error of the whole trial counts as a failure of all its folds
            by_fold = error.errors.values() if isinstance(error, FoldsFailed) else None
            failures += [error] * self.evaluator.n_splits if by_fold is None else by_fold
        n_failed, n_fits = len(failures), len(trials) * self.evaluator.n_splits
        counts = Counter(f"{type(e).__name__}: {e}" for e in failures)
        causes = (f"{n} fits failed with the following error: {e}" for e, n in counts.items())
        explanation = f"{'; '.join(causes)}; error_score='raise' shows the traceback."
        if n_failed == n_fits:
            raise ValueError(
                f"All the {n_fits} fits failed. It is very likely that your model is "
                f"misconfigured: {explanation}"
            ) from errors[0]
        warnings.warn(
            f"{n_failed} fits failed out of a total of {n_fits}; the scores of their splits are "
            f"set to error_score={self.search.error_score}: {explanation}",
            FitFailedWarning,
            stacklevel=3,
        )


#: The default number of trials without a grid, as in OptunaSearchCV and RandomizedSearchCV.
N_TRIALS = 10


_lock = Lock()
_levels: list[int] = []  # for each open ``quiet`` context, the level outside all of them


@contextmanager
def quiet() -> Generator[None]:
    """Suppress Optuna's messages below warnings; several threads may use this at the same time."""
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
    """Return the study of the search: the given one, one from the storage, or a new one.

    Parameters
    ----------
    search : TreeCVSearchCV
    evaluator : Evaluator
    seed : int
        The seed of the default sampler.
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
            "random_state must be the int of the study's earlier trials, got None, which shuffles "
            f"the rows differently in each search: {error}"
        ) from error
    _check_trials(search.study, evaluator.space.axes)
    return search.study


def _make_study(search: Any, evaluator: Evaluator, seed: int) -> optuna.Study:
    """Return a new study, or the study that an earlier search has created in the storage.

    An earlier study is continued if data, folds, scoring, estimator and search space are equal.
    """
    storage, name = search.storage, None
    if storage is not None:
        if search.random_state is None:
            warn_caller(
                "random_state should be an int if storage is given, because None shuffles the "
                "rows differently in each search, so each search creates a new study."
            )
        name = _name_of_search(search, evaluator)
        if name is None:
            warn_caller(
                "a later search cannot continue the study in storage, because the estimator or "
                "the search space contains an object that cannot be hashed, such as a lambda; "
                "pass study instead."
            )
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        load_if_exists=name is not None,
        directions=[StudyDirection[d.upper()] for d in evaluator.directions],
        pruner=optuna.pruners.NopPruner() if search.pruner is None else deepcopy(search.pruner),
    )
    if search.sampler is None:  # a continued study must not repeat its first samples
        sampler_seed = derive_seed(seed, len(study.get_trials(deepcopy=False))) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=sampler_seed)
    else:
        study.sampler = deepcopy(search.sampler)  # fit must not change the given sampler
    return study


def _name_of_search(search: Any, evaluator: Evaluator) -> str | None:
    """Return a name for the study that is the same in all processes; None if there is no key."""
    try:
        spaces = [
            text.encode()
            for name, distribution in sorted(evaluator.param_distributions.items())
            for text in (name, distribution_to_json(distribution))
        ]
        if callable(search.param_distributions):
            spaces.append(content_key(search.param_distributions))
        key = digest(evaluator.fingerprint().encode(), lasting_key(search.estimator), *spaces)
    # The choices of a categorical parameter cannot be converted to JSON.
    except (NoKey, TypeError):
        return None
    return f"treecv-search-{key.hex()}"


def _check_direction(study: optuna.Study, evaluator: Evaluator) -> None:
    """Raise ValueError if the directions of a study do not fit the scoring."""
    directions = [direction.name.lower() for direction in study.directions]
    if directions != evaluator.directions:
        raise ValueError(
            f"study must have direction={evaluator.directions[0]!r}, because the score is to be "
            f"{evaluator.directions[0]}d, got {' and '.join(map(repr, directions))}; use "
            f"optuna.create_study(direction={evaluator.directions[0]!r}) instead."
        )


def _check_trials(study: optuna.Study, axes: Mapping[str, Axis]) -> None:
    """Raise ValueError if the trials of a study have other parameters or distributions.

    ``axes`` is empty if a callable suggests the parameters.
    """
    for trial in finished_trials(study):
        if axes and trial.state == TrialState.COMPLETE and set(trial.params) != set(axes):
            raise ValueError(
                f"study must have trials with the parameters {', '.join(sorted(axes))}, but trial "
                f"{trial.number} has {', '.join(sorted(trial.params)) or 'none'}; create a new "
                "study instead."
            )
        for name in trial.distributions.keys() & axes:
            if not axes[name].has_codes_of(other := trial.distributions[name]):
                raise ValueError(
                    f"study must have trials with the distributions of this search, but {name!r} "
                    f"of trial {trial.number} has {other} instead of {axes[name].distribution}; "
                    "create a new study instead."
                )


def finished_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the finished trials of a study."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def _n_scored(trials: Sequence[FrozenTrial]) -> int:
    """Return the number of trials that have not failed."""
    return sum(trial.state != TrialState.FAIL for trial in trials)


def run_trials(trials: Trials, study: optuna.Study, points: Points | None) -> None:
    """Run the trials of a search that are not in its study yet.

    Parameters
    ----------
    trials : Trials
    study : optuna.Study
    points : Points or None
        The candidates of a grid or a random sample; None if a sampler suggests the candidates.
    """
    search, space = trials.search, trials.evaluator.space
    before, sampler = finished_trials(study), study.sampler
    requested = search.n_trials or search.n_iter
    n_trials = requested or N_TRIALS
    if search.study is None and (points is None or points.is_sample):
        n_trials = max(0, n_trials - _n_scored(before))
    if points is not None:
        points.find_missing(space.axes, before)
        if requested is not None or points.is_sample:
            del points.missing[n_trials:]
        if points.is_sample:
            # Only these points may be prefetched, not the whole grid.
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
            if not (n_scored := _n_scored(finished_trials(study))):
                raise
            warn_caller(
                f"The search was interrupted after {n_scored} trials; the results include only "
                "these trials."
            )
        finally:
            study.sampler = sampler


# The requirements of ``refit="one_se"``, and its choice.


def check_one_se(evaluator: Evaluator, simpler: Any) -> None:
    """Raise ValueError if ``refit="one_se"`` cannot rank candidates or has no standard errors.

    Parameters
    ----------
    evaluator : Evaluator
        The evaluator of the search, before its first trial.
    simpler : dict, "n_updates", callable or None
        As for ``TreeCVSearchCV``.

    Raises
    ------
    ValueError
        If ``refit="one_se"`` would fail after the last trial.
    """
    if not evaluator.has_fold_scores:
        raise ValueError(
            "refit='one_se' needs the scores of several folds, but a hold-out or a pooled score "
            "gives only one score; use refit=True instead."
        )
    distributions = evaluator.param_distributions
    if simpler is not None:
        order_of([], simpler, list(distributions))  # raises if simpler is invalid
        if not isinstance(simpler, Mapping):
            return
        distributions = {name: distributions[name] for name in simpler}
    elif known_direction(list(distributions)) is None:
        examples = ""
        if (example := evaluator.space.example) is not None:
            names = [name for name in example.get_params() if known_direction([name])]
            examples = f" (for {name_of(example)}: {', '.join(map(repr, names)) or 'none'})"
        raise ValueError(
            "simpler must be given for refit='one_se' and a search of "
            f"{', '.join(map(repr, distributions)) or 'parameters that a callable suggests'}, got "
            "None: smaller or larger values are known to give simpler models only for single "
            f"parameters{examples}."
        )
    for name, distribution in distributions.items():
        for value in getattr(distribution, "choices", ()):
            if not is_number(value):
                raise ValueError(
                    f"refit='one_se' needs numbers as values of {name!r}, got {value!r}; use a "
                    "callable as simpler, or as refit, instead."
                )


def check_earlier_scores(earlier: Sequence[FrozenTrial], store: Any) -> None:
    """Raise ValueError if the fold scores of earlier trials are not stored.

    Parameters
    ----------
    earlier : sequence of FrozenTrial
    store : Any
        The store of the search.

    Raises
    ------
    ValueError
        If ``refit="one_se"`` would have to ignore earlier trials, or would fail because one of
        them is the best trial.
    """
    n_unknown = sum(
        trial.state == TrialState.COMPLETE
        and (store is None or not runs_of_trial(trial.user_attrs))
        for trial in earlier
    )
    if n_unknown:
        raise ValueError(
            f"refit='one_se' needs fold scores, but those of {n_unknown} earlier trials are not "
            "stored; use refit=True, or a new study with a store, instead."
        )


def row_by_one_se(
    evaluator: Evaluator, study: optuna.Study, numbers: list[int], simpler: Any
) -> int:
    """Return the index of the row with the simplest trial within one standard error of the best.

    Parameters
    ----------
    evaluator : Evaluator
    study : optuna.Study
        The study. Trials that are not among ``numbers`` are ignored.
    numbers : list of int
        The trial number of each row.
    simpler : dict, "n_updates", callable or None
        As for ``TreeCVSearchCV``.

    Raises
    ------
    ValueError
        If the fold scores of the best trial are unknown, or no trial has a finite score.
    """
    contest = evaluator.contest(study)
    contest = contest._replace(trials=[t for t in contest.trials if t.number in numbers])
    if not contest.trials:
        raise ValueError("refit='one_se' needs a trial with a finite score, but there is none.")
    best = contest.trials[0]
    if best.number not in contest.folds_of([best]):
        raise ValueError(
            f"refit='one_se' needs the fold scores of the best trial {best.number}, but an "
            "earlier run has not stored them; use refit=True, or a new study with a store, "
            "instead."
        )
    return numbers.index(choice_of(contest, "one_se", simpler, 0.95).trial.number)
